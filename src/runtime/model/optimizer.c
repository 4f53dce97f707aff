/* optimizer.c - updates of variables by gradients. The state of an optimizer is in variables too, so it is counted, evicted and
 * freed with the session like any other. */
#include <stdio.h>

#include "core/base/status.h"
#include "core/os/os.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/structs.h"

void hr_optimizer_init_sized(hr_optimizer *optimizer, size_t struct_size, hr_optimizer_kind kind)
{
	const hr_optimizer initial = { .struct_size = sizeof initial, .kind = kind, .learning_rate = kind == HR_ADAM ? 0.001 : 0.01, .momentum = 0.9,
		                           .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8 };
	hr__struct_init(&hr__struct_optimizer, optimizer, struct_size, &initial);
}

static const char *name_of(const hr_optimizer *optimizer)
{
	static const char *const names[] = { "sgd", "momentum", "adam" };
	return optimizer->name ? optimizer->name : names[optimizer->kind];
}

static enum hr__op_kind op_of(const hr_optimizer *optimizer)
{
	static const enum hr__op_kind kinds[] = { HR__OP_SGD, HR__OP_MOMENTUM, HR__OP_ADAM };
	return kinds[optimizer->kind];
}

/* The state variable "<variable>/<optimizer>/<what>", of the variable's type. 0 on failure. */
static uint64_t memory_of(const hr_optimizer *optimizer, const hr__variable *variable, const char *what)
{
	char name[640];
	int length = snprintf(name, sizeof name, "%s/%s/%s", hr_name_text(variable->name), name_of(optimizer), what);
	if (length > 0 && (size_t)length < sizeof name) return hr__variable_hidden(name, &variable->type).id;
	hr__fail(HR_INVALID_ARGUMENT, "the name of variable \"%.60s\" is too long for its optimizer", hr_name_text(variable->name));
	return 0;
}

/* The variables of an update: the updated one and its optimizer state. False: one is missing and could not be created. */
static bool find_variables(const hr_optimizer *optimizer, uint64_t updated, uint64_t *out)
{
	hr__variable variable;
	if (hr__variable_get(updated, &variable)) return false;
	out[0] = updated;
	if (optimizer->kind == HR_SGD) return true;
	out[1] = memory_of(optimizer, &variable, "m");
	if (optimizer->kind == HR_MOMENTUM || !out[1]) return out[1] != 0;
	out[2] = memory_of(optimizer, &variable, "v");
	return out[2] != 0;
}

/* Consumes the gradient, also on failure. */
static hr_value apply(const hr_optimizer *optimizer, hr_variable handle, hr_value gradient, hr_value steps)
{
	hr_value ins[] = { gradient, steps };
	hr__attrs attrs = { .a = optimizer->learning_rate, .b = optimizer->kind == HR_ADAM ? optimizer->beta1 : optimizer->momentum,
		                .c = optimizer->beta2, .d = optimizer->epsilon };
	if (find_variables(optimizer, handle.id, attrs.variables)) return hr__call_one(op_of(optimizer), ins, optimizer->kind == HR_ADAM ? 2 : 1, &attrs);
	hr__value_consume(gradient);
	return HR_NO_VALUE;
}

/* Increments the step counter and returns its new value. */
static hr_value count_step(const hr_optimizer *optimizer)
{
	char name[256];
	int length = snprintf(name, sizeof name, "%s/step", name_of(optimizer));
	if (length < 0 || (size_t)length >= sizeof name) {
		hr__fail(HR_INVALID_ARGUMENT, "the name of the optimizer is longer than %zu bytes", sizeof name - 6);
		return HR_NO_VALUE;
	}
	hr_variable step = hr__variable_hidden(name, &(hr__type){ .dtype = HR_DTYPE_INT64 });
	if (!step.id) return HR_NO_VALUE;
	hr_value added = hr_assign_add(step, hr_full(HR_DTYPE_INT64, HR_SCALAR, 1));
	if (!added.id) return HR_NO_VALUE;
	return hr__graph_current() ? added : hr_variable_read(step);
}

/* Copies an optimizer of any version of the headers to [out]. */
static hr_status check(const char *call, const hr_optimizer *given, const hr_variable *variables, const hr_value *gradients, size_t count,
                       hr_optimizer *out)
{
	bool has_kind = given && given->struct_size >= HR__THROUGH(hr_optimizer, kind); /* the defaults depend on it */
	hr_optimizer_init(out, has_kind ? given->kind : HR_SGD);
	hr_status status = hr__struct_in(&hr__struct_optimizer, call, out, given);
	if (status) return status;
	if ((unsigned)out->kind > HR_ADAM) return hr__fail(HR_INVALID_ARGUMENT, "%s: %d is not a kind of optimizer (hr_optimizer_kind)", call, (int)out->kind);
	if (!count || !variables || !gradients) return hr__fail(HR_INVALID_ARGUMENT, "an optimizer was given no variables, or NULL");
	return HR_OK;
}

/* ---- checks before anything is updated ---- */

static hr_status check_variable(hr_variable handle, const hr__graph *graph, hr__session *session, hr__variable *out)
{
	hr__content content;
	hr_status status = hr__variable_get(handle.id, out);
	if (!status) status = hr__variable_check(out, graph, session);
	if (status || graph) return status;
	status = hr__variable_read(session, handle.id, &content);
	if (!status) hr__buffer_release(content.buffer);
	return status;
}

