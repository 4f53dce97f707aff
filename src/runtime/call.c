/* call.c - the way into the runtime for all op calls: what is wrong with them, and whether they run or become nodes. */
#include <stdio.h>

#include "base/status.h"
#include "runtime/engine.h"

/* "op "add" in scope "layer_1": " in front of the message that is there. */
static void name_op(const hr__op *op, hr_status status)
{
	const char *scope = hr_name_text(hr_name_scope_current());
	if (*scope) hr__fail_in(status, "op \"%s\" in scope \"%.200s\"", op->name, scope);
	else hr__fail_in(status, "op \"%s\"", op->name);
}

static void use_up_all(const hr_value *inputs, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		if (inputs[i].id) hr__value_use_up(inputs[i]);
}

/* All inputs there, and all in the same place. */
static hr_status look_up(const hr_value *inputs, uint32_t count, const hr__graph *graph, const hr__session *session, hr__value *values)
{
	for (uint32_t i = 0; i < count; i++) {
		hr_status status = hr__value_get(inputs[i], &values[i]);
		if (status) return status;
		if (values[i].graph != graph)
			return hr__fail(HR_INVALID_ARGUMENT, graph ? "input %u is outside of the graph that is being built; feed it through a placeholder"
			                                           : "input %u belongs to a graph; it has contents only while that runs (hr_session_run)", i);
		if (values[i].session != session && !graph)
			return hr__fail(HR_INVALID_ARGUMENT, "input %u belongs to another session", i);
	}
	return HR_OK;
}

/* The tape keeps what the op's gradient will look at. */
static bool kept_by_tape(const hr__op *op, uint32_t input)
{
	return hr__tape_is_on() && op->grad_in_mask >> input & 1;
}

static hr_status run(hr__session *session, enum hr__op_kind kind, const hr__attrs *attrs, const hr__value *values, uint32_t count,
                     const hr__type *types, hr_value *outs)
{
	const hr__op *op = &hr__ops[kind];
	hr__slot ins[HR__OP_INPUTS], results[HR__OP_OUTPUTS];
	for (uint32_t i = 0; i < count; i++) ins[i] = (hr__slot){ values[i].type, values[i].buffer, values[i].offset, values[i].loose && !kept_by_tape(op, i) };
	for (uint32_t i = 0; i < op->out_count; i++) results[i] = (hr__slot){ .type = types[i] };
	hr_status status = hr__execute(session, kind, attrs, ins, count, results);
	if (status) return status;
	for (uint32_t i = 0; i < op->out_count; i++) {
		outs[i] = hr__value_new(&(hr__value){ .type = types[i],
		                                      .session = session,
		                                      .buffer = results[i].buffer,
		                                      .offset = results[i].offset,
		                                      .op = hr_name_intern(op->name),
		                                      .scope = hr_name_scope_current() });
		if (!outs[i].id) status = HR_NO_HOST_MEMORY;
	}
	if (status) use_up_all(outs, op->out_count);
	return status;
}

static hr_status call(enum hr__op_kind kind, const hr_value *inputs, uint32_t count, const hr__attrs *attrs, hr_value *outs)
{
	const hr__op *op = &hr__ops[kind];
	hr__value values[HR__OP_INPUTS];
	hr__type in_types[HR__OP_INPUTS], types[HR__OP_OUTPUTS];
	hr__graph *graph = hr__graph_current();
	hr__session *session = graph ? NULL : hr__session_current();
	if (!graph && !session) return hr_last_status();
	hr_status status = look_up(inputs, count, graph, session, values);
	if (status) return status;
	if (count < op->in_min || count > op->in_max)
		return hr__fail(HR_INVALID_ARGUMENT, "%u inputs given, %u to %u taken", count, op->in_min, op->in_max);
	for (uint32_t i = 0; i < count; i++) in_types[i] = values[i].type;
	status = op->infer(in_types, count, attrs, types);
	if (status) return status;
	if (graph) {
		hr__graph_add(graph, kind, attrs, values, count, types, outs);
		return outs[0].id ? HR_OK : hr_last_status();
	}
	status = run(session, kind, attrs, values, count, types, outs);
	if (!status && hr__tape_is_on()) hr__tape_note(kind, attrs, inputs, in_types, count, outs, types);
	return status;
}

void hr__call(enum hr__op_kind kind, const hr_value *inputs, uint32_t count, const hr__attrs *attrs, hr_value *outs)
{
	bool all = true;
	for (uint32_t i = 0; i < hr__ops[kind].out_count; i++) outs[i] = HR_NO_VALUE;
	for (uint32_t i = 0; i < count; i++) all &= inputs[i].id != 0;
	if (all) { /* else the message of what went wrong before stays */
		hr_status status = call(kind, inputs, count, attrs, outs);
		if (status) {
			for (uint32_t i = 0; i < hr__ops[kind].out_count; i++) outs[i] = HR_NO_VALUE;
			name_op(&hr__ops[kind], status);
		}
	}
	use_up_all(inputs, count);
}

hr_value hr__call_one(enum hr__op_kind kind, const hr_value *inputs, uint32_t count, const hr__attrs *attrs)
{
	hr_value outs[HR__OP_OUTPUTS];
	hr__call(kind, inputs, count, attrs, outs);
	return outs[0];
}

hr_status hr_fetch(hr_value handle, void *to, size_t bytes)
{
	hr__value value;
	if (!handle.id) return hr_last_status() ? hr_last_status() : hr__fail(HR_INVALID_ARGUMENT, "hr_fetch: there is no value");
	hr_status status = hr__value_get(handle, &value);
	if (status) return status;
	if (value.graph) return hr__fail(HR_INVALID_ARGUMENT, "hr_fetch: the value is a place in a graph; hr_session_run gives it contents");
	char shape[HR__DIMS_TEXT];
	uint64_t there = hr__type_bytes(&value.type);
	if (there != bytes || (!to && bytes))
		status = hr__fail(HR_INVALID_ARGUMENT, "hr_fetch: %zu bytes given for %s %s, which has %llu", bytes, hr_dtype_text(value.type.dtype),
		                  hr__dims_text(&value.type.dims, shape, sizeof shape), (unsigned long long)there);
	hr__session *session = value.session;
	void *from = NULL;
	hr_pin pin = { value.buffer ? value.buffer->tensor : (hr_tensor){ 0 }, HR_READ };
	if (!status && value.buffer) {
		if (pin.tensor.id) status = hr_pin_all(&pin, 1, session->stream);
		if (!status) {
			from = value.buffer->block;
			if (pin.tensor.id) status = hr_tensor_address(pin.tensor, &from);
			if (!status)
				status = hr_copy(session->handle, to, (char *)from + value.offset, bytes, HR_COPY_TO_HOST, session->stream);
			hr_status unpinned = pin.tensor.id ? hr_unpin_all(&pin, 1, session->stream) : HR_OK;
			if (!status) status = unpinned;
		}
	}
	if (!status) status = hr__session_wait(session);
	hr__value_use_up(handle);
	return status;
}
