// attend_bfloat16.cuh - fused attention of bfloat16 heads of 8, 16 ... 128 numbers, by tensor cores. attend.cuh has the same kernels for all others.
//
// As in FlashAttention-2 (Dao, 2023): a warp has its rows, their scores and its part of the result in registers, in the layouts of the instruction. The four
// warps of a block go over the other side together, one tile at a time, while the next tile is copied to shared memory. A sum is the left operand of the next
// product as it is, after rounding to bfloat16. Gradients are two kernels that each add in one order; both compute the weights again.
//
// Operands of the instruction (mma.sync m16n8k16), with g = lane / 4 and t = lane % 4; a number of 32 bits has two neighbours:
//
//     left, 16 x 16   [0] row g, columns 2t, 2t + 1   [1] row g + 8   [2] columns 2t + 8, 2t + 9   [3] row g + 8, columns 2t + 8, 2t + 9
//     right, 16 x 8   [0] rows 2t, 2t + 1, column g   [1] rows 2t + 8, 2t + 9
//     sum, 16 x 8     as for TF32 (after.cuh)
//
// A row of a tile in shared memory has D numbers in units of 16 bytes. Unit i of row r is at i ^ r % 8, so that eight rows of a column of units are in
// different banks.

#define WARPS 4
#define THREADS (WARPS * WARP)
#define TILE_BYTES 8192 // of one of the two matrices of the other side
#define LOG2_E 1.4426950408889634f

template <int D> struct sizes {
	static const int PARTS = 128 / D;           // of 16 rows, that a warp has
	static const int ROWS = WARPS * PARTS * 16; // of a block
	static const int OTHERS = TILE_BYTES / (2 * D);
	static const int DEEP = D / 16, WIDE = D / 8;
	static const int BYTES = 2 * D; // of a row
};

#define LANE ((int)threadIdx.x % WARP)
#define G (LANE / 4)
#define Q (LANE % 4)
#define FIRST_ROW ((int)threadIdx.x / WARP * sizes<D>::PARTS * 16)

#ifndef HR_HOST_PROGRAM
BOTH uint32_t shared_address(const unsigned char *at) { return (uint32_t)__cvta_generic_to_shared(at); }

BOTH void multiply_add_bfloat16(float *sum, const uint32_t *a, const uint32_t *b)
{
	asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
	    : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
	    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Four matrices of 8 x 8; lane 8 i + r has the address of row r of matrix i.
BOTH void read_matrices(uint32_t *to, const unsigned char *from)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
	    : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(shared_address(from)) : "memory");
}
BOTH void read_transposed(uint32_t *to, const unsigned char *from)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
	    : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(shared_address(from)) : "memory");
}

// Copies to shared memory begin; zeros if it [is] not there.
BOTH void copy_16(unsigned char *to, const void *from, bool is)
{
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" : : "r"(shared_address(to)), "l"(from), "r"(is ? 16 : 0) : "memory");
}
BOTH void copy_4(unsigned char *to, const void *from, bool is)
{
	asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" : : "r"(shared_address(to)), "l"(from), "r"(is ? 4 : 0) : "memory");
}
BOTH void wait_for_copies() { asm volatile("cp.async.wait_all;" : : : "memory"); }

// Rounds two floats to bfloat16.
BOTH uint32_t narrow(float low, float high)
{
	uint32_t out;
	asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
	return out;
}

// 2^x to 22 bits.
BOTH float power_of_2(float x)
{
	float out;
	asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(x));
	return out;
}
#endif

// ---- tiles ----

// A matrix of [count] rows of [width] numbers, [row] apart. Rows are counted in 32 bits.
struct narrow_matrix {
	const uint16_t *at;
	int64_t row;
	int count, width;
};

