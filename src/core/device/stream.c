/* stream.c - streams of a physical device, the waits between them, and work given to a stream.
 *
 * A stream is a slot, 0 to 63. Bit s of stream_mask is set when slot s is taken, so checking a stream is one load. Slot 0 is the
 * default stream. A device without streams has only slot 0, and all work on it is done when a call returns.
 *
 * Why the epoch is raised BEFORE the event is recorded
 *
 * A free: work was submitted on stream S, then the epoch was read as e. A wait, in another thread: to make T wait for S, raise the
 * epoch to n, then record an event on S. Claim: if e < n, the event covers the work. Suppose it does not: the event was recorded
 * before the work was submitted. A backend's lock serialises submitting to a stream and recording on it, so raising (before
 * recording) happens before submitting, which happens before reading the epoch. So the reader sees n or more, and e < n is false.
 * The opposite order, recording before raising, is wrong: record; another thread submits and reads the old e; raise. That free has
 * e < n, but the event does not cover its work. Relaxed order suffices for both accesses: the argument uses only the modification
 * order of one variable and the order of the backend's lock.
 *
 * Reuse of slots
 *
 * Destroying S raises the epoch to n, waits for S, and sets done[S] = n: every earlier free is covered. Forgetting S does the same without
 * the wait, which its caller has done. A block freed later may
 * still have bit S from before. Then either the slot is empty (nothing to wait for) or it holds a newer stream (waiting for it is
 * unnecessary but harmless). Everything that the old stream of a slot had waited for was complete when the stream was destroyed, so
 * a new stream could even inherit row T of synced; the row is cleared anyway, so that the table states only what is true. Column T
 * may stay: waits of other streams have epochs no larger than the current one, and frees of the new T have no smaller ones.
 *
 * Marks
 *
 * A mark is an event of this kind that is recorded in advance and kept with its number: the epoch is raised to n, then the event is
 * recorded, so by the claim above it covers every free with e < n. Any mark of S with a number above e can replace a new event; the
 * oldest of them has the least other work before it. Marks of a stream are made under the lock, so the order of their numbers is
 * the order in which S reaches them. The ring is therefore sorted: the oldest mark above e is found by bisection, and it is also
 * the first to complete. A wait for a mark covers only the mark's number: synced[T][S] becomes n, not the current epoch.
 *
 *   epochs on S    3       7           12       19          a free at epoch 8: its next user waits for 12, although 19 and the
 *                --M-------M-----free--M--------M--copy-->  copy after it are already queued; a free at 19: a new event
 *
 * A full ring drops its oldest mark. A free that this mark would have served is then served by the next mark: later than necessary,
 * never too early. The event of a dropped mark can be recorded again, because nothing refers to the mark any more:
 *   - waits queued on the device are for the event as it was when they were queued, which the backend guarantees;
 *   - an event that a thread waits for outside the lock is in `waited`, and the last such thread releases the event;
 *   - mark_time reads events under the lock, by the number of a mark that is in the ring.
 * A stream's ring is destroyed with the stream: done[S] is above all of its numbers by then.
 *
 * Idle streams
 *
 * given[S] is the epoch as read after S was last given work or made to wait. done[S] = n means that the host has seen all work
 * complete that was submitted before the epoch was raised to n. By the claim above, work whose epoch reading is below n is covered,
 * so S is idle when given[S] < done[S]. A wait counts as work, because a block that passes from R to S without being used there has
 * only the bit of S. Where programs have other ways to give work to a stream (caps.closed_streams is false), no stream is known to
 * be idle. Bit S of `used` is set with the first work of S and never cleared, so that reading one word is enough as long as there
 * was no work.
 *
 * Invariants, under the lock:
 *   1  synced[T][S], done[S] <= epoch, and they only grow while T exists
 *   2  bit s of stream_mask is set exactly when native[s] is a stream of the device; bit 0 is always set
 *   3  imported is a subset of stream_mask
 *   4  events in spare are unused: recorded or not, nothing refers to them
 *   5  a slot has a ring only while it is taken; its numbers grow, and the newest is <= epoch
 *   6  an event is in one place: in spare, in one ring, or with one thread that is using it; one in waited is in a ring too, unless
 *      its forgotten flag is set
 *   7  an event in a ring, or in waited, is not recorded again
 *
 * synced and done are atomics so that the common case, already covered, needs no lock. They are stored with release after the
 * device was made to wait: a thread that sees the value may give T work that relies on it. */
#include <string.h>

#include "core/base/checked.h"
#include "core/base/status.h"
#include "core/device/internal.h"
#include "core/device/kernels.h"

#define SPARE_EVENTS HR_STREAM_MAX /* of each kind */
#define WAITED_EVENTS HR_STREAM_MAX

