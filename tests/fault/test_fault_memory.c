/* test_fault_memory.c - every call of the operating system and of the device fails, once, and permanently from some call on
 * (support_faults.h).
 *
 * A scenario must not crash; after each call, whatever it returns, the allocator is consistent and its bytes in use are those of the
 * blocks that the scenario has; at the end nothing acquired from the system is left. */
#include <errno.h>

#include "headroom_record.h"
#include "support_faults.h"
#include "support_stats.h"
#include "test.h"

#define KIB UINT64_C(1024)
#define MIB (KIB * KIB)
#define BLOCKS 96u

/* ---- state of the scenario ---- */

static struct {
	hr_device device;
	hr_allocator allocator;
	bool open;
	bool bfc;
	void *blocks[BLOCKS];
	uint32_t count;
	int64_t peak;    /* bytes in use since the last reset */
	uint64_t ranges; /* address ranges held before the allocator was created */
} here;

static uint64_t ranges_held(void)
{
	struct hr_fault_os_live live;
	hr_fault_os_live(&live);
	return live.reserved_ranges;
}

/* Called when the allocator is closed or could not be created: the system has all ranges back; a device may have refused its own.
 * */
static void check_ranges(void)
{
	if (!fault.backend) CHECK_EQ(ranges_held(), here.ranges);
}

/* Called after every call: the allocator is consistent. */
static void look(void)
{
	suspend();
	if (here.open) {
		hr_stats stats;
		int64_t in_use = 0, requested = 0;
		CHECK_STATUS(HR_OK, hr_allocator_check(here.allocator));
		hr_stats_init(&stats);
		CHECK_STATUS(HR_OK, hr_allocator_get_stats(here.allocator, &stats));
		check_identities(&stats);
		for (uint32_t i = 0; i < here.count; i++) {
			hr_allocation_info info = { .struct_size = sizeof info };
			CHECK_STATUS(HR_OK, hr_allocation_get_info(here.allocator, here.blocks[i], &info));
			in_use += (int64_t)info.bytes;
			requested += (int64_t)info.requested;
		}
		CHECK_EQ(stats.num_live, here.count);
		CHECK_EQ(stats.bytes_in_use, in_use);
		CHECK_EQ(stats.bytes_requested, requested);
		if (in_use > here.peak) here.peak = in_use;
		CHECK_LE(here.peak, stats.peak_bytes_in_use);
		if (here.bfc) {
			chunk_census census = { 0 };
			census_take(here.allocator, &stats, &census);
		}
		CHECK_STATUS(HR_OK, hr_device_get_stats(here.device, &stats));
		check_identities(&stats);
		CHECK_EQ(stats.bytes_in_use, in_use);
	}
	resume();
}

/* A call that hit a fault may return any status; without a fault only the expected one. */
static bool ok(hr_status status)
{
	if (status != HR_OK) {
		suspend();
		if (!fault.met) CHECK_STATUS(HR_OK, status);
		CHECK(hr_last_message()[0] != 0);
		CHECK_NE(status, HR_CORRUPT);
		CHECK_NE(status, HR_INVALID_ARGUMENT);
		resume();
	}
	look();
	return status == HR_OK;
}

static bool open_allocator(const char *device, const hr_allocator_options *options)
{
	hr_allocator allocator = { 0 };
	here.count = 0;
	here.peak = 0;
	here.bfc = !options || !options->kind || strcmp(options->kind, "bfc") == 0;
	if (!ok(hr_device_find(device, &here.device))) return false;
	here.ranges = ranges_held();
	hr_status status = options ? hr_allocator_create(here.device, options, &allocator) : hr_allocator_get_default(device, &allocator);
	here.allocator = allocator;
	here.open = status == HR_OK;
	if (status != HR_OK) CHECK_EQ(allocator.id, 0);
	if (status != HR_OK) check_ranges();
	return ok(status);
}

static void allocate(uint64_t bytes, uint64_t alignment, hr_stream stream)
{
	hr_request request = { .struct_size = sizeof request, .bytes = bytes, .alignment = alignment, .stream = stream };
	void *untouched = &request, *block = untouched;
	hr_status status = hr_alloc(here.allocator, &request, &block);
	if (status == HR_OK) here.blocks[here.count++] = block;
	else CHECK_EQ(block, untouched);
	ok(status);
}

