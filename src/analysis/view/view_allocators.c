/* view_allocators.c - the allocators of a device: their requests, reserved bytes and fragmentation; in total, and over equal
 * intervals of time. */
#include "analysis/capture/holes.h"
#include "analysis/view/view.h"

#define STRETCHES_TEXT 10u
#define STRETCHES_JSON 100u
#define ROWS_MOST 1000000u /* of all allocators together */

enum {
	A_NAME, A_PEAK, A_PEAK_RESERVED, A_PEAK_FREE, A_PEAK_FRAGMENTATION, A_LIMIT, A_ALLOCATIONS, A_FREES, A_REFUSED, A_LIVE, A_BYTES, A_END, A_RESERVED, A_KIND, A_NUMBER,
	A_COLUMNS
};

static const hr__column total_columns[A_COLUMNS] = {
	[A_NAME] = { "name", "allocator", HR__CELL_LABEL, 0 },
	[A_PEAK] = { "peak_bytes", "peak", HR__CELL_BYTES, HR__MIN_BYTES },
	[A_PEAK_RESERVED] = { "peak_reserved_bytes", "reserved", HR__CELL_BYTES, 0 },
	[A_PEAK_FREE] = { "peak_free_bytes", "free at peak", HR__CELL_BYTES, 0 },
	[A_PEAK_FRAGMENTATION] = { "peak_fragmentation", "frag.", HR__CELL_PART, 0 }, /* of the free bytes at the peak */
	[A_LIMIT] = { "limit_bytes", "limit", HR__CELL_BYTES, 0 },
	[A_ALLOCATIONS] = { "allocations", "allocs", HR__CELL_COUNT, HR__SUMS },
	[A_FREES] = { "frees", "frees", HR__CELL_COUNT, HR__SUMS },
	[A_REFUSED] = { "refused", "refused", HR__CELL_COUNT, HR__SUMS },
	[A_LIVE] = { "live", "live", HR__CELL_COUNT, HR__SUMS },
	[A_BYTES] = { "bytes", "allocated", HR__CELL_BYTES, HR__SUMS },
	[A_END] = { "end_bytes", "at the end", HR__CELL_BYTES, HR__SUMS },
	[A_RESERVED] = { "reserved_bytes", "reserved at the end", HR__CELL_BYTES, HR__SUMS | HR__NOT_IN_TEXT },
	[A_KIND] = { "kind", "kind", HR__CELL_LABEL, 0 },
	[A_NUMBER] = { "number", "number", HR__CELL_COUNT, HR__NOT_IN_TEXT },
};

enum {
	T_NAME, T_BEGIN, T_PEAK, T_END, T_RESERVED, T_FREE, T_LARGEST, T_FRAGMENTATION, T_LIVE, T_ALLOCATIONS, T_FREES, T_REFUSED, T_END_NS, T_NUMBER, T_COLUMNS
};

/* Levels other than the peak are those at the end of the interval. */
static const hr__column time_columns[T_COLUMNS] = {
	[T_NAME] = { "name", "allocator", HR__CELL_LABEL, 0 },
	[T_BEGIN] = { "begin_micros", "start", HR__CELL_NS, HR__ALWAYS },
	[T_PEAK] = { "peak_bytes", "peak", HR__CELL_BYTES, 0 },
	[T_END] = { "end_bytes", "in use", HR__CELL_BYTES, HR__NOT_IN_TEXT },
	[T_RESERVED] = { "reserved_bytes", "reserved", HR__CELL_BYTES, 0 },
	[T_FREE] = { "free_bytes", "free", HR__CELL_BYTES, 0 },
	[T_LARGEST] = { "largest_free_bytes", "largest", HR__CELL_BYTES, 0 },
	[T_FRAGMENTATION] = { "fragmentation", "frag.", HR__CELL_PART, 0 },
	[T_LIVE] = { "live", "live", HR__CELL_COUNT, 0 },
	[T_ALLOCATIONS] = { "allocations", "allocs", HR__CELL_COUNT, HR__SUMS },
	[T_FREES] = { "frees", "frees", HR__CELL_COUNT, HR__SUMS },
	[T_REFUSED] = { "refused", "refused", HR__CELL_COUNT, HR__SUMS },
	[T_END_NS] = { "end_micros", "to", HR__CELL_NS, HR__NOT_IN_TEXT },
	[T_NUMBER] = { "number", "number", HR__CELL_COUNT, HR__NOT_IN_TEXT },
};

