/* test_ops_attend.c - fused attention and its gradient, compared with softmax(scale q k^T) v computed in double with all scores. */
#include "runtime/support_ops.h"

static const hr_dtype floats[] = { HR_DTYPE_FLOAT32, HR_DTYPE_FLOAT64 };

#define NARROW_UNIT 0x1p-9 /* of bfloat16: the largest error of rounding, relative to the number; of y, and of what is computed from it */

struct attending {
	int64_t batch, rows, columns, heads, width, value_width;
	bool causal;
	double range; /* of the inputs: large ones make weights of 0 and 1 */
};

struct reference {
	double *y, *logs, *dq, *dk, *dv;
	double *y_size, *dq_size, *dk_size, *dv_size; /* sums of absolute values */
};

static double *zeros(int64_t count)
{
	double *out = make(HR_DTYPE_FLOAT64, SHAPE(count)).data;
	for (int64_t i = 0; i < count; i++) out[i] = 0;
	return out;
}

/* One row of one head. */
static void attend_row(const struct attending *of, const tensor *in, const tensor *dy, int64_t batch, int64_t head, int64_t row, double *weights,
                       struct reference *out)
{
	int64_t q = ((batch * of->rows + row) * of->heads + head) * of->width, y = ((batch * of->rows + row) * of->heads + head) * of->value_width;
	int64_t seen = of->causal ? row + of->columns - of->rows + 1 : of->columns;
	double scale = 1 / sqrt((double)of->width), most = -INFINITY, sum = 0, of_y = 0;
	for (int64_t j = 0; j < seen; j++) {
		int64_t k = ((batch * of->columns + j) * of->heads + head) * of->width;
		weights[j] = 0;
		for (int64_t i = 0; i < of->width; i++) weights[j] += scale * get(&in[0], q + i) * get(&in[1], k + i);
		most = fmax(most, weights[j]);
	}
	for (int64_t j = 0; j < seen; j++) sum += weights[j] = exp(weights[j] - most);
	for (int64_t j = 0; j < seen; j++) weights[j] /= sum;
	out->logs[(batch * of->heads + head) * of->rows + row] = most + log(sum);
	for (int64_t j = 0; j < seen; j++)
		for (int64_t i = 0; i < of->value_width; i++) {
			double part = weights[j] * get(&in[2], ((batch * of->columns + j) * of->heads + head) * of->value_width + i);
			out->y[y + i] += part, out->y_size[y + i] += fabs(part);
		}
	for (int64_t i = 0; i < of->value_width; i++) of_y += out->y[y + i] * get(dy, y + i);
	for (int64_t j = 0; j < seen; j++) {
		int64_t k = ((batch * of->columns + j) * of->heads + head) * of->width, v = ((batch * of->columns + j) * of->heads + head) * of->value_width;
		double by = 0, size = fabs(of_y);
		for (int64_t i = 0; i < of->value_width; i++) {
			double part = get(dy, y + i) * get(&in[2], v + i);
			by += part, size += fabs(part);
			out->dv[v + i] += weights[j] * get(dy, y + i), out->dv_size[v + i] += fabs(weights[j] * get(dy, y + i));
		}
		for (int64_t i = 0; i < of->width; i++) {
			double slope = weights[j] * scale, x = get(&in[0], q + i), at = get(&in[1], k + i);
			out->dq[q + i] += slope * (by - of_y) * at, out->dq_size[q + i] += fabs(slope * size * at);
			out->dk[k + i] += slope * (by - of_y) * x, out->dk_size[k + i] += fabs(slope * size * x);
		}
	}
}

/* Scores of a magnitude s are off by s units in the last place, and weights by as much relative to themselves. */
static void check_all(tensor *found, const double *want, const double *size, double range)
{
	for (int64_t i = 0; i < count_of(found); i++) check_near(found, i, want[i], (1 + range) * (size[i] > 1e-30 ? size[i] : 1e-30));
}

