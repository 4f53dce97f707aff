/* lms.h - shared by the files of Large Model Support: the context that all tensors of an allocator share.
 *
 *     context.c      makes and closes contexts
 *     options.c      their options; policies.c: registered policies; hooks.c: calls of the memory layer
 *     step.c         steps of the program; step_csv.c, step_peak.c: their statistics, and how many bytes they need at once
 *     stats.c        statistics; stall.c: how long streams wait for restores
 *     limit.c        the limit for tensors
 *     check.c        checks the invariants
 *     tensor/        state.c           the state machine of a tensor and its record (state.h)
 *                    tensor.c          handles, creating and destroying; members.c: the list of a context
 *                    pin.c             pin, unpin, address; without a lock if the tensor is resident
 *                    pin_wait.c        pins that find no memory, and wait; pin_refusal.c: why they fail
 *                    evict.c           eviction and prefetch of one tensor on request
 *                    move.c            evicts, restores, moves and verifies one tensor (checksum.c); fixed.c: with a stable address
 *     reclaim/       reclaim.c         chooses the tensors to evict for a request that does not fit
 *                    evict_queue.c     tensors in the order of eviction
 *                    defrag.c          moves tensors on the device to join free memory, when nothing more can be evicted;
 *                    defrag_pages.c    frees whole pages for that
 *     policy/        the learned policy: learned.c records a step (record.c, link.c), steps.c makes a plan of it (active_plan.c),
 *                    follow.c follows the plan
 *     recipe/        tensors that are dropped and computed again (recipe.h)
 *     plan/          the planner (plan.h)
 *     host/          host copies (host.h)
 *
 * LOCKS. A tensor's word (state.h) controls access to its other fields. While the tensor is resident and pinned, any thread may
 * read them. The thread that set EVICTING, RESTORING, RECOMPUTING, MOVING or DESTROYING has exclusive access. [lock] of the context guards the
 * list of tensors and the data of policies. Nothing is copied while it is held, and a request that finds free memory never acquires
 * it. */
#ifndef HR_LMS_LMS_H
#define HR_LMS_LMS_H

#include "core/base/lock.h"
#include "core/base/shared.h"
#include "core/device/device.h"
#include "core/lms/host/host.h"
#include "core/lms/reclaim/evict_queue.h"
#include "core/lms/tensor/state.h"
#include "core/memory/allocator.h"
#include "core/memory/bfc/room_search.h"
#include "core/memory/bfc/span.h"
#include "core/memory/bfc/tensor_block.h"
#include "core/trace/trace.h"

typedef struct hr__lms hr__lms;

/* ---- tensors ---- */

/* Whether it is fixed and has pages of its own, which eviction can unmap. */
/* The order in which tensors that the plan evicts leave: of their copies, or as the plan says. */
static inline uint64_t hr__evict_planned_number(const hr__tensor *tensor)
{
	return tensor->evict_number ? tensor->evict_number : hr__load_relaxed(&tensor->copy_epoch);
}

static inline bool hr__tensor_owns_pages(const hr__tensor *tensor);

/* Tensor records are allocated in blocks, on demand. */
#define HR__TENSOR_BLOCK 1024u
#define HR__TENSOR_BLOCKS_MAX ((1u << 24) / HR__TENSOR_BLOCK)
extern _Atomic(hr__tensor *) hr__tensor_blocks[HR__TENSOR_BLOCKS_MAX];

/* Sets the message for a handle that names no tensor. Returns HR_INVALID_HANDLE or HR_FORKED. */
hr_status hr__tensor_fail_missing(hr_tensor handle);

/* The record of a handle; NULL (message set, HR_INVALID_HANDLE or HR_FORKED in *why) if the handle names no tensor. The record
 * stays readable whatever happens to the tensor; check its word. Inline, because each pin and unpin calls it three times. */
