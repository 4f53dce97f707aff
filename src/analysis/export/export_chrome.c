/* export_chrome.c - Chrome's trace JSON ("Trace Event Format"), which Perfetto opens.
 *
 *     process 1 "program"   one thread of slices for steps, one with the ops of each thread of the program, and one with instant
 *                           events for moves and refusals
 *     process 2, 3...       one per device, with counters: bytes in use of each allocator, and their sum if there are several
 *
 * Times are in microseconds with three decimals, which is exact. */
#include <stdio.h>

#include "core/base/text/json.h"
#include "analysis/capture/frame_text.h"
#include "analysis/export/export_file.h"
#include "analysis/export/export_formats.h"

#define STACK_TEXT_BYTES 8192

enum { PROGRAM = 1, FIRST_DEVICE = 2 };            /* processes */
enum { STEPS = 1, EVENTS = 2, FIRST_THREAD = 10 }; /* threads of process 1 */

/* ---- parts of an event ---- */

static void put_us(hr__json *json, const char *key, uint64_t ns)
{
	/* Exact up to 104 days; beyond that a double cannot represent single nanoseconds. */
	hr__json_field_double(json, key, (double)(ns / 1000) + (double)(ns % 1000) / 1000, 3);
}

static void begin_event(hr__json *json, const char *phase, const char *name, uint64_t pid, uint64_t tid)
{
	hr__json_object(json);
	hr__json_field_string(json, "ph", phase);
	hr__json_field_string(json, "name", name);
	hr__json_field_uint(json, "pid", pid);
	hr__json_field_uint(json, "tid", tid);
}

static void begin_args(hr__json *json)
{
	hr__json_key(json, "args");
	hr__json_object(json);
}

static void end_args(hr__json *json)
{
	hr__json_end_object(json);
	hr__json_end_object(json);
}

static void put_name(hr__json *json, const char *what, const char *name, uint64_t pid, uint64_t tid, uint64_t order)
{
	begin_event(json, "M", what, pid, tid);
	begin_args(json);
	hr__json_field_string(json, "name", name);
	end_args(json);
	begin_event(json, "M", tid ? "thread_sort_index" : "process_sort_index", pid, tid);
	begin_args(json);
	hr__json_field_uint(json, "sort_index", order);
	end_args(json);
}

/* ---- names of processes and threads ---- */

static void put_names(hr__json *json, const hr__capture *capture, const hr__export_threads *threads)
{
	char name[48];
	put_name(json, "process_name", "program", PROGRAM, 0, 0);
	if (capture->step_count) put_name(json, "thread_name", "steps", PROGRAM, STEPS, STEPS);
	if (capture->move_count || capture->refusal_count) put_name(json, "thread_name", "moves and refusals", PROGRAM, EVENTS, EVENTS);
	for (uint32_t i = 0; i < threads->count; i++) {
		if (!threads->ops[i]) continue;
		snprintf(name, sizeof name, "thread %u", i);
		put_name(json, "thread_name", name, PROGRAM, FIRST_THREAD + (uint64_t)i, FIRST_THREAD + (uint64_t)i);
	}
	for (uint32_t i = 0; i < capture->device_count; i++) {
		snprintf(name, sizeof name, "memory of %s", capture->devices[i].name);
		put_name(json, "process_name", name, FIRST_DEVICE + (uint64_t)i, 0, 1 + (uint64_t)i);
	}
}

/* ---- slices and instant events ---- */

static void put_slice_times(hr__json *json, const hr__capture *capture, uint64_t begin_ns, uint64_t end_ns)
{
	put_us(json, "ts", begin_ns);
	put_us(json, "dur", hr__export_end(capture, end_ns, begin_ns) - begin_ns);
}

static void put_step(hr__json *json, const hr__capture *capture, const hr__step_run *step)
{
	char name[48];
	snprintf(name, sizeof name, "step %llu", (unsigned long long)step->number);
	begin_event(json, "X", name, PROGRAM, STEPS);
	hr__json_field_string(json, "cat", "step");
	put_slice_times(json, capture, step->begin_ns, step->end_ns);
	begin_args(json);
	hr__json_field_uint(json, "step", step->number);
	end_args(json);
}

static void put_op(hr__json *json, const hr__capture *capture, const hr__op_run *op)
{
	char name[HR__EXPORT_NAME_BYTES];
	begin_event(json, "X", op->op != HR_NAME_NONE ? hr_name_text(op->op) : hr__export_op_name(op->scope, op->op, name), PROGRAM,
	            FIRST_THREAD + (uint64_t)op->thread);
	hr__json_field_string(json, "cat", "op");
	put_slice_times(json, capture, op->begin_ns, op->end_ns);
	begin_args(json);
	hr__json_field_string(json, "scope", hr_name_text(op->scope));
	if (op->step != HR__NONE) hr__json_field_uint(json, "step", capture->steps[op->step].number);
	if (op->device_ns) hr__json_field_uint(json, "device_ns", op->device_ns);
	if (op->end_ns == HR__NEVER) hr__json_field_bool(json, "unfinished", true);
	end_args(json);
}

