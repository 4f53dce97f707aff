/* headroom_lms.h - Large Model Support: tensors that leave the device when it is full and are back when they are needed.
 *
 * Included by headroom.h.
 *
 *     hr_device device;
 *     hr_allocator allocator;
 *     hr_stream stream = HR_STREAM_DEFAULT;
 *     hr_tensor weights, activations;
 *     hr_tensor_options options;
 *     hr_set_lms_enabled(true);
 *     hr_device_find("GPU:0", &device);
 *     hr_allocator_default("GPU:0", &allocator);
 *     hr_tensor_options_init(&options);
 *     options.bytes = 512 << 20;
 *     hr_tensor_create(allocator, &options, &weights);
 *     hr_tensor_create(allocator, &options, &activations);
 *
 *     hr_step_begin(allocator);
 *     hr_pin pins[] = { { weights, HR_WRITE }, { activations, HR_WRITE } };
 *     if (hr_pin_all(pins, 2, stream) == HR_OK) {
 *         void *w, *a;
 *         hr_tensor_address(weights, &w);
 *         hr_tensor_address(activations, &a);
 *         hr_copy(device, a, w, options.bytes, HR_COPY_ON_DEVICE, stream);
 *         hr_unpin_all(pins, 2, stream);
 *     }
 *     hr_step_end(allocator);
 *
 * A tensor is a handle. Pinning makes it ACTIVE and RESIDENT: it is in device memory until it is unpinned. Taking its address fixes it in
 * place until then. An unpinned tensor is INACTIVE: it stays where it is until its memory is needed, and may then be moved to the
 * host. Pin what an op uses, and the op's outputs, in one call: all of them or none, so that two threads cannot hold half of what each
 * needs.
 *
 * Nothing here waits for the device, but pins for HR_STREAM_HOST, verify, fixed tensors that leave, the file of spill_dir, and mapping pages
 * side by side. Copies run on streams of their own; work on the stream of a pin waits, on the device, for the copy that brings its tensor
 * back, and memory that a tensor left is waited for by its next user.
 *
 * Steps of a training loop repeat. When they are marked (hr_step_begin), the policy "learned" knows from the last step when each tensor
 * is used next: it sends tensors out right after their last use before a long gap, and asks for them back as early as there is room. The
 * same tensor in another step is told by when it was created within its step. Where a step differs, those tensors are moved when there
 * is need, and the next step is learned again. */
#ifndef HEADROOM_LMS_H
#define HEADROOM_LMS_H

#include "headroom.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------------------------------------------------------------------
 * Switches
 * ---------------------------------------------------------------------------------------------------------------------------- */

/* Whether tensors may leave the device, for allocators whose options do not say otherwise. Off by default, unless HEADROOM_LMS is in the
 * environment. Takes effect for allocators on which no tensor was created yet. */
HR_API hr_status hr_set_lms_enabled(bool enabled);
HR_API bool hr_get_lms_enabled(void);

/* Whether live tensors may be moved to join free memory when everything inactive is out. Off by default. The same rules. */
HR_API hr_status hr_set_lms_defrag_enabled(bool enabled);
HR_API bool hr_get_lms_defrag_enabled(void);

/* What becomes of the addresses of a fixed tensor while it is out. */
typedef enum hr_lms_safety {
	HR_SAFETY_NONE = 0,       /* nothing is mapped there: touching it is an error of the device */
	/* The host memory that holds its data is, so a missed pin is slow and not fatal. What is written there is kept. A debugging aid, on
	 * CUDA (12.2 and newer) and emulated devices: the memory is had page by page, counts against host_limit, never spills, and is kept
	 * as long as the tensor lives and the host has room. */
	HR_SAFETY_HOST_MAPPED = 1
} hr_lms_safety;

