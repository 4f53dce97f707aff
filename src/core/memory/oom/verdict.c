/* verdict.c - what would make a request fit, computed from the present state without changing it.
 *
 * DEFINITIONS. For an allocator of kind "bfc":
 *
 *   size        the request's bytes, rounded up to the granularity; alignment counts only above the granularity
 *   home        in the shard of the calling thread, or the one that it would get, the pool that the request belongs to: with
 *               thread_cache the small pool for 64 KiB and less without an alignment, else the large one. Memory grows only there
 *   room        bytes that the allocator may still take from the device, in whole pages: the least of what its limit, the logical
 *               device's limit and the card leave. Pages that the card keeps for later count as not taken
 *   holds       a free range holds the request if it contains a multiple of alignment followed by size bytes
 *   whole page  a page of addresses all of which are free
 *   evictable      the block of a tensor that is resident, not pinned and not never_evict, whether eviction is on or off
 *
 * KINDS. The verdict is the first that is true. hr_alloc itself makes the first four attempts, in this order, and each kind is true
 * exactly when that attempt would succeed: the rules are those of the allocator. One exception: a kind that is switched off
 * (options.stitch, LMS) comes after HR_FITS_AFTER_DEFRAG a. when that is on and within its budget, because hr_alloc gets the memory
 * that way.
 *
 *   HR_FITS               a chunk of exactly that size is in the calling thread's cache (small requests), or
 *                         a free chunk of any pool of any shard holds it, or
 *                         some hole of home has a place for it (page_hole.h) that needs no more pages than room
 *   HR_FITS_AFTER_TRIM    the same in the TRIMMED STATE, which is the state after make_room of bfc.c:
 *                           - cached chunks of this allocator are free, and merged with free neighbours;
 *                           - whole pages of its small pools are released: they are holes, and room is larger by them;
 *                           - if its limit then leaves any room: whole pages of all pools of the device's other bfc allocators,
 *                             their cached chunks free and merged too, are released: what the device and the card leave is larger
 *                             by them
 *   HR_FITS_AFTER_STITCH  in the trimmed state, whether options.stitch is on or off: some hole of home, alone or with the free
 *                         chunks beside it, has a place of P pages, P <= room + whole pages of all pools of this allocator except
 *                         those in the free chunks that the place extends into. [pages] = the least such P, less room
 *   HR_FITS_WITH_LMS      a. in the trimmed state, a run of adjacent chunks, each free or evictable, holds it: [bytes] = the bytes
 *                         of evictable blocks in the run that has the fewest. reclaim.c looks for such a run; it may prefer another, whose
 *                         tensors are not used for longer. Or else
 *                         b. in the trimmed state computed with all evictable blocks free, and with the pages of evictable blocks in no region
 *                         (fixed tensors) counted as room: as HR_FITS, or as HR_FITS_AFTER_STITCH if options.stitch is on. Tensors
 *                         are then evicted one by one: [bytes] = size - free bytes of all pools - room, both with the evictable blocks in
 *                         place, in whole pages (units of the granularity where there are no pages), at least one, and never more
 *                         than the bytes of all evictable blocks
 *                         [recompute_bytes] = the bytes of evictable blocks of tensors whose recipe states a cost, but at most
 *                         [bytes]; [recompute_ns] = the cost of these recipes, each once, in proportion to [recompute_bytes]
 *   HR_FITS_AFTER_DEFRAG  a. by moving tensors on the device, whether options.defrag of LMS is on or off: [bytes] = what
 *                         src/core/lms/reclaim/defrag.c would move in the trimmed state, by its own plan. Or else
 *                         b. in the trimmed state, by sliding live blocks together. A stretch is a run of adjacent chunks of a
 *                         region without a hole between them; in home's pool, the hole after it counts as a free chunk of its
 *                         size, but at most room. A window is a run of adjacent chunks of one stretch whose free chunks together
 *                         have size + (alignment - granularity) bytes: blocks slid to its lower end leave a place for the request.
 *                         [bytes] = the live bytes in the window that has the fewest.
 *                         Where no stretch has a window, but free bytes of all pools + room >= size: all pools would have to be
 *                         repacked, and [bytes] = all live bytes of the allocator
 *   HR_NEEDS_MORE         [bytes] = size - free bytes of all pools - room. So the verdict changes as soon as that much is freed,
 *                         anywhere, and not before
 *   HR_NEVER_FITS         size alone, in whole pages, is above the limit, by [bytes]; or no address of home is a multiple of
 *                         alignment followed by size bytes: [bytes] = 0
 *
 * On a device without pages: memory is released by whole regions that are entirely free, of either pool; memory grows by a region
 * of size + alignment bytes (size without an alignment), which HR_NEVER_FITS compares with the limit; room is in units of the
 * granularity; nothing is stitched, and nothing grows at the end of a stretch.
 *
 * "direct": size is in whole pages, or in units of the granularity where the device has plain memory. HR_FITS: size <= room.
 * HR_FITS_AFTER_TRIM: size <= room when the device's bfc allocators are trimmed, which hr_alloc does not do here. Otherwise
 * HR_NEEDS_MORE or HR_NEVER_FITS. Custom: the same by its limit in Headroom, for the bytes as requested, and by its get_stats if it
 * has that: HR_FITS when its largest_free, or its bytes_limit less bytes_reserved, is enough; HR_FITS_AFTER_DEFRAG with all live
 * bytes when only its bytes_limit less bytes in use is enough. The custom allocator itself decides in the end.
 *
 * WHAT IS FULL (tier). For HR_NEEDS_MORE, and for HR_FITS_WITH_LMS where size is more than free bytes of all pools + room: the one
 * of the three limits that leaves least, in the trimmed state. For HR_NEVER_FITS: the first of allocator, device and card that has
 * a limit of its own. An allocator whose limit equals its device's has no limit of its own, and a device that may use the whole
 * card has none either. Otherwise nothing is full.
 *
 * STEPS. step_peak_bytes is the most that a step of the allocator needed at once (src/core/lms/step_peak.c); where the allocator has had
 * no complete step, the most that a step of any allocator of the device needed. Advice on limits uses it where it is more than the
 * request lacks.
 *
 * If chains change between two holds of a walk, each byte is still seen once, in one of its states. */
