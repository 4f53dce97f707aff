/* ranks.c - summaries of captures, and what only all ranks together show: the highest peak, and stragglers. See ranks.h. */
#include "analysis/ranks/ranks.h"

#include <stdio.h>
#include <string.h>

#include "analysis/view/view.h"
#include "core/base/names.h"
#include "core/base/sort.h"
#include "core/base/status.h"
#include "core/os/os.h"

/* ---- one recording ---- */

/* Whether device [a] describes the rank better than [b]. A host pool holds what was evicted from a device, which is often more than the
 * device holds; its limit is not the one that the rank ran with. */
static bool is_before(const hr__capture *c, uint32_t a, uint32_t b)
{
	bool one = hr__capture_is_host_pool(c, a), other = hr__capture_is_host_pool(c, b);
	return one != other ? other : c->devices[a].peak_bytes > c->devices[b].peak_bytes;
}

static uint32_t main_device(const hr__capture *c)
{
	uint32_t found = 0;
	for (uint32_t i = 1; i < c->device_count; i++)
		if (is_before(c, i, found)) found = i;
	return found;
}

static uint32_t lane_index(const hr__capture *c, uint64_t ns)
{
	uint64_t span = c->end_ns ? c->end_ns : 1;
	uint64_t index = (uint64_t)((unsigned __int128)ns * HR__RANKS_LANE / span);
	return index < HR__RANKS_LANE ? (uint32_t)index : HR__RANKS_LANE - 1;
}

static void draw_lane(const hr__capture *c, uint32_t device, uint64_t lane[HR__RANKS_LANE])
{
	uint64_t level = 0;
	uint32_t at = 0;
	for (uint32_t i = 0; i < c->change_count; i++) {
		const hr__change *change = &c->changes[i];
		const hr__allocation *allocation = &c->allocations[change->allocation];
		if (hr__allocation_device(c, change->allocation) != device) continue;
		uint32_t index = lane_index(c, change->frees ? allocation->end_ns : allocation->begin_ns);
		while (at < index) lane[++at] = level;
		level = change->frees ? level - allocation->bytes : level + allocation->bytes;
		if (level > lane[at]) lane[at] = level;
	}
	while (at + 1 < HR__RANKS_LANE) lane[++at] = level;
}

struct op_sums {
	const hr__capture *capture;
	uint64_t *bytes; /* by op */
};

static void add_to_op(void *context, uint32_t allocation)
{
	struct op_sums *sums = context;
	const hr__allocation *a = &sums->capture->allocations[allocation];
	sums->bytes[sums->capture->sites[a->site].op] += a->bytes;
}

/* The op that holds most at the peak. */
static hr_status find_peak_op(const hr__capture *c, uint32_t device, hr__rank_run *run)
{
	hr_status status = HR_OK;
	size_t names = hr__names_count();
	struct op_sums sums = { c, hr__view_alloc(names, sizeof(uint64_t), &status) };
	if (!status) status = hr__capture_live(c, c->devices[device].peak_change, device, add_to_op, &sums);
	for (size_t i = 0; i < names && !status; i++) {
		if (sums.bytes[i] <= run->peak_op_bytes) continue;
		run->peak_op = (hr_name)i;
		run->peak_op_bytes = sums.bytes[i];
	}
	hr__view_free(sums.bytes, names, sizeof(uint64_t));
	return status;
}

static hr_status fill_device(const hr__capture *c, hr__rank_run *run)
{
	uint32_t device = main_device(c);
	const hr__capture_device *d = &c->devices[device];
	if (!c->device_count || !d->peak_bytes) return HR_OK;
	memcpy(run->device, d->name, sizeof run->device);
	run->peak_bytes = d->peak_bytes;
	run->peak_ns = d->peak_ns;
	run->limit_bytes = hr__capture_limit(c, device, d->peak_ns);
	draw_lane(c, device, run->lane);
	return find_peak_op(c, device, run);
}

/* What the program waited in [step] for plans. */
static uint64_t paused_in(const hr__capture *c, const hr__step_run *step)
{
	uint64_t sum = 0;
	for (uint32_t i = 0; i < c->pause_count; i++)
		if (c->pauses[i].end_ns > step->begin_ns && c->pauses[i].end_ns <= step->end_ns) sum += c->pauses[i].end_ns - c->pauses[i].begin_ns;
	return sum;
}

static bool is_less(const void *a, const void *b, const void *unused)
{
	(void)unused;
	return *(const uint64_t *)a < *(const uint64_t *)b;
}

/* The lower of the two in the middle of an even number; sorts [values]. */
static uint64_t median_of(uint64_t *values, size_t count)
{
	if (!count) return 0;
	hr__sort(values, count, sizeof *values, is_less, NULL);
	return values[(count - 1) / 2];
}

