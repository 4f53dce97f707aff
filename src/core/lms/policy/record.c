/* record.c - see record.h. */
#include <string.h>

#include "core/lms/policy/record.h"

#include "core/lms/recipe/recipe.h"

#define MARK_NS_MAX 2000u /* most that a mark takes: 1,220 ns on an H200 */

/* ---- growing arrays ---- */

bool hr__record_array_grow(hr__record_array *array, size_t item)
{
	HR_ASSERT(array->count <= array->capacity);
	return array->capacity <= (1u << 28) && !hr__os_grow(&array->items, &array->capacity, item, 256);
}

bool hr__record_array_has_room(hr__record_array *array, size_t item)
{
	return array->count < array->capacity || hr__record_array_grow(array, item);
}

void hr__record_array_free(hr__record_array *array, size_t item)
{
	if (array->items) hr__os()->free(array->items, array->capacity * item);
	*array = (hr__record_array){ 0 };
}

/* ---- the record ---- */

void hr__record_clear(hr__record *record)
{
	record->tensors.count = record->ops.count = record->uses.count = record->intervals.count = record->timed = 0;
	record->timed_end = 0;
	record->mark_ns = UINT64_MAX;
	record->measured = record->broken = record->ended = record->mapped = record->without_marks = false;
	record->signature = UINT64_C(0xcbf29ce484222325);
}

void hr__record_free(hr__record *record)
{
	hr__record_array_free(&record->tensors, sizeof(hr__recorded_tensor));
	hr__record_array_free(&record->ops, sizeof(hr__recorded_op));
	hr__record_array_free(&record->uses, sizeof(hr__plan_use));
	hr__record_array_free(&record->intervals, sizeof(hr__recorded_interval));
}

void hr__record_sign(hr__record *record, uint64_t value)
{
	record->signature = (record->signature ^ value) * UINT64_C(0x100000001b3);
}

uint32_t hr__record_tensor(hr__record *record, const hr__tensor *tensor, uint32_t created)
{
	HR_ASSERT(hr__lock_is_mine(&tensor->lms->lock));
	if (record->broken) return HR__RECORD_NONE;
	if (!hr__record_array_has_room(&record->tensors, sizeof(hr__recorded_tensor))) {
		record->broken = true;
		return HR__RECORD_NONE;
	}
	HR__RECORD_AT(hr__recorded_tensor, record->tensors, record->tensors.count) = (hr__recorded_tensor){
		.handle = hr__tensor_handle(tensor, hr__load_relaxed(&tensor->word)),
		.bytes = tensor->device_bytes,
		.died = HR__PLAN_NEVER,
		.recipe_until = HR__PLAN_NEVER,
		.created = created,
		.never_evict = hr__load_relaxed(&tensor->never_evict),
		.owns_pages = hr__tensor_owns_pages(tensor)
	};
	return record->tensors.count++;
}

bool hr__record_op(hr__record *record)
{
	if (record->broken) return false;
	if (!hr__record_array_has_room(&record->ops, sizeof(hr__recorded_op))) {
		record->broken = true;
		return false;
	}
	HR__RECORD_AT(hr__recorded_op, record->ops, record->ops.count++) = (hr__recorded_op){ .first_use = record->uses.count };
	return true;
}

bool hr__record_use(hr__record *record, hr__tensor *tensor, uint32_t slot, bool write)
{
	HR_ASSERT(hr__lock_is_mine(&tensor->lms->lock));
	HR_ASSERT(record->ops.count > 0 || record->broken);
	uint32_t first = HR__RECORD_AT(hr__recorded_op, record->ops, record->ops.count - 1).first_use;
	if (slot == HR__RECORD_NONE || record->broken) return false;
	if (tensor->learned.uses && tensor->learned.use >= first && tensor->learned.use < record->uses.count &&
	    HR__RECORD_AT(hr__plan_use, record->uses, tensor->learned.use).tensor == slot) {
		HR__RECORD_AT(hr__plan_use, record->uses, tensor->learned.use).write |= write;
		return false;
	}
	tensor->learned.uses++;
	if (!hr__record_array_has_room(&record->uses, sizeof(hr__plan_use))) {
		record->broken = true;
		return false;
	}
	tensor->learned.use = record->uses.count;
	HR__RECORD_AT(hr__plan_use, record->uses, record->uses.count++) = (hr__plan_use){ slot, write };
	return true;
}

