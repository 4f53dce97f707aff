/* test_device_pinned.c - pinned host memory as a device: reused in stream order, allocated in slabs, within its limit, and
 * independent of other devices.
 *
 * Runs on the emulated and the simulated device, on the host itself (no streams, no host_alloc), and on the CUDA backend with the
 * stand-in driver of tests/fake_cuda ($HEADROOM_FAKE_CUDA). The number and the size of pinned ranges are counted on a device of the
 * test's own: a simulated one whose host_alloc and host_free count. */
#include "fixture.h"
#include "core/device/internal.h"
#include "fake_cuda/load.h"
#include "fault_os.h"
#include "headroom_oom.h"
#include "support_stats.h"
#include "test.h"

#define KIB UINT64_C(1024)
#define MIB (KIB * KIB)
#define GIB (KIB * MIB)
#define MS UINT64_C(1000000)
#define SLAB HR__PINNED_SLAB

/* ---- devices ---- */

typedef struct subject {
	const char *name;   /* of the device */
	const char *pinned; /* of its host memory */
	void (*set_up)(void);
	bool real; /* backed by memory */
	bool streams;
} subject;

static void set_up_cuda(void)
{
	fake_cuda_load("whole");
}

static void set_up_emulated(void)
{
	fixture_configure_emulated(64 * MIB, 64 * KIB, 0);
}

static void set_up_nothing(void)
{
}

static const subject emulated = { "GPU:0", "GPU:0 host memory", set_up_emulated, true, true };
static const subject simulated = { "SIM:0", "SIM:0 host memory", set_up_nothing, false, true };
static const subject cuda = { "GPU:0", "GPU:0 host memory", set_up_cuda, true, true };
static const subject cpu = { "CPU:0", "CPU:0 host memory", set_up_nothing, true, false };

static const subject *now;
static hr__device *device, *pinned;
static hr_device handle;

static hr__device *pin(uint64_t limit)
{
	hr__device *made = NULL;
	CHECK_STATUS(HR_OK, hr__device_pinned(device, limit, &made));
	return made;
}

static void use(const subject *wanted, uint64_t limit)
{
	now = wanted;
	now->set_up();
	CHECK_STATUS(HR_OK, hr__device_named(now->name, &device));
	handle = hr__device_handle(device);
	pinned = pin(limit);
}

static hr_allocator open_on(hr__device *on, bool thread_cache)
{
	hr_allocator_options options;
	hr_allocator allocator;
	hr_allocator_options_init(&options);
	options.thread_cache = thread_cache;
	CHECK_STATUS(HR_OK, hr_allocator_create(hr__device_handle(on), &options, &allocator));
	return allocator;
}

static void *take(hr_allocator allocator, uint64_t bytes, hr_stream stream)
{
	void *block = NULL;
	hr_request request = HR_REQUEST(bytes);
	request.stream = stream;
	CHECK_STATUS(HR_OK, hr_alloc(allocator, &request, &block));
	return block;
}

static hr_stream new_stream(void)
{
	hr_stream stream = HR_STREAM_DEFAULT;
	if (now->streams) CHECK_STATUS(HR_OK, hr_stream_create(handle, &stream));
	return stream;
}

static hr_device_info info_of(const hr__device *of)
{
	hr_device_info info = { .struct_size = sizeof info };
	CHECK_STATUS(HR_OK, hr_device_get_info(hr__device_handle(of), &info));
	return info;
}

/* Checks that statistics, chunks and the checker agree. */
static void look(hr_allocator allocator)
{
	chunk_census census = { 0 };
	hr_stats stats = checked_stats(allocator);
	census_take(allocator, &stats, &census);
	CHECK_STATUS(HR_OK, hr_allocator_check(allocator));
	CHECK_EQ(stats.bytes_reserved, hr__page_pool_reserved(pinned));
	CHECK_LE(hr__page_pool_reserved(pinned), hr__device_reservable(pinned));
}

static bool all_bytes_are(const unsigned char *block, uint64_t bytes, unsigned char value)
{
	uint64_t i = 0;
	while (i < bytes && block[i] == value) i++;
	return i == bytes;
}

/* The stand-in driver and the backend's host memory are in their initial state. */
static void check_end(void)
{
	CHECK_EQ(hr__page_pool_reserved(pinned), 0);
	CHECK_STATUS(HR_OK, hr_shutdown());
	if (now != &cuda) return;
	fake_cuda_live live;
	fake.get_live(&live);
	CHECK_EQ(live.retained + live.reservations + live.handles + live.mappings + live.plain + live.registered + live.streams +
	             live.events,
	         0);
}

/* ---- a device that counts ---- */

static struct {
	int allocs, frees;
	uint64_t held, last, smallest;
} count;

static hr_status counting_host_alloc(void *on, uint64_t bytes, void **out)
{
	hr_status status = hr__backend_simulated.host_alloc(on, bytes, out);
	if (status != HR_OK) return status;
	count.allocs++;
	count.held += bytes;
	count.last = bytes;
	if (!count.smallest || bytes < count.smallest) count.smallest = bytes;
	return HR_OK;
}

static hr_status counting_host_free(void *on, void *block, uint64_t bytes)
{
	hr_status status = hr__backend_simulated.host_free(on, block, bytes);
	if (status != HR_OK) return status;
	count.frees++;
	count.held -= bytes;
	return HR_OK;
}

static hr_simulated_options counting_options;

static void set_up_counting(void)
{
	hr_backend table = hr__backend_simulated;
	table.name = "counting";
	table.type = "CNT";
	table.host_alloc = counting_host_alloc;
	table.host_free = counting_host_free;
	hr_simulated_options_init(&counting_options);
	CHECK_STATUS(HR_OK, hr_backend_register(&table, &counting_options));
}

static const subject counting = { "CNT:0", "CNT:0 host memory", set_up_counting, false, true };

/* ---- properties of the device ---- */

static void check_facts(const subject *on)
{
	use(on, 100 * MIB);
	uint64_t total, available;
	CHECK_STR(hr__device_name(pinned), on->pinned);
	CHECK_STR(hr__device_pinned_for(pinned), on->name);
	CHECK(hr__device_pinned_for(device) == NULL);
	CHECK_EQ(hr__device_page_bytes(pinned), 0);
	CHECK_EQ(hr__device_limit(pinned), 100 * MIB);
	CHECK_EQ(hr__device_reservable(pinned), 100 * MIB);
	CHECK(hr__device_has_plain(pinned));
	CHECK_EQ(hr__device_host_accessible(pinned), on != &simulated);
	CHECK_EQ(hr__device_region_min(pinned), SLAB);
	CHECK_EQ(hr__device_region_min(device), 0);
	CHECK_LT(hr__device_index(pinned), HR__MAX_DEVICES);
	CHECK_NE(hr__device_index(pinned), hr__device_index(device));
	CHECK(hr__device_stream_state(pinned) == hr__device_stream_state(device));
	CHECK_EQ(hr__os()->host_memory(&total, &available), 0);
	hr_device_info info = info_of(pinned);
	CHECK_STR(info.name, on->pinned);
	CHECK_EQ(info.total_bytes, total);
	CHECK_EQ(info.limit_bytes, 100 * MIB);
	CHECK_EQ(info.page_bytes, 0);
	CHECK_EQ(info.reserved_bytes, 0);
	if (on == &simulated) CHECK_EQ(hr__device_obtainable(pinned), UINT64_MAX);
	else CHECK_LE(hr__device_obtainable(pinned), total);
	/* Streams are those of the device. */
	hr_stream stream = new_stream();
	CHECK(hr__device_has_stream(pinned, stream));
	hr_status why = HR_OK;
	CHECK(hr__device_of(hr__device_handle(pinned), &why) == pinned);
	hr__page_id page;
	CHECK_STATUS(HR_UNSUPPORTED, hr__page_pool_take(pinned, 1, &page));
	check_end();
}

