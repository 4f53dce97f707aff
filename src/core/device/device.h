/* device.h - the interface of a device to the layers above: its page pool, its streams, and its calls.
 *
 *   hr_backend (a table)  <-  physical device (one per card: caps, streams, events)  <-  logical device (a page pool with a limit)
 *
 * The page pool is the only place where a limit is enforced: reserved bytes never exceed the limit, rounded down to whole pages.
 * Pages that are given back are kept and reused; they count as reserved only while they are in use.
 *
 * Stream order without an event per free
 *
 * Recording an event costs 230 ns, ten times a free. So a free records only the streams that used the block (a mask) and the
 * device's epoch, a counter. When another stream is to get the block, an event is recorded at that time on each stream in the mask,
 * and the other stream is made to wait for it. Recording first increments the epoch, so the event covers every free with a smaller
 * epoch. For each pair of streams the device keeps the newest epoch that one has waited for on the other, so most later blocks need
 * no wait.
 *
 *   covered(T, S, e)  =  synced[T][S] > e  or  done[S] > e       (done: the host has seen S finish)
 *
 * A block with mask M and epoch e may be used on stream T when covered(T, S, e) for every S in M other than T.
 *
 * The host (HR_STREAM_HOST) is in no mask, because nothing is queued on it. It may use the block when, for every S in M, done[S] >
 * e or S is known to be idle. S is idle when its last work is older than done[S]; given[S] is the epoch after that work. A program
 * without device work never waits and never records an event. */
#ifndef HR_DEVICE_DEVICE_H
#define HR_DEVICE_DEVICE_H

#include "core/base/assert.h"
#include "core/base/atomic.h"
#include "core/base/lock.h"
#include "core/base/shared.h"
#include "core/device/epochs.h"
#include "headroom_backend.h"

typedef uint32_t hr__page_id; /* a page of a pool: an index into its table of hr_page */

typedef struct hr__device hr__device;

/* ---- registry ---- */

/* The logical device of a handle, opened on first use. On failure returns NULL, sets *why to HR_INVALID_HANDLE, HR_FORKED or the reason why
 * the device cannot be opened, and sets the message. Cheap: acquires no lock once the device is open. Until then it may acquire the
 * registry's lock, so the caller must hold no lock; the same goes for hr__device_named and hr__device_gpu. */
HR__SHARED hr__device *hr__device_of(hr_device device, hr_status *why);

/* Whether a logical device has been opened. Opens nothing and acquires no lock; false for an invalid handle. */
HR__SHARED bool hr__device_is_open(hr_device device);

/* The logical device named [name] (NULL = default), opened on first use. */
hr_status hr__device_named(const char *name, hr__device **out);

/* The logical GPU with number [gpu_id]; HR_NO_SUCH_DEVICE. */
hr_status hr__device_gpu(int gpu_id, hr__device **out);

/* Pinned host memory for copies to and from the physical device of [of], as a device of its own: no pages, the streams and epoch of
 * the physical device, and a pool whose memory comes from the backend's host_alloc and host_free. An allocator on it reuses blocks
 * in stream order like one on the card. hr__device_handle returns the handle for hr_allocator_create; switch thread_cache off
 * there, because small blocks would get slabs of their own. Its name is "GPU:0 host memory"; it is in no list, and no name lookup
 * finds it.
 *
 * There is one for each physical device. The first call creates it, and hr__devices_shutdown destroys it. All logical devices of a
 * card share it, and it is named after the first of them. [limit] is its host_limit in bytes; 0 keeps the current limit, which is
 * initially half of the host's memory. A different limit is accepted while nothing is reserved from it and refused with HR_IN_USE
 * otherwise; an allocator that is already open keeps its own limit. Acquires the registry's lock, like hr__device_of.
 *
 * HR_BAD_LIMIT   below one host page, or above the host's memory (not checked on the simulated device)
 * HR_FORKED, HR_IO (the size of the host's memory is unknown): nothing was created or changed */
HR__SHARED hr_status hr__device_pinned(hr__device *of, uint64_t limit, hr__device **out);

/* Closes all devices and discards all settings. No allocator may be open. */
void hr__devices_shutdown(void);

/* In the child after a fork: discards all state without touching what is shared with the parent (no unmapping, no joining of
 * threads). */
void hr__devices_forget(void);

/* True in the child from fork until hr_shutdown. */
HR__SHARED extern bool hr__forked;

/* ---- facts ---- */

