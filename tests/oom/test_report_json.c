/* test_report_json.c - the JSON of a report: it matches the schema, and a report that is saved and read back is unchanged.
 *
 * This program writes the reports in fuzz/corpus/oom_report if HR_WRITE_REPORTS is in its environment. */
#include "core/base/names.h"
#include "core/base/status.h"
#include "core/base/text.h"
#include "oom.h"
#include "support_report.h"
#include "test.h"

static const struct {
	const char *name;
	sample *(*make)(void);
	bool in_corpus;
} samples[] = { { "training", report_of_training, true },
	            { "nothing", report_of_nothing, true },
	            { "names", report_of_names, true },
	            { "everything", report_of_everything, false } }; /* 2 MB: too much to fuzz with */
#define SAMPLES (sizeof samples / sizeof *samples)

static sample_text json_of(const hr__report *report)
{
	sample_text text = { 0 };
	CHECK(hr__report_json(report, sample_sink, &text));
	return text;
}

static sample_text log_of(const hr__report *report)
{
	sample_text text = { 0 };
	CHECK(hr__report_log_json(report, sample_sink, &text));
	return text;
}

static void write_file(const char *path, const sample_text *text)
{
	FILE *file = fopen(path, "wb");
	CHECK(file != NULL);
	CHECK_EQ(fwrite(text->bytes, 1, text->length, file), text->length);
	CHECK_EQ(fclose(file), 0);
}

/* ---- the schema ---- */

static void test_every_report_is_what_the_schema_says(void)
{
	char folder[] = "/tmp/headroom-oom-XXXXXX", path[128], command[512];
	CHECK(mkdtemp(folder) != NULL);
	for (size_t i = 0; i < SAMPLES; i++) {
		sample *made = samples[i].make();
		sample_text whole = json_of(&made->report), log = log_of(&made->report);
		snprintf(path, sizeof path, "%s/%s.json", folder, samples[i].name);
		write_file(path, &whole);
		snprintf(path, sizeof path, "%s/%s.log", folder, samples[i].name);
		write_file(path, &log);
		if (samples[i].in_corpus && getenv("HR_WRITE_REPORTS")) {
			snprintf(path, sizeof path, "fuzz/corpus/oom_report/%s", samples[i].name);
			write_file(path, &whole);
		}
		free(whole.bytes);
		free(log.bytes);
		free(made);
	}
	fflush(stdout);
	snprintf(command, sizeof command, "python3 tests/oom/schema.py %s/*.json && python3 tests/oom/schema.py --log %s/*.log", folder,
	         folder);
	CHECK_EQ(system(command), 0);
	snprintf(command, sizeof command, "rm -r %s", folder);
	CHECK_EQ(system(command), 0);
}

static void test_the_log_alone_is_that_of_the_report(void)
{
	for (size_t i = 0; i < SAMPLES; i++) {
		sample *made = samples[i].make();
		sample_text whole = json_of(&made->report), log = log_of(&made->report);
		CHECK_GT(whole.length, log.length + 1);
		/* The log is the last member. */
		CHECK_BYTES(whole.bytes + whole.length - 1 - log.length, log.bytes, log.length);
		free(whole.bytes);
		free(log.bytes);
		free(made);
	}
}

/* ---- values ---- */

static void test_times_are_dates(void)
{
	static const struct {
		uint64_t seconds;
		const char *says;
	} cases[] = { { 0, "1970-01-01T00:00:00.000000Z" },          { 951782399, "2000-02-28T23:59:59.000000Z" },
		          { 951782400, "2000-02-29T00:00:00.000000Z" },  { 951868800, "2000-03-01T00:00:00.000000Z" },
		          { 1735689599, "2024-12-31T23:59:59.000000Z" }, { 4107542400, "2100-03-01T00:00:00.000000Z" },
		          { 4107542399, "2100-02-28T23:59:59.000000Z" }, { 18446744073, "2554-07-21T23:34:33.000000Z" } };
	char text[HR__REPORT_TIME_BYTES];
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		CHECK_STR(hr__report_time(cases[i].seconds * 1000000000, text), cases[i].says);
	CHECK_STR(hr__report_time(1234567, text), "1970-01-01T00:00:00.001234Z");
	CHECK_STR(hr__report_time(UINT64_MAX, text), "2554-07-21T23:34:33.709551Z");
	/* Every day for 500 years, compared with the C library. */
	for (uint64_t day = 0; day < 182621; day += 1) {
		time_t seconds = (time_t)(day * 86400 + 3661);
		struct tm expected;
		char says[80];
		gmtime_r(&seconds, &expected);
		strftime(says, sizeof says, "%Y-%m-%dT%H:%M:%S.000000Z", &expected);
		CHECK_STR(hr__report_time((uint64_t)seconds * 1000000000, text), says);
	}
}

