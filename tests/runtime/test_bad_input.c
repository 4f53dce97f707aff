/* test_bad_input.c - errors of calls are reported with the op, its scope, and both shapes if there are two. They have no other
 * effect: temporary inputs are consumed, kept ones remain, and the next call works. */
#include <math.h>
#include <stdarg.h>

#include "headroom_runtime.h"
#include "support_session.h"

#define F HR_DTYPE_FLOAT32
#define NO_SUCH 99

static hr_value ones(hr_dtype dtype, const int64_t *dims, int rank)
{
	return hr_full(dtype, dims, rank, 1);
}

/* Opens a session and a scope, whose name messages must contain. */
static void begin(void)
{
	open_session(0);
	CHECK_STATUS(HR_OK, hr_name_scope_push("tower"));
}

static void end(void)
{
	CHECK_STATUS(HR_OK, hr_name_scope_pop());
	close_session();
}

/* Checks that the call failed with a message that contains all of the parts, up to a NULL, and left nothing. */
static void check_refused(int line, hr_value out, hr_status status, ...)
{
	va_list parts;
	char text[1024];
	snprintf(text, sizeof text, "%s", hr_last_message());
	if (out.id || hr_last_status() != status) printf("# line %d: %s, \"%s\"\n", line, hr_status_name(hr_last_status()), text);
	CHECK_EQ(out.id, 0);
	CHECK_EQ((int)hr_last_status(), (int)status);
	va_start(parts, status);
	for (const char *part = va_arg(parts, const char *); part; part = va_arg(parts, const char *)) {
		if (!strstr(text, part)) printf("# line %d\n", line);
		CHECK_CONTAINS(text, part);
	}
	va_end(parts);
	CHECK_EQ(stats_of().bytes_in_use, 0);
}

/* An invalid op call. */
#define REFUSED(call, op, ...) check_refused(__LINE__, (call), HR_INVALID_ARGUMENT, "op \"" op "\" in scope \"tower\"", __VA_ARGS__, (const char *)NULL)

/* ---- shapes ---- */

