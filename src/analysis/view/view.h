/* view.h - what views share: the selected part of a capture, and the tables that a view produces.
 *
 *     selection   the sites of one device, optionally of one name scope, and the changes of the whole trace or of one step;
 *                 the same for all tables of a report
 *     report      the tables of one view of one selection
 *
 * A view is a function that adds tables to a report. */
#ifndef HR_PROFILE_VIEW_H
#define HR_PROFILE_VIEW_H

#include "headroom_analysis.h"
#include "analysis/capture/capture.h"
#include "analysis/table/table.h"

#define HR__REPORT_TABLES_MAX 8

typedef struct hr__selection {
	const hr__capture *capture;
	uint32_t device;     /* index */
	uint32_t step;       /* index; HR__NONE: the whole trace */
	bool is_scope;       /* limited to a name scope */
	bool *takes_site;    /* by site: whether it is selected */
	bool *takes_scope;   /* by name: whether ops of that scope are selected */
	size_t names;
	const uint32_t *op_devices;         /* by op; shared by all reports, owned by the caller */
	uint32_t first_change, last_change; /* last_change is exclusive */
	uint32_t first_allocation;          /* the first that began in the selection */
	uint64_t begin_ns, end_ns;

	uint64_t begin_bytes, end_bytes; /* in use before and after the selection */
	uint64_t peak_bytes, peak_ns;    /* peak, and the first time it was reached */
	uint32_t peak_change;            /* the last change up to the peak; HR__NONE: the peak precedes all changes */

	/* The device's peak over the same time, of all scopes. Without a name scope it equals the peak above. */
	uint64_t device_peak_bytes, device_peak_ns;
	uint32_t device_peak_change; /* as peak_change */
	uint64_t at_peak_bytes;      /* of the selected sites, at the device's peak */
} hr__selection;

/* [step] is an index, or HR__NONE. HR_NO_HOST_MEMORY. */
hr_status hr__selection_make(const hr__capture *capture, uint32_t device, uint32_t step, const char *name_scope, const uint32_t *op_devices,
                             hr__selection *out);
void hr__selection_free(hr__selection *selection);

/* The device of each op: the device of the first allocation that the op uses, or else that of the preceding op. Freed with
 * hr__op_devices_free. */
hr_status hr__op_devices_make(const hr__capture *capture, uint32_t **out);
void hr__op_devices_free(const hr__capture *capture, uint32_t *devices);

static inline bool hr__selects_op(const hr__selection *s, uint32_t op)
{
	const hr__op_run *run = &s->capture->ops[op];
	return (s->step == HR__NONE || run->step == s->step) && s->op_devices[op] == s->device && s->takes_scope[run->scope];
}

static inline bool hr__selects_allocation(const hr__selection *s, uint32_t allocation)
{
	return s->takes_site[s->capture->allocations[allocation].site];
}

/* Number of the step that contains a change; HR__NEVER: none. */
uint64_t hr__step_of_change(const hr__capture *capture, uint32_t change);

/* Run time of an op; an op without an end runs until the end of the trace. */
static inline uint64_t hr__op_ns(const hr__selection *s, uint32_t op)
{
	const hr__op_run *run = &s->capture->ops[op];
	return (run->end_ns == HR__NEVER ? s->capture->end_ns : run->end_ns) - run->begin_ns;
}

typedef struct hr__report_view {
	const hr__selection *selection;
	const hr_profile_options *options;
	const hr__filter *filter;
	hr_profile_format format;
	hr__table tables[HR__REPORT_TABLES_MAX];
	uint32_t table_count;
	uint64_t growing; /* number of groups that grow from step to step; set by the leaks view */
} hr__report_view;

/* Adds a table to the report. Columns of call stacks are not shown if the capture has none. NULL when *status became what hr__table_init returns. */
hr__table *hr__report_table(hr__report_view *report, const hr__table_plan *plan, hr_status *status);
void hr__report_free(hr__report_view *report);

hr_status hr__view_summary(hr__report_view *report);
hr_status hr__view_timeline(hr__report_view *report);
hr_status hr__view_op(hr__report_view *report);
hr_status hr__view_scope(hr__report_view *report);
hr_status hr__view_peak(hr__report_view *report);
hr_status hr__view_leaks(hr__report_view *report);
hr_status hr__view_tensors(hr__report_view *report);
hr_status hr__view_steps(hr__report_view *report);
hr_status hr__view_allocators(hr__report_view *report); /* of the whole device, regardless of the name scope */

