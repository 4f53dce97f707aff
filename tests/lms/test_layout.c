/* test_layout.c - places of tensors that never overlap in time and memory, and stays that are shortened where they have to be. */
#include "core/lms/plan/layout.h"
#include "fault_os.h"
#include "test.h"

#define MOST 60u
#define TURNS 40u

static bool is_during(uint32_t from, uint32_t to, uint32_t turn)
{
	return from <= to ? turn >= from && turn <= to : turn >= from || turn <= to;
}

/* Turns from [from] forward to [to]. */
static uint32_t distance(uint32_t from, uint32_t to)
{
	return (to + TURNS - from) % TURNS;
}

/* Each stay is within [most], is on the device for as long as it has to be, and no byte has two tensors in any turn. */
static void check_layout(const hr__layout_stay *given, const hr__layout_stay *stays, uint32_t count, uint64_t most)
{
	for (uint32_t i = 0; i < count; i++) {
		CHECK_LE(stays[i].offset + stays[i].bytes, most);
		CHECK_LE(distance(given[i].from, stays[i].from), given[i].late);
		CHECK_LE(distance(stays[i].to, given[i].to), given[i].early);
		for (uint32_t k = 0; k < i; k++) {
			if (stays[k].offset >= stays[i].offset + stays[i].bytes || stays[i].offset >= stays[k].offset + stays[k].bytes) continue;
			for (uint32_t turn = 0; turn < TURNS; turn++)
				CHECK(!is_during(stays[i].from, stays[i].to, turn) || !is_during(stays[k].from, stays[k].to, turn));
		}
	}
}

static void test_stays_share_memory_if_they_do_not_overlap(void)
{
	hr__layout_stay stays[] = { { .bytes = 4, .from = 0, .to = 9 }, { .bytes = 4, .from = 10, .to = 30 }, { .bytes = 4, .from = 31, .to = 39 },
		                        { .bytes = 2, .from = 35, .to = 5 } }, given[4];
	bool fits;
	uint64_t late;
	memcpy(given, stays, sizeof given);
	CHECK_STATUS(HR_OK, hr__layout_make(stays, 4, TURNS, 6, &fits, &late));
	CHECK(fits);
	CHECK_EQ(late, 0u);
	check_layout(given, stays, 4, 6);
	CHECK_STATUS(HR_OK, hr__layout_make(stays, 4, TURNS, 5, &fits, &late));
	CHECK(!fits);
	check_layout(given, stays, 4, 6); /* as before */
}

static void test_a_restore_waits_for_its_place(void)
{
	/* The second needs the memory of the first, which has it for 10 turns more than needed by the copy to the host. */
	hr__layout_stay stays[] = { { .bytes = 4, .from = 0, .to = 20 }, { .bytes = 4, .from = 10, .to = 30, .late = 16, .free_late = 12 } };
	bool fits;
	uint64_t late;
	CHECK_STATUS(HR_OK, hr__layout_make(stays, 2, TURNS, 4, &fits, &late));
	CHECK(fits);
	CHECK_EQ(stays[1].from, 21u); /* no later than that */
	CHECK_EQ(late, 0u);
	stays[1] = (hr__layout_stay){ .bytes = 4, .from = 10, .to = 30, .late = 16, .free_late = 7 };
	CHECK_STATUS(HR_OK, hr__layout_make(stays, 2, TURNS, 4, &fits, &late));
	CHECK(fits);
	CHECK_EQ(stays[1].from, 21u);
	CHECK_EQ(late, 1u); /* 4 turns of 9, of 4 bytes */
	stays[1] = (hr__layout_stay){ .bytes = 4, .from = 10, .to = 30, .late = 10, .free_late = 10 };
	CHECK_STATUS(HR_OK, hr__layout_make(stays, 2, TURNS, 4, &fits, &late));
	CHECK(!fits);
}

