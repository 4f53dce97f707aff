/* import_torch.c - memory snapshots of PyTorch: the pickle that torch.cuda.memory._dump_snapshot() writes, or what
 * torch.cuda.memory._snapshot() returns as JSON.
 *
 *     {"segments": [...], "device_traces": [[{"action": "alloc", "addr": 140, "size": 512, "stream": 0, "time_us": 1, "frames":
 *      [...]}, ...], ...one list for each device], "allocator_settings": {...}}
 *
 * Snapshots with stacks can have gigabytes as JSON, so the text is never held in memory as a whole. It is read once; everything
 * outside "device_traces" is skipped, and each entry is parsed by jansson separately. A pickle stores each stack once, however many
 * entries have it, and was 30 times smaller in a training step with C++ stacks. It is read as a whole (analysis/import/pickle.h),
 * and each entry is converted to the JSON object that the text would give.
 *
 * The entries are kept, because the lists of devices follow each other in the file, while events come in order of time. The
 * innermost function with a source line becomes the op of an allocation.
 *
 *     alloc, free_completed         ALLOC, FREE; free_requested instead, if the device has no free_completed at all
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
#include "analysis/import/pickle_json.h"
#include "analysis/import/quote.h"
#include "analysis/reader/list.h"

#define ENTRY_BYTES_MAX (16u << 20)
#define KEY_BYTES_MAX 64u
#define DEVICES_MAX 1024u
#define END (-1)

typedef enum torch_action { ALLOC, FREE_REQUESTED, FREE_COMPLETED, MAP, UNMAP, OOM } torch_action;

typedef struct torch_entry {
	uint64_t address, bytes, time_us;
	hr_stream stream;
	uint16_t device;
	uint8_t action;
	hr_stack stack;
	uint32_t index; /* position in the file, which orders entries of the same time */
} torch_entry;

typedef struct torch_device {
	char name[16];
	torch_action frees_by; /* FREE_COMPLETED, or FREE_REQUESTED if it has none of those */
} torch_device;

typedef struct torch_reader {
	hr__import_stream import;
	hr__source *source;
	const char *at, *end; /* buffered bytes; those before [at] are not skipped in the source yet */
	const char *begin;
	hr_status status;

	hr__list text; /* char: text of the current entry */
	hr__array entries; /* torch_entry */
	hr__list devices;    /* torch_device */
	hr__list definitions, allocators; /* the same as the summary expects them: hr__trace_device, hr__trace_allocator */
	bool has_traces;
	bool is_pickle; /* positions of entries are numbers from 0 instead of offsets */
	size_t next;         /* entry */
} torch_reader;

/* ---- bytes ---- */

/* Gets the next bytes of the source; false at its end, or when it failed. */
static bool refill(torch_reader *reader)
{
	size_t count = 0;
	if (reader->status) return false;
	hr__source_skip(reader->source, (size_t)(reader->at - reader->begin));
	reader->status = hr__source_peek(reader->source, &reader->begin, &count);
	if (reader->status) count = 0;
	reader->at = reader->begin;
	reader->end = reader->begin + count;
	return count > 0;
}

/* The next byte, without consuming it; END at the end. */
static inline int look(torch_reader *reader)
{
	if (reader->at == reader->end && !refill(reader)) return END;
	return (unsigned char)*reader->at;
}

static inline int take(torch_reader *reader)
{
	int byte = look(reader);
	if (byte != END) reader->at++;
	return byte;
}

static uint64_t offset_of(const torch_reader *reader)
{
	return hr__source_offset(reader->source) + (uint64_t)(reader->at - reader->begin);
}

/* Fails at the next byte, unless reading failed already. Always returns false. */
static bool expected(torch_reader *reader, const char *what)
{
	char found[HR__QUOTE_BYTES] = "the end of the file";
	int byte = look(reader);
	if (reader->status) return false;
	if (byte != END) hr__quote(reader->at, 1, found);
	hr_status status = byte == END ? HR_TRUNCATED : HR_BAD_FORMAT;
	hr__fail(status, "expected %s, found %s", what, found);
	reader->status = hr__source_fail_byte(reader->source, status, offset_of(reader));
	return false;
}

static int look_past_space(torch_reader *reader)
{
	int byte;
	while ((byte = look(reader)) == ' ' || byte == '\n' || byte == '\t' || byte == '\r') reader->at++;
	return byte;
}

static bool take_this(torch_reader *reader, char wanted, const char *what)
{
	if (look_past_space(reader) != wanted) return expected(reader, what);
	reader->at++;
	return true;
}

