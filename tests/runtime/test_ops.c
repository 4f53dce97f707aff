/* test_ops.c - each op, compared with a slow reference in double. */
#include "headroom_runtime.h"
#include "runtime/support_ops.h"

static const hr_dtype floats[] = { HR_DTYPE_FLOAT32, HR_DTYPE_FLOAT64 };
static const hr_dtype numbers[] = { HR_DTYPE_FLOAT32, HR_DTYPE_FLOAT64, HR_DTYPE_INT32, HR_DTYPE_INT64, HR_DTYPE_UINT8 };
static const hr_dtype all[] = { HR_DTYPE_FLOAT32, HR_DTYPE_FLOAT64, HR_DTYPE_INT32,   HR_DTYPE_INT64,
	                            HR_DTYPE_UINT8,   HR_DTYPE_BOOL,    HR_DTYPE_BFLOAT16 };
static const hr__attrs none;

#define EACH(item, list) for (size_t item##_i = 0; item##_i < sizeof(list) / sizeof(list)[0]; item##_i++)
#define AT(item, list) (list)[item##_i]

/* ---- types ---- */

static void test_shapes_are_checked_and_compared(void)
{
	hr__dims dims, both;
	char text[HR__DIMS_TEXT], cut[4];
	CHECK_STATUS(HR_OK, hr__dims_make((int64_t[]){ 2, 0, 3 }, 3, &dims));
	CHECK_EQ(hr__dims_count(&dims), 0);
	CHECK_STR(hr__dims_text(&dims, text, sizeof text), "[2,0,3]");
	CHECK_STR(hr__dims_text(&dims, cut, sizeof cut), "[2,");
	CHECK_STATUS(HR_OK, hr__dims_make(NULL, 0, &dims));
	CHECK_EQ(hr__dims_count(&dims), 1);
	CHECK_STR(hr__dims_text(&dims, text, sizeof text), "[]");
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr__dims_make(NULL, 1, &dims));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr__dims_make((int64_t[]){ -1 }, 1, &dims));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr__dims_make((int64_t[9]){ 1 }, 9, &dims));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr__dims_make((int64_t[]){ 1 }, -1, &dims));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr__dims_make((int64_t[]){ INT64_C(1) << 31, INT64_C(1) << 31 }, 2, &dims));
	CHECK_CONTAINS(hr_last_message(), "2^60");
	hr__dims a = SHAPE(3, 1, 5), b = SHAPE(4, 1), c = SHAPE(2, 5), most = SHAPE(INT64_C(1) << 40, 1),
			 wide = SHAPE(1, INT64_C(1) << 40);
	CHECK(hr__dims_broadcast(&a, &b, &both));
	CHECK(hr__dims_equal(&both, &SHAPE(3, 4, 5)));
	CHECK(!hr__dims_broadcast(&b, &c, &both));
	CHECK(!hr__dims_broadcast(&most, &wide, &both));
	CHECK(!hr__dims_equal(&a, &b));
	CHECK_EQ(hr__type_bytes(&(hr__type){ HR_DTYPE_FLOAT64, a }), 120);
}

static void test_every_op_has_a_row(void)
{
	for (int i = 0; i < HR__OP_COUNT; i++) {
		const hr__op *op = &hr__ops[i];
		CHECK(op->name != NULL && op->infer != NULL && op->memory != 0 && op->out_count >= 1 && op->out_count <= HR__OP_OUTPUTS);
		CHECK_EQ(op->run == NULL, op->memory == HR__ALIASES || i == HR__OP_PLACEHOLDER || i == HR__OP_CHAIN); /* one is fed, the other is for cards */
		CHECK_EQ(op->forwards != 0, op->memory == HR__FORWARDS);
	}
}

/* ---- sources ---- */

static void test_constant_and_full_fill_their_shape(void)
{
	int32_t data[6] = { 1, -2, 3, 4, 5, 6 };
	tensor made = call(HR__OP_CONSTANT, NULL, 0, &(hr__attrs){ .dtype = HR_DTYPE_INT32, .dims = SHAPE(2, 3), .data = data });
	CHECK_BYTES(made.data, data, sizeof data);
	call(HR__OP_CONSTANT, NULL, 0, &(hr__attrs){ .dtype = HR_DTYPE_INT32, .dims = SHAPE(2, 0) });
	EACH(dtype, all)
	{
		tensor full = call(HR__OP_FULL, NULL, 0, &(hr__attrs){ .dtype = AT(dtype, all), .dims = SHAPE(300, 301), .a = 1 });
		for (int64_t i = 0; i < count_of(&full); i++) CHECK_EQ(get(&full, i), 1);
		free(full.data);
	}
	check_refused(HR__OP_FULL, NULL, 0, &(hr__attrs){ .dtype = HR_DTYPE_UINT8, .a = 256 }, "256 is not a valid uint8");
	check_refused(HR__OP_FULL, NULL, 0, &(hr__attrs){ .dtype = HR_DTYPE_INT32, .a = -3e9 }, "int32");
	check_refused(HR__OP_FULL, NULL, 0, &(hr__attrs){ .dtype = HR_DTYPE_INT64, .a = 0x1p63 }, "int64");
	check_refused(HR__OP_FULL, NULL, 0, &(hr__attrs){ .dtype = HR_DTYPE_INT64, .a = NAN }, "int64");
	check_refused(HR__OP_FULL, NULL, 0, &(hr__attrs){ .dtype = HR_DTYPE_FLOAT16, .a = 1 }, "float16");
	check_refused(HR__OP_CONSTANT, NULL, 0, &(hr__attrs){ .dtype = HR_DTYPE_NONE }, "dtype");
	check_refused(HR__OP_RANDOM_NORMAL, NULL, 0, &(hr__attrs){ .dtype = HR_DTYPE_INT32 }, "int32");
	check_refused(HR__OP_RANDOM_UNIFORM, NULL, 0, &(hr__attrs){ .dtype = HR_DTYPE_BOOL, .b = 1 }, "bool");
	check_refused(HR__OP_RANDOM_UNIFORM, NULL, 0, &(hr__attrs){ .dtype = HR_DTYPE_UINT8, .a = -1, .b = 1 }, "uint8");
	check_refused(HR__OP_RANDOM_UNIFORM, NULL, 0, &(hr__attrs){ .dtype = HR_DTYPE_INT32, .a = 0.2, .b = 0.8 }, "no integer");
}

static void test_random_numbers_have_their_moments_and_depend_on_the_seed(void)
{
	EACH(dtype, floats)
	{
		hr__attrs attrs = { .dtype = AT(dtype, floats), .dims = SHAPE(100001), .seed = 5 };
		tensor a = call(HR__OP_RANDOM_NORMAL, NULL, 0, &attrs);
		double sum = 0, squares = 0, cubes = 0, neighbours = 0;
		for (int64_t i = 0; i < 100001; i++) {
			double x = get(&a, i);
			sum += x, squares += x * x, cubes += x * x * x;
			if (i) neighbours += x * get(&a, i - 1);
		}
		CHECK_LT(fabs(sum / 1e5), 0.02);
		CHECK_LT(fabs(squares / 1e5 - 1), 0.02);
		CHECK_LT(fabs(cubes / 1e5), 0.05);
		CHECK_LT(fabs(neighbours / 1e5), 0.02);
		attrs.seed = 6;
		tensor b = call(HR__OP_RANDOM_NORMAL, NULL, 0, &attrs);
		CHECK(memcmp(a.data, b.data, 64) != 0);
		/* A shorter one has the same prefix. */
		attrs.dims = SHAPE(7);
		tensor c = call(HR__OP_RANDOM_NORMAL, NULL, 0, &attrs);
		CHECK_BYTES(b.data, c.data, hr__type_bytes(&c.type));
	}
	EACH(dtype, numbers)
	{
		hr__attrs attrs = { .dtype = AT(dtype, numbers), .dims = SHAPE(20001), .a = 3, .b = 9, .seed = 1 };
		tensor a = call(HR__OP_RANDOM_UNIFORM, NULL, 0, &attrs);
		double sum = 0;
		for (int64_t i = 0; i < 20001; i++) {
			CHECK(get(&a, i) >= 3 && get(&a, i) < 9);
			sum += get(&a, i);
		}
		CHECK_LT(fabs(sum / 20001 - (hr__dtype_is_float(AT(dtype, numbers)) ? 6 : 5.5)), 0.05);
	}
	hr__attrs whole = { .dtype = HR_DTYPE_INT64, .dims = SHAPE(1000), .a = -0x1p63, .b = 0x1p63, .seed = 1 };
	tensor a = call(HR__OP_RANDOM_UNIFORM, NULL, 0, &whole);
	int negative = 0;
	for (int64_t i = 0; i < 1000; i++) negative += get(&a, i) < 0;
	CHECK(negative > 400 && negative < 600);
}