typedef struct hr_lms_options {
	size_t struct_size;
	bool enabled;           /* tensors may leave; default: hr_get_lms_enabled() */
	bool defrag;            /* live tensors may be moved on the device; default: hr_get_lms_defrag_enabled() */
	uint64_t defrag_budget; /* most bytes to move in one attempt; 0 (default) = as many as it takes */
	uint64_t limit;         /* most bytes of tensors on the device; 0 (default) = what the allocator's limit leaves */
	uint64_t host_limit;    /* most bytes of pinned host memory; 0 (default) = half of the host's memory */
	const char *spill_dir;  /* a directory for what pinned memory has no room for; NULL (default) = none */
	uint64_t spill_limit;   /* most bytes there; 0 (default) = what the disk takes */
	const char *policy;     /* "learned" (default), "lru", or a name given to hr_register_lms_policy */
	/* Check every byte that returns, and that nothing is written through a read pin: a tensor's contents are read by the host when it is
	 * back and when it is unpinned. Slow; takes 32 MiB of host_limit, or an eighth of it where that is less. Default false. */
	bool verify;
	hr_lms_safety safety;   /* default HR_SAFETY_NONE */
	uint64_t wait_ns;       /* a pin that has no room waits this long for others to unpin, if its thread holds no pins and that could help;
	                         * default 1 s */
	const char *step_csv;   /* a new file, for one allocator, that gets a line of statistics for each step; NULL (default) = none */
} hr_lms_options;

/* Defaults, then what the environment says: HEADROOM_LMS="1" or "0", or settings such as
 * "policy=lru,host_limit=16GiB,spill_dir=/scratch,limit=8GiB,defrag=1,verify=1,step_csv=steps.csv" (which switch it on). A text that
 * cannot be parsed is HR_INVALID_ARGUMENT, and [options] holds the plain defaults; a program that sets no options uses those, and goes on. So it
 * does without a policy, spill_dir or step_csv of the environment's that cannot be had (hr_environment_check says which); step_csv of the environment
 * takes another name, FILE-2, where there is a FILE. */
HR_API hr_status hr_lms_options_init(hr_lms_options *options);

/* Sets up Large Model Support on an allocator of kind "bfc". Must come before the first tensor is created on it, a step begun or a limit set
 * (HR_IN_USE); without it, those do it with the defaults. HR_UNSUPPORTED: another kind of allocator, or something that its device cannot do.
 * HR_INVALID_ARGUMENT: no such policy. HR_IO: spill_dir or step_csv cannot be written. */
HR_API hr_status hr_lms_configure(hr_allocator allocator, const hr_lms_options *options);

/* Changes options.limit; what is above it moves out, and what other threads are moving already is waited for. HR_BAD_LIMIT, and nothing
 * changed, when more than that is pinned, or cannot leave. */
HR_API hr_status hr_lms_set_limit(hr_allocator allocator, uint64_t bytes);

/* ------------------------------------------------------------------------------------------------------------------------------
 * Tensors
 * ---------------------------------------------------------------------------------------------------------------------------- */

typedef struct hr_tensor {
	uint64_t id; /* 0 is no tensor */
} hr_tensor;

typedef struct hr_tensor_options {
	size_t struct_size;
	size_t bytes;     /* > 0 */
	size_t alignment; /* 0 = the allocator's granularity, else a power of two */
	bool fixed;       /* its address holds for life: it owns whole pages, which are taken from under it. Smaller than a page, it stays */
	bool never_evict; /* it stays on the device */
	int32_t priority; /* tensors of lower priority leave first; default 0 */
	hr_name op, scope, tag; /* as in hr_request */
	hr_shape shape;
	hr_dtype dtype;
} hr_tensor_options;

HR_API void hr_tensor_options_init(hr_tensor_options *options);

/* Makes a tensor without contents and without memory: it gets that with its first pin. HR_TOO_MANY at 2^24 tensors.
 * HR_UNSUPPORTED: the allocator is not of kind "bfc", or fixed where the device has no pages. */
HR_API hr_status hr_tensor_create(hr_allocator allocator, const hr_tensor_options *options, hr_tensor *out);

/* Frees it, wherever it is. HR_IN_USE while it is pinned. HR_CLOSED: it was destroyed already. The pages of a fixed one are taken from
 * under it, so the device is waited for; should it refuse, the tensor is still there. */
