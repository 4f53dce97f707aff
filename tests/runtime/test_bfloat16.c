/* test_bfloat16.c - bfloat16 as a storage dtype: bits are preserved everywhere, ops that move elements support it, gradients pass
 * through, and training with activations in bfloat16 uses less memory, and gives the same bits with a limit as without. */
#include <math.h>

#include "fixture.h"
#include "headroom_runtime.h"
#include "support_session.h"
#include "support_training.h"

#define PATTERNS 65536
#define MIB (UINT64_C(1) << 20)
#define AS_FLOAT32(x) hr_cast(x, HR_DTYPE_FLOAT32)

/* ---- bits are preserved ---- */

static uint16_t patterns[PATTERNS], found[PATTERNS];

/* Every bfloat16, including signalling NaNs, which any arithmetic would make quiet. */
static hr_value all_of_them(void)
{
	for (uint32_t i = 0; i < PATTERNS; i++) patterns[i] = (uint16_t)i;
	return hr_constant(HR_DTYPE_BFLOAT16, HR_DIMS(PATTERNS), patterns);
}

static void check_all(hr_value value)
{
	memset(found, 0xA5, sizeof found);
	CHECK_EQ(hr_value_dtype(value), HR_DTYPE_BFLOAT16);
	CHECK_STATUS(HR_OK, hr_value_fetch(value, found, sizeof found));
	CHECK_BYTES(found, patterns, sizeof found);
}

static void test_values_and_variables_keep_every_bit_at_half_the_bytes(void)
{
	open_session(0);
	hr_value x = hr_value_keep(all_of_them());
	CHECK_EQ(stats_of().bytes_in_use, PATTERNS * 2);
	check_all(x);
	hr_variable w = hr_get_variable("w", HR_DTYPE_BFLOAT16, HR_DIMS(PATTERNS), HR_FULL(1.005)); /* between 1 and 1.0078125 */
	CHECK_STATUS(HR_OK, hr_value_fetch(hr_variable_read(w), found, sizeof found));
	CHECK_EQ(found[0], 0x3F81);
	CHECK_EQ(found[PATTERNS - 1], 0x3F81);
	CHECK_EQ(hr_assign(w, x).id, HR_DONE.id);
	check_all(hr_variable_read(w));
	CHECK_EQ(hr_assign(w, hr_full(HR_DTYPE_BFLOAT16, HR_DIMS(PATTERNS), -0.0)).id, HR_DONE.id);
	CHECK_STATUS(HR_OK, hr_value_fetch(hr_variable_read(w), found, sizeof found));
	CHECK_EQ(found[7], 0x8000);
	check_all(x);
	hr_value_release(x);
	close_session();
}

static void test_runs_of_graphs_keep_every_bit(void)
{
	hr_graph graph;
	hr_value outs[2];
	open_session(0);
	hr_value x = hr_value_keep(all_of_them());
	CHECK_STATUS(HR_OK, hr_graph_create(&graph));
	CHECK_STATUS(HR_OK, hr_graph_enter(graph));
	hr_value place = hr_placeholder(HR_DTYPE_BFLOAT16, HR_DIMS(PATTERNS)), constant = all_of_them();
	hr_variable w = hr_get_variable("w", HR_DTYPE_BFLOAT16, HR_DIMS(PATTERNS), HR_ZEROS);
	hr_value fetches[2] = { hr_assign(w, place), constant }, read = hr_variable_read(w);
	CHECK_STATUS(HR_OK, hr_graph_leave());
	CHECK_STATUS(HR_OK, hr_session_run(session, &(hr_feed){ place, x }, 1, fetches, 2, outs, NULL, NULL));
	check_all(outs[0]);
	check_all(outs[1]);
	CHECK_STATUS(HR_OK, hr_session_run(session, NULL, 0, &read, 1, outs, NULL, NULL));
	check_all(outs[0]);
	hr_value wide = hr_full(HR_DTYPE_FLOAT32, HR_DIMS(PATTERNS), 1);
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_session_run(session, &(hr_feed){ place, wide }, 1, fetches, 1, outs, NULL, NULL));
	CHECK_CONTAINS(hr_last_message(), "bfloat16");
	hr_value_release(x);
	CHECK_STATUS(HR_OK, hr_graph_destroy(graph));
	close_session();
}

