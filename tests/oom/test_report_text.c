/* test_report_text.c - the text of a report: contents and order, and that no report can produce control characters. */
#include "core/base/text/text.h"
#include "support_report.h"
#include "test.h"

static sample_text text_of(const hr__report *report)
{
	sample_text text = { 0 };
	CHECK(hr__report_text(report, sample_sink, &text));
	return text;
}

/* Calls [check] with each line, without its newline. */
static void each_line(char *text, void (*check)(char *line, void *context), void *context)
{
	for (char *next; *text; text = next) {
		next = strchr(text, '\n');
		CHECK(next != NULL);
		*next++ = 0;
		check(text, context);
	}
}

static size_t columns(const char *line)
{
	size_t count = 0;
	for (; *line; line++) count += ((unsigned char)*line & 0xC0) != 0x80;
	return count;
}

static void check_width(char *line, void *context)
{
	if (columns(line) > *(size_t *)context) printf("# %s\n", line);
	CHECK_LE(columns(line), *(size_t *)context);
}

/* A copy of the first line at or after [from] that contains [part]. */
static char *line_with(const char *from, const char *part)
{
	const char *found = strstr(from, part);
	if (!found) return NULL;
	const char *begin = found, *end = strchr(found, '\n');
	while (begin > from && begin[-1] != '\n') begin--;
	return strndup(begin, end ? (size_t)(end - begin) : strlen(begin));
}

/* ---- contents ---- */

static void test_text_answers_in_the_order_of_the_questions(void)
{
	static const char *const parts[] = {
		"Out of memory: op \"logits/MatMul\" in scope \"decoder/head\"",
		"asked for 1.5 GiB",
		"[8,1024,50257]",
		"GPU:0",
		"786 free pages",
		"What to do: switch on \"stitch\"",
		"What is full: the allocator's limit, 14.0 GiB (limit_bytes of hr_allocator_options)",
		"2025-01-30T09:12:44.031337Z, process 4711",
		"limit ",
		"in use ",
		"cached ",
		"free ",
		"largest free block",
		"fragmentation",
		"other use",
		"Held by op",
		"Softmax",
		"Held by scope",
		"decoder/embed",
		"Held by tag",
		"activations",
		"Largest blocks",
		"[50257,1024]",
		"Sizes of live blocks",
		"####",
		"Regions",
		"|###",
		"Operations before it: the last 20 of 42,806 logged",
		"the JSON has 100",
		"before  alloc",
		"now  FAILED",
	};
	sample *made = report_of_training();
	sample_text text = text_of(&made->report);
	const char *at = text.bytes;
	for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
		CHECK_CONTAINS(at, parts[i]);
		at = strstr(at, parts[i]) + 1;
	}
	free(text.bytes);
	free(made);
}

static void test_lines_fit_the_width(void)
{
	sample *(*const makers[])(void) = { report_of_training, report_of_nothing, report_of_names };
	size_t width = 100;
	for (size_t i = 0; i < 3; i++) {
		sample *made = makers[i]();
		sample_text text = text_of(&made->report);
		each_line(text.bytes, check_width, &width);
		free(text.bytes);
		free(made);
	}
}

static void test_every_tier_names_its_setting(void)
{
	static const char *const says[] = { "not in one piece", "limit_bytes", "hr_device_set_logical", "the device itself" };
	sample *made = report_of_training();
	for (unsigned tier = HR_TIER_NONE; tier <= HR_TIER_PHYSICAL; tier++) {
		made->report.verdict.tier = (hr_tier)tier;
		sample_text text = text_of(&made->report);
		char *line = line_with(text.bytes, "What is full");
		CHECK_CONTAINS(line, says[tier]);
		free(line);
		free(text.bytes);
	}
	free(made);
}

static void test_every_verdict_has_a_sentence(void)
{
	sample *made = report_of_nothing();
	for (unsigned kind = 0; kind <= HR_VERDICT_KINDS; kind++) {
		made->report.verdict.kind = (hr_verdict_kind)kind;
		sample_text text = text_of(&made->report);
		CHECK_CONTAINS(text.bytes, ".\nWhat to do: request less, or free memory");
		free(text.bytes);
	}
	free(made);
}

