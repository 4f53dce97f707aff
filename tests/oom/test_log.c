/* test_log.c - the log of recent allocations, and the thread's context from which its entries take their names. */
#include <math.h>
#include <sched.h>

#include "fault_os.h"
#include "core/memory/allocator.h"
#include "test.h"

#define ENTRIES 65536u

static hr__log_entry entries[ENTRIES + 1];
static uint64_t total;

static hr_allocator make(const char *kind, const hr_oom_options *oom)
{
	hr_device device;
	hr_allocator_options options;
	hr_allocator allocator;
	CHECK_STATUS(HR_OK, hr_device_find("SIM:0", &device));
	hr_allocator_options_init(&options);
	options.kind = kind;
	options.oom = *oom;
	CHECK_STATUS(HR_OK, hr_allocator_create(device, &options, &allocator));
	return allocator;
}

static hr_oom_options logging(uint32_t size, double rate)
{
	hr_oom_options options;
	hr_oom_options_init(&options);
	options.report_allocations_on_oom = true;
	options.allocation_log_buffer_size = size;
	options.allocation_log_sampling_rate = rate;
	return options;
}

static uint32_t collect(hr_allocator handle)
{
	hr_status status;
	hr__allocator *allocator = hr__allocator_of(handle, &status);
	CHECK(allocator != NULL);
	return hr__log_collect(allocator, entries, ENTRIES, &total);
}

static void *allocate(hr_allocator allocator, size_t bytes, const char *op)
{
	void *block;
	hr_request request = HR_REQUEST(bytes);
	request.op = hr_name_intern(op);
	CHECK_STATUS(HR_OK, hr_alloc(allocator, &request, &block));
	return block;
}

static void check_order(uint32_t count)
{
	for (uint32_t i = 1; i < count; i++) CHECK_LE(entries[i - 1].time_ns, entries[i].time_ns);
}

/* ---- contents ---- */

static void check_entries_of(const char *kind)
{
	hr_oom_options options = logging(100, 1);
	options.allocation_log_address = HR_LOG_REAL_ADDRESS;
	hr_allocator allocator = make(kind, &options);
	int64_t dims[] = { 64, 1024 };
	hr_request request = HR_REQUEST(300);
	request.op = hr_name_intern("matmul");
	request.scope = hr_name_intern("encoder/layer_3");
	request.tag = hr_name_intern("activations");
	request.shape = hr_shape_intern(dims, 2);
	request.dtype = HR_DTYPE_BFLOAT16;
	for (int size = 0; size < 2; size++) { /* through the cache, and without it */
		void *block;
		if (size) request.bytes = 3 << 20;
		uint64_t before = hr__os()->wall_clock_ns();
		CHECK_STATUS(HR_OK, hr_alloc(allocator, &request, &block));
		CHECK_STATUS(HR_OK, hr_free(allocator, block, HR_STREAM_DEFAULT));
		CHECK_EQ(collect(allocator), 2 * (uint32_t)size + 2);
		CHECK_EQ(total, 2 * (uint64_t)size + 2);
		for (int i = 0; i < 2; i++) {
			const hr__log_entry *entry = &entries[2 * size + i];
			CHECK_EQ(entry->action, i ? HR__LOG_FREE : HR__LOG_ALLOC);
			CHECK_EQ(entry->bytes, request.bytes);
			CHECK_EQ(entry->address, (uintptr_t)block);
			CHECK_EQ(entry->op, request.op);
			CHECK_EQ(entry->scope, request.scope);
			CHECK_EQ(entry->tag, request.tag);
			CHECK_EQ(entry->shape, request.shape);
			CHECK_EQ(entry->dtype, HR_DTYPE_BFLOAT16);
			CHECK_EQ(entry->thread, 1);
			CHECK(entry->time_ns + 50000000 > before && entry->time_ns < hr__os()->wall_clock_ns() + 50000000);
		}
	}
	check_order(4);
	CHECK_STATUS(HR_OK, hr_shutdown());
}

static void test_entries_have_the_request_and_its_names(void)
{
	check_entries_of("bfc");
	check_entries_of("direct");
}

