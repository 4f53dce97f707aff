/* cuda_kernels.c - see core/device/kernels.h. */
#include "core/device/kernels.h"

#include <stdio.h>

#include "core/base/status.h"
#include "core/device/backends/cuda_card.h"
#include "core/device/internal.h"

/* NULL: the device is no CUDA card. */
static const hr__cuda_card *card_of(const hr__device *device)
{
	const hr__physical *physical = device->physical;
	return physical->table->open == hr__backend_cuda.open ? physical->native : NULL;
}

static int attribute(const hr__cuda_card *card, CUdevice_attribute which)
{
	int value = 0;
	return hr__cuda.cuDeviceGetAttribute(&value, which, card->device) == HR__CUDA_SUCCESS ? value : 0;
}

hr_status hr__device_processors(const hr__device *device, hr__processors *out)
{
	const hr__cuda_card *card = card_of(device);
	if (!card) return hr__fail(HR_UNSUPPORTED, "%s is no CUDA card, so it runs no kernels", device->name);
	if (hr__cuda_lacks()) return hr__fail(HR_UNSUPPORTED, "the CUDA driver is too old for kernels: it has no %s; that needs CUDA 11.4", hr__cuda_lacks());
	out->major = attribute(card, HR__CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
	out->minor = attribute(card, HR__CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
	out->count = (uint32_t)attribute(card, HR__CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
	return HR_OK;
}

static hr_status failed(const hr__cuda_card *card, CUresult result, const char *symbol, const char *before, const char *what)
{
	char of[160];
	if (result == HR__CUDA_SUCCESS) return HR_OK;
	snprintf(of, sizeof of, "%s%s", before, what);
	hr_status status = hr__cuda_failed_of(card, result, symbol, of);
	return status == HR_NOT_READY || status == HR_INVALID_ARGUMENT ? HR_DEVICE_ERROR : status;
}

/* ---- modules ---- */

hr_status hr__module_load(const hr__device *device, const void *image, hr__module **out)
{
	const hr__cuda_card *card = card_of(device);
	CUmodule module = NULL;
	CUresult result = HR__CUDA_IN_CONTEXT(card, cuModuleLoadData, &module, image);
	*out = (hr__module *)module;
	return failed(card, result, "cuModuleLoadData", "", "");
}

void hr__module_unload(const hr__device *device, hr__module *module)
{
	CUresult result = HR__CUDA_IN_CONTEXT(card_of(device), cuModuleUnload, (CUmodule)module);
	(void)result; /* the context is broken, and ends with everything in it */
}

hr_status hr__module_kernel(const hr__device *device, hr__module *module, const char *name, hr__kernel **out)
{
	const hr__cuda_card *card = card_of(device);
	CUfunction function = NULL;
	CUresult result = HR__CUDA_IN_CONTEXT(card, cuModuleGetFunction, &function, (CUmodule)module, name);
	*out = (hr__kernel *)function;
	return failed(card, result, "cuModuleGetFunction", " of ", name);
}

/* ---- work ---- */

hr_status hr__cuda_native_call(const hr__device *device, hr_native_stream stream, hr_status (*call)(const hr__native *native, void *argument), void *argument)
{
	const hr__cuda_card *card = card_of(device);
	bool pushed;
	CUresult result = hr__cuda_enter(card, &pushed);
	if (result != HR__CUDA_SUCCESS) return failed(card, result, "cuCtxPushCurrent", "", "");
	hr_status status = call(&(hr__native){ device, (void *)(uintptr_t)stream }, argument);
	hr__cuda_leave(pushed);
	return status;
}

hr_status hr__kernel_launch(const hr__native *native, hr__kernel *kernel, const char *name, const hr__grid *grid, void *argument)
{
	void *arguments[] = { argument };
	CUresult result = hr__cuda.cuLaunchKernel((CUfunction)kernel, grid->x, grid->y ? grid->y : 1, grid->z ? grid->z : 1, grid->threads, 1, 1,
	                                          grid->shared, native->stream, arguments, NULL);
	return HR_LIKELY(result == HR__CUDA_SUCCESS) ? HR_OK : failed(card_of(native->device), result, "cuLaunchKernel", " of ", name);
}

hr_status hr__native_fill(const hr__native *native, void *at, uint8_t value, uint64_t bytes)
{
	if (!bytes) return HR_OK;
	CUresult result = hr__cuda.cuMemsetD8Async((CUdeviceptr)(uintptr_t)at, value, bytes, native->stream);
	return failed(card_of(native->device), result, "cuMemsetD8Async", "", "");
}

hr_status hr__native_copy(const hr__native *native, void *to, const void *from, uint64_t bytes)
{
	if (!bytes) return HR_OK;
	CUresult result = hr__cuda.cuMemcpyDtoDAsync_v2((CUdeviceptr)(uintptr_t)to, (CUdeviceptr)(uintptr_t)from, bytes, native->stream);
	return failed(card_of(native->device), result, "cuMemcpyDtoDAsync", "", "");
}

/* ---- graphs ---- */

static hr_status begin(const hr__native *native, void *argument)
{
	(void)argument;
	CUresult result = hr__cuda.cuStreamBeginCapture_v2(native->stream, HR__CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
	return failed(card_of(native->device), result, "cuStreamBeginCapture", "", "");
}

hr_status hr__capture_begin(hr__device *device, hr_stream stream)
{
	return hr__device_native(device, stream, begin, NULL);
}

static hr_status end(const hr__native *native, void *argument)
{
	hr__native_graph **out = argument;
	CUgraph graph = NULL;
	CUgraphExec ready = NULL;
	const char *symbol = "cuStreamEndCapture";
	CUresult result = hr__cuda.cuStreamEndCapture(native->stream, &graph);
	if (result == HR__CUDA_SUCCESS && graph) {
		symbol = "cuGraphInstantiate";
		result = hr__cuda.cuGraphInstantiateWithFlags(&ready, graph, 0);
		hr__cuda.cuGraphDestroy(graph);
	}
	*out = (hr__native_graph *)ready;
	if (result == HR__CUDA_SUCCESS && !ready) return hr__fail(HR_DEVICE_ERROR, "cuStreamEndCapture gave no graph");
	return failed(card_of(native->device), result, symbol, "", "");
}

hr_status hr__capture_end(hr__device *device, hr_stream stream, hr__native_graph **out)
{
	*out = NULL;
	return hr__device_native(device, stream, end, out);
}

hr_status hr__native_graph_launch(const hr__native *native, hr__native_graph *graph)
{
	return failed(card_of(native->device), hr__cuda.cuGraphLaunch((CUgraphExec)graph, native->stream), "cuGraphLaunch", "", "");
}

void hr__native_graph_destroy(const hr__device *device, hr__native_graph *graph)
{
	if (!graph) return;
	CUresult result = HR__CUDA_IN_CONTEXT(card_of(device), cuGraphExecDestroy, (CUgraphExec)graph);
	(void)result; /* the context is broken, and ends with everything in it */
}
