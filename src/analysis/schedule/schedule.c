/* schedule.c - see schedule.h. A schedule is made in one pass over the sequence of a capture.
 *
 * Invariants meanwhile:
 *   1  uses of finished ops come first, in the order of ops; those of the running op follow, from first_use_of_running on
 *   2  tensor->last_use_end is at most use_count; it is above the running op's first use exactly if that op uses the tensor
 *   3  the last part is open: its acts extend to the end of all acts
 *   4  tensor_of maps the births of exactly the live tensors */
#include "analysis/schedule/schedule.h"

#include <string.h>

#include "analysis/import/quote.h"
#include "core/base/checked.h"
#include "core/base/status.h"

#define TENSOR_BYTES_MAX (UINT64_C(1) << 48) /* the maximum that hr_alloc accepts */

enum { OPS, USES, TENSORS, ACTS, PARTS };

typedef struct schedule_maker {
	const hr__capture *capture;
	uint32_t device;
	hr__schedule *schedule;
	uint32_t change, op, op_end, use, step, move, refusal, tensor_end; /* the next item of each kind */
	bool peak_only;      /* there are no uses: tensors are not listed */
	uint32_t *tensor_of; /* by birth: index of its tensor + 1; 0: not live */
	hr__array pending;   /* uint32_t: tensors freed while the op runs */
	uint32_t running;    /* index of the op in the capture; HR__NONE: none runs */
	uint32_t depth;      /* nesting level inside the running op */
	uint32_t first_begin; /* number of acts before the first op began */
	uint64_t ns, live_bytes;
} schedule_maker;

/* ---- lists ---- */

static hr_status append_act(hr__schedule *schedule, hr__schedule_act_kind kind, uint32_t index)
{
	hr_status status = HR_OK;
	hr__schedule_act *act = hr__array_push(&schedule->arrays[ACTS], &status);
	if (status) return status;
	*act = (hr__schedule_act){ kind, index };
	schedule->act_count++;
	schedule->parts[schedule->part_count - 1].act_count++;
	return HR_OK;
}

static hr_status append_part(hr__schedule *schedule, uint64_t number, uint32_t first_act)
{
	hr_status status = HR_OK;
	hr__schedule_part *part = hr__array_push(&schedule->arrays[PARTS], &status);
	if (status) return status;
	*part = (hr__schedule_part){ .number = number, .first_act = first_act };
	schedule->part_count++;
	return HR_OK;
}

static uint32_t first_use_of_running(const hr__schedule *schedule)
{
	if (!schedule->op_count) return 0;
	const hr__schedule_op *last = &schedule->ops[schedule->op_count - 1];
	return last->first_use + last->use_count;
}

static hr_status append_use(hr__schedule *schedule, hr__tensor_use use)
{
	hr_status status = HR_OK;
	hr__tensor_use *fresh = hr__array_push(&schedule->arrays[USES], &status);
	if (status) return status;
	*fresh = use;
	schedule->tensors[use.tensor].last_use_end = ++schedule->use_count;
	return HR_OK;
}

/* ---- tensors ---- */

/* The number of a thread as changes have it. */
static uint16_t change_thread(uint32_t thread)
{
	return thread < HR__THREAD_LAST ? (uint16_t)thread : HR__THREAD_LAST;
}

static hr_status check_bytes(const schedule_maker *m, uint64_t bytes)
{
	if (bytes > TENSOR_BYTES_MAX)
		return hr__fail(HR_BAD_FORMAT, "an allocation of %llu bytes; at most 2^48 can be", (unsigned long long)bytes);
	if (bytes > HR__SCHEDULE_LIVE_MAX - m->live_bytes)
		return hr__fail(HR_BAD_FORMAT, "more than 64 TiB live at once (an allocation of %llu bytes on top of %llu)", (unsigned long long)bytes,
		                (unsigned long long)m->live_bytes);
	return HR_OK;
}

