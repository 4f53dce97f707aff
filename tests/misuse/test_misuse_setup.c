/* test_misuse_setup.c - mistakes with devices, allocators, statistics, initialization and shutdown. Each test makes one. */
#include "headroom_record.h"
#include "support_misuse.h"

static hr_allocator_options options_with(const char *kind)
{
	hr_allocator_options options;
	hr_allocator_options_init(&options);
	options.kind = kind;
	return options;
}

/* ---- devices ---- */

#define BAD_NAME(name, why)                                                                                \
	"\"" name "\" is not a device name: " why ". Names look like \"GPU:0\", \"CPU:0\", \"/device:GPU:0\" or " \
	"\"/job:localhost/replica:0/task:0/device:GPU:0\""

static void test_device_name_that_cannot_be_read(void)
{
	hr_device found = { 77 };
	EXPECT(HR_BAD_DEVICE_NAME, hr_device_find("GPU:one", &found), BAD_NAME("GPU:one", "a number is missing after \":\""));
	EXPECT(HR_BAD_DEVICE_NAME, hr_device_find("", &found), BAD_NAME("", "it is empty"));
	EXPECT(HR_BAD_DEVICE_NAME, hr_device_find("/job:/device:GPU:0", &found), BAD_NAME("/job:/device:GPU:0", "the job has no name"));
	EXPECT(HR_BAD_DEVICE_NAME, hr_device_find("GPU:-1", &found), BAD_NAME("GPU:-1", "a number is missing after \":\""));
	EXPECT(HR_BAD_DEVICE_NAME, hr_device_find("GPU:99999999999", &found), BAD_NAME("GPU:99999999999", "its number is too large"));
	CHECK_EQ(found.id, 77);
}

static void test_device_that_is_not_there(void)
{
	hr_device found;
	EXPECT(HR_NO_SUCH_DEVICE, hr_device_find("GPU:5", &found), "there is no device \"GPU:5\"; the devices are GPU:0, CPU:0, SIM:0");
	EXPECT(HR_NO_SUCH_DEVICE, hr_device_find("TPU:0", &found), "there is no device \"TPU:0\"; the devices are GPU:0, CPU:0, SIM:0");
	EXPECT(HR_NO_SUCH_DEVICE, hr_device_at(99, &found), "there is no device number 99; there are 3");
}

static void test_device_name_that_fits_two(void)
{
	hr_emulated_options options;
	hr_device found;
	CHECK_STATUS(HR_OK, hr_emulated_options_init(&options));
	options.devices = 2;
	CHECK_STATUS(HR_OK, hr_emulated_configure(&options));
	EXPECT(HR_AMBIGUOUS_DEVICE, hr_device_find("GPU", &found), "\"GPU\" fits GPU:0 and GPU:1; add the number");
}

static void test_null_for_a_device(void)
{
	EXPECT(HR_INVALID_ARGUMENT, hr_device_find("SIM:0", NULL), "hr_device_find: out is NULL");
}

static void test_zero_device_handle(void)
{
	hr_allocator out = { 77 };
	EXPECT(HR_INVALID_HANDLE, hr_allocator_create((hr_device){ 0 }, NULL, &out),
	       "device handle 0x0 is invalid or from before hr_shutdown; get one with hr_device_find");
	EXPECT(HR_INVALID_HANDLE, hr_stats_scope_begin((hr_device){ 0 }),
	       "device handle 0x0 is invalid or from before hr_shutdown; get one with hr_device_find");
	CHECK_EQ(out.id, 77);
}

static void test_device_handle_from_before_shutdown(void)
{
	hr_device old = device();
	hr_allocator out;
	hr_stats stats;
	CHECK_STATUS(HR_OK, hr_shutdown());
	CHECK_NE(device().id, old.id);
	EXPECT(HR_INVALID_HANDLE, hr_allocator_create(old, NULL, &out),
	       "device handle 0x%x is invalid or from before hr_shutdown; get one with hr_device_find", old.id);
	hr_stats_init(&stats);
	CHECK_STATUS(HR_INVALID_HANDLE, hr_device_get_stats(old, &stats));
}

static void test_logical_devices_after_first_use(void)
{
	uint64_t limits[] = { 100 * MIB, 100 * MIB };
	device();
	EXPECT(HR_IN_USE, hr_device_set_logical("SIM:0", limits, 2),
	       "SIM:0 is in use; hr_device_set_logical must come before the first SIM is found or used");
}

