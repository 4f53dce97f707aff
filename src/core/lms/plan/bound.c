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
 * solution, as long as this helps. */
#include "core/base/assert.h"
#include "core/base/status.h"
#include "core/lms/plan/plan_ring.h"

#define ROUNDS 4            /* first cuts that are tried */
#define ROUGH_WORK 400000u  /* the same for the rough bound, of one round: about 1 ms */
#define MOST_WORK 60000000u /* uses examined in a round: cuts are thinned out until that is enough */

typedef struct bounding {
	const hr__plan_ring *ring;
	hr__plan_scratch scratch;
	uint64_t in_ns, out_ns; /* of a byte, times 2^32, rounded down */
	uint64_t *staying;      /* by op: bytes that must stay, and other_bytes */
	bool *movable;          /* by tensor */
	bool *wrote;            /* by use of the step */
	uint32_t *read_in;      /* by tensor: stamp of the window that has examined it on the way in */
	uint32_t *owed_out;     /* by tensor: stamp of the window in which it is owed */
	uint64_t *best;         /* by ops after the first cut: time up to there */
	uint32_t *cut;          /* by ops after the first cut: the cut before */
	uint32_t stride;        /* cuts are tried at every stride-th op */
} bounding;

static bool open_bounding(bounding *b, const hr__plan_ring *ring)
{
	const hr__plan_step *step = ring->step;
	*b = (bounding){ .ring = ring, .stride = 1 };
	hr__plan_scratch *scratch = &b->scratch;
	return (b->staying = hr__plan_scratch_take(scratch, (uint64_t)ring->n + 1, sizeof *b->staying)) != NULL &&
	       (b->movable = hr__plan_scratch_take(scratch, step->tensor_count, sizeof *b->movable)) != NULL &&
	       (b->wrote = hr__plan_scratch_take(scratch, step->use_count, sizeof *b->wrote)) != NULL &&
	       (b->read_in = hr__plan_scratch_take(scratch, step->tensor_count, sizeof *b->read_in)) != NULL &&
	       (b->owed_out = hr__plan_scratch_take(scratch, step->tensor_count, sizeof *b->owed_out)) != NULL &&
	       (b->best = hr__plan_scratch_take(scratch, (uint64_t)ring->n + 1, sizeof *b->best)) != NULL &&
	       (b->cut = hr__plan_scratch_take(scratch, (uint64_t)ring->n + 1, sizeof *b->cut)) != NULL;
}

/* ns of a byte times 2^32; rounded down, so that the result stays a lower bound. */
static uint64_t ns_of_byte(uint64_t bytes_per_s)
{
	unsigned __int128 ns = ((unsigned __int128)1000000000u << 32) / bytes_per_s;
	return (uint64_t)ns;
}

static uint64_t copy_ns(uint64_t bytes, uint64_t memory, uint64_t per_byte)
{
	if (bytes <= memory) return 0;
	unsigned __int128 ns = (unsigned __int128)(bytes - memory) * per_byte >> 32;
	return ns > UINT64_MAX / 2 ? UINT64_MAX / 2 : (uint64_t)ns;
}

static uint32_t first_use(const hr__plan_step *step, uint32_t op)
{
	HR_ASSERT(op <= step->op_count);
	return op < step->op_count ? step->ops[op].first_use : step->use_count;
}

static void prepare(bounding *b, uint32_t most_work)
{
	const hr__plan_ring *ring = b->ring;
	const hr__plan_step *step = ring->step;
	b->in_ns = ns_of_byte(ring->machine->in_bytes_per_s);
	b->out_ns = ns_of_byte(ring->machine->out_bytes_per_s);
	for (uint32_t t = 0; t < step->tensor_count; t++) {
		const hr__plan_tensor *tensor = &step->tensors[t];
		bool used = ring->first[t] < ring->first[t + 1];
		b->movable[t] = used && !tensor->never_evict;
		if (b->movable[t]) continue;
		/* A tensor without a use cannot be moved. If it did not live before, its creation is not known: it is left out. */
		if (!used && !tensor->lived_before) continue;
		b->staying[tensor->lived_before ? 0 : ring->at[ring->first[t]]] += tensor->bytes;
		if (tensor->died != HR__PLAN_NEVER) b->staying[tensor->died + 1] -= tensor->bytes;
	}
	b->staying[0] += step->other_bytes;
	for (uint32_t i = 0; i + 1 < ring->n; i++) b->staying[i + 1] += b->staying[i];
	for (uint32_t i = 0; i < ring->n; i++) {
		for (uint32_t u = first_use(step, i); u < first_use(step, i + 1); u++) {
			uint32_t t = step->uses[u].tensor;
			b->wrote[u] = step->uses[u].write || (!step->tensors[t].lived_before && ring->at[ring->first[t]] == i);
		}
	}
	uint64_t work = (uint64_t)ring->n * (step->use_count + ring->n);
	b->stride = (uint32_t)(work / most_work) + 1;
}

