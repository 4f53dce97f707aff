/* test_capture.c - a trace in memory: related events are matched, and any bytes give a capture or an error that names the position.
 * */
#include "headroom_analysis.h"
#include "headroom_record.h"
#include "support_capture.h"
#include "support_files.h"
#include "test.h"
#include "core/trace/format.h"

static char trace_path[64];

static void make_path(void)
{
	snprintf(trace_path, sizeof trace_path, "/tmp/hr_test_capture_%d.hrt", (int)getpid());
	unlink(trace_path);
}

/* ---- a trace with events of every kind ---- */

static void define(void)
{
	hr__trace_define_device(0, "GPU:0", 1 << 30, 65536);
	hr__trace_define_device(1, "CPU:0", 1 << 30, 0);
	hr__trace_define_allocator(7, "GPU_0_bfc", "bfc", 0);
	hr__trace_define_allocator(8, "CPU_0_bfc", "bfc", 1);
}

static void emit(hr__event_kind kind, uint32_t allocator, uint64_t address, uint64_t bytes, const char *op)
{
	hr__trace_event(&(hr__event){ .kind = kind, .allocator = allocator, .address = address, .address2 = kind == HR__EVENT_MOVE ? address + 4096 : 0,
	                              .bytes = bytes, .requested = bytes, .op = hr_name_intern(op), .scope = hr_name_intern("model/layer"),
	                              .tag = hr_name_intern("weights"), .shape = hr_shape_intern((int64_t[]){ 4, 8 }, 2), .dtype = HR_DTYPE_FLOAT32 });
}

static void emit_program(void)
{
	emit(HR__EVENT_MAP, 7, 1 << 20, 1 << 20, "");
	emit(HR__EVENT_ALLOC, 7, 1 << 20, 4096, "variable");
	for (uint64_t step = 1; step <= 3; step++) {
		emit(HR__EVENT_STEP, 0, 0, step, "");
		for (uint64_t i = 1; i <= 4; i++) {
			emit(HR__EVENT_OP_BEGIN, 0, 0, 0, "matmul");
			emit(HR__EVENT_ALLOC, 7, (1 << 20) + i * 8192, 1024 * i, "matmul");
			emit(HR__EVENT_READ, 7, 1 << 20, 0, "matmul");
			emit(HR__EVENT_WRITE, 7, (1 << 20) + i * 8192, 0, "matmul");
			emit(HR__EVENT_OP_END, 0, 0, 1000 * i, "matmul");
		}
		emit(HR__EVENT_ALLOC, 8, 0x500000 + step * 4096, 512, "history");
		emit(HR__EVENT_EVICT, 7, 1 << 20, 4096, "variable");
		emit(HR__EVENT_RESTORE, 7, 1 << 20, 4096, "variable");
		emit(HR__EVENT_STITCH, 7, 0, 65536, "");
		emit(HR__EVENT_ALLOC_FAILED, 7, 0, 1 << 25, "matmul");
		for (uint64_t i = 1; i <= 4; i++) emit(HR__EVENT_FREE, 7, (1 << 20) + i * 8192, 0, "");
		emit(HR__EVENT_STEP_END, 0, 0, step, "");
	}
	emit(HR__EVENT_MOVE, 7, 1 << 20, 4096, "");
	emit(HR__EVENT_UNMAP, 7, (1 << 20) + 65536, 65536, "");
}

/* The bytes of the trace that [program] makes; the caller frees them. */
static uint8_t *record(void (*program)(void), size_t *size)
{
	make_path();
	CHECK_STATUS(HR_OK, hr__trace_open_blocks(trace_path, 4096));
	define();
	program();
	CHECK_STATUS(HR_OK, hr__trace_close());
	uint8_t *bytes = load(trace_path, size);
	unlink(trace_path);
	return bytes;
}

static hr__capture *capture_of(void (*program)(void))
{
	size_t size;
	hr__capture *capture = NULL;
	uint8_t *bytes = record(program, &size);
	CHECK_STATUS(HR_OK, hr__capture_open_memory(bytes, size, &capture));
	free(bytes);
	CHECK_STR(capture_wrong(capture), NULL);
	return capture;
}

/* ---- matching ---- */