// Begins to copy rows [first, first + COUNT), padded with zeros.
template <int D, int COUNT> BOTH void copy_rows(const narrow_matrix &of, int first, unsigned char *to)
{
	const int step = THREADS / sizes<D>::WIDE; // rows at a time
	int row = threadIdx.x / sizes<D>::WIDE, unit = threadIdx.x % sizes<D>::WIDE;
	to += row * sizes<D>::BYTES + (unit ^ row % 8) * 16;
	const uint16_t *from = of.at + (int64_t)(first + row) * of.row + unit * 8;
	int left = unit * 8 < of.width ? of.count - first - row : 0;
	for (int i = 0; i < COUNT / step; i++) {
		bool is = i * step < left;
		copy_16(to + i * step * sizes<D>::BYTES, is ? from + i * step * of.row : of.at, is);
	}
}

// The same for a tile of both matrices of the other side.
template <int D> BOTH void copy_tiles(const narrow_matrix &a, const narrow_matrix &b, int first, unsigned char *to)
{
	copy_rows<D, sizes<D>::OTHERS>(a, first, to);
	copy_rows<D, sizes<D>::OTHERS>(b, first, to + TILE_BYTES);
}

// Where a lane begins to read 16 x 16 numbers. Rows of the tile are rows of the left operand (also: of the right one, transposed), or columns of the right.
template <int D> BOTH int lane_of_rows() { return LANE % 16 * sizes<D>::BYTES + (LANE / 16 ^ LANE % 8) * 16; }
template <int D> BOTH int lane_of_columns() { return (LANE % 8 + LANE / 16 * 8) * sizes<D>::BYTES + (LANE / 8 % 2 ^ LANE % 8) * 16; }

// From row 16 [row] and column 16 [column] on.
template <int D> BOTH const unsigned char *place(const unsigned char *tile, int lane, int row, int column)
{
	return tile + (lane ^ column * 32) + row * 16 * sizes<D>::BYTES;
}

// The two neighbours in a number of 32 bits.
BOTH float low_of(uint32_t two) { return __int_as_float((int)(two << 16)); }
BOTH float high_of(uint32_t two) { return __int_as_float((int)(two & 0xffff0000u)); }

// What a warp has of its own rows.
template <int D> struct narrow_rows {
	uint32_t at[sizes<D>::PARTS][sizes<D>::DEEP][4];
};
template <int D> struct narrow_sum {
	float at[sizes<D>::PARTS][sizes<D>::WIDE][4];
};

template <int D> BOTH void take_rows(const unsigned char *from, narrow_rows<D> &to)
{
#pragma unroll
	for (int m = 0; m < sizes<D>::PARTS; m++)
#pragma unroll
		for (int k = 0; k < sizes<D>::DEEP; k++) read_matrices(to.at[m][k], place<D>(from + FIRST_ROW * sizes<D>::BYTES, lane_of_rows<D>(), m, k));
}

// sum = the warp's rows times the transpose of 8 COUNT rows of a tile, from 16 [row] on.
template <int D, int COUNT> BOTH void products(const narrow_rows<D> &a, const unsigned char *tile, int row, float (*sum)[COUNT][4])
{
#pragma unroll
	for (int m = 0; m < sizes<D>::PARTS; m++)
		for (int n = 0; n < COUNT; n++)
			for (int i = 0; i < 4; i++) sum[m][n][i] = 0;
#pragma unroll
	for (int k = 0; k < sizes<D>::DEEP; k++) {
#pragma unroll
		for (int n = 0; n < COUNT; n += 2) {
			uint32_t b[4];
			read_matrices(b, place<D>(tile, lane_of_columns<D>(), row + n / 2, k));
#pragma unroll
			for (int m = 0; m < sizes<D>::PARTS; m++) {
				multiply_add_bfloat16(sum[m][n], a.at[m][k], b);
				multiply_add_bfloat16(sum[m][n + 1], a.at[m][k], b + 2);
			}
		}
	}
}

// to += weights times 8 COUNT rows of a tile, from 16 [row] on.
template <int D, int COUNT> BOTH void add_product(const float (*weights)[COUNT][4], const unsigned char *tile, int row, narrow_sum<D> &to)
{
#pragma unroll
	for (int k = 0; k < COUNT / 2; k++) {
		uint32_t a[sizes<D>::PARTS][4];
#pragma unroll
		for (int m = 0; m < sizes<D>::PARTS; m++)
			for (int i = 0; i < 4; i++) a[m][i] = narrow(weights[m][2 * k + i / 2][i % 2 * 2], weights[m][2 * k + i / 2][i % 2 * 2 + 1]);
#pragma unroll
		for (int n = 0; n < sizes<D>::WIDE; n += 2) {
			uint32_t b[4];
			read_transposed(b, place<D>(tile, lane_of_rows<D>(), row + k, n / 2));
#pragma unroll
			for (int m = 0; m < sizes<D>::PARTS; m++) {
				multiply_add_bfloat16(to.at[m][n], a[m], b);
				multiply_add_bfloat16(to.at[m][n + 1], a[m], b + 2);
			}
		}
	}
}

