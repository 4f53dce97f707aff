/* internal.h - shared by the files of src/core/device: the structures behind device.h, and the calls into a backend.
 *
 *   source (a registered backend with its config)
 *     physical (one card: opened on first use; caps, streams)
 *       hr__device (a logical device: a name, a limit, a page pool)
 *       hr__device (at most one more: pinned host memory, see pinned.c)
 *
 * Sources, physical and logical devices are records in static arrays of the registry (registry.c), so that looking up a stale
 * handle never touches freed memory. The rest of a device's state is allocated when it is opened.
 *
 * Locks: the registry's lock (HR__RANK_REGISTRY) guards all records until they are published. A pool's lock and a physical device's
 * stream lock both have HR__RANK_PAGE_POOL, because no thread ever holds two of them. A backend's own locks have
 * HR__RANK_DEVICE. */
#ifndef HR_DEVICE_INTERNAL_H
#define HR_DEVICE_INTERNAL_H

#include "core/device/device.h"
#include "core/device/device_spec.h"
#include "core/os/os.h"

#define HR__MAX_LISTED (HR__MAX_DEVICES / 2) /* devices that lists show; the other half is for the pinned memory of each */
#define HR__MAX_PARTS 16u                    /* logical devices of one physical device */
#define HR__MAX_USER_BACKENDS 8u             /* accepted by hr_backend_register */
#define HR__MAX_SOURCES (HR__MAX_USER_BACKENDS + 4u)
#define HR__POOL_BLOCKS 22u /* blocks of a page table: 1,024 ids in the first, doubling from block to block; below 2^32 in total */
#define HR__NO_PAGE UINT32_MAX /* ends a list of page ids */

/* ---- the page pool (page_pool.c) ---- */

typedef struct hr__pool_block {
	hr_page *pages; /* the backend's page for each id */
	uint32_t *next; /* the next id in the list that the id is in; guarded by the lock */
	size_t bytes;   /* size of the one host allocation that holds both */
} hr__pool_block;

/* Fields below the lock are guarded by it; atomics are written under it and can be read without it. */
typedef struct hr__page_pool {
	uint64_t page_bytes;       /* 0 = no pages; immutable */
	hr__atomic_u64 reservable; /* the limit, in whole pages if there are pages; changes only while nothing is held */
	hr__lock lock;
	hr__atomic_u64 reserved; /* bytes in use */
	uint64_t held;           /* bytes that exist on the device: reserved, idle, or being destroyed */
	uint32_t idle_head;      /* list of ids whose page exists and is unused */
	uint32_t idle_count;
	uint32_t dead_head;  /* list of ids whose page was destroyed */
	uint32_t made;       /* all ids below this are in use or in a list */
	uint32_t destroying; /* pages being destroyed outside the lock */
	uint32_t block_count;
	hr__atomic_u64 metadata; /* bytes of the blocks */
	/* A block is never moved or freed while the pool exists, so that the user of a page reads its entry without the lock. */
	hr__pool_block blocks[HR__POOL_BLOCKS];
} hr__page_pool;

void hr__page_pool_init(hr__page_pool *pool, uint64_t page_bytes, uint64_t limit);
void hr__page_pool_destroy(hr__device *device);                    /* destroys the idle pages and frees the tables */
bool hr__page_pool_set_reservable(hr__page_pool *pool, uint64_t bytes); /* returns false and changes nothing while anything is held */
hr_page hr__page_pool_page(const hr__page_pool *pool, hr__page_id id);

/* ---- devices ---- */

typedef struct hr__physical hr__physical;
typedef struct hr__streams hr__streams; /* stream.c */

