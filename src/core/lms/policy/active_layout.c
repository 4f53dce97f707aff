/* active_layout.c - the addresses that the active plan assigns. See active_plan.h.
 *
 * A tensor has a STAY for each time that it is on the device. Evictions and drops cut the time from its first to its last use; where an op
 * runs again, each tensor that it creates has memory, if only for that turn. */
#include "core/lms/policy/active_plan.h"

#include "core/base/sort.h"

#define LATE HR__LAYOUT_LATE

/* A time in which a tensor has no memory. */
typedef struct cut {
	uint32_t tensor;
	uint32_t after; /* the last turn that uses it */
	uint32_t freed; /* the last turn in which its memory counts as used */
	uint32_t back;  /* the turn at which it has memory again; HR__PLAN_NEVER = none */
	bool again;     /* then an op makes it again */
} cut;

typedef struct layout {
	const hr__record *record;
	hr__active_plan *active;
	cut *cuts; /* by [after] */
	uint32_t cut_count;
	uint32_t *next;  /* by tensor: at first the number of its cuts, then the stay that its next cut ends */
	uint32_t *spare; /* by tensor: the number of turns in which it is made and not kept, then the next stay for one */
	uint32_t *kept;  /* by tensor: 1 + the last turn in which it was made and is kept */
	uint32_t *backs; /* drops that are not for good, by back_at */
	uint32_t back_count;
} layout;

/* ---- times ---- */

/* The turn that is [late] / LATE of the way round the ring from [from] to [to]. */
static uint32_t between(uint32_t from, uint32_t to, uint32_t n, uint32_t late)
{
	HR_ASSERT(from < n && to < n);
	uint64_t way = (to + n - from) % n;
	return (from + (uint32_t)(way * (late < LATE ? late : LATE) / LATE)) % n;
}

uint32_t hr__active_plan_restore_turn(const hr__plan_move *move, uint32_t n, uint32_t late)
{
	return late <= LATE ? move->starts_by : between(move->starts_by, move->needed_by, n, late - LATE);
}

/* The turn until which memory counts as used: until the copy to the host is done, or earlier. */
static uint32_t freed_turn(const hr__plan_move *move, uint32_t n, uint32_t late)
{
	return between(move->out_after, move->gone_by, n, late < LATE ? LATE - late : 0);
}

/* ---- cuts ---- */

static bool cut_before(const void *left, const void *right, const void *context)
{
	const cut *a = left, *b = right;
	(void)context;
	return a->after != b->after ? a->after < b->after : a->tensor < b->tensor;
}

static void list_cuts(layout *l, uint32_t late)
{
	const hr__plan *plan = &l->active->plan;
	uint32_t n = l->active->turn_count;
	for (uint32_t i = 0; i < plan->move_count; i++) {
		const hr__plan_move *move = &plan->moves[i];
		l->cuts[l->cut_count++] = (cut){ move->tensor, move->out_after, freed_turn(move, n, late), hr__active_plan_restore_turn(move, n, late), false };
	}
	for (uint32_t i = 0; i < plan->drop_count; i++)
		l->cuts[l->cut_count++] =
			(cut){ plan->drops[i].tensor, plan->drops[i].after, plan->drops[i].after, plan->drops[i].back_at, true };
	hr__sort(l->cuts, l->cut_count, sizeof *l->cuts, cut_before, NULL);
	for (uint32_t i = 0; i < l->cut_count; i++) l->next[l->cuts[i].tensor] += l->cuts[i].back != HR__PLAN_NEVER;
}

static bool back_before(const void *left, const void *right, const void *context)
{
	const hr__plan *plan = context;
	uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
	return plan->drops[a].back_at != plan->drops[b].back_at ? plan->drops[a].back_at < plan->drops[b].back_at : a < b;
}