// ---- blocks ----

#define MATRIX(from, offset, row, count, width) { (const uint16_t *)(from) + (offset), row, (int)(count), (int)(width) }
#define MATRIX_Q(from) MATRIX(from, at.q, arg.q_row, arg.rows, arg.width)
#define MATRIX_K(from) MATRIX(from, at.k, arg.k_row, arg.columns, arg.width)
#define MATRIX_V(from) MATRIX(from, at.v, arg.v_row, arg.columns, arg.value_width)
#define MATRIX_Y(from) MATRIX(from, at.y, arg.y_row, arg.rows, arg.value_width)

// The tile of a block, of [count] rows in tiles, and its head. Blocks of all heads that take longest come first.
struct narrow_place {
	int first;
	int64_t number;
};
template <int D> BOTH narrow_place place_of(const hr__k_attend &arg, int64_t count, bool last_first)
{
	int tile = (int)quotient(blockIdx.x, arg.jobs), tiles = (int)((count + sizes<D>::ROWS - 1) / sizes<D>::ROWS);
	narrow_place out = { (last_first ? tiles - 1 - tile : tile) * sizes<D>::ROWS, (int64_t)blockIdx.x - tile * arg.jobs };
	return out;
}

// The number of keys that a row uses, and that any of [count] rows from [first] on uses.
BOTH int keys_of(const hr__k_attend &arg, int row)
{
	int columns = (int)arg.columns, seen = row + columns - (int)arg.rows + 1;
	return arg.causal && seen < columns ? seen : columns;
}
BOTH int keys_of_rows(const hr__k_attend &arg, int first, int count)
{
	int rows = (int)arg.rows;
	return keys_of(arg, (first + count < rows ? first + count : rows) - 1);
}

// Writes the warp's rows of a matrix like [like], times [factor].
template <int D> BOTH void write_rows(uint16_t *to, const narrow_matrix &like, int first, const narrow_sum<D> &of, float factor)
{
#pragma unroll
	for (int m = 0; m < sizes<D>::PARTS; m++)
#pragma unroll
		for (int half = 0; half < 2; half++) {
			int row = first + FIRST_ROW + m * 16 + half * 8 + G;
			if (row >= like.count) continue;
#pragma unroll
			for (int n = 0; n < sizes<D>::WIDE; n++)
				if (n * 8 < like.width)
					*(uint32_t *)(to + row * like.row + n * 8 + 2 * Q) = narrow(of.at[m][n][2 * half] * factor, of.at[m][n][2 * half + 1] * factor);
		}
}

// ---- forward ----

// What is known of a row of scores: the largest, and the sum of the exponentials of this thread's.
template <int D> struct narrow_totals {
	float most[sizes<D>::PARTS][2], total[sizes<D>::PARTS][2];
};

// Scores become weights; the sum so far is multiplied by what a larger score makes of it. [factor] is of the exponents of 2, and above 0.
template <int D>
BOTH void weigh_scores(float factor, float (*scores)[sizes<D>::OTHERS / 8][4], narrow_totals<D> &rows, narrow_sum<D> &sum)
{
#pragma unroll
	for (int m = 0; m < sizes<D>::PARTS; m++) {
#pragma unroll
		for (int half = 0; half < 2; half++) {
			float now = rows.most[m][half];
#pragma unroll
			for (int n = 0; n < sizes<D>::OTHERS / 8; n++) now = fmaxf(now, fmaxf(scores[m][n][2 * half], scores[m][n][2 * half + 1]));
			now = quad_join(now, larger_of());
			float shift = now == -INFINITY ? 0 : now * factor, keep = power_of_2(madd(rows.most[m][half], factor, -shift)), total = 0;
			rows.most[m][half] = now;
#pragma unroll
			for (int n = 0; n < sizes<D>::OTHERS / 8; n++)
				for (int i = 2 * half; i < 2 * half + 2; i++) {
					scores[m][n][i] = power_of_2(madd(scores[m][n][i], factor, -shift));
					total += scores[m][n][i];
				}
			rows.total[m][half] = madd(rows.total[m][half], keep, total);
#pragma unroll
			for (int n = 0; n < sizes<D>::WIDE; n++)
				for (int i = 2 * half; i < 2 * half + 2; i++) sum.at[m][n][i] *= keep;
		}
	}
}

