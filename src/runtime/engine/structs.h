/* structs.h - the structs of headroom_runtime.h that begin with struct_size, or must not change (core/base/struct.h). */
#ifndef HR_RUNTIME_STRUCTS_H
#define HR_RUNTIME_STRUCTS_H

#include "core/base/struct.h"
#include "headroom_runtime.h"

/* Name without hr_, size in the first release, last mandatory field, what sets struct_size. Runs fill hr_run_metadata in place, so all fields of
 * the first release are mandatory, and a newer field must not be touched where struct_size does not include it. */
#define HR__RUNTIME_STRUCTS(X)                                                    \
	X(session_options, 24, device, "call hr_session_options_init first")          \
	X(run_options, 32, report_allocations_on_oom, "call hr_run_options_init first") \
	X(run_metadata, 56, allocation_log, "call hr_run_metadata_init first")        \
	X(optimizer, 64, kind, "call hr_optimizer_init first")

#define HR__RUNTIME_FIXED_STRUCTS(X) \
	X(value, 8)                      \
	X(variable, 8)                   \
	X(graph, 8)                      \
	X(session, 8)                    \
	X(function, 8)                   \
	X(feed, 16)                      \
	X(op_metadata, 48)               \
	X(initializer, 32)

#define HR__STRUCT_DECLARE(type, size, field, remedy) extern const hr__struct hr__struct_##type;
HR__RUNTIME_STRUCTS(HR__STRUCT_DECLARE)
#undef HR__STRUCT_DECLARE

#endif
