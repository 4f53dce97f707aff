/* test_card_errors.c - what is wrong with a card, its libraries, its programs, their cache or their input gets a status that names it, and values keep what
 * they have. */
#include <dirent.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include "card/support_card.h"
#include "support_files.h"

#define F HR_DTYPE_FLOAT32
#define COUNT 6

static const float numbers[COUNT] = { 1, -2, 3, -4, 5, -6 };

static hr_value some_numbers(void)
{
	return hr_value_keep(hr_constant(F, HR_DIMS(COUNT), numbers));
}

static void check_numbers(hr_value value, float factor)
{
	float is[COUNT];
	CHECK_STATUS(HR_OK, hr_value_fetch(value, is, sizeof is));
	for (int i = 0; i < COUNT; i++) CHECK(is[i] == factor * numbers[i]);
}

/* Adds the numbers to themselves. */
static void check_adds(void)
{
	hr_value x = some_numbers(), sum = hr_value_keep(hr_add(x, x));
	CHECK(sum.id != 0);
	check_numbers(sum, 2);
	hr_value_release(sum);
	hr_value_release(x);
}

static hr_session enter(void)
{
	hr_session session = card_session("GPU:0", (hr_allocator){ 0 });
	CHECK_STATUS(HR_OK, hr_session_enter(session));
	return session;
}

static void leave(hr_session session)
{
	CHECK_STATUS(HR_OK, hr_session_leave());
	CHECK_STATUS(HR_OK, hr_session_destroy(session));
	CHECK_STATUS(HR_OK, hr_shutdown());
}

static void begin_on_stand_in(void)
{
	if (card_is_real()) hr_test_skip("it needs the stand-ins");
	card_begin();
}

/* ---- libraries and cards ---- */

static void test_without_nvrtc_the_host_computes(void)
{
	begin_on_stand_in();
	setenv("HEADROOM_CUDA_LIBRARIES", "0", 1);
	hr_session session = enter();
	CHECK_STATUS(HR_UNSUPPORTED, hr_session_compute_check(session));
	CHECK_CONTAINS(hr_last_message(), "NVRTC");
	check_adds();
	leave(session);
}

/* A folder with NVRTC, and with something else under cuBLASLt's name, so that one of the machine's is not found. */
static void test_without_cublaslt_the_host_multiplies(void)
{
	begin_on_stand_in();
	char library[4600];
	const char *folder = in_folder("nvrtc");
	float is;
	CHECK_EQ(0, mkdir(folder, 0700));
	snprintf(library, sizeof library, "%s/libnvrtc.so.13", getenv("HEADROOM_CUDA_LIBRARIES"));
	char *whole = realpath(library, NULL);
	CHECK_EQ(0, symlink(whole, in_folder("nvrtc/libnvrtc.so.13")));
	CHECK_EQ(0, symlink(whole, in_folder("nvrtc/libcublasLt.so.13")));
	setenv("HEADROOM_CUDA_LIBRARIES", folder, 1);
	hr_session session = enter();
	CHECK_STATUS(HR_UNSUPPORTED, hr_session_compute_check(session));
	CHECK_CONTAINS(hr_last_message(), "products of matrices of GPU:0: cuBLASLt is too old: it has no cublasLtCreate");
	check_adds();
	hr_value x = some_numbers();
	hr_value product = hr_value_keep(hr_matmul(hr_reshape(x, HR_DIMS(1, COUNT)), hr_reshape(x, HR_DIMS(COUNT, 1))));
	CHECK_STATUS(HR_OK, hr_value_fetch(product, &is, sizeof is));
	CHECK(is == 91);
	hr_value_release(product);
	hr_value_release(x);
	free(whole);
	leave(session);
}

static void test_an_old_card_leaves_ops_to_the_host(void)
{
	begin_on_stand_in();
	setenv("FAKE_NVRTC_ARCHS", "100,120", 1);
	hr_session session = enter();
	CHECK_STATUS(HR_UNSUPPORTED, hr_session_compute_check(session));
	CHECK_CONTAINS(hr_last_message(), "too old");
	check_adds();
	leave(session);
}

/* ---- programs and their cache ---- */

