/* test_ops_layers.c - ops used by layers and optimizers, compared with slow references in double. */
#include "runtime/support_ops.h"

static const hr_dtype floats[] = { HR_DTYPE_FLOAT32, HR_DTYPE_FLOAT64 };
static const hr__attrs none;

#define EACH(item, list) for (size_t item##_i = 0; item##_i < sizeof(list) / sizeof(list)[0]; item##_i++)
#define AT(item, list) (list)[item##_i]

/* ---- causal softmax ---- */

static void check_causal(hr_dtype dtype, hr__dims dims, double range)
{
	hr__attrs attrs = { .keep = true };
	tensor x = random_tensor(dtype, dims, -range, range), y = call(HR__OP_SOFTMAX, &x, 1, &attrs);
	int64_t rows = dims.d[dims.rank - 2], columns = dims.d[dims.rank - 1];
	for (int64_t row = 0; columns > 0 && row < count_of(&x) / columns; row++) {
		double most = -INFINITY, sum = 0;
		int64_t first = row * columns, seen = row % rows + columns - rows;
		for (int64_t j = 0; j <= seen; j++) most = fmax(most, get(&x, first + j));
		for (int64_t j = 0; j <= seen; j++) sum += exp(get(&x, first + j) - most);
		for (int64_t j = 0; j <= seen; j++) check_near(&y, first + j, exp(get(&x, first + j) - most) / sum, 1);
		for (int64_t j = seen + 1; j < columns; j++) CHECK_EQ(get(&y, first + j), 0);
	}
	free(x.data), free(y.data);
}

static void test_causal_softmax_leaves_later_columns_out(void)
{
	EACH(dtype, floats)
	{
		check_causal(AT(dtype, floats), SHAPE(1, 1), 5);
		check_causal(AT(dtype, floats), SHAPE(40, 40), 5);
		check_causal(AT(dtype, floats), SHAPE(3, 2, 30, 75), 500);
		check_causal(AT(dtype, floats), SHAPE(0, 4, 4), 5);
		check_causal(AT(dtype, floats), SHAPE(2, 0, 4), 5);
		check_causal(AT(dtype, floats), SHAPE(2, 0, 0), 5);
	}
	tensor v = make(HR_DTYPE_FLOAT32, SHAPE(3)), m = make(HR_DTYPE_FLOAT32, SHAPE(2, 4, 3));
	check_refused(HR__OP_SOFTMAX, &v, 1, &(hr__attrs){ .keep = true }, "shape [3]");
	check_refused(HR__OP_SOFTMAX, &m, 1, &(hr__attrs){ .keep = true }, "shape [2,4,3]");
}

/* ---- layer norm ---- */

static void check_norm(hr_dtype dtype, hr__dims dims, double middle)
{
	hr__dims columns = SHAPE(dims.d[dims.rank - 1]);
	int64_t count = columns.d[0];
	tensor in[3] = { random_tensor(dtype, dims, middle - 1, middle + 1), random_tensor(dtype, columns, -2, 2),
		             random_tensor(dtype, columns, -2, 2) };
	tensor outs[HR__OP_OUTPUTS];
	call_all(HR__OP_LAYER_NORM, in, 3, &(hr__attrs){ .a = 1e-5 }, outs);
	CHECK_EQ(outs[1].type.dims.rank, dims.rank - 1);
	for (int64_t row = 0; count > 0 && row < count_of(&in[0]) / count; row++) {
		double mean = 0, variance = 0;
		for (int64_t i = 0; i < count; i++) mean += get(&in[0], row * count + i) / (double)count;
		for (int64_t i = 0; i < count; i++) variance += pow(get(&in[0], row * count + i) - mean, 2) / (double)count;
		double scale = 1 / sqrt(variance + 1e-5);
		check_near(&outs[1], row, mean, 1);
		check_near(&outs[2], row, scale, 1);
		for (int64_t i = 0; i < count; i++) {
			double want = (get(&in[0], row * count + i) - mean) * scale * get(&in[1], i) + get(&in[2], i);
			check_near(&outs[0], row * count + i, want, dtype == HR_DTYPE_FLOAT64 ? 1 + fabs(middle) : 1);
		}
	}
	free_all(in, 3), free_all(outs, 3);
}