static void test_another_session_gets_every_bit(void)
{
	hr_session other, on_host;
	hr_session_options options;
	open_session(0);
	hr_session_options_init(&options);
	options.device = "GPU:0";
	CHECK_STATUS(HR_OK, hr_session_create(&options, &other));
	options.device = "CPU:0";
	CHECK_STATUS(HR_OK, hr_session_create(&options, &on_host));
	check_all(hr_value_copy_to_session(all_of_them(), other));
	check_all(hr_value_copy_to_session(hr_value_copy_to_session(all_of_them(), on_host), other));
	CHECK_STATUS(HR_OK, hr_session_destroy(other));
	CHECK_STATUS(HR_OK, hr_session_destroy(on_host));
	close_session();
}

/* ---- refused calls ---- */

static void check_refused(uint64_t id, const char *who)
{
	CHECK_EQ(id, 0);
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_last_status());
	CHECK_CONTAINS(hr_last_message(), who);
	CHECK_CONTAINS(hr_last_message(), "dtype is bfloat16");
	CHECK_CONTAINS(hr_last_message(), "hr_cast to float32 first");
}

static void test_what_computes_is_refused_by_name(void)
{
	hr_graph graph;
	hr_optimizer adam;
	open_session(0);
	hr_variable w = hr_get_variable("w", HR_DTYPE_BFLOAT16, HR_DIMS(2, 2), HR_ZEROS);
	hr_value x = hr_value_keep(hr_variable_read(w)), wide = hr_value_keep(AS_FLOAT32(x));
	check_refused(hr_assign_add(w, x).id, "add");
	check_refused(hr_softmax(x).id, "softmax");
	check_refused(hr_get_variable("n", HR_DTYPE_BFLOAT16, HR_DIMS(2), HR_NORMAL(1, 1)).id, "\"n\"");
	check_refused(hr_get_variable("u", HR_DTYPE_BFLOAT16, HR_DIMS(2), HR_UNIFORM(0, 1, 1)).id, "\"u\"");
	hr_optimizer_init(&adam, HR_ADAM);
	check_refused(hr_apply_gradients(&adam, &w, &x, 1).id, "adam");
	CHECK_EQ(hr_matmul(wide, x).id, 0);
	CHECK_CONTAINS(hr_last_message(), "dtypes float32 and bfloat16 differ; hr_cast makes them the same");
	CHECK_STATUS(HR_OK, hr_graph_create(&graph));
	CHECK_STATUS(HR_OK, hr_graph_enter(graph));
	check_refused(hr_softmax(hr_placeholder(HR_DTYPE_BFLOAT16, HR_DIMS(2))).id, "softmax");
	check_refused(hr_get_variable("u", HR_DTYPE_BFLOAT16, HR_DIMS(2), HR_UNIFORM(0, 1, 1)).id, "\"u\"");
	CHECK_STATUS(HR_OK, hr_graph_leave());
	CHECK_STATUS(HR_OK, hr_graph_destroy(graph));
	hr_value_release(x);
	hr_value_release(wide);
	close_session();
}

/* ---- ops that move, and gradients through them ---- */

/* Every op that moves elements, some of them more than once; the value is used twice. [x] is [4, 3], and is kept. */
static hr_value moved(hr_value x, hr_value rows)
{
	hr_value both[2] = { hr_transpose(hr_gather(x, rows), (const int[]){ 1, 0 }, 2), hr_broadcast_to(hr_slice(x, 0, 1, 1), HR_DIMS(3, 3)) };
	hr_value part = hr_slice(hr_concat(both, 2, 1), 1, 2, 6); /* of [3, 9] */
	return hr_reshape(hr_broadcast_to(part, HR_DIMS(2, 3, 6)), HR_DIMS(36));
}