static void test_a_program_that_does_not_compile_is_named(void)
{
	begin_on_stand_in();
	setenv("HEADROOM_KERNEL_CACHE", "0", 1);
	hr_session session = enter();
	hr_value x = some_numbers();
	hr_variable v = hr_get_variable("v", F, HR_DIMS(COUNT), HR_UNINITIALIZED);
	CHECK(hr_assign(v, x).id != 0);
	setenv("FAKE_NVRTC_BREAK", "#error as the test demands", 1);
	CHECK(hr_add(x, x).id == 0);
	CHECK_STATUS(HR_DEVICE_ERROR, hr_last_status());
	CHECK_CONTAINS(hr_last_message(), "cannot compile elements.cuh");
	CHECK_CONTAINS(hr_last_message(), "as the test demands");
	CHECK(hr_assign_add(v, x).id == 0);
	CHECK_CONTAINS(hr_last_message(), "cannot compile update.cuh");
	check_numbers(x, 1);
	check_numbers(hr_variable_read(v), 1);
	unsetenv("FAKE_NVRTC_BREAK");
	CHECK(hr_assign_add(v, x).id != 0); /* it is compiled when it is needed next */
	check_numbers(hr_variable_read(v), 2);
	hr_value_release(x);
	leave(session);
}

static void test_a_cache_that_cannot_be_written_is_not_needed(void)
{
	begin_on_stand_in();
	setenv("HEADROOM_KERNEL_CACHE", "/dev/null/kernels", 1);
	hr_session session = enter();
	check_adds();
	leave(session);
}

/* Overwrites the middle of each file, or cuts it short. Returns their number. */
static int damage(const char *folder, bool cut)
{
	char path[4600];
	int count = 0;
	DIR *list = opendir(folder);
	CHECK(list != NULL);
	for (struct dirent *at; (at = readdir(list)) != NULL;) {
		if (at->d_name[0] == '.') continue;
		snprintf(path, sizeof path, "%s/%s", folder, at->d_name);
		FILE *file = fopen(path, "r+");
		CHECK(file != NULL);
		CHECK_EQ(0, fseek(file, 2000, SEEK_SET));
		for (int i = 0; i < 64; i++) CHECK(fputc(0x5a, file) != EOF);
		if (cut) CHECK_EQ(0, ftruncate(fileno(file), 2064));
		CHECK_EQ(0, fclose(file));
		count++;
	}
	closedir(list);
	return count;
}

static void test_a_damaged_cache_is_replaced(void)
{
	begin_on_stand_in();
	const char *folder = in_folder("kernels");
	setenv("HEADROOM_KERNEL_CACHE", folder, 1);
	for (int i = 0; i < 3; i++) {
		hr_session session = enter();
		check_adds();
		leave(session);
		CHECK_EQ(2, damage(folder, i == 0)); /* the program of sums, and that of the kernel that fetches them */
	}
}

/* ---- calls that fail ---- */

/* A step of ops of all kinds: 0, or the first failure. The variable is updated last. */
static hr_status step(hr_variable v, hr_value x)
{
	hr_value h = hr_reshape(hr_softmax(hr_add(x, hr_reduce_sum(x, 0, true))), HR_DIMS(2, 3));
	h = hr_matmul_transposed(h, false, hr_broadcast_to(hr_slice(x, 0, 1, 3), HR_DIMS(2, 3)), true);
	h = hr_gather(h, hr_full(HR_DTYPE_INT32, HR_DIMS(3), 1));
	hr_value done = hr_assign_add(v, hr_add(x, hr_scale(hr_reduce_sum(h, HR_ALL_AXES, false), 0, 0)));
	return done.id ? HR_OK : hr_last_status();
}

static void test_each_call_that_fails_leaves_values_as_they_were(void)
{
	begin_on_stand_in();
	hr_session session = enter();
	hr_value x = some_numbers();
	hr_variable v = hr_get_variable("v", F, HR_DIMS(COUNT), HR_ZEROS);
	float factor = 1;
	CHECK_STATUS(HR_OK, step(v, x)); /* programs are loaded */
	check_numbers(hr_variable_read(v), factor);
	unsigned long long nth = 1;
	for (bool failed = true; failed; nth++) {
		fake.fail_nth(nth, HR__CUDA_ERROR_NOT_SUPPORTED);
		hr_status status = step(v, x);
		failed = fake.failed()[0] != 0;
		CHECK(failed || !status);
		if (status) CHECK(strstr(hr_last_message(), "_NOT_SUPPORTED") || strstr(hr_last_message(), "CUBLAS_STATUS"));
		fake.fail_nth(0, 0);
		if (!status) factor++;
		check_numbers(x, 1);
		check_numbers(hr_variable_read(v), factor);
	}
	CHECK_GT(nth, 20);
	hr_value_release(x);
	leave(session);
}

