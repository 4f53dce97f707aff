/* launches.h - kernels that the program launches: the next one names the blocks that the thread has allocated before it. */
#ifndef HR_PLUGIN_CUDA_LAUNCHES_H
#define HR_PLUGIN_CUDA_LAUNCHES_H

#include <stdint.h>

#include "headroom.h"

/* Called once, when the functions of the driver are known. */
void hr__launches_begin(void);

/* A block was allocated: the tag of the thread's next launch becomes its own. */
void hr__launches_expect(hr_allocator allocator, uint64_t address);

/* A block was freed, perhaps before a launch. */
void hr__launches_forget(uint64_t address);

#endif
