/* recording.c - the cost of recording: 10 million events, their size on disk, packed and unpacked; a training step; publishing
 * statistics to `headroom top`.
 *
 * The loop is a training step as an allocator sees it: blocks of many sizes with ops, scopes and shapes, freed in another order.
 * The file is in $TMPDIR or /tmp. */
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../examples/models.h"
#include "bench.h"
#include "headroom_runtime.h"
#include "headroom_oom.h"
#include "headroom_record.h"
#include "core/record/compress.h"
#include "core/record/publish.h"

#define EVENTS 10000000u
#define PIECES 100u /* the fastest piece gives the undisturbed cost of an event */
#define LIVE 64u
#define ROUNDS 5
#define STEPS 30

static hr_name ops[16];
static hr_shape shapes[32];

static void make_names(void)
{
	for (int i = 0; i < 16; i++) {
		char text[16];
		snprintf(text, sizeof text, "op%d", i);
		ops[i] = hr_name_intern(text);
	}
	for (int i = 0; i < 32; i++) {
		int64_t dims[2] = { i + 1, 1 << (i % 12) };
		shapes[i] = hr_shape_intern(dims, 2);
	}
}

/* [events] / 2 allocations and as many frees. Returns ns. */
static double run(hr_allocator allocator, uint32_t events)
{
	void *blocks[LIVE] = { NULL };
	uint32_t random = 1;
	double start = bench_now_ns();
	for (uint32_t i = 0; i < events / 2; i++) {
		random = random * 1664525u + 1013904223u;
		uint32_t slot = random >> 26;
		hr_request request = HR_REQUEST((size_t)256 << (random >> 16 & 7));
		request.op = ops[random >> 12 & 15];
		request.shape = shapes[random >> 8 & 31];
		request.dtype = HR_DTYPE_FLOAT32;
		if (blocks[slot]) bench_must(hr_free(allocator, blocks[slot], HR_STREAM_DEFAULT));
		bench_must(hr_alloc(allocator, &request, &blocks[slot]));
	}
	double took = bench_now_ns() - start;
	for (uint32_t i = 0; i < LIVE; i++)
		if (blocks[i]) bench_must(hr_free(allocator, blocks[i], HR_STREAM_DEFAULT));
	return took;
}

/* Runs all events and returns their time. Lowers *least to the time per event of the fastest piece. */
static double run_all(hr_allocator allocator, double *least)
{
	double sum = 0;
	for (uint32_t i = 0; i < PIECES; i++) {
		double took = run(allocator, EVENTS / PIECES);
		*least = bench_least(*least, took / (EVENTS / PIECES));
		sum += took;
	}
	return sum;
}

static double size_of(const char *path)
{
	struct stat facts;
	return stat(path, &facts) == 0 ? (double)facts.st_size : 0;
}

static void make_path(char *out, size_t capacity)
{
	const char *folder = getenv("TMPDIR");
	snprintf(out, capacity, "%s/headroom-bench-%d.hrt", folder ? folder : "/tmp", (int)getpid());
}

static void recorded(hr_allocator allocator, const char *path)
{
	char packed[520];
	double off = 1e18, on = 1e18, off_each = 1e18, on_each = 1e18;
	snprintf(packed, sizeof packed, "%s" HR__PACKED_SUFFIX, path);
	for (int round = 0; round < 2; round++) {
		unlink(path);
		off = bench_least(off, run_all(allocator, &off_each));
		bench_must(hr_trace_start(path));
		on = bench_least(on, run_all(allocator, &on_each));
		bench_must(hr_trace_stop());
	}
	double bytes = size_of(path), start = bench_now_ns();
	printf("%u events: %.2f s, recorded %.2f s; at best %.1f ns per event, and %.1f more when recorded; %.1f bytes", EVENTS, off / 1e9, on / 1e9,
	       off_each, on_each - off_each, bytes / EVENTS);
	if (hr__pack(path) == HR_OK)
		printf(", %.1f packed with zstd, which takes %.2f s", size_of(packed) / EVENTS, (bench_now_ns() - start) / 1e9);
	printf("\n");
	unlink(path);
	unlink(packed);
}

