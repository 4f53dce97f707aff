/* test_device_marks.c - marks of streams: which mark a stream waits for, the time of a mark, and the lifetime of its event. */
#include "fault_os.h"
#include "support_streams.h"
#include "test.h"

static uint64_t mark(hr_stream stream)
{
	uint64_t epoch = 0, before = hr__device_epoch(device);
	CHECK_STATUS(HR_OK, hr__device_mark_timed(device, stream, &epoch));
	CHECK_GT(epoch, before);
	return epoch;
}

static uint64_t time_of(hr_stream stream, uint64_t epoch)
{
	uint64_t ns = 0;
	CHECK_STATUS(HR_OK, hr__device_mark_time(device, stream, epoch, &ns));
	return ns;
}

static hr_status time_status(hr_stream stream, uint64_t epoch)
{
	uint64_t ns = 4711;
	hr_status status = hr__device_mark_time(device, stream, epoch, &ns);
	if (status != HR_OK) CHECK_EQ(ns, 4711);
	return status;
}

/* ---- virtual time: exact ---- */

static void test_order_waits_for_the_mark_and_not_for_what_follows(void)
{
	use("SIM:0");
	hr_stream one = new_stream(), two = new_stream();
	compute(one, 3 * MS);
	uint64_t freed = hr__device_epoch(device), marked = mark(one);
	compute(one, 10 * MS);
	CHECK_EQ(waits_for(two, BIT(one), freed), 1);
	CHECK_EQ(waits_for(two, BIT(one), freed), 0);
	CHECK_EQ(time_of(two, mark(two)), 3 * MS);
	/* Freed after the mark was made: the mark does not cover it, only the end of the queue does. */
	CHECK_EQ(waits_for(two, BIT(one), marked), 1);
	CHECK_EQ(time_of(two, mark(two)), 13 * MS);
	CHECK_EQ(hr__device_clock_ns(device), 0); /* the host has waited for nothing */
}

static void test_the_oldest_mark_that_covers_is_waited_for(void)
{
	enum { COUNT = 40 };
	use("SIM:0");
	hr_stream one = new_stream(), two;
	uint64_t freed[COUNT], marks[COUNT];
	for (uint64_t i = 0; i < COUNT; i++) {
		compute(one, MS);
		freed[i] = hr__device_epoch(device);
		marks[i] = mark(one);
		CHECK_EQ(time_of(one, marks[i]), (i + 1) * MS);
	}
	for (uint64_t i = COUNT; i-- > 0;) {
		two = new_stream();
		CHECK_EQ(waits_for(two, BIT(one), freed[i]), 1);
		CHECK_EQ(time_of(two, mark(two)), (i + 1) * MS);
		/* The stream has waited for that mark only, not for later ones. */
		for (uint64_t j = 0; j <= i; j++) CHECK_EQ(waits_for(two, BIT(one), freed[j]), 0);
		if (i + 1 < COUNT) {
			CHECK_EQ(waits_for(two, BIT(one), marks[i]), 1);
			CHECK_EQ(time_of(two, mark(two)), (i + 2) * MS);
		}
	}
}

static void test_every_stream_has_its_own_marks(void)
{
	use("SIM:0");
	hr_stream one = new_stream(), two = new_stream(), three = new_stream();
	uint64_t freed = hr__device_epoch(device);
	compute(one, 2 * MS);
	compute(two, 5 * MS);
	uint64_t of_one = mark(one), of_two = mark(two);
	compute(one, 100 * MS);
	compute(two, 100 * MS);
	CHECK_STATUS(HR_INVALID_HANDLE, time_status(one, of_two));
	CHECK_STATUS(HR_INVALID_HANDLE, time_status(two, of_one));
	CHECK_EQ(waits_for(three, BIT(one), freed), 1);
	CHECK_EQ(time_of(three, mark(three)), 2 * MS);
	CHECK_EQ(waits_for(three, BIT(one) | BIT(two) | BIT(three), freed), 1);
	CHECK_EQ(time_of(three, mark(three)), 5 * MS);
	CHECK_EQ(waits_for(three, BIT(HR_STREAM_DEFAULT), freed), 1); /* no marks on that stream */
	CHECK_EQ(time_of(three, mark(three)), 5 * MS);
	/* A wait for the whole stream is not shortened to a mark. */
	CHECK_STATUS(HR_OK, hr_stream_wait_stream(handle, three, one));
	CHECK_EQ(time_of(three, mark(three)), 102 * MS);
}

