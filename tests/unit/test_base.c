/* test_base.c - the promises of src/core/base. */
#include <float.h>
#include <limits.h>
#include <locale.h>
#include <math.h>

#include "core/base/assert.h"
#include "core/base/checked.h"
#include "core/base/text/json.h"
#include "core/base/lock.h"
#include "core/base/names.h"
#include "core/base/sort.h"
#include "core/base/status.h"
#include "core/base/text/text.h"
#include "core/os/os.h"
#include "test.h"

/* ---- statuses ---- */

static void test_status_has_name_and_text(void)
{
	CHECK_STR(hr_status_name(HR_OK), "HR_OK");
	CHECK_STR(hr_status_name(HR_OUT_OF_MEMORY), "HR_OUT_OF_MEMORY");
	CHECK_STR(hr_status_name(HR_CORRUPT), "HR_CORRUPT");
	CHECK_STR(hr_status_name((hr_status)9999), "HR_?");
	CHECK_STR(hr_status_text(HR_OK), "success");
	CHECK_STR(hr_status_text(HR_TOO_SMALL), "the caller's buffer is too small");
	CHECK_STR(hr_status_text((hr_status)9999), "not a status");
	CHECK_STR(hr_version(), "0.2.0");
}

static void test_message_is_what_failed_last(void)
{
	CHECK_STR(hr_last_message(), "");
	CHECK_STATUS(HR_IO, hr__fail(HR_IO, "file %s, byte %d", "a.trace", 7));
	CHECK_STR(hr_last_message(), "file a.trace, byte 7");
	CHECK_STATUS(HR_INVALID_HANDLE, hr__fail_in(HR_INVALID_HANDLE, "allocator %d", 3));
	CHECK_STR(hr_last_message(), "allocator 3: file a.trace, byte 7");
	hr__last_clear();
	CHECK_STR(hr_last_message(), "");
	CHECK_STATUS(HR_IO, hr__fail_in(HR_IO, "alone"));
	CHECK_STR(hr_last_message(), "alone");
}

static void test_message_may_quote_itself(void)
{
	hr__fail(HR_IO, "inner");
	hr__fail(HR_IO, "outer (%s)", hr_last_message());
	CHECK_STR(hr_last_message(), "outer (inner)");
	hr__fail_in(HR_IO, "again (%s)", hr_last_message());
	CHECK_STR(hr_last_message(), "again (outer (inner)): outer (inner)");
}

static void test_message_is_printable_whatever_it_quotes(void)
{
	hr__fail(HR_IO, "op \"%s\" failed", "a\x1b[2Jb\n\x7f");
	CHECK_STR(hr_last_message(), "op \"a\\x1B[2Jb\\x0A\\x7F\" failed");
	hr__fail_in(HR_IO, "%s", "\xc2\x9b" "5m \xe2\x80\xae \xff\xc3\xa9 \xe4\xb8\xad"); /* U+009B, U+202E, bad UTF-8, two letters */
	CHECK_STR(hr_last_message(), "\\xC2\\x9B5m \\xE2\\x80\\xAE \\xFF\xc3\xa9 \xe4\xb8\xad: op \"a\\x1B[2Jb\\x0A\\x7F\" failed");
	/* Longer than a message because of the escapes: cut between escapes. */
	char controls[201];
	memset(controls, 7, 200);
	controls[200] = 0;
	hr__fail(HR_IO, "%s", controls);
	CHECK_EQ(strlen(hr_last_message()), 508); /* 127 escapes; a message has at most 511 bytes */
	hr__fail(HR_IO, "%s", hr_last_message());
	CHECK_EQ(strlen(hr_last_message()), 508);
}

static void test_message_is_cut_between_characters(void)
{
	char text[700];
	/* 511 bytes are kept. The e with acute accent begins at byte 510 and would be cut, so it is left out. */
	memset(text, 'x', sizeof text);
	memcpy(text + 510, "\xC3\xA9", 2);
	text[sizeof text - 1] = 0;
	hr__fail(HR_IO, "%s", text);
	CHECK_EQ(strlen(hr_last_message()), 510);
	/* A character that ends at byte 511 is kept. */
	memcpy(text + 509, "\xC3\xA9y", 3);
	hr__fail(HR_IO, "%s", text);
	CHECK_EQ(strlen(hr_last_message()), 511);
	/* The same if the previous message is appended. */
	hr__fail(HR_IO, "\xE2\x82\xAC\xE2\x82\xAC\xE2\x82\xAC");
	text[500] = 0;
	hr__fail_in(HR_IO, "%s", text);
	CHECK_EQ(strlen(hr_last_message()), 500 + 2 + 9);
	text[500] = 'x';
	text[501] = 0;
	hr__fail(HR_IO, "\xE2\x82\xAC\xE2\x82\xAC\xE2\x82\xAC");
	hr__fail_in(HR_IO, "%s", text);
	CHECK_EQ(strlen(hr_last_message()), 501 + 2 + 6);
	/* The message is full: not even the colon fits. */
	memset(text, 'x', sizeof text - 1);
	hr__fail_in(HR_IO, "%s", text);
	CHECK_EQ(strlen(hr_last_message()), 511);
}

static void fail_with_own_message(void *argument, unsigned index)
{
	char expected[32];
	(void)argument;
	snprintf(expected, sizeof expected, "thread %u", index);
	for (int i = 0; i < 1000; i++) {
		hr__fail(HR_IO, "thread %u", index);
		CHECK_STR(hr_last_message(), expected);
	}
}

static void test_message_belongs_to_its_thread(void)
{
	hr__fail(HR_IO, "main");
	hr_test_threads(4, fail_with_own_message, NULL);
	CHECK_STR(hr_last_message(), "main");
}

/* ---- checked arithmetic ---- */

static void *no_memory(size_t bytes)
{
	(void)bytes;
	return NULL;
}

static void *(*memory_before)(size_t bytes);

static void fail_without_memory(void *argument, unsigned index)
{
	(void)argument;
	(void)index;
	hr__last_clear();
	CHECK_STR(hr_last_message(), "");
	CHECK_EQ(hr__fail(HR_NO_HOST_MEMORY, "what failed"), HR_NO_HOST_MEMORY);
	CHECK_STR(hr_last_message(), hr_status_text(HR_NO_HOST_MEMORY));
	CHECK_EQ(hr__fail_in(HR_IO, "file a"), HR_IO);
	CHECK_STR(hr_last_message(), hr_status_text(HR_IO));
	hr__last before = hr__last_get();
	CHECK_STR(before.message, hr_status_text(HR_IO));
	hr__last_clear();
	CHECK_STR(hr_last_message(), "");
	hr__last_set(&before);
	CHECK_EQ(hr_last_status(), HR_IO);
	CHECK_STR(hr_last_message(), hr_status_text(HR_IO));
	hr__message_memory = memory_before; /* there is memory again */
	hr__fail(HR_IO, "file b");
	CHECK_STR(hr_last_message(), "file b");
}

static void test_without_memory_the_status_is_the_message(void)
{
	CHECK(hr__os() != NULL); /* core/os is linked in and gives the memory */
	hr__fail(HR_IO, "main");
	memory_before = hr__message_memory;
	hr__message_memory = no_memory;
	hr_test_threads(1, fail_without_memory, NULL);
	CHECK_STR(hr_last_message(), "main");
}

