/* log.c - see log.h.
 *
 * An entry in a ring is eight words. The first is its number, which is 0 while the entry is being written:
 *
 *     | number | ticks | bytes | address | op, scope | tag, shape | thread, dtype, action | - |
 *
 * Copies for reports go to blocks that are allocated before any request fails. The blocks grow with the largest log. A replaced
 * block is kept until hr_shutdown, because a report may still point to it. */
#include "core/memory/log.h"

#include <string.h>

#include "core/base/lock.h"
#include "core/base/status.h"
#include "core/base/struct.h"
#include "core/base/text/text.h"
#include "core/memory/allocator.h"
#include "core/memory/oom/oom.h"
#include "core/os/os.h"

#define RATE_LEAST 1e-12 /* lower rates count as 0: one operation in a day */

enum { NUMBER, TICKS, BYTES, ADDRESS, OP_SCOPE, TAG_SHAPE, REST, WORDS = 8 };

typedef struct raw_entry {
	hr__atomic_u64 words[WORDS];
} raw_entry;

struct hr__log_ring {
	hr__atomic_u64 written; /* entries ever written; the number of the newest */
	uint32_t at;            /* index of the next entry; owner only */
	uint32_t size, thread;  /* immutable, as are the next three */
	bool samples;           /* the sampling rate is below 1 */
	bool skips_frees;
	double scale;           /* for drawing the distance to the next entry */
	uint64_t random;        /* owner only */
	raw_entry entries[] __attribute__((aligned(64)));
};

/* ---- random sampling ---- */

uint64_t hr__log_seed;

static uint64_t next_random(uint64_t *state)
{
	uint64_t x = *state += UINT64_C(0x9E3779B97F4A7C15);
	x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
	x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
	return x ^ (x >> 31);
}

/* The natural logarithm of 0 < x <= 1, to about 1e-9, which is enough for sampling and avoids libm. Without branches, because half
 * of them would be mispredicted on random numbers. */
static double natural_log(double x)
{
	HR_ASSERT(x > 0 && x <= 1);
	uint64_t bits;
	double mantissa;
	memcpy(&bits, &x, sizeof bits);
	double exponent = (double)((int)(bits >> 52) - 1023) + 0.5; /* x = mantissa * 2^exponent, mantissa from 1 / sqrt 2 to sqrt 2 */
	bits = (bits & ((UINT64_C(1) << 52) - 1)) | (UINT64_C(1023) << 52);
	memcpy(&mantissa, &bits, sizeof mantissa);
	mantissa *= 0.70710678118654752;
	/* ln m = 2 (s + s^3/3 + s^5/5 + ...) with s = (m - 1) / (m + 1), here within 0.172 of 0 */
	double s = (mantissa - 1) / (mantissa + 1), q = s * s;
	double sum = 1 + q * (1. / 3 + q * (1. / 5 + q * (1. / 7 + q * (1. / 9 + q * (1. / 11)))));
	return 2 * s * sum + exponent * 0.69314718055994531;
}

/* ln(1 - x) for 0 < x < 1; near 0, natural_log(1 - x) would lose all its digits. */
static double natural_log_of_rest(double x)
{
	return x < 0.01 ? -x * (1 + x * (1. / 2 + x * (1. / 3 + x * (1. / 4 + x / 5)))) : natural_log(1 - x);
}

/* Number of operations to skip before the next logged one: k with probability rate * (1 - rate)^k. That is the distance between two
 * successes of independent trials, so each operation is chosen independently of all others, without a draw for each. */
static int64_t draw(hr__log_ring *ring)
{
	HR_ASSERT(ring->samples && ring->scale < 0);
	double chance = (double)((next_random(&ring->random) >> 11) + 1) * 0x1p-53; /* in (0, 1] */
	double skip = natural_log(chance) * ring->scale;
	if (skip > 1e18) return HR__LOG_NEVER;
	return skip > 0 ? (int64_t)skip : 0; /* rounding may make the logarithm of 1 positive */
}

/* ---- writing ---- */

