/* test_recompute_threads.c - several threads use one session, or sessions of one allocator, while another thread drops everything: all
 * contents are those of plain runs. */
#include "fixture.h"
#include "headroom_runtime.h"
#include "support_drop.h"
#include "support_program.h"

#define MIB (UINT64_C(1) << 20)
#define THREADS 3u

static hr_allocator allocator;
static hr_session sessions[THREADS];
static struct program programs[THREADS], plain;
static const char *const scopes[THREADS] = { "first", "second", "third" };
static _Atomic(uint32_t) left;
static uint64_t rounds, dropped;

static void open_sessions(bool shared)
{
	hr_session_options options;
	hr_device device = fixture_emulated(64 * MIB, 64 << 10, 0);
	allocator = fixture_allocator(device, 32 * MIB);
	fixture_lms(allocator, "lru", 0);
	hr_session_options_init(&options);
	options.device = "GPU:0";
	options.allocator = allocator;
	for (uint32_t i = 0; i < THREADS; i++) {
		if (i && shared) sessions[i] = sessions[0];
		else CHECK_STATUS(HR_OK, hr_session_create(&options, &sessions[i]));
	}
}

static void close_sessions(void)
{
	CHECK_STATUS(HR_OK, hr_lms_check(allocator));
	for (uint32_t i = 0; i < THREADS; i++)
		if (!i || sessions[i].id != sessions[0].id) CHECK_STATUS(HR_OK, hr_session_destroy(sessions[i]));
	CHECK_EQ(fixture_stats(allocator).bytes_in_use, 0);
	CHECK_EQ(fixture_lms_stats(allocator).num_recipes, 0);
	CHECK_STATUS(HR_OK, hr_shutdown());
}

static uint64_t seed_of(uint32_t thread)
{
	return hr_test_seed() * 1000 + thread;
}

static void drop_until_done(void)
{
	while (atomic_load(&left)) {
		dropped += drop_all(allocator);
		usleep(200);
	}
}

/* The last thread drops. */
static void work(void *argument, unsigned index)
{
	(void)argument;
	if (index == THREADS) {
		drop_until_done();
		return;
	}
	CHECK_STATUS(HR_OK, hr_session_enter(sessions[index]));
	programs[index].scope = scopes[index];
	run_program(&programs[index], seed_of(index), (uint32_t)rounds);
	CHECK_STATUS(HR_OK, hr_session_leave());
	atomic_fetch_sub(&left, 1);
}

static void run_all(bool shared)
{
	rounds = hr_test_scaled(2000);
	dropped = 0;
	open_sessions(shared);
	atomic_store(&left, THREADS);
	hr_test_threads(THREADS + 1, work, NULL);
	int64_t again = fixture_lms_stats(allocator).num_recomputes;
	for (uint32_t i = 0; i < THREADS; i++) { /* the same program alone */
		CHECK_STATUS(HR_OK, hr_lms_set_recompute(allocator, false));
		CHECK_STATUS(HR_OK, hr_session_enter(sessions[i]));
		plain.scope = i == 0 ? "alone0" : i == 1 ? "alone1" : "alone2";
		run_program(&plain, seed_of(i), (uint32_t)rounds);
		CHECK_STATUS(HR_OK, hr_session_leave());
		CHECK_EQ(programs[i].hash_count, plain.hash_count);
		CHECK_BYTES(programs[i].hashes, plain.hashes, plain.hash_count * sizeof *plain.hashes);
	}
	close_sessions();
	printf("# %llu values dropped, %lld recipes run\n", (unsigned long long)dropped, (long long)again);
	CHECK_GT(dropped, 0);
}

static void test_threads_of_one_session_get_the_contents_of_plain_runs(void)
{
	run_all(true);
}

static void test_sessions_of_one_allocator_get_the_contents_of_plain_runs(void)
{
	run_all(false);
}

/* ---- a variable that one thread updates while others compute from it ---- */

static hr_variable shared_variable;

static void update_or_compute(void *argument, unsigned index)
{
	static float now[THREADS][SIDE * SIDE], later[THREADS][SIDE * SIDE];
	(void)argument;
	if (index == THREADS) {
		drop_until_done();
		return;
	}
	CHECK_STATUS(HR_OK, hr_session_enter(sessions[0]));
	hr_value x = hr_value_keep(normal(index));
	for (uint64_t i = 0; i < rounds; i++) {
		if (!index) {
			CHECK_EQ(hr_assign_add(shared_variable, hr_scale(x, 0.01, 0)).id, HR_DONE.id); /* in place if no other thread has read it */
			continue;
		}
		hr_value y = hr_value_keep(hr_tanh(hr_add(hr_matmul(x, hr_variable_read(shared_variable)), x)));
		peek(y, now[index]);
		drop_all(allocator);
		peek(y, later[index]);
		CHECK_BYTES(later[index], now[index], sizeof now[index]);
		hr_value_release(y);
	}
	hr_value_release(x);
	CHECK_STATUS(HR_OK, hr_session_leave());
	atomic_fetch_sub(&left, 1);
}

static void test_contents_do_not_change_when_a_variable_they_are_computed_from_is_updated(void)
{
	rounds = hr_test_scaled(2000);
	open_sessions(true);
	CHECK_STATUS(HR_OK, hr_session_enter(sessions[0]));
	shared_variable = hr_get_variable("shared", HR_DTYPE_FLOAT32, HR_DIMS(SIDE, SIDE), HR_NORMAL(1, 1));
	CHECK_STATUS(HR_OK, hr_session_leave());
	atomic_store(&left, THREADS);
	hr_test_threads(THREADS + 1, update_or_compute, NULL);
	close_sessions();
}

TEST_MAIN(T_WITHIN(test_threads_of_one_session_get_the_contents_of_plain_runs, 240),
          T_WITHIN(test_sessions_of_one_allocator_get_the_contents_of_plain_runs, 240),
          T_WITHIN(test_contents_do_not_change_when_a_variable_they_are_computed_from_is_updated, 240))