/* Computed with an implementation that reproduces the known answers of the paper. */
static void test_a_seed_means_the_same_in_every_version(void)
{
	hr__attrs attrs = { .dtype = HR_DTYPE_INT64, .dims = SHAPE(4), .a = 0, .b = 1000000, .seed = 42 };
	tensor a = call(HR__OP_RANDOM_UNIFORM, NULL, 0, &attrs);
	const int64_t pinned[4] = { 520238, 691862, 883494, 664606 };
	CHECK_BYTES(a.data, pinned, sizeof pinned);
}

/* ---- elementwise ---- */

typedef double (*binary_reference)(double a, double b);

static double add(double a, double b)
{
	return a + b;
}

static double sub(double a, double b)
{
	return a - b;
}

static double mul(double a, double b)
{
	return a * b;
}

static double divide(double a, double b)
{
	return a / b;
}

static double larger(double a, double b)
{
	return a > b ? a : b;
}

static double wrap(hr_dtype dtype, double x)
{
	if (hr__dtype_is_float(dtype)) return x;
	return dtype == HR_DTYPE_UINT8 ? (double)(uint8_t)(int64_t)x : trunc(x);
}

static void check_binary(enum hr__op_kind kind, binary_reference reference, hr_dtype dtype, hr__dims a_dims, hr__dims b_dims)
{
	double low = dtype == HR_DTYPE_UINT8 ? 1 : -8;
	tensor in[2] = { random_tensor(dtype, a_dims, low, 9), random_tensor(dtype, b_dims, 1, 9) };
	tensor out = call(kind, in, 2, &none);
	hr__dims dims;
	CHECK(hr__dims_broadcast(&a_dims, &b_dims, &dims));
	check_dims(&out, dims);
	for (int64_t i = 0; i < count_of(&out); i++) {
		double a = get(&in[0], broadcast_place(&a_dims, &dims, i)), b = get(&in[1], broadcast_place(&b_dims, &dims, i));
		check_near(&out, i, wrap(dtype, reference(a, b)), fabs(a) + fabs(b));
	}
	free(in[0].data), free(in[1].data), free(out.data);
}

static void test_binary_ops_broadcast(void)
{
	static const struct {
		enum hr__op_kind kind;
		binary_reference reference;
	} ops[] = { { HR__OP_ADD, add }, { HR__OP_SUB, sub }, { HR__OP_MUL, mul }, { HR__OP_DIV, divide }, { HR__OP_MAXIMUM, larger } };
	const hr__dims shapes[][2] = {
		{ SCALAR_SHAPE, SCALAR_SHAPE },
		{ SHAPE(7), SHAPE(7) },
		{ SHAPE(5, 7), SCALAR_SHAPE },
		{ SCALAR_SHAPE, SHAPE(5, 7) },
		{ SHAPE(5, 7), SHAPE(7) },
		{ SHAPE(7), SHAPE(5, 7) },
		{ SHAPE(5, 7), SHAPE(5, 1) },
		{ SHAPE(5, 1), SHAPE(1, 7) },
		{ SHAPE(2, 3, 4, 5), SHAPE(3, 1, 5) },
		{ SHAPE(2, 1, 4, 1), SHAPE(1, 3, 1, 5) },
		{ SHAPE(0, 3), SHAPE(3) },
		{ SHAPE(2, 0), SHAPE(1, 1) },
		{ SHAPE(1, 1, 4), SHAPE(4) },
		{ SHAPE(2, 1, 2, 1, 2, 1, 2, 1), SHAPE(1, 2, 1, 2, 1, 2, 1, 2) },
		{ SHAPE(200, 333), SHAPE(200, 333) },
		{ SHAPE(200, 333), SHAPE(333) },
		{ SHAPE(200, 333), SHAPE(200, 1) },
		{ SHAPE(1), SHAPE(50000) },
	};
	EACH(op, ops) EACH(dtype, numbers) EACH(shape, shapes)
	{
		check_binary(AT(op, ops).kind, AT(op, ops).reference, AT(dtype, numbers), AT(shape, shapes)[0], AT(shape, shapes)[1]);
	}
}

static void test_binary_ops_refuse_what_does_not_fit(void)
{
	tensor f = make(HR_DTYPE_FLOAT32, SHAPE(2, 3)), g = make(HR_DTYPE_FLOAT32, SHAPE(4, 5)), i = make(HR_DTYPE_INT32, SHAPE(2, 3));
	tensor b = make(HR_DTYPE_BOOL, SHAPE(2, 3)), h = make(HR_DTYPE_FLOAT16, SHAPE(2, 3));
	check_refused(HR__OP_ADD, (tensor[]){ f, g }, 2, &none, "shapes [2,3] and [4,5] are incompatible: dimension 1 is 3 and 5");
	check_refused(HR__OP_ADD, (tensor[]){ f, i }, 2, &none, "dtypes float32 and int32 differ");
	check_refused(HR__OP_MUL, (tensor[]){ b, b }, 2, &none, "dtype is bool");
	check_refused(HR__OP_DIV, (tensor[]){ h, h }, 2, &none, "dtype is float16");
	check_refused(HR__OP_RELU_GRAD, (tensor[]){ i, i }, 2, &none, "float32, float64 and bfloat16");
	check_refused(HR__OP_TANH_GRAD, (tensor[]){ f, g }, 2, &none, "shapes [2,3] and [4,5] differ");
	enum hr__op_kind floats_only[] = { HR__OP_EXP, HR__OP_LOG, HR__OP_SQRT, HR__OP_TANH, HR__OP_RELU, HR__OP_GELU, HR__OP_SCALE };
	EACH(kind, floats_only) check_refused(AT(kind, floats_only), &i, 1, &none, "dtype is int32; it takes float32, float64 and bfloat16");
	check_refused(HR__OP_NEG, &b, 1, &none, "bool");
	check_refused(HR__OP_CAST, &h, 1, &(hr__attrs){ .dtype = HR_DTYPE_INT32 }, "float16");
	check_refused(HR__OP_CAST, &f, 1, &(hr__attrs){ .dtype = HR_DTYPE_INT8 }, "int8");
}

static void test_integers_wrap_and_division_by_zero_is_an_error(void)
{
	tensor a = make(HR_DTYPE_INT32, SHAPE(3)), b = make(HR_DTYPE_INT32, SHAPE(3)), out = make(HR_DTYPE_INT32, SHAPE(3));
	set(&a, 0, INT32_MIN), set(&a, 1, INT32_MAX), set(&a, 2, -7);
	set(&b, 0, -1), set(&b, 1, 1), set(&b, 2, 2);
	tensor in[2] = { a, b }, quotient = call(HR__OP_DIV, in, 2, &none), sum = call(HR__OP_ADD, in, 2, &none);
	CHECK_EQ(get(&quotient, 0), INT32_MIN);
	CHECK_EQ(get(&quotient, 2), -3);
	CHECK_EQ(get(&sum, 0), INT32_MAX);
	CHECK_EQ(get(&sum, 1), INT32_MIN);
	CHECK_EQ(get(&(tensor[]){ call(HR__OP_NEG, in, 1, &none) }[0], 0), INT32_MIN);
	set(&b, 1, 0);
	CHECK_STR(run_at(HR__OP_DIV, in, 2, &none, &out), "integer division by zero");
}

