// chain.cuh - chains of elementwise ops (chain.h): the beginning of a program, whose kernels are written by chain_text.c.
//
// A thread computes M neighbours of the output. Each input has steps of its own in the walk; 0 repeats an element. A result that is bfloat16 is rounded,
// as it is where it is stored.

// Offsets of output element [at] in the first [inputs] inputs.
template <int INPUTS> BOTH void find(const hr__k_chain &arg, int64_t at, int64_t *offsets)
{
	for (int k = 0; k < INPUTS; k++) offsets[k] = arg.rank == 1 ? at * arg.step[k][0] : 0;
	if (arg.rank == 1) return;
	for (int i = arg.rank; i-- > 0;) {
		int64_t next = i ? quotient(at, arg.d[i]) : 0, index = at - next * arg.d[i];
		for (int k = 0; k < INPUTS; k++) offsets[k] += index * arg.step[k][i];
		at = next;
	}
}

template <int M> BOTH pack<T, M> get(const hr__k_chain &arg, int input, int64_t at, int narrow)
{
	if (arg.step[input][arg.rank - 1]) return load_as<M>(arg.in[input], at, narrow);
	pack<T, 1> one = load_as<1>(arg.in[input], at, narrow);
	pack<T, M> out;
	for (int k = 0; k < M; k++) out.at[k] = one.at[0];
	return out;
}

BOTH T rounded(T x)
{
#if HR_DTYPE == 1
	return hr__bfloat16_to_f32(hr__bfloat16_of_f32(x));
#else
	return x;
#endif
}

// hr_dropout of M elements from [at] on.
template <int M> BOTH pack<T, M> dropped(const hr__k_chain &arg, int step, uint64_t offset, int64_t at, pack<T, M> x)
{
	uint32_t words[4];
	for (int k = 0; k < M; k++) {
		if (k % 4 == 0) hr__philox(arg.seed[step], (uint64_t)(at + k) / 4, HR__RANDOM_DROPOUT, offset, words);
		x.at[k] = words[(at + k) % 4] >= arg.below[step] ? x.at[k] * (T)arg.factor[step] : (T)0;
	}
	return x;
}
