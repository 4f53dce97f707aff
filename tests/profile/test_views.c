/* test_views.c - the sums agree: whatever a program does, every view of its trace adds up to the allocators' statistics of that
 * moment, and the views of the peak to the peak, to the byte. */
#include "fixture.h"
#include "headroom_record.h"
#include "headroom_lms.h"
#include "support_capture.h"
#include "analysis/capture/holes.h"
#include "test.h"

#define MIB (UINT64_C(1) << 20)
#define BLOCKS 256
#define TENSORS 24
#define STEPS 12
#define DEVICES 2

/* ---- a random program ---- */

typedef struct program {
	uint64_t random;
	hr_device devices[DEVICES];
	hr_allocator allocators[DEVICES];
	struct {
		void *address;
		int device;
	} blocks[BLOCKS];
	hr_tensor tensors[TENSORS];
	hr_name ops[8], scopes[8], tags[3];
	/* Values of the statistics at the end of each step, and at the end of the recording. */
	uint64_t step_bytes[STEPS][DEVICES], end_bytes[DEVICES], peak_bytes[DEVICES];
	uint64_t steps;
	char path[64];
} program;

static const char *const device_names[DEVICES] = { "GPU:0", "CPU:0" };

static hr_stats stats_of(const program *p, int device)
{
	hr_stats stats;
	hr_stats_init(&stats);
	CHECK_STATUS(HR_OK, hr_device_get_stats(p->devices[device], &stats));
	return stats;
}

static void make_names(program *p)
{
	static const char *const scopes[] = { "", "model", "model/a", "model/a/deep/down", "model/b", "modelling", "optimizer", "model/a/deep" };
	static const char *const tags[] = { "", "weights", "gradients" };
	for (int i = 0; i < 8; i++) {
		char name[16];
		snprintf(name, sizeof name, "op_%d", i);
		p->ops[i] = hr_name_intern(name);
		p->scopes[i] = hr_name_intern(scopes[i]);
	}
	for (int i = 0; i < 3; i++) p->tags[i] = hr_name_intern(tags[i]);
}

/* Small enough that tensors must be evicted. */
static void make_devices(program *p)
{
	fixture_configure_emulated(64 * MIB, 64 << 10, 0);
	for (int i = 0; i < DEVICES; i++) {
		p->devices[i] = fixture_device(device_names[i]);
		p->allocators[i] = fixture_allocator(p->devices[i], i == 0 ? 24 * MIB : 256 * MIB);
	}
	fixture_lms(p->allocators[0], NULL, 256 * MIB);
	for (int i = 0; i < TENSORS; i++) {
		p->tensors[i] = fixture_tensor(p->allocators[0], (size_t)(1 + hr_rand_below(&p->random, 3 * MIB)));
	}
}

static void use_block(program *p)
{
	size_t k = hr_rand_below(&p->random, BLOCKS);
	if (p->blocks[k].address) {
		CHECK_STATUS(HR_OK, hr_free(p->allocators[p->blocks[k].device], p->blocks[k].address, HR_STREAM_DEFAULT));
		p->blocks[k].address = NULL;
		return;
	}
	int64_t rows = 1 + (int64_t)hr_rand_below(&p->random, 64);
	hr_request request = HR_REQUEST((size_t)(1 + hr_rand_below(&p->random, hr_rand_below(&p->random, 8) ? 4096 : 500000)));
	request.op = p->ops[hr_rand_below(&p->random, 8)];
	request.scope = p->scopes[hr_rand_below(&p->random, 8)];
	request.tag = p->tags[hr_rand_below(&p->random, 3)];
	request.shape = hr_shape_intern((int64_t[]){ rows, 4 }, 2);
	request.dtype = HR_DTYPE_FLOAT32;
	p->blocks[k].device = (int)hr_rand_below(&p->random, DEVICES);
	hr_status status = hr_alloc(p->allocators[p->blocks[k].device], &request, &p->blocks[k].address);
	if (status) {
		CHECK_EQ((int)status, (int)HR_OUT_OF_MEMORY);
		p->blocks[k].address = NULL;
	}
}

/* Like a runtime: an op begins, uses tensors, ends. */
static void use_tensor(program *p)
{
	hr_tensor tensor = p->tensors[hr_rand_below(&p->random, TENSORS)];
	hr_pin pin = { tensor, HR_WRITE };
	hr_name op = p->ops[hr_rand_below(&p->random, 8)], scope = p->scopes[hr_rand_below(&p->random, 8)];
	hr__trace_event(&(hr__event){ .kind = HR__EVENT_OP_BEGIN, .op = op, .scope = scope });
	hr_status status = hr_tensor_pin_all(&pin, 1, HR_STREAM_DEFAULT);
	if (!status) {
		fixture_tensor_info(tensor);
		CHECK_STATUS(HR_OK, hr_tensor_unpin_all(&pin, 1, HR_STREAM_DEFAULT));
	}
	hr__trace_event(&(hr__event){ .kind = HR__EVENT_OP_END, .op = op, .scope = scope, .bytes = 1000 + hr_rand_below(&p->random, 1000) });
}

static void do_something(program *p)
{
	if (hr_rand_below(&p->random, 6) == 0) use_tensor(p);
	else use_block(p);
}

