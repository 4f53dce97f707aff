/* fake_launch.c - kernels of the stand-in driver: they have a name and parameters, compute nothing, and count as writing to every mapping that a
 * parameter points into, until they are done. */
#include "fake_cuda/driver_state.h"
#include "fake_cuda/kernel_state.h"

#define PARAMETERS_MAX 8

HR__ANSWERED_PLAIN(HR__PROTOTYPE)
HR__ANSWERED_STREAM(HR__PROTOTYPES)
#define PROTOTYPE(name, parameters) EXPORT CUresult name parameters;
HR__MADE_CALLS(PROTOTYPE)
#undef PROTOTYPE

struct CUfunc_st {
	char name[64];
	bool of_library; /* a CUkernel: calls for functions of modules refuse it, and the other way round */
	size_t count, sizes[PARAMETERS_MAX];
	fake_run run; /* NULL: it computes nothing */
	CUmodule module;
	struct CUfunc_st *next;
};

static CUfunction kernels, forgotten; /* forgotten ones are kept, so that no new one has their address */

EXPORT CUfunction fake_cuda_make_kernel(const char *name, int of_library, size_t count, const size_t *sizes)
{
	CUfunction made = zeroed(sizeof *made);
	strncpy(made->name, name, sizeof made->name - 1);
	made->of_library = of_library != 0;
	made->count = count < PARAMETERS_MAX ? count : PARAMETERS_MAX;
	memcpy(made->sizes, sizes, made->count * sizeof *sizes);
	made->next = kernels;
	kernels = made;
	return made;
}

CUfunction fake_kernel_make(const char *name, fake_run run, size_t bytes, CUmodule module)
{
	CUfunction made = zeroed(sizeof *made);
	strncpy(made->name, name, sizeof made->name - 1);
	*made->sizes = bytes;
	made->count = 1;
	made->run = run;
	made->module = module;
	made->next = kernels;
	kernels = made;
	return made;
}

void fake_kernels_forget(CUmodule module)
{
	for (CUfunction *link = &kernels; *link;) {
		CUfunction at = *link;
		if (at->module != module) {
			link = &at->next;
			continue;
		}
		*link = at->next;
		at->next = forgotten;
		forgotten = at;
	}
}

static CUfunction kernel_of(const void *handle, bool of_library)
{
	CUfunction at = kernels;
	while (at && at != handle) at = at->next;
	return at && at->of_library == of_library ? at : NULL;
}

static size_t offset_of(CUfunction kernel, size_t index)
{
	size_t offset = 0;
	for (size_t i = 0; i < index; i++) offset += (kernel->sizes[i] + 7) / 8 * 8;
	return offset;
}

static CUresult get_name(const char **out, CUfunction kernel)
{
	if (!kernel) return HR__CUDA_ERROR_INVALID_HANDLE;
	*out = kernel->name;
	return HR__CUDA_SUCCESS;
}

CUresult cuFuncGetName(const char **out, CUfunction function)
{
	BEGIN(cuFuncGetName);
	return end(get_name(out, kernel_of(function, false)));
}

CUresult cuKernelGetName(const char **out, CUkernel kernel)
{
	BEGIN(cuKernelGetName);
	return end(get_name(out, kernel_of(kernel, true)));
}

#ifndef FAKE_CUDA_OLD
static CUresult get_parameter(CUfunction kernel, size_t index, size_t *offset, size_t *size)
{
	if (!kernel) return HR__CUDA_ERROR_INVALID_HANDLE;
	if (index >= kernel->count) return HR__CUDA_ERROR_INVALID_VALUE;
	*offset = offset_of(kernel, index);
	*size = kernel->sizes[index];
	return HR__CUDA_SUCCESS;
}

CUresult cuFuncGetParamInfo(CUfunction function, size_t index, size_t *offset, size_t *size)
{
	BEGIN(cuFuncGetParamInfo);
	return end(get_parameter(kernel_of(function, false), index, offset, size));
}

CUresult cuKernelGetParamInfo(CUkernel kernel, size_t index, size_t *offset, size_t *size)
{
	BEGIN(cuKernelGetParamInfo);
	return end(get_parameter(kernel_of(kernel, true), index, offset, size));
}
#endif

/* The library is not looked at: the kernels are gone. */
CUresult cuLibraryUnload(CUlibrary library)
{
	BEGIN(cuLibraryUnload);
	VALID(library);
	fake_kernels_forget(NULL);
	return end(result);
}

/* ---- kernels that compute ---- */

struct computation {
	struct computation *next;
	fake_run run;
	unsigned grid[3], threads;
	unsigned char argument[];
};

void run_computation(const struct computation *computation)
{
	computation->run(computation->argument, computation->grid, computation->threads);
}

static struct computation *computations; /* guarded by the driver's lock */

__attribute__((destructor)) static void free_computations(void)
{
	while (computations) {
		struct computation *next = computations->next;
		free(computations);
		computations = next;
	}
}

