// norm.cuh - layer norm, by rows of the last dimension, and batch norm, by channels. Means are computed in double, the mean first and then the squares
// of the differences.

// ---- layer norm ----

template <int GROUP, int M> BOTH void layer_norm(const hr__k_norm &arg)
{
	for (GROUPS(GROUP, row, arg.rows)) {
		int64_t base = row * arg.length;
		double sum = 0, squares = 0;
		for (int64_t i = MEMBER(GROUP) * M; i < arg.length; i += GROUP * M) {
			pack<T, M> x = load<M>(arg.in, base + i);
			for (int k = 0; k < M; k++) sum += (double)x.at[k];
		}
		double mean = group_sum<GROUP>(sum) / (double)arg.length;
		for (int64_t i = MEMBER(GROUP) * M; i < arg.length; i += GROUP * M) {
			pack<T, M> x = load<M>(arg.in, base + i);
			for (int k = 0; k < M; k++) squares += ((double)x.at[k] - mean) * ((double)x.at[k] - mean);
		}
		double scale = 1 / sqrt(group_sum<GROUP>(squares) / (double)arg.length + arg.epsilon);
		for (int64_t i = MEMBER(GROUP) * M; i < arg.length; i += GROUP * M) {
			pack<T, M> x = load<M>(arg.in, base + i), gain = load<M>(arg.gain, i), bias = load<M>(arg.bias, i);
			for (int k = 0; k < M; k++) x.at[k] = (T)(((double)x.at[k] - mean) * scale) * gain.at[k] + bias.at[k];
			store_as<M>(arg.out, base + i, x, arg.out_narrow);
		}
		if (MEMBER(GROUP) == 0) {
			((T *)arg.out_mean)[row] = (T)mean;
			((T *)arg.out_scale)[row] = (T)scale;
		}
	}
}
GROUP_KERNELS(layer_norm, hr__k_norm, layer_norm)

// With h = (x - mean) / deviation and g = dy gain: dx = (g - mean(g) - h mean(g h)) / deviation.
template <int GROUP, int M> BOTH void layer_norm_grad(const hr__k_norm &arg)
{
	for (GROUPS(GROUP, row, arg.rows)) {
		int64_t base = row * arg.length;
		T middle = ((const T *)arg.mean)[row], factor = ((const T *)arg.scale)[row];
		double sum = 0, sum_by_h = 0;
		for (int64_t i = MEMBER(GROUP) * M; i < arg.length; i += GROUP * M) {
			pack<T, M> x = load<M>(arg.in, base + i), grad = load_as<M>(arg.grad, base + i, arg.grad_narrow), gain = load<M>(arg.gain, i);
			for (int k = 0; k < M; k++) {
				double g = (double)(grad.at[k] * gain.at[k]);
				sum += g;
				sum_by_h += g * (double)((x.at[k] - middle) * factor);
			}
		}
		T mean = (T)(group_sum<GROUP>(sum) / (double)arg.length), mean_by_h = (T)(group_sum<GROUP>(sum_by_h) / (double)arg.length);
		for (int64_t i = MEMBER(GROUP) * M; i < arg.length; i += GROUP * M) {
			pack<T, M> x = load<M>(arg.in, base + i), grad = load_as<M>(arg.grad, base + i, arg.grad_narrow), gain = load<M>(arg.gain, i);
			for (int k = 0; k < M; k++) x.at[k] = factor * (grad.at[k] * gain.at[k] - mean - (x.at[k] - middle) * factor * mean_by_h);
			if (arg.plus) {
				pack<T, M> plus = load<M>(arg.plus, base + i);
				for (int k = 0; k < M; k++) x.at[k] += plus.at[k];
			}
			store<M>(arg.out, base + i, x);
		}
	}
}
GROUP_KERNELS(layer_norm_grad, hr__k_norm, layer_norm_grad)

// The gradients of gain and bias: sums over the rows of a block, M columns for each thread of a warp. The order of additions is the same for each M.
template <int M> BOTH void layer_norm_columns(const hr__k_norm &arg)
{
	__shared__ double sums[BLOCK / WARP][2 * M][WARP];
	int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
	int64_t chunks = (arg.length + WARP * M - 1) / (WARP * M);
	for (int64_t item = blockIdx.x; item < arg.blocks * chunks; item += gridDim.x) {
		int64_t block = quotient(item, chunks), column = ((item - block * chunks) * WARP + lane) * M, begin = block * arg.each;
		int64_t end = begin + arg.each < arg.rows ? begin + arg.each : arg.rows;
		double of_gain[M] = { 0 }, of_bias[M] = { 0 };
		if (column < arg.length) {
#pragma unroll 4
			for (int64_t row = begin + warp; row < end; row += BLOCK / WARP) {
				pack<T, M> grad = load_as<M>(arg.grad, row * arg.length + column, arg.grad_narrow), x = load<M>(arg.in, row * arg.length + column);
				T mean = ((const T *)arg.mean)[row], scale = ((const T *)arg.scale)[row];
				for (int k = 0; k < M; k++) {
					of_gain[k] += (double)(grad.at[k] * ((x.at[k] - mean) * scale));
					of_bias[k] += (double)grad.at[k];
				}
			}
		}
		for (int k = 0; k < M; k++) sums[warp][k][lane] = of_gain[k], sums[warp][M + k][lane] = of_bias[k];
		__syncthreads();
		if (warp < 2 * M && column < arg.length) { // a warp for each column of the lanes, of gain and of bias
			double sum = 0;
			for (int i = 0; i < BLOCK / WARP; i++) sum += sums[i][warp][lane];
			((double *)arg.partials)[(2 * block + warp / M) * arg.length + column + warp % M] = sum;
		}
		__syncthreads();
	}
}
KERNEL(hr_layer_norm_columns_n, hr__k_norm) { layer_norm_columns<N>(arg); }
KERNEL(hr_layer_norm_columns_1, hr__k_norm) { layer_norm_columns<1>(arg); }

