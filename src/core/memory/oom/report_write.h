/* report_write.h - shared by the two writers of a report and by `headroom oom`, which reads saved reports back and draws them. All
 * other code needs only report.h.
 *
 * Names in a report come from programs, and a saved report may come from anywhere: the text contains no byte of them that a
 * terminal would interpret, and the JSON contains only UTF-8. */
#ifndef HR_MEMORY_REPORT_WRITE_H
#define HR_MEMORY_REPORT_WRITE_H

#include "core/base/json.h"
#include "core/memory/oom/report.h"

#define HR__REPORT_FORMAT "headroom-oom-report"
#define HR__REPORT_VERSION 1u

/* ---- text ---- */

#define HR__REPORT_WIDTH 100u /* default columns */
#define HR__REPORT_WIDTH_LEAST 40u
#define HR__REPORT_WIDTH_MOST 1000u

typedef enum hr__report_style {
	HR__REPORT_PLAIN, /* ends the previous style */
	HR__REPORT_STRONG,
	HR__REPORT_HEADING,
	HR__REPORT_ERROR,
	HR__REPORT_DIM,
	HR__REPORT_IN_USE,
	HR__REPORT_CACHED,
	HR__REPORT_FREE,
	HR__REPORT_MIXED,
	HR__REPORT_STYLES
} hr__report_style;

typedef struct hr__report_look {
	uint32_t width;            /* columns of the maps and of wrapped text; 0 = HR__REPORT_WIDTH */
	const char *const *styles; /* the escape sequence of each style, HR__REPORT_STYLES of them; NULL = no colours */
} hr__report_look;

/* hr__report_text with a look; NULL = the look of hr__report_text. */
bool hr__report_draw(const hr__report *report, const hr__report_look *look, hr__report_sink sink, void *context);

/* ---- JSON ---- */

/* hr__report_json through a writer that the caller started and finishes. */
void hr__report_write(const hr__report *report, hr__json *json);

/* Names of enumeration values in the JSON, by value; ended by NULL. */
extern const char *const hr__report_verdicts[];   /* hr_verdict_kind; 0: no verdict */
extern const char *const hr__report_tiers[];      /* hr_tier */
extern const char *const hr__report_holders_by[]; /* hr_holder_kind */
extern const char *const hr__report_runs[];       /* hr__run_kind; 0: none */
extern const char *const hr__report_actions[];    /* hr__log_action; 0: none */
extern const char *const hr__report_addresses[];  /* hr_log_address */

/* "2025-01-30T09:12:44.031337Z", rounded down. */
#define HR__REPORT_TIME_BYTES 48
char *hr__report_time(uint64_t time_ns, char out[HR__REPORT_TIME_BYTES]);

/* Copies [length] bytes, or up to the first 0, as UTF-8: invalid bytes become U+FFFD, and characters that do not fit with the final
 * 0 are left out. Idempotent, so text does not change however often it is saved and read. Returns the length. */
size_t hr__report_clean(const char *text, size_t length, char *out, size_t capacity);

#endif