/* Inlined into both callers: at a rate of 1 every operation takes this path. */
__attribute__((always_inline)) static inline void put(hr__cache *cache, uint64_t bytes, uint64_t address, hr_name op, hr_name scope,
                                                      hr_name tag, hr_shape shape, unsigned dtype, enum hr__log_action action)
{
	uint64_t ticks = hr__ticks();
	hr__log_ring *ring = cache->log;
	uint32_t at = ring->at;
	HR_ASSERT(at < ring->size && cache->thread == hr__thread_self);
	hr__atomic_u64 *words = ring->entries[at].words;
	uint64_t number = hr__load_relaxed(&ring->written) + 1;
	hr__store_relaxed(&words[NUMBER], 0);
	hr__fence_release();
	hr__store_relaxed(&words[BYTES], bytes);
	hr__store_relaxed(&words[ADDRESS], address);
	hr__store_relaxed(&words[OP_SCOPE], (uint64_t)op << 32 | scope);
	hr__store_relaxed(&words[TAG_SHAPE], (uint64_t)tag << 32 | shape);
	hr__store_relaxed(&words[REST], (uint64_t)ring->thread << 32 | dtype << 8 | (unsigned)action);
	hr__store_relaxed(&words[TICKS], ticks);
	hr__store_release(&words[NUMBER], number);
	hr__store_release(&ring->written, number);
	ring->at = at + 1 == ring->size ? 0 : at + 1;
	if (ring->samples) cache->log_left = draw(ring);
}

void hr__log_write_alloc(hr__cache *cache, const hr_request *request, uint64_t address)
{
	put(cache, request->bytes, address, request->op, request->scope, request->tag, request->shape, (unsigned)request->dtype, HR__LOG_ALLOC);
}

void hr__log_write_free(hr__cache *cache, const hr__chunk *chunk)
{
	if (cache->log->skips_frees) {
		if (cache->log->samples) cache->log_left = draw(cache->log);
		return;
	}
	put(cache, chunk->requested, hr__chunk_address(chunk), chunk->op, chunk->scope, chunk->tag, chunk->shape, chunk->dtype, HR__LOG_FREE);
}

/* ---- rings ---- */

static size_t ring_bytes(uint32_t size)
{
	return sizeof(hr__log_ring) + size * sizeof(raw_entry) + 64;
}

/* The ring is aligned to a cache line inside its block. The word before the ring points to the block. */
static hr__log_ring *ring_new(const hr_oom_options *options, uint32_t thread)
{
	void *block;
	if (hr__os()->alloc(ring_bytes(options->allocation_log_buffer_size), &block)) return NULL;
	hr__log_ring *ring = (hr__log_ring *)(((uintptr_t)block + 64) & ~(uintptr_t)63);
	((void **)ring)[-1] = block;
	ring->size = options->allocation_log_buffer_size;
	ring->thread = thread;
	ring->skips_frees = options->allocation_log_allocations_only;
	ring->random = hr__log_seed ? hr__log_seed : hr__ticks() ^ (uintptr_t)ring;
	double rate = options->allocation_log_sampling_rate;
	ring->samples = rate >= RATE_LEAST && rate < 1;
	if (ring->samples) ring->scale = 1 / natural_log_of_rest(rate);
	return ring;
}

static void ring_free(hr__log_ring *ring)
{
	if (ring) hr__os()->free(((void **)ring)[-1], ring_bytes(ring->size));
}

/* Sets the cache's ring (NULL = none). The owner must not be using the cache. */
static void set_ring(hr__cache *cache, hr__log_ring *ring, double rate)
{
	HR_ASSERT(hr__lock_is_mine(&cache->allocator->caches_lock));
	cache->log = ring;
	hr__store_relaxed(&cache->log_bytes, ring ? ring_bytes(ring->size) : 0);
	cache->log_left = ring && rate >= RATE_LEAST ? 0 : HR__LOG_NEVER;
	if (ring && ring->samples) cache->log_left = draw(ring);
}

/* The number of the cache's thread, assigned at first use. */
static uint32_t number_of(hr__allocator *allocator, hr__cache *cache)
{
	HR_ASSERT(hr__lock_is_mine(&allocator->caches_lock));
	if (!hr__load_relaxed(&cache->log_thread)) hr__store_relaxed(&cache->log_thread, ++allocator->log_threads);
	return hr__load_relaxed(&cache->log_thread);
}

