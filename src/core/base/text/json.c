/* json.c - the JSON writer. All values go through put(), which fills the caller's memory, or the small buffer that is flushed to
 * the sink.
 *
 * Nesting is one counter, and one flag per level: whether a comma is due. Levels beyond the limit are counted so that their ends
 * match, but nothing is written from the first of them on. */
#include "core/base/text/json.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/base/assert.h"
#include "core/base/status.h"
#include "core/base/text/text.h"

#define DECIMALS_MAX 17
#define REPLACEMENT "\xEF\xBF\xBD" /* U+FFFD */

/* ---- output ---- */

static void flush(hr__json *json)
{
	if (json->used > 0 && !json->failed) json->failed = !json->sink(json->context, json->buffer, json->used);
	json->used = 0;
}

static void put_in_memory(hr__json *json, const char *bytes, size_t length)
{
	if (json->capacity == 0 || json->used >= json->capacity - 1) return;
	size_t room = json->capacity - 1 - json->used;
	size_t taken = length < room ? length : room;
	memcpy(json->memory + json->used, bytes, taken);
	json->used += taken;
	json->memory[json->used] = 0;
}

static void put_in_buffer(hr__json *json, const char *bytes, size_t length)
{
	while (length > 0) {
		if (json->used == sizeof json->buffer) flush(json);
		size_t room = sizeof json->buffer - json->used;
		size_t taken = length < room ? length : room;
		memcpy(json->buffer + json->used, bytes, taken);
		json->used += taken;
		bytes += taken;
		length -= taken;
	}
}

static void put(hr__json *json, const char *bytes, size_t length)
{
	if (json->too_deep) return;
	json->total += length;
	if (json->sink == NULL) put_in_memory(json, bytes, length);
	else put_in_buffer(json, bytes, length);
}

static void put_text(hr__json *json, const char *text)
{
	put(json, text, strlen(text));
}

/* ---- structure ---- */

static void new_line(hr__json *json)
{
	if (!json->pretty) return;
	put(json, "\n", 1);
	for (unsigned i = 0; i < json->depth; i++) put(json, "  ", 2);
}

/* Writes the separator before a key, or before a value without a key. */
static void begin_element(hr__json *json)
{
	if (json->depth == 0 || json->depth > HR__JSON_DEPTH) return;
	bool *any = &json->any[json->depth - 1];
	if (*any) put(json, ",", 1);
	*any = true;
	new_line(json);
}

static void begin_value(hr__json *json)
{
	if (json->after_key) json->after_key = false;
	else begin_element(json);
}

static void begin_level(hr__json *json, const char *bracket)
{
	begin_value(json);
	if (json->depth >= HR__JSON_DEPTH) json->too_deep = true;
	else json->any[json->depth] = false;
	json->depth++;
	put_text(json, bracket);
}

static void end_level(hr__json *json, const char *bracket)
{
	HR_ASSERT(json->depth > 0 && !json->after_key);
	if (json->depth == 0) return;
	json->depth--;
	if (json->depth < HR__JSON_DEPTH && json->any[json->depth]) new_line(json);
	put_text(json, bracket);
}

void hr__json_object(hr__json *json)
{
	begin_level(json, "{");
}

void hr__json_end_object(hr__json *json)
{
	end_level(json, "}");
}

void hr__json_array(hr__json *json)
{
	begin_level(json, "[");
}

void hr__json_end_array(hr__json *json)
{
	end_level(json, "]");
}

/* ---- text ---- */

static void put_escape(hr__json *json, unsigned c)
{
	static const char specials[] = "\"\\\b\f\n\r\t", names[] = "\"\\bfnrt";
	const char *special = c < 0x80 ? memchr(specials, (int)c, sizeof specials - 1) : NULL;
	char text[16];
	if (special != NULL) snprintf(text, sizeof text, "\\%c", names[special - specials]);
	else snprintf(text, sizeof text, "\\u%04x", c < 0x10000 ? c : 0xD800 + ((c - 0x10000) >> 10));
	put_text(json, text);
	if (c < 0x10000) return;
	snprintf(text, sizeof text, "\\u%04x", 0xDC00 + (c & 0x3FF)); /* the second half of a surrogate pair */
	put_text(json, text);
}

/* The code point of the character of 2 to 4 bytes at [text]. */
static unsigned code_of(const char *text, size_t bytes)
{
	const unsigned char *at = (const unsigned char *)text;
	HR_ASSERT(bytes >= 2 && bytes <= 4);
	unsigned code = at[0] & (0x7Fu >> bytes);
	for (size_t i = 1; i < bytes; i++) code = code << 6 | (at[i] & 0x3Fu);
	return code;
}

static bool is_plain(char c)
{
	unsigned char byte = (unsigned char)c;
	return byte >= 0x20 && byte < 0x7F && c != '"' && c != '\\';
}

