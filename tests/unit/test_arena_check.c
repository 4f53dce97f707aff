/* test_arena_check.c - tests the checker: each case breaks one thing and expects the number of the violated invariant.
 *
 * Each case builds a valid arena, checks it, breaks it and checks it again. A checker that misses an error here would also miss it
 * in every other test. */
#include "support_arena.h"

/* ---- an arena with one of everything ---- */

#define UNIT UINT64_C(256)

/* Free sizes: three equal ones (a ring), six in one bin (a trie), and small ones in bins of their own. */
static const uint64_t free_sizes[] = { 7, 7, 7, 1024, 1025, 1029, 1056, 1064, 1087, 2, 31 };
#define FREES (sizeof free_sizes / sizeof *free_sizes)

typedef struct fixture {
	arena_pair *pair;
	hr__arena *arena;
	hr__chunk *chunks;
	hr__chunk_id edge, second_edge;
	hr__chunk_id free[FREES]; /* one for each size above */
	hr__chunk_id live;        /* a chunk in use between two free ones */
	hr__chunk_id hole;        /* a hole in the middle */
	hr__chunk_id last_hole;   /* the hole that ends the region */
} fixture;

static void build(fixture *f)
{
	f->pair = pair_new(UNIT);
	f->arena = &f->pair->arena;
	f->chunks = f->pair->table.chunks;
	uint64_t base = UINT64_C(1) << 30;
	pair_add_region(f->pair, 0, base, 20000 * UNIT);
	pair_map(f->pair, 0, 0, 12000 * UNIT);
	pair_add_region(f->pair, 1, UINT64_C(1) << 40, 64 * UNIT);
	/* Allocates all of the free sizes with two units between them that stay in use; then frees the former. */
	for (size_t i = 0; i < FREES; i++) {
		CHECK(pair_take(f->pair, free_sizes[i] * UNIT, 0));
		f->free[i] = f->pair->live.at[f->pair->live.count - 1].id;
		CHECK(pair_take(f->pair, 2 * UNIT, 0));
		f->live = f->pair->live.at[f->pair->live.count - 1].id;
	}
	for (size_t i = 0; i < FREES; i++) {
		uint32_t index = 0;
		while (f->pair->live.at[index].id != f->free[i]) index++;
		pair_give(f->pair, index, 1, 1);
	}
	f->live = f->chunks[f->free[1]].prev;
	/* Maps a range beyond the tail: this makes a hole in the middle, and a second free chunk before a hole that is not the tail. */
	uint32_t hole = begins_at(&f->pair->holes, 0, base + 12000 * UNIT);
	pair_map(f->pair, hole, 4000 * UNIT, 1000 * UNIT);
	f->edge = f->pair->regions[0].edge;
	f->second_edge = f->pair->regions[1].edge;
	f->hole = f->last_hole = f->edge;
	for (hr__chunk_id id = f->edge; id; id = f->chunks[id].next) {
		if (hr__chunk_state_of(&f->chunks[id]) != HR__CHUNK_HOLE) continue;
		if (f->hole == f->edge) f->hole = id;
		f->last_hole = id;
	}
	CHECK_NE(f->hole, f->last_hole);
	CHECK_NE(f->arena->tail, 0);
	pair_compare_all(f->pair);
}

static int check(const fixture *f)
{
	hr__chunk_id edges[] = { f->edge, f->second_edge };
	return hr__arena_check(f->arena, edges, 2);
}

static void move(hr__chunk *chunk, uint64_t by)
{
	hr__store_relaxed(&chunk->address, hr__chunk_address(chunk) + by);
}

static void set_state(hr__chunk *chunk, unsigned state)
{
	hr__store_relaxed(&chunk->state, (uint8_t)state);
}

/* A chunk of the trie without children. */
static hr__chunk_id leaf_of(const fixture *f)
{
	for (size_t i = 3; i < 9; i++) {
		const hr__chunk *chunk = &f->chunks[f->free[i]];
		if (!chunk->child[0] && !chunk->child[1] && chunk->parent) return f->free[i];
	}
	return 0;
}

