/* test_leaks.c - hr_shutdown reports blocks, tensors and values that a program did not free, closes them, and reports nothing else.
 * */
#include <sys/wait.h>

#include "fixture.h"
#include "fault_os.h"
#include "headroom_runtime.h"
#include "test.h"

#define MIB (UINT64_C(1) << 20)

/* The library's own function; the macro of test.h treats leaks as success. */
static hr_status shut_down(void)
{
	return (hr_shutdown)();
}

static hr_allocator default_allocator(void)
{
	hr_allocator allocator;
	CHECK_STATUS(HR_OK, hr_allocator_get_default("SIM:0", &allocator));
	return allocator;
}

static void *take(hr_allocator allocator, uint64_t bytes, const char *op, const char *scope, const char *tag)
{
	hr_request request = HR_REQUEST(bytes);
	void *block;
	request.op = hr_name_intern(op);
	request.scope = hr_name_intern(scope);
	request.tag = hr_name_intern(tag);
	CHECK_STATUS(HR_OK, hr_alloc(allocator, &request, &block));
	return block;
}

static void test_nothing_left_is_ok(void)
{
	hr_allocator allocator = default_allocator(), other;
	hr_device device;
	CHECK_STATUS(HR_OK, hr_device_find("SIM:0", &device));
	CHECK_STATUS(HR_OK, hr_allocator_create(device, NULL, &other)); /* open, but empty */
	CHECK_STATUS(HR_OK, hr_free(allocator, take(allocator, 5 * MIB, "a", "b", "c"), HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_free(allocator, take(allocator, 100, "a", "b", "c"), HR_STREAM_DEFAULT)); /* now in a cache */
	CHECK_STATUS(HR_OK, shut_down());
	CHECK_STATUS(HR_OK, shut_down());
}

/* 1 + 2 + 4 MiB, and 1,000 bytes that take 1,024: 7 * 1,048,576 + 1,024 = 7,341,056. Op matmul has 1 + 4, scope encoder 2 + 4. */
static void test_blocks_are_counted_with_their_largest_holders(void)
{
	hr_allocator first = default_allocator(), second;
	hr_device device;
	CHECK_STATUS(HR_OK, hr_device_find("SIM:0", &device));
	CHECK_STATUS(HR_OK, hr_allocator_create(device, NULL, &second));
	take(first, MIB, "matmul", "decoder", "weights");
	take(first, 2 * MIB, "relu", "encoder", "");
	take(second, 4 * MIB, "matmul", "encoder", "");
	take(second, 1000, "", "", "");
	CHECK_STATUS(HR_LEAKED, shut_down());
	CHECK_STR(hr_last_message(), "hr_shutdown freed 4 blocks (7.0 MiB) that the program had not freed; the largest holders are "
	                             "op matmul (5.0 MiB), scope encoder (6.0 MiB), tag weights (1.0 MiB)");
	CHECK_STR(hr_status_name(hr_last_status()), "HR_LEAKED");
	/* Everything is closed, and the library can be used again. */
	CHECK_STATUS(HR_INVALID_HANDLE, hr_allocator_check(first));
	CHECK_STATUS(HR_OK, hr_free(default_allocator(), take(default_allocator(), MIB, "a", "", ""), HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, shut_down());
}

static void test_one_block_without_a_name(void)
{
	void *block;
	CHECK_STATUS(HR_OK, hr_alloc_bytes(default_allocator(), MIB, &block));
	CHECK_STATUS(HR_LEAKED, shut_down());
	CHECK_STR(hr_last_message(), "hr_shutdown freed 1 block (1.0 MiB) that the program had not freed");
}

/* Closing an allocator explicitly together with its blocks is no leak. */
static void test_a_closed_allocator_leaks_nothing(void)
{
	hr_allocator allocator;
	hr_device device;
	void *block;
	CHECK_STATUS(HR_OK, hr_device_find("SIM:0", &device));
	CHECK_STATUS(HR_OK, hr_allocator_create(device, NULL, &allocator));
	CHECK_STATUS(HR_OK, hr_alloc_bytes(allocator, MIB, &block));
	CHECK_STATUS(HR_OK, hr_allocator_destroy_all(allocator));
	CHECK_STATUS(HR_OK, shut_down());
}

/* Two tensors of 3 MiB, one of them evicted; one that never had memory; and a block. */
static void test_tensors_are_counted_wherever_they_are(void)
{
	hr_allocator allocator = default_allocator();
	fixture_lms(allocator, "lru", 64 * MIB);
	for (int i = 0; i < 3; i++) {
		hr_tensor_options options;
		hr_tensor tensor;
		hr_tensor_options_init(&options);
		options.bytes = 3 * MIB;
		options.tag = hr_name_intern("activations");
		CHECK_STATUS(HR_OK, hr_tensor_create(allocator, &options, &tensor));
		if (i == 2) continue;
		CHECK_STATUS(HR_OK, hr_tensor_pin(tensor, HR_OVERWRITE, HR_STREAM_DEFAULT));
		CHECK_STATUS(HR_OK, hr_tensor_unpin(tensor, HR_STREAM_DEFAULT));
		if (i == 0) CHECK_STATUS(HR_OK, hr_lms_reclaim_inactive(allocator, HR_NAME_NONE, NULL));
	}
	take(allocator, MIB, "matmul", "", "");
	CHECK_STATUS(HR_LEAKED, shut_down());
	CHECK_STR(hr_last_message(), "hr_shutdown freed 1 block (1.0 MiB), 3 tensors (9.0 MiB) that the program had not freed; the "
	                             "largest holders are op matmul (1.0 MiB), tag activations (9.0 MiB)");
}

/* 1,024 float32 take 4 KiB. A session and its variables may be left open. */
static void test_values_of_open_sessions_are_counted(void)
{
	for (int leaves = 0; leaves < 2; leaves++) {
		hr_session session;
		hr_session_options options;
		hr_session_options_init(&options);
		CHECK_STATUS(HR_OK, hr_session_create(&options, &session));
		CHECK_STATUS(HR_OK, hr_session_enter(session));
		hr_value value = hr_value_keep(hr_full(HR_DTYPE_FLOAT32, HR_DIMS(1024), 1));
		CHECK(value.id != 0);
		if (!leaves) hr_value_release(value);
		CHECK_STATUS(leaves ? HR_LEAKED : HR_OK, shut_down());
		if (leaves)
			CHECK_STR(hr_last_message(), "hr_shutdown freed 1 value (4.0 KiB) that the program had not freed; the largest value is of op "
			                             "full");
	}
}

/* The sessions hold 4 KiB, 3 x 2 KiB and 1 x 5 KiB: the largest value is in neither the first session nor the one that holds most. */
static void test_the_largest_value_of_all_sessions_is_named(void)
{
	hr_session session;
	for (int i = 0; i < 3; i++) {
		hr_session_options options;
		hr_session_options_init(&options);
		CHECK_STATUS(HR_OK, hr_session_create(&options, &session));
		CHECK_STATUS(HR_OK, hr_session_enter(session));
		if (i == 0) hr_value_keep(hr_random_normal(HR_DTYPE_FLOAT32, HR_DIMS(1024), 1));
		for (int j = 0; i == 1 && j < 3; j++) hr_value_keep(hr_random_uniform(HR_DTYPE_FLOAT32, HR_DIMS(512), 0, 1, 1));
		if (i == 2) hr_value_keep(hr_full(HR_DTYPE_FLOAT32, HR_DIMS(1280), 1));
	}
	CHECK_STATUS(HR_LEAKED, shut_down());
	CHECK_STR(hr_last_message(), "hr_shutdown freed 5 values (15.0 KiB) that the program had not freed; the largest value is of op full");
}

static void test_a_forked_child_does_not_report_its_parents_blocks(void)
{
	hr_allocator allocator = default_allocator();
	void *block = take(allocator, MIB, "parent", "", "");
	pid_t child = fork();
	if (child == 0) {
		if (shut_down() != HR_OK) _exit(1);
		if (hr_alloc_bytes(default_allocator(), 2 * MIB, &block)) _exit(2);
		if (shut_down() != HR_LEAKED) _exit(3); /* the child's own leak */
		_exit(strncmp(hr_last_message(), "hr_shutdown freed 1 block (2.0 MiB) ", 36) ? 4 : 0);
	}
	int status;
	CHECK_EQ(waitpid(child, &status, 0), child);
	CHECK_EQ(WEXITSTATUS(status), 0);
	CHECK_STATUS(HR_OK, hr_free(allocator, block, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, shut_down());
}

/* ---- custom allocators ---- */

static hr_allocator below;

static hr_status custom_open(void *user, hr_device device, uint64_t limit, void **state)
{
	(void)user, (void)device, (void)limit;
	return hr_alloc_bytes(below, 8 * MIB, state);
}

static void custom_close(void *state)
{
	hr_free(below, state, HR_STREAM_DEFAULT);
}

static hr_status custom_alloc(void *state, size_t bytes, size_t alignment, hr_stream stream, void **out)
{
	(void)bytes, (void)alignment, (void)stream;
	*out = state;
	return HR_OK;
}

static hr_status custom_free(void *state, void *address, size_t bytes, hr_stream stream)
{
	(void)state, (void)address, (void)bytes, (void)stream;
	return HR_OK;
}

/* A custom allocator frees its memory when it is closed: only the block that it returned to the program remains. */
static void test_blocks_that_a_custom_allocator_frees_on_close_are_not_leaks(void)
{
	hr_custom_allocator table = { .struct_size = sizeof table, .open = custom_open, .close = custom_close, .alloc = custom_alloc, .free = custom_free };
	hr_allocator_options options;
	hr_device device;
	for (int leaves = 0; leaves < 2; leaves++) {
		hr_allocator custom;
		void *block;
		below = default_allocator();
		CHECK_STATUS(HR_OK, hr_allocator_register("mine", &table, NULL));
		hr_allocator_options_init(&options);
		options.kind = "mine";
		CHECK_STATUS(HR_OK, hr_device_find("SIM:0", &device));
		CHECK_STATUS(HR_OK, hr_allocator_create(device, &options, &custom));
		if (leaves) CHECK_STATUS(HR_OK, hr_alloc_bytes(custom, 4096, &block));
		CHECK_STATUS(leaves ? HR_LEAKED : HR_OK, shut_down());
	}
	CHECK_STR(hr_last_message(), "hr_shutdown freed 1 block (4.0 KiB) that the program had not freed");
}

/* ---- errors ---- */

/* If there is no memory to add up names, leaks are counted anyway; the library leaks nothing itself. */
static void test_counting_survives_any_call_that_fails(void)
{
	hr_fault_os_install();
	for (uint64_t nth = 1; nth < 30; nth++) {
		take(default_allocator(), MIB, "matmul", "", "");
		hr_fault_os_fail_nth(nth, false, ENOMEM);
		hr_status status = shut_down();
		hr_fault_os_fail_nth(0, false, 0);
		CHECK_STATUS(HR_LEAKED, status);
		CHECK_CONTAINS(hr_last_message(), "hr_shutdown freed 1 block (1.0 MiB) that the program had not freed");
	}
	CHECK(hr_fault_os_is_clean());
	hr_fault_os_uninstall();
}

TEST_MAIN(T(test_nothing_left_is_ok), T(test_the_largest_value_of_all_sessions_is_named), T(test_blocks_are_counted_with_their_largest_holders), T(test_one_block_without_a_name),
          T(test_a_closed_allocator_leaks_nothing), T(test_tensors_are_counted_wherever_they_are), T(test_values_of_open_sessions_are_counted),
          T(test_a_forked_child_does_not_report_its_parents_blocks), T(test_blocks_that_a_custom_allocator_frees_on_close_are_not_leaks),
          T(test_counting_survives_any_call_that_fails))