static void run_program(program *p, uint64_t seed)
{
	*p = (program){ .random = seed };
	snprintf(p->path, sizeof p->path, "/tmp/hr_test_views_%d_%llu.hrt", (int)getpid(), (unsigned long long)seed);
	unlink(p->path);
	make_names(p);
	make_devices(p);
	for (uint64_t i = hr_rand_below(&p->random, 200); i > 0; i--) do_something(p); /* live when the recording begins */
	CHECK_STATUS(HR_OK, hr_trace_start(p->path));
	for (int i = 0; i < DEVICES; i++) CHECK_STATUS(HR_OK, hr_reset_memory_stats(device_names[i]));
	p->steps = hr_rand_below(&p->random, STEPS + 1);
	for (uint64_t step = 0; step < p->steps; step++) {
		CHECK_STATUS(HR_OK, hr_step_begin(p->allocators[0]));
		for (uint64_t i = hr_rand_below(&p->random, 300); i > 0; i--) do_something(p);
		CHECK_STATUS(HR_OK, hr_step_end(p->allocators[0]));
		for (int i = 0; i < DEVICES; i++) p->step_bytes[step][i] = (uint64_t)stats_of(p, i).bytes_in_use;
	}
	for (uint64_t i = hr_rand_below(&p->random, 100); i > 0; i--) do_something(p);
	CHECK_STATUS(HR_OK, hr_trace_stop());
	for (int i = 0; i < DEVICES; i++) {
		p->end_bytes[i] = (uint64_t)stats_of(p, i).bytes_in_use;
		p->peak_bytes[i] = (uint64_t)stats_of(p, i).peak_bytes_in_use;
	}
}

static void end_program(program *p)
{
	for (int i = 0; i < TENSORS; i++) CHECK_STATUS(HR_OK, hr_tensor_destroy(p->tensors[i]));
	for (int i = 0; i < DEVICES; i++) CHECK_STATUS(HR_OK, hr_allocator_destroy_all(p->allocators[i]));
	CHECK_STATUS(HR_OK, hr_shutdown());
	unlink(p->path);
}

/* ---- views ---- */

typedef struct look {
	hr__selection selection;
	hr__filter filter;
	hr_profile_options options;
	hr__report_view report;
	uint32_t *op_devices;
} look;

static void look_at(look *l, const hr__capture *c, uint32_t device, uint32_t step, hr_status (*view)(hr__report_view *), const hr_profile_options *options)
{
	memset(&l->report, 0, sizeof l->report);
	CHECK_STATUS(HR_OK, hr__profile_options_read(options, &l->options));
	CHECK_STATUS(HR_OK, hr__filter_make(&l->filter, &l->options));
	CHECK_STATUS(HR_OK, hr__op_devices_make(c, &l->op_devices));
	CHECK_STATUS(HR_OK, hr__selection_make(c, device, step, l->options.name_scope, l->op_devices, &l->selection));
	l->report.selection = &l->selection;
	l->report.options = &l->options;
	l->report.filter = &l->filter;
	l->report.format = HR_PROFILE_JSON;
	CHECK_STATUS(HR_OK, view(&l->report));
}

static void look_away(look *l)
{
	hr__op_devices_free(l->selection.capture, l->op_devices);
	hr__selection_free(&l->selection);
	hr__filter_free(&l->filter);
	hr__report_free(&l->report);
}

static const hr__table *table_of(const look *l, const char *key)
{
	for (uint32_t i = 0; i < l->report.table_count; i++)
		if (strcmp(l->report.tables[i].key, key) == 0) return &l->report.tables[i];
	CHECK_STR(key, "a table of the view");
	return NULL;
}

static uint32_t column_of(const hr__table *table, const char *key)
{
	for (uint32_t i = 0; i < table->column_count; i++)
		if (strcmp(table->columns[i].key, key) == 0) return i;
	CHECK_STR(key, "a column of the table");
	return 0;
}

static uint64_t cell(const hr__table *table, size_t row, const char *key)
{
	CHECK_LT(row, table->count);
	return hr__table_at(table, row)[column_of(table, key)];
}

static uint64_t total(const hr__table *table, const char *key)
{
	return table->total[column_of(table, key)];
}

/* Shown and hidden rows add up to the total, in every summed column. */
static void check_sums(const hr__table *table)
{
	if (table->form != HR__TABLE_LIST) return;
	CHECK_EQ(table->count + table->hidden_rows, table->offered);
	for (uint32_t i = 0; i < table->column_count; i++) {
		uint64_t sum = table->hidden[i];
		if (!(table->columns[i].flags & HR__SUMS)) continue;
		for (size_t row = 0; row < table->count; row++) sum += hr__table_at(table, row)[i];
		CHECK_EQ(sum, table->total[i]);
	}
}

static void check_all_sums(const look *l)
{
	for (uint32_t i = 0; i < l->report.table_count; i++) check_sums(&l->report.tables[i]);
}

/* Each scope is the sum of itself and the scopes directly below it. */
static void check_tree(const hr__table *table, const char *all, const char *self)
{
	for (size_t i = 0; i < table->count; i++) {
		uint64_t sum = cell(table, i, self), depth = hr__table_at(table, i)[table->column_count];
		for (size_t k = i + 1; k < table->count && hr__table_at(table, k)[table->column_count] > depth; k++)
			if (hr__table_at(table, k)[table->column_count] == depth + 1) sum += cell(table, k, all);
		CHECK_EQ(sum, cell(table, i, all));
	}
}