static void test_a_full_ring_drops_its_oldest_marks(void)
{
	enum { MORE = 10, ALL = HR__MARKS + MORE };
	use("SIM:0");
	static uint64_t freed[ALL], marks[ALL];
	hr_stream one = new_stream();
	for (uint64_t i = 0; i < ALL; i++) {
		compute(one, 1000);
		freed[i] = hr__device_epoch(device);
		marks[i] = mark(one);
	}
	for (uint64_t i = 0; i < MORE; i++) CHECK_STATUS(HR_INVALID_HANDLE, time_status(one, marks[i]));
	CHECK_CONTAINS(hr_last_message(), "is not known any more; the last 4096 of a stream are");
	for (uint64_t i = MORE; i < ALL; i++) CHECK_EQ(time_of(one, marks[i]), (i + 1) * 1000);
	/* The next remaining mark stands in for forgotten ones. */
	static const uint64_t asked[] = { 0, MORE - 1, MORE, MORE + 1, ALL / 2, ALL - 1 };
	for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
		hr_stream two = new_stream();
		CHECK_EQ(waits_for(two, BIT(one), freed[asked[i]]), 1);
		CHECK_EQ(time_of(two, mark(two)), ((asked[i] < MORE ? MORE : asked[i]) + 1) * 1000);
	}
	CHECK_STATUS(HR_INVALID_HANDLE, time_status(one, 0));
	CHECK_STATUS(HR_INVALID_HANDLE, time_status(one, hr__device_epoch(device) + 1));
	CHECK_STATUS(HR_INVALID_HANDLE, time_status(one, UINT64_MAX));
	CHECK_STATUS(HR_INVALID_HANDLE, time_status(63, marks[ALL - 1]));
	CHECK_STATUS(HR_INVALID_HANDLE, time_status(HR_STREAM_MAX, marks[ALL - 1]));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr__device_mark_timed(device, 63, NULL));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr__device_mark_timed(device, HR_STREAM_MAX, NULL));
}

static void test_waiting_on_the_host_is_for_the_mark_too(void)
{
	use("SIM:0");
	hr_stream one = new_stream(), two = new_stream();
	compute(one, 3 * MS);
	uint64_t freed = hr__device_epoch(device), marked = mark(one);
	compute(one, 10 * MS);
	compute(two, 4 * MS);
	CHECK_STATUS(HR_OK, hr__device_wait_idle(device, BIT(one), freed));
	CHECK_EQ(hr__device_clock_ns(device), 3 * MS);
	CHECK_EQ(waits_for(two, BIT(one), freed), 0); /* known to be done */
	uint64_t calls = hr_backend_calls();
	CHECK_STATUS(HR_OK, hr__device_wait_idle(device, BIT(one), freed));
	CHECK_EQ(hr_backend_calls(), calls);
	CHECK_EQ(time_of(one, marked), 3 * MS); /* the mark is still there */
	CHECK_STATUS(HR_OK, hr__device_wait_idle(device, BIT(one) | BIT(two), freed));
	CHECK_EQ(hr__device_clock_ns(device), 4 * MS);
	CHECK_STATUS(HR_OK, hr__device_wait_idle(device, BIT(one), marked));
	CHECK_EQ(hr__device_clock_ns(device), 13 * MS);
}

