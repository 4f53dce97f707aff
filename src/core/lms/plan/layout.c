/* layout.c - see layout.h. Packing rectangles with one fixed side is hard in general. Largest first at the lowest offset is how
 * offline packings of recorded traces were made, and wastes almost nothing. */
#include "core/lms/plan/layout.h"

#include <string.h>

#include "core/base/assert.h"
#include "core/base/sort.h"
#include "core/os/os.h"

#define WORK_MAX UINT64_C(8000000) /* stays looked at, in all tries; about 2 ns each */
#define PARTS 4u                   /* a stay gives up what costs time in this many parts */
#define CUTS (2u + 2u * PARTS)     /* ways to shorten a stay, the least first */
#define TRIES (3u * ORDERS)
#define ROUNDS_MAX 32u /* of a try: a few stays need little work */

enum order { LARGEST, LAST_TO_END, LONGEST, FIRST_TO_BEGIN, ORDERS };

struct window {
	uint32_t from, to;
};

/* Where a stay is, and by how much it is shortened. */
struct spot {
	uint64_t offset;
	uint32_t late, early;
};

struct placed_stay {
	uint64_t offset, end;
	struct window window;
};

struct packing {
	const hr__layout_stay *stays;
	uint32_t count, turns;
	enum order order;
	uint32_t least_cut; /* all stays are shortened at least like this */
	uint32_t *numbers;          /* stays in the order in which they are placed */
	struct placed_stay *placed;      /* those that are, by offset */
	struct spot *spots, *best;  /* by stay: of this try, and of the best so far */
	uint64_t most, work, late_bytes, best_late_bytes;
};

/* ---- times ---- */

static bool overlap(struct window a, struct window b)
{
	bool begins_before = a.from <= b.to, ends_after = b.from <= a.to;
	if ((a.to < a.from) == (b.to < b.from)) return (begins_before && ends_after) || a.to < a.from;
	return begins_before || ends_after; /* one of them wraps around */
}

static struct window window_of(const struct packing *packing, uint32_t number, const struct spot *spot)
{
	const hr__layout_stay *stay = &packing->stays[number];
	return (struct window){ (stay->from + spot->late) % packing->turns, (stay->to + packing->turns - spot->early) % packing->turns };
}

/* Shortens a stay: first by what costs no time, then it ends earlier, then it begins later. */
static struct spot cut(const hr__layout_stay *stay, uint32_t way)
{
	uint32_t early = way > 2 ? way - 2 : 0, late = early > PARTS ? early - PARTS : 0;
	if (early > PARTS) early = PARTS;
	return (struct spot){ .late = (way < 2 ? stay->free_late * way / 2 : stay->free_late) + (stay->late - stay->free_late) * late / PARTS,
		                  .early = stay->early * early / PARTS };
}

static uint64_t late_bytes(const hr__layout_stay *stay, const struct spot *spot)
{
	double part = 0;
	if (spot->late > stay->free_late) part += (double)(spot->late - stay->free_late) / (stay->late - stay->free_late);
	if (spot->early) part += (double)spot->early / stay->early;
	return (uint64_t)(part * (double)stay->bytes);
}

/* ---- orders ---- */

static uint64_t weight(const struct packing *packing, const hr__layout_stay *stay)
{
	switch (packing->order) {
	case LARGEST: return stay->bytes;
	case LAST_TO_END: return stay->to;
	case LONGEST: return stay->to >= stay->from ? stay->to - stay->from : packing->turns - stay->from + stay->to;
	default: return packing->turns - stay->from;
	}
}

static bool stay_before(const void *left, const void *right, const void *context)
{
	const struct packing *packing = context;
	uint32_t x = *(const uint32_t *)left, y = *(const uint32_t *)right;
	const hr__layout_stay *a = &packing->stays[x], *b = &packing->stays[y];
	uint64_t of_a = weight(packing, a), of_b = weight(packing, b);
	if (of_a != of_b) return of_a > of_b;
	if (a->bytes != b->bytes) return a->bytes > b->bytes;
	return x < y;
}

static void place_first(struct packing *packing, uint32_t at)
{
	uint32_t number = packing->numbers[at];
	memmove(packing->numbers + 1, packing->numbers, at * sizeof *packing->numbers);
	packing->numbers[0] = number;
}

/* ---- one try ---- */

/* Inserts [number] into the list of placed stays. */
static void insert(struct packing *packing, uint32_t count, uint32_t number)
{
	HR_ASSERT(count < packing->count && number < packing->count);
	const struct spot *spot = &packing->spots[number];
	struct placed_stay *placed = packing->placed;
	uint32_t at = count;
	for (; at > 0 && placed[at - 1].offset > spot->offset; at--) placed[at] = placed[at - 1];
	placed[at] = (struct placed_stay){ spot->offset, spot->offset + packing->stays[number].bytes, window_of(packing, number, spot) };
}

/* The lowest offset at which the stay fits, shortened as [spot] says. False: it ends above [most]. */
static bool find_offset(struct packing *packing, uint32_t count, uint32_t number, struct spot *spot)
{
	uint64_t bytes = packing->stays[number].bytes, place = 0;
	struct window window = window_of(packing, number, spot);
	uint32_t k = 0;
	for (; k < count; k++) {
		const struct placed_stay *other = &packing->placed[k];
		if (other->offset >= place + bytes) break; /* those after it begin later still */
		if (other->end > place && overlap(window, other->window)) place = other->end;
	}
	packing->work += k;
	spot->offset = place;
	return place <= packing->most && bytes <= packing->most - place;
}

