/* allocators.c - the cost of several allocators on one device: the same work with allocators on one device and on separate devices,
 * in one run.
 *
 *   idle         one thread; a second allocator on the device has one block and is not used
 *   in turns     one thread that alternates between two allocators: on one device, on two devices
 *   per thread   two threads with an allocator each: on one device, on two devices
 *
 * Rounds are short and alternate between the two sides. The figure of each side is its least processor time, of the slower thread
 * if there are two. A ratio above 1 means that sharing a device is slower. */
#include <string.h>

#include "bench.h"
#include "replay/program.h"

#define ROUNDS 60

static hr_allocator alone, shared[2], apart[2]; /* on SIM:0; on SIM:1; on SIM:2 and SIM:3 */

static hr_allocator open_on(const char *name)
{
	hr_device device;
	hr_allocator allocator;
	bench_must(hr_device_find(name, &device));
	bench_must(hr_allocator_create(device, NULL, &allocator));
	return allocator;
}

static void open_all(void)
{
	bench_must(hr_device_set_logical("SIM:0", (uint64_t[]){ UINT64_C(1) << 38, UINT64_C(1) << 38, UINT64_C(1) << 38, UINT64_C(1) << 38 }, 4));
	alone = open_on("SIM:0");
	for (int i = 0; i < 2; i++) shared[i] = open_on("SIM:1");
	apart[0] = open_on("SIM:2");
	apart[1] = open_on("SIM:3");
}

/* ---- work ---- */

struct work {
	size_t bytes;               /* size of pairs; 0 = blocks up to 64 KiB, 64 of them live */
	const hr__program *program; /* if not NULL, a trace instead */
	int operations;
	hr_allocator allocators[2]; /* used alternately, if there are two */
	double ns;                  /* result */
};

static void pairs(const struct work *work)
{
	for (int i = 0; i < work->operations / 2; i++) {
		hr_allocator allocator = work->allocators[work->allocators[1].id ? i & 1 : 0];
		void *block;
		if (hr_alloc_bytes(allocator, work->bytes, &block)) abort();
		hr_free(allocator, block, HR_STREAM_DEFAULT);
	}
}

static void mixed(const struct work *work)
{
	void *live[64] = { 0 };
	uint32_t state = 1;
	for (int i = 0; i < work->operations / 2; i++) {
		hr_allocator allocator = work->allocators[work->allocators[1].id ? i & 1 : 0];
		void **slot = &live[i % 64];
		state = state * 1664525u + 1013904223u;
		if (*slot) hr_free(allocator, *slot, HR_STREAM_DEFAULT);
		if (hr_alloc_bytes(allocator, 1 + (state >> 16), slot)) abort();
	}
	for (int i = 0; i < 64; i++) hr_free(work->allocators[work->allocators[1].id ? i & 1 : 0], live[i], HR_STREAM_DEFAULT);
}

static void trace(const struct work *work)
{
	const hr__program *program = work->program;
	void **slots = calloc(program->slots, sizeof *slots);
	if (!slots) abort();
	for (int left = work->operations; left > 0; left -= (int)program->count) {
		for (size_t i = 0; i < program->count; i++) {
			const hr__program_event *event = &program->events[i];
			hr_allocator allocator = work->allocators[work->allocators[1].id ? event->slot & 1 : 0];
			if (!event->bytes) hr_free(allocator, slots[event->slot], HR_STREAM_DEFAULT);
			else if (hr_alloc_bytes(allocator, event->bytes, &slots[event->slot])) abort();
		}
		for (uint32_t i = 0; i < program->leftover_count; i++) {
			uint32_t slot = program->leftovers[i];
			hr_free(work->allocators[work->allocators[1].id ? slot & 1 : 0], slots[slot], HR_STREAM_DEFAULT);
		}
	}
	free(slots);
}

static double processor_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static void *run(void *argument)
{
	struct work *work = argument;
	double start = processor_ns();
	if (work->program) trace(work);
	else if (work->bytes) pairs(work);
	else mixed(work);
	work->ns = processor_ns() - start;
	return NULL;
}

/* ---- figures ---- */

static double one_thread_ns(struct work work, hr_allocator first, hr_allocator second)
{
	work.allocators[0] = first;
	work.allocators[1] = second;
	run(&work);
	return work.ns;
}

static double two_threads_ns(struct work work, const hr_allocator *allocators)
{
	struct work works[2] = { work, work };
	pthread_t other;
	for (int i = 0; i < 2; i++) works[i].allocators[0] = allocators[i];
	if (pthread_create(&other, NULL, run, &works[1])) abort();
	run(&works[0]);
	pthread_join(other, NULL);
	return works[0].ns > works[1].ns ? works[0].ns : works[1].ns;
}

static void compare(const char *name, struct work work)
{
	double idle[2], turns[2], threads[2];
	const hr_allocator none = { 0 };
	for (int i = 0; i < 2; i++) idle[i] = turns[i] = threads[i] = 1e18;
	for (int i = 0; i < ROUNDS; i++) {
		idle[0] = bench_least(idle[0], one_thread_ns(work, alone, none));
		idle[1] = bench_least(idle[1], one_thread_ns(work, shared[0], none));
		turns[0] = bench_least(turns[0], one_thread_ns(work, apart[0], apart[1]));
		turns[1] = bench_least(turns[1], one_thread_ns(work, shared[0], shared[1]));
		threads[0] = bench_least(threads[0], two_threads_ns(work, apart));
		threads[1] = bench_least(threads[1], two_threads_ns(work, shared));
	}
	printf("%-20s %9.1f %12.2f %12.2f %12.2f\n", name, idle[0] / work.operations, idle[1] / idle[0], turns[1] / turns[0], threads[1] / threads[0]);
	fflush(stdout);
}

int main(void)
{
	static const size_t sizes[] = { 512, 65536, 1 << 20 };
	static const char *const traces[] = { "gpt2", "resnet", "serve" };
	void *kept;
	open_all();
	bench_must(hr_alloc_bytes(shared[1], 4096, &kept));
	printf("time with allocators on one device over time with them apart\n%-20s %9s %12s %12s %12s\n", "", "ns/op", "idle second", "in turns",
	       "per thread");
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		char name[32];
		snprintf(name, sizeof name, "pairs of %zu", sizes[i]);
		compare(name, (struct work){ .bytes = sizes[i], .operations = 60000 });
	}
	compare("mixed up to 64 KiB", (struct work){ .operations = 60000 });
	for (size_t i = 0; i < sizeof traces / sizeof *traces; i++) {
		char path[64];
		hr__program program;
		snprintf(path, sizeof path, "traces/%s.csv.gz", traces[i]);
		bench_must(hr__program_read(path, HR__FACTS_DEVICE_MOST, NULL, &program));
		compare(traces[i], (struct work){ .program = &program, .operations = 30000 });
		hr__program_free(&program);
	}
	bench_must(hr_shutdown());
	return 0;
}
