/* arguments.c - parses "--profile_options=profile_steps=1,10,100" in the arguments of a program. */
#include <string.h>

#include "core/base/status.h"
#include "core/base/struct.h"
#include "core/base/text/text.h"
#include "core/record/profiler.h"
#include "core/trace/trace.h"

#define ARGUMENT "--profile_options"
#define SETTINGS_BYTES 1024

/* ---- settings ---- */

/* Reads a number at [*at] and advances past it. False if there is no number, or it is 0 or above 2^63. */
static bool read_number(const char **at, uint64_t *out)
{
	uint64_t value = 0;
	const char *from = *at;
	for (; **at >= '0' && **at <= '9'; ++*at) {
		if (value > (UINT64_MAX >> 1) / 10 - 1) return false;
		value = value * 10 + (uint64_t)(**at - '0');
	}
	*out = value;
	return *at != from && value > 0;
}

static bool read_range(const char **at, hr_profiler_steps *out)
{
	if (!read_number(at, &out->first)) return false;
	out->last = out->first;
	if (**at != '-') return true;
	++*at;
	return read_number(at, &out->last) && out->last >= out->first;
}

hr_status hr__profiler_parse_steps(const char *text, hr_profiler_options *options)
{
	hr_profiler_options parsed = *options;
	const char *at = text;
	parsed.step_count = 0;
	for (;;) {
		hr_profiler_steps range;
		if (!read_range(&at, &range) || (*at && *at != ','))
			return hr__fail(HR_INVALID_ARGUMENT, "\"%.200s\" is not a list of steps such as 1,10,100-103; the first step is 1", text);
		if (parsed.step_count == HR_PROFILER_STEPS_MAX)
			return hr__fail(HR_INVALID_ARGUMENT, "more than %d entries; ranges such as 100-200 count as one", HR_PROFILER_STEPS_MAX);
		parsed.steps[parsed.step_count++] = range;
		if (!*at++) break;
	}
	*options = parsed;
	return HR_OK;
}

hr_status hr__profiler_parse_max_bytes(const char *text, hr_profiler_options *options)
{
	uint64_t bytes;
	if (hr__parse_size(text, &bytes) || (bytes && bytes < HR__TRACE_LIMIT_MIN))
		return hr__fail(HR_INVALID_ARGUMENT, "\"%.200s\" is not a size of 1 MiB or more, such as 512MiB or 2GiB; 0 is no limit", text);
	options->max_bytes = bytes;
	return HR_OK;
}

hr_status hr__profiler_parse_stack_depth(const char *text, hr_profiler_options *options)
{
	uint64_t frames;
	const char *at = text;
	if (strcmp(text, "0") == 0) frames = 0;
	else if (!read_number(&at, &frames) || *at || frames > HR_STACK_DEPTH_MAX)
		return hr__fail(HR_INVALID_ARGUMENT, "\"%.200s\" is not a number of frames from 0 to %d; 0 is no stacks", text, HR_STACK_DEPTH_MAX);
	options->stack_depth = (uint32_t)frames;
	return HR_OK;
}

static hr_status read_switch(const char *key, const char *value, bool *out)
{
	if ((value[0] != '0' && value[0] != '1') || value[1])
		return hr__fail(HR_INVALID_ARGUMENT, ARGUMENT ": %s is 0 or 1, not \"%.200s\"", key, value);
	*out = value[0] == '1';
	return HR_OK;
}

static hr_status read_setting(const char *key, const char *value, hr_profiler_options *options)
{
	hr_status status = HR_OK;
	if (strcmp(key, "profile_steps") == 0) status = hr__profiler_parse_steps(value, options);
	else if (strcmp(key, "max_bytes") == 0) status = hr__profiler_parse_max_bytes(value, options);
	else if (strcmp(key, "stacks") == 0) status = hr__profiler_parse_stack_depth(value, options);
	else if (strcmp(key, "compress") == 0) return read_switch(key, value, &options->compress);
	else if (strcmp(key, "tensorboard") == 0) return read_switch(key, value, &options->tensorboard);
	else return hr__fail(HR_INVALID_ARGUMENT, ARGUMENT ": unknown setting \"%.200s\"; the settings are profile_steps, compress, tensorboard, max_bytes and stacks", key);
	return status ? hr__fail_in(status, ARGUMENT ": %s", key) : HR_OK;
}

static hr_status read_settings(const char *text, hr_profiler_options *options)
{
	char copy[SETTINGS_BYTES];
	hr_profiler_options parsed = *options;
	size_t length = strlen(text);
	if (length >= sizeof copy) return hr__fail(HR_INVALID_ARGUMENT, ARGUMENT " is longer than %d bytes", SETTINGS_BYTES - 1);
	if (!length) return hr__fail(HR_INVALID_ARGUMENT, ARGUMENT " needs a value, such as profile_steps=1,10,100");
	memcpy(copy, text, length + 1);
	for (char *key = copy, *next; key; key = next) {
		next = strchr(key, ';');
		if (next) *next++ = 0;
		char *value = strchr(key, '=');
		if (!value) return hr__fail(HR_INVALID_ARGUMENT, ARGUMENT ": \"%.200s\" is not of the form profile_steps=1,10,100", key);
		*value++ = 0;
		hr_status status = read_setting(key, value, &parsed);
		if (status) return status;
	}
	*options = parsed;
	return HR_OK;
}

/* ---- arguments ---- */

/* The settings in argv[at] or in the argument after it; NULL if argv[at] is another argument. *taken is the number of arguments
 * used. */
static const char *settings_at(char **argv, int argc, int at, int *taken)
{
	const size_t length = sizeof ARGUMENT - 1;
	if (strncmp(argv[at], ARGUMENT, length) != 0) return NULL;
	*taken = 1;
	if (argv[at][length] == '=') return argv[at] + length + 1;
	if (argv[at][length]) return NULL;
	if (at + 1 >= argc) return "";
	*taken = 2;
	return argv[at + 1];
}

/* Parses everything before any argument is removed, so that an error leaves the arguments unchanged. */
static hr_status read_all(int argc, char **argv, hr_profiler_options *options)
{
	int taken = 1;
	for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i += taken) {
		taken = 1;
		const char *settings = settings_at(argv, argc, i, &taken);
		if (!settings) {
			taken = 1;
			continue;
		}
		hr_status status = read_settings(settings, options);
		if (status) return status;
	}
	return HR_OK;
}

static void take_out(int *argc, char **argv)
{
	int kept = 1, i = 1, taken;
	while (i < *argc && strcmp(argv[i], "--") != 0) {
		if (settings_at(argv, *argc, i, &taken)) i += taken;
		else argv[kept++] = argv[i++];
	}
	while (i < *argc) argv[kept++] = argv[i++];
	if (kept < *argc) argv[kept] = NULL;
	*argc = kept;
}

hr_status hr_profiler_parse_arguments(int *argc, char **argv, hr_profiler_options *options)
{
	if (!argc || !argv) return hr__fail(HR_INVALID_ARGUMENT, "hr_profiler_parse_arguments: argc or argv is NULL");
	hr_profiler_options parsed;
	hr_profiler_options_init(&parsed);
	hr_status status = hr__struct_in(&hr__struct_profiler_options, "hr_profiler_parse_arguments", &parsed, options);
	if (!status) status = read_all(*argc, argv, &parsed);
	if (status) return status;
	take_out(argc, argv);
	hr__struct_out(&hr__struct_profiler_options, options, &parsed);
	return HR_OK;
}
