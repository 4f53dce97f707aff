/* pin.c - pin, unpin, addresses.
 *
 * Pinning a resident tensor is one compare-and-swap on its state word; the only other shared writes are the byte counters. The slow
 * cases are rare: allocating memory for a new tensor, restoring an evicted one, recomputing a dropped one; and on write, invalidating a
 * host copy, and ending recipes (recipe/recipe.h).
 *
 * hr_tensor_pin_all is atomic: it pins every tensor or none, and on failure releases what it pinned. A thread that holds no other
 * pins then waits for unpins and retries; this cannot deadlock, because no thread can be waiting for it. A thread that already
 * holds pins or runs a recipe fails immediately, because two such threads could deadlock. A call that would not fit even if all other threads
 * unpinned fails immediately, too. */
#include <stdio.h>
#include <string.h>

#include "core/base/checked.h"
#include "core/base/status.h"
#include "core/base/text/text.h"
#include "core/lms/recipe/recipe.h"
#include "core/lms/tensor/pin.h"
#include "core/memory/bfc/tensor_block.h"

#define PAIRWISE_MAX 64u /* calls with at most this many tensors are checked pairwise; longer ones use 8 KiB of stack */

/* Pins that this thread took and did not release, per context. A pin that another thread releases counts against that thread.
 * Closing a context ends its pins, so contexts are counted apart: 6 at a time, because thread-local storage is scarce in a library
 * that is loaded late. The last entry counts all contexts that found no entry; until it is empty, new contexts are counted there
 * too. */
#define HELD_MAX 6u
static _Thread_local struct held {
	uint64_t context;
	int64_t pins;
} held[HELD_MAX + 1];

static __attribute__((noinline)) struct held *find_held(uint64_t context)
{
	struct held *unused = NULL, *empty = NULL;
	for (struct held *each = held; each < held + HELD_MAX; each++) {
		if (each->context == context) return each;
		if (!unused && !hr__lms_is_open(each->context)) unused = each;
		if (!empty && !each->pins) empty = each;
	}
	struct held *spare = unused ? unused : empty;
	if (!spare || held[HELD_MAX].pins) return &held[HELD_MAX];
	*spare = (struct held){ context, 0 };
	return spare;
}

static void count_held(const hr__lms *lms, int64_t pins)
{
	struct held *entry = HR_LIKELY(held->context == lms->handle.id) ? held : find_held(lms->handle.id);
	entry->pins += pins;
}

int64_t hr__pin_count_of_thread(void)
{
	int64_t pins = held[HELD_MAX].pins > 0 ? held[HELD_MAX].pins : 0;
	for (uint32_t i = 0; i < HELD_MAX; i++)
		if (held[i].pins > 0 && hr__lms_is_open(held[i].context)) pins += held[i].pins;
	return pins;
}

static _Thread_local hr__pin_group group;

hr__pin_group *hr__pin_group_of_thread(void)
{
	return &group;
}

void hr_pin_group_begin(void)
{
	if (group.depth++ == 0 && !group.continued) group.context = 0;
}

void hr_pin_group_end(void)
{
	if (group.depth && --group.depth == 0) group.continued = false;
}

/* Encloses code that counts pins, so that a check of the counters knows whether a thread is inside. It uses a flag of the thread's
 * own cache if there is one, because a counter that all threads write would cost more than the pin. */
static inline hr__cache *begin_counting(hr__lms *lms)
{
	hr__cache *cache = hr__thread_self ? hr__thread_self->caches[lms->allocator->slot] : NULL;
	if (HR_UNLIKELY(!cache || hr__load_relaxed(&cache->id) != lms->handle.id)) {
		hr__fetch_add_acq_rel(&lms->pinning, 1);
		return NULL;
	}
	hr__owner_add(&cache->pinning, 1);
	hr__light_barrier();
	return cache;
}

