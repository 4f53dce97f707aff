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

/* "1,234,567". 32 bytes are always enough. */
char *hr__format_count(uint64_t value, char *out, size_t capacity);

/* Bytes (1 to 4) of the UTF-8 character that [text] begins with; 0 when it begins with none: overlong forms, surrogates and
 * characters that [length] cuts off are none. */
size_t hr__utf8_character(const char *text, size_t length);

/* [length] without a character that it cuts off in the middle. Bytes that are not UTF-8 are left alone. */
size_t hr__utf8_trim(const char *text, size_t length);

#endif
