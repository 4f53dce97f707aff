/* test_op_gradients.c - the gradient of each op, compared with differences of its output, in float64.
 *
 * A few lines replace the engine: values are indices of tensors, and temporary ones are consumed by the next op that takes them. So
 * the tests also show that gradients consume and release values correctly. */
#include "headroom_runtime.h"
#include "runtime/support_ops.h"

#define VALUES 4096

static struct {
	tensor of;
	int keeps;
	bool live;
} values[VALUES];
static uint64_t value_count = 1;

static hr_value value_of(tensor of)
{
	CHECK(value_count < VALUES);
	values[value_count].of = of;
	values[value_count].live = true;
	return (hr_value){ value_count++ };
}

static hr_value kept(tensor of)
{
	hr_value value = value_of(of);
	values[value.id].keeps = 1;
	return value;
}

void __wrap_hr_value_release(hr_value value);
void __wrap_hr_value_release(hr_value value)
{
	if (value.id == 0) return;
	CHECK(values[value.id].live);
	if (values[value.id].keeps > 0) values[value.id].keeps--;
	if (values[value.id].keeps == 0) values[value.id].live = false;
}

hr_status __wrap_hr_last_status(void);
hr_status __wrap_hr_last_status(void)
{
	return HR_OUT_OF_MEMORY;
}

static void use_up(const hr_value *inputs, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		if (inputs[i].id != 0 && values[inputs[i].id].keeps == 0) values[inputs[i].id].live = false;
	}
}

static int calls_left = -1;

void __wrap_hr__call(enum hr__op_kind kind, const hr_value *inputs, uint32_t count, const hr__attrs *attrs, hr_value *outs);
void __wrap_hr__call(enum hr__op_kind kind, const hr_value *inputs, uint32_t count, const hr__attrs *attrs, hr_value *outs)
{
	tensor in[HR__OP_INPUTS], made[HR__OP_OUTPUTS];
	uint32_t outputs = hr__ops[kind].out_count;
	bool there = calls_left != 0;
	if (calls_left > 0) calls_left--;
	for (uint32_t i = 0; i < count; i++) {
		if (inputs[i].id == 0) there = false;
		else CHECK(values[inputs[i].id].live);
		in[i] = values[inputs[i].id].of;
	}
	use_up(inputs, count);
	for (uint32_t i = 0; i < outputs; i++) outs[i] = HR_NO_VALUE;
	if (!there) return;
	if (kind == HR__OP_RESHAPE) {
		made[0].data = in[0].data;
		CHECK_STATUS(HR_OK, infer(kind, in, count, attrs, &made[0].type));
	} else call_all(kind, in, count, attrs, made);
	for (uint32_t i = 0; i < outputs; i++) outs[i] = value_of(made[i]);
}

hr_value __wrap_hr__call_one(enum hr__op_kind kind, const hr_value *inputs, uint32_t count, const hr__attrs *attrs);
hr_value __wrap_hr__call_one(enum hr__op_kind kind, const hr_value *inputs, uint32_t count, const hr__attrs *attrs)
{
	hr_value outs[HR__OP_OUTPUTS];
	__wrap_hr__call(kind, inputs, count, attrs, outs);
	return outs[0];
}

/* ---- differences ---- */

/* Runs the op once, without the checks of threads. */
static void run_once(enum hr__op_kind kind, const tensor *in, uint32_t count, const hr__attrs *attrs, tensor *outs)
{
	hr__type types[HR__OP_OUTPUTS];
	CHECK_STATUS(HR_OK, infer_all(kind, in, count, attrs, types));
	for (uint32_t i = 0; i < hr__ops[kind].out_count; i++) outs[i] = make(types[i].dtype, types[i].dims);
	if (hr__ops[kind].run != NULL) CHECK_STR(run_at(kind, in, count, attrs, outs), NULL);
	else memcpy(outs[0].data, in[0].data, hr__type_bytes(&types[0]));
}

/* The weighted sum of all elements of the first output. */
static double weighed(enum hr__op_kind kind, const tensor *in, uint32_t count, const hr__attrs *attrs, const tensor *weights)
{
	tensor outs[HR__OP_OUTPUTS];
	run_once(kind, in, count, attrs, outs);
	double sum = 0;
	for (int64_t i = 0; i < count_of(&outs[0]); i++) sum += get(&outs[0], i) * get(weights, i);
	free_all(outs, hr__ops[kind].out_count);
	return sum;
}