/* Beside the errors of float32, those of rounding to bfloat16. */
static void check_all_narrow(tensor *found, const double *want, const double *size, double range)
{
	for (int64_t i = 0; i < count_of(found); i++)
		CHECK(fabs(get(found, i) - want[i]) <= (2 * NARROW_UNIT + 1e-5 * (1 + range)) * size[i] + 1e-30);
}

/* The same numbers as those of [dtype]; in bfloat16 rounded. */
static tensor random_numbers(hr_dtype dtype, hr__dims dims, double range)
{
	tensor wide = random_tensor(hr__gradient_dtype(dtype), dims, -range, range), made = make(dtype, dims);
	for (int64_t i = 0; i < count_of(&made); i++) set(&made, i, get(&wide, i));
	free(wide.data);
	return made;
}

static void check_attend(hr_dtype dtype, struct attending of)
{
	hr__dims dims[3] = { SHAPE(of.batch, of.rows, of.heads * of.width), SHAPE(of.batch, of.columns, of.heads * of.width),
		                 SHAPE(of.batch, of.columns, of.heads * of.value_width) };
	hr__attrs attrs = { .count = of.heads, .a = 1 / sqrt((double)of.width), .keep = of.causal };
	tensor in[3], outs[HR__OP_OUTPUTS], back[HR__OP_OUTPUTS];
	bool narrow = dtype == HR_DTYPE_BFLOAT16;
	for (int i = 0; i < 3; i++) in[i] = random_numbers(dtype, dims[i], of.range);
	call_all(HR__OP_ATTEND, in, 3, &attrs, outs);
	check_dims(&outs[0], SHAPE(of.batch, of.rows, of.heads * of.value_width));
	check_dims(&outs[1], SHAPE(of.batch, of.heads, of.rows));
	CHECK_EQ(outs[0].type.dtype, dtype);
	CHECK_EQ(outs[1].type.dtype, hr__gradient_dtype(dtype));
	tensor dy = random_numbers(dtype, outs[0].type.dims, 1);
	call_all(HR__OP_ATTEND_GRAD, (tensor[]){ dy, in[0], in[1], in[2], outs[0], outs[1] }, 6, &attrs, back);
	for (int i = 0; i < 3; i++) CHECK_EQ(back[i].type.dtype, dtype);
	int64_t y = count_of(&outs[0]), q = count_of(&in[0]), k = count_of(&in[1]), v = count_of(&in[2]);
	struct reference want = { zeros(y), zeros(count_of(&outs[1])), zeros(q), zeros(k), zeros(v), zeros(y), zeros(q), zeros(k), zeros(v) };
	double *weights = zeros(of.columns + 1);
	for (int64_t batch = 0; batch < of.batch; batch++)
		for (int64_t head = 0; head < of.heads; head++)
			for (int64_t row = 0; row < of.rows; row++) attend_row(&of, in, &dy, batch, head, row, weights, &want);
	double scores = of.range * of.range * sqrt((double)of.width);
	(narrow ? check_all_narrow : check_all)(&outs[0], want.y, want.y_size, scores);
	(narrow ? check_all_narrow : check_all)(&back[0], want.dq, want.dq_size, scores);
	(narrow ? check_all_narrow : check_all)(&back[1], want.dk, want.dk_size, scores);
	(narrow ? check_all_narrow : check_all)(&back[2], want.dv, want.dv_size, scores);
	for (int64_t i = 0; i < count_of(&outs[1]) && of.columns > 0; i++) check_near(&outs[1], i, want.logs[i], 1 + scores);
	free_all(in, 3), free_all(outs, 2), free_all(back, 3), free(dy.data);
}