/* Timed marks use timed events, which cost more to record on some devices; all others use plain ones. */
typedef enum event_kind { PLAIN, TIMED, EVENT_KINDS } event_kind;

typedef struct mark {
	uint64_t epoch; /* number of the mark */
	hr_native_event event;
	event_kind kind;
} mark;

/* Mark i of a stream, counting from 0, is in slot i % HR__MARKS until HR__MARKS more were made. */
typedef struct ring {
	uint64_t made;
	mark marks[HR__MARKS];
} ring;

/* The event of a mark for which threads are waiting outside the lock. */
typedef struct waited_event {
	hr_native_event event;
	event_kind kind;
	uint32_t threads;
	bool forgotten; /* the ring dropped its mark: the last thread puts the event into spare */
} waited_event;

struct hr__streams {
	hr__atomic_u64 native[HR_STREAM_MAX]; /* the backend's stream */
	hr__atomic_u64 done[HR_STREAM_MAX];
	hr__atomic_u64 given[HR_STREAM_MAX];                 /* only grows */
	hr__atomic_u64 synced[HR_STREAM_MAX][HR_STREAM_MAX]; /* [waiting stream][stream waited for] */
	uint64_t imported;                                   /* streams created by the program itself: never destroyed here */
	uint32_t spare_count[EVENT_KINDS];
	uint32_t waited_count;
	hr_native_event spare[EVENT_KINDS][SPARE_EVENTS];
	waited_event waited[WAITED_EVENTS];
	ring *rings[HR_STREAM_MAX]; /* NULL = the stream has no marks */
};

static inline uint64_t bit(hr_stream stream)
{
	HR_ASSERT(stream < HR_STREAM_MAX);
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
	return hr__fetch_add_relaxed(&physical->view.epoch, 1) + 1;
}

/* Under the lock, as all writes are. */
static inline void raise_to(hr__atomic_u64 *known, uint64_t epoch)
{
	if (hr__load_relaxed(known) < epoch) hr__store_release(known, epoch);
}

static hr_status no_such_stream(const hr__device *device, hr_stream stream)
{
	return hr__fail(HR_INVALID_ARGUMENT, "%s has no stream %u; create it with hr_stream_create", device->name, stream);
}

/* ---- rings of marks ---- */

static inline uint64_t first_mark(const ring *of)
{
	return of->made < HR__MARKS ? 0 : of->made - HR__MARKS;
}

static inline mark *mark_at(ring *of, uint64_t index)
{
	HR_ASSERT(index >= first_mark(of) && index < of->made);
	return &of->marks[index % HR__MARKS];
}

/* The oldest mark that covers frees of [epoch]; NULL when none does. */
static mark *oldest_above(ring *of, uint64_t epoch)
{
	if (!of) return NULL;
	uint64_t low = first_mark(of), high = of->made;
	while (low < high) {
		uint64_t middle = low + (high - low) / 2;
		if (mark_at(of, middle)->epoch > epoch) high = middle;
		else low = middle + 1;
	}
	return low < of->made ? mark_at(of, low) : NULL;
}

/* Called when the device is no longer in use. */
static void destroy_ring(hr__physical *physical, ring *gone)
{
	if (!gone) return;
	for (uint64_t i = first_mark(gone); i < gone->made; i++) hr__call_event_destroy(physical, mark_at(gone, i)->event);
	hr__os()->free(gone, sizeof *gone);
}

/* ---- opening and closing ---- */

hr_status hr__streams_open(hr__physical *physical)
{
	void *memory;
	int error = hr__os()->alloc(sizeof(hr__streams), &memory);
	if (error) return hr__os_fail(error, "the streams of a device");
	physical->streams = memory;
	for (hr_stream stream = 0; stream < HR_STREAM_MAX; stream++) hr__store_relaxed(&physical->streams->done[stream], 1);
	hr__lock_init(&physical->stream_lock, HR__RANK_PAGE_POOL);
	hr__store_relaxed(&physical->view.epoch, 1);
	hr__store_relaxed(&physical->view.used, physical->caps.closed_streams ? 0 : UINT64_MAX);
	hr__store_release(&physical->stream_mask, bit(HR_STREAM_DEFAULT));
	return HR_OK;
}