static inline void end_counting(hr__lms *lms, hr__cache *cache)
{
	HR_ASSERT(cache ? hr__load_relaxed(&cache->pinning) > 0 : hr__load_relaxed(&lms->pinning) > 0);
	if (HR_LIKELY(cache != NULL)) hr__store_release(&cache->pinning, hr__load_relaxed(&cache->pinning) - 1);
	else hr__fetch_sub_acq_rel(&lms->pinning, 1);
}

hr__cache *hr__pin_begin_counting(hr__lms *lms)
{
	return begin_counting(lms);
}

void hr__pin_end_counting(hr__lms *lms, hr__cache *cache)
{
	end_counting(lms, cache);
}

/* Called before the tensor is pinned for [stream]: a thread that then moves the tensor knows which streams have to wait. */
static inline void add_pin_stream(hr__tensor *tensor, hr_stream stream)
{
	uint64_t seen, bit = hr__stream_bit(stream);
	if (HR_LIKELY(!tensor->lms->defrag)) return;
	seen = hr__load_relaxed(&tensor->pin_streams);
	while ((seen | bit) != seen && !hr__cas_acq_rel(&tensor->pin_streams, &seen, seen | bit)) {}
}

/* Makes a claimed tensor resident and pins it. A new one is unwritten until the whole call has succeeded. */
static hr_status make_resident(hr__tensor *tensor, enum hr__place from, hr_access access, hr_stream stream)
{
	HR_ASSERT(hr__state_place(tensor) == HR__PLACE_RESTORING);
	hr__lms *lms = tensor->lms;
	hr__lms_begin_move(lms);
	hr_status status = hr__move_restore(tensor, stream, from == HR__PLACE_EVICTED && access != HR_OVERWRITE, false);
	if (!status && from == HR__PLACE_EVICTED) hr__lms_count(&lms->stats.num_prefetch_misses, 1);
	if (!status) add_pin_stream(tensor, stream);
	if (!status && from == HR__PLACE_NEW) hr__store_relaxed(&tensor->unwritten, 1);
	if (!status && from == HR__PLACE_DROPPED) { /* all of it is about to be written */
		hr__lock_take(&lms->lock);
		hr__drop_end(tensor);
		hr__lock_release(&lms->lock);
	}
	hr__state_end_restore(tensor, status ? from : HR__PLACE_RESIDENT, !status);
	hr__lms_end_move(lms);
	return status;
}

static hr_status fail_unwritten(const hr__tensor *tensor)
{
	char name[HR__TENSOR_NAME];
	return hr__fail(HR_INVALID_ARGUMENT,
	                "%s was never written, so there is nothing to read; pin it with HR_WRITE or HR_OVERWRITE first",
	                hr__tensor_name(tensor, name, sizeof name));
}

/* Pins a DROPPED tensor, if no other thread is faster (then *done is false). */
static __attribute__((noinline)) hr_status pin_dropped(hr__tensor *tensor, uint64_t word, hr_access access, hr_stream stream,
                                                       bool *done)
{
	*done = false;
	if (access != HR_OVERWRITE) return hr__recompute(tensor, word, stream, HR__THEN_PIN, done);
	if (!hr__state_begin_restore(tensor, word, HR__PLACE_DROPPED)) return HR_OK;
	*done = true;
	return make_resident(tensor, HR__PLACE_DROPPED, access, stream);
}

