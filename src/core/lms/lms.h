/* lms.h - what the files of Large Model Support share: the tensor record, and the context that an allocator's tensors have in common.
 *
 *     pin.c       pins, unpins, addresses: the hot path, no lock when the tensor is at home
 *     tensor.c    handles, making and destroying, the state machine
 *     move.c      one tensor leaves, returns, is checked
 *     sum.c       sums of what device memory holds, for verify
 *     stall.c     how long streams wait for returns
 *     fixed.c     the same under an address that holds
 *     reclaim.c   a request has no room: who should leave for it
 *     evict_queue.c  tensors in the order in which they are evicted (evict_queue.h)
 *     defrag.c    nobody is left to leave: who should move on the device, so that what is free is in one piece (and defrag_pages.c)
 *     learned.c   the policy that learns: what a step does is recorded (learned.h; record.c, link.c)
 *     steps.c     what the last step did, and the plan for this one (plan.h; force.c)
 *     follow.c    the plan as the step goes: who leaves, who is asked back, where to
 *     step_peak.c how many bytes a step needs at once
 *     host.c      where the contents are meanwhile (host.h)
 *     control.c   switches, options, statistics
 *
 * LOCKS. A tensor's word (tensor.c) says who may touch the rest of it: everybody reads while it is at home and pinned; the one thread that
 * made it LEAVING, RETURNING, MOVING or GOING has it for itself. [lock] of the context guards the list of tensors and what policies know; nothing
 * is copied while it is held, and requests that find room never take it. */
#ifndef HR_LMS_LMS_H
#define HR_LMS_LMS_H

#include "core/base/lock.h"
#include "core/base/shared.h"
#include "core/device/device.h"
#include "core/lms/host/host.h"
#include "core/lms/evict_queue.h"
#include "core/memory/allocator.h"
#include "core/memory/bfc/blocks.h"

typedef struct hr__lms hr__lms;
typedef struct hr__tensor hr__tensor;

/* ---- tensors ---- */

/* Where a tensor is; see the drawing in tensor.c. */
enum hr__place {
	HR__NOWHERE = 0, /* the record is not in use */
	HR__NEW,         /* no contents, no memory */
	HR__HOME,        /* on the device; pinned or not */
	HR__LEAVING,     /* somebody is sending it out, or making a copy of it */
	HR__OUT,         /* on the host */
	HR__RETURNING,   /* somebody is getting it memory, and its contents if it has any */
	HR__GOING,       /* somebody is destroying it */
	HR__MOVING       /* somebody is giving it another address on the device; pinned or not */
};

/*      63        32 31      8  7  6     5         4      3    0
 *     | generation | pins    | 0  | astray | addressed | place |
 *
 * addressed: somebody who has it pinned knows where it is. astray: it could not be moved, nor put back. What it should hold is on the host,
 * and comes from there before anybody is told its address. */
#define HR__WORD_PLACE UINT64_C(0xf)
#define HR__WORD_ADDRESSED UINT64_C(0x10)
#define HR__WORD_ASTRAY UINT64_C(0x20)
#define HR__WORD_PIN UINT64_C(0x100)
#define HR__WORD_PINS UINT64_C(0xffffff00)

struct hr__tensor {
	hr__atomic_u64 word;
	/* Immutable as long as it lives, like bytes, alignment, who, fixed. Atomic, as bytes and who, because a handle may be looked at while another
	 * thread ends the tensor and makes a new one in its record: what was read then is of no use, as the word tells. */
	_Atomic(hr__lms *) lms;
	hr__atomic_u64 address;  /* of its memory, while it has any: */
	uint64_t device_bytes;   /* that much */
	struct hr__span *span;   /* of one that owns pages: its addresses, from its first memory on (core/memory/bfc/blocks.h) */
	struct hr__shadow *shadow; /* and the host's pages for them (fixed.c); NULL = it was never out, or nobody wants any */
	hr__host_copy copy;      /* on the host, good as long as it is there: who writes to the tensor drops it. Changed under the context's
	                          * lock, by whoever has the tensor for itself or a pin on it */
	hr__atomic_u64 streams;  /* that may still be working on its memory, */
	hr__atomic_u64 epoch;    /* and up to when */
	hr__atomic_u64 in_epoch; /* the mark after this one covers its return; 0 = nothing to wait for */
	hr__atomic_u64 out_epoch; /* the same of the copy to the host */
	hr__atomic_u64 took_on, took_epoch; /* the stream that got its memory, as a mask, and when: it alone has waited for who had it before.
	                                     * 0 = the in stream, which in_epoch covers */
	hr__atomic_u64 last_use; /* number of the last pin call */
	hr__atomic_u64 pinned_by; /* where tensors may be moved: streams that it was ever pinned for. A bit is set before the pin */

