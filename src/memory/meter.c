/* meter.c - the peak of bytes in use, without adding up at every block.
 *
 * What is in use is the sum of all meters: one for each thread's cache, one for each shard. With one thread the peak is exact: the
 * cache remembers its highest [used], and each operation under the lock adds that to what the shard has.
 *
 * With several threads every meter has a level, which [used] passes only after asking here, and
 *
 *     in use  <=  sum of levels  <=  peak
 *
 * Asking raises a level to what is needed, and by some of what is free between the sum of levels and the peak, which costs nothing. In a
 * program that does the same again and again nobody passes his level any more, and no line is written that others read.
 *
 * If nothing is free there, the levels must be made tight: those more than HR__SLACK above their [used] are lowered. If that is not
 * enough, the level is raised by half of HR__SLACK besides what is needed, and the sum of levels, at most HR__SLACK too high for each
 * meter, is the new peak.
 *
 * Two threads whose highs do not coincide must do that at every climb, because each finds the other's level where its last high left it.
 * Lowering the level of another thread is expensive: the thread has to be interrupted, which takes 15 us with the lock held. So the thread
 * is asked first: its meter is marked as [wanted], and the thread lowers the level itself with its next block, which needs no barrier and
 * takes less than 1 us (hr__meter_sink). It keeps half of what the level is above [used], or less if more is missing: a thread that gives
 * up everything has to ask for more at its next block. A block that is accounted for under the shard's lock answers for both meters of
 * the thread, and so does a thread that waits for an answer itself. Only a thread that does not answer soon, because it does something
 * else, is interrupted; its level is tight then, so it is not asked again.
 *
 * When little is free below the peak, meters that are far below their levels are marked too, and give back some of it before it is
 * needed. A meter that merely goes up and down a little is left alone until it has to be asked: it would only ask for more at once.
 *
 * How it stays an upper bound: whoever accounts for a block may have seen the old level of a meter that is being lowered. After a heavy
 * barrier whoever begins sees the new one. The owner of a cache who began before is waited for; then his [used] is read again, and a
 * level that it passed is put above it. Who accounts under a shard's lock cannot be waited for, since he may be waiting for meter_lock;
 * he looks at the level once more afterwards, and at least one of the two sees what the other did. */
#include "memory/allocator.h"

#define PARTS 8       /* of the peak: a meter whose level is more than one part above [used] is far below it */
#define LITTLE 64     /* parts of the peak: when less than one of them is free, such meters give some back */
#define SPINS 32u     /* pauses of the processor: about 1 us */
#define PATIENCE 128u /* pauses of the processor: about 4 us, which are a few hundred operations of another thread */

/* The lock is held for about 50 ns, except around heavy barriers. hr__lock_take pauses for 2 us before it looks again. */
static void lock_meters(hr__allocator *allocator)
{
	for (unsigned i = 0; i < SPINS; i++) {
		if (hr__lock_try(&allocator->meter_lock)) return;
		hr__cpu_pause();
	}
	hr__lock_take(&allocator->meter_lock);
}

/* Values of hr__meter.wanted: which levels are to be lowered. */
enum { NONE = 0, FAR_ABOVE, ANY };

/* How far the level is above [used]. */
static int64_t slack_of(const hr__meter *meter)
{
	return hr__load_relaxed(&meter->level) - hr__load_relaxed(&meter->used);
}

/* Lowers a level that is more than [most] above [used] so that it is [keep] above it. */
static bool lower(hr__meter *meter, int64_t most, int64_t keep)
{
	if (slack_of(meter) <= most) return false;
	hr__store_relaxed(&meter->level, hr__load_relaxed(&meter->used) + keep);
	return true;
}

static int64_t settled_level(hr__meter *meter)
{
	int64_t used = hr__load_relaxed(&meter->used);
	if (used > hr__load_relaxed(&meter->level)) hr__store_relaxed(&meter->level, used + HR__SLACK / 2);
	return hr__load_relaxed(&meter->level);
}