static void test_the_newest_entries_are_kept(void)
{
	hr_oom_options options = logging(10, 1);
	hr_allocator allocator = make("bfc", &options);
	for (size_t i = 1; i <= 1000; i++) hr_free(allocator, allocate(allocator, i * 100, "op"), HR_STREAM_DEFAULT);
	CHECK_EQ(collect(allocator), 10);
	CHECK_EQ(total, 2000);
	for (uint32_t i = 0; i < 10; i++) CHECK_EQ(entries[i].bytes, (996 + i / 2) * 100);
	check_order(10);
	CHECK_STATUS(HR_OK, hr_shutdown());
}

static void test_addresses_are_reported_as_the_option_says(void)
{
	for (int address = HR_LOG_NO_ADDRESS; address <= HR_LOG_REAL_ADDRESS; address++) {
		hr_oom_options options = logging(10, 1);
		options.allocation_log_address = (hr_oom_log_address)address;
		hr_allocator allocator = make("bfc", &options);
		void *one = allocate(allocator, 1 << 20, "one"), *two = allocate(allocator, 1 << 20, "two");
		hr_free(allocator, one, HR_STREAM_DEFAULT);
		hr_free(allocator, two, HR_STREAM_DEFAULT);
		CHECK_EQ(collect(allocator), 4);
		if (address == HR_LOG_NO_ADDRESS) {
			for (int i = 0; i < 4; i++) CHECK_EQ(entries[i].address, 0);
		} else {
			CHECK_EQ(entries[0].address, entries[2].address);
			CHECK_EQ(entries[1].address, entries[3].address);
			CHECK(entries[0].address != entries[1].address);
			CHECK_EQ(entries[0].address == (uintptr_t)one, address == HR_LOG_REAL_ADDRESS);
		}
		CHECK_STATUS(HR_OK, hr_shutdown());
	}
}

/* ---- sampling ---- */

/* The fraction of operations that is logged is the rate, for small and large blocks alike. Bounds of 5 standard deviations. */
static void check_rate(double rate, uint32_t size)
{
	hr_oom_options options = logging(size, rate);
	hr_allocator allocator = make("bfc", &options);
	const uint64_t rounds = 200000;
	uint64_t logged[2] = { 0 }, before = 0;
	for (uint64_t i = 0; i < rounds; i++) {
		size_t bytes = i % 2 ? 1 << 20 : 512;
		hr_free(allocator, allocate(allocator, bytes, "op"), HR_STREAM_DEFAULT);
		if (i % 16 != 15) continue;
		uint32_t count = collect(allocator);
		uint64_t fresh = total - before;
		CHECK_LE(fresh, count);
		for (uint32_t k = 0; k < fresh; k++) logged[entries[count - 1 - k].bytes > 512]++;
		before = total;
	}
	double expected = (double)rounds * rate; /* of each size: two operations a round, every second round */
	double allowed = 5 * sqrt(expected * (1 - rate)) + 1;
	for (int i = 0; i < 2; i++) CHECK(fabs((double)logged[i] - expected) < allowed);
	CHECK_STATUS(HR_OK, hr_shutdown());
}

static void test_sampling_is_fair_to_every_size(void)
{
	check_rate(0.1, 100);
	check_rate(0.5, 200);
	check_rate(0.01, 1000);
	check_rate(0.001, 1000);
}

#define TRIALS 200000u
static unsigned char chosen[TRIALS]; /* whether operation i was logged: block i / 2 is allocated, and freed next */

/* The operations that a log at a rate of 0.1 chooses, with a fixed seed. */
static void choose(void)
{
	hr_oom_options options = logging(ENTRIES, 0.1);
	hr__log_seed = 20250130;
	hr_allocator allocator = make("bfc", &options);
	for (size_t i = 0; i < TRIALS / 2; i++) hr_free(allocator, allocate(allocator, i + 1, "op"), HR_STREAM_DEFAULT);
	uint32_t count = collect(allocator);
	CHECK_EQ(count, total);
	memset(chosen, 0, sizeof chosen);
	for (uint32_t i = 0; i < count; i++) chosen[2 * (entries[i].bytes - 1) + (entries[i].action == HR__LOG_FREE)] = 1;
	CHECK_STATUS(HR_OK, hr_shutdown());
	hr__log_seed = 0;
}