/* The root of the trie, which must have two children. */
static hr__chunk_id root_of(const fixture *f)
{
	hr__chunk_id id = f->free[3];
	while (f->chunks[id].parent) id = f->chunks[id].parent;
	return id;
}

static unsigned bin_with(const fixture *f, hr__chunk_id root)
{
	unsigned bin = 0;
	while (bin < HR__ARENA_BINS && f->arena->bins[bin] != root) bin++;
	return bin;
}

/* Takes a unit from the chunk after [id] and adds it to [id], so that the chain of chunks stays valid. */
static void widen(fixture *f, hr__chunk_id id)
{
	f->chunks[id].size += UNIT;
	move(&f->chunks[f->chunks[id].next], UNIT);
	f->chunks[f->chunks[id].next].size -= UNIT;
}

/* ---- ways to break an arena ---- */

static void prev_is_wrong(fixture *f) { f->chunks[f->live].prev = f->free[4]; }
static void next_skips_one(fixture *f) { f->chunks[f->live].next = f->chunks[f->chunks[f->live].next].next; }
static void gap(fixture *f) { move(&f->chunks[f->live], UNIT); }
static void overlap(fixture *f) { f->chunks[f->live].size += UNIT; }
static void edge_has_prev(fixture *f) { f->chunks[f->edge].prev = f->live; }
static void address_is_odd(fixture *f)
{
	move(&f->chunks[f->edge], 1);
	move(&f->chunks[f->free[0]], 1);
	f->chunks[f->free[0]].size -= 1;
	f->arena->free_bytes -= 1;
}
static void size_is_odd(fixture *f)
{
	f->chunks[f->live].size -= 1;
	move(&f->chunks[f->chunks[f->live].next], (uint64_t)-1);
	f->chunks[f->chunks[f->live].next].size += 1;
	f->arena->free_bytes += 1;
}
static void chunk_is_empty(fixture *f)
{
	hr__chunk *chunk = &f->chunks[f->live], *next = &f->chunks[chunk->next];
	next->size += chunk->size;
	move(next, 0 - chunk->size);
	f->arena->free_bytes += chunk->size;
	chunk->size = 0;
}
static void neighbours_are_free(fixture *f) { set_state(&f->chunks[f->live], HR__CHUNK_FREE); }
static void neighbours_are_holes(fixture *f)
{
	hr__chunk_id between = f->chunks[f->hole].next;
	set_state(&f->chunks[between], HR__CHUNK_HOLE);
}
static void leaf_is_lost(fixture *f)
{
	hr__chunk_id leaf = leaf_of(f);
	hr__chunk *parent = &f->chunks[f->chunks[leaf].parent];
	parent->child[parent->child[1] == leaf] = 0;
}
static void root_is_in_smaller_bin(fixture *f)
{
	hr__chunk_id id = f->free[10];
	unsigned bin = bin_with(f, id);
	f->arena->bins[bin] = 0;
	f->arena->bins[bin - 1] = id;
	f->arena->words[bin / 64] &= ~(UINT64_C(1) << (bin % 64));
	f->arena->words[(bin - 1) / 64] |= UINT64_C(1) << ((bin - 1) % 64);
}
static void root_is_in_larger_bin(fixture *f)
{
	hr__chunk_id id = f->free[9];
	unsigned bin = bin_with(f, id);
	f->arena->bins[bin] = 0;
	f->arena->bins[bin + 1] = id;
	f->arena->words[bin / 64] &= ~(UINT64_C(1) << (bin % 64));
	f->arena->words[(bin + 1) / 64] |= UINT64_C(1) << ((bin + 1) % 64);
}
static void child_is_of_another_bin(fixture *f)
{
	/* A little more than twice as large: the same low bits, another bin. */
	hr__chunk_id leaf = leaf_of(f);
	uint64_t more = f->chunks[leaf].size;
	f->chunks[leaf].size += more;
	for (hr__chunk_id id = f->chunks[leaf].next; id; id = f->chunks[id].next) move(&f->chunks[id], more);
	f->arena->free_bytes += more;
}
static void tail_is_in_use(fixture *f) { f->arena->tail = f->live; }
static void tail_is_in_the_middle(fixture *f) { f->arena->tail = f->chunks[f->hole].prev; }
static void tail_is_forgotten(fixture *f) { f->arena->tail = 0; }
static void tail_is_in_a_bin(fixture *f)
{
	hr__chunk *tail = &f->chunks[f->arena->tail];
	f->arena->bins[0] = f->arena->tail;
	f->arena->words[0] |= 1;
	f->arena->summary |= 1;
	tail->parent = tail->child[0] = tail->child[1] = 0;
	tail->link = tail->older = f->arena->tail;
}
static void parent_is_wrong(fixture *f)
{
	hr__chunk_id leaf = leaf_of(f);
	f->chunks[leaf].parent = f->chunks[leaf].parent == root_of(f) ? f->free[9] : root_of(f);
}
static void root_has_parent(fixture *f) { f->chunks[root_of(f)].parent = f->free[9]; }
static void children_are_swapped(fixture *f)
{
	hr__chunk *root = &f->chunks[root_of(f)];
	hr__chunk_id zero = root->child[0];
	root->child[0] = root->child[1];
	root->child[1] = zero;
}
static void ring_has_two_sizes(fixture *f)
{
	widen(f, f->free[1]);
	f->arena->free_bytes += UNIT;
}
static void ring_is_torn(fixture *f) { f->chunks[f->free[1]].link = f->free[1]; }
static void ring_has_wrong_older(fixture *f) { f->chunks[f->free[1]].older = f->free[2]; }
static void ring_member_has_parent(fixture *f) { f->chunks[f->free[1]].parent = 0; }
static void ring_leader_has_no_place(fixture *f)
{
	/* The chunk looks like a member of the trie, so the trie leads to a chunk that is not in it. */
	f->chunks[f->free[0]].parent = f->free[0];
}
static void bit_is_missing(fixture *f) { f->arena->words[0] &= ~(UINT64_C(1) << 2); }
static void bit_is_too_many(fixture *f) { f->arena->words[0] |= UINT64_C(1) << 5; }
static void summary_bit_is_missing(fixture *f) { f->arena->summary &= ~UINT64_C(1); }
static void summary_bit_is_too_many(fixture *f) { f->arena->summary |= UINT64_C(1) << (HR__ARENA_WORDS - 1); }
static void free_bytes_are_wrong(fixture *f) { f->arena->free_bytes += UNIT; }
static void free_count_is_wrong(fixture *f) { f->arena->free_count--; }
static void free_became_used(fixture *f) { set_state(&f->chunks[f->free[9]], HR__CHUNK_IN_USE); }
static void hole_is_lost(fixture *f)
{
	hr__chunk_id first = f->arena->holes;
	f->arena->holes = f->chunks[first].child[1];
	f->chunks[f->arena->holes].child[0] = 0;
}
static void hole_list_has_another(fixture *f) { f->arena->holes = f->live; }
static void hole_list_is_cut(fixture *f) { f->chunks[f->arena->holes].child[1] = 0; }
static void hole_list_is_a_circle(fixture *f)
{
	hr__chunk_id last = f->arena->holes;
	while (f->chunks[last].child[1]) last = f->chunks[last].child[1];
	f->chunks[last].child[1] = f->arena->holes;
}
static void hole_has_wrong_before(fixture *f) { f->chunks[f->chunks[f->arena->holes].child[1]].child[0] = f->live; }
static void used_became_hole(fixture *f)
{
	/* Not adjacent to another hole. */
	set_state(&f->chunks[f->live], HR__CHUNK_HOLE);
}
static void state_is_unused(fixture *f) { set_state(&f->chunks[f->live], HR__CHUNK_UNUSED); }
static void state_is_none(fixture *f) { set_state(&f->chunks[f->live], 77); }
static void edge_is_in_the_middle(fixture *f) { set_state(&f->chunks[f->live], HR__CHUNK_EDGE); }
static void edge_is_no_edge(fixture *f) { set_state(&f->chunks[f->edge], HR__CHUNK_IN_USE); }
static void edge_has_a_size(fixture *f)
{
	f->chunks[f->edge].size = UNIT;
	move(&f->chunks[f->edge], 0 - UNIT);
}
static void region_is_wrong(fixture *f) { f->chunks[f->live].region = 1; }
static void cursor_is_in_no_chain(fixture *f) { f->arena->cursor[1] = f->edge; }

