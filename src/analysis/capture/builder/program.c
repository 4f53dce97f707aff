/* program.c - ops, uses, steps and marks of a capture that is being built. */
#include "analysis/capture/builder/builder.h"

#define MAX_OP_SEARCH 64 /* enclosing ops among which an OP_END looks for its op */

/* ---- ops and uses ---- */

static hr__op_run *op_at(const hr__builder *b, uint32_t index)
{
	return &hr__builder_ops(b)[index];
}

static uint32_t parent_of(const hr__builder *b, uint32_t op)
{
	return ((const uint32_t *)(const void *)b->parents.base)[op];
}

hr_status hr__builder_add_op_begin(hr__builder *b, const hr__event *e)
{
	hr_status status = HR_OK;
	hr__op_run *op = hr__array_push(&b->arrays->ops, &status);
	uint32_t *parent = hr__array_push(&b->parents, &status);
	if (status) return status;
	*op = (hr__op_run){ .begin_ns = e->time_ns, .end_ns = HR__NEVER, .op = e->op, .scope = e->scope, .thread = e->thread, .step = b->step };
	*parent = b->innermost[e->thread];
	b->innermost[e->thread] = (uint32_t)b->arrays->ops.count;
	return hr__builder_add_item(b, HR__ITEM_OP);
}

/* Index + 1 of the innermost op of that name on the thread; 0: none within MAX_OP_SEARCH. */
static uint32_t find_op(const hr__builder *b, uint32_t thread, hr_name name)
{
	uint32_t at = b->innermost[thread];
	for (int depth = 0; at && depth < MAX_OP_SEARCH; depth++, at = parent_of(b, at - 1))
		if (op_at(b, at - 1)->op == name) return at;
	return 0;
}

static hr_status end_op(hr__builder *b, uint32_t op, uint64_t now)
{
	hr_status status = HR_OK;
	uint32_t *end = hr__array_push(&b->arrays->op_ends, &status);
	if (status) return status;
	*end = op;
	op_at(b, op)->end_ns = now;
	return hr__builder_add_item(b, HR__ITEM_OP_END);
}

hr_status hr__builder_add_op_end(hr__builder *b, const hr__event *e)
{
	uint32_t ended = find_op(b, e->thread, e->op), at;
	hr_status status = HR_OK;
	if (!ended || e->bytes > HR__TIME_NS_MAX - b->device_ns_total) {
		b->capture->unknown_op_ends++;
		hr__builder_skip(b, !(b->seen[e->thread] & HR__SEEN_OP_BEGIN));
		return HR_OK;
	}
	op_at(b, ended - 1)->device_ns = e->bytes;
	b->device_ns_total += e->bytes;
	do {
		at = b->innermost[e->thread];
		status = end_op(b, at - 1, e->time_ns);
		b->innermost[e->thread] = parent_of(b, at - 1);
	} while (!status && at != ended);
	return status;
}

hr_status hr__builder_add_use(hr__builder *b, const hr__event *e)
{
	uint32_t allocator = hr__builder_find_allocator(b, e->allocator), allocation = hr__builder_find_live(b, allocator, e->address);
	hr_status status = hr__builder_check_block(b, e, allocation, e->kind == HR__EVENT_WRITE ? "written" : "read");
	hr__builder_device_of(b, allocator)->accesses++;
	if (status) return status;
	if (allocation == HR__NONE) {
		hr__builder_device_of(b, allocator)->unknown_accesses++;
		hr__builder_skip(b, false);
		return HR_OK;
	}
	hr__capture_use *use = hr__array_push(&b->arrays->uses, &status);
	if (status) return status;
	*use = (hr__capture_use){ .op = b->innermost[e->thread] ? b->innermost[e->thread] - 1 : HR__NONE,
		                      .allocation = allocation,
		                      .writes = e->kind == HR__EVENT_WRITE };
	return hr__builder_add_item(b, HR__ITEM_USE);
}

/* ---- steps ---- */

