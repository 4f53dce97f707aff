/* tables.c - devices, allocators, streams and sites of a capture that is being built: each is stored once and has an index. */
#include "analysis/capture/builder/builder.h"

#include <string.h>

#include "core/base/text/text.h"

/* ---- devices and allocators ---- */

static void copy_name(char out[32], const char *name)
{
	size_t length = strlen(name);
	if (length > 31) length = hr__utf8_trim(name, 31);
	memcpy(out, name, length);
	out[length] = 0;
}

static hr_status add_device(hr__builder *b, uint32_t id, const char *name, uint64_t limit, uint64_t page)
{
	hr_status status = HR_OK;
	hr__capture_device *device = hr__array_push(&b->arrays->devices, &status);
	if (!status) status = hr__slots_reserve(&b->device_slots);
	if (status) return status;
	*device = (hr__capture_device){ .limit_bytes = limit, .page_bytes = page, .peak_change = HR__NONE };
	copy_name(device->name, name);
	hr__slots_add(&b->device_slots, hr__finder_hash(&b->device_slots, id, 0), (uint32_t)b->arrays->devices.count - 1);
	return HR_OK;
}

static hr_status add_allocator(hr__builder *b, uint32_t id, const char *name, const char *kind, uint32_t device, uint64_t limit)
{
	hr_status status = HR_OK;
	hr__capture_allocator *allocator = hr__array_push(&b->arrays->allocators, &status);
	if (!status) status = hr__slots_reserve(&b->allocator_slots);
	if (status) return status;
	*allocator = (hr__capture_allocator){ .id = id, .device = device, .limit_bytes = limit, .first_ns = HR__NEVER, .peak_change = HR__NONE };
	copy_name(allocator->name, name);
	copy_name(allocator->kind, kind);
	hr__slots_add(&b->allocator_slots, hr__finder_hash(&b->allocator_slots, id, 0), (uint32_t)b->arrays->allocators.count - 1);
	return HR_OK;
}

/* Index of the device with that id in the file; the "(unknown)" entry if the file does not define it. */
static uint32_t find_device(const hr__builder *b, uint32_t id)
{
	const hr__slots *slots = &b->device_slots;
	const hr__trace_summary *summary = &b->stream->summary;
	uint32_t hash = hr__finder_hash(slots, id, 0);
	for (uint32_t at = hr__slots_first(slots, hash); hr__slots_holds(slots, hash, &at); at++) {
		uint32_t index = slots->slots[at].item - 1;
		if (index < summary->device_count && summary->devices[index].id == id) return index;
	}
	return (uint32_t)summary->device_count;
}

hr_status hr__builder_add_definitions(hr__builder *b)
{
	const hr__trace_summary *summary = &b->stream->summary;
	hr_status status = HR_OK;
	for (size_t i = 0; i < summary->device_count && !status; i++)
		status = add_device(b, summary->devices[i].id, summary->devices[i].name, summary->devices[i].limit_bytes, summary->devices[i].page_bytes);
	if (!status) status = add_device(b, HR__NONE, "(unknown)", 0, 0);
	for (size_t i = 0; i < summary->allocator_count && !status; i++) {
		const hr__trace_allocator *a = &summary->allocators[i];
		status = add_allocator(b, a->id, a->name, a->kind, find_device(b, a->device), a->limit_bytes);
	}
	/* The entry is never looked up by its id, so a real allocator may have the same id. */
	if (!status) status = add_allocator(b, HR__NONE, "(unknown)", "", (uint32_t)summary->device_count, 0);
	b->last_allocator_id = HR__NONE;
	b->last_allocator = (uint32_t)summary->allocator_count;
	return status;
}

uint32_t hr__builder_look_up_allocator(hr__builder *b, uint32_t id)
{
	const hr__slots *slots = &b->allocator_slots;
	const hr__capture_allocator *allocators = hr__builder_allocators(b);
	uint32_t hash = hr__finder_hash(slots, id, 0), found = (uint32_t)b->arrays->allocators.count - 1;
	for (uint32_t at = hr__slots_first(slots, hash); hr__slots_holds(slots, hash, &at); at++) {
		if (allocators[slots->slots[at].item - 1].id != id) continue;
		found = slots->slots[at].item - 1;
		break;
	}
	b->last_allocator_id = id;
	b->last_allocator = found;
	return found;
}