static void check_norm_grad(hr_dtype dtype, int64_t rows, int64_t columns)
{
	hr__dims wide = SHAPE(columns);
	tensor in[3] = { random_tensor(dtype, SHAPE(rows, columns), -1, 1), random_tensor(dtype, wide, -2, 2),
		             random_tensor(dtype, wide, -2, 2) };
	tensor outs[HR__OP_OUTPUTS], back[HR__OP_OUTPUTS], grad = random_tensor(dtype, SHAPE(rows, columns), -1, 1);
	call_all(HR__OP_LAYER_NORM, in, 3, &(hr__attrs){ .a = 1e-5 }, outs);
	call_all(HR__OP_LAYER_NORM_GRAD, (tensor[]){ grad, in[0], in[1], outs[1], outs[2] }, 5, &none, back);
	for (int64_t row = 0; row < rows; row++) {
		double mean = 0, mean_by_h = 0, scale = get(&outs[2], row);
		for (int64_t i = 0; i < columns; i++) {
			double g = get(&grad, row * columns + i) * get(&in[1], i),
				   h = (get(&in[0], row * columns + i) - get(&outs[1], row)) * scale;
			mean += g / (double)columns;
			mean_by_h += g * h / (double)columns;
		}
		for (int64_t i = 0; i < columns; i++) {
			double g = get(&grad, row * columns + i) * get(&in[1], i),
				   h = (get(&in[0], row * columns + i) - get(&outs[1], row)) * scale;
			check_near(&back[0], row * columns + i, scale * (g - mean - h * mean_by_h), 4 * scale);
		}
	}
	for (int64_t i = 0; i < columns; i++) {
		double of_gain = 0, of_bias = 0;
		for (int64_t row = 0; row < rows; row++) {
			double g = get(&grad, row * columns + i);
			of_gain += g * (get(&in[0], row * columns + i) - get(&outs[1], row)) * get(&outs[2], row);
			of_bias += g;
		}
		check_near(&back[1], i, of_gain, 1 + sqrt((double)rows));
		check_near(&back[2], i, of_bias, 1 + sqrt((double)rows));
	}
	free_all(in, 3), free_all(outs, 3), free_all(back, 3), free(grad.data);
}

static void test_layer_norm_normalises_rows(void)
{
	EACH(dtype, floats)
	{
		check_norm(AT(dtype, floats), SHAPE(7), 0);
		check_norm(AT(dtype, floats), SHAPE(100, 333), 0);
		check_norm(AT(dtype, floats), SHAPE(3, 4, 64), 30);
		check_norm(AT(dtype, floats), SHAPE(3, 4, 1), 0);
		check_norm(AT(dtype, floats), SHAPE(0, 5), 0);
		check_norm(AT(dtype, floats), SHAPE(2, 0), 0);
		check_norm_grad(AT(dtype, floats), 1, 1);
		check_norm_grad(AT(dtype, floats), 5, 9);
		check_norm_grad(AT(dtype, floats), 2000, 65);
		check_norm_grad(AT(dtype, floats), 37, 2049);
		check_norm_grad(AT(dtype, floats), 0, 5);
		check_norm_grad(AT(dtype, floats), 5, 0);
	}
	tensor x = make(HR_DTYPE_FLOAT32, SHAPE(2, 3)), g = make(HR_DTYPE_FLOAT32, SHAPE(3)), b = make(HR_DTYPE_FLOAT32, SHAPE(2));
	tensor s = make(HR_DTYPE_FLOAT32, SCALAR_SHAPE), i = make(HR_DTYPE_INT32, SHAPE(3)), d = make(HR_DTYPE_FLOAT64, SHAPE(3));
	check_refused(HR__OP_LAYER_NORM, (tensor[]){ x, b, g }, 3, &none, "shapes [2,3] and [2] are incompatible: gain");
	check_refused(HR__OP_LAYER_NORM, (tensor[]){ x, g, b }, 3, &none, "shapes [2,3] and [2] are incompatible: bias");
	check_refused(HR__OP_LAYER_NORM, (tensor[]){ x, g, d }, 3, &none, "dtypes float32 and float64 differ");
	check_refused(HR__OP_LAYER_NORM, (tensor[]){ s, g, g }, 3, &none, "shape [] has no last dimension");
	check_refused(HR__OP_LAYER_NORM, (tensor[]){ i, i, i }, 3, &none, "dtype is int32");
	check_refused(HR__OP_LAYER_NORM, (tensor[]){ x, g, g }, 3, &(hr__attrs){ .a = -1 }, "epsilon is -1");
	check_refused(HR__OP_LAYER_NORM_GRAD, (tensor[]){ g, x, g, b, b }, 5, &none, "shapes [2,3] and [3] differ");
	check_refused(HR__OP_LAYER_NORM_GRAD, (tensor[]){ x, x, g, b, g }, 5, &none, "shapes [2] and [3] differ");
}

