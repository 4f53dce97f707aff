/* execute.c - running an op: memory for its outputs, pins, and a host call queued on the session's stream.
 *
 * hr__execute returns as soon as the call is queued. Buffers are pinned until then. After that, stream order (hr_tensor_unpin_all,
 * hr_free) keeps their memory from being reused before the stream is done with it.
 *
 * While a trace is recorded, the host waits for each op, so that the op's event contains its duration. */
#include "core/base/status.h"
#include "core/device/device.h"
#include "core/memory/allocator.h"
#include "core/memory/bfc/tensor_block.h"
#include "core/os/os.h"
#include "runtime/card/card.h"
#include "runtime/engine/capturing.h"
#include "runtime/engine/job.h"
#include "runtime/graph/captured.h"
#include "runtime/ops/ops.h"
#include "runtime/recipe/origin.h"
#include "core/trace/trace.h"

#define SLOTS (HR__OP_INPUTS + HR__OP_OUTPUTS + 1)

/* The memory of an op. */
struct op_memory {
	const hr__slot *ins;
	hr__slot *outs;
	uint32_t in_count, out_count;
	hr__buffer *scratch;
	hr__buffer *fresh[HR__OP_OUTPUTS + 1]; /* outputs and scratch that were allocated for this op */
	uint32_t fresh_count;
	bool in_place; /* the first output is in the memory of an input */
	bool recorded; /* a trace is being recorded */
};

/* ---- memory ---- */

static bool can_take(const hr__slot *in, uint64_t bytes)
{
	return in->may_take && in->buffer && !in->offset && in->buffer->bytes == bytes && hr__buffer_refs(in->buffer) == in->refs;
}

/* The input whose memory the output reuses; -1 = none. */
static int find_memory(const hr__op *op, const struct op_memory *memory, uint32_t out)
{
	uint64_t bytes = hr__type_bytes(&memory->outs[out].type);
	if (op->memory == HR__UPDATES) return out < memory->in_count && can_take(&memory->ins[out], bytes) ? (int)out : -1;
	for (uint32_t i = 0; i < memory->in_count && op->memory == HR__FORWARDS && out == 0; i++)
		if (op->forwards >> i & 1 && can_take(&memory->ins[i], bytes)) return (int)i;
	return -1;
}

static void release_outs(const struct op_memory *memory)
{
	for (uint32_t i = 0; i < memory->out_count; i++) {
		hr__buffer_release(memory->outs[i].buffer);
		memory->outs[i].buffer = NULL;
	}
}

/* Role of output [i]: that of the variable whose contents it becomes, or the task's. */
static hr__role role_of(const hr__task *task, uint32_t i)
{
	hr__variable variable;
	if (i >= hr__variables_of(task->attrs) || hr__variable_get(task->attrs->variables[i], &variable)) return task->role;
	return hr__variable_role(&variable);
}

static hr_status get_buffer(const hr__task *task, struct op_memory *memory, const hr__type *type, hr__role role, hr__buffer **out)
{
	hr_status status = hr__buffer_new(task->session, type, hr__type_bytes(type), task->scope, role, out);
	if (*out) memory->fresh[memory->fresh_count++] = *out;
	return status;
}

static hr_status get_memory(const hr__task *task, struct op_memory *memory)
{
	const hr__op *op = &hr__ops[task->kind];
	hr__type in_types[HR__OP_INPUTS], out_types[HR__OP_OUTPUTS];
	int taken[HR__OP_OUTPUTS];
	hr_status status = HR_OK;
	for (uint32_t i = 0; i < memory->in_count; i++) in_types[i] = memory->ins[i].type;
	for (uint32_t i = 0; i < memory->out_count; i++) {
		out_types[i] = memory->outs[i].type;
		memory->outs[i].buffer = NULL;
		memory->outs[i].offset = 0;
		taken[i] = find_memory(op, memory, i);
	}
	for (uint32_t i = 0; i < memory->out_count && !status; i++) {
		if (taken[i] >= 0) {
			memory->outs[i].buffer = memory->ins[taken[i]].buffer;
			hr__buffer_keep(memory->outs[i].buffer);
			memory->in_place |= i == 0;
		} else {
			status = get_buffer(task, memory, &out_types[i], role_of(task, i), &memory->outs[i].buffer);
		}
	}
	uint64_t scratch = status ? 0 : hr__scratch_bytes(task->session, task->kind, task->attrs, in_types, out_types);
	if (scratch) status = get_buffer(task, memory, &(hr__type){ HR_DTYPE_UINT8, { 1, { (int64_t)scratch } } }, HR__SCRATCH, &memory->scratch);
	if (status) release_outs(memory);
	return status;
}

