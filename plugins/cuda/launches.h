/* launches.h - kernels that the program launches: the next one names the blocks that the thread has allocated before it. */
#ifndef HR_PLUGIN_CUDA_LAUNCHES_H
#define HR_PLUGIN_CUDA_LAUNCHES_H

#include <stdint.h>

#include "core/arena/chunk.h"
#include "headroom.h"
#include "thread.h"

/* Called once, when the functions of the driver are known. */
void hr__launches_begin(void);

/* A block was allocated: the tag of the thread's next launch becomes its own. [id] is that of hr__adopt; 0 = a managed block. */
static inline void hr__launches_expect(hr_allocator allocator, hr__chunk_id id, uint64_t address)
{
	hr__thread *self = &hr__this_thread;
	uint32_t at = self->expected_count < HR__EXPECTED_MAX ? self->expected_count++ : HR__EXPECTED_MAX - 1;
	self->expected[at] = (hr__expected_block){ .address = address, .allocator = allocator, .id = id };
}

/* A block was freed, perhaps before a launch. */
void hr__launches_forget(uint64_t address);

#endif