static void test_checked_arithmetic_at_the_edges(void)
{
	uint64_t out = 77;
	CHECK(hr__add(UINT64_MAX, 0, &out));
	CHECK_EQ(out, UINT64_MAX);
	CHECK(hr__add(UINT64_MAX - 1, 1, &out));
	out = 77;
	CHECK(!hr__add(UINT64_MAX, 1, &out));
	CHECK(!hr__add(1ull << 63, 1ull << 63, &out));
	CHECK_EQ(out, 77);

	CHECK(hr__multiply(1ull << 32, (1ull << 32) - 1, &out));
	CHECK_EQ(out, ((1ull << 32) - 1) << 32);
	CHECK(hr__multiply(UINT64_MAX, 1, &out));
	CHECK(hr__multiply(UINT64_MAX, 0, &out));
	CHECK_EQ(out, 0);
	out = 77;
	CHECK(!hr__multiply(1ull << 32, 1ull << 32, &out));
	CHECK(!hr__multiply(UINT64_MAX, 2, &out));
	CHECK_EQ(out, 77);

	CHECK(hr__align_up(0, 4096, &out));
	CHECK_EQ(out, 0);
	CHECK(hr__align_up(1, 4096, &out));
	CHECK_EQ(out, 4096);
	CHECK(hr__align_up(4096, 4096, &out));
	CHECK_EQ(out, 4096);
	CHECK(hr__align_up(UINT64_MAX, 1, &out));
	CHECK_EQ(out, UINT64_MAX);
	CHECK(hr__align_up(UINT64_MAX - 4095, 4096, &out));
	CHECK_EQ(out, UINT64_MAX - 4095);
	out = 77;
	CHECK(!hr__align_up(UINT64_MAX - 4094, 4096, &out));
	CHECK(!hr__align_up(UINT64_MAX, 1ull << 63, &out));
	CHECK_EQ(out, 77);
	CHECK_EQ(hr__align_down(UINT64_MAX, 1ull << 63), 1ull << 63);
	CHECK_EQ(hr__align_down(4095, 4096), 0);
}

static void test_powers_of_two(void)
{
	CHECK(!hr__is_power_of_two(0));
	CHECK(!hr__is_power_of_two(UINT64_MAX));
	for (unsigned bit = 0; bit < 64; bit++) {
		uint64_t x = 1ull << bit;
		CHECK(hr__is_power_of_two(x));
		CHECK_EQ(hr__log2(x), bit);
		CHECK_EQ(hr__log2(x | (x - 1)), bit);
		if (bit > 1) CHECK(!hr__is_power_of_two(x | 1));
	}
}

static void fail_assertion(void *argument)
{
	int zero = *(int *)argument;
	HR_ASSERT(zero == 1);
	(void)zero;
}

static void test_assertions_are_checked_in_debug_builds_only(void)
{
	int zero = 0;
#ifdef HR_DEBUG
	CHECK(hr_test_crashes(fail_assertion, &zero));
#else
	CHECK(!hr_test_crashes(fail_assertion, &zero));
#endif
}

/* ---- sizes ---- */

static void test_size_is_parsed_exactly(void)
{
	static const struct {
		const char *text;
		uint64_t bytes;
	} good[] = {
		{ "0", 0 },
		{ "1073741824", 1073741824 },
		{ "18446744073709551615", UINT64_MAX },
		{ "000000000000000000000000012", 12 },
		{ "1B", 1 },
		{ "7b", 7 },
		{ "1K", 1024 },
		{ "1k", 1024 },
		{ "1KiB", 1024 },
		{ "1kib", 1024 },
		{ "1KIB", 1024 },
		{ "64 KiB", 65536 },
		{ "64   KiB", 65536 },
		{ "1kB", 1000 },
		{ "1KB", 1000 },
		{ "1kb", 1000 },
		{ "512MB", 512000000 },
		{ "512M", 512u << 20 },
		{ "1GiB", 1u << 30 },
		{ "1.5G", 3ull << 29 },
		{ "1.5 gb", 1500000000 },
		{ "2T", 2ull << 40 },
		{ "2TB", 2000000000000 },
		{ "3PiB", 3ull << 50 },
		{ "3PB", 3000000000000000 },
		{ "16383P", 16383ull << 50 },
		{ "0.5", 0 },
		{ "1.999", 1 },
		{ "1.9999K", 2047 },
		{ "0.001KB", 1 },
		{ "0.0009KB", 0 },
		/* 2^-50 has fifty decimals; the last byte of a PiB is correct only if no decimal is dropped. */
		{ "0.00000000000000088817841970012523233890533447265625P", 1 },
		{ "0.00000000000000088817841970012523233890533447265624P", 0 },
		{ "16383.99999999999999911182158029987476766109466552734375P", UINT64_MAX },
		{ "18446744073709551615.999", UINT64_MAX },
	};
	for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
		uint64_t bytes = 77;
		CHECK_STATUS(HR_OK, hr__parse_size(good[i].text, &bytes));
		CHECK_EQ(bytes, good[i].bytes);
	}
}

static void test_bad_size_is_quoted_and_explained(void)
{
	static const struct {
		const char *text, *why;
	} bad[] = {
		{ "", "is empty" },
		{ "-1", "is negative" },
		{ "-0.5G", "is negative" },
		{ "G", "does not begin with a number" },
		{ " 1", "does not begin with a number" },
		{ "+1", "does not begin with a number" },
		{ ".5G", "does not begin with a number" },
		{ "abc", "does not begin with a number" },
		{ "1.", "no digits after the point" },
		{ "1.G", "no digits after the point" },
		{ "1 ", "ends in a space" },
		{ "1X", "unknown unit" },
		{ "1 X", "unknown unit" },
		{ "1E", "unknown unit" },
		{ "1,5G", "unknown unit" },
		{ "0x10", "unknown unit" },
		{ "1e9", "unknown unit" },
		{ "1\t", "unknown unit" },
		{ "1i", "unknown unit" },
		{ "1GiBx", "something after the unit" },
		{ "1Gi", "something after the unit" },
		{ "1GB ", "something after the unit" },
		{ "1G 2", "something after the unit" },
		{ "1BB", "something after the unit" },
		{ "1.5.5", "unknown unit" },
		{ "18446744073709551616", "does not fit" },
		{ "184467440737095516150", "does not fit" },
		{ "99999999999999999999999999999999", "does not fit" },
		{ "16384P", "does not fit" },
		{ "18446744073709551615K", "does not fit" },
		{ "18447PB", "does not fit" },
	};
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
		uint64_t bytes = 77;
		char quoted[64];
		CHECK_STATUS(HR_INVALID_ARGUMENT, hr__parse_size(bad[i].text, &bytes));
		CHECK_EQ(bytes, 77);
		CHECK_CONTAINS(hr_last_message(), bad[i].why);
		snprintf(quoted, sizeof quoted, "\"%s\"", strchr(bad[i].text, '\t') ? "1\\x09" : bad[i].text); /* the only one with a control character */
		CHECK_CONTAINS(hr_last_message(), quoted);
	}
	uint64_t bytes = 77;
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr__parse_size(NULL, &bytes));
	CHECK_EQ(bytes, 77);
}

static void test_long_bad_size_is_cut_in_its_message(void)
{
	char text[1000];
	uint64_t bytes;
	memset(text, 'z', sizeof text);
	memcpy(text + 59, "\xC3\xA9", 2); /* the cut at byte 60 would split this character */
	text[sizeof text - 1] = 0;
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr__parse_size(text, &bytes));
	CHECK_LT(strlen(hr_last_message()), 200);
	CHECK_CONTAINS(hr_last_message(), "zzz...\"");
	CHECK(strchr(hr_last_message(), '\xC3') == NULL);
}

static void test_size_is_formatted_for_people(void)
{
	static const struct {
		uint64_t bytes;
		const char *text;
	} cases[] = {
		{ 0, "0 B" },
		{ 512, "512 B" },
		{ 1023, "1023 B" },
		{ 1024, "1.0 KiB" },
		{ 1536, "1.5 KiB" },
		{ 1075, "1.0 KiB" },
		{ 1076, "1.1 KiB" },
		{ 1048575, "1.0 MiB" }, /* 1023.999 KiB rounds up into the next unit */
		{ 1048524, "1023.9 KiB" },
		{ 1048525, "1.0 MiB" },
		{ 2u << 20, "2.0 MiB" },
		{ 28132049715, "26.2 GiB" },
		{ 1ull << 40, "1.0 TiB" },
		{ 1ull << 50, "1.0 PiB" },
		{ 1ull << 60, "1.0 EiB" },
		{ UINT64_MAX, "16.0 EiB" },
	};
	char text[16];
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		CHECK_EQ(hr__format_size(cases[i].bytes, text, sizeof text), text);
		CHECK_STR(text, cases[i].text);
	}
	CHECK_STR(hr__format_size(1536, text, 4), "1.5");
	CHECK_STR(hr__format_size(1536, text, 1), "");
	text[0] = 'x';
	hr__format_size(1536, text, 0);
	CHECK_EQ(text[0], 'x');
}

