// elements.cuh - elementwise ops of one or two inputs (formulas.cuh), which are broadcast to the output.
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
TWO(add, of_add(a, b))
TWO(sub, of_sub(a, b))
TWO(mul, of_mul(a, b))
TWO(div, of_div(a, b))
TWO(maximum, of_maximum(a, b))
ONE(neg, of_neg(x))
ONE(exp, of_exp(x))
ONE(log, of_log(x))
ONE(sqrt, of_sqrt(x))
ONE(tanh, of_tanh(x))
ONE(relu, of_relu(x))
ONE(scale, of_scale(x, arg.factor, arg.plus))
ONE(gelu, of_gelu(x))
TWO(gelu_grad, of_gelu_grad(a, b))
TWO(relu_grad, of_relu_grad(a, b))
TWO(tanh_grad, of_tanh_grad(a, b))
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
