/* test_lms_regression.c - fixed bugs of Large Model Support, each as the promise that it broke. */
#include <errno.h>
#include <sched.h>
#include <stdatomic.h>

#include "fixture.h"
#include "fault_os.h"
#include "headroom_backend.h"
#include "core/lms/lms.h"
#include "test.h"

#define KIB UINT64_C(1024)
#define MIB (KIB * KIB)

static hr_device device;
static hr_allocator allocator;

static hr_lms_options lms_options(const char *policy)
{
	return fixture_lms_options(policy, 64 * MIB);
}

static void set_up_with(uint64_t limit, const hr_lms_options *lms, uint64_t link)
{
	hr_fault_os_install();
	device = fixture_emulated(64 * MIB, 64 * KIB, link);
	hr_allocator_options options = fixture_allocator_options(limit);
	options.oom.report_allocations_on_oom = false;
	CHECK_STATUS(HR_OK, hr_allocator_create(device, &options, &allocator));
	CHECK_STATUS(HR_OK, hr_lms_configure(allocator, lms));
}

static void set_up(uint64_t limit, const hr_lms_options *lms)
{
	set_up_with(limit, lms, 0);
}

static void tear_down(void)
{
	CHECK_STATUS(HR_OK, hr_lms_check(allocator));
	CHECK_STATUS(HR_OK, hr_allocator_check(allocator));
	CHECK_STATUS(HR_OK, hr_allocator_destroy_all(allocator));
	CHECK_STATUS(HR_OK, hr_shutdown());
	CHECK(hr_fault_os_is_clean());
	hr_fault_os_uninstall();
}

static hr_tensor create(size_t bytes)
{
	return fixture_tensor(allocator, bytes);
}

