// attend.cuh - fused attention and its gradients. ops_attend.c has the formulas. The matrix of scores is never in memory.
//
// A block computes TILE rows of a head (in hr_attend_keys: keys), and up to TILE columns of the result, going over the other side TILE at a time. Each
// thread has R x R elements of every tile: rows y * R + i, columns x * R + j. A gradient is added by one block, in order, so no atomics are needed; the
// weights are computed again for the gradient of q, and for those of k and v.

#if HR_DTYPE == 2
#define R 2 // twice the bytes
#else
#define R 4
#endif

// V: what is computed in, and what sums and logarithms are.
#if HR_DTYPE == 7
typedef float V;
BOTH V wide(T x) { return hr__bfloat16_to_f32(x); }
BOTH T fitting(V x) { return hr__bfloat16_of_f32(x); }
#else
typedef T V;
BOTH V wide(T x) { return x; }
BOTH T fitting(V x) { return x; }
#endif

#define SIDE 16
#define TILE (SIDE * R)
#define DEEP 32

struct alignas(16) attend_tiles {
	V left[TILE][TILE + 4];              // weights, transposed: [column][row]
	union {
		V rows[TILE][TILE + 4];          // what they are multiplied with
		V both[2][DEEP][TILE + 4];       // parts of two matrices, transposed: [k][row]
	};
};

// A matrix of [count] rows.
struct attend_matrix {
	const T *at;
	int64_t row, count;
};

#define THREAD_X ((int)threadIdx.x % SIDE)
#define THREAD_Y ((int)threadIdx.x / SIDE)

// Numbers [k, k + DEEP) of rows [first, first + TILE), transposed.
BOTH void read_part(const attend_matrix &of, int64_t first, int64_t k, int64_t depth, V (*to)[TILE + 4])
{
	for (int i = threadIdx.x; i < TILE * DEEP; i += BLOCK) {
		int64_t row = first + i / DEEP, column = k + i % DEEP;
		to[i % DEEP][i / DEEP] = row < of.count && column < depth ? wide(of.at[row * of.row + column]) : (V)0;
	}
}

// out[i][j] = the product of row first_a + i of a and row first_b + j of b.
BOTH void products(attend_tiles &tiles, const attend_matrix &a, int64_t first_a, const attend_matrix &b, int64_t first_b, int64_t depth, V (*out)[R])
{
	for (int i = 0; i < R; i++)
		for (int j = 0; j < R; j++) out[i][j] = 0;
	for (int64_t k = 0; k < depth; k += DEEP) {
		__syncthreads();
		read_part(a, first_a, k, depth, tiles.both[0]);
		read_part(b, first_b, k, depth, tiles.both[1]);
		__syncthreads();
#pragma unroll 8
		for (int d = 0; d < DEEP; d++) {
			V left[R], right[R];
			read_shared<R>(&tiles.both[0][d][THREAD_Y * R], left);
			read_shared<R>(&tiles.both[1][d][THREAD_X * R], right);
			for (int i = 0; i < R; i++)
				for (int j = 0; j < R; j++) out[i][j] = madd(left[i], right[j], out[i][j]);
		}
	}
}

// to[i][j] += weights (rows of this tile by TILE others) times columns [column, column + TILE) of rows [first, first + TILE) of b.
BOTH void add_product(attend_tiles &tiles, const V (*weights)[R], const attend_matrix &b, int64_t first, int64_t column, int64_t width, V (*to)[R])
{
	__syncthreads();
	for (int i = 0; i < R; i++)
		for (int j = 0; j < R; j++) tiles.left[THREAD_X * R + j][THREAD_Y * R + i] = weights[i][j];
	for (int i = threadIdx.x; i < TILE * TILE; i += BLOCK) {
		int64_t row = first + i / TILE, at = column + i % TILE;
		tiles.rows[i / TILE][i % TILE] = row < b.count && at < width ? wide(b.at[row * b.row + at]) : (V)0;
	}
	__syncthreads();
#pragma unroll 8
	for (int d = 0; d < TILE; d++) {
		V left[R], right[R];
		read_shared<R>(&tiles.left[d][THREAD_Y * R], left);
		read_shared<R>(&tiles.rows[d][THREAD_X * R], right);
		for (int i = 0; i < R; i++)
			for (int j = 0; j < R; j++) to[i][j] = madd(left[i], right[j], to[i][j]);
	}
}

