/* export_memory_viz.c - a PyTorch memory snapshot as JSON. PyTorch's viewer, pytorch.org/memory_viz, reads JSON as well as pickles.
 *
 *     segments        what each allocator had mapped at the end, cut into blocks. Adjacent regions become one segment; a block
 *                     outside any region, such as one of a direct allocator, is its own segment
 *     device_traces   for each device, in order of time: alloc, free_requested and free_completed, segment_map, segment_unmap, oom;
 *                     at the end snapshot
 *
 * The viewer replays the trace backwards from the segments, and every block must be in a segment at each moment. Blocks can span
 * adjacent regions, so regions are mapped and unmapped like PyTorch's expandable segments: as pieces of one segment.
 *
 * The viewer shows a stack for each allocation: one frame with the op as its function and the scope as its file, then the call stack. Sizes are
 * occupied bytes, so that the viewer's peak is Headroom's peak. Tags become categories, which determine the colours; if there are
 * any categories, one must be "unknown", or the viewer fails. */
#include <stdlib.h>
#include <string.h>

#include "core/base/assert.h"
#include "core/base/text/json.h"
#include "core/os/os.h"
#include "analysis/capture/frame_text.h"
#include "analysis/export/export_file.h"
#include "analysis/export/export_formats.h"

/* The begin or end of a region. */
struct moment {
	uint64_t time_ns;
	uint32_t region;
	bool ends;
};

/* A region or an allocation that is live at the end. */
struct placed {
	uint64_t address;
	uint32_t index, allocator;
};

/* The kinds of entries. */
enum viz_kind { CHANGE, MOMENT, REFUSAL, KINDS };

struct viz_entry {
	uint32_t index;
	enum viz_kind kind;
};

struct viz_exporter {
	const hr__capture *capture;
	hr__json json;
	struct moment *moments; /* in order of time; one memory block holds this array and the next four */
	struct placed *regions; /* by allocator and address */
	struct placed *live;    /* allocations, in the same order */
	struct placed *active;  /* regions that are mapped while a device's trace is written, in the same order */
	uint8_t *is_lone;       /* by allocation: it is outside any region */
	size_t moment_count, block_bytes;
	uint32_t region_count, live_count, active_count;
	struct viz_entry *entries; /* by device, then in order of time */
	size_t *first;             /* by device: index of its first entry; the next element is the end */
	size_t entry_bytes, first_bytes;
	bool has_tags;
};

static uint32_t device_of(const hr__capture *capture, uint32_t allocator)
{
	return capture->allocators[allocator].device;
}

/* ---- mapped regions ---- */

static int by_place(const void *left, const void *right)
{
	const struct placed *a = left, *b = right;
	if (a->allocator != b->allocator) return a->allocator < b->allocator ? -1 : 1;
	if (a->address != b->address) return a->address < b->address ? -1 : 1;
	return a->index < b->index ? -1 : a->index > b->index;
}

/* Index of the first active region that is not before [key]. */
static uint32_t place_of(const struct viz_exporter *e, const struct placed *key)
{
	uint32_t low = 0, high = e->active_count;
	while (low < high) {
		uint32_t middle = low + (high - low) / 2;
		if (by_place(&e->active[middle], key) < 0) low = middle + 1;
		else high = middle;
	}
	return low;
}

static bool is_in_region(const struct viz_exporter *e, uint32_t allocator, uint64_t address)
{
	struct placed key = { address, UINT32_MAX, allocator };
	uint32_t at = place_of(e, &key);
	if (at == 0 || e->active[at - 1].allocator != allocator) return false;
	const hr__region_run *region = &e->capture->regions[e->active[at - 1].index];
	return address - region->address < region->bytes;
}

/* ---- entries of a device's trace ---- */

static void put_frame(hr__json *json, const char *file, uint32_t line, const char *function)
{
	hr__json_object(json);
	hr__json_field_string(json, "filename", file);
	hr__json_field_uint(json, "line", line);
	hr__json_field_string(json, "name", function);
	hr__json_end_object(json);
}

