/* oom_read.c - see oom.h.
 *
 * The text is held in memory as a whole, but never parsed into one tree: jansson parses its members one by one, and those of the
 * log entry by entry, each with a limit on its size. There are two passes. The first reads only "format" and "version", wherever
 * they are, so that a file of another kind or of a newer version is reported as such and not as a malformed report. Unknown members
 * are skipped. */
#include "oom.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/base/status.h"
#include "core/os/os.h"
#include "terminal/quote.h"

#define FILE_BYTES_MAX (UINT64_C(256) << 20)

static hr_status fail_in_file(const char *path, hr_status status)
{
	char quoted[HR__QUOTE_BYTES];
	size_t length = strlen(path);
	if (strcmp(path, "-") == 0) return hr__fail_in(status, "standard input");
	/* Quote the path only if it is ambiguous otherwise. */
	hr__quote(path, length, quoted);
	bool plain = length + 2 == strlen(quoted) && !strpbrk(path, " :\"'");
	return hr__fail_in(status, "%s", plain ? path : quoted);
}

/* ---- the file ---- */

static hr_status read_all(FILE *file, char **text, size_t *size)
{
	size_t capacity = 0, got;
	do {
		if (*size == capacity) {
			if (capacity >= FILE_BYTES_MAX) return hr__fail(HR_BAD_FORMAT, "larger than 256 MiB; is this an out-of-memory report?");
			capacity = capacity ? 2 * capacity : 65536;
			char *larger = realloc(*text, capacity);
			if (!larger) return hr__fail(HR_NO_HOST_MEMORY, "no memory for a file of more than %zu bytes", *size);
			*text = larger;
		}
		got = fread(*text + *size, 1, capacity - *size, file);
		*size += got;
	} while (got > 0);
	return ferror(file) ? hr__fail(HR_IO, "cannot be read: %s", hr__os_error(errno)) : HR_OK;
}

static hr_status read_path(const char *path, char **text, size_t *size)
{
	struct stat info;
	bool is_stdin = strcmp(path, "-") == 0;
	FILE *file = is_stdin ? stdin : fopen(path, "rb");
	if (!file) return hr__fail(HR_IO, "cannot be opened: %s", hr__os_error(errno));
	hr_status status = HR_OK;
	if (fstat(fileno(file), &info) == 0 && S_ISDIR(info.st_mode))
		status = hr__fail(HR_IO, "it is a directory; name a report in it");
	if (!status) status = read_all(file, text, size);
	if (!is_stdin) fclose(file);
	return status;
}

hr_status hr__oom_read_file(const char *path, hr__oom_saved **out)
{
	char *text = NULL;
	size_t size = 0;
	hr_status status = read_path(path, &text, &size);
	if (!status) status = hr__oom_read_memory(text, size, out);
	free(text);
	return status ? fail_in_file(path, status) : HR_OK;
}

void hr__oom_free(hr__oom_saved *saved)
{
	if (!saved) return;
	free(saved->log);
	free(saved);
}

#ifndef HR_HAVE_JANSSON

hr_status hr__oom_read_memory(const void *bytes, size_t size, hr__oom_saved **out)
{
	(void)bytes, (void)size, (void)out;
	return hr__fail(HR_UNSUPPORTED,
	                "it is JSON, and this program was built without jansson; install libjansson-dev and build again");
}

#else

#include <jansson.h>

#include "core/base/names.h"
#include "core/base/text.h"
#include "core/memory/oom/report_write.h"

/* Both are several times the largest that Headroom writes: names have at most 1,024 bytes, six times that when escaped. */
#define MEMBER_BYTES_MAX (4u << 20)
#define ENTRY_BYTES_MAX (256u << 10)

struct oom_reader {
	const char *text;
	size_t size, at;
	hr_status status; /* the first failure; all functions do nothing after it */

	hr__oom_saved *saved;
	size_t log_capacity;
	bool failed_seen; /* the failing request, which is the last log entry, was seen */
	uint32_t members; /* bit i: member i of the table was seen */
	bool is_report, looking;
	uint64_t version;