// A block for each 32 of the results, whose warps add the sums of every eighth block of rows.
KERNEL(hr_layer_norm_join, hr__k_norm)
{
	__shared__ double sums[BLOCK / WARP][WARP];
	int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
	for (int64_t first = (int64_t)blockIdx.x * WARP; first < 2 * arg.length; first += (int64_t)gridDim.x * WARP) {
		int64_t i = first + lane;
		double sum = 0;
		if (i < 2 * arg.length) {
#pragma unroll 4
			for (int64_t block = warp; block < arg.blocks; block += BLOCK / WARP) sum += ((const double *)arg.partials)[2 * block * arg.length + i];
		}
		sums[warp][lane] = sum;
		__syncthreads();
		if (warp == 0 && i < 2 * arg.length) {
			for (int k = 1; k < BLOCK / WARP; k++) sum += sums[k][lane];
			if (i < arg.length) ((T *)arg.of_gain)[i] = (T)sum;
			else ((T *)arg.of_bias)[i - arg.length] = (T)sum;
		}
		__syncthreads();
	}
}

// ---- batch norm ----

// Element [at] of a channel's images * inner elements.
BOTH int64_t place_of(const hr__k_batch &arg, int64_t channel, int64_t at)
{
	int64_t image = quotient(at, arg.inner);
	return (image * arg.channels + channel) * arg.inner + at - image * arg.inner;
}

BOTH int64_t last_of(const hr__k_batch &arg, int64_t begin)
{
	int64_t count = arg.images * arg.inner;
	return begin + arg.each < count ? begin + arg.each : count;
}

// Mean and sum of the squared differences of a block of elements.
template <int M> BOTH void batch_part(const hr__k_batch &arg)
{
	for (int64_t item = blockIdx.x; item < arg.channels * arg.blocks; item += gridDim.x) {
		int64_t channel = quotient(item, arg.blocks), begin = (item - channel * arg.blocks) * arg.each, end = last_of(arg, begin);
		double sum = 0, squares = 0;
#pragma unroll 4
		for (int64_t i = begin + threadIdx.x * M; i < end; i += BLOCK * M) {
			pack<T, M> x = load<M>(arg.in, place_of(arg, channel, i));
			for (int k = 0; k < M; k++) sum += (double)x.at[k];
		}
		double mean = end > begin ? group_sum<BLOCK>(sum) / (double)(end - begin) : 0;
#pragma unroll 4
		for (int64_t i = begin + threadIdx.x * M; i < end; i += BLOCK * M) {
			pack<T, M> x = load<M>(arg.in, place_of(arg, channel, i));
			for (int k = 0; k < M; k++) squares += ((double)x.at[k] - mean) * ((double)x.at[k] - mean);
		}
		squares = group_sum<BLOCK>(squares);
		if (threadIdx.x == 0) {
			arg.partials[2 * item] = mean;
			arg.partials[2 * item + 1] = squares;
		}
	}
}
KERNEL(hr_batch_part_n, hr__k_batch) { batch_part<N>(arg); }
KERNEL(hr_batch_part_1, hr__k_batch) { batch_part<1>(arg); }

// Mean and variance of a channel, and 1 / deviation.
KERNEL(hr_batch_join, hr__k_batch)
{
	double numbers = (double)(arg.images * arg.inner);
	for (GROUPS(WARP, channel, arg.channels)) {
		const double *parts = arg.partials + 2 * channel * arg.blocks;
		double sum = 0, squares = 0;
		for (int64_t i = MEMBER(WARP); i < arg.blocks; i += WARP) sum += parts[2 * i] * (double)(last_of(arg, i * arg.each) - i * arg.each);
		sum = group_sum<WARP>(sum);
		double mean = numbers > 0 ? sum / numbers : 0;
		for (int64_t i = MEMBER(WARP); i < arg.blocks; i += WARP) {
			double away = parts[2 * i] - mean;
			squares += parts[2 * i + 1] + (double)(last_of(arg, i * arg.each) - i * arg.each) * away * away;
		}
		squares = group_sum<WARP>(squares);
		double variance = numbers > 0 ? squares / numbers : 0;
		if (MEMBER(WARP) == 0) {
			((T *)arg.first)[channel] = (T)mean;
			((T *)arg.second)[channel] = (T)variance;
			arg.stats[2 * channel] = mean;
			arg.stats[2 * channel + 1] = 1 / sqrt(variance + arg.epsilon);
		}
	}
}