static double relu(double x, const hr__attrs *attrs)
{
	(void)attrs;
	return x > 0 ? x : 0;
}

static double gelu(double x, const hr__attrs *attrs)
{
	(void)attrs;
	return 0.5 * x * (1 + erf(x / sqrt(2)));
}

static double scale(double x, const hr__attrs *attrs)
{
	return x * attrs->a + attrs->b;
}

static double negative(double x, const hr__attrs *attrs)
{
	(void)attrs;
	return -x;
}

#define FROM_LIBM(name)                                       \
	static double of_##name(double x, const hr__attrs *attrs) \
	{                                                         \
		(void)attrs;                                          \
		return name(x);                                       \
	}
FROM_LIBM(exp)
FROM_LIBM(log)
FROM_LIBM(sqrt)
FROM_LIBM(tanh)

static void test_unary_ops_compute_their_function(void)
{
	static const struct {
		enum hr__op_kind kind;
		double (*reference)(double x, const hr__attrs *attrs);
		double low, high;
	} ops[] = { { HR__OP_NEG, negative, -9, 9 }, { HR__OP_EXP, of_exp, -9, 9 },   { HR__OP_LOG, of_log, 0.1, 9 },
		        { HR__OP_SQRT, of_sqrt, 0, 9 },  { HR__OP_TANH, of_tanh, -4, 4 }, { HR__OP_RELU, relu, -9, 9 },
		        { HR__OP_GELU, gelu, -4, 4 },    { HR__OP_SCALE, scale, -9, 9 } };
	const hr__dims shapes[] = { SCALAR_SHAPE, SHAPE(3, 5), SHAPE(0), SHAPE(100, 333) };
	EACH(op, ops) EACH(dtype, floats) EACH(shape, shapes)
	{
		hr__attrs attrs = { .a = 2.5, .b = -1 };
		tensor x = random_tensor(AT(dtype, floats), AT(shape, shapes), AT(op, ops).low, AT(op, ops).high),
			   out = call(AT(op, ops).kind, &x, 1, &attrs);
		check_dims(&out, AT(shape, shapes));
		for (int64_t i = 0; i < count_of(&out); i++) check_near(&out, i, AT(op, ops).reference(get(&x, i), &attrs), 1);
		free(x.data), free(out.data);
	}
	hr_dtype integers[] = { HR_DTYPE_INT32, HR_DTYPE_INT64, HR_DTYPE_UINT8 };
	EACH(dtype, integers)
	{
		tensor x = random_tensor(AT(dtype, integers), SHAPE(99), 0, 50), out = call(HR__OP_NEG, &x, 1, &none);
		for (int64_t i = 0; i < 99; i++)
			CHECK_EQ(get(&out, i), AT(dtype, integers) == HR_DTYPE_UINT8 ? (uint8_t) - (int64_t)get(&x, i) : -get(&x, i));
	}
}

static void test_nan_stays_nan(void)
{
	EACH(dtype, floats)
	{
		tensor x = make(AT(dtype, floats), SHAPE(2)), y = make(AT(dtype, floats), SHAPE(2));
		set(&x, 0, NAN), set(&x, 1, 1), set(&y, 0, 2), set(&y, 1, NAN);
		tensor most = call(HR__OP_MAXIMUM, (tensor[]){ x, y }, 2, &none), relued = call(HR__OP_RELU, &x, 1, &none);
		tensor reduced = call(HR__OP_REDUCE_MAX, &y, 1, &none), shares = call(HR__OP_SOFTMAX, &x, 1, &none);
		CHECK(isnan(get(&most, 0)) && isnan(get(&most, 1)) && isnan(get(&relued, 0)) && isnan(get(&reduced, 0)) &&
		      isnan(get(&shares, 1)));
	}
}

static void test_gradient_ops_of_functions_are_derivatives(void)
{
	EACH(dtype, floats)
	{
		tensor x = random_tensor(AT(dtype, floats), SHAPE(77, 300), -3, 3),
			   g = random_tensor(AT(dtype, floats), SHAPE(77, 300), -3, 3);
		tensor in[2] = { x, g }, of_relu = call(HR__OP_RELU_GRAD, in, 2, &none), of_tanh_ = call(HR__OP_TANH_GRAD, in, 2, &none);
		tensor of_gelu = call(HR__OP_GELU_GRAD, in, 2, &none);
		for (int64_t i = 0; i < count_of(&x); i++) {
			double a = get(&x, i), b = get(&g, i), density = exp(-a * a / 2) / sqrt(2 * acos(-1));
			check_near(&of_relu, i, a > 0 ? b : 0, 1);
			check_near(&of_tanh_, i, b * (1 - a * a), 27);
			check_near(&of_gelu, i, b * (0.5 * (1 + erf(a / sqrt(2))) + a * density), 3);
		}
	}
}

/* Like C, with defined results where C has none. */
static double cast_reference(double x, hr_dtype from, hr_dtype to)
{
	if (to == HR_DTYPE_BOOL) return x != 0;
	if (to == HR_DTYPE_BFLOAT16) return bfloat16_value(bfloat16_nearest((long double)x));
	if (hr__dtype_is_float(to)) return to == HR_DTYPE_FLOAT32 ? (double)(float)x : x;
	if (!hr__dtype_is_float(from) && from != HR_DTYPE_BFLOAT16) return to == HR_DTYPE_UINT8 ? (double)(uint8_t)(int64_t)x : x;
	if (to == HR_DTYPE_UINT8) return x < 0 ? 0 : x > 255 ? 255 : trunc(x);
	return trunc(x);
}

static void test_casts_convert_between_all_dtypes(void)
{
	EACH(from, all) EACH(to, all)
	{
		hr_dtype a = AT(from, all), b = AT(to, all);
		double low = a == HR_DTYPE_UINT8 || a == HR_DTYPE_BOOL ? 0 : -300, high = a == HR_DTYPE_BOOL    ? 2
		                                                                          : a == HR_DTYPE_UINT8 ? 256
		                                                                                                : 300;
		tensor x = random_tensor(a, SHAPE(19, 1001), low, high), out = call(HR__OP_CAST, &x, 1, &(hr__attrs){ .dtype = b });
		for (int64_t i = 0; i < count_of(&x); i++) CHECK_EQ(get(&out, i), cast_reference(get(&x, i), a, b));
		call(HR__OP_CAST, (tensor[]){ make(a, SHAPE(0)) }, 1, &(hr__attrs){ .dtype = b });
	}
	tensor x = make(HR_DTYPE_FLOAT64, SHAPE(4));
	set(&x, 0, NAN), set(&x, 1, 1e300), set(&x, 2, -INFINITY), set(&x, 3, 0x1p63);
	tensor wide = call(HR__OP_CAST, &x, 1, &(hr__attrs){ .dtype = HR_DTYPE_INT64 }),
		   narrow = call(HR__OP_CAST, &x, 1, &(hr__attrs){ .dtype = HR_DTYPE_INT32 });
	CHECK_BYTES(wide.data, ((int64_t[]){ 0, INT64_MAX, INT64_MIN, INT64_MAX }), 32);
	CHECK_BYTES(narrow.data, ((int32_t[]){ 0, INT32_MAX, INT32_MIN, INT32_MAX }), 16);
}

/* ---- shape ---- */