static void test_marks_go_with_their_stream(void)
{
	use("SIM:0");
	hr_stream one = new_stream(), two = new_stream();
	uint64_t freed = hr__device_epoch(device);
	compute(one, MS);
	uint64_t marked = mark(one);
	compute(one, MS);
	CHECK_STATUS(HR_OK, hr_stream_destroy(handle, one));
	CHECK_STATUS(HR_INVALID_HANDLE, time_status(one, marked));
	CHECK_EQ(waits_for(two, BIT(one), freed), 0);
	CHECK_EQ(new_stream(), one);
	CHECK_STATUS(HR_INVALID_HANDLE, time_status(one, marked));
	compute(one, MS);
	uint64_t later = mark(one);
	CHECK_GT(later, marked);
	CHECK_EQ(time_of(one, later), 3 * MS);
	CHECK_EQ(waits_for(two, BIT(one), freed), 0);
}

static void test_a_mark_reuses_the_event_of_a_dropped_mark(void)
{
	use("SIM:0");
	hr_stream one = new_stream();
	for (uint64_t i = 0; i < HR__MARKS; i++) mark(one);
	mark(one); /* one more event, and the first becomes spare */
	hr_backend_fail_nth(0, false, HR_OK);
	for (uint64_t i = 0; i < 3 * HR__MARKS; i++) mark(one);
	CHECK_EQ(hr_backend_calls(), 3 * HR__MARKS); /* only records */
}

/* ---- a device that checks the use of events ---- */

/* Fails the test if an event is recorded or destroyed while a thread waits for it. The test decides how long a wait lasts. */
static struct {
	pthread_mutex_t mutex;
	pthread_cond_t changed;
	hr_native_event waiting[300];
	uint32_t waiting_count;
	int64_t events;
	uint64_t epoch; /* of the device, at the last record */
	bool closed;    /* no wait ends */
} watch = { .mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };

static void check_unwatched(hr_native_event event)
{
	pthread_mutex_lock(&watch.mutex);
	for (uint32_t i = 0; i < watch.waiting_count; i++) CHECK_NE(watch.waiting[i], event);
	pthread_mutex_unlock(&watch.mutex);
}

static hr_status watched_create(void *native, hr_native_event *event)
{
	hr_status status = hr__backend_simulated.event_create(native, event);
	pthread_mutex_lock(&watch.mutex);
	watch.events += status == HR_OK;
	pthread_mutex_unlock(&watch.mutex);
	return status;
}

static hr_status watched_destroy(void *native, hr_native_event event)
{
	check_unwatched(event);
	hr_status status = hr__backend_simulated.event_destroy(native, event);
	pthread_mutex_lock(&watch.mutex);
	watch.events -= status == HR_OK;
	pthread_mutex_unlock(&watch.mutex);
	return status;
}

static hr_status watched_record(void *native, hr_native_event event, hr_native_stream stream)
{
	check_unwatched(event);
	watch.epoch = device ? hr__device_epoch(device) : 0;
	return hr__backend_simulated.event_record(native, event, stream);
}

static hr_status watched_synchronize(void *native, hr_native_event event)
{
	pthread_mutex_lock(&watch.mutex);
	CHECK_LT(watch.waiting_count, sizeof watch.waiting / sizeof *watch.waiting);
	watch.waiting[watch.waiting_count++] = event;
	pthread_cond_broadcast(&watch.changed);
	while (watch.closed) pthread_cond_wait(&watch.changed, &watch.mutex);
	uint32_t at = 0;
	while (watch.waiting[at] != event) at++;
	watch.waiting[at] = watch.waiting[--watch.waiting_count];
	pthread_mutex_unlock(&watch.mutex);
	return hr__backend_simulated.event_synchronize(native, event);
}

static void watch_set_closed(bool closed)
{
	pthread_mutex_lock(&watch.mutex);
	watch.closed = closed;
	pthread_cond_broadcast(&watch.changed);
	pthread_mutex_unlock(&watch.mutex);
}