/* ---- convolutions ---- */

struct convolution {
	int64_t images, channels, height, width, out_channels, high, wide, stride, padding;
};

/* Calls [visit] for every product, with its elements of image, filter and output. */
static void each_product(const struct convolution *of, int64_t rows, int64_t columns,
                         void (*visit)(void *context, int64_t x, int64_t filter, int64_t y), void *context)
{
	for (int64_t n = 0; n < of->images; n++)
		for (int64_t o = 0; o < of->out_channels; o++)
			for (int64_t r = 0; r < rows; r++)
				for (int64_t c = 0; c < columns; c++)
					for (int64_t k = 0; k < of->channels; k++)
						for (int64_t i = 0; i < of->high; i++)
							for (int64_t j = 0; j < of->wide; j++) {
								int64_t y = r * of->stride + i - of->padding, x = c * of->stride + j - of->padding;
								if (y < 0 || y >= of->height || x < 0 || x >= of->width) continue;
								visit(context, ((n * of->channels + k) * of->height + y) * of->width + x,
								      ((o * of->channels + k) * of->high + i) * of->wide + j,
								      ((n * of->out_channels + o) * rows + r) * columns + c);
							}
}

struct sums {
	const tensor *x, *filter, *grad;
	double *y, *of_x, *of_filter;          /* sums */
	double *y_size, *x_size, *filter_size; /* of absolute values */
};

static void add_product(void *context, int64_t x, int64_t filter, int64_t y)
{
	struct sums *sums = context;
	double a = get(sums->x, x), b = get(sums->filter, filter), g = get(sums->grad, y);
	sums->y[y] += a * b, sums->y_size[y] += fabs(a * b);
	sums->of_x[x] += g * b, sums->x_size[x] += fabs(g * b);
	sums->of_filter[filter] += g * a, sums->filter_size[filter] += fabs(g * a);
}

static double *zeros(int64_t count)
{
	return make(HR_DTYPE_FLOAT64, SHAPE(count)).data;
}

static void check_sums(tensor *of, double *sums, double *sizes)
{
	for (int64_t i = 0; i < count_of(of); i++) check_near(of, i, sums[i], sizes[i]);
	free(of->data), free(sums), free(sizes);
}

