/* nodes.h - allocations, ops and uses of a selection, grouped by op or by name scope. Node 0 is all of it; in the tree of scopes every other node
 * hangs below its parent, which comes before it. */
#ifndef HR_PROFILE_NODES_H
#define HR_PROFILE_NODES_H

#include "profile/view.h"

#define HR__NODE_DEPTH_MAX 32 /* deeper scopes count for the one at this depth */

typedef struct hr__node_sums {
	uint64_t bytes, allocations;         /* allocated in the selection's time */
	uint64_t residual_bytes;             /* of these, what was left at its end */
	uint64_t at_peak_bytes;              /* live at the device's peak in that time */
	uint64_t end_bytes;                  /* there at its end */
	uint64_t occurrence, ns, device_ns;  /* runs of ops, how long they took, how long their kernels took */
	uint64_t input_bytes, output_bytes;  /* that ops read and wrote */
} hr__node_sums;

typedef struct hr__node {
	uint64_t path; /* hr__path_cell */
	uint32_t parent, depth;
	hr__node_sums self, total; /* total: with those below */
	uint64_t live, self_live;  /* while going through the changes */
	uint64_t peak_bytes;       /* the most that it had, with those below, at any moment */
} hr__node;

typedef struct hr__nodes {
	hr__node *nodes;
	uint32_t count, capacity;
} hr__nodes;

typedef enum hr__node_kind { HR__NODES_BY_OP, HR__NODES_BY_SCOPE } hr__node_kind;

/* HR_NO_HOST_MEMORY. */
hr_status hr__nodes_make(const hr__selection *selection, hr__node_kind kind, hr__nodes *out);
void hr__nodes_free(hr__nodes *nodes);

#endif
