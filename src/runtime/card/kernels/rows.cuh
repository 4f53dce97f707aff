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

template <int GROUP> BOTH powers join_powers(powers all)
{
	T most = group_join<GROUP>(all.most, larger_of());
	all.sum = group_sum<GROUP>(all.sum * (double)exp(all.most == most ? (T)0 : all.most - most));
	all.most = most;
	return all;
}

template <int GROUP, int M> BOTH powers powers_of_row(const T *row, int64_t seen)
{
	powers all = { LOWEST, 0 };
	for (int64_t i = MEMBER(GROUP) * M; i < seen; i += GROUP * M) add_powers<M>(all, load<M>(row, i), i, seen);
	return join_powers<GROUP>(all);
}

template <int GROUP, int M> BOTH void softmax(const hr__k_rows &arg)
{
	for (GROUPS(GROUP, row, arg.rows)) {
		int64_t base = row * arg.length, seen = arg.causal ? row % arg.period + 1 + arg.length - arg.period : arg.length;
		const T *from = (const T *)arg.in + base;
		powers all = powers_of_row<GROUP, M>(from, seen);
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

// A row of M packs that may begin and end anywhere: calls f for single elements up to the first pack and behind the last, and g for packs.
template <int GROUP, int M, class F, class G> BOTH void each_part(int64_t base, int64_t length, F f, G g)
{
	int64_t head = (M - base % M) % M, packs = length > head ? (length - head) / M : 0;
	if (head > length) head = length;
	int64_t behind = head + packs * M;
	if (MEMBER(GROUP) < head) f(MEMBER(GROUP));
	for (int64_t i = head + MEMBER(GROUP) * M; i < behind; i += GROUP * M) g(i);
	if (MEMBER(GROUP) < length - behind) f(behind + MEMBER(GROUP));
}

template <int GROUP, int M> BOTH powers powers_of_logits(const hr__k_rows &arg, int64_t base)
{
	powers all = { LOWEST, 0 };
	each_part<GROUP, M>(base, arg.length, [&](int64_t i) { add_powers<1>(all, load_as<1>(arg.in, base + i, arg.narrow), i, arg.length); },
	                    [&](int64_t i) { add_powers<M>(all, load_as<M>(arg.in, base + i, arg.narrow), i, arg.length); });
	return join_powers<GROUP>(all);
}

template <int GROUP, int M> BOTH void cross_entropy(const hr__k_rows &arg)
{
	for (GROUPS(GROUP, row, arg.rows)) {
		int64_t base = row * arg.length, label = label_of<GROUP>(arg, row);
		powers all = powers_of_logits<GROUP, M>(arg, base);
		if (MEMBER(GROUP) != 0) continue;
		T x = label < 0 ? (T)0 : load_as<1>(arg.in, base + label, arg.narrow).at[0];
		((T *)arg.out)[row] = label < 0 ? (T)0 : (T)(log(all.sum) + ((double)all.most - (double)x));
	}
}

// The softmax, minus 1 at the label, times the gradient of the loss.
template <int M> BOTH void put_slopes(const hr__k_rows &arg, int64_t base, int64_t i, int64_t label, T most, T share, T grad)
{
	pack<T, M> x = load_as<M>(arg.in, base + i, arg.narrow);
	for (int k = 0; k < M; k++) x.at[k] = label < 0 ? (T)0 : (exp(x.at[k] - most) * share - (T)(i + k == label)) * grad;
	store_as<M>(arg.out, base + i, x, arg.narrow);
}

template <int GROUP, int M> BOTH void cross_entropy_grad(const hr__k_rows &arg)
{
	for (GROUPS(GROUP, row, arg.rows)) {
		int64_t base = row * arg.length, label = label_of<GROUP>(arg, row);
		powers all = powers_of_logits<GROUP, M>(arg, base);
		T share = (T)(1 / all.sum), grad = ((const T *)arg.grad)[row];
		each_part<GROUP, M>(base, arg.length, [&](int64_t i) { put_slopes<1>(arg, base, i, label, all.most, share, grad); },
		                    [&](int64_t i) { put_slopes<M>(arg, base, i, label, all.most, share, grad); });
	}
}

GROUP_KERNELS(softmax, hr__k_rows, softmax)
GROUP_KERNELS(softmax_grad, hr__k_rows, softmax_grad)
GROUP_KERNELS(cross_entropy, hr__k_rows, cross_entropy)
GROUP_KERNELS(cross_entropy_grad, hr__k_rows, cross_entropy_grad)
