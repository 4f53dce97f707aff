/* struct.h - structs of the public headers that begin with struct_size, as programs of any version pass them.
 *
 * Such a struct grows at its end alone, so a program and a library of different versions agree on the bytes that both know:
 *
 *     input, smaller     an older program: the fields beyond struct_size have their defaults
 *     input, larger      a newer program: accepted if all bytes that this library does not know are 0, which means "not used"
 *     output             min(struct_size, size) bytes are written, and struct_size stays as it is
 *     any, refused       less than the mandatory fields, more than HR__STRUCT_MAX, or not a multiple of sizeof(size_t): no version
 *                        has such a struct, so struct_size was never set
 *
 * Structs without struct_size, and structs that are elements of arrays, never grow (HR__FIXED_STRUCTS). CONTRIBUTING.md says how to
 * change a struct. */
#ifndef HR_BASE_STRUCT_H
#define HR_BASE_STRUCT_H

#include "headroom_backend.h"
#include "headroom_record.h"
#include "core/base/shared.h"

/* No struct of any version is larger. Limits how far the bytes beyond the known ones are read. */
#define HR__STRUCT_MAX 4096u

/* Bytes of [type] up to [field], included, in whole words. */
#define HR__THROUGH(type, field) \
	((offsetof(type, field) + sizeof(((type *)0)->field) + sizeof(size_t) - 1) / sizeof(size_t) * sizeof(size_t))

/* A struct with struct_size, as this library knows it. */
typedef struct hr__struct {
	const char *name;   /* "hr_request" */
	const char *remedy; /* what sets struct_size */
	size_t size;
	size_t least; /* of the mandatory fields */
} hr__struct;

/* The structs of libheadroom: name without hr_, size in the first release, last mandatory field, what sets struct_size. The first
 * release's size never changes. The mandatory fields of hr_request are those that hr_alloc reads together with struct_size. */
#define HR__STRUCTS(X)                                                                             \
	X(cuda_options, 24, enabled, "call hr_cuda_options_init first")                                \
	X(emulated_options, 48, devices, "call hr_emulated_options_init first")                        \
	X(simulated_options, 32, memory_bytes, "call hr_simulated_options_init first")                 \
	X(oom_options, 56, report_allocations_on_oom, "call hr_oom_options_init first")                \
	X(allocator_options, 168, kind, "call hr_allocator_options_init first")                        \
	X(lms_options, 88, enabled, "call hr_lms_options_init first")                                  \
	X(tensor_options, 56, bytes, "call hr_tensor_options_init first")                              \
	X(profiler_options, 1048, step_count, "call hr_profiler_options_init first")                   \
	X(request, 48, stream, "set it with HR_REQUEST()")                                             \
	X(custom_allocator, 48, free, "call hr_custom_allocator_init first")                         \
	X(lms_policy, 32, score, "call hr_lms_policy_init first")                                    \
	X(device_info, 272, name, "call hr_device_info_init first")                                  \
	X(allocation_info, 64, address, "call hr_allocation_info_init first")                        \
	X(stats, 376, num_allocs, "call hr_stats_init first")                                         \
	X(memory_info, 24, current, "call hr_memory_info_init first")                                \
	X(region_info, 96, base, "call hr_region_info_init first")                                   \
	X(stats_scope, 40, peak_bytes, "call hr_stats_scope_init first")                             \
	X(verdict, 544, kind, "call hr_verdict_init first")                                          \
	X(tensor_info, 88, state, "call hr_tensor_info_init first")                                  \
	X(lms_stats, 288, num_tensors, "call hr_lms_stats_init first")                               \
	X(recipe, 96, output_count, "call hr_recipe_init first")                                        \
	X(recompute, 48, input_count, "the library sets it")                                           \
	X(custom_stats, 32, bytes_reserved, "the library sets it")                                     \
	X(lms_candidate, 64, tensor, "the library sets it")                                            \
	X(backend, 280, type, "call hr_backend_init first")

/* The structs of libheadroom that never grow: name without hr_, size. They have no struct_size, or are elements of arrays. */
#define HR__FIXED_STRUCTS(X) \
	X(device, 4)             \
	X(allocator, 8)          \
	X(oom_report, 8)         \
	X(tensor, 8)             \
	X(pin, 16)               \
	X(holder, 16)            \
	X(allocation_info, 64)   \
	X(chunk_view, 48)        \
	X(profiler_steps, 16)    \
	X(frame, 24)             \
	X(backend_caps, 128)

/* One for each: hr__struct_cuda_options, ... */
#define HR__STRUCT_DECLARE(type, size, field, remedy) extern const hr__struct hr__struct_##type;
HR__STRUCTS(HR__STRUCT_DECLARE)
#undef HR__STRUCT_DECLARE

/* Defines hr__struct_<type>. [first] is the size in the first release. */
#define HR__STRUCT_DEFINE(type, first, field, remedy)                                                                             \
	const hr__struct hr__struct_##type = { "hr_" #type, remedy, sizeof(hr_##type), HR__THROUGH(hr_##type, field) };               \
	_Static_assert(sizeof(void *) != 8 || sizeof(hr_##type) >= (first), "hr_" #type " became smaller: old programs would break"); \
	_Static_assert(sizeof(hr_##type) <= HR__STRUCT_MAX, "hr_" #type " is above HR__STRUCT_MAX");
#define HR__STRUCT_FIXED(type, bytes) \
	_Static_assert(sizeof(void *) != 8 || sizeof(hr_##type) == (bytes), "hr_" #type " must not change: it has no struct_size or is used in arrays");

/* Copies an input struct to [to], which holds the defaults and is of this library's size. HR_INVALID_ARGUMENT, with [to] unchanged: [from]
 * is NULL, its struct_size is impossible, or it uses fields that this library does not know. [call] is the public function. */
HR__SHARED hr_status hr__struct_in(const hr__struct *type, const char *call, void *to, const void *from);

/* The same where struct_size is not the first field, or where the struct has a reserved space of [room] bytes inside of another one. */
hr_status hr__struct_in_sized(const hr__struct *type, const char *call, void *to, const void *from, size_t struct_size, size_t room);

/* Checks an output struct before a call has effects. HR_INVALID_ARGUMENT: NULL, or an impossible struct_size. */
HR__SHARED hr_status hr__struct_check(const hr__struct *type, const char *call, const void *to);

/* Writes the fields that the caller of a checked output struct knows. */
void hr__struct_out(const hr__struct *type, void *to, const void *from);

/* For _init functions: sets [to], of [struct_size] bytes, to [defaults]. Bytes that this library does not know become 0. NULL has no
 * effect, nor has an impossible struct_size: the call that is given [to] then refuses it. */
HR__SHARED void hr__struct_init(const hr__struct *type, void *to, size_t struct_size, const void *defaults);

#endif
