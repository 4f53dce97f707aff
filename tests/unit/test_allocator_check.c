/* test_allocator_check.c - tests the checker: each case breaks one thing and expects the number of the violated invariant. */
#include "fixture.h"
#include "core/memory/allocator.h"
#include "test.h"

#define CASE(number, name) { number, #name, name }

static void set_state(hr__chunk *chunk, unsigned state)
{
	hr__store_relaxed(&chunk->state, (uint8_t)state);
}

/* ---- an allocator with one of everything ---- */

#define PAGE 4096

typedef struct subject {
	hr_allocator handle;
	hr__allocator *allocator;
	hr__shard *shard;        /* the only one */
	hr__chunk *chunks;
	hr__cache *cache;        /* of the main thread */
	hr__chunk_id live, kept; /* a large block in use; a small one in the cache */
	hr__region *region;      /* the region of [live] */
} subject;

static hr_device simulated(uint64_t memory, uint64_t page)
{
	return fixture_simulated(memory, page);
}

static hr__chunk_id find(const subject *s, const void *block)
{
	return hr__lookup_find(&s->shard->lookup, s->chunks, (uintptr_t)block);
}

static void open_subject(subject *s)
{
	void *block, *small;
	hr_status status;
	CHECK_STATUS(HR_OK, hr_allocator_create(simulated(UINT64_C(1) << 30, PAGE), NULL, &s->handle));
	s->allocator = hr__allocator_of(s->handle, &status);
	s->shard = &s->allocator->shards[0];
	s->chunks = s->shard->table.chunks;
	CHECK_STATUS(HR_OK, hr_alloc_bytes(s->handle, 300000, &block));
	CHECK_STATUS(HR_OK, hr_alloc_bytes(s->handle, 100000, &small)); /* freed: a free chunk */
	CHECK_STATUS(HR_OK, hr_free(s->handle, small, 0));
	CHECK_STATUS(HR_OK, hr_alloc_bytes(s->handle, 1000, &small));
	CHECK_STATUS(HR_OK, hr_free(s->handle, small, 0));
	s->live = find(s, block);
	s->kept = find(s, small);
	s->cache = hr__cache_get(s->allocator);
	s->region = &s->allocator->regions[s->chunks[s->live].region & HR__REGION_INDEX];
	CHECK(s->live && s->kept && s->cache);
	CHECK_EQ(hr__chunk_state_of(&s->chunks[s->kept]), HR__CHUNK_CACHED);
	CHECK_STATUS(HR_OK, hr_allocator_check(s->handle));
}

/* ---- ways to break it ---- */

static void lookup_lost_one(subject *s)
{
	hr__lookup_remove(&s->shard->lookup, hr__chunk_address(&s->chunks[s->live]), s->live);
}
static void lookup_lost_a_cached_one(subject *s)
{
	hr__lookup_remove(&s->shard->lookup, hr__chunk_address(&s->chunks[s->kept]), s->kept);
}
static void lookup_has_a_free_one(subject *s)
{
	hr__chunk_id id = hr__arena_first_free(&s->shard->large.arena, 0);
	hr__lookup_insert(&s->shard->lookup, hr__chunk_address(&s->chunks[id]), id);
}
static void lookup_count_is_wrong(subject *s) { s->shard->lookup.count++; }
static void kept_is_in_use(subject *s)
{
	set_state(&s->chunks[s->kept], HR__CHUNK_IN_USE);
	s->chunks[s->kept].requested = 1000;
}
static void kept_is_in_the_wrong_bin(subject *s)
{
	uint64_t bin = s->chunks[s->kept].size >> s->cache->shift;
	s->cache->bins[bin + 1] = s->cache->bins[bin];
	s->cache->bins[bin] = 0;
}
static void kept_is_forgotten(subject *s)
{
	uint64_t bin = s->chunks[s->kept].size >> s->cache->shift;
	s->cache->bins[bin] = s->chunks[s->kept].link;
	hr__owner_add(&s->cache->kept, -(int64_t)s->chunks[s->kept].size);
}
static void kept_is_a_circle(subject *s) { s->chunks[s->kept].link = s->kept; }
static void one_is_said_to_move(subject *s) { hr__owner_add(&s->cache->moving, 1); }
static void kept_bytes_are_wrong(subject *s) { hr__owner_add(&s->cache->kept, 256); }
static void in_use_is_wrong(subject *s) { hr__owner_add(&s->shard->meter.used, 256); }
static void used_by_thread_is_wrong(subject *s) { hr__owner_add(&s->cache->meter.used, -256); }
static void requested_is_wrong(subject *s) { hr__owner_add(&s->shard->stats.requested, 1); }
static void requested_by_thread_is_wrong(subject *s) { hr__owner_add(&s->cache->requested, -1); }
static void requested_is_above_the_size(subject *s) { s->chunks[s->live].requested = s->chunks[s->live].size + 1; }
static void reserved_is_wrong(subject *s) { hr__owner_add(&s->allocator->reserved, -PAGE); }
static void region_mapped_is_wrong(subject *s) { s->region->mapped += PAGE; }
static void page_is_missing(subject *s)
{
	s->region->pages[(hr__chunk_address(&s->chunks[s->live]) - s->region->address) / PAGE] = 0;
}
static void page_is_in_a_hole(subject *s)
{
	s->region->pages[s->region->size / PAGE - 1] = 1;
}
static void allocs_are_wrong(subject *s) { hr__owner_add(&s->shard->stats.allocs, 1); }
static void frees_are_wrong(subject *s) { hr__owner_add(&s->shard->stats.frees, 1); }
static void frees_by_thread_are_wrong(subject *s) { hr__owner_add(&s->cache->frees, 1); }
static void failures_are_wrong(subject *s) { hr__owner_add(&s->shard->stats.failed, 1); }
static void arena_is_broken(subject *s) { s->shard->large.arena.free_bytes++; }
static void small_arena_is_broken(subject *s) { s->shard->small.arena.free_bytes++; }
static void region_ends_early(subject *s)
{
	hr__chunk_id id = s->region->edge;
	while (s->chunks[id].next) id = s->chunks[id].next;
	s->chunks[id].size -= PAGE;
}