static hr_status create(schedule_maker *m, uint32_t birth)
{
	hr__schedule *schedule = m->schedule;
	uint64_t bytes = hr__allocation_requested(&m->capture->allocations[birth]);
	if (bytes == 0) return HR_OK;
	hr_status status = check_bytes(m, bytes);
	if (status) return status;
	m->live_bytes += bytes;
	if (m->live_bytes > schedule->peak_bytes) schedule->peak_bytes = m->live_bytes;
	m->tensor_of[birth] = schedule->tensor_count + 1;
	if (m->peak_only) return HR_OK;
	hr__schedule_tensor *tensor = hr__array_push(&schedule->arrays[TENSORS], &status);
	if (!status) status = append_act(schedule, HR__ACT_CREATE, schedule->tensor_count);
	if (status) return status;
	*tensor = (hr__schedule_tensor){ .bytes = bytes, .maker = HR__SCHEDULE_NONE, .born = schedule->part_count - 1, .died = HR__SCHEDULE_NONE,
		                             .ops_before = schedule->op_count };
	schedule->tensor_count++;
	return HR_OK;
}

static hr_status destroy(hr__schedule *schedule, uint32_t tensor)
{
	schedule->tensors[tensor].died = schedule->part_count - 1;
	return append_act(schedule, HR__ACT_DESTROY, tensor);
}

static hr_status release(schedule_maker *m, uint32_t birth)
{
	hr_status status = HR_OK;
	if (!m->tensor_of[birth]) return HR_OK;
	uint32_t tensor = m->tensor_of[birth] - 1;
	m->tensor_of[birth] = 0;
	m->live_bytes -= hr__allocation_requested(&m->capture->allocations[birth]);
	if (m->peak_only) return HR_OK;
	if (m->running == HR__NONE) return destroy(m->schedule, tensor);
	uint32_t *pending = hr__array_push(&m->pending, &status);
	if (!status) *pending = tensor;
	return status;
}

static hr__life life_of(const schedule_maker *m, uint32_t allocation)
{
	return allocation < m->capture->life_count ? m->capture->lives[allocation] : (hr__life){ .birth = allocation };
}

/* A tensor begins with its first allocation, unless it was evicted when the recording began. */
static hr_status take_alloc(schedule_maker *m, const hr__change *change)
{
	hr__life life = life_of(m, change->allocation);
	if (life.birth != change->allocation || life.early || life.scratch) return HR_OK;
	hr_status status = create(m, change->allocation);
	if (status || !m->tensor_of[change->allocation]) return status;
	if (m->peak_only || m->running == HR__NONE || change->thread != change_thread(m->capture->ops[m->running].thread)) return HR_OK;
	return append_use(m->schedule, (hr__tensor_use){ .tensor = m->tensor_of[change->allocation] - 1, .writes = true, .makes = true });
}

static hr_status take_change(schedule_maker *m, const hr__change *change)
{
	if (hr__allocation_device(m->capture, change->allocation) != m->device) return HR_OK;
	if (!change->frees) return take_alloc(m, change);
	hr__life life = life_of(m, change->allocation);
	return life.goes_on || life.scratch ? HR_OK : release(m, life.birth);
}

static hr_status create_early(schedule_maker *m)
{
	hr_status status = HR_OK;
	for (uint32_t i = 0; i < m->capture->life_count && !status; i++)
		if (m->capture->lives[i].early && hr__allocation_device(m->capture, i) == m->device) status = create(m, i);
	return status;
}

/* Called when tensors were moved or a request was refused. */
static hr_status hinder(schedule_maker *m, uint32_t site)
{
	const hr__capture *c = m->capture;
	if (c->allocators[c->sites[site].allocator].device == m->device) m->schedule->parts[m->schedule->part_count - 1].hindered = true;
	return HR_OK;
}

/* ---- steps ---- */

