/* move.c - evicts, restores, moves and frees one tensor. Nothing here waits for the device, except verify and tensors that own
 * pages (fixed.c).
 *
 *   copy out   the out stream waits for the streams that used the tensor, copies it, and is marked. The tensor stays resident,
 *              synced
 *   drop       the next user of the memory waits for that mark, on the device. So a copy that was made early costs that user
 *              nothing
 *   restore    memory is allocated on the in stream, which waits for the memory's previous users; the copy follows, and a mark. A
 *              pin makes its stream wait for that mark, but not for work that was queued after it
 *   move       memory is allocated on the in stream, which waits for the streams that used the tensor, copies it, and is marked. To
 *              the next pin it looks like a restore. Streams of current pins are made to wait at once
 *   repair     the contents of a displaced tensor (state.h) are copied back from the host, on the in stream
 *   recompute  memory is allocated on the stream of the pin, where the work that computes it follows (recipe/memory.c)
 *
 * Each wait is for one stream up to one mark (device.h); the number kept is the epoch that the mark covers. */
#include <stdio.h>
#include <string.h>

#include "core/base/checked.h"
#include "core/base/status.h"
#include "core/lms/recipe/recipe.h"
#include "core/memory/bfc/tensor_block.h"
#include "core/trace/stacks.h"
#include "core/trace/trace.h"

static uint64_t bit(hr_stream stream)
{
	return hr__stream_bit(stream);
}

/* Records a mark before a copy that is timed; 0 = none. */
static uint64_t mark_before(hr__lms *lms, hr_stream stream, uint64_t bytes)
{
	uint64_t number = 0;
	if (hr__learned_times_copy(lms, bytes) && hr__device_mark_timed(lms->device, stream, &number) != HR_OK) return 0;
	return number;
}

/* Marks a stream after a copy. The epoch returned covers all that was queued so far. Without a mark, waiting only takes longer. */
static uint64_t mark_after(hr__lms *lms, hr_stream stream, uint64_t bytes, uint64_t before)
{
	uint64_t number;
	if (hr__device_mark_timed(lms->device, stream, &number) != HR_OK) return hr__device_epoch(lms->device);
	if (before) hr__learned_copied(lms, stream == lms->out_stream, bytes, before, number);
	return number - 1;
}

static hr_status order(hr__lms *lms, hr_stream stream, uint64_t streams, uint64_t epoch)
{
	int64_t waits = 0;
	return hr__device_order(lms->device, stream, streams, epoch, &waits);
}

/* Where a host copy is, for traces: its address, or its offset in the file with the highest bit set. A dropped tensor has none; its
 * number, with the two highest bits set, takes the place of it. */
static uint64_t host_location(const hr__tensor *tensor)
{
	const hr__host_copy *copy = &tensor->copy;
	if (tensor->dropped) return hr__trace_dropped(tensor->index + 1);
	return copy->address || !copy->bytes ? copy->address : copy->offset | UINT64_C(1) << 63;
}

void hr__move_trace(const hr__tensor *tensor, hr__event_kind kind, uint64_t bytes)
{
	if (hr__trace_is_on() && !hr__load_relaxed(&tensor->ghost)) /* the program has freed a ghost */
		hr__trace_event(&(hr__event){ .kind = kind,
		                              .allocator = (uint32_t)tensor->lms->allocator->id,
		                              .stream = kind == HR__EVENT_EVICT ? tensor->lms->out_stream : tensor->lms->in_stream,
		                              .address = tensor->address,
		                              .address2 = host_location(tensor),
		                              .bytes = bytes,
		                              .requested = bytes,
		                              .op = tensor->op,
		                              .scope = tensor->scope,
		                              .tag = tensor->tag,
		                              .shape = tensor->shape,
		                              .dtype = (hr_dtype)tensor->dtype });
}

/* Adds [stream] to the users of its memory: work queued there may be using it, even if the streams of current pins did not wait for
 * that. */
static void add_user(hr__tensor *tensor, hr_stream stream)
{
	if (stream == tensor->lms->in_stream)
		hr__store_relaxed(&tensor->in_stream_unordered, 1); /* before [streams], which unpin_one reads first */
	uint64_t streams = hr__load_relaxed(&tensor->use_streams);
	while (!hr__cas_acq_rel(&tensor->use_streams, &streams, streams | bit(stream))) {}
	hr__lms_raise_u64(&tensor->use_epoch, hr__device_epoch(tensor->lms->device));
}

/* ---- verify ---- */

hr_status hr__move_verify(hr__tensor *tensor, hr_stream stream)
{
	HR_ASSERT(tensor->lms->verify && tensor->address);
	HR_ASSERT(hr__state_place(tensor) == HR__PLACE_EVICTING);
	uint64_t sum;
	char name[HR__TENSOR_NAME];
	bool written = hr__load_relaxed(&tensor->written);
	if (hr__state_is_displaced(tensor)) return HR_OK; /* no program could write to it */
	hr_status status = hr__checksum(tensor->lms, tensor->address, tensor->bytes, stream, &sum);
	if (status) return status;
	if (!written && hr__load_relaxed(&tensor->sum_known) && sum != tensor->sum)
		return hr__fail(HR_CORRUPT, "%s changed although it was pinned for reading only; pin it with HR_WRITE",
		                hr__tensor_name(tensor, name, sizeof name));
	tensor->sum = sum;
	hr__store_relaxed(&tensor->sum_known, 1);
	hr__store_relaxed(&tensor->written, 0);
	return HR_OK;
}

