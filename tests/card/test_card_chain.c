/* test_card_chain.c - chains of elementwise ops in functions on a card: the same bits as op by op, as one op each, also when they cannot be compiled. */
#include "card/support_card.h"
#include "runtime/card/card.h"
#include "runtime/engine/engine.h"

#define INPUTS 3
#define MOST (64 * 1024)
#define B(x) hr_cast(x, HR_DTYPE_BFLOAT16)

struct chain_case {
	const char *name;
	hr_value (*body)(const hr_value *in);
	int64_t d[INPUTS][3]; /* of the inputs; 0 = no such dimension */
	int chains;           /* that a call of the function runs */
	int left;             /* elementwise ops that are no part of them */
	hr_dtype dtype;       /* 0: float32 */
};

static hr_value offset(void)
{
	return hr_full(HR_DTYPE_INT64, NULL, 0, 5);
}

/* An update of the variable that the chain around it reads: the chain ends before it. */
static hr_value around_an_update(const hr_value *in)
{
	hr_variable v = hr_get_variable("v", HR_DTYPE_FLOAT32, HR_DIMS(64), HR_FULL(0.5));
	hr_value x = hr_relu(hr_add(in[0], hr_variable_read(v)));
	CHECK(hr_assign_add(v, hr_full(HR_DTYPE_FLOAT32, HR_DIMS(64), 0.25)).id != 0);
	return hr_mul(hr_scale(x, 2, 1), hr_variable_read(v));
}

static hr_value long_one(const hr_value *in)
{
	hr_value x = hr_add(in[0], in[1]);
	for (int i = 0; i < 10; i++) x = i % 2 ? hr_tanh(x) : hr_scale(x, 1.5 + i, 0.25);
	return x;
}

static hr_value with_gradient(const hr_value *in)
{
	hr_value by[2];
	hr_value y = hr_gelu(hr_add(hr_mul(in[0], in[1]), in[2]));
	hr_value loss = hr_reduce_sum(hr_mul(y, y), HR_ALL_AXES, false);
	CHECK_STATUS(HR_OK, hr_gradients(loss, in, 2, by));
	return hr_add(by[0], by[1]);
}

/* The offset first: an op that runs between two others divides their chain. */
static hr_value body_drop_narrow(const hr_value *in)
{
	hr_value five = offset();
	return hr_dropout(hr_gelu(B(in[0])), 0.3, 9, five, true);
}

#define BODY(name, expression)                      \
	static hr_value body_##name(const hr_value *in) \
	{                                               \
		return expression;                          \
	}
BODY(bias, hr_relu(hr_add(in[0], in[1])))
BODY(drop, hr_add(in[0], hr_dropout(B(in[1]), 0.3, 9, offset(), true)))
BODY(square, hr_sqrt(hr_mul(hr_exp(in[0]), hr_exp(in[0]))))
BODY(twice, hr_neg(hr_mul(hr_tanh(in[0]), in[0])))
BODY(narrow, B(hr_scale(hr_add(B(in[0]), B(in[1])), 0.5, 1)))
BODY(all, hr_maximum(hr_sub(hr_div(hr_sqrt(hr_exp(in[0])), in[1]), in[2]), in[0]))
BODY(channels, hr_tanh(hr_mul(hr_add(in[0], in[1]), in[2])))

static const struct chain_case cases[] = {
	{ "a bias and relu", body_bias, { { 64, 64 }, { 64 } }, 1, 0, 0 },
	{ "a bias of odd rows", body_bias, { { 70, 65 }, { 65 } }, 1, 0, 0 },
	{ "too small", body_bias, { { 4, 8 }, { 8 } }, 0, 2, 0 },
	{ "dropout and a sum", body_drop, { { 64, 64 }, { 64, 64 } }, 1, 0, 0 },
	{ "dropout and a sum, odd", body_drop, { { 70, 63 }, { 70, 63 } }, 1, 0, 0 },
	{ "dropout of bfloat16", body_drop_narrow, { { 64, 64 } }, 1, 0, 0 },
	{ "two branches", body_square, { { 64, 64 } }, 1, 1, 0 },
	{ "an input of two steps", body_twice, { { 64, 64 } }, 1, 0, 0 },
	{ "bfloat16", body_narrow, { { 64, 64 }, { 64, 64 } }, 1, 0, 0 },
	{ "columns and a number", body_all, { { 90, 50 }, { 90, 1 }, { 1 } }, 1, 0, 0 },
	{ "channels", body_channels, { { 3, 40, 48 }, { 40, 1 }, { 3, 1, 48 } }, 1, 0, 0 },
	{ "float64", body_all, { { 90, 50 }, { 90, 1 }, { 1 } }, 1, 0, HR_DTYPE_FLOAT64 },
	{ "float64, packs", body_twice, { { 64, 64 } }, 1, 0, HR_DTYPE_FLOAT64 },
	{ "more steps than a chain has", long_one, { { 64, 64 }, { 64, 64 } }, 2, 0, 0 },
	{ "around an update", around_an_update, { { 64, 64 } }, 2, 0, 0 },
	{ "with its gradient", with_gradient, { { 64, 64 }, { 64, 64 }, { 64 } }, -1, -1, 0 },
};