static void test_reshape_finds_the_open_dimension(void)
{
	tensor x = make(HR_DTYPE_BOOL, SHAPE(2, 6)), nothing = make(HR_DTYPE_BOOL, SHAPE(0, 3));
	hr__type type;
	CHECK_STATUS(HR_OK, infer(HR__OP_RESHAPE, &x, 1, &(hr__attrs){ .dims = SHAPE(3, -1, 2) }, &type));
	CHECK(hr__dims_equal(&type.dims, &SHAPE(3, 2, 2)));
	CHECK_STATUS(HR_OK, infer(HR__OP_RESHAPE, &x, 1, &(hr__attrs){ .dims = SHAPE(12) }, &type));
	CHECK_STATUS(HR_OK, infer(HR__OP_RESHAPE, &nothing, 1, &(hr__attrs){ .dims = SHAPE(5, 0) }, &type));
	CHECK_STATUS(HR_OK, infer(HR__OP_RESHAPE, &nothing, 1, &(hr__attrs){ .dims = SHAPE(-1, 3) }, &type));
	CHECK(hr__dims_equal(&type.dims, &SHAPE(0, 3)));
	check_refused(HR__OP_RESHAPE, &x, 1, &(hr__attrs){ .dims = SHAPE(5, -1) },
	              "shape [2,6] has 12 elements, which do not fill shape [5,-1]");
	check_refused(HR__OP_RESHAPE, &x, 1, &(hr__attrs){ .dims = SHAPE(11) }, "[11]");
	check_refused(HR__OP_RESHAPE, &nothing, 1, &(hr__attrs){ .dims = SHAPE(-1, 0) }, "[-1,0]");
}

static void check_transpose(hr_dtype dtype, hr__dims dims, const int *order)
{
	tensor x = random_tensor(dtype, dims, 0, dtype == HR_DTYPE_BOOL ? 2 : 200);
	hr__attrs attrs = { .dims.rank = dims.rank };
	memcpy(attrs.order, order, (size_t)dims.rank * sizeof order[0]);
	tensor out = call(HR__OP_TRANSPOSE, &x, 1, &attrs);
	for (int64_t i = 0; i < count_of(&out); i++) {
		int64_t index[HR_SHAPE_MAX_RANK] = { 0 }, rest = i, place = 0;
		for (int k = dims.rank; k-- > 0; rest /= out.type.dims.d[k]) index[order[k]] = rest % out.type.dims.d[k];
		for (int k = 0; k < dims.rank; k++) place = place * dims.d[k] + index[k];
		CHECK_EQ(get(&out, i), get(&x, place));
	}
	free(x.data), free(out.data);
}

static void test_transpose_moves_every_element(void)
{
	EACH(dtype, all)
	{
		hr_dtype of = AT(dtype, all);
		check_transpose(of, SCALAR_SHAPE, (int[]){ 0 });
		check_transpose(of, SHAPE(9), (int[]){ 0 });
		check_transpose(of, SHAPE(3, 5), (int[]){ 1, 0 });
		check_transpose(of, SHAPE(33, 65), (int[]){ 1, 0 });
		check_transpose(of, SHAPE(300, 217), (int[]){ 1, 0 });
		check_transpose(of, SHAPE(0, 5), (int[]){ 1, 0 });
		check_transpose(of, SHAPE(2, 3, 4, 5), (int[]){ 0, 2, 1, 3 });
		check_transpose(of, SHAPE(2, 3, 4, 5), (int[]){ 3, 2, 1, 0 });
		check_transpose(of, SHAPE(2, 3, 4, 5), (int[]){ 0, 2, 3, 1 });
		check_transpose(of, SHAPE(1, 40, 1, 50), (int[]){ 3, 0, 2, 1 });
		check_transpose(of, SHAPE(6, 40, 50), (int[]){ 1, 2, 0 });
		check_transpose(of, SHAPE(2, 1, 3, 2, 1, 2, 2, 3), (int[]){ 7, 0, 6, 1, 5, 2, 4, 3 });
	}
	tensor x = make(HR_DTYPE_FLOAT32, SHAPE(2, 3));
	check_refused(HR__OP_TRANSPOSE, &x, 1, &(hr__attrs){ .dims.rank = 3, .order = { 0, 1, 2 } },
	              "shape [2,3] has 2 dimensions, the order 3");
}

/* Splits element index [i] of a shape into the indices before, at and after an axis. */
static void split(const hr__dims *dims, int axis, int64_t i, int64_t *before, int64_t *at, int64_t *behind, int64_t *wide)
{
	*wide = 1;
	for (int k = axis + 1; k < dims->rank; k++) *wide *= dims->d[k];
	*behind = i % *wide;
	*at = i / *wide % dims->d[axis];
	*before = i / *wide / dims->d[axis];
}

static void check_concat(hr_dtype dtype, int axis, int negative_axis, hr__dims a, hr__dims b, hr__dims c)
{
	tensor in[3] = { random_tensor(dtype, a, 0, 2), random_tensor(dtype, b, 0, 2), random_tensor(dtype, c, 0, 2) };
	tensor out = call(HR__OP_CONCAT, in, 3, &(hr__attrs){ .axis = negative_axis });
	CHECK_EQ(out.type.dims.d[axis], a.d[axis] + b.d[axis] + c.d[axis]);
	for (int64_t i = 0; i < count_of(&out); i++) {
		int64_t before, at, behind, wide;
		split(&out.type.dims, axis, i, &before, &at, &behind, &wide);
		int which = 0;
		for (; at >= in[which].type.dims.d[axis]; which++) at -= in[which].type.dims.d[axis];
		CHECK_EQ(get(&out, i), get(&in[which], (before * in[which].type.dims.d[axis] + at) * wide + behind));
	}
}

static void test_concat_puts_values_behind_each_other(void)
{
	EACH(dtype, all)
	{
		check_concat(AT(dtype, all), 0, 0, SHAPE(2, 3), SHAPE(1, 3), SHAPE(4, 3));
		check_concat(AT(dtype, all), 1, -1, SHAPE(2, 3), SHAPE(2, 0), SHAPE(2, 70));
		check_concat(AT(dtype, all), 1, 1, SHAPE(20, 3, 50), SHAPE(20, 1, 50), SHAPE(20, 40, 50));
		check_concat(AT(dtype, all), 0, 0, SHAPE(0), SHAPE(0), SHAPE(0));
	}
	tensor a = make(HR_DTYPE_FLOAT32, SHAPE(2, 3)), b = make(HR_DTYPE_FLOAT32, SHAPE(2, 4)), c = make(HR_DTYPE_FLOAT32, SHAPE(2));
	tensor d = make(HR_DTYPE_INT32, SHAPE(2, 3)), e = make(HR_DTYPE_FLOAT32, SCALAR_SHAPE);
	check_refused(HR__OP_CONCAT, (tensor[]){ a, b }, 2, &(hr__attrs){ .axis = 0 },
	              "shapes [2,3] and [2,4] are incompatible along dimension 0: dimension 1 is 3 and 4");
	check_refused(HR__OP_CONCAT, (tensor[]){ a, c }, 2, &(hr__attrs){ .axis = 0 }, "different numbers of dimensions");
	check_refused(HR__OP_CONCAT, (tensor[]){ a, d }, 2, &(hr__attrs){ .axis = 0 }, "dtypes float32 and int32 differ");
	check_refused(HR__OP_CONCAT, (tensor[]){ a, a }, 2, &(hr__attrs){ .axis = 2 }, "shape [2,3] has no dimension 2");
	check_refused(HR__OP_CONCAT, (tensor[]){ a, a }, 2, &(hr__attrs){ .axis = -3 }, "shape [2,3] has no dimension -3");
	check_refused(HR__OP_CONCAT, (tensor[]){ e, e }, 2, &none, "shape [] has no dimension 0");
}

