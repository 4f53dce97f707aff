/* test_ops_bfloat16.c - casts to and from bfloat16, bit by bit, and the errors of arithmetic ops.
 *
 * By default every 4093rd float32 and all neighbours of ties are cast; from scale 10 on, all 2^32. */
#include "runtime/support_ops.h"

#define PATTERNS 65536
#define CHUNK (1 << 18)
#define CASTS_TO(of) (&(hr__attrs){ .dtype = (of) })

static uint32_t bits_of(float x)
{
	uint32_t bits;
	memcpy(&bits, &x, sizeof bits);
	return bits;
}

static bool is_nan(uint32_t bits)
{
	return (bits & 0x7FFF) > 0x7F80;
}

/* Every bfloat16, in numerical order of its bits. */
static tensor all_of_them(void)
{
	tensor x = make(HR_DTYPE_BFLOAT16, SHAPE(PATTERNS));
	for (uint32_t i = 0; i < PATTERNS; i++) ((uint16_t *)x.data)[i] = (uint16_t)i;
	return x;
}

/* ---- from bfloat16 ---- */

static void test_each_bfloat16_is_a_float32_and_a_float64(void)
{
	tensor x = all_of_them(), f32 = call(HR__OP_CAST, &x, 1, CASTS_TO(HR_DTYPE_FLOAT32)), f64 = call(HR__OP_CAST, &x, 1, CASTS_TO(HR_DTYPE_FLOAT64));
	for (uint32_t i = 0; i < PATTERNS; i++) {
		float narrow = ((float *)f32.data)[i];
		double wide = ((double *)f64.data)[i];
		if (is_nan(i)) {
			CHECK(isnan(narrow) && isnan(wide));
			continue;
		}
		CHECK_EQ(bits_of(narrow), i << 16);
		CHECK_EQ(wide, bfloat16_value((uint16_t)i));
		CHECK_EQ(signbit(wide) != 0, i >> 15);
	}
}

static void test_each_bfloat16_comes_back_as_it_was(void)
{
	static const hr_dtype by_way_of[] = { HR_DTYPE_FLOAT32, HR_DTYPE_FLOAT64, HR_DTYPE_BFLOAT16 };
	tensor x = all_of_them();
	for (int way = 0; way < 3; way++) {
		tensor there = call(HR__OP_CAST, &x, 1, CASTS_TO(by_way_of[way])), back = call(HR__OP_CAST, &there, 1, CASTS_TO(HR_DTYPE_BFLOAT16));
		for (uint32_t i = 0; i < PATTERNS; i++) {
			uint32_t got = ((uint16_t *)back.data)[i];
			if (is_nan(i) && by_way_of[way] != HR_DTYPE_BFLOAT16) CHECK_EQ(got, i | 0x40); /* quiet NaN */
			else CHECK_EQ(got, i);
		}
	}
}

/* Rounds toward 0, and clamps to the range. */
static double clamped(double x, double least, double most)
{
	return isnan(x) ? 0 : x < least ? least : x > most ? most : trunc(x);
}

static void test_each_bfloat16_becomes_an_integer_as_other_floats_do(void)
{
	tensor x = all_of_them(), i32 = call(HR__OP_CAST, &x, 1, CASTS_TO(HR_DTYPE_INT32)), i64 = call(HR__OP_CAST, &x, 1, CASTS_TO(HR_DTYPE_INT64));
	tensor u8 = call(HR__OP_CAST, &x, 1, CASTS_TO(HR_DTYPE_UINT8)), truth = call(HR__OP_CAST, &x, 1, CASTS_TO(HR_DTYPE_BOOL));
	for (uint32_t i = 0; i < PATTERNS; i++) {
		double value = bfloat16_value((uint16_t)i);
		CHECK_EQ(((int32_t *)i32.data)[i], (int32_t)clamped(value, INT32_MIN, INT32_MAX));
		CHECK_EQ(((int64_t *)i64.data)[i], value >= 0x1p63 ? INT64_MAX : (int64_t)clamped(value, -0x1p63, 0x1p63));
		CHECK_EQ(((uint8_t *)u8.data)[i], (uint8_t)clamped(value, 0, 255));
		CHECK_EQ(((uint8_t *)truth.data)[i], (i & 0x7FFF) != 0);
	}
}

