/* export_xplane.c - a log directory for TensorBoard and XProf: LOGDIR/plugins/profile/RUN/HOST.xplane.pb, where RUN is the time
 * when the recording began, to the nanosecond.
 *
 * The file is an XSpace with one plane, "/host:CPU", which the Memory Profile reads. Its lines are:
 *
 *     memory               MemoryAllocation and MemoryDeallocation, as TensorFlow's allocators emit them: bytes in use after each
 *                          event, and what was allocated
 *     steps                a slice for each step
 *     moves and refusals   instant events
 *     thread N             a slice for each op, named "scope/op:Type", which op statistics parse; the display name is "scope/op"
 *
 * How XProf interprets the file, and what that means here:
 *
 *     - Times of memory events are relative to the beginning of their line, so all lines begin at 0, the start of the recording.
 *     - Events with an op ("tf_op") count as runs of the op in the op statistics, even allocations. The op statistics use an
 *       event's first stat of a name, the Memory Profile its last; so an allocation's first tf_op is empty.
 *     - Numbers are read as int64, texts as references and fragmentation as a double; a stat of another type reads as 0.
 *     - An event with a group and a step name is a step; it counts if an op has the same group. Step numbers may repeat in a
 *       recording, so the group is the step's position, from 1.
 *     - The table of what was live at the peak contains only events of the peak's group. All memory events have the same group,
 *       after those of the steps; otherwise weights allocated in an earlier step would have no names. A last group below 1
 *       would mark the steps as truncated.
 *     - The memory that sorts first by name is shown first, so names are numbered: devices before host memory, the largest first.
 *     - The capacity shown is the sum of bytes in use and bytes available at the peak.
 *     - "bytes_reserved" would be added to the bytes in use, so it is left out.
 *
 * Everything is generated twice: first to compute the lengths that precede each part, then to write. So only names take memory,
 * regardless of the length of the recording. */
#define _GNU_SOURCE /* qsort_r */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/base/assert.h"
#include "core/base/status.h"
#include "core/os/os.h"
#include "analysis/export/export_file.h"
#include "analysis/export/export_formats.h"
#include "analysis/export/export_strings.h"
#include "analysis/capture/holes.h"
#include "analysis/export/protobuf.h"

#define PLANE_NAME "/host:CPU"
#define PROTOBUF_MAX INT32_MAX /* maximum size that readers accept */

/* Field numbers of XProf's XSpace. */
enum { SPACE_PLANES = 1 };
enum { PLANE_ID = 1, PLANE_FIELD_NAME, PLANE_LINES, PLANE_EVENT_METADATA, PLANE_STAT_METADATA };
enum { ENTRY_KEY = 1, ENTRY_VALUE };
enum { METADATA_ID = 1, METADATA_NAME, METADATA_DISPLAY_NAME = 4 };
enum { LINE_ID = 1, LINE_NAME, LINE_EVENTS = 4, LINE_DURATION_PS = 9 };
enum { EVENT_METADATA_ID = 1, EVENT_OFFSET_PS, EVENT_DURATION_PS, EVENT_STATS };
enum { STAT_METADATA_ID = 1, STAT_DOUBLE, STAT_INT64 = 4, STAT_TEXT, STAT_REFERENCE = 7 };

#define STAT_TABLE(X)                         \
	X(ALLOCATOR_NAME, "allocator_name")       \
	X(BYTES_ALLOCATED, "bytes_allocated")     \
	X(BYTES_AVAILABLE, "bytes_available")     \
	X(PEAK_BYTES_IN_USE, "peak_bytes_in_use") \
	X(REQUESTED_BYTES, "requested_bytes")     \
	X(ALLOCATION_BYTES, "allocation_bytes")   \
	X(FRAGMENTATION, "fragmentation")         \
	X(ADDR, "addr")                           \
	X(TF_OP, "tf_op")                         \
	X(REGION_TYPE, "region_type")             \
	X(DATA_TYPE, "data_type")                 \
	X(SHAPE, "shape")                         \
	X(GROUP_ID, "group_id")                   \
	X(STEP_NAME, "step_name")                 \
	X(STEP, "step")                           \
	X(DEVICE_NS, "device_ns")                 \
	X(BYTES, "bytes")                         \
	X(OP, "op")

