/* steps.c - where steps begin and end, and what follows from them.
 *
 * When a step ends, its record is JUDGED: should a plan be made of it? Yes if there is no plan yet, if the program now does
 * something else, and if the times of ops have changed. A step that followed the plan and still had unplanned evictions is
 * CORRECTED: less memory was usable than was free. The plan is made when the next step begins; free memory is joined then too, if
 * that helps and takes little time.
 *
 * Programs that mark no steps are watched until they repeat (repeats.h). */
#include <string.h>

#include "core/base/checked.h"
#include "core/lms/policy/learned.h"
#include "core/lms/recipe/recipe.h"
#include "core/memory/bfc/tensor_block.h"
#include "core/os/os.h"
#include "core/trace/trace.h"

#define CORRECTIONS 8u
#define SPARE_PAGES 24u /* assumed lost to blocks that end within a page, if memory is large enough */
#define GATHERED 4u
#define GATHER_PAGES 8u /* pages, besides 1/256 of memory, that plans leave unused: joining free memory leaves them to small and pinned blocks */
#define MAPPING_SHARE 50u /* mapping may take 1/50 of a step before memory is joined for a layout */
#define MEASURED 3u       /* number of steps that follow the plan in which ops are still timed */
#define GAIN_SHARE 32u    /* a plan that would move tensors to new places must save 1/32 of the step */

/* ---- a new plan ---- */

/* Maps tensors to the new plan. Tensors that it does not name have no plan. */
static void assign(hr__lms *lms, hr__active_plan *active)
{
	HR_ASSERT(hr__lock_is_mine(&lms->lock));
	for (uint32_t i = 0; i < lms->member_count; i++) lms->members[i]->learned.planned = HR__RECORD_NONE;
	for (uint32_t i = 0; i < active->tensor_count; i++) {
		hr_status ignored;
		hr__tensor *tensor = active->present[i].id ? hr__tensor_of(active->present[i], &ignored) : NULL;
		if (tensor) tensor->learned.planned = i;
		else active->present[i].id = 0;
	}
}

static uint64_t bytes_of_others(hr__lms *lms, int64_t in_use)
{
	int64_t other = in_use - hr__load_relaxed(&lms->resident);
	return other > 0 ? (uint64_t)other : 0;
}

/* Tensors that are pinned between two steps are likely to stay so: those of the last record may not be evicted. Returns the bytes of the
 * others, which occupy memory like plain blocks. */
static uint64_t exclude_pinned(hr__lms *lms)
{
	HR_ASSERT(hr__lock_is_mine(&lms->lock));
	const hr__learned *learned = lms->learned;
	uint64_t bytes = 0;
	for (uint32_t i = 0; i < lms->member_count; i++) {
		const hr__tensor *tensor = lms->members[i];
		uint64_t word = hr__load_acquire(&tensor->word);
		if (!hr__word_pins(word)) continue;
		uint32_t slot = tensor->learned.step == learned->step ? tensor->learned.slot : HR__RECORD_NONE;
		hr__recorded_tensor *seen = slot < learned->last.tensors.count ? &HR__RECORD_AT(hr__recorded_tensor, learned->last.tensors, slot) : NULL;
		if (seen && tensor->learned.uses && seen->handle.id == hr__tensor_handle(tensor, word).id) seen->never_evict = true;
		else bytes += tensor->device_bytes;
	}
	return bytes;
}

/* The memory and the link that the planner may use. */
static hr__plan_machine machine_of(hr__lms *lms, uint64_t other_bytes)
{
	HR_ASSERT(hr__lock_is_mine(&lms->lock));
	hr__learned *learned = lms->learned;
	uint64_t limit, memory = lms->allocator->limit;
	learned->limit = hr__load_relaxed(&lms->limit);
	if (hr__add(learned->limit, other_bytes, &limit) && limit < memory) memory = limit;
	learned->memory = memory;
	uint64_t slack = SPARE_PAGES * lms->allocator->page;
	if (slack > memory / 96) slack = memory / 96;
	uint64_t kept = memory / 256 + GATHER_PAGES * lms->allocator->page;
	if (kept > memory / 96) kept = memory / 96;
	if (slack < kept) slack = kept;
	if (slack < learned->slack) slack = learned->slack;
	learned->slack_used = slack;
	hr__link_time(&learned->link, lms);
	hr__store_relaxed(&learned->no_small_copies, learned->link.out.ns > 0);
	return (hr__plan_machine){ .memory = slack < memory ? memory - slack : memory,
		                       .out_bytes_per_s = hr__link_out(&learned->link),
		                       .in_bytes_per_s = hr__link_in(&learned->link),
		                       .copy_ns = HR__LINK_COPY_NS };
}

