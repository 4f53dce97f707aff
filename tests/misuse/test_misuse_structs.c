/* test_misuse_structs.c - every public struct with struct_size, as programs of older and newer versions pass it, and with a struct_size
 * that was never set.
 *
 * Each struct is in a block of exactly its size, so that a sanitizer finds accesses beyond it. */
#include "headroom_analysis.h"
#include "headroom_backend.h"
#include "headroom_record.h"
#include "headroom_runtime.h"
#include "support_misuse.h"

#define STRUCT_MAX 4096u /* as in core/base/struct.h; no version has a larger struct */

struct subject {
	const char *call, *name, *remedy;
	size_t size, least; /* least: through the mandatory fields */
	bool is_output;
	hr_status (*use)(void *given);              /* makes the call; leaves no state behind */
	void (*fill)(void *given);                  /* of an input: fills in a struct of this version, but for struct_size */
	hr_status good;                             /* of a call with a good struct */
	void (*init)(void *given, size_t struct_size); /* the _init_sized function, if there is one */
};

static void set_size(void *given, size_t size)
{
	memcpy(given, &size, sizeof size);
}

/* A block of [room] bytes for a struct that says that it has [size]. Beyond the fields of this version it has [tail]. */
static void *block_with(const struct subject *s, size_t room, size_t size, int tail)
{
	unsigned char *whole = malloc(s->size), *given = malloc(room ? room : 1);
	CHECK(whole && given);
	memset(whole, s->is_output ? 0x5a : 0, s->size);
	if (s->fill) s->fill(whole);
	memset(given, tail, room);
	memcpy(given, whole, room < s->size ? room : s->size);
	if (room >= sizeof size) set_size(given, size);
	free(whole);
	return given;
}

/* The word after struct_size of an output that was given [size] bytes. Checks that nothing else was written. */
static uint64_t first_word(const struct subject *s, size_t size)
{
	uint64_t word;
	size_t kept;
	unsigned char *given = block_with(s, size, size, 0x5a);
	CHECK_STATUS(s->good, s->use(given));
	memcpy(&kept, given, sizeof kept);
	CHECK_EQ(kept, size);
	for (size_t i = s->size; i < size; i++) CHECK_EQ(given[i], 0x5a);
	memcpy(&word, given + sizeof(size_t), sizeof word);
	free(given);
	return word;
}

static void accepted(const struct subject *s, size_t size)
{
	if (s->is_output) {
		CHECK_EQ(first_word(s, size), first_word(s, s->size));
		return;
	}
	void *given = block_with(s, size, size, 0);
	CHECK_STATUS(s->good, s->use(given));
	free(given);
}

/* [size] is not one that a version could have; the block has all fields of this version. */
static void refused(const struct subject *s, size_t size)
{
	void *given = block_with(s, s->size, size, 0);
	EXPECT(HR_INVALID_ARGUMENT, s->use(given), "%s: %s.struct_size is %zu; %s", s->call, s->name, size, s->remedy);
	free(given);
}

/* A newer program uses a field that this library does not know: at [at]. */
static void refused_tail(const struct subject *s, size_t size, size_t at)
{
	unsigned char *given = block_with(s, size, size, 0);
	given[at] = 1;
	EXPECT(HR_INVALID_ARGUMENT, s->use(given),
	       "%s: %s has %zu bytes; version %s of the library knows %zu, and the others are not 0: upgrade the library, or leave the newer "
	       "fields 0",
	       s->call, s->name, size, hr_version(), s->size);
	free(given);
}

/* An _init function writes to all of the caller's struct and to nothing else. */
static void initialised(const struct subject *s, size_t size)
{
	size_t said;
	unsigned char *given = malloc(size);
	CHECK(given != NULL);
	memset(given, 0x5a, size);
	s->init(given, size);
	memcpy(&said, given, sizeof said);
	CHECK_EQ(said, size);
	for (size_t i = s->size; i < size; i++) CHECK_EQ(given[i], 0);
	CHECK_STATUS(s->good, s->use(given));
	free(given);
}

static void walk(const struct subject *s)
{
	const size_t larger[] = { s->size + 8, s->size + 64, STRUCT_MAX };
	const size_t never[] = { 0, 1, 7, s->least - 8, s->least + 1, s->size + 1, STRUCT_MAX + 8, SIZE_MAX / 2 + 1, SIZE_MAX - 7, SIZE_MAX };
	for (size_t size = s->least; size <= s->size; size += 8) accepted(s, size);
	for (size_t i = 0; i < sizeof larger / sizeof *larger; i++) {
		accepted(s, larger[i]);
		if (!s->is_output) refused_tail(s, larger[i], s->size);
		if (!s->is_output) refused_tail(s, larger[i], larger[i] - 1);
	}
	for (size_t i = 0; i < sizeof never / sizeof *never; i++) refused(s, never[i]);
	accepted(s, s->size); /* nothing was left behind */
}

/* Garbage beyond struct_size must not be read. */
static void ignores_what_follows(const struct subject *s)
{
	for (size_t size = s->least; size < s->size; size += 8) {
		unsigned char *given = block_with(s, s->size, size, 0);
		memset(given + size, 0xff, s->size - size);
		CHECK_STATUS(s->good, s->use(given));
		free(given);
	}
}