HR__SHARED hr_device hr__device_handle(const hr__device *device);
HR__SHARED const char *hr__device_name(const hr__device *device);         /* "GPU:0" */
uint64_t hr__device_page_bytes(const hr__device *device);      /* 0 = no pages */
uint64_t hr__device_map_alignment(const hr__device *device);
uint64_t hr__device_limit(const hr__device *device);           /* in bytes: the configured limit, at most HEADROOM_LIMIT */
const char *hr__device_limit_setting(const hr__device *device); /* the setting that determines the limit, for messages */
bool hr__device_is_limited(const hr__device *device);          /* the limit is below the memory of the physical device */
uint64_t hr__device_uncapped(const hr__device *device);        /* the limit without HEADROOM_LIMIT */
/* The settings of the environment, or the defaults where they are invalid: core/base/text/settings.h keeps the reason. */
void hr__options_devices_from_environment(hr_cuda_options *cuda, hr_emulated_options *emulated);
uint64_t hr__options_limit_from_environment(uint64_t page);            /* HEADROOM_LIMIT, whole pages if [page] != 0; UINT64_MAX = none */
HR__SHARED bool hr__cuda_is_required(void);                               /* HEADROOM_REQUIRE_CUDA is set: do not substitute emulated GPUs */
uint64_t hr__device_reservable(const hr__device *device);      /* limit rounded down to whole pages */
bool hr__device_has_plain(const hr__device *device);
HR__SHARED bool hr__device_host_accessible(const hr__device *device);
/* "GPU:0" for the pinned host memory of GPU:0; NULL for an ordinary device. */
const char *hr__device_pinned_for(const hr__device *device);
/* On a device without pages: the preferred minimum size of a region; smaller only where the limit leaves less. 0 = any size. */
uint64_t hr__device_region_min(const hr__device *device);
#define HR__PINNED_SLAB (UINT64_C(64) << 20)
/* Index of the logical device, 0 <= index < HR__MAX_DEVICES, stable for its life, for per-device tables of upper layers. */
HR__SHARED uint32_t hr__device_index(const hr__device *device);
#define HR__MAX_DEVICES 128u /* half of them pinned host memory */

/* ---- the page pool ---- */

uint64_t hr__page_pool_reserved(const hr__device *device);
uint64_t hr__page_pool_available(const hr__device *device); /* bytes that can still be reserved within the limit */

/* Bytes that the card could still provide, regardless of limits: its free memory, and pages that its logical devices keep for
 * reuse. UINT64_MAX when unknown. */
uint64_t hr__device_obtainable(const hr__device *device);

/* Takes [count] pages, recycled ones first. All or none. HR_OUT_OF_MEMORY (limit reached, or device full; the message says which),
 * HR_DEVICE_ERROR, HR_NO_HOST_MEMORY. */
hr_status hr__page_pool_take(hr__device *device, uint32_t count, hr__page_id *pages);
/* Gives back pages, which must be unmapped and idle. Cannot fail. */
void hr__page_pool_give(hr__device *device, const hr__page_id *pages, uint32_t count);
/* Destroys the unused pages, which frees their memory for other processes. Returns bytes destroyed. */
uint64_t hr__page_pool_shrink(hr__device *device);
/* Bytes of host memory used by the pool's tables. */
uint64_t hr__page_pool_metadata(const hr__device *device);

/* Memory that is not in pages, under the same limit. */
hr_status hr__page_pool_plain_alloc(hr__device *device, uint64_t bytes, uint64_t *address);
hr_status hr__page_pool_plain_free(hr__device *device, uint64_t address, uint64_t bytes);

/* ---- addresses ---- */

hr_status hr__device_reserve(hr__device *device, uint64_t bytes, uint64_t *address);
hr_status hr__device_release(hr__device *device, uint64_t address, uint64_t bytes);
/* All or none. */
hr_status hr__device_map(hr__device *device, uint64_t address, const hr__page_id *pages, uint32_t count);
/* The range must be idle (hr__device_wait_idle). */
hr_status hr__device_unmap(hr__device *device, uint64_t address, uint32_t count);

/* ---- pages of host memory, mapped at device addresses. They have the size of device pages, and count against the limit of the
 * pinned host memory (hr__device_pinned, which must have been called). ---- */

/* HR_OK when such pages are supported; otherwise HR_UNSUPPORTED or another reason. Creates a page and destroys it. */
hr_status hr__host_pages_check(hr__device *device);
/* All or none. HR_OUT_OF_MEMORY names host_limit. */
hr_status hr__host_pages_take(hr__device *device, uint32_t count, hr_page *pages);
/* The pages must be unmapped and idle. Cannot fail: a page that the device fails to destroy is leaked. */
void hr__host_pages_give(hr__device *device, const hr_page *pages, uint32_t count);
/* All or none, like hr__device_map. Unmap with hr__device_unmap. */
hr_status hr__device_map_host(hr__device *device, uint64_t address, const hr_page *pages, uint32_t count);

