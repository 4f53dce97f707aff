/* export_xplane.c - a log directory for TensorBoard and XProf: LOGDIR/plugins/profile/RUN/HOST.xplane.pb, where RUN is when the recording began.
 *
 * One plane, "/host:CPU", the one in which the Memory Profile looks, with these lines:
 *
 *     memory               MemoryAllocation and MemoryDeallocation, as TensorFlow's allocators emit them: what is in use after each, and of what
 *     steps                a slice for each step
 *     moves and refusals   marks
 *     thread N             a slice for each op. Its name is "scope/op:Type", from which the op statistics are made; what is shown is "scope/op"
 *
 * What XProf makes of it and what follows for the writer:
 *
 *     - Times of memory events count from the beginning of their line, so all lines begin at 0, which is the beginning of the recording.
 *     - Events with an op ("tf_op") count as runs of it in the op statistics, allocations too. Those take an event's first stat of a name, and the
 *       Memory Profile its last; so an allocation's first tf_op is empty.
 *     - Numbers are read as int64 and texts as references; another type reads as 0.
 *     - The table of what was alive at the peak knows the events of the peak's group alone, which is meant to be a step. All events get group 0, or
 *       weights that were allocated in an earlier step would have no names.
 *     - Bytes of "bytes_reserved" would be added to those in use, so it is left out. */
#ifdef HR_HAVE_PROTOBUF_C

#include <profile/xplane.pb-c.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/assert.h"
#include "base/status.h"
#include "os/os.h"
#include "profile/export_file.h"
#include "profile/export_formats.h"
#include "profile/export_strings.h"

#define PLANE_NAME "/host:CPU"
#define CHUNK_BYTES ((size_t)1 << 20)
#define PROTOBUF_MAX INT32_MAX /* bytes that readers take */

#define STAT_TABLE(X)                         \
	X(ALLOCATOR_NAME, "allocator_name")       \
	X(BYTES_ALLOCATED, "bytes_allocated")     \
	X(BYTES_AVAILABLE, "bytes_available")     \
	X(PEAK_BYTES_IN_USE, "peak_bytes_in_use") \
	X(REQUESTED_BYTES, "requested_bytes")     \
	X(ALLOCATION_BYTES, "allocation_bytes")   \
	X(ADDR, "addr")                           \
	X(TF_OP, "tf_op")                         \
	X(REGION_TYPE, "region_type")             \
	X(DATA_TYPE, "data_type")                 \
	X(SHAPE, "shape")                         \
	X(GROUP_ID, "group_id")                   \
	X(STEP, "step")                           \
	X(DEVICE_NS, "device_ns")                 \
	X(BYTES, "bytes")                         \
	X(OP, "op")

enum stat {
	NO_STAT, /* ids are not 0 */
#define STAT_ENUM(id, name) id,
	STAT_TABLE(STAT_ENUM)
#undef STAT_ENUM
	FIRST_TEXT /* ids from here on are of texts that stats refer to */
};

static const char *const stat_names[] = {
#define STAT_NAME(id, name) [id] = name,
	STAT_TABLE(STAT_NAME)
#undef STAT_NAME
};

enum { ALLOCATION = 1, DEALLOCATION, FIRST_EVENT }; /* ids of events; from FIRST_EVENT on, in turn, of ops and of others */
enum kind { OP_EVENT, OTHER_EVENT, KINDS };
enum { MEMORY_LINE = 1, STEP_LINE, MARK_LINE, FIRST_THREAD_LINE };

struct chunk {
	struct chunk *next;
	size_t bytes, used; /* without this */
};

struct line {
	HrXplane__Line message;
	char name[32];
	size_t capacity; /* events */
};

/* Of a site; ids of texts, 0 for none. */
struct site_texts {
	uint64_t op, tag, shape;
};

struct exporter {
	const hr__capture *capture;
	hr__export_strings texts;        /* that stats refer to */
	hr__export_strings names[KINDS]; /* of events, as they are shown */
	hr__export_threads threads;
	struct site_texts *sites;
	uint64_t *allocators; /* what they are called: numbers of texts */
	struct chunk *chunks; /* packed events, and texts */
	struct line *lines;
	uint32_t line_count, line_capacity;
	hr_status status; /* the first failure */
};

