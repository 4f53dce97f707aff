/* test_evict_queue.c - the queues of tensors (evict_queue.h): an eviction chooses the same tensor as a scan of all tensors, and
 * looks at few. */
#include "fixture.h"
#include "fault_os.h"
#include "core/lms/policy/learned.h"
#include "test.h"

#define KIB UINT64_C(1024)
#define MIB (KIB * KIB)

static struct {
	hr_device device;
	hr_allocator allocator;
	hr__lms *lms;
} here;

static void set_up(const char *policy, uint64_t limit, uint64_t page, bool defrag)
{
	setenv("HEADROOM_CUDA", "0", 1);
	hr_fault_os_install();
	here.device = fixture_simulated(FIXTURE_DEFAULT, page);
	hr_allocator_options options = fixture_allocator_options(limit);
	options.oom.report_allocations_on_oom = false;
	CHECK_STATUS(HR_OK, hr_allocator_create(here.device, &options, &here.allocator));
	hr_lms_options lms = fixture_lms_options(policy, 4096 * MIB);
	lms.defrag = defrag;
	CHECK_STATUS(HR_OK, hr_lms_configure(here.allocator, &lms));
	CHECK_STATUS(HR_OK, hr__lms_of(here.allocator, &here.lms));
}

static void tear_down(void)
{
	CHECK_STATUS(HR_OK, hr_lms_check(here.allocator));
	CHECK_STATUS(HR_OK, hr_allocator_destroy_all(here.allocator));
	CHECK_STATUS(HR_OK, hr_shutdown());
	CHECK(hr_fault_os_is_clean());
	hr_fault_os_uninstall();
}

static hr_tensor create(uint64_t bytes)
{
	return fixture_tensor(here.allocator, bytes);
}

