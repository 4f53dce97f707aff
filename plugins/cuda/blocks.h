/* blocks.h - the managed blocks (manage.h) that the program has now, by address: the allocator of each, and the context that it belongs to. Blocks of the
 * driver are in their allocators' ledgers alone. */
#ifndef HR_PLUGIN_CUDA_BLOCKS_H
#define HR_PLUGIN_CUDA_BLOCKS_H

#include <stdbool.h>
#include <stddef.h>

#include "driver_calls.h"
#include "headroom.h"

typedef struct hr__block {
	uint64_t address; /* not 0 */
	uint64_t bytes;
	hr_allocator allocator;
	CUcontext context; /* its end frees the block; NULL = none */
	uint32_t pool;     /* hr__pools_find; 0 = none */
} hr__block;

/* Adds a block. False: no memory for the table. An entry of the same address is replaced: its block has ended unseen. */
bool hr__blocks_add(const hr__block *block);

/* Removes the block at [address], if there is one. */
bool hr__blocks_take(uint64_t address, hr__block *out);

/* The block that starts at [address], or, with [inside], the one that contains it. The latter looks at all blocks. */
bool hr__blocks_find(uint64_t address, bool inside, hr__block *out);

/* Removes one block of [context]; false if there is none. [cursor] is 0 at first: where the search goes on, so that taking all blocks looks at each
 * once. */
bool hr__blocks_take_of(CUcontext context, size_t *cursor, hr__block *out);

/* In the child of a fork: no blocks, and no lock held. */
void hr__blocks_forget(void);

#endif