/* Two operations at any distance are both logged with the probability 0.1 * 0.1. Of 200,000 pairs that is 2,000, with a variance of
 * n p^2 (1 - p^2) + 2 n p^3 (1 - p) = 1,980 + 360: 5 standard deviations are 242. Sampling in runs of 32 would give 19,400 at the
 * distance 1. */
static void test_sampled_operations_are_independent_of_those_around_them(void)
{
	choose();
	uint32_t count = 0, same_block = 0;
	for (uint32_t i = 0; i < TRIALS; i++) count += chosen[i];
	CHECK(abs((int)count - 20000) < 671); /* 5 sqrt(200,000 * 0.1 * 0.9) */
	for (uint32_t distance = 1; distance <= 100; distance++) {
		uint32_t both = 0;
		for (uint32_t i = distance; i < TRIALS; i++) both += chosen[i] && chosen[i - distance];
		CHECK(abs((int)both - 2000) < 242);
	}
	for (uint32_t i = 0; i < TRIALS; i += 2) same_block += chosen[i] && chosen[i + 1];
	CHECK(abs((int)same_block - 1000) < 158); /* 5 sqrt(100,000 * 0.01 * 0.99) */
}

/* The number of operations between two logged ones is k with the probability 0.1 * 0.9^k: chi squared over k = 0 to 29, and 30 or
 * more. Its mean is 30, its standard deviation sqrt(2 * 30) = 7.7. */
static void test_distances_between_sampled_operations_are_geometric(void)
{
	uint32_t found[31] = { 0 }, gaps = 0;
	double chi = 0, rest = 1;
	choose();
	for (uint32_t i = 0, last = TRIALS; i < TRIALS; i++) {
		if (!chosen[i]) continue;
		if (last < TRIALS) {
			uint32_t gap = i - last - 1;
			found[gap < 30 ? gap : 30]++;
			gaps++;
		}
		last = i;
	}
	for (uint32_t k = 0; k <= 30; k++) {
		double expected = gaps * (k < 30 ? rest * 0.1 : rest);
		chi += (found[k] - expected) * (found[k] - expected) / expected;
		rest *= 0.9;
	}
	CHECK(chi < 30 + 5 * 7.75);
}

static void test_a_log_of_allocations_only_has_no_frees(void)
{
	hr_oom_options options = logging(100, 1);
	options.allocation_log_allocations_only = true;
	hr_allocator allocator = make("bfc", &options);
	for (size_t i = 1; i <= 150; i++) hr_free(allocator, allocate(allocator, i, "op"), HR_STREAM_DEFAULT);
	CHECK_EQ(collect(allocator), 100); /* with frees the first entry would be block 101 */
	CHECK_EQ(total, 150);
	for (uint32_t i = 0; i < 100; i++) {
		CHECK_EQ(entries[i].action, HR__LOG_ALLOC);
		CHECK_EQ(entries[i].bytes, 51 + i);
	}
	/* With sampling, half of the 10,000 allocations are logged: 5 standard deviations are 5 sqrt(10,000 / 4) = 250. */
	options.allocation_log_sampling_rate = 0.5;
	options.allocation_log_buffer_size = ENTRIES;
	hr__log_seed = 20250130;
	CHECK_STATUS(HR_OK, hr_allocator_set_oom_options(allocator, &options));
	for (size_t i = 1; i <= 10000; i++) hr_free(allocator, allocate(allocator, i, "op"), HR_STREAM_DEFAULT);
	uint32_t count = collect(allocator);
	CHECK(abs((int)count - 5000) < 250);
	for (uint32_t i = 0; i < count; i++) CHECK_EQ(entries[i].action, HR__LOG_ALLOC);
	hr_oom_options now = { .struct_size = sizeof now };
	CHECK_STATUS(HR_OK, hr_allocator_get_oom_options(allocator, &now));
	CHECK(now.allocation_log_allocations_only);
	hr__log_seed = 0;
	CHECK_STATUS(HR_OK, hr_shutdown());
}

