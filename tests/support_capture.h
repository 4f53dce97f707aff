/* support_capture.h - checks the guarantees that capture.h gives for every capture, whatever file it came from. */
#ifndef HR_TESTS_SUPPORT_CAPTURE_H
#define HR_TESTS_SUPPORT_CAPTURE_H

#include <stdlib.h>
#include <string.h>

#include "core/base/names.h"
#include "analysis/capture/capture.h"
#include "analysis/view/view.h"

#define CAPTURE_LIMIT (UINT64_MAX / 2)

static inline const char *capture_times_wrong(const hr__capture *c)
{
	for (uint32_t i = 0; i < c->op_count; i++) {
		const hr__op_run *op = &c->ops[i];
		if (op->begin_ns > c->end_ns || (op->end_ns != HR__NEVER && (op->end_ns < op->begin_ns || op->end_ns > c->end_ns))) return "an op's time";
		if (op->step != HR__NONE && op->step >= c->step_count) return "an op's step";
		if (op->op >= hr__names_count() || op->scope >= hr__names_count()) return "an op's names";
	}
	for (uint32_t i = 0; i < c->step_count; i++) {
		const hr__step_run *step = &c->steps[i];
		if (step->first_change > step->last_change || step->last_change > c->change_count) return "a step's changes";
		if (step->begin_ns > c->end_ns || step->end_ns < step->begin_ns) return "a step's time";
		if (i && (step->first_change < c->steps[i - 1].last_change || step->begin_ns < c->steps[i - 1].end_ns)) return "steps overlap";
	}
	for (uint32_t i = 0; i < c->pause_count; i++)
		if (c->pauses[i].begin_ns > c->pauses[i].end_ns || c->pauses[i].end_ns > c->end_ns) return "a pause's time";
	for (uint32_t i = 0; i < c->region_count; i++) {
		const hr__region_run *region = &c->regions[i];
		if (region->end_ns < region->begin_ns || region->allocator >= c->allocator_count || !region->bytes) return "a region";
		if (region->address + (region->bytes - 1) < region->address) return "a region reaches over the end of addresses";
	}
	return NULL;
}

static inline const char *capture_indices_wrong(const hr__capture *c)
{
	for (uint32_t i = 0; i < c->allocator_count; i++)
		if (c->allocators[i].device >= c->device_count) return "an allocator's device";
	for (uint32_t i = 0; i < c->site_count; i++)
		if (c->sites[i].allocator >= c->allocator_count || c->sites[i].scope >= hr__names_count() || c->sites[i].op >= hr__names_count()) return "a site";
	for (uint32_t i = 0; i < c->site_count; i++)
		if (c->sites[i].stack >= hr__stacks_count() || (c->sites[i].stack && !c->has_stacks)) return "a site's stack";
	for (uint32_t i = 0; i < c->use_count; i++)
		if (c->uses[i].allocation >= c->allocation_count || (c->uses[i].op != HR__NONE && c->uses[i].op >= c->op_count)) return "a use";
	for (uint32_t i = 0; i < c->move_count; i++)
		if (c->moves[i].site >= c->site_count || c->moves[i].time_ns > c->end_ns) return "a move";
	if (c->life_count > c->allocation_count) return "lives of no allocation";
	for (uint32_t i = 0; i < c->life_count; i++)
		if (c->lives[i].birth > i || c->lives[c->lives[i].birth].birth != c->lives[i].birth) return "a birth after its allocation, or no birth";
	for (uint32_t i = 0; i < c->change_count; i++)
		if (c->changes[i].stream >= c->stream_count) return "a change's stream";
	for (uint32_t i = 0; i < c->op_end_count; i++)
		if (c->op_ends[i] >= c->op_count || c->ops[c->op_ends[i]].end_ns == HR__NEVER) return "an op's end";
	for (uint32_t i = 0; i < c->tensor_end_count; i++)
		if (c->tensor_ends[i] >= c->life_count || c->lives[c->tensor_ends[i]].birth != c->tensor_ends[i]) return "a tensor's end";
	for (uint32_t i = 0; i < c->refusal_count; i++)
		if (c->refusals[i].site >= c->site_count) return "a refusal";
	return NULL;
}

