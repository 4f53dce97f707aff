/* call.c - entry point of all op calls: checks the call, then runs the op or adds a node. */
#include <stdio.h>
#include <string.h>

#include "core/base/status.h"
#include "core/base/text/text.h"
#include "runtime/engine/engine.h"

hr_status hr__name_op(hr_status status, const char *op, hr_name scope)
{
	char name[80], place[240] = "";
	const char *text = hr_name_text(scope), *message = hr_last_message();
	int length = snprintf(name, sizeof name, "op \"%.60s\"", op);
	if (*text) snprintf(place, sizeof place, " in scope \"%.200s\"", text);
	/* The out-of-memory messages of tensors already name the op but not the scope: insert it. */
	if (strncmp(message, name, (size_t)length) == 0) return hr__fail(status, "%s%s%s", name, place, message + length);
	return hr__fail_in(status, "%s%s", name, place);
}

static void consume_all(const hr_value *inputs, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		if (inputs[i].id) hr__value_consume(inputs[i]);
}

/* Checks that all inputs exist and belong to the same graph or session. The first *held of them have a reference that the caller
 * releases. */
static hr_status look_up(const hr_value *inputs, uint32_t count, const hr__graph *graph, const hr__session *session, hr__value *values, uint32_t *held)
{
	for (uint32_t i = 0; i < count; i++) {
		hr_status status = hr__value_hold(inputs[i], &values[i]);
		if (status) return status;
		*held = i + 1;
		if (values[i].graph != graph)
			return hr__fail(HR_INVALID_ARGUMENT, graph ? "input %u is outside of the graph that is being built; feed it through a placeholder"
			                                           : "input %u belongs to a graph; it has contents only while that runs (hr_session_run)", i);
		if (values[i].session != session && !graph)
			return hr__fail(HR_INVALID_ARGUMENT, "input %u belongs to another session", i);
	}
	return HR_OK;
}

/* References to the buffer of input [i] that this call accounts for: one per input that uses the buffer, and the value's. */
static int64_t known_refs(const hr__value *values, uint32_t count, uint32_t i)
{
	int64_t refs = 1;
	for (uint32_t k = 0; k < count; k++) refs += values[k].buffer == values[i].buffer;
	return refs;
}

static hr_status run(hr__session *session, enum hr__op_kind kind, const hr__attrs *attrs, const hr__value *values, uint32_t count,
                     const hr__type *types, hr_value *outs)
{
	const hr__op *op = &hr__ops[kind];
	hr__slot ins[HR__OP_INPUTS], results[HR__OP_OUTPUTS];
	hr__task task = { .session = session, .kind = kind, .attrs = attrs, .scope = hr_name_scope_current(), .role = hr__role_current() };
	for (uint32_t i = 0; i < count; i++)
		ins[i] = (hr__slot){ values[i].type, values[i].buffer, values[i].offset, values[i].temporary && !hr__tape_keeps(kind, i, values[i].serial),
		                    known_refs(values, count, i) };
	for (uint32_t i = 0; i < op->out_count; i++) results[i] = (hr__slot){ .type = types[i] };
	hr_status status = hr__execute(&task, ins, count, results);
	if (status) return status;
	if (hr__writes_variables(kind, attrs)) {
		for (uint32_t i = 0; i < op->out_count; i++) {
			hr__buffer_release(results[i].buffer);
			outs[i] = HR_DONE;
		}
		return HR_OK;
	}
	for (uint32_t i = 0; i < op->out_count; i++) {
		outs[i] = hr__value_new(&(hr__value){ .type = types[i],
		                                      .session = session,
		                                      .buffer = results[i].buffer,
		                                      .offset = results[i].offset,
		                                      .op = hr_name_intern(op->name),
		                                      .scope = hr_name_scope_current() });
		if (!outs[i].id) status = HR_NO_HOST_MEMORY;
	}
	if (status) consume_all(outs, op->out_count);
	return status;
}

/* The new contents of a variable must have its type: an addition must not broadcast it. */
static hr_status check_written(const hr__type *variable, const hr__type *out)
{
	char is[HR__DIMS_TEXT], becomes[HR__DIMS_TEXT];
	if (variable->dtype == out->dtype && hr__dims_equal(&variable->dims, &out->dims)) return HR_OK;
	return hr__fail(HR_INVALID_ARGUMENT, "the variable is %s %s; %s %s cannot be assigned to it", hr_dtype_text(variable->dtype),
	                hr__dims_text(&variable->dims, is, sizeof is), hr_dtype_text(out->dtype), hr__dims_text(&out->dims, becomes, sizeof becomes));
}

