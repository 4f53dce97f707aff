/* reclaim.c - chooses the tensors to evict for a request that does not fit.
 *
 * Methods are tried in this order, and the statistics count the one that was enough:
 *
 *   single    one tensor whose memory, with the free memory next to it, holds the request; or, if pages can be stitched, has the
 *             pages that are missing
 *   multi     several neighbours, with the free memory between them: the cheapest such row. If pages can be stitched, as many as
 *             have the pages that are missing, wherever they are
 *   full      everything inactive
 *
 * If the host is full, only tensors with recipes are considered (recipe/drop.c). If that is not enough, or eviction fails, tensors are moved on the device (defrag.c), if that is allowed.
 *
 * A request may be for whole pages at any address, for a fixed tensor (fixed.c). Evicting a fixed tensor frees its pages; evicting
 * another tensor frees the whole pages that it forms with the free memory next to it. Rows do not matter then: the missing pages
 * come from one tensor, or from several in order of preference. Pages of fixed tensors serve other requests too, because the
 * allocator can grow by them.
 *
 * ORDER OF EVICTION. First the tensors that the policy evicts and has copied already, oldest copy first: their memory is free when
 * the copy is done, and the oldest is done first. Those that it drops are among them, in the order in which their memory is free. Then tensors of low priority before those of high priority, and among equals
 *
 *   lru       the least recently used
 *   learned   the one with the latest next use, as far as that is known; else as lru. For a tensor that is evicted alone, fewer
 *             bytes are also better, since the plan did not count on moving them
 *   a user's  the one with the highest score
 *
 * The first in that order is found with the queues (evict_queue.h). Scanning all tensors for each eviction would take quadratic
 * time. A scan is still needed if the first tensors of a queue make no room, and for orders without a queue: that of a user's
 * policy, and that of the learned policy for unplanned evictions.
 *
 * Tensors are chosen and claimed under the context's lock. Then the lock is released, and they are evicted. No other thread can use
 * them meanwhile; requests of other threads choose among the rest. */
#include <math.h>
#include <stdio.h>

#include "core/base/sort.h"
#include "core/base/status.h"
#include "core/base/text/text.h"
#include "core/lms/recipe/recipe.h"
#include "core/memory/bfc/tensor_block.h"

#define ROUNDS_MAX 256u /* rounds of a request that always loses to other threads */
#define MISSES_MAX 64u  /* tensors of a queue that are of no use, before all are scanned */

bool hr__reclaim_compares;

static _Thread_local enum hr__reclaim_mode allowed;
static _Thread_local bool blocked;
static _Thread_local bool only_droppable; /* the host is full: only tensors with recipes are of use */

bool hr__reclaim_was_blocked(void)
{
	return blocked;
}

enum hr__reclaim_mode hr__reclaim_mode(void)
{
	return allowed;
}

enum hr__reclaim_mode hr__reclaim_set_mode(enum hr__reclaim_mode mode)
{
	enum hr__reclaim_mode before = allowed;
	allowed = mode;
	return before;
}

struct victims {
	hr__tensor *tensors[HR__RECLAIM_MAX];
	uint32_t count;
	uint64_t bytes;
};

/* ---- preference ---- */

/* The smaller rank is evicted first. */
struct rank {
	bool unplanned; /* the policy does not evict it */
	int64_t priority;
	double score;
	uint32_t member;
};

static bool ranks_before(const struct rank *a, const struct rank *b)
{
	if (a->unplanned != b->unplanned) return b->unplanned;
	if (a->unplanned && a->priority != b->priority) return a->priority < b->priority;
	return a->score != b->score ? a->score < b->score : a->member < b->member;
}

static double score_by_user(const hr__lms *lms, const hr__tensor *tensor, uint64_t word)
{
	hr_lms_candidate candidate = { .struct_size = sizeof candidate,
		                           .tensor = hr__tensor_handle(tensor, word),
		                           .bytes = tensor->bytes,
		                           .clean = hr__load_relaxed(&tensor->has_copy),
		                           .priority = (int32_t)hr__load_relaxed(&tensor->priority),
		                           .last_use = hr__load_relaxed(&tensor->last_use),
		                           .now = hr__load_relaxed(&lms->clock),
		                           .op = tensor->op,
		                           .scope = tensor->scope,
		                           .tag = tensor->tag };
	double score = lms->policy.score(lms->policy_user, &candidate);
	return isnan(score) ? 0 : -score;
}

