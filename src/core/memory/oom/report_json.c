/* report_json.c - writes a report as JSON. docs/oom-report.schema.json defines the fields, docs/oom-report.md explains them.
 *
 * The text of the report is one of the fields, so that a saved report can be printed without being drawn again (cli/oom.c).
 * Constructs that JSON readers treat differently are avoided: numbers stay below 2^63, addresses are strings, text is UTF-8. Sums
 * over a ledger that changes meanwhile are never written as negative. */
#include <stdio.h>
#include <string.h>

#include "core/base/text/json.h"
#include "core/base/names.h"
#include "core/base/text/text.h"
#include "core/memory/oom/report_write.h"

static const char *const verdict_names[] = {
	"unknown", "fits", "fits_after_trim", "fits_after_stitch", "fits_after_defrag", "needs_more", "never_fits", "fits_with_lms", NULL,
};
static const char *const tier_names[] = { "none", "allocator", "device", "physical", NULL };
static const char *const holder_names[] = { "op", "scope", "tag", NULL };
static const char *const run_names[] = { "none", "free", "in_use", "cached", "unmapped", "mixed", NULL };
const char *const hr__report_actions[] = { "none", "alloc", "free", "failed", NULL };
static const char *const address_names[] = { "none", "hashed", "real", NULL };

_Static_assert(sizeof verdict_names / sizeof *verdict_names == HR_VERDICT_KINDS + 1, "a name for each verdict");
_Static_assert(sizeof tier_names / sizeof *tier_names == HR_TIER_PHYSICAL + 2, "a name for each tier");
_Static_assert(sizeof holder_names / sizeof *holder_names == HR_BY_TAG + 2, "a name for each kind of holder");
_Static_assert(sizeof run_names / sizeof *run_names == HR__RUN_MIXED + 2, "a name for each kind of run");
_Static_assert(sizeof hr__report_actions / sizeof *hr__report_actions == HR__LOG_FAILED + 2, "a name for each action");
_Static_assert(sizeof address_names / sizeof *address_names == HR_LOG_REAL_ADDRESS + 2, "a name for each choice");

/* ---- values ---- */

/* Converts days since 1970 to a date. Years are counted from March, so that the leap day is the last day of a year. */
static void date_of(uint64_t days, unsigned *year, unsigned *month, unsigned *day)
{
	uint64_t since = days + 719468; /* 0000-03-01 */
	uint64_t era = since / 146097, of_era = since % 146097;
	uint64_t years = (of_era - of_era / 1460 + of_era / 36524 - of_era / 146096) / 365;
	uint64_t of_year = of_era - (365 * years + years / 4 - years / 100);
	uint64_t months = (5 * of_year + 2) / 153;
	*day = (unsigned)(of_year - (153 * months + 2) / 5 + 1);
	*month = (unsigned)(months < 10 ? months + 3 : months - 9);
	*year = (unsigned)(years + era * 400 + (*month <= 2));
}

char *hr__report_time(uint64_t time_ns, char out[HR__REPORT_TIME_BYTES])
{
	uint64_t us = time_ns / 1000, seconds = us / 1000000;
	unsigned year, month, day, of_day = (unsigned)(seconds % 86400);
	date_of(seconds / 86400, &year, &month, &day);
	snprintf(out, HR__REPORT_TIME_BYTES, "%04u-%02u-%02uT%02u:%02u:%02u.%06uZ", year % 10000, month, day, of_day / 3600,
	         of_day / 60 % 60, of_day % 60, (unsigned)(us % 1000000));
	return out;
}

static uint64_t bounded(uint64_t value)
{
	return value < INT64_MAX ? value : INT64_MAX;
}

static void field_number(hr__json *json, const char *key, uint64_t value)
{
	hr__json_field_uint(json, key, bounded(value));
}

static void field_amount(hr__json *json, const char *key, int64_t value)
{
	hr__json_field_int(json, key, value > 0 ? value : 0);
}

/* Clamps a fraction to 0 to 1. */
static void field_fraction(hr__json *json, const char *key, double value, int decimals)
{
	hr__json_field_double(json, key, value > 0 ? (value < 1 ? value : 1) : 0, decimals);
}

/* [size] is the size of the array [text], which may have been cut anywhere and is read back into an array of that size. */
static void field_text(hr__json *json, const char *key, const char *text, size_t size)
{
	char clean[HR__NAME_LENGTH_MAX + 1];
	size_t length = hr__text_repair(text, strnlen(text, size - 1), clean, size < sizeof clean ? size : sizeof clean);
	hr__json_key(json, key);
	hr__json_bytes(json, clean, length);
}

