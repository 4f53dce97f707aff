/* bound.c - the time that no way of moving tensors can beat. docs/lms.md has the proof.
 *
 * A window is the time from the end of op x to the start of a later op y. In it
 *
 *   compute      runs the ops between x and y
 *   the link in  carries what they and y use of what existed at op x, less what was on the device when x ended. That was at most
 *                memory, and included all that x uses and all that stays:
 *                    in(x, y)  = | used after x up to y, and existing at x; or used by x; or staying | + other - memory
 *   the link out carries what x and the ops between wrote and y or later ops use, less what is on the device when y starts:
 *                    out(x, y) = | written from x to before y, and used from y on; or used by y; or staying | + other - memory
 *
 * So the window takes at least the longest of the three. Cut the ring at some ops: a step takes at least the sum of these ops and
 * of the windows between them. The best cuts are found by dynamic programming, starting from a given cut; then from a cut of the
 * solution, as long as this helps.
 *
 * All windows that begin with op x are scanned in one loop over y, and what it adds up is updated when x advances, in time proportional to
 * the uses of op x. So a round takes a few nanoseconds for each pair of ops:
 *
 *   in(x, y)   grows at y by [come]: tensors whose first use after x is at y
 *   out(x, y)  is [whole], what a window as long as the step would have, less [gone]: tensors that y does not use, last written before x */
#include "core/base/assert.h"
#include "core/base/status.h"
#include "core/lms/plan/plan_ring.h"

#define ROUNDS 4            /* first cuts that are tried */
#define MOST_WORK 10000000u /* windows in a round: cuts are thinned out until that is enough; about 15 ms */
#define ROUGH_WORK 400000u  /* the same for the rough bound: about 1 ms */

typedef struct bounding {
	const hr__plan_ring *ring;
	hr__plan_scratch scratch;
	uint64_t in_ns, out_ns; /* of a byte, times 2^32, rounded down */
	bool *movable;          /* by tensor */
	uint32_t *use_index;    /* by use of the step: its index in ring->at */
	uint64_t *needed;       /* by op: bytes that it uses or that must stay, and other_bytes */
	uint64_t *whole;        /* by op: these, and what is written in the step before it, or in the last one, and used after it */
	/* for windows that begin with the current op */
	uint64_t *come;         /* by op: bytes */
	uint64_t *gone, past;   /* by op: bytes, as the difference to the op before; [past] = at the current op */
	uint64_t *best;         /* by ops after the first cut: time up to there */
	uint32_t *cut;          /* by ops after the first cut: the cut before */
	uint32_t stride;        /* cuts are tried at every stride-th op */
} bounding;

static bool open_bounding(bounding *b, const hr__plan_ring *ring)
{
	const hr__plan_step *step = ring->step;
	*b = (bounding){ .ring = ring, .stride = 1 };
	hr__plan_scratch *scratch = &b->scratch;
	uint64_t n = (uint64_t)ring->n + 1;
	return (b->movable = hr__plan_scratch_take(scratch, step->tensor_count, sizeof *b->movable)) != NULL &&
	       (b->use_index = hr__plan_scratch_take(scratch, step->use_count, sizeof *b->use_index)) != NULL &&
	       (b->needed = hr__plan_scratch_take(scratch, n, sizeof *b->needed)) != NULL &&
	       (b->whole = hr__plan_scratch_take(scratch, n, sizeof *b->whole)) != NULL &&
	       (b->come = hr__plan_scratch_take(scratch, n, sizeof *b->come)) != NULL &&
	       (b->gone = hr__plan_scratch_take(scratch, n, sizeof *b->gone)) != NULL &&
	       (b->best = hr__plan_scratch_take(scratch, n, sizeof *b->best)) != NULL &&
	       (b->cut = hr__plan_scratch_take(scratch, n, sizeof *b->cut)) != NULL;
}

/* ns of a byte times 2^32; rounded down, so that the result stays a lower bound. */
static uint64_t ns_of_byte(uint64_t bytes_per_s)
{
	unsigned __int128 ns = ((unsigned __int128)1000000000u << 32) / bytes_per_s;
	return (uint64_t)ns;
}

static uint64_t copy_ns(uint64_t bytes, uint64_t per_byte)
{
	unsigned __int128 ns = (unsigned __int128)bytes * per_byte >> 32;
	return ns > UINT64_MAX / 2 ? UINT64_MAX / 2 : (uint64_t)ns;
}

static uint32_t first_use(const hr__plan_step *step, uint32_t op)
{
	HR_ASSERT(op <= step->op_count);
	return op < step->op_count ? step->ops[op].first_use : step->use_count;
}

/* The use after use [k] of the tensor, around the end of the step if the tensor is there; UINT32_MAX if there is none. */
static uint32_t next_use(const hr__plan_ring *ring, uint32_t tensor, uint32_t k)
{
	if (k + 1 < ring->first[tensor + 1]) return k + 1;
	return hr__plan_ring_is_cyclic(&ring->step->tensors[tensor]) ? ring->first[tensor] : UINT32_MAX;
}