static inline hr__tensor *hr__tensor_of(hr_tensor handle, hr_status *why)
{
	uint32_t index = (uint32_t)handle.id - 1, block = index / HR__TENSOR_BLOCK; /* id 0 gives an index beyond all blocks */
	hr__tensor *tensor = HR_LIKELY(!hr__forked && block < HR__TENSOR_BLOCKS_MAX) ? hr__load_acquire(&hr__tensor_blocks[block])
	                                                                             : NULL;
	if (HR_LIKELY(tensor != NULL)) {
		tensor += index % HR__TENSOR_BLOCK;
		uint64_t word = hr__load_acquire(&tensor->word);
		if (HR_LIKELY(word >> 32 == handle.id >> 32 && hr__word_place(word) != HR__PLACE_UNUSED)) return tensor;
	}
	*why = hr__tensor_fail_missing(handle);
	return NULL;
}
hr_tensor hr__tensor_handle(const hr__tensor *tensor, uint64_t word);
/* Whether the tensor with index [owner] - 1 could be evicted now. Its blocks store [owner] (hr__block_own). */
bool hr__tensor_is_evictable(uint32_t owner);
hr_status hr__tensor_fail_closed(hr_tensor handle); /* sets the message; returns HR_INVALID_HANDLE */
/* "tensor 12 (512.0 MiB, op matmul)" */
const char *hr__tensor_name(const hr__tensor *tensor, char *out, size_t capacity);
#define HR__TENSOR_NAME 160u

/* ---- the context ---- */

#define HR__STALLS_MAX 512u
/* A stream was made to wait for the restore of a tensor. */
typedef struct hr__stall {
	uint64_t waited, restored; /* mark numbers: in the stream before the wait, in the in stream after the copy */
	hr_stream stream;
} hr__stall;

/* State at the start of a step (step_peak.c). */
typedef struct hr__step_start {
	hr__memory_summary level;
	int64_t resident, out, evictions;
} hr__step_start;

#define HR__RECLAIM_MAX 1024u

struct hr__lms {
	/* immutable after creation */
	void *block; /* the allocation that contains this struct */
	hr__allocator *allocator;
	hr_allocator handle;
	hr__device *device;
	hr_device device_handle;
	hr__atomic_u32 pinning;          /* threads inside a call that counts pins, if they have no cache of the allocator (check.c) */
	hr_stream out_stream, in_stream; /* its streams for copies; the default stream if the device has no others */
	bool enabled, defrag, verify;
	hr_lms_safety safety;
	uint64_t wait_ns, defrag_budget;
	hr__host *host;       /* NULL if not enabled */
	hr_lms_policy policy; /* a user's policy; score is NULL for the built-in ones */
	void *policy_user;
	char policy_name[32];
	int csv;                     /* file of step statistics; -1 = none */
	struct hr__learned *learned; /* NULL unless enabled with the policy "learned" */
	uint32_t recipe_depth;       /* most recipes that run one inside another */

	hr__atomic_u8 recompute;  /* tensors may be dropped, and recipes set; hr_lms_set_recompute */

	hr__atomic_u64 limit;     /* of bytes of resident tensors; UINT64_MAX = none */
	hr__atomic_u64 clock;     /* number of pin calls */
	hr__atomic_i64 resident;  /* bytes of resident tensors, and of those that are getting memory */
	hr__atomic_i64 live;      /* if enabled: bytes of resident and evicted tensors */
	hr__atomic_i64 peak_live; /* peak of [live] since the step began */
	hr__atomic_u64 changes;   /* incremented when memory may have become available; waiting threads watch it */
	hr__atomic_u32 movers;    /* threads with claimed tensors, which no other thread can move or use */
	hr__atomic_u32 turn;      /* 1 = held by a thread that waits for memory (pin.c) */

	hr__lock lock __attribute__((aligned(64)));
	/* Members from resident_count on are evicted; those before it need not be resident. Where the queues do not help, reclaiming
	 * scans only the latter: with little memory most tensors are evicted, and scanning all of them for each eviction would take
	 * quadratic time. */
	hr__tensor **members;
	uint32_t member_count, member_capacity, resident_count;
	struct hr__movable *movable; /* as long as [members], like order: scratch of reclaim.c and defrag.c */
	hr__tensor **order;
	hr__evict_queue queues[HR__EVICT_QUEUES]; /* if enabled: each as long as [members] */
	uint64_t tensors_examined;                /* tensors examined to choose victims; for tests */
	uint64_t queue_mismatches;        /* choices by the queues that differ from a scan of all tensors (hr__reclaim_compares) */
	hr__stall stalls[HR__STALLS_MAX]; /* not evaluated yet: a ring */
	uint32_t stall_first, stall_count;
	uint64_t recipe_walk;     /* number of the last walk over recipes */
	struct hr__recipe_input **source_buckets; /* NULL until needed (recipe/source.c) */
	uint32_t source_capacity;                 /* number of buckets, a power of two */
	hr__atomic_u32 source_count;              /* sources that recipes name */
	uint32_t recipes_running;
	hr__tensor *ghosts;       /* that may have memory, linked by next_ghost */
	uint64_t csv_offset;
	bool in_step;
	int64_t step_stall_ns; /* stats.stall_ns when the step began */
	hr__step_start step_start;
	struct hr__lms *next; /* in the list of all contexts; under that list's lock */