static void check_slice_and_pad(hr_dtype dtype, hr__dims dims, int axis, int64_t begin, int64_t count)
{
	tensor x = random_tensor(dtype, dims, 0, 2),
		   out = call(HR__OP_SLICE, &x, 1, &(hr__attrs){ .axis = axis, .begin = begin, .count = count });
	tensor padded = call(HR__OP_PAD, &out, 1, &(hr__attrs){ .axis = axis, .begin = begin, .dims = dims });
	CHECK_EQ(out.type.dims.d[axis], count);
	for (int64_t i = 0; i < count_of(&x); i++) {
		int64_t before, at, behind, wide;
		split(&dims, axis, i, &before, &at, &behind, &wide);
		bool in = at >= begin && at < begin + count;
		if (in) CHECK_EQ(get(&out, (before * count + at - begin) * wide + behind), get(&x, i));
		CHECK_EQ(get(&padded, i), in ? get(&x, i) : 0);
	}
}

static void test_slice_takes_out_what_pad_puts_back(void)
{
	EACH(dtype, all)
	{
		check_slice_and_pad(AT(dtype, all), SHAPE(10), 0, 3, 4);
		check_slice_and_pad(AT(dtype, all), SHAPE(5, 6, 7), 1, 2, 3);
		check_slice_and_pad(AT(dtype, all), SHAPE(5, 6, 7), 2, 6, 1);
		check_slice_and_pad(AT(dtype, all), SHAPE(5, 6, 7), 0, 5, 0);
		check_slice_and_pad(AT(dtype, all), SHAPE(500, 300), 0, 100, 300);
		check_slice_and_pad(AT(dtype, all), SHAPE(500, 300), 1, 100, 150);
		check_slice_and_pad(AT(dtype, all), SHAPE(0, 3), 1, 1, 1);
	}
	tensor x = make(HR_DTYPE_FLOAT32, SHAPE(2, 3)), h = make(HR_DTYPE_INT16, SHAPE(2, 3));
	check_refused(HR__OP_SLICE, &x, 1, &(hr__attrs){ .axis = 1, .begin = 2, .count = 2 },
	              "shape [2,3] has 3 elements along dimension 1, not 2 from 2 on");
	check_refused(HR__OP_SLICE, &x, 1, &(hr__attrs){ .axis = 1, .begin = -1, .count = 2 }, "from -1 on");
	check_refused(HR__OP_SLICE, &x, 1, &(hr__attrs){ .axis = 1, .begin = 1, .count = INT64_MAX }, "from 1 on");
	check_refused(HR__OP_SLICE, &x, 1, &(hr__attrs){ .axis = 2, .begin = 0, .count = 0 }, "no dimension 2");
	check_refused(HR__OP_SLICE, &h, 1, &none, "int16");
	check_refused(HR__OP_PAD, &x, 1, &(hr__attrs){ .axis = 1, .begin = 1, .dims = SHAPE(2, 3) },
	              "shape [2,3] does not fit into [2,3] from 1 on");
	check_refused(HR__OP_PAD, &x, 1, &(hr__attrs){ .axis = 1, .dims = SHAPE(3, 3) }, "[3,3]");
}

static void test_broadcast_to_repeats(void)
{
	const hr__dims shapes[][2] = { { SCALAR_SHAPE, SHAPE(3, 4) },   { SHAPE(4), SHAPE(3, 4) },
		                           { SHAPE(3, 1), SHAPE(3, 4) },    { SHAPE(2, 1, 3, 1), SHAPE(2, 5, 3, 7) },
		                           { SHAPE(1), SHAPE(0) },          { SHAPE(300, 1), SHAPE(300, 200) },
		                           { SHAPE(200), SHAPE(300, 200) }, { SHAPE(3, 4), SHAPE(3, 4) } };
	EACH(dtype, all) EACH(shape, shapes)
	{
		const hr__dims *from = &AT(shape, shapes)[0], *to = &AT(shape, shapes)[1];
		tensor x = random_tensor(AT(dtype, all), *from, 0, 2), out = call(HR__OP_BROADCAST_TO, &x, 1, &(hr__attrs){ .dims = *to });
		check_dims(&out, *to);
		for (int64_t i = 0; i < count_of(&out); i++) CHECK_EQ(get(&out, i), get(&x, broadcast_place(from, to, i)));
	}
	tensor x = make(HR_DTYPE_FLOAT32, SHAPE(2, 3));
	check_refused(HR__OP_BROADCAST_TO, &x, 1, &(hr__attrs){ .dims = SHAPE(2, 4) },
	              "shapes [2,3] and [2,4] are incompatible: dimension 1 is 3 and 4");
	check_refused(HR__OP_BROADCAST_TO, &x, 1, &(hr__attrs){ .dims = SHAPE(3) }, "shape [2,3] cannot be broadcast to [3]");
}

/* ---- indices ---- */

static void test_gather_and_scatter_go_by_rows(void)
{
	hr_dtype indices[] = { HR_DTYPE_INT32, HR_DTYPE_INT64 };
	const hr__dims tables[] = { SHAPE(7), SHAPE(7, 5), SHAPE(7, 2, 3), SHAPE(7, 0), SHAPE(7, 300) },
				   places[] = { SCALAR_SHAPE, SHAPE(4), SHAPE(3, 50), SHAPE(0) };
	EACH(of, indices) EACH(table, tables) EACH(place, places) EACH(dtype, all)
	{
		hr_dtype dtype = AT(dtype, all);
		tensor in[2] = { random_tensor(dtype, AT(table, tables), 0, 2), random_tensor(AT(of, indices), AT(place, places), 0, 7) };
		tensor out = call(HR__OP_GATHER, in, 2, &none);
		int64_t wide = count_of(&in[0]) / 7;
		CHECK_EQ(count_of(&out), count_of(&in[1]) * wide);
		CHECK_EQ(out.type.dims.rank, AT(place, places).rank + AT(table, tables).rank - 1);
		for (int64_t i = 0; i < count_of(&out); i++)
			CHECK_EQ(get(&out, i), get(&in[0], (int64_t)get(&in[1], i / wide) * wide + i % wide));
		if (!hr__dtype_is_float(dtype)) continue;
		tensor back = call(HR__OP_SCATTER_ROWS, (tensor[]){ out, in[1] }, 2, &(hr__attrs){ .dims = AT(table, tables) });
		for (int64_t i = 0; i < count_of(&back); i++) {
			double sum = 0;
			for (int64_t k = 0; k < count_of(&in[1]); k++)
				sum += get(&in[1], k) == (double)(i / wide) ? get(&out, k * wide + i % wide) : 0;
			check_near(&back, i, sum, 1);
		}
	}
}

static void test_one_hot_sets_one(void)
{
	EACH(dtype, all)
	{
		tensor x = random_tensor(HR_DTYPE_INT64, SHAPE(50, 40), 0, 9),
			   out = call(HR__OP_ONE_HOT, &x, 1, &(hr__attrs){ .dtype = AT(dtype, all), .count = 9 });
		check_dims(&out, SHAPE(50, 40, 9));
		for (int64_t i = 0; i < count_of(&out); i++) CHECK_EQ(get(&out, i), get(&x, i / 9) == (double)(i % 9));
	}
	call(HR__OP_ONE_HOT, (tensor[]){ make(HR_DTYPE_INT32, SHAPE(0)) }, 1, &(hr__attrs){ .dtype = HR_DTYPE_INT32, .count = 0 });
}

