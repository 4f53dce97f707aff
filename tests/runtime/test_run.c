/* test_run.c - options and metadata of a run: memory of each op, the log of a run that ran out of memory, and events in a trace. */
#include <unistd.h>

#include "headroom_runtime.h"
#include "headroom_record.h"
#include "support_session.h"
#include "analysis/reader/reader.h"
#include "core/trace/trace.h"

#define KIB 1024

static hr_graph graph;

/* (x w) w: two products, an activation in place between them. */
static hr_value chain(hr_value *place)
{
	hr_value w = hr_value_keep(hr_random_normal(HR_DTYPE_FLOAT32, HR_DIMS(256, 256), 1));
	*place = hr_placeholder(HR_DTYPE_FLOAT32, HR_DIMS(256, 256));
	CHECK_STATUS(HR_OK, hr_name_scope_push("tower"));
	hr_value y = hr_matmul(hr_relu(hr_matmul(*place, w)), w);
	CHECK_STATUS(HR_OK, hr_name_scope_pop());
	return y;
}

static void test_metadata_tells_of_each_op(void)
{
	hr_run_options options;
	hr_run_metadata metadata;
	hr_value place, result;
	open_session(0);
	CHECK_STATUS(HR_OK, hr_graph_create(&graph));
	CHECK_STATUS(HR_OK, hr_graph_enter(graph));
	hr_value y = chain(&place);
	CHECK_STATUS(HR_OK, hr_graph_leave());
	hr_value x = hr_value_keep(hr_full(HR_DTYPE_FLOAT32, HR_DIMS(256, 256), 1));
	hr_run_options_init(&options);
	hr_run_metadata_init(&metadata);
	options.trace = HR_RUN_TRACE_OPS;
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_session_run(session, &(hr_feed){ place, x }, 1, &y, 1, &result, &options, NULL));
	CHECK_STATUS(HR_OK, hr_reset_memory_stats("GPU:0"));
	for (int round = 0; round < 2; round++) { /* the second run frees the first's metadata */
		CHECK_STATUS(HR_OK, hr_session_run(session, &(hr_feed){ place, x }, 1, &y, 1, &result, &options, &metadata));
		hr_value_release(result);
	}
	static const char *const names[] = { "random_normal", "matmul", "relu", "matmul" };
	CHECK_EQ(metadata.op_count, 4);
	uint64_t sum = 0;
	for (int i = 0; i < 4; i++) {
		const hr_op_metadata *op = &metadata.ops[i];
		CHECK_STR(hr_name_text(op->op), names[i]);
		CHECK_STR(hr_name_text(op->scope), i ? "tower" : "");
		CHECK_GT(op->ns, 0);
		CHECK_GE(op->begin_ns, i ? metadata.ops[i - 1].begin_ns + metadata.ops[i - 1].ns : 0);
		sum += op->ns;
	}
	CHECK_LE(sum, metadata.ns);
	CHECK_EQ(metadata.ops[2].allocations, 0); /* relu reuses the product's memory */
	CHECK_EQ(metadata.ops[0].allocations, 1);
	CHECK_EQ(metadata.ops[0].allocated_bytes, 256 * 256 * 4);
	CHECK_GE(metadata.ops[1].allocated_bytes, 256 * 256 * 4); /* plus scratch */
	CHECK_EQ((int64_t)metadata.peak_bytes, stats_of().peak_bytes_in_use);
	hr_run_metadata_free(&metadata);
	CHECK_EQ(metadata.op_count, 0);
	hr_value_release(x);
	CHECK_STATUS(HR_OK, hr_graph_destroy(graph));
	close_session();
}

/* Both count the bytes that blocks occupy, which are the requested bytes rounded up to the allocator's granularity of 256 bytes.
 *
 *     full [3] float32      12 bytes requested     256 occupied     256 in use
 *     full [100] float32   400                     512              768
 *     concat [103]         412                     512             1280 */