/* ---- memory ---- */

static uint8_t *room_for(struct exporter *e, size_t bytes)
{
	struct chunk *chunk = e->chunks;
	if (!chunk || bytes > chunk->bytes - chunk->used) {
		size_t wanted = bytes > CHUNK_BYTES ? bytes : CHUNK_BYTES;
		chunk = hr__export_take(&e->status, sizeof *chunk + wanted);
		if (!chunk) return NULL;
		*chunk = (struct chunk){ .next = e->chunks, .bytes = wanted };
		e->chunks = chunk;
	}
	uint8_t *room = (uint8_t *)(chunk + 1) + chunk->used;
	chunk->used += bytes;
	return room;
}

/* ---- an event and its stats ---- */

struct event {
	HrXplane__Event message;
	HrXplane__Stat stats[FIRST_TEXT];
	HrXplane__Stat *pointers[FIRST_TEXT];
};

static int64_t picoseconds(uint64_t ns)
{
	return (int64_t)(ns < INT64_MAX / 1000 ? ns * 1000 : INT64_MAX);
}

static void event_begin(struct event *event, int64_t id, uint64_t begin_ns, uint64_t end_ns)
{
	hr_xplane__event__init(&event->message);
	event->message.metadata_id = id;
	event->message.offset_ps = picoseconds(begin_ns);
	event->message.duration_ps = picoseconds(end_ns) - picoseconds(begin_ns);
	event->message.stats = event->pointers;
}

static HrXplane__Stat *event_stat(struct event *event, enum stat id)
{
	size_t index = event->message.n_stats++;
	HR_ASSERT(index < FIRST_TEXT);
	HrXplane__Stat *stat = &event->stats[index];
	hr_xplane__stat__init(stat);
	stat->metadata_id = id;
	event->pointers[index] = stat;
	return stat;
}

static void event_number(struct event *event, enum stat id, uint64_t value)
{
	HrXplane__Stat *stat = event_stat(event, id);
	stat->value_case = HR_XPLANE__STAT__VALUE_INT64_VALUE;
	stat->int64_value = (int64_t)value;
}

static void event_text(struct event *event, enum stat id, uint64_t text)
{
	if (!text) return;
	HrXplane__Stat *stat = event_stat(event, id);
	stat->value_case = HR_XPLANE__STAT__VALUE_REF_VALUE;
	stat->ref_value = text;
}

static uint32_t number_of(struct exporter *e, hr__export_strings *strings, const char *text)
{
	char clean[HR__EXPORT_CLEAN_BYTES];
	uint32_t number = 0;
	if (!e->status) e->status = hr__export_strings_add(strings, hr__export_clean(text, clean, sizeof clean), &number);
	return number;
}

/* The id of a text for stats to refer to; 0 for "". */
static uint64_t text_id(struct exporter *e, const char *text)
{
	return text[0] ? (uint64_t)FIRST_TEXT + number_of(e, &e->texts, text) : 0;
}

/* The id of events that are shown as [text]. */
static int64_t shown_as(struct exporter *e, enum kind kind, const char *text)
{
	return FIRST_EVENT + (int64_t)number_of(e, &e->names[kind], text) * KINDS + kind;
}

static void take_texts(struct exporter *e)
{
	const hr__capture *c = e->capture;
	char text[HR__EXPORT_NAME_BYTES];
	for (uint32_t i = 0; i < c->site_count && !e->status; i++) {
		hr__site site = c->sites[i];
		e->sites[i].op = text_id(e, hr__export_op_name(site.scope, site.op, text));
		e->sites[i].tag = text_id(e, hr_name_text(site.tag));
		site.dtype = HR_DTYPE_NONE; /* it has a stat of its own */
		e->sites[i].shape = text_id(e, hr__export_type(&site, text));
	}
	hr__export_labels labels = { 0 };
	if (!e->status) e->status = hr__export_labels_init(c, &labels);
	for (uint32_t i = 0; i < c->allocator_count && !e->status; i++) e->allocators[i] = text_id(e, labels.of[i]);
	hr__export_labels_free(&labels);
}

