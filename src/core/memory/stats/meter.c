/* meter.c - peaks of bytes in use and of active bytes, without computing a sum for every block.
 *
 * Bytes in use are the sum of all meters: one for each thread cache, one for each shard. Active bytes are that sum less the
 * inactive bytes: resident tensors that are not pinned. Each quantity has a peak in every allocator, and one on the device, over
 * all its allocators.
 *
 * One thread, one allocator on the device, no tensors: the allocator is not metered. The cache keeps its highest [used], and each
 * operation under the lock adds that to the shard's [used]. The peak is exact, and the device's peak is the allocator's.
 *
 * Otherwise the allocator is metered: every meter has a level. [used] exceeds the level only after hr__meter_raise has raised it,
 * which never lets a sum of levels exceed a peak without raising the peak:
 *
 *     in use (allocator)  <=  levels             <=  peak           several threads use the allocator
 *     active (allocator)  <=  levels - inactive  <=  peak_active    it has tensors
 *     in use (device)     <=  sum of levels      <=  peak           several allocators
 *     active (device)     <=  sum of granted     <=  peak_active    several allocators, one of them with tensors
 *
 * A level is raised to what is needed, plus part of the room below the peaks, which costs nothing. A program that repeats its steps
 * soon needs no more raises, and then writes no cache line that other threads read.
 *
 * Where a sum has no room below its peak, its levels are made tight. If that is not enough, the sum of the tight levels is the new
 * peak. With one thread, tight means equal to [used], so the peak is a value that was reached: it is exact. With several threads,
 * tight means within HR__SLACK of [used], because lowering the level of another thread takes 15 us (see below); the peak is then at
 * most HR__SLACK too high for each meter.
 *
 * Pins are counted without a lock, so active bytes have one more stage: levels - inactive of an allocator stays at or below
 * [granted], and the sum of [granted] at or below the peak of the device. A pin subtracts from [inactive], then compares. A thread that
 * changes levels or [granted] does so under the lock, then compares (grant). Both have a full barrier in between, so at least one
 * of the two sees the other's change.
 *
 * Two threads whose highs do not coincide need tight levels at every climb, because each finds the other's level where its last
 * high left it. Lowering the level of another thread is expensive: the thread must be interrupted, which takes 15 us with the lock
 * held. So its meter is first marked ([lowering]), and the owner lowers the level itself at its next block, which needs no barrier
 * and takes less than 1 us (hr__meter_lower). The owner keeps half of the distance between level and [used], or less if more is
 * missing: with nothing kept it would have to raise the level at its next block. A block that is accounted for under the shard's
 * lock serves the marks on both meters of the thread, and so does a thread that itself waits for others to lower their levels. A
 * thread is interrupted only if it does not react soon, because it is doing something else; its level is then tight, so it is not
 * marked again.
 *
 * When little room is left below the peak, meters that are far below their levels are marked too, and return part of the distance
 * before it is needed. A meter that only fluctuates a little is left alone until its room is needed: it would raise its level again
 * at once.
 *
 * Lowering a level while its thread runs: a thread that is accounting for a block may have seen the old level. After a heavy
 * barrier, a thread that begins to account sees the new level. The owner of a cache that began before the barrier is waited for;
 * then its [used] is read again, and a level that it passed is raised. A thread that accounts under a shard's lock cannot be waited
 * for, since it may be waiting for meter_lock; it compares with the level once more afterwards, and at least one of the two sees
 * the other's change. */
#include "core/memory/allocator.h"

#define FAR_ABOVE_PARTS 8       /* a meter is far below its level when the level is more than peak / FAR_ABOVE_PARTS above [used] */
#define LOW_ROOM_PARTS 64     /* such meters are marked when the room is less than peak / LOW_ROOM_PARTS */
#define MAX_LOCK_PAUSES 32u     /* pauses of the processor: about 1 us */
#define MAX_ANSWER_PAUSES 128u /* pauses of the processor: about 4 us, a few hundred operations of another thread */

/* The lock is held for about 50 ns, except around heavy barriers; hr__lock_take would pause for 2 us before it retries. */
static void lock_meters(hr__allocator *allocator)
{
	for (unsigned i = 0; i < MAX_LOCK_PAUSES; i++) {
		if (hr__lock_try(allocator->meter_lock)) return;
		hr__cpu_pause();
	}
	hr__lock_take(allocator->meter_lock);
}

