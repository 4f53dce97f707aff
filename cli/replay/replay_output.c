/* replay_output.c - output of `headroom replay`: a text summary, or one JSON object. */
#include <stdio.h>
#include <string.h>

#include "core/base/text/json.h"
#include "core/base/text/text.h"
#include "terminal/lines.h"
#include "terminal/output.h"
#include "replay/replay.h"
#include "terminal/term.h"

/* ---- JSON ---- */

static void field_uint(hr__json *json, const char *key, uint64_t value, bool known)
{
	hr__json_key(json, key);
	if (known) hr__json_uint(json, value);
	else hr__json_null(json);
}

static void field_double(hr__json *json, const char *key, double value, int decimals, bool known)
{
	hr__json_key(json, key);
	if (known) hr__json_double(json, value, decimals);
	else hr__json_null(json);
}

static void write_stats(hr__json *json, const hr_stats *stats)
{
	hr__json_key(json, "stats");
	hr__json_object(json);
#define STATS_FIELD(name, text) hr__json_field_int(json, #name, stats->name);
	HR_STATS_TABLE(STATS_FIELD)
#undef STATS_FIELD
	hr__json_field_double(json, "fragmentation", stats->fragmentation, 6);
	hr__json_end_object(json);
}

static uint64_t pages_remapped(const hr__replay *replay)
{
	if (replay->least.limit) return replay->least_remapped;
	return (uint64_t)replay->trial.stats.bytes_stitched / replay->setup.page;
}

static double ratio_to_peak(const hr__replay *replay, uint64_t bytes)
{
	return (double)bytes / (double)replay->program.peak_bytes;
}

void hr__replay_json(const hr__replay *replay)
{
	hr__json json;
	const hr__limit_answer *least = &replay->least;
	const hr__speed *speed = &replay->speed;
	hr__output_json_begin(&json);
	hr__json_object(&json);
	hr__json_field_string(&json, "trace", replay->path);
	hr__json_field_string(&json, "format", hr__trace_format_name(replay->trace.format));
	hr__json_field_string(&json, "allocator", replay->setup.allocator);
	hr__json_field_uint(&json, "threads", replay->setup.threads);
	hr__json_field_bool(&json, "stitch", replay->setup.stitch);
	hr__json_field_uint(&json, "page_bytes", replay->setup.page);
	hr__json_field_uint(&json, "streams", replay->program.trace_streams);
	hr__json_field_uint(&json, "events", replay->program.count);
	hr__json_field_uint(&json, "allocs", replay->program.allocs);
	hr__json_field_uint(&json, "frees", replay->program.frees);
	hr__json_field_uint(&json, "failed_allocs", replay->trial.failed);
	field_uint(&json, "first_failed_event", replay->trial.first_failed, replay->trial.failed > 0);
	hr__json_field_uint(&json, "peak_live_bytes", replay->program.peak_bytes);
	field_uint(&json, "limit_bytes", replay->setup.limit, replay->setup.limit > 0);
	field_uint(&json, "min_limit_bytes", least->limit, least->limit > 0);
	field_double(&json, "min_limit_ratio", ratio_to_peak(replay, least->limit), 6, least->limit > 0);
	field_uint(&json, "lowest_success_bytes", least->lowest_success, least->limit > 0);
	field_double(&json, "ns_per_op", speed->ns_per_op, 3, replay->timed);
	field_uint(&json, "timed_passes", speed->passes, replay->timed);
	field_double(&json, "alloc_p50_ns", speed->alloc_p50_ns, 1, replay->timed);
	field_double(&json, "alloc_p99_ns", speed->alloc_p99_ns, 1, replay->timed);
	field_double(&json, "free_p50_ns", speed->free_p50_ns, 1, replay->timed && replay->program.frees > 0);
	field_double(&json, "free_p99_ns", speed->free_p99_ns, 1, replay->timed && replay->program.frees > 0);
	hr__json_field_uint(&json, "pages_remapped", pages_remapped(replay));
	write_stats(&json, &replay->trial.stats);
	hr__json_end_object(&json);
	hr__output_json_end(&json);
}

/* ---- text ---- */

#define STATS_TEXT_BYTES 8192