/* ---- from float32 ---- */

/* Compares the distances to the two neighbours, which follow from the upper half of the bits. */
static uint32_t nearest_by_halves(uint32_t bits, const double *sizes)
{
	uint32_t sign = bits >> 16 & 0x8000, rest = bits & 0x7FFFFFFF, low = rest >> 16;
	float size;
	if (rest >= 0x7F800000) return sign | low;
	memcpy(&size, &rest, sizeof size);
	double below = (double)size - sizes[low], above = sizes[low + 1] - (double)size;
	return sign | (below < above || (below == above && low % 2 == 0) ? low : low + 1);
}

/* [from] has [count] patterns of float32. */
static void check_chunk(const tensor *from, tensor *to, const double *sizes, int64_t count)
{
	tensor in = { { HR_DTYPE_FLOAT32, SHAPE(count) }, from->data }, out = { { HR_DTYPE_BFLOAT16, SHAPE(count) }, to->data };
	CHECK_STR(run_at(HR__OP_CAST, &in, 1, CASTS_TO(HR_DTYPE_BFLOAT16), &out), NULL);
	for (int64_t i = 0; i < count; i++) {
		uint32_t bits = ((uint32_t *)in.data)[i], got = ((uint16_t *)out.data)[i];
		bool nan = (bits & 0x7FFFFFFF) > 0x7F800000;
		if (nan ? got == (bits >> 16 | 0x40) : got == nearest_by_halves(bits, sizes)) continue;
		printf("# float32 %08x became bfloat16 %04x\n", bits, got);
		CHECK(false);
	}
}

/* Checks each [step]th pattern of a float32, from [first] on. */
static void check_patterns(uint64_t first, uint64_t step)
{
	tensor from = make(HR_DTYPE_FLOAT32, SHAPE(CHUNK)), to = make(HR_DTYPE_BFLOAT16, SHAPE(CHUNK));
	static double sizes[0x7F81];
	for (uint32_t i = 0; i <= 0x7F80; i++) sizes[i] = bfloat16_size(i);
	int64_t count = 0;
	for (uint64_t bits = first; bits >> 32 == 0; bits += step) {
		((uint32_t *)from.data)[count++] = (uint32_t)bits;
		if (count == CHUNK) check_chunk(&from, &to, sizes, count), count = 0;
	}
	check_chunk(&from, &to, sizes, count);
}

static void test_float32_is_rounded_to_the_nearest(void)
{
	if (hr_test_scale() >= 10) {
		check_patterns(0, 1);
		return;
	}
	check_patterns(0, 4093);
	/* Ties, their neighbours, and the neighbours of a bfloat16. */
	static const uint64_t beside[] = { 0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF };
	for (size_t i = 0; i < sizeof beside / sizeof *beside; i++) check_patterns(beside[i], 1 << 16);
}

static uint16_t cast_one(hr_dtype from, const void *data)
{
	tensor x = make(from, SCALAR_SHAPE);
	memcpy(x.data, data, hr_dtype_size(from));
	tensor y = call(HR__OP_CAST, &x, 1, CASTS_TO(HR_DTYPE_BFLOAT16));
	uint16_t got = *(uint16_t *)y.data;
	free(x.data), free(y.data);
	return got;
}

static uint16_t of_f32(float x)
{
	return cast_one(HR_DTYPE_FLOAT32, &x);
}

static uint16_t of_f64(double x)
{
	return cast_one(HR_DTYPE_FLOAT64, &x);
}

static uint16_t of_i64(int64_t x)
{
	return cast_one(HR_DTYPE_INT64, &x);
}