static void test_shapes_that_do_not_fit(void)
{
	begin();
	REFUSED(hr_add(ones(F, HR_DIMS(2, 3)), ones(F, HR_DIMS(4))), "add", "[2,3]", "[4]");
	REFUSED(hr_maximum(ones(F, HR_DIMS(2, 3)), ones(F, HR_DIMS(3, 3))), "maximum", "[2,3]", "[3,3]");
	REFUSED(hr_exp(hr_matmul(ones(F, HR_DIMS(2, 3)), ones(F, HR_DIMS(4, 5)))), "matmul", "[2,3]", "[4,5]");
	REFUSED(hr_matmul(ones(F, HR_DIMS(2, 2, 3)), ones(F, HR_DIMS(3, 3, 4))), "matmul", "[2,2,3]", "[3,3,4]");
	REFUSED(hr_matmul(ones(F, HR_DIMS(2)), ones(F, HR_DIMS(2, 2))), "matmul", "[2]", "[2,2]");
	REFUSED(hr_matmul_transposed(ones(F, HR_DIMS(2, 3)), true, ones(F, HR_DIMS(3, 4)), false), "matmul", "[2,3]", "[3,4]");
	REFUSED(hr_reshape(ones(F, HR_DIMS(2, 3)), HR_DIMS(4)), "reshape", "[2,3]", "[4]");
	REFUSED(hr_reshape(ones(F, HR_DIMS(2, 3)), HR_DIMS(4, -1)), "reshape", "[2,3]");
	REFUSED(hr_reshape(ones(F, HR_DIMS(2, 3)), HR_DIMS(-1, -1)), "reshape", "-1");
	REFUSED(hr_reshape(ones(F, HR_DIMS(2, 3)), HR_DIMS(-6)), "reshape", "-6");
	REFUSED(hr_transpose(ones(F, HR_DIMS(2, 3)), (const int[]){ 0, 0 }, 2), "transpose", "once");
	REFUSED(hr_transpose(ones(F, HR_DIMS(2, 3)), (const int[]){ 0, 1, 2 }, 3), "transpose", "[2,3]", "3");
	REFUSED(hr_concat((hr_value[]){ ones(F, HR_DIMS(2, 3)), ones(F, HR_DIMS(2, 4)) }, 2, 0), "concat", "[2,3]", "[2,4]");
	REFUSED(hr_concat((hr_value[]){ ones(F, HR_DIMS(2, 3)), ones(F, HR_DIMS(6)) }, 2, 0), "concat", "[2,3]", "[6]");
	REFUSED(hr_slice(ones(F, HR_DIMS(2, 3)), 1, 2, 2), "slice", "[2,3]");
	REFUSED(hr_slice(ones(F, HR_DIMS(2, 3)), 2, 0, 1), "slice", "[2,3]");
	REFUSED(hr_slice(ones(F, HR_DIMS(2, 3)), 0, -1, 1), "slice", "-1");
	REFUSED(hr_broadcast_to(ones(F, HR_DIMS(2, 3)), HR_DIMS(3, 2)), "broadcast_to", "[2,3]", "[3,2]");
	REFUSED(hr_broadcast_to(ones(F, HR_DIMS(2, 3)), HR_DIMS(-1)), "broadcast_to", "-1");
	REFUSED(hr_gather(ones(F, HR_SCALAR), ones(HR_DTYPE_INT32, HR_DIMS(2))), "gather", "[]", "[2]");
	REFUSED(hr_reduce_sum(ones(F, HR_DIMS(2, 3)), 2, false), "reduce_sum", "[2,3]", "2");
	REFUSED(hr_softmax(ones(F, HR_SCALAR)), "softmax", "[]");
	REFUSED(hr_causal_softmax(ones(F, HR_DIMS(3))), "softmax", "[3]");
	REFUSED(hr_cross_entropy(ones(F, HR_DIMS(2, 3)), ones(HR_DTYPE_INT32, HR_DIMS(3))), "cross_entropy", "[2,3]", "[3]");
	REFUSED(hr_layer_norm(ones(F, HR_DIMS(2, 3)), ones(F, HR_DIMS(2)), ones(F, HR_DIMS(3)), 0), "layer_norm", "[2,3]", "[2]");
	REFUSED(hr_dropout(ones(F, HR_DIMS(2)), 1.5, 1, ones(HR_DTYPE_INT64, HR_SCALAR), true), "dropout", "1.5");
	REFUSED(hr_dropout(ones(F, HR_DIMS(2)), 0.5, 1, ones(HR_DTYPE_INT64, HR_DIMS(1)), true), "dropout", "int64 [1]");
	REFUSED(hr_batch_norm(ones(F, HR_DIMS(2, 3)), ones(F, HR_DIMS(2)), ones(F, HR_DIMS(3)), 0, NULL, NULL), "batch_norm", "[2,3]", "[2]", "gain");
	REFUSED(hr_batch_norm_inference(ones(F, HR_DIMS(2, 3)), ones(F, HR_DIMS(3)), ones(F, HR_DIMS(3, 1)), ones(F, HR_DIMS(3)), ones(F, HR_DIMS(3)), 0), "batch_norm",
	        "[2,3]", "[3,1]", "variance");
	REFUSED(hr_batch_norm_inference(ones(F, HR_DIMS(3)), ones(F, HR_DIMS(3)), ones(F, HR_DIMS(3)), ones(F, HR_DIMS(3)), ones(F, HR_DIMS(3)), 0), "batch_norm", "[3]");
	REFUSED(hr_batch_norm_inference(ones(F, HR_DIMS(2, 3)), ones(F, HR_DIMS(3)), ones(F, HR_DIMS(3)), ones(F, HR_DIMS(3)), ones(F, HR_DIMS(3)), -1), "batch_norm", "epsilon");
	REFUSED(hr_attend(ones(F, HR_DIMS(2, 4)), ones(F, HR_DIMS(3, 5)), ones(F, HR_DIMS(3, 4)), 1, 1, false), "attend", "[2,4]", "[3,5]");
	REFUSED(hr_attend(ones(F, HR_DIMS(4, 4)), ones(F, HR_DIMS(3, 4)), ones(F, HR_DIMS(3, 4)), 1, 1, true), "attend", "[4,4]", "[3,4]");
	REFUSED(hr_attend(ones(F, HR_DIMS(2, 4)), ones(F, HR_DIMS(3, 4)), ones(F, HR_DIMS(3, 4)), 3, 1, true), "attend", "[2,4]", "3 heads");
	REFUSED(hr_conv2d(ones(F, HR_DIMS(1, 3, 8, 8)), ones(F, HR_DIMS(4, 2, 3, 3)), 1, 0), "conv2d", "[1,3,8,8]", "[4,2,3,3]");
	REFUSED(hr_conv2d(ones(F, HR_DIMS(1, 3, 2, 2)), ones(F, HR_DIMS(4, 3, 3, 3)), 1, 0), "conv2d", "[1,3,2,2]", "[4,3,3,3]");
	REFUSED(hr_conv2d(ones(F, HR_DIMS(1, 3, 8, 8)), ones(F, HR_DIMS(4, 3, 3, 3)), 0, 0), "conv2d", "stride");
	REFUSED(hr_conv2d(ones(F, HR_DIMS(1, 3, 8, 8)), ones(F, HR_DIMS(4, 3, 3, 3)), 1, -1), "conv2d", "padding");
	REFUSED(hr_max_pool(ones(F, HR_DIMS(1, 3, 2, 2)), 3, 1), "max_pool", "[1,3,2,2]", "[3,3]");
	REFUSED(hr_avg_pool(ones(F, HR_DIMS(3, 2, 2)), 2, 1), "avg_pool", "[3,2,2]");
	REFUSED(hr_one_hot(ones(HR_DTYPE_INT32, HR_DIMS(2)), -1, F), "one_hot", "-1");
	REFUSED(ones(F, HR_DIMS(2, -3)), "full", "-3");
	REFUSED(ones(F, HR_DIMS(INT64_C(1) << 40, INT64_C(1) << 40)), "full", "2^60");
	REFUSED(ones(F, (const int64_t[9]){ 1, 1, 1, 1, 1, 1, 1, 1, 1 }, 9), "full", "9");
	REFUSED(hr_random_uniform(F, HR_DIMS(2), 1, 1, 1), "random_uniform", "from 1 to 1 is empty");
	REFUSED(hr_random_normal(F, HR_DIMS(-2), 1), "random_normal", "dimension 0 is -2");
	end();
}

/* ---- dtypes ---- */