static const struct {
	int number;
	const char *name;
	void (*breaks)(fixture *);
} arena_cases[] = {
#define CASE(number, name) { number, #name, name }
	CASE(1, prev_is_wrong),
	CASE(1, next_skips_one),
	CASE(1, gap),
	CASE(1, overlap),
	CASE(1, edge_has_prev),
	CASE(2, address_is_odd),
	CASE(2, size_is_odd),
	CASE(2, chunk_is_empty),
	CASE(3, neighbours_are_free),
	CASE(3, neighbours_are_holes),
	CASE(4, leaf_is_lost),
	CASE(4, root_is_in_smaller_bin),
	CASE(4, root_is_in_larger_bin),
	CASE(4, child_is_of_another_bin),
	CASE(4, tail_is_in_use),
	CASE(4, tail_is_in_the_middle),
	CASE(4, tail_is_forgotten),
	CASE(4, tail_is_in_a_bin),
	CASE(5, parent_is_wrong),
	CASE(5, root_has_parent),
	CASE(5, children_are_swapped),
	CASE(6, ring_has_two_sizes),
	CASE(6, ring_is_torn),
	CASE(6, ring_has_wrong_older),
	CASE(6, ring_member_has_parent),
	CASE(5, ring_leader_has_no_place),
	CASE(7, bit_is_missing),
	CASE(7, bit_is_too_many),
	CASE(7, summary_bit_is_missing),
	CASE(7, summary_bit_is_too_many),
	CASE(8, free_bytes_are_wrong),
	CASE(8, free_count_is_wrong),
	CASE(8, free_became_used),
	CASE(9, hole_is_lost),
	CASE(9, hole_list_has_another),
	CASE(9, hole_list_is_cut),
	CASE(9, hole_list_is_a_circle),
	CASE(9, hole_has_wrong_before),
	CASE(9, used_became_hole),
	CASE(10, state_is_unused),
	CASE(10, state_is_none),
	CASE(10, edge_is_in_the_middle),
	CASE(10, edge_is_no_edge),
	CASE(10, edge_has_a_size),
	CASE(10, region_is_wrong),
	CASE(11, cursor_is_in_no_chain),
};
#define ARENA_CASES (sizeof arena_cases / sizeof *arena_cases)

static void test_arena_check_names_the_broken_invariant(void)
{
	bool seen[12] = { false };
	int wrong = 0;
	for (size_t i = 0; i < ARENA_CASES; i++) {
		fixture f;
		build(&f);
		CHECK_EQ(check(&f), 0);
		arena_cases[i].breaks(&f);
		int number = check(&f);
		if (number != arena_cases[i].number) {
			printf("# %s: %d, not %d\n", arena_cases[i].name, number, arena_cases[i].number);
			wrong++;
		}
		seen[arena_cases[i].number] = true;
		pair_free(f.pair);
	}
	CHECK_EQ(wrong, 0);
	for (int number = 1; number <= 11; number++) CHECK(seen[number]);
}

TEST_MAIN(T(test_arena_check_names_the_broken_invariant))