/* ---- pins ---- */

struct pins {
	hr_pin list[SLOTS];
	size_t count;
};

static void add_pin(struct pins *pins, const hr__buffer *buffer, hr_access access)
{
	if (!buffer || !buffer->tensor.id) return;
	for (size_t i = 0; i < pins->count; i++) {
		if (pins->list[i].tensor.id != buffer->tensor.id) continue;
		if (access != HR_READ) pins->list[i].access = HR_WRITE; /* read and written */
		return;
	}
	pins->list[pins->count++] = (hr_pin){ buffer->tensor, access };
}

/* CUDA graphs keep memory between their launches: it is given back before a request fails. */
static hr_status pin_all(const struct pins *pins, hr__session *session)
{
	if (!pins->count) return HR_OK;
	bool graphs = hr__captured_begin_attempt(session);
	hr_status status = hr_tensor_pin_all(pins->list, pins->count, session->stream);
	return hr__captured_end_attempt(session, graphs, status) ? hr_tensor_pin_all(pins->list, pins->count, session->stream) : status;
}

/* ---- events ---- */

/* Reports the whole block, also if the op uses only part of the buffer. */
static void record_use(const hr__task *task, const hr__buffer *buffer, hr__event_kind kind)
{
	void *at;
	hr_status status;
	const hr__allocator *allocator = hr__allocator_of(task->session->allocator, &status);
	if (!allocator || !buffer || hr__buffer_address(buffer, 0, &at)) return;
	hr__trace_event(&(hr__event){ .kind = kind, .allocator = (uint32_t)allocator->id, .stream = task->session->stream, .address = (uintptr_t)at,
	                              .bytes = buffer->bytes, .op = hr_name_intern(hr__ops[task->kind].name) });
}

static void record_uses(const hr__task *task, const struct op_memory *memory)
{
	for (uint32_t i = 0; i < memory->in_count; i++) record_use(task, memory->ins[i].buffer, HR__EVENT_READ);
	for (uint32_t i = 0; i < memory->out_count; i++) record_use(task, memory->outs[i].buffer, HR__EVENT_WRITE);
	record_use(task, memory->scratch, HR__EVENT_WRITE);
}

static void record_op(const hr__task *task, hr__event_kind kind, uint64_t ns)
{
	hr__trace_event(&(hr__event){ .kind = kind, .stream = task->session->stream, .op = hr_name_intern(hr__ops[task->kind].name),
	                              .scope = task->scope, .bytes = ns });
}

/* ---- the job ---- */

static hr_status new_job(const hr__task *task, uint64_t data, hr__job **out)
{
	hr_status status = hr__job_new(task->kind, task->attrs, data, task->session->team, out);
	if (status) return status;
	hr__job *job = *out;
	job->updates = task->updates;
	job->session = task->session;
	job->scope = task->scope;
	job->note = task->note;
	job->begin_ns = task->begin_ns;
	return HR_OK;
}

static hr_status fill_in(hr__work *work, const struct op_memory *memory)
{
	hr_status status = HR_OK;
	void *at;
	work->in_count = memory->in_count;
	work->out_count = memory->out_count;
	for (uint32_t i = 0; i < memory->in_count && !status; i++) {
		work->in_types[i] = memory->ins[i].type;
		status = hr__buffer_address(memory->ins[i].buffer, memory->ins[i].offset, &at);
		work->in[i] = at ? at : hr__job_nothing();
	}
	for (uint32_t i = 0; i < memory->out_count && !status; i++) {
		work->out_types[i] = memory->outs[i].type;
		status = hr__buffer_address(memory->outs[i].buffer, memory->outs[i].offset, &work->out[i]);
		if (!work->out[i]) work->out[i] = hr__job_nothing();
	}
	return status ? status : hr__buffer_address(memory->scratch, 0, &work->scratch);
}

/* Bytes that the block occupies, rounding included: the unit of bytes_in_use. */
static uint64_t occupied_bytes(const hr__buffer *buffer)
{
	hr_status status;
	void *at;
	hr__allocator *allocator = hr__allocator_of(buffer->session->allocator, &status);
	return allocator && !hr__buffer_address(buffer, 0, &at) ? hr__block_bytes(allocator, (uintptr_t)at, NULL) : 0;
}

/* Call with everything pinned. */
static void note_memory(const hr__task *task, const struct op_memory *memory)
{
	hr_stats stats;
	hr_stats_init(&stats);
	task->note->allocations = memory->fresh_count;
	for (uint32_t i = 0; i < memory->fresh_count; i++) task->note->allocated_bytes += occupied_bytes(memory->fresh[i]);
	if (!hr_allocator_get_stats(task->session->allocator, &stats)) task->note->peak_bytes = (uint64_t)stats.bytes_in_use;
}

