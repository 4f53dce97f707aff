/* import_torch.c - memory snapshots of PyTorch: the pickle that torch.cuda.memory._dump_snapshot() writes, or what
 * torch.cuda.memory._snapshot() returns as JSON.
 *
 *     {"segments": [...], "device_traces": [[{"action": "alloc", "addr": 140, "size": 512, "stream": 0, "time_us": 1, "frames":
 *      [...]}, ...], ...one list for each device], "allocator_settings": {...}}
 *
 * Snapshots with stacks can have gigabytes as JSON, so the text is never held in memory as a whole. It is read once; of what is outside
 * "device_traces" only the ranges of segments are read, and each entry is parsed by jansson separately. A pickle stores each stack once, however many
 * entries have it, and was 30 times smaller in a training step with C++ stacks. It is read as a whole (analysis/import/pickle/pickle.h),
 * and each entry is converted to the JSON object that the text would give.
 *
 * The entries are kept, because the lists of devices follow each other in the file, while events come in order of time. The
 * innermost function with a source line becomes the op of an allocation.
 *
 *     alloc, free_completed         ALLOC, FREE; free_requested instead, if the device has no free_completed at all
 *     segments                      MAP at the beginning, of those that there were then (torch_segments.h)
 *     segment_alloc, segment_map    MAP
 *     segment_free, segment_unmap   UNMAP
 *     oom                           ALLOC_FAILED
 *     snapshot, others              skipped */
#include "analysis/import/import.h"
#include "core/base/names.h"
#include "core/base/status.h"

#ifndef HR_HAVE_JANSSON

hr_status hr__import_torch(hr__source *source, hr__event_stream **out)
{
	(void)out;
	hr__fail(HR_UNSUPPORTED, "it is a PyTorch snapshot, and this program was built without jansson; install libjansson-dev and build again");
	hr__source_fail(source, HR_UNSUPPORTED);
	hr__source_close(source);
	return HR_UNSUPPORTED;
}

#else

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "analysis/capture/array.h"
#include "analysis/import/json_scan.h"
#include "analysis/import/pickle/pickle_json.h"
#include "analysis/import/quote.h"
#include "analysis/import/torch_segments.h"

#define DEVICES_MAX 1024u

typedef enum torch_action { ALLOC, FREE_REQUESTED, FREE_COMPLETED, MAP, UNMAP, OOM } torch_action;

typedef struct torch_entry {
	uint64_t address, bytes, time_us;
	hr_stream stream;
	uint16_t device;
	uint8_t action;
	hr_stack stack;
	uint32_t index; /* position in the file, which orders entries of the same time */
} torch_entry;

typedef struct torch_segment {
	uint64_t address, bytes, device;
} torch_segment;

typedef struct torch_device {
	char name[16];
	torch_action frees_by; /* FREE_COMPLETED, or FREE_REQUESTED if it has none of those */
} torch_device;

typedef struct torch_reader {
	hr__import_stream import;
	hr__json_scan scan;
	hr__array entries; /* torch_entry */
	hr__list devices;    /* torch_device */
	hr__list last_segments; /* torch_segment: at the end of the history */
	hr__torch_segments segments; /* at its beginning */
	uint32_t next_segment;
	hr__list definitions, allocators; /* the same as the summary expects them: hr__trace_device, hr__trace_allocator */
	bool has_traces;
	bool is_pickle; /* positions of entries are numbers from 0 instead of offsets */
	size_t next;         /* entry */
} torch_reader;

/* ---- entries ---- */

static bool bad_entry(torch_reader *reader, uint64_t offset, const char *why, const char *detail)
{
	if (reader->is_pickle) {
		hr__fail(HR_BAD_FORMAT, "in entry %llu of a list of device_traces: %s%s", (unsigned long long)offset, why, detail);
		reader->scan.status = hr__source_fail(reader->scan.source, HR_BAD_FORMAT);
	} else {
		hr__fail(HR_BAD_FORMAT, "in an entry of device_traces: %s%s", why, detail);
		reader->scan.status = hr__source_fail_byte(reader->scan.source, HR_BAD_FORMAT, offset);
	}
	return false;
}

