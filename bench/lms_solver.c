/* lms_solver.c - quality of Large Model Support plans, compared with the bound on time, the lower bound on bytes, and demand
 * paging.
 *
 *     zcat traces/gpt2b16-use.csv.gz | build/bench/lms_solver 2 75 50 50@150
 *
 * Reads a use trace (traces/README.md), takes one of its steps and plans it at limits in percent of its peak. @ is the speed of the
 * link in GB/s each way, 55 by default. Each copy takes an additional 20 us.
 *
 *   bound    hr__plan_bound
 *   fewest   a lower bound of the bytes that any plan moves, out and in together (lms_fewest.h)
 *   lru      demand paging: an op waits for tensors that are not resident; LRU eviction, with a copy if dirty */
#include <inttypes.h>
#include <time.h>

#include "lms_fewest.h"
#include "lms_trace.h"

static double now_ms(void)
{
	struct timespec now;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
	return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

/* ---- demand paging ---- */

typedef struct paging {
	const hr__plan_step *step;
	const hr__plan_machine *machine;
	bool *here, *dirty, *locked, *exists;
	uint64_t *used; /* time of the last use */
	uint64_t in_use, out, in, moved;
} paging;

static uint64_t copy_ns(const paging *p, uint64_t bytes, uint64_t rate)
{
	return (uint64_t)((double)bytes * 1e9 / (double)rate) + p->machine->copy_ns;
}

/* Evicts until [bytes] fit; returns when. The waiting op is stalled, so copies out start at [when] at the earliest. */
static uint64_t make_room(paging *p, uint64_t bytes, uint64_t when)
{
	while (p->in_use + bytes > p->machine->memory) {
		uint32_t victim = NONE;
		for (uint32_t t = 0; t < p->step->tensor_count; t++)
			if (p->here[t] && !p->locked[t] && p->step->tensors[t].bytes > 0 && (victim == NONE || p->used[t] < p->used[victim]))
				victim = t;
		if (victim == NONE) return when;
		uint64_t size = p->step->tensors[victim].bytes;
		p->here[victim] = false;
		p->in_use -= size;
		if (!p->dirty[victim]) continue;
		p->out = (p->out > when ? p->out : when) + copy_ns(p, size, p->machine->out_bytes_per_s);
		p->moved += size;
		p->dirty[victim] = false;
		when = p->out;
	}
	return when;
}

/* Duration of the fourth step, and the bytes it moved. */
static uint64_t demand_paging(const hr__plan_step *step, const hr__plan_machine *machine, uint64_t *moved)
{
	paging p = { .step = step, .machine = machine, .in_use = step->other_bytes };
	uint64_t now = 0, began = 0, clock = 0;
	p.here = lms_must(calloc(step->tensor_count + 1, 1));
	p.dirty = lms_must(calloc(step->tensor_count + 1, 1));
	p.locked = lms_must(calloc(step->tensor_count + 1, 1));
	p.exists = lms_must(calloc(step->tensor_count + 1, 1));
	p.used = lms_must(calloc(step->tensor_count + 1, sizeof *p.used));
	/* Tensors without uses are always resident. */
	for (uint32_t u = 0; u < step->use_count; u++) p.locked[step->uses[u].tensor] = true;
	for (uint32_t t = 0; t < step->tensor_count; t++) {
		if (!p.locked[t] && is_cyclic(&step->tensors[t])) p.in_use += step->tensors[t].bytes;
		p.locked[t] = false;
	}
	for (int round = 0; round < 4; round++) {
		began = now;
		p.moved = 0;
		for (uint32_t i = 0; i < step->op_count; i++) {
			uint32_t first = step->ops[i].first_use, end = i + 1 < step->op_count ? step->ops[i + 1].first_use : step->use_count;
			uint64_t ready = now;
			for (uint32_t u = first; u < end; u++) p.locked[step->uses[u].tensor] = true;
			for (uint32_t u = first; u < end; u++) {
				uint32_t t = step->uses[u].tensor;
				const hr__plan_tensor *tensor = &step->tensors[t];
				p.used[t] = ++clock;
				if (p.here[t]) continue;
				uint64_t room = make_room(&p, tensor->bytes, now);
				bool made = !tensor->lived_before && !p.exists[t];
				p.exists[t] = true;
				p.here[t] = true;
				p.in_use += tensor->bytes;
				if (!made) {
					p.in = (p.in > room ? p.in : room) + copy_ns(&p, tensor->bytes, machine->in_bytes_per_s);
					p.moved += tensor->bytes;
					if (p.in > ready) ready = p.in;
				} else if (room > ready) {
					ready = room;
				}
			}
			now = ready + step->ops[i].ns;
			for (uint32_t u = first; u < end; u++) {
				p.dirty[step->uses[u].tensor] |= step->uses[u].write;
				p.locked[step->uses[u].tensor] = false;
			}
			for (uint32_t t = 0; t < step->tensor_count; t++) {
				if (step->tensors[t].died != i || !p.here[t]) continue;
				p.here[t] = p.dirty[t] = false;
				p.in_use -= step->tensors[t].bytes;
			}
		}
		/* Tensors that outlive the step but did not exist before it are dropped at its end. */
		for (uint32_t t = 0; t < step->tensor_count; t++) {
			p.exists[t] = false;
			if (is_cyclic(&step->tensors[t]) || !p.here[t]) continue;
			p.here[t] = p.dirty[t] = false;
			p.in_use -= step->tensors[t].bytes;
		}
	}
	*moved = p.moved;
	free(p.here);
	free(p.dirty);
	free(p.locked);
	free(p.exists);
	free(p.used);
	return now - began;
}

/* ---- the table ---- */

static void print_row(const hr__plan_step *step, double percent, double link)
{
	uint64_t peak = hr__plan_peak(step), compute = hr__plan_compute_ns(step), bound, paged;
	hr__plan_machine machine = { .memory = (uint64_t)((double)peak * percent / 100), .copy_ns = 20000 };
	hr__plan plan;
	machine.out_bytes_per_s = machine.in_bytes_per_s = (uint64_t)(link * 1e9);
	double start = now_ms();
	if (hr__plan_make(step, &machine, &plan) != HR_OK || hr__plan_bound(step, &machine, &bound) != HR_OK) {
		printf("%5.0f %5.0f  %s\n", percent, link, hr_last_message());
		return;
	}
	hr__plan again;
	double middle = now_ms();
	if (hr__plan_make(step, &machine, &again) == HR_OK) hr__plan_free(&again);
	double plan_ms = now_ms() - middle, bound_ms = middle - start - plan_ms;
	uint64_t lru = demand_paging(step, &machine, &paged);
	double extra = (double)(plan.step_ns - compute) / 1e6, fewest = lms_fewest_bytes(step, machine.memory);
	double moved = (double)(plan.bytes_out + plan.bytes_in);
	printf("%5.0f %5.0f %9.2f %9.2f %9.2f %7.3f %9.2f %8.3f %8.3f %7.4f %6u %9.2f %8.2f %6.0f %6.0f\n", percent, link,
	       (double)compute / 1e6, (double)bound / 1e6, extra,
	       bound > 0   ? extra / ((double)bound / 1e6)
	       : extra > 0 ? 99.0
	                   : 1.0,
	       1.25 * (double)bound / 1e6 + 0.03 * (double)compute / 1e6, moved / 1e9, fewest / 1e9, fewest > 0 ? moved / fewest : 1.0,
	       plan.move_count, ((double)lru - (double)compute) / 1e6, (double)paged / 1e9, plan_ms, bound_ms);
	fflush(stdout);
	hr__plan_free(&plan);
}

int main(int argc, char **argv)
{
	if (argc < 3) {
		fprintf(stderr, "usage: %s STEP PERCENT[@GB/s]... <trace.csv\n", argv[0]);
		return 2;
	}
	lms_trace trace = lms_trace_read(stdin);
	lms_step step = lms_step_make(&trace, strtoull(argv[1], NULL, 10));
	uint32_t op;
	uint64_t least = hr__plan_least(&step.step, &op), peak = hr__plan_peak(&step.step);
	printf("%u ops, %u uses, %u tensors; peak %.3f GB, least %.3f GB (%.1f%%) at op %u\n", step.step.op_count, step.step.use_count,
	       step.step.tensor_count, (double)peak / 1e9, (double)least / 1e9, 100 * (double)least / (double)peak, op);
	printf("limit  GB/s  plain ms  bound ms  extra ms extra/b allowed    GB moved   fewest   ratio  moves    lru ms   lru GB plan "
	       "ms bound ms\n");
	for (int i = 2; i < argc; i++) {
		char *end;
		double percent = strtod(argv[i], &end);
		print_row(&step.step, percent, *end == '@' ? strtod(end + 1, NULL) : 55);
	}
	lms_step_free(&step);
	free(trace.events);
	return 0;
}