hr_status hr__move_know_sum(hr__tensor *tensor)
{
	HR_ASSERT(tensor->lms->verify && tensor->address && hr__state_place(tensor) == HR__PLACE_EVICTING);
	hr__lms *lms = tensor->lms;
	if (!hr__load_relaxed(&tensor->written) && hr__load_relaxed(&tensor->sum_known)) return HR_OK;
	hr_status status = order(lms, lms->out_stream, hr__load_relaxed(&tensor->use_streams) & ~bit(lms->out_stream),
	                         hr__load_relaxed(&tensor->use_epoch));
	if (!status) status = hr__move_verify(tensor, lms->out_stream);
	if (status) add_user(tensor, lms->out_stream);
	return status;
}

/* Compares the contents with those at the last unpin. */
static hr_status compare(hr__tensor *tensor, hr_stream stream, bool *same)
{
	HR_ASSERT(tensor->lms->verify && tensor->address);
	uint64_t sum;
	*same = true;
	if (!hr__load_relaxed(&tensor->sum_known)) return HR_OK;
	hr_status status = hr__checksum(tensor->lms, tensor->address, tensor->bytes, stream, &sum);
	if (!status) *same = sum == tensor->sum;
	return status;
}

static hr_status compare_checksum(hr__tensor *tensor, hr_stream stream)
{
	char name[HR__TENSOR_NAME];
	bool same;
	hr_status status = compare(tensor, stream, &same);
	if (status || same) return status;
	return hr__fail(HR_CORRUPT, "%s was restored with other contents than it was evicted with",
	                hr__tensor_name(tensor, name, sizeof name));
}

hr_status hr__move_compare_recomputed(hr__tensor *tensor, hr_stream stream)
{
	char name[HR__TENSOR_NAME];
	bool same;
	hr_status status = compare(tensor, stream, &same);
	if (status || same) return status;
	return hr__fail(HR_CORRUPT, "the op is not deterministic, or an input has changed: %s got other contents than it was dropped with",
	                hr__tensor_name(tensor, name, sizeof name));
}

/* ---- host copies ---- */

static void set_copy(hr__tensor *tensor, hr__host_copy copy)
{
	hr__lock_take(&tensor->lms->lock);
	hr__state_set_copy(tensor, copy);
	hr__lock_release(&tensor->lms->lock);
}

static void report_moved(const hr__tensor *tensor, uint64_t address)
{
	if (tensor->moved) tensor->moved(tensor->user, (void *)(uintptr_t)address);
}

/* The last work queued on the copy is its restore, or else its store. */
void hr__move_drop_copy(hr__tensor *tensor)
{
	hr__lms *lms = tensor->lms;
	hr__host_copy copy = tensor->copy;
	HR_ASSERT(hr__lock_is_mine(&lms->lock));
	if (!copy.bytes) return;
	if (tensor->address) report_moved(tensor, tensor->address);
	hr__state_set_copy(tensor, (hr__host_copy){ 0 });
	if (hr__tensor_is_shadowed(tensor)) hr__fixed_drop_shadow(tensor);
	else hr__host_drop(lms->host, &copy, hr__load_relaxed(&tensor->restore_epoch) ? lms->in_stream : lms->out_stream);
}

static hr_request request_of(const hr__tensor *tensor, hr_stream stream)
{
	return (hr_request){ .struct_size = sizeof(hr_request),
		                 .bytes = tensor->bytes,
		                 .alignment = tensor->alignment,
		                 .stream = stream,
		                 .op = tensor->op,
		                 .scope = tensor->scope,
		                 .tag = tensor->tag,
		                 .shape = tensor->shape,
		                 .dtype = (hr_dtype)tensor->dtype };
}

/* Copies the contents to the host, where they need no alignment. */
static hr_status store_copy(const hr__tensor *tensor, hr__host_copy *copy)
{
	hr_request request = request_of(tensor, tensor->lms->out_stream);
	request.alignment = 0;
	hr__stacks_before before = hr__stacks_replace(tensor->stack);
	hr_status status = hr__host_store(tensor->lms->host, tensor->address, &request, copy);
	hr__stacks_restore(before);
	return status;
}

static hr_status store_contents(hr__tensor *tensor)
{
	HR_ASSERT(tensor->lms->enabled && !tensor->copy.bytes);
	hr__lms *lms = tensor->lms;
	hr__host_copy copy = { 0 };
	hr_status status = order(lms, lms->out_stream, hr__load_relaxed(&tensor->use_streams) & ~bit(lms->out_stream),
	                         hr__load_relaxed(&tensor->use_epoch));
	/* The unpin of its last writer may not have checked it yet, or a pin for writing failed. */
	if (!status && lms->verify && hr__load_relaxed(&tensor->written)) status = hr__move_verify(tensor, lms->out_stream);
	uint64_t before = status ? 0 : mark_before(lms, lms->out_stream, tensor->bytes);
	if (!status) status = hr__tensor_is_shadowed(tensor) ? hr__fixed_store_shadow(tensor, &copy) : store_copy(tensor, &copy);
	if (status) {
		add_user(tensor, lms->out_stream); /* part of it may be under way all the same */
		return status;
	}
	set_copy(tensor, copy);
	hr__store_relaxed(&tensor->copy_epoch, mark_after(lms, lms->out_stream, tensor->bytes, before));
	/* Waiting for the copy covers all of them. */
	if (hr__tensor_owns_pages(tensor)) hr__store_relaxed(&tensor->use_streams, 0);
	return HR_OK;
}

/* ---- evicting ---- */

