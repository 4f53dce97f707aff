/* options.c - settings of the devices: defaults, parsing of the environment, and validation. */
#include <string.h>

#include "core/base/checked.h"
#include "core/base/text/settings.h"
#include "core/base/status.h"
#include "core/base/struct.h"
#include "core/base/text/text.h"
#include "core/device/internal.h"

#define MAX_EMULATED 8u
#define MAX_MEMORY (UINT64_C(1) << 46)
#define VARIABLE "HEADROOM_EMULATED"
#define CUDA_VARIABLE "HEADROOM_CUDA"
#define CUDA_PAGE_VARIABLE "HEADROOM_CUDA_PAGE"
#define REQUIRE_VARIABLE "HEADROOM_REQUIRE_CUDA"
#define LIMIT_VARIABLE "HEADROOM_LIMIT"

/* Default page size on a CUDA card. The cost of mapping is per page, whatever its size; memory moves between allocators, and is
 * stitched, in whole pages. */
#define CUDA_PAGE_BYTES (UINT64_C(2) << 20)
#define CUDA_MAX_PAGE_BYTES (UINT64_C(1) << 36)

void hr__emulated_defaults(hr_emulated_options *options)
{
	*options = (hr_emulated_options){
		.struct_size = sizeof *options,
		.devices = 1,
		.memory_bytes = UINT64_C(1) << 30,
		.page_bytes = UINT64_C(2) << 20,
	};
}

/* ---- text of the environment: key=value, key=value... ---- */

/* Uses its own message instead of that of hr__parse_size, because the environment may contain control characters. */
static hr_status read_size(const char *text, uint64_t *out)
{
	char quoted[HR__QUOTE_CAPACITY];
	if (hr__parse_size(text, out) == HR_OK) return HR_OK;
	return hr__fail(HR_INVALID_ARGUMENT, "%s is not a size; write it as 1073741824, 1GiB, 1.5G or 512MB, below 2^64",
	                hr__device_quote(text, quoted));
}

/* "2GB/s", "2G": a size with an optional "/s". */
static hr_status read_rate(char *text, uint64_t *out)
{
	size_t length = strlen(text);
	if (length >= 2 && strcmp(text + length - 2, "/s") == 0) text[length - 2] = 0;
	return read_size(text, out);
}

/* Parses decimal digits; returns the text after them, or NULL when there are none or they do not fit. */
static const char *read_digits(const char *text, uint64_t *out)
{
	uint64_t value = 0;
	if (*text < '0' || *text > '9') return NULL;
	for (; *text >= '0' && *text <= '9'; text++) {
		if (!hr__multiply(value, 10, &value) || !hr__add(value, (uint64_t)(*text - '0'), &value)) return NULL;
	}
	*out = value;
	return text;
}

static hr_status read_duration(const char *text, uint64_t *out)
{
	static const struct {
		const char *unit;
		uint64_t ns;
	} units[] = { { "ns", 1 }, { "us", 1000 }, { "ms", 1000000 }, { "s", 1000000000 } };
	char quoted[HR__QUOTE_CAPACITY];
	uint64_t number;
	const char *unit = read_digits(text, &number);
	for (size_t i = 0; unit && i < sizeof units / sizeof *units; i++) {
		if (strcmp(unit, units[i].unit) == 0 && hr__multiply(number, units[i].ns, out)) return HR_OK;
	}
	return hr__fail(HR_INVALID_ARGUMENT, "%s is not a duration; write it as 500ns, 5us, 2ms or 1s", hr__device_quote(text, quoted));
}

static hr_status read_count(const char *text, uint32_t *out)
{
	char quoted[HR__QUOTE_CAPACITY];
	uint64_t number;
	const char *end = read_digits(text, &number);
	if (!end || *end || number > UINT32_MAX) {
		return hr__fail(HR_INVALID_ARGUMENT, "%s is not a number of devices", hr__device_quote(text, quoted));
	}
	*out = (uint32_t)number;
	return HR_OK;
}

static hr_status read_setting(char *setting, hr_emulated_options *options)
{
	char quoted[HR__QUOTE_CAPACITY];
	char *value = strchr(setting, '=');
	if (!value) return hr__fail(HR_INVALID_ARGUMENT, "%s has no \"=\"", hr__device_quote(setting, quoted));
	*value++ = 0;
	if (strcmp(setting, "memory") == 0) return read_size(value, &options->memory_bytes);
	if (strcmp(setting, "page") == 0) return read_size(value, &options->page_bytes);
	if (strcmp(setting, "link") == 0) return read_rate(value, &options->link_bytes_per_s);
	if (strcmp(setting, "latency") == 0) return read_duration(value, &options->kernel_latency_ns);
	if (strcmp(setting, "devices") == 0) return read_count(value, &options->devices);
	return hr__fail(HR_INVALID_ARGUMENT, "%s is not a setting; the settings are memory, page, link, latency and devices",
	                hr__device_quote(setting, quoted));
}

