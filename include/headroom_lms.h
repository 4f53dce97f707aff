/* headroom_lms.h - Large Model Support: tensors that are evicted to the host when the device is full, and restored when they are
 * needed.
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
 *     hr_allocator_get_default("GPU:0", &allocator);
 *     hr_tensor_options_init(&options);
 *     options.bytes = 512 << 20;
 *     hr_tensor_create(allocator, &options, &weights);
 *     hr_tensor_create(allocator, &options, &activations);
 *
 *     hr_step_begin(allocator);
 *     hr_pin pins[] = { { weights, HR_WRITE }, { activations, HR_WRITE } };
 *     if (hr_tensor_pin_all(pins, 2, stream) == HR_OK) {
 *         void *w, *a;
 *         hr_tensor_get_address(weights, &w);
 *         hr_tensor_get_address(activations, &a);
 *         hr_stream_copy(device, a, w, options.bytes, HR_COPY_ON_DEVICE, stream);
 *         hr_tensor_unpin_all(pins, 2, stream);
 *     }
 *     hr_step_end(allocator);
 *
 * A tensor is a handle. A pinned tensor is active: it is in device memory until it is unpinned, and once its address was taken, it
 * stays at that address until then. A tensor without pins is inactive: it stays in device memory until that memory is needed, and may
 * then be evicted to the host. Pin an op's inputs and outputs in one call. The call pins all of them or none, so two threads cannot
 * each hold half of what they need.
 *
 * No call waits for the device, unless it pins for HR_STREAM_HOST, verifies contents (options.verify), evicts a fixed tensor, copies
 * to or from the file of spill_dir, or maps pages side by side. Copies run on streams of their own. Work on the stream of a pin
 * waits, on the device, for the copy that restores the tensor. The next user of an evicted tensor's memory waits for the copy to the
 * host.
 *
 * Steps of a training loop repeat. When they are marked (hr_step_begin), the policy "learned" knows from the last step when each
 * tensor is used next. It evicts tensors right after their last use before a long gap, and prefetches them as early as there is
 * memory for them. A tensor is recognised in the next step by when it was created within its step. Tensors that are used
 * differently from the last step are moved on demand, and the next step is learned again. */
#ifndef HEADROOM_LMS_H
#define HEADROOM_LMS_H

#include "headroom.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------------------------------------------------------------------
 * Process-wide defaults
 * ---------------------------------------------------------------------------------------------------------------------------- */

/* Whether tensors may be evicted, on allocators whose options do not specify it. Off by default, unless HEADROOM_LMS is in the
 * environment. Takes effect for allocators on which no tensor was created yet. */
HR_API hr_status hr_set_lms_enabled(bool enabled);
HR_API bool hr_get_lms_enabled(void);

/* Whether live tensors may be moved to join free memory when everything inactive has been evicted, on allocators whose options
 * do not specify it. Off by default. Takes effect for allocators on which no tensor was created yet. */
HR_API hr_status hr_set_lms_defrag_enabled(bool enabled);
HR_API bool hr_get_lms_defrag_enabled(void);

/* What is mapped at the address of a fixed tensor while it is evicted. */
typedef enum hr_lms_safety {
	HR_SAFETY_NONE = 0,       /* nothing: accessing the address is a device error */
	/* The host memory that holds its contents, so a missing pin is slow but not fatal. What is written there is kept. A
	 * debugging aid, on CUDA (12.2 and newer) and emulated devices. The memory is allocated page by page, counts against
	 * host_limit, is never spilled, and is kept as long as the tensor exists and the host has memory. */
	HR_SAFETY_HOST_MAPPED = 1
} hr_lms_safety;