	char where[64]; /* the object being read, for messages: "regions[3]" */
};

/* ---- messages ---- */

static void wrong(struct oom_reader *reader, const char *key, const char *what)
{
	if (reader->status) return;
	reader->status = hr__fail(HR_BAD_FORMAT, "%s%s%s: %s", reader->where, *reader->where && *key ? "." : "", key, what);
}

static void wrong_here(struct oom_reader *reader, const char *what)
{
	char found[HR__QUOTE_BYTES];
	if (reader->status) return;
	if (reader->at >= reader->size) {
		reader->status = hr__fail(HR_TRUNCATED, "ends in the middle, after %zu bytes; it was cut: get it again", reader->size);
		return;
	}
	hr__quote(reader->text + reader->at, 1, found);
	reader->status = hr__fail(HR_BAD_FORMAT, "byte %zu: expected %s, found %s", reader->at, what, found);
}

__attribute__((format(printf, 2, 3))) static void enter(struct oom_reader *reader, const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	vsnprintf(reader->where, sizeof reader->where, format, arguments);
	va_end(arguments);
}

/* ---- values of an object; 0, false and "" if they are wrong ---- */

static const json_t *value_in(struct oom_reader *reader, const json_t *object, const char *key)
{
	const json_t *value = json_object_get(object, key);
	if (!value) wrong(reader, key, "is missing");
	return value;
}

static uint64_t number_of(struct oom_reader *reader, const json_t *value, const char *key, uint64_t most)
{
	if (!value) return 0;
	if (!json_is_integer(value) || json_integer_value(value) < 0) {
		wrong(reader, key, "expected a whole number that is not negative");
		return 0;
	}
	uint64_t number = (uint64_t)json_integer_value(value);
	return number < most ? number : most;
}

static uint64_t number_in(struct oom_reader *reader, const json_t *object, const char *key)
{
	return number_of(reader, value_in(reader, object, key), key, INT64_MAX);
}

static uint32_t small_in(struct oom_reader *reader, const json_t *object, const char *key)
{
	return (uint32_t)number_of(reader, value_in(reader, object, key), key, UINT32_MAX);
}

static double fraction_in(struct oom_reader *reader, const json_t *object, const char *key)
{
	const json_t *value = value_in(reader, object, key);
	if (value && !json_is_number(value)) wrong(reader, key, "expected a number");
	double number = value ? json_number_value(value) : 0;
	return number > 0 ? (number < 1 ? number : 1) : 0;
}

static bool bool_in(struct oom_reader *reader, const json_t *object, const char *key)
{
	const json_t *value = value_in(reader, object, key);
	if (value && !json_is_boolean(value)) wrong(reader, key, "expected true or false");
	return json_is_true(value);
}

static const json_t *string_in(struct oom_reader *reader, const json_t *object, const char *key)
{
	const json_t *value = value_in(reader, object, key);
	if (!value || json_is_string(value)) return value;
	wrong(reader, key, "expected a text");
	return NULL;
}

static void text_in(struct oom_reader *reader, const json_t *object, const char *key, char *out, size_t capacity)
{
	const json_t *value = string_in(reader, object, key);
	if (value) hr__report_clean(json_string_value(value), json_string_length(value), out, capacity);
}

static hr_name name_in(struct oom_reader *reader, const json_t *object, const char *key)
{
	const json_t *value = string_in(reader, object, key);
	return value ? hr__name_of_bytes(json_string_value(value), json_string_length(value)) : HR_NAME_NONE;
}

static unsigned choice_in(struct oom_reader *reader, const json_t *object, const char *key, const char *const *names)
{
	const json_t *value = string_in(reader, object, key);
	char quoted[HR__QUOTE_BYTES], what[HR__QUOTE_BYTES + 64];
	if (!value) return 0;
	for (unsigned i = 0; names[i]; i++)
		if (strcmp(names[i], json_string_value(value)) == 0) return i;
	hr__quote(json_string_value(value), json_string_length(value), quoted);
	snprintf(what, sizeof what, "%s is not one of those that there are", quoted);
	wrong(reader, key, what);
	return 0;
}