static void test_logical_devices_with_impossible_limits(void)
{
	uint64_t zero = 0, little = 100, much = UINT64_C(1) << 60, together[] = { UINT64_C(600) << 30, UINT64_C(600) << 30 };
	EXPECT(HR_BAD_LIMIT, hr_device_set_logical("SIM:0", &zero, 1), "SIM:0: memory limit 0 is 0; it must be at least one page");
	EXPECT(HR_BAD_LIMIT, hr_device_set_logical("SIM:0", &little, 1), "SIM:0: memory limit 0 is 100 B, below one page of 2.0 MiB");
	EXPECT(HR_BAD_LIMIT, hr_device_set_logical("SIM:0", &much, 1), "SIM:0: memory limit 0 is 1.0 EiB, above its 1.0 TiB");
	EXPECT(HR_BAD_LIMIT, hr_device_set_logical("SIM:0", together, 2), "SIM:0: the memory limits together exceed its 1.0 TiB");
	EXPECT(HR_INVALID_ARGUMENT, hr_device_set_logical("SIM:0", together, 0), "a device can be split into 1 to 16 logical devices, not 0");
	EXPECT(HR_INVALID_ARGUMENT, hr_device_set_logical("SIM:0", together, 17),
	       "a device can be split into 1 to 16 logical devices, not 17");
	EXPECT(HR_INVALID_ARGUMENT, hr_device_set_logical("SIM:0", NULL, 1), "hr_device_set_logical: memory_limits is NULL");
}

static void test_settings_after_first_use(void)
{
	hr_simulated_options options;
	hr_simulated_options_init(&options);
	device();
	EXPECT(HR_IN_USE, hr_simulated_configure(&options),
	       "SIM:0 is in use; its settings must come before a SIM is first found or used");
}

/* ---- creating allocators ---- */

static void test_unknown_allocator_kind(void)
{
	hr_allocator_options options = options_with("slab");
	hr_allocator out = { 77 };
	EXPECT(HR_UNKNOWN_ALLOCATOR, hr_allocator_create(device(), &options, &out),
	       "unknown allocator kind \"slab\"; there are: bfc, direct");
	CHECK_EQ(out.id, 77);
}

static void test_limit_above_the_device(void)
{
	hr_allocator_options options = options_with("bfc");
	hr_allocator out;
	options.limit_bytes = 2048 * MIB;
	EXPECT(HR_BAD_LIMIT, hr_allocator_create(device(), &options, &out), "limit_bytes 2.0 GiB is above what SIM:0 may use, 1.0 GiB");
}

static void test_limit_below_a_page(void)
{
	hr_allocator_options options = options_with("bfc");
	hr_allocator out;
	options.limit_bytes = 2 * MIB - 1;
	EXPECT(HR_BAD_LIMIT, hr_allocator_create(device(), &options, &out), "limit_bytes 2097151 is below one page of SIM:0, 2.0 MiB");
}

static void test_granularity_that_cannot_be(void)
{
	static const uint32_t bad[] = { 0, 8, 100, 131072 };
	hr_device sim = device();
	for (int i = 0; i < 4; i++) {
		hr_allocator_options options = options_with("bfc");
		hr_allocator out;
		options.granularity = bad[i];
		EXPECT(HR_INVALID_ARGUMENT, hr_allocator_create(sim, &options, &out),
		       "options.granularity is %u; it must be a power of two from 16 to 65536", bad[i]);
	}
}

static void test_granularity_above_the_page(void)
{
	hr_simulated_options small;
	hr_allocator_options options = options_with("bfc");
	hr_device sim;
	hr_allocator out;
	hr_simulated_options_init(&small);
	small.page_bytes = 256;
	CHECK_STATUS(HR_OK, hr_simulated_configure(&small));
	CHECK_STATUS(HR_OK, hr_device_find("SIM:0", &sim));
	options.granularity = 512;
	EXPECT(HR_INVALID_ARGUMENT, hr_allocator_create(sim, &options, &out),
	       "options.granularity 512 is above the page size of SIM:0, 256");
}

static void test_options_without_struct_size(void)
{
	hr_allocator_options options = options_with("bfc");
	hr_allocator out;
	options.struct_size = 0;
	EXPECT(HR_INVALID_ARGUMENT, hr_allocator_create(device(), &options, &out),
	       "hr_allocator_create: hr_allocator_options.struct_size is 0; call hr_allocator_options_init first");
}

static void test_no_room_for_an_allocator_that_does_not_grow(void)
{
	hr_allocator_options options = options_with("bfc");
	hr_allocator first, second;
	hr_stats stats;
	hr_device sim = device();
	options.allow_growth = false;
	options.limit_bytes = 800 * MIB;
	CHECK_STATUS(HR_OK, hr_allocator_create(sim, &options, &first));
	CHECK_STATUS(HR_OUT_OF_MEMORY, hr_allocator_create(sim, &options, &second));
	CHECK_CONTAINS(hr_last_message(), "SIM:0");
	hr_stats_init(&stats);
	CHECK_STATUS(HR_OK, hr_device_get_stats(sim, &stats));
	CHECK_EQ(stats.bytes_reserved, 800 * MIB); /* the second allocator's mapping was released */
	still_works(first, 0);
}

