/* builder.c - opens and closes captures. See builder.h. */
#include "analysis/capture/builder/builder.h"

#include "core/base/names.h"
#include "analysis/import/import.h"

#define EVENTS_PER_PROGRESS_CALL 65536u
#define OPENING_FRACTION 0.4 /* of the time to read a trace: what opening it takes */

/* A capture with the arrays that hold its items. */
typedef struct capture_storage {
	hr__capture capture; /* first: the caller's pointer to it is also a pointer to the whole */
	hr__capture_arrays arrays;
} capture_storage;

/* ---- memory ---- */

/* Reserves address space for the most items that the trace's events can add. */
static hr_status make_arrays(hr__builder *b)
{
	const hr__trace_summary *summary = &b->stream->summary;
	hr_status status = HR_OK;
	if (summary->events > HR__NONE / 4) return hr__fail(HR_TOO_MANY, "the trace has %llu events; at most 2^30 can be read at once",
		                                                (unsigned long long)summary->events);
#define RESERVE(type, items, counter, most) \
	if (!status) status = hr__array_init(&b->arrays->items, sizeof(type), most);
	HR__CAPTURE_ARRAYS(RESERVE)
#undef RESERVE
	return status ? status : hr__array_init(&b->parents, sizeof(uint32_t), summary->events);
}

static void free_arrays(hr__capture_arrays *arrays)
{
#define FREE(type, items, counter, most) hr__array_free(&arrays->items);
	HR__CAPTURE_ARRAYS(FREE)
#undef FREE
}

static void *alloc_zeroed(size_t count, size_t item_bytes, hr_status *status)
{
	void *memory = NULL;
	int error = *status ? 0 : hr__os()->alloc((count ? count : 1) * item_bytes, &memory);
	if (error) *status = hr__os_fail(error, "reading a trace");
	return memory;
}

static void free_zeroed(void *memory, size_t count, size_t item_bytes)
{
	if (memory) hr__os()->free(memory, (count ? count : 1) * item_bytes);
}

static hr_status init_builder(hr__builder *b)
{
	const hr__trace_summary *summary = &b->stream->summary;
	b->threads = (size_t)summary->threads;
	hr_status status = HR_OK;
	b->innermost = alloc_zeroed(b->threads, sizeof *b->innermost, &status);
	b->seen = alloc_zeroed(b->threads, sizeof *b->seen, &status);
	b->in_use = alloc_zeroed(summary->allocator_count + 1, sizeof *b->in_use, &status);
	b->device_in_use = alloc_zeroed(summary->device_count + 1, sizeof *b->device_in_use, &status);
	if (!status) status = hr__region_list_init(&b->regions, &b->arrays->regions);
	b->live.salt = b->site_slots.salt = b->allocator_slots.salt = b->device_slots.salt = b->stream_slots.salt = hr__ticks() ^ (uintptr_t)b->capture;
	if (!status) status = hr__lives_init(&b->lives, &b->arrays->lives, &b->arrays->tensor_ends, summary->events, b->threads, b->live.salt);
	b->plan_mark = hr_name_intern(HR__MARK_PLAN);
	b->stall_mark = hr_name_intern(HR__MARK_STALL);
	if (b->plan_mark == HR_NAME_OTHER) b->plan_mark = HR_NAME_NONE; /* the name table is full */
	b->step = HR__NONE;
	b->last_site = HR__NONE;
	b->mark_seen = b->stream->format != HR__FORMAT_HEADROOM; /* only Headroom's recordings begin with a list of blocks */
	return status;
}

static void free_builder(hr__builder *b)
{
	const hr__trace_summary *summary = &b->stream->summary;
	free_zeroed(b->innermost, b->threads, sizeof *b->innermost);
	free_zeroed(b->seen, b->threads, sizeof *b->seen);
	free_zeroed(b->in_use, summary->allocator_count + 1, sizeof *b->in_use);
	free_zeroed(b->device_in_use, summary->device_count + 1, sizeof *b->device_in_use);
	hr__array_free(&b->parents);
	hr__slots_free(&b->live);
	hr__lives_free(&b->lives);
	hr__slots_free(&b->stream_slots);
	hr__slots_free(&b->site_slots);
	hr__slots_free(&b->allocator_slots);
	hr__slots_free(&b->device_slots);
	hr__region_list_free(&b->regions);
}

