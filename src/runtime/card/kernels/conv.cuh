// conv.cuh - convolutions and their gradients as products of matrices, one of which is read from images while it is multiplied (implicit products):
//
//     conv2d              output [o, places]   = filter [o, taps] by x [taps, places]
//     conv2d_grad_input   gradient [c, pixels] = filter [c, taps of o] by the output gradient [taps, pixels]; here the pixels are the places
//     conv2d_grad_filter  gradient [o, taps]   = the output gradient [o, places] by x [places, taps], in segments of places
//
// A block computes a tile of HIGH * TM rows by WIDE columns, DEEP of k at a time. While a tile is multiplied from shared memory, the next one is read
// into registers. What is computed from k alone is computed by DEEP threads, and kept in a table. Sums are added in an order that depends on the shape.
// float32 is multiplied by tensor cores, where there are any.

#define DEEP 16
#define HIGH 16 // threads; TM rows each
#define WIDE 128
#define TN 8    // columns of a thread: two groups of TN / 2
#define B_LOADS (WIDE * DEEP / BLOCK)
#define PAD (TENSOR_CORES ? 8 : 4) // so that the threads of a warp read from different banks

struct conv_place {
	int64_t at;       // offset in b, without row and column
	int32_t row, column;
};

struct conv_row {
	conv_place place;
	int64_t a; // offset in a
};

BOTH conv_place place_at(const hr__k_conv &arg, int64_t number, int64_t *image, int64_t *pixel)
{
	int64_t size = arg.rows * arg.columns;
	*image = quotient(number, size);
	*pixel = number - *image * size;
	int64_t row = quotient(*pixel, arg.columns);
	conv_place out = { *image * arg.b_image, (int32_t)(row * arg.step + arg.shift), (int32_t)((*pixel - row * arg.columns) * arg.step + arg.shift) };
	return out;
}

// *in_window: the tap's number in its window.
BOTH conv_place tap_at(const hr__k_conv &arg, int64_t number, int64_t *channel, int64_t *in_window)
{
	int64_t size = arg.window_high * arg.window_wide;
	*channel = quotient(number, size);
	*in_window = number - *channel * size;
	int64_t row = quotient(*in_window, arg.window_wide);
	conv_place out = { *channel * arg.b_channel, (int32_t)(arg.sign * row), (int32_t)(arg.sign * (*in_window - row * arg.window_wide)) };
	return out;
}

BOTH conv_row row_at(const hr__k_conv &arg, int64_t k)
{
	conv_row out;
	int64_t outer, inner;
	out.place = arg.by_place ? place_at(arg, k, &outer, &inner) : tap_at(arg, k, &outer, &inner);
	out.a = (arg.by_place ? outer * arg.a_image : outer * arg.a_channel) + inner;
	return out;
}

BOTH T value_at(const hr__k_conv &arg, const conv_place &x, const conv_place &y)
{
	int32_t row = x.row + y.row, column = x.column + y.column;
	if (arg.divide > 1) {
		int32_t by = (int32_t)arg.divide;
		if (row < 0 || column < 0 || row % by || column % by) return 0;
		row /= by;
		column /= by;
	}
	if (row < 0 || row >= arg.height || column < 0 || column >= arg.width) return 0;
	return ((const T *)arg.b)[x.at + y.at + row * arg.width + column];
}

// What a thread reads of the next tiles.
template <int TM> struct conv_loads {
	T a[TM], b[B_LOADS];
};

template <int TM> BOTH void read_tiles(const hr__k_conv &arg, const conv_row *table, int64_t first_m, int64_t first_k, int64_t end_k, bool has_column,
                                       const conv_place &column, conv_loads<TM> &out)
{
	int ka = threadIdx.x % DEEP, ma = threadIdx.x / DEEP, kb = threadIdx.x / WIDE;
	for (int i = 0; i < TM; i++) {
		int64_t m = first_m + ma + i * HIGH;
		out.a[i] = m < arg.m && first_k + ka < end_k ? ((const T *)arg.a)[m * arg.a_row + table[ka].a] : (T)0;
	}
	for (int i = 0; i < B_LOADS; i++) {
		int k = kb + i * (BLOCK / WIDE);
		out.b[i] = has_column && first_k + k < end_k ? value_at(arg, column, table[k].place) : (T)0;
	}
}

// A thread computes TM x TN elements of a tile: number (r, c) is at row_of<TM>(r), column_of(c), and in sum_of<TM>(sum, r, c).
#if TENSOR_CORES
// Eight warps: two of 8 * TM rows, four of 32 columns, which are four parts of the instruction. Two rows of [sum] are the sums of 16 rows.
#define WARP_ROW ((int)threadIdx.x / WARP / 4 * 8 * TM)
#define WARP_COLUMN ((int)threadIdx.x / WARP % 4 * 32)
#define G ((int)threadIdx.x % WARP / 4)
#define Q ((int)threadIdx.x % 4)

template <int TM> BOTH int row_of(int r)
{
	return WARP_ROW + r / 2 * 16 + G + r % 2 * 8;
}

BOTH int column_of(int c)
{
	return WARP_COLUMN + c / 2 * 8 + 2 * Q + c % 2;
}

template <int TM> BOTH T sum_of(const T (*sum)[TN], int r, int c)
{
	return sum[r / 2 * 2 + c / 4][c / 2 % 2 * 4 + r % 2 * 2 + c % 2];
}