/* Types of all inputs, variables first. */
static hr_status find_types(const hr__attrs *attrs, const hr__value *values, uint32_t count, const hr__graph *graph, const hr__session *session,
                            hr__type *out)
{
	uint32_t variables = hr__variables_of(attrs);
	for (uint32_t i = 0; i < variables; i++) {
		hr__variable variable;
		hr_status status = hr__variable_get(attrs->variables[i], &variable);
		if (!status) status = hr__variable_check(&variable, graph, session);
		if (status) return status;
		out[i] = variable.type;
	}
	for (uint32_t i = 0; i < count; i++) out[variables + i] = values[i].type;
	return HR_OK;
}

/* Gives the result of an eager read the serial of the variable's contents, so that a tape sees repeated reads as the same value. If
 * another thread has updated the variable since the read, the buffers differ and the result gets a serial of its own. Comparing
 * buffers is enough: contents with other references are never updated in place. */
static void number_contents(hr__session *session, const hr__attrs *attrs, hr_value out)
{
	hr__value value;
	hr__content content;
	if (hr__value_get(out, &value) || hr__variable_read(session, attrs->variables[0], &content)) return;
	if (content.buffer == value.buffer) hr__value_set_serial(out, content.serial);
	hr__buffer_release(content.buffer);
}

static hr_status call_on(enum hr__op_kind kind, hr__graph *graph, hr__session *session, const hr_value *inputs, const hr__value *values, uint32_t count,
                         const hr__attrs *attrs, hr_value *outs)
{
	const hr__op *op = &hr__ops[kind];
	uint32_t total = count + hr__variables_of(attrs);
	hr__type in_types[HR__OP_INPUTS], types[HR__OP_OUTPUTS];
	if (total < op->in_min || total > op->in_max)
		return hr__fail(HR_INVALID_ARGUMENT, "%u input%s given, %u to %u taken", total, hr__plural(total), op->in_min, op->in_max);
	hr_status status = find_types(attrs, values, count, graph, session, in_types);
	if (!status) status = op->infer(in_types, total, attrs, types);
	for (uint32_t i = 0; i < hr__variables_of(attrs) && !status && kind != HR__OP_READ; i++)
		status = check_written(&in_types[i], &types[i]);
	if (status) return status;
	if (graph) {
		hr__graph_add(graph, kind, attrs, values, count, types, outs);
		return outs[0].id ? HR_OK : hr_last_status();
	}
	status = run(session, kind, attrs, values, count, types, outs);
	if (status || hr__writes_variables(kind, attrs)) return status;
	if (kind == HR__OP_READ) number_contents(session, attrs, outs[0]);
	else if (hr__tape_is_on()) hr__tape_note(kind, attrs, inputs, in_types, count, outs, types);
	return HR_OK;
}

static hr_status call(enum hr__op_kind kind, const hr_value *inputs, uint32_t count, const hr__attrs *attrs, hr_value *outs)
{
	hr__value values[HR__OP_INPUTS];
	uint32_t held = 0;
	hr__graph *graph = hr__graph_current();
	hr__session *session = graph ? NULL : hr__session_current();
	if (!graph && !session) return hr_last_status();
	hr_status status = look_up(inputs, count, graph, session, values, &held);
	if (!status) status = call_on(kind, graph, session, inputs, values, count, attrs, outs);
	for (uint32_t i = 0; i < held; i++) hr__buffer_release(values[i].buffer);
	return status;
}

void hr__call(enum hr__op_kind kind, const hr_value *inputs, uint32_t count, const hr__attrs *attrs, hr_value *outs)
{
	bool all = true;
	for (uint32_t i = 0; i < hr__ops[kind].out_count; i++) outs[i] = HR_NO_VALUE;
	for (uint32_t i = 0; i < count; i++) all &= inputs[i].id != 0;
	if (all) { /* otherwise the message of the earlier failure stays */
		hr_status status = call(kind, inputs, count, attrs, outs);
		if (status) {
			for (uint32_t i = 0; i < hr__ops[kind].out_count; i++) outs[i] = HR_NO_VALUE;
			hr__name_op(status, hr__ops[kind].name, hr_name_scope_current());
		}
	}
	consume_all(inputs, count);
}

hr_value hr__call_one(enum hr__op_kind kind, const hr_value *inputs, uint32_t count, const hr__attrs *attrs)
{
	hr_value outs[HR__OP_OUTPUTS];
	hr__call(kind, inputs, count, attrs, outs);
	return outs[0];
}