/* ---- streams ---- */

/* The bit of a stream in a set of streams. The host has none: nothing waits for it. */
static inline uint64_t hr__stream_bit(hr_stream stream)
{
	if (HR_LIKELY(stream == HR_STREAM_DEFAULT)) return 1;
	return stream < HR_STREAM_MAX ? UINT64_C(1) << stream : 0;
}

/* True for the default stream and the host, which exist on every device. */
static inline bool hr__stream_is_everywhere(hr_stream stream)
{
	return (stream & ~HR_STREAM_HOST) == 0;
}

/* True when [stream] exists on the device, or is the host. One load. */
bool hr__device_has_stream(const hr__device *device, hr_stream stream);

/* The stream state that allocations and frees read, valid while the device is open. */
typedef struct hr__stream_state {
	hr__atomic_u64 epoch; /* to store with a free; starts at 1, so that synced = 0 covers nothing */
	hr__atomic_u64 used;  /* bit s: stream s may have been given work since the device was opened; otherwise it is idle */
} hr__stream_state;
const hr__stream_state *hr__device_stream_state(const hr__device *device);
uint64_t hr__device_epoch(const hr__device *device); /* hr__device_stream_state(device)->epoch */

/* Makes work given to [stream] from now on wait for the work that the streams in [mask] were given up to [epoch]; adds the number
 * of waits made to *waits. Does not block, unless [stream] is HR_STREAM_HOST: then the caller waits, so it must hold no lock. */
hr_status hr__device_order(hr__device *device, hr_stream stream, uint64_t mask, uint64_t epoch, int64_t *waits);

/* Blocks until the streams in [mask] have finished the work that they were given up to [epoch]. */
hr_status hr__device_wait_idle(hr__device *device, uint64_t mask, uint64_t epoch);

/* The same two calls for memory that copy streams have used (epochs.h). */
hr_status hr__device_order_epochs(hr__device *device, hr_stream stream, uint64_t mask, hr__epochs epochs, int64_t *waits);
hr_status hr__device_wait_idle_epochs(hr__device *device, uint64_t mask, hr__epochs epochs);

/* hr_stream_create for a stream whose queue of copies is long, with one of the slots HR__COPY_STREAMS if one is free. */
hr_status hr__device_copy_stream(hr__device *device, hr_stream *out);

/* Marks the work that [stream] was given so far; *epoch (may be NULL) is set to the mark's number. hr__device_order and
 * hr__device_wait_idle for a smaller epoch then wait for the mark, not for work given after it. So the next user of memory that is
 * evicted over a slow link waits for that copy, not for all copies queued behind it. The last HR__MARKS marks of each stream are
 * kept; an older epoch is covered by the oldest of these that covers it. 0.3 us on a GPU. Does not block. */
#define HR__MARKS 4096u
hr_status hr__device_mark(hr__device *device, hr_stream stream, uint64_t *epoch);
/* The same, and hr__device_mark_time can be asked about the mark. On a GPU it takes 1.3 us of the host, and 6 us of the stream, so it is for
 * streams that only copy and for the few steps in which ops are timed. */
hr_status hr__device_mark_timed(hr__device *device, hr_stream stream, uint64_t *epoch);

/* Whether [stream] is known to have finished the work that it was given up to [epoch]. Does not block. */
bool hr__device_has_finished(hr__device *device, hr_stream stream, uint64_t epoch);

/* Completion time of the work before mark [epoch] of [stream], in ns on a clock of the device with an arbitrary zero, comparable
 * only between marks. HR_NOT_READY while the work is unfinished; HR_INVALID_HANDLE when the mark is unknown, no longer kept, or not timed;
 * HR_UNSUPPORTED on devices without event times. About 3 us on a GPU. Does not block. */
hr_status hr__device_mark_time(hr__device *device, hr_stream stream, uint64_t epoch, uint64_t *ns);

/* Keeps [stream] busy for [ns] of device time, to imitate a computing op. No effect where the backend lacks the entry: a GPU does
 * real work. */
hr_status hr__device_compute(hr__device *device, hr_stream stream, uint64_t ns);

/* Calls a host function in stream order. The function must not call the library. HR_UNSUPPORTED. */
HR__SHARED hr_status hr__device_host_call(hr__device *device, hr_stream stream, void (*run)(void *argument), void *argument);

/* The device's clock; virtual time on the simulated device. */
uint64_t hr__device_clock_ns(hr__device *device);

/* ---- backends of the project ---- */

extern const hr_backend hr__backend_simulated, hr__backend_emulated, hr__backend_cpu, hr__backend_cuda;

#endif