void hr__log_join(hr__allocator *allocator, hr__cache *cache)
{
	bool on = allocator->oom.report_allocations_on_oom;
	set_ring(cache, on ? ring_new(&allocator->oom, number_of(allocator, cache)) : NULL, allocator->oom.allocation_log_sampling_rate);
}

/* ---- reading ---- */

/* Reads entry [number] of a ring; false if it was overwritten or is being overwritten. */
static bool read_entry(const hr__log_ring *ring, uint64_t number, uint64_t words[WORDS])
{
	HR_ASSERT(number > 0);
	const raw_entry *entry = &ring->entries[(number - 1) % ring->size];
	if (hr__load_acquire(&entry->words[NUMBER]) != number) return false;
	for (int i = TICKS; i <= REST; i++) words[i] = hr__load_relaxed(&entry->words[i]);
	hr__fence_acquire();
	return hr__load_relaxed(&entry->words[NUMBER]) == number;
}

/* Converts ticks to the time of day, and addresses as the option says. */
struct log_reading {
	uint64_t ticks, time_ns;
	double ns_per_tick;
	hr_oom_log_address address;
};

static uint64_t reported_address(const struct log_reading *reading, uint64_t address)
{
	static uint64_t salt; /* one report is made at a time; a race would be harmless */
	if (reading->address == HR_LOG_REAL_ADDRESS) return address;
	if (reading->address == HR_LOG_NO_ADDRESS) return 0;
	while (salt == 0) salt = hr__os()->wall_clock_ns() ^ (uintptr_t)&salt ^ hr__ticks() << 20;
	uint64_t state = address ^ salt;
	return next_random(&state);
}

static hr__log_entry decode(const struct log_reading *reading, const uint64_t words[WORDS])
{
	int64_t ago = (int64_t)((double)(int64_t)(reading->ticks - words[TICKS]) * reading->ns_per_tick);
	return (hr__log_entry){ .time_ns = reading->time_ns - (uint64_t)(ago > 0 ? ago : 0),
		                    .bytes = words[BYTES],
		                    .address = reported_address(reading, words[ADDRESS]),
		                    .op = (hr_name)(words[OP_SCOPE] >> 32),
		                    .scope = (hr_name)words[OP_SCOPE],
		                    .tag = (hr_name)(words[TAG_SHAPE] >> 32),
		                    .shape = (hr_shape)words[TAG_SHAPE],
		                    .thread = (uint32_t)(words[REST] >> 32),
		                    .dtype = (uint8_t)(words[REST] >> 8),
		                    .action = (uint8_t)words[REST] };
}

/* Reads the newest entries of one ring, at most [most], oldest first. */
static uint32_t read_ring(const struct log_reading *reading, const hr__log_ring *ring, hr__log_entry *out, uint32_t most)
{
	uint64_t newest = hr__load_acquire(&ring->written), count = newest < ring->size ? newest : ring->size, words[WORDS];
	uint32_t filled = 0;
	if (count > most) count = most;
	for (uint64_t number = newest - count + 1; number <= newest; number++)
		if (read_entry(ring, number, words)) out[filled++] = decode(reading, words);
	return filled;
}

/* Merges [count] entries of [more] into [out], which holds [have], and keeps the newest [capacity]. Both are ordered oldest
 * first. */
static uint32_t merge(hr__log_entry *out, uint32_t have, uint32_t capacity, const hr__log_entry *more, uint32_t count)
{
	uint32_t mine = have, theirs = count, kept = 0;
	HR_ASSERT(have <= capacity);
	while (kept < capacity && (mine || theirs)) { /* counts how many of each are among the newest */
		if (!theirs || (mine && out[mine - 1].time_ns > more[theirs - 1].time_ns)) mine--;
		else theirs--;
		kept++;
	}
	memmove(out + kept - (have - mine), out + mine, (have - mine) * sizeof *out); /* to the end, out of the merge's way */
	uint32_t at = 0, a = kept - (have - mine), b = theirs;
	while (b < count) {
		if (a < kept && out[a].time_ns <= more[b].time_ns) out[at++] = out[a++];
		else out[at++] = more[b++];
	}
	return kept;
}