// Scores of keys that a row does not use become minus infinity.
template <int D> BOTH void hide_scores(const hr__k_attend &arg, int row, int column, float (*scores)[sizes<D>::OTHERS / 8][4])
{
#pragma unroll
	for (int m = 0; m < sizes<D>::PARTS; m++)
		for (int half = 0; half < 2; half++) {
			int uses = keys_of(arg, row + m * 16 + half * 8 + G) - column - 2 * Q; // counted from the thread's first
#pragma unroll
			for (int n = 0; n < sizes<D>::OTHERS / 8; n++)
				for (int i = 0; i < 2; i++)
					if (n * 8 + i >= uses) scores[m][n][2 * half + i] = -INFINITY;
		}
}

template <int D> BOTH void attend_rows(const hr__k_attend &arg, unsigned char *memory)
{
	narrow_place place = place_of<D>(arg, arg.rows, true);
	attend_offsets at = offsets_of(arg, place.number);
	const narrow_matrix matrix_q = MATRIX_Q(arg.q), matrix_k = MATRIX_K(arg.k), matrix_v = MATRIX_V(arg.v), matrix_y = MATRIX_Y(arg.out);
	int row = place.first + FIRST_ROW, end = keys_of_rows(arg, place.first, sizes<D>::ROWS), warp_end = keys_of_rows(arg, row, sizes<D>::PARTS * 16);
	// Weights depend on factor * score. The largest score has the largest weight if the factor is above 0; scores of -infinity have none if it is not 0.
	float factor = fmaxf(fabsf((float)arg.scale) * LOG2_E, 1e-37f);
	unsigned char *now = memory, *next = memory + 2 * TILE_BYTES;
	narrow_rows<D> q;
	narrow_sum<D> sum = {};
	narrow_totals<D> rows;
	for (int m = 0; m < sizes<D>::PARTS; m++)
		for (int half = 0; half < 2; half++) {
			rows.most[m][half] = -INFINITY;
			rows.total[m][half] = 0;
		}
	copy_rows<D, sizes<D>::ROWS>(matrix_q, place.first, next);
	copy_tiles<D>(matrix_k, matrix_v, 0, now);
	wait_for_copies();
	__syncthreads();
	take_rows<D>(next, q);
	for (int m = 0; m < sizes<D>::PARTS; m++)
		for (int k = 0; k < sizes<D>::DEEP; k++)
			for (int i = 0; i < 4 && arg.scale < 0; i++) q.at[m][k][i] ^= 0x80008000u;
	for (int column = 0; column < end; column += sizes<D>::OTHERS) {
		wait_for_copies();
		__syncthreads();
		if (column + sizes<D>::OTHERS < end) copy_tiles<D>(matrix_k, matrix_v, column + sizes<D>::OTHERS, next);
		if (column < warp_end) {
			float scores[sizes<D>::PARTS][sizes<D>::OTHERS / 8][4];
			products<D, sizes<D>::OTHERS / 8>(q, now, 0, scores);
			if (column + sizes<D>::OTHERS > keys_of(arg, row)) hide_scores<D>(arg, row, column, scores);
			weigh_scores<D>(factor, scores, rows, sum);
			add_product<D, sizes<D>::OTHERS / 8>(scores, now + TILE_BYTES, 0, sum);
		}
		unsigned char *other = now;
		now = next;
		next = other;
	}
#pragma unroll
	for (int m = 0; m < sizes<D>::PARTS; m++)
#pragma unroll
		for (int half = 0; half < 2; half++) {
			float total = quad_join(rows.total[m][half], plus_of()), share = total == 0 ? 0 : 1 / total;
			int of = row + m * 16 + half * 8 + G;
			for (int n = 0; n < sizes<D>::WIDE; n++)
				for (int i = 2 * half; i < 2 * half + 2; i++) sum.at[m][n][i] *= share;
			if (Q == 0 && of < arg.rows) ((float *)arg.out_logs)[place.number * arg.rows + of] = (rows.most[m][half] * factor) / LOG2_E + logf(total);
		}
	write_rows<D>((uint16_t *)arg.out + at.y, matrix_y, place.first, sum, 1);
}