static void test_count_is_formatted_with_commas(void)
{
	char text[32];
	CHECK_STR(hr__format_count(0, text, sizeof text), "0");
	CHECK_STR(hr__format_count(999, text, sizeof text), "999");
	CHECK_STR(hr__format_count(1000, text, sizeof text), "1,000");
	CHECK_STR(hr__format_count(1234567, text, sizeof text), "1,234,567");
	CHECK_STR(hr__format_count(UINT64_MAX, text, sizeof text), "18,446,744,073,709,551,615");
	CHECK_STR(hr__format_count(1234567, text, 4), "1,2");
	text[0] = 'x';
	hr__format_count(5, text, 0);
	CHECK_EQ(text[0], 'x');
}

/* ---- UTF-8 ---- */

static size_t encode(uint32_t c, char *out)
{
	if (c < 0x80) return out[0] = (char)c, 1;
	if (c < 0x800) return out[0] = (char)(0xC0 | c >> 6), out[1] = (char)(0x80 | (c & 63)), 2;
	if (c < 0x10000) {
		out[0] = (char)(0xE0 | c >> 12);
		out[1] = (char)(0x80 | (c >> 6 & 63));
		out[2] = (char)(0x80 | (c & 63));
		return 3;
	}
	out[0] = (char)(0xF0 | c >> 18);
	out[1] = (char)(0x80 | (c >> 12 & 63));
	out[2] = (char)(0x80 | (c >> 6 & 63));
	out[3] = (char)(0x80 | (c & 63));
	return 4;
}

static void test_utf8_accepts_every_character(void)
{
	for (uint32_t c = 0; c <= 0x110FFF; c++) {
		char text[4];
		size_t length = encode(c, text);
		bool valid = c <= 0x10FFFF && !(c >= 0xD800 && c <= 0xDFFF);
		if (hr__utf8_character(text, length) != (valid ? length : 0)) CHECK_EQ(c, 0xFFFFFFFF);
		for (size_t cut = 1; cut < length; cut++) {
			if (hr__utf8_character(text, cut) != 0) CHECK_EQ(c, 0xFFFFFFFF);
			if (c <= 0x10FFFF && hr__utf8_trim(text, cut) != 0) CHECK_EQ(c, 0xFFFFFFFF);
		}
		if (hr__utf8_trim(text, length) != length) CHECK_EQ(c, 0xFFFFFFFF);
	}
	CHECK_EQ(hr__utf8_character("", 0), 0);
	CHECK_EQ(hr__utf8_character("\x80", 1), 0);
	CHECK_EQ(hr__utf8_character("\xC0\x80", 2), 0);         /* overlong */
	CHECK_EQ(hr__utf8_character("\xE0\x9F\xBF", 3), 0);     /* overlong */
	CHECK_EQ(hr__utf8_character("\xF0\x8F\xBF\xBF", 4), 0); /* overlong */
	CHECK_EQ(hr__utf8_character("\xF5\x80\x80\x80", 4), 0);
	CHECK_EQ(hr__utf8_character("\xFF", 1), 0);
	CHECK_EQ(hr__utf8_character("\xC3x", 2), 0);
}

static void test_utf8_trim_keeps_invalid_bytes(void)
{
	CHECK_EQ(hr__utf8_trim("", 0), 0);
	CHECK_EQ(hr__utf8_trim("ab", 2), 2);
	CHECK_EQ(hr__utf8_trim("a\xC3", 2), 1);
	CHECK_EQ(hr__utf8_trim("a\xE2\x82", 3), 1);
	CHECK_EQ(hr__utf8_trim("a\xF0\x9F\x98", 4), 1);
	CHECK_EQ(hr__utf8_trim("\xF0\x9F\x98\x80", 4), 4);
	CHECK_EQ(hr__utf8_trim("\x80\x80\x80\x80\x80", 5), 5);
	CHECK_EQ(hr__utf8_trim("a\xFF", 2), 2);
	CHECK_EQ(hr__utf8_trim("a\x80", 2), 2);
}

/* ---- JSON ---- */

static void write_everything(hr__json *json)
{
	hr__json_object(json);
	hr__json_field_int(json, "int", INT64_MIN);
	hr__json_field_uint(json, "uint", UINT64_MAX);
	hr__json_field_double(json, "double", 1.25, 2);
	hr__json_field_string(json, "string", "a\"b");
	hr__json_field_string(json, "none", NULL);
	hr__json_field_bool(json, "yes", true);
	hr__json_field_bool(json, "no", false);
	hr__json_key(json, "array");
	hr__json_array(json);
	hr__json_int(json, 1);
	hr__json_null(json);
	hr__json_array(json);
	hr__json_end_array(json);
	hr__json_object(json);
	hr__json_end_object(json);
	hr__json_end_array(json);
	hr__json_end_object(json);
}

#define EVERYTHING                                                                                                     \
	"{\"int\":-9223372036854775808,\"uint\":18446744073709551615,\"double\":1.25,\"string\":\"a\\\"b\",\"none\":null," \
	"\"yes\":true,\"no\":false,\"array\":[1,null,[],{}]}"

static void test_json_writes_every_kind_of_value(void)
{
	hr__json json;
	char text[512];
	hr__json_init_memory(&json, text, sizeof text);
	write_everything(&json);
	CHECK_STATUS(HR_OK, hr__json_finish(&json));
	CHECK_STR(text, EVERYTHING);
	CHECK_EQ(json.total, strlen(EVERYTHING));
}

static void test_json_pretty_indents(void)
{
	hr__json json;
	char text[512];
	hr__json_init_memory(&json, text, sizeof text);
	json.pretty = true;
	hr__json_object(&json);
	hr__json_field_int(&json, "a", 1);
	hr__json_key(&json, "b");
	hr__json_array(&json);
	hr__json_int(&json, 2);
	hr__json_int(&json, 3);
	hr__json_end_array(&json);
	hr__json_key(&json, "c");
	hr__json_object(&json);
	hr__json_end_object(&json);
	hr__json_end_object(&json);
	CHECK_STATUS(HR_OK, hr__json_finish(&json));
	CHECK_STR(text, "{\n  \"a\": 1,\n  \"b\": [\n    2,\n    3\n  ],\n  \"c\": {}\n}");
}

static const char *json_of_bytes(const char *bytes, size_t length)
{
	static char text[8192];
	hr__json json;
	hr__json_init_memory(&json, text, sizeof text);
	hr__json_bytes(&json, bytes, length);
	CHECK_STATUS(HR_OK, hr__json_finish(&json));
	return text;
}