static void check_conv(hr_dtype dtype, struct convolution of)
{
	hr__attrs attrs = { .stride = of.stride, .padding = of.padding };
	tensor x = random_tensor(dtype, SHAPE(of.images, of.channels, of.height, of.width), -1, 1);
	tensor filter = random_tensor(dtype, SHAPE(of.out_channels, of.channels, of.high, of.wide), -1, 1);
	tensor y = call(HR__OP_CONV2D, (tensor[]){ x, filter }, 2, &attrs);
	int64_t rows = (of.height + 2 * of.padding - of.high) / of.stride + 1,
			columns = (of.width + 2 * of.padding - of.wide) / of.stride + 1;
	check_dims(&y, SHAPE(of.images, of.out_channels, rows, columns));
	tensor grad = random_tensor(dtype, y.type.dims, -1, 1);
	attrs.dims = x.type.dims;
	tensor of_x = call(HR__OP_CONV2D_GRAD_INPUT, (tensor[]){ grad, filter }, 2, &attrs);
	attrs.dims = filter.type.dims;
	tensor of_filter = call(HR__OP_CONV2D_GRAD_FILTER, (tensor[]){ grad, x }, 2, &attrs);
	check_dims(&of_x, x.type.dims);
	check_dims(&of_filter, filter.type.dims);
	struct sums sums = { .x = &x, .filter = &filter, .grad = &grad };
	double **places[] = { &sums.y, &sums.y_size, &sums.of_x, &sums.x_size, &sums.of_filter, &sums.filter_size };
	int64_t counts[] = { count_of(&y), count_of(&x), count_of(&filter) };
	EACH(place, places)
	{
		*AT(place, places) = zeros(counts[place_i / 2]);
		memset(*AT(place, places), 0, (size_t)counts[place_i / 2] * sizeof(double));
	}
	each_product(&of, rows, columns, add_product, &sums);
	check_sums(&y, sums.y, sums.y_size);
	check_sums(&of_x, sums.of_x, sums.x_size);
	check_sums(&of_filter, sums.of_filter, sums.filter_size);
	free(x.data), free(filter.data), free(grad.data);
}

static void test_convolutions_and_their_gradients_are_sums_of_products(void)
{
	const struct convolution cases[] = {
		{ 1, 1, 1, 1, 1, 1, 1, 1, 0 },     { 2, 3, 8, 7, 4, 3, 3, 1, 1 },  { 2, 3, 8, 7, 4, 3, 3, 1, 0 },
		{ 2, 3, 9, 10, 7, 3, 2, 2, 1 },    { 2, 3, 9, 10, 7, 2, 5, 3, 2 }, { 1, 2, 5, 5, 3, 1, 1, 2, 0 },
		{ 1, 2, 4, 4, 3, 2, 2, 1, 3 },     /* more padding than window */
		{ 1, 2, 4, 4, 3, 2, 2, 5, 3 },     /* a stride larger than the window */
		{ 3, 40, 6, 33, 13, 3, 3, 1, 1 },  /* more taps than are packed at a time; rows longer than a panel */
		{ 70, 5, 4, 4, 6, 3, 3, 1, 1 },    /* many small images: several in a panel */
		{ 9, 4, 1, 1, 20, 1, 1, 1, 0 },    /* a matrix product */
		{ 3, 2, 64, 65, 17, 3, 3, 1, 1 },  /* the gradient of a filter in several segments */
		{ 2, 3, 20, 21, 110, 3, 3, 2, 1 }, /* more strips than are packed at a time */
		{ 1, 2, 30, 31, 3, 30, 31, 1, 0 }, /* one window */
		{ 0, 3, 8, 7, 4, 3, 3, 1, 1 },     { 2, 0, 8, 7, 4, 3, 3, 1, 1 },  { 2, 3, 8, 7, 0, 3, 3, 1, 1 },
		{ 2, 3, 0, 7, 4, 1, 1, 1, 1 }, /* empty images, padded */
	};
	EACH(dtype, floats) EACH(one, cases) check_conv(AT(dtype, floats), AT(one, cases));
}

