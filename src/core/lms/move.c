/* move.c - one tensor leaves the device, returns, or goes for ever. Nothing here waits for the device, but verify, and what is done with
 * tensors whose address holds (fixed.c).
 *
 *   copy out   the out stream waits for the streams that used the tensor, copies, and is marked. The tensor stays where it is, synced
 *   drop       whoever gets the memory waits for that mark, on the device. So a copy that was made early costs its next user nothing
 *   return     memory is had on the in stream, which waits for whoever used that before; the copy follows, and a mark. A pin makes its
 *              stream wait for that mark, and for nothing that was queued behind it
 *   move       memory is had on the in stream, which waits for the streams that used the tensor, copies, and is marked: to whoever pins it
 *              next it looks like a return. Streams that it is pinned for already are made to wait at once
 *   repair     what a move over the host, and putting it back, have left astray (tensor.c) is copied from the host, on the in stream
 *
 * What is waited for is one stream up to one mark (device.h): the number kept is the epoch that the mark covers. */
#include <stdio.h>
#include <string.h>

#include "core/base/checked.h"
#include "core/base/status.h"
#include "core/lms/lms.h"
#include "core/memory/bfc/blocks.h"
#include "core/trace/trace.h"

static uint64_t bit(hr_stream stream)
{
	return hr__stream_bit(stream);
}

static bool is_astray(const hr__tensor *tensor)
{
	return hr__load_relaxed(&tensor->word) & HR__WORD_ASTRAY;
}

/* A mark before a copy, when it is to be timed; 0 = none. */
static uint64_t mark_before(hr__lms *lms, hr_stream stream, uint64_t bytes)
{
	uint64_t number = 0;
	if (hr__learned_times_copy(lms, bytes) && hr__device_mark(lms->device, stream, &number) != HR_OK) return 0;
	return number;
}

/* Marks a stream after a copy; what it was given so far is covered by the epoch that is returned. Without a mark, waiting takes longer,
 * and no more. */
static uint64_t mark_after(hr__lms *lms, hr_stream stream, uint64_t bytes, uint64_t before)
{
	uint64_t number;
	if (hr__device_mark(lms->device, stream, &number) != HR_OK) return hr__device_epoch(lms->device);
	if (before) hr__learned_copied(lms, stream == lms->out, bytes, before, number);
	return number - 1;
}

static hr_status order(hr__lms *lms, hr_stream stream, uint64_t streams, uint64_t epoch)
{
	int64_t waits = 0;
	return hr__device_order(lms->device, stream, streams, epoch, &waits);
}

/* Where a copy is on the host, for traces: its address, or with the highest bit set its offset in the file. */
static uint64_t place_of(const hr__host_copy *copy)
{
	return copy->address || !copy->bytes ? copy->address : copy->offset | UINT64_C(1) << 63;
}

/* [bytes] are those that a copy moves; 0: it leaves or returns without one. */
static void note(const hr__tensor *tensor, hr__event_kind kind, uint64_t bytes)
{
	if (hr__trace_is_on())
		hr__trace_event(&(hr__event){ .kind = kind,
		                              .allocator = (uint32_t)tensor->lms->allocator->id,
		                              .stream = kind == HR__EVENT_EVICT ? tensor->lms->out : tensor->lms->in,
		                              .address = tensor->address,
		                              .address2 = place_of(&tensor->copy),
		                              .bytes = bytes,
		                              .requested = bytes,
		                              .op = tensor->op,
		                              .scope = tensor->scope,
		                              .tag = tensor->tag,
		                              .shape = tensor->shape,
		                              .dtype = (hr_dtype)tensor->dtype });
}

/* What [stream] was given so far may be working on its memory, also when those who have it pinned did not wait for that. */
static void join_users(hr__tensor *tensor, hr_stream stream)
{
	if (stream == tensor->lms->in) hr__store_relaxed(&tensor->unfollowed, 1); /* first: see unpin_one */
	uint64_t streams = hr__load_relaxed(&tensor->streams);
	while (!hr__cas_acq_rel(&tensor->streams, &streams, streams | bit(stream))) {}
	hr__lms_max_u64(&tensor->epoch, hr__device_epoch(tensor->lms->device));
}

