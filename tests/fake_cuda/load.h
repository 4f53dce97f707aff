/* load.h - loads the stand-in driver into a test program, by its path ($HEADROOM_FAKE_CUDA), before Headroom loads libcuda.so.1: the
 * loader then uses it for that name. */
#ifndef HR_TESTS_FAKE_CUDA_LOAD_H
#define HR_TESTS_FAKE_CUDA_LOAD_H

#include <dlfcn.h>

#include "fake_cuda/fake_cuda.h"
#include "test.h"

/* Functions of the stand-in, once it is loaded. */
static struct {
	void (*get_live)(fake_cuda_live *out);
	void (*fail_nth)(unsigned long long nth, CUresult result);
	unsigned long long (*calls)(void);
	const char *(*failed)(void);
	CUcontext (*foreign_context)(void);
	unsigned (*depth)(void);
	int (*accessible)(uint64_t address, int card);
	void (*advance_clock)(uint64_t ns);
	CUresult (*init)(unsigned flags);
	CUresult (*get_current)(CUcontext *out);
	CUresult (*push)(CUcontext context);
	CUresult (*retain)(CUcontext *out, CUdevice device);
} fake;

static void *fake_cuda_symbol(void *library, const char *name)
{
	void *found = dlsym(library, name);
	CHECK(found != NULL);
	return found;
}

/* [kind]: "whole" or "old". */
static void fake_cuda_load(const char *kind)
{
	const char *folder = getenv("HEADROOM_FAKE_CUDA");
	char path[4096];
	if (!folder) hr_test_skip("HEADROOM_FAKE_CUDA does not say where the stand-in driver is");
	unsetenv("HEADROOM_CUDA");
	snprintf(path, sizeof path, "%s/%s/libcuda.so.1", folder, kind);
	void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!library) printf("# %s\n", dlerror());
	CHECK(library != NULL);
	fake.get_live = (void (*)(fake_cuda_live *))fake_cuda_symbol(library, "fake_cuda_get_live");
	fake.fail_nth = (void (*)(unsigned long long, CUresult))fake_cuda_symbol(library, "fake_cuda_fail_nth");
	fake.calls = (unsigned long long (*)(void))fake_cuda_symbol(library, "fake_cuda_calls");
	fake.failed = (const char *(*)(void))fake_cuda_symbol(library, "fake_cuda_failed");
	fake.foreign_context = (CUcontext(*)(void))fake_cuda_symbol(library, "fake_cuda_foreign_context");
	fake.depth = (unsigned (*)(void))fake_cuda_symbol(library, "fake_cuda_depth");
	fake.accessible = (int (*)(uint64_t, int))fake_cuda_symbol(library, "fake_cuda_accessible");
	fake.advance_clock = (void (*)(uint64_t))fake_cuda_symbol(library, "fake_cuda_advance_clock");
	fake.init = (CUresult(*)(unsigned))fake_cuda_symbol(library, "cuInit");
	fake.get_current = (CUresult(*)(CUcontext *))fake_cuda_symbol(library, "cuCtxGetCurrent");
	fake.push = (CUresult(*)(CUcontext))fake_cuda_symbol(library, "cuCtxPushCurrent_v2");
	fake.retain = (CUresult(*)(CUcontext *, CUdevice))fake_cuda_symbol(library, "cuDevicePrimaryCtxRetain");
}

#endif