/* ---- memory for copies ---- */

static struct {
	hr__lock lock; /* guards growth */
	uint32_t capacity;
	hr__log_entry *buffers[HR__LOG_SLOTS + 1]; /* one for each report, and one as the source of merges */
	void *old;                                /* replaced buffers: a list through their first words */
} copies = { .lock = HR__LOCK_INIT(HR__RANK_NAMES) };

/* A buffer is one allocation: link and size, then the entries. */
struct buffer_head {
	void *next;
	size_t bytes;
};

static hr__log_entry *buffer_new(uint32_t entries)
{
	void *block;
	size_t bytes = sizeof(struct buffer_head) + entries * sizeof(hr__log_entry);
	if (hr__os()->alloc(bytes, &block)) return NULL;
	*(struct buffer_head *)block = (struct buffer_head){ NULL, bytes };
	return (hr__log_entry *)((struct buffer_head *)block + 1);
}

static void buffer_free(struct buffer_head *head)
{
	hr__os()->free(head, head->bytes);
}

static hr_status copies_ensure(uint32_t entries)
{
	hr__log_entry *fresh[HR__LOG_SLOTS + 1];
	uint32_t made = 0;
	hr__lock_take(&copies.lock);
	bool enough = copies.capacity >= entries;
	for (; !enough && made <= HR__LOG_SLOTS; made++)
		if (!(fresh[made] = buffer_new(entries))) break;
	if (!enough && made > HR__LOG_SLOTS) {
		for (uint32_t i = 0; i <= HR__LOG_SLOTS; i++) {
			if (copies.buffers[i]) {
				struct buffer_head *head = (struct buffer_head *)copies.buffers[i] - 1;
				head->next = copies.old;
				copies.old = head;
			}
			copies.buffers[i] = fresh[i];
		}
		copies.capacity = entries;
		enough = true;
	}
	if (!enough)
		while (made > 0) buffer_free((struct buffer_head *)fresh[--made] - 1);
	hr__lock_release(&copies.lock);
	return enough ? HR_OK : hr__fail(HR_NO_HOST_MEMORY, "cannot get host memory for a log of %u allocation%s", entries, hr__plural(entries));
}

hr__log_entry *hr__log_slot(uint32_t slot, uint32_t *capacity)
{
	HR_ASSERT(slot <= HR__LOG_SLOTS);
	hr__lock_take(&copies.lock);
	hr__log_entry *block = copies.buffers[slot];
	*capacity = copies.capacity;
	hr__lock_release(&copies.lock);
	return block;
}

void hr__log_slots_free(void)
{
	for (uint32_t i = 0; i <= HR__LOG_SLOTS; i++)
		if (copies.buffers[i]) buffer_free((struct buffer_head *)copies.buffers[i] - 1);
	while (copies.old) {
		struct buffer_head *head = copies.old;
		copies.old = head->next;
		buffer_free(head);
	}
	hr__log_slots_forget();
}

void hr__log_slots_forget(void)
{
	memset(copies.buffers, 0, sizeof copies.buffers);
	copies.capacity = 0;
	copies.old = NULL;
	hr__lock_init(&copies.lock, HR__RANK_NAMES);
}

uint32_t hr__log_collect(hr__allocator *allocator, hr__log_entry *out, uint32_t capacity, uint64_t *total)
{
	struct log_reading reading = { hr__ticks(), hr__os()->wall_clock_ns(), 1e9 / hr__ticks_rate(), HR_LOG_NO_ADDRESS };
	uint32_t have = 0, room;
	hr__log_entry *aside = hr__log_slot(HR__LOG_SLOTS, &room);
	*total = 0;
	hr__lock_take(&allocator->caches_lock);
	reading.address = allocator->oom.allocation_log_address;
	uint32_t most = allocator->oom.allocation_log_buffer_size;
	if (most > capacity) most = capacity;
	if (most > room) most = room;
	const hr__log_ring *ring = allocator->past_log;
	for (const hr__cache *next = allocator->caches;; next = next->next) {
		if (ring) {
			*total += ring == allocator->past_log ? allocator->past_logged : hr__load_relaxed(&ring->written);
			have = merge(out, have, most, aside, read_ring(&reading, ring, aside, most));
		}
		if (!next) break;
		ring = next->log;
	}
	hr__lock_release(&allocator->caches_lock);
	return have;
}

