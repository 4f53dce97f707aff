/* kernels.h - what the driver knows about a kernel: its name, and where its parameters are. Asked once for each kernel. */
#ifndef HR_PLUGIN_CUDA_KERNELS_H
#define HR_PLUGIN_CUDA_KERNELS_H

#include <stdint.h>

#include "driver_calls.h"
#include "headroom.h"
#include "state.h"

#define HR__KERNEL_PARAMETERS_MAX 64

typedef struct hr__kernel {
	CUfunction function;
	hr_name name; /* "kernel" where the driver has no call for it: before CUDA 12.3 */
	uint32_t asked;     /* how often code had been unloaded when the driver was last asked */
	uint32_t parameter_count;
	uint32_t sizes[HR__KERNEL_PARAMETERS_MAX], offsets[HR__KERNEL_PARAMETERS_MAX];
	uint64_t least_ns;  /* shortest measured execution; 0 = none yet */
	uint32_t measured;  /* executions that were measured */
} hr__kernel;

static inline uint32_t hr__kernels_hash(CUfunction function)
{
	return (uint32_t)((uint64_t)(uintptr_t)function * UINT64_C(0x9E3779B97F4A7C15) >> 40);
}
static inline uint32_t hr__kernels_set(CUfunction function)
{
	return hr__kernels_hash(function) & (HR__NAMED_SETS - 1);
}

/* NULL: no memory for its record. The record stays valid until the end of the process; its time is written by any thread. */
hr__kernel *hr__kernels_get(CUfunction function);

/* Its name alone, which is found in one cache line. HR_NAME_NONE: no memory for its record. */
hr_name hr__kernels_name_slowly(CUfunction function);
static inline hr_name hr__kernels_name(CUfunction function)
{
	const hr__named_kernel *set = hr__now.kernels[hr__kernels_set(function)];
	uint32_t unloads = __atomic_load_n(&hr__now.unloads, __ATOMIC_ACQUIRE);
	for (unsigned i = 0; i < HR__NAMED_WAYS; i++) {
		if (__atomic_load_n(&set[i].function, __ATOMIC_ACQUIRE) != function) continue;
		uint64_t name = __atomic_load_n(&set[i].name, __ATOMIC_ACQUIRE);
		/* Another thread may be giving the place to another kernel. */
		if (name >> 32 == unloads && __atomic_load_n(&set[i].function, __ATOMIC_RELAXED) == function) return (hr_name)name;
	}
	return hr__kernels_name_slowly(function);
}

/* Code was unloaded: a function's number may stand for another kernel from now on. */
void hr__kernels_forget(void);

#endif