static void test_holders_without_names_have_no_table(void)
{
	sample *made = report_of_nothing();
	hr__report *report = &made->report;
	report->stats.bytes_in_use = 4096;
	report->holders[HR_BY_OP] = (hr__report_holders){ .top = { { HR_NAME_NONE, 2, 4096 } }, .count = 1, .names = 1 };
	report->holders[HR_BY_SCOPE] = (hr__report_holders){ .top = { { HR_NAME_NONE, 1, 3072 }, { hr_name_intern("s"), 1, 1024 } },
		                                                 .count = 2,
		                                                 .names = 2 };
	report->holders[HR_BY_TAG] = (hr__report_holders){ .top = { { hr_name_intern("t"), 1, 1024 } }, .count = 1, .names = 1 };
	sample_text text = text_of(report);
	CHECK(strstr(text.bytes, "Held by op") == NULL);
	CHECK_CONTAINS(text.bytes,
	               "Held by scope\n     3.0 KiB  75.0%         1 block   (none)\n     1.0 KiB  25.0%         1 block   s\n");
	CHECK_CONTAINS(text.bytes, "Held by tag\n     1.0 KiB  25.0%         1 block   t\n");
	free(text.bytes);
	free(made);
}

static void test_names_beyond_the_table_are_explained(void)
{
	sample *made = report_of_nothing();
	hr__report *report = &made->report;
	report->stats.bytes_in_use = 4096;
	report->holders[HR_BY_OP] = (hr__report_holders){ .top = { { HR_NAME_OTHER, 2, 4096 } }, .count = 1, .names = 1 };
	report->holders[HR_BY_TAG] = (hr__report_holders){ .top = { { hr_name_intern("t"), 1, 1024 } }, .count = 1, .names = 1 };
	sample_text text = text_of(report);
	CHECK_CONTAINS(text.bytes, "Held by op, (other) where there were more names than are kept apart\n     4.0 KiB 100.0%         2 blocks  (other)\n");
	CHECK_CONTAINS(text.bytes, "Held by tag\n");
	free(text.bytes);
	free(made);
}

static void test_holders_that_are_not_shown_are_summed(void)
{
	sample *made = report_of_nothing();
	hr__report_holders *holders = &made->report.holders[HR_BY_OP];
	made->report.stats.bytes_in_use = 16 * 1024 + 4096;
	holders->count = HR__REPORT_TOP;
	holders->names = HR__REPORT_TOP + 3;
	holders->rest_bytes = 4096;
	holders->rest_blocks = 7;
	for (uint32_t i = 0; i < HR__REPORT_TOP; i++)
		holders->top[i] = (hr_holder){ .name = hr_name_intern("op"), .count = 2, .bytes = 1024 };
	sample_text text = text_of(&made->report);
	CHECK_CONTAINS(text.bytes, "\n    10.0 KiB  50.0%        19 blocks  in 9 others\n");
	free(text.bytes);
	free(made);
}

/* ---- the map ---- */

/* Draws a region of [count] runs: a map of 96 cells. [expected] is the characters and how often each is repeated, such as "#48.48". */
static void check_map(const hr__run *runs, uint32_t count, const char *expected)
{
	sample *made = report_of_nothing();
	made->report.region_count = 1;
	made->report.run_count = count;
	made->report.regions[0] = (hr__report_region){ .reserved = 9600, .run_count = count };
	memcpy(made->report.runs, runs, count * sizeof *runs);
	sample_text text = text_of(&made->report);
	char *line = line_with(strstr(text.bytes, "\n |") + 1, "|"), map[120] = " |", *to = map + 2;
	while (*expected) {
		char cell = *expected++;
		for (long times = strtol(expected, (char **)&expected, 10); times > 0; times--) *to++ = cell;
	}
	*to = '|';
	CHECK_STR(line, map);
	free(line);
	free(text.bytes);
	free(made);
}

#define RUN(kind_name, byte_count)                                      \
	{                                                                   \
		.bytes = (byte_count), .kind = HR__RUN_##kind_name, .chunks = 1 \
	}

static void test_a_cell_shows_what_dominates_it(void)
{
	const hr__run kinds[] = { RUN(IN_USE, 2400), RUN(FREE, 2400), RUN(CACHED, 2400), RUN(UNMAPPED, 1400), RUN(MIXED, 1000) };
	check_map(kinds, 5, "#24.24c24 14+10");
	/* A hole smaller than half of its cell is not shown; one of half a cell is. */
	const hr__run holes[] = { RUN(IN_USE, 1010), RUN(FREE, 49), RUN(IN_USE, 1051), RUN(FREE, 80), RUN(IN_USE, 7410) };
	check_map(holes, 5, "#21.1#74");
	/* A third of each kind: none dominates. */
	const hr__run thirds[] = { RUN(IN_USE, 1800), RUN(IN_USE, 33), RUN(FREE, 33), RUN(CACHED, 34), RUN(IN_USE, 7700) };
	check_map(thirds, 5, "#18+1#77");
}