BOTH void write_rows(T *to, int64_t row_step, int64_t first, int64_t count, int64_t column, int64_t width, const V (*of)[R])
{
	for (int i = 0; i < R; i++) {
		int64_t row = first + THREAD_Y * R + i;
		for (int j = 0; j < R; j++) {
			int64_t at = column + THREAD_X * R + j;
			if (row < count && at < width) to[row * row_step + at] = fitting(of[i][j]);
		}
	}
}

// Joins what the SIDE threads of a row have: half a warp.
template <class F> BOTH V row_join(V x, F join)
{
	for (int k = SIDE / 2; k; k /= 2) x = join(x, __shfl_xor_sync(0xffffffffu, x, k));
	return x;
}

struct attend_head {
	attend_matrix q, k, v, y, dy;
	attend_offsets begin;
};

BOTH attend_head head_of(const hr__k_attend &arg, int64_t number)
{
	attend_offsets at = offsets_of(arg, number);
	attend_head out = { { (const T *)arg.q + at.q, arg.q_row, arg.rows },
		                { (const T *)arg.k + at.k, arg.k_row, arg.columns },
		                { (const T *)arg.v + at.v, arg.v_row, arg.columns },
		                { (const T *)arg.y + at.y, arg.y_row, arg.rows },
		                { (const T *)arg.dy + at.y, arg.y_row, arg.rows },
		                at };
	return out;
}

// The place of a block: x counts tiles of rows, y parts of the width, z heads.
#define EACH_HEAD(head) int64_t head = blockIdx.z; head < arg.jobs; head += gridDim.z

KERNEL(hr_attend, hr__k_attend)
{
	__shared__ attend_tiles tiles;
	int64_t first = (int64_t)(gridDim.x - 1 - blockIdx.x) * TILE, part = (int64_t)blockIdx.y * TILE; // the longest rows first
	for (EACH_HEAD(number)) {
		attend_head head = head_of(arg, number);
		int64_t last = first + TILE < arg.rows ? first + TILE : arg.rows, end = seen_by(arg, last - 1);
		V sum[R][R] = {}, most[R], total[R] = {};
		for (int i = 0; i < R; i++) most[i] = -INFINITY;
		for (int64_t column = 0; column < end; column += TILE) {
			V scores[R][R];
			products(tiles, head.q, first, head.k, column, arg.width, scores);
			for (int i = 0; i < R; i++) {
				int64_t seen = seen_by(arg, first + THREAD_Y * R + i);
				V now = most[i];
				for (int j = 0; j < R; j++) {
					scores[i][j] = column + THREAD_X * R + j < seen && column + THREAD_X * R + j < arg.columns ? scores[i][j] * (V)arg.scale : (V)-INFINITY;
					if (scores[i][j] > now) now = scores[i][j];
				}
				now = row_join(now, larger_of());
				V shift = now == -INFINITY ? (V)0 : now, keep = exp(most[i] - shift);
				total[i] *= keep;
				for (int j = 0; j < R; j++) {
					scores[i][j] = exp(scores[i][j] - shift);
					total[i] += scores[i][j];
					sum[i][j] *= keep;
				}
				most[i] = now;
			}
			add_product(tiles, scores, head.v, column, part, arg.value_width, sum);
		}
		for (int i = 0; i < R; i++) {
			int64_t row = first + THREAD_Y * R + i;
			total[i] = row_join(total[i], plus_of());
			V share = total[i] == 0 ? (V)0 : 1 / total[i];
			for (int j = 0; j < R; j++) sum[i][j] *= share;
			if (THREAD_X == 0 && part == 0 && row < arg.rows) ((V *)arg.out_logs)[number * arg.rows + row] = most[i] + log(total[i]);
		}
		write_rows((T *)arg.out + head.begin.y, arg.y_row, first, arg.rows, part, arg.value_width, sum);
	}
}