/* Bytes of the selected sites at the peak of the whole device in the selected time, from a replay of all changes. */
static uint64_t live_at_peak(const hr__selection *s)
{
	const hr__capture *c = s->capture;
	uint64_t device = 0, selected = 0, most = 0, answer = 0;
	for (uint32_t i = 0; i < s->last_change; i++) {
		uint64_t bytes = c->allocations[c->changes[i].allocation].bytes;
		if (i == s->first_change) {
			most = device;
			answer = selected;
		}
		if (hr__allocation_device(c, c->changes[i].allocation) == s->device) device = c->changes[i].frees ? device - bytes : device + bytes;
		if (hr__selects_allocation(s, c->changes[i].allocation)) selected = c->changes[i].frees ? selected - bytes : selected + bytes;
		if (i < s->first_change || device <= most) continue;
		most = device;
		answer = selected;
	}
	return s->first_change == s->last_change ? selected : answer;
}

static uint64_t residual_of(const hr__selection *s)
{
	uint64_t bytes = 0;
	for (uint32_t i = s->first_change; i < s->last_change; i++) {
		const hr__change *change = &s->capture->changes[i];
		if (!hr__selects_allocation(s, change->allocation) || hr__allocation_birth(s->capture, change->allocation) < s->first_allocation) continue;
		uint64_t size = s->capture->allocations[change->allocation].bytes;
		bytes = change->frees ? bytes - size : bytes + size;
	}
	return bytes;
}

/* ---- holes, by sorting live blocks ---- */

typedef struct range {
	uint64_t from, to;
} range;

static int compare_ranges(const void *a, const void *b)
{
	const range *x = a, *y = b;
	return x->from < y->from ? -1 : x->from > y->from;
}

/* After change number [change], with the regions of that moment. */
static hr__holes_state naive_holes(const hr__capture *c, uint32_t allocator, uint32_t change)
{
	hr__holes_state state = { 0 };
	const hr__change *last = &c->changes[change];
	uint64_t now = last->frees ? c->allocations[last->allocation].end_ns : c->allocations[last->allocation].begin_ns, hole = 0;
	range *held = calloc((size_t)c->region_count + 1, sizeof *held), *live = calloc((size_t)c->allocation_count + 1, sizeof *live);
	unsigned char *is_live = calloc((size_t)c->allocation_count + 1, 1);
	size_t held_count = 0, live_count = 0, next = 0;
	for (uint32_t i = 0; i < c->region_count; i++) {
		const hr__region_run *r = &c->regions[i];
		if (r->allocator != allocator || r->begin_ns > now || r->end_ns <= now) continue;
		held[held_count++] = (range){ r->address, r->address + r->bytes };
		state.reserved_bytes += r->bytes;
	}
	for (uint32_t i = 0; i <= change; i++) is_live[c->changes[i].allocation] = !c->changes[i].frees;
	for (uint32_t i = 0; i < c->allocation_count; i++)
		if (is_live[i] && hr__allocation_allocator(c, i) == allocator) live[live_count++] = (range){ c->allocations[i].address, c->allocations[i].address + c->allocations[i].bytes };
	qsort(held, held_count, sizeof *held, compare_ranges);
	qsort(live, live_count, sizeof *live, compare_ranges);
	for (size_t i = 0; i < held_count; i++) {
		uint64_t at = held[i].from;
		if (!i || held[i - 1].to != at) hole = 0;
		while (at < held[i].to) {
			while (next < live_count && live[next].to <= at) next++;
			bool covered = next < live_count && live[next].from <= at;
			uint64_t to = covered ? live[next].to : next < live_count ? live[next].from : held[i].to;
			if (to > held[i].to) to = held[i].to;
			hole = covered ? 0 : hole + (to - at);
			if (!covered) state.free_bytes += to - at;
			if (hole > state.largest_free_bytes) state.largest_free_bytes = hole;
			at = to;
		}
	}
	free(held);
	free(live);
	free(is_live);
	return state;
}

static void check_holes(const hr__capture *c, uint64_t *random)
{
	hr__holes *holes;
	CHECK_STATUS(HR_OK, hr__holes_make(c, &holes));
	for (uint32_t i = 0; i < c->change_count; i++) {
		hr__holes_change(holes);
		if (hr_rand_below(random, c->change_count) >= 40) continue;
		for (uint32_t a = 0; a < c->allocator_count; a++) {
			hr__holes_state wanted = naive_holes(c, a, i), found = hr__holes_of(holes, a);
			CHECK_EQ(found.reserved_bytes, wanted.reserved_bytes);
			CHECK_EQ(found.free_bytes, wanted.free_bytes);
			CHECK_EQ(found.largest_free_bytes, wanted.largest_free_bytes);
		}
	}
	hr__holes_free(holes);
}