/* The largest finite value is 0x7F7F; from the middle between it and 2^128 on, the result is infinity. */
static void test_the_ends_of_the_range(void)
{
	uint32_t signalling = 0x7F800001, negative = 0xFF80FFFF;
	CHECK_EQ(of_f32(0x1.FEp127f), 0x7F7F);
	CHECK_EQ(of_f32(0x1.FEFFFEp127f), 0x7F7F);
	CHECK_EQ(of_f32(0x1.FFp127f), 0x7F80);
	CHECK_EQ(of_f32(-0x1.FFFFFEp127f), 0xFF80);
	CHECK_EQ(of_f64(0x1.FEFFFFFFFFFFFp127), 0x7F7F);
	CHECK_EQ(of_f64(0x1.FFp127), 0x7F80);
	CHECK_EQ(of_f64(-0x1p1000), 0xFF80);
	CHECK_EQ(of_f32(INFINITY), 0x7F80);
	CHECK_EQ(of_f64(-INFINITY), 0xFF80);
	CHECK_EQ(of_f32(-0.0f), 0x8000);
	CHECK_EQ(of_f64(-0.0), 0x8000);
	CHECK_EQ(of_f64(-0x1p-1000), 0x8000);
	CHECK_EQ(of_f64(0x1p-133), 1);
	CHECK_EQ(of_f64(0x1p-134), 0);
	CHECK_EQ(of_f64(0x1.0000000000001p-134), 1);
	CHECK_EQ(of_f64(0x3p-134), 2);
	/* NaNs whose only fraction bits are cut off are still NaNs. */
	CHECK_EQ(cast_one(HR_DTYPE_FLOAT32, &signalling), 0x7FC0);
	CHECK_EQ(cast_one(HR_DTYPE_FLOAT32, &negative), 0xFFC0);
	CHECK_EQ(of_f64((double)NAN) & 0x7FC0, 0x7FC0);
}

/* ---- from dtypes with more bits than float32 ---- */

static void test_float64_is_rounded_once(void)
{
	CHECK_EQ(of_f64(1 + 0x1p-8), 0x3F80);
	CHECK_EQ(of_f64(1 + 0x1p-8 + 0x1p-40), 0x3F81); /* in float32 this is a tie, and would become 1 */
	CHECK_EQ(of_f64(1 + 0x3p-8 - 0x1p-40), 0x3F81); /* and this 1 + 2^-6 */
	uint64_t state = hr_test_seed(), twice_is_wrong = 0, count = hr_test_scaled(200000);
	int64_t each = 9;
	tensor x = make(HR_DTYPE_FLOAT64, SHAPE((int64_t)count * each));
	double *at = x.data;
	for (uint64_t i = 0; i < count; i++) {
		uint32_t low = (uint32_t)(hr_rand(&state) % 0x7F80);
		double tie = (bfloat16_size(low) + bfloat16_size(low + 1)) / 2, sign = hr_rand(&state) & 1 ? -1 : 1;
		double far = ldexp(tie, -(int)(9 + hr_rand(&state) % 43)), any;
		uint64_t bits = hr_rand(&state);
		memcpy(&any, &bits, sizeof any);
		double numbers[9] = { tie, nextafter(tie, 0), nextafter(tie, INFINITY), tie + far, tie - far, bfloat16_size(low) + far, far, any, (double)(float)any };
		for (int k = 0; k < each; k++) *at++ = sign * numbers[k];
	}
	tensor y = call(HR__OP_CAST, &x, 1, CASTS_TO(HR_DTYPE_BFLOAT16));
	for (int64_t i = 0; i < count_of(&x); i++) {
		double number = ((double *)x.data)[i];
		uint32_t want = bfloat16_nearest((long double)number), got = ((uint16_t *)y.data)[i];
		twice_is_wrong += bfloat16_nearest((long double)(float)number) != want;
		if (is_nan(want) ? is_nan(got) && (got & 0x40) : got == want) continue;
		printf("# float64 %a became bfloat16 %04x, not %04x\n", number, got, want);
		CHECK(false);
	}
	printf("# rounding twice would be wrong for %llu of %lld\n", (unsigned long long)twice_is_wrong, (long long)count_of(&x));
	CHECK_GT(twice_is_wrong, count);
}