static void field_name(hr__json *json, const char *key, hr_name name)
{
	field_text(json, key, hr_name_text(name), HR__NAME_LENGTH_MAX + 1);
}

/* A value out of range is a bug in the program, but the rest of the report must still be readable. */
static void field_choice(hr__json *json, const char *key, const char *const *names, unsigned value)
{
	unsigned i = 0;
	while (i < value && names[i]) i++;
	hr__json_field_string(json, key, names[i] ? names[i] : names[0]);
}

static void field_address(hr__json *json, uint64_t address)
{
	char text[24];
	if (address == 0) return;
	snprintf(text, sizeof text, "0x%llx", (unsigned long long)address);
	hr__json_field_string(json, "address", text);
}

/* Op, scope, tag, shape and dtype: the same keys for every tensor or block. */
static void fields_tensor(hr__json *json, hr_name op, hr_name scope, hr_name tag, hr_shape shape, hr_dtype dtype)
{
	int64_t dims[HR_SHAPE_MAX_RANK];
	int rank = hr_shape_dims(shape, dims);
	field_name(json, "op_name", op);
	field_name(json, "scope", scope);
	field_name(json, "tag", tag);
	hr__json_key(json, "shape");
	if (rank < 0) {
		hr__json_null(json);
	} else {
		hr__json_array(json);
		for (int i = 0; i < rank; i++) hr__json_int(json, dims[i]);
		hr__json_end_array(json);
	}
	hr__json_field_string(json, "dtype", hr_dtype_text(dtype));
}

/* ---- the parts ---- */

static void write_event(hr__json *json, const hr__report *report)
{
	char time[HR__REPORT_TIME_BYTES];
	field_number(json, "id", report->id);
	field_number(json, "sequence", report->sequence);
	hr__json_field_string(json, "time", hr__report_time(bounded(report->time_ns), time));
	field_number(json, "time_ns", report->time_ns);
	field_number(json, "process", report->process);
	field_number(json, "thread", report->thread);
}

static void write_request(hr__json *json, const hr__report *report)
{
	hr__json_key(json, "request");
	hr__json_object(json);
	field_number(json, "bytes", report->bytes);
	field_number(json, "size", report->size);
	field_number(json, "alignment", report->alignment);
	field_number(json, "stream", report->stream);
	fields_tensor(json, report->op, report->scope, report->tag, report->shape, report->dtype);
	hr__json_end_object(json);
}

static void write_verdict(hr__json *json, const hr_verdict *verdict)
{
	hr__json_key(json, "verdict");
	hr__json_object(json);
	field_choice(json, "kind", verdict_names, verdict->kind);
	field_choice(json, "tier", tier_names, verdict->tier);
	field_number(json, "bytes", verdict->bytes);
	field_number(json, "pages", verdict->pages);
	field_text(json, "text", verdict->text, sizeof verdict->text);
	field_text(json, "advice", verdict->advice, sizeof verdict->advice);
	field_number(json, "step_peak_bytes", verdict->step_peak_bytes);
	if (verdict->recompute_bytes) { /* only then, so that reports of programs without recipes are as before */
		field_number(json, "recompute_bytes", verdict->recompute_bytes);
		field_number(json, "recompute_ns", verdict->recompute_ns);
	}
	hr__json_end_object(json);
}

static void write_options(hr__json *json, const hr_oom_options *options)
{
	hr__json_key(json, "oom");
	hr__json_object(json);
	hr__json_field_bool(json, "report_allocations_on_oom", options->report_allocations_on_oom);
	field_number(json, "allocation_log_buffer_size", options->allocation_log_buffer_size);
	field_fraction(json, "allocation_log_sampling_rate", options->allocation_log_sampling_rate, 9);
	field_choice(json, "allocation_log_address", address_names, options->allocation_log_address);
	hr__json_field_bool(json, "allocation_log_allocations_only", options->allocation_log_allocations_only);
	hr__json_field_bool(json, "callback", options->callback != NULL);
	hr__json_end_object(json);
}

static void write_allocator(hr__json *json, const hr__report *report)
{
	hr__json_key(json, "allocator");
	hr__json_object(json);
	field_text(json, "name", report->allocator, sizeof report->allocator);
	field_text(json, "kind", report->kind, sizeof report->kind);
	field_number(json, "limit_bytes", report->limit);
	hr__json_field_bool(json, "stitch", report->stitch);
	hr__json_field_bool(json, "thread_cache", report->thread_cache);
	hr__json_field_bool(json, "allow_growth", report->allow_growth);
	write_options(json, &report->options);
	hr__json_end_object(json);
}