/* The sums over allocators equal those of the other views of the device. */
static void check_allocators(const hr__capture *c, uint32_t device, uint32_t step)
{
	look l;
	hr_profile_options options;
	hr_profile_options_init(&options);
	options.max_rows = 7;
	look_at(&l, c, device, step, hr__view_allocators, &options);
	check_all_sums(&l);
	const hr__table *totals = table_of(&l, "allocators"), *times = table_of(&l, "over_time");
	uint64_t allocations = 0;
	for (uint32_t i = l.selection.first_change; i < l.selection.last_change; i++)
		allocations += !c->changes[i].frees && hr__allocation_device(c, c->changes[i].allocation) == device;
	CHECK_EQ(total(totals, "allocations"), allocations);
	CHECK_EQ(total(times, "allocations"), allocations);
	CHECK_EQ(total(times, "frees"), total(totals, "frees"));
	CHECK_EQ(total(totals, "end_bytes"), l.selection.end_bytes);
	for (size_t i = 0; i < totals->count; i++) {
		uint64_t most = 0;
		for (size_t k = 0; k < times->count; k++)
			if (cell(times, k, "number") == cell(totals, i, "number") && cell(times, k, "peak_bytes") > most) most = cell(times, k, "peak_bytes");
		CHECK_EQ(most, cell(totals, i, "peak_bytes"));
	}
	look_away(&l);
}

/* Checks all views of one device in one time range, with any options. */
static void check_views(const hr__capture *c, uint32_t device, uint32_t step, const hr_profile_options *options, bool filters)
{
	look l;
	look_at(&l, c, device, step, hr__view_op, options);
	check_all_sums(&l);
	const hr__table *op = table_of(&l, "op");
	CHECK_EQ(l.selection.at_peak_bytes, live_at_peak(&l.selection));
	if (!options->name_scope) CHECK_EQ(l.selection.at_peak_bytes, l.selection.peak_bytes);
	CHECK_EQ(total(op, "at_peak_bytes"), l.selection.at_peak_bytes);
	CHECK_EQ(total(op, "residual_bytes"), residual_of(&l.selection));
	uint64_t allocated = total(op, "bytes"), allocations = total(op, "allocations"), ns = total(op, "micros");
	look_away(&l);

	look_at(&l, c, device, step, hr__view_scope, options);
	const hr__table *scope = table_of(&l, "scope");
	CHECK_EQ(cell(scope, 0, "at_peak_bytes"), l.selection.at_peak_bytes);
	CHECK_EQ(cell(scope, 0, "peak_bytes"), l.selection.peak_bytes);
	CHECK_EQ(cell(scope, 0, "bytes"), allocated);
	CHECK_EQ(cell(scope, 0, "allocations"), allocations);
	CHECK_EQ(cell(scope, 0, "micros"), ns);
	CHECK_EQ(cell(scope, 0, "residual_bytes"), residual_of(&l.selection));
	if (!filters) {
		check_tree(scope, "at_peak_bytes", "self_at_peak_bytes");
		check_tree(scope, "bytes", "self_bytes");
		check_tree(scope, "micros", "self_micros");
		check_tree(scope, "residual_bytes", "self_residual_bytes");
	}
	look_away(&l);

	look_at(&l, c, device, step, hr__view_peak, options);
	check_all_sums(&l);
	static const char *const peaks[] = { "by_op", "by_scope", "by_tag", "by_tensor" };
	for (int i = 0; i < 4; i++) CHECK_EQ(total(table_of(&l, peaks[i]), "bytes"), l.selection.at_peak_bytes);
	CHECK_EQ(cell(table_of(&l, "peak"), 0, "at_peak_bytes"), l.selection.at_peak_bytes);
	CHECK_EQ(cell(table_of(&l, "peak"), 0, "peak_bytes"), l.selection.device_peak_bytes);
	CHECK_EQ(cell(table_of(&l, "peak"), 0, "allocations"), table_of(&l, "by_tensor")->offered);
	look_away(&l);

	look_at(&l, c, device, step, hr__view_timeline, options);
	const hr__table *timeline = table_of(&l, "timeline");
	uint64_t most = 0, counted = 0;
	for (size_t i = 0; i < timeline->count; i++) {
		if (cell(timeline, i, "peak_bytes") > most) most = cell(timeline, i, "peak_bytes");
		counted += cell(timeline, i, "allocations");
		CHECK_LE(cell(timeline, i, "least_bytes"), cell(timeline, i, "end_bytes"));
	}
	CHECK_EQ(most, l.selection.peak_bytes);
	CHECK_EQ(counted, allocations);
	CHECK_EQ(cell(timeline, timeline->count - 1, "end_bytes"), l.selection.end_bytes);
	look_away(&l);

	look_at(&l, c, device, step, hr__view_tensors, options);
	check_all_sums(&l);
	CHECK_EQ(total(table_of(&l, "tensors"), "bytes"), allocated + l.selection.begin_bytes);
	look_away(&l);

	look_at(&l, c, device, step, hr__view_leaks, options);
	check_all_sums(&l);
	look_away(&l);
	look_at(&l, c, device, step, hr__view_summary, options);
	check_all_sums(&l);
	CHECK_EQ(cell(table_of(&l, "summary"), 0, "allocations"), allocations);
	CHECK_EQ(cell(table_of(&l, "summary"), 0, "bytes"), allocated);
	look_away(&l);
}

