/* test_pickle.c - pickles of plain data are read as Python reads them. All others are refused. None runs code, or takes memory out of
 * proportion to its size. */
#include "analysis/import/pickle/pickle.h"
#include "core/base/status.h"
#include "core/os/os.h"
#include "fault_os.h"
#include "analysis/import/pickle/pickle_json.h"
#include "support_files.h"
#include "test.h"

/* ---- reading from memory ---- */

struct pickle_bytes {
	const char *bytes;
	size_t size, at;
	size_t step; /* bytes that [more] provides at once */
	hr_status fail_at_end;
	uint64_t peak; /* of memory held when [more] is called */
};

static hr_status more(void *context, const char **bytes, size_t *count)
{
	struct pickle_bytes *input = context;
	struct hr_fault_os_live live;
	hr_fault_os_live(&live);
	if (live.alloc_bytes > input->peak) input->peak = live.alloc_bytes;
	size_t left = input->size - input->at;
	if (left == 0 && input->fail_at_end) return hr__fail(input->fail_at_end, "the disk is gone");
	*bytes = input->bytes + input->at;
	*count = left < input->step ? left : input->step;
	input->at += *count;
	return HR_OK;
}

static hr_status read_input(struct pickle_bytes *input, uint64_t *offset, hr__pickle **pickle)
{
	return hr__pickle_read(&(hr__pickle_input){ more, input }, offset, pickle);
}

static hr_status read_in_steps(const char *bytes, size_t size, size_t step, uint64_t *offset, hr__pickle **pickle)
{
	return read_input(&(struct pickle_bytes){ .bytes = bytes, .size = size, .step = step }, offset, pickle);
}

/* ---- objects as text, as Python prints them, with tuples as lists ---- */

struct pickle_text {
	char text[4096];
	size_t length;
};