static void put_frames(hr__json *json, const hr__site *site)
{
	hr_frame frames[HR_STACK_DEPTH_MAX];
	char text[HR__FRAME_TEXT_BYTES];
	size_t count = site ? hr_stack_get_frames(site->stack, frames, HR_STACK_DEPTH_MAX) : 0;
	hr__json_key(json, "frames");
	hr__json_array(json);
	if (site && (site->op || site->scope)) put_frame(json, hr_name_text(site->scope), 0, hr_name_text(site->op));
	for (size_t i = 0; i < count; i++) {
		const hr_frame *frame = &frames[i];
		put_frame(json, hr_name_text(frame->file ? frame->file : frame->module), frame->line,
		          frame->function ? hr_name_text(frame->function) : hr__frame_text(frame, text));
	}
	hr__json_end_array(json);
}

static void begin_entry(struct viz_exporter *e, const char *action, const char *address_key, uint64_t address, uint64_t bytes,
                        hr_stream stream, uint64_t time_ns)
{
	hr__json *json = &e->json;
	hr__json_object(json);
	hr__json_field_string(json, "action", action);
	hr__json_field_uint(json, address_key, address);
	hr__json_field_uint(json, "size", bytes);
	hr__json_field_uint(json, "stream", stream);
	hr__json_field_uint(json, "time_us", (e->capture->start_wall_ns + time_ns) / 1000);
}

static void end_entry(struct viz_exporter *e, const hr__site *site)
{
	char type[HR__EXPORT_TYPE_BYTES];
	if (site) hr__json_field_string(&e->json, "user_metadata", hr__export_type(site, type));
	if (e->has_tags) hr__json_field_string(&e->json, "category", site && site->tag ? hr_name_text(site->tag) : "unknown");
	put_frames(&e->json, site);
	hr__json_end_object(&e->json);
}

static void put_segment_entry(struct viz_exporter *e, bool unmaps, uint64_t address, uint64_t bytes, uint64_t time_ns)
{
	begin_entry(e, unmaps ? "segment_unmap" : "segment_map", "addr", address, bytes, 0, time_ns);
	end_entry(e, NULL);
}

static void put_change(struct viz_exporter *e, const hr__change *change)
{
	const hr__allocation *a = &e->capture->allocations[change->allocation];
	const hr__site *site = &e->capture->sites[a->site];
	if (!change->frees) {
		e->is_lone[change->allocation] = !is_in_region(e, site->allocator, a->address);
		if (e->is_lone[change->allocation]) put_segment_entry(e, false, a->address, a->bytes, a->begin_ns);
		begin_entry(e, "alloc", "addr", a->address, a->bytes, site->stream, a->begin_ns);
		end_entry(e, site);
		return;
	}
	begin_entry(e, "free_requested", "addr", a->address, a->bytes, site->stream, a->end_ns);
	end_entry(e, NULL);
	begin_entry(e, "free_completed", "addr", a->address, a->bytes, site->stream, a->end_ns);
	end_entry(e, NULL);
	if (e->is_lone[change->allocation]) put_segment_entry(e, true, a->address, a->bytes, a->end_ns);
}

static void put_moment(struct viz_exporter *e, const struct moment *moment)
{
	const hr__region_run *region = &e->capture->regions[moment->region];
	struct placed key = { region->address, moment->region, region->allocator };
	uint32_t at = place_of(e, &key);
	if (moment->ends) {
		HR_ASSERT(at < e->active_count && e->active[at].index == moment->region);
		e->active_count--;
		memmove(e->active + at, e->active + at + 1, (e->active_count - at) * sizeof *e->active);
	} else {
		memmove(e->active + at + 1, e->active + at, (e->active_count - at) * sizeof *e->active);
		e->active[at] = key;
		e->active_count++;
	}
	put_segment_entry(e, moment->ends, region->address, region->bytes, moment->time_ns);
}

static void put_refusal(struct viz_exporter *e, const hr__refusal *refusal, uint32_t device, uint64_t in_use)
{
	const hr__site *site = &e->capture->sites[refusal->site];
	uint64_t limit = e->capture->devices[device].limit_bytes;
	begin_entry(e, "oom", "device_free", limit > in_use ? limit - in_use : 0, refusal->bytes, site->stream, refusal->time_ns);
	end_entry(e, site);
}