static void check_differences(enum hr__op_kind kind, tensor *in, uint32_t count, const hr__attrs *attrs, uint32_t of,
                              const tensor *grad, const tensor *weights)
{
	const double step = 1e-5;
	check_dims(grad, in[of].type.dims);
	CHECK_EQ(grad->type.dtype, in[of].type.dtype);
	for (int64_t i = 0; i < count_of(grad); i++) {
		double x = get(&in[of], i);
		set(&in[of], i, x + step);
		double above = weighed(kind, in, count, attrs, weights);
		set(&in[of], i, x - step);
		double below = weighed(kind, in, count, attrs, weights), want = (above - below) / (2 * step);
		set(&in[of], i, x);
		if (!(fabs(get(grad, i) - want) <= 1e-6 * (1 + fabs(want)))) CHECK_EQ(get(grad, i), want);
	}
	CHECK(true);
}

/* [types] has room for those of inputs and outputs. */
static void prepare(hr__backward *backward, enum hr__op_kind kind, const tensor *in, uint32_t count, const hr__attrs *attrs,
                    hr__type *types, const tensor *outs, const tensor *weights)
{
	const hr__op *op = &hr__ops[kind];
	*backward = (hr__backward){
		.attrs = attrs, .in_count = count, .out_count = op->out_count, .in_types = types, .out_types = types + HR__OP_INPUTS
	};
	for (uint32_t i = 0; i < count; i++) {
		types[i] = in[i].type;
		backward->wanted[i] = true;
		if (op->grad_in_mask >> i & 1) backward->in[i] = kept(in[i]);
	}
	for (uint32_t i = 0; i < op->out_count; i++) {
		types[HR__OP_INPUTS + i] = outs[i].type;
		if (op->grad_out_mask >> i & 1) backward->out[i] = kept(outs[i]);
	}
	backward->grad_out[0] = kept(*weights);
}

static uint64_t live_values(void)
{
	uint64_t live = 0;
	for (uint64_t i = 1; i < value_count; i++) live += values[i].live;
	return live;
}

/* With call [n] and all later ones failing, for every n: an error is returned, and nothing leaks. */
static void check_failures(enum hr__op_kind kind, const tensor *in, uint32_t count, const hr__attrs *attrs, const tensor *outs,
                           const tensor *weights)
{
	hr__type types[HR__OP_INPUTS + HR__OP_OUTPUTS];
	hr__backward backward;
	for (int n = 0; n < 20; n++) {
		prepare(&backward, kind, in, count, attrs, types, outs, weights);
		uint64_t live = live_values();
		calls_left = n;
		hr_status status = hr__ops[kind].gradient(&backward);
		bool enough = calls_left > 0 || status == HR_OK;
		calls_left = -1;
		if (enough) return;
		CHECK_STATUS(HR_OUT_OF_MEMORY, status);
		CHECK_EQ(live_values(), live);
		for (uint32_t i = 0; i < count; i++) CHECK_EQ(backward.grad_in[i].id, 0);
	}
	CHECK(false);
}

static void check_gradient(enum hr__op_kind kind, tensor *in, uint32_t count, const hr__attrs *attrs)
{
	hr__type types[HR__OP_INPUTS + HR__OP_OUTPUTS];
	tensor outs[HR__OP_OUTPUTS];
	hr__backward backward;
	value_count = 1;
	memset(values, 0, sizeof values);
	run_once(kind, in, count, attrs, outs);
	tensor weights = random_tensor(outs[0].type.dtype, outs[0].type.dims, -1, 1);
	prepare(&backward, kind, in, count, attrs, types, outs, &weights);
	uint64_t live = live_values(), given = 0;
	CHECK_STATUS(HR_OK, hr__ops[kind].gradient(&backward));
	for (uint32_t i = 0; i < count; i++) {
		CHECK_EQ(backward.grad_in[i].id != 0, hr__dtype_is_float(in[i].type.dtype));
		if (backward.grad_in[i].id == 0) continue;
		given++;
		CHECK(values[backward.grad_in[i].id].live && values[backward.grad_in[i].id].keeps == 0);
		check_differences(kind, in, count, attrs, i, &values[backward.grad_in[i].id].of, &weights);
	}
	CHECK_EQ(live_values(), live + given); /* no temporary value is left */
	check_failures(kind, in, count, attrs, outs, &weights);
	free_all(outs, hr__ops[kind].out_count), free(weights.data);
}