/* ---- recipes ---- */

/* The op of a use: most often the last. */
static uint32_t op_of_use(const hr__record *record, uint32_t use)
{
	uint32_t low = 0, op = record->ops.count - 1;
	if (hr__record_first_use(record, op) <= use) return op;
	while (op - low > 1) {
		uint32_t middle = low + (op - low) / 2;
		if (hr__record_first_use(record, middle) <= use) low = middle;
		else op = middle;
	}
	return low;
}

/* Whether op [op] reads the tensor or creates it. */
static bool is_read_by(const hr__record *record, uint32_t op, const hr__tensor *tensor, uint32_t step)
{
	uint32_t slot = tensor->learned.slot, use = tensor->learned.use, begin = hr__record_first_use(record, op), end = hr__record_first_use(record, op + 1);
	if (tensor->learned.step != step || slot == HR__RECORD_NONE || !tensor->learned.uses) return false;
	if (use >= end) /* another thread has used it since */
		for (use = begin; use < end && HR__RECORD_AT(hr__plan_use, record->uses, use).tensor != slot; use++) {}
	if (use < begin || use >= end) return false;
	bool created = HR__RECORD_AT(hr__recorded_tensor, record->tensors, slot).created != HR__RECORD_NONE && tensor->learned.uses == 1;
	return created || !HR__RECORD_AT(hr__plan_use, record->uses, use).write;
}

static void note_recipe(hr__record *record, const hr__recipe *recipe, const hr__tensor *output, uint32_t step)
{
	uint32_t slot = output->learned.slot;
	if (output->learned.step != step || slot == HR__RECORD_NONE || output->learned.uses != 1) return;
	hr__recorded_tensor *seen = &HR__RECORD_AT(hr__recorded_tensor, record->tensors, slot);
	uint32_t op = op_of_use(record, output->learned.use);
	if (seen->created == HR__RECORD_NONE) return;
	/* Inputs of the ops that an extended recipe runs first were looked at before; the program may have destroyed them since. */
	if (recipe->before && !seen->has_recipe) return;
	seen->reads_others &= recipe->before != NULL;
	seen->has_recipe = true;
	seen->recipe_until = HR__PLAN_NEVER;
	for (uint32_t i = recipe->first_input; i < recipe->input_count && !seen->reads_others; i++)
		seen->reads_others = !is_read_by(record, op, recipe->inputs[i].tensor, step);
	hr__record_sign(record, slot);
}

void hr__record_recipe(hr__record *record, const hr__recipe *recipe, uint32_t step)
{
	HR_ASSERT(hr__lock_is_mine(&recipe->lms->lock));
	if (record->broken || !record->ops.count) return;
	for (uint32_t i = 0; i < recipe->output_count; i++)
		if (recipe->outputs[i]) note_recipe(record, recipe, recipe->outputs[i], step);
}

void hr__record_recipe_end(hr__record *record, uint32_t slot, uint32_t until)
{
	if (record->broken || slot >= record->tensors.count) return;
	hr__recorded_tensor *seen = &HR__RECORD_AT(hr__recorded_tensor, record->tensors, slot);
	if (seen->recipe_until > until) seen->recipe_until = until;
}

void hr__record_mark_pure(const hr__record *record, hr__plan_op *ops, bool *seen)
{
	HR_ASSERT(!record->broken);
	for (uint32_t op = 0; op < record->ops.count; op++) {
		bool makes = false, all = true;
		uint32_t until = HR__PLAN_NEVER;
		for (uint32_t i = hr__record_first_use(record, op); i < hr__record_first_use(record, op + 1); i++) {
			uint32_t slot = HR__RECORD_AT(hr__plan_use, record->uses, i).tensor;
			const hr__recorded_tensor *tensor = &HR__RECORD_AT(hr__recorded_tensor, record->tensors, slot);
			bool first = !seen[slot], outlives = tensor->died != op;
			seen[slot] = true;
			if (!first || tensor->created == HR__RECORD_NONE) continue;
			all &= tensor->has_recipe ? !tensor->reads_others : !outlives;
			makes |= outlives;
			if (outlives && tensor->recipe_until < until) until = tensor->recipe_until;
		}
		ops[op].pure = makes && all && until > op;
		ops[op].until = ops[op].pure && until != HR__PLAN_NEVER ? until : 0;
	}
}