static void check_integers(hr_dtype dtype, const int64_t *numbers, int64_t count)
{
	tensor x = make(dtype, SHAPE(count));
	for (int64_t i = 0; i < count; i++) {
		if (dtype == HR_DTYPE_INT32) ((int32_t *)x.data)[i] = (int32_t)numbers[i];
		else ((int64_t *)x.data)[i] = numbers[i];
	}
	tensor y = call(HR__OP_CAST, &x, 1, CASTS_TO(HR_DTYPE_BFLOAT16));
	for (int64_t i = 0; i < count; i++) {
		int64_t number = dtype == HR_DTYPE_INT32 ? (int32_t)numbers[i] : numbers[i];
		uint32_t want = bfloat16_nearest((long double)number), got = ((uint16_t *)y.data)[i];
		if (got == want) continue;
		printf("# %s %lld became bfloat16 %04x, not %04x\n", hr_dtype_text(dtype), (long long)number, got, want);
		CHECK(false);
	}
	CHECK(true);
}

static void test_integers_are_rounded_once(void)
{
	CHECK_EQ(of_i64((INT64_C(1) << 62) + (INT64_C(1) << 54)), 0x5E80);
	CHECK_EQ(of_i64((INT64_C(1) << 62) + (INT64_C(1) << 54) + 1), 0x5E81); /* in float64 this is a tie */
	CHECK_EQ(of_i64(INT64_MAX), 0x5F00);
	CHECK_EQ(of_i64(INT64_MIN), 0xDF00);
	uint64_t state = hr_test_seed();
	int64_t count = (int64_t)hr_test_scaled(200000), *numbers = malloc((size_t)count * sizeof *numbers);
	CHECK(numbers != NULL);
	for (int64_t i = 0; i < count; i++) {
		/* A number of [bits] bits, of which those after the first nine are all 0 except a few at the end. */
		int bits = (int)(9 + hr_rand(&state) % 54), low = (int)(hr_rand(&state) % 13);
		uint64_t top = (256 | hr_rand(&state) % 256) << (bits - 9), end = hr_rand(&state) % 5;
		int64_t number = (int64_t)(top + (end << (low % (bits - 8))));
		numbers[i] = i % 3 == 0 ? (int64_t)hr_rand(&state) : i % 2 ? number - 2 : -number;
	}
	check_integers(HR_DTYPE_INT64, numbers, count);
	check_integers(HR_DTYPE_INT32, numbers, count);
	free(numbers);
}

/* ---- arithmetic ops ---- */

static bool is_element_op(int kind)
{
	return (kind >= HR__OP_ADD && kind <= HR__OP_SCALE) || (kind >= HR__OP_RELU_GRAD && kind <= HR__OP_GELU_GRAD);
}

static bool takes_bfloat16(int kind)
{
	static const int kinds[] = { HR__OP_PLACEHOLDER, HR__OP_READ, HR__OP_ASSIGN, HR__OP_INITIALIZE, HR__OP_GROUP, HR__OP_CONSTANT, HR__OP_FULL,
		                         HR__OP_CAST, HR__OP_RESHAPE, HR__OP_TRANSPOSE, HR__OP_CONCAT, HR__OP_SLICE, HR__OP_BROADCAST_TO, HR__OP_GATHER,
		                         HR__OP_ONE_HOT, HR__OP_PAD, HR__OP_COPY, HR__OP_MATMUL, HR__OP_CROSS_ENTROPY, HR__OP_CROSS_ENTROPY_GRAD, HR__OP_DROPOUT,
		                         HR__OP_SUM_TO, HR__OP_ATTEND, HR__OP_ATTEND_GRAD, HR__OP_CHAIN };
	if (is_element_op(kind)) return true;
	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
		if (kinds[i] == kind) return true;
	return false;
}

