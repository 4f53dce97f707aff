// attend_tensor.cuh - fused attention of heads of at most 64 numbers, in float32, by tensor cores. attend.cuh has the same kernels for all others.
//
// A block has four warps and computes 64 rows of a head: 16 for each warp. It goes over the other side 64 rows at a time, which all warps read from shared
// memory. What a warp has of its own rows is in registers, in the layouts of the instruction (after.cuh).
//
// A sum is the left operand of the next product as it is, if its column 2t counts as t and 2t + 1 as t + 4: then the rows of b are taken in the same order.

#define SIDE 64            // rows and columns of a tile
#define STEPS (SIDE / 8)   // parts of 8 columns
#define ROW (SIDE + 4)     // no two threads of a warp read from one bank
#define WARPS 4

struct tensor_a {
	float at[STEPS][4];
};
struct tensor_sum {
	float at[STEPS][4];
};

#define G ((int)threadIdx.x % WARP / 4)
#define Q ((int)threadIdx.x % 4)
#define FIRST_ROW ((int)threadIdx.x / WARP * 16)

// sum = a times the transpose of [other]: rows of both times each other.
BOTH void products(const tensor_a &a, const float (*other)[ROW], tensor_sum &sum)
{
	for (int n = 0; n < STEPS; n++)
		for (int i = 0; i < 4; i++) sum.at[n][i] = 0;
#pragma unroll
	for (int k = 0; k < STEPS; k++) {
		uint32_t a_high[4], a_low[4];
		split<4>(a.at[k], a_high, a_low);
#pragma unroll
		for (int n = 0; n < STEPS; n += 4) {
			float b[4][2];
			for (int i = 0; i < 4; i++) {
				b[i][0] = other[(n + i) * 8 + G][k * 8 + Q];
				b[i][1] = other[(n + i) * 8 + G][k * 8 + Q + 4];
			}
			add_four(a_high, a_low, b, &sum.at[n]);
		}
	}
}

// to += weights times [other].
BOTH void add_product(const tensor_sum &weights, const float (*other)[ROW], tensor_sum &to)
{
#pragma unroll
	for (int n = 0; n < STEPS; n += 4) {
		partial_sum partial = {};
#pragma unroll
		for (int k = 0; k < STEPS; k++) {
			float a[4] = { weights.at[k][0], weights.at[k][2], weights.at[k][1], weights.at[k][3] }, b[4][2];
			uint32_t a_high[4], a_low[4];
			split<4>(a, a_high, a_low);
			for (int i = 0; i < 4; i++) {
				b[i][0] = other[k * 8 + 2 * Q][(n + i) * 8 + G];
				b[i][1] = other[k * 8 + 2 * Q + 1][(n + i) * 8 + G];
			}
			add_four(a_high, a_low, b, partial.at);
		}
		add_partial(partial, &to.at[n]);
	}
}

// A matrix of [count] rows of [width] numbers, [row] apart.
struct attend_matrix {
	const float *at;
	int64_t row, count;
	int width;
};

// Rows [first, first + SIDE), padded with zeros.
BOTH void read_rows(const attend_matrix &of, int64_t first, int even, float (*to)[ROW])
{
	if (even) {
		for (int i = threadIdx.x; i < SIDE * SIDE / 4; i += WARPS * WARP) {
			int64_t row = first + i / (SIDE / 4);
			int column = i % (SIDE / 4) * 4;
			pack<float, 4> x = { { 0, 0, 0, 0 } };
			if (row < of.count && column < of.width) x = *(const pack<float, 4> *)(of.at + row * of.row + column);
			*(pack<float, 4> *)&to[i / (SIDE / 4)][column] = x;
		}
		return;
	}
	for (int i = threadIdx.x; i < SIDE * SIDE; i += WARPS * WARP) {
		int64_t row = first + i / SIDE;
		int column = i % SIDE;
		to[i / SIDE][column] = row < of.count && column < of.width ? of.at[row * of.row + column] : 0;
	}
}

BOTH void take_rows(const float (*from)[ROW], tensor_a &to)
{
#pragma unroll
	for (int k = 0; k < STEPS; k++) {
		to.at[k][0] = from[FIRST_ROW + G][k * 8 + Q];
		to.at[k][1] = from[FIRST_ROW + G + 8][k * 8 + Q];
		to.at[k][2] = from[FIRST_ROW + G][k * 8 + Q + 4];
		to.at[k][3] = from[FIRST_ROW + G + 8][k * 8 + Q + 4];
	}
}

// Rows that a block keeps in registers, through shared memory.
BOTH void keep_rows(const attend_matrix &of, int64_t first, int even, float (*through)[ROW], tensor_a &to)
{
	__syncthreads();
	read_rows(of, first, even, through);
	__syncthreads();
	take_rows(through, to);
}