static void add(struct pickle_text *out, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void add(struct pickle_text *out, const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	out->length += (size_t)vsnprintf(out->text + out->length, sizeof out->text - out->length, format, arguments);
	va_end(arguments);
	CHECK_LT(out->length, sizeof out->text);
}

static void print_object(const hr__pickle *pickle, uint32_t object, struct pickle_text *out)
{
	hr__pickle_kind kind = hr__pickle_kind_of(pickle, object);
	size_t length, count = 0;
	switch (kind) {
	case HR__PICKLE_NONE: add(out, "None"); return;
	case HR__PICKLE_FALSE: add(out, "False"); return;
	case HR__PICKLE_TRUE: add(out, "True"); return;
	case HR__PICKLE_INTEGER: add(out, "%lld", (long long)hr__pickle_integer(pickle, object)); return;
	case HR__PICKLE_UNSIGNED: add(out, "%llu", (unsigned long long)hr__pickle_unsigned(pickle, object)); return;
	case HR__PICKLE_REAL: add(out, "%g", hr__pickle_real(pickle, object)); return;
	case HR__PICKLE_TEXT: add(out, "'%s'", hr__pickle_text(pickle, object, &length)); return;
	case HR__PICKLE_LIST:
	case HR__PICKLE_DICT: break;
	}
	add(out, kind == HR__PICKLE_LIST ? "[" : "{");
	for (uint32_t item = hr__pickle_first(pickle, object); item; item = hr__pickle_next(pickle, item), count++) {
		if (count > 0) add(out, kind == HR__PICKLE_DICT && count % 2 ? ": " : ", ");
		print_object(pickle, hr__pickle_at(pickle, item), out);
	}
	add(out, kind == HR__PICKLE_LIST ? "]" : "}");
}

/* ---- what is read ---- */

#define P2 "\x80\x02"
#define P4 "\x80\x04"
/* A literal with its length, which may contain NUL. */
#define BYTES(literal) (literal), sizeof(literal) - 1

static void check_reads(const char *bytes, size_t size, const char *expected)
{
	for (size_t step = 1; step <= 4096; step *= 16) {
		struct pickle_text out = { .length = 0 };
		uint64_t offset;
		hr__pickle *pickle;
		CHECK_STATUS(HR_OK, read_in_steps(bytes, size, step, &offset, &pickle));
		print_object(pickle, hr__pickle_root(pickle), &out);
		hr__pickle_free(pickle);
		CHECK_STR(out.text, expected);
	}
}

static void check_refused(const char *bytes, size_t size, hr_status expected, uint64_t at, const char *says)
{
	for (size_t step = 1; step <= 4096; step *= 16) {
		uint64_t offset;
		hr__pickle *pickle;
		CHECK_STATUS(expected, read_in_steps(bytes, size, step, &offset, &pickle));
		CHECK_CONTAINS(hr_last_message(), says);
		CHECK_EQ(offset, at);
	}
}

static void test_constants_and_numbers(void)
{
	check_reads(BYTES(P2 "N."), "None");
	check_reads(BYTES(P2 "\x88."), "True");
	check_reads(BYTES(P2 "\x89."), "False");
	check_reads(BYTES(P2 "K\xFF."), "255");
	check_reads(BYTES(P2 "M\xFF\xFE."), "65279");
	check_reads(BYTES(P2 "J\xFE\xFF\xFF\xFF."), "-2");
	check_reads(BYTES(P2 "J\xFF\xFF\xFF\x7F."), "2147483647");
	check_reads(BYTES(P2 "G\x3F\xF8\0\0\0\0\0\0."), "1.5");
	check_reads(BYTES(P2 "G\xFF\xF0\0\0\0\0\0\0."), "-inf");
}

static void test_integers_of_up_to_64_bits(void)
{
	check_reads(BYTES(P2 "\x8A\0."), "0");
	check_reads(BYTES(P2 "\x8A\1\xFF."), "-1");
	check_reads(BYTES(P2 "\x8A\2\xFF\0."), "255");
	check_reads(BYTES(P2 "\x8A\6\0\0\0\0\0\x7F."), "139637976727552");
	check_reads(BYTES(P2 "\x8A\x08\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x7F."), "9223372036854775807");
	check_reads(BYTES(P2 "\x8A\x08\0\0\0\0\0\0\0\x80."), "-9223372036854775808");
	check_reads(BYTES(P2 "\x8A\x09\0\0\0\0\0\0\0\x80\0."), "9223372036854775808");
	check_reads(BYTES(P2 "\x8A\x09\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\0."), "18446744073709551615");
	check_reads(BYTES(P2 "\x8A\x09\1\0\0\0\0\0\0\0\0."), "1");
	check_reads(BYTES(P2 "\x8B\2\0\0\0\0\x80."), "-32768");
	check_refused(BYTES(P2 "\x8A\x09\0\0\0\0\0\0\0\0\1."), HR_TOO_MANY, 2, "more than 64 bits");
	check_refused(BYTES(P2 "\x8A\x0A\0\0\0\0\0\0\0\0\0\1."), HR_TOO_MANY, 2, "an integer of 10 bytes");
	check_refused(BYTES(P2 "\x8B\xFF\xFF\xFF\x7F."), HR_TOO_MANY, 2, "an integer of 2147483647 bytes");
	check_refused(BYTES(P2 "\x8B\xFF\xFF\xFF\xFF."), HR_TOO_MANY, 2, "an integer of 4294967295 bytes");
}

static void test_text_and_bytes(void)
{
	check_reads(BYTES(P4 "\x8C\3abc."), "'abc'");
	check_reads(BYTES(P4 "\x8C\0."), "''");
	check_reads(BYTES(P2 "X\4\0\0\0a\xC3\xA9z."), "'a\xC3\xA9z'");
	check_reads(BYTES(P4 "\x8D\2\0\0\0\0\0\0\0hi."), "'hi'");
	check_reads(BYTES(P4 "C\3a\xE9z."), "'a\xC3\xA9z'");
	check_reads(BYTES(P4 "B\1\0\0\0\xFF."), "'\xC3\xBF'");
	check_reads(BYTES(P4 "\x8E\1\0\0\0\0\0\0\0b."), "'b'");
	check_reads(BYTES(P2 "U\2\x80\x7F."), "'\xC2\x80\x7F'");
	check_reads(BYTES(P2 "T\1\0\0\0t."), "'t'");
	check_reads(BYTES(P4 "\x8C\4\xF0\x9F\x98\x80."), "'\xF0\x9F\x98\x80'");
}

static void test_text_that_is_not_utf8(void)
{
	check_reads(BYTES(P4 "\x8C\5"
	                     "a\xED\xB2\x80z."),
	            "'a\xEF\xBF\xBDz'");
	check_refused(BYTES(P4 "\x8C\1\xFF."), HR_BAD_FORMAT, 2, "not UTF-8");
	check_refused(BYTES(P4 "\x8C\2\xC0\x80."), HR_BAD_FORMAT, 2, "not UTF-8");
	check_refused(BYTES(P4 "\x8C\2\xE2\x82."), HR_BAD_FORMAT, 2, "not UTF-8");
	check_refused(BYTES(P4 "\x8C\3\xE0\x80\x80."), HR_BAD_FORMAT, 2, "not UTF-8");
	check_refused(BYTES(P4 "\x8C\4\xF4\x90\x80\x80."), HR_BAD_FORMAT, 2, "not UTF-8");
	check_refused(BYTES(P4 "\x8C\4\xF0\x80\x80\x80."), HR_BAD_FORMAT, 2, "not UTF-8");
}

static void test_containers(void)
{
	check_reads(BYTES(P2 "]."), "[]");
	check_reads(BYTES(P2 "]K\1aK\2a."), "[1, 2]");
	check_reads(BYTES(P2 "](K\1K\2e(K\3e(e."), "[1, 2, 3]");
	check_reads(BYTES(P2 "}."), "{}");
	check_reads(BYTES(P2 "}U\1aK\1s."), "{'a': 1}");
	check_reads(BYTES(P2 "}(U\1aK\1U\1b]u(K\5Nu."), "{'a': 1, 'b': [], 5: None}");
	check_reads(BYTES(P2 ")."), "[]");
	check_reads(BYTES(P2 "K\1\x85."), "[1]");
	check_reads(BYTES(P2 "K\1K\2\x86."), "[1, 2]");
	check_reads(BYTES(P2 "K\1K\2K\3\x87."), "[1, 2, 3]");
	check_reads(BYTES(P2 "(K\1K\2K\3K\4t."), "[1, 2, 3, 4]");
	check_reads(BYTES(P2 "(t."), "[]");
	check_reads(BYTES(P4 "\x95\x03\0\0\0\0\0\0\0](N\x95\0\0\0\0\0\0\0\0e."), "[None]");
}

static void test_the_memo(void)
{
	check_reads(BYTES(P2 "](U\1aq\0h\0j\0\0\0\0e."), "['a', 'a', 'a']");
	check_reads(BYTES(P2 "](U\1ar\0\0\0\0h\0e."), "['a', 'a']");
	check_reads(BYTES(P4 "]\x94(\x8C\1a\x94h\1e."), "['a', 'a']");
	check_reads(BYTES(P2 "](U\1aq\1h\1e."), "['a', 'a']");             /* Python 2 begins with 1 */
	check_reads(BYTES(P2 "](U\1aq\0U\1bq\0h\0e."), "['a', 'b', 'b']"); /* set twice */
	check_refused(BYTES(P2 "h\0."), HR_BAD_FORMAT, 2, "entry 0 of the memo is used before it is set");
	check_refused(BYTES(P2 "U\1aq\1h\0."), HR_BAD_FORMAT, 7, "entry 0 of the memo is used before it is set");
	check_refused(BYTES(P2 "Nj\0\0\0\x80."), HR_BAD_FORMAT, 3, "entry 2147483648 of the memo is used");
	check_refused(BYTES(P2 "Nr\0\0\0\x80."), HR_BAD_FORMAT, 3, "entry 2147483648 of the memo follows entry 0");
	check_refused(BYTES(P2 "Nq\2."), HR_BAD_FORMAT, 3, "entry 2 of the memo follows entry 0");
}

/* ---- what is refused ---- */

static void test_opcodes_that_run_code_are_refused_by_name(void)
{
	static const struct {
		const char *opcode, *name;
	} opcodes[] = { { "c", "GLOBAL" },  { "\x93", "STACK_GLOBAL" }, { "R", "REDUCE" },       { "b", "BUILD" },   { "i", "INST" },
		            { "o", "OBJ" },     { "\x81", "NEWOBJ" },       { "\x92", "NEWOBJ_EX" }, { "\x82", "EXT1" }, { "\x83", "EXT2" },
		            { "\x84", "EXT4" }, { "P", "PERSID" },          { "Q", "BINPERSID" } };
	for (size_t i = 0; i < sizeof opcodes / sizeof *opcodes; i++) {
		char bytes[8], says[64];
		snprintf(bytes, sizeof bytes, P4 "N%s.", opcodes[i].opcode);
		snprintf(says, sizeof says, "the opcode %s would run code", opcodes[i].name);
		check_refused(bytes, 5, HR_UNSUPPORTED, 3, says);
	}
}

/* What Python makes of a class with __reduce__ that returns (os.system, (command,)), in protocols 2 and 4, and the older ways to call. */
static void test_a_pickle_that_runs_a_command_does_not(void)
{
	char path[64], bytes[512];
	snprintf(path, sizeof path, "/tmp/hr_test_pickle_%d", (int)getpid());
	static const char *const payloads[] = { P2 "cposix\nsystem\nX%c%c%c%ctouch %s\x85R.",
		                                    P4 "\x8C\5posix\x8C\6system\x93X%c%c%c%ctouch %s\x85R.",
		                                    P2 "(X%c%c%c%ctouch %siposix\nsystem\n.", P2 "(cposix\nsystem\nX%c%c%c%ctouch %so." };
	for (size_t i = 0; i < sizeof payloads / sizeof *payloads; i++) {
		uint64_t offset;
		hr__pickle *pickle;
		int size = snprintf(bytes, sizeof bytes, payloads[i], (int)strlen(path) + 6, 0, 0, 0, path);
		CHECK_STATUS(HR_UNSUPPORTED, read_in_steps(bytes, (size_t)size, 4096, &offset, &pickle));
		CHECK_CONTAINS(hr_last_message(), "would run code from this file");
		CHECK(access(path, F_OK) != 0);
	}
}

static void test_other_objects_and_protocols_are_refused(void)
{
	check_refused(BYTES(P4 "\x8F."), HR_UNSUPPORTED, 2, "EMPTY_SET is not supported");
	check_refused(BYTES(P4 "(\x91."), HR_UNSUPPORTED, 3, "FROZENSET is not supported");
	check_refused(BYTES("\x80\5\x96\0\0\0\0\0\0\0\0."), HR_UNSUPPORTED, 2, "BYTEARRAY8 is not supported");
	check_refused(BYTES("\x80\5\x97."), HR_UNSUPPORTED, 2, "NEXT_BUFFER is not supported");
	check_refused(BYTES(P2 "NN0."), HR_UNSUPPORTED, 4, "POP is not supported");
	check_refused(BYTES(P2 "I1\n."), HR_UNSUPPORTED, 2, "protocol 2 or later");
	check_refused(BYTES(P2 "(d."), HR_UNSUPPORTED, 3, "DICT of protocols 0 and 1");
	check_refused(BYTES("\x80\1N."), HR_UNSUPPORTED, 0, "protocol 1; 2 to 5 are supported");
	check_refused(BYTES("\x80\6N."), HR_UNSUPPORTED, 0, "protocol 6; 2 to 5 are supported");
	check_refused(BYTES("(lp0\n."), HR_BAD_FORMAT, 0, "begins with the byte 0x80");
	check_refused(BYTES(P2 P2 "N."), HR_BAD_FORMAT, 2, "found the byte 0x80");
	check_refused(BYTES(P2 "\xFF"), HR_BAD_FORMAT, 2, "expected an opcode, found the byte 0xFF");
	check_refused(BYTES(P2 "\0"), HR_BAD_FORMAT, 2, "expected an opcode, found the byte 0x00");
}

static void test_damaged_stacks_are_refused(void)
{
	static const char *const short_of_objects[] = { "a",    "]a",    "N(]a",   "s",         "}Ns", "(}NNs", "\x85",
		                                            "\x86", "N\x86", "NN\x87", "(NNN(\x87", "e",   "(e",    "](N(e",
		                                            "u",    "(u",    "t",      "\x94",      "q",   "(q",    "N(\x94" };
	for (size_t i = 0; i < sizeof short_of_objects / sizeof *short_of_objects; i++) {
		char bytes[32];
		uint64_t offset;
		hr__pickle *pickle;
		int size = snprintf(bytes, sizeof bytes, P4 "%s%c.", short_of_objects[i], 0);
		if (bytes[size - 3] != 'q') bytes[--size - 1] = '.'; /* only BINPUT has an argument */
		CHECK_STATUS(HR_BAD_FORMAT, read_in_steps(bytes, (size_t)size, 4096, &offset, &pickle));
		CHECK_CONTAINS(hr_last_message(), "the pickle is damaged");
	}
	check_refused(BYTES(P2 "."), HR_BAD_FORMAT, 2, "ends with 0 objects");
	check_refused(BYTES(P2 "NN."), HR_BAD_FORMAT, 4, "ends with 2 objects");
	check_refused(BYTES(P2 "(N."), HR_BAD_FORMAT, 4, "ends with");
	check_refused(BYTES(P2 "N.N"), HR_BAD_FORMAT, 4, "expected the end of the file");
	check_refused(BYTES(P2 "}Na."), HR_BAD_FORMAT, 4, "other than a list");
	check_refused(BYTES(P2 "N(Ne."), HR_BAD_FORMAT, 5, "other than a list");
	check_refused(BYTES(P2 "]NNs."), HR_BAD_FORMAT, 5, "other than a dict");
	check_refused(BYTES(P2 "}(NNNu."), HR_BAD_FORMAT, 7, "a key without a value");
}

static void test_keys_are_short_text_or_numbers(void)
{
	char bytes[300] = P2 "}T";
	uint64_t offset;
	hr__pickle *pickle;
	check_refused(BYTES(P2 "}]Ns."), HR_UNSUPPORTED, 5, "neither a text nor a whole number");
	check_refused(BYTES(P2 "}G\0\0\0\0\0\0\0\0Ns."), HR_UNSUPPORTED, 13, "neither a text nor a whole number");
	check_refused(BYTES(P2 "}(NNU\1\0Nu."), HR_TOO_MANY, 10, "NUL byte");
	for (unsigned length = HR__PICKLE_KEY_BYTES_MAX; length <= HR__PICKLE_KEY_BYTES_MAX + 1; length++) {
		memset(bytes + 4, 0, 4);
		bytes[4] = (char)length, bytes[5] = (char)(length >> 8);
		memset(bytes + 8, 'k', length);
		memcpy(bytes + 8 + length, "Ns.", 3);
		hr_status status = read_in_steps(bytes, 8 + length + 3, 4096, &offset, &pickle);
		CHECK_STATUS(length > HR__PICKLE_KEY_BYTES_MAX ? HR_TOO_MANY : HR_OK, status);
		if (!status) hr__pickle_free(pickle);
	}
}

static void test_failures_of_the_input_are_passed_on(void)
{
	struct pickle_bytes input = { .bytes = P2 "N", .size = 3, .step = 2, .fail_at_end = HR_IO };
	uint64_t offset;
	hr__pickle *pickle;
	CHECK_STATUS(HR_IO, read_input(&input, &offset, &pickle));
	CHECK_STR(hr_last_message(), "the disk is gone");
	input = (struct pickle_bytes){ .bytes = P2 "N.", .size = 4, .step = 9, .fail_at_end = HR_IO };
	CHECK_STATUS(HR_IO, read_input(&input, &offset, &pickle));
}

/* ---- limits ---- */

static void test_cycles_are_refused(void)
{
	check_refused(BYTES(P2 "]q\0h\0a."), HR_UNSUPPORTED, 7, "contains itself");
	check_refused(BYTES(P2 "]q\0(h\0e."), HR_UNSUPPORTED, 8, "contains itself");
	check_refused(BYTES(P2 "}q\0U\1kh\0s."), HR_UNSUPPORTED, 10, "contains itself");
	check_refused(BYTES(P2 "]q\0h\0\x85"
	                       "a."),
	              HR_UNSUPPORTED, 8, "contains itself");
	check_refused(BYTES(P2 "]q\0}q\1U\1ah\0sa."), HR_UNSUPPORTED, 14, "contains itself");
	check_refused(BYTES(P2 "](]q\0h\0e(h\0Na."), HR_UNSUPPORTED, 14, "modified after it was used");
}

/* An empty container inside of [depth] others. */
static char *nested(const char *open, const char *innermost, const char *close, unsigned depth, size_t *size)
{
	char *bytes = malloc(16 + (size_t)depth * (strlen(open) + strlen(close))), *at = stpcpy(bytes, P2);
	for (unsigned i = 0; i < depth; i++) at = stpcpy(at, open);
	at = stpcpy(at, innermost);
	for (unsigned i = 0; i < depth; i++) at = stpcpy(at, close);
	*size = (size_t)(stpcpy(at, ".") - bytes);
	return bytes;
}

static void check_depth(const char *open, const char *innermost, const char *close)
{
	static const unsigned depths[] = { 1, HR__PICKLE_DEPTH_MAX, HR__PICKLE_DEPTH_MAX + 1, 100000 };
	for (size_t i = 0; i < sizeof depths / sizeof *depths; i++) {
		size_t size;
		uint64_t offset;
		hr__pickle *pickle = NULL;
		char *bytes = nested(open, innermost, close, depths[i], &size);
		CHECK_STATUS(depths[i] > HR__PICKLE_DEPTH_MAX ? HR_TOO_MANY : HR_OK, read_in_steps(bytes, size, 4096, &offset, &pickle));
		hr__pickle_free(pickle);
		free(bytes);
	}
}

static void test_depth_is_limited(void)
{
	check_depth("]", "]", "a");
	check_depth("](", "}", "e");
	check_depth("}N", ")", "s");
	check_depth("", ")", "\x85");
	check_depth("(", "]", "t");
}

/* Memory that reading [bytes] takes at most, sampled once per [step] bytes. */
static uint64_t peak_of(const char *bytes, size_t size, size_t step, hr_status *status)
{
	struct pickle_bytes input = { .bytes = bytes, .size = size, .step = step };
	uint64_t offset;
	hr__pickle *pickle = NULL;
	hr_fault_os_install();
	*status = read_input(&input, &offset, &pickle);
	hr__pickle_free(pickle);
	CHECK(hr_fault_os_is_clean());
	hr_fault_os_uninstall();
	return input.peak;
}

static void test_a_wrong_length_allocates_nothing(void)
{
	static const struct {
		const char *bytes;
		size_t size;
	} lies[] = { { BYTES(P4 "X\xFF\xFF\xFF\0") },      { BYTES(P4 "\x8D\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x7F") },
		         { BYTES(P4 "\x8E\0\0\0\0\0\0\1\0") }, { BYTES(P4 "B\0\0\0\1") },
		         { BYTES(P4 "\x8B\xFF\xFF\xFF\x7F") }, { BYTES(P4 "\x95\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF") },
		         { BYTES(P4 "Nr\xFF\xFF\xFF\xFF") } };
	for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
		char bytes[64] = { 0 };
		hr_status status;
		memcpy(bytes, lies[i].bytes, lies[i].size);
		CHECK_LT(peak_of(bytes, sizeof bytes, 1, &status), 4096);
		CHECK(status != HR_OK);
	}
}