static void test_a_rate_of_0_logs_nothing_and_1_everything(void)
{
	hr_oom_options options = logging(1000, 0);
	hr_allocator allocator = make("bfc", &options);
	for (int i = 0; i < 100; i++) hr_free(allocator, allocate(allocator, 512, "op"), HR_STREAM_DEFAULT);
	CHECK_EQ(collect(allocator), 0);
	options.allocation_log_sampling_rate = 1;
	CHECK_STATUS(HR_OK, hr_allocator_set_oom_options(allocator, &options));
	for (int i = 0; i < 100; i++) hr_free(allocator, allocate(allocator, 512, "op"), HR_STREAM_DEFAULT);
	CHECK_EQ(collect(allocator), 200);
	static const double tiny[] = { 1e-310, 1e-17, 1e-15, 1e-9 };
	for (int i = 0; i < 4; i++) {
		options.allocation_log_sampling_rate = tiny[i];
		CHECK_STATUS(HR_OK, hr_allocator_set_oom_options(allocator, &options));
		for (int k = 0; k < 100; k++) hr_free(allocator, allocate(allocator, 512, "op"), HR_STREAM_DEFAULT);
		CHECK_EQ(collect(allocator), 0);
	}
	CHECK_STATUS(HR_OK, hr_shutdown());
}

/* ---- threads ---- */

static hr_allocator shared;

static void *churn(void *argument)
{
	size_t bytes = (size_t)(uintptr_t)argument;
	for (int i = 0; i < 2000; i++) hr_free(shared, allocate(shared, bytes, "thread"), HR_STREAM_DEFAULT);
	return NULL;
}

static void *read_along(void *argument)
{
	atomic_bool *stop = argument;
	while (!atomic_load(stop)) {
		uint32_t count = collect(shared);
		check_order(count);
		for (uint32_t i = 0; i < count; i++) {
			CHECK(entries[i].bytes == 1000 * (uint64_t)(entries[i].bytes / 1000) && entries[i].bytes >= 1000 && entries[i].bytes <= 4000);
			CHECK(entries[i].action == HR__LOG_ALLOC || entries[i].action == HR__LOG_FREE);
		}
	}
	return NULL;
}

static void test_entries_of_all_threads_are_merged_by_time(void)
{
	pthread_t threads[4], reader;
	atomic_bool stop = false;
	hr_oom_options options = logging(500, 1);
	shared = make("bfc", &options);
	CHECK_EQ(pthread_create(&reader, NULL, read_along, &stop), 0);
	for (uintptr_t i = 0; i < 4; i++) CHECK_EQ(pthread_create(&threads[i], NULL, churn, (void *)((i + 1) * 1000)), 0);
	for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
	atomic_store(&stop, true);
	pthread_join(reader, NULL);
	CHECK_EQ(collect(shared), 500); /* of threads that have ended */
	CHECK_EQ(total, 4 * 4000);
	check_order(500);
	CHECK_STATUS(HR_OK, hr_shutdown());
}

/* A thread that lives longer and logged earlier loses no entries to one that ended before it. */
static atomic_int turn;

static void wait_for_turn(int number)
{
	while (atomic_load(&turn) != number) sched_yield();
}

static void *early_and_long(void *argument)
{
	(void)argument;
	for (int i = 0; i < 20; i++) hr_free(shared, allocate(shared, 1000, "early"), HR_STREAM_DEFAULT);
	atomic_store(&turn, 1);
	wait_for_turn(2);
	return NULL;
}

static void *late_and_short(void *argument)
{
	(void)argument;
	wait_for_turn(1);
	hr_free(shared, allocate(shared, 2000, "late"), HR_STREAM_DEFAULT);
	return NULL;
}

static void test_threads_that_ended_leave_all_their_entries(void)
{
	pthread_t early, late;
	hr_oom_options options = logging(100, 1);
	shared = make("bfc", &options);
	CHECK_EQ(pthread_create(&early, NULL, early_and_long, NULL), 0);
	CHECK_EQ(pthread_create(&late, NULL, late_and_short, NULL), 0);
	pthread_join(late, NULL);
	atomic_store(&turn, 2);
	pthread_join(early, NULL);
	CHECK_EQ(collect(shared), 42);
	check_order(42);
	for (uint32_t i = 0; i < 42; i++) CHECK_EQ(entries[i].bytes, i < 40 ? 1000 : 2000);
	CHECK_STATUS(HR_OK, hr_shutdown());
}