/* Whether a plan is to replace the active one. Steps of the same kind that follow a plan with a layout, and map nothing, are exchanged only
 * for shorter ones, because all tensors would have to move to new places first. */
static bool is_worth_moving(const hr__learned *learned, const hr__active_plan *plan)
{
	const hr__active_plan *active = &learned->active_plan;
	if (!active->is_set || active->signature != plan->signature || !active->laid_out || !learned->area) return true;
	if (learned->limit != learned->limit_used || active->layout_bytes > learned->area_bytes || !learned->step_ns) return true;
	return plan->plan.step_ns + plan->plan.step_ns / GAIN_SHARE < learned->step_ns;
}

/* Makes a plan of the last record, and activates it. True if tensors have new places then. [in_use] is of the allocator. The lock is not
 * held while the plan is made; learned->planning keeps other threads from changing the record. */
static bool make_plan(hr__lms *lms, int64_t in_use)
{
	HR_ASSERT(hr__lock_none_from(HR__RANK_LMS));
	HR_ASSERT(lms->learned->planning);
	hr__learned *learned = lms->learned;
	hr__active_plan active;
	uint64_t bound = 0, others = bytes_of_others(lms, in_use);
	hr__lock_take(&lms->lock);
	hr__plan_machine machine = machine_of(lms, others);
	others += exclude_pinned(lms);
	bool places = learned->mapping_is_slow;
	hr__lock_release(&lms->lock);
	/* On failure the step continues as it is; the active plan may still be right. */
	if (hr__active_plan_make(&learned->last, others, &machine, places, &active, &bound)) return false;
	hr__lock_take(&lms->lock);
	if (!is_worth_moving(learned, &active)) {
		hr__active_plan *kept = &learned->active_plan;
		kept->plan.step_ns += active.compute_ns - kept->compute_ns; /* the sum is that of the ops' new times; both are modulo 2^64 */
		kept->compute_ns = active.compute_ns;
		hr__store_relaxed(&lms->stats.plan_step_ns, (int64_t)kept->plan.step_ns);
		hr__lock_release(&lms->lock);
		hr__active_plan_free(&active);
		return false;
	}
	learned->limit_used = learned->limit;
	learned->step_ns = 0;
	bool has_places = active.laid_out && learned->area;
	if (learned->active_plan.is_set && learned->active_plan.signature == active.signature)
		active.matches = learned->active_plan.matches;
	hr__active_plan_free(&learned->active_plan);
	learned->active_plan = active;
	learned->unplanned_tensors.count = 0; /* their [need] is of another plan */
	assign(lms, &learned->active_plan);
	hr__lock_release(&lms->lock);
	hr__store_relaxed(&lms->stats.plan_bound_ns, (int64_t)bound);
	hr__store_relaxed(&lms->stats.plan_step_ns, (int64_t)active.plan.step_ns);
	hr__store_relaxed(&lms->stats.plan_bytes_out, (int64_t)active.plan.bytes_out);
	hr__store_relaxed(&lms->stats.plan_bytes_in, (int64_t)active.plan.bytes_in);
	hr__store_relaxed(&lms->stats.plan_again_ns, (int64_t)active.plan.again_ns);
	return has_places;
}

/* The program waits meanwhile, so the recording gets the time. */
static bool make_plan_noted(hr__lms *lms, int64_t in_use)
{
	uint64_t begin = hr__os()->clock_ns();
	bool has_places = make_plan(lms, in_use);
	if (hr__trace_is_on())
		hr__trace_event(
			&(hr__event){ .kind = HR__EVENT_MARK, .tag = hr_name_intern(HR__MARK_PLAN), .bytes = hr__os()->clock_ns() - begin });
	return has_places;
}

/* ---- times ---- */

static bool has_times(const hr__learned *learned, const hr__record *record)
{
	return learned->times.count && learned->times.count == record->ops.count && learned->times_signature == record->signature;
}