BOTH void write_rows(float *to, const attend_matrix &like, int64_t first, const tensor_sum &of)
{
#pragma unroll
	for (int n = 0; n < STEPS; n++) {
		for (int i = 0; i < 4; i++) {
			int64_t row = first + FIRST_ROW + G + i / 2 * 8;
			int column = n * 8 + 2 * Q + i % 2;
			if (row < like.count && column < like.width) to[row * like.row + column] = of.at[n][i];
		}
	}
}

BOTH attend_matrix matrix_of(const void *at, int64_t offset, int64_t row, int64_t count, int64_t width)
{
	attend_matrix out = { (const float *)at + offset, row, count, (int)width };
	return out;
}
#define MATRIX_Q(from) matrix_of(from, at.q, arg.q_row, arg.rows, arg.width)
#define MATRIX_K(from) matrix_of(from, at.k, arg.k_row, arg.columns, arg.width)
#define MATRIX_V(from) matrix_of(from, at.v, arg.v_row, arg.columns, arg.value_width)
#define MATRIX_Y(from) matrix_of(from, at.y, arg.y_row, arg.rows, arg.value_width)

FITTING_KERNEL(hr_tensor_attend, hr__k_attend, WARPS * WARP, 2)
{
	alignas(16) __shared__ float k_rows[SIDE][ROW];
	alignas(16) __shared__ float v_rows[SIDE][ROW];
	int64_t first = (int64_t)(gridDim.x - 1 - blockIdx.x) * SIDE; // the longest rows first
	for (int64_t number = blockIdx.z; number < arg.jobs; number += gridDim.z) {
		attend_offsets at = offsets_of(arg, number);
		int64_t last = first + SIDE < arg.rows ? first + SIDE : arg.rows, end = seen_by(arg, last - 1);
		tensor_a q;
		tensor_sum sum = {};
		float most[2] = { -INFINITY, -INFINITY }, total[2] = { 0, 0 };
		keep_rows(MATRIX_Q(arg.q), first, arg.even, k_rows, q);
		for (int64_t column = 0; column < end; column += SIDE) {
			tensor_sum scores;
			__syncthreads();
			read_rows(MATRIX_K(arg.k), column, arg.even, k_rows);
			read_rows(MATRIX_V(arg.v), column, arg.even, v_rows);
			__syncthreads();
			products(q, k_rows, scores);
			for (int half = 0; half < 2; half++) {
				int64_t seen = seen_by(arg, first + FIRST_ROW + G + half * 8) - column;
				float now = most[half];
#pragma unroll
				for (int n = 0; n < STEPS; n++)
					for (int i = 2 * half; i < 2 * half + 2; i++) {
						scores.at[n][i] = n * 8 + 2 * Q + i % 2 < seen ? scores.at[n][i] * (float)arg.scale : -INFINITY;
						if (scores.at[n][i] > now) now = scores.at[n][i];
					}
				now = quad_join(now, larger_of());
				float shift = now == -INFINITY ? 0 : now, keep = expf(most[half] - shift);
				total[half] *= keep;
#pragma unroll
				for (int n = 0; n < STEPS; n++)
					for (int i = 2 * half; i < 2 * half + 2; i++) {
						scores.at[n][i] = expf(scores.at[n][i] - shift);
						total[half] += scores.at[n][i];
						sum.at[n][i] *= keep;
					}
				most[half] = now;
			}
			add_product(scores, v_rows, sum);
		}
		for (int half = 0; half < 2; half++) {
			int64_t row = first + FIRST_ROW + G + half * 8;
			total[half] = quad_join(total[half], plus_of());
			float share = total[half] == 0 ? 0 : 1 / total[half];
			for (int n = 0; n < STEPS; n++)
				for (int i = 2 * half; i < 2 * half + 2; i++) sum.at[n][i] *= share;
			if (Q == 0 && row < arg.rows) ((float *)arg.out_logs)[number * arg.rows + row] = most[half] + logf(total[half]);
		}
		write_rows((float *)arg.out + at.y, MATRIX_Y(arg.out), first, sum);
	}
}

// The weight of a key for a row, and the gradient of its score; 0 if the row does not use the key.
BOTH void weigh(const hr__k_attend &arg, bool uses, float log, float less, float &score, float &slope)
{
	score = uses ? expf(score * (float)arg.scale - log) : 0;
	slope = uses ? score * (slope - less) * (float)arg.scale : 0;
}

