/* selection.c - selects the part of a capture that a view covers, and computes its bytes in use. */
#include <string.h>

#include "core/base/names.h"
#include "core/base/status.h"
#include "core/os/os.h"
#include "analysis/view/view.h"

void *hr__view_alloc(size_t count, size_t item_bytes, hr_status *status)
{
	void *memory = NULL;
	int error = *status ? 0 : hr__os()->alloc((count ? count : 1) * item_bytes, &memory);
	if (error) *status = hr__os_fail(error, "looking at a profile");
	return memory;
}

void hr__view_free(void *memory, size_t count, size_t item_bytes)
{
	if (memory) hr__os()->free(memory, (count ? count : 1) * item_bytes);
}

/* ---- ops and devices ---- */

#define UNKNOWN HR__NONE

hr_status hr__op_devices_make(const hr__capture *capture, uint32_t **out)
{
	hr_status status = HR_OK;
	uint32_t *devices = hr__view_alloc(capture->op_count, sizeof *devices, &status);
	if (status) return status;
	if (capture->device_count > 1) {
		memset(devices, 0xFF, (size_t)capture->op_count * sizeof *devices);
		for (uint32_t i = 0; i < capture->use_count; i++) {
			const hr__capture_use *use = &capture->uses[i];
			if (use->op != HR__NONE && devices[use->op] == UNKNOWN) devices[use->op] = hr__allocation_device(capture, use->allocation);
		}
		/* Assumes that the preceding op ran on the same thread: ops of different threads rarely alternate. */
		uint32_t before = 0;
		for (uint32_t i = 0; i < capture->op_count; i++) {
			if (devices[i] == UNKNOWN) devices[i] = before;
			before = devices[i];
		}
	}
	*out = devices;
	return HR_OK;
}

void hr__op_devices_free(const hr__capture *capture, uint32_t *devices)
{
	hr__view_free(devices, capture->op_count, sizeof *devices);
}

/* ---- scopes ---- */

bool hr__scope_is_inside(const char *name, const char *scope)
{
	size_t length = strlen(scope);
	while (length && scope[length - 1] == '/') length--;
	return strncmp(name, scope, length) == 0 && (name[length] == 0 || name[length] == '/' || length == 0);
}

static hr_status select_sites(hr__selection *s, const char *name_scope)
{
	const hr__capture *c = s->capture;
	hr_status status = HR_OK;
	s->names = hr__names_count();
	s->takes_scope = hr__view_alloc(s->names, sizeof *s->takes_scope, &status);
	s->takes_site = hr__view_alloc(c->site_count, sizeof *s->takes_site, &status);
	if (status) return status;
	for (size_t i = 0; i < s->names; i++) s->takes_scope[i] = !name_scope || hr__scope_is_inside(hr_name_text((hr_name)i), name_scope);
	for (uint32_t i = 0; i < c->site_count; i++)
		s->takes_site[i] = c->allocators[c->sites[i].allocator].device == s->device && s->takes_scope[c->sites[i].scope];
	return HR_OK;
}

/* ---- time ---- */

typedef struct running {
	uint64_t selected, device; /* bytes in use of the selected sites, and of the whole device */
} running;

/* The state before the first change of the selected time. */
static void begin_time(hr__selection *s, const running *now)
{
	s->begin_bytes = s->peak_bytes = s->at_peak_bytes = now->selected;
	s->device_peak_bytes = now->device;
}

static void take_peaks(hr__selection *s, const running *now, uint32_t change, uint64_t time_ns)
{
	if (now->selected > s->peak_bytes) {
		s->peak_bytes = now->selected;
		s->peak_change = change;
		s->peak_ns = time_ns;
	}
	if (now->device > s->device_peak_bytes) {
		s->device_peak_bytes = now->device;
		s->device_peak_change = change;
		s->device_peak_ns = time_ns;
		s->at_peak_bytes = now->selected;
	}
}

/* Computes bytes in use before the first change, at the peak, and after the last change. */
static void add_up(hr__selection *s)
{
	const hr__capture *c = s->capture;
	running now = { 0 };
	for (uint32_t i = 0; i < s->last_change; i++) {
		const hr__allocation *allocation = &c->allocations[c->changes[i].allocation];
		bool frees = c->changes[i].frees;
		if (i == s->first_change) begin_time(s, &now);
		if (i < s->first_change && !frees) s->first_allocation++;
		if (c->allocators[c->sites[allocation->site].allocator].device != s->device) continue;
		uint64_t change = frees ? 0 - allocation->bytes : allocation->bytes;
		now.device += change;
		if (s->takes_site[allocation->site]) now.selected += change;
		if (i >= s->first_change) take_peaks(s, &now, i, frees ? allocation->end_ns : allocation->begin_ns);
	}
	if (s->first_change == s->last_change) begin_time(s, &now);
	s->end_bytes = now.selected;
}

static void select_time(hr__selection *s, uint32_t step)
{
	const hr__capture *c = s->capture;
	s->last_change = c->change_count;
	s->end_ns = c->end_ns;
	s->peak_change = HR__NONE;
	if (step != HR__NONE) {
		const hr__step_run *run = &c->steps[step];
		s->first_change = run->first_change;
		s->last_change = run->last_change;
		s->begin_ns = run->begin_ns;
		if (run->end_ns != HR__NEVER) s->end_ns = run->end_ns;
	}
	s->peak_ns = s->device_peak_ns = s->begin_ns;
	if (s->first_change > 0) s->peak_change = s->first_change - 1;
	s->device_peak_change = s->peak_change;
}

uint64_t hr__step_of_change(const hr__capture *capture, uint32_t change)
{
	for (uint32_t i = 0; i < capture->step_count; i++)
		if (change >= capture->steps[i].first_change && change < capture->steps[i].last_change) return capture->steps[i].number;
	return HR__NEVER;
}

hr_status hr__selection_make(const hr__capture *capture, uint32_t device, uint32_t step, const char *name_scope, const uint32_t *op_devices,
                             hr__selection *out)
{
	bool is_scope = name_scope && *name_scope;
	*out = (hr__selection){ .capture = capture, .device = device, .step = step, .is_scope = is_scope, .op_devices = op_devices };
	hr_status status = select_sites(out, is_scope ? name_scope : NULL);
	if (status) {
		hr__selection_free(out);
		return status;
	}
	select_time(out, step);
	add_up(out);
	return HR_OK;
}

void hr__selection_free(hr__selection *s)
{
	hr__view_free(s->takes_scope, s->names, sizeof *s->takes_scope);
	hr__view_free(s->takes_site, s->capture->site_count, sizeof *s->takes_site);
	s->takes_scope = s->takes_site = NULL;
}