void hr__meters_evaluate(hr__allocator *allocator)
{
	bool lowered = false;
	int64_t levels = 0;
	HR_ASSERT(hr__lock_is_held(&allocator->meter_lock));
	HR__EACH_SHARD(allocator, shard) lowered |= lower(&shard->meter, HR__SLACK, HR__SLACK / 2);
	for (hr__cache *cache = allocator->caches; cache; cache = cache->next) lowered |= lower(&cache->meter, HR__SLACK, HR__SLACK / 2);
	if (lowered) {
		hr__heavy_barrier();
		for (hr__cache *cache = allocator->caches; cache; cache = cache->next) hr__cache_wait_idle(cache);
	}
	HR__EACH_SHARD(allocator, shard) levels += settled_level(&shard->meter);
	for (hr__cache *cache = allocator->caches; cache; cache = cache->next) levels += settled_level(&cache->meter);
	hr__store_relaxed(&allocator->levels, levels);
	hr__max(&allocator->peak, levels);
}

/* One thread alone needs no levels. With meter_lock held. */
static bool is_alone(const hr__allocator *allocator, hr__meter *meter)
{
	if (hr__load_relaxed(&allocator->cache_count) > 1) return false;
	hr__store_relaxed(&meter->level, HR__NO_LEVEL);
	return true;
}

/* How far a level may be above [used] when there is little room below the peak. */
static int64_t part_of_peak(const hr__allocator *allocator)
{
	int64_t part = hr__load_relaxed(&allocator->peak) / PARTS;
	return part > HR__SLACK ? part : HR__SLACK;
}

/* What would be left between the levels and the peak if that of [meter] were [needed]. */
static int64_t room_with(const hr__allocator *allocator, const hr__meter *meter, int64_t needed)
{
	return hr__load_relaxed(&allocator->peak) - hr__load_relaxed(&allocator->levels) - (needed - hr__load_relaxed(&meter->level));
}

static bool want(hr__meter *meter, uint32_t which, int64_t most)
{
	if (slack_of(meter) <= most) return false;
	if (hr__load_relaxed(&meter->wanted) < which) hr__store_relaxed(&meter->wanted, which);
	return true;
}

/* Marks the meters, but not [self], whose level is more than [most] above [used]. Whether there are any. With meter_lock held. */
static bool want_back(hr__allocator *allocator, const hr__meter *self, uint32_t which, int64_t most)
{
	bool any = false;
	HR__EACH_SHARD(allocator, shard)
	{
		if (&shard->meter != self) any |= want(&shard->meter, which, most);
	}
	for (hr__cache *cache = allocator->caches; cache; cache = cache->next)
		if (&cache->meter != self) any |= want(&cache->meter, which, most);
	return any;
}

/* What somebody who asks gets of the [room] besides what he needs: half of it for the others, but not in many small steps. */
static int64_t share_of(int64_t room, int64_t part)
{
	int64_t share = (room < part ? room : part) / 2, least = part / 8;
	if (share < least) share = room < least ? room : least;
	return share;
}

/* Raises a level to [needed] at least. With meter_lock held. */
static void raise_level(hr__allocator *allocator, hr__meter *meter, int64_t needed)
{
	if (needed <= hr__load_relaxed(&meter->level)) return;
	if (room_with(allocator, meter, needed) < 0) {
		hr__meters_evaluate(allocator);
		if (room_with(allocator, meter, needed) < 0) needed += HR__SLACK / 2;
	}
	int64_t room = room_with(allocator, meter, needed), part = part_of_peak(allocator);
	if (room < hr__load_relaxed(&allocator->peak) / LITTLE) want_back(allocator, meter, FAR_ABOVE, part);
	if (room > 0) needed += share_of(room, part);
	hr__owner_add(&allocator->levels, needed - hr__load_relaxed(&meter->level));
	hr__store_relaxed(&meter->level, needed);
	hr__max(&allocator->peak, hr__load_relaxed(&allocator->levels));
}

static void answer(hr__allocator *allocator, hr__meter *meter)
{
	if (HR_UNLIKELY(hr__load_relaxed(&meter->wanted))) hr__meter_sink(allocator, meter);
}

/* Lets others lower their levels, if there is no room for [needed] and they can. Meanwhile this thread does the same for its own meters: the
 * others may be waiting for it. With meter_lock held, which is released meanwhile. */
static void ask_others(hr__allocator *allocator, hr__meter *meter, hr__meter *other, int64_t needed)
{
	if (room_with(allocator, meter, needed) >= 0 || !want_back(allocator, meter, ANY, HR__SLACK)) return;
	hr__store_relaxed(&allocator->missing, -room_with(allocator, meter, needed));
	hr__lock_release(&allocator->meter_lock);
	for (unsigned i = 0; i < PATIENCE && room_with(allocator, meter, needed) < 0; i++) {
		if (other) answer(allocator, other);
		hr__cpu_pause();
	}
	lock_meters(allocator);
}