// Of a row: the logarithm, and the sum of dy y.
BOTH float number_of(const hr__k_attend &arg, const void *of, int64_t number, int64_t row)
{
	return row < arg.rows ? ((const float *)of)[number * arg.rows + row] : 0;
}

FITTING_KERNEL(hr_tensor_queries, hr__k_attend, WARPS * WARP, 2)
{
	alignas(16) __shared__ float k_rows[SIDE][ROW];
	alignas(16) __shared__ float v_rows[SIDE][ROW];
	int64_t first = (int64_t)(gridDim.x - 1 - blockIdx.x) * SIDE;
	for (int64_t number = blockIdx.z; number < arg.jobs; number += gridDim.z) {
		attend_offsets at = offsets_of(arg, number);
		int64_t last = first + SIDE < arg.rows ? first + SIDE : arg.rows, end = seen_by(arg, last - 1);
		tensor_a q, dy;
		tensor_sum sum = {};
		keep_rows(MATRIX_Q(arg.q), first, arg.even, k_rows, q);
		keep_rows(MATRIX_Y(arg.dy), first, arg.even, v_rows, dy);
		float logs[2], sums[2];
		int64_t seen[2];
		for (int half = 0; half < 2; half++) {
			int64_t row = first + FIRST_ROW + G + half * 8;
			logs[half] = number_of(arg, arg.logs, number, row);
			sums[half] = number_of(arg, arg.sums, number, row);
			seen[half] = row < arg.rows ? seen_by(arg, row) : 0;
		}
		for (int64_t column = 0; column < end; column += SIDE) {
			tensor_sum scores, slopes;
			__syncthreads();
			read_rows(MATRIX_K(arg.k), column, arg.even, k_rows);
			read_rows(MATRIX_V(arg.v), column, arg.even, v_rows);
			__syncthreads();
			products(q, k_rows, scores);
			products(dy, v_rows, slopes);
#pragma unroll
			for (int n = 0; n < STEPS; n++)
				for (int i = 0; i < 4; i++)
					weigh(arg, column + n * 8 + 2 * Q + i % 2 < seen[i / 2], logs[i / 2], sums[i / 2], scores.at[n][i], slopes.at[n][i]);
			add_product(slopes, k_rows, sum);
		}
		write_rows((float *)arg.dq + at.q, MATRIX_Q(arg.dq), first, sum);
	}
}

FITTING_KERNEL(hr_tensor_keys, hr__k_attend, WARPS * WARP, 2)
{
	alignas(16) __shared__ float q_rows[SIDE][ROW];
	alignas(16) __shared__ float y_rows[SIDE][ROW];
	__shared__ float logs[SIDE], sums[SIDE];
	int64_t first = (int64_t)blockIdx.x * SIDE;
	for (int64_t number = blockIdx.z; number < arg.jobs; number += gridDim.z) {
		attend_offsets at = offsets_of(arg, number);
		int64_t before = arg.causal ? first - (arg.columns - arg.rows) : 0, begin = before > 0 ? before / SIDE * SIDE : 0; // rows that use no key of the tile
		tensor_a k, v;
		tensor_sum of_k = {}, of_v = {};
		keep_rows(MATRIX_K(arg.k), first, arg.even, q_rows, k);
		keep_rows(MATRIX_V(arg.v), first, arg.even, y_rows, v);
		for (int64_t row = begin; row < arg.rows; row += SIDE) {
			tensor_sum scores, slopes;
			__syncthreads();
			read_rows(MATRIX_Q(arg.q), row, arg.even, q_rows);
			read_rows(MATRIX_Y(arg.dy), row, arg.even, y_rows);
			if (threadIdx.x < SIDE) logs[threadIdx.x] = number_of(arg, arg.logs, number, row + threadIdx.x);
			else sums[threadIdx.x - SIDE] = number_of(arg, arg.sums, number, row + threadIdx.x - SIDE);
			__syncthreads();
			products(k, q_rows, scores);
			products(v, y_rows, slopes);
#pragma unroll
			for (int n = 0; n < STEPS; n++)
				for (int i = 0; i < 4; i++) {
					int other = n * 8 + 2 * Q + i % 2;
					int64_t key = first + FIRST_ROW + G + i / 2 * 8;
					bool uses = row + other < arg.rows && key < arg.columns && (!arg.causal || key <= row + other + arg.columns - arg.rows);
					weigh(arg, uses, logs[other], sums[other], scores.at[n][i], slopes.at[n][i]);
				}
			add_product(scores, y_rows, of_v);
			add_product(slopes, q_rows, of_k);
		}
		write_rows((float *)arg.dk + at.k, MATRIX_K(arg.dk), first, of_k);
		write_rows((float *)arg.dv + at.v, MATRIX_V(arg.dv), first, of_v);
	}
}
