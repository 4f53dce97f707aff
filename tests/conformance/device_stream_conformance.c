/* device_stream_conformance.c - requirements on every device for streams, several threads, and failing calls: one suite, run on
 * each device. Memory is in device_conformance.c. */
#include "conformance/device_subjects.h"
#include "fault_os.h"

/* ---- streams ---- */

static void streams_come_and_go(void)
{
	hr_stream streams[HR_STREAM_MAX], again;
	if (!has_streams()) {
		CHECK_STATUS(HR_UNSUPPORTED, hr_stream_create(handle, &again));
		CHECK_STATUS(HR_UNSUPPORTED, hr_stream_import(handle, 17, &again));
		CHECK_STATUS(HR_OK, hr_stream_import(handle, 0, &again));
		CHECK_EQ(again, HR_STREAM_DEFAULT);
		CHECK_STATUS(HR_OK, hr_stream_wait_stream(handle, 0, 0));
		return;
	}
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_stream_create(handle, NULL));
	for (uint32_t i = 1; i < HR_STREAM_MAX; i++) {
		CHECK_STATUS(HR_OK, hr_stream_create(handle, &streams[i]));
		CHECK_EQ(streams[i], i);
		CHECK(hr__device_has_stream(device, i));
	}
	CHECK_STATUS(HR_TOO_MANY, hr_stream_create(handle, &again));
	CHECK(!hr__device_has_stream(device, HR_STREAM_MAX));
	CHECK_STATUS(HR_OK, hr_stream_destroy(handle, 17));
	CHECK(!hr__device_has_stream(device, 17));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_stream_synchronize(handle, 17));
	CHECK_STATUS(HR_OK, hr_stream_create(handle, &again));
	CHECK_EQ(again, 17);
	for (uint32_t i = 1; i < HR_STREAM_MAX; i++) CHECK_STATUS(HR_OK, hr_stream_destroy(handle, i));
	CHECK_EQ(hr__load_relaxed(&device->physical->stream_mask), 1);
}

static void test_streams_come_and_go(void)
{
	on_each_device(streams_come_and_go);
}

static void imports_are_known(void)
{
	hr_native_stream native;
	hr_stream a, b, c;
	if (!has_streams()) return;
	CHECK_STATUS(HR_OK, hr__call_stream_create(device->physical, &native));
	CHECK_STATUS(HR_OK, hr_stream_import(handle, native, &a));
	CHECK_STATUS(HR_OK, hr_stream_import(handle, native, &b));
	CHECK_EQ(a, b);
	CHECK_NE(a, HR_STREAM_DEFAULT);
	CHECK_STATUS(HR_OK, hr_stream_create(handle, &c));
	CHECK_NE(a, c);
	CHECK_STATUS(HR_OK, hr_stream_synchronize(handle, a));
	CHECK_STATUS(HR_OK, hr_stream_wait_stream(handle, a, c));
	CHECK_STATUS(HR_OK, hr_stream_destroy(handle, a));
	CHECK_STATUS(HR_OK, hr_stream_import(handle, native, &b)); /* the first import was forgotten, its stream not destroyed */
	CHECK_STATUS(HR_OK, hr_stream_destroy(handle, b));
	CHECK_STATUS(HR_OK, hr_stream_destroy(handle, c));
	CHECK_STATUS(HR_OK, hr__call_stream_destroy(device->physical, native));
	if (now->strict) CHECK_STATUS(HR_INVALID_ARGUMENT, hr_stream_import(handle, native, &b));
	if (now->strict) CHECK_STATUS(HR_INVALID_ARGUMENT, hr_stream_import(handle, 0xDEADBEEF, &b));
}

