/* state.h - the state of a tensor: its record, the places it can be in, and every change from one place to another.
 *
 *     from          to            function                        when
 *     UNUSED        NEW           hr__state_create                hr_tensor_create
 *     NEW           RESTORING     hr__state_begin_restore         the first pin: memory is allocated
 *     EVICTED       RESTORING     hr__state_begin_restore         a pin or a prefetch
 *     DROPPED       RESTORING     hr__state_begin_restore         a pin that overwrites it: only memory is allocated
 *     RESTORING     RESIDENT      hr__state_end_restore           the tensor has memory, and its contents are on the way
 *     RESTORING     NEW, EVICTED, DROPPED
 *                                 hr__state_end_restore           there was no memory, or the device failed: back to where it was
 *     RESIDENT      EVICTING      hr__state_begin_eviction        eviction, reclaiming, a copy ahead of an eviction, verify
 *     RESIDENT      EVICTING      hr__state_unpin                 the last pin of a call that failed, and that allocated the memory
 *     EVICTING      EVICTED       hr__state_end_eviction          its memory was freed
 *     EVICTING      DROPPED       hr__state_end_eviction          its memory was freed without a copy; its recipe remains
 *     EVICTING      RESIDENT      hr__state_end_eviction          it keeps its memory: only a copy was made, or the eviction failed
 *     EVICTING      NEW           hr__state_end_eviction          its memory was freed, and nothing was ever written to it
 *     DROPPED       RECOMPUTING   hr__state_begin_recompute       its recipe runs, for a pin of it or of a tensor computed from it
 *     RECOMPUTING   RESIDENT      hr__state_end_recompute         the work that computes it is queued
 *     RECOMPUTING   DROPPED       hr__state_end_recompute         there was no memory, or the recipe failed
 *     RESIDENT      MOVING        hr__state_begin_move            defragmentation, if its address is not taken; pinned or not
 *     MOVING        RESIDENT      hr__state_end_move              at its new address, or on failure at the old one
 *     NEW, RESIDENT, EVICTED, DROPPED
 *                   DESTROYING    hr__state_begin_destruction     hr_tensor_destroy
 *     DESTROYING    UNUSED        hr__state_free                  everything was released
 *     DESTROYING    NEW, RESIDENT, EVICTED, DROPPED
 *                                 hr__state_cancel_destruction    the device does not release its memory, or a recipe was set meanwhile
 *     DESTROYING    DROPPED       hr__state_become_ghost          recipes depend on it: it is a ghost, with another generation
 *
 * The place is part of an atomic word in the tensor's record, which only state.c and the inline functions below write. hr_lms_check
 * freezes all tensors of a context: it sets NEW to EVICTING, EVICTED to RESTORING, RESIDENT to MOVING and DROPPED to RECOMPUTING, and
 * later sets them back (hr__state_freeze, hr__state_thaw).
 *
 * The thread that sets EVICTING, RESTORING, RECOMPUTING, MOVING or DESTROYING has exclusive access to the tensor until it sets another
 * place. Other threads wait (hr__state_wait); that thread never waits for a thread that waits for it. A thread with a RECOMPUTING
 * tensor runs code of the program: recipe.h proves that this holds for it too.
 *
 *     public state                place
 *     HR_TENSOR_NEW               NEW
 *     HR_TENSOR_ACTIVE            RESIDENT or MOVING, pinned
 *     HR_TENSOR_INACTIVE, SYNCED  RESIDENT or MOVING, not pinned; SYNCED if it has a host copy
 *     HR_TENSOR_EVICTING          EVICTING
 *     HR_TENSOR_EVICTED           EVICTED
 *     HR_TENSOR_RESTORING         RESTORING
 *     HR_TENSOR_DROPPED           DROPPED
 *     HR_TENSOR_RECOMPUTING       RECOMPUTING
 *
 * INVARIANTS of a tensor, as hr_lms_check() checks them:
 *   1  only RESIDENT and MOVING have pins
 *   2  RESIDENT, MOVING and EVICTING have memory, NEW, EVICTED and DROPPED have none
 *   3  EVICTED has a host copy; NEW and DROPPED have none
 *   4  a tensor is in the list of its context exactly while it is not UNUSED, and resident tensors are among its first
 *      resident_count entries
 *   5  the context's counters agree with the bytes of resident, of pinned, of inactive, and of resident, evicted and
 *      dropped tensors; ghosts count only while they have memory
 *   6  addressed implies pinned and RESIDENT
 *   7  a tensor that owns pages has them at its first address; a fixed tensor without pages of its own is never evicted
 *   8  displaced implies memory and a host copy, and not addressed
 *   9  the queues (evict_queue.h) are in order and complete: BY_USE has all resident tensors, PLANNED all that the policy evicts,
 *      RECENT all evicted and dropped ones among the first resident_count. A tensor without memory is in no queue but RECENT. Tests
 *      with one thread also check that the queues choose the same tensor as a scan of all tensors
 *   10 the recipes are sound (recipe.h): DROPPED has one, and so has a ghost
 *
 * DISPLACED. A move that would overwrite its own source goes through the host. If the device fails during the move, and again when
 * the tensor is copied back to its old address, its contents are only on the host: the tensor is displaced. Its address was not
 * taken, so no program can see the invalid device memory. The next pin or address call copies the contents back first, or fails. A
 * displaced tensor is evicted without a copy. Such moves are needed: in random states of a fragmented allocator
 * (tests/lms/test_defrag.c), 33 of the 1,408 requests that defragmentation serves have no other solution.
 *
 * MOVING keeps its pins. A pin holds the tensor, not an address, and the address was not taken since the tensor last had no pins.
 * So no work queued under these pins can have touched its memory, and all work that did is in use_streams. Pin, unpin and address
 * calls wait until the move ends, and a move waits for no other thread; so the number of pins does not change during a move. Before
 * the move ends, the streams of the pins are made to wait for the copy, on the device. */
