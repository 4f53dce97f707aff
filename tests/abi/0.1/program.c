/* program.c - a program of version 0.1. It is compiled against the headers of that version, in include/, and must run with every
 * later library of the same major version. Neither it nor those headers ever change.
 *
 *     program DIRECTORY    records to DIRECTORY */
#include <headroom.h>
#include <headroom_analysis.h>
#include <headroom_backend.h>
#include <headroom_record.h>
#include <headroom_runtime.h>
#include <stdio.h>
#include <stdlib.h>

static int failures;

static void check(int good, int line, const char *what)
{
	if (good) return;
	fprintf(stderr, "program.c:%d: %s (last message: %s)\n", line, what, hr_last_message());
	failures++;
}
#define CHECK(condition) check((condition), __LINE__, #condition)
#define OK(call) CHECK((call) == HR_OK)

/* ---- devices and streams ---- */

static hr_device gpu;

static void devices(void)
{
	hr_cuda_options cuda;
	hr_emulated_options emulated;
	hr_simulated_options simulated;
	hr_device_info info;
	hr_stream stream;
	OK(hr_cuda_options_init(&cuda));
	cuda.enabled = false;
	OK(hr_cuda_configure(&cuda));
	OK(hr_emulated_options_init(&emulated));
	emulated.memory_bytes = HR_MIB(64);
	emulated.page_bytes = HR_KIB(64);
	OK(hr_emulated_configure(&emulated));
	hr_simulated_options_init(&simulated);
	OK(hr_simulated_configure(&simulated));
	OK(hr_device_set_logical("GPU:0", (uint64_t[]){ HR_MIB(48) }, 1));
	OK(hr_device_find("GPU:0", &gpu));
	hr_device_info_init(&info);
	OK(hr_device_get_info(gpu, &info));
	CHECK(info.struct_size == sizeof info && strstr(info.name, "GPU:0") != NULL && hr_device_is_emulated(gpu));
	OK(hr_stream_create(gpu, &stream));
	OK(hr_stream_wait_stream(gpu, stream, HR_STREAM_DEFAULT));
	OK(hr_stream_synchronize(gpu, stream));
	OK(hr_stream_destroy(gpu, stream));
}

/* ---- allocators, blocks, statistics ---- */

static bool count_chunk(void *context, const hr_chunk_view *chunk)
{
	*(int64_t *)context += chunk->kind == HR_CHUNK_IN_USE;
	return true;
}

static void blocks(void)
{
	hr_allocator allocator;
	hr_allocator_options options;
	hr_allocation_info allocation;
	hr_region_info region;
	hr_stats stats;
	hr_stats_scope scope;
	hr_memory_info memory;
	hr_holder holder;
	size_t holders;
	int64_t in_use = 0;
	unsigned char bytes[16];
	void *block;
	char text[4096];

	hr_allocator_options_init(&options);
	options.limit_bytes = HR_MIB(8);
	OK(hr_allocator_create(gpu, &options, &allocator));
	OK(hr_stats_scope_begin(gpu));
	hr_request request = HR_REQUEST(100000);
	request.alignment = 4096;
	request.op = hr_name_intern("matmul");
	request.shape = hr_shape_intern((int64_t[]){ 250, 100 }, 2);
	request.dtype = HR_DTYPE_FLOAT32;
	OK(hr_alloc(allocator, &request, &block));
	CHECK((uintptr_t)block % 4096 == 0);
	OK(hr_stream_fill(gpu, block, 7, 100000, HR_STREAM_DEFAULT));
	OK(hr_stream_copy(gpu, bytes, block, sizeof bytes, HR_COPY_TO_HOST, HR_STREAM_DEFAULT));
	OK(hr_stream_synchronize(gpu, HR_STREAM_DEFAULT));
	CHECK(bytes[0] == 7 && bytes[15] == 7);
	hr_allocation_info_init(&allocation);
	OK(hr_allocation_get_info(allocator, block, &allocation));
	CHECK(allocation.address == block && allocation.op == request.op);
	hr_region_info_init(&region);
	OK(hr_allocator_get_region(allocator, 0, &region));
	OK(hr_allocator_visit(allocator, 0, count_chunk, &in_use));
	CHECK(in_use == 1);
	OK(hr_allocator_get_holders(allocator, HR_BY_OP, &holder, 1, &holders));
	CHECK(holders == 1 && holder.name == request.op && holder.count == 1);
	hr_stats_init(&stats);
	OK(hr_allocator_get_stats(allocator, &stats));
	CHECK(stats.num_allocs == 1 && stats.bytes_requested == 100000 && hr_get_bytes_in_use(0) == stats.bytes_in_use);
	CHECK(hr_stats_format(&stats, text, sizeof text) > 0 && hr_stats_format_json(&stats, text, sizeof text) > 0);
	hr_memory_info_init(&memory);
	OK(hr_get_memory_info("GPU:0", &memory));
	CHECK((int64_t)memory.current == stats.bytes_in_use);
	OK(hr_allocation_record_stream(allocator, block, HR_STREAM_DEFAULT));
	OK(hr_free(allocator, block, HR_STREAM_DEFAULT));
	hr_stats_scope_init(&scope);
	OK(hr_stats_scope_end(gpu, &scope));
	CHECK((int64_t)scope.peak_bytes >= 100000);
	OK(hr_allocator_check(allocator));
	OK(hr_reset_memory_stats("GPU:0"));
	OK(hr_allocator_destroy(allocator));
	CHECK(hr_free(allocator, block, HR_STREAM_DEFAULT) == HR_INVALID_HANDLE);
}

