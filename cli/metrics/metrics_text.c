/* metrics_text.c - see metrics_text.h.
 *
 * The formats differ in little: OpenMetrics names a counter without "_total" in its description, has units, and ends with "# EOF". */
#include "metrics/metrics_text.h"

#include <stddef.h>
#include <string.h>

typedef enum metric_kind { GAUGE, COUNTER } metric_kind;
typedef enum metric_unit { NO_UNIT, BYTES, SECONDS } metric_unit; /* SECONDS: the field is in ns */

typedef struct metric {
	const char *name; /* without "_total" */
	metric_kind kind;
	metric_unit unit;
	size_t offset;    /* of an int64_t */
	bool optional;    /* 0 means unknown or none, and is left out */
	const char *help;
} metric;

#define AT_DEVICE(field) offsetof(hr__segment_device, field)
#define AT_ALLOCATOR(field) offsetof(hr__segment_allocator, field)

static const metric device_metrics[] = {
	{ "headroom_device_in_use_bytes", GAUGE, BYTES, AT_DEVICE(bytes_in_use), false, "Bytes of live blocks on the device." },
	{ "headroom_device_peak_bytes", GAUGE, BYTES, AT_DEVICE(peak_bytes_in_use), false, "Highest bytes in use since the program's start or reset of its statistics." },
	{ "headroom_device_limit_bytes", GAUGE, BYTES, AT_DEVICE(bytes_limit), true, "Most bytes that the program may use; absent without a limit." },
	{ "headroom_device_reserved_bytes", GAUGE, BYTES, AT_DEVICE(bytes_reserved), false, "Bytes that allocators have from the device." },
	{ "headroom_device_cached_bytes", GAUGE, BYTES, AT_DEVICE(bytes_cached), false, "Bytes of freed blocks that threads keep." },
	{ "headroom_device_free_bytes", GAUGE, BYTES, AT_DEVICE(bytes_free), false, "Reserved bytes that are free." },
	{ "headroom_device_inactive_bytes", GAUGE, BYTES, AT_DEVICE(bytes_inactive), false, "Bytes of tensors that could be evicted." },
	{ "headroom_device_live_blocks", GAUGE, NO_UNIT, AT_DEVICE(num_live), false, "Live blocks." },
	{ "headroom_device_allocations", COUNTER, NO_UNIT, AT_DEVICE(num_allocs), false, "Allocations." },
	{ "headroom_device_frees", COUNTER, NO_UNIT, AT_DEVICE(num_frees), false, "Frees." },
	{ "headroom_device_refused_requests", COUNTER, NO_UNIT, AT_DEVICE(num_failed_allocs), false, "Requests that failed for lack of memory." },
	{ "headroom_device_reclaimed_bytes", COUNTER, BYTES, AT_DEVICE(bytes_reclaimed), false, "Bytes freed by evicting or dropping tensors." },
	{ "headroom_device_stitches", COUNTER, NO_UNIT, AT_DEVICE(num_stitches), false, "Times that free pages were mapped side by side." },
	{ "headroom_device_defragmentations", COUNTER, NO_UNIT, AT_DEVICE(num_defragmentations), false, "Times that live tensors were moved to join free memory." },
};

static const metric allocator_metrics[] = {
	{ "headroom_allocator_in_use_bytes", GAUGE, BYTES, AT_ALLOCATOR(bytes_in_use), false, "Bytes of the allocator's live blocks." },
	{ "headroom_allocator_peak_bytes", GAUGE, BYTES, AT_ALLOCATOR(peak_bytes_in_use), false, "Highest bytes in use since the allocator's creation or reset of its statistics." },
	{ "headroom_allocator_limit_bytes", GAUGE, BYTES, AT_ALLOCATOR(bytes_limit), true, "Most bytes that the allocator may use; absent without a limit." },
	{ "headroom_allocator_reserved_bytes", GAUGE, BYTES, AT_ALLOCATOR(bytes_reserved), false, "Bytes that the allocator has from the device." },
	{ "headroom_allocator_live_blocks", GAUGE, NO_UNIT, AT_ALLOCATOR(num_live), false, "The allocator's live blocks." },
	{ "headroom_allocator_allocations", COUNTER, NO_UNIT, AT_ALLOCATOR(num_allocs), false, "Allocations." },
	{ "headroom_allocator_frees", COUNTER, NO_UNIT, AT_ALLOCATOR(num_frees), false, "Frees." },
	{ "headroom_allocator_refused_requests", COUNTER, NO_UNIT, AT_ALLOCATOR(num_failed_allocs), false, "Requests that failed for lack of memory." },
	{ "headroom_lms_steps", COUNTER, NO_UNIT, AT_ALLOCATOR(num_steps), false, "Steps of the program that Large Model Support saw." },
	{ "headroom_lms_evictions", COUNTER, NO_UNIT, AT_ALLOCATOR(num_evictions), false, "Tensors evicted to the host." },
	{ "headroom_lms_restores", COUNTER, NO_UNIT, AT_ALLOCATOR(num_restores), false, "Tensors restored to the device." },
	{ "headroom_lms_recomputes", COUNTER, NO_UNIT, AT_ALLOCATOR(num_recomputes), false, "Dropped tensors computed again." },
	{ "headroom_lms_copied_out_bytes", COUNTER, BYTES, AT_ALLOCATOR(bytes_copied_out), false, "Bytes copied to the host." },
	{ "headroom_lms_copied_in_bytes", COUNTER, BYTES, AT_ALLOCATOR(bytes_copied_in), false, "Bytes copied from the host." },
	{ "headroom_lms_dropped_bytes", COUNTER, BYTES, AT_ALLOCATOR(bytes_dropped), false, "Device bytes freed by dropping tensors." },
	{ "headroom_lms_stall_seconds", COUNTER, SECONDS, AT_ALLOCATOR(stall_ns), false, "Time that streams waited for restores, if the device reports it." },
	{ "headroom_lms_host_bytes", GAUGE, BYTES, AT_ALLOCATOR(host_bytes), false, "Bytes of tensors in pinned host memory." },
};