/* Places a stay, shortened as little as possible. */
static bool place(struct packing *packing, uint32_t count, uint32_t number)
{
	const hr__layout_stay *stay = &packing->stays[number];
	struct spot spot = cut(stay, packing->least_cut), shortest = cut(stay, CUTS);
	bool fits = find_offset(packing, count, number, &spot);
	if (!fits && (stay->late || stay->early) && find_offset(packing, count, number, &shortest)) {
		uint32_t low = packing->least_cut, high = CUTS; /* too long, and short enough */
		for (fits = true, spot = shortest; high - low > 1;) {
			uint32_t middle = low + (high - low) / 2;
			struct spot between = cut(stay, middle);
			if (find_offset(packing, count, number, &between)) {
				high = middle;
				spot = between;
			} else {
				low = middle;
			}
		}
	}
	packing->spots[number] = spot;
	return fits;
}

/* Places all stays. Returns the index of the one that does not fit; [count] = all do. */
static uint32_t pack(struct packing *packing)
{
	for (uint32_t i = 0; i < packing->count; i++) {
		if (!place(packing, i, packing->numbers[i])) return i;
		insert(packing, i, packing->numbers[i]);
	}
	return packing->count;
}

/* ---- using what is left ---- */

/* A stay begins earlier and ends later again, as far as its place is free. */
static void lengthen(struct packing *packing, uint32_t number)
{
	const hr__layout_stay *stay = &packing->stays[number];
	struct spot *spot = &packing->spots[number];
	uint32_t n = packing->turns, late = 0, early = 0, to = (stay->to + n - spot->early) % n;
	for (uint32_t k = 0; k < packing->count; k++) {
		const struct spot *other = &packing->spots[k];
		if (k == number || other->offset >= spot->offset + stay->bytes || spot->offset >= other->offset + packing->stays[k].bytes) continue;
		struct window window = window_of(packing, k, other);
		uint32_t after = (window.to + n - stay->from) % n + 1, before = (window.from + n - to) % n;
		if (after <= spot->late && after > late) late = after;
		if (before <= spot->early && spot->early - before + 1 > early) early = spot->early - before + 1;
	}
	packing->work += packing->count;
	*spot = (struct spot){ spot->offset, late, early };
}

/* Also finds the stay that lost most. */
static uint32_t finish(struct packing *packing)
{
	uint32_t worst = packing->count;
	uint64_t most = 0;
	packing->late_bytes = 0;
	for (uint32_t i = 0; i < packing->count; i++) {
		uint32_t number = packing->numbers[i];
		const hr__layout_stay *stay = &packing->stays[number];
		if (packing->spots[number].late || packing->spots[number].early) lengthen(packing, number);
		uint64_t lost = late_bytes(stay, &packing->spots[number]);
		packing->late_bytes += lost;
		if (lost > most) {
			most = lost;
			worst = i;
		}
	}
	return worst;
}

/* ---- all tries ---- */

/* Tries an order, and changes of it, until no time is lost or the work is done. */
static void try_order(struct packing *packing, bool *fits)
{
	uint64_t until = packing->work + WORK_MAX / TRIES;
	for (uint32_t i = 0; i < packing->count; i++) packing->numbers[i] = i;
	hr__sort(packing->numbers, packing->count, sizeof *packing->numbers, stay_before, packing);
	for (uint32_t round = 0; round < ROUNDS_MAX && packing->best_late_bytes; round++) {
		uint32_t first = pack(packing);
		if (first == packing->count) {
			first = finish(packing);
			if (packing->late_bytes < packing->best_late_bytes) {
				*fits = true;
				packing->best_late_bytes = packing->late_bytes;
				memcpy(packing->best, packing->spots, packing->count * sizeof *packing->best);
			}
		}
		if (first == packing->count || first == 0 || packing->work >= until) break;
		place_first(packing, first);
	}
}

hr_status hr__layout_make(hr__layout_stay *stays, uint32_t count, uint32_t turns, uint64_t most, bool *fits, uint64_t *late_bytes)
{
	void *block;
	*fits = count == 0;
	*late_bytes = 0;
	if (!count) return HR_OK;
	size_t bytes = (size_t)count * (sizeof(struct placed_stay) + 2 * sizeof(struct spot) + sizeof(uint32_t));
	int error = hr__os()->alloc(bytes, &block);
	if (error) return hr__os_fail(error, "cannot get host memory for the layout of a step");
	struct packing packing = { .stays = stays, .count = count, .turns = turns, .most = most, .best_late_bytes = UINT64_MAX };
	packing.placed = block;
	packing.spots = (struct spot *)(packing.placed + count);
	packing.best = packing.spots + count;
	packing.numbers = (uint32_t *)(packing.best + count);
	for (uint32_t i = 0; i < TRIES; i++) {
		packing.order = i % ORDERS;
		packing.least_cut = i / ORDERS * 3; /* the longest stays, then those that give up something */
		try_order(&packing, fits);
	}
	for (uint32_t i = 0; *fits && i < count; i++) {
		struct window window = window_of(&packing, i, &packing.best[i]);
		stays[i].offset = packing.best[i].offset;
		stays[i].from = window.from;
		stays[i].to = window.to;
	}
	*late_bytes = *fits ? packing.best_late_bytes : 0;
	hr__os()->free(block, bytes);
	return HR_OK;
}
