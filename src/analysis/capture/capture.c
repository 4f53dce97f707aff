/* capture.c - reads a trace into memory. capture.h states the invariants of the result.
 *
 * Events come in order of time, from a stream that is safe on any bytes, but they may be inconsistent: a full disk loses events, a
 * log may start in the middle of a run, and the file may come from an untrusted source. So each event is checked, and inconsistent
 * ones are skipped and counted, or are errors if the stream is strict:
 *
 *     ALLOC at an address that is in use     the block at that address ends: its FREE was lost
 *     FREE, READ, WRITE of an unknown block  skipped
 *     the same before the recorder's mark    not counted: threads use existing blocks that the recorder has not listed yet, and a
 *                                            block allocated meanwhile is reported twice. The mark ends the list of existing
 *                                            blocks. In a file without a mark these events are counted as skipped after all
 *     OP_END                                 ends the innermost op of that name on its thread, and the ops inside it; without such
 *                                            an op, skipped
 *     STEP inside a step                     joins the step or ends it (capture.h); the outstanding STEP_ENDs of an ended step are
 *                                            consumed without being counted
 *
 * One number is trusted: the number of events. The reader has counted them, so address space for that many can be reserved. */
#include "analysis/capture/capture.h"

#include <string.h>

#include "core/base/checked.h"
#include "core/base/names.h"
#include "core/base/text/text.h"
#include "analysis/capture/array.h"
#include "analysis/capture/finder.h"
#include "analysis/capture/lives.h"
#include "analysis/capture/regions.h"
#include "analysis/import/import.h"

#define MAX_TIME_NS (UINT64_MAX / 2)       /* later times are set to this */
#define MAX_TOTAL_BYTES (UINT64_MAX / 2)   /* bytes allocated, or moved, in a whole trace */
#define MAX_LIVE_BYTES (UINT64_C(1) << 46) /* live at once on a device of an imported trace: 64 TiB, the most that a simulated device has */
#define MAX_OP_SEARCH 64                   /* enclosing ops among which an OP_END looks for its op */
#define MAX_STEP_TAGS 16
#define EVENTS_PER_PROGRESS_CALL 65536u
#define OPENING_FRACTION 0.4               /* of the time to read a trace: what opening it takes */

/* The arrays of a capture. */
enum { SITES, ALLOCATIONS, CHANGES, OPS, USES, STEPS, MOVES, REFUSALS, REGIONS, ALLOCATORS, DEVICES, LIVES, PAUSES, SEQUENCE,
       OP_ENDS, TENSOR_ENDS, STREAMS, ARRAYS };

/* A capture with the arrays that hold its items. */
typedef struct capture_storage {
	hr__capture capture; /* first: the caller's pointer to it is also a pointer to the whole */
	hr__array arrays[ARRAYS];
} capture_storage;

/* A trace that is being read. */
typedef struct capture_reading {
	capture_storage *storage;
	hr__capture *capture;
	hr__array *arrays;
	hr__event_stream *stream;
	hr__slots live;       /* allocations by allocator and address */
	hr__slots site_slots; /* sites by all their fields */
	hr__slots allocator_slots, device_slots;
	hr__slots stream_slots;
	uint32_t last_stream; /* index of the stream of the last change */
	hr__array parents;    /* of each op: index of the enclosing op + 1; 0 = none */
	uint32_t *innermost;  /* of each thread: index of the innermost op + 1; 0 = none */
	size_t threads;
	hr__region_list regions;
	hr__lives lives;
	size_t tensor_ends;   /* number of items of TENSOR_ENDS that the sequence has already */
	hr_name plan_mark;    /* tag of the marks that LMS writes when it has made a plan: a pause of the program */
	uint64_t *in_use;        /* of each allocator: bytes */
	uint64_t *device_in_use; /* of each device: bytes */
	uint64_t bytes_allocated, bytes_moved, device_ns_total; /* over the whole trace; must not overflow */
	uint32_t step;           /* the open step; HR__NONE */
	hr_name step_tags[MAX_STEP_TAGS]; /* tags of its members (capture.h); members beyond these are unknown */
	uint32_t step_tag_count; /* 0: unknown, as in older recordings */
	uint64_t step_unended;   /* STEPs of the open step without a STEP_END yet */
	uint64_t step_ends_owed; /* STEP_ENDs still to come for steps that another STEP ended */
	uint32_t last_allocator_id, last_allocator; /* cache of the last lookup: most events have the same allocator */
	uint32_t last_site;
	bool mark_seen;               /* the mark that ends the list of existing blocks was seen */
	uint64_t skipped_before_mark; /* events */
	uint32_t allocations_before_mark;
	uint8_t *seen;                /* of each thread: SEEN_EVENT, SEEN_OP_BEGIN */
} capture_reading;

enum { SEEN_EVENT = 1, SEEN_OP_BEGIN = 2 };

/* Counts a skipped event, unless it may end something that began before the recording ([from_before]). */
static void skip(capture_reading *r, bool from_before)
{
	if (!r->mark_seen) r->skipped_before_mark++;
	else if (!from_before) r->capture->skipped++;
}

/* A plan's mark is written when the plan is ready. Its bytes are the nanoseconds that planning took. */
static hr_status take_pause(capture_reading *r, const hr__event *e)
{
	hr_status status = HR_OK;
	hr__pause *pause = hr__array_push(&r->arrays[PAUSES], &status);
	if (!status) *pause = (hr__pause){ e->time_ns > e->bytes ? e->time_ns - e->bytes : 0, e->time_ns };
	return status;
}