/* If a free fails, the block is still allocated. */
static void release(uint32_t index, hr_stream stream)
{
	if (index >= here.count) return;
	void *block = here.blocks[index];
	hr_status status = hr_free(here.allocator, block, stream);
	if (status == HR_OK) here.blocks[index] = here.blocks[--here.count];
	ok(status);
}

/* Frees all blocks, and retries once, as a program would. */
static void release_all(void)
{
	for (uint32_t i = here.count; i-- > 0;) release(i, HR_STREAM_DEFAULT);
	for (uint32_t i = here.count; i-- > 0;) release(i, HR_STREAM_DEFAULT);
}

static void close_allocator(void)
{
	hr_status status = here.count ? hr_allocator_destroy_all(here.allocator) : hr_allocator_destroy(here.allocator);
	if (status == HR_OK) here.open = false;
	if (status == HR_OK) check_ranges();
	ok(status);
}

/* Sizes of every kind: cached, of several pages, of more pages than one batch. */
static void use(void)
{
	static const uint64_t sizes[] = { 1, 256, 1000, 65536, 65537, 200000, 5000, 300 };
	for (uint32_t i = 0; i < 8; i++) allocate(sizes[i], i == 5 ? 4096 : 0, HR_STREAM_DEFAULT);
	release(3, HR_STREAM_DEFAULT);
	release(0, HR_STREAM_DEFAULT);
	allocate(256, 0, HR_STREAM_DEFAULT);
	allocate(100000, 0, HR_STREAM_DEFAULT);
	ok(hr_allocator_trim(here.allocator, NULL));
	for (uint32_t i = 0; i < 70; i++) allocate(256, 0, HR_STREAM_DEFAULT); /* more addresses than the first table holds */
	release(2, HR_STREAM_DEFAULT);
	here.peak = 0;
	ok(hr_reset_memory_stats("SIM:0"));
	release_all();
}

/* ---- scenarios ---- */

static void simulate(uint64_t memory, uint64_t page)
{
	hr_simulated_options options;
	hr_simulated_options_init(&options);
	options.memory_bytes = memory;
	options.page_bytes = page;
	ok(hr_simulated_configure(&options));
}

static void emulate(void)
{
	hr_emulated_options options;
	suspend();
	CHECK_STATUS(HR_OK, hr_emulated_options_init(&options));
	resume();
	options.memory_bytes = 4 * MIB;
	options.page_bytes = 64 * KIB;
	ok(hr_emulated_configure(&options));
}

static hr_allocator_options with(const char *kind)
{
	hr_allocator_options options;
	hr_allocator_options_init(&options);
	options.kind = kind;
	return options;
}

static void default_on_simulated(void)
{
	simulate(64 * MIB, 64 * KIB);
	if (open_allocator("SIM:0", NULL)) use();
}

static void default_on_emulated(void)
{
	emulate();
	if (open_allocator("GPU:0", NULL)) use();
}

static void default_on_cpu(void)
{
	if (open_allocator("CPU:0", NULL)) use();
}

static void bfc_with_small_pages(void)
{
	hr_allocator_options options = with("bfc");
	simulate(64 * MIB, 2 * KIB); /* a hundred pages for a block: mapped in several batches */
	if (!open_allocator("SIM:0", &options)) return;
	use();
	close_allocator();
}

static void bfc_without_pages(void)
{
	hr_allocator_options options = with("bfc");
	simulate(64 * MIB, 0);
	if (!open_allocator("SIM:0", &options)) return;
	use();
	close_allocator();
}

static void bfc_without_growth(void)
{
	hr_allocator_options options = with("bfc");
	options.allow_growth = false;
	options.limit_bytes = 16 * MIB;
	simulate(64 * MIB, 64 * KIB);
	if (!open_allocator("SIM:0", &options)) return;
	use();
	close_allocator();
}

static void bfc_without_cache(void)
{
	hr_allocator_options options = with("bfc");
	options.thread_cache = false;
	simulate(64 * MIB, 64 * KIB);
	if (!open_allocator("SIM:0", &options)) return;
	use();
	close_allocator();
}

