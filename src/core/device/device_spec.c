/* device_spec.c - parses device names. The grammar is in device_spec.h. */
#include "core/device/device_spec.h"

#include <string.h>

#include "core/base/status.h"

#define QUOTE_BYTES 64

static bool is_letter(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

static char upper(char c)
{
	return c >= 'a' && c <= 'z' ? (char)(c - 'a' + 'A') : c;
}

char *hr__device_quote(const char *text, char out[HR__QUOTE_CAPACITY])
{
	static const char digits[] = "0123456789abcdef";
	char *to = out;
	*to++ = '"';
	size_t used = 0;
	for (; text[used] && used < QUOTE_BYTES; used++) {
		unsigned char c = (unsigned char)text[used];
		if (c >= 0x20 && c < 0x7f && c != '"' && c != '\\') {
			*to++ = (char)c;
			continue;
		}
		*to++ = '\\';
		*to++ = 'x';
		*to++ = digits[c >> 4];
		*to++ = digits[c & 15];
	}
	*to++ = '"';
	if (text[used]) to = (char *)memcpy(to, "...", 3) + 3;
	*to = 0;
	return out;
}

static hr_status bad_name(const char *text, const char *why)
{
	char quoted[HR__QUOTE_CAPACITY];
	return hr__fail(HR_BAD_DEVICE_NAME,
	                "%s is not a device name: %s. Names look like \"GPU:0\", \"CPU:0\", \"/device:GPU:0\" or "
	                "\"/job:localhost/replica:0/task:0/device:GPU:0\"",
	                hr__device_quote(text, quoted), why);
}

/* Advances *at past [prefix] if it is there, ignoring case. */
static bool skip(const char **at, const char *prefix)
{
	const char *p = *at;
	for (; *prefix; prefix++, p++) {
		if (upper(*p) != upper(*prefix)) return false;
	}
	*at = p;
	return true;
}

/* Length of the word (letter, then letters, digits, "_") at [at]; 0 when there is none. */
static size_t word_length(const char *at)
{
	if (!is_letter(*at)) return 0;
	size_t length = 1;
	while (is_letter(at[length]) || is_digit(at[length]) || at[length] == '_') length++;
	return length;
}

/* Parses a number or "*" and advances *at past it. Returns an error text, or NULL. */
static const char *read_number(const char **at, uint32_t *number, bool *any)
{
	*number = 0;
	*any = skip(at, "*");
	if (*any) return NULL;
	if (!is_digit(**at)) return "a number is missing after \":\"";
	for (; is_digit(**at); (*at)++) {
		uint32_t digit = (uint32_t)(**at - '0');
		if (*number > (INT32_MAX - digit) / 10) return "its number is too large";
		*number = *number * 10 + digit;
	}
	return NULL;
}

/* Parses the parts before the device: [ "/job:" job ] [ "/replica:" number ] [ "/task:" number ]. */
static const char *read_place(const char **at, bool *elsewhere)
{
	*elsewhere = false;
	if (skip(at, "/job:") && !skip(at, "*")) {
		size_t length = word_length(*at);
		if (!length) return "the job has no name";
		const char *end = *at;
		*elsewhere = !(skip(&end, "localhost") && end == *at + length);
		*at += length;
	}
	static const char *const numbered[] = { "/replica:", "/task:" };
	for (size_t i = 0; i < 2; i++) {
		if (!skip(at, numbered[i])) continue;
		uint32_t number;
		bool any;
		const char *why = read_number(at, &number, &any);
		if (why) return why;
		*elsewhere |= number != 0;
	}
	return NULL;
}

static const char *read_device(const char *at, hr__device_spec *spec)
{
	size_t length = word_length(at);
	if (!length) return "the type of the device is missing";
	if (length >= sizeof spec->type) return "the type of the device is too long";
	for (size_t i = 0; i < length; i++) spec->type[i] = upper(at[i]);
	spec->type[length] = 0;
	at += length;
	spec->any_number = !*at;
	if (spec->any_number) return NULL;
	if (!skip(&at, ":")) return "a \":\" must follow the type of the device";
	const char *why = read_number(&at, &spec->number, &spec->any_number);
	if (why) return why;
	return *at ? "unexpected text after the number" : NULL;
}

hr_status hr__device_spec_parse(const char *text, hr__device_spec *out)
{
	hr__device_spec spec = { .number = 0 };
	const char *at = text;
	if (!*at) return bad_name(text, "it is empty");
	const char *why = read_place(&at, &spec.elsewhere);
	if (!why && at != text && *at != '/') why = *at ? "parts are separated by \"/\"" : "the device part is missing";
	if (!why) {
		if (!skip(&at, "/device:")) skip(&at, "/");
		why = read_device(at, &spec);
	}
	if (why) return bad_name(text, why);
	*out = spec;
	return HR_OK;
}