#define COUNT(array) (sizeof(array) / sizeof *(array))

typedef struct metrics_writer {
	FILE *to;
	bool openmetrics;
} metrics_writer;

/* ---- descriptions ---- */

static void describe(const metrics_writer *w, const char *name, metric_kind kind, metric_unit unit, const char *help)
{
	static const char *const kinds[] = { "gauge", "counter" }, *const units[] = { NULL, "bytes", "seconds" };
	const char *end = kind == COUNTER && !w->openmetrics ? "_total" : "";
	fprintf(w->to, "# TYPE %s%s %s\n", name, end, kinds[kind]);
	if (w->openmetrics && unit) fprintf(w->to, "# UNIT %s %s\n", name, units[unit]);
	fprintf(w->to, "# HELP %s%s %s\n", name, end, help);
}

/* ---- labels ---- */

/* The value of a label, in quotes. Texts of programs are printable ASCII (segments.c). */
static void write_value(FILE *to, const char *text)
{
	putc('"', to);
	for (; *text; text++) {
		if (*text == '"' || *text == '\\') putc('\\', to);
		putc(*text, to);
	}
	putc('"', to);
}

static void write_label(FILE *to, const char *name, const char *text)
{
	fprintf(to, ",%s=", name);
	write_value(to, text);
}

/* Distinguishes [text] from [earlier] equal ones: "bfc", "bfc#2". */
static void write_numbered(FILE *to, const char *name, const char *text, unsigned earlier)
{
	char numbered[64];
	if (earlier) snprintf(numbered, sizeof numbered, "%.32s#%u", text, earlier + 1);
	write_label(to, name, earlier ? numbered : text);
}

/* {process="1",program="train",rank="0" */
static void begin_labels(FILE *to, const hr__segment *s)
{
	fprintf(to, "{process=\"%u\"", s->process);
	write_label(to, "program", s->program);
	if (s->rank.count) fprintf(to, ",rank=\"%u\"", s->rank.number);
}

static unsigned equal_devices(const hr__segment *s, uint32_t before)
{
	unsigned count = 0;
	for (uint32_t i = 0; i < before; i++) count += strcmp(s->devices[i].name, s->devices[before].name) == 0;
	return count;
}

static unsigned equal_allocators(const hr__segment *s, uint32_t before)
{
	const hr__segment_allocator *list = s->allocators;
	unsigned count = 0;
	for (uint32_t i = 0; i < before; i++) count += strcmp(list[i].name, list[before].name) == 0 && strcmp(list[i].device, list[before].device) == 0;
	return count;
}

/* Whether an earlier entry has the same process: a file in each of the two folders. */
static bool is_repeated(const hr__segments *programs, size_t index)
{
	return index > 0 && programs->list[index - 1].process == programs->list[index].process;
}

/* ---- samples ---- */

/* Ends the labels and writes the value of a metric in [fields]. */
static void write_number(FILE *to, const metric *m, const void *fields)
{
	int64_t value;
	memcpy(&value, (const char *)fields + m->offset, sizeof value);
	if (m->unit == SECONDS) fprintf(to, "} %lld.%09lld\n", (long long)value / 1000000000, (long long)value % 1000000000);
	else fprintf(to, "} %lld\n", (long long)value);
}

