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
 *     alloc, free_completed         used; free_requested instead, if the device has no free_completed at all
 *     segment_*, snapshot, others   skipped: actions of PyTorch's allocator, not of the program
 *     oom                           counted */
#include "core/base/status.h"
#include "import.h"

#ifndef HR_HAVE_JANSSON

hr_status hr__import_torch(hr__source *source, const hr__import_options *options, hr__tape *tape)
{
	(void)options, (void)tape;
	hr__fail(HR_UNSUPPORTED,
	         "it is a PyTorch snapshot, and this program was built without jansson; install libjansson-dev and build again");
	return hr__source_fail(source, HR_UNSUPPORTED);
}

#else

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "pickle_json.h"
#include "terminal/quote.h"

#define ENTRY_BYTES_MAX (16u << 20)
#define KEY_BYTES_MAX 64u
#define DEVICES_MAX 1024u
#define END (-1)

enum action { ALLOC, FREE_REQUESTED, FREE_COMPLETED };

struct torch_entry {
	uint64_t address, bytes, stream;
	uint32_t device;
	enum action action;
};

struct device {
	uint64_t entries; /* used */
	uint64_t ooms;
};

struct torch_reader {
	hr__source *source;
	const char *at, *end; /* buffered bytes; those before [at] are not skipped in the source yet */
	const char *begin;
	hr_status status;

	char *text; /* text of the current entry */
	size_t text_length, text_capacity;
	struct torch_entry *entries;
	size_t count, capacity;
	struct device *per_device; /* DEVICES_MAX entries */
	uint32_t devices;
	bool has_traces;
	bool is_pickle; /* positions of entries are numbers from 0 instead of offsets */
};

/* ---- bytes ---- */

/* Gets the next bytes of the source; false at its end, or when it failed. */
static bool refill(struct torch_reader *reader)
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
static inline int look(struct torch_reader *reader)
{
	if (reader->at == reader->end && !refill(reader)) return END;
	return (unsigned char)*reader->at;
}

static inline int take(struct torch_reader *reader)
{
	int byte = look(reader);
	if (byte != END) reader->at++;
	return byte;
}

static uint64_t offset_of(const struct torch_reader *reader)
{
	return hr__source_offset(reader->source) + (uint64_t)(reader->at - reader->begin);
}

/* Fails at the next byte, unless reading failed already. Always returns false. */
static bool expected(struct torch_reader *reader, const char *what)
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

static int look_past_space(struct torch_reader *reader)
{
	int byte;
	while ((byte = look(reader)) == ' ' || byte == '\n' || byte == '\t' || byte == '\r') reader->at++;
	return byte;
}

static bool take_this(struct torch_reader *reader, char wanted, const char *what)
{
	if (look_past_space(reader) != wanted) return expected(reader, what);
	reader->at++;
	return true;
}

/* ---- skipping and copying values ---- */

static bool keep(struct torch_reader *reader, int byte)
{
	if (reader->text_length == reader->text_capacity) {
		size_t capacity = reader->text_capacity ? reader->text_capacity * 2 : 4096;
		if (capacity > ENTRY_BYTES_MAX) return expected(reader, "an entry of at most 16 MiB");
		char *text = realloc(reader->text, capacity);
		if (!text) {
			reader->status = hr__fail(HR_NO_HOST_MEMORY, "no memory for an entry of %zu bytes", capacity);
			return false;
		}
		reader->text = text;
		reader->text_capacity = capacity;
	}
	reader->text[reader->text_length++] = (char)byte;
	return true;
}

/* Consumes one value of any type, and copies its text if [cut]. Brackets are counted without checking their type: jansson checks
 * copied text, and skipped text does not matter. */
static bool pass_value(struct torch_reader *reader, bool cut)
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
static bool take_key(struct torch_reader *reader, char key[KEY_BYTES_MAX])
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