static void test_ops_that_compute_ask_for_a_cast(void)
{
	tensor in[HR__OP_INPUTS];
	for (int i = 0; i < HR__OP_INPUTS; i++) in[i] = make(HR_DTYPE_BFLOAT16, SHAPE(1, 1, 1, 1));
	for (int kind = 0; kind < HR__OP_COUNT; kind++) {
		if (takes_bfloat16(kind)) continue;
		hr__attrs attrs = { .dtype = HR_DTYPE_BFLOAT16, .dims = SHAPE(1, 1, 1, 1), .size = 1, .stride = 1, .b = 1 };
		hr__type types[HR__OP_OUTPUTS];
		hr_status status = infer_all((enum hr__op_kind)kind, in, hr__ops[kind].in_min, &attrs, types);
		if (status != HR_INVALID_ARGUMENT || !strstr(hr_last_message(), "hr_cast")) printf("# %s\n", hr__ops[kind].name);
		CHECK_STATUS(HR_INVALID_ARGUMENT, status);
		CHECK_CONTAINS(hr_last_message(), "dtype is bfloat16");
		CHECK_CONTAINS(hr_last_message(), "hr_cast to float32 first");
	}
	check_refused(HR__OP_GATHER, in, 2, &(hr__attrs){ 0 }, "dtype is bfloat16; it takes int32 and int64 as indices");
}

/* ---- products ---- */

static tensor widened(const tensor *x)
{
	return call(HR__OP_CAST, (tensor[]){ *x }, 1, CASTS_TO(HR_DTYPE_FLOAT32));
}

static tensor rounded(const tensor *x)
{
	return call(HR__OP_CAST, (tensor[]){ *x }, 1, CASTS_TO(HR_DTYPE_BFLOAT16));
}

static void check_same(const tensor *got, const tensor *expected)
{
	CHECK_EQ(got->type.dtype, expected->type.dtype);
	CHECK_EQ(count_of(got), count_of(expected));
	CHECK(memcmp(got->data, expected->data, (size_t)count_of(expected) * hr_dtype_size(expected->type.dtype)) == 0);
}

/* Every element, to the bit: the same float32 numbers are multiplied and added in the same order. */
static void check_product(hr__dims of_a, bool transpose_a, hr__dims of_b, bool transpose_b)
{
	hr__attrs attrs = { .transpose_a = transpose_a, .transpose_b = transpose_b };
	tensor a = random_tensor(HR_DTYPE_FLOAT32, of_a, -1, 1), b = random_tensor(HR_DTYPE_FLOAT32, of_b, -1, 1);
	tensor x = call(HR__OP_CAST, &a, 1, CASTS_TO(HR_DTYPE_BFLOAT16)), y = call(HR__OP_CAST, &b, 1, CASTS_TO(HR_DTYPE_BFLOAT16));
	tensor narrow = call(HR__OP_MATMUL, (tensor[]){ x, y }, 2, &attrs);
	tensor wide = call(HR__OP_MATMUL, (tensor[]){ widened(&x), widened(&y) }, 2, &attrs);
	CHECK_EQ(narrow.type.dtype, HR_DTYPE_FLOAT32);
	CHECK_EQ(count_of(&narrow), count_of(&wide));
	CHECK(memcmp(narrow.data, wide.data, (size_t)count_of(&wide) * sizeof(float)) == 0);
}

