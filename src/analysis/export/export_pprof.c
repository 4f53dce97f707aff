/* export_pprof.c - a profile for pprof: the bytes of each op at the peak, at the end, and allocated in total.
 *
 * A sample is a site. Its stack is the name scope, with the op as the innermost frame and the device as the outermost: `pprof -top`
 * lists ops, `-tree` and the flame graph show scopes. If the recording has call stacks, they take the place of the scope, which becomes a
 * label. Tag, shape, dtype and allocator are labels (`-tagfocus`, `-tags`). The peak
 * is each device's own. The profile's fields are written in sequence, the string table last, when all strings have a number. */
#include <string.h>

#include "core/base/status.h"
#include "core/os/os.h"
#include "analysis/capture/frame_text.h"
#include "analysis/export/export_file.h"
#include "analysis/export/export_formats.h"
#include "analysis/export/export_strings.h"
#include "analysis/export/protobuf.h"
#include "analysis/reader/list.h"

/* Field numbers of pprof's profile.proto. Names are indices into the string table. */
enum { PROFILE_SAMPLE_TYPE = 1, PROFILE_SAMPLE, PROFILE_LOCATION = 4, PROFILE_FUNCTION, PROFILE_STRING, PROFILE_TIME_NANOS = 9, PROFILE_DURATION_NANOS, PROFILE_DEFAULT_TYPE = 14 };
enum { TYPE_NAME = 1, TYPE_UNIT };
enum { SAMPLE_LOCATION = 1, SAMPLE_VALUE, SAMPLE_LABEL };
enum { LABEL_KEY = 1, LABEL_TEXT };
enum { LOCATION_ID = 1, LOCATION_LINE = 4 };
enum { LINE_FUNCTION = 1, LINE_NUMBER };
enum { FUNCTION_ID = 1, FUNCTION_NAME, FUNCTION_SYSTEM_NAME, FUNCTION_FILE };

#define FRAMES_MAX 1026 /* parts of a scope's name, plus the device and the op */

/* pprof shows the first value by default. */
#define VALUE_TABLE(X)                         \
	X(PEAK_SPACE, "peak_space", "bytes")       \
	X(PEAK_OBJECTS, "peak_objects", "count")   \
	X(INUSE_SPACE, "inuse_space", "bytes")     \
	X(INUSE_OBJECTS, "inuse_objects", "count") \
	X(ALLOC_SPACE, "alloc_space", "bytes")     \
	X(ALLOC_OBJECTS, "alloc_objects", "count")

enum value {
#define VALUE_ENUM(id, name, unit) id,
	VALUE_TABLE(VALUE_ENUM)
#undef VALUE_ENUM
	VALUES
};

static const char *const value_names[VALUES][2] = {
#define VALUE_NAME(id, name, unit) [id] = { name, unit },
	VALUE_TABLE(VALUE_NAME)
#undef VALUE_NAME
};

struct site_sums {
	uint64_t values[VALUES];
};

struct pprof_exporter {
	const hr__capture *capture;
	hr__export_file *file;
	hr__export_strings strings; /* the profile's table */
	hr__export_strings frames;  /* names of functions; ids count from 1 */
	hr__list calls;             /* by index in frames: the hr_frame of a call stack; all 0 for other frames */
	struct site_sums *sites;
	hr__export_labels labels; /* of allocators */
	hr__protobuf message, part, line;
	uint64_t stack[FRAMES_MAX];
	hr_status status;
};

static uint64_t string_id(struct pprof_exporter *e, const char *text)
{
	return hr__export_strings_add(&e->strings, text, &e->status);
}

/* ---- values ---- */

struct visit {
	struct pprof_exporter *exporter;
	enum value space, objects;
};

static void count(struct pprof_exporter *e, uint32_t allocation, enum value space, enum value objects)
{
	const hr__allocation *a = &e->capture->allocations[allocation];
	e->sites[a->site].values[space] += a->bytes;
	e->sites[a->site].values[objects]++;
}

static void visit_live(void *context, uint32_t allocation)
{
	const struct visit *visit = context;
	count(visit->exporter, allocation, visit->space, visit->objects);
}