enum stat {
	NO_STAT, /* ids begin at 1 */
#define STAT_ENUM(id, name) id,
	STAT_TABLE(STAT_ENUM)
#undef STAT_ENUM
	FIRST_TEXT /* ids from here on are texts that stats refer to */
};

static const char *const stat_names[] = {
#define STAT_NAME(id, name) [id] = name,
	STAT_TABLE(STAT_NAME)
#undef STAT_NAME
};

enum { ALLOCATION = 1, DEALLOCATION, FIRST_EVENT }; /* event ids; from FIRST_EVENT on, op events and other events alternate */
enum xplane_event_kind { OP_EVENT, OTHER_EVENT, KINDS };
enum { MEMORY_LINE = 1, STEP_LINE, MARK_LINE, FIRST_THREAD_LINE };

/* Destination of bytes: a file, or only a count. */
struct sink {
	hr__export_file *file; /* NULL: only count */
	uint64_t bytes;
};

struct xplane_exporter;

struct line {
	void (*add_events)(struct xplane_exporter *e, const struct line *line, struct sink *sink);
	char name[32];
	int64_t id;
	uint32_t thread; /* for lines of ops */
	uint64_t bytes;
};

/* Text ids of a site; 0: none. */
struct site_texts {
	uint64_t op, tag, shape;
};

struct xplane_exporter {
	const hr__capture *capture;
	hr__export_strings texts;        /* texts that stats refer to */
	hr__export_strings names[KINDS]; /* display names of events */
	hr__export_threads threads;
	struct site_texts *sites;
	uint64_t *allocators; /* text ids of their names */
	uint32_t *by_thread;  /* op indices, grouped by thread */
	uint32_t *first_of;   /* index of each thread's first op in by_thread */
	struct line *lines;
	uint32_t line_count, line_capacity;
	hr__protobuf event, part; /* the event being built, and a part of it */
	hr_status status;         /* the first failure */
};

/* ---- writing ---- */

static void put(struct sink *sink, const void *bytes, size_t length)
{
	if (sink->file) hr__export_file_write(sink->file, bytes, length);
	sink->bytes += length;
}

static void put_header(struct sink *sink, unsigned field, uint64_t length)
{
	uint8_t header[HR__PROTOBUF_HEADER_BYTES];
	put(sink, header, hr__protobuf_header(field, length, header));
}

static void put_message(struct sink *sink, unsigned field, const hr__protobuf *message)
{
	put_header(sink, field, message->used);
	put(sink, message->bytes, message->used);
}

/* ---- an event and its stats ---- */

static uint64_t picoseconds(uint64_t ns)
{
	return ns < INT64_MAX / 1000 ? ns * 1000 : INT64_MAX;
}

static void event_begin(struct xplane_exporter *e, int64_t id, uint64_t begin_ns, uint64_t end_ns)
{
	e->event.used = 0;
	hr__protobuf_number(&e->event, EVENT_METADATA_ID, (uint64_t)id);
	hr__protobuf_number(&e->event, EVENT_OFFSET_PS, picoseconds(begin_ns));
	hr__protobuf_number(&e->event, EVENT_DURATION_PS, picoseconds(end_ns) - picoseconds(begin_ns));
}

static void stat_begin(struct xplane_exporter *e, enum stat id)
{
	e->part.used = 0;
	hr__protobuf_number(&e->part, STAT_METADATA_ID, id);
}

static void stat_end(struct xplane_exporter *e)
{
	hr__protobuf_message(&e->event, EVENT_STATS, &e->part);
}

