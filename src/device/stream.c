/* stream.c - streams of a physical device, who has waited for whom, and work given to a stream.
 *
 * A stream is a slot, 0 to 63; bit s of stream_mask says that slot s is taken, and reading it is all that a check costs. Slot 0 is
 * the default stream. A device without streams has slot 0 alone, and all work on it is done when a call returns.
 *
 * Why the epoch is raised BEFORE the event is recorded
 *
 * Somebody frees a block: work on stream S was submitted, then the epoch was read as e. Somebody else makes T wait for S: raises
 * the epoch to n, then records an event on S. The claim is that e < n means that the event covers the work. Suppose it does not:
 * the record came before the work was submitted. Submitting to a stream and recording on it exclude each other (a backend takes a
 * lock for that), so raising (before the record) happens before submitting, which is before reading the epoch; so the reader must
 * see n or more, and e < n is false. The other way round, recorded first and raised afterwards, it breaks: record; another thread
 * submits and reads the old e; raise. That free notes e < n, and the event knows nothing of its work. Neither access needs more
 * than relaxed order: the argument uses only the order of one variable and what the backend's lock orders.
 *
 * Slots are used again
 *
 * Destroying S raises the epoch to n, waits for S, and sets done[S] = n: every free noted before is covered. A block freed later
 * that still has bit S from before is either met by no stream (nothing to wait for) or by a newer one in the slot (waiting for it
 * is more than needed, and harmless). What the old stream of a slot had waited for was over when it was destroyed, so a new one
 * could even inherit it; row T of synced is cleared all the same, so that the table says only what is true. Column T may stay: what
 * others waited for carries epochs no larger than the present one, and the new T's frees note no smaller.
 *
 * Invariants, under the lock:
 *   1  synced[T][S], done[S] <= epoch, and they only grow while T lives
 *   2  bit s of stream_mask is set exactly when native[s] is a stream of the device; bit 0 is always set
 *   3  imported is part of stream_mask
 *   4  events in spare are nobody's: recorded or not, nothing will ask for them again
 *
 * synced and done are atomics so that the usual answer, "covered already", is found without the lock. They are stored with release
 * after the device was told to wait: who sees the value may give T work that relies on it. */
#include <string.h>

#include "base/checked.h"
#include "base/status.h"
#include "device/internal.h"

#define SPARE_EVENTS HR_STREAM_MAX

struct hr__streams {
	hr__atomic_u64 native[HR_STREAM_MAX]; /* what the device calls the stream */
	hr__atomic_u64 done[HR_STREAM_MAX];
	hr__atomic_u64 synced[HR_STREAM_MAX][HR_STREAM_MAX]; /* [who waited][for whom] */
	uint64_t imported;                                   /* streams that the program made itself: never destroyed here */
	uint32_t spare_count;
	hr_native_event spare[SPARE_EVENTS];
};

static inline uint64_t bit(hr_stream stream)
{
	return UINT64_C(1) << stream;
}

static inline hr_stream lowest(uint64_t mask)
{
	return (hr_stream)__builtin_ctzll(mask);
}

static inline bool is_live(const hr__physical *physical, hr_stream stream)
{
	return stream < HR_STREAM_MAX && (hr__load_acquire(&physical->stream_mask) & bit(stream)) != 0;
}

static inline hr_native_stream native_of(const hr__physical *physical, hr_stream stream)
{
	return hr__load_relaxed(&physical->streams->native[stream]);
}

static inline uint64_t raise_epoch(hr__physical *physical)
{
	return hr__fetch_add_relaxed(&physical->epoch, 1) + 1;
}

/* Under the lock, like all writing. */
static inline void raise_to(hr__atomic_u64 *mark, uint64_t epoch)
{
	if (hr__load_relaxed(mark) < epoch) hr__store_release(mark, epoch);
}

static hr_status no_such_stream(const hr__device *device, hr_stream stream)
{
	return hr__fail(HR_INVALID_ARGUMENT, "%s has no stream %u; hr_stream_create makes one", device->name, stream);
}

/* ---- opening and closing ---- */