static void test_dtypes_that_do_not_fit(void)
{
	const hr_dtype i = HR_DTYPE_INT32;
	begin();
	REFUSED(hr_add(ones(F, HR_DIMS(2)), ones(i, HR_DIMS(2))), "add", "float32", "int32");
	REFUSED(hr_matmul(ones(F, HR_DIMS(2, 2)), ones(HR_DTYPE_FLOAT64, HR_DIMS(2, 2))), "matmul", "float32", "float64");
	REFUSED(hr_concat((hr_value[]){ ones(F, HR_DIMS(2)), ones(i, HR_DIMS(2)) }, 2, 0), "concat", "float32", "int32");
	REFUSED(hr_exp(ones(i, HR_DIMS(2))), "exp", "int32");
	REFUSED(hr_neg(ones(HR_DTYPE_BOOL, HR_DIMS(2))), "neg", "bool");
	REFUSED(hr_reduce_mean(ones(i, HR_DIMS(2)), 0, false), "reduce_mean", "int32");
	REFUSED(hr_softmax(ones(i, HR_DIMS(2))), "softmax", "int32");
	REFUSED(hr_gather(ones(F, HR_DIMS(2, 2)), ones(F, HR_DIMS(2))), "gather", "float32");
	REFUSED(hr_cross_entropy(ones(F, HR_DIMS(2, 2)), ones(F, HR_DIMS(2))), "cross_entropy", "float32");
	REFUSED(hr_one_hot(ones(F, HR_DIMS(2)), 3, F), "one_hot", "float32");
	REFUSED(hr_layer_norm(ones(F, HR_DIMS(2)), ones(HR_DTYPE_FLOAT64, HR_DIMS(2)), ones(F, HR_DIMS(2)), 0), "layer_norm", "float32", "float64");
	REFUSED(hr_dropout(ones(F, HR_DIMS(2)), 0.5, 1, ones(i, HR_SCALAR), true), "dropout", "int32 []");
	REFUSED(hr_dropout(ones(i, HR_DIMS(2)), 0.5, 1, ones(HR_DTYPE_INT64, HR_SCALAR), true), "dropout", "int32");
	REFUSED(hr_attend(ones(F, HR_DIMS(2, 2)), ones(F, HR_DIMS(2, 2)), ones(HR_DTYPE_FLOAT64, HR_DIMS(2, 2)), 1, 1, false), "attend", "float32", "float64");
	REFUSED(hr_conv2d(ones(i, HR_DIMS(1, 1, 4, 4)), ones(i, HR_DIMS(1, 1, 3, 3)), 1, 0), "conv2d", "int32");
	REFUSED(hr_random_normal(i, HR_DIMS(2), 1), "random_normal", "int32");
	REFUSED(hr_full(i, HR_DIMS(2), 1e20), "full", "1e+20", "int32");
	end();
}

/* ---- invalid enum values ---- */

static void test_unknown_values_of_enums(void)
{
	hr_optimizer optimizer;
	hr_run_options options;
	hr_graph graph;
	hr_value out;
	begin();
	REFUSED(ones((hr_dtype)NO_SUCH, HR_DIMS(2)), "full", "dtype");
	REFUSED(ones(HR_DTYPE_NONE, HR_DIMS(2)), "full", "dtype");
	REFUSED(hr_cast(ones(F, HR_DIMS(2)), (hr_dtype)NO_SUCH), "cast", "dtype");
	REFUSED(hr_one_hot(ones(HR_DTYPE_INT32, HR_DIMS(2)), 3, (hr_dtype)NO_SUCH), "one_hot", "dtype");
	CHECK(!hr_get_variable("v", F, HR_DIMS(2), (hr_initializer){ .kind = NO_SUCH }).id);
	CHECK_CONTAINS(hr_last_message(), "variable \"v\"");
	CHECK_CONTAINS(hr_last_message(), "99 is not an initializer");
	CHECK_STATUS(HR_OK, hr_variable_scope_push("net", HR_REUSE_OR_MAKE));
	CHECK(!hr_dense("one", ones(F, HR_DIMS(2, 3)), 4, (hr_activation)NO_SUCH, 1).id);
	CHECK_EQ((int)hr_last_status(), (int)HR_INVALID_ARGUMENT);
	CHECK_CONTAINS(hr_last_message(), "tower/net/one");
	CHECK_CONTAINS(hr_last_message(), "99 is not an activation");
	CHECK_STATUS(HR_OK, hr_variable_scope_pop());

	hr_variable w = hr_get_variable("w", F, HR_DIMS(2), HR_ZEROS);
	hr_value gradient = hr_value_keep(ones(F, HR_DIMS(2)));
	hr_optimizer_init(&optimizer, (hr_optimizer_kind)NO_SUCH);
	CHECK(!hr_apply_gradients(&optimizer, &w, &gradient, 1).id);
	CHECK_EQ((int)hr_last_status(), (int)HR_INVALID_ARGUMENT);
	hr_value_release(gradient);

	CHECK_STATUS(HR_OK, hr_graph_create(&graph));
	CHECK_STATUS(HR_OK, hr_graph_enter(graph));
	hr_value place = hr_placeholder(F, HR_DIMS(2)), one = ones(F, HR_DIMS(2));
	CHECK(!hr_placeholder((hr_dtype)NO_SUCH, HR_DIMS(2)).id);
	CHECK_CONTAINS(hr_last_message(), "op \"placeholder\" in scope \"tower\"");
	CHECK_STATUS(HR_OK, hr_graph_leave());
	CHECK(place.id);
	hr_run_options_init(&options);
	options.trace = (hr_run_trace)NO_SUCH;
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_session_run(session, NULL, 0, &one, 1, &out, &options, NULL));
	CHECK_CONTAINS(hr_last_message(), "99");
	CHECK_STATUS(HR_OK, hr_graph_destroy(graph));
	end();
}