/* "0x7f12"; 0 if there is none. */
static uint64_t address_in(struct oom_reader *reader, const json_t *object)
{
	const json_t *value = json_object_get(object, "address");
	const char *text = json_string_value(value);
	char *end = NULL;
	if (!value) return 0;
	bool good = text && strncmp(text, "0x", 2) == 0 && strlen(text) <= 18 &&
	            strspn(text + 2, "0123456789abcdefABCDEF") == strlen(text + 2);
	uint64_t address = good ? strtoull(text + 2, &end, 16) : 0;
	if (!good || *end || end == text + 2) wrong(reader, "address", "expected a text such as \"0x7f12\"");
	return address;
}

static hr_shape shape_in(struct oom_reader *reader, const json_t *object)
{
	const json_t *value = value_in(reader, object, "shape");
	int64_t dims[HR_SHAPE_MAX_RANK];
	size_t rank = json_array_size(value);
	if (!value || json_is_null(value)) return HR_SHAPE_NONE;
	if (!json_is_array(value) || rank > HR_SHAPE_MAX_RANK) {
		wrong(reader, "shape", "expected null, or a list of at most 8 whole numbers");
		return HR_SHAPE_NONE;
	}
	for (size_t i = 0; i < rank; i++) dims[i] = (int64_t)number_of(reader, json_array_get(value, i), "shape", INT64_MAX);
	return hr_shape_intern(dims, (int)rank);
}

/* A dtype added by a later version is read as HR_DTYPE_NONE, so that the rest of the report stays readable. */
static hr_dtype dtype_in(struct oom_reader *reader, const json_t *object)
{
	const json_t *value = string_in(reader, object, "dtype");
#define DTYPE_FIND(name, number, bytes, text) \
	if (value && strcmp(json_string_value(value), text) == 0) return HR_DTYPE_##name;
	HR_DTYPE_TABLE(DTYPE_FIND)
#undef DTYPE_FIND
	return HR_DTYPE_NONE;
}

static const json_t *object_in(struct oom_reader *reader, const json_t *object, const char *key)
{
	const json_t *value = value_in(reader, object, key);
	if (!value || json_is_object(value)) return value;
	wrong(reader, key, "expected an object");
	return NULL;
}

/* A list of at most [most] objects, and their number. */
static const json_t *list_of(struct oom_reader *reader, const json_t *value, const char *key, size_t most, uint32_t *count)
{
	char what[64];
	*count = 0;
	if (!json_is_array(value)) {
		if (value) wrong(reader, key, "expected a list");
		return NULL;
	}
	if (json_array_size(value) > most) {
		snprintf(what, sizeof what, "%zu entries, at most %zu", json_array_size(value), most);
		wrong(reader, key, what);
		return NULL;
	}
	for (size_t i = 0; i < json_array_size(value); i++)
		if (!json_is_object(json_array_get(value, i))) wrong(reader, key, "expected a list of objects");
	*count = reader->status ? 0 : (uint32_t)json_array_size(value);
	return value;
}

/* ---- the members ---- */

static void take_format(struct oom_reader *reader, const json_t *value)
{
	const char *text = json_string_value(value);
	reader->is_report = text && strcmp(text, HR__REPORT_FORMAT) == 0;
}

static void take_version(struct oom_reader *reader, const json_t *value)
{
	reader->version = number_of(reader, value, "version", INT64_MAX);
}

static void take_id(struct oom_reader *reader, const json_t *value)
{
	reader->saved->report.id = number_of(reader, value, "id", INT64_MAX);
}

static void take_sequence(struct oom_reader *reader, const json_t *value)
{
	reader->saved->report.sequence = number_of(reader, value, "sequence", INT64_MAX);
}

/* "time" is the same as text and is not read. */
static void take_time_ns(struct oom_reader *reader, const json_t *value)
{
	reader->saved->report.time_ns = number_of(reader, value, "time_ns", INT64_MAX);
}

