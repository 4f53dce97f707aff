/* view_leaks.c - memory that steps leave behind.
 *
 * Memory that is live at the end of a step is not necessarily a leak: it may be a variable, or freed by the next step. The sign of
 * a leak is that the same place in the program has more live bytes at the end of each step than at the end of the step before. A
 * place is all sites with the same op, scope, tag, shape and call stack; the stream is ignored, because a leak may use another one each time.
 * For each place, the live bytes at the ends of steps are compared:
 *
 *     end of step    1      2      3      4
 *     variables    400    400    400    400     stays
 *     last output    8      8      8      8     stays: each step frees that of the step before
 *     history       10     20     30     40     grows
 *
 * A place grows if it rose at two or more step ends, at more than half of all step ends, and fell at fewer than it rose. The first
 * step is a warm-up and serves as the baseline. */
#include "core/os/os.h"
#include "analysis/capture/finder.h"
#include "analysis/view/view.h"

enum { L_OP, L_GROWTH, L_BYTES, L_GROWS, L_ROSE, L_ALLOCATIONS, L_SCOPE, L_SHAPE, L_TAG, L_DTYPE, L_PER_STEP, L_STACK, L_COLUMNS };

/* In display order. */
static const hr__column leak_columns[] = {
	[L_OP] = { "op", "op", HR__CELL_NAME, 0 },
	[L_GROWTH] = { "growth_bytes", "grown", HR__CELL_BYTES, HR__SUMS },
	[L_BYTES] = { "bytes", "alive", HR__CELL_BYTES, HR__SUMS | HR__MIN_BYTES },
	[L_GROWS] = { "growing", "grows", HR__CELL_YES, 0 },
	[L_ROSE] = { "grew_steps", "steps", HR__CELL_COUNT, 0 },
	[L_ALLOCATIONS] = { "allocations", "blocks", HR__CELL_COUNT, HR__SUMS },
	[L_SCOPE] = { "scope", "scope", HR__CELL_NAME, 0 },
	[L_SHAPE] = { "shape", "shape", HR__CELL_SHAPE, 0 },
	[L_TAG] = { "tag", "tag", HR__CELL_NAME, HR__NOT_IN_TEXT },
	[L_DTYPE] = { "dtype", "dtype", HR__CELL_DTYPE, HR__NOT_IN_TEXT },
	[L_PER_STEP] = { "growth_bytes_per_step", "per step", HR__CELL_BYTES, HR__SUMS | HR__NOT_IN_TEXT },
	[L_STACK] = { "stack", "stack", HR__CELL_STACK, HR__STACKS },
};

enum { S_STEP, S_LEFT, S_LEFT_ALLOCATIONS, S_KEPT, S_ALIVE, S_COLUMNS };

static const hr__column step_columns[] = {
	[S_STEP] = { "step", "step", HR__CELL_COUNT, 0 },
	[S_LEFT] = { "left_bytes", "left behind", HR__CELL_BYTES, HR__SUMS },
	[S_LEFT_ALLOCATIONS] = { "left_allocations", "blocks", HR__CELL_COUNT, HR__SUMS },
	[S_KEPT] = { "kept_bytes", "never freed", HR__CELL_BYTES, HR__SUMS },
	[S_ALIVE] = { "end_bytes", "in use at its end", HR__CELL_BYTES, 0 },
};

enum { F_STEPS, F_GROWING, F_GROWTH, F_ALIVE, F_COLUMNS };

static const hr__column fact_columns[] = {
	[F_STEPS] = { "steps", "steps", HR__CELL_COUNT, HR__ALWAYS },
	[F_GROWING] = { "growing", "places that grow", HR__CELL_COUNT, HR__ALWAYS },
	[F_GROWTH] = { "growth_bytes_per_step", "growth per step", HR__CELL_BYTES, 0 },
	[F_ALIVE] = { "after_last_step_bytes", "alive after the last step", HR__CELL_BYTES, 0 },
};

typedef struct leak_place {
	uint32_t site;               /* its first site */
	hr_dtype dtype;              /* common to all its sites; HR_DTYPE_NONE if they differ */
	uint64_t live, allocations;  /* current */
	uint64_t first, last;        /* bytes at the end of the first step, and of the latest step */
	uint64_t last_allocations;
	uint32_t rose, fell;         /* number of step ends after the first */
	bool touched;                /* changed since the last step end */
} leak_place;