static const struct {
	int number;
	const char *name;
	void (*breaks)(subject *);
} allocator_cases[] = {
	CASE(1, region_ends_early),
	CASE(8, arena_is_broken),
	CASE(8, small_arena_is_broken),
	CASE(20, lookup_lost_one),
	CASE(20, lookup_lost_a_cached_one),
	CASE(20, lookup_has_a_free_one),
	CASE(20, lookup_count_is_wrong),
	CASE(21, kept_is_in_use),
	CASE(21, kept_is_in_the_wrong_bin),
	CASE(21, kept_is_forgotten),
	CASE(21, kept_is_a_circle),
	CASE(21, one_is_said_to_move),
	CASE(21, kept_bytes_are_wrong),
	CASE(22, in_use_is_wrong),
	CASE(22, used_by_thread_is_wrong),
	CASE(22, requested_is_wrong),
	CASE(22, requested_by_thread_is_wrong),
	CASE(22, requested_is_above_the_size),
	CASE(23, reserved_is_wrong),
	CASE(23, region_mapped_is_wrong),
	CASE(23, page_is_missing),
	CASE(23, page_is_in_a_hole),
	CASE(25, allocs_are_wrong),
	CASE(25, frees_are_wrong),
	CASE(25, frees_by_thread_are_wrong),
	CASE(25, failures_are_wrong),
};
#define ALLOCATOR_CASES (sizeof allocator_cases / sizeof *allocator_cases)

/* Runs in a child process, because a broken allocator cannot be used any further. */
static void break_one(void *argument)
{
	size_t i = (size_t)(uintptr_t)argument;
	subject s;
	char message[128];
	open_subject(&s);
	allocator_cases[i].breaks(&s);
	hr_status status = hr_allocator_check(s.handle);
	snprintf(message, sizeof message, "SIM:0_bfc: invariant %d does not hold (see arena.c and check.c)", allocator_cases[i].number);
	if (status != HR_CORRUPT || strcmp(message, hr_last_message()) != 0) printf("# %s\n", allocator_cases[i].name);
	CHECK_STATUS(HR_CORRUPT, status);
	CHECK_STR(hr_last_message(), message);
}

static void test_allocator_check_names_the_broken_invariant(void)
{
	bool seen[26] = { false };
	int wrong = 0;
	for (size_t i = 0; i < ALLOCATOR_CASES; i++) {
		int status = hr_test_in_child(break_one, (void *)(uintptr_t)i);
		wrong += !WIFEXITED(status) || WEXITSTATUS(status) != 0;
		seen[allocator_cases[i].number] = true;
	}
	CHECK_EQ(wrong, 0);
	for (int number = 20; number <= 25; number++) CHECK(seen[number] || number == 24); /* 24 is tested below */
}

/* ---- levels, which matter only when there are several threads ---- */

static pthread_barrier_t barrier;

static void *use_and_stay(void *argument)
{
	void *block;
	CHECK_STATUS(HR_OK, hr_alloc_bytes(*(hr_allocator *)argument, 1000, &block));
	pthread_barrier_wait(&barrier);
	pthread_barrier_wait(&barrier);
	CHECK_STATUS(HR_OK, hr_free(*(hr_allocator *)argument, block, 0));
	return NULL;
}

/* Setting [what] to [value] violates invariant 24; restoring it makes all invariants hold again. */
static void broken_24(const subject *s, hr__atomic_i64 *what, int64_t value)
{
	int64_t before = hr__load_relaxed(what);
	hr__store_relaxed(what, value);
	CHECK_STATUS(HR_CORRUPT, hr_allocator_check(s->handle));
	CHECK_CONTAINS(hr_last_message(), "invariant 24 ");
	hr__store_relaxed(what, before);
	CHECK_STATUS(HR_OK, hr_allocator_check(s->handle));
}

static void test_allocator_check_sees_that_levels_do_not_add_up(void)
{
	subject s;
	pthread_t thread;
	open_subject(&s);
	pthread_barrier_init(&barrier, NULL, 2);
	CHECK_EQ(pthread_create(&thread, NULL, use_and_stay, &s.handle), 0);
	pthread_barrier_wait(&barrier);
	CHECK_STATUS(HR_OK, hr_allocator_check(s.handle));
	broken_24(&s, &s.allocator->levels, hr__load_relaxed(&s.allocator->levels) + 1);
	broken_24(&s, &s.cache->meter.level, hr__load_relaxed(&s.cache->meter.level) + 1);
	broken_24(&s, &s.cache->meter.level, hr__load_relaxed(&s.cache->meter.used) - 1);
	broken_24(&s, &s.shard->meter.level, hr__load_relaxed(&s.shard->meter.used) - 1);
	broken_24(&s, &s.allocator->peak, hr__load_relaxed(&s.allocator->levels) - 1);
	pthread_barrier_wait(&barrier);
	pthread_join(thread, NULL);
	CHECK_STATUS(HR_OK, hr_allocator_check(s.handle));
	CHECK_STATUS(HR_OK, hr_shutdown());
}

TEST_MAIN(T(test_allocator_check_names_the_broken_invariant), T(test_allocator_check_sees_that_levels_do_not_add_up))
