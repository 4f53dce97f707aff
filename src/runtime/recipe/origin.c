/* origin.c - see origin.h. */
#include "runtime/recipe/origin.h"

#include "core/base/assert.h"
#include "core/base/status.h"
#include "core/lms/lms.h"
#include "core/os/os.h"
#include "runtime/card/card.h"
#include "runtime/engine/job.h"

#define ORIGIN_OPS 8u /* ops in one buffer that a recipe runs */
#define INPUTS_MAX (ORIGIN_OPS * HR__OP_INPUTS)

/* An input of an op. */
struct origin_input {
	hr__type type;
	hr_tensor tensor; /* id 0: it has no elements, or it is in the memory of the first output */
	uint64_t offset;  /* in the tensor */
	bool own;         /* in the memory of the first output */
};

/* Immutable except for the counts. */
struct hr__origin {
	hr__atomic_u32 refs;
	hr__atomic_u8 ended;       /* its recipe is not valid any more */
	uint64_t bytes;            /* of this allocation */
	hr__session *session;
	enum hr__op_kind kind;
	hr__attrs attrs;
	hr__origin *before;        /* of what was in the memory of the first output; NULL = nothing */
	uint32_t ops;              /* this one and those before */
	uint32_t first_input;      /* tensors that the ops before read: the recipe lists them first */
	uint32_t tensor_count;     /* tensors that this op reads */
	uint64_t cost_ns;          /* of all ops */
	uint32_t in_count, out_count;
	hr_tensor outs[HR__OP_OUTPUTS]; /* id 0: it has no elements */
	hr__type out_types[HR__OP_OUTPUTS];
	struct origin_input ins[];
};

/* ---- lifetime ---- */

void hr__origin_release(hr__origin *origin)
{
	while (origin && hr__fetch_sub_acq_rel(&origin->refs, 1) == 1) {
		hr__origin *before = origin->before;
		hr__os()->free(origin, origin->bytes);
		origin = before;
	}
}

void hr__origin_forget(hr__buffer *buffer)
{
	hr__origin_release(buffer->origin);
	buffer->origin = NULL;
}

static void recipe_ended(void *user)
{
	hr__origin *origin = user;
	hr__store_release(&origin->ended, 1);
	hr__origin_release(origin);
}

/* ---- running again ---- */

/* A run of a recipe. */
struct replay {
	const hr__origin *origin; /* the last one */
	const hr_recompute *call;
	void *outs[HR__OP_OUTPUTS];   /* where they are computed */
	void *blocks[HR__OP_OUTPUTS]; /* memory for those that must not be written; NULL = none */
};

static hr_status get_block(const struct replay *replay, uint64_t bytes, void **out)
{
	hr_request request = HR_REQUEST(bytes);
	request.stream = replay->call->stream;
	request.tag = hr_name_intern("scratch");
	return hr_alloc(replay->origin->session->allocator, &request, out);
}

/* In stream order: queued work may still use it. */
static void free_block(const struct replay *replay, void *block)
{
	if (block) hr_free(replay->origin->session->allocator, block, replay->call->stream);
}

static hr_status get_outputs(struct replay *replay)
{
	const hr__origin *origin = replay->origin;
	hr_status status = HR_OK;
	for (uint32_t i = 0, at = 0; i < origin->out_count && !status; i++) {
		replay->outs[i] = hr__job_nothing();
		if (!origin->outs[i].id) continue;
		HR_ASSERT(at < replay->call->output_count);
		hr_tensor output = replay->call->outputs[at++];
		if (output.id) {
			status = hr_tensor_get_address(output, &replay->outs[i]);
		} else {
			status = get_block(replay, hr__type_bytes(&origin->out_types[i]), &replay->blocks[i]);
			replay->outs[i] = replay->blocks[i];
		}
	}
	return status;
}

/* Types and addresses of one op. Of an earlier one only the first output exists. */
static hr_status fill_in(const struct replay *replay, const hr__origin *origin, hr__work *work)
{
	hr_status status = HR_OK;
	work->in_count = origin->in_count;
	work->out_count = origin->out_count;
	for (uint32_t i = 0, at = origin->first_input; i < origin->in_count && !status; i++) {
		const struct origin_input *in = &origin->ins[i];
		void *address = in->own ? replay->outs[0] : hr__job_nothing();
		HR_ASSERT(!in->tensor.id || at < replay->call->input_count);
		if (in->tensor.id) status = hr_tensor_get_address(replay->call->inputs[at++], &address);
		work->in_types[i] = in->type;
		work->in[i] = (char *)address + in->offset;
	}
	for (uint32_t i = 0; i < origin->out_count; i++) {
		work->out_types[i] = origin->out_types[i];
		work->out[i] = replay->outs[i];
	}
	return status;
}

