/* ops.c - the table of ops (see op.h), indexed by enum hr__op_kind. */
#include "runtime/ops/ops.h"

#define hr__run_none NULL
#define hr__scratch_none NULL
#define hr__gradient_none NULL
#define hr__launch_none NULL
#define hr__workspace_none NULL

#define OP_ROW(kind, text, outputs, least, most, memory_of, again_as, takes, reads_in, reads_out, infer_of, run_of, scratch_of, gradient_of, by_of, launch_of, workspace_of) \
	[HR__OP_##kind] = { .name = #text,                                                                                             \
		                .in_min = least,                                                                                           \
		                .in_max = most,                                                                                            \
		                .out_count = outputs,                                                                                      \
		                .memory = HR__##memory_of,                                                                                 \
		                .again = HR__##again_as,                                                                                   \
		                .forwards = takes,                                                                                         \
		                .infer = hr__infer_##infer_of,                                                                             \
		                .run = hr__run_##run_of,                                                                                   \
		                .scratch = hr__scratch_##scratch_of,                                                                       \
		                .gradient = hr__gradient_##gradient_of,                                                                    \
		                .by = HR__BY_##by_of,                                                                                      \
		                .launch = hr__launch_##launch_of,                                                                          \
		                .workspace = hr__workspace_##workspace_of,                                                                 \
		                .grad_in_mask = reads_in,                                                                                  \
		                .grad_out_mask = reads_out,                                                                                \
		                .order_only = HR__OP_##kind == HR__OP_GROUP },

const hr__op hr__ops[HR__OP_COUNT] = { HR__OP_TABLE(OP_ROW) };