static void test_null_for_an_allocator(void)
{
	EXPECT(HR_INVALID_ARGUMENT, hr_allocator_create(device(), NULL, NULL), "hr_allocator_create: out is NULL");
	EXPECT(HR_INVALID_ARGUMENT, hr_allocator_get_default("SIM:0", NULL), "hr_allocator_get_default: out is NULL");
}

static void test_one_allocator_too_many(void)
{
	static hr_allocator all[255];
	hr_allocator_options options = options_with("direct");
	hr_allocator out = { 77 };
	hr_device sim = device();
	for (int i = 0; i < 255; i++) CHECK_STATUS(HR_OK, hr_allocator_create(sim, &options, &all[i]));
	EXPECT(HR_TOO_MANY, hr_allocator_create(sim, &options, &out), "255 allocators exist already; destroy one first");
	CHECK_EQ(out.id, 77);
	CHECK_STATUS(HR_OK, hr_allocator_destroy(all[100]));
	CHECK_STATUS(HR_OK, hr_allocator_create(sim, &options, &out));
	CHECK_NE(out.id, all[100].id); /* the old handle stays invalid */
	CHECK_STATUS(HR_INVALID_HANDLE, hr_allocator_check(all[100]));
	CHECK_STATUS(HR_OK, hr_shutdown());
}

/* ---- numbers in messages ---- */

static hr_allocator limited_to(uint64_t limit)
{
	hr_allocator_options options;
	hr_allocator made;
	hr_allocator_options_init(&options);
	options.limit_bytes = limit;
	hr_device device;
	CHECK_STATUS(HR_OK, hr_device_find("SIM:0", &device));
	CHECK_STATUS(HR_OK, hr_allocator_create(device, &options, &made));
	return made;
}

/* 2 MiB and 2 MiB plus a byte both read 2.0 MiB; 2 * 1,048,576 = 2,097,152. */
static void test_a_request_a_byte_above_the_limit(void)
{
	void *block;
	hr_allocator a = limited_to(2 * MIB);
	EXPECT(HR_OUT_OF_MEMORY, hr_alloc_bytes(a, 2 * MIB + 1, &block),
	       "SIM:0_bfc cannot allocate 2,097,153 B: the request alone exceeds its limit of 2,097,152 B; raise the limit or request less");
	CHECK_STATUS(HR_OK, hr_allocator_destroy(a));
}

/* The device has 1 TiB; only the allocator's limit of 4 MiB is full. */
static void test_a_full_allocator_on_an_empty_device(void)
{
	void *block;
	hr_allocator a = limited_to(4 * MIB);
	hr_request request = HR_REQUEST(3 * MIB);
	request.op = hr_name_intern("model/decoder/layer_11/attention/query/kernel/momentum/of/adam/second");
	CHECK_STATUS(HR_OK, hr_alloc(a, &request, &block));
	EXPECT(HR_OUT_OF_MEMORY, hr_alloc_bytes(a, 2 * MIB, &block),
	       "SIM:0_bfc cannot allocate 2.0 MiB: 3.0 MiB of 4.0 MiB are in use; 1.0 MiB are free in 1 block, the largest 1.0 MiB, and its limit allows "
	       "0 B more; free memory, raise the limit or request less");
	EXPECT(HR_IN_USE, hr_allocator_destroy(a),
	       "SIM:0_bfc still has 1 block of 3.0 MiB allocated, the largest 3.0 MiB by op model/decoder/.../query/kernel/momentum/of/adam/second; free them, or "
	       "use hr_allocator_destroy_all");
	CHECK_STATUS(HR_OK, hr_allocator_destroy_all(a));
}

/* ---- closing ---- */

static void test_close_with_live_blocks(void)
{
	hr_allocator a = allocator();
	hr_request request = HR_REQUEST(5 * MIB);
	void *block;
	request.op = hr_name_intern("matmul");
	CHECK_STATUS(HR_OK, hr_alloc(a, &request, &block));
	block_of(a, 1000);
	EXPECT(HR_IN_USE, hr_allocator_destroy(a),
	       "SIM:0_bfc still has 2 blocks of 5,243,904 B allocated, the largest 5,242,880 B by op matmul; free them, or use "
	       "hr_allocator_destroy_all");
	still_works(a, 2);
	CHECK_STATUS(HR_OK, hr_allocator_destroy_all(a));
}

static void test_close_of_the_default_allocator(void)
{
	hr_allocator a;
	device();
	CHECK_STATUS(HR_OK, hr_allocator_get_default("SIM:0", &a));
	EXPECT(HR_IN_USE, hr_allocator_destroy(a), "SIM:0_bfc is the default allocator of SIM:0; hr_shutdown destroys it");
	EXPECT(HR_IN_USE, hr_allocator_destroy_all(a), "SIM:0_bfc is the default allocator of SIM:0; hr_shutdown destroys it");
	still_works(a, 0);
}

