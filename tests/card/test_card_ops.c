/* test_card_ops.c - every op on a card, in float32 and float64, and its gradients, against the same ops in float64 on the host; and again, to the bit.
 *
 * A case is a function from values to a value. What is compared is its result, and the gradients of the sum of the result times fixed numbers. */
#include <math.h>

#include "card/card_cases.h"
#include "card/support_card.h"
#include "runtime/card/card.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/op.h"

/* ---- running ---- */

/* The bytes of the result and of the gradients, as the session has them. */
struct results {
	int count;
	char failed[300]; /* "": nothing */
	hr_dtype dtypes[OUTPUTS];
	int64_t counts[OUTPUTS];
	char *data[OUTPUTS];
};

static double number_at(const struct results *results, int which, int64_t i)
{
	const char *data = results->data[which];
	switch (results->dtypes[which]) {
	case HR_DTYPE_FLOAT32: return (double)((const float *)data)[i];
	case HR_DTYPE_FLOAT64: return ((const double *)data)[i];
	case HR_DTYPE_INT32: return ((const int32_t *)data)[i];
	case HR_DTYPE_INT64: return (double)((const int64_t *)data)[i];
	case HR_DTYPE_BFLOAT16: {
		uint32_t bits = (uint32_t)((const uint16_t *)data)[i] << 16;
		float x;
		memcpy(&x, &bits, sizeof x);
		return (double)x;
	}
	default: return ((const uint8_t *)data)[i];
	}
}

/* The numbers are those of float32, so that each dtype begins with the same. */
static double number_of(const struct input *input, uint64_t *state)
{
	double unit = (double)(hr_rand(state) >> 11) * 0x1p-53, x = input->low + unit * (input->high - input->low);
	return input->is_index ? floor(x) : (double)(float)x;
}

static int64_t count_of(const int64_t *d, int rank)
{
	int64_t count = 1;
	for (int i = 0; i < rank; i++) count *= d[i];
	return count;
}

static hr_value constant_of(const struct input *input, hr_dtype dtype, uint64_t seed)
{
	int64_t count = count_of(input->d, input->rank);
	char *data = calloc((size_t)count + 1, 8);
	hr_dtype type = input->is_index ? HR_DTYPE_INT32 : dtype;
	for (int64_t i = 0; i < count; i++) {
		double x = number_of(input, &seed);
		if (type == HR_DTYPE_INT32) ((int32_t *)data)[i] = (int32_t)x;
		else if (type == HR_DTYPE_FLOAT32) ((float *)data)[i] = (float)x;
		else ((double *)data)[i] = x;
	}
	hr_value made = hr_value_keep(hr_constant(type, input->d, input->rank, data));
	free(data);
	return made;
}

static void take(struct results *results, hr_value value)
{
	int i = results->count;
	if (!value.id && !results->failed[0]) snprintf(results->failed, sizeof results->failed, "%s", hr_last_message());
	if (!value.id) return;
	results->dtypes[i] = hr_value_dtype(value);
	results->counts[i] = hr_value_count(value);
	size_t bytes = (size_t)results->counts[i] * hr_dtype_size(results->dtypes[i]);
	results->data[i] = malloc(bytes + 1);
	results->count++;
	if (hr_value_fetch(value, results->data[i], bytes)) snprintf(results->failed, sizeof results->failed, "%s", hr_last_message());
}

static hr_value weights_for(hr_value y, hr_dtype dtype)
{
	struct input like = { .low = -1, .high = 1, .rank = hr_value_rank(y) };
	int64_t d[HR_SHAPE_MAX_RANK];
	for (int i = 0; i < like.rank; i++) d[i] = hr_value_dim(y, i);
	like.d[0] = count_of(d, like.rank);
	like.rank = 1;
	hr_value flat = constant_of(&like, dtype, 99), out = hr_reshape(flat, d, hr_value_rank(y));
	hr_value_keep(out);
	hr_value_release(flat);
	return out;
}

static struct results run_case(const struct card_case *which, hr_dtype dtype)
{
	struct results results = { .count = 0 };
	hr_value in[INPUTS], by[INPUTS], grads[INPUTS];
	int count = 0, wanted = 0;
	case_dtype = dtype;
	for (; count < INPUTS && (which->in[count].high != 0); count++) in[count] = constant_of(&which->in[count], dtype, 7 + (uint64_t)count);
	for (int i = 0; i < count; i++)
		if (!which->in[i].is_index) by[wanted++] = in[i];
	if (!which->no_gradient) CHECK_STATUS(HR_OK, hr_tape_begin());
	hr_value y = hr_value_keep(which->body(in));
	bool differentiates = !which->no_gradient && y.id;
	if (differentiates) {
		hr_value weights = weights_for(y, hr_value_dtype(y));
		differentiates = !hr_gradients(hr_mul(y, weights), by, (size_t)wanted, grads);
		if (!differentiates) snprintf(results.failed, sizeof results.failed, "%s", hr_last_message());
		hr_value_release(weights);
	}
	if (!which->no_gradient) CHECK_STATUS(HR_OK, hr_tape_end());
	take(&results, y);
	for (int i = 0; i < wanted && differentiates; i++) take(&results, grads[i]);
	hr_value_release(y);
	for (int i = 0; i < count; i++) hr_value_release(in[i]);
	return results;
}