/* Of one allocator, over the whole selected time or one interval. */
typedef struct allocator_counts {
	uint64_t allocations, frees, refused, live, bytes, in_use, peak, free_at_peak, fragmentation_at_peak;
	hr__holes_state holes; /* at the end */
} allocator_counts;

typedef struct surveyor {
	const hr__selection *selection;
	hr__holes *holes;
	hr__stretches stretches;
	uint32_t *places;            /* by allocator of the capture: its position in allocators; HR__NONE: on another device */
	uint32_t *allocators;        /* the device's allocators */
	uint32_t count;              /* number of allocators */
	allocator_counts *totals;    /* one per allocator */
	allocator_counts *intervals; /* by interval, then by allocator */
	uint32_t stretch;            /* the interval being filled */
} surveyor;

static uint64_t fragmentation(const hr__holes_state *state)
{
	if (!state->reserved_bytes) return HR__NEVER;
	return (uint64_t)(hr__holes_fragmentation(state) * 1e6 + 0.5);
}

static allocator_counts *interval_at(const surveyor *s, uint32_t stretch, uint32_t place)
{
	return &s->intervals[(size_t)stretch * s->count + place];
}

/* ---- replay ---- */

/* Ends the interval: stores its final state, which is the initial state of the next interval. */
static void end_stretch(surveyor *s)
{
	hr__holes_until(s->holes, hr__stretch_begin(&s->stretches, s->stretch + 1));
	for (uint32_t i = 0; i < s->count; i++) {
		allocator_counts *now = interval_at(s, s->stretch, i);
		now->holes = hr__holes_of(s->holes, s->allocators[i]);
		if (s->stretch + 1 == s->stretches.count) continue;
		allocator_counts *next = interval_at(s, s->stretch + 1, i);
		next->live = now->live;
		next->in_use = next->peak = now->in_use;
	}
	s->stretch++;
}

static void count_change(allocator_counts *to, const hr__change *change, uint64_t bytes)
{
	to->in_use += change->frees ? 0 - bytes : bytes;
	to->live += change->frees ? UINT64_MAX : 1;
	if (change->frees) to->frees++;
	else to->allocations++, to->bytes += bytes;
}

static void take_change(surveyor *s, uint32_t index)
{
	const hr__capture *c = s->selection->capture;
	const hr__change *change = &c->changes[index];
	const hr__allocation *allocation = &c->allocations[change->allocation];
	uint32_t place = s->places[hr__allocation_allocator(c, change->allocation)];
	uint32_t stretch = hr__stretch_at(&s->stretches, change->frees ? allocation->end_ns : allocation->begin_ns);
	while (s->stretch < stretch) end_stretch(s);
	hr__holes_change(s->holes);
	if (place == HR__NONE) return;
	allocator_counts *now = interval_at(s, s->stretch, place), *total = &s->totals[place];
	count_change(now, change, allocation->bytes);
	count_change(total, change, allocation->bytes);
	if (now->in_use > now->peak) now->peak = now->in_use;
	if (total->in_use <= total->peak) return;
	hr__holes_state holes = hr__holes_of(s->holes, s->allocators[place]);
	total->peak = total->in_use;
	total->free_at_peak = holes.free_bytes;
	total->fragmentation_at_peak = fragmentation(&holes);
}