static void test_attention_is_that_of_the_whole_matrix(void)
{
	const struct attending cases[] = {
		{ 1, 1, 1, 1, 1, 1, false, 1 },      { 1, 1, 1, 1, 1, 1, true, 1 },
		{ 2, 5, 7, 3, 4, 6, false, 2 },      { 2, 5, 7, 3, 4, 6, true, 2 },
		{ 1, 97, 129, 1, 9, 33, false, 1 },  { 1, 97, 129, 1, 9, 33, true, 1 },  /* one more than a block */
		{ 1, 96, 128, 2, 8, 16, true, 1 },   { 1, 110, 260, 1, 33, 20, true, 1 }, /* several blocks */
		{ 1, 300, 300, 1, 5, 3, true, 1 },   { 3, 100, 100, 7, 2, 2, true, 3 },   /* blocks that no row sees; more heads than slots */
		{ 1, 40, 400, 2, 16, 16, false, 9 }, { 1, 40, 400, 2, 16, 16, true, 9 },  /* later blocks have larger scores */
		{ 1, 3, 5, 1, 300, 2, false, 1 },    { 0, 5, 5, 2, 4, 4, true, 1 },       { 2, 0, 5, 2, 4, 4, false, 1 },
		{ 2, 5, 0, 2, 4, 4, false, 1 },      { 2, 0, 0, 2, 4, 4, true, 1 },       { 2, 3, 5, 2, 4, 0, false, 1 },
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		for (size_t d = 0; d < 2; d++) check_attend(floats[d], cases[i]);
		check_attend(HR_DTYPE_BFLOAT16, cases[i]);
	}
}

/* Row [row] of a head with one number, whose scores are those of the keys. */
static tensor with_keys(hr_dtype dtype, const double *keys, int64_t count)
{
	tensor q = make(dtype, SHAPE(1, 1)), k = make(dtype, SHAPE(count, 1)), v = make(dtype, SHAPE(count, 1)), outs[HR__OP_OUTPUTS];
	set(&q, 0, 1);
	for (int64_t i = 0; i < count; i++) set(&k, i, keys[i]), set(&v, i, (double)i + 1);
	call_all(HR__OP_ATTEND, (tensor[]){ q, k, v }, 3, &(hr__attrs){ .count = 1, .a = 1 }, outs);
	return outs[0];
}

static void test_attention_keeps_infinities_and_nan(void)
{
	double keys[300];
	for (size_t d = 0; d < 2; d++) {
		for (int i = 0; i < 300; i++) keys[i] = -INFINITY;
		tensor y = with_keys(floats[d], keys, 300);
		CHECK(isnan(get(&y, 0))); /* as in softmax */
		keys[250] = 5; /* the first block has no weights */
		y = with_keys(floats[d], keys, 300);
		CHECK_EQ(get(&y, 0), 251);
		keys[3] = NAN;
		y = with_keys(floats[d], keys, 300);
		CHECK(isnan(get(&y, 0)));
		keys[3] = INFINITY;
		y = with_keys(floats[d], keys, 300);
		CHECK(isnan(get(&y, 0)));
		for (int i = 0; i < 300; i++) keys[i] = i < 200 ? -1e4 : 1e4; /* exp overflows */
		y = with_keys(floats[d], keys, 300);
		check_near(&y, 0, 250.5, 1);
	}
}

/* Scratch has a constant bound for a given width: it grows neither with the batch nor with rows and keys. */
static void test_attention_takes_little_scratch(void)
{
	hr__attrs attrs = { .count = 16, .a = 1, .keep = true };
	hr__type x = { HR_DTYPE_FLOAT32, SHAPE(64, 1 << 20, 16 * 64) }, logs = { HR_DTYPE_FLOAT32, SHAPE(64, 16, 1 << 20) };
	CHECK_LT(hr__ops[HR__OP_ATTEND].scratch((hr__type[]){ x, x, x }, (hr__type[]){ x, logs }, &attrs), 2u << 20);
	CHECK_LT(hr__ops[HR__OP_ATTEND_GRAD].scratch((hr__type[]){ x, x, x, x, x, logs }, (hr__type[]){ x, x, x }, &attrs), 5u << 20);
}