/* [alone]: no other tensor is evicted with it. */
static struct rank rank_of(hr__lms *lms, const hr__tensor *tensor, uint64_t word, bool alone)
{
	HR_ASSERT(hr__lock_is_mine(&lms->lock));
	bool leaves = hr__load_relaxed(&tensor->evict_first);
	struct rank rank = { .unplanned = !leaves, .priority = hr__load_relaxed(&tensor->priority), .member = tensor->member };
	if (leaves) {
		rank.score = (double)hr__evict_planned_number(tensor);
	} else if (lms->policy.score) {
		rank.score = score_by_user(lms, tensor, word);
	} else {
		double worth = lms->learned ? hr__learned_eviction_score(lms, tensor, alone) : 0;
		rank.score = worth > 0 ? -worth : (double)hr__load_relaxed(&tensor->last_use);
	}
	return rank;
}

static bool is_evictable(const hr__tensor *tensor, uint64_t word)
{
	if (hr__word_place(word) != HR__PLACE_RESIDENT || word & HR__WORD_PINS || hr__load_relaxed(&tensor->never_evict)) return false;
	if (only_droppable) return hr__drop_is_possible(tensor);
	return allowed == HR__RECLAIM_ANY || hr__load_relaxed(&tensor->evict_first);
}

/* ---- choosing ---- */

static bool address_before(const void *a, const void *b, const void *context)
{
	(void)context;
	return (*(hr__tensor *const *)a)->address < (*(hr__tensor *const *)b)->address;
}

static bool member_before(const void *a, const void *b, const void *context)
{
	(void)context;
	return (*(hr__tensor *const *)a)->member < (*(hr__tensor *const *)b)->member;
}

void hr__reclaim_sort_by_address(hr__tensor **tensors, size_t count)
{
	hr__sort(tensors, count, sizeof *tensors, address_before, NULL);
}

/* Moves evicted and dropped members behind the resident ones, so that later scans skip them. A RESTORING tensor stays where it is: the thread
 * that claimed it puts it in its place, under the lock. */
static void list_recent_as_evicted(hr__lms *lms)
{
	HR_ASSERT(hr__lock_is_mine(&lms->lock));
	const hr__evict_queue *departed = &lms->queues[HR__EVICT_RECENT];
	uint32_t count = 0;
	for (uint32_t i = 0; i < departed->count; i++) {
		hr__tensor *tensor = departed->items[i].tensor;
		enum hr__place place = hr__word_place(hr__load_acquire(&tensor->word));
		if (place == HR__PLACE_EVICTED || place == HR__PLACE_DROPPED) lms->order[count++] = tensor;
	}
	for (uint32_t i = 0; i < count; i++) hr__evict_queue_remove(lms, HR__EVICT_RECENT, lms->order[i]);
	hr__sort(lms->order, count, sizeof *lms->order, member_before, NULL);
	/* The last of the resident members takes the index of each; if that one is evicted too, the one before it. */
	for (uint32_t i = 0; i < count; i++) {
		uint32_t at = lms->order[i]->member;
		hr__lms_list_as_evicted(lms, lms->order[i]);
		while (count > i + 1 && lms->order[count - 1]->member == at) hr__lms_list_as_evicted(lms, lms->order[--count]);
	}
}

/* Number of candidates. They include all tensors that may be evicted. */
static uint32_t candidate_count(const hr__lms *lms)
{
	return allowed == HR__RECLAIM_ANY ? lms->resident_count : lms->queues[HR__EVICT_PLANNED].count;
}

static hr__tensor *candidate(hr__lms *lms, uint32_t i)
{
	HR_ASSERT(hr__lock_is_mine(&lms->lock));
	HR_ASSERT(i < candidate_count(lms));
	lms->tensors_examined++;
	return allowed == HR__RECLAIM_ANY ? lms->members[i] : lms->queues[HR__EVICT_PLANNED].items[i].tensor;
}

/* Tensors that may be evicted, in order of preference, as far as the queues have it. */
struct preference {
	hr__lms *lms;
	hr__evict_walk walk;
	bool gave_up; /* the rest is known only by a scan of all */
};

static struct preference begin_preference(hr__lms *lms)
{
	HR_ASSERT(hr__lock_is_mine(&lms->lock));
	return (struct preference){ .lms = lms, .walk = hr__evict_walk_begin(lms, HR__EVICT_PLANNED, MISSES_MAX) };
}