	hr__lock scratch_lock;                   /* verify: guards the host's scratch memory */
	uint64_t scratch_streams, scratch_epoch; /* that may still be copying to it; under scratch_lock */

	struct { /* totals and current values; written by all threads */
#define HR__LMS_COUNTER(name, text) hr__atomic_i64 name;
		HR_LMS_STATS_TABLE(HR__LMS_COUNTER)
	} stats __attribute__((aligned(64)));
	struct { /* the totals at hr_reset_memory_stats; counting starts there (stats.c) */
		HR_LMS_STATS_TABLE(HR__LMS_COUNTER)
	} base;
#undef HR__LMS_COUNTER
};

static inline bool hr__tensor_owns_pages(const hr__tensor *tensor)
{
	return tensor->fixed && tensor->bytes >= tensor->lms->allocator->page;
}
/* Once a tensor that owns pages is copied to the host, use_streams has none of its earlier users: the copy has waited for them (fixed.c).
 * Returns the epoch of that copy on the out stream; 0 = use_streams has all users whose work may be waited for. */
static inline uint64_t hr__tensor_copied_after_use(const hr__tensor *tensor)
{
	return hr__tensor_owns_pages(tensor) && !hr__load_relaxed(&tensor->use_streams) ? hr__load_relaxed(&tensor->copy_epoch) : 0;
}

/* Whether host pages are mapped at its address while it is evicted. */
static inline bool hr__tensor_is_shadowed(const hr__tensor *tensor)
{
	return tensor->lms->safety == HR_SAFETY_HOST_MAPPED && hr__tensor_owns_pages(tensor);
}

/* The context of an allocator; created with the default options if there is none. */
hr_status hr__lms_of(hr_allocator allocator, hr__lms **out);
/* Bytes of resident tensors without pins. While threads pin and move, tensors about to be unpinned or evicted may be included. */
static inline int64_t hr__lms_inactive(const hr__lms *lms)
{
	int64_t bytes = hr__load_relaxed(&lms->allocator->inactive);
	return bytes > 0 ? bytes : 0;
}
/* Bytes of pinned tensors, and of tensors that are getting memory. */
static inline int64_t hr__lms_pinned(const hr__lms *lms)
{
	int64_t inactive = hr__load_acquire(&lms->allocator->inactive), bytes = hr__load_acquire(&lms->resident) - inactive;
	return bytes > 0 ? bytes : 0;
}
/* Whether the program has begun a step on this allocator and not ended it. */
HR__SHARED bool hr__lms_in_step(hr_allocator allocator);
/* Whether tensors of the allocator may be evicted. It does not change once there was a tensor. */
HR__SHARED bool hr__lms_evicts(hr_allocator allocator);
/* Whether the tensor may be given a recipe, as far as its allocator's options decide. */
HR__SHARED bool hr__lms_takes_recipes(hr_tensor tensor);
/* Whether recipes depend on the tensor, so that hr_tensor_destroy may fail. Without locks; another thread may change it. */
HR__SHARED bool hr__lms_feeds_recipes(hr_tensor tensor);
static inline void hr__lms_count(hr__atomic_i64 *counter, int64_t n)
{
	hr__fetch_add_relaxed(counter, n);
}
void hr__lms_raise(hr__atomic_i64 *to, int64_t value);
void hr__lms_raise_u64(hr__atomic_u64 *to, uint64_t value);
void hr__lms_count_live(hr__lms *lms, int64_t bytes); /* adds to lms->live (move.c) */

/* Whether the allocator with that handle has an open context. A context closes before its allocator. */
bool hr__lms_is_open(uint64_t allocator);
/* Pins that the calling thread holds in open contexts (pin.c). */
int64_t hr__pin_count_of_thread(void);

/* hr__lms_begin_move and hr__lms_end_move enclose work on claimed tensors that takes longer than a look. hr__lms_note_change says
 * that memory may have become available; hr__lms_end_move calls it. */