/* ---- reading ---- */

static bool is_program_event(const hr__event *e)
{
	return e->kind == HR__EVENT_OP_BEGIN || e->kind == HR__EVENT_OP_END || e->kind == HR__EVENT_STEP || e->kind == HR__EVENT_STEP_END;
}

static hr_status add_event(hr__builder *b, const hr__event *e)
{
	b->capture->program_events += is_program_event(e);
	switch (e->kind) {
	case HR__EVENT_ALLOC: return hr__builder_add_alloc(b, e);
	case HR__EVENT_FREE: return hr__builder_add_free(b, e);
	case HR__EVENT_ALLOC_FAILED: return hr__builder_add_refusal(b, e);
	case HR__EVENT_MAP:
	case HR__EVENT_UNMAP: return hr__builder_add_region(b, e);
	case HR__EVENT_STITCH: return hr__builder_add_move(b, e, HR__MOVE_STITCH);
	case HR__EVENT_OP_BEGIN: return hr__builder_add_op_begin(b, e);
	case HR__EVENT_OP_END: return hr__builder_add_op_end(b, e);
	case HR__EVENT_READ:
	case HR__EVENT_WRITE: return hr__builder_add_use(b, e);
	case HR__EVENT_STEP: return hr__builder_add_step(b, e);
	case HR__EVENT_STEP_END: hr__builder_add_step_end(b, e); return HR_OK;
	case HR__EVENT_EVICT: return hr__builder_add_move(b, e, HR__MOVE_OUT);
	case HR__EVENT_RESTORE: return hr__builder_add_move(b, e, HR__MOVE_IN);
	case HR__EVENT_MOVE: return hr__builder_add_move(b, e, HR__MOVE_ON_DEVICE);
	case HR__EVENT_MARK: return hr__builder_add_mark(b, e);
	default: return HR_OK;
	}
}

static hr_status read_events(hr__builder *b, hr__capture_progress progress, void *context)
{
	hr__event event;
	hr_status status;
	uint64_t done = 0, all = b->stream->summary.events;
	while ((status = b->stream->next(b->stream, &event)) == HR_OK) {
		if (event.time_ns > HR__TIME_NS_MAX) event.time_ns = HR__TIME_NS_MAX;
		b->capture->end_ns = event.time_ns;
		status = add_event(b, &event);
		if (status) return status;
		b->seen[event.thread] |= event.kind == HR__EVENT_OP_BEGIN ? HR__SEEN_EVENT | HR__SEEN_OP_BEGIN : HR__SEEN_EVENT;
		if (++done % EVENTS_PER_PROGRESS_CALL == 0 && progress) progress(context, OPENING_FRACTION + (1 - OPENING_FRACTION) * ((double)done / (double)all));
	}
	return status == HR_NOT_READY ? HR_OK : status;
}

/* ---- the result ---- */

static bool has_other_name(const hr__site *site)
{
	return site->op == HR_NAME_OTHER || site->scope == HR_NAME_OTHER || site->tag == HR_NAME_OTHER;
}

/* Counts allocations and ops with the name "(other)". There are few sites, and nearly always none has that name; then the loop over
 * allocations is skipped. */
static uint64_t count_other_names(const hr__capture *c)
{
	uint64_t count = 0;
	bool any = false;
	for (uint32_t i = 0; i < c->site_count; i++) any |= has_other_name(&c->sites[i]);
	for (uint32_t i = 0; i < c->allocation_count && any; i++) count += has_other_name(&c->sites[c->allocations[i].site]);
	for (uint32_t i = 0; i < c->op_count; i++) count += c->ops[i].op == HR_NAME_OTHER || c->ops[i].scope == HR_NAME_OTHER;
	return count;
}