static bool ranks_by_use(const hr__lms *lms)
{
	return !lms->policy.score && (!lms->learned || hr__learned_ranks_by_use(lms));
}

/* NULL = none is left, or [gave_up]. */
static hr__tensor *next_preferred(struct preference *preference)
{
	hr__lms *lms = preference->lms;
	hr__evict_walk *walk = &preference->walk;
	while (!preference->gave_up) {
		hr__tensor *tensor = hr__evict_walk_next(walk);
		bool leaves = walk->id == HR__EVICT_PLANNED;
		if (tensor && is_evictable(tensor, hr__load_acquire(&tensor->word)) && (hr__load_relaxed(&tensor->evict_first) != 0) == leaves)
			return tensor;
		if (tensor) continue;
		if (!walk->gave_up && (!leaves || allowed != HR__RECLAIM_ANY)) return NULL;
		preference->gave_up = walk->gave_up || !ranks_by_use(lms);
		if (preference->gave_up) continue;
		hr__evict_walk_end(walk);
		*walk = hr__evict_walk_begin(lms, HR__EVICT_BY_USE, walk->most);
	}
	return NULL;
}

static void end_preference(struct preference *preference)
{
	hr__evict_walk_end(&preference->walk);
}

static bool claim_victim(struct victims *victims, hr__tensor *tensor)
{
	HR_ASSERT(victims->count < HR__RECLAIM_MAX);
	if (!hr__state_begin_eviction(tensor, hr__load_relaxed(&tensor->word))) return false;
	victims->tensors[victims->count++] = tensor;
	victims->bytes += tensor->device_bytes;
	return true;
}

/* What evicting a claimed tensor gives the request: bytes in one piece, or of whole pages. */
static uint64_t room_after(hr__lms *lms, const hr__pressure *pressure, const hr__tensor *tensor)
{
	HR_ASSERT(hr__state_place(tensor) == HR__PLACE_EVICTING);
	uint64_t room = tensor->device_bytes;
	if (hr__tensor_owns_pages(tensor)) return room;
	if (pressure->pages) return hr__block_pages(lms->allocator, tensor->address, false);
	if (room < pressure->size || pressure->alignment) hr__block_bytes(lms->allocator, tensor->address, &room);
	return room;
}

/* Bytes of whole pages that are free once a claimed tensor is evicted, including those in the free memory next to it. [gain]: only
 * the additional ones. */
static uint64_t pages_after(hr__lms *lms, const hr__tensor *tensor, bool gain)
{
	HR_ASSERT(hr__state_place(tensor) == HR__PLACE_EVICTING);
	return hr__tensor_owns_pages(tensor) ? tensor->device_bytes : hr__block_pages(lms->allocator, tensor->address, gain);
}

/* Claims it if evicting it alone is enough; [missing] bytes of whole pages are enough, too. */
static bool claim_if_enough(hr__lms *lms, const hr__pressure *pressure, uint64_t missing, hr__tensor *tensor, uint64_t word)
{
	/* Claimed before its memory is examined, so that it does not move. */
	if (!hr__state_begin_eviction(tensor, word)) return false;
	if (room_after(lms, pressure, tensor) >= pressure->size + pressure->alignment) return true;
	/* Free pages next to it count twice here, so a small tensor is tried before a large one. If it was not enough, others
	 * follow. */
	if (missing != UINT64_MAX && pages_after(lms, tensor, false) >= missing) return true;
	hr__state_end_eviction(tensor, HR__PLACE_RESIDENT);
	return false;
}

/* Claims the first in order of preference that is enough alone, by a scan of all. */
static hr__tensor *find_single(hr__lms *lms, const hr__pressure *pressure, uint64_t missing)
{
	hr__tensor *best = NULL;
	struct rank best_rank = { 0 };
	for (uint32_t i = 0; i < candidate_count(lms); i++) {
		hr__tensor *tensor = candidate(lms, i);
		uint64_t word = hr__load_acquire(&tensor->word);
		if (!is_evictable(tensor, word)) continue;
		struct rank rank = rank_of(lms, tensor, word, true);
		if ((best && !ranks_before(&rank, &best_rank)) || !claim_if_enough(lms, pressure, missing, tensor, word)) continue;
		if (best) hr__state_end_eviction(best, HR__PLACE_RESIDENT);
		best = tensor;
		best_rank = rank;
	}
	return best;
}

