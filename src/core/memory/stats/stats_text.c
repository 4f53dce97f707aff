/* stats_text.c - statistics as a text table and as JSON. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/base/text/json.h"
#include "core/base/struct.h"
#include "core/base/text/text.h"
#include "core/memory/allocator.h"

struct text {
	char *out;
	size_t capacity, length;
};

static void put(struct text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void put(struct text *text, const char *format, ...)
{
	char line[160];
	va_list arguments;
	va_start(arguments, format);
	int n = vsnprintf(line, sizeof line, format, arguments);
	va_end(arguments);
	for (int i = 0; i < n && i < (int)sizeof line - 1; i++, text->length++)
		if (text->length + 1 < text->capacity) text->out[text->length] = line[i];
	if (text->capacity) text->out[text->length < text->capacity ? text->length : text->capacity - 1] = 0;
}

/* Fields in bytes are recognised by their names. */
static bool is_bytes(const char *name)
{
	return strstr(name, "bytes") || strstr(name, "_size") || !strcmp(name, "largest_free_block");
}

size_t hr_stats_format(const hr_stats *given, char *out, size_t capacity)
{
	hr_stats whole, *stats = &whole;
	struct text text = { out, out ? capacity : 0, 0 };
	char human[16], digits[32];
	hr_stats_init(stats);
	if (hr__struct_in(&hr__struct_stats, "hr_stats_format", stats, given)) return 0;
#define LINE(name, meaning)                                                                                                 \
	if (is_bytes(#name))                                                                                                    \
		put(&text, "%-24s %20s  %10s\n", #name, hr__format_count((uint64_t)stats->name, digits, sizeof digits),             \
		    hr__format_size((uint64_t)stats->name, human, sizeof human));                                                   \
	else put(&text, "%-24s %20s\n", #name, hr__format_count((uint64_t)stats->name, digits, sizeof digits));
	HR_STATS_TABLE(LINE)
#undef LINE
	put(&text, "%-24s %19.1f%%\n", "fragmentation", stats->fragmentation * 100);
	return text.length;
}

size_t hr_stats_format_json(const hr_stats *given, char *out, size_t capacity)
{
	hr_stats whole, *stats = &whole;
	hr__json json;
	hr_stats_init(stats);
	if (hr__struct_in(&hr__struct_stats, "hr_stats_format_json", stats, given)) return 0;
	hr__json_init_memory(&json, out, out ? capacity : 0);
	hr__json_object(&json);
#define FIELD(name, meaning) hr__json_field_int(&json, #name, stats->name);
	HR_STATS_TABLE(FIELD)
#undef FIELD
	hr__json_field_double(&json, "fragmentation", stats->fragmentation, 6);
	hr__json_end_object(&json);
	hr__json_finish(&json);
	return json.total;
}