static void forgotten_imports_are_not_used(void)
{
	hr_native_stream native;
	hr_stream a, b, own;
	int64_t waits = 0;
	if (!has_streams()) {
		CHECK_STATUS(HR_INVALID_ARGUMENT, hr_stream_forget(handle, 1));
		return;
	}
	CHECK_STATUS(HR_OK, hr__call_stream_create(device->physical, &native));
	CHECK_STATUS(HR_OK, hr_stream_import(handle, native, &a));
	CHECK_STATUS(HR_OK, hr_stream_create(handle, &own));
	CHECK_STATUS(HR_OK, hr_stream_synchronize(handle, a));
	uint64_t freed = hr__device_epoch(device);
	CHECK_STATUS(HR_OK, hr_stream_forget(handle, a));
	uint64_t calls = hr_backend_calls();
	CHECK_STATUS(HR_OK, hr__device_order(device, own, hr__stream_bit(a), freed, &waits));
	CHECK_EQ(waits, 0);
	CHECK_STATUS(HR_OK, hr__device_order(device, HR_STREAM_HOST, hr__stream_bit(a), freed + 100, &waits));
	CHECK_STATUS(HR_OK, hr__device_order(device, own, hr__stream_bit(a), freed + 100, &waits));
	CHECK_EQ(hr_backend_calls(), calls); /* neither waited for nor recorded on, whatever was freed with its bit */
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_stream_synchronize(handle, a));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_stream_forget(handle, a));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_stream_forget(handle, own)); /* Headroom would lose its stream */
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_stream_forget(handle, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_stream_forget(handle, HR_STREAM_HOST));
	CHECK_STATUS(HR_OK, hr_stream_import(handle, native, &b)); /* it still exists */
	CHECK_STATUS(HR_OK, hr_stream_synchronize(handle, b));
	CHECK_STATUS(HR_OK, hr_stream_destroy(handle, b));
	CHECK_STATUS(HR_OK, hr_stream_destroy(handle, own));
	CHECK_STATUS(HR_OK, hr__call_stream_destroy(device->physical, native));
}

static void test_forgotten_imports_are_neither_waited_for_nor_used(void)
{
	on_each_device(forgotten_imports_are_not_used);
}

static void test_imported_streams_are_known_by_one_number(void)
{
	on_each_device(imports_are_known);
}

static void a_stream_keeps_order(void)
{
	unsigned char seen[200] = { 0 };
	memory a;
	CHECK_STATUS(HR_OK, get(200, &a));
	for (unsigned round = 0; round < 200; round++) {
		CHECK_STATUS(HR_OK, hr_stream_fill(handle, at(&a, 0), (unsigned char)round, 200, 0));
		CHECK_STATUS(HR_OK, hr_stream_copy(handle, seen + round, at(&a, round), 1, HR_COPY_TO_HOST, 0));
	}
	CHECK_STATUS(HR_OK, hr_stream_synchronize(handle, 0));
	for (unsigned round = 0; now->real && round < 200; round++) CHECK_EQ(seen[round], round);
	give(&a);
}

static void test_a_stream_keeps_order(void)
{
	on_each_device(a_stream_keeps_order);
}

static void streams_wait(void)
{
	unsigned char seen = 0;
	hr_stream one, two;
	memory a;
	if (!has_streams()) return;
	CHECK_STATUS(HR_OK, get(4096 < hr__page_pool_available(device) ? 4096 : 256, &a));
	CHECK_STATUS(HR_OK, hr_stream_create(handle, &one));
	CHECK_STATUS(HR_OK, hr_stream_create(handle, &two));
	hr_native_stream native_one;
	CHECK_STATUS(HR_OK, hr__stream_native(device, one, &native_one));
	for (unsigned char round = 1; round < 20; round++) {
		CHECK_STATUS(HR_OK, hr__call_compute(device->physical, 300000, native_one));
		CHECK_STATUS(HR_OK, hr_stream_fill(handle, at(&a, 0), round, 200, one));
		CHECK_STATUS(HR_OK, hr_stream_wait_stream(handle, two, one));
		CHECK_STATUS(HR_OK, hr_stream_copy(handle, &seen, at(&a, 5), 1, HR_COPY_TO_HOST, two));
		/* The wait does not cover work queued on the first stream later. */
		CHECK_STATUS(HR_OK, hr_stream_wait_stream(handle, one, two));
		CHECK_STATUS(HR_OK, hr_stream_fill(handle, at(&a, 0), 0, 200, one));
		CHECK_STATUS(HR_OK, hr_stream_synchronize(handle, two));
		if (now->real) CHECK_EQ(seen, round);
	}
	CHECK_STATUS(HR_OK, hr_stream_synchronize(handle, one));
	CHECK_STATUS(HR_OK, hr_stream_destroy(handle, one));
	CHECK_STATUS(HR_OK, hr_stream_destroy(handle, two));
	give(&a);
}

static void test_a_stream_waits_for_another(void)
{
	on_each_device(streams_wait);
}