static tensor some(hr__dims dims)
{
	return random_tensor(HR_DTYPE_FLOAT64, dims, -2, 2);
}

static tensor above_zero(hr__dims dims)
{
	return random_tensor(HR_DTYPE_FLOAT64, dims, 0.5, 2);
}

static const hr__attrs none;

static void test_gradients_of_elementwise_ops(void)
{
	const hr__dims shapes[][2] = { { SHAPE(3, 4), SHAPE(3, 4) },
		                           { SHAPE(3, 4), SHAPE(4) },
		                           { SHAPE(3, 1), SHAPE(1, 4) },
		                           { SCALAR_SHAPE, SHAPE(2, 3) },
		                           { SHAPE(2, 1, 4, 1), SHAPE(3, 1, 2) },
		                           { SHAPE(0, 3), SHAPE(3) },
		                           { SHAPE(1, 4), SHAPE(4) } };
	enum hr__op_kind binary[] = { HR__OP_ADD, HR__OP_SUB, HR__OP_MUL, HR__OP_DIV, HR__OP_MAXIMUM };
	for (size_t i = 0; i < sizeof binary / sizeof binary[0]; i++) {
		for (size_t k = 0; k < sizeof shapes / sizeof shapes[0]; k++) {
			tensor in[2] = { some(shapes[k][0]), above_zero(shapes[k][1]) };
			check_gradient(binary[i], in, 2, &none);
		}
	}
	enum hr__op_kind unary[] = { HR__OP_NEG, HR__OP_EXP, HR__OP_TANH, HR__OP_RELU, HR__OP_GELU, HR__OP_SCALE, HR__OP_SOFTMAX };
	for (size_t i = 0; i < sizeof unary / sizeof unary[0]; i++) {
		check_gradient(unary[i], (tensor[]){ some(SHAPE(3, 5)) }, 1, &(hr__attrs){ .a = 3, .b = 1 });
		check_gradient(unary[i], (tensor[]){ some(SHAPE(0, 5)) }, 1, &none);
	}
	check_gradient(HR__OP_LOG, (tensor[]){ above_zero(SHAPE(3, 5)) }, 1, &none);
	check_gradient(HR__OP_SQRT, (tensor[]){ above_zero(SHAPE(3, 5)) }, 1, &none);
	check_gradient(HR__OP_CAST, (tensor[]){ some(SHAPE(3, 5)) }, 1, &(hr__attrs){ .dtype = HR_DTYPE_FLOAT64 });
}

static void test_gradients_of_shape_ops(void)
{
	check_gradient(HR__OP_RESHAPE, (tensor[]){ some(SHAPE(3, 4)) }, 1, &(hr__attrs){ .dims = SHAPE(2, -1) });
	check_gradient(HR__OP_TRANSPOSE, (tensor[]){ some(SHAPE(2, 3, 4)) }, 1, &(hr__attrs){ .dims.rank = 3, .order = { 2, 0, 1 } });
	check_gradient(HR__OP_CONCAT, (tensor[]){ some(SHAPE(2, 3)), some(SHAPE(2, 1)), some(SHAPE(2, 0)), some(SHAPE(2, 4)) }, 4,
	               &(hr__attrs){ .axis = -1 });
	check_gradient(HR__OP_SLICE, (tensor[]){ some(SHAPE(2, 5)) }, 1, &(hr__attrs){ .axis = 1, .begin = 1, .count = 3 });
	check_gradient(HR__OP_SLICE, (tensor[]){ some(SHAPE(2, 5)) }, 1, &(hr__attrs){ .axis = -2, .begin = 1, .count = 1 });
	check_gradient(HR__OP_PAD, (tensor[]){ some(SHAPE(2, 2)) }, 1, &(hr__attrs){ .axis = 1, .begin = 1, .dims = SHAPE(2, 5) });
	check_gradient(HR__OP_BROADCAST_TO, (tensor[]){ some(SHAPE(3, 1)) }, 1, &(hr__attrs){ .dims = SHAPE(2, 3, 4) });
	tensor indices = random_tensor(HR_DTYPE_INT32, SHAPE(2, 6), 0, 4);
	check_gradient(HR__OP_GATHER, (tensor[]){ some(SHAPE(4, 3)), indices }, 2, &none);
	check_gradient(HR__OP_SCATTER_ROWS, (tensor[]){ some(SHAPE(2, 6, 3)), indices }, 2, &(hr__attrs){ .dims = SHAPE(4, 3) });
}

