/* leaks.h - memory that a program had not freed when it called hr_shutdown, counted while everything is closed and reported as one
 * status.
 *
 * Sums by name need host memory, which is allocated at the first leak; if that fails, names are not reported. A single thread shuts
 * down, so there are no locks. */
#ifndef HR_MEMORY_LEAKS_H
#define HR_MEMORY_LEAKS_H

#include "headroom.h"
#include "core/base/shared.h"

typedef struct hr__leaks {
	uint64_t blocks, block_bytes;   /* from hr_alloc; rounding included, as in the next line */
	uint64_t tensors, tensor_bytes; /* from hr_tensor_create, evicted ones included */
	uint64_t values, value_bytes;   /* of the runtime, in open sessions */
	uint64_t largest_value;         /* bytes of the largest value */
	hr_name value_op;               /* op that made it */
	uint64_t *sums;                 /* bytes by name, for each hr_holder_kind; NULL = not allocated */
	uint32_t names;                 /* number of names of each kind */
} hr__leaks;

void hr__leaks_add_tensor(hr__leaks *leaks, hr_name op, hr_name scope, hr_name tag, uint64_t bytes);
HR__SHARED void hr__leaks_add_values(hr__leaks *leaks, uint64_t count, uint64_t bytes, uint64_t largest, hr_name op);

struct hr__allocator;
/* Adds the blocks that are still allocated. Without locks. */
void hr__leaks_add_blocks(hr__leaks *leaks, struct hr__allocator *allocator);

/* Frees the memory used for counting. Returns [status] if there are no leaks. Otherwise returns HR_LEAKED with a message or, if
 * [status] is an error, [status] with both messages. */
hr_status hr__leaks_end(hr__leaks *leaks, hr_status status);

#endif