/* A window that begins with the end of op [from], while it is extended op by op. */
typedef struct bound_window {
	uint32_t stamp, from;
	bool crossed;     /* the window reaches into the next step */
	uint64_t compute; /* ns of the ops between */
	uint64_t in;      /* bytes that existed at [from] and were used since or by it, and that stayed then */
	uint64_t owed;    /* bytes written and still to be used */
	uint64_t out;     /* bytes owed before the last op, used by it, and staying */
} bound_window;

static bool is_used_after(const hr__plan_ring *ring, uint32_t t, uint32_t op)
{
	return hr__plan_ring_is_cyclic(&ring->step->tensors[t]) || ring->at[ring->first[t + 1] - 1] > op;
}

static bound_window begin_window(bounding *b, uint32_t from, uint32_t stamp)
{
	const hr__plan_step *step = b->ring->step;
	bound_window w = { .stamp = stamp, .from = from, .crossed = from + 1 == b->ring->n, .in = b->staying[from] };
	for (uint32_t u = first_use(step, from); u < first_use(step, from + 1); u++) {
		uint32_t t = step->uses[u].tensor;
		if (!b->movable[t]) continue;
		b->read_in[t] = stamp;
		w.in += step->tensors[t].bytes;
		if (!b->wrote[u] || !is_used_after(b->ring, t, from)) continue;
		b->owed_out[t] = stamp;
		w.owed += step->tensors[t].bytes;
	}
	return w;
}

/* Ends the window with the start of op [to]. */
static void end_window_at(bounding *b, bound_window *w, uint32_t to)
{
	HR_ASSERT(to < b->ring->n);
	const hr__plan_ring *ring = b->ring;
	const hr__plan_step *step = ring->step;
	w->out = w->owed + b->staying[to];
	for (uint32_t u = first_use(step, to); u < first_use(step, to + 1); u++) {
		uint32_t t = step->uses[u].tensor;
		if (!b->movable[t]) continue;
		const hr__plan_tensor *tensor = &step->tensors[t];
		if (b->read_in[t] != w->stamp) {
			/* Stamped either way: a tensor that did not exist at [from] is not examined again. */
			bool was_there = hr__plan_ring_is_cyclic(tensor) ||
			                 (!w->crossed && (tensor->lived_before || ring->at[ring->first[t]] <= w->from));
			b->read_in[t] = w->stamp;
			if (was_there) w->in += tensor->bytes;
		}
		bool was_owed = b->owed_out[t] == w->stamp, used_after = is_used_after(ring, t, to);
		if (!was_owed) w->out += tensor->bytes;
		if (was_owed && !used_after) {
			b->owed_out[t] = 0;
			w->owed -= tensor->bytes;
		} else if (!was_owed && used_after && b->wrote[u]) {
			b->owed_out[t] = w->stamp;
			w->owed += tensor->bytes;
		}
	}
}

/* Extends the window: op [op], at which it ended, is inside now. */
static void go_on(const bounding *b, bound_window *w, uint32_t op)
{
	w->compute += b->ring->step->ops[op].ns;
	if (op + 1 == b->ring->n) w->crossed = true;
}

static uint64_t least_time(const bounding *b, const bound_window *w)
{
	uint64_t memory = b->ring->machine->memory, least = w->compute;
	uint64_t in = copy_ns(w->in, memory, b->in_ns), out = copy_ns(w->out, memory, b->out_ns);
	if (in > least) least = in;
	return out > least ? out : least;
}

/* The longest time with a cut at op [start]: best[i] is the time from its start to that of the i-th op after it. */
static uint64_t longest_from(bounding *b, uint32_t start, uint32_t *stamp)
{
	uint32_t n = b->ring->n;
	for (uint32_t i = 0; i <= n; i++) b->best[i] = 0;
	for (uint32_t i = 0; i < n; i += b->stride) {
		uint32_t from = (start + i) % n;
		bound_window w = begin_window(b, from, ++*stamp);
		for (uint32_t j = i + 1; j <= n; j++) {
			uint32_t to = start + j < n ? start + j : start + j - n;
			end_window_at(b, &w, to);
			if (j % b->stride == 0 || j == n) {
				uint64_t time = least_time(b, &w) + b->ring->step->ops[from].ns;
				if (__builtin_add_overflow(time, b->best[i], &time)) time = UINT64_MAX;
				if (time > b->best[j]) {
					b->best[j] = time;
					b->cut[j] = i;
				}
			}
			go_on(b, &w, to);
		}
	}
	return b->best[n];
}

/* Tries first cuts: at the peak of bytes in use, where links stop and start; then at a cut of the solution, because without the
 * first one it may be better still. */
static uint64_t longest(bounding *b, int rounds)
{
	const hr__plan_ring *ring = b->ring;
	uint64_t most = 0;
	uint32_t start = 0, stamp = 0;
	for (uint32_t i = 1; i < ring->n; i++)
		if (ring->occupied[i] > ring->occupied[start]) start = i;
	for (int round = 0; round < rounds; round++) {
		uint64_t found = longest_from(b, start, &stamp);
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
	if (open_bounding(&b, ring)) {
		uint64_t least = 0;
		if (ring->n > 0) {
			prepare(&b, most_work);
			least = longest(&b, rounds);
		}
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
