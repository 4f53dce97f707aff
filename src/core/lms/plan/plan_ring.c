/* plan_ring.c - reads a step, refuses an inconsistent one, and builds the form of plan_ring.h. */
#include <string.h>

#include "core/lms/plan/plan_ring.h"

#include "core/base/assert.h"
#include "core/base/checked.h"
#include "core/base/status.h"
#include "core/os/os.h"

/* ---- scratch memory ---- */

static _Thread_local hr__plan_kept *kept; /* of the plan that the thread makes */

bool hr__plan_scratch_keep(hr__plan_kept *blocks)
{
	if (kept != NULL) return false;
	blocks->count = 0;
	kept = blocks;
	return true;
}

void hr__plan_scratch_release(void)
{
	HR_ASSERT(kept != NULL);
	for (; kept->count > 0; kept->count--) hr__os()->free(kept->blocks[kept->count - 1], kept->sizes[kept->count - 1]);
	kept = NULL;
}

/* A kept block of at least [*bytes], and of at most twice as many, zeroed as far as needed. *bytes gets its size. */
static void *take_kept(size_t *bytes)
{
	for (uint32_t i = kept != NULL ? kept->count : 0; i-- > 0;) {
		size_t size = kept->sizes[i];
		if (size < *bytes || size / 2 > *bytes) continue;
		void *block = kept->blocks[i];
		kept->count--;
		kept->blocks[i] = kept->blocks[kept->count];
		kept->sizes[i] = kept->sizes[kept->count];
		memset(block, 0, *bytes);
		*bytes = size;
		return block;
	}
	return NULL;
}

void *hr__plan_scratch_take(hr__plan_scratch *scratch, uint64_t count, size_t size)
{
	uint64_t bytes;
	HR_ASSERT(scratch->count < HR__PLAN_SCRATCH_BLOCKS);
	if (scratch->count == HR__PLAN_SCRATCH_BLOCKS) return NULL;
	if (!hr__multiply(count > 0 ? count : 1, size, &bytes) || bytes > SIZE_MAX / 2) return NULL;
	size_t taken = (size_t)bytes;
	void *block = take_kept(&taken);
	if (block == NULL && hr__os()->alloc(taken, &block) != 0) return NULL;
	scratch->blocks[scratch->count] = block;
	scratch->sizes[scratch->count++] = taken;
	return block;
}

void hr__plan_scratch_free(hr__plan_scratch *scratch)
{
	for (; scratch->count > 0; scratch->count--) {
		void *block = scratch->blocks[scratch->count - 1];
		size_t size = scratch->sizes[scratch->count - 1];
		if (kept != NULL && kept->count < HR__PLAN_KEPT_BLOCKS) {
			kept->blocks[kept->count] = block;
			kept->sizes[kept->count++] = size;
		} else {
			hr__os()->free(block, size);
		}
	}
}

/* ---- reading the step ---- */

uint64_t hr__plan_ring_copy_ns(uint64_t bytes, uint64_t bytes_per_s, uint64_t copy_ns)
{
	unsigned __int128 ns = ((unsigned __int128)bytes * 1000000000u + bytes_per_s - 1) / bytes_per_s + copy_ns;
	return ns > UINT64_MAX ? UINT64_MAX : (uint64_t)ns;
}

static hr_status check_numbers(const hr__plan_step *step, const hr__plan_machine *machine)
{
	uint64_t bytes = step->other_bytes, ns = 0;
	uint32_t before = 0;
	if (step->tensor_count == UINT32_MAX || step->use_count == UINT32_MAX || step->op_count == UINT32_MAX)
		return hr__fail(HR_INVALID_ARGUMENT, "the step is too long");
	if (machine != NULL && (machine->out_bytes_per_s == 0 || machine->in_bytes_per_s == 0))
		return hr__fail(HR_INVALID_ARGUMENT, "the link transfers 0 bytes per second");
	if (step->op_count == 0 && step->use_count > 0) return hr__fail(HR_INVALID_ARGUMENT, "uses without an op");
	for (uint32_t t = 0; t < step->tensor_count; t++) {
		if (!hr__add(bytes, step->tensors[t].bytes, &bytes))
			return hr__fail(HR_INVALID_ARGUMENT, "the tensors of the step add up to more than 2^64 bytes");
		if (step->tensors[t].died != HR__PLAN_NEVER && step->tensors[t].died >= step->op_count)
			return hr__fail(HR_INVALID_ARGUMENT, "tensor %u is destroyed after op %u of %u", t, step->tensors[t].died,
			                step->op_count);
	}
	for (uint32_t i = 0; i < step->op_count; i++) {
		uint32_t first = step->ops[i].first_use;
		if ((i == 0 && first != 0) || first < before || first > step->use_count)
			return hr__fail(HR_INVALID_ARGUMENT, "the uses of op %u begin at %u, of %u", i, first, step->use_count);
		if (!hr__add(ns, step->ops[i].ns, &ns)) return hr__fail(HR_INVALID_ARGUMENT, "the step takes more than 2^64 ns");
		before = first;
	}
	for (uint32_t u = 0; u < step->use_count; u++)
		if (step->uses[u].tensor >= step->tensor_count)
			return hr__fail(HR_INVALID_ARGUMENT, "use %u names tensor %u, of %u", u, step->uses[u].tensor, step->tensor_count);
	return HR_OK;
}