#include "core/base/checked.h"
#include "core/base/status.h"
#include "core/base/struct.h"
#include "core/memory/oom/verdict.h"

/* ---- home ---- */

static hr__cache *own_cache(const hr__allocator *allocator)
{
	hr__cache *cache = hr__thread_self ? hr__thread_self->caches[allocator->slot] : NULL;
	return cache && hr__load_relaxed(&cache->id) == allocator->id ? cache : NULL;
}

/* For a thread without a cache: the shard that choose_shard of cache.c would give it. */
static uint32_t home_shard(hr__allocator *allocator, bool small)
{
	hr__cache *cache = own_cache(allocator);
	if (cache || !small) return hr__shard_for(allocator, cache, small)->index;
	uint32_t best = 0;
	hr__lock_take(&allocator->caches_lock);
	for (uint32_t i = 1; i < allocator->shard_max && allocator->shards[best].threads; i++)
		if (allocator->shards[i].threads < allocator->shards[best].threads) best = i;
	hr__lock_release(&allocator->caches_lock);
	return best;
}

static bool is_kept(const hr__judgement *j)
{
	hr__cache *cache = own_cache(j->allocator);
	HR_ASSERT(j->size > 0 && j->size % j->allocator->granularity == 0);
	if (!j->small || !cache || !cache->capacity || !hr__cache_enter(cache)) return false;
	bool kept = cache->bins[j->size >> cache->shift] != 0;
	hr__cache_leave(cache);
	return kept;
}

static void find_home(hr__judgement *j)
{
	hr__allocator *allocator = j->allocator;
	if (!allocator->page) return;
	uint32_t shard = home_shard(allocator, j->small);
	j->home = 2 * shard + j->small;
	j->fresh = !hr__load_acquire(&allocator->shards[shard].open) || !hr__load_relaxed(&allocator->shards[shard].span);
}

/* ---- what is full ---- */

bool hr__verdict_has_own_limit(const hr__allocator *allocator)
{
	return allocator->limit < hr__device_reservable(allocator->device);
}

bool hr__verdict_is_part(const hr__allocator *allocator)
{
	hr_device_info info = { .struct_size = sizeof info };
	if (hr__device_pinned_for(allocator->device)) return true; /* it is a part of the host's memory */
	return hr_device_get_info(hr__device_handle(allocator->device), &info) == HR_OK && info.limit_bytes < info.total_bytes;
}

static hr_tier fullest(const hr__judgement *j)
{
	const hr__room *room = &j->room;
	if (hr__verdict_has_own_limit(j->allocator) && room->allocator <= room->device && room->allocator <= room->card) return HR_TIER_ALLOCATOR;
	return hr__verdict_is_part(j->allocator) && room->device <= room->card ? HR_TIER_DEVICE : HR_TIER_PHYSICAL;
}

static hr_tier outermost(const hr__allocator *allocator)
{
	if (hr__verdict_has_own_limit(allocator)) return HR_TIER_ALLOCATOR;
	return hr__verdict_is_part(allocator) ? HR_TIER_DEVICE : HR_TIER_PHYSICAL;
}

/* ---- the kind ---- */

static void needs_more(const hr__judgement *j, uint64_t bytes, hr_verdict *verdict)
{
	HR_ASSERT(bytes > 0);
	verdict->kind = HR_NEEDS_MORE;
	verdict->tier = fullest(j);
	verdict->bytes = bytes;
}