/* ---- verify ---- */

hr_status hr__move_inspect(hr__tensor *tensor, hr_stream stream)
{
	uint64_t sum;
	char name[HR__TENSOR_NAME];
	bool written = hr__load_relaxed(&tensor->written);
	if (is_astray(tensor)) return HR_OK; /* nobody could change what it holds */
	hr_status status = hr__sum(tensor->lms, tensor->address, tensor->bytes, stream, &sum);
	if (status) return status;
	if (!written && hr__load_relaxed(&tensor->sum_known) && sum != tensor->sum)
		return hr__fail(HR_CORRUPT, "%s changed although it was pinned for reading only; pin it with HR_WRITE",
		                hr__tensor_name(tensor, name, sizeof name));
	tensor->sum = sum;
	hr__store_relaxed(&tensor->sum_known, 1);
	hr__store_relaxed(&tensor->written, 0);
	return HR_OK;
}

/* After a return. */
static hr_status compare(hr__tensor *tensor, hr_stream stream)
{
	uint64_t sum;
	char name[HR__TENSOR_NAME];
	if (!hr__load_relaxed(&tensor->sum_known)) return HR_OK;
	hr_status status = hr__sum(tensor->lms, tensor->address, tensor->bytes, stream, &sum);
	if (status || sum == tensor->sum) return status;
	return hr__fail(HR_CORRUPT, "%s came back with other contents than it left with", hr__tensor_name(tensor, name, sizeof name));
}

/* ---- copies on the host ---- */

static void set_copy(hr__tensor *tensor, hr__host_copy copy)
{
	hr__lock_take(&tensor->lms->lock);
	tensor->copy = copy;
	hr__store_relaxed(&tensor->synced, copy.bytes != 0);
	hr__lock_release(&tensor->lms->lock);
}