static void event_number(struct xplane_exporter *e, enum stat id, uint64_t value)
{
	stat_begin(e, id);
	hr__protobuf_number(&e->part, STAT_INT64, value);
	stat_end(e);
}

static void event_part(struct xplane_exporter *e, enum stat id, double value)
{
	stat_begin(e, id);
	hr__protobuf_double(&e->part, STAT_DOUBLE, value);
	stat_end(e);
}

static void event_text(struct xplane_exporter *e, enum stat id, uint64_t text)
{
	if (!text) return;
	stat_begin(e, id);
	hr__protobuf_number(&e->part, STAT_REFERENCE, text);
	stat_end(e);
}

static void event_end(const struct xplane_exporter *e, struct sink *sink)
{
	if (!e->status) put_message(sink, LINE_EVENTS, &e->event);
}

/* The id of a text for stats to refer to; 0 for "". */
static uint64_t text_id(struct xplane_exporter *e, const char *text)
{
	return text[0] ? (uint64_t)FIRST_TEXT + hr__export_strings_add(&e->texts, text, &e->status) : 0;
}

/* The id of events with the display name [text]. */
static int64_t shown_as(struct xplane_exporter *e, enum xplane_event_kind kind, const char *text)
{
	return FIRST_EVENT + (int64_t)hr__export_strings_add(&e->names[kind], text, &e->status) * KINDS + kind;
}

/* ---- names ---- */

/* Sort rank: devices, then CPU memory, then the host memory that tensors are evicted to. */
static int rank_of(const hr__capture *c, uint32_t allocator)
{
	uint32_t device = c->allocators[allocator].device;
	if (hr__capture_is_host_pool(c, device)) return 2;
	return strncmp(c->devices[device].name, "CPU", 3) == 0;
}

static int compare_allocators(const void *a, const void *b, void *context)
{
	const hr__capture *c = context;
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
	int left = rank_of(c, x), right = rank_of(c, y);
	if (left != right) return left - right;
	if (c->allocators[x].peak_bytes != c->allocators[y].peak_bytes) return c->allocators[x].peak_bytes > c->allocators[y].peak_bytes ? -1 : 1;
	return x < y ? -1 : x > y;
}

/* Names allocators "1. all", "2. limited", so that sorting by name gives the intended order. A single allocator gets no number. */
static void name_allocators(struct xplane_exporter *e, const hr__export_labels *labels)
{
	const hr__capture *c = e->capture;
	char text[HR__EXPORT_LABEL_BYTES + 16];
	size_t bytes = ((size_t)c->allocator_count + 1) * sizeof(uint32_t);
	uint32_t count = 0, *order = hr__export_take(&e->status, bytes);
	for (uint32_t i = 0; i < c->allocator_count && order; i++)
		if (c->allocators[i].first_ns != HR__NEVER) order[count++] = i;
	if (count) qsort_r(order, count, sizeof *order, compare_allocators, (void *)c);
	for (uint32_t i = 0; i < count && !e->status; i++) {
		if (count == 1) snprintf(text, sizeof text, "%s", labels->of[order[i]]);
		else snprintf(text, sizeof text, count < 10 ? "%u. %s" : "%05u. %s", i + 1, labels->of[order[i]]);
		e->allocators[order[i]] = text_id(e, text);
	}
	hr__export_give(order, bytes);
}

static void take_texts(struct xplane_exporter *e)
{
	const hr__capture *c = e->capture;
	char text[HR__EXPORT_NAME_BYTES];
	for (uint32_t i = 0; i < c->site_count && !e->status; i++) {
		hr__site site = c->sites[i];
		e->sites[i].op = text_id(e, hr__export_op_name(site.scope, site.op, text));
		e->sites[i].tag = text_id(e, hr_name_text(site.tag));
		site.dtype = HR_DTYPE_NONE; /* has its own stat */
		e->sites[i].shape = text_id(e, hr__export_type(&site, text));
	}
	hr__export_labels labels = { 0 };
	if (!e->status) e->status = hr__export_labels_init(c, &labels);
	if (!e->status) name_allocators(e, &labels);
	hr__export_labels_free(&labels);
}