/* The weighted sum of all moved elements; [x] is float32. Gradients are taken with respect to [x] and to [kept]. */
static hr_value weighed(hr_dtype kept_as, hr_value x, hr_value rows, hr_value *kept)
{
	*kept = hr_value_keep(hr_cast(x, kept_as));
	hr_value y = AS_FLOAT32(moved(*kept, rows));
	float weights[36];
	for (int i = 0; i < 36; i++) weights[i] = (float)(i * 17 % 36) / 7 - 2;
	return hr_reduce_sum(hr_mul(y, hr_constant(HR_DTYPE_FLOAT32, HR_DIMS(36), weights)), HR_ALL_AXES, false);
}

struct gradients {
	float sum, by_x[12];
	union {
		float f32[12];
		uint16_t b16[12];
	} by_kept;
};

static hr_value rows_of_x(void)
{
	return hr_constant(HR_DTYPE_INT32, HR_DIMS(6), ((int32_t[]){ 3, 0, 3, 1, 3, 2 }));
}

/* Multiples of 1/8, which all dtypes represent exactly. */
static hr_value small_x(void)
{
	float x[12];
	for (int i = 0; i < 12; i++) x[i] = (float)(i * 7 % 12) / 8 - 1;
	return hr_constant(HR_DTYPE_FLOAT32, HR_DIMS(4, 3), x);
}

static void fetch_gradients(hr_dtype kept_as, hr_value sum, const hr_value *by, struct gradients *out)
{
	CHECK_EQ(hr_value_dtype(by[1]), kept_as);
	CHECK_STATUS(HR_OK, hr_value_fetch(sum, &out->sum, sizeof out->sum));
	CHECK_STATUS(HR_OK, hr_value_fetch(by[0], out->by_x, sizeof out->by_x));
	CHECK_STATUS(HR_OK, hr_value_fetch(by[1], &out->by_kept, 12 * hr_dtype_size(kept_as)));
}

static void by_tape(hr_dtype kept_as, bool checkpointed, struct gradients *out)
{
	hr_value x = hr_value_keep(small_x()), rows = hr_value_keep(rows_of_x()), kept, by[2];
	CHECK_STATUS(HR_OK, hr_tape_begin());
	if (checkpointed) CHECK_STATUS(HR_OK, hr_checkpoint_begin());
	hr_value sum = hr_value_keep(weighed(kept_as, x, rows, &kept));
	if (checkpointed) CHECK_STATUS(HR_OK, hr_checkpoint_end());
	CHECK_STATUS(HR_OK, hr_gradients(sum, (hr_value[]){ x, kept }, 2, by));
	CHECK_STATUS(HR_OK, hr_tape_end());
	fetch_gradients(kept_as, sum, by, out);
	hr_value_release(sum);
	hr_value_release(kept);
	hr_value_release(rows);
	hr_value_release(x);
}

static void by_graph(hr_dtype kept_as, struct gradients *out)
{
	hr_graph graph;
	hr_value kept, fetches[3], outs[3];
	CHECK_STATUS(HR_OK, hr_graph_create(&graph));
	CHECK_STATUS(HR_OK, hr_graph_enter(graph));
	hr_value x = small_x();
	fetches[0] = weighed(kept_as, x, rows_of_x(), &kept);
	CHECK_STATUS(HR_OK, hr_gradients(fetches[0], (hr_value[]){ x, kept }, 2, fetches + 1));
	CHECK_STATUS(HR_OK, hr_graph_leave());
	CHECK_STATUS(HR_OK, hr_session_run(session, NULL, 0, fetches, 3, outs, NULL, NULL));
	fetch_gradients(kept_as, outs[0], outs + 1, out);
	CHECK_STATUS(HR_OK, hr_graph_destroy(graph));
}

