/* recipe_kit.h - ops with recipes, for tests: on a device with memory behind it, and in arrays, so that contents can be compared.
 *
 * Output k of an op is its first input with parts of the others in it, and a few bytes that depend on the op and on k; an op without
 * inputs fills its outputs. An op in place puts parts of its inputs, and its bytes, into what the output holds. All tensors of an op have the
 * same size. */
#ifndef HR_TESTS_RECIPE_KIT_H
#define HR_TESTS_RECIPE_KIT_H

#include "fixture.h"
#include "test.h"

#define KIT_MOST 8u    /* inputs or outputs of an op */
#define KIT_STAMP 16u  /* bytes that depend on the op */

/* An op, and what its recipe did. */
typedef struct kit_op {
	hr_device device;
	hr_allocator allocator;
	size_t bytes; /* of each tensor */
	unsigned char value;
	bool takes;        /* computes into a tensor of its own, and hands its memory over */
	hr_status fails;   /* returned by its recipe instead of computing; HR_OK = it computes */
	bool drifts;       /* it computes other bytes each time */
	unsigned calls, written, released;
	hr_status (*first)(struct kit_op *op, const hr_recompute *call); /* called by the recipe before it computes; may be NULL */
	void *extra;
} kit_op;

static inline size_t kit_stamp_offset(const kit_op *op, unsigned k)
{
	return (size_t)(op->value * 7u + k) * KIT_STAMP % (op->bytes < KIT_STAMP ? 1 : op->bytes - KIT_STAMP + 1);
}

static inline size_t kit_stamp_bytes(const kit_op *op)
{
	return op->bytes < KIT_STAMP ? op->bytes : KIT_STAMP;
}

/* Queues the computation of output [k]. */
HR_TEST_UNUSED static hr_status kit_compute(const kit_op *op, void *const *ins, size_t count, char *out, unsigned k, hr_stream stream)
{
	hr_status status = count ? hr_stream_copy(op->device, out, ins[0], op->bytes, HR_COPY_ON_DEVICE, stream)
	                         : hr_stream_fill(op->device, out, (unsigned char)(op->value + k), op->bytes, stream);
	for (size_t i = 1; i < count && !status; i++) {
		size_t from = op->bytes * i / count, to = op->bytes * (i + 1) / count;
		if (to > from) status = hr_stream_copy(op->device, out + from, (char *)ins[i] + from, to - from, HR_COPY_ON_DEVICE, stream);
	}
	unsigned char stamp = (unsigned char)(op->value + k + (op->drifts ? op->calls : 0));
	if (!status) status = hr_stream_fill(op->device, out + kit_stamp_offset(op, k), stamp, kit_stamp_bytes(op), stream);
	return status;
}

/* The same in arrays. */
HR_TEST_UNUSED static void kit_expect(const kit_op *op, const unsigned char *const *ins, size_t count, unsigned char *out, unsigned k)
{
	if (count) memmove(out, ins[0], op->bytes);
	else memset(out, (unsigned char)(op->value + k), op->bytes);
	for (size_t i = 1; i < count; i++) {
		size_t from = op->bytes * i / count, to = op->bytes * (i + 1) / count;
		if (to > from) memmove(out + from, ins[i] + from, to - from);
	}
	memset(out + kit_stamp_offset(op, k), (unsigned char)(op->value + k), kit_stamp_bytes(op));
}

/* Queues the change of [out] by an op in place. */
HR_TEST_UNUSED static hr_status kit_change(const kit_op *op, void *const *ins, size_t count, char *out, hr_stream stream)
{
	hr_status status = HR_OK;
	for (size_t i = 0; i < count && !status; i++) {
		size_t from = op->bytes * (i + 1) / (count + 1), to = op->bytes * (i + 2) / (count + 1);
		if (to > from) status = hr_stream_copy(op->device, out + from, (char *)ins[i] + from, to - from, HR_COPY_ON_DEVICE, stream);
	}
	unsigned char stamp = (unsigned char)(op->value + (op->drifts ? op->calls : 0));
	if (!status) status = hr_stream_fill(op->device, out + kit_stamp_offset(op, 0), stamp, kit_stamp_bytes(op), stream);
	return status;
}

/* The same in arrays. */
HR_TEST_UNUSED static void kit_expect_change(const kit_op *op, const unsigned char *const *ins, size_t count, unsigned char *out)
{
	for (size_t i = 0; i < count; i++) {
		size_t from = op->bytes * (i + 1) / (count + 1), to = op->bytes * (i + 2) / (count + 1);
		if (to > from) memmove(out + from, ins[i] + from, to - from);
	}
	memset(out + kit_stamp_offset(op, 0), op->value, kit_stamp_bytes(op));
}

/* Computes into a tensor of its own. */
static hr_status kit_compute_and_hand_over(const kit_op *op, void *const *ins, const hr_recompute *call, unsigned k)
{
	hr_tensor_options options;
	hr_tensor scratch;
	void *at;
	hr_tensor_options_init(&options);
	options.bytes = op->bytes;
	hr_status status = hr_tensor_create(op->allocator, &options, &scratch);
	if (status) return status;
	status = hr_tensor_pin(scratch, HR_OVERWRITE, call->stream);
	if (!status) {
		status = hr_tensor_get_address(scratch, &at);
		if (!status) status = kit_compute(op, ins, call->input_count, at, k, call->stream);
		hr_status unpinned = hr_tensor_unpin(scratch, call->stream);
		if (!status) status = unpinned;
	}
	if (!status) status = hr_tensor_take(call->outputs[k], scratch);
	hr_last_message();
	hr_status destroyed = hr_tensor_destroy(scratch);
	return status ? status : destroyed;
}