void hr__streams_close(hr__physical *physical)
{
	hr__streams *streams = physical->streams;
	if (hr__has_streams(physical)) {
		/* Errors of the last work are dropped: there is no caller left to return them to. */
		for (uint64_t mask = hr__load_relaxed(&physical->stream_mask); mask; mask &= mask - 1) {
			hr_stream stream = lowest(mask);
			hr__call_stream_synchronize(physical, native_of(physical, stream));
			if (stream != HR_STREAM_DEFAULT && !(streams->imported & bit(stream))) {
				hr__call_stream_destroy(physical, native_of(physical, stream));
			}
		}
		HR_ASSERT(streams->waited_count == 0);
		for (hr_stream stream = 0; stream < HR_STREAM_MAX; stream++) destroy_ring(physical, streams->rings[stream]);
		for (event_kind kind = PLAIN; kind < EVENT_KINDS; kind++) {
			for (uint32_t i = 0; i < streams->spare_count[kind]; i++) hr__call_event_destroy(physical, streams->spare[kind][i]);
		}
	}
	hr__store_release(&physical->stream_mask, 0);
	hr__os()->free(streams, sizeof *streams);
	physical->streams = NULL;
}

/* ---- reuse of events ---- */

static hr_status take_event(hr__physical *physical, event_kind kind, hr_native_event *out)
{
	hr__streams *streams = physical->streams;
	HR_ASSERT(hr__lock_is_mine(&physical->stream_lock));
	if (streams->spare_count[kind] == 0) {
		return kind == TIMED ? hr__call_timed_event_create(physical, out) : hr__call_event_create(physical, out);
	}
	*out = streams->spare[kind][--streams->spare_count[kind]];
	return HR_OK;
}

static void put_event(hr__physical *physical, event_kind kind, hr_native_event event)
{
	hr__streams *streams = physical->streams;
	HR_ASSERT(hr__lock_is_mine(&physical->stream_lock));
	if (streams->spare_count[kind] < SPARE_EVENTS) streams->spare[kind][streams->spare_count[kind]++] = event;
	else hr__call_event_destroy(physical, event);
}

/* Takes an event and records it on [stream]; the event covers every free with an epoch below *epoch. */
static hr_status record(hr__physical *physical, hr_stream stream, event_kind kind, hr_native_event *event, uint64_t *epoch)
{
	HR_ASSERT(hr__lock_is_mine(&physical->stream_lock));
	hr_status status = take_event(physical, kind, event);
	if (status != HR_OK) return status;
	*epoch = raise_epoch(physical); /* before recording: see the top of the file */
	status = hr__call_event_record(physical, *event, native_of(physical, stream));
	if (status != HR_OK) put_event(physical, kind, *event);
	return status;
}

/* ---- events of marks, which are not reused while anything refers to the mark. All under the lock. ---- */

static waited_event *find_waited(hr__streams *streams, hr_native_event event)
{
	for (uint32_t i = 0; i < streams->waited_count; i++) {
		if (streams->waited[i].event == event) return &streams->waited[i];
	}
	return NULL;
}

/* Prevents reuse of the event of a mark until release_event. False when too many events are held already. */
static bool hold_event(hr__streams *streams, const mark *of)
{
	waited_event *found = find_waited(streams, of->event);
	if (!found) {
		if (streams->waited_count == WAITED_EVENTS) return false;
		found = &streams->waited[streams->waited_count++];
		*found = (waited_event){ .event = of->event, .kind = of->kind };
	}
	found->threads++;
	return true;
}

static void release_event(hr__physical *physical, hr_native_event event)
{
	HR_ASSERT(hr__lock_is_mine(&physical->stream_lock));
	hr__streams *streams = physical->streams;
	waited_event *found = find_waited(streams, event);
	HR_ASSERT(found && found->threads > 0);
	if (--found->threads > 0) return;
	if (found->forgotten) put_event(physical, found->kind, event);
	*found = streams->waited[--streams->waited_count];
}

/* Called for a mark that leaves its ring. */
static void forget(hr__physical *physical, const mark *gone)
{
	waited_event *found = find_waited(physical->streams, gone->event);
	if (found) found->forgotten = true;
	else put_event(physical, gone->kind, gone->event);
}

static void forget_ring(hr__physical *physical, hr_stream stream)
{
	ring *gone = physical->streams->rings[stream];
	if (!gone) return;
	for (uint64_t i = first_mark(gone); i < gone->made; i++) forget(physical, mark_at(gone, i));
	physical->streams->rings[stream] = NULL;
	hr__os()->free(gone, sizeof *gone);
}

static hr_status need_ring(hr__streams *streams, hr_stream stream)
{
	void *memory;
	if (streams->rings[stream]) return HR_OK;
	int error = hr__os()->alloc(sizeof(ring), &memory);
	if (error) return hr__os_fail(error, "the marks of a stream");
	streams->rings[stream] = memory;
	return HR_OK;
}