static void test_json_escapes_text(void)
{
	CHECK_STR(json_of_bytes("", 0), "\"\"");
	CHECK_STR(json_of_bytes("plain <a> & 'b'", 15), "\"plain <a> & 'b'\"");
	CHECK_STR(json_of_bytes("\"\\/", 3), "\"\\\"\\\\/\"");
	CHECK_STR(json_of_bytes("\b\f\n\r\t", 5), "\"\\b\\f\\n\\r\\t\"");
	CHECK_STR(json_of_bytes("\0\x01\x1F\x7F", 4), "\"\\u0000\\u0001\\u001f\\u007f\"");
	/* Characters that affect a terminal: C1 controls, direction marks and overrides, line separators. Their neighbours are
	 * unchanged. */
	CHECK_STR(json_of_bytes("\xC2\x80\xC2\x9B\xC2\x9F\xC2\xA0", 8), "\"\\u0080\\u009b\\u009f\xC2\xA0\"");
	CHECK_STR(json_of_bytes("\xE2\x80\xAE\xE2\x80\xAA\xE2\x80\xAF", 9), "\"\\u202e\\u202a\xE2\x80\xAF\"");
	CHECK_STR(json_of_bytes("\xE2\x81\xA6\xE2\x81\xA9\xE2\x81\xA5", 9), "\"\\u2066\\u2069\\u2065\"");
	CHECK_STR(json_of_bytes("\xE2\x80\x8E\xE2\x80\x8F\xE2\x80\x8D\xD8\x9C", 11), "\"\\u200e\\u200f\\u200d\\u061c\"");
	CHECK_STR(json_of_bytes("\xE2\x80\xA8\xE2\x80\xA9\xE2\x80\xA7", 9), "\"\\u2028\\u2029\xE2\x80\xA7\"");
	CHECK_STR(json_of_bytes("\xE2\x80\x8B\xEF\xBB\xBF\xEF\xBB\xBE", 9), "\"\\u200b\\ufeff\xEF\xBB\xBE\"");
	/* U+E0000 and U+E007F, tags, are invisible; U+E0080 is not one of them. */
	CHECK_STR(json_of_bytes("\xF3\xA0\x80\x80\xF3\xA0\x81\xBF\xF3\xA0\x82\x80", 12), "\"\\udb40\\udc00\\udb40\\udc7f\xF3\xA0\x82\x80\"");
	CHECK_STR(json_of_bytes("\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80", 11), "\"\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80\"");
}

#define FFFD "\xEF\xBF\xBD"

static void test_json_replaces_what_is_not_utf8(void)
{
	CHECK_STR(json_of_bytes("a\xFFz", 3), "\"a" FFFD "z\"");
	CHECK_STR(json_of_bytes("\x80\x80", 2), "\"" FFFD FFFD "\"");
	CHECK_STR(json_of_bytes("\xC0\x80", 2), "\"" FFFD FFFD "\"");          /* overlong */
	CHECK_STR(json_of_bytes("\xED\xA0\x80", 3), "\"" FFFD FFFD FFFD "\""); /* surrogate */
	CHECK_STR(json_of_bytes("\xF4\x90\x80\x80", 4), "\"" FFFD FFFD FFFD FFFD "\"");
	CHECK_STR(json_of_bytes("a\xE2\x82", 3), "\"a" FFFD FFFD "\""); /* cut off */
	CHECK_STR(json_of_bytes("\xE2\x82\"", 3), "\"" FFFD FFFD "\\\"\"");
	CHECK_STR(json_of_bytes("\xE2\xC3\xA9", 3), "\"" FFFD "\xC3\xA9\"");
}

static void test_json_random_bytes_stay_well_formed(void)
{
	uint64_t random = hr_test_seed();
	for (uint64_t round = 0; round < hr_test_scaled(2000); round++) {
		char bytes[100];
		size_t length = hr_rand_below(&random, sizeof bytes + 1);
		for (size_t i = 0; i < length; i++) bytes[i] = (char)hr_rand(&random);
		const char *text = json_of_bytes(bytes, length);
		size_t size = strlen(text);
		CHECK(size >= 2 && text[0] == '"' && text[size - 1] == '"');
		for (size_t i = 1; i < size - 1;) {
			CHECK_NE(text[i], '"');
			CHECK((unsigned char)text[i] >= 0x20);
			if (text[i] == '\\') {
				CHECK(strchr("\"\\bfnrtu", text[i + 1]) != NULL);
				i += text[i + 1] == 'u' ? 6 : 2;
			} else {
				size_t character = hr__utf8_character(text + i, size - i);
				CHECK_GT(character, 0);
				i += character;
			}
		}
	}
}

static const char *json_of_double(double value, int decimals)
{
	static char text[512];
	hr__json json;
	hr__json_init_memory(&json, text, sizeof text);
	hr__json_double(&json, value, decimals);
	CHECK_STATUS(HR_OK, hr__json_finish(&json));
	return text;
}

static void test_json_numbers_are_json(void)
{
	CHECK_STR(json_of_double(0, 3), "0.000");
	CHECK_STR(json_of_double(1.5, 0), "2");
	CHECK_STR(json_of_double(-2.25, 1), "-2.2");
	CHECK_STR(json_of_double(1.0 / 3, -5), "0");
	CHECK_STR(json_of_double(0.5, 1000), "0.50000000000000000");
	CHECK_STR(json_of_double(NAN, 1), "null");
	CHECK_STR(json_of_double(INFINITY, 1), "null");
	CHECK_STR(json_of_double(-INFINITY, 1), "null");
	CHECK_EQ(strlen(json_of_double(-DBL_MAX, 17)), 1 + 309 + 1 + 17);
	CHECK_EQ(strtod(json_of_double(DBL_MAX, 0), NULL), DBL_MAX);
}

static void test_json_ignores_the_locale(void)
{
	static const char *const with_comma[] = { "de_DE.UTF-8", "fr_FR.UTF-8", "de_DE", "fr_FR", "ps_AF" };
	bool found = false;
	for (size_t i = 0; i < sizeof with_comma / sizeof with_comma[0]; i++) {
		if (setlocale(LC_NUMERIC, with_comma[i]) == NULL) continue;
		found = true;
		CHECK_STR(json_of_double(-1234.5, 2), "-1234.50");
	}
	if (!found) hr_test_skip("no locale with another decimal point is installed");
}

static void test_json_in_too_small_memory_is_terminated_and_an_error(void)
{
	size_t whole = strlen(EVERYTHING);
	for (size_t capacity = 0; capacity <= whole + 1; capacity++) {
		char text[512];
		hr__json json;
		memset(text, '#', sizeof text);
		hr__json_init_memory(&json, capacity > 0 ? text : NULL, capacity);
		write_everything(&json);
		CHECK_STATUS(capacity > whole ? HR_OK : HR_TOO_SMALL, hr__json_finish(&json));
		CHECK_EQ(json.total, whole);
		CHECK_EQ(text[capacity], '#');
		if (capacity > 0) CHECK_EQ(strlen(text), capacity - 1);
		if (capacity > 0) CHECK(strncmp(text, EVERYTHING, capacity - 1) == 0);
	}
	hr__json json;
	hr__json_init_memory(&json, NULL, 0);
	write_everything(&json);
	CHECK_STATUS(HR_TOO_SMALL, hr__json_finish(&json));
	CHECK_CONTAINS(hr_last_message(), "buffer has 0");
}

static void test_json_memory_is_cut_between_characters(void)
{
	char text[5];
	hr__json json;
	hr__json_init_memory(&json, text, sizeof text);
	hr__json_string(&json, "ab\xE2\x82\xAC");
	CHECK_STATUS(HR_TOO_SMALL, hr__json_finish(&json));
	CHECK_STR(text, "\"ab");
}

struct sink {
	char text[20000];
	size_t length;
	size_t accepts; /* bytes until the sink fails */
	unsigned calls_after_failure;
	bool failed;
};

static bool take(void *context, const char *bytes, size_t length)
{
	struct sink *sink = context;
	if (sink->failed) sink->calls_after_failure++;
	if (sink->length + length > sink->accepts) {
		sink->failed = true;
		return false;
	}
	memcpy(sink->text + sink->length, bytes, length);
	sink->length += length;
	return true;
}

