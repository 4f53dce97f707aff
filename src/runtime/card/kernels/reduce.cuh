// reduce.cuh - sums, means and maxima along dimensions.
//
//     rows      the reduced elements are neighbours: a group of threads for each result, and each block of its elements
//     columns   the results are: a warp for each 32 or 32 N of them, eight such warps add rows of a block of rows
//     join      joins the results of blocks
//
// Floats are added in double. How many blocks there are depends on the shape alone.

#define ROW_WARPS (BLOCK / WARP)

#if IS_FLOAT
struct sum_of {
	typedef double A;
	static BOTH A first() { return 0; }
	static BOTH A join(A a, A b) { return a + b; }
	BOTH A operator()(A a, A b) const { return a + b; }
};
struct max_of {
	typedef T A;
	static BOTH A first() { return LOWEST; }
	static BOTH A join(A a, A b) { return b > a || b != b ? b : a; } // NaN wins
	BOTH A operator()(A a, A b) const { return join(a, b); }
};
template <class A> BOTH T result(const hr__k_reduce &arg, A x)
{
	return (T)((double)x / arg.divisor);
}
#else
struct sum_of {
	typedef uint64_t A; // wraps around
	static BOTH A first() { return 0; }
	static BOTH A join(A a, A b) { return a + b; }
	BOTH A operator()(A a, A b) const { return a + b; }
};
struct max_of {
	typedef T A;
	static BOTH A first() { return (T)LOWEST; }
	static BOTH A join(A a, A b) { return b > a ? b : a; }
	BOTH A operator()(A a, A b) const { return join(a, b); }
};
template <class A> BOTH T result(const hr__k_reduce &, A x)
{
	return (T)x;
}
#endif

template <class J> BOTH void put(const hr__k_reduce &arg, int64_t at, typename J::A x)
{
	if (arg.blocks == 1) ((T *)arg.out)[at] = result(arg, x);
	else *(typename J::A *)((uint64_t *)arg.partials + at) = x;
}

BOTH int64_t end_of(const hr__k_reduce &arg, int64_t begin)
{
	return begin + arg.each < arg.many ? begin + arg.each : arg.many;
}

template <class J, int M> BOTH void add_pack(const hr__k_reduce &arg, int64_t at, typename J::A &all)
{
	pack<T, M> x = load_as<M>(arg.in, at, arg.narrow);
	for (int k = 0; k < M; k++) all = J::join(all, (typename J::A)x.at[k]);
}

// Elements [i, end) of a row at [base], [stride] apart. Those of one dimension are most rows: that loop is unrolled, so that several loads are under way.
template <class J, int M> BOTH void add_elements(const hr__k_reduce &arg, int64_t base, int64_t i, int64_t end, int stride, typename J::A &all)
{
	if (arg.gone.rank == 1) {
		int64_t step = arg.gone.step[0];
#pragma unroll 4
		for (; i < end; i += stride) add_pack<J, M>(arg, base + i * step, all);
		return;
	}
#pragma unroll 1
	for (; i < end; i += stride) add_pack<J, M>(arg, base + offset_of(arg.gone, i), all);
}

template <class J, int GROUP, int M> BOTH void rows(const hr__k_reduce &arg)
{
	for (GROUPS(GROUP, item, arg.outer * arg.blocks)) {
		int64_t row = quotient(item, arg.blocks), begin = (item - row * arg.blocks) * arg.each, end = end_of(arg, begin), base = offset_of(arg.kept, row);
		typename J::A all = J::first();
		add_elements<J, M>(arg, base, begin + MEMBER(GROUP) * M, end, GROUP * M, all);
		all = group_join<GROUP>(all, J());
		if (MEMBER(GROUP) == 0) put<J>(arg, item, all);
	}
}

template <class J, int M> BOTH void add_row(const hr__k_reduce &arg, int64_t at, typename J::A *all)
{
	pack<T, M> x = load_as<M>(arg.in, at, arg.narrow);
	for (int k = 0; k < M; k++) all[k] = J::join(all[k], (typename J::A)x.at[k]);
}