static const char *quoted_name(const schedule_maker *m, uint32_t op, char quoted[HR__QUOTE_BYTES])
{
	const char *name = hr_name_text(m->capture->ops[op].op);
	return hr__quote(name, strlen(name), quoted);
}

static hr_status take_step(schedule_maker *m, uint64_t number)
{
	char quoted[HR__QUOTE_BYTES];
	hr__schedule *schedule = m->schedule;
	const hr__schedule_part *last = &schedule->parts[schedule->part_count - 1];
	if (m->running != HR__NONE)
		return hr__fail(HR_BAD_FORMAT, "step %llu begins inside op %s; expected the end of the op first", (unsigned long long)number,
		                quoted_name(m, m->running, quoted));
	/* The program counts the steps of each epoch from 0. */
	if (schedule->part_count > 1 && number <= last->number) {
		if (last->number == UINT64_MAX)
			return hr__fail(HR_BAD_FORMAT, "step %llu begins after step %llu; expected a larger number", (unsigned long long)number,
			                (unsigned long long)last->number);
		number = last->number + 1;
	}
	return append_part(schedule, number, schedule->act_count);
}

/* ---- ops ---- */

static hr_status take_op(schedule_maker *m, uint32_t op)
{
	char outer[HR__QUOTE_BYTES], inner[HR__QUOTE_BYTES];
	const hr__op_run *ops = m->capture->ops;
	if (m->running != HR__NONE && ops[op].thread != ops[m->running].thread)
		return hr__fail(HR_UNSUPPORTED, "op %s of thread %u begins while op %s of thread %u runs; expected one op at a time",
		                quoted_name(m, op, inner), ops[op].thread, quoted_name(m, m->running, outer), ops[m->running].thread);
	if (m->running != HR__NONE) {
		m->depth++; /* nested ops count as parts of the outer op */
		return HR_OK;
	}
	if (m->schedule->op_count == 0) m->first_begin = m->schedule->act_count;
	m->running = op;
	return HR_OK;
}

static hr_status take_use(schedule_maker *m, const hr__capture_use *use)
{
	hr__schedule *schedule = m->schedule;
	const hr__capture *c = m->capture;
	if (hr__allocation_device(c, use->allocation) != m->device) return HR_OK;
	uint32_t birth = life_of(m, use->allocation).birth;
	if (!m->tensor_of[birth] || use->op == HR__NONE || m->running == HR__NONE || c->ops[use->op].thread != c->ops[m->running].thread) {
		schedule->unknown++;
		return HR_OK;
	}
	uint32_t tensor = m->tensor_of[birth] - 1;
	const hr__schedule_tensor *found = &schedule->tensors[tensor];
	schedule->accesses++;
	if (found->last_use_end <= first_use_of_running(schedule))
		return append_use(schedule, (hr__tensor_use){ .tensor = tensor, .reads = !use->writes, .writes = use->writes });
	hr__tensor_use *known = &schedule->uses[found->last_use_end - 1];
	HR_ASSERT(known->tensor == tensor);
	known->reads |= !use->writes;
	known->writes |= use->writes;
	return HR_OK;
}

/* Determines what the op that ends has made. */
static void settle_uses(hr__schedule *schedule, const hr__schedule_op *op)
{
	for (uint32_t i = op->first_use; i < op->first_use + op->use_count; i++) {
		hr__tensor_use *use = &schedule->uses[i];
		hr__schedule_tensor *tensor = &schedule->tensors[use->tensor];
		if (!use->makes)
			use->makes = use->writes && !use->reads && tensor->ops_before == schedule->op_count && tensor->born == schedule->part_count - 1;
		if (use->makes) tensor->maker = schedule->op_count;
	}
}

