/* text.h - sizes as people write and read them, and what must be known of UTF-8 to cut and check text. */
#ifndef HR_BASE_TEXT_H
#define HR_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "headroom.h"

/* "1073741824", "1GiB", "1.5G", "512MB", "64 KiB", "2T": a number, optional decimals, an optional unit. B; K, M, G, T, P with "iB"
 * or alone mean powers of 1024; kB, KB, MB, GB, TB, PB mean powers of 1000. Upper and lower case are the same except that "b" alone
 * also means bytes. Fails with HR_INVALID_ARGUMENT and a message that quotes the text: empty, negative, no number, unknown unit,
 * trailing characters, does not fit in 64 bits. A fraction of a byte is rounded down. */
hr_status hr__parse_size(const char *text, uint64_t *out);

/* "0 B", "512 B", "1.0 KiB", "26.2 GiB": powers of 1024, one decimal from 1 KiB on, rounded to nearest. Writes at most [capacity]
 * bytes, returns [out]. 16 bytes are always enough. */
char *hr__format_size(uint64_t bytes, char *out, size_t capacity);

/* Sizes that one message compares, as hr__format_size writes them. Different sizes that would read the same are written in exact bytes
 * instead: "2,097,153 B", "2,097,152 B". At most HR__SIZES_MAX.
 *
 *     hr__sizes size = HR__SIZES(asked, limit);
 *     hr__fail(HR_BAD_LIMIT, "%s is above the limit of %s", size.text[0], size.text[1]); */
#define HR__SIZES_MAX 6
typedef struct hr__sizes {
	char text[HR__SIZES_MAX][32];
} hr__sizes;

hr__sizes hr__sizes_text(const uint64_t *bytes, size_t count);
#define HR__SIZES(...) hr__sizes_text((const uint64_t[]){ __VA_ARGS__ }, sizeof((const uint64_t[]){ __VA_ARGS__ }) / sizeof(uint64_t))

/* The end of a noun that is counted: "" for one, "s" otherwise. */
static inline const char *hr__plural(uint64_t count)
{
	return count == 1 ? "" : "s";
}

/* "1,234,567". 32 bytes are always enough. */
char *hr__format_count(uint64_t value, char *out, size_t capacity);

/* Bytes (1 to 4) of the UTF-8 character that [text] begins with; 0 when it begins with none: overlong forms, surrogates and
 * characters that [length] cuts off are none. */
size_t hr__utf8_character(const char *text, size_t length);

/* The same for a character that can be shown as it is; 0 as well for control characters, and for those that are invisible, end a line or change
 * the direction of writing: a terminal would obey them, or show something else than there is. */
size_t hr__utf8_printable(const char *text, size_t length);

/* A name of an op, a scope or a file in at most [bytes] bytes, HR__BRIEF_MAX at the most. A longer one loses its middle, because names are told
 * apart by their ends: "decoder/.../kernel". It is cut at slashes where there are any, and never inside a character. */
#define HR__BRIEF_MAX 120
typedef struct hr__brief_text {
	char text[HR__BRIEF_MAX + 1];
} hr__brief_text;

hr__brief_text hr__brief(const char *text, size_t bytes);

/* Where to cut a name of [length] bytes that may keep its first *head bytes and what begins at *tail: moves both to slashes, or to the edges
 * of characters; neither part gets longer. */
void hr__cut(const char *text, size_t length, size_t *head, size_t *tail);

/* [length] without a character that it cuts off in the middle. Bytes that are not UTF-8 are left alone. */
size_t hr__utf8_trim(const char *text, size_t length);

#endif