static void watch_until_waiting(uint32_t count)
{
	pthread_mutex_lock(&watch.mutex);
	while (watch.waiting_count < count) pthread_cond_wait(&watch.changed, &watch.mutex);
	pthread_mutex_unlock(&watch.mutex);
}

static void use_watched(void)
{
	static hr_simulated_options options;
	hr_backend backend = hr__backend_simulated;
	hr_simulated_options_init(&options);
	options.memory_bytes = 1 << 20;
	backend.name = "watched";
	backend.type = "WATCHED";
	backend.event_create = watched_create;
	backend.event_destroy = watched_destroy;
	backend.event_record = watched_record;
	backend.event_synchronize = watched_synchronize;
	CHECK_STATUS(HR_OK, hr_backend_register(&backend, &options));
	use("WATCHED:0");
}

/* Otherwise memory that is used and freed between the two would count as covered by the event. */
static void test_the_epoch_is_raised_before_the_event_is_recorded(void)
{
	use_watched();
	hr_stream one = new_stream();
	CHECK_EQ(mark(one), watch.epoch);
	uint64_t before = hr__device_epoch(device);
	CHECK_EQ(waits_for(one, BIT(HR_STREAM_DEFAULT), before), 1);
	CHECK_GT(watch.epoch, before);
	before = hr__device_epoch(device);
	CHECK_STATUS(HR_OK, hr__device_wait_idle(device, BIT(one), before));
	CHECK_GT(watch.epoch, before);
}

static struct {
	uint64_t mask, epochs[8];
} idle;

static void wait_idle(void *argument, unsigned index)
{
	(void)argument;
	CHECK_STATUS(HR_OK, hr__device_wait_idle(device, idle.mask, idle.epochs[index]));
}

static void *start_waiting(void *argument)
{
	hr_test_threads((unsigned)(uintptr_t)argument, wait_idle, NULL);
	return NULL;
}

static void test_an_event_is_not_used_again_while_a_thread_waits_for_it(void)
{
	pthread_t threads;
	use_watched();
	hr_stream one = new_stream(), two = new_stream();
	compute(one, MS);
	for (int i = 0; i < 4; i++) {
		idle.epochs[i] = hr__device_epoch(device);
		if (i % 2) mark(one); /* threads 0 and 1 wait for the same mark, 2 and 3 for another */
	}
	idle.mask = BIT(one);
	watch_set_closed(true);
	CHECK_EQ(pthread_create(&threads, NULL, start_waiting, (void *)4), 0);
	watch_until_waiting(4);
	/* All of these use new or forgotten events, never the two that are waited for. */
	for (uint64_t i = 0; i < HR__MARKS + 200; i++) mark(one);
	for (int i = 0; i < 200; i++) CHECK_EQ(waits_for(two, BIT(one), hr__device_epoch(device)), 1);
	CHECK_STATUS(HR_OK, hr_stream_destroy(handle, one));
	hr_stream again = new_stream();
	CHECK_EQ(again, one);
	for (int i = 0; i < 200; i++) mark(again);
	watch_set_closed(false);
	CHECK_EQ(pthread_join(threads, NULL), 0);
	for (int i = 0; i < 4; i++) CHECK_EQ(waits_for(two, BIT(one), idle.epochs[i]), 0);
	hr__devices_shutdown();
	CHECK_EQ(watch.events, 0);
}

static void test_too_many_waits_for_marks_take_events_of_their_own(void)
{
	pthread_t threads;
	use_watched();
	hr_stream streams[HR_STREAM_MAX];
	idle.mask = 0;
	for (uint32_t i = 1; i < HR_STREAM_MAX; i++) {
		streams[i] = new_stream();
		idle.mask |= BIT(streams[i]);
	}
	for (int round = 0; round < 3; round++) {
		idle.epochs[round] = hr__device_epoch(device);
		for (uint32_t i = 1; i < HR_STREAM_MAX; i++) mark(streams[i]);
	}
	watch_set_closed(true);
	CHECK_EQ(pthread_create(&threads, NULL, start_waiting, (void *)3), 0);
	watch_until_waiting(3);
	for (uint64_t i = 0; i < HR__MARKS; i++) mark(streams[1]); /* the first mark that the threads wait for */
	watch_set_closed(false);
	CHECK_EQ(pthread_join(threads, NULL), 0);
	for (uint32_t i = 1; i < HR_STREAM_MAX; i++) CHECK_EQ(waits_for(0, BIT(streams[i]), idle.epochs[2]), 0);
	hr__devices_shutdown();
	CHECK_EQ(watch.events, 0);
}

