/* loader.h - the dynamic loader's own functions, behind the dlsym and dlopen that this library puts in front of them. */
#ifndef HR_PLUGIN_CUDA_LOADER_H
#define HR_PLUGIN_CUDA_LOADER_H

#include <stdbool.h>

/* The loader's dlsym, called from this library: RTLD_NEXT means the libraries after this one. */
void *hr__loader_symbol(void *library, const char *name);

/* The handle of a library that is loaded, without loading it; NULL if it is not. */
void *hr__loader_loaded(const char *name);

/* Whether [address] is code of this library. */
bool hr__loader_is_own(const void *address);

#endif