	hr__atomic_u64 bytes;
	uint64_t alignment;
	uint64_t sum;            /* verify: of its contents when it was last unpinned */
	hr__atomic_u8 synced;    /* there is a copy; for those who do not hold the lock */
	hr__atomic_u8 sum_known;
	hr__atomic_u8 written;   /* verify: a write pin was taken since */
	hr__atomic_u8 leaves;    /* the policy wants it out: it goes first. A hint, set under the lock and cleared without */
	hr__atomic_u8 fresh;     /* it returned, and was not pinned since */
	hr__atomic_u8 prefetched; /* it returned ahead of a pin that has not come yet */
	hr__atomic_u8 unfollowed; /* the in stream may be at its memory, and those who have it pinned were not made to wait for that */
	hr__atomic_u8 blank;     /* it has memory, and no call that would write to it was met yet: there is nothing to read, or to copy */
	hr__atomic_u8 never_evict; /* HR__STAYS_*; 0 = it may leave */
	_Atomic(bool) fixed;
	bool counted;            /* its first memory was counted as a request, so its end is a free */
	bool told;               /* the recording has the copy that it leaves with */
	uint8_t dtype;
	hr__atomic_i64 priority;
	hr__atomic_u32 op, scope, tag; /* names */
	hr_shape shape;
	hr__atomic_u32 evictions, restores;
	uint32_t index;          /* of this record; immutable */
	uint32_t member;         /* where it is in the context's list, or the next spare record. Under lock */
	uint32_t queued[HR__EVICT_QUEUES]; /* where it is in each queue, or HR__UNQUEUED. Under lock */
	struct {                 /* learned.h; under lock */
		uint32_t slot;       /* among the tensors of the step; UINT32_MAX = none yet */
		uint32_t step;       /* low bits of the number of the step in which slot was given */
		uint32_t uses;       /* in that step, */
		uint32_t use;        /* and the number of the last in the record */
		uint32_t planned;    /* its number in the plan; UINT32_MAX = it has none */
	} learned;
};

/* Why a tensor may not leave. */
#define HR__STAYS_WANTED 1u /* somebody said so */
#define HR__STAYS_SMALL 2u  /* its address holds, and it is smaller than a page: it is a block like others, and stays where it is */

/* Whether its address holds and it has pages of its own, so that they can be taken from under it. */
static inline bool hr__owns_pages(const hr__tensor *tensor);

static inline enum hr__place hr__place_of(uint64_t word)
{
	return (enum hr__place)(word & HR__WORD_PLACE);
}

static inline uint32_t hr__pins_of(uint64_t word)
{
	return (uint32_t)((word & HR__WORD_PINS) / HR__WORD_PIN);
}

static inline uint64_t hr__word_at(uint64_t word, enum hr__place place)
{
	return (word & ~HR__WORD_PLACE) | (uint64_t)place;
}

/* Where the records are: in blocks, which are made when they are needed. */
#define HR__TENSOR_BLOCK 1024u
#define HR__TENSOR_BLOCKS_MAX ((1u << 24) / HR__TENSOR_BLOCK)
extern _Atomic(hr__tensor *) hr__tensor_blocks[HR__TENSOR_BLOCKS_MAX];

/* Says why a handle names no tensor: HR_CLOSED or HR_FORKED. */
hr_status hr__tensor_is_missing(hr_tensor handle);

/* The record of a handle; NULL (message set, HR_CLOSED or HR_FORKED in *why) when it names none. The record stays readable whatever
 * happens to the tensor; its word tells. Inline, because every pin and unpin looks three times. */
