/* metrics_text.h - the statistics of running programs as OpenMetrics, or in the older text format of Prometheus. */
#ifndef HR_CLI_METRICS_TEXT_H
#define HR_CLI_METRICS_TEXT_H

#include <stdbool.h>
#include <stdio.h>

#include "live/segments.h"

/* Writes a sample for each program, device and allocator in [programs]. The label sets of a metric are distinct, whatever the programs publish. */
void hr__metrics_write(FILE *to, const hr__segments *programs, bool openmetrics);

#endif