static uint32_t end_of_uses(const hr__plan_step *step, uint32_t op)
{
	return op + 1 < step->op_count ? step->ops[op + 1].first_use : step->use_count;
}

/* Counting sort of the uses by tensor; ops stay in order. [next] has room for each tensor. */
static hr_status sort_uses(hr__plan_ring *ring, uint32_t *next)
{
	const hr__plan_step *step = ring->step;
	for (uint32_t u = 0; u < step->use_count; u++) ring->first[step->uses[u].tensor + 1]++;
	for (uint32_t t = 0; t < step->tensor_count; t++) {
		ring->first[t + 1] += ring->first[t];
		next[t] = ring->first[t];
	}
	for (uint32_t i = 0; i < ring->n; i++) {
		for (uint32_t u = step->ops[i].first_use; u < end_of_uses(step, i); u++) {
			uint32_t t = step->uses[u].tensor, k = next[t]++;
			bool is_first = k == ring->first[t];
			if (!is_first && ring->at[k - 1] == i) return hr__fail(HR_INVALID_ARGUMENT, "op %u uses tensor %u twice", i, t);
			if (step->tensors[t].died < i)
				return hr__fail(HR_INVALID_ARGUMENT, "op %u uses tensor %u, which was destroyed after op %u", i, t,
				                step->tensors[t].died);
			ring->at[k] = i;
			ring->wrote[k] = step->uses[u].write || (is_first && !step->tensors[t].lived_before);
		}
	}
	return HR_OK;
}

/* [change] is a difference array: adds [bytes] to positions first to last. */
static void add_range(uint64_t *change, uint32_t first, uint32_t last, uint64_t bytes)
{
	HR_ASSERT(first <= last);
	change[first] += bytes;
	change[last + 1] -= bytes;
}

static void add_gap(hr__plan_ring *ring, uint32_t tensor, uint32_t use, uint32_t next_use, uint64_t *change)
{
	HR_ASSERT(ring->gap_count < ring->step->use_count);
	uint32_t from = ring->at[use], to = ring->at[next_use];
	uint64_t bytes = ring->step->tensors[tensor].bytes;
	if (hr__plan_ring_distance(ring, from, to) == 1 || bytes == 0) return;
	hr__plan_gap *gap = &ring->gaps[ring->gap_count];
	*gap = (hr__plan_gap){ .bytes = bytes, .tensor = tensor, .from = from, .to = to };
	if (ring->machine != NULL) {
		gap->out_ns = hr__plan_ring_copy_ns(bytes, ring->machine->out_bytes_per_s, ring->machine->copy_ns);
		gap->in_ns = hr__plan_ring_copy_ns(bytes, ring->machine->in_bytes_per_s, ring->machine->copy_ns);
	}
	if (to > from) {
		add_range(change, from + 1, to - 1, -bytes);
	} else {
		if (from + 1 < ring->n) add_range(change, from + 1, ring->n - 1, -bytes);
		if (to > 0) add_range(change, 0, to - 1, -bytes);
	}
	ring->gap_after[use] = ring->gap_count++;
}

static void read_tensor(hr__plan_ring *ring, uint32_t t)
{
	const hr__plan_tensor *tensor = &ring->step->tensors[t];
	uint32_t begin = ring->first[t], end = ring->first[t + 1];
	/* Without a use, its creation is not known: it counts from the start. */
	uint32_t made = tensor->lived_before || begin == end ? 0 : ring->at[begin];
	uint32_t last = tensor->died == HR__PLAN_NEVER ? ring->n - 1 : tensor->died;
	add_range(ring->occupied, made, last, tensor->bytes);
	if (!tensor->lived_before) ring->born[made] += tensor->bytes;
	if (tensor->died != HR__PLAN_NEVER) ring->dead[last] += tensor->bytes;
	if (tensor->never_evict) return;
	for (uint32_t k = begin; k + 1 < end; k++) add_gap(ring, t, k, k + 1, ring->least);
	if (begin < end && hr__plan_ring_is_cyclic(tensor)) add_gap(ring, t, end - 1, begin, ring->least);
}