static void test_convolutions_refuse_what_does_not_fit(void)
{
	tensor x = make(HR_DTYPE_FLOAT32, SHAPE(2, 3, 5, 6)), f = make(HR_DTYPE_FLOAT32, SHAPE(4, 3, 3, 3)),
		   g = make(HR_DTYPE_FLOAT32, SHAPE(4, 2, 3, 3));
	tensor m = make(HR_DTYPE_FLOAT32, SHAPE(2, 3)), d = make(HR_DTYPE_FLOAT64, SHAPE(4, 3, 3, 3)),
		   e = make(HR_DTYPE_FLOAT32, SHAPE(4, 3, 0, 3));
	tensor i = make(HR_DTYPE_INT32, SHAPE(2, 3, 5, 6)), large = make(HR_DTYPE_FLOAT32, SHAPE(4, 3, 8, 3));
	hr__attrs one = { .stride = 1 }, of_x = { .stride = 1, .dims = x.type.dims }, of_f = { .stride = 1, .dims = f.type.dims };
	check_refused(HR__OP_CONV2D, (tensor[]){ x, g }, 2, &one, "shapes [2,3,5,6] and [4,2,3,3] are incompatible: their second dimensions");
	check_refused(HR__OP_CONV2D, (tensor[]){ m, f }, 2, &one,
	              "shapes [2,3] and [4,3,3,3] are incompatible: images are [n,channels,height,width]");
	check_refused(HR__OP_CONV2D, (tensor[]){ x, large }, 2, &(hr__attrs){ .stride = 1, .padding = 1 },
	              "the filter is larger than the image");
	check_refused(HR__OP_CONV2D, (tensor[]){ x, e }, 2, &one, "the filter has no height");
	check_refused(HR__OP_CONV2D, (tensor[]){ x, d }, 2, &one, "dtypes float32 and float64 differ");
	check_refused(HR__OP_CONV2D, (tensor[]){ i, i }, 2, &one, "dtype is int32");
	check_refused(HR__OP_CONV2D, (tensor[]){ x, f }, 2, &none, "stride is 0; it is at least 1");
	check_refused(HR__OP_CONV2D, (tensor[]){ x, f }, 2, &(hr__attrs){ .stride = 1, .padding = -1 }, "padding is -1");
	check_refused(HR__OP_CONV2D, (tensor[]){ x, f }, 2, &(hr__attrs){ .stride = 1, .padding = INT64_MAX }, "padding is");
	check_refused(HR__OP_CONV2D_GRAD_INPUT, (tensor[]){ x, f }, 2, &of_x, "shapes [2,3,5,6] and [2,4,3,4] differ");
	check_refused(HR__OP_CONV2D_GRAD_FILTER, (tensor[]){ x, x }, 2, &of_f, "shapes [2,3,5,6] and [2,4,3,4] differ");
}

/* Scratch has a constant bound: it must not grow with the batch. */
static void test_convolutions_take_little_scratch(void)
{
	EACH(dtype, floats)
	{
		hr__type x = { AT(dtype, floats), SHAPE(1 << 20, 64, 224, 224) }, f = { AT(dtype, floats), SHAPE(512, 64, 3, 3) };
		hr__type y = { AT(dtype, floats), SHAPE(1 << 20, 512, 224, 224) };
		hr__attrs attrs = { .stride = 1, .padding = 1 };
		CHECK_LT(hr__ops[HR__OP_CONV2D].scratch((hr__type[]){ x, f }, &y, &attrs), 5u << 20);
		CHECK_LT(hr__ops[HR__OP_CONV2D_GRAD_INPUT].scratch((hr__type[]){ y, f }, &x, &attrs), 5u << 20);
		CHECK_LT(hr__ops[HR__OP_CONV2D_GRAD_FILTER].scratch((hr__type[]){ y, x }, &f, &attrs), 6u << 20);
	}
}

/* ---- pools ---- */