/* Pins a tensor, and makes it resident first if needed. */
static hr_status pin_tensor(hr__tensor *tensor, hr_tensor handle, hr_access access, hr_stream stream)
{
	for (unsigned attempt = 0;; attempt++) {
		uint64_t word = hr__load_acquire(&tensor->word);
		if (HR_UNLIKELY(word >> 32 != handle.id >> 32)) return hr__tensor_fail_closed(handle);
		switch (hr__word_place(word)) {
		case HR__PLACE_RESIDENT: {
			if (HR_UNLIKELY((word & HR__WORD_PINS) == HR__WORD_PINS))
				return hr__fail(HR_TOO_MANY, "a tensor has 2^24 - 1 pins already");
			if (HR_UNLIKELY(word & HR__WORD_DISPLACED)) {
				hr_status status = hr__move_reload(tensor, word);
				if (status) return status;
				continue;
			}
			add_pin_stream(tensor, stream);
			if (!hr__state_pin(tensor, &word)) continue;
			/* Counted after the pin, so that two threads never count one tensor twice: the peak of active bytes would keep that. */
			if (!(word & HR__WORD_PINS)) hr__meters_add_inactive(tensor->lms->allocator, -(int64_t)tensor->device_bytes);
			return HR_OK;
		}
		case HR__PLACE_NEW:
			if (access == HR_READ) return fail_unwritten(tensor);
			if (hr__state_begin_restore(tensor, word, HR__PLACE_NEW)) return make_resident(tensor, HR__PLACE_NEW, access, stream);
			break;
		case HR__PLACE_EVICTED:
			if (hr__state_begin_restore(tensor, word, HR__PLACE_EVICTED))
				return make_resident(tensor, HR__PLACE_EVICTED, access, stream);
			break;
		case HR__PLACE_DROPPED: {
			bool done;
			hr_status status = pin_dropped(tensor, word, access, stream, &done);
			if (status || done) return status;
			hr__state_wait(attempt);
			break;
		}
		case HR__PLACE_UNUSED:
		case HR__PLACE_DESTROYING: return hr__tensor_fail_closed(handle);
		case HR__PLACE_RECOMPUTING: {
			hr_status status = hr__recompute_check_own(tensor);
			if (status) return status;
			hr__state_wait(attempt);
			break;
		}
		default: hr__state_wait(attempt);
		}
	}
}

/* Releases one pin of a tensor that the caller has found pinned. True if it was the last pin: the tensor is then at [place],
 * RESIDENT, or EVICTING for the caller. */
static bool release_pin(hr__tensor *tensor, enum hr__place place)
{
	uint64_t word = hr__load_relaxed(&tensor->word);
	for (unsigned attempt = 0;;) {
		if (HR_UNLIKELY(hr__word_place(word) == HR__PLACE_MOVING)) { /* by another thread */
			hr__state_wait(attempt++);
			word = hr__load_acquire(&tensor->word);
			continue;
		}
		if (HR_UNLIKELY(!hr__word_pins(word))) return false; /* two threads released the last pin */
		bool last = hr__word_pins(word) == 1;
		/* Counted as inactive before other threads can see that and claim it. */
		if (last) hr__meters_add_inactive(tensor->lms->allocator, (int64_t)tensor->device_bytes);
		if (hr__state_unpin(tensor, &word, place)) return last;
		if (last) hr__meters_add_inactive(tensor->lms->allocator, -(int64_t)tensor->device_bytes);
	}
}

/* Releases one pin of a call that failed. A tensor that had memory only in such calls becomes NEW again. */
static __attribute__((noinline)) void undo_pin(hr__tensor *tensor)
{
	HR_ASSERT(hr__load_relaxed(&tensor->word) & HR__WORD_PINS);
	hr__lms *lms = tensor->lms;
	if (HR_LIKELY(!hr__load_relaxed(&tensor->unwritten))) { /* a pinned tensor does not become unwritten */
		if (release_pin(tensor, HR__PLACE_RESIDENT)) hr__lms_note_change(lms);
		return;
	}
	hr__lms_begin_move(lms); /* first: a thread that sees no movers and no pins must find this memory free */
	if (release_pin(tensor, HR__PLACE_EVICTING)) {
		char why[512]; /* undoing may fail too, and must not replace the message */
		snprintf(why, sizeof why, "%s", hr_last_message());
		/* Another thread may have pinned and written it meanwhile. */
		if (!hr__load_relaxed(&tensor->unwritten)) hr__state_end_eviction(tensor, HR__PLACE_RESIDENT);
		else if (hr__move_free_unwritten(tensor)) hr__fail(HR_OUT_OF_MEMORY, "%s", why);
	}
	hr__lms_end_move(lms);
}