static void test_it_is_a_device_without_pages_on_the_streams_of_another(void)
{
	check_facts(&simulated);
	check_facts(&cpu);
	check_facts(&counting);
	check_facts(&emulated);
}

static void test_it_is_the_same_on_the_fake_driver(void)
{
	check_facts(&cuda);
}

static void test_no_list_shows_it_and_no_name_finds_it(void)
{
	now = &emulated;
	set_up_emulated();
	uint32_t before = hr_device_count();
	use(&simulated, SLAB);
	CHECK_STATUS(HR_OK, hr__device_named("GPU:0", &device));
	pinned = pin(SLAB);
	hr_allocator allocator = open_on(pinned, true);
	take(allocator, 1000, HR_STREAM_DEFAULT);
	CHECK_EQ(hr_device_count(), before);
	hr_device found;
	for (uint32_t i = 0; i < before; i++) {
		CHECK_STATUS(HR_OK, hr_device_at(i, &found));
		CHECK_NE(found.id, hr__device_handle(pinned).id);
	}
	CHECK_STATUS(HR_NO_SUCH_DEVICE, hr_device_at(before, &found));
	const char *names[] = { "GPU:0 host memory", "/device:GPU:0 host memory", "host memory" };
	for (size_t i = 0; i < 3; i++) CHECK_STATUS(HR_BAD_DEVICE_NAME, hr_device_find(names[i], &found));
	CHECK_STATUS(HR_NO_SUCH_DEVICE, hr_device_find("GPU:1", &found));
	CHECK_CONTAINS(hr_last_message(), "the devices are GPU:0, CPU:0, SIM:0");
	CHECK_STATUS(HR_OK, hr_device_find("GPU:*", &found)); /* one fits, two do not */
	CHECK_EQ(info_of(device).logical_count, 1);
	hr_allocator none;
	CHECK_STATUS(HR_BAD_DEVICE_NAME, hr_allocator_get_default("GPU:0 host memory", &none));
}

static void test_figures_of_the_device_are_its_own(void)
{
	use(&emulated, 100 * MIB);
	hr_allocator on_card, on_host = open_on(pinned, true);
	CHECK_STATUS(HR_OK, hr_allocator_get_default("GPU:0", &on_card));
	void *block = take(on_card, MIB, HR_STREAM_DEFAULT);
	hr_stats before, after;
	hr_stats_init(&before);
	hr_stats_init(&after);
	CHECK_STATUS(HR_OK, hr_device_get_stats(handle, &before));
	hr_device_info info = info_of(device);
	CHECK_STATUS(HR_OK, hr_stats_scope_begin(handle));
	void *large = take(on_host, 3 * MIB, HR_STREAM_DEFAULT), *small = take(on_host, 100, HR_STREAM_DEFAULT);
	CHECK_STATUS(HR_OUT_OF_MEMORY, hr_alloc_bytes(on_host, 200 * MIB, &(void *){ NULL }));
	hr_stats_scope scope = { .struct_size = sizeof scope };
	CHECK_STATUS(HR_OK, hr_stats_scope_end(handle, &scope));
	CHECK_EQ(scope.num_allocs, 0);
	CHECK_STATUS(HR_OK, hr_device_get_stats(handle, &after));
	CHECK_BYTES(&before, &after, sizeof before);
	hr_device_info again = info_of(device);
	CHECK_BYTES(&info, &again, sizeof info);
	CHECK_EQ(hr_get_bytes_in_use(0), MIB);
	CHECK_EQ(hr_get_num_allocs(0), 1);
	hr_memory_info memory = { .struct_size = sizeof memory };
	CHECK_STATUS(HR_OK, hr_get_memory_info("GPU:0", &memory));
	CHECK_EQ(memory.current, MIB);
	/* And vice versa. */
	CHECK_STATUS(HR_OK, hr_reset_memory_stats("GPU:0"));
	hr_stats host = checked_stats(on_host);
	CHECK_EQ(host.num_allocs, 3);
	CHECK_EQ(host.num_failed_allocs, 1);
	CHECK_EQ(host.bytes_in_use, 3 * MIB + 256);
	hr_stats_init(&after);
	CHECK_STATUS(HR_OK, hr_device_get_stats(hr__device_handle(pinned), &after));
	CHECK_EQ(after.bytes_limit, 100 * MIB);
	CHECK_EQ(after.bytes_in_use, 3 * MIB + 256);
	look(on_host);
	CHECK_STATUS(HR_OK, hr_free(on_host, large, 0));
	CHECK_STATUS(HR_OK, hr_free(on_host, small, 0));
	CHECK_STATUS(HR_OK, hr_free(on_card, block, 0));
	CHECK_STATUS(HR_OK, hr_allocator_destroy(on_host));
	check_end();
}

static void test_all_parts_of_a_card_have_one(void)
{
	hr__device *second, *other;
	set_up_emulated();
	CHECK_STATUS(HR_OK, hr_device_set_logical("GPU:0", (uint64_t[]){ 16 * MIB, 32 * MIB }, 2));
	CHECK_STATUS(HR_OK, hr__device_named("GPU:1", &second));
	CHECK_STATUS(HR_OK, hr__device_pinned(second, SLAB, &pinned));
	CHECK_STR(hr__device_name(pinned), "GPU:0 host memory");
	CHECK_STATUS(HR_OK, hr__device_named("GPU:0", &device));
	CHECK(pin(SLAB) == pinned);
	CHECK(pin(0) == pinned);
	CHECK_STATUS(HR_OK, hr__device_pinned(pinned, SLAB, &other));
	CHECK(other == pinned);
	CHECK_STATUS(HR_OK, hr__device_named("SIM:0", &device));
	CHECK(pin(SLAB) != pinned);
}

/* ---- contents and streams ---- */

#define BLOCK (256 * KIB)