HR_API hr_status hr_tensor_destroy(hr_tensor tensor);

typedef enum hr_access {
	HR_READ = 1,     /* it is only read: a copy that the host has stays good. A tensor that was never written has nothing to read */
	HR_WRITE = 2,    /* it is read and written */
	HR_OVERWRITE = 3 /* all of it is written, and what it held before may be lost, even if the call fails: nothing has to be brought back */
} hr_access;

typedef struct hr_pin {
	hr_tensor tensor;
	hr_access access;
} hr_pin;

/* Pins all of them for work on [stream], or none. A tensor may occur more than once. Pins nest: each needs its unpin. A tensor that was new
 * before a call that fails is new after it.
 *
 * HR_STREAM_HOST is for host code that reads and writes them itself: the call waits until they are back, and until the device has finished
 * with them; copies to the host that are still being made count where they are pinned for writing. Work under pins that others still hold is
 * not waited for.
 *
 * A pin puts no order between the work of two streams on one tensor: when one of them writes it, the program orders them with
 * hr_stream_wait_stream, whether the tensor has left meanwhile or not.
 *
 * HR_OUT_OF_MEMORY     no room, although everything inactive was moved out. The message names the op (hr_op_set), its tensors with their
 *                      sizes, and the least limit that would do; or the tier of the host that is full and its setting
 * HR_INVALID_ARGUMENT  HR_READ of a tensor that was never written; tensors of several allocators
 * HR_CLOSED            one was destroyed
 * HR_CORRUPT           verify: what returned is not what left; the message names the tensor, which stays out
 * HR_DEVICE_ERROR, HR_IO  something does not come back: it is still where it was, and the next pin tries again */
HR_API hr_status hr_pin_all(const hr_pin *pins, size_t count, hr_stream stream);

/* Undoes it. [stream] is the last one that was given work on them; HR_STREAM_HOST when the host used them last, and has waited for what it
 * gave to streams. HR_INVALID_ARGUMENT: one is not pinned (then nothing is unpinned).
 * HR_CORRUPT: verify found that one was written through a read pin; all are unpinned, and the tensor's host copy is kept. */
HR_API hr_status hr_unpin_all(const hr_pin *pins, size_t count, hr_stream stream);

/* The same for one. When the tensor is resident, the two together take about 40 ns, and 60 with "learned". */
HR_API hr_status hr_tensor_pin(hr_tensor tensor, hr_access access, hr_stream stream);
HR_API hr_status hr_tensor_unpin(hr_tensor tensor, hr_stream stream);

/* Where a pinned tensor is; it stays there until its last unpin. HR_INVALID_ARGUMENT when it is not pinned. HR_DEVICE_ERROR, HR_IO: it was to
 * be moved on the device (options.defrag), which failed at that and at putting it back; what it holds is on the host, and the next call tries
 * again. */
HR_API hr_status hr_tensor_address(hr_tensor tensor, void **out);

typedef enum hr_tensor_state {
	HR_TENSOR_NEW = 1,   /* no contents yet, no memory */
	HR_TENSOR_ACTIVE,    /* resident and pinned */
	HR_TENSOR_INACTIVE,  /* resident, unpinned; the host has no good copy */
	HR_TENSOR_SYNCED,    /* resident, unpinned; the host has a good copy, so it is evicted without a copy */
	HR_TENSOR_LEAVING,   /* on its way to the host */
	HR_TENSOR_OUT,       /* on the host */
	HR_TENSOR_RETURNING  /* on its way back */
} hr_tensor_state;

HR_API const char *hr_tensor_state_text(hr_tensor_state state); /* "inactive" */