typedef struct hr_lms_options {
	size_t struct_size;
	bool enabled;           /* tensors may be evicted; default: hr_get_lms_enabled() */
	bool defrag;            /* live tensors may be moved on the device; default: hr_get_lms_defrag_enabled() */
	uint64_t defrag_budget; /* most bytes to move in one attempt; 0 (default) = no limit */
	uint64_t limit;         /* most bytes of tensors on the device; 0 (default) = only the allocator's limit */
	uint64_t host_limit;    /* most bytes of pinned host memory; 0 (default) = half of the host's memory */
	const char *spill_dir;  /* a directory for host copies that do not fit in pinned memory; NULL (default) = none */
	uint64_t spill_limit;   /* most bytes in spill_dir; 0 (default) = limited only by the disk */
	const char *policy;     /* "learned" (default), "lru", or a name registered with hr_lms_policy_register */
	/* Check every restored byte, and that nothing is written through a read pin: the host reads a tensor's contents when it is
	 * restored and when it is unpinned. Slow; takes 32 MiB of host_limit, or an eighth of it if that is less. Default false. */
	bool verify;
	hr_lms_safety safety;   /* default HR_SAFETY_NONE */
	uint64_t wait_ns;       /* a pin without memory waits this long for other threads to unpin, if its thread holds no pins and
	                         * waiting could help; default 1 s */
	const char *step_csv;   /* a new file, for one allocator, that receives a line of statistics for each step; NULL (default) =
	                         * none */
	bool recompute;         /* tensors with recipes may be dropped; default true. See hr_lms_set_recompute */
	uint8_t reserved[3];    /* 0 */
	uint32_t recipe_depth;  /* most recipes that one recomputation runs one inside another, at most 256; 0 (default) = 32 */
} hr_lms_options;

/* Sets the defaults, then applies the environment: HEADROOM_LMS="1" or "0", or settings such as
 * "policy=lru,host_limit=16GiB,spill_dir=/scratch,limit=8GiB,defrag=1,verify=1,step_csv=steps.csv", which also enable eviction.
 * HR_INVALID_ARGUMENT if the variable cannot be parsed; [options] then holds the defaults alone, and a program that sets no options
 * runs with those.
 *
 * A program that sets no options also runs without a policy, spill_dir or step_csv of the environment that is not available
 * (hr_environment_check reports it). If the step_csv FILE of the environment exists, FILE-2, FILE-3, ... is used instead. */
HR_API hr_status hr_lms_options_init_sized(hr_lms_options *options, size_t struct_size);
static inline hr_status hr_lms_options_init(hr_lms_options *options)
{
	return hr_lms_options_init_sized(options, sizeof *options);
}

/* Sets up Large Model Support on an allocator of kind "bfc". Without this call, the first tensor, step or limit of the allocator
 * sets it up with the defaults.
 *
 * HR_IN_USE            a tensor was created on the allocator, a step begun or a limit set
 * HR_UNSUPPORTED       another kind of allocator, or an option that the device does not support
 * HR_INVALID_ARGUMENT  no such policy
 * HR_IO                spill_dir or step_csv cannot be written */
HR_API HR_CHECK_RESULT hr_status hr_lms_configure(hr_allocator allocator, const hr_lms_options *options);

/* Changes options.limit. Tensors above the new limit are evicted; the call waits for tensors that other threads are already
 * moving. If the call fails, the limit is unchanged, but tensors that it has evicted by then stay evicted until they are used.
 *
 * HR_BAD_LIMIT            more bytes than that are pinned or cannot be evicted, or the host is full
 * HR_DEVICE_ERROR, HR_IO  a tensor could not be evicted */
HR_API HR_CHECK_RESULT hr_status hr_lms_set_limit(hr_allocator allocator, uint64_t bytes);

/* Changes options.recompute. Off: no tensor is dropped any more and no recipe is accepted; tensors that are dropped now are
 * recomputed when they are pinned. */
HR_API HR_CHECK_RESULT hr_status hr_lms_set_recompute(hr_allocator allocator, bool recompute);

/* ------------------------------------------------------------------------------------------------------------------------------
 * Tensors
 * ---------------------------------------------------------------------------------------------------------------------------- */

typedef struct hr_tensor {
	uint64_t id; /* 0 = no tensor */
} hr_tensor;

typedef struct hr_tensor_options {
	size_t struct_size;
	size_t bytes;     /* > 0 */
	size_t alignment; /* 0 = the allocator's granularity, otherwise a power of two */
	bool fixed;       /* its address is stable for its whole life: it owns whole pages, and eviction unmaps them. If smaller than
	                   * a page, it is never evicted */
	bool never_evict; /* the tensor is never evicted */
	int32_t priority; /* tensors of lower priority are evicted first; default 0 */
	hr_name op, scope, tag; /* as in hr_request */
	hr_shape shape;
	hr_dtype dtype;
	/* Called when the contents of the tensor move, for programs that read tensors without pins. [address]: where they can be read until the
	 * next call or pin: its host copy when it is evicted, its device memory when a host copy is dropped; NULL if they cannot be read
	 * now (they are in the file of spill_dir, or the copy is not done). The device has not reused the old memory yet. Not called for
	 * a pin that restores the tensor, nor when it is destroyed. Called with locks held, from any thread that makes room or pins the
	 * tensor: it must not call Headroom. NULL (default) = none */
	void (*moved)(void *user, void *address);
	void *user; /* passed to moved */
} hr_tensor_options;

