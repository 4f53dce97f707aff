/* linux_thread.c - threads, monitors, clocks, and the process-wide barrier. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/membarrier.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "core/base/assert.h"
#include "core/base/checked.h"
#include "core/os/linux.h"

#define NS_PER_S 1000000000u

/* ---- clocks ---- */

static uint64_t read_clock(clockid_t clock)
{
	struct timespec now;
	clock_gettime(clock, &now);
	return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

uint64_t hr__linux_clock_ns(void)
{
	return read_clock(CLOCK_MONOTONIC);
}

uint64_t hr__linux_wall_clock_ns(void)
{
	return read_clock(CLOCK_REALTIME);
}

/* The time [ns] from now on the monotonic clock; capped at UINT64_MAX ns when the sum overflows. */
static struct timespec deadline_after(uint64_t ns)
{
	uint64_t deadline;
	if (!hr__add(hr__linux_clock_ns(), ns, &deadline)) deadline = UINT64_MAX;
	return (struct timespec){ .tv_sec = (time_t)(deadline / NS_PER_S), .tv_nsec = (long)(deadline % NS_PER_S) };
}

void hr__linux_sleep_ns(uint64_t ns)
{
	struct timespec deadline = deadline_after(ns);
	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &deadline, NULL) == EINTR) continue;
}

/* ---- threads ---- */

struct hr__thread {
	pthread_t id;
	void (*run)(void *);
	void *argument;
	char name[16]; /* the system's limit, including the 0 */
};

static void *thread_main(void *argument)
{
	hr__thread *thread = argument;
	pthread_setname_np(pthread_self(), thread->name);
	thread->run(thread->argument);
	return NULL;
}

int hr__linux_thread_start(void (*run)(void *), void *argument, const char *name, hr__thread **out)
{
	hr__thread *thread = calloc(1, sizeof *thread);
	if (thread == NULL) return ENOMEM;
	thread->run = run;
	thread->argument = argument;
	snprintf(thread->name, sizeof thread->name, "%s", name != NULL ? name : "headroom");

	/* The new thread inherits the signal mask. The program's signal handlers must not run on threads that the program does not know
	 * of. Signals caused by an instruction of the thread itself stay unblocked: if blocked, they would kill without a handler being
	 * called. */
	sigset_t blocked, before;
	sigfillset(&blocked);
	sigdelset(&blocked, SIGSEGV);
	sigdelset(&blocked, SIGBUS);
	sigdelset(&blocked, SIGFPE);
	sigdelset(&blocked, SIGILL);
	sigdelset(&blocked, SIGTRAP);
	sigdelset(&blocked, SIGABRT);
	pthread_sigmask(SIG_SETMASK, &blocked, &before);
	int error = pthread_create(&thread->id, NULL, thread_main, thread);
	pthread_sigmask(SIG_SETMASK, &before, NULL);

	if (error != 0) {
		free(thread);
		return error;
	}
	*out = thread;
	return 0;
}

void hr__linux_thread_join(hr__thread *thread)
{
	int error = pthread_join(thread->id, NULL);
	HR_ASSERT(error == 0);
	(void)error;
	free(thread);
}

/* ---- monitors ---- */

struct hr__monitor {
	pthread_mutex_t mutex;
	pthread_cond_t condition;
};

/* Uses the monotonic clock, so that setting the time of day does not shorten or lengthen a wait. */
static int make_condition(pthread_cond_t *condition)
{
	pthread_condattr_t attributes;
	int error = pthread_condattr_init(&attributes);
	if (error != 0) return error;
	error = pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	if (error == 0) error = pthread_cond_init(condition, &attributes);
	pthread_condattr_destroy(&attributes);
	return error;
}

int hr__linux_monitor_create(hr__monitor **out)
{
	hr__monitor *monitor = calloc(1, sizeof *monitor);
	if (monitor == NULL) return ENOMEM;
	int error = pthread_mutex_init(&monitor->mutex, NULL);
	if (error != 0) goto no_mutex;
	error = make_condition(&monitor->condition);
	if (error != 0) goto no_condition;
	*out = monitor;
	return 0;

no_condition:
	pthread_mutex_destroy(&monitor->mutex);
no_mutex:
	free(monitor);
	return error;
}

void hr__linux_monitor_destroy(hr__monitor *monitor)
{
	pthread_cond_destroy(&monitor->condition);
	pthread_mutex_destroy(&monitor->mutex);
	free(monitor);
}

void hr__linux_monitor_enter(hr__monitor *monitor)
{
	int error = pthread_mutex_lock(&monitor->mutex);
	HR_ASSERT(error == 0);
	(void)error;
}

void hr__linux_monitor_leave(hr__monitor *monitor)
{
	int error = pthread_mutex_unlock(&monitor->mutex);
	HR_ASSERT(error == 0);
	(void)error;
}

void hr__linux_monitor_wait(hr__monitor *monitor, uint64_t timeout_ns)
{
	if (timeout_ns == UINT64_MAX) {
		pthread_cond_wait(&monitor->condition, &monitor->mutex);
	} else {
		struct timespec deadline = deadline_after(timeout_ns);
		pthread_cond_timedwait(&monitor->condition, &monitor->mutex, &deadline);
	}
}

void hr__linux_monitor_wake_all(hr__monitor *monitor)
{
	pthread_cond_broadcast(&monitor->condition);
}

/* ---- barrier ---- */

static int membarrier(int command)
{
	return syscall(SYS_membarrier, command, 0, 0) == 0 ? 0 : errno;
}

int hr__linux_heavy_barrier(void)
{
	int error = membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED);
	if (error != EPERM) return error;
	/* The process has not registered yet. Registering twice is harmless. */
	error = membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
	return error != 0 ? error : membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED);
}
