/* library.c - shared libraries on Linux. */
#include "core/os/library.h"

#include <dlfcn.h>
#include <stdio.h>

hr__library *hr__library_open(const char *name, char *why, size_t capacity)
{
	/* Resolve all symbols now: a library that lacks one fails here with a message instead of ending the process later. */
	void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
	if (library) return library;
	const char *error = dlerror();
	snprintf(why, capacity, "%s", error ? error : name);
	return NULL;
}

void *hr__library_symbol(hr__library *library, const char *name)
{
	return dlsym(library, name);
}