static void test_gradients_of_reductions(void)
{
	enum hr__op_kind kinds[] = { HR__OP_REDUCE_SUM, HR__OP_REDUCE_MEAN, HR__OP_REDUCE_MAX };
	int axes[] = { 0, 1, 2, -1, HR_ALL_AXES };
	for (size_t i = 0; i < 3; i++) {
		for (size_t k = 0; k < 5; k++) {
			for (int keep = 0; keep < 2; keep++) {
				check_gradient(kinds[i], (tensor[]){ some(SHAPE(2, 3, 4)) }, 1, &(hr__attrs){ .axis = axes[k], .keep = keep });
			}
		}
		check_gradient(kinds[i], (tensor[]){ some(SHAPE(0, 3)) }, 1, &(hr__attrs){ .axis = 1 });
	}
	check_gradient(HR__OP_SUM_TO, (tensor[]){ some(SHAPE(2, 3, 4)) }, 1, &(hr__attrs){ .dims = SHAPE(3, 1) });
}

static void test_gradients_of_products_and_losses(void)
{
	const hr__dims batches[][2] = { { SCALAR_SHAPE, SCALAR_SHAPE }, { SHAPE(2), SHAPE(2) },    { SHAPE(2, 3), SCALAR_SHAPE },
		                            { SCALAR_SHAPE, SHAPE(2) },     { SHAPE(2, 1), SHAPE(3) }, { SHAPE(0), SCALAR_SHAPE } };
	for (int t = 0; t < 4; t++) {
		for (size_t k = 0; k < sizeof batches / sizeof batches[0]; k++) {
			hr__attrs attrs = { .transpose_a = t & 1, .transpose_b = t >> 1 };
			hr__dims a = batches[k][0], b = batches[k][1];
			a.d[a.rank++] = t & 1 ? 3 : 2, a.d[a.rank++] = t & 1 ? 2 : 3;
			b.d[b.rank++] = t & 2 ? 4 : 3, b.d[b.rank++] = t & 2 ? 3 : 4;
			check_gradient(HR__OP_MATMUL, (tensor[]){ some(a), some(b) }, 2, &attrs);
		}
	}
	tensor labels = random_tensor(HR_DTYPE_INT64, SHAPE(5), 0, 4);
	check_gradient(HR__OP_CROSS_ENTROPY, (tensor[]){ some(SHAPE(5, 4)), labels }, 2, &none);
}