/* The same with call stacks: captured, and set by the program as a plug-in does. */
static void with_stacks(hr_allocator allocator, const char *path)
{
	enum { PLAIN, SET, CAPTURED, WAYS };
	double each[WAYS] = { 1e18, 1e18, 1e18 };
	hr_frame frame = { .function = ops[0], .line = 1 };
	hr_stack stack = hr_stack_intern(&frame, 1);
	for (int round = 0; round < 3 * ROUNDS; round++) {
		int way = round % WAYS;
		unlink(path);
		if (way == CAPTURED) setenv("HEADROOM_STACKS", "16", 1);
		bench_must(hr_trace_start(path));
		unsetenv("HEADROOM_STACKS");
		hr_stack_set(way == SET ? stack : HR_STACK_NONE);
		for (int i = 0; i < 10; i++) each[way] = bench_least(each[way], run(allocator, 20000) / 10000);
		hr_stack_set(HR_STACK_NONE);
		bench_must(hr_trace_stop());
	}
	printf("an allocation with its free, recorded: at best %.1f ns; with a stack that was set %+.1f ns, with one that is captured, up to 16 frames deep, "
	       "%+.1f ns\n",
	       each[PLAIN], each[SET] - each[PLAIN], each[CAPTURED] - each[PLAIN]);
	unlink(path);
}

/* What the publishing thread does periodically: reads the statistics of every device. Returns ns. */
static double look(void)
{
	double start = bench_now_ns();
	for (uint32_t i = 0; i < hr_device_count(); i++) {
		hr_device device;
		hr_stats stats;
		hr_stats_init(&stats);
		bench_must(hr_device_at(i, &device));
		bench_must(hr_device_get_stats(device, &stats));
	}
	return bench_now_ns() - start;
}

/* The loop with and without the publishing thread, alternating; the cost of reading the statistics; and the cost for a program that
 * ends at once. */
static void shown(hr_allocator allocator)
{
	double times[2] = { 1e18, 1e18 }, once = 1e18, both = 1e18;
	for (int round = 0; round < 2 * ROUNDS; round++) {
		if (round % 2) bench_must(hr__publish_start());
		run_all(allocator, &times[round % 2]);
		hr__publish_stop();
	}
	for (int i = 0; i < 100; i++) {
		double start = bench_now_ns();
		bench_must(hr__publish_start());
		hr__publish_stop();
		both = bench_least(both, bench_now_ns() - start);
	}
	for (int i = 0; i < 100; i++) once = bench_least(once, look());
	printf("shown to headroom top: at best %.1f ns per event, %+.1f when shown; a look takes %.1f us, 4 times a second; starting and ending it "
	       "%.0f us\n",
	       times[0], times[1] - times[0], once / 1e3, both / 1e3);
}

/* ---- a training step ---- */

static const struct model gpt = MODEL_GPT;
static hr_optimizer optimizer;

static hr_status step(void *context, const hr_value *ins, size_t in_count, hr_value *outs, size_t out_count)
{
	(void)context;
	(void)in_count;
	(void)out_count;
	outs[0] = model_train(&gpt, ins[0], ins[1], &optimizer, false);
	return outs[0].id ? HR_OK : hr_last_status();
}

static double train_once(hr_function function, const hr_value *data)
{
	hr_value out;
	float loss;
	double start = bench_now_ns();
	bench_must(hr_function_call(function, data, 2, &out, 1));
	bench_must(hr_value_fetch(out, &loss, sizeof loss));
	return bench_now_ns() - start;
}

/* Steps with and without a recording, alternating. */
static void trained(const char *path)
{
	hr_session_options options;
	hr_session session;
	hr_function function;
	double times[2] = { 1e18, 1e18 };
	hr_session_options_init(&options);
	options.device = "CPU:0";
	bench_must(hr_session_create(&options, &session));
	bench_must(hr_session_enter(session));
	hr_optimizer_init(&optimizer, HR_ADAM);
	bench_must(hr_function_create("step", step, NULL, &function));
	hr_value data[] = { hr_value_keep(gpt.inputs(&gpt, 0)), hr_value_keep(gpt.labels(&gpt, 0)) };
	train_once(function, data);
	for (int i = 0; i < 2 * STEPS; i++) {
		if (i % 2) bench_must(hr_trace_start(path));
		times[i % 2] = bench_least(times[i % 2], train_once(function, data));
		if (i % 2) bench_must(hr_trace_stop());
		unlink(path);
	}
	printf("a step of training a small GPT on the CPU: %.2f ms, recorded %.2f ms, %+.1f%%\n", times[0] / 1e6, times[1] / 1e6,
	       100 * (times[1] / times[0] - 1));
	hr_value_release(data[0]);
	hr_value_release(data[1]);
	bench_must(hr_function_destroy(function));
	bench_must(hr_session_leave());
	bench_must(hr_session_destroy(session));
}

int main(void)
{
	char path[512];
	make_path(path, sizeof path);
	hr_allocator allocator = bench_allocator(2 << 20, 0, true);
	make_names();
	run(allocator, EVENTS / 10);
	recorded(allocator, path);
	with_stacks(allocator, path);
	shown(allocator);
	trained(path);
	bench_must(hr_shutdown());
	return 0;
}
