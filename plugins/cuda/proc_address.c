/* proc_address.c - cuGetProcAddress, through which CUDA's runtime library gets every function of the driver. */
#include "driver.h"
#include "record.h"
#include "settings.h"

HR__ANSWERED_PLAIN(HR__PROTOTYPE)
HR__ANSWERED_STREAM(HR__PROTOTYPES)

static void answer(const char *name, void **function, int version, unsigned long long flags)
{
	if (!hr__settings_get()->on || !name || !function || !*function) return;
	void *own = hr__driver_answer_for(name, version, flags, *function);
	if (own) *function = own;
}

CUresult cuGetProcAddress(const char *name, void **function, int version, unsigned long long flags)
{
	CUresult result = HR__REAL(cuGetProcAddress, name, function, version, flags);
	if (result == HR__CUDA_SUCCESS) answer(name, function, version, flags);
	return result;
}

CUresult cuGetProcAddress_v2(const char *name, void **function, int version, unsigned long long flags, int *found)
{
	CUresult result = HR__REAL(cuGetProcAddress_v2, name, function, version, flags, found);
	if (result == HR__CUDA_SUCCESS) answer(name, function, version, flags);
	return result;
}