/* ---- skipping and copying values ---- */

static bool keep(torch_reader *reader, int byte)
{
	char character = (char)byte;
	if (reader->text.count == ENTRY_BYTES_MAX) return expected(reader, "an entry of at most 16 MiB");
	reader->status = hr__list_add(&reader->text, &character);
	return reader->status == HR_OK;
}

/* Consumes one value of any type, and copies its text if [cut]. Brackets are counted without checking their type: jansson checks
 * copied text, and skipped text does not matter. */
static bool pass_value(torch_reader *reader, bool cut)
{
	uint64_t depth = 0;
	bool in_string = false, escaped = false;
	int first = look_past_space(reader);
	if (first == END || first == ',' || first == ']' || first == '}' || first == ':') return expected(reader, "a value");
	for (;;) {
		int byte = look(reader);
		bool ends_bare = !in_string && depth == 0 && (byte == END || strchr(",]} \n\t\r", byte));
		if (ends_bare && byte != 0) return reader->status == HR_OK;
		if (byte == END) return expected(reader, in_string ? "the end of a string" : "a closing bracket");
		reader->at++;
		if (cut && !keep(reader, byte)) return false;
		if (in_string) {
			in_string = escaped || byte != '"';
			escaped = !escaped && byte == '\\';
			if (!in_string && depth == 0) return true;
		} else if (byte == '"') {
			in_string = true;
		} else if (byte == '{' || byte == '[') {
			depth++;
		} else if (byte == '}' || byte == ']') {
			if (--depth == 0) return true;
		}
	}
}

/* Reads a key; keys longer than any known one are truncated. */
static bool take_key(torch_reader *reader, char key[KEY_BYTES_MAX])
{
	size_t length = 0;
	bool escaped = false;
	if (!take_this(reader, '"', "a key in double quotes")) return false;
	for (;;) {
		int byte = take(reader);
		if (byte == END) return expected(reader, "the end of a key");
		if (byte == '"' && !escaped) break;
		escaped = !escaped && byte == '\\';
		if (length + 1 < KEY_BYTES_MAX) key[length++] = (char)byte;
	}
	key[length] = 0;
	return take_this(reader, ':', "':' behind a key");
}

/* ---- entries ---- */