/* Adds [bytes] to the ops between two uses, as differences. */
static void add_between(const hr__plan_ring *ring, uint64_t *change, uint32_t use, uint32_t next, uint64_t bytes)
{
	uint32_t first = ring->at[use] + 1 < ring->n ? ring->at[use] + 1 : 0;
	change[first] += bytes;
	change[ring->at[next]] -= bytes;
}

/* Bytes that must stay at each op. A tensor without a use cannot be moved. If it did not live before, its creation is not known: it is
 * left out. */
static void sum_staying(bounding *b)
{
	const hr__plan_ring *ring = b->ring;
	const hr__plan_step *step = ring->step;
	for (uint32_t t = 0; t < step->tensor_count; t++) {
		const hr__plan_tensor *tensor = &step->tensors[t];
		bool used = ring->first[t] < ring->first[t + 1];
		b->movable[t] = used && !tensor->never_evict;
		if (b->movable[t] || (!used && !tensor->lived_before)) continue;
		b->needed[tensor->lived_before ? 0 : ring->at[ring->first[t]]] += tensor->bytes;
		if (tensor->died != HR__PLAN_NEVER) b->needed[tensor->died + 1] -= tensor->bytes;
	}
	b->needed[0] += step->other_bytes;
	for (uint32_t i = 0; i + 1 < ring->n; i++) b->needed[i + 1] += b->needed[i];
}

/* Adds what was written before each op and is used after it. */
static void sum_written(bounding *b)
{
	const hr__plan_ring *ring = b->ring;
	uint64_t bytes = 0;
	for (uint32_t t = 0; t < ring->step->tensor_count; t++) {
		bool written = false;
		if (!b->movable[t]) continue;
		for (uint32_t k = ring->first[t]; k < ring->first[t + 1] && hr__plan_ring_is_cyclic(&ring->step->tensors[t]); k++)
			written |= ring->wrote[k];
		for (uint32_t k = ring->first[t]; k < ring->first[t + 1]; k++) {
			uint32_t next = next_use(ring, t, k);
			written |= ring->wrote[k];
			if (!written || next == UINT32_MAX) continue;
			add_between(ring, b->whole, k, next, ring->step->tensors[t].bytes);
			/* Between the last use and the first, also before the first op. */
			if (ring->at[next] <= ring->at[k] && ring->at[k] + 1 < ring->n) bytes += ring->step->tensors[t].bytes;
		}
	}
	for (uint32_t i = 0; i < ring->n; i++) {
		bytes += b->whole[i];
		b->whole[i] = b->needed[i] + bytes;
	}
}

static bool prepare(bounding *b, uint32_t most_work)
{
	const hr__plan_ring *ring = b->ring;
	const hr__plan_step *step = ring->step;
	uint32_t *uses = hr__plan_scratch_take(&b->scratch, step->tensor_count, sizeof *uses); /* by tensor, so far */
	if (uses == NULL) return false;
	b->in_ns = ns_of_byte(ring->machine->in_bytes_per_s);
	b->out_ns = ns_of_byte(ring->machine->out_bytes_per_s);
	sum_staying(b);
	for (uint32_t i = 0; i < ring->n; i++) {
		for (uint32_t u = first_use(step, i); u < first_use(step, i + 1); u++) {
			uint32_t t = step->uses[u].tensor;
			b->use_index[u] = ring->first[t] + uses[t]++;
			if (b->movable[t]) b->needed[i] += step->tensors[t].bytes;
		}
	}
	sum_written(b);
	uint64_t windows = (uint64_t)ring->n * ring->n / 2;
	b->stride = (uint32_t)(windows / most_work) + 1;
	return true;
}

/* ---- windows that begin with an op ---- */

/* Use [k] wrote the tensor before the windows begin: what it wrote is not moved in them. */
static void let_go(bounding *b, uint32_t tensor, uint32_t k)
{
	const hr__plan_ring *ring = b->ring;
	do {
		uint32_t next = next_use(ring, tensor, k);
		if (next == UINT32_MAX) return;
		add_between(ring, b->gone, k, next, ring->step->tensors[tensor].bytes);
		k = next;
	} while (!ring->wrote[k]);
}

/* Tensors that existed before the step, and die in it. */
static void begin_step(bounding *b)
{
	const hr__plan_ring *ring = b->ring;
	for (uint32_t t = 0; t < ring->step->tensor_count; t++) {
		const hr__plan_tensor *tensor = &ring->step->tensors[t];
		if (b->movable[t] && tensor->lived_before && tensor->died != HR__PLAN_NEVER) b->come[ring->at[ring->first[t]]] += tensor->bytes;
	}
}