static void test_a_region_smaller_than_its_map(void)
{
	const hr__run runs[] = { RUN(IN_USE, 1), RUN(FREE, 1), RUN(CACHED, 1) };
	check_map(runs, 3, "#32.32c32");
	const hr__run one[] = { RUN(CACHED, 1) };
	check_map(one, 1, "c96");
}

static void test_runs_that_overflow_are_drawn(void)
{
	const hr__run runs[] = { RUN(IN_USE, UINT64_MAX), RUN(FREE, UINT64_MAX), { .bytes = 1, .kind = 200 } };
	check_map(runs, 3, "#96");
}

static void test_regions_come_largest_first_and_not_too_many(void)
{
	sample *made = report_of_nothing();
	hr__report *report = &made->report;
	report->region_count = 20;
	report->regions_left_out = 5;
	for (uint32_t i = 0; i < 20; i++) {
		report->runs[report->run_count++] = (hr__run){ .bytes = 4096, .kind = HR__RUN_FREE, .chunks = 1 };
		report->regions[i] = (hr__report_region){ .reserved = i == 3 ? 0 : i == 7 ? 9000 : 4096, .first_run = i, .run_count = 1 };
	}
	sample_text text = text_of(report);
	CHECK_CONTAINS(text.bytes, "mapped\n  region 8, large");
	CHECK_CONTAINS(strstr(text.bytes, "region 8"), "region 1,");
	CHECK_CONTAINS(strstr(text.bytes, "region 1,"), "region 2,");
	CHECK(strstr(text.bytes, "region 4,") == NULL);
	CHECK_CONTAINS(text.bytes, "and 8 smaller or later ones");
	free(text.bytes);
	free(made);
}

/* ---- the log ---- */

static void test_times_are_relative_to_the_failure(void)
{
	static const struct {
		uint64_t ns;
		const char *says;
	} cases[] = { { 0, " 0 ns before  alloc" },
		          { 999, " 999 ns before" },
		          { 1000, " 1.0 us before" },
		          { 3210000, " 3.2 ms before" },
		          { 59999999999, " 59.9 s before" },
		          { UINT64_C(90000000000), " 1.5 min before" },
		          { UINT64_C(86400000000000), " 24.0 h before" } };
	sample *made = report_of_nothing();
	made->report.time_ns = UINT64_C(1700000000000000000);
	made->report.log_count = 1;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		made->log[0] = (hr__log_entry){ .time_ns = made->report.time_ns - cases[i].ns, .action = HR__LOG_ALLOC };
		sample_text text = text_of(&made->report);
		CHECK_CONTAINS(text.bytes, cases[i].says);
		free(text.bytes);
	}
	made->log[0] = (hr__log_entry){ .time_ns = made->report.time_ns + 2500, .action = HR__LOG_FREE };
	sample_text text = text_of(&made->report);
	CHECK_CONTAINS(text.bytes, " 2.5 us after  free");
	free(text.bytes);
	free(made);
}

static void test_the_log_ends_with_the_failing_request(void)
{
	sample *made = report_of_training();
	made->report.options.allocation_log_sampling_rate = 0.1;
	sample_text text = text_of(&made->report);
	const char *log = strstr(text.bytes, "Operations before it");
	CHECK_CONTAINS(log, "10% are sampled");
	size_t lines = 0;
	for (const char *at = log; *at; at++) lines += *at == '\n';
	CHECK_EQ(lines, 1 + 20 + 1);
	const char *last = text.bytes + text.length - 1;
	while (last[-1] != '\n') last--;
	CHECK_CONTAINS(last, "now  FAILED    1.5 GiB  float32 [8,1024,50257]    t1  logits/MatMul in decoder/head\n");
	free(text.bytes);
	free(made);
}

/* ---- text from programs ---- */

static void check_harmless(const char *text, size_t length)
{
	for (size_t at = 0; at < length;) {
		size_t bytes = hr__utf8_character(text + at, length - at);
		unsigned char first = (unsigned char)text[at];
		CHECK(bytes > 0);
		CHECK(first >= 0x20 || first == '\n');
		CHECK(first != 0x7F && !(first == 0xC2 && (unsigned char)text[at + 1] < 0xA0));
		at += bytes;
	}
	CHECK(strstr(text, "\xE2\x80\xAE") == NULL && strstr(text, "\xE2\x80\xA8") == NULL && strstr(text, "\xEF\xBB\xBF") == NULL);
}