static void check_pool(hr_dtype dtype, hr__dims dims, int64_t size, int64_t stride, bool ties)
{
	hr__attrs attrs = { .size = size, .stride = stride };
	tensor x = random_tensor(dtype, dims, -3, 3);
	for (int64_t i = 0; ties && i < count_of(&x); i++) set(&x, i, floor(get(&x, i)));
	tensor most = call(HR__OP_MAX_POOL, &x, 1, &attrs), mean = call(HR__OP_AVG_POOL, &x, 1, &attrs);
	int64_t rows = (dims.d[2] - size) / stride + 1, columns = (dims.d[3] - size) / stride + 1;
	check_dims(&most, SHAPE(dims.d[0], dims.d[1], rows, columns));
	tensor grad = random_tensor(dtype, most.type.dims, -1, 1);
	tensor of_most = call(HR__OP_MAX_POOL_GRAD, (tensor[]){ grad, x, most }, 3, &attrs);
	attrs.dims = dims;
	tensor of_mean = call(HR__OP_AVG_POOL_GRAD, &grad, 1, &attrs);
	double *to_most = zeros(count_of(&x)), *to_mean = zeros(count_of(&x));
	for (int64_t i = 0; i < count_of(&x); i++) to_most[i] = to_mean[i] = 0;
	for (int64_t at = 0; at < count_of(&most); at++) {
		int64_t corner = at / columns / rows * dims.d[2] * dims.d[3] + at / columns % rows * stride * dims.d[3] +
		                 at % columns * stride;
		int64_t largest = corner;
		double sum = 0;
		for (int64_t i = 0; i < size * size; i++) {
			int64_t pixel = corner + i / size * dims.d[3] + i % size;
			if (get(&x, pixel) > get(&x, largest)) largest = pixel;
			sum += get(&x, pixel);
			to_mean[pixel] += get(&grad, at) / (double)(size * size);
		}
		to_most[largest] += get(&grad, at);
		CHECK_EQ(get(&most, at), get(&x, largest));
		check_near(&mean, at, sum / (double)(size * size), 3);
	}
	for (int64_t i = 0; i < count_of(&x); i++) {
		check_near(&of_most, i, to_most[i], 2);
		check_near(&of_mean, i, to_mean[i], 2);
	}
	free(x.data), free(most.data), free(mean.data), free(grad.data), free(of_most.data), free(of_mean.data), free(to_most),
		free(to_mean);
}

static void test_pools_take_the_largest_and_the_mean_of_windows(void)
{
	EACH(dtype, floats)
	{
		for (int ties = 0; ties < 2; ties++) {
			check_pool(AT(dtype, floats), SHAPE(2, 3, 8, 8), 2, 2, ties);
			check_pool(AT(dtype, floats), SHAPE(2, 3, 9, 7), 2, 2, ties); /* some elements are left out */
			check_pool(AT(dtype, floats), SHAPE(2, 3, 9, 7), 3, 1, ties); /* windows overlap */
			check_pool(AT(dtype, floats), SHAPE(1, 2, 9, 7), 2, 3, ties); /* gaps between windows */
			check_pool(AT(dtype, floats), SHAPE(1, 1, 5, 5), 5, 1, ties);
			check_pool(AT(dtype, floats), SHAPE(1, 1, 5, 5), 1, 1, ties);
			check_pool(AT(dtype, floats), SHAPE(40, 16, 20, 41), 3, 2, ties);
			check_pool(AT(dtype, floats), SHAPE(0, 3, 8, 8), 2, 2, ties);
			check_pool(AT(dtype, floats), SHAPE(1, 1, 3, 3), 2, INT64_C(1) << 62, ties);
		}
	}
}

static void test_nan_wins_in_pools(void)
{
	EACH(dtype, floats)
	{
		hr__attrs attrs = { .size = 2, .stride = 2 };
		tensor x = make(AT(dtype, floats), SHAPE(1, 1, 2, 4)), grad = make(AT(dtype, floats), SHAPE(1, 1, 1, 2));
		for (int i = 0; i < 8; i++) set(&x, i, -INFINITY);
		set(&x, 1, NAN), set(&x, 5, 9), set(&grad, 0, 3), set(&grad, 1, 4);
		tensor most = call(HR__OP_MAX_POOL, &x, 1, &attrs),
			   back = call(HR__OP_MAX_POOL_GRAD, (tensor[]){ grad, x, most }, 3, &attrs);
		CHECK(isnan(get(&most, 0)) && get(&most, 1) == -INFINITY);
		for (int i = 0; i < 8; i++) CHECK_EQ(get(&back, i), i == 1 ? 3 : i == 2 ? 4 : 0);
	}
}

