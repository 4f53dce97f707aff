/* test_feed.c - placeholders with names, and feeds from plain arrays. */
#include <errno.h>
#include <string.h>

#include "fault_os.h"
#include "headroom_runtime.h"
#include "support_session.h"

static hr_graph graph;

static void begin(void)
{
	open_session(0);
	CHECK_STATUS(HR_OK, hr_graph_create(&graph));
	CHECK_STATUS(HR_OK, hr_graph_enter(graph));
}

static void end(void)
{
	CHECK_STATUS(HR_OK, hr_graph_destroy(graph));
	close_session();
}

/* 1 2 3 and 4 5 6 are 5 7 9. */
static void test_arrays_are_fed_by_name(void)
{
	static const int64_t one[] = { 1, 2, 3 }, other[] = { 4, 5, 6 };
	int64_t sum[3];
	hr_value a, b, result;
	begin();
	hr_value x = hr_named_placeholder("x", HR_DTYPE_INT64, HR_DIMS(3));
	CHECK_STATUS(HR_OK, hr_name_scope_push("tower"));
	hr_value y = hr_add(x, hr_named_placeholder("x", HR_DTYPE_INT64, HR_DIMS(3)));
	CHECK_STATUS(HR_OK, hr_name_scope_pop());
	CHECK_STATUS(HR_OK, hr_graph_leave());
	CHECK_STATUS(HR_OK, hr_graph_find_placeholder(graph, "x", &a));
	CHECK_STATUS(HR_OK, hr_graph_find_placeholder(graph, "tower/x", &b));
	CHECK_EQ(a.id, x.id);
	CHECK_EQ(stats_of().num_allocs, 0);
	hr_feed feeds[] = { hr_feed_from_array(session, a, one, sizeof one), hr_feed_from_array(session, b, other, sizeof other) };
	CHECK_EQ(stats_of().num_allocs, 2);
	CHECK_STATUS(HR_OK, hr_session_run(session, feeds, 2, &y, 1, &result, NULL, NULL));
	CHECK_STATUS(HR_OK, hr_value_fetch(result, sum, sizeof sum));
	CHECK_EQ(sum[0], 5);
	CHECK_EQ(sum[1], 7);
	CHECK_EQ(sum[2], 9);
	CHECK_EQ(stats_of().bytes_in_use, 0); /* the run consumed the feeds */
	end();
}

/* The value belongs to the session, whatever the thread has entered, and the array may be reused at once. */
static void test_an_array_is_copied_at_once_and_in_any_place(void)
{
	float numbers[] = { 1, 2 }, twice[2];
	hr_value result;
	begin();
	hr_value x = hr_placeholder(HR_DTYPE_FLOAT32, HR_DIMS(2)), y = hr_scale(x, 2, 0);
	CHECK_STATUS(HR_OK, hr_session_leave());
	hr_feed feed = hr_feed_from_array(session, x, numbers, sizeof numbers); /* inside the graph, in no session */
	memset(numbers, 0, sizeof numbers);
	CHECK_STATUS(HR_OK, hr_session_enter(session));
	CHECK_STATUS(HR_OK, hr_graph_leave());
	CHECK_STATUS(HR_OK, hr_session_run(session, &feed, 1, &y, 1, &result, NULL, NULL));
	CHECK_STATUS(HR_OK, hr_value_fetch(result, twice, sizeof twice));
	CHECK_EQ(twice[0], 2.0f);
	CHECK_EQ(twice[1], 4.0f);
	end();
}