typedef struct hr_tensor_info {
	size_t struct_size;
	hr_tensor_state state;
	uint32_t pins;
	size_t bytes;         /* asked for */
	size_t device_bytes;  /* that it takes now on the device, */
	size_t host_bytes;    /* and on the host */
	bool fixed, never_evict, dirty; /* dirty: written since the host's copy was made, or there is none */
	bool spilled;         /* the host's copy is in the file */
	int32_t priority;
	uint64_t evictions, restores;
	hr_name op, scope, tag;
	hr_shape shape;
	hr_dtype dtype;
} hr_tensor_info;

HR_API hr_status hr_tensor_get_info(hr_tensor tensor, hr_tensor_info *info);

/* ---- by hand ---- */

HR_API hr_status hr_tensor_set_never_evict(hr_tensor tensor, bool never);
HR_API hr_status hr_tensor_set_priority(hr_tensor tensor, int32_t priority);

/* Sends it to the host now. HR_OK when it is out, or was; HR_IN_USE while it is pinned; HR_UNSUPPORTED for one that may not leave. */
HR_API hr_status hr_tensor_evict(hr_tensor tensor);

/* Brings it back now, without pinning it. HR_OK when it is on its way, or was; HR_OUT_OF_MEMORY when there is no room without moving
 * others out. */
HR_API hr_status hr_tensor_prefetch(hr_tensor tensor);

/* Sends everything inactive to the host now; with a tag, only what carries it (HR_NAME_NONE = everything). *bytes (may be NULL) gets the
 * device memory that was freed. The first error; what could leave has left. HR_NOT_READY: no tensor was created on the allocator. */
HR_API hr_status hr_lms_reclaim_inactive(hr_allocator allocator, hr_name tag, uint64_t *bytes);

/* ------------------------------------------------------------------------------------------------------------------------------
 * Steps and policies
 * ---------------------------------------------------------------------------------------------------------------------------- */

/* A step of the program begins, and ends. Without an end, the next beginning ends it. Programs that mark no steps are watched for
 * repeats. HR_INVALID_ARGUMENT: an end without a beginning. */
HR_API hr_status hr_step_begin(hr_allocator allocator);
HR_API hr_status hr_step_end(hr_allocator allocator);

/* What a policy is asked about. */
typedef struct hr_lms_candidate {
	size_t struct_size;
	hr_tensor tensor;
	uint64_t bytes;
	bool clean;           /* is evicted without a copy */
	int32_t priority;
	uint64_t last_use;    /* number of the pin call that used it last; calls are counted from 1 */
	uint64_t now;         /* number of the last pin call */
	hr_name op, scope, tag;
} hr_lms_candidate;

typedef struct hr_lms_policy {
	size_t struct_size;
	/* How willingly it is given up, when there is no room: the highest goes first. Must be there. Called under a lock: it must not call
	 * Headroom, and is not called for tensors that may not leave. */
	double (*score)(void *user, const hr_lms_candidate *candidate);
	/* After an unpin that left the tensor inactive, without locks: it may call hr_tensor_evict, hr_tensor_prefetch. May be NULL. */
	void (*unused)(void *user, hr_tensor tensor, uint64_t now);
	/* A step begins. May be NULL. */
	void (*step)(void *user, uint64_t number);
} hr_lms_policy;

/* Makes it available as options.policy = [name]. HR_ALREADY_EXISTS, HR_TOO_MANY after 8, HR_INVALID_ARGUMENT. */
HR_API hr_status hr_register_lms_policy(const char *name, const hr_lms_policy *policy, void *user);

/* ------------------------------------------------------------------------------------------------------------------------------
 * Statistics: beyond those of headroom.h
 * ---------------------------------------------------------------------------------------------------------------------------- */