static void take_process(struct oom_reader *reader, const json_t *value)
{
	reader->saved->report.process = (uint32_t)number_of(reader, value, "process", UINT32_MAX);
}

static void take_thread(struct oom_reader *reader, const json_t *value)
{
	reader->saved->report.thread = (uint32_t)number_of(reader, value, "thread", UINT32_MAX);
}

static void take_request(struct oom_reader *reader, const json_t *value)
{
	hr__report *report = &reader->saved->report;
	report->bytes = number_in(reader, value, "bytes");
	report->size = number_in(reader, value, "size");
	report->alignment = number_in(reader, value, "alignment");
	report->stream = small_in(reader, value, "stream");
	report->op = name_in(reader, value, "op_name");
	report->scope = name_in(reader, value, "scope");
	report->tag = name_in(reader, value, "tag");
	report->shape = shape_in(reader, value);
	report->dtype = dtype_in(reader, value);
}

static void take_verdict(struct oom_reader *reader, const json_t *value)
{
	hr_verdict *verdict = &reader->saved->report.verdict;
	verdict->struct_size = sizeof *verdict;
	verdict->kind = (hr_verdict_kind)choice_in(reader, value, "kind", hr__report_verdicts);
	verdict->tier = (hr_tier)choice_in(reader, value, "tier", hr__report_tiers);
	verdict->bytes = number_in(reader, value, "bytes");
	verdict->pages = number_in(reader, value, "pages");
	text_in(reader, value, "text", verdict->text, sizeof verdict->text);
	text_in(reader, value, "advice", verdict->advice, sizeof verdict->advice);
	if (json_object_get(value, "step_peak_bytes")) /* not in older files */
		verdict->step_peak_bytes = number_in(reader, value, "step_peak_bytes");
}

/* Stands for the callback that was set in the program that wrote the report. */
static void some_callback(void *user, hr_oom_report report)
{
	(void)user, (void)report;
}

static void take_options(struct oom_reader *reader, const json_t *value)
{
	hr_oom_options *options = &reader->saved->report.options;
	enter(reader, "allocator.oom");
	options->struct_size = sizeof *options;
	options->report_allocations_on_oom = bool_in(reader, value, "report_allocations_on_oom");
	options->allocation_log_buffer_size = small_in(reader, value, "allocation_log_buffer_size");
	options->allocation_log_sampling_rate = fraction_in(reader, value, "allocation_log_sampling_rate");
	options->allocation_log_address = (hr_log_address)choice_in(reader, value, "allocation_log_address", hr__report_addresses);
	options->allocation_log_allocations_only = json_object_get(value, "allocation_log_allocations_only") && /* not in older files */
	                                           bool_in(reader, value, "allocation_log_allocations_only");
	options->callback = bool_in(reader, value, "callback") ? some_callback : NULL;
}

static void take_allocator(struct oom_reader *reader, const json_t *value)
{
	hr__report *report = &reader->saved->report;
	text_in(reader, value, "name", report->allocator, sizeof report->allocator);
	text_in(reader, value, "kind", report->kind, sizeof report->kind);
	report->limit = number_in(reader, value, "limit_bytes");
	report->stitch = bool_in(reader, value, "stitch");
	report->thread_cache = bool_in(reader, value, "thread_cache");
	report->allow_growth = bool_in(reader, value, "allow_growth");
	const json_t *options = object_in(reader, value, "oom");
	if (options) take_options(reader, options);
}

static void take_device(struct oom_reader *reader, const json_t *value)
{
	hr__report *report = &reader->saved->report;
	text_in(reader, value, "name", report->device, sizeof report->device);
	text_in(reader, value, "backend", report->backend, sizeof report->backend);
	text_in(reader, value, "card", report->card, sizeof report->card);
	report->total_bytes = number_in(reader, value, "total_bytes");
	report->free_bytes = number_in(reader, value, "free_bytes");
	report->other_bytes = number_in(reader, value, "other_bytes");
	report->device_limit = number_in(reader, value, "limit_bytes");
	report->device_reserved = number_in(reader, value, "reserved_bytes");
	report->page_bytes = number_in(reader, value, "page_bytes");
}

