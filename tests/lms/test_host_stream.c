/* test_host_stream.c - HR_STREAM_HOST: host code that accesses device memory never conflicts with the device.
 *
 * The emulated device is slow (a link of 40 MB/s, or 40 ms for each fill), so that without waiting the bytes would be wrong. Tests
 * check bytes, waits and calls of the device, never times. */
#include "fixture.h"
#include "core/device/device.h"
#include "headroom_backend.h"
#include "core/lms/lms.h"
#include "test.h"

#define KIB UINT64_C(1024)
#define MIB (KIB * KIB)
#define SLOW_LINK (40 * UINT64_C(1000000))
#define SLOW_FILL (40 * UINT64_C(1000000)) /* ns */

static hr_device device;
static hr_allocator allocator;

static void set_up(uint64_t limit, uint64_t link, uint64_t latency)
{
	hr_emulated_options emulated;
	setenv("HEADROOM_CUDA", "0", 1);
	CHECK_STATUS(HR_OK, hr_emulated_options_init(&emulated));
	emulated.memory_bytes = 64 * MIB;
	emulated.page_bytes = 64 * KIB;
	emulated.link_bytes_per_s = link;
	emulated.kernel_latency_ns = latency;
	CHECK_STATUS(HR_OK, hr_emulated_configure(&emulated));
	CHECK_STATUS(HR_OK, hr_device_find("GPU:0", &device));
	allocator = fixture_allocator(device, limit);
}

static void set_up_lms(uint64_t limit, bool defrag)
{
	set_up(limit, SLOW_LINK, 0);
	hr_lms_options options = fixture_lms_options("lru", 64 * MIB);
	options.defrag = defrag;
	CHECK_STATUS(HR_OK, hr_lms_configure(allocator, &options));
}

static void tear_down(void)
{
	CHECK_STATUS(HR_OK, hr_allocator_check(allocator));
	CHECK_STATUS(HR_OK, hr_allocator_destroy_all(allocator));
	CHECK_STATUS(HR_OK, hr_shutdown());
}

static hr_stream new_stream(void)
{
	return fixture_stream(device);
}

static void *alloc_on(hr_stream stream, size_t bytes)
{
	void *block;
	hr_request request = HR_REQUEST(bytes);
	request.stream = stream;
	CHECK_STATUS(HR_OK, hr_alloc(allocator, &request, &block));
	return block;
}

static void *alloc_bytes(size_t bytes)
{
	void *block;
	CHECK_STATUS(HR_OK, hr_alloc_bytes(allocator, bytes, &block));
	return block;
}

static int64_t waits(void)
{
	hr_stats stats = fixture_stats(allocator);
	return stats.num_stream_waits;
}

static size_t count_not(const void *block, unsigned char value, size_t bytes)
{
	size_t wrong = 0;
	for (size_t i = 0; i < bytes; i++) wrong += ((const unsigned char *)block)[i] != value;
	return wrong;
}

static hr_tensor create(size_t bytes)
{
	return fixture_tensor(allocator, bytes);
}

static void *pin(hr_tensor tensor, hr_access access, hr_stream stream)
{
	void *at;
	CHECK_STATUS(HR_OK, hr_tensor_pin(tensor, access, stream));
	CHECK_STATUS(HR_OK, hr_tensor_get_address(tensor, &at));
	return at;
}

static void fill(hr_tensor tensor, size_t bytes, unsigned char value, hr_stream stream)
{
	void *at = pin(tensor, HR_OVERWRITE, stream);
	CHECK_STATUS(HR_OK, hr_stream_fill(device, at, value, bytes, stream));
	CHECK_STATUS(HR_OK, hr_tensor_unpin(tensor, stream));
}

static void write_on_host(hr_tensor tensor, size_t bytes, unsigned char value, hr_access access)
{
	void *at = pin(tensor, access, HR_STREAM_HOST);
	memset(at, value, bytes);
	CHECK_STATUS(HR_OK, hr_tensor_unpin(tensor, HR_STREAM_HOST));
}

