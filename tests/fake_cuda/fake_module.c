/* fake_module.c - modules of the stand-in driver whose kernels compute: shared libraries that the stand-in of NVRTC compiled. And graphs. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <unistd.h>

#include "fake_cuda/driver_state.h"
#include "fake_cuda/image.h"
#include "fake_cuda/kernel_state.h"

#define PROTOTYPE(name, parameters) EXPORT CUresult name parameters;
HR__CUDA_KERNEL_CALLS(PROTOTYPE)

/* ---- modules ---- */

struct CUmod_st {
	void *library;
	CUcontext context;
	bool unloaded;
	struct CUmod_st *next;
};

static CUmodule modules; /* records of unloaded ones are kept, so that later uses are detected */

static CUmodule module_of(CUmodule handle)
{
	CUmodule at = modules;
	while (at && at != handle) at = at->next;
	return at && !at->unloaded ? at : NULL;
}

static void *open_library(const fake_image *image)
{
	char path[] = "/tmp/fake-cuda-module-XXXXXX"; /* the loader takes a name that it knows for the same library */
	int file = mkstemp(path);
	if (file < 0) abort();
	if (write(file, image + 1, image->bytes) != (ssize_t)image->bytes) abort();
	void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!library) fprintf(stderr, "fake CUDA: %s\n", dlerror());
	close(file);
	unlink(path);
	return library;
}

CUresult cuModuleLoadData(CUmodule *out, const void *image)
{
	BEGIN_IN_CONTEXT(cuModuleLoadData);
	VALID(out && image);
	REQUIRE(((const fake_image *)image)->magic == FAKE_IMAGE_MAGIC, HR__CUDA_ERROR_NO_BINARY_FOR_GPU);
	void *library = open_library(image);
	REQUIRE(library, HR__CUDA_ERROR_NO_BINARY_FOR_GPU);
	CUmodule made = zeroed(sizeof *made);
	*made = (struct CUmod_st){ .library = library, .context = context, .next = modules };
	modules = made;
	*out = made;
	return end(result);
}

CUresult cuModuleGetFunction(CUfunction *out, CUmodule handle, const char *name)
{
	BEGIN_IN_CONTEXT(cuModuleGetFunction);
	CUmodule module = module_of(handle);
	char symbol[100];
	VALID(out && name && module && module->context == context);
	snprintf(symbol, sizeof symbol, "%s__run", name);
	void *run = dlsym(module->library, symbol);
	snprintf(symbol, sizeof symbol, "%s__bytes", name);
	const size_t *bytes = dlsym(module->library, symbol);
	REQUIRE(run && bytes, HR__CUDA_ERROR_NOT_FOUND);
	*out = fake_kernel_make(name, run, *bytes, handle);
	return end(result);
}

/* A module that this file does not know, as a program under `headroom run` has, is that of the kernels which tests have made, if its handle is 1. */
CUresult cuModuleUnload(CUmodule handle)
{
	BEGIN(cuModuleUnload);
	VALID(handle);
	CUmodule module = module_of(handle);
	for (CUmodule at = modules; at; at = at->next) VALID(at != handle || !at->unloaded);
	if (module || handle == (CUmodule)1) fake_kernels_forget(module);
	if (module) {
		module->unloaded = true; /* the library stays: work that uses it may be queued */
	}
	return end(result);
}

/* ---- graphs ---- */

struct CUgraph_st {
	command *first, *last;
	CUcontext context;
	bool destroyed;
	struct CUgraph_st *before; /* all of them are kept within reach */
};

static CUgraph last_graph;

struct CUgraphExec_st {
	command *first;
	CUcontext context;
	bool destroyed;
	struct CUgraphExec_st *before; /* all of them are kept within reach */
};

static CUgraphExec last_exec;

static unsigned live_graphs;

unsigned fake_graphs_live(void)
{
	return live_graphs;
}

CUresult fake_graph_add(CUgraph graph, const command *work)
{
	if (work->kind == FREE) return HR__CUDA_ERROR_INVALID_VALUE; /* memory that is not the graph's */
	if (work->kind == WAIT) return HR__CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	command *added = zeroed(sizeof *added);
	*added = *work;
	added->next = NULL;
	if (graph->last) graph->last->next = added;
	else graph->first = added;
	graph->last = added;
	return HR__CUDA_SUCCESS;
}

CUresult cuStreamBeginCapture_v2(CUstream handle, CUstreamCaptureMode mode)
{
	BEGIN_IN_CONTEXT(cuStreamBeginCapture_v2);
	CUstream stream = handle ? stream_of(context, handle) : NULL;
	VALID(mode == HR__CU_STREAM_CAPTURE_MODE_THREAD_LOCAL && stream && !stream->recording);
	stream->recording = zeroed(sizeof *stream->recording);
	stream->recording->context = context;
	stream->recording->before = last_graph;
	last_graph = stream->recording;
	return end(result);
}

CUresult cuStreamEndCapture(CUstream handle, CUgraph *out)
{
	BEGIN_IN_CONTEXT(cuStreamEndCapture);
	CUstream stream = stream_of(context, handle);
	VALID(out && stream && stream->recording);
	*out = stream->recording;
	stream->recording = NULL;
	if (stream->capture_failed) {
		stream->capture_failed = false;
		*out = NULL;
		return end(HR__CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	}
	live_graphs++;
	return end(result);
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph graph, unsigned long long flags)
{
	BEGIN_IN_CONTEXT(cuGraphInstantiateWithFlags);
	VALID(out && graph && !graph->destroyed && flags == 0);
	CUgraphExec made = zeroed(sizeof *made);
	made->context = context;
	made->before = last_exec;
	last_exec = made;
	command **link = &made->first;
	for (const command *at = graph->first; at; at = at->next) {
		*link = zeroed(sizeof **link);
		**link = *at;
		(*link)->next = NULL;
		link = &(*link)->next;
	}
	live_graphs++;
	*out = made;
	return end(result);
}

CUresult cuGraphLaunch(CUgraphExec graph, CUstream stream)
{
	BEGIN_IN_CONTEXT(cuGraphLaunch);
	VALID(graph && !graph->destroyed && graph->context == context);
	for (const command *at = graph->first; at && result == HR__CUDA_SUCCESS; at = at->next) result = submit(context, stream, at);
	return end(result);
}

CUresult cuGraphExecDestroy(CUgraphExec graph)
{
	BEGIN_IN_CONTEXT(cuGraphExecDestroy);
	VALID(graph && !graph->destroyed);
	graph->destroyed = true; /* the record stays */
	live_graphs--;
	return end(result);
}

CUresult cuGraphDestroy(CUgraph graph)
{
	BEGIN_IN_CONTEXT(cuGraphDestroy);
	VALID(graph && !graph->destroyed);
	for (command *at = graph->first, *next; at; at = next) {
		next = at->next;
		free(at);
	}
	graph->first = graph->last = NULL;
	graph->destroyed = true; /* the record stays */
	live_graphs--;
	return end(result);
}