static void count_all(struct pprof_exporter *e)
{
	const hr__capture *c = e->capture;
	struct visit at_peak = { e, PEAK_SPACE, PEAK_OBJECTS };
	e->status = hr__capture_live_at_peaks(c, visit_live, &at_peak);
	for (uint32_t i = 0; i < c->allocation_count; i++) {
		count(e, i, ALLOC_SPACE, ALLOC_OBJECTS);
		if (c->allocations[i].end_ns == HR__NEVER) count(e, i, INUSE_SPACE, INUSE_OBJECTS);
	}
}

/* ---- writing ---- */

static void put_bytes(struct pprof_exporter *e, const void *bytes, size_t length)
{
	hr__export_file_write(e->file, bytes, length);
}

/* Writes e->message as a field of the profile, and clears it. */
static void put_message(struct pprof_exporter *e, unsigned field)
{
	uint8_t header[HR__PROTOBUF_HEADER_BYTES];
	put_bytes(e, header, hr__protobuf_header(field, e->message.used, header));
	put_bytes(e, e->message.bytes, e->message.used);
	e->message.used = 0;
}

/* ---- samples ---- */

static uint64_t frame_id(struct pprof_exporter *e, const char *text)
{
	return 1 + (uint64_t)hr__export_strings_add(&e->frames, text, &e->status);
}

static uint64_t call_id(struct pprof_exporter *e, const hr_frame *frame)
{
	char text[HR__FRAME_TEXT_BYTES];
	uint64_t id = frame_id(e, hr__frame_text(frame, text));
	if (!e->status) e->status = hr__list_reserve(&e->calls, id);
	if (e->status) return id;
	if (e->calls.count < id) e->calls.count = id;
	*(hr_frame *)hr__list_at(&e->calls, id - 1) = *frame;
	return id;
}

/* Fills e->stack, innermost frame first: "op; calls; device". Returns the number of frames. */
static size_t make_call_stack(struct pprof_exporter *e, const hr__site *site)
{
	hr_frame frames[HR_STACK_DEPTH_MAX];
	size_t calls = hr_stack_get_frames(site->stack, frames, HR_STACK_DEPTH_MAX), count = 0;
	if (site->op) e->stack[count++] = frame_id(e, hr_name_text(site->op));
	for (size_t i = 0; i < calls; i++) e->stack[count++] = call_id(e, &frames[i]);
	e->stack[count++] = frame_id(e, e->capture->devices[e->capture->allocators[site->allocator].device].name);
	return count;
}

/* Fills e->stack, innermost frame first: "op; parts of the scope; device". Returns the number of frames. */
static size_t make_stack(struct pprof_exporter *e, const hr__site *site)
{
	if (site->stack != HR_STACK_NONE) return make_call_stack(e, site);
	char part[HR__EXPORT_NAME_BYTES];
	const char *scope = hr_name_text(site->scope), *op = hr_name_text(site->op);
	size_t count = 0;
	e->stack[count++] = frame_id(e, e->capture->devices[e->capture->allocators[site->allocator].device].name);
	while (*scope) {
		size_t length = strcspn(scope, "/");
		if (length > 0) {
			memcpy(part, scope, length);
			part[length] = 0;
			e->stack[count++] = frame_id(e, part);
		}
		scope += length + (scope[length] == '/');
	}
	e->stack[count++] = frame_id(e, op[0] ? op : "(none)");
	for (size_t i = 0; i < count / 2; i++) {
		uint64_t outer = e->stack[i];
		e->stack[i] = e->stack[count - 1 - i];
		e->stack[count - 1 - i] = outer;
	}
	return count;
}

static void add_label(struct pprof_exporter *e, const char *key, const char *text)
{
	if (!text[0]) return;
	e->part.used = 0;
	hr__protobuf_number(&e->part, LABEL_KEY, string_id(e, key));
	hr__protobuf_number(&e->part, LABEL_TEXT, string_id(e, text));
	hr__protobuf_message(&e->message, SAMPLE_LABEL, &e->part);
}

static void put_sample(struct pprof_exporter *e, uint32_t index)
{
	char text[HR__EXPORT_TYPE_BYTES];
	const hr__site *site = &e->capture->sites[index];
	hr__site bare = *site;
	bare.dtype = HR_DTYPE_NONE;
	hr__protobuf_packed(&e->message, SAMPLE_LOCATION, e->stack, make_stack(e, site));
	hr__protobuf_packed(&e->message, SAMPLE_VALUE, e->sites[index].values, VALUES);
	if (site->stack != HR_STACK_NONE) add_label(e, "scope", hr_name_text(site->scope));
	add_label(e, "tag", hr_name_text(site->tag));
	add_label(e, "shape", hr__export_type(&bare, text));
	add_label(e, "dtype", site->dtype != HR_DTYPE_NONE ? hr_dtype_text(site->dtype) : "");
	add_label(e, "allocator", e->labels.of[site->allocator]);
	put_message(e, PROFILE_SAMPLE);
}