static void test_shutdown_destroys_every_event(void)
{
	use_watched();
	hr_stream one = new_stream(), two = new_stream();
	for (uint64_t i = 0; i < HR__MARKS + 5; i++) mark(one);
	for (uint64_t i = 0; i < 100; i++) mark(two);
	CHECK_EQ(watch.events, HR__MARKS + 1 + 100 - 1);
	CHECK_STATUS(HR_OK, hr_stream_destroy(handle, two));
	CHECK_GE(watch.events, HR__MARKS);
	CHECK_LE(watch.events, HR__MARKS + HR_STREAM_MAX); /* some are kept for reuse */
	hr__devices_shutdown();
	CHECK_EQ(watch.events, 0);
}

/* ---- the emulated device ---- */

static void use_emulated(void)
{
	fixture_configure_emulated(64 << 20, 64 << 10, 0);
	use("GPU:0");
}

static void wait_at_gate(void *open)
{
	while (!atomic_load((_Atomic(bool) *)open)) nanosleep(&(struct timespec){ .tv_nsec = 100000 }, NULL);
}

/* If any call here waited for the gate, the test would hang. */
static void test_later_work_delays_no_stream(void)
{
	use_emulated();
	hr_stream one = new_stream(), two = new_stream();
	unsigned char seen = 0;
	uint64_t block;
	_Atomic(bool) open = false;
	CHECK_STATUS(HR_OK, hr__page_pool_plain_alloc(device, 100, &block));
	compute(one, 5 * MS);
	CHECK_STATUS(HR_OK, hr_stream_fill(handle, (void *)(uintptr_t)block, 7, 100, one));
	uint64_t freed = hr__device_epoch(device), first = mark(one);
	CHECK_STATUS(HR_OK, hr__call_host_call(device->physical, wait_at_gate, &open, native_of(one)));
	uint64_t second = mark(one);
	CHECK_EQ(waits_for(two, BIT(one), freed), 1);
	CHECK_STATUS(HR_OK, hr_stream_copy(handle, &seen, (void *)(uintptr_t)block, 1, HR_COPY_TO_HOST, two));
	CHECK_STATUS(HR_OK, hr_stream_synchronize(handle, two));
	CHECK_EQ(seen, 7);
	CHECK_STATUS(HR_OK, hr__device_wait_idle(device, BIT(one), freed));
	uint64_t at = time_of(one, first);
	CHECK_LE(at, hr__os()->clock_ns());
	CHECK_STATUS(HR_NOT_READY, time_status(one, second));
	uint64_t before = hr__os()->clock_ns();
	atomic_store(&open, true);
	CHECK_STATUS(HR_OK, hr__device_wait_idle(device, BIT(one), first));
	CHECK_GE(time_of(one, second), before);
	CHECK_EQ(time_of(one, first), at);
	/* A mark on an idle stream has the current time. */
	before = hr__os()->clock_ns();
	uint64_t third = mark(one);
	CHECK_GE(time_of(one, third), before);
	CHECK_LE(time_of(one, third), hr__os()->clock_ns());
	hr_stream idle_stream = new_stream();
	CHECK_GE(time_of(idle_stream, mark(idle_stream)), before);
}