/* Sums of float32 gradients differ from sums of bfloat16 gradients, so equality shows that no intermediate is rounded. */
static void test_what_moves_in_bfloat16_has_the_gradients_of_float32(void)
{
	struct gradients f32, b16;
	float rounded[12];
	open_session(0);
	by_tape(HR_DTYPE_FLOAT32, false, &f32);
	for (int way = 0; way < 3; way++) {
		if (way < 2) by_tape(HR_DTYPE_BFLOAT16, way, &b16);
		else by_graph(HR_DTYPE_BFLOAT16, &b16);
		CHECK_EQ(b16.sum, f32.sum);
		CHECK_BYTES(b16.by_x, f32.by_x, sizeof f32.by_x);
		CHECK_STATUS(HR_OK, hr_value_fetch(AS_FLOAT32(hr_constant(HR_DTYPE_BFLOAT16, HR_DIMS(12), b16.by_kept.b16)), rounded, sizeof rounded));
		for (int i = 0; i < 12; i++) CHECK_LE(fabsf(rounded[i] - f32.by_kept.f32[i]), fabsf(f32.by_kept.f32[i]) * 0x1p-8f);
		CHECK(memcmp(rounded, f32.by_kept.f32, sizeof rounded) != 0);
	}
	close_session();
}

static void test_a_gradient_of_or_by_a_bfloat16_value_is_one(void)
{
	uint16_t ones[2] = { 0 }, zeros[2] = { 1, 1 };
	hr_value by[2];
	open_session(0);
	hr_variable w = hr_get_variable("w", HR_DTYPE_BFLOAT16, HR_DIMS(2), HR_FULL(3)), other = hr_get_variable("o", HR_DTYPE_BFLOAT16, HR_DIMS(2), HR_ZEROS);
	CHECK_STATUS(HR_OK, hr_tape_begin());
	hr_value y = hr_value_keep(hr_reshape(hr_variable_read(w), HR_DIMS(2, 1)));
	CHECK_STATUS(HR_OK, hr_variable_gradients(y, (hr_variable[]){ w, other }, 2, by));
	CHECK_STATUS(HR_OK, hr_tape_end());
	CHECK_STATUS(HR_OK, hr_value_fetch(by[0], ones, sizeof ones));
	CHECK_STATUS(HR_OK, hr_value_fetch(by[1], zeros, sizeof zeros));
	CHECK(ones[0] == 0x3F80 && ones[1] == 0x3F80 && zeros[0] == 0 && zeros[1] == 0);
	hr_value_release(y);
	close_session();
}

/* ---- products ---- */

static void fetch_both(hr_value x, hr_value y, float *of_x, float *of_y, size_t bytes)
{
	CHECK_EQ(hr_value_dtype(x), HR_DTYPE_FLOAT32);
	CHECK_STATUS(HR_OK, hr_value_fetch(x, of_x, bytes));
	CHECK_STATUS(HR_OK, hr_value_fetch(y, of_y, bytes));
}

/* x with the precision of bfloat16. */
static hr_value rounded(hr_value x)
{
	return AS_FLOAT32(hr_cast(x, HR_DTYPE_BFLOAT16));
}

/* The gradients of a b with respect to the float32 values that a and b were rounded from: g b^T, rounded as a is, and a^T g, with g rounded too. */
static void test_gradients_of_bfloat16_products_are_bfloat16_products(void)
{
	float by_a[12], by_b[20], expected[20];
	hr_value by[2];
	open_session(0);
	hr_value a = hr_value_keep(hr_random_normal(HR_DTYPE_FLOAT32, HR_DIMS(3, 4), 1)), b = hr_value_keep(hr_random_normal(HR_DTYPE_FLOAT32, HR_DIMS(4, 5), 2));
	hr_value g = hr_value_keep(hr_random_normal(HR_DTYPE_FLOAT32, HR_DIMS(3, 5), 3));
	CHECK_STATUS(HR_OK, hr_tape_begin());
	hr_value y = hr_matmul(hr_cast(a, HR_DTYPE_BFLOAT16), hr_cast(b, HR_DTYPE_BFLOAT16));
	hr_value sum = hr_value_keep(hr_reduce_sum(hr_mul(y, g), HR_ALL_AXES, false));
	CHECK_STATUS(HR_OK, hr_gradients(sum, (hr_value[]){ a, b }, 2, by));
	CHECK_STATUS(HR_OK, hr_tape_end());
	hr_value of_a = hr_matmul_transposed(hr_cast(g, HR_DTYPE_BFLOAT16), false, hr_cast(b, HR_DTYPE_BFLOAT16), true);
	hr_value of_b = hr_matmul_transposed(hr_cast(a, HR_DTYPE_BFLOAT16), true, hr_cast(g, HR_DTYPE_BFLOAT16), false);
	fetch_both(by[0], rounded(of_a), by_a, expected, sizeof by_a);
	CHECK_BYTES(by_a, expected, sizeof by_a);
	fetch_both(by[1], of_b, by_b, expected, sizeof by_b);
	CHECK_BYTES(by_b, expected, sizeof by_b);
	hr_value_release(a);
	hr_value_release(b);
	hr_value_release(g);
	hr_value_release(sum);
	close_session();
}