static inline hr__tensor *hr__tensor_of(hr_tensor handle, hr_status *why)
{
	uint32_t index = (uint32_t)handle.id - 1, block = index / HR__TENSOR_BLOCK; /* number 0 names none, and is beyond all blocks */
	hr__tensor *tensor = HR_LIKELY(!hr__forked && block < HR__TENSOR_BLOCKS_MAX) ? hr__load_acquire(&hr__tensor_blocks[block]) : NULL;
	if (HR_LIKELY(tensor != NULL)) {
		tensor += index % HR__TENSOR_BLOCK;
		uint64_t word = hr__load_acquire(&tensor->word);
		if (HR_LIKELY(word >> 32 == handle.id >> 32 && hr__place_of(word) != HR__NOWHERE)) return tensor;
	}
	*why = hr__tensor_is_missing(handle);
	return NULL;
}
hr_tensor hr__tensor_handle(const hr__tensor *tensor, uint64_t word);
/* Of the tensor that its blocks call [owner], its number and 1: whether it could leave now. */
bool hr__tensor_could_leave(uint32_t owner);
hr_status hr__tensor_is_closed(hr_tensor handle); /* sets the message; returns HR_CLOSED */
/* "tensor 12 (512.0 MiB, op matmul)" */
const char *hr__tensor_name(const hr__tensor *tensor, char *out, size_t capacity);
#define HR__TENSOR_NAME 160u

/* Bytes that it takes on the device, whenever it is there. */
uint64_t hr__tensor_device_bytes(const hr__tensor *tensor);

/* Takes a tensor that is at [from], unpinned, for oneself: it is at [to] then, and nobody else touches it. False when it is not there, or
 * pinned, or its generation is not that of [word]. */
bool hr__tensor_claim(hr__tensor *tensor, uint64_t word, enum hr__place from, enum hr__place to);
/* The same for one at home, pinned or not, whose address nobody has taken: it is MOVING then, and keeps its pins. */
bool hr__tensor_claim_moving(hr__tensor *tensor, uint64_t word);
/* Ends that: it is at home. */
void hr__tensor_settle_moved(hr__tensor *tensor);
/* Ends the other. [pins] is 0 or 1. */
void hr__tensor_settle(hr__tensor *tensor, enum hr__place place, uint32_t pins);
/* Waits a little for whoever has the tensor for itself. */
void hr__tensor_wait(unsigned attempt);

/* ---- the context ---- */

#define HR__STALLS 512u
/* A stream was made to wait for the return of a tensor. */
typedef struct hr__stall {
	uint64_t asked, came; /* numbers of marks: of the stream before it was told to wait, and behind the copy */
	hr_stream stream;
} hr__stall;

/* What there was when a step began (step_peak.c). */
typedef struct hr__step_start {
	hr__level level;
	int64_t resident, out, evictions;
} hr__step_start;

#define HR__VICTIMS_MAX 1024u

struct hr__lms {
	/* immutable once it is made */
	void *block; /* that it is in */
	hr__allocator *allocator;
	hr_allocator handle;
	hr__device *device;
	hr_device device_handle;
	hr__atomic_u32 pinning; /* threads in a call that counts pins, of those that have no cache of the allocator (check.c) */
	hr_stream out, in; /* streams of its own for copies; the default one where the device has no others */
	bool enabled, defrag, verify, lru;
	hr_lms_safety safety;
	uint64_t wait_ns, defrag_budget;
	hr__host *host; /* NULL while not enabled */
	hr_lms_policy policy; /* a user's; score is NULL for ours */
	void *policy_user;
	char policy_name[32];
	int csv; /* file of step statistics; -1 = none */
	struct hr__learned *learned; /* NULL unless the policy is "learned" */

	hr__atomic_u64 limit;    /* of bytes of tensors on the device; UINT64_MAX = none */
	hr__atomic_u64 clock;    /* pin calls so far */
	hr__atomic_i64 resident; /* bytes of tensors on the device, and of those that are getting memory there */
	hr__atomic_i64 live;     /* while enabled: bytes of tensors that have memory, or have left it for the host, */
	hr__atomic_i64 peak_live; /* and the most since the step began */
	hr__atomic_u64 changes;  /* times that room may have come: those who wait for some look at it */
	hr__atomic_u32 movers;   /* threads that have tensors for themselves now, which nobody else can move or use */
	hr__atomic_u32 turn;     /* 1 = a thread that waits for room has it: see pin.c */

	hr__lock lock __attribute__((aligned(64)));
	/* Members from resident_count on are out; those before it need not be resident. Where the queues do not help, reclaiming looks at these
	 * alone: with little memory most tensors are out, and a look at all of them for each eviction takes time that grows with their square. */
	hr__tensor **members;
	uint32_t member_count, member_capacity, resident_count;
	struct hr__movable *movable; /* room for as many: scratch of reclaim.c */
	hr__tensor **order;
	hr__evict_queue queues[HR__EVICT_QUEUES]; /* while enabled: room for as many in each */
	uint64_t looks;    /* at tensors, to find out which are to leave; for tests */
	uint64_t mistakes; /* choices by the queues that a look at all tensors did not make (hr__reclaim_compares) */
	hr__stall stalls[HR__STALLS]; /* that are not looked at yet: a ring */
	uint32_t stall_first, stall_count;
	uint64_t csv_offset;
	bool in_step;
	hr__step_start step_start;
	struct hr__lms *next; /* of all contexts; under the lock of the list */