static void test_events_become_allocations_ops_steps_and_moves(void)
{
	hr__capture *c = capture_of(emit_program);
	CHECK_EQ(c->allocation_count, 1 + 3 * 5);
	CHECK_EQ(c->change_count, 1 + 3 * 9);
	CHECK_EQ(c->op_count, 12);
	CHECK_EQ(c->use_count, 24);
	CHECK_EQ(c->step_count, 3);
	CHECK_EQ(c->move_count, 10);
	CHECK_EQ(c->refusal_count, 3);
	CHECK_EQ(c->device_count, 2);
	CHECK_EQ(c->allocator_count, 2);
	CHECK_EQ(c->skipped, 0);
	CHECK(c->complete);
	CHECK_EQ(c->devices[0].peak_bytes, 4096 + 10240);
	CHECK_EQ(c->devices[0].end_bytes, 4096);
	CHECK_EQ(c->devices[1].end_bytes, 3 * 512);
	CHECK_STR(c->devices[0].name, "GPU:0");
	CHECK_STR(c->allocators[0].kind, "bfc");
	CHECK_EQ(c->ops[3].device_ns, 4000);
	CHECK_EQ(c->ops[4].step, 1);
	CHECK_EQ(c->uses[0].op, 0);
	CHECK_EQ(c->uses[1].allocation, 1);
	CHECK(c->uses[1].writes && !c->uses[0].writes);
	CHECK_EQ(c->steps[2].number, 3);
	CHECK_EQ(c->steps[0].last_change - c->steps[0].first_change, 9);
	CHECK_EQ(c->regions[0].end_ns == HR__NEVER, 0);
	CHECK_EQ(c->region_count, 3); /* a region that was split continues as two */
	CHECK_EQ(c->regions[1].bytes + c->regions[2].bytes, (1 << 20) - 65536);
	hr__capture_close(c);
}

static void emit_odd_ones(void)
{
	emit(HR__EVENT_FREE, 7, 0x1000, 0, "");             /* without a match */
	emit(HR__EVENT_READ, 7, 0x1000, 0, "");             /* without a match */
	emit(HR__EVENT_OP_END, 0, 0, 0, "never_began");     /* without a match */
	emit(HR__EVENT_STEP_END, 0, 0, 9, "");              /* without a match */
	emit(HR__EVENT_UNMAP, 7, 0x1000, 4096, "");         /* without a match: stitching can cause that */
	emit(HR__EVENT_ALLOC, 7, 0x2000, 100, "a");
	emit(HR__EVENT_ALLOC, 7, 0x2000, 300, "b");         /* replaces the former block */
	emit(HR__EVENT_ALLOC, 8, 0x2000, 50, "elsewhere");  /* the same address of another allocator is another block */
	emit(HR__EVENT_ALLOC, 7, 0x3000, UINT64_MAX, "huge");
	emit(HR__EVENT_STEP, 0, 0, 1, "");
	emit(HR__EVENT_STEP, 0, 0, 2, "");                  /* ends the previous one */
	emit(HR__EVENT_OP_BEGIN, 0, 0, 0, "outer");
	emit(HR__EVENT_OP_BEGIN, 0, 0, 0, "inner");         /* ends with the outer one */
	emit(HR__EVENT_OP_END, 0, 0, 5, "outer");
	emit(HR__EVENT_OP_BEGIN, 0, 0, 0, "never_ends");
}

static void test_events_that_make_no_sense_are_skipped_and_counted(void)
{
	hr__capture *c = capture_of(emit_odd_ones);
	CHECK_EQ(c->skipped, 6);
	CHECK_EQ(c->allocation_count, 3);
	CHECK_EQ(c->allocations[0].end_ns, c->allocations[1].begin_ns);
	CHECK_EQ(c->devices[0].end_bytes, 300);
	CHECK_EQ(c->devices[1].end_bytes, 50);
	CHECK_EQ(c->step_count, 2);
	CHECK_EQ(c->steps[0].end_ns, c->steps[1].begin_ns);
	CHECK_EQ(c->steps[1].end_ns, HR__NEVER);
	CHECK_EQ(c->op_count, 3);
	CHECK_EQ(c->ops[1].end_ns, c->ops[0].end_ns);
	CHECK_EQ(c->ops[0].device_ns, 5);
	CHECK_EQ(c->ops[2].end_ns, HR__NEVER);
	for (uint32_t i = 0; i < 4 * VIEW_NAMES; i++) CHECK(writes_view(c, i, i & 1 ? HR_PROFILE_JSON : HR_PROFILE_TEXT));
	hr__capture_close(c);
}