// Rows [i, end) of M columns at [base]. As for elements, the loop over one dimension is unrolled.
template <class J, int M> BOTH void add_rows(const hr__k_reduce &arg, int64_t base, int64_t i, int64_t end, typename J::A *all)
{
	if (arg.gone.rank == 1) {
		int64_t step = arg.gone.step[0];
#pragma unroll 4
		for (; i < end; i += ROW_WARPS) add_row<J, M>(arg, base + i * step, all);
		return;
	}
#pragma unroll 1
	for (; i < end; i += ROW_WARPS) add_row<J, M>(arg, base + offset_of(arg.gone, i), all);
}

// The order of additions is the same for each M.
template <class J, int M> BOTH void columns(const hr__k_reduce &arg)
{
	__shared__ typename J::A sums[ROW_WARPS][M][WARP];
	int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
	int64_t chunks = (arg.inner + WARP * M - 1) / (WARP * M);
	for (int64_t item = blockIdx.x; item < arg.outer * arg.blocks * chunks; item += gridDim.x) {
		int64_t row = quotient(item, chunks), column = ((item - row * chunks) * WARP + lane) * M, outer = quotient(row, arg.blocks);
		int64_t begin = (row - outer * arg.blocks) * arg.each, end = end_of(arg, begin), base = offset_of(arg.kept, outer) + column;
		typename J::A all[M];
		for (int k = 0; k < M; k++) all[k] = J::first();
		if (column < arg.inner) add_rows<J, M>(arg, base, begin + warp, end, all);
		for (int k = 0; k < M; k++) sums[warp][k][lane] = all[k];
		__syncthreads();
		if (warp < M) { // a warp joins each of the M columns of all lanes
			typename J::A joined = sums[0][warp][lane];
			for (int i = 1; i < ROW_WARPS; i++) joined = J::join(joined, sums[i][warp][lane]);
			if (column < arg.inner) put<J>(arg, row * arg.inner + column + warp, joined);
		}
		__syncthreads();
	}
}

template <class J> BOTH void join(const hr__k_reduce &arg)
{
	for (GROUPS(WARP, item, arg.outer * arg.inner)) {
		int64_t outer = quotient(item, arg.inner);
		const uint64_t *from = (const uint64_t *)arg.partials + outer * arg.blocks * arg.inner + item - outer * arg.inner;
		typename J::A all = J::first();
		for (int64_t i = MEMBER(WARP); i < arg.blocks; i += WARP) all = J::join(all, *(const typename J::A *)(from + i * arg.inner));
		all = group_join<WARP>(all, J());
		if (MEMBER(WARP) == 0) ((T *)arg.out)[item] = result(arg, all);
	}
}

#define REDUCTION(name, J)                                                                       \
	template <int GROUP, int M> BOTH void name##_rows(const hr__k_reduce &arg) { rows<J, GROUP, M>(arg); } \
	GROUP_KERNELS(name, hr__k_reduce, name##_rows)                                               \
	KERNEL(hr_##name##_columns_n, hr__k_reduce) { columns<J, N>(arg); }                          \
	KERNEL(hr_##name##_columns_1, hr__k_reduce) { columns<J, 1>(arg); }                          \
	KERNEL(hr_##name##_join, hr__k_reduce) { join<J>(arg); }
REDUCTION(sum, sum_of)
REDUCTION(max, max_of)

// Elements equal to the maximum share its gradient equally. A thread reads and writes the same elements, so the output may be the input's memory.
#if IS_FLOAT
template <int GROUP> BOTH void share(const hr__k_share &arg)
{
	for (GROUPS(GROUP, item, arg.outer * arg.inner)) {
		int64_t outer = quotient(item, arg.inner), base = outer * arg.many * arg.inner + item - outer * arg.inner;
		T most = ((const T *)arg.most)[item], grad = ((const T *)arg.grad)[item];
		int64_t equal = 0;
		for (int64_t i = MEMBER(GROUP); i < arg.many; i += GROUP) equal += ((const T *)arg.in)[base + i * arg.inner] == most;
		if (GROUP > 1) equal = group_sum<GROUP>(equal);
		grad /= equal > 0 ? (T)equal : 1;
		for (int64_t i = MEMBER(GROUP); i < arg.many; i += GROUP) {
			int64_t at = base + i * arg.inner;
			((T *)arg.out)[at] = ((const T *)arg.in)[at] == most ? grad : 0;
		}
	}
}
KERNEL(hr_share_thread, hr__k_share) { share<1>(arg); }
KERNEL(hr_share_warp, hr__k_share) { share<WARP>(arg); }
KERNEL(hr_share_block, hr__k_share) { share<BLOCK>(arg); }
#endif