/* A non-negative integer; 0 if it is missing and not [needed]. */
static bool number_in(torch_reader *reader, const json_t *object, const char *key, bool needed, uint64_t offset, uint64_t *out)
{
	const json_t *value = json_object_get(object, key);
	*out = 0;
	if (!value && !needed) return true;
	if (!value) return bad_entry(reader, offset, "no ", key);
	if (!json_is_integer(value) || json_integer_value(value) < 0)
		return bad_entry(reader, offset, "expected a whole number that is not negative as ", key);
	*out = (uint64_t)json_integer_value(value);
	return true;
}

/* True if the entry is used. */
static bool action_of(torch_reader *reader, const json_t *object, uint64_t offset, torch_action *out)
{
	static const struct {
		const char *text;
		torch_action action;
	} actions[] = { { "alloc", ALLOC },           { "free_completed", FREE_COMPLETED }, { "free_requested", FREE_REQUESTED },
		            { "free", FREE_REQUESTED },   { "segment_alloc", MAP },             { "segment_map", MAP },
		            { "segment_free", UNMAP },    { "segment_unmap", UNMAP },           { "oom", OOM } };
	const char *text = json_string_value(json_object_get(object, "action"));
	if (!text) return bad_entry(reader, offset, "expected a text as ", "action");
	for (size_t i = 0; i < sizeof actions / sizeof *actions; i++) {
		if (strcmp(actions[i].text, text) != 0) continue;
		*out = actions[i].action;
		return true;
	}
	return false;
}

static torch_entry *entry_at(const torch_reader *reader, size_t index)
{
	HR_ASSERT(index < reader->entries.count);
	return (torch_entry *)(void *)reader->entries.base + index;
}

/* ---- call stacks ---- */

static hr_name name_in(const json_t *frame, const char *key)
{
	const json_t *text = json_object_get(frame, key);
	return text && json_is_string(text) ? hr__name_of_bytes(json_string_value(text), json_string_length(text)) : HR_NAME_NONE;
}

/* The stack of an entry: innermost frame first, as in the file. A frame that is not an object is left out. */
static hr_stack stack_of(const json_t *object)
{
	hr_frame frames[HR_STACK_DEPTH_MAX];
	const json_t *list = json_object_get(object, "frames");
	size_t count = 0;
	for (size_t i = 0; i < json_array_size(list) && i < HR_STACK_DEPTH_MAX; i++) {
		const json_t *frame = json_array_get(list, i);
		json_int_t line = json_integer_value(json_object_get(frame, "line"));
		if (!json_is_object(frame)) continue;
		frames[count++] = (hr_frame){ .function = name_in(frame, "name"), .file = name_in(frame, "filename"),
			                          .line = line > 0 && line <= UINT32_MAX ? (uint32_t)line : 0 };
	}
	return hr_stack_intern(frames, count);
}

static void append(torch_reader *reader, torch_entry entry)
{
	torch_device *device = hr__list_at(&reader->devices, entry.device);
	if (entry.action == FREE_COMPLETED) device->frees_by = FREE_COMPLETED;
	entry.index = (uint32_t)reader->entries.count;
	torch_entry *fresh = hr__array_push(&reader->entries, &reader->scan.status);
	if (fresh) *fresh = entry;
}