/* Values of hr__meter.lowering: which levels are to be lowered. */
enum { NONE = 0, FAR_ABOVE, ANY };

/* The meters that a sum covers. */
enum scope { NO_SCOPE, ALLOCATOR, DEVICE };

#define EACH_ALLOCATOR(usage, each) for (hr__allocator *each = (usage)->first; each; each = each->next_on_device)

#define EACH_METER(allocator, meter, statement)                                                                     \
	do {                                                                                                            \
		HR__EACH_SHARD(allocator, shard_)                                                                           \
		{                                                                                                           \
			hr__meter *meter = &shard_->meter;                                                                      \
			statement;                                                                                              \
		}                                                                                                           \
		for (hr__cache *cache_ = (allocator)->caches; cache_; cache_ = cache_->next) {                              \
			hr__meter *meter = &cache_->meter;                                                                      \
			statement;                                                                                              \
		}                                                                                                           \
	} while (0)

bool hr__meters_are_on(const hr__allocator *allocator)
{
	return hr__load_relaxed(&allocator->cache_count) > 1 || hr__load_relaxed(&allocator->metered);
}

/* Removes the level that a meter may still have after its allocator ceased to be metered. False if the allocator is metered. */
static bool ends_level(const hr__allocator *allocator, hr__meter *meter)
{
	HR_ASSERT(hr__lock_is_mine(allocator->meter_lock));
	if (hr__meters_are_on(allocator)) return false;
	hr__store_relaxed(&meter->level, HR__NO_LEVEL);
	return true;
}

static bool device_is_metered(const hr__usage *usage)
{
	return hr__load_relaxed(&usage->shared) != 0;
}

static bool device_tracks_active(const hr__usage *usage)
{
	return device_is_metered(usage) && hr__load_relaxed(&usage->active);
}

/* ---- sums ---- */

/* An upper bound on the active bytes of an allocator. */
static int64_t active_bound(const hr__allocator *allocator)
{
	return hr__load_relaxed(&allocator->levels) - hr__load_relaxed(&allocator->inactive);
}

/* Sets [granted] to [least], or to active_bound if that is higher. Pins continue meanwhile. */
static void grant(hr__allocator *allocator, int64_t least)
{
	HR_ASSERT(hr__lock_is_mine(allocator->meter_lock));
	int64_t before = hr__load_relaxed(&allocator->granted), now;
	do {
		int64_t needed = active_bound(allocator);
		now = needed > least ? needed : least;
		hr__store_relaxed(&allocator->granted, now);
		if (!hr__load_relaxed(&allocator->active)) break;
		hr__fence_seq_cst();
	} while (active_bound(allocator) > now);
	hr__owner_add(&allocator->usage->granted, now - before);
}

/* Lowers [granted] to active_bound. Never raises it: that is left to a pin that needs more (raise_granted). */
static void lower_granted(hr__allocator *allocator)
{
	HR_ASSERT(hr__lock_is_mine(allocator->meter_lock));
	int64_t before = hr__load_relaxed(&allocator->granted), now;
	do {
		int64_t needed = active_bound(allocator);
		now = needed < before ? needed : before;
		hr__store_relaxed(&allocator->granted, now);
		hr__fence_seq_cst();
	} while (now < before && active_bound(allocator) > now);
	hr__owner_add(&allocator->usage->granted, now - before);
}

static void add_levels(hr__allocator *allocator, int64_t bytes)
{
	HR_ASSERT(hr__lock_is_mine(allocator->meter_lock));
	hr__owner_add(&allocator->levels, bytes);
	hr__owner_add(&allocator->usage->levels, bytes);
}

/* Recomputes the sum of the levels of an allocator. */
static void sum_levels(hr__allocator *allocator)
{
	int64_t levels = 0;
	EACH_METER(allocator, meter, levels += hr__load_relaxed(&meter->level));
	add_levels(allocator, levels - hr__load_relaxed(&allocator->levels));
}

/* ---- making levels tight ---- */

/* Distance from [used] up to the level. */
static int64_t above_used(const hr__meter *meter)
{
	return hr__load_relaxed(&meter->level) - hr__load_relaxed(&meter->used);
}