struct hr__physical {
	hr__atomic_u64 stream_mask; /* bit s: stream s exists. stream_mask and view are what the hot paths read */
	hr__stream_state view;       /* see device.h */
	hr__atomic_u8 open;         /* stored with release when all fields below are set */
	const hr_backend *table;    /* complete: entries beyond the backend's struct_size are NULL */
	void *config;
	void *native;
	hr_backend_caps caps;
	hr__lock stream_lock; /* HR__RANK_PAGE_POOL */
	hr__streams *streams; /* slots, known completed epochs, marks, recycled events */
	uint32_t index;       /* among the devices of its backend */
	uint32_t number;      /* among the physical devices of its type */
	uint32_t part_count;  /* logical devices, once they are created */
	hr__device *parts[HR__MAX_PARTS];
	hr__device *pinned;   /* its pinned host memory; NULL = not created yet */
	uint32_t split_count; /* parts configured by hr_device_set_logical; 0 = one, without a limit of its own */
	uint64_t split[HR__MAX_PARTS];
};

struct hr__device {
	hr__atomic_u32 handle;  /* the valid handle of this record; 0 = the record is unused */
	hr__atomic_u8 ready;    /* the physical device is open and the pool is set up; stored with release */
	uint32_t index;         /* of this record */
	uint32_t number;        /* the 0 of GPU:0 */
	uint64_t limit_setting; /* 0 = all memory */
	hr__atomic_u64 limit;   /* bytes; known once the physical device is open */
	uint64_t uncapped;      /* the limit without HEADROOM_LIMIT */
	hr__physical *physical;
	const hr__device *pinned_for; /* NULL = an ordinary device; otherwise this is pinned host memory, named after that device */
	char name[32];
	hr__page_pool pool;
};

/* Opens a physical device; returns HR_OK at once when it is open. Under the registry's lock. */
hr_status hr__physical_open(hr__physical *physical);
void hr__physical_close(hr__physical *physical);

/* ---- pinned host memory (pinned.c) ---- */

/* Fills in a record, except for its index and handle. A failure leaves nothing to undo. This and hr__pinned_set_limit are called
 * under the registry's lock. */
hr_status hr__pinned_open(hr__device *pinned, hr__physical *physical, uint64_t limit);
hr_status hr__pinned_set_limit(hr__device *pinned, uint64_t limit);
bool hr__pinned_is_real(const hr__physical *physical); /* its addresses are backed by memory */
hr_status hr__pinned_memory_info(uint64_t *free_bytes, uint64_t *total_bytes);
/* HR_OUT_OF_MEMORY when the host has no more memory, or refuses to pin more. */
hr_status hr__pinned_alloc(hr__device *pinned, uint64_t bytes, uint64_t *address);
hr_status hr__pinned_free(hr__device *pinned, uint64_t address, uint64_t bytes);

/* ---- streams (stream.c) ---- */

hr_status hr__streams_open(hr__physical *physical);
void hr__streams_close(hr__physical *physical); /* waits for all streams, destroys them and the events */

/* The backend's stream for [stream]; HR_INVALID_ARGUMENT when there is none. */
hr_status hr__stream_native(const hr__device *device, hr_stream stream, hr_native_stream *out);

/* ---- options (options.c) ---- */

/* Parses [text] over the values in *options. HR_INVALID_ARGUMENT; *options is then unchanged. */
hr_status hr__parse_emulated(const char *text, hr_emulated_options *options);
hr_status hr__options_check_emulated(const hr_emulated_options *options);
hr_status hr__options_check_cuda(const hr_cuda_options *options);
hr_status hr__options_check_simulated(const hr_simulated_options *options);
void hr__emulated_defaults(hr_emulated_options *options);

/* Checks that a backend has all required entries; *complete is set to a copy in which entries beyond its struct_size are NULL
 * (backend_check.c). */
hr_status hr__backend_check(const hr_backend *backend, hr_backend *complete);

/* Apply settings; HR_IN_USE when devices of that kind are in use (registry.c). */
hr_status hr__registry_set_cuda(const hr_cuda_options *options);
hr_status hr__registry_set_emulated(const hr_emulated_options *options);
hr_status hr__registry_set_simulated(const hr_simulated_options *options);

