/* internal.h - what the files of src/device share: the structures behind device.h, and the calls into a backend.
 *
 *   source (a backend as registered, with its config)
 *     physical (one card: opened on first use; caps, streams)
 *       hr__device (a logical device: a name, a limit, a page pool)
 *       hr__device (at most one more: pinned host memory, see pinned.c)
 *
 * Sources, physical and logical devices are records in static arrays of the registry (registry.c), so that looking at a stale
 * handle touches memory that is always there. What a device needs once it is open is allocated then.
 *
 * Locks: the registry's (HR__RANK_REGISTRY) guards all records until they are published; a pool's lock and a physical device's
 * stream lock both have HR__RANK_PAGE_POOL, because no thread ever holds two of them; a backend's own have HR__RANK_DEVICE. */
#ifndef HR_DEVICE_INTERNAL_H
#define HR_DEVICE_INTERNAL_H

#include "device/device.h"
#include "device/name.h"
#include "os/os.h"

#define HR__MAX_LISTED (HR__MAX_DEVICES / 2) /* devices that lists show; as many are left for the pinned memory of each */
#define HR__MAX_PARTS 16u                    /* logical devices of one physical one */
#define HR__MAX_USER_BACKENDS 8u             /* that hr_register_backend takes */
#define HR__MAX_SOURCES (HR__MAX_USER_BACKENDS + 4u)
#define HR__POOL_BLOCKS 22u /* blocks of a page table: 1,024 ids in the first, twice as many in each next one; below 2^32 in all */
#define HR__NO_PAGE UINT32_MAX /* ends a chain of page ids */

/* ---- the page pool (pool.c) ---- */

typedef struct hr__pool_block {
	hr_page *pages; /* what the device calls the page of each id */
	uint32_t *next; /* next id in the chain that the id is in; under the lock */
	size_t bytes;   /* of the one block of host memory that holds both */
} hr__pool_block;

/* Each field below the lock is guarded by it; atomics are written under it and read by anybody. */
typedef struct hr__pool {
	uint64_t page_bytes;       /* 0 = no pages; immutable */
	hr__atomic_u64 reservable; /* the limit, in whole pages where there are pages; changed only while nothing is held */
	hr__lock lock;
	hr__atomic_u64 reserved; /* bytes that somebody has */
	uint64_t held;           /* bytes that exist on the device: reserved, idle, or being destroyed */
	uint32_t idle_head;      /* chain of ids whose page exists and is nobody's */
	uint32_t idle_count;
	uint32_t dead_head;  /* chain of ids whose page was destroyed */
	uint32_t made;       /* ids in use or in a chain: all below this */
	uint32_t destroying; /* pages that are being destroyed outside the lock */
	uint32_t block_count;
	hr__atomic_u64 metadata; /* bytes of the blocks */
	/* A block never moves or goes while the pool lives, so that who has a page reads its entry without the lock. */
	hr__pool_block blocks[HR__POOL_BLOCKS];
} hr__pool;

void hr__pool_init(hr__pool *pool, uint64_t page_bytes, uint64_t limit);
void hr__pool_destroy(hr__device *device);                    /* destroys the idle pages and frees the tables */
bool hr__pool_set_reservable(hr__pool *pool, uint64_t bytes); /* false, and nothing changed, while anything is held */
hr_page hr__pool_page(const hr__pool *pool, hr__page_id id);

/* ---- devices ---- */

typedef struct hr__physical hr__physical;
typedef struct hr__streams hr__streams; /* stream.c */

struct hr__physical {
	hr__atomic_u64 stream_mask; /* bit s: stream s exists. This and the next are what the hot paths read */
	hr__stream_view view;       /* see device.h */
	hr__atomic_u8 open;         /* set, with release, when all below is there */
	const hr_backend *table;    /* complete: entries that the backend was compiled without are NULL */
	void *config;
	void *native;
	hr_backend_caps caps;
	hr__lock stream_lock; /* HR__RANK_PAGE_POOL */
	hr__streams *streams; /* slots, what is known done, marks, events to use again */
	uint32_t index;       /* among the devices of its backend */
	uint32_t number;      /* among the physical devices of its type */
	uint32_t part_count;  /* logical devices, once they are made */
	hr__device *parts[HR__MAX_PARTS];
	hr__device *pinned;   /* its pinned host memory; NULL = nobody has asked for it */
	uint32_t split_count; /* how hr_set_logical_devices wants it divided; 0 = one with no limit of its own */
	uint64_t split[HR__MAX_PARTS];
};