/* ---- steps, instant events, ops ---- */

/* The group of a step. Memory events use the group after the last step's. */
static uint64_t group_of(uint32_t step)
{
	return (uint64_t)step + 1;
}

static void add_steps(struct xplane_exporter *e, const struct line *line, struct sink *sink)
{
	const hr__capture *c = e->capture;
	char name[48];
	(void)line;
	for (uint32_t i = 0; i < c->step_count && !e->status; i++) {
		const hr__step_run *step = &c->steps[i];
		snprintf(name, sizeof name, "step %llu", (unsigned long long)step->number);
		event_begin(e, shown_as(e, OTHER_EVENT, name), step->begin_ns, hr__export_end(c, step->end_ns, step->begin_ns));
		event_number(e, STEP, step->number);
		event_number(e, GROUP_ID, group_of(i));
		event_text(e, STEP_NAME, text_id(e, name + sizeof "step"));
		event_end(e, sink);
	}
}

static void add_mark(struct xplane_exporter *e, struct sink *sink, const char *name, uint64_t time_ns, uint64_t bytes,
                     uint32_t site_index)
{
	event_begin(e, shown_as(e, OTHER_EVENT, name), time_ns, time_ns);
	event_number(e, BYTES, bytes);
	event_text(e, OP, e->sites[site_index].op);
	event_end(e, sink);
}

static void add_marks(struct xplane_exporter *e, const struct line *line, struct sink *sink)
{
	const hr__capture *c = e->capture;
	(void)line;
	for (uint32_t i = 0; i < c->move_count && !e->status; i++)
		add_mark(e, sink, hr__export_move_text(&c->moves[i]), c->moves[i].time_ns, c->moves[i].bytes, c->moves[i].site);
	for (uint32_t i = 0; i < c->refusal_count && !e->status; i++)
		add_mark(e, sink, "request refused", c->refusals[i].time_ns, c->refusals[i].bytes, c->refusals[i].site);
}

static void add_ops(struct xplane_exporter *e, const struct line *line, struct sink *sink)
{
	const hr__capture *c = e->capture;
	char name[HR__EXPORT_NAME_BYTES];
	uint32_t first = e->first_of[line->thread];
	for (uint32_t i = 0; i < e->threads.ops[line->thread] && !e->status; i++) {
		const hr__op_run *op = &c->ops[e->by_thread[first + i]];
		int64_t id = shown_as(e, OP_EVENT, hr__export_op_name(op->scope, op->op, name));
		event_begin(e, id, op->begin_ns, hr__export_end(c, op->end_ns, op->begin_ns));
		if (op->step != HR__NONE) event_number(e, GROUP_ID, group_of(op->step));
		if (op->step != HR__NONE) event_number(e, STEP, c->steps[op->step].number);
		if (op->device_ns) event_number(e, DEVICE_NS, op->device_ns);
		event_end(e, sink);
	}
}

/* ---- memory events ---- */

static int64_t tensorflow_type(hr_dtype dtype)
{
	switch (dtype) {
	case HR_DTYPE_NONE: return 0;
	case HR_DTYPE_FLOAT32: return 1;
	case HR_DTYPE_FLOAT64: return 2;
	case HR_DTYPE_INT32: return 3;
	case HR_DTYPE_UINT8: return 4;
	case HR_DTYPE_INT16: return 5;
	case HR_DTYPE_INT8: return 6;
	case HR_DTYPE_INT64: return 9;
	case HR_DTYPE_BOOL: return 10;
	case HR_DTYPE_BFLOAT16: return 14;
	case HR_DTYPE_FLOAT16: return 19;
	}
	return 0;
}