static void never_fits(const hr__judgement *j, hr_verdict *verdict)
{
	HR_ASSERT(j->need > j->allocator->limit);
	verdict->kind = HR_NEVER_FITS;
	verdict->tier = outermost(j->allocator);
	verdict->bytes = j->need - j->allocator->limit;
}

static void fits_after_defrag(uint64_t bytes, hr_verdict *verdict)
{
	verdict->kind = HR_FITS_AFTER_DEFRAG;
	verdict->bytes = bytes;
}

/* The kinds that hr_alloc attempts without LMS; false if it is none of them. */
static bool judge_own_ways(hr__judgement *j, hr_verdict *verdict)
{
	j->kept = is_kept(j);
	if (j->kept) {
		verdict->kind = HR_FITS;
		return true;
	}
	find_home(j);
	hr__survey_now(j);
	if (hr__survey_fits(j, &j->now)) {
		verdict->kind = HR_FITS;
		return true;
	}
	hr__survey_trimmed(j);
	if (hr__survey_fits(j, &j->trimmed)) {
		verdict->kind = HR_FITS_AFTER_TRIM;
		return true;
	}
	hr__survey_stitching(j);
	if (j->stitched == HR__NOT_FOUND) return false;
	verdict->kind = HR_FITS_AFTER_STITCH;
	verdict->pages = j->stitched;
	return true;
}

/* Whether hr_alloc gets it by moving tensors on the device, if no earlier attempt succeeds. */
static bool defrag_helps(const hr__judgement *j)
{
	return j->defragged != HR__NOT_FOUND && j->moving.on && (!j->moving.budget || j->defragged <= j->moving.budget);
}

/* Tensors that are dropped need no place on the host. If only a part of them is needed, it takes that part of their time. */
static void note_droppable(const hr__droppable *droppable, hr_verdict *verdict)
{
	if (!droppable->bytes) return;
	verdict->recompute_bytes = droppable->bytes < verdict->bytes ? droppable->bytes : verdict->bytes;
	verdict->recompute_ns = (uint64_t)((double)droppable->ns * ((double)verdict->recompute_bytes / (double)droppable->bytes));
}

static void judge_bfc(hr__judgement *j, hr_verdict *verdict)
{
	bool stitches = judge_own_ways(j, verdict);
	if (stitches && (verdict->kind != HR_FITS_AFTER_STITCH || j->allocator->stitch)) return;
	uint64_t evicting = hr__survey_eviction(j), total = hr__verdict_sum(j->trimmed.free, hr__judgement_room(j));
	bool evicts = j->lms && evicting != HR__NOT_FOUND;
	if (j->size <= total && !evicts) hr__survey_defrag(j);
	if (defrag_helps(j)) {
		verdict->pages = 0;
		fits_after_defrag(j->defragged, verdict);
		return;
	}
	if (stitches) return;
	if (evicting != HR__NOT_FOUND) {
		verdict->kind = HR_FITS_WITH_LMS;
		verdict->bytes = evicting;
		note_droppable(&j->droppable, verdict);
		if (j->size > total) verdict->tier = fullest(j);
		return;
	}
	if (j->defragged != HR__NOT_FOUND) {
		fits_after_defrag(j->defragged, verdict);
		return;
	}
	hr__survey_sliding(j);
	if (j->moved != HR__NOT_FOUND) fits_after_defrag(j->moved, verdict);
	else if (j->need > j->allocator->limit) never_fits(j, verdict);
	else if (!hr__survey_has_addresses(j)) verdict->kind = HR_NEVER_FITS;
	else if (j->size <= total) fits_after_defrag(j->trimmed.live, verdict);
	else needs_more(j, j->size - total, verdict);
}

static void judge_direct(hr__judgement *j, hr_verdict *verdict)
{
	hr__survey_room(j);
	if (j->need <= hr__judgement_room(j)) {
		verdict->kind = HR_FITS;
		return;
	}
	if (j->need > j->allocator->limit) {
		never_fits(j, verdict);
		return;
	}
	hr__survey_room_of_others(j);
	if (j->need <= hr__judgement_room(j)) verdict->kind = HR_FITS_AFTER_TRIM;
	else needs_more(j, j->need - hr__judgement_room(j), verdict);
}

