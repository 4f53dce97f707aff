/* oom_report.c - a training step that does not fit, and the report on it.
 *
 *     oom_report            the report, as text
 *     oom_report --log      only the allocation log, as a JSON array; read it as in examples/read_log.py
 *     oom_report --json     the whole report as JSON; `headroom oom FILE` prints it
 *
 * Any program that uses Headroom prints the same report with HEADROOM_OOM_REPORT=stderr in its environment. */
#include <headroom.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, hr_last_message());
	return 1;
}

/* A float32 tensor, attributed to the thread's scope and the given op. */
static hr_status tensor(hr_allocator allocator, const char *op, const char *tag, int64_t rows, int64_t columns, void **out)
{
	const int64_t dims[] = { rows, columns };
	hr_request request = HR_REQUEST((size_t)rows * (size_t)columns * sizeof(float));
	request.op = hr_name_intern(op);
	request.tag = hr_name_intern(tag);
	request.shape = hr_shape_intern(dims, 2);
	request.dtype = HR_DTYPE_FLOAT32;
	return hr_alloc(allocator, &request, out);
}

/* Allocates weights and an activation for each layer until memory runs out. */
static hr_status train(hr_allocator allocator)
{
	for (int layer = 0; layer < 1000; layer++) {
		char scope[32];
		void *weights, *activation, *scratch;
		snprintf(scope, sizeof scope, "layer_%d", layer);
		hr_name_scope_push(scope);
		hr_status status = tensor(allocator, "dense/kernel", "weights", 1024, 1024, &weights);
		if (!status) status = tensor(allocator, "MatMul", "scratch", 2048, 1024, &scratch);
		if (!status) status = tensor(allocator, "Relu", "activations", 4096, 1024, &activation);
		if (!status) status = hr_free(allocator, scratch, HR_STREAM_DEFAULT);
		hr_name_scope_pop();
		if (status) return status;
	}
	return HR_OK;
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	hr_device device;
	if (hr_device_find("GPU:0", &device) != HR_OK) return fail("GPU:0");

	hr_allocator_options options;
	hr_allocator_options_init(&options);
	options.limit_bytes = 256 << 20;
	options.oom.report_allocations_on_oom = true;
	options.oom.allocation_log_buffer_size = 100;
	options.oom.allocation_log_sampling_rate = 1.0;      /* 0.1 logs a tenth of all operations, chosen at random */
	options.oom.allocation_log_allocations_only = true; /* so that every entry of the log is an allocation */
	hr_allocator allocator;
	if (hr_allocator_create(device, &options, &allocator) != HR_OK) return fail("an allocator");

	hr_oom_report report;
	if (train(allocator) != HR_OUT_OF_MEMORY) return fail("it was to run out of memory");
	if (hr_oom_get_last(&report) != HR_OK) return fail("no report");

	size_t (*format)(hr_oom_report, char *, size_t) = hr_oom_format_text;
	if (!strcmp(what, "--log")) format = hr_oom_format_log;
	if (!strcmp(what, "--json")) format = hr_oom_format_json;
	size_t length = format(report, NULL, 0);
	char *text = malloc(length + 1);
	if (!text) return 1;
	format(report, text, length + 1);
	puts(text);
	free(text);
	if (hr_allocator_destroy_all(allocator) != HR_OK) return fail("closing"); /* frees the remaining blocks too */
	return hr_shutdown() == HR_OK ? 0 : fail("the end");
}