static void *change_settings(void *argument)
{
	atomic_bool *stop = argument;
	for (uint32_t i = 0; !atomic_load(stop); i++) {
		hr_oom_options options = logging(1 + i % 300, i % 3 ? 1 : 0.3);
		options.report_allocations_on_oom = i % 5 != 0;
		CHECK_STATUS(HR_OK, hr_allocator_set_oom_options(shared, &options));
	}
	return NULL;
}

static void test_settings_change_while_threads_allocate(void)
{
	pthread_t threads[3], changer;
	atomic_bool stop = false;
	hr_oom_options options = logging(100, 1);
	shared = make("bfc", &options);
	CHECK_EQ(pthread_create(&changer, NULL, change_settings, &stop), 0);
	for (uintptr_t i = 0; i < 3; i++) CHECK_EQ(pthread_create(&threads[i], NULL, churn, (void *)(i == 2 ? 1 << 20 : (i + 1) * 1000)), 0);
	for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
	atomic_store(&stop, true);
	pthread_join(changer, NULL);
	CHECK_STATUS(HR_OK, hr_allocator_check(shared));
	CHECK_STATUS(HR_OK, hr_shutdown());
}

/* ---- invalid settings, and no memory ---- */

static void test_bad_settings_are_named_and_change_nothing(void)
{
	hr_oom_options good = logging(10, 1), bad;
	hr_allocator allocator = make("bfc", &good);
#define REFUSED(field, value, text)                                                       \
	bad = good;                                                                           \
	bad.field = value;                                                                    \
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_allocator_set_oom_options(allocator, &bad));     \
	CHECK_STR(hr_last_message(), text)
	REFUSED(allocation_log_buffer_size, 0, "allocation_log_buffer_size is 0; it must be 1 to 65536");
	REFUSED(allocation_log_buffer_size, 65537, "allocation_log_buffer_size is 65537; it must be 1 to 65536");
	REFUSED(allocation_log_sampling_rate, -0.1, "allocation_log_sampling_rate is -0.1; it must be 0 to 1");
	REFUSED(allocation_log_sampling_rate, 1.5, "allocation_log_sampling_rate is 1.5; it must be 0 to 1");
	REFUSED(allocation_log_sampling_rate, (double)NAN, "allocation_log_sampling_rate is nan; it must be 0 to 1");
	REFUSED(allocation_log_address, (hr_oom_log_address)3, "allocation_log_address is 3; it must be one of hr_oom_log_address");
	REFUSED(struct_size, 1, "hr_allocator_set_oom_options: hr_oom_options.struct_size is 1; call hr_oom_options_init first");
	hr_oom_options now = { .struct_size = sizeof now };
	CHECK_STATUS(HR_OK, hr_allocator_get_oom_options(allocator, &now));
	CHECK_EQ(now.allocation_log_buffer_size, 10);
	CHECK(now.report_allocations_on_oom);
	hr_allocator_options options;
	hr_device device;
	hr_allocator_options_init(&options);
	options.oom.allocation_log_sampling_rate = 2;
	CHECK_STATUS(HR_OK, hr_device_find("SIM:0", &device));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_allocator_create(device, &options, &allocator));
	CHECK_STATUS(HR_OK, hr_shutdown());
}

static void test_no_memory_for_a_log_leaves_the_old_one(void)
{
	hr_oom_options options = logging(10, 1), larger = logging(5000, 1);
	hr_fault_os_install();
	hr_allocator allocator = make("bfc", &options);
	allocate(allocator, 512, "op");
	uint64_t nth = 1;
	for (;; nth++) {
		CHECK_LE(nth, 100);
		hr_fault_os_fail_nth(nth, false, ENOMEM);
		hr_status status = hr_allocator_set_oom_options(allocator, &larger);
		hr_fault_os_fail_nth(0, false, 0);
		if (status == HR_OK) break;
		CHECK_STATUS(HR_NO_HOST_MEMORY, status);
		CHECK_EQ(collect(allocator), 1);
	}
	CHECK(nth > 3);
	CHECK_EQ(collect(allocator), 0);
	CHECK_STATUS(HR_OK, hr_shutdown());
	hr_fault_os_uninstall();
}

/* ---- context ---- */

