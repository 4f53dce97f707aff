/* adopt.h - blocks whose memory the caller has from elsewhere, in the ledger of a "custom" allocator: libheadroom_cuda.so records what a program takes
 * from the CUDA driver this way. The allocator's own functions are not called for them.
 *
 * An adopted block is accounted for as any other: limit, statistics, peaks, scopes, allocation log, recordings, reports. It is in the ledger from
 * hr__adopt to hr__adopted_take, which the caller makes before it gives the memory back: so no other thread can be given the address while the
 * ledger still has it. If the memory could not be given back, hr__adopted_restore undoes the take.
 *
 * A program calls these between two calls of the driver, which leave little in the processor's caches. So they touch few cache lines: no table but
 * the allocator's, and no lock but that of its shard, once for each function. */
#ifndef HR_MEMORY_ADOPT_H
#define HR_MEMORY_ADOPT_H

#include "core/arena/chunk.h"
#include "core/base/shared.h"
#include "headroom.h"

/* A block that was taken out of the ledger. */
typedef struct hr__adopted {
	hr__chunk chunk;   /* its record */
	bool claimed;      /* its bytes still count against the limit */
	bool logged;       /* its end goes to the allocation log */
} hr__adopted;

/* Records the block at [address]. [keeper] is the caller's, for hr__adopted_take_of. *id gets its number for hr__adopted_set_tag. [request] has the
 * struct_size of this version, an op, alignment 0 and HR_STREAM_HOST. Its scope is the thread's current one; otherwise, if [line] is not NULL and the thread may hold the lock of
 * a Python interpreter, what [line] returns; otherwise what it is already.
 *
 * HR_OUT_OF_MEMORY  the block exceeds the limit; counted and reported as refused
 * HR_CORRUPT        the ledger has a block at [address]
 * and those of hr_alloc for an invalid handle or size, and for lack of host memory. */
HR__SHARED hr_status hr__adopt(hr_allocator allocator, hr_request *request, uint64_t address, void *keeper, hr_name (*line)(void),
                            hr__chunk_id *id);

/* Takes the block at [address] out of the ledger. [keep_claim]: its bytes count against the limit until hr__adopted_end. False: no such block, or an
 * invalid handle. No message is set. */
HR__SHARED bool hr__adopted_take(hr_allocator allocator, uint64_t address, bool keep_claim, hr__adopted *out);

/* The memory of a block that was taken is gone. Has work only if the block is still claimed, or is logged. */
HR__SHARED void hr__adopted_finish(hr_allocator allocator, const hr__adopted *block);
static inline void hr__adopted_end(hr_allocator allocator, const hr__adopted *block)
{
	if (__builtin_expect(block->claimed || block->logged, false)) hr__adopted_finish(allocator, block);
}

/* The memory of a block that was taken could not be given back: the block continues. It may then exceed the limit, if other threads used the room
 * meanwhile and its claim was not kept. Statuses as for hr__adopt, without HR_OUT_OF_MEMORY. */
HR__SHARED hr_status hr__adopted_restore(hr_allocator allocator, const hr__adopted *block);

/* Takes one block of [keeper]. *cursor is 0 at first: where the search goes on, so that taking all blocks looks at each once. */
HR__SHARED bool hr__adopted_take_of(hr_allocator allocator, const void *keeper, uint32_t *cursor, hr__adopted *out);

/* Whether there is a block at [address]. */
HR__SHARED bool hr__adopted_has(hr_allocator allocator, uint64_t address);

/* Names the block [id] at [address] again, as hr_allocation_set_names does. Nothing is done if it has ended. */
HR__SHARED void hr__adopted_set_tag(hr_allocator allocator, hr__chunk_id id, uint64_t address, hr_name tag);

#endif