// ---- backward ----

// The warp's rows of a matrix, from global memory.
template <int D> BOTH void read_own_rows(const narrow_matrix &of, int first, narrow_rows<D> &to)
{
#pragma unroll
	for (int m = 0; m < sizes<D>::PARTS; m++)
#pragma unroll
		for (int k = 0; k < sizes<D>::DEEP; k++)
			for (int i = 0; i < 4; i++) {
				int row = first + FIRST_ROW + m * 16 + i % 2 * 8 + G, column = k * 16 + i / 2 * 8;
				to.at[m][k][i] = row < of.count && column < of.width ? *(const uint32_t *)(of.at + row * of.row + column + 2 * Q) : 0;
			}
}

// Of each row: the sum of a b.
template <int D> BOTH void sum_rows(const narrow_rows<D> &a, const narrow_rows<D> &b, float (*sums)[2])
{
#pragma unroll
	for (int m = 0; m < sizes<D>::PARTS; m++)
		for (int half = 0; half < 2; half++) {
			float sum = 0;
#pragma unroll
			for (int k = 0; k < sizes<D>::DEEP; k++)
				for (int i = half; i < 4; i += 2) {
					sum = madd(low_of(a.at[m][k][i]), low_of(b.at[m][k][i]), sum);
					sum = madd(high_of(a.at[m][k][i]), high_of(b.at[m][k][i]), sum);
				}
			sums[m][half] = quad_join(sum, plus_of());
		}
}

// The weight of a key for a row, and the gradient of its score without the scale. [factor] and [log] are of exponents of 2.
BOTH void weigh_again(float factor, float log, float less, float &score, float &slope)
{
	score = power_of_2(madd(score, factor, -log));
	slope = score * (slope - less);
}

#define KEYS_AT_ONCE 32 // in query_gradients
#define ROWS_AT_ONCE 16 // in key_gradients

