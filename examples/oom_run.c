/* oom_run.c - a run that needs more memory than there is, and the allocation log in its metadata.
 *
 *     oom_run               the error and the log; then again with a tenth of the operations logged: the log reaches further back
 *     oom_run --log         only the log of the first run, a JSON array: `oom_run --log | python3 examples/read_log.py`
 *
 * The options of a run apply to that run, whatever the allocator's options are. The whole report, with holders and a verdict, is
 * available as well: see examples/oom_report.c. */
#include <headroom.h>
#include <headroom_runtime.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LAYERS 1000

static int fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, hr_last_message());
	return 1;
}

/* The gradient of the first weights needs the output of every layer, 16 KiB each, until it is computed. */
static hr_value build(void)
{
	hr_value weights[LAYERS], gradient;
	hr_value h = hr_random_normal(HR_DTYPE_FLOAT32, HR_DIMS(64, 64), 1);
	for (int i = 0; i < LAYERS; i++) {
		char scope[32];
		snprintf(scope, sizeof scope, "layer_%d", i);
		hr_name_scope_push(scope);
		weights[i] = hr_scale(hr_random_normal(HR_DTYPE_FLOAT32, HR_DIMS(64, 64), 2), 0.2, 0);
		h = hr_gelu(hr_matmul(h, weights[i]));
		hr_name_scope_pop();
	}
	return hr_gradients(h, weights, 1, &gradient) == HR_OK ? gradient : HR_NO_VALUE;
}

/* A session with a memory limit of 16 MiB. */
static hr_status open_session(hr_session *out)
{
	hr_device device;
	hr_allocator_options allocator_options;
	hr_session_options options;
	hr_session_options_init(&options);
	options.device = "GPU:0";
	hr_allocator_options_init(&allocator_options);
	allocator_options.limit_bytes = 16 << 20;
	hr_status status = hr_device_find(options.device, &device);
	if (!status) status = hr_allocator_create(device, &allocator_options, &options.allocator);
	return status ? status : hr_session_create(&options, out);
}

/* Runs the graph with a log of at most 100 operations, which is then in [metadata]. */
static int run_out(hr_session session, hr_value fetch, double sampling_rate, hr_run_metadata *metadata)
{
	hr_value out;
	hr_run_options options;
	hr_run_options_init(&options);
	options.report_allocations_on_oom = true;
	options.allocation_log_buffer_size = 100;
	options.allocation_log_sampling_rate = sampling_rate;
	options.allocation_log_allocations_only = true; /* read_log.py prints every entry as an allocation */
	if (hr_session_run(session, NULL, 0, &fetch, 1, &out, &options, metadata) != HR_OUT_OF_MEMORY)
		return fail("it was to run out of memory");
	return metadata->allocation_log ? 0 : fail("there is no log");
}

/* ---- parsing the log without a JSON library: entries are flat, and only shapes have brackets ---- */

static void field(const char *entry, const char *name, char *out, size_t capacity)
{
	char key[32];
	size_t length = 0;
	bool in_brackets = false;
	snprintf(key, sizeof key, "\"%s\":", name);
	const char *at = strstr(entry, key);
	for (at = at ? at + strlen(key) : ""; *at && *at != '}' && (in_brackets || *at != ',') && length < capacity - 1; at++) {
		if (*at == '[' || *at == ']') in_brackets = *at == '[';
		if (*at != '"') out[length++] = *at;
	}
	out[length] = 0;
}

static void print_log(const char *log)
{
	char shape[64], dtype[16], op_name[64], time[40], age_us[24];
	int count = 0, number = 0;
	for (const char *entry = strchr(log, '{'); entry; entry = strchr(entry + 1, '{')) count++;
	field(log, "age_us", age_us, sizeof age_us);
	printf("Allocation log: %d operations, from %.1f ms before the error on; the last of them:\n", count,
	       strtod(age_us, NULL) / 1000);
	for (const char *entry = strchr(log, '{'); entry; entry = strchr(entry + 1, '{')) {
		if (++number <= count - 6) continue;
		field(entry, "shape", shape, sizeof shape);
		field(entry, "dtype", dtype, sizeof dtype);
		field(entry, "op_name", op_name, sizeof op_name);
		field(entry, "time", time, sizeof time);
		printf("  Tensor Shape: %s, Dtype: %s, Operation: %s, Time: %s\n", shape, dtype, op_name, time);
	}
}

static int print_run(hr_session session, hr_value fetch, double sampling_rate, hr_run_metadata *metadata)
{
	printf("sampling rate %.1f\n", sampling_rate);
	if (run_out(session, fetch, sampling_rate, metadata)) return 1;
	printf("OOM Error: %s\n", hr_last_message());
	print_log(metadata->allocation_log);
	return 0;
}

int main(int argc, char **argv)
{
	hr_graph graph;
	hr_session session;
	hr_run_metadata metadata;
	hr_run_metadata_init(&metadata);
	if (hr_graph_create(&graph) != HR_OK || open_session(&session) != HR_OK || hr_graph_enter(graph) != HR_OK) return fail("a session");
	hr_value gradient = build();
	hr_graph_leave();
	if (!gradient.id) return fail("the graph");

	if (argc > 1 && !strcmp(argv[1], "--log")) {
		if (run_out(session, gradient, 1.0, &metadata)) return 1;
		puts(metadata.allocation_log);
	} else if (print_run(session, gradient, 1.0, &metadata) || print_run(session, gradient, 0.1, &metadata)) {
		return 1;
	}

	hr_run_metadata_free(&metadata);
	if (hr_session_destroy(session) != HR_OK || hr_graph_destroy(graph) != HR_OK) return fail("closing");
	return hr_shutdown() == HR_OK ? 0 : fail("the end");
}
