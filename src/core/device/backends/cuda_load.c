/* cuda_load.c - finds the CUDA driver and its devices.
 *
 * The driver library is loaded at run time. If it is missing or does not work, there are no CUDA devices. That is not an error:
 * emulated devices are used instead. The reason is kept for hr_cuda_check.
 *
 * Static data is written under the registry's lock and only read afterwards. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/device/backends/cuda_card.h"
#include "core/device/internal.h"
#include "core/os/library.h"
#include "core/os/os.h"

#define LIBRARY "libcuda.so.1"
#define OLDEST "11.0" /* the first CUDA version whose driver has all of HR__CUDA_CALLS */
#define CONTROL_DEVICE "/dev/nvidiactl"

hr__cuda_calls hr__cuda;

static struct {
	hr__library *library;
	int process; /* the process that called cuInit; a fork of it cannot use CUDA */
	bool broken; /* the last count found a driver but no device */
	const char *lacks; /* the first call for kernels that is missing; NULL = none */
	char why[320];
} driver;

const char *hr__cuda_why(void)
{
	return driver.why;
}

const char *hr__cuda_lacks(void)
{
	return driver.lacks;
}

bool hr__cuda_is_broken(void)
{
	return driver.broken;
}

/* Returns false, so that callers can return its result. */
__attribute__((format(printf, 1, 2))) static bool explain(const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	vsnprintf(driver.why, sizeof driver.why, format, arguments);
	va_end(arguments);
	return false;
}

static bool load(void)
{
	char why[200] = "";
	hr__library *library = driver.library ? driver.library : hr__library_open(LIBRARY, why, sizeof why);
	if (!library) return explain("no driver found (%s)", why);
	driver.broken = true; /* until a device is found */
	if (driver.library) return true;
#define RESOLVE(name, parameters)                                                                                       \
	{                                                                                                                   \
		void *symbol = hr__library_symbol(library, #name);                                                              \
		if (!symbol) {                                                                                                  \
			return explain("the CUDA driver is too old: it has no %s; Headroom needs CUDA " OLDEST " or newer", #name); \
		}                                                                                                               \
		memcpy(&hr__cuda.name, &symbol, sizeof symbol);                                                                       \
	}
	HR__CUDA_CALLS(RESOLVE)
#undef RESOLVE
	driver.lacks = NULL;
#define RESOLVE(name, parameters)                               \
	{                                                           \
		void *symbol = hr__library_symbol(library, #name);      \
		if (!symbol && !driver.lacks) driver.lacks = #name;     \
		memcpy(&hr__cuda.name, &symbol, sizeof symbol);         \
	}
	HR__CUDA_KERNEL_CALLS(RESOLVE)
#undef RESOLVE
	driver.library = library;
	return true;
}

/* The error of opening the driver's device file if access is denied; otherwise 0. The device is not a regular file, so the open
 * never succeeds, but missing permission is reported first. */
static int forbidden(void)
{
	int file;
	uint64_t size;
	int error = hr__os()->file_open(CONTROL_DEVICE, &file, &size);
	if (error == 0) hr__os()->file_close(file);
	return error == EACCES || error == EPERM ? error : 0;
}

static bool explain_init(CUresult result)
{
	char text[160];
	int error = forbidden();
	hr__cuda_describe(result, text, sizeof text);
	if (error) {
		return explain("cuInit: %s; " CONTROL_DEVICE
		               " may not be opened (%s): add the user to the group that it belongs to, or run "
		               "the container with access to GPUs",
		               text, hr__os_error(error));
	}
	const char *visible = hr__os()->environment("CUDA_VISIBLE_DEVICES");
	if (result == HR__CUDA_ERROR_NO_DEVICE && visible) {
		char quoted[HR__QUOTE_CAPACITY];
		return explain("the driver shows no device; the environment variable CUDA_VISIBLE_DEVICES is %s",
		               hr__device_quote(visible, quoted));
	}
	if (result == HR__CUDA_ERROR_NO_DEVICE) return explain("the driver shows no device");
	return explain("cuInit: %s", text);
}

static bool initialise(int *count)
{
	char text[160];
	int process = hr__os()->process_id();
	if (driver.process && driver.process != process) {
		return explain("this process is a fork of one that used CUDA, which CUDA does not support; start it with exec");
	}
	CUresult result = hr__cuda.cuInit(0);
	if (result != HR__CUDA_SUCCESS) return explain_init(result);
	driver.process = process;
	result = hr__cuda.cuDeviceGetCount(count);
	if (result != HR__CUDA_SUCCESS) return explain("cuDeviceGetCount: %s", hr__cuda_describe(result, text, sizeof text));
	if (*count <= 0) return explain_init(HR__CUDA_ERROR_NO_DEVICE);
	return true;
}

uint32_t hr__cuda_count_devices(bool enabled)
{
	int count = 0;
	driver.why[0] = 0;
	driver.broken = false;
	if (!enabled) {
		explain("switched off (HEADROOM_CUDA=0, or hr_cuda_configure)");
	} else if (load() && initialise(&count)) {
		driver.broken = false;
		return (uint32_t)count;
	}
	return 0;
}