BOTH int64_t channel_of(const hr__k_batch &arg, int64_t at)
{
	int64_t row = quotient(at, arg.inner);
	return row - quotient(row, arg.channels) * arg.channels;
}

template <int M> BOTH void batch_apply(const hr__k_batch &arg)
{
	for (STRIDES(i, arg.images * arg.channels * arg.inner / M)) {
		int64_t channel = channel_of(arg, i * M);
		pack<T, M> x = load<M>(arg.in, i * M);
		double mean = arg.stats[2 * channel], scale = arg.stats[2 * channel + 1];
		T gain = ((const T *)arg.gain)[channel], bias = ((const T *)arg.bias)[channel];
		for (int k = 0; k < M; k++) x.at[k] = (T)(((double)x.at[k] - mean) * scale) * gain + bias;
		store<M>(arg.out, i * M, x);
	}
}
KERNEL(hr_batch_apply_n, hr__k_batch) { batch_apply<N>(arg); }
KERNEL(hr_batch_apply_1, hr__k_batch) { batch_apply<1>(arg); }

// Sums of dy and dy (x - mean) of a block of elements.
template <int M> BOTH void batch_grad_part(const hr__k_batch &arg)
{
	for (int64_t item = blockIdx.x; item < arg.channels * arg.blocks; item += gridDim.x) {
		int64_t channel = quotient(item, arg.blocks), begin = (item - channel * arg.blocks) * arg.each, end = last_of(arg, begin);
		T middle = ((const T *)arg.mean)[channel];
		double of_bias = 0, of_gain = 0;
#pragma unroll 4
		for (int64_t i = begin + threadIdx.x * M; i < end; i += BLOCK * M) {
			int64_t at = place_of(arg, channel, i);
			pack<T, M> x = load<M>(arg.in, at), grad = load<M>(arg.grad, at);
			for (int k = 0; k < M; k++) {
				of_bias += (double)grad.at[k];
				of_gain += (double)grad.at[k] * (double)(x.at[k] - middle);
			}
		}
		of_bias = group_sum<BLOCK>(of_bias);
		of_gain = group_sum<BLOCK>(of_gain);
		if (threadIdx.x == 0) {
			arg.partials[2 * item] = of_bias;
			arg.partials[2 * item + 1] = of_gain;
		}
	}
}
KERNEL(hr_batch_grad_part_n, hr__k_batch) { batch_grad_part<N>(arg); }
KERNEL(hr_batch_grad_part_1, hr__k_batch) { batch_grad_part<1>(arg); }

KERNEL(hr_batch_grad_join, hr__k_batch)
{
	for (GROUPS(WARP, channel, arg.channels)) {
		const double *parts = arg.partials + 2 * channel * arg.blocks;
		double of_bias = 0, of_gain = 0;
		for (int64_t i = MEMBER(WARP); i < arg.blocks; i += WARP) {
			of_bias += parts[2 * i];
			of_gain += parts[2 * i + 1];
		}
		of_bias = group_sum<WARP>(of_bias);
		of_gain = group_sum<WARP>(of_gain) / sqrt((double)((const T *)arg.variance)[channel] + arg.epsilon);
		if (MEMBER(WARP) == 0) {
			((T *)arg.first)[channel] = (T)of_gain;
			((T *)arg.second)[channel] = (T)of_bias;
			arg.stats[2 * channel] = of_gain;
			arg.stats[2 * channel + 1] = of_bias;
		}
	}
}

// With h = (x - mean) / deviation: dx = gain (dy - mean(dy) - h mean(dy h)) / deviation.
template <int M> BOTH void batch_grad_apply(const hr__k_batch &arg)
{
	double numbers = (double)(arg.images * arg.inner);
	for (STRIDES(i, arg.images * arg.channels * arg.inner / M)) {
		int64_t channel = channel_of(arg, i * M);
		pack<T, M> x = load<M>(arg.in, i * M), grad = load<M>(arg.grad, i * M);
		T factor = (T)(1 / sqrt((double)((const T *)arg.variance)[channel] + arg.epsilon)), middle = ((const T *)arg.mean)[channel];
		T less = (T)(arg.stats[2 * channel + 1] / numbers), by_h = (T)(arg.stats[2 * channel] / numbers), by = ((const T *)arg.gain)[channel] * factor;
		for (int k = 0; k < M; k++) x.at[k] = by * (grad.at[k] - less - (x.at[k] - middle) * factor * by_h);
		store<M>(arg.out, i * M, x);
	}
}
KERNEL(hr_batch_grad_apply_n, hr__k_batch) { batch_grad_apply<N>(arg); }
KERNEL(hr_batch_grad_apply_1, hr__k_batch) { batch_grad_apply<1>(arg); }
