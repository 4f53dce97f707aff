// update.cuh - updates of variables, in place. While the session has an error that was not reported, variables keep what they have.

// Also of a step whose number is below 1: then no block may depend on whether another has found that.
BOTH bool leaves_alone(const hr__k_update &arg)
{
	if (arg.step && *(const int64_t *)arg.step < 1) {
		if (blockIdx.x == 0 && threadIdx.x == 0) fault(arg.faults, HR__K_STEP, 0, 0);
		return true;
	}
	return arg.faults.to && arg.faults.to->found;
}

// Copies the first [outs] inputs to the outputs, where these are not the same memory.
template <int M> BOTH void keep(const hr__k_update &arg, int outs)
{
	for (int k = 0; k < outs; k++) {
		if (arg.out[k] == arg.in[k]) continue;
		for (STRIDES(i, arg.count / M)) store<M>(arg.out[k], i * M, load<M>(arg.in[k], i * M));
	}
}

#define UPDATE(name, outs)                                                                                    \
	KERNEL(hr_##name##_n, hr__k_update) { if (leaves_alone(arg)) keep<N>(arg, outs); else name##_of<N>(arg); } \
	KERNEL(hr_##name##_1, hr__k_update) { if (leaves_alone(arg)) keep<1>(arg, outs); else name##_of<1>(arg); }

template <int M, class F> BOTH void both(const hr__k_update &arg, F f)
{
	for (STRIDES(i, arg.count / M)) {
		pack<T, M> w = load<M>(arg.in[0], i * M), g = load<M>(arg.in[1], i * M);
		for (int k = 0; k < M; k++) w.at[k] = f(w.at[k], g.at[k]);
		store<M>(arg.out[0], i * M, w);
	}
}

#if IS_INTEGER
template <int M> BOTH void assign_add_of(const hr__k_update &arg) { both<M>(arg, [](T a, T b) { return (T)((U)a + (U)b); }); }
template <int M> BOTH void assign_sub_of(const hr__k_update &arg) { both<M>(arg, [](T a, T b) { return (T)((U)a - (U)b); }); }
#else
template <int M> BOTH void assign_add_of(const hr__k_update &arg) { both<M>(arg, [](T a, T b) { return a + b; }); }
template <int M> BOTH void assign_sub_of(const hr__k_update &arg) { both<M>(arg, [](T a, T b) { return a - b; }); }
#endif
UPDATE(assign_add, 1)
UPDATE(assign_sub, 1)

#if IS_FLOAT
template <int M> BOTH void sgd_of(const hr__k_update &arg)
{
	T rate = (T)arg.a;
	both<M>(arg, [=](T w, T g) { return w - rate * g; });
}
UPDATE(sgd, 1)

template <int M> BOTH void momentum_of(const hr__k_update &arg)
{
	T rate = (T)arg.a, momentum = (T)arg.b;
	for (STRIDES(i, arg.count / M)) {
		pack<T, M> w = load<M>(arg.in[0], i * M), sum = load<M>(arg.in[1], i * M), g = load<M>(arg.in[2], i * M);
		for (int k = 0; k < M; k++) {
			sum.at[k] = momentum * sum.at[k] + g.at[k];
			w.at[k] = w.at[k] - rate * sum.at[k];
		}
		store<M>(arg.out[0], i * M, w);
		store<M>(arg.out[1], i * M, sum);
	}
}
UPDATE(momentum, 2)

// By squaring: pow takes longer than all else in a block.
BOTH double power(double x, int64_t n)
{
	double out = 1;
	for (; n > 0; n >>= 1, x *= x)
		if (n & 1) out *= x;
	return out;
}

// The factors that correct the moments' bias: the same for all elements, in double.
BOTH void adam_factors(const hr__k_update &arg, double *rate, double *by_square)
{
	int64_t step = *(const int64_t *)arg.step;
	*rate = arg.a / (1 - power(arg.b, step));
	*by_square = sqrt(1 - power(arg.c, step));
}

template <int M> BOTH void adam_of(const hr__k_update &arg)
{
	__shared__ double factors[2];
	if (threadIdx.x == 0) adam_factors(arg, &factors[0], &factors[1]);
	__syncthreads();
	T keeps = (T)arg.c, takes_m = (T)(1 - arg.b), takes_v = (T)(1 - arg.c), rate = (T)factors[0], by_square = (T)factors[1], epsilon = (T)arg.d;
	for (STRIDES(i, arg.count / M)) {
		pack<T, M> w = load<M>(arg.in[0], i * M), m = load<M>(arg.in[1], i * M), v = load<M>(arg.in[2], i * M), g = load<M>(arg.in[3], i * M);
		for (int k = 0; k < M; k++) {
			m.at[k] = m.at[k] + (g.at[k] - m.at[k]) * takes_m;
			v.at[k] = keeps * v.at[k] + takes_v * g.at[k] * g.at[k];
			w.at[k] = w.at[k] - rate * m.at[k] / (sqrt(v.at[k]) / by_square + epsilon);
		}
		store<M>(arg.out[0], i * M, w);
		store<M>(arg.out[1], i * M, m);
		store<M>(arg.out[2], i * M, v);
	}
}
UPDATE(adam, 3)
#endif