/* A message saying why the last count found no CUDA device; "" when it found one. Under the registry's lock (cuda_load.c). */
const char *hr__cuda_why(void);
/* For hr__device_native (kernels.h), on a CUDA card. */
struct hr__native;
hr_status hr__cuda_native_call(const hr__device *device, hr_native_stream stream, hr_status (*call)(const struct hr__native *native, void *argument),
                               void *argument);
/* Whether CUDA is enabled and a driver exists, but shows no device. */
bool hr__cuda_is_broken(void);

/* ---- calls into the backend (backend_calls.c): the only place where calls are counted and made to fail, and where a missing entry is
 * replaced by its documented substitute. ---- */

hr_status hr__call_count(const hr_backend *table, void *config, uint32_t *out);
hr_status hr__call_open(hr__physical *device);
hr_status hr__call_memory_info(hr__physical *device, uint64_t *free_bytes, uint64_t *total_bytes);
hr_status hr__call_reserve(hr__physical *device, uint64_t bytes, uint64_t *address);
hr_status hr__call_release(hr__physical *device, uint64_t address, uint64_t bytes);
hr_status hr__call_page_create(hr__physical *device, hr_page *page);
hr_status hr__call_page_destroy(hr__physical *device, hr_page page);
hr_status hr__call_map(hr__physical *device, uint64_t address, const hr_page *pages, uint32_t count);
hr_status hr__call_unmap(hr__physical *device, uint64_t address, uint32_t count);
hr_status hr__call_host_page_create(hr__physical *device, hr_page *page);
hr_status hr__call_host_page_destroy(hr__physical *device, hr_page page);
hr_status hr__call_allow_access(hr__physical *device, hr__physical *peer);
hr_status hr__call_plain_alloc(hr__physical *device, uint64_t bytes, uint64_t *address);
hr_status hr__call_plain_free(hr__physical *device, uint64_t address, uint64_t bytes);
hr_status hr__call_stream_create(hr__physical *device, hr_native_stream *stream);
hr_status hr__call_stream_destroy(hr__physical *device, hr_native_stream stream);
hr_status hr__call_stream_synchronize(hr__physical *device, hr_native_stream stream);
hr_status hr__call_event_create(hr__physical *device, hr_native_event *event);
hr_status hr__call_event_destroy(hr__physical *device, hr_native_event event);
hr_status hr__call_event_record(hr__physical *device, hr_native_event event, hr_native_stream stream);
hr_status hr__call_event_query(hr__physical *device, hr_native_event event);
hr_status hr__call_event_synchronize(hr__physical *device, hr_native_event event);
hr_status hr__call_stream_wait_event(hr__physical *device, hr_native_stream stream, hr_native_event event);
hr_status hr__call_timed_event_create(hr__physical *device, hr_native_event *event);
hr_status hr__call_event_time(hr__physical *device, hr_native_event event, uint64_t *ns);
hr_status hr__call_copy(hr__physical *device, uint64_t to, uint64_t from, uint64_t bytes, hr_copy_kind kind,
                        hr_native_stream stream);
hr_status hr__call_fill(hr__physical *device, uint64_t address, uint8_t value, uint64_t bytes, hr_native_stream stream);
hr_status hr__call_host_call(hr__physical *device, void (*run)(void *), void *argument, hr_native_stream stream);
hr_status hr__call_compute(hr__physical *device, uint64_t ns, hr_native_stream stream);
hr_status hr__call_host_alloc(hr__physical *device, uint64_t bytes, void **out);
hr_status hr__call_host_free(hr__physical *device, void *block, uint64_t bytes);
hr_status hr__call_clock_ns(hr__physical *device, uint64_t *ns);

static inline bool hr__has_streams(const hr__physical *device)
{
	return device->table->stream_create != NULL;
}

#endif