static void check_round_trip(const subject *on, bool thread_cache)
{
	use(on, SLAB);
	hr_allocator on_host = open_on(pinned, thread_cache), on_card = open_on(device, true);
	hr_stream stream = new_stream();
	for (uint64_t bytes = 1; bytes <= 4 * MIB; bytes *= 8) {
		unsigned char *out = take(on_host, bytes, stream), *back = take(on_host, bytes, stream);
		void *there = take(on_card, bytes, stream);
		if (on->real) memset(out, 0x3c, bytes);
		if (on->real) memset(back, 0, bytes);
		CHECK_STATUS(HR_OK, hr_stream_copy(handle, there, out, bytes, HR_COPY_TO_DEVICE, stream));
		CHECK_STATUS(HR_OK, hr_stream_copy(handle, back, there, bytes, HR_COPY_TO_HOST, stream));
		CHECK_STATUS(HR_OK, hr_stream_synchronize(handle, stream));
		if (on->real) CHECK(all_bytes_are(back, bytes, 0x3c));
		CHECK_STATUS(HR_OK, hr_free(on_card, there, stream));
		CHECK_STATUS(HR_OK, hr_free(on_host, out, stream));
		CHECK_STATUS(HR_OK, hr_free(on_host, back, stream));
		look(on_host);
	}
	CHECK_STATUS(HR_OK, hr_allocator_destroy(on_host));
	CHECK_STATUS(HR_OK, hr_allocator_destroy(on_card));
	check_end();
}

static void test_copies_go_through_it(void)
{
	for (int thread_cache = 0; thread_cache < 2; thread_cache++) {
		check_round_trip(&simulated, thread_cache);
		check_round_trip(&cpu, thread_cache);
		check_round_trip(&emulated, thread_cache);
	}
}

static void test_copies_go_through_it_on_the_fake_driver(void)
{
	check_round_trip(&cuda, false);
	check_round_trip(&cuda, true);
}

/* A backend without host_alloc gets plain memory. */
static void test_where_nothing_can_be_pinned_plain_memory_serves(void)
{
	hr_backend table = hr__backend_emulated;
	hr_emulated_options options;
	CHECK_STATUS(HR_OK, hr_emulated_options_init(&options));
	table.name = "unpinned";
	table.type = "UNP";
	table.host_alloc = NULL;
	table.host_free = NULL;
	hr_fault_os_install();
	CHECK_STATUS(HR_OK, hr_backend_register(&table, &options));
	static const subject unpinned = { "UNP:0", "UNP:0 host memory", set_up_nothing, true, true };
	check_round_trip(&unpinned, true);
	CHECK(hr_fault_os_is_clean());
	hr_fault_os_uninstall();
}

static void wait_at_gate(void *open)
{
	while (!atomic_load((_Atomic(bool) *)open)) nanosleep(&(struct timespec){ .tv_nsec = 100000 }, NULL);
}

static void hold(hr_stream stream, _Atomic(bool) *gate)
{
	hr_native_stream native;
	atomic_store(gate, false);
	CHECK_STATUS(HR_OK, hr__stream_native(device, stream, &native));
	CHECK_STATUS(HR_OK, hr__call_host_call(device->physical, wait_at_gate, gate, native));
}

/* By then, everything that does not wait for the gate is done. */
static void *open_later(void *gate)
{
	nanosleep(&(struct timespec){ .tv_nsec = 30 * MS }, NULL);
	atomic_store((_Atomic(bool) *)gate, true);
	return NULL;
}

/* Allocates for another stream than the last one. The stream has to wait for those that used the block before; one wait is enough.
 * */
static void *take_in_order(hr_allocator allocator, uint64_t bytes, hr_stream stream)
{
	int64_t waits = checked_stats(allocator).num_stream_waits;
	void *block = take(allocator, bytes, stream);
	CHECK_EQ(checked_stats(allocator).num_stream_waits, waits + 1);
	return block;
}

/* Stream A is blocked before it has copied the block. Another stream overwrites it: with the allocator's block, or with [unsafe]
 * without asking the allocator, to prove that the test detects the error. Returns whether A copied the original contents. */
static bool reuse_while_read(hr_allocator on_host, unsigned char *first, unsigned char *second, hr_stream a, hr_stream b,
                             uint64_t bytes, bool unsafe)
{
	static _Atomic(bool) gate;
	unsigned char *block = take(on_host, bytes, a), *again;
	memset(block, 0x11, bytes);
	CHECK_STATUS(HR_OK, hr_stream_fill(handle, second, 0x22, bytes, b));
	hold(a, &gate);
	CHECK_STATUS(HR_OK, hr_stream_copy(handle, first, block, bytes, HR_COPY_TO_DEVICE, a));
	CHECK_STATUS(HR_OK, hr_free(on_host, block, a));
	again = unsafe ? block : take_in_order(on_host, bytes, b);
	CHECK_EQ(again, block);
	CHECK_STATUS(HR_OK, hr_stream_copy(handle, again, second, bytes, HR_COPY_TO_HOST, b));
	if (unsafe) CHECK_STATUS(HR_OK, hr_stream_synchronize(handle, b)); /* nothing blocks it */
	open_later(&gate);
	CHECK_STATUS(HR_OK, hr_stream_synchronize(handle, b));
	CHECK_STATUS(HR_OK, hr_stream_synchronize(handle, a));
	CHECK(all_bytes_are(again, bytes, 0x22));
	if (!unsafe) CHECK_STATUS(HR_OK, hr_free(on_host, again, b));
	unsigned char *seen = malloc(bytes);
	CHECK(seen != NULL);
	CHECK_STATUS(HR_OK, hr_stream_copy(handle, seen, first, bytes, HR_COPY_TO_HOST, a));
	CHECK_STATUS(HR_OK, hr_stream_synchronize(handle, a));
	bool intact = all_bytes_are(seen, bytes, 0x11);
	free(seen);
	return intact;
}