static void test_cleaned_text_stays_as_it_is(void)
{
	uint64_t state = hr_test_seed();
	for (uint64_t round = 0; round < hr_test_scaled(20000); round++) {
		char bytes[48], once[40], twice[40];
		size_t capacity = 1 + hr_rand_below(&state, sizeof once);
		for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (char)(hr_rand(&state) >> (round % 2 ? 0 : 1));
		size_t length = hr__report_clean(bytes, sizeof bytes, once, capacity);
		CHECK_LT(length, capacity);
		CHECK_EQ(strlen(once), length);
		for (size_t at = 0; at < length; at += hr__utf8_character(once + at, length - at))
			CHECK(hr__utf8_character(once + at, length - at) > 0);
		CHECK_EQ(hr__report_clean(once, sizeof once, twice, capacity), length);
		CHECK_STR(twice, once);
	}
}

static void test_addresses_are_told_only_when_they_are(void)
{
	sample *made = report_of_training();
	sample_text without = json_of(&made->report);
	CHECK(strstr(without.bytes, "\"address\"") == NULL);
	made->log[0].address = 0xABC;
	made->report.regions[0].address = UINT64_MAX;
	sample_text with = json_of(&made->report);
	CHECK_CONTAINS(with.bytes, "\"address\":\"0xabc\"");
	CHECK_CONTAINS(with.bytes, "\"address\":\"0xffffffffffffffff\"");
	free(without.bytes);
	free(with.bytes);
	free(made);
}

static void test_broken_numbers_are_written_all_the_same(void)
{
	sample *made = report_of_everything();
	hr__report *report = &made->report;
	sample_break_counts(report);
	report->verdict.kind = (hr_verdict_kind)77;
	report->stats.num_live = INT64_MIN;
	report->stats.fragmentation = 0.0 / 0.0;
	report->options.allocation_log_sampling_rate = -1e300;
	sample_text text = json_of(report);
	CHECK_CONTAINS(text.bytes, "\"kind\":\"unknown\"");
	CHECK_CONTAINS(text.bytes, "\"num_live\":0");
	CHECK_CONTAINS(text.bytes, "\"fragmentation\":0.000000");
	free(text.bytes);
	free(made);
}

static void test_a_sink_that_refuses_leaves_the_message_alone(void)
{
	sample *made = report_of_training();
	sample_text whole = json_of(&made->report);
	hr__fail(HR_OUT_OF_MEMORY, "the message about the request");
	for (size_t most = 1; most < whole.length; most += 611) {
		sample_text text = { .refuse_after = most };
		CHECK(!hr__report_json(&made->report, sample_sink, &text));
		CHECK_LE(text.length, most);
		free(text.bytes);
		text = (sample_text){ .refuse_after = 10 };
		CHECK(!hr__report_log_json(&made->report, sample_sink, &text));
		free(text.bytes);
	}
	CHECK_STR(hr_last_message(), "the message about the request");
	free(whole.bytes);
	free(made);
}

/* ---- reading back ---- */

static void needs_jansson(void)
{
#ifndef HR_HAVE_JANSSON
	hr_test_skip("built without jansson");
#endif
}

static hr__oom_saved *read_back(const sample_text *text)
{
	hr__oom_saved *saved = NULL;
	CHECK_STATUS(HR_OK, hr__oom_read_memory(text->bytes, text->length, &saved));
	return saved;
}

static void test_a_report_comes_back_as_it_was(void)
{
	needs_jansson();
	for (size_t i = 0; i < SAMPLES; i++) {
		sample *made = samples[i].make();
		sample_text first = json_of(&made->report);
		hr__oom_saved *saved = read_back(&first);
		sample_text second = json_of(&saved->report);
		if (strcmp(first.bytes, second.bytes) != 0) printf("# %s\n", samples[i].name);
		CHECK_EQ(first.length, second.length);
		CHECK_BYTES(first.bytes, second.bytes, first.length);
		hr__oom_free(saved);
		free(first.bytes);
		free(second.bytes);
		free(made);
	}
}