/* If the level is more than [most] above [used], lowers it to [keep] above [used]. */
static bool lower(hr__meter *meter, int64_t most, int64_t keep)
{
	HR_ASSERT(most >= 0 && keep >= 0);
	if (above_used(meter) <= most) return false;
	hr__store_relaxed(&meter->level, hr__load_relaxed(&meter->used) + keep);
	return true;
}

static void settle(hr__meter *meter, int64_t slack)
{
	int64_t used = hr__load_relaxed(&meter->used);
	if (used > hr__load_relaxed(&meter->level)) hr__store_relaxed(&meter->level, used + slack / 2);
}

static bool other_threads_have_caches(const hr__allocator *allocator)
{
	for (const hr__cache *cache = allocator->caches; cache; cache = cache->next)
		if (cache->thread != hr__thread_self) return true;
	return false;
}

static void wait_for_caches(const hr__allocator *allocator)
{
	HR_ASSERT(hr__lock_is_mine(allocator->meter_lock));
	for (const hr__cache *cache = allocator->caches; cache; cache = cache->next)
		if (cache->thread != hr__thread_self) hr__cache_wait_idle(cache);
}

/* How far above [used] a tight level of the sum may be: 0 with one thread. */
static int64_t slack_of(const hr__allocator *allocator, enum scope scope)
{
	const hr__atomic_u32 *threads = scope == DEVICE ? &allocator->usage->threads : &allocator->cache_count;
	return hr__load_relaxed(threads) > 1 ? HR__SLACK : 0;
}

/* Calls [each] for the allocators of a scope. Returns whether any call returned true. */
static bool any_of(hr__allocator *allocator, enum scope scope, bool (*each)(hr__allocator *, int64_t), int64_t argument)
{
	bool any = false;
	if (scope != DEVICE) return each(allocator, argument);
	EACH_ALLOCATOR(allocator->usage, one) any |= each(one, argument);
	return any;
}

/* Returns whether other threads must be interrupted, because a level was lowered. */
static bool lower_all(hr__allocator *allocator, int64_t slack)
{
	HR_ASSERT(slack == 0 || slack == HR__SLACK);
	bool lowered = false;
	EACH_METER(allocator, meter, lowered |= lower(meter, slack, slack / 2));
	return lowered && other_threads_have_caches(allocator);
}

static bool wait_all(hr__allocator *allocator, int64_t slack)
{
	(void)slack;
	wait_for_caches(allocator);
	return true;
}

static bool settle_all(hr__allocator *allocator, int64_t slack)
{
	HR_ASSERT(hr__lock_is_mine(allocator->meter_lock));
	EACH_METER(allocator, meter, settle(meter, slack));
	sum_levels(allocator);
	lower_granted(allocator);
	return true;
}

/* Waiting for caches with meter_lock held cannot deadlock: no thread waits for that lock inside a busy section. */
static void tighten_scope(hr__allocator *allocator, enum scope scope)
{
	HR_ASSERT(scope != NO_SCOPE);
	int64_t slack = slack_of(allocator, scope);
	if (any_of(allocator, scope, lower_all, slack)) {
		hr__heavy_barrier();
		any_of(allocator, scope, wait_all, 0);
	}
	any_of(allocator, scope, settle_all, slack);
}

static void tighten(hr__allocator *allocator, enum scope scope)
{
	tighten_scope(allocator, scope);
	/* The allocator's own sum is exact while one thread uses the allocator, however many threads use the device. */
	if (scope == DEVICE && slack_of(allocator, ALLOCATOR) < slack_of(allocator, DEVICE)) tighten_scope(allocator, ALLOCATOR);
}

/* ---- room below the peaks ---- */

/* A sum of levels that a peak bounds, and the room below the peak. */
struct bound {
	enum scope scope;
	int64_t room, peak;
};

#define BOUNDS_MAX 4u