static void test_products_are_rounded_once_with_their_bias(void)
{
	static const int64_t sides[][3] = { { 3, 5, 7 }, { 70, 300, 130 }, { 2, 0, 3 }, { 0, 4, 3 } };
	for (size_t i = 0; i < sizeof sides / sizeof *sides; i++) {
		tensor a = random_tensor(HR_DTYPE_FLOAT32, SHAPE(sides[i][0], sides[i][1]), -1, 1), b = random_tensor(HR_DTYPE_FLOAT32, SHAPE(sides[i][1], sides[i][2]), -1, 1);
		tensor bias = random_tensor(HR_DTYPE_FLOAT32, SHAPE(sides[i][2]), -1, 1);
		tensor x = rounded(&a), y = rounded(&b), z = rounded(&bias);
		tensor sum = call(HR__OP_ADD, (tensor[]){ call(HR__OP_MATMUL, (tensor[]){ x, y }, 2, &(hr__attrs){ 0 }), widened(&z) }, 2, &(hr__attrs){ 0 });
		tensor narrow = call(HR__OP_MATMUL, (tensor[]){ x, y, z }, 3, CASTS_TO(HR_DTYPE_BFLOAT16));
		check_same(&narrow, (tensor[]){ rounded(&sum) });
		tensor wide = call(HR__OP_MATMUL, (tensor[]){ a, b, bias }, 3, &(hr__attrs){ 0 });
		check_same(&wide, (tensor[]){ call(HR__OP_ADD, (tensor[]){ call(HR__OP_MATMUL, (tensor[]){ a, b }, 2, &(hr__attrs){ 0 }), bias }, 2, &(hr__attrs){ 0 }) });
	}
}

static void test_a_bias_must_fit_the_product(void)
{
	tensor in[] = { make(HR_DTYPE_BFLOAT16, SHAPE(2, 3)), make(HR_DTYPE_BFLOAT16, SHAPE(3, 4)), make(HR_DTYPE_FLOAT32, SHAPE(3)) };
	check_refused(HR__OP_MATMUL, in, 3, CASTS_TO(HR_DTYPE_BFLOAT16), "dtypes bfloat16 and float32 differ");
	check_refused(HR__OP_MATMUL, in, 3, &(hr__attrs){ 0 }, "the bias is [3]; it is [4]");
}

/* ---- elements ---- */

/* bfloat16 is computed as float32; the result is rounded, if no input is float32. */
static void check_elements(enum hr__op_kind kind, const tensor *x, const tensor *y)
{
	hr__attrs attrs = { .a = 1.5, .b = 0.25 };
	uint32_t count = hr__ops[kind].in_min;
	tensor a = rounded(x), b = rounded(y), wide_a = widened(&a), wide_b = widened(&b);
	tensor expected = call(kind, (tensor[]){ wide_a, wide_b }, count, &attrs), narrow = call(kind, (tensor[]){ a, b }, count, &attrs);
	check_same(&narrow, (tensor[]){ rounded(&expected) });
	if (count == 1) return;
	check_same((tensor[]){ call(kind, (tensor[]){ wide_a, b }, 2, &attrs) }, &expected);
	check_same((tensor[]){ call(kind, (tensor[]){ a, wide_b }, 2, &attrs) }, &expected);
}

static void test_elements_of_bfloat16_are_computed_in_float32(void)
{
	static const hr__dims shapes[][2] = { { SHAPE(3, 41), SHAPE(3, 41) }, { SHAPE(2, 1100), SHAPE(2, 1100) }, { SHAPE(5, 700), SHAPE(700) }, { SHAPE(4, 9), SHAPE(4, 1) },
		                                  { SHAPE(300), SCALAR_SHAPE } };
	for (int kind = 0; kind < HR__OP_COUNT; kind++) {
		bool same_shape = kind >= HR__OP_RELU_GRAD && kind <= HR__OP_GELU_GRAD;
		for (size_t i = 0; i < sizeof shapes / sizeof *shapes && is_element_op(kind); i++) {
			tensor x = random_tensor(HR_DTYPE_FLOAT32, shapes[i][0], 0.1, 3), y = random_tensor(HR_DTYPE_FLOAT32, shapes[i][same_shape ? 0 : 1], 0.1, 3);
			check_elements((enum hr__op_kind)kind, &x, &y);
		}
	}
	tensor in[] = { make(HR_DTYPE_BFLOAT16, SHAPE(2)), make(HR_DTYPE_FLOAT64, SHAPE(2)) };
	check_refused(HR__OP_ADD, in, 2, &(hr__attrs){ 0 }, "dtypes bfloat16 and float64 differ");
}

