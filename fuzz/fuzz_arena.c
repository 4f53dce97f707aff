/* fuzz_arena.c - sequences of operations on an arena, each compared with the naive model of tests/support_arena.h.
 *
 * An input is a byte that chooses the kind of arena, then four bytes per operation:
 *
 *     operation | size class and fine size | alignment, or part of a range | index
 *
 * Indices are taken modulo the number of objects, so that every input is valid. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define SUPPORT_EQ(a, b)                      \
	((uint64_t)(a) == (uint64_t)(b) ? (void)0 \
	                                : (fprintf(stderr, "%s:%d: %s == %s does not hold\n", __FILE__, __LINE__, #a, #b), abort()))
#define MODEL_MAX 1024u
#include "support_arena.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MAX_OPERATIONS 400u

static const struct {
	uint64_t granularity, page, region; /* page and region in units */
} kinds[] = { { 256, 8, 64 }, { 16, 1, 100 }, { 256, 8192, UINT64_C(1) << 22 }, { 4096, 4, UINT64_C(1) << 30 } };

/* Three bits of magnitude and five of detail: all small sizes, and larger ones on both sides of every power of two. */
static uint64_t size_of(uint8_t code)
{
	uint64_t base = UINT64_C(1) << (code >> 5) * 3;
	return base + (base * (code & 31)) / 16;
}

typedef struct ranges {
	uint64_t skip, count;
} ranges;

/* A part of [pages] pages, start and length encoded in one byte. */
static ranges part_of(uint64_t pages, uint8_t code)
{
	ranges part = { (code & 3) == 0 ? 0 : pages * (code & 3) / 4, 1 };
	uint64_t rest = pages - part.skip;
	part.count = (code & 0x80) ? rest : 1 + (rest - 1) * ((code >> 2) & 31) / 31;
	return part;
}

static void map(arena_pair *pair, uint64_t page, uint8_t part, uint8_t which)
{
	if (!pair->holes.count) return;
	uint32_t hole = which % pair->holes.count;
	ranges range = part_of(pair->holes.at[hole].size / page, part);
	pair_map(pair, hole, range.skip * page, range.count * page);
}

static void unmap(arena_pair *pair, uint64_t page, uint8_t part, uint8_t which)
{
	if (!pair->free.count) return;
	const extent *range = &pair->free.at[which % pair->free.count];
	uint64_t begin = (range->address + page - 1) & ~(page - 1), end = (range->address + range->size) & ~(page - 1);
	if (begin >= end) return;
	ranges chosen = part_of((end - begin) / page, part);
	pair_unmap(pair, which % pair->free.count, begin - range->address + chosen.skip * page, chosen.count * page);
}

static void region(arena_pair *pair, uint64_t size, uint8_t which)
{
	uint32_t number = which % 3;
	if (!pair->regions[number].size) pair_add_region(pair, number, (number + 1) * size, size); /* adjacent */
	else if (pair_is_empty(pair, number)) pair_remove_region(pair, number);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size < 1) return 0;
	uint64_t granularity = kinds[data[0] % 4].granularity, page = kinds[data[0] % 4].page * granularity;
	uint64_t length = (kinds[data[0] % 4].region * granularity + page - 1) / page * page;
	/* [length] is rounded up, because a region must begin at a multiple of the page size. */
	arena_pair *pair = pair_new(granularity);
	pair_add_region(pair, 0, length, length);
	size_t operations = (size - 1) / 4;
	for (size_t i = 0; i < operations && i < MAX_OPERATIONS; i++) {
		const uint8_t *op = data + 1 + i * 4;
		uint64_t units = size_of(op[1]);
		switch (op[0] % 8) {
		case 0:
		case 1: pair_take(pair, units * granularity, op[2] & 1 ? granularity << (op[2] >> 4) : 0); break;
		case 2:
		case 3:
			if (!pair->live.count) break;
			if (op[2] & 1)
				hr__store_relaxed(&hr__chunk_at(&pair->table, pair->live.at[op[3] % pair->live.count].id)->state, HR__CHUNK_CACHED);
			pair_give(pair, op[3] % pair->live.count, UINT64_C(1) << (op[1] % 64), op[2] + UINT64_C(1));
			break;
		case 4: map(pair, page, op[2], op[3]); break;
		case 5: unmap(pair, page, op[2], op[3]); break;
		case 6: region(pair, length, op[3]); break;
		case 7: pair->arena.tail_growth = op[2] & 1 ? 0 : units * granularity; break;
		}
		pair_check(pair);
	}
	pair_compare_all(pair);
	pair_check_walk_from(pair, size_of(data[size - 1]) * granularity);
	pair_free(pair);
	return 0;
}