/* Writes everything that happened on a device, in order. */
static void put_trace(struct viz_exporter *e, uint32_t device)
{
	const hr__capture *c = e->capture;
	uint64_t in_use = 0;
	e->active_count = 0;
	for (size_t i = e->first[device]; i < e->first[device + 1] && !e->json.failed; i++) {
		uint32_t index = e->entries[i].index;
		if (e->entries[i].kind == MOMENT) {
			put_moment(e, &e->moments[index]);
		} else if (e->entries[i].kind == CHANGE) {
			const hr__change *now = &c->changes[index];
			in_use += now->frees ? -c->allocations[now->allocation].bytes : c->allocations[now->allocation].bytes;
			put_change(e, now);
		} else {
			put_refusal(e, &c->refusals[index], device, in_use);
		}
	}
	begin_entry(e, "snapshot", "addr", 0, in_use, 0, c->end_ns);
	end_entry(e, NULL);
}

/* ---- segments ---- */

/* The range of a segment. */
struct segment {
	uint64_t address, bytes;
	uint32_t allocator;
};

static void put_block(hr__json *json, uint64_t address, uint64_t bytes, uint64_t asked, const hr__site *site)
{
	hr__json_object(json);
	hr__json_field_uint(json, "address", address);
	hr__json_field_uint(json, "size", bytes);
	hr__json_field_uint(json, "requested_size", asked);
	hr__json_field_string(json, "state", site ? "active_allocated" : "inactive");
	put_frames(json, site);
	hr__json_end_object(json);
}

static void begin_segment(struct viz_exporter *e, const struct segment *segment, uint64_t in_use, uint64_t asked)
{
	hr__json *json = &e->json;
	hr__json_object(json);
	hr__json_field_uint(json, "device", device_of(e->capture, segment->allocator));
	hr__json_field_uint(json, "address", segment->address);
	hr__json_field_uint(json, "total_size", segment->bytes);
	hr__json_field_uint(json, "allocated_size", in_use);
	hr__json_field_uint(json, "active_size", in_use);
	hr__json_field_uint(json, "requested_size", asked);
	hr__json_field_uint(json, "stream", 0);
	hr__json_field_string(json, "segment_type", "large");
	hr__json_key(json, "segment_pool_id");
	hr__json_array(json);
	hr__json_uint(json, 0);
	hr__json_uint(json, 0);
	hr__json_end_array(json);
	hr__json_field_bool(json, "is_expandable", true);
	put_frames(json, NULL);
	hr__json_key(json, "blocks");
	hr__json_array(json);
}

static void end_segment(struct viz_exporter *e)
{
	hr__json_end_array(&e->json);
	hr__json_end_object(&e->json);
}

/* Finds the live allocations from [from] on that are in the segment and do not overlap; returns the index after the last. */
static uint32_t blocks_in(const struct viz_exporter *e, const struct segment *segment, uint32_t from, uint64_t *in_use,
                          uint64_t *asked)
{
	uint64_t end = segment->address;
	*in_use = *asked = 0;
	for (; from < e->live_count; from++) {
		const hr__allocation *a = &e->capture->allocations[e->live[from].index];
		if (e->live[from].allocator != segment->allocator || a->address < end) break;
		if (a->address - segment->address >= segment->bytes || a->bytes > segment->bytes - (a->address - segment->address)) break;
		end = a->address + a->bytes;
		*in_use += a->bytes;
		*asked += a->bytes - a->slack;
	}
	return from;
}

static void put_segment(struct viz_exporter *e, const struct segment *segment, uint32_t from, uint32_t to, uint64_t in_use,
                        uint64_t asked)
{
	uint64_t at = segment->address, end = segment->address + segment->bytes;
	begin_segment(e, segment, in_use, asked);
	for (; from < to; from++) {
		const hr__allocation *a = &e->capture->allocations[e->live[from].index];
		if (a->address > at) put_block(&e->json, at, a->address - at, 0, NULL);
		put_block(&e->json, a->address, a->bytes, a->bytes - a->slack, &e->capture->sites[a->site]);
		at = a->address + a->bytes;
	}
	if (end > at) put_block(&e->json, at, end - at, 0, NULL);
	end_segment(e);
}