/* The record is kept, because a graph may run it again. */
CUresult submit_computation(CUcontext context, CUstream stream, fake_run run, const void *argument, size_t bytes, const unsigned *grid, unsigned threads,
                            const uint64_t *addresses, size_t count)
{
	struct computation *made = zeroed(sizeof *made + bytes);
	made->next = computations;
	computations = made;
	made->run = run;
	memcpy(made->grid, grid, sizeof made->grid);
	made->threads = threads;
	memcpy(made->argument, argument, bytes);
	CUresult result = submit(context, stream, &(command){ .kind = COMPUTE, .computation = made });
	for (size_t i = 0; i < count && result == HR__CUDA_SUCCESS; i++) {
		const mapping *used = mapping_at(addresses[i]);
		if (used) result = submit(context, stream, &(command){ .kind = KERNEL, .to_device = true, .to = used->base, .bytes = used->size });
	}
	return result;
}

static CUresult compute(CUcontext context, CUfunction kernel, CUstream stream, const unsigned *grid, unsigned threads, const void *argument)
{
	uint64_t addresses[512];
	size_t count = 0;
	for (size_t at = 0; at + sizeof *addresses <= kernel->sizes[0] && count < 512; at += sizeof *addresses)
		memcpy(&addresses[count++], (const char *)argument + at, sizeof *addresses);
	return submit_computation(context, stream, kernel->run, argument, kernel->sizes[0], grid, threads, addresses, count);
}

static CUresult use(CUcontext context, CUstream stream, const void *argument, size_t size)
{
	CUresult result = HR__CUDA_SUCCESS;
	for (size_t at = 0; at + sizeof(uint64_t) <= size && result == HR__CUDA_SUCCESS; at += sizeof(uint64_t)) {
		uint64_t value;
		memcpy(&value, (const char *)argument + at, sizeof value);
		const mapping *used = mapping_at(value);
		if (used) result = submit(context, stream, &(command){ .kind = KERNEL, .to_device = true, .to = used->base, .bytes = used->size });
	}
	return result;
}

/* Arguments come one by one, or in a buffer: extra = { 1, buffer, 2, &size, 0 }. */
static CUresult launch(CUcontext context, CUfunction function, const unsigned *grid, unsigned threads, CUstream stream, void **arguments, void **extra)
{
	CUfunction kernel = kernel_of(function, true);
	if (!kernel) kernel = kernel_of(function, false);
	if (!kernel || !stream_of(context, stream)) return HR__CUDA_ERROR_INVALID_HANDLE;
	if (kernel->count > 0 && !arguments == !extra) return HR__CUDA_ERROR_INVALID_VALUE;
	if (threads > 1024 || grid[1] > 65535 || grid[2] > 65535 || grid[0] > 2147483647) return HR__CUDA_ERROR_INVALID_VALUE;
	if (kernel->run) return compute(context, kernel, stream, grid, threads, arguments[0]);
	CUresult result = HR__CUDA_SUCCESS;
	for (size_t i = 0; i < kernel->count && result == HR__CUDA_SUCCESS; i++)
		result = use(context, stream, arguments ? arguments[i] : (char *)extra[1] + offset_of(kernel, i), kernel->sizes[i]);
	return result;
}

#define VARIANT(stream, per_thread) ((stream) || !(per_thread) ? (stream) : PER_THREAD_STREAM)

#define LAUNCHES(end_of_symbol, per_thread)                                                                                                                        \
	CUresult cuLaunchKernel##end_of_symbol(CUfunction function, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by,               \
	                                       unsigned int bz, unsigned int shared, CUstream stream, void **arguments, void **extra)                                  \
	{                                                                                                                                                              \
		BEGIN_IN_CONTEXT(cuLaunchKernel##end_of_symbol);                                                                                                           \
		VALID(gx && gy && gz && bx && by && bz && shared < 65536);                                                                                                 \
		return end(launch(context, function, (unsigned[3]){ gx, gy, gz }, bx * by * bz, VARIANT(stream, per_thread), arguments, extra));                           \
	}                                                                                                                                                              \
	CUresult cuLaunchKernelEx##end_of_symbol(const CUlaunchConfig *config, CUfunction function, void **arguments, void **extra)                                    \
	{                                                                                                                                                              \
		BEGIN_IN_CONTEXT(cuLaunchKernelEx##end_of_symbol);                                                                                                         \
		VALID(config && config->gridDimX && config->blockDimX);                                                                                                    \
		return end(launch(context, function, (unsigned[3]){ config->gridDimX, 1, 1 }, config->blockDimX, VARIANT(config->hStream, per_thread), arguments, extra)); \
	}                                                                                                                                                              \
	CUresult cuLaunchCooperativeKernel##end_of_symbol(CUfunction function, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,                     \
	                                                  unsigned int by, unsigned int bz, unsigned int shared, CUstream stream, void **arguments)                    \
	{                                                                                                                                                              \
		BEGIN_IN_CONTEXT(cuLaunchCooperativeKernel##end_of_symbol);                                                                                                \
		VALID(gx && gy && gz && bx && by && bz && shared < 65536);                                                                                                 \
		return end(launch(context, function, (unsigned[3]){ gx, gy, gz }, bx * by * bz, VARIANT(stream, per_thread), arguments, NULL));                            \
	}

LAUNCHES(, false)
LAUNCHES(_ptsz, true)