static bool bad_entry(torch_reader *reader, uint64_t offset, const char *why, const char *detail)
{
	if (reader->is_pickle) {
		hr__fail(HR_BAD_FORMAT, "in entry %llu of a list of device_traces: %s%s", (unsigned long long)offset, why, detail);
		reader->status = hr__source_fail(reader->source, HR_BAD_FORMAT);
	} else {
		hr__fail(HR_BAD_FORMAT, "in an entry of device_traces: %s%s", why, detail);
		reader->status = hr__source_fail_byte(reader->source, HR_BAD_FORMAT, offset);
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
	torch_entry *fresh = hr__array_push(&reader->entries, &reader->status);
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
	reader->status = hr__numbering_stream(&reader->import.streams, stream, &entry.stream);
	if (!reader->status) append(reader, entry);
}

static bool take_entry(torch_reader *reader, uint32_t device)
{
	json_error_t error;
	if (look_past_space(reader) != '{') return expected(reader, "an entry, { \"action\": ... }");
	uint64_t offset = offset_of(reader);
	reader->text.count = 0;
	if (!pass_value(reader, true)) return false;
	json_t *object = json_loadb(reader->text.items, reader->text.count, JSON_ALLOW_NUL, &error);
	if (!object) {
		uint64_t into = error.position > 0 ? (uint64_t)error.position - 1 : 0;
		char quoted[HR__QUOTE_BYTES];
		hr__quote(error.text, strlen(error.text), quoted);
		return bad_entry(reader, offset + into, "not JSON: ", quoted);
	}
	add_object(reader, object, device, offset);
	json_decref(object);
	return reader->status == HR_OK;
}

/* Parses "[ x, y, ... ]", calling [take_one] for each element. */
static bool take_list(torch_reader *reader, bool (*take_one)(torch_reader *, uint32_t), uint32_t argument,
                      bool numbered)
{
	if (!take_this(reader, '[', "a list: '['")) return false;
	if (look_past_space(reader) == ']') return take(reader) != END;
	for (uint32_t i = 0;; i++) {
		if (!take_one(reader, numbered ? i : argument)) return false;
		int byte = look_past_space(reader);
		if (byte != ',' && byte != ']') return expected(reader, "',' or ']'");
		reader->at++;
		if (byte == ']') return true;
	}
}

static bool begin_device(torch_reader *reader)
{
	torch_device fresh = { .frees_by = FREE_REQUESTED };
	reader->status = hr__list_add(&reader->devices, &fresh);
	return reader->status == HR_OK;
}

static bool take_device(torch_reader *reader, uint32_t device)
{
	if (device >= DEVICES_MAX) return expected(reader, "at most 1024 devices");
	if (!begin_device(reader)) return false;
	return take_list(reader, take_entry, device, false);
}

static bool take_member(torch_reader *reader)
{
	char key[KEY_BYTES_MAX];
	if (!take_key(reader, key)) return false;
	if (strcmp(key, "device_traces") != 0) return pass_value(reader, false);
	reader->has_traces = true;
	return take_list(reader, take_device, 0, true);
}

static bool take_snapshot(torch_reader *reader)
{
	if (!take_this(reader, '{', "'{'")) return false;
	if (look_past_space(reader) == '}') return take(reader) != END;
	for (;;) {
		if (!take_member(reader)) return false;
		int byte = look_past_space(reader);
		if (byte != ',' && byte != '}') return expected(reader, "',' or '}'");
		reader->at++;
		if (byte == '}') break;
	}
	return look_past_space(reader) == END ? reader->status == HR_OK : expected(reader, "the end of the file");
}

/* ---- pickles ---- */

static hr_status more_of_pickle(void *context, const char **bytes, size_t *count)
{
	torch_reader *reader = context;
	reader->at = reader->end;
	refill(reader);
	*bytes = reader->at;
	*count = (size_t)(reader->end - reader->at);
	return reader->status;
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
		reader->status = hr__pickle_json_of(json, entry, &object);
		if (reader->status) {
			hr__fail_in(reader->status, "entry %llu of a list of device_traces", (unsigned long long)number);
			return hr__source_fail(reader->source, reader->status), false;
		}
		add_object(reader, object, device, number);
		json_decref(object);
		if (reader->status) return false;
	}
	return true;
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
	reader->end = reader->at; /* more_of_pickle provides the buffered bytes again */
	hr_status status = hr__pickle_read(&(hr__pickle_input){ more_of_pickle, reader }, &offset, &pickle);
	if (status && !reader->status) reader->status = hr__source_fail_byte(reader->source, status, offset);
	if (status) return false;
	reader->status = hr__pickle_json_init(&json, pickle);
	if (!reader->status) {
		add_pickled_devices(reader, &json);
		hr__pickle_json_free(&json);
	}
	hr__pickle_free(pickle);
	return reader->status == HR_OK;
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

/* ---- the stream ---- */

static hr_status fail_entry(const hr__event_stream *stream, hr_status status)
{
	const torch_reader *reader = (const torch_reader *)stream;
	const torch_entry *entry = reader->next ? entry_at(reader, reader->next - 1) : NULL;
	if (entry) hr__fail_in(status, "event %u of device %u", entry->index, entry->device);
	return hr__source_fail(reader->source, status);
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
	hr__list_free(&reader->text);
	hr__array_free(&reader->entries);
	hr__list_free(&reader->devices);
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
	summary->events = reader->entries.count;
	if (reader->entries.count) summary->start_wall_ns = entry_at(reader, 0)->time_us * 1000;
	return status;
}

static hr_status read_snapshot(torch_reader *reader)
{
	if (!(look(reader) == HR__PICKLE_FIRST_BYTE ? take_pickle : take_snapshot)(reader)) return reader->status;
	hr_status status = HR_OK;
	if (!reader->has_traces) status = hr__fail(HR_BAD_FORMAT, "expected \"device_traces\" in a PyTorch snapshot; there is none");
	if (!status && !reader->entries.count)
		status = hr__fail(HR_BAD_FORMAT, "no events of any device; call torch.cuda.memory._record_memory_history() before what is to be recorded");
	if (!status) {
		order_entries(reader);
		status = define_devices(reader);
	}
	return status ? hr__source_fail(reader->source, status) : HR_OK;
}

hr_status hr__import_torch(hr__source *source, hr__event_stream **out)
{
	torch_reader *reader;
	hr_status status = hr__import_stream_make(source, sizeof *reader, HR__FORMAT_TORCH, "pytorch", &reader);
	if (status) return status;
	hr__event_stream *stream = &reader->import.stream;
	reader->source = source;
	reader->text.item_bytes = 1;
	reader->devices.item_bytes = sizeof(torch_device);
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