/* Adds what was allocated. Not used for frees, for which XProf finds the allocation by its address. */
static void describe(struct xplane_exporter *e, uint32_t site)
{
	const struct site_texts *texts = &e->sites[site];
	hr_dtype dtype = e->capture->sites[site].dtype;
	stat_begin(e, TF_OP);
	hr__protobuf_text(&e->part, STAT_TEXT, "");
	stat_end(e);
	event_text(e, TF_OP, texts->op);
	event_text(e, REGION_TYPE, texts->tag);
	event_text(e, SHAPE, texts->shape);
	if (dtype != HR_DTYPE_NONE) event_number(e, DATA_TYPE, (uint64_t)tensorflow_type(dtype));
}

/* State while replaying changes. */
struct levels {
	hr__export_sums sums, peaks;
	hr__holes *holes;
};

/* Bytes that an allocator can still allocate, limited by its own limit and by what its device has left. 0: none, or unknown. */
static uint64_t available(const hr__capture *c, const struct levels *levels, uint32_t allocator)
{
	const hr__capture_allocator *own = &c->allocators[allocator];
	const hr__capture_device *device = &c->devices[own->device];
	uint64_t in_use = levels->sums.allocators[allocator], on_device = levels->sums.devices[own->device];
	uint64_t left = device->limit_bytes > on_device ? device->limit_bytes - on_device : 0;
	if (!own->limit_bytes) return left;
	uint64_t own_left = own->limit_bytes > in_use ? own->limit_bytes - in_use : 0;
	return !device->limit_bytes || own_left < left ? own_left : left;
}

static void add_change(struct xplane_exporter *e, struct sink *sink, const hr__change *change, struct levels *levels)
{
	const hr__capture *c = e->capture;
	const hr__allocation *a = &c->allocations[change->allocation];
	uint32_t allocator = c->sites[a->site].allocator;
	uint64_t now = hr__export_change_ns(c, change), in_use = levels->sums.allocators[allocator], *peak = &levels->peaks.allocators[allocator];
	uint64_t left = available(c, levels, allocator);
	hr__holes_state holes = hr__holes_of(levels->holes, allocator);
	if (in_use > *peak) *peak = in_use;
	event_begin(e, change->frees ? DEALLOCATION : ALLOCATION, now, now);
	event_text(e, ALLOCATOR_NAME, e->allocators[allocator]);
	event_number(e, BYTES_ALLOCATED, in_use);
	if (left) event_number(e, BYTES_AVAILABLE, left);
	event_number(e, PEAK_BYTES_IN_USE, *peak);
	if (holes.free_bytes) event_part(e, FRAGMENTATION, hr__holes_fragmentation(&holes));
	event_number(e, REQUESTED_BYTES, a->bytes - a->slack);
	event_number(e, ALLOCATION_BYTES, a->bytes);
	event_number(e, ADDR, a->address);
	event_number(e, GROUP_ID, group_of(c->step_count));
	if (!change->frees) describe(e, a->site);
	event_end(e, sink);
}

static void add_changes(struct xplane_exporter *e, const struct line *line, struct sink *sink)
{
	struct levels levels = { .holes = NULL };
	(void)line;
	if (!e->status) e->status = hr__export_sums_init(e->capture, &levels.sums);
	if (!e->status) e->status = hr__export_sums_init(e->capture, &levels.peaks);
	if (!e->status) e->status = hr__holes_make(e->capture, &levels.holes);
	for (uint32_t i = 0; i < e->capture->change_count && !e->status; i++) {
		hr__export_sums_take(e->capture, &levels.sums, &e->capture->changes[i]);
		hr__holes_change(levels.holes);
		add_change(e, sink, &e->capture->changes[i], &levels);
	}
	hr__holes_free(levels.holes);
	hr__export_sums_free(&levels.sums);
	hr__export_sums_free(&levels.peaks);
}

/* ---- lines ---- */