/* Call with everything pinned. *queued: the stream owns the job. */
static hr_status queue_job(const hr__task *task, const struct op_memory *memory, hr__job *job, bool *queued)
{
	const hr__session *session = task->session;
	hr__stage stage;
	uint64_t took = 0;
	hr_status status = fill_in(&job->work, memory);
	if (!status) status = hr__stage_in(session, &job->work, memory->scratch ? memory->scratch->bytes : 0, &stage);
	if (status) return status;
	if (task->note) note_memory(task, memory);
	if (memory->recorded) {
		job->took_ns = &took;
		record_uses(task, memory);
	}
	status = hr__job_queue(job, session->device, session->stream);
	*queued = !status;
	if (!status) status = hr__stage_out(session, &stage);
	hr__stage_end(session, &stage);
	if (*queued && status && memory->recorded) (void)!hr_stream_synchronize(session->handle, session->stream); /* the job writes to [took] */
	if (status || !memory->recorded) return status;
	status = hr_stream_synchronize(session->handle, session->stream);
	if (!status) record_op(task, HR__EVENT_OP_END, took);
	return status;
}

/* On a card nothing is known of when an op runs, except by waiting before and after it. */
static hr_status wait_if(bool timed, const hr__session *session, uint64_t *ns)
{
	hr_status status = timed ? hr_stream_synchronize(session->handle, session->stream) : HR_OK;
	*ns = timed ? hr__os()->clock_ns() : 0;
	return status;
}

/* Queues the kernels of the op. Call with everything pinned. */
static hr_status queue_kernels(const hr__task *task, const struct op_memory *memory)
{
	const hr__session *session = task->session;
	hr__work work = { .attrs = task->attrs };
	bool timed = memory->recorded || task->note;
	uint64_t begin, end;
	hr_status status = fill_in(&work, memory);
	if (status) return status;
	if (task->note) note_memory(task, memory);
	if (memory->recorded) record_uses(task, memory);
	hr__k_faults faults = hr__faults_for(task->session, task->kind, task->scope, &work);
	status = wait_if(timed, session, &begin);
	if (!status) status = hr__card_queue(session->card, task->kind, &work, session->stream, &faults);
	/* After queueing, because a thread that waits for the session meanwhile clears it. After a failure too: a part may be queued. */
	__atomic_store_n(&task->session->may_have_faults, true, __ATOMIC_RELEASE);
	if (!status) status = wait_if(timed, session, &end);
	if (status || !timed) return status;
	if (task->note) {
		task->note->begin_ns = begin - task->begin_ns;
		task->note->ns = end - begin;
	}
	if (memory->recorded) record_op(task, HR__EVENT_OP_END, end - begin);
	return HR_OK;
}

/* What the outputs had before is overwritten. */
static void forget_origins(const struct op_memory *memory)
{
	for (uint32_t i = 0; i < memory->out_count; i++)
		if (memory->outs[i].buffer && memory->outs[i].buffer->origin) hr__origin_forget(memory->outs[i].buffer);
}

/* Call with everything pinned. Consumes the job, which is NULL if the card computes the op, and the origin. */
static hr_status queue_pinned(const hr__task *task, const struct op_memory *memory, hr__job *job, hr__origin *origin)
{
	bool queued = false;
	hr_status status = job ? queue_job(task, memory, job, &queued) : queue_kernels(task, memory);
	if (!queued) hr__job_free(job);
	forget_origins(memory);
	if (status) hr__origin_release(origin);
	else hr__origin_attach(origin, memory->outs);
	return status;
}

/* Records the kernels of the op, if the card computes it. Nothing is pinned: variables are pinned while the thread captures. */
static hr_status queue_captured(const hr__task *task, const struct op_memory *memory, const hr__capturing *capturing)
{
	hr__work work = { .attrs = task->attrs };
	hr__session *session = task->session;
	if (!hr__is_on_card(session, task->kind)) return hr__capturing_refuses("the host computes an op");
	if (!capturing->records) return HR_OK;
	hr_status status = fill_in(&work, memory);
	if (status) return status;
	hr__k_faults faults = hr__faults_for(session, task->kind, task->scope, &work);
	return hr__card_queue(session->card, task->kind, &work, capturing->stream, &faults);
}

/* Pins, queues the op and unpins. An op in place is planned as a part of the op that has just made its input, so that both run again as
 * one (hr_tensor_hold_recipe): therefore each op is a pin group. Consumes the job and the origin. */
