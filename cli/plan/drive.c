/* drive.c - see drive.h. */
#include "plan/drive.h"

#include <stdlib.h>

#include "analysis/schedule/pure_ops.h"
#include "core/base/assert.h"
#include "core/base/status.h"
#include "core/base/text/text.h"
#include "headroom_oom.h"

/* Current state of a tensor of the schedule. */
struct life {
	hr_tensor handle; /* id 0: not live */
	uint64_t birth;
};

struct sized {
	uint64_t bytes;
	uint32_t index;
};

struct drive {
	const hr__schedule *schedule;
	const hr__drive_options *options;
	hr__drive_result *result;
	struct life *lives; /* one for each tensor of the schedule */
	hr_pin *pins;       /* room for the pins of one op */
	uint64_t births;
	uint8_t *purity;    /* hr__purity of each op; NULL: no recipes */
	bool held;          /* the running op changes a tensor whose recipe it can extend */
	hr_tensor *names;   /* room for the inputs and outputs of a recipe */
	struct sized *missing, *surplus; /* scratch: tensors that should be live and are not; tensors that are live and should not be */
};

/* ---- tensors ---- */

static hr_status create(struct drive *drive, uint32_t index)
{
	const hr__schedule_tensor *tensor = &drive->schedule->tensors[index];
	struct life *life = &drive->lives[index];
	hr_tensor_options options;
	HR_ASSERT(life->handle.id == 0);
	hr_tensor_options_init(&options);
	options.bytes = tensor->bytes;
	if (tensor->maker != HR__SCHEDULE_NONE) options.op = drive->schedule->ops[tensor->maker].name;
	hr_status status = hr_tensor_create(drive->options->allocator, &options, &life->handle);
	if (!status) life->birth = ++drive->births;
	return status;
}

static hr_status touch(struct drive *drive, uint32_t index, hr_access access)
{
	const hr__drive_options *options = drive->options;
	if (!options->touch || drive->schedule->tensors[index].workspace) return HR_OK;
	const struct life *life = &drive->lives[index];
	hr__drive_touch touched = { index, life->birth, life->handle, access, options->stream, false };
	return options->touch(options->context, &touched);
}

/* Writes the first contents of a tensor that no op makes. */
static hr_status fill(struct drive *drive, uint32_t index)
{
	hr_pin pin = { drive->lives[index].handle, HR_OVERWRITE };
	hr_stream stream = drive->options->stream;
	hr_status status = hr_tensor_pin_all(&pin, 1, stream);
	if (status) {
		drive->result->tensor = index;
		return status;
	}
	status = touch(drive, index, HR_OVERWRITE);
	hr_status end = hr_tensor_unpin_all(&pin, 1, stream);
	return status ? status : end;
}

static hr_status create_and_fill(struct drive *drive, uint32_t index)
{
	hr_status status = create(drive, index);
	return status ? status : fill(drive, index);
}

static hr_status destroy(struct drive *drive, uint32_t index)
{
	struct life *life = &drive->lives[index];
	HR_ASSERT(life->handle.id != 0);
	if (drive->options->leave) drive->options->leave(drive->options->context, index, life->handle);
	hr_status status = hr_tensor_destroy(life->handle);
	life->handle.id = 0;
	return status;
}

/* ---- recipes ---- */

/* The recipe of an op. */
struct again {
	const struct drive *drive;
	uint32_t op;
	bool in_place;
	uint64_t births[]; /* of what it makes, or changes in place */
};

static bool is_output(const struct drive *drive, const hr__tensor_use *use, bool in_place)
{
	return use->makes ? !drive->schedule->tensors[use->tensor].workspace : in_place && use->writes;
}

/* Allocates [bytes], and frees them in the order of [stream]. */
static hr_status borrow(const struct drive *drive, uint64_t bytes, hr_stream stream)
{
	hr_tensor scratch;
	hr_tensor_options options;
	hr_tensor_options_init(&options);
	options.bytes = bytes;
	hr_status status = hr_tensor_create(drive->options->allocator, &options, &scratch);
	if (status) return status;
	status = hr_tensor_pin(scratch, HR_OVERWRITE, stream);
	if (!status) status = hr_tensor_unpin(scratch, stream);
	hr_status end = hr_tensor_destroy(scratch);
	return status ? status : end;
}

