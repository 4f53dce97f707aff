/* meter.c - the peak of bytes in use, without adding up at every block.
 *
 * What is in use is the sum of all meters: one for each thread's cache, one for each shard. With one thread the peak is exact: the
 * cache remembers its highest [used], and each operation under the lock adds that to what the shard has.
 *
 * With several threads every meter has a level, which [used] passes only after asking here, and
 *
 *     in use  <=  sum of levels  <=  peak
 *
 * Asking raises a level to what is needed and half of HR__SLACK. If the sum of levels would pass the peak by that, the levels are first
 * made tight: those more than HR__SLACK above their [used] are lowered. What remains is at most HR__SLACK too high for each meter, and
 * becomes the peak. In a program that does the same again and again nobody passes his level any more, and no line is written that others
 * read.
 *
 * Making levels tight is dear, for it interrupts the other threads: 15 us. Two threads whose highs do not fall together would do it at
 * every climb, since each finds the other's level where its last high has left it. So before the levels reach the peak, meters that are
 * far below theirs, by more than a part of the peak, are marked as [wanted], and whoever takes memory back through them looks at that and
 * lowers the level himself, which needs no barrier (hr__meter_sink). A meter that merely goes up and down a little is left alone: it
 * would only ask for more at once. And what is free between the sum of levels and the peak costs nothing, so who asks for more gets some
 * of it, up to half a part.
 *
 * How it stays an upper bound: whoever accounts for a block may have seen the old level of a meter that is being lowered. After a heavy
 * barrier whoever begins sees the new one. The owner of a cache who began before is waited for; then his [used] is read again, and a
 * level that it passed is put above it. Who accounts under a shard's lock cannot be waited for, since he may be waiting for meter_lock;
 * he looks at the level once more afterwards, and at least one of the two sees what the other did. */
#include "memory/allocator.h"

#define PARTS 8 /* of the peak */

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

static void want_back(hr__meter *meter, int64_t part)
{
	if (hr__load_relaxed(&meter->level) - hr__load_relaxed(&meter->used) > part) hr__store_relaxed(&meter->wanted, 1);
}

/* Raises a level to [needed] at least. With meter_lock held. */
static void raise_level(hr__allocator *allocator, hr__meter *meter, int64_t needed)
{
	int64_t more = needed - hr__load_relaxed(&meter->level);
	if (more <= 0) return;
	if (hr__load_relaxed(&allocator->levels) + more > hr__load_relaxed(&allocator->peak)) {
		hr__meters_evaluate(allocator);
		more = needed - hr__load_relaxed(&meter->level);
	}
	int64_t room = hr__load_relaxed(&allocator->peak) - hr__load_relaxed(&allocator->levels) - more;
	int64_t part = part_of_peak(allocator);
	if (room < part) {
		HR__EACH_SHARD(allocator, shard) want_back(&shard->meter, part);
		for (hr__cache *cache = allocator->caches; cache; cache = cache->next) want_back(&cache->meter, part);
	}
	if (room > 0) more += (room < part ? room : part) / 2;
	hr__owner_add(&meter->level, more);
	hr__owner_add(&allocator->levels, more);
	hr__max(&allocator->peak, hr__load_relaxed(&allocator->levels));
}

void hr__meter_raise(hr__allocator *allocator, hr__meter *meter, int64_t size)
{
	hr__lock_take(&allocator->meter_lock);
	if (!is_alone(allocator, meter)) raise_level(allocator, meter, hr__load_relaxed(&meter->used) + size + HR__SLACK / 2);
	hr__lock_release(&allocator->meter_lock);
}

/* Whoever writes [used] is the caller, or waits for him: nobody can be about to pass the level that is lowered here. */
void hr__meter_sink(hr__allocator *allocator, hr__meter *meter)
{
	hr__lock_take(&allocator->meter_lock);
	hr__store_relaxed(&meter->wanted, 0);
	if (!is_alone(allocator, meter)) {
		int64_t before = hr__load_relaxed(&meter->level);
		if (lower(meter, part_of_peak(allocator))) hr__owner_add(&allocator->levels, hr__load_relaxed(&meter->level) - before);
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
	if (bytes < 0 && HR_UNLIKELY(hr__load_relaxed(&meter->wanted))) hr__meter_sink(allocator, meter);
	if (HR_UNLIKELY(!cache)) hr__meters_look(allocator);
}