static void sum_up(hr__plan_ring *ring)
{
	uint64_t occupied = ring->step->other_bytes, saved = 0;
	for (uint32_t i = 0; i < ring->n; i++) {
		occupied += ring->occupied[i];
		saved += ring->least[i];
		ring->occupied[i] = occupied;
		ring->least[i] = occupied + saved;
	}
}

static bool take_memory(hr__plan_ring *ring, uint32_t **next)
{
	const hr__plan_step *step = ring->step;
	hr__plan_scratch *scratch = &ring->scratch;
	return (ring->occupied = hr__plan_scratch_take(scratch, (uint64_t)ring->n + 1, sizeof *ring->occupied)) != NULL &&
	       (ring->least = hr__plan_scratch_take(scratch, (uint64_t)ring->n + 1, sizeof *ring->least)) != NULL &&
	       (ring->time = hr__plan_scratch_take(scratch, (uint64_t)ring->n + 1, sizeof *ring->time)) != NULL &&
	       (ring->born = hr__plan_scratch_take(scratch, ring->n, sizeof *ring->born)) != NULL &&
	       (ring->dead = hr__plan_scratch_take(scratch, ring->n, sizeof *ring->dead)) != NULL &&
	       (ring->first = hr__plan_scratch_take(scratch, (uint64_t)step->tensor_count + 1, sizeof *ring->first)) != NULL &&
	       (*next = hr__plan_scratch_take(scratch, step->tensor_count, sizeof **next)) != NULL &&
	       (ring->at = hr__plan_scratch_take(scratch, step->use_count, sizeof *ring->at)) != NULL &&
	       (ring->wrote = hr__plan_scratch_take(scratch, step->use_count, sizeof *ring->wrote)) != NULL &&
	       (ring->gap_after = hr__plan_scratch_take(scratch, step->use_count, sizeof *ring->gap_after)) != NULL &&
	       (ring->gaps = hr__plan_scratch_take(scratch, step->use_count, sizeof *ring->gaps)) != NULL;
}

hr_status hr__plan_ring_open(const hr__plan_step *step, const hr__plan_machine *machine, hr__plan_ring *ring)
{
	uint32_t *next;
	*ring = (hr__plan_ring){ .step = step, .machine = machine, .n = step->op_count };
	hr_status status = check_numbers(step, machine);
	if (status != HR_OK) return status;
	if (!take_memory(ring, &next)) {
		hr__plan_ring_close(ring);
		return hr__fail(HR_NO_HOST_MEMORY, "no host memory to plan a step of %u ops", step->op_count);
	}
	status = sort_uses(ring, next);
	if (status != HR_OK) {
		hr__plan_ring_close(ring);
		return status;
	}
	for (uint32_t u = 0; u < step->use_count; u++) ring->gap_after[u] = HR__PLAN_NO_GAP;
	for (uint32_t i = 0; i < ring->n; i++) ring->time[i + 1] = ring->time[i] + step->ops[i].ns;
	for (uint32_t t = 0; t < step->tensor_count && ring->n > 0; t++) read_tensor(ring, t);
	sum_up(ring);
	return HR_OK;
}

/* Whether some position of the gap has too much in use. [over] has the number of such positions before each. */
static bool is_useful(const hr__plan_ring *ring, const hr__plan_gap *gap, const uint32_t *over)
{
	if (gap->to > gap->from) return over[gap->to] > over[gap->from + 1];
	return over[ring->n] > over[gap->from + 1] || over[gap->to] > 0;
}

bool hr__plan_ring_trim(const hr__plan_ring *ring, hr__plan_scratch *scratch, hr__plan_ring *out)
{
	uint32_t *over = hr__plan_scratch_take(scratch, (uint64_t)ring->n + 1, sizeof *over);
	*out = *ring;
	out->scratch.count = 0;
	out->gaps = hr__plan_scratch_take(scratch, ring->gap_count, sizeof *out->gaps);
	out->gap_after = hr__plan_scratch_take(scratch, ring->step->use_count, sizeof *out->gap_after);
	if (over == NULL || out->gaps == NULL || out->gap_after == NULL) return false;
	for (uint32_t i = 0; i < ring->n; i++) over[i + 1] = over[i] + (ring->occupied[i] > ring->machine->memory);
	out->gap_count = 0;
	for (uint32_t u = 0; u < ring->step->use_count; u++) {
		uint32_t g = ring->gap_after[u];
		out->gap_after[u] = HR__PLAN_NO_GAP;
		if (g == HR__PLAN_NO_GAP || !is_useful(ring, &ring->gaps[g], over)) continue;
		out->gap_after[u] = out->gap_count;
		out->gaps[out->gap_count++] = ring->gaps[g];
	}
	return true;
}

void hr__plan_ring_close(hr__plan_ring *ring)
{
	hr__plan_scratch_free(&ring->scratch);
}