static void take_mark(capture_reading *r, const hr__event *e)
{
	if (r->mark_seen || e->tag || e->bytes) return;
	r->mark_seen = true;
	r->skipped_before_mark = 0;
	r->allocations_before_mark = (uint32_t)r->arrays[ALLOCATIONS].count;
}

/* Appends an item to the sequence, the order of events of different kinds. */
static hr_status append_item(capture_reading *r, hr__item_kind kind)
{
	hr_status status = HR_OK;
	uint8_t *item = hr__array_push(&r->arrays[SEQUENCE], &status);
	if (!status) *item = (uint8_t)kind;
	return status;
}

/* ---- devices and allocators ---- */

static void copy_name(char out[32], const char *name)
{
	size_t length = strlen(name);
	if (length > 31) length = hr__utf8_trim(name, 31);
	memcpy(out, name, length);
	out[length] = 0;
}

static hr_status add_device(capture_reading *r, uint32_t id, const char *name, uint64_t limit, uint64_t page)
{
	hr_status status = HR_OK;
	hr__capture_device *device = hr__array_push(&r->arrays[DEVICES], &status);
	if (!status) status = hr__slots_reserve(&r->device_slots);
	if (status) return status;
	*device = (hr__capture_device){ .limit_bytes = limit, .page_bytes = page, .peak_change = HR__NONE };
	copy_name(device->name, name);
	hr__slots_add(&r->device_slots, hr__finder_hash(&r->device_slots, id, 0), (uint32_t)r->arrays[DEVICES].count - 1);
	return HR_OK;
}

static hr_status add_allocator(capture_reading *r, uint32_t id, const char *name, const char *kind, uint32_t device, uint64_t limit)
{
	hr_status status = HR_OK;
	hr__capture_allocator *allocator = hr__array_push(&r->arrays[ALLOCATORS], &status);
	if (!status) status = hr__slots_reserve(&r->allocator_slots);
	if (status) return status;
	*allocator = (hr__capture_allocator){ .id = id, .device = device, .limit_bytes = limit, .first_ns = HR__NEVER, .peak_change = HR__NONE };
	copy_name(allocator->name, name);
	copy_name(allocator->kind, kind);
	hr__slots_add(&r->allocator_slots, hr__finder_hash(&r->allocator_slots, id, 0), (uint32_t)r->arrays[ALLOCATORS].count - 1);
	return HR_OK;
}

/* Index of the device with that id in the file; the "(unknown)" entry if the file does not define it. */
static uint32_t find_device(const capture_reading *r, uint32_t id)
{
	const hr__slots *slots = &r->device_slots;
	const hr__trace_summary *summary = &r->stream->summary;
	uint32_t hash = hr__finder_hash(slots, id, 0);
	for (uint32_t at = hr__slots_first(slots, hash); hr__slots_holds(slots, hash, &at); at++) {
		uint32_t index = slots->slots[at].item - 1;
		if (index < summary->device_count && summary->devices[index].id == id) return index;
	}
	return (uint32_t)summary->device_count;
}

/* Adds the file's devices and allocators, and one "(unknown)" entry of each, which is dropped at the end if unused. */
static hr_status add_definitions(capture_reading *r)
{
	const hr__trace_summary *summary = &r->stream->summary;
	hr_status status = HR_OK;
	for (size_t i = 0; i < summary->device_count && !status; i++)
		status = add_device(r, summary->devices[i].id, summary->devices[i].name, summary->devices[i].limit_bytes, summary->devices[i].page_bytes);
	if (!status) status = add_device(r, HR__NONE, "(unknown)", 0, 0);
	for (size_t i = 0; i < summary->allocator_count && !status; i++) {
		const hr__trace_allocator *a = &summary->allocators[i];
		status = add_allocator(r, a->id, a->name, a->kind, find_device(r, a->device), a->limit_bytes);
	}
	/* The entry is never looked up by its id, so a real allocator may have the same id. */
	if (!status) status = add_allocator(r, HR__NONE, "(unknown)", "", (uint32_t)summary->device_count, 0);
	return status;
}

static uint32_t find_allocator(capture_reading *r, uint32_t id)
{
	if (id == r->last_allocator_id) return r->last_allocator;
	const hr__slots *slots = &r->allocator_slots;
	const hr__capture_allocator *allocators = (const void *)r->arrays[ALLOCATORS].base;
	uint32_t hash = hr__finder_hash(slots, id, 0), found = (uint32_t)r->arrays[ALLOCATORS].count - 1;
	for (uint32_t at = hr__slots_first(slots, hash); hr__slots_holds(slots, hash, &at); at++) {
		if (allocators[slots->slots[at].item - 1].id != id) continue;
		found = slots->slots[at].item - 1;
		break;
	}
	r->last_allocator_id = id;
	r->last_allocator = found;
	return found;
}

static uint32_t device_index(const capture_reading *r, uint32_t allocator)
{
	return ((const hr__capture_allocator *)(const void *)r->arrays[ALLOCATORS].base)[allocator].device;
}

static hr__capture_device *device_of(const capture_reading *r, uint32_t allocator)
{
	return (hr__capture_device *)(void *)r->arrays[DEVICES].base + device_index(r, allocator);
}

/* ---- streams ---- */