static void test_double_close(void)
{
	hr_allocator a = allocator();
	CHECK_STATUS(HR_OK, hr_allocator_destroy(a));
	EXPECT(HR_INVALID_HANDLE, hr_allocator_destroy(a), "no allocator has the handle %#llx: it was destroyed, or never created", (unsigned long long)a.id);
	EXPECT(HR_INVALID_HANDLE, hr_allocator_destroy_all(a), "no allocator has the handle %#llx: it was destroyed, or never created",
	       (unsigned long long)a.id);
	EXPECT(HR_INVALID_HANDLE, hr_allocator_destroy((hr_allocator){ 0 }), "the allocator handle is zero: it was never set");
}

static bool never(void *context, const hr_chunk_view *chunk)
{
	(void)chunk;
	*(bool *)context = true;
	return true;
}

static void test_every_use_of_a_closed_allocator(void)
{
	hr_allocator a = allocator();
	hr_stats stats;
	hr_region_info region = { .struct_size = sizeof region };
	hr_allocation_info info = { .struct_size = sizeof info };
	uint64_t released;
	bool visited = false;
	CHECK_STATUS(HR_OK, hr_allocator_destroy(a));
	hr_stats_init(&stats);
	CHECK_STATUS(HR_INVALID_HANDLE, hr_allocator_get_stats(a, &stats));
	CHECK_STATUS(HR_INVALID_HANDLE, hr_allocator_trim(a, &released));
	CHECK_STATUS(HR_INVALID_HANDLE, hr_allocator_check(a));
	CHECK_STATUS(HR_INVALID_HANDLE, hr_allocator_get_region(a, 0, &region));
	CHECK_STATUS(HR_INVALID_HANDLE, hr_allocator_visit(a, 0, never, &visited));
	CHECK_STATUS(HR_INVALID_HANDLE, hr_allocation_get_info(a, &a, &info));
	CHECK_STATUS(HR_INVALID_HANDLE, hr_allocation_record_stream(a, &a, 0));
	EXPECT(HR_INVALID_HANDLE, hr_free(a, NULL, 0), "no allocator has the handle %#llx: it was destroyed, or never created", (unsigned long long)a.id);
	CHECK(!visited);
}

/* ---- custom allocators ---- */

static hr_status some_alloc(void *state, size_t bytes, size_t alignment, hr_stream stream, void **out)
{
	(void)state;
	(void)bytes;
	(void)alignment;
	(void)stream;
	(void)out;
	return HR_OUT_OF_MEMORY;
}

static hr_status some_free(void *state, void *address, size_t bytes, hr_stream stream)
{
	(void)state;
	(void)address;
	(void)bytes;
	(void)stream;
	return HR_OK;
}

static hr_status some_open(void *user, hr_device on, uint64_t limit, void **state)
{
	(void)user;
	(void)on;
	(void)limit;
	(void)state;
	return HR_DEVICE_ERROR;
}

static const hr_custom_allocator sound = { .struct_size = sizeof sound, .alloc = some_alloc, .free = some_free };

static void test_custom_allocator_registered_twice(void)
{
	CHECK_STATUS(HR_OK, hr_allocator_register("mine", &sound, NULL));
	EXPECT(HR_ALREADY_EXISTS, hr_allocator_register("mine", &sound, NULL), "allocator kind \"mine\" exists already");
	EXPECT(HR_ALREADY_EXISTS, hr_allocator_register("bfc", &sound, NULL), "allocator kind \"bfc\" exists already");
	EXPECT(HR_ALREADY_EXISTS, hr_allocator_register("direct", &sound, NULL), "allocator kind \"direct\" exists already");
}

static void test_incomplete_custom_allocator(void)
{
	hr_custom_allocator table = sound;
	table.alloc = NULL;
	EXPECT(HR_INVALID_ARGUMENT, hr_allocator_register("mine", &table, NULL), "custom allocator \"mine\": alloc is missing");
	table = sound;
	table.free = NULL;
	EXPECT(HR_INVALID_ARGUMENT, hr_allocator_register("mine", &table, NULL), "custom allocator \"mine\": free is missing");
	table = sound;
	table.struct_size = 0;
	EXPECT(HR_INVALID_ARGUMENT, hr_allocator_register("mine", &table, NULL),
	       "hr_allocator_register: hr_custom_allocator.struct_size is 0; call hr_custom_allocator_init first");
	EXPECT(HR_INVALID_ARGUMENT, hr_allocator_register("mine", NULL, NULL), "hr_allocator_register: hr_custom_allocator is NULL");
}