/* Compares the steps of the trace with the statistics at their ends. */
static void check_steps(const program *p, const hr__capture *c, uint32_t device, int number)
{
	look l;
	hr_profile_options options;
	hr_profile_options_init(&options);
	look_at(&l, c, device, HR__NONE, hr__view_steps, &options);
	check_all_sums(&l);
	const hr__table *steps = table_of(&l, "steps");
	CHECK_EQ(steps->count, p->steps);
	for (uint64_t i = 0; i < p->steps; i++) {
		CHECK_EQ(cell(steps, i, "end_bytes"), p->step_bytes[i][number]);
		CHECK_GE(cell(steps, i, "peak_bytes"), cell(steps, i, "end_bytes"));
		CHECK_LE(cell(steps, i, "peak_bytes"), p->peak_bytes[number]);
	}
	look_away(&l);
	look_at(&l, c, device, HR__NONE, hr__view_leaks, &options);
	CHECK_EQ(total(table_of(&l, "by_site"), "bytes"), p->steps ? p->step_bytes[p->steps - 1][number] : p->end_bytes[number]);
	look_away(&l);
}

static uint32_t index_of(const hr__capture *c, const char *name)
{
	for (uint32_t i = 0; i < c->device_count; i++)
		if (strcmp(c->devices[i].name, name) == 0) return i;
	return HR__NONE;
}

static void random_options(uint64_t *random, hr_profile_options *o)
{
	static const char *const show[] = { "op_[0-4]", "model.*", NULL };
	static const char *const hide[] = { "op_1", ".*deep.*", NULL };
	static const char *const scopes[] = { NULL, "model", "model/a", "nobody" };
	hr_profile_options_init(o);
	if (hr_rand_below(random, 2)) o->min_bytes = hr_rand_below(random, 100000);
	if (hr_rand_below(random, 4) == 0) o->min_micros = hr_rand_below(random, 100);
	if (hr_rand_below(random, 2)) o->max_rows = 1 + (uint32_t)hr_rand_below(random, 10);
	if (hr_rand_below(random, 2)) o->show_name_regexes = show;
	if (hr_rand_below(random, 2)) o->hide_name_regexes = hide;
	if (hr_rand_below(random, 2)) o->order_by = "name";
	if (hr_rand_below(random, 2)) o->max_depth = 1 + (uint32_t)hr_rand_below(random, 3);
	o->name_scope = scopes[hr_rand_below(random, 4)];
}

static void check_program(uint64_t seed)
{
	program p;
	hr__capture *c = NULL;
	hr_profile_options plain, options;
	run_program(&p, seed);
	CHECK_STATUS(HR_OK, hr__capture_open(p.path, NULL, NULL, &c));
	CHECK_STR(capture_wrong(c), NULL);
	CHECK_EQ(c->skipped, 0);
	CHECK_EQ(c->lost, 0);
	hr_profile_options_init(&plain);
	check_holes(c, &p.random);
	for (int i = 0; i < DEVICES; i++) {
		uint32_t device = index_of(c, device_names[i]);
		CHECK_NE(device, HR__NONE);
		CHECK_EQ(c->devices[device].end_bytes, p.end_bytes[i]);
		CHECK_EQ(c->devices[device].peak_bytes, p.peak_bytes[i]);
		check_steps(&p, c, device, i);
		check_views(c, device, HR__NONE, &plain, false);
		check_allocators(c, device, HR__NONE);
		if (c->step_count) check_allocators(c, device, (uint32_t)hr_rand_below(&p.random, c->step_count));
		for (uint32_t step = 0; step < c->step_count; step++) check_views(c, device, step, &plain, false);
		for (int round = 0; round < 4; round++) {
			random_options(&p.random, &options);
			check_views(c, device, c->step_count ? (uint32_t)hr_rand_below(&p.random, c->step_count) : HR__NONE, &options, true);
			check_views(c, device, HR__NONE, &options, true);
		}
	}
	hr__capture_close(c);
	end_program(&p);
}

static void test_every_view_adds_up_to_what_the_statistics_said(void)
{
	for (uint64_t i = 0; i < hr_test_scaled(20); i++) check_program(hr_test_seed() * 1000 + i);
}

/* ---- leaks ---- */

static char path[64];

static void begin_recording(void)
{
	snprintf(path, sizeof path, "/tmp/hr_test_views_%d.hrt", (int)getpid());
	unlink(path);
	CHECK_STATUS(HR_OK, hr__trace_open(path));
	hr__trace_define_device(0, "GPU:0", 1 << 30, 65536);
	hr__trace_define_allocator(7, "GPU_0_bfc", "bfc", 0);
}

static void emit(hr__event_kind kind, uint64_t address, uint64_t bytes, const char *op)
{
	hr__trace_event(&(hr__event){ .kind = kind, .allocator = 7, .address = address, .bytes = bytes, .requested = bytes, .op = hr_name_intern(op) });
}

static hr__capture *end_recording(void)
{
	hr__capture *capture = NULL;
	CHECK_STATUS(HR_OK, hr__trace_close());
	CHECK_STATUS(HR_OK, hr__capture_open(path, NULL, NULL, &capture));
	return capture;
}