static void free_results(struct results *results)
{
	for (int i = 0; i < results->count; i++) free(results->data[i]);
}

static struct results run_on(hr_session session, const struct card_case *which, hr_dtype dtype)
{
	CHECK_STATUS(HR_OK, hr_session_enter(session));
	struct results results = run_case(which, dtype);
	CHECK_STATUS(HR_OK, hr_session_leave());
	return results;
}

/* The largest difference, relative to the largest number. */
static double difference(const struct results *is, const struct results *should, int which)
{
	double most = 0, scale = 0;
	CHECK_EQ(is->counts[which], should->counts[which]);
	for (int64_t i = 0; i < is->counts[which]; i++) {
		double a = number_at(is, which, i), b = number_at(should, which, i);
		if (!(fabs(a - b) <= most)) most = isnan(a) && isnan(b) ? most : isnan(a - b) ? INFINITY : fabs(a - b);
		if (fabs(b) > scale) scale = fabs(b);
	}
	return most / (scale > 1 ? scale : 1);
}

/* Compares two runs on the card and one on the host; prints a line if it fails, or on a real card. */
static bool compare(const char *name, hr_dtype dtype, double coarse, const struct results *is, const struct results *again, const struct results *should)
{
	double limit = coarse > 0 ? coarse : dtype == HR_DTYPE_FLOAT32 ? 3e-6 : 1e-13, most = 0;
	bool same = is->count == again->count, good = !is->failed[0] && !again->failed[0] && !should->failed[0] && is->count == should->count;
	for (int i = 0; i < is->count && good; i++) {
		double wrong = difference(is, should, i);
		if (!(wrong <= most)) most = wrong;
		same = same && memcmp(is->data[i], again->data[i], (size_t)is->counts[i] * hr_dtype_size(is->dtypes[i])) == 0;
	}
	good = good && same && most <= limit;
	if (!good || card_is_real())
		printf("# %s %s, %s: error %.1e%s%s%s\n", good ? "pass" : "FAIL", name, hr_dtype_text(dtype), most, same ? "" : ", other bits when repeated",
		       is->failed[0] ? "; " : "", is->failed);
	return good;
}

static bool check_case(hr_session card, hr_session host, const struct card_case *which, hr_dtype dtype)
{
	struct results is = run_on(card, which, dtype), again = run_on(card, which, dtype), should = run_on(host, which, which->in_dtype ? dtype : HR_DTYPE_FLOAT64);
	bool good = compare(which->name, dtype, which->limit, &is, &again, &should);
	free_results(&is);
	free_results(&again);
	free_results(&should);
	return good;
}

/* ---- variables ---- */

#define STEPS 3

/* Trains two variables, one of them larger than a block, by all optimizers and assignments; outs gets their contents. */
static struct results train(hr_session session, hr_dtype dtype, const char *scope)
{
	static const hr_optimizer_kind kinds[] = { HR_SGD, HR_MOMENTUM, HR_ADAM };
	struct results results = { .count = 0 };
	hr_optimizer optimizer;
	CHECK_STATUS(HR_OK, hr_session_enter(session));
	CHECK_STATUS(HR_OK, hr_variable_scope_push(scope, HR_REUSE_OR_MAKE));
	hr_variable variables[2] = { hr_get_variable("w", dtype, HR_DIMS(37, 9), HR_FULL(0.5)), hr_get_variable("v", dtype, HR_DIMS(64), HR_FULL(-0.25)) };
	for (int step = 0; step < STEPS * 3; step++) {
		hr_value gradients[2];
		for (int i = 0; i < 2; i++) gradients[i] = constant_of(&(struct input){ .low = -1, .high = 1, .rank = 2, .d = { i ? 64 : 37, i ? 1 : 9 } }, dtype, 5 + (uint64_t)(2 * step + i));
		hr_optimizer_init(&optimizer, kinds[step / STEPS]);
		optimizer.name = scope; /* it counts its steps in a variable of its own */
		hr_value flat = hr_value_keep(hr_reshape(gradients[1], HR_DIMS(64)));
		hr_value done = hr_apply_gradients(&optimizer, variables, (hr_value[]){ gradients[0], flat }, 2);
		CHECK(done.id != 0);
		hr_value_release(done);
		CHECK(hr_assign_add(variables[0], hr_scale(gradients[0], 0.125, 0)).id != 0);
		CHECK(hr_assign_sub(variables[1], hr_scale(flat, 0.125, 0)).id != 0);
		for (int i = 0; i < 2; i++) hr_value_release(gradients[i]);
		hr_value_release(flat);
	}
	for (int i = 0; i < 2; i++) take(&results, hr_variable_read(variables[i]));
	hr_value rows = hr_value_keep(hr_full(dtype, HR_DIMS(3, 64), 0.75));
	CHECK(hr_assign(variables[1], hr_reshape(hr_slice(rows, 0, 1, 1), HR_DIMS(64))).id != 0); /* a part of a larger one is copied */
	hr_value_release(rows);
	take(&results, hr_variable_read(variables[1]));
	CHECK_STATUS(HR_OK, hr_variable_scope_pop());
	CHECK_STATUS(HR_OK, hr_session_leave());
	return results;
}