static void test_what_comes_back_is_drawn_the_same(void)
{
	needs_jansson();
	sample *made = report_of_training();
	sample_text json = json_of(&made->report), before = { 0 }, after = { 0 };
	hr__oom_saved *saved = read_back(&json);
	CHECK(hr__report_text(&made->report, sample_sink, &before));
	CHECK(hr__report_text(&saved->report, sample_sink, &after));
	CHECK_STR(after.bytes, before.bytes);
	CHECK_EQ(saved->report.log_count, made->report.log_count);
	for (uint32_t i = 0; i < made->report.log_count; i++)
		CHECK_BYTES(&saved->log[i], &made->log[i], offsetof(hr__log_entry, action) + 1);
	CHECK_BYTES(&saved->report.stats, &made->report.stats, offsetof(hr_stats, fragmentation));
	hr__oom_free(saved);
	free(json.bytes);
	free(before.bytes);
	free(after.bytes);
	free(made);
}

/* Reads [bytes], which are not a valid report, and checks the error. */
static void check_refused(hr_status expected, const char *bytes, size_t length, const char *says)
{
	hr__oom_saved *untouched = (hr__oom_saved *)&untouched, *saved = untouched;
	CHECK_STATUS(expected, hr__oom_read_memory(bytes, length, &saved));
	CHECK(saved == untouched);
	CHECK_CONTAINS(hr_last_message(), says);
	for (const char *at = hr_last_message(); *at; at++) CHECK((unsigned char)*at >= 0x20 && *at != 0x7F);
}

static void test_a_report_that_was_cut_is_refused_wherever(void)
{
	needs_jansson();
	uint64_t state = hr_test_seed();
	for (size_t i = 0; i < 3; i++) {
		sample *made = samples[i].make();
		sample_text whole = json_of(&made->report);
		for (size_t length = 1; length < whole.length;
		     length += 1 + (size_t)((double)hr_rand_below(&state, 60) / hr_test_scale())) {
			char *cut = malloc(length); /* exact size, so that a sanitizer detects reads past the end */
			memcpy(cut, whole.bytes, length);
			check_refused(HR_TRUNCATED, cut, length, "ends in the middle");
			free(cut);
		}
		free(whole.bytes);
		free(made);
	}
}

/* The training report with the first occurrence of [from] replaced by [to]. */
static void check_change(hr_status expected, const char *from, const char *to, const char *says)
{
	sample *made = report_of_training();
	sample_text whole = json_of(&made->report), changed = { 0 };
	const char *at = strstr(whole.bytes, from);
	CHECK(at != NULL);
	sample_sink(&changed, whole.bytes, (size_t)(at - whole.bytes));
	sample_sink(&changed, to, strlen(to));
	sample_sink(&changed, at + strlen(from), strlen(at + strlen(from)));
	if (expected) {
		check_refused(expected, changed.bytes, changed.length, says);
	} else {
		hr__oom_saved *saved = read_back(&changed);
		sample_text text = { 0 };
		CHECK(hr__report_text(&saved->report, sample_sink, &text));
		CHECK_CONTAINS(text.bytes, says);
		free(text.bytes);
		hr__oom_free(saved);
	}
	free(whole.bytes);
	free(changed.bytes);
	free(made);
}

