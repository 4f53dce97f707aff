/* json.h - a JSON writer that never allocates.
 *
 * It writes through a small buffer that the caller owns into a sink function, or into a caller's memory. Commas and nesting are its
 * business (depth at most 32), so output is always well-formed when every begin has its end. Text is escaped, also C1 controls and marks of direction; bytes that are not
 * UTF-8 come out as U+FFFD. Numbers that JSON cannot hold (NaN, infinities) come out as null. After the first failing sink call it
 * goes on silently and hr__json_finish reports the failure: callers check once. */
#ifndef HR_BASE_JSON_H
#define HR_BASE_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "headroom.h"

#define HR__JSON_DEPTH 32

/* Takes [length] bytes; returns false when it could not. */
typedef bool (*hr__json_sink)(void *context, const char *bytes, size_t length);

typedef struct hr__json {
	hr__json_sink sink;
	void *context;
	size_t used;  /* bytes in buffer */
	size_t total; /* bytes written in all, also those that did not fit */
	char *memory; /* when writing to memory: where, and how much fits with the final 0 */
	size_t capacity;
	unsigned depth;
	bool failed;   /* the sink refused bytes */
	bool too_deep; /* more than HR__JSON_DEPTH levels were begun */
	bool pretty;   /* newline and two spaces per level */
	bool after_key;
	bool any[HR__JSON_DEPTH]; /* whether this level has an element already */
	char buffer[512];
} hr__json;

void hr__json_init(hr__json *json, hr__json_sink sink, void *context);

/* Writes to [memory], always ending in 0 when capacity is not 0; hr__json_finish then fails with HR_TOO_SMALL if it did not all
 * fit, and json->total says how much is needed without the 0. [memory] may be NULL with capacity 0 to measure. */
void hr__json_init_memory(hr__json *json, char *memory, size_t capacity);

void hr__json_object(hr__json *json);     /* { */
void hr__json_end_object(hr__json *json); /* } */
void hr__json_array(hr__json *json);      /* [ */
void hr__json_end_array(hr__json *json);  /* ] */
void hr__json_key(hr__json *json, const char *key);
void hr__json_string(hr__json *json, const char *text); /* NULL gives null */
void hr__json_bytes(hr__json *json, const char *text, size_t length);
void hr__json_int(hr__json *json, int64_t value);
void hr__json_uint(hr__json *json, uint64_t value);
void hr__json_double(hr__json *json, double value, int decimals);
void hr__json_bool(hr__json *json, bool value);
void hr__json_null(hr__json *json);

/* Shorthand for a key with its value. */
void hr__json_field_int(hr__json *json, const char *key, int64_t value);
void hr__json_field_uint(hr__json *json, const char *key, uint64_t value);
void hr__json_field_double(hr__json *json, const char *key, double value, int decimals);
void hr__json_field_string(hr__json *json, const char *key, const char *value);
void hr__json_field_bool(hr__json *json, const char *key, bool value);

/* Flushes. HR_OK, HR_IO (the sink failed), HR_TOO_SMALL (memory too small) or HR_TOO_MANY (nested too deep). Every begun object and
 * array must be ended. */
hr_status hr__json_finish(hr__json *json);

#endif
