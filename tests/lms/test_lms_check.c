/* test_lms_check.c - hr_lms_check and hr_allocator_check are correct at any moment, whatever other threads do. */
#include <sched.h>

#include "fixture.h"
#include "core/lms/lms.h"
#include "test.h"

#define KIB UINT64_C(1024)
#define MIB (KIB * KIB)
#define TENSORS 12u
#define THREADS 3u

static hr_device device;
static hr_allocator allocator;
static hr_tensor tensors[TENSORS];
static atomic_bool stop;

static void set_up(bool defrag)
{
	device = fixture_emulated(64 * MIB, 64 * KIB, 0);
	hr_allocator_options options = fixture_allocator_options(4 * MIB);
	options.oom.report_allocations_on_oom = false;
	CHECK_STATUS(HR_OK, hr_allocator_create(device, &options, &allocator));
	hr_lms_options lms = fixture_lms_options("lru", 64 * MIB);
	lms.defrag = defrag;
	CHECK_STATUS(HR_OK, hr_lms_configure(allocator, &lms));
	for (unsigned i = 0; i < TENSORS; i++) {
		hr_tensor_options each;
		hr_tensor_options_init(&each);
		each.bytes = (i % 3 + 1) * 128 * KIB - i;
		each.fixed = i % 4 == 3;
		CHECK_STATUS(HR_OK, hr_tensor_create(allocator, &each, &tensors[i]));
		CHECK_STATUS(HR_OK, hr_tensor_pin(tensors[i], HR_OVERWRITE, HR_STREAM_DEFAULT));
		CHECK_STATUS(HR_OK, hr_tensor_unpin(tensors[i], HR_STREAM_DEFAULT));
	}
}

static void tear_down(void)
{
	CHECK_STATUS(HR_OK, hr_lms_check(allocator));
	CHECK_STATUS(HR_OK, hr_allocator_check(allocator));
	CHECK_STATUS(HR_OK, hr_allocator_destroy_all(allocator));
	CHECK_STATUS(HR_OK, hr_shutdown());
}

/* Creates, uses and destroys another tensor. */
static void use_a_new_one(uint64_t *seed)
{
	hr_tensor tensor;
	hr_tensor_options options;
	hr_tensor_options_init(&options);
	options.bytes = 1 + hr_rand_below(seed, 200 * KIB);
	options.fixed = hr_rand_below(seed, 4) == 0;
	CHECK_STATUS(HR_OK, hr_tensor_create(allocator, &options, &tensor));
	CHECK_STATUS(HR_OK, hr_tensor_pin(tensor, HR_OVERWRITE, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_tensor_unpin(tensor, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_tensor_destroy(tensor));
}

static void *pin_and_evict(void *argument)
{
	uint64_t seed = hr_test_seed() + (uintptr_t)argument;
	while (!atomic_load(&stop)) {
		void *block;
		hr_tensor tensor = tensors[hr_rand_below(&seed, TENSORS)];
		CHECK_STATUS(HR_OK, hr_tensor_pin(tensor, hr_rand_below(&seed, 2) ? HR_READ : HR_WRITE, HR_STREAM_DEFAULT));
		if (hr_rand_below(&seed, 2)) CHECK_STATUS(HR_OK, hr_tensor_get_address(tensor, &block));
		CHECK_STATUS(HR_OK, hr_tensor_unpin(tensor, HR_STREAM_DEFAULT));
		switch (hr_rand_below(&seed, 8)) {
		case 0: use_a_new_one(&seed); break;
		case 1:
			if (hr_alloc_bytes(allocator, 1 + hr_rand_below(&seed, 300 * KIB), &block) == HR_OK)
				CHECK_STATUS(HR_OK, hr_free(allocator, block, HR_STREAM_HOST));
			break;
		case 2: hr_tensor_prefetch(tensors[hr_rand_below(&seed, TENSORS)]); break;
		default: (void)!hr_tensor_evict(tensors[hr_rand_below(&seed, TENSORS)]); /* HR_IN_USE if another thread has it pinned */
		}
	}
	return NULL;
}

static void check_under_load(void)
{
	pthread_t threads[THREADS];
	uint64_t quiet = 0;
	for (uintptr_t i = 0; i < THREADS; i++) CHECK_EQ(pthread_create(&threads[i], NULL, pin_and_evict, (void *)i), 0);
	for (uint64_t i = 0, calls = hr_test_scaled(5000); i < calls || !quiet; i++) {
		hr_status status = hr_lms_check(allocator);
		if (status != HR_NOT_READY) CHECK_STATUS(HR_OK, status);
		quiet += status == HR_OK;
		CHECK_STATUS(HR_OK, hr_allocator_check(allocator));
	}
	atomic_store(&stop, true);
	for (size_t i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
}

static void test_checks_find_nothing_while_threads_pin_and_evict(void)
{
	set_up(false);
	check_under_load();
	tear_down();
}

static void test_checks_find_nothing_while_tensors_are_moved(void)
{
	set_up(true);
	check_under_load();
	tear_down();
}

/* A check that never finds anything would pass the tests above. */
static void test_a_wrong_count_of_pins_is_found(void)
{
	hr_status status;
	set_up(false);
	hr__lms *lms = hr__tensor_of(tensors[0], &status)->lms;
	CHECK_STATUS(HR_OK, hr_tensor_pin(tensors[0], HR_WRITE, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_lms_check(allocator));
	hr__fetch_add_relaxed(&lms->allocator->inactive, -1);
	CHECK_STATUS(HR_CORRUPT, hr_lms_check(allocator));
	CHECK(strstr(hr_last_message(), "invariant 5 ") != NULL);
	hr__fetch_add_relaxed(&lms->allocator->inactive, 1);
	hr__fetch_add_relaxed(&lms->resident, 1);
	CHECK_STATUS(HR_CORRUPT, hr_lms_check(allocator));
	hr__fetch_add_relaxed(&lms->resident, -1);
	CHECK_STATUS(HR_OK, hr_tensor_unpin(tensors[0], HR_STREAM_DEFAULT));
	tear_down();
}

/* A thread is suspended between counting a pin and making it: the count is off, but that is no error. */
static void test_a_check_without_a_quiet_moment_reports_it(void)
{
	hr_status status;
	set_up(false);
	hr__lms *lms = hr__tensor_of(tensors[0], &status)->lms;
	hr__fetch_add_relaxed(&lms->pinning, 1);
	CHECK_STATUS(HR_OK, hr_lms_check(allocator));
	hr__fetch_add_relaxed(&lms->allocator->inactive, -128);
	CHECK_STATUS(HR_NOT_READY, hr_lms_check(allocator));
	hr__fetch_add_relaxed(&lms->allocator->inactive, 128);
	hr__fetch_add_relaxed(&lms->pinning, -1);
	/* And a tensor that another thread has claimed. */
	hr__tensor *tensor = hr__tensor_of(tensors[0], &status);
	uint64_t word = hr__load_relaxed(&tensor->word);
	CHECK(hr__state_begin_move(tensor, word));
	CHECK_STATUS(HR_NOT_READY, hr_lms_check(allocator));
	hr__state_end_move(tensor);
	tear_down();
}

TEST_MAIN(T(test_checks_find_nothing_while_threads_pin_and_evict), T(test_checks_find_nothing_while_tensors_are_moved),
          T(test_a_wrong_count_of_pins_is_found), T(test_a_check_without_a_quiet_moment_reports_it))