/* ---- times ---- */

void hr__record_begin_interval(hr__record *record, hr_stream stream, uint64_t mark)
{
	HR_ASSERT(record->ops.count > 0 || record->broken);
	if (record->broken || !mark || !hr__record_array_has_room(&record->intervals, sizeof(hr__recorded_interval))) return;
	HR__RECORD_AT(hr__recorded_interval, record->intervals, record->intervals.count++) =
		(hr__recorded_interval){ .op = record->ops.count - 1, .stream = stream, .begin = mark };
}

void hr__record_end_interval(hr__record *record, uint64_t mark)
{
	if (record->intervals.count == record->timed) return;
	hr__recorded_interval *last = &HR__RECORD_AT(hr__recorded_interval, record->intervals, record->intervals.count - 1);
	if (last->op == record->ops.count - 1) last->end = mark;
}

void hr__record_close_intervals(hr__record *record)
{
	record->ended = true;
	if (record->intervals.count > record->timed && !HR__RECORD_AT(hr__recorded_interval, record->intervals, record->intervals.count - 1).end)
		record->intervals.count--;
}

static void note_time(hr__record *record, const hr__recorded_interval *interval, uint64_t begin, uint64_t end)
{
	hr__recorded_op *op = &HR__RECORD_AT(hr__recorded_op, record->ops, interval->op);
	op->ns += end > begin ? end - begin : 0;
	op->timed++;
	bool follows = record->timed_end && record->timed_stream == interval->stream && begin >= record->timed_end;
	if (follows && begin - record->timed_end < record->mark_ns) record->mark_ns = begin - record->timed_end;
	record->timed_end = end;
	record->timed_stream = interval->stream;
	record->measured = true;
}

/* All times are known. If the device was idle between all ops, the time of a mark is not. */
static void take_marks_off(hr__record *record)
{
	HR_ASSERT(record->ended && record->timed == record->intervals.count);
	record->without_marks = true;
	if (record->mark_ns > MARK_NS_MAX) return;
	for (uint32_t i = 0; i < record->ops.count; i++) {
		hr__recorded_op *op = &HR__RECORD_AT(hr__recorded_op, record->ops, i);
		uint64_t of_marks = op->timed * record->mark_ns;
		op->ns -= op->ns < of_marks ? op->ns : of_marks;
	}
}

void hr__record_time(hr__device *device, hr__record *record, uint32_t most)
{
	HR_ASSERT(record->timed <= record->intervals.count);
	for (; record->timed < record->intervals.count && most; record->timed++, most--) {
		const hr__recorded_interval *interval = &HR__RECORD_AT(hr__recorded_interval, record->intervals, record->timed);
		uint64_t begin = 0, end = 0;
		if (!record->ended && interval->op == record->ops.count - 1) return; /* it may not have ended */
		if (!interval->end) continue;
		hr_status status = hr__device_mark_time(device, interval->stream, interval->begin, &begin);
		if (!status) status = hr__device_mark_time(device, interval->stream, interval->end, &end);
		if (status == HR_NOT_READY) return;
		if (status) continue;
		note_time(record, interval, begin, end);
	}
	if (record->ended && record->timed == record->intervals.count && !record->without_marks) take_marks_off(record);
}

void hr__record_wait(hr__device *device, const hr__record *record)
{
	for (uint32_t i = record->intervals.count; i-- > record->timed;) {
		const hr__recorded_interval *last = &HR__RECORD_AT(hr__recorded_interval, record->intervals, i);
		if (!last->end) continue;
		(void)hr__device_wait_idle(device, hr__stream_bit(last->stream), last->end - 1); /* an op whose time stays unknown counts as taking none */
		return;
	}
}

bool hr__record_is_timed(const hr__record *record)
{
	return record->measured && record->timed == record->intervals.count;
}