void hr__json_string_part(hr__json *json, const char *text, size_t length)
{
	while (length > 0) {
		size_t taken = 0;
		while (taken < length && is_plain(text[taken])) taken++;
		if (taken > 0) {
			put(json, text, taken);
		} else if ((unsigned char)text[0] < 0x80) {
			put_escape(json, (unsigned char)text[0]);
			taken = 1;
		} else {
			/* Characters that a terminal would obey or hide are escaped, so that a name cannot make the output look like something else. */
			taken = hr__utf8_character(text, length);
			if (taken == 0) put_text(json, REPLACEMENT);
			else if (hr__utf8_printable(text, length) == 0) put_escape(json, code_of(text, taken));
			else put(json, text, taken);
			if (taken == 0) taken = 1;
		}
		text += taken;
		length -= taken;
	}
}

static void put_string(hr__json *json, const char *text, size_t length)
{
	put(json, "\"", 1);
	hr__json_string_part(json, text, length);
	put(json, "\"", 1);
}

void hr__json_key(hr__json *json, const char *key)
{
	HR_ASSERT(json->depth > 0 && !json->after_key);
	begin_element(json);
	put_string(json, key, strlen(key));
	put_text(json, json->pretty ? ": " : ":");
	json->after_key = true;
}

void hr__json_bytes(hr__json *json, const char *text, size_t length)
{
	begin_value(json);
	put_string(json, text, length);
}

void hr__json_open_string(hr__json *json)
{
	begin_value(json);
	put(json, "\"", 1);
}

void hr__json_close_string(hr__json *json)
{
	put(json, "\"", 1);
}

void hr__json_string(hr__json *json, const char *text)
{
	if (text == NULL) hr__json_null(json);
	else hr__json_bytes(json, text, strlen(text));
}

/* ---- numbers and words ---- */

static void put_value(hr__json *json, const char *text)
{
	begin_value(json);
	put_text(json, text);
}

void hr__json_int(hr__json *json, int64_t value)
{
	char text[24];
	snprintf(text, sizeof text, "%lld", (long long)value);
	put_value(json, text);
}

void hr__json_uint(hr__json *json, uint64_t value)
{
	char text[24];
	snprintf(text, sizeof text, "%llu", (unsigned long long)value);
	put_value(json, text);
}

/* printf writes the locale's decimal point, which may be a comma or several bytes; JSON allows only ".". */
static void make_point_plain(char *number)
{
	char *to = number;
	for (const char *from = number; *from != 0; from++) {
		bool plain = (*from >= '0' && *from <= '9') || *from == '-';
		if (plain) *to++ = *from;
		else if (to > number && to[-1] != '.') *to++ = '.';
	}
	*to = 0;
}

void hr__json_double(hr__json *json, double value, int decimals)
{
	char text[352]; /* 309 digits, sign, point, decimals */
	if (!isfinite(value)) {
		hr__json_null(json);
		return;
	}
	if (decimals < 0) decimals = 0;
	if (decimals > DECIMALS_MAX) decimals = DECIMALS_MAX;
	snprintf(text, sizeof text, "%.*f", decimals, value);
	make_point_plain(text);
	put_value(json, text);
}

void hr__json_bool(hr__json *json, bool value)
{
	put_value(json, value ? "true" : "false");
}

void hr__json_null(hr__json *json)
{
	put_value(json, "null");
}

/* ---- fields ---- */

void hr__json_field_int(hr__json *json, const char *key, int64_t value)
{
	hr__json_key(json, key);
	hr__json_int(json, value);
}

void hr__json_field_uint(hr__json *json, const char *key, uint64_t value)
{
	hr__json_key(json, key);
	hr__json_uint(json, value);
}

void hr__json_field_double(hr__json *json, const char *key, double value, int decimals)
{
	hr__json_key(json, key);
	hr__json_double(json, value, decimals);
}

void hr__json_field_string(hr__json *json, const char *key, const char *value)
{
	hr__json_key(json, key);
	hr__json_string(json, value);
}

void hr__json_field_bool(hr__json *json, const char *key, bool value)
{
	hr__json_key(json, key);
	hr__json_bool(json, value);
}

/* ---- beginning and end ---- */

void hr__json_init(hr__json *json, hr__json_sink sink, void *context)
{
	HR_ASSERT(sink != NULL);
	memset(json, 0, offsetof(hr__json, buffer));
	json->sink = sink;
	json->context = context;
}

void hr__json_init_memory(hr__json *json, char *memory, size_t capacity)
{
	memset(json, 0, offsetof(hr__json, buffer));
	json->memory = memory;
	json->capacity = capacity;
	if (capacity > 0) memory[0] = 0;
}

hr_status hr__json_finish(hr__json *json)
{
	HR_ASSERT(json->depth == 0 && !json->after_key);
	if (json->sink != NULL) flush(json);
	if (json->too_deep) return hr__fail(HR_TOO_MANY, "JSON nested more than %d levels deep", HR__JSON_DEPTH);
	if (json->failed) return hr__fail(HR_IO, "the JSON text could not be written");
	if (json->sink == NULL && json->total >= json->capacity) {
		if (json->capacity > 0) json->memory[hr__utf8_trim(json->memory, json->used)] = 0;
		return hr__fail(HR_TOO_SMALL, "the JSON text needs %zu bytes, the buffer has %zu", json->total + 1, json->capacity);
	}
	return HR_OK;
}
