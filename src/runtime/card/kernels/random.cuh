// random.cuh - random numbers, as in ops_source.c: a function of the seed and the position. The same words of Philox as on the host; logarithm, sine and
// cosine may differ in the last bit.

#define TWO_PI 6.28318530717958647693

BOTH void philox_wide(uint64_t seed, uint64_t block, hr__random_stream stream, uint64_t *out)
{
	uint32_t words[4];
	hr__philox(seed, block, stream, 0, words);
	out[0] = (uint64_t)words[1] << 32 | words[0];
	out[1] = (uint64_t)words[3] << 32 | words[2];
}

#if IS_FLOAT
// Box-Muller. Half a step is added so that the argument of the logarithm is never 0.
BOTH void normal_pair(uint32_t x, uint32_t y, float *out)
{
	float radius = sqrtf(-2 * logf((float)x * 2.3283064365386963e-10f + 1.1641532182693481e-10f)), angle = (float)y * (float)(TWO_PI * 2.3283064365386963e-10);
	out[0] = radius * cosf(angle);
	out[1] = radius * sinf(angle);
}

BOTH void normal_pair(uint64_t x, uint64_t y, double *out)
{
	double step = 1.1102230246251565e-16, radius = sqrt(-2 * log((double)(x >> 11) * step + step / 2)), angle = (double)(y >> 11) * (TWO_PI * step);
	out[0] = radius * cos(angle);
	out[1] = radius * sin(angle);
}

#define NORMALS (16 / (int)sizeof(T)) // of a block of random words

KERNEL(hr_normal, hr__k_random)
{
	for (STRIDES(i, (arg.count + NORMALS - 1) / NORMALS)) {
		T out[4];
#if HR_DTYPE == 1
		uint32_t words[4];
		hr__philox(arg.seed, (uint64_t)i, HR__RANDOM_NORMAL, 0, words);
		normal_pair(words[0], words[1], out);
		normal_pair(words[2], words[3], out + 2);
#else
		uint64_t words[2];
		philox_wide(arg.seed, (uint64_t)i, HR__RANDOM_NORMAL, words);
		normal_pair(words[0], words[1], out);
#endif
		for (int k = 0; k < NORMALS; k++)
			if (i * NORMALS + k < arg.count) ((T *)arg.out)[i * NORMALS + k] = out[k];
	}
}

// The number at [bits] / 2^64 of the range. Rounding may give the upper end, which is excluded.
BOTH T uniform(const hr__k_random &arg, uint64_t bits)
{
	double unit = (double)(bits >> 11) * 1.1102230246251565e-16, x = arg.low * (1 - unit) + arg.high * unit;
	x = x < arg.low ? arg.low : x < arg.high ? x : arg.before_high;
#if HR_DTYPE == 1
	float rounded = (float)x;
	if ((double)rounded < arg.low) return nextafterf(rounded, INFINITY);
	return (double)rounded < arg.high ? rounded : nextafterf(rounded, -INFINITY);
#else
	return x;
#endif
}

// A word of four elements' block for each element: it is dropped if the word is below rate * 2^32. A thread reads what it writes.
KERNEL(hr_dropout, hr__k_random)
{
	uint64_t offset = *arg.offset;
	T scale = (T)arg.scale;
	for (STRIDES(i, (arg.count + 3) / 4)) {
		uint32_t words[4];
		hr__philox(arg.seed, (uint64_t)i, HR__RANDOM_DROPOUT, offset, words);
		if (arg.even) {
			for (int k = 0; k < 4; k += N) {
				pack<T, N> x = load_as<N>(arg.in, 4 * i + k, arg.in_narrow);
				for (int j = 0; j < N; j++) x.at[j] = words[k + j] >= arg.below ? x.at[j] * scale : (T)0;
				store_as<N>(arg.out, 4 * i + k, x, arg.out_narrow);
			}
			continue;
		}
		for (int k = 0; k < 4 && 4 * i + k < arg.count; k++) {
			pack<T, 1> x = load_as<1>(arg.in, 4 * i + k, arg.in_narrow);
			x.at[0] = words[k] >= arg.below ? x.at[0] * scale : (T)0;
			store_as<1>(arg.out, 4 * i + k, x, arg.out_narrow);
		}
	}
}
#else
BOTH T uniform(const hr__k_random &arg, uint64_t bits)
{
	return (T)(arg.first + (int64_t)(arg.choices ? __umul64hi(arg.choices, bits) : bits));
}
#endif

KERNEL(hr_uniform, hr__k_random)
{
	for (STRIDES(i, (arg.count + 1) / 2)) {
		uint64_t words[2];
		philox_wide(arg.seed, (uint64_t)i, HR__RANDOM_UNIFORM, words);
		((T *)arg.out)[2 * i] = uniform(arg, words[0]);
		if (2 * i + 1 < arg.count) ((T *)arg.out)[2 * i + 1] = uniform(arg, words[1]);
	}
}