/* Statistics missing in an older report are 0. */
static void take_stats(struct oom_reader *reader, const json_t *value)
{
	hr_stats *stats = &reader->saved->report.stats;
	hr_stats_init(stats);
#define STATS_TAKE(name, meaning) stats->name = (int64_t)number_of(reader, json_object_get(value, #name), #name, INT64_MAX);
	HR_STATS_TABLE(STATS_TAKE)
#undef STATS_TAKE
	stats->fragmentation = fraction_in(reader, value, "fragmentation");
}

static void take_holders_by(struct oom_reader *reader, const json_t *value, hr__report_holders *holders, const char *by)
{
	enter(reader, "holders.%s", by);
	const json_t *top = list_of(reader, value_in(reader, value, "top"), "top", HR__REPORT_TOP, &holders->count);
	holders->names = small_in(reader, value, "names");
	holders->rest_bytes = (int64_t)number_in(reader, value, "rest_bytes");
	holders->rest_blocks = (int64_t)number_in(reader, value, "rest_blocks");
	for (uint32_t i = 0; i < holders->count; i++) {
		const json_t *holder = json_array_get(top, i);
		enter(reader, "holders.%s.top[%u]", by, i);
		holders->top[i].name = name_in(reader, holder, "name");
		holders->top[i].count = small_in(reader, holder, "blocks");
		holders->top[i].bytes = (int64_t)number_in(reader, holder, "bytes");
	}
}

static void take_holders(struct oom_reader *reader, const json_t *value)
{
	for (unsigned i = 0; hr__report_holders_by[i]; i++) {
		enter(reader, "holders");
		const json_t *of_kind = object_in(reader, value, hr__report_holders_by[i]);
		if (of_kind) take_holders_by(reader, of_kind, &reader->saved->report.holders[i], hr__report_holders_by[i]);
	}
}

static void take_largest(struct oom_reader *reader, const json_t *value)
{
	hr__report *report = &reader->saved->report;
	const json_t *list = list_of(reader, value, "", HR__REPORT_TOP, &report->largest_count);
	for (uint32_t i = 0; i < report->largest_count; i++) {
		const json_t *object = json_array_get(list, i);
		hr__report_block *block = &report->largest[i];
		enter(reader, "largest[%u]", i);
		block->bytes = number_in(reader, object, "bytes");
		block->requested = number_in(reader, object, "requested");
		block->op = name_in(reader, object, "op_name");
		block->scope = name_in(reader, object, "scope");
		block->tag = name_in(reader, object, "tag");
		block->shape = shape_in(reader, object);
		block->dtype = dtype_in(reader, object);
	}
}

static void take_sizes(struct oom_reader *reader, const json_t *value)
{
	hr__report *report = &reader->saved->report;
	uint32_t count;
	const json_t *list = list_of(reader, value, "", HR__REPORT_SIZES, &count);
	for (uint32_t i = 0; i < count; i++) {
		const json_t *object = json_array_get(list, i);
		enter(reader, "sizes[%u]", i);
		uint64_t least = number_in(reader, object, "least");
		unsigned class = least ? 63u - (unsigned)__builtin_clzll(least) : HR__REPORT_SIZES;
		if (class >= HR__REPORT_SIZES || least & (least - 1)) {
			wrong(reader, "least", "expected a power of two of at most 2^48");
			return;
		}
		report->size_bytes[class] = (int64_t)number_in(reader, object, "bytes");
		report->size_blocks[class] = (int64_t)number_in(reader, object, "blocks");
	}
}

static void take_runs(struct oom_reader *reader, const json_t *region_object, hr__report_region *region)
{
	hr__report *report = &reader->saved->report;
	uint32_t count;
	const json_t *runs = list_of(reader, value_in(reader, region_object, "runs"), "runs", HR__REPORT_RUNS - report->run_count,
	                             &count);
	region->first_run = report->run_count;
	region->run_count = count;
	for (uint32_t i = 0; i < count; i++) {
		const json_t *object = json_array_get(runs, i);
		hr__run *run = &report->runs[report->run_count++];
		run->kind = (uint8_t)choice_in(reader, object, "kind", hr__report_runs);
		run->bytes = number_in(reader, object, "bytes");
		run->in_use = number_in(reader, object, "in_use_bytes");
		run->chunks = small_in(reader, object, "chunks");
	}
}

