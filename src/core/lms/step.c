/* step.c - hr_step_begin and hr_step_end: what a step of the program means to the context, its policy and recordings. */
#include <stdio.h>

#include "core/base/hooks.h"
#include "core/base/status.h"
#include "core/lms/context.h"
#include "core/trace/trace.h"

/* Names the allocator of a step, since steps of several allocators may overlap. Includes the slot, because names need not
 * differ. */
static hr_name owner_of_steps(const hr__lms *lms)
{
	char name[64];
	snprintf(name, sizeof name, "%s:%u", lms->allocator->name, (unsigned)(lms->allocator->id % HR__ALLOCATORS_MAX));
	return hr_name_intern(name);
}

static void announce_step(const hr__lms *lms, uint64_t number, bool begins)
{
	void (*watcher)(uint64_t allocator, uint64_t number, bool begins) = hr__load_acquire(&hr__hooks_table.step);
	if (begins && watcher) watcher(lms->handle.id, number, true);
	if (hr__trace_is_on())
		hr__trace_event(
			&(hr__event){ .kind = begins ? HR__EVENT_STEP : HR__EVENT_STEP_END, .bytes = number, .tag = owner_of_steps(lms) });
	if (!begins && watcher) watcher(lms->handle.id, number, false);
}

/* Of a step, the stalls that became known while it ran are recorded. The device may be behind the host, so they may have begun in the step
 * before it. */
static void record_stall(hr__lms *lms, bool begins)
{
	if (!hr__trace_is_on() || !lms->enabled) return;
	hr__stall_evaluate(lms);
	hr__lock_take(&lms->lock);
	int64_t stalled = hr__load_relaxed(&lms->stats.stall_ns), since = stalled - lms->step_stall_ns;
	lms->step_stall_ns = stalled;
	hr__lock_release(&lms->lock);
	if (begins || since <= 0) return; /* statistics can be reset */
	hr__trace_event(&(hr__event){ .kind = HR__EVENT_MARK, .tag = hr_name_intern(HR__MARK_STALL), .bytes = (uint64_t)since });
}

static hr_status change_step(hr_allocator handle, bool begins)
{
	hr__lms *lms;
	hr_status status = hr__lms_of(handle, &lms);
	if (status) return status;
	hr__lock_take(&lms->lock);
	bool inside = lms->in_step;
	lms->in_step = begins;
	hr__lock_release(&lms->lock);
	if (!begins && !inside) return hr__fail(HR_INVALID_ARGUMENT, "hr_step_end without hr_step_begin");
	int64_t number = hr__load_relaxed(&lms->stats.num_steps);
	if (inside) {
		record_stall(lms, false);
		announce_step(lms, (uint64_t)number, false);
		hr__step_csv_write(lms, number);
		hr__step_peak_end(lms);
		hr__learned_step(lms, false);
	}
	if (!begins) return HR_OK;
	hr__lms_count(&lms->stats.num_steps, 1);
	announce_step(lms, (uint64_t)number + 1, true);
	record_stall(lms, true);
	hr__learned_step(lms, true);
	hr__step_peak_begin(lms);
	if (lms->policy.step) lms->policy.step(lms->policy_user, (uint64_t)number + 1);
	return HR_OK;
}

bool hr__lms_in_step(hr_allocator handle)
{
	hr__lms *lms;
	if (hr__lms_find(handle, &lms)) return false;
	hr__lock_take(&lms->lock);
	bool inside = lms->in_step;
	hr__lock_release(&lms->lock);
	return inside;
}

hr_status hr_step_begin(hr_allocator handle)
{
	return change_step(handle, true);
}

hr_status hr_step_end(hr_allocator handle)
{
	return change_step(handle, false);
}
