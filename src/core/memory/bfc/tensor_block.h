/* tensor_block.h - blocks of tensors: taking, giving and moving them, for Large Model Support. room_search.h finds what to evict or
 * move, span.h has blocks with a stable address. */
#ifndef HR_MEMORY_TENSOR_BLOCK_H
#define HR_MEMORY_TENSOR_BLOCK_H

#include "core/memory/allocator.h"
#include "core/base/shared.h"

/* Allocates a block for a tensor that is restored or moved: counted in bytes in use, not as a request. [inactive]: the tensor is not
 * pinned, so the bytes are also counted as inactive, until the caller ends that when it frees the block. *bytes gets the size of
 * the block. */
hr_status hr__block_take(hr__allocator *allocator, const hr_request *request, bool inactive, uint64_t *address, uint64_t *bytes);

/* Allocates at exactly [address]; counted as a request unless [quietly]. HR_NOT_READY when that memory is not free. */
hr_status hr__block_take_at(hr__allocator *allocator, const hr_request *request, bool quietly, bool inactive, uint64_t address,
                            uint64_t *bytes);

/* Total time spent mapping and unmapping pages, by the device's clock: 0 on the simulated device. */
uint64_t hr__blocks_map_ns(const hr__allocator *allocator);

/* Gathers free memory, but no more than [most] bytes in whole pages, into one contiguous range, as far as whole pages allow, and returns the range.
 * Waits for streams that may still use it. */
hr_status hr__blocks_gather(hr__allocator *allocator, uint64_t most, uint64_t *address, uint64_t *bytes);

/* From now on blocks of half a page and less come from the small pools, as long as these can grow: in the large ones tensors have places that
 * a long-lived block would occupy. */
void hr__blocks_keep_apart(hr__allocator *allocator);

/* Frees a block that [streams] used last, at [epochs]. [quietly]: the tensor continues to exist elsewhere, so this is not counted as
 * a free. */
hr_status hr__block_give(hr__allocator *allocator, uint64_t address, uint64_t streams, hr__epochs epochs, bool quietly);

/* Counts the free of a tensor whose block was freed quietly before. */
void hr__block_forget(hr__allocator *allocator);

/* Size of the block at [address]; 0 if there is none. *room (may be NULL) gets the size including the free chunks beside it. */
HR__SHARED uint64_t hr__block_bytes(hr__allocator *allocator, uint64_t address, uint64_t *room);

/* Sets the owner of a block: [owner], not 0, is the argument of hr__lms_hooks.is_evictable. */
void hr__block_own(hr__allocator *allocator, uint64_t address, uint32_t owner);

/* Changes the scope and tag of a block, unless another one than [owner]'s has taken its address meanwhile; HR_NAME_NONE changes
 * nothing. */
void hr__block_rename(hr__allocator *allocator, uint64_t address, uint32_t owner, hr_name scope, hr_name tag);

/* Bytes of whole pages that would be free without the block at [address], counting the free chunks beside it. Only on devices with
 * pages. [gain]: without those that are already free. */
uint64_t hr__block_pages(hr__allocator *allocator, uint64_t address, bool gain);

/* Bytes of the free chunk before a block; 0 if there is none. */
uint64_t hr__block_before(hr__allocator *allocator, uint64_t address);
/* Exchanges two adjacent blocks: the one at [right] moves to [left]. Returns the new address of the other. */
uint64_t hr__blocks_exchange(hr__allocator *allocator, uint64_t left, uint64_t right);

#endif
