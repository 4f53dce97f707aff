/* tensor_block.h - the allocator's interface for Large Model Support: memory for restored tensors, and which evictions would make
 * room. */
#ifndef HR_MEMORY_TENSOR_BLOCK_H
#define HR_MEMORY_TENSOR_BLOCK_H

#include "core/memory/allocator.h"
#include "core/base/shared.h"

/* Allocates a block for a tensor that is restored or moved: counted in bytes in use, not as a request. [idle]: the tensor is not
 * pinned, so the bytes are also counted as inactive, until the caller ends that when it frees the block. *bytes gets the size of
 * the block. */
hr_status hr__block_take(hr__allocator *allocator, const hr_request *request, bool idle, uint64_t *address, uint64_t *bytes);

/* Allocates at exactly [address]; counted as a request unless [quietly]. HR_NOT_READY when that memory is not free. */
hr_status hr__block_take_at(hr__allocator *allocator, const hr_request *request, bool quietly, bool idle, uint64_t address,
                            uint64_t *bytes);

/* Total time spent mapping and unmapping pages, by the device's clock: 0 on the simulated device. */
uint64_t hr__blocks_map_ns(const hr__allocator *allocator);

/* Gathers all free memory into one contiguous range, as far as whole pages allow, and returns the range. Waits for streams that may
 * still use it. */
hr_status hr__blocks_gather(hr__allocator *allocator, uint64_t *address, uint64_t *bytes);

/* Frees a block that [streams] used last, at [epoch]. [quietly]: the tensor continues to exist elsewhere, so this is not counted as
 * a free. */
hr_status hr__block_give(hr__allocator *allocator, uint64_t address, uint64_t streams, uint64_t epoch, bool quietly);

/* Counts the free of a tensor whose block was freed quietly before. */
void hr__block_forget(hr__allocator *allocator);

/* Size of the block at [address]; 0 if there is none. *room (may be NULL) gets the size including the free chunks beside it. */
HR__SHARED uint64_t hr__block_bytes(hr__allocator *allocator, uint64_t address, uint64_t *room);

/* Sets the owner of a block: [owner], not 0, is the argument of hr__upper.may_leave. */
void hr__block_own(hr__allocator *allocator, uint64_t address, uint32_t owner);

/* Bytes of whole pages that would be free without the block at [address], counting the free chunks beside it. Only on devices with
 * pages. [gain]: without those that are already free. */
uint64_t hr__block_pages(hr__allocator *allocator, uint64_t address, bool gain);

/* Bytes of whole pages, at least one page, that are missing to stitch [size] bytes from free pages. UINT64_MAX if pages cannot be
 * stitched, or if that takes longer than copying as many bytes to the host. */
uint64_t hr__blocks_missing(hr__allocator *allocator, uint64_t size);

/* Free bytes that cannot serve a request for more than a page: those in no whole page or, where pages cannot be stitched, those
 * outside the largest free chunk. */
uint64_t hr__blocks_scattered(hr__allocator *allocator);

/* A block that may be evicted. */
typedef struct hr__movable {
	uint64_t address;
	uint64_t cost; /* of evicting it; the search minimises the sum over a window */
} hr__movable;

/* Finds a run of adjacent chunks, each free or one of [items] (sorted by address), that has room for the request at the lowest
 * total cost. *first and *count get the items in the run. False if there is none. */
bool hr__blocks_window(hr__allocator *allocator, uint64_t size, uint64_t alignment, const hr__movable *items, size_t item_count,
                       size_t *first, size_t *count);

/* ---- moving blocks on the device ---- */

#define HR__STRETCH_FREE UINT32_MAX
#define HR__STRETCH_GROWS (UINT32_MAX - 1) /* at the end of a window: [bytes] are unmapped but could be mapped */

/* A chunk between blocks that cannot be moved. */
typedef struct hr__stretch {
	uint64_t address, bytes;
	uint32_t item; /* index of the block that may be moved, or HR__STRETCH_* */
	bool joined;   /* begins where the previous stretch ends, in the same region */
} hr__stretch;

/* Writes up to [capacity] stretches of the allocator, those of each region by address, and returns their number. [items] are sorted
 * by address. [pressure] is the request that has no room: it determines which pool would grow, by how much, and whether thread caches
 * count as empty. The result may be out of date on return. */
size_t hr__blocks_look(const hr__pressure *pressure, const hr__movable *items, size_t item_count, hr__stretch *out, size_t capacity);
/* An estimate of the number of stretches, given the number of items. */
size_t hr__blocks_count(const hr__pressure *pressure, size_t item_count);

/* Bytes of the free chunk before a block; 0 if there is none. */
uint64_t hr__block_before(hr__allocator *allocator, uint64_t address);
/* Exchanges two adjacent blocks: the one at [right] moves to [left]. Returns the new address of the other. */
uint64_t hr__blocks_exchange(hr__allocator *allocator, uint64_t left, uint64_t right);

/* ---- spans: blocks of whole pages at a stable address, with or without memory (span.c). Without locks; only one thread at a time
 * may use a given span. ---- */

typedef struct hr__span hr__span;

/* Allocates addresses and memory for a request, which is counted and refused like any other. */
hr_status hr__span_take(hr__allocator *allocator, const hr_request *request, hr__span **out);
/* Unmaps and releases the memory, keeps the addresses; not counted as a free. The memory must be idle, except for streams named by
 * hr_record_stream, which are waited for. On failure nothing has changed. */
hr_status hr__span_vacate(hr__span *span);
/* Maps memory at the same addresses again; not counted as a request. [clear] (may be NULL) is called once the pages are available,
 * just before they are mapped; if it fails, so does this call. */
hr_status hr__span_occupy(hr__span *span, const hr_request *request, bool idle, hr_status (*clear)(void *context), void *context);
/* Releases memory and addresses; counted as a free. Idle as for hr__span_vacate. On failure nothing has changed. */
hr_status hr__span_give(hr__span *span);
/* Abandons a span whose memory the device refused to release. The memory stays with the allocator until that is closed. */
void hr__span_abandon(hr__span *span);

bool hr__span_has_memory(const hr__span *span);
uint64_t hr__span_address(const hr__span *span);
uint64_t hr__span_bytes(const hr__span *span);

#endif