	hr__lock scratch_lock; /* verify: of the host's scratch memory */
	uint64_t scratch_streams, scratch_epoch; /* that may still be copying to it; under its lock */

	struct { /* totals, and what is now; changed by anybody */
#define HR__LMS_COUNTER(name, text) hr__atomic_i64 name;
		HR_LMS_STATS_TABLE(HR__LMS_COUNTER)
	} stats __attribute__((aligned(64)));
	struct { /* what the totals were at hr_reset_memory_stats: counted from there on (control.c) */
		HR_LMS_STATS_TABLE(HR__LMS_COUNTER)
	} base;
#undef HR__LMS_COUNTER
};

static inline bool hr__owns_pages(const hr__tensor *tensor)
{
	return tensor->fixed && tensor->bytes >= tensor->lms->allocator->page;
}

/* Whether the host's memory is mapped at its address while it is out. */
static inline bool hr__is_shadowed(const hr__tensor *tensor)
{
	return tensor->lms->safety == HR_SAFETY_HOST_MAPPED && hr__owns_pages(tensor);
}

/* The context of an allocator, made with the defaults when there is none. */
hr_status hr__lms_of(hr_allocator allocator, hr__lms **out);
/* Bytes of resident tensors that nothing is using. While threads pin and move, some that a thread is about to unpin or give up count. */
static inline int64_t hr__lms_inactive(const hr__lms *lms)
{
	int64_t bytes = hr__load_relaxed(&lms->allocator->idle);
	return bytes > 0 ? bytes : 0;
}
/* Bytes of pinned tensors, and of those that are getting memory. */
static inline int64_t hr__lms_pinned(const hr__lms *lms)
{
	int64_t idle = hr__load_acquire(&lms->allocator->idle), bytes = hr__load_acquire(&lms->resident) - idle;
	return bytes > 0 ? bytes : 0;
}
/* The program has begun a step there and not ended it. */
HR__SHARED bool hr__lms_in_step(hr_allocator allocator);
static inline void hr__lms_count(hr__atomic_i64 *counter, int64_t n)
{
	hr__fetch_add_relaxed(counter, n);
}
void hr__lms_max(hr__atomic_i64 *to, int64_t value);
void hr__lms_max_u64(hr__atomic_u64 *to, uint64_t value);

/* Whether the context of an allocator with that handle is there: it goes before the allocator does. */
bool hr__lms_is_open(uint64_t allocator);
/* Pins that the calling thread has taken and not given back, in contexts that are open (pin.c). */
int64_t hr__pins_held(void);

/* Around everything that has tensors for itself for longer than a look; and that room may have come without it. */
void hr__lms_enter(hr__lms *lms);
void hr__lms_leave(hr__lms *lms);
void hr__lms_changed(hr__lms *lms);
uint64_t hr__lms_changes_made(void); /* by the calling thread, in any context */

/* 0, the number of a violated invariant (tensor.c), or HR__NOT_QUIET: tensors were in use all the time (check.c). */
#define HR__NOT_QUIET (-1)
int hr__lms_check(hr__lms *lms);

/* List of members (tensor.c). */
hr_status hr__lms_add(hr__lms *lms, hr__tensor *tensor);
void hr__lms_remove(hr__lms *lms, hr__tensor *tensor);
void hr__lms_free_members(hr__lms *lms); /* frees the arrays when no member is left */
/* With the lock held: a member that is out goes behind the resident ones; one that returns goes before those that are out. */
void hr__lms_set_out(hr__lms *lms, hr__tensor *tensor);
void hr__lms_set_resident(hr__lms *lms, hr__tensor *tensor);
/* Destroys every tensor, pinned or not: the allocator is going. */
void hr__lms_drop_tensors(hr__lms *lms);
void hr__tensors_forget(void); /* after fork */
void hr__tensors_shutdown(void);

/* ---- moving (move.c). The caller has the tensor for itself. ---- */