/* Computes the state at the beginning of the selected time. */
static void begin_time(surveyor *s)
{
	const hr__capture *c = s->selection->capture;
	for (uint32_t i = 0; i < s->selection->first_change; i++) {
		const hr__change *change = &c->changes[i];
		uint32_t place = s->places[hr__allocation_allocator(c, change->allocation)];
		hr__holes_change(s->holes);
		if (place == HR__NONE) continue;
		s->totals[place].in_use += change->frees ? 0 - c->allocations[change->allocation].bytes : c->allocations[change->allocation].bytes;
		s->totals[place].live += change->frees ? UINT64_MAX : 1;
	}
	hr__holes_until(s->holes, s->selection->begin_ns);
	hr__holes_mark(s->holes);
	for (uint32_t i = 0; i < s->count; i++) {
		allocator_counts *total = &s->totals[i], *first = interval_at(s, 0, i);
		hr__holes_state holes = hr__holes_of(s->holes, s->allocators[i]);
		total->peak = total->in_use;
		total->free_at_peak = holes.free_bytes;
		total->fragmentation_at_peak = fragmentation(&holes);
		first->in_use = first->peak = total->in_use;
		first->live = total->live;
	}
}

static void take_refusals(surveyor *s)
{
	const hr__capture *c = s->selection->capture;
	for (uint32_t i = 0; i < c->refusal_count; i++) {
		uint64_t now = c->refusals[i].time_ns;
		uint32_t place = s->places[c->sites[c->refusals[i].site].allocator];
		if (place == HR__NONE || now < s->selection->begin_ns || now > s->selection->end_ns) continue;
		s->totals[place].refused++;
		interval_at(s, hr__stretch_at(&s->stretches, now), place)->refused++;
	}
}

static void survey(surveyor *s)
{
	begin_time(s);
	for (uint32_t i = s->selection->first_change; i < s->selection->last_change; i++) take_change(s, i);
	while (s->stretch < s->stretches.count) end_stretch(s);
	hr__holes_until(s->holes, s->selection->end_ns);
	for (uint32_t i = 0; i < s->count; i++) s->totals[i].holes = hr__holes_of(s->holes, s->allocators[i]);
	take_refusals(s);
}

/* ---- tables ---- */

static bool is_idle(const allocator_counts *l)
{
	return !l->allocations && !l->frees && !l->refused && !l->in_use && !l->peak && !l->holes.reserved_bytes;
}

static void fill_total(const surveyor *s, uint32_t place, uint64_t *row)
{
	const hr__capture_allocator *allocator = &s->selection->capture->allocators[s->allocators[place]];
	const allocator_counts *l = &s->totals[place];
	row[A_NAME] = (uintptr_t)allocator->name;
	row[A_KIND] = (uintptr_t)allocator->kind;
	row[A_NUMBER] = allocator->id;
	row[A_PEAK] = l->peak;
	row[A_PEAK_RESERVED] = l->holes.peak_reserved_bytes;
	row[A_PEAK_FREE] = l->free_at_peak;
	row[A_PEAK_FRAGMENTATION] = l->fragmentation_at_peak;
	row[A_LIMIT] = allocator->limit_bytes;
	row[A_ALLOCATIONS] = l->allocations;
	row[A_FREES] = l->frees;
	row[A_REFUSED] = l->refused;
	row[A_LIVE] = l->live;
	row[A_BYTES] = l->bytes;
	row[A_END] = l->in_use;
	row[A_RESERVED] = l->holes.reserved_bytes;
}

static void fill_stretch(const surveyor *s, uint32_t stretch, uint32_t place, uint64_t *row)
{
	const hr__capture_allocator *allocator = &s->selection->capture->allocators[s->allocators[place]];
	const allocator_counts *l = interval_at(s, stretch, place);
	row[T_NAME] = (uintptr_t)allocator->name;
	row[T_NUMBER] = allocator->id;
	row[T_BEGIN] = hr__stretch_begin(&s->stretches, stretch);
	row[T_END_NS] = hr__stretch_begin(&s->stretches, stretch + 1);
	row[T_PEAK] = l->peak;
	row[T_END] = l->in_use;
	row[T_RESERVED] = l->holes.reserved_bytes;
	row[T_FREE] = l->holes.free_bytes;
	row[T_LARGEST] = l->holes.largest_free_bytes;
	row[T_FRAGMENTATION] = fragmentation(&l->holes);
	row[T_LIVE] = l->live;
	row[T_ALLOCATIONS] = l->allocations;
	row[T_FREES] = l->frees;
	row[T_REFUSED] = l->refused;
}