static void test_indices_out_of_range_are_an_error(void)
{
	tensor table = random_tensor(HR_DTYPE_FLOAT32, SHAPE(3, 2), 0, 1), places = make(HR_DTYPE_INT32, SHAPE(2)),
		   rows = make(HR_DTYPE_FLOAT32, SHAPE(2, 2));
	tensor hot = make(HR_DTYPE_FLOAT32, SHAPE(2, 3)), logits = make(HR_DTYPE_FLOAT32, SHAPE(2, 3)),
		   losses = make(HR_DTYPE_FLOAT32, SHAPE(2));
	double wrong[] = { 3, -1, INT32_MIN, INT32_MAX };
	EACH(index, wrong)
	{
		set(&places, 0, 1), set(&places, 1, AT(index, wrong));
		CHECK_STR(run_at(HR__OP_GATHER, (tensor[]){ table, places }, 2, &none, &rows), "an index is out of range");
		CHECK_STR(run_at(HR__OP_SCATTER_ROWS, (tensor[]){ rows, places }, 2, &none, &table), "an index is out of range");
		CHECK_STR(run_at(HR__OP_ONE_HOT, &places, 1, &(hr__attrs){ .count = 3 }, &hot), "an index is out of range");
		CHECK_STR(run_at(HR__OP_CROSS_ENTROPY, (tensor[]){ logits, places }, 2, &none, &losses), "a label is out of range");
		CHECK_STR(run_at(HR__OP_CROSS_ENTROPY_GRAD, (tensor[]){ logits, places, losses }, 3, &none, &hot),
		          "a label is out of range");
	}
	tensor f = rows, s = make(HR_DTYPE_FLOAT32, SCALAR_SHAPE), deep = make(HR_DTYPE_INT32, SHAPE(1, 1, 1, 1, 1, 1, 1, 1));
	check_refused(HR__OP_GATHER, (tensor[]){ table, f }, 2, &none, "dtype is float32; it takes int32 and int64 as indices");
	check_refused(HR__OP_GATHER, (tensor[]){ s, places }, 2, &none, "shape [] has no rows");
	check_refused(HR__OP_GATHER, (tensor[]){ table, deep }, 2, &none, "9 dimensions");
	check_refused(HR__OP_SCATTER_ROWS, (tensor[]){ table, places }, 2, &(hr__attrs){ .dims = SHAPE(3, 2) },
	              "shapes [3,2] and [2,2] differ");
	check_refused(HR__OP_ONE_HOT, &f, 1, &(hr__attrs){ .count = 3, .dtype = HR_DTYPE_FLOAT32 }, "float32");
	check_refused(HR__OP_ONE_HOT, &deep, 1, &(hr__attrs){ .count = 3, .dtype = HR_DTYPE_FLOAT32 }, "no room");
	check_refused(HR__OP_ONE_HOT, &places, 1, &(hr__attrs){ .count = 3, .dtype = HR_DTYPE_NONE }, "dtype");
}

/* ---- reductions ---- */

struct reference {
	double sum, size, most;
	int64_t count;
};

/* Adds every element of [x] to its place in the output. [wide] is the output's shape with the reduced dimensions as 1. */
static void reduce_reference(const tensor *x, const hr__dims *wide, struct reference *to)
{
	for (int64_t i = 0; i < hr__dims_count(wide); i++) to[i] = (struct reference){ .most = -INFINITY };
	for (int64_t i = 0; i < count_of(x); i++) {
		struct reference *one = &to[broadcast_place(wide, &x->type.dims, i)];
		double value = get(x, i);
		one->sum += value;
		one->size += fabs(value);
		one->count++;
		if (value > one->most) one->most = value;
	}
}

static double least_of(hr_dtype dtype)
{
	return dtype == HR_DTYPE_INT32   ? INT32_MIN
	       : dtype == HR_DTYPE_INT64 ? (double)INT64_MIN
	       : dtype == HR_DTYPE_UINT8 ? 0
	                                 : -INFINITY;
}

static void check_reduce(hr_dtype dtype, hr__dims dims, int axis, bool keep)
{
	tensor x = random_tensor(dtype, dims, dtype == HR_DTYPE_UINT8 ? 0 : -5, 6);
	hr__attrs attrs = { .axis = axis, .keep = keep };
	hr__dims wide = dims;
	for (int i = 0; i < dims.rank; i++) {
		if (axis == HR_ALL_AXES || i == axis || i == axis + dims.rank) wide.d[i] = 1;
	}
	int64_t count = hr__dims_count(&wide);
	struct reference *reference = malloc((size_t)(count + 1) * sizeof *reference);
	reduce_reference(&x, &wide, reference);
	tensor sum = call(HR__OP_REDUCE_SUM, &x, 1, &attrs), most = call(HR__OP_REDUCE_MAX, &x, 1, &attrs);
	CHECK_EQ(count_of(&sum), count);
	CHECK_EQ(sum.type.dims.rank, keep ? dims.rank : axis == HR_ALL_AXES ? 0 : dims.rank - 1);
	for (int64_t i = 0; i < count; i++) {
		check_near(&sum, i, wrap(dtype, reference[i].sum), reference[i].size);
		CHECK_EQ(get(&most, i), reference[i].count ? reference[i].most : least_of(dtype));
	}
	if (hr__dtype_is_float(dtype)) {
		tensor mean = call(HR__OP_REDUCE_MEAN, &x, 1, &attrs);
		for (int64_t i = 0; i < count; i++) {
			check_near(&mean, i, reference[i].sum / (double)reference[i].count, reference[i].size / (double)reference[i].count);
		}
		free(mean.data);
	}
	free(reference), free(x.data), free(sum.data), free(most.data);
}

static void test_reductions_reduce_along_each_axis(void)
{
	EACH(dtype, numbers)
	{
		for (int keep = 0; keep < 2; keep++) {
			hr_dtype of = AT(dtype, numbers);
			check_reduce(of, SCALAR_SHAPE, HR_ALL_AXES, keep);
			check_reduce(of, SHAPE(0), HR_ALL_AXES, keep);
			check_reduce(of, SHAPE(3, 0), 1, keep);
			check_reduce(of, SHAPE(3, 0), 0, keep);
			for (int axis = -3; axis < 3; axis++) check_reduce(of, SHAPE(4, 70, 5), axis, keep);
			check_reduce(of, SHAPE(4, 70, 5), HR_ALL_AXES, keep);
			check_reduce(of, SHAPE(100, 1300), 0, keep);
			check_reduce(of, SHAPE(100, 1300), 1, keep);
			check_reduce(of, SHAPE(150001), 0, keep);
			check_reduce(of, SHAPE(50001, 3), 0, keep);
			check_reduce(of, SHAPE(2, 3001, 70), 1, keep);
		}
	}
	tensor x = make(HR_DTYPE_INT32, SHAPE(2, 3)), b = make(HR_DTYPE_BOOL, SHAPE(2, 3));
	check_refused(HR__OP_REDUCE_SUM, &x, 1, &(hr__attrs){ .axis = 2 }, "shape [2,3] has no dimension 2");
	check_refused(HR__OP_REDUCE_MEAN, &x, 1, &(hr__attrs){ .axis = 1 }, "dtype is int32; it takes float32 and float64");
	check_refused(HR__OP_REDUCE_MAX, &b, 1, &(hr__attrs){ .axis = 1 }, "dtype is bool");
}

static void test_long_sums_stay_exact(void)
{
	tensor x = make(HR_DTYPE_FLOAT32, SHAPE(3000000));
	for (int64_t i = 0; i < count_of(&x); i++) set(&x, i, 0.1);
	tensor sum = call(HR__OP_REDUCE_SUM, &x, 1, &none);
	CHECK_LT(fabs(get(&sum, 0) - 3e6 * (double)0.1f), 1e-6 * 3e5);
}

