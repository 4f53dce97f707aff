/* device.h - what the layers above know of a device: its page pool, its streams, and its calls.
 *
 *   hr_backend (a table)  <-  physical device (one per card: caps, streams, events)  <-  logical device (a page pool with a limit)
 *
 * The page pool is the only place where a limit is enforced: bytes reserved never exceed it, rounded down to whole pages. Pages that
 * are given back are kept and handed out again; they count as reserved only while somebody has them.
 *
 * Stream order without an event per free
 *
 * Recording an event costs 230 ns, ten times a free. So a free only notes which streams used the block (a mask) and the device's
 * epoch, a counter. When another stream wants the block, an event is recorded then, on the streams in the mask, and the stream is
 * told to wait for it; recording adds one to the epoch first, so the event covers every free that noted a smaller epoch. The device
 * remembers, for each pair of streams, the newest epoch that one has waited for of the other, so most later blocks need no wait.
 *
 *   covered(T, S, e)  =  synced[T][S] > e  or  done[S] > e       (done: the host has seen S finish)
 *
 * A block with mask M and epoch e may be used on stream T when covered(T, S, e) for every S in M other than T.
 *
 * The host (HR_STREAM_HOST) is in no mask, because nothing is queued on it. It may use the block when done[S] > e for every S in M, or
 * when S is known to be idle: the last work that S was given, given[S] being the epoch after that, is older than done[S]. A program
 * without device work never waits, and never records an event. */
#ifndef HR_DEVICE_DEVICE_H
#define HR_DEVICE_DEVICE_H

#include "base/assert.h"
#include "base/atomic.h"
#include "base/lock.h"
#include "headroom_backend.h"

typedef uint32_t hr__page_id; /* a page of a pool: an index into its table of hr_page */

typedef struct hr__device hr__device;

/* ---- registry ---- */

/* The logical device of a handle, opened on first use; NULL (message set: HR_CLOSED, HR_FORKED or why it cannot be opened in *why).
 * Cheap, and takes no lock once the device is open. Like the next two it may take the registry's lock, so no lock may be held. */
hr__device *hr__device_of(hr_device device, hr_status *why);

/* The logical device named [name] (NULL = default), opened on first use. */
hr_status hr__device_named(const char *name, hr__device **out);

/* The logical GPU number [gpu_id]; HR_NO_SUCH_DEVICE. */
hr_status hr__device_gpu(int gpu_id, hr__device **out);

/* Pinned host memory for copies to and from the physical device that [of] is (a part of), as a device of its own: no pages, the streams
 * and the epoch of the physical one, and a pool whose memory is the backend's host_alloc and host_free. An allocator on it recycles
 * blocks in stream order as one on the card does. hr__device_handle gives the handle for hr_allocator_create; thread_cache is best off
 * there, because small blocks would get slabs of their own. It is called "GPU:0 host memory", in no list, and found by no name.
 *
 * There is one for each physical device, made by the first call, and it lives until hr__devices_shutdown; all logical devices of a card
 * have it together, and it is named after the first of them. [limit] is its host_limit in bytes: 0 = as it is, and half of the host's
 * memory when it is made. Another limit than it has is taken when nothing is reserved from it, and refused with HR_IN_USE otherwise; an
 * allocator that is open then keeps its own limit. Like hr__device_of it takes the registry's lock.
 *
 * HR_BAD_LIMIT   below one page of the host, or above its memory (which is no bound on the simulated device)
 * HR_FORKED, HR_IO (the host's memory is not known): then nothing is made or changed */
hr_status hr__device_pinned(hr__device *of, uint64_t limit, hr__device **out);

/* Closes every device and forgets every setting. No allocator may be left. */
void hr__devices_shutdown(void);

/* After fork, in the child: forgets everything without touching what the parent shares (no unmapping, no joining of threads). */
void hr__devices_forget(void);

/* True between fork and hr_shutdown in the child. */
extern bool hr__forked;

/* ---- facts ---- */

