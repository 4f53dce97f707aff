// after.cuh - what every program has after arguments.h.

// Stores the first error that a kernel of the session finds.
BOTH void fault(const hr__k_faults &faults, int code, int64_t wrong, int64_t choices)
{
	if (!faults.to || atomicCAS(&faults.to->found, 0, 1) != 0) return;
	hr__k_fault found = faults.with;
	found.found = 1;
	found.code = code;
	found.wrong = wrong;
	found.choices = choices;
	*faults.to = found;
}

// ---- groups ----
//
// A group is a warp, or a block of BLOCK threads. A sum is added in an order that depends on the group alone, and every thread gets the same bits.

struct plus_of {
	template <class V> BOTH V operator()(V a, V b) const { return a + b; }
};
struct larger_of { // ignores NaN
	template <class V> BOTH V operator()(V a, V b) const { return b > a ? b : a; }
};

template <class V, class F> BOTH V warp_join(V x, F join)
{
	for (int k = WARP / 2; k; k /= 2) x = join(x, __shfl_xor_sync(0xffffffffu, x, k));
	return x;
}

// All threads of the block call it, if the group is the block.
template <int GROUP, class V, class F> BOTH V group_join(V x, F join)
{
	x = warp_join(x, join);
	if (GROUP == WARP) return x;
	__shared__ V of_warps[BLOCK / WARP];
	__syncthreads(); // the threads have read what they joined before
	if (threadIdx.x % WARP == 0) of_warps[threadIdx.x / WARP] = x;
	__syncthreads();
	x = of_warps[0];
	for (int i = 1; i < BLOCK / WARP; i++) x = join(x, of_warps[i]);
	return x;
}

template <int GROUP, class V> BOTH V group_sum(V x)
{
	return group_join<GROUP>(x, plus_of());
}

// The items of this thread's group below [count]: for (GROUPS(GROUP, i, count)). MEMBER is the thread's number in its group.
#define GROUPS(GROUP, i, count)                                                                                                               \
	int64_t i = (int64_t)blockIdx.x * (BLOCK / GROUP) + threadIdx.x / GROUP, i##_step = (int64_t)gridDim.x * (BLOCK / GROUP); i < (count); \
	i += i##_step
#define MEMBER(GROUP) ((int)(threadIdx.x % GROUP))