static void test_memory_is_in_proportion_to_the_file(void)
{
	enum { SIZE = 1 << 18 };
	static const char *const patterns[] = { "]",    "}",       ")",    "N",   "(",     "K\1",  "]\x94", "N\x94",
		                                    "]q\1", "U\1\xFF", "\x8C", "]]a", "](NNe", "}NNs", "N\x85", "](h\1h\1e" };
	char *bytes = malloc(SIZE);
	for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
		size_t length = strlen(patterns[i]), at = 0;
		hr_status status;
		memcpy(bytes, P4 "U\1aq\1", 7);
		for (at = 7; at + length + 1 <= SIZE; at += length) {
			memcpy(bytes + at, patterns[i], length);
			if (patterns[i][0] == '\x8C') bytes[at + 1] = 0, at++; /* an empty text */
		}
		bytes[at] = '.';
		uint64_t peak = peak_of(bytes, at + 1, 97, &status);
		CHECK_LT(peak, 8192 + 100 * (uint64_t)SIZE);
		CHECK(status != HR_OK);
	}
	free(bytes);
}

/* A list of two references to the list before, and so on: 2^60 leaves if it were expanded. */
static size_t make_doubling(char *bytes, unsigned levels)
{
	size_t at = 2;
	memcpy(bytes, P4, 2);
	memcpy(bytes + at, "]q\0", 3), at += 3;
	for (unsigned i = 1; i <= levels; i++) {
		char level[] = { ']', 'q', (char)i, '(', 'h', (char)(i - 1), 'h', (char)(i - 1), 'e' };
		memcpy(bytes + at, level, sizeof level);
		at += sizeof level;
	}
	/* The lists are on the stack one above the other: a tuple of all of them. */
	memmove(bytes + 3, bytes + 2, at - 2);
	bytes[2] = '(';
	memcpy(bytes + at + 1, "t.", 2);
	return at + 3;
}

