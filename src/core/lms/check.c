/* check.c - checks at any time that the tensors of a context and its counters agree.
 *
 * The check claims every tensor, as a move does, with the context's lock held. Then their fields do not change, and threads that
 * would pin, unpin or move one wait. A tensor claimed by another thread cannot be claimed, so all are released and the check starts
 * again.
 *
 * Byte counters change together with a claim, except those of pins: a pin is counted after its tensor's word changes, and an unpin
 * before. So a difference there is an error only if no thread is inside hr_tensor_pin_all or hr_tensor_unpin_all. Each thread has a flag for that
 * (hr__cache.pinning), which nothing else reads. */
#include "core/lms/lms.h"
#include "core/memory/bfc/tensor_block.h"

#define ATTEMPTS 256u
#define WAIT_GROWTH_MAX 16u /* waits grow up to this attempt */

/* The place that the check claims from, and the one that marks its claim. */
static const struct {
	enum hr__place from, to;
} claims[] = { { HR__PLACE_RESIDENT, HR__PLACE_MOVING },
	           { HR__PLACE_EVICTED, HR__PLACE_RESTORING },
	           { HR__PLACE_NEW, HR__PLACE_EVICTING } };

#define CLAIMS (sizeof claims / sizeof *claims)

static bool claim(hr__tensor *tensor)
{
	uint64_t word = hr__load_relaxed(&tensor->word);
	for (size_t i = 0; i < CLAIMS;) {
		if (hr__word_place(word) != claims[i].from) i++;
		else if (hr__cas_acq_rel(&tensor->word, &word, hr__word_with_place(word, claims[i].to))) return true;
		else i = 0; /* the word has changed */
	}
	return false;
}

/* The place that a tensor was claimed from. */
static enum hr__place claimed_from(uint64_t word)
{
	size_t i = 0;
	while (i + 1 < CLAIMS && claims[i].to != hr__word_place(word)) i++;
	return claims[i].from;
}

static void release_claims(hr__lms *lms, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		uint64_t word = hr__load_relaxed(&lms->members[i]->word);
		hr__store_release(&lms->members[i]->word, hr__word_with_place(word, claimed_from(word)));
	}
}

/* Claims all tensors. Returns 0, the number of an invariant if one does not belong in the list, or HR__LMS_CHECK_BUSY if one is claimed
 * already. */
static int claim_all(hr__lms *lms)
{
	for (uint32_t i = 0; i < lms->member_count; i++) {
		hr__tensor *tensor = lms->members[i];
		enum hr__place place = hr__word_place(hr__load_acquire(&tensor->word));
		bool foreign = place == HR__PLACE_UNUSED || tensor->member != i || tensor->lms != lms ||
		               (place == HR__PLACE_RESIDENT && i >= lms->resident_count);
		if (!foreign && claim(tensor)) continue;
		release_claims(lms, i);
		return foreign ? 4 : HR__LMS_CHECK_BUSY;
	}
	return 0;
}

/* 0, or the number of the violated invariant at the top of tensor.c. The tensor is claimed. */
static int check_tensor(const hr__tensor *tensor)
{
	uint64_t word = hr__load_relaxed(&tensor->word);
	enum hr__place place = claimed_from(word);
	bool home = place == HR__PLACE_RESIDENT;
	if (word & HR__WORD_PINS && !home) return 1;
	if (word & HR__WORD_ADDRESSED && (!home || !(word & HR__WORD_PINS))) return 6;
	if (word & HR__WORD_DISPLACED && (!home || !tensor->copy.bytes || word & HR__WORD_ADDRESSED)) return 8;
	if (home && (!tensor->address || hr__block_bytes(tensor->lms->allocator, tensor->address, NULL) != tensor->device_bytes))
		return 2;
	if (!home && tensor->address) return 2;
	if (home && hr__tensor_owns_pages(tensor) && (!tensor->span || hr__span_address(tensor->span) != tensor->address)) return 7;
	if (place == HR__PLACE_EVICTED && tensor->fixed && !tensor->span) return 7;
	return (place == HR__PLACE_EVICTED && !tensor->copy.bytes) || (place == HR__PLACE_NEW && tensor->copy.bytes) ? 3 : 0;
}

/* 9, or 0. All tensors are claimed. */
static int check_queues(const hr__lms *lms)
{
	for (int id = 0; id < HR__EVICT_QUEUES; id++)
		if (!hr__evict_queue_is_sound(lms, (enum hr__evict_queue_id)id)) return 9;
	for (uint32_t i = 0; i < lms->member_count; i++) {
		const hr__tensor *tensor = lms->members[i];
		enum hr__place place = claimed_from(hr__load_relaxed(&tensor->word));
		bool by_use = tensor->queued[HR__EVICT_BY_USE] != HR__EVICT_UNQUEUED,
			 leaving = tensor->queued[HR__EVICT_PLANNED] != HR__EVICT_UNQUEUED;
		bool departed = tensor->queued[HR__EVICT_RECENT] != HR__EVICT_UNQUEUED;
		if (by_use != (lms->enabled && place == HR__PLACE_RESIDENT) || (leaving && !by_use) ||
		    (departed && place != HR__PLACE_EVICTED))
			return 9;
		if (hr__load_relaxed(&tensor->evict_first) && !leaving) return 9;
		if (place == HR__PLACE_EVICTED && departed != (i < lms->resident_count)) return 9;
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

/* All tensors are claimed. */
static int check_claimed(hr__lms *lms)
{
	uint64_t home = 0, out = 0, pinned = 0;
	for (uint32_t i = 0; i < lms->member_count; i++) {
		const hr__tensor *tensor = lms->members[i];
		uint64_t word = hr__load_relaxed(&tensor->word);
		int wrong = check_tensor(tensor);
		if (wrong) return wrong;
		if (claimed_from(word) == HR__PLACE_EVICTED) out += tensor->device_bytes;
		if (claimed_from(word) != HR__PLACE_RESIDENT) continue;
		home += tensor->device_bytes;
		if (word & HR__WORD_PINS) pinned += tensor->device_bytes;
	}
	int broken = check_queues(lms);
	if (broken) return broken;
	if ((int64_t)home != hr__load_acquire(&lms->resident)) return 5;
	if (lms->enabled && (int64_t)(home + out) != hr__load_acquire(&lms->live)) return 5;
	if ((int64_t)pinned == hr__lms_pinned(lms)) return 0;
	if (is_pinning(lms)) return HR__LMS_CHECK_BUSY;
	return (int64_t)pinned == hr__lms_pinned(lms) ? 0 : 5;
}

int hr__lms_check(hr__lms *lms)
{
	int broken = HR__LMS_CHECK_BUSY;
	for (unsigned attempt = 0; attempt < ATTEMPTS && broken == HR__LMS_CHECK_BUSY; attempt++) {
		if (attempt)
			hr__tensor_wait(attempt < WAIT_GROWTH_MAX ? attempt
			                                          : WAIT_GROWTH_MAX); /* without the lock, which other threads may need to
		                                                                      * proceed */
		hr__lock_take(&lms->lock);
		broken = claim_all(lms);
		if (!broken) {
			broken = check_claimed(lms);
			release_claims(lms, lms->member_count);
		}
		hr__lock_release(&lms->lock);
	}
	return broken;
}