/* ---- NULL ---- */

static void test_null(void)
{
	hr_session_options options;
	hr_session other;
	hr_function function;
	hr_optimizer optimizer;
	hr_graph graph;
	hr_value out;
	begin();
	REFUSED(hr_constant(F, HR_DIMS(2), NULL), "constant", "NULL");
	REFUSED(hr_full(F, NULL, 2, 1), "full", "NULL");
	REFUSED(hr_concat(NULL, 2, 0), "concat", "no values to join");
	REFUSED(hr_transpose(ones(F, HR_DIMS(2, 3)), NULL, 2), "transpose", "order");
	REFUSED(hr_reshape(ones(F, HR_DIMS(2, 3)), NULL, 1), "reshape", "NULL");
	CHECK(!hr_group(NULL, 2).id);
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_value_fetch(ones(F, HR_DIMS(2)), NULL, 8));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_graph_create(NULL));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_session_create(NULL, &other));
	hr_session_options_init(&options);
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_session_create(&options, NULL));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_function_create("f", NULL, NULL, &function));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_variable_scope_push(NULL, HR_REUSE_AS_AROUND));
	check_refused(__LINE__, hr_dense(NULL, ones(F, HR_DIMS(2, 3)), 4, HR_RELU, 1), HR_INVALID_ARGUMENT, "name", (const char *)NULL);

	hr_value x = hr_value_keep(ones(F, HR_DIMS(2)));
	hr_optimizer_init(&optimizer, HR_SGD);
	CHECK_STATUS(HR_OK, hr_tape_begin());
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_gradients(x, NULL, 1, &out));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_gradients(x, &x, 1, NULL));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_gradients(x, &x, 0, &out));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_variable_gradients(x, NULL, 1, &out));
	CHECK(!hr_minimize(&optimizer, x, NULL, 0).id);
	CHECK(!hr_minimize(NULL, x, NULL, 0).id);
	CHECK(!hr_apply_gradients(&optimizer, NULL, &x, 1).id);
	CHECK_STATUS(HR_OK, hr_tape_end());

	CHECK_STATUS(HR_OK, hr_graph_create(&graph));
	CHECK_STATUS(HR_OK, hr_graph_enter(graph));
	hr_value one = ones(F, HR_DIMS(2));
	CHECK_STATUS(HR_OK, hr_graph_leave());
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_session_run(session, NULL, 1, &one, 1, &out, NULL, NULL));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_session_run(session, NULL, 0, NULL, 1, &out, NULL, NULL));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_session_run(session, NULL, 0, &one, 1, NULL, NULL, NULL));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_session_run(session, NULL, 0, &one, 1, &out, &(hr_run_options){ 0 }, NULL));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_session_run(session, NULL, 0, &one, 1, &out, NULL, &(hr_run_metadata){ 0 }));
	CHECK_STATUS(HR_OK, hr_graph_destroy(graph));
	hr_value_release(x);
	end();
}

/* ---- kept values remain, and so do messages ---- */

static void test_a_refused_call_leaves_what_was_kept(void)
{
	float numbers[6];
	begin();
	hr_value x = hr_value_keep(ones(F, HR_DIMS(2, 3))), nine[9];
	for (int i = 0; i < 9; i++) nine[i] = x;
	CHECK(!hr_transpose(x, (const int[]){ 0, 0 }, 2).id);
	CHECK(!hr_reshape(x, HR_DIMS(-1, -1)).id);
	CHECK(!hr_reshape(x, HR_DIMS(-2)).id);
	CHECK(!hr_broadcast_to(x, HR_DIMS(-1)).id);
	CHECK(!hr_concat(nine, 9, 0).id);
	CHECK(!hr_add(x, ones(F, HR_DIMS(4))).id);
	CHECK(!hr_dense("one", x, -4, HR_RELU, 1).id);
	CHECK(!hr_attention("two", x, 2, true, 1).id);
	CHECK_STATUS(HR_OK, hr_value_fetch(x, numbers, sizeof numbers));
	CHECK_EQ(numbers[5], 1.0f);
	/* HR_NO_VALUE as an input makes no message of its own. */
	CHECK(!hr_matmul(x, x).id);
	hr_value none = hr_add(hr_relu(HR_NO_VALUE), x);
	none = hr_broadcast_to(hr_reshape(none, HR_DIMS(-1, -1)), HR_DIMS(-5));
	none = hr_concat((hr_value[]){ hr_transpose(none, NULL, 1), x }, 2, 0);
	none = hr_dense("one", hr_attention("two", none, 3, true, 1), 3, (hr_activation)NO_SUCH, 1);
	CHECK(!none.id);
	CHECK_CONTAINS(hr_last_message(), "op \"matmul\" in scope \"tower\"");
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_value_fetch(none, numbers, sizeof numbers));
	CHECK_CONTAINS(hr_last_message(), "matmul");
	hr_value_release(x);
	end();
}

/* Checks that the message begins with [beginning], and contains the name of the op once. */
static void check_named_once(const char *beginning)
{
	const char *message = hr_last_message();
	printf("# %s\n", message);
	CHECK_STATUS(HR_OUT_OF_MEMORY, hr_last_status());
	CHECK_EQ(strncmp(message, beginning, strlen(beginning)), 0);
	CHECK(!strstr(message + 1, "op \""));
}