/* The index of a stream, in the order of first use. Streams beyond the maximum share the last entry. */
static hr_status find_stream(capture_reading *r, hr_stream stream, uint16_t *out)
{
	hr__array *streams = &r->arrays[STREAMS];
	const hr_stream *all = (const void *)streams->base;
	hr__slots *slots = &r->stream_slots;
	*out = (uint16_t)r->last_stream;
	if (r->last_stream < streams->count && all[r->last_stream] == stream) return HR_OK;
	uint32_t hash = hr__finder_hash(slots, stream, 0);
	for (uint32_t at = hr__slots_first(slots, hash); hr__slots_holds(slots, hash, &at); at++) {
		if (all[slots->slots[at].item - 1] != stream) continue;
		*out = (uint16_t)(r->last_stream = slots->slots[at].item - 1);
		return HR_OK;
	}
	*out = HR__STREAMS_MAX - 1;
	if (streams->count == HR__STREAMS_MAX) return HR_OK;
	hr_status status = hr__slots_reserve(slots);
	hr_stream *fresh = hr__array_push(streams, &status);
	if (status) return status;
	*fresh = stream;
	*out = (uint16_t)(r->last_stream = (uint32_t)streams->count - 1);
	hr__slots_add(slots, hash, r->last_stream);
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

static hr_status find_site(capture_reading *r, const hr__site *wanted, uint32_t *out)
{
	hr__array *sites = &r->arrays[SITES];
	hr__site *all = (void *)sites->base;
	if (r->last_site < sites->count && same_site(&all[r->last_site], wanted)) {
		*out = r->last_site;
		return HR_OK;
	}
	hr__slots *slots = &r->site_slots;
	uint32_t hash = hash_site(slots, wanted);
	for (uint32_t at = hr__slots_first(slots, hash); hr__slots_holds(slots, hash, &at); at++) {
		if (!same_site(&all[slots->slots[at].item - 1], wanted)) continue;
		*out = r->last_site = slots->slots[at].item - 1;
		return HR_OK;
	}
	hr_status status = hr__slots_reserve(slots);
	hr__site *fresh = hr__array_push(sites, &status);
	if (status) return status;
	*fresh = *wanted;
	*out = r->last_site = (uint32_t)sites->count - 1;
	hr__slots_add(slots, hash, *out);
	return HR_OK;
}

static hr_status site_of(capture_reading *r, const hr__event *e, uint32_t *out)
{
	hr__site site = { e->op, e->scope, e->tag, e->shape, e->dtype, find_allocator(r, e->allocator), e->stream, e->stack };
	return find_site(r, &site, out);
}

/* ---- what is live ---- */

static const hr__allocation *allocation_at(const capture_reading *r, uint32_t index)
{
	return (const hr__allocation *)(const void *)r->arrays[ALLOCATIONS].base + index;
}

static uint32_t allocator_of(const capture_reading *r, uint32_t allocation)
{
	return ((const hr__site *)(const void *)r->arrays[SITES].base)[allocation_at(r, allocation)->site].allocator;
}

/* Finds the slot of the live allocation at [address]; false when there is none. */
static bool find_live(const capture_reading *r, uint32_t allocator, uint64_t address, uint32_t *slot)
{
	const hr__slots *slots = &r->live;
	uint32_t hash = hr__finder_hash(slots, address, allocator);
	for (*slot = hr__slots_first(slots, hash); hr__slots_holds(slots, hash, slot); ++*slot) {
		uint32_t index = slots->slots[*slot].item - 1;
		if (allocation_at(r, index)->address == address && allocator_of(r, index) == allocator) return true;
	}
	return false;
}

static hr_status add_change(capture_reading *r, const hr__event *e, uint32_t allocation, bool frees)
{
	uint16_t stream = 0;
	hr_status status = find_stream(r, e->stream, &stream);
	hr__change *change = hr__array_push(&r->arrays[CHANGES], &status);
	if (status) return status;
	*change = (hr__change){ allocation, frees, stream, e->thread < HR__THREAD_LAST ? (uint16_t)e->thread : HR__THREAD_LAST };
	return append_item(r, HR__ITEM_CHANGE);
}

static hr_status end_allocation(capture_reading *r, uint32_t slot, const hr__event *e)
{
	uint64_t now = e->time_ns;
	uint32_t index = r->live.slots[slot].item - 1;
	hr__allocation *allocation = (hr__allocation *)(void *)r->arrays[ALLOCATIONS].base + index;
	hr__capture_allocator *allocators = (void *)r->arrays[ALLOCATORS].base;
	uint32_t allocator = allocator_of(r, index);
	hr_status status = add_change(r, e, index, true);
	if (status) return status;
	hr__slots_remove(&r->live, slot);
	allocation->end_ns = now;
	allocators[allocator].last_ns = now;
	r->in_use[allocator] -= allocation->bytes;
	r->device_in_use[allocators[allocator].device] -= allocation->bytes;
	return HR_OK;
}

/* Called when bytes in use have grown. */
static void note_peaks(capture_reading *r, uint32_t allocator, uint64_t now)
{
	hr__capture_allocator *a = (hr__capture_allocator *)(void *)r->arrays[ALLOCATORS].base + allocator;
	hr__capture_device *d = (hr__capture_device *)(void *)r->arrays[DEVICES].base + a->device;
	uint32_t change = (uint32_t)r->arrays[CHANGES].count - 1;
	if (a->first_ns == HR__NEVER) a->first_ns = now;
	if (a->peak_change == HR__NONE || r->in_use[allocator] > a->peak_bytes) {
		a->peak_bytes = r->in_use[allocator];
		a->peak_ns = now;
		a->peak_change = change;
	}
	if (d->peak_change == HR__NONE || r->device_in_use[a->device] > d->peak_bytes) {
		d->peak_bytes = r->device_in_use[a->device];
		d->peak_ns = now;
		d->peak_change = change;
	}
}

static hr_status begin_allocation(capture_reading *r, const hr__event *e, uint32_t site)
{
	uint32_t allocator = ((hr__site *)(void *)r->arrays[SITES].base)[site].allocator;
	uint64_t slack = e->requested <= e->bytes ? e->bytes - e->requested : 0;
	hr_status status = hr__slots_reserve(&r->live);
	hr__allocation *allocation = hr__array_push(&r->arrays[ALLOCATIONS], &status);
	if (status) return status;
	uint32_t index = (uint32_t)r->arrays[ALLOCATIONS].count - 1;
	*allocation = (hr__allocation){ .begin_ns = e->time_ns, .end_ns = HR__NEVER, .address = e->address, .bytes = e->bytes,
		                            .slack = slack < UINT32_MAX ? (uint32_t)slack : UINT32_MAX, .site = site };
	hr__slots_add(&r->live, hr__finder_hash(&r->live, e->address, allocator), index);
	status = add_change(r, e, index, false);
	if (status) return status;
	r->bytes_allocated += e->bytes;
	r->in_use[allocator] += e->bytes;
	r->device_in_use[((hr__capture_allocator *)(void *)r->arrays[ALLOCATORS].base)[allocator].device] += e->bytes;
	note_peaks(r, allocator, e->time_ns);
	hr__lives_alloc(&r->lives, &(hr__life_event){ e, device_index(r, allocator), index });
	return HR_OK;
}

/* Appends the tensors that the last call of hr__lives_* ended to the sequence, unless [status] is an error. */
static hr_status end_tensors(capture_reading *r, hr_status status)
{
	for (; !status && r->tensor_ends < r->arrays[TENSOR_ENDS].count; r->tensor_ends++) status = append_item(r, HR__ITEM_TENSOR_END);
	return status;
}

/* Whether the event reports the live allocation [index] once more: a block that is allocated while a recording begins is reported by
 * the recorder, in its list of existing blocks, and by the thread that allocates it. */
static bool is_reported_twice(const capture_reading *r, uint32_t index, uint32_t site, const hr__event *e)
{
	const hr__allocation *allocation = allocation_at(r, index);
	const hr__site *sites = (const void *)r->arrays[SITES].base, *a = &sites[allocation->site], *b = &sites[site];
	if (r->mark_seen && index >= r->allocations_before_mark) return false;
	return allocation->bytes == e->bytes && a->op == b->op && a->scope == b->scope && a->tag == b->tag && a->shape == b->shape && a->dtype == b->dtype;
}

/* A replay has a limit on live bytes that Headroom's own recordings never exceed. Traces of other programs are checked. */
static hr_status check_live(const capture_reading *r, uint32_t allocator, const hr__event *e)
{
	uint64_t live = r->device_in_use[device_index(r, allocator)];
	if (r->stream->format == HR__FORMAT_HEADROOM || e->bytes <= MAX_LIVE_BYTES - live) return HR_OK;
	hr__fail(HR_BAD_FORMAT, "more than 64 TiB live at once (an allocation of %llu bytes on top of %llu)", (unsigned long long)e->bytes,
	         (unsigned long long)live);
	return r->stream->fail(r->stream, HR_BAD_FORMAT);
}

/* Handles an ALLOC at an address that is in use. *duplicate: the block was reported twice, so the caller must ignore the event. */
static hr_status take_second_alloc(capture_reading *r, const hr__event *e, uint32_t site, uint32_t slot, bool *duplicate)
{
	*duplicate = is_reported_twice(r, r->live.slots[slot].item - 1, site, e);
	if (r->stream->strict) {
		hr__fail(HR_BAD_FORMAT, "block %llu is allocated while it is live; free it first or give the new one another id",
		         (unsigned long long)e->address2);
		return r->stream->fail(r->stream, HR_BAD_FORMAT);
	}
	skip(r, *duplicate);
	/* Only the report of the allocating thread has a stack; the recorder's has none. */
	if (*duplicate && e->stack) ((hr__allocation *)(void *)r->arrays[ALLOCATIONS].base)[r->live.slots[slot].item - 1].site = site;
	if (*duplicate) return HR_OK;
	device_of(r, find_allocator(r, e->allocator))->implied_frees++;
	return end_allocation(r, slot, e);
}

static hr_status take_alloc(capture_reading *r, const hr__event *e)
{
	uint32_t site, slot, allocator = find_allocator(r, e->allocator);
	bool duplicate = false;
	device_of(r, allocator)->allocs++;
	if (e->bytes > MAX_TOTAL_BYTES - r->bytes_allocated) {
		r->capture->skipped++;
		return HR_OK;
	}
	hr_status status = check_live(r, allocator, e);
	if (!status) status = site_of(r, e, &site);
	if (status) return status;
	if (HR_UNLIKELY(find_live(r, allocator, e->address, &slot))) status = take_second_alloc(r, e, site, slot, &duplicate);
	return status || duplicate ? status : begin_allocation(r, e, site);
}

/* Strict streams: fails if the block of the event is not [known], or the sizes of the event and of the block (in [slot]) differ. [verb]
 * is for the message. */
static hr_status check_block(const capture_reading *r, const hr__event *e, bool known, uint32_t slot, const char *verb)
{
	if (!r->stream->strict) return HR_OK;
	uint64_t allocated = known ? allocation_at(r, r->live.slots[slot].item - 1)->bytes : 0;
	if (known && (e->bytes == 0 || e->bytes == allocated)) return HR_OK;
	if (!known)
		hr__fail(HR_BAD_FORMAT, "block %llu is %s but not live: freed already, or never allocated", (unsigned long long)e->address2, verb);
	else
		hr__fail(HR_BAD_FORMAT, "block %llu is %s with %llu bytes, but was allocated with %llu", (unsigned long long)e->address2, verb,
		         (unsigned long long)e->bytes, (unsigned long long)allocated);
	return r->stream->fail(r->stream, HR_BAD_FORMAT);
}

static hr_status take_free(capture_reading *r, const hr__event *e)
{
	uint32_t slot, allocator = find_allocator(r, e->allocator);
	bool known = find_live(r, allocator, e->address, &slot);
	hr__life_event life = { e, device_index(r, allocator), known ? r->live.slots[slot].item - 1 : HR__NONE };
	hr_status status = check_block(r, e, known, slot, "freed");
	if (!status && known) status = end_allocation(r, slot, e);
	if (status) return status;
	if (!known) {
		device_of(r, allocator)->unknown_frees++;
		/* If this is the thread's first event, it may have been inside this call when the recording began. Traces of other programs do
		 * not list the blocks that existed before. */
		skip(r, !(r->seen[e->thread] & SEEN_EVENT) || r->stream->format != HR__FORMAT_HEADROOM);
	}
	return end_tensors(r, hr__lives_release(&r->lives, &life));
}

/* ---- ops and uses ---- */

static hr__op_run *op_at(const capture_reading *r, uint32_t index)
{
	return (hr__op_run *)(void *)r->arrays[OPS].base + index;
}

static uint32_t parent_of(const capture_reading *r, uint32_t op)
{
	return ((const uint32_t *)(const void *)r->parents.base)[op];
}

static hr_status take_op_begin(capture_reading *r, const hr__event *e)
{
	hr_status status = HR_OK;
	hr__op_run *op = hr__array_push(&r->arrays[OPS], &status);
	uint32_t *parent = hr__array_push(&r->parents, &status);
	if (status) return status;
	*op = (hr__op_run){ .begin_ns = e->time_ns, .end_ns = HR__NEVER, .op = e->op, .scope = e->scope, .thread = e->thread, .step = r->step };
	*parent = r->innermost[e->thread];
	r->innermost[e->thread] = (uint32_t)r->arrays[OPS].count;
	return append_item(r, HR__ITEM_OP);
}

/* Index + 1 of the innermost op of that name on the thread; 0: none within MAX_OP_SEARCH. */
static uint32_t find_op(const capture_reading *r, uint32_t thread, hr_name name)
{
	uint32_t at = r->innermost[thread];
	for (int depth = 0; at && depth < MAX_OP_SEARCH; depth++, at = parent_of(r, at - 1))
		if (op_at(r, at - 1)->op == name) return at;
	return 0;
}

static hr_status end_op(capture_reading *r, uint32_t op, uint64_t now)
{
	hr_status status = HR_OK;
	uint32_t *end = hr__array_push(&r->arrays[OP_ENDS], &status);
	if (status) return status;
	*end = op;
	op_at(r, op)->end_ns = now;
	return append_item(r, HR__ITEM_OP_END);
}

static hr_status take_op_end(capture_reading *r, const hr__event *e)
{
	uint32_t ended = find_op(r, e->thread, e->op), at;
	hr_status status = HR_OK;
	if (!ended || e->bytes > MAX_TIME_NS - r->device_ns_total) {
		r->capture->unknown_op_ends++;
		skip(r, !(r->seen[e->thread] & SEEN_OP_BEGIN));
		return HR_OK;
	}
	op_at(r, ended - 1)->device_ns = e->bytes;
	r->device_ns_total += e->bytes;
	do {
		at = r->innermost[e->thread];
		status = end_op(r, at - 1, e->time_ns);
		r->innermost[e->thread] = parent_of(r, at - 1);
	} while (!status && at != ended);
	return status;
}

static hr_status take_use(capture_reading *r, const hr__event *e)
{
	uint32_t slot, allocator = find_allocator(r, e->allocator);
	bool known = find_live(r, allocator, e->address, &slot);
	hr_status status = check_block(r, e, known, slot, e->kind == HR__EVENT_WRITE ? "written" : "read");
	device_of(r, allocator)->accesses++;
	if (status) return status;
	if (!known) {
		device_of(r, allocator)->unknown_accesses++;
		skip(r, false);
		return HR_OK;
	}
	hr__capture_use *use = hr__array_push(&r->arrays[USES], &status);
	if (status) return status;
	*use = (hr__capture_use){ .op = r->innermost[e->thread] ? r->innermost[e->thread] - 1 : HR__NONE,
		                      .allocation = r->live.slots[slot].item - 1,
		                      .writes = e->kind == HR__EVENT_WRITE };
	return append_item(r, HR__ITEM_USE);
}

/* ---- steps ---- */

static void end_step(capture_reading *r, uint64_t now)
{
	hr__step_run *step = (hr__step_run *)(void *)r->arrays[STEPS].base + r->step;
	step->end_ns = now;
	step->last_change = (uint32_t)r->arrays[CHANGES].count;
	r->step = HR__NONE;
}

static uint64_t step_number(const capture_reading *r)
{
	return ((const hr__step_run *)(const void *)r->arrays[STEPS].base)[r->step].number;
}

/* Whether a STEP joins the open step (the rule is in capture.h). */
static bool joins_step(const capture_reading *r, const hr__event *e)
{
	if (!e->tag || !r->step_tag_count) return e->bytes == step_number(r);
	for (uint32_t i = 0; i < r->step_tag_count; i++)
		if (r->step_tags[i] == e->tag) return false;
	return true;
}

static void enter_step(capture_reading *r, hr_name tag)
{
	r->step_unended++;
	if (tag && r->step_tag_count < MAX_STEP_TAGS) r->step_tags[r->step_tag_count++] = tag;
}

static hr_status take_step(capture_reading *r, const hr__event *e)
{
	hr_status status = HR_OK;
	if (r->step != HR__NONE && joins_step(r, e)) {
		enter_step(r, e->tag);
		return HR_OK;
	}
	if (r->step != HR__NONE) {
		r->step_ends_owed += r->step_unended;
		end_step(r, e->time_ns);
	}
	hr__step_run *step = hr__array_push(&r->arrays[STEPS], &status);
	if (status) return status;
	*step = (hr__step_run){ .number = e->bytes, .begin_ns = e->time_ns, .end_ns = HR__NEVER, .first_change = (uint32_t)r->arrays[CHANGES].count };
	r->step = (uint32_t)r->arrays[STEPS].count - 1;
	r->step_unended = r->step_tag_count = 0;
	enter_step(r, e->tag);
	return append_item(r, HR__ITEM_STEP);
}

static void take_step_end(capture_reading *r, const hr__event *e)
{
	bool open = r->step != HR__NONE;
	if (r->step_ends_owed && (!open || e->bytes != step_number(r))) r->step_ends_owed--;
	else if (!open) skip(r, r->arrays[STEPS].count == 0);
	else if (--r->step_unended == 0) end_step(r, e->time_ns);
}

/* ---- identity of tensors ---- */

/* Passes a move to lives.c, which joins the allocations of an evicted or moved tensor. */
static hr_status update_lives(capture_reading *r, const hr__event *e, hr__move_kind kind)
{
	uint32_t slot, allocator = find_allocator(r, e->allocator), to;
	bool joined = false, nameless = false;
	hr_status status = HR_OK;
	hr__life_event life = { e, device_index(r, allocator), find_live(r, allocator, e->address, &slot) ? r->live.slots[slot].item - 1 : HR__NONE };
	switch (kind) {
	case HR__MOVE_OUT: status = hr__lives_evict(&r->lives, &life); break;
	case HR__MOVE_IN: status = hr__lives_restore(&r->lives, &life, &joined, &nameless); break;
	case HR__MOVE_ON_DEVICE:
		to = find_live(r, allocator, e->address2, &slot) ? r->live.slots[slot].item - 1 : HR__NONE;
		status = hr__lives_move(&r->lives, &life, to, &joined);
		break;
	case HR__MOVE_STITCH: break;
	}
	device_of(r, allocator)->joined += joined;
	device_of(r, allocator)->nameless_restores += nameless;
	return end_tensors(r, status);
}

/* ---- moves, refusals, regions ---- */

static hr_status take_move(capture_reading *r, const hr__event *e, hr__move_kind kind)
{
	uint32_t site = 0, slot, allocator = find_allocator(r, e->allocator);
	bool known = kind == HR__MOVE_ON_DEVICE &&
	             (find_live(r, allocator, e->address2, &slot) || find_live(r, allocator, e->address, &slot));
	if (e->bytes > MAX_TOTAL_BYTES - r->bytes_moved) {
		r->capture->skipped++;
		return HR_OK;
	}
	hr_status status = HR_OK;
	if (known) site = allocation_at(r, r->live.slots[slot].item - 1)->site;
	else status = site_of(r, e, &site);
	if (!status) status = update_lives(r, e, kind);
	hr__move *move = hr__array_push(&r->arrays[MOVES], &status);
	if (status) return status;
	*move = (hr__move){ e->time_ns, e->bytes, kind, site };
	r->bytes_moved += e->bytes;
	return append_item(r, HR__ITEM_MOVE);
}

static hr_status take_refusal(capture_reading *r, const hr__event *e)
{
	uint32_t site;
	hr_status status = site_of(r, e, &site);
	hr__refusal *refusal = hr__array_push(&r->arrays[REFUSALS], &status);
	if (status) return status;
	*refusal = (hr__refusal){ e->time_ns, e->bytes ? e->bytes : e->requested, site };
	return append_item(r, HR__ITEM_REFUSAL);
}

static hr_status take_region(capture_reading *r, const hr__event *e)
{
	bool taken = false;
	uint32_t allocator = find_allocator(r, e->allocator);
	hr_status status = e->kind == HR__EVENT_MAP ? hr__region_map(&r->regions, allocator, e->address, e->bytes, e->time_ns, &taken)
	                                            : hr__region_unmap(&r->regions, allocator, e->address, e->bytes, e->time_ns, &taken);
	if (!taken) r->capture->skipped++;
	return status;
}

/* ---- reading ---- */

static bool is_program_event(const hr__event *e)
{
	return e->kind == HR__EVENT_OP_BEGIN || e->kind == HR__EVENT_OP_END || e->kind == HR__EVENT_STEP || e->kind == HR__EVENT_STEP_END;
}

static hr_status take_event(capture_reading *r, const hr__event *e)
{
	r->capture->program_events += is_program_event(e);
	switch (e->kind) {
	case HR__EVENT_ALLOC: return take_alloc(r, e);
	case HR__EVENT_FREE: return take_free(r, e);
	case HR__EVENT_ALLOC_FAILED: return take_refusal(r, e);
	case HR__EVENT_MAP:
	case HR__EVENT_UNMAP: return take_region(r, e);
	case HR__EVENT_STITCH: return take_move(r, e, HR__MOVE_STITCH);
	case HR__EVENT_OP_BEGIN: return take_op_begin(r, e);
	case HR__EVENT_OP_END: return take_op_end(r, e);
	case HR__EVENT_READ:
	case HR__EVENT_WRITE: return take_use(r, e);
	case HR__EVENT_STEP: return take_step(r, e);
	case HR__EVENT_STEP_END: take_step_end(r, e); return HR_OK;
	case HR__EVENT_EVICT: return take_move(r, e, HR__MOVE_OUT);
	case HR__EVENT_RESTORE: return take_move(r, e, HR__MOVE_IN);
	case HR__EVENT_MOVE: return take_move(r, e, HR__MOVE_ON_DEVICE);
	case HR__EVENT_MARK:
		if (e->tag && e->tag == r->plan_mark) return take_pause(r, e);
		take_mark(r, e);
		return HR_OK;
	default: return HR_OK;
	}
}

static hr_status read_events(capture_reading *r, hr__capture_progress progress, void *context)
{
	hr__event event;
	hr_status status;
	uint64_t done = 0, all = r->stream->summary.events;
	while ((status = r->stream->next(r->stream, &event)) == HR_OK) {
		if (event.time_ns > MAX_TIME_NS) event.time_ns = MAX_TIME_NS;
		r->capture->end_ns = event.time_ns;
		status = take_event(r, &event);
		if (status) return status;
		r->seen[event.thread] |= event.kind == HR__EVENT_OP_BEGIN ? SEEN_EVENT | SEEN_OP_BEGIN : SEEN_EVENT;
		if (++done % EVENTS_PER_PROGRESS_CALL == 0 && progress) progress(context, OPENING_FRACTION + (1 - OPENING_FRACTION) * ((double)done / (double)all));
	}
	return status == HR_NOT_READY ? HR_OK : status;
}

/* ---- memory ---- */

/* Reserves address space for the most items that the trace's events can add. An event adds at most one item to each array, except: two
 * changes; one region and the remainders of two others; three items of the sequence. */
static hr_status make_arrays(capture_reading *r)
{
	const hr__trace_summary *summary = &r->stream->summary;
	const struct {
		size_t item_bytes;
		uint64_t max_items;
	} bounds[ARRAYS] = {
		[SITES] = { sizeof(hr__site), summary->events },
		[ALLOCATIONS] = { sizeof(hr__allocation), summary->events },
		[CHANGES] = { sizeof(hr__change), summary->events * 2 },
		[OPS] = { sizeof(hr__op_run), summary->events },
		[USES] = { sizeof(hr__capture_use), summary->events },
		[STEPS] = { sizeof(hr__step_run), summary->events },
		[MOVES] = { sizeof(hr__move), summary->events },
		[REFUSALS] = { sizeof(hr__refusal), summary->events },
		[REGIONS] = { sizeof(hr__region_run), summary->events * 4 },
		[ALLOCATORS] = { sizeof(hr__capture_allocator), summary->allocator_count + 1 },
		[DEVICES] = { sizeof(hr__capture_device), summary->device_count + 1 },
		[LIVES] = { sizeof(hr__life), summary->events },
		[PAUSES] = { sizeof(hr__pause), summary->events },
		[SEQUENCE] = { 1, summary->events * 3 },
		[OP_ENDS] = { sizeof(uint32_t), summary->events },
		[TENSOR_ENDS] = { sizeof(uint32_t), summary->events },
		[STREAMS] = { sizeof(hr_stream), HR__STREAMS_MAX },
	};
	if (summary->events > HR__NONE / 4) return hr__fail(HR_TOO_MANY, "the trace has %llu events; at most 2^30 can be read at once",
		                                                (unsigned long long)summary->events);
	hr_status status = HR_OK;
	for (int i = 0; i < ARRAYS && !status; i++) status = hr__array_init(&r->arrays[i], bounds[i].item_bytes, bounds[i].max_items);
	return status ? status : hr__array_init(&r->parents, sizeof(uint32_t), summary->events);
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

static hr_status init_reading(capture_reading *r)
{
	const hr__trace_summary *summary = &r->stream->summary;
	r->threads = (size_t)summary->threads;
	hr_status status = HR_OK;
	r->innermost = alloc_zeroed(r->threads, sizeof *r->innermost, &status);
	r->seen = alloc_zeroed(r->threads, sizeof *r->seen, &status);
	r->in_use = alloc_zeroed(summary->allocator_count + 1, sizeof *r->in_use, &status);
	r->device_in_use = alloc_zeroed(summary->device_count + 1, sizeof *r->device_in_use, &status);
	if (!status) status = hr__region_list_init(&r->regions, &r->arrays[REGIONS]);
	r->live.salt = r->site_slots.salt = r->allocator_slots.salt = r->device_slots.salt = r->stream_slots.salt = hr__ticks() ^ (uintptr_t)r->storage;
	if (!status) status = hr__lives_init(&r->lives, &r->arrays[LIVES], &r->arrays[TENSOR_ENDS], summary->events, r->threads, r->live.salt);
	r->plan_mark = hr_name_intern(HR__MARK_PLAN);
	if (r->plan_mark == HR_NAME_OTHER) r->plan_mark = HR_NAME_NONE; /* the name table is full */
	r->step = HR__NONE;
	r->last_site = HR__NONE;
	r->mark_seen = r->stream->format != HR__FORMAT_HEADROOM; /* only Headroom's recordings begin with a list of blocks */
	return status;
}

static void free_reading(capture_reading *r)
{
	const hr__trace_summary *summary = &r->stream->summary;
	free_zeroed(r->innermost, r->threads, sizeof *r->innermost);
	free_zeroed(r->seen, r->threads, sizeof *r->seen);
	free_zeroed(r->in_use, summary->allocator_count + 1, sizeof *r->in_use);
	free_zeroed(r->device_in_use, summary->device_count + 1, sizeof *r->device_in_use);
	hr__array_free(&r->parents);
	hr__slots_free(&r->live);
	hr__lives_free(&r->lives);
	hr__slots_free(&r->stream_slots);
	hr__slots_free(&r->site_slots);
	hr__slots_free(&r->allocator_slots);
	hr__slots_free(&r->device_slots);
	hr__region_list_free(&r->regions);
}

/* ---- the result ---- */

/* Whether the "(unknown)" allocator or device, the last entry of each array, is in use. */
static bool is_unknown_used(const capture_reading *r)
{
	const hr__array *sites = &r->arrays[SITES], *regions = &r->arrays[REGIONS];
	uint32_t last = (uint32_t)r->arrays[ALLOCATORS].count - 1, device = (uint32_t)r->arrays[DEVICES].count - 1;
	const hr__capture_allocator *allocators = (const void *)r->arrays[ALLOCATORS].base;
	for (size_t i = 0; i < last; i++)
		if (allocators[i].device == device) return true;
	for (size_t i = 0; i < sites->count; i++)
		if (((const hr__site *)(const void *)sites->base)[i].allocator == last) return true;
	for (size_t i = 0; i < regions->count; i++)
		if (((const hr__region_run *)(const void *)regions->base)[i].allocator == last) return true;
	return false;
}

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

static void finish(capture_reading *r)
{
	hr__capture *c = r->capture;
	const hr__trace_summary *summary = &r->stream->summary;
	hr__capture_allocator *allocators = (void *)r->arrays[ALLOCATORS].base;
	hr__capture_device *devices = (void *)r->arrays[DEVICES].base;
	/* A CSV has no STEP_END: its last step ends with the file. */
	if (r->step != HR__NONE && r->stream->format == HR__FORMAT_CSV) end_step(r, c->end_ns);
	if (r->step != HR__NONE) ((hr__step_run *)(void *)r->arrays[STEPS].base)[r->step].last_change = (uint32_t)r->arrays[CHANGES].count;
	for (size_t i = 0; i < r->arrays[ALLOCATORS].count; i++) {
		allocators[i].end_bytes = r->in_use[i];
		if (r->in_use[i]) allocators[i].last_ns = HR__NEVER;
	}
	for (size_t i = 0; i < r->arrays[DEVICES].count; i++) devices[i].end_bytes = r->device_in_use[i];
	if (!is_unknown_used(r)) {
		r->arrays[ALLOCATORS].count--;
		r->arrays[DEVICES].count--;
		c->unknown_device = HR__NONE;
	} else {
		c->unknown_device = (uint32_t)r->arrays[DEVICES].count - 1;
	}
	c->format = r->stream->format;
	c->gzip = r->stream->gzip;
	c->late = r->stream->late;
	c->empty_allocs = r->stream->empty;
	c->start_wall_ns = summary->start_wall_ns;
	c->lost = summary->lost;
	c->limited = summary->limited;
	c->skipped += r->skipped_before_mark; /* 0 if the recorder's mark was seen */
	c->complete = summary->complete;
#define EXPOSE(number, items, counter)                   \
	c->items = (void *)r->arrays[number].base;           \
	c->counter = (uint32_t)r->arrays[number].count;
	EXPOSE(SITES, sites, site_count)
	EXPOSE(ALLOCATIONS, allocations, allocation_count)
	EXPOSE(CHANGES, changes, change_count)
	EXPOSE(OPS, ops, op_count)
	EXPOSE(USES, uses, use_count)
	EXPOSE(STEPS, steps, step_count)
	EXPOSE(MOVES, moves, move_count)
	EXPOSE(REFUSALS, refusals, refusal_count)
	EXPOSE(REGIONS, regions, region_count)
	EXPOSE(ALLOCATORS, allocators, allocator_count)
	EXPOSE(DEVICES, devices, device_count)
	EXPOSE(LIVES, lives, life_count)
	EXPOSE(SEQUENCE, sequence, sequence_count)
	EXPOSE(OP_ENDS, op_ends, op_end_count)
	EXPOSE(TENSOR_ENDS, tensor_ends, tensor_end_count)
	EXPOSE(STREAMS, streams, stream_count)
	EXPOSE(PAUSES, pauses, pause_count)
#undef EXPOSE
	c->other_names = count_other_names(c);
	for (uint32_t i = 0; i < c->site_count; i++) c->has_stacks |= c->sites[i].stack != HR_STACK_NONE;
}

/* Reads [stream] into a new capture, and closes it. */
static hr_status make_capture(hr__event_stream *stream, hr__capture_progress progress, void *context, hr__capture **out)
{
	capture_reading r = { .stream = stream, .last_allocator_id = HR__NONE };
	hr_status status = HR_OK;
	r.storage = alloc_zeroed(1, sizeof(capture_storage), &status);
	if (status) {
		stream->close(stream);
		return status;
	}
	r.capture = &r.storage->capture;
	r.arrays = r.storage->arrays;
	if (progress) progress(context, OPENING_FRACTION);
	status = make_arrays(&r);
	if (!status) status = init_reading(&r);
	if (!status) status = add_definitions(&r);
	r.last_allocator = r.arrays[ALLOCATORS].count ? (uint32_t)r.arrays[ALLOCATORS].count - 1 : 0;
	if (!status) status = read_events(&r, progress, context);
	if (!status) finish(&r);
	free_reading(&r);
	stream->close(stream);
	if (status) hr__capture_close(r.capture);
	else *out = r.capture;
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
	for (int i = 0; i < ARRAYS; i++) hr__array_free(&storage->arrays[i]);
	hr__os()->free(storage, sizeof *storage);
}

void hr__capture_discard_changes(hr__capture *capture, uint32_t change)
{
	hr__array *array = &((capture_storage *)capture)->arrays[CHANGES];
	size_t bytes = change * sizeof(hr__change) / HR__ARRAY_STEP * HR__ARRAY_STEP;
	if (bytes) hr__os()->decommit(array->base, bytes);
}