static void judge_custom(hr__judgement *j, hr_verdict *verdict)
{
	const hr_custom_stats *custom = j->custom;
	uint64_t in_use = (uint64_t)hr__load_relaxed(&j->allocator->reserved), grow = UINT64_MAX, piece = 0;
	hr__survey_room(j);
	j->room.device = j->room.card = UINT64_MAX; /* the source of its memory is not known */
	j->custom_left = UINT64_MAX;
	if (custom) piece = custom->largest_free;
	if (custom && custom->bytes_limit) {
		j->custom_left = custom->bytes_limit > in_use ? custom->bytes_limit - in_use : 0;
		grow = custom->bytes_limit > custom->bytes_reserved ? custom->bytes_limit - custom->bytes_reserved : 0;
	}
	uint64_t room = j->room.allocator < j->custom_left ? j->room.allocator : j->custom_left;
	if (j->need > j->allocator->limit) {
		never_fits(j, verdict);
	} else if (j->need > room) {
		verdict->kind = HR_NEEDS_MORE;
		verdict->bytes = j->need - room;
		verdict->tier = HR_TIER_ALLOCATOR;
	} else if (j->need > grow && j->need > piece) {
		fits_after_defrag(in_use, verdict);
	} else {
		verdict->kind = HR_FITS;
	}
}

/* ---- entry points ---- */

static bool takes_pages(const hr__allocator *allocator)
{
	return allocator->kind == HR__KIND_DIRECT && !hr__device_has_plain(allocator->device);
}

uint64_t hr__verdict_size(const hr__allocator *allocator, const hr_request *request)
{
	uint64_t size = request->bytes;
	if (allocator->kind != HR__KIND_CUSTOM)
		hr__align_up(size, takes_pages(allocator) ? allocator->page : allocator->granularity, &size);
	return size;
}

bool hr__verdict_ask_custom(hr__allocator *allocator, hr_custom_stats *custom)
{
	HR_ASSERT(hr__lock_none_from(HR__RANK_REPORT));
	*custom = (hr_custom_stats){ .struct_size = sizeof *custom };
	if (allocator->kind != HR__KIND_CUSTOM || !allocator->custom.table.get_stats) return false;
	return allocator->custom.table.get_stats(allocator->custom_state, custom) == HR_OK;
}

static void recall_steps(hr__judgement *j, hr_verdict *verdict)
{
	int64_t own = hr__load_relaxed(&j->allocator->step_peak);
	j->step_elsewhere = !own;
	verdict->step_peak_bytes = (uint64_t)(own ? own : hr__load_relaxed(&j->allocator->usage->step_peak));
}

void hr__verdict_make(hr__walk *walk, const hr_request *request, const hr_custom_stats *custom, hr_verdict *verdict)
{
	hr__allocator *allocator = walk->allocator;
	HR_ASSERT(hr__lock_is_mine(&hr__report_lock) && !walk->foreign && request->bytes > 0);
	hr__judgement j = { .walk = walk, .allocator = allocator, .size = hr__verdict_size(allocator, request), .custom = custom,
		                .defragged = HR__NOT_FOUND };
	*verdict = (hr_verdict){ .struct_size = sizeof *verdict };
	if (request->alignment > allocator->granularity) j.alignment = request->alignment;
	j.small = allocator->thread_cache && j.size <= HR__SMALL_MAX && !j.alignment;
	j.unit = allocator->kind == HR__KIND_BFC && allocator->page ? allocator->page : allocator->granularity;
	j.need = j.size;
	switch (allocator->kind) {
	case HR__KIND_BFC:
		if (allocator->page) hr__align_up(j.size, allocator->page, &j.need);
		else if (j.alignment) j.need = hr__verdict_sum(j.size, j.alignment);
		judge_bfc(&j, verdict);
		break;
	case HR__KIND_DIRECT:
		if (takes_pages(allocator)) j.unit = allocator->page;
		judge_direct(&j, verdict);
		break;
	case HR__KIND_CUSTOM:
		j.unit = 1;
		judge_custom(&j, verdict);
		break;
	}
	recall_steps(&j, verdict);
	hr__verdict_describe(&j, verdict);
}

hr_status hr_allocator_would_fit(hr_allocator handle, const hr_request *request, hr_verdict *verdict)
{
	hr_status status;
	hr__walk walk;
	hr_custom_stats custom;
	hr_verdict result;
	hr_request whole;
	status = hr__struct_check(&hr__struct_verdict, "hr_allocator_would_fit", verdict);
	if (status) return status;
	hr__allocator *allocator = hr__allocator_of(handle, &status);
	if (!allocator) return status;
	status = hr__request_read("hr_allocator_would_fit", request, &whole);
	if (!status) status = hr__request_check(allocator, &whole);
	if (status) return status;
	bool asked = hr__verdict_ask_custom(allocator, &custom);
	hr__lock_take(&hr__report_lock);
	hr__walk_begin(&walk, allocator, false);
	hr__verdict_make(&walk, &whole, asked ? &custom : NULL, &result);
	hr__lock_release(&hr__report_lock);
	hr__struct_out(&hr__struct_verdict, verdict, &result);
	return HR_OK;
}