static void list_backs(layout *l)
{
	const hr__plan *plan = &l->active->plan;
	for (uint32_t i = 0; i < plan->drop_count; i++)
		if (plan->drops[i].back_at != HR__PLAN_NEVER) l->backs[l->back_count++] = i;
	hr__sort(l->backs, l->back_count, sizeof *l->backs, back_before, plan);
}

/* Calls [found] for each tensor that an op makes again in some turn and that is not kept. */
static void for_each_spare(layout *l, void (*found)(layout *l, uint32_t tensor, uint32_t turn))
{
	const hr__active_plan *active = l->active;
	uint32_t at = 0;
	for (uint32_t t = 0; t < active->tensor_count; t++) l->kept[t] = 0;
	for (uint32_t i = 0; i < active->turn_count; i++) {
		if (!hr__active_plan_is_again(active, i)) continue;
		for (; at < l->back_count && active->plan.drops[l->backs[at]].back_at <= i; at++)
			l->kept[active->plan.drops[l->backs[at]].tensor] = active->plan.drops[l->backs[at]].back_at + 1;
		uint32_t op = active->plan.turns[i].op, end = hr__record_first_use(l->record, op + 1);
		for (uint32_t u = hr__record_first_use(l->record, op); u < end; u++) {
			uint32_t t = HR__RECORD_AT(hr__plan_use, l->record->uses, u).tensor;
			if (hr__active_plan_creates(l->record, active, op, t) && l->kept[t] != i + 1) found(l, t, i);
		}
	}
}

static void count_spare(layout *l, uint32_t tensor, uint32_t turn)
{
	(void)turn;
	l->spare[tensor]++;
}

/* ---- stays ---- */

bool hr__active_plan_stays_in_place(const hr__recorded_tensor *seen)
{
	return seen->never_evict && seen->created == HR__RECORD_NONE;
}

/* One stay per tensor, one more for each cut, and those in which it is made and not kept. Returns their number. */
static uint32_t begin_stays(layout *l, bool write)
{
	hr__active_plan *active = l->active;
	uint32_t count = 0;
	for (uint32_t t = 0; t < active->tensor_count; t++) {
		const hr__recorded_tensor *seen = &HR__RECORD_AT(hr__recorded_tensor, l->record->tensors, t);
		uint32_t cuts = l->next[t], spares = l->spare[t], used = active->first[t + 1] - active->first[t];
		if (write) active->first_stay[t] = l->next[t] = l->spare[t] = count;
		if (!used || seen->bytes <= HR__SMALL_MAX || seen->owns_pages || hr__active_plan_stays_in_place(seen)) continue;
		bool ring = active->persists[t];
		uint32_t regular = ring && cuts ? cuts : cuts + 1, at = count;
		count += regular + spares;
		if (!write) continue;
		uint32_t first = active->turn_of[active->uses[active->first[t]].op];
		uint32_t last = seen->died != HR__PLAN_NEVER ? active->turn_of[seen->died] : active->turn_count - 1;
		if (!ring && seen->created == HR__RECORD_NONE) first = 0;
		if (ring && !cuts) first = 0;
		active->stays[at] = (hr__layout_stay){ seen->bytes, first, last, 0 };
		l->spare[t] += regular;
	}
	if (write) active->first_stay[active->tensor_count] = count;
	return count;
}

static void add_place(layout *l, uint32_t turn, uint32_t stay)
{
	HR_ASSERT(l->active->place_count < l->active->place_capacity);
	l->active->places[l->active->place_count++] = (hr__planned_place){ .turn = turn, .stay = stay };
}

