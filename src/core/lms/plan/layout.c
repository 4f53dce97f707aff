/* layout.c - see layout.h. Packing rectangles with one fixed side is hard in general. Largest first at the lowest offset is how
 * offline packings of recorded traces were made, and wastes almost nothing. */
#include "core/lms/plan/layout.h"

#include "core/base/assert.h"
#include "core/base/sort.h"
#include "core/os/os.h"

static bool overlap(const hr__layout_stay *a, const hr__layout_stay *b)
{
	bool a_wraps = a->to < a->from, b_wraps = b->to < b->from;
	if (a_wraps && b_wraps) return true;
	if (a_wraps) return b->to >= a->from || b->from <= a->to;
	if (b_wraps) return a->to >= b->from || a->from <= b->to;
	return a->from <= b->to && b->from <= a->to;
}

enum order { LARGEST, LAST_TO_END, LONGEST, FIRST_TO_BEGIN, ORDERS };

struct packing {
	hr__layout_stay *stays;
	uint32_t count, ops;
	enum order order;
	uint32_t *numbers, *placed;
};

static uint64_t weight(const struct packing *packing, const hr__layout_stay *stay)
{
	switch (packing->order) {
	case LARGEST: return stay->bytes;
	case LAST_TO_END: return stay->to;
	case LONGEST: return stay->to >= stay->from ? stay->to - stay->from : packing->ops - stay->from + stay->to;
	default: return packing->ops - stay->from;
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

/* Inserts [number] into the list of placed stays, which is sorted by offset. */
static void insert(struct packing *packing, uint32_t count, uint32_t number)
{
	HR_ASSERT(count < packing->count && number < packing->count);
	uint32_t at = count, *placed = packing->placed;
	for (; at > 0 && packing->stays[placed[at - 1]].offset > packing->stays[number].offset; at--) placed[at] = placed[at - 1];
	placed[at] = number;
}

/* False if a stay ends above [most]. */
static bool pack(struct packing *packing, uint64_t most)
{
	for (uint32_t i = 0; i < packing->count; i++) packing->numbers[i] = i;
	hr__sort(packing->numbers, packing->count, sizeof *packing->numbers, stay_before, packing);
	for (uint32_t i = 0; i < packing->count; i++) {
		hr__layout_stay *stay = &packing->stays[packing->numbers[i]];
		uint64_t place = 0;
		for (uint32_t k = 0; k < i; k++) {
			const hr__layout_stay *other = &packing->stays[packing->placed[k]];
			if (other->offset >= place + stay->bytes) break; /* those after it begin later still */
			if (other->offset + other->bytes <= place || !overlap(stay, other)) continue;
			place = other->offset + other->bytes;
		}
		stay->offset = place;
		if (place > most || stay->bytes > most - place) return false;
		insert(packing, i, packing->numbers[i]);
	}
	return true;
}

hr_status hr__layout_make(hr__layout_stay *stays, uint32_t count, uint32_t ops, uint64_t most, bool *fits)
{
	void *block;
	*fits = count == 0;
	if (!count) return HR_OK;
	size_t bytes = 2 * (size_t)count * sizeof(uint32_t);
	int error = hr__os()->alloc(bytes, &block);
	if (error) return hr__os_fail(error, "cannot get host memory for the layout of a step");
	struct packing packing = { .stays = stays, .count = count, .ops = ops, .numbers = block, .placed = (uint32_t *)block + count };
	for (; packing.order < ORDERS && !*fits; packing.order++) *fits = pack(&packing, most);
	hr__os()->free(block, bytes);
	return HR_OK;
}