/* Keeps the times of a step that has ended, if all are known. Of steps in which pages were mapped, an op takes the least of its times. */
static void keep_times(hr__learned *learned, const hr__record *record)
{
	if (!hr__record_is_timed(record) || record->broken) return;
	bool least = record->mapped && has_times(learned, record);
	while (learned->times.capacity < record->ops.count)
		if (!hr__record_array_grow(&learned->times, sizeof(uint64_t))) return;
	learned->times.count = record->ops.count;
	learned->times_signature = record->signature;
	for (uint32_t i = 0; i < record->ops.count; i++) {
		uint64_t ns = HR__RECORD_AT(hr__recorded_op, record->ops, i).ns;
		if (!least || ns < HR__RECORD_AT(uint64_t, learned->times, i)) HR__RECORD_AT(uint64_t, learned->times, i) = ns;
	}
}

/* Steps are not always timed, and the device may be behind when a step ends: then the times of equal steps before it are used. */
static void use_times(const hr__learned *learned, hr__record *record)
{
	if (!has_times(learned, record) || (hr__record_is_timed(record) && !record->mapped)) return;
	for (uint32_t i = 0; i < record->ops.count; i++)
		HR__RECORD_AT(hr__recorded_op, record->ops, i).ns = HR__RECORD_AT(uint64_t, learned->times, i);
	record->measured = record->without_marks = true;
	record->timed = record->intervals.count;
}

/* Before a plan is made of the last record: waits for the device, if it is behind and no equal step before has times. */
static void know_times(hr__lms *lms)
{
	HR_ASSERT(lms->learned->planning);
	hr__learned *learned = lms->learned;
	for (bool waited = false;; waited = true) {
		hr__lock_take(&lms->lock);
		hr__record_time(lms->device, &learned->last, UINT32_MAX);
		keep_times(learned, &learned->last);
		use_times(learned, &learned->last);
		bool known = hr__record_is_timed(&learned->last);
		hr__lock_release(&lms->lock);
		if (known || waited) return;
		hr__record_wait(lms->device, &learned->last);
	}
}

/* Whether the times of ops are no longer those of the active plan: the first steps of a program are not typical. */
static bool times_have_changed(const hr__learned *learned, const hr__record *record)
{
	uint64_t ns = 0, planned = learned->active_plan.compute_ns;
	if (!has_times(learned, record)) return false;
	for (uint32_t i = 0; i < learned->times.count; i++) ns += HR__RECORD_AT(uint64_t, learned->times, i);
	return ns + ns / 20 < planned || planned + planned / 20 < ns;
}

/* ---- judging ---- */

/* A step followed the plan and still had unplanned evictions: less memory is usable than is free. True if another plan should be
 * made. */
static bool correct(hr__learned *learned)
{
	if (learned->mapping_is_slow || learned->corrections >= CORRECTIONS) return false;
	learned->corrections++;
	if (!learned->joins_memory) {
		learned->joins_memory = true;
		return false;
	}
	uint64_t slack = learned->scattered < learned->memory / 16 ? learned->scattered : learned->memory / 16;
	if (slack <= learned->slack) return false;
	learned->slack = slack;
	return true;
}

/* Judges the record of the step that ended. [pressed]: tensors were evicted. */
static void judge(hr__learned *learned, bool pressed)
{
	HR_ASSERT(!learned->planning);
	hr__active_plan *active = &learned->active_plan;
	hr__record *done = &learned->now;
	if (!learned->recording || done->broken || !done->ops.count) return;
	bool same = active->is_set && done->signature == active->signature && !learned->mismatches;
	bool twice = learned->has_last && done->signature == learned->last.signature;
	if (same && !learned->settles) active->matches++;
	/* If two kinds of steps alternate, the longer one has the plan. */
	bool in_turn = learned->has_last && done->signature == learned->before_last && done->ops.count <= active->op_count;
	bool better = !active->is_set || (!same && (twice || (!active->matches && !in_turn)));
	/* Memory is not gathered any more: tensors would not find the places of another plan free. */
	bool is_final = active->laid_out && learned->gathered >= GATHERED;
	if (same && !is_final && times_have_changed(learned, done)) better = true;
	if (same && learned->unplanned_bytes && correct(learned)) better = true;
	if (learned->has_last) learned->before_last = learned->last.signature;
	hr__record swap = learned->last;
	learned->last = learned->now;
	learned->now = swap;
	learned->has_last = true;
	learned->wants_plan = pressed && better;
}

/* ---- joining free memory ---- */

/* Pages were stitched all through the last step, which takes time on the host and makes it wait. So everything is evicted once,
 * free memory is joined, and from now on each tensor has its place in it. */