/* Writes a block that is in no known region as its own segment. */
static void put_lone_block(struct viz_exporter *e, uint32_t index)
{
	const hr__allocation *a = &e->capture->allocations[e->live[index].index];
	struct segment segment = { a->address, a->bytes, e->live[index].allocator };
	put_segment(e, &segment, index, index + 1, a->bytes, a->bytes - a->slack);
}

/* Joins adjacent regions of one allocator, from [from] on; returns the index after the last. */
static uint32_t join_regions(const struct viz_exporter *e, uint32_t from, struct segment *out)
{
	const hr__region_run *first = &e->capture->regions[e->regions[from].index];
	*out = (struct segment){ first->address, first->bytes, first->allocator };
	for (from++; from < e->region_count; from++) {
		const hr__region_run *next = &e->capture->regions[e->regions[from].index];
		if (next->allocator != out->allocator || next->address != out->address + out->bytes) break;
		out->bytes += next->bytes;
	}
	return from;
}

/* Whether a live allocation precedes the segment in order of allocator and address. */
static bool is_before(const struct viz_exporter *e, uint32_t index, const struct segment *segment)
{
	const struct placed *block = &e->live[index];
	return block->allocator != segment->allocator ? block->allocator < segment->allocator : block->address < segment->address;
}

static void put_segments(struct viz_exporter *e)
{
	uint32_t next = 0;
	for (uint32_t region = 0; region < e->region_count && !e->json.failed;) {
		struct segment segment;
		uint64_t in_use, asked;
		region = join_regions(e, region, &segment);
		for (; next < e->live_count && is_before(e, next, &segment); next++) put_lone_block(e, next);
		uint32_t end = blocks_in(e, &segment, next, &in_use, &asked);
		put_segment(e, &segment, next, end, in_use, asked);
		next = end;
	}
	for (; next < e->live_count && !e->json.failed; next++) put_lone_block(e, next);
}

/* ---- preparation ---- */

static int by_time(const void *left, const void *right)
{
	const struct moment *a = left, *b = right;
	if (a->time_ns != b->time_ns) return a->time_ns < b->time_ns ? -1 : 1;
	if (a->region != b->region) return a->region < b->region ? -1 : 1; /* remainders of a region have a later index */
	return a->ends - b->ends;
}

static void take_regions(struct viz_exporter *e)
{
	const hr__capture *c = e->capture;
	for (uint32_t i = 0; i < c->region_count; i++) {
		const hr__region_run *region = &c->regions[i];
		e->moments[e->moment_count++] = (struct moment){ region->begin_ns, i, false };
		if (region->end_ns != HR__NEVER) e->moments[e->moment_count++] = (struct moment){ region->end_ns, i, true };
		else e->regions[e->region_count++] = (struct placed){ region->address, i, region->allocator };
	}
	if (e->moment_count) qsort(e->moments, e->moment_count, sizeof *e->moments, by_time);
	if (e->region_count) qsort(e->regions, e->region_count, sizeof *e->regions, by_place);
}

static void take_live(struct viz_exporter *e)
{
	const hr__capture *c = e->capture;
	for (uint32_t i = 0; i < c->allocation_count; i++) {
		if (c->allocations[i].end_ns != HR__NEVER) continue;
		e->live[e->live_count++] = (struct placed){ c->allocations[i].address, i, hr__allocation_allocator(c, i) };
	}
	if (e->live_count) qsort(e->live, e->live_count, sizeof *e->live, by_place);
}

static uint32_t count_live(const hr__capture *c)
{
	uint32_t count = 0;
	for (uint32_t i = 0; i < c->allocation_count; i++) count += c->allocations[i].end_ns == HR__NEVER;
	return count;
}