static hr_status make_again(const struct again *again, const hr__tensor_use *use, size_t output, const hr_recompute *call)
{
	const hr__drive_options *options = again->drive->options;
	hr_tensor handle = call->outputs[output];
	void *ignored;
	if (!handle.id) return HR_OK;
	hr_status status = hr_tensor_get_address(handle, &ignored);
	if (status || !options->touch) return status;
	hr__drive_touch touched = { use->tensor, again->births[output], handle, HR_OVERWRITE, call->stream, true };
	return options->touch(options->context, &touched);
}

static hr_status run_again(void *user, const hr_recompute *call)
{
	const struct again *again = user;
	const struct drive *drive = again->drive;
	const hr__schedule_op *op = &drive->schedule->ops[again->op];
	hr_status status = HR_OK;
	size_t output = 0;
	for (uint32_t i = op->first_use; !status && i < op->first_use + op->use_count; i++) {
		const hr__tensor_use *use = &drive->schedule->uses[i];
		if (is_output(drive, use, again->in_place)) status = make_again(again, use, output++, call);
		else if (use->makes) status = borrow(drive, drive->schedule->tensors[use->tensor].bytes, call->stream);
	}
	if (!status && drive->options->busy) status = drive->options->busy(drive->options->context, call->stream, op->ns);
	return status;
}

/* What an op is known to be by name, and by what it writes. */
static hr__purity purity_of(const hr__schedule *schedule, const hr__schedule_op *op)
{
	hr__purity purity = hr__op_purity(hr_name_text(op->name));
	uint32_t changed = 0;
	for (uint32_t i = op->first_use; i < op->first_use + op->use_count; i++) {
		changed += schedule->uses[i].writes && !schedule->uses[i].makes;
		if (purity == HR__OP_IN_PLACE && schedule->uses[i].makes) return HR__OP_NOT_PURE;
	}
	if (purity == HR__OP_VIEW || purity == HR__OP_STATISTICS) return purity;
	return changed == (purity == HR__OP_IN_PLACE) ? purity : HR__OP_NOT_PURE;
}

static bool classify_ops(struct drive *drive)
{
	const hr__schedule *schedule = drive->schedule;
	if (!drive->options->recompute) return true;
	drive->purity = malloc((size_t)schedule->op_count + 1);
	drive->names = malloc(((size_t)schedule->most_uses + 1) * sizeof *drive->names);
	if (!drive->purity || !drive->names) return false;
	for (uint32_t i = 0; i < schedule->op_count; i++) drive->purity[i] = (uint8_t)purity_of(schedule, &schedule->ops[i]);
	return true;
}

static bool is_of(const struct drive *drive, uint32_t op, hr__purity purity)
{
	return drive->purity && drive->purity[op] == purity;
}

/* The tensor that op [index] is about to change in place keeps its recipe. False if there is none. */
static bool hold_recipe(struct drive *drive, uint32_t index)
{
	const hr__schedule_op *op = &drive->schedule->ops[index];
	if (!is_of(drive, index, HR__OP_IN_PLACE)) return false;
	for (uint32_t i = op->first_use; i < op->first_use + op->use_count; i++)
		if (drive->schedule->uses[i].writes) return hr_tensor_hold_recipe(drive->lives[drive->schedule->uses[i].tensor].handle) == HR_OK;
	return false;
}

