/* text.h - parsing and formatting sizes, and the UTF-8 functions needed to cut and check text. */
#ifndef HR_BASE_TEXT_H
#define HR_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "headroom.h"
#include "core/base/shared.h"

/* Parses "1073741824", "1GiB", "1.5G", "512MB", "64 KiB", "2T": a number, optional decimals, an optional unit. K, M, G, T and P,
 * alone or with "iB", are powers of 1024; kB, KB, MB, GB, TB and PB are powers of 1000; B is bytes. Case does not matter. A
 * fraction of a byte is rounded down. Fails with HR_INVALID_ARGUMENT and a message that quotes the text: empty, negative, no
 * number, unknown unit, trailing characters, does not fit in 64 bits. */
hr_status hr__parse_size(const char *text, uint64_t *out);

/* "0 B", "512 B", "1.0 KiB", "26.2 GiB": powers of 1024, one decimal from 1 KiB on, rounded to nearest. Writes at most [capacity]
 * bytes, of which 16 are always enough. Returns [out]. */
HR__SHARED char *hr__format_size(uint64_t bytes, char *out, size_t capacity);

/* Formats the sizes that one message compares, as hr__format_size does. Different sizes that would look equal are written in exact
 * bytes instead: "2,097,153 B", "2,097,152 B". At most HR__SIZES_MAX.
 *
 *     hr__sizes size = HR__SIZES(asked, limit);
 *     hr__fail(HR_BAD_LIMIT, "%s is above the limit of %s", size.text[0], size.text[1]); */
#define HR__SIZES_MAX 6
typedef struct hr__sizes {
	char text[HR__SIZES_MAX][32];
} hr__sizes;

hr__sizes hr__sizes_text(const uint64_t *bytes, size_t count);
#define HR__SIZES(...) hr__sizes_text((const uint64_t[]){ __VA_ARGS__ }, sizeof((const uint64_t[]){ __VA_ARGS__ }) / sizeof(uint64_t))

/* Plural ending of a counted noun: "" for one, "s" otherwise. */
static inline const char *hr__plural(uint64_t count)
{
	return count == 1 ? "" : "s";
}

/* "1,234,567". 32 bytes are always enough. */
HR__SHARED char *hr__format_count(uint64_t value, char *out, size_t capacity);

/* Length (1 to 4 bytes) of the UTF-8 character that [text] begins with. 0 when it begins with none: overlong forms, surrogates and
 * characters cut off by [length] do not count. */
HR__SHARED size_t hr__utf8_character(const char *text, size_t length);

/* The same, but also 0 for characters that cannot be displayed as they are: control characters, and characters that are invisible,
 * end a line or change the writing direction. A terminal would interpret these, or display something else. */
HR__SHARED size_t hr__utf8_printable(const char *text, size_t length);

/* Makes untrusted text of a fixed size a string of printable ASCII: terminates it in its last byte, and replaces other characters by '?'. */
HR__SHARED void hr__text_plain(char *text, size_t size);

/* Copies [length] bytes of untrusted text for a terminal: characters that are not printable become \xNN, byte by byte. Stops before the
 * first character that does not fit in [capacity] with the final 0. Returns the length of [out]. */
HR__SHARED size_t hr__text_escape(const char *text, size_t length, char *out, size_t capacity);
/* The same for formats that must be UTF-8: invalid bytes become U+FFFD, and all characters are copied as they are. */
HR__SHARED size_t hr__text_repair(const char *text, size_t length, char *out, size_t capacity);

/* Shortens the name of an op, a scope or a file to at most [bytes] bytes, HR__BRIEF_MAX at most. A longer name loses its middle,
 * because names differ at their ends: "decoder/.../kernel". The cuts are at slashes where there are any, and never inside a
 * character. */
#define HR__BRIEF_MAX 120
typedef struct hr__brief_text {
	char text[HR__BRIEF_MAX + 1];
} hr__brief_text;

hr__brief_text hr__brief(const char *text, size_t bytes);

/* Adjusts the cuts of a name of [length] bytes that may keep its first *head bytes and the bytes from *tail on: moves both to
 * slashes, or to character boundaries. Neither part gets longer. */
void hr__cut(const char *text, size_t length, size_t *head, size_t *tail);

/* [length] without an incomplete character at the end. Bytes that are not UTF-8 are kept. */
HR__SHARED size_t hr__utf8_trim(const char *text, size_t length);

#endif