void hr__lms_begin_move(hr__lms *lms);
void hr__lms_end_move(hr__lms *lms);
void hr__lms_note_change(hr__lms *lms);
uint64_t hr__lms_changes_of_thread(void); /* by the calling thread, in all contexts */

/* 0, the number of a violated invariant (state.h), or HR__LMS_CHECK_BUSY: some tensor was in use at every attempt (check.c). */
#define HR__LMS_CHECK_BUSY (-1)
int hr__lms_check(hr__lms *lms);

/* List of members (members.c). */
hr_status hr__lms_add(hr__lms *lms, hr__tensor *tensor);
void hr__lms_remove(hr__lms *lms, hr__tensor *tensor);
void hr__lms_free_members(hr__lms *lms); /* frees the arrays; no member may be left */
/* Moves an evicted member behind the resident ones, or a restored one before the evicted ones. */
void hr__lms_list_as_evicted(hr__lms *lms, hr__tensor *tensor);
void hr__lms_list_as_resident(hr__lms *lms, hr__tensor *tensor);
/* Destroys every tensor, pinned or not, because the allocator is closing. */
void hr__lms_destroy_tensors(hr__lms *lms);
void hr__tensor_destroy_ghost(hr__tensor *ghost); /* that no recipe depends on */
void hr__tensor_forget_all(void);                 /* after fork */
void hr__tensor_shutdown(void);

/* ---- moving (move.c); the caller has exclusive access to the tensor ---- */

/* Makes sure that a resident tensor (EVICTING) has a host copy. The tensor stays resident. HR_NOT_READY: it is unwritten. */
hr_status hr__move_copy_to_host(hr__tensor *tensor);
/* Frees the device memory of a tensor that has a host copy or is dropped. [stream] uses the memory next; lms->in_stream and lms->out_stream mean
 * that the stream is not known. For HR_STREAM_HOST the host waits when it gets the memory. */
hr_status hr__move_free_memory(hr__tensor *tensor, hr_stream stream);
/* hr__move_copy_to_host and hr__move_free_memory; then settles the tensor: EVICTED, or RESIDENT on failure. An unwritten tensor
 * becomes NEW, without a copy. */
hr_status hr__move_evict(hr__tensor *tensor, hr_stream stream);
/* Frees the memory of an unwritten tensor (EVICTING) and settles it: NEW, or RESIDENT if the device does not release its pages. */
hr_status hr__move_free_unwritten(hr__tensor *tensor);
/* Allocates memory (RESTORING or RECOMPUTING). [contents]: and restores the contents. [inactive]: no pin follows at once. On failure the tensor is
 * unchanged. Does not settle. */
hr_status hr__move_restore(hr__tensor *tensor, hr_stream stream, bool contents, bool inactive);
/* Frees its memory and its host copy, if any. If it fails and the tensor still has a span, nothing has changed. */
hr_status hr__move_release(hr__tensor *tensor);
/* Drops the host copy of a pinned tensor that is about to be written. [stream] waits for a copy to the host that is under way. */
hr_status hr__move_invalidate_copy(hr__tensor *tensor, hr_stream stream);
/* Moves a tensor (MOVING) to another address on the device, in stream order. Contents and host copy are kept. Settles it RESIDENT,
 * on failure at its old address. HR_NOT_READY: the memory at [to] is not free. */
hr_status hr__move_to_address(hr__tensor *tensor, uint64_t to);
/* Moves it to the start of the free memory before it. If that is smaller than the tensor, the copy goes through the host. If the
 * device fails then, and again when the tensor is put back, the tensor is displaced. */
hr_status hr__move_down(hr__tensor *tensor);
/* Copies the contents of a displaced tensor back from the host. Any thread may call it. HR_OK if the tensor is not, or no longer,
 * displaced. */
hr_status hr__move_reload(hr__tensor *tensor, uint64_t word);
/* verify: checks the contents after the last unpin (EVICTING). HR_CORRUPT if they changed without a write pin. */
hr_status hr__move_verify(hr__tensor *tensor, hr_stream stream);
/* verify: makes sure that the checksum of the contents is known (EVICTING). */
hr_status hr__move_know_sum(hr__tensor *tensor);
/* verify: compares recomputed contents with those that were dropped. HR_CORRUPT if they differ. */
hr_status hr__move_compare_recomputed(hr__tensor *tensor, hr_stream stream);
/* Drops the host copy, if there is one. With the lock. */
void hr__move_drop_copy(hr__tensor *tensor);
/* Writes an event of the tensor's memory. [bytes] are those that a copy moves; 0 = evicted or restored without a copy. */
void hr__move_trace(const hr__tensor *tensor, hr__event_kind kind, uint64_t bytes);