static void test_references_are_not_expanded(void)
{
	char bytes[1024];
	hr_status status;
	CHECK_LT(peak_of(bytes, make_doubling(bytes, 60), 1, &status), 65536);
	CHECK_STATUS(HR_OK, status);
	peak_of(bytes, make_doubling(bytes, 80), 1, &status);
	CHECK_STATUS(HR_TOO_MANY, status);
}

/* ---- a snapshot of PyTorch ---- */

static void test_every_truncation_is_noticed_where_it_is(void)
{
	size_t size;
	uint64_t offset;
	hr__pickle *pickle;
	char *bytes = load("tests/data/torch_snapshot_4.pickle", &size);
	for (size_t length = 0; length < size; length++) {
		char *cut = malloc(length ? length : 1); /* so that a sanitizer sees reads past the end */
		memcpy(cut, bytes, length);
		CHECK_STATUS(HR_TRUNCATED, read_in_steps(cut, length, 4096, &offset, &pickle));
		CHECK_EQ(offset, length);
		free(cut);
	}
	free(bytes);
}

/* Reads everything that can be reached, each object once per reference from a cell. */
static uint64_t count_cells(const hr__pickle *pickle, uint32_t object, bool *seen)
{
	size_t length;
	uint64_t count = 0;
	uint32_t shared = hr__pickle_shared(pickle, object);
	CHECK_LE(shared, hr__pickle_shared_count(pickle));
	if (shared && seen[shared]) return 0;
	seen[shared] = true;
	if (hr__pickle_kind_of(pickle, object) == HR__PICKLE_TEXT) CHECK_EQ(hr__pickle_text(pickle, object, &length)[length], 0);
	if (hr__pickle_kind_of(pickle, object) < HR__PICKLE_LIST) return 0;
	for (uint32_t item = hr__pickle_first(pickle, object); item; item = hr__pickle_next(pickle, item))
		count += 1 + count_cells(pickle, hr__pickle_at(pickle, item), seen);
	return count;
}