static void test_sum_to_undoes_broadcasting(void)
{
	const hr__dims shapes[][2] = { { SHAPE(3, 4), SHAPE(4) },
		                           { SHAPE(3, 4), SHAPE(3, 1) },
		                           { SHAPE(3, 4), SCALAR_SHAPE },
		                           { SHAPE(3, 4), SHAPE(3, 4) },
		                           { SHAPE(2, 3, 4, 5), SHAPE(3, 1, 5) },
		                           { SHAPE(2, 3, 4, 5), SHAPE(2, 1, 4, 1) },
		                           { SHAPE(8, 30, 7, 9), SHAPE(30, 1, 1) },
		                           { SHAPE(0, 3), SHAPE(3) },
		                           { SHAPE(3, 0, 4, 2), SHAPE(3, 1, 4, 1) },
		                           { SHAPE(0, 3, 0), SHAPE(1, 3, 1) },
		                           { SHAPE(3, 0), SHAPE(1, 0) },
		                           { SHAPE(5000, 40), SHAPE(40) },
		                           { SHAPE(2, 3, 2, 3, 2, 3, 2, 3), SHAPE(2, 1, 2, 1, 2, 1, 2, 1) } };
	EACH(dtype, numbers) EACH(shape, shapes)
	{
		hr_dtype of = AT(dtype, numbers);
		const hr__dims *to = &AT(shape, shapes)[1];
		tensor x = random_tensor(of, AT(shape, shapes)[0], of == HR_DTYPE_UINT8 ? 0 : -5, 6),
			   out = call(HR__OP_SUM_TO, &x, 1, &(hr__attrs){ .dims = *to });
		check_dims(&out, *to);
		struct reference *reference = malloc((size_t)(hr__dims_count(to) + 1) * sizeof *reference);
		reduce_reference(&x, to, reference);
		for (int64_t i = 0; i < count_of(&out); i++) check_near(&out, i, wrap(of, reference[i].sum), reference[i].size);
		free(reference);
	}
	tensor x = make(HR_DTYPE_FLOAT32, SHAPE(2, 3));
	check_refused(HR__OP_SUM_TO, &x, 1, &(hr__attrs){ .dims = SHAPE(4) },
	              "shapes [2,3] and [4] are incompatible: dimension 1 is 3 and 4");
	check_refused(HR__OP_SUM_TO, &x, 1, &(hr__attrs){ .dims = SHAPE(5, 2, 3) }, "shape [2,3] cannot be summed to [5,2,3]");
}

static void test_max_grad_shares_among_equals(void)
{
	int axes[] = { 0, 1, 2, HR_ALL_AXES };
	EACH(dtype, floats) EACH(axis, axes)
	{
		hr__dims dims = SHAPE(5, 70, 6);
		hr__attrs attrs = { .axis = AT(axis, axes) };
		tensor x = random_tensor(HR_DTYPE_INT32, dims, 0, 4);
		x = call(HR__OP_CAST, &x, 1, &(hr__attrs){ .dtype = AT(dtype, floats) });
		tensor most = call(HR__OP_REDUCE_MAX, &x, 1, &attrs), g = random_tensor(AT(dtype, floats), most.type.dims, -1, 1);
		tensor out = call(HR__OP_MAX_GRAD, (tensor[]){ x, most, g }, 3, &attrs);
		for (int64_t i = 0; i < count_of(&x); i++) {
			int64_t before = 0, at = i, behind = 0, wide = 1, many = count_of(&x), equals = 0;
			if (attrs.axis != HR_ALL_AXES) split(&dims, attrs.axis, i, &before, &at, &behind, &wide), many = dims.d[attrs.axis];
			for (int64_t k = 0; k < many; k++)
				equals += get(&x, (before * many + k) * wide + behind) == get(&most, before * wide + behind);
			bool is = get(&x, i) == get(&most, before * wide + behind);
			check_near(&out, i, is ? get(&g, before * wide + behind) / (double)equals : 0, 1);
		}
		check_refused(HR__OP_MAX_GRAD, (tensor[]){ x, x, g }, 3, &attrs, "differ");
	}
}

/* ---- matrices ---- */

static void check_matmul(hr_dtype dtype, hr__dims a_batch, hr__dims b_batch, int64_t rows, int64_t depth, int64_t columns,
                         int transposes)
{
	hr__attrs attrs = { .transpose_a = transposes & 1, .transpose_b = transposes >> 1 };
	hr__dims a = a_batch, b = b_batch, batch;
	a.d[a.rank++] = attrs.transpose_a ? depth : rows, a.d[a.rank++] = attrs.transpose_a ? rows : depth;
	b.d[b.rank++] = attrs.transpose_b ? columns : depth, b.d[b.rank++] = attrs.transpose_b ? depth : columns;
	tensor in[2] = { random_tensor(dtype, a, -1, 1), random_tensor(dtype, b, -1, 1) }, out = call(HR__OP_MATMUL, in, 2, &attrs);
	CHECK(hr__dims_broadcast(&a_batch, &b_batch, &batch));
	CHECK_EQ(out.type.dims.rank, batch.rank + 2);
	for (int64_t i = 0; i < count_of(&out); i++) {
		int64_t column = i % columns, row = i / columns % rows, number = i / columns / rows;
		int64_t of_a = broadcast_place(&a_batch, &batch, number) * rows * depth,
				of_b = broadcast_place(&b_batch, &batch, number) * depth * columns;
		double sum = 0, size = 0;
		for (int64_t k = 0; k < depth; k++) {
			double x = get(&in[0], of_a + (attrs.transpose_a ? k * rows + row : row * depth + k));
			double y = get(&in[1], of_b + (attrs.transpose_b ? column * depth + k : k * columns + column));
			sum += x * y;
			size += fabs(x * y);
		}
		check_near(&out, i, sum, size);
	}
	free(in[0].data), free(in[1].data), free(out.data);
}

static void test_matmul_multiplies(void)
{
	EACH(dtype, floats)
	{
		for (int t = 0; t < 4; t++) {
			hr_dtype of = AT(dtype, floats);
			check_matmul(of, SCALAR_SHAPE, SCALAR_SHAPE, 1, 1, 1, t);
			check_matmul(of, SCALAR_SHAPE, SCALAR_SHAPE, 2, 3, 4, t);
			check_matmul(of, SCALAR_SHAPE, SCALAR_SHAPE, 7, 300, 33, t);
			check_matmul(of, SCALAR_SHAPE, SCALAR_SHAPE, 61, 129, 530, t);
			check_matmul(of, SCALAR_SHAPE, SCALAR_SHAPE, 1, 513, 40, t);
			check_matmul(of, SCALAR_SHAPE, SCALAR_SHAPE, 40, 256, 1, t);
			check_matmul(of, SCALAR_SHAPE, SCALAR_SHAPE, 3, 0, 4, t);
			check_matmul(of, SCALAR_SHAPE, SCALAR_SHAPE, 0, 3, 4, t);
			check_matmul(of, SCALAR_SHAPE, SCALAR_SHAPE, 3, 4, 0, t);
			check_matmul(of, SHAPE(3), SHAPE(3), 5, 6, 7, t);
			check_matmul(of, SHAPE(2, 3), SCALAR_SHAPE, 5, 6, 7, t);
			check_matmul(of, SHAPE(2, 3), SHAPE(1), 5, 6, 7, t);
			check_matmul(of, SCALAR_SHAPE, SHAPE(2, 3), 5, 6, 7, t);
			check_matmul(of, SHAPE(2, 1), SHAPE(3), 5, 6, 7, t);
			check_matmul(of, SHAPE(2, 1, 2), SHAPE(3, 1), 5, 300, 7, t);
			check_matmul(of, SHAPE(37), SHAPE(37), 9, 10, 11, t);
			check_matmul(of, SHAPE(0), SHAPE(1), 9, 10, 11, t);
			check_matmul(of, SHAPE(3), SHAPE(3), 2, 0, 2, t);
		}
	}
}

