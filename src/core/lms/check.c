/* check.c - checks at any time that the tensors of a context and its counters agree.
 *
 * The check freezes every tensor (state.h), with the context's lock held. Then their fields do not change, and threads that would
 * pin, unpin or move one wait. A tensor that another thread has exclusive access to cannot be frozen, so all are thawed and the
 * check starts again.
 *
 * Byte counters change together with a claim, except those of pins: a pin is counted after its tensor's word changes, and an unpin
 * before. So a difference there is an error only if no thread is inside hr_tensor_pin_all or hr_tensor_unpin_all. Each thread has a
 * flag for that (hr__cache.pinning), which nothing else reads. */
#include "core/base/status.h"
#include "core/lms/context.h"
#include "core/lms/recipe/recipe.h"
#include "core/memory/bfc/tensor_block.h"

#define ATTEMPTS 256u
#define WAIT_GROWTH_MAX 16u /* waits grow up to this attempt */

static void thaw(hr__lms *lms, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) hr__state_thaw(lms->members[i]);
}

/* Freezes all tensors. Returns 0, the number of an invariant if one does not belong in the list, or HR__LMS_CHECK_BUSY if a thread
 * has exclusive access to one. */
static int freeze_all(hr__lms *lms)
{
	HR_ASSERT(hr__lock_is_mine(&lms->lock));
	for (uint32_t i = 0; i < lms->member_count; i++) {
		hr__tensor *tensor = lms->members[i];
		enum hr__place place = hr__word_place(hr__load_acquire(&tensor->word));
		bool foreign = place == HR__PLACE_UNUSED || tensor->member != i || tensor->lms != lms ||
		               (place == HR__PLACE_RESIDENT && i >= lms->resident_count);
		if (!foreign && hr__state_freeze(tensor)) continue;
		thaw(lms, i);
		return foreign ? 4 : HR__LMS_CHECK_BUSY;
	}
	return 0;
}

/* 0, or the number of the violated invariant at the top of state.h. The tensor is frozen. */
static int check_tensor(const hr__tensor *tensor)
{
	uint64_t word = hr__load_relaxed(&tensor->word);
	enum hr__place place = hr__state_frozen_place(word);
	bool resident = place == HR__PLACE_RESIDENT;
	if (word & HR__WORD_PINS && !resident) return 1;
	if (word & HR__WORD_ADDRESSED && (!resident || !(word & HR__WORD_PINS))) return 6;
	if (word & HR__WORD_DISPLACED && (!resident || !tensor->copy.bytes || word & HR__WORD_ADDRESSED)) return 8;
	if (resident && (!tensor->address || hr__block_bytes(tensor->lms->allocator, tensor->address, NULL) != tensor->device_bytes))
		return 2;
	if (!resident && tensor->address) return 2;
	if (resident && hr__tensor_owns_pages(tensor) && (!tensor->span || hr__span_address(tensor->span) != tensor->address)) return 7;
	if (place == HR__PLACE_EVICTED && tensor->fixed && !tensor->span) return 7;
	bool empty = place == HR__PLACE_NEW || place == HR__PLACE_DROPPED;
	if ((place == HR__PLACE_EVICTED && !tensor->copy.bytes) || (empty && tensor->copy.bytes)) return 3;
	return hr__recipe_check(tensor);
}

/* 9, or 0. All tensors are frozen. */
static int check_queues(const hr__lms *lms)
{
	HR_ASSERT(hr__lock_is_mine(&lms->lock));
	for (int id = 0; id < HR__EVICT_QUEUES; id++)
		if (!hr__evict_queue_is_sound(lms, (enum hr__evict_queue_id)id)) return 9;
	for (uint32_t i = 0; i < lms->member_count; i++) {
		const hr__tensor *tensor = lms->members[i];
		enum hr__place place = hr__state_frozen_place(hr__load_relaxed(&tensor->word));
		bool by_use = tensor->queued[HR__EVICT_BY_USE] != HR__EVICT_UNQUEUED,
			 planned = tensor->queued[HR__EVICT_PLANNED] != HR__EVICT_UNQUEUED;
		bool recent = tensor->queued[HR__EVICT_RECENT] != HR__EVICT_UNQUEUED;
		bool out = place == HR__PLACE_EVICTED || place == HR__PLACE_DROPPED;
		if (by_use != (lms->enabled && place == HR__PLACE_RESIDENT) || (planned && !by_use) || (recent && !out)) return 9;
		if (hr__load_relaxed(&tensor->evict_first) && !planned) return 9;
		if (out && recent != (i < lms->resident_count)) return 9;
	}
	return lms->queue_mismatches ? 9 : 0;
}