static uint32_t bounds_of(const hr__allocator *allocator, struct bound bounds[BOUNDS_MAX])
{
	const hr__usage *usage = allocator->usage;
	uint32_t count = 0;
	int64_t peak, active = active_bound(allocator);
	if (hr__load_relaxed(&allocator->cache_count) > 1) {
		peak = hr__load_relaxed(&allocator->peak);
		bounds[count++] = (struct bound){ ALLOCATOR, peak - hr__load_relaxed(&allocator->levels), peak };
	}
	if (hr__load_relaxed(&allocator->active)) {
		peak = hr__load_relaxed(&allocator->peak_active);
		bounds[count++] = (struct bound){ ALLOCATOR, peak - active, peak };
	}
	if (device_is_metered(usage)) {
		peak = hr__load_relaxed(&usage->peak);
		bounds[count++] = (struct bound){ DEVICE, peak - hr__load_relaxed(&usage->levels), peak };
	}
	if (device_tracks_active(usage)) {
		int64_t others = hr__load_relaxed(&usage->granted) - hr__load_relaxed(&allocator->granted);
		peak = hr__load_relaxed(&usage->peak_active);
		bounds[count++] = (struct bound){ DEVICE, peak - others - active, peak };
	}
	return count;
}

/* Which levels must be made tight before a level of the allocator is raised by [bytes]. *missing gets the bytes for which there is
 * no room. */
static enum scope lacking(const hr__allocator *allocator, int64_t bytes, int64_t *missing)
{
	struct bound bounds[BOUNDS_MAX];
	enum scope scope = NO_SCOPE;
	uint32_t count = bounds_of(allocator, bounds);
	*missing = 0;
	for (uint32_t i = 0; i < count; i++) {
		if (bytes - bounds[i].room > *missing) *missing = bytes - bounds[i].room;
		if (bounds[i].room < bytes && bounds[i].scope > scope) scope = bounds[i].scope;
	}
	return scope;
}

/* How far a level may be above [used] when there is little room below the peak. */
static int64_t part_of(int64_t peak)
{
	int64_t part = peak / FAR_ABOVE_PARTS;
	return part > HR__SLACK ? part : HR__SLACK;
}

/* The share of [room] that a level gets beyond its need: half, to leave room for other meters, but not so little that many small
 * raises follow. */
static int64_t share_of(int64_t room, int64_t part)
{
	int64_t share = (room < part ? room : part) / 2, least = part / 8;
	if (share < least) share = room < least ? room : least;
	return share;
}

/* ---- asking other threads to lower their levels ---- */

static bool mark(hr__meter *meter, uint32_t which, int64_t most)
{
	HR_ASSERT(which == FAR_ABOVE || which == ANY);
	if (above_used(meter) <= most) return false;
	if (hr__load_relaxed(&meter->lowering) < which) hr__store_relaxed(&meter->lowering, which);
	return true;
}

struct marking {
	const hr__meter *self; /* not marked */
	uint32_t which;
	int64_t most;
};

/* Marks the meters of a scope whose level is more than [most] above [used]. Returns whether there are any. */
static bool mark_scope(hr__allocator *allocator, enum scope scope, const struct marking *marking)
{
	HR_ASSERT(scope != NO_SCOPE);
	HR_ASSERT(hr__lock_is_mine(allocator->meter_lock));
	bool any = false;
	hr__allocator *each = scope == DEVICE ? allocator->usage->first : allocator;
	for (; each; each = scope == DEVICE ? each->next_on_device : NULL)
		EACH_METER(each, meter, any |= meter != marking->self && mark(meter, marking->which, marking->most));
	return any;
}

static void serve_mark(hr__allocator *allocator, hr__meter *meter)
{
	if (HR_UNLIKELY(hr__load_relaxed(&meter->lowering))) hr__meter_lower(allocator, meter);
}

/* Waits briefly for other threads to lower their levels, if [bytes] have no room and their levels can be lowered. Meanwhile this
 * thread serves the marks on its own second meter, since the others may be waiting for it. With meter_lock held, which is released
 * during the wait. */
static void wait_for_others_to_lower(hr__allocator *allocator, const hr__meter *meter, hr__meter *other, int64_t bytes)
{
	int64_t missing;
	HR_ASSERT(hr__lock_is_mine(allocator->meter_lock));
	enum scope scope = lacking(allocator, bytes, &missing);
	if (scope == NO_SCOPE || !slack_of(allocator, scope)) return;
	if (!mark_scope(allocator, scope, &(struct marking){ meter, ANY, HR__SLACK })) return;
	hr__store_relaxed(&allocator->usage->missing, missing);
	hr__lock_release(allocator->meter_lock);
	for (unsigned i = 0; i < MAX_ANSWER_PAUSES && lacking(allocator, bytes, &missing) != NO_SCOPE; i++) {
		if (other) serve_mark(allocator, other);
		hr__cpu_pause();
	}
	lock_meters(allocator);
}