/* Destroys the tensors that were freed while the last op ran. */
static hr_status destroy_pending(schedule_maker *m)
{
	uint32_t op = m->schedule->op_count - 1;
	const uint32_t *pending = (const void *)m->pending.base;
	hr_status status = HR_OK;
	for (size_t i = 0; !status && i < m->pending.count; i++) {
		hr__schedule_tensor *tensor = &m->schedule->tensors[pending[i]];
		tensor->workspace = tensor->maker == op && tensor->ops_before == op;
		status = destroy(m->schedule, pending[i]);
	}
	m->pending.count = 0;
	return status;
}

static hr_status end_running(schedule_maker *m)
{
	char quoted[HR__QUOTE_BYTES];
	hr__schedule *schedule = m->schedule;
	const hr__op_run *run = &m->capture->ops[m->running];
	hr_status status = HR_OK;
	if (!hr__add(m->ns, run->device_ns, &m->ns) || m->ns > HR__SCHEDULE_NS_MAX)
		return hr__fail(HR_BAD_FORMAT, "op %s takes %llu ns; all ops together can take 2^60", quoted_name(m, m->running, quoted),
		                (unsigned long long)run->device_ns);
	uint32_t first = first_use_of_running(schedule);
	hr__schedule_op op = { .ns = run->device_ns, .first_use = first, .use_count = schedule->use_count - first, .name = run->op };
	settle_uses(schedule, &op);
	hr__schedule_op *fresh = hr__array_push(&schedule->arrays[OPS], &status);
	if (!status) status = append_act(schedule, HR__ACT_OP, schedule->op_count);
	if (status) return status;
	*fresh = op;
	schedule->op_count++;
	if (op.use_count > schedule->most_uses) schedule->most_uses = op.use_count;
	hr__schedule_part *part = &schedule->parts[schedule->part_count - 1];
	part->ns += op.ns;
	part->op_count++;
	m->running = HR__NONE;
	return destroy_pending(m);
}

static hr_status take_op_end(schedule_maker *m, uint32_t op)
{
	if (m->running == HR__NONE || m->capture->ops[op].thread != m->capture->ops[m->running].thread) {
		m->schedule->unknown++;
		return HR_OK;
	}
	if (!m->depth) return end_running(m);
	m->depth--;
	return HR_OK;
}

/* ---- the end ---- */

/* Makes everything from the first op on one step. */
static hr_status mark_one_step(schedule_maker *m)
{
	hr__schedule *schedule = m->schedule;
	const hr__schedule_part *before = &schedule->parts[0];
	hr__schedule_part step = { .first_act = m->first_begin,
		                       .act_count = schedule->act_count - m->first_begin,
		                       .op_count = before->op_count,
		                       .hindered = before->hindered,
		                       .ns = before->ns };
	hr_status status = append_part(schedule, 0, 0);
	if (status) return status;
	schedule->parts[0] = (hr__schedule_part){ .act_count = m->first_begin };
	schedule->parts[1] = step;
	for (uint32_t i = step.first_act; i < schedule->act_count; i++) {
		if (schedule->acts[i].kind == HR__ACT_CREATE) schedule->tensors[schedule->acts[i].index].born = 1;
		else if (schedule->acts[i].kind == HR__ACT_DESTROY) schedule->tensors[schedule->acts[i].index].died = 1;
	}
	schedule->unmarked = true;
	return HR_OK;
}

/* Prepares hr__schedule_is_candidate. */
static void look_at_steps(hr__schedule *schedule)
{
	schedule->first_step = HR__SCHEDULE_NONE;
	for (uint32_t i = 1; i < schedule->part_count; i++) {
		if (!schedule->parts[i].op_count) continue;
		if (schedule->first_step == HR__SCHEDULE_NONE) {
			schedule->first_step = i;
			continue;
		}
		schedule->has_others = true;
		if (!schedule->parts[i].hindered) schedule->has_unhindered = true;
	}
}