/* Whether an entry of the call before [at] writes to the same tensor. */
static bool writes_before(const hr_pin *pins, size_t at)
{
	for (size_t i = 0; i < at; i++)
		if (pins[i].tensor.id == pins[at].tensor.id && pins[i].access != HR_READ) return true;
	return false;
}

/* Waits until the device has finished all work on a pinned tensor: that of earlier pins, its restore, a copy to the host if it will
 * be written, and earlier uses of its memory. Takes its address first, because moving it would queue new work. */
static hr_status wait_on_host(hr__tensor *tensor, hr_tensor handle, hr_access access)
{
	hr__lms *lms = tensor->lms;
	void *ignored;
	int64_t waits = 0;
	hr_status status = hr_tensor_get_address(handle, &ignored);
	uint64_t restored = hr__load_relaxed(&tensor->restore_epoch),
			 copied = access == HR_READ ? hr__tensor_copied_after_use(tensor) : hr__load_relaxed(&tensor->copy_epoch);
	uint64_t begin = hr__load_relaxed(&tensor->just_restored) && hr__exchange_acquire(&tensor->just_restored, 0)
	                     ? hr__device_clock_ns(lms->device)
	                     : 0;
	if (!status && restored)
		status = hr__device_order(lms->device, HR_STREAM_HOST, hr__stream_bit(lms->in_stream), restored, &waits);
	if (begin) hr__lms_count(&lms->stats.stall_ns, (int64_t)(hr__device_clock_ns(lms->device) - begin));
	if (!status && copied) status = hr__device_order(lms->device, HR_STREAM_HOST, hr__stream_bit(lms->out_stream), copied, &waits);
	if (!status && !restored)
		status = hr__device_order(lms->device, HR_STREAM_HOST, hr__load_relaxed(&tensor->alloc_stream),
		                          hr__load_relaxed(&tensor->alloc_epoch), &waits);
	if (!status)
		status = hr__device_order(lms->device, HR_STREAM_HOST, hr__load_relaxed(&tensor->use_streams),
		                          hr__load_relaxed(&tensor->use_epoch), &waits);
	return status;
}

/* Makes [stream] wait for the restore of a tensor, or for earlier uses of its memory. */
static hr_status wait_for_restore(hr__tensor *tensor, hr_stream stream)
{
	hr__lms *lms = tensor->lms;
	int64_t waits = 0;
	uint64_t restored = hr__load_relaxed(&tensor->restore_epoch);
	if (!restored) {
		/* Another stream allocated its memory, and perhaps never used it: this stream must wait for what that stream waits for. */
		uint64_t allocated = hr__load_relaxed(&tensor->alloc_stream) & ~hr__stream_bit(stream);
		return allocated ? hr__device_order(lms->device, stream, allocated, hr__load_relaxed(&tensor->alloc_epoch), &waits) : HR_OK;
	}
	if (stream == lms->in_stream) return HR_OK;
	if (hr__load_relaxed(&tensor->just_restored) && hr__exchange_acquire(&tensor->just_restored, 0))
		hr__stall_note(lms, stream, restored + 1);
	return hr__device_order(lms->device, stream, hr__stream_bit(lms->in_stream), restored, &waits);
}