static void test_allocated_and_peak_bytes_are_in_one_unit(void)
{
	static const uint64_t allocated[] = { 256, 512, 512 }, in_use[] = { 256, 768, 1280 };
	hr_run_options options;
	hr_run_metadata metadata;
	hr_value result;
	open_session(0);
	CHECK_STATUS(HR_OK, hr_graph_create(&graph));
	CHECK_STATUS(HR_OK, hr_graph_enter(graph));
	hr_value parts[] = { hr_full(HR_DTYPE_FLOAT32, HR_DIMS(3), 1), hr_full(HR_DTYPE_FLOAT32, HR_DIMS(100), 2) };
	hr_value joined = hr_concat(parts, 2, 0);
	CHECK_STATUS(HR_OK, hr_graph_leave());
	hr_run_options_init(&options);
	hr_run_metadata_init(&metadata);
	options.trace = HR_RUN_TRACE_OPS;
	CHECK_STATUS(HR_OK, hr_session_run(session, NULL, 0, &joined, 1, &result, &options, &metadata));
	CHECK_EQ(metadata.op_count, 3);
	for (int i = 0; i < 3; i++) {
		CHECK_EQ(metadata.ops[i].allocations, 1);
		CHECK_EQ(metadata.ops[i].allocated_bytes, allocated[i]);
		CHECK_EQ(metadata.ops[i].peak_bytes, in_use[i]);
	}
	CHECK_EQ(metadata.peak_bytes, 1280);
	hr_run_metadata_free(&metadata);
	hr_value_release(result);
	CHECK_STATUS(HR_OK, hr_graph_destroy(graph));
	close_session();
}

static void test_the_log_of_a_run_that_ran_out_of_memory(void)
{
	static char log[64 * KIB];
	hr_run_options options;
	hr_run_metadata metadata;
	hr_oom_options before, after;
	hr_oom_report report;
	hr_value results[2];
	open_session(2 * 1024 * KIB);
	CHECK_STATUS(HR_OK, hr_graph_create(&graph));
	CHECK_STATUS(HR_OK, hr_graph_enter(graph));
	CHECK_STATUS(HR_OK, hr_name_scope_push("decoder"));
	hr_value small = hr_value_keep(hr_random_normal(HR_DTYPE_FLOAT32, HR_DIMS(128, 128), 1));
	hr_value big = hr_value_keep(hr_full(HR_DTYPE_FLOAT32, HR_DIMS(1024, 2048), 1));
	CHECK_STATUS(HR_OK, hr_name_scope_pop());
	CHECK_STATUS(HR_OK, hr_graph_leave());
	hr_run_options_init(&options);
	hr_run_metadata_init(&metadata);
	CHECK_EQ(options.report_allocations_on_oom, 0);
	hr_value both[] = { small, big };
	CHECK_STATUS(HR_OUT_OF_MEMORY, hr_session_run(session, NULL, 0, both, 2, results, &options, &metadata));
	CHECK_STR(metadata.allocation_log, NULL);
	options.report_allocations_on_oom = true;
	options.allocation_log_buffer_size = 10;
	options.allocation_log_sampling_rate = 1;
	before.struct_size = after.struct_size = sizeof before;
	CHECK_STATUS(HR_OK, hr_allocator_get_oom_options(allocator, &before));
	CHECK_STATUS(HR_OUT_OF_MEMORY, hr_session_run(session, NULL, 0, both, 2, results, &options, &metadata));
	CHECK_CONTAINS(hr_last_message(), "full");
	CHECK_CONTAINS(hr_last_message(), "decoder");
	CHECK(metadata.allocation_log);
	CHECK_CONTAINS(metadata.allocation_log, "\"op_name\":\"random_normal\"");
	CHECK_CONTAINS(metadata.allocation_log, "\"shape\":[1024,2048]");
	CHECK_CONTAINS(metadata.allocation_log, "decoder");
	/* The same bytes as in the report of the error. */
	CHECK_STATUS(HR_OK, hr_oom_get_last(&report));
	CHECK_LT(hr_oom_format_log(report, log, sizeof log), sizeof log);
	CHECK_STR(metadata.allocation_log, log);
	CHECK_STATUS(HR_OK, hr_allocator_get_oom_options(allocator, &after));
	CHECK_EQ(after.report_allocations_on_oom, before.report_allocations_on_oom);
	CHECK_EQ(after.allocation_log_buffer_size, before.allocation_log_buffer_size);
	options.allocation_log_sampling_rate = 7;
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_session_run(session, NULL, 0, both, 2, results, &options, &metadata));
	CHECK_STATUS(HR_OK, hr_session_run(session, NULL, 0, both, 1, results, NULL, NULL)); /* requests that fit still succeed */
	hr_value_release(results[0]);
	hr_run_metadata_free(&metadata);
	CHECK_STATUS(HR_OK, hr_graph_destroy(graph));
	close_session();
}