HR_API void hr_tensor_options_init_sized(hr_tensor_options *options, size_t struct_size);
static inline void hr_tensor_options_init(hr_tensor_options *options)
{
	hr_tensor_options_init_sized(options, sizeof *options);
}

/* Creates a tensor without contents and without memory; the first pin allocates its memory. HR_TOO_MANY at 2^24 tensors.
 * HR_UNSUPPORTED: the allocator is not of kind "bfc", or the tensor is fixed and the device has no pages. */
HR_API HR_CHECK_RESULT hr_status hr_tensor_create(hr_allocator allocator, const hr_tensor_options *options, hr_tensor *out);

/* Destroys a tensor, resident, evicted or dropped. HR_IN_USE while it is pinned, or recomputed by the calling thread.
 * HR_INVALID_HANDLE when it was destroyed already. The pages of a fixed tensor are unmapped, so the call waits for the device; if
 * the device reports an error, the tensor still exists.
 *
 * If dropped tensors are computed from it and it has no recipe itself, they are recomputed first. If that fails, the call returns
 * its status, such as HR_OUT_OF_MEMORY, and the tensor still exists. */
HR_API hr_status hr_tensor_destroy(hr_tensor tensor);

typedef enum hr_access {
	HR_READ = 1,     /* the tensor is only read: a host copy stays valid */
	HR_WRITE = 2,    /* the tensor is read and written */
	HR_OVERWRITE = 3 /* all of the tensor is written. Its previous contents may be lost, even if the call fails, so they need not
	                  * be restored */
} hr_access;

typedef struct hr_pin {
	hr_tensor tensor;
	hr_access access;
} hr_pin;

/* Pins all of [pins] for work on [stream], or none. A tensor may occur more than once. Pins nest: each needs its own unpin. If the
 * call fails, a tensor that was HR_TENSOR_NEW before is HR_TENSOR_NEW again.
 *
 * HR_STREAM_HOST is for host code that accesses the tensors directly: the call waits until they are restored and the device has
 * finished with them. For a tensor pinned for writing this includes copies of it to the host. Work under pins that other callers
 * still hold is not waited for.
 *
 * A pin does not order the work of two streams on one tensor. If one of them writes the tensor, the program must order them with
 * hr_stream_wait_stream, whether the tensor was evicted in between or not.
 *
 * HR_OUT_OF_MEMORY        no memory, although everything inactive was evicted. The message names the op (hr_op_set), its tensors
 *                         with their sizes, and the smallest sufficient limit; or the host tier that is full and its setting
 * HR_INVALID_ARGUMENT     HR_READ of a tensor that was never written; tensors of several allocators; in a recompute function, a
 *                         write to a tensor that recipes depend on
 * HR_INVALID_HANDLE       a tensor was destroyed
 * HR_IN_USE               in a recompute function: a tensor that this very call recomputes
 * HR_CORRUPT              verify: restored contents differ from the evicted ones, or recomputed ones from the first ones; the message
 *                         names the tensor, which stays evicted or dropped
 * HR_DEVICE_ERROR, HR_IO  a tensor could not be restored: it is still evicted, and the next pin tries again
 * any other               of a recompute function: the tensor is still dropped, and the next pin tries again */
HR_API HR_CHECK_RESULT hr_status hr_tensor_pin_all(const hr_pin *pins, size_t count, hr_stream stream);

/* Unpins all of [pins]. [stream] is the last stream that was given work on the tensors; HR_STREAM_HOST if the host used them
 * last and has waited for all work on them that it queued to streams. HR_INVALID_ARGUMENT: a tensor is not pinned; nothing is
 * unpinned. HR_CORRUPT: verify found that a tensor was written through a read pin; all are unpinned, and the tensor's host copy
 * is kept. */
HR_API hr_status hr_tensor_unpin_all(const hr_pin *pins, size_t count, hr_stream stream);

/* hr_tensor_pin_all and hr_tensor_unpin_all for one tensor. If the tensor is resident, both together take about 40 ns, and 60 ns with
 * "learned". */
HR_API HR_CHECK_RESULT hr_status hr_tensor_pin(hr_tensor tensor, hr_access access, hr_stream stream);
HR_API hr_status hr_tensor_unpin(hr_tensor tensor, hr_stream stream);

/* Pin calls of the calling thread between begin and end belong to one op, and are planned as one: all their tensors are needed at the
 * same time. For programs whose ops call other ops that pin tensors of their own. Groups nest; the outermost counts. Unpin in the
 * group or after it; what is unpinned before the end may be evicted before the end. */