/* ---- raising ---- */

/* How much a level that rises by [bytes] may rise beyond that. */
static int64_t extra_of(hr__allocator *allocator, const hr__meter *meter, int64_t bytes)
{
	struct bound bounds[BOUNDS_MAX];
	uint32_t count = bounds_of(allocator, bounds);
	int64_t extra = INT64_MAX;
	for (uint32_t i = 0; i < count; i++) {
		int64_t room = bounds[i].room - bytes, part = part_of(bounds[i].peak), slack = slack_of(allocator, bounds[i].scope);
		int64_t allowed = room < 0 ? slack / 2 : room > 0 ? share_of(room, part) : 0;
		if (slack && room < bounds[i].peak / LOW_ROOM_PARTS) mark_scope(allocator, bounds[i].scope, &(struct marking){ meter, FAR_ABOVE, part });
		if (allowed < extra) extra = allowed;
	}
	return count ? extra : 0;
}

/* Grants pins the room below the allocator's peak, but at most half of the room below the device's. */
static void grant_share(hr__allocator *allocator)
{
	HR_ASSERT(hr__lock_is_mine(allocator->meter_lock));
	const hr__usage *usage = allocator->usage;
	int64_t granted = hr__load_relaxed(&allocator->granted), left = hr__load_relaxed(&allocator->peak_active) - granted;
	if (device_tracks_active(usage)) {
		int64_t device = (hr__load_relaxed(&usage->peak_active) - hr__load_relaxed(&usage->granted)) / 2;
		if (device < left) left = device;
	}
	if (left > 0) grant(allocator, granted + left);
}

/* The scope whose peak of active bytes is below [granted]. */
static enum scope active_above(const hr__allocator *allocator)
{
	const hr__usage *usage = allocator->usage;
	if (device_tracks_active(usage) && hr__load_relaxed(&usage->granted) > hr__load_relaxed(&usage->peak_active)) return DEVICE;
	if (!hr__load_relaxed(&allocator->active)) return NO_SCOPE;
	return hr__load_relaxed(&allocator->granted) > hr__load_relaxed(&allocator->peak_active) ? ALLOCATOR : NO_SCOPE;
}

/* Raises the peaks to at least the sums of levels; levels of scope [tight] are tight already. */
static void commit(hr__allocator *allocator, enum scope tight)
{
	HR_ASSERT(hr__lock_is_mine(allocator->meter_lock));
	hr__usage *usage = allocator->usage;
	bool active = hr__load_relaxed(&allocator->active), device = device_tracks_active(usage);
	if (hr__load_relaxed(&allocator->cache_count) > 1) hr__owner_max(&allocator->peak, hr__load_relaxed(&allocator->levels));
	if (device_is_metered(usage)) hr__owner_max(&usage->peak, hr__load_relaxed(&usage->levels));
	grant(allocator, INT64_MIN);
	for (enum scope above; (above = active_above(allocator)) > tight; tight = above) { /* concurrent pins */
		tighten(allocator, above);
		grant(allocator, INT64_MIN);
	}
	if (active) hr__owner_max(&allocator->peak_active, hr__load_relaxed(&allocator->granted));
	if (device) hr__owner_max(&usage->peak_active, hr__load_relaxed(&usage->granted));
	if (!active) return;
	grant_share(allocator);
	hr__owner_max(&allocator->peak_active, hr__load_relaxed(&allocator->granted));
	if (device) hr__owner_max(&usage->peak_active, hr__load_relaxed(&usage->granted));
}

/* Raises a level to at least [needed]. While other threads pin, commit may tighten this level again: it is raised once more then, and
 * nothing is tightened a second time, because all levels are tight. */
static void raise_level(hr__allocator *allocator, hr__meter *meter, int64_t needed)
{
	for (enum scope tight = NO_SCOPE; needed > hr__load_relaxed(&meter->level); tight = DEVICE) {
		int64_t missing;
		enum scope scope = lacking(allocator, needed - hr__load_relaxed(&meter->level), &missing);
		if (scope > tight) tighten(allocator, scope);
		int64_t bytes = needed - hr__load_relaxed(&meter->level); /* not above 0 if [used] had passed the level: settle raised it */
		if (bytes > 0) {
			bytes += extra_of(allocator, meter, bytes);
			hr__store_relaxed(&meter->level, hr__load_relaxed(&meter->level) + bytes);
			add_levels(allocator, bytes);
		}
		commit(allocator, scope > tight ? scope : tight);
	}
}

