/* test_arena_exhaustive.c - every sequence of up to six operations on a tiny arena, each step compared with the model of
 * support_arena.h and checked.
 *
 * The tree of sequences is walked depth first: the whole state is saved before each operation and restored after it. A refused
 * operation changes nothing (one in eight is checked closely), so the sequences after it are not walked again. */
#include "test.h"

/* Prints the path in the tree before a check fails. */
static void print_path(void);
#define SUPPORT_EQ(a, b)                                  \
	do {                                                  \
		if ((uint64_t)(a) != (uint64_t)(b)) print_path(); \
		CHECK_EQ(a, b);                                   \
	} while (0)
#include "support_arena.h"

#define UNIT UINT64_C(256)
#define PAGE (4 * UNIT)
#define RECORDS 64u
#define FEW 32u

typedef struct saved {
	hr__arena arena;
	hr__chunk_table table;
	hr__chunk chunks[RECORDS];
	extent free[FEW], holes[FEW], live[FEW];
	uint32_t free_count, holes_count, live_count;
	bool has_tail;
	uint64_t tail, clock;
} saved; /* arena.tail_growth is in arena */

static void save(const arena_pair *pair, saved *to)
{
	if (pair->table.touched > RECORDS || pair->free.count > FEW || pair->holes.count > FEW || pair->live.count > FEW) abort();
	to->arena = pair->arena;
	to->table = pair->table;
	memcpy(to->chunks, pair->table.chunks, pair->table.touched * sizeof(hr__chunk));
	memcpy(to->free, pair->free.at, (to->free_count = pair->free.count) * sizeof(extent));
	memcpy(to->holes, pair->holes.at, (to->holes_count = pair->holes.count) * sizeof(extent));
	memcpy(to->live, pair->live.at, (to->live_count = pair->live.count) * sizeof(extent));
	to->has_tail = pair->has_tail;
	to->tail = pair->tail;
	to->clock = pair->clock;
}

static void restore(arena_pair *pair, const saved *from)
{
	pair->arena = from->arena;
	pair->table = from->table;
	memcpy(pair->table.chunks, from->chunks, from->table.touched * sizeof(hr__chunk));
	memcpy(pair->free.at, from->free, (pair->free.count = from->free_count) * sizeof(extent));
	memcpy(pair->holes.at, from->holes, (pair->holes.count = from->holes_count) * sizeof(extent));
	memcpy(pair->live.at, from->live, (pair->live.count = from->live_count) * sizeof(extent));
	pair->has_tail = from->has_tail;
	pair->tail = from->tail;
	pair->clock = from->clock;
}

/* ---- operations, by number ---- */

static const uint64_t sizes[] = { 1, 2, 3, 5 }; /* units */
#define TAKES 8u                                /* each size, unaligned and aligned to a page */
#define OTHERS 5u                               /* mapping, unmapping, and setting whether the tail may grow */

/* The range that contains a whole page and has the lowest address, or the highest; NOWHERE if there is none. */
static uint32_t with_page(const extents *list, bool highest)
{
	uint32_t best = NOWHERE;
	for (uint32_t i = 0; i < list->count; i++) {
		const extent *range = &list->at[i];
		if (((range->address + PAGE - 1) & ~(PAGE - 1)) + PAGE > range->address + range->size) continue;
		if (best == NOWHERE || (range->address > list->at[best].address) == highest) best = i;
	}
	return best;
}

static bool map_or_unmap(arena_pair *pair, unsigned which)
{
	bool map = which < 2, highest = which % 2;
	const extents *list = map ? &pair->holes : &pair->free;
	uint32_t index = with_page(list, highest);
	if (index == NOWHERE) return false;
	const extent *range = &list->at[index];
	uint64_t first = ((range->address + PAGE - 1) & ~(PAGE - 1)) - range->address;
	uint64_t last = ((range->address + range->size) & ~(PAGE - 1)) - PAGE - range->address;
	if (map) pair_map(pair, index, highest ? last : first, PAGE);
	else pair_unmap(pair, index, highest ? last : first, PAGE);
	return true;
}