static void test_times_grow_along_a_stream(void)
{
	enum { COUNT = 300 };
	use_emulated();
	hr_stream one = new_stream();
	uint64_t marks[COUNT], last = 0, start = hr__os()->clock_ns();
	for (int i = 0; i < COUNT; i++) {
		if (i % 3) compute(one, 20000);
		marks[i] = mark(one);
		if (i % 50 == 0) CHECK_STATUS(HR_OK, hr_stream_synchronize(handle, one));
	}
	CHECK_STATUS(HR_OK, hr__device_wait_idle(device, BIT(one), hr__device_epoch(device)));
	for (int i = 0; i < COUNT; i++) {
		uint64_t at = time_of(one, marks[i]);
		CHECK_GE(at, i % 3 ? last + 20000 : last);
		last = at;
	}
	CHECK_GE(last, start + COUNT / 3 * 2 * 20000);
	CHECK_LE(last, hr__os()->clock_ns());
}

/* An event is destroyed, or recorded on another stream, while a request for its time is pending. */
static void test_an_event_waiting_for_its_time_may_change_its_mind(void)
{
	use_emulated();
	hr__physical *physical = device->physical;
	hr_stream one = new_stream(), two = new_stream();
	hr_native_event events[5];
	uint64_t ns = 0;
	_Atomic(bool) open = false;
	for (int i = 0; i < 5; i++) CHECK_STATUS(HR_OK, hr__call_event_create(physical, &events[i]));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr__call_event_time(physical, events[0], &ns));
	CHECK_STATUS(HR_OK, hr__call_host_call(physical, wait_at_gate, &open, native_of(one)));
	for (int i = 0; i < 5; i++) CHECK_STATUS(HR_OK, hr__call_event_record(physical, events[i], native_of(one)));
	for (int i = 0; i < 5; i++) CHECK_STATUS(HR_NOT_READY, hr__call_event_time(physical, events[i], &ns));
	CHECK_STATUS(HR_OK, hr__call_event_destroy(physical, events[2]));                   /* in the middle of the list */
	CHECK_STATUS(HR_OK, hr__call_event_record(physical, events[0], native_of(two)));    /* the first in the list */
	CHECK_STATUS(HR_OK, hr__call_event_record(physical, events[4], HR_STREAM_DEFAULT)); /* the last in the list */
	CHECK_STATUS(HR_OK, hr__call_event_record(physical, events[1], native_of(one)));    /* moves to the end */
	CHECK_STATUS(HR_OK, hr__call_event_time(physical, events[0], &ns));
	CHECK_STATUS(HR_OK, hr__call_event_time(physical, events[4], &ns));
	CHECK_STATUS(HR_NOT_READY, hr__call_event_time(physical, events[1], &ns));
	CHECK_STATUS(HR_NOT_READY, hr__call_event_time(physical, events[3], &ns));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr__call_event_time(physical, events[2], &ns));
	CHECK_STATUS(HR_OK, hr__call_event_create(physical, &events[2])); /* reuses the same slot */
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr__call_event_time(physical, events[2], &ns));
	atomic_store(&open, true);
	CHECK_STATUS(HR_OK, hr_stream_synchronize(handle, one));
	CHECK_STATUS(HR_OK, hr__call_event_time(physical, events[1], &ns));
	CHECK_STATUS(HR_OK, hr__call_event_time(physical, events[3], &ns));
	for (int i = 0; i < 5; i++) CHECK_STATUS(HR_OK, hr__call_event_destroy(physical, events[i]));
}