void hr__meter_raise(hr__allocator *allocator, hr__meter *meter, hr__meter *other, int64_t size)
{
	lock_meters(allocator);
	int64_t needed = hr__load_relaxed(&meter->used) + size;
	if (!is_alone(allocator, meter)) ask_others(allocator, meter, other, needed);
	if (!is_alone(allocator, meter)) raise_level(allocator, meter, needed); /* the others may have gone meanwhile */
	hr__lock_release(&allocator->meter_lock);
}

/* What a meter keeps above [used] when another one has no room: half, unless more than that is missing. */
static int64_t to_keep(const hr__allocator *allocator, const hr__meter *meter)
{
	int64_t slack = slack_of(meter), left = slack - hr__load_relaxed(&allocator->missing);
	int64_t keep = left < slack / 2 ? left : slack / 2;
	return keep > HR__SLACK / 2 ? keep : HR__SLACK / 2;
}

/* Whoever writes [used] is the caller, or waits for him: nobody can be about to pass the level that is lowered here. */
void hr__meter_sink(hr__allocator *allocator, hr__meter *meter)
{
	lock_meters(allocator);
	int64_t before = hr__load_relaxed(&meter->level);
	int64_t part = part_of_peak(allocator);
	bool any = hr__load_relaxed(&meter->wanted) == ANY;
	hr__store_relaxed(&meter->wanted, NONE);
	if (!is_alone(allocator, meter) && lower(meter, any ? HR__SLACK : part, any ? to_keep(allocator, meter) : part / 2))
		hr__owner_add(&allocator->levels, hr__load_relaxed(&meter->level) - before);
	hr__lock_release(&allocator->meter_lock);
}

void hr__meters_look(hr__allocator *allocator)
{
	lock_meters(allocator);
	hr__max(&allocator->peak, hr__meters_sum(allocator));
	hr__lock_release(&allocator->meter_lock);
}

int64_t hr__meters_sum(const hr__allocator *allocator)
{
	int64_t sum = 0;
	for (const hr__shard *shard = allocator->shards; shard < allocator->shards + allocator->shard_max; shard++)
		sum += hr__load_relaxed(&shard->meter.used);
	for (const hr__cache *cache = allocator->caches; cache; cache = cache->next) sum += hr__load_relaxed(&cache->meter.used);
	return sum;
}

int64_t hr__meters_of_others(const hr__shard *shard, const hr__allocator *allocator)
{
	int64_t sum = 0;
	for (const hr__shard *other = allocator->shards; other < allocator->shards + allocator->shard_max; other++)
		if (other != shard) sum += hr__load_relaxed(&other->meter.used);
	return sum;
}

void hr__account_any(hr__shard *shard, hr__cache *cache, hr__meter *meter, int64_t bytes)
{
	hr__allocator *allocator = shard->allocator;
	int64_t now = hr__load_relaxed(&meter->used) + bytes;
	if (bytes) hr__observe(allocator, cache, bytes);
	if (cache && hr__load_relaxed(&allocator->cache_count) == 1) {
		int64_t rest = hr__meters_of_others(shard, allocator);
		int64_t high = hr__load_relaxed(&shard->meter.used) + hr__load_relaxed(&cache->high);
		hr__store_relaxed(&meter->used, now);
		int64_t used = hr__load_relaxed(&cache->meter.used), both = hr__load_relaxed(&shard->meter.used) + used;
		hr__store_relaxed(&cache->high, used);
		hr__max(&allocator->peak, rest + (high > both ? high : both));
		return;
	}
	hr__meter *other = !cache ? NULL : meter == &shard->meter ? &cache->meter : &shard->meter;
	if (bytes > 0 && HR_UNLIKELY(!hr__meter_allows(meter, bytes))) hr__meter_raise(allocator, meter, other, bytes);
	hr__store_relaxed(&meter->used, now);
	hr__light_barrier(); /* the level may have been lowered since: see above */
	if (HR_UNLIKELY(now > hr__load_relaxed(&meter->level))) hr__meter_raise(allocator, meter, other, 0);
	answer(allocator, meter);
	if (other) answer(allocator, other);
	if (HR_UNLIKELY(!cache)) hr__meters_look(allocator);
}