/* ---- lines ---- */

static struct line *line_begin(struct exporter *e, int64_t id, const char *name, size_t events)
{
	HR_ASSERT(e->line_count < e->line_capacity);
	ProtobufCBinaryData *data = hr__export_take(&e->status, (events + 1) * sizeof *data);
	if (!data) return NULL;
	struct line *line = &e->lines[e->line_count++];
	hr_xplane__line__init(&line->message);
	snprintf(line->name, sizeof line->name, "%s", name);
	line->message.id = id;
	line->message.name = line->name;
	line->message.duration_ps = picoseconds(e->capture->end_ns);
	line->message.events = data;
	line->capacity = events;
	return line;
}

static void line_add(struct exporter *e, struct line *line, const struct event *event)
{
	HR_ASSERT(line->message.n_events < line->capacity);
	size_t bytes = hr_xplane__event__get_packed_size(&event->message);
	uint8_t *room = room_for(e, bytes);
	if (!room || e->status) return;
	hr_xplane__event__pack(&event->message, room);
	line->message.events[line->message.n_events++] = (ProtobufCBinaryData){ .len = bytes, .data = room };
}

static void add_steps(struct exporter *e)
{
	const hr__capture *c = e->capture;
	struct line *line = c->step_count ? line_begin(e, STEP_LINE, "steps", c->step_count) : NULL;
	char name[48];
	for (uint32_t i = 0; i < c->step_count && !e->status; i++) {
		struct event event;
		const hr__step_run *step = &c->steps[i];
		snprintf(name, sizeof name, "step %llu", (unsigned long long)step->number);
		event_begin(&event, shown_as(e, OTHER_EVENT, name), step->begin_ns, hr__export_end(c, step->end_ns, step->begin_ns));
		event_number(&event, STEP, step->number);
		line_add(e, line, &event);
	}
}

static void add_mark(struct exporter *e, struct line *line, const char *name, uint64_t time_ns, uint64_t bytes, uint32_t site_index)
{
	struct event event;
	event_begin(&event, shown_as(e, OTHER_EVENT, name), time_ns, time_ns);
	event_number(&event, BYTES, bytes);
	event_text(&event, OP, e->sites[site_index].op);
	line_add(e, line, &event);
}

static void add_marks(struct exporter *e)
{
	const hr__capture *c = e->capture;
	size_t count = (size_t)c->move_count + c->refusal_count;
	struct line *line = count ? line_begin(e, MARK_LINE, "moves and refusals", count) : NULL;
	for (uint32_t i = 0; i < c->move_count && !e->status; i++)
		add_mark(e, line, hr__export_move_text(c->moves[i].kind), c->moves[i].time_ns, c->moves[i].bytes, c->moves[i].site);
	for (uint32_t i = 0; i < c->refusal_count && !e->status; i++)
		add_mark(e, line, "request refused", c->refusals[i].time_ns, c->refusals[i].bytes, c->refusals[i].site);
}

static void add_op(struct exporter *e, struct line *line, const hr__op_run *op)
{
	struct event event;
	char name[HR__EXPORT_NAME_BYTES];
	int64_t id = shown_as(e, OP_EVENT, hr__export_op_name(op->scope, op->op, name));
	event_begin(&event, id, op->begin_ns, hr__export_end(e->capture, op->end_ns, op->begin_ns));
	if (op->step != HR__NONE) event_number(&event, STEP, e->capture->steps[op->step].number);
	if (op->device_ns) event_number(&event, DEVICE_NS, op->device_ns);
	line_add(e, line, &event);
}