static void add_object(torch_reader *reader, const json_t *object, uint32_t device, uint64_t offset)
{
	torch_entry entry = { .device = (uint16_t)device };
	torch_action action = ALLOC;
	uint64_t stream;
	if (!action_of(reader, object, offset, &action)) return;
	if (!number_in(reader, object, "addr", action != OOM, offset, &entry.address)) return;
	if (!number_in(reader, object, "size", action != OOM, offset, &entry.bytes)) return;
	if (!number_in(reader, object, "stream", false, offset, &stream)) return;
	if (!number_in(reader, object, "time_us", false, offset, &entry.time_us)) return;
	if (entry.time_us > UINT64_MAX / 1000) {
		bad_entry(reader, offset, "too large: ", "time_us");
		return;
	}
	if (action == ALLOC && entry.bytes > HR__IMPORT_BLOCK_MAX) {
		bad_entry(reader, offset, "at most 2^48 can be the ", "size");
		return;
	}
	entry.action = (uint8_t)action;
	if (action == ALLOC || action == OOM) entry.stack = stack_of(object);
	reader->scan.status = hr__numbering_stream(&reader->import.streams, stream, &entry.stream);
	if (!reader->scan.status) append(reader, entry);
}

static bool take_entry(torch_reader *reader, uint32_t device)
{
	json_error_t error;
	if (hr__json_scan_look_past_space(&reader->scan) != '{') return hr__json_scan_expected(&reader->scan, "an entry, { \"action\": ... }");
	uint64_t offset = hr__json_scan_offset(&reader->scan);
	reader->scan.text.count = 0;
	if (!hr__json_scan_value(&reader->scan, true)) return false;
	json_t *object = json_loadb(reader->scan.text.items, reader->scan.text.count, JSON_ALLOW_NUL, &error);
	if (!object) {
		uint64_t into = error.position > 0 ? (uint64_t)error.position - 1 : 0;
		char quoted[HR__QUOTE_BYTES];
		hr__quote(error.text, strlen(error.text), quoted);
		return bad_entry(reader, offset + into, "not JSON: ", quoted);
	}
	add_object(reader, object, device, offset);
	json_decref(object);
	return reader->scan.status == HR_OK;
}

/* Parses "[ x, y, ... ]", calling [take_one] for each element. */
static bool take_list(torch_reader *reader, bool (*take_one)(torch_reader *, uint32_t), uint32_t argument,
                      bool numbered)
{
	if (!hr__json_scan_take_this(&reader->scan, '[', "a list: '['")) return false;
	if (hr__json_scan_look_past_space(&reader->scan) == ']') return hr__json_scan_take(&reader->scan) != HR__JSON_END;
	for (uint32_t i = 0;; i++) {
		if (!take_one(reader, numbered ? i : argument)) return false;
		int byte = hr__json_scan_look_past_space(&reader->scan);
		if (byte != ',' && byte != ']') return hr__json_scan_expected(&reader->scan, "',' or ']'");
		reader->scan.at++;
		if (byte == ']') return true;
	}
}

static bool begin_device(torch_reader *reader)
{
	torch_device fresh = { .frees_by = FREE_REQUESTED };
	reader->scan.status = hr__list_add(&reader->devices, &fresh);
	return reader->scan.status == HR_OK;
}

static bool take_device(torch_reader *reader, uint32_t device)
{
	if (device >= DEVICES_MAX) return hr__json_scan_expected(&reader->scan, "at most 1024 devices");
	if (!begin_device(reader)) return false;
	return take_list(reader, take_entry, device, false);
}

/* The number at a key of a segment; what is not a number is ignored. */
static bool take_number(torch_reader *reader, uint64_t *out)
{
	reader->scan.text.count = 0;
	if (!hr__json_scan_value(&reader->scan, true)) return false;
	json_t *value = json_loadb(reader->scan.text.items, reader->scan.text.count, JSON_DECODE_ANY, NULL);
	if (json_is_integer(value) && json_integer_value(value) >= 0) *out = (uint64_t)json_integer_value(value);
	json_decref(value);
	return true;
}