/* The table at the top of the view's source: variables persist, each step's output is freed by the next, and only history grows. */
static void test_only_what_grows_from_step_to_step_is_a_leak(void)
{
	look l;
	hr_profile_options options;
	begin_recording();
	emit(HR__EVENT_ALLOC, 0x1000, 4096, "variable");
	for (uint64_t step = 1; step <= 6; step++) {
		emit(HR__EVENT_STEP, 0, step, "");
		emit(HR__EVENT_ALLOC, 0x100000 + step * 4096, 512, "history");
		emit(HR__EVENT_ALLOC, 0x200000 + step * 4096, 1024, "output");
		if (step > 1) emit(HR__EVENT_FREE, 0x200000 + (step - 1) * 4096, 0, "");
		if (step == 1) emit(HR__EVENT_ALLOC, 0x300000, 2048, "optimizer");
		emit(HR__EVENT_STEP_END, 0, step, "");
	}
	hr__capture *c = end_recording();
	hr_profile_options_init(&options);
	look_at(&l, c, 0, HR__NONE, hr__view_leaks, &options);
	const hr__table *sites = table_of(&l, "by_site"), *steps = table_of(&l, "by_step"), *facts = table_of(&l, "leaks");
	CHECK_STR(hr_name_text((hr_name)cell(sites, 0, "op")), "history");
	CHECK_EQ(cell(sites, 0, "growth_bytes"), 5 * 512);
	CHECK_EQ(cell(sites, 0, "growth_bytes_per_step"), 512);
	CHECK_EQ(cell(sites, 0, "growing"), 1);
	for (size_t i = 1; i < sites->count; i++) CHECK_EQ(cell(sites, i, "growing"), 0);
	CHECK_EQ(sites->count, 4);
	CHECK_EQ(cell(facts, 0, "growing"), 1);
	CHECK_EQ(cell(facts, 0, "after_last_step_bytes"), 4096 + 6 * 512 + 1024 + 2048);
	CHECK_EQ(cell(steps, 0, "left_bytes"), 512 + 1024 + 2048);
	CHECK_EQ(cell(steps, 5, "left_bytes"), 512 + 1024);
	CHECK_EQ(cell(steps, 3, "kept_bytes"), 512);
	look_away(&l);
	hr__capture_close(c);
	unlink(path);
}

/* One site allocates blocks on each stream in turn, and with two dtypes: no combination occurs in more than a quarter of the steps.
 * */
static void test_a_leak_over_several_streams_is_one_place(void)
{
	look l;
	hr_profile_options options;
	begin_recording();
	for (uint64_t step = 1; step <= 12; step++) {
		emit(HR__EVENT_STEP, 0, step, "");
		hr__trace_event(&(hr__event){ .kind = HR__EVENT_ALLOC, .allocator = 7, .stream = (hr_stream)(step % 4), .address = step << 20, .bytes = 1 << 20,
		                              .requested = 1 << 20, .op = hr_name_intern("history"), .dtype = step % 8 < 4 ? HR_DTYPE_FLOAT32 : HR_DTYPE_FLOAT16 });
		emit(HR__EVENT_STEP_END, 0, step, "");
	}
	emit(HR__EVENT_FREE, 1 << 20, 0, ""); /* after the last step, so in no step */
	hr__capture *c = end_recording();
	CHECK_GE(c->site_count, 4);
	hr_profile_options_init(&options);
	look_at(&l, c, 0, HR__NONE, hr__view_leaks, &options);
	const hr__table *sites = table_of(&l, "by_site"), *facts = table_of(&l, "leaks");
	CHECK_EQ(sites->count, 1);
	CHECK_EQ(cell(sites, 0, "growing"), 1);
	CHECK_EQ(cell(sites, 0, "grew_steps"), 11);
	CHECK_EQ(cell(sites, 0, "growth_bytes"), 11 << 20);
	CHECK_EQ(cell(sites, 0, "dtype"), 0); /* there is no single value */
	CHECK_EQ(cell(facts, 0, "growing"), 1);
	CHECK_EQ(cell(facts, 0, "after_last_step_bytes"), 12 << 20);
	CHECK_EQ(l.selection.end_bytes, 11 << 20);
	look_away(&l);
	hr__capture_close(c);
	unlink(path);
}

/* ---- steps of several allocators ---- */

static void begin_real_recording(hr_allocator *allocators, int count)
{
	hr_device device;
	setenv("HEADROOM_CUDA", "0", 1);
	snprintf(path, sizeof path, "/tmp/hr_test_views_%d.hrt", (int)getpid());
	unlink(path);
	CHECK_STATUS(HR_OK, hr_device_find("CPU:0", &device));
	for (int i = 0; i < count; i++) CHECK_STATUS(HR_OK, hr_allocator_create(device, NULL, &allocators[i]));
}

