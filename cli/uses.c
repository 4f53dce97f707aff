/* uses.c - see uses.h.
 *
 * Invariants while reading:
 *   1  uses of finished ops come first, in the order of ops; those of the running op follow, from first_use_of_running on
 *   2  tensor->last_use_end is at most use_count; it is above the running op's first use exactly if that op uses the tensor
 *   3  the last part is open: its acts extend to the end of all acts */
#include "uses.h"

#include <stdlib.h>
#include <string.h>

#include "core/base/assert.h"
#include "core/base/checked.h"
#include "core/base/status.h"
#include "terminal/quote.h"
#include "tape.h"

/* ---- arrays ---- */

static hr_status ensure(void **array, size_t *capacity, size_t count, size_t item)
{
	if (count < *capacity) return HR_OK;
	if (count >= HR__TAPE_EVENTS_MAX)
		return hr__fail(HR_TOO_MANY, "more than %u events; cut the trace into parts", HR__TAPE_EVENTS_MAX);
	size_t bigger = *capacity ? *capacity + *capacity / 2 : 256;
	void *grown = realloc(*array, bigger * item);
	if (!grown) return hr__fail(HR_NO_HOST_MEMORY, "no memory for a trace of more than %zu events", count);
	*array = grown;
	*capacity = bigger;
	return HR_OK;
}