/* Both streams write to the block: the contents written by the later owner must remain. */
static void check_reuse_while_written(hr_allocator on_host, unsigned char *first, unsigned char *second, hr_stream a, hr_stream b)
{
	static _Atomic(bool) gate;
	unsigned char *block = take(on_host, BLOCK, a);
	CHECK_STATUS(HR_OK, hr_stream_fill(handle, first, 0x33, BLOCK, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_stream_fill(handle, second, 0x44, BLOCK, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_stream_synchronize(handle, HR_STREAM_DEFAULT));
	hold(a, &gate);
	CHECK_STATUS(HR_OK, hr_stream_copy(handle, block, first, BLOCK, HR_COPY_TO_HOST, a));
	CHECK_STATUS(HR_OK, hr_free(on_host, block, a));
	CHECK_EQ(take_in_order(on_host, BLOCK, b), block);
	CHECK_STATUS(HR_OK, hr_stream_copy(handle, block, second, BLOCK, HR_COPY_TO_HOST, b));
	open_later(&gate);
	CHECK_STATUS(HR_OK, hr_stream_synchronize(handle, a));
	CHECK_STATUS(HR_OK, hr_stream_synchronize(handle, b));
	CHECK(all_bytes_are(block, BLOCK, 0x44));
	CHECK_STATUS(HR_OK, hr_free(on_host, block, b));
}

/* Memory is released to the host only when the copies from it are done. */
static void check_trim_waits(hr_allocator on_host, unsigned char *there, hr_stream a)
{
	static _Atomic(bool) gate;
	uint64_t released = 0;
	unsigned char *block = take(on_host, BLOCK, a), seen[16];
	memset(block, 0x55, BLOCK);
	hold(a, &gate);
	CHECK_STATUS(HR_OK, hr_stream_copy(handle, there, block, BLOCK, HR_COPY_TO_DEVICE, a));
	CHECK_STATUS(HR_OK, hr_free(on_host, block, a));
	pthread_t opener;
	CHECK_EQ(pthread_create(&opener, NULL, open_later, &gate), 0);
	CHECK_STATUS(HR_OK, hr_allocator_trim(on_host, &released));
	CHECK(atomic_load(&gate));
	CHECK_EQ(pthread_join(opener, NULL), 0);
	CHECK_GE(released, SLAB);
	CHECK_EQ(hr__page_pool_reserved(pinned), 0);
	CHECK_STATUS(HR_OK, hr_stream_copy(handle, seen, there + BLOCK - sizeof seen, sizeof seen, HR_COPY_TO_HOST, a));
	CHECK_STATUS(HR_OK, hr_stream_synchronize(handle, a));
	CHECK(all_bytes_are(seen, sizeof seen, 0x55));
}

static void check_order(const subject *on)
{
	use(on, SLAB);
	hr_allocator on_host = open_on(pinned, false), on_card = open_on(device, true);
	hr_stream a = new_stream(), b = new_stream();
	unsigned char *first = take(on_card, BLOCK, a), *second = take(on_card, BLOCK, b);
	CHECK(!reuse_while_read(on_host, first, second, a, b, BLOCK, true));
	for (uint64_t i = 0; i < hr_test_scaled(3); i++) {
		CHECK(reuse_while_read(on_host, first, second, a, b, BLOCK, false));
		check_reuse_while_written(on_host, first, second, a, b);
	}
	look(on_host);
	check_trim_waits(on_host, first, a);
	look(on_host);
	CHECK_STATUS(HR_OK, hr_allocator_destroy(on_host));
	/* Reuse on the same stream needs no wait. */
	on_host = open_on(pinned, true);
	for (int i = 0; i < 10; i++) CHECK_STATUS(HR_OK, hr_free(on_host, take(on_host, i & 1 ? BLOCK : 4 * KIB, b), b));
	CHECK_EQ(checked_stats(on_host).num_stream_waits, 0);
	/* Blocks in a thread cache are protected in the same way. */
	CHECK(!reuse_while_read(on_host, first, second, a, b, 4 * KIB, true));
	CHECK(reuse_while_read(on_host, first, second, a, b, 4 * KIB, false));
	CHECK_GT(checked_stats(on_host).source_cache, 0);
	CHECK_STATUS(HR_OK, hr_allocator_destroy(on_host));
	CHECK_STATUS(HR_OK, hr_allocator_destroy_all(on_card));
	check_end();
}

static void test_a_block_is_reused_only_when_copies_are_done_with_it(void)
{
	check_order(&emulated);
}

static void test_a_block_is_reused_only_then_on_the_fake_driver(void)
{
	check_order(&cuda);
}

static void test_reuse_waits_in_virtual_time(void)
{
	use(&simulated, SLAB);
	hr_allocator on_host = open_on(pinned, false);
	hr_stream a = new_stream(), b = new_stream();
	hr_native_stream native;
	void *block = take(on_host, BLOCK, a);
	CHECK_STATUS(HR_OK, hr__stream_native(device, a, &native));
	CHECK_STATUS(HR_OK, hr__call_compute(device->physical, 5 * MS, native));
	CHECK_STATUS(HR_OK, hr_free(on_host, block, a));
	CHECK_EQ(take(on_host, BLOCK, b), block);
	CHECK_STATUS(HR_OK, hr_stream_synchronize(handle, b));
	CHECK_EQ(hr__device_clock_ns(pinned), 5 * MS);
	CHECK_EQ(checked_stats(on_host).num_stream_waits, 1);
}

/* Each thread has a stream and copies blocks of its own out and back; blocks pass from thread to thread all the time. */
#define THREADS 3
#define THREAD_BLOCK (24 * KIB)

typedef struct traffic {
	hr_allocator on_host, on_card;
	hr_stream streams[THREADS];
} traffic;

static void send_out_and_back(void *argument, unsigned index)
{
	traffic *all = argument;
	hr_stream stream = all->streams[index];
	uint64_t seed = hr_test_seed() + index;
	unsigned char *there = take(all->on_card, THREAD_BLOCK, stream), *seen = take(all->on_card, THREAD_BLOCK, stream);
	unsigned char result[64];
	for (uint64_t round = 0; round < hr_test_scaled(300); round++) {
		unsigned char value = (unsigned char)(1 + hr_rand_below(&seed, 255));
		uint64_t bytes = 64 + hr_rand_below(&seed, THREAD_BLOCK - 64);
		CHECK_STATUS(HR_OK, hr_stream_fill(handle, there, value, bytes, stream));
		void *block = take(all->on_host, bytes, stream);
		CHECK_STATUS(HR_OK, hr_stream_copy(handle, block, there, bytes, HR_COPY_TO_HOST, stream));
		CHECK_STATUS(HR_OK, hr_stream_copy(handle, seen, block, bytes, HR_COPY_TO_DEVICE, stream));
		CHECK_STATUS(HR_OK, hr_free(all->on_host, block, stream));
		CHECK_STATUS(HR_OK, hr_stream_copy(handle, result, seen + bytes - sizeof result, sizeof result, HR_COPY_TO_HOST, stream));
		CHECK_STATUS(HR_OK, hr_stream_synchronize(handle, stream));
		CHECK(all_bytes_are(result, sizeof result, value));
		if (round % 64 == index) CHECK(pin(SLAB) == pinned);
	}
}

static void check_traffic(const subject *on, bool thread_cache)
{
	traffic all;
	use(on, SLAB);
	all.on_host = open_on(pinned, thread_cache);
	all.on_card = open_on(device, true);
	for (unsigned i = 0; i < THREADS; i++) all.streams[i] = new_stream();
	hr_test_threads(THREADS, send_out_and_back, &all);
	look(all.on_host);
	CHECK_EQ(checked_stats(all.on_host).num_live, 0);
	CHECK_STATUS(HR_OK, hr_allocator_destroy(all.on_host));
	CHECK_STATUS(HR_OK, hr_allocator_destroy_all(all.on_card));
	check_end();
}

static void test_threads_and_streams_share_it(void)
{
	check_traffic(&emulated, false);
	check_traffic(&emulated, true);
}

static void test_threads_and_streams_share_it_on_the_fake_driver(void)
{
	check_traffic(&cuda, false);
}

/* ---- slabs ---- */

static void test_slabs_are_large_and_double_up_to_the_limit(void)
{
	use(&counting, GIB);
	hr_allocator allocator = open_on(pinned, false);
	const uint64_t expected[] = { 64, 128, 256, 512, 64 }; /* the last slab is what the limit leaves */
	void *block = NULL;
	uint64_t taken = 0;
	for (int i = 0; i < 5; i++) {
		while (count.allocs == i) {
			block = take(allocator, MIB, HR_STREAM_DEFAULT);
			taken++;
		}
		CHECK_EQ(count.last, expected[i] * MIB);
	}
	while (hr_alloc_bytes(allocator, MIB, &block) == HR_OK) taken++;
	CHECK_EQ(taken, 1024); /* every byte of it */
	CHECK_EQ(count.allocs, 5);
	CHECK_EQ(count.held, GIB);
	look(allocator);
	CHECK_STATUS(HR_OK, hr_allocator_destroy_all(allocator));
	CHECK_EQ(count.frees, 5);
	CHECK_EQ(count.held, 0);
	check_end();
}

/* limit, first request, and the resulting slab */
static void test_the_size_of_a_slab_follows_limit_and_request(void)
{
	static const struct {
		uint64_t limit, asked, slab;
	} cases[] = {
		{ GIB, 256, SLAB },
		{ GIB, SLAB, SLAB },
		{ GIB, SLAB + 256, 2 * SLAB },
		{ GIB, 5 * SLAB - 256, 5 * SLAB }, /* not doubled: the caller waits while it is pinned */
		{ GIB, GIB, GIB },
		{ 20 * MIB, 256, 20 * MIB },   /* the limit is smaller than a slab */
		{ 100 * MIB, 256, 100 * MIB }, /* a slab would leave less than another one */
		{ 2 * SLAB, 256, SLAB },
		{ 5 * MIB + 5000, 256, 5 * MIB + 4096 }, /* whole pages of the host */
		{ 4096, 1, 4096 },
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		memset(&count, 0, sizeof count);
		use(&counting, cases[i].limit);
		hr_allocator allocator = open_on(pinned, false);
		take(allocator, cases[i].asked, HR_STREAM_DEFAULT);
		CHECK_EQ(count.allocs, 1);
		CHECK_EQ(count.last, cases[i].slab);
		CHECK_EQ(hr__page_pool_reserved(pinned), cases[i].slab);
		CHECK_STATUS(HR_OK, hr_allocator_destroy_all(allocator));
		check_end();
	}
}

/* Half a tebibyte, the memory of a large host: slabs grow with the limit, so that the table of regions suffices. */
static void test_a_large_limit_has_slabs_enough(void)
{
	use(&simulated, 512 * GIB);
	hr_allocator allocator = open_on(pinned, false);
	hr_region_info region = { .struct_size = sizeof region };
	void *block;
	uint64_t taken = 0;
	while (hr_alloc_bytes(allocator, 256 * MIB, &block) == HR_OK) taken++;
	CHECK_CONTAINS(hr_last_message(), "is full");
	CHECK_EQ(taken, 2048); /* a quarter GiB each */
	CHECK_LT(checked_stats(allocator).num_regions, 140);
	for (uint32_t i = 0; i < checked_stats(allocator).num_regions; i++) {
		CHECK_STATUS(HR_OK, hr_allocator_get_region(allocator, i, &region));
		CHECK_LE(region.bytes_reserved, 4 * GIB + SLAB);
		CHECK_GE(region.bytes_reserved, SLAB);
	}
	look(allocator);
}

static void test_slabs_are_kept_until_a_trim(void)
{
	use(&counting, GIB);
	hr_allocator allocator = open_on(pinned, false);
	void *blocks[8];
	for (int round = 0; round < 5; round++) {
		for (int i = 0; i < 8; i++) blocks[i] = take(allocator, 40 * MIB, HR_STREAM_DEFAULT);
		for (int i = 0; i < 8; i++) CHECK_STATUS(HR_OK, hr_free(allocator, blocks[i], HR_STREAM_DEFAULT));
		CHECK_EQ(count.allocs, 3); /* 64, 128, 256 */
		CHECK_EQ(count.frees, 0);
	}
	/* Slabs are not released for a request that fails anyway. */
	blocks[0] = take(allocator, 40 * MIB, HR_STREAM_DEFAULT);
	CHECK_STATUS(HR_OUT_OF_MEMORY, hr_alloc_bytes(allocator, GIB - 40 * MIB, &blocks[1]));
	CHECK_EQ(count.frees, 0);
	CHECK_EQ(count.allocs, 3);
	/* Slabs are released for a request that needs their share of the limit. */
	blocks[1] = take(allocator, 800 * MIB, HR_STREAM_DEFAULT);
	CHECK_GT(count.frees, 0);
	CHECK_LE(count.held, GIB);
	CHECK_EQ(checked_stats(allocator).source_trim, 1);
	look(allocator);
	CHECK_STATUS(HR_OK, hr_free(allocator, blocks[0], HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_free(allocator, blocks[1], HR_STREAM_DEFAULT));
	uint64_t released, held = count.held;
	CHECK_STATUS(HR_OK, hr_allocator_trim(allocator, &released));
	CHECK_EQ(released, held);
	CHECK_EQ(count.held, 0);
	CHECK_EQ(count.allocs, count.frees);
	CHECK_EQ(hr__page_pool_reserved(pinned), 0);
	take(allocator, 1, HR_STREAM_DEFAULT); /* starts with a small slab again */
	CHECK_EQ(count.last, SLAB);
	look(allocator);
}

static void test_small_blocks_and_several_allocators_share_the_limit(void)
{
	use(&counting, 3 * SLAB);
	hr_allocator first = open_on(pinned, true), second = open_on(pinned, false);
	take(first, 100, HR_STREAM_DEFAULT);
	take(first, MIB, HR_STREAM_DEFAULT);
	CHECK_EQ(count.allocs, 2); /* one for each of the two pools */
	CHECK_EQ(count.smallest, SLAB);
	take(second, MIB, HR_STREAM_DEFAULT);
	CHECK_EQ(count.allocs, 3);
	CHECK_EQ(count.held, 3 * SLAB);
	CHECK_STATUS(HR_OUT_OF_MEMORY, hr_alloc_bytes(second, SLAB, &(void *){ NULL }));
	CHECK_CONTAINS(hr_last_message(), "the host pool of CNT:0 is full");
	take(first, 62 * MIB, HR_STREAM_DEFAULT);
	CHECK_EQ(count.allocs, 3);
	CHECK_STATUS(HR_OK, hr_allocator_check(first));
	CHECK_STATUS(HR_OK, hr_allocator_check(second));
	CHECK_EQ(checked_stats(first).bytes_reserved + checked_stats(second).bytes_reserved, 3 * SLAB);
}

static void test_it_can_be_pinned_all_at_once(void)
{
	use(&counting, 300 * MIB);
	hr_allocator_options options;
	hr_allocator allocator;
	hr_allocator_options_init(&options);
	options.allow_growth = false;
	options.thread_cache = false;
	CHECK_STATUS(HR_OK, hr_allocator_create(hr__device_handle(pinned), &options, &allocator));
	CHECK_EQ(count.allocs, 1);
	CHECK_EQ(count.last, 300 * MIB);
	take(allocator, 300 * MIB, HR_STREAM_DEFAULT);
	CHECK_EQ(count.allocs, 1);
	look(allocator);
	options.kind = "direct";
	CHECK_STATUS(HR_OK, hr_allocator_destroy_all(allocator));
	CHECK_STATUS(HR_OK, hr_allocator_create(hr__device_handle(pinned), &options, &allocator));
	void *block = take(allocator, MIB, HR_STREAM_DEFAULT);
	CHECK_EQ(count.held, MIB);
	CHECK_STATUS(HR_OK, hr_free(allocator, block, HR_STREAM_DEFAULT));
	CHECK_EQ(count.held, 0);
}

/* ---- the limit ---- */

static void test_the_limit_can_be_changed_while_nothing_is_reserved(void)
{
	uint64_t total, available;
	hr__device *other = NULL;
	use(&emulated, 0);
	CHECK_EQ(hr__os()->host_memory(&total, &available), 0);
	CHECK_EQ(hr__device_limit(pinned), total / 2);
	CHECK(pin(0) == pinned);
	CHECK(pin(total / 2) == pinned);
	CHECK(pin(SLAB + 1) == pinned);
	CHECK_EQ(hr__device_limit(pinned), SLAB + 1);
	CHECK_EQ(hr__device_reservable(pinned), SLAB);
	CHECK(pin(0) == pinned); /* 0 keeps the limit */
	CHECK_EQ(hr__device_limit(pinned), SLAB + 1);
	hr_allocator allocator = open_on(pinned, false);
	void *block = take(allocator, MIB, HR_STREAM_DEFAULT);
	CHECK(pin(0) == pinned);
	CHECK(pin(SLAB + 1) == pinned);
	CHECK_STATUS(HR_IN_USE, hr__device_pinned(device, 2 * SLAB, &other));
	CHECK(other == NULL);
	CHECK_STR(hr_last_message(),
	          "the host pool of GPU:0 has a host_limit of 67,108,865 B and 67,108,864 B of it in use, so the limit cannot become "
	          "128.0 MiB; close what uses it first");
	CHECK_EQ(hr__device_limit(pinned), SLAB + 1);
	/* An open allocator keeps its limit; the device has the new one. */
	CHECK_STATUS(HR_OK, hr_free(allocator, block, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_allocator_trim(allocator, NULL));
	CHECK(pin(MIB) == pinned);
	take(allocator, MIB, HR_STREAM_DEFAULT);
	CHECK_STATUS(HR_OUT_OF_MEMORY, hr_alloc_bytes(allocator, 1, &block));
	CHECK_EQ(hr__page_pool_available(pinned), 0);
	look(allocator);
	CHECK_STATUS(HR_OK, hr_allocator_destroy_all(allocator));
	CHECK(pin(2 * SLAB) == pinned);
	allocator = open_on(pinned, false);
	CHECK_EQ(checked_stats(allocator).bytes_limit, 2 * SLAB);
}

static void test_impossible_limits_are_refused(void)
{
	hr__device *none = NULL;
	uint64_t total, available;
	CHECK_EQ(hr__os()->host_memory(&total, &available), 0);
	now = &emulated;
	set_up_emulated();
	CHECK_STATUS(HR_OK, hr__device_named("GPU:0", &device));
	CHECK_STATUS(HR_BAD_LIMIT, hr__device_pinned(device, total + 1, &none));
	CHECK_CONTAINS(hr_last_message(), "the host pool of GPU:0: host_limit ");
	CHECK_CONTAINS(hr_last_message(), " is above the host's memory of ");
	CHECK_STATUS(HR_BAD_LIMIT, hr__device_pinned(device, hr__os_page_size() - 1, &none));
	CHECK_CONTAINS(hr_last_message(), "is below one page of ");
	CHECK(none == NULL && device->physical->pinned == NULL);
	pinned = pin(SLAB);
	CHECK_STATUS(HR_BAD_LIMIT, hr__device_pinned(device, 1, &none));
	CHECK_STATUS(HR_BAD_LIMIT, hr__device_pinned(device, UINT64_MAX, &none));
	CHECK_EQ(hr__device_limit(pinned), SLAB);
	use(&simulated, UINT64_C(1) << 45); /* without backing memory the host's memory does not matter */
	CHECK_EQ(hr__device_limit(pinned), UINT64_C(1) << 45);
}

static void test_the_message_of_a_full_pool_names_it_and_the_remedy(void)
{
	use(&emulated, 8 * MIB);
	hr_allocator allocator = open_on(pinned, false);
	void *block, *blocks[4];
	for (int i = 0; i < 4; i++) blocks[i] = take(allocator, 2 * MIB, HR_STREAM_DEFAULT);
	CHECK_STATUS(HR_OUT_OF_MEMORY, hr_alloc_bytes(allocator, 3 * MIB, &block));
	CHECK_STR(hr_last_message(),
	          "the host pool of GPU:0 is full: 3.0 MiB requested, but 8.0 MiB of its limit of 8.0 MiB are in use, and "
	          "the largest of 0 free blocks (0 B) is 0 B; raise host_limit");
	CHECK_STATUS(HR_OK, hr_free(allocator, blocks[1], HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_free(allocator, blocks[3], HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OUT_OF_MEMORY, hr_alloc_bytes(allocator, 3 * MIB, &block));
	CHECK_STR(hr_last_message(),
	          "the host pool of GPU:0 is full: 3.0 MiB requested, but 4.0 MiB of its limit of 8.0 MiB are in use, and "
	          "the largest of 2 free blocks (4.0 MiB) is 2.0 MiB; raise host_limit");
	CHECK_STATUS(HR_OUT_OF_MEMORY, hr_alloc_bytes(allocator, 9 * MIB, &block));
	CHECK_STR(hr_last_message(), "the host pool of GPU:0 is too small for 9.0 MiB: the request alone exceeds its limit of 8.0 MiB; raise "
	                             "host_limit");
	hr_verdict verdict = { .struct_size = sizeof verdict };
	CHECK_STATUS(HR_OK, hr_allocator_would_fit(allocator, &HR_REQUEST(5 * MIB), &verdict));
	CHECK_EQ(verdict.kind, HR_NEEDS_MORE);
	CHECK_EQ(verdict.tier, HR_TIER_DEVICE);
	CHECK_CONTAINS(verdict.text, "the limit of GPU:0 host memory, 8.0 MiB, is reached (host_limit)");
	CHECK_CONTAINS(verdict.advice, "Raise the host_limit of GPU:0 host memory by 5.0 MiB, for this request alone");
	CHECK_STATUS(HR_OK, hr_allocator_would_fit(allocator, &HR_REQUEST(9 * MIB), &verdict));
	CHECK_EQ(verdict.kind, HR_NEVER_FITS);
	CHECK_CONTAINS(verdict.text, "8.0 MiB (host_limit)");
	uint64_t address;
	CHECK_STATUS(HR_OUT_OF_MEMORY, hr__page_pool_plain_alloc(pinned, MIB, &address));
	CHECK_STR(hr_last_message(),
	          "GPU:0 host memory: 1.0 MiB requested, but of its limit of 8.0 MiB, 8.0 MiB are reserved and 0 B are "
	          "left; free memory, or raise host_limit");
	look(allocator);
}

static void test_a_host_that_refuses_is_full_too(void)
{
	use(&counting, GIB);
	hr_allocator allocator = open_on(pinned, false);
	void *block;
	hr_backend_fail_nth(1, true, HR_NO_HOST_MEMORY);
	CHECK_STATUS(HR_OUT_OF_MEMORY, hr_alloc_bytes(allocator, MIB, &block));
	CHECK_CONTAINS(hr_last_message(),
	               "the host pool of CNT:0 cannot grow: 1.0 MiB requested, 0 B of its limit of 1.0 GiB in use: ");
	CHECK_CONTAINS(hr_last_message(), "but the host itself is full: host_alloc was made to fail");
	hr_backend_fail_nth(0, false, HR_OK);
	look(allocator);
	/* Allocates the largest slab that the host grants, at least what the request needs. */
	hr_backend_fail_nth(1, false, HR_NO_HOST_MEMORY);
	take(allocator, MIB, HR_STREAM_DEFAULT);
	CHECK_EQ(count.last, MIB);
	take(allocator, SLAB, HR_STREAM_DEFAULT);
	CHECK_EQ(count.last, SLAB);
	hr_backend_fail_nth(1, false, HR_OUT_OF_MEMORY);
	take(allocator, MIB, HR_STREAM_DEFAULT);
	CHECK_EQ(count.last, SLAB); /* half of the next slab */
	look(allocator);
	/* Any other error is returned as it is, if retrying does not help. */
	hr_backend_fail_nth(1, false, HR_DEVICE_ERROR);
	int before = count.allocs;
	take(allocator, 2 * SLAB, HR_STREAM_DEFAULT); /* at the second attempt */
	CHECK_EQ(count.allocs, before + 1);
	hr_backend_fail_nth(1, true, HR_DEVICE_ERROR);
	CHECK_STATUS(HR_DEVICE_ERROR, hr_alloc_bytes(allocator, 2 * SLAB, &block));
	hr_backend_fail_nth(0, false, HR_OK);
	look(allocator);
	CHECK_STATUS(HR_OK, hr_allocator_destroy_all(allocator));
	check_end();
}

/* ---- faults ---- */

static struct {
	bool backend, forever;
	hr_status status;
	uint64_t nth, calls; /* which call fails, and how many there were */
	uint64_t unit;       /* limits are a few of these */
} fault;

static void arm(uint64_t nth)
{
	if (fault.backend) hr_backend_fail_nth(nth, fault.forever, fault.status);
	else hr_fault_os_fail_nth(nth, fault.forever, ENOMEM);
}

static void disarm(void)
{
	fault.calls = fault.backend ? hr_backend_calls() : hr_fault_os_calls();
	arm(0);
}

/* A block of either size for [stream]; NULL if it was refused. */
static void *try_to_take(hr_allocator allocator, bool small, hr_stream stream)
{
	void *block = NULL;
	hr_request request = HR_REQUEST(small ? 1000 : MIB);
	request.stream = stream;
	return hr_alloc(allocator, &request, &block) == HR_OK ? block : NULL;
}

/* Uses every call; some of them are refused. */
static void use_it(hr_allocator allocator, hr_stream stream, void **left)
{
	void *blocks[4], *again[4];
	for (int i = 0; i < 4; i++) blocks[i] = try_to_take(allocator, i & 1, stream);
	for (int i = 0; i < 4; i++) CHECK_STATUS(HR_OK, hr_free(allocator, blocks[i], stream));
	for (int i = 0; i < 4; i++) again[i] = try_to_take(allocator, i & 1, HR_STREAM_DEFAULT); /* this stream has to wait */
	for (int i = 0; i < 4; i++) CHECK_STATUS(HR_OK, hr_free(allocator, again[i], stream));
	hr_allocator_trim(allocator, NULL);
	if (hr_alloc_bytes(allocator, fault.unit + MIB, left) != HR_OK) *left = NULL;
	hr__device *same;
	if (hr__device_pinned(device, 3 * fault.unit, &same) == HR_OK) CHECK(!*left && same == pinned);
}

static void check_what_is_left(hr_allocator allocator, const void *left)
{
	look(allocator);
	CHECK_EQ(checked_stats(allocator).num_live, left != NULL);
	CHECK_STATUS(HR_OK, hr_allocator_destroy_all(allocator));
	CHECK_EQ(hr__page_pool_reserved(pinned), 0);
	CHECK(pin(SLAB) == pinned); /* the pinned device is not in use */
}

/* Runs all of it with call [fault.nth] failing. */
static void scenario(void)
{
	hr_allocator allocator;
	hr_stream stream = new_stream();
	void *left = NULL;
	arm(fault.nth);
	hr_status status = hr__device_pinned(device, 2 * fault.unit, &pinned);
	if (status == HR_OK) status = hr_allocator_create(hr__device_handle(pinned), NULL, &allocator);
	if (status == HR_OK) use_it(allocator, stream, &left);
	disarm();
	if (status == HR_OK) check_what_is_left(allocator, left);
	pinned = pin(SLAB); /* works whatever was refused */
	CHECK_STATUS(HR_OK, hr_shutdown());
}

static void fail_every_call(const subject *on, bool backend, bool forever, hr_status status)
{
	now = on;
	fault.backend = backend;
	fault.forever = forever;
	fault.status = status;
	fault.unit = on == &simulated ? SLAB
	                              : 2 * MIB; /* real memory is smaller, because all of it is written, hundreds of times */
	fault.nth = 0;
	do {
		fault.nth++;
		hr_fault_os_install();
		now->set_up();
		CHECK_STATUS(HR_OK, hr__device_named(now->name, &device));
		handle = hr__device_handle(device);
		scenario();
		CHECK(hr_fault_os_is_clean());
		hr_fault_os_uninstall();
	} while (fault.calls >= fault.nth); /* the fault occurred */
	CHECK_GT(fault.nth, 5);
	if (on != &cuda) return;
	fake_cuda_live live;
	fake.get_live(&live);
	CHECK_EQ(live.retained + live.registered + live.streams + live.events, 0);
}

static void fail_on(const subject *on)
{
	for (int forever = 0; forever < 2; forever++) {
		fail_every_call(on, false, forever, HR_OK);
		if (on == &cpu) continue; /* this device makes no such calls */
		fail_every_call(on, true, forever, HR_DEVICE_ERROR);
		fail_every_call(on, true, forever, HR_OUT_OF_MEMORY);
		fail_every_call(on, true, forever, HR_NO_HOST_MEMORY);
	}
}

static void test_nothing_is_lost_when_any_call_fails(void)
{
	fail_on(&simulated);
	fail_on(&emulated);
	fail_on(&cpu);
}

static void test_nothing_is_lost_when_any_call_fails_on_the_fake_driver(void)
{
	fail_on(&cuda);
}

/* ---- random order ---- */

#define LIVE 64

static void check_random(const subject *on, uint64_t limit, bool thread_cache)
{
	struct {
		void *address;
		hr_stream stream;
	} blocks[LIVE] = { { 0 } };
	hr_stream streams[3];
	uint64_t seed = hr_test_seed();
	use(on, limit);
	hr_allocator allocator = open_on(pinned, thread_cache);
	for (int i = 0; i < 3; i++) streams[i] = new_stream();
	for (uint64_t step = 0; step < hr_test_scaled(3000); step++) {
		uint64_t at = hr_rand_below(&seed, LIVE);
		hr_stream stream = streams[hr_rand_below(&seed, 3)];
		if (hr_rand_below(&seed, 500) == 0) CHECK_STATUS(HR_OK, hr_allocator_trim(allocator, NULL));
		if (blocks[at].address) {
			CHECK_STATUS(HR_OK, hr_free(allocator, blocks[at].address, stream));
			blocks[at].address = NULL;
		} else {
			hr_request request = HR_REQUEST(1 + hr_rand_below(&seed, UINT64_C(1) << (4 + hr_rand_below(&seed, 22))));
			request.stream = blocks[at].stream = stream;
			if (hr_rand_below(&seed, 8) == 0) request.alignment = UINT64_C(1) << hr_rand_below(&seed, 22);
			hr_verdict verdict = { .struct_size = sizeof verdict };
			CHECK_STATUS(HR_OK, hr_allocator_would_fit(allocator, &request, &verdict));
			hr_status status = hr_alloc(allocator, &request, &blocks[at].address);
			CHECK_EQ(verdict.kind <= HR_FITS_AFTER_TRIM, status == HR_OK); /* the trim is done then */
			if (status != HR_OK) CHECK_STATUS(HR_OUT_OF_MEMORY, status);
			if (status != HR_OK) CHECK_CONTAINS(hr_last_message(), "raise host_limit");
		}
		if (step % 16 == 0) look(allocator);
	}
	look(allocator);
	CHECK_STATUS(HR_OK, hr_allocator_destroy_all(allocator));
	check_end();
}

static void test_books_agree_in_any_order(void)
{
	check_random(&simulated, 3 * SLAB, true);
	check_random(&simulated, 3 * SLAB, false);
	check_random(&simulated, 100 * MIB + 12345, true);
	check_random(&counting, 8 * SLAB, false);
	CHECK_EQ(count.held, 0);
	CHECK_EQ(count.allocs, count.frees);
	check_random(&emulated, SLAB, true);
}

/* ---- the end ---- */

static void test_it_ends_with_its_device(void)
{
	uint32_t past = 0;
	now = &emulated;
	for (int round = 0; round < 3; round++) {
		hr_fault_os_install();
		use(&emulated, (uint64_t)(1 + round) * MIB); /* no limit is kept from the round before */
		CHECK_EQ(hr__device_limit(pinned), (uint64_t)(1 + round) * MIB);
		hr_device own = hr__device_handle(pinned);
		hr_device_info info = { .struct_size = sizeof info };
		CHECK_NE(own.id, past);
		hr_status why = HR_OK;
		if (past) CHECK(hr__device_of((hr_device){ past }, &why) == NULL && why == HR_INVALID_HANDLE);
		take(open_on(pinned, true), MIB, HR_STREAM_DEFAULT); /* left to hr_shutdown, including the allocator */
		CHECK_STATUS(HR_OK, hr_shutdown());
		CHECK(hr_fault_os_is_clean());
		CHECK_STATUS(HR_INVALID_HANDLE, hr_device_get_info(own, &info));
		hr_fault_os_uninstall();
		past = own.id;
	}
}

static void in_the_child(void *argument)
{
	hr_allocator parents = *(hr_allocator *)argument;
	hr_device own = hr__device_handle(pinned);
	hr_device_info info = { .struct_size = sizeof info };
	hr__device *none = NULL;
	CHECK_STATUS(HR_FORKED, hr__device_pinned(device, SLAB, &none));
	CHECK_STATUS(HR_FORKED, hr_device_get_info(own, &info));
	CHECK_STATUS(HR_FORKED, hr_alloc_bytes(parents, 1, &(void *){ NULL }));
	CHECK(none == NULL);
	CHECK_STATUS(HR_OK, hr_shutdown());
	CHECK_STATUS(HR_INVALID_HANDLE, hr_device_get_info(own, &info));
	use(&simulated, 2 * SLAB);
	CHECK_EQ(hr__page_pool_reserved(pinned), 0);
	void *block = take(open_on(pinned, true), MIB, HR_STREAM_DEFAULT);
	CHECK(block != NULL);
	CHECK_STATUS(HR_OK, hr_shutdown());
}

static void test_a_forked_child_starts_without_it(void)
{
	use(&emulated, SLAB);
	hr_allocator allocator = open_on(pinned, false);
	unsigned char *block = take(allocator, MIB, HR_STREAM_DEFAULT);
	memset(block, 0x66, MIB);
	CHECK_EQ(hr_test_in_child(in_the_child, &allocator), 0);
	CHECK(all_bytes_are(block, MIB, 0x66));
	CHECK_STATUS(HR_OK, hr_free(allocator, block, HR_STREAM_DEFAULT));
	look(allocator);
	CHECK_STATUS(HR_OK, hr_allocator_destroy(allocator));
	check_end();
}

TEST_MAIN(T(test_it_is_a_device_without_pages_on_the_streams_of_another), T(test_it_is_the_same_on_the_fake_driver),
          T(test_no_list_shows_it_and_no_name_finds_it), T(test_figures_of_the_device_are_its_own),
          T(test_all_parts_of_a_card_have_one), T(test_copies_go_through_it), T(test_copies_go_through_it_on_the_fake_driver),
          T(test_where_nothing_can_be_pinned_plain_memory_serves), T(test_a_block_is_reused_only_when_copies_are_done_with_it),
          T(test_a_block_is_reused_only_then_on_the_fake_driver), T(test_reuse_waits_in_virtual_time),
          T(test_threads_and_streams_share_it), T(test_threads_and_streams_share_it_on_the_fake_driver),
          T(test_slabs_are_large_and_double_up_to_the_limit), T(test_the_size_of_a_slab_follows_limit_and_request),
          T(test_a_large_limit_has_slabs_enough), T(test_slabs_are_kept_until_a_trim),
          T(test_small_blocks_and_several_allocators_share_the_limit), T(test_it_can_be_pinned_all_at_once),
          T(test_the_limit_can_be_changed_while_nothing_is_reserved), T(test_impossible_limits_are_refused),
          T(test_the_message_of_a_full_pool_names_it_and_the_remedy), T(test_a_host_that_refuses_is_full_too),
          T(test_nothing_is_lost_when_any_call_fails), T(test_nothing_is_lost_when_any_call_fails_on_the_fake_driver),
          T(test_books_agree_in_any_order), T(test_it_ends_with_its_device), T(test_a_forked_child_starts_without_it))
