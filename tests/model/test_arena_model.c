/* test_arena_model.c - random operations on an arena and on the naive model of support_arena.h, which predicts each result. */
#include "support_arena.h"

/* Parameters of a run. Sizes are in units of granularity. */
typedef struct shape {
	uint64_t granularity;
	uint64_t page;    /* units of a page: mapping and unmapping are in multiples of it */
	uint64_t region;  /* units of a region */
	uint32_t regions; /* at most */
	uint64_t largest; /* largest request */
	uint32_t live;    /* number of live chunks to keep, roughly */
	uint32_t sizes;   /* 0 = any size; else sizes are drawn from this many, so that many are equal */
	bool growth;      /* tail_growth changes at random */
	bool abutting;    /* regions are adjacent */
} shape;

typedef struct walk {
	arena_pair *pair;
	const shape *shape;
	uint64_t seed;
	uint64_t epoch;
	uint64_t taken, refused, mapped, unmapped;
} walk;

static uint64_t below(walk *w, uint64_t bound)
{
	return hr_rand_below(&w->seed, bound);
}

/* A size from 1 to [largest]: every order of magnitude is equally likely, and the edges of bins are more likely. */
static uint64_t random_units(walk *w, uint64_t largest)
{
	uint64_t bits = 64 - (uint64_t)__builtin_clzll(largest), units = below(w, UINT64_C(1) << below(w, bits + 1)) + 1;
	if (w->shape->sizes) {
		uint64_t fixed = below(w, w->shape->sizes) * 0x9E3779B97F4A7C15u;
		units = (fixed >> 40) % (UINT64_C(1) << ((fixed >> 20) % (bits + 1))) + 1;
	} else if (below(w, 4) == 0) {
		units = (UINT64_C(1) << below(w, bits)) + below(w, 3) - 1;
	}
	return units < 1 ? 1 : units > largest ? largest : units;
}

static void random_region(walk *w)
{
	uint32_t region = (uint32_t)below(w, w->shape->regions);
	uint64_t size = w->shape->region * w->shape->granularity;
	if (!w->pair->regions[region].size)
		pair_add_region(w->pair, region, (region + 1) * (w->shape->abutting ? size : UINT64_C(1) << 47), size);
	else if (pair_is_empty(w->pair, region)) pair_remove_region(w->pair, region);
}

/* Mostly at the start of a hole, like growth; sometimes in the middle, like large alignments; sometimes the whole hole. */
static void random_map(walk *w)
{
	if (!w->pair->holes.count) return;
	uint32_t hole = (uint32_t)below(w, w->pair->holes.count);
	uint64_t page = w->shape->page * w->shape->granularity, pages = w->pair->holes.at[hole].size / page;
	uint64_t skip = below(w, 4) ? 0 : below(w, pages), rest = pages - skip;
	uint64_t count = below(w, 8) ? below(w, rest < 8 ? rest : 8) + 1 : rest;
	if (w->shape->region > 100000 && count == rest && below(w, 50)) count = (rest + 63) / 64;
	pair_map(w->pair, hole, skip * page, count * page);
	w->mapped++;
}

static void random_unmap(walk *w)
{
	if (!w->pair->free.count) return;
	uint32_t index = (uint32_t)below(w, w->pair->free.count);
	const extent *range = &w->pair->free.at[index];
	uint64_t page = w->shape->page * w->shape->granularity, begin = (range->address + page - 1) & ~(page - 1);
	uint64_t end = (range->address + range->size) & ~(page - 1);
	if (begin >= end) return;
	uint64_t pages = (end - begin) / page, count = below(w, 2) ? pages : below(w, pages) + 1;
	uint64_t skip = below(w, 2) ? pages - count : below(w, pages - count + 1);
	pair_unmap(w->pair, index, begin + skip * page - range->address, count * page);
	w->unmapped++;
}

static void random_growth(walk *w)
{
	uint64_t most = w->shape->region * w->shape->granularity;
	switch (below(w, 4)) {
	case 0: w->pair->arena.tail_growth = 0; break;
	case 1: w->pair->arena.tail_growth = most; break;
	default: w->pair->arena.tail_growth = random_units(w, w->shape->region) * w->shape->granularity; break;
	}
}

static void random_take(walk *w)
{
	uint64_t alignment = below(w, 5) ? below(w, 2) * w->shape->granularity : w->shape->granularity << below(w, 8);
	if (pair_take(w->pair, random_units(w, w->shape->largest) * w->shape->granularity, alignment)) w->taken++;
	else w->refused++;
}