template <int TM> BOTH void multiply(const T (*a)[HIGH * TM + PAD], const T (*b)[WIDE + PAD], T (*sum)[TN])
{
#pragma unroll
	for (int m = 0; m < TM / 2; m++) { // a part of 16 rows has two rows of sums: 4 parts of 4
		partial_sum partial = {};
		int row = WARP_ROW + m * 16 + G;
#pragma unroll
		for (int k = 0; k < DEEP; k += 8) {
			float left[4] = { a[k + Q][row], a[k + Q][row + 8], a[k + Q + 4][row], a[k + Q + 4][row + 8] }, right[4][2];
			uint32_t high[4], low[4];
			for (int part = 0; part < 4; part++) {
				right[part][0] = b[k + Q][WARP_COLUMN + part * 8 + G];
				right[part][1] = b[k + Q + 4][WARP_COLUMN + part * 8 + G];
			}
			split<4>(left, high, low);
			add_four(high, low, right, partial.at);
		}
		add_partial(partial, (float(*)[4])sum[2 * m]);
	}
}
#else
template <int TM> BOTH int row_of(int r)
{
	return (int)threadIdx.x / 16 * TM + r;
}

BOTH int column_of(int c)
{
	return (int)threadIdx.x % 16 * (TN / 2) + c + (c < TN / 2 ? 0 : WIDE / 2 - TN / 2);
}

template <int TM> BOTH T sum_of(const T (*sum)[TN], int r, int c)
{
	return sum[r][c];
}

template <int TM> BOTH void multiply(const T (*a)[HIGH * TM + PAD], const T (*b)[WIDE + PAD], T (*sum)[TN])
{
	int x = threadIdx.x % 16 * (TN / 2), y = threadIdx.x / 16 * TM;
#pragma unroll
	for (int k = 0; k < DEEP; k++) {
		T left[TM], right[TN];
		read_shared<TM>(&a[k][y], left);
		read_shared<TN / 2>(&b[k][x], right);
		read_shared<TN / 2>(&b[k][x + WIDE / 2], right + TN / 2);
		for (int i = 0; i < TM; i++)
			for (int j = 0; j < TN; j++) sum[i][j] = madd(left[i], right[j], sum[i][j]);
	}
}
#endif

template <int TM> BOTH void write_tile(const hr__k_conv &arg, int64_t first_m, int64_t first_n, const T (*sum)[TN])
{
#pragma unroll
	for (int c = 0; c < TN; c++) {
		int64_t n = first_n + column_of(c), at = n, image, pixel;
		if (n >= arg.n) continue;
		if (!arg.by_place) {
			place_at(arg, n, &image, &pixel);
			at = image * arg.out_image + pixel;
		} else {
			at += blockIdx.z * arg.m * arg.n;
		}
#pragma unroll
		for (int r = 0; r < TM; r++) {
			int64_t m = first_m + row_of<TM>(r);
			if (m < arg.m) ((T *)arg.out)[at + m * arg.out_row] = sum_of<TM>(sum, r, c);
		}
	}
}

template <int TM> BOTH void conv(const hr__k_conv &arg)
{
	alignas(16) __shared__ T a[DEEP][HIGH * TM + PAD];
	alignas(16) __shared__ T b[DEEP][WIDE + PAD];
	__shared__ conv_row tables[2][DEEP];
	int64_t first_m = (int64_t)blockIdx.y * HIGH * TM, first_n = (int64_t)blockIdx.x * WIDE, n = first_n + threadIdx.x % WIDE, outer, inner;
	int64_t begin = blockIdx.z * arg.each, end = begin + arg.each < arg.k ? begin + arg.each : arg.k;
	bool has_column = n < arg.n;
	conv_place column = { 0, 0, 0 };
	if (has_column) column = arg.by_place ? tap_at(arg, n, &outer, &inner) : place_at(arg, n, &outer, &inner);
	conv_loads<TM> next;
	T sum[TM][TN] = {};
	if (threadIdx.x < DEEP && begin + threadIdx.x < end) tables[0][threadIdx.x] = row_at(arg, begin + threadIdx.x);
	__syncthreads();
	read_tiles<TM>(arg, tables[0], first_m, begin, end, has_column, column, next);
	for (int64_t k = begin, turn = 1; k < end; k += DEEP, turn = 1 - turn) {
		for (int i = 0; i < TM; i++) a[threadIdx.x % DEEP][threadIdx.x / DEEP + i * HIGH] = next.a[i];
		for (int i = 0; i < B_LOADS; i++) b[threadIdx.x / WIDE + i * (BLOCK / WIDE)][threadIdx.x % WIDE] = next.b[i];
		if (threadIdx.x < DEEP && k + DEEP + threadIdx.x < end) tables[turn][threadIdx.x] = row_at(arg, k + DEEP + threadIdx.x);
		__syncthreads();
		if (k + DEEP < end) read_tiles<TM>(arg, tables[turn], first_m, k + DEEP, end, has_column, column, next);
		multiply<TM>(a, b, sum);
		__syncthreads();
	}
	write_tile<TM>(arg, first_m, first_n, sum);
}
FITTING_KERNEL(hr_conv_2, hr__k_conv, BLOCK, sizeof(T) == 4 ? 2 : 1) { conv<2>(arg); }
FITTING_KERNEL(hr_conv_4, hr__k_conv, BLOCK, sizeof(T) == 4 ? 2 : 1) { conv<4>(arg); }
FITTING_KERNEL(hr_conv_8, hr__k_conv, BLOCK, sizeof(T) == 4 ? 2 : 1) { conv<8>(arg); }

// Adds the segments, in order.
KERNEL(hr_conv_join, hr__k_conv)
{
	for (STRIDES(i, arg.count)) {
		T sum = ((const T *)arg.a)[i];
		for (int64_t segment = 1; segment < arg.segments; segment++) sum += ((const T *)arg.a)[segment * arg.count + i];
		((T *)arg.out)[i] = sum;
	}
}
