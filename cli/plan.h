/* plan.h - what a plan found out, between the parts of `headroom plan`. */
#ifndef HR_CLI_PLAN_H
#define HR_CLI_PLAN_H

#include "forecast.h"
#include "tape.h"

/* The limits that are tried when none is given, in percent of the peak. */
#define HR__CURVE_FROM 90u
#define HR__CURVE_TO 40u
#define HR__CURVE_BY 10u
#define HR__CURVE_POINTS ((HR__CURVE_FROM - HR__CURVE_TO) / HR__CURVE_BY + 1)

typedef struct hr__plan_report {
	const char *path;
	hr__tape tape;
	hr__uses uses;
	bool step_given, link_given;
	hr__forecast_setup setup; /* limit 0: none was given. part 0: the trace has no use events */
	hr__forecast_facts facts;
	uint64_t least_limit; /* 0: none was found */
	hr__forecast forecast;             /* with a limit */
	uint64_t limits[HR__CURVE_POINTS]; /* without one */
	hr__forecast curve[HR__CURVE_POINTS];
} hr__plan_report;

/* Whether it fits, as far as is known. */
bool hr__plan_report_fits(const hr__plan_report *report);

/* Print it to standard output. */
void hr__plan_report_json(const hr__plan_report *report);
void hr__plan_report_text(const hr__plan_report *report);

#endif
