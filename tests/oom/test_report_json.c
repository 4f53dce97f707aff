/* test_report_json.c - the JSON of a report: it matches the schema, and contains the text.
 *
 * This program writes the reports in tests/oom/reports if HR_WRITE_REPORTS is in its environment. */
#include "core/base/names.h"
#include "core/base/status.h"
#include "core/base/text/text.h"
#include "support_report.h"
#include "test.h"

static const struct {
	const char *name;
	sample *(*make)(void);
	bool in_reports;
} samples[] = { { "training", report_of_training, true },
	            { "nothing", report_of_nothing, true },
	            { "names", report_of_names, true },
	            { "everything", report_of_everything, false } }; /* 2 MB: too much to keep */
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
		if (samples[i].in_reports && getenv("HR_WRITE_REPORTS")) {
			snprintf(path, sizeof path, "tests/oom/reports/%s.json", samples[i].name);
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

static void test_the_separate_log_equals_that_of_the_report(void)
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

static void test_the_map_has_addresses_only_if_the_option_allows_it(void)
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

static void test_a_sink_that_fails_keeps_the_message(void)
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

/* ---- the text ---- */

/* Undoes the escapes that text without control characters has. */
static void unescape(char *text)
{
	char *to = text;
	for (; *text && *text != '"'; text++) {
		if (*text == '\\') text++;
		*to++ = *text == 'n' && text[-1] == '\\' ? '\n' : *text;
	}
	*to = 0;
}

static void test_the_text_is_in_the_json(void)
{
	for (size_t i = 0; i < SAMPLES; i++) {
		sample *made = samples[i].make();
		sample_text json = json_of(&made->report), text = { 0 };
		CHECK(hr__report_text(&made->report, sample_sink, &text));
		char *found = strstr(json.bytes, "],\"regions_left_out\":");
		CHECK(found != NULL);
		found = strstr(found, ",\"text\":\"");
		CHECK(found != NULL);
		found += strlen(",\"text\":\"");
		unescape(found);
		CHECK_STR(found, text.bytes);
		free(json.bytes);
		free(text.bytes);
		free(made);
	}
}

TEST_MAIN(T_WITHIN(test_every_report_is_what_the_schema_says, 300), T(test_the_separate_log_equals_that_of_the_report), T(test_times_are_dates),
          T(test_the_map_has_addresses_only_if_the_option_allows_it),
          T(test_broken_numbers_are_written_all_the_same), T(test_a_sink_that_fails_keeps_the_message),
          T(test_the_text_is_in_the_json))
