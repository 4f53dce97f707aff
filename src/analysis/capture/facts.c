/* facts.c - see facts.h. */
#include "analysis/capture/facts.h"

#include <stdarg.h>
#include <stdio.h>

#include "core/base/status.h"
#include "core/base/text/text.h"

/* ---- the device ---- */

static bool has_devices(const hr__capture *capture)
{
	return capture->format == HR__FORMAT_HEADROOM || capture->format == HR__FORMAT_TORCH;
}

static hr_status select_device(const hr__capture *capture, int64_t wanted, uint32_t *out)
{
	uint32_t named = capture->unknown_device == HR__NONE ? capture->device_count : capture->unknown_device;
	*out = 0;
	if (has_devices(capture) && wanted >= (int64_t)named)
		return hr__fail(HR_INVALID_ARGUMENT, "there is no device %lld: it has %u, counted from 0", (long long)wanted, named);
	if (has_devices(capture) && wanted >= 0) *out = (uint32_t)wanted;
	for (uint32_t i = 0; wanted < 0 && i < capture->device_count; i++)
		if (capture->devices[i].allocs > capture->devices[*out].allocs) *out = i;
	if (*out < capture->device_count && capture->devices[*out].allocs > 0) return HR_OK;
	if (capture->format == HR__FORMAT_TORCH)
		return hr__fail(HR_BAD_FORMAT, "no events of device %u; call torch.cuda.memory._record_memory_history() before what is to be recorded", *out);
	return hr__fail(HR_BAD_FORMAT, "no allocation in it");
}

/* ---- figures ---- */

static uint32_t site_device(const hr__capture *capture, uint32_t site)
{
	return capture->allocators[capture->sites[site].allocator].device;
}

static void count_moves(const hr__capture *capture, hr__trace_facts *facts)
{
	for (uint32_t i = 0; i < capture->move_count; i++)
		facts->moves += capture->moves[i].kind != HR__MOVE_STITCH && site_device(capture, capture->moves[i].site) == facts->device;
	for (uint32_t i = 0; i < capture->refusal_count; i++) facts->refusals += site_device(capture, capture->refusals[i].site) == facts->device;
}

/* Recordings may have allocations of 0 bytes; importers leave them out. */
static uint64_t count_empty(const hr__capture *capture, uint32_t device)
{
	uint64_t count = capture->empty_allocs;
	for (uint32_t i = 0; i < capture->allocation_count; i++)
		count += hr__allocation_requested(&capture->allocations[i]) == 0 && hr__allocation_device(capture, i) == device;
	return count;
}

hr_status hr__trace_facts_find(const hr__capture *capture, int64_t wanted, hr__trace_facts *out)
{
	uint32_t device;
	hr_status status = select_device(capture, wanted, &device);
	if (status) return status;
	const hr__capture_device *d = &capture->devices[device];
	hr__trace_facts facts = { .format = capture->format,
		                      .gzip = capture->gzip,
		                      .device = device,
		                      .names_devices = has_devices(capture),
		                      .page_bytes = d->page_bytes,
		                      .use_events = capture->program_events + d->accesses,
		                      .unknown_uses = capture->unknown_op_ends + d->unknown_accesses,
		                      .unknown_frees = d->unknown_frees,
		                      .implied_frees = d->implied_frees,
		                      .empty_allocs = count_empty(capture, device),
		                      .joined = d->joined,
		                      .late = capture->late,
		                      .lost = capture->lost,
		                      .unfinished = !capture->complete };
	count_moves(capture, &facts);
	for (uint32_t i = 0; i < capture->device_count; i++) facts.devices += capture->devices[i].allocs > 0;
	*out = facts;
	return HR_OK;
}

/* ---- text ---- */

static void add_note(char *out, size_t capacity, size_t *length, const char *format, ...) __attribute__((format(printf, 4, 5)));
static void add_note(char *out, size_t capacity, size_t *length, const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	size_t room = *length < capacity ? capacity - *length : 0;
	int written = vsnprintf(room ? out + *length : NULL, room, format, arguments);
	va_end(arguments);
	if (written > 0) *length += (size_t)written;
}

size_t hr__trace_facts_notes(const hr__trace_facts *facts, hr__facts_purpose purpose, char *out, size_t capacity)
{
	size_t length = 0;
	char count[32];
	bool plan = purpose == HR__FACTS_PLAN;
	if (capacity) *out = 0;
#define NOTE(number, thing, text) \
	if (number) add_note(out, capacity, &length, "%s " thing "%s " text "\n", hr__format_count(number, count, sizeof count), hr__plural(number))
	NOTE(plan ? 0 : facts->use_events, "use event", "left out, as not needed for this");
	NOTE(plan ? facts->unknown_uses : 0, "use event", "of no known op or block left out");
	NOTE(facts->unknown_frees, "free", "of blocks from before the recording began left out");
	NOTE(facts->implied_frees, "block", "allocated again while live, and freed first");
	NOTE(facts->empty_allocs, "allocation", "of 0 bytes left out");
	NOTE(facts->refusals, "request", "that failed when recorded left out");
	NOTE(plan ? facts->joined : 0, "return", "of tensors from the host joined to their lives: peaks are those without moving");
	NOTE(plan ? 0 : facts->moves, "move", "of tensors to the host and back replayed as the frees and allocations they were");
	NOTE(facts->late, "event", "with a time before that of the event before them");
	NOTE(facts->lost, "event", "could not be written by the recorder");
#undef NOTE
	if (facts->unfinished) add_note(out, capacity, &length, "the recording was not ended: it holds what was written until then\n");
	if (facts->devices > 1)
		add_note(out, capacity, &length, "the file has events of %u devices, of which this is number %u; --device-index takes another\n",
		         facts->devices, facts->device);
	return length;
}
