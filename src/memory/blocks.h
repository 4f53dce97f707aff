/* blocks.h - what Large Model Support asks of an allocator: memory for tensors that return, and where moving some out would make room. */
#ifndef HR_MEMORY_BLOCKS_H
#define HR_MEMORY_BLOCKS_H

#include "memory/allocator.h"

/* A block for a tensor that returns, or moves: counted as bytes in use, not as a request. [idle]: and as inactive bytes, because the tensor is
 * not pinned; the caller ends that when it gives the block back. *bytes gets what it occupies. */
hr_status hr__block_take(hr__allocator *allocator, const hr_request *request, bool idle, uint64_t *address, uint64_t *bytes);

/* The same for exactly [address]; counted as a request unless [quietly]. HR_NOT_READY when that memory is not free. */
hr_status hr__block_take_at(hr__allocator *allocator, const hr_request *request, bool quietly, bool idle, uint64_t address,
                            uint64_t *bytes);

/* Time that mapping and unmapping pages took so far, by the device's clock: nothing on the simulated device. */
uint64_t hr__blocks_map_ns(const hr__allocator *allocator);

/* Puts all memory that is free into one piece, as far as pages go, and says where that is. Waits for streams that may still use it. */
hr_status hr__blocks_gather(hr__allocator *allocator, uint64_t *address, uint64_t *bytes);

/* Gives a block back. [streams] used it last, at [epoch]. [quietly]: the tensor lives on elsewhere, so it is not counted as a free. */
hr_status hr__block_give(hr__allocator *allocator, uint64_t address, uint64_t streams, uint64_t epoch, bool quietly);

/* A tensor whose memory was given back quietly is freed now. */
void hr__block_forget(hr__allocator *allocator);

/* Bytes that a block occupies; 0 when there is none at [address]. With the free chunks beside it, in *room (may be NULL). */
uint64_t hr__block_bytes(hr__allocator *allocator, uint64_t address, uint64_t *room);

/* Tells whose a block is: hr__upper.may_leave is asked about [owner], which is not 0. */
void hr__block_own(hr__allocator *allocator, uint64_t address, uint32_t owner);

/* Bytes of whole pages that would be free without the block at [address], with the free chunks beside it. Where there are pages. [gain]:
 * without those that are free already. */
uint64_t hr__block_pages(hr__allocator *allocator, uint64_t address, bool gain);

/* Bytes of whole pages that are missing, at least one page, for [size] bytes to be put together from free pages wherever they are;
 * UINT64_MAX where pages cannot be put side by side, or that takes longer than moving as many bytes to the host. */
uint64_t hr__blocks_missing(hr__allocator *allocator, uint64_t size);

/* Free bytes that are of no use to a request for more than a page: those in no whole page or, where pages cannot be put side by side, those
 * outside of the largest free chunk. */
uint64_t hr__blocks_scattered(hr__allocator *allocator);

/* A block that may be moved out. */
typedef struct hr__movable {
	uint64_t address;
	uint64_t cost; /* of moving it out: the sum over a window is made as small as possible */
} hr__movable;

/* Finds neighbouring chunks, each free or one of [items] (sorted by address), that together have room for the request, with the least
 * cost; *first and *count get which items are among them. False when there are none. */
bool hr__blocks_window(hr__allocator *allocator, uint64_t size, uint64_t alignment, const hr__movable *items, size_t item_count,
                       size_t *first, size_t *count);

/* ---- moving blocks on the device ---- */

#define HR__STRETCH_FREE UINT32_MAX
#define HR__STRETCH_GROWS (UINT32_MAX - 1) /* no memory is there, but so much could be had for the request, at the end of a window */

/* What lies between blocks that cannot be moved. */
typedef struct hr__stretch {
	uint64_t address, bytes;
	uint32_t item; /* number of the block that may be moved, or one of the above */
	bool joined;   /* it begins where the one before it ends, in the same region */
} hr__stretch;

/* Writes up to [capacity] of all stretches of the allocator, those of a region by address, and returns how many. Items are sorted by
 * address. [size] and [alignment] are those of the request that has no room: they say where memory would grow for it. Things may change
 * as soon as they were seen. */
size_t hr__blocks_look(hr__allocator *allocator, uint64_t size, uint64_t alignment, const hr__movable *items, size_t item_count,
                       hr__stretch *out, size_t capacity);
/* About as many as there are, with so many items. */
size_t hr__blocks_count(hr__allocator *allocator, size_t item_count);

/* Bytes of the free chunk before a block; 0 when there is none. */
uint64_t hr__block_before(hr__allocator *allocator, uint64_t address);
/* Two blocks side by side change places: the one at [right] is at [left] then, and the other one at the address that comes back. */
uint64_t hr__blocks_exchange(hr__allocator *allocator, uint64_t left, uint64_t right);

/* ---- spans: blocks of whole pages at an address that holds, whether they have memory or not (span.c). Without locks; what happens to one
 * span is one thread's business at a time. ---- */

typedef struct hr__span hr__span;

/* Addresses and memory for a request, which is counted, met or refused, like any other. */
hr_status hr__span_take(hr__allocator *allocator, const hr_request *request, hr__span **out);
/* Takes the memory out from under the addresses; not counted as a free. It must be idle, but for streams that hr_record_stream named, which
 * are waited for. When it fails nothing has changed. */
hr_status hr__span_vacate(hr__span *span);
/* The reverse, at the same address; not counted as a request. [clear] (may be NULL) is called when the pages are there and about to be
 * mapped; when that fails, so does this. */
hr_status hr__span_occupy(hr__span *span, const hr_request *request, bool idle, hr_status (*clear)(void *context), void *context);
/* Gives memory and addresses back, as a free; idle as above. When it fails nothing has changed. */
hr_status hr__span_give(hr__span *span);
/* Gives up a span whose memory the device will not give back: that stays with the allocator until it is closed. */
void hr__span_abandon(hr__span *span);

bool hr__span_has_memory(const hr__span *span);
uint64_t hr__span_address(const hr__span *span);
uint64_t hr__span_bytes(const hr__span *span);

#endif