static void test_custom_allocator_with_a_bad_name(void)
{
	EXPECT(HR_INVALID_ARGUMENT, hr_allocator_register("a_name_that_is_two_bytes_too_long", &sound, NULL),
	       "the name of a custom allocator must have 1 to 31 bytes");
	EXPECT(HR_INVALID_ARGUMENT, hr_allocator_register("", &sound, NULL), "the name of a custom allocator must have 1 to 31 bytes");
	EXPECT(HR_INVALID_ARGUMENT, hr_allocator_register(NULL, &sound, NULL),
	       "the name of a custom allocator must have 1 to 31 bytes");
	CHECK_STATUS(HR_OK, hr_allocator_register("a_name_that_is_just_short_enoug", &sound, NULL));
}

static void test_one_custom_allocator_too_many(void)
{
	char name[16];
	for (int i = 0; i < 32; i++) {
		snprintf(name, sizeof name, "number %d", i);
		CHECK_STATUS(HR_OK, hr_allocator_register(name, &sound, NULL));
	}
	EXPECT(HR_TOO_MANY, hr_allocator_register("one more", &sound, NULL), "32 custom allocators are registered already");
}

static void test_custom_allocator_that_cannot_be_opened(void)
{
	hr_custom_allocator table = sound;
	hr_allocator_options options = options_with("mine");
	hr_allocator out = { 77 };
	table.open = some_open;
	CHECK_STATUS(HR_OK, hr_allocator_register("mine", &table, NULL));
	EXPECT(HR_DEVICE_ERROR, hr_allocator_create(device(), &options, &out), "the custom allocator \"mine\" could not be opened");
	CHECK_EQ(out.id, 77);
}

/* ---- statistics ---- */

static void test_stats_without_struct_size(void)
{
	hr_allocator a = allocator();
	hr_stats stats = { 0 };
	hr_memory_info info = { 0 };
	EXPECT(HR_INVALID_ARGUMENT, hr_allocator_get_stats(a, &stats),
	       "hr_allocator_get_stats: hr_stats.struct_size is 0; call hr_stats_init first");
	EXPECT(HR_INVALID_ARGUMENT, hr_allocator_get_stats(a, NULL), "hr_allocator_get_stats: hr_stats is NULL");
	EXPECT(HR_INVALID_ARGUMENT, hr_get_memory_info("SIM:0", &info),
	       "hr_get_memory_info: hr_memory_info.struct_size is 0; call hr_memory_info_init first");
	EXPECT(HR_INVALID_ARGUMENT, hr_get_memory_info("SIM:0", NULL), "hr_get_memory_info: hr_memory_info is NULL");
	still_works(a, 0);
}

static void test_stats_of_an_older_program_are_cut(void)
{
	hr_allocator a = allocator();
	hr_stats stats;
	hr_stats_init(&stats);
	memset(&stats, 0x5a, sizeof stats);
	stats.struct_size = offsetof(hr_stats, bytes_limit);
	CHECK_STATUS(HR_OK, hr_allocator_get_stats(a, &stats));
	CHECK_EQ(stats.bytes_in_use, 0);
	CHECK_EQ(stats.bytes_limit, 0x5a5a5a5a5a5a5a5a);
	CHECK_EQ(stats.struct_size, offsetof(hr_stats, bytes_limit));
}

static void test_region_that_is_not_there(void)
{
	hr_allocator a = allocator();
	hr_region_info region = { .struct_size = sizeof region };
	hr_stats stats;
	bool visited = false;
	EXPECT(HR_INVALID_ARGUMENT, hr_allocator_get_region(a, 0, &region), "SIM:0_bfc has 0 regions; there is no number 0");
	block_of(a, 1000);
	hr_stats_init(&stats);
	CHECK_STATUS(HR_OK, hr_allocator_get_stats(a, &stats));
	uint32_t regions = (uint32_t)stats.num_regions;
	EXPECT(HR_INVALID_ARGUMENT, hr_allocator_get_region(a, regions, &region), "SIM:0_bfc has %u regions; there is no number %u",
	       regions, regions);
	EXPECT(HR_INVALID_ARGUMENT, hr_allocator_visit(a, UINT32_MAX, never, &visited),
	       "SIM:0_bfc has %u regions; there is no number 4294967295", regions);
	EXPECT(HR_INVALID_ARGUMENT, hr_allocator_visit(a, 0, NULL, NULL), "hr_allocator_visit: visit is NULL");
	region.struct_size = 0;
	EXPECT(HR_INVALID_ARGUMENT, hr_allocator_get_region(a, 0, &region),
	       "hr_allocator_get_region: hr_region_info.struct_size is 0; call hr_region_info_init first");
	CHECK(!visited);
	still_works(a, 1);
}