void hr__meter_raise(hr__allocator *allocator, hr__meter *meter, hr__meter *other, int64_t size)
{
	HR_ASSERT(size >= 0 && meter != other);
	lock_meters(allocator);
	int64_t needed = hr__load_relaxed(&meter->used) + size;
	if (!ends_level(allocator, meter)) wait_for_others_to_lower(allocator, meter, other, needed - hr__load_relaxed(&meter->level));
	if (!ends_level(allocator, meter)) raise_level(allocator, meter, needed); /* threads may have ended meanwhile */
	hr__lock_release(allocator->meter_lock);
}

/* How much a meter keeps above [used] when another meter has no room: half, or less if more is missing. */
static int64_t to_keep(const hr__allocator *allocator, const hr__meter *meter)
{
	int64_t above = above_used(meter), left = above - hr__load_relaxed(&allocator->usage->missing);
	int64_t keep = left < above / 2 ? left : above / 2;
	return keep > HR__SLACK / 2 ? keep : HR__SLACK / 2;
}

/* Called by the thread that writes [used], or while that thread waits for the caller: so no thread can be about to pass the lowered
 * level. */
void hr__meter_lower(hr__allocator *allocator, hr__meter *meter)
{
	lock_meters(allocator);
	int64_t before = hr__load_relaxed(&meter->level);
	int64_t part = part_of(hr__load_relaxed(device_is_metered(allocator->usage) ? &allocator->usage->peak : &allocator->peak));
	uint32_t which = hr__load_relaxed(&meter->lowering); /* may be NONE: see should_lower */
	int64_t keep = which == FAR_ABOVE ? part / 2 : which == ANY ? to_keep(allocator, meter) : HR__SLACK / 2;
	hr__store_relaxed(&meter->lowering, NONE);
	if (!ends_level(allocator, meter) && lower(meter, which == FAR_ABOVE ? part : HR__SLACK, keep)) {
		add_levels(allocator, hr__load_relaxed(&meter->level) - before);
		lower_granted(allocator);
	}
	hr__lock_release(allocator->meter_lock);
}

void hr__meters_evaluate(hr__allocator *allocator)
{
	HR_ASSERT(hr__lock_is_mine(allocator->meter_lock));
	tighten(allocator, ALLOCATOR);
	commit(allocator, ALLOCATOR);
}

void hr__meters_exact(hr__allocator *allocator)
{
	HR_ASSERT(hr__lock_is_mine(allocator->meter_lock));
	HR_ASSERT(hr__shards_are_locked(allocator) && (!allocator->caches || hr__caches_are_stopped(allocator)));
	if (!hr__meters_are_on(allocator)) return;
	EACH_METER(allocator, meter, hr__store_relaxed(&meter->level, hr__load_relaxed(&meter->used)));
	sum_levels(allocator);
	grant(allocator, INT64_MIN);
}

void hr__meters_update_peak(hr__allocator *allocator)
{
	lock_meters(allocator);
	hr__owner_max(&allocator->peak, hr__meters_sum(allocator));
	hr__lock_release(allocator->meter_lock);
}

int64_t hr__meters_sum(const hr__allocator *allocator)
{
	int64_t sum = 0;
	HR_ASSERT(hr__lock_is_mine(&allocator->caches_lock) || hr__lock_is_mine(allocator->meter_lock));
	for (const hr__shard *shard = allocator->shards; shard < allocator->shards + allocator->shard_max; shard++)
		sum += hr__load_relaxed(&shard->meter.used);
	for (const hr__cache *cache = allocator->caches; cache; cache = cache->next) sum += hr__load_relaxed(&cache->meter.used);
	return sum;
}