static hr_status custom_alloc(void *state, size_t bytes, size_t alignment, hr_stream stream, void **out)
{
	(void)state, (void)stream;
	*out = aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
	return *out ? HR_OK : HR_OUT_OF_MEMORY;
}

static hr_status custom_free(void *state, void *address, size_t bytes, hr_stream stream)
{
	(void)state, (void)bytes, (void)stream;
	free(address);
	return HR_OK;
}

static void custom(void)
{
	hr_custom_allocator table;
	hr_allocator_options options;
	hr_allocator allocator;
	hr_device cpu;
	void *block;
	hr_custom_allocator_init(&table);
	table.alloc = custom_alloc;
	table.free = custom_free;
	OK(hr_allocator_register("mine", &table, NULL));
	OK(hr_device_find("CPU:0", &cpu));
	hr_allocator_options_init(&options);
	options.kind = "mine";
	OK(hr_allocator_create(cpu, &options, &allocator));
	OK(hr_alloc_bytes(allocator, 1000, &block));
	OK(hr_free(allocator, block, HR_STREAM_HOST));
	OK(hr_allocator_destroy(allocator));
}

/* ---- out of memory ---- */

static void on_oom(void *user, hr_oom_report report)
{
	*(hr_oom_report *)user = report;
}

static void out_of_memory(void)
{
	hr_allocator allocator;
	hr_allocator_options options;
	hr_oom_report told = { 0 }, last;
	hr_verdict verdict;
	hr_request request = HR_REQUEST(HR_MIB(5));
	void *block, *more;
	char text[16384];
	hr_allocator_options_init(&options);
	options.limit_bytes = HR_MIB(8);
	options.oom.report_allocations_on_oom = true;
	options.oom.callback = on_oom;
	options.oom.user = &told;
	OK(hr_allocator_create(gpu, &options, &allocator));
	OK(hr_name_scope_push("model/layer1"));
	OK(hr_alloc(allocator, &request, &block));
	OK(hr_name_scope_pop());
	hr_verdict_init(&verdict);
	OK(hr_allocator_would_fit(allocator, &request, &verdict));
	CHECK(hr_alloc(allocator, &request, &more) == HR_OUT_OF_MEMORY);
	OK(hr_oom_get_last(&last));
	CHECK(last.id == told.id && hr_oom_format_text(last, text, sizeof text) > 0 && strstr(text, "model/layer1") != NULL);
	CHECK(hr_oom_format_json(last, text, sizeof text) > 0 && hr_oom_format_log(last, text, sizeof text) > 0);
	hr_verdict_init(&verdict);
	OK(hr_oom_get_verdict(last, &verdict));
	OK(hr_free(allocator, block, HR_STREAM_DEFAULT));
	OK(hr_allocator_destroy(allocator));
}

/* ---- tensors ---- */

static double oldest(void *user, const hr_lms_candidate *candidate)
{
	(void)user, (void)candidate;
	return 1;
}

static void tensors(void)
{
	hr_lms_policy policy;
	hr_lms_options lms;
	hr_lms_stats stats;
	hr_allocator allocator;
	hr_allocator_options options;
	hr_tensor_options tensor_options;
	hr_tensor_info info;
	hr_tensor tensors[3];
	void *address;
	hr_lms_policy_init(&policy);
	policy.score = oldest;
	OK(hr_lms_policy_register("oldest", &policy, NULL));
	OK(hr_set_lms_enabled(true));
	hr_allocator_options_init(&options);
	options.limit_bytes = HR_MIB(2);
	OK(hr_allocator_create(gpu, &options, &allocator));
	OK(hr_lms_options_init(&lms));
	lms.enabled = true;
	lms.policy = "oldest";
	OK(hr_lms_configure(allocator, &lms));
	hr_tensor_options_init(&tensor_options);
	tensor_options.bytes = HR_MIB(1);
	for (int i = 0; i < 3; i++) { /* two fit */
		OK(hr_tensor_create(allocator, &tensor_options, &tensors[i]));
		hr_pin pin = { tensors[i], HR_WRITE };
		OK(hr_tensor_pin_all(&pin, 1, HR_STREAM_DEFAULT));
		OK(hr_tensor_get_address(tensors[i], &address));
		OK(hr_stream_fill(gpu, address, (unsigned char)(i + 1), HR_MIB(1), HR_STREAM_DEFAULT));
		OK(hr_tensor_unpin_all(&pin, 1, HR_STREAM_DEFAULT));
	}
	for (int i = 0; i < 3; i++) {
		OK(hr_tensor_pin(tensors[i], HR_READ, HR_STREAM_HOST));
		OK(hr_tensor_get_address(tensors[i], &address));
		CHECK(((unsigned char *)address)[HR_MIB(1) - 1] == i + 1);
		OK(hr_tensor_unpin(tensors[i], HR_STREAM_HOST));
	}
	hr_tensor_info_init(&info);
	OK(hr_tensor_get_info(tensors[2], &info));
	CHECK(info.state == HR_TENSOR_SYNCED || info.state == HR_TENSOR_INACTIVE);
	hr_lms_stats_init(&stats);
	OK(hr_lms_get_stats(allocator, &stats));
	CHECK(stats.num_tensors == 3);
	for (int i = 0; i < 3; i++) OK(hr_tensor_destroy(tensors[i]));
	OK(hr_allocator_destroy(allocator));
	OK(hr_set_lms_enabled(false));
}