/* ---- recordings started in a running program ---- */

static void emit_begun_in_the_middle(void)
{
	emit(HR__EVENT_ALLOC, 7, 0x2000, 100, "told_twice");
	emit(HR__EVENT_FREE, 7, 0x1000, 0, "");
	emit(HR__EVENT_READ, 7, 0x3000, 0, "");
	emit(HR__EVENT_ALLOC, 7, 0x3000, 300, "there_already");
	emit(HR__EVENT_ALLOC, 7, 0x2000, 100, "told_twice");
	emit(HR__EVENT_MARK, 0, 0, 5, "the program's");
	hr__trace_event(&(hr__event){ .kind = HR__EVENT_MARK });
	emit(HR__EVENT_ALLOC, 7, 0x3000, 300, "there_already"); /* its thread was late */
	emit(HR__EVENT_OP_END, 0, 0, 0, "began_before");
	emit(HR__EVENT_STEP_END, 0, 0, 9, "");
}

static void emit_begun_and_wrong(void)
{
	emit_begun_in_the_middle();
	emit(HR__EVENT_FREE, 7, 0x1000, 0, "");               /* no such block */
	emit(HR__EVENT_ALLOC, 7, 0x4000, 100, "in_its_place");
	emit(HR__EVENT_ALLOC, 7, 0x4000, 100, "in_its_place"); /* the free was lost */
}

static void test_what_began_before_the_recording_makes_sense(void)
{
	hr__capture *c = capture_of(emit_begun_in_the_middle);
	CHECK_EQ(c->skipped, 0);
	CHECK_EQ(c->allocation_count, 2);
	CHECK_EQ(c->devices[0].end_bytes, 400);
	CHECK_EQ(c->devices[0].peak_bytes, 400);
	hr__capture_close(c);
	c = capture_of(emit_begun_and_wrong);
	CHECK_EQ(c->skipped, 2);
	CHECK_EQ(c->allocation_count, 4);
	CHECK_EQ(c->devices[0].end_bytes, 500);
	hr__capture_close(c);
}

enum { RECORDER, CHURNERS = 4 };

typedef struct churn {
	hr_allocator allocator;
	uint64_t seed;
	hr__atomic_u32 stop;
} churn;

static void churn_blocks(churn *self, uint64_t random)
{
	void *blocks[128] = { NULL };
	while (!hr__load_relaxed(&self->stop)) {
		size_t k = hr_rand_below(&random, 128);
		if (blocks[k]) {
			CHECK_STATUS(HR_OK, hr_free(self->allocator, blocks[k], HR_STREAM_DEFAULT));
			blocks[k] = NULL;
		} else {
			/* Most from the thread's cache, some from the arena. */
			size_t most = hr_rand_below(&random, 4) ? 8000 : 200000;
			CHECK_STATUS(HR_OK, hr_alloc_bytes(self->allocator, 1 + hr_rand_below(&random, most), &blocks[k]));
		}
	}
}

/* One thread starts the recording and then stops the others, which allocate and free. */
static void churn_or_record(void *argument, unsigned index)
{
	churn *self = argument;
	if (index != RECORDER) {
		churn_blocks(self, self->seed + index);
		return;
	}
	nanosleep(&(struct timespec){ .tv_nsec = 5000000 }, NULL);
	CHECK_STATUS(HR_OK, hr_trace_start(trace_path));
	nanosleep(&(struct timespec){ .tv_nsec = 5000000 }, NULL);
	hr__store_relaxed(&self->stop, 1);
}

/* The bytes live at the end equal those of the statistics. */
static void record_churn(hr_allocator allocator, hr_device device, uint64_t round)
{
	churn work = { .allocator = allocator, .seed = hr_test_seed() * 1000 + round * CHURNERS };
	hr_stats stats;
	hr__capture *c = NULL;
	make_path();
	hr_test_threads(1 + CHURNERS, churn_or_record, &work);
	CHECK_STATUS(HR_OK, hr_trace_stop());
	hr_stats_init(&stats);
	CHECK_STATUS(HR_OK, hr_device_get_stats(device, &stats));
	CHECK_STATUS(HR_OK, hr__capture_open(trace_path, NULL, NULL, &c));
	CHECK_STR(capture_wrong(c), NULL);
	CHECK_EQ(c->skipped, 0);
	CHECK_EQ(c->device_count, 1);
	CHECK_EQ(c->devices[0].end_bytes, (uint64_t)stats.bytes_in_use);
	hr__capture_close(c);
	unlink(trace_path);
}