static void compare_single(hr__lms *lms, const hr__pressure *pressure, uint64_t missing, hr__tensor *best)
{
	if (best) hr__state_end_eviction(best, HR__PLACE_RESIDENT);
	hr__tensor *other = find_single(lms, pressure, missing);
	if (other != best) lms->queue_mismatches++;
	if (other) hr__state_end_eviction(other, HR__PLACE_RESIDENT);
	if (best) hr__state_begin_eviction(best, hr__load_relaxed(&best->word));
}

static bool choose_single(hr__lms *lms, const hr__pressure *pressure, uint64_t missing, struct victims *victims)
{
	HR_ASSERT(!victims->count);
	struct preference preference = begin_preference(lms);
	hr__tensor *best;
	while ((best = next_preferred(&preference)) && !claim_if_enough(lms, pressure, missing, best, hr__load_acquire(&best->word))) {}
	end_preference(&preference);
	if (preference.gave_up) best = find_single(lms, pressure, missing);
	else if (hr__reclaim_compares) compare_single(lms, pressure, missing, best);
	if (!best) return false;
	victims->tensors[victims->count++] = best;
	victims->bytes += best->device_bytes;
	return true;
}

/* Claims the cheapest row of neighbours. A tensor costs twice its bytes, only its bytes if it has a host copy, and a sixteenth of
 * them if the policy evicts it anyway. */
static bool choose_row(hr__lms *lms, const hr__pressure *pressure, struct victims *victims)
{
	HR_ASSERT(hr__lock_is_mine(&lms->lock));
	HR_ASSERT(!victims->count);
	size_t count = 0, first = 0, chosen = 0;
	for (uint32_t i = 0; i < candidate_count(lms); i++) {
		hr__tensor *tensor = candidate(lms, i);
		uint64_t word = hr__load_acquire(&tensor->word);
		if (is_evictable(tensor, word) && !hr__tensor_owns_pages(tensor) && hr__state_begin_eviction(tensor, word))
			lms->order[count++] = tensor;
	}
	hr__reclaim_sort_by_address(lms->order, count);
	for (size_t i = 0; i < count; i++) {
		const hr__tensor *tensor = lms->order[i];
		uint64_t bytes = tensor->device_bytes;
		uint64_t cost = hr__load_relaxed(&tensor->evict_first) ? bytes / 16
		                : hr__load_relaxed(&tensor->has_copy)  ? bytes
		                                                       : 2 * bytes;
		lms->movable[i] = (hr__movable){ tensor->address, cost + 1 };
	}
	bool found = hr__blocks_window(lms->allocator, pressure->size, pressure->alignment, lms->movable, count, &first, &chosen) &&
	             chosen > 0 && chosen <= HR__RECLAIM_MAX;
	for (size_t i = 0; i < count; i++) {
		if (found && i >= first && i < first + chosen) {
			victims->tensors[victims->count++] = lms->order[i];
			victims->bytes += lms->order[i]->device_bytes;
		} else {
			hr__state_end_eviction(lms->order[i], HR__PLACE_RESIDENT);
		}
	}
	return found;
}

/* The first in order of preference that has [least] bytes or more, by a scan of all; NULL = none. */
static hr__tensor *scan_for_first(hr__lms *lms, uint64_t least)
{
	hr__tensor *best = NULL;
	struct rank best_rank = { 0 };
	for (uint32_t i = 0; i < candidate_count(lms); i++) {
		hr__tensor *tensor = candidate(lms, i);
		uint64_t word = hr__load_acquire(&tensor->word);
		if (!is_evictable(tensor, word) || tensor->device_bytes < least) continue;
		struct rank rank = rank_of(lms, tensor, word, false);
		if (best && !ranks_before(&rank, &best_rank)) continue;
		best = tensor;
		best_rank = rank;
	}
	return best;
}

/* The next in order of preference that has [least] bytes or more. */
static hr__tensor *next_candidate(struct preference *preference, uint64_t least)
{
	hr__lms *lms = preference->lms;
	hr__tensor *best;
	while ((best = next_preferred(preference)) && best->device_bytes < least) {}
	if (preference->gave_up) return scan_for_first(lms, least);
	if (hr__reclaim_compares && scan_for_first(lms, least) != best) lms->queue_mismatches++;
	if (best) preference->walk.most++; /* a useful one is no miss */
	return best;
}