/* Tensors find no memory and name the op; the runtime names the op of any error. */
static void test_an_op_without_room_is_named_once(void)
{
	open_session(2 << 20);
	CHECK_EQ(hr_full(F, HR_DIMS(1024, 1024), 1).id, 0);
	check_named_once("op \"full\" cannot run: it needs 4.0 MiB at once");
	CHECK_STATUS(HR_OK, hr_name_scope_push("tower"));
	CHECK_EQ(hr_full(F, HR_DIMS(1024, 1024), 1).id, 0);
	check_named_once("op \"full\" in scope \"tower\" cannot run: it needs 4.0 MiB at once");
	end();
}

static void test_fetches_of_another_size(void)
{
	float numbers[8];
	begin();
	hr_value x = hr_value_keep(ones(F, HR_DIMS(2, 3)));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_value_fetch(x, numbers, sizeof numbers));
	CHECK_CONTAINS(hr_last_message(), "32 bytes");
	CHECK_CONTAINS(hr_last_message(), "[2,3]");
	CHECK_CONTAINS(hr_last_message(), "24");
	CHECK_STATUS(HR_INVALID_HANDLE, hr_value_fetch((hr_value){ 12345 }, numbers, 4));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_value_fetch(HR_DONE, numbers, 4));
	hr_value_release(x);
	end();
}

/* ---- while a kernel runs ---- */

static void test_an_index_out_of_range_is_found_when_it_is_fetched(void)
{
	float rows[4];
	begin();
	hr_value table = hr_value_keep(ones(F, HR_DIMS(3, 2)));
	hr_value bad = hr_gather(table, hr_constant(HR_DTYPE_INT32, HR_DIMS(2), (int32_t[]){ 0, 3 }));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_value_fetch(bad, rows, sizeof rows));
	CHECK_CONTAINS(hr_last_message(), "op \"gather\" in scope \"tower\"");
	bad = hr_gather(table, hr_constant(HR_DTYPE_INT64, HR_DIMS(2), (int64_t[]){ 0, -1 }));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_session_synchronize(session));
	CHECK_CONTAINS(hr_last_message(), "op \"gather\" in scope \"tower\"");
	hr_value_release(bad);
	CHECK_STATUS(HR_OK, hr_session_synchronize(session)); /* reported once */
	bad = hr_cross_entropy(table, hr_constant(HR_DTYPE_INT32, HR_DIMS(3), (int32_t[]){ 0, 1, 2 }));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_value_fetch(bad, rows, 12));
	CHECK_CONTAINS(hr_last_message(), "op \"cross_entropy\" in scope \"tower\"");
	bad = hr_one_hot(hr_constant(HR_DTYPE_INT32, HR_DIMS(1), (int32_t[]){ 7 }), 4, F);
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_value_fetch(bad, rows, sizeof rows));
	CHECK_CONTAINS(hr_last_message(), "op \"one_hot\" in scope \"tower\"");
	hr_value good = hr_gather(table, hr_constant(HR_DTYPE_INT32, HR_DIMS(2), (int32_t[]){ 0, 2 }));
	CHECK_STATUS(HR_OK, hr_value_fetch(good, rows, sizeof rows));
	hr_value_release(table);
	end();
}

/* ---- gradients ---- */

static void test_gradients_that_there_are_not(void)
{
	hr_graph graph;
	hr_value first, second;
	float numbers[2];
	begin();
	hr_value x = hr_value_keep(ones(F, HR_DIMS(2))), whole = hr_value_keep(ones(HR_DTYPE_INT32, HR_DIMS(2)));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_gradients(x, &x, 1, &first));
	CHECK_CONTAINS(hr_last_message(), "no tape");
	CHECK_STATUS(HR_OK, hr_tape_begin());
	CHECK_STATUS(HR_IN_USE, hr_tape_begin());
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_gradients(whole, &x, 1, &first));
	CHECK_CONTAINS(hr_last_message(), "int32");
	CHECK_STATUS(HR_INVALID_HANDLE, hr_gradients(x, &(hr_value){ 12345 }, 1, &first));
	/* Integers cut off the dependency: the gradient is zero. */
	hr_value y = hr_value_keep(hr_reduce_sum(hr_one_hot(hr_cast(x, HR_DTYPE_INT32), 3, F), HR_ALL_AXES, false));
	CHECK_STATUS(HR_OK, hr_gradients(y, &x, 1, &first));
	CHECK_STATUS(HR_OK, hr_value_fetch(first, numbers, sizeof numbers));
	CHECK_EQ(numbers[1], 0.0f);
	CHECK_STATUS(HR_OK, hr_tape_end());
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_tape_end());

	/* Some gradients have gradients; that of relu has none. */
	CHECK_STATUS(HR_OK, hr_graph_create(&graph));
	CHECK_STATUS(HR_OK, hr_graph_enter(graph));
	hr_value place = hr_placeholder(F, HR_DIMS(2)), cube = hr_mul(hr_mul(place, place), hr_relu(place));
	CHECK_STATUS(HR_OK, hr_gradients(cube, &place, 1, &first));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_gradients(first, &place, 1, &second));
	CHECK_EQ(second.id, 0);
	CHECK_CONTAINS(hr_last_message(), "op \"relu_grad\" in scope \"tower\"");
	CHECK_CONTAINS(hr_last_message(), "no gradient");
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_gradients(first, &x, 1, &second)); /* x is outside of the graph */
	CHECK_STATUS(HR_OK, hr_graph_leave());
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_gradients(first, &place, 1, &second));
	CHECK_STATUS(HR_OK, hr_graph_destroy(graph));
	hr_value_release(x);
	hr_value_release(y);
	hr_value_release(whole);
	end();
}