/* Counts wrong bytes through a copy by the device. */
static size_t wrong_on_device(hr_tensor tensor, size_t bytes, unsigned char value)
{
	unsigned char *seen = malloc(bytes);
	void *at = pin(tensor, HR_READ, HR_STREAM_DEFAULT);
	CHECK_STATUS(HR_OK, hr_stream_copy(device, seen, at, bytes, HR_COPY_TO_HOST, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_stream_synchronize(device, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_tensor_unpin(tensor, HR_STREAM_DEFAULT));
	size_t wrong = count_not(seen, value, bytes);
	free(seen);
	return wrong;
}

static size_t wrong_on_host(hr_tensor tensor, size_t bytes, unsigned char value)
{
	size_t wrong = count_not(pin(tensor, HR_READ, HR_STREAM_HOST), value, bytes);
	CHECK_STATUS(HR_OK, hr_tensor_unpin(tensor, HR_STREAM_HOST));
	return wrong;
}

/* ---- blocks ---- */

static void test_hr_alloc_bytes_waits_for_the_copy_of_an_evicted_tensor(void)
{
	set_up_lms(8 * MIB, false);
	hr_tensor tensor = create(6 * MIB);
	fill(tensor, 6 * MIB, 0x5a, HR_STREAM_DEFAULT);
	void *block = alloc_bytes(6 * MIB);
	memset(block, 0xee, 6 * MIB);
	CHECK_STATUS(HR_OK, hr_free(allocator, block, HR_STREAM_DEFAULT));
	CHECK_EQ(wrong_on_device(tensor, 6 * MIB, 0x5a), 0);
	tear_down();
}

static void host_after_fill(size_t bytes)
{
	hr_stream stream = new_stream();
	void *block = alloc_on(stream, bytes);
	CHECK_STATUS(HR_OK, hr_stream_fill(device, block, 0xaa, bytes, stream));
	CHECK_STATUS(HR_OK, hr_free(allocator, block, stream));
	void *again = alloc_bytes(bytes);
	CHECK(again == block);
	memset(again, 0x11, bytes);
	CHECK_STATUS(HR_OK, hr_stream_synchronize(device, stream));
	CHECK_EQ(count_not(again, 0x11, bytes), 0);
	CHECK_EQ(waits(), 1);
	CHECK_STATUS(HR_OK, hr_free(allocator, again, HR_STREAM_HOST));
	CHECK_STATUS(HR_OK, hr_stream_destroy(device, stream));
}

static void test_hr_alloc_bytes_waits_for_a_fill_of_another_stream(void)
{
	set_up(32 * MIB, 0, SLOW_FILL);
	host_after_fill(4 * MIB);
	tear_down();
}

static void test_a_small_block_of_the_thread_cache_is_waited_for(void)
{
	set_up(32 * MIB, 0, SLOW_FILL);
	host_after_fill(4 * KIB);
	tear_down();
}

static void test_a_default_stream_is_waited_for_like_any_other(void)
{
	set_up(32 * MIB, 0, SLOW_FILL);
	void *block = alloc_bytes(MIB);
	CHECK_STATUS(HR_OK, hr_stream_fill(device, block, 0xaa, MIB, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_free(allocator, block, HR_STREAM_DEFAULT));
	void *again = alloc_on(HR_STREAM_HOST, MIB);
	CHECK(again == block);
	memset(again, 0x11, MIB);
	CHECK_STATUS(HR_OK, hr_stream_synchronize(device, HR_STREAM_DEFAULT));
	CHECK_EQ(count_not(again, 0x11, MIB), 0);
	tear_down();
}

/* Stream two has no work, only a wait; the fill is on stream one. */
static void test_a_block_that_passed_through_an_idle_stream_is_waited_for(void)
{
	set_up(32 * MIB, 0, SLOW_FILL);
	hr_stream one = new_stream(), two = new_stream();
	void *block = alloc_on(one, MIB);
	CHECK_STATUS(HR_OK, hr_stream_fill(device, block, 0xaa, MIB, one));
	CHECK_STATUS(HR_OK, hr_free(allocator, block, one));
	CHECK(alloc_on(two, MIB) == block);
	CHECK_STATUS(HR_OK, hr_free(allocator, block, two));
	CHECK(alloc_bytes(MIB) == block);
	memset(block, 0x11, MIB);
	CHECK_STATUS(HR_OK, hr_stream_synchronize(device, one));
	CHECK_EQ(count_not(block, 0x11, MIB), 0);
	tear_down();
}

static void test_without_work_on_the_device_nothing_is_recorded_or_waited_for(void)
{
	static const size_t sizes[] = { 256, 64 * 1024, 1024 * 1024 };
	set_up(32 * MIB, 0, 0);
	hr_stream stream = new_stream();
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
		CHECK_STATUS(HR_OK, hr_free(allocator, alloc_on(stream, sizes[i]), stream)); /* maps all memory that is needed */
	uint64_t calls = hr_backend_calls();
	for (unsigned round = 0; round < 1000; round++) {
		size_t bytes = sizes[round % 3];
		hr_stream last = round & 8 ? stream : round & 16 ? HR_STREAM_HOST : HR_STREAM_DEFAULT;
		CHECK_STATUS(HR_OK, hr_free(allocator, alloc_bytes(bytes), last));
	}
	CHECK_EQ(hr_backend_calls(), calls);
	CHECK_EQ(waits(), 0);
	/* Nor after the host has waited for all work. */
	void *block = alloc_bytes(MIB);
	CHECK_STATUS(HR_OK, hr_stream_fill(device, block, 1, MIB, stream));
	CHECK_STATUS(HR_OK, hr_stream_synchronize(device, stream));
	CHECK_STATUS(HR_OK, hr_free(allocator, block, stream));
	calls = hr_backend_calls();
	CHECK(alloc_bytes(MIB) == block);
	CHECK_EQ(hr_backend_calls(), calls);
	CHECK_EQ(waits(), 0);
	tear_down();
}

static void test_what_the_host_freed_is_free_for_every_stream_at_once(void)
{
	set_up(32 * MIB, 0, SLOW_FILL);
	hr_stream stream = new_stream();
	void *busy = alloc_on(HR_STREAM_DEFAULT, MIB), *block = alloc_bytes(MIB);
	CHECK_STATUS(HR_OK, hr_stream_fill(device, busy, 1, MIB, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_free(allocator, block, HR_STREAM_HOST));
	CHECK(alloc_on(stream, MIB) == block);
	CHECK_EQ(waits(), 0);
	tear_down();
}

static void test_a_recorded_stream_is_waited_for_after_the_host_freed(void)
{
	set_up(32 * MIB, 0, SLOW_FILL);
	hr_allocation_info info = { .struct_size = sizeof info };
	hr_stream stream = new_stream();
	void *block = alloc_bytes(MIB);
	CHECK_STATUS(HR_OK, hr_allocation_record_stream(allocator, block, HR_STREAM_HOST));
	CHECK_STATUS(HR_OK, hr_allocation_get_info(allocator, block, &info));
	CHECK_EQ(info.streams, 0);
	CHECK_STATUS(HR_OK, hr_allocation_record_stream(allocator, block, stream));
	CHECK_STATUS(HR_OK, hr_allocation_get_info(allocator, block, &info));
	CHECK_EQ(info.streams, UINT64_C(1) << stream);
	CHECK_STATUS(HR_OK, hr_stream_fill(device, block, 0xaa, MIB, stream));
	CHECK_STATUS(HR_OK, hr_free(allocator, block, HR_STREAM_HOST));
	CHECK(alloc_bytes(MIB) == block);
	memset(block, 0x11, MIB);
	CHECK_STATUS(HR_OK, hr_stream_synchronize(device, stream));
	CHECK_EQ(count_not(block, 0x11, MIB), 0);
	tear_down();
}

/* One thread allocates for the host while another keeps the streams busy. */
static void *keep_busy(void *stop)
{
	hr_stream stream = new_stream();
	for (unsigned value = 0; !atomic_load((atomic_bool *)stop); value++) {
		void *block = alloc_on(stream, 256 * KIB);
		CHECK_STATUS(HR_OK, hr_stream_fill(device, block, (unsigned char)(value | 0x80), 256 * KIB, stream));
		CHECK_STATUS(HR_OK, hr_free(allocator, block, stream));
	}
	return NULL;
}

static void test_threads_of_the_host_and_of_streams_share_memory(void)
{
	static atomic_bool stop;
	pthread_t threads[2];
	set_up(2 * MIB, 0, 0);
	for (size_t i = 0; i < 2; i++) CHECK_EQ(pthread_create(&threads[i], NULL, keep_busy, &stop), 0);
	for (uint64_t round = 0, rounds = hr_test_scaled(300); round < rounds; round++) {
		unsigned char value = (unsigned char)(round & 0x7f);
		void *block = alloc_bytes(256 * KIB);
		memset(block, value, 256 * KIB);
		CHECK_EQ(count_not(block, value, 256 * KIB), 0);
		CHECK_STATUS(HR_OK, hr_free(allocator, block, HR_STREAM_HOST));
	}
	atomic_store(&stop, true);
	for (size_t i = 0; i < 2; i++) pthread_join(threads[i], NULL);
	tear_down();
}

/* ---- streams ---- */

static void test_copies_and_fills_of_the_host_are_done_when_they_return(void)
{
	set_up(32 * MIB, SLOW_LINK, SLOW_FILL);
	unsigned char from[4096], to[4096];
	memset(from, 0x33, sizeof from);
	void *block = alloc_bytes(sizeof from);
	CHECK_STATUS(HR_OK, hr_stream_fill(device, block, 0x22, sizeof from, HR_STREAM_HOST));
	CHECK_EQ(count_not(block, 0x22, sizeof from), 0);
	CHECK_STATUS(HR_OK, hr_stream_copy(device, block, from, sizeof from, HR_COPY_TO_DEVICE, HR_STREAM_HOST));
	CHECK_EQ(count_not(block, 0x33, sizeof from), 0);
	CHECK_STATUS(HR_OK, hr_stream_copy(device, to, block, sizeof to, HR_COPY_TO_HOST, HR_STREAM_HOST));
	CHECK_EQ(count_not(to, 0x33, sizeof to), 0);
	tear_down();
}

static void test_the_host_waits_for_streams_and_streams_never_for_the_host(void)
{
	set_up(32 * MIB, 0, SLOW_FILL);
	hr_stream stream = new_stream();
	void *block = alloc_on(stream, MIB);
	CHECK_STATUS(HR_OK, hr_stream_fill(device, block, 0x22, MIB, stream));
	CHECK_STATUS(HR_OK, hr_stream_wait_stream(device, HR_STREAM_HOST, stream));
	CHECK_EQ(count_not(block, 0x22, MIB), 0);
	uint64_t calls = hr_backend_calls();
	CHECK_STATUS(HR_OK, hr_stream_wait_stream(device, stream, HR_STREAM_HOST));
	CHECK_STATUS(HR_OK, hr_stream_wait_stream(device, HR_STREAM_HOST, HR_STREAM_HOST));
	CHECK_STATUS(HR_OK, hr_stream_synchronize(device, HR_STREAM_HOST));
	CHECK_EQ(hr_backend_calls(), calls);
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_stream_destroy(device, HR_STREAM_HOST));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_stream_synchronize(device, HR_STREAM_HOST - 1));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_free(allocator, block, HR_STREAM_MAX));
	tear_down();
}

static void test_the_host_device_takes_the_host_as_a_stream(void)
{
	hr_allocator cpu;
	void *block;
	CHECK_STATUS(HR_OK, hr_allocator_get_default("CPU:0", &cpu));
	CHECK_STATUS(HR_OK, hr_alloc_bytes(cpu, 4096, &block));
	memset(block, 1, 4096);
	CHECK_STATUS(HR_OK, hr_free(cpu, block, HR_STREAM_HOST));
	CHECK_STATUS(HR_OK, hr_device_find("CPU:0", &device));
	CHECK_STATUS(HR_OK, hr_stream_wait_stream(device, HR_STREAM_HOST, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_alloc_bytes(cpu, 4096, &block));
	CHECK_STATUS(HR_OK, hr_stream_fill(device, block, 7, 4096, HR_STREAM_HOST));
	CHECK_EQ(count_not(block, 7, 4096), 0);
	CHECK_STATUS(HR_OK, hr_free(cpu, block, HR_STREAM_HOST));
	CHECK_STATUS(HR_OK, hr_shutdown());
}

/* If the host cannot access the memory, hr_alloc_bytes is for the default stream and does not wait. */
static void test_hr_alloc_bytes_does_not_wait_where_the_host_has_no_access(void)
{
	CHECK_STATUS(HR_OK, hr_device_find("SIM:0", &device));
	CHECK_STATUS(HR_OK, hr_allocator_create(device, NULL, &allocator));
	void *block = alloc_bytes(MIB);
	CHECK_STATUS(HR_OK, hr_stream_fill(device, block, 1, MIB, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_free(allocator, block, HR_STREAM_DEFAULT));
	uint64_t calls = hr_backend_calls();
	CHECK(alloc_bytes(MIB) == block);
	CHECK_EQ(hr_backend_calls(), calls);
	CHECK_STATUS(HR_OK, hr_free(allocator, block, HR_STREAM_DEFAULT));
	CHECK(alloc_on(HR_STREAM_HOST, MIB) == block);
	CHECK_GT(hr_backend_calls(), calls);
	CHECK_EQ(waits(), 1);
	tear_down();
}

/* ---- tensors ---- */

static void test_a_tensor_pinned_for_the_host_is_restored(void)
{
	set_up_lms(8 * MIB, false);
	hr_tensor tensor = create(4 * MIB);
	fill(tensor, 4 * MIB, 0x5a, HR_STREAM_DEFAULT);
	CHECK_STATUS(HR_OK, hr_tensor_evict(tensor));
	CHECK_EQ(wrong_on_host(tensor, 4 * MIB, 0x5a), 0);
	hr_lms_stats stats = fixture_lms_stats(allocator);
	CHECK_GT(stats.stall_ns, 0);
	CHECK_STATUS(HR_OK, hr_lms_check(allocator));
	tear_down();
}

static void test_a_tensor_pinned_for_the_host_is_used_by_no_stream(void)
{
	set_up(32 * MIB, 0, SLOW_FILL);
	hr_stream stream = new_stream();
	hr_tensor tensor = create(4 * MIB);
	fill(tensor, 4 * MIB, 0xaa, stream);
	write_on_host(tensor, 4 * MIB, 0x11, HR_WRITE);
	CHECK_STATUS(HR_OK, hr_stream_synchronize(device, stream));
	CHECK_EQ(wrong_on_host(tensor, 4 * MIB, 0x11), 0);
	tear_down();
}

static void test_a_new_tensor_of_the_host_gets_memory_that_is_idle(void)
{
	set_up(32 * MIB, 0, SLOW_FILL);
	hr_stream stream = new_stream();
	void *block = alloc_on(stream, 4 * MIB);
	CHECK_STATUS(HR_OK, hr_stream_fill(device, block, 0xaa, 4 * MIB, stream));
	CHECK_STATUS(HR_OK, hr_free(allocator, block, stream));
	hr_tensor tensor = create(4 * MIB);
	write_on_host(tensor, 4 * MIB, 0x11, HR_OVERWRITE);
	CHECK_STATUS(HR_OK, hr_stream_synchronize(device, stream));
	CHECK_EQ(wrong_on_host(tensor, 4 * MIB, 0x11), 0);
	tear_down();
}

/* Stream two has only a pin, but the memory of the tensor has the fill of stream one: the host's pin waits for that. */
static void test_a_tensor_whose_memory_another_stream_allocated_is_waited_for(void)
{
	set_up(32 * MIB, 0, SLOW_FILL);
	hr_stream one = new_stream(), two = new_stream();
	void *block = alloc_on(one, 4 * MIB);
	CHECK_STATUS(HR_OK, hr_stream_fill(device, block, 0xaa, 4 * MIB, one));
	CHECK_STATUS(HR_OK, hr_free(allocator, block, one));
	hr_tensor tensor = create(4 * MIB);
	CHECK_STATUS(HR_OK, hr_tensor_pin(tensor, HR_OVERWRITE, two));
	void *at = pin(tensor, HR_WRITE, HR_STREAM_HOST); /* still pinned */
	CHECK(at == block);
	memset(at, 0x11, 4 * MIB);
	CHECK_STATUS(HR_OK, hr_stream_synchronize(device, one));
	CHECK_EQ(count_not(at, 0x11, 4 * MIB), 0);
	CHECK_STATUS(HR_OK, hr_tensor_unpin(tensor, HR_STREAM_HOST));
	CHECK_STATUS(HR_OK, hr_tensor_unpin(tensor, two));
	tear_down();
}

/* A tensor that no stream ever used is evicted, restored, replaced and destroyed. */
static void test_tensors_used_by_the_host_alone_are_evicted_and_restored(void)
{
	set_up_lms(8 * MIB, false);
	hr_tensor first = create(6 * MIB), second = create(6 * MIB);
	write_on_host(first, 6 * MIB, 0x11, HR_OVERWRITE);
	write_on_host(second, 6 * MIB, 0x22, HR_OVERWRITE); /* evicts the first, and waits for its copy */
	CHECK_EQ(wrong_on_host(first, 6 * MIB, 0x11), 0);
	CHECK_EQ(wrong_on_device(second, 6 * MIB, 0x22), 0);
	write_on_host(first, 6 * MIB, 0x33, HR_WRITE);
	CHECK_STATUS(HR_OK, hr_tensor_evict(first));
	CHECK_EQ(wrong_on_host(first, 6 * MIB, 0x33), 0);
	CHECK_STATUS(HR_OK, hr_lms_check(allocator));
	CHECK_STATUS(HR_OK, hr_tensor_destroy(first)); /* with a valid host copy and no stream left */
	write_on_host(second, 6 * MIB, 0x44, HR_OVERWRITE);
	CHECK_STATUS(HR_OK, hr_tensor_destroy(second));
	void *block = alloc_bytes(6 * MIB);
	CHECK_STATUS(HR_OK, hr_free(allocator, block, HR_STREAM_HOST));
	CHECK_STATUS(HR_OK, hr_lms_check(allocator));
	tear_down();
}

/* The host writes while an early copy is pending: that copy must not see the write, and is invalid afterwards. */
static void test_a_host_write_waits_for_the_copy_that_reads_the_tensor(void)
{
	set_up_lms(16 * MIB, false);
	hr_tensor tensor = create(4 * MIB);
	fill(tensor, 4 * MIB, 0x5a, HR_STREAM_DEFAULT);
	hr_status status;
	hr__tensor *record = hr__tensor_of(tensor, &status);
	uint64_t word = hr__load_acquire(&record->word);
	CHECK(hr__state_begin_eviction(record, word));
	CHECK_STATUS(HR_OK, hr__move_copy_to_host(record));
	hr__state_end_eviction(record, HR__PLACE_RESIDENT);
	uint64_t copied = hr__load_relaxed(&record->copy_epoch);
	CHECK_GT(copied, 0);
	void *at = pin(tensor, HR_WRITE, HR_STREAM_HOST);
	int64_t made = 0;
	uint64_t calls = hr_backend_calls();
	CHECK_STATUS(HR_OK, hr__device_order(record->lms->device, HR_STREAM_HOST, hr__stream_bit(record->lms->out_stream), copied, &made));
	CHECK_EQ(made, 0); /* it was waited for before */
	CHECK_EQ(hr_backend_calls(), calls);
	memset(at, 0x66, 4 * MIB);
	CHECK_STATUS(HR_OK, hr_tensor_unpin(tensor, HR_STREAM_HOST));
	CHECK_STATUS(HR_OK, hr_tensor_evict(tensor));
	CHECK_EQ(wrong_on_device(tensor, 4 * MIB, 0x66), 0);
	tear_down();
}

/* Defragmentation: a tensor that the host has pinned is not moved, although its address was not taken. */
static void test_a_tensor_pinned_for_the_host_is_not_moved(void)
{
	enum { COUNT = 6 };
	hr_tensor tensors[COUNT];
	set_up_lms(6 * MIB, true);
	for (unsigned i = 0; i < COUNT; i++) {
		tensors[i] = create(MIB);
		fill(tensors[i], MIB, (unsigned char)(i + 1), HR_STREAM_DEFAULT);
	}
	for (unsigned i = 1; i < COUNT; i += 2) {
		CHECK_STATUS(HR_OK, hr_tensor_pin(tensors[i], HR_WRITE, HR_STREAM_HOST));
		hr_status status;
		CHECK(hr__load_relaxed(&hr__tensor_of(tensors[i], &status)->word) & HR__WORD_ADDRESSED);
	}
	for (unsigned i = 1; i < COUNT; i += 2) {
		void *at;
		CHECK_STATUS(HR_OK, hr_tensor_get_address(tensors[i], &at));
		CHECK_EQ(count_not(at, (unsigned char)(i + 1), MIB), 0);
		CHECK_STATUS(HR_OK, hr_tensor_unpin(tensors[i], HR_STREAM_HOST));
	}
	tear_down();
}

static void test_verify_reads_what_the_host_wrote(void)
{
	hr_lms_options options;
	set_up(16 * MIB, 0, 0);
	CHECK_STATUS(HR_OK, hr_lms_options_init(&options));
	options.enabled = options.verify = true;
	options.policy = "lru";
	options.host_limit = 64 * MIB;
	CHECK_STATUS(HR_OK, hr_lms_configure(allocator, &options));
	hr_tensor tensor = create(4 * MIB);
	write_on_host(tensor, 4 * MIB, 0x11, HR_OVERWRITE);
	CHECK_STATUS(HR_OK, hr_tensor_evict(tensor));
	CHECK_EQ(wrong_on_host(tensor, 4 * MIB, 0x11), 0);
	memset(pin(tensor, HR_READ, HR_STREAM_HOST), 0x22, 1);
	CHECK_STATUS(HR_CORRUPT, hr_tensor_unpin(tensor, HR_STREAM_HOST)); /* written through a read pin */
	tear_down();
}

static void test_learned_steps_of_the_host_keep_their_bytes(void)
{
	hr_tensor tensors[4];
	set_up(4 * MIB, 0, 0);
	fixture_lms(allocator, "learned", 64 * MIB);
	for (unsigned i = 0; i < 4; i++) {
		tensors[i] = create(2 * MIB - 64 * KIB);
		write_on_host(tensors[i], 2 * MIB - 64 * KIB, (unsigned char)i, HR_OVERWRITE);
	}
	for (unsigned step = 1; step <= 6; step++) {
		CHECK_STATUS(HR_OK, hr_step_begin(allocator));
		for (unsigned i = 0; i < 4; i++) {
			CHECK_EQ(wrong_on_host(tensors[i], 2 * MIB - 64 * KIB, (unsigned char)(i + 4 * (step - 1))), 0);
			write_on_host(tensors[i], 2 * MIB - 64 * KIB, (unsigned char)(i + 4 * step), HR_WRITE);
		}
		CHECK_STATUS(HR_OK, hr_step_end(allocator));
	}
	CHECK_STATUS(HR_OK, hr_lms_check(allocator));
	tear_down();
}

TEST_MAIN(T(test_hr_alloc_bytes_waits_for_the_copy_of_an_evicted_tensor),
          T(test_hr_alloc_bytes_waits_for_a_fill_of_another_stream),
          T(test_a_small_block_of_the_thread_cache_is_waited_for),
          T(test_a_default_stream_is_waited_for_like_any_other),
          T(test_a_block_that_passed_through_an_idle_stream_is_waited_for),
          T(test_without_work_on_the_device_nothing_is_recorded_or_waited_for),
          T(test_what_the_host_freed_is_free_for_every_stream_at_once),
          T(test_a_recorded_stream_is_waited_for_after_the_host_freed),
          T(test_threads_of_the_host_and_of_streams_share_memory),
          T(test_copies_and_fills_of_the_host_are_done_when_they_return),
          T(test_the_host_waits_for_streams_and_streams_never_for_the_host),
          T(test_the_host_device_takes_the_host_as_a_stream),
          T(test_hr_alloc_bytes_does_not_wait_where_the_host_has_no_access),
          T(test_a_tensor_pinned_for_the_host_is_restored),
          T(test_a_tensor_pinned_for_the_host_is_used_by_no_stream),
          T(test_a_new_tensor_of_the_host_gets_memory_that_is_idle),
          T(test_a_tensor_whose_memory_another_stream_allocated_is_waited_for),
          T(test_tensors_used_by_the_host_alone_are_evicted_and_restored),
          T(test_a_host_write_waits_for_the_copy_that_reads_the_tensor),
          T(test_a_tensor_pinned_for_the_host_is_not_moved),
          T(test_verify_reads_what_the_host_wrote),
          T(test_learned_steps_of_the_host_keep_their_bytes))