HR_TEST_UNUSED static hr_status kit_recompute(void *user, const hr_recompute *call)
{
	kit_op *op = user;
	void *ins[KIT_MOST], *out;
	op->calls++;
	CHECK_EQ(call->struct_size, sizeof *call);
	hr_status status = op->first ? op->first(op, call) : HR_OK;
	if (op->fails) return op->fails;
	for (size_t i = 0; i < call->input_count && !status; i++) status = hr_tensor_get_address(call->inputs[i], &ins[i]);
	for (unsigned k = 0; k < call->output_count && !status; k++) {
		if (!call->outputs[k].id) continue;
		op->written++;
		if (op->takes) {
			status = kit_compute_and_hand_over(op, ins, call, k);
			continue;
		}
		status = hr_tensor_get_address(call->outputs[k], &out);
		if (!status) status = kit_compute(op, ins, call->input_count, out, k, call->stream);
	}
	return status;
}

/* The recipe of an op in place. */
HR_TEST_UNUSED static hr_status kit_change_again(void *user, const hr_recompute *call)
{
	kit_op *op = user;
	void *ins[KIT_MOST], *out;
	op->calls++;
	CHECK_EQ(call->output_count, 1u);
	hr_status status = op->first ? op->first(op, call) : HR_OK;
	if (op->fails) return op->fails;
	for (size_t i = 0; i < call->input_count && !status; i++) status = hr_tensor_get_address(call->inputs[i], &ins[i]);
	if (!status) status = hr_tensor_get_address(call->outputs[0], &out);
	if (!status) status = kit_change(op, ins, call->input_count, out, call->stream);
	op->written++;
	return status;
}

HR_TEST_UNUSED static void kit_release(void *user)
{
	((kit_op *)user)->released++;
}

HR_TEST_UNUSED static hr_recipe kit_recipe(kit_op *op, const hr_tensor *ins, size_t in_count, const hr_tensor *outs, size_t out_count)
{
	hr_recipe recipe;
	hr_recipe_init(&recipe);
	recipe.recompute = kit_recompute;
	recipe.release = kit_release;
	recipe.user = op;
	recipe.inputs = ins;
	recipe.input_count = in_count;
	recipe.outputs = outs;
	recipe.output_count = out_count;
	return recipe;
}

/* Runs the op as a program does: pins, computes, unpins. */
HR_TEST_UNUSED static hr_status kit_run(const kit_op *op, const hr_tensor *ins, size_t in_count, const hr_tensor *outs, size_t out_count,
                                        hr_stream stream)
{
	hr_pin pins[2 * KIT_MOST];
	void *addresses[KIT_MOST], *out;
	size_t count = 0;
	for (size_t i = 0; i < in_count; i++) pins[count++] = (hr_pin){ ins[i], HR_READ };
	for (size_t i = 0; i < out_count; i++) pins[count++] = (hr_pin){ outs[i], HR_OVERWRITE };
	hr_status status = hr_tensor_pin_all(pins, count, stream);
	if (status) return status;
	for (size_t i = 0; i < in_count && !status; i++) status = hr_tensor_get_address(ins[i], &addresses[i]);
	for (unsigned k = 0; k < out_count && !status; k++) {
		status = hr_tensor_get_address(outs[k], &out);
		if (!status) status = kit_compute(op, addresses, in_count, out, k, stream);
	}
	hr_status unpinned = hr_tensor_unpin_all(pins, count, stream);
	return status ? status : unpinned;
}

/* Changes [out] as a program does. */
HR_TEST_UNUSED static hr_status kit_run_in_place(const kit_op *op, const hr_tensor *ins, size_t in_count, hr_tensor out, hr_stream stream)
{
	hr_pin pins[KIT_MOST + 1];
	void *addresses[KIT_MOST], *at;
	for (size_t i = 0; i < in_count; i++) pins[i] = (hr_pin){ ins[i], HR_READ };
	pins[in_count] = (hr_pin){ out, HR_WRITE };
	hr_status status = hr_tensor_pin_all(pins, in_count + 1, stream);
	if (status) return status;
	for (size_t i = 0; i < in_count && !status; i++) status = hr_tensor_get_address(ins[i], &addresses[i]);
	if (!status) status = hr_tensor_get_address(out, &at);
	if (!status) status = kit_change(op, addresses, in_count, at, stream);
	hr_status unpinned = hr_tensor_unpin_all(pins, in_count + 1, stream);
	return status ? status : unpinned;
}

/* Reads a tensor with a pin on [stream]. */
HR_TEST_UNUSED static hr_status kit_read(hr_device device, hr_tensor tensor, void *to, size_t bytes, hr_stream stream)
{
	void *at;
	hr_status status = hr_tensor_pin(tensor, HR_READ, stream);
	if (status) return status;
	status = hr_tensor_get_address(tensor, &at);
	if (!status) status = hr_stream_copy(device, to, at, bytes, HR_COPY_TO_HOST, stream);
	if (!status) status = hr_stream_synchronize(device, stream);
	hr_status unpinned = hr_tensor_unpin(tensor, stream);
	return status ? status : unpinned;
}

#endif