/* Weights are float32, also if the input is not. */
static void test_layers_multiply_bfloat16_inputs_by_rounded_weights(void)
{
	float of_layer[6], expected[6];
	open_session(0);
	hr_value x = hr_value_keep(hr_cast(hr_random_normal(HR_DTYPE_FLOAT32, HR_DIMS(2, 4), 1), HR_DTYPE_BFLOAT16));
	hr_value y = hr_dense("layer", x, 3, HR_LINEAR, 5);
	CHECK_STATUS(HR_OK, hr_variable_scope_push("layer", HR_REUSE_OR_MAKE));
	hr_value w = hr_variable_read(hr_get_variable("w", HR_DTYPE_FLOAT32, HR_DIMS(4, 3), HR_ZEROS));
	CHECK_STATUS(HR_OK, hr_variable_scope_pop());
	CHECK_EQ(hr_value_dtype(y), HR_DTYPE_BFLOAT16);
	fetch_both(AS_FLOAT32(y), rounded(hr_matmul(x, hr_cast(w, HR_DTYPE_BFLOAT16))), of_layer, expected, sizeof of_layer);
	CHECK_BYTES(of_layer, expected, sizeof of_layer);
	hr_value mixed = hr_attention("attention", hr_reshape(x, HR_DIMS(1, 2, 4)), 2, true, 6);
	CHECK_EQ(hr_value_dtype(mixed), HR_DTYPE_BFLOAT16);
	hr_value_release(hr_value_keep(mixed));
	hr_value_release(x);
	close_session();
}

static void fetch_wide(hr_value value, float *out, size_t bytes)
{
	hr_value wide = hr_value_keep(hr_cast(value, HR_DTYPE_FLOAT32));
	CHECK_STATUS(HR_OK, hr_value_fetch(wide, out, bytes));
	hr_value_release(wide);
}