static void order_covers_frees(void)
{
	hr_stream one, two;
	memory a;
	unsigned char seen = 0;
	int64_t waits = 0;
	if (!has_streams()) {
		CHECK_STATUS(HR_OK, hr__device_order(device, 0, 1, hr__device_epoch(device), &waits));
		CHECK_STATUS(HR_OK, hr__device_wait_idle(device, 1, hr__device_epoch(device)));
		CHECK_EQ(waits, 0);
		return;
	}
	hr_native_stream native_one;
	CHECK_STATUS(HR_OK, get(256, &a));
	CHECK_STATUS(HR_OK, hr_stream_create(handle, &one));
	CHECK_STATUS(HR_OK, hr_stream_create(handle, &two));
	CHECK_STATUS(HR_OK, hr__stream_native(device, one, &native_one));
	for (unsigned char round = 1; round < 20; round++) {
		CHECK_STATUS(HR_OK, hr__call_compute(device->physical, 200000, native_one));
		CHECK_STATUS(HR_OK, hr_stream_fill(handle, at(&a, 0), round, 100, one));
		uint64_t epoch = hr__device_epoch(device);
		waits = 0;
		CHECK_STATUS(HR_OK, hr__device_order(device, two, UINT64_C(1) << one | UINT64_C(1) << two, epoch, &waits));
		CHECK_EQ(waits, 1);
		CHECK_STATUS(HR_OK, hr_stream_copy(handle, &seen, at(&a, 0), 1, HR_COPY_TO_HOST, two));
		CHECK_STATUS(HR_OK, hr__device_order(device, two, UINT64_C(1) << one, epoch, &waits));
		CHECK_EQ(waits, 1); /* covered */
		CHECK_GT(hr__device_epoch(device), epoch);
		CHECK_STATUS(HR_OK, hr__device_wait_idle(device, UINT64_C(1) << two, hr__device_epoch(device)));
		if (now->real) CHECK_EQ(seen, round);
	}
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr__device_order(device, 60, 1, 1, &waits));
	CHECK_STATUS(HR_OK, hr_stream_destroy(handle, one));
	CHECK_STATUS(HR_OK, hr_stream_destroy(handle, two));
	/* Memory freed on a destroyed stream needs no wait. */
	waits = 0;
	CHECK_STATUS(HR_OK, hr__device_order(device, 0, UINT64_C(1) << one, hr__device_epoch(device), &waits));
	CHECK_STATUS(HR_OK, hr__device_wait_idle(device, UINT64_C(1) << one, hr__device_epoch(device)));
	CHECK_EQ(waits, 0);
	give(&a);
}

static void test_order_covers_what_was_freed_before(void)
{
	on_each_device(order_covers_frees);
}

static void events_mark_moments(void)
{
	hr__physical *physical = device->physical;
	hr_native_event event, other;
	hr_native_stream stream;
	if (!has_streams()) return;
	CHECK_STATUS(HR_OK, hr__call_stream_create(physical, &stream));
	CHECK_STATUS(HR_OK, hr__call_event_create(physical, &event));
	CHECK_STATUS(HR_OK, hr__call_event_create(physical, &other));
	CHECK_NE(event, other);
	CHECK_STATUS(HR_OK, hr__call_event_query(physical, event)); /* never recorded */
	CHECK_STATUS(HR_OK, hr__call_event_synchronize(physical, event));
	CHECK_STATUS(HR_OK, hr__call_stream_wait_event(physical, stream, event));
	CHECK_STATUS(HR_OK, hr__call_event_record(physical, event, stream));
	CHECK_STATUS(HR_OK, hr__call_event_query(physical, event)); /* no work before it */
	hold(stream);
	CHECK_STATUS(HR_OK, hr__call_event_query(physical, event)); /* work after it */
	CHECK_STATUS(HR_OK, hr__call_event_record(physical, event, stream));
	CHECK_STATUS(HR_NOT_READY, hr__call_event_query(physical, event));
	/* A wait is for the event as it was recorded then: recording it again on another stream does not shorten the wait. */
	CHECK_STATUS(HR_OK, hr__call_stream_wait_event(physical, 0, event));
	CHECK_STATUS(HR_OK, hr__call_event_record(physical, other, 0));
	CHECK_STATUS(HR_NOT_READY, hr__call_event_query(physical, now->real ? other : event));
	let_go();
	CHECK_STATUS(HR_OK, hr__call_event_synchronize(physical, event));
	CHECK_STATUS(HR_OK, hr__call_event_query(physical, event));
	CHECK_STATUS(HR_OK, hr__call_event_synchronize(physical, other));
	CHECK_STATUS(HR_OK, hr__call_stream_destroy(physical, stream));
	CHECK_STATUS(HR_OK, hr__call_event_query(physical, event)); /* the event outlives its stream */
	CHECK_STATUS(HR_OK, hr__call_event_destroy(physical, event));
	CHECK_STATUS(HR_OK, hr__call_event_destroy(physical, other));
	if (now->strict) CHECK_STATUS(HR_INVALID_ARGUMENT, hr__call_event_query(physical, event));
}