/* Drops host copies of resident tensors, which can be made again. True if a retry makes sense. */
static bool make_host_room(hr__lms *lms, const hr__tensor *except, uint64_t bytes)
{
	HR_ASSERT(except->lms == lms && lms->enabled);
	uint64_t freed = 0;
	if (lms->safety == HR_SAFETY_HOST_MAPPED && hr__fixed_release_shadows(lms, except, bytes)) return true;
	if (hr__tensor_is_shadowed(except)) { /* it needs host pages, which dropping copies does not free */
		hr__host_trim(lms->host);
		return true;
	}
	hr__lock_take(&lms->lock);
	for (uint32_t i = 0; i < lms->member_count && freed < bytes; i++) {
		hr__tensor *other = lms->members[i];
		uint64_t word = hr__load_relaxed(&other->word);
		if (other == except || !hr__state_begin_eviction(other, word)) continue;
		if (other->copy.bytes && !hr__load_relaxed(&other->evict_first) && !hr__tensor_is_shadowed(other) &&
		    !hr__state_is_displaced(other)) {
			freed += other->copy.bytes;
			hr__move_drop_copy(other);
		}
		hr__state_end_eviction(other, HR__PLACE_RESIDENT);
	}
	hr__lock_release(&lms->lock);
	return freed > 0;
}

hr_status hr__move_copy_to_host(hr__tensor *tensor)
{
	HR_ASSERT(hr__state_place(tensor) == HR__PLACE_EVICTING && tensor->address);
	HR_ASSERT(hr__lock_none_from(HR__RANK_LMS));
	hr__lms *lms = tensor->lms;
	if (tensor->copy.bytes) return HR_OK;
	if (hr__load_relaxed(&tensor->unwritten)) return HR_NOT_READY;
	hr_status status = store_contents(tensor);
	if (status == HR_OUT_OF_MEMORY && make_host_room(lms, tensor, tensor->bytes)) status = store_contents(tensor);
	if (status) return status;
	hr__lms_count(&lms->stats.bytes_copied_out, (int64_t)tensor->bytes);
	hr__move_trace(tensor, HR__EVENT_EVICT, tensor->bytes);
	tensor->eviction_traced = true;
	return HR_OK;
}

static void count_out(hr__lms *lms, int64_t bytes)
{
	int64_t now = hr__fetch_add_relaxed(&lms->stats.bytes_out_now, bytes) + bytes;
	hr__lms_raise(&lms->stats.peak_bytes_out, now);
}

/* If tensors are never evicted, the allocator's own peak is enough. */
void hr__lms_count_live(hr__lms *lms, int64_t bytes)
{
	if (!lms->enabled) return;
	int64_t now = hr__fetch_add_relaxed(&lms->live, bytes) + bytes;
	if (now > hr__load_relaxed(&lms->peak_live)) hr__lms_raise(&lms->peak_live, now);
}

/* Streams that may be using its memory, and their epochs. [next], if known, is first made to wait for a copy to the host. */
static hr_status last_users(hr__tensor *tensor, hr_stream next, uint64_t *streams, hr__epochs *epochs)
{
	HR_ASSERT(tensor->address);
	hr__lms *lms = tensor->lms;
	uint64_t copied = hr__load_relaxed(&tensor->copy_epoch);
	*streams = hr__load_relaxed(&tensor->use_streams);
	*epochs = hr__load_relaxed(&tensor->use_epoch);
	if (!copied) return HR_OK;
	if (next == lms->in_stream || next == lms->out_stream || next == HR_STREAM_HOST) {
		*epochs = hr__epochs_join(*streams, *epochs, bit(lms->out_stream), copied);
		*streams |= bit(lms->out_stream);
		return HR_OK;
	}
	hr_status status = order(lms, next, bit(lms->out_stream), copied);
	*streams |= bit(next);
	*epochs = hr__device_epoch(lms->device);
	return status;
}

/* Waits until its host copy is complete, and no restore reads it. A restore waits for the copy, whose epoch it clears. */
static hr_status wait_for_copy(const hr__tensor *tensor)
{
	hr__lms *lms = tensor->lms;
	uint64_t copied = hr__load_relaxed(&tensor->copy_epoch), restored = hr__load_relaxed(&tensor->restore_epoch);
	hr_status status = copied ? order(lms, HR_STREAM_HOST, bit(lms->out_stream), copied) : HR_OK;
	if (!status && restored) status = order(lms, HR_STREAM_HOST, bit(lms->in_stream), restored);
	return status;
}

static bool copy_is_complete(const hr__tensor *tensor)
{
	hr__lms *lms = tensor->lms;
	uint64_t copied = hr__load_relaxed(&tensor->copy_epoch), restored = hr__load_relaxed(&tensor->restore_epoch);
	if (copied) return hr__device_has_finished(lms->device, lms->out_stream, copied);
	return !restored || hr__device_has_finished(lms->device, lms->in_stream, restored);
}

/* The address of its host copy, if later work on [next] may read it: [next] waits for the copy (last_users), or the copy is done. A request
 * of the host waits for its memory in any case. */
static uint64_t readable_copy(const hr__tensor *tensor, hr_stream next)
{
	hr__lms *lms = tensor->lms;
	if (!tensor->copy.address) return 0;
	if (next == HR_STREAM_HOST) return wait_for_copy(tensor) ? 0 : tensor->copy.address;
	bool waits = next != lms->in_stream && next != lms->out_stream;
	return waits || copy_is_complete(tensor) ? tensor->copy.address : 0;
}