static void use(hr_tensor tensor, hr_access access)
{
	CHECK_STATUS(HR_OK, hr_tensor_pin(tensor, access, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr__device_compute(here.lms->device, HR_STREAM_DEFAULT, 10000));
	CHECK_STATUS(HR_OK, hr_tensor_unpin(tensor, HR_STREAM_DEFAULT));
}

static hr_lms_stats stats_of(void)
{
	return fixture_lms_stats(here.allocator);
}

/* ---- number of tensors looked at ---- */

#define CHAIN 1000u

/* Forward, each tensor is made from the one before; backward, in reverse, they are used again and destroyed. */
static void play_chain(void)
{
	hr_tensor chain[CHAIN];
	CHECK_STATUS(HR_OK, hr_step_begin(here.allocator));
	for (unsigned i = 0; i < CHAIN; i++) {
		chain[i] = create(2 * MIB);
		use(chain[i], HR_OVERWRITE);
	}
	for (unsigned i = CHAIN; i-- > 0;) {
		use(chain[i], HR_READ);
		CHECK_STATUS(HR_OK, hr_tensor_destroy(chain[i]));
	}
	CHECK_STATUS(HR_OK, hr_step_end(here.allocator));
}

/* With room for half of the tensors, a scan for each eviction looked at 500. The queues look at each tensor once when it is
 * evicted, and once or twice to find that it was used since it was queued. */
static void looks_at_few(const char *policy)
{
	set_up(policy, CHAIN * MIB, 2 * MIB, false);
	for (unsigned step = 0; step < 5; step++) {
		uint64_t looks = here.lms->tensors_examined;
		int64_t evictions = stats_of().num_evictions;
		play_chain();
		CHECK_STATUS(HR_OK, hr_lms_check(here.allocator));
		evictions = stats_of().num_evictions - evictions;
		looks = here.lms->tensors_examined - looks;
		CHECK(evictions >= CHAIN / 2 - 1);
		CHECK(looks <= 8 * (uint64_t)evictions);
	}
	if (here.lms->learned) CHECK(stats_of().num_planned_evictions >= CHAIN);
	tear_down();
}

static void test_evictions_of_a_chain_examine_few_tensors(void)
{
	looks_at_few("lru");
	looks_at_few("learned");
}

/* Tensors that are never evicted are last in the queue, and are not looked at. */
static void test_unevictable_tensors_are_not_examined(void)
{
	set_up("lru", CHAIN * MIB, 2 * MIB, false);
	for (unsigned i = 0; i < CHAIN / 4; i++) {
		hr_tensor tensor = create(2 * MIB);
		use(tensor, HR_OVERWRITE);
		CHECK_STATUS(HR_OK, hr_tensor_set_never_evict(tensor, true));
	}
	for (unsigned i = 0; i < CHAIN / 4; i++) use(create(2 * MIB), HR_OVERWRITE);
	uint64_t looks = here.lms->tensors_examined;
	for (unsigned i = 0; i < CHAIN / 4; i++) use(create(2 * MIB), HR_OVERWRITE);
	CHECK_EQ(stats_of().num_evictions, CHAIN / 4);
	CHECK(here.lms->tensors_examined - looks <= CHAIN);
	tear_down();
}

/* ---- the choice ---- */

#define MOST 96u

static struct {
	hr_tensor tensors[MOST];
	bool written[MOST];
	unsigned count;
	uint64_t refused;
} live;

static hr_tensor one_of(uint64_t *random)
{
	return live.tensors[hr_rand_below(random, live.count)];
}

static void destroy_at(unsigned at)
{
	CHECK_STATUS(HR_OK, hr_tensor_destroy(live.tensors[at]));
	live.count--;
	live.tensors[at] = live.tensors[live.count];
	live.written[at] = live.written[live.count];
}

/* Uses several tensors at once, so that they have the same last use. */
static void use_some(uint64_t *random)
{
	hr_pin pins[6];
	unsigned count = 1 + (unsigned)hr_rand_below(random, 6), at[6];
	for (unsigned i = 0; i < count; i++) {
		at[i] = (unsigned)hr_rand_below(random, live.count);
		bool writes = !live.written[at[i]] || hr_rand_below(random, 4) == 0;
		pins[i] = (hr_pin){ live.tensors[at[i]], writes ? HR_WRITE : HR_READ };
	}
	hr_status status = hr_tensor_pin_all(pins, count, HR_STREAM_DEFAULT);
	if (status == HR_OUT_OF_MEMORY) live.refused++;
	else CHECK_STATUS(HR_OK, status);
	if (status) return;
	for (unsigned i = 0; i < count; i++) live.written[at[i]] = true;
	CHECK_STATUS(HR_OK, hr__device_compute(here.lms->device, HR_STREAM_DEFAULT, 50000));
	CHECK_STATUS(HR_OK, hr_tensor_unpin_all(pins, count, HR_STREAM_DEFAULT));
}

/* Changes that no plan knows of. */
static void disturb(uint64_t *random)
{
	hr_status status = HR_OK;
	switch (hr_rand_below(random, 6)) {
	case 0: CHECK_STATUS(HR_OK, hr_tensor_set_priority(one_of(random), (int32_t)hr_rand_below(random, 3) - 1)); break;
	case 1: CHECK_STATUS(HR_OK, hr_tensor_set_never_evict(one_of(random), hr_rand_below(random, 8) == 0)); break;
	case 2: status = hr_tensor_evict(one_of(random)); break;
	case 3: status = hr_tensor_prefetch(one_of(random)); break;
	case 4: use_some(random); break;
	default: status = hr_lms_set_limit(here.allocator, (6 + hr_rand_below(random, 4)) * MIB); break;
	}
	CHECK(status == HR_OK || status == HR_UNSUPPORTED || status == HR_OUT_OF_MEMORY);
}

/* A step is the same each time, except for disturbances. */
static void play_random(uint64_t step, uint64_t *noise, unsigned quiet)
{
	CHECK_STATUS(HR_OK, hr_step_begin(here.allocator));
	for (unsigned i = 0; i < 200; i++) {
		if (live.count < MOST && (live.count < 8 || hr_rand_below(&step, 3) == 0)) {
			live.written[live.count] = false;
			live.tensors[live.count++] = create((1 + hr_rand_below(&step, 12)) * 128 * KIB);
		}
		use_some(&step);
		if (live.count > 40 && hr_rand_below(&step, 3) == 0) destroy_at((unsigned)hr_rand_below(&step, live.count));
		if (quiet && hr_rand_below(noise, quiet) == 0) disturb(noise);
		if (i % 16 == 0) CHECK_STATUS(HR_OK, hr_lms_check(here.allocator));
	}
	while (live.count) destroy_at(live.count - 1);
	CHECK_STATUS(HR_OK, hr_step_end(here.allocator));
	CHECK_STATUS(HR_OK, hr_lms_check(here.allocator));
}

/* hr_lms_check compares every choice with that of a scan. */
static void compare(const char *policy, bool defrag, unsigned quiet)
{
	uint64_t noise = hr_test_seed();
	memset(&live, 0, sizeof live);
	set_up(policy, 10 * MIB, 256 * KIB, defrag);
	hr__reclaim_compares = true;
	for (uint64_t round = 0; round < hr_test_scaled(4); round++) {
		uint64_t step = hr_rand(&noise);
		for (unsigned i = 0; i < 6; i++) play_random(step, &noise, quiet);
	}
	hr__reclaim_compares = false;
	CHECK(stats_of().num_evictions > 100);
	tear_down();
}

static void test_the_queues_choose_as_a_scan_of_all_tensors_does(void)
{
	for (unsigned defrag = 0; defrag < 2; defrag++) {
		compare("lru", defrag, 3);
		compare("learned", defrag, 0);
		compare("learned", defrag, 20);
	}
}

TEST_MAIN(T(test_evictions_of_a_chain_examine_few_tensors), T(test_unevictable_tensors_are_not_examined),
          T(test_the_queues_choose_as_a_scan_of_all_tensors_does))
