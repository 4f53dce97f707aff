/* kernels.h - what the driver knows about a kernel: its name, and where its parameters are. Asked once for each kernel. */
#ifndef HR_PLUGIN_CUDA_KERNELS_H
#define HR_PLUGIN_CUDA_KERNELS_H

#include <stdint.h>

#include "driver_calls.h"
#include "headroom.h"

#define HR__KERNEL_PARAMETERS_MAX 64

typedef struct hr__kernel {
	CUfunction function;
	hr_name name; /* "kernel" where the driver has no call for it: before CUDA 12.3 */
	uint32_t parameter_count;
	uint32_t sizes[HR__KERNEL_PARAMETERS_MAX], offsets[HR__KERNEL_PARAMETERS_MAX];
	uint64_t least_ns;  /* shortest measured execution; 0 = none yet */
	uint32_t measured;  /* executions that were measured */
	uint32_t asked;     /* how often code had been unloaded when the driver was last asked */
} hr__kernel;

/* NULL: no memory for its record. The record stays valid until the end of the process; its time is written by any thread. */
hr__kernel *hr__kernels_get(CUfunction function);

/* Code was unloaded: a function's number may stand for another kernel from now on. */
void hr__kernels_forget(void);

#endif
