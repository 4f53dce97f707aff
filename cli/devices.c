/* devices.c - `headroom devices`: the logical devices of this machine, their memory and limits, and why there is no CUDA device. */
#include <stdio.h>
#include <string.h>

#include "core/base/text/json.h"
#include "core/base/text/text.h"
#include "command.h"
#include "core/device/device.h"
#include "headroom_runtime.h"
#include "terminal/output.h"
#include "terminal/term.h"

enum { JSON };

static const hr__option options[] = {
	[JSON] = { "--json", NULL, "print one JSON object instead of a table" },
	{ NULL, NULL, NULL },
};

static hr_status info_at(uint32_t index, hr_device_info *info)
{
	hr_device device;
	*info = (hr_device_info){ .struct_size = sizeof *info };
	hr_status status = hr_device_at(index, &device);
	return status ? status : hr_device_get_info(device, info);
}

/* ---- JSON ---- */

static void write_device(hr__json *json, const hr_device_info *info)
{
	hr__json_object(json);
	hr__json_field_string(json, "name", info->name);
	hr__json_field_string(json, "full_name", info->full_name);
	hr__json_field_string(json, "backend", info->backend);
	hr__json_field_string(json, "description", info->description);
	hr__json_field_uint(json, "physical_index", info->physical_index);
	hr__json_field_uint(json, "logical_count", info->logical_count);
	hr__json_field_uint(json, "total_bytes", info->total_bytes);
	hr__json_field_uint(json, "free_bytes", info->free_bytes);
	hr__json_field_uint(json, "limit_bytes", info->limit_bytes);
	hr__json_field_uint(json, "reserved_bytes", info->reserved_bytes);
	hr__json_field_uint(json, "other_bytes", info->other_bytes);
	hr__json_field_uint(json, "page_bytes", info->page_bytes);
	hr__json_end_object(json);
}

/* "cuda": null if there is a CUDA device, else the reason why there is none. */
static void write_cuda(hr__json *json)
{
	hr__json_key(json, "cuda");
	if (hr_cuda_check() == HR_OK) hr__json_null(json);
	else hr__json_string(json, hr_last_message());
}

/* Whether a CUDA card computes the runtime's ops itself; the message says why not. */
static bool computes(const char *device)
{
	hr_session session;
	hr_session_options session_options;
	hr_session_options_init(&session_options);
	session_options.device = device;
	if (hr_session_create(&session_options, &session)) return false;
	bool does = hr_session_compute_check(session) == HR_OK;
	hr_session_destroy(session);
	return does;
}

/* "compute": null if the first CUDA device computes all ops of the runtime, or there is none; else the reason. */
static void write_compute(hr__json *json, uint32_t count)
{
	hr_device_info info;
	hr__json_key(json, "compute");
	for (uint32_t i = 0; i < count; i++) {
		if (info_at(i, &info) || strcmp(info.backend, "cuda") != 0) continue;
		if (computes(info.name)) break;
		hr__json_string(json, hr_last_message());
		return;
	}
	hr__json_null(json);
}

static hr_status print_json(uint32_t count)
{
	hr__json json;
	hr_device_info info;
	hr_status status = HR_OK;
	hr__output_json_begin(&json);
	hr__json_object(&json);
	hr__json_key(&json, "devices");
	hr__json_array(&json);
	for (uint32_t i = 0; !status && i < count; i++) {
		status = info_at(i, &info);
		if (!status) write_device(&json, &info);
	}
	hr__json_end_array(&json);
	if (!status) write_cuda(&json);
	if (!status) write_compute(&json, count);
	hr__json_end_object(&json);
	hr__output_json_end(&json);
	return status;
}

/* ---- table ---- */

#define DESCRIPTION_INDENT 7
#define TABLE_COLUMNS 80 /* without the description */
#define ROW "%-6s%s %-9s %10s %10s %10s %10s %10s %8s"

/* Prints the description beside the row if it fits, else below. */
static void print_description(const char *text)
{
	if (hr__term_table_width() >= TABLE_COLUMNS + 2 + (int)strlen(text)) {
		printf("  %s\n", text);
		return;
	}
	printf("\n%*s", DESCRIPTION_INDENT, "");
	hr__term_wrap(text, DESCRIPTION_INDENT, DESCRIPTION_INDENT, hr__term_table_width());
}