// Kernels of four kinds from a template <int GROUP, int M>: a warp or a block for each item; packs of N, or single elements.
#define GROUP_KERNELS(name, type, body)                                     \
	KERNEL(hr_##name##_warp_n, type) { body<WARP, N>(arg); }                \
	KERNEL(hr_##name##_warp_1, type) { body<WARP, 1>(arg); }                \
	KERNEL(hr_##name##_block_n, type) { body<BLOCK, N>(arg); }              \
	KERNEL(hr_##name##_block_1, type) { body<BLOCK, 1>(arg); }

// ---- tiles ----
//
// Products of matrices add in fused steps: twice as fast, and more precise.

BOTH float madd(float a, float b, float c) { return fmaf(a, b, c); }
BOTH double madd(double a, double b, double c) { return fma(a, b, c); }

// Reads C neighbours of shared memory, 16 bytes at a time where there are as many.
template <int C, class V> BOTH void read_shared(const V *from, V *to)
{
	const int unit = 16 / (int)sizeof(V) < C ? 16 / (int)sizeof(V) : C;
	for (int i = 0; i < C; i += unit) {
		pack<V, unit> x = *(const pack<V, unit> *)(from + i);
		for (int k = 0; k < unit; k++) to[i + k] = x.at[k];
	}
}

// ---- tensor cores ----
//
// They multiply TF32, which has 10 bits of precision. A float is the sum of two of them, high and low, to 21 bits, and a product is high high + high low +
// low high: three instructions, with errors like those of float32. But the instruction rounds sums towards zero, which adds up: it adds to a sum that
// began at 0 not long ago (partial_sum), which is then added as floats are. Operands of the instruction (mma.sync m16n8k8), with g = lane / 4 and t = lane % 4:
//
//     left, 16 x 8   [0] row g, column t   [1] row g + 8   [2] column t + 4   [3] row g + 8, column t + 4
//     right, 8 x 8   [0] row t, column g   [1] row t + 4
//     sum, 16 x 8    [0] row g, column 2t  [1] column 2t + 1   [2] row g + 8, column 2t   [3] row g + 8, column 2t + 1

#if HR_DTYPE == 1 && (defined(HR_HOST_PROGRAM) || __CUDA_ARCH__ >= 800)
#define TENSOR_CORES 1
#ifndef HR_HOST_PROGRAM
// volatile: all threads of a warp execute it, so it must not be moved behind a condition.
BOTH void multiply_add(float *sum, const uint32_t *a, const uint32_t *b)
{
	asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
	    : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
	    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#endif

#define TF32_BITS 0xffffe000u // of a float's

template <int COUNT> BOTH void split(const float *x, uint32_t *high, uint32_t *low)
{
	for (int i = 0; i < COUNT; i++) {
		high[i] = (uint32_t)__float_as_int(x[i]) & TF32_BITS;
		low[i] = (uint32_t)__float_as_int(x[i] - __int_as_float((int)high[i])) & TF32_BITS;
	}
}

// sum += a b for four parts of 8 columns; b[i] is the right operand of part i.
BOTH void add_four(const uint32_t *a_high, const uint32_t *a_low, const float (*b)[2], float (*sum)[4])
{
	uint32_t b_high[4][2], b_low[4][2];
	for (int i = 0; i < 4; i++) split<2>(b[i], b_high[i], b_low[i]);
	for (int i = 0; i < 4; i++) multiply_add(sum[i], a_low, b_high[i]);
	for (int i = 0; i < 4; i++) multiply_add(sum[i], a_high, b_low[i]);
	for (int i = 0; i < 4; i++) multiply_add(sum[i], a_high, b_high[i]);
}

// The sums of four parts.
struct partial_sum {
	float at[4][4];
};

BOTH void add_partial(const partial_sum &from, float (*to)[4])
{
	for (int n = 0; n < 4; n++)
		for (int i = 0; i < 4; i++) to[n][i] += from.at[n][i];
}
#else
#define TENSOR_CORES 0
#endif

// ---- addresses ----

COLD int64_t far_offset_of(const hr__k_walk &walk, int64_t at)
{
	int64_t offset = 0;
	for (int i = walk.rank; i-- > 0;) {
		int64_t next = i ? at / walk.d[i] : 0;
		offset += (at - next * walk.d[i]) * walk.step[i];
		at = next;
	}
	return offset;
}

// The offset of item [at]. Division of 32 bits takes a quarter of the time of 64.
BOTH int64_t offset_of(const hr__k_walk &walk, int64_t at)
{
	int64_t offset = 0;
	if (walk.rank == 1) return at * walk.step[0];
	if (at > 0x7fffffff) return far_offset_of(walk, at);
	uint32_t rest = (uint32_t)at;
	for (int i = walk.rank; i-- > 1;) {
		uint32_t d = walk.d[i] > 0x7fffffff ? 0x80000000u : (uint32_t)walk.d[i], next = rest / d; // the rest is below 2^31
		offset += (rest - next * d) * walk.step[i];
		rest = next;
	}
	return offset + rest * walk.step[0];
}

// Quotients of numbers that fit into 32 bits nearly always.
COLD int64_t far_quotient(int64_t a, int64_t b)
{
	return a / b;
}
BOTH int64_t quotient(int64_t a, int64_t b)
{
	return ((uint64_t)a | (uint64_t)b) >> 32 ? far_quotient(a, b) : (int64_t)((uint32_t)a / (uint32_t)b);
}

// ---- attention ----

// The number of keys that a row uses.
BOTH int64_t seen_by(const hr__k_attend &arg, int64_t row)
{
	int64_t seen = arg.causal ? row + arg.columns - arg.rows + 1 : arg.columns;
	return seen < arg.columns ? seen : arg.columns;
}

// Where a head begins.
struct attend_offsets {
	int64_t q, k, v, y;
};

BOTH attend_offsets offsets_of(const hr__k_attend &arg, int64_t number)
{
	int64_t batch = quotient(number, arg.heads), head = number - batch * arg.heads;
	attend_offsets out = { batch * arg.rows * arg.q_row + head * arg.width, batch * arg.columns * arg.k_row + head * arg.width,
		                   batch * arg.columns * arg.v_row + head * arg.value_width, batch * arg.rows * arg.y_row + head * arg.value_width };
	return out;
}

// Joins what the four threads of a row of a sum of tensor cores have.
template <class F> BOTH float quad_join(float x, F join)
{
	x = join(x, __shfl_xor_sync(0xffffffffu, x, 1));
	return join(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

#if HR_DTYPE
template <int M> BOTH pack<T, M> load(const void *from, int64_t at)
{
	return *(const pack<T, M> *)((const T *)from + at);
}

template <int M> BOTH void store(void *to, int64_t at, const pack<T, M> &x)
{
	*(pack<T, M> *)((T *)to + at) = x;
}

// The same, of bfloat16 if [narrow]: programs for float32 compute it.
template <int M> BOTH pack<T, M> load_as(const void *from, int64_t at, int narrow)
{
#if HR_DTYPE == 1
	if (narrow) {
		pack<uint16_t, M> x = *(const pack<uint16_t, M> *)((const uint16_t *)from + at);
		pack<T, M> out;
		for (int k = 0; k < M; k++) out.at[k] = hr__bfloat16_to_f32(x.at[k]);
		return out;
	}
#endif
	return load<M>(from, at);
}

template <int M> BOTH void store_as(void *to, int64_t at, const pack<T, M> &x, int narrow)
{
#if HR_DTYPE == 1
	if (narrow) {
		pack<uint16_t, M> out;
		for (int k = 0; k < M; k++) out.at[k] = hr__bfloat16_of_f32(x.at[k]);
		*(pack<uint16_t, M> *)((uint16_t *)to + at) = out;
		return;
	}
#endif
	store<M>(to, at, x);
}
#endif

// Element [at] of int32 or int64 indices.
BOTH int64_t index_at(const void *indices, int wide, int64_t at)
{
	return wide ? ((const int64_t *)indices)[at] : ((const int32_t *)indices)[at];
}