int64_t hr__meters_of_others(const hr__shard *shard, const hr__allocator *allocator)
{
	int64_t sum = 0;
	/* Shards are opened in order. A thread that is the only one again gets here at every block, so it reads no more cache lines
	 * than needed. */
	const hr__shard *end = allocator->shards + hr__load_relaxed(&allocator->open_shards);
	for (const hr__shard *other = allocator->shards; other < end; other++)
		if (other != shard) sum += hr__load_relaxed(&other->meter.used);
	return sum;
}

void hr__meters_in_use(const hr__allocator *allocator, int64_t *in_use, int64_t *peak)
{
	HR_ASSERT(hr__lock_is_mine(&allocator->caches_lock));
	const hr__cache *only = hr__load_relaxed(&allocator->cache_count) == 1 ? allocator->caches : NULL;
	int64_t sum = hr__meters_of_others(NULL, allocator), used = 0, high = 0;
	for (const hr__cache *cache = allocator->caches; cache; cache = cache->next) used += hr__load_relaxed(&cache->meter.used);
	if (only) high = hr__load_relaxed(&only->high);
	*in_use = sum + used > 0 ? sum + used : 0;
	*peak = hr__load_relaxed(&allocator->peak);
	if (only && sum + high > *peak) *peak = sum + high;
	if (*in_use > *peak) *peak = *in_use;
}

/* ---- accounting ---- */

/* With one thread: raises the peak to the highest value since the last update, and to the present one. */
static void account_alone(hr__shard *shard, hr__cache *cache, hr__meter *meter, int64_t now)
{
	hr__allocator *allocator = shard->allocator;
	HR_ASSERT(cache == allocator->caches && !cache->next);
	int64_t rest = hr__meters_of_others(shard, allocator);
	int64_t high = hr__load_relaxed(&shard->meter.used) + hr__load_relaxed(&cache->high);
	hr__store_relaxed(&meter->used, now);
	int64_t used = hr__load_relaxed(&cache->meter.used), both = hr__load_relaxed(&shard->meter.used) + used;
	hr__store_relaxed(&cache->high, used);
	hr__owner_max(&allocator->peak, rest + (high > both ? high : both));
}

/* With tensors and several threads, levels bound active bytes and are expensive to tighten, so a free lowers its meter's level. */
static bool should_lower(const hr__allocator *allocator, const hr__meter *meter, int64_t bytes)
{
	if (hr__load_relaxed(&meter->lowering)) return true;
	return bytes < 0 && hr__load_relaxed(&allocator->active) && hr__load_relaxed(&allocator->usage->threads) > 1 &&
	       above_used(meter) > HR__SLACK;
}

void hr__meter_account_any(hr__shard *shard, hr__cache *cache, hr__meter *meter, int64_t bytes)
{
	hr__allocator *allocator = shard->allocator;
	HR_ASSERT(hr__lock_is_mine(&shard->lock));
	HR_ASSERT(!bytes || !cache || cache->thread == hr__thread_self);
	int64_t now = hr__load_relaxed(&meter->used) + bytes;
	if (bytes) hr__stats_scope_note(allocator, cache, bytes);
	hr__meter *other = !cache ? NULL : meter == &shard->meter ? &cache->meter : &shard->meter;
	if (bytes > 0 && HR_UNLIKELY(!hr__meter_allows(meter, bytes))) hr__meter_raise(allocator, meter, other, bytes);
	if (cache && hr__load_relaxed(&allocator->cache_count) == 1) account_alone(shard, cache, meter, now);
	else hr__store_relaxed(&meter->used, now);
	hr__light_barrier(); /* the level may have been lowered meanwhile: see the top of the file */
	if (HR_UNLIKELY(now > hr__load_relaxed(&meter->level))) hr__meter_raise(allocator, meter, other, 0);
	if (HR_UNLIKELY(should_lower(allocator, meter, bytes))) hr__meter_lower(allocator, meter);
	if (other) serve_mark(allocator, other);
	if (HR_UNLIKELY(!cache)) hr__meters_update_peak(allocator);
}

/* ---- tensors ---- */