hr_status hr__parse_emulated(const char *text, hr_emulated_options *options)
{
	hr_emulated_options read = *options;
	char setting[80], quoted[HR__QUOTE_CAPACITY];
	hr_status status = HR_OK;
	for (const char *at = text; *at && status == HR_OK;) {
		while (*at == ' ') at++;
		size_t length = strcspn(at, ",");
		if (length >= sizeof setting) {
			return hr__fail(HR_INVALID_ARGUMENT, "%s is too long for a setting", hr__device_quote(at, quoted));
		}
		memcpy(setting, at, length);
		setting[length] = 0;
		status = read_setting(setting, &read);
		at += length;
		if (*at == ',' && !*++at && status == HR_OK)
			status = hr__fail(HR_INVALID_ARGUMENT, "a setting is missing after the last \",\"");
	}
	if (status == HR_OK) *options = read;
	return status;
}

/* ---- validation ---- */

static hr_status bad_option(const char *device, const char *option, uint64_t value, const char *why)
{
	return hr__fail(HR_INVALID_ARGUMENT, "%s device: %s = %llu: %s", device, option, (unsigned long long)value, why);
}

hr_status hr__options_check_emulated(const hr_emulated_options *options)
{
	static const char device[] = "emulated";
	uint64_t page = options->page_bytes, memory = options->memory_bytes;
	if (options->devices > MAX_EMULATED) return bad_option(device, "devices", options->devices, "at most 8 can be emulated");
	if (!hr__is_power_of_two(page)) return bad_option(device, "page_bytes", page, "it must be a power of two");
	if (page < 65536 || page < hr__os_page_size()) {
		return bad_option(device, "page_bytes", page, "it must be at least 64 KiB and the host's page");
	}
	if (memory < page) return bad_option(device, "memory_bytes", memory, "it must be at least one page");
	if (memory > MAX_MEMORY) return bad_option(device, "memory_bytes", memory, "it must be at most 64 TiB");
	return HR_OK;
}

hr_status hr__options_check_simulated(const hr_simulated_options *options)
{
	static const char device[] = "simulated";
	uint64_t page = options->page_bytes, memory = options->memory_bytes;
	if (page && !hr__is_power_of_two(page)) return bad_option(device, "page_bytes", page, "it must be a power of two, or 0");
	if (page && page < 256) return bad_option(device, "page_bytes", page, "it must be at least 256, or 0");
	if (memory == 0 || memory < page) return bad_option(device, "memory_bytes", memory, "it must be at least one page");
	if (memory > MAX_MEMORY) return bad_option(device, "memory_bytes", memory, "it must be at most 64 TiB");
	return HR_OK;
}

hr_status hr__options_check_cuda(const hr_cuda_options *options)
{
	uint64_t page = options->page_bytes;
	if (!hr__is_power_of_two(page)) return bad_option("CUDA", "page_bytes", page, "it must be a power of two");
	if (page > CUDA_MAX_PAGE_BYTES) return bad_option("CUDA", "page_bytes", page, "it must be at most 64 GiB");
	return HR_OK;
}

/* ---- public functions ---- */

static hr_status read_switch(const char *text, bool *out)
{
	char quoted[HR__QUOTE_CAPACITY];
	bool on = strcmp(text, "1") == 0;
	if (!on && strcmp(text, "0") != 0) {
		return hr__fail(HR_INVALID_ARGUMENT, "%s is neither 0 nor 1", hr__device_quote(text, quoted));
	}
	*out = on;
	return HR_OK;
}

static hr_status read_cuda_enabled(hr_cuda_options *options)
{
	const char *text = hr__os()->environment(CUDA_VARIABLE);
	hr_status status = text ? read_switch(text, &options->enabled) : HR_OK;
	return status == HR_OK ? HR_OK : hr__fail_in(status, "in the environment variable " CUDA_VARIABLE);
}

static hr_status read_cuda_page(hr_cuda_options *options)
{
	hr_cuda_options read = *options;
	const char *text = hr__os()->environment(CUDA_PAGE_VARIABLE);
	hr_status status = text ? read_size(text, &read.page_bytes) : HR_OK;
	if (status == HR_OK) status = hr__options_check_cuda(&read);
	if (status != HR_OK) return hr__fail_in(status, "in the environment variable " CUDA_PAGE_VARIABLE);
	*options = read;
	return HR_OK;
}

static void cuda_defaults(hr_cuda_options *options)
{
	*options = (hr_cuda_options){ .struct_size = sizeof *options, .enabled = true, .page_bytes = CUDA_PAGE_BYTES };
}

static hr_status cuda_initial(hr_cuda_options *options)
{
	cuda_defaults(options);
	hr_status status = read_cuda_enabled(options);
	if (status == HR_OK) status = read_cuda_page(options);
	if (status != HR_OK) cuda_defaults(options);
	return status;
}

