/* measure.h - runs a program through the public API on the simulated device, and measures.
 *
 * Every function here begins with a fresh library, device and allocator, and leaves the library shut down, so that no measurement
 * depends on the one before it. */
#ifndef HR_CLI_MEASURE_H
#define HR_CLI_MEASURE_H

#include "headroom.h"
#include "program.h"
#include "term.h"

typedef struct hr__setup {
	const hr__program *program;
	const char *allocator; /* kind */
	uint64_t limit;        /* bytes for each copy of the program; 0: as much as it wants */
	uint64_t page;
	uint32_t threads; /* each runs its own copy, on one allocator with [threads] times the limit */
	bool stitch;
	const char *record;     /* file to record a trial in; NULL: none */
	hr__progress *progress; /* shown while speed is measured; may be NULL */
} hr__setup;

/* The page size for a program. Where pages may be remapped: [recorded], that of the device in the trace (0: not known), or 2 MiB, as on a
 * GPU; a recorded one that no device has, or that makes more than 2^22 pages of the peak, is not taken. Else small enough that limits can
 * be told apart to 0.1%: at most 1/16384 of the peak, from 4 KiB to 2 MiB. */
uint64_t hr__setup_page(const hr__program *program, uint64_t recorded, bool stitch);
/* Whether a page size that a trace claims is taken, for a peak of [peak] bytes. */
bool hr__setup_can_have_page(uint64_t page, uint64_t peak);

/* ---- does it run ---- */

typedef struct hr__trial {
	uint64_t failed;     /* allocations that were refused, of all copies */
	size_t first_failed; /* step of the first of them */
	char message[512];   /* what the allocator said then */
	hr_stats stats;      /* of the allocator, when all copies have run to the end and nothing left over was freed yet */
} hr__trial;

/* One pass. [stop] ends it at the first refused allocation. Refused ones are no error; HR_BAD_LIMIT, HR_UNKNOWN_ALLOCATOR and what
 * else keeps it from running are. */
hr_status hr__measure_trial(const hr__setup *setup, bool stop, hr__trial *out);

/* ---- how fast ---- */

typedef struct hr__speed {
	double ns_per_op; /* wall time of the fastest pass over the steps of all copies */
	uint64_t passes;  /* timed ones */
	uint64_t failed;  /* allocations that were refused in them */
	double alloc_p50_ns, alloc_p99_ns, free_p50_ns, free_p99_ns;
	double timer_ns; /* what reading the timer takes, which was taken off */
} hr__speed;

/* One pass to warm up, then [passes] timed as a whole (0: as many as take about half a second, at least 3); what a pass leaves over
 * is freed in between, not timed. Then, on another fresh allocator, the same with each call timed by itself, for the
 * percentiles. */
hr_status hr__measure_speed(const hr__setup *setup, uint64_t passes, hr__speed *out);

/* ---- what it looks like ---- */

/* Runs up to the step at which most bytes are live and calls [look] with the allocator. */
hr_status hr__measure_peak(const hr__setup *setup, void (*look)(hr_allocator allocator, void *context), void *context);

#endif