/* From windows that begin with op [x] to those that begin with the next. */
static void advance(bounding *b, uint32_t x)
{
	const hr__plan_ring *ring = b->ring;
	const hr__plan_step *step = ring->step;
	uint32_t following = x + 1 < ring->n ? x + 1 : 0;
	for (uint32_t u = first_use(step, x); u < first_use(step, x + 1); u++) {
		uint32_t t = step->uses[u].tensor, k = b->use_index[u], next = next_use(ring, t, k);
		if (!b->movable[t]) continue;
		if (next != UINT32_MAX) b->come[ring->at[next]] += step->tensors[t].bytes;
		if (ring->wrote[k]) let_go(b, t, k);
	}
	if (following == 0) begin_step(b);
	b->come[following] = 0; /* what the first op of the windows uses is there */
	b->past += b->gone[following];
	b->gone[following] = 0;
}

/* One round is enough to know all that was used and written before. */
static void begin_round(bounding *b, uint32_t start)
{
	uint32_t n = b->ring->n;
	b->past = 0;
	for (uint32_t i = 0; i < n; i++) b->come[i] = b->gone[i] = 0;
	for (uint32_t i = 0; i < n; i++) advance(b, (start + i) % n);
}

static uint64_t later(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

/* Ends windows that begin with op [from], the [i]-th after the first cut, at all ops after it up to the first cut. */
static void scan_windows(bounding *b, uint32_t i, uint32_t from)
{
	const hr__plan_ring *ring = b->ring;
	uint32_t n = ring->n, to = from, until_cut = b->stride;
	uint64_t memory = ring->machine->memory, in = b->needed[from], gone = b->past, compute = 0;
	uint64_t before; /* time up to the end of [from] */
	if (__builtin_add_overflow(b->best[i], ring->step->ops[from].ns, &before)) before = UINT64_MAX;
	for (uint32_t j = i + 1; j <= n; j++) {
		to = to + 1 < n ? to + 1 : 0;
		in += b->come[to];
		gone += b->gone[to];
		if (--until_cut == 0 || j == n) {
			uint64_t out = b->whole[to] - gone, time = compute;
			if (in > memory) time = later(time, copy_ns(in - memory, b->in_ns));
			if (out > memory) time = later(time, copy_ns(out - memory, b->out_ns));
			if (__builtin_add_overflow(time, before, &time)) time = UINT64_MAX;
			if (time > b->best[j]) {
				b->best[j] = time;
				b->cut[j] = i;
			}
			until_cut = b->stride;
		}
		compute += ring->step->ops[to].ns;
	}
}

/* The longest time with a cut at op [start]: best[i] is the time from its start to that of the i-th op after it. */
static uint64_t longest_from(bounding *b, uint32_t start)
{
	uint32_t n = b->ring->n;
	begin_round(b, start);
	for (uint32_t i = 0; i <= n; i++) b->best[i] = 0;
	for (uint32_t i = 0; i < n; i++) {
		uint32_t from = (start + i) % n;
		if (i % b->stride == 0) scan_windows(b, i, from);
		advance(b, from);
	}
	return b->best[n];
}

/* Tries first cuts: at the peak of bytes in use, where links stop and start; then at a cut of the solution, because without the
 * first one it may be better still. */
static uint64_t longest(bounding *b, int rounds)
{
	const hr__plan_ring *ring = b->ring;
	uint64_t most = 0;
	uint32_t start = 0;
	for (uint32_t i = 1; i < ring->n; i++)
		if (ring->occupied[i] > ring->occupied[start]) start = i;
	for (int round = 0; round < rounds; round++) {
		uint64_t found = longest_from(b, start);
		if (round > 0 && found <= most) break;
		most = found;
		start = (start + b->cut[ring->n]) % ring->n;
	}
	return most;
}

static hr_status find_bound(const hr__plan_ring *ring, uint32_t most_work, int rounds, uint64_t *extra_ns)
{
	bounding b;
	hr_status status = HR_OK;
	if (open_bounding(&b, ring) && prepare(&b, most_work)) {
		uint64_t least = ring->n > 0 ? longest(&b, rounds) : 0;
		*extra_ns = least > ring->time[ring->n] ? least - ring->time[ring->n] : 0;
	} else {
		status = hr__fail(HR_NO_HOST_MEMORY, "no host memory for the bound of a step of %u ops", ring->n);
	}
	hr__plan_scratch_free(&b.scratch);
	return status;
}

hr_status hr__plan_ring_rough_bound(const hr__plan_ring *ring, uint64_t *extra_ns)
{
	return find_bound(ring, ROUGH_WORK, 1, extra_ns);
}

hr_status hr__plan_bound(const hr__plan_step *step, const hr__plan_machine *machine, uint64_t *extra_ns)
{
	hr__plan_ring ring;
	hr_status status = hr__plan_ring_open(step, machine, &ring);
	if (status != HR_OK) return status;
	status = find_bound(&ring, MOST_WORK, ROUNDS, extra_ns);
	hr__plan_ring_close(&ring);
	return status;
}