static void random_give(walk *w)
{
	if (!w->pair->live.count) return;
	uint32_t index = (uint32_t)below(w, w->pair->live.count);
	hr__chunk *chunk = hr__chunk_at(&w->pair->table, w->pair->live.at[index].id);
	if (below(w, 4) == 0) hr__store_relaxed(&chunk->state, HR__CHUNK_CACHED);
	uint64_t stream = below(w, 2) ? below(w, 64) : 60 + below(w, 4); /* half of them copy */
	pair_give(w->pair, index, UINT64_C(1) << stream, w->epoch += below(w, 2));
}

/* The number of live chunks rises and falls, so that the arena is sometimes full and sometimes empty. */
static void step(walk *w, uint64_t number)
{
	uint64_t swing = (number / (w->shape->live * 8)) % 2 ? w->shape->live : w->shape->live / 4 + 1;
	uint64_t choice = below(w, 100);
	if (choice < 4) random_map(w);
	else if (choice < 7) random_unmap(w);
	else if (choice < 9 && w->shape->growth) random_growth(w);
	else if (choice < 10) random_region(w);
	else if (below(w, swing * 2) >= w->pair->live.count) random_take(w);
	else random_give(w);
}

/* Does [steps] operations in runs of [run], each on a new arena; calls the arena's own check after every [every] operations. */
static void walk_kind(const shape *kind, uint64_t steps, uint64_t run, uint64_t every, uint64_t salt)
{
	walk w = { .shape = kind, .seed = hr_test_seed() * 1000 + salt };
	for (uint64_t number = 0; number < steps;) {
		w.pair = pair_new(kind->granularity);
		for (uint64_t i = 0; i < run && number < steps; i++, number++) {
			step(&w, number);
			if (number % every == 0) pair_check(w.pair);
			if (number % (every < 64 ? 64 : every) == 0) {
				pair_compare_all(w.pair);
				pair_check_walk_from(w.pair, random_units(&w, kind->largest) * kind->granularity);
			}
		}
		while (w.pair->live.count) pair_give(w.pair, w.pair->live.count - 1, 0, 0);
		pair_check(w.pair);
		pair_compare_all(w.pair);
		pair_free(w.pair);
	}
	printf("# %llu taken, %llu refused, %llu maps, %llu unmaps\n", (unsigned long long)w.taken, (unsigned long long)w.refused,
	       (unsigned long long)w.mapped, (unsigned long long)w.unmapped);
	/* A run in which some operation never happened proves nothing. */
	CHECK_GT(w.taken, steps / 100);
	CHECK_GT(w.refused, 0);
	CHECK_GT(w.mapped, steps / 1000);
	CHECK_GT(w.unmapped, steps / 1000);
}

static const shape small_shapes[] = {
	/* granularity, page, region, regions, largest, live, sizes, growth, abutting */
	{ 256, 16, 64, 1, 24, 8, 0, false, false }, { 256, 16, 256, 1, 64, 20, 0, true, false },
	{ 16, 4, 512, 3, 40, 40, 0, true, true },   { 4096, 1, 128, 2, 32, 24, 3, true, false },
	{ 256, 8, 1024, 2, 8, 80, 2, false, true }, { 64, 32, 4096, 4, 1000, 40, 6, true, true },
};

static void test_arena_of_few_chunks_does_what_the_model_says_with_a_check_after_each(void)
{
	const uint64_t count = sizeof small_shapes / sizeof *small_shapes;
	for (uint64_t i = 0; i < count; i++) walk_kind(&small_shapes[i], hr_test_scaled(1000002) / count, 2000, 1, i);
}

static const shape large_shapes[] = {
	{ 256, 8192, UINT64_C(1) << 22, 2, 1 << 17, 400, 0, true, false },
	{ 256, 8192, UINT64_C(1) << 22, 1, 1 << 17, 400, 40, false, false },
	{ 512, 64, UINT64_C(1) << 16, 4, 600, 500, 0, true, true },
	{ 16, 4096, UINT64_C(1) << 40, 2, UINT64_C(1) << 40, 150, 0, true, false },
	{ 256, 256, UINT64_C(1) << 18, 2, 300, 600, 3, true, false },
};

static void test_arena_of_many_chunks_does_what_the_model_says(void)
{
	const uint64_t count = sizeof large_shapes / sizeof *large_shapes;
	for (uint64_t i = 0; i < count; i++) walk_kind(&large_shapes[i], hr_test_scaled(10000000) / count, 500000, 1000, 100 + i);
}

TEST_MAIN(T_WITHIN(test_arena_of_few_chunks_does_what_the_model_says_with_a_check_after_each, 300),
          T_WITHIN(test_arena_of_many_chunks_does_what_the_model_says, 300))