/* Uses an event other than that of the oldest mark, so that a failure loses no mark. */
static hr_status add_mark(hr__physical *physical, hr_stream stream, event_kind kind, uint64_t *epoch)
{
	mark made = { .kind = kind };
	hr_status status = need_ring(physical->streams, stream);
	if (status == HR_OK) status = record(physical, stream, kind, &made.event, &made.epoch);
	if (status != HR_OK) return status;
	ring *of = physical->streams->rings[stream];
	HR_ASSERT(of->made == 0 || mark_at(of, of->made - 1)->epoch < made.epoch);
	if (of->made >= HR__MARKS) forget(physical, mark_at(of, of->made - HR__MARKS));
	of->marks[of->made++ % HR__MARKS] = made;
	*epoch = made.epoch;
	return HR_OK;
}

/* ---- order between streams ---- */

static inline bool covered(const hr__streams *streams, hr_stream waiter, hr_stream target, uint64_t epoch)
{
	return hr__load_acquire(&streams->done[target]) > epoch || hr__load_acquire(&streams->synced[waiter][target]) > epoch;
}

/* The streams of [mask] that [waiter] must still wait for. */
static uint64_t uncovered(const hr__streams *streams, hr_stream waiter, uint64_t mask, uint64_t epoch)
{
	uint64_t left = 0;
	for (; mask; mask &= mask - 1) {
		hr_stream target = lowest(mask);
		if (!covered(streams, waiter, target, epoch)) left |= bit(target);
	}
	return left;
}

/* Called after [stream] was given work or made to wait, before that call returns. */
static void note_given(hr__physical *physical, hr_stream stream)
{
	hr__atomic_u64 *given = &physical->streams->given[stream];
	uint64_t seen = hr__load_relaxed(given), now = hr__load_relaxed(&physical->view.epoch);
	while (seen < now && !hr__cas_acq_rel(given, &seen, now)) {}
	if (!(hr__load_relaxed(&physical->view.used) & bit(stream))) hr__fetch_or_acq_rel(&physical->view.used, bit(stream));
}

/* The streams of [mask] that the host must still wait for. */
static uint64_t not_done(const hr__physical *physical, uint64_t mask, uint64_t epoch)
{
	const hr__streams *streams = physical->streams;
	bool closed = physical->caps.closed_streams;
	uint64_t left = 0;
	for (; mask; mask &= mask - 1) {
		hr_stream stream = lowest(mask);
		uint64_t done = hr__load_acquire(&streams->done[stream]);
		if (done <= epoch && !(closed && hr__load_acquire(&streams->given[stream]) < done)) left |= bit(stream);
	}
	return left;
}

/* Makes [waiter] wait for all work that [target] was given. */
static hr_status wait_for_all(hr__physical *physical, hr_stream waiter, hr_stream target)
{
	HR_ASSERT(hr__lock_is_mine(&physical->stream_lock));
	hr_native_event event;
	uint64_t epoch;
	hr_status status = record(physical, target, PLAIN, &event, &epoch);
	if (status != HR_OK) return status;
	status = hr__call_stream_wait_event(physical, native_of(physical, waiter), event);
	note_given(physical, waiter);
	if (status == HR_OK) raise_to(&physical->streams->synced[waiter][target], epoch);
	/* The wait is for the event as recorded now; recording it again does not change the wait. */
	put_event(physical, PLAIN, event);
	return status;
}

/* Makes [waiter] wait for the work that [target] was given up to [epoch], and for as little later work as the marks allow. Under the
 * lock. */
static hr_status wait_for(hr__physical *physical, hr_stream waiter, hr_stream target, uint64_t epoch)
{
	const mark *found = oldest_above(physical->streams->rings[target], epoch);
	if (!found) return wait_for_all(physical, waiter, target);
	hr_status status = hr__call_stream_wait_event(physical, native_of(physical, waiter), found->event);
	note_given(physical, waiter);
	if (status == HR_OK) raise_to(&physical->streams->synced[waiter][target], found->epoch);
	return status;
}

bool hr__device_has_stream(const hr__device *device, hr_stream stream)
{
	return stream == HR_STREAM_HOST || is_live(device->physical, stream);
}

const hr__stream_state *hr__device_stream_state(const hr__device *device)
{
	return &device->physical->view;
}

uint64_t hr__device_epoch(const hr__device *device)
{
	return hr__load_relaxed(&device->physical->view.epoch);
}

static hr_status wait_on_host(hr__device *device, uint64_t mask, uint64_t epoch, int64_t *waits)
{
	mask = not_done(device->physical, mask, epoch);
	if (HR_LIKELY(mask == 0) || !hr__has_streams(device->physical)) return HR_OK;
	hr_status status = hr__device_wait_idle(device, mask, epoch);
	if (status == HR_OK) *waits += __builtin_popcountll(mask);
	return status;
}