static void test_json_sink_gets_every_byte(void)
{
	static struct sink sink = { .accepts = sizeof sink.text };
	hr__json json;
	char big[3000];
	memset(big, 'x', sizeof big);
	hr__json_init(&json, take, &sink);
	hr__json_array(&json);
	for (int i = 0; i < 1000; i++) hr__json_int(&json, i);
	hr__json_bytes(&json, big, sizeof big);
	hr__json_end_array(&json);
	CHECK_STATUS(HR_OK, hr__json_finish(&json));
	CHECK_EQ(sink.length, json.total);

	static char whole[20000];
	hr__json_init_memory(&json, whole, sizeof whole);
	hr__json_array(&json);
	for (int i = 0; i < 1000; i++) hr__json_int(&json, i);
	hr__json_bytes(&json, big, sizeof big);
	hr__json_end_array(&json);
	CHECK_STATUS(HR_OK, hr__json_finish(&json));
	CHECK_EQ(sink.length, json.total);
	CHECK_BYTES(sink.text, whole, json.total);
}

static void test_json_failing_sink_is_reported_once_at_the_end(void)
{
	for (size_t accepts = 0; accepts < 3890; accepts += 300) {
		static struct sink sink;
		hr__json json;
		sink = (struct sink){ .accepts = accepts };
		hr__json_init(&json, take, &sink);
		hr__json_array(&json);
		for (int i = 0; i < 1000; i++) hr__json_int(&json, i);
		hr__json_end_array(&json);
		CHECK_STATUS(HR_IO, hr__json_finish(&json));
		CHECK_EQ(sink.calls_after_failure, 0);
	}
}

static void test_json_depth_is_limited(void)
{
	for (unsigned depth = HR__JSON_DEPTH - 1; depth <= HR__JSON_DEPTH + 9; depth++) {
		char text[256];
		hr__json json;
		hr__json_init_memory(&json, text, sizeof text);
		for (unsigned i = 0; i < depth; i++) hr__json_array(&json);
		hr__json_int(&json, 1);
		hr__json_int(&json, 2);
		for (unsigned i = 0; i < depth; i++) hr__json_end_array(&json);
		CHECK_STATUS(depth <= HR__JSON_DEPTH ? HR_OK : HR_TOO_MANY, hr__json_finish(&json));
		if (depth <= HR__JSON_DEPTH) CHECK_EQ(strlen(text), 2 * depth + 3);
	}
}

/* ---- names ---- */

static void test_name_is_the_same_for_the_same_text(void)
{
	hr_name matmul = hr_name_intern("MatMul");
	char copy[] = "MatMul";
	CHECK_GT(matmul, HR_NAME_OTHER);
	CHECK_EQ(hr_name_intern(copy), matmul);
	CHECK_EQ(hr__name_of_bytes("MatMul/scope", 6), matmul);
	CHECK_NE(hr_name_intern("matmul"), matmul);
	CHECK_NE(hr_name_intern("MatMu"), matmul);
	CHECK_NE(hr_name_intern("MatMul "), matmul);
	CHECK_STR(hr_name_text(matmul), "MatMul");
	CHECK_EQ(hr__names_count(), 2 + 4);
}

static void test_name_none_and_other(void)
{
	CHECK_EQ(hr_name_intern(NULL), HR_NAME_NONE);
	CHECK_EQ(hr_name_intern(""), HR_NAME_NONE);
	CHECK_EQ(hr__name_of_bytes(NULL, 0), HR_NAME_NONE);
	CHECK_EQ(hr__name_of_bytes("x", 0), HR_NAME_NONE);
	CHECK_STR(hr_name_text(HR_NAME_NONE), "");
	CHECK_STR(hr_name_text(HR_NAME_OTHER), "(other)");
	CHECK_STR(hr_name_text(2), "(other)");
	CHECK_STR(hr_name_text(UINT32_MAX), "(other)");
	CHECK_EQ(hr_name_intern("(other)"), HR_NAME_OTHER);
	CHECK_EQ(hr__names_count(), 2);
	CHECK_GT(hr_name_intern("(others)"), HR_NAME_OTHER);
}

static void test_name_may_contain_any_byte(void)
{
	hr_name a = hr__name_of_bytes("a\0b", 3), b = hr__name_of_bytes("a\0c", 3), c = hr__name_of_bytes("a", 1);
	CHECK(a != b && b != c && a != c);
	CHECK_EQ(hr__name_of_bytes("a\0b", 3), a);
	CHECK_BYTES(hr_name_text(b), "a\0c", 4);
	CHECK_STR(hr_name_text(hr__name_of_bytes("\xFF\x01", 2)), "\xFF\x01");
}

static void test_long_name_is_cut_between_characters(void)
{
	char text[2000];
	memset(text, 'n', sizeof text);
	text[sizeof text - 1] = 0;
	hr_name name = hr_name_intern(text);
	CHECK_EQ(strlen(hr_name_text(name)), HR__NAME_LENGTH_MAX);
	text[1500] = 0;
	CHECK_EQ(hr_name_intern(text), name);
	text[HR__NAME_LENGTH_MAX] = 0;
	CHECK_EQ(hr_name_intern(text), name);
	text[HR__NAME_LENGTH_MAX - 1] = 0;
	CHECK_NE(hr_name_intern(text), name);

	memset(text, 'm', sizeof text);
	memcpy(text + HR__NAME_LENGTH_MAX - 2, "\xE2\x82\xAC", 3);
	text[sizeof text - 1] = 0;
	CHECK_EQ(strlen(hr_name_text(hr_name_intern(text))), HR__NAME_LENGTH_MAX - 2);
	memcpy(text + HR__NAME_LENGTH_MAX - 3, "\xE2\x82\xAC", 3);
	CHECK_EQ(strlen(hr_name_text(hr_name_intern(text))), HR__NAME_LENGTH_MAX);
}

static void test_names_are_capped_to_other(void)
{
	char text[32];
	for (unsigned i = 2; i < HR__NAMES_MAX; i++) {
		snprintf(text, sizeof text, "name %u", i);
		hr_name name = hr_name_intern(text);
		if (name != i) CHECK_EQ(name, i);
	}
	CHECK_EQ(hr__names_count(), HR__NAMES_MAX);
	CHECK_EQ(hr_name_intern("one too many"), HR_NAME_OTHER);
	CHECK_EQ(hr_name_intern("one too many"), HR_NAME_OTHER);
	CHECK_EQ(hr_name_intern("name 2"), 2);
	CHECK_EQ(hr_name_intern("name 65535"), HR__NAMES_MAX - 1);
	CHECK_STR(hr_name_text(HR__NAMES_MAX - 1), "name 65535");
	CHECK_STR(hr_name_text(HR__NAMES_MAX), "(other)");
	for (unsigned i = 2; i < HR__NAMES_MAX; i++) {
		snprintf(text, sizeof text, "name %u", i);
		if (hr_name_intern(text) != i || strcmp(hr_name_text(i), text) != 0) CHECK_EQ(i, 0);
	}
	hr__names_reset_for_test();
	CHECK_EQ(hr__names_count(), 2);
	CHECK_EQ(hr_name_intern("name 65535"), 2);
}

static void test_names_text_is_capped_to_other(void)
{
	char text[HR__NAME_LENGTH_MAX + 1];
	unsigned long_ones = HR__NAMES_TEXT_MAX / (HR__NAME_LENGTH_MAX + 1) - 1;
	memset(text, 'x', sizeof text);
	for (unsigned i = 0; i < long_ones; i++) {
		char number[16];
		int digits = snprintf(number, sizeof number, "%u ", i);
		memcpy(text, number, (size_t)digits);
		hr_name name = hr__name_of_bytes(text, HR__NAME_LENGTH_MAX);
		if (name != i + 2) CHECK_EQ(name, i + 2);
	}
	/* Leaves 60 bytes. */
	unsigned left = HR__NAMES_TEXT_MAX - long_ones * (HR__NAME_LENGTH_MAX + 1);
	CHECK_EQ(hr__name_of_bytes(text + 50, left - 61), long_ones + 2);
	text[0] = 'y';
	CHECK_EQ(hr__name_of_bytes(text, HR__NAME_LENGTH_MAX), HR_NAME_OTHER);
	/* A shorter name still fits; a name that did not fit before still does not. */
	CHECK_EQ(hr_name_intern("short"), long_ones + 3);
	CHECK_EQ(hr__name_of_bytes(text, HR__NAME_LENGTH_MAX), HR_NAME_OTHER);
	/* The last byte can be used. */
	CHECK_EQ(hr__name_of_bytes(text, 54), HR_NAME_OTHER);
	CHECK_EQ(hr__name_of_bytes(text, 53), long_ones + 4);
	CHECK_EQ(hr_name_intern("q"), HR_NAME_OTHER);
}

