/* drive.c - see drive.h. */
#include "plan/drive.h"

#include <stdlib.h>

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
	hr__drive_touch touched = { index, life->birth, life->handle, access, options->stream };
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

/* ---- ops ---- */

static hr_status run_pinned(struct drive *drive, const hr__schedule_op *op)
{
	const hr__drive_options *options = drive->options;
	const hr__tensor_use *uses = &drive->schedule->uses[op->first_use];
	hr_status status = HR_OK;
	for (uint32_t i = 0; !status && i < op->use_count; i++) status = touch(drive, uses[i].tensor, drive->pins[i].access);
	if (!status && options->busy) status = options->busy(options->context, options->stream, op->ns);
	return status;
}

static hr_status run_op(struct drive *drive, uint32_t index)
{
	const hr__schedule_op *op = &drive->schedule->ops[index];
	const hr__tensor_use *uses = &drive->schedule->uses[op->first_use];
	hr_stream stream = drive->options->stream;
	for (uint32_t i = 0; i < op->use_count; i++)
		drive->pins[i] = (hr_pin){ drive->lives[uses[i].tensor].handle, hr__tensor_use_access(&uses[i]) };
	hr_name before = hr_op_set(op->name);
	hr_status status = op->use_count ? hr_tensor_pin_all(drive->pins, op->use_count, stream) : HR_OK;
	if (status) {
		drive->result->op = index;
	} else {
		status = run_pinned(drive, op);
		hr_status end = op->use_count ? hr_tensor_unpin_all(drive->pins, op->use_count, stream) : HR_OK;
		if (!status) status = end;
		drive->result->ops++;
	}
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
	return drive->lives && drive->pins && drive->missing && drive->surplus;
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
	free(drive.missing);
	free(drive.surplus);
	return status;
}
