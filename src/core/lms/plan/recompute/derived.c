/* derived.c - see derived.h. */
#include "core/lms/plan/recompute/derived.h"

#include "core/base/assert.h"

typedef struct hr__deriving {
	const hr__turns *turns;
	hr__plan_op *ops;
	hr__plan_use *uses;
	hr__plan_tensor *tensors;
	uint32_t *current; /* by tensor: its latest instance that is not a second one */
	uint32_t *fresh;   /* by tensor: the instance that this turn makes */
	uint32_t made;     /* instances made so far */
	uint32_t use_count;
} hr__deriving;

static void describe_instances(const hr__deriving *d)
{
	const hr__plan_step *step = d->turns->recipes->ring->step;
	for (uint32_t k = 0; k < d->turns->instance_count; k++) {
		const hr__instance *instance = &d->turns->instances[k];
		const hr__plan_tensor *tensor = &step->tensors[instance->tensor];
		d->tensors[k] = (hr__plan_tensor){ .bytes = tensor->bytes,
			                               .died = instance->last,
			                               .lived_before = tensor->lived_before && !instance->again,
			                               .never_evict = tensor->never_evict || instance->ghost || instance->second };
	}
}

static uint32_t count_uses(const hr__turns *turns)
{
	const hr__plan_step *step = turns->recipes->ring->step;
	uint32_t count = 0;
	for (uint32_t i = 0; i < turns->count; i++)
		count += hr__recipes_end_of_uses(step, turns->turns[i].op) - step->ops[turns->turns[i].op].first_use;
	return count;
}

/* Tensors that exist when the step begins, or that no op uses, have the first instances. */
static void begin_instances(hr__deriving *d)
{
	const hr__turns *turns = d->turns;
	for (; d->made < turns->instance_count; d->made++) {
		uint32_t t = turns->instances[d->made].tensor;
		if (turns->recipes->creator[t] != HR__PLAN_NEVER) break;
		d->current[t] = d->made;
	}
}

/* Instances that [turn] makes. Seconds do not replace the tensor. */
static void make_instances(hr__deriving *d, uint32_t turn)
{
	const hr__turns *turns = d->turns;
	for (; d->made < turns->instance_count && turns->instances[d->made].made == turn; d->made++) {
		const hr__instance *instance = &turns->instances[d->made];
		d->fresh[instance->tensor] = d->made;
		if (!instance->second) d->current[instance->tensor] = d->made;
	}
}

static void derive_turn(hr__deriving *d, uint32_t turn)
{
	const hr__recipes *recipes = d->turns->recipes;
	const hr__plan_step *step = recipes->ring->step;
	uint32_t op = d->turns->turns[turn].op;
	bool again = d->turns->turns[turn].again;
	d->ops[turn] = (hr__plan_op){ .ns = step->ops[op].ns, .first_use = d->use_count };
	make_instances(d, turn);
	for (uint32_t u = step->ops[op].first_use; u < hr__recipes_end_of_uses(step, op); u++) {
		uint32_t t = step->uses[u].tensor;
		bool makes = recipes->creator[t] == op;
		if (again && !makes && !hr__recipes_is_input(recipes, op, u)) continue;
		d->uses[d->use_count++] = (hr__plan_use){ .tensor = makes ? d->fresh[t] : d->current[t],
			                                      .write = makes || (!again && step->uses[u].write) };
	}
}

bool hr__derived_open(hr__derived *derived, const hr__turns *turns)
{
	hr__deriving d = { .turns = turns };
	hr__plan_scratch *scratch = &derived->scratch;
	uint32_t tensors = turns->recipes->ring->step->tensor_count, uses = count_uses(turns);
	*derived = (hr__derived){ 0 };
	if ((d.ops = hr__plan_scratch_take(scratch, turns->count, sizeof *d.ops)) == NULL ||
	    (d.uses = hr__plan_scratch_take(scratch, uses, sizeof *d.uses)) == NULL ||
	    (d.tensors = hr__plan_scratch_take(scratch, turns->instance_count, sizeof *d.tensors)) == NULL ||
	    (d.current = hr__plan_scratch_take(scratch, tensors, sizeof *d.current)) == NULL ||
	    (d.fresh = hr__plan_scratch_take(scratch, tensors, sizeof *d.fresh)) == NULL) {
		hr__derived_close(derived);
		return false;
	}
	describe_instances(&d);
	begin_instances(&d);
	for (uint32_t i = 0; i < turns->count; i++) derive_turn(&d, i);
	HR_ASSERT(d.made == turns->instance_count && d.use_count <= uses);
	derived->step = (hr__plan_step){ .ops = d.ops,
		                             .uses = d.uses,
		                             .tensors = d.tensors,
		                             .op_count = turns->count,
		                             .use_count = d.use_count,
		                             .tensor_count = turns->instance_count,
		                             .other_bytes = turns->recipes->ring->step->other_bytes };
	return true;
}

void hr__derived_close(hr__derived *derived)
{
	hr__plan_scratch_free(&derived->scratch);
}
