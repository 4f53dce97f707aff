/* team.c - worker threads for kernels.
 *
 * One team per process, started on first use, with one thread less than processors because the calling thread works too. It runs
 * one job at a time: a caller that finds it busy runs all parts itself. Parts are assigned by a counter. What a part computes does
 * not depend on the thread that runs it. */
#include "core/base/checked.h"
#include "core/base/text/settings.h"
#include "core/os/os.h"
#include "core/record/record.h"
#include "runtime/engine/engine.h"

#include <stdlib.h>

#define HELPERS_MAX (HR__THREADS_MAX - 1)

struct task {
	uint32_t parts;
	void (*part)(void *context, uint32_t number);
	void *context;
};

struct hr__team {
	hr__monitor *monitor;
	hr__thread *helpers[HELPERS_MAX];
	uint32_t helper_count;
	/* Guarded by the monitor. */
	bool ends;
	uint64_t job; /* number of the current job; 0 = none yet */
	uint32_t inside; /* helpers working on it */
	struct task task; /* of the job; part is NULL when all parts are assigned */
	hr__atomic_u8 busy;
	hr__atomic_u32 next; /* next part to assign */
};

static hr__team team;
static bool started; /* guarded by hr__runtime_lock: one thread starts the team */
static hr__atomic_u8 there; /* the team can be used */

static void do_parts(hr__team *of, struct task task)
{
	for (;;) {
		uint32_t number = hr__fetch_add_relaxed(&of->next, 1);
		if (number >= task.parts) return;
		task.part(task.context, number);
	}
}

static void help(void *argument)
{
	hr__team *of = argument;
	const hr__os_table *os = hr__os();
	uint64_t seen = 0;
	os->monitor_enter(of->monitor);
	while (!of->ends) {
		if (of->job == seen) {
			os->monitor_wait(of->monitor, UINT64_MAX);
			continue;
		}
		seen = of->job;
		struct task task = of->task;
		if (!task.part) continue; /* finished before this thread woke up */
		of->inside++;
		os->monitor_leave(of->monitor);
		do_parts(of, task);
		os->monitor_enter(of->monitor);
		of->inside--;
		os->monitor_wake_all(of->monitor);
	}
	os->monitor_leave(of->monitor);
}

void hr__team_run(hr__team *of, uint32_t parts, void (*part)(void *context, uint32_t number), void *context)
{
	uint8_t idle = 0;
	if (!of || parts < 2 || !of->helper_count || !hr__cas_acquire(&of->busy, &idle, 1)) {
		for (uint32_t i = 0; i < parts; i++) part(context, i);
		return;
	}
	const hr__os_table *os = hr__os();
	os->monitor_enter(of->monitor);
	struct task task = { parts, part, context };
	of->task = task;
	hr__store_relaxed(&of->next, 0);
	of->job++;
	os->monitor_wake_all(of->monitor);
	os->monitor_leave(of->monitor);
	do_parts(of, task);
	os->monitor_enter(of->monitor);
	of->task.part = NULL; /* nothing left for helpers that wake up late */
	while (of->inside) os->monitor_wait(of->monitor, UINT64_MAX);
	os->monitor_leave(of->monitor);
	hr__store_release(&of->busy, 0);
}

hr__team *hr__team_get(void)
{
	hr__lock_take(&hr__runtime_lock);
	bool starts = !started;
	started = true;
	hr__lock_release(&hr__runtime_lock);
	if (starts && !hr__os()->monitor_create(&team.monitor)) {
		uint32_t wanted = hr__threads_wanted() - 1;
		while (team.helper_count < wanted && !hr__os()->thread_start(help, &team, "hr-op", &team.helpers[team.helper_count])) team.helper_count++;
		hr__store_release(&there, 1);
	}
	return hr__load_acquire(&there) ? &team : NULL; /* also NULL while another thread starts it */
}

void hr__team_end(bool forgets)
{
	if (hr__load_acquire(&there) && !forgets) {
		hr__os()->monitor_enter(team.monitor);
		team.ends = true;
		hr__os()->monitor_wake_all(team.monitor);
		hr__os()->monitor_leave(team.monitor);
		for (uint32_t i = 0; i < team.helper_count; i++) hr__os()->thread_join(team.helpers[i]);
		hr__os()->monitor_destroy(team.monitor);
	}
	team = (hr__team){ 0 };
	started = false;
	hr__store_release(&there, 0);
}