HR_API hr_status hr_cuda_options_init_sized(hr_cuda_options *options, size_t struct_size)
{
	hr_cuda_options initial;
	if (!options) return hr__fail(HR_INVALID_ARGUMENT, "hr_cuda_options_init: options is NULL");
	hr_status status = cuda_initial(&initial);
	hr__struct_init(&hr__struct_cuda_options, options, struct_size, &initial);
	return status;
}

void hr__options_devices_from_environment(hr_cuda_options *cuda, hr_emulated_options *emulated)
{
	hr__last before = hr__last_get();
	cuda_defaults(cuda);
	if (read_cuda_enabled(cuda) != HR_OK) hr__setting_ignored(CUDA_VARIABLE, &before);
	if (read_cuda_page(cuda) != HR_OK) hr__setting_ignored(CUDA_PAGE_VARIABLE, &before);
	if (hr_emulated_options_init(emulated) != HR_OK) hr__setting_ignored(VARIABLE, &before);
}

bool hr__cuda_is_required(void)
{
	const char *text = hr__os()->environment(REQUIRE_VARIABLE);
	return text && text[0] && strcmp(text, "0") != 0;
}

uint64_t hr__options_limit_from_environment(uint64_t page)
{
	hr__last before = hr__last_get();
	const char *text = hr__os()->environment(LIMIT_VARIABLE);
	uint64_t limit = UINT64_MAX;
	if (!text || !text[0]) return UINT64_MAX;
	hr_status status = read_size(text, &limit);
	if (page) limit = hr__align_down(limit, page);
	if (status == HR_OK && limit == 0) status = hr__fail(HR_BAD_LIMIT, "%.40s is below one page of the device, %llu bytes", text, (unsigned long long)page);
	if (status == HR_OK) return limit;
	hr__setting_ignored(LIMIT_VARIABLE, &before);
	return UINT64_MAX;
}

HR_API hr_status hr_cuda_configure(const hr_cuda_options *options)
{
	hr_cuda_options whole;
	hr__last before = hr__last_get();
	if (cuda_initial(&whole) != HR_OK) hr__last_set(&before); /* the options that are given count, not the environment's */
	hr_status status = hr__struct_in(&hr__struct_cuda_options, "hr_cuda_configure", &whole, options);
	if (status == HR_OK) status = hr__options_check_cuda(&whole);
	return status == HR_OK ? hr__registry_set_cuda(&whole) : status;
}

static hr_status emulated_initial(hr_emulated_options *options)
{
	hr__emulated_defaults(options);
	const char *text = hr__os()->environment(VARIABLE);
	if (!text) return HR_OK;
	hr_emulated_options read = *options;
	hr_status status = hr__parse_emulated(text, &read);
	if (status == HR_OK) status = hr__options_check_emulated(&read);
	if (status != HR_OK) return hr__fail_in(status, "in the environment variable " VARIABLE);
	*options = read;
	return HR_OK;
}

HR_API hr_status hr_emulated_options_init_sized(hr_emulated_options *options, size_t struct_size)
{
	hr_emulated_options initial;
	if (!options) return hr__fail(HR_INVALID_ARGUMENT, "hr_emulated_options_init: options is NULL");
	hr_status status = emulated_initial(&initial);
	hr__struct_init(&hr__struct_emulated_options, options, struct_size, &initial);
	return status;
}

HR_API hr_status hr_emulated_configure(const hr_emulated_options *options)
{
	hr_emulated_options whole;
	hr__last before = hr__last_get();
	if (emulated_initial(&whole) != HR_OK) hr__last_set(&before);
	hr_status status = hr__struct_in(&hr__struct_emulated_options, "hr_emulated_configure", &whole, options);
	if (status == HR_OK) status = hr__options_check_emulated(&whole);
	return status == HR_OK ? hr__registry_set_emulated(&whole) : status;
}

HR_API void hr_simulated_options_init_sized(hr_simulated_options *options, size_t struct_size)
{
	if (!options) return;
	const hr_simulated_options initial = {
		.struct_size = sizeof initial,
		.memory_bytes = UINT64_C(1) << 40,
		.page_bytes = UINT64_C(2) << 20,
		.link_bytes_per_s = UINT64_C(55000000000),
	};
	hr__struct_init(&hr__struct_simulated_options, options, struct_size, &initial);
}

HR_API hr_status hr_simulated_configure(const hr_simulated_options *options)
{
	hr_simulated_options whole;
	hr_simulated_options_init(&whole);
	hr_status status = hr__struct_in(&hr__struct_simulated_options, "hr_simulated_configure", &whole, options);
	if (status == HR_OK) status = hr__options_check_simulated(&whole);
	return status == HR_OK ? hr__registry_set_simulated(&whole) : status;
}
