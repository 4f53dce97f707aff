/* headroom_backend.h - the table that a new kind of device fills in.
 *
 * A backend is a const struct of functions. Everything above it (page pool, allocators, statistics, Large Model Support) works on any
 * device that fills the table in. It is made with the real costs of CUDA in view:
 *
 *   - Mapping costs per page (a physical handle), about 50 us, whatever its size; so pages are created once and recycled, and map
 *     takes a run of pages in one call.
 *   - Unmapping does not wait for work on the device. The caller proves a range idle first (events on every stream that used it);
 *     a backend need not check.
 *   - A mapping has no offset into its page and cannot be split: a page is mapped whole, at a multiple of the page size.
 *
 * Every function returns hr_status and writes through out-parameters only on success. A backend sets the message of its errors with
 * hr_backend_error(). Functions are called from any thread, several at a time, unless said otherwise.
 *
 * Optional entries may be NULL; each says what happens then. */
#ifndef HEADROOM_BACKEND_H
#define HEADROOM_BACKEND_H

#include "headroom.h"

#ifdef __cplusplus
extern "C" {
#endif

#define HR_BACKEND_VERSION 1u

typedef struct hr_backend_caps {
	char description[96];  /* for people: the name of the card */
	uint64_t total_bytes;  /* memory of the device */
	uint64_t page_bytes;   /* a power of two; 0 = the device has no pages */
	uint64_t map_alignment; /* of reserved addresses; at least page_bytes */
	bool host_accessible;  /* host code may read and write device addresses once streams are idle */
	bool closed_streams;   /* streams get work through this table alone, so one that was given none is known to be idle. False where
	                        * the program can give them work by other means, as on a GPU */
} hr_backend_caps;

/* A physical page: what the device calls it. */
typedef uint64_t hr_page;

/* A stream and an event of the device's own: what the device calls them. 0 is the device's default stream. */
typedef uint64_t hr_native_stream;
typedef uint64_t hr_native_event;

typedef struct hr_backend {
	uint32_t version;     /* HR_BACKEND_VERSION */
	uint32_t struct_size; /* sizeof(hr_backend) as compiled; entries beyond it count as NULL */
	const char *name;     /* "cuda": static text, at most 15 bytes */
	const char *type;     /* device type in names: "GPU", "CPU", "SIM"; static text */

	/* How many devices of this kind there are. [config] is what the backend was registered with, here and in open. */
	hr_status (*count)(void *config, uint32_t *out);

	/* Opens device [index]; *device is passed to all the others. */
	hr_status (*open)(void *config, uint32_t index, void **device, hr_backend_caps *caps);
	void (*close)(void *device);

	/* Free memory right now, and total; what other processes hold is not free. */
	hr_status (*memory_info)(void *device, uint64_t *free_bytes, uint64_t *total_bytes);

	/* ---- pages. All six or none; with none, plain_alloc and plain_free must be there and caps.page_bytes is 0. ---- */

	/* Address space without memory behind it, at a multiple of caps.map_alignment. [bytes] is a multiple of the page size. */
	hr_status (*reserve)(void *device, uint64_t bytes, uint64_t *address);
	hr_status (*release)(void *device, uint64_t address, uint64_t bytes);

	/* One page of physical memory. HR_OUT_OF_MEMORY when the device has none left. */
	hr_status (*page_create)(void *device, hr_page *page);
	hr_status (*page_destroy)(void *device, hr_page page);

	/* Puts [count] pages side by side at [address], readable and writable. All of them or none. */
	hr_status (*map)(void *device, uint64_t address, const hr_page *pages, uint32_t count);

	/* Takes what was mapped from [address] on, [count] pages, out again; the pages stay. The range is idle. */
	hr_status (*unmap)(void *device, uint64_t address, uint32_t count);

	/* ---- plain allocation. Optional where there are pages: direct allocators then map pages of their own. ---- */

	hr_status (*plain_alloc)(void *device, uint64_t bytes, uint64_t *address);
	hr_status (*plain_free)(void *device, uint64_t address, uint64_t bytes);

	/* ---- streams and events. Optional, all or none: without them there is only the default stream, and work is done when a call
	 * returns. ---- */

	hr_status (*stream_create)(void *device, hr_native_stream *stream);
	hr_status (*stream_destroy)(void *device, hr_native_stream stream);
	/* Waits for all work given to the stream so far. */
	hr_status (*stream_synchronize)(void *device, hr_native_stream stream);
	hr_status (*event_create)(void *device, hr_native_event *event);
	hr_status (*event_destroy)(void *device, hr_native_event event);
	/* Marks the work given to [stream] so far. An event may be recorded again; it then means the later moment. */
	hr_status (*event_record)(void *device, hr_native_event event, hr_native_stream stream);
	/* HR_OK when done, HR_NOT_READY when not. An event never recorded is done. */
	hr_status (*event_query)(void *device, hr_native_event event);
	hr_status (*event_synchronize)(void *device, hr_native_event event);
	/* Work given to [stream] from now on waits for the event as recorded now. */
	hr_status (*stream_wait_event)(void *device, hr_native_stream stream, hr_native_event event);

	/* ---- work. Required. In stream order, asynchronous where the device can. ---- */

	hr_status (*copy)(void *device, uint64_t to, uint64_t from, uint64_t bytes, hr_copy_kind kind, hr_native_stream stream);
	hr_status (*fill)(void *device, uint64_t address, uint8_t value, uint64_t bytes, hr_native_stream stream);
	/* Runs a host function in stream order. Optional: hr code that needs it says HR_UNSUPPORTED. It must not call Headroom. */
	hr_status (*host_call)(void *device, void (*run)(void *), void *argument, hr_native_stream stream);
	/* Keeps the stream busy for [ns], as a kernel would. Optional: takes no time. */
	hr_status (*compute)(void *device, uint64_t ns, hr_native_stream stream);

	/* ---- host memory that copies to and from the device run at full speed with. Optional: plain memory is used. ---- */

	hr_status (*host_alloc)(void *device, uint64_t bytes, void **out);
	hr_status (*host_free)(void *device, void *block, uint64_t bytes);

	/* The device's own clock. Optional: the host's monotonic clock. On the simulated device this is virtual time. */
	hr_status (*clock_ns)(void *device, uint64_t *ns);

	/* When the event, as it was last recorded, happened: ns on a clock that all streams of the device share, and whose zero is
	 * arbitrary. Times of events along a stream grow, as finely as the device can tell. HR_NOT_READY while it has not happened;
	 * HR_INVALID_ARGUMENT for one never recorded. Does not block. Optional, and only where there are streams: nobody then learns how
	 * long work took. */
	hr_status (*event_time)(void *device, hr_native_event event, uint64_t *ns);

	/* An event as event_create makes it, that event_time is going to be asked about; it asks about no others. Optional: event_create
	 * is used. For devices on which events that keep the time cost more: on a GPU, 1.2 us to record instead of 0.23. */
	hr_status (*timed_event_create)(void *device, hr_native_event *event);

	/* ---- pages of the host's memory, for addresses of the device. Optional, and only where there are pages, both or none: without
	 * them nothing can be under the address of a tensor that is out (HR_SAFETY_HOST_MAPPED). ---- */

	/* One page of pinned host memory, as large as those of page_create; map and unmap take it like them, and work on the device, copies
	 * with HR_COPY_ON_DEVICE too, reads and writes the host's memory there. memory_info does not count it. HR_NO_HOST_MEMORY;
	 * HR_UNSUPPORTED: this device cannot. */
	hr_status (*host_page_create)(void *device, hr_page *page);
	hr_status (*host_page_destroy)(void *device, hr_page page);
} hr_backend;

/* Makes all the devices of [backend] available. [config] must live until hr_shutdown. Before first use of any device; HR_IN_USE
 * afterwards. HR_INVALID_ARGUMENT with the name of the entry when a required one is missing, HR_TOO_NEW for a version above
 * HR_BACKEND_VERSION, HR_ALREADY_EXISTS for a name that is taken, HR_TOO_MANY after 8. */
HR_API hr_status hr_register_backend(const hr_backend *backend, void *config);

/* For backends: sets the calling thread's last message and returns [status]. */
HR_API hr_status hr_backend_error(hr_status status, const char *message);

/* Wraps every entry of a device's table with a counter, so that a test can make a call fail. Call [nth] counts from 1 over all
 * entries of all devices from now on; it fails with [status], and so do all after it if [forever]. nth 0 switches it off. */
HR_API void hr_backend_fail_nth(uint64_t nth, bool forever, hr_status status);

/* Backend calls made since the last hr_backend_fail_nth. */
HR_API uint64_t hr_backend_calls(void);

#ifdef __cplusplus
}
#endif

#endif
