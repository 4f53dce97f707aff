/* test_ops_dropout.c - dropout: how many elements are dropped, which, and that it is the same in the gradient, in graphs, functions and
 * recomputed segments. tests/runtime/golden/dropout.txt has single elements. */
#include "runtime/support_ops.h"

static const hr_dtype floats[] = { HR_DTYPE_FLOAT32, HR_DTYPE_FLOAT64 };

static tensor drop(hr_dtype dtype, hr__dims dims, double rate, uint64_t seed, int64_t offset)
{
	tensor in[2] = { make(dtype, dims), make(HR_DTYPE_INT64, SCALAR_SHAPE) };
	for (int64_t i = 0; i < count_of(&in[0]); i++) set(&in[0], i, 1 + (double)i / 1024);
	((int64_t *)in[1].data)[0] = offset;
	return call(HR__OP_DROPOUT, in, 2, &(hr__attrs){ .a = rate, .seed = seed });
}

static int64_t zeros_in(const tensor *of)
{
	int64_t zeros = 0;
	for (int64_t i = 0; i < count_of(of); i++) zeros += get(of, i) == 0;
	return zeros;
}

/* Of n elements, n rate are dropped, give or take six deviations. */
static void test_the_rate_is_that_of_the_elements(void)
{
	const int64_t n = 100003;
	for (size_t d = 0; d < 2; d++)
		for (double rate = 0; rate <= 1; rate += 0.125) {
			tensor y = drop(floats[d], SHAPE(n), rate, 9, 4);
			CHECK_LE(fabs((double)zeros_in(&y) - (double)n * rate), 6 * sqrt((double)n * rate * (1 - rate)));
			for (int64_t i = 0; i < n; i++)
				if (get(&y, i) != 0) check_near(&y, i, (1 + (double)i / 1024) / (1 - rate), 1);
		}
}

/* The fraction of positions that are dropped in one and not in the other. */
static double apart(const tensor *a, const tensor *b)
{
	int64_t differ = 0;
	for (int64_t i = 0; i < count_of(a); i++) differ += (get(a, i) == 0) != (get(b, i) == 0);
	return (double)differ / (double)count_of(a);
}

static void test_seed_and_offset_draw_independently(void)
{
	tensor y = drop(HR_DTYPE_FLOAT32, SHAPE(40000), 0.5, 1, 1), wide = drop(HR_DTYPE_FLOAT64, SHAPE(200, 200), 0.5, 1, 1);
	CHECK_EQ(apart(&y, &wide), 0); /* whatever the dtype and the shape */
	const struct { uint64_t seed; int64_t offset; } others[] = { { 2, 1 }, { 1, 2 }, { 1, 0 }, { 1, -1 }, { UINT64_C(1) << 33 | 1, 1 }, { 1, INT64_C(1) << 33 | 1 },
		                                                         { 1, INT64_C(1) << 61 | 1 } };
	for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
		tensor other = drop(HR_DTYPE_FLOAT32, SHAPE(40000), 0.5, others[i].seed, others[i].offset);
		CHECK_LE(fabs(apart(&y, &other) - 0.5), 6 * 0.5 / 200);
	}
}

static void test_dropped_elements_are_zero_whatever_they_were(void)
{
	tensor in[2] = { make(HR_DTYPE_FLOAT32, SHAPE(1000)), make(HR_DTYPE_INT64, SCALAR_SHAPE) };
	set(&in[1], 0, 0);
	for (int64_t i = 0; i < 1000; i++) set(&in[0], i, i % 2 ? NAN : INFINITY);
	tensor y = call(HR__OP_DROPOUT, in, 2, &(hr__attrs){ .a = 0.5 });
	for (int64_t i = 0; i < 1000; i++) CHECK(get(&y, i) == 0 || (i % 2 ? isnan(get(&y, i)) : get(&y, i) == INFINITY));
}

TEST_MAIN(T(test_the_rate_is_that_of_the_elements), T(test_seed_and_offset_draw_independently), T(test_dropped_elements_are_zero_whatever_they_were))