/* The result of bfloat16 is bfloat16, and its gradients those of the numbers that it was rounded from, rounded. All keys have one weight here. */
static void test_attention_of_bfloat16_is_bfloat16(void)
{
	const float v[] = { 1, 2, 2, 4, 3, 9 };
	float got[6];
	hr_value by[3];
	open_session(0);
	hr_value q = hr_value_keep(hr_full(HR_DTYPE_FLOAT32, HR_DIMS(3, 2), 0)),
			 k = hr_value_keep(hr_full(HR_DTYPE_FLOAT32, HR_DIMS(3, 2), 0.3));
	hr_value of_v = hr_value_keep(hr_constant(HR_DTYPE_FLOAT32, HR_DIMS(3, 2), v));
	CHECK_STATUS(HR_OK, hr_tape_begin());
	hr_value y = hr_value_keep(
		hr_attend(hr_cast(q, HR_DTYPE_BFLOAT16), hr_cast(k, HR_DTYPE_BFLOAT16), hr_cast(of_v, HR_DTYPE_BFLOAT16), 1, 1, true));
	CHECK_EQ(hr_value_dtype(y), HR_DTYPE_BFLOAT16);
	CHECK_STATUS(HR_OK,
	             hr_gradients(hr_reduce_sum(hr_cast(y, HR_DTYPE_FLOAT32), HR_ALL_AXES, false), (hr_value[]){ q, k, of_v }, 3, by));
	CHECK_STATUS(HR_OK, hr_tape_end());
	fetch_wide(y, got, sizeof got);
	for (int i = 0; i < 6; i++) CHECK_EQ(got[i], ((float[]){ 1, 2, 1.5F, 3, 2, 5 })[i]);
	for (int i = 0; i < 3; i++) CHECK_EQ(hr_value_dtype(by[i]), HR_DTYPE_FLOAT32);
	CHECK_STATUS(HR_OK, hr_value_fetch(by[2], got, sizeof got));
	for (int i = 0; i < 6; i++)
		CHECK(fabs((double)got[i] - ((double[]){ 11, 5, 2 })[i / 2] / 6) < 0.01); /* 1 + 1/2 + 1/3, 1/2 + 1/3, 1/3 */
	for (int i = 0; i < 3; i++) hr_value_release(by[i]);
	hr_value_release(y);
	hr_value_release(q);
	hr_value_release(k);
	hr_value_release(of_v);
	close_session();
}

/* ---- with less memory ---- */

static void open_limited(uint64_t limit, bool lms_on)
{
	hr_session_options session_options;
	hr_lms_options lms;
	hr_device device = fixture_emulated(64 * MIB, 64 << 10, 0);
	allocator = fixture_allocator(device, limit);
	CHECK_STATUS(HR_OK, hr_lms_options_init(&lms));
	lms.enabled = lms_on;
	lms.verify = true;
	lms.host_limit = 128 * MIB;
	CHECK_STATUS(HR_OK, hr_lms_configure(allocator, &lms));
	hr_session_options_init(&session_options);
	session_options.device = "GPU:0";
	session_options.allocator = allocator;
	CHECK_STATUS(HR_OK, hr_session_create(&session_options, &session));
	CHECK_STATUS(HR_OK, hr_session_enter(session));
}

static int64_t evictions(void)
{
	hr_lms_stats lms = { .struct_size = sizeof lms };
	CHECK_STATUS(HR_OK, hr_lms_check(allocator));
	CHECK_STATUS(HR_OK, hr_lms_get_stats(allocator, &lms));
	return lms.num_evictions;
}

static void test_bits_survive_leaving_and_coming_back(void)
{
	hr_value values[12];
	open_limited(6 * sizeof patterns, true);
	for (int i = 0; i < 12; i++) values[i] = hr_value_keep(all_of_them());
	for (int round = 0; round < 3; round++)
		for (int i = 0; i < 12; i++) check_all(hr_reshape(values[i], HR_DIMS(256, -1)));
	CHECK_GT(evictions(), 6);
	for (int i = 0; i < 12; i++) hr_value_release(values[i]);
	close_session();
}

/* ---- training ---- */

#define STEPS 4
#define WEIGHTS_MAX 40000u

static hr_value as(hr_value x, hr_dtype dtype)
{
	return hr_value_dtype(x) == dtype ? x : hr_cast(x, dtype);
}

/* Values between layers are [kept_as]. Each layer is a checkpointed block, so that only these are kept: otherwise the layer would
 * keep the float32 inputs of its products for gradients. */
static hr_value logits_kept_as(hr_dtype kept_as, const struct model *model, hr_value x, bool checkpointed)
{
	char name[16];
	x = as(x, kept_as);
	for (int64_t i = 0; i < model->blocks; i++) {
		snprintf(name, sizeof name, "layer%d", (int)i);
		if (checkpointed) hr_checkpoint_begin();
		x = as(hr_dense(name, as(x, HR_DTYPE_FLOAT32), model->width, HR_TANH, 10 + (uint64_t)i), kept_as);
		if (checkpointed) hr_checkpoint_end();
	}
	return hr_dense("out", as(x, HR_DTYPE_FLOAT32), model->classes, HR_LINEAR, 3);
}