static void write_device(hr__json *json, const hr__report *report)
{
	hr__json_key(json, "device");
	hr__json_object(json);
	field_text(json, "name", report->device, sizeof report->device);
	field_text(json, "backend", report->backend, sizeof report->backend);
	field_text(json, "card", report->card, sizeof report->card);
	field_number(json, "total_bytes", report->total_bytes);
	field_number(json, "free_bytes", report->free_bytes);
	field_number(json, "other_bytes", report->other_bytes);
	field_number(json, "limit_bytes", report->device_limit);
	field_number(json, "reserved_bytes", report->device_reserved);
	field_number(json, "page_bytes", report->page_bytes);
	hr__json_end_object(json);
}

static void write_stats(hr__json *json, const hr_stats *stats)
{
	hr__json_key(json, "stats");
	hr__json_object(json);
#define STATS_FIELD(name, meaning) field_amount(json, #name, stats->name);
	HR_STATS_TABLE(STATS_FIELD)
#undef STATS_FIELD
	field_fraction(json, "fragmentation", stats->fragmentation, 6);
	hr__json_end_object(json);
}

static void write_holders(hr__json *json, const char *by, const hr__report_holders *holders)
{
	hr__json_key(json, by);
	hr__json_object(json);
	hr__json_key(json, "top");
	hr__json_array(json);
	for (uint32_t i = 0; i < holders->count && i < HR__REPORT_TOP; i++) {
		hr__json_object(json);
		field_name(json, "name", holders->top[i].name);
		field_amount(json, "bytes", holders->top[i].bytes);
		field_number(json, "blocks", holders->top[i].count);
		hr__json_end_object(json);
	}
	hr__json_end_array(json);
	field_number(json, "names", holders->names);
	field_amount(json, "rest_bytes", holders->rest_bytes);
	field_amount(json, "rest_blocks", holders->rest_blocks);
	hr__json_end_object(json);
}

static void write_largest(hr__json *json, const hr__report *report)
{
	hr__json_key(json, "largest");
	hr__json_array(json);
	for (uint32_t i = 0; i < report->largest_count && i < HR__REPORT_TOP; i++) {
		const hr__report_block *block = &report->largest[i];
		hr__json_object(json);
		field_number(json, "bytes", block->bytes);
		field_number(json, "requested", block->requested);
		fields_tensor(json, block->op, block->scope, block->tag, block->shape, block->dtype);
		hr__json_end_object(json);
	}
	hr__json_end_array(json);
}

/* Writes only classes that are not empty. */
static void write_sizes(hr__json *json, const hr__report *report)
{
	hr__json_key(json, "sizes");
	hr__json_array(json);
	for (uint32_t i = 0; i < HR__REPORT_SIZES; i++) {
		if (report->size_bytes[i] <= 0 && report->size_blocks[i] <= 0) continue;
		hr__json_object(json);
		field_number(json, "least", UINT64_C(1) << i);
		field_amount(json, "bytes", report->size_bytes[i]);
		field_amount(json, "blocks", report->size_blocks[i]);
		hr__json_end_object(json);
	}
	hr__json_end_array(json);
}

static void write_region(hr__json *json, const hr__report *report, const hr__report_region *region)
{
	hr__json_object(json);
	field_address(json, region->address);
	hr__json_field_bool(json, "small_blocks", region->small_blocks);
	field_number(json, "address_bytes", region->addresses);
	field_number(json, "reserved_bytes", region->reserved);
	field_number(json, "in_use_bytes", region->in_use);
	field_number(json, "cached_bytes", region->cached);
	field_number(json, "free_bytes", region->free);
	field_number(json, "largest_free_bytes", region->largest_free);
	hr__json_key(json, "runs");
	hr__json_array(json);
	uint32_t first = region->first_run < HR__REPORT_RUNS ? region->first_run : HR__REPORT_RUNS;
	for (uint32_t i = first; i < HR__REPORT_RUNS && i - first < region->run_count; i++) {
		const hr__run *run = &report->runs[i];
		hr__json_object(json);
		field_choice(json, "kind", run_names, run->kind);
		field_number(json, "bytes", run->bytes);
		field_number(json, "in_use_bytes", run->in_use);
		field_number(json, "chunks", run->chunks);
		hr__json_end_object(json);
	}
	hr__json_end_array(json);
	hr__json_end_object(json);
}

/* Nothing for a process that is not a rank. */
static void write_ranks(hr__json *json, const hr__report_ranks *ranks)
{
	if (!ranks->self.count) return;
	hr__rank_json(json, &ranks->self);
	hr__json_key(json, "other_ranks");
	hr__json_array(json);
	for (uint32_t i = 0; i < ranks->count && i < HR__REPORT_PEERS; i++) {
		const hr__report_peer *peer = &ranks->peers[i];
		hr__json_object(json);
		field_number(json, "rank", peer->rank);
		field_number(json, "process", peer->process);
		field_text(json, "device", peer->device, sizeof peer->device);
		field_number(json, "in_use_bytes", peer->in_use);
		field_number(json, "peak_bytes", peer->peak);
		field_number(json, "limit_bytes", peer->limit);
		field_number(json, "age_ns", peer->age_ns);
		hr__json_end_object(json);
	}
	hr__json_end_array(json);
	field_number(json, "other_ranks_left_out", ranks->left_out);
}

