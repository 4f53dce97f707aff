/* text.c - parsing and formatting sizes in integer arithmetic, without rounding errors, and UTF-8. */
#include "core/base/text/text.h"

#include <stdio.h>
#include <string.h>

#include "core/base/assert.h"
#include "core/base/checked.h"
#include "core/base/status.h"

/* ---- parsing ---- */

#define QUOTED_MAX 60 /* bytes of an invalid text that the error message quotes */

static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

static char lower(char c)
{
	return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

static hr_status bad_size(const char *text, const char *why)
{
	size_t length = strnlen(text, QUOTED_MAX + 1);
	bool whole = length <= QUOTED_MAX;
	if (!whole) length = hr__utf8_trim(text, QUOTED_MAX);
	return hr__fail(HR_INVALID_ARGUMENT, "size \"%.*s%s\" %s; write it as 1073741824, 1GiB, 1.5G or 512MB", (int)length, text,
	                whole ? "" : "...", why);
}

/* Parses a unit at *text and advances past it; 0 when it is unknown. An empty text is the unit 1. */
static uint64_t parse_unit(const char **text)
{
	static const char letters[] = "kmgtp";
	const char *at = *text;
	char first = lower(*at);
	if (first == 0) return 1;
	if (first == 'b') {
		*text = at + 1;
		return 1;
	}
	const char *letter = memchr(letters, first, sizeof letters - 1);
	if (letter == NULL) return 0;
	at++;
	uint64_t base = 1024;
	if (lower(at[0]) == 'i' && lower(at[1]) == 'b') {
		at += 2;
	} else if (lower(at[0]) == 'b') {
		base = 1000;
		at++;
	}
	uint64_t unit = 1;
	for (const char *i = letters; i <= letter; i++) unit *= base;
	*text = at;
	return unit;
}

/* The whole bytes in the decimal fraction [digits] of [unit]. Exact for any number of digits: dividing by ten and rounding down at
 * each step, from the last digit to the first, equals rounding down once at the end. */
static uint64_t fraction_bytes(const char *digits, size_t count, uint64_t unit)
{
	uint64_t bytes = 0;
	while (count > 0) {
		uint64_t digit = (uint64_t)(digits[--count] - '0');
		bytes = (bytes + digit * unit) / 10;
	}
	return bytes;
}

hr_status hr__parse_size(const char *text, uint64_t *out)
{
	if (text == NULL) return hr__fail(HR_INVALID_ARGUMENT, "no size given (NULL)");
	if (text[0] == 0) return bad_size(text, "is empty");
	if (text[0] == '-') return bad_size(text, "is negative");
	if (!is_digit(text[0])) return bad_size(text, "does not begin with a number");

	const char *at = text;
	uint64_t whole = 0;
	bool fits = true;
	for (; is_digit(*at); at++) fits = fits && hr__multiply(whole, 10, &whole) && hr__add(whole, (uint64_t)(*at - '0'), &whole);

	const char *digits = at;
	size_t digit_count = 0;
	if (*at == '.') {
		digits = ++at;
		while (is_digit(*at)) at++;
		digit_count = (size_t)(at - digits);
		if (digit_count == 0) return bad_size(text, "has no digits after the point");
	}

	while (*at == ' ') at++;
	if (*at == 0 && at[-1] == ' ') return bad_size(text, "ends in a space");
	uint64_t unit = parse_unit(&at);
	if (unit == 0) return bad_size(text, "has an unknown unit");
	if (*at != 0) return bad_size(text, "has something after the unit");

	uint64_t bytes = 0;
	fits = fits && hr__multiply(whole, unit, &bytes) && hr__add(bytes, fraction_bytes(digits, digit_count, unit), &bytes);
	if (!fits) return bad_size(text, "does not fit in 64 bits");
	*out = bytes;
	return HR_OK;
}

/* ---- printing ---- */

char *hr__format_size(uint64_t bytes, char *out, size_t capacity)
{
	static const char *const names[] = { "KiB", "MiB", "GiB", "TiB", "PiB", "EiB" };
	if (bytes < 1024) {
		snprintf(out, capacity, "%llu B", (unsigned long long)bytes);
		return out;
	}
	unsigned power = hr__log2(bytes) / 10;
	/* Tenths of the unit, rounded to nearest. The bits below the unit are fewer than 61, so ten times their value fits. */
	uint64_t unit = 1ull << (10 * power);
	uint64_t tenths = (bytes >> (10 * power)) * 10 + ((bytes & (unit - 1)) * 10 + unit / 2) / unit;
	if (tenths >= 10240) {
		tenths = 10;
		power++;
	}
	snprintf(out, capacity, "%llu.%llu %s", (unsigned long long)(tenths / 10), (unsigned long long)(tenths % 10), names[power - 1]);
	return out;
}

hr__sizes hr__sizes_text(const uint64_t *bytes, size_t count)
{
	hr__sizes out = { { "" } };
	bool exact[HR__SIZES_MAX] = { false };
	HR_ASSERT(count <= HR__SIZES_MAX);
	for (size_t i = 0; i < count; i++) hr__format_size(bytes[i], out.text[i], sizeof out.text[i]);
	for (size_t i = 0; i < count; i++)
		for (size_t k = 0; k < count; k++) exact[i] = exact[i] || (bytes[i] != bytes[k] && strcmp(out.text[i], out.text[k]) == 0);
	for (size_t i = 0; i < count; i++) {
		char digits[28];
		if (exact[i]) snprintf(out.text[i], sizeof out.text[i], "%s B", hr__format_count(bytes[i], digits, sizeof digits));
	}
	return out;
}

char *hr__format_count(uint64_t value, char *out, size_t capacity)
{
	char digits[32];
	char *at = digits + sizeof digits;
	unsigned count = 0;
	*--at = 0;
	do {
		if (count > 0 && count % 3 == 0) *--at = ',';
		*--at = (char)('0' + value % 10);
		value /= 10;
		count++;
	} while (value != 0);
	snprintf(out, capacity, "%s", at);
	return out;
}

/* ---- UTF-8 ---- */

static bool is_continuation(char c)
{
	return ((unsigned char)c & 0xC0) == 0x80;
}

/* Length of a character that starts with this byte; 0 for a byte that cannot start one. */
static size_t announced_length(char first)
{
	unsigned char c = (unsigned char)first;
	if (c < 0x80) return 1;
	if (c < 0xC2) return 0; /* a continuation byte, or an overlong form of an ASCII character */
	if (c < 0xE0) return 2;
	if (c < 0xF0) return 3;
	return c < 0xF5 ? 4 : 0;
}

size_t hr__utf8_character(const char *text, size_t length)
{
	if (length == 0) return 0;
	size_t bytes = announced_length(text[0]);
	if (bytes <= 1) return bytes;
	if (bytes > length) return 0;
	for (size_t i = 1; i < bytes; i++) {
		if (!is_continuation(text[i])) return 0;
	}
	unsigned char first = (unsigned char)text[0], second = (unsigned char)text[1];
	if (first == 0xE0 && second < 0xA0) return 0; /* overlong */
	if (first == 0xED && second > 0x9F) return 0; /* surrogates */
	if (first == 0xF0 && second < 0x90) return 0; /* overlong */
	if (first == 0xF4 && second > 0x8F) return 0; /* above U+10FFFF */
	return bytes;
}

size_t hr__utf8_printable(const char *text, size_t length)
{
	const unsigned char *at = (const unsigned char *)text;
	size_t bytes = hr__utf8_character(text, length);
	if (bytes == 1) return at[0] >= 0x20 && at[0] != 0x7F;
	if (bytes == 2 && at[0] == 0xC2 && at[1] < 0xA0) return 0;  /* U+0080 to U+009F: control characters */
	if (bytes == 2 && at[0] == 0xD8 && at[1] == 0x9C) return 0; /* U+061C */
	if (bytes == 3 && at[0] == 0xE2 && at[1] == 0x80) {
		/* U+200B to U+200F are invisible or change direction; U+2028 to U+202E end lines or change direction */
		if ((at[2] >= 0x8B && at[2] <= 0x8F) || (at[2] >= 0xA8 && at[2] <= 0xAE)) return 0;
	}
	if (bytes == 3 && at[0] == 0xE2 && at[1] == 0x81 && at[2] >= 0xA0 && at[2] <= 0xAF) return 0; /* U+2060 to U+206F: likewise */
	if (bytes == 3 && at[0] == 0xEF && at[1] == 0xBB && at[2] == 0xBF) return 0;                  /* U+FEFF */
	if (bytes == 4 && at[0] == 0xF3 && at[1] == 0xA0 && at[2] < 0x82) return 0; /* U+E0000 to U+E007F: invisible tags */
	return bytes;
}

size_t hr__utf8_trim(const char *text, size_t length)
{
	size_t back = 1;
	while (back <= 3 && back < length && is_continuation(text[length - back])) back++;
	if (back > length) return length;
	return announced_length(text[length - back]) > back ? length - back : length;
}

/* Copies characters that [length_of] accepts; writes [replace] with the byte for the others. */
static size_t copy_safe(const char *text, size_t length, char *out, size_t capacity, size_t (*length_of)(const char *, size_t), const char *replace)
{
	size_t used = 0;
	while (length > 0) {
		char instead[8];
		size_t plain = 0, room = used < capacity ? capacity - used - 1 : 0;
		while (plain < length && plain < room && text[plain] >= ' ' && text[plain] <= '~') plain++;
		if (plain) { /* all of most messages */
			memcpy(out + used, text, plain);
			used += plain;
			text += plain;
			length -= plain;
			continue;
		}
		size_t taken = length_of(text, length), count = taken;
		if (!taken) count = (size_t)snprintf(instead, sizeof instead, replace, (unsigned char)*text);
		if (used + count >= capacity) break;
		memcpy(out + used, taken ? text : instead, count);
		used += count;
		text += taken ? taken : 1;
		length -= taken ? taken : 1;
	}
	if (capacity) out[used] = 0;
	return used;
}

size_t hr__text_escape(const char *text, size_t length, char *out, size_t capacity)
{
	return copy_safe(text, length, out, capacity, hr__utf8_printable, "\\x%02X");
}

size_t hr__text_repair(const char *text, size_t length, char *out, size_t capacity)
{
	return copy_safe(text, length, out, capacity, hr__utf8_character, "\xEF\xBF\xBD");
}

/* ---- names that are too long ---- */

void hr__cut(const char *text, size_t length, size_t *head, size_t *tail)
{
	size_t slash = *head;
	while (slash > 0 && text[slash - 1] != '/') slash--;
	*head = slash > 0 ? slash : hr__utf8_trim(text, *head);
	slash = *tail;
	while (slash < length && text[slash] != '/') slash++;
	if (slash + 1 < length) *tail = slash;
	else
		while (*tail < length && is_continuation(text[*tail])) ++*tail;
}

hr__brief_text hr__brief(const char *text, size_t bytes)
{
	hr__brief_text out;
	size_t length = strlen(text);
	if (bytes > HR__BRIEF_MAX) bytes = HR__BRIEF_MAX;
	if (length <= bytes) {
		memcpy(out.text, text, length + 1);
		return out;
	}
	HR_ASSERT(bytes > 3);
	size_t head = (bytes - 3) / 3, tail = length - (bytes - 3 - head);
	hr__cut(text, length, &head, &tail);
	snprintf(out.text, sizeof out.text, "%.*s...%s", (int)head, text, text + tail);
	return out;
}

void hr__text_plain(char *text, size_t size)
{
	text[size - 1] = 0;
	for (size_t i = 0; text[i]; i++)
		if (text[i] < ' ' || text[i] > '~') text[i] = '?';
}