// Also gives the sums of dy y, which the other gradients need.
template <int D> BOTH void query_gradients(const hr__k_attend &arg, unsigned char *memory)
{
	narrow_place place = place_of<D>(arg, arg.rows, true);
	attend_offsets at = offsets_of(arg, place.number);
	const narrow_matrix matrix_q = MATRIX_Q(arg.q), matrix_k = MATRIX_K(arg.k), matrix_v = MATRIX_V(arg.v);
	const narrow_matrix matrix_y = MATRIX_Y(arg.y), matrix_dy = MATRIX_Y(arg.dy);
	int row = place.first + FIRST_ROW, end = keys_of_rows(arg, place.first, sizes<D>::ROWS), warp_end = keys_of_rows(arg, row, sizes<D>::PARTS * 16);
	float factor = (float)arg.scale * LOG2_E, logs[sizes<D>::PARTS][2], sums[sizes<D>::PARTS][2];
	unsigned char *now = memory, *next = memory + 2 * TILE_BYTES, *third = memory + 4 * TILE_BYTES;
	narrow_rows<D> q, dy;
	narrow_sum<D> sum = {};
	copy_rows<D, sizes<D>::ROWS>(matrix_q, place.first, next);
	copy_rows<D, sizes<D>::ROWS>(matrix_dy, place.first, third);
	copy_tiles<D>(matrix_k, matrix_v, 0, now);
	read_own_rows<D>(matrix_y, place.first, q);
	wait_for_copies();
	__syncthreads();
	take_rows<D>(third, dy);
	sum_rows<D>(q, dy, sums);
	take_rows<D>(next, q);
	for (int m = 0; m < sizes<D>::PARTS; m++)
		for (int half = 0; half < 2; half++) {
			int of = row + m * 16 + half * 8 + G;
			int64_t number = place.number * arg.rows + of;
			logs[m][half] = of < arg.rows ? ((const float *)arg.logs)[number] * LOG2_E : 0;
			if (Q == 0 && of < arg.rows) ((float *)arg.sums)[number] = sums[m][half];
		}
	for (int column = 0; column < end; column += sizes<D>::OTHERS) {
		wait_for_copies();
		__syncthreads();
		if (column + sizes<D>::OTHERS < end) copy_tiles<D>(matrix_k, matrix_v, column + sizes<D>::OTHERS, next);
#pragma unroll 1
		for (int some = 0; some < sizes<D>::OTHERS; some += KEYS_AT_ONCE) {
			if (column + some >= warp_end) break;
			float scores[sizes<D>::PARTS][KEYS_AT_ONCE / 8][4], slopes[sizes<D>::PARTS][KEYS_AT_ONCE / 8][4];
			products<D, KEYS_AT_ONCE / 8>(q, now, some / 16, scores);
			products<D, KEYS_AT_ONCE / 8>(dy, now + TILE_BYTES, some / 16, slopes);
			bool hides = column + some + KEYS_AT_ONCE > keys_of(arg, row);
#pragma unroll
			for (int m = 0; m < sizes<D>::PARTS; m++)
#pragma unroll
				for (int half = 0; half < 2; half++) {
					int uses = keys_of(arg, row + m * 16 + half * 8 + G) - column - some - 2 * Q;
#pragma unroll
					for (int n = 0; n < KEYS_AT_ONCE / 8; n++)
						for (int i = 0; i < 2; i++) {
							float &score = scores[m][n][2 * half + i], &slope = slopes[m][n][2 * half + i];
							weigh_again(factor, logs[m][half], sums[m][half], score, slope);
							if (hides && n * 8 + i >= uses) slope = 0;
						}
				}
			add_product<D, KEYS_AT_ONCE / 8>(slopes, now, some / 16, sum);
		}
		unsigned char *other = now;
		now = next;
		next = other;
	}
	write_rows<D>((uint16_t *)arg.dq + at.q, matrix_q, place.first, sum, (float)arg.scale);
}

#define NUMBERS_BYTES (4 * THREADS) // logs and sums of a tile of rows

template <int D> BOTH void copy_numbers(const hr__k_attend &arg, int64_t number, int row, unsigned char *to)
{
	int i = threadIdx.x % (THREADS / 2);
	const float *from = (const float *)((int)threadIdx.x < THREADS / 2 ? arg.logs : arg.sums);
	bool is = i < sizes<D>::OTHERS && row + i < arg.rows;
	copy_4(to + threadIdx.x * 4, is ? from + number * arg.rows + row + i : from, is);
}