/* Gives the tensors that the op made a recipe, if it is pure, or extends that of the tensor that it changed in place. */
static hr_status set_recipe(struct drive *drive, uint32_t index)
{
	const hr__schedule_op *op = &drive->schedule->ops[index];
	const hr__tensor_use *uses = &drive->schedule->uses[op->first_use];
	size_t inputs = 0, outputs = 0;
	bool in_place = is_of(drive, index, HR__OP_IN_PLACE);
	if (!drive->purity || is_of(drive, index, HR__OP_NOT_PURE) || (in_place && !drive->held)) return HR_OK;
	for (uint32_t i = 0; i < op->use_count; i++) /* inputs from the front, outputs behind all inputs that there can be */
		if (drive->pins[i].access == HR_READ) drive->names[inputs++] = drive->pins[i].tensor;
	for (uint32_t i = 0; i < op->use_count; i++)
		if (is_output(drive, &uses[i], in_place)) drive->names[inputs + outputs++] = drive->pins[i].tensor;
	if (!outputs) return HR_OK;
	struct again *again = malloc(sizeof *again + outputs * sizeof again->births[0]);
	if (!again) return hr__fail(HR_NO_HOST_MEMORY, "no memory for a recipe");
	*again = (struct again){ drive, index, in_place };
	for (uint32_t i = 0, k = 0; i < op->use_count; i++)
		if (is_output(drive, &uses[i], in_place)) again->births[k++] = drive->lives[uses[i].tensor].birth;
	hr_recipe recipe;
	hr_recipe_init(&recipe);
	recipe.op = op->name;
	recipe.inputs = drive->names;
	recipe.input_count = inputs;
	recipe.outputs = drive->names + inputs;
	recipe.output_count = outputs;
	recipe.cost_ns = op->ns ? op->ns : 1; /* 0 would mean that it is not known */
	recipe.recompute = run_again;
	recipe.release = free;
	recipe.user = again;
	hr_status status = in_place ? hr_tensor_extend_recipe(&recipe) : hr_tensor_set_recipe(&recipe);
	if (status) free(again);
	return status == HR_NOT_READY && in_place ? HR_OK : status; /* an input of the op that made the tensor was written meanwhile */
}

/* ---- ops ---- */

static hr_status run_pinned(struct drive *drive, const hr__schedule_op *op)
{
	const hr__drive_options *options = drive->options;
	const hr__tensor_use *uses = &drive->schedule->uses[op->first_use];
	hr_status status = HR_OK;
	for (uint32_t i = 0; !status && i < op->use_count; i++) status = touch(drive, uses[i].tensor, drive->pins[i].access);
	if (!status && options->busy) status = options->busy(options->context, options->stream, op->ns);
	if (!status) status = set_recipe(drive, (uint32_t)(op - drive->schedule->ops));
	return status;
}

static hr_status run_op(struct drive *drive, uint32_t index)
{
	const hr__schedule_op *op = &drive->schedule->ops[index];
	const hr__tensor_use *uses = &drive->schedule->uses[op->first_use];
	hr_stream stream = drive->options->stream;
	for (uint32_t i = 0; i < op->use_count; i++)
		drive->pins[i] = (hr_pin){ drive->lives[uses[i].tensor].handle,
			                       is_of(drive, index, HR__OP_VIEW) && !uses[i].makes ? HR_READ : hr__tensor_use_access(&uses[i]) };
	hr_name before = hr_op_set(op->name);
	drive->held = hold_recipe(drive, index);
	if (drive->purity) hr_pin_group_begin(); /* only ops in groups have parts */
	hr_status status = op->use_count ? hr_tensor_pin_all(drive->pins, op->use_count, stream) : HR_OK;
	if (status) {
		drive->result->op = index;
	} else {
		status = run_pinned(drive, op);
		hr_status end = op->use_count ? hr_tensor_unpin_all(drive->pins, op->use_count, stream) : HR_OK;
		if (!status) status = end;
		drive->result->ops++;
	}
	if (drive->purity) hr_pin_group_end();
	hr_op_set(before);
	return status;
}

static hr_status play_part(struct drive *drive, uint32_t part)
{
	const hr__schedule_part *played = &drive->schedule->parts[part];
	hr_status status = HR_OK;
	for (uint32_t i = played->first_act; !status && i < played->first_act + played->act_count; i++) {
		uint32_t index = drive->schedule->acts[i].index;
		switch ((hr__schedule_act_kind)drive->schedule->acts[i].kind) {
		case HR__ACT_CREATE:
			status = drive->schedule->tensors[index].maker == HR__SCHEDULE_NONE ? create_and_fill(drive, index) : create(drive, index);
			break;
		case HR__ACT_OP: status = run_op(drive, index); break;
		case HR__ACT_DESTROY: status = destroy(drive, index); break;
		}
	}
	return status;
}

/* ---- steps ---- */

static int by_size(const void *a, const void *b)
{
	const struct sized *first = a, *second = b;
	if (first->bytes != second->bytes) return first->bytes < second->bytes ? -1 : 1;
	return first->index < second->index ? -1 : first->index > second->index;
}

/* Lets each tensor of [missing] take over one of [surplus] with the same size, and destroys the rest of [surplus]. Both are sorted.
 * Tensors of [missing] that found none are moved to its front; *missing_count is set to their number. */
