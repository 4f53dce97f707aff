/* find_limit.c - bisects for the lowest limit, then tries limits around it. More memory does not always help: best fit may place
 * one block elsewhere, and a later block then does not fit.
 *
 *     peak                          answer
 *      |  bisect ....... F F F S S F | S S S S S S S . S . S . S . S
 *                        ^^^^^^^^^^^   ^^^^^^^^^^^   ^^^^^^^^^^^^^^^
 *                        down 3%       up 3% by 0.1% up 25% by 0.5%
 *
 * The answer is above every failure seen. Limits are whole pages; one step is 0.1% of the peak, but at least a page. */
#include "replay/find_limit.h"

#include "core/base/checked.h"
#include "core/base/status.h"

#define FINE_STEPS 30u   /* of 0.1% each, up and down */
#define COARSE_STEPS 44u /* of 0.5% each, from 3% to 25% up */
#define BISECT_RUNS 12u  /* estimate, for the progress bar */

struct limit_search {
	hr__setup setup;
	hr__limit_answer answer;
	uint64_t step;
	uint32_t expected; /* runs */
	hr_status status;
};

/* Whether the program runs with [limit]. Always false after an error. */
static bool runs_with(struct limit_search *search, uint64_t limit)
{
	hr__trial trial;
	if (search->status) return false;
	search->setup.limit = limit;
	search->status = hr__measure_trial(&search->setup, true, &trial);
	if (search->status) return false;
	search->answer.runs++;
	hr__progress_show(search->setup.progress, (double)search->answer.runs / search->expected);
	bool success = trial.failed == 0;
	if (success && (!search->answer.lowest_success || limit < search->answer.lowest_success)) search->answer.lowest_success = limit;
	if (!success && limit > search->answer.highest_failure) search->answer.highest_failure = limit;
	return success;
}

/* [bad] fails and [good] succeeds. Returns the lowest success found between them, which is at most one step above a failure. */
static uint64_t bisect(struct limit_search *search, uint64_t bad, uint64_t good)
{
	while (!search->status && good - bad > search->step) {
		uint64_t middle = hr__align_down(bad + (good - bad) / 2, search->setup.page);
		if (middle <= bad) break;
		if (runs_with(search, middle)) good = middle;
		else bad = middle;
	}
	return good;
}

/* The first limit from [start] up, in steps of 5%, that succeeds; 0 when none does. *bad is set to the last failure. */
static uint64_t climb(struct limit_search *search, uint64_t start, uint64_t *bad)
{
	uint64_t most = HR__PROGRAM_LIVE_MAX / search->setup.threads;
	for (uint64_t limit = start; !search->status && limit <= most; limit = hr__align_down(limit + limit / 20, search->setup.page)) {
		if (runs_with(search, limit)) return limit;
		*bad = limit;
		if (limit / 20 < search->setup.page) limit += search->setup.page;
	}
	return 0;
}

/* Tries limits above [from]. Returns the first one above the highest failure, or [from] when none fails. */
static uint64_t look_above(struct limit_search *search, uint64_t from)
{
	uint64_t beyond = from;
	bool failed = false;
	for (uint32_t i = 1; !search->status && i <= FINE_STEPS + COARSE_STEPS; i++) {
		uint64_t steps = i <= FINE_STEPS ? i : FINE_STEPS + 5 * (uint64_t)(i - FINE_STEPS), limit = from + steps * search->step;
		bool success = runs_with(search, limit);
		if (success && failed) beyond = limit;
		failed = !success;
	}
	/* The highest limit tried failed: continue upwards. */
	if (failed && !search->status) {
		uint64_t bad = search->answer.highest_failure;
		beyond = climb(search, hr__align_down(bad + bad / 20, search->setup.page) + search->setup.page, &bad);
	}
	return beyond;
}

static void look_below(struct limit_search *search, uint64_t from)
{
	for (uint32_t i = 1; i <= FINE_STEPS && i * search->step < from && from - i * search->step >= search->setup.program->peak_bytes;
	     i++)
		runs_with(search, from - i * search->step);
}

hr_status hr__find_limit(const hr__setup *setup, uint64_t reserved, hr__limit_answer *out)
{
	struct limit_search search = { .setup = *setup, .expected = BISECT_RUNS + 2 * FINE_STEPS + COARSE_STEPS };
	uint64_t peak = setup->program->peak_bytes, start = 0;
	search.step = hr__align_down(peak / 1000, setup->page);
	if (search.step < setup->page) search.step = setup->page;
	if (!hr__align_up(reserved / setup->threads, setup->page, &start))
		return hr__fail(HR_BAD_LIMIT, "the program needs too much memory");

	/* The limit cannot be below the live bytes at the peak. */
	uint64_t bad = hr__align_down(peak - 1, setup->page);
	uint64_t good = climb(&search, start > bad ? start : bad + setup->page, &bad);
	if (good) good = bisect(&search, bad, good);
	uint64_t first = good;
	if (good) good = look_above(&search, good);
	if (good && good != first) good = bisect(&search, search.answer.highest_failure, good);
	if (first) look_below(&search, first);
	if (search.status) return search.status;
	if (!good) return hr__fail(HR_BAD_LIMIT, "there is no limit up to 64 TiB at which the program runs");
	search.answer.limit = good;
	*out = search.answer;
	return HR_OK;
}