hr_status hr__move_free_memory(hr__tensor *tensor, hr_stream stream)
{
	HR_ASSERT(hr__state_place(tensor) == HR__PLACE_EVICTING && tensor->address && !hr__load_relaxed(&tensor->unwritten));
	HR_ASSERT(hr__lock_none_from(HR__RANK_LMS));
	hr__lms *lms = tensor->lms;
	uint64_t streams;
	hr__epochs epochs;
	hr_status status;
	bool dropped = tensor->dropped;
	HR_ASSERT(tensor->copy.bytes || dropped);
	if (hr__tensor_owns_pages(tensor)) {
		status = hr__fixed_unmap(tensor);
	} else {
		status = last_users(tensor, stream, &streams, &epochs);
		if (!status && tensor->moved) /* readable_copy may wait */
			report_moved(tensor, dropped ? 0 : readable_copy(tensor, stream));
		if (!status) status = hr__block_give(lms->allocator, tensor->address, streams, epochs, true);
	}
	if (status) return status;
	hr__meters_add_inactive(lms->allocator, -(int64_t)tensor->device_bytes);
	if (!tensor->eviction_traced || dropped) hr__move_trace(tensor, HR__EVENT_EVICT, 0);
	tensor->eviction_traced = false;
	hr__learned_evicted(lms, tensor);
	int64_t bytes = (int64_t)tensor->device_bytes;
	hr__lms_count(&lms->resident, -bytes);
	hr__lms_count(&lms->stats.bytes_reclaimed, bytes);
	hr__lms_count(dropped ? &lms->stats.num_drops : &lms->stats.num_evictions, 1);
	if (dropped) hr__lms_count(&lms->stats.bytes_dropped, bytes);
	else count_out(lms, bytes);
	if (!dropped) hr__fetch_add_relaxed(&tensor->evictions, 1);
	hr__lock_take(&lms->lock);
	hr__store_relaxed(&tensor->evict_first, 0);
	hr__evict_queue_remove(lms, HR__EVICT_BY_USE, tensor);
	hr__evict_queue_remove(lms, HR__EVICT_PLANNED, tensor);
	hr__evict_queue_put(lms, HR__EVICT_RECENT, tensor);
	tensor->address = 0;
	if (dropped) hr__move_drop_copy(tensor);
	hr__lock_release(&lms->lock);
	hr__store_relaxed(&tensor->prefetched, 0);
	return HR_OK;
}

hr_status hr__move_evict(hr__tensor *tensor, hr_stream stream)
{
	HR_ASSERT(hr__state_place(tensor) == HR__PLACE_EVICTING && !hr__load_relaxed(&tensor->never_evict));
	hr__lms *lms = tensor->lms;
	bool clean = tensor->copy.bytes != 0;
	if (hr__load_relaxed(&tensor->unwritten)) return hr__move_free_unwritten(tensor);
	hr__lms_begin_move(lms);
	hr_status status = hr__move_copy_to_host(tensor);
	if (!status) status = hr__move_free_memory(tensor, stream);
	if (!status && clean) hr__lms_count(&lms->stats.num_clean_evictions, 1);
	hr__state_end_eviction(tensor, status ? HR__PLACE_RESIDENT : HR__PLACE_EVICTED);
	hr__lms_end_move(lms);
	return status;
}

/* The tensor is claimed as if it were restored, so that other threads wait. */
hr_status hr_tensor_host_begin(hr_tensor handle, void **out)
{
	hr_status status = HR_OK;
	char name[HR__TENSOR_NAME];
	hr__tensor *tensor = hr__tensor_of(handle, &status);
	if (!tensor) return status;
	if (!out) return hr__fail(HR_INVALID_ARGUMENT, "hr_tensor_host_begin: out is NULL");
	hr__lms *lms = tensor->lms;
	/* What uses the copy may write it. */
	if (hr__load_relaxed(&tensor->recipe_use) & HR__RECIPE_FEEDS) status = hr__recipe_end_dependents(tensor, handle, HR_STREAM_DEFAULT);
	if (status) return status;
	if (!hr__state_begin_restore(tensor, handle.id, HR__PLACE_EVICTED))
		return hr__fail(HR_INVALID_ARGUMENT, "%s is not evicted", hr__tensor_name(tensor, name, sizeof name));
	uint64_t address = hr__tensor_owns_pages(tensor) ? 0 : tensor->copy.address;
	if (!address) status = hr__fail(HR_UNSUPPORTED, "%s has no host copy in memory that can be accessed", hr__tensor_name(tensor, name, sizeof name));
	else status = wait_for_copy(tensor);
	if (status) {
		hr__state_end_restore(tensor, HR__PLACE_EVICTED, false);
		return status;
	}
	hr__recipe_ended ended = { 0 };
	hr__lock_take(&lms->lock);
	hr__learned_recipe_ended(tensor);
	hr__recipe_detach(tensor, &ended);
	hr__lock_release(&lms->lock);
	hr__recipe_release(&ended);
	hr__store_relaxed(&tensor->sum_known, 0); /* of what the copy held before */
	tensor->on_host = true;
	*out = (void *)(uintptr_t)address;
	return HR_OK;
}

hr_status hr_tensor_host_end(hr_tensor handle)
{
	hr_status status = HR_OK;
	char name[HR__TENSOR_NAME];
	hr__tensor *tensor = hr__tensor_of(handle, &status);
	if (!tensor) return status;
	if (hr__state_place(tensor) != HR__PLACE_RESTORING || !tensor->on_host)
		return hr__fail(HR_INVALID_ARGUMENT, "%s: hr_tensor_host_end without hr_tensor_host_begin", hr__tensor_name(tensor, name, sizeof name));
	tensor->on_host = false;
	hr__state_end_restore(tensor, HR__PLACE_EVICTED, false);
	return HR_OK;
}

/* ---- restoring ---- */

static __attribute__((unused)) bool gets_memory(const hr__tensor *tensor)
{
	return hr__state_place(tensor) == HR__PLACE_RESTORING || hr__state_place(tensor) == HR__PLACE_RECOMPUTING;
}

/* Whether the tensor had memory before, while it is RESTORING or RECOMPUTING: only its first memory is counted as a request, and its destruction
 * then is the free. */
static bool had_memory(const hr__tensor *tensor)
{
	HR_ASSERT(gets_memory(tensor) && !tensor->address);
	return tensor->copy.bytes != 0 || tensor->dropped;
}

