/* library.c - shared libraries on Linux. */
#define _GNU_SOURCE
#include "core/os/library.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

hr__library *hr__library_open(const char *name, char *why, size_t capacity)
{
	/* Resolve all symbols now: a library that lacks one fails here with a message instead of ending the process later. */
	void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
	if (library) return library;
	const char *error = dlerror();
	snprintf(why, capacity, "%s", error ? error : name);
	return NULL;
}

typedef void *(*symbol_function)(hr__library *library, const char *name);

/* In a program under `headroom run`, dlsym answers for memory calls of the CUDA driver, on behalf of the program. libheadroom needs the driver's own
 * functions, which this function of the preloaded library gives. */
static symbol_function preloaded(void)
{
	void *found = dlsym(RTLD_DEFAULT, "headroom_cuda_driver_symbol");
	symbol_function function;
	memcpy(&function, &found, sizeof function);
	if (!found) dlerror(); /* the program's next dlerror() is about its own calls */
	return function;
}

void *hr__library_symbol(hr__library *library, const char *name)
{
	symbol_function find = preloaded();
	return find ? find(library, name) : dlsym(library, name);
}