/* Drops the "(unknown)" allocator and device, the last entry of each array, unless they are in use. */
static void drop_unknown(hr__builder *b)
{
	b->capture->unknown_device = HR__NONE;
	if (hr__builder_uses_unknown(b)) {
		b->capture->unknown_device = (uint32_t)b->arrays->devices.count - 1;
		return;
	}
	b->arrays->allocators.count--;
	b->arrays->devices.count--;
}

static void finish(hr__builder *b)
{
	hr__capture *c = b->capture;
	const hr__event_stream *stream = b->stream;
	hr__capture_allocator *allocators = hr__builder_allocators(b);
	hr__capture_device *devices = hr__builder_devices(b);
	hr__builder_end_steps(b);
	for (size_t i = 0; i < b->arrays->allocators.count; i++) {
		allocators[i].end_bytes = b->in_use[i];
		if (b->in_use[i]) allocators[i].last_ns = HR__NEVER;
	}
	for (size_t i = 0; i < b->arrays->devices.count; i++) devices[i].end_bytes = b->device_in_use[i];
	drop_unknown(b);
	c->format = stream->format;
	c->gzip = stream->gzip;
	c->late = stream->late;
	c->empty_allocs = stream->empty;
	c->start_wall_ns = stream->summary.start_wall_ns;
	c->lost = stream->summary.lost;
	c->rank = stream->summary.rank;
	c->knows_rank = stream->summary.knows_rank;
	memcpy(c->writer, stream->summary.writer, sizeof c->writer);
	c->process = stream->summary.process;
	c->limited = stream->summary.limited;
	c->skipped += b->skipped_before_mark; /* 0 if the recorder's mark was seen */
	c->complete = stream->summary.complete;
#define EXPOSE(type, items, counter, most) \
	c->items = hr__builder_##items(b);       \
	c->counter = (uint32_t)b->arrays->items.count;
	HR__CAPTURE_ARRAYS(EXPOSE)
#undef EXPOSE
	c->other_names = count_other_names(c);
	for (uint32_t i = 0; i < c->site_count; i++) c->has_stacks |= c->sites[i].stack != HR_STACK_NONE;
}

/* ---- opening and closing ---- */

/* Reads [stream] into a new capture, and closes it. */
static hr_status make_capture(hr__event_stream *stream, hr__capture_progress progress, void *context, hr__capture **out)
{
	hr__builder b = { .stream = stream };
	hr_status status = HR_OK;
	capture_storage *storage = alloc_zeroed(1, sizeof *storage, &status);
	if (status) {
		stream->close(stream);
		return status;
	}
	b.capture = &storage->capture;
	b.arrays = &storage->arrays;
	if (progress) progress(context, OPENING_FRACTION);
	status = make_arrays(&b);
	if (!status) status = init_builder(&b);
	if (!status) status = hr__builder_add_definitions(&b);
	if (!status) status = read_events(&b, progress, context);
	if (!status) finish(&b);
	free_builder(&b);
	stream->close(stream);
	if (status) hr__capture_close(b.capture);
	else *out = b.capture;
	return status;
}

hr_status hr__capture_open(const char *path, hr__capture_progress progress, void *context, hr__capture **out)
{
	hr__event_stream *stream;
	hr_status status = hr__import_open(path, &stream);
	return status ? status : make_capture(stream, progress, context, out);
}

hr_status hr__capture_open_memory(const void *bytes, size_t size, hr__capture **out)
{
	hr__event_stream *stream;
	hr_status status = hr__import_open_memory(bytes, size, &stream);
	return status ? status : make_capture(stream, NULL, NULL, out);
}

void hr__capture_close(hr__capture *capture)
{
	capture_storage *storage = (capture_storage *)capture;
	if (!capture) return;
	free_arrays(&storage->arrays);
	hr__os()->free(storage, sizeof *storage);
}

void hr__capture_discard_changes(hr__capture *capture, uint32_t change)
{
	const hr__array *changes = &((capture_storage *)capture)->arrays.changes;
	size_t bytes = change * sizeof(hr__change) / HR__ARRAY_STEP * HR__ARRAY_STEP;
	if (bytes) hr__os()->decommit(changes->base, bytes);
}