static void test_mistakes_are_named(void)
{
	needs_jansson();
	check_change(HR_TOO_NEW, "\"version\":1", "\"version\":2", "version 2");
	check_change(HR_BAD_FORMAT, "\"version\":1", "\"version\":0", "version");
	check_change(HR_BAD_FORMAT, "\"version\":1", "\"version\":\"1\"", "version: expected a whole number");
	check_change(HR_BAD_FORMAT, "headroom-oom-report", "headroom-picture", "no out-of-memory report");
	check_change(HR_BAD_FORMAT, "\"process\":4711", "\"process\":-1", "process: expected a whole number");
	check_change(HR_BAD_FORMAT, "\"process\":4711", "\"process\":1e3", "process: expected a whole number");
	check_change(HR_BAD_FORMAT, "\"process\":4711", "\"process\":99999999999999999999", "not JSON");
	check_change(HR_BAD_FORMAT, "\"process\":4711,", "", "process: is missing");
	check_change(HR_BAD_FORMAT, "\"process\":4711", "\"process\":1,\"process\":2", "process: is there twice");
	check_change(HR_BAD_FORMAT, "\"alignment\":0", "\"alignment\":0,\"alignment\":1", "not JSON");
	check_change(HR_BAD_FORMAT, "\"alignment\":0,", "", "request.alignment: is missing");
	check_change(HR_BAD_FORMAT, "\"op_name\":\"logits/MatMul\"", "\"op_name\":7", "request.op_name: expected a text");
	check_change(HR_BAD_FORMAT, "\"op_name\":\"logits/MatMul\"", "\"op_name\":\"a\\u0000b\"", "not JSON");
	check_change(HR_BAD_FORMAT, "\"op_name\":\"logits/MatMul\"", "\"op_name\":\"\xFF\"", "not JSON");
	check_change(HR_BAD_FORMAT, "[8,1024,50257]", "[8,-1]", "request.shape");
	check_change(HR_BAD_FORMAT, "[8,1024,50257]", "[1,1,1,1,1,1,1,1,1]", "request.shape");
	check_change(HR_BAD_FORMAT, "fits_after_stitch", "fits_\033[1mnever", "not JSON");
	check_change(HR_BAD_FORMAT, "fits_after_stitch", "fits_\\u001b[1mnever", "verdict.kind: \"fits_\\x1B[1mnever\"");
	check_change(HR_BAD_FORMAT, "\"stitch\":false", "\"stitch\":0", "allocator.stitch: expected true or false");
	check_change(HR_BAD_FORMAT, "\"callback\":false", "\"callback\":null", "allocator.oom.callback");
	check_change(HR_BAD_FORMAT, "\"request\":{", "\"request\":[],\"x\":{", "request: expected an object");
	check_change(HR_BAD_FORMAT, "\"least\":256", "\"least\":257", "sizes[0].least");
	check_change(HR_BAD_FORMAT, "\"least\":256", "\"least\":0", "sizes[0].least");
	check_change(HR_BAD_FORMAT, "\"least\":256", "\"least\":562949953421312", "sizes[0].least");
	check_change(HR_BAD_FORMAT, "\"runs\":[{\"kind\":\"in_use\"", "\"runs\":[{\"kind\":\"used\"", "regions[0].kind: \"used\"");
	check_change(HR_BAD_FORMAT, "\"runs\":[{", "\"runs\":[7,{", "regions[0].runs: expected a list of objects");
	check_change(HR_BAD_FORMAT, "\"sizes\":[{", "\"sizes\":[{},{", "sizes[0].least: is missing");
	check_change(HR_BAD_FORMAT, "\"action\":\"alloc\"", "\"action\":\"failed\"",
	             "log[1]: expected nothing behind the failing request");
	check_change(HR_BAD_FORMAT, "\"log\":[{", "\"log\":[1,{", "log[0]: expected an object");
	check_change(HR_BAD_FORMAT, "\"log\":[{", "\"log\":[{\"address\":\"7\",", "log[0].address");
	check_change(HR_BAD_FORMAT, "\"log\":[{", "\"log\":[{\"address\":\"0x\",", "log[0].address");
	check_change(HR_BAD_FORMAT, "\"log\":[{", "\"log\":[{\"address\":\"0x12345678123456781\",", "log[0].address");
	check_change(HR_BAD_FORMAT, "\"log\":[{", "\"log\":{\"x\":{", "expected a list");
	check_change(HR_BAD_FORMAT, "},{\"action\"", "};{\"action\"", "expected ',' or ']', found \";\"");
	check_refused(HR_BAD_FORMAT, "", 0, "it is empty");
	check_refused(HR_BAD_FORMAT, " \n", 2, "it is empty");
	check_refused(HR_BAD_FORMAT, "[]", 2, "log of a report alone");
	check_refused(HR_BAD_FORMAT, "hello", 5, "byte 0: expected an out-of-memory report");
	check_refused(HR_BAD_FORMAT, "\0\0", 2, "expected an out-of-memory report");
	check_refused(HR_BAD_FORMAT, "{}", 2, "no out-of-memory report");
	check_refused(HR_BAD_FORMAT, "{\"a\":x}", 7, "byte 5: not JSON");
	check_refused(HR_BAD_FORMAT, "{} {}", 5, "expected the end of the file");
	check_refused(HR_BAD_FORMAT, "{1:2}", 5, "expected a key in double quotes");
	check_refused(HR_BAD_FORMAT, "{\"device_traces\":[]}", 20, "no out-of-memory report");
	check_refused(HR_BAD_FORMAT, "{\"format\":\"headroom-oom-report\",\"version\":1}", 44, "id: is missing");
	check_refused(HR_BAD_FORMAT, "\x1F\x8B\x08", 3, "gunzip");
}