static bool is_absent(const metric *m, const void *fields)
{
	int64_t value;
	memcpy(&value, (const char *)fields + m->offset, sizeof value);
	return m->optional && value == 0;
}

static void begin_sample(const metrics_writer *w, const metric *m, const hr__segment *s)
{
	fprintf(w->to, "%s%s", m->name, m->kind == COUNTER ? "_total" : "");
	begin_labels(w->to, s);
}

static void write_devices(const metrics_writer *w, const metric *m, const hr__segment *s)
{
	for (uint32_t i = 0; i < s->device_count; i++) {
		if (is_absent(m, &s->devices[i])) continue;
		begin_sample(w, m, s);
		write_numbered(w->to, "device", s->devices[i].name, equal_devices(s, i));
		write_number(w->to, m, &s->devices[i]);
	}
}

static void write_allocators(const metrics_writer *w, const metric *m, const hr__segment *s)
{
	for (uint32_t i = 0; i < s->allocator_count; i++) {
		const hr__segment_allocator *allocator = &s->allocators[i];
		if (is_absent(m, allocator)) continue;
		begin_sample(w, m, s);
		write_label(w->to, "device", allocator->device);
		write_numbered(w->to, "allocator", allocator->name, equal_allocators(s, i));
		write_number(w->to, m, allocator);
	}
}

/* ---- programs ---- */

static void write_infos(const metrics_writer *w, const hr__segments *programs)
{
	describe(w, "headroom_program_info", GAUGE, NO_UNIT, "1 for each program; host, job_id and ranks are those of the job whose rank it is.");
	for (size_t i = 0; i < programs->count; i++) {
		const hr__segment *s = &programs->list[i];
		if (is_repeated(programs, i)) continue;
		fputs("headroom_program_info", w->to);
		begin_labels(w->to, s);
		if (s->rank.count) {
			write_label(w->to, "host", s->rank.host);
			write_label(w->to, "job_id", s->rank.job);
			fprintf(w->to, ",ranks=\"%u\"", s->rank.count);
		}
		fputs("} 1\n", w->to);
	}
}

static void write_starts(const metrics_writer *w, const hr__segments *programs)
{
	describe(w, "headroom_program_start_time_seconds", GAUGE, SECONDS, "When the program began to publish its statistics, in seconds since 1970.");
	for (size_t i = 0; i < programs->count; i++) {
		const hr__segment *s = &programs->list[i];
		if (is_repeated(programs, i)) continue;
		fputs("headroom_program_start_time_seconds", w->to);
		begin_labels(w->to, s);
		fprintf(w->to, "} %llu.%03llu\n", (unsigned long long)(s->begin_wall_ns / 1000000000), (unsigned long long)(s->begin_wall_ns / 1000000 % 1000));
	}
}

static void write_recordings(const metrics_writer *w, const hr__segments *programs)
{
	describe(w, "headroom_program_recording", GAUGE, NO_UNIT, "1 while the program records a trace, otherwise 0.");
	for (size_t i = 0; i < programs->count; i++) {
		if (is_repeated(programs, i)) continue;
		fputs("headroom_program_recording", w->to);
		begin_labels(w->to, &programs->list[i]);
		fprintf(w->to, "} %d\n", programs->list[i].recording != 0);
	}
}

static void write_count(const metrics_writer *w, const hr__segments *programs)
{
	size_t count = 0;
	for (size_t i = 0; i < programs->count; i++) count += !is_repeated(programs, i);
	describe(w, "headroom_programs", GAUGE, NO_UNIT, "Programs that publish their statistics.");
	fprintf(w->to, "headroom_programs %zu\n", count);
}

void hr__metrics_write(FILE *to, const hr__segments *programs, bool openmetrics)
{
	const metrics_writer w = { to, openmetrics };
	write_count(&w, programs);
	write_infos(&w, programs);
	write_starts(&w, programs);
	write_recordings(&w, programs);
	for (size_t m = 0; m < COUNT(device_metrics); m++) {
		describe(&w, device_metrics[m].name, device_metrics[m].kind, device_metrics[m].unit, device_metrics[m].help);
		for (size_t i = 0; i < programs->count; i++)
			if (!is_repeated(programs, i)) write_devices(&w, &device_metrics[m], &programs->list[i]);
	}
	for (size_t m = 0; m < COUNT(allocator_metrics); m++) {
		describe(&w, allocator_metrics[m].name, allocator_metrics[m].kind, allocator_metrics[m].unit, allocator_metrics[m].help);
		for (size_t i = 0; i < programs->count; i++)
			if (!is_repeated(programs, i)) write_allocators(&w, &allocator_metrics[m], &programs->list[i]);
	}
	if (openmetrics) fputs("# EOF\n", to);
}