static void mark_and_order(void *argument, unsigned index)
{
	const hr_stream *streams = argument;
	uint64_t seed = hr_test_seed() + index, ns;
	hr_stream mine = streams[index], other;
	for (uint64_t round = 0; round < hr_test_scaled(400); round++) {
		int64_t waits = 0;
		compute(mine, hr_rand_below(&seed, 2000));
		uint64_t freed = hr__device_epoch(device), marked = mark(mine);
		other = streams[hr_rand_below(&seed, 4)];
		CHECK_STATUS(HR_OK, hr__device_order(device, other, BIT(mine), freed, &waits));
		CHECK_LE(waits, 1);
		if (hr_rand_below(&seed, 8) == 0) {
			CHECK_STATUS(HR_OK, hr__device_wait_idle(device, BIT(mine) | BIT(other), marked - 1)); /* covered by the mark only */
			CHECK_STATUS(HR_OK, hr__device_mark_time(device, mine, marked, &ns));
		}
		hr_status status = hr__device_mark_time(device, mine, marked, &ns);
		CHECK(status == HR_OK || status == HR_NOT_READY || status == HR_INVALID_HANDLE);
	}
}

static void test_threads_mark_and_order(void)
{
	hr_stream streams[4];
	use_emulated();
	for (int i = 0; i < 4; i++) streams[i] = new_stream();
	hr_test_threads(4, mark_and_order, streams);
}

static void shut_down(void *argument)
{
	(void)argument;
	CHECK_STATUS(HR_OK, hr_shutdown());
	use_emulated();
	hr_stream one = new_stream();
	time_of(one, mark(one));
}

static void test_a_forked_child_starts_without_marks(void)
{
	use_emulated();
	hr_stream one = new_stream();
	uint64_t marked = mark(one);
	CHECK_EQ(hr_test_in_child(shut_down, NULL), 0);
	time_of(one, marked);
}

/* ---- devices without marks ---- */

static void test_a_device_without_streams_marks_what_is_done(void)
{
	use("CPU:0");
	uint64_t freed = hr__device_epoch(device), ns, calls = hr_backend_calls();
	uint64_t first = mark(HR_STREAM_DEFAULT), second = mark(HR_STREAM_DEFAULT);
	CHECK_LT(first, second);
	CHECK_STATUS(HR_OK, hr__device_mark_timed(device, HR_STREAM_DEFAULT, NULL));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr__device_mark_timed(device, 1, NULL));
	CHECK_STATUS(HR_OK, hr__device_wait_idle(device, 1, freed));
	CHECK_STATUS(HR_UNSUPPORTED, hr__device_mark_time(device, HR_STREAM_DEFAULT, first, &ns));
	CHECK_STR(hr_last_message(), "CPU:0 does not report when work was done");
	CHECK_EQ(hr_backend_calls(), calls);
}

static void test_a_device_that_does_not_tell_the_time_can_be_marked(void)
{
	static hr_simulated_options options;
	hr_backend backend = hr__backend_simulated;
	uint64_t ns = 0;
	hr_simulated_options_init(&options);
	backend.name = "old";
	backend.type = "OLD";
	backend.struct_size = offsetof(hr_backend, event_time);
	CHECK_STATUS(HR_OK, hr_backend_register(&backend, &options));
	use("OLD:0");
	hr_stream one = new_stream(), two = new_stream();
	compute(one, 3 * MS);
	uint64_t freed = hr__device_epoch(device), marked = mark(one);
	compute(one, 10 * MS);
	CHECK_EQ(waits_for(two, BIT(one), freed), 1);
	CHECK_STATUS(HR_OK, hr_stream_synchronize(handle, two));
	CHECK_EQ(hr__device_clock_ns(device), 3 * MS);
	CHECK_STATUS(HR_UNSUPPORTED, hr__device_mark_time(device, one, marked, &ns));
	CHECK_STATUS(HR_UNSUPPORTED, hr__device_mark_time(device, one, marked + 1, &ns));
	CHECK_STATUS(HR_UNSUPPORTED, hr__call_event_time(device->physical, 1, &ns));
	CHECK_STR(hr_last_message(), "the old device does not report when work was done");
}

/* ---- faults ---- */