static void print_device(const hr_device_info *info)
{
	char total[16], free_now[16], limit[16], reserved[16], other[16], page[16];
	printf("%s" ROW, hr__style(stdout, HR__STYLE_STRONG), info->name, hr__style(stdout, HR__STYLE_PLAIN), info->backend,
	       hr__format_size(info->total_bytes, total, sizeof total), hr__format_size(info->free_bytes, free_now, sizeof free_now),
	       hr__format_size(info->limit_bytes, limit, sizeof limit), hr__format_size(info->reserved_bytes, reserved, sizeof reserved),
	       hr__format_size(info->other_bytes, other, sizeof other),
	       info->page_bytes ? hr__format_size(info->page_bytes, page, sizeof page) : "none");
	print_description(info->description);
}

static void print_cuda(void)
{
	hr_device_info first;
	char text[1024];
	if (hr_cuda_check() == HR_OK) return;
	int length = snprintf(text, sizeof text, "\nCUDA: %s", hr_last_message());
	if (length > 0 && (size_t)length < sizeof text && info_at(0, &first) == HR_OK && strcmp(first.backend, "emulated") == 0)
		snprintf(text + length, sizeof text - (size_t)length, "; %s is emulated", first.name);
	hr__term_wrap(text, 0, 0, hr__term_table_width());
}

/* Also if the first CUDA device leaves ops of the runtime to the host. */
static void print_compute(uint32_t count)
{
	hr_device_info info;
	char text[1024];
	for (uint32_t i = 0; i < count; i++) {
		if (info_at(i, &info) || strcmp(info.backend, "cuda") != 0) continue;
		if (computes(info.name)) return;
		snprintf(text, sizeof text, "\nRuntime: %s", hr_last_message());
		hr__term_wrap(text, 0, 0, hr__term_table_width());
		return;
	}
}

static hr_status print_table(uint32_t count)
{
	hr_device_info info;
	printf("%s" ROW "%s\n", hr__style(stdout, HR__STYLE_HEADING), "device", "", "backend", "total", "free", "limit", "reserved",
	       "other use", "page", hr__style(stdout, HR__STYLE_PLAIN));
	for (uint32_t i = 0; i < count; i++) {
		hr_status status = info_at(i, &info);
		if (status) return status;
		print_device(&info);
	}
	print_cuda();
	print_compute(count);
	return HR_OK;
}

void hr__note_emulated(void)
{
	hr_cuda_options cuda;
	if (hr_cuda_options_init(&cuda) == HR_OK && !cuda.enabled) return; /* disabled on purpose */
	if (hr__cuda_is_required() || hr_cuda_check() == HR_OK) return;
	hr__complain("GPU:0 is an emulated device, in host memory. CUDA: %s. HEADROOM_REQUIRE_CUDA=1 refuses to go on without a card", hr_last_message());
}

static int run(const hr__arguments *arguments)
{
	hr_device device;
	uint32_t count = hr_device_count();
	/* A CPU and a simulated device always exist. A count of 0 means that they could not be opened, and hr_device_find returns the
	 * reason. */
	if (count == 0 && hr_device_find("CPU:0", &device) != HR_OK) return hr__complain_last();
	hr_status status = hr__arguments_has(arguments, JSON) ? print_json(count) : print_table(count);
	int exit_status = status ? hr__complain_last() : HR__EXIT_DONE;
	return hr_shutdown() == HR_OK ? exit_status : hr__complain_last();
}

const hr__command hr__command_devices = {
	.name = "devices",
	.operands = "",
	.summary = "the devices of this machine, their memory and limits",
	.about =
		"Lists the logical devices: GPUs first, then the host, then the simulated device on which traces are replayed. Where "
		"there is no GPU, GPU:0 is an emulated device in host memory, and the last line says why no CUDA device was found; "
		"where there is one, the emulated device is EMU:0. HEADROOM_EMULATED sets its memory, page size and link speed, and the "
		"number of such devices. HEADROOM_CUDA=0 acts as if there were no CUDA device; HEADROOM_CUDA_PAGE sets the page size of "
		"CUDA devices. HEADROOM_REQUIRE_CUDA=1 keeps emulated devices from standing in for GPUs; HEADROOM_LIMIT=SIZE is the "
		"most that is taken from each GPU.\n\n"
		"\"other use\" is memory taken by other processes, or by CUDA itself in this one.",
	.examples = "headroom devices\n"
				"headroom devices --json\n"
				"HEADROOM_EMULATED=memory=8GiB,devices=2 headroom devices\n"
				"HEADROOM_CUDA=0 headroom devices",
	.options = options,
	.run = run,
};