static void test_pools_refuse_what_does_not_fit(void)
{
	tensor x = make(HR_DTYPE_FLOAT32, SHAPE(1, 2, 3, 4)), m = make(HR_DTYPE_FLOAT32, SHAPE(3, 4)),
		   i = make(HR_DTYPE_INT32, SHAPE(1, 2, 3, 4));
	enum hr__op_kind kinds[] = { HR__OP_MAX_POOL, HR__OP_AVG_POOL };
	EACH(kind, kinds)
	{
		check_refused(AT(kind, kinds), &x, 1, &(hr__attrs){ .size = 4, .stride = 1 },
		              "shape [1,2,3,4] does not fit: windows are [4,4], larger than an image");
		check_refused(AT(kind, kinds), &m, 1, &(hr__attrs){ .size = 1, .stride = 1 },
		              "shape [3,4] is not [n,channels,height,width]");
		check_refused(AT(kind, kinds), &i, 1, &(hr__attrs){ .size = 1, .stride = 1 }, "dtype is int32");
		check_refused(AT(kind, kinds), &x, 1, &(hr__attrs){ .size = 0, .stride = 1 }, "size is 0");
		check_refused(AT(kind, kinds), &x, 1, &(hr__attrs){ .size = 1, .stride = 0 }, "stride is 0");
	}
	hr__attrs attrs = { .size = 2, .stride = 1, .dims = x.type.dims };
	check_refused(HR__OP_MAX_POOL_GRAD, (tensor[]){ x, x, x }, 3, &attrs, "shapes [1,2,2,3] and [1,2,3,4] differ");
	check_refused(HR__OP_AVG_POOL_GRAD, &x, 1, &attrs, "shapes [1,2,2,3] and [1,2,3,4] differ");
}

/* ---- updates ---- */

static void test_updates_are_those_of_the_optimizers(void)
{
	const hr__dims shapes[] = { SCALAR_SHAPE, SHAPE(0), SHAPE(7, 11), SHAPE(300, 211) };
	EACH(dtype, floats) EACH(shape, shapes)
	{
		hr_dtype of = AT(dtype, floats);
		hr__dims dims = AT(shape, shapes);
		tensor w = random_tensor(of, dims, -1, 1), m = random_tensor(of, dims, -1, 1), v = random_tensor(of, dims, 0, 1);
		tensor g = random_tensor(of, dims, -1, 1), step = make(HR_DTYPE_INT64, SCALAR_SHAPE), outs[HR__OP_OUTPUTS];
		hr__attrs attrs = { .a = 0.1, .b = 0.9 }, adam = { .a = 0.001, .b = 0.9, .c = 0.999, .d = 1e-8 };
		call_all(HR__OP_SGD, (tensor[]){ w, g }, 2, &attrs, outs);
		for (int64_t i = 0; i < count_of(&w); i++) check_near(&outs[0], i, get(&w, i) - 0.1 * get(&g, i), 1);
		call_all(HR__OP_MOMENTUM, (tensor[]){ w, m, g }, 3, &attrs, outs);
		for (int64_t i = 0; i < count_of(&w); i++) {
			double sum = 0.9 * get(&m, i) + get(&g, i);
			check_near(&outs[0], i, get(&w, i) - 0.1 * sum, 1);
			check_near(&outs[1], i, sum, 1);
		}
		for (int64_t number = 1; number < 2000; number *= 37) {
			set(&step, 0, (double)number);
			call_all(HR__OP_ADAM, (tensor[]){ w, m, v, g, step }, 5, &adam, outs);
			for (int64_t i = 0; i < count_of(&w); i++) {
				double first = 0.9 * get(&m, i) + 0.1 * get(&g, i), second = 0.999 * get(&v, i) + 0.001 * get(&g, i) * get(&g, i);
				double by = first / (1 - pow(0.9, (double)number)), root = sqrt(second / (1 - pow(0.999, (double)number)));
				check_near(&outs[0], i, get(&w, i) - 0.001 * by / (root + 1e-8), 1);
				check_near(&outs[1], i, first, 1);
				check_near(&outs[2], i, second, 1);
			}
		}
		free(w.data), free(m.data), free(v.data), free(g.data);
	}
}