static void test_a_recording_can_begin_while_threads_allocate(void)
{
	hr_device device;
	hr_allocator allocator;
	setenv("HEADROOM_CUDA", "0", 1);
	CHECK_STATUS(HR_OK, hr_device_find("CPU:0", &device));
	CHECK_STATUS(HR_OK, hr_allocator_create(device, NULL, &allocator));
	for (uint64_t round = 0; round < hr_test_scaled(20); round++) record_churn(allocator, device, round);
	CHECK_STATUS(HR_OK, hr_allocator_destroy_all(allocator));
	CHECK_STATUS(HR_OK, hr_shutdown());
}

/* ---- steps of several allocators ---- */

static void emit_step(hr__event_kind kind, uint64_t number, const char *whose)
{
	hr__trace_event(&(hr__event){ .kind = kind, .bytes = number, .tag = hr_name_intern(whose) });
}

/* Like a program that marks its steps on each of two allocators. */
static void emit_nested_steps(const char *a, const char *b, uint64_t ahead)
{
	for (uint64_t step = 1; step <= 3; step++) {
		emit_step(HR__EVENT_STEP, step, a);
		emit_step(HR__EVENT_STEP, step + ahead, b);
		emit(HR__EVENT_ALLOC, 7, step << 20, 100, "a");
		emit(HR__EVENT_ALLOC, 8, step << 20, 100, "b");
		emit_step(HR__EVENT_STEP_END, step + ahead, b);
		emit(HR__EVENT_ALLOC, 7, (step << 20) + 4096, 100, "late");
		emit_step(HR__EVENT_STEP_END, step, a);
		emit(HR__EVENT_ALLOC, 7, (step << 20) + 8192, 100, "between");
	}
}

static void emit_steps_without_tags(void)
{
	emit_nested_steps("", "", 0);
}

static void emit_steps_with_tags(void)
{
	emit_nested_steps("a", "b", 0);
}

static void emit_steps_with_other_numbers(void)
{
	emit_nested_steps("a", "b", 1);
}

static void test_steps_of_two_allocators_are_one(void)
{
	void (*const programs[])(void) = { emit_steps_without_tags, emit_steps_with_tags, emit_steps_with_other_numbers };
	for (int i = 0; i < 3; i++) {
		hr__capture *c = capture_of(programs[i]);
		CHECK_EQ(c->skipped, 0);
		CHECK_EQ(c->step_count, 3);
		for (uint32_t step = 0; step < 3; step++) {
			CHECK_EQ(c->steps[step].number, step + 1);
			CHECK_EQ(c->steps[step].last_change - c->steps[step].first_change, 3);
		}
		hr__capture_close(c);
	}
}

/* Each allocator begins its next step before the other has ended: steps change where the first allocator begins one. */
static void emit_pipeline(void)
{
	emit_step(HR__EVENT_STEP, 1, "a");
	for (uint64_t step = 1; step <= 3; step++) {
		emit_step(HR__EVENT_STEP, step, "b");
		emit(HR__EVENT_ALLOC, 7, step << 20, 100, "a");
		emit_step(HR__EVENT_STEP_END, step, "a");
		if (step < 3) emit_step(HR__EVENT_STEP, step + 1, "a");
		emit_step(HR__EVENT_STEP_END, step, "b");
	}
	emit_step(HR__EVENT_STEP_END, 9, "a"); /* without a match */
}

static void test_overlapping_steps_follow_each_other(void)
{
	hr__capture *c = capture_of(emit_pipeline);
	CHECK_EQ(c->skipped, 1);
	CHECK_EQ(c->step_count, 3);
	for (uint32_t step = 0; step < 3; step++) {
		CHECK_EQ(c->steps[step].number, step + 1);
		CHECK_EQ(c->steps[step].last_change - c->steps[step].first_change, 1);
		CHECK_NE(c->steps[step].end_ns, HR__NEVER);
	}
	hr__capture_close(c);
}