/* ---- checksums (checksum.c) ---- */

/* Checksum of [bytes] at [address] on the device, as they are when [stream] has done what was queued; waits for it. Equal bytes
 * have equal sums in one context. Contents do not count on a device without memory behind it. Only if verify is on. */
hr_status hr__checksum(hr__lms *lms, uint64_t address, uint64_t bytes, hr_stream stream, uint64_t *out);

/* ---- waiting (stall.c) ---- */

/* [stream] is about to wait for a restore, which mark [restored] of the in stream follows. */
void hr__stall_note(hr__lms *lms, hr_stream stream, uint64_t restored);
void hr__stall_evaluate(hr__lms *lms); /* adds up stalls whose marks were reached */

/* ---- tensors that own pages (fixed.c); the caller has exclusive access to the tensor ---- */

/* Maps memory at its address; the first call chooses the address. Contents, if any, stay on the host. [inactive]: no pin follows at
 * once. */
hr_status hr__fixed_map(hr__tensor *tensor, const hr_request *request, bool inactive);
/* Waits until no stream uses its memory, then unmaps the pages and returns them; the address stays. On failure nothing has
 * changed. */
hr_status hr__fixed_unmap(hr__tensor *tensor);
/* Undoes hr__fixed_map after a restore that failed. Pages that the device does not release stay for the next restore. */
void hr__fixed_undo_map(hr__tensor *tensor);
/* Releases its memory, address range and host pages. On failure the tensor is unchanged. */
hr_status hr__fixed_release(hr__tensor *tensor);
/* hr__fixed_release when the context closes: what the device does not release stays with the allocator. */
void hr__fixed_abandon(hr__tensor *tensor);

/* Copies the contents of a shadowed tensor to its host pages, and back, in the order of the out and in streams. */
hr_status hr__fixed_store_shadow(hr__tensor *tensor, hr__host_copy *copy);
hr_status hr__fixed_load_shadow(hr__tensor *tensor);
/* Counts the contents of the host pages as dropped; the copy is cleared already. The pages stay with the tensor, for the next
 * eviction. */
void hr__fixed_drop_shadow(hr__tensor *tensor);
/* Releases about [bytes] of host pages that resident tensors other than [except] keep. True if any were released. */
bool hr__fixed_release_shadows(hr__lms *lms, const hr__tensor *except, uint64_t bytes);

/* ---- reclaiming memory (reclaim.c) ---- */

hr_status hr__reclaim(const hr__pressure *pressure, enum hr__alloc_source *source);
/* Set by tests with one thread: choices by the queues are compared with a scan of all tensors, and differences are counted. */
extern bool hr__reclaim_compares;
/* Whether the calling thread's last request failed because tensors chosen for eviction could not be evicted. */
bool hr__reclaim_was_blocked(void);
/* What reclaiming may evict for the calling thread's requests: any tensor, only those that the policy evicts, none. */
enum hr__reclaim_mode { HR__RECLAIM_ANY = 0, HR__RECLAIM_PLANNED, HR__RECLAIM_NOTHING };
enum hr__reclaim_mode hr__reclaim_mode(void);
enum hr__reclaim_mode hr__reclaim_set_mode(enum hr__reclaim_mode mode); /* returns the previous mode */
/* Evicts tensors from [bytes] at [address] if the policy evicts all of them. False if that does not free the range. */
bool hr__reclaim_range(hr__lms *lms, uint64_t address, uint64_t bytes, hr_stream stream);
/* Counts [bytes] as resident, and evicts what then exceeds the limit for tensors. HR_OUT_OF_MEMORY, and nothing is counted, if that
 * is not possible. */
hr_status hr__reclaim_to_limit(hr__lms *lms, uint64_t bytes, hr_stream stream);
/* Evicts all inactive tensors with that tag (HR_NAME_NONE: with any). */
hr_status hr__reclaim_inactive(hr__lms *lms, hr_name tag, uint64_t *bytes);