static void test_getters_of_a_gpu_that_is_not_there(void)
{
	CHECK_EQ(hr_get_bytes_in_use(7), -HR_NO_SUCH_DEVICE);
	CHECK_STR(hr_last_message(), "there is no device \"GPU:7\"; the devices are GPU:0, CPU:0, SIM:0");
	CHECK_EQ(hr_get_num_allocs(-1), -HR_NO_SUCH_DEVICE);
	CHECK_STR(hr_last_message(), "there is no device \"GPU:-1\"; the devices are GPU:0, CPU:0, SIM:0");
	EXPECT(HR_NO_SUCH_DEVICE, hr_reset_memory_stats("GPU:9"), "there is no device \"GPU:9\"; the devices are GPU:0, CPU:0, SIM:0");
}

/* ---- scopes ---- */

static void test_scope_end_without_begin(void)
{
	hr_device sim = device();
	EXPECT(HR_INVALID_ARGUMENT, hr_stats_scope_end(sim, NULL),
	       "hr_stats_scope_end: no scope is open on this thread; call hr_stats_scope_begin first");
	CHECK_STATUS(HR_OK, hr_stats_scope_begin(sim));
	CHECK_STATUS(HR_OK, hr_stats_scope_end(sim, NULL));
	EXPECT(HR_INVALID_ARGUMENT, hr_stats_scope_end(sim, NULL),
	       "hr_stats_scope_end: no scope is open on this thread; call hr_stats_scope_begin first");
}

static void test_scope_end_on_another_device(void)
{
	hr_device sim = device(), cpu;
	hr_stats_scope scope = { .struct_size = sizeof scope };
	CHECK_STATUS(HR_OK, hr_device_find("CPU:0", &cpu));
	CHECK_STATUS(HR_OK, hr_stats_scope_begin(sim));
	EXPECT(HR_INVALID_ARGUMENT, hr_stats_scope_end(cpu, &scope),
	       "hr_stats_scope_end: the innermost scope is not on CPU:0; scopes end in reverse order");
	CHECK_STATUS(HR_OK, hr_stats_scope_end(sim, &scope));
}

static void test_scope_end_without_struct_size(void)
{
	hr_device sim = device();
	hr_stats_scope scope = { 0 };
	CHECK_STATUS(HR_OK, hr_stats_scope_begin(sim));
	EXPECT(HR_INVALID_ARGUMENT, hr_stats_scope_end(sim, &scope),
	       "hr_stats_scope_end: hr_stats_scope.struct_size is 0; call hr_stats_scope_init first");
	scope.struct_size = sizeof scope;
	CHECK_STATUS(HR_OK, hr_stats_scope_end(sim, &scope)); /* the failed call did not end it */
}

static void test_one_scope_too_many(void)
{
	hr_device sim = device();
	for (int i = 0; i < 32; i++) CHECK_STATUS(HR_OK, hr_stats_scope_begin(sim));
	EXPECT(HR_TOO_MANY, hr_stats_scope_begin(sim), "this thread is inside 32 statistics scopes already; end one first");
	for (int i = 0; i < 32; i++) CHECK_STATUS(HR_OK, hr_stats_scope_end(sim, NULL));
}

/* ---- recording ---- */

static char path[64];

static const char *recording(void)
{
	snprintf(path, sizeof path, "/tmp/hr-misuse-%d.hrt", (int)getpid());
	unlink(path);
	return path;
}

static void test_trace_started_twice(void)
{
	char another[64];
	snprintf(another, sizeof another, "/tmp/hr-misuse-another-%d.hrt", (int)getpid());
	unlink(another);
	recording();
	CHECK_STATUS(HR_OK, hr_trace_start(path));
	EXPECT(HR_IN_USE, hr_trace_start(another), "a trace is being recorded already; stop it before starting %s", another);
	CHECK_EQ(access(another, F_OK), -1);
	CHECK_STATUS(HR_OK, hr_trace_stop());
	unlink(path);
}

static void test_trace_stopped_without_start(void)
{
	EXPECT(HR_INVALID_ARGUMENT, hr_trace_stop(), "no trace is being recorded");
}

static void test_trace_that_cannot_be_made(void)
{
	recording();
	EXPECT(HR_INVALID_ARGUMENT, hr_trace_start(""), "hr_trace_start: the path is empty");
	EXPECT(HR_INVALID_ARGUMENT, hr_trace_start(NULL), "hr_trace_start: the path is empty");
	EXPECT(HR_IO, hr_trace_start("/nowhere/at/all.hrt"),
	       "cannot create the trace file /nowhere/at/all.hrt (it must not exist yet): ENOENT: no such file or directory");
	CHECK_STATUS(HR_OK, hr_trace_start(path));
	CHECK_STATUS(HR_OK, hr_trace_stop());
	EXPECT(HR_IO, hr_trace_start(path), "cannot create the trace file %s (it must not exist yet): EEXIST: file exists", path);
	unlink(path);
}

/* ---- shutdown and fork ---- */