/* Free pages that are not adjacent, and a request that needs all of them. */
static void stitching(void)
{
	hr_allocator_options options = with("bfc");
	options.limit_bytes = 16 * 64 * KIB;
	emulate();
	if (!open_allocator("GPU:0", &options)) return;
	for (uint32_t i = 0; i < 14; i++) allocate(64 * KIB + 1, 0, HR_STREAM_DEFAULT);
	for (uint32_t i = 0; i < 4; i++) release(i, HR_STREAM_DEFAULT);
	allocate(3 * 64 * KIB, 0, HR_STREAM_DEFAULT);
	allocate(64 * KIB, 64 * KIB, HR_STREAM_DEFAULT);
	release_all();
	close_allocator();
}

/* Requests that cannot be met, in addition to faults. */
static void under_pressure(void)
{
	hr_allocator_options options = with("bfc");
	options.limit_bytes = 4 * 64 * KIB;
	simulate(64 * MIB, 64 * KIB);
	if (!open_allocator("SIM:0", &options)) return;
	for (uint32_t i = 0; i < 12; i++) {
		void *block = NULL;
		hr_status status = hr_alloc_bytes(here.allocator, 40000, &block);
		if (status == HR_OK) here.blocks[here.count++] = block;
		else if (status != HR_OUT_OF_MEMORY) ok(status);
		look();
		if (i % 3 == 2) release(0, HR_STREAM_DEFAULT);
	}
	close_allocator(); /* with its blocks */
}

static void two_allocators(void)
{
	hr_allocator_options options = with("bfc");
	hr_allocator other = { 0 };
	void *block = NULL;
	simulate(1 * MIB, 64 * KIB);
	if (!open_allocator("SIM:0", &options)) return;
	allocate(300000, 0, HR_STREAM_DEFAULT);
	here.open = false; /* the device's statistics include both now */
	if (ok(hr_allocator_create(here.device, &options, &other))) {
		if (ok(hr_alloc_bytes(other, 600000, &block))) ok(hr_free(other, block, HR_STREAM_DEFAULT));
		allocate(600000, 0, HR_STREAM_DEFAULT); /* needs the free pages of the other allocator */
		ok(hr_allocator_destroy(other));
	}
	here.open = true;
	look();
	release_all();
	close_allocator();
}

static void direct_on_simulated(void)
{
	hr_allocator_options options = with("direct");
	simulate(64 * MIB, 64 * KIB);
	if (!open_allocator("SIM:0", &options)) return;
	for (uint32_t i = 0; i < 80; i++) allocate(300 * (i + 1), 0, HR_STREAM_DEFAULT);
	release(0, HR_STREAM_DEFAULT);
	release_all();
	close_allocator();
}

static void direct_on_emulated(void)
{
	hr_allocator_options options = with("direct");
	emulate();
	if (!open_allocator("GPU:0", &options)) return;
	allocate(1, 0, HR_STREAM_DEFAULT);
	allocate(100000, 0, HR_STREAM_DEFAULT);
	release(0, HR_STREAM_DEFAULT);
	allocate(1 * MIB, 0, HR_STREAM_DEFAULT);
	close_allocator();
}

/* A backend that has only pages, so that direct allocators map pages of their own. */
static const hr_backend *real;

static hr_status pages_count(void *config, uint32_t *out)
{
	(void)config;
	*out = 1;
	return HR_OK;
}

static void direct_on_pages(void)
{
	/* The simulated device under another name, without plain allocation. */
	extern const hr_backend hr__backend_simulated;
	static hr_backend pages;
	static hr_simulated_options config;
	hr_allocator_options options = with("direct");
	real = &hr__backend_simulated;
	hr_simulated_options_init(&config);
	config.memory_bytes = 1 * MIB;
	config.page_bytes = 4 * KIB;
	pages = *real;
	pages.name = "pages";
	pages.type = "PAGES";
	pages.count = pages_count;
	pages.plain_alloc = NULL;
	pages.plain_free = NULL;
	if (!ok(hr_backend_register(&pages, &config)) || !open_allocator("PAGES:0", &options)) return;
	allocate(1, 0, HR_STREAM_DEFAULT);
	allocate(300000, 0, HR_STREAM_DEFAULT); /* more pages than one batch */
	allocate(5000, 4096, HR_STREAM_DEFAULT);
	release(1, HR_STREAM_DEFAULT);
	release(0, HR_STREAM_DEFAULT);
	close_allocator();
}