static void walk_init(const struct subject *s)
{
	const size_t sizes[] = { s->least, s->size, s->size + 8, STRUCT_MAX };
	const size_t never[] = { 0, s->least - 8, s->size + 1, STRUCT_MAX + 8, SIZE_MAX };
	unsigned char *given = malloc(s->size);
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) initialised(s, sizes[i]);
	for (size_t i = 0; i < sizeof never / sizeof *never; i++) {
		memset(given, 0x5a, s->size);
		s->init(given, never[i]);
		for (size_t k = 0; k < s->size; k++) CHECK_EQ(given[k], 0x5a);
	}
	free(given);
}

#define THROUGH(type, field) ((offsetof(type, field) + sizeof(((type *)0)->field) + 7) / 8 * 8)

#define INPUT(test, type, field, function, remedy_, good_)                                                                              \
	static void test_##test(void)                                                                                                       \
	{                                                                                                                                   \
		const struct subject s = { .call = function, .name = #type, .remedy = remedy_, .size = sizeof(type), .least = THROUGH(type, field), \
			                       .use = use_##test, .fill = fill_##type, .good = good_, .init = init_##type };                        \
		walk(&s);                                                                                                                       \
		ignores_what_follows(&s);                                                                                                       \
		if (s.init) walk_init(&s);                                                                                                      \
	}
#define OUTPUT(test, type, field, function, remedy_)                                                                                    \
	static void test_##test(void)                                                                                                       \
	{                                                                                                                                   \
		walk(&(struct subject){ .call = function, .name = #type, .remedy = remedy_, .size = sizeof(type), .least = THROUGH(type, field), \
		                        .is_output = true, .use = use_##test });                                                                \
	}
/* fill_<type> and init_<type> of a struct with an _init function. */
#define WITH_INIT(type)                                       \
	static void fill_##type(void *given)                      \
	{                                                         \
		type##_init(given);                                   \
	}                                                         \
	static void init_##type(void *given, size_t struct_size)  \
	{                                                         \
		type##_init_sized(given, struct_size);                \
	}

/* The same where the _init functions return a status, which says whether the size was accepted. The struct says so too. */
#define WITH_CHECKED_INIT(type)                                       \
	static void fill_##type(void *given)                              \
	{                                                                 \
		CHECK_STATUS(HR_OK, type##_init(given));                      \
	}                                                                 \
	static void init_##type(void *given, size_t struct_size)          \
	{                                                                 \
		hr_status unused = type##_init_sized(given, struct_size);     \
		(void)unused;                                                 \
	}

/* ---- structs whose defaults are all 0 ---- */

#define INIT_CLEARS(type)                                                             \
	do {                                                                              \
		type given, expected;                                                         \
		memset(&given, 0x5a, sizeof given);                                           \
		memset(&expected, 0, sizeof expected);                                        \
		expected.struct_size = sizeof expected;                                       \
		type##_init(&given);                                                          \
		CHECK(memcmp(&given, &expected, sizeof given) == 0);                          \
	} while (0)

static void test_init_clears_the_struct_and_sets_its_size(void)
{
	INIT_CLEARS(hr_device_info);
	INIT_CLEARS(hr_allocation_info);
	INIT_CLEARS(hr_custom_allocator);
	INIT_CLEARS(hr_memory_info);
	INIT_CLEARS(hr_region_info);
	INIT_CLEARS(hr_stats_scope);
	INIT_CLEARS(hr_tensor_info);
	INIT_CLEARS(hr_lms_policy);
	INIT_CLEARS(hr_lms_stats);
	INIT_CLEARS(hr_verdict);
	INIT_CLEARS(hr_backend);
}

/* ---- devices ---- */

WITH_CHECKED_INIT(hr_cuda_options)
WITH_CHECKED_INIT(hr_emulated_options)
WITH_INIT(hr_simulated_options)

static hr_status use_configure_cuda(void *given) { return hr_cuda_configure(given); }
static hr_status use_configure_emulated(void *given) { return hr_emulated_configure(given); }
static hr_status use_configure_simulated(void *given) { return hr_simulated_configure(given); }
INPUT(configure_cuda, hr_cuda_options, enabled, "hr_cuda_configure", "call hr_cuda_options_init first", HR_OK)
INPUT(configure_emulated, hr_emulated_options, devices, "hr_emulated_configure", "call hr_emulated_options_init first", HR_OK)
INPUT(configure_simulated, hr_simulated_options, memory_bytes, "hr_simulated_configure", "call hr_simulated_options_init first", HR_OK)

static hr_device sim(void)
{
	static hr_device found;
	if (!found.id) found = device();
	return found;
}

static hr_allocator shared(void)
{
	static hr_allocator made;
	if (!made.id) CHECK_STATUS(HR_OK, hr_allocator_create(sim(), NULL, &made));
	return made;
}

static hr_status use_device_get_info(void *given) { return hr_device_get_info(sim(), given); }
OUTPUT(device_get_info, hr_device_info, name, "hr_device_get_info", "call hr_device_info_init first")

static void test_older_emulated_options_have_defaults(void)
{
	hr_emulated_options options;
	hr_device_info info = { .struct_size = sizeof info };
	hr_device found;
	memset(&options, 0xff, sizeof options);
	options.struct_size = offsetof(hr_emulated_options, page_bytes);
	options.devices = 1;
	options.memory_bytes = 64 * MIB;
	CHECK_STATUS(HR_OK, hr_emulated_configure(&options));
	CHECK_STATUS(HR_OK, hr_device_find("EMU:0", &found));
	CHECK_STATUS(HR_OK, hr_device_get_info(found, &info));
	CHECK_EQ(info.total_bytes, 64 * MIB);
	CHECK_EQ(info.page_bytes, 2 * MIB);
}

/* ---- the backend's struct_size has 32 bits and is its second field ---- */

static hr_status no_devices(void *config, uint32_t *out)
{
	(void)config;
	*out = 0;
	return HR_OK;
}

static void test_backend(void)
{
	union {
		hr_backend table;
		unsigned char bytes[STRUCT_MAX + 8];
	} given;
	const uint32_t never[] = { 0, 4, 8, 16, sizeof(hr_backend) + 4, STRUCT_MAX + 8, UINT32_MAX };
	const uint32_t possible[] = { THROUGH(hr_backend, type), THROUGH(hr_backend, count), sizeof(hr_backend), sizeof(hr_backend) + 8, STRUCT_MAX };
	const char *incomplete = "backend mine: the entry open is missing";
	for (size_t i = 0; i < sizeof never / sizeof *never; i++) {
		memset(&given, 0, sizeof given);
		given.table = (hr_backend){ .version = HR_BACKEND_VERSION, .struct_size = never[i], .name = "mine", .type = "MINE" };
		EXPECT(HR_INVALID_ARGUMENT, hr_backend_register(&given.table, NULL),
		       "hr_backend_register: hr_backend.struct_size is %u; call hr_backend_init first", never[i]);
	}
	for (size_t i = 0; i < sizeof possible / sizeof *possible; i++) {
		memset(&given, 0, sizeof given);
		given.table = (hr_backend){ .version = HR_BACKEND_VERSION, .struct_size = possible[i], .name = "mine", .type = "MINE", .count = no_devices };
		EXPECT(HR_INVALID_ARGUMENT, hr_backend_register(&given.table, NULL), "%s", i ? incomplete : "backend mine: the entry count is missing");
		if (possible[i] <= sizeof(hr_backend)) continue;
		given.bytes[possible[i] - 1] = 1;
		EXPECT(HR_INVALID_ARGUMENT, hr_backend_register(&given.table, NULL),
		       "hr_backend_register: hr_backend has %u bytes; version %s of the library knows %zu, and the others are not 0: upgrade the "
		       "library, or leave the newer fields 0",
		       possible[i], hr_version(), sizeof(hr_backend));
	}
}

/* ---- allocators ---- */

WITH_INIT(hr_allocator_options)
WITH_INIT(hr_oom_options)

static hr_status use_allocator_create(void *given)
{
	hr_allocator made;
	hr_status status = hr_allocator_create(sim(), given, &made);
	if (!status) CHECK_STATUS(HR_OK, hr_allocator_destroy(made));
	return status;
}
INPUT(allocator_create, hr_allocator_options, kind, "hr_allocator_create", "call hr_allocator_options_init first", HR_OK)

static hr_status use_set_oom_options(void *given) { return hr_allocator_set_oom_options(shared(), given); }
static hr_status use_get_oom_options(void *given) { return hr_allocator_get_oom_options(shared(), given); }
INPUT(set_oom_options, hr_oom_options, report_allocations_on_oom, "hr_allocator_set_oom_options", "call hr_oom_options_init first", HR_OK)
OUTPUT(get_oom_options, hr_oom_options, report_allocations_on_oom, "hr_allocator_get_oom_options", "call hr_oom_options_init first")

/* hr_oom_options inside of hr_allocator_options can grow to 128 bytes. */
static void test_embedded_oom_options(void)
{
	const size_t possible[] = { 16, sizeof(hr_oom_options), sizeof(hr_oom_options) + 8, 128 }, never[] = { 0, 8, 57, 136, STRUCT_MAX, SIZE_MAX };
	hr_allocator_options options;
	hr_allocator made;
	CHECK_EQ(sizeof options - offsetof(hr_allocator_options, oom), 128);
	for (size_t i = 0; i < sizeof possible / sizeof *possible; i++) {
		hr_oom_options now = { .struct_size = sizeof now };
		hr_allocator_options_init(&options);
		options.oom.allocation_log_sampling_rate = 2; /* impossible, but the shortest struct does not have it */
		if (i) options.oom.allocation_log_sampling_rate = 0.5;
		options.oom.struct_size = possible[i];
		CHECK_STATUS(HR_OK, hr_allocator_create(sim(), &options, &made));
		CHECK_STATUS(HR_OK, hr_allocator_get_oom_options(made, &now));
		CHECK(now.allocation_log_sampling_rate == (i ? 0.5 : 1.0));
		CHECK_STATUS(HR_OK, hr_allocator_destroy(made));
		/* Refused whatever oom.struct_size is: an older library's hr_allocator_options_init has set it. */
		options.oom_reserved[sizeof options.oom_reserved - 1] = 1;
		EXPECT(HR_INVALID_ARGUMENT, hr_allocator_create(sim(), &options, &made),
		       "hr_allocator_create: hr_oom_options has 128 bytes; version %s of the library knows %zu, and the others are not 0: upgrade the "
		       "library, or leave the newer fields 0",
		       hr_version(), sizeof options.oom);
	}
	for (size_t i = 0; i < sizeof never / sizeof *never; i++) {
		hr_allocator_options_init(&options);
		options.oom.struct_size = never[i];
		EXPECT(HR_INVALID_ARGUMENT, hr_allocator_create(sim(), &options, &made),
		       "hr_allocator_create: hr_oom_options.struct_size is %zu; call hr_oom_options_init first", never[i]);
	}
}

static void fill_hr_request(void *given) { *(hr_request *)given = HR_REQUEST(1000); }
#define init_hr_request NULL
static hr_status use_alloc(void *given)
{
	void *block;
	hr_status status = hr_alloc(shared(), given, &block);
	if (!status) CHECK_STATUS(HR_OK, hr_free(shared(), block, HR_STREAM_DEFAULT));
	return status;
}
INPUT(alloc, hr_request, stream, "hr_alloc", "set it with HR_REQUEST()", HR_OK)

static hr_status use_would_fit(void *given) { return hr_allocator_would_fit(shared(), given, &(hr_verdict){ .struct_size = sizeof(hr_verdict) }); }
INPUT(would_fit, hr_request, stream, "hr_allocator_would_fit", "set it with HR_REQUEST()", HR_OK)

/* The request inherits the thread's op, with and without a cache, and a successful call leaves the last message alone. */
static void test_older_request_in_a_context(void)
{
	hr_allocator a = allocator();
	hr_allocation_info info = { .struct_size = sizeof info };
	hr_request request = { .struct_size = THROUGH(hr_request, stream), .bytes = 500, .scope = 77, .tag = 77 };
	hr_name op = hr_name_intern("conv");
	CHECK_STATUS(HR_INVALID_HANDLE, hr_allocator_destroy((hr_allocator){ 0 }));
	char before[512];
	snprintf(before, sizeof before, "%s", hr_last_message());
	for (int i = 0; i < 3; i++) {
		void *block;
		hr_op_set(i == 2 ? HR_NAME_NONE : op);
		CHECK_STATUS(HR_OK, hr_alloc(a, &request, &block));
		CHECK_STATUS(HR_OK, hr_allocation_get_info(a, block, &info));
		CHECK_EQ(info.requested, 500);
		CHECK_EQ(info.op, i == 2 ? HR_NAME_NONE : op);
		CHECK_EQ(info.tag, HR_NAME_NONE);
		CHECK_STATUS(HR_OK, hr_free(a, block, HR_STREAM_DEFAULT));
	}
	CHECK_STR(hr_last_message(), before);
	still_works(a, 0);
}

static hr_status use_would_fit_verdict(void *given)
{
	hr_request request = HR_REQUEST(1000);
	return hr_allocator_would_fit(shared(), &request, given);
}
OUTPUT(would_fit_verdict, hr_verdict, kind, "hr_allocator_would_fit", "call hr_verdict_init first")

static hr_status use_oom_verdict(void *given)
{
	static hr_oom_report report;
	if (!report.id) {
		hr_oom_options options;
		void *block;
		hr_oom_options_init(&options);
		options.report_allocations_on_oom = true;
		CHECK_STATUS(HR_OK, hr_allocator_set_oom_options(shared(), &options));
		CHECK_STATUS(HR_OUT_OF_MEMORY, hr_alloc_bytes(shared(), 2048 * MIB, &block));
		CHECK_STATUS(HR_OK, hr_oom_get_last(&report));
	}
	return hr_oom_get_verdict(report, given);
}
OUTPUT(oom_verdict, hr_verdict, kind, "hr_oom_get_verdict", "call hr_verdict_init first")

static void *shared_block(void)
{
	static void *block;
	if (!block) block = block_of(shared(), 1000);
	return block;
}
static hr_status use_allocation_info(void *given) { return hr_allocation_get_info(shared(), shared_block(), given); }
OUTPUT(allocation_info, hr_allocation_info, address, "hr_allocation_get_info", "call hr_allocation_info_init first")

static hr_status use_region(void *given) { return shared_block() ? hr_allocator_get_region(shared(), 0, given) : HR_CORRUPT; }
OUTPUT(region, hr_region_info, base, "hr_allocator_get_region", "call hr_region_info_init first")

static hr_status stub_alloc(void *state, size_t bytes, size_t alignment, hr_stream stream, void **out)
{
	(void)state, (void)bytes, (void)alignment, (void)stream, (void)out;
	return HR_OUT_OF_MEMORY;
}
static hr_status stub_free(void *state, void *address, size_t bytes, hr_stream stream)
{
	(void)state, (void)address, (void)bytes, (void)stream;
	return HR_OK;
}
static void fill_hr_custom_allocator(void *given) { *(hr_custom_allocator *)given = (hr_custom_allocator){ .alloc = stub_alloc, .free = stub_free }; }
#define init_hr_custom_allocator NULL
static hr_status use_register_allocator(void *given) { return hr_allocator_register("bfc", given, NULL); } /* taken, so it can be repeated */
INPUT(register_allocator, hr_custom_allocator, free, "hr_allocator_register", "call hr_custom_allocator_init first", HR_ALREADY_EXISTS)

/* get_stats of a newer struct is not read from an older one. */
static void test_older_custom_allocator_has_no_statistics(void)
{
	hr_custom_allocator table;
	hr_allocator_options options;
	hr_allocator made;
	hr_stats stats;
	memset(&table, 0xff, sizeof table);
	table.struct_size = offsetof(hr_custom_allocator, get_stats);
	table.open = NULL;
	table.close = NULL;
	table.alloc = stub_alloc;
	table.free = stub_free;
	CHECK_STATUS(HR_OK, hr_allocator_register("mine", &table, NULL));
	hr_allocator_options_init(&options);
	options.kind = "mine";
	CHECK_STATUS(HR_OK, hr_allocator_create(sim(), &options, &made));
	hr_stats_init(&stats);
	CHECK_STATUS(HR_OK, hr_allocator_get_stats(made, &stats));
	CHECK_STATUS(HR_OK, hr_allocator_destroy(made));
}

/* ---- statistics ---- */

WITH_INIT(hr_stats)

static hr_status use_allocator_stats(void *given) { return hr_allocator_get_stats(shared(), given); }
static hr_status use_device_stats(void *given) { return hr_device_get_stats(sim(), given); }
static hr_status use_memory_info(void *given) { return sim().id ? hr_get_memory_info("SIM:0", given) : HR_CORRUPT; }
static hr_status use_scope_end(void *given)
{
	CHECK_STATUS(HR_OK, hr_stats_scope_begin(sim()));
	hr_status status = hr_stats_scope_end(sim(), given);
	if (status) { /* the failed call did not end the scope */
		char message[512];
		snprintf(message, sizeof message, "%s", hr_last_message());
		CHECK_STATUS(HR_OK, hr_stats_scope_end(sim(), NULL));
		CHECK_STR(hr_last_message(), message);
	}
	return status;
}
static hr_status use_stats_format(void *given)
{
	char text[8192];
	return hr_stats_format(given, text, sizeof text) ? HR_OK : hr_last_status();
}
static hr_status use_stats_json(void *given)
{
	char text[8192];
	return hr_stats_format_json(given, text, sizeof text) ? HR_OK : hr_last_status();
}
OUTPUT(allocator_stats, hr_stats, num_allocs, "hr_allocator_get_stats", "call hr_stats_init first")
OUTPUT(device_stats, hr_stats, num_allocs, "hr_device_get_stats", "call hr_stats_init first")
OUTPUT(memory_info, hr_memory_info, current, "hr_get_memory_info", "call hr_memory_info_init first")
OUTPUT(scope_end, hr_stats_scope, peak_bytes, "hr_stats_scope_end", "call hr_stats_scope_init first")
INPUT(stats_format, hr_stats, num_allocs, "hr_stats_format", "call hr_stats_init first", HR_OK)
INPUT(stats_json, hr_stats, num_allocs, "hr_stats_format_json", "call hr_stats_init first", HR_OK)

/* ---- Large Model Support ---- */

WITH_CHECKED_INIT(hr_lms_options)

static hr_status use_lms_configure(void *given)
{
	hr_allocator made;
	CHECK_STATUS(HR_OK, hr_allocator_create(sim(), NULL, &made));
	hr_status status = hr_lms_configure(made, given);
	CHECK_STATUS(HR_OK, hr_allocator_destroy(made));
	return status;
}
INPUT(lms_configure, hr_lms_options, enabled, "hr_lms_configure", "call hr_lms_options_init first", HR_OK)

static void fill_hr_tensor_options(void *given)
{
	hr_tensor_options_init(given);
	((hr_tensor_options *)given)->bytes = 1000;
}
static void init_hr_tensor_options(void *given, size_t struct_size)
{
	hr_tensor_options_init_sized(given, struct_size);
	if (struct_size >= 16 && struct_size % 8 == 0 && struct_size <= STRUCT_MAX) ((hr_tensor_options *)given)->bytes = 1000;
}
static hr_status use_tensor_create(void *given)
{
	hr_tensor tensor;
	hr_status status = hr_tensor_create(shared(), given, &tensor);
	if (!status) CHECK_STATUS(HR_OK, hr_tensor_destroy(tensor));
	return status;
}
INPUT(tensor_create, hr_tensor_options, bytes, "hr_tensor_create", "call hr_tensor_options_init first", HR_OK)

static hr_tensor shared_tensor(void)
{
	static hr_tensor tensor;
	hr_tensor_options options;
	fill_hr_tensor_options(&options);
	if (!tensor.id) CHECK_STATUS(HR_OK, hr_tensor_create(shared(), &options, &tensor));
	return tensor;
}
static hr_status use_tensor_info(void *given) { return hr_tensor_get_info(shared_tensor(), given); }
static hr_status use_lms_stats(void *given) { return shared_tensor().id ? hr_lms_get_stats(shared(), given) : HR_CORRUPT; }
OUTPUT(tensor_info, hr_tensor_info, state, "hr_tensor_get_info", "call hr_tensor_info_init first")
OUTPUT(lms_stats, hr_lms_stats, num_tensors, "hr_lms_get_stats", "call hr_lms_stats_init first")

static double score(void *user, const hr_lms_candidate *candidate)
{
	(void)user, (void)candidate;
	return 0;
}
static void fill_hr_lms_policy(void *given) { *(hr_lms_policy *)given = (hr_lms_policy){ .score = score }; }
#define init_hr_lms_policy NULL
static hr_status use_register_policy(void *given) { return hr_lms_policy_register("lru", given, NULL); } /* taken, so it can be repeated */
INPUT(register_policy, hr_lms_policy, score, "hr_lms_policy_register", "call hr_lms_policy_init first", HR_ALREADY_EXISTS)

static void test_policy_without_score(void)
{
	EXPECT(HR_INVALID_ARGUMENT, hr_lms_policy_register("mine", &(hr_lms_policy){ .struct_size = sizeof(hr_lms_policy) }, NULL),
	       "policy \"mine\": score is missing");
}

static hr_status recompute(void *user, const hr_recompute *call)
{
	(void)user, (void)call;
	return HR_IO;
}
static void fill_hr_recipe(void *given)
{
	static hr_tensor output;
	output = shared_tensor();
	*(hr_recipe *)given = (hr_recipe){ .recompute = recompute, .outputs = &output, .output_count = 1 };
}
#define init_hr_recipe NULL
static hr_status use_set_recipe(void *given) { return hr_tensor_set_recipe(given); } /* Large Model Support is off there */
INPUT(set_recipe, hr_recipe, output_count, "hr_tensor_set_recipe", "call hr_recipe_init first", HR_UNSUPPORTED)

/* ---- recording and analysis ---- */

static void init_hr_profiler_options(void *given, size_t struct_size)
{
	hr_profiler_options_init_sized(given, struct_size);
	if (struct_size >= THROUGH(hr_profiler_options, step_count) && struct_size % 8 == 0 && struct_size <= STRUCT_MAX) {
		((hr_profiler_options *)given)->step_count = 1;
		((hr_profiler_options *)given)->steps[0] = (hr_profiler_steps){ 1, 1 };
	}
}
static void fill_hr_profiler_options(void *given)
{
	init_hr_profiler_options(given, sizeof(hr_profiler_options));
}
static hr_status use_profiler_start(void *given)
{
	static char folder[64] = "";
	if (!folder[0]) {
		snprintf(folder, sizeof folder, "/tmp/headroom-structs-XXXXXX");
		CHECK(mkdtemp(folder) != NULL);
	}
	hr_status status = hr_profiler_start(folder, given);
	if (!status) CHECK_STATUS(HR_NOT_READY, hr_profiler_stop()); /* the chosen step did not occur, so there is no file */
	rmdir(folder);
	return status;
}
static hr_status use_parse_arguments(void *given)
{
	char name[] = "program", argument[] = "--profile_options=compress=1", *argv[] = { name, argument, NULL };
	int argc = 2;
	hr_status status = hr_profiler_parse_arguments(&argc, argv, given);
	CHECK_EQ(argc, status ? 2 : 1);
	if (!status) CHECK(((hr_profiler_options *)given)->compress);
	return status;
}
INPUT(profiler_start, hr_profiler_options, step_count, "hr_profiler_start", "call hr_profiler_options_init first", HR_OK)
INPUT(parse_arguments, hr_profiler_options, step_count, "hr_profiler_parse_arguments", "call hr_profiler_options_init first", HR_OK)

WITH_INIT(hr_profile_options)
static bool discard(void *context, const char *bytes, size_t length)
{
	(void)context, (void)bytes, (void)length;
	return true;
}
static hr_status use_profile_report(void *given) { return hr_profile_report("/nowhere/train.hrt", given, HR_PROFILE_TEXT, discard, NULL); }
INPUT(profile_report, hr_profile_options, view, "hr_profile_report", "call hr_profile_options_init first", HR_IO)

static void test_preset_of_an_older_program(void)
{
	hr_profile_options options;
	memset(&options, 0x5a, sizeof options);
	CHECK_STATUS(HR_OK, hr_profile_options_init_preset_sized(&options, offsetof(hr_profile_options, order_by), "time_and_memory"));
	CHECK_EQ(options.struct_size, offsetof(hr_profile_options, order_by));
	CHECK_STR(options.view, "scope");
	CHECK_EQ(options.min_micros, 1);
	CHECK_EQ((uintptr_t)options.order_by, 0x5a5a5a5a5a5a5a5a);
}

/* ---- the runtime ---- */

WITH_INIT(hr_session_options)
WITH_INIT(hr_run_options)

static hr_status use_session_open(void *given)
{
	hr_session session;
	hr_status status = hr_session_create(given, &session);
	if (!status) CHECK_STATUS(HR_OK, hr_session_destroy(session));
	return status;
}
INPUT(session_open, hr_session_options, device, "hr_session_create", "call hr_session_options_init first", HR_OK)

static hr_status run(const hr_run_options *options, hr_run_metadata *metadata)
{
	static hr_session session;
	static hr_value one;
	hr_value out;
	if (!session.id) {
		hr_session_options with;
		hr_graph graph;
		hr_session_options_init(&with);
		CHECK_STATUS(HR_OK, hr_session_create(&with, &session));
		CHECK_STATUS(HR_OK, hr_graph_create(&graph));
		CHECK_STATUS(HR_OK, hr_graph_enter(graph));
		one = hr_full(HR_DTYPE_FLOAT32, HR_SCALAR, 1);
		CHECK_STATUS(HR_OK, hr_graph_leave());
	}
	hr_status status = hr_session_run(session, NULL, 0, &one, 1, &out, options, metadata);
	if (!status) hr_value_release(out);
	return status;
}
static hr_status use_session_run(void *given) { return run(given, NULL); }
INPUT(session_run, hr_run_options, report_allocations_on_oom, "hr_session_run", "call hr_run_options_init first", HR_OK)

static hr_status identity(void *context, const hr_value *ins, size_t in_count, hr_value *outs, size_t out_count)
{
	(void)context, (void)in_count, (void)out_count;
	outs[0] = hr_neg(ins[0]);
	return HR_OK;
}
static hr_status use_function_call(void *given)
{
	static hr_function function;
	hr_value in = hr_full(HR_DTYPE_FLOAT32, HR_SCALAR, 1), out;
	if (!function.id) CHECK_STATUS(HR_OK, hr_function_create("identity", identity, NULL, &function));
	hr_status status = hr_function_call_with_options(function, &in, 1, &out, 1, given, NULL);
	if (!status) hr_value_release(out);
	return status;
}
INPUT(function_call, hr_run_options, report_allocations_on_oom, "hr_function_call_with_options", "call hr_run_options_init first", HR_OK)

/* All fields of the first release are mandatory, because a run fills them in place. */
static void test_run_metadata(void)
{
	const size_t never[] = { 0, 8, sizeof(hr_run_metadata) - 8, sizeof(hr_run_metadata) + 1, STRUCT_MAX + 8, SIZE_MAX };
	const size_t larger[] = { sizeof(hr_run_metadata), sizeof(hr_run_metadata) + 8, STRUCT_MAX };
	hr_run_options options;
	hr_run_options_init(&options);
	options.trace = HR_RUN_TRACE_OPS;
	for (size_t i = 0; i < sizeof never / sizeof *never; i++) {
		hr_run_metadata metadata = { .struct_size = never[i] };
		EXPECT(HR_INVALID_ARGUMENT, run(&options, &metadata), "hr_session_run: hr_run_metadata.struct_size is %zu; call hr_run_metadata_init first",
		       never[i]);
	}
	for (size_t i = 0; i < sizeof larger / sizeof *larger; i++) {
		unsigned char *given = malloc(larger[i]);
		hr_run_metadata *metadata = (hr_run_metadata *)(void *)given;
		memset(given, 0x5a, larger[i]);
		hr_run_metadata_init_sized(metadata, larger[i]);
		for (int k = 0; k < 2; k++) {
			CHECK_STATUS(HR_OK, run(&options, metadata));
			CHECK_EQ(metadata->op_count, 1);
			CHECK_EQ(metadata->struct_size, larger[i]);
		}
		hr_run_metadata_free(metadata);
		CHECK_EQ(metadata->struct_size, larger[i]);
		CHECK(!metadata->ops);
		free(given);
	}
}

static void init_hr_optimizer(void *given, size_t struct_size) { hr_optimizer_init_sized(given, struct_size, HR_ADAM); }
static void fill_hr_optimizer(void *given) { hr_optimizer_init(given, HR_ADAM); }
static hr_status optimizer_status(hr_value value)
{
	CHECK_EQ(value.id, 0);
	/* What follows the check of the struct: there are no variables. */
	return strcmp(hr_last_message(), "an optimizer was given no variables, or NULL") == 0 ? HR_OK : hr_last_status();
}
static hr_status use_apply_gradients(void *given) { return optimizer_status(hr_apply_gradients(given, NULL, NULL, 0)); }
static hr_status use_minimize(void *given) { return optimizer_status(hr_minimize(given, hr_full(HR_DTYPE_FLOAT32, HR_SCALAR, 1), NULL, 0)); }
INPUT(apply_gradients, hr_optimizer, kind, "hr_apply_gradients", "call hr_optimizer_init first", HR_OK)
INPUT(minimize, hr_optimizer, kind, "hr_minimize", "call hr_optimizer_init first", HR_OK)

/* An older program's optimizer has the defaults of its kind: Adam with a rate of 0.001 changes a variable by that in its first step. */
static void test_older_optimizer_has_the_defaults_of_its_kind(void)
{
	hr_optimizer adam;
	float after;
	memset(&adam, 0xff, sizeof adam);
	adam.struct_size = offsetof(hr_optimizer, learning_rate);
	adam.kind = HR_ADAM;
	adam.name = NULL;
	hr_variable variable = hr_get_variable("w", HR_DTYPE_FLOAT32, HR_SCALAR, HR_FULL(1));
	hr_value gradient = hr_full(HR_DTYPE_FLOAT32, HR_SCALAR, 5);
	CHECK_NE(hr_apply_gradients(&adam, &variable, &gradient, 1).id, 0);
	CHECK_STATUS(HR_OK, hr_value_fetch(hr_variable_read(variable), &after, sizeof after));
	CHECK(after > 0.9989f && after < 0.9991f);
}

/* ---- NULL ---- */

static void test_null_structs(void)
{
	hr_allocator a = shared();
	EXPECT(HR_INVALID_ARGUMENT, hr_cuda_configure(NULL), "hr_cuda_configure: hr_cuda_options is NULL");
	EXPECT(HR_INVALID_ARGUMENT, hr_emulated_configure(NULL), "hr_emulated_configure: hr_emulated_options is NULL");
	EXPECT(HR_INVALID_ARGUMENT, hr_simulated_configure(NULL), "hr_simulated_configure: hr_simulated_options is NULL");
	EXPECT(HR_INVALID_ARGUMENT, hr_device_get_info(sim(), NULL), "hr_device_get_info: hr_device_info is NULL");
	EXPECT(HR_INVALID_ARGUMENT, hr_device_get_stats(sim(), NULL), "hr_device_get_stats: hr_stats is NULL");
	EXPECT(HR_INVALID_ARGUMENT, hr_allocator_set_oom_options(a, NULL), "hr_allocator_set_oom_options: hr_oom_options is NULL");
	EXPECT(HR_INVALID_ARGUMENT, hr_allocator_get_oom_options(a, NULL), "hr_allocator_get_oom_options: hr_oom_options is NULL");
	EXPECT(HR_INVALID_ARGUMENT, hr_allocator_would_fit(a, NULL, &(hr_verdict){ .struct_size = sizeof(hr_verdict) }),
	       "hr_allocator_would_fit: hr_request is NULL");
	EXPECT(HR_INVALID_ARGUMENT, hr_allocator_would_fit(a, NULL, NULL), "hr_allocator_would_fit: hr_verdict is NULL");
	EXPECT(HR_INVALID_ARGUMENT, hr_oom_get_verdict((hr_oom_report){ 1 }, NULL), "hr_oom_get_verdict: hr_verdict is NULL");
	EXPECT(HR_INVALID_ARGUMENT, hr_tensor_create(a, NULL, &(hr_tensor){ 0 }), "hr_tensor_create: hr_tensor_options is NULL");
	EXPECT(HR_INVALID_ARGUMENT, hr_tensor_get_info(shared_tensor(), NULL), "hr_tensor_get_info: hr_tensor_info is NULL");
	EXPECT(HR_INVALID_ARGUMENT, hr_lms_get_stats(a, NULL), "hr_lms_get_stats: hr_lms_stats is NULL");
	EXPECT(HR_INVALID_ARGUMENT, hr_lms_policy_register("mine", NULL, NULL), "hr_lms_policy_register: hr_lms_policy is NULL");
	EXPECT(HR_INVALID_ARGUMENT, hr_session_create(NULL, &(hr_session){ 0 }), "hr_session_create: hr_session_options is NULL");
	EXPECT(HR_INVALID_ARGUMENT, hr_profiler_parse_arguments(&(int){ 0 }, (char *[]){ NULL }, NULL),
	       "hr_profiler_parse_arguments: hr_profiler_options is NULL");
	CHECK_EQ(hr_stats_format(NULL, NULL, 0), 0);
	CHECK_STR(hr_last_message(), "hr_stats_format: hr_stats is NULL");
	CHECK_EQ(hr_apply_gradients(NULL, NULL, NULL, 0).id, 0);
	CHECK_STR(hr_last_message(), "hr_apply_gradients: hr_optimizer is NULL");
	still_works(a, 0);
}

TEST_MAIN(T(test_init_clears_the_struct_and_sets_its_size), T(test_configure_cuda), T(test_configure_emulated), T(test_configure_simulated), T(test_device_get_info),
          T(test_older_emulated_options_have_defaults), T(test_backend), T(test_allocator_create), T(test_set_oom_options), T(test_get_oom_options),
          T(test_embedded_oom_options), T(test_alloc), T(test_would_fit), T(test_older_request_in_a_context), T(test_would_fit_verdict), T(test_oom_verdict),
          T(test_allocation_info), T(test_region), T(test_register_allocator), T(test_older_custom_allocator_has_no_statistics), T(test_allocator_stats),
          T(test_device_stats), T(test_memory_info), T(test_scope_end), T(test_stats_format), T(test_stats_json), T(test_lms_configure),
          T(test_tensor_create), T(test_tensor_info), T(test_lms_stats), T(test_register_policy), T(test_set_recipe), T(test_policy_without_score), T(test_profiler_start),
          T(test_parse_arguments), T(test_profile_report), T(test_preset_of_an_older_program), T(test_session_open), T(test_session_run),
          T(test_function_call), T(test_run_metadata), T(test_apply_gradients), T(test_minimize), T(test_older_optimizer_has_the_defaults_of_its_kind),
          T(test_null_structs))