/* Claims tensors of [bytes] in total, in order of preference. */
static bool choose_some(hr__lms *lms, uint64_t bytes, struct victims *victims)
{
	struct preference preference = begin_preference(lms);
	while (victims->bytes < bytes && victims->count < HR__RECLAIM_MAX) {
		hr__tensor *best = next_candidate(&preference, 0);
		if (!best) break;
		claim_victim(victims, best); /* if another thread was faster, the loop looks again */
	}
	end_preference(&preference);
	return victims->count > 0;
}

/* Claims tensors that have [missing] bytes of whole pages. False, and none is claimed, if there are not enough. */
static bool choose_pages(hr__lms *lms, uint64_t missing, struct victims *victims)
{
	struct preference preference = begin_preference(lms);
	uint64_t found = 0;
	while (found < missing && victims->count < HR__RECLAIM_MAX) {
		hr__tensor *best = next_candidate(&preference, lms->allocator->page);
		if (!best) break;
		if (claim_victim(victims, best)) found += pages_after(lms, best, true);
	}
	end_preference(&preference);
	if (found >= missing) return true;
	for (uint32_t i = 0; i < victims->count; i++) hr__state_end_eviction(victims->tensors[i], HR__PLACE_RESIDENT);
	*victims = (struct victims){ .count = 0 };
	return false;
}

static bool any_evictable(hr__lms *lms)
{
	HR_ASSERT(hr__lock_is_mine(&lms->lock));
	for (uint32_t i = 0; i < candidate_count(lms); i++) {
		const hr__tensor *tensor = candidate(lms, i);
		if (is_evictable(tensor, hr__load_acquire(&tensor->word))) return true;
	}
	return false;
}

static bool any_at(const hr__lms *lms, enum hr__place where)
{
	HR_ASSERT(hr__lock_is_mine(&lms->lock));
	for (uint32_t i = 0; i < lms->member_count; i++)
		if (hr__word_place(hr__load_acquire(&lms->members[i]->word)) == where) return true;
	return false;
}

/* The thread that has such a tensor waits for no other thread, and calls hr__lms_note_change when it is done, unless all was done
 * under the lock. */
static bool any_claimed(const hr__lms *lms)
{
	return any_at(lms, HR__PLACE_EVICTING) || any_at(lms, HR__PLACE_MOVING) || any_at(lms, HR__PLACE_DESTROYING);
}

/* Waits until lms->changes is no longer [seen]. */
static void wait_for_change(const hr__lms *lms, uint64_t seen)
{
	HR_ASSERT(hr__lock_none_from(HR__RANK_LMS));
	for (unsigned attempt = 0; hr__load_acquire(&lms->changes) == seen; attempt++) hr__state_wait(attempt < 16 ? attempt : 16);
}

/* ---- moving ---- */

/* Evicting a tensor that owns pages waits for its copy (fixed.c), so all such copies are started before the first wait. begun[i]:
 * this was done. */
static void begin_copies(struct victims *victims, bool *copied)
{
	copied[0] = false;
	if (victims->count < 2) return;
	hr__lms *lms = victims->tensors[0]->lms;
	hr__lms_begin_move(lms);
	for (uint32_t i = 0; i < victims->count; i++) {
		hr__tensor *tensor = victims->tensors[i];
		copied[i] = hr__tensor_owns_pages(tensor) && !tensor->copy.bytes && !hr__move_copy_to_host(tensor);
	}
	hr__lms_end_move(lms);
}

/* Evicts all that can be evicted. Returns the first error. */
static hr_status evict_all(struct victims *victims, hr_stream stream, uint64_t *freed)
{
	HR_ASSERT(hr__lock_none_from(HR__RANK_LMS));
	hr_status first = HR_OK;
	bool copied[HR__RECLAIM_MAX];
	begin_copies(victims, copied);
	for (uint32_t i = 0; i < victims->count; i++) {
		hr__lms *lms = victims->tensors[i]->lms;
		uint64_t bytes = victims->tensors[i]->device_bytes;
		hr_status status = hr__drop_or_evict(victims->tensors[i], stream);
		if (!status && copied[i]) hr__lms_count(&lms->stats.num_clean_evictions, -1); /* the copy was made just now */
		if (!status) *freed += bytes;
		else if (!first) first = status;
	}
	return first;
}

