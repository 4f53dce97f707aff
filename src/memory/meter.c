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
 * Two threads whose highs do not fall together must do that at every climb, since each finds the other's level where its last high has
 * left it. To do it for another thread is dear, for that has to be interrupted: 15 us, and the lock is held meanwhile. So he is asked
 * first: his meter is marked as [wanted], and whoever accounts for a block through it sees that and lowers the level himself, which needs
 * no barrier and takes less than 1 us (hr__meter_sink). Only a thread that does not answer soon, because it does something else, is
 * interrupted; its level is tight then, so it is not asked again.
 *
 * And before nothing is free at all, meters that are far below their levels, by more than a part of the peak, are marked too, and give
 * back what is above half a part. A meter that merely goes up and down a little is left alone until it has to be asked: it would only
 * ask for more at once.
 *
 * How it stays an upper bound: whoever accounts for a block may have seen the old level of a meter that is being lowered. After a heavy
 * barrier whoever begins sees the new one. The owner of a cache who began before is waited for; then his [used] is read again, and a
 * level that it passed is put above it. Who accounts under a shard's lock cannot be waited for, since he may be waiting for meter_lock;
 * he looks at the level once more afterwards, and at least one of the two sees what the other did. */
#include "memory/allocator.h"

#define PARTS 8       /* of the peak */
#define PATIENCE 128u /* pauses of the processor: about 4 us, which are a few hundred operations of another thread */

/* Values of hr__meter.wanted: which levels are to be lowered. */
enum { NONE = 0, FAR_ABOVE, ANY };

/* Lowers a level that is more than [most] above [used] to half of that. */
static bool lower(hr__meter *meter, int64_t most)
{
	int64_t used = hr__load_relaxed(&meter->used);
	if (hr__load_relaxed(&meter->level) - used <= most) return false;
	hr__store_relaxed(&meter->level, used + most / 2);
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
	HR__EACH_SHARD(allocator, shard) lowered |= lower(&shard->meter, HR__SLACK);
	for (hr__cache *cache = allocator->caches; cache; cache = cache->next) lowered |= lower(&cache->meter, HR__SLACK);
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
	if (hr__load_relaxed(&meter->level) - hr__load_relaxed(&meter->used) <= most) return false;
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

/* Lets others lower their levels, if there is no room for [needed] and they can. With meter_lock held, which is let go of meanwhile. */
static void ask_others(hr__allocator *allocator, const hr__meter *meter, int64_t needed)
{
	if (room_with(allocator, meter, needed) >= 0 || !want_back(allocator, meter, ANY, HR__SLACK)) return;
	hr__lock_release(&allocator->meter_lock);
	for (unsigned i = 0; i < PATIENCE && room_with(allocator, meter, needed) < 0; i++) hr__cpu_pause();
	hr__lock_take(&allocator->meter_lock);
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
	if (room < part) want_back(allocator, meter, FAR_ABOVE, part);
	if (room > 0) needed += share_of(room, part);
	hr__owner_add(&allocator->levels, needed - hr__load_relaxed(&meter->level));
	hr__store_relaxed(&meter->level, needed);
	hr__max(&allocator->peak, hr__load_relaxed(&allocator->levels));
}

void hr__meter_raise(hr__allocator *allocator, hr__meter *meter, int64_t size)
{
	hr__lock_take(&allocator->meter_lock);
	int64_t needed = hr__load_relaxed(&meter->used) + size;
	if (!is_alone(allocator, meter)) ask_others(allocator, meter, needed);
	if (!is_alone(allocator, meter)) raise_level(allocator, meter, needed); /* the others may have gone meanwhile */
	hr__lock_release(&allocator->meter_lock);
}

/* Whoever writes [used] is the caller, or waits for him: nobody can be about to pass the level that is lowered here. */
void hr__meter_sink(hr__allocator *allocator, hr__meter *meter)
{
	hr__lock_take(&allocator->meter_lock);
	int64_t most = hr__load_relaxed(&meter->wanted) == ANY ? HR__SLACK : part_of_peak(allocator);
	hr__store_relaxed(&meter->wanted, NONE);
	if (!is_alone(allocator, meter)) {
		int64_t before = hr__load_relaxed(&meter->level);
		if (lower(meter, most)) hr__owner_add(&allocator->levels, hr__load_relaxed(&meter->level) - before);
	}
	hr__lock_release(&allocator->meter_lock);
}

void hr__meters_look(hr__allocator *allocator)
{
	hr__lock_take(&allocator->meter_lock);
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
	if (bytes > 0 && HR_UNLIKELY(!hr__meter_allows(meter, bytes))) hr__meter_raise(allocator, meter, bytes);
	hr__store_relaxed(&meter->used, now);
	hr__light_barrier(); /* the level may have been lowered since: see above */
	if (HR_UNLIKELY(now > hr__load_relaxed(&meter->level))) hr__meter_raise(allocator, meter, 0);
	if (HR_UNLIKELY(hr__load_relaxed(&meter->wanted))) hr__meter_sink(allocator, meter);
	if (HR_UNLIKELY(!cache)) hr__meters_look(allocator);
}