/* Allocates at the address that the plan assigns, if that is free or planned evictions can free it. */
static hr_status take_planned_address(hr__tensor *tensor, const hr_request *request, bool inactive)
{
	hr__lms *lms = tensor->lms;
	uint64_t place = hr__learned_address(tensor), bytes = 0;
	if (!place) return HR_NOT_READY;
	hr_status status = hr__block_take_at(lms->allocator, request, had_memory(tensor), inactive, place, &bytes);
	if (status == HR_NOT_READY && hr__reclaim_range(lms, place, tensor->bytes, request->stream))
		status = hr__block_take_at(lms->allocator, request, had_memory(tensor), inactive, place, &bytes);
	char name[HR__TENSOR_NAME];
	if (status == HR_NOT_READY)
		return hr__fail(HR_OUT_OF_MEMORY, "the address that the plan assigns to %s is in use",
		                hr__tensor_name(tensor, name, sizeof name));
	if (status) return status;
	HR_ASSERT(bytes == tensor->device_bytes);
	hr__store_relaxed(&tensor->address, place);
	return HR_OK;
}

/* The first memory of a tensor is a request like any other; later ones are internal. The bytes are counted as resident first, so
 * that all threads together stay within the limit for tensors. */
static hr_status take_any_memory(hr__tensor *tensor, hr_stream stream, bool inactive)
{
	hr__lms *lms = tensor->lms;
	hr_request request = request_of(tensor, stream);
	uint64_t bytes = tensor->device_bytes;
	hr_status status = hr__reclaim_to_limit(lms, bytes, stream);
	if (status) return status;
	if (hr__tensor_owns_pages(tensor)) {
		status = hr__fixed_map(tensor, &request, inactive);
		if (status) hr__lms_count(&lms->resident, -(int64_t)bytes);
		return status;
	}
	status = take_planned_address(tensor, &request, inactive);
	if (!status) return HR_OK;
	void *block = NULL;
	uint64_t address = 0, taken = bytes;
	/* A prefetch waits for its place; any other call accepts any address. */
	if (status == HR_OUT_OF_MEMORY && hr__reclaim_mode() != HR__RECLAIM_ANY) {
	} else if (had_memory(tensor)) status = hr__block_take(lms->allocator, &request, inactive, &address, &taken);
	else status = hr_alloc(lms->handle, &request, &block);
	if (status) {
		hr__lms_count(&lms->resident, -(int64_t)bytes);
		return status;
	}
	HR_ASSERT(taken == bytes);
	hr__store_relaxed(&tensor->address, block ? (uintptr_t)block : address);
	return HR_OK;
}

static hr_status take_memory(hr__tensor *tensor, hr_stream stream, bool inactive)
{
	hr__stacks_before before = hr__stacks_replace(tensor->stack);
	hr_status status = take_any_memory(tensor, stream, inactive);
	hr__stacks_restore(before);
	return status;
}

static hr_status load_contents(hr__tensor *tensor, uint64_t *epoch)
{
	HR_ASSERT(tensor->copy.bytes && tensor->address);
	hr__lms *lms = tensor->lms;
	/* The copy to the host may still be under way on the out stream. */
	hr_status status = order(lms, lms->in_stream, bit(lms->out_stream), hr__load_relaxed(&tensor->copy_epoch));
	uint64_t before = status ? 0 : mark_before(lms, lms->in_stream, tensor->bytes);
	if (!status)
		status = hr__tensor_is_shadowed(tensor) ? hr__fixed_load_shadow(tensor)
		                                        : hr__host_load(lms->host, &tensor->copy, tensor->address, lms->in_stream);
	if (!status && lms->verify) status = compare_checksum(tensor, lms->in_stream);
	if (!status) *epoch = mark_after(lms, lms->in_stream, tensor->bytes, before);
	return status;
}

hr_status hr__move_restore(hr__tensor *tensor, hr_stream stream, bool contents, bool inactive)
{
	HR_ASSERT(gets_memory(tensor) && !tensor->address);
	HR_ASSERT(hr__lock_none_from(HR__RANK_LMS));
	hr__lms *lms = tensor->lms;
	bool was_out = tensor->copy.bytes != 0, copies = was_out && contents, dropped = tensor->dropped;
	uint64_t epoch = 0;
	hr_status status = take_memory(tensor, copies ? lms->in_stream : stream, inactive);
	if (status) return status;
	hr__block_own(lms->allocator, tensor->address, tensor->index + 1);
	if (copies) status = load_contents(tensor, &epoch);
	if (status) {
		char why[512]; /* undoing may fail too, and must not replace the message */
		snprintf(why, sizeof why, "%s", hr_last_message());
		if (hr__tensor_owns_pages(tensor)) hr__fixed_undo_map(tensor);
		else
			hr__block_give(lms->allocator, tensor->address, bit(lms->in_stream) | bit(lms->out_stream),
			               hr__device_epoch(lms->device), true);
		if (inactive) hr__meters_add_inactive(lms->allocator, -(int64_t)tensor->device_bytes);
		hr__lms_count(&lms->resident, -(int64_t)tensor->device_bytes);
		tensor->address = 0;
		return hr__fail(status, "%s", why);
	}
	hr__store_relaxed(&tensor->restore_epoch, epoch);
	hr__store_relaxed(&tensor->just_restored, copies);
	hr__store_relaxed(&tensor->in_stream_unordered, 0);
	hr__store_relaxed(&tensor->alloc_stream, copies ? 0 : bit(stream));
	hr__store_relaxed(&tensor->alloc_epoch, hr__device_epoch(lms->device));
	hr__store_relaxed(&tensor->copy_epoch, 0);
	hr__store_relaxed(&tensor->use_streams, bit(copies ? lms->in_stream : stream));
	hr__store_relaxed(&tensor->use_epoch, copies ? epoch : hr__device_epoch(lms->device));
	if (was_out || dropped) hr__move_trace(tensor, HR__EVENT_RESTORE, copies ? tensor->bytes : 0); /* while the copy's location is known */
	if (lms->enabled) {
		hr__lock_take(&lms->lock);
		hr__lms_list_as_resident(lms, tensor);
		hr__evict_queue_remove(lms, HR__EVICT_RECENT, tensor);
		hr__evict_queue_put(lms, HR__EVICT_BY_USE, tensor);
		if (!contents) hr__move_drop_copy(tensor);
		hr__lock_release(&lms->lock);
	}
	int64_t bytes = (int64_t)tensor->device_bytes;
	if (!was_out && !dropped) hr__lms_count_live(lms, bytes);
	if (was_out) {
		count_out(lms, -bytes);
		hr__lms_count(&lms->stats.num_restores, 1);
		hr__fetch_add_relaxed(&tensor->restores, 1);
	}
	if (copies) hr__lms_count(&lms->stats.bytes_copied_in, (int64_t)tensor->bytes);
	return HR_OK;
}