hr_status hr__streams_open(hr__physical *physical)
{
	void *memory;
	int error = hr__os()->alloc(sizeof(hr__streams), &memory);
	if (error) return hr__os_fail(error, "the streams of a device");
	physical->streams = memory;
	hr__lock_init(&physical->stream_lock, HR__RANK_PAGE_POOL);
	hr__store_relaxed(&physical->epoch, 1);
	hr__store_release(&physical->stream_mask, bit(HR_STREAM_DEFAULT));
	return HR_OK;
}

void hr__streams_close(hr__physical *physical)
{
	hr__streams *streams = physical->streams;
	if (hr__has_streams(physical)) {
		/* Errors of the last work have nobody left to go to. */
		for (uint64_t mask = hr__load_relaxed(&physical->stream_mask); mask; mask &= mask - 1) {
			hr_stream stream = lowest(mask);
			hr__call_stream_synchronize(physical, native_of(physical, stream));
			if (stream != HR_STREAM_DEFAULT && !(streams->imported & bit(stream))) {
				hr__call_stream_destroy(physical, native_of(physical, stream));
			}
		}
		for (uint32_t i = 0; i < streams->spare_count; i++) hr__call_event_destroy(physical, streams->spare[i]);
	}
	hr__store_release(&physical->stream_mask, 0);
	hr__os()->free(streams, sizeof *streams);
	physical->streams = NULL;
}

/* ---- events that are used again ---- */

static hr_status take_event(hr__physical *physical, hr_native_event *out)
{
	hr__streams *streams = physical->streams;
	HR_ASSERT(hr__lock_is_held(&physical->stream_lock));
	if (streams->spare_count == 0) return hr__call_event_create(physical, out);
	*out = streams->spare[--streams->spare_count];
	return HR_OK;
}

static void put_event(hr__physical *physical, hr_native_event event)
{
	hr__streams *streams = physical->streams;
	HR_ASSERT(hr__lock_is_held(&physical->stream_lock));
	if (streams->spare_count < SPARE_EVENTS) streams->spare[streams->spare_count++] = event;
	else hr__call_event_destroy(physical, event);
}

/* Takes an event and records it on [stream]; *epoch gets the number that every free it covers is below. Under the lock. */
static hr_status mark(hr__physical *physical, hr_stream stream, hr_native_event *event, uint64_t *epoch)
{
	hr_status status = take_event(physical, event);
	if (status != HR_OK) return status;
	*epoch = raise_epoch(physical); /* before recording: see the top */
	status = hr__call_event_record(physical, *event, native_of(physical, stream));
	if (status != HR_OK) put_event(physical, *event);
	return status;
}

/* ---- order between streams ---- */

static inline bool covered(const hr__streams *streams, hr_stream who, hr_stream whom, uint64_t epoch)
{
	return hr__load_acquire(&streams->done[whom]) > epoch || hr__load_acquire(&streams->synced[who][whom]) > epoch;
}

/* The streams of [mask] that [who] still has to wait for. */
static uint64_t uncovered(const hr__streams *streams, hr_stream who, uint64_t mask, uint64_t epoch)
{
	uint64_t left = 0;
	for (; mask; mask &= mask - 1) {
		hr_stream whom = lowest(mask);
		if (!covered(streams, who, whom, epoch)) left |= bit(whom);
	}
	return left;
}

/* Makes [who] wait for all that [whom] was given. Under the lock. */
static hr_status wait_for(hr__physical *physical, hr_stream who, hr_stream whom)
{
	hr_native_event event;
	uint64_t epoch;
	hr_status status = mark(physical, whom, &event, &epoch);
	if (status != HR_OK) return status;
	status = hr__call_stream_wait_event(physical, native_of(physical, who), event);
	if (status == HR_OK) raise_to(&physical->streams->synced[who][whom], epoch);
	put_event(physical, event); /* the wait is for the event as it was recorded now; recording it again does not change that */
	return status;
}

bool hr__device_has_stream(const hr__device *device, hr_stream stream)
{
	return is_live(device->physical, stream);
}

const hr__atomic_u64 *hr__device_epoch_at(const hr__device *device)
{
	return &device->physical->epoch;
}

uint64_t hr__device_epoch(const hr__device *device)
{
	return hr__load_relaxed(&device->physical->epoch);
}