static hr_status hand_over(struct drive *drive, uint32_t *missing_count, uint32_t surplus_count)
{
	struct sized *missing = drive->missing, *surplus = drive->surplus, *end = surplus + surplus_count;
	hr_status status = HR_OK;
	uint32_t left = 0;
	for (uint32_t i = 0; !status && i < *missing_count; i++) {
		while (!status && surplus < end && surplus->bytes < missing[i].bytes) status = destroy(drive, surplus++->index);
		if (!status && surplus < end && surplus->bytes == missing[i].bytes) {
			struct life *from = &drive->lives[surplus++->index];
			drive->lives[missing[i].index] = *from;
			*from = (struct life){ 0 };
		} else {
			missing[left++] = missing[i];
		}
	}
	while (!status && surplus < end) status = destroy(drive, surplus++->index);
	*missing_count = left;
	return status;
}

/* Makes the set of live tensors equal to the recording's at the beginning of [part] (drive.h). */
static hr_status set_the_stage(struct drive *drive, uint32_t part)
{
	const hr__schedule *schedule = drive->schedule;
	uint32_t missing = 0, surplus = 0;
	for (uint32_t i = 0; i < schedule->tensor_count; i++) {
		bool lives = drive->lives[i].handle.id != 0, should = hr__schedule_lives_at(&schedule->tensors[i], part);
		if (should && !lives) drive->missing[missing++] = (struct sized){ schedule->tensors[i].bytes, i };
		else if (lives && !should) drive->surplus[surplus++] = (struct sized){ schedule->tensors[i].bytes, i };
	}
	qsort(drive->missing, missing, sizeof *drive->missing, by_size);
	qsort(drive->surplus, surplus, sizeof *drive->surplus, by_size);
	hr_status status = hand_over(drive, &missing, surplus);
	for (uint32_t i = 0; !status && i < missing; i++) status = create_and_fill(drive, drive->missing[i].index);
	return status;
}

static hr_status play_all(struct drive *drive)
{
	const hr__drive_options *options = drive->options;
	hr_status status = play_part(drive, 0);
	for (size_t i = 0; !status && i < options->play_count; i++) {
		drive->result->part = options->plays[i];
		status = set_the_stage(drive, options->plays[i]);
		if (!status && options->step) status = options->step(options->context, i);
		if (!status) status = hr_step_begin(options->allocator);
		if (!status) status = play_part(drive, options->plays[i]);
	}
	if (!status && options->play_count) status = hr_step_end(options->allocator);
	if (!status && options->step) status = options->step(options->context, options->play_count);
	return status;
}

static bool get_room(struct drive *drive)
{
	size_t tensors = (size_t)drive->schedule->tensor_count + 1;
	drive->lives = calloc(tensors, sizeof *drive->lives);
	drive->pins = malloc(((size_t)drive->schedule->most_uses + 1) * sizeof *drive->pins);
	drive->missing = malloc(tensors * sizeof *drive->missing);
	drive->surplus = malloc(tensors * sizeof *drive->surplus);
	return drive->lives && drive->pins && drive->missing && drive->surplus && classify_ops(drive);
}

hr_status hr__drive(const hr__schedule *schedule, const hr__drive_options *options, hr__drive_result *out)
{
	struct drive drive = { .schedule = schedule, .options = options, .result = out };
	*out = (hr__drive_result){ .op = HR__SCHEDULE_NONE, .tensor = HR__SCHEDULE_NONE };
	for (size_t i = 0; i < options->play_count; i++)
		if (options->plays[i] == 0 || options->plays[i] >= schedule->part_count)
			return hr__fail(HR_INVALID_ARGUMENT, "there is no step %u to play; the trace has 1 to %u", options->plays[i],
			                schedule->part_count - 1);
	hr_status status = get_room(&drive) ? play_all(&drive)
	                                    : hr__fail(HR_NO_HOST_MEMORY, "no memory for playing %u tensor%s", schedule->tensor_count,
	                                               hr__plural(schedule->tensor_count));
	for (uint32_t i = 0; drive.lives && i < schedule->tensor_count; i++) {
		if (!drive.lives[i].handle.id) continue;
		hr_status end = destroy(&drive, i);
		if (!status) status = end;
	}
	free(drive.lives);
	free(drive.pins);
	free(drive.purity);
	free(drive.names);
	free(drive.missing);
	free(drive.surplus);
	return status;
}