static void test_requests_inherit_op_and_scope_of_their_thread(void)
{
	hr_oom_options options = logging(10, 1);
	hr_allocator allocator = make("bfc", &options);
	void *block;
	CHECK_EQ(hr_name_scope_current(), HR_NAME_NONE);
	CHECK_STATUS(HR_OK, hr_name_scope_push("encoder"));
	CHECK_STATUS(HR_OK, hr_name_scope_push("layer_3"));
	CHECK_STR(hr_name_text(hr_name_scope_current()), "encoder/layer_3");
	CHECK_EQ(hr_op_set(hr_name_intern("matmul")), HR_NAME_NONE);
	CHECK_STATUS(HR_OK, hr_alloc_bytes(allocator, 512, &block)); /* the thread's first one: the slow path */
	CHECK_STATUS(HR_OK, hr_alloc_bytes(allocator, 512, &block));
	hr_request request = HR_REQUEST(512);
	request.op = hr_name_intern("own");
	CHECK_STATUS(HR_OK, hr_alloc(allocator, &request, &block));
	CHECK_EQ(hr_op_set(HR_NAME_NONE), hr_name_intern("matmul"));
	CHECK_STATUS(HR_OK, hr_name_scope_pop());
	CHECK_STATUS(HR_OK, hr_alloc_bytes(allocator, 1 << 20, &block));
	CHECK_STATUS(HR_OK, hr_name_scope_pop());
	CHECK_STATUS(HR_OK, hr_alloc_bytes(allocator, 1 << 20, &block));
	CHECK_EQ(collect(allocator), 5);
	static const char *const ops[] = { "matmul", "matmul", "own", "", "" };
	static const char *const scopes[] = { "encoder/layer_3", "encoder/layer_3", "encoder/layer_3", "encoder", "" };
	for (int i = 0; i < 5; i++) {
		CHECK_STR(hr_name_text(entries[i].op), ops[i]);
		CHECK_STR(hr_name_text(entries[i].scope), scopes[i]);
	}
	hr_allocation_info info = { .struct_size = sizeof info };
	CHECK_STATUS(HR_OK, hr_allocation_get_info(allocator, block, &info));
	CHECK_EQ(info.scope, HR_NAME_NONE);
	CHECK_STATUS(HR_OK, hr_shutdown());
}

static void test_scopes_must_balance(void)
{
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_name_scope_pop());
	CHECK_STR(hr_last_message(), "hr_name_scope_pop: no name scope is open on this thread; call hr_name_scope_push first");
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_name_scope_push(NULL));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_name_scope_push(""));
	for (int i = 0; i < 64; i++) CHECK_STATUS(HR_OK, hr_name_scope_push("deep"));
	CHECK_STATUS(HR_TOO_MANY, hr_name_scope_push("deeper"));
	CHECK_STR(hr_last_message(), "this thread is inside 64 name scopes already; pop one first");
	for (int i = 0; i < 64; i++) CHECK_STATUS(HR_OK, hr_name_scope_pop());
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_name_scope_pop());
	char huge[10001];
	memset(huge, 'x', 10000);
	huge[10000] = 0;
	CHECK_STATUS(HR_OK, hr_name_scope_push(huge));
	CHECK_STATUS(HR_OK, hr_name_scope_push(huge));
	CHECK_LE(strlen(hr_name_text(hr_name_scope_current())), 1024);
	CHECK_STATUS(HR_OK, hr_shutdown());
	CHECK_EQ(hr_name_scope_current(), HR_NAME_NONE); /* hr_shutdown ended the scope */
}

TEST_MAIN(T(test_entries_have_the_request_and_its_names), T(test_the_newest_entries_are_kept), T(test_addresses_are_reported_as_the_option_says),
          T(test_sampling_is_fair_to_every_size), T(test_sampled_operations_are_independent_of_those_around_them),
          T(test_distances_between_sampled_operations_are_geometric), T(test_a_log_of_allocations_only_has_no_frees), T(test_a_rate_of_0_logs_nothing_and_1_everything),
          T(test_entries_of_all_threads_are_merged_by_time),
          T(test_threads_that_ended_leave_all_their_entries), T(test_settings_change_while_threads_allocate),
          T(test_bad_settings_are_named_and_change_nothing), T(test_no_memory_for_a_log_leaves_the_old_one),
          T(test_requests_inherit_op_and_scope_of_their_thread), T(test_scopes_must_balance))