/* The input of the sum is freed before the run fails. */
static void test_the_log_of_a_run_may_have_allocations_only(void)
{
	hr_run_options options;
	hr_run_metadata metadata;
	hr_value results[2];
	open_session(2 * 1024 * KIB);
	CHECK_STATUS(HR_OK, hr_graph_create(&graph));
	CHECK_STATUS(HR_OK, hr_graph_enter(graph));
	hr_value sum = hr_value_keep(hr_reduce_sum(hr_random_normal(HR_DTYPE_FLOAT32, HR_DIMS(128, 128), 1), 0, false));
	hr_value big = hr_value_keep(hr_full(HR_DTYPE_FLOAT32, HR_DIMS(1024, 2048), 1));
	CHECK_STATUS(HR_OK, hr_graph_leave());
	hr_run_options_init(&options);
	hr_run_metadata_init(&metadata);
	CHECK(!options.allocation_log_allocations_only);
	options.report_allocations_on_oom = true;
	for (int only = 0; only < 2; only++) {
		hr_value both[] = { sum, big };
		options.allocation_log_allocations_only = only;
		CHECK_STATUS(HR_OUT_OF_MEMORY, hr_session_run(session, NULL, 0, both, 2, results, &options, &metadata));
		CHECK(metadata.allocation_log);
		CHECK_CONTAINS(metadata.allocation_log, "\"action\":\"alloc\"");
		CHECK_CONTAINS(metadata.allocation_log, "\"action\":\"failed\"");
		CHECK_EQ(strstr(metadata.allocation_log, "\"action\":\"free\"") == NULL, only);
	}
	hr_run_metadata_free(&metadata);
	CHECK_STATUS(HR_OK, hr_graph_destroy(graph));
	close_session();
}

/* ---- logs of runs at the same time ---- */

static hr_value fits, fails[2];

/* One thread runs a graph that fits, over and over; the other runs out of memory, and its log has the allocations of its own run
 * before that. */
static void run_with_log(void *argument, unsigned index)
{
	hr_session mine;
	hr_session_options session_options;
	hr_run_options options;
	hr_run_metadata metadata;
	hr_value outs[2];
	(void)argument;
	hr_session_options_init(&session_options);
	session_options.device = "GPU:0";
	session_options.allocator = allocator;
	hr_run_options_init(&options);
	hr_run_metadata_init(&metadata);
	options.report_allocations_on_oom = true;
	options.allocation_log_buffer_size = 5000;
	CHECK_STATUS(HR_OK, hr_session_create(&session_options, &mine));
	for (int i = 0; i < 100; i++) {
		if (index) {
			CHECK_STATUS(HR_OUT_OF_MEMORY, hr_session_run(mine, NULL, 0, fails, 2, outs, &options, &metadata));
			CHECK(metadata.allocation_log);
			CHECK_CONTAINS(metadata.allocation_log, "\"op_name\":\"random_normal\"");
		} else {
			CHECK_STATUS(HR_OK, hr_session_run(mine, NULL, 0, &fits, 1, outs, &options, NULL));
			hr_value_release(outs[0]);
		}
	}
	hr_run_metadata_free(&metadata);
	CHECK_STATUS(HR_OK, hr_session_destroy(mine));
}