static hr_value logits_f32(const struct model *model, hr_value x, bool checkpointed)
{
	return logits_kept_as(HR_DTYPE_FLOAT32, model, x, checkpointed);
}

static hr_value logits_b16(const struct model *model, hr_value x, bool checkpointed)
{
	return logits_kept_as(HR_DTYPE_BFLOAT16, model, x, checkpointed);
}

static const struct model in_f32 = { "mlp", model_mlp_inputs, model_row_labels, logits_f32, .batch = 1024, .width = 32, .classes = 4, .blocks = 16 };
static const struct model in_b16 = { "mlp", model_mlp_inputs, model_row_labels, logits_b16, .batch = 1024, .width = 32, .classes = 4, .blocks = 16 };

struct outcome {
	float losses[STEPS], weights[WEIGHTS_MAX];
	size_t weight_count;
	int64_t peak, evictions;
};

/* Without a limit if [limit] is 0. */
static void train(const struct model *model, enum how how, uint64_t limit, struct outcome *out)
{
	struct training training = { .model = model, .how = how, .checkpointed = true };
	memset(out, 0, sizeof *out);
	open_limited(limit ? limit : 64 * MIB, limit);
	training.session = session;
	hr_optimizer_init(&training.optimizer, HR_ADAM);
	training_begin(&training);
	for (uint32_t step = 0; step < STEPS; step++) {
		if (how == BY_OP) CHECK_STATUS(HR_OK, hr_step_begin(allocator));
		CHECK_STATUS(HR_OK, training_step(&training, step, &out->losses[step]));
		if (how == BY_OP) CHECK_STATUS(HR_OK, hr_step_end(allocator));
	}
	out->weight_count = training_weights(&training, out->weights, WEIGHTS_MAX);
	out->evictions = evictions();
	training_end(&training);
	out->peak = stats_of().peak_bytes_in_use;
	close_session();
}

static struct outcome wide, whole, less;

static void test_activations_in_bfloat16_take_less_memory_and_are_the_same_with_a_limit(void)
{
	for (int how = 0; how < HOW_COUNT; how++) {
		train(&in_f32, (enum how)how, 0, &wide);
		train(&in_b16, (enum how)how, 0, &whole);
		CHECK_EQ(whole.evictions, 0);
		CHECK_LE(fabsf(whole.losses[STEPS - 1] - wide.losses[STEPS - 1]), 0.05f);
		train(&in_b16, (enum how)how, (uint64_t)whole.peak / 100 * 60, &less);
		printf("# %s: peak %lld in float32, %lld in bfloat16; at 60%% of that %lld evictions\n", how_names[how], (long long)wide.peak,
		       (long long)whole.peak, (long long)less.evictions);
		/* Values kept between layers are most of the memory. */
		CHECK_LT(whole.peak * 10, wide.peak * 8);
		CHECK_GT(less.evictions, 0);
		CHECK_GT(whole.weight_count, 1000);
		CHECK_EQ(less.weight_count, whole.weight_count);
		CHECK_BYTES(less.losses, whole.losses, sizeof whole.losses);
		CHECK_BYTES(less.weights, whole.weights, whole.weight_count * sizeof whole.weights[0]);
	}
}

TEST_MAIN(T(test_values_and_variables_keep_every_bit_at_half_the_bytes), T(test_runs_of_graphs_keep_every_bit), T(test_another_session_gets_every_bit),
          T(test_what_computes_is_refused_by_name), T(test_what_moves_in_bfloat16_has_the_gradients_of_float32),
          T(test_a_gradient_of_or_by_a_bfloat16_value_is_one), T(test_bits_survive_leaving_and_coming_back),
          T(test_gradients_of_bfloat16_products_are_bfloat16_products), T(test_layers_multiply_bfloat16_inputs_by_rounded_weights),
          T(test_attention_of_bfloat16_is_bfloat16),
          T_WITHIN(test_activations_in_bfloat16_take_less_memory_and_are_the_same_with_a_limit, 300))
