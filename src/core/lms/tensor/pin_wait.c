/* pin_wait.c - a pin that finds no memory waits until other threads unpin.
 *
 * Threads that retry at the same time can each take what another needs, and all fail again and again. So one waiting thread holds
 * the turn (hr__lms.turn) and retries at every change; the others retry only occasionally. A new call that competes with it fails
 * too, and waits. */
#include "core/lms/tensor/pin.h"

#define WAIT_GROWTH_MAX 16u         /* waits grow up to this attempt, to HR__LOCK_MAX_SLEEP_NS */
#define ATTEMPTS_WITHOUT_TURN 64u   /* a thread without the turn retries once in so many waits */
#define YIELD_TO_WAITER_NS 2000000u /* how long a pin yields to a waiter, which may be waiting for something else */

/* A pin is counted after it is made, so the tensors are checked as well. */
static bool nothing_is_pinned(hr__lms *lms)
{
	bool pinned = hr__lms_pinned(lms) != 0;
	if (pinned) return false;
	hr__lock_take(&lms->lock);
	for (uint32_t i = 0; i < lms->member_count && !pinned; i++) pinned = hr__load_acquire(&lms->members[i]->word) & HR__WORD_PINS;
	hr__lock_release(&lms->lock);
	return !pinned;
}

static bool nothing_pinned_or_moving(hr__lms *lms)
{
	return !hr__load_acquire(&lms->movers) && nothing_is_pinned(lms);
}

hr_status hr__pin_wait_for_room(hr__lms *lms, const hr_pin *pins, size_t count, hr_stream stream)
{
	HR_ASSERT(hr__lock_none_from(HR__RANK_LMS));
	HR_ASSERT(lms->wait_ns);
	hr_status status = HR_OUT_OF_MEMORY;
	uint64_t until = hr__os()->clock_ns() + lms->wait_ns;
	bool turn = false, late = false;
	if (until < lms->wait_ns) until = UINT64_MAX; /* no timeout */
	hr__lms_count(&lms->stats.num_pin_waits, 1);
	for (unsigned attempt = 1; !late; attempt++) {
		uint32_t free_turn = 0;
		turn = turn || hr__cas_acquire(&lms->turn, &free_turn, 1);
		late = hr__os()->clock_ns() >= until;
		if (!turn && !late && attempt % ATTEMPTS_WITHOUT_TURN) {
			hr__state_wait(WAIT_GROWTH_MAX);
			continue;
		}
		bool quiet = nothing_pinned_or_moving(lms);
		uint64_t seen = hr__load_acquire(&lms->changes) - hr__lms_changes_of_thread();
		hr__request_retry(true); /* only the first attempt is reported */
		status = hr__pin_all_or_none(lms, pins, count, stream);
		hr__request_retry(false);
		if (status != HR_OUT_OF_MEMORY) break;
		seen += hr__lms_changes_of_thread(); /* its own changes are nothing new */
		if (quiet && nothing_pinned_or_moving(lms) && hr__load_acquire(&lms->changes) == seen) break;
		for (unsigned i = 0; turn && !late && hr__load_acquire(&lms->changes) == seen && !nothing_pinned_or_moving(lms); i++) {
			hr__state_wait(i < WAIT_GROWTH_MAX ? i : WAIT_GROWTH_MAX);
			late = hr__os()->clock_ns() >= until;
		}
	}
	if (turn) hr__store_release(&lms->turn, 0);
	return status;
}

/* Without this, a thread that pins again right after its unpin would always be faster than a thread that waits for it. */
void hr__pin_yield_to_waiter(const hr__lms *lms)
{
	uint64_t until = hr__os()->clock_ns() + YIELD_TO_WAITER_NS;
	for (unsigned i = 0; hr__load_acquire(&lms->turn) && hr__os()->clock_ns() < until; i++)
		hr__state_wait(i < WAIT_GROWTH_MAX ? i : WAIT_GROWTH_MAX);
}