/* The initializer and a group of a graph give numbers. */
static void run_graph(hr_session session)
{
	hr_graph graph;
	hr_value fetches[2], outs[2];
	CHECK_STATUS(HR_OK, hr_session_enter(session));
	CHECK_STATUS(HR_OK, hr_graph_create(&graph));
	CHECK_STATUS(HR_OK, hr_graph_enter(graph));
	hr_variable v = hr_get_variable("of a graph", HR_DTYPE_FLOAT32, HR_DIMS(5), HR_FULL(3));
	fetches[0] = hr_global_variables_initializer();
	hr_value added = hr_assign_add(v, hr_full(HR_DTYPE_FLOAT32, HR_DIMS(5), 1));
	fetches[1] = hr_group(&added, 1);
	CHECK_STATUS(HR_OK, hr_graph_leave());
	for (int i = 0; i < 2; i++) {
		CHECK_STATUS(HR_OK, hr_session_run(session, NULL, 0, &fetches[i], 1, &outs[i], NULL, NULL));
		hr_value_release(outs[i]);
	}
	CHECK_STATUS(HR_OK, hr_graph_destroy(graph));
	CHECK_STATUS(HR_OK, hr_session_leave());
}

static bool check_training(hr_session card, hr_session host, hr_dtype dtype)
{
	char scopes[3][32];
	for (int i = 0; i < 3; i++) snprintf(scopes[i], sizeof scopes[i], "%s_%d", hr_dtype_text(dtype), i);
	struct results is = train(card, dtype, scopes[0]), again = train(card, dtype, scopes[1]), should = train(host, dtype, scopes[2]);
	bool good = compare("optimizers and assignments", dtype, 0, &is, &again, &should);
	free_results(&is);
	free_results(&again);
	free_results(&should);
	return good;
}

/* ---- all ops ---- */

/* Ops that compute something, and that the host computes for a card. */
static const struct {
	enum hr__op_kind kind;
	const char *why;
} by_host[] = {
	{ HR__OP_CONSTANT, "its contents come from the host" },
};

static bool is_by_host(int kind)
{
	for (size_t i = 0; i < sizeof by_host / sizeof *by_host; i++)
		if ((int)by_host[i].kind == kind) return true;
	return false;
}

/* Each op of the op table has kernels, which the cases ran, or a reason. */
static void check_all_ops_ran(hr_session session)
{
	hr_status status;
	const hr__card *card = hr__session_of(session, &status)->card;
	bool all = true;
	for (int kind = 0; kind < HR__OP_COUNT; kind++) {
		bool computes = hr__ops[kind].run != NULL, ran = hr__card_queued(card, (enum hr__op_kind)kind) > 0;
		if (!computes || ran || is_by_host(kind)) continue;
		printf("# no case ran %s on the card\n", hr__ops[kind].name);
		all = false;
	}
	CHECK(all);
}

static void test_ops_agree_with_the_host(void)
{
	hr_session card = card_open(), host = card_session("CPU:0", (hr_allocator){ 0 });
	int failed = 0;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		failed += !check_case(card, host, &cases[i], HR_DTYPE_FLOAT32);
		failed += !check_case(card, host, &cases[i], HR_DTYPE_FLOAT64);
	}
	failed += !check_training(card, host, HR_DTYPE_FLOAT32);
	failed += !check_training(card, host, HR_DTYPE_FLOAT64);
	CHECK_EQ(0, failed);
	run_graph(card);
	check_all_ops_ran(card);
	CHECK_STATUS(HR_OK, hr_session_destroy(card));
	CHECK_STATUS(HR_OK, hr_session_destroy(host));
	CHECK_STATUS(HR_OK, hr_shutdown());
}

TEST_MAIN(T_WITHIN(test_ops_agree_with_the_host, 300))