hr_status hr__device_order(hr__device *device, hr_stream stream, uint64_t mask, uint64_t epoch, int64_t *waits)
{
	hr__physical *physical = device->physical;
	if (!is_live(physical, stream)) return no_such_stream(device, stream);
	mask = uncovered(physical->streams, stream, mask & ~bit(stream), epoch);
	if (HR_LIKELY(mask == 0) || !hr__has_streams(physical)) return HR_OK;

	hr_status status = HR_OK;
	hr__lock_take(&physical->stream_lock);
	mask &= hr__load_relaxed(&physical->stream_mask); /* a stream that is gone was waited for when it went */
	for (mask = uncovered(physical->streams, stream, mask, epoch); mask && status == HR_OK; mask &= mask - 1) {
		status = wait_for(physical, stream, lowest(mask));
		if (status == HR_OK) ++*waits;
	}
	hr__lock_release(&physical->stream_lock);
	return status;
}

/* Events on all of them first, then the waiting: otherwise each wait would let the next stream's queue grow. A stream for which there
 * is no event is waited for as a whole. Every stream is waited for, whatever happens to the others: who asks is about to take memory
 * away. The first error is returned. */
hr_status hr__device_wait_idle(hr__device *device, uint64_t mask, uint64_t epoch)
{
	hr__physical *physical = device->physical;
	hr__streams *streams = physical->streams;
	hr_native_event events[HR_STREAM_MAX];
	uint64_t epochs[HR_STREAM_MAX], marked = 0, unmarked = 0;
	hr_status status = HR_OK;
	if (!hr__has_streams(physical)) return HR_OK;

	hr__lock_take(&physical->stream_lock);
	for (mask &= hr__load_relaxed(&physical->stream_mask); mask; mask &= mask - 1) {
		hr_stream stream = lowest(mask);
		if (hr__load_relaxed(&streams->done[stream]) > epoch) continue;
		if (mark(physical, stream, &events[stream], &epochs[stream]) == HR_OK) marked |= bit(stream);
		else unmarked |= bit(stream);
	}
	hr__lock_release(&physical->stream_lock);

	for (; marked; marked &= marked - 1) {
		hr_stream stream = lowest(marked);
		hr_status waited = hr__call_event_synchronize(physical, events[stream]);
		hr__lock_take(&physical->stream_lock);
		if (waited == HR_OK) raise_to(&streams->done[stream], epochs[stream]);
		put_event(physical, events[stream]);
		hr__lock_release(&physical->stream_lock);
		if (waited != HR_OK) unmarked |= bit(stream);
	}
	for (; unmarked; unmarked &= unmarked - 1) {
		hr_status waited = hr__call_stream_synchronize(physical, native_of(physical, lowest(unmarked)));
		if (status == HR_OK) status = waited;
	}
	return status;
}

uint64_t hr__device_clock_ns(hr__device *device)
{
	uint64_t ns;
	return hr__call_clock_ns(device->physical, &ns) == HR_OK ? ns : hr__os()->clock_ns();
}

hr_status hr__stream_native(const hr__device *device, hr_stream stream, hr_native_stream *out)
{
	if (!is_live(device->physical, stream)) return no_such_stream(device, stream);
	*out = native_of(device->physical, stream);
	return HR_OK;
}

/* ---- the public calls ---- */

/* The lowest slot that is free gets [native]. Under the lock; there must be one. */
static hr_stream settle(hr__physical *physical, hr_native_stream native)
{
	hr__streams *streams = physical->streams;
	uint64_t mask = hr__load_relaxed(&physical->stream_mask);
	hr_stream slot = lowest(~mask);
	for (hr_stream other = 0; other < HR_STREAM_MAX; other++) hr__store_relaxed(&streams->synced[slot][other], 0);
	hr__store_relaxed(&streams->native[slot], native);
	hr__store_release(&physical->stream_mask, mask | bit(slot));
	return slot;
}

static hr_status need_streams(const hr__device *device)
{
	if (hr__has_streams(device->physical)) return HR_OK;
	return hr__fail(HR_UNSUPPORTED, "%s has no streams but the default one: its work is done when a call returns", device->name);
}