static void test_events_mark_moments(void)
{
	on_each_device(events_mark_moments);
}

static void events_are_many(void)
{
	enum { COUNT = 300 };
	hr_native_event events[COUNT];
	if (!has_streams()) return;
	for (int i = 0; i < COUNT; i++) {
		CHECK_STATUS(HR_OK, hr__call_event_create(device->physical, &events[i]));
		CHECK_STATUS(HR_OK, hr__call_event_record(device->physical, events[i], 0));
	}
	for (int i = 0; i < COUNT; i++) {
		CHECK_STATUS(HR_OK, hr__call_event_synchronize(device->physical, events[i]));
		CHECK_STATUS(HR_OK, hr__call_event_query(device->physical, events[i]));
		CHECK_STATUS(HR_OK, hr__call_event_destroy(device->physical, events[i]));
	}
}

static void test_the_number_of_events_is_the_requested_one(void)
{
	on_each_device(events_are_many);
}

static void marks_are_waited_for(void)
{
	hr_stream one, two;
	memory a;
	unsigned char seen = 0;
	int64_t waits = 0;
	uint64_t first, second, third, at_first = 0, at_second = 0, at_third = 0;
	if (!has_streams()) {
		CHECK_STATUS(HR_OK, hr__device_mark_timed(device, 0, &first));
		CHECK_STATUS(HR_OK, hr__device_mark_timed(device, 0, &second));
		CHECK_LT(first, second);
		CHECK_STATUS(HR_OK, hr__device_order(device, 0, 1, first, &waits));
		CHECK_STATUS(HR_OK, hr__device_wait_idle(device, 1, first));
		CHECK_STATUS(HR_UNSUPPORTED, hr__device_mark_time(device, 0, first, &at_first));
		return;
	}
	CHECK_STATUS(HR_OK, get(256, &a));
	CHECK_STATUS(HR_OK, hr_stream_create(handle, &one));
	CHECK_STATUS(HR_OK, hr_stream_create(handle, &two));
	hr_native_stream native_one;
	CHECK_STATUS(HR_OK, hr__stream_native(device, one, &native_one));
	for (unsigned char round = 1; round < 10; round++) {
		CHECK_STATUS(HR_OK, hr_stream_fill(handle, at(&a, 0), round, 100, one));
		uint64_t freed = hr__device_epoch(device);
		CHECK_STATUS(HR_OK, hr__device_mark_timed(device, one, &first));
		CHECK_GT(first, freed);
		hold(native_one);
		CHECK_STATUS(HR_OK, hr__device_mark_timed(device, one, &second));
		/* Neither call waits for the blocked work. */
		waits = 0;
		CHECK_STATUS(HR_OK, hr__device_order(device, two, UINT64_C(1) << one, freed, &waits));
		CHECK_EQ(waits, 1);
		CHECK_STATUS(HR_OK, hr_stream_copy(handle, &seen, at(&a, 99), 1, HR_COPY_TO_HOST, two));
		CHECK_STATUS(HR_OK, hr_stream_synchronize(handle, two));
		if (now->real) CHECK_EQ(seen, round);
		CHECK_STATUS(HR_OK, hr__device_wait_idle(device, UINT64_C(1) << one, freed));
		CHECK_STATUS(HR_OK, hr__device_mark_time(device, one, first, &at_first));
		if (now->real) CHECK_STATUS(HR_NOT_READY, hr__device_mark_time(device, one, second, &at_second));
		let_go();
		CHECK_STATUS(HR_OK, hr_stream_fill(handle, at(&a, 0), 0, 100, one));
		CHECK_STATUS(HR_OK, hr__device_mark_timed(device, one, &third));
		CHECK_STATUS(HR_OK, hr__device_wait_idle(device, UINT64_C(1) << one, first));
		CHECK_STATUS(HR_OK, hr__device_mark_time(device, one, second, &at_second));
		CHECK_STATUS(HR_OK, hr__device_wait_idle(device, UINT64_C(1) << one, second));
		CHECK_STATUS(HR_OK, hr__device_mark_time(device, one, third, &at_third));
		CHECK_GE(at_second, at_first);
		CHECK_GE(at_third, at_second);
		if (!now->real) CHECK_EQ(at_second - at_first, 30000000); /* hold */
	}
	CHECK_STATUS(HR_INVALID_HANDLE, hr__device_mark_time(device, two, first, &at_first));
	CHECK_STATUS(HR_OK, hr_stream_destroy(handle, one));
	CHECK_STATUS(HR_INVALID_HANDLE, hr__device_mark_time(device, one, third, &at_first));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr__device_mark_timed(device, one, &first));
	CHECK_STATUS(HR_OK, hr_stream_destroy(handle, two));
	give(&a);
}