static hr_status call_body(void *context, const hr_value *ins, size_t in_count, hr_value *outs, size_t out_count)
{
	const struct chain_case *which = context;
	(void)in_count, (void)out_count;
	hr_value y = which->body(ins);
	outs[0] = y.id ? hr_reshape(y, HR_DIMS(-1)) : y;
	return y.id ? HR_OK : hr_last_status();
}

static uint64_t ops_of(const hr__card *card, enum hr__op_kind first, enum hr__op_kind last)
{
	uint64_t count = 0;
	for (int kind = (int)first; kind <= (int)last; kind++) count += hr__card_queued(card, (enum hr__op_kind)kind);
	return count;
}

static uint64_t formulas_of(const hr__card *card)
{
	return ops_of(card, HR__OP_ADD, HR__OP_SCALE) + ops_of(card, HR__OP_DROPOUT, HR__OP_DROPOUT) + ops_of(card, HR__OP_RELU_GRAD, HR__OP_GELU_GRAD);
}

struct outcome {
	int64_t bytes;
	char data[MOST];
	uint64_t chains, left;
};

/* The result of the last of three calls: the last ones are a CUDA graph. */
static void run(hr_session session, const struct chain_case *which, bool eagerly, struct outcome *out)
{
	hr_status status;
	const hr__card *card = hr__session_of(session, &status)->card;
	hr_function function;
	hr_value in[INPUTS], y;
	size_t count = 0;
	CHECK_STATUS(HR_OK, hr_variable_scope_push(eagerly ? "eager" : "function", HR_REUSE_OR_MAKE));
	for (; count < INPUTS && which->d[count][0]; count++) {
		int rank = which->d[count][2] ? 3 : which->d[count][1] ? 2 : 1;
		in[count] = hr_value_keep(hr_random_uniform(which->dtype ? which->dtype : HR_DTYPE_FLOAT32, which->d[count], rank, 0.25, 2, 7 + count));
	}
	hr_run_functions_eagerly(eagerly);
	CHECK_STATUS(HR_OK, hr_function_create(which->name, call_body, (void *)(uintptr_t)which, &function));
	for (int i = 0; i < 3; i++) {
		uint64_t chains = hr__card_queued(card, HR__OP_CHAIN), formulas = formulas_of(card);
		if (eagerly && which->body == with_gradient) CHECK_STATUS(HR_OK, hr_tape_begin());
		CHECK_STATUS(HR_OK, hr_function_call(function, in, count, &y, 1));
		if (eagerly && which->body == with_gradient) CHECK_STATUS(HR_OK, hr_tape_end());
		if (i == 0) out->chains = hr__card_queued(card, HR__OP_CHAIN) - chains, out->left = formulas_of(card) - formulas;
		hr_value_keep(y);
		out->bytes = hr_value_count(y) * (int64_t)hr_dtype_size(hr_value_dtype(y));
		CHECK_LE(out->bytes, MOST);
		CHECK_STATUS(HR_OK, hr_value_fetch(y, out->data, (size_t)out->bytes));
		hr_value_release(y);
	}
	CHECK_STATUS(HR_OK, hr_function_destroy(function));
	for (size_t i = 0; i < count; i++) hr_value_release(in[i]);
	CHECK_STATUS(HR_OK, hr_variable_scope_pop());
}

static void check_cases(hr_session session, bool can_compile)
{
	static struct outcome eager, function;
	CHECK_STATUS(HR_OK, hr_session_enter(session));
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		const struct chain_case *which = &cases[i];
		run(session, which, true, &eager);
		run(session, which, false, &function);
		bool same = eager.bytes == function.bytes && !memcmp(eager.data, function.data, (size_t)eager.bytes);
		bool counted = !can_compile ? !function.chains : which->chains < 0 ? function.chains > 0 : (int)function.chains == which->chains && (int)function.left == which->left;
		if (!same || !counted || eager.chains) printf("# %s: %s bits, %d chains, %d other ops\n", which->name, same ? "the same" : "other", (int)function.chains, (int)function.left);
		CHECK(same && counted && !eager.chains);
	}
	CHECK_STATUS(HR_OK, hr_session_leave());
}

static void test_chains_give_the_bits_of_their_ops(void)
{
	hr_session session = card_open();
	check_cases(session, true);
	CHECK_STATUS(HR_OK, hr_session_destroy(session));
	CHECK_STATUS(HR_OK, hr_shutdown());
}