/* ---- a custom allocator that itself fails every fifth time ---- */

static struct {
	_Alignas(4096) unsigned char memory[64][4096];
	bool used[64];
	uint64_t calls;
	int open;
} shelf;

static hr_status shelf_open(void *user, hr_device device, uint64_t limit, void **state)
{
	(void)user;
	(void)device;
	(void)limit;
	shelf.open++;
	*state = &shelf;
	return HR_OK;
}

static void shelf_close(void *state)
{
	(void)state;
	shelf.open--;
}

static hr_status shelf_alloc(void *state, size_t bytes, size_t alignment, hr_stream stream, void **out)
{
	(void)state;
	(void)stream;
	if (bytes > 4096 || alignment > 4096 || ++shelf.calls % 5 == 0) return HR_OUT_OF_MEMORY;
	for (int i = 0; i < 64; i++) {
		if (shelf.used[i]) continue;
		shelf.used[i] = true;
		*out = shelf.memory[i];
		return HR_OK;
	}
	return HR_OUT_OF_MEMORY;
}

static hr_status shelf_free(void *state, void *address, size_t bytes, hr_stream stream)
{
	(void)state;
	(void)bytes;
	(void)stream;
	if (++shelf.calls % 5 == 0) return HR_DEVICE_ERROR;
	shelf.used[((unsigned char *)address - shelf.memory[0]) / 4096] = false;
	return HR_OK;
}

static void custom_on_simulated(void)
{
	static const hr_custom_allocator table = { sizeof table, shelf_open, shelf_close, shelf_alloc, shelf_free, NULL };
	hr_allocator_options options = with("shelf");
	memset(shelf.used, 0, sizeof shelf.used);
	shelf.calls = 0;
	shelf.open = 0;
	simulate(64 * MIB, 64 * KIB);
	if (!ok(hr_allocator_register("shelf", &table, NULL)) || !open_allocator("SIM:0", &options)) return;
	for (uint32_t i = 0; i < 20; i++) {
		void *block = NULL;
		hr_status status = hr_alloc_bytes(here.allocator, 100 + i, &block);
		if (status == HR_OK) here.blocks[here.count++] = block;
		else if (status != HR_OUT_OF_MEMORY) ok(status);
		look();
	}
	for (uint32_t i = here.count; i-- > 0;) { /* if a free fails, the block is still allocated */
		if (hr_free(here.allocator, here.blocks[i], HR_STREAM_DEFAULT) == HR_OK) here.blocks[i] = here.blocks[--here.count];
		look();
	}
	close_allocator();
	suspend();
	CHECK_EQ(shelf.open, here.open);
	resume();
}

/* ---- streams, recordings ---- */

static void streams(void)
{
	hr_allocator_options options = with("bfc");
	hr_stream first = 0, second = 0;
	options.limit_bytes = 8 * 64 * KIB;
	emulate();
	if (!open_allocator("GPU:0", &options)) return;
	if (!ok(hr_stream_create(here.device, &first)) || !ok(hr_stream_create(here.device, &second))) return;
	for (uint32_t round = 0; round < 3; round++) {
		allocate(300, 0, first);
		allocate(100000, 0, first);
		if (here.count > 0) {
			ok(hr_stream_fill(here.device, here.blocks[0], 7, 300, first));
			ok(hr_allocation_record_stream(here.allocator, here.blocks[0], second));
		}
		release(0, first);
		release(0, second);
		allocate(300, 0, second); /* must wait for the first */
		allocate(100000, 0, HR_STREAM_DEFAULT);
		release(0, second);
		release(0, second);
		allocate(100000, 4096, first); /* aligned, which uses another path */
		ok(hr_allocator_trim(here.allocator, NULL));
		release_all();
	}
	ok(hr_stream_synchronize(here.device, first));
	ok(hr_stream_destroy(here.device, second));
	close_allocator();
}

static char recording[64];