static void add_ops(struct exporter *e)
{
	const hr__capture *c = e->capture;
	char name[32];
	size_t bytes = (e->threads.count + (size_t)1) * sizeof(uint32_t);
	uint32_t *line_of = hr__export_take(&e->status, bytes); /* a thread's, by index */
	for (uint32_t i = 0; i < e->threads.count && !e->status; i++) {
		if (!e->threads.ops[i]) continue;
		line_of[i] = e->line_count;
		snprintf(name, sizeof name, "thread %u", i);
		line_begin(e, FIRST_THREAD_LINE + (int64_t)i, name, e->threads.ops[i]);
	}
	for (uint32_t i = 0; i < c->op_count && !e->status; i++) add_op(e, &e->lines[line_of[c->ops[i].thread]], &c->ops[i]);
	hr__export_give(line_of, bytes);
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

/* What is allocated. Not for frees, which XProf finds the allocation of by its address. */
static void describe(const struct exporter *e, struct event *event, uint32_t site)
{
	const struct site_texts *texts = &e->sites[site];
	hr_dtype dtype = e->capture->sites[site].dtype;
	HrXplane__Stat *no_op = event_stat(event, TF_OP);
	no_op->value_case = HR_XPLANE__STAT__VALUE_STR_VALUE;
	no_op->str_value = "";
	event_text(event, TF_OP, texts->op);
	event_text(event, REGION_TYPE, texts->tag);
	event_text(event, SHAPE, texts->shape);
	if (dtype != HR_DTYPE_NONE) event_number(event, DATA_TYPE, (uint64_t)tensorflow_type(dtype));
}

static void add_change(struct exporter *e, struct line *line, const hr__change *change, const hr__export_sums *sums,
                       uint64_t *peaks)
{
	struct event event;
	const hr__allocation *a = &e->capture->allocations[change->allocation];
	const hr__site *site = &e->capture->sites[a->site];
	const hr__capture_device *device = &e->capture->devices[e->capture->allocators[site->allocator].device];
	uint64_t now = hr__export_change_ns(e->capture, change), in_use = sums->allocators[site->allocator];
	uint64_t on_device = sums->devices[e->capture->allocators[site->allocator].device];
	if (in_use > peaks[site->allocator]) peaks[site->allocator] = in_use;
	event_begin(&event, change->frees ? DEALLOCATION : ALLOCATION, now, now);
	event_text(&event, ALLOCATOR_NAME, e->allocators[site->allocator]);
	event_number(&event, BYTES_ALLOCATED, in_use);
	if (device->limit_bytes > on_device) event_number(&event, BYTES_AVAILABLE, device->limit_bytes - on_device);
	event_number(&event, PEAK_BYTES_IN_USE, peaks[site->allocator]);
	event_number(&event, REQUESTED_BYTES, a->bytes - a->slack);
	event_number(&event, ALLOCATION_BYTES, a->bytes);
	event_number(&event, ADDR, a->address);
	event_number(&event, GROUP_ID, 0);
	if (!change->frees) describe(e, &event, a->site);
	line_add(e, line, &event);
}

static void add_changes(struct exporter *e)
{
	hr__export_sums sums = { 0 }, peaks = { 0 };
	struct line *line = line_begin(e, MEMORY_LINE, "memory", e->capture->change_count);
	if (!e->status) e->status = hr__export_sums_init(e->capture, &sums);
	if (!e->status) e->status = hr__export_sums_init(e->capture, &peaks);
	for (uint32_t i = 0; i < e->capture->change_count && !e->status; i++) {
		hr__export_sums_take(e->capture, &sums, &e->capture->changes[i]);
		add_change(e, line, &e->capture->changes[i], &sums, peaks.allocators);
	}
	hr__export_sums_free(&sums);
	hr__export_sums_free(&peaks);
}

/* ---- the plane ---- */

/* Both maps, with what their entries consist of. */
struct metadata {
	HrXplane__EventEntry *event_entries, **event_pointers;
	HrXplane__EventMetadata *events;
	HrXplane__StatEntry *stat_entries, **stat_pointers;
	HrXplane__StatMetadata *stats;
	size_t event_count, stat_count;
};

static bool is_name_character(char c)
{
	return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
}

/* "a/b c" becomes "a/b_c:B_c": the form by which XProf tells ops from other events. [out] has twice the bytes, and 4. */
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

static void add_event_name(struct metadata *m, int64_t id, char *name, char *shown)
{
	size_t index = m->event_count++;
	HrXplane__EventMetadata *event = &m->events[index];
	HrXplane__EventEntry *entry = &m->event_entries[index];
	hr_xplane__event_metadata__init(event);
	hr_xplane__event_entry__init(entry);
	event->id = entry->key = id;
	event->name = name;
	if (shown) event->display_name = shown;
	entry->value = event;
	m->event_pointers[index] = entry;
}

static void add_stat_name(struct metadata *m, int64_t id, char *name)
{
	size_t index = m->stat_count++;
	HrXplane__StatMetadata *stat = &m->stats[index];
	HrXplane__StatEntry *entry = &m->stat_entries[index];
	hr_xplane__stat_metadata__init(stat);
	hr_xplane__stat_entry__init(entry);
	stat->id = entry->key = id;
	stat->name = name;
	entry->value = stat;
	m->stat_pointers[index] = entry;
}

static void name_events(struct exporter *e, struct metadata *m)
{
	add_event_name(m, ALLOCATION, "MemoryAllocation", NULL);
	add_event_name(m, DEALLOCATION, "MemoryDeallocation", NULL);
	for (uint32_t i = 0; i < e->names[OTHER_EVENT].count; i++)
		add_event_name(m, FIRST_EVENT + (int64_t)i * KINDS + OTHER_EVENT, e->names[OTHER_EVENT].texts[i], NULL);
	for (uint32_t i = 0; i < e->names[OP_EVENT].count; i++) {
		char *shown = e->names[OP_EVENT].texts[i], *name = (char *)room_for(e, 2 * strlen(shown) + 4);
		if (!name) return;
		op_name(shown, name);
		add_event_name(m, FIRST_EVENT + (int64_t)i * KINDS + OP_EVENT, name, shown);
	}
}

static void name_stats(struct exporter *e, struct metadata *m)
{
	for (int i = NO_STAT + 1; i < FIRST_TEXT; i++) add_stat_name(m, i, (char *)stat_names[i]);
	for (uint32_t i = 0; i < e->texts.count; i++) add_stat_name(m, FIRST_TEXT + (int64_t)i, e->texts.texts[i]);
}

/* Calls [use] with the metadata, which is gone afterwards. */
static void with_metadata(struct exporter *e, void (*use)(struct exporter *, const struct metadata *, hr__export_file *),
                          hr__export_file *file)
{
	size_t events = 2 + (size_t)e->names[OP_EVENT].count + e->names[OTHER_EVENT].count, stats = FIRST_TEXT + (size_t)e->texts.count;
	size_t each_event = sizeof(HrXplane__EventEntry) + sizeof(HrXplane__EventMetadata) + sizeof(void *);
	size_t each_stat = sizeof(HrXplane__StatEntry) + sizeof(HrXplane__StatMetadata) + sizeof(void *),
		   bytes = events * each_event + stats * each_stat;
	struct metadata m = { 0 };
	m.event_entries = hr__export_take(&e->status, bytes);
	if (!m.event_entries) return;
	m.events = (void *)(m.event_entries + events);
	m.event_pointers = (void *)(m.events + events);
	m.stat_entries = (void *)(m.event_pointers + events);
	m.stats = (void *)(m.stat_entries + stats);
	m.stat_pointers = (void *)(m.stats + stats);
	name_events(e, &m);
	name_stats(e, &m);
	if (!e->status) use(e, &m, file);
	hr__export_give(m.event_entries, bytes);
}

/* ---- writing ---- */

struct output {
	ProtobufCBuffer base; /* first, as protobuf-c wants it */
	hr__export_file *file;
};

static void append(ProtobufCBuffer *buffer, size_t length, const uint8_t *data)
{
	hr__export_file_write(((struct output *)buffer)->file, (const char *)data, length);
}

static void write_space(struct exporter *e, const struct metadata *m, hr__export_file *file)
{
	struct output output = { .base = { append }, .file = file };
	HrXplane__Space space = HR_XPLANE__SPACE__INIT;
	HrXplane__Plane plane = HR_XPLANE__PLANE__INIT, *planes[] = { &plane };
	HrXplane__Line **lines = hr__export_take(&e->status, (e->line_count + (size_t)1) * sizeof *lines);
	if (!lines) return;
	for (uint32_t i = 0; i < e->line_count; i++) lines[i] = &e->lines[i].message;
	plane.id = 1;
	plane.name = PLANE_NAME;
	plane.lines = lines;
	plane.n_lines = e->line_count;
	plane.event_metadata = m->event_pointers;
	plane.n_event_metadata = m->event_count;
	plane.stat_metadata = m->stat_pointers;
	plane.n_stat_metadata = m->stat_count;
	space.planes = planes;
	space.n_planes = 1;
	size_t bytes = hr_xplane__space__get_packed_size(&space);
	if (bytes > PROTOBUF_MAX)
		e->status = hr__fail(HR_TOO_MANY, "the XPlane would have %zu bytes, and XProf reads 2 GiB at most; record fewer steps",
		                     bytes);
	else hr_xplane__space__pack_to_buffer(&space, &output.base);
	hr__export_give(lines, (e->line_count + (size_t)1) * sizeof *lines);
}

/* ---- the folder ---- */

/* The name of this machine, as far as it can be part of a file's. */
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

/* Makes the directories. *out is the file's path, which the caller gives back with its size. */
static hr_status make_path(const hr__capture *capture, const char *logdir, char **out, size_t *out_bytes)
{
	void *block;
	char host[64], run[32] = "run";
	struct tm parts;
	time_t seconds = (time_t)(capture->start_wall_ns / 1000000000u);
	size_t bytes = strlen(logdir) + sizeof host + sizeof run + 64;
	if (localtime_r(&seconds, &parts)) strftime(run, sizeof run, "%Y_%m_%d_%H_%M_%S", &parts);
	host_name(host, sizeof host);
	int error = hr__os()->alloc(bytes, &block);
	if (error) return hr__os_fail(error, "exporting a trace");
	*out = block;
	*out_bytes = bytes;
	int length = snprintf(*out, bytes, "%s/plugins/profile/%s", logdir, run);
	hr_status status = hr__export_make_folder(*out);
	snprintf(*out + length, bytes - (size_t)length, "/%s.xplane.pb", host);
	if (status) hr__export_give(block, bytes);
	return status;
}

/* ---- the whole ---- */

static void release(struct exporter *e)
{
	for (uint32_t i = 0; i < e->line_count; i++)
		hr__export_give(e->lines[i].message.events, (e->lines[i].capacity + 1) * sizeof(ProtobufCBinaryData));
	hr__export_give(e->lines, e->line_capacity * sizeof *e->lines);
	hr__export_give(e->sites, (e->capture->site_count + (size_t)1) * sizeof *e->sites);
	hr__export_give(e->allocators, (e->capture->allocator_count + (size_t)1) * sizeof *e->allocators);
	for (struct chunk *chunk = e->chunks, *next; chunk; chunk = next) {
		next = chunk->next;
		hr__export_give(chunk, sizeof *chunk + chunk->bytes);
	}
	hr__export_strings_free(&e->texts);
	for (int i = 0; i < KINDS; i++) hr__export_strings_free(&e->names[i]);
	hr__export_threads_free(&e->threads);
}

static void collect(struct exporter *e)
{
	e->status = hr__export_threads_init(e->capture, &e->threads);
	e->line_capacity = FIRST_THREAD_LINE + e->threads.count;
	e->lines = hr__export_take(&e->status, e->line_capacity * sizeof *e->lines);
	e->sites = hr__export_take(&e->status, (e->capture->site_count + (size_t)1) * sizeof *e->sites);
	e->allocators = hr__export_take(&e->status, (e->capture->allocator_count + (size_t)1) * sizeof *e->allocators);
	if (e->status) return;
	take_texts(e);
	add_changes(e);
	add_steps(e);
	add_marks(e);
	add_ops(e);
}

hr_status hr__export_xplane(const hr__capture *capture, const char *logdir)
{
	struct exporter e = { .capture = capture };
	hr__export_file *file;
	char *path = NULL;
	size_t path_bytes = 0;
	hr_status status = make_path(capture, logdir, &path, &path_bytes);
	if (status) return status;
	status = hr__export_file_open(path, &file);
	if (!status) {
		collect(&e);
		if (!e.status) with_metadata(&e, write_space, file);
		status = hr__export_file_close(file, e.status);
		release(&e);
	}
	hr__export_give(path, path_bytes);
	return status;
}

#else

typedef int hr__export_xplane_is_left_out; /* a file of C may not be empty */

#endif