static void test_use_after_shutdown(void)
{
	hr_allocator a = allocator();
	void *block = block_of(a, 1000), *out;
	CHECK_STATUS(HR_OK, hr_shutdown());
	EXPECT(HR_INVALID_HANDLE, hr_free(a, block, 0), "no allocator has the handle %#llx: it was destroyed, or never created", (unsigned long long)a.id);
	EXPECT(HR_INVALID_HANDLE, hr_alloc_bytes(a, 1000, &out), "no allocator has the handle %#llx: it was destroyed, or never created",
	       (unsigned long long)a.id);
	CHECK_STATUS(HR_OK, hr_shutdown()); /* a second call is allowed */
	still_works(allocator(), 0);
}

static hr_allocator parents;
static hr_device parents_device;
static void *parents_block;

#define FORKED_ALLOCATOR "this process is a fork of the one that made the allocator; call hr_shutdown() first"
#define FORKED_DEVICE "this process is a fork, and the devices belong to its parent; call hr_shutdown() to start over"

/* Every call that could use an object of the parent, or whose effect would be lost. */
static void use_after_fork(void *argument)
{
	hr_stats stats;
	hr_region_info region = { .struct_size = sizeof region };
	hr_allocation_info info = { .struct_size = sizeof info };
	hr_memory_info memory = { .struct_size = sizeof memory };
	hr_device_info about = { .struct_size = sizeof about };
	hr_simulated_options simulated;
	hr_emulated_options emulated;
	hr_stream stream;
	hr_device found;
	hr_allocator made;
	uint64_t limit = 64 * MIB, released;
	bool visited = false;
	void *out;
	(void)argument;
	hr_stats_init(&stats);
	hr_simulated_options_init(&simulated);
	CHECK_STATUS(HR_OK, hr_emulated_options_init(&emulated));

	EXPECT(HR_FORKED, hr_alloc_bytes(parents, 100, &out), FORKED_ALLOCATOR);
	EXPECT(HR_FORKED, hr_free(parents, parents_block, 0), FORKED_ALLOCATOR);
	CHECK_STATUS(HR_FORKED, hr_free(parents, NULL, 0));
	CHECK_STATUS(HR_FORKED, hr_allocation_record_stream(parents, parents_block, 0));
	CHECK_STATUS(HR_FORKED, hr_allocation_get_info(parents, parents_block, &info));
	CHECK_STATUS(HR_FORKED, hr_allocator_get_stats(parents, &stats));
	CHECK_STATUS(HR_FORKED, hr_allocator_trim(parents, &released));
	CHECK_STATUS(HR_FORKED, hr_allocator_check(parents));
	CHECK_STATUS(HR_FORKED, hr_allocator_get_region(parents, 0, &region));
	CHECK_STATUS(HR_FORKED, hr_allocator_visit(parents, 0, never, &visited));
	CHECK_STATUS(HR_FORKED, hr_allocator_destroy(parents));
	CHECK_STATUS(HR_FORKED, hr_allocator_destroy_all(parents));
	CHECK_STATUS(HR_FORKED, hr_allocator_create(parents_device, NULL, &made));
	CHECK_STATUS(HR_FORKED, hr_allocator_get_default("SIM:0", &made));
	EXPECT(HR_FORKED, hr_allocator_register("mine", &sound, NULL), "this process is a fork; call hr_shutdown() first");

	EXPECT(HR_FORKED, hr_device_find("SIM:0", &found), FORKED_DEVICE);
	CHECK_STATUS(HR_FORKED, hr_device_at(0, &found));
	CHECK_EQ(hr_device_count(), 0);
	CHECK_STATUS(HR_FORKED, hr_device_get_info(parents_device, &about));
	CHECK_STATUS(HR_FORKED, hr_device_get_stats(parents_device, &stats));
	CHECK_STATUS(HR_FORKED, hr_get_memory_info("SIM:0", &memory));
	CHECK_STATUS(HR_FORKED, hr_reset_memory_stats("SIM:0"));
	CHECK_STATUS(HR_FORKED, hr_device_set_logical("SIM:0", &limit, 1));
	CHECK_STATUS(HR_FORKED, hr_simulated_configure(&simulated));
	CHECK_STATUS(HR_FORKED, hr_emulated_configure(&emulated));
	CHECK_STATUS(HR_FORKED, hr_stream_create(parents_device, &stream));
	CHECK_STATUS(HR_FORKED, hr_stream_synchronize(parents_device, 0));
	CHECK_STATUS(HR_FORKED, hr_stream_fill(parents_device, parents_block, 0, 10, 0));
	CHECK_STATUS(HR_FORKED, hr_stats_scope_begin(parents_device));
	CHECK_STATUS(HR_FORKED, hr_stats_scope_end(parents_device, NULL));
	CHECK_EQ(hr_get_bytes_in_use(0), -HR_FORKED);
	CHECK_STATUS(HR_FORKED, hr_trace_start("/tmp/hr-misuse-never.hrt"));
	EXPECT(HR_FORKED, hr_trace_stop(), "this process is a fork, and a recording is its parent's; call hr_shutdown() first");
	CHECK(!visited);

	/* After hr_shutdown the child starts from scratch. */
	CHECK_STATUS(HR_OK, hr_shutdown());
	EXPECT(HR_INVALID_HANDLE, hr_alloc_bytes(parents, 100, &out), "no allocator has the handle %#llx: it was destroyed, or never created",
	       (unsigned long long)parents.id);
	CHECK_STATUS(HR_OK, hr_simulated_configure(&simulated));
	CHECK_STATUS(HR_OK, hr_allocator_get_default("SIM:0", &made));
	still_works(made, 0);
	CHECK_STATUS(HR_OK, hr_allocator_register("mine", &sound, NULL));
	CHECK_STATUS(HR_OK, hr_shutdown());
}