static void test_messages_call_a_placeholder_by_its_name(void)
{
	float numbers[3] = { 1, 2, 3 };
	hr_value result, found = HR_NO_VALUE;
	begin();
	CHECK_STATUS(HR_OK, hr_name_scope_push("tower"));
	hr_value x = hr_named_placeholder("x", HR_DTYPE_FLOAT32, HR_DIMS(3)), y = hr_neg(x);
	CHECK(!hr_named_placeholder("x", HR_DTYPE_FLOAT32, HR_DIMS(3)).id);
	CHECK_EQ(hr_last_status(), HR_ALREADY_EXISTS);
	CHECK_STR(hr_last_message(), "the graph has a placeholder \"tower/x\" already; hr_graph_find_placeholder gives it");
	CHECK_STATUS(HR_OK, hr_name_scope_pop());
	CHECK(!hr_named_placeholder("", HR_DTYPE_FLOAT32, HR_DIMS(3)).id);
	CHECK_STR(hr_last_message(), "hr_named_placeholder needs a name");
	CHECK(!hr_named_placeholder("bad", HR_DTYPE_FLOAT32, HR_DIMS(-3)).id);
	CHECK_CONTAINS(hr_last_message(), "placeholder \"bad\": ");
	CHECK_STATUS(HR_OK, hr_graph_leave());
	CHECK(!hr_named_placeholder("x", HR_DTYPE_FLOAT32, HR_DIMS(3)).id);
	CHECK_STR(hr_last_message(), "placeholder \"x\": it is for graphs; hr_graph_enter first");

	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_session_run(session, NULL, 0, &y, 1, &result, NULL, NULL));
	CHECK_CONTAINS(hr_last_message(), "the placeholder \"tower/x\" of float32 [3] is needed, but not fed");
	hr_feed wrong = { x, hr_full(HR_DTYPE_FLOAT32, HR_DIMS(2), 1) };
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_session_run(session, &wrong, 1, &y, 1, &result, NULL, NULL));
	CHECK_CONTAINS(hr_last_message(), "feed 0, for placeholder \"tower/x\": the placeholder is float32 [3], and the value float32 [2]");

	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_graph_find_placeholder(graph, "x", &found));
	CHECK_STR(hr_last_message(), "there is no placeholder \"x\"; those with names are \"tower/x\"");
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_graph_find_placeholder(graph, NULL, &found));
	CHECK_STATUS(HR_INVALID_HANDLE, hr_graph_find_placeholder((hr_graph){ 0 }, "x", &found));
	CHECK_EQ(found.id, 0);

	hr_feed small = hr_feed_from_array(session, x, numbers, 8);
	CHECK_EQ(small.value.id, 0);
	CHECK_STR(hr_last_message(), "hr_feed_from_array: 8 bytes given for a placeholder of float32 [3], which has 12");
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_session_run(session, &small, 1, &y, 1, &result, NULL, NULL));
	CHECK_CONTAINS(hr_last_message(), "feed 0: hr_feed_from_array: 8 bytes given");
	CHECK_EQ(hr_feed_from_array(session, x, NULL, 12).value.id, 0);
	CHECK_STR(hr_last_message(), "hr_feed_from_array: data is NULL");
	hr_value loose = hr_full(HR_DTYPE_FLOAT32, HR_DIMS(3), 1);
	CHECK_EQ(hr_feed_from_array(session, loose, numbers, 12).value.id, 0);
	CHECK_STR(hr_last_message(), "hr_feed_from_array: the value fed is not a placeholder");
	hr_value_release(loose);
	CHECK_EQ(hr_feed_from_array((hr_session){ 0 }, x, numbers, 12).value.id, 0);
	end();
}

/* A list longer than a message is cut, and says so. */
static void test_many_names_are_cut(void)
{
	hr_value found;
	char name[120];
	begin();
	for (int i = 0; i < 20; i++) {
		snprintf(name, sizeof name, "%0100d", i);
		CHECK(hr_named_placeholder(name, HR_DTYPE_FLOAT32, HR_DIMS(1)).id);
	}
	CHECK_STATUS(HR_OK, hr_graph_leave());
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_graph_find_placeholder(graph, "x", &found));
	CHECK_CONTAINS(hr_last_message(), "...");
	end();
}

/* Whatever call to the system fails: no value, a message, and no leak. */
static void test_feeding_without_memory(void)
{
	float numbers[] = { 1, 2, 3 };
	hr_fault_os_install();
	begin();
	hr_value x = hr_placeholder(HR_DTYPE_FLOAT32, HR_DIMS(3));
	CHECK_STATUS(HR_OK, hr_graph_leave());
	hr_value_release(hr_feed_from_array(session, x, numbers, sizeof numbers).value); /* creates what is made only once */
	for (uint64_t n = 1;; n++) {
		hr_fault_os_fail_nth(n, false, ENOMEM);
		hr_feed feed = hr_feed_from_array(session, x, numbers, sizeof numbers);
		bool whole = hr_fault_os_calls() < n;
		hr_fault_os_fail_nth(0, false, 0);
		if (!feed.value.id) CHECK_CONTAINS(hr_last_message(), "hr_feed_from_array: ");
		hr_value_release(feed.value);
		CHECK_STATUS(HR_OK, hr_session_synchronize(session));
		CHECK_EQ(stats_of().bytes_in_use, 0);
		if (whole) break;
	}
	end();
	CHECK(hr_fault_os_is_clean());
	hr_fault_os_uninstall();
}

TEST_MAIN(T(test_arrays_are_fed_by_name), T(test_an_array_is_copied_at_once_and_in_any_place), T(test_messages_call_a_placeholder_by_its_name),
          T(test_many_names_are_cut), T(test_feeding_without_memory))
