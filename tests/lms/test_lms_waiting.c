/* test_lms_waiting.c - threads whose ops each need most of the memory: they take turns, no thread waits forever, and none is
 * refused because of memory that another holds only for a while. */
#include "fixture.h"
#include "fault_os.h"
#include "core/lms/lms.h"
#include "test.h"

#define KIB UINT64_C(1024)
#define MIB (KIB * KIB)
#define S UINT64_C(1000000000)
#define MOST 8u
#define EACH 3u

static struct {
	hr_device device;
	hr_allocator allocator;
	hr_stream streams[MOST];
	hr_tensor tensors[MOST][EACH], shared;
	uint64_t rounds;
	_Atomic(uint64_t) met;
	pthread_barrier_t barrier;
} here;

static void set_up(uint64_t limit, uint64_t lms_limit, uint64_t wait_ns, unsigned threads, const char *policy)
{
	hr_tensor_options tensor;
	hr_fault_os_install();
	here.device = fixture_emulated(64 * MIB, 64 * KIB, 0);
	hr_allocator_options options = fixture_allocator_options(limit);
	options.oom.report_allocations_on_oom = false;
	CHECK_STATUS(HR_OK, hr_allocator_create(here.device, &options, &here.allocator));
	hr_lms_options lms = fixture_lms_options(policy, 64 * MIB);
	lms.limit = lms_limit;
	lms.wait_ns = wait_ns;
	CHECK_STATUS(HR_OK, hr_lms_configure(here.allocator, &lms));
	hr_tensor_options_init(&tensor);
	tensor.bytes = 256 * KIB;
	for (unsigned i = 0; i < threads; i++) {
		CHECK_STATUS(HR_OK, hr_stream_create(here.device, &here.streams[i]));
		for (unsigned k = 0; k < EACH; k++) CHECK_STATUS(HR_OK, hr_tensor_create(here.allocator, &tensor, &here.tensors[i][k]));
	}
	CHECK_STATUS(HR_OK, hr_tensor_create(here.allocator, &tensor, &here.shared));
	CHECK_STATUS(HR_OK, hr_tensor_pin(here.shared, HR_OVERWRITE, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_tensor_unpin(here.shared, HR_STREAM_DEFAULT));
	atomic_store(&here.met, 0);
}

static hr_lms_stats stats_of(void)
{
	return fixture_lms_stats(here.allocator);
}

static void tear_down(void)
{
	CHECK_EQ(stats_of().num_pins, 0);
	CHECK_STATUS(HR_OK, hr_lms_check(here.allocator));
	CHECK_STATUS(HR_OK, hr_allocator_check(here.allocator));
	CHECK_STATUS(HR_OK, hr_allocator_destroy_all(here.allocator));
	CHECK_STATUS(HR_OK, hr_shutdown());
	CHECK(hr_fault_os_is_clean());
	hr_fault_os_uninstall();
}

static void rest(uint64_t ns)
{
	struct timespec pause = { .tv_sec = (time_t)(ns / S), .tv_nsec = (long)(ns % S) };
	nanosleep(&pause, NULL);
}

/* ---- turns ---- */

static void take_turns(void *argument, unsigned index)
{
	bool reads_shared = argument != NULL;
	hr_stream stream = here.streams[index];
	uint64_t seed = hr_test_seed() * 64 + index;
	for (uint64_t i = 0; i < here.rounds; i++) {
		hr_pin pins[EACH + 1];
		size_t count = 0;
		for (unsigned k = 0; k < EACH; k++) pins[count++] = (hr_pin){ here.tensors[index][k], HR_WRITE };
		if (reads_shared) pins[count++] = (hr_pin){ here.shared, HR_READ };
		CHECK_STATUS(HR_OK, hr_tensor_pin_all(pins, count, stream));
		for (unsigned k = 0; k < EACH; k++) {
			unsigned char value = (unsigned char)(index * 16 + k + i), before = (unsigned char)(value - 1), found;
			void *at;
			CHECK_STATUS(HR_OK, hr_tensor_get_address(pins[k].tensor, &at));
			if (i) {
				CHECK_STATUS(HR_OK, hr_stream_copy(here.device, &found, (char *)at + 256 * KIB - 1, 1, HR_COPY_TO_HOST, stream));
				CHECK_STATUS(HR_OK, hr_stream_synchronize(here.device, stream));
				CHECK_EQ(found, before);
			}
			CHECK_STATUS(HR_OK, hr_stream_fill(here.device, at, value, 256 * KIB, stream));
		}
		if (hr_rand_below(&seed, 4) == 0) rest(hr_rand_below(&seed, 200000));
		CHECK_STATUS(HR_OK, hr_tensor_unpin_all(pins, count, stream));
		atomic_fetch_add(&here.met, 1);
	}
}

static void run_turns(unsigned threads, uint64_t limit, uint64_t lms_limit, const char *policy, bool shared)
{
	set_up(limit, lms_limit, 20 * S, threads, policy);
	here.rounds = hr_test_scaled(1500) / threads + 1;
	hr_test_threads(threads, take_turns, shared ? &here : NULL);
	hr_lms_stats stats = stats_of();
	printf("# %u threads: %llu ops met, %lld waits, %lld evictions\n", threads, (unsigned long long)here.met,
	       (long long)stats.num_pin_waits, (long long)stats.num_evictions);
	CHECK_EQ(here.met, here.rounds * threads);
	if (here.rounds > 100) CHECK_GT(stats.num_evictions, 0); /* they took turns */
	tear_down();
}

static void test_two_threads_that_need_most_of_the_memory_take_turns(void)
{
	run_turns(2, MIB, 0, "lru", false);
	run_turns(2, MIB, 0, "learned", false);
}

static void test_many_threads_that_need_most_of_the_memory_take_turns(void)
{
	run_turns(4, MIB, 0, "lru", true);
	run_turns(8, MIB, 0, "learned", true);
}

static void test_threads_take_turns_below_the_limit_for_tensors(void)
{
	run_turns(4, 16 * MIB, MIB, "lru", true);
}

/* ---- plain requests ---- */

/* A tensor fills the memory; then two threads request a third of it each, at the same moment. The later one finds the tensor being
 * evicted for the other, and room for both afterwards. */
static void ask_together(void *unused, unsigned index)
{
	(void)unused;
	for (uint64_t i = 0; i < here.rounds; i++) {
		if (index == 0) {
			CHECK_STATUS(HR_OK, hr_tensor_pin(here.shared, HR_WRITE, here.streams[0]));
			CHECK_STATUS(HR_OK, hr_tensor_unpin(here.shared, here.streams[0]));
		}
		pthread_barrier_wait(&here.barrier);
		hr_request request = HR_REQUEST(384 * KIB);
		request.stream = here.streams[index];
		void *block;
		CHECK_STATUS(HR_OK, hr_alloc(here.allocator, &request, &block));
		CHECK_STATUS(HR_OK, hr_free(here.allocator, block, here.streams[index]));
		pthread_barrier_wait(&here.barrier);
	}
}

static void test_plain_requests_wait_for_evictions_for_others(void)
{
	set_up(MIB, 0, S, 2, "lru");
	hr_tensor_options options;
	hr_tensor_options_init(&options);
	options.bytes = MIB;
	CHECK_STATUS(HR_OK, hr_tensor_destroy(here.shared));
	CHECK_STATUS(HR_OK, hr_tensor_create(here.allocator, &options, &here.shared));
	here.rounds = hr_test_scaled(1000);
	pthread_barrier_init(&here.barrier, NULL, 2);
	hr_test_threads(2, ask_together, NULL);
	pthread_barrier_destroy(&here.barrier);
	CHECK_GT(stats_of().num_evictions, 0);
	tear_down();
}

/* The same for pins that must not wait for others: at the allocator's limit or at that for tensors, with blocks or pages. */
static void pin_together(void *argument, unsigned index)
{
	bool fixed = *(const bool *)argument;
	hr_tensor_options options;
	hr_tensor_options_init(&options);
	options.bytes = 384 * KIB;
	options.fixed = fixed;
	for (uint64_t i = 0; i < here.rounds; i++) {
		hr_tensor tensor;
		CHECK_STATUS(HR_OK, hr_tensor_create(here.allocator, &options, &tensor));
		if (index == 0) {
			CHECK_STATUS(HR_OK, hr_tensor_pin(here.shared, HR_WRITE, here.streams[0]));
			CHECK_STATUS(HR_OK, hr_tensor_unpin(here.shared, here.streams[0]));
		}
		pthread_barrier_wait(&here.barrier);
		CHECK_STATUS(HR_OK, hr_tensor_pin(tensor, HR_OVERWRITE, here.streams[index]));
		CHECK_STATUS(HR_OK, hr_tensor_unpin(tensor, here.streams[index]));
		pthread_barrier_wait(&here.barrier);
		CHECK_STATUS(HR_OK, hr_tensor_destroy(tensor));
		pthread_barrier_wait(&here.barrier);
	}
}

static void test_pins_wait_for_evictions_for_others(void)
{
	for (int way = 0; way < 4; way++) {
		bool fixed = way & 1, apart = way & 2;
		set_up(apart ? 16 * MIB : MIB, apart ? MIB : 0, 0, 2, "lru");
		hr_tensor_options options;
		hr_tensor_options_init(&options);
		options.bytes = MIB;
		options.fixed = fixed;
		CHECK_STATUS(HR_OK, hr_tensor_destroy(here.shared));
		CHECK_STATUS(HR_OK, hr_tensor_create(here.allocator, &options, &here.shared));
		here.rounds = hr_test_scaled(500);
		pthread_barrier_init(&here.barrier, NULL, 2);
		hr_test_threads(2, pin_together, &fixed);
		pthread_barrier_destroy(&here.barrier);
		CHECK_GT(stats_of().num_evictions, 0);
		tear_down();
	}
}

/* ---- waiting, and for how long ---- */

/* Thread 0 holds its pins for a while; thread 1 requests its own meanwhile. */
static void hold_and_want(void *argument, unsigned index)
{
	uint64_t hold_ns = *(const uint64_t *)argument;
	hr_pin pins[EACH];
	for (unsigned k = 0; k < EACH; k++) pins[k] = (hr_pin){ here.tensors[index][k], HR_OVERWRITE };
	if (index == 0) CHECK_STATUS(HR_OK, hr_tensor_pin_all(pins, EACH, here.streams[0]));
	pthread_barrier_wait(&here.barrier);
	if (index == 0) {
		if (!hold_ns) pthread_barrier_wait(&here.barrier);
		/* Until the other thread waits, however long that takes on a busy machine. */
		for (int i = 0; hold_ns && i < 1000 && !stats_of().num_pin_waits; i++) rest(hold_ns);
		CHECK_STATUS(HR_OK, hr_tensor_unpin_all(pins, EACH, here.streams[0]));
		return;
	}
	double start = hr_test_now();
	hr_status status = hr_tensor_pin_all(pins, EACH, here.streams[1]);
	double took = hr_test_now() - start;
	if (hold_ns) {
		CHECK_STATUS(HR_OK, status);
		CHECK_STATUS(HR_OK, hr_tensor_unpin_all(pins, EACH, here.streams[1]));
	} else {
		CHECK_STATUS(HR_OUT_OF_MEMORY, status);
		CHECK_CONTAINS(hr_last_message(), "cannot run");
		pthread_barrier_wait(&here.barrier);
	}
	printf("# took %.3f s\n", took);
	atomic_store(&here.met, (uint64_t)(took * 1e9));
}

static uint64_t hold_for(uint64_t hold_ns, uint64_t wait_ns)
{
	set_up(MIB, 0, wait_ns, 2, "lru");
	pthread_barrier_init(&here.barrier, NULL, 2);
	hr_test_threads(2, hold_and_want, &hold_ns);
	pthread_barrier_destroy(&here.barrier);
	return atomic_load(&here.met);
}

static void test_a_pin_waits_for_what_another_thread_holds(void)
{
	hold_for(S / 100, 20 * S);
	CHECK_EQ(stats_of().num_pin_waits, 1);
	tear_down();
}

static void test_a_pin_waits_no_longer_than_wait_ns(void)
{
	uint64_t took = hold_for(0, S / 5);
	CHECK_GE(took, S / 5);
	CHECK_LE(took, 10 * S);
	tear_down();
}

static void test_without_a_time_to_wait_a_pin_fails_at_once(void)
{
	CHECK_LE(hold_for(0, 0), 5 * S);
	CHECK_EQ(stats_of().num_pin_waits, 0);
	tear_down();
}

/* It could wait for itself. */
static void test_a_thread_that_holds_pins_fails_at_once(void)
{
	set_up(MIB, 0, 100 * S, 2, "lru");
	hr_op_set(hr_name_intern("greedy"));
	hr_pin pins[2][EACH];
	for (unsigned i = 0; i < 2; i++)
		for (unsigned k = 0; k < EACH; k++) pins[i][k] = (hr_pin){ here.tensors[i][k], HR_OVERWRITE };
	CHECK_STATUS(HR_OK, hr_tensor_pin_all(pins[0], EACH, here.streams[0]));
	double start = hr_test_now();
	CHECK_STATUS(HR_OUT_OF_MEMORY, hr_tensor_pin_all(pins[1], EACH, here.streams[0]));
	CHECK_LE(hr_test_now() - start, 20);
	CHECK_CONTAINS(hr_last_message(), "op \"greedy\" cannot run");
	CHECK_CONTAINS(hr_last_message(), "writes 256.0 KiB");
	CHECK_EQ(stats_of().num_pin_waits, 0);
	CHECK_EQ(stats_of().num_pins, EACH);
	CHECK_STATUS(HR_OK, hr_tensor_unpin_all(pins[0], EACH, here.streams[0]));
	CHECK_STATUS(HR_OK, hr_tensor_pin_all(pins[1], EACH, here.streams[0]));
	CHECK_STATUS(HR_OK, hr_tensor_unpin_all(pins[1], EACH, here.streams[0]));
	tear_down();
}

/* ---- pins that are never released ---- */

static void pin_and_forget(void *argument, unsigned index)
{
	(void)argument;
	hr_pin pins[EACH];
	for (unsigned k = 0; k < EACH; k++) pins[k] = (hr_pin){ here.tensors[index][k], HR_OVERWRITE };
	CHECK_STATUS(HR_OK, hr_tensor_pin_all(pins, EACH, here.streams[index]));
	CHECK_STATUS(HR_OK, hr_tensor_pin(pins[0].tensor, HR_READ, here.streams[index]));
	CHECK_EQ(hr__pin_count_of_thread(), EACH + 1);
	pthread_barrier_wait(&here.barrier);
	if (index == 0) CHECK_STATUS(HR_OK, hr_allocator_destroy_all(here.allocator));
	pthread_barrier_wait(&here.barrier);
	CHECK_EQ(hr__pin_count_of_thread(), 0);
	CHECK_STATUS(HR_INVALID_HANDLE, hr_tensor_unpin_all(pins, EACH, here.streams[index]));
	CHECK_EQ(hr__pin_count_of_thread(), 0);
}

/* The allocator was closed with all its pins. If its thread still counted as a holder of pins, it would not be allowed to wait. */
static void test_pins_end_with_their_allocator(void)
{
	set_up(4 * MIB, 0, 20 * S, 2, "lru");
	pthread_barrier_init(&here.barrier, NULL, 2);
	hr_test_threads(2, pin_and_forget, NULL);
	pthread_barrier_destroy(&here.barrier);
	CHECK_STATUS(HR_OK, hr_shutdown());
	hr_fault_os_uninstall();
	for (int end = 0; end < 2; end++) {
		set_up(MIB, 0, 20 * S, 2, "lru");
		CHECK_STATUS(HR_OK, hr_tensor_pin(here.tensors[0][0], HR_OVERWRITE, here.streams[0]));
		CHECK_EQ(hr__pin_count_of_thread(), 1);
		if (end) CHECK_STATUS(HR_OK, hr_allocator_destroy_all(here.allocator));
		CHECK_STATUS(HR_OK, hr_shutdown());
		CHECK_EQ(hr__pin_count_of_thread(), 0);
		CHECK(hr_fault_os_is_clean());
		hr_fault_os_uninstall();
	}
}

/* A thread whose pins ended with their allocator may wait for others. */
static void lose_and_want(void *argument, unsigned index)
{
	hr_allocator lost = *(hr_allocator *)argument;
	if (index == 1) {
		hr_tensor tensor = fixture_tensor(lost, KIB);
		CHECK_STATUS(HR_OK, hr_tensor_pin(tensor, HR_OVERWRITE, HR_STREAM_DEFAULT));
		CHECK_STATUS(HR_OK, hr_allocator_destroy_all(lost));
	}
	uint64_t hold_ns = S / 100;
	hold_and_want(&hold_ns, index);
}

static void test_a_thread_that_lost_its_pins_waits_for_others(void)
{
	set_up(MIB, 0, 20 * S, 2, "lru");
	hr_allocator lost = fixture_allocator(here.device, MIB);
	pthread_barrier_init(&here.barrier, NULL, 2);
	hr_test_threads(2, lose_and_want, &lost);
	pthread_barrier_destroy(&here.barrier);
	CHECK_EQ(stats_of().num_pin_waits, 1);
	tear_down();
}

/* More allocators than are counted separately: pins are known as long as any is held, and at the end there are none. */
static void test_pins_on_many_allocators_are_counted(void)
{
	enum { MANY = 40 };
	hr_allocator allocators[MANY];
	hr_tensor tensors[MANY];
	hr_tensor_options tensor;
	set_up(MIB, 0, 0, 1, "lru");
	hr_tensor_options_init(&tensor);
	tensor.bytes = KIB;
	hr_allocator_options options = fixture_allocator_options(MIB);
	for (unsigned i = 0; i < MANY; i++) {
		CHECK_STATUS(HR_OK, hr_allocator_create(here.device, &options, &allocators[i]));
		CHECK_STATUS(HR_OK, hr_tensor_create(allocators[i], &tensor, &tensors[i]));
	}
	for (int round = 0; round < 3; round++) {
		for (unsigned i = 0; i < MANY; i++) {
			CHECK_STATUS(HR_OK, hr_tensor_pin(tensors[i], HR_OVERWRITE, HR_STREAM_DEFAULT));
			CHECK_EQ(hr__pin_count_of_thread(), i + 1);
		}
		for (unsigned i = 0; i < MANY; i++) {
			unsigned which = round == 0 ? i : round == 1 ? MANY - 1 - i : (i * 7) % MANY;
			CHECK_EQ(hr__pin_count_of_thread(), MANY - i);
			CHECK_STATUS(HR_OK, hr_tensor_unpin(tensors[which], HR_STREAM_DEFAULT));
		}
		CHECK_EQ(hr__pin_count_of_thread(), 0);
	}
	for (unsigned i = 0; i < MANY; i++) CHECK_STATUS(HR_OK, hr_allocator_destroy_all(allocators[i]));
	tear_down();
}

/* ---- requests that can never succeed ---- */

/* No thread holds anything, so there is nothing to wait for. */
static void test_an_op_that_never_fits_fails_at_once(void)
{
	set_up(MIB, 0, 100 * S, 2, "lru");
	hr_pin pins[2 * EACH];
	for (unsigned k = 0; k < 2 * EACH; k++) pins[k] = (hr_pin){ here.tensors[k / EACH][k % EACH], HR_OVERWRITE };
	double start = hr_test_now();
	CHECK_STATUS(HR_OUT_OF_MEMORY, hr_tensor_pin_all(pins, 2 * EACH, here.streams[0]));
	CHECK_LE(hr_test_now() - start, 20);
	CHECK_CONTAINS(hr_last_message(), "it needs 1.5 MiB at once");
	CHECK_CONTAINS(hr_last_message(), "smallest sufficient limit is 1.5 MiB");
	tear_down();
}

/* Thread 0 has a tensor pinned while thread 1 requests more than fits even if all others unpin. */
struct asked {
	unsigned count;
	const char *needs, *more, *least;
};

static void hold_and_ask_too_much(void *argument, unsigned index)
{
	const struct asked *asked = argument;
	hr_pin pins[EACH + 1] = { { here.tensors[1][0], HR_OVERWRITE },
		                      { here.tensors[1][1], HR_OVERWRITE },
		                      { here.tensors[1][2], HR_WRITE },
		                      { here.shared, HR_READ } };
	if (index == 0) CHECK_STATUS(HR_OK, hr_tensor_pin(here.shared, HR_READ, here.streams[0]));
	pthread_barrier_wait(&here.barrier);
	if (index == 1) {
		hr_op_set(hr_name_intern("huge"));
		double start = hr_test_now();
		CHECK_STATUS(HR_OUT_OF_MEMORY, hr_tensor_pin_all(pins, asked->count, here.streams[1]));
		double took = hr_test_now() - start;
		printf("# took %.3f s: %s\n", took, hr_last_message());
		CHECK_LE(took, 10);
		CHECK_CONTAINS(hr_last_message(), "op \"huge\" cannot run");
		CHECK_CONTAINS(hr_last_message(), "writes 256.0 KiB");
		CHECK_CONTAINS(hr_last_message(), asked->needs);
		CHECK_CONTAINS(hr_last_message(), asked->more);
		CHECK_CONTAINS(hr_last_message(), asked->least);
		CHECK_EQ(stats_of().num_pin_waits, 0);
	}
	pthread_barrier_wait(&here.barrier);
	if (index == 0) CHECK_STATUS(HR_OK, hr_tensor_unpin(here.shared, here.streams[0]));
}

static void ask_too_much(uint64_t limit, uint64_t lms_limit, bool something_stays, struct asked *asked)
{
	set_up(limit, lms_limit, 40 * S, 2, "lru");
	if (something_stays) {
		CHECK_STATUS(HR_OK, hr_tensor_pin(here.tensors[0][0], HR_OVERWRITE, here.streams[0]));
		CHECK_STATUS(HR_OK, hr_tensor_unpin(here.tensors[0][0], here.streams[0]));
		CHECK_STATUS(HR_OK, hr_tensor_set_never_evict(here.tensors[0][0], true));
	}
	pthread_barrier_init(&here.barrier, NULL, 2);
	hr_test_threads(2, hold_and_ask_too_much, asked);
	pthread_barrier_destroy(&here.barrier);
	tear_down();
}

/* Other threads hold pins, but releasing them would not be enough. */
static void test_an_op_that_never_fits_does_not_wait(void)
{
	struct asked own = { 3, "needs 768.0 KiB at once", "0 B more cannot be evicted", "smallest sufficient limit is 768.0 KiB" };
	ask_too_much(512 * KIB, 0, false, &own);
	ask_too_much(16 * MIB, 512 * KIB, false, &own);
	/* Tensors that another thread has pinned too count as its own, and a tensor that is never evicted reduces the room. */
	struct asked all = { 4, "needs 1.0 MiB at once", "256.0 KiB more cannot be evicted", "smallest sufficient limit is 1.3 MiB" };
	ask_too_much(MIB, 0, true, &all);
	ask_too_much(16 * MIB, MIB, true, &all);
}

/* If it is enough that others unpin, the call waits for them, although a tensor is never evicted. */
static void test_an_op_that_fits_beside_unevictable_tensors_waits(void)
{
	set_up(MIB, 0, 20 * S, 2, "lru");
	uint64_t hold_ns = S / 100;
	CHECK_STATUS(HR_OK, hr_tensor_set_never_evict(here.shared, true));
	pthread_barrier_init(&here.barrier, NULL, 2);
	hr_test_threads(2, hold_and_want, &hold_ns);
	pthread_barrier_destroy(&here.barrier);
	CHECK_EQ(stats_of().num_pin_waits, 1);
	tear_down();
}

TEST_MAIN(T_WITHIN(test_two_threads_that_need_most_of_the_memory_take_turns, 120),
          T_WITHIN(test_many_threads_that_need_most_of_the_memory_take_turns, 120),
          T_WITHIN(test_threads_take_turns_below_the_limit_for_tensors, 120),
          T(test_plain_requests_wait_for_evictions_for_others), T_WITHIN(test_pins_wait_for_evictions_for_others, 120),
          T(test_a_pin_waits_for_what_another_thread_holds), T(test_a_pin_waits_no_longer_than_wait_ns),
          T(test_without_a_time_to_wait_a_pin_fails_at_once), T(test_a_thread_that_holds_pins_fails_at_once),
          T(test_an_op_that_never_fits_fails_at_once), T(test_pins_end_with_their_allocator),
          T(test_a_thread_that_lost_its_pins_waits_for_others), T(test_pins_on_many_allocators_are_counted),
          T_WITHIN(test_an_op_that_never_fits_does_not_wait, 200), T(test_an_op_that_fits_beside_unevictable_tensors_waits))
