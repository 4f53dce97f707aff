// move.cuh - ops that move elements, whatever they are: kernels for units of 1, 2, 4, 8 and 16 bytes.

struct alignas(16) unit16 {
	uint64_t low, high;
};

// [rows] of [length] neighbours.
template <class V> BOTH void blocks(const hr__k_move &arg)
{
	for (STRIDES(i, arg.rows * arg.length)) {
		int64_t row = quotient(i, arg.length);
		((V *)arg.to)[row * arg.to_step + i - row * arg.length] = ((const V *)arg.from)[row * arg.from_step + i - row * arg.length];
	}
}

template <class V> BOTH void walk(const hr__k_move &arg)
{
	for (STRIDES(i, arg.rows)) ((V *)arg.to)[i] = ((const V *)arg.from)[offset_of(arg.walk, i)];
}

// A tile is read along the input's last dimension and written along the output's; one more column, so that no two threads of a warp use one bank.
template <class V> BOTH void turn(const hr__k_turn &arg)
{
	__shared__ V tile[WARP][WARP + 1];
	int x = threadIdx.x % WARP, y = threadIdx.x / WARP;
	int64_t tiles_wide = (arg.wide + WARP - 1) / WARP, tiles = (arg.high + WARP - 1) / WARP * tiles_wide;
	for (int64_t item = blockIdx.x; item < arg.planes * tiles; item += gridDim.x) {
		int64_t plane = quotient(item, tiles), number = item - plane * tiles, down = quotient(number, tiles_wide);
		int64_t row = down * WARP, column = (number - down * tiles_wide) * WARP;
		const V *from = (const V *)arg.from + offset_of(arg.from_walk, plane);
		V *to = (V *)arg.to + offset_of(arg.to_walk, plane);
		for (int k = y; k < WARP; k += BLOCK / WARP)
			if (column + k < arg.wide && row + x < arg.high) tile[k][x] = from[(column + k) * arg.across + row + x];
		__syncthreads();
		for (int k = y; k < WARP; k += BLOCK / WARP)
			if (row + k < arg.high && column + x < arg.wide) to[(row + k) * arg.down + column + x] = tile[x][k];
		__syncthreads();
	}
}

// Rows of a table. An index that is out of range is an error, and gives zeros.
template <class V> BOTH void gather(const hr__k_index &arg)
{
	for (STRIDES(i, arg.count * arg.length)) {
		int64_t at = quotient(i, arg.length), row = index_at(arg.indices, arg.wide_indices, at), column = i - at * arg.length;
		bool is_there = row >= 0 && row < arg.rows;
		if (!is_there && column == 0) fault(arg.faults, HR__K_INDEX, row, arg.rows);
		((V *)arg.to)[i] = is_there ? ((const V *)arg.from)[row * arg.length + column] : V();
	}
}

template <class V> BOTH void one_hot(const hr__k_index &arg)
{
	for (STRIDES(i, arg.count * arg.length)) {
		int64_t at = quotient(i, arg.length), place = index_at(arg.indices, arg.wide_indices, at), column = i - at * arg.length;
		if (column == 0 && (place < 0 || place >= arg.length)) fault(arg.faults, HR__K_INDEX, place, arg.length);
		((V *)arg.to)[i] = column == place ? (V)arg.one : (V)0;
	}
}

#define MOVES(bytes, V)                                          \
	KERNEL(hr_blocks_##bytes, hr__k_move) { blocks<V>(arg); }    \
	KERNEL(hr_walk_##bytes, hr__k_move) { walk<V>(arg); }        \
	KERNEL(hr_gather_##bytes, hr__k_index) { gather<V>(arg); }
#define ELEMENT_MOVES(bytes, V)                                  \
	MOVES(bytes, V)                                              \
	KERNEL(hr_turn_##bytes, hr__k_turn) { turn<V>(arg); }        \
	KERNEL(hr_one_hot_##bytes, hr__k_index) { one_hot<V>(arg); }
ELEMENT_MOVES(1, uint8_t)
ELEMENT_MOVES(2, uint16_t)
ELEMENT_MOVES(4, uint32_t)
ELEMENT_MOVES(8, uint64_t)
MOVES(16, unit16)

// Memory begins at multiples of 16 bytes.
KERNEL(hr_fill, hr__k_fill)
{
	unit16 value = { arg.value, arg.value };
	int64_t whole = (int64_t)(arg.bytes / sizeof value);
	for (STRIDES(i, whole)) ((unit16 *)arg.to)[i] = value;
	int64_t last = whole * (int64_t)sizeof value + threadIdx.x;
	if (blockIdx.x == 0 && last < (int64_t)arg.bytes) ((uint8_t *)arg.to)[last] = (uint8_t)(arg.value >> last % 8 * 8);
}