static hr_status get_scratch(const struct replay *replay, const hr__origin *origin, hr__work *work)
{
	uint64_t scratch = hr__scratch_bytes(origin->session, origin->kind, &origin->attrs, work->in_types, work->out_types);
	return scratch ? get_block(replay, scratch, &work->scratch) : HR_OK;
}

static hr_status run_job(const struct replay *replay, const hr__origin *origin)
{
	hr__job *job;
	hr_status status = hr__job_new(origin->kind, &origin->attrs, 0, origin->session->team, &job);
	if (status) return status;
	status = fill_in(replay, origin, &job->work);
	if (!status) status = get_scratch(replay, origin, &job->work);
	void *scratch = job->work.scratch;
	if (!status) status = hr__job_queue(job, origin->session->device, replay->call->stream);
	if (status) hr__job_free(job);
	free_block(replay, scratch);
	return status;
}

/* An error that a kernel finds was reported when the op ran first. */
static hr_status run_kernels(const struct replay *replay, const hr__origin *origin)
{
	hr__work work = { .attrs = &origin->attrs };
	hr_status status = fill_in(replay, origin, &work);
	if (!status) status = get_scratch(replay, origin, &work);
	if (!status) status = hr__card_queue(origin->session->card, origin->kind, &work, replay->call->stream, NULL);
	free_block(replay, work.scratch);
	return status;
}

static hr_status run_op(const struct replay *replay, const hr__origin *origin)
{
	return hr__is_on_card(origin->session, origin->kind) ? run_kernels(replay, origin) : run_job(replay, origin);
}

static hr_status run_ops(const struct replay *replay, const hr__origin *origin)
{
	hr_status status = origin->before ? run_ops(replay, origin->before) : HR_OK;
	return status ? status : run_op(replay, origin);
}

static hr_status recompute(void *user, const hr_recompute *call)
{
	struct replay replay = { .origin = user, .call = call };
	hr_status status = get_outputs(&replay);
	if (!status) status = run_ops(&replay, replay.origin);
	for (uint32_t i = 0; i < HR__OP_OUTPUTS; i++) free_block(&replay, replay.blocks[i]);
	return status;
}

/* ---- making ---- */

/* Whether the outputs of a task can have a recipe at all. Contents that are assigned to a variable get none: it would keep those of
 * earlier steps as ghosts. */
static bool can_run_again(const hr__task *task, const hr__slot *outs)
{
	HR_ASSERT(task->session->has_recipes);
	if (hr__ops[task->kind].again == HR__NEVER || hr__variables_of(task->attrs)) return false;
	/* On copies in the host's memory: recomputing never takes less than moving. */
	if (task->session->card && !hr__is_on_card(task->session, task->kind)) return false;
	for (uint32_t i = 0; i < hr__ops[task->kind].out_count; i++)
		if (outs[i].buffer) return hr__lms_takes_recipes(outs[i].buffer->tensor);
	return false;
}

/* What the memory of the first output has now, if that can be computed again too. */
static hr__origin *find_before(const hr__buffer *buffer)
{
	hr__origin *before = buffer->origin;
	if (!before || before->out_count > 1 || before->ops >= ORIGIN_OPS || hr__load_acquire(&before->ended)) return NULL;
	return before;
}

static void add_inputs(hr__origin *origin, const hr__slot *ins, const hr__buffer *own)
{
	for (uint32_t i = 0; i < origin->in_count; i++) {
		struct origin_input *in = &origin->ins[i];
		*in = (struct origin_input){ .type = ins[i].type, .offset = ins[i].offset, .own = own && ins[i].buffer == own };
		if (in->own || !ins[i].buffer) continue;
		in->tensor = ins[i].buffer->tensor;
		origin->tensor_count++;
	}
}