/* Whether a thread is inside a call that counts pins. If it is not, everything it did before is visible. */
static bool is_pinning(hr__lms *lms)
{
	hr__allocator *allocator = lms->allocator;
	bool found = false;
	hr__heavy_barrier();
	hr__lock_take(&allocator->caches_lock);
	for (const hr__cache *cache = allocator->caches; cache && !found; cache = cache->next)
		found = hr__load_acquire(&cache->pinning) != 0;
	hr__lock_release(&allocator->caches_lock);
	return found || hr__load_acquire(&lms->pinning) != 0;
}

/* All tensors are frozen. */
static int check_frozen(hr__lms *lms)
{
	HR_ASSERT(hr__lock_is_mine(&lms->lock));
	uint64_t resident = 0, out = 0, pinned = 0, ghosts = 0, dropped = 0;
	for (uint32_t i = 0; i < lms->member_count; i++) {
		const hr__tensor *tensor = lms->members[i];
		uint64_t word = hr__load_relaxed(&tensor->word);
		int wrong = check_tensor(tensor);
		if (wrong) return wrong;
		enum hr__place place = hr__state_frozen_place(word);
		bool ghost = hr__load_relaxed(&tensor->ghost);
		if (place == HR__PLACE_DROPPED && !ghost) dropped += tensor->device_bytes;
		if ((place == HR__PLACE_EVICTED || place == HR__PLACE_DROPPED) && !ghost) out += tensor->device_bytes;
		if (place != HR__PLACE_RESIDENT) continue;
		resident += tensor->device_bytes;
		if (ghost) ghosts += tensor->device_bytes;
		if (word & HR__WORD_PINS) pinned += tensor->device_bytes;
	}
	int broken = check_queues(lms);
	if (broken) return broken;
	if ((int64_t)resident != hr__load_acquire(&lms->resident)) return 5;
	if (lms->enabled && (int64_t)(resident - ghosts + out) != hr__load_acquire(&lms->live)) return 5;
	if ((int64_t)dropped != hr__load_acquire(&lms->stats.bytes_dropped_now)) return 5;
	if ((int64_t)pinned == hr__lms_pinned(lms)) return 0;
	if (is_pinning(lms)) return HR__LMS_CHECK_BUSY;
	return (int64_t)pinned == hr__lms_pinned(lms) ? 0 : 5;
}

int hr__lms_check(hr__lms *lms)
{
	int broken = HR__LMS_CHECK_BUSY;
	for (unsigned attempt = 0; attempt < ATTEMPTS && broken == HR__LMS_CHECK_BUSY; attempt++) {
		if (attempt)
			hr__state_wait(attempt < WAIT_GROWTH_MAX ? attempt
			                                         : WAIT_GROWTH_MAX); /* without the lock, which other threads may need to
		                                                                      * proceed */
		hr__lock_take(&lms->lock);
		broken = freeze_all(lms);
		if (!broken) {
			broken = check_frozen(lms);
			thaw(lms, lms->member_count);
		}
		hr__lock_release(&lms->lock);
	}
	return broken;
}

hr_status hr_lms_check(hr_allocator handle)
{
	hr__lms *lms;
	hr_status status = hr__lms_find(handle, &lms);
	if (status) return status;
	int broken = hr__lms_check(lms);
	if (broken == HR__LMS_CHECK_BUSY)
		return hr__fail(HR_NOT_READY, "tensors of %s were pinned or moved at every attempt to check them; try again",
		                lms->allocator->name);
	return broken
	           ? hr__fail(HR_CORRUPT, "invariant %d of tensors is violated on %s; please report it", broken, lms->allocator->name)
	           : HR_OK;
}