static void end_step(hr__builder *b, uint64_t now)
{
	hr__step_run *step = &hr__builder_steps(b)[b->step];
	step->end_ns = now;
	step->last_change = (uint32_t)b->arrays->changes.count;
	b->step = HR__NONE;
}

static uint64_t step_number(const hr__builder *b)
{
	return hr__builder_steps(b)[b->step].number;
}

/* Whether a STEP joins the open step (the rule is in capture.h). */
static bool joins_step(const hr__builder *b, const hr__event *e)
{
	if (!e->tag || !b->step_tag_count) return e->bytes == step_number(b);
	for (uint32_t i = 0; i < b->step_tag_count; i++)
		if (b->step_tags[i] == e->tag) return false;
	return true;
}

static void enter_step(hr__builder *b, hr_name tag)
{
	b->step_unended++;
	if (tag && b->step_tag_count < HR__STEP_TAGS_MAX) b->step_tags[b->step_tag_count++] = tag;
}

hr_status hr__builder_add_step(hr__builder *b, const hr__event *e)
{
	hr_status status = HR_OK;
	if (b->step != HR__NONE && joins_step(b, e)) {
		enter_step(b, e->tag);
		return HR_OK;
	}
	if (b->step != HR__NONE) {
		b->step_ends_owed += b->step_unended;
		end_step(b, e->time_ns);
	}
	hr__step_run *step = hr__array_push(&b->arrays->steps, &status);
	if (status) return status;
	*step = (hr__step_run){ .number = e->bytes, .begin_ns = e->time_ns, .end_ns = HR__NEVER, .first_change = (uint32_t)b->arrays->changes.count };
	b->step = (uint32_t)b->arrays->steps.count - 1;
	b->step_unended = b->step_tag_count = 0;
	enter_step(b, e->tag);
	return hr__builder_add_item(b, HR__ITEM_STEP);
}

void hr__builder_add_step_end(hr__builder *b, const hr__event *e)
{
	bool open = b->step != HR__NONE;
	if (b->step_ends_owed && (!open || e->bytes != step_number(b))) b->step_ends_owed--;
	else if (!open) hr__builder_skip(b, b->arrays->steps.count == 0);
	else if (--b->step_unended == 0) end_step(b, e->time_ns);
}

void hr__builder_end_steps(hr__builder *b)
{
	if (b->step == HR__NONE) return;
	/* A CSV has no STEP_END: its last step ends with the file. */
	if (b->stream->format == HR__FORMAT_CSV) end_step(b, b->capture->end_ns);
	else hr__builder_steps(b)[b->step].last_change = (uint32_t)b->arrays->changes.count;
}

/* ---- marks ---- */

/* A plan's mark is written when the plan is ready. Its bytes are the nanoseconds that planning took. */
static hr_status add_pause(hr__builder *b, const hr__event *e)
{
	hr_status status = HR_OK;
	hr__pause *pause = hr__array_push(&b->arrays->pauses, &status);
	if (!status) *pause = (hr__pause){ e->time_ns > e->bytes ? e->time_ns - e->bytes : 0, e->time_ns };
	return status;
}

/* Saturates, because the number comes from a file. */
static void add_stall(hr__builder *b, const hr__event *e)
{
	if (b->step == HR__NONE) return;
	hr__step_run *step = &hr__builder_steps(b)[b->step];
	step->stall_ns = e->bytes < HR__STALL_MAX_NS - step->stall_ns ? step->stall_ns + e->bytes : HR__STALL_MAX_NS;
}

hr_status hr__builder_add_mark(hr__builder *b, const hr__event *e)
{
	if (e->tag && e->tag == b->plan_mark) return add_pause(b, e);
	if (e->tag && e->tag == b->stall_mark) {
		add_stall(b, e);
		return HR_OK;
	}
	if (b->mark_seen || e->tag || e->bytes) return HR_OK;
	b->mark_seen = true;
	b->skipped_before_mark = 0;
	b->allocations_before_mark = (uint32_t)b->arrays->allocations.count;
	return HR_OK;
}