static void test_marks_are_waited_for_and_not_what_follows(void)
{
	on_each_device(marks_are_waited_for);
}

static void marks_are_many(void)
{
	enum { ALL = HR__MARKS + 50 };
	static uint64_t marks[ALL];
	hr_stream one;
	uint64_t at = 0, last = 0;
	if (!has_streams()) return;
	CHECK_STATUS(HR_OK, hr_stream_create(handle, &one));
	hr_native_stream native_one;
	CHECK_STATUS(HR_OK, hr__stream_native(device, one, &native_one));
	for (int i = 0; i < ALL; i++) {
		if (i % 100 == 0) CHECK_STATUS(HR_OK, hr__call_compute(device->physical, 1000, native_one));
		CHECK_STATUS(HR_OK, hr__device_mark_timed(device, one, &marks[i]));
	}
	int64_t waits = 0;
	CHECK_STATUS(HR_OK, hr__device_order(device, 0, UINT64_C(1) << one, marks[0] - 1, &waits)); /* forgotten: a later mark */
	CHECK_EQ(waits, 1);
	CHECK_STATUS(HR_OK, hr__device_wait_idle(device, UINT64_C(1) << one, marks[ALL - 1] - 1));
	for (int i = 0; i < ALL; i++) {
		hr_status status = hr__device_mark_time(device, one, marks[i], &at);
		CHECK_STATUS(i < ALL - (int)HR__MARKS ? HR_INVALID_HANDLE : HR_OK, status);
		CHECK_GE(at, last);
		last = at;
	}
	CHECK_STATUS(HR_OK, hr_stream_destroy(handle, one));
}

static void test_the_latest_marks_are_kept(void)
{
	on_each_device(marks_are_many);
}

static void count_up(void *argument)
{
	++*(int *)argument;
}

static void host_calls_run_in_order(void)
{
	int calls = 0;
	if (!device->physical->table->host_call) return;
	for (int i = 0; i < 3000; i++) CHECK_STATUS(HR_OK, hr__call_host_call(device->physical, count_up, &calls, 0));
	CHECK_STATUS(HR_OK, hr_stream_synchronize(handle, 0));
	CHECK_EQ(calls, 3000);
}

static void test_host_calls_run_in_order_and_none_is_lost(void)
{
	on_each_device(host_calls_run_in_order);
}

/* ---- threads ---- */

#define THREAD_ROUNDS 12