/* Bytes of whole pages that are missing if free pages are stitched for the request; UINT64_MAX = they cannot be. */
static uint64_t missing_pages(hr__lms *lms, const hr__pressure *pressure)
{
	bool can = !pressure->pages && pressure->alignment <= lms->allocator->page;
	return can ? hr__blocks_missing(lms->allocator, pressure->size) : UINT64_MAX;
}

/* By the plan, the copy of the one tensor that was chosen is not done yet: takes tensors instead that are free earlier, if they have enough
 * pages. The host waits for these pages then, but the device does not wait for the copy. */
static bool choose_earlier_pages(hr__lms *lms, const hr__pressure *pressure, struct victims *victims)
{
	HR_ASSERT(victims->count == 1);
	hr__tensor *single = victims->tensors[0];
	struct victims pages = { .count = 0 };
	if (!hr__learned_is_copied_later(single)) return false;
	uint64_t missing = missing_pages(lms, pressure);
	if (missing == UINT64_MAX || !choose_pages(lms, missing, &pages)) return false;
	bool earlier = true;
	for (uint32_t i = 0; i < pages.count; i++)
		earlier &= hr__load_relaxed(&pages.tensors[i]->evict_first) && pages.tensors[i]->evict_number < single->evict_number;
	const struct victims *left = earlier ? victims : &pages;
	for (uint32_t i = 0; i < left->count; i++) hr__state_end_eviction(left->tensors[i], HR__PLACE_RESIDENT);
	if (earlier) *victims = pages;
	return earlier;
}

/* Chooses and claims victims. */
static enum hr__alloc_source choose(hr__lms *lms, const hr__pressure *pressure, struct victims *victims)
{
	HR_ASSERT(hr__lock_is_mine(&lms->lock));
	/* Pages must be idle to be stitched, so the host waits for their copies; memory that stays mapped makes only streams wait. So
	 * stitching is not considered for tensors that the policy evicts: their memory is likely to be in one piece. */
	uint64_t missing = allowed == HR__RECLAIM_ANY ? missing_pages(lms, pressure) : UINT64_MAX;
	if (pressure->round == 0 && choose_single(lms, pressure, missing, victims))
		return choose_earlier_pages(lms, pressure, victims) ? HR__SOURCE_MULTI_RECLAIM : HR__SOURCE_SINGLE_RECLAIM;
	if (missing != UINT64_MAX && choose_pages(lms, missing, victims)) return HR__SOURCE_MULTI_RECLAIM;
	if (pressure->pages || pressure->round > 1 || !choose_row(lms, pressure, victims))
		choose_some(lms, pressure->round ? pressure->size / 4 + 1 : pressure->size, victims);
	return HR__SOURCE_MULTI_RECLAIM;
}

/* Tensors could not be evicted, because of [why], perhaps because the host is full: drops tensors that have recipes. */
static hr_status drop_instead(hr__lms *lms, const hr__pressure *pressure, hr_status why, enum hr__alloc_source *source, uint64_t *freed)
{
	HR_ASSERT(hr__lock_none_from(HR__RANK_LMS));
	struct victims victims = { .count = 0 };
	if (why != HR_OUT_OF_MEMORY || allowed != HR__RECLAIM_ANY || !hr__load_relaxed(&lms->stats.num_recipes)) return why;
	hr__last before = hr__last_get();
	hr__lock_take(&lms->lock);
	only_droppable = true;
	enum hr__alloc_source chosen = choose(lms, pressure, &victims);
	only_droppable = false;
	hr__lock_release(&lms->lock);
	if (!victims.count) return why;
	allowed = HR__RECLAIM_NOTHING;
	(void)evict_all(&victims, pressure->stream, freed);
	allowed = HR__RECLAIM_ANY;
	hr__last_set(&before);
	if (!*freed) return why;
	*source = chosen;
	return HR_OK;
}

/* Nothing can be evicted, because of [why]: tries defragmentation. */
static hr_status try_defragment(hr__lms *lms, const hr__pressure *pressure, hr_status why, enum hr__alloc_source *source)
{
	HR_ASSERT(hr__lock_none_from(HR__RANK_LMS));
	char message[400];
	if (!lms->defrag || allowed != HR__RECLAIM_ANY) return why;
	snprintf(message, sizeof message, "%s", hr_last_message());
	allowed = HR__RECLAIM_NOTHING;
	hr_status status = hr__defrag_run(lms, pressure);
	allowed = HR__RECLAIM_ANY;
	*source = HR__SOURCE_DEFRAGMENT;
	if (!status) blocked = false;
	if (status != HR_NOT_READY || why == HR_NOT_READY) return status;
	return hr__fail(why, "%s", message);
}

