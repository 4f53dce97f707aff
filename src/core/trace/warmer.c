/* warmer.c - see warmer.h. */
#include "core/trace/warmer.h"

#include <stddef.h>
#include <stdint.h>

#include "core/os/os.h"

/* start and stop write these; they exclude each other and every wake, because no thread writes to a trace at that time. The flags
 * are accessed inside the monitor. */
static hr__monitor *monitor;
static hr__thread *thread;
static bool (*do_step)(void);
static bool wanted, stopping;

static void run(void *unused)
{
	(void)unused;
	hr__os()->monitor_enter(monitor);
	while (!stopping) {
		if (!wanted) {
			hr__os()->monitor_wait(monitor, UINT64_MAX);
			continue;
		}
		wanted = false;
		hr__os()->monitor_leave(monitor);
		while (do_step()) continue;
		hr__os()->monitor_enter(monitor);
	}
	hr__os()->monitor_leave(monitor);
}

void hr__warmer_start(bool (*step)(void))
{
	do_step = step;
	wanted = true;
	stopping = false;
	thread = NULL;
	if (hr__os()->monitor_create(&monitor)) {
		monitor = NULL;
	} else if (hr__os()->thread_start(run, NULL, "headroom trace", &thread)) {
		hr__os()->monitor_destroy(monitor);
		monitor = NULL;
	}
}

static void set_and_wake(bool *flag)
{
	hr__os()->monitor_enter(monitor);
	*flag = true;
	hr__os()->monitor_wake_all(monitor);
	hr__os()->monitor_leave(monitor);
}

void hr__warmer_wake(void)
{
	if (monitor) set_and_wake(&wanted);
}

void hr__warmer_stop(void)
{
	if (!monitor) return;
	set_and_wake(&stopping);
	hr__os()->thread_join(thread);
	hr__os()->monitor_destroy(monitor);
	hr__warmer_forget();
}

void hr__warmer_forget(void)
{
	monitor = NULL;
	thread = NULL;
}