static void write_entry(hr__json *json, const hr__report *report, const hr__log_entry *entry)
{
	char time[HR__REPORT_TIME_BYTES];
	uint64_t then = bounded(entry->time_ns), now = bounded(report->time_ns);
	double age = (double)(then > now ? then - now : now - then) / 1000;
	hr__json_object(json);
	field_choice(json, "action", hr__report_actions, entry->action);
	hr__json_field_string(json, "time", hr__report_time(then, time));
	field_number(json, "time_ns", then);
	hr__json_field_double(json, "age_us", then > now ? -age : age, 3);
	field_number(json, "thread", entry->thread);
	field_number(json, "bytes", entry->bytes);
	field_address(json, entry->address);
	fields_tensor(json, entry->op, entry->scope, entry->tag, entry->shape, (hr_dtype)entry->dtype);
	hr__json_end_object(json);
}

static void write_log(hr__json *json, const hr__report *report)
{
	const hr__log_entry failed = {
		.time_ns = report->time_ns,
		.bytes = report->bytes,
		.op = report->op,
		.scope = report->scope,
		.tag = report->tag,
		.shape = report->shape,
		.thread = report->thread,
		.dtype = (uint8_t)report->dtype,
		.action = HR__LOG_FAILED,
	};
	hr__json_array(json);
	for (uint32_t i = 0; report->log && i < report->log_count; i++) write_entry(json, report, &report->log[i]);
	write_entry(json, report, &failed);
	hr__json_end_array(json);
}

static bool put_text(void *json, const char *bytes, size_t length)
{
	hr__json_string_part(json, bytes, length);
	return true;
}

static void write_text(hr__json *json, const hr__report *report)
{
	hr__json_key(json, "text");
	hr__json_open_string(json);
	hr__report_text(report, put_text, json);
	hr__json_close_string(json);
}

static void write_whole(hr__json *json, const hr__report *report)
{
	hr__json_object(json);
	hr__json_field_string(json, "format", HR__REPORT_FORMAT);
	hr__json_field_uint(json, "version", HR__REPORT_VERSION);
	write_event(json, report);
	write_request(json, report);
	write_verdict(json, &report->verdict);
	write_allocator(json, report);
	write_device(json, report);
	write_stats(json, &report->stats);
	hr__json_key(json, "holders");
	hr__json_object(json);
	for (unsigned i = 0; holder_names[i]; i++) write_holders(json, holder_names[i], &report->holders[i]);
	hr__json_end_object(json);
	write_largest(json, report);
	write_sizes(json, report);
	hr__json_key(json, "regions");
	hr__json_array(json);
	for (uint32_t i = 0; i < report->region_count && i < HR__REPORT_REGIONS; i++) write_region(json, report, &report->regions[i]);
	hr__json_end_array(json);
	field_number(json, "regions_left_out", report->regions_left_out);
	write_ranks(json, &report->ranks);
	field_number(json, "longest_hold", report->longest_hold);
	field_number(json, "chunks_visited", report->chunks_visited);
	field_number(json, "log_total", report->log_total);
	write_text(json, report);
	hr__json_key(json, "log");
	write_log(json, report);
	hr__json_end_object(json);
}

/* ---- to a sink ---- */

struct target {
	hr__report_sink sink;
	void *context;
	bool failed;
};

/* Keeps a failure here and hides it from the JSON writer, which would replace the thread's message about the request. */
static bool pass_on(void *context, const char *bytes, size_t length)
{
	struct target *target = context;
	if (!target->failed) target->failed = !target->sink(target->context, bytes, length);
	return true;
}

static bool to_sink(const hr__report *report, void (*write)(hr__json *, const hr__report *), hr__report_sink sink, void *context)
{
	struct target target = { sink, context, false };
	hr__json json;
	hr__json_init(&json, pass_on, &target);
	write(&json, report);
	return hr__json_finish(&json) == HR_OK && !target.failed;
}

bool hr__report_json(const hr__report *report, hr__report_sink sink, void *context)
{
	return to_sink(report, write_whole, sink, context);
}

bool hr__report_log_json(const hr__report *report, hr__report_sink sink, void *context)
{
	return to_sink(report, write_log, sink, context);
}