hr_status hr__reclaim(const hr__pressure *pressure, enum hr__alloc_source *source)
{
	HR_ASSERT(hr__lock_none_from(HR__RANK_LMS));
	HR_ASSERT(pressure->size > 0);
	hr__lms *lms = hr__load_acquire(&pressure->allocator->lms);
	struct victims victims = { .count = 0 };
	enum hr__reclaim_mode mode = allowed;
	blocked = false;
	if (mode == HR__RECLAIM_NOTHING) return HR_NOT_READY;
	if (pressure->round == 0) hr__defrag_begin_request();
	if (!lms->enabled) return try_defragment(lms, pressure, HR_NOT_READY, source);
	hr__lock_take(&lms->lock);
	/* Tensors that the policy evicts come first, however many it takes. */
	allowed = HR__RECLAIM_PLANNED;
	list_recent_as_evicted(lms);
	if (hr__evict_queue_any_planned(lms)) *source = choose(lms, pressure, &victims);
	allowed = mode;
	if (!victims.count && mode == HR__RECLAIM_ANY) {
		if (lms->learned) hr__learned_unplanned_eviction(lms);
		*source = choose(lms, pressure, &victims);
	}
	bool all = victims.count && *source == HR__SOURCE_MULTI_RECLAIM && !any_evictable(lms);
	/* Another thread is moving what is left, for another request. When that is done, there may be room for both. */
	uint64_t seen = hr__load_acquire(&lms->changes);
	bool leaving = !victims.count && mode == HR__RECLAIM_ANY && any_claimed(lms);
	hr__lock_release(&lms->lock);
	if (leaving && pressure->round < ROUNDS_MAX) {
		wait_for_change(lms, seen);
		return HR_OK;
	}
	if (!victims.count) return try_defragment(lms, pressure, HR_NOT_READY, source);

	if (all) *source = HR__SOURCE_FULL_RECLAIM;
	uint64_t freed = 0;
	allowed = HR__RECLAIM_NOTHING; /* no reclaiming within reclaiming */
	hr_status status = evict_all(&victims, pressure->stream, &freed);
	allowed = mode;
	if (!freed) status = drop_instead(lms, pressure, status, source, &freed);
	blocked = !freed;
	if (!freed) return try_defragment(lms, pressure, status, source);
	hr__atomic_i64 *counter = *source == HR__SOURCE_SINGLE_RECLAIM ? &lms->stats.num_single_reclaims
	                          : *source == HR__SOURCE_FULL_RECLAIM ? &lms->stats.num_full_reclaims
	                                                               : &lms->stats.num_multi_reclaims;
	if (pressure->round == 0 || *source == HR__SOURCE_FULL_RECLAIM) hr__lms_count(counter, 1);
	return HR_OK;
}

bool hr__reclaim_range(hr__lms *lms, uint64_t address, uint64_t bytes, hr_stream stream)
{
	HR_ASSERT(bytes && address + bytes > address);
	struct victims victims = { .count = 0 };
	uint64_t freed = 0;
	bool clear = true;
	hr__lock_take(&lms->lock);
	for (uint32_t i = 0; i < lms->member_count && clear; i++) {
		hr__tensor *tensor = lms->members[i];
		uint64_t word = hr__load_acquire(&tensor->word);
		uint64_t at = hr__load_relaxed(&tensor->address); /* another thread may be freeing it */
		if (hr__word_place(word) != HR__PLACE_RESIDENT || at >= address + bytes || address >= at + tensor->device_bytes) continue;
		clear = hr__load_relaxed(&tensor->evict_first) && victims.count < HR__RECLAIM_MAX && claim_victim(&victims, tensor);
	}
	for (uint32_t i = 0; i < victims.count && !clear; i++) hr__state_end_eviction(victims.tensors[i], HR__PLACE_RESIDENT);
	hr__lock_release(&lms->lock);
	return clear && victims.count && evict_all(&victims, stream, &freed) == HR_OK;
}