/* name, what it means. All are int64_t; the order never changes, new ones are added at the end. */
#define HR_LMS_STATS_TABLE(X)                                                                      \
	X(num_tensors, "tensors there are")                                                            \
	X(num_pins, "pins held now")                                                                   \
	X(bytes_pinned, "device bytes of pinned tensors")                                              \
	X(bytes_inactive, "device bytes of resident tensors that nothing is using")                    \
	X(bytes_reclaimed, "total device bytes freed by moving tensors out")                           \
	X(bytes_out_now, "device bytes of tensors that are out now")                                   \
	X(peak_bytes_out, "most bytes_out_now since start or reset")                                   \
	X(bytes_copied_out, "bytes copied to the host")                                                \
	X(bytes_copied_in, "bytes copied from the host")                                               \
	X(num_evictions, "tensors moved out")                                                          \
	X(num_clean_evictions, "of those, without a copy")                                             \
	X(num_restores, "tensors brought back")                                                        \
	X(num_single_reclaims, "requests met by moving one tensor out")                                \
	X(num_multi_reclaims, "requests met by moving several adjacent ones out")                      \
	X(num_full_reclaims, "requests for which everything inactive had to go")                       \
	X(num_planned_evictions, "evictions that the policy made ahead of need")                       \
	X(num_prefetches, "returns asked for ahead of a pin")                                          \
	X(num_prefetch_hits, "pins that found their tensor back, or on its way, because of one")       \
	X(num_prefetch_misses, "pins that had to bring their tensor back")                             \
	X(num_prefetches_refused, "returns that found no room and were put off")                       \
	X(stall_ns, "time for which streams waited for tensors to come back, where the device tells")  \
	X(num_steps, "steps begun")                                                                    \
	X(num_steps_planned, "of those, run by a plan")                                                \
	X(num_mismatches, "tensors that were not used as in the step before")                          \
	X(plan_step_ns, "what the plan in force expects of a step")                                    \
	X(plan_bound_ns, "extra time that no way of moving tensors could avoid, for the last learned step") \
	X(plan_bytes_out, "bytes that the plan in force sends out in a step")                          \
	X(plan_bytes_in, "and brings back")                                                            \
	X(host_bytes, "bytes of pinned host memory that hold tensors")                                 \
	X(peak_host_bytes, "most host_bytes since start or reset")                                     \
	X(spilled_bytes, "bytes of tensors in the file of spill_dir")                                  \
	X(num_defragmentations, "times live tensors were moved to join free memory")                   \
	X(bytes_defragged, "bytes so moved")                                                           \
	X(num_pin_waits, "times a pin waited for others to unpin")                                     \
	X(num_repeats, "steps that were found without being marked")

typedef struct hr_lms_stats {
	size_t struct_size;
#define HR_LMS_STATS_FIELD(name, text) int64_t name;
	HR_LMS_STATS_TABLE(HR_LMS_STATS_FIELD)
#undef HR_LMS_STATS_FIELD
} hr_lms_stats;

/* Totals since the allocator's first tensor or the last hr_reset_memory_stats, and what is now. Set stats->struct_size first. HR_NOT_READY: no
 * tensor was created on it. A reset changes the fields so:
 *
 *     set to 0         bytes_reclaimed, bytes_copied_out, bytes_copied_in, num_evictions, num_clean_evictions, num_restores,
 *                      num_single_reclaims, num_multi_reclaims, num_full_reclaims, num_planned_evictions, num_prefetches,
 *                      num_prefetch_hits, num_prefetch_misses, num_prefetches_refused, stall_ns, num_steps, num_steps_planned,
 *                      num_mismatches, num_defragmentations, bytes_defragged, num_pin_waits, num_repeats
 *     set to now       peak_bytes_out to bytes_out_now, peak_host_bytes to host_bytes
 *     not changed      num_tensors, num_pins, bytes_pinned, bytes_inactive, bytes_out_now, host_bytes, spilled_bytes, and the plan_* fields
 *
 * Fields that hr_stats has too are equal there. */
HR_API hr_status hr_lms_get_stats(hr_allocator allocator, hr_lms_stats *stats);

/* Checks the invariants of every tensor of the allocator: HR_OK, or HR_CORRUPT with the number of the first that is violated. Right at any
 * moment: other threads that would use a tensor wait meanwhile. HR_NOT_READY: they pinned and moved tensors all the time, and no moment was
 * found to check (or no tensor was created yet). */
HR_API hr_status hr_lms_check(hr_allocator allocator);

#ifdef __cplusplus
}
#endif

#endif
