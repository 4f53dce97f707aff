/* active_layout.c - the addresses that the active plan assigns. See active_plan.h.
 *
 * A tensor has a STAY for each time that it is on the device. Evictions and drops cut the time from its first to its last use; where an op
 * runs again, each tensor that it creates has memory, if only for that turn. */
#include "core/lms/policy/active_plan.h"

#include "core/base/sort.h"
#include "core/lms/plan/plan_ring.h"

#define NO_STAY UINT32_MAX

/* A time in which a tensor has no memory. */
typedef struct cut {
	uint32_t tensor;
	uint32_t after; /* the last turn that uses it */
	uint32_t freed; /* the last turn in which its memory counts as used */
	uint32_t back;  /* the turn at which it has memory again; HR__PLAN_NEVER = none */
	const hr__plan_move *move; /* NULL: it is dropped, and an op makes it again */
	uint32_t following; /* the stay that begins at [back]; NO_STAY = it has no place */
} cut;

typedef struct layout {
	const hr__record *record;
	hr__active_plan *active;
	const hr__plan_machine *machine;
	uint64_t *time; /* by turn: time of the turns before it; [turn_count] = of all */
	uint32_t *order, *spare_turns; /* moves in the order of their restores; by move: turns by which the restore can begin later */
	cut *cuts; /* by [after] */
	uint32_t cut_count;
	uint32_t *next;  /* by tensor: at first the number of its cuts, then the stay that its next cut ends */
	uint32_t *spare; /* by tensor: the number of turns in which it is made and not kept, then the next stay for one */
	uint32_t *kept;  /* by tensor: 1 + the last turn in which it was made and is kept */
	uint32_t *backs; /* drops that are not for good, by back_at */
	uint32_t back_count;
} layout;

/* ---- times ---- */

static uint32_t distance(uint32_t from, uint32_t to, uint32_t n)
{
	HR_ASSERT(from < n && to < n);
	return (to + n - from) % n;
}

static void add_up_times(layout *l)
{
	const hr__active_plan *active = l->active;
	for (uint32_t i = 0; i < active->turn_count; i++) {
		uint32_t op = active->plan.turns ? active->plan.turns[i].op : i;
		l->time[i + 1] = l->time[i] + (l->record->measured ? HR__RECORD_AT(hr__recorded_op, l->record->ops, op).ns : 0);
	}
}

static bool begins_before(const void *left, const void *right, const void *context)
{
	const layout *l = context;
	const hr__plan_move *moves = l->active->plan.moves, *a = &moves[*(const uint32_t *)left], *b = &moves[*(const uint32_t *)right];
	uint32_t n = l->active->turn_count, of_a = distance(a->starts_by, a->needed_by, n), of_b = distance(b->starts_by, b->needed_by, n);
	if (a->starts_by != b->starts_by) return a->starts_by < b->starts_by;
	return of_a != of_b ? of_a < of_b : a < b;
}

/* The turn that begins at [ns] or before, at least [from] and at most [most] turns later. Times after the end of the step are of the next. */
static uint32_t turns_until(const layout *l, uint64_t ns, uint32_t from, uint32_t most)
{
	uint32_t low = 0, high = most, n = l->active->turn_count;
	while (low < high) {
		uint32_t middle = low + (high - low + 1) / 2, turn = from + middle;
		uint64_t begins = turn < n ? l->time[turn] : l->time[turn - n] + l->time[n];
		if (begins <= ns) low = middle;
		else high = middle - 1;
	}
	return low;
}

/* Turns by which each restore can begin later and still be done when it is needed, if the link restores one after the other. From the
 * last to the first, and once more around the end of the step. */
static void find_spare_turns(layout *l)
{
	const hr__plan *plan = &l->active->plan;
	uint32_t n = l->active->turn_count;
	uint64_t whole = l->time[n], next = UINT64_MAX;
	for (uint32_t i = 0; i < plan->move_count; i++) l->order[i] = i;
	hr__sort(l->order, plan->move_count, sizeof *l->order, begins_before, l);
	for (uint32_t i = 2 * plan->move_count; i-- > 0;) {
		const hr__plan_move *move = &plan->moves[l->order[i % plan->move_count]];
		uint64_t round = i < plan->move_count ? 0 : whole, begins = l->time[move->starts_by] + round;
		uint64_t needed = l->time[move->needed_by] + round + (move->needed_by < move->starts_by ? whole : 0);
		uint64_t ns = hr__plan_ring_copy_ns(l->active->bytes[move->tensor], l->machine->in_bytes_per_s, l->machine->copy_ns);
		uint64_t done = needed < next ? needed : next, latest = done > begins + ns ? done - ns : begins;
		l->spare_turns[l->order[i % plan->move_count]] =
			turns_until(l, latest - round, move->starts_by, distance(move->starts_by, move->needed_by, n));
		next = latest;
	}
}

/* ---- cuts ---- */

static bool cut_before(const void *left, const void *right, const void *context)
{
	const cut *a = left, *b = right;
	(void)context;
	return a->after != b->after ? a->after < b->after : a->tensor < b->tensor;
}