static bool bad_entry(struct torch_reader *reader, uint64_t offset, const char *why, const char *detail)
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
static bool number_in(struct torch_reader *reader, const json_t *object, const char *key, bool needed, uint64_t offset,
                      uint64_t *out)
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
static bool action_of(struct torch_reader *reader, const json_t *object, uint32_t device, uint64_t offset, enum action *out)
{
	const char *text = json_string_value(json_object_get(object, "action"));
	if (!text) return bad_entry(reader, offset, "expected a text as ", "action");
	if (strcmp(text, "alloc") == 0) *out = ALLOC;
	else if (strcmp(text, "free_completed") == 0) *out = FREE_COMPLETED;
	else if (strcmp(text, "free_requested") == 0 || strcmp(text, "free") == 0) *out = FREE_REQUESTED;
	else if (strcmp(text, "oom") == 0) return reader->per_device[device].ooms++, false;
	else return false;
	return true;
}

static bool append(struct torch_reader *reader, const struct torch_entry *entry)
{
	if (reader->count == HR__TAPE_EVENTS_MAX) {
		reader->status = hr__fail(HR_TOO_MANY, "more than %u events", HR__TAPE_EVENTS_MAX);
		return false;
	}
	if (reader->count == reader->capacity) {
		size_t capacity = reader->capacity ? reader->capacity + reader->capacity / 2 : 1024;
		struct torch_entry *entries = realloc(reader->entries, capacity * sizeof *entries);
		if (!entries) {
			reader->status = hr__fail(HR_NO_HOST_MEMORY, "no memory for more than %zu events", reader->count);
			return false;
		}
		reader->entries = entries;
		reader->capacity = capacity;
	}
	reader->entries[reader->count++] = *entry;
	reader->per_device[entry->device].entries++;
	return true;
}

static void add_object(struct torch_reader *reader, const json_t *object, uint32_t device, uint64_t offset)
{
	struct torch_entry entry = { .device = device };
	uint64_t time_us;
	if (!action_of(reader, object, device, offset, &entry.action)) return;
	if (!number_in(reader, object, "addr", true, offset, &entry.address)) return;
	if (!number_in(reader, object, "size", true, offset, &entry.bytes)) return;
	if (!number_in(reader, object, "stream", false, offset, &entry.stream)) return;
	if (!number_in(reader, object, "time_us", false, offset, &time_us)) return;
	append(reader, &entry);
}