static void print_trace(const hr__replay *replay)
{
	char allocs[32], frees[32];
	const hr__program *program = &replay->program;
	hr__line_begin("trace");
	printf("%s (%s%s)\n", replay->path, hr__trace_format_name(replay->trace.format), replay->trace.gzip ? ", gzip" : "");
	hr__line_begin("events");
	hr__line_add("%s allocation%s, %s free%s", hr__format_count(program->allocs, allocs, sizeof allocs), hr__plural(program->allocs),
	       hr__format_count(program->frees, frees, sizeof frees), hr__plural(program->frees));
	if (program->trace_streams > 1) hr__line_add(", %u streams", program->trace_streams);
	if (program->trace_threads > 1) hr__line_add(", %u threads (replayed in recorded order)", program->trace_threads);
	hr__line_add("\n");
}

static void print_notes(const hr__replay *replay)
{
	char notes[2048];
	hr__trace_facts_notes(&replay->trace, HR__FACTS_REPLAY, notes, sizeof notes);
	for (char *line = notes, *end; (end = strchr(line, '\n')) != NULL; line = end + 1) {
		hr__line_begin("note");
		hr__line_add("%.*s\n", (int)(end - line), line);
	}
	if (replay->program.trace_streams > HR_STREAM_MAX) {
		hr__line_begin("note");
		hr__line_add("%u streams share the %u that a device can have\n", replay->program.trace_streams, HR_STREAM_MAX);
	}
	if (replay->timed && replay->speed.failed) {
		hr__line_begin("note");
		hr__line_add("%llu allocation%s failed in timed passes, after one that fitted: the limit is tight\n",
		       (unsigned long long)replay->speed.failed, hr__plural(replay->speed.failed));
	}
}

static void print_memory(const hr__replay *replay)
{
	char human[16], digits[32];
	const hr__program *program = &replay->program;
	const hr_stats *stats = &replay->trial.stats;
	uint64_t reserved = (uint64_t)stats->peak_bytes_reserved;
	hr__line_begin("peak");
	hr__line_add("%s live (%s bytes), at event %s\n", hr__format_size(program->peak_bytes, human, sizeof human),
	             hr__format_count(program->peak_bytes, digits, sizeof digits),
	             hr__format_count(program->peak_event, (char[32]){ 0 }, 32));
	hr__line_begin("reserved");
	hr__line_add("%s at most, %.3f times the peak%s", hr__format_size(reserved, human, sizeof human),
	       ratio_to_peak(replay, reserved) / replay->setup.threads, replay->setup.threads > 1 ? " of all copies" : "");
	hr__line_add("; %s%s, pages of %s\n", replay->setup.allocator, replay->setup.stitch ? "" : " without stitching",
	       hr__format_size(replay->setup.page, human, sizeof human));
}

static void print_limit(const hr__replay *replay)
{
	char human[16], digits[32];
	const hr__trial *trial = &replay->trial;
	const char *each = replay->setup.threads > 1 ? " for each copy" : "";
	if (!replay->setup.limit) return;
	hr__line_begin("limit");
	hr__line_add("%s%s, %.3f times the peak: ", hr__format_size(replay->setup.limit, human, sizeof human), each,
	       ratio_to_peak(replay, replay->setup.limit));
	if (!trial->failed) {
		hr__line_add("%sit fits%s\n", hr__style(stdout, HR__STYLE_GOOD), hr__style(stdout, HR__STYLE_PLAIN));
		return;
	}
	hr__line_add("%sit does not fit%s\n", hr__style(stdout, HR__STYLE_ERROR), hr__style(stdout, HR__STYLE_PLAIN));
	hr__line_begin("failed");
	hr__line_add("%s allocation%s; the first, at event %s, asked for %s\n", hr__format_count(trial->failed, digits, sizeof digits),
	             hr__plural(trial->failed), hr__format_count(trial->first_failed, (char[32]){ 0 }, 32),
	             hr__format_size(replay->program.events[trial->first_failed].bytes, human, sizeof human));
	hr__line_begin("");
	hr__line_add_quoted(trial->message);
	hr__line_add("\n");
}