/* "inner (model.c:7) < outer (model.c:30) < ...": a viewer shows an argument in one line. */
static void put_stack(hr__json *json, hr_stack stack)
{
	hr_frame frames[HR_STACK_DEPTH_MAX];
	char text[STACK_TEXT_BYTES], frame[HR__FRAME_TEXT_BYTES];
	size_t count = hr_stack_get_frames(stack, frames, HR_STACK_DEPTH_MAX), used = 0;
	for (size_t i = 0; i < count && used < sizeof text; i++)
		used += (size_t)snprintf(text + used, sizeof text - used, "%s%s", i ? " < " : "", hr__frame_text(&frames[i], frame));
	if (count) hr__json_field_string(json, "stack", text);
}

static void put_mark(hr__json *json, const hr__capture *capture, const char *name, uint64_t time_ns, uint64_t bytes,
                     uint32_t site_index)
{
	const hr__site *site = &capture->sites[site_index];
	char text[HR__EXPORT_NAME_BYTES];
	begin_event(json, "i", name, PROGRAM, EVENTS);
	hr__json_field_string(json, "s", "t");
	put_us(json, "ts", time_ns);
	begin_args(json);
	hr__json_field_uint(json, "bytes", bytes);
	hr__json_field_string(json, "op", hr__export_op_name(site->scope, site->op, text));
	hr__json_field_string(json, "tag", hr_name_text(site->tag));
	hr__json_field_string(json, "allocator", capture->allocators[site->allocator].name);
	put_stack(json, site->stack);
	end_args(json);
}

/* ---- counters ---- */

static void put_counter(hr__json *json, const char *name, uint32_t device, uint64_t time_ns, uint64_t bytes)
{
	begin_event(json, "C", name, FIRST_DEVICE + (uint64_t)device, 0);
	put_us(json, "ts", time_ns);
	begin_args(json);
	hr__json_field_uint(json, "bytes", bytes);
	end_args(json);
}

/* Lookup tables for writing events. */
struct tables {
	hr__export_threads threads;
	hr__export_sums sums;
	hr__export_labels labels;
};

static void put_changes(hr__json *json, const hr__capture *capture, struct tables *tables)
{
	hr__export_sums *sums = &tables->sums;
	char name[HR__EXPORT_LABEL_BYTES + 8];
	for (uint32_t i = 0; i < capture->change_count && !json->failed; i++) {
		const hr__change *change = &capture->changes[i];
		uint32_t allocator = hr__allocation_allocator(capture, change->allocation), device = capture->allocators[allocator].device;
		uint64_t now = hr__export_change_ns(capture, change);
		hr__export_sums_take(capture, sums, change);
		snprintf(name, sizeof name, "%s in use", tables->labels.of[allocator]);
		put_counter(json, name, device, now, sums->allocators[allocator]);
		if (sums->allocators_on[device] > 1) put_counter(json, "all in use", device, now, sums->devices[device]);
	}
}

static void put_events(hr__json *json, const hr__capture *capture, struct tables *tables)
{
	put_names(json, capture, &tables->threads);
	for (uint32_t i = 0; i < capture->step_count; i++) put_step(json, capture, &capture->steps[i]);
	for (uint32_t i = 0; i < capture->op_count && !json->failed; i++) put_op(json, capture, &capture->ops[i]);
	for (uint32_t i = 0; i < capture->move_count && !json->failed; i++) {
		const hr__move *move = &capture->moves[i];
		put_mark(json, capture, hr__export_move_text(move), move->time_ns, move->bytes, move->site);
	}
	for (uint32_t i = 0; i < capture->refusal_count && !json->failed; i++) {
		const hr__refusal *refusal = &capture->refusals[i];
		put_mark(json, capture, "request refused", refusal->time_ns, refusal->bytes, refusal->site);
	}
	put_changes(json, capture, tables);
}

static hr_status put_all(hr__export_file *file, const hr__capture *capture, struct tables *tables)
{
	hr__json json;
	hr__json_init(&json, hr__export_file_write, file);
	hr__json_object(&json);
	hr__json_field_string(&json, "displayTimeUnit", "ms");
	hr__json_key(&json, "traceEvents");
	hr__json_array(&json);
	put_events(&json, capture, tables);
	hr__json_end_array(&json);
	hr__json_key(&json, "otherData");
	hr__json_object(&json);
	hr__json_field_string(&json, "writer", "headroom");
	hr__json_field_uint(&json, "start_wall_ns", capture->start_wall_ns);
	hr__json_field_bool(&json, "complete", capture->complete);
	hr__json_end_object(&json);
	hr__json_end_object(&json);
	return hr__json_finish(&json);
}

hr_status hr__export_chrome(const hr__capture *capture, const char *path)
{
	struct tables tables = { 0 };
	hr__export_file *file;
	hr_status status = hr__export_sums_init(capture, &tables.sums);
	if (!status) status = hr__export_threads_init(capture, &tables.threads);
	if (!status) status = hr__export_labels_init(capture, &tables.labels);
	if (!status) status = hr__export_file_open(path, &file);
	if (!status) status = hr__export_file_close(file, put_all(file, capture, &tables));
	hr__export_threads_free(&tables.threads);
	hr__export_sums_free(&tables.sums);
	hr__export_labels_free(&tables.labels);
	return status;
}
