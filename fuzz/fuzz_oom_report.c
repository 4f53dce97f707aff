/* fuzz_oom_report.c - saved out-of-memory reports from arbitrary bytes.
 *
 * Reading gives a message that can be printed on a terminal, or a report that can be drawn at any width, whose text is safe to
 * print, and that is unchanged when saved and read again. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/names.h"
#include "core/base/text.h"
#include "core/memory/oom/report_write.h"
#include "oom.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MUST(condition) ((condition) ? (void)0 : (fprintf(stderr, "%s does not hold\n", #condition), abort()))

static void check_message(void)
{
	const char *message = hr_last_message();
	MUST(*message);
	for (; *message; message++) MUST((unsigned char)*message >= 0x20 && *message != 0x7F);
}

struct text {
	char *bytes;
	size_t length, capacity;
};

static bool keep(void *context, const char *bytes, size_t length)
{
	struct text *text = context;
	if (text->length + length > text->capacity) {
		text->capacity = 2 * (text->length + length);
		text->bytes = realloc(text->bytes, text->capacity);
		MUST(text->bytes);
	}
	memcpy(text->bytes + text->length, bytes, length);
	text->length += length;
	return true;
}

static void check_counts(const hr__report *report)
{
	MUST(report->largest_count <= HR__REPORT_TOP && report->region_count <= HR__REPORT_REGIONS &&
	     report->run_count <= HR__REPORT_RUNS);
	for (unsigned i = 0; i < 3; i++) MUST(report->holders[i].count <= HR__REPORT_TOP);
	for (uint32_t i = 0; i < report->region_count; i++)
		MUST(report->regions[i].first_run + report->regions[i].run_count <= report->run_count);
}

static void check_text(const hr__report *report, uint32_t width)
{
	struct text text = { 0 };
	MUST(hr__report_draw(report, &(hr__report_look){ .width = width }, keep, &text));
	for (size_t at = 0; at < text.length;) {
		size_t bytes = hr__utf8_character(text.bytes + at, text.length - at);
		MUST(bytes > 0 && ((unsigned char)text.bytes[at] >= 0x20 || text.bytes[at] == '\n') && text.bytes[at] != 0x7F);
		at += bytes;
	}
	free(text.bytes);
}

static void check_again(const hr__report *report)
{
	struct text first = { 0 }, second = { 0 };
	hr__oom_saved *again;
	MUST(hr__report_json(report, keep, &first));
	MUST(hr__oom_read_memory(first.bytes, first.length, &again) == HR_OK);
	MUST(hr__report_json(&again->report, keep, &second));
	MUST(first.length == second.length && memcmp(first.bytes, second.bytes, first.length) == 0);
	hr__oom_free(again);
	free(first.bytes);
	free(second.bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	hr__oom_saved *saved;
	/* Names are never removed. When the table is full they become "(other)", and reports no longer compare equal. */
	if (hr__names_count() > HR__NAMES_MAX / 8 || hr__shapes_count() > HR__SHAPES_MAX / 8) hr__names_reset_for_test();
	if (hr__oom_read_memory(data, size, &saved) != HR_OK) {
		check_message();
		return 0;
	}
	check_counts(&saved->report);
	check_text(&saved->report, (uint32_t)(size % 300));
	check_again(&saved->report);
	hr__oom_free(saved);
	return 0;
}
