/* cuda_library.h - `headroom run` and programs that use CUDA without Headroom: libheadroom_cuda.so is preloaded into them. */
#ifndef HR_CLI_CUDA_LIBRARY_H
#define HR_CLI_CUDA_LIBRARY_H

#include <stdbool.h>

/* Adds the library to LD_PRELOAD, for [program] and what it starts. False, with a message, if the library was not found and is [required], or the
 * environment cannot be set. A program that it cannot be loaded into runs without it: a message says so, and the result is true. */
bool hr__cuda_library_preload(const char *program, bool required);

#endif
