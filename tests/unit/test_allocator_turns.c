/* test_allocator_turns.c - two threads that take turns need as much memory as one thread. */
#include "fixture.h"
#include "../../bench/turns.h"
#include "support_stats.h"
#include "test.h"

#define PAGE (UINT64_C(2) << 20)

static hr_allocator allocator_of(uint64_t pages)
{
	hr_device device = fixture_simulated(pages * PAGE, PAGE);
	return fixture_allocator(device, 0);
}

static struct {
	hr_allocator allocator;
	void *blocks[4];
	void *whole;
} training;

static void *backward(void *unused)
{
	(void)unused;
	for (int i = 0; i < 4; i++) CHECK_STATUS(HR_OK, hr_free(training.allocator, training.blocks[i], HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_alloc_bytes(training.allocator, 4 * PAGE, &training.whole));
	return NULL;
}

/* Four freed blocks of one page each are reused as one block of four pages, on whichever thread: only four pages are reserved. */
static void test_what_one_thread_frees_is_the_next_ones_before_anything_grows(void)
{
	training.allocator = allocator_of(4096);
	for (int step = 0; step < 3; step++) {
		pthread_t thread;
		for (int i = 0; i < 4; i++) CHECK_STATUS(HR_OK, hr_alloc_bytes(training.allocator, PAGE, &training.blocks[i]));
		CHECK_EQ(pthread_create(&thread, NULL, backward, NULL), 0);
		pthread_join(thread, NULL);
		CHECK_STATUS(HR_OK, hr_free(training.allocator, training.whole, HR_STREAM_DEFAULT));
	}
	hr_stats stats = checked_stats(training.allocator);
	CHECK_EQ(stats.peak_bytes_reserved, 4 * (int64_t)PAGE);
	CHECK_EQ(stats.source_grow, 4);
	CHECK_STATUS(HR_OK, hr_allocator_check(training.allocator));
	CHECK_STATUS(HR_OK, hr_shutdown());
}

/* Peak of reserved bytes of a program on one thread, or on two threads that take turns. */
static double reserved_by(const hr__program *program, bool takes_turns)
{
	hr_allocator allocator = allocator_of(program->peak_bytes / PAGE * 4);
	struct turns alone = { .program = program, .allocator = allocator, .slots = calloc(program->slots + 1, sizeof(void *)) };
	CHECK_STATUS(HR_OK, takes_turns ? turns_replay(program, allocator) : turns_run(&alone, 0, program->count));
	free(alone.slots);
	hr_stats stats = checked_stats(allocator);
	CHECK_LE((int64_t)program->peak_bytes, stats.peak_bytes_in_use);
	CHECK_STATUS(HR_OK, hr_shutdown());
	return (double)stats.peak_bytes_reserved / (double)program->peak_bytes;
}

static void check_turns(const char *path)
{
	hr__program program;
	hr_status status = hr__program_read(path, HR__FACTS_DEVICE_MOST, NULL, &program);
	if (status == HR_UNSUPPORTED) hr_test_skip("the command was built without zlib");
	CHECK_STATUS(HR_OK, status);
	double one = reserved_by(&program, false), two = reserved_by(&program, true);
	printf("# %s: %.4f of the peak on one thread, %.4f on two that take turns\n", path, one, two);
	CHECK(two <= one + 0.01);
	hr__program_free(&program);
}

static void test_recorded_programs_take_as_much_memory_in_turns(void)
{
	check_turns("traces/resnet.csv.gz");
	check_turns("traces/gpt2.csv.gz");
	check_turns("traces/gpt2var.csv.gz");
	check_turns("traces/serve.csv.gz");
}

TEST_MAIN(T(test_what_one_thread_frees_is_the_next_ones_before_anything_grows),
          T_WITHIN(test_recorded_programs_take_as_much_memory_in_turns, 120))
