/* nodes.h - allocations, ops and uses of a selection, grouped by op or by name scope. Node 0 is the total. In the tree of scopes
 * every other node has a parent, which precedes it. */
#ifndef HR_PROFILE_NODES_H
#define HR_PROFILE_NODES_H

#include "analysis/view/view.h"

#define HR__NODE_DEPTH_MAX 32 /* deeper scopes are counted at this depth */

typedef struct hr__node_sums {
	uint64_t bytes, allocations;         /* allocated during the selection */
	uint64_t residual_bytes;             /* part of bytes that was live at its end */
	uint64_t at_peak_bytes;              /* live at the device's peak during the selection */
	uint64_t end_bytes;                  /* live at its end */
	uint64_t occurrence, ns, device_ns;  /* number of op runs, their time, their kernels' time */
	uint64_t input_bytes, output_bytes;  /* read and written by ops */
} hr__node_sums;

typedef struct hr__node {
	uint64_t path; /* hr__path_cell */
	uint32_t parent, depth;
	hr__node_sums self, total; /* total: including descendants */
	uint64_t live, self_live;  /* scratch for replaying changes */
	uint64_t peak_bytes;       /* peak, including descendants */
} hr__node;

typedef struct hr__nodes {
	hr__node *nodes;
	uint32_t count;
	size_t capacity;
} hr__nodes;

typedef enum hr__node_kind { HR__NODES_BY_OP, HR__NODES_BY_SCOPE } hr__node_kind;

/* HR_NO_HOST_MEMORY. */
hr_status hr__nodes_make(const hr__selection *selection, hr__node_kind kind, hr__nodes *out);
void hr__nodes_free(hr__nodes *nodes);

#endif