static void put_line(struct xplane_exporter *e, const struct line *line, struct sink *sink)
{
	e->event.used = 0;
	hr__protobuf_number(&e->event, LINE_ID, (uint64_t)line->id);
	hr__protobuf_text(&e->event, LINE_NAME, line->name);
	hr__protobuf_number(&e->event, LINE_DURATION_PS, picoseconds(e->capture->end_ns));
	put(sink, e->event.bytes, e->event.used);
	line->add_events(e, line, sink);
}

/* Adds a line and counts its bytes. This also registers the names of its events. */
static void add_line(struct xplane_exporter *e, int64_t id, const char *name,
                     void (*add_events)(struct xplane_exporter *, const struct line *, struct sink *), uint32_t thread)
{
	struct sink counter = { 0 };
	HR_ASSERT(e->line_count < e->line_capacity);
	if (e->status) return;
	struct line *line = &e->lines[e->line_count++];
	*line = (struct line){ .add_events = add_events, .id = id, .thread = thread };
	snprintf(line->name, sizeof line->name, "%s", name);
	put_line(e, line, &counter);
	line->bytes = counter.bytes;
}

static void sort_ops(struct xplane_exporter *e)
{
	const hr__capture *c = e->capture;
	e->by_thread = hr__export_take(&e->status, ((size_t)c->op_count + 1) * sizeof *e->by_thread);
	e->first_of = hr__export_take(&e->status, ((size_t)e->threads.count + 1) * sizeof *e->first_of);
	if (e->status) return;
	for (uint32_t i = 0; i < e->threads.count; i++) e->first_of[i + 1] = e->first_of[i] + e->threads.ops[i];
	for (uint32_t i = 0; i < c->op_count; i++) e->by_thread[e->first_of[c->ops[i].thread]++] = i;
	for (uint32_t i = e->threads.count; i > 0; i--) e->first_of[i] = e->first_of[i - 1];
	e->first_of[0] = 0;
}

static void add_lines(struct xplane_exporter *e)
{
	const hr__capture *c = e->capture;
	char name[32];
	add_line(e, MEMORY_LINE, "memory", add_changes, 0);
	if (c->step_count) add_line(e, STEP_LINE, "steps", add_steps, 0);
	if (c->move_count || c->refusal_count) add_line(e, MARK_LINE, "moves and refusals", add_marks, 0);
	for (uint32_t i = 0; i < e->threads.count && !e->status; i++) {
		snprintf(name, sizeof name, "thread %u", i);
		if (e->threads.ops[i]) add_line(e, FIRST_THREAD_LINE + (int64_t)i, name, add_ops, i);
	}
}

/* ---- the plane ---- */

static bool is_name_character(char c)
{
	return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
}

/* Converts "a/b c" to "a/b_c:B_c", the form by which XProf recognizes ops. [out] has room for twice the length plus 4 bytes. */
static void op_name(const char *shown, char *out)
{
	const char *last = strrchr(shown, '/');
	char *to = out;
	for (const char *c = shown; *c; c++) *to++ = is_name_character(*c) || strchr("./-", *c) ? *c : '_';
	if (!is_name_character(out[0]) || out[0] == '_') out[0] = '.';
	*to++ = ':';
	char *type = to;
	for (const char *c = last && last[1] ? last + 1 : shown; *c; c++) *to++ = is_name_character(*c) ? *c : '_';
	if (*type >= 'a' && *type <= 'z') *type = (char)(*type - 'a' + 'A');
	else if (*type >= '0' && *type <= '9') *type = '_';
	*to = 0;
}

/* Writes an entry of one of the plane's maps from ids to names. [shown] may be NULL. */
static void put_name(struct xplane_exporter *e, struct sink *sink, unsigned map, int64_t id, const char *name, const char *shown)
{
	e->part.used = e->event.used = 0;
	hr__protobuf_number(&e->part, METADATA_ID, (uint64_t)id);
	hr__protobuf_text(&e->part, METADATA_NAME, name);
	if (shown) hr__protobuf_text(&e->part, METADATA_DISPLAY_NAME, shown);
	hr__protobuf_number(&e->event, ENTRY_KEY, (uint64_t)id);
	hr__protobuf_message(&e->event, ENTRY_VALUE, &e->part);
	put_message(sink, map, &e->event);
}