/* If the recording ends inside an op, the frees of that op count, and the rest of it is left out. */
static hr_status finish(schedule_maker *m)
{
	hr__schedule *schedule = m->schedule;
	const uint32_t *pending = (const void *)m->pending.base;
	hr_status status = HR_OK;
	schedule->use_count = first_use_of_running(schedule);
	for (size_t i = 0; !status && i < m->pending.count; i++) status = destroy(schedule, pending[i]);
	if (!status && schedule->part_count == 1 && schedule->op_count > 0) status = mark_one_step(m);
	look_at_steps(schedule);
	return status;
}

/* ---- making ---- */

static hr_status take_item(schedule_maker *m, hr__item_kind kind)
{
	const hr__capture *c = m->capture;
	switch (kind) {
	case HR__ITEM_CHANGE: return take_change(m, &c->changes[m->change++]);
	case HR__ITEM_OP: return take_op(m, m->op++);
	case HR__ITEM_OP_END: return take_op_end(m, c->op_ends[m->op_end++]);
	case HR__ITEM_USE: return take_use(m, &c->uses[m->use++]);
	case HR__ITEM_STEP: return take_step(m, c->steps[m->step++].number);
	case HR__ITEM_MOVE: {
		const hr__move *move = &c->moves[m->move++];
		return move->kind == HR__MOVE_STITCH ? HR_OK : hinder(m, move->site);
	}
	case HR__ITEM_REFUSAL: return hinder(m, c->refusals[m->refusal++].site);
	case HR__ITEM_TENSOR_END: {
		uint32_t birth = c->tensor_ends[m->tensor_end++];
		return hr__allocation_device(c, birth) == m->device ? release(m, birth) : HR_OK;
	}
	}
	return HR_OK;
}

/* Each list is at most as long as the items of the capture that add to it. */
static hr_status make_lists(hr__schedule *schedule, const hr__capture *c)
{
	const struct {
		size_t item_bytes;
		uint64_t most;
	} lists[HR__SCHEDULE_ARRAYS] = {
		[OPS] = { sizeof(hr__schedule_op), c->op_count },
		[USES] = { sizeof(hr__tensor_use), (uint64_t)c->use_count + c->allocation_count },
		[TENSORS] = { sizeof(hr__schedule_tensor), c->allocation_count },
		[ACTS] = { sizeof(hr__schedule_act), (uint64_t)c->allocation_count * 2 + c->op_count },
		[PARTS] = { sizeof(hr__schedule_part), (uint64_t)c->step_count + 2 },
	};
	hr_status status = HR_OK;
	for (int i = 0; i < HR__SCHEDULE_ARRAYS && !status; i++) status = hr__array_init(&schedule->arrays[i], lists[i].item_bytes, lists[i].most);
	schedule->ops = (void *)schedule->arrays[OPS].base;
	schedule->uses = (void *)schedule->arrays[USES].base;
	schedule->tensors = (void *)schedule->arrays[TENSORS].base;
	schedule->acts = (void *)schedule->arrays[ACTS].base;
	schedule->parts = (void *)schedule->arrays[PARTS].base;
	return status ? status : append_part(schedule, 0, 0);
}

static hr_status check_restores(const hr__capture *capture, uint32_t device)
{
	if (!capture->devices[device].nameless_restores) return HR_OK;
	return hr__fail(HR_UNSUPPORTED, "a tensor came back from the host, and the trace does not say which: it was recorded by an older "
	                                "version of Headroom; record it again, or with enough memory that nothing moves");
}

hr_status hr__schedule_make(const hr__capture *capture, uint32_t device, hr__schedule *out)
{
	schedule_maker m = { .capture = capture, .device = device, .schedule = out, .peak_only = capture->use_count == 0, .running = HR__NONE };
	size_t map_bytes = ((size_t)capture->allocation_count + 1) * sizeof *m.tensor_of;
	void *memory = NULL;
	*out = (hr__schedule){ 0 };
	hr_status status = check_restores(capture, device);
	if (!status) status = make_lists(out, capture);
	if (!status) status = hr__array_init(&m.pending, sizeof(uint32_t), capture->allocation_count);
	int error = status ? 0 : hr__os()->alloc(map_bytes, &memory);
	if (error) status = hr__os_fail(error, "no memory for %u tensors", capture->allocation_count);
	m.tensor_of = memory;
	if (!status) status = create_early(&m);
	for (uint32_t i = 0; i < capture->sequence_count && !status; i++) status = take_item(&m, (hr__item_kind)capture->sequence[i]);
	if (!status) status = finish(&m);
	if (memory) hr__os()->free(memory, map_bytes);
	hr__array_free(&m.pending);
	if (status) hr__schedule_free(out);
	return status;
}

