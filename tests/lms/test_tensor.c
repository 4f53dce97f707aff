/* test_tensor.c - tensors: pins, states, eviction and restoring with their contents, and the errors that the manual documents. */
#include "fixture.h"
#include "fault_os.h"
#include "headroom_backend.h"
#include "test.h"

#define KIB UINT64_C(1024)
#define MIB (KIB * KIB)

static hr_device device;
static hr_allocator allocator;

static void set_up_with(uint64_t limit, const hr_lms_options *lms)
{
	device = fixture_emulated(256 * MIB, 64 * KIB, 0);
	allocator = fixture_allocator(device, limit);
	if (lms) CHECK_STATUS(HR_OK, hr_lms_configure(allocator, lms));
}

static hr_lms_options lms_options(const char *policy)
{
	return fixture_lms_options(policy, 512 * MIB);
}

static void set_up(uint64_t limit)
{
	hr_lms_options options = lms_options("lru");
	set_up_with(limit, &options);
}

static hr_tensor create(size_t bytes)
{
	return fixture_tensor(allocator, bytes);
}

static hr_tensor_info info_of(hr_tensor tensor)
{
	return fixture_tensor_info(tensor);
}

static hr_lms_stats stats_of(void)
{
	return fixture_lms_stats(allocator);
}

/* The host can access emulated device memory when the stream is done. */
static void fill(hr_tensor tensor, unsigned char value)
{
	void *at;
	CHECK_STATUS(HR_OK, hr_tensor_pin(tensor, HR_OVERWRITE, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_tensor_get_address(tensor, &at));
	CHECK_STATUS(HR_OK, hr_stream_fill(device, at, value, info_of(tensor).bytes, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_tensor_unpin(tensor, HR_STREAM_DEFAULT));
}

static void expect(hr_tensor tensor, unsigned char value)
{
	void *at;
	size_t bytes = info_of(tensor).bytes;
	CHECK_STATUS(HR_OK, hr_tensor_pin(tensor, HR_READ, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_tensor_get_address(tensor, &at));
	unsigned char *copy = malloc(bytes);
	CHECK_STATUS(HR_OK, hr_stream_copy(device, copy, at, bytes, HR_COPY_TO_HOST, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_stream_synchronize(device, HR_STREAM_DEFAULT));
	for (size_t i = 0; i < bytes; i++)
		if (copy[i] != value) CHECK_EQ(copy[i], value);
	free(copy);
	CHECK_STATUS(HR_OK, hr_tensor_unpin(tensor, HR_STREAM_DEFAULT));
}

static void tear_down(void)
{
	CHECK_STATUS(HR_OK, hr_lms_check(allocator));
	CHECK_STATUS(HR_OK, hr_allocator_check(allocator));
	CHECK_STATUS(HR_OK, hr_allocator_destroy_all(allocator));
	CHECK_STATUS(HR_OK, hr_shutdown());
}

/* ---- states ---- */

static void test_a_tensor_goes_through_its_states(void)
{
	set_up(16 * MIB);
	hr_tensor tensor = create(MIB);
	CHECK_EQ(info_of(tensor).state, HR_TENSOR_NEW);
	CHECK_EQ(info_of(tensor).device_bytes, 0u);
	CHECK_STATUS(HR_OK, hr_tensor_pin(tensor, HR_WRITE, HR_STREAM_DEFAULT));
	CHECK_EQ(info_of(tensor).state, HR_TENSOR_ACTIVE);
	CHECK_EQ(info_of(tensor).pins, 1u);
	CHECK_STATUS(HR_IN_USE, hr_tensor_evict(tensor));
	CHECK_STATUS(HR_IN_USE, hr_tensor_destroy(tensor));
	CHECK_STATUS(HR_OK, hr_tensor_unpin(tensor, HR_STREAM_DEFAULT));
	CHECK_EQ(info_of(tensor).state, HR_TENSOR_INACTIVE);
	CHECK(info_of(tensor).dirty);
	CHECK_STATUS(HR_OK, hr_tensor_evict(tensor));
	CHECK_EQ(info_of(tensor).state, HR_TENSOR_EVICTED);
	CHECK_EQ(info_of(tensor).host_bytes, MIB);
	CHECK_STATUS(HR_OK, hr_tensor_evict(tensor));
	CHECK_STATUS(HR_OK, hr_tensor_prefetch(tensor));
	CHECK_EQ(info_of(tensor).state, HR_TENSOR_SYNCED);
	CHECK(!info_of(tensor).dirty);
	CHECK_STATUS(HR_OK, hr_tensor_pin(tensor, HR_WRITE, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_tensor_unpin(tensor, HR_STREAM_DEFAULT));
	CHECK_EQ(info_of(tensor).state, HR_TENSOR_INACTIVE);
	CHECK_STATUS(HR_OK, hr_tensor_destroy(tensor));
	hr_tensor_info info = { .struct_size = sizeof info };
	CHECK_STATUS(HR_INVALID_HANDLE, hr_tensor_get_info(tensor, &info));
	CHECK_STATUS(HR_INVALID_HANDLE, hr_tensor_destroy(tensor));
	CHECK_STATUS(HR_INVALID_HANDLE, hr_tensor_pin(tensor, HR_READ, HR_STREAM_DEFAULT));
	tear_down();
}

static void test_contents_survive_eviction_and_restore(void)
{
	set_up(16 * MIB);
	hr_tensor tensors[12];
	for (int i = 0; i < 12; i++) {
		tensors[i] = create(3 * MIB - (unsigned)i * 1000);
		fill(tensors[i], (unsigned char)(i + 1));
	}
	for (int round = 0; round < 3; round++)
		for (int i = 0; i < 12; i++) expect(tensors[i], (unsigned char)(i + 1));
	hr_lms_stats stats = stats_of();
	CHECK_GT(stats.num_evictions, 12);
	CHECK_GT(stats.num_clean_evictions, 0); /* only read since they were restored */
	CHECK_GT(stats.bytes_copied_in, stats.bytes_copied_out);
	for (int i = 0; i < 12; i++) CHECK_STATUS(HR_OK, hr_tensor_destroy(tensors[i]));
	stats = stats_of();
	CHECK_EQ(stats.bytes_out_now, 0);
	CHECK_EQ(stats.host_bytes, 0);
	tear_down();
}

static void test_a_clean_tensor_is_evicted_without_a_copy(void)
{
	set_up(16 * MIB);
	hr_tensor tensor = create(MIB);
	fill(tensor, 7);
	CHECK_STATUS(HR_OK, hr_tensor_evict(tensor));
	expect(tensor, 7);
	int64_t copied = stats_of().bytes_copied_out;
	CHECK_STATUS(HR_OK, hr_tensor_evict(tensor));
	CHECK_EQ(stats_of().bytes_copied_out, copied);
	CHECK_EQ(stats_of().num_clean_evictions, 1);
	fill(tensor, 8);
	CHECK_STATUS(HR_OK, hr_tensor_evict(tensor));
	CHECK_EQ(stats_of().bytes_copied_out, copied + (int64_t)MIB);
	expect(tensor, 8);
	tear_down();
}

static void test_overwriting_restores_nothing(void)
{
	set_up(16 * MIB);
	hr_tensor tensor = create(MIB);
	fill(tensor, 7);
	CHECK_STATUS(HR_OK, hr_tensor_evict(tensor));
	fill(tensor, 9);
	CHECK_EQ(stats_of().bytes_copied_in, 0);
	CHECK_EQ(stats_of().bytes_out_now, 0);
	CHECK_EQ(stats_of().host_bytes, 0);
	expect(tensor, 9);
	tear_down();
}

static void test_statistics_add_up(void)
{
	hr_stats stats;
	set_up(16 * MIB);
	hr_tensor a = create(4 * MIB), b = create(4 * MIB);
	fill(a, 1);
	fill(b, 2);
	CHECK_STATUS(HR_OK, hr_tensor_pin(b, HR_READ, HR_STREAM_DEFAULT));
	hr_stats_init(&stats);
	CHECK_STATUS(HR_OK, hr_allocator_get_stats(allocator, &stats));
	CHECK_EQ(stats.bytes_in_use, 8 * MIB);
	CHECK_EQ(stats.bytes_inactive, 4 * MIB);
	CHECK_EQ(stats.bytes_active, 4 * MIB);
	CHECK_EQ(stats.peak_bytes_active, 4 * MIB);
	CHECK_EQ(stats.num_allocs, 2);
	CHECK_STATUS(HR_OK, hr_tensor_evict(a));
	expect(a, 1);
	hr_stats_init(&stats);
	CHECK_STATUS(HR_OK, hr_allocator_get_stats(allocator, &stats));
	CHECK_EQ(stats.num_allocs, 2); /* a restore is no request */
	CHECK_EQ(stats.num_live, 2);
	CHECK_EQ(stats.bytes_reclaimed, 4 * MIB);
	CHECK_STATUS(HR_OK, hr_tensor_unpin(b, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_tensor_evict(b));
	CHECK_STATUS(HR_OK, hr_tensor_destroy(b));
	hr_stats_init(&stats);
	CHECK_STATUS(HR_OK, hr_allocator_get_stats(allocator, &stats));
	CHECK_EQ(stats.num_frees, 1);
	CHECK_EQ(stats.num_live, 1);
	tear_down();
}

/* ---- room ---- */

static void test_one_tensor_that_makes_room_is_enough(void)
{
	set_up(16 * MIB);
	hr_tensor tensors[8];
	for (int i = 0; i < 8; i++) {
		tensors[i] = create(2 * MIB);
		fill(tensors[i], (unsigned char)i);
	}
	int64_t evicted = stats_of().num_evictions;
	hr_tensor more = create(2 * MIB);
	fill(more, 99);
	CHECK_EQ(stats_of().num_evictions, evicted + 1);
	CHECK_EQ(stats_of().num_single_reclaims, evicted + 1);
	CHECK_EQ(info_of(tensors[evicted]).state, HR_TENSOR_EVICTED); /* the least recently used one */
	tear_down();
}

static void test_plain_requests_evict_tensors_too(void)
{
	set_up(16 * MIB);
	hr_tensor tensor = create(12 * MIB);
	void *block;
	fill(tensor, 5);
	CHECK_STATUS(HR_OK, hr_alloc_bytes(allocator, 10 * MIB, &block));
	CHECK_EQ(info_of(tensor).state, HR_TENSOR_EVICTED);
	hr_stats stats = fixture_stats(allocator);
	CHECK_EQ(stats.source_single_reclaim, 1);
	CHECK_STATUS(HR_OK, hr_free(allocator, block, HR_STREAM_DEFAULT));
	expect(tensor, 5);
	tear_down();
}

static void test_several_neighbours_are_evicted_for_a_large_request(void)
{
	set_up(16 * MIB);
	hr_tensor tensors[8];
	for (int i = 0; i < 8; i++) {
		tensors[i] = create(2 * MIB - 64 * KIB);
		fill(tensors[i], (unsigned char)i);
	}
	hr_tensor large = create(6 * MIB);
	fill(large, 77);
	CHECK_EQ(stats_of().num_multi_reclaims, 1);
	CHECK_LE(stats_of().num_evictions, 4);
	for (int i = 0; i < 8; i++) expect(tensors[i], (unsigned char)i);
	expect(large, 77);
	tear_down();
}

static void test_everything_inactive_is_evicted_before_a_request_fails(void)
{
	set_up(16 * MIB);
	hr_tensor tensors[4];
	for (int i = 0; i < 4; i++) {
		tensors[i] = create(3 * MIB);
		fill(tensors[i], (unsigned char)i);
	}
	hr_tensor large = create(15 * MIB + 512 * KIB);
	fill(large, 77);
	CHECK_EQ(stats_of().num_full_reclaims, 1);
	for (int i = 0; i < 4; i++) expect(tensors[i], (unsigned char)i);
	tear_down();
}

static void test_an_op_that_cannot_fit_is_named_with_its_tensors(void)
{
	set_up(16 * MIB);
	hr_tensor a = create(8 * MIB), b = create(6 * MIB), c = create(4 * MIB);
	fill(a, 1);
	fill(b, 2);
	fill(c, 3);
	hr_pin pins[] = { { a, HR_READ }, { b, HR_READ }, { c, HR_WRITE } };
	hr_op_set(hr_name_intern("matmul_7"));
	CHECK_STATUS(HR_OUT_OF_MEMORY, hr_tensor_pin_all(pins, 3, HR_STREAM_DEFAULT));
	CHECK_CONTAINS(hr_last_message(), "matmul_7");
	CHECK_CONTAINS(hr_last_message(), "reads 8.0 MiB");
	CHECK_CONTAINS(hr_last_message(), "writes 4.0 MiB");
	CHECK_CONTAINS(hr_last_message(), "smallest sufficient limit is 18.0 MiB");
	CHECK_EQ(info_of(a).pins, 0u);
	CHECK_EQ(info_of(b).pins, 0u);
	CHECK_EQ(info_of(c).pins, 0u);
	expect(a, 1);
	expect(b, 2);
	expect(c, 3);
	tear_down();
}

/* The request would fit if the free memory were contiguous: the message names no least limit that is not above the current one. */
static void refuse_pieces(bool defrag)
{
	hr_lms_options options = lms_options("lru");
	hr_tensor tensors[4];
	void *at;
	options.defrag = defrag;
	options.wait_ns = 1000000; /* for an unpin, which never comes */
	set_up_with(384 * KIB, &options);
	for (int i = 0; i < 4; i++) {
		tensors[i] = create(96 * KIB);
		fill(tensors[i], (unsigned char)i);
	}
	hr_pin kept[] = { { tensors[1], HR_READ }, { tensors[3], HR_READ } };
	CHECK_STATUS(HR_OK, hr_tensor_pin_all(kept, 2, HR_STREAM_DEFAULT));
	for (int i = 0; i < 2; i++) CHECK_STATUS(HR_OK, hr_tensor_get_address(kept[i].tensor, &at)); /* before this they may be moved */
	hr_tensor large = create(192 * KIB);
	CHECK_STATUS(HR_OUT_OF_MEMORY, hr_tensor_pin(large, HR_OVERWRITE, HR_STREAM_DEFAULT));
	CHECK_CONTAINS(hr_last_message(), "192.0 KiB more is in use; that is within the limit, but free memory is fragmented");
	CHECK_EQ(strstr(hr_last_message(), "hr_lms_options.defrag") == NULL, defrag);
	CHECK_STATUS(HR_OK, hr_tensor_unpin_all(kept, 2, HR_STREAM_DEFAULT));
	tear_down();
}

/* The limit would suffice, but the device does not have that much. */
static void test_an_op_without_room_because_of_others_gets_that_reason(void)
{
	hr_lms_options options = lms_options("lru");
	hr_allocator others;
	void *block;
	set_up_with(128 * MIB, &options);
	CHECK_STATUS(HR_OK, hr_allocator_create(device, NULL, &others));
	CHECK_STATUS(HR_OK, hr_alloc_bytes(others, 250 * MIB, &block));
	hr_tensor tensor = create(16 * MIB);
	CHECK_STATUS(HR_OUT_OF_MEMORY, hr_tensor_pin(tensor, HR_OVERWRITE, HR_STREAM_DEFAULT));
	CHECK_CONTAINS(hr_last_message(), "that is within the limit, but other users of GPU:0 leave only 6.0 MiB for it");
	CHECK_STATUS(HR_OK, hr_free(others, block, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_allocator_destroy(others));
	fill(tensor, 1);
	expect(tensor, 1);
	tear_down();
}

static void test_an_op_refused_for_fragmentation_gets_that_reason(void)
{
	refuse_pieces(false);
	refuse_pieces(true);
}

static void test_never_evict_and_priority_are_kept(void)
{
	set_up(16 * MIB);
	hr_tensor stays = create(4 * MIB), low = create(4 * MIB), old = create(4 * MIB), recent = create(3 * MIB);
	fill(stays, 1);
	fill(old, 3);
	fill(low, 2);
	fill(recent, 4);
	CHECK_STATUS(HR_OK, hr_tensor_set_never_evict(stays, true));
	CHECK_STATUS(HR_UNSUPPORTED, hr_tensor_evict(stays));
	CHECK_STATUS(HR_OK, hr_tensor_set_priority(low, -1));
	hr_tensor more = create(4 * MIB);
	fill(more, 5);
	CHECK_EQ(info_of(low).state, HR_TENSOR_EVICTED);
	CHECK_NE(info_of(old).state, HR_TENSOR_EVICTED);
	uint64_t freed = 0;
	CHECK_STATUS(HR_OK, hr_lms_reclaim_inactive(allocator, HR_NAME_NONE, &freed));
	CHECK_EQ(freed, 11 * MIB);
	CHECK_NE(info_of(stays).state, HR_TENSOR_EVICTED);
	tear_down();
}

static void test_tags_choose_what_is_evicted(void)
{
	set_up(16 * MIB);
	hr_tensor_options options;
	hr_tensor cache, weights;
	hr_tensor_options_init(&options);
	options.bytes = MIB;
	options.tag = hr_name_intern("kv_cache");
	CHECK_STATUS(HR_OK, hr_tensor_create(allocator, &options, &cache));
	options.tag = hr_name_intern("weights");
	CHECK_STATUS(HR_OK, hr_tensor_create(allocator, &options, &weights));
	fill(cache, 1);
	fill(weights, 2);
	uint64_t freed = 0;
	CHECK_STATUS(HR_OK, hr_lms_reclaim_inactive(allocator, hr_name_intern("kv_cache"), &freed));
	CHECK_EQ(freed, MIB);
	CHECK_EQ(info_of(cache).state, HR_TENSOR_EVICTED);
	CHECK_EQ(info_of(weights).state, HR_TENSOR_INACTIVE);
	tear_down();
}

static int64_t bytes_with_tag(const char *tag)
{
	hr_holder holders[8];
	size_t count = 0;
	CHECK_STATUS(HR_OK, hr_allocator_get_holders(allocator, HR_BY_TAG, holders, 8, &count));
	for (size_t i = 0; i < count; i++)
		if (holders[i].name == hr_name_intern(tag)) return holders[i].bytes;
	return 0;
}

static void test_new_names_of_a_tensor_are_kept_when_it_moves(void)
{
	set_up(16 * MIB);
	hr_tensor resident = create(4 * MIB), evicted = create(2 * MIB), unused = create(1 * MIB);
	hr_name scope = hr_name_intern("encoder.0"), weights = hr_name_intern("weights");
	fill(resident, 1);
	fill(evicted, 2);
	CHECK_STATUS(HR_OK, hr_tensor_evict(evicted));
	hr_tensor all[] = { resident, evicted, unused };
	for (int i = 0; i < 3; i++) CHECK_STATUS(HR_OK, hr_tensor_set_names(all[i], scope, weights));
	CHECK_EQ(bytes_with_tag("weights"), 4 * MIB);
	expect(evicted, 2);
	CHECK_EQ(bytes_with_tag("weights"), 6 * MIB);
	CHECK_STATUS(HR_OK, hr_tensor_evict(resident));
	CHECK_EQ(bytes_with_tag("weights"), 2 * MIB);
	expect(resident, 1);
	fill(unused, 3);
	CHECK_EQ(bytes_with_tag("weights"), 7 * MIB);
	CHECK_STATUS(HR_OK, hr_tensor_set_names(resident, HR_NAME_NONE, hr_name_intern("optimizer")));
	CHECK_EQ(info_of(resident).scope, scope);
	CHECK_EQ(bytes_with_tag("weights"), 3 * MIB);
	CHECK_EQ(bytes_with_tag("optimizer"), 4 * MIB);
	void *address;
	CHECK_STATUS(HR_OK, hr_tensor_pin(resident, HR_READ, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_tensor_get_address(resident, &address));
	CHECK_STATUS(HR_UNSUPPORTED, hr_allocation_set_names(allocator, address, scope, weights)); /* it would be lost with the next move */
	CHECK_STATUS(HR_OK, hr_tensor_unpin(resident, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_tensor_destroy(unused));
	CHECK_STATUS(HR_INVALID_HANDLE, hr_tensor_set_names(unused, scope, weights));
	CHECK_STATUS(HR_OK, hr_lms_check(allocator));
	tear_down();
}

static void test_the_limit_for_tensors_can_be_changed(void)
{
	set_up(64 * MIB);
	hr_tensor a = create(8 * MIB), b = create(8 * MIB);
	fill(a, 1);
	fill(b, 2);
	CHECK_STATUS(HR_OK, hr_lms_set_limit(allocator, 10 * MIB));
	CHECK_EQ(info_of(a).state, HR_TENSOR_EVICTED);
	CHECK_EQ(info_of(b).state, HR_TENSOR_INACTIVE);
	CHECK_STATUS(HR_OK, hr_tensor_pin(b, HR_READ, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_BAD_LIMIT, hr_lms_set_limit(allocator, 4 * MIB));
	CHECK_STATUS(HR_OUT_OF_MEMORY, hr_tensor_pin(a, HR_READ, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_tensor_unpin(b, HR_STREAM_DEFAULT));
	expect(a, 1);
	expect(b, 2);
	CHECK_LE(stats_of().bytes_inactive, 10 * (int64_t)MIB);
	CHECK_STATUS(HR_OK, hr_lms_set_limit(allocator, 0));
	tear_down();
}

static void test_a_full_host_pool_is_named_and_nothing_is_lost(void)
{
	hr_lms_options options = lms_options("lru");
	options.host_limit = 4 * MIB;
	set_up_with(8 * MIB, &options);
	hr_tensor a = create(3 * MIB), b = create(3 * MIB), c = create(3 * MIB), d = create(3 * MIB);
	fill(a, 1);
	fill(b, 2);
	fill(c, 3); /* a is evicted */
	CHECK_STATUS(HR_OUT_OF_MEMORY, hr_tensor_pin(d, HR_WRITE, HR_STREAM_DEFAULT));
	CHECK_CONTAINS(hr_last_message(), "host_limit");
	CHECK_STATUS(HR_OK, hr_tensor_destroy(c));
	expect(b, 2);
	expect(a, 1);
	tear_down();
}

static void test_copies_that_do_not_fit_on_the_host_go_to_a_file(void)
{
	char folder[] = "/tmp/headroom-spill-XXXXXX";
	CHECK(mkdtemp(folder) != NULL);
	hr_lms_options options = lms_options("lru");
	options.host_limit = 4 * MIB;
	options.spill_dir = folder;
	set_up_with(8 * MIB, &options);
	hr_tensor tensors[8];
	for (int i = 0; i < 8; i++) {
		tensors[i] = create(2 * MIB + (unsigned)i);
		fill(tensors[i], (unsigned char)(i + 1));
	}
	CHECK_GT(stats_of().spilled_bytes, 0);
	for (int i = 0; i < 8; i++) expect(tensors[i], (unsigned char)(i + 1));
	CHECK_EQ(rmdir(folder), 0); /* still empty */
	tear_down();
}

/* ---- mistakes ---- */

static void test_mistakes_are_named(void)
{
	set_up(16 * MIB);
	hr_tensor tensor = create(MIB), none = { 0 };
	void *at;
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_tensor_unpin(tensor, HR_STREAM_DEFAULT));
	CHECK_CONTAINS(hr_last_message(), "is not pinned");
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_tensor_get_address(tensor, &at));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_tensor_pin(tensor, HR_READ, HR_STREAM_DEFAULT));
	CHECK_CONTAINS(hr_last_message(), "never written");
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_tensor_pin(tensor, (hr_access)9, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_tensor_pin(tensor, HR_WRITE, 33));
	CHECK_STATUS(HR_INVALID_HANDLE, hr_tensor_pin(none, HR_WRITE, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_tensor_pin_all(NULL, 0, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_step_end(allocator));
	hr_tensor_options options;
	hr_tensor_options_init(&options);
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_tensor_create(allocator, &options, &tensor));
	options.bytes = SIZE_MAX;
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_tensor_create(allocator, &options, &tensor));
	hr_lms_options lms = lms_options("lru");
	CHECK_STATUS(HR_IN_USE, hr_lms_configure(allocator, &lms));
	CHECK_STATUS(HR_IN_USE, hr_allocator_destroy(allocator));
	CHECK_CONTAINS(hr_last_message(), "tensor");
	/* Two entries in one list need two pins. */
	fill(tensor, 1);
	hr_pin pins[] = { { tensor, HR_READ }, { tensor, HR_READ } };
	CHECK_STATUS(HR_OK, hr_tensor_pin(tensor, HR_READ, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_tensor_unpin_all(pins, 2, HR_STREAM_DEFAULT));
	CHECK_EQ(info_of(tensor).pins, 1u);
	CHECK_STATUS(HR_OK, hr_tensor_unpin(tensor, HR_STREAM_DEFAULT));
	tear_down();
}

static void test_bad_options_are_refused(void)
{
	hr_emulated_options emulated;
	CHECK_STATUS(HR_OK, hr_emulated_options_init(&emulated));
	CHECK_STATUS(HR_OK, hr_device_find("GPU:0", &device));
	hr_allocator_options plain = fixture_allocator_options(16 * MIB);
	CHECK_STATUS(HR_OK, hr_allocator_create(device, &plain, &allocator));
	hr_lms_options options = lms_options("no such policy");
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_lms_configure(allocator, &options));
	options = lms_options("lru");
	options.spill_dir = "/no/such/place";
	CHECK_STATUS(HR_IO, hr_lms_configure(allocator, &options));
	CHECK_CONTAINS(hr_last_message(), "/no/such/place");
	options = lms_options("lru");
	options.step_csv = "/no/such/place/steps.csv";
	CHECK_STATUS(HR_IO, hr_lms_configure(allocator, &options));
	plain.kind = "direct";
	hr_allocator direct;
	CHECK_STATUS(HR_OK, hr_allocator_create(device, &plain, &direct));
	options = lms_options("lru");
	CHECK_STATUS(HR_UNSUPPORTED, hr_lms_configure(direct, &options));
	CHECK_STATUS(HR_OK, hr_lms_configure(allocator, &options));
	tear_down();
}

static void test_the_environment_switches_it_on(void)
{
	hr_lms_options options;
	CHECK_STATUS(HR_OK, hr_lms_options_init(&options));
	CHECK(!options.enabled);
	setenv("HEADROOM_LMS", "policy=lru,host_limit=3MiB,verify=1,limit=1.5G", 1);
	CHECK_STATUS(HR_OK, hr_lms_options_init(&options));
	CHECK(options.enabled && options.verify);
	CHECK_STR(options.policy, "lru");
	CHECK_EQ(options.host_limit, 3 * MIB);
	CHECK(hr_get_lms_enabled());
	setenv("HEADROOM_LMS", "1", 1);
	CHECK(hr_get_lms_enabled());
	setenv("HEADROOM_LMS", "0", 1);
	CHECK(!hr_get_lms_enabled());
	CHECK_STATUS(HR_OK, hr_set_lms_enabled(true));
	CHECK(hr_get_lms_enabled());
	setenv("HEADROOM_LMS", "nonsense=1", 1);
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_lms_options_init(&options));
	setenv("HEADROOM_LMS", "limit=many", 1);
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_lms_options_init(&options));
	CHECK_STATUS(HR_OK, hr_shutdown());
	unsetenv("HEADROOM_LMS");
	CHECK(!hr_get_lms_enabled());
}

static void test_verify_finds_a_write_through_a_read_pin(void)
{
	hr_lms_options options = lms_options("lru");
	options.verify = true;
	set_up_with(16 * MIB, &options);
	hr_tensor tensor = create(MIB + 3);
	void *at;
	fill(tensor, 4);
	expect(tensor, 4);
	CHECK_STATUS(HR_OK, hr_tensor_evict(tensor));
	expect(tensor, 4);
	CHECK_STATUS(HR_OK, hr_tensor_pin(tensor, HR_READ, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_tensor_get_address(tensor, &at));
	CHECK_STATUS(HR_OK, hr_stream_fill(device, at, 5, 1, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_CORRUPT, hr_tensor_unpin(tensor, HR_STREAM_DEFAULT));
	CHECK_CONTAINS(hr_last_message(), "reading only");
	CHECK_EQ(info_of(tensor).pins, 0u);
	tear_down();
}

static void test_tensors_work_with_eviction_off(void)
{
	hr_lms_options options = lms_options("learned");
	options.enabled = false;
	set_up_with(16 * MIB, &options);
	hr_tensor a = create(8 * MIB), b = create(6 * MIB), c = create(4 * MIB);
	fill(a, 1);
	fill(b, 2);
	CHECK_STATUS(HR_OUT_OF_MEMORY, hr_tensor_pin(c, HR_WRITE, HR_STREAM_DEFAULT));
	CHECK_CONTAINS(hr_last_message(), "HEADROOM_LMS=1 allows it");
	uint64_t freed = 1;
	CHECK_STATUS(HR_UNSUPPORTED, hr_lms_reclaim_inactive(allocator, HR_NAME_NONE, &freed));
	CHECK_EQ(freed, 1u);
	CHECK_CONTAINS(hr_last_message(), "call hr_set_lms_enabled(true) before its first tensor");
	CHECK_STATUS(HR_UNSUPPORTED, hr_tensor_evict(a));
	CHECK_CONTAINS(hr_last_message(), "hr_set_lms_enabled");
	CHECK_STATUS(HR_OK, hr_step_begin(allocator));
	CHECK_STATUS(HR_OK, hr_step_end(allocator));
	expect(a, 1);
	tear_down();
}

static double prefer_large(void *user, const hr_lms_candidate *candidate)
{
	++*(int *)user;
	return (double)candidate->bytes;
}

static void test_a_registered_policy_decides(void)
{
	int asked = 0;
	hr_lms_policy policy = { .struct_size = sizeof policy, .score = prefer_large };
	CHECK_STATUS(HR_OK, hr_lms_policy_register("large first", &policy, &asked));
	CHECK_STATUS(HR_ALREADY_EXISTS, hr_lms_policy_register("large first", &policy, &asked));
	CHECK_STATUS(HR_ALREADY_EXISTS, hr_lms_policy_register("lru", &policy, &asked));
	policy.score = NULL;
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_lms_policy_register("other", &policy, &asked));
	hr_lms_options options = lms_options("large first");
	set_up_with(16 * MIB, &options);
	hr_tensor small = create(3 * MIB), large = create(6 * MIB), middle = create(4 * MIB), more = create(3 * MIB);
	fill(small, 1);
	fill(large, 2);
	fill(middle, 3);
	fill(more, 4);
	hr_tensor last = create(2 * MIB);
	fill(last, 5);
	CHECK_GT(asked, 0);
	CHECK_EQ(info_of(large).state, HR_TENSOR_EVICTED);
	CHECK_EQ(info_of(small).state, HR_TENSOR_INACTIVE);
	tear_down();
}

static void test_steps_become_lines_of_a_csv(void)
{
	char path[] = "/tmp/headroom-steps-XXXXXX";
	CHECK(mkdtemp(path) != NULL);
	char file[128], line[2048];
	snprintf(file, sizeof file, "%s/steps.csv", path);
	hr_lms_options options = lms_options("learned");
	options.step_csv = file;
	set_up_with(16 * MIB, &options);
	hr_tensor tensor = create(MIB);
	for (int i = 0; i < 3; i++) {
		CHECK_STATUS(HR_OK, hr_step_begin(allocator));
		fill(tensor, (unsigned char)i);
		CHECK_STATUS(HR_OK, hr_step_end(allocator));
	}
	FILE *in = fopen(file, "r");
	CHECK(in != NULL);
	int lines = 0, commas = 0;
	while (fgets(line, sizeof line, in)) {
		int here = 0;
		for (char *c = line; *c; c++) here += *c == ',';
		if (lines++) CHECK_EQ(here, commas);
		commas = here;
	}
	fclose(in);
	CHECK_EQ(lines, 4);
	tear_down();
	unlink(file);
	rmdir(path);
}

/* ---- moved ---- */

struct sight {
	void *address;
	int calls;
};

static void note_moved(void *user, void *address)
{
	struct sight *sight = user;
	sight->address = address;
	sight->calls++;
}

static void expect_bytes(const void *address, unsigned char value, size_t bytes)
{
	CHECK(address != NULL);
	for (size_t i = 0; i < bytes; i++)
		if (((const unsigned char *)address)[i] != value) CHECK_EQ(((const unsigned char *)address)[i], value);
}

/* The contents can be read where the callback says, without a pin: on the host while the tensor is evicted, on the device once a write has
 * made the host copy stale. */
static void test_a_program_is_told_where_contents_move(void)
{
	set_up(8 * MIB);
	hr_tensor_options options;
	struct sight sight = { NULL, 0 };
	hr_tensor tensor;
	void *at;
	hr_tensor_options_init(&options);
	options.bytes = 4 * MIB;
	options.moved = note_moved;
	options.user = &sight;
	CHECK_STATUS(HR_OK, hr_tensor_create(allocator, &options, &tensor));
	fill(tensor, 7);
	CHECK_EQ(sight.calls, 0);
	hr_tensor other = create(8 * MIB);
	fill(other, 1); /* evicts it; the stream waits for the copy */
	CHECK_EQ(info_of(tensor).state, HR_TENSOR_EVICTED);
	CHECK_EQ(sight.calls, 1);
	CHECK_STATUS(HR_OK, hr_stream_synchronize(device, HR_STREAM_DEFAULT));
	expect_bytes(sight.address, 7, 4 * MIB);
	CHECK_STATUS(HR_OK, hr_tensor_host_begin(tensor, &at));
	CHECK(at == sight.address);
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_tensor_host_begin(tensor, &at)); /* begun already */
	CHECK_STATUS(HR_OK, hr_tensor_host_end(tensor));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_tensor_host_end(tensor));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_tensor_host_begin(other, &at));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_tensor_host_begin(tensor, NULL));
	CHECK_STATUS(HR_OK, hr_tensor_destroy(other));
	expect(tensor, 7);
	CHECK_EQ(sight.calls, 1);
	fill(tensor, 8);
	CHECK_EQ(sight.calls, 2);
	CHECK_STATUS(HR_OK, hr_stream_synchronize(device, HR_STREAM_DEFAULT));
	expect_bytes(sight.address, 8, 4 * MIB);
	CHECK_STATUS(HR_OK, hr_tensor_pin(tensor, HR_READ, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_tensor_get_address(tensor, &at));
	CHECK(at == sight.address);
	CHECK_STATUS(HR_OK, hr_tensor_unpin(tensor, HR_STREAM_DEFAULT));
	/* Memory that the host asks for is idle when it gets it, so the copy is done. */
	hr_request request = HR_REQUEST(8 * MIB);
	void *block;
	request.stream = HR_STREAM_HOST;
	CHECK_STATUS(HR_OK, hr_alloc(allocator, &request, &block));
	CHECK_EQ(sight.calls, 3);
	expect_bytes(sight.address, 8, 4 * MIB);
	CHECK_STATUS(HR_OK, hr_free(allocator, block, HR_STREAM_HOST));
	CHECK_STATUS(HR_OK, hr_tensor_destroy(tensor));
	CHECK_EQ(sight.calls, 3); /* not when it is destroyed */
	CHECK_STATUS(HR_OK, hr_shutdown());
}

/* A copy of 16 MiB to the host, or back, takes 320 ms. */
static void set_up_slow_link(bool verify)
{
	hr_lms_options lms = lms_options("lru");
	lms.verify = verify;
	device = fixture_emulated(256 * MIB, 64 * KIB, 50 * MIB);
	allocator = fixture_allocator(device, 64 * MIB);
	CHECK_STATUS(HR_OK, hr_lms_configure(allocator, &lms));
}

/* An eviction that no stream waits for: the contents can be read only once the copy is done, which a slow link makes visible. */
static void test_a_copy_that_is_under_way_is_not_reported(void)
{
	set_up_slow_link(false);
	hr_tensor_options options;
	struct sight sight = { &sight, 0 };
	hr_tensor tensor;
	void *at;
	hr_tensor_options_init(&options);
	options.bytes = 16 * MIB; /* 320 ms */
	options.moved = note_moved;
	options.user = &sight;
	CHECK_STATUS(HR_OK, hr_tensor_create(allocator, &options, &tensor));
	fill(tensor, 9);
	CHECK_STATUS(HR_OK, hr_tensor_evict(tensor));
	CHECK_EQ(sight.calls, 1);
	CHECK(sight.address == NULL);
	CHECK_STATUS(HR_OK, hr_tensor_host_begin(tensor, &at)); /* waits */
	expect_bytes(at, 9, 16 * MIB);
	memset(at, 10, 16 * MIB);
	CHECK_STATUS(HR_OK, hr_tensor_host_end(tensor));
	expect(tensor, 10);
	CHECK_STATUS(HR_OK, hr_stream_synchronize(device, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_tensor_evict(tensor)); /* without a copy: the first one is valid, and done */
	CHECK_EQ(sight.calls, 2);
	CHECK(sight.address == at);
	expect_bytes(sight.address, 10, 16 * MIB);
	CHECK_STATUS(HR_OK, hr_tensor_destroy(tensor));
	CHECK_STATUS(HR_OK, hr_shutdown());
}

/* Keeps the link to the host busy. */
static void evict_another(void)
{
	hr_tensor other = create(16 * MIB);
	fill(other, 1);
	CHECK_STATUS(HR_OK, hr_tensor_evict(other));
}

/* A restore has been queued behind the copy, and the tensor is evicted again before either is done. */
static void test_a_copy_that_a_restore_waits_for_is_not_reported(void)
{
	set_up_slow_link(false);
	hr_tensor_options options;
	struct sight sight = { NULL, 0 };
	hr_tensor tensor;
	hr_tensor_options_init(&options);
	options.bytes = 16 * MIB;
	options.moved = note_moved;
	options.user = &sight;
	CHECK_STATUS(HR_OK, hr_tensor_create(allocator, &options, &tensor));
	fill(tensor, 9);
	evict_another();
	CHECK_STATUS(HR_OK, hr_tensor_evict(tensor));
	CHECK_STATUS(HR_OK, hr_tensor_prefetch(tensor));
	CHECK_STATUS(HR_OK, hr_tensor_evict(tensor));
	CHECK_EQ(sight.calls, 2);
	if (sight.address) expect_bytes(sight.address, 9, 16 * MIB); /* this thread was slower than the link */
	tear_down();
}

/* What was computed from a restored tensor is not made of what the program writes to the host copy after the tensor was evicted again. */
static void test_the_host_copy_is_used_when_a_restore_has_read_it(void)
{
	set_up_slow_link(false);
	hr_tensor tensor = create(16 * MIB), result = create(16 * MIB);
	hr_pin pins[] = { { tensor, HR_READ }, { result, HR_OVERWRITE } };
	void *from, *to, *at;
	fill(tensor, 9);
	evict_another();
	CHECK_STATUS(HR_OK, hr_tensor_evict(tensor));
	CHECK_STATUS(HR_OK, hr_tensor_pin_all(pins, 2, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_tensor_get_address(tensor, &from));
	CHECK_STATUS(HR_OK, hr_tensor_get_address(result, &to));
	CHECK_STATUS(HR_OK, hr_stream_copy(device, to, from, 16 * MIB, HR_COPY_ON_DEVICE, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_tensor_unpin_all(pins, 2, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_tensor_evict(tensor)); /* without a copy */
	CHECK_STATUS(HR_OK, hr_tensor_host_begin(tensor, &at)); /* waits */
	expect_bytes(at, 9, 16 * MIB);
	memset(at, 10, 16 * MIB);
	CHECK_STATUS(HR_OK, hr_tensor_host_end(tensor));
	expect(result, 9);
	expect(tensor, 10);
	tear_down();
}

static void test_any_call_of_the_device_may_fail_before_a_host_copy_is_used(void)
{
	bool more = true;
	for (uint64_t nth = 1; more; nth++) {
		set_up_slow_link(false);
		hr_tensor tensor = create(MIB);
		void *at;
		fill(tensor, 9);
		evict_another();
		CHECK_STATUS(HR_OK, hr_tensor_evict(tensor));
		CHECK_STATUS(HR_OK, hr_tensor_prefetch(tensor));
		CHECK_STATUS(HR_OK, hr_tensor_evict(tensor));
		hr_backend_fail_nth(nth, false, HR_DEVICE_ERROR);
		hr_status status = hr_tensor_host_begin(tensor, &at);
		more = hr_backend_calls() >= nth;
		hr_backend_fail_nth(0, false, HR_OK);
		CHECK(status == HR_OK || status == HR_DEVICE_ERROR);
		if (status) CHECK_EQ(info_of(tensor).state, HR_TENSOR_EVICTED);
		if (status) CHECK_STATUS(HR_OK, hr_tensor_host_begin(tensor, &at));
		expect_bytes(at, 9, MIB);
		CHECK_STATUS(HR_OK, hr_tensor_host_end(tensor));
		tear_down();
	}
}

static void test_verify_accepts_what_is_written_to_a_host_copy(void)
{
	set_up_slow_link(true);
	hr_tensor tensor = create(MIB);
	void *at;
	fill(tensor, 9);
	for (unsigned char value = 10; value < 12; value++) {
		CHECK_STATUS(HR_OK, hr_tensor_evict(tensor));
		CHECK_STATUS(HR_OK, hr_tensor_host_begin(tensor, &at));
		memset(at, value, MIB);
		CHECK_STATUS(HR_OK, hr_tensor_host_end(tensor));
		expect(tensor, value);
	}
	tear_down();
}

TEST_MAIN(T(test_a_program_is_told_where_contents_move), T(test_a_copy_that_is_under_way_is_not_reported),
          T(test_a_copy_that_a_restore_waits_for_is_not_reported), T(test_the_host_copy_is_used_when_a_restore_has_read_it),
          T(test_any_call_of_the_device_may_fail_before_a_host_copy_is_used), T(test_verify_accepts_what_is_written_to_a_host_copy),
          T(test_a_tensor_goes_through_its_states), T(test_contents_survive_eviction_and_restore), T(test_a_clean_tensor_is_evicted_without_a_copy),
          T(test_overwriting_restores_nothing), T(test_statistics_add_up), T(test_one_tensor_that_makes_room_is_enough),
          T(test_plain_requests_evict_tensors_too), T(test_several_neighbours_are_evicted_for_a_large_request),
          T(test_everything_inactive_is_evicted_before_a_request_fails), T(test_an_op_that_cannot_fit_is_named_with_its_tensors),
          T(test_an_op_refused_for_fragmentation_gets_that_reason), T(test_an_op_without_room_because_of_others_gets_that_reason),
          T(test_never_evict_and_priority_are_kept), T(test_tags_choose_what_is_evicted), T(test_new_names_of_a_tensor_are_kept_when_it_moves), T(test_the_limit_for_tensors_can_be_changed),
          T(test_a_full_host_pool_is_named_and_nothing_is_lost), T(test_copies_that_do_not_fit_on_the_host_go_to_a_file), T(test_mistakes_are_named),
          T(test_bad_options_are_refused), T(test_the_environment_switches_it_on), T(test_verify_finds_a_write_through_a_read_pin),
          T(test_tensors_work_with_eviction_off), T(test_a_registered_policy_decides), T(test_steps_become_lines_of_a_csv))