static void work_on_a_stream(void *argument, unsigned index)
{
	(void)argument;
	static const size_t bytes = 600;
	unsigned char out[600], back[600];
	for (unsigned round = 0; round < hr_test_scaled(THREAD_ROUNDS); round++) {
		memory a;
		hr_stream stream = 0;
		int64_t waits = 0;
		paint(out, bytes, index * 1000 + round);
		CHECK_STATUS(HR_OK, get(bytes, &a));
		if (has_streams()) CHECK_STATUS(HR_OK, hr_stream_create(handle, &stream));
		CHECK_STATUS(HR_OK, hr_stream_copy(handle, at(&a, 0), out, bytes, HR_COPY_TO_DEVICE, stream));
		uint64_t epoch = hr__device_epoch(device), mask = UINT64_C(1) << stream;
		if (round % 2) {
			CHECK_STATUS(HR_OK, hr__device_order(device, 0, mask, epoch, &waits));
			CHECK_STATUS(HR_OK, hr_stream_copy(handle, back, at(&a, 0), bytes, HR_COPY_TO_HOST, 0));
			CHECK_STATUS(HR_OK, hr_stream_synchronize(handle, 0));
		} else {
			CHECK_STATUS(HR_OK, hr__device_wait_idle(device, mask, epoch));
			CHECK_STATUS(HR_OK, hr_stream_copy(handle, back, at(&a, 0), bytes, HR_COPY_TO_HOST, stream));
			CHECK_STATUS(HR_OK, hr_stream_synchronize(handle, stream));
		}
		if (now->real) CHECK_BYTES(out, back, bytes);
		if (stream) CHECK_STATUS(HR_OK, hr_stream_destroy(handle, stream));
		give(&a);
	}
}

static void threads_do_not_mix(void)
{
	hr_test_threads(6, work_on_a_stream, NULL);
	CHECK_EQ(hr__load_relaxed(&device->physical->stream_mask), 1);
}

static void test_threads_with_streams_do_not_mix(void)
{
	on_each_device(threads_do_not_mix);
}

/* ---- reuse of memory across streams, as in an allocator ---- */

#define SHARED_BLOCKS 4
#define REUSE_ROUNDS 60

/* Threads reuse each other's blocks. The host never waits for the device: only the order of streams keeps the work apart. Under
 * ThreadSanitizer, which sees the emulated device's workers, a missing order is reported even if the bytes are correct. */
static struct {
	pthread_mutex_t mutex;
	memory memory;
	struct {
		bool taken;
		uint64_t mask, epoch;
	} blocks[SHARED_BLOCKS];
} reuse = { .mutex = PTHREAD_MUTEX_INITIALIZER };

static int take_shared(uint64_t *seed, uint64_t *mask, uint64_t *epoch)
{
	pthread_mutex_lock(&reuse.mutex);
	int start = (int)hr_rand_below(seed, SHARED_BLOCKS), found = -1;
	for (int i = 0; i < SHARED_BLOCKS && found < 0; i++) {
		if (!reuse.blocks[(start + i) % SHARED_BLOCKS].taken) found = (start + i) % SHARED_BLOCKS;
	}
	if (found >= 0) {
		reuse.blocks[found].taken = true;
		*mask = reuse.blocks[found].mask;
		*epoch = reuse.blocks[found].epoch;
	}
	pthread_mutex_unlock(&reuse.mutex);
	return found;
}

static void give_shared(int block, uint64_t mask)
{
	uint64_t epoch = hr__device_epoch(device);
	pthread_mutex_lock(&reuse.mutex);
	reuse.blocks[block].taken = false;
	reuse.blocks[block].mask = mask;
	reuse.blocks[block].epoch = epoch;
	pthread_mutex_unlock(&reuse.mutex);
}

static void reuse_blocks(void *argument, unsigned index)
{
	(void)argument;
	uint64_t seed = hr_test_seed() + index, rounds = hr_test_scaled(REUSE_ROUNDS), mask, epoch;
	unsigned char *seen = calloc(rounds, 1), *wanted = calloc(rounds, 1);
	hr_stream stream = 0;
	int64_t waits = 0;
	CHECK(seen != NULL && wanted != NULL);
	if (has_streams()) CHECK_STATUS(HR_OK, hr_stream_create(handle, &stream));
	for (uint64_t round = 0; round < rounds; round++) {
		int block = take_shared(&seed, &mask, &epoch);
		if (block < 0) continue;
		uint64_t offset = (uint64_t)block * 60;
		wanted[round] = (unsigned char)(1 + (hr_rand(&seed) & 0x7f));
		if (hr_rand_below(&seed, 8)) CHECK_STATUS(HR_OK, hr__device_order(device, stream, mask, epoch, &waits));
		else CHECK_STATUS(HR_OK, hr__device_wait_idle(device, mask, epoch));
		CHECK_STATUS(HR_OK, hr_stream_fill(handle, at(&reuse.memory, offset), wanted[round], 60, stream));
		CHECK_STATUS(HR_OK, hr_stream_copy(handle, &seen[round], at(&reuse.memory, offset + round % 60), 1, HR_COPY_TO_HOST, stream));
		give_shared(block, UINT64_C(1) << stream);
		if (hr_rand_below(&seed, 2)) CHECK_STATUS(HR_OK, hr__device_mark_timed(device, stream, NULL)); /* half of the frees have a mark */
		if (stream && hr_rand_below(&seed, 16) == 0) { /* another stream gets the slot while blocks still have its number */
			CHECK_STATUS(HR_OK, hr_stream_destroy(handle, stream));
			CHECK_STATUS(HR_OK, hr_stream_create(handle, &stream));
		}
	}
	CHECK_STATUS(HR_OK, hr_stream_synchronize(handle, stream));
	if (now->real) CHECK_BYTES(seen, wanted, rounds);
	if (stream) CHECK_STATUS(HR_OK, hr_stream_destroy(handle, stream));
	free(seen);
	free(wanted);
}

