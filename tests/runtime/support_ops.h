/* support_ops.h - runs ops without the engine: types are inferred, memory comes from malloc, and the kernel is called.
 *
 * Each op is run twice, on one thread and on four that process parts from the last to the first, and once more in the memory of
 * each input that its row forwards, or of those that it updates, in every combination: all results must be bit-identical. */
#ifndef HR_TESTS_SUPPORT_OPS_H
#define HR_TESTS_SUPPORT_OPS_H

#include <math.h>

#include "runtime/engine/op.h"
#include "test.h"

/* ---- the team ---- */

static unsigned support_threads = 1;

typedef struct support_parts {
	void (*part)(void *context, uint32_t number);
	void *context;
	_Atomic(int64_t) left;
} support_parts;

static void support_take(void *argument, unsigned index)
{
	support_parts *parts = argument;
	(void)index;
	for (int64_t number; (number = atomic_fetch_sub(&parts->left, 1) - 1) >= 0;) parts->part(parts->context, (uint32_t)number);
}

/* The linker substitutes it for the library's function. */
void __wrap_hr__team_run(hr__team *team, uint32_t count, void (*part)(void *context, uint32_t number), void *context);
void __wrap_hr__team_run(hr__team *team, uint32_t count, void (*part)(void *context, uint32_t number), void *context)
{
	support_parts parts = { part, context, count };
	(void)team;
	if (support_threads > 1) hr_test_threads(support_threads, support_take, &parts);
	else
		for (uint32_t i = 0; i < count; i++) part(context, i);
}

/* ---- tensors ---- */

typedef struct tensor {
	hr__type type;
	void *data;
} tensor;

#define SHAPE(...) ((hr__dims){ (int)(sizeof((int64_t[]){ __VA_ARGS__ }) / sizeof(int64_t)), { __VA_ARGS__ } })
#define SCALAR_SHAPE ((hr__dims){ 0 })

/* Keeps blocks that a test does not free reachable, so that none counts as leaked: each test is a process of its own. */
static struct support_block {
	struct support_block *next;
	void *data;
} * support_blocks;

/* Exactly as many bytes as it has, so that a sanitizer detects accesses beside it. */
HR_TEST_UNUSED static tensor make(hr_dtype dtype, hr__dims dims)
{
	tensor made = { { dtype, dims }, NULL };
	struct support_block *block = malloc(sizeof *block);
	made.data = malloc(hr__type_bytes(&made.type) + (hr__type_bytes(&made.type) == 0));
	memset(made.data, 0xA5, hr__type_bytes(&made.type));
	*block = (struct support_block){ support_blocks, made.data };
	support_blocks = block;
	return made;
}

HR_TEST_UNUSED static int64_t count_of(const tensor *of)
{
	return hr__dims_count(&of->type.dims);
}

/* The value of a bfloat16 without its sign: 8 exponent bits, 7 fraction bits. The bits of infinity give 2^128, the value that would
 * follow. */
static double bfloat16_size(uint32_t bits)
{
	int exponent = (int)(bits >> 7);
	return exponent ? ldexp(128 + (bits & 127), exponent - 134) : ldexp(bits & 127, -133);
}

HR_TEST_UNUSED static double bfloat16_value(uint16_t bits)
{
	uint32_t rest = bits & 0x7FFF;
	double size = rest > 0x7F80 ? NAN : rest == 0x7F80 ? INFINITY : bfloat16_size(rest);
	return bits & 0x8000 ? -size : size;
}

/* Slow reference: finds the two neighbours of a number and returns the nearer one, or the even one. Exact for all dtypes, because a
 * long double holds an int64. */
HR_TEST_UNUSED static uint16_t bfloat16_nearest(long double x)
{
	uint32_t sign = signbit(x) ? 0x8000 : 0, low = 0, high = 0x7F80;
	long double size = fabsl(x);
	if (isnan(x)) return (uint16_t)(sign | 0x7FC0);
	if (size >= 0x1p128L) return (uint16_t)(sign | 0x7F80);
	while (high - low > 1) {
		uint32_t middle = (low + high) / 2;
		if ((long double)bfloat16_size(middle) <= size) low = middle;
		else high = middle;
	}
	long double below = size - (long double)bfloat16_size(low), above = (long double)bfloat16_size(high) - size;
	return (uint16_t)(sign | (below < above || (below == above && low % 2 == 0) ? low : high));
}

HR_TEST_UNUSED static double get(const tensor *of, int64_t i)
{
	switch (of->type.dtype) {
	case HR_DTYPE_FLOAT32: return (double)((float *)of->data)[i];
	case HR_DTYPE_FLOAT64: return ((double *)of->data)[i];
	case HR_DTYPE_INT32: return ((int32_t *)of->data)[i];
	case HR_DTYPE_INT64: return (double)((int64_t *)of->data)[i];
	case HR_DTYPE_BFLOAT16: return bfloat16_value(((uint16_t *)of->data)[i]);
	default: return ((uint8_t *)of->data)[i];
	}
}