/* Independent of the gradient: epsilon is added to a bias-corrected root, which equals the gradient's magnitude. */
static void test_adams_first_step_is_its_rate(void)
{
	EACH(dtype, floats)
	{
		hr_dtype of = AT(dtype, floats);
		tensor w = make(of, SHAPE(3)), m = make(of, SHAPE(3)), v = make(of, SHAPE(3)), g = make(of, SHAPE(3));
		tensor step = make(HR_DTYPE_INT64, SCALAR_SHAPE), outs[HR__OP_OUTPUTS];
		const double gradients[3] = { 1e-3, -2, 1e4 };
		for (int i = 0; i < 3; i++) set(&w, i, 1), set(&m, i, 0), set(&v, i, 0), set(&g, i, gradients[i]);
		set(&step, 0, 1);
		call_all(HR__OP_ADAM, (tensor[]){ w, m, v, g, step }, 5, &(hr__attrs){ .a = 0.01, .b = 0.9, .c = 0.999, .d = 1e-8 }, outs);
		for (int i = 0; i < 3; i++) check_near(&outs[0], i, 1 - 0.01 * gradients[i] / (fabs(gradients[i]) + 1e-8), 1);
		set(&step, 0, 0);
		CHECK_STR(run_at(HR__OP_ADAM, (tensor[]){ w, m, v, g, step }, 5, &(hr__attrs){ .b = 0.9, .c = 0.999 }, outs),
		          "the number of a step is below 1");
	}
}

static void test_updates_refuse_what_does_not_fit(void)
{
	tensor w = make(HR_DTYPE_FLOAT32, SHAPE(2, 3)), g = make(HR_DTYPE_FLOAT32, SHAPE(3)), d = make(HR_DTYPE_FLOAT64, SHAPE(2, 3));
	tensor i = make(HR_DTYPE_INT32, SHAPE(2, 3)), step = make(HR_DTYPE_INT64, SHAPE(1)),
		   narrow = make(HR_DTYPE_INT32, SCALAR_SHAPE);
	check_refused(HR__OP_SGD, (tensor[]){ w, g }, 2, &none, "shapes [2,3] and [3] differ");
	check_refused(HR__OP_SGD, (tensor[]){ w, d }, 2, &none, "dtypes float32 and float64 differ");
	check_refused(HR__OP_SGD, (tensor[]){ i, i }, 2, &none, "dtype is int32");
	check_refused(HR__OP_MOMENTUM, (tensor[]){ w, w, g }, 3, &none, "shapes [2,3] and [3] differ");
	check_refused(HR__OP_ADAM, (tensor[]){ w, w, g, w, step }, 5, &none, "shapes [2,3] and [3] differ");
	check_refused(HR__OP_ADAM, (tensor[]){ w, w, w, w, step }, 5, &none, "the number of the step is int64 [1]; it is int64 []");
	check_refused(HR__OP_ADAM, (tensor[]){ w, w, w, w, narrow }, 5, &none, "int32 []");
}

static void test_copy_copies_every_dtype(void)
{
	const hr_dtype all[] = { HR_DTYPE_FLOAT32, HR_DTYPE_FLOAT64, HR_DTYPE_INT32, HR_DTYPE_INT64, HR_DTYPE_UINT8, HR_DTYPE_BOOL };
	EACH(dtype, all)
	{
		tensor x = random_tensor(AT(dtype, all), SHAPE(333, 1001), 0, 2), y = call(HR__OP_COPY, &x, 1, &none);
		check_dims(&y, x.type.dims);
		CHECK_BYTES(y.data, x.data, hr__type_bytes(&x.type));
		free(x.data), free(y.data);
	}
	tensor x = make(HR_DTYPE_FLOAT32, SHAPE(2, 0)), h = make(HR_DTYPE_FLOAT16, SHAPE(2));
	call(HR__OP_COPY, &x, 1, &none);
	check_refused(HR__OP_COPY, &h, 1, &none, "dtype is float16");
}

TEST_MAIN(T(test_causal_softmax_leaves_later_columns_out), T(test_layer_norm_normalises_rows),
          T(test_convolutions_and_their_gradients_are_sums_of_products), T(test_convolutions_refuse_what_does_not_fit),
          T(test_convolutions_take_little_scratch), T(test_pools_take_the_largest_and_the_mean_of_windows),
          T(test_nan_wins_in_pools), T(test_pools_refuse_what_does_not_fit),
          T(test_updates_are_those_of_the_optimizers), T(test_adams_first_step_is_its_rate),
          T(test_updates_refuse_what_does_not_fit), T(test_copy_copies_every_dtype))