static void record(void)
{
	hr_allocator_options options = with("bfc");
	simulate(64 * MIB, 64 * KIB);
	unlink(recording);
	if (!open_allocator("SIM:0", &options)) return;
	allocate(1000, 0, HR_STREAM_DEFAULT);
	bool started = ok(hr_trace_start(recording));
	use();
	if (started) ok(hr_trace_stop());
	unlink(recording);
	if (ok(hr_trace_start(recording))) allocate(1000, 0, HR_STREAM_DEFAULT);
	/* shutdown ends it */
}

static void scopes(void)
{
	hr_stats_scope scope = { .struct_size = sizeof scope };
	simulate(64 * MIB, 64 * KIB);
	if (!ok(hr_device_find("SIM:0", &here.device))) return;
	if (!ok(hr_stats_scope_begin(here.device))) return;
	if (open_allocator("SIM:0", NULL)) allocate(70000, 0, HR_STREAM_DEFAULT);
	uint32_t expected = here.count;
	if (ok(hr_stats_scope_end(here.device, &scope))) {
		CHECK_EQ(scope.num_allocs, expected);
		CHECK_EQ(scope.peak_bytes, expected ? 70144 : 0);
	}
}

static const fault_scenario scenarios[] = {
	{ "the default allocator, simulated", default_on_simulated },
	{ "the default allocator, emulated", default_on_emulated },
	{ "the default allocator, host", default_on_cpu },
	{ "bfc, small pages", bfc_with_small_pages },
	{ "bfc, no pages", bfc_without_pages },
	{ "bfc, no growth", bfc_without_growth },
	{ "bfc, no cache", bfc_without_cache },
	{ "bfc, stitching", stitching },
	{ "bfc, under pressure", under_pressure },
	{ "two allocators", two_allocators },
	{ "direct, simulated", direct_on_simulated },
	{ "direct, emulated", direct_on_emulated },
	{ "direct, pages only", direct_on_pages },
	{ "custom", custom_on_simulated },
	{ "streams", streams },
	{ "a recording", record },
	{ "scopes", scopes },
};
#define SCENARIOS (sizeof scenarios / sizeof *scenarios)

/* Runs the scenario once; true if a call was made to fail. */
static bool run_once(void (*run)(void), uint64_t nth)
{
	hr_fault_os_install();
	memset(&here, 0, sizeof here);
	begin_faults(nth);
	run();
	here.open = false;
	hr_shutdown();
	suspend();
	unlink(recording);
	/* After a refusal of the CPU device, nothing else releases the host's own memory. */
	bool refused = fault.backend && run == default_on_cpu;
	if (!refused && !hr_fault_os_is_clean()) hr_test_fail(__FILE__, __LINE__, "something is left after shutdown");
	hr_fault_os_uninstall();
	return fault.met;
}

static uint64_t run_all(bool backend, bool forever, hr_status status)
{
	snprintf(recording, sizeof recording, "/tmp/hr-fault-%d.hrt", (int)getpid());
	unlink(recording); /* left by a killed process with the same id */
	fault.backend = backend;
	fault.forever = forever;
	fault.status = status;
	fault.error = ENOMEM;
	return run_scenarios(scenarios, SCENARIOS, run_once, 1, 1);
}

static void test_any_call_of_the_system_may_fail_once(void)
{
	CHECK_GE(run_all(false, false, HR_OK), 125);
}

static void test_any_call_of_the_system_may_fail_for_ever(void)
{
	CHECK_GE(run_all(false, true, HR_OK), 125);
}

static void test_any_call_of_the_device_may_fail_once(void)
{
	CHECK_GE(run_all(true, false, HR_DEVICE_ERROR), 500);
}

static void test_any_call_of_the_device_may_fail_for_ever(void)
{
	CHECK_GE(run_all(true, true, HR_DEVICE_ERROR), 500);
}

static void test_the_device_may_be_full_at_any_call(void)
{
	CHECK_GE(run_all(true, false, HR_OUT_OF_MEMORY), 500);
}

TEST_MAIN(T_WITHIN(test_any_call_of_the_system_may_fail_once, 120), T_WITHIN(test_any_call_of_the_system_may_fail_for_ever, 120),
          T_WITHIN(test_any_call_of_the_device_may_fail_once, 120), T_WITHIN(test_any_call_of_the_device_may_fail_for_ever, 120),
          T_WITHIN(test_the_device_may_be_full_at_any_call, 120))