static void test_attention_refuses_what_does_not_fit(void)
{
	const hr_dtype f = HR_DTYPE_FLOAT32;
	tensor q = make(f, SHAPE(2, 3, 8)), k = make(f, SHAPE(2, 5, 8)), v = make(f, SHAPE(2, 5, 4)), d = make(HR_DTYPE_FLOAT64, SHAPE(2, 5, 8));
	tensor batch = make(f, SHAPE(3, 5, 8)), flat = make(f, SHAPE(5, 8)), narrow = make(f, SHAPE(2, 5, 6)), rows = make(f, SHAPE(2, 4, 4));
	tensor line = make(f, SHAPE(8)), i = make(HR_DTYPE_INT32, SHAPE(2, 3, 8)), few = make(f, SHAPE(2, 2, 8)), less = make(f, SHAPE(2, 2, 4));
	tensor b = make(HR_DTYPE_BFLOAT16, SHAPE(2, 3, 8)), b_logs = make(f, SHAPE(2, 2, 3));
	hr__attrs two = { .count = 2, .a = 1 }, causal = { .count = 2, .a = 1, .keep = true };
	check_refused(HR__OP_ATTEND, (tensor[]){ q, d, v }, 3, &two, "dtypes float32 and float64 differ");
	check_refused(HR__OP_ATTEND, (tensor[]){ i, i, i }, 3, &two, "dtype is int32");
	check_refused(HR__OP_ATTEND, (tensor[]){ b, b, k }, 3, &two, "dtypes bfloat16 and float32 differ");
	check_refused(HR__OP_ATTEND_GRAD, (tensor[]){ q, b, b, b, b, b_logs }, 6, &two, "dtypes bfloat16 and float32 differ"); /* the gradient of y */
	check_refused(HR__OP_ATTEND_GRAD, (tensor[]){ b, b, b, b, b, b }, 6, &two, "dtypes float32 and bfloat16 differ"); /* the logarithms */
	check_refused(HR__OP_ATTEND, (tensor[]){ q, batch, v }, 3, &two, "shapes [2,3,8] and [3,5,8] are incompatible: q, k and v are [..., rows, numbers]");
	check_refused(HR__OP_ATTEND, (tensor[]){ q, flat, v }, 3, &two, "[5,8]");
	check_refused(HR__OP_ATTEND, (tensor[]){ line, line, line }, 3, &two, "shapes [8] and [8] are incompatible");
	check_refused(HR__OP_ATTEND, (tensor[]){ q, narrow, v }, 3, &two, "shapes [2,3,8] and [2,5,6] are incompatible: rows of q and k have different lengths");
	check_refused(HR__OP_ATTEND, (tensor[]){ q, k, rows }, 3, &two, "shapes [2,5,8] and [2,4,4] are incompatible: k and v have different numbers of rows");
	check_refused(HR__OP_ATTEND, (tensor[]){ q, few, less }, 3, &causal, "causal attention needs at least as many keys as rows");
	check_refused(HR__OP_ATTEND, (tensor[]){ q, k, v }, 3, &(hr__attrs){ .a = 1 }, "0 heads; there is at least 1");
	check_refused(HR__OP_ATTEND, (tensor[]){ q, k, v }, 3, &(hr__attrs){ .count = 3, .a = 1 }, "shape [2,3,8]: the last dimension of q cannot be split into 3");
	check_refused(HR__OP_ATTEND, (tensor[]){ q, k, v }, 3, &(hr__attrs){ .count = 8, .a = 1 }, "shape [2,5,4]: the last dimension of v cannot be split into 8");
	check_refused(HR__OP_ATTEND, (tensor[]){ q, k, v }, 3, &(hr__attrs){ .count = 2, .a = NAN }, "the scale is nan");
	tensor y = make(f, SHAPE(2, 3, 4)), logs = make(f, SHAPE(2, 2, 3));
	check_refused(HR__OP_ATTEND_GRAD, (tensor[]){ q, q, k, v, y, logs }, 6, &two, "shapes [2,3,4] and [2,3,8] differ");
	check_refused(HR__OP_ATTEND_GRAD, (tensor[]){ y, q, k, v, y, y }, 6, &two, "shapes [2,2,3] and [2,3,4] differ");
	check_refused(HR__OP_ATTEND_GRAD, (tensor[]){ y, q, narrow, v, y, logs }, 6, &two, "rows of q and k");
}

TEST_MAIN(T(test_attention_is_that_of_the_whole_matrix), T(test_attention_keeps_infinities_and_nan), T(test_attention_takes_little_scratch),
          T(test_attention_refuses_what_does_not_fit))