/* Ends a stay at a cut, and begins the next. */
static void apply(layout *l, const cut *c)
{
	hr__active_plan *active = l->active;
	uint32_t t = c->tensor, begin = active->first_stay[t], end = active->first_stay[t + 1], at = l->next[t];
	if (begin == end) return;
	if (c->back == HR__PLAN_NEVER) { /* of a ghost, for good */
		active->stays[at].to = c->freed;
		return;
	}
	if (!active->persists[t]) { /* one stay ends here, and the rest begins at the restore */
		hr__layout_stay rest = active->stays[at];
		active->stays[at].to = c->freed;
		rest.from = c->back;
		active->stays[at + 1] = rest;
		if (c->again) add_place(l, c->back, at + 1);
	} else { /* stays between moves; the last one wraps around the end of the step */
		uint32_t following = at + 1 < end ? at + 1 : begin;
		active->stays[at].bytes = active->bytes[t];
		active->stays[at].to = c->freed;
		active->stays[following].bytes = active->bytes[t];
		active->stays[following].from = c->back;
	}
	l->next[t]++;
}

static void add_spare(layout *l, uint32_t tensor, uint32_t turn)
{
	const hr__active_plan *active = l->active;
	if (active->first_stay[tensor] == active->first_stay[tensor + 1]) return;
	uint32_t at = l->spare[tensor]++;
	HR_ASSERT(at < active->first_stay[tensor + 1]);
	active->stays[at] = (hr__layout_stay){ active->bytes[tensor], turn, turn, 0 };
	add_place(l, turn, at);
}

static bool place_before(const void *left, const void *right, const void *context)
{
	const hr__planned_place *a = left, *b = right;
	(void)context;
	return a->turn != b->turn ? a->turn < b->turn : a->stay < b->stay;
}

/* ---- memory ---- */

static void *take(size_t count, size_t item)
{
	void *block;
	return hr__os()->alloc((count + 1) * item, &block) ? NULL : block;
}

static void give(void *block, size_t count, size_t item)
{
	if (block) hr__os()->free(block, (count + 1) * item);
}

static bool make_stays(layout *l)
{
	hr__active_plan *active = l->active;
	uint32_t count = begin_stays(l, false);
	if (active->stays) give(active->stays, active->stay_capacity, sizeof *active->stays);
	if (active->places) give(active->places, active->place_capacity, sizeof *active->places);
	if (!active->first_stay) active->first_stay = take(active->tensor_count, sizeof *active->first_stay);
	active->stays = take(count, sizeof *active->stays);
	active->places = take(count, sizeof *active->places);
	active->stay_capacity = active->place_capacity = count;
	active->place_count = 0;
	return active->first_stay && active->stays && active->places;
}

hr_status hr__active_plan_lay_out(const hr__record *record, hr__active_plan *active, uint32_t late, uint64_t most, bool *fits)
{
	uint32_t tensors = active->tensor_count, cuts = active->plan.move_count + active->plan.drop_count, count = 0;
	layout l = { .record = record, .active = active };
	l.cuts = take(cuts, sizeof *l.cuts);
	l.next = take(tensors, sizeof *l.next);
	l.spare = take(tensors, sizeof *l.spare);
	l.kept = take(tensors, sizeof *l.kept);
	l.backs = take(active->plan.drop_count, sizeof *l.backs);
	hr_status status = HR_NO_HOST_MEMORY;
	if (l.cuts && l.next && l.spare && l.kept && l.backs) {
		list_cuts(&l, late);
		list_backs(&l);
		for_each_spare(&l, count_spare);
		if (make_stays(&l)) status = HR_OK;
	}
	if (!status) {
		count = begin_stays(&l, true);
		for (uint32_t i = 0; i < l.cut_count; i++) apply(&l, &l.cuts[i]);
		for_each_spare(&l, add_spare);
		hr__sort(active->places, active->place_count, sizeof *active->places, place_before, NULL);
	}
	give(l.cuts, cuts, sizeof *l.cuts);
	give(l.next, tensors, sizeof *l.next);
	give(l.spare, tensors, sizeof *l.spare);
	give(l.kept, tensors, sizeof *l.kept);
	give(l.backs, active->plan.drop_count, sizeof *l.backs);
	return status ? status : hr__layout_make(active->stays, count, active->turn_count, most, fits);
}