/* ---- writing and destroying ---- */

hr_status hr__move_invalidate_copy(hr__tensor *tensor, hr_stream stream)
{
	HR_ASSERT(hr__load_relaxed(&tensor->word) & HR__WORD_PINS);
	hr__lms *lms = tensor->lms;
	hr__lock_take(&lms->lock);
	hr_status status = HR_OK;
	if (tensor->copy.bytes && !hr__state_is_displaced(tensor)) { /* the copy of a displaced tensor is dropped after its repair */
		/* The copy to the host reads memory that is about to be overwritten. The restore reads the host copy; drop_copy frees that
		 * in stream order. */
		uint64_t copied = hr__load_relaxed(&tensor->copy_epoch);
		if (copied) status = order(lms, stream, bit(lms->out_stream), copied);
		/* Waiting for [stream] then covers that copy, even if the pin fails. */
		if (!status && copied) add_user(tensor, stream);
		if (!status) hr__move_drop_copy(tensor);
		if (!status) hr__store_relaxed(&tensor->copy_epoch, 0);
	}
	hr__store_relaxed(&tensor->evict_first, 0);
	hr__lock_release(&lms->lock);
	return status;
}

/* The memory of an unpinned tensor was freed. */
static void count_freed(const hr__tensor *tensor)
{
	hr__meters_add_inactive(tensor->lms->allocator, -(int64_t)tensor->device_bytes);
	hr__lms_count(&tensor->lms->resident, -(int64_t)tensor->device_bytes);
}

hr_status hr__move_release(hr__tensor *tensor)
{
	HR_ASSERT(hr__state_place(tensor) == HR__PLACE_DESTROYING || hr__state_place(tensor) == HR__PLACE_EVICTING);
	HR_ASSERT(hr__lock_none_from(HR__RANK_LMS));
	hr__lms *lms = tensor->lms;
	bool ghost = hr__load_relaxed(&tensor->ghost) == HR__GHOST_YES, had_contents = tensor->address || tensor->copy.bytes || tensor->dropped;
	hr_status status = HR_OK;
	if (hr__state_place(tensor) == HR__PLACE_DESTROYING) tensor->moved = NULL;
	if (hr__tensor_owns_pages(tensor)) {
		status = hr__fixed_release(tensor);
		if (status) return status;
		if (tensor->address) count_freed(tensor);
	} else if (tensor->address) {
		hr__epochs epochs;
		uint64_t streams, users = hr__load_relaxed(&tensor->use_streams);
		/* Without an epoch of its own (epochs.h), a copy to the host that is under way is waited for by a user. That costs less than if the
		 * next users of the memory waited for later copies too. */
		bool apart = bit(lms->out_stream) & HR__COPY_STREAMS;
		hr_stream last = users && !apart ? (hr_stream)__builtin_ctzll(users) : HR_STREAM_HOST;
		if (last_users(tensor, last, &streams, &epochs)) { /* then all later users wait for all of it */
			streams = users | bit(lms->out_stream);
			epochs = hr__device_epoch(lms->device);
		}
		status = hr__block_give(lms->allocator, tensor->address, streams, epochs, ghost);
		count_freed(tensor);
	} else if (had_contents && !ghost) {
		hr__block_forget(lms->allocator);
	}
	if (tensor->copy.bytes) {
		if (!tensor->address) count_out(lms, -(int64_t)tensor->device_bytes);
		hr__lock_take(&lms->lock);
		hr__move_drop_copy(tensor);
		hr__lock_release(&lms->lock);
	}
	if (tensor->dropped && !hr__load_relaxed(&tensor->ghost)) {
		hr__lock_take(&lms->lock);
		hr__drop_end(tensor);
		hr__lock_release(&lms->lock);
	}
	if (had_contents && !ghost) hr__lms_count_live(lms, -(int64_t)tensor->device_bytes);
	tensor->address = 0;
	return status;
}

hr_status hr__move_free_unwritten(hr__tensor *tensor)
{
	HR_ASSERT(hr__state_place(tensor) == HR__PLACE_EVICTING);
	hr__lms *lms = tensor->lms;
	HR_ASSERT(hr__load_relaxed(&tensor->unwritten) && !tensor->copy.bytes);
	hr__lms_begin_move(lms);
	/* Its address was never taken, and its pages were idle when they were mapped. */
	if (hr__tensor_owns_pages(tensor)) hr__store_relaxed(&tensor->use_streams, 0);
	hr_status status = hr__move_release(tensor);
	bool gone = !tensor->address;
	if (gone) {
		hr__lock_take(&lms->lock);
		hr__evict_queue_remove_all(lms, tensor);
		hr__lock_release(&lms->lock);
		hr__store_relaxed(&tensor->unwritten, 0);
	}
	hr__state_end_eviction(tensor, gone ? HR__PLACE_NEW : HR__PLACE_RESIDENT);
	hr__lms_end_move(lms);
	return status;
}

/* ---- moving on the device ---- */

