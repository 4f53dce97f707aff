/* json.h - a JSON writer that never allocates.
 *
 * Writes through a small buffer, owned by the caller, into a sink function, or into the caller's memory. The writer handles commas
 * and nesting (depth at most 32), so the output is well-formed when every begin has its end. Text is escaped, including C1 controls
 * and direction marks; bytes that are not UTF-8 become U+FFFD. NaN and infinities become null. After a sink call fails, further
 * output is discarded and hr__json_finish reports the failure, so callers check once. */
#ifndef HR_BASE_JSON_H
#define HR_BASE_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "headroom.h"
#include "core/base/shared.h"

#define HR__JSON_DEPTH 32

/* Consumes [length] bytes; returns false on failure. */
typedef bool (*hr__json_sink)(void *context, const char *bytes, size_t length);

typedef struct hr__json {
	hr__json_sink sink;
	void *context;
	size_t used;  /* bytes in buffer or memory */
	size_t total; /* bytes written, including those that did not fit */
	char *memory; /* destination when writing to memory; [capacity] bytes, including the final 0 */
	size_t capacity;
	unsigned depth;
	bool failed;   /* a call of the sink failed */
	bool too_deep; /* more than HR__JSON_DEPTH levels were begun */
	bool pretty;   /* newline and two spaces per level */
	bool after_key;
	bool any[HR__JSON_DEPTH]; /* whether the level has an element already */
	char buffer[512];
} hr__json;

HR__SHARED void hr__json_init(hr__json *json, hr__json_sink sink, void *context);

/* Writes to [memory], which ends in 0 whenever capacity is not 0. If the text did not fit, hr__json_finish fails with HR_TOO_SMALL
 * and json->total is the length needed, without the 0. To measure, pass NULL with capacity 0. */
void hr__json_init_memory(hr__json *json, char *memory, size_t capacity);

HR__SHARED void hr__json_object(hr__json *json);     /* { */
HR__SHARED void hr__json_end_object(hr__json *json); /* } */
HR__SHARED void hr__json_array(hr__json *json);      /* [ */
HR__SHARED void hr__json_end_array(hr__json *json);  /* ] */
HR__SHARED void hr__json_key(hr__json *json, const char *key);
HR__SHARED void hr__json_string(hr__json *json, const char *text); /* NULL gives null */
HR__SHARED void hr__json_bytes(hr__json *json, const char *text, size_t length);
/* A string in parts. No part may end in the middle of a character. */
void hr__json_open_string(hr__json *json);
void hr__json_string_part(hr__json *json, const char *text, size_t length);
void hr__json_close_string(hr__json *json);
HR__SHARED void hr__json_int(hr__json *json, int64_t value);
HR__SHARED void hr__json_uint(hr__json *json, uint64_t value);
HR__SHARED void hr__json_double(hr__json *json, double value, int decimals);
HR__SHARED void hr__json_bool(hr__json *json, bool value);
HR__SHARED void hr__json_null(hr__json *json);

/* Shorthand for a key and its value. */
void hr__json_field_int(hr__json *json, const char *key, int64_t value);
HR__SHARED void hr__json_field_uint(hr__json *json, const char *key, uint64_t value);
HR__SHARED void hr__json_field_double(hr__json *json, const char *key, double value, int decimals);
HR__SHARED void hr__json_field_string(hr__json *json, const char *key, const char *value);
HR__SHARED void hr__json_field_bool(hr__json *json, const char *key, bool value);

/* Flushes. Returns HR_OK, HR_IO (the sink failed), HR_TOO_SMALL (memory too small) or HR_TOO_MANY (nested too deep). Every object
 * and array that was begun must have been ended. */
HR__SHARED hr_status hr__json_finish(hr__json *json);

#endif