static void test_sums_of_bfloat16_are_float32(void)
{
	static const hr__dims from[] = { SHAPE(9, 40), SHAPE(300, 70), SHAPE(6, 5, 4, 8), SHAPE(3, 5000) }, to[] = { SHAPE(40), SHAPE(70), SHAPE(5, 1, 8), SHAPE(3, 1) };
	for (size_t i = 0; i < sizeof from / sizeof *from; i++) {
		tensor x = random_tensor(HR_DTYPE_FLOAT32, from[i], -1, 1), a = rounded(&x), wide = widened(&a);
		hr__attrs attrs = { .dims = to[i] };
		check_same((tensor[]){ call(HR__OP_SUM_TO, &a, 1, &attrs) }, (tensor[]){ call(HR__OP_SUM_TO, &wide, 1, &attrs) });
	}
}

static void test_dropout_of_bfloat16_drops_the_same_elements(void)
{
	tensor x = random_tensor(HR_DTYPE_FLOAT32, SHAPE(7, 131), -1, 1), a = rounded(&x), wide = widened(&a), offset = make(HR_DTYPE_INT64, SCALAR_SHAPE);
	hr__attrs attrs = { .a = 0.3, .seed = 9 }, to_narrow = attrs, to_wide = attrs;
	*(int64_t *)offset.data = 5;
	to_narrow.dtype = HR_DTYPE_BFLOAT16;
	to_wide.dtype = HR_DTYPE_FLOAT32;
	tensor expected = call(HR__OP_DROPOUT, (tensor[]){ wide, offset }, 2, &attrs), half = rounded(&expected);
	check_same((tensor[]){ call(HR__OP_DROPOUT, (tensor[]){ a, offset }, 2, &attrs) }, &half);
	check_same((tensor[]){ call(HR__OP_DROPOUT, (tensor[]){ wide, offset }, 2, &to_narrow) }, &half);
	check_same((tensor[]){ call(HR__OP_DROPOUT, (tensor[]){ a, offset }, 2, &to_wide) }, &expected);
}

static void test_layer_norm_is_rounded_once(void)
{
	static const int64_t sizes[][2] = { { 3, 7 }, { 40, 600 }, { 300, 130 }, { 0, 4 } };
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		int64_t columns = sizes[i][1];
		tensor x = random_tensor(HR_DTYPE_FLOAT32, SHAPE(sizes[i][0], columns), -3, 3), grad = random_tensor(HR_DTYPE_FLOAT32, SHAPE(sizes[i][0], columns), -1, 1);
		tensor gain = random_tensor(HR_DTYPE_FLOAT32, SHAPE(columns), -1, 1), bias = random_tensor(HR_DTYPE_FLOAT32, SHAPE(columns), -1, 1);
		tensor narrow[3], wide[3], back[3], expected[3], g = rounded(&grad);
		call_all(HR__OP_LAYER_NORM, (tensor[]){ x, gain, bias }, 3, &(hr__attrs){ .a = 1e-5 }, wide);
		call_all(HR__OP_LAYER_NORM, (tensor[]){ x, gain, bias }, 3, &(hr__attrs){ .a = 1e-5, .dtype = HR_DTYPE_BFLOAT16 }, narrow);
		check_same(&narrow[0], (tensor[]){ rounded(&wide[0]) });
		for (int k = 1; k < 3; k++) check_same(&narrow[k], &wide[k]);
		call_all(HR__OP_LAYER_NORM_GRAD, (tensor[]){ g, x, gain, wide[1], wide[2] }, 5, &(hr__attrs){ 0 }, back);
		call_all(HR__OP_LAYER_NORM_GRAD, (tensor[]){ widened(&g), x, gain, wide[1], wide[2] }, 5, &(hr__attrs){ 0 }, expected);
		for (int k = 0; k < 3; k++) check_same(&back[k], &expected[k]);
		/* What is added to the gradient of x is added last. */
		tensor around = random_tensor(HR_DTYPE_FLOAT32, SHAPE(sizes[i][0], columns), -1, 1), sum = call(HR__OP_ADD, (tensor[]){ expected[0], around }, 2, &(hr__attrs){ 0 });
		call_all(HR__OP_LAYER_NORM_GRAD, (tensor[]){ widened(&g), x, gain, wide[1], wide[2], around }, 6, &(hr__attrs){ 0 }, back);
		check_same(&back[0], &sum);
		for (int k = 1; k < 3; k++) check_same(&back[k], &expected[k]);
	}
	tensor in[] = { make(HR_DTYPE_FLOAT64, SHAPE(2, 2)), make(HR_DTYPE_FLOAT64, SHAPE(2)), make(HR_DTYPE_FLOAT64, SHAPE(2)) };
	check_refused(HR__OP_LAYER_NORM, in, 3, CASTS_TO(HR_DTYPE_BFLOAT16), "the result of float64 is to be bfloat16");
}