static void test_use_after_fork(void)
{
	parents = allocator();
	CHECK_STATUS(HR_OK, hr_device_find("SIM:0", &parents_device));
	parents_block = block_of(parents, 1000);
	CHECK_STATUS(HR_OK, hr_allocator_register("mine", &sound, NULL));
	int status = hr_test_in_child(use_after_fork, NULL);
	CHECK(WIFEXITED(status));
	CHECK_EQ(WEXITSTATUS(status), 0);
	still_works(parents, 1); /* the parent is not affected */
	CHECK_STATUS(HR_OK, hr_free(parents, parents_block, 0));
	CHECK_STATUS(HR_OK, hr_allocator_destroy(parents));
}

static void grandchild(void *argument)
{
	(void)argument;
	void *out;
	CHECK_STATUS(HR_FORKED, hr_alloc_bytes(parents, 100, &out));
}

static void fork_again(void *argument)
{
	(void)argument;
	CHECK_STATUS(HR_OK, hr_shutdown());
	parents = allocator();
	int status = hr_test_in_child(grandchild, NULL);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	still_works(parents, 0);
}

static void test_use_after_the_second_fork(void)
{
	parents = allocator();
	int status = hr_test_in_child(fork_again, NULL);
	CHECK(WIFEXITED(status));
	CHECK_EQ(WEXITSTATUS(status), 0);
	still_works(parents, 0);
}

/* A recording continues in the parent only. */
static void test_fork_while_recording(void)
{
	recording();
	parents = allocator();
	CHECK_STATUS(HR_OK, hr_device_find("SIM:0", &parents_device));
	parents_block = block_of(parents, 1000);
	CHECK_STATUS(HR_OK, hr_allocator_register("mine", &sound, NULL));
	CHECK_STATUS(HR_OK, hr_trace_start(path));
	int status = hr_test_in_child(use_after_fork, NULL);
	CHECK(WIFEXITED(status));
	CHECK_EQ(WEXITSTATUS(status), 0);
	still_works(parents, 1);
	CHECK_STATUS(HR_OK, hr_trace_stop());
	CHECK_EQ(access(path, F_OK), 0);
	unlink(path);
}

TEST_MAIN(T(test_device_name_that_cannot_be_read), T(test_device_that_is_not_there), T(test_device_name_that_fits_two),
          T(test_null_for_a_device), T(test_zero_device_handle), T(test_device_handle_from_before_shutdown),
          T(test_logical_devices_after_first_use), T(test_logical_devices_with_impossible_limits), T(test_settings_after_first_use),
          T(test_unknown_allocator_kind), T(test_limit_above_the_device), T(test_limit_below_a_page),
          T(test_granularity_that_cannot_be), T(test_granularity_above_the_page), T(test_options_without_struct_size),
          T(test_no_room_for_an_allocator_that_does_not_grow), T(test_null_for_an_allocator), T(test_one_allocator_too_many),
          T(test_a_request_a_byte_above_the_limit), T(test_a_full_allocator_on_an_empty_device), T(test_close_with_live_blocks), T(test_close_of_the_default_allocator), T(test_double_close),
          T(test_every_use_of_a_closed_allocator), T(test_custom_allocator_registered_twice),
          T(test_incomplete_custom_allocator), T(test_custom_allocator_with_a_bad_name),
          T(test_one_custom_allocator_too_many), T(test_custom_allocator_that_cannot_be_opened), T(test_stats_without_struct_size),
          T(test_stats_of_an_older_program_are_cut), T(test_region_that_is_not_there), T(test_getters_of_a_gpu_that_is_not_there),
          T(test_scope_end_without_begin), T(test_scope_end_on_another_device), T(test_scope_end_without_struct_size),
          T(test_one_scope_too_many), T(test_trace_started_twice), T(test_trace_stopped_without_start),
          T(test_trace_that_cannot_be_made), T(test_use_after_shutdown), T(test_use_after_fork), T(test_use_after_the_second_fork),
          T(test_fork_while_recording))