static hr_status fill_tables(const surveyor *s, hr__table *totals, hr__table *times)
{
	hr_status status = HR_OK;
	for (uint32_t i = 0; i < s->count && !status; i++) {
		if (is_idle(&s->totals[i]) && !s->totals[i].holes.peak_reserved_bytes) continue;
		uint64_t *row = hr__table_row(totals, &status);
		if (row) fill_total(s, i, row);
		for (uint32_t k = 0; k < s->stretches.count && !status; k++) {
			if (is_idle(interval_at(s, k, i))) continue;
			row = hr__table_row(times, &status);
			if (row) fill_stretch(s, k, i, row);
		}
	}
	hr__table_finish(totals);
	hr__table_finish(times);
	return status;
}

static void find_allocators(surveyor *s)
{
	const hr__capture *c = s->selection->capture;
	for (uint32_t i = 0; i < c->allocator_count; i++) {
		bool is_here = c->allocators[i].device == s->selection->device;
		s->places[i] = is_here ? s->count : HR__NONE;
		if (is_here) s->allocators[s->count++] = i;
	}
}

/* The requested number of intervals, limited so that all allocators together fit into ROWS_MOST. */
static uint32_t choose_stretches(const hr__report_view *report, uint32_t allocators)
{
	uint32_t wanted = report->options->max_rows;
	if (!wanted) wanted = report->format == HR_PROFILE_TEXT ? STRETCHES_TEXT : STRETCHES_JSON;
	uint32_t most = ROWS_MOST / (allocators ? allocators : 1);
	return wanted < most ? wanted : most ? most : 1;
}

hr_status hr__view_allocators(hr__report_view *report)
{
	static const hr__table_plan total_plan = { .key = "allocators", .title = "Allocators", .columns = total_columns, .column_count = A_COLUMNS,
		                                       .order = "peak_bytes", .most = ROWS_MOST };
	static const hr__table_plan time_plan = { .key = "over_time", .title = "Over time", .columns = time_columns, .column_count = T_COLUMNS,
		                                      .most = ROWS_MOST, .bends = true };
	const hr__capture *c = report->selection->capture;
	surveyor s = { .selection = report->selection };
	hr_status status = HR_OK;
	hr__table *totals = hr__report_table(report, &total_plan, &status), *times = hr__report_table(report, &time_plan, &status);
	s.places = hr__view_alloc(c->allocator_count, sizeof *s.places, &status);
	s.allocators = hr__view_alloc(c->allocator_count, sizeof *s.allocators, &status);
	if (!status) find_allocators(&s);
	s.stretches = hr__stretches_of(s.selection, choose_stretches(report, s.count));
	size_t intervals = (size_t)s.stretches.count * s.count;
	s.totals = hr__view_alloc(s.count, sizeof *s.totals, &status);
	s.intervals = hr__view_alloc(intervals, sizeof *s.intervals, &status);
	if (!status) status = hr__holes_make(c, &s.holes);
	if (!status) survey(&s);
	if (!status) status = fill_tables(&s, totals, times);
	hr__holes_free(s.holes);
	hr__view_free(s.intervals, intervals, sizeof *s.intervals);
	hr__view_free(s.totals, s.count, sizeof *s.totals);
	hr__view_free(s.allocators, c->allocator_count, sizeof *s.allocators);
	hr__view_free(s.places, c->allocator_count, sizeof *s.places);
	return status;
}
