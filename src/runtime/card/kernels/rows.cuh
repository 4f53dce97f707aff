// rows.cuh - softmax and cross entropy, by rows of the last dimension: a warp or a block for each row.
//
// The largest number and the sum of the exponentials are computed together: a thread that finds a larger number multiplies its sum by the exponential of
// the difference. Each thread writes the elements that it read, so the output may be the input's memory.

struct powers {
	T most;
	double sum; // of exp(x - most)
};

// Elements [at, at + M) of a row of which [seen] elements are used.
template <int M> BOTH void add_powers(powers &all, const pack<T, M> &x, int64_t at, int64_t seen)
{
	T most = all.most, sum = 0;
	for (int k = 0; k < M; k++)
		if (at + k < seen && x.at[k] > most) most = x.at[k];
	if (most > all.most) all.sum *= (double)exp(all.most - most); // 0 at first
	all.most = most;
	T less = most == LOWEST ? (T)0 : most;
	for (int k = 0; k < M; k++)
		if (at + k < seen) sum += exp(x.at[k] - less);
	all.sum += (double)sum;
}

template <int GROUP, int M> BOTH powers powers_of_row(const void *in, int64_t base, int narrow, int64_t seen)
{
	powers all = { LOWEST, 0 };
	for (int64_t i = MEMBER(GROUP) * M; i < seen; i += GROUP * M) add_powers<M>(all, load_as<M>(in, base + i, narrow), i, seen);
	T most = group_join<GROUP>(all.most, larger_of());
	all.sum = group_sum<GROUP>(all.sum * (double)exp(all.most == most ? (T)0 : all.most - most));
	all.most = most;
	return all;
}

template <int GROUP, int M> BOTH void softmax(const hr__k_rows &arg)
{
	for (GROUPS(GROUP, row, arg.rows)) {
		int64_t base = row * arg.length, seen = arg.causal ? row % arg.period + 1 + arg.length - arg.period : arg.length;
		const T *from = (const T *)arg.in + base;
		powers all = powers_of_row<GROUP, M>(arg.in, base, 0, seen);
		T share = (T)(1 / all.sum);
		for (int64_t i = MEMBER(GROUP) * M; i < arg.length; i += GROUP * M) {
			pack<T, M> x = load<M>(from, i);
			for (int k = 0; k < M; k++) x.at[k] = i + k < seen ? exp(x.at[k] - all.most) * share : (T)0;
			store<M>(arg.out, base + i, x);
		}
	}
}

// dx = y (dy - sum of y dy). 0 where y is 0, as causal softmax needs.
template <int GROUP, int M> BOTH void softmax_grad(const hr__k_rows &arg)
{
	for (GROUPS(GROUP, row, arg.rows)) {
		int64_t base = row * arg.length;
		double sum = 0;
		for (int64_t i = MEMBER(GROUP) * M; i < arg.length; i += GROUP * M) {
			pack<T, M> y = load<M>(arg.in, base + i), grad = load<M>(arg.grad, base + i);
			for (int k = 0; k < M; k++) sum += (double)y.at[k] * (double)grad.at[k];
		}
		T taken = (T)group_sum<GROUP>(sum);
		for (int64_t i = MEMBER(GROUP) * M; i < arg.length; i += GROUP * M) {
			pack<T, M> y = load<M>(arg.in, base + i), grad = load<M>(arg.grad, base + i);
			for (int k = 0; k < M; k++) y.at[k] = y.at[k] * (grad.at[k] - taken);
			store<M>(arg.out, base + i, y);
		}
	}
}

// The label of a row; -1 and an error if there is no such class.
template <int GROUP> BOTH int64_t label_of(const hr__k_rows &arg, int64_t row)
{
	int64_t label = index_at(arg.labels, arg.wide_labels, row);
	if (label >= 0 && label < arg.length) return label;
	if (MEMBER(GROUP) == 0) fault(arg.faults, HR__K_LABEL, label, arg.length);
	return -1;
}

template <int GROUP, int M> BOTH void cross_entropy(const hr__k_rows &arg)
{
	for (GROUPS(GROUP, row, arg.rows)) {
		int64_t base = row * arg.length, label = label_of<GROUP>(arg, row);
		powers all = powers_of_row<GROUP, M>(arg.in, base, arg.narrow, arg.length);
		if (MEMBER(GROUP) != 0) continue;
		T x = label < 0 ? (T)0 : load_as<1>(arg.in, base + label, arg.narrow).at[0];
		((T *)arg.out)[row] = label < 0 ? (T)0 : (T)(log(all.sum) + ((double)all.most - (double)x));
	}
}

// The softmax, minus 1 at the label, times the gradient of the loss.
template <int GROUP, int M> BOTH void cross_entropy_grad(const hr__k_rows &arg)
{
	for (GROUPS(GROUP, row, arg.rows)) {
		int64_t base = row * arg.length, label = label_of<GROUP>(arg, row);
		powers all = powers_of_row<GROUP, M>(arg.in, base, arg.narrow, arg.length);
		T share = (T)(1 / all.sum), grad = ((const T *)arg.grad)[row];
		for (int64_t i = MEMBER(GROUP) * M; i < arg.length; i += GROUP * M) {
			pack<T, M> x = load_as<M>(arg.in, base + i, arg.narrow);
			for (int k = 0; k < M; k++) x.at[k] = label < 0 ? (T)0 : (exp(x.at[k] - all.most) * share - (T)(i + k == label)) * grad;
			store_as<M>(arg.out, base + i, x, arg.narrow);
		}
	}
}

GROUP_KERNELS(softmax, hr__k_rows, softmax)
GROUP_KERNELS(softmax_grad, hr__k_rows, softmax_grad)
GROUP_KERNELS(cross_entropy, hr__k_rows, cross_entropy)
GROUP_KERNELS(cross_entropy_grad, hr__k_rows, cross_entropy_grad)
