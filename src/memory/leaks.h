/* leaks.h - what a program had not given back when it called hr_shutdown: counted while everything is closed, and told as one status.
 *
 * Counting needs host memory for sums by name, which is taken with the first leak; without it no names are told. One thread shuts down, so
 * there are no locks. */
#ifndef HR_MEMORY_LEAKS_H
#define HR_MEMORY_LEAKS_H

#include "headroom.h"

typedef struct hr__leaks {
	uint64_t blocks, block_bytes;   /* of hr_alloc; rounding included, like the next */
	uint64_t tensors, tensor_bytes; /* of hr_tensor_create, evicted ones too */
	uint64_t values, value_bytes;   /* of the runtime, in sessions that were open */
	hr_name value_op;               /* that made the largest of them */
	uint64_t *sums;                 /* bytes by name, for each hr_holder_kind; NULL = none yet, or no memory */
	uint32_t names;                 /* of each kind */
} hr__leaks;

void hr__leaks_add_tensor(hr__leaks *leaks, hr_name op, hr_name scope, hr_name tag, uint64_t bytes);
void hr__leaks_add_values(hr__leaks *leaks, uint64_t count, uint64_t bytes, hr_name op);

struct hr__allocator;
/* The blocks that are still allocated. With no lock held. */
void hr__leaks_add_blocks(hr__leaks *leaks, struct hr__allocator *allocator);

/* Frees what counting took. [status] when there are no leaks; otherwise HR_LEAKED with a message, or [status], with its message and that one,
 * when it is an error. */
hr_status hr__leaks_end(hr__leaks *leaks, hr_status status);

#endif