static void test_runs_at_the_same_time_share_a_log(void)
{
	hr_oom_options after = { .struct_size = sizeof after }, before = after;
	open_session(2 * 1024 * KIB);
	CHECK_STATUS(HR_OK, hr_graph_create(&graph));
	CHECK_STATUS(HR_OK, hr_graph_enter(graph));
	fits = hr_full(HR_DTYPE_FLOAT32, HR_DIMS(100), 1);
	fails[0] = hr_random_normal(HR_DTYPE_FLOAT32, HR_DIMS(100), 1);
	fails[1] = hr_full(HR_DTYPE_FLOAT32, HR_DIMS(1024, 2048), 1);
	CHECK_STATUS(HR_OK, hr_graph_leave());
	CHECK_STATUS(HR_OK, hr_allocator_get_oom_options(allocator, &before));
	CHECK(!before.report_allocations_on_oom);
	for (int round = 0; round < 5; round++) {
		hr_test_threads(2, run_with_log, NULL);
		CHECK_STATUS(HR_OK, hr_allocator_get_oom_options(allocator, &after));
		CHECK(!after.report_allocations_on_oom);
		CHECK_EQ(after.allocation_log_buffer_size, before.allocation_log_buffer_size);
	}
	CHECK_STATUS(HR_OK, hr_graph_destroy(graph));
	close_session();
}

/* ---- events ---- */

struct seen {
	int begins, ends, reads, writes, steps, step_ends;
	bool in_op;
};

static void count_events(const char *path, struct seen *seen)
{
	hr__trace_reader *reader;
	hr__event event;
	CHECK_STATUS(HR_OK, hr__trace_reader_open(path, &reader));
	while (hr__trace_reader_next(reader, &event) == HR_OK) {
		switch (event.kind) {
		case HR__EVENT_OP_BEGIN:
			CHECK(!seen->in_op);
			seen->in_op = true;
			seen->begins++;
			CHECK_STR(hr_name_text(event.scope), seen->begins > 1 ? "tower" : "");
			break;
		case HR__EVENT_OP_END:
			CHECK(seen->in_op);
			CHECK_GT(event.bytes, 0); /* duration */
			seen->in_op = false;
			seen->ends++;
			break;
		case HR__EVENT_READ: CHECK(seen->in_op); seen->reads++; break;
		case HR__EVENT_WRITE: CHECK(seen->in_op); seen->writes++; break;
		case HR__EVENT_STEP: seen->steps++; break;
		case HR__EVENT_STEP_END: seen->step_ends++; break;
		default: break;
		}
	}
	hr__trace_reader_close(reader);
}

static void test_a_trace_has_ops_uses_and_steps(void)
{
	char path[] = "/tmp/hr_test_run_XXXXXX";
	struct seen seen = { 0 };
	hr_value place, result;
	int file = mkstemp(path); /* a unique name */
	CHECK(file >= 0);
	close(file);
	unlink(path);
	open_session(0);
	CHECK_STATUS(HR_OK, hr_graph_create(&graph));
	CHECK_STATUS(HR_OK, hr_graph_enter(graph));
	hr_value y = chain(&place);
	CHECK_STATUS(HR_OK, hr_graph_leave());
	hr_value x = hr_value_keep(hr_full(HR_DTYPE_FLOAT32, HR_DIMS(256, 256), 1));
	CHECK_STATUS(HR_OK, hr_trace_start(path));
	CHECK_STATUS(HR_OK, hr_session_run(session, &(hr_feed){ place, x }, 1, &y, 1, &result, NULL, NULL));
	CHECK_STATUS(HR_OK, hr_trace_stop());
	hr_value_release(result);
	hr_value_release(x);
	count_events(path, &seen);
	unlink(path);
	CHECK_EQ(seen.begins, 4);
	CHECK_EQ(seen.ends, 4);
	CHECK_EQ(seen.reads, 2 + 1 + 2);
	CHECK_GE(seen.writes, 4); /* plus scratch */
	CHECK_EQ(seen.steps, 1);
	CHECK_EQ(seen.step_ends, 1);
	CHECK_STATUS(HR_OK, hr_graph_destroy(graph));
	close_session();
}

/* ---- between devices ---- */