/* Owns [capture]. */
static hr_status make_and_close(hr__capture *capture, int64_t device, hr__trace_facts *facts, hr__schedule *out)
{
	hr__trace_facts found;
	hr_status status = hr__trace_facts_find(capture, device, &found);
	if (!status) status = hr__schedule_make(capture, found.device, out);
	if (!status) found.unknown_uses += out->unknown;
	if (!status && facts) *facts = found;
	hr__capture_close(capture);
	return status;
}

hr_status hr__schedule_read(const char *path, int64_t device, hr__trace_facts *facts, hr__schedule *out)
{
	hr__capture *capture;
	hr_status status = hr__capture_open(path, NULL, NULL, &capture);
	if (status) return status;
	status = make_and_close(capture, device, facts, out);
	return status ? hr__fail_in(status, "%s", path) : HR_OK;
}

hr_status hr__schedule_read_memory(const void *bytes, size_t size, hr__schedule *out)
{
	hr__capture *capture;
	hr_status status = hr__capture_open_memory(bytes, size, &capture);
	return status ? status : make_and_close(capture, HR__FACTS_DEVICE_MOST, NULL, out);
}

void hr__schedule_free(hr__schedule *schedule)
{
	for (int i = 0; i < HR__SCHEDULE_ARRAYS; i++) hr__array_free(&schedule->arrays[i]);
	*schedule = (hr__schedule){ 0 };
}

/* ---- queries ---- */

uint32_t hr__schedule_find_step(const hr__schedule *schedule, uint64_t number)
{
	for (uint32_t i = 1; i < schedule->part_count; i++)
		if (schedule->parts[i].number == number) return i;
	return HR__SCHEDULE_NONE;
}

bool hr__schedule_is_candidate(const hr__schedule *schedule, uint32_t part)
{
	if (part == 0 || !schedule->parts[part].op_count) return false;
	if (!schedule->has_others) return true;
	return part != schedule->first_step && !(schedule->has_unhindered && schedule->parts[part].hindered);
}

/* Number of candidates that take at most [ns]. */
static uint32_t count_up_to(const hr__schedule *schedule, uint64_t ns)
{
	uint32_t count = 0;
	for (uint32_t i = 1; i < schedule->part_count; i++) count += hr__schedule_is_candidate(schedule, i) && schedule->parts[i].ns <= ns;
	return count;
}

uint32_t hr__schedule_typical_step(const hr__schedule *schedule)
{
	if (schedule->first_step == HR__SCHEDULE_NONE) return HR__SCHEDULE_NONE;
	/* Find the median by bisection over the time, because a trace may have any number of steps. */
	uint32_t half = (count_up_to(schedule, UINT64_MAX) + 1) / 2;
	uint64_t low = 0, high = HR__SCHEDULE_NS_MAX;
	while (low < high) {
		uint64_t middle = low + (high - low) / 2;
		if (count_up_to(schedule, middle) >= half) high = middle;
		else low = middle + 1;
	}
	uint32_t step = schedule->first_step;
	while (schedule->parts[step].ns != low || !hr__schedule_is_candidate(schedule, step)) step++;
	return step;
}

hr_access hr__tensor_use_access(const hr__tensor_use *use)
{
	return use->makes ? HR_OVERWRITE : use->writes ? HR_WRITE : HR_READ;
}