static void gather_memory(hr__lms *lms)
{
	HR_ASSERT(hr__lock_none_from(HR__RANK_LMS));
	hr__learned *learned = lms->learned;
	uint64_t bytes = 0, area = 0, area_bytes = 0, most = learned->active_plan.layout_bytes;
	/* What is left can serve blocks that have no place. */
	if (hr__reclaim_inactive(lms, HR_NAME_NONE, &bytes) || hr__blocks_gather(lms->allocator, most, &area, &area_bytes)) return;
	hr__blocks_keep_apart(lms->allocator);
	hr__lock_take(&lms->lock);
	learned->area = area;
	learned->area_bytes = area_bytes;
	learned->gathered++;
	learned->step_ns = 0;
	learned->active_plan.matches = 1; /* ops are timed again, now that nothing is mapped */
	learned->mapping = hr__blocks_map_ns(lms->allocator);
	if (learned->active_plan.layout_bytes > area_bytes) /* more pages are partly used than the plan left: begin_step makes another */
		learned->slack = learned->slack_used + learned->active_plan.layout_bytes - area_bytes + lms->allocator->page;
	hr__lock_release(&lms->lock);
}

/* Joins free memory without evicting anything. */
static void join_free_memory(hr__lms *lms)
{
	HR_ASSERT(hr__lock_none_from(HR__RANK_LMS));
	hr__learned *learned = lms->learned;
	uint64_t mapping = hr__blocks_map_ns(lms->allocator), begin = hr__device_clock_ns(lms->device), address, bytes;
	if (hr__blocks_gather(lms->allocator, UINT64_MAX, &address, &bytes)) return;
	hr__lock_take(&lms->lock);
	/* Includes waiting for streams that still use free memory. At least 1 ns, because 0 means not done yet. */
	learned->join_ns = hr__device_clock_ns(lms->device) - begin + 1;
	learned->mapping += hr__blocks_map_ns(lms->allocator) - mapping; /* this time is not the program's */
	hr__lock_release(&lms->lock);
}

/* ---- steps ---- */

static void end_step(hr__lms *lms)
{
	HR_ASSERT(hr__lock_none_from(HR__RANK_LMS));
	hr__learned *learned = lms->learned;
	hr__follow_evict_late(lms);
	hr__lock_take(&lms->lock);
	uint64_t mapped = hr__blocks_map_ns(lms->allocator) - learned->mapping;
	learned->now.mapped = learned->settles || mapped > (learned->active_plan.is_set ? learned->active_plan.plan.step_ns / MAPPING_SHARE : 0);
	hr__record_close_intervals(&learned->now);
	hr__record_time(lms->device, &learned->now, UINT32_MAX);
	if (!learned->planning && learned->has_last) {
		hr__record_time(lms->device, &learned->last, UINT32_MAX); /* the device may have been behind */
		keep_times(learned, &learned->last);
	}
	keep_times(learned, &learned->now);
	if (!learned->planning) judge(learned, hr__learned_was_pressed(lms));
	learned->recording = false;
	learned->turn = HR__PLAN_NEVER;
	hr__lock_release(&lms->lock);
	hr__ghost_drop_all(lms);
}

/* The last step has ended, and the next one begins [now]. */
static void note_step_time(hr__learned *learned, uint64_t now)
{
	const hr__active_plan *active = &learned->active_plan;
	bool follows = active->is_set && learned->has_last && learned->last.signature == active->signature && !learned->mismatches;
	if (!follows || learned->last.mapped || now <= learned->step_begin) return;
	if (!learned->step_ns || now - learned->step_begin < learned->step_ns) learned->step_ns = now - learned->step_begin;
}