typedef struct watcher {
	hr__report_view *report;
	const hr__selection *selection;
	leak_place *places;
	uint32_t place_count;
	uint32_t *place_of;          /* by site: index of its place */
	uint32_t *touched;           /* indices of touched places */
	uint32_t touched_count;
	uint32_t ended;              /* number of ended steps */
	uint64_t in_use;
	uint32_t allocation;         /* index of the next allocation */
	uint32_t step_allocation;    /* index of the step's first allocation */
	uint64_t left, left_allocations;
	hr__table *steps;
	hr_status status;
} watcher;

/* ---- places ---- */

static bool same_place(const hr__site *a, const hr__site *b)
{
	return a->op == b->op && a->scope == b->scope && a->tag == b->tag && a->shape == b->shape && a->stack == b->stack;
}

static uint32_t find_place(watcher *w, hr__slots *slots, uint32_t index)
{
	const hr__site *sites = w->selection->capture->sites, *site = &sites[index];
	uint32_t first = hr__finder_hash(slots, (uint64_t)site->op << 32 | site->scope, (uint64_t)site->tag << 32 | site->shape);
	uint32_t hash = hr__finder_hash(slots, first, site->stack);
	for (uint32_t at = hr__slots_first(slots, hash); hr__slots_holds(slots, hash, &at); at++) {
		leak_place *found = &w->places[slots->slots[at].item - 1];
		if (!same_place(&sites[found->site], site)) continue;
		if (found->dtype != site->dtype) found->dtype = HR_DTYPE_NONE;
		return slots->slots[at].item - 1;
	}
	w->status = hr__slots_reserve(slots);
	if (w->status) return 0;
	hr__slots_add(slots, hash, w->place_count);
	w->places[w->place_count] = (leak_place){ .site = index, .dtype = site->dtype };
	return w->place_count++;
}

/* Only selected sites have a place, so all places are on one device. */
static void find_places(watcher *w)
{
	hr__slots slots = { .salt = hr__ticks() ^ (uintptr_t)w };
	for (uint32_t i = 0; i < w->selection->capture->site_count && !w->status; i++)
		if (w->selection->takes_site[i]) w->place_of[i] = find_place(w, &slots, i);
	hr__slots_free(&slots);
}

/* ---- replay ---- */

/* False for a tensor that was created in an earlier step and only restored in this one. */
static bool is_of_step(const watcher *w, uint32_t allocation)
{
	return hr__allocation_birth(w->selection->capture, allocation) >= w->step_allocation;
}

static void take_change(watcher *w, uint32_t index)
{
	const hr__capture *c = w->selection->capture;
	const hr__change *change = &c->changes[index];
	const hr__allocation *allocation = &c->allocations[change->allocation];
	if (!change->frees) w->allocation++;
	if (!w->selection->takes_site[allocation->site]) return;
	leak_place *at = &w->places[w->place_of[allocation->site]];
	if (!at->touched) w->touched[w->touched_count++] = w->place_of[allocation->site];
	at->touched = true;
	if (change->frees) {
		at->live -= allocation->bytes;
		at->allocations--;
		w->in_use -= allocation->bytes;
	} else {
		at->live += allocation->bytes;
		at->allocations++;
		w->in_use += allocation->bytes;
	}
	if (!is_of_step(w, change->allocation)) return;
	w->left += change->frees ? 0 - allocation->bytes : allocation->bytes;
	w->left_allocations += change->frees ? UINT64_MAX : 1;
}

/* Only places that changed in the step can have risen or fallen. */
static void compare_places(watcher *w)
{
	bool is_first = w->ended++ == 0;
	for (uint32_t i = 0; i < w->touched_count; i++) {
		leak_place *at = &w->places[w->touched[i]];
		if (is_first) at->first = at->live;
		else if (at->live > at->last) at->rose++;
		else if (at->live < at->last) at->fell++;
		at->last = at->live;
		at->last_allocations = at->allocations;
		at->touched = false;
	}
	w->touched_count = 0;
}

/* Bytes that the step left behind and that are still live at the end of the trace. */
static uint64_t kept_bytes(const watcher *w)
{
	uint64_t bytes = 0;
	for (uint32_t i = w->step_allocation; i < w->allocation; i++)
		if (w->selection->capture->allocations[i].end_ns == HR__NEVER && hr__selects_allocation(w->selection, i) && is_of_step(w, i))
			bytes += w->selection->capture->allocations[i].bytes;
	return bytes;
}

static void end_step(watcher *w, uint64_t number)
{
	uint64_t *row = hr__table_row(w->steps, &w->status);
	if (!row) return;
	row[S_STEP] = number;
	row[S_LEFT] = w->left;
	row[S_LEFT_ALLOCATIONS] = w->left_allocations;
	row[S_KEPT] = kept_bytes(w);
	row[S_ALIVE] = w->in_use;
	compare_places(w);
}