static void check_whole(const hr__pickle *pickle, size_t size)
{
	bool *seen = calloc(hr__pickle_shared_count(pickle) + 1, sizeof *seen);
	CHECK_LE(count_cells(pickle, hr__pickle_root(pickle), seen), size);
	free(seen);
}

static void test_every_changed_byte_gives_an_object_or_an_error(void)
{
	static const unsigned char masks[] = { 0xFF, 0x01, 0x80, 0x10, 0x02, 0x04, 0x08, 0x20, 0x40 };
	size_t size, read = 0, refused = 0;
	uint64_t offset, count = hr_test_scaled(3) < sizeof masks ? hr_test_scaled(3) : sizeof masks;
	char *bytes = load("tests/data/torch_snapshot_5.pickle", &size);
	for (size_t at = 0; at < size; at++) {
		for (uint64_t i = 0; i < count; i++) {
			hr__pickle *pickle;
			bytes[at] = (char)(bytes[at] ^ masks[i]);
			if (read_in_steps(bytes, size, 4096, &offset, &pickle) == HR_OK) {
				check_whole(pickle, size);
				hr__pickle_free(pickle);
				read++;
			} else {
				CHECK(*hr_last_message() && offset <= size);
				refused++;
			}
			bytes[at] = (char)(bytes[at] ^ masks[i]);
		}
	}
	CHECK(read > 100 && refused > 100);
	free(bytes);
}