/* One allocator's last step is never ended; later steps of another allocator still count. */
static void emit_stale_step(void)
{
	emit_step(HR__EVENT_STEP, 1, "a");
	for (uint64_t step = 1; step <= 3; step++) {
		emit_step(HR__EVENT_STEP, step, "b");
		emit(HR__EVENT_ALLOC, 7, step << 20, 100, "a");
		emit_step(HR__EVENT_STEP_END, step, "b");
	}
	emit_step(HR__EVENT_STEP, 1, "a"); /* replaces the first */
}

static void test_a_step_that_is_never_ended_takes_no_others_in(void)
{
	hr__capture *c = capture_of(emit_stale_step);
	CHECK_EQ(c->skipped, 0);
	CHECK_EQ(c->step_count, 4);
	for (uint32_t step = 0; step < 3; step++) {
		CHECK_EQ(c->steps[step].number, step + 1);
		CHECK_EQ(c->steps[step].last_change - c->steps[step].first_change, 1);
	}
	hr__capture_close(c);
}

/* ---- things that the file does not define ---- */

static void emit_unknown_allocator(void)
{
	emit(HR__EVENT_ALLOC, 99, 0x1000, 64, "a");
}

static void test_what_the_file_does_not_define_has_a_place_of_its_own(void)
{
	hr__capture *c = capture_of(emit_unknown_allocator);
	CHECK_EQ(c->allocator_count, 3);
	CHECK_STR(c->devices[2].name, "(unknown)");
	CHECK_EQ(c->devices[2].end_bytes, 64);
	hr__capture_close(c);
}

static void count_live(void *context, uint32_t allocation)
{
	(void)allocation;
	++*(uint32_t *)context;
}

/* Two allocators of a device, first in turn, then both at once; a third has nothing. */
static void emit_limited(void)
{
	const struct timespec while_passes = { .tv_nsec = 2000 };
	hr__trace_define_limit(99, 5); /* of no allocator */
	hr__trace_define_allocator(9, "second", "bfc", 0);
	hr__trace_define_allocator(10, "third", "bfc", 0);
	hr__trace_define_limit(7, 1 << 20);
	hr__trace_define_limit(9, 2 << 20);
	hr__trace_define_limit(10, 4 << 20);
	for (int i = 0; i < 4; i++) {
		nanosleep(&while_passes, NULL);
		if (i == 0) emit(HR__EVENT_ALLOC, 7, 4096, 4096, "a");
		if (i == 1) emit(HR__EVENT_ALLOC, 9, 8192, 4096, "b");
		if (i == 2) emit(HR__EVENT_FREE, 7, 4096, 0, "");
		if (i == 3) emit(HR__EVENT_ALLOC, 9, 12288, 4096, "c");
	}
}

static void test_the_verdict_names_limits_that_exist(void)
{
	hr__capture *c = capture_of(emit_limited);
	const hr__allocation *a = c->allocations;
	CHECK_EQ(hr__capture_limit(c, 0, 0), 1 << 30);
	CHECK_EQ(hr__capture_limit(c, 0, a[0].begin_ns), 1 << 20);
	CHECK_EQ(hr__capture_limit(c, 0, a[1].begin_ns), 3 << 20);
	CHECK_EQ(hr__capture_limit(c, 0, a[0].end_ns), 3 << 20);
	CHECK_EQ(hr__capture_limit(c, 0, a[0].end_ns + 1), 2 << 20);
	CHECK_EQ(hr__capture_limit(c, 0, c->end_ns), 2 << 20);
	CHECK_EQ(hr__capture_limit(c, 1, c->end_ns), 1 << 30);
	c->allocators[2].limit_bytes = 0; /* as in a file without limits */
	CHECK_EQ(hr__capture_limit(c, 0, c->end_ns), 1 << 30);
	c->allocators[2].limit_bytes = UINT64_MAX;
	CHECK_EQ(hr__capture_limit(c, 0, a[1].begin_ns), 1 << 30);
	hr__capture_close(c);
}