static void list_cuts(layout *l)
{
	const hr__plan *plan = &l->active->plan;
	for (uint32_t i = 0; i < plan->move_count; i++) {
		const hr__plan_move *move = &plan->moves[i];
		l->cuts[l->cut_count++] = (cut){ move->tensor, move->out_after, move->gone_by, move->starts_by, move, NO_STAY };
	}
	for (uint32_t i = 0; i < plan->drop_count; i++)
		l->cuts[l->cut_count++] =
			(cut){ plan->drops[i].tensor, plan->drops[i].after, plan->drops[i].after, plan->drops[i].back_at, NULL, NO_STAY };
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
		active->stays[at] = (hr__layout_stay){ .bytes = seen->bytes, .from = first, .to = last };
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

static void end_stay(const layout *l, const cut *c, hr__layout_stay *stay)
{
	stay->to = c->freed;
	if (c->move) stay->early = distance(c->after, c->freed, l->active->turn_count);
}

static void begin_stay(const layout *l, const cut *c, hr__layout_stay *stay)
{
	stay->from = c->back;
	if (!c->move) return;
	stay->late = distance(c->back, c->move->needed_by, l->active->turn_count);
	stay->free_late = l->spare_turns[c->move - l->active->plan.moves];
}

/* Ends a stay at a cut, and begins the next. */
static void apply(layout *l, cut *c)
{
	hr__active_plan *active = l->active;
	uint32_t t = c->tensor, begin = active->first_stay[t], end = active->first_stay[t + 1], at = l->next[t];
	if (begin == end) return;
	if (c->back == HR__PLAN_NEVER) { /* of a ghost, for good */
		active->stays[at].to = c->freed;
		return;
	}
	if (!active->persists[t]) { /* one stay ends here, and the rest begins at the restore */
		c->following = at + 1;
		active->stays[at + 1] = (hr__layout_stay){ .bytes = active->bytes[t], .to = active->stays[at].to };
		if (!c->move) add_place(l, c->back, at + 1);
	} else { /* stays between moves; the last one wraps around the end of the step */
		c->following = at + 1 < end ? at + 1 : begin;
		active->stays[at].bytes = active->stays[c->following].bytes = active->bytes[t];
	}
	end_stay(l, c, &active->stays[at]);
	begin_stay(l, c, &active->stays[c->following]);
	l->next[t]++;
}

static void add_spare(layout *l, uint32_t tensor, uint32_t turn)
{
	const hr__active_plan *active = l->active;
	if (active->first_stay[tensor] == active->first_stay[tensor + 1]) return;
	uint32_t at = l->spare[tensor]++;
	HR_ASSERT(at < active->first_stay[tensor + 1]);
	active->stays[at] = (hr__layout_stay){ .bytes = active->bytes[tensor], .from = turn, .to = turn };
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

/* A restore is requested when its place is free. */
static void request_late(layout *l)
{
	for (uint32_t i = 0; i < l->cut_count; i++) {
		const cut *c = &l->cuts[i];
		if (c->move && c->following != NO_STAY)
			l->active->plan.moves[c->move - l->active->plan.moves].in_before = l->active->stays[c->following].from;
	}
}

static hr_status lay_out(layout *l, uint64_t most)
{
	hr__active_plan *active = l->active;
	add_up_times(l);
	find_spare_turns(l);
	list_cuts(l);
	list_backs(l);
	for_each_spare(l, count_spare);
	if (!make_stays(l)) return HR_NO_HOST_MEMORY;
	uint32_t count = begin_stays(l, true);
	for (uint32_t i = 0; i < l->cut_count; i++) apply(l, &l->cuts[i]);
	for_each_spare(l, add_spare);
	hr__sort(active->places, active->place_count, sizeof *active->places, place_before, NULL);
	hr_status status = hr__layout_make(active->stays, count, active->turn_count, most, &active->laid_out, &active->late_bytes);
	if (!status && active->laid_out) request_late(l);
	return status;
}

hr_status hr__active_plan_lay_out(const hr__record *record, const hr__plan_machine *machine, hr__active_plan *active, uint64_t most)
{
	uint32_t tensors = active->tensor_count, cuts = active->plan.move_count + active->plan.drop_count;
	layout l = { .record = record, .active = active, .machine = machine };
	l.time = take(active->turn_count, sizeof *l.time);
	l.order = take(active->plan.move_count, sizeof *l.order);
	l.spare_turns = take(active->plan.move_count, sizeof *l.spare_turns);
	l.cuts = take(cuts, sizeof *l.cuts);
	l.next = take(tensors, sizeof *l.next);
	l.spare = take(tensors, sizeof *l.spare);
	l.kept = take(tensors, sizeof *l.kept);
	l.backs = take(active->plan.drop_count, sizeof *l.backs);
	bool has_memory = l.time && l.order && l.spare_turns && l.cuts && l.next && l.spare && l.kept && l.backs;
	hr_status status = has_memory ? lay_out(&l, most) : HR_NO_HOST_MEMORY;
	give(l.time, active->turn_count, sizeof *l.time);
	give(l.order, active->plan.move_count, sizeof *l.order);
	give(l.spare_turns, active->plan.move_count, sizeof *l.spare_turns);
	give(l.cuts, cuts, sizeof *l.cuts);
	give(l.next, tensors, sizeof *l.next);
	give(l.spare, tensors, sizeof *l.spare);
	give(l.kept, tensors, sizeof *l.kept);
	give(l.backs, active->plan.drop_count, sizeof *l.backs);
	return status;
}
