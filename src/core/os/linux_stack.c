/* linux_stack.c - call stacks and symbols of this process, from glibc. */
#define _GNU_SOURCE
#include "core/os/linux.h"

#include <errno.h>
#include <string.h>

#ifdef __GLIBC__

#include <dlfcn.h>
#include <execinfo.h>
#include <link.h>

int hr__linux_stack_capture(void **addresses, size_t capacity, size_t *out_count)
{
	int found = backtrace(addresses, capacity < INT16_MAX ? (int)capacity : INT16_MAX);
	if (found <= 0) return ENODATA;
	*out_count = (size_t)found;
	return 0;
}

/* The offset is relative to the load bias, not to the first mapped byte: in a program at a fixed address the two differ, and addr2line
 * expects the former. */
int hr__linux_symbol_find(const void *address, hr__os_symbol *out)
{
	Dl_info info;
	struct link_map *map = NULL;
	if (!dladdr1(address, &info, (void **)&map, RTLD_DL_LINKMAP) || map == NULL) return ENOENT;
	*out = (hr__os_symbol){
		.function = info.dli_sname ? info.dli_sname : "",
		.module = info.dli_fname ? info.dli_fname : "",
		.offset = (uintptr_t)address - map->l_addr,
		.base = (uintptr_t)info.dli_fbase,
		.is_program = map->l_name == NULL || map->l_name[0] == 0,
	};
	return 0;
}

#else

int hr__linux_stack_capture(void **addresses, size_t capacity, size_t *out_count)
{
	(void)addresses, (void)capacity, (void)out_count;
	return ENOSYS;
}

int hr__linux_symbol_find(const void *address, hr__os_symbol *out)
{
	(void)address, (void)out;
	return ENOSYS;
}

#endif
