// pool.cuh - max and average pooling of planes of images. A thread computes an element of the output. The gradient of a pixel is added up from the windows
// that it is in, in order, so no atomics are needed.

#define PLANES(i, high, wide, plane, row, column)                                              \
	int64_t plane##_rest = quotient(i, wide), column = i - plane##_rest * (wide);              \
	int64_t plane = quotient(plane##_rest, high), row = plane##_rest - plane * (high)

template <class F> BOTH void each_window(const hr__k_pool &arg, F f)
{
	for (STRIDES(i, arg.planes * arg.rows * arg.columns)) {
		PLANES(i, arg.rows, arg.columns, plane, row, column);
		f(i, (const T *)arg.in + (plane * arg.height + row * arg.stride) * arg.width + column * arg.stride);
	}
}

KERNEL(hr_max_pool, hr__k_pool)
{
	each_window(arg, [&](int64_t i, const T *x) {
		T most = LOWEST;
		for (int64_t r = 0; r < arg.size; r++)
			for (int64_t c = 0; c < arg.size; c++) {
				T now = x[r * arg.width + c];
				most = now > most || now != now ? now : most; // NaN wins
			}
		((T *)arg.out)[i] = most;
	});
}

KERNEL(hr_avg_pool, hr__k_pool)
{
	double share = 1 / ((double)arg.size * (double)arg.size);
	each_window(arg, [&](int64_t i, const T *x) {
		double sum = 0;
		for (int64_t r = 0; r < arg.size; r++)
			for (int64_t c = 0; c < arg.size; c++) sum += (double)x[r * arg.width + c];
		((T *)arg.out)[i] = (T)(sum * share);
	});
}

// The windows along one dimension that a pixel is in: [first, last].
BOTH int64_t first_window(const hr__k_pool &arg, int64_t pixel)
{
	return pixel < arg.size ? 0 : quotient(pixel - arg.size, arg.stride) + 1;
}

BOTH int64_t last_window(const hr__k_pool &arg, int64_t pixel, int64_t count)
{
	int64_t last = quotient(pixel, arg.stride);
	return last < count ? last : count - 1;
}

// Calls f(window's number in the plane, its first pixel in the plane) for each window that pixel [i] is in; writes the sum of what it returns.
template <class F> BOTH void each_pixel(const hr__k_pool &arg, F f)
{
	for (STRIDES(i, arg.planes * arg.height * arg.width)) {
		PLANES(i, arg.height, arg.width, plane, y, x);
		T sum = 0;
		for (int64_t r = first_window(arg, y); r <= last_window(arg, y, arg.rows); r++)
			for (int64_t c = first_window(arg, x); c <= last_window(arg, x, arg.columns); c++)
				sum += f(plane, r * arg.columns + c, r * arg.stride * arg.width + c * arg.stride, y * arg.width + x);
		((T *)arg.out)[i] = sum;
	}
}

// The pixel of the window's maximum: the first if several are equal, the last NaN if the maximum is NaN.
BOTH int64_t place_of_most(const hr__k_pool &arg, const T *x, int64_t corner, T most)
{
	int64_t last = corner;
	for (int64_t r = 0; r < arg.size; r++)
		for (int64_t at = corner + r * arg.width; at < corner + r * arg.width + arg.size; at++) {
			if (x[at] == most) return at;
			if (x[at] != x[at]) last = at;
		}
	return last;
}

KERNEL(hr_max_pool_grad, hr__k_pool)
{
	int64_t windows = arg.rows * arg.columns, pixels = arg.height * arg.width;
	each_pixel(arg, [&](int64_t plane, int64_t window, int64_t corner, int64_t pixel) {
		T most = ((const T *)arg.most)[plane * windows + window];
		bool is = place_of_most(arg, (const T *)arg.in + plane * pixels, corner, most) == pixel;
		return is ? ((const T *)arg.grad)[plane * windows + window] : (T)0;
	});
}

KERNEL(hr_avg_pool_grad, hr__k_pool)
{
	int64_t windows = arg.rows * arg.columns;
	T share = (T)(1 / ((double)arg.size * (double)arg.size));
	each_pixel(arg, [&](int64_t plane, int64_t window, int64_t, int64_t) { return ((const T *)arg.grad)[plane * windows + window] * share; });
}