static void test_chains_that_do_not_compile_run_op_by_op(void)
{
	hr_session session = card_open();
	if (card_is_real()) hr_test_skip("a real compiler compiles them");
	CHECK_STATUS(HR_OK, hr_session_enter(session));
	hr_value x = hr_value_keep(hr_neg(hr_full(HR_DTYPE_FLOAT32, HR_DIMS(64, 64), -2)));
	/* The card has the programs of the ops now; that of the chain is in no cache, because no run compiles it. */
	setenv("FAKE_NVRTC_BREAK", "#error", 1);
	hr_graph graph;
	CHECK_STATUS(HR_OK, hr_graph_create(&graph));
	CHECK_STATUS(HR_OK, hr_graph_enter(graph));
	hr_value place = hr_placeholder(HR_DTYPE_FLOAT32, HR_DIMS(64, 64)), y = hr_neg(hr_neg(hr_neg(hr_neg(hr_neg(hr_neg(hr_neg(place))))))), out;
	CHECK_STATUS(HR_OK, hr_graph_leave());
	CHECK_STATUS(HR_OK, hr_session_run(session, &(hr_feed){ place, x }, 1, &y, 1, &out, NULL, NULL));
	unsetenv("FAKE_NVRTC_BREAK");
	static float data[64 * 64];
	CHECK_STATUS(HR_OK, hr_value_fetch(out, data, sizeof data));
	CHECK(data[0] == -2 && data[4095] == -2);
	hr_status status;
	CHECK_EQ(0, hr__card_queued(hr__session_of(session, &status)->card, HR__OP_CHAIN));
	hr_value_release(x);
	CHECK_STATUS(HR_OK, hr_graph_destroy(graph));
	CHECK_STATUS(HR_OK, hr_session_leave());
	CHECK_STATUS(HR_OK, hr_session_destroy(session));
	CHECK_STATUS(HR_OK, hr_shutdown());
}

/* Two sums of 256 KiB are rounded: as one op, both inputs and the result of 128 KiB are in memory together. */
static void test_a_chain_without_room_runs_op_by_op(void)
{
	static float ones[256 * 256], data[256 * 256];
	for (size_t i = 0; i < sizeof ones / sizeof *ones; i++) ones[i] = 1;
	card_begin();
	if (card_is_real()) hr_test_skip("its pages are larger");
	for (int tight = 0; tight < 2; tight++) {
		hr_allocator allocator = fixture_allocator(fixture_device("GPU:0"), (tight ? 576 : 1024) << 10);
		hr_session session = card_session("GPU:0", allocator);
		hr_status status;
		const hr__card *card = hr__session_of(session, &status)->card;
		CHECK_STATUS(HR_OK, hr_session_enter(session));
		hr_graph graph;
		CHECK_STATUS(HR_OK, hr_graph_create(&graph));
		CHECK_STATUS(HR_OK, hr_graph_enter(graph));
		hr_value a = hr_placeholder(HR_DTYPE_FLOAT32, HR_DIMS(256, 256)), b = hr_placeholder(HR_DTYPE_FLOAT32, HR_DIMS(256, 256)),
				 out;
		hr_value y = B(hr_add(a, b));
		CHECK_STATUS(HR_OK, hr_graph_leave());
		hr_run_options options;
		hr_run_metadata metadata;
		hr_run_options_init(&options);
		hr_run_metadata_init(&metadata);
		options.trace = HR_RUN_TRACE_OPS;
		uint64_t chains = hr__card_queued(card, HR__OP_CHAIN);
		hr_feed feeds[2] = { { a, hr_constant(HR_DTYPE_FLOAT32, HR_DIMS(256, 256), ones) },
			                 { b, hr_constant(HR_DTYPE_FLOAT32, HR_DIMS(256, 256), ones) } };
		CHECK_STATUS(HR_OK, hr_session_run(session, feeds, 2, &y, 1, &out, &options, &metadata));
		CHECK_EQ(tight ? 0 : 1, hr__card_queued(card, HR__OP_CHAIN) - chains);
		CHECK_EQ(tight ? 2 : 1, metadata.op_count);
		hr_run_metadata_free(&metadata);
		hr_stats stats;
		hr_stats_init(&stats);
		CHECK_STATUS(HR_OK, hr_allocator_get_stats(allocator, &stats));
		CHECK_EQ(0, stats.num_failed_allocs);
		CHECK_STATUS(HR_OK, hr_value_fetch(hr_cast(out, HR_DTYPE_FLOAT32), data, sizeof data));
		CHECK(data[0] == 2 && data[256 * 256 - 1] == 2);
		CHECK_STATUS(HR_OK, hr_graph_destroy(graph));
		CHECK_STATUS(HR_OK, hr_session_leave());
		CHECK_STATUS(HR_OK, hr_session_destroy(session));
		CHECK_STATUS(HR_OK, hr_allocator_destroy(allocator));
	}
	CHECK_STATUS(HR_OK, hr_shutdown());
}

TEST_MAIN(T(test_chains_that_do_not_compile_run_op_by_op), T(test_a_chain_without_room_runs_op_by_op),
          T_WITHIN(test_chains_give_the_bits_of_their_ops, 300))