#ifndef HR_LMS_STATE_H
#define HR_LMS_STATE_H

#include "core/base/assert.h"
#include "core/base/atomic.h"
#include "core/lms/host/host.h"
#include "core/lms/reclaim/evict_queue.h"
#include "headroom_record.h"

enum hr__place {
	HR__PLACE_UNUSED = 0, /* the record is not in use */
	HR__PLACE_NEW,        /* no contents, no memory */
	HR__PLACE_RESIDENT,   /* resident on the device; pinned or not */
	HR__PLACE_EVICTING,   /* a thread is evicting it or copying it to the host */
	HR__PLACE_EVICTED,    /* evicted: on the host only */
	HR__PLACE_RESTORING,  /* a thread is allocating its memory and restoring its contents, if any */
	HR__PLACE_DESTROYING, /* a thread is destroying it */
	HR__PLACE_MOVING,     /* a thread is moving it to another address on the device; pinned or not */
	HR__PLACE_DROPPED,    /* neither on the device nor on the host: its recipe computes it again */
	HR__PLACE_RECOMPUTING /* a thread runs its recipe; it has no memory, until the recipe asks for its address or hands memory over */
};

/*      63        32 31      8  7  6     5         4      3    0
 *     | generation | pins    | 0  | displaced | addressed | place |
 *
 * addressed: the address was taken under the current pins. displaced: see above. */
#define HR__WORD_PLACE UINT64_C(0xf)
#define HR__WORD_ADDRESSED UINT64_C(0x10)
#define HR__WORD_DISPLACED UINT64_C(0x20)
#define HR__WORD_PIN UINT64_C(0x100)
#define HR__WORD_PINS UINT64_C(0xffffff00)

/* Why a tensor may not be evicted. */
#define HR__NEVER_EVICT_SET 1u   /* set by the caller */
#define HR__NEVER_EVICT_SMALL 2u /* fixed and smaller than a page: a block like any other */

/* Values of hr__tensor.evict_first other than 0. */
#define HR__EVICT_FIRST_MOVE 1u /* it has a host copy */
#define HR__EVICT_FIRST_DROP 2u /* it is dropped, if it still has a recipe */

