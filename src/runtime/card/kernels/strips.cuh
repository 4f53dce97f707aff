// strips.cuh - copies of rows to rows of another length, and additions of a bias to rows. Rows need not begin at a multiple of anything, so a thread reads
// and writes single elements; those of a warp are neighbours.

#define EACH 8 // elements of a thread, which are read before one is written

#if HR_DTYPE == 7
BOTH T plus(T a, T b) { return hr__bfloat16_of_f32(hr__bfloat16_to_f32(a) + hr__bfloat16_to_f32(b)); }
#else
BOTH T plus(T a, T b) { return a + b; }
#endif

KERNEL(hr_strips, hr__k_strip)
{
	int64_t chunks = (arg.to_columns + EACH * BLOCK - 1) / (EACH * BLOCK);
	for (int64_t item = blockIdx.x; item < arg.rows * chunks; item += gridDim.x) {
		int64_t row = quotient(item, chunks), first = (item - row * chunks) * (EACH * BLOCK) + threadIdx.x;
		const T *from = (const T *)arg.from + row * arg.from_row;
		T *to = (T *)arg.to + row * arg.to_row, x[EACH];
		for (int k = 0; k < EACH; k++) {
			int64_t column = first + k * BLOCK;
			x[k] = column < arg.columns ? from[column] : (T)0;
			if (arg.bias && column < arg.columns) x[k] = plus(x[k], ((const T *)arg.bias)[column]);
		}
		for (int k = 0; k < EACH; k++)
			if (first + k * BLOCK < arg.to_columns) to[first + k * BLOCK] = x[k];
	}
}