#ifdef HR_HAVE_JANSSON

/* jansson's memory comes from the same table, so that its failures are injected too. */
static void *json_alloc(size_t bytes)
{
	void *block;
	if (hr__os()->alloc(bytes + 16, &block)) return NULL;
	memcpy(block, &bytes, sizeof bytes);
	return (char *)block + 16;
}

static void json_release(void *memory)
{
	size_t bytes;
	if (!memory) return;
	memcpy(&bytes, (char *)memory - 16, sizeof bytes);
	hr__os()->free((char *)memory - 16, bytes + 16);
}

/* The pickle as a JSON value, or NULL. */
static json_t *json_from(const char *bytes, size_t size, hr_status *status)
{
	uint64_t offset;
	hr__pickle *pickle;
	hr__pickle_json json;
	json_t *value = NULL;
	*status = read_in_steps(bytes, size, 4096, &offset, &pickle);
	if (*status) return NULL;
	*status = hr__pickle_json_init(&json, pickle);
	if (!*status) {
		*status = hr__pickle_json_of(&json, hr__pickle_root(pickle), &value);
		hr__pickle_json_free(&json);
	}
	hr__pickle_free(pickle);
	return value;
}

static void test_a_snapshot_is_the_same_as_json_and_as_pickle(void)
{
	json_error_t error;
	json_t *expected = json_load_file("tests/data/torch_snapshot.json", 0, &error);
	CHECK(json_array_size(json_array_get(json_object_get(expected, "device_traces"), 0)) > 50);
	for (int protocol = 2; protocol <= 5; protocol++) {
		char path[64];
		size_t size;
		hr_status status;
		snprintf(path, sizeof path, "tests/data/torch_snapshot_%d.pickle", protocol);
		char *bytes = load(path, &size);
		CHECK_EQ(bytes[1], protocol);
		json_t *value = json_from(bytes, size, &status);
		CHECK_STATUS(HR_OK, status);
		CHECK(json_equal(expected, value));
		json_decref(value);
		free(bytes);
	}
	json_decref(expected);
}