/* The sequence has every item of every kind once. */
static inline const char *capture_sequence_wrong(const hr__capture *c)
{
	uint32_t counts[HR__ITEM_TENSOR_END + 1] = { 0 };
	for (uint32_t i = 0; i < c->sequence_count; i++) {
		if (c->sequence[i] < HR__ITEM_CHANGE || c->sequence[i] > HR__ITEM_TENSOR_END) return "an item of the sequence";
		counts[c->sequence[i]]++;
	}
	bool right = counts[HR__ITEM_CHANGE] == c->change_count && counts[HR__ITEM_OP] == c->op_count && counts[HR__ITEM_OP_END] == c->op_end_count &&
	             counts[HR__ITEM_USE] == c->use_count && counts[HR__ITEM_STEP] == c->step_count && counts[HR__ITEM_MOVE] == c->move_count &&
	             counts[HR__ITEM_REFUSAL] == c->refusal_count && counts[HR__ITEM_TENSOR_END] == c->tensor_end_count;
	return right ? NULL : "the sequence has another number of items than there are";
}

/* Replays the changes and keeps sums of its own. [state] has a byte for each allocation, [sums] a number for each device. */
static inline const char *capture_changes_wrong(const hr__capture *c, unsigned char *state, uint64_t *sums, uint64_t *peaks)
{
	uint64_t time = 0;
	uint32_t next = 0;
	for (uint32_t i = 0; i < c->change_count; i++) {
		const hr__change *change = &c->changes[i];
		if (change->allocation >= c->allocation_count) return "a change's allocation";
		const hr__allocation *a = &c->allocations[change->allocation];
		if (a->site >= c->site_count) return "an allocation's site";
		uint32_t device = hr__allocation_device(c, change->allocation);
		uint64_t now = change->frees ? a->end_ns : a->begin_ns;
		if (now < time || now > c->end_ns) return "the times are not in order";
		time = now;
		if (state[change->allocation] != change->frees) return "allocating and freeing do not alternate";
		state[change->allocation]++;
		if (!change->frees && change->allocation != next++) return "allocations are not in order";
		sums[device] = change->frees ? sums[device] - a->bytes : sums[device] + a->bytes;
		if (sums[device] > CAPTURE_LIMIT) return "more than 2^63 bytes";
		if (sums[device] > peaks[device]) peaks[device] = sums[device];
		if (c->devices[device].peak_change == i && c->devices[device].peak_bytes != sums[device]) return "a peak that is none";
	}
	for (uint32_t i = 0; i < c->allocation_count; i++)
		if (state[i] == 0 || (state[i] == 1) != (c->allocations[i].end_ns == HR__NEVER)) return "an allocation without its changes";
	for (uint32_t i = 0; i < c->device_count; i++)
		if (c->devices[i].end_bytes != sums[i] || c->devices[i].peak_bytes != peaks[i]) return "what is in use at the end, or was at most";
	return NULL;
}

/* NULL, or a text that names the violated guarantee. */
static inline const char *capture_wrong(const hr__capture *c)
{
	const char *wrong = capture_indices_wrong(c);
	if (!wrong) wrong = capture_sequence_wrong(c);
	unsigned char *state = calloc((size_t)c->allocation_count + 1, 1);
	uint64_t *sums = calloc((size_t)c->device_count + 1, sizeof *sums), *peaks = calloc((size_t)c->device_count + 1, sizeof *peaks);
	if (!wrong) wrong = capture_times_wrong(c);
	if (!wrong) wrong = capture_changes_wrong(c, state, sums, peaks);
	free(state);
	free(sums);
	free(peaks);
	return wrong;
}

/* ---- views of any capture ---- */

static inline bool swallow_text(void *bytes, const char *text, size_t length)
{
	(void)text;
	*(uint64_t *)bytes += length;
	return true;
}

static const char *const view_names[] = { "summary", "timeline", "op", "scope", "peak", "leaks", "tensors", "steps", "allocators" };
#define VIEW_NAMES (sizeof view_names / sizeof *view_names)

/* Creates and writes a view; true if something was written. A capture with too many devices is refused. */
static inline bool writes_view(const hr__capture *c, uint32_t which, hr_profile_format format)
{
	hr_profile_options options;
	hr__profile *profile;
	uint64_t written = 0;
	hr_profile_options_init(&options);
	options.view = view_names[which % VIEW_NAMES];
	options.show_input_output = which & 8;
	options.show_stacks = which & 32;
	if (which & 16) options.order_by = "name";
	hr_status status = hr__profile_make(c, &options, NULL, 0, format, &profile);
	if (status) return status == HR_TOO_MANY;
	status = hr__profile_write(profile, NULL, swallow_text, &written);
	hr__profile_free(profile);
	return status == HR_OK && written > 0;
}

#endif