static void begin_step(hr__lms *lms)
{
	HR_ASSERT(hr__lock_none_from(HR__RANK_LMS));
	hr__learned *learned = lms->learned;
	int64_t in_use = hr__stats_summarize(lms->allocator).in_use;
	uint64_t now = hr__device_clock_ns(lms->device);
	bool has_new_places = false;
	hr__lock_take(&lms->lock);
	note_step_time(learned, now);
	uint64_t mapping = hr__blocks_map_ns(lms->allocator), spent = mapping - learned->mapping;
	learned->mapping = mapping;
	const hr__active_plan *active = &learned->active_plan;
	bool slow = active->matches > 0 && spent > active->plan.step_ns / MAPPING_SHARE;
	learned->mapping_is_slow |= slow;
	if (learned->mapping_is_slow && active->is_set && !active->placing && learned->has_last &&
	    learned->last.signature == active->signature)
		learned->wants_plan = true;
	if (active->laid_out && learned->area && active->layout_bytes > learned->area_bytes && learned->slack > learned->slack_used &&
	    learned->has_last && learned->last.signature == active->signature)
		learned->wants_plan = true;
	/* The program has changed the limit: a step that follows the plan still looks the same. */
	if (active->is_set && learned->limit != hr__load_relaxed(&lms->limit) && learned->has_last && learned->last.signature == active->signature)
		learned->wants_plan = true;
	bool plans = learned->wants_plan && !learned->planning;
	if (plans) {
		learned->planning = true;
		learned->wants_plan = false;
	}
	hr__lock_release(&lms->lock);
	if (plans) {
		know_times(lms);
		has_new_places = make_plan_noted(lms, in_use);
	}

	hr__lock_take(&lms->lock);
	if (plans) learned->planning = false;
	hr__store_relaxed(&learned->settled, active->matches >= MEASURED);
	hr__record_clear(&learned->now);
	learned->recording = true;
	learned->step++;
	learned->position = learned->created = learned->mismatches = learned->next_restore = learned->next_act = learned->turn = 0;
	learned->turns_before += active->turn_count;
	if (active->is_set) memset(active->kept_until, 0, active->tensor_count * sizeof *active->kept_until);
	learned->on = learned->off = 0;
	learned->unplanned_bytes = learned->scattered = 0;
	for (uint32_t i = 0; i < learned->unplanned_tensors.count; i++) {
		hr__unplanned_tensor *unplanned = &HR__RECORD_AT(hr__unplanned_tensor, learned->unplanned_tensors, i);
		unplanned->need -= unplanned->need < active->op_count ? unplanned->need : active->op_count;
	}
	if (learned->active_plan.is_set) hr__lms_count(&lms->stats.num_steps_planned, 1);
	bool gathers_memory = ((slow && active->laid_out && active->matches >= MEASURED) || has_new_places) && learned->gathered < GATHERED;
	/* Until it was done once, the time of mapping all memory is the estimate. */
	uint64_t takes = learned->join_ns ? learned->join_ns : mapping;
	bool joins_memory = learned->joins_memory && !learned->mapping_is_slow && active->is_set &&
	                    takes <= active->plan.step_ns / MAPPING_SHARE;
	learned->settles = gathers_memory;
	hr__lock_release(&lms->lock);
	if (gathers_memory) gather_memory(lms);
	else if (joins_memory) join_free_memory(lms);
	now = hr__device_clock_ns(lms->device);
	hr__lock_take(&lms->lock);
	learned->step_begin = now;
	hr__lock_release(&lms->lock);
}

void hr__learned_step(hr__lms *lms, bool begins)
{
	if (lms->learned && begins) begin_step(lms);
	else if (lms->learned) end_step(lms);
}

/* ---- steps that are not marked ---- */

/* A hash of a pin call: sizes and access of its tensors. */
static uint64_t look_of(const hr_pin *pins, size_t count)
{
	uint64_t look = count;
	for (size_t i = 0; i < count; i++) {
		hr_status ignored;
		const hr__tensor *tensor = hr__tensor_of(pins[i].tensor, &ignored);
		look = (look ^ (tensor ? tensor->bytes : 0) ^ (uint64_t)pins[i].access << 56) * UINT64_C(0x100000001b3);
	}
	return look;
}

void hr__steps_watch(hr__lms *lms, const hr_pin *pins, size_t count)
{
	hr__learned *learned = lms->learned;
	uint64_t look = look_of(pins, count);
	hr__lock_take(&lms->lock);
	if (!learned->repeats && hr__repeats_open(&learned->repeats)) learned->repeats = NULL;
	int64_t there = hr__load_relaxed(&lms->resident) + hr__load_relaxed(&lms->stats.bytes_out_now);
	bool begins = learned->repeats && hr__repeats_note(learned->repeats, look, (uint64_t)there), ends = begins && learned->watching;
	learned->watching |= begins;
	hr__lock_release(&lms->lock);
	if (ends) {
		hr__step_peak_end(lms);
		end_step(lms);
	}
	if (begins) {
		begin_step(lms);
		hr__step_peak_begin(lms);
		hr__lms_count(&lms->stats.num_repeats, 1);
	}
}