hr_status hr__device_order(hr__device *device, hr_stream stream, uint64_t mask, uint64_t epoch, int64_t *waits)
{
	hr__physical *physical = device->physical;
	if (stream == HR_STREAM_HOST) return wait_on_host(device, mask, epoch, waits);
	if (!is_live(physical, stream)) return no_such_stream(device, stream);
	mask = uncovered(physical->streams, stream, mask & ~bit(stream), epoch);
	if (HR_LIKELY(mask == 0) || !hr__has_streams(physical)) return HR_OK;

	hr_status status = HR_OK;
	hr__lock_take(&physical->stream_lock);
	mask &= hr__load_relaxed(&physical->stream_mask); /* a destroyed stream was waited for when it was destroyed */
	for (mask = uncovered(physical->streams, stream, mask, epoch); mask && status == HR_OK; mask &= mask - 1) {
		status = wait_for(physical, stream, lowest(mask), epoch);
		if (status == HR_OK) ++*waits;
	}
	hr__lock_release(&physical->stream_lock);
	return status;
}

/* The event to wait for: that of a mark (then *held is set), or a new one. */
static hr_status event_above(hr__physical *physical, hr_stream stream, uint64_t epoch, hr_native_event *event, uint64_t *covers,
                             bool *held)
{
	HR_ASSERT(hr__lock_is_mine(&physical->stream_lock));
	const mark *found = oldest_above(physical->streams->rings[stream], epoch);
	*held = found && hold_event(physical->streams, found);
	if (!*held) return record(physical, stream, PLAIN, event, covers);
	*event = found->event;
	*covers = found->epoch;
	return HR_OK;
}

/* Records events on all streams before waiting: otherwise, during each wait, the queue of the next stream would grow. A stream
 * without an event is synchronised as a whole. All streams are waited for even if some fail, because the caller is about to unmap
 * memory. Returns the first error. */
hr_status hr__device_wait_idle(hr__device *device, uint64_t mask, uint64_t epoch)
{
	hr__physical *physical = device->physical;
	hr__streams *streams = physical->streams;
	hr_native_event events[HR_STREAM_MAX];
	uint64_t epochs[HR_STREAM_MAX], marked = 0, unmarked = 0, of_marks = 0;
	hr_status status = HR_OK;
	bool held;
	if (!hr__has_streams(physical)) return HR_OK;

	hr__lock_take(&physical->stream_lock);
	for (mask &= hr__load_relaxed(&physical->stream_mask); mask; mask &= mask - 1) {
		hr_stream stream = lowest(mask);
		if (hr__load_relaxed(&streams->done[stream]) > epoch) continue;
		if (event_above(physical, stream, epoch, &events[stream], &epochs[stream], &held) == HR_OK) marked |= bit(stream);
		else unmarked |= bit(stream);
		if (held) of_marks |= bit(stream);
	}
	hr__lock_release(&physical->stream_lock);

	for (; marked; marked &= marked - 1) {
		hr_stream stream = lowest(marked);
		hr_status waited = hr__call_event_synchronize(physical, events[stream]);
		hr__lock_take(&physical->stream_lock);
		if (waited == HR_OK) raise_to(&streams->done[stream], epochs[stream]);
		if (of_marks & bit(stream)) release_event(physical, events[stream]);
		else put_event(physical, PLAIN, events[stream]);
		hr__lock_release(&physical->stream_lock);
		if (waited != HR_OK) unmarked |= bit(stream);
	}
	for (; unmarked; unmarked &= unmarked - 1) {
		hr_status waited = hr__call_stream_synchronize(physical, native_of(physical, lowest(unmarked)));
		if (status == HR_OK) status = waited;
	}
	return status;
}

hr_status hr__device_order_epochs(hr__device *device, hr_stream stream, uint64_t mask, hr__epochs epochs, int64_t *waits)
{
	uint64_t copies = mask & HR__COPY_STREAMS;
	hr_status status = hr__device_order(device, stream, mask & ~copies, hr__epochs_ordinary(epochs), waits);
	return status || HR_LIKELY(!copies) ? status : hr__device_order(device, stream, copies, hr__epochs_copies(epochs), waits);
}

hr_status hr__device_wait_idle_epochs(hr__device *device, uint64_t mask, hr__epochs epochs)
{
	uint64_t copies = mask & HR__COPY_STREAMS;
	hr_status status = hr__device_wait_idle(device, mask & ~copies, hr__epochs_ordinary(epochs));
	hr_status of_copies = copies ? hr__device_wait_idle(device, copies, hr__epochs_copies(epochs)) : HR_OK; /* also after an error */
	return status ? status : of_copies;
}