static hr_status find_median(hr__rank_run *run)
{
	hr_status status = HR_OK;
	size_t count = 0;
	uint64_t *times = hr__view_alloc(run->step_count, sizeof *times, &status);
	if (status) return status;
	for (uint32_t i = 0; i < run->step_count; i++)
		if (run->steps[i].ns) times[count++] = run->steps[i].ns;
	run->median_ns = median_of(times, count);
	hr__view_free(times, run->step_count, sizeof *times);
	return HR_OK;
}

static hr_status fill_steps(const hr__capture *c, hr__rank_run *run)
{
	hr_status status = HR_OK;
	run->steps = hr__view_alloc(c->step_count, sizeof *run->steps, &status);
	if (status) return status;
	run->step_capacity = run->step_count = c->step_count;
	for (uint32_t i = 0; i < c->step_count; i++) {
		const hr__step_run *step = &c->steps[i];
		uint64_t ns = step->end_ns == HR__NEVER ? 0 : step->end_ns - step->begin_ns;
		run->steps[i] = (hr__rank_step){ .number = step->number, .begin_ns = step->begin_ns, .ns = ns, .wait_ns = step->stall_ns + paused_in(c, step) };
		run->wait_ns += run->steps[i].wait_ns;
	}
	return find_median(run);
}

static hr_status fill_run(const hr__capture *c, const char *path, hr__rank_run *run)
{
	size_t length = strlen(path), kept = sizeof run->path - 1;
	snprintf(run->path, sizeof run->path, "%s", length > kept ? path + length - kept : path);
	run->rank = c->rank;
	run->process = c->process;
	memcpy(run->writer, c->writer, sizeof run->writer);
	run->complete = c->complete;
	run->start_wall_ns = c->start_wall_ns;
	run->end_ns = c->end_ns;
	run->lost = c->lost;
	run->refused = c->refusal_count;
	for (uint32_t i = 0; i < c->move_count; i++) {
		if (c->moves[i].kind == HR__MOVE_OUT) run->out_bytes += c->moves[i].bytes;
		if (c->moves[i].kind == HR__MOVE_IN) run->in_bytes += c->moves[i].bytes;
	}
	hr_status status = fill_device(c, run);
	return status ? status : fill_steps(c, run);
}

/* ---- a job ---- */

static void free_run(hr__rank_run *run)
{
	hr__view_free(run->steps, run->step_capacity, sizeof *run->steps);
	hr__view_free(run, 1, sizeof *run);
}

/* Whether [c] can be one more recording of the job. */
static hr_status check_run(const hr__ranks *ranks, const hr__capture *c, const char *path)
{
	if (c->format != HR__FORMAT_HEADROOM)
		return hr__fail(HR_INVALID_ARGUMENT, "%s is a %s, which has no rank; read it alone", path, hr__trace_format_name(c->format));
	if (!c->knows_rank)
		return hr__fail(HR_INVALID_ARGUMENT, "%s was written by %s, which did not record ranks; record all ranks with %s, or read it alone", path,
		                c->writer[0] ? c->writer : "an older version", "headroom 0.2 or newer");
	if (!c->rank.count) return hr__fail(HR_NOT_READY, "%s is of a process without a rank, such as a launcher", path);
	for (uint32_t i = 0; i < ranks->count; i++) {
		const hr__rank_run *other = ranks->runs[i];
		bool same_host = strcmp(other->rank.host, c->rank.host) == 0;
		if (other->rank.count != c->rank.count || (same_host && strcmp(other->rank.job, c->rank.job) != 0))
			return hr__fail(HR_INVALID_ARGUMENT, "%s is rank %u of %u of the job %s, and %s rank %u of %u of the job %s: they are not of one job", other->path,
			                other->rank.number, other->rank.count, other->rank.job, path, c->rank.number, c->rank.count, c->rank.job);
		if (other->rank.number == c->rank.number)
			return hr__fail(HR_INVALID_ARGUMENT, "%s and %s are both of rank %u; name one recording of each rank", other->path, path, c->rank.number);
	}
	return HR_OK;
}

hr_status hr__ranks_add(hr__ranks *ranks, const hr__capture *capture, const char *path)
{
	size_t capacity = ranks->capacity;
	hr_status status = check_run(ranks, capture, path);
	hr__rank_run *run = hr__view_alloc(1, sizeof *run, &status);
	if (status) return status;
	status = fill_run(capture, path, run);
	if (!status && ranks->count == ranks->capacity) {
		int error = hr__os_grow(&ranks->runs, &capacity, sizeof *ranks->runs, 8);
		if (error) status = hr__os_fail(error, "reading the recordings of a job");
		ranks->capacity = (uint32_t)capacity;
	}
	if (status) free_run(run);
	else ranks->runs[ranks->count++] = run;
	return status;
}