HR_API void hr_pin_group_begin(void);
HR_API void hr_pin_group_end(void); /* without a beginning, it has no effect */

/* The address of a pinned tensor, which stays valid until its last unpin. HR_INVALID_ARGUMENT when the tensor is not pinned.
 * HR_DEVICE_ERROR, HR_IO: moving the tensor on the device (options.defrag) failed, and so did moving it back; its contents are
 * on the host, and the next call tries again. */
HR_API HR_CHECK_RESULT hr_status hr_tensor_get_address(hr_tensor tensor, void **out);

/* Use an evicted tensor where it is: *out receives the address of its host copy, which the device can access too, over the link. What is
 * written there is the tensor's contents when it is restored. Waits until the copy is complete and earlier restores have read it. Until
 * the end, which must come from the same thread and after all work on the copy is done, the tensor stays evicted: pins and other calls on
 * it wait, so the thread itself must not make any. As with a pin for writing, dropped tensors that depend on it are recomputed first, and
 * recipes end.
 *
 * HR_INVALID_ARGUMENT  the tensor is not evicted; or an end without a beginning
 * HR_UNSUPPORTED       its copy is in the file of spill_dir, or the tensor is fixed
 * any other            of a recomputation */
HR_API HR_CHECK_RESULT hr_status hr_tensor_host_begin(hr_tensor tensor, void **out);
HR_API hr_status hr_tensor_host_end(hr_tensor tensor);

typedef enum hr_tensor_state {
	HR_TENSOR_NEW = 1,   /* no contents and no memory yet */
	HR_TENSOR_ACTIVE,    /* resident and pinned */
	HR_TENSOR_INACTIVE,  /* resident, not pinned, without a valid host copy */
	HR_TENSOR_SYNCED,    /* resident, not pinned, with a valid host copy, so it is evicted without a copy */
	HR_TENSOR_EVICTING,  /* being evicted, or copied to the host */
	HR_TENSOR_EVICTED,   /* on the host only */
	HR_TENSOR_RESTORING, /* being restored */
	HR_TENSOR_DROPPED,   /* its memory was freed without a copy; its recipe computes it again */
	HR_TENSOR_RECOMPUTING /* its recipe is running */
} hr_tensor_state;

HR_API const char *hr_tensor_state_text(hr_tensor_state state); /* "inactive" */

typedef struct hr_tensor_info {
	size_t struct_size;
	hr_tensor_state state;
	uint32_t pins;
	size_t bytes;         /* bytes requested */
	size_t device_bytes;  /* bytes that it occupies now on the device */
	size_t host_bytes;    /* bytes that it occupies now on the host */
	bool fixed, never_evict, dirty; /* dirty: resident without a valid host copy */
	bool spilled;         /* the host copy is in the file of spill_dir */
	int32_t priority;
	uint64_t evictions, restores;
	hr_name op, scope, tag;
	hr_shape shape;
	hr_dtype dtype;
} hr_tensor_info;

/* All fields 0, and struct_size as compiled. */
static inline void hr_tensor_info_init(hr_tensor_info *info)
{
	memset(info, 0, sizeof *info);
	info->struct_size = sizeof *info;
}

HR_API HR_CHECK_RESULT hr_status hr_tensor_get_info(hr_tensor tensor, hr_tensor_info *info);

/* ---- explicit control ---- */

HR_API HR_CHECK_RESULT hr_status hr_tensor_set_never_evict(hr_tensor tensor, bool never);
HR_API HR_CHECK_RESULT hr_status hr_tensor_set_priority(hr_tensor tensor, int32_t priority);

/* Names a tensor again, as hr_allocation_set_names does. A tensor that another thread is moving may keep its old names in the
 * statistics until it is moved again. */
HR_API HR_CHECK_RESULT hr_status hr_tensor_set_names(hr_tensor tensor, hr_name scope, hr_name tag);

/* Evicts the tensor now. HR_OK when it is evicted, or was evicted or dropped already; HR_IN_USE while it is pinned; HR_UNSUPPORTED
 * when it must not be evicted. */
HR_API HR_CHECK_RESULT hr_status hr_tensor_evict(hr_tensor tensor);

/* Restores the tensor now, without pinning it. HR_OK when it is being restored, or is resident already; HR_OUT_OF_MEMORY when
 * there is no memory for it without evicting others; HR_UNSUPPORTED when it is dropped, because a pin recomputes it. */