static void test_a_mark_that_failed_changes_nothing(void)
{
	use("SIM:0");
	hr_stream one = new_stream();
	compute(one, MS);
	uint64_t oldest = mark(one), number = 4711;
	uint64_t freed = hr__device_epoch(device);
	for (uint64_t i = 1; i < HR__MARKS; i++) {
		compute(one, MS);
		mark(one);
	}
	hr_backend_fail_nth(1, true, HR_DEVICE_ERROR); /* no event can be created */
	CHECK_STATUS(HR_DEVICE_ERROR, hr__device_mark_timed(device, one, &number));
	hr_backend_fail_nth(0, false, HR_OK);
	hr_backend_fail_nth(2, false, HR_DEVICE_ERROR); /* recording fails */
	CHECK_STATUS(HR_DEVICE_ERROR, hr__device_mark_timed(device, one, &number));
	hr_backend_fail_nth(0, false, HR_OK);
	CHECK_EQ(number, 4711);
	CHECK_EQ(time_of(one, oldest), MS);
	hr_backend_fail_nth(1, false, HR_DEVICE_ERROR);
	CHECK_STATUS(HR_DEVICE_ERROR, hr__device_mark_time(device, one, oldest, &number));
	hr_stream two = new_stream();
	int64_t waits = 0;
	hr_backend_fail_nth(1, false, HR_DEVICE_ERROR);
	CHECK_STATUS(HR_DEVICE_ERROR, hr__device_order(device, two, BIT(one), freed, &waits));
	hr_backend_fail_nth(0, false, HR_OK);
	CHECK_EQ(waits_for(two, BIT(one), freed), 1); /* it is not remembered as done */
	CHECK_EQ(time_of(two, mark(two)), 2 * MS);
	/* The host falls back to waiting for the whole stream. */
	hr_backend_fail_nth(1, false, HR_DEVICE_ERROR);
	CHECK_STATUS(HR_OK, hr__device_wait_idle(device, BIT(one), freed));
	hr_backend_fail_nth(0, false, HR_OK);
	CHECK_EQ(hr__device_clock_ns(device), HR__MARKS * MS);
}

static void test_no_memory_for_marks_is_an_error(void)
{
	hr_fault_os_install();
	use("SIM:0");
	hr_stream one = new_stream();
	uint64_t number = 4711;
	hr_fault_os_fail_nth(1, false, ENOMEM);
	CHECK_STATUS(HR_NO_HOST_MEMORY, hr__device_mark_timed(device, one, &number));
	CHECK_CONTAINS(hr_last_message(), "the marks of a stream");
	hr_fault_os_fail_nth(0, false, 0);
	CHECK_EQ(number, 4711);
	mark(one);
	for (uint64_t i = 0; i < HR__MARKS + 3; i++) mark(HR_STREAM_DEFAULT);
	CHECK_STATUS(HR_OK, hr_stream_destroy(handle, one));
	hr__devices_shutdown();
	CHECK(hr_fault_os_is_clean());
	hr_fault_os_uninstall();
}

TEST_MAIN(T(test_order_waits_for_the_mark_and_not_for_what_follows), T(test_the_oldest_mark_that_covers_is_waited_for),
          T(test_every_stream_has_its_own_marks), T(test_a_full_ring_drops_its_oldest_marks),
          T(test_waiting_on_the_host_is_for_the_mark_too), T(test_marks_go_with_their_stream),
          T(test_a_mark_reuses_the_event_of_a_dropped_mark), T(test_the_epoch_is_raised_before_the_event_is_recorded),
          T(test_an_event_is_not_used_again_while_a_thread_waits_for_it), T(test_too_many_waits_for_marks_take_events_of_their_own),
          T(test_shutdown_destroys_every_event), T(test_later_work_delays_no_stream), T(test_times_grow_along_a_stream),
          T(test_an_event_waiting_for_its_time_may_change_its_mind), T(test_threads_mark_and_order),
          T(test_a_forked_child_starts_without_marks), T(test_a_device_without_streams_marks_what_is_done),
          T(test_a_device_that_does_not_tell_the_time_can_be_marked), T(test_a_mark_that_failed_changes_nothing),
          T(test_no_memory_for_marks_is_an_error))