static void put_names(struct xplane_exporter *e, struct sink *sink)
{
	char name[2 * HR__EXPORT_CLEAN_BYTES + 4];
	put_name(e, sink, PLANE_EVENT_METADATA, ALLOCATION, "MemoryAllocation", NULL);
	put_name(e, sink, PLANE_EVENT_METADATA, DEALLOCATION, "MemoryDeallocation", NULL);
	for (uint32_t i = 0; i < e->names[OTHER_EVENT].count; i++)
		put_name(e, sink, PLANE_EVENT_METADATA, FIRST_EVENT + (int64_t)i * KINDS + OTHER_EVENT, e->names[OTHER_EVENT].texts[i], NULL);
	for (uint32_t i = 0; i < e->names[OP_EVENT].count; i++) {
		op_name(e->names[OP_EVENT].texts[i], name);
		put_name(e, sink, PLANE_EVENT_METADATA, FIRST_EVENT + (int64_t)i * KINDS + OP_EVENT, name, e->names[OP_EVENT].texts[i]);
	}
	for (int i = NO_STAT + 1; i < FIRST_TEXT; i++) put_name(e, sink, PLANE_STAT_METADATA, i, stat_names[i], NULL);
	for (uint32_t i = 0; i < e->texts.count; i++) put_name(e, sink, PLANE_STAT_METADATA, FIRST_TEXT + (int64_t)i, e->texts.texts[i], NULL);
}

static void put_plane(struct xplane_exporter *e, struct sink *sink)
{
	e->event.used = 0;
	hr__protobuf_number(&e->event, PLANE_ID, 1);
	hr__protobuf_text(&e->event, PLANE_FIELD_NAME, PLANE_NAME);
	put(sink, e->event.bytes, e->event.used);
	for (uint32_t i = 0; i < e->line_count && !e->status; i++) {
		put_header(sink, PLANE_LINES, e->lines[i].bytes);
		if (sink->file) put_line(e, &e->lines[i], sink);
		else sink->bytes += e->lines[i].bytes; /* counted by add_line */
	}
	put_names(e, sink);
}

static void put_space(struct xplane_exporter *e, hr__export_file *file)
{
	struct sink counter = { 0 }, sink = { .file = file };
	put_plane(e, &counter);
	if (!e->status && counter.bytes > PROTOBUF_MAX - HR__PROTOBUF_HEADER_BYTES)
		e->status = hr__fail(HR_TOO_MANY, "the XPlane would have %llu bytes, and XProf reads 2 GiB at most; record fewer steps",
		                     (unsigned long long)counter.bytes);
	if (e->status) return;
	put_header(&sink, SPACE_PLANES, counter.bytes);
	uint64_t begin = sink.bytes;
	put_plane(e, &sink);
	HR_ASSERT(e->status || sink.bytes - begin == counter.bytes);
	(void)begin;
}

/* ---- the directory ---- */

/* The name of this machine, with characters replaced that are unsafe in a file name. */
static void host_name(char *out, size_t capacity)
{
	int fd;
	uint64_t size;
	size_t length = 0;
	if (hr__os()->file_open("/proc/sys/kernel/hostname", &fd, &size) == 0) {
		if (hr__os()->file_read(fd, out, capacity - 1, 0, &length) != 0) length = 0;
		hr__os()->file_close(fd);
	}
	while (length > 0 && out[length - 1] == '\n') length--;
	out[length] = 0;
	for (char *c = out; *c; c++)
		if (!is_name_character(*c) && *c != '-' && *c != '.') *c = '-';
	if (length == 0 || out[0] == '.') snprintf(out, capacity, "localhost");
}