/* Its list of blocks is skipped: it can be long, and the history has the blocks. */
static bool take_segment(torch_reader *reader, uint32_t unused)
{
	hr__json_scan *scan = &reader->scan;
	torch_segment segment = { 0 };
	char key[HR__JSON_KEY_BYTES];
	int byte = hr__json_scan_look_past_space(scan);
	(void)unused;
	if (byte != '{') return hr__json_scan_value(scan, false);
	scan->at++;
	if (hr__json_scan_look_past_space(scan) == '}') return hr__json_scan_take(scan) != HR__JSON_END;
	do {
		if (!hr__json_scan_key(scan, key)) return false;
		uint64_t *number = strcmp(key, "address") == 0      ? &segment.address
		                   : strcmp(key, "total_size") == 0 ? &segment.bytes
		                   : strcmp(key, "device") == 0     ? &segment.device
		                                                    : NULL;
		if (!(number ? take_number(reader, number) : hr__json_scan_value(scan, false))) return false;
		byte = hr__json_scan_look_past_space(scan);
		if (byte != ',' && byte != '}') return hr__json_scan_expected(scan, "',' or '}'");
		scan->at++;
	} while (byte != '}');
	scan->status = hr__list_add(&reader->last_segments, &segment);
	return scan->status == HR_OK;
}

static bool take_member(torch_reader *reader)
{
	char key[HR__JSON_KEY_BYTES];
	if (!hr__json_scan_key(&reader->scan, key)) return false;
	if (strcmp(key, "segments") == 0 && hr__json_scan_look_past_space(&reader->scan) == '[') return take_list(reader, take_segment, 0, false);
	if (strcmp(key, "device_traces") != 0) return hr__json_scan_value(&reader->scan, false);
	reader->has_traces = true;
	return take_list(reader, take_device, 0, true);
}

static bool take_snapshot(torch_reader *reader)
{
	if (!hr__json_scan_take_this(&reader->scan, '{', "'{'")) return false;
	if (hr__json_scan_look_past_space(&reader->scan) == '}') return hr__json_scan_take(&reader->scan) != HR__JSON_END;
	for (;;) {
		if (!take_member(reader)) return false;
		int byte = hr__json_scan_look_past_space(&reader->scan);
		if (byte != ',' && byte != '}') return hr__json_scan_expected(&reader->scan, "',' or '}'");
		reader->scan.at++;
		if (byte == '}') break;
	}
	return hr__json_scan_look_past_space(&reader->scan) == HR__JSON_END ? reader->scan.status == HR_OK : hr__json_scan_expected(&reader->scan, "the end of the file");
}

/* ---- pickles ---- */

static hr_status more_of_pickle(void *context, const char **bytes, size_t *count)
{
	torch_reader *reader = context;
	reader->scan.at = reader->scan.end;
	hr__json_scan_refill(&reader->scan);
	*bytes = reader->scan.at;
	*count = (size_t)(reader->scan.end - reader->scan.at);
	return reader->scan.status;
}

static bool add_pickled_device(torch_reader *reader, hr__pickle_json *json, uint32_t list, uint32_t device)
{
	uint64_t number = 0;
	if (device >= DEVICES_MAX) return bad_entry(reader, 0, "expected at most 1024 devices", "");
	if (hr__pickle_kind_of(json->pickle, list) != HR__PICKLE_LIST)
		return bad_entry(reader, 0, "expected a list for each device", "");
	/* A long list for each of 1024 devices would take 1024 times as long as the file's size allows. */
	if (hr__pickle_shared(json->pickle, list) && hr__pickle_first(json->pickle, list))
		return bad_entry(reader, 0, "expected a separate list for each device", "");
	if (!begin_device(reader)) return false;
	for (uint32_t item = hr__pickle_first(json->pickle, list); item; item = hr__pickle_next(json->pickle, item), number++) {
		uint32_t entry = hr__pickle_at(json->pickle, item);
		if (hr__pickle_kind_of(json->pickle, entry) != HR__PICKLE_DICT) return bad_entry(reader, number, "expected a dict", "");
		json_t *object;
		reader->scan.status = hr__pickle_json_of(json, entry, &object);
		if (reader->scan.status) {
			hr__fail_in(reader->scan.status, "entry %llu of a list of device_traces", (unsigned long long)number);
			return hr__source_fail(reader->scan.source, reader->scan.status), false;
		}
		add_object(reader, object, device, number);
		json_decref(object);
		if (reader->scan.status) return false;
	}
	return true;
}