static void check_json(const char *bytes, size_t size, const char *expected)
{
	hr_status status;
	json_t *value = json_from(bytes, size, &status);
	CHECK_STATUS(HR_OK, status);
	char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(17));
	CHECK_STR(text, expected);
	json_release(text);
	json_decref(value);
}

static void test_json_of_what_json_does_not_have(void)
{
	json_set_alloc_funcs(json_alloc, json_release);
	check_json(BYTES(P2 "}(K\1NN\x88\x89K\2\x88Nu."), "{\"1\":null,\"null\":true,\"false\":2,\"true\":null}");
	check_json(BYTES(P2 "}(\x8A\x09\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\0NJ\xFF\xFF\xFF\xFFNu."),
	           "{\"18446744073709551615\":null,\"-1\":null}");
	check_json(BYTES(P2 "\x8A\x09\0\0\0\0\0\0\0\x80\0\x85."), "[9.2233720368547758e18]");
	check_json(BYTES(P2 "G\x7F\xF8\0\0\0\0\0\0G\x7F\xF0\0\0\0\0\0\0G\x3F\xF8\0\0\0\0\0\0\x87."), "[null,null,1.5]");
	check_json(BYTES(P2 "}(U\1aK\1U\1aK\2u."), "{\"a\":2}");
	check_json(BYTES(P2 "U\3a\0b."), "\"a\\u0000b\"");
}

