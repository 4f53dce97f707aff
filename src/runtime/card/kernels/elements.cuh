// elements.cuh - elementwise ops of one or two inputs, which are broadcast to the output.
//
// A thread computes N neighbours in the last dimension of the walk, or one where the rows or the addresses are not multiples of N: kernels <op>_n and
// <op>_1. The output may be the memory of an input: a thread reads its elements before it writes them.

COLD void find_far(const hr__k_elements &arg, int64_t at, int64_t &a, int64_t &b)
{
	for (int i = arg.rank; i-- > 0;) {
		int64_t index = i ? at % arg.d[i] : at;
		a += index * arg.a_step[i];
		b += index * arg.b_step[i];
		at /= arg.d[i];
	}
}

// Offsets of output element [at] in both inputs. Division of 32 bits takes a quarter of the time.
BOTH void find(const hr__k_elements &arg, int64_t at, int64_t &a, int64_t &b)
{
	a = b = 0;
	if (at > 0x7fffffff) {
		find_far(arg, at, a, b);
		return;
	}
	uint32_t rest = (uint32_t)at;
	for (int i = arg.rank; i-- > 1;) {
		uint32_t d = arg.d[i] > 0x7fffffff ? 0x80000000u : (uint32_t)arg.d[i], next = rest / d, index = rest - next * d;
		a += index * arg.a_step[i];
		b += index * arg.b_step[i];
		rest = next;
	}
	a += rest * arg.a_step[0];
	b += rest * arg.b_step[0];
}

template <int M> BOTH pack<T, M> get(const void *from, int64_t at, int64_t step, int narrow)
{
	pack<T, M> out;
	if (step) return load_as<M>(from, at, narrow);
	pack<T, 1> one = load_as<1>(from, at, narrow);
	for (int k = 0; k < M; k++) out.at[k] = one.at[0];
	return out;
}

template <int M, class F> BOTH void each_two(const hr__k_elements &arg, F f)
{
	int last = arg.rank - 1;
	for (STRIDES(i, arg.count / M)) {
		int64_t a, b;
		find(arg, i * M, a, b);
		pack<T, M> x = get<M>(arg.a, a, arg.a_step[last], arg.a_narrow), y = get<M>(arg.b, b, arg.b_step[last], arg.b_narrow), out;
		for (int k = 0; k < M; k++) out.at[k] = (T)f(x.at[k], y.at[k]);
		store_as<M>(arg.out, i * M, out, arg.out_narrow);
	}
}

template <int M, class F> BOTH void each_one(const hr__k_elements &arg, F f)
{
	for (STRIDES(i, arg.count / M)) {
		pack<T, M> x = load_as<M>(arg.a, i * M, arg.a_narrow), out;
		for (int k = 0; k < M; k++) out.at[k] = (T)f(x.at[k]);
		store_as<M>(arg.out, i * M, out, arg.out_narrow);
	}
}

#define ONE(name, expression)                                                                     \
	KERNEL(hr_##name##_n, hr__k_elements) { each_one<N>(arg, [&](T x) { return expression; }); } \
	KERNEL(hr_##name##_1, hr__k_elements) { each_one<1>(arg, [&](T x) { return expression; }); }
#define TWO(name, expression)                                                                          \
	KERNEL(hr_##name##_n, hr__k_elements) { each_two<N>(arg, [&](T a, T b) { return expression; }); } \
	KERNEL(hr_##name##_1, hr__k_elements) { each_two<1>(arg, [&](T a, T b) { return expression; }); }

#if IS_FLOAT
TWO(add, a + b)
TWO(sub, a - b)
TWO(mul, a * b)
TWO(div, a / b)
TWO(maximum, a > b || a != a ? a : b) // NaN in a wins
ONE(neg, -x)
ONE(exp, exp(x))
ONE(log, log(x))
ONE(sqrt, sqrt(x))
ONE(tanh, tanh(x))
ONE(relu, x < 0 ? (T)0 : x) // NaN stays NaN
ONE(scale, x * (T)arg.factor + (T)arg.plus)
// x F(x), F(x) = (1 + erf(x / sqrt 2)) / 2. Its derivative is F(x) + x F'(x), F'(x) = exp(-x^2 / 2) / sqrt(2 pi).
#define HALF_ROOT (T)0.70710678118654752440
#define DENSITY (T)0.39894228040143267794
ONE(gelu, (T)0.5 * x * (1 + erf(x * HALF_ROOT)))
TWO(gelu_grad, b * ((T)0.5 * (1 + erf(a * HALF_ROOT)) + a * DENSITY * exp((T)-0.5 * a * a)))
TWO(relu_grad, a > 0 ? b : (T)0)
TWO(tanh_grad, b * (1 - a * a))
#elif IS_INTEGER
TWO(add, (U)a + (U)b)
TWO(sub, (U)a - (U)b)
TWO(mul, (U)a * (U)b)
TWO(maximum, a > b ? a : b)
ONE(neg, 0 - (U)x)

// The smallest integer divided by -1 wraps around. Division by zero is an error, and gives 0.
BOTH T divide(const hr__k_elements &arg, T a, T b)
{
	if (b == 0) {
		fault(arg.faults, HR__K_DIVISION, 0, 0);
		return 0;
	}
	return (T)-1 < 0 && b == (T)-1 ? (T)(0 - (U)a) : (T)(a / b);
}
TWO(div, divide(arg, a, b))
#endif