#define SHARED_NAMES 2000
#define NAME_THREADS 8

struct interned {
	hr_name names[NAME_THREADS][SHARED_NAMES];
	hr_shape shapes[NAME_THREADS][SHARED_NAMES];
};

static void intern_shared(void *argument, unsigned index)
{
	struct interned *interned = argument;
	uint64_t random = hr_test_seed() + index;
	for (unsigned round = 0; round < 3 * SHARED_NAMES; round++) {
		/* Every thread uses all of the names, each in a different order. */
		unsigned i = round < SHARED_NAMES ? (round * 7 + index * 251) % SHARED_NAMES
		                                  : (unsigned)hr_rand_below(&random, SHARED_NAMES);
		char text[32];
		int64_t dims[2] = { i, i + 1 };
		snprintf(text, sizeof text, "shared/%u", i);
		hr_name name = hr_name_intern(text);
		hr_shape shape = hr_shape_intern(dims, 2);
		CHECK(interned->names[index][i] == 0 || interned->names[index][i] == name);
		CHECK(interned->shapes[index][i] == 0 || interned->shapes[index][i] == shape);
		interned->names[index][i] = name;
		interned->shapes[index][i] = shape;
		CHECK_STR(hr_name_text(name), text);
	}
}

static void test_threads_get_the_same_numbers(void)
{
	static struct interned interned;
	hr_test_threads(NAME_THREADS, intern_shared, &interned);
	CHECK_EQ(hr__names_count(), SHARED_NAMES + 2);
	CHECK_EQ(hr__shapes_count(), SHARED_NAMES + 2);
	for (unsigned t = 1; t < NAME_THREADS; t++) {
		CHECK_BYTES(interned.names[t], interned.names[0], sizeof interned.names[0]);
		CHECK_BYTES(interned.shapes[t], interned.shapes[0], sizeof interned.shapes[0]);
	}
	static bool seen[SHARED_NAMES + 2];
	for (unsigned i = 0; i < SHARED_NAMES; i++) {
		CHECK_LT(interned.names[0][i], SHARED_NAMES + 2);
		CHECK(!seen[interned.names[0][i]]);
		seen[interned.names[0][i]] = true;
	}
}

/* ---- shapes and dtypes ---- */

static void test_shape_keeps_its_dimensions(void)
{
	int64_t dims[] = { 64, 1024, 0, 1, INT64_MAX, 5, 6, 7 }, got[HR_SHAPE_MAX_RANK];
	hr_shape all[HR_SHAPE_MAX_RANK + 1];
	for (int rank = 0; rank <= HR_SHAPE_MAX_RANK; rank++) {
		all[rank] = hr_shape_intern(dims, rank);
		CHECK_GT(all[rank], HR_SHAPE_OTHER);
		CHECK_EQ(hr_shape_intern(dims, rank), all[rank]);
		for (int other = 0; other < rank; other++) CHECK_NE(all[rank], all[other]);
		CHECK_EQ(hr_shape_dims(all[rank], got), rank);
		CHECK_BYTES(got, dims, (size_t)rank * sizeof dims[0]);
	}
	CHECK_EQ(hr_shape_intern(NULL, 0), all[0]);
	dims[0] = 63;
	CHECK_NE(hr_shape_intern(dims, 2), all[2]);
	CHECK_EQ(hr__shapes_count(), 2 + 9 + 1);
}

static void test_bad_shape_is_none(void)
{
	int64_t dims[9] = { 1, 2, 3, 4, 5, 6, 7, 8, 9 };
	CHECK_EQ(hr_shape_intern(dims, 9), HR_SHAPE_NONE);
	CHECK_EQ(hr_shape_intern(dims, -1), HR_SHAPE_NONE);
	CHECK_EQ(hr_shape_intern(dims, INT_MAX), HR_SHAPE_NONE);
	CHECK_EQ(hr_shape_intern(NULL, 1), HR_SHAPE_NONE);
	dims[1] = -1;
	CHECK_EQ(hr_shape_intern(dims, 2), HR_SHAPE_NONE);
	CHECK_EQ(hr_shape_dims(HR_SHAPE_NONE, dims), -1);
	CHECK_EQ(hr_shape_dims(HR_SHAPE_OTHER, dims), -1);
	CHECK_EQ(hr_shape_dims(2, dims), -1);
	CHECK_EQ(hr_shape_dims(UINT32_MAX, dims), -1);
}

static void test_shapes_are_capped_to_other(void)
{
	for (int64_t i = 2; i < HR__SHAPES_MAX; i++) {
		int64_t dims[8] = { i, 1, 2, 3, 4, 5, 6, 7 };
		if (hr_shape_intern(dims, 8) != (hr_shape)i) CHECK_EQ(i, 0);
	}
	int64_t dims[8] = { 0 };
	CHECK_EQ(hr_shape_intern(dims, 8), HR_SHAPE_OTHER);
	CHECK_EQ(hr_shape_intern(NULL, 0), HR_SHAPE_OTHER);
	CHECK_EQ(hr__shapes_count(), HR__SHAPES_MAX);
	CHECK_EQ(hr_shape_dims(HR__SHAPES_MAX - 1, dims), 8);
	CHECK_EQ(dims[0], HR__SHAPES_MAX - 1);
	CHECK_EQ(hr_shape_dims(HR__SHAPES_MAX, dims), -1);
}

static void test_shape_is_formatted(void)
{
	char text[256];
	int64_t dims[8] = { 64, 1024 };
	CHECK_EQ(hr_shape_format(hr_shape_intern(dims, 2), text, sizeof text), 9);
	CHECK_STR(text, "[64,1024]");
	CHECK_EQ(hr_shape_format(hr_shape_intern(dims, 2), text, 5), 9);
	CHECK_STR(text, "[64,");
	CHECK_EQ(hr_shape_format(hr_shape_intern(dims, 2), text, 1), 9);
	CHECK_STR(text, "");
	CHECK_EQ(hr_shape_format(hr_shape_intern(dims, 2), NULL, 0), 9);
	hr_shape_format(hr_shape_intern(NULL, 0), text, sizeof text);
	CHECK_STR(text, "[]");
	hr_shape_format(HR_SHAPE_NONE, text, sizeof text);
	CHECK_STR(text, "?");
	hr_shape_format(HR_SHAPE_OTHER, text, sizeof text);
	CHECK_STR(text, "?");
	for (int i = 0; i < 8; i++) dims[i] = INT64_MAX;
	CHECK_EQ(hr_shape_format(hr_shape_intern(dims, 8), text, sizeof text), 2 + 8 * 19 + 7);
	CHECK_EQ(strlen(text), 2 + 8 * 19 + 7);
}

static void test_dtype_has_text_and_size(void)
{
	CHECK_STR(hr_dtype_text(HR_DTYPE_NONE), "?");
	CHECK_STR(hr_dtype_text(HR_DTYPE_FLOAT32), "float32");
	CHECK_STR(hr_dtype_text(HR_DTYPE_INT16), "int16");
	CHECK_STR(hr_dtype_text((hr_dtype)1000), "?");
	CHECK_EQ(hr_dtype_size(HR_DTYPE_NONE), 0);
	CHECK_EQ(hr_dtype_size(HR_DTYPE_FLOAT64), 8);
	CHECK_EQ(hr_dtype_size(HR_DTYPE_BFLOAT16), 2);
	CHECK_EQ(hr_dtype_size(HR_DTYPE_BOOL), 1);
	CHECK_EQ(hr_dtype_size((hr_dtype)1000), 0);
}