static void test_what_may_change_does_not_matter(void)
{
	needs_jansson();
	check_change(HR_OK, "{\"format\"", "\xEF\xBB\xBF {\n\"later\":{\"a\":[1,2.5,null]},\"format\"", "Out of memory");
	check_change(HR_OK, "\"num_allocs\":", "\"num_something_else\":1,\"num_allocs_once\":", "Out of memory");
	check_change(HR_OK, "\"dtype\":\"float32\"", "\"dtype\":\"float4\"", "([8,1024,50257])");
	check_change(HR_OK, "\"process\":4711", "\"process\":5000000000", "process 4294967295");
	/* A newer version is refused as such, before its errors are found. */
	check_change(HR_TOO_NEW, "\"format\":\"headroom-oom-report\",\"version\":1,\"id\":1",
	             "\"id\":{},\"version\":3,\"format\":\"headroom-oom-report\"", "version 3");
}

static void test_lists_longer_than_the_struct_are_refused(void)
{
	needs_jansson();
	sample *made = report_of_everything();
	sample_text whole = json_of(&made->report);
	static const struct {
		const char *before, *entry, *says;
	} cases[] = {
		{ "\"top\":[", "{\"name\":\"\",\"bytes\":1,\"blocks\":1},", "holders.op.top: 17 entries, at most 16" },
		{ "\"largest\":[", "{},", "largest: 17 entries, at most 16" },
		{ "\"sizes\":[", "{},", "sizes: 50 entries, at most 49" },
		{ "\"regions\":[", "{},", "regions: 65 entries, at most 64" },
		{ "\"runs\":[", "{\"kind\":\"free\",\"bytes\":1,\"in_use_bytes\":0,\"chunks\":1},",
		  "regions[63].runs: 32 entries, at most 31" },
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		sample_text changed = { 0 };
		const char *at = strstr(whole.bytes, cases[i].before) + strlen(cases[i].before);
		sample_sink(&changed, whole.bytes, (size_t)(at - whole.bytes));
		sample_sink(&changed, cases[i].entry, strlen(cases[i].entry));
		sample_sink(&changed, at, strlen(at));
		check_refused(HR_BAD_FORMAT, changed.bytes, changed.length, cases[i].says);
		free(changed.bytes);
	}
	free(whole.bytes);
	free(made);
}

static void test_values_without_end_are_refused(void)
{
	needs_jansson();
	static const char *const begins[] = { "{\"x\":\"", "{\"log\":[{\"a\":\"", "{\"" };
	const size_t size = 6u << 20;
	char *text = malloc(size);
	memset(text, 'x', size);
	for (size_t i = 0; i < 3; i++) {
		memset(text, 'x', 64);
		memcpy(text, begins[i], strlen(begins[i]));
		check_refused(HR_BAD_FORMAT, text, size, "longer than");
	}
	memset(text, '[', size);
	memcpy(text, "{\"x\":", 5);
	check_refused(HR_BAD_FORMAT, text, size, "not JSON");
	free(text);
}

TEST_MAIN(T_WITHIN(test_every_report_is_what_the_schema_says, 300), T(test_the_log_alone_is_that_of_the_report), T(test_times_are_dates),
          T(test_cleaned_text_stays_as_it_is), T(test_addresses_are_told_only_when_they_are),
          T(test_broken_numbers_are_written_all_the_same), T(test_a_sink_that_refuses_leaves_the_message_alone),
          T(test_a_report_comes_back_as_it_was), T(test_what_comes_back_is_drawn_the_same),
          T(test_a_report_that_was_cut_is_refused_wherever), T(test_mistakes_are_named), T(test_what_may_change_does_not_matter),
          T(test_lists_longer_than_the_struct_are_refused), T(test_values_without_end_are_refused))