static void take_regions(struct oom_reader *reader, const json_t *value)
{
	hr__report *report = &reader->saved->report;
	const json_t *list = list_of(reader, value, "", HR__REPORT_REGIONS, &report->region_count);
	for (uint32_t i = 0; i < report->region_count; i++) {
		const json_t *object = json_array_get(list, i);
		hr__report_region *region = &report->regions[i];
		enter(reader, "regions[%u]", i);
		region->address = address_in(reader, object);
		region->small_blocks = bool_in(reader, object, "small_blocks");
		region->addresses = number_in(reader, object, "address_bytes");
		region->reserved = number_in(reader, object, "reserved_bytes");
		region->in_use = number_in(reader, object, "in_use_bytes");
		region->cached = number_in(reader, object, "cached_bytes");
		region->free = number_in(reader, object, "free_bytes");
		region->largest_free = number_in(reader, object, "largest_free_bytes");
		take_runs(reader, object, region);
	}
}

static void take_regions_left_out(struct oom_reader *reader, const json_t *value)
{
	reader->saved->report.regions_left_out = (uint32_t)number_of(reader, value, "regions_left_out", UINT32_MAX);
}

static void take_longest_hold(struct oom_reader *reader, const json_t *value)
{
	reader->saved->report.longest_hold = (uint32_t)number_of(reader, value, "longest_hold", UINT32_MAX);
}

static void take_chunks_visited(struct oom_reader *reader, const json_t *value)
{
	reader->saved->report.chunks_visited = number_of(reader, value, "chunks_visited", INT64_MAX);
}

static void take_log_total(struct oom_reader *reader, const json_t *value)
{
	reader->saved->report.log_total = number_of(reader, value, "log_total", INT64_MAX);
}

/* key, whether the value is an object, function that reads it; "log" is read entry by entry. */
static const struct member {
	const char *key;
	bool is_object;
	void (*take)(struct oom_reader *, const json_t *);
} members[] = {
	{ "format", false, take_format },
	{ "version", false, take_version },
	{ "id", false, take_id },
	{ "sequence", false, take_sequence },
	{ "time_ns", false, take_time_ns },
	{ "process", false, take_process },
	{ "thread", false, take_thread },
	{ "request", true, take_request },
	{ "verdict", true, take_verdict },
	{ "allocator", true, take_allocator },
	{ "device", true, take_device },
	{ "stats", true, take_stats },
	{ "holders", true, take_holders },
	{ "largest", false, take_largest },
	{ "sizes", false, take_sizes },
	{ "regions", false, take_regions },
	{ "regions_left_out", false, take_regions_left_out },
	{ "longest_hold", false, take_longest_hold },
	{ "chunks_visited", false, take_chunks_visited },
	{ "log_total", false, take_log_total },
	{ "log", false, NULL },
};
#define MEMBERS (sizeof members / sizeof *members)
#define FIRST_PASS_MEMBERS 2 /* format and version */

/* ---- the text ---- */

static int look(struct oom_reader *reader)
{
	while (reader->at < reader->size && strchr(" \t\r\n", reader->text[reader->at]) && reader->text[reader->at]) reader->at++;
	return reader->at < reader->size ? (unsigned char)reader->text[reader->at] : -1;
}

static bool take_this(struct oom_reader *reader, char wanted, const char *what)
{
	if (reader->status) return false;
	if (look(reader) != wanted) wrong_here(reader, what);
	else reader->at++;
	return !reader->status;
}