static hr_status need_slot(const hr__device *device)
{
	if (hr__load_relaxed(&device->physical->stream_mask) != UINT64_MAX) return HR_OK;
	return hr__fail(HR_TOO_MANY, "%s has %u streams already; destroy one first (hr_stream_destroy)", device->name, HR_STREAM_MAX);
}

HR_API hr_status hr_stream_create(hr_device handle, hr_stream *out)
{
	hr_status status;
	hr__device *device = hr__device_of(handle, &status);
	if (!device) return status;
	if (!out) return hr__fail(HR_INVALID_ARGUMENT, "hr_stream_create: out is NULL");
	status = need_streams(device);
	if (status != HR_OK) return status;

	hr__physical *physical = device->physical;
	hr_native_stream native;
	hr__lock_take(&physical->stream_lock);
	status = need_slot(device);
	if (status == HR_OK) status = hr__call_stream_create(physical, &native);
	if (status == HR_OK) *out = settle(physical, native);
	hr__lock_release(&physical->stream_lock);
	return status;
}

/* A device has no call to ask whether it knows a stream; recording an event on it does. Under the lock. */
static hr_status import_new(hr__device *device, hr_native_stream native, hr_stream *out)
{
	hr__physical *physical = device->physical;
	hr_native_event event;
	hr_status status = need_slot(device);
	if (status == HR_OK) status = take_event(physical, &event);
	if (status != HR_OK) return status;
	status = hr__call_event_record(physical, event, native);
	put_event(physical, event);
	if (status != HR_OK) return hr__fail_in(status, "%s has no stream 0x%llx of its own", device->name, (unsigned long long)native);
	*out = settle(physical, native);
	physical->streams->imported |= bit(*out);
	return HR_OK;
}

HR_API hr_status hr_stream_import(hr_device handle, uint64_t native, hr_stream *out)
{
	hr_status status;
	hr__device *device = hr__device_of(handle, &status);
	if (!device) return status;
	if (!out) return hr__fail(HR_INVALID_ARGUMENT, "hr_stream_import: out is NULL");
	if (native == 0) { /* the device's own default stream */
		*out = HR_STREAM_DEFAULT;
		return HR_OK;
	}
	status = need_streams(device);
	if (status != HR_OK) return status;

	hr__physical *physical = device->physical;
	hr__lock_take(&physical->stream_lock);
	uint64_t mask = hr__load_relaxed(&physical->stream_mask);
	while (mask && native_of(physical, lowest(mask)) != native) mask &= mask - 1;
	if (mask) *out = lowest(mask);
	else status = import_new(device, native, out);
	hr__lock_release(&physical->stream_lock);
	return status;
}

/* Waits for all work on [stream], outside the lock, and notes that it is done. */
static hr_status synchronize(hr__device *device, hr_stream stream)
{
	hr__physical *physical = device->physical;
	uint64_t epoch = raise_epoch(physical); /* before waiting, for the reason at the top */
	hr_status status = hr__call_stream_synchronize(physical, native_of(physical, stream));
	if (status != HR_OK) return status;
	hr__lock_take(&physical->stream_lock);
	raise_to(&physical->streams->done[stream], epoch);
	hr__lock_release(&physical->stream_lock);
	return HR_OK;
}

HR_API hr_status hr_stream_destroy(hr_device handle, hr_stream stream)
{
	hr_status status;
	hr__device *device = hr__device_of(handle, &status);
	if (!device) return status;
	if (stream == HR_STREAM_DEFAULT) return hr__fail(HR_INVALID_ARGUMENT, "the default stream cannot be destroyed");
	if (!hr__device_has_stream(device, stream)) return no_such_stream(device, stream);
	status = synchronize(device, stream);
	if (status != HR_OK) return status;

	hr__physical *physical = device->physical;
	hr__lock_take(&physical->stream_lock);
	if (!is_live(physical, stream)) status = no_such_stream(device, stream); /* two threads destroy it at the same time */
	else if (!(physical->streams->imported & bit(stream))) status = hr__call_stream_destroy(physical, native_of(physical, stream));
	if (status == HR_OK) {
		physical->streams->imported &= ~bit(stream);
		hr__store_release(&physical->stream_mask, hr__load_relaxed(&physical->stream_mask) & ~bit(stream));
	}
	hr__lock_release(&physical->stream_lock);
	return status;
}