/* Makes sure the host has a good copy of a tensor that is at home (LEAVING). It stays at home. HR_NOT_READY: it is blank. */
hr_status hr__move_sync(hr__tensor *tensor);
/* Gives the memory of a tensor up that the host has a good copy of; [stream] will use it next (lms->in counts as not known; the host waits
 * when it gets the memory). */
hr_status hr__move_drop(hr__tensor *tensor, hr_stream stream);
/* Both, and settles it: OUT, or HOME again when it failed. One that is blank is NEW then, without a copy. */
hr_status hr__move_out(hr__tensor *tensor, hr_stream stream);
/* Takes the memory from one that is blank (LEAVING), and settles it: NEW, or HOME when the device keeps its pages. */
hr_status hr__move_undo(hr__tensor *tensor);
/* Gets memory (RETURNING). [contents]: and what it held. [idle]: it is not about to be pinned. Fails with the tensor as it was; does not
 * settle. */
hr_status hr__move_in(hr__tensor *tensor, hr_stream stream, bool contents, bool idle);
/* Gives up whatever memory and copy it has, wherever they are. When it fails and the tensor still has a span, nothing has changed. */
hr_status hr__move_away(hr__tensor *tensor);
/* The contents are about to change: the host's copy is not good any more. [stream] waits for a copy that is being made. Pinned. */
hr_status hr__move_dirty(hr__tensor *tensor, hr_stream stream);
/* Gives it another address on the device (MOVING), in stream order; it keeps its contents and whatever the host has of them. Settles it at
 * home, where it was when that failed. HR_NOT_READY when the memory at [to] is not free. */
hr_status hr__move_to(hr__tensor *tensor, uint64_t to);
/* The same to where the free memory before it begins. Over the host where that is less than the tensor: should the device fail then, and
 * again when it is put back, it is astray. */
hr_status hr__move_down(hr__tensor *tensor);
/* Brings the contents of one that is astray back from the host. Anybody may call it: HR_OK when it is not, or no longer. */
hr_status hr__move_repair(hr__tensor *tensor, uint64_t word);
/* verify: looks at the contents after the last unpin. HR_CORRUPT when they changed although nobody had a write pin. LEAVING. */
hr_status hr__move_inspect(hr__tensor *tensor, hr_stream stream);

/* ---- sums (sum.c) ---- */

/* Of [bytes] at [address] on the device as they will be when [stream] has done what it was given; waits for it. Equal for equal bytes, in
 * one context. On a device without memory behind it, that of nothing. Only where verify is on. */
hr_status hr__sum(hr__lms *lms, uint64_t address, uint64_t bytes, hr_stream stream, uint64_t *out);

/* ---- waiting (stall.c) ---- */

/* [stream] is about to be told to wait for the return that mark [came] of the in stream follows. */
void hr__stall_note(hr__lms *lms, hr_stream stream, uint64_t came);
void hr__stalls_settle(hr__lms *lms); /* adds up what is known by now */

/* ---- tensors that own pages (fixed.c). The caller has the tensor for itself. ---- */

/* Memory at its address, the first time at any. Its contents, if it has any, are still on the host. [idle]: it is not about to be pinned. */
hr_status hr__fixed_take(hr__tensor *tensor, const hr_request *request, bool idle);
/* Waits until nobody works on its memory, and takes that away; the address stays. When it fails nothing has changed. */
hr_status hr__fixed_leave(hr__tensor *tensor);
/* Undoes hr__fixed_take after a return that failed half way. What the device will not take back stays for the next return. */
void hr__fixed_undo(hr__tensor *tensor);
/* Gives memory, addresses and the host's pages back. When it fails the tensor is as it was. */
hr_status hr__fixed_end(hr__tensor *tensor);
/* The same for one whose context is going: what the device will not give back stays with the allocator. */
void hr__fixed_abandon(hr__tensor *tensor);

/* Contents of a tensor that is shadowed: to its pages on the host, and back. In the order of the out and in streams. */
hr_status hr__shadow_store(hr__tensor *tensor, hr__host_copy *copy);
hr_status hr__shadow_load(hr__tensor *tensor);
/* What they hold is not good any more. They stay with the tensor, for the next time. */
void hr__shadow_drop(hr__tensor *tensor);
/* Gives pages of the host back that tensors at home keep, but for [except]: about [bytes]. True when there were any. */
bool hr__shadows_shrink(hr__lms *lms, const hr__tensor *except, uint64_t bytes);

/* ---- making room (reclaim.c) ---- */

