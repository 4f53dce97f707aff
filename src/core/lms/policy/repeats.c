/* repeats.c - see repeats.h.
 *
 * A hash of the last HR__REPEATS_WINDOW items is looked up in a table that has the last position of each hash. The distance to that
 * position is a candidate for the period. It is the period once a whole period was equal to the one before, item by item. From then
 * on each item is only compared with the one a period ago. */
#include "core/lms/policy/repeats.h"

#include "core/base/assert.h"
#include "core/os/os.h"

#define PLACES 131072u

struct hr__repeats {
	uint64_t items[HR__REPEATS_HISTORY]; /* item i is at i % HR__REPEATS_HISTORY */
	uint64_t weights[HR__REPEATS_HISTORY];
	uint64_t count;
	uint64_t places[PLACES]; /* by hash of a window: number of the item that ended it last; 0 = none */
	uint64_t candidate, run; /* a distance, and the number of items for which it has held */
	uint64_t period;         /* 0 = not found yet */
	uint64_t at, misses;     /* items into the period, and how many of them differ from the period before */
};

hr_status hr__repeats_open(hr__repeats **out)
{
	void *block;
	int error = hr__os()->alloc(sizeof(hr__repeats), &block);
	if (error) return hr__os_fail(error, "cannot get host memory to watch for repeats");
	*out = block;
	return HR_OK;
}

void hr__repeats_close(hr__repeats *repeats)
{
	if (repeats) hr__os()->free(repeats, sizeof *repeats);
}

static uint64_t item_at(const hr__repeats *repeats, uint64_t number)
{
	HR_ASSERT(number < repeats->count && repeats->count - number <= HR__REPEATS_HISTORY);
	return repeats->items[number % HR__REPEATS_HISTORY];
}

static uint64_t hash_window(const hr__repeats *repeats)
{
	uint64_t hash = UINT64_C(0xcbf29ce484222325);
	for (uint64_t i = repeats->count - HR__REPEATS_WINDOW; i < repeats->count; i++)
		hash = ((hash ^ item_at(repeats, i)) * UINT64_C(0x9E3779B97F4A7C15)) ^ (hash >> 31);
	return hash;
}

/* Number of items until the next period should begin: at the lowest weight of the last period. */
static uint64_t until_lightest(const hr__repeats *repeats)
{
	HR_ASSERT(repeats->period > 0 && repeats->period <= repeats->count);
	uint64_t best = 0, first = repeats->count - repeats->period;
	for (uint64_t i = 1; i < repeats->period; i++)
		if (repeats->weights[(first + i) % HR__REPEATS_HISTORY] < repeats->weights[(first + best) % HR__REPEATS_HISTORY]) best = i;
	return best + 1;
}

static void search(hr__repeats *repeats)
{
	uint64_t *place = &repeats->places[hash_window(repeats) % PLACES], before = *place;
	*place = repeats->count;
	uint64_t distance = before ? repeats->count - before : 0;
	if (distance < HR__REPEATS_WINDOW || distance > HR__REPEATS_HISTORY / 2) distance = 0;
	/* Two windows may share a table entry, so the items themselves are compared. */
	uint64_t candidate = repeats->candidate;
	if (candidate && item_at(repeats, repeats->count - 1 - candidate) == item_at(repeats, repeats->count - 1)) {
		repeats->run++;
	} else {
		repeats->candidate = distance;
		repeats->run = 0;
	}
	if (!repeats->candidate || repeats->run < repeats->candidate) return;
	repeats->period = repeats->candidate;
	repeats->misses = 0;
	repeats->at = repeats->period - until_lightest(repeats);
}

bool hr__repeats_note(hr__repeats *repeats, uint64_t item, uint64_t weight)
{
	HR_ASSERT(!repeats->period || repeats->at < repeats->period);
	repeats->weights[repeats->count % HR__REPEATS_HISTORY] = weight;
	repeats->items[repeats->count++ % HR__REPEATS_HISTORY] = item;
	if (repeats->count < HR__REPEATS_WINDOW) return false;
	if (!repeats->period) {
		search(repeats);
		return false;
	}
	if (item_at(repeats, repeats->count - 1 - repeats->period) != item) repeats->misses++;
	if (repeats->misses > repeats->period / 4) {
		repeats->period = repeats->candidate = repeats->run = 0;
		return false;
	}
	if (++repeats->at < repeats->period) return false;
	repeats->at = repeats->misses = 0;
	return true;
}