static hr_status queue_in_group(const hr__task *task, const struct op_memory *memory, struct pins *pins, hr__job *job, hr__origin *origin)
{
	bool has_recipes = task->session->has_recipes;
	hr_tensor held = has_recipes ? hr__origin_hold(origin, memory->outs) : (hr_tensor){ 0 };
	if (has_recipes) hr_pin_group_begin();
	hr_status status = pin_all(pins, task->session);
	if (status) {
		hr__job_free(job);
		hr__origin_release(origin);
	} else {
		status = queue_pinned(task, memory, job, origin);
		hr_status unpinned = pins->count ? hr_tensor_unpin_all(pins->list, pins->count, task->session->stream) : HR_OK;
		if (!status) status = unpinned;
	}
	if (has_recipes) hr_pin_group_end();
	if (held.id) (void)hr_tensor_unhold_recipe(held);
	return status;
}

/* The origin is made before the pin, which ends the recipes of what is overwritten, and the recipe is set before the unpin, from which on
 * a policy may drop the outputs. */
static hr_status queue(const hr__task *task, const struct op_memory *memory)
{
	struct pins pins = { .count = 0 };
	const hr__capturing *capturing = hr__capturing_in(task->session);
	if (capturing && !capturing->prepares) return queue_captured(task, memory, capturing);
	if (capturing && !capturing->records) return HR_OK;
	uint64_t data = task->kind == HR__OP_CONSTANT ? hr__type_bytes(&memory->outs[0].type) : 0;
	for (uint32_t i = 0; i < memory->in_count; i++) add_pin(&pins, memory->ins[i].buffer, HR_READ);
	for (uint32_t i = 0; i < memory->out_count; i++) add_pin(&pins, memory->outs[i].buffer, HR_OVERWRITE);
	add_pin(&pins, memory->scratch, HR_OVERWRITE);
	hr__job *job = NULL;
	hr_status status = hr__is_on_card(task->session, task->kind) ? HR_OK : new_job(task, data, &job);
	if (status) return status;
	hr__origin *origin = NULL;
	if (task->session->has_recipes) origin = hr__origin_new(task, memory->ins, memory->in_count, memory->outs, memory->in_place);
	return queue_in_group(task, memory, &pins, job, origin);
}

/* A slice whose elements are contiguous. */
static bool is_view(const hr__task *task, const hr__slot *ins, uint64_t *offset)
{
	if (task->kind != HR__OP_SLICE) return false;
	const hr__dims *dims = &ins[0].type.dims;
	int axis = hr__axis(task->attrs->axis, dims->rank);
	uint64_t row = hr_dtype_size(ins[0].type.dtype);
	for (int i = 0; i < axis; i++)
		if (dims->d[i] != 1) return false;
	for (int i = axis + 1; i < dims->rank; i++) row *= (uint64_t)dims->d[i];
	*offset = row * (uint64_t)task->attrs->begin;
	return true;
}

hr_status hr__execute_plain(const hr__task *task, const hr__slot *ins, uint32_t in_count, hr__slot *outs)
{
	const hr__op *op = &hr__ops[task->kind];
	struct op_memory memory = { .ins = ins,
		                        .outs = outs,
		                        .in_count = op->order_only ? 0 : in_count,
		                        .out_count = op->out_count,
		                        .recorded = hr__trace_is_on() };
	uint64_t offset = 0;
	if (op->memory == HR__ALIASES || is_view(task, ins, &offset)) {
		outs[0].buffer = ins[0].buffer;
		outs[0].offset = ins[0].offset + offset;
		hr__buffer_keep(outs[0].buffer);
		return HR_OK;
	}
	hr_name before = hr_op_set(hr_name_intern(op->name)); /* for the ledger, and for messages */
	if (memory.recorded) record_op(task, HR__EVENT_OP_BEGIN, 0);
	hr_status status = get_memory(task, &memory);
	if (!status) {
		status = queue(task, &memory);
		hr__buffer_release(memory.scratch);
		if (status) release_outs(&memory);
	}
	if (status && memory.recorded) record_op(task, HR__EVENT_OP_END, 0);
	hr_op_set(before);
	return status;
}

/* ---- on variables ---- */

static void release_contents(hr__content *contents, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) hr__buffer_release(contents[i].buffer);
}

