/* test_repeats.c - repeating sequences are detected, with the right period, and abandoned when they stop. */
#include "fault_os.h"
#include "core/lms/policy/repeats.h"
#include "test.h"

/* Counts items until the first begin of a period is found; from then on one is found every [period] items. */
static void expect_period(uint64_t before, uint64_t period, uint64_t rounds)
{
	hr__repeats *repeats;
	uint64_t random = hr_test_seed(), begun = 0, last = 0;
	CHECK_STATUS(HR_OK, hr__repeats_open(&repeats));
	uint64_t *items = malloc(period * sizeof *items);
	for (uint64_t i = 0; i < period; i++) items[i] = hr_rand_below(&random, 5); /* few different values, so that parts look alike */
	for (uint64_t i = 0; i < before; i++) CHECK(!hr__repeats_note(repeats, 1000 + i, i));
	for (uint64_t i = 0; i < period * rounds; i++) {
		if (!hr__repeats_note(repeats, items[i % period], (i + period - 5) % period)) continue;
		if (begun) CHECK_EQ((i - last) % period, 0u);
		CHECK_EQ(i % period, 5u); /* periods begin at the least weight */
		last = i;
		begun++;
	}
	CHECK_GE(begun, rounds - 4);
	free(items);
	hr__repeats_close(repeats);
}

static void test_periods_are_found(void)
{
	expect_period(0, 64, 10);
	expect_period(7, 100, 10);
	expect_period(1000, 2055, 8);
	expect_period(3, 17, 40);
	expect_period(0, 30000, 6);
}

static void test_what_does_not_repeat_is_no_period(void)
{
	hr__repeats *repeats;
	uint64_t random = hr_test_seed();
	CHECK_STATUS(HR_OK, hr__repeats_open(&repeats));
	for (int i = 0; i < 200000; i++) CHECK(!hr__repeats_note(repeats, hr_rand(&random), 0));
	hr__repeats_close(repeats);
}

static void test_another_period_is_found_after_the_first(void)
{
	hr__repeats *repeats;
	uint64_t begun[2] = { 0, 0 };
	CHECK_STATUS(HR_OK, hr__repeats_open(&repeats));
	for (uint64_t i = 0; i < 100 * 10; i++) begun[0] += hr__repeats_note(repeats, i % 100 * 7, 0);
	for (uint64_t i = 0; i < 70 * 20; i++) begun[1] += hr__repeats_note(repeats, 100000 + i % 70 * 11, 0);
	CHECK_GE(begun[0], 6u);
	CHECK_GE(begun[1], 14u);
	hr__repeats_close(repeats);
}

static void test_one_odd_round_does_not_end_it(void)
{
	hr__repeats *repeats;
	uint64_t begun = 0;
	CHECK_STATUS(HR_OK, hr__repeats_open(&repeats));
	for (uint64_t round = 0; round < 12; round++)
		for (uint64_t i = 0; i < 100; i++) begun += hr__repeats_note(repeats, round == 6 && i < 10 ? 5555 + i : i, 0);
	CHECK_GE(begun, 8u);
	hr__repeats_close(repeats);
}

static void test_missing_host_memory_is_reported(void)
{
	hr__repeats *repeats;
	hr_fault_os_install();
	hr_fault_os_fail_nth(1, false, ENOMEM);
	CHECK_STATUS(HR_NO_HOST_MEMORY, hr__repeats_open(&repeats));
	hr_fault_os_uninstall();
}

TEST_MAIN(T(test_periods_are_found), T(test_what_does_not_repeat_is_no_period), T(test_another_period_is_found_after_the_first),
          T(test_one_odd_round_does_not_end_it), T(test_missing_host_memory_is_reported))