HR_API hr_status hr_tensor_prefetch(hr_tensor tensor);

/* Evicts everything inactive now, or with a [tag] only tensors with that tag (HR_NAME_NONE = everything). *bytes receives the
 * device memory that was freed; [bytes] may be NULL. Returns the first error; all tensors that could be evicted are evicted.
 * HR_NOT_READY: no tensor was created on the allocator. HR_UNSUPPORTED: Large Model Support is off there, so nothing can be
 * evicted. */
HR_API HR_CHECK_RESULT hr_status hr_lms_reclaim_inactive(hr_allocator allocator, hr_name tag, uint64_t *bytes);

/* ------------------------------------------------------------------------------------------------------------------------------
 * Recipes: computing a tensor again instead of moving it
 *
 * A tensor can have a recipe: the tensors that it was computed from, and a function that computes it again. A tensor with a recipe
 * can be dropped: its memory is freed without a copy. A pin of a dropped tensor runs the recipe, after the recipes of inputs that
 * are dropped themselves.
 *
 * A recipe is valid as long as its inputs hold what they held. A pin for writing of an input, or of the tensor itself, ends it;
 * dropped tensors that depend on the input are recomputed first. If the call then fails for another reason, the recipe has ended
 * all the same. An input that the program destroys and that has a recipe of its own lives on as a GHOST, without a handle and
 * without memory, as long as a recipe depends on it: it is computed again, and freed again, as a part of other recomputations. If
 * the ghost would need more than options.recipe_depth recipes one inside another, or the input has no recipe, the recipes that
 * depend on it end.
 *
 * IN PLACE. A recipe can be extended by ops that change the tensor in place. Before such an op, hr_tensor_hold_recipe keeps the recipe from
 * ending with the write; after it, hr_tensor_extend_recipe adds the op. A run of the recipe then calls the functions of all its ops, in
 * order, and the ops in place change what is in the memory of the tensor. For a y with the recipe y = norm(x) and a relu in place:
 * call hr_tensor_hold_recipe(y), pin y for writing, queue the relu, unpin y, call hr_tensor_extend_recipe. The recipe of y is then
 * y = norm(x), then relu(y).
 *
 * WHERE A RECIPE RUNS. recompute() runs on the thread that pins, and no lock of Headroom is held. Other threads that pin the same tensor
 * wait until it is done. In the function, the inputs are pinned for reading, and their addresses can be taken; pins of them nest.
 * It may allocate, create tensors, pin and unpin them, and destroy those that it created. It must not end a step, write or destroy
 * its inputs, pin its outputs, or set recipes. A pin in it that finds no memory fails at once.
 * ---------------------------------------------------------------------------------------------------------------------------- */

/* One run of a recipe. Handles are valid until the function returns; that of a ghost is not the one that the program knew. */
typedef struct hr_recompute {
	size_t struct_size;       /* the library's */
	const hr_tensor *inputs;  /* as in hr_recipe */
	size_t input_count;
	const hr_tensor *outputs; /* as in hr_recipe; id 0 = must not be written: it is resident, or destroyed */
	size_t output_count;
	hr_stream stream;         /* where the work is to be queued: that of the pin; for HR_STREAM_HOST, or if an input is about to be
	                           * destroyed, the default stream. It has waited for all earlier work on the inputs */
	uint32_t reserved;
} hr_recompute;

typedef struct hr_recipe {
	size_t struct_size;
	/* Required. Computes the outputs whose id is not 0, all of their bytes, and the same bytes each time. For each of them the function
	 * either gets memory from hr_tensor_get_address, or hands memory over with hr_tensor_take. It queues the work and need not wait
	 * for it. A status other than HR_OK is that of the pin, and the outputs stay dropped. */
	hr_status (*recompute)(void *user, const hr_recompute *call);
	/* Called once when the recipe has ended, without locks, from any call that ends it. It may destroy tensors, but must not pin any.
	 * NULL (default) = none. */
	void (*release)(void *user);
	void *user;               /* passed to both */
	const hr_tensor *inputs;  /* what the op read; may be empty, and may name a tensor twice */
	size_t input_count;
	const hr_tensor *outputs; /* all tensors that one run of the op writes, each once */
	size_t output_count;
	uint64_t cost_ns;         /* the device time of a run; 0 = not known: the outputs are dropped only by hr_tensor_drop */
	hr_name op;               /* named in messages and statistics; HR_NAME_NONE = the op of the first output */
	uint32_t reserved;        /* 0 */
	/* What the op read that is not a tensor, such as small blocks: numbers that the program chooses, for instance addresses. Before it
	 * changes one of those, it calls hr_lms_end_recipes. May name a number twice; empty by default. */
	const uint64_t *sources;
	size_t source_count;
} hr_recipe;