static void test_live_is_what_is_there_after_a_change(void)
{
	hr__capture *c = capture_of(emit_program);
	for (uint32_t change = 0; change < c->change_count; change++) {
		uint32_t live = 0, expected = 0;
		for (uint32_t i = 0; i <= change; i++) expected = c->changes[i].frees ? expected - 1 : expected + 1;
		CHECK_STATUS(HR_OK, hr__capture_live(c, change, HR__NONE, count_live, &live));
		CHECK_EQ(live, expected);
	}
	uint32_t live = 0;
	CHECK_STATUS(HR_OK, hr__capture_live(c, HR__NONE, 1, count_live, &live));
	CHECK_EQ(live, 3);
	hr__capture_close(c);
}

/* Not a test by itself: with HR_CAPTURE_SEEDS=fuzz/corpus/capture it writes inputs for fuzz_capture, one for each view. */
static void test_seeds_for_the_fuzzer_are_valid_traces(void)
{
	const char *folder = getenv("HR_CAPTURE_SEEDS");
	size_t size;
	uint8_t *bytes = record(emit_program, &size);
	hr__capture *capture = NULL;
	CHECK_STATUS(HR_OK, hr__capture_open_memory(bytes, size, &capture));
	hr__capture_close(capture);
	/* A small header: the fuzzer's repair makes it 128 bytes. */
	for (size_t i = 0; folder && i < VIEW_NAMES; i++) {
		char name[256];
		snprintf(name, sizeof name, "%s/%s", folder, view_names[i]);
		FILE *file = fopen(name, "wb");
		CHECK(file != NULL);
		fputc(1, file);
		fputc((int)i, file);
		fwrite(bytes, 1, 128, file);
		fwrite(bytes + 4096, 1, size - 4096, file);
		CHECK_EQ(fclose(file), 0);
	}
	free(bytes);
}

/* ---- arbitrary bytes ---- */

/* Opens the bytes; the capture is valid, or the message names the position of the error. */
static void try_bytes(const uint8_t *bytes, size_t size, uint32_t which)
{
	hr__capture *capture = NULL;
	hr_status status = hr__capture_open_memory(bytes, size, &capture);
	if (status) {
		/* HR_UNSUPPORTED: a changed first byte makes it JSON, a pickle or gzip, and the library for that is missing. */
		CHECK(status == HR_BAD_FORMAT || status == HR_TRUNCATED || status == HR_TOO_NEW || status == HR_UNSUPPORTED);
		CHECK(*hr_last_message() != 0);
		return;
	}
	CHECK_STR(capture_wrong(capture), NULL);
	CHECK(writes_view(capture, which, which & 1 ? HR_PROFILE_JSON : HR_PROFILE_TEXT));
	hr__capture_close(capture);
}

static void test_a_trace_cut_at_any_byte_is_read_as_far_as_it_goes(void)
{
	size_t size;
	uint8_t *bytes = record(emit_program, &size);
	for (size_t length = 0; length <= size; length++) {
		/* Exactly as long as the file, so that a sanitizer detects reads past its end. */
		uint8_t *cut = malloc(length ? length : 1);
		memcpy(cut, bytes, length);
		hr__capture *capture = NULL;
		hr_status status = hr__capture_open_memory(cut, length, &capture);
		CHECK_EQ(status == HR_OK, length >= 4096);
		if (!status) CHECK_EQ(capture->complete, length == size);
		hr__capture_close(capture);
		try_bytes(cut, length, (uint32_t)length);
		free(cut);
	}
	free(bytes);
}

static void test_flipped_bytes_give_an_answer_or_an_error(void)
{
	uint64_t state = hr_test_seed(), rounds = hr_test_scaled(10000);
	if (hr_test_scale() > 1) rounds = hr_test_scaled(rounds); /* a million under `make soak` */
	size_t size;
	uint8_t *bytes = record(emit_program, &size), *changed = malloc(size);
	for (uint64_t round = 0; round < rounds; round++) {
		memcpy(changed, bytes, size);
		uint64_t flips = 1 + hr_rand_below(&state, 4);
		for (uint64_t i = 0; i < flips; i++) {
			/* Half of the changes are after the header, most of which is unused. */
			size_t at = hr_rand_below(&state, 2) ? hr_rand_below(&state, 128) : 4096 + hr_rand_below(&state, size - 4096);
			changed[at] = (uint8_t)hr_rand(&state);
		}
		try_bytes(changed, size, (uint32_t)hr_rand(&state));
		if (round % 1024 == 0) hr__names_reset_for_test();
	}
	free(changed);
	free(bytes);
}

