/* support_faults.h - makes the Nth call of the operating system or of the device fail while a scenario runs: once, or from that call on.
 *
 * A scenario is a small program. It is run with the 1st call failing, the 2nd, the 3rd, until a run hits no failure. Checks within a
 * scenario make calls too. Those are neither counted nor made to fail: they are between suspend() and resume(). */
#ifndef HR_TESTS_SUPPORT_FAULTS_H
#define HR_TESTS_SUPPORT_FAULTS_H

#include <string.h>

#include "fault_os.h"
#include "headroom_backend.h"
#include "test.h"

static struct {
	bool backend; /* calls of the device, else of the system */
	bool own;     /* instead of both, calls of a function of the test, which calls fails_own() */
	bool forever;
	hr_status status; /* returned by the device */
	int error;        /* returned by the system */
	uint64_t nth;     /* counted over the whole run; 0 = none */
	uint64_t before;  /* calls before the last suspension */
	bool met;         /* a call was made to fail */
	uint64_t own_nth, own_calls; /* since they were armed */
} fault;

static uint64_t calls_made(void)
{
	return fault.before + (fault.own ? fault.own_calls : fault.backend ? hr_backend_calls() : hr_fault_os_calls());
}

/* Counts a call of the test's own function: whether it is to fail. */
static inline bool fails_own(void)
{
	if (!fault.own) return false;
	fault.own_calls++;
	return fault.own_nth && (fault.own_calls == fault.own_nth || (fault.forever && fault.own_calls > fault.own_nth));
}

static void arm(uint64_t nth)
{
	fault.own_nth = nth;
	fault.own_calls = 0;
	if (fault.own) return;
	if (fault.backend) hr_backend_fail_nth(nth, fault.forever, fault.status);
	else hr_fault_os_fail_nth(nth, fault.forever, fault.error);
}

static void suspend(void)
{
	fault.before = calls_made();
	if (fault.nth && fault.before >= fault.nth) fault.met = true;
	arm(0);
}

static void resume(void)
{
	if (!fault.nth || (fault.met && !fault.forever)) arm(0);
	else arm(fault.met ? 1 : fault.nth - fault.before);
}

/* From here on the [nth] call fails. */
static void begin_faults(uint64_t nth)
{
	fault.nth = nth;
	fault.before = 0;
	fault.met = false;
	arm(nth);
}

typedef struct fault_scenario {
	const char *name;
	void (*run)(void);
} fault_scenario;

/* Runs each scenario with every [stride]th call failing, from the [first] on. [run_once] runs a scenario with the [nth] call failing, and
 * returns whether a call was made to fail. Returns the number of runs in which one was. */
static uint64_t run_scenarios(const fault_scenario *scenarios, size_t count, bool (*run_once)(void (*run)(void), uint64_t nth), uint64_t first,
                              uint64_t stride)
{
	uint64_t total = 0;
	for (size_t i = 0; i < count; i++) {
		uint64_t nth = first, points = 0;
		/* Shows the position in case of a crash. */
		while (fprintf(stderr, "\r%s, call %llu   ", scenarios[i].name, (unsigned long long)nth), run_once(scenarios[i].run, nth)) {
			nth += stride;
			points++;
		}
		printf("# %s: %llu points\n", scenarios[i].name, (unsigned long long)points);
		if (stride == 1 && !fault.own) CHECK_GT(points, 2);
		total += points;
	}
	fprintf(stderr, "\n");
	printf("# %llu points in all\n", (unsigned long long)total);
	return total;
}

#endif
