/* test_oom_report.c - reports: complete, per thread, made without allocating, readable while others are made, and invalid once
 * overwritten. */
#include <errno.h>

#include "fixture.h"
#include "fault_os.h"
#include "core/memory/oom/oom.h"
#include "test.h"

#define KIB UINT64_C(1024)
#define MIB (KIB * KIB)
#define GIB (KIB * MIB)

static hr_device device;

static hr_allocator open_allocator(uint64_t memory, hr_oom_callback callback)
{
	hr_allocator_options options;
	hr_allocator allocator;
	device = fixture_simulated(memory, 64 * KIB);
	hr_allocator_options_init(&options);
	options.oom.report_allocations_on_oom = true;
	options.oom.callback = callback;
	options.oom.user = &device;
	CHECK_STATUS(HR_OK, hr_allocator_create(device, &options, &allocator));
	return allocator;
}

static hr_oom_report last(void)
{
	hr_oom_report report = { 0 };
	CHECK_STATUS(HR_OK, hr_oom_get_last(&report));
	CHECK_NE(report.id, 0);
	return report;
}

static hr_oom_report fail(hr_allocator allocator, uint64_t bytes)
{
	void *block;
	CHECK_STATUS(HR_OUT_OF_MEMORY, hr_alloc_bytes(allocator, bytes, &block));
	return last();
}

/* Exactly the bytes of a text are written, whatever the capacity. */
static void check_text(hr_oom_report report, size_t (*write)(hr_oom_report, char *, size_t))
{
	size_t length = write(report, NULL, 0);
	char *whole = malloc(length + 8), *part = malloc(length + 8);
	CHECK_GT(length, 10);
	CHECK_EQ(write(report, whole, length + 8), length);
	CHECK_EQ(strlen(whole), length);
	for (size_t capacity = 1; capacity <= length + 1; capacity += 1 + capacity / 2) {
		memset(part, 'x', length + 8);
		CHECK_EQ(write(report, part, capacity), length);
		CHECK_EQ(strlen(part), capacity - 1 < length ? capacity - 1 : length);
		CHECK_BYTES(part, whole, strlen(part));
		CHECK_EQ(part[capacity], 'x');
	}
	free(whole);
	free(part);
}