/* Creates the directories. *out is the path of the file; the caller frees its *out_bytes bytes. */
static hr_status make_path(const hr__capture *capture, const char *logdir, const char *session, char **out, size_t *out_bytes)
{
	void *block;
	char host[64], when[32] = "run", run[48];
	struct tm parts;
	time_t seconds = (time_t)(capture->start_wall_ns / 1000000000u);
	/* To the nanosecond, because several recordings may begin in the same second and each needs its own session. Exporting a
	 * recording again replaces its session. */
	if (localtime_r(&seconds, &parts)) strftime(when, sizeof when, "%Y_%m_%d_%H_%M_%S", &parts);
	snprintf(run, sizeof run, "%s.%09u", when, (unsigned)(capture->start_wall_ns % 1000000000u));
	if (!session) session = run;
	size_t bytes = strlen(logdir) + sizeof host + strlen(session) + 64;
	host_name(host, sizeof host);
	int error = hr__os()->alloc(bytes, &block);
	if (error) return hr__os_fail(error, "exporting a trace");
	*out = block;
	*out_bytes = bytes;
	int length = snprintf(*out, bytes, "%s/plugins/profile/%s", logdir, session);
	hr_status status = hr__export_make_folder(*out);
	snprintf(*out + length, bytes - (size_t)length, "/%s.xplane.pb", host);
	if (status) hr__export_give(block, bytes);
	return status;
}

/* ---- the file ---- */

static void release(struct xplane_exporter *e)
{
	const hr__capture *c = e->capture;
	hr__export_give(e->lines, e->line_capacity * sizeof *e->lines);
	hr__export_give(e->sites, ((size_t)c->site_count + 1) * sizeof *e->sites);
	hr__export_give(e->allocators, ((size_t)c->allocator_count + 1) * sizeof *e->allocators);
	hr__export_give(e->by_thread, ((size_t)c->op_count + 1) * sizeof *e->by_thread);
	hr__export_give(e->first_of, ((size_t)e->threads.count + 1) * sizeof *e->first_of);
	hr__export_strings_free(&e->texts);
	for (int i = 0; i < KINDS; i++) hr__export_strings_free(&e->names[i]);
	hr__export_threads_free(&e->threads);
}

static void collect(struct xplane_exporter *e)
{
	const hr__capture *c = e->capture;
	e->status = hr__export_threads_init(c, &e->threads);
	e->line_capacity = FIRST_THREAD_LINE + e->threads.count;
	e->lines = hr__export_take(&e->status, e->line_capacity * sizeof *e->lines);
	e->sites = hr__export_take(&e->status, ((size_t)c->site_count + 1) * sizeof *e->sites);
	e->allocators = hr__export_take(&e->status, ((size_t)c->allocator_count + 1) * sizeof *e->allocators);
	if (!e->status) sort_ops(e);
	if (!e->status) take_texts(e);
	if (!e->status) add_lines(e);
}

static hr_status write_file(const hr__capture *capture, const char *path)
{
	hr_status status = HR_OK;
	hr__export_file *file;
	struct xplane_exporter *e = hr__export_take(&status, sizeof *e); /* too large for some stacks */
	if (status) return status;
	e->capture = capture;
	status = hr__export_file_open(path, &file);
	if (!status) {
		collect(e);
		if (!e->status) put_space(e, file);
		status = hr__export_file_close(file, e->status);
		release(e);
	}
	hr__export_give(e, sizeof *e);
	return status;
}

hr_status hr__export_xplane(const hr__capture *capture, const char *logdir, const char *session)
{
	char *path = NULL;
	size_t path_bytes = 0;
	hr_status status = make_path(capture, logdir, session, &path, &path_bytes);
	if (status) return status;
	status = write_file(capture, path);
	hr__export_give(path, path_bytes);
	return status;
}
