/* gpu_kernel.h - a kernel that behaves like an op: it checks the tensors it reads, changes those it writes, and takes a given time.
 *
 * Each tensor has SAMPLES stamps of 8 bytes, spread over the whole tensor. The kernel compares them with the expected values,
 * counts differences, and writes new stamps; then it waits until its time is over. So the contents of every tensor that moves are
 * checked at every use, by the device, within the op's duration. The kernel is PTX text that the driver compiles, so building this
 * does not need CUDA. */
#ifndef HR_BENCH_GPU_KERNEL_H
#define HR_BENCH_GPU_KERNEL_H

#include <string.h>

#include "gpu_driver.h"

#define SAMPLES 64u
#define KERNEL_TENSORS 96u /* per launch; limited by the size of the kernel's parameters */

typedef struct kernel_tensor {
	uint64_t address, stride; /* stamp i is at address + i * stride */
	uint64_t expect, next;    /* stamp i is this + i; 0 = do not check, do not write */
} kernel_tensor;

typedef struct kernel_arguments {
	uint64_t ns;
	uint64_t errors; /* address of a counter of 4 bytes */
	uint64_t count;
	kernel_tensor tensors[KERNEL_TENSORS];
} kernel_arguments;

_Static_assert(sizeof(kernel_arguments) == 24 + 32 * KERNEL_TENSORS, "the kernel reads it by offsets");

static const char kernel_text[] =
	".version 7.0\n"
	".target sm_70\n"
	".address_size 64\n"
	".visible .entry op(.param .align 8 .b8 arguments[3096])\n"
	"{\n"
	".reg .u64 %start, %now, %ns, %errors, %count, %i, %base, %address, %stride, %expect, %next, %thread, %seen, %want;\n"
	".reg .u32 %lane, %one;\n"
	".reg .pred %p;\n"
	"mov.u64 %start, %globaltimer;\n"
	"mov.b64 %base, arguments;\n"
	"ld.param.u64 %ns, [%base];\n"
	"ld.param.u64 %errors, [%base+8];\n"
	"ld.param.u64 %count, [%base+16];\n"
	"mov.u32 %lane, %tid.x;\n"
	"cvt.u64.u32 %thread, %lane;\n"
	"mov.u32 %one, 1;\n"
	"mov.u64 %i, 0;\n"
	"tensor:\n"
	"setp.ge.u64 %p, %i, %count;\n"
	"@%p bra wait;\n"
	"ld.param.u64 %address, [%base+24];\n"
	"ld.param.u64 %stride, [%base+32];\n"
	"ld.param.u64 %expect, [%base+40];\n"
	"ld.param.u64 %next, [%base+48];\n"
	"add.u64 %base, %base, 32;\n"
	"add.u64 %i, %i, 1;\n"
	"mad.lo.u64 %address, %thread, %stride, %address;\n"
	"setp.eq.u64 %p, %expect, 0;\n"
	"@%p bra write;\n"
	"ld.global.u64 %seen, [%address];\n"
	"add.u64 %want, %expect, %thread;\n"
	"setp.eq.u64 %p, %seen, %want;\n"
	"@%p bra write;\n"
	"red.global.add.u32 [%errors], %one;\n"
	"write:\n"
	"setp.eq.u64 %p, %next, 0;\n"
	"@%p bra tensor;\n"
	"add.u64 %want, %next, %thread;\n"
	"st.global.u64 [%address], %want;\n"
	"bra tensor;\n"
	"wait:\n"
	"mov.u64 %now, %globaltimer;\n"
	"sub.u64 %now, %now, %start;\n"
	"setp.lt.u64 %p, %now, %ns;\n"
	"@%p bra wait;\n"
	"ret;\n"
	"}\n";

static struct {
	int (*module_load)(void **, const void *);
	int (*get_function)(void **, void *, const char *);
	int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, cu_stream, void **, void **);
	void *module, *function;
} kernel;

/* Call after driver_open, with its context current. */
static void kernel_open(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	*(void **)&kernel.module_load = dlsym(library, "cuModuleLoadData");
	*(void **)&kernel.get_function = dlsym(library, "cuModuleGetFunction");
	*(void **)&kernel.launch = dlsym(library, "cuLaunchKernel");
	driver_must(kernel.module_load && kernel.get_function && kernel.launch ? 0 : 1, "cuModuleLoadData and others");
	driver_must(kernel.module_load(&kernel.module, kernel_text), "cuModuleLoadData");
	driver_must(kernel.get_function(&kernel.function, kernel.module, "op"), "cuModuleGetFunction");
}

static void kernel_launch(kernel_arguments *arguments, cu_stream stream)
{
	void *parameters[] = { arguments };
	driver_must(kernel.launch(kernel.function, 1, 1, 1, SAMPLES, 1, 1, 0, stream, parameters, NULL), "cuLaunchKernel");
}

#endif
