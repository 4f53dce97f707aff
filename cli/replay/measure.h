/* measure.h - runs a program through the public API on the simulated device and measures it.
 *
 * Every function starts with a fresh library, device and allocator, and shuts the library down at the end, so that measurements are
 * independent of each other. */
#ifndef HR_CLI_MEASURE_H
#define HR_CLI_MEASURE_H

#include "headroom.h"
#include "replay/program.h"
#include "terminal/term.h"

typedef struct hr__setup {
	const hr__program *program;
	const char *allocator; /* kind */
	uint64_t limit;        /* bytes for each copy of the program; 0: unlimited */
	uint64_t page;
	uint32_t threads; /* each runs a copy of the program, on one allocator with [threads] times the limit */
	bool stitch;
	const char *record;     /* file to record a trial to; NULL: none */
	hr__progress *progress; /* shown while speed is measured; may be NULL */
} hr__setup;

/* The page size for a program. With stitching: [recorded], the page size of the device in the trace, or 2 MiB as on a GPU if it is
 * 0 (unknown) or not usable (hr__setup_can_have_page). Without: small enough to resolve limits to 0.1%, that is at most 1/16384 of
 * the peak, from 4 KiB to 2 MiB. */
uint64_t hr__setup_page(const hr__program *program, uint64_t recorded, bool stitch);
/* Whether a page size found in a trace is usable: one that a device can have, and at most 2^22 pages for [peak] bytes. */
bool hr__setup_can_have_page(uint64_t page, uint64_t peak);

/* ---- trial: does it run ---- */

typedef struct hr__trial {
	uint64_t failed;     /* refused allocations of all copies */
	size_t first_failed; /* event of the first refusal */
	char message[512];   /* the allocator's message in that case */
	hr_stats stats;      /* of the allocator, after all copies have run and before leftover blocks are freed */
} hr__trial;

/* One pass. [stop] ends it at the first refusal. Refusals are not an error; HR_BAD_LIMIT, HR_UNKNOWN_ALLOCATOR and other failures
 * to run are. */
hr_status hr__measure_trial(const hr__setup *setup, bool stop, hr__trial *out);

/* ---- speed ---- */

typedef struct hr__speed {
	double ns_per_op; /* wall time of the fastest pass, divided by the events of all copies */
	uint64_t passes;  /* timed ones */
	uint64_t failed;  /* refused allocations in timed passes */
	double alloc_p50_ns, alloc_p99_ns, free_p50_ns, free_p99_ns;
	double timer_ns; /* time to read the timer; already subtracted */
} hr__speed;

/* One pass to warm up, then [passes] timed as a whole (0: enough for about half a second, at least 3). Blocks left over by a pass
 * are freed between passes, untimed. Then, on another fresh allocator, one pass with each call timed separately, for the
 * percentiles. */
hr_status hr__measure_speed(const hr__setup *setup, uint64_t passes, hr__speed *out);

/* ---- peak ---- */

/* Runs up to the event with most live bytes and calls [look] with the allocator. */
hr_status hr__measure_peak(const hr__setup *setup, void (*look)(hr_allocator allocator, void *context), void *context);

#endif