static uint64_t pickled_number(const hr__pickle *pickle, uint32_t dict, const char *key)
{
	uint32_t found = hr__pickle_find(pickle, dict, key);
	bool is_number = found && hr__pickle_kind_of(pickle, found) == HR__PICKLE_INTEGER && hr__pickle_integer(pickle, found) >= 0;
	return is_number ? (uint64_t)hr__pickle_integer(pickle, found) : 0;
}

static bool add_pickled_segments(torch_reader *reader, const hr__pickle *pickle)
{
	uint32_t list = hr__pickle_find(pickle, hr__pickle_root(pickle), "segments");
	if (!list || hr__pickle_kind_of(pickle, list) != HR__PICKLE_LIST) return true;
	for (uint32_t item = hr__pickle_first(pickle, list); item && !reader->scan.status; item = hr__pickle_next(pickle, item)) {
		uint32_t dict = hr__pickle_at(pickle, item);
		torch_segment segment = { .address = pickled_number(pickle, dict, "address"),
			                      .bytes = pickled_number(pickle, dict, "total_size"),
			                      .device = pickled_number(pickle, dict, "device") };
		reader->scan.status = hr__list_add(&reader->last_segments, &segment);
	}
	return reader->scan.status == HR_OK;
}

static bool add_pickled_devices(torch_reader *reader, hr__pickle_json *json)
{
	uint32_t device = 0, traces = hr__pickle_find(json->pickle, hr__pickle_root(json->pickle), "device_traces");
	if (!traces) return true;
	if (hr__pickle_kind_of(json->pickle, traces) != HR__PICKLE_LIST)
		return bad_entry(reader, 0, "expected a list as ", "device_traces");
	reader->has_traces = true;
	for (uint32_t item = hr__pickle_first(json->pickle, traces); item; item = hr__pickle_next(json->pickle, item))
		if (!add_pickled_device(reader, json, hr__pickle_at(json->pickle, item), device++)) return false;
	return true;
}

static bool take_pickle(torch_reader *reader)
{
	hr__pickle_json json;
	hr__pickle *pickle;
	uint64_t offset;
	reader->is_pickle = true;
	reader->scan.end = reader->scan.at; /* more_of_pickle provides the buffered bytes again */
	hr_status status = hr__pickle_read(&(hr__pickle_input){ more_of_pickle, reader }, &offset, &pickle);
	if (status && !reader->scan.status) reader->scan.status = hr__source_fail_byte(reader->scan.source, status, offset);
	if (status) return false;
	reader->scan.status = hr__pickle_json_init(&json, pickle);
	if (!reader->scan.status) {
		if (add_pickled_segments(reader, pickle)) add_pickled_devices(reader, &json);
		hr__pickle_json_free(&json);
	}
	hr__pickle_free(pickle);
	return reader->scan.status == HR_OK;
}

/* ---- the order of events ---- */

static int by_time(const void *a, const void *b)
{
	const torch_entry *one = a, *other = b;
	if (one->time_us != other->time_us) return one->time_us < other->time_us ? -1 : 1;
	return (one->index > other->index) - (one->index < other->index);
}

/* Merges the lists of the devices by time. Within a device the order is that of its list, so a time that goes back counts as the one
 * before it. */
