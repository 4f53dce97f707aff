/* missing.c - see missing.h. */
#include "analysis/view/missing.h"

#include <string.h>

static bool has_ops(const hr__capture *c)
{
	bool found = c->op_count > 0;
	for (uint32_t i = 0; i < c->site_count && !found; i++) found = c->sites[i].op != HR_NAME_NONE;
	return found;
}

static bool has_scopes(const hr__capture *c)
{
	bool found = false;
	for (uint32_t i = 0; i < c->site_count && !found; i++) found = c->sites[i].scope != HR_NAME_NONE;
	return found;
}

static bool has_regions(const hr__capture *c)
{
	return c->region_count > 0;
}

static bool has_steps(const hr__capture *c)
{
	return c->step_count > 0;
}

static bool has_op_times(const hr__capture *c)
{
	return c->op_count > 0;
}

const char *hr__view_missing(const hr__capture *capture, const char *view)
{
	static const struct {
		const char *view;
		bool (*has)(const hr__capture *capture);
		const char *text;
	} needs[] = {
		{ "op", has_ops, "This trace does not say which op allocates: everything is in one row." },
		{ "op", has_op_times, "This trace does not say when ops run: there are no times." },
		{ "scope", has_scopes, "This trace has no name scopes: everything is in one row." },
		{ "leaks", has_steps, "This trace has no steps: what each step leaves behind is not known." },
		{ "steps", has_steps, "This trace has no steps." },
		{ "allocators", has_regions, "This trace does not say what was reserved on the device: fragmentation is not known." },
	};
	if (capture->format == HR__FORMAT_HEADROOM) return NULL;
	for (size_t i = 0; i < sizeof needs / sizeof *needs; i++)
		if (strcmp(needs[i].view, view) == 0 && !needs[i].has(capture)) return needs[i].text;
	return NULL;
}
