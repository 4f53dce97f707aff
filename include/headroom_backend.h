/* headroom_backend.h - the table that a new kind of device fills in.
 *
 * A backend is a const struct of functions. Everything above it (page pool, allocators, statistics, Large Model Support) works on
 * any device with such a table. The interface follows the costs of CUDA:
 *
 *   - Mapping costs about 50 us per page (a physical handle), whatever its size. So pages are created once and recycled, and map
 *     takes a run of pages in one call.
 *   - Unmapping does not wait for work on the device. The caller first makes sure that the range is idle (events on every stream
 *     that used it); a backend need not check.
 *   - A mapping has no offset into its page and cannot be split: a page is mapped whole, at a multiple of the page size.
 *
 * Every function returns hr_status and writes through out-parameters only on success. A backend sets the message of its errors with
 * hr_backend_set_error(). Functions are called from any thread, several at a time, unless stated otherwise.
 *
 * Optional entries may be NULL; their comments say what happens then. */
#ifndef HEADROOM_BACKEND_H
#define HEADROOM_BACKEND_H

#include "headroom.h"

#ifdef __cplusplus
extern "C" {
#endif

#define HR_BACKEND_VERSION 1u

typedef struct hr_backend_caps {
	char description[96];  /* human-readable: the name of the card */
	uint64_t total_bytes;  /* memory of the device */
	uint64_t page_bytes;   /* a power of two; 0 = the device has no pages */
	uint64_t map_alignment; /* of reserved addresses; at least page_bytes */
	bool host_accessible;  /* host code may read and write device addresses while streams are idle */
	bool closed_streams;   /* streams receive work only through this table, so a stream that was given none is known to be idle.
	                        * False if the program can queue work by other means, as on a GPU */
} hr_backend_caps;

/* A physical page, as the device identifies it. */
typedef uint64_t hr_page;

/* A stream and an event, as the device identifies them. Stream 0 is the device's default stream. */
typedef uint64_t hr_native_stream;
typedef uint64_t hr_native_event;

typedef struct hr_backend {
	uint32_t version;     /* HR_BACKEND_VERSION */
	uint32_t struct_size; /* sizeof(hr_backend) as compiled; entries beyond it are treated as NULL. Entries that the library does
	                       * not know must be NULL: HR_INVALID_ARGUMENT */
	const char *name;     /* "cuda": static text, at most 15 bytes */
	const char *type;     /* device type in names: "GPU", "CPU", "SIM"; static text */

	/* The number of devices of this kind. [config], here and in open, is the argument of hr_backend_register. */
	hr_status (*count)(void *config, uint32_t *out);

	/* Opens device [index]. *device is passed to all functions below. */
	hr_status (*open)(void *config, uint32_t index, void **device, hr_backend_caps *caps);
	void (*close)(void *device);

	/* Free memory at this moment, and total memory. Memory held by other processes is not free. */
	hr_status (*memory_info)(void *device, uint64_t *free_bytes, uint64_t *total_bytes);

	/* ---- pages. All six or none. With none, plain_alloc and plain_free are required and caps.page_bytes is 0. ---- */

	/* Reserves address space without memory behind it, at a multiple of caps.map_alignment. [bytes] is a multiple of the page
	 * size. */
	hr_status (*reserve)(void *device, uint64_t bytes, uint64_t *address);
	hr_status (*release)(void *device, uint64_t address, uint64_t bytes);

	/* Creates one page of physical memory. HR_OUT_OF_MEMORY when the device has none left. */
	hr_status (*page_create)(void *device, hr_page *page);
	hr_status (*page_destroy)(void *device, hr_page page);

	/* Maps [count] pages side by side at [address], readable and writable. All or none. */
	hr_status (*map)(void *device, uint64_t address, const hr_page *pages, uint32_t count);

	/* Unmaps [count] pages from [address] on. The pages continue to exist. The range is idle. */
	hr_status (*unmap)(void *device, uint64_t address, uint32_t count);

	/* ---- plain allocation. Optional on devices with pages: without it, direct allocators map pages of their own. ---- */

	hr_status (*plain_alloc)(void *device, uint64_t bytes, uint64_t *address);
	hr_status (*plain_free)(void *device, uint64_t address, uint64_t bytes);

	/* ---- streams and events. Optional, all or none: without them only the default stream exists, and work is done when a call
	 * returns. ---- */

	hr_status (*stream_create)(void *device, hr_native_stream *stream);
	hr_status (*stream_destroy)(void *device, hr_native_stream stream);
	/* Waits for all work queued to the stream so far. */
	hr_status (*stream_synchronize)(void *device, hr_native_stream stream);
	hr_status (*event_create)(void *device, hr_native_event *event);
	hr_status (*event_destroy)(void *device, hr_native_event event);
	/* Marks the work queued to [stream] so far. An event that is recorded again stands for the later moment. */
	hr_status (*event_record)(void *device, hr_native_event event, hr_native_stream stream);
	/* HR_OK when the event has happened, HR_NOT_READY when not. An event that was never recorded counts as happened. */
	hr_status (*event_query)(void *device, hr_native_event event);
	hr_status (*event_synchronize)(void *device, hr_native_event event);
	/* Work queued to [stream] from now on waits for the event as recorded at this moment. */
	hr_status (*stream_wait_event)(void *device, hr_native_stream stream, hr_native_event event);

	/* ---- work. copy and fill are required. In stream order, asynchronous if the device allows. ---- */

	hr_status (*copy)(void *device, uint64_t to, uint64_t from, uint64_t bytes, hr_copy_kind kind, hr_native_stream stream);
	hr_status (*fill)(void *device, uint64_t address, uint8_t value, uint64_t bytes, hr_native_stream stream);
	/* Runs a host function in stream order. The function must not call Headroom. Optional: without it, calls that need it return
	 * HR_UNSUPPORTED. */
	hr_status (*host_call)(void *device, void (*run)(void *), void *argument, hr_native_stream stream);
	/* Keeps the stream busy for [ns], as a kernel would. Optional: without it, the time is 0. */
	hr_status (*compute)(void *device, uint64_t ns, hr_native_stream stream);

	/* ---- host memory for copies at full speed to and from the device. Optional: without it, plain memory is used. ---- */

	hr_status (*host_alloc)(void *device, uint64_t bytes, void **out);
	hr_status (*host_free)(void *device, void *block, uint64_t bytes);

	/* The device's own clock; virtual time on the simulated device. Optional: without it, the host's monotonic clock is used. */
	hr_status (*clock_ns)(void *device, uint64_t *ns);

	/* When the event happened, as last recorded: ns on a clock that all streams of the device share, with an arbitrary zero.
	 * Times of events along a stream increase, at the device's resolution. HR_NOT_READY while the event has not happened;
	 * HR_INVALID_ARGUMENT if it was never recorded. Does not block. Optional, and only on devices with streams: without it, the
	 * duration of work is not measured. */
	hr_status (*event_time)(void *device, hr_native_event event, uint64_t *ns);

	/* Creates an event for use with event_time, which is called with no other events. For devices on which timed events cost
	 * more: on a GPU, 1.2 us to record instead of 0.23. Optional: without it, event_create is used. */
	hr_status (*timed_event_create)(void *device, hr_native_event *event);

	/* ---- pages of host memory at device addresses. Optional, both or none, and only on devices with pages: without them,
	 * nothing can be mapped at the address of an evicted tensor (HR_SAFETY_HOST_MAPPED). ---- */

	/* Creates one page of pinned host memory, of the same size as those of page_create. map and unmap accept it like those. Work
	 * on the device, including copies with HR_COPY_ON_DEVICE, then accesses host memory at its address. memory_info does not
	 * count it. HR_NO_HOST_MEMORY; HR_UNSUPPORTED: the device cannot do this. */
	hr_status (*host_page_create)(void *device, hr_page *page);
	hr_status (*host_page_destroy)(void *device, hr_page page);

	/* Lets work on [peer], another device of this backend, access memory that is mapped on [device], now and later. Optional: without it,
	 * all devices of the backend can access each other's memory. */
	hr_status (*allow_access)(void *device, void *peer);
} hr_backend;

/* All fields 0, and struct_size as compiled. */
static inline void hr_backend_init(hr_backend *backend)
{
	memset(backend, 0, sizeof *backend);
	backend->struct_size = sizeof *backend;
}

/* Makes all devices of [backend] available. [config] must stay valid until hr_shutdown.
 *
 * HR_IN_USE            a device has been used already
 * HR_INVALID_ARGUMENT  a required entry is missing; the message names it
 * HR_TOO_NEW           the version is above HR_BACKEND_VERSION
 * HR_ALREADY_EXISTS    the name is taken
 * HR_TOO_MANY          8 backends are registered */
HR_API HR_CHECK_RESULT hr_status hr_backend_register(const hr_backend *backend, void *config);

/* For backends: sets the calling thread's last message and returns [status]. */
HR_API hr_status hr_backend_set_error(hr_status status, const char *message);

/* Makes backend calls fail, for tests. Calls to all entries of all devices are counted from now on, starting at 1. Call [nth]
 * fails with [status], and with [forever] all calls after it as well. [nth] 0 switches this off. */
HR_API void hr_backend_fail_nth(uint64_t nth, bool forever, hr_status status);

/* The number of backend calls since the last hr_backend_fail_nth. */
HR_API uint64_t hr_backend_calls(void);

#ifdef __cplusplus
}
#endif

#endif