static void test_shared_objects_are_converted_once(void)
{
	char bytes[1024];
	hr_status status;
	size_t size = make_doubling(bytes, 60);
	json_set_alloc_funcs(json_alloc, json_release);
	hr_fault_os_install();
	hr_fault_os_fail_nth(0, false, ENOMEM);
	json_t *value = json_from(bytes, size, &status);
	CHECK_STATUS(HR_OK, status);
	CHECK_LT(hr_fault_os_calls(), 1000);
	json_decref(value);
	CHECK(hr_fault_os_is_clean());
	hr_fault_os_uninstall();
}

static void test_json_of_one_object_is_limited(void)
{
	for (uint32_t more_by = 0; more_by < 2; more_by++) {
		size_t items = HR__PICKLE_JSON_OBJECTS_MAX - 1 + more_by; /* and the list around them */
		char *bytes = malloc(items + 8);
		hr_status status;
		memcpy(bytes, P2 "](", 4);
		memset(bytes + 4, 'N', items);
		memcpy(bytes + 4 + items, "e.", 2);
		json_t *value = json_from(bytes, items + 6, &status);
		CHECK_STATUS(more_by ? HR_TOO_MANY : HR_OK, status);
		CHECK_EQ(json_array_size(value), more_by ? 0 : items);
		json_decref(value);
		free(bytes);
	}
}

static void test_every_allocation_may_fail(void)
{
	size_t size;
	char *bytes = load("tests/data/torch_snapshot_2.pickle", &size);
	uint64_t n = 1, step = HR_TEST_SANITIZED ? 7 : 1;
	json_set_alloc_funcs(json_alloc, json_release);
	hr_fault_os_install();
	for (bool done = false; !done; n += n < 100 ? 1 : step) {
		hr_status status;
		hr_fault_os_fail_nth(n, false, ENOMEM);
		json_t *value = json_from(bytes, size, &status);
		done = hr_fault_os_calls() < n;
		CHECK_STATUS(done ? HR_OK : HR_NO_HOST_MEMORY, status);
		json_decref(value);
		CHECK(hr_fault_os_is_clean());
	}
	CHECK_GT(n, 1000);
	hr_fault_os_uninstall();
	free(bytes);
}

#else

static void test_a_snapshot_is_the_same_as_json_and_as_pickle(void)
{
	hr_test_skip("built without jansson");
}
#define test_json_of_what_json_does_not_have test_a_snapshot_is_the_same_as_json_and_as_pickle
#define test_shared_objects_are_converted_once test_a_snapshot_is_the_same_as_json_and_as_pickle
#define test_json_of_one_object_is_limited test_a_snapshot_is_the_same_as_json_and_as_pickle
#define test_every_allocation_may_fail test_a_snapshot_is_the_same_as_json_and_as_pickle

#endif

TEST_MAIN(T(test_constants_and_numbers), T(test_integers_of_up_to_64_bits), T(test_text_and_bytes), T(test_text_that_is_not_utf8),
          T(test_containers), T(test_the_memo), T(test_opcodes_that_run_code_are_refused_by_name),
          T(test_a_pickle_that_runs_a_command_does_not), T(test_other_objects_and_protocols_are_refused),
          T(test_damaged_stacks_are_refused), T(test_keys_are_short_text_or_numbers), T(test_failures_of_the_input_are_passed_on),
          T(test_cycles_are_refused), T(test_depth_is_limited), T(test_a_wrong_length_allocates_nothing),
          T(test_memory_is_in_proportion_to_the_file), T(test_references_are_not_expanded),
          T(test_every_truncation_is_noticed_where_it_is), T(test_every_changed_byte_gives_an_object_or_an_error),
          T(test_a_snapshot_is_the_same_as_json_and_as_pickle), T(test_json_of_what_json_does_not_have),
          T(test_shared_objects_are_converted_once), T(test_json_of_one_object_is_limited), T(test_every_allocation_may_fail))