/* All fields 0, and struct_size as compiled. */
static inline void hr_recipe_init(hr_recipe *recipe)
{
	memset(recipe, 0, sizeof *recipe);
	recipe->struct_size = sizeof *recipe;
}

/* Gives all outputs of an op a recipe, after the op was queued and before its inputs are written again. Replaces earlier recipes of
 * the outputs. Set recipes in the order of the ops: recipes then never depend on each other in a cycle. If the call fails, nothing has changed,
 * and release is not called.
 *
 * HR_INVALID_ARGUMENT  no outputs, or more than 65,536 inputs, sources or outputs; a tensor is an input and an output, or twice an output, of
 *                      another allocator, or was never written; an output is an input of a recipe already, which would be a cycle;
 *                      called in a recompute function
 * HR_IN_USE            an output is dropped
 * HR_UNSUPPORTED       an output is fixed; Large Model Support or options.recompute is off
 * HR_INVALID_HANDLE, HR_NO_HOST_MEMORY */
HR_API HR_CHECK_RESULT hr_status hr_tensor_set_recipe(const hr_recipe *recipe);

/* An op that can run again is about to change [tensor] in place: its recipe does not end with the next pin for writing, but is kept, with
 * its inputs, for hr_tensor_extend_recipe. Ends when that is called, with hr_tensor_unhold_recipe, or if an input is written or destroyed. It
 * changes nothing else: tensors that depend on the old contents are treated as before any write.
 *
 * If the tensor was made by the last pin group of the calling thread, the thread's next pin group is planned as a part of that one, so
 * that the plan may drop what both make.
 *
 * HR_NOT_READY         it has no recipe
 * HR_IN_USE            it holds one already, or another output of its recipe does
 * HR_UNSUPPORTED       its recipe has 16 ops
 * HR_INVALID_ARGUMENT  called in a recompute function
 * HR_INVALID_HANDLE */
HR_API HR_CHECK_RESULT hr_status hr_tensor_hold_recipe(hr_tensor tensor);

/* The op was queued: gives its output, the one tensor in [recipe]->outputs, a recipe that runs the ops of the recipe that it holds, and then
 * this one. Of [recipe], inputs and sources are what this op read besides the tensor itself, and cost_ns is added; if either cost is 0, so
 * is the sum. In the function of this op, hr_tensor_get_address(call->outputs[0]) returns the memory with what the ops before have computed.
 * If the call fails, release is not called; the tensor holds no recipe any more, and has none, if it was written.
 *
 * HR_NOT_READY         it holds no recipe: an input was written or destroyed meanwhile
 * HR_INVALID_ARGUMENT  there is not exactly one output; it was not pinned for writing since it holds the recipe; or as for hr_tensor_set_recipe
 * other statuses       as for hr_tensor_set_recipe */
HR_API HR_CHECK_RESULT hr_status hr_tensor_extend_recipe(const hr_recipe *recipe);

/* The op failed: [tensor] does not hold its recipe any more. No effect if it does not. HR_INVALID_HANDLE. */
HR_API hr_status hr_tensor_unhold_recipe(hr_tensor tensor);

/* What recipes of the allocator name as [source] is about to change: the dropped tensors that depend on it are recomputed on [stream],
 * and those recipes end. Takes about 20 ns if no recipe names any source. If a tensor cannot be recomputed, its recipe and perhaps
 * others have not ended, and the source must not be changed.
 *
 * HR_INVALID_ARGUMENT  called in a recompute function
 * HR_NOT_READY         no tensor was created on the allocator
 * any other            of a recomputation */
HR_API HR_CHECK_RESULT hr_status hr_lms_end_recipes(hr_allocator allocator, uint64_t source, hr_stream stream);

/* Drops a tensor: frees its device memory, and a host copy if there is one, without a copy. HR_OK when it is dropped, or was evicted
 * or dropped already.
 *
 * HR_IN_USE       it is pinned, or recomputed by the calling thread
 * HR_NOT_READY    it has no recipe: none was set, or its recipe has ended because an input or the tensor was written
 * HR_UNSUPPORTED  it must not be evicted; options.recompute is off; or more than options.recipe_depth recipes would have to run one
 *                 inside another, or their inputs and outputs exceed the limit */
HR_API HR_CHECK_RESULT hr_status hr_tensor_drop(hr_tensor tensor);