/* The type check of the update op. */
static hr_status check_types(enum hr__op_kind kind, const hr__type *variable, const hr__type *gradient)
{
	const hr__op *op = &hr__ops[kind];
	hr__type ins[HR__OP_INPUTS], outs[HR__OP_OUTPUTS];
	uint32_t count = 0;
	while (count < op->out_count) ins[count++] = *variable; /* the state has the variable's type */
	ins[count++] = *gradient;
	if (kind == HR__OP_ADAM) ins[count++] = (hr__type){ .dtype = HR_DTYPE_INT64 };
	return op->infer(ins, count, &(hr__attrs){ .a = 0 }, outs);
}

static hr_status check_gradient(const hr_optimizer *optimizer, const hr__variable *variable, const hr_value *gradients, size_t at)
{
	hr__value value;
	const hr__graph *graph = hr__graph_current();
	hr_status status = hr__value_get(gradients[at], &value);
	if (!status && (value.graph != graph || (!graph && value.session->id != variable->session)))
		status = hr__fail(HR_INVALID_ARGUMENT, "its gradient belongs to another graph or session");
	for (size_t i = 0; i < at && !status && value.temporary && !graph; i++)
		if (gradients[i].id == gradients[at].id) status = hr__fail(HR_INVALID_ARGUMENT, "its gradient is given twice, and its first use consumes it");
	if (!status) status = check_types(op_of(optimizer), &variable->type, &value.type);
	return status ? hr__fail_in(status, "variable \"%s\"", hr_name_text(variable->name)) : HR_OK;
}

static hr_status check_updates(const hr_optimizer *optimizer, const hr_variable *variables, const hr_value *gradients, size_t count)
{
	const hr__graph *graph = hr__graph_current();
	hr__session *session = graph ? NULL : hr__session_current();
	hr_status status = graph || session ? HR_OK : hr_last_status();
	for (size_t i = 0; i < count && !status; i++) {
		hr__variable variable;
		if (!gradients[i].id) return HR_INVALID_ARGUMENT; /* the call that failed to compute it has set the message */
		status = check_variable(variables[i], graph, session, &variable);
		if (!status) status = check_gradient(optimizer, &variable, gradients, i);
	}
	return status ? hr__name_op(status, hr__ops[op_of(optimizer)].name, hr_name_scope_current()) : HR_OK;
}

/* ---- public calls ---- */

/* Consumes the gradients. */
static bool update_all(const hr_optimizer *optimizer, const hr_variable *variables, const hr_value *gradients, size_t count, hr_value *applied)
{
	hr_value steps = HR_NO_VALUE;
	bool all = true;
	/* Create the state before counting the step, so that a step that fails for lack of memory can be repeated. */
	for (size_t i = 0; i < count && all; i++) all = find_variables(optimizer, variables[i].id, (uint64_t[HR__OP_OUTPUTS]){ 0 });
	if (optimizer->kind == HR_ADAM && all) steps = hr_value_keep(count_step(optimizer));
	all = all && (optimizer->kind != HR_ADAM || steps.id);
	for (size_t i = 0; i < count; i++) {
		if (all) applied[i] = apply(optimizer, variables[i], gradients[i], steps);
		else hr__value_consume(gradients[i]);
		all &= applied[i].id != 0;
	}
	hr_value_release(steps);
	return all;
}

hr_value hr_apply_gradients(const hr_optimizer *given, const hr_variable *variables, const hr_value *gradients, size_t count)
{
	void *block;
	hr_optimizer whole, *optimizer = &whole;
	hr_value group = HR_NO_VALUE;
	int error = 0;
	hr_status status = check("hr_apply_gradients", given, variables, gradients, count, optimizer);
	if (!status) status = check_updates(optimizer, variables, gradients, count);
	if (!status) error = hr__os()->alloc(count * sizeof(hr_value), &block);
	if (error) hr__os_fail(error, "cannot get host memory for an optimizer");
	if (status || error) {
		for (size_t i = 0; i < count && gradients; i++) hr__value_consume(gradients[i]);
		return HR_NO_VALUE;
	}
	if (update_all(optimizer, variables, gradients, count, block)) group = hr_group(block, count);
	hr__os()->free(block, count * sizeof(hr_value));
	return group;
}

static hr_value minimize(const hr_optimizer *optimizer, hr_value loss, const hr_variable *variables, size_t count)
{
	void *block;
	hr_optimizer whole;
	hr_value done = HR_NO_VALUE;
	int error = hr__os()->alloc((count + 1) * sizeof(hr_value), &block);
	if (error) {
		hr__os_fail(error, "cannot get host memory for an optimizer");
		return HR_NO_VALUE;
	}
	hr_value *gradients = block;
	if (!check("hr_minimize", optimizer, variables, gradients, count, &whole) && !hr_variable_gradients(loss, variables, count, gradients))
		done = hr_apply_gradients(optimizer, variables, gradients, count);
	hr__os()->free(block, (count + 1) * sizeof(hr_value));
	return done;
}

hr_value hr_minimize(const hr_optimizer *optimizer, hr_value loss, const hr_variable *variables, size_t count)
{
	hr_value done = minimize(optimizer, loss, variables, count);
	hr__value_consume(loss); /* if it failed before hr_variable_gradients consumed it */
	return done;
}