static void test_gradients_of_layers(void)
{
	check_gradient(HR__OP_SOFTMAX, (tensor[]){ some(SHAPE(2, 3, 5)) }, 1, &(hr__attrs){ .keep = true });
	check_gradient(HR__OP_SOFTMAX, (tensor[]){ some(SHAPE(4, 4)) }, 1, &(hr__attrs){ .keep = true });
	check_gradient(HR__OP_LAYER_NORM, (tensor[]){ some(SHAPE(2, 3, 9)), some(SHAPE(9)), some(SHAPE(9)) }, 3,
	               &(hr__attrs){ .a = 1e-5 });
	check_gradient(HR__OP_LAYER_NORM, (tensor[]){ some(SHAPE(5)), some(SHAPE(5)), some(SHAPE(5)) }, 3, &(hr__attrs){ .a = 1e-5 });
	check_gradient(HR__OP_LAYER_NORM, (tensor[]){ some(SHAPE(0, 5)), some(SHAPE(5)), some(SHAPE(5)) }, 3,
	               &(hr__attrs){ .a = 1e-5 });
	for (int causal = 0; causal < 2; causal++) {
		hr__attrs attrs = { .count = 2, .a = 0.7, .keep = causal };
		check_gradient(HR__OP_ATTEND, (tensor[]){ some(SHAPE(2, 3, 4)), some(SHAPE(2, 5, 4)), some(SHAPE(2, 5, 2)) }, 3, &attrs);
		check_gradient(HR__OP_ATTEND, (tensor[]){ some(SHAPE(0, 3, 4)), some(SHAPE(0, 5, 4)), some(SHAPE(0, 5, 2)) }, 3, &attrs);
	}
	check_gradient(HR__OP_BATCH_NORM, (tensor[]){ some(SHAPE(3, 2, 2, 5)), some(SHAPE(2)), some(SHAPE(2)) }, 3, &(hr__attrs){ .a = 1e-5 });
	check_gradient(HR__OP_BATCH_NORM, (tensor[]){ some(SHAPE(7, 3)), some(SHAPE(3)), some(SHAPE(3)) }, 3, &(hr__attrs){ .a = 1e-3 });
	check_gradient(HR__OP_BATCH_NORM, (tensor[]){ some(SHAPE(0, 3)), some(SHAPE(3)), some(SHAPE(3)) }, 3, &(hr__attrs){ .a = 1e-3 });
	tensor offset = random_tensor(HR_DTYPE_INT64, SCALAR_SHAPE, 0, 9);
	check_gradient(HR__OP_DROPOUT, (tensor[]){ some(SHAPE(5, 7)), offset }, 2, &(hr__attrs){ .a = 0.4, .seed = 3 });
	check_gradient(HR__OP_DROPOUT, (tensor[]){ some(SHAPE(5, 7)), offset }, 2, &(hr__attrs){ .a = 1, .seed = 3 });
	check_gradient(HR__OP_DROPOUT, (tensor[]){ some(SHAPE(0, 7)), offset }, 2, &(hr__attrs){ .a = 0.4 });
	check_gradient(HR__OP_COPY, (tensor[]){ some(SHAPE(3, 4)) }, 1, &none);
	for (int64_t stride = 1; stride < 4; stride++) {
		for (int64_t padding = 0; padding < 3; padding++) {
			hr__attrs attrs = { .stride = stride, .padding = padding };
			check_gradient(HR__OP_CONV2D, (tensor[]){ some(SHAPE(2, 2, 5, 4)), some(SHAPE(3, 2, 3, 2)) }, 2, &attrs);
			check_gradient(HR__OP_CONV2D, (tensor[]){ some(SHAPE(1, 1, 4, 4)), some(SHAPE(7, 1, 1, 1)) }, 2, &attrs);
		}
		for (int64_t size = 1; size < 4; size++) {
			hr__attrs attrs = { .size = size, .stride = stride };
			check_gradient(HR__OP_MAX_POOL, (tensor[]){ some(SHAPE(2, 2, 5, 4)) }, 1, &attrs);
			check_gradient(HR__OP_AVG_POOL, (tensor[]){ some(SHAPE(2, 2, 5, 4)) }, 1, &attrs);
		}
	}
	check_gradient(HR__OP_CONV2D, (tensor[]){ some(SHAPE(0, 2, 5, 4)), some(SHAPE(3, 2, 3, 2)) }, 2, &(hr__attrs){ .stride = 1 });
	check_gradient(HR__OP_MAX_POOL, (tensor[]){ some(SHAPE(0, 2, 5, 4)) }, 1, &(hr__attrs){ .size = 2, .stride = 2 });
}

static void test_integers_have_no_gradient(void)
{
	for (int kind = 0; kind < HR__OP_COUNT; kind++) {
		if (hr__ops[kind].gradient == NULL || kind == HR__OP_GATHER) continue;
		hr__type types[HR__OP_INPUTS] = { { 0 } }, out = { HR_DTYPE_INT32, SHAPE(2) };
		for (int i = 0; i < HR__OP_INPUTS; i++) types[i] = (hr__type){ HR_DTYPE_INT32, SHAPE(2) };
		hr__backward backward = { .attrs = &none,
			                      .in_count = hr__ops[kind].in_min,
			                      .out_count = hr__ops[kind].out_count,
			                      .in_types = types,
			                      .out_types = &out };
		for (int i = 0; i < HR__OP_INPUTS; i++) backward.wanted[i] = true;
		backward.grad_out[0] = kept(make(HR_DTYPE_INT32, SHAPE(2)));
		CHECK_STATUS(HR_OK, hr__ops[kind].gradient(&backward));
		for (int i = 0; i < HR__OP_INPUTS; i++) CHECK_EQ(backward.grad_in[i].id, 0);
	}
}

TEST_MAIN(T(test_gradients_of_elementwise_ops), T(test_gradients_of_shape_ops), T(test_gradients_of_reductions),
          T(test_gradients_of_products_and_losses), T(test_gradients_of_layers), T(test_integers_have_no_gradient))
