/* fake_cuda.h - functions of the stand-in driver for tests, in addition to those of CUDA. Found with dlsym in the loaded
 * libcuda.so.1.
 *
 * The stand-in is a complete driver in host memory, as strict as the documentation of CUDA permits: the host cannot access device
 * addresses; invalid handles, ranges that are not whole mappings, and calls without a context are errors; and unmapping or freeing
 * memory that queued work uses ends the process, because on a card it would go unnoticed.
 *
 * Environment, read by cuInit
 *   FAKE_CUDA_DEVICES        number of cards; default 1
 *   FAKE_CUDA_MEMORY         bytes of each; default 256 MiB
 *   FAKE_CUDA_USED           bytes of each that other processes use; default 0
 *   FAKE_CUDA_GRANULARITY    of physical memory; default 2 MiB
 *   FAKE_CUDA_INIT           what cuInit returns; default 0
 *   FAKE_CUDA_NO_VMM         set: the cards have no virtual memory management
 *   FAKE_CUDA_NO_HOST_NUMA   set: no host memory can be mapped at addresses of a card
 *   FAKE_CUDA_HOST_REGISTER  what cuMemHostRegister returns; default 0
 *   FAKE_CUDA_VERSION        of CUDA, such as 13000, the default; cuGetProcAddress has no function that is newer
 *   FAKE_CUDA_LACKS          a name that cuGetProcAddress does not find
 *   FAKE_CUDA_KERNELS        set: the process can access device addresses, so that kernels run in it
 *   FAKE_CUDA_SYMBOLS        set: cuGetProcAddress finds symbols too, such as cuMemAlloc_v2
 *   FAKE_CUDA_LATER          set: from CUDA 14 on cuMemAlloc has a third parameter, which must be 7
 *   FAKE_CUDA_CHECK          set: a process that exits with something left in the driver exits with status 99 */
#ifndef HR_TESTS_FAKE_CUDA_H
#define HR_TESTS_FAKE_CUDA_H

#include "driver_calls.h"

/* Calls that tests make and Headroom does not, as in driver_calls.h. */
#define FAKE_CUDA_CALLS(X)                                   \
	X(cuDriverGetVersion, (int *))                           \
	X(cuCtxSetCurrent, (CUcontext))                          \
	X(cuDeviceSetMemPool, (CUdevice, CUmemoryPool))          \
	X(cuCtxCreate_v2, (CUcontext *, unsigned int, CUdevice))

/* Objects that exist now. */
typedef struct fake_cuda_live {
	unsigned retained; /* how often primary contexts are retained */
	unsigned reservations, handles, mappings, plain, registered, streams, events;
	unsigned long long plain_bytes, handle_bytes; /* of plain memory whose free is not queued, and of handles that exist or are mapped */
} fake_cuda_live;

void fake_cuda_get_live(fake_cuda_live *out);

/* Makes call [nth] from now on, over all entries, return [result] and do nothing; 0 = none. Calls that return names of errors, and
 * those that undo the push of a context, are not counted. */
void fake_cuda_fail_nth(unsigned long long nth, CUresult result);

/* Calls counted since then, and the name of the call that was made to fail; "" if none. */
unsigned long long fake_cuda_calls(void);
const char *fake_cuda_failed(void);

/* For stand-ins of libraries: counts a call of theirs like one of the driver's; 0: it must fail, with *result. */
int fake_cuda_count(const char *name, CUresult *result);
/* For them too: runs work in stream order, in the current context. */
CUresult fake_cuda_compute(CUstream stream, void (*run)(const void *argument, const unsigned *grid, unsigned threads), const void *argument, size_t bytes,
                           const uint64_t *addresses, size_t count);

/* Advances the clock of event times by [ns]. */
void fake_cuda_advance_clock(uint64_t ns);

/* A kernel with [count] parameters of these sizes. [of_library]: its handle is a CUkernel, which launches accept too. */
CUfunction fake_cuda_make_kernel(const char *name, int of_library, size_t count, const size_t *sizes);

/* Whether [card] may access what is mapped at [address]. */
int fake_cuda_accessible(uint64_t address, int card);

/* A context that is not the primary one of any card, as of another library; and the depth of the calling thread's context stack. */
CUcontext fake_cuda_foreign_context(void);
unsigned fake_cuda_depth(void);

#endif