/* Parses the next value, which must have at most [most] bytes; NULL on failure. */
static json_t *take_value(struct oom_reader *reader, size_t most)
{
	json_error_t error = { 0 };
	char quoted[HR__QUOTE_BYTES];
	look(reader);
	size_t left = reader->size - reader->at, length = left < most ? left : most;
	if (reader->status) return NULL;
	json_t *value = json_loadb(reader->text + reader->at, length, JSON_DECODE_ANY | JSON_DISABLE_EOF_CHECK | JSON_REJECT_DUPLICATES,
	                           &error);
	size_t into = error.position > 0 ? (size_t)error.position : 0;
	if (value) {
		reader->at += into < length ? into : length;
		return value;
	}
	/* jansson reports a truncated number or character as invalid, but the error is the end of the file. */
	bool cut = into >= length || hr__utf8_trim(reader->text + reader->at, length) < length;
	if (cut || json_error_code(&error) == json_error_premature_end_of_input) {
		size_t begin = reader->at;
		reader->at = reader->size;
		if (length == left) wrong_here(reader, "");
		else
			reader->status = hr__fail(HR_BAD_FORMAT, "byte %zu: longer than %zu bytes; is this an out-of-memory report?", begin,
			                          most);
	} else {
		hr__quote(error.text, strlen(error.text), quoted);
		reader->status = hr__fail(HR_BAD_FORMAT, "byte %zu: not JSON: %s", reader->at + (into ? into - 1 : 0), quoted);
	}
	return NULL;
}

/* ---- the log ---- */

static bool make_room(struct oom_reader *reader)
{
	hr__report *report = &reader->saved->report;
	if (report->log_count < reader->log_capacity) return true;
	size_t capacity = reader->log_capacity ? 2 * reader->log_capacity : 256;
	hr__log_entry *larger = realloc(reader->saved->log, capacity * sizeof *larger);
	if (!larger) {
		reader->status = hr__fail(HR_NO_HOST_MEMORY, "no memory for a log of more than %zu entries", reader->log_capacity);
		return false;
	}
	reader->saved->log = larger;
	reader->log_capacity = capacity;
	return true;
}

/* Skips the failing request at the end of the log: it is a part of the report itself. */
static void take_entry(struct oom_reader *reader, const json_t *object, uint32_t index)
{
	hr__report *report = &reader->saved->report;
	enter(reader, "log[%u]", index);
	if (!json_is_object(object)) wrong(reader, "", "expected an object");
	if (reader->failed_seen) wrong(reader, "", "expected nothing behind the failing request");
	if (reader->status) return;
	hr__log_entry entry = {
		.time_ns = number_in(reader, object, "time_ns"),
		.bytes = number_in(reader, object, "bytes"),
		.address = address_in(reader, object),
		.op = name_in(reader, object, "op_name"),
		.scope = name_in(reader, object, "scope"),
		.tag = name_in(reader, object, "tag"),
		.shape = shape_in(reader, object),
		.thread = small_in(reader, object, "thread"),
		.dtype = (uint8_t)dtype_in(reader, object),
		.action = (uint8_t)choice_in(reader, object, "action", hr__report_actions),
	};
	reader->failed_seen = entry.action == HR__LOG_FAILED;
	if (!reader->status && !reader->failed_seen && make_room(reader)) reader->saved->log[report->log_count++] = entry;
}

static void take_log(struct oom_reader *reader)
{
	if (!take_this(reader, '[', "a list: '['")) return;
	int next = look(reader) == ']' ? ']' : ',';
	if (next == ']') reader->at++;
	for (uint32_t i = 0; !reader->status && next == ','; i++) {
		json_t *entry = take_value(reader, ENTRY_BYTES_MAX);
		if (entry && !reader->looking) take_entry(reader, entry, i);
		json_decref(entry);
		next = reader->status ? -1 : look(reader);
		if (next != ',' && next != ']') wrong_here(reader, "',' or ']'");
		else reader->at++;
	}
}

/* ---- the report ---- */

