// scatter.cuh - adds rows at the indices of a table: the gradient of gather.
//
// A block has a range of the table's rows and of columns. It goes over all indices in order, lists those in its range, and then adds the listed rows: a
// thread adds the elements of its columns. So an element is added to by one thread, in the order of the indices, and no atomics are needed. What is read
// most is the indices, by every block, from the cache.

#define LISTED 1024 // indices that are looked at together
#define EACH (LISTED / BLOCK)

// The indices [begin, begin + LISTED) in the block's rows, in order: list[] gets their positions, at[] the row of each. Returns their number.
BOTH int list_indices(const hr__k_index &arg, int64_t begin, int64_t first, int64_t last, int *list, int64_t *at, int *counts)
{
	int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, taken = 0;
	__syncthreads(); // what was listed before is added
	for (int k = 0; k < EACH; k++) { // a warp's indices are neighbours
		int64_t i = begin + warp * WARP * EACH + k * WARP + lane, row = i < arg.count ? index_at(arg.indices, arg.wide_indices, i) : 0;
		if (i < arg.count && (row < 0 || row >= arg.rows) && blockIdx.x == 0 && blockIdx.y == 0) fault(arg.faults, HR__K_INDEX, row, arg.rows);
		unsigned are = __ballot_sync(0xffffffffu, i < arg.count && row >= first && row < last);
		taken += __popc(are);
	}
	if (lane == 0) counts[warp] = taken;
	__syncthreads();
	int place = 0, all = 0;
	for (int i = 0; i < BLOCK / WARP; i++) {
		place += i < warp ? counts[i] : 0;
		all += counts[i];
	}
	for (int k = 0; k < EACH; k++) {
		int64_t i = begin + warp * WARP * EACH + k * WARP + lane, row = i < arg.count ? index_at(arg.indices, arg.wide_indices, i) : 0;
		bool is = i < arg.count && row >= first && row < last;
		unsigned are = __ballot_sync(0xffffffffu, is);
		int before = place + __popc(are & ((1u << lane) - 1));
		if (is) {
			list[before] = (int)(i - begin);
			at[before] = row;
		}
		place += __popc(are);
	}
	__syncthreads();
	return all;
}

// Adds the listed rows. Rows that follow each other in the list at one index are added before the sum is written.
template <int M> BOTH void add_rows(const hr__k_index &arg, int64_t begin, int count, const int *list, const int64_t *at, int64_t column)
{
	pack<T, M> sum;
	for (int i = 0; i < count; i++) {
		int64_t to = at[i] * arg.length + column;
		if (i == 0 || at[i] != at[i - 1]) sum = load<M>(arg.to, to);
		pack<T, M> x = load<M>(arg.from, (begin + list[i]) * arg.length + column);
		for (int k = 0; k < M; k++) sum.at[k] += x.at[k];
		if (i + 1 == count || at[i] != at[i + 1]) store<M>(arg.to, to, sum);
	}
}

template <int M> BOTH void scatter(const hr__k_index &arg)
{
	__shared__ int list[LISTED], counts[BLOCK / WARP];
	__shared__ int64_t at[LISTED];
	int64_t each = (arg.rows + gridDim.x - 1) / gridDim.x, first = blockIdx.x * each, last = first + each;
	int64_t column = ((int64_t)blockIdx.y * BLOCK + threadIdx.x) * M;
	if (last > arg.rows) last = arg.rows;
	for (int64_t begin = 0; begin < arg.count; begin += LISTED) {
		int count = list_indices(arg, begin, first, last, list, at, counts);
		for (int64_t more = column; more < arg.length; more += (int64_t)gridDim.y * BLOCK * M) add_rows<M>(arg, begin, count, list, at, more);
	}
}
KERNEL(hr_scatter_n, hr__k_index) { scatter<N>(arg); }
KERNEL(hr_scatter_1, hr__k_index) { scatter<1>(arg); }