/* With the lock held. The last that was done with the copy is its way back, or else its way out. */
static void drop_copy(hr__tensor *tensor)
{
	hr__lms *lms = tensor->lms;
	if (!tensor->copy.bytes) return;
	if (hr__is_shadowed(tensor)) hr__shadow_drop(tensor);
	else hr__host_drop(lms->host, &tensor->copy, hr__load_relaxed(&tensor->in_epoch) ? lms->in : lms->out);
	hr__store_relaxed(&tensor->synced, 0);
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

/* Of its data on the host, where it needs no alignment. */
static hr_status store_copy(const hr__tensor *tensor, hr__host_copy *copy)
{
	hr_request request = request_of(tensor, tensor->lms->out);
	request.alignment = 0;
	return hr__host_store(tensor->lms->host, tensor->address, &request, copy);
}

static hr_status store(hr__tensor *tensor)
{
	hr__lms *lms = tensor->lms;
	hr__host_copy copy = { 0 };
	hr_status status = order(lms, lms->out, hr__load_relaxed(&tensor->streams) & ~bit(lms->out), hr__load_relaxed(&tensor->epoch));
	/* It may be leaving before the unpin of its last writer could look at it, or after a pin that came to nothing. */
	if (!status && lms->verify && hr__load_relaxed(&tensor->written)) status = hr__move_inspect(tensor, lms->out);
	uint64_t before = status ? 0 : mark_before(lms, lms->out, tensor->bytes);
	if (!status)
		status = hr__is_shadowed(tensor) ? hr__shadow_store(tensor, &copy) : store_copy(tensor, &copy);
	if (status) {
		join_users(tensor, lms->out); /* a part of it may be on its way all the same */
		return status;
	}
	set_copy(tensor, copy);
	hr__store_relaxed(&tensor->out_epoch, mark_after(lms, lms->out, tensor->bytes, before));
	/* Who waits for the copy has waited for all of them. */
	if (hr__owns_pages(tensor)) hr__store_relaxed(&tensor->streams, 0);
	return HR_OK;
}

/* ---- out ---- */

/* Gives up the host's copies of tensors that are at home: they can be made again. True when there was one. */
static bool make_host_room(hr__lms *lms, const hr__tensor *except, uint64_t bytes)
{
	uint64_t freed = 0;
	if (lms->safety == HR_SAFETY_HOST_MAPPED && hr__shadows_shrink(lms, except, bytes)) return true;
	if (hr__is_shadowed(except)) { /* pages, which copies of others do not give */
		hr__host_trim(lms->host);
		return true;
	}
	hr__lock_take(&lms->lock);
	for (uint32_t i = 0; i < lms->member_count && freed < bytes; i++) {
		hr__tensor *other = lms->members[i];
		uint64_t word = hr__load_relaxed(&other->word);
		if (other == except || !hr__tensor_claim(other, word, HR__HOME, HR__LEAVING)) continue;
		if (other->copy.bytes && !hr__load_relaxed(&other->leaves) && !hr__is_shadowed(other) && !is_astray(other)) {
			freed += other->copy.bytes;
			drop_copy(other);
		}
		hr__tensor_settle(other, HR__HOME, 0);
	}
	hr__lock_release(&lms->lock);
	return freed > 0;
}

hr_status hr__move_sync(hr__tensor *tensor)
{
	hr__lms *lms = tensor->lms;
	if (tensor->copy.bytes) return HR_OK;
	if (hr__load_relaxed(&tensor->blank)) return HR_NOT_READY;
	hr_status status = store(tensor);
	if (status == HR_OUT_OF_MEMORY && make_host_room(lms, tensor, tensor->bytes)) status = store(tensor);
	if (status) return status;
	hr__lms_count(&lms->stats.bytes_copied_out, (int64_t)tensor->bytes);
	note(tensor, HR__EVENT_EVICT, tensor->bytes);
	tensor->told = true;
	return HR_OK;
}

static void count_out(hr__lms *lms, int64_t bytes)
{
	int64_t now = hr__fetch_add_relaxed(&lms->stats.bytes_out_now, bytes) + bytes;
	hr__lms_max(&lms->stats.peak_bytes_out, now);
}

/* Where tensors never leave, the allocator's own peak is enough. */
static void count_live(hr__lms *lms, int64_t bytes)
{
	if (!lms->enabled) return;
	int64_t now = hr__fetch_add_relaxed(&lms->live, bytes) + bytes;
	if (now > hr__load_relaxed(&lms->peak_live)) hr__lms_max(&lms->peak_live, now);
}

/* Streams that may be working on its memory, and up to when; [next], where it is known, is made to wait for a copy to the host first. */
static hr_status last_users(hr__tensor *tensor, hr_stream next, uint64_t *streams, uint64_t *epoch)
{
	hr__lms *lms = tensor->lms;
	uint64_t copied = hr__load_relaxed(&tensor->out_epoch);
	*streams = hr__load_relaxed(&tensor->streams);
	*epoch = hr__load_relaxed(&tensor->epoch);
	if (!copied) return HR_OK;
	if (next == lms->in || next == lms->out || next == HR_STREAM_HOST) {
		*streams |= bit(lms->out);
		if (copied > *epoch) *epoch = copied;
		return HR_OK;
	}
	hr_status status = order(lms, next, bit(lms->out), copied);
	*streams |= bit(next);
	*epoch = hr__device_epoch(lms->device);
	return status;
}

hr_status hr__move_drop(hr__tensor *tensor, hr_stream stream)
{
	hr__lms *lms = tensor->lms;
	uint64_t streams, epoch;
	hr_status status;
	HR_ASSERT(tensor->copy.bytes);
	if (hr__owns_pages(tensor)) {
		status = hr__fixed_leave(tensor);
	} else {
		status = last_users(tensor, stream, &streams, &epoch);
		if (!status) status = hr__block_give(lms->allocator, tensor->address, streams, epoch, true);
	}
	if (status) return status;
	hr__meters_idle(lms->allocator, -(int64_t)tensor->device_bytes);
	if (!tensor->told) note(tensor, HR__EVENT_EVICT, 0);
	tensor->told = false;
	hr__learned_evicted(lms, tensor);
	int64_t bytes = (int64_t)tensor->device_bytes;
	hr__lms_count(&lms->resident, -bytes);
	hr__lms_count(&lms->stats.bytes_reclaimed, bytes);
	hr__lms_count(&lms->stats.num_evictions, 1);
	count_out(lms, bytes);
	hr__fetch_add_relaxed(&tensor->evictions, 1);
	hr__lock_take(&lms->lock);
	hr__store_relaxed(&tensor->leaves, 0);
	hr__evict_queue_take(lms, HR__EVICT_BY_USE, tensor);
	hr__evict_queue_take(lms, HR__EVICT_LEAVING, tensor);
	hr__evict_queue_put(lms, HR__EVICT_DEPARTED, tensor);
	hr__lock_release(&lms->lock);
	hr__store_relaxed(&tensor->prefetched, 0);
	tensor->address = 0;
	return HR_OK;
}

hr_status hr__move_out(hr__tensor *tensor, hr_stream stream)
{
	hr__lms *lms = tensor->lms;
	bool clean = tensor->copy.bytes != 0;
	if (hr__load_relaxed(&tensor->blank)) return hr__move_undo(tensor);
	hr__lms_enter(lms);
	hr_status status = hr__move_sync(tensor);
	if (!status) status = hr__move_drop(tensor, stream);
	if (!status && clean) hr__lms_count(&lms->stats.num_clean_evictions, 1);
	hr__tensor_settle(tensor, status ? HR__HOME : HR__OUT, 0);
	hr__lms_leave(lms);
	return status;
}

/* ---- in ---- */

/* The place that the plan has for it, if that is free or can be made so. */
static hr_status take_place(hr__tensor *tensor, const hr_request *request, bool idle)
{
	hr__lms *lms = tensor->lms;
	uint64_t place = hr__learned_place(tensor);
	if (!place) return HR_NOT_READY;
	hr_status status = hr__block_take_at(lms->allocator, request, tensor->counted, idle, place, &tensor->device_bytes);
	if (status == HR_NOT_READY && hr__reclaim_at(lms, place, tensor->bytes, request->stream))
		status = hr__block_take_at(lms->allocator, request, tensor->counted, idle, place, &tensor->device_bytes);
	char name[HR__TENSOR_NAME];
	if (status == HR_NOT_READY)
		return hr__fail(HR_OUT_OF_MEMORY, "the place that the plan has for %s is taken", hr__tensor_name(tensor, name, sizeof name));
	if (status) return status;
	hr__store_relaxed(&tensor->address, place);
	tensor->counted = true;
	return HR_OK;
}

/* The first memory of a tensor is a request like any other; later it is the library's own business. It is counted as resident before, so
 * that threads together stay within the limit for tensors. */
static hr_status take_memory(hr__tensor *tensor, hr_stream stream, bool idle)
{
	hr__lms *lms = tensor->lms;
	hr_request request = request_of(tensor, stream);
	uint64_t bytes = hr__tensor_device_bytes(tensor);
	hr_status status = hr__reclaim_below(lms, bytes, stream);
	if (status) return status;
	if (hr__owns_pages(tensor)) {
		status = hr__fixed_take(tensor, &request, idle);
		if (status) hr__lms_count(&lms->resident, -(int64_t)bytes);
		return status;
	}
	status = take_place(tensor, &request, idle);
	if (!status) return HR_OK;
	void *block = NULL;
	uint64_t address = 0;
	/* What comes back ahead of its use waits for its place; anything else takes whatever there is. */
	if (status == HR_OUT_OF_MEMORY && hr__reclaim_mode() != HR__RECLAIM_ANY) {}
	else if (tensor->counted) status = hr__block_take(lms->allocator, &request, idle, &address, &tensor->device_bytes);
	else status = hr_alloc(lms->handle, &request, &block);
	if (status) {
		hr__lms_count(&lms->resident, -(int64_t)bytes);
		return status;
	}
	hr__store_relaxed(&tensor->address, tensor->counted ? address : (uintptr_t)block);
	tensor->counted = true;
	tensor->device_bytes = bytes;
	return HR_OK;
}

static hr_status load(hr__tensor *tensor, uint64_t *epoch)
{
	hr__lms *lms = tensor->lms;
	/* The copy may still be under way to the host, on the other stream. */
	hr_status status = order(lms, lms->in, bit(lms->out), hr__load_relaxed(&tensor->out_epoch));
	uint64_t before = status ? 0 : mark_before(lms, lms->in, tensor->bytes);
	if (!status)
		status = hr__is_shadowed(tensor) ? hr__shadow_load(tensor) : hr__host_load(lms->host, &tensor->copy, tensor->address, lms->in);
	if (!status && lms->verify) status = compare(tensor, lms->in);
	if (!status) *epoch = mark_after(lms, lms->in, tensor->bytes, before);
	return status;
}

hr_status hr__move_in(hr__tensor *tensor, hr_stream stream, bool contents, bool idle)
{
	hr__lms *lms = tensor->lms;
	bool was_out = tensor->copy.bytes != 0, copies = was_out && contents, is_new = !tensor->counted;
	uint64_t epoch = 0;
	hr_status status = take_memory(tensor, copies ? lms->in : stream, idle);
	if (status) return status;
	hr__block_own(lms->allocator, tensor->address, tensor->index + 1);
	if (copies) status = load(tensor, &epoch);
	if (status) {
		char why[512]; /* undoing may fail too, and must not replace the reason */
		snprintf(why, sizeof why, "%s", hr_last_message());
		if (hr__owns_pages(tensor)) hr__fixed_undo(tensor);
		else hr__block_give(lms->allocator, tensor->address, bit(lms->in) | bit(lms->out), hr__device_epoch(lms->device), true);
		if (idle) hr__meters_idle(lms->allocator, -(int64_t)tensor->device_bytes);
		hr__lms_count(&lms->resident, -(int64_t)tensor->device_bytes);
		tensor->address = 0;
		return hr__fail(status, "%s", why);
	}
	hr__store_relaxed(&tensor->in_epoch, epoch);
	hr__store_relaxed(&tensor->fresh, copies);
	hr__store_relaxed(&tensor->unfollowed, 0);
	hr__store_relaxed(&tensor->took_on, copies ? 0 : bit(stream));
	hr__store_relaxed(&tensor->took_epoch, hr__device_epoch(lms->device));
	hr__store_relaxed(&tensor->out_epoch, 0);
	hr__store_relaxed(&tensor->streams, bit(copies ? lms->in : stream));
	hr__store_relaxed(&tensor->epoch, copies ? epoch : hr__device_epoch(lms->device));
	if (was_out) note(tensor, HR__EVENT_RESTORE, copies ? tensor->bytes : 0); /* while it is known where the copy was */
	if (lms->enabled) {
		hr__lock_take(&lms->lock);
		hr__lms_set_resident(lms, tensor);
		hr__evict_queue_take(lms, HR__EVICT_DEPARTED, tensor);
		hr__evict_queue_put(lms, HR__EVICT_BY_USE, tensor);
		if (!contents) drop_copy(tensor);
		hr__lock_release(&lms->lock);
	}
	int64_t bytes = (int64_t)tensor->device_bytes;
	if (is_new) count_live(lms, bytes);
	if (was_out) {
		count_out(lms, -bytes);
		hr__lms_count(&lms->stats.num_restores, 1);
		hr__fetch_add_relaxed(&tensor->restores, 1);
	}
	if (copies) hr__lms_count(&lms->stats.bytes_copied_in, (int64_t)tensor->bytes);
	return HR_OK;
}

/* ---- changes, and the end ---- */

hr_status hr__move_dirty(hr__tensor *tensor, hr_stream stream)
{
	hr__lms *lms = tensor->lms;
	hr__lock_take(&lms->lock);
	hr_status status = HR_OK;
	if (tensor->copy.bytes && !is_astray(tensor)) { /* if it is, the copy goes when it was brought back */
		/* Both copies read what is about to be overwritten: the one to the host, and, on the host, the one back. */
		uint64_t copied = hr__load_relaxed(&tensor->out_epoch);
		if (copied) status = order(lms, stream, bit(lms->out), copied);
		/* Who waits for the stream waits for that copy too, also when the pin comes to nothing. */
		if (!status && copied) join_users(tensor, stream);
		if (!status) drop_copy(tensor);
		if (!status) hr__store_relaxed(&tensor->out_epoch, 0);
	}
	hr__store_relaxed(&tensor->leaves, 0);
	hr__lock_release(&lms->lock);
	return status;
}

/* The memory of a tensor that was not pinned is free. */
static void count_gone(const hr__tensor *tensor)
{
	hr__meters_idle(tensor->lms->allocator, -(int64_t)tensor->device_bytes);
	hr__lms_count(&tensor->lms->resident, -(int64_t)tensor->device_bytes);
}

hr_status hr__move_away(hr__tensor *tensor)
{
	hr__lms *lms = tensor->lms;
	hr_status status = HR_OK;
	if (hr__owns_pages(tensor)) {
		status = hr__fixed_end(tensor);
		if (status) return status;
		if (tensor->address) count_gone(tensor);
	} else if (tensor->address) {
		uint64_t streams, epoch, users = hr__load_relaxed(&tensor->streams);
		hr_stream last = users ? (hr_stream)__builtin_ctzll(users) : HR_STREAM_HOST;
		if (last_users(tensor, last, &streams, &epoch)) { /* then everybody waits for everything */
			streams = users | bit(lms->out);
			epoch = hr__device_epoch(lms->device);
		}
		status = hr__block_give(lms->allocator, tensor->address, streams, epoch, false);
		count_gone(tensor);
	} else if (tensor->counted) {
		hr__block_forget(lms->allocator);
	}
	if (tensor->copy.bytes) {
		if (!tensor->address) count_out(lms, -(int64_t)tensor->device_bytes);
		hr__lock_take(&lms->lock);
		drop_copy(tensor);
		hr__lock_release(&lms->lock);
	}
	if (tensor->counted) count_live(lms, -(int64_t)tensor->device_bytes);
	tensor->address = 0;
	return status;
}

hr_status hr__move_undo(hr__tensor *tensor)
{
	hr__lms *lms = tensor->lms;
	HR_ASSERT(hr__load_relaxed(&tensor->blank) && !tensor->copy.bytes);
	hr__lms_enter(lms);
	/* Nobody was ever given its address, and its pages were idle when they came. */
	if (hr__owns_pages(tensor)) hr__store_relaxed(&tensor->streams, 0);
	hr_status status = hr__move_away(tensor);
	bool gone = !tensor->address;
	if (gone) {
		hr__lock_take(&lms->lock);
		hr__evict_queue_take_all(lms, tensor);
		hr__lock_release(&lms->lock);
		tensor->counted = false; /* that was a free, and its next memory is a request */
		hr__store_relaxed(&tensor->blank, 0);
	}
	hr__tensor_settle(tensor, gone ? HR__NEW : HR__HOME, 0);
	hr__lms_leave(lms);
	return status;
}

/* ---- to another address ---- */

/* The in stream waits for whoever wrote to it or reads from it; what comes after it need wait for nobody else. */
static hr_status follow_users(hr__tensor *tensor)
{
	hr__lms *lms = tensor->lms;
	uint64_t copied = hr__load_relaxed(&tensor->out_epoch);
	hr_status status = order(lms, lms->in, hr__load_relaxed(&tensor->streams) & ~bit(lms->in), hr__load_relaxed(&tensor->epoch));
	if (!status && copied) status = order(lms, lms->in, bit(lms->out), copied);
	return status;
}

/* Those who hold pins may ask for the address as soon as it is at home, and queue work there. */
static hr_status delay_holders(hr__tensor *tensor, uint64_t epoch)
{
	hr__lms *lms = tensor->lms;
	uint64_t streams = hr__load_relaxed(&tensor->pinned_by) & ~bit(lms->in);
	hr_status status = HR_OK;
	if (!(hr__load_relaxed(&tensor->word) & HR__WORD_PINS)) return HR_OK;
	for (; streams && !status; streams &= streams - 1) {
		hr_stream stream = (hr_stream)__builtin_ctzll(streams);
		if (hr__device_has_stream(lms->device, stream)) status = order(lms, stream, bit(lms->in), epoch);
	}
	return status;
}

/* What was copied to it is covered by [epoch] of the in stream, which has waited for all who used it before. */
static void follow_copy(hr__tensor *tensor, uint64_t epoch)
{
	hr__store_relaxed(&tensor->in_epoch, epoch);
	hr__store_relaxed(&tensor->out_epoch, 0);
	hr__store_relaxed(&tensor->streams, bit(tensor->lms->in));
	hr__store_relaxed(&tensor->epoch, epoch);
	hr__store_relaxed(&tensor->took_on, 0);
	hr__store_relaxed(&tensor->unfollowed, 0);
	if (!hr__load_relaxed(&tensor->leaves)) return;
	hr__lock_take(&tensor->lms->lock);
	if (tensor->queued[HR__EVICT_LEAVING] != HR__UNQUEUED) hr__evict_queue_put(tensor->lms, HR__EVICT_LEAVING, tensor); /* with the new out_epoch */
	hr__lock_release(&tensor->lms->lock);
}

static void arrive(hr__tensor *tensor, uint64_t to, uint64_t epoch)
{
	hr__lms *lms = tensor->lms;
	if (hr__trace_is_on())
		hr__trace_event(&(hr__event){ .kind = HR__EVENT_MOVE,
		                              .allocator = (uint32_t)lms->allocator->id,
		                              .stream = lms->in,
		                              .address = tensor->address,
		                              .address2 = to,
		                              .bytes = tensor->device_bytes });
	tensor->address = to;
	follow_copy(tensor, epoch);
}

/* Where there is memory for it. When it fails, it is where it was. */
static hr_status copy_on_device(hr__tensor *tensor, uint64_t to, uint64_t *epoch)
{
	hr__lms *lms = tensor->lms;
	hr_status status = follow_users(tensor);
	if (!status)
		status = hr_copy(lms->device_handle, (void *)(uintptr_t)to, (const void *)(uintptr_t)tensor->address, tensor->bytes,
		                 HR_COPY_ON_DEVICE, lms->in);
	*epoch = mark_after(lms, lms->in, tensor->bytes, 0);
	if (!status) status = delay_holders(tensor, *epoch);
	if (status) join_users(tensor, lms->in); /* which may be reading it already */
	return status;
}

/* From the host's copy to its memory, where it is; those who hold pins wait for that. */
static hr_status fill_again(hr__tensor *tensor, const hr__host_copy *copy, uint64_t *epoch)
{
	hr__lms *lms = tensor->lms;
	hr_status status = hr__host_load(lms->host, copy, tensor->address, lms->in);
	*epoch = mark_after(lms, lms->in, tensor->bytes, 0);
	follow_copy(tensor, *epoch);
	if (!status) status = delay_holders(tensor, *epoch);
	if (status) join_users(tensor, lms->in);
	return status;
}

/* Its memory is not good any more, and [copy] is all there is. Whoever is about to drop the host's copy, because of a pin for writing that
 * came before the move, must find it astray. */
static void go_astray(hr__tensor *tensor, hr__host_copy copy)
{
	hr__lms *lms = tensor->lms;
	hr__lock_take(&lms->lock);
	drop_copy(tensor);
	tensor->copy = copy;
	hr__store_relaxed(&tensor->synced, 1);
	hr__fetch_add_acq_rel(&tensor->word, HR__WORD_ASTRAY);
	hr__lock_release(&lms->lock);
}

hr_status hr__move_repair(hr__tensor *tensor, uint64_t word)
{
	hr__lms *lms = tensor->lms;
	hr_status status = HR_OK;
	uint64_t epoch;
	char name[HR__TENSOR_NAME];
	if (!hr__tensor_claim_moving(tensor, word)) return HR_OK; /* somebody else is at it */
	hr__lms_enter(lms);
	if (is_astray(tensor)) {
		status = fill_again(tensor, &tensor->copy, &epoch);
		if (!status && lms->verify && !hr__load_relaxed(&tensor->written)) status = compare(tensor, lms->in);
		if (!status) { /* of those who hold pins, some may be about to write */
			hr__lock_take(&lms->lock);
			drop_copy(tensor);
			hr__fetch_sub_acq_rel(&tensor->word, HR__WORD_ASTRAY);
			hr__lock_release(&lms->lock);
			hr__lms_count(&lms->stats.bytes_copied_in, (int64_t)tensor->bytes);
		}
	}
	hr__tensor_settle_moved(tensor);
	hr__lms_leave(lms);
	if (!status) return HR_OK;
	return hr__fail_in(status, "the contents of %s are on the host since it was to be moved, and do not come back",
	                   hr__tensor_name(tensor, name, sizeof name));
}

/* Where it would overwrite itself. The host's copy is the mover's own: that of the tensor belongs to those who hold pins as well. */
static hr_status copy_over_host(hr__tensor *tensor, uint64_t to, uint64_t *epoch)
{
	hr__lms *lms = tensor->lms;
	hr__host_copy copy = { 0 };
	bool begun = false;
	hr_status status = order(lms, lms->out, hr__load_relaxed(&tensor->streams) & ~bit(lms->out), hr__load_relaxed(&tensor->epoch));
	if (!status) status = store_copy(tensor, &copy);
	if (status == HR_OUT_OF_MEMORY && make_host_room(lms, tensor, tensor->bytes)) status = store_copy(tensor, &copy);
	if (status) {
		join_users(tensor, lms->out);
		return status;
	}
	/* All that can fail comes before the first byte is overwritten, as far as that is possible. */
	uint64_t stored = mark_after(lms, lms->out, tensor->bytes, 0);
	status = order(lms, lms->in, bit(lms->out), stored);
	if (!status) status = follow_users(tensor);
	if (!status) {
		begun = true;
		status = hr__host_load(lms->host, &copy, to, lms->in);
		*epoch = mark_after(lms, lms->in, tensor->bytes, 0);
		if (!status) status = delay_holders(tensor, *epoch);
	}
	/* The out stream may still be reading it; or else a part of it may be overwritten. */
	if (status && !begun) join_users(tensor, lms->out);
	if (status && begun) {
		char why[512];
		snprintf(why, sizeof why, "%s", hr_last_message());
		if (fill_again(tensor, &copy, epoch)) {
			go_astray(tensor, copy);
			return hr__fail(status, "%s", why);
		}
	}
	hr__host_drop(lms->host, &copy, begun ? lms->in : lms->out);
	if (!status) {
		hr__lms_count(&lms->stats.bytes_copied_out, (int64_t)tensor->bytes);
		hr__lms_count(&lms->stats.bytes_copied_in, (int64_t)tensor->bytes);
		note(tensor, HR__EVENT_EVICT, tensor->bytes);
		note(tensor, HR__EVENT_RESTORE, tensor->bytes);
	}
	return status;
}

hr_status hr__move_to(hr__tensor *tensor, uint64_t to)
{
	hr__lms *lms = tensor->lms;
	hr_request request = request_of(tensor, lms->in);
	uint64_t epoch, bytes, from = tensor->address;
	hr_status status = hr__block_take_at(lms->allocator, &request, true, false, to, &bytes);
	if (!status) {
		status = copy_on_device(tensor, to, &epoch);
		if (!status) arrive(tensor, to, epoch);
		if (!status) hr__block_own(lms->allocator, to, tensor->index + 1);
		hr__block_give(lms->allocator, status ? to : from, bit(lms->in), epoch, true);
	}
	hr__tensor_settle_moved(tensor);
	return status;
}

hr_status hr__move_down(hr__tensor *tensor)
{
	hr__lms *lms = tensor->lms;
	uint64_t epoch = 0, gap = hr__block_before(lms->allocator, tensor->address), to = tensor->address - gap, bytes;
	hr_request request = { .struct_size = sizeof request, .bytes = gap, .stream = lms->in };
	hr_status status = gap ? hr__block_take_at(lms->allocator, &request, true, false, to, &bytes) : HR_NOT_READY;
	if (!status) {
		status = gap >= tensor->bytes ? copy_on_device(tensor, to, &epoch) : copy_over_host(tensor, to, &epoch);
		uint64_t spare = to;
		if (!status) {
			spare = hr__blocks_exchange(lms->allocator, to, tensor->address);
			arrive(tensor, to, epoch);
		}
		hr__block_give(lms->allocator, spare, bit(lms->in), epoch ? epoch : hr__device_epoch(lms->device), true);
	}
	hr__tensor_settle_moved(tensor);
	return status;
}