static void take_member(struct oom_reader *reader)
{
	size_t i = 0;
	if (look(reader) != '"') {
		wrong_here(reader, "a key in double quotes");
		return;
	}
	json_t *key = take_value(reader, MEMBER_BYTES_MAX);
	while (key && i < MEMBERS && strcmp(members[i].key, json_string_value(key)) != 0) i++;
	json_decref(key);
	if (!take_this(reader, ':', "':' behind a key")) return;
	bool known = i < MEMBERS && (!reader->looking || i < FIRST_PASS_MEMBERS);
	enter(reader, "%s", i < MEMBERS && !reader->looking ? members[i].key : "");
	if (known && reader->members & 1u << i) wrong(reader, "", "is there twice");
	if (known) reader->members |= 1u << i;
	if (i < MEMBERS && !members[i].take) {
		take_log(reader);
		return;
	}
	json_t *value = take_value(reader, MEMBER_BYTES_MAX);
	if (value && known && members[i].is_object && !json_is_object(value)) wrong(reader, "", "expected an object");
	else if (value && known) members[i].take(reader, value);
	json_decref(value);
}

static void take_members(struct oom_reader *reader)
{
	if (!take_this(reader, '{', "'{'")) return;
	int next = look(reader) == '}' ? '}' : ',';
	if (next == '}') reader->at++;
	while (!reader->status && next == ',') {
		take_member(reader);
		next = reader->status ? -1 : look(reader);
		if (next != ',' && next != '}') wrong_here(reader, "',' or '}'");
		else reader->at++;
	}
	if (!reader->status && look(reader) != -1) wrong_here(reader, "the end of the file");
}

/* Checks that the text is a report, of a supported version. */
static void look_at_kind(struct oom_reader *reader)
{
	if (reader->size >= 2 && memcmp(reader->text, "\x1F\x8B", 2) == 0) {
		reader->status = hr__fail(HR_BAD_FORMAT, "it is packed with gzip; run gunzip first");
	} else if (look(reader) == -1) {
		reader->status = hr__fail(HR_BAD_FORMAT, "it is empty; expected an out-of-memory report as JSON");
	} else if (look(reader) == '[') {
		reader->status = hr__fail(HR_BAD_FORMAT,
		                          "it is a list, such as the log of a report alone; expected the report as a whole: {...}");
	} else if (look(reader) != '{') {
		wrong_here(reader, "an out-of-memory report as JSON: '{'");
	} else {
		reader->looking = true;
		take_members(reader);
		reader->looking = false;
	}
	if (reader->status) return;
	if (!reader->is_report)
		reader->status = hr__fail(HR_BAD_FORMAT,
		                          "it is JSON, but no out-of-memory report: there is no \"format\": \"" HR__REPORT_FORMAT "\"");
	else if (reader->version == 0) reader->status = hr__fail(HR_BAD_FORMAT, "version: expected a number from 1 on");
	else if (reader->version > HR__REPORT_VERSION)
		reader->status = hr__fail(HR_TOO_NEW,
		                          "it has version %llu of the format, and this program reads up to %u; use a newer headroom",
		                          (unsigned long long)reader->version, HR__REPORT_VERSION);
}

hr_status hr__oom_read_memory(const void *bytes, size_t size, hr__oom_saved **out)
{
	struct oom_reader reader = { .text = bytes ? bytes : "", .size = size };
	if (size >= 3 && memcmp(bytes, "\xEF\xBB\xBF", 3) == 0) reader.at = 3;
	size_t begin = reader.at;
	reader.saved = calloc(1, sizeof *reader.saved);
	if (!reader.saved) return hr__fail(HR_NO_HOST_MEMORY, "no memory for reading a report");
	look_at_kind(&reader);
	if (!reader.status) {
		reader.at = begin;
		reader.members = 0;
		take_members(&reader);
	}
	for (size_t i = 0; !reader.status && i < MEMBERS; i++) {
		enter(&reader, "%s", members[i].key);
		if (!(reader.members & 1u << i)) wrong(&reader, "", "is missing");
	}
	if (reader.status) {
		hr__oom_free(reader.saved);
		return reader.status;
	}
	reader.saved->report.log = reader.saved->log;
	*out = reader.saved;
	return HR_OK;
}

#endif