static void test_a_report_has_everything_in_it(void)
{
	hr_allocator allocator = open_allocator(64 * MIB, NULL);
	hr_oom_report handle = { 0 };
	void *block;
	CHECK_STATUS(HR_NOT_READY, hr_oom_get_last(&handle));
	hr_request request = HR_REQUEST(40 * MIB);
	request.op = hr_name_intern("matmul");
	request.scope = hr_name_intern("encoder/layer_1");
	request.tag = hr_name_intern("weights");
	request.shape = hr_shape_intern((const int64_t[]){ 10, 1024, 1024 }, 3);
	request.dtype = HR_DTYPE_FLOAT32;
	CHECK_STATUS(HR_OK, hr_alloc(allocator, &request, &block));
	request.bytes = 30 * MIB + 1;
	request.alignment = 4096;
	CHECK_STATUS(HR_OUT_OF_MEMORY, hr_alloc(allocator, &request, &block));
	CHECK_CONTAINS(hr_last_message(), "cannot allocate 30.0 MiB");
	handle = last();

	const hr__report *report = hr__report_open(handle.id);
	CHECK_EQ(report->id, handle.id);
	CHECK_EQ(report->sequence, 1);
	CHECK_GT(report->time_ns, UINT64_C(1600000000000000000));
	CHECK_EQ(report->process, getpid());
	CHECK_EQ(report->thread, 1);
	CHECK_EQ(report->bytes, 30 * MIB + 1);
	CHECK_EQ(report->size, 30 * MIB + 256);
	CHECK_EQ(report->alignment, 4096);
	CHECK_EQ(report->op, request.op);
	CHECK_EQ(report->scope, request.scope);
	CHECK_EQ(report->tag, request.tag);
	CHECK_EQ(report->shape, request.shape);
	CHECK_EQ((int)report->dtype, (int)HR_DTYPE_FLOAT32);
	CHECK_STR(report->allocator, "SIM:0_bfc");
	CHECK_STR(report->kind, "bfc");
	CHECK_STR(report->device, "SIM:0");
	CHECK_STR(report->backend, "simulated");
	CHECK_CONTAINS(report->card, "simulated device");
	CHECK_EQ(report->total_bytes, 64 * MIB);
	CHECK_EQ(report->limit, 64 * MIB);
	CHECK_EQ(report->page_bytes, 64 * KIB);
	CHECK_EQ(report->device_reserved, report->stats.bytes_reserved);
	CHECK_EQ(report->stats.bytes_in_use, 40 * MIB);
	CHECK_EQ(report->stats.num_failed_allocs, 1);
	CHECK(report->stitch && report->thread_cache && report->allow_growth);
	CHECK_EQ((int)report->verdict.kind, (int)HR_NEEDS_MORE);
	CHECK_EQ(report->verdict.bytes, 6 * MIB + 256);
	CHECK_EQ((int)report->verdict.tier, (int)HR_TIER_PHYSICAL);
	CHECK_CONTAINS(report->verdict.advice, "matmul");
	for (int kind = 0; kind < 3; kind++) {
		CHECK_EQ(report->holders[kind].count, 1);
		CHECK_EQ(report->holders[kind].names, 1);
		CHECK_EQ(report->holders[kind].rest_bytes, 0);
		CHECK_EQ(report->holders[kind].top[0].bytes, 40 * MIB);
	}
	CHECK_EQ(report->holders[HR_BY_SCOPE].top[0].name, request.scope);
	CHECK_EQ(report->largest_count, 1);
	CHECK_EQ(report->largest[0].op, request.op);
	CHECK_EQ(report->size_blocks[25], 1); /* 2^25 is 32 MiB */
	CHECK_EQ(report->size_bytes[25], 40 * MIB);
	CHECK_EQ(report->region_count, 2);
	CHECK_EQ(report->log_count, 1);
	CHECK_EQ(report->log[0].bytes, 40 * MIB);
	hr__report_close(report);

	check_text(handle, hr_oom_format_text);
	check_text(handle, hr_oom_format_json);
	check_text(handle, hr_oom_format_log);
	hr_verdict verdict = { 0 }, asked = { .struct_size = sizeof asked };
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_oom_get_verdict(handle, &verdict));
	verdict.struct_size = sizeof verdict;
	CHECK_STATUS(HR_OK, hr_oom_get_verdict(handle, &verdict));
	CHECK_STATUS(HR_OK, hr_allocator_would_fit(allocator, &request, &asked));
	CHECK_BYTES(&verdict, &asked, sizeof asked);
	CHECK_STATUS(HR_OK, hr_shutdown());
}

/* ---- without memory ---- */

static uint64_t held(void)
{
	struct hr_fault_os_live live;
	hr_fault_os_live(&live);
	return live.alloc_bytes + live.reserved_bytes + live.committed_bytes + live.fds + live.mapped_bytes;
}