/* ---- feeds and fetches ---- */

static void test_wrong_feeds_and_fetches(void)
{
	hr_graph graph, other;
	begin();
	CHECK_STATUS(HR_OK, hr_graph_create(&graph));
	CHECK_STATUS(HR_OK, hr_graph_create(&other));
	CHECK_STATUS(HR_OK, hr_graph_enter(other));
	hr_value elsewhere = ones(F, HR_DIMS(2, 2));
	CHECK_STATUS(HR_OK, hr_graph_leave());
	CHECK_STATUS(HR_OK, hr_graph_enter(graph));
	hr_value a = hr_placeholder(F, HR_DIMS(2, 2)), b = hr_exp(a);
	CHECK_STATUS(HR_OK, hr_graph_leave());
	hr_value good = hr_value_keep(ones(F, HR_DIMS(2, 2))), bad = hr_value_keep(ones(F, HR_DIMS(4))), whole = hr_value_keep(ones(HR_DTYPE_INT32, HR_DIMS(2, 2))), out;
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_session_run(session, NULL, 0, &b, 1, &out, NULL, NULL));
	CHECK_CONTAINS(hr_last_message(), "op \"placeholder\" in scope \"tower\"");
	CHECK_CONTAINS(hr_last_message(), "float32 [2,2]");
	CHECK_CONTAINS(hr_last_message(), "not fed");
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_session_run(session, &(hr_feed){ a, bad }, 1, &b, 1, &out, NULL, NULL));
	CHECK_CONTAINS(hr_last_message(), "feed 0, for the placeholder in scope \"tower\": the placeholder is");
	CHECK_CONTAINS(hr_last_message(), "[2,2]");
	CHECK_CONTAINS(hr_last_message(), "[4]");
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_session_run(session, &(hr_feed){ a, whole }, 1, &b, 1, &out, NULL, NULL));
	CHECK_CONTAINS(hr_last_message(), "float32");
	CHECK_CONTAINS(hr_last_message(), "int32");
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_session_run(session, (hr_feed[]){ { a, good }, { a, good } }, 2, &b, 1, &out, NULL, NULL));
	CHECK_CONTAINS(hr_last_message(), "feed 1");
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_session_run(session, &(hr_feed){ b, good }, 1, &b, 1, &out, NULL, NULL)); /* an op output */
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_session_run(session, &(hr_feed){ a, b }, 1, &b, 1, &out, NULL, NULL));    /* no contents */
	CHECK_STATUS(HR_INVALID_HANDLE, hr_session_run(session, &(hr_feed){ a, { 12345 } }, 1, &b, 1, &out, NULL, NULL));
	CHECK_STATUS(HR_INVALID_HANDLE, hr_session_run(session, &(hr_feed){ a, HR_NO_VALUE }, 1, &b, 1, &out, NULL, NULL));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_session_run(session, &(hr_feed){ a, good }, 1, &good, 1, &out, NULL, NULL)); /* of no graph */
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_session_run(session, &(hr_feed){ a, good }, 1, (hr_value[]){ b, elsewhere }, 2, (hr_value[2]){ { 0 } }, NULL, NULL));
	CHECK_CONTAINS(hr_last_message(), "fetch 1");
	CHECK_STATUS(HR_INVALID_HANDLE, hr_session_run(session, &(hr_feed){ a, good }, 1, (hr_value[]){ b, { 12345 } }, 2, (hr_value[2]){ { 0 } }, NULL, NULL));
	CHECK_CONTAINS(hr_last_message(), "fetch 1");
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_session_run(session, &(hr_feed){ a, good }, 1, NULL, 0, &out, NULL, NULL));
	CHECK_STATUS(HR_OK, hr_session_run(session, &(hr_feed){ a, good }, 1, &b, 1, &out, NULL, NULL));
	hr_value_release(out);
	/* A value of a graph has no contents, and a value with contents is not part of a graph. */
	CHECK(!hr_exp(b).id);
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_value_fetch(b, &(float){ 0 }, 4));
	CHECK(!hr_placeholder(F, HR_DIMS(2)).id);
	CHECK_CONTAINS(hr_last_message(), "op \"placeholder\" in scope \"tower\"");
	CHECK_STATUS(HR_OK, hr_graph_enter(graph));
	CHECK(!hr_exp(good).id);
	CHECK_CONTAINS(hr_last_message(), "placeholder");
	CHECK(!hr_exp(elsewhere).id);
	CHECK_STATUS(HR_IN_USE, hr_graph_enter(graph));
	CHECK_STATUS(HR_IN_USE, hr_graph_destroy(graph));
	CHECK_STATUS(HR_OK, hr_graph_leave());
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_graph_leave());
	hr_value_release(good);
	hr_value_release(bad);
	hr_value_release(whole);
	CHECK_STATUS(HR_OK, hr_graph_destroy(graph));
	CHECK_STATUS(HR_OK, hr_graph_destroy(other));
	end();
}

/* ---- variables ---- */