struct hr__device {
	hr__atomic_u32 handle;  /* the handle that is valid for it; 0 = this record is not in use */
	hr__atomic_u8 ready;    /* its physical device is open and its pool set up; stored with release */
	uint32_t index;         /* of this record */
	uint32_t number;        /* the 0 of GPU:0 */
	uint64_t limit_setting; /* 0 = all there is */
	hr__atomic_u64 limit;   /* bytes; known once the physical device is open */
	uint64_t uncapped;      /* what limit would be without HEADROOM_LIMIT */
	hr__physical *physical;
	const hr__device *pinned_for; /* NULL = an ordinary device; else this is host memory, named after that one */
	char name[32];
	hr__pool pool;
};

/* Opens a physical device; HR_OK at once when it is open. Under the registry's lock. */
hr_status hr__physical_open(hr__physical *physical);
void hr__physical_close(hr__physical *physical);

/* ---- pinned host memory (pinned.c) ---- */

/* Fills in a record, all but its index and handle. Nothing is to undo when it fails. Under the registry's lock, like the next. */
hr_status hr__pinned_open(hr__device *pinned, hr__physical *physical, uint64_t limit);
hr_status hr__pinned_set_limit(hr__device *pinned, uint64_t limit);
bool hr__pinned_is_real(const hr__physical *physical); /* there is memory behind its addresses */
hr_status hr__pinned_memory_info(uint64_t *free_bytes, uint64_t *total_bytes);
/* HR_OUT_OF_MEMORY when the host has no more, or does not let more be pinned. */
hr_status hr__pinned_alloc(hr__device *pinned, uint64_t bytes, uint64_t *address);
hr_status hr__pinned_free(hr__device *pinned, uint64_t address, uint64_t bytes);

/* ---- streams (stream.c) ---- */

hr_status hr__streams_open(hr__physical *physical);
void hr__streams_close(hr__physical *physical); /* waits for all streams, destroys them and the events */

/* What the device itself calls [stream]; HR_INVALID_ARGUMENT when there is no such stream. */
hr_status hr__stream_native(const hr__device *device, hr_stream stream, hr_native_stream *out);

/* ---- options (options.c) ---- */

/* Reads [text] on top of what is in *options; HR_INVALID_ARGUMENT, then *options is as it was. */
hr_status hr__parse_emulated(const char *text, hr_emulated_options *options);
hr_status hr__check_emulated(const hr_emulated_options *options);
hr_status hr__check_cuda(const hr_cuda_options *options);
hr_status hr__check_simulated(const hr_simulated_options *options);
void hr__emulated_defaults(hr_emulated_options *options);

/* Whether a backend has what it must have; *complete gets a copy in which entries beyond its struct_size are NULL (backend.c). */
hr_status hr__check_backend(const hr_backend *backend, hr_backend *complete);

/* Puts settings in force; HR_IN_USE when devices of that kind are in use (registry.c). */
hr_status hr__registry_set_cuda(const hr_cuda_options *options);
hr_status hr__registry_set_emulated(const hr_emulated_options *options);
hr_status hr__registry_set_simulated(const hr_simulated_options *options);

/* Why the last count found no CUDA device, for people; "" when it found one. Under the registry's lock (cuda.c). */
const char *hr__cuda_why(void);
/* Whether there is a driver, wanted, that nevertheless shows no device. */
bool hr__cuda_is_broken(void);

/* ---- calls into the backend (calls.c): the one place where calls are counted and made to fail, and where an entry that is not
 * there gets its documented substitute. ---- */

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