template <int D> BOTH void key_gradients(const hr__k_attend &arg, unsigned char *memory)
{
	narrow_place place = place_of<D>(arg, arg.columns, false);
	attend_offsets at = offsets_of(arg, place.number);
	const narrow_matrix matrix_q = MATRIX_Q(arg.q), matrix_k = MATRIX_K(arg.k), matrix_v = MATRIX_V(arg.v), matrix_dy = MATRIX_Y(arg.dy);
	int rows = (int)arg.rows, more = (int)arg.columns - rows, key = place.first + FIRST_ROW;
	int before = arg.causal ? place.first - more : 0, begin = before > 0 ? before / sizes<D>::OTHERS * sizes<D>::OTHERS : 0; // rows that use no key of the tile
	float factor = (float)arg.scale * LOG2_E;
	unsigned char *now = memory, *next = memory + 2 * TILE_BYTES, *third = memory + 4 * TILE_BYTES; // which has numbers later
	unsigned char *numbers_now = third, *numbers_next = third + NUMBERS_BYTES;
	narrow_rows<D> k, v;
	narrow_sum<D> of_k = {}, of_v = {};
	copy_rows<D, sizes<D>::ROWS>(matrix_k, place.first, next);
	copy_rows<D, sizes<D>::ROWS>(matrix_v, place.first, third);
	copy_tiles<D>(matrix_q, matrix_dy, begin, now);
	wait_for_copies();
	__syncthreads();
	take_rows<D>(next, k);
	take_rows<D>(third, v);
	__syncthreads();
	copy_numbers<D>(arg, place.number, begin, numbers_now);
	for (int row = begin; row < rows; row += sizes<D>::OTHERS) {
		wait_for_copies();
		__syncthreads();
		if (row + sizes<D>::OTHERS < rows) {
			copy_tiles<D>(matrix_q, matrix_dy, row + sizes<D>::OTHERS, next);
			copy_numbers<D>(arg, place.number, row + sizes<D>::OTHERS, numbers_next);
		}
#pragma unroll 1
		for (int some = 0; some < sizes<D>::OTHERS; some += ROWS_AT_ONCE) {
			int last = row + some + ROWS_AT_ONCE - 1 + more; // key that is used
			if (arg.causal && last < key) continue;
			bool hides = arg.causal && last - (ROWS_AT_ONCE - 1) < key + sizes<D>::PARTS * 16 - 1;
			float scores[sizes<D>::PARTS][ROWS_AT_ONCE / 8][4], slopes[sizes<D>::PARTS][ROWS_AT_ONCE / 8][4];
			products<D, ROWS_AT_ONCE / 8>(k, now, some / 16, scores);
			products<D, ROWS_AT_ONCE / 8>(v, now + TILE_BYTES, some / 16, slopes);
			const float *logs = (const float *)numbers_now + some + 2 * Q, *sums = logs + THREADS / 2;
#pragma unroll
			for (int n = 0; n < ROWS_AT_ONCE / 8; n++) {
				float log[2] = { logs[n * 8] * LOG2_E, logs[n * 8 + 1] * LOG2_E }, less[2] = { sums[n * 8], sums[n * 8 + 1] };
#pragma unroll
				for (int m = 0; m < sizes<D>::PARTS; m++)
					for (int i = 0; i < 4; i++) weigh_again(factor, log[i % 2], less[i % 2], scores[m][n][i], slopes[m][n][i]);
			}
			if (hides) {
				int first = key - row - some - more + G - 2 * Q;
#pragma unroll
				for (int m = 0; m < sizes<D>::PARTS; m++)
					for (int n = 0; n < ROWS_AT_ONCE / 8; n++)
						for (int i = 0; i < 4; i++)
							if (first + m * 16 + i / 2 * 8 > n * 8 + i % 2) scores[m][n][i] = slopes[m][n][i] = 0;
			}
			add_product<D, ROWS_AT_ONCE / 8>(scores, now + TILE_BYTES, some / 16, of_v);
			add_product<D, ROWS_AT_ONCE / 8>(slopes, now, some / 16, of_k);
		}
		unsigned char *other = now, *numbers_other = numbers_now;
		now = next;
		next = other;
		numbers_now = numbers_next;
		numbers_next = numbers_other;
	}
	write_rows<D>((uint16_t *)arg.dk + at.k, matrix_k, place.first, of_k, (float)arg.scale);
	write_rows<D>((uint16_t *)arg.dv + at.v, matrix_v, place.first, of_v, 1);
}

#define NARROW_KERNEL(name, body, D, tiles)                                   \
	FITTING_KERNEL(hr_narrow_##name##_##D, hr__k_attend, THREADS, 2)          \
	{                                                                         \
		alignas(1024) __shared__ unsigned char memory[(tiles) * TILE_BYTES];  \
		body<D>(arg, memory);                                                 \
	}
NARROW_KERNEL(attend, attend_rows, 64, 4)
NARROW_KERNEL(attend, attend_rows, 128, 4)
NARROW_KERNEL(queries, query_gradients, 64, 6)
NARROW_KERNEL(queries, query_gradients, 128, 6)
NARROW_KERNEL(keys, key_gradients, 64, 6)
NARROW_KERNEL(keys, key_gradients, 128, 6)