static void reuse_is_ordered(void)
{
	if (!has_streams()) return; /* then several threads share the default stream, and nothing orders them */
	memset(&reuse.blocks, 0, sizeof reuse.blocks);
	CHECK_STATUS(HR_OK, get(SHARED_BLOCKS * 60, &reuse.memory));
	hr_test_threads(5, reuse_blocks, NULL);
	give(&reuse.memory);
}

static void test_memory_reused_across_streams_is_never_touched_by_two(void)
{
	on_each_device(reuse_is_ordered);
}

/* ---- faults ---- */

/* Makes every kind of call. Returns the first failure; in any case nothing leaks. Releasing is tried twice. */
static hr_status everything(void)
{
	static unsigned char host[256];
	hr_device_info info = { .struct_size = sizeof info };
	hr_stream stream = 0;
	memory a;
	int64_t waits = 0;
	uint64_t mark = 0, ns;
	hr_status status = hr_device_get_info(handle, &info);
	if (status != HR_OK) return status;
	status = get(256, &a);
	if (status != HR_OK) return status;
	status = hr_stream_copy(handle, at(&a, 0), host, sizeof host, HR_COPY_TO_DEVICE, 0);
	if (status == HR_OK && has_streams()) status = hr_stream_create(handle, &stream);
	if (status == HR_OK) status = hr_stream_wait_stream(handle, stream, 0);
	if (status == HR_OK) status = hr_stream_fill(handle, at(&a, 0), 1, 10, stream);
	if (status == HR_OK) status = hr__device_mark_timed(device, stream, &mark);
	if (status == HR_OK) status = hr__device_order(device, 0, UINT64_C(1) << stream, mark - 1, &waits);
	if (status == HR_OK) status = hr__device_wait_idle(device, UINT64_C(1) << stream, mark - 1);
	if (status == HR_OK && has_streams()) {
		status = hr__device_mark_time(device, stream, mark, &ns);
		if (status == HR_NOT_READY) status = HR_OK; /* because the device was waited for in another way */
	}
	if (status == HR_OK) status = hr__device_order(device, 0, UINT64_C(1) << stream, hr__device_epoch(device), &waits);
	if (status == HR_OK) status = hr_stream_wait_stream(handle, stream, 0);
	if (status == HR_OK) status = hr_stream_copy(handle, host, at(&a, 0), sizeof host, HR_COPY_TO_HOST, stream);
	if (status == HR_OK) status = hr__device_wait_idle(device, 1 | UINT64_C(1) << stream, hr__device_epoch(device));
	if (status == HR_OK && hr__device_has_plain(device)) {
		uint64_t plain;
		status = hr__page_pool_plain_alloc(device, 100, &plain);
		if (status == HR_OK) CHECK(TWICE(hr__page_pool_plain_free(device, plain, 100)));
	}
	if (status == HR_OK) {
		void *block;
		status = hr__call_host_alloc(device->physical, 100, &block);
		if (status == HR_OK) CHECK(TWICE(hr__call_host_free(device->physical, block, 100)));
	}
	CHECK(TWICE(hr_stream_synchronize(handle, 0)));
	if (stream) CHECK(TWICE(hr_stream_destroy(handle, stream)) || TWICE(hr_stream_destroy(handle, stream)));
	give(&a);
	hr__page_pool_shrink(device);
	return status;
}