/* Pins entry [at] of a call. */
static hr_status pin_one(hr__tensor *tensor, const hr_pin *pins, size_t at, hr_stream stream)
{
	hr_access access = pins[at].access;
	uint8_t recipes = access == HR_READ ? 0 : hr__load_relaxed(&tensor->recipe_use);
	hr_status status = HR_UNLIKELY(recipes & HR__RECIPE_FEEDS) ? hr__recipe_end_dependents(tensor, pins[at].tensor, stream) : HR_OK;
	if (!status) status = pin_tensor(tensor, pins[at].tensor, access, stream);
	if (status) return status;
	hr__lms *lms = tensor->lms;
	status = HR_UNLIKELY(stream == HR_STREAM_HOST) ? wait_on_host(tensor, pins[at].tensor, access)
	                                               : wait_for_restore(tensor, stream);
	if (!status && access != HR_READ) {
		if (HR_UNLIKELY(hr__load_relaxed(&tensor->has_copy))) status = hr__move_invalidate_copy(tensor, stream);
		hr__store_relaxed(&tensor->written, 1);
	} else if (!status && HR_UNLIKELY(hr__load_relaxed(&tensor->unwritten)) && !writes_before(pins, at)) {
		status = fail_unwritten(tensor);
	}
	if (!status && HR_UNLIKELY(recipes)) status = hr__recipe_written(tensor, stream);
	if (status) {
		undo_pin(tensor);
		return status;
	}
	if (HR_UNLIKELY(hr__load_relaxed(&tensor->evict_first))) hr__store_relaxed(&tensor->evict_first, 0);
	if (HR_UNLIKELY(hr__load_relaxed(&tensor->prefetched)) && hr__exchange_acquire(&tensor->prefetched, 0))
		hr__lms_count(&lms->stats.num_prefetch_hits, 1);
	return HR_OK;
}

/* ---- calls ---- */

static hr_status check_call(const hr_pin *pins, size_t count, hr_stream stream, bool pinning, hr__lms **lms)
{
	hr_status status = HR_OK;
	if (!pins || !count) return hr__fail(HR_INVALID_ARGUMENT, "the call names no tensors");
	for (size_t i = 0; i < count; i++) {
		const hr__tensor *tensor = hr__tensor_of(pins[i].tensor, &status);
		if (!tensor) return status;
		if (pinning && (pins[i].access < HR_READ || pins[i].access > HR_OVERWRITE))
			return hr__fail(HR_INVALID_ARGUMENT, "access is %d, which is not HR_READ, HR_WRITE or HR_OVERWRITE",
			                (int)pins[i].access);
		if (i && tensor->lms != *lms) return hr__fail(HR_INVALID_ARGUMENT, "one call names tensors of several allocators");
		*lms = tensor->lms;
	}
	if (!hr__stream_is_everywhere(stream) && !hr__device_has_stream((*lms)->device, stream))
		return hr__fail(HR_INVALID_ARGUMENT, "%s has no stream %u", hr__device_name((*lms)->device), stream);
	return HR_OK;
}

/* Pins all tensors or none. */
static hr_status pin_all_or_none(hr__lms *lms, const hr_pin *pins, size_t count, hr_stream stream)
{
	hr_status status = HR_OK;
	size_t done = 0;
	for (; done < count; done++) {
		hr__tensor *tensor = hr__tensor_of(pins[done].tensor, &status);
		if (!tensor) break;
		status = pin_one(tensor, pins, done, stream);
		if (status) break;
	}
	if (!status) return HR_OK;
	bool changed = done > 0;
	while (done--) {
		hr_status ignored;
		undo_pin(hr__tensor_of(pins[done].tensor, &ignored));
	}
	if (changed) hr__lms_note_change(lms);
	return status;
}

hr_status hr__pin_all_or_none(hr__lms *lms, const hr_pin *pins, size_t count, hr_stream stream)
{
	return pin_all_or_none(lms, pins, count, stream);
}

/* There was no room for the whole call. A tensor that is recomputed while others are pinned needs more room than one that is recomputed
 * before. If that is still too much, all that can be evicted is evicted, which joins free memory. So is it if nothing is recomputed but
 * nothing else is pinned: then the tensors of the call itself left the free memory in pieces. */