static void test_matmul_refuses_what_does_not_fit(void)
{
	tensor a = make(HR_DTYPE_FLOAT32, SHAPE(2, 3)), b = make(HR_DTYPE_FLOAT32, SHAPE(4, 5)), v = make(HR_DTYPE_FLOAT32, SHAPE(3));
	tensor d = make(HR_DTYPE_FLOAT64, SHAPE(3, 2)), i = make(HR_DTYPE_INT32, SHAPE(3, 3)),
		   x = make(HR_DTYPE_FLOAT32, SHAPE(2, 3, 3)), y = make(HR_DTYPE_FLOAT32, SHAPE(4, 3, 3));
	check_refused(HR__OP_MATMUL, (tensor[]){ a, b }, 2, &none,
	              "shapes [2,3] and [4,5] are incompatible: the first has 3 columns, the second 4 rows");
	check_refused(HR__OP_MATMUL, (tensor[]){ a, a }, 2, &none, "[2,3]");
	check_refused(HR__OP_MATMUL, (tensor[]){ a, b }, 2, &(hr__attrs){ .transpose_a = true }, "[2,3] (transposed)");
	check_refused(HR__OP_MATMUL, (tensor[]){ a, v }, 2, &none, "a matrix has two dimensions");
	check_refused(HR__OP_MATMUL, (tensor[]){ a, d }, 2, &none, "dtypes float32 and float64 differ");
	check_refused(HR__OP_MATMUL, (tensor[]){ i, i }, 2, &none, "dtype is int32");
	check_refused(HR__OP_MATMUL, (tensor[]){ x, y }, 2, &none, "cannot be broadcast");
}

/* ---- softmax and loss ---- */

static void check_softmax(hr_dtype dtype, hr__dims dims, double range)
{
	tensor x = random_tensor(dtype, dims, -range, range), g = random_tensor(dtype, dims, -1, 1),
		   y = call(HR__OP_SOFTMAX, &x, 1, &none);
	tensor back = call(HR__OP_SOFTMAX_GRAD, (tensor[]){ y, g }, 2, &none);
	int64_t length = dims.d[dims.rank - 1];
	for (int64_t row = 0; length > 0 && row < count_of(&x) / length; row++) {
		double most = -INFINITY, sum = 0, dot = 0;
		for (int64_t i = row * length; i < (row + 1) * length; i++) most = fmax(most, get(&x, i));
		for (int64_t i = row * length; i < (row + 1) * length; i++) sum += exp(get(&x, i) - most), dot += get(&y, i) * get(&g, i);
		for (int64_t i = row * length; i < (row + 1) * length; i++) {
			check_near(&y, i, exp(get(&x, i) - most) / sum, 1);
			check_near(&back, i, get(&y, i) * (get(&g, i) - dot), 1);
		}
	}
}

static void test_softmax_is_stable(void)
{
	EACH(dtype, floats)
	{
		check_softmax(AT(dtype, floats), SHAPE(7), 5);
		check_softmax(AT(dtype, floats), SHAPE(30, 400), 5);
		check_softmax(AT(dtype, floats), SHAPE(3, 4, 5), 1000);
		check_softmax(AT(dtype, floats), SHAPE(3, 0), 5);
		check_softmax(AT(dtype, floats), SHAPE(0, 3), 5);
		check_softmax(AT(dtype, floats), SHAPE(3, 1), 5);
	}
	tensor s = make(HR_DTYPE_FLOAT32, SCALAR_SHAPE), i = make(HR_DTYPE_INT64, SHAPE(2)), f = make(HR_DTYPE_FLOAT32, SHAPE(2)),
		   g = make(HR_DTYPE_FLOAT32, SHAPE(3));
	check_refused(HR__OP_SOFTMAX, &s, 1, &none, "shape [] has no last dimension");
	check_refused(HR__OP_SOFTMAX, &i, 1, &none, "dtype is int64");
	check_refused(HR__OP_SOFTMAX_GRAD, (tensor[]){ f, g }, 2, &none, "shapes [2] and [3] differ");
}

static void check_cross_entropy(hr_dtype dtype, hr_dtype of_labels, int64_t rows, int64_t classes, double range)
{
	tensor in[3] = { random_tensor(dtype, SHAPE(rows, classes), -range, range),
		             random_tensor(of_labels, SHAPE(rows), 0, (double)classes), random_tensor(dtype, SHAPE(rows), -1, 1) };
	tensor loss = call(HR__OP_CROSS_ENTROPY, in, 2, &none), back = call(HR__OP_CROSS_ENTROPY_GRAD, in, 3, &none);
	check_dims(&loss, SHAPE(rows));
	for (int64_t row = 0; row < rows; row++) {
		double most = -INFINITY, sum = 0;
		int64_t label = (int64_t)get(&in[1], row);
		for (int64_t i = 0; i < classes; i++) most = fmax(most, get(&in[0], row * classes + i));
		for (int64_t i = 0; i < classes; i++) sum += exp(get(&in[0], row * classes + i) - most);
		check_near(&loss, row, log(sum) + most - get(&in[0], row * classes + label), 1);
		for (int64_t i = 0; i < classes; i++) {
			double share = exp(get(&in[0], row * classes + i) - most) / sum;
			check_near(&back, row * classes + i, (share - (i == label)) * get(&in[2], row), 1);
		}
	}
}

static void test_cross_entropy_is_stable(void)
{
	hr_dtype labels[] = { HR_DTYPE_INT32, HR_DTYPE_INT64 };
	EACH(dtype, floats) EACH(label, labels)
	{
		check_cross_entropy(AT(dtype, floats), AT(label, labels), 5, 7, 3);
		check_cross_entropy(AT(dtype, floats), AT(label, labels), 200, 100, 1000);
		check_cross_entropy(AT(dtype, floats), AT(label, labels), 0, 7, 3);
		check_cross_entropy(AT(dtype, floats), AT(label, labels), 4, 1, 3);
	}
	tensor x = make(HR_DTYPE_FLOAT32, SHAPE(2, 3)), i = make(HR_DTYPE_INT32, SHAPE(3)), f = make(HR_DTYPE_FLOAT32, SHAPE(2)),
		   u = make(HR_DTYPE_INT32, SHAPE(2));
	check_refused(HR__OP_CROSS_ENTROPY, (tensor[]){ x, i }, 2, &none,
	              "shapes [2,3] and [3] are incompatible: logits are [rows,classes], labels [rows]");
	check_refused(HR__OP_CROSS_ENTROPY, (tensor[]){ x, f }, 2, &none, "dtype is float32");
	check_refused(HR__OP_CROSS_ENTROPY, (tensor[]){ u, u }, 2, &none, "dtype is int32");
	check_refused(HR__OP_CROSS_ENTROPY_GRAD, (tensor[]){ x, u, x }, 3, &none, "shapes [2] and [2,3] differ");
}

TEST_MAIN(T(test_shapes_are_checked_and_compared), T(test_every_op_has_a_row), T(test_constant_and_full_fill_their_shape),
          T(test_random_numbers_have_their_moments_and_depend_on_the_seed), T(test_a_seed_means_the_same_in_every_version),
          T(test_binary_ops_broadcast), T(test_binary_ops_refuse_what_does_not_fit),
          T(test_integers_wrap_and_division_by_zero_is_an_error), T(test_unary_ops_compute_their_function),
          T(test_nan_stays_nan), T(test_gradient_ops_of_functions_are_derivatives),
          T(test_casts_convert_between_all_dtypes), T(test_reshape_finds_the_open_dimension), T(test_transpose_moves_every_element),
          T(test_concat_puts_values_behind_each_other), T(test_slice_takes_out_what_pad_puts_back), T(test_broadcast_to_repeats),
          T(test_gather_and_scatter_go_by_rows), T(test_one_hot_sets_one), T(test_indices_out_of_range_are_an_error),
          T(test_reductions_reduce_along_each_axis), T(test_long_sums_stay_exact), T(test_sum_to_undoes_broadcasting),
          T(test_max_grad_shares_among_equals), T(test_matmul_multiplies), T(test_matmul_refuses_what_does_not_fit),
          T(test_softmax_is_stable), T(test_cross_entropy_is_stable))