/* Attention of bfloat16, and its gradients: 0, or the first failure. */
static hr_status attend_and_go_back(hr_value x)
{
	hr_value by = HR_NO_VALUE;
	CHECK_STATUS(HR_OK, hr_tape_begin());
	hr_value narrow = hr_value_keep(hr_cast(x, HR_DTYPE_BFLOAT16));
	hr_value y = hr_attend(narrow, narrow, narrow, 1, 1, true), sum = y.id ? hr_reduce_sum(hr_cast(y, F), HR_ALL_AXES, false) : y;
	hr_status status = sum.id ? hr_gradients(sum, &x, 1, &by) : hr_last_status();
	CHECK_STATUS(HR_OK, hr_tape_end());
	hr_value_release(narrow);
	hr_value_release(by);
	return status;
}

static int64_t bytes_in_use(hr_allocator allocator)
{
	hr_stats stats;
	hr_stats_init(&stats);
	CHECK_STATUS(HR_OK, hr_allocator_get_stats(allocator, &stats));
	return stats.bytes_in_use;
}

static void test_calls_that_fail_in_attention_leave_nothing_behind(void)
{
	static const float zeros[16 * 8];
	begin_on_stand_in();
	hr_allocator allocator = fixture_allocator(fixture_device("GPU:0"), 0);
	hr_session session = card_session("GPU:0", allocator);
	CHECK_STATUS(HR_OK, hr_session_enter(session));
	hr_value x = hr_value_keep(hr_constant(F, HR_DIMS(16, 8), zeros));
	CHECK_STATUS(HR_OK, attend_and_go_back(x)); /* programs are loaded */
	int64_t before = bytes_in_use(allocator);
	unsigned long long nth = 1;
	for (bool failed = true; failed; nth++) {
		fake.fail_nth(nth, HR__CUDA_ERROR_NOT_SUPPORTED);
		hr_status status = attend_and_go_back(x);
		failed = fake.failed()[0] != 0;
		fake.fail_nth(0, 0);
		CHECK(failed || !status);
		CHECK_EQ(bytes_in_use(allocator), before);
	}
	CHECK_GT(nth, 12);
	hr_value_release(x);
	leave(session);
}

/* A graph of a chain, of temporary values: 0, or the first failure. */
static hr_status run_chain(hr_session session, const hr_value *places, hr_value y)
{
	hr_feed feeds[2];
	hr_value out = HR_NO_VALUE;
	for (int i = 0; i < 2; i++) {
		feeds[i] = (hr_feed){ places[i], hr_full(F, HR_DIMS(64, 64), 1 + i) };
		if (feeds[i].value.id) continue;
		if (i) hr_value_release(feeds[0].value);
		return hr_last_status();
	}
	hr_status status = hr_session_run(session, feeds, 2, &y, 1, &out, NULL, NULL);
	hr_value_release(out);
	return status;
}

static void test_calls_that_fail_in_a_chain_leave_nothing_behind(void)
{
	begin_on_stand_in();
	hr_allocator allocator = fixture_allocator(fixture_device("GPU:0"), 0);
	hr_session session = card_session("GPU:0", allocator);
	hr_graph graph;
	CHECK_STATUS(HR_OK, hr_session_enter(session));
	CHECK_STATUS(HR_OK, hr_graph_create(&graph));
	CHECK_STATUS(HR_OK, hr_graph_enter(graph));
	hr_value places[2] = { hr_placeholder(F, HR_DIMS(64, 64)), hr_placeholder(F, HR_DIMS(64, 64)) };
	hr_value y = hr_cast(hr_relu(hr_add(places[0], places[1])), HR_DTYPE_BFLOAT16);
	CHECK_STATUS(HR_OK, hr_graph_leave());
	CHECK_STATUS(HR_OK, run_chain(session, places, y)); /* programs are loaded */
	int64_t before = bytes_in_use(allocator);
	unsigned long long nth = 1;
	for (bool failed = true; failed; nth++) {
		fake.fail_nth(nth, HR__CUDA_ERROR_NOT_SUPPORTED);
		hr_status status = run_chain(session, places, y);
		failed = fake.failed()[0] != 0;
		fake.fail_nth(0, 0);
		CHECK(failed || !status);
		CHECK_EQ(bytes_in_use(allocator), before);
	}
	CHECK_GT(nth, 4);
	CHECK_STATUS(HR_OK, hr_graph_destroy(graph));
	leave(session);
}

static hr_status open_and_compute(void)
{
	hr_session session;
	hr_session_options options;
	float is[4];
	hr_session_options_init(&options);
	options.device = "GPU:0";
	hr_status status = hr_session_create(&options, &session);
	if (status) return status;
	CHECK_STATUS(HR_OK, hr_session_enter(session));
	hr_value x = hr_exp(hr_full(F, HR_DIMS(4), 0));
	status = x.id ? hr_value_fetch(x, is, sizeof is) : hr_last_status();
	if (!status) CHECK(is[0] == 1 && is[3] == 1);
	CHECK_STATUS(HR_OK, hr_session_leave());
	hr_session_destroy(session);
	return status;
}