static hr_status make_mark(hr__device *device, hr_stream stream, event_kind kind, uint64_t *epoch)
{
	hr__physical *physical = device->physical;
	hr_status status = HR_OK;
	uint64_t number = 0;
	if (!is_live(physical, stream)) return no_such_stream(device, stream);
	if (hr__has_streams(physical)) {
		hr__lock_take(&physical->stream_lock);
		if (!is_live(physical, stream)) status = no_such_stream(device, stream); /* destroyed meanwhile */
		else status = add_mark(physical, stream, kind, &number);
		hr__lock_release(&physical->stream_lock);
	} else {
		number = raise_epoch(physical); /* all earlier work is done already */
	}
	if (status == HR_OK && epoch) *epoch = number;
	return status;
}

hr_status hr__device_mark(hr__device *device, hr_stream stream, uint64_t *epoch)
{
	return make_mark(device, stream, PLAIN, epoch);
}

hr_status hr__device_mark_timed(hr__device *device, hr_stream stream, uint64_t *epoch)
{
	return make_mark(device, stream, TIMED, epoch);
}

bool hr__device_has_finished(hr__device *device, hr_stream stream, uint64_t epoch)
{
	hr__physical *physical = device->physical;
	HR_ASSERT(stream < HR_STREAM_MAX);
	if (!hr__has_streams(physical)) return true; /* all work is done when a call returns */
	hr__lock_take(&physical->stream_lock);
	hr__streams *streams = physical->streams;
	bool finished = hr__load_relaxed(&streams->done[stream]) > epoch;
	const mark *found = finished ? NULL : oldest_above(streams->rings[stream], epoch);
	if (found && hr__call_event_query(physical, found->event) == HR_OK) {
		raise_to(&streams->done[stream], found->epoch);
		finished = true;
	}
	hr__lock_release(&physical->stream_lock);
	return finished;
}