/* The second allocator is a step ahead of the first: by number alone, each of its steps would be the next step of the first. */
static void test_a_program_that_tells_two_allocators_of_its_steps_has_each_once(void)
{
	look l;
	hr_profile_options options;
	hr_allocator a[2];
	hr__capture *c = NULL;
	begin_real_recording(a, 2);
	CHECK_STATUS(HR_OK, hr_step_begin(a[1]));
	CHECK_STATUS(HR_OK, hr_step_end(a[1]));
	CHECK_STATUS(HR_OK, hr_trace_start(path));
	for (int step = 1; step <= 3; step++) {
		void *block;
		CHECK_STATUS(HR_OK, hr_step_begin(a[0]));
		CHECK_STATUS(HR_OK, hr_step_begin(a[1]));
		CHECK_STATUS(HR_OK, hr_alloc_bytes(a[step % 2], 4096, &block));
		CHECK_STATUS(HR_OK, hr_step_end(a[1]));
		CHECK_STATUS(HR_OK, hr_step_end(a[0]));
	}
	CHECK_STATUS(HR_OK, hr_trace_stop());
	CHECK_STATUS(HR_OK, hr__capture_open(path, NULL, NULL, &c));
	CHECK_EQ(c->skipped, 0);
	hr_profile_options_init(&options);
	look_at(&l, c, 0, HR__NONE, hr__view_steps, &options);
	const hr__table *steps = table_of(&l, "steps");
	CHECK_EQ(steps->count, 3);
	for (uint64_t i = 0; i < 3; i++) {
		CHECK_EQ(cell(steps, i, "step"), i + 1);
		CHECK_EQ(cell(steps, i, "allocations"), 1);
	}
	look_away(&l);
	hr__capture_close(c);
	for (int i = 0; i < 2; i++) CHECK_STATUS(HR_OK, hr_allocator_destroy_all(a[i]));
	CHECK_STATUS(HR_OK, hr_shutdown());
	unlink(path);
}

/* ---- tensors ---- */

static void test_tensors_know_how_long_they_lay_idle(void)
{
	look l;
	hr_profile_options options;
	begin_recording();
	emit(HR__EVENT_ALLOC, 0x1000, 4096, "weights");
	emit(HR__EVENT_ALLOC, 0x9000, 100, "never_used");
	for (int i = 0; i < 3; i++) {
		emit(HR__EVENT_OP_BEGIN, 0, 0, "matmul");
		emit(i ? HR__EVENT_READ : HR__EVENT_WRITE, 0x1000, 0, "matmul");
		emit(HR__EVENT_OP_END, 0, 77, "matmul");
		if (i == 1) nanosleep(&(struct timespec){ .tv_nsec = 20000000 }, NULL);
	}
	emit(HR__EVENT_FREE, 0x1000, 0, "");
	hr__capture *c = end_recording();
	hr_profile_options_init(&options);
	look_at(&l, c, 0, HR__NONE, hr__view_tensors, &options);
	const hr__table *tensors = table_of(&l, "tensors");
	CHECK_EQ(tensors->count, 2);
	CHECK_EQ(cell(tensors, 0, "bytes"), 4096);
	CHECK_EQ(cell(tensors, 0, "uses"), 3);
	CHECK_EQ(cell(tensors, 0, "alive"), 0);
	CHECK_GE(cell(tensors, 0, "idle_micros"), 20000000 * 0.999); /* the tick rate is measured */
	CHECK_LE(cell(tensors, 0, "idle_micros"), cell(tensors, 0, "micros"));
	for (size_t i = 0; i < tensors->count; i++) CHECK_LE(cell(tensors, i, "idle_micros"), cell(tensors, i, "micros"));
	CHECK_EQ(cell(tensors, 1, "uses"), 0);
	CHECK_EQ(cell(tensors, 1, "alive"), 1);
	CHECK_EQ(cell(tensors, 1, "idle_micros"), cell(tensors, 1, "micros")); /* its whole life */
	look_away(&l);
	hr__capture_close(c);
	unlink(path);
}

/* ---- invalid options ---- */

static hr__capture *small_capture(void)
{
	begin_recording();
	emit(HR__EVENT_STEP, 0, 3, "");
	emit(HR__EVENT_ALLOC, 0x1000, 4096, "variable");
	emit(HR__EVENT_STEP_END, 0, 3, "");
	return end_recording();
}

static hr_status ask(const hr__capture *c, const hr_profile_options *options)
{
	hr__profile *profile = NULL;
	hr_status status = hr__profile_make(c, options, NULL, 0, HR_PROFILE_TEXT, &profile);
	hr__profile_free(profile);
	return status;
}

static void test_bad_questions_get_clear_answers(void)
{
	hr__capture *c = small_capture();
	hr_profile_options options;
#define ASK(field, value, part)                                       \
	do {                                                              \
		hr_profile_options_init(&options);                            \
		options.field = value;                                        \
		CHECK_STATUS(HR_INVALID_ARGUMENT, ask(c, &options));          \
		CHECK_CONTAINS(hr_last_message(), part);                      \
	} while (0)
	ASK(view, "opp", "there is no view \"opp\"; there are summary");
	ASK(device, "GPU:7", "nothing in the trace is on \"GPU:7\"; it has GPU:0");
	ASK(step, 4, "no step 4; it has 1, from 3 to 3");
	ASK(step, -2, "-1 for all");
	ASK(width, 7, "from 40 to 1000");
	ASK(struct_size, 3, "hr_profile_options_init");
	static const char *const bad[] = { "good", "ba(d", NULL };
	ASK(show_name_regexes, bad, "show_name_regexes: \"ba(d\" is not a regular expression: ");
	static const char *const worse[] = { "a)(b", NULL };
	ASK(hide_name_regexes, worse, "hide_name_regexes: \"a)(b\"");
	hr_profile_options_init(&options);
	options.view = "op";
	options.order_by = "beauty";
	CHECK_STATUS(HR_INVALID_ARGUMENT, ask(c, &options));
	CHECK_CONTAINS(hr_last_message(), "there is no \"beauty\" in this view; there are name, occurrence, micros");
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_profile_options_init_preset(&options, "all"));
	CHECK_CONTAINS(hr_last_message(), "time_and_memory, memory and leaks");
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_profile_report(NULL, NULL, HR_PROFILE_TEXT, swallow_text, NULL));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_profile_report(path, NULL, (hr_profile_format)9, swallow_text, NULL));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_profile_save(path, NULL, HR_PROFILE_TEXT, NULL));
	hr__capture_close(c);
	unlink(path);
}