/* In a recompute function: [tensor], an output without memory, takes over the memory and contents of [from]; no byte is copied.
 * [from] has no contents and no memory after that, as if it were new. If it was evicted since it was written, it is restored first. For
 * runtimes that cannot choose where an op writes.
 *
 * HR_INVALID_ARGUMENT  [tensor] is not an output of the recipe that the calling thread runs, or has memory already; [from] has no
 *                      memory or contents, another size, another allocator, a weaker alignment, or a recipe, or is fixed
 * HR_IN_USE            [from] is pinned
 * HR_INVALID_HANDLE */
HR_API HR_CHECK_RESULT hr_status hr_tensor_take(hr_tensor tensor, hr_tensor from);

/* ------------------------------------------------------------------------------------------------------------------------------
 * Steps and policies
 * ---------------------------------------------------------------------------------------------------------------------------- */

/* Marks the beginning and the end of a step of the program. If a step has no end, the next beginning ends it. If a program marks
 * no steps, its pins are watched for repetition. HR_INVALID_ARGUMENT: an end without a beginning. */
HR_API hr_status hr_step_begin(hr_allocator allocator);
HR_API hr_status hr_step_end(hr_allocator allocator);

/* A tensor that a policy may choose for eviction. */
typedef struct hr_lms_candidate {
	size_t struct_size;
	hr_tensor tensor;
	uint64_t bytes;
	bool clean;           /* evicted without a copy */
	int32_t priority;
	uint64_t last_use;    /* number of the last pin call that used the tensor; calls are counted from 1 */
	uint64_t now;         /* number of the latest pin call */
	hr_name op, scope, tag;
} hr_lms_candidate;

typedef struct hr_lms_policy {
	size_t struct_size;
	/* Required. Called when memory is needed: the candidate with the highest score is evicted first. Not called for tensors that
	 * must not be evicted. Called with a lock held: it must not call Headroom. */
	double (*score)(void *user, const hr_lms_candidate *candidate);
	/* Called after an unpin that left the tensor inactive, without locks: it may call hr_tensor_evict and hr_tensor_prefetch.
	 * May be NULL. */
	void (*unused)(void *user, hr_tensor tensor, uint64_t now);
	/* Called when a step begins. May be NULL. */
	void (*step)(void *user, uint64_t number);
} hr_lms_policy;

/* All fields 0, and struct_size as compiled. */
static inline void hr_lms_policy_init(hr_lms_policy *policy)
{
	memset(policy, 0, sizeof *policy);
	policy->struct_size = sizeof *policy;
}

/* Makes [policy] available as options.policy = [name]. HR_ALREADY_EXISTS, HR_TOO_MANY after 8, HR_INVALID_ARGUMENT. */
HR_API HR_CHECK_RESULT hr_status hr_lms_policy_register(const char *name, const hr_lms_policy *policy, void *user);

/* ------------------------------------------------------------------------------------------------------------------------------
 * Statistics in addition to those of headroom.h
 * ---------------------------------------------------------------------------------------------------------------------------- */

