/* report_write.h - shared by the two writers of a report and by `headroom oom`, which prints saved reports. All other code needs only
 * report.h.
 *
 * Names in a report come from programs: the text contains no byte of them that a terminal would interpret, and the JSON contains
 * only UTF-8. */
#ifndef HR_MEMORY_REPORT_WRITE_H
#define HR_MEMORY_REPORT_WRITE_H

#include "core/memory/oom/report.h"

#define HR__REPORT_FORMAT "headroom-oom-report"
#define HR__REPORT_VERSION 1u

extern const char *const hr__report_actions[]; /* names of hr__log_action in the JSON; 0: none; ended by NULL */

/* "2025-01-30T09:12:44.031337Z", rounded down. */
#define HR__REPORT_TIME_BYTES 48
char *hr__report_time(uint64_t time_ns, char out[HR__REPORT_TIME_BYTES]);

#endif