/* Counts [bytes] more as resident if that is within the limit, which another thread may be lowering. */
static bool admit(hr__lms *lms, uint64_t bytes)
{
	int64_t resident = hr__load_relaxed(&lms->resident);
	while (resident < 0 || (uint64_t)resident + bytes <= hr__load_acquire(&lms->limit)) {
		if (!hr__cas_acq_rel(&lms->resident, &resident, resident + (int64_t)bytes)) continue;
		hr__fence_seq_cst(); /* either this sees the new limit, or hr_lms_set_limit sees these bytes */
		if ((uint64_t)resident + bytes <= hr__load_acquire(&lms->limit)) return true;
		resident = hr__fetch_add_relaxed(&lms->resident, -(int64_t)bytes) - (int64_t)bytes;
	}
	return false;
}

static hr_status fail_above_limit(uint64_t bytes, uint64_t limit)
{
	hr__sizes size = HR__SIZES(bytes, limit);
	if (!bytes)
		return hr__fail(HR_OUT_OF_MEMORY, "more than %s of tensors are pinned, being moved, or cannot be evicted", size.text[1]);
	return hr__fail(HR_OUT_OF_MEMORY, "a tensor of %s %s the limit for tensors, %s; raise it with hr_lms_set_limit", size.text[0],
	                bytes > limit ? "exceeds" : "does not fit within", size.text[1]);
}

hr_status hr__reclaim_to_limit(hr__lms *lms, uint64_t bytes, hr_stream stream)
{
	HR_ASSERT(hr__lock_none_from(HR__RANK_LMS));
	blocked = false;
	for (unsigned round = 0;; round++) {
		uint64_t limit = hr__load_acquire(&lms->limit);
		if (bytes > limit) return fail_above_limit(bytes, limit);
		if (admit(lms, bytes)) return HR_OK;
		struct victims victims = { .count = 0 };
		uint64_t freed = 0;
		hr__lock_take(&lms->lock);
		uint64_t seen = hr__load_acquire(&lms->changes);
		int64_t above = hr__load_relaxed(&lms->resident) + (int64_t)bytes - (int64_t)limit;
		if (above > 0 && lms->enabled && allowed != HR__RECLAIM_NOTHING) choose_some(lms, (uint64_t)above, &victims);
		/* As in hr__reclaim. A thread that restores a tensor may itself be waiting for evictions, so only a caller without a
		 * claimed tensor, which needs no memory, may wait for restores too. */
		bool moving = !victims.count && allowed == HR__RECLAIM_ANY && round < ROUNDS_MAX &&
		              (any_claimed(lms) || (!bytes && any_at(lms, HR__PLACE_RESTORING)));
		/* Tensors evicted since are no longer counted. */
		if (!victims.count && !moving) above = hr__load_relaxed(&lms->resident) + (int64_t)bytes - (int64_t)limit;
		hr__lock_release(&lms->lock);
		if (above <= 0) continue; /* there is room now */
		if (moving) {
			wait_for_change(lms, seen);
			continue;
		}
		hr_status status = evict_all(&victims, stream, &freed);
		blocked = status && !freed;
		if (blocked) return status;
		if (!freed) return fail_above_limit(bytes, limit);
	}
}

/* Claims the next tensors, from index *at downwards, that may be evicted. */
static void choose_next(hr__lms *lms, hr_name tag, uint32_t *at, struct victims *victims)
{
	HR_ASSERT(hr__lock_is_mine(&lms->lock));
	if (*at > lms->member_count) *at = lms->member_count;
	while (*at && victims->count < HR__RECLAIM_MAX) {
		hr__tensor *tensor = lms->members[--*at];
		if (is_evictable(tensor, hr__load_acquire(&tensor->word)) && (!tag || tensor->tag == tag)) claim_victim(victims, tensor);
	}
}

hr_status hr__reclaim_inactive(hr__lms *lms, hr_name tag, uint64_t *bytes)
{
	HR_ASSERT(hr__lock_none_from(HR__RANK_LMS));
	HR_ASSERT(lms->enabled);
	hr_status first = HR_OK;
	for (uint32_t at = UINT32_MAX; at;) {
		struct victims victims = { .count = 0 };
		hr__lock_take(&lms->lock);
		choose_next(lms, tag, &at, &victims);
		hr__lock_release(&lms->lock);
		hr_status status = evict_all(&victims, lms->out_stream, bytes);
		if (!first) first = status;
	}
	return first;
}