/* Each launch of a CUDA graph updates the memory that it was captured with. */
static hr_status need_in_place(const hr__content *contents, uint32_t count, hr__slot *outs)
{
	bool is_in_place = true;
	for (uint32_t i = 0; i < count; i++) is_in_place &= outs[i].buffer == contents[i].buffer;
	if (is_in_place) return HR_OK;
	for (uint32_t i = 0; i < count; i++) {
		hr__buffer_release(outs[i].buffer);
		outs[i].buffer = NULL;
	}
	return hr__capturing_refuses("a variable is not updated in place");
}

/* Reads, changes and replaces contents of variables; in place if they have no other references. */
static hr_status update(const hr__task *task, uint32_t count, const hr__slot *ins, uint32_t in_count, hr__slot *outs)
{
	hr__content contents[HR__OP_OUTPUTS];
	hr__slot all[HR__OP_INPUTS] = { 0 };
	hr_status status = HR_OK;
	uint32_t got = 0;
	for (uint32_t i = 0; i < count && !status; i++) {
		hr__variable variable;
		status = hr__variable_get(task->attrs->variables[i], &variable);
		if (!status) status = hr__variable_read(task->session, variable.id, &contents[i]);
		if (status) break;
		got++;
		all[i] = (hr__slot){ variable.type, contents[i].buffer, 0, true, 2 }; /* the session's reference and this one */
	}
	for (uint32_t i = 0; i < in_count; i++) all[count + i] = ins[i];
	hr__task updating = *task;
	updating.updates = true;
	if (!status) status = hr__execute_plain(&updating, all, count + in_count, outs);
	if (!status && hr__capturing_in(task->session)) status = need_in_place(contents, count, outs);
	for (uint32_t i = 0; i < count && !status; i++) status = hr__variable_write(task->session, task->attrs->variables[i], outs[i].buffer);
	release_contents(contents, got);
	return status;
}

/* A value that is only part of its buffer is copied, so that the variable does not keep the whole buffer alive. */
static hr_status assign(const hr__task *task, const hr__slot *in, hr__slot *out)
{
	bool whole = !in->buffer || (!in->offset && in->buffer->bytes == hr__type_bytes(&in->type));
	hr__task copy = *task;
	copy.kind = HR__OP_COPY;
	hr__variable variable;
	hr_status status = hr__variable_get(task->attrs->variables[0], &variable);
	if (!status) status = hr__variable_prepare(task->session, variable.id);
	if (!status) status = hr__execute_plain(whole ? task : &copy, in, 1, out);
	return status ? status : hr__variable_write(task->session, task->attrs->variables[0], out->buffer);
}

static hr_status read(const hr__task *task, hr__slot *out)
{
	hr__content content;
	hr_status status = hr__variable_read(task->session, task->attrs->variables[0], &content);
	if (!status) *out = (hr__slot){ .type = out->type, .buffer = content.buffer };
	return status;
}

static hr_status initialize(const hr__task *task, hr__slot *out)
{
	uint32_t count;
	hr_status status = hr__variables_initialize(task->session, task->attrs->graph, &count);
	hr__attrs attrs = { .a = count };
	hr__task with_count = *task;
	with_count.attrs = &attrs;
	return status ? status : hr__execute_plain(&with_count, NULL, 0, out);
}

static hr_status on_variables(const hr__task *task, const hr__slot *ins, uint32_t in_count, hr__slot *outs)
{
	bool replaces = task->kind == HR__OP_ASSIGN || task->kind == HR__OP_INITIALIZE;
	if (replaces && hr__capturing_in(task->session)) return hr__capturing_refuses("a variable is replaced");
	switch (task->kind) {
	case HR__OP_READ: return read(task, outs);
	case HR__OP_ASSIGN: return assign(task, ins, outs);
	case HR__OP_INITIALIZE: return initialize(task, outs);
	default: return update(task, hr__variables_of(task->attrs), ins, in_count, outs);
	}
}

hr_status hr__execute(const hr__task *task, const hr__slot *ins, uint32_t in_count, hr__slot *outs)
{
	bool of_variables = hr__variables_of(task->attrs) || task->kind == HR__OP_INITIALIZE;
	/* Recipes must not be set while another thread writes to what they read (recipe/origin.h). */
	bool may_write = task->session->has_recipes && hr__ops[task->kind].memory == HR__FORWARDS;
	if (!of_variables && !may_write) return hr__execute_plain(task, ins, in_count, outs);
	if (hr__capturing_in(task->session)) return on_variables(task, ins, in_count, outs); /* the thread has the turn */
	hr__monitor *turn = task->session->turn;
	hr__os()->monitor_enter(turn);
	hr_status status = of_variables ? on_variables(task, ins, in_count, outs) : hr__execute_plain(task, ins, in_count, outs);
	hr__os()->monitor_leave(turn);
	return status;
}