/* 100,000 blocks, and every call of the system fails. */
static void test_a_report_needs_no_memory_and_no_long_hold(void)
{
	static void *blocks[200000];
	void *block;
	hr_fault_os_install();
	hr_allocator allocator = open_allocator(4 * GIB, NULL);
	for (int i = 0; i < 200000; i++) CHECK_STATUS(HR_OK, hr_alloc_bytes(allocator, 4 * KIB + 4 * KIB * (i % 3), &blocks[i]));
	for (int i = 0; i < 200000; i += 2) CHECK_STATUS(HR_OK, hr_free(allocator, blocks[i], HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OUT_OF_MEMORY, hr_alloc_bytes(allocator, 8 * GIB, &block)); /* the log's clock is calibrated once */
	uint64_t before = held();
	hr_fault_os_fail_nth(1, true, ENOMEM);
	hr_oom_report handle = fail(allocator, 8 * GIB), other = fail(allocator, 3 * GIB + 900 * MIB);
	check_text(handle, hr_oom_format_text);
	check_text(other, hr_oom_format_json);
	hr_fault_os_fail_nth(0, false, 0);
	CHECK_EQ(held(), before);

	for (uint64_t id = handle.id; id <= other.id; id++) {
		const hr__report *report = hr__report_open(id);
		CHECK_LE(report->longest_hold, HR__VISIT_MAX);
		CHECK_GE(report->longest_hold, HR__VISIT_MAX / 2);
		CHECK_GE(report->chunks_visited, 200000);
		CHECK_EQ(report->holders[0].top[0].count, 100000);
		int64_t sizes = 0;
		for (uint32_t i = 0; i < HR__REPORT_SIZES; i++) sizes += report->size_blocks[i];
		CHECK_EQ(sizes, 100000);
		hr__report_close(report);
	}
	CHECK_STATUS(HR_OK, hr_shutdown());
	CHECK(hr_fault_os_is_clean());
}

/* The same from the start: whatever fails, and however often, a report is made, and the thread's error stays that of the request.
 * */
static void test_a_report_is_made_when_every_call_of_the_system_fails(void)
{
	hr_allocator allocator = open_allocator(64 * MIB, NULL);
	void *block;
	CHECK_STATUS(HR_OK, hr_alloc_bytes(allocator, 40 * MIB, &block));
	CHECK_STATUS(HR_OK, hr_shutdown());
	for (uint64_t nth = 1; nth <= 20; nth++) {
		hr_fault_os_install();
		allocator = open_allocator(64 * MIB, NULL);
		CHECK_STATUS(HR_OK, hr_alloc_bytes(allocator, 40 * MIB, &block));
		hr_fault_os_fail_nth(nth, true, ENOMEM);
		hr_oom_report handle = fail(allocator, 65 * MIB);
		CHECK_CONTAINS(hr_last_message(), "cannot allocate 65.0 MiB");
		hr_fault_os_fail_nth(0, false, 0);
		check_text(handle, hr_oom_format_text);
		CHECK_STATUS(HR_OK, hr_shutdown());
		CHECK(hr_fault_os_is_clean());
		hr_fault_os_uninstall();
	}
}

/* ---- threads ---- */

static hr_allocator shared;
static pthread_barrier_t round_ends;

static void fail_with_others(void *argument, unsigned index)
{
	(void)argument;
	char name[32];
	snprintf(name, sizeof name, "op_of_thread_%u", index);
	for (uint64_t round = 0; round < hr_test_scaled(40); round++) {
		void *block, *kept;
		hr_request request = HR_REQUEST((1 + index) * 4 * KIB);
		request.op = hr_name_intern(name);
		CHECK_STATUS(HR_OK, hr_alloc(shared, &request, &kept));
		request.bytes = GIB + (round * 8 + index) * 256;
		CHECK_STATUS(HR_OUT_OF_MEMORY, hr_alloc(shared, &request, &block));
		hr_oom_report handle = last();
		pthread_barrier_wait(&round_ends); /* all eight exist, and still do */
		const hr__report *report = hr__report_open(handle.id);
		CHECK(report != NULL);
		CHECK_EQ(report->id, handle.id);
		CHECK_EQ(report->bytes, request.bytes);
		CHECK_EQ(report->op, request.op);
		CHECK_EQ((int)report->verdict.kind, (int)HR_NEVER_FITS);
		CHECK_EQ(report->verdict.bytes, (request.bytes + 64 * KIB - 1) / (64 * KIB) * (64 * KIB) - 256 * MIB);
		CHECK_GE(report->holders[HR_BY_OP].count, 1);
		CHECK_GE(report->region_count, 2);
		CHECK_GE(report->log_count, 1);
		bool found = false;
		for (uint32_t i = 0; i < report->holders[HR_BY_OP].count; i++)
			if (report->holders[HR_BY_OP].top[i].name == request.op)
				found = report->holders[HR_BY_OP].top[i].bytes == (int64_t)(1 + index) * 4 * (int64_t)KIB;
		CHECK(found);
		hr__report_close(report);
		CHECK_STATUS(HR_OK, hr_free(shared, kept, HR_STREAM_DEFAULT));
		pthread_barrier_wait(&round_ends);
	}
}

static void test_eight_threads_that_fail_at_once_have_a_report_each(void)
{
	shared = open_allocator(256 * MIB, NULL);
	pthread_barrier_init(&round_ends, NULL, 8);
	hr_test_threads(8, fail_with_others, NULL);
	CHECK_STATUS(HR_OK, hr_allocator_check(shared));
	CHECK_STATUS(HR_OK, hr_shutdown());
}

/* Threads read reports that others overwrite: a report is complete, or not available. */
static _Atomic(uint64_t) newest;
static _Atomic(bool) done;

static void read_or_fail(void *argument, unsigned index)
{
	(void)argument;
	uint64_t random = index, whole = 0;
	static char text[3][1 << 20];
	if (index >= 3) {
		while (!atomic_load(&done)) { /* sixteen newer reports may be made before a thread reads its own */
			void *block;
			hr_oom_report report;
			CHECK_STATUS(HR_OUT_OF_MEMORY, hr_alloc_bytes(shared, GIB + 1 + hr_rand(&random) % GIB, &block));
			if (hr_oom_get_last(&report) == HR_OK) atomic_store(&newest, report.id);
		}
		return;
	}
	for (uint64_t i = 0; i < hr_test_scaled(HR_TEST_SANITIZED ? 200 : 2000) || whole < 10; i++) {
		hr_oom_report handle = { atomic_load(&newest) };
		handle.id -= handle.id > 20 ? hr_rand(&random) % 20 : 0;
		size_t length = hr_oom_format_json(handle, text[index], sizeof text[index]);
		if (!length) continue;
		whole++;
		CHECK_LT(length, sizeof text[index]);
		CHECK_EQ(text[index][0], '{');
		CHECK_CONTAINS(text[index] + length - 3, "}");
		hr_verdict verdict = { .struct_size = sizeof verdict };
		hr_status status = hr_oom_get_verdict(handle, &verdict);
		CHECK(status == HR_OK || status == HR_INVALID_HANDLE);
		if (!status) CHECK_EQ((int)verdict.kind, (int)HR_NEVER_FITS);
	}
	if (index == 0) atomic_store(&done, true);
}

static void test_a_report_that_is_overwritten_is_gone_as_a_whole(void)
{
	shared = open_allocator(256 * MIB, NULL);
	atomic_store(&newest, fail(shared, GIB).id);
	hr_test_threads(5, read_or_fail, NULL);
	CHECK_STATUS(HR_OK, hr_shutdown());
}

static void test_the_last_sixteen_are_kept(void)
{
	hr_allocator allocator = open_allocator(64 * MIB, NULL);
	hr_verdict verdict = { .struct_size = sizeof verdict };
	hr_oom_report first = fail(allocator, GIB), latest = first;
	for (int i = 0; i < 15; i++) latest = fail(allocator, GIB);
	CHECK_STATUS(HR_OK, hr_oom_get_verdict(first, &verdict));
	latest = fail(allocator, GIB);
	CHECK_STATUS(HR_INVALID_HANDLE, hr_oom_get_verdict(first, &verdict));
	CHECK_CONTAINS(hr_last_message(), "no longer exists");
	CHECK_EQ(hr_oom_format_text(first, NULL, 0), 0);
	CHECK_STATUS(HR_INVALID_HANDLE, hr_oom_save(first, "/nowhere/at/all"));
	CHECK_STATUS(HR_INVALID_HANDLE, hr_oom_get_verdict((hr_oom_report){ 0 }, &verdict));
	CHECK_STATUS(HR_INVALID_HANDLE, hr_oom_get_verdict((hr_oom_report){ latest.id + 1 }, &verdict));
	CHECK_STATUS(HR_OK, hr_oom_get_verdict(latest, &verdict));
	CHECK_STATUS(HR_OK, hr_allocator_destroy_all(allocator));
	CHECK_STATUS(HR_OK, hr_oom_get_verdict(latest, &verdict)); /* the allocator is closed; the report is a copy */
	check_text(latest, hr_oom_format_text);
	CHECK_STATUS(HR_OK, hr_shutdown());
	CHECK_STATUS(HR_INVALID_HANDLE, hr_oom_get_verdict(latest, &verdict));
	CHECK_STATUS(HR_NOT_READY, hr_oom_get_last(&latest));
	/* The library can be used again. */
	first = fail(open_allocator(64 * MIB, NULL), GIB);
	CHECK_GT(first.id, latest.id);
	CHECK_STATUS(HR_OK, hr_shutdown());
}

/* ---- the callback ---- */

static struct {
	uint32_t calls;
	hr_oom_report report;
	hr_allocator allocator;
} called;

static void when_it_fails(void *user, hr_oom_report report)
{
	void *block;
	CHECK_EQ(user, &device);
	called.calls++;
	called.report = report;
	CHECK_EQ(last().id, report.id);
	check_text(report, hr_oom_format_text);
	/* The callback may use Headroom; a failure in it makes no report. */
	CHECK_STATUS(HR_OUT_OF_MEMORY, hr_alloc_bytes(called.allocator, 9 * GIB, &block));
	CHECK_CONTAINS(hr_last_message(), "9.0 GiB");
	CHECK_EQ(last().id, report.id);
	CHECK_STATUS(HR_OK, hr_alloc_bytes(called.allocator, 1, &block));
	CHECK_STATUS(HR_OK, hr_free(called.allocator, block, HR_STREAM_DEFAULT));
}

static void test_the_callback_is_called_once_and_the_message_stays(void)
{
	called.allocator = open_allocator(64 * MIB, when_it_fails);
	hr_oom_report report = fail(called.allocator, GIB);
	CHECK_EQ(called.calls, 1);
	CHECK_EQ(called.report.id, report.id);
	CHECK_CONTAINS(hr_last_message(), "cannot allocate 1.0 GiB");
	CHECK_EQ(fail(called.allocator, 2 * GIB).id, report.id + 1);
	CHECK_EQ(called.calls, 2);
	CHECK_STATUS(HR_OK, hr_shutdown());
}

static void test_no_report_is_made_without_the_option(void)
{
	hr_allocator allocator = open_allocator(64 * MIB, NULL), silent;
	hr_oom_report none;
	void *block;
	CHECK_STATUS(HR_OK, hr_allocator_create(device, NULL, &silent));
	CHECK_STATUS(HR_OUT_OF_MEMORY, hr_alloc_bytes(silent, GIB, &block));
	CHECK_STATUS(HR_NOT_READY, hr_oom_get_last(&none));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_alloc_bytes(allocator, 0, &block));
	CHECK_STATUS(HR_NOT_READY, hr_oom_get_last(&none));
	fail(allocator, GIB);
	CHECK_STATUS(HR_OK, hr_shutdown());
}