static bool take_entry(struct torch_reader *reader, uint32_t device)
{
	json_error_t error;
	if (look_past_space(reader) != '{') return expected(reader, "an entry, { \"action\": ... }");
	uint64_t offset = offset_of(reader);
	reader->text_length = 0;
	if (!pass_value(reader, true)) return false;
	json_t *object = json_loadb(reader->text, reader->text_length, JSON_ALLOW_NUL, &error);
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
static bool take_list(struct torch_reader *reader, bool (*take_one)(struct torch_reader *, uint32_t), uint32_t argument,
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

static bool take_device(struct torch_reader *reader, uint32_t device)
{
	if (device >= DEVICES_MAX) return expected(reader, "at most 1024 devices");
	reader->devices = device + 1;
	return take_list(reader, take_entry, device, false);
}

static bool take_member(struct torch_reader *reader)
{
	char key[KEY_BYTES_MAX];
	if (!take_key(reader, key)) return false;
	if (strcmp(key, "device_traces") != 0) return pass_value(reader, false);
	reader->has_traces = true;
	return take_list(reader, take_device, 0, true);
}

static bool take_snapshot(struct torch_reader *reader)
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
	struct torch_reader *reader = context;
	reader->at = reader->end;
	refill(reader);
	*bytes = reader->at;
	*count = (size_t)(reader->end - reader->at);
	return reader->status;
}

static bool add_pickled_device(struct torch_reader *reader, hr__pickle_json *json, uint32_t list, uint32_t device)
{
	uint64_t number = 0;
	if (device >= DEVICES_MAX) return bad_entry(reader, 0, "expected at most 1024 devices", "");
	if (hr__pickle_kind_of(json->pickle, list) != HR__PICKLE_LIST)
		return bad_entry(reader, 0, "expected a list for each device", "");
	/* A long list for each of 1024 devices would take 1024 times as long as the file's size allows. */
	if (hr__pickle_shared(json->pickle, list) && hr__pickle_first(json->pickle, list))
		return bad_entry(reader, 0, "expected a separate list for each device", "");
	reader->devices = device + 1;
	for (uint32_t item = hr__pickle_first(json->pickle, list); item; item = hr__pickle_next(json->pickle, item), number++) {
		uint32_t entry = hr__pickle_at(json->pickle, item);
		if (hr__pickle_kind_of(json->pickle, entry) != HR__PICKLE_DICT) return bad_entry(reader, number, "expected a dict", "");
		json_t *object = hr__pickle_json_of(json, entry);
		if (object) add_object(reader, object, device, number);
		else reader->status = hr__fail(HR_NO_HOST_MEMORY, "no memory for an entry of a snapshot");
		json_decref(object);
		if (reader->status) return false;
	}
	return true;
}

static bool add_pickled_devices(struct torch_reader *reader, hr__pickle_json *json)
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

static bool take_pickle(struct torch_reader *reader)
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

/* ---- filling the tape ---- */

static hr_status choose_device(const struct torch_reader *reader, int64_t wanted, uint32_t *out)
{
	if (!reader->has_traces) return hr__fail(HR_BAD_FORMAT, "expected \"device_traces\" in a PyTorch snapshot; there is none");
	if (wanted >= (int64_t)reader->devices)
		return hr__fail(HR_INVALID_ARGUMENT, "there is no device %lld: it has %u, counted from 0", (long long)wanted,
		                reader->devices);
	*out = wanted >= 0 ? (uint32_t)wanted : 0;
	for (uint32_t i = 0; wanted < 0 && i < reader->devices; i++)
		if (reader->per_device[i].entries > reader->per_device[*out].entries) *out = i;
	if (reader->devices > 0 && reader->per_device[*out].entries > 0) return HR_OK;
	return hr__fail(HR_BAD_FORMAT,
	                "no events of device %u; call torch.cuda.memory._record_memory_history() before what is to be recorded", *out);
}

static hr_status play(const struct torch_reader *reader, uint32_t device, hr__tape *tape)
{
	enum action ending = FREE_REQUESTED;
	for (size_t i = 0; i < reader->count; i++)
		if (reader->entries[i].device == device && reader->entries[i].action == FREE_COMPLETED) ending = FREE_COMPLETED;
	for (size_t i = 0; i < reader->count; i++) {
		const struct torch_entry *entry = &reader->entries[i];
		hr__tape_id id = { entry->address, 0 };
		hr_status status = HR_OK;
		if (entry->device != device) continue;
		if (entry->action == ALLOC) status = hr__tape_alloc(tape, id, entry->bytes, entry->stream, 0);
		else if (entry->action == ending) status = hr__tape_release(tape, id, entry->bytes, entry->stream, 0);
		if (status) return hr__fail_in(status, "event %zu of device %u", i, device);
	}
	tape->failed_allocs = reader->per_device[device].ooms;
	tape->device_index = device;
	for (uint32_t i = 0; i < reader->devices; i++) tape->devices += reader->per_device[i].entries > 0;
	return HR_OK;
}

hr_status hr__import_torch(hr__source *source, const hr__import_options *options, hr__tape *tape)
{
	uint32_t device = 0;
	struct torch_reader reader = { .source = source, .per_device = calloc(DEVICES_MAX, sizeof *reader.per_device) };
	if (!reader.per_device) return hr__fail(HR_NO_HOST_MEMORY, "no memory for reading a snapshot");
	hr_status status = HR_OK;
	if (!(look(&reader) == HR__PICKLE_FIRST_BYTE ? take_pickle : take_snapshot)(&reader)) {
		status = reader.status;
	} else {
		status = choose_device(&reader, options->device_index, &device);
		if (!status) status = play(&reader, device, tape);
		if (status) status = hr__source_fail(source, status);
	}
	free(reader.per_device);
	free(reader.entries);
	free(reader.text);
	return status;
}

#endif
