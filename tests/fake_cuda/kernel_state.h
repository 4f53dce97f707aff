/* kernel_state.h - kernels of the stand-in driver, shared by fake_launch.c and fake_module.c. Call with the driver's lock. */
#ifndef HR_TESTS_KERNEL_STATE_H
#define HR_TESTS_KERNEL_STATE_H

#include "fake_cuda/driver_state.h"

/* A kernel that computes: run(argument, grid, threads), with one parameter of [bytes]. */
typedef void (*fake_run)(const void *argument, const unsigned *grid, unsigned threads);
CUfunction fake_kernel_make(const char *name, fake_run run, size_t bytes, CUmodule module);
/* Those of a module; NULL = all that compute nothing. */
void fake_kernels_forget(CUmodule module);

#endif
