/* step_peak.c - how many bytes a step needs at once if no tensor is evicted: the limit with which it would run without Large Model
 * Support. The verdict on a refused request names it (hr_verdict.step_peak_bytes).
 *
 *   nothing was evicted    the allocator's peak, if it rose in the step: then it is the step's. Otherwise nothing new is known
 *   tensors were evicted   the peak of bytes of resident and evicted tensors together, plus the other blocks allocated when the
 *                          step began
 *
 * A step with a refused request does not show what it would have needed. */
#include "core/lms/lms.h"

static hr__step_start look(hr__lms *lms)
{
	return (hr__step_start){ .level = hr__stats_summarize(lms->allocator),
		                     .resident = hr__load_relaxed(&lms->resident),
		                     .out = hr__load_relaxed(&lms->stats.bytes_out_now),
		                     .evictions = hr__load_relaxed(&lms->stats.num_evictions) };
}

void hr__step_peak_begin(hr__lms *lms)
{
	hr__step_start now = look(lms);
	hr__lock_take(&lms->lock);
	lms->step_start = now;
	hr__lock_release(&lms->lock);
	hr__store_relaxed(&lms->peak_live, hr__load_relaxed(&lms->live));
}

void hr__step_peak_end(hr__lms *lms)
{
	hr__step_start now = look(lms);
	hr__lock_take(&lms->lock);
	hr__step_start start = lms->step_start;
	hr__lock_release(&lms->lock);
	if (now.level.refused != start.level.refused) return;
	bool evicted = start.out || now.evictions != start.evictions;
	int64_t others = start.level.in_use > start.resident ? start.level.in_use - start.resident : 0;
	if (evicted) hr__stats_note_step_peak(lms->allocator, others + hr__load_relaxed(&lms->peak_live));
	else if (now.level.peak > start.level.peak) hr__stats_note_step_peak(lms->allocator, now.level.peak);
}