#define ENSURE(uses, plural, single) \
	ensure((void **)&(uses)->plural, &(uses)->single##_capacity, (uses)->single##_count, sizeof *(uses)->plural)

static hr_status append_act(hr__uses *uses, hr__act_kind kind, uint32_t index)
{
	hr_status status = ENSURE(uses, acts, act);
	if (status) return status;
	uses->acts[uses->act_count++] = (hr__act){ kind, index };
	uses->parts[uses->part_count - 1].act_count++;
	return HR_OK;
}

static hr_status append_part(hr__uses *uses, uint64_t number, uint32_t first_act)
{
	hr_status status = ENSURE(uses, parts, part);
	if (status) return status;
	uses->parts[uses->part_count++] = (hr__use_part){ .number = number, .first_act = first_act };
	return HR_OK;
}

static uint32_t first_use_of_running(const hr__uses *uses)
{
	if (!uses->op_count) return 0;
	const hr__use_op *last = &uses->ops[uses->op_count - 1];
	return last->first_use + last->use_count;
}

static hr_status append_use(hr__uses *uses, hr__tensor_use use)
{
	hr_status status = ENSURE(uses, uses, use);
	if (status) return status;
	uses->uses[uses->use_count++] = use;
	uses->tensors[use.tensor].last_use_end = uses->use_count;
	return HR_OK;
}

/* ---- init and free ---- */

hr_status hr__uses_init(hr__uses *uses, bool strict)
{
	*uses = (hr__uses){ .strict = strict };
	return append_part(uses, 0, 0);
}

void hr__uses_free(hr__uses *uses)
{
	free(uses->ops);
	free(uses->uses);
	free(uses->tensors);
	free(uses->acts);
	free(uses->parts);
	free(uses->pending);
	*uses = (hr__uses){ 0 };
}

/* ---- tensors ---- */

hr_status hr__uses_alloc(hr__uses *uses, uint64_t bytes, uint64_t thread)
{
	uint32_t tensor = uses->tensor_count;
	hr_status status = ENSURE(uses, tensors, tensor);
	if (!status) status = append_act(uses, HR__ACT_CREATE, tensor);
	if (status) return status;
	uses->tensors[uses->tensor_count++] = (hr__use_tensor){
		.bytes = bytes, .maker = HR__USES_NONE, .born = uses->part_count - 1, .died = HR__USES_NONE, .ops_before = uses->op_count
	};
	if (!uses->running || thread != uses->running_thread) return HR_OK;
	return append_use(uses, (hr__tensor_use){ .tensor = tensor, .writes = true, .makes = true });
}

static hr_status destroy(hr__uses *uses, uint32_t tensor)
{
	uses->tensors[tensor].died = uses->part_count - 1;
	return append_act(uses, HR__ACT_DESTROY, tensor);
}

hr_status hr__uses_release(hr__uses *uses, uint32_t tensor)
{
	HR_ASSERT(tensor < uses->tensor_count && uses->tensors[tensor].died == HR__USES_NONE);
	if (!uses->running) return destroy(uses, tensor);
	hr_status status = ENSURE(uses, pending, pending);
	if (status) return status;
	uses->pending[uses->pending_count++] = tensor;
	return HR_OK;
}

void hr__uses_hindered(hr__uses *uses)
{
	uses->parts[uses->part_count - 1].hindered = true;
}

/* ---- steps ---- */

hr_status hr__uses_step(hr__uses *uses, uint64_t number)
{
	char quoted[HR__QUOTE_BYTES];
	const hr__use_part *last = &uses->parts[uses->part_count - 1];
	if (uses->running) {
		const char *name = hr_name_text(uses->running_name);
		return hr__fail(HR_BAD_FORMAT, "step %llu begins inside op %llu (%s); expected the end of the op first",
		                (unsigned long long)number, (unsigned long long)uses->running_id, hr__quote(name, strlen(name), quoted));
	}
	if (uses->part_count > 1 && number <= last->number) {
		/* The program counts the steps of each epoch from 0. */
		if (uses->strict || last->number == UINT64_MAX)
			return hr__fail(HR_BAD_FORMAT, "step %llu begins after step %llu; expected a larger number", (unsigned long long)number,
			                (unsigned long long)last->number);
		number = last->number + 1;
	}
	return append_part(uses, number, uses->act_count);
}

/* ---- ops ---- */

static hr_status begins_inside(const hr__uses *uses, uint64_t id, hr_name name, uint64_t thread)
{
	char outer[HR__QUOTE_BYTES], inner[HR__QUOTE_BYTES];
	const char *outer_name = hr_name_text(uses->running_name), *inner_name = hr_name_text(name);
	hr__quote(outer_name, strlen(outer_name), outer);
	hr__quote(inner_name, strlen(inner_name), inner);
	if (uses->strict)
		return hr__fail(HR_BAD_FORMAT, "op %llu (%s) begins inside op %llu (%s); expected the end of that first",
		                (unsigned long long)id, inner, (unsigned long long)uses->running_id, outer);
	return hr__fail(HR_UNSUPPORTED, "op %s of thread %llu begins while op %s of thread %llu runs; expected one op at a time", inner,
	                (unsigned long long)thread, outer, (unsigned long long)uses->running_thread);
}

hr_status hr__uses_op_begin(hr__uses *uses, uint64_t id, hr_name name, uint64_t thread)
{
	if (uses->running) {
		if (uses->strict || thread != uses->running_thread) return begins_inside(uses, id, name, thread);
		uses->depth++;
		return HR_OK;
	}
	if (uses->op_count == 0) uses->first_begin = uses->act_count;
	uses->running = true;
	uses->running_id = id;
	uses->running_name = name;
	uses->running_thread = thread;
	return HR_OK;
}

hr_status hr__uses_access(hr__uses *uses, uint32_t tensor, uint64_t block, bool write, uint64_t thread)
{
	HR_ASSERT(tensor < uses->tensor_count);
	if (!uses->running || thread != uses->running_thread) {
		if (uses->strict)
			return hr__fail(HR_BAD_FORMAT, "block %llu is %s outside of an op; expected b (an op begins) first",
			                (unsigned long long)block, write ? "written" : "read");
		uses->odd++;
		return HR_OK;
	}
	hr__use_tensor *found = &uses->tensors[tensor];
	uses->accesses++;
	if (found->last_use_end > first_use_of_running(uses)) {
		hr__tensor_use *use = &uses->uses[found->last_use_end - 1];
		HR_ASSERT(use->tensor == tensor);
		use->reads |= !write;
		use->writes |= write;
		return HR_OK;
	}
	return append_use(uses, (hr__tensor_use){ .tensor = tensor, .reads = !write, .writes = write });
}

/* Determines what the op that ends has made. */
static void settle_uses(hr__uses *uses, const hr__use_op *op)
{
	for (uint32_t i = op->first_use; i < op->first_use + op->use_count; i++) {
		hr__tensor_use *use = &uses->uses[i];
		hr__use_tensor *tensor = &uses->tensors[use->tensor];
		if (!use->makes)
			use->makes = use->writes && !use->reads && tensor->ops_before == uses->op_count && tensor->born == uses->part_count - 1;
		if (use->makes) tensor->maker = uses->op_count;
	}
}

/* Handles an end that does not match the running op. */
static hr_status wrong_end(hr__uses *uses, uint64_t id)
{
	if (!uses->strict) {
		uses->odd++;
		return HR_OK;
	}
	if (!uses->running)
		return hr__fail(HR_BAD_FORMAT, "op %llu ends, but none is running; expected b (it begins) first", (unsigned long long)id);
	return hr__fail(HR_BAD_FORMAT, "op %llu ends while op %llu is running; expected the end of that", (unsigned long long)id,
	                (unsigned long long)uses->running_id);
}

/* Destroys the tensors that were freed while the last op ran. */
static hr_status destroy_pending(hr__uses *uses)
{
	uint32_t op = uses->op_count - 1;
	hr_status status = HR_OK;
	for (uint32_t i = 0; !status && i < uses->pending_count; i++) {
		hr__use_tensor *tensor = &uses->tensors[uses->pending[i]];
		tensor->workspace = tensor->maker == op && tensor->ops_before == op;
		status = destroy(uses, uses->pending[i]);
	}
	uses->pending_count = 0;
	return status;
}

hr_status hr__uses_op_end(hr__uses *uses, uint64_t id, uint64_t ns, uint64_t thread)
{
	uint64_t sum;
	bool its = uses->running && thread == uses->running_thread && (!uses->strict || id == uses->running_id);
	if (!its) return wrong_end(uses, id);
	if (uses->depth) {
		uses->depth--;
		return HR_OK;
	}
	if (!hr__add(uses->ns, ns, &sum) || sum > HR__USES_NS_MAX)
		return hr__fail(HR_BAD_FORMAT, "op %llu takes %llu ns; all ops together can take 2^60", (unsigned long long)id,
		                (unsigned long long)ns);
	hr_status status = ENSURE(uses, ops, op);
	if (!status) status = append_act(uses, HR__ACT_OP, uses->op_count);
	if (status) return status;
	uint32_t first = first_use_of_running(uses);
	hr__use_op op = { .ns = ns, .first_use = first, .use_count = uses->use_count - first, .name = uses->running_name };
	hr__use_part *part = &uses->parts[uses->part_count - 1];
	settle_uses(uses, &op);
	uses->ops[uses->op_count++] = op;
	if (op.use_count > uses->most_uses) uses->most_uses = op.use_count;
	uses->ns = sum;
	part->ns += ns;
	part->op_count++;
	uses->running = false;
	return destroy_pending(uses);
}

/* ---- the end ---- */

/* Makes everything from the first op on one step. */
static hr_status mark_one_step(hr__uses *uses)
{
	hr__use_part *before = &uses->parts[0];
	hr__use_part step = { .first_act = uses->first_begin,
		                  .act_count = uses->act_count - uses->first_begin,
		                  .op_count = before->op_count,
		                  .hindered = before->hindered,
		                  .ns = before->ns };
	hr_status status = append_part(uses, 0, 0);
	if (status) return status;
	uses->parts[0] = (hr__use_part){ .act_count = uses->first_begin };
	uses->parts[1] = step;
	for (uint32_t i = step.first_act; i < uses->act_count; i++) {
		hr__use_tensor *tensor = &uses->tensors[uses->acts[i].index];
		if (uses->acts[i].kind == HR__ACT_CREATE) tensor->born = 1;
		else if (uses->acts[i].kind == HR__ACT_DESTROY) tensor->died = 1;
	}
	uses->unmarked = true;
	return HR_OK;
}

/* Prepares hr__uses_is_candidate. */
static void look_at_steps(hr__uses *uses)
{
	uses->first_step = HR__USES_NONE;
	for (uint32_t i = 1; i < uses->part_count; i++) {
		if (!uses->parts[i].op_count) continue;
		if (uses->first_step == HR__USES_NONE) {
			uses->first_step = i;
			continue;
		}
		uses->has_others = true;
		if (!uses->parts[i].hindered) uses->has_unhindered = true;
	}
}

hr_status hr__uses_finish(hr__uses *uses)
{
	char quoted[HR__QUOTE_BYTES];
	hr_status status = HR_OK;
	if (uses->running && uses->strict) {
		const char *name = hr_name_text(uses->running_name);
		return hr__fail(HR_TRUNCATED, "the trace ends inside op %llu (%s); expected e (the op ends)",
		                (unsigned long long)uses->running_id, hr__quote(name, strlen(name), quoted));
	}
	/* The recording ends inside an op: its frees count, the rest of it is left out. */
	uses->running = false;
	uses->use_count = first_use_of_running(uses);
	for (uint32_t i = 0; !status && i < uses->pending_count; i++) status = destroy(uses, uses->pending[i]);
	uses->pending_count = 0;
	if (!status && uses->part_count == 1 && uses->op_count > 0) status = mark_one_step(uses);
	look_at_steps(uses);
	return status;
}

/* ---- queries ---- */

uint32_t hr__uses_find_step(const hr__uses *uses, uint64_t number)
{
	for (uint32_t i = 1; i < uses->part_count; i++)
		if (uses->parts[i].number == number) return i;
	return HR__USES_NONE;
}

bool hr__uses_is_candidate(const hr__uses *uses, uint32_t part)
{
	if (part == 0 || !uses->parts[part].op_count) return false;
	if (!uses->has_others) return true;
	return part != uses->first_step && !(uses->has_unhindered && uses->parts[part].hindered);
}

/* Number of candidates that take at most [ns]. */
static uint32_t count_up_to(const hr__uses *uses, uint64_t ns)
{
	uint32_t count = 0;
	for (uint32_t i = 1; i < uses->part_count; i++) count += hr__uses_is_candidate(uses, i) && uses->parts[i].ns <= ns;
	return count;
}

uint32_t hr__uses_typical_step(const hr__uses *uses)
{
	if (uses->first_step == HR__USES_NONE) return HR__USES_NONE;
	/* Find the median by bisection over the time, because a trace may have any number of steps. */
	uint32_t half = (count_up_to(uses, UINT64_MAX) + 1) / 2;
	uint64_t low = 0, high = HR__USES_NS_MAX;
	while (low < high) {
		uint64_t middle = low + (high - low) / 2;
		if (count_up_to(uses, middle) >= half) high = middle;
		else low = middle + 1;
	}
	uint32_t step = uses->first_step;
	while (uses->parts[step].ns != low || !hr__uses_is_candidate(uses, step)) step++;
	return step;
}

hr_access hr__tensor_use_access(const hr__tensor_use *use)
{
	return use->makes ? HR_OVERWRITE : use->writes ? HR_WRITE : HR_READ;
}