bool hr__builder_uses_unknown(const hr__builder *b)
{
	const hr__capture_arrays *arrays = b->arrays;
	uint32_t last = (uint32_t)arrays->allocators.count - 1, device = (uint32_t)arrays->devices.count - 1;
	for (size_t i = 0; i < last; i++)
		if (hr__builder_allocators(b)[i].device == device) return true;
	for (size_t i = 0; i < arrays->sites.count; i++)
		if (hr__builder_sites(b)[i].allocator == last) return true;
	for (size_t i = 0; i < arrays->regions.count; i++)
		if (hr__builder_regions(b)[i].allocator == last) return true;
	return false;
}

/* ---- streams ---- */

hr_status hr__builder_look_up_stream(hr__builder *b, hr_stream stream, uint16_t *out)
{
	hr__array *streams = &b->arrays->streams;
	const hr_stream *all = hr__builder_streams(b);
	hr__slots *slots = &b->stream_slots;
	uint32_t hash = hr__finder_hash(slots, stream, 0);
	for (uint32_t at = hr__slots_first(slots, hash); hr__slots_holds(slots, hash, &at); at++) {
		if (all[slots->slots[at].item - 1] != stream) continue;
		*out = (uint16_t)(b->last_stream = slots->slots[at].item - 1);
		return HR_OK;
	}
	*out = HR__STREAMS_MAX - 1;
	if (streams->count == HR__STREAMS_MAX) return HR_OK;
	hr_status status = hr__slots_reserve(slots);
	hr_stream *fresh = hr__array_push(streams, &status);
	if (status) return status;
	*fresh = stream;
	*out = (uint16_t)(b->last_stream = (uint32_t)streams->count - 1);
	hr__slots_add(slots, hash, b->last_stream);
	return HR_OK;
}

/* ---- sites ---- */

static bool same_site(const hr__site *a, const hr__site *b)
{
	return a->op == b->op && a->scope == b->scope && a->tag == b->tag && a->shape == b->shape && a->dtype == b->dtype && a->allocator == b->allocator &&
	       a->stream == b->stream && a->stack == b->stack;
}

static uint32_t hash_site(const hr__slots *slots, const hr__site *s)
{
	uint32_t first = hr__finder_hash(slots, (uint64_t)s->op << 32 | s->scope, (uint64_t)s->tag << 32 | s->shape);
	uint32_t second = hr__finder_hash(slots, (uint64_t)first << 32 | s->stack, (uint32_t)s->dtype);
	return hr__finder_hash(slots, second, (uint64_t)s->allocator << 32 | s->stream);
}

hr_status hr__builder_find_site(hr__builder *b, const hr__event *e, uint32_t *out)
{
	const hr__site wanted = { e->op, e->scope, e->tag, e->shape, e->dtype, hr__builder_find_allocator(b, e->allocator), e->stream, e->stack };
	hr__array *sites = &b->arrays->sites;
	const hr__site *all = hr__builder_sites(b);
	if (b->last_site < sites->count && same_site(&all[b->last_site], &wanted)) {
		*out = b->last_site;
		return HR_OK;
	}
	hr__slots *slots = &b->site_slots;
	uint32_t hash = hash_site(slots, &wanted);
	for (uint32_t at = hr__slots_first(slots, hash); hr__slots_holds(slots, hash, &at); at++) {
		if (!same_site(&all[slots->slots[at].item - 1], &wanted)) continue;
		*out = b->last_site = slots->slots[at].item - 1;
		return HR_OK;
	}
	hr_status status = hr__slots_reserve(slots);
	hr__site *fresh = hr__array_push(sites, &status);
	if (status) return status;
	*fresh = wanted;
	*out = b->last_site = (uint32_t)sites->count - 1;
	hr__slots_add(slots, hash, *out);
	return HR_OK;
}