static hr_variable make(const char *name)
{
	return hr_get_variable(name, F, HR_DIMS(64, 64), HR_FULL(1));
}

static void test_wrong_names_and_types(void)
{
	open_session(0);
	CHECK(!make("").id);
	CHECK(!make(NULL).id);
	CHECK(!hr_get_variable("x", HR_DTYPE_NONE, HR_DIMS(2), HR_ZEROS).id);
	CHECK(!hr_get_variable("x", HR_DTYPE_INT32, HR_DIMS(2), HR_NORMAL(1, 1)).id);
	CHECK_CONTAINS(hr_last_message(), "int32");
	CHECK(!hr_get_variable("x", F, HR_DIMS(-2), HR_ZEROS).id);
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_variable_scope_push("", HR_REUSE_AS_AROUND));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_variable_scope_push("x", (hr_reuse)7));
	for (int i = 0; i < 16; i++) CHECK_STATUS(HR_OK, hr_variable_scope_push("s", HR_REUSE_AS_AROUND));
	CHECK_STATUS(HR_TOO_MANY, hr_variable_scope_push("s", HR_REUSE_AS_AROUND));
	for (int i = 0; i < 16; i++) CHECK_STATUS(HR_OK, hr_variable_scope_pop());
	/* The failed calls left nothing. */
	CHECK_EQ(hr_trainable_variables(NULL, 0), 0);
	CHECK(!hr_variable_read((hr_variable){ 12345 }).id);
	CHECK_EQ((int)hr_last_status(), (int)HR_INVALID_HANDLE);
	close_session();
}

/* Invalid arguments of an initializer are refused like those of the corresponding op. */
static void test_wrong_initializers(void)
{
	static const struct {
		hr_dtype dtype;
		hr_initializer initializer;
		const char *part;
	} wrong[] = {
		{ HR_DTYPE_INT32, HR_FULL(1e30), "1e+30 is not a valid int32" },
		{ HR_DTYPE_INT64, HR_FULL(NAN), "is not a valid int64" },
		{ HR_DTYPE_UINT8, HR_FULL(-1), "-1 is not a valid uint8" },
		{ HR_DTYPE_INT64, HR_UNIFORM(NAN, NAN, 1), "the range from" },
		{ F, HR_UNIFORM(0, INFINITY, 1), "the range from 0 to inf is empty" },
		{ F, HR_UNIFORM(1, 1, 1), "the range from 1 to 1 is empty" },
		{ HR_DTYPE_INT32, HR_UNIFORM(5, 2, 1), "the range from 5 to 2 is empty" },
		{ HR_DTYPE_INT32, HR_UNIFORM(0.25, 0.75, 1), "there is no integer" },
		{ HR_DTYPE_UINT8, HR_UNIFORM(0, 1000, 1), "not all values from 0 to 1000 fit in uint8" },
		{ HR_DTYPE_BOOL, HR_UNIFORM(0, 1, 1), "bool" },
		{ HR_DTYPE_INT32, HR_NORMAL(1, 1), "int32" },
	};
	hr_graph graph;
	open_session(0);
	CHECK_STATUS(HR_OK, hr_graph_create(&graph));
	for (int in_graph = 0; in_graph < 2; in_graph++) {
		if (in_graph) CHECK_STATUS(HR_OK, hr_graph_enter(graph));
		for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
			CHECK(!hr_get_variable("x", wrong[i].dtype, HR_DIMS(4), wrong[i].initializer).id);
			CHECK_STATUS(HR_INVALID_ARGUMENT, hr_last_status());
			CHECK_CONTAINS(hr_last_message(), "variable \"x\"");
			CHECK_CONTAINS(hr_last_message(), wrong[i].part);
		}
		CHECK_EQ(hr_trainable_variables(NULL, 0), 0);
		CHECK(hr_get_variable("x", HR_DTYPE_UINT8, HR_DIMS(4), HR_UNIFORM(0, 256, 1)).id);
	}
	CHECK_STATUS(HR_OK, hr_graph_leave());
	CHECK_STATUS(HR_OK, hr_graph_destroy(graph));
	close_session();
}