HR_TEST_UNUSED static void set(tensor *of, int64_t i, double value)
{
	switch (of->type.dtype) {
	case HR_DTYPE_FLOAT32: ((float *)of->data)[i] = (float)value; break;
	case HR_DTYPE_FLOAT64: ((double *)of->data)[i] = value; break;
	case HR_DTYPE_INT32: ((int32_t *)of->data)[i] = (int32_t)value; break;
	case HR_DTYPE_INT64: ((int64_t *)of->data)[i] = (int64_t)value; break;
	case HR_DTYPE_BFLOAT16: ((uint16_t *)of->data)[i] = bfloat16_nearest((long double)value); break;
	default: ((uint8_t *)of->data)[i] = (uint8_t)(int64_t)value;
	}
}

static uint64_t support_state = 7;

/* low <= x < high; integers for integer dtypes. */
HR_TEST_UNUSED static tensor random_tensor(hr_dtype dtype, hr__dims dims, double low, double high)
{
	tensor made = make(dtype, dims);
	for (int64_t i = 0; i < count_of(&made); i++) {
		double unit = (double)(hr_rand(&support_state) >> 11) * 0x1p-53, x = low + unit * (high - low);
		set(&made, i, hr__dtype_is_float(dtype) ? x : floor(x));
	}
	return made;
}

/* ---- calls ---- */

/* [outs] has room for HR__OP_OUTPUTS. */
HR_TEST_UNUSED static hr_status infer_all(enum hr__op_kind kind, const tensor *in, uint32_t count, const hr__attrs *attrs,
                                          hr__type *outs)
{
	hr__type types[HR__OP_INPUTS];
	for (uint32_t i = 0; i < count; i++) types[i] = in[i].type;
	CHECK(count >= hr__ops[kind].in_min && count <= hr__ops[kind].in_max);
	return hr__ops[kind].infer(types, count, attrs, outs);
}

/* Returns the type of the first output only. */
HR_TEST_UNUSED static hr_status infer(enum hr__op_kind kind, const tensor *in, uint32_t count, const hr__attrs *attrs,
                                      hr__type *out)
{
	hr__type outs[HR__OP_OUTPUTS];
	hr_status status = infer_all(kind, in, count, attrs, outs);
	*out = outs[0];
	return status;
}

/* Runs the op once, with outputs at [outs]. Returns the error. */
HR_TEST_UNUSED static const char *run_at(enum hr__op_kind kind, const tensor *in, uint32_t count, const hr__attrs *attrs,
                                         tensor *outs)
{
	const hr__op *op = &hr__ops[kind];
	hr__work work = { .attrs = attrs, .in_count = count, .out_count = op->out_count };
	for (uint32_t i = 0; i < count; i++) {
		work.in_types[i] = in[i].type;
		work.in[i] = in[i].data;
	}
	for (uint32_t i = 0; i < op->out_count; i++) {
		work.out_types[i] = outs[i].type;
		work.out[i] = outs[i].data;
	}
	uint64_t scratch = op->scratch != NULL ? op->scratch(work.in_types, work.out_types, attrs) : 0;
	if (scratch > 0) {
		work.scratch = malloc(scratch);
		memset(work.scratch, 0x5A, scratch);
	}
	op->run(&work);
	free(work.scratch);
	return work.error;
}

HR_TEST_UNUSED static void free_all(tensor *tensors, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) free(tensors[i].data);
}

/* Output i is in the memory of input taken[i], or in its own if that is below 0. */
HR_TEST_UNUSED static void check_in_place(enum hr__op_kind kind, const tensor *in, uint32_t count, const hr__attrs *attrs,
                                          const int *taken, const tensor *expected)
{
	uint32_t outputs = hr__ops[kind].out_count;
	tensor with[HR__OP_INPUTS], outs[HR__OP_OUTPUTS];
	for (uint32_t i = 0; i < count; i++) with[i] = in[i];
	for (uint32_t i = 0; i < outputs; i++) {
		outs[i] = make(expected[i].type.dtype, expected[i].type.dims);
		if (taken[i] < 0) continue;
		memcpy(outs[i].data, in[taken[i]].data, hr__type_bytes(&outs[i].type));
		with[taken[i]].data = outs[i].data;
	}
	run_at(kind, with, count, attrs, outs);
	for (uint32_t i = 0; i < outputs; i++) CHECK_BYTES(outs[i].data, expected[i].data, hr__type_bytes(&outs[i].type));
	free_all(outs, outputs);
}