static void add_outputs(hr__origin *origin, const hr__slot *outs)
{
	for (uint32_t i = 0; i < origin->out_count; i++) {
		origin->out_types[i] = outs[i].type;
		if (outs[i].buffer) origin->outs[i] = outs[i].buffer->tensor;
	}
}

static void add_cost(hr__origin *origin, const hr__slot *ins)
{
	hr__type types[HR__OP_INPUTS];
	for (uint32_t i = 0; i < origin->in_count; i++) types[i] = ins[i].type;
	origin->cost_ns = hr__op_cost_ns(origin->kind, &origin->attrs, types, origin->in_count, origin->out_types, origin->session->card != NULL);
	if (origin->before) origin->cost_ns += origin->before->cost_ns;
}

hr__origin *hr__origin_new(const hr__task *task, const hr__slot *ins, uint32_t in_count, const hr__slot *outs, bool in_place)
{
	void *block;
	if (!can_run_again(task, outs)) return NULL;
	hr__origin *before = in_place ? find_before(outs[0].buffer) : NULL;
	uint64_t bytes = sizeof(hr__origin) + in_count * sizeof(struct origin_input);
	if ((in_place && !before) || hr__os()->alloc(bytes, &block)) return NULL;
	hr__origin *origin = block;
	*origin = (hr__origin){ .bytes = bytes,
		                    .session = task->session,
		                    .kind = task->kind,
		                    .before = before,
		                    .ops = before ? before->ops + 1 : 1,
		                    .first_input = before ? before->first_input + before->tensor_count : 0,
		                    .in_count = in_count,
		                    .out_count = hr__ops[task->kind].out_count };
	hr__store_relaxed(&origin->refs, 1);
	if (before) hr__fetch_add_relaxed(&before->refs, 1);
	if (task->attrs) origin->attrs = *task->attrs;
	add_inputs(origin, ins, in_place ? outs[0].buffer : NULL);
	add_outputs(origin, outs);
	add_cost(origin, ins);
	return origin;
}

hr_tensor hr__origin_hold(const hr__origin *origin, const hr__slot *outs)
{
	if (!origin || !origin->before) return (hr_tensor){ 0 };
	hr__last before = hr__last_get();
	hr_tensor tensor = outs[0].buffer->tensor;
	if (!hr_tensor_hold_recipe(tensor)) return tensor;
	hr__last_set(&before); /* it has ended meanwhile; the op in place is an op of its own then */
	return (hr_tensor){ 0 };
}

/* ---- setting the recipe ---- */

/* The tensors that this op and those before it read, the oldest op's first. */
static void list_inputs(const hr__origin *origin, hr_tensor *out)
{
	if (origin->before) list_inputs(origin->before, out);
	uint32_t at = origin->first_input;
	for (uint32_t i = 0; i < origin->in_count; i++)
		if (origin->ins[i].tensor.id) out[at++] = origin->ins[i].tensor;
}

static hr_status set_recipe(hr__origin *origin)
{
	hr_tensor inputs[INPUTS_MAX], outputs[HR__OP_OUTPUTS];
	hr_recipe recipe;
	hr_recipe_init(&recipe);
	list_inputs(origin, inputs);
	for (uint32_t i = 0; i < origin->out_count; i++)
		if (origin->outs[i].id) outputs[recipe.output_count++] = origin->outs[i];
	recipe.recompute = recompute;
	recipe.release = recipe_ended;
	recipe.user = origin;
	recipe.inputs = inputs;
	recipe.input_count = origin->first_input + origin->tensor_count;
	recipe.outputs = outputs;
	recipe.cost_ns = origin->cost_ns;
	recipe.op = hr_name_intern(hr__ops[origin->kind].name);
	return hr_tensor_set_recipe(&recipe);
}

void hr__origin_attach(hr__origin *origin, const hr__slot *outs)
{
	if (!origin) return;
	hr__last before = hr__last_get();
	hr__fetch_add_relaxed(&origin->refs, 1); /* the recipe's, which may end at once */
	if (set_recipe(origin)) {
		/* The outputs are moved instead: there is no host memory, or an input of an earlier op was freed. */
		hr__last_set(&before);
		hr__origin_release(origin);
		hr__origin_release(origin);
		return;
	}
	if (outs[0].buffer) outs[0].buffer->origin = origin;
	else hr__origin_release(origin);
}
