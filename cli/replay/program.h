/* program.h - the allocations and frees of a capture in a form that is cheap to replay: an array of events, with nothing to look up
 * or decide in the replay loop.
 *
 * Blocks are replaced by slots that hold an address. A slot is reused once its block is freed, so the loop touches little memory
 * and measures the allocator. */
#ifndef HR_CLI_PROGRAM_H
#define HR_CLI_PROGRAM_H

#include "analysis/capture/facts.h"
#include "headroom.h"

typedef struct hr__program_event {
	uint64_t bytes;  /* bytes to allocate; 0: free */
	uint32_t slot;   /* index of the slot that holds the address */
	uint32_t stream; /* 0: the default stream; 1 to 63: another one */
} hr__program_event;

typedef struct hr__program {
	hr__program_event *events;
	size_t count;
	uint32_t slots;      /* number of slots */
	uint32_t *leftovers; /* slots of blocks that the program never frees */
	uint32_t leftover_count;
	uint32_t streams;       /* streams of the device, without the default one */
	uint32_t trace_streams; /* streams of the trace; if more than 64, several map to one of the device */
	uint32_t trace_threads;
	uint64_t allocs, frees;
	uint64_t peak_bytes;
	size_t peak_event;
} hr__program;

#define HR__PROGRAM_LIVE_MAX (UINT64_C(1) << 46) /* 64 TiB: maximum memory of a simulated device */

/* The program of one device, an index. HR_BAD_FORMAT: its blocks are impossibly large, or it has none. HR_NO_HOST_MEMORY. */
hr_status hr__program_make(const hr__capture *capture, uint32_t device, hr__program *out);
/* Reads a trace of any format and makes the program of the device that hr__trace_facts_find selects. [facts] may be NULL. Messages
 * name the file. */
hr_status hr__program_read(const char *path, int64_t device, hr__trace_facts *facts, hr__program *out);
void hr__program_free(hr__program *program);

#endif