/* ---- locks ---- */

static void test_lock_word_counts(void)
{
	hr__lock lock;
	hr__lock_init(&lock, HR__RANK_SHARD);
	CHECK(!hr__lock_is_held(&lock));
	hr__lock_take(&lock);
	CHECK(hr__lock_is_held(&lock));
	CHECK_EQ(hr__load_relaxed(&lock.word), 1);
	CHECK(!hr__lock_try(&lock));
	hr__lock_release(&lock);
	CHECK_EQ(hr__load_relaxed(&lock.word), 2);
	CHECK(hr__lock_try(&lock));
	CHECK_EQ(hr__load_relaxed(&lock.word), 3);
	hr__lock_release(&lock);
	CHECK(!hr__lock_is_held(&lock));
}

struct shared {
	hr__lock lock;
	uint64_t plain[4];   /* guarded by lock */
	hr__atomic_u64 a, b; /* written under lock, always equal outside it */
	hr__atomic_u32 done;
	uint64_t rounds;
};

static void add_under_lock(void *argument, unsigned index)
{
	struct shared *shared = argument;
	for (uint64_t i = 0; i < shared->rounds; i++) {
		hr__lock_take(&shared->lock);
		for (int k = 0; k < 4; k++) shared->plain[k]++;
		hr__lock_release(&shared->lock);
	}
	(void)index;
}

static void count_with_threads(unsigned threads)
{
	static struct shared shared;
	shared = (struct shared){ .lock = HR__LOCK_INIT(HR__RANK_SHARD),
		                      .rounds = hr_test_scaled(HR_TEST_SANITIZED ? 20000 : 200000) };
	hr_test_threads(threads, add_under_lock, &shared);
	for (int k = 0; k < 4; k++) CHECK_EQ(shared.plain[k], threads * shared.rounds);
	CHECK_EQ(hr__load_relaxed(&shared.lock.word), 2 * threads * shared.rounds);
}

static void test_lock_excludes(void)
{
	count_with_threads(2);
	count_with_threads(8);
}

static void test_lock_excludes_without_an_operating_system(void)
{
	/* The default way to wait, before the os layer installs its own. */
	hr__lock_wait = hr__lock_pause;
	count_with_threads(2);
}

static void write_pairs(struct shared *shared)
{
	for (uint64_t i = 1; i <= shared->rounds; i++) {
		hr__lock_take(&shared->lock);
		hr__store_relaxed(&shared->a, i);
		hr__store_relaxed(&shared->b, i);
		hr__lock_release(&shared->lock);
		/* Lets readers finish: with a writer that never pauses, readers never get a consistent snapshot. */
		if (i % 16 == 0) hr__lock_pause(0);
	}
	hr__store_release(&shared->done, 1);
}

static void read_pairs(struct shared *shared)
{
	uint64_t good = 0, last = 0;
	while (hr__load_acquire(&shared->done) == 0 || good == 0) {
		uint64_t version = hr__lock_read_begin(&shared->lock);
		uint64_t a = hr__load_relaxed(&shared->a), b = hr__load_relaxed(&shared->b);
		if (!hr__lock_read_ok(&shared->lock, version)) continue;
		if (a != b || a < last) CHECK_EQ(a, b);
		last = a;
		good++;
	}
	CHECK_GT(good, 0);
}

static void read_or_write(void *argument, unsigned index)
{
	if (index == 0) write_pairs(argument);
	else read_pairs(argument);
}

static void test_optimistic_read_is_consistent(void)
{
	static struct shared shared;
	shared = (struct shared){ .lock = HR__LOCK_INIT(HR__RANK_SHARD),
		                      .rounds = hr_test_scaled(HR_TEST_SANITIZED ? 20000 : 300000) };
	hr_test_threads(3, read_or_write, &shared);
	CHECK_EQ(shared.b, shared.rounds);
}

static void test_optimistic_read_refuses_a_writer(void)
{
	hr__lock lock = HR__LOCK_INIT(HR__RANK_NAMES);
	uint64_t version = hr__lock_read_begin(&lock);
	CHECK(hr__lock_read_ok(&lock, version));
	hr__lock_take(&lock);
	CHECK(!hr__lock_read_ok(&lock, version));
	CHECK(!hr__lock_read_ok(&lock, hr__lock_read_begin(&lock)));
	hr__lock_release(&lock);
	CHECK(!hr__lock_read_ok(&lock, version));
	CHECK(hr__lock_read_ok(&lock, hr__lock_read_begin(&lock)));
}

static hr__lock outer = HR__LOCK_INIT(HR__RANK_CACHES), inner = HR__LOCK_INIT(HR__RANK_SHARD);
static hr__lock inner_twin = HR__LOCK_INIT(HR__RANK_SHARD);

static void take_in_order(void *argument)
{
	(void)argument;
	hr__lock_take(&outer);
	hr__lock_take(&inner);
	hr__lock_release(&outer); /* in the order of acquisition, not in reverse */
	hr__lock_release(&inner);
	hr__lock_take(&inner);
	if (!hr__lock_try(&outer)) abort(); /* hr__lock_try never waits, so it may break the order */
	hr__lock_release(&outer);
	hr__lock_release(&inner);
}

static void take_out_of_order(void *argument)
{
	(void)argument;
	hr__lock_take(&inner);
	hr__lock_take(&outer);
}

static void take_equal_ranks(void *argument)
{
	(void)argument;
	hr__lock_take(&inner);
	hr__lock_take(&inner_twin);
}

#ifdef HR_DEBUG
static void take_twice(void *argument)
{
	(void)argument;
	hr__lock_take(&inner);
	hr__lock_take(&inner);
}

static void release_untaken(void *argument)
{
	(void)argument;
	hr__lock_release(&inner);
}
#endif

static void test_lock_ranks_are_checked_in_debug_builds(void)
{
	CHECK(!hr_test_crashes(take_in_order, NULL));
#ifdef HR_DEBUG
	CHECK(hr_test_crashes(take_out_of_order, NULL));
	CHECK(hr_test_crashes(take_equal_ranks, NULL));
	CHECK(hr_test_crashes(take_twice, NULL));
	CHECK(hr_test_crashes(release_untaken, NULL));
#else
	CHECK(!hr_test_crashes(take_out_of_order, NULL));
	CHECK(!hr_test_crashes(take_equal_ranks, NULL));
#endif
}

#ifdef HR_DEBUG
static void look_from_another_thread(void *argument, unsigned index)
{
	(void)argument;
	CHECK_EQ(hr__lock_is_mine(&inner), false);
	CHECK(hr__lock_none_from(HR__RANK_PROFILER));
	(void)index;
}
#endif

static void test_debug_builds_know_which_thread_holds_a_lock(void)
{
	CHECK(!hr__lock_is_held(&outer) && !hr__lock_is_held(&inner));
#ifdef HR_DEBUG
	hr__lock_take(&outer);
	hr__lock_take(&inner);
	CHECK(hr__lock_is_mine(&outer) && hr__lock_is_mine(&inner));
	CHECK(!hr__lock_none_from(HR__RANK_CACHES) && !hr__lock_none_from(HR__RANK_SHARD));
	CHECK(hr__lock_none_from(HR__RANK_SHARD + 1));
	hr_test_threads(1, look_from_another_thread, NULL);
	hr__lock_release(&outer);
	CHECK(!hr__lock_is_mine(&outer) && hr__lock_is_mine(&inner));
	hr__lock_release(&inner);
	CHECK(!hr__lock_is_mine(&inner) && hr__lock_none_from(HR__RANK_PROFILER));
#else
	hr_test_skip("not a debug build");
#endif
}

static hr__atomic_u32 waits_seen;

static void note_attempt(unsigned attempt)
{
	/* Attempts are numbered 0, 1, 2...; the fifth wait releases the lock. */
	CHECK_EQ(attempt, hr__load_relaxed(&waits_seen));
	hr__store_relaxed(&waits_seen, attempt + 1);
	if (attempt == 4) hr__store_release(&inner.word, 2);
}