/* Merges the three lists in order of time. Gives the next entry and its device; false at the end. */
static bool merge(const struct viz_exporter *e, uint32_t next[KINDS], struct viz_entry *out, uint32_t *device)
{
	const hr__capture *c = e->capture;
	uint64_t change = next[CHANGE] < c->change_count ? hr__export_change_ns(c, &c->changes[next[CHANGE]]) : HR__NEVER;
	uint64_t moment = next[MOMENT] < e->moment_count ? e->moments[next[MOMENT]].time_ns : HR__NEVER;
	uint64_t refusal = next[REFUSAL] < c->refusal_count ? c->refusals[next[REFUSAL]].time_ns : HR__NEVER;
	if (change == HR__NEVER && moment == HR__NEVER && refusal == HR__NEVER) return false;
	out->kind = moment <= change && moment <= refusal ? MOMENT : change <= refusal ? CHANGE : REFUSAL;
	out->index = next[out->kind]++;
	if (out->kind == MOMENT) *device = device_of(c, c->regions[e->moments[out->index].region].allocator);
	else if (out->kind == CHANGE) *device = hr__allocation_device(c, c->changes[out->index].allocation);
	else *device = device_of(c, c->sites[c->refusals[out->index].site].allocator);
	return true;
}

/* A counting sort by device: the first pass counts entries per device, the second places them. */
static hr_status take_entries(struct viz_exporter *e)
{
	hr_status status = HR_OK;
	size_t devices = e->capture->device_count;
	struct viz_entry entry;
	uint32_t device, next[KINDS] = { 0 }, again[KINDS] = { 0 };
	e->entry_bytes = ((size_t)e->capture->change_count + e->moment_count + e->capture->refusal_count + 1) * sizeof *e->entries;
	e->first_bytes = (devices + 2) * sizeof *e->first;
	e->entries = hr__export_take(&status, e->entry_bytes);
	e->first = hr__export_take(&status, e->first_bytes);
	if (status) return status;
	while (merge(e, next, &entry, &device)) e->first[device + 2]++;
	for (size_t i = 2; i < devices + 2; i++) e->first[i] += e->first[i - 1];
	while (merge(e, again, &entry, &device)) e->entries[e->first[device + 1]++] = entry;
	return HR_OK;
}

static hr_status prepare(struct viz_exporter *e)
{
	void *block;
	size_t regions = e->capture->region_count, live = count_live(e->capture);
	e->block_bytes = regions * (2 * sizeof *e->moments + 2 * sizeof *e->regions) + live * sizeof *e->live + e->capture->allocation_count + 1;
	int error = hr__os()->alloc(e->block_bytes, &block);
	if (error) return hr__os_fail(error, "exporting a trace");
	e->moments = block;
	e->regions = (struct placed *)(e->moments + 2 * regions);
	e->active = e->regions + regions;
	e->live = e->active + regions;
	e->is_lone = (uint8_t *)(e->live + live);
	for (uint32_t i = 0; i < e->capture->site_count; i++) e->has_tags = e->has_tags || e->capture->sites[i].tag;
	take_regions(e);
	take_live(e);
	return take_entries(e);
}

/* ---- the snapshot ---- */

static hr_status put_all(struct viz_exporter *e, hr__export_file *file)
{
	hr__json *json = &e->json;
	hr__json_init(json, hr__export_file_write, file);
	hr__json_object(json);
	hr__json_key(json, "segments");
	hr__json_array(json);
	put_segments(e);
	hr__json_end_array(json);
	hr__json_key(json, "device_traces");
	hr__json_array(json);
	for (uint32_t device = 0; device < e->capture->device_count; device++) {
		hr__json_array(json);
		put_trace(e, device);
		hr__json_end_array(json);
	}
	hr__json_end_array(json);
	hr__json_key(json, "allocator_settings");
	hr__json_object(json);
	hr__json_end_object(json);
	hr__json_key(json, "external_annotations");
	hr__json_array(json);
	hr__json_end_array(json);
	hr__json_end_object(json);
	return hr__json_finish(json);
}

hr_status hr__export_memory_viz(const hr__capture *capture, const char *path)
{
	struct viz_exporter e = { .capture = capture };
	hr__export_file *file;
	hr_status status = prepare(&e);
	if (!status) status = hr__export_file_open(path, &file);
	if (!status) status = hr__export_file_close(file, put_all(&e, file));
	hr__export_give(e.moments, e.block_bytes);
	hr__export_give(e.entries, e.entry_bytes);
	hr__export_give(e.first, e.first_bytes);
	return status;
}