static void order_entries(torch_reader *reader)
{
	uint64_t last = 0;
	uint32_t device = 0;
	bool mixed = false;
	for (size_t i = 0; i < reader->entries.count; i++) {
		torch_entry *entry = entry_at(reader, i);
		if (entry->device != device) last = 0;
		mixed = mixed || (i > 0 && entry->device != device);
		device = entry->device;
		if (entry->time_us < last) {
			entry->time_us = last;
			reader->import.stream.late++;
		}
		last = entry->time_us;
	}
	if (mixed) qsort(reader->entries.base, reader->entries.count, sizeof(torch_entry), by_time);
}

/* ---- segments ---- */

/* Goes back through the history of each device, from its last segments to its first ones. */
static hr_status find_first_segments(torch_reader *reader)
{
	uint64_t changes = 0;
	for (size_t i = 0; i < reader->entries.count; i++) changes += entry_at(reader, i)->action == MAP || entry_at(reader, i)->action == UNMAP;
	hr_status status = hr__torch_segments_init(&reader->segments, reader->last_segments.count + changes);
	for (size_t i = 0; i < reader->last_segments.count && !status; i++) {
		const torch_segment *segment = hr__list_at(&reader->last_segments, i);
		if (segment->device >= reader->devices.count) continue;
		status = hr__torch_segments_put(&reader->segments, (uint32_t)segment->device, segment->address, segment->bytes, true);
	}
	for (size_t i = reader->entries.count; i > 0 && !status; i--) {
		const torch_entry *entry = entry_at(reader, i - 1);
		if (entry->action == MAP || entry->action == UNMAP)
			status = hr__torch_segments_put(&reader->segments, entry->device, entry->address, entry->bytes, entry->action == UNMAP);
	}
	return status;
}

/* ---- the stream ---- */

static hr_status fail_entry(const hr__event_stream *stream, hr_status status)
{
	const torch_reader *reader = (const torch_reader *)stream;
	const torch_entry *entry = reader->next ? entry_at(reader, reader->next - 1) : NULL;
	if (entry) hr__fail_in(status, "event %u of device %u", entry->index, entry->device);
	return hr__source_fail(reader->scan.source, status);
}

/* The kind of event that an entry is; 0: none. */
static hr__event_kind kind_of(torch_reader *reader, const torch_entry *entry)
{
	const torch_device *device = hr__list_at(&reader->devices, entry->device);
	switch ((torch_action)entry->action) {
	case ALLOC:
		reader->import.stream.empty += entry->bytes == 0;
		return entry->bytes ? HR__EVENT_ALLOC : 0;
	case FREE_REQUESTED:
	case FREE_COMPLETED: return entry->action == device->frees_by ? HR__EVENT_FREE : 0;
	case MAP: return HR__EVENT_MAP;
	case UNMAP: return HR__EVENT_UNMAP;
	case OOM: return HR__EVENT_ALLOC_FAILED;
	}
	return 0;
}

/* The function that allocates: the innermost frame that has a source line. Frames of C++, of which PyTorch's own are the innermost,
 * have none. */
static hr_name op_of(hr_stack stack)
{
	hr_frame frames[HR_STACK_DEPTH_MAX];
	size_t count = stack ? hr_stack_get_frames(stack, frames, HR_STACK_DEPTH_MAX) : 0;
	for (size_t i = 0; i < count; i++)
		if (frames[i].line) return frames[i].function;
	return HR_NAME_NONE;
}

static hr_status next_event(hr__event_stream *stream, hr__event *out)
{
	torch_reader *reader = (torch_reader *)stream;
	if (reader->next_segment < hr__torch_segments_count(&reader->segments)) {
		const hr__region_run *segment = hr__torch_segments_at(&reader->segments, reader->next_segment++);
		*out = (hr__event){ .kind = HR__EVENT_MAP, .allocator = segment->allocator, .address = segment->address, .bytes = segment->bytes };
		return hr__import_time(&reader->import, entry_at(reader, 0)->time_us * 1000, out);
	}
	while (reader->next < reader->entries.count) {
		const torch_entry *entry = entry_at(reader, reader->next++);
		hr__event_kind kind = kind_of(reader, entry);
		if (!kind) continue;
		*out = (hr__event){ .kind = kind, .allocator = entry->device, .stream = entry->stream, .address = entry->address, .bytes = entry->bytes,
			                .requested = entry->bytes, .stack = entry->stack, .op = op_of(entry->stack) };
		hr_status status = hr__import_time(&reader->import, entry->time_us * 1000, out);
		return status ? fail_entry(stream, status) : HR_OK;
	}
	return HR_NOT_READY;
}

