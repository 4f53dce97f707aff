/* thread.h - what this library keeps for each thread: in one place, because a request that the program makes reads most of it. */
#ifndef HR_PLUGIN_CUDA_THREAD_H
#define HR_PLUGIN_CUDA_THREAD_H

#include <stdbool.h>
#include <stdint.h>

#include "core/arena/chunk.h"
#include "headroom.h"

#define HR__EXPECTED_MAX 16u /* blocks of a thread that wait for a launch; earlier ones keep their names */

/* A block that the thread's next launch names (launches.h). */
typedef struct hr__expected_block {
	uint64_t address;
	hr_allocator allocator;
	hr__chunk_id id; /* hr__adopt; 0 = a managed block */
} hr__expected_block;

typedef struct hr__thread {
	bool inside;       /* reports a refused request: the calls that it makes are not recorded */
	uint32_t card;     /* of the last block that it requested or freed */
	uint32_t requests; /* for its name (names.c) */
	hr_name name;
	uint32_t expected_count;
	hr__expected_block expected[HR__EXPECTED_MAX];
} hr__thread;

extern __thread hr__thread hr__this_thread __attribute__((visibility("hidden"), aligned(64)));

#endif