static void fill(hr_tensor tensor, size_t bytes, unsigned char value)
{
	void *at;
	CHECK_STATUS(HR_OK, hr_tensor_pin(tensor, HR_OVERWRITE, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_tensor_get_address(tensor, &at));
	CHECK_STATUS(HR_OK, hr_stream_fill(device, at, value, bytes, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_tensor_unpin(tensor, HR_STREAM_DEFAULT));
}

static hr_lms_stats stats_of(void)
{
	return fixture_lms_stats(allocator);
}

/* Makes an early copy, as a plan does. */
static void copy_ahead(hr_tensor tensor)
{
	hr_status status;
	hr__tensor *record = hr__tensor_of(tensor, &status);
	CHECK(hr__state_begin_eviction(record, tensor.id));
	CHECK_STATUS(HR_OK, hr__move_copy_to_host(record));
	hr__state_end_eviction(record, HR__PLACE_RESIDENT);
}

/* ---- verify ---- */

/* The overwriting pin failed: the tensor has memory with a wrong checksum, and is evicted without an unpin. */
static void test_verify_accepts_a_tensor_whose_overwriting_pin_failed(void)
{
	hr_lms_options options = lms_options("lru");
	options.verify = true;
	set_up(4 * MIB, &options);
	hr_tensor a = create(MIB), large = create(5 * MIB);
	fill(a, MIB, 1);
	CHECK_STATUS(HR_OK, hr_tensor_evict(a));
	hr_tensor other = create(3 * MIB); /* overwrites a's former memory */
	fill(other, 3 * MIB, 77);
	hr_pin pins[] = { { a, HR_OVERWRITE }, { large, HR_OVERWRITE } };
	CHECK_STATUS(HR_OUT_OF_MEMORY, hr_tensor_pin_all(pins, 2, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_tensor_evict(a));
	CHECK_STATUS(HR_OK, hr_tensor_pin(a, HR_WRITE, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_tensor_unpin(a, HR_STREAM_DEFAULT));
	tear_down();
}

static void test_verify_checks_every_tensor_of_an_unpin(void)
{
	hr_lms_options options = lms_options("lru");
	options.verify = true;
	set_up(8 * MIB, &options);
	hr_tensor a = create(MIB), b = create(MIB);
	void *at;
	fill(a, MIB, 1);
	fill(b, MIB, 2);
	/* a is written through a read pin, b through a write pin. */
	hr_pin pins[] = { { a, HR_READ }, { b, HR_WRITE } };
	CHECK_STATUS(HR_OK, hr_tensor_pin_all(pins, 2, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_tensor_get_address(a, &at));
	CHECK_STATUS(HR_OK, hr_stream_fill(device, at, 9, 1, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_tensor_get_address(b, &at));
	CHECK_STATUS(HR_OK, hr_stream_fill(device, at, 3, MIB, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_CORRUPT, hr_tensor_unpin_all(pins, 2, HR_STREAM_DEFAULT));
	/* If the failed call had not updated b's checksum, this write would be mistaken for the former one. */
	CHECK_STATUS(HR_OK, hr_tensor_pin(b, HR_READ, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_tensor_get_address(b, &at));
	CHECK_STATUS(HR_OK, hr_stream_fill(device, at, 4, 1, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_CORRUPT, hr_tensor_unpin(b, HR_STREAM_DEFAULT));
	tear_down();
}

/* ---- pins that fail ---- */

static hr_tensor_state state_of(hr_tensor tensor)
{
	hr_tensor_info info = fixture_tensor_info(tensor);
	if (info.state == HR_TENSOR_NEW) CHECK_EQ(info.device_bytes, 0u);
	return info.state;
}

static void expect(hr_tensor tensor, size_t bytes, unsigned char value)
{
	void *at;
	unsigned char ends[2];
	CHECK_STATUS(HR_OK, hr_tensor_pin(tensor, HR_READ, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_tensor_get_address(tensor, &at));
	CHECK_STATUS(HR_OK, hr_stream_copy(device, &ends[0], at, 1, HR_COPY_TO_HOST, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_stream_copy(device, &ends[1], (char *)at + bytes - 1, 1, HR_COPY_TO_HOST, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_stream_synchronize(device, HR_STREAM_DEFAULT));
	CHECK_EQ(ends[0], value);
	CHECK_EQ(ends[1], value);
	CHECK_STATUS(HR_OK, hr_tensor_unpin(tensor, HR_STREAM_DEFAULT));
}

static hr_tensor create_fixed(size_t bytes)
{
	hr_tensor tensor;
	hr_tensor_options options;
	hr_tensor_options_init(&options);
	options.bytes = bytes;
	options.fixed = true;
	CHECK_STATUS(HR_OK, hr_tensor_create(allocator, &options, &tensor));
	return tensor;
}

/* The tensor got memory before another tensor of the call found none. If it counted as written, the undefined contents of that
 * memory would be copied to the host as its own. */
static void test_a_new_tensor_whose_pin_failed_is_still_new(void)
{
	for (int fixed = 0; fixed < 2; fixed++) {
		hr_lms_options options = lms_options("lru");
		set_up(4 * MIB, &options);
		hr_tensor old = create(MIB), large = create(5 * MIB), a = fixed ? create_fixed(MIB) : create(MIB);
		hr_pin pins[] = { { old, HR_READ }, { a, HR_OVERWRITE }, { a, HR_READ }, { large, HR_WRITE } };
		fill(old, MIB, 5);
		for (int i = 0; i < 3; i++) {
			CHECK_STATUS(HR_OUT_OF_MEMORY, hr_tensor_pin_all(pins, 4, HR_STREAM_DEFAULT));
			CHECK_CONTAINS(hr_last_message(), "smallest sufficient limit");
			CHECK_EQ(state_of(a), HR_TENSOR_NEW);
			CHECK_EQ(state_of(large), HR_TENSOR_NEW);
			CHECK_STATUS(HR_OK, hr_lms_check(allocator));
		}
		CHECK_STATUS(HR_INVALID_ARGUMENT, hr_tensor_pin(a, HR_READ, HR_STREAM_DEFAULT));
		CHECK_CONTAINS(hr_last_message(), "never written");
		CHECK_STATUS(HR_OK, hr_tensor_evict(old));
		int64_t copied = stats_of().bytes_copied_out;
		CHECK_STATUS(HR_OK, hr_tensor_evict(a));
		CHECK_STATUS(HR_OK, hr_lms_reclaim_inactive(allocator, HR_NAME_NONE, NULL));
		CHECK_EQ(stats_of().bytes_copied_out, copied);
		CHECK_EQ(stats_of().bytes_out_now, (int64_t)MIB);
		CHECK_STATUS(HR_OK, hr_tensor_pin_all(pins, 3, HR_STREAM_DEFAULT)); /* written and read by the same call */
		CHECK_STATUS(HR_OK, hr_tensor_unpin_all(pins, 3, HR_STREAM_DEFAULT));
		fill(a, MIB, 6);
		CHECK_STATUS(HR_OUT_OF_MEMORY, hr_tensor_pin_all(pins + 2, 2, HR_STREAM_DEFAULT));
		CHECK_NE(state_of(a), HR_TENSOR_NEW); /* now it is written */
		CHECK_STATUS(HR_OK, hr_tensor_evict(a));
		expect(a, MIB, 6);
		expect(old, MIB, 5);
		tear_down();
	}
}

/* The device keeps its pages: the tensor has memory, but still nothing to read or to copy. */
static void test_a_new_tensor_whose_pages_were_not_released_has_no_contents(void)
{
	for (uint64_t nth = 1;; nth++) {
		hr_lms_options options = lms_options("lru");
		set_up(4 * MIB, &options);
		hr_tensor a = create_fixed(MIB), other = create(2 * MIB);
		hr_pin pins[] = { { a, HR_OVERWRITE }, { other, HR_OVERWRITE } };
		hr_backend_fail_nth(nth, true, HR_DEVICE_ERROR);
		hr_status status = hr_tensor_pin_all(pins, 2, HR_STREAM_DEFAULT);
		bool met = hr_backend_calls() >= nth;
		hr_backend_fail_nth(0, false, HR_OK);
		CHECK(met ? status == HR_DEVICE_ERROR : status == HR_OK);
		if (!met) {
			CHECK_GT(nth, 2);
			CHECK_STATUS(HR_OK, hr_tensor_unpin_all(pins, 2, HR_STREAM_DEFAULT));
			tear_down();
			return;
		}
		CHECK_STATUS(HR_OK, hr_lms_check(allocator));
		CHECK_STATUS(HR_INVALID_ARGUMENT, hr_tensor_pin(a, HR_READ, HR_STREAM_DEFAULT));
		CHECK_CONTAINS(hr_last_message(), "never written");
		CHECK_EQ(state_of(a), HR_TENSOR_NEW);
		CHECK_EQ(stats_of().bytes_copied_out, 0);
		fill(a, MIB, 3);
		CHECK_STATUS(HR_OK, hr_tensor_evict(a));
		expect(a, MIB, 3);
		tear_down();
	}
}

/* ---- eviction ---- */

/* The first candidates, more than one batch, do not fit on the host. */
static void test_evictable_tensors_are_evicted_although_others_cannot_be(void)
{
	hr_lms_options options = lms_options("lru");
	options.host_limit = 256 * KIB;
	set_up(32 * MIB, &options);
	enum { LARGE = 80, SMALL = 4 };
	hr_tensor small[SMALL];
	uint64_t freed = 0;
	for (int i = 0; i < SMALL; i++) {
		small[i] = create(16 * KIB);
		fill(small[i], 16 * KIB, (unsigned char)i);
	}
	for (int i = 0; i < LARGE; i++) {
		hr_tensor large = create(320 * KIB);
		fill(large, 320 * KIB, (unsigned char)i);
		CHECK_STATUS(HR_OK, hr_tensor_set_priority(large, -1));
	}
	CHECK_STATUS(HR_OUT_OF_MEMORY, hr_lms_reclaim_inactive(allocator, HR_NAME_NONE, &freed));
	CHECK_CONTAINS(hr_last_message(), "host_limit");
	CHECK_EQ(freed, SMALL * 16 * KIB);
	for (int i = 0; i < SMALL; i++) {
		hr_tensor_info info = fixture_tensor_info(small[i]);
		CHECK_EQ(info.state, HR_TENSOR_EVICTED);
	}
	tear_down();
}

/* ---- the limit for tensors ---- */

static void *evict(void *tensor)
{
	CHECK_STATUS(HR_OK, hr_tensor_evict(*(hr_tensor *)tensor));
	return NULL;
}

static void *destroy(void *tensor)
{
	CHECK_STATUS(HR_OK, hr_tensor_destroy(*(hr_tensor *)tensor));
	return NULL;
}

/* Another thread evicts or destroys a tensor and waits 200 ms for its pages; its memory counts until then. */
static pthread_t begin(void *(*way)(void *), hr_tensor *tensor)
{
	pthread_t thread;
	void *at;
	static unsigned char copy[4 * MIB];
	*tensor = create_fixed(4 * MIB);
	fill(*tensor, 4 * MIB, 1);
	if (way == destroy) { /* the device is still reading it */
		CHECK_STATUS(HR_OK, hr_tensor_pin(*tensor, HR_READ, HR_STREAM_DEFAULT));
		CHECK_STATUS(HR_OK, hr_tensor_get_address(*tensor, &at));
		CHECK_STATUS(HR_OK, hr_stream_copy(device, copy, at, sizeof copy, HR_COPY_TO_HOST, HR_STREAM_DEFAULT));
		CHECK_STATUS(HR_OK, hr_tensor_unpin(*tensor, HR_STREAM_DEFAULT));
	}
	CHECK_EQ(pthread_create(&thread, NULL, way, tensor), 0);
	for (;;) {
		hr_tensor_info info = { .struct_size = sizeof info };
		hr_status status = hr_tensor_get_info(*tensor, &info);
		if (status == HR_INVALID_HANDLE || info.state == HR_TENSOR_EVICTING) return thread;
		CHECK_STATUS(HR_OK, status);
		CHECK_NE(info.state, HR_TENSOR_EVICTED); /* the eviction was too fast */
	}
}

static void test_a_lower_limit_waits_for_evictions_under_way(void)
{
	for (int way = 0; way < 2; way++) {
		hr_lms_options options = lms_options("lru");
		hr_tensor going;
		set_up_with(16 * MIB, &options, 20000000);
		hr_tensor other = create(MIB);
		fill(other, MIB, 2);
		pthread_t thread = begin(way ? destroy : evict, &going);
		CHECK_STATUS(HR_OK, hr_lms_set_limit(allocator, MIB));
		pthread_join(thread, NULL);
		expect(other, MIB, 2);
		tear_down();
	}
}

static void test_a_pin_below_the_limit_waits_for_evictions_under_way(void)
{
	for (int way = 0; way < 2; way++) {
		hr_lms_options options = lms_options("lru");
		hr_tensor going;
		options.wait_ns = 0; /* applies to pins of other threads only */
		options.limit = 5 * MIB;
		set_up_with(16 * MIB, &options, 20000000);
		pthread_t thread = begin(way ? destroy : evict, &going);
		hr_tensor other = create(3 * MIB);
		fill(other, 3 * MIB, 2);
		pthread_join(thread, NULL);
		expect(other, 3 * MIB, 2);
		tear_down();
	}
}

/* No eviction is pending: the refusal is immediate and gives the reason. */
static void test_a_limit_below_the_unevictable_bytes_is_refused(void)
{
	hr_lms_options options = lms_options("lru");
	options.host_limit = MIB;
	set_up(16 * MIB, &options);
	hr_tensor a = create(MIB), b = create(2 * MIB);
	fill(a, MIB, 1);
	fill(b, 2 * MIB, 2); /* does not fit on the host */
	CHECK_STATUS(HR_BAD_LIMIT, hr_lms_set_limit(allocator, MIB));
	CHECK_CONTAINS(hr_last_message(), "the limit is unchanged");
	/* What was evicted before the call failed has its contents, and both fit at once as before. */
	hr_tensor_info info = { .struct_size = sizeof info };
	CHECK_STATUS(HR_OK, hr_tensor_get_info(a, &info));
	CHECK_EQ((int)info.state, (int)HR_TENSOR_EVICTED);
	hr_pin both[] = { { a, HR_READ }, { b, HR_READ } };
	CHECK_STATUS(HR_OK, hr_tensor_pin_all(both, 2, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_tensor_unpin_all(both, 2, HR_STREAM_DEFAULT));
	expect(a, MIB, 1);
	expect(b, 2 * MIB, 2);
	CHECK_STATUS(HR_OK, hr_tensor_pin(b, HR_READ, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_BAD_LIMIT, hr_lms_set_limit(allocator, MIB));
	CHECK_CONTAINS(hr_last_message(), "pinned");
	CHECK_STATUS(HR_OK, hr_tensor_unpin(b, HR_STREAM_DEFAULT));
	tear_down();
}

/* ---- long lists ---- */

static void shuffle(hr_pin *pins, size_t count, uint64_t *seed)
{
	for (size_t i = count; i > 1; i--) {
		size_t other = hr_rand_below(seed, i);
		hr_pin swap = pins[i - 1];
		pins[i - 1] = pins[other];
		pins[other] = swap;
	}
}

/* A list with each tensor once or twice, plus one more entry than pins: nothing is unpinned, however long the list is. */
static void test_unpinning_more_often_than_pinned_is_refused_in_lists_of_any_length(void)
{
	enum { MOST = 3000 };
	static hr_tensor tensors[MOST];
	static hr_pin pins[2 * MOST + 1];
	static const size_t lengths[] = { 1, 2, 31, 32, 33, 43, 44, 63, 64, 65, 66, 100, 1000, MOST };
	hr_lms_options options = lms_options("lru");
	uint64_t seed = hr_test_seed();
	set_up(8 * MIB, &options);
	for (size_t i = 0; i < MOST; i++) tensors[i] = create(256);
	for (size_t each = 0; each < sizeof lengths / sizeof *lengths; each++) {
		size_t count = 0, length = lengths[each];
		for (size_t i = 0; i < length; i++)
			for (size_t k = 0; k < 1 + i % 2; k++) pins[count++] = (hr_pin){ tensors[i], HR_OVERWRITE };
		CHECK_STATUS(HR_OK, hr_tensor_pin_all(pins, count, HR_STREAM_DEFAULT));
		for (int attempt = 0; attempt < 4; attempt++) {
			size_t extra = hr_rand_below(&seed, length);
			pins[count] = (hr_pin){ tensors[extra], HR_READ };
			shuffle(pins, count + 1, &seed);
			CHECK_STATUS(HR_INVALID_ARGUMENT, hr_tensor_unpin_all(pins, count + 1, HR_STREAM_DEFAULT));
			CHECK_CONTAINS(hr_last_message(), "is not pinned");
			CHECK_EQ(stats_of().num_pins, (int64_t)count);
			size_t at = 0; /* removes one of the entries again */
			while (pins[at].tensor.id != tensors[extra].id) at++;
			pins[at] = pins[count];
		}
		CHECK_STATUS(HR_OK, hr_tensor_unpin_all(pins, count, HR_STREAM_DEFAULT));
		CHECK_EQ(stats_of().num_pins, 0);
	}
	tear_down();
}

/* ---- closing ---- */

static void test_closing_that_is_refused_changes_nothing(void)
{
	hr_lms_options options = lms_options("lru");
	set_up(8 * MIB, &options);
	void *block;
	hr_tensor tensor = create(MIB);
	CHECK_STATUS(HR_OK, hr_tensor_destroy(tensor));
	CHECK_STATUS(HR_OK, hr_alloc_bytes(allocator, MIB, &block));
	CHECK_STATUS(HR_IN_USE, hr_allocator_destroy(allocator));
	CHECK_EQ(stats_of().num_tensors, 0); /* still configured */
	tensor = create(6 * MIB);
	hr_tensor other = create(6 * MIB);
	fill(tensor, 6 * MIB, 1);
	fill(other, 6 * MIB, 2);
	CHECK_EQ(stats_of().num_evictions, 1);
	tear_down();
}

/* ---- policies ---- */

static struct {
	uint64_t ids[16];
	int count;
} heard;

static double same(void *user, const hr_lms_candidate *candidate)
{
	(void)user;
	return (double)candidate->bytes;
}

static void hear(void *user, hr_tensor tensor, uint64_t now)
{
	(void)user;
	(void)now;
	if (heard.count < 16) heard.ids[heard.count++] = tensor.id;
}

static void test_a_policy_is_called_only_for_tensors_that_became_unused(void)
{
	hr_lms_policy policy = { .struct_size = sizeof policy, .score = same, .unused = hear };
	CHECK_STATUS(HR_OK, hr_lms_policy_register("listener", &policy, NULL));
	hr_lms_options options = lms_options("listener");
	set_up(8 * MIB, &options);
	hr_tensor a = create(MIB), b = create(MIB);
	hr_pin pins[] = { { a, HR_OVERWRITE }, { b, HR_OVERWRITE }, { a, HR_READ } };
	CHECK_STATUS(HR_OK, hr_tensor_pin(b, HR_OVERWRITE, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_tensor_pin_all(pins, 3, HR_STREAM_DEFAULT));
	heard.count = 0;
	CHECK_STATUS(HR_OK, hr_tensor_unpin_all(pins, 3, HR_STREAM_DEFAULT));
	CHECK_EQ(heard.count, 1); /* of a, once; b is still pinned */
	CHECK_EQ(heard.ids[0], a.id);
	CHECK_STATUS(HR_OK, hr_tensor_unpin(b, HR_STREAM_DEFAULT));
	CHECK_EQ(heard.count, 2);
	CHECK_EQ(heard.ids[1], b.id);
	tear_down();
}

/* ---- destroying ---- */

/* A failing device cannot keep a tensor alive: the tensor is destroyed, so the call returns HR_OK. */
static void test_a_tensor_that_is_destroyed_says_so(void)
{
	hr_lms_options options = lms_options("lru");
	set_up(8 * MIB, &options);
	hr_stream stream = fixture_stream(device);
	for (uint64_t nth = 1; nth < 12; nth++) {
		hr_tensor tensor = create(MIB);
		void *at;
		CHECK_STATUS(HR_OK, hr_tensor_pin(tensor, HR_OVERWRITE, stream));
		CHECK_STATUS(HR_OK, hr_tensor_get_address(tensor, &at));
		CHECK_STATUS(HR_OK, hr_stream_fill(device, at, 1, MIB, stream));
		CHECK_STATUS(HR_OK, hr_tensor_unpin(tensor, stream));
		copy_ahead(tensor);
		hr_backend_fail_nth(nth, true, HR_DEVICE_ERROR);
		hr_status status = hr_tensor_destroy(tensor);
		hr_backend_fail_nth(0, false, HR_OK);
		CHECK_STATUS(HR_OK, status);
		CHECK_STATUS(HR_INVALID_HANDLE, hr_tensor_destroy(tensor));
	}
	tear_down();
}

/* A pin for writing invalidates the host copy, which may still be pending; a later failure of the pin must not hide that. */
static void test_memory_is_not_reused_during_a_copy(void)
{
	hr_lms_options options = lms_options("lru");
	hr__lms *lms;
	set_up_with(8 * MIB, &options, 20000000); /* 200 ms for 4 MiB */
	hr_tensor first = create(3 * MIB), tensor = create(4 * MIB), large = create(9 * MIB);
	fill(first, 3 * MIB, 1);
	fill(tensor, 4 * MIB, 1);
	CHECK_STATUS(HR_OK, hr__lms_of(allocator, &lms));
	CHECK_STATUS(HR_OK, hr__device_mark(lms->device, HR_STREAM_DEFAULT, NULL)); /* waits for the fill end here */
	copy_ahead(first);                                                          /* keeps the link busy */
	copy_ahead(tensor);
	hr_pin pins[] = { { tensor, HR_WRITE }, { large, HR_WRITE } };
	CHECK_STATUS(HR_OUT_OF_MEMORY, hr_tensor_pin_all(pins, 2, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_tensor_destroy(tensor));
	CHECK_STATUS(HR_OK, hr_allocator_trim(allocator, NULL));
	CHECK_STATUS(HR_OK, hr_stream_synchronize(device, lms->out_stream)); /* reports an error if the memory was unmapped */
	tear_down();
}

/* The file is full while the next piece is being copied to the ring: the tensor stays resident, and may be destroyed before that
 * copy ends. */
static void test_memory_is_not_reused_during_a_copy_that_failed(void)
{
	char folder[] = "/tmp/hr-lms-regression-XXXXXX";
	uint64_t failed = 0;
	hr_status status;
	CHECK(mkdtemp(folder) != NULL);
	bool more = true;
	for (uint64_t nth = 1; more && failed < 4; nth++) {
		hr_lms_options options = lms_options("lru");
		hr__lms *lms;
		options.host_limit = 256 * KIB; /* pieces of 16 KiB */
		options.spill_dir = folder;
		set_up_with(8 * MIB, &options, 1000000); /* 16 ms for a piece */
		hr_tensor tensor = create(256 * KIB);
		fill(tensor, 256 * KIB, 1);
		CHECK_STATUS(HR_OK, hr__lms_of(allocator, &lms));
		CHECK_STATUS(HR_OK, hr_stream_synchronize(device, HR_STREAM_DEFAULT));
		hr_fault_os_fail_nth(nth, false, ENOSPC);
		status = hr_tensor_evict(tensor);
		more = hr_fault_os_calls() >= nth;
		hr_fault_os_fail_nth(0, false, 0);
		failed += status == HR_OUT_OF_MEMORY;
		CHECK_STATUS(HR_OK, hr_tensor_destroy(tensor));
		CHECK_STATUS(HR_OK, hr_allocator_trim(allocator, NULL));
		CHECK_STATUS(HR_OK, hr_stream_synchronize(device, lms->out_stream)); /* reports an error if the memory was unmapped */
		tear_down();
	}
	CHECK_GT(failed, 2);
	CHECK_EQ(rmdir(folder), 0);
}

/* ---- a tensor that is destroyed before the call that pinned it returns ---- */

static struct {
	_Atomic uint64_t pinned; /* handed to the other thread; 0 = none */
	_Atomic int ends;
	uint64_t rounds;
} handed;

static void hand_over(void *argument, unsigned index)
{
	(void)argument;
	if (index) { /* unpins and destroys at once */
		for (unsigned spins = 0; !handed.ends; spins++) {
			hr_tensor tensor = { handed.pinned };
			if (spins % 64 == 63) sched_yield(); /* lets the other thread run, on one processor */
			if (!tensor.id) continue;
			while (hr_tensor_unpin(tensor, HR_STREAM_DEFAULT))
				if (++spins % 64 == 63) sched_yield();
			while (hr_tensor_destroy(tensor)) {}
			handed.pinned = 0;
		}
		return;
	}
	/* A round lasts until each thread has run: on one processor shared with other processes, many milliseconds. */
	double end = hr_test_now() + 10;
	for (uint64_t i = 0; i < handed.rounds && hr_test_now() < end; i++) {
		if (i % 100 == 0) CHECK_STATUS(HR_OK, hr_step_begin(allocator));
		hr_tensor tensor = create(4 * KIB);
		handed.pinned = tensor.id;
		CHECK_STATUS(HR_OK, hr_tensor_pin(tensor, HR_OVERWRITE, HR_STREAM_DEFAULT));
		for (unsigned spins = 0; handed.pinned; spins++)
			if (spins % 64 == 63) sched_yield();
	}
	handed.ends = 1;
}

static void test_a_tensor_may_be_destroyed_before_its_pin_call_returns(void)
{
	hr_lms_options options = lms_options("learned");
	set_up(8 * MIB, &options);
	handed.rounds = hr_test_scaled(HR_TEST_SANITIZED ? 1000 : 5000);
	handed.ends = 0;
	hr_test_threads(2, hand_over, NULL);
	tear_down();
}

/* 256 tensors in memory for 8: scanning all of them for each eviction took time quadratic in their number. */
static void test_reclaiming_examines_only_tensors_that_may_be_resident(void)
{
	enum { COUNT = 256, RESIDENT = 8 };
	hr_tensor tensors[COUNT];
	hr_status status = HR_OK;
	hr_lms_options options = lms_options("lru");
	set_up(RESIDENT * 128 * KIB, &options);
	for (unsigned i = 0; i < COUNT; i++) {
		tensors[i] = create(128 * KIB);
		fill(tensors[i], 128 * KIB, (unsigned char)i);
		CHECK_STATUS(HR_OK, hr_lms_check(allocator));
	}
	const hr__lms *lms = hr__tensor_of(tensors[0], &status)->lms;
	CHECK_EQ(lms->member_count, COUNT);
	CHECK(lms->resident_count <= RESIDENT + 1); /* and the one evicted last */
	/* Restored tensors are in the list again, and destroyed ones leave no gap. */
	for (unsigned i = 0; i + 1 < COUNT; i += 5) {
		hr_pin pin = { tensors[i], HR_READ };
		CHECK_STATUS(HR_OK, hr_tensor_pin_all(&pin, 1, HR_STREAM_DEFAULT));
		CHECK(hr__tensor_of(tensors[i], &status)->member < lms->resident_count);
		CHECK_STATUS(HR_OK, hr_tensor_unpin_all(&pin, 1, HR_STREAM_DEFAULT));
		CHECK_STATUS(HR_OK, hr_tensor_destroy(tensors[i + 1]));
		CHECK_STATUS(HR_OK, hr_tensor_destroy(tensors[i]));
		CHECK_STATUS(HR_OK, hr_lms_check(allocator));
	}
	CHECK(lms->resident_count <= RESIDENT + 1);
	tear_down();
}

TEST_MAIN(T(test_reclaiming_examines_only_tensors_that_may_be_resident), T(test_verify_accepts_a_tensor_whose_overwriting_pin_failed), T(test_verify_checks_every_tensor_of_an_unpin),
          T(test_evictable_tensors_are_evicted_although_others_cannot_be), T(test_closing_that_is_refused_changes_nothing),
          T(test_a_policy_is_called_only_for_tensors_that_became_unused), T(test_a_tensor_that_is_destroyed_says_so),
          T(test_memory_is_not_reused_during_a_copy), T(test_a_new_tensor_whose_pin_failed_is_still_new),
          T(test_a_new_tensor_whose_pages_were_not_released_has_no_contents), T(test_a_lower_limit_waits_for_evictions_under_way),
          T(test_a_pin_below_the_limit_waits_for_evictions_under_way), T(test_a_limit_below_the_unevictable_bytes_is_refused),
          T(test_unpinning_more_often_than_pinned_is_refused_in_lists_of_any_length),
          T(test_memory_is_not_reused_during_a_copy_that_failed), T(test_a_tensor_may_be_destroyed_before_its_pin_call_returns))