/* False if the operation cannot be done, or changes nothing. */
static bool operate(arena_pair *pair, unsigned operation)
{
	if (operation < TAKES) return pair_take(pair, sizes[operation / 2] * UNIT, operation % 2 ? PAGE : 0);
	operation -= TAKES;
	if (operation < 4) return map_or_unmap(pair, operation);
	operation -= 4;
	if (operation == 0) {
		pair->arena.tail_growth = pair->arena.tail_growth ? 0 : PAGE;
		return true;
	}
	operation--;
	if (operation >= pair->live.count) return false;
	pair_give(pair, operation, UINT64_C(1) << operation, operation + UINT64_C(1));
	return true;
}

/* ---- the walk ---- */

static uint64_t steps;
static unsigned path[8], path_length;

static void print_path(void)
{
	printf("# after the operations");
	for (unsigned i = 0; i < path_length; i++) printf(" %u", path[i]);
	printf("\n");
}

static void walk(arena_pair *pair, unsigned depth, unsigned most)
{
	saved before;
	if (depth == most) return;
	save(pair, &before);
	for (unsigned operation = 0; operation < TAKES + OTHERS + before.live_count; operation++) {
		path[depth] = operation;
		path_length = depth + 1;
		bool changed = operate(pair, operation);
		steps++;
		if (changed || steps % 8 == 0) pair_check(pair);
		if (!changed) continue;
		if (depth + 1 < most || steps % 8 == 0) pair_compare_all(pair);
		walk(pair, depth + 1, most);
		restore(pair, &before);
	}
}

static unsigned depth_for_scale(void)
{
	return hr_test_scale() < 1 ? 5 : hr_test_scale() < 10 ? 6 : 7;
}

static void walk_all(arena_pair *pair)
{
	steps = 0;
	walk(pair, 0, depth_for_scale());
	printf("# %llu steps, %u deep\n", (unsigned long long)steps, depth_for_scale());
	CHECK_GT(steps, 10000);
	pair_free(pair);
}

static void test_every_sequence_on_an_unmapped_region_does_what_the_model_says(void)
{
	arena_pair *pair = pair_new(UNIT);
	pair_add_region(pair, 0, 16 * PAGE, 3 * PAGE);
	pair->arena.tail_growth = 2 * PAGE;
	walk_all(pair);
}

static void test_every_sequence_on_a_mapped_region_does_what_the_model_says(void)
{
	arena_pair *pair = pair_new(UNIT);
	pair_add_region(pair, 0, 16 * PAGE + UNIT, 2 * PAGE + 2 * UNIT);
	pair_map(pair, 0, 0, 2 * PAGE + 2 * UNIT);
	walk_all(pair);
}

static void test_every_sequence_on_regions_side_by_side_does_what_the_model_says(void)
{
	arena_pair *pair = pair_new(UNIT);
	pair_add_region(pair, 0, 16 * PAGE, 2 * PAGE);
	pair_add_region(pair, 1, 18 * PAGE, 2 * PAGE);
	pair_map(pair, begins_at(&pair->holes, 0, 16 * PAGE), 0, PAGE);
	pair_map(pair, begins_at(&pair->holes, 1, 18 * PAGE), 0, PAGE);
	walk_all(pair);
}

static void test_every_sequence_on_a_region_with_a_gap_does_what_the_model_says(void)
{
	arena_pair *pair = pair_new(UNIT);
	pair_add_region(pair, 0, 16 * PAGE, 6 * PAGE);
	pair_map(pair, 0, 0, 2 * PAGE);
	pair_map(pair, 0, PAGE, PAGE);
	walk_all(pair);
}

TEST_MAIN(T_WITHIN(test_every_sequence_on_an_unmapped_region_does_what_the_model_says, 300),
          T_WITHIN(test_every_sequence_on_a_mapped_region_does_what_the_model_says, 300),
          T_WITHIN(test_every_sequence_on_regions_side_by_side_does_what_the_model_says, 300),
          T_WITHIN(test_every_sequence_on_a_region_with_a_gap_does_what_the_model_says, 300))