/* Equal intervals of the selected time. */
typedef struct hr__stretches {
	uint64_t begin_ns, span_ns; /* span_ns is at least 1 */
	uint32_t count;
} hr__stretches;

static inline hr__stretches hr__stretches_of(const hr__selection *s, uint32_t count)
{
	return (hr__stretches){ .begin_ns = s->begin_ns, .span_ns = s->end_ns > s->begin_ns ? s->end_ns - s->begin_ns : 1, .count = count };
}

static inline uint64_t hr__stretch_begin(const hr__stretches *stretches, uint32_t index)
{
	return stretches->begin_ns + (uint64_t)((unsigned __int128)stretches->span_ns * index / stretches->count);
}

/* Index of the interval that contains a time; times outside are clamped to the first or last interval. */
static inline uint32_t hr__stretch_at(const hr__stretches *stretches, uint64_t ns)
{
	uint64_t since = ns > stretches->begin_ns ? ns - stretches->begin_ns : 0;
	unsigned __int128 index = (unsigned __int128)since * stretches->count / stretches->span_ns;
	return index < stretches->count ? (uint32_t)index : stretches->count - 1;
}

/* What was live at the peak, for the summary: by tag if the device has at least two tags, otherwise by op; in JSON both. */
hr_status hr__view_peak_groups(hr__report_view *report, uint32_t most);

/* ---- reports of a capture, as text or JSON ---- */

typedef struct hr__profile hr__profile;

/* Makes all tables of options->view for each device and each of the [step_count] step numbers (0: options->step). Statuses as
 * hr_profile_report. */
hr_status hr__profile_make(const hr__capture *capture, const hr_profile_options *options, const int64_t *steps, size_t step_count,
                           hr_profile_format format, hr__profile **out);
hr_status hr__profile_write(const hr__profile *profile, const char *path, hr_profile_writer write, void *context);
bool hr__profile_grows(const hr__profile *profile); /* something leaks */
void hr__profile_free(hr__profile *profile);

/* Writes the differences from [a] to [b]: tables by op, by scope, and of sums. The options apply to both captures, except for the
 * step (-1: all). */
hr_status hr__profile_diff(const hr__capture *a, const hr__capture *b, const hr_profile_options *options, int64_t step_a, int64_t step_b,
                           hr_profile_format format, hr_profile_writer write, void *context);

/* Reads the caller's options, of any version of the struct, and fills in defaults for the rest. HR_INVALID_ARGUMENT. */
hr_status hr__profile_options_read(const hr_profile_options *given, hr_profile_options *out);
/* Index of the step with that number; -1 gives HR__NONE. HR_INVALID_ARGUMENT: the message lists the steps that exist. */
hr_status hr__profile_step(const hr__capture *capture, int64_t number, uint32_t *out);
/* The next step with the same number; HR__NONE: none. */
uint32_t hr__profile_next_step(const hr__capture *capture, uint32_t step);
/* HR_INVALID_ARGUMENT if neither [a] nor [b] has anything in that name scope. [b] may be NULL. A NULL [scope] is the whole
 * model. */
hr_status hr__profile_check_scope(const hr__capture *a, const hr__capture *b, const char *scope);
/* Whether a table can be sorted by that column. */
bool hr__profile_has_column(const hr__profile *profile, const char *key);
/* Whether a column has that flag (HR__TIME...), or a table that form; otherwise the option for it has no effect. True also for a
 * profile without reports, for which this is unknown. */
bool hr__profile_has_flag(const hr__profile *profile, unsigned flag);
bool hr__profile_has_form(const hr__profile *profile, hr__table_form form);
/* Whether [name] is [scope] or is inside it. */
bool hr__scope_is_inside(const char *name, const char *scope);
/* Whether the options select the device. */
bool hr__profile_takes_device(const hr__capture *capture, uint32_t device, const char *wanted);

/* Parses "1,10,100" and "3-7". HR_INVALID_ARGUMENT; HR_TOO_MANY for more than [capacity] numbers. */
hr_status hr__profile_parse_steps(const char *text, int64_t *out, size_t capacity, size_t *count);

/* Zeroed memory for a view; NULL when *status became HR_NO_HOST_MEMORY, or was not HR_OK. */
void *hr__view_alloc(size_t count, size_t item_bytes, hr_status *status);
void hr__view_free(void *memory, size_t count, size_t item_bytes);

#endif