/* Makes the in stream wait for all users of the tensor; waiting for the in stream then covers them. */
static hr_status wait_for_users(hr__tensor *tensor)
{
	hr__lms *lms = tensor->lms;
	uint64_t copied = hr__load_relaxed(&tensor->copy_epoch);
	hr_status status = order(lms, lms->in_stream, hr__load_relaxed(&tensor->use_streams) & ~bit(lms->in_stream),
	                         hr__load_relaxed(&tensor->use_epoch));
	if (!status && copied) status = order(lms, lms->in_stream, bit(lms->out_stream), copied);
	return status;
}

/* A thread with a pin may take the address once the tensor is RESIDENT, and queue work there. So the streams of current pins wait
 * for [epoch]. */
static hr_status delay_pin_streams(hr__tensor *tensor, uint64_t epoch)
{
	HR_ASSERT(hr__state_place(tensor) == HR__PLACE_MOVING);
	hr__lms *lms = tensor->lms;
	uint64_t streams = hr__load_relaxed(&tensor->pin_streams) & ~bit(lms->in_stream);
	hr_status status = HR_OK;
	if (!(hr__load_relaxed(&tensor->word) & HR__WORD_PINS)) return HR_OK;
	for (; streams && !status; streams &= streams - 1) {
		hr_stream stream = (hr_stream)__builtin_ctzll(streams);
		if (hr__device_has_stream(lms->device, stream)) status = order(lms, stream, bit(lms->in_stream), epoch);
	}
	return status;
}

/* [epoch] of the in stream covers the copy to its memory; the in stream has waited for all earlier users. */
static void set_copy_as_last_use(hr__tensor *tensor, uint64_t epoch)
{
	HR_ASSERT(hr__state_place(tensor) == HR__PLACE_MOVING);
	hr__store_relaxed(&tensor->restore_epoch, epoch);
	hr__store_relaxed(&tensor->copy_epoch, 0);
	hr__store_relaxed(&tensor->use_streams, bit(tensor->lms->in_stream));
	hr__store_relaxed(&tensor->use_epoch, epoch);
	hr__store_relaxed(&tensor->alloc_stream, 0);
	hr__store_relaxed(&tensor->in_stream_unordered, 0);
	if (!hr__load_relaxed(&tensor->evict_first)) return;
	hr__lock_take(&tensor->lms->lock);
	if (tensor->queued[HR__EVICT_PLANNED] != HR__EVICT_UNQUEUED)
		hr__evict_queue_put(tensor->lms, HR__EVICT_PLANNED, tensor); /* with the new copy_epoch */
	hr__lock_release(&tensor->lms->lock);
}

static void set_address(hr__tensor *tensor, uint64_t to, uint64_t epoch)
{
	HR_ASSERT(hr__state_place(tensor) == HR__PLACE_MOVING && to);
	hr__lms *lms = tensor->lms;
	if (hr__trace_is_on())
		hr__trace_event(&(hr__event){ .kind = HR__EVENT_MOVE,
		                              .allocator = (uint32_t)lms->allocator->id,
		                              .stream = lms->in_stream,
		                              .address = tensor->address,
		                              .address2 = to,
		                              .bytes = tensor->device_bytes });
	tensor->address = to;
	set_copy_as_last_use(tensor, epoch);
	report_moved(tensor, 0); /* the copy is still under way */
}

/* Copies it to memory allocated at [to]. On failure it stays where it was. */
static hr_status copy_on_device(hr__tensor *tensor, uint64_t to, uint64_t *epoch)
{
	HR_ASSERT(hr__state_place(tensor) == HR__PLACE_MOVING && !hr__state_is_displaced(tensor));
	hr__lms *lms = tensor->lms;
	hr_status status = wait_for_users(tensor);
	if (!status)
		status = hr_stream_copy(lms->device_handle, (void *)(uintptr_t)to, (const void *)(uintptr_t)tensor->address, tensor->bytes,
		                        HR_COPY_ON_DEVICE, lms->in_stream);
	*epoch = mark_after(lms, lms->in_stream, tensor->bytes, 0);
	if (!status) status = delay_pin_streams(tensor, *epoch);
	if (status) add_user(tensor, lms->in_stream); /* the in stream may be reading it already */
	return status;
}

/* Copies [copy] to its memory, at its current address; the streams of current pins wait for that. */
static hr_status reload_contents(hr__tensor *tensor, const hr__host_copy *copy, uint64_t *epoch)
{
	HR_ASSERT(hr__state_place(tensor) == HR__PLACE_MOVING);
	HR_ASSERT(copy->bytes == tensor->bytes);
	hr__lms *lms = tensor->lms;
	hr_status status = hr__host_load(lms->host, copy, tensor->address, lms->in_stream);
	*epoch = mark_after(lms, lms->in_stream, tensor->bytes, 0);
	set_copy_as_last_use(tensor, *epoch);
	if (!status) status = delay_pin_streams(tensor, *epoch);
	if (status) add_user(tensor, lms->in_stream);
	return status;
}

/* Its memory is invalid, and only [copy] has the contents. The lock is needed because a thread with an older write pin may be about
 * to drop the host copy, and must find the tensor displaced. */
static void set_displaced(hr__tensor *tensor, hr__host_copy copy)
{
	hr__lms *lms = tensor->lms;
	hr__lock_take(&lms->lock);
	hr__move_drop_copy(tensor);
	hr__state_set_copy(tensor, copy);
	hr__state_set_displaced(tensor);
	report_moved(tensor, 0); /* its device memory has no contents now */
	hr__lock_release(&lms->lock);
}