/* ---- fork ---- */

static void in_child(void *argument)
{
	hr_verdict verdict = { .struct_size = sizeof verdict };
	hr_oom_report none, *parents = argument;
	hr_holder holder;
	size_t count;
	CHECK_STATUS(HR_NOT_READY, hr_oom_get_last(&none));
	CHECK_STATUS(HR_INVALID_HANDLE, hr_oom_get_verdict(*parents, &verdict));
	CHECK_STATUS(HR_FORKED, hr_allocator_get_holders(shared, HR_BY_OP, &holder, 1, &count));
	CHECK_STATUS(HR_OK, hr_shutdown());
	hr_allocator allocator = open_allocator(64 * MIB, NULL);
	hr_oom_report report = fail(allocator, GIB);
	const hr__report *open = hr__report_open(report.id);
	CHECK_EQ(open->process, getpid());
	hr__report_close(open);
	CHECK_STATUS(HR_OK, hr_shutdown());
}

static void fork_or_fail(void *argument, unsigned index)
{
	(void)argument;
	if (index) {
		while (!atomic_load(&done)) fail(shared, GIB);
		return;
	}
	hr_oom_report report = fail(shared, GIB);
	for (int i = 0; i < 30; i++) CHECK_EQ(hr_test_in_child(in_child, &report), 0);
	atomic_store(&done, true);
}

static void test_a_child_of_a_fork_starts_anew(void)
{
	shared = open_allocator(64 * MIB, NULL);
	hr_test_threads(2, fork_or_fail, NULL);
	CHECK_STATUS(HR_OK, hr_shutdown());
}

TEST_MAIN(T(test_a_report_has_everything_in_it), T(test_a_report_needs_no_memory_and_no_long_hold),
          T(test_a_report_is_made_when_every_call_of_the_system_fails), T(test_eight_threads_that_fail_at_once_have_a_report_each),
          T(test_a_report_that_is_overwritten_is_gone_as_a_whole), T(test_the_last_sixteen_are_kept),
          T(test_the_callback_is_called_once_and_the_message_stays), T(test_no_report_is_made_without_the_option),
          T(test_a_child_of_a_fork_starts_anew))
