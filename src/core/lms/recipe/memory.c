/* memory.c - the memory of tensors that are recomputed; the rest of it is in tensor/move.c. See recipe.h. */
#include "core/lms/recipe/recipe.h"

#include "core/memory/bfc/tensor_block.h"

void hr__move_end_recompute(hr__tensor *tensor, hr_stream stream, uint64_t epoch, bool pinned)
{
	HR_ASSERT(hr__state_place(tensor) == HR__PLACE_RECOMPUTING && tensor->address);
	hr__lms *lms = tensor->lms;
	uint64_t bit = hr__stream_bit(stream);
	hr__store_relaxed(&tensor->restore_epoch, 0);
	hr__store_relaxed(&tensor->just_restored, 0);
	/* As if [stream] had allocated the memory with the contents in it: other streams wait for it before they use either. */
	hr__store_relaxed(&tensor->alloc_stream, bit);
	hr__store_relaxed(&tensor->alloc_epoch, epoch);
	hr__store_relaxed(&tensor->use_streams, hr__load_relaxed(&tensor->use_streams) | bit);
	hr__lms_raise_u64(&tensor->use_epoch, epoch);
	hr__store_relaxed(&tensor->unwritten, 0);
	if (pinned && lms->defrag) hr__store_relaxed(&tensor->pin_streams, hr__load_relaxed(&tensor->pin_streams) | bit);
	hr__lock_take(&lms->lock);
	hr__drop_end(tensor);
	if (hr__load_relaxed(&tensor->ghost)) hr__ghost_list(tensor);
	hr__lock_release(&lms->lock);
	if (!pinned) hr__meters_add_inactive(lms->allocator, (int64_t)tensor->device_bytes);
	hr__state_end_recompute(tensor, HR__PLACE_RESIDENT, pinned);
}

static void list_without_memory(hr__tensor *tensor)
{
	hr__lms *lms = tensor->lms;
	hr__lock_take(&lms->lock);
	hr__evict_queue_remove_all(lms, tensor);
	hr__lms_list_as_evicted(lms, tensor);
	hr__lock_release(&lms->lock);
}

void hr__move_undo_recompute(hr__tensor *tensor, hr_stream stream)
{
	HR_ASSERT(hr__state_place(tensor) == HR__PLACE_RECOMPUTING);
	hr__lms *lms = tensor->lms;
	if (tensor->address) {
		hr__move_trace(tensor, HR__EVENT_EVICT, 0);
		list_without_memory(tensor);
		hr__block_give(lms->allocator, tensor->address, hr__load_relaxed(&tensor->use_streams) | hr__stream_bit(stream),
		               hr__device_epoch(lms->device), true);
		hr__lms_count(&lms->resident, -(int64_t)tensor->device_bytes);
		tensor->address = 0;
	}
	hr__state_end_recompute(tensor, HR__PLACE_DROPPED, false);
}

/* For readers of traces the block of one tensor ends and that of another begins. */
static void trace_taken(const hr__tensor *tensor, hr_stream stream)
{
	const hr__allocator *allocator = tensor->lms->allocator;
	hr_request request = { .struct_size = sizeof request, .bytes = tensor->bytes, .op = tensor->op, .scope = tensor->scope,
		                   .tag = tensor->tag, .shape = tensor->shape, .dtype = (hr_dtype)tensor->dtype };
	if (!hr__trace_is_on()) return;
	hr__trace_free((uint32_t)allocator->id, tensor->address, stream);
	hr__trace_alloc_existing((uint32_t)allocator->id, &request, tensor->address, tensor->device_bytes);
	hr__move_trace(tensor, HR__EVENT_RESTORE, 0);
}

void hr__move_take(hr__tensor *tensor, hr__tensor *from)
{
	HR_ASSERT(hr__state_place(tensor) == HR__PLACE_RECOMPUTING && !tensor->address);
	HR_ASSERT(hr__state_place(from) == HR__PLACE_EVICTING && from->address && !hr__load_relaxed(&from->unwritten));
	hr__lms *lms = tensor->lms;
	int64_t bytes = (int64_t)tensor->device_bytes;
	hr__atomic_u64 *const to_times[] = { &tensor->use_streams, &tensor->use_epoch, &tensor->copy_epoch, &tensor->pin_streams };
	hr__atomic_u64 *const from_times[] = { &from->use_streams, &from->use_epoch, &from->copy_epoch, &from->pin_streams };
	for (size_t i = 0; i < sizeof to_times / sizeof *to_times; i++)
		hr__store_relaxed(to_times[i], hr__load_relaxed(from_times[i]));
	hr__lock_take(&lms->lock);
	hr__move_drop_copy(from);
	hr__evict_queue_remove_all(lms, from);
	hr__store_relaxed(&tensor->address, from->address);
	hr__store_relaxed(&from->address, 0);
	hr__lms_list_as_resident(lms, tensor);
	hr__evict_queue_remove(lms, HR__EVICT_RECENT, tensor);
	hr__evict_queue_put(lms, HR__EVICT_BY_USE, tensor);
	hr__lock_release(&lms->lock);
	hr__block_own(lms->allocator, tensor->address, tensor->index + 1);
	hr__block_rename(lms->allocator, tensor->address, tensor->index + 1, tensor->scope, tensor->tag);
	/* The block now counts as that of [tensor], which was away, and [from] as freed. */
	hr__block_forget(lms->allocator);
	hr__meters_add_inactive(lms->allocator, -bytes);
	hr__lms_count_live(lms, -bytes);
	trace_taken(tensor, lms->in_stream);
	hr__store_relaxed(&from->copy_epoch, 0);
	hr__store_relaxed(&from->evict_first, 0);
	hr__state_end_eviction(from, HR__PLACE_NEW);
}