/* ---- the profile ---- */

static void put_types(struct pprof_exporter *e)
{
	for (int i = 0; i < VALUES; i++) {
		hr__protobuf_number(&e->message, TYPE_NAME, string_id(e, value_names[i][0]));
		hr__protobuf_number(&e->message, TYPE_UNIT, string_id(e, value_names[i][1]));
		put_message(e, PROFILE_SAMPLE_TYPE);
	}
}

/* Writes a function and a location for each frame. */
static void put_frame(struct pprof_exporter *e, uint32_t index)
{
	hr_frame call = { 0 };
	if (index < e->calls.count) call = *(hr_frame *)hr__list_at(&e->calls, index);
	uint64_t id = 1 + (uint64_t)index, name = string_id(e, call.function ? hr_name_text(call.function) : e->frames.texts[index]);
	e->line.used = 0;
	hr__protobuf_number(&e->line, LINE_FUNCTION, id);
	if (call.line) hr__protobuf_number(&e->line, LINE_NUMBER, call.line);
	hr__protobuf_number(&e->message, LOCATION_ID, id);
	hr__protobuf_message(&e->message, LOCATION_LINE, &e->line);
	put_message(e, PROFILE_LOCATION);
	hr__protobuf_number(&e->message, FUNCTION_ID, id);
	hr__protobuf_number(&e->message, FUNCTION_NAME, name);
	hr__protobuf_number(&e->message, FUNCTION_SYSTEM_NAME, name);
	if (call.file || call.module) hr__protobuf_number(&e->message, FUNCTION_FILE, string_id(e, hr_name_text(call.file ? call.file : call.module)));
	put_message(e, PROFILE_FUNCTION);
}

static void put_string(struct pprof_exporter *e, const char *text)
{
	hr__protobuf_text(&e->message, PROFILE_STRING, text);
	put_bytes(e, e->message.bytes, e->message.used);
	e->message.used = 0;
}

static void put_profile(struct pprof_exporter *e)
{
	string_id(e, ""); /* the string table must begin with "" */
	put_types(e);
	for (uint32_t i = 0; i < e->capture->site_count && !e->status; i++)
		if (e->sites[i].values[ALLOC_OBJECTS]) put_sample(e, i);
	for (uint32_t i = 0; i < e->frames.count && !e->status; i++) put_frame(e, i);
	hr__protobuf_number(&e->message, PROFILE_TIME_NANOS, e->capture->start_wall_ns);
	hr__protobuf_number(&e->message, PROFILE_DURATION_NANOS, e->capture->end_ns);
	hr__protobuf_number(&e->message, PROFILE_DEFAULT_TYPE, string_id(e, value_names[PEAK_SPACE][0]));
	put_bytes(e, e->message.bytes, e->message.used);
	e->message.used = 0;
	for (uint32_t i = 0; i < e->strings.count && !e->status; i++) put_string(e, e->strings.texts[i]);
}

hr_status hr__export_pprof(const hr__capture *capture, const char *path)
{
	hr_status status = HR_OK;
	size_t sites = capture->site_count + (size_t)1;
	struct pprof_exporter *e = hr__export_take(&status, sizeof *e); /* too large for some stacks */
	if (status) return status;
	e->capture = capture;
	e->calls.item_bytes = sizeof(hr_frame);
	status = hr__export_file_open(path, &e->file);
	if (!status) {
		e->sites = hr__export_take(&e->status, sites * sizeof *e->sites);
		if (!e->status) e->status = hr__export_labels_init(capture, &e->labels);
		if (!e->status) count_all(e);
		if (!e->status) put_profile(e);
		status = hr__export_file_close(e->file, e->status);
	}
	hr__export_give(e->sites, sites * sizeof *e->sites);
	hr__export_labels_free(&e->labels);
	hr__export_strings_free(&e->strings);
	hr__export_strings_free(&e->frames);
	hr__list_free(&e->calls);
	hr__export_give(e, sizeof *e);
	return status;
}