static void test_memory_is_used_before_a_copy_is_done(void)
{
	hr__layout_stay stays[] = { { .bytes = 4, .from = 30, .to = 20, .early = 8 }, { .bytes = 4, .from = 15, .to = 29 } };
	bool fits;
	uint64_t late;
	CHECK_STATUS(HR_OK, hr__layout_make(stays, 2, TURNS, 4, &fits, &late));
	CHECK(fits);
	CHECK_EQ(stays[0].to, 14u);
	CHECK_EQ(late, 3u); /* 6 turns of 8, of 4 bytes */
}

static void make_random(uint64_t *random, hr__layout_stay *stays, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		hr__layout_stay *stay = &stays[i];
		*stay = (hr__layout_stay){ .bytes = 1 + hr_rand_below(random, 20), .from = (uint32_t)hr_rand_below(random, TURNS) };
		uint32_t length = (uint32_t)hr_rand_below(random, TURNS - 1);
		stay->to = (stay->from + length) % TURNS;
		stay->late = (uint32_t)hr_rand_below(random, length / 2 + 1);
		stay->free_late = (uint32_t)hr_rand_below(random, stay->late + 1);
		stay->early = (uint32_t)hr_rand_below(random, length / 2 + 1);
	}
}

static uint64_t needed_at_once(const hr__layout_stay *stays, uint32_t count)
{
	uint64_t most = 0;
	for (uint32_t turn = 0; turn < TURNS; turn++) {
		uint64_t bytes = 0;
		for (uint32_t i = 0; i < count; i++) {
			uint32_t from = (stays[i].from + stays[i].late) % TURNS, to = (stays[i].to + TURNS - stays[i].early) % TURNS;
			if (is_during(from, to, turn)) bytes += stays[i].bytes;
		}
		if (bytes > most) most = bytes;
	}
	return most;
}

static void test_random_stays_never_overlap(void)
{
	uint64_t random = hr_test_seed();
	uint32_t found = 0, tight = 0;
	for (uint32_t round = 0; round < 400; round++) {
		hr__layout_stay given[MOST], stays[MOST];
		uint32_t count = 1 + (uint32_t)hr_rand_below(&random, MOST);
		bool fits;
		uint64_t late;
		make_random(&random, given, count);
		uint64_t least = needed_at_once(given, count), most = least + least * hr_rand_below(&random, 20) / 100;
		memcpy(stays, given, sizeof stays);
		CHECK_STATUS(HR_OK, hr__layout_make(stays, count, TURNS, most, &fits, &late));
		if (fits) check_layout(given, stays, count, most);
		else CHECK(memcmp(stays, given, count * sizeof *stays) == 0);
		found += fits;
		memcpy(stays, given, sizeof stays);
		CHECK_STATUS(HR_OK, hr__layout_make(stays, count, TURNS, least - 1, &fits, &late));
		CHECK(!fits);
		memcpy(stays, given, sizeof stays);
		CHECK_STATUS(HR_OK, hr__layout_make(stays, count, TURNS, least + least / 5, &fits, &late));
		tight += fits;
	}
	printf("#   %u of 400 fit into at most a fifth more than the least, %u into a fifth more\n", found, tight);
	CHECK_GE(tight, 380u);
}

static void test_no_stays_and_no_host_memory(void)
{
	hr__layout_stay stay = { .bytes = 4, .from = 0, .to = 3 };
	bool fits = false;
	uint64_t late;
	CHECK_STATUS(HR_OK, hr__layout_make(NULL, 0, TURNS, 0, &fits, &late));
	CHECK(fits);
	hr_fault_os_install();
	hr_fault_os_fail_nth(1, false, ENOMEM);
	CHECK_STATUS(HR_NO_HOST_MEMORY, hr__layout_make(&stay, 1, TURNS, 8, &fits, &late));
	hr_fault_os_uninstall();
	CHECK_STATUS(HR_OK, hr__layout_make(&stay, 1, TURNS, 4, &fits, &late));
	CHECK(fits);
}

TEST_MAIN(T(test_stays_share_memory_if_they_do_not_overlap), T(test_a_restore_waits_for_its_place), T(test_memory_is_used_before_a_copy_is_done),
          T(test_random_stays_never_overlap), T(test_no_stays_and_no_host_memory))