static hr_status pin_after_making_room(hr__lms *lms, const hr_pin *pins, size_t count, hr_stream stream)
{
	HR_ASSERT(hr__lock_none_from(HR__RANK_LMS));
	bool any = false, outermost = !hr__recompute_is_running();
	for (size_t i = 0; i < count && !any; i++) any = hr__recompute_would_run(pins[i]);
	bool joins = outermost && (any || (lms->enabled && !hr__lms_pinned(lms) && !hr__pin_can_never_fit(lms, pins, count)));
	if (!any && !joins) return HR_OUT_OF_MEMORY;
	hr__last why = hr__last_get();
	if (outermost) hr__request_retry(true); /* only the first attempt is reported */
	hr_status status = HR_OUT_OF_MEMORY;
	for (int attempt = any ? 0 : 1; attempt < (joins ? 2 : 1) && status == HR_OUT_OF_MEMORY; attempt++) {
		uint64_t ignored;
		if (attempt) (void)hr__reclaim_inactive(lms, HR_NAME_NONE, &ignored); /* what it could evict helps, too */
		status = hr__recompute_apart(pins, count, stream);
		if (!status) status = pin_all_or_none(lms, pins, count, stream);
	}
	hr__recompute_apart_end(pins, count);
	if (outermost) hr__request_retry(false);
	if (status == HR_OUT_OF_MEMORY) hr__last_set(&why);
	return status;
}

hr_status hr__pin_all_for_recipe(hr__lms *lms, const hr_pin *pins, size_t count, hr_stream stream)
{
	hr_status status = pin_all_or_none(lms, pins, count, stream);
	return status == HR_OUT_OF_MEMORY ? pin_after_making_room(lms, pins, count, stream) : status;
}

/* Whether no other thread can be waiting for this one. */
static bool is_alone(void)
{
	return !hr__pin_count_of_thread() && !hr__recompute_is_running();
}

static hr_status pin_checked(hr__lms *lms, const hr_pin *pins, size_t count, hr_stream stream)
{
	uint64_t now = hr__fetch_add_relaxed(&lms->clock, 1) + 1;
	bool learned = lms->learned && !hr__recompute_is_running(); /* pins of a recipe are not the program's */
	if (learned) hr__learned_before_pin(lms, pins, count, stream);
	if (HR_UNLIKELY(hr__load_relaxed(&lms->turn)) && lms->wait_ns && is_alone()) hr__pin_yield_to_waiter(lms);
	hr_status status = pin_all_or_none(lms, pins, count, stream);
	if (HR_UNLIKELY(status == HR_OUT_OF_MEMORY)) status = pin_after_making_room(lms, pins, count, stream);
	if (HR_UNLIKELY(status == HR_OUT_OF_MEMORY)) {
		bool alone = is_alone(), never = alone && hr__pin_can_never_fit(lms, pins, count);
		if (alone && !never && lms->wait_ns) status = hr__pin_wait_for_room(lms, pins, count, stream);
		if (status == HR_OUT_OF_MEMORY) return hr__pin_fail_no_room(lms, pins, count, never);
	}
	if (status) return status;
	count_held(lms, (int64_t)count);
	for (size_t i = 0; i < count; i++) {
		hr__tensor *tensor = hr__tensor_of(pins[i].tensor, &status);
		if (HR_UNLIKELY(!tensor)) continue; /* another thread has unpinned and destroyed it already */
		hr__store_relaxed(&tensor->last_use, now);
		if (HR_UNLIKELY(hr__load_relaxed(&tensor->unwritten))) hr__store_relaxed(&tensor->unwritten, 0);
	}
	if (learned) hr__learned_pinned(lms, pins, count, stream);
	return HR_OK;
}

hr_status hr_tensor_pin_all(const hr_pin *pins, size_t count, hr_stream stream)
{
	hr__lms *lms = NULL;
	hr_status status = check_call(pins, count, stream, true, &lms);
	if (status) return status;
	hr__cache *counting = begin_counting(lms);
	status = pin_checked(lms, pins, count, stream);
	end_counting(lms, counting);
	return status;
}

hr_status hr_tensor_pin(hr_tensor tensor, hr_access access, hr_stream stream)
{
	hr_pin pin = { tensor, access };
	return hr_tensor_pin_all(&pin, 1, stream);
}

static hr_status fail_not_pinned(const hr__tensor *tensor)
{
	char name[HR__TENSOR_NAME];
	return hr__fail(HR_INVALID_ARGUMENT, "%s is not pinned", hr__tensor_name(tensor, name, sizeof name));
}

