/* fake_cuda.h - what tests ask of the stand-in driver, beyond what CUDA has. Found with dlsym in the libcuda.so.1 that was loaded.
 *
 * The stand-in is a whole driver in host memory, as strict as the documentation of CUDA allows a real one to be: device addresses
 * cannot be touched by the host; handles that are none, ranges that are not whole mappings, calls without a context are errors; and
 * memory that is unmapped or freed while work on it is still queued ends the process, because on a card it would go unnoticed.
 *
 * Environment, read by cuInit
 *   FAKE_CUDA_DEVICES        how many cards; default 1
 *   FAKE_CUDA_MEMORY         bytes of each; default 256 MiB
 *   FAKE_CUDA_USED           of these, bytes that other processes have; default 0
 *   FAKE_CUDA_GRANULARITY    of physical memory; default 2 MiB
 *   FAKE_CUDA_INIT           what cuInit returns; default 0
 *   FAKE_CUDA_NO_VMM         set: the cards have no virtual memory management
 *   FAKE_CUDA_NO_HOST_NUMA   set: no memory of the host can be mapped at addresses of a card
 *   FAKE_CUDA_HOST_REGISTER  what cuMemHostRegister returns; default 0
 *   FAKE_CUDA_CHECK          set: a process that ends with something left in the driver ends with status 99 */
#ifndef HR_TESTS_FAKE_CUDA_H
#define HR_TESTS_FAKE_CUDA_H

#include "device/cuda_driver.h"

/* Objects that exist now. */
typedef struct fake_cuda_live {
	unsigned retained; /* primary contexts, times that each is retained */
	unsigned reservations, handles, mappings, plain, registered, streams, events;
} fake_cuda_live;

void fake_cuda_get_live(fake_cuda_live *out);

/* Call [nth] from now on, over all entries, returns [result] and does nothing; 0 = none. Names of errors and what undoes a push of a
 * context are not counted. */
void fake_cuda_fail_nth(unsigned long long nth, CUresult result);

/* Calls counted since then, and the name of the one that was made to fail; "" when none was. */
unsigned long long fake_cuda_calls(void);
const char *fake_cuda_failed(void);

/* Lets the clock that events are timed by go on by [ns]. */
void fake_cuda_advance_clock(uint64_t ns);

/* A context that is not the primary one of any card, as another library may have made it; and the calling thread's stack of them. */
CUcontext fake_cuda_foreign_context(void);
unsigned fake_cuda_depth(void);

#endif