static void test_contents_go_to_another_session(void)
{
	hr_session other;
	hr_session_options options;
	static const char *const devices[] = { "GPU:0", "CPU:0" };
	open_session(0);
	for (int i = 0; i < 2; i++) {
		float numbers[1000];
		hr_session_options_init(&options);
		options.device = devices[i];
		CHECK_STATUS(HR_OK, hr_session_create(&options, &other));
		hr_value x = hr_value_keep(hr_full(HR_DTYPE_FLOAT32, HR_DIMS(4, 250), 6));
		hr_value there = hr_value_copy_to_session(hr_slice(x, 0, 1, 3), other);
		CHECK_EQ(hr_value_count(there), 750);
		hr_value empty = hr_value_copy_to_session(hr_full(HR_DTYPE_FLOAT32, HR_DIMS(0, 3), 1), other);
		CHECK_EQ(hr_value_count(empty), 0);
		hr_value_release(empty);
		hr_value_release(x);
		CHECK(!hr_neg(hr_value_keep(there)).id); /* the value is on the other device */
		CHECK_STATUS(HR_OK, hr_session_enter(other));
		CHECK_STATUS(HR_OK, hr_value_fetch(hr_neg(there), numbers, 750 * sizeof *numbers));
		CHECK_EQ(numbers[749], -6.0f);
		hr_value_release(there);
		CHECK_STATUS(HR_OK, hr_session_leave());
		CHECK_STATUS(HR_OK, hr_session_destroy(other));
		CHECK(!hr_value_copy_to_session(hr_full(HR_DTYPE_FLOAT32, HR_DIMS(2), 1), other).id);
		CHECK_EQ((int)hr_last_status(), (int)HR_INVALID_HANDLE);
	}
	close_session();
}

/* A copy has the contents at the time of the call, whatever overwrites the source afterwards. */
static void test_a_copy_is_of_what_was_there(void)
{
	hr_session other;
	hr_session_options options;
	static float numbers[256 * 256];
	open_session(0);
	hr_session_options_init(&options);
	options.device = "GPU:0";
	CHECK_STATUS(HR_OK, hr_session_create(&options, &other));
	hr_variable w = hr_get_variable("w", HR_DTYPE_FLOAT32, HR_DIMS(256, 256), HR_FULL(1));
	CHECK_STATUS(HR_OK, hr_session_enter(other));
	hr_value busy = hr_value_keep(hr_random_normal(HR_DTYPE_FLOAT32, HR_DIMS(512, 512), 1));
	for (int i = 0; i < 5; i++) hr_value_release(hr_matmul(busy, busy));
	CHECK_STATUS(HR_OK, hr_session_leave());
	hr_value there = hr_value_copy_to_session(hr_variable_read(w), other);
	CHECK_EQ(hr_assign_add(w, hr_full(HR_DTYPE_FLOAT32, HR_DIMS(256, 256), 41)).id, HR_DONE.id);
	CHECK_STATUS(HR_OK, hr_session_enter(other));
	CHECK_STATUS(HR_OK, hr_value_fetch(there, numbers, sizeof numbers));
	for (int i = 0; i < 256 * 256; i++) CHECK_EQ(numbers[i], 1.0f);
	hr_value_release(busy);
	CHECK_STATUS(HR_OK, hr_session_leave());
	CHECK_STATUS(HR_OK, hr_session_destroy(other));
	close_session();
}

/* The allocator of a session must be on its device. */
static void test_an_allocator_of_another_device(void)
{
	hr_session other;
	hr_session_options options;
	open_session(0);
	hr_session_options_init(&options);
	options.device = "CPU:0";
	options.allocator = allocator;
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_session_create(&options, &other));
	CHECK_CONTAINS(hr_last_message(), "CPU:0");
	CHECK_CONTAINS(hr_last_message(), "GPU:0");
	close_session();
}

TEST_MAIN(T(test_a_copy_is_of_what_was_there), T(test_an_allocator_of_another_device), T(test_metadata_tells_of_each_op), T(test_allocated_and_peak_bytes_are_in_one_unit), T(test_the_log_of_a_run_that_ran_out_of_memory), T(test_the_log_of_a_run_may_have_allocations_only), T(test_a_trace_has_ops_uses_and_steps),
          T(test_runs_at_the_same_time_share_a_log), T(test_contents_go_to_another_session))