static void begin_step(watcher *w)
{
	w->left = w->left_allocations = 0;
	w->step_allocation = w->allocation;
}

/* Only steps that ended count. Without any, the end of the trace counts as a step end. */
static void watch(watcher *w)
{
	const hr__selection *s = w->selection;
	const hr__capture *c = s->capture;
	uint32_t at = 0;
	for (uint32_t i = 0; i < c->step_count && !w->status; i++) {
		const hr__step_run *step = &c->steps[i];
		if (step->end_ns == HR__NEVER || (s->step != HR__NONE && i > s->step)) continue;
		while (at < step->first_change) take_change(w, at++);
		begin_step(w);
		while (at < step->last_change) take_change(w, at++);
		if (s->step == HR__NONE || i == s->step) end_step(w, step->number);
	}
	if (w->ended) return;
	while (at < s->last_change) take_change(w, at++);
	compare_places(w);
	w->ended = 0;
}

static bool is_growing(const watcher *w, const leak_place *at)
{
	uint32_t later = w->ended > 1 ? w->ended - 1 : 0;
	return at->last > at->first && at->rose >= 2 && at->rose > later / 2 && at->fell < at->rose;
}

static void fill_place(const watcher *w, const leak_place *at, uint64_t *row)
{
	const hr__site *site = &w->selection->capture->sites[at->site];
	uint32_t later = w->ended > 1 ? w->ended - 1 : 1;
	bool grows = is_growing(w, at);
	row[L_OP] = site->op;
	row[L_SCOPE] = site->scope;
	row[L_TAG] = site->tag;
	row[L_STACK] = site->stack;
	row[L_SHAPE] = site->shape;
	row[L_DTYPE] = at->dtype;
	row[L_BYTES] = at->last;
	row[L_ALLOCATIONS] = at->last_allocations;
	row[L_GROWTH] = grows ? at->last - at->first : 0;
	row[L_ROSE] = at->rose;
	row[L_PER_STEP] = row[L_GROWTH] / later;
	row[L_GROWS] = grows;
}

static void fill_places(watcher *w, hr__table *leaks, hr__table *facts)
{
	uint64_t growth = 0, alive = 0;
	for (uint32_t i = 0; i < w->place_count && !w->status; i++) {
		if (!w->places[i].last_allocations) continue;
		uint64_t *row = hr__table_row(leaks, &w->status);
		if (!row) return;
		fill_place(w, &w->places[i], row);
		w->report->growing += row[L_GROWS];
		growth += row[L_PER_STEP];
		alive += row[L_BYTES];
	}
	uint64_t *row = hr__table_row(facts, &w->status);
	if (!row) return;
	row[F_STEPS] = w->ended;
	row[F_GROWING] = w->report->growing;
	row[F_GROWTH] = growth;
	row[F_ALIVE] = alive;
}

hr_status hr__view_leaks(hr__report_view *report)
{
	static const hr__table_plan fact_plan = { .key = "leaks", .title = "Leaks", .form = HR__TABLE_FACTS, .columns = fact_columns, .column_count = F_COLUMNS };
	static const hr__table_plan leak_plan = { .key = "by_site", .title = "Alive after the last step", .columns = leak_columns,
		                                      .column_count = L_COLUMNS, .order = "growth_bytes" };
	static const hr__table_plan step_plan = { .key = "by_step", .title = "Left behind by each step", .columns = step_columns, .column_count = S_COLUMNS,
		                                      .bends = true };
	const hr__capture *c = report->selection->capture;
	watcher w = { .report = report, .selection = report->selection };
	hr__table *facts = hr__report_table(report, &fact_plan, &w.status);
	hr__table *leaks = hr__report_table(report, &leak_plan, &w.status);
	w.steps = hr__report_table(report, &step_plan, &w.status);
	w.places = hr__view_alloc(c->site_count, sizeof *w.places, &w.status);
	w.place_of = hr__view_alloc(c->site_count, sizeof *w.place_of, &w.status);
	w.touched = hr__view_alloc(c->site_count, sizeof *w.touched, &w.status);
	if (!w.status) find_places(&w);
	if (!w.status) watch(&w);
	if (!w.status) fill_places(&w, leaks, facts);
	hr__view_free(w.places, c->site_count, sizeof *w.places);
	hr__view_free(w.place_of, c->site_count, sizeof *w.place_of);
	hr__view_free(w.touched, c->site_count, sizeof *w.touched);
	if (w.status) return w.status;
	hr__table_finish(facts);
	hr__table_finish(leaks);
	hr__table_finish(w.steps);
	return HR_OK;
}