void hr__ranks_free(hr__ranks *ranks)
{
	for (uint32_t i = 0; i < ranks->count; i++) free_run(ranks->runs[i]);
	if (ranks->runs) hr__os()->free(ranks->runs, ranks->capacity * sizeof *ranks->runs);
	*ranks = (hr__ranks){ 0 };
}

/* ---- stragglers ---- */

typedef struct step_place {
	uint64_t number;
	uint32_t run, step;
	uint32_t occurrence; /* a program that trains twice has two steps with each number: the n-th one of each rank belong together */
} step_place;

static bool place_before(const void *a, const void *b, const void *unused)
{
	const step_place *one = a, *other = b;
	(void)unused;
	if (one->run != other->run) return one->run < other->run;
	return one->number != other->number ? one->number < other->number : one->step < other->step;
}

static void count_occurrences(step_place *places, size_t count)
{
	hr__sort(places, count, sizeof *places, place_before, NULL);
	for (size_t i = 1; i < count; i++)
		if (places[i].run == places[i - 1].run && places[i].number == places[i - 1].number) places[i].occurrence = places[i - 1].occurrence + 1;
}

static bool step_before(const void *a, const void *b, const void *unused)
{
	const step_place *one = a, *other = b;
	(void)unused;
	if (one->number != other->number) return one->number < other->number;
	return one->occurrence != other->occurrence ? one->occurrence < other->occurrence : one->run < other->run;
}

/* The steps of [places] belong together. [scratch] has room for them. */
static void compare_steps(hr__ranks *ranks, const step_place *places, size_t count, uint64_t *scratch)
{
	for (size_t i = 0; i < count; i++) scratch[i] = ranks->runs[places[i].run]->steps[places[i].step].ns;
	uint64_t median_ns = median_of(scratch, count);
	for (size_t i = 0; i < count; i++) scratch[i] = ranks->runs[places[i].run]->steps[places[i].step].wait_ns;
	uint64_t median_wait = median_of(scratch, count);
	for (size_t i = 0; i < count; i++) {
		hr__rank_run *run = ranks->runs[places[i].run];
		hr__rank_step *step = &run->steps[places[i].step];
		step->lag_ns = step->wait_ns > median_wait ? step->wait_ns - median_wait : 0;
		step->straggler = count > 1 && step->lag_ns > median_ns / HR__RANKS_LAG_PART;
		run->lag_ns += step->lag_ns;
		run->stragglers += step->straggler;
	}
}

static hr_status find_stragglers(hr__ranks *ranks)
{
	hr_status status = HR_OK;
	size_t count = 0, used = 0;
	for (uint32_t i = 0; i < ranks->count; i++) count += ranks->runs[i]->step_count;
	step_place *places = hr__view_alloc(count, sizeof *places, &status);
	uint64_t *scratch = hr__view_alloc(count, sizeof *scratch, &status);
	for (uint32_t i = 0; i < ranks->count && !status; i++)
		for (uint32_t k = 0; k < ranks->runs[i]->step_count; k++) places[used++] = (step_place){ .number = ranks->runs[i]->steps[k].number, .run = i, .step = k };
	if (!status) {
		count_occurrences(places, count);
		hr__sort(places, count, sizeof *places, step_before, NULL);
	}
	for (size_t begin = 0, end; begin < count && !status; begin = end) {
		for (end = begin + 1; end < count && places[end].number == places[begin].number && places[end].occurrence == places[begin].occurrence;) end++;
		compare_steps(ranks, places + begin, end - begin, scratch);
	}
	used = 0;
	for (size_t i = 0; i < count && !status; i++) {
		uint64_t ns = ranks->runs[places[i].run]->steps[places[i].step].ns;
		if (ns) scratch[used++] = ns;
	}
	if (!status) ranks->median_ns = median_of(scratch, used);
	hr__view_free(places, count, sizeof *places);
	hr__view_free(scratch, count, sizeof *scratch);
	return status;
}

static bool rank_before(const void *a, const void *b, const void *unused)
{
	(void)unused;
	return (*(hr__rank_run *const *)a)->rank.number < (*(hr__rank_run *const *)b)->rank.number;
}

hr_status hr__ranks_finish(hr__ranks *ranks)
{
	hr__sort(ranks->runs, ranks->count, sizeof *ranks->runs, rank_before, NULL);
	ranks->highest = 0;
	for (uint32_t i = 1; i < ranks->count; i++)
		if (ranks->runs[i]->peak_bytes > ranks->runs[ranks->highest]->peak_bytes) ranks->highest = i;
	return find_stragglers(ranks);
}