static void close_stream(hr__event_stream *stream)
{
	torch_reader *reader = (torch_reader *)stream;
	hr__list_free(&reader->scan.text);
	hr__array_free(&reader->entries);
	hr__list_free(&reader->devices);
	hr__list_free(&reader->last_segments);
	hr__torch_segments_free(&reader->segments);
	hr__list_free(&reader->definitions);
	hr__list_free(&reader->allocators);
	hr__import_stream_close(&reader->import, sizeof *reader);
}

/* One allocator for each device, with the device's number. */
static hr_status define_devices(torch_reader *reader)
{
	hr__trace_summary *summary = &reader->import.stream.summary;
	hr_status status = HR_OK;
	for (uint32_t i = 0; !status && i < reader->devices.count; i++) {
		torch_device *device = hr__list_at(&reader->devices, i);
		snprintf(device->name, sizeof device->name, "GPU:%u", i);
		hr__trace_device definition = { .id = i, .name = device->name };
		hr__trace_allocator allocator = { .id = i, .device = i, .name = "pytorch", .kind = "imported" };
		status = hr__list_add(&reader->definitions, &definition);
		if (!status) status = hr__list_add(&reader->allocators, &allocator);
	}
	summary->devices = reader->definitions.items;
	summary->allocators = reader->allocators.items;
	summary->device_count = summary->allocator_count = reader->definitions.count;
	summary->events = reader->entries.count + hr__torch_segments_count(&reader->segments);
	if (reader->entries.count) summary->start_wall_ns = entry_at(reader, 0)->time_us * 1000;
	return status;
}

static hr_status read_snapshot(torch_reader *reader)
{
	if (!(hr__json_scan_look(&reader->scan) == HR__PICKLE_FIRST_BYTE ? take_pickle : take_snapshot)(reader)) return reader->scan.status;
	hr_status status = HR_OK;
	if (!reader->has_traces) status = hr__fail(HR_BAD_FORMAT, "expected \"device_traces\" in a PyTorch snapshot; there is none");
	if (!status && !reader->entries.count)
		status = hr__fail(HR_BAD_FORMAT, "no events of any device; call torch.cuda.memory._record_memory_history() before what is to be recorded");
	if (!status) {
		order_entries(reader);
		status = find_first_segments(reader);
		if (!status) status = define_devices(reader);
	}
	return status ? hr__source_fail(reader->scan.source, status) : HR_OK;
}

hr_status hr__import_torch(hr__source *source, hr__event_stream **out)
{
	torch_reader *reader;
	hr_status status = hr__import_stream_make(source, sizeof *reader, HR__FORMAT_TORCH, "pytorch", &reader);
	if (status) return status;
	hr__event_stream *stream = &reader->import.stream;
	reader->scan.source = source;
	reader->scan.text.item_bytes = 1;
	reader->devices.item_bytes = sizeof(torch_device);
	reader->last_segments.item_bytes = sizeof(torch_segment);
	reader->definitions.item_bytes = sizeof(hr__trace_device);
	reader->allocators.item_bytes = sizeof(hr__trace_allocator);
	stream->next = next_event;
	stream->fail = fail_entry;
	stream->close = close_stream;
	status = hr__array_init(&reader->entries, sizeof(torch_entry), stream->summary.events);
	if (!status) status = read_snapshot(reader);
	if (status) close_stream(stream);
	else *out = stream;
	return status;
}

#endif