hr_status hr__device_mark_time(hr__device *device, hr_stream stream, uint64_t epoch, uint64_t *ns)
{
	hr__physical *physical = device->physical;
	hr_status status;
	if (!physical->table->event_time || !hr__has_streams(physical)) {
		return hr__fail(HR_UNSUPPORTED, "%s does not report when work was done", device->name);
	}
	hr__lock_take(&physical->stream_lock);
	const mark *found = stream < HR_STREAM_MAX ? oldest_above(physical->streams->rings[stream], epoch - 1) : NULL;
	if (found && found->epoch == epoch && found->kind == TIMED) {
		status = hr__call_event_time(physical, found->event, ns);
	} else if (found && found->epoch == epoch) {
		status = hr__fail(HR_INVALID_HANDLE, "%s: mark %llu of stream %u was made without a time", device->name, (unsigned long long)epoch, stream);
	} else {
		status = hr__fail(HR_INVALID_HANDLE, "%s: mark %llu of stream %u is not known any more; the last %u of a stream are kept", device->name,
		                  (unsigned long long)epoch, stream, HR__MARKS);
	}
	hr__lock_release(&physical->stream_lock);
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

/* ---- public functions ---- */

/* Assigns [native] to the lowest free slot, or the highest if it [copies]. Under the lock; a slot must be free. */
static hr_stream settle(hr__physical *physical, hr_native_stream native, bool copies)
{
	HR_ASSERT(hr__lock_is_mine(&physical->stream_lock));
	hr__streams *streams = physical->streams;
	uint64_t mask = hr__load_relaxed(&physical->stream_mask);
	hr_stream slot = copies && ~mask & HR__COPY_STREAMS ? 63u - (hr_stream)__builtin_clzll(~mask) : lowest(~mask);
	for (hr_stream other = 0; other < HR_STREAM_MAX; other++) hr__store_relaxed(&streams->synced[slot][other], 0);
	hr__store_relaxed(&streams->native[slot], native);
	hr__store_release(&physical->stream_mask, mask | bit(slot));
	return slot;
}

static hr_status need_streams(const hr__device *device)
{
	if (hr__has_streams(device->physical)) return HR_OK;
	return hr__fail(HR_UNSUPPORTED, "%s has only the default stream: work is done when a call returns", device->name);
}

static hr_status need_slot(const hr__device *device)
{
	if (hr__load_relaxed(&device->physical->stream_mask) != UINT64_MAX) return HR_OK;
	return hr__fail(HR_TOO_MANY, "%s has %u streams already; destroy one first (hr_stream_destroy)", device->name, HR_STREAM_MAX);
}

static hr_status create(hr__device *device, bool copies, hr_stream *out)
{
	hr_status status = need_streams(device);
	if (status != HR_OK) return status;

	hr__physical *physical = device->physical;
	hr_native_stream native;
	hr__lock_take(&physical->stream_lock);
	status = need_slot(device);
	if (status == HR_OK) status = hr__call_stream_create(physical, &native);
	if (status == HR_OK) *out = settle(physical, native, copies);
	hr__lock_release(&physical->stream_lock);
	return status;
}

HR_API hr_status hr_stream_create(hr_device handle, hr_stream *out)
{
	hr_status status;
	hr__device *device = hr__device_of(handle, &status);
	if (!device) return status;
	if (!out) return hr__fail(HR_INVALID_ARGUMENT, "hr_stream_create: out is NULL");
	return create(device, false, out);
}

hr_status hr__device_copy_stream(hr__device *device, hr_stream *out)
{
	return create(device, true, out);
}

/* Backends have no call to check that a stream exists; recording an event on it does. */
static hr_status import_new(hr__device *device, hr_native_stream native, hr_stream *out)
{
	hr__physical *physical = device->physical;
	HR_ASSERT(hr__lock_is_mine(&physical->stream_lock));
	hr_native_event event;
	hr_status status = need_slot(device);
	if (status == HR_OK) status = take_event(physical, PLAIN, &event);
	if (status != HR_OK) return status;
	status = hr__call_event_record(physical, event, native);
	put_event(physical, PLAIN, event);
	if (status != HR_OK) return hr__fail_in(status, "%s has no stream 0x%llx of its own", device->name, (unsigned long long)native);
	*out = settle(physical, native, false);
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

/* Waits for all work on [stream], outside the lock, and records that it is done. */
static hr_status synchronize(hr__device *device, hr_stream stream)
{
	hr__physical *physical = device->physical;
	uint64_t epoch = raise_epoch(physical); /* before waiting, for the reason at the top of the file */
	hr_status status = hr__call_stream_synchronize(physical, native_of(physical, stream));
	if (status != HR_OK) return status;
	hr__lock_take(&physical->stream_lock);
	raise_to(&physical->streams->done[stream], epoch);
	hr__lock_release(&physical->stream_lock);
	return HR_OK;
}

/* Empties the slot of a stream whose work is done. */
static void unregister(hr__physical *physical, hr_stream stream)
{
	HR_ASSERT(hr__lock_is_mine(&physical->stream_lock) && stream != HR_STREAM_DEFAULT);
	forget_ring(physical, stream);
	physical->streams->imported &= ~bit(stream);
	hr__store_release(&physical->stream_mask, hr__load_relaxed(&physical->stream_mask) & ~bit(stream));
}

HR_API hr_status hr_stream_destroy(hr_device handle, hr_stream stream)
{
	hr_status status;
	hr__device *device = hr__device_of(handle, &status);
	if (!device) return status;
	if (stream == HR_STREAM_DEFAULT) return hr__fail(HR_INVALID_ARGUMENT, "the default stream cannot be destroyed");
	if (stream == HR_STREAM_HOST) return hr__fail(HR_INVALID_ARGUMENT, "HR_STREAM_HOST is the host, and cannot be destroyed");
	if (!hr__device_has_stream(device, stream)) return no_such_stream(device, stream);
	status = synchronize(device, stream);
	if (status != HR_OK) return status;

	hr__physical *physical = device->physical;
	hr__lock_take(&physical->stream_lock);
	if (!is_live(physical, stream)) status = no_such_stream(device, stream); /* two threads destroy it at the same time */
	else if (!(physical->streams->imported & bit(stream))) status = hr__call_stream_destroy(physical, native_of(physical, stream));
	if (status == HR_OK) unregister(physical, stream);
	hr__lock_release(&physical->stream_lock);
	return status;
}

HR_API hr_status hr_stream_forget(hr_device handle, hr_stream stream)
{
	hr_status status;
	hr__device *device = hr__device_of(handle, &status);
	if (!device) return status;
	hr__physical *physical = device->physical;
	hr__lock_take(&physical->stream_lock);
	bool imported = is_live(physical, stream) && physical->streams->imported & bit(stream);
	if (imported) {
		raise_to(&physical->streams->done[stream], raise_epoch(physical));
		unregister(physical, stream);
	}
	hr__lock_release(&physical->stream_lock);
	return imported ? HR_OK : hr__fail(HR_INVALID_ARGUMENT, "%s has no imported stream %u; hr_stream_destroy is for streams of hr_stream_create",
	                                   device->name, stream);
}

HR_API hr_status hr_stream_synchronize(hr_device handle, hr_stream stream)
{
	hr_status status;
	hr__device *device = hr__device_of(handle, &status);
	if (!device) return status;
	if (!hr__device_has_stream(device, stream)) return no_such_stream(device, stream);
	return stream == HR_STREAM_HOST ? HR_OK : synchronize(device, stream);
}

HR_API hr_status hr_stream_wait_stream(hr_device handle, hr_stream stream, hr_stream other)
{
	hr_status status;
	hr__device *device = hr__device_of(handle, &status);
	if (!device) return status;
	if (!hr__device_has_stream(device, stream)) return no_such_stream(device, stream);
	if (!hr__device_has_stream(device, other)) return no_such_stream(device, other);
	if (stream == other || other == HR_STREAM_HOST || !hr__has_streams(device->physical)) return HR_OK;
	if (stream == HR_STREAM_HOST) return synchronize(device, other);
	hr__lock_take(&device->physical->stream_lock);
	status = wait_for_all(device->physical, stream, other);
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
		                "hr_stream_copy: %d is not a kind of copy; use HR_COPY_TO_DEVICE, HR_COPY_TO_HOST or HR_COPY_ON_DEVICE", (int)kind);
	}
	if (bytes == 0) return HR_OK;
	if (!to || !from) return hr__fail(HR_INVALID_ARGUMENT, "hr_stream_copy: %s is NULL", to ? "from" : "to");
	if (wraps(to, bytes) || wraps(from, bytes)) return hr__fail(HR_INVALID_ARGUMENT, "hr_stream_copy: %zu bytes are too many", bytes);
	if (kind == HR_COPY_ON_DEVICE && overlap(to, from, bytes)) {
		return hr__fail(HR_INVALID_ARGUMENT, "hr_stream_copy: %zu bytes from %p to %p overlap", bytes, from, to);
	}
	return HR_OK;
}