static void print_least(const hr__replay *replay)
{
	char human[16], digits[32];
	const hr__limit_answer *least = &replay->least;
	if (!least->limit) return;
	hr__line_begin("least limit");
	hr__line_add("%s%s%s (%s bytes), %s%.3f%s times the peak; %u limits tried\n", hr__style(stdout, HR__STYLE_STRONG),
	       hr__format_size(least->limit, human, sizeof human), hr__style(stdout, HR__STYLE_PLAIN),
	       hr__format_count(least->limit, digits, sizeof digits), hr__style(stdout, HR__STYLE_STRONG),
	       ratio_to_peak(replay, least->limit), hr__style(stdout, HR__STYLE_PLAIN), least->runs);
	if (replay->setup.stitch) {
		hr__line_begin("");
		hr__line_add("there, %s page%s mapped side by side\n", hr__format_count(replay->least_remapped, digits, sizeof digits),
		       replay->least_remapped == 1 ? " is" : "s are");
	}
	if (least->lowest_success >= least->limit) return;
	hr__line_begin("");
	hr__line_add("it also runs at %.4f times the peak (%s bytes), but fails again at up to %.4f\n",
	       ratio_to_peak(replay, least->lowest_success), hr__format_count(least->lowest_success, digits, sizeof digits),
	       ratio_to_peak(replay, least->highest_failure));
}

static void print_speed(const hr__replay *replay)
{
	const hr__speed *speed = &replay->speed;
	if (!replay->timed) return;
	hr__line_begin("speed");
	hr__line_add("%s%.1f ns%s per operation, %u thread%s, best of %llu passes\n", hr__style(stdout, HR__STYLE_STRONG), speed->ns_per_op,
	       hr__style(stdout, HR__STYLE_PLAIN), replay->setup.threads, replay->setup.threads > 1 ? "s together" : "",
	       (unsigned long long)speed->passes);
	hr__line_begin("");
	hr__line_add("alone, an alloc takes %.0f ns (p50) and %.0f ns (p99), a free %.0f and %.0f\n", speed->alloc_p50_ns,
	       speed->alloc_p99_ns, speed->free_p50_ns, speed->free_p99_ns);
}

struct counted_source {
	const char *name;
	int64_t count;
};

/* Sources of allocations, in the order in which the allocator tries them. */
static void print_sources(const hr__replay *replay)
{
	const hr_stats *stats = &replay->trial.stats;
	const struct counted_source sources[] = { { "thread cache", stats->source_cache }, { "free memory", stats->source_free_chunk },
		                                      { "growth", stats->source_grow },        { "trimming", stats->source_trim },
		                                      { "stitching", stats->source_stitch },   { "the device", stats->source_device } };
	double total = (double)(stats->num_allocs - stats->num_failed_allocs);
	const char *between = "";
	hr__line_begin("came from");
	for (size_t i = 0; i < sizeof sources / sizeof *sources; i++) {
		if (!sources[i].count) continue;
		hr__line_add("%s%s %.1f%%", between, sources[i].name, 100.0 * (double)sources[i].count / total);
		between = ", ";
	}
	if (total == 0) hr__line_add("no source: nothing was allocated");
	hr__line_add("\n");
	if (!stats->num_stitches) return;
	hr__line_begin("stitched");
	hr__line_add("%lld time%s, %llu page%s remapped\n", (long long)stats->num_stitches, hr__plural((uint64_t)stats->num_stitches),
	       (unsigned long long)pages_remapped(replay), hr__plural(pages_remapped(replay)));
}

/* The statistics as formatted by the library, without lines that are 0. */
static void print_statistics(const hr__replay *replay)
{
	char text[STATS_TEXT_BYTES];
	hr_stats_format(&replay->trial.stats, text, sizeof text);
	printf("\n%sStatistics after the last event%s (those that are 0 left out)\n\n", hr__style(stdout, HR__STYLE_HEADING),
	       hr__style(stdout, HR__STYLE_PLAIN));
	for (char *line = text, *end; (end = strchr(line, '\n')) != NULL; line = end + 1) {
		char *value = line + strcspn(line, " ");
		value += strspn(value, " ");
		if (value[0] == '0' && (value[1] == '\n' || value[1] == ' ' || strncmp(value, "0.0%\n", 5) == 0)) continue;
		printf("  %.*s\n", (int)(end - line), line);
	}
}

hr_status hr__replay_text(const hr__replay *replay, bool picture)
{
	print_trace(replay);
	print_memory(replay);
	print_limit(replay);
	print_least(replay);
	print_speed(replay);
	print_sources(replay);
	print_notes(replay);
	if (!picture) return HR_OK;
	print_statistics(replay);
	return hr__replay_picture(replay);
}