/* ---- runtime and recording ---- */

static hr_status twice(void *context, const hr_value *ins, size_t in_count, hr_value *outs, size_t out_count)
{
	(void)context, (void)in_count, (void)out_count;
	outs[0] = hr_add(ins[0], ins[0]);
	return HR_OK;
}

static void graphs(void)
{
	hr_session session;
	hr_session_options options;
	hr_run_options run;
	hr_run_metadata metadata;
	hr_graph graph;
	hr_function function;
	hr_optimizer optimizer;
	hr_variable weights[1];
	hr_value result, out;
	float numbers[3] = { 1, 2, 3 }, sum[3] = { 0 };
	hr_session_options_init(&options);
	options.device = "GPU:0";
	OK(hr_session_create(&options, &session));
	OK(hr_session_enter(session));
	OK(hr_graph_create(&graph));
	OK(hr_graph_enter(graph));
	hr_value a = hr_named_placeholder("a", HR_DTYPE_FLOAT32, HR_DIMS(3));
	hr_value b = hr_scale(a, 2, 1);
	OK(hr_graph_leave());
	hr_feed feed = hr_feed_from_array(session, a, numbers, sizeof numbers);
	hr_run_options_init(&run);
	run.trace = HR_RUN_TRACE_OPS;
	hr_run_metadata_init(&metadata);
	OK(hr_session_run(session, &feed, 1, &b, 1, &result, &run, &metadata));
	CHECK(metadata.op_count >= 1);
	hr_run_metadata_free(&metadata);
	OK(hr_value_fetch(result, sum, sizeof sum));
	CHECK(sum[0] == 3 && sum[1] == 5 && sum[2] == 7);

	hr_value x = hr_value_keep(hr_constant(HR_DTYPE_FLOAT32, HR_DIMS(3), numbers));
	OK(hr_function_create("twice", twice, NULL, &function));
	OK(hr_function_call(function, &x, 1, &out, 1));
	OK(hr_value_fetch(out, sum, sizeof sum));
	CHECK(sum[2] == 6);
	OK(hr_function_destroy(function));

	weights[0] = hr_get_variable("w", HR_DTYPE_FLOAT32, HR_DIMS(3), HR_FULL(1));
	OK(hr_tape_begin());
	hr_value loss = hr_value_keep(hr_reduce_sum(hr_mul(x, hr_variable_read(weights[0])), HR_ALL_AXES, false));
	hr_optimizer_init(&optimizer, HR_SGD);
	optimizer.learning_rate = 1;
	CHECK(hr_minimize(&optimizer, loss, weights, 1).id != 0);
	OK(hr_tape_end());
	OK(hr_value_fetch(hr_variable_read(weights[0]), sum, sizeof sum));
	CHECK(sum[0] == 0 && sum[1] == -1 && sum[2] == -2);
	hr_value_release(loss);
	hr_value_release(x);
	OK(hr_session_leave());
	OK(hr_session_destroy(session));
	OK(hr_graph_destroy(graph));
}

static bool count_bytes(void *context, const char *bytes, size_t length)
{
	(void)bytes;
	*(size_t *)context += length;
	return true;
}

static void recording(const char *directory)
{
	hr_profiler_options options;
	hr_profile_options view;
	char file[4096];
	size_t printed = 0;
	OK(hr_analysis_register());
	OK(hr_profiler_options_init(&options));
	hr_frame frame = { .function = hr_name_intern("recording"), .line = 1 };
	OK(hr_profiler_start(directory, &options));
	hr_stack before = hr_stack_set(hr_stack_intern(&frame, 1));
	graphs();
	hr_stack_set(before);
	OK(hr_trace_mark("end", 1));
	OK(hr_profiler_stop());
	CHECK(hr_profiler_get_last_file(file, sizeof file) > 0);
	OK(hr_profile_options_init_preset(&view, "time_and_memory"));
	OK(hr_profile_report(file, &view, HR_PROFILE_TEXT, count_bytes, &printed));
	CHECK(printed > 100);
}

int main(int argc, char **argv)
{
	if (argc != 2) return 2;
	devices();
	blocks();
	custom();
	out_of_memory();
	tensors();
	recording(argv[1]);
	OK(hr_shutdown());
	return failures != 0;
}