typedef struct hr__tensor {
	/* WHERE IT IS. Written by the thread with exclusive access. Exception: [copy], which is also dropped by a thread that takes a write
	 * pin; it changes only under the context's lock. */
	hr__atomic_u64 word;
	_Atomic(struct hr__lms *) lms; /* its context; immutable, as the fields under WHAT IT IS */
	hr__atomic_u64 address;        /* of its device memory; 0 = none */
	hr__atomic_u64 device_bytes;   /* size of that memory, whether it has any now or not; immutable */

	/* STREAMS that use its memory. An epoch is the number that a mark covers (core/device/device.h); 0 = nothing to wait for.
	 * Atomic: a pin reads them while other threads pin and unpin. */
	hr__atomic_u64 use_streams;   /* streams that may still be using its memory */
	hr__atomic_u64 use_epoch;     /* of the last use by these streams */
	hr__atomic_u64 restore_epoch; /* of its restore */
	hr__atomic_u64 copy_epoch;    /* of its copy to the host */
	hr__atomic_u64 alloc_stream;  /* the stream that allocated its memory, as a mask: only that stream has waited for the memory's
	                               * previous users. 0 = the in stream, which restore_epoch covers */
	hr__atomic_u64 alloc_epoch;   /* of that allocation */
	hr__atomic_u64 pin_streams;   /* if tensors may be moved (defrag): all streams that it was ever pinned for. A bit is set before the pin */

	/* USE. Written by pins, without a lock. */
	hr__atomic_u64 last_use;     /* number of the last pin call */
	hr__atomic_u8 has_copy;      /* copy.bytes > 0, for readers without the lock */
	hr__atomic_u8 recipe_use;    /* HR__RECIPE_* (recipe.h): what a write pin has to end. Written under the context's lock */
	hr__atomic_u8 unwritten;     /* it has memory, but no write pin has succeeded yet: there are no contents to read or copy */
	hr__atomic_u8 evict_first;   /* HR__EVICT_FIRST_*: the policy evicts it first. A hint: set under the context's lock, cleared without */
	hr__atomic_u8 just_restored; /* restored, and not pinned since */
	hr__atomic_u8 prefetched;    /* prefetched and not pinned since */
	hr__atomic_u8
		in_stream_unordered; /* the in stream may be using its memory, and the streams of current pins do not wait for it */
	hr__atomic_u8 written;   /* verify: a write pin was taken since [sum] */
	hr__atomic_u8 sum_known; /* verify: [sum] is valid */

	/* WHERE IT IS, continued. */
	hr__host_copy copy;        /* of its contents on the host; valid while copy.bytes > 0 */
	struct hr__span *span;     /* if it owns pages: its address range, from its first memory on (core/memory/bfc/span.h) */
	struct hr__shadow *shadow; /* if it owns pages: host pages mapped there while it is evicted (fixed.c); NULL = none were made, or
	                            * they were released */
	uint64_t sum;              /* verify: checksum of its contents at the last unpin */
	bool on_host;              /* while RESTORING: between hr_tensor_host_begin and _end */
	bool eviction_traced;      /* the recording already has its eviction, written when the copy was made */

	/* RECIPES (recipe.h). Under the context's lock. [recipe] is atomic for a thread that compares it with those that it runs. */
	_Atomic(struct hr__recipe *) recipe;  /* that computes it; NULL = none */
	struct hr__recipe_input *dependents;  /* the recipes that it is an input of */
	struct hr__recipe *held;              /* the recipe that hr_tensor_hold_recipe keeps while the tensor is written; NULL = none */
	struct hr__tensor *next_ghost;        /* in lms->ghosts, or in a list of ghosts to destroy */
	bool dropped;                         /* only its recipe has its contents: EVICTING and about to be DROPPED, DROPPED, RECOMPUTING */
	hr__atomic_u8 ghost;                  /* HR__GHOST_*; 0 = the program has not destroyed it */
	uint64_t recipe_mark;                 /* number of the walk that saw it as an output */
	bool ghost_listed;                    /* in lms->ghosts */
	hr__atomic_u8 only_moved;             /* a pin has recomputed it and is about to pin it: it is not dropped meanwhile. A hint; no lock */

	/* WHAT IT IS. Immutable while it exists, except scope and tag (hr_tensor_set_names). Atomic where a thread with a stale handle may read it while another thread destroys
	 * the tensor and reuses its record; the word then shows that the values are not valid. */
	_Atomic(bool) fixed;
	uint8_t dtype;
	hr_stack stack; /* of hr_tensor_create, for the events of its memory */
	hr__atomic_u64 bytes;
	uint64_t alignment;
	hr__atomic_u32 op, scope, tag;
	hr_shape shape;
	uint32_t index; /* of this record; never changes */
	void (*moved)(void *user, void *address); /* of hr_tensor_options */
	void *user;

	/* POLICY. Under the context's lock; atomic where it is read without. */
	hr__atomic_u8 never_evict; /* HR__NEVER_EVICT_*; 0 = it may be evicted */
	hr__atomic_i64 priority;
	uint32_t member;                   /* index in the context's list; in a free record, the next free one */
	uint32_t queued[HR__EVICT_QUEUES]; /* index in each queue, or HR__EVICT_UNQUEUED */
	uint64_t evict_number;             /* its place in the order of planned evictions; 0 = that of its copy */
	struct {                           /* learned.h */
		uint32_t slot;                 /* index in the step's record; UINT32_MAX = none yet */
		uint32_t step;                 /* low bits of the number of the step that slot belongs to */
		uint32_t uses;                 /* number of uses in that step */
		uint32_t use;                  /* index of its last use in the record */
		uint32_t planned;              /* index in the plan; UINT32_MAX = not planned */
	} learned;

	/* COUNTERS. */
	hr__atomic_u32 evictions, restores;
} hr__tensor;

/* ---- reading the word ---- */

static inline enum hr__place hr__word_place(uint64_t word)
{
	return (enum hr__place)(word & HR__WORD_PLACE);
}

static inline uint32_t hr__word_pins(uint64_t word)
{
	return (uint32_t)((word & HR__WORD_PINS) / HR__WORD_PIN);
}