hr_status hr__reclaim(const hr__pressure *pressure, enum hr__source *source);
/* Tests of one thread set it: what the queues say is compared with a look at all tensors, and differences are counted. */
extern bool hr__reclaim_compares;
/* Whether the calling thread's last request failed because tensors that should have made room could not leave. */
bool hr__reclaim_was_blocked(void);
/* What reclaiming may do for the calling thread's requests: anything, drop what the policy wants out, nothing. */
enum hr__reclaim_mode { HR__RECLAIM_ANY = 0, HR__RECLAIM_LEAVING, HR__RECLAIM_NOTHING };
enum hr__reclaim_mode hr__reclaim_mode(void);
enum hr__reclaim_mode hr__reclaim_allow(enum hr__reclaim_mode mode); /* returns the one before */
/* Drops those that the policy wants out from [bytes] at [address]. False when that cannot make them free. */
bool hr__reclaim_at(hr__lms *lms, uint64_t address, uint64_t bytes, hr_stream stream);
/* Counts [bytes] as resident, and sends out what is above the limit for tensors with them. HR_OUT_OF_MEMORY, and nothing counted, when
 * that is not possible. */
hr_status hr__reclaim_below(hr__lms *lms, uint64_t bytes, hr_stream stream);
/* Everything inactive with that tag (HR_NAME_NONE: with any). */
hr_status hr__reclaim_all(hr__lms *lms, hr_name tag, uint64_t *bytes);

void hr__sort_by_address(hr__tensor **tensors, size_t count);
/* Joins free memory by moving tensors on the device (defrag.c). HR_NOT_READY: there is no way, or nothing of the budget is left. Anything
 * but HR_OK: nothing was moved. */
hr_status hr__defragment(hr__lms *lms, const hr__pressure *pressure);
/* The bytes that it would move for such a request, whether options.defrag allows it or not; UINT64_MAX when there is no way, or no host memory to
 * look for one. Moves nothing. */
uint64_t hr__defragment_bytes(hr__lms *lms, const hr__pressure *pressure);
void hr__defragment_anew(void); /* the calling thread begins with another request */

/* ---- how much memory a step needs (step_peak.c). Without locks. ---- */

void hr__step_peak_begin(hr__lms *lms);
void hr__step_peak_end(hr__lms *lms);

/* ---- the learned policy (learned.c, steps.c, follow.c). Does nothing where lms->learned is NULL. ---- */

hr_status hr__learned_open(hr__lms *lms);
void hr__learned_close(hr__lms *lms);
void hr__learned_step(hr__lms *lms, bool begins);
void hr__learned_before(hr__lms *lms, const hr_pin *pins, size_t count); /* a pin call */
void hr__learned_pinned(hr__lms *lms, const hr_pin *pins, size_t count, hr_stream stream); /* it was met */
void hr__learned_unpinned(hr__lms *lms, const hr_pin *pins, size_t count, hr_stream stream);
void hr__learned_created(hr__lms *lms, hr__tensor *tensor);
void hr__learned_destroyed(hr__lms *lms, hr__tensor *tensor);
/* How good it is if this tensor leaves though the plan would have it stay, more than 0: the later it is used again the better. [alone]: and
 * the fewer its bytes are. Under lms->lock. */
double hr__learned_worth(hr__lms *lms, const hr__tensor *tensor, bool alone);
/* Whether that grows with the time since its last use, for all tensors: there is no plan, or the step is another one. Under lms->lock. */
bool hr__learned_goes_by_use(const hr__lms *lms);
/* Somebody is about to leave whom the plan would have stay. Under lms->lock. */
void hr__learned_pressed(hr__lms *lms);
/* Where its memory should lie, by the plan; 0 = anywhere. */
uint64_t hr__learned_place(const hr__tensor *tensor);
/* A tensor is leaving. */
void hr__learned_evicted(hr__lms *lms, const hr__tensor *tensor);
/* Whether a copy should have a mark before it, to be timed; and that it was given to the out or in stream between two marks. */
bool hr__learned_times_copy(const hr__lms *lms, uint64_t bytes);
void hr__learned_copied(hr__lms *lms, bool out, uint64_t bytes, uint64_t before, uint64_t after);

/* Brings a tensor back ahead of a pin. HR_OUT_OF_MEMORY when there is no room but by moving out what nobody wants out. */
hr_status hr__prefetch(hr__tensor *tensor, uint64_t word);

#endif