void hr__meters_begin_active(hr__allocator *allocator)
{
	hr__caches_stop(allocator);
	hr__shards_lock(allocator);
	hr__lock_take(allocator->meter_lock);
	hr__usage *usage = allocator->usage;
	HR_ASSERT(allocator->kind == HR__KIND_BFC);
	if (!hr__load_relaxed(&allocator->active)) {
		const hr__cache *only = hr__load_relaxed(&allocator->cache_count) == 1 ? allocator->caches : NULL;
		if (only) hr__owner_max(&allocator->peak, hr__meters_of_others(NULL, allocator) + hr__load_relaxed(&only->high));
		hr__store_relaxed(&allocator->peak_active, hr__load_relaxed(&allocator->peak));
		if (!hr__load_relaxed(&usage->active)) hr__owner_max(&usage->peak_active, hr__load_relaxed(&usage->peak));
		hr__store_relaxed(&usage->active, 1);
		hr__store_relaxed(&allocator->active, 1);
		hr__store_relaxed(&allocator->metered, 1);
		hr__meters_exact(allocator);
	}
	hr__lock_release(allocator->meter_lock);
	hr__shards_unlock(allocator);
	hr__caches_start(allocator);
}

/* For a pin whose active bytes may exceed [granted]. */
static __attribute__((noinline)) void raise_granted(hr__allocator *allocator)
{
	hr__cache_get(allocator); /* counts a thread that pins as a user of the allocator */
	lock_meters(allocator);
	int64_t missing;
	HR_ASSERT(hr__load_relaxed(&allocator->active));
	wait_for_others_to_lower(allocator, NULL, NULL, 0);
	enum scope scope = lacking(allocator, 0, &missing);
	if (scope != NO_SCOPE) tighten(allocator, scope);
	commit(allocator, scope);
	hr__lock_release(allocator->meter_lock);
}

void hr__meters_add_inactive(hr__allocator *allocator, int64_t bytes)
{
	HR_ASSERT(hr__load_relaxed(&allocator->active) && !hr__lock_is_mine(allocator->meter_lock));
	hr__fetch_add_seq_cst(&allocator->inactive, bytes);
	if (bytes < 0 && HR_UNLIKELY(active_bound(allocator) > hr__load_relaxed(&allocator->granted))) raise_granted(allocator);
}

/* ---- threads and allocators ---- */

/* Whether a thread has a cache on the device other than [but]. */
static bool uses_device(const hr__usage *usage, const hr__thread_state *thread, const hr__cache *but)
{
	EACH_ALLOCATOR(usage, allocator)
	{
		for (const hr__cache *cache = allocator->caches; cache; cache = cache->next)
			if (cache != but && cache->thread == thread) return true;
	}
	return false;
}

static void note_device_error(hr__usage *usage)
{
	HR_ASSERT(hr__lock_is_mine(&usage->lock));
	int64_t meters = 0;
	if (hr__load_relaxed(&usage->threads) < 2) return;
	EACH_ALLOCATOR(usage, allocator) meters += hr__load_relaxed(&allocator->cache_count) + hr__load_relaxed(&allocator->open_shards);
	hr__owner_max(&usage->peak_error, meters * HR__SLACK);
}

void hr__meters_join(hr__allocator *allocator, hr__cache *cache)
{
	hr__usage *usage = allocator->usage;
	HR_ASSERT(hr__lock_is_mine(&usage->lock));
	if (!uses_device(usage, cache->thread, cache)) hr__store_relaxed(&usage->threads, hr__load_relaxed(&usage->threads) + 1);
	note_device_error(usage);
}

void hr__meters_leave(hr__allocator *allocator, hr__cache *cache)
{
	hr__usage *usage = allocator->usage;
	HR_ASSERT(hr__lock_is_mine(&usage->lock));
	HR_ASSERT(hr__load_relaxed(&usage->threads) > 0);
	if (!uses_device(usage, cache->thread, cache)) hr__store_relaxed(&usage->threads, hr__load_relaxed(&usage->threads) - 1);
}

void hr__meters_restart(hr__usage *usage)
{
	HR_ASSERT(hr__allocators_are_locked() && hr__lock_none_from(HR__RANK_CACHES));
	hr__lock_take(&usage->lock);
	hr__store_relaxed(&usage->peak_error, 0);
	note_device_error(usage);
	if (usage->first && device_is_metered(usage)) tighten(usage->first, DEVICE);
	bool metered = device_is_metered(usage);
	hr__store_relaxed(&usage->peak, metered ? hr__load_relaxed(&usage->levels) : 0);
	hr__store_relaxed(&usage->peak_active, metered ? hr__load_relaxed(&usage->granted) : 0);
	hr__lock_release(&usage->lock);
}