static void test_waiter_counts_its_attempts(void)
{
	hr__lock_wait = note_attempt;
	hr__store_relaxed(&inner.word, 1); /* held by no thread */
	hr__lock_take(&inner);
	CHECK_EQ(hr__load_relaxed(&waits_seen), 5);
	CHECK_EQ(hr__load_relaxed(&inner.word), 3);
	hr__lock_release(&inner);
}

/* 2 MiB and 2 MiB plus one byte both round to 2.0 MiB. */
static void test_sizes_that_read_the_same_are_exact(void)
{
	hr__sizes size = HR__SIZES(2097153, 2097152);
	CHECK_STR(size.text[0], "2,097,153 B");
	CHECK_STR(size.text[1], "2,097,152 B");
	size = HR__SIZES(2097152, 2097152); /* equal: no difference to show */
	CHECK_STR(size.text[0], "2.0 MiB");
	CHECK_STR(size.text[1], "2.0 MiB");
	size = HR__SIZES(2097153, 4194304, 2097152, 512, 2097152, 512);
	static const char *const expected[] = { "2,097,153 B", "4.0 MiB", "2,097,152 B", "512 B", "2,097,152 B", "512 B" };
	for (int i = 0; i < 6; i++) CHECK_STR(size.text[i], expected[i]);
	size = HR__SIZES(UINT64_MAX, UINT64_MAX - 1);
	CHECK_STR(size.text[0], "18,446,744,073,709,551,615 B");
	CHECK_STR(size.text[1], "18,446,744,073,709,551,614 B");
}

static void test_a_long_name_is_cut_between_its_parts(void)
{
	CHECK_STR(hr__brief("encoder/layer_3", 60).text, "encoder/layer_3");
	CHECK_STR(hr__brief("encoder/layer_3", 15).text, "encoder/layer_3");
	/* 40 bytes: 12 of the head, 25 of the tail */
	CHECK_STR(hr__brief("model/decoder/layer_11/attention/query/kernel/momentum", 40).text, "model/.../query/kernel/momentum");
	CHECK_STR(hr__brief("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaazzzz", 20).text, "aaaaa...aaaaaaaazzzz");
	/* Never cut inside a character; these have two bytes each. */
	CHECK_STR(hr__brief("\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4", 14).text,
	          "\u00e4...\u00e4\u00e4\u00e4\u00e4");
	char huge[1025];
	memset(huge, 'x', 1024);
	huge[1024] = 0;
	CHECK_EQ(strlen(hr__brief(huge, 1000).text), HR__BRIEF_MAX);
}

static void test_plural_ending_of_counts(void)
{
	CHECK_STR(hr__plural(0), "s");
	CHECK_STR(hr__plural(1), "");
	CHECK_STR(hr__plural(2), "s");
}

static void test_escaped_and_repaired_text_fits_and_is_harmless(void)
{
	uint64_t state = hr_test_seed();
	char bytes[48], escaped[40], repaired[40], twice[40];
	CHECK_EQ(hr__text_escape("a\n\xC3\xA9\xFF\xE2\x80\xAE", 8, escaped, sizeof escaped), 23);
	CHECK_STR(escaped, "a\\x0A\xC3\xA9\\xFF\\xE2\\x80\\xAE");
	CHECK_EQ(hr__text_repair("a\n\xC3\xA9\xFF\xE2\x80\xAE", 8, repaired, sizeof repaired), 10);
	CHECK_STR(repaired, "a\n\xC3\xA9\xEF\xBF\xBD\xE2\x80\xAE");
	for (uint64_t round = 0; round < hr_test_scaled(20000); round++) {
		size_t capacity = 1 + hr_rand_below(&state, sizeof escaped);
		for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (char)(1 + (hr_rand(&state) >> (round % 2 ? 0 : 1)) % 255);
		size_t length = hr__text_escape(bytes, sizeof bytes, escaped, capacity);
		CHECK_LT(length, capacity);
		CHECK_EQ(strlen(escaped), length);
		for (size_t at = 0; at < length; at += hr__utf8_printable(escaped + at, length - at)) CHECK(hr__utf8_printable(escaped + at, length - at) > 0);
		length = hr__text_repair(bytes, sizeof bytes, repaired, capacity);
		CHECK_LT(length, capacity);
		CHECK_EQ(strlen(repaired), length);
		CHECK_EQ(hr__text_repair(repaired, length, twice, capacity), length);
		CHECK_STR(twice, repaired);
	}
}

/* ---- sort ---- */

static bool uint32_before(const void *a, const void *b, const void *context)
{
	(void)context;
	return *(const uint32_t *)a < *(const uint32_t *)b;
}

static void test_sort_orders_every_item(void)
{
	uint64_t state = hr_test_seed();
	for (size_t count = 0; count < 70; count++) {
		uint32_t items[70], seen[20] = { 0 }, sorted[20] = { 0 };
		for (size_t i = 0; i < count; i++) seen[items[i] = (uint32_t)hr_rand_below(&state, 20)]++;
		hr__sort(items, count, sizeof *items, uint32_before, NULL);
		for (size_t i = 0; i < count; i++) sorted[items[i]]++;
		for (size_t i = 1; i < count; i++) CHECK_LE(items[i - 1], items[i]);
		CHECK_BYTES(seen, sorted, sizeof seen);
	}
}

TEST_MAIN(T(test_escaped_and_repaired_text_fits_and_is_harmless), T(test_sort_orders_every_item), T(test_sizes_that_read_the_same_are_exact), T(test_a_long_name_is_cut_between_its_parts), T(test_plural_ending_of_counts), T(test_status_has_name_and_text), T(test_message_is_what_failed_last), T(test_message_may_quote_itself),
          T(test_message_is_printable_whatever_it_quotes), T(test_message_is_cut_between_characters), T(test_message_belongs_to_its_thread), T(test_without_memory_the_status_is_the_message), T(test_checked_arithmetic_at_the_edges),
          T(test_powers_of_two), T(test_assertions_are_checked_in_debug_builds_only), T(test_size_is_parsed_exactly),
          T(test_bad_size_is_quoted_and_explained), T(test_long_bad_size_is_cut_in_its_message),
          T(test_size_is_formatted_for_people), T(test_count_is_formatted_with_commas), T(test_utf8_accepts_every_character),
          T(test_utf8_trim_keeps_invalid_bytes), T(test_json_writes_every_kind_of_value), T(test_json_pretty_indents),
          T(test_json_escapes_text), T(test_json_replaces_what_is_not_utf8), T(test_json_random_bytes_stay_well_formed),
          T(test_json_numbers_are_json), T(test_json_ignores_the_locale), T(test_json_in_too_small_memory_is_terminated_and_an_error),
          T(test_json_memory_is_cut_between_characters), T(test_json_sink_gets_every_byte),
          T(test_json_failing_sink_is_reported_once_at_the_end), T(test_json_depth_is_limited),
          T(test_name_is_the_same_for_the_same_text), T(test_name_none_and_other), T(test_name_may_contain_any_byte),
          T(test_long_name_is_cut_between_characters), T(test_names_are_capped_to_other), T(test_names_text_is_capped_to_other),
          T(test_threads_get_the_same_numbers), T(test_shape_keeps_its_dimensions), T(test_bad_shape_is_none),
          T(test_shapes_are_capped_to_other), T(test_shape_is_formatted), T(test_dtype_has_text_and_size), T(test_lock_word_counts),
          T(test_lock_excludes), T(test_lock_excludes_without_an_operating_system), T(test_optimistic_read_is_consistent),
          T(test_optimistic_read_refuses_a_writer), T(test_lock_ranks_are_checked_in_debug_builds), T(test_debug_builds_know_which_thread_holds_a_lock),
          T(test_waiter_counts_its_attempts))
