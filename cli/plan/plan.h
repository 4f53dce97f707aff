/* plan.h - the results of `headroom plan`, shared by the parts of the command. */
#ifndef HR_CLI_PLAN_H
#define HR_CLI_PLAN_H

#include "plan/forecast.h"
#include "plan/outlook.h"
#include "analysis/capture/facts.h"

/* Limits that are tried if none is given, in percent of the peak. */
#define HR__CURVE_FROM 90u
#define HR__CURVE_TO 40u
#define HR__CURVE_BY 10u
#define HR__CURVE_POINTS ((HR__CURVE_FROM - HR__CURVE_TO) / HR__CURVE_BY + 1)

typedef struct hr__plan_report {
	const char *path;
	hr__trace_facts trace;
	hr__schedule schedule;
	bool step_given, link_given;
	hr__forecast_setup setup; /* limit 0: none was given; part 0: the trace has no use events */
	hr__forecast_facts facts;
	uint64_t least_limit; /* 0: none was found */
	hr__forecast forecast;             /* if a limit was given */
	uint64_t limits[HR__CURVE_POINTS]; /* if none was given */
	hr__forecast curve[HR__CURVE_POINTS];
	bool recompute;                        /* there are outlooks, in the same places as forecasts */
	hr__outlook outlook;
	hr__outlook outlooks[HR__CURVE_POINTS];
} hr__plan_report;

/* Whether the program fits, as far as is known. */
bool hr__plan_report_fits(const hr__plan_report *report);

/* Print the report to standard output. */
void hr__plan_report_json(const hr__plan_report *report);
void hr__plan_report_text(const hr__plan_report *report);

#endif