// sums: of dy y, for each row of each head.
KERNEL(hr_attend_sums, hr__k_attend)
{
	for (GROUPS(WARP, item, arg.jobs * arg.rows)) {
		int64_t number = quotient(item, arg.rows), row = item - number * arg.rows;
		attend_head head = head_of(arg, number);
		double sum = 0;
		for (int64_t i = MEMBER(WARP); i < arg.value_width; i += WARP) sum += (double)wide(head.dy.at[row * arg.y_row + i]) * (double)wide(head.y.at[row * arg.y_row + i]);
		sum = group_sum<WARP>(sum);
		if (MEMBER(WARP) == 0) ((V *)arg.sums)[item] = (V)sum;
	}
}

// The weight of a key for a row, and the gradient of its score; 0 if the row does not use the key.
BOTH void weigh(const hr__k_attend &arg, int64_t number, int64_t row, int64_t key, V &score, V &slope)
{
	if (row >= arg.rows || key >= arg.columns || key >= seen_by(arg, row)) {
		score = slope = 0;
		return;
	}
	score = exp(score * (V)arg.scale - ((const V *)arg.logs)[number * arg.rows + row]);
	slope = score * (slope - ((const V *)arg.sums)[number * arg.rows + row]) * (V)arg.scale;
}

KERNEL(hr_attend_queries, hr__k_attend)
{
	__shared__ attend_tiles tiles;
	int64_t first = (int64_t)(gridDim.x - 1 - blockIdx.x) * TILE, part = (int64_t)blockIdx.y * TILE;
	for (EACH_HEAD(number)) {
		attend_head head = head_of(arg, number);
		int64_t last = first + TILE < arg.rows ? first + TILE : arg.rows, end = seen_by(arg, last - 1);
		V sum[R][R] = {};
		for (int64_t column = 0; column < end; column += TILE) {
			V scores[R][R], slopes[R][R];
			products(tiles, head.q, first, head.k, column, arg.width, scores);
			products(tiles, head.dy, first, head.v, column, arg.value_width, slopes);
			for (int i = 0; i < R; i++)
				for (int j = 0; j < R; j++) weigh(arg, number, first + THREAD_Y * R + i, column + THREAD_X * R + j, scores[i][j], slopes[i][j]);
			add_product(tiles, slopes, head.k, column, part, arg.width, sum);
		}
		write_rows((T *)arg.dq + head.begin.q, arg.q_row, first, arg.rows, part, arg.width, sum);
	}
}

KERNEL(hr_attend_keys, hr__k_attend)
{
	__shared__ attend_tiles tiles;
	int64_t first = (int64_t)blockIdx.x * TILE, part = (int64_t)blockIdx.y * TILE;
	for (EACH_HEAD(number)) {
		attend_head head = head_of(arg, number);
		int64_t before = arg.causal ? first - (arg.columns - arg.rows) : 0, begin = before > 0 ? before / TILE * TILE : 0; // rows that use no key of the tile
		V of_k[R][R] = {}, of_v[R][R] = {};
		for (int64_t row = begin; row < arg.rows; row += TILE) {
			V scores[R][R], slopes[R][R];
			products(tiles, head.k, first, head.q, row, arg.width, scores);
			products(tiles, head.v, first, head.dy, row, arg.value_width, slopes);
			for (int i = 0; i < R; i++)
				for (int j = 0; j < R; j++) weigh(arg, number, row + THREAD_X * R + j, first + THREAD_Y * R + i, scores[i][j], slopes[i][j]);
			add_product(tiles, scores, head.dy, row, part, arg.value_width, of_v);
			add_product(tiles, slopes, head.q, row, part, arg.width, of_k);
		}
		write_rows((T *)arg.dk + head.begin.k, arg.k_row, first, arg.columns, part, arg.width, of_k);
		write_rows((T *)arg.dv + head.begin.v, arg.v_row, first, arg.columns, part, arg.value_width, of_v);
	}
}