/* The stream that work for [stream] is given to: the host's work goes to the default stream and is waited for. */
static hr_stream carrier_of(hr_stream stream)
{
	return stream == HR_STREAM_HOST ? HR_STREAM_DEFAULT : stream;
}

/* Called after work was given to carrier_of([stream]), even if that failed: part of the work may be queued. */
static hr_status after_work(hr__device *device, hr_stream stream, hr_status status)
{
	note_given(device->physical, carrier_of(stream));
	if (status == HR_OK && stream == HR_STREAM_HOST && hr__has_streams(device->physical)) return synchronize(device, HR_STREAM_DEFAULT);
	return status;
}

HR_API hr_status hr_stream_copy(hr_device handle, void *to, const void *from, size_t bytes, hr_copy_kind kind, hr_stream stream)
{
	hr_status status;
	hr_native_stream native;
	hr__device *device = hr__device_of(handle, &status);
	if (!device) return status;
	status = hr__stream_native(device, carrier_of(stream), &native);
	if (status == HR_OK) status = check_copy(to, from, bytes, kind);
	if (status != HR_OK || bytes == 0) return status;
	status = hr__call_copy(device->physical, (uint64_t)(uintptr_t)to, (uint64_t)(uintptr_t)from, bytes, kind, native);
	return after_work(device, stream, status);
}

HR_API hr_status hr_stream_fill(hr_device handle, void *at, unsigned char value, size_t bytes, hr_stream stream)
{
	hr_status status;
	hr_native_stream native;
	hr__device *device = hr__device_of(handle, &status);
	if (!device) return status;
	status = hr__stream_native(device, carrier_of(stream), &native);
	if (status != HR_OK || bytes == 0) return status;
	if (!at) return hr__fail(HR_INVALID_ARGUMENT, "hr_stream_fill: at is NULL");
	if (wraps(at, bytes)) return hr__fail(HR_INVALID_ARGUMENT, "hr_stream_fill: %zu bytes are too many", bytes);
	status = hr__call_fill(device->physical, (uint64_t)(uintptr_t)at, value, bytes, native);
	return after_work(device, stream, status);
}

hr_status hr__device_host_call(hr__device *device, hr_stream stream, void (*run)(void *argument), void *argument)
{
	hr_native_stream native = 0;
	hr_status status = hr__stream_native(device, carrier_of(stream), &native);
	return status ? status : after_work(device, stream, hr__call_host_call(device->physical, run, argument, native));
}

hr_status hr__device_native(hr__device *device, hr_stream stream, hr_status (*call)(const hr__native *native, void *argument), void *argument)
{
	hr_native_stream native = 0;
	hr_status status = hr__stream_native(device, carrier_of(stream), &native);
	return status ? status : after_work(device, stream, hr__cuda_native_call(device, native, call, argument));
}

hr_status hr__device_compute(hr__device *device, hr_stream stream, uint64_t ns)
{
	hr_native_stream native = 0;
	hr_status status = hr__stream_native(device, carrier_of(stream), &native);
	return status ? status : after_work(device, stream, hr__call_compute(device->physical, ns, native));
}
