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

/* Flags that leave it open mean what the program was compiled for. */
static unsigned long long complete(unsigned long long flags, bool per_thread)
{
	return flags == HR__CU_GET_PROC_ADDRESS_DEFAULT && per_thread ? HR__CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM : flags;
}

#define SEARCHES(variant, per_thread)                                                                                                      \
	CUresult cuGetProcAddress##variant(const char *name, void **function, int version, unsigned long long flags)                          \
	{                                                                                                                                      \
		CUresult result = HR__REAL(cuGetProcAddress##variant, name, function, version, flags);                                            \
		if (result == HR__CUDA_SUCCESS) answer(name, function, version, complete(flags, per_thread));                                     \
		return result;                                                                                                                     \
	}                                                                                                                                      \
	CUresult cuGetProcAddress_v2##variant(const char *name, void **function, int version, unsigned long long flags, int *found)           \
	{                                                                                                                                      \
		CUresult result = HR__REAL(cuGetProcAddress_v2##variant, name, function, version, flags, found);                                  \
		if (result == HR__CUDA_SUCCESS) answer(name, function, version, complete(flags, per_thread));                                     \
		return result;                                                                                                                     \
	}

SEARCHES(, false)
SEARCHES(_ptsz, true)