HR_TEST_UNUSED static void check_all_in_place(enum hr__op_kind kind, const tensor *in, uint32_t count, const hr__attrs *attrs,
                                              const tensor *expected)
{
	const hr__op *op = &hr__ops[kind];
	for (int i = 0; i < (int)count && op->memory == HR__FORWARDS; i++) {
		bool same = hr__type_bytes(&in[i].type) == hr__type_bytes(&expected[0].type);
		if (same && (op->forwards >> i & 1)) check_in_place(kind, in, count, attrs, (int[HR__OP_OUTPUTS]){ i, -1, -1 }, expected);
	}
	for (int which = 1; which < 1 << op->out_count && op->memory == HR__UPDATES; which++) {
		int taken[HR__OP_OUTPUTS];
		for (int i = 0; i < HR__OP_OUTPUTS; i++) taken[i] = which >> i & 1 ? i : -1;
		check_in_place(kind, in, count, attrs, taken, expected);
	}
}

/* Runs a valid op. [outs] has room for HR__OP_OUTPUTS. */
HR_TEST_UNUSED static void call_all(enum hr__op_kind kind, const tensor *in, uint32_t count, const hr__attrs *attrs, tensor *outs)
{
	hr__type types[HR__OP_OUTPUTS];
	uint32_t outputs = hr__ops[kind].out_count;
	tensor again[HR__OP_OUTPUTS];
	CHECK_STATUS(HR_OK, infer_all(kind, in, count, attrs, types));
	for (uint32_t i = 0; i < outputs; i++) {
		outs[i] = make(types[i].dtype, types[i].dims);
		again[i] = make(types[i].dtype, types[i].dims);
	}
	support_threads = 1;
	CHECK_STR(run_at(kind, in, count, attrs, outs), NULL);
	support_threads = 4;
	CHECK_STR(run_at(kind, in, count, attrs, again), NULL);
	support_threads = 1;
	for (uint32_t i = 0; i < outputs; i++) CHECK_BYTES(outs[i].data, again[i].data, hr__type_bytes(&types[i]));
	free_all(again, outputs);
	check_all_in_place(kind, in, count, attrs, outs);
}

/* Returns the first output only. */
HR_TEST_UNUSED static tensor call(enum hr__op_kind kind, const tensor *in, uint32_t count, const hr__attrs *attrs)
{
	tensor outs[HR__OP_OUTPUTS];
	call_all(kind, in, count, attrs, outs);
	free_all(outs + 1, hr__ops[kind].out_count - 1u);
	return outs[0];
}

/* Checks that the call is refused, with a message that contains [part]. */
HR_TEST_UNUSED static void check_refused(enum hr__op_kind kind, const tensor *in, uint32_t count, const hr__attrs *attrs,
                                         const char *part)
{
	hr__type types[HR__OP_OUTPUTS];
	CHECK_STATUS(HR_INVALID_ARGUMENT, infer_all(kind, in, count, attrs, types));
	CHECK_CONTAINS(hr_last_message(), part);
}

/* Checks that element [i] is [want], within the precision of the dtype for a sum of numbers of magnitude [scale]. */
HR_TEST_UNUSED static void check_near(const tensor *of, int64_t i, double want, double scale)
{
	double got = get(of, i), exact = of->type.dtype == HR_DTYPE_FLOAT32 ? 1e-5 : of->type.dtype == HR_DTYPE_FLOAT64 ? 1e-12 : 0;
	if (isnan(want) || isinf(want)) CHECK(isnan(want) ? isnan(got) : got == want);
	else if (!(fabs(got - want) <= exact * (fabs(want) > scale ? fabs(want) : scale))) CHECK_EQ(got, want);
	else CHECK(true);
}

HR_TEST_UNUSED static void check_dims(const tensor *of, hr__dims dims)
{
	char left[HR__DIMS_TEXT], right[HR__DIMS_TEXT];
	CHECK_STR(hr__dims_text(&of->type.dims, left, sizeof left), hr__dims_text(&dims, right, sizeof right));
}

/* Index in [of] of the element that is broadcast to element [i] of shape [dims]. */
HR_TEST_UNUSED static int64_t broadcast_place(const hr__dims *of, const hr__dims *dims, int64_t i)
{
	int64_t place = 0, step = 1;
	for (int k = 0; k < dims->rank; k++) {
		int d = dims->rank - 1 - k, own = of->rank - 1 - k;
		int64_t index = i % dims->d[d];
		i /= dims->d[d];
		if (own < 0) continue;
		if (of->d[own] != 1) place += index * step;
		step *= of->d[own];
	}
	return place;
}

#endif