/* Also each call that opens the card, compiles and loads. */
static void test_each_call_of_the_first_op_can_fail(void)
{
	begin_on_stand_in();
	leave(enter()); /* the driver is loaded and the card is known */
	unsigned long long nth = 1;
	for (bool failed = true; failed; nth++) {
		fake.fail_nth(nth, HR__CUDA_ERROR_NOT_SUPPORTED);
		hr_status status = open_and_compute();
		failed = fake.failed()[0] != 0;
		fake.fail_nth(0, 0);
		CHECK(failed || !status);
		if (status) CHECK(hr_last_message()[0] != 0);
		hr_shutdown();
		CHECK_STATUS(HR_OK, open_and_compute());
		hr_shutdown();
	}
	CHECK_GT(nth, 20);
}

/* ---- errors that kernels find ---- */

/* The op's error is reported at the next wait; until then variables keep what they have. */
static void check_fault(hr_value value, hr_variable v, hr_value x, const char *text)
{
	float is[64];
	CHECK(value.id != 0);
	hr_value_keep(value);
	CHECK(hr_assign_add(v, x).id != 0);
	size_t bytes = (size_t)hr_value_count(value) * hr_dtype_size(hr_value_dtype(value));
	CHECK(bytes <= sizeof is);
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_value_fetch(value, is, bytes));
	CHECK_CONTAINS(hr_last_message(), text);
	hr_value_release(value);
	check_numbers(hr_variable_read(v), 1);
}

static hr_value number(hr_dtype dtype, int64_t count, double x)
{
	return hr_full(dtype, HR_DIMS(count), x);
}

static hr_value gathered_gradient(hr_value x)
{
	hr_value grad, table = hr_value_keep(hr_reshape(x, HR_DIMS(3, 2)));
	CHECK_STATUS(HR_OK, hr_tape_begin());
	hr_value loss = hr_reduce_sum(hr_gather(table, number(HR_DTYPE_INT64, 2, -1)), HR_ALL_AXES, false);
	CHECK_STATUS(HR_OK, hr_gradients(loss, &table, 1, &grad));
	CHECK_STATUS(HR_OK, hr_tape_end());
	hr_value_release(table);
	return grad;
}

static void test_errors_of_kernels_do_not_reach_variables(void)
{
	hr_session session = card_open();
	CHECK_STATUS(HR_OK, hr_session_enter(session));
	hr_value x = some_numbers();
	hr_variable v = hr_get_variable("v", F, HR_DIMS(COUNT), HR_UNINITIALIZED);
	CHECK(hr_assign(v, x).id != 0);
	check_fault(hr_gather(hr_reshape(x, HR_DIMS(3, 2)), number(HR_DTYPE_INT32, 2, 3)), v, x, "an index is out of range: 3 is not from 0 to 2; shapes [3,2] and [2]");
	check_fault(gathered_gradient(x), v, x, "an index is out of range: -1 is not from 0 to 2");
	check_fault(hr_one_hot(number(HR_DTYPE_INT32, 2, 7), 5, F), v, x, "an index is out of range: 7 is not from 0 to 4");
	check_fault(hr_cross_entropy(hr_reshape(x, HR_DIMS(2, 3)), number(HR_DTYPE_INT32, 2, 3)), v, x, "a label is out of range: 3 is not from 0 to 2");
	check_fault(hr_div(number(HR_DTYPE_INT32, 3, 5), number(HR_DTYPE_INT32, 3, 0)), v, x, "integer division by zero");
	CHECK(hr_assign_add(v, x).id != 0);
	check_numbers(hr_variable_read(v), 2);
	hr_value_release(x);
	leave(session);
}

TEST_MAIN(T(test_without_nvrtc_the_host_computes), T(test_without_cublaslt_the_host_multiplies), T(test_an_old_card_leaves_ops_to_the_host), T(test_a_program_that_does_not_compile_is_named),
          T(test_a_cache_that_cannot_be_written_is_not_needed), T(test_a_damaged_cache_is_replaced),
          T_WITHIN(test_each_call_that_fails_leaves_values_as_they_were, 120), T_WITHIN(test_each_call_of_the_first_op_can_fail, 120),
          T_WITHIN(test_calls_that_fail_in_attention_leave_nothing_behind, 120),
          T_WITHIN(test_calls_that_fail_in_a_chain_leave_nothing_behind, 120),
          T(test_errors_of_kernels_do_not_reach_variables))