/* Checks that the tensor has as many pins as entries up to [at] name it. [named] is NULL for a short list. */
static inline hr_status check_entry(const hr_pin *pins, size_t count, size_t at, hr__pin_names *named)
{
	hr_status status = HR_OK;
	const hr__tensor *tensor = hr__tensor_of(pins[at].tensor, &status);
	if (!tensor) return status;
	uint32_t needed = 1, there = hr__word_pins(hr__load_relaxed(&tensor->word));
	if (there < count && (!named || hr__pin_name(named, pins[at].tensor)))
		for (size_t i = 0; i < at; i++) needed += pins[i].tensor.id == pins[at].tensor.id;
	return there < needed ? fail_not_pinned(tensor) : HR_OK;
}

static __attribute__((noinline)) hr_status check_long(const hr_pin *pins, size_t count)
{
	hr__pin_names named = { { 0 } };
	hr_status status = HR_OK;
	for (size_t i = 0; i < count && !status; i++) status = check_entry(pins, count, i, &named);
	return status;
}

/* Checks that every tensor has as many pins as entries name it. */
static hr_status check_pinned(const hr_pin *pins, size_t count)
{
	hr_status status = HR_OK;
	if (count > PAIRWISE_MAX) return check_long(pins, count);
	for (size_t i = 0; i < count && !status; i++) status = check_entry(pins, count, i, NULL);
	return status;
}

/* verify: checks a tensor after its last unpin, before another thread can use it. */
static hr_status verify_unpinned(hr__tensor *tensor, hr_tensor handle, hr_stream stream)
{
	HR_ASSERT(tensor->lms->verify);
	/* If it is pinned again, it is checked at the next unpin; if it is being evicted, then. */
	if (!hr__state_begin_eviction(tensor, handle.id)) return HR_OK;
	hr__lms *lms = tensor->lms;
	hr__lms_begin_move(lms);
	hr_status status = HR_OK;
	if (stream == HR_STREAM_HOST) { /* reading it needs a stream */
		int64_t waits = 0;
		stream = lms->out_stream;
		status = hr__device_order(lms->device, stream, hr__load_relaxed(&tensor->use_streams), hr__load_relaxed(&tensor->use_epoch),
		                          &waits);
	}
	if (!status) status = hr__move_verify(tensor, stream);
	hr__state_end_eviction(tensor, HR__PLACE_RESIDENT);
	hr__lms_end_move(lms);
	return status;
}

/* The streams that use it once [stream] is done. [stream] has waited for the restore, so waiting for [stream] covers the in
 * stream. */
static uint64_t users_after(const hr__tensor *tensor, uint64_t streams, hr_stream stream)
{
	uint64_t restored = UINT64_C(1) << tensor->lms->in_stream;
	if (stream != tensor->lms->in_stream && HR_LIKELY(!hr__load_relaxed(&tensor->in_stream_unordered))) streams &= ~restored;
	return streams | hr__stream_bit(stream);
}

static bool unpin_one(hr__tensor *tensor, hr_stream stream)
{
	hr__lms *lms = tensor->lms;
	uint64_t streams = hr__load_acquire(&tensor->use_streams), next = users_after(tensor, streams, stream);
	while (next != streams && !hr__cas_acq_rel(&tensor->use_streams, &streams, next)) next = users_after(tensor, streams, stream);
	hr__lms_raise_u64(&tensor->use_epoch, hr__device_epoch(lms->device));
	return release_pin(tensor, HR__PLACE_RESIDENT);
}

/* Reports each tensor that has no pins left, once. */
static void call_unused(hr__lms *lms, const hr_pin *pins, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		hr_status ignored;
		const hr__tensor *tensor = hr__tensor_of(pins[i].tensor, &ignored);
		bool again = !tensor || hr__load_relaxed(&tensor->word) & HR__WORD_PINS;
		for (size_t k = i + 1; k < count && !again; k++) again = pins[k].tensor.id == pins[i].tensor.id;
		if (!again) lms->policy.unused(lms->policy_user, pins[i].tensor, hr__load_relaxed(&lms->clock));
	}
}