hr_device hr__device_handle(const hr__device *device);
const char *hr__device_name(const hr__device *device);         /* "GPU:0" */
uint64_t hr__device_page_bytes(const hr__device *device);      /* 0 = no pages */
uint64_t hr__device_map_alignment(const hr__device *device);
uint64_t hr__device_limit(const hr__device *device);           /* in bytes, as set, and at most HEADROOM_LIMIT */
const char *hr__device_limit_setting(const hr__device *device); /* what that is set with, for messages */
uint64_t hr__device_uncapped(const hr__device *device);        /* the same without HEADROOM_LIMIT */
/* What the environment says, or the defaults where that cannot be followed: base/settings.h keeps why. */
void hr__devices_from_environment(hr_cuda_options *cuda, hr_emulated_options *emulated);
uint64_t hr__limit_from_environment(uint64_t page);            /* HEADROOM_LIMIT in whole pages, if [page] is not 0; UINT64_MAX = none */
bool hr__cuda_is_required(void);                               /* HEADROOM_REQUIRE_CUDA is on: no emulated GPU stands in */
uint64_t hr__device_reservable(const hr__device *device);      /* limit rounded down to whole pages */
bool hr__device_has_plain(const hr__device *device);
bool hr__device_host_accessible(const hr__device *device);
/* "GPU:0" when this is the pinned host memory of GPU:0; NULL when it is an ordinary device. */
const char *hr__device_pinned_for(const hr__device *device);
/* What is worth asking for at a time where there are no pages: less only where the limit leaves less. 0 = anything. */
uint64_t hr__device_region_min(const hr__device *device);
#define HR__PINNED_SLAB (UINT64_C(64) << 20)
/* Index of the logical device, 0 <= index < HR__MAX_DEVICES, stable for its life: for per-device side tables of upper layers. */
uint32_t hr__device_index(const hr__device *device);
#define HR__MAX_DEVICES 128u /* half of them pinned host memory */

/* ---- the page pool ---- */

uint64_t hr__pool_reserved(const hr__device *device);
uint64_t hr__pool_available(const hr__device *device); /* bytes that may still be reserved within the limit */

/* Bytes that the card itself could still give, limits aside: what nobody holds, and pages that its logical devices keep for later.
 * UINT64_MAX when it does not say. */
uint64_t hr__device_obtainable(const hr__device *device);

/* Takes [count] pages, recycled ones first. All or none: HR_OUT_OF_MEMORY (limit reached, or the device is full; the message says
 * which), HR_DEVICE_ERROR, HR_NO_HOST_MEMORY. */
hr_status hr__pool_take(hr__device *device, uint32_t count, hr__page_id *pages);
/* Gives pages back, unmapped and idle. Cannot fail. */
void hr__pool_give(hr__device *device, const hr__page_id *pages, uint32_t count);
/* Destroys the pages that nobody has, so that other processes can have the memory. Returns bytes destroyed. */
uint64_t hr__pool_shrink(hr__device *device);
/* Bytes of host memory that the pool's tables take. */
uint64_t hr__pool_metadata(const hr__device *device);

/* The same limit for memory that is not in pages. */
hr_status hr__pool_plain_alloc(hr__device *device, uint64_t bytes, uint64_t *address);
hr_status hr__pool_plain_free(hr__device *device, uint64_t address, uint64_t bytes);

/* ---- addresses ---- */

hr_status hr__device_reserve(hr__device *device, uint64_t bytes, uint64_t *address);
hr_status hr__device_release(hr__device *device, uint64_t address, uint64_t bytes);
/* All or none. */
hr_status hr__device_map(hr__device *device, uint64_t address, const hr__page_id *pages, uint32_t count);
/* The range must be idle (hr__device_wait_idle). */
hr_status hr__device_unmap(hr__device *device, uint64_t address, uint32_t count);

/* ---- pages of the host's memory, for addresses of the device. They are as large as its own, and count against the limit of its pinned
 * host memory (hr__device_pinned, which must have been called). ---- */