hr_status hr__move_reload(hr__tensor *tensor, uint64_t word)
{
	hr__lms *lms = tensor->lms;
	hr_status status = HR_OK;
	uint64_t epoch;
	char name[HR__TENSOR_NAME];
	if (!hr__state_begin_move(tensor, word)) return HR_OK; /* another thread has claimed it */
	hr__lms_begin_move(lms);
	if (hr__state_is_displaced(tensor)) {
		status = reload_contents(tensor, &tensor->copy, &epoch);
		if (!status && lms->verify && !hr__load_relaxed(&tensor->written)) status = compare_checksum(tensor, lms->in_stream);
		if (!status) { /* a thread with a pin may be about to write */
			hr__lock_take(&lms->lock);
			hr__move_drop_copy(tensor);
			hr__state_clear_displaced(tensor);
			hr__lock_release(&lms->lock);
			hr__lms_count(&lms->stats.bytes_copied_in, (int64_t)tensor->bytes);
		}
	}
	hr__state_end_move(tensor);
	hr__lms_end_move(lms);
	if (!status) return HR_OK;
	return hr__fail_in(status, "%s could not be moved on the device; its contents are on the host and could not be restored",
	                   hr__tensor_name(tensor, name, sizeof name));
}

/* For a move that would overwrite its source. The host copy is private to the move, because threads with pins may drop the tensor's
 * own. */
static hr_status copy_through_host(hr__tensor *tensor, uint64_t to, uint64_t *epoch)
{
	HR_ASSERT(hr__state_place(tensor) == HR__PLACE_MOVING && to < tensor->address && to + tensor->bytes > tensor->address);
	hr__lms *lms = tensor->lms;
	hr__host_copy copy = { 0 };
	bool begun = false;
	hr_status status = order(lms, lms->out_stream, hr__load_relaxed(&tensor->use_streams) & ~bit(lms->out_stream),
	                         hr__load_relaxed(&tensor->use_epoch));
	if (!status) status = store_copy(tensor, &copy);
	if (status == HR_OUT_OF_MEMORY && make_host_room(lms, tensor, tensor->bytes)) status = store_copy(tensor, &copy);
	if (status) {
		add_user(tensor, lms->out_stream);
		return status;
	}
	/* As far as possible, everything that can fail comes before the first byte is overwritten. */
	uint64_t stored = mark_after(lms, lms->out_stream, tensor->bytes, 0);
	status = order(lms, lms->in_stream, bit(lms->out_stream), stored);
	if (!status) status = wait_for_users(tensor);
	if (!status) {
		begun = true;
		status = hr__host_load(lms->host, &copy, to, lms->in_stream);
		*epoch = mark_after(lms, lms->in_stream, tensor->bytes, 0);
		if (!status) status = delay_pin_streams(tensor, *epoch);
	}
	/* Before [begun], the out stream may still be reading it; after that, part of it may be overwritten. */
	if (status && !begun) add_user(tensor, lms->out_stream);
	if (status && begun) {
		char why[512];
		snprintf(why, sizeof why, "%s", hr_last_message());
		if (reload_contents(tensor, &copy, epoch)) {
			set_displaced(tensor, copy);
			return hr__fail(status, "%s", why);
		}
	}
	hr__host_drop(lms->host, &copy, begun ? lms->in_stream : lms->out_stream);
	if (!status) {
		hr__lms_count(&lms->stats.bytes_copied_out, (int64_t)tensor->bytes);
		hr__lms_count(&lms->stats.bytes_copied_in, (int64_t)tensor->bytes);
		hr__move_trace(tensor, HR__EVENT_EVICT, tensor->bytes);
		hr__move_trace(tensor, HR__EVENT_RESTORE, tensor->bytes);
	}
	return status;
}

hr_status hr__move_to_address(hr__tensor *tensor, uint64_t to)
{
	HR_ASSERT(hr__state_place(tensor) == HR__PLACE_MOVING && to != tensor->address);
	HR_ASSERT(hr__lock_none_from(HR__RANK_LMS));
	hr__lms *lms = tensor->lms;
	hr_request request = request_of(tensor, lms->in_stream);
	uint64_t epoch, bytes, from = tensor->address;
	hr__stacks_before before = hr__stacks_replace(tensor->stack);
	hr_status status = hr__block_take_at(lms->allocator, &request, true, false, to, &bytes);
	hr__stacks_restore(before);
	if (!status) {
		status = copy_on_device(tensor, to, &epoch);
		if (!status) set_address(tensor, to, epoch);
		if (!status) hr__block_own(lms->allocator, to, tensor->index + 1);
		hr__block_give(lms->allocator, status ? to : from, bit(lms->in_stream), epoch, true);
	}
	hr__state_end_move(tensor);
	return status;
}

hr_status hr__move_down(hr__tensor *tensor)
{
	HR_ASSERT(hr__state_place(tensor) == HR__PLACE_MOVING && !tensor->fixed);
	HR_ASSERT(hr__lock_none_from(HR__RANK_LMS));
	hr__lms *lms = tensor->lms;
	uint64_t epoch = 0, gap = hr__block_before(lms->allocator, tensor->address), to = tensor->address - gap, bytes;
	hr_request request = { .struct_size = sizeof request, .bytes = gap, .stream = lms->in_stream };
	hr__stacks_before before = hr__stacks_replace(HR_STACK_NONE);
	hr_status status = gap ? hr__block_take_at(lms->allocator, &request, true, false, to, &bytes) : HR_NOT_READY;
	hr__stacks_restore(before);
	if (!status) {
		status = gap >= tensor->bytes ? copy_on_device(tensor, to, &epoch) : copy_through_host(tensor, to, &epoch);
		uint64_t spare = to;
		if (!status) {
			spare = hr__blocks_exchange(lms->allocator, to, tensor->address);
			set_address(tensor, to, epoch);
		}
		hr__block_give(lms->allocator, spare, bit(lms->in_stream), epoch ? epoch : hr__device_epoch(lms->device), true);
	}
	hr__state_end_move(tensor);
	return status;
}