/* name, meaning. All are int64_t; the order never changes, new fields are added at the end. */
#define HR_LMS_STATS_TABLE(X)                                                                      \
	X(num_tensors, "tensors that exist")                                                           \
	X(num_pins, "pins held now")                                                                   \
	X(bytes_pinned, "device bytes of pinned tensors")                                              \
	X(bytes_inactive, "device bytes of resident tensors without pins")                             \
	X(bytes_reclaimed, "device bytes freed by evictions and drops")                                \
	X(bytes_out_now, "device bytes of tensors that are evicted now")                               \
	X(peak_bytes_out, "highest bytes_out_now since start or reset")                                \
	X(bytes_copied_out, "bytes copied to the host")                                                \
	X(bytes_copied_in, "bytes copied from the host")                                               \
	X(num_evictions, "tensors evicted")                                                            \
	X(num_clean_evictions, "evictions without a copy")                                             \
	X(num_restores, "tensors restored")                                                            \
	X(num_single_reclaims, "requests met by evicting one tensor")                                  \
	X(num_multi_reclaims, "requests met by evicting several tensors")                              \
	X(num_full_reclaims, "requests for which everything inactive was evicted")                     \
	X(num_planned_evictions, "evictions that the policy started before memory was needed")         \
	X(num_prefetches, "restores started before a pin")                                             \
	X(num_prefetch_hits, "pins of a tensor that was prefetched")                                   \
	X(num_prefetch_misses, "pins that had to restore their tensor")                                \
	X(num_prefetches_refused, "prefetches not started for lack of memory")                         \
	X(stall_ns, "time that streams waited for restores, if the device reports it")                 \
	X(num_steps, "steps begun")                                                                    \
	X(num_steps_planned, "steps that followed a plan")                                             \
	X(num_mismatches, "tensors used differently from the previous step")                           \
	X(plan_step_ns, "time of a step that the active plan expects")                                 \
	X(plan_bound_ns, "extra time that no plan could avoid, for the last learned step")             \
	X(plan_bytes_out, "bytes that the active plan copies to the host in a step")                   \
	X(plan_bytes_in, "bytes that the active plan restores in a step")                              \
	X(host_bytes, "bytes of tensors in pinned host memory")                                        \
	X(peak_host_bytes, "highest host_bytes since start or reset")                                  \
	X(spilled_bytes, "bytes of tensors in the file of spill_dir")                                  \
	X(num_defragmentations, "times live tensors were moved to join free memory")                   \
	X(bytes_defragged, "bytes moved by defragmentation")                                           \
	X(num_pin_waits, "pins that waited for other threads to unpin")                                \
	X(num_repeats, "steps that were found by repetition, because the program marks none")          \
	X(num_recipes, "recipes that are valid now")                                                   \
	X(num_ghosts, "destroyed tensors that exist as recipes only")                                  \
	X(num_drops, "tensors dropped")                                                                \
	X(bytes_dropped, "device bytes freed by drops")                                                \
	X(bytes_dropped_now, "device bytes of tensors that are dropped now, without ghosts")           \
	X(peak_bytes_dropped, "highest bytes_dropped_now since start or reset")                        \
	X(num_recomputes, "times a recipe ran and succeeded")                                          \
	X(num_failed_recomputes, "times a recipe ran and failed")                                      \
	X(recompute_ns, "time that recipes took, by the costs that they state")                        \
	X(num_planned_recomputes, "recipes that the policy ran before a pin needed them")              \
	X(plan_again_ns, "time of the ops that the active plan runs again in a step")

typedef struct hr_lms_stats {
	size_t struct_size;
#define HR_LMS_STATS_FIELD(name, text) int64_t name;
	HR_LMS_STATS_TABLE(HR_LMS_STATS_FIELD)
#undef HR_LMS_STATS_FIELD
} hr_lms_stats;

/* All fields 0, and struct_size as compiled. */
static inline void hr_lms_stats_init(hr_lms_stats *stats)
{
	memset(stats, 0, sizeof *stats);
	stats->struct_size = sizeof *stats;
}

/* Totals since the allocator's first tensor or the last hr_reset_memory_stats, and the current state. Fields that are also in hr_stats
 * have the same values there. Set stats->struct_size first. HR_NOT_READY: no tensor was created on the allocator.
 * hr_reset_memory_stats changes the fields as follows:
 *
 *     set to 0         bytes_reclaimed, bytes_copied_out, bytes_copied_in, num_evictions, num_clean_evictions, num_restores,
 *                      num_single_reclaims, num_multi_reclaims, num_full_reclaims, num_planned_evictions, num_prefetches,
 *                      num_prefetch_hits, num_prefetch_misses, num_prefetches_refused, stall_ns, num_steps, num_steps_planned,
 *                      num_mismatches, num_defragmentations, bytes_defragged, num_pin_waits, num_repeats, num_drops,
 *                      bytes_dropped, num_recomputes, num_failed_recomputes, recompute_ns, num_planned_recomputes
 *     set to now       peak_bytes_out to bytes_out_now, peak_host_bytes to host_bytes, peak_bytes_dropped to bytes_dropped_now
 *     not changed      num_tensors, num_pins, bytes_pinned, bytes_inactive, bytes_out_now, host_bytes, spilled_bytes, num_recipes,
 *                      num_ghosts, bytes_dropped_now, and the plan_* fields */
HR_API HR_CHECK_RESULT hr_status hr_lms_get_stats(hr_allocator allocator, hr_lms_stats *stats);

/* Checks the invariants of every tensor of the allocator. HR_OK, or HR_CORRUPT with the number of the first violated invariant.
 * May be called at any time; other threads that use a tensor wait meanwhile. HR_NOT_READY: every attempt was interrupted by threads
 * that pin and move tensors, or no tensor was created yet. */
HR_API HR_CHECK_RESULT hr_status hr_lms_check(hr_allocator allocator);

#ifdef __cplusplus
}
#endif

#endif