HR_API hr_status hr_stream_synchronize(hr_device handle, hr_stream stream)
{
	hr_status status;
	hr__device *device = hr__device_of(handle, &status);
	if (!device) return status;
	if (!hr__device_has_stream(device, stream)) return no_such_stream(device, stream);
	return synchronize(device, stream);
}

HR_API hr_status hr_stream_wait_stream(hr_device handle, hr_stream stream, hr_stream other)
{
	hr_status status;
	hr__device *device = hr__device_of(handle, &status);
	if (!device) return status;
	if (!hr__device_has_stream(device, stream)) return no_such_stream(device, stream);
	if (!hr__device_has_stream(device, other)) return no_such_stream(device, other);
	if (stream == other || !hr__has_streams(device->physical)) return HR_OK;
	hr__lock_take(&device->physical->stream_lock);
	status = wait_for(device->physical, stream, other);
	hr__lock_release(&device->physical->stream_lock);
	return status;
}

/* True when [bytes] from [at] on wrap around the end of the address space. */
static bool wraps(const void *at, size_t bytes)
{
	uint64_t end;
	return !hr__add((uint64_t)(uintptr_t)at, bytes, &end);
}

static bool overlap(const void *a, const void *b, size_t bytes)
{
	uint64_t from = (uint64_t)(uintptr_t)a, to = (uint64_t)(uintptr_t)b;
	return (from > to ? from - to : to - from) < bytes;
}

static hr_status check_copy(const void *to, const void *from, size_t bytes, hr_copy_kind kind)
{
	if (kind != HR_COPY_TO_DEVICE && kind != HR_COPY_TO_HOST && kind != HR_COPY_ON_DEVICE) {
		return hr__fail(HR_INVALID_ARGUMENT,
		                "hr_copy: %d is no kind of copy; HR_COPY_TO_DEVICE, HR_COPY_TO_HOST, HR_COPY_ON_DEVICE are", (int)kind);
	}
	if (bytes == 0) return HR_OK;
	if (!to || !from) return hr__fail(HR_INVALID_ARGUMENT, "hr_copy: %s is NULL", to ? "from" : "to");
	if (wraps(to, bytes) || wraps(from, bytes)) return hr__fail(HR_INVALID_ARGUMENT, "hr_copy: %zu bytes are too many", bytes);
	if (kind == HR_COPY_ON_DEVICE && overlap(to, from, bytes)) {
		return hr__fail(HR_INVALID_ARGUMENT, "hr_copy: %zu bytes from %p to %p overlap", bytes, from, to);
	}
	return HR_OK;
}

HR_API hr_status hr_copy(hr_device handle, void *to, const void *from, size_t bytes, hr_copy_kind kind, hr_stream stream)
{
	hr_status status;
	hr_native_stream native;
	hr__device *device = hr__device_of(handle, &status);
	if (!device) return status;
	status = hr__stream_native(device, stream, &native);
	if (status == HR_OK) status = check_copy(to, from, bytes, kind);
	if (status != HR_OK || bytes == 0) return status;
	return hr__call_copy(device->physical, (uint64_t)(uintptr_t)to, (uint64_t)(uintptr_t)from, bytes, kind, native);
}

HR_API hr_status hr_fill(hr_device handle, void *at, unsigned char value, size_t bytes, hr_stream stream)
{
	hr_status status;
	hr_native_stream native;
	hr__device *device = hr__device_of(handle, &status);
	if (!device) return status;
	status = hr__stream_native(device, stream, &native);
	if (status != HR_OK || bytes == 0) return status;
	if (!at) return hr__fail(HR_INVALID_ARGUMENT, "hr_fill: at is NULL");
	if (wraps(at, bytes)) return hr__fail(HR_INVALID_ARGUMENT, "hr_fill: %zu bytes are too many", bytes);
	return hr__call_fill(device->physical, (uint64_t)(uintptr_t)at, value, bytes, native);
}