static void test_a_file_that_is_not_a_trace_is_refused(void)
{
	hr__capture *capture = NULL;
	size_t size;
	CHECK_STATUS(HR_IO, hr__capture_open("/nowhere/at/all.hrt", NULL, NULL, &capture));
	CHECK_CONTAINS(hr_last_message(), "/nowhere/at/all.hrt");
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr__capture_open(NULL, NULL, NULL, &capture));
	CHECK_STATUS(HR_BAD_FORMAT, hr__capture_open_memory("", 0, &capture));
	char text[4096] = "this is no trace, but a letter";
	CHECK_STATUS(HR_BAD_FORMAT, hr__capture_open_memory(text, sizeof text, &capture));
	CHECK_CONTAINS(hr_last_message(), "line 1");
	uint8_t *bytes = record(emit_program, &size);
	bytes[8] = HR__TRACE_MAJOR + 1;
	CHECK_STATUS(HR_TOO_NEW, hr__capture_open_memory(bytes, size, &capture));
	CHECK_CONTAINS(hr_last_message(), "version 2.3");
	free(bytes);
	CHECK(capture == NULL);
}

/* ---- time and memory ---- */

static void emit_many(void)
{
	static uint64_t live[4096];
	uint64_t state = 1, next = 1 << 20;
	uint64_t events = hr_test_scaled(1000000);
	for (uint64_t i = 0; i < events; i++) {
		size_t k = hr_rand_below(&state, 4096);
		if (live[k]) {
			hr__trace_free(7, live[k], 0);
			live[k] = 0;
			continue;
		}
		hr_request request = HR_REQUEST(256 * (1 + hr_rand_below(&state, 64)));
		live[k] = next += 65536;
		hr__trace_alloc(7, &request, live[k], request.bytes);
	}
}

static void test_memory_follows_the_events(void)
{
	struct rusage before, after;
	size_t size;
	make_path();
	CHECK_STATUS(HR_OK, hr__trace_open(trace_path));
	define();
	emit_many();
	CHECK_STATUS(HR_OK, hr__trace_close());
	hr__capture *capture = NULL;
	getrusage(RUSAGE_SELF, &before);
	double start = hr_test_now();
	CHECK_STATUS(HR_OK, hr__capture_open(trace_path, NULL, NULL, &capture));
	getrusage(RUSAGE_SELF, &after);
	double seconds = (double)(after.ru_utime.tv_sec - before.ru_utime.tv_sec) + (double)(after.ru_utime.tv_usec - before.ru_utime.tv_usec) / 1e6;
	size = (size_t)(after.ru_maxrss - before.ru_maxrss) * 1024;
	printf("# %u changes: %.2f s of processor time, %.2f s in all, %.0f bytes a change\n", capture->change_count, seconds, hr_test_now() - start,
	       (double)size / capture->change_count);
	if (!HR_TEST_SANITIZED) CHECK_LT(size, 50.0 * capture->change_count + (8 << 20)); /* 500 MB for 10 million */
	CHECK_STR(capture_wrong(capture), NULL);
	hr__capture_close(capture);
	unlink(trace_path);
}

TEST_MAIN(T(test_events_become_allocations_ops_steps_and_moves), T(test_events_that_make_no_sense_are_skipped_and_counted),
          T(test_what_began_before_the_recording_makes_sense), T_WITHIN(test_a_recording_can_begin_while_threads_allocate, 240),
          T(test_steps_of_two_allocators_are_one), T(test_overlapping_steps_follow_each_other), T(test_a_step_that_is_never_ended_takes_no_others_in),
          T(test_what_the_file_does_not_define_has_a_place_of_its_own), T(test_the_verdict_names_limits_that_exist), T(test_live_is_what_is_there_after_a_change), T(test_seeds_for_the_fuzzer_are_valid_traces),
          T_WITHIN(test_a_trace_cut_at_any_byte_is_read_as_far_as_it_goes, 240), T_WITHIN(test_flipped_bytes_give_an_answer_or_an_error, 240),
          T(test_a_file_that_is_not_a_trace_is_refused), T_WITHIN(test_memory_follows_the_events, 240))