static void test_lists_of_steps(void)
{
	static const char *const bad[] = { "", ",", "1,", ",1", "1,,2", "a", "1a", "-1", "3-", "7-3", "1 2", "99999999999999999999" };
	int64_t steps[8];
	size_t count;
	CHECK_STATUS(HR_OK, hr__profile_parse_steps("1,10,100", steps, 8, &count));
	CHECK(count == 3 && steps[0] == 1 && steps[1] == 10 && steps[2] == 100);
	CHECK_STATUS(HR_OK, hr__profile_parse_steps("3-5,0", steps, 8, &count));
	CHECK(count == 4 && steps[0] == 3 && steps[2] == 5 && steps[3] == 0);
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		CHECK_STATUS(HR_INVALID_ARGUMENT, hr__profile_parse_steps(bad[i], steps, 8, &count));
		CHECK_CONTAINS(hr_last_message(), "1,10,100");
	}
	CHECK_STATUS(HR_TOO_MANY, hr__profile_parse_steps("1-9", steps, 8, &count));
	CHECK_STATUS(HR_TOO_MANY, hr__profile_parse_steps("0-9223372036854775797", steps, 8, &count));
}

/* ---- the public calls ---- */

static bool refuse(void *context, const char *bytes, size_t length)
{
	(void)context;
	(void)bytes;
	(void)length;
	return false;
}

static void test_reports_can_be_written_and_saved(void)
{
	char file[80];
	uint64_t written = 0;
	hr_profile_options options;
	hr__capture_close(small_capture());
	CHECK_STATUS(HR_OK, hr_profile_report(path, NULL, HR_PROFILE_TEXT, swallow_text, &written));
	CHECK_GT(written, 100);
	CHECK_STATUS(HR_IO, hr_profile_report(path, NULL, HR_PROFILE_TEXT, refuse, NULL));
	CHECK_STATUS(HR_IO, hr_profile_report(path, NULL, HR_PROFILE_JSON, refuse, NULL));
	snprintf(file, sizeof file, "%s.txt", path);
	unlink(file);
	CHECK_STATUS(HR_OK, hr_profile_options_init_preset(&options, "time_and_memory"));
	CHECK_STATUS(HR_OK, hr_profile_save(path, &options, HR_PROFILE_JSON, file));
	CHECK_EQ(access(file, R_OK), 0);
	CHECK_STATUS(HR_IO, hr_profile_save(path, &options, HR_PROFILE_JSON, file)); /* the file exists */
	unlink(file);
	CHECK_STATUS(HR_IO, hr_profile_save("/nowhere/x.hrt", &options, HR_PROFILE_JSON, file));
	CHECK_NE(access(file, R_OK), 0); /* no file is left */
	CHECK_STATUS(HR_IO, hr_profile_save(path, &options, HR_PROFILE_JSON, "/nowhere/at/all"));
	unlink(path);
}

static void test_a_comparison_adds_up_to_the_change_of_the_peak(void)
{
	uint64_t written = 0;
	hr_profile_options options;
	program p;
	hr__capture *c = NULL;
	run_program(&p, hr_test_seed() + 77);
	CHECK_STATUS(HR_OK, hr__capture_open(p.path, NULL, NULL, &c));
	hr_profile_options_init(&options);
	CHECK_STATUS(HR_OK, hr__profile_diff(c, c, &options, -1, -1, HR_PROFILE_TEXT, swallow_text, &written));
	CHECK_STATUS(HR_OK, hr__profile_diff(c, c, &options, -1, -1, HR_PROFILE_JSON, swallow_text, &written));
	CHECK_GT(written, 100);
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr__profile_diff(c, c, &options, -1, 999, HR_PROFILE_JSON, swallow_text, &written));
	options.device = "TPU:0";
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr__profile_diff(c, c, &options, -1, -1, HR_PROFILE_JSON, swallow_text, &written));
	hr__capture_close(c);
	end_program(&p);
}

TEST_MAIN(T_WITHIN(test_every_view_adds_up_to_what_the_statistics_said, 240), T(test_only_what_grows_from_step_to_step_is_a_leak),
          T(test_a_leak_over_several_streams_is_one_place), T(test_a_program_that_tells_two_allocators_of_its_steps_has_each_once),
          T(test_tensors_know_how_long_they_lay_idle), T(test_bad_questions_get_clear_answers), T(test_lists_of_steps),
          T(test_reports_can_be_written_and_saved), T(test_a_comparison_adds_up_to_the_change_of_the_peak))