void hr__reclaim_sort_by_address(hr__tensor **tensors, size_t count);
/* Joins free memory by moving tensors on the device (defrag.c). HR_NOT_READY: impossible, or the budget is spent. On failure
 * nothing was moved. */
hr_status hr__defrag_run(hr__lms *lms, const hr__pressure *pressure);
/* Bytes that hr__defrag_run would move for the request, whether options.defrag allows it or not. UINT64_MAX: impossible, or no host
 * memory to plan it. Moves nothing. */
uint64_t hr__defrag_cost(hr__lms *lms, const hr__pressure *pressure);
void hr__defrag_begin_request(void); /* the calling thread starts another request */

/* ---- how much memory a step needs (step_peak.c); called without locks ---- */

void hr__step_peak_begin(hr__lms *lms);
void hr__step_peak_end(hr__lms *lms);

/* ---- the learned policy (policy/); does nothing if lms->learned is NULL ---- */

hr_status hr__learned_open(hr__lms *lms);
void hr__learned_close(hr__lms *lms);
void hr__learned_step(hr__lms *lms, bool begins);
/* The group of pin calls that the thread is in (hr_pin_group_begin). */
typedef struct hr__pin_group {
	uint32_t depth;          /* 0 = none */
	uint64_t context;        /* of the group's first pin call; 0 = none yet. Together with the next three: of one context only */
	uint32_t step, position; /* learned->step and learned->position after the group's last pin call */
	uint32_t ops;            /* recorded ops after it */
	bool continued;          /* the group that begins next, or has begun and not pinned yet, belongs to the op of the last one */
} hr__pin_group;
hr__pin_group *hr__pin_group_of_thread(void);
void hr__learned_before_pin(hr__lms *lms, const hr_pin *pins, size_t count, hr_stream stream);
void hr__learned_pinned(hr__lms *lms, const hr_pin *pins, size_t count, hr_stream stream); /* after a pin call succeeded */
void hr__learned_unpinned(hr__lms *lms, const hr_pin *pins, size_t count, hr_stream stream);
void hr__learned_created(hr__lms *lms, hr__tensor *tensor);
void hr__learned_destroyed(hr__lms *lms, hr__tensor *tensor);
/* A recipe was set; the recipe of a tensor has ended, but the tensor has not; a ghost was made of a tensor that was [planned] in the plan.
 * With the lock. */
void hr__learned_recipe_set(hr__lms *lms, const struct hr__recipe *recipe);
void hr__learned_recipe_ended(const hr__tensor *tensor);
void hr__learned_ghost(hr__tensor *ghost, uint32_t planned);
void hr__learned_hold(const hr__tensor *tensor); /* the calling thread is about to change it in place, and can extend its recipe */
/* Whether the plan needs the memory of a ghost that was computed. With the lock. */
bool hr__learned_keeps_ghost(const hr__tensor *ghost);
/* Whether, by the plan, the memory of an evicted tensor is not free yet, because its copy takes longer. With the lock. */
bool hr__learned_is_copied_later(const hr__tensor *tensor);
/* Value of evicting a tensor that the plan keeps, more than 0: the later its next use, the higher. [alone]: and the fewer its
 * bytes, the higher. */
double hr__learned_eviction_score(hr__lms *lms, const hr__tensor *tensor, bool alone);
/* Whether hr__learned_eviction_score grows with the time since the last use, for all tensors: there is no plan, or the step is not
 * the plan's. */
bool hr__learned_ranks_by_use(const hr__lms *lms);
/* An unplanned eviction is about to happen. */
void hr__learned_unplanned_eviction(hr__lms *lms);
/* The address that the plan assigns to its memory; 0 = any. */
uint64_t hr__learned_address(const hr__tensor *tensor);
/* A tensor is being evicted. */
void hr__learned_evicted(hr__lms *lms, const hr__tensor *tensor);
/* Whether a copy is timed, which takes a mark before it; and reports such a copy, queued on the out or in stream between two
 * marks. */
bool hr__learned_times_copy(const hr__lms *lms, uint64_t bytes);
void hr__learned_copied(hr__lms *lms, bool out, uint64_t bytes, uint64_t before, uint64_t after);

/* Restores a tensor before it is pinned. HR_OUT_OF_MEMORY if only an unplanned eviction could make room. */
hr_status hr__lms_prefetch(hr__tensor *tensor, uint64_t word);

#endif