/* ---- threads that end ---- */

/* Copies the newest entries of two rings, which no thread writes, to a third, oldest first. */
static void join_rings(hr__log_ring *to, const hr__log_ring *a, const hr__log_ring *b)
{
	uint64_t at[2] = { hr__load_relaxed(&a->written), hr__load_relaxed(&b->written) }, words[2][WORDS];
	uint64_t left[2] = { at[0] < a->size ? at[0] : a->size, at[1] < b->size ? at[1] : b->size };
	uint64_t count = left[0] + left[1] < to->size ? left[0] + left[1] : to->size;
	for (uint64_t number = count; number > 0; number--) {
		bool have[2] = { left[0] && read_entry(a, at[0], words[0]), left[1] && read_entry(b, at[1], words[1]) };
		HR_ASSERT(have[0] || have[1]);
		int newer = !have[0] || (have[1] && words[1][TICKS] > words[0][TICKS]);
		raw_entry *entry = &to->entries[number - 1];
		for (int i = TICKS; i <= REST; i++) hr__store_relaxed(&entry->words[i], words[newer][i]);
		hr__store_relaxed(&entry->words[NUMBER], number);
		at[newer]--;
		left[newer]--;
	}
	to->at = (uint32_t)(count % to->size);
	hr__store_release(&to->written, count);
}

/* Merges the thread's entries into the log of ended threads. They are lost if there is no memory for that. */
void hr__log_leave(hr__allocator *allocator, hr__cache *cache)
{
	HR_ASSERT(hr__load_relaxed(&cache->stop));
	hr__log_ring *ring = cache->log, *past = allocator->past_log;
	set_ring(cache, NULL, 0);
	if (!ring) return;
	allocator->past_logged += hr__load_relaxed(&ring->written);
	hr__log_ring *joined = past && hr__load_relaxed(&ring->written) ? ring_new(&allocator->oom, 0) : NULL;
	if (joined) {
		join_rings(joined, past, ring);
		allocator->past_log = joined;
		ring_free(past);
	}
	ring_free(ring);
}

/* ---- settings ---- */

hr_status hr__oom_options_read(const char *call, const void *given, size_t room, hr_oom_options *out)
{
	size_t struct_size;
	hr_oom_options ignored;
	memcpy(&struct_size, given, sizeof struct_size);
	hr_status status = hr__struct_in_sized(&hr__struct_oom_options, call, out, given, struct_size, room);
	/* struct_size is this library's if hr_allocator_options_init set it, also where the program uses newer fields. */
	if (!status) status = hr__struct_in_sized(&hr__struct_oom_options, call, &ignored, given, room, room);
	out->struct_size = sizeof *out;
	return status;
}

hr_status hr__oom_options_check(const hr_oom_options *options)
{
	if (!options->allocation_log_buffer_size || options->allocation_log_buffer_size > HR__LOG_SIZE_MAX)
		return hr__fail(HR_INVALID_ARGUMENT, "allocation_log_buffer_size is %u; it must be 1 to %u", options->allocation_log_buffer_size,
		                HR__LOG_SIZE_MAX);
	if (!(options->allocation_log_sampling_rate >= 0 && options->allocation_log_sampling_rate <= 1))
		return hr__fail(HR_INVALID_ARGUMENT, "allocation_log_sampling_rate is %g; it must be 0 to 1", options->allocation_log_sampling_rate);
	if ((unsigned)options->allocation_log_address > HR_LOG_REAL_ADDRESS)
		return hr__fail(HR_INVALID_ARGUMENT, "allocation_log_address is %d; it must be one of hr_oom_log_address",
		                (int)options->allocation_log_address);
	return HR_OK;
}

