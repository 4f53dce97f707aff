/* program.h - the driver's calls as a program of the tests obtained them: all answered calls, those of libheadroom, and a few more. */
#ifndef HR_TESTS_PROGRAM_H
#define HR_TESTS_PROGRAM_H

#include "fake_cuda/fake_cuda.h"

#define PROGRAM_CALLS(X) HR__CUDA_CALLS(X) FAKE_CUDA_CALLS(X) X(cuCtxSynchronize, (void)) X(cuDeviceGetDefaultMemPool, (CUmemoryPool *, CUdevice))

typedef struct program_calls {
#define MEMBER(symbol, name, since, parameters) CUresult(*symbol) parameters;
#define OTHER_MEMBER(symbol, parameters) CUresult(*other_##symbol) parameters;
	HR__ANSWERED_PLAIN(MEMBER)
	HR__ANSWERED_STREAM(MEMBER)
	PROGRAM_CALLS(OTHER_MEMBER)
#undef MEMBER
#undef OTHER_MEMBER
	void (*get_live)(fake_cuda_live *out);
	void (*fail_nth)(unsigned long long nth, CUresult result);
	unsigned long long (*count_calls)(void);
	const char *(*failed)(void);
	CUfunction (*make_kernel)(const char *name, int of_library, size_t count, const size_t *sizes);
} program_calls;

/* How the calls are obtained:
 *
 *     dlsym         with the driver's handle
 *     proc          cuGetProcAddress_v2, for the first version of each signature
 *     proc:V        for CUDA version V where the signature is as old
 *     proc_v1       cuGetProcAddress of CUDA 11
 *     proc_proc     cuGetProcAddress, obtained from cuGetProcAddress
 *     ptsz          cuGetProcAddress_v2 with the flag for per-thread default streams
 *     proc_ptsz     cuGetProcAddress_v2_ptsz, which needs no flag for that
 *     default       dlsym with RTLD_DEFAULT; the driver is loaded with RTLD_GLOBAL
 *     next          dlsym with RTLD_NEXT; the same
 *
 * False, with a line on the standard error, if a call was not found. */
bool program_obtain(const char *way, program_calls *out);

int program_which(void);
int program_ask_which(void);

#endif
