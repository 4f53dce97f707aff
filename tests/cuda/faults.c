/* faults.c - a module that makes calls fail in a program under `headroom run` (program.c, PROGRAM_WALK). In LD_PRELOAD after libheadroom_cuda.so.
 *
 *     system_...   calls of libheadroom to the operating system, through the table of fault_os.h
 *     memory_...   malloc, calloc and realloc, where libheadroom_cuda.so calls them */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>

#include "fault_os.h"

#define EXPORT __attribute__((visibility("default")))

/* ---- the system ---- */

EXPORT void system_install(void);
EXPORT void system_install(void)
{
	hr_fault_os_install();
}

EXPORT void system_fail_nth(uint64_t nth, bool forever);
EXPORT void system_fail_nth(uint64_t nth, bool forever)
{
	hr_fault_os_fail_nth(nth, forever, ENOMEM);
}

EXPORT uint64_t system_failures(void);
EXPORT uint64_t system_failures(void)
{
	return hr_fault_os_failures();
}

/* ---- memory ---- */

static struct {
	uint64_t nth, calls, failures;
	bool forever;
	const void *library; /* where libheadroom_cuda.so begins */
} memory;

EXPORT void memory_install(void);
EXPORT void memory_install(void)
{
	Dl_info info;
	void *own = dlsym(RTLD_DEFAULT, "headroom_cuda_driver_symbol");
	memory.library = own && dladdr(own, &info) ? info.dli_fbase : NULL;
}

EXPORT void memory_fail_nth(uint64_t nth, bool forever);
EXPORT void memory_fail_nth(uint64_t nth, bool forever)
{
	memory.nth = nth;
	memory.forever = forever;
	memory.calls = 0;
}

EXPORT uint64_t memory_failures(void);
EXPORT uint64_t memory_failures(void)
{
	return memory.failures;
}

static bool fails(const void *caller)
{
	Dl_info info;
	if (!memory.nth || !dladdr(caller, &info) || info.dli_fbase != memory.library) return false;
	memory.calls++;
	bool failed = memory.calls == memory.nth || (memory.forever && memory.calls > memory.nth);
	memory.failures += failed;
	return failed;
}

extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t count, size_t bytes);

EXPORT void *malloc(size_t bytes)
{
	return fails(__builtin_return_address(0)) ? NULL : __libc_malloc(bytes);
}

EXPORT void *calloc(size_t count, size_t bytes)
{
	return fails(__builtin_return_address(0)) ? NULL : __libc_calloc(count, bytes);
}