static inline enum hr__place hr__state_place(const hr__tensor *tensor)
{
	return hr__word_place(hr__load_relaxed(&tensor->word));
}

static inline bool hr__state_is_displaced(const hr__tensor *tensor)
{
	return hr__load_relaxed(&tensor->word) & HR__WORD_DISPLACED;
}

/* ---- creating and destroying ---- */

/* Gives an UNUSED record its next generation. No handle finds it yet. */
void hr__state_reserve(hr__tensor *tensor, uint32_t generation);
/* Makes a reserved record, whose fields are all set, a NEW tensor. */
void hr__state_create(hr__tensor *tensor);
/* In this function and those below, [word] is a word of the tensor that the caller has read, or its handle; only the generation counts.
 * Returns false if the tensor has another generation, is not at [from], or is pinned. */
bool hr__state_begin_destruction(hr__tensor *tensor, uint64_t word, enum hr__place from);
void hr__state_cancel_destruction(hr__tensor *tensor, enum hr__place to);
/* Ends a destruction: DROPPED, under a new generation, so that no handle of the program finds the tensor. */
void hr__state_become_ghost(hr__tensor *tensor, uint32_t generation);
/* When the context closes: sets DESTROYING, whatever the place, and drops all pins. */
void hr__state_force_destruction(hr__tensor *tensor);
/* Makes the record UNUSED. The tensor must have no memory and no host copy, and be in no list. Also for a tensor whose creation failed
 * (NEW). */
void hr__state_free(hr__tensor *tensor);

/* ---- evicting, restoring, moving: a begin function returns false if another thread changed the tensor first ---- */

bool hr__state_begin_eviction(hr__tensor *tensor, uint64_t word);
void hr__state_end_eviction(hr__tensor *tensor, enum hr__place to);
bool hr__state_begin_restore(hr__tensor *tensor, uint64_t word, enum hr__place from);
void hr__state_end_restore(hr__tensor *tensor, enum hr__place to, bool pinned);
bool hr__state_begin_recompute(hr__tensor *tensor, uint64_t word);
void hr__state_end_recompute(hr__tensor *tensor, enum hr__place to, bool pinned);
bool hr__state_begin_move(hr__tensor *tensor, uint64_t word);
void hr__state_end_move(hr__tensor *tensor);
/* The tensor must be MOVING. */
void hr__state_set_displaced(hr__tensor *tensor);
void hr__state_clear_displaced(hr__tensor *tensor);

/* Sets the description of the host copy; all zero = there is none. */
void hr__state_set_copy(hr__tensor *tensor, hr__host_copy copy);

/* Pauses the calling thread while another has exclusive access; [attempt] counts the calls in a row. */
void hr__state_wait(unsigned attempt);

/* ---- for hr_lms_check ---- */

/* Keeps all other threads from changing a tensor. False if another thread has exclusive access already. */
bool hr__state_freeze(hr__tensor *tensor);
void hr__state_thaw(hr__tensor *tensor);
/* The place of a frozen tensor before it was frozen. */
enum hr__place hr__state_frozen_place(uint64_t word);

/* ---- pins: inline, because they are the hot path ----
 *
 * *word is the word that the caller has read. A function that returns false sets it to the current word. */

static inline bool hr__state_pin(hr__tensor *tensor, uint64_t *word)
{
	HR_ASSERT(hr__word_place(*word) == HR__PLACE_RESIDENT && !(*word & HR__WORD_DISPLACED));
	HR_ASSERT((*word & HR__WORD_PINS) != HR__WORD_PINS);
	return hr__cas_acq_rel(&tensor->word, word, *word + HR__WORD_PIN);
}

/* The last unpin sets the place [to]: RESIDENT, or EVICTING if the caller goes on to free the memory. */
static inline bool hr__state_unpin(hr__tensor *tensor, uint64_t *word, enum hr__place to)
{
	HR_ASSERT(hr__word_place(*word) == HR__PLACE_RESIDENT && hr__word_pins(*word) > 0);
	HR_ASSERT(to == HR__PLACE_RESIDENT || to == HR__PLACE_EVICTING);
	uint64_t next = *word - HR__WORD_PIN;
	if (hr__word_pins(*word) == 1) next = (next & ~(HR__WORD_ADDRESSED | HR__WORD_PLACE)) | (uint64_t)to;
	return hr__cas_acq_rel(&tensor->word, word, next);
}

static inline bool hr__state_take_address(hr__tensor *tensor, uint64_t *word)
{
	HR_ASSERT(hr__word_place(*word) == HR__PLACE_RESIDENT && hr__word_pins(*word) > 0 && !(*word & HR__WORD_DISPLACED));
	return *word & HR__WORD_ADDRESSED || hr__cas_acquire(&tensor->word, word, *word | HR__WORD_ADDRESSED);
}

#endif