/* From setup to shutdown: settings, first use, all calls, the end. A failure during setup is a valid result. */
static hr_status whole_life(void)
{
	hr_status status = hr_device_find(now->name, &handle);
	if (status == HR_OK) status = hr__device_named(now->name, &device);
	if (status == HR_OK) {
		status = everything();
		CHECK_EQ(hr__page_pool_reserved(device), 0);
		CHECK_EQ(hr__load_relaxed(&device->physical->stream_mask), 1);
	}
	return status;
}

static void test_every_backend_call_may_fail_and_nothing_leaks(void)
{
	for (size_t i = 0; i < SUBJECTS; i++) {
		now = &subjects[i];
		if (!is_here(now)) continue;
		printf("# on %s\n", now->label);
		hr_fault_os_install();
		uint64_t nth = 1, failures = 0;
		for (;; nth++) {
			now->set_up();
			hr_backend_fail_nth(nth, false, nth % 2 ? HR_DEVICE_ERROR : HR_OUT_OF_MEMORY);
			hr_status status = whole_life();
			if (status != HR_OK) failures++;
			bool reached = hr_backend_calls() >= nth;
			hr_backend_fail_nth(0, false, HR_OK);
			hr__devices_shutdown();
			CHECK(hr_fault_os_is_clean());
			if (!reached) CHECK_STATUS(HR_OK, status);
			if (!reached) break;
		}
		CHECK_GT(failures, nth / 3);
		hr_fault_os_uninstall();
	}
}

static void test_a_device_that_fails_permanently_leaks_nothing(void)
{
	unsetenv("FAKE_CUDA_CHECK"); /* only our own leaks: pages that the driver refuses to release remain in it */
	for (size_t i = 0; i < SUBJECTS; i++) {
		now = &subjects[i];
		if (!is_here(now)) continue;
		hr_fault_os_install();
		for (uint64_t nth = 1; nth < 6; nth++) {
			now->set_up();
			hr_backend_fail_nth(nth, true, HR_DEVICE_ERROR);
			hr_status status = hr__device_named(now->name, &device);
			hr__page_id pages[4];
			if (status == HR_OK && page()) status = hr__page_pool_take(device, 4, pages);
			CHECK_STATUS(HR_DEVICE_ERROR, status == HR_OK && !page() ? HR_DEVICE_ERROR : status);
			hr__devices_shutdown();
			hr_backend_fail_nth(0, false, HR_OK);
			CHECK(hr_fault_os_is_clean());
		}
		hr_fault_os_uninstall();
	}
}

static void test_every_system_call_may_fail_and_nothing_leaks(void)
{
	for (size_t i = 0; i < SUBJECTS; i++) {
		now = &subjects[i];
		if (!is_here(now)) continue;
		printf("# on %s\n", now->label);
		hr_fault_os_install();
		for (uint64_t nth = 1;; nth++) {
			now->set_up();
			hr_fault_os_fail_nth(nth, false, ENOMEM);
			hr_status status = whole_life();
			bool reached = hr_fault_os_calls() >= nth;
			hr_fault_os_fail_nth(0, false, 0);
			hr__devices_shutdown();
			CHECK(hr_fault_os_is_clean());
			if (!reached) CHECK_STATUS(HR_OK, status);
			if (!reached) break;
		}
		hr_fault_os_uninstall();
	}
}

TEST_MAIN(T(test_streams_come_and_go), T(test_imported_streams_are_known_by_one_number),
          T(test_forgotten_imports_are_neither_waited_for_nor_used), T(test_a_stream_keeps_order), T(test_a_stream_waits_for_another), T(test_order_covers_what_was_freed_before), T(test_events_mark_moments),
          T(test_the_number_of_events_is_the_requested_one), T(test_marks_are_waited_for_and_not_what_follows),
          T(test_the_latest_marks_are_kept), T(test_host_calls_run_in_order_and_none_is_lost),
          T(test_threads_with_streams_do_not_mix), T(test_memory_reused_across_streams_is_never_touched_by_two),
          T(test_every_backend_call_may_fail_and_nothing_leaks), T(test_a_device_that_fails_permanently_leaks_nothing),
          T(test_every_system_call_may_fail_and_nothing_leaks))