hr_status hr__log_open(hr__allocator *allocator)
{
	const hr_oom_options *options = &allocator->oom;
	hr__store_relaxed(&allocator->reports, options->report_allocations_on_oom);
	if (!options->report_allocations_on_oom) return HR_OK;
	hr__ticks_rate(); /* takes a few ms the first time, which must not happen when memory has run out */
	hr_status status = copies_ensure(options->allocation_log_buffer_size);
	if (status) return status;
	allocator->past_log = ring_new(options, 0);
	return allocator->past_log ? HR_OK : hr__fail(HR_NO_HOST_MEMORY, "cannot get host memory for a log of %u allocation%s",
	                                              options->allocation_log_buffer_size,
	                                              hr__plural(options->allocation_log_buffer_size));
}

void hr__log_close(hr__allocator *allocator)
{
	HR_ASSERT(!allocator->caches);
	ring_free(allocator->past_log);
	allocator->past_log = NULL;
}

/* Replaces the rings of all threads, or of none. With the caches stopped and every shard's lock held. */
static hr_status replace_rings(hr__allocator *allocator, const hr_oom_options *options)
{
	HR_ASSERT(hr__shards_are_locked(allocator) && hr__caches_are_stopped(allocator));
	bool on = options->report_allocations_on_oom, made = true;
	hr__log_ring *past = on ? ring_new(options, 0) : NULL;
	if (on && !past) made = false;
	for (hr__cache *cache = allocator->caches; cache; cache = cache->next) {
		cache->next_log = on && made ? ring_new(options, number_of(allocator, cache)) : NULL;
		if (on && !cache->next_log) made = false;
	}
	for (hr__cache *cache = allocator->caches; cache; cache = cache->next) {
		ring_free(made ? cache->log : cache->next_log);
		if (made) set_ring(cache, cache->next_log, options->allocation_log_sampling_rate);
		cache->next_log = NULL;
	}
	ring_free(made ? allocator->past_log : past);
	if (!made) return hr__fail(HR_NO_HOST_MEMORY, "cannot get host memory for a log of %u allocation%s", options->allocation_log_buffer_size,
	                           hr__plural(options->allocation_log_buffer_size));
	allocator->past_log = past;
	allocator->past_logged = 0;
	allocator->oom = *options;
	hr__store_relaxed(&allocator->reports, on);
	return HR_OK;
}

hr_status hr_allocator_set_oom_options(hr_allocator handle, const hr_oom_options *options)
{
	hr_status status;
	hr_oom_options whole;
	hr__allocator *allocator = hr__allocator_of(handle, &status);
	if (!allocator) return status;
	hr_oom_options_init(&whole);
	status = hr__struct_in(&hr__struct_oom_options, "hr_allocator_set_oom_options", &whole, options);
	if (!status) status = hr__oom_options_check(&whole);
	if (status) return status;
	if (whole.report_allocations_on_oom) {
		hr__ticks_rate();
		status = copies_ensure(whole.allocation_log_buffer_size);
		if (status) return status;
	}
	hr__caches_stop(allocator);
	hr__shards_lock(allocator);
	status = replace_rings(allocator, &whole);
	hr__shards_unlock(allocator);
	hr__caches_start(allocator);
	return status;
}

hr_status hr_allocator_get_oom_options(hr_allocator handle, hr_oom_options *options)
{
	hr_status status;
	hr__allocator *allocator = hr__allocator_of(handle, &status);
	if (!allocator) return status;
	status = hr__struct_check(&hr__struct_oom_options, "hr_allocator_get_oom_options", options);
	if (status) return status;
	hr__lock_take(&allocator->caches_lock);
	hr__struct_out(&hr__struct_oom_options, options, &allocator->oom);
	hr__lock_release(&allocator->caches_lock);
	return HR_OK;
}

void hr_oom_options_init_sized(hr_oom_options *options, size_t struct_size)
{
	if (!options) return;
	const hr_oom_options initial = { .struct_size = sizeof initial,
		                             .report_allocations_on_oom = hr__reports_are_on(),
		                             .allocation_log_buffer_size = 100,
		                             .allocation_log_sampling_rate = 1.0 };
	hr__struct_init(&hr__struct_oom_options, options, struct_size, &initial);
}

uint32_t hr__log_thread(const hr__allocator *allocator)
{
	const hr__cache *cache = hr__thread_self ? hr__thread_self->caches[allocator->slot] : NULL;
	return cache && hr__load_relaxed(&cache->id) == allocator->id ? hr__load_relaxed(&cache->log_thread) : 0;
}