static void test_names_cannot_do_anything(void)
{
	sample *made = report_of_names();
	sample_text text = text_of(&made->report);
	check_harmless(text.bytes, text.length);
	CHECK_CONTAINS(text.bytes, "\\x1B[31mred\\x1B[0m");
	CHECK_CONTAINS(text.bytes, "two\\x0Alines\\x0D\\x09and a tab");
	CHECK_CONTAINS(text.bytes, "\\xFF\\xFE not UTF-8 \\xC3");
	CHECK_CONTAINS(text.bytes, "\xE2\x82\xAC \xC3\xA9 \xF0\x9F\x98\x80");
	CHECK_CONTAINS(text.bytes, "%s%n");
	CHECK_CONTAINS(text.bytes, "xxx...xxx");
	CHECK_CONTAINS(text.bytes, "a verdict \\x1B[2J that"); /* and a new line */
	free(text.bytes);
	free(made);
}

static void test_arbitrary_bytes_are_handled(void)
{
	uint64_t state = hr_test_seed();
	sample *made = report_of_training();
	hr__report *report = &made->report;
	for (uint64_t round = 0; round < hr_test_scaled(300); round++) {
		char name[64];
		for (size_t i = 0; i < sizeof name - 1; i++) name[i] = (char)(hr_rand(&state) | 1);
		name[hr_rand_below(&state, sizeof name)] = 0;
		name[sizeof name - 1] = 0;
		report->op = report->largest[0].op = report->holders[0].top[0].name = hr_name_intern(name);
		for (size_t i = 0; i < sizeof report->verdict.advice; i++) report->verdict.advice[i] = (char)hr_rand(&state);
		for (size_t i = 0; i < sizeof report->card; i++) report->card[i] = (char)hr_rand(&state);
		sample_text text = text_of(report);
		check_harmless(text.bytes, text.length);
		free(text.bytes);
	}
	free(made);
}

/* ---- extremes ---- */

static void test_nothing_and_everything_are_text(void)
{
	sample *nothing = report_of_nothing(), *everything = report_of_everything();
	sample_text empty = text_of(&nothing->report), full = text_of(&everything->report);
	CHECK_CONTAINS(empty.bytes, "none were logged");
	CHECK(strstr(empty.bytes, "Held by") == NULL && strstr(empty.bytes, "Regions") == NULL);
	check_harmless(full.bytes, full.length);
	CHECK_LT(full.length, 200000);
	free(empty.bytes);
	free(full.bytes);
	free(nothing);
	free(everything);
}

static void test_counts_beyond_the_arrays_are_refused(void)
{
	sample *made = report_of_everything();
	hr__report *report = &made->report;
	sample_break_counts(report);
	for (uint32_t i = 0; i < REPORT_LOG_MOST; i++) made->log[i].action = 255;
	sample_text text = text_of(report);
	CHECK_GT(text.length, 1000);
	free(text.bytes);
	free(made);
}

static void test_a_sink_that_fails_is_reported(void)
{
	sample *made = report_of_training();
	sample_text whole = text_of(&made->report);
	for (size_t most = 1; most < whole.length; most += 97) {
		sample_text text = { .refuse_after = most };
		CHECK(!hr__report_text(&made->report, sample_sink, &text));
		CHECK_LE(text.length, most);
		if (text.length) CHECK_BYTES(text.bytes, whole.bytes, text.length);
		free(text.bytes);
	}
	free(whole.bytes);
	free(made);
}

TEST_MAIN(T(test_text_answers_in_the_order_of_the_questions), T(test_lines_fit_the_width), T(test_every_tier_names_its_setting),
          T(test_every_verdict_has_a_sentence), T(test_holders_without_names_have_no_table),
          T(test_names_beyond_the_table_are_explained), T(test_holders_that_are_not_shown_are_summed), T(test_a_cell_shows_what_dominates_it),
          T(test_a_region_smaller_than_its_map), T(test_runs_that_overflow_are_drawn),
          T(test_regions_come_largest_first_and_not_too_many), T(test_times_are_relative_to_the_failure),
          T(test_the_log_ends_with_the_failing_request), T(test_names_cannot_do_anything), T(test_arbitrary_bytes_are_handled),
          T(test_nothing_and_everything_are_text), T(test_counts_beyond_the_arrays_are_refused),
          T(test_a_sink_that_fails_is_reported))