static void test_wrong_assignments(void)
{
	hr_session other;
	hr_session_options options;
	float number;
	begin();
	hr_variable w = make("w"), late = hr_get_variable("late", F, HR_DIMS(1), HR_UNINITIALIZED);
	CHECK(!hr_assign(w, ones(F, HR_DIMS(3, 5))).id);
	CHECK_CONTAINS(hr_last_message(), "op \"assign\" in scope \"tower\": variable \"w\"");
	CHECK_CONTAINS(hr_last_message(), "[3,5]");
	CHECK_CONTAINS(hr_last_message(), "[64,64]");
	CHECK(!hr_assign(w, ones(HR_DTYPE_FLOAT64, HR_DIMS(64, 64))).id);
	CHECK_CONTAINS(hr_last_message(), "float64");
	CHECK(!hr_assign_add(w, ones(F, HR_DIMS(2, 64, 64))).id); /* would need broadcasting */
	CHECK_CONTAINS(hr_last_message(), "op \"assign_add\" in scope \"tower\": variable \"w\"");
	CHECK_CONTAINS(hr_last_message(), "[64,64]");
	CHECK_CONTAINS(hr_last_message(), "[2,64,64]");
	CHECK(!hr_assign_sub(w, ones(F, HR_DIMS(3, 64))).id);
	CHECK_CONTAINS(hr_last_message(), "op \"assign_sub\" in scope \"tower\": variable \"w\"");
	CHECK_CONTAINS(hr_last_message(), "[3,64]");
	CHECK(!hr_assign_add(w, ones(HR_DTYPE_INT32, HR_DIMS(64, 64))).id);
	CHECK_CONTAINS(hr_last_message(), "int32");
	CHECK(!hr_variable_read(late).id);
	CHECK_EQ((int)hr_last_status(), (int)HR_INVALID_ARGUMENT);
	CHECK_CONTAINS(hr_last_message(), "op \"read\" in scope \"tower\"");
	CHECK_CONTAINS(hr_last_message(), "\"late\" has no contents");
	CHECK(!hr_assign_add(late, ones(F, HR_DIMS(1))).id);
	CHECK_EQ(hr_assign(late, hr_full(F, HR_DIMS(1), 4)).id, HR_DONE.id);
	CHECK_EQ(number_in(hr_variable_read(late)), 4.0f);

	hr_session_options_init(&options);
	options.device = "GPU:0";
	CHECK_STATUS(HR_OK, hr_session_create(&options, &other));
	CHECK_STATUS(HR_OK, hr_session_enter(other));
	CHECK(!hr_variable_read(w).id);
	CHECK_CONTAINS(hr_last_message(), "another session");
	CHECK(make("w").id); /* each session has its own names */
	CHECK_STATUS(HR_OK, hr_session_leave());
	CHECK_STATUS(HR_OK, hr_session_destroy(other));
	CHECK_EQ(number_in(hr_slice(hr_reshape(hr_variable_read(w), HR_DIMS(64 * 64)), 0, 0, 1)), 1.0f);
	CHECK_EQ(hr_value_keep(HR_DONE).id, HR_DONE.id);
	hr_value_release(HR_DONE);
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_value_fetch(HR_DONE, &number, sizeof number));
	end();
}

/* ---- closed handles ---- */

static void test_use_after_close(void)
{
	hr_session_options options;
	hr_session other;
	hr_graph graph;
	hr_value out;
	float number;
	begin();
	hr_session_options_init(&options);
	options.device = "GPU:0";
	CHECK_STATUS(HR_OK, hr_session_create(&options, &other));
	CHECK_STATUS(HR_OK, hr_session_enter(other));
	hr_variable w = make("w");
	hr_value x = hr_value_keep(ones(F, HR_DIMS(1)));
	CHECK_STATUS(HR_IN_USE, hr_session_destroy(other)); /* entered, and x is not released */
	CHECK_STATUS(HR_INVALID_HANDLE, hr_session_destroy(other));
	CHECK(!ones(F, HR_DIMS(1)).id); /* this thread's session is closed */
	CHECK_EQ((int)hr_last_status(), (int)HR_INVALID_HANDLE);
	CHECK(!make("v").id);
	CHECK_EQ((int)hr_last_status(), (int)HR_INVALID_HANDLE);
	CHECK_STATUS(HR_OK, hr_session_leave());
	CHECK_STATUS(HR_INVALID_HANDLE, hr_session_enter(other));
	CHECK_STATUS(HR_INVALID_HANDLE, hr_session_synchronize(other));
	CHECK_STATUS(HR_INVALID_HANDLE, hr_value_fetch(x, &number, sizeof number));
	check_refused(__LINE__, hr_exp(x), HR_INVALID_HANDLE, "op \"exp\" in scope \"tower\"", (const char *)NULL);
	CHECK_EQ(hr_value_keep(x).id, 0);
	hr_value_release(x);
	CHECK_EQ(hr_value_rank(x), -1);
	check_refused(__LINE__, hr_variable_read(w), HR_INVALID_HANDLE, "op \"read\" in scope \"tower\"", (const char *)NULL);
	CHECK_STR(hr_variable_name(w), "");
	CHECK(!hr_value_copy_to_session(ones(F, HR_DIMS(1)), other).id);
	CHECK_EQ((int)hr_last_status(), (int)HR_INVALID_HANDLE);

	CHECK_STATUS(HR_OK, hr_graph_create(&graph));
	CHECK_STATUS(HR_OK, hr_graph_enter(graph));
	hr_value node = ones(F, HR_DIMS(1));
	CHECK_STATUS(HR_OK, hr_graph_leave());
	CHECK_STATUS(HR_INVALID_HANDLE, hr_session_run(other, NULL, 0, &node, 1, &out, NULL, NULL));
	CHECK_STATUS(HR_OK, hr_graph_destroy(graph));
	CHECK_STATUS(HR_INVALID_HANDLE, hr_graph_destroy(graph));
	CHECK_STATUS(HR_INVALID_HANDLE, hr_graph_enter(graph));
	CHECK_STATUS(HR_INVALID_HANDLE, hr_session_run(session, NULL, 0, &node, 1, &out, NULL, NULL));
	end();
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_session_leave());
}

TEST_MAIN(T(test_shapes_that_do_not_fit), T(test_dtypes_that_do_not_fit), T(test_unknown_values_of_enums), T(test_null),
          T(test_a_refused_call_leaves_what_was_kept), T(test_an_op_without_room_is_named_once), T(test_fetches_of_another_size), T(test_an_index_out_of_range_is_found_when_it_is_fetched),
          T(test_gradients_that_there_are_not), T(test_wrong_feeds_and_fetches), T(test_wrong_names_and_types), T(test_wrong_initializers),
          T(test_wrong_assignments), T(test_use_after_close))