static hr_status unpin_checked(hr__lms *lms, const hr_pin *pins, size_t count, hr_stream stream)
{
	bool became_inactive = false;
	hr_status status, found = HR_OK;
	for (size_t i = 0; i < count; i++) {
		hr__tensor *tensor = hr__tensor_of(pins[i].tensor, &status);
		if (!tensor || !hr__word_pins(hr__load_relaxed(&tensor->word))) { /* another thread has unpinned it since the check */
			if (!found) found = tensor ? fail_not_pinned(tensor) : status;
			continue;
		}
		bool last = unpin_one(tensor, stream);
		became_inactive |= last;
		if (!last || !lms->verify) continue;
		status = verify_unpinned(tensor, pins[i].tensor, stream);
		if (!found) found = status;
	}
	count_held(lms, -(int64_t)count);
	if (became_inactive) hr__lms_note_change(lms);
	if (lms->learned && !hr__recompute_is_running()) hr__learned_unpinned(lms, pins, count, stream);
	if (became_inactive && lms->policy.unused) call_unused(lms, pins, count);
	return found;
}

hr_status hr__pin_release_all(const hr_pin *pins, size_t count, hr_stream stream)
{
	hr_status found = HR_OK, status;
	hr__lms *lms = hr__tensor_of(pins->tensor, &status)->lms;
	hr__cache *counting = begin_counting(lms);
	for (size_t i = 0; i < count; i++) {
		hr__tensor *tensor = hr__tensor_of(pins[i].tensor, &status);
		HR_ASSERT(tensor && hr__word_pins(hr__load_relaxed(&tensor->word)));
		if (!unpin_one(tensor, stream) || !lms->verify) continue;
		status = verify_unpinned(tensor, pins[i].tensor, stream);
		if (!found) found = status;
	}
	end_counting(lms, counting);
	hr__lms_note_change(lms);
	return found;
}

hr_status hr_tensor_unpin_all(const hr_pin *pins, size_t count, hr_stream stream)
{
	hr__lms *lms = NULL;
	hr_status status = check_call(pins, count, stream, false, &lms);
	if (!status) status = check_pinned(pins, count);
	if (status) return status;
	hr__cache *counting = begin_counting(lms);
	status = unpin_checked(lms, pins, count, stream);
	end_counting(lms, counting);
	return status;
}

hr_status hr_tensor_unpin(hr_tensor tensor, hr_stream stream)
{
	hr_pin pin = { tensor, HR_READ };
	return hr_tensor_unpin_all(&pin, 1, stream);
}

hr_status hr_tensor_get_address(hr_tensor handle, void **out)
{
	hr_status status = HR_OK;
	hr__tensor *tensor = hr__tensor_of(handle, &status);
	if (!tensor) return status;
	if (!out) return hr__fail(HR_INVALID_ARGUMENT, "hr_tensor_get_address: out is NULL");
	for (unsigned attempt = 0; !status; attempt++) {
		uint64_t word = hr__load_acquire(&tensor->word);
		if (word >> 32 != handle.id >> 32) return hr__tensor_fail_closed(handle);
		if (HR_UNLIKELY(hr__word_place(word) == HR__PLACE_RECOMPUTING)) return hr__recompute_get_address(tensor, out);
		if (!(word & HR__WORD_PINS)) return fail_not_pinned(tensor);
		if (hr__word_place(word) != HR__PLACE_RESIDENT) hr__state_wait(attempt); /* being moved on the device */
		else if (HR_UNLIKELY(word & HR__WORD_DISPLACED)) status = hr__move_reload(tensor, word);
		else if (hr__state_take_address(tensor, &word)) break;
	}
	if (!status) *out = (void *)(uintptr_t)tensor->address;
	return status;
}