/* HR_OK when there are such pages; HR_UNSUPPORTED, or why not. Makes one, and gives it back. */
hr_status hr__host_pages_check(hr__device *device);
/* All or none. HR_OUT_OF_MEMORY names host_limit. */
hr_status hr__host_pages_take(hr__device *device, uint32_t count, hr_page *pages);
/* Unmapped and idle. Cannot fail: what the device will not take back is left to it. */
void hr__host_pages_give(hr__device *device, const hr_page *pages, uint32_t count);
/* All or none, like hr__device_map; hr__device_unmap is for both. */
hr_status hr__device_map_host(hr__device *device, uint64_t address, const hr_page *pages, uint32_t count);

/* ---- streams ---- */

/* The stream in a set of streams. The host is in none: nothing waits for it. */
static inline uint64_t hr__stream_bit(hr_stream stream)
{
	if (HR_LIKELY(stream == HR_STREAM_DEFAULT)) return 1;
	return stream < HR_STREAM_MAX ? UINT64_C(1) << stream : 0;
}

/* True for the default stream and the host, which every device has. */
static inline bool hr__stream_is_everywhere(hr_stream stream)
{
	return (stream & ~HR_STREAM_HOST) == 0;
}

/* True when [stream] exists on the device, or is the host. Cheap: one load. */
bool hr__device_has_stream(const hr__device *device, hr_stream stream);

/* What allocations and frees read of a device's streams, as long as it is open. */
typedef struct hr__stream_view {
	hr__atomic_u64 epoch; /* to note with a free; starts at 1, so that synced = 0 covers nothing */
	hr__atomic_u64 used;  /* bit s: stream s may have been given work since the device was opened. What only others used is idle */
} hr__stream_view;
const hr__stream_view *hr__device_stream_view(const hr__device *device);
uint64_t hr__device_epoch(const hr__device *device); /* the same */

/* Makes work given to [stream] from now on wait for the streams in [mask] as they were at [epoch]; adds the number of waits that had
 * to be made to *waits. Does not block, unless [stream] is HR_STREAM_HOST: then it is the caller that waits, so no lock may be held. */
hr_status hr__device_order(hr__device *device, hr_stream stream, uint64_t mask, uint64_t epoch, int64_t *waits);

/* Blocks until the streams in [mask] have done what they were given up to [epoch]. */
hr_status hr__device_wait_idle(hr__device *device, uint64_t mask, uint64_t epoch);

/* Marks what [stream] was given so far; *epoch (may be NULL) gets the mark's number. hr__device_order and hr__device_wait_idle for a
 * smaller epoch then wait for the mark, and not for what the stream was given after it: so memory that leaves over a slow link holds
 * its next user up for its own copy and not for all that queue behind it. The last HR__MARKS marks of each stream are remembered; for
 * an older epoch the oldest of them that covers it counts. 1.3 us on a GPU, because a mark keeps the time. Does not block. */
#define HR__MARKS 4096u
hr_status hr__device_mark(hr__device *device, hr_stream stream, uint64_t *epoch);

/* When the work that mark [epoch] of [stream] stands for was done: ns on a clock of the device that only tells marks apart (its zero is
 * arbitrary). HR_NOT_READY while it is not; HR_CLOSED when it is not, or no longer, remembered; HR_UNSUPPORTED on devices that do not
 * tell. About 3 us on a GPU. Does not block. */
hr_status hr__device_mark_time(hr__device *device, hr_stream stream, uint64_t epoch, uint64_t *ns);

/* Keeps [stream] busy for [ns], as an op that computes would, in the device's own time. Nothing happens where the backend has no such
 * entry: a GPU computes by itself. */
hr_status hr__device_compute(hr__device *device, hr_stream stream, uint64_t ns);

/* Calls a function of the host in the order of the stream. It must not call the library. HR_UNSUPPORTED. */
hr_status hr__device_host_call(hr__device *device, hr_stream stream, void (*run)(void *argument), void *argument);

/* The device's clock: virtual time on the simulated device. */
uint64_t hr__device_clock_ns(hr__device *device);

/* ---- backends of the project ---- */

extern const hr_backend hr__backend_simulated, hr__backend_emulated, hr__backend_cpu, hr__backend_cuda;

#endif
