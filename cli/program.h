/* program.h - a tape made ready to run: an array of steps that a loop can go through with nothing to look up or decide.
 *
 * Blocks become slots: places for an address, used again once the block is freed, so that the loop touches as little memory as it
 * can and what is measured is the allocator. */
#ifndef HR_CLI_PROGRAM_H
#define HR_CLI_PROGRAM_H

#include "headroom.h"
#include "tape.h"

typedef struct hr__step {
	uint64_t bytes;  /* to allocate; 0: free */
	uint32_t slot;   /* where the address is kept */
	uint32_t stream; /* 0 = the default stream, else the 1st to 63rd other one */
} hr__step;

typedef struct hr__program {
	hr__step *steps;
	size_t count;
	uint32_t slots;      /* how many */
	uint32_t *leftovers; /* slots whose blocks the program never frees */
	uint32_t leftover_count;
	uint32_t streams;       /* of the device, the default one not counted */
	uint32_t trace_streams; /* of the trace; more than 64 share the device's */
	uint64_t allocs, frees;
	uint64_t peak_bytes;
	size_t peak_step;
} hr__program;

/* HR_NO_HOST_MEMORY. */
hr_status hr__program_make(const hr__tape *tape, hr__program *out);
void hr__program_free(hr__program *program);

#endif