static void test_losses_of_bfloat16_logits_are_float32(void)
{
	static const int64_t sizes[][2] = { { 3, 7 }, { 40, 130 }, { 2, 3001 } };
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		tensor x = random_tensor(HR_DTYPE_FLOAT32, SHAPE(sizes[i][0], sizes[i][1]), -3, 3), a = rounded(&x), wide = widened(&a);
		tensor labels = make(HR_DTYPE_INT32, SHAPE(sizes[i][0])), grad = random_tensor(HR_DTYPE_FLOAT32, SHAPE(sizes[i][0]), -1, 1);
		for (int64_t k = 0; k < sizes[i][0]; k++) ((int32_t *)labels.data)[k] = (int32_t)(k * 5 % sizes[i][1]);
		check_same((tensor[]){ call(HR__OP_CROSS_ENTROPY, (tensor[]){ a, labels }, 2, &(hr__attrs){ 0 }) },
		           (tensor[]){ call(HR__OP_CROSS_ENTROPY, (tensor[]){ wide, labels }, 2, &(hr__attrs){ 0 }) });
		tensor expected = call(HR__OP_CROSS_ENTROPY_GRAD, (tensor[]){ wide, labels, grad }, 3, &(hr__attrs){ 0 });
		check_same((tensor[]){ call(HR__OP_CROSS_ENTROPY_GRAD, (tensor[]){ a, labels, grad }, 3, &(hr__attrs){ 0 }) }, (tensor[]){ rounded(&expected) });
	}
}

static void test_products_of_bfloat16_are_those_of_their_float32_values(void)
{
	check_product(SHAPE(3, 5), false, SHAPE(5, 7), false);
	check_product(SHAPE(65, 300), false, SHAPE(530, 300), true);
	check_product(SHAPE(2, 3, 9, 4), true, SHAPE(3, 9, 6), false);
	check_product(SHAPE(4, 0), false, SHAPE(0, 3), false);
}

static void test_products_need_both_factors_in_bfloat16(void)
{
	tensor in[] = { make(HR_DTYPE_BFLOAT16, SHAPE(2, 2)), make(HR_DTYPE_FLOAT32, SHAPE(2, 2)) };
	check_refused(HR__OP_MATMUL, in, 2, &(hr__attrs){ 0 }, "dtypes bfloat16 and float32 differ");
}

TEST_MAIN(T(test_products_of_bfloat16_are_those_of_their_float32_values), T(test_products_need_both_factors_in_bfloat16), T(test_each_bfloat16_is_a_float32_and_a_float64), T(test_each_bfloat16_comes_back_as_it_was),
          T(test_each_bfloat16_becomes_an_integer_as_other_floats_do), T_WITHIN(test_float32_is_rounded_to_the_nearest, 900),
          T(test_the_ends_of_the_range), T_WITHIN(test_float64_is_rounded_once, 300), T(test_integers_are_rounded_once),
          T(test_ops_that_compute_ask_for_a_cast), T(test_products_are_rounded_once_with_their_bias), T(test_a_bias_must_fit_the_product),
          T(test_elements_of_bfloat16_are_computed_in_float32), T(test_sums_of_bfloat16_are_float32), T(test_dropout_of_bfloat16_drops_the_same_elements),
          T(test_losses_of_bfloat16_logits_are_float32), T(test_layer_norm_is_rounded_once))
