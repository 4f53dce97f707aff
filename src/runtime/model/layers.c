/* layers.c - layers: ops with variables. Each layer has a variable scope of its name. */
#include <math.h>

#include "core/base/status.h"
#include "runtime/engine/engine.h"
#include "runtime/ops/ops.h"

static hr_value activate(hr_value x, hr_activation activation)
{
	if (!x.id) return x; /* keep the earlier message */
	switch (activation) {
	case HR_RELU: return hr_relu(x);
	case HR_GELU: return hr_gelu(x);
	case HR_TANH: return hr_tanh(x);
	case HR_LINEAR: return x;
	}
	hr__fail(HR_INVALID_ARGUMENT, "layer \"%.200s\": %d is not an activation (hr_activation)", hr_name_text(hr_name_scope_current()), (int)activation);
	hr__value_consume(x);
	return HR_NO_VALUE;
}

/* Call in the layer's scope. */
static hr_value parameter(const char *name, const hr__type *like, const int64_t *dims, int rank, hr_initializer initializer)
{
	return hr_variable_read(hr_get_variable(name, like->dtype, dims, rank, initializer));
}

/* Enters the layer's scope; *type gets the type of the input. On failure the scope is not entered and the input is consumed. */
static bool enter(const char *name, const char *layer, hr_value x, int least_rank, int most_rank, hr__type *type)
{
	hr__value value;
	char shape[HR__DIMS_TEXT];
	bool is_there = x.id != 0; /* otherwise keep the earlier message */
	hr_status status = is_there ? hr__value_get(x, &value) : HR_INVALID_ARGUMENT;
	if (!status && (value.type.dims.rank < least_rank || value.type.dims.rank > most_rank))
		status = hr__fail(HR_INVALID_ARGUMENT, "layer \"%.100s\" (%s): its input is %s, and needs %d to %d dimensions", name ? name : "", layer,
		                  hr__dims_text(&value.type.dims, shape, sizeof shape), least_rank, most_rank);
	if (!status) status = hr_variable_scope_push(name, HR_REUSE_AS_AROUND);
	if (!status) *type = value.type;
	if (status && is_there) hr__value_consume(x);
	return !status;
}

static hr_value leave(hr_value y)
{
	hr_variable_scope_pop();
	return y;
}

/* [x] is a matrix. A bfloat16 one is multiplied by the weights in bfloat16, and the result is rounded with the bias; variables are float32. */
static hr_value dense(hr_value x, const hr__type *type, int64_t in, int64_t units, hr_activation activation, uint64_t seed)
{
	bool narrow = type->dtype == HR_DTYPE_BFLOAT16;
	hr__type like = { .dtype = narrow ? HR_DTYPE_FLOAT32 : type->dtype };
	hr_value w = parameter("w", &like, HR_DIMS(in, units), HR_NORMAL(1 / sqrt((double)(in ? in : 1)), seed));
	hr_value b = w.id ? parameter("b", &like, HR_DIMS(units), HR_ZEROS) : HR_NO_VALUE;
	if (narrow) w = hr_cast(w, HR_DTYPE_BFLOAT16), b = hr_cast(b, HR_DTYPE_BFLOAT16);
	return activate(hr__matmul_layer(x, w, b), activation);
}

hr_value hr_dense(const char *name, hr_value x, int64_t units, hr_activation activation, uint64_t seed)
{
	hr__type type;
	if (!enter(name, "dense", x, 1, HR_SHAPE_MAX_RANK, &type)) return HR_NO_VALUE;
	int last = type.dims.rank - 1;
	int64_t in = type.dims.d[last], rows = 1;
	for (int i = 0; i < last; i++) rows *= type.dims.d[i];
	hr_value y = dense(hr_reshape(x, HR_DIMS(rows, in)), &type, in, units, activation, seed);
	type.dims.d[last] = units;
	return leave(hr_reshape(y, type.dims.d, type.dims.rank));
}

hr_value hr_conv_layer(const char *name, hr_value x, int64_t channels, int64_t size, int64_t stride, int64_t padding, hr_activation activation,
                       uint64_t seed)
{
	hr__type type;
	if (!enter(name, "conv", x, 4, 4, &type)) return HR_NO_VALUE;
	int64_t in = type.dims.d[1];
	double wide = (double)in * (double)size * (double)size;
	hr_value w = parameter("w", &type, HR_DIMS(channels, in, size, size), HR_NORMAL(1 / sqrt(wide > 0 ? wide : 1), seed));
	hr_value b = w.id ? parameter("b", &type, HR_DIMS(channels, 1, 1), HR_ZEROS) : HR_NO_VALUE;
	return leave(activate(hr_add(hr_conv2d(x, w, stride, padding), b), activation));
}

hr_value hr_embedding(const char *name, hr_value indices, int64_t count, int64_t width, hr_dtype dtype, uint64_t seed)
{
	hr__type type;
	if (!enter(name, "embedding", indices, 0, HR_SHAPE_MAX_RANK - 1, &type)) return HR_NO_VALUE;
	hr__type like = { .dtype = dtype };
	return leave(hr_gather(parameter("w", &like, HR_DIMS(count, width), HR_NORMAL(0.02, seed)), indices));
}

hr_value hr_layer_norm_layer_to(const char *name, hr_value x, hr_dtype dtype)
{
	hr__type type;
	if (!enter(name, "layer norm", x, 1, HR_SHAPE_MAX_RANK, &type)) return HR_NO_VALUE;
	int64_t width = type.dims.d[type.dims.rank - 1];
	hr_value gain = parameter("gain", &type, HR_DIMS(width), HR_FULL(1));
	hr_value bias = gain.id ? parameter("bias", &type, HR_DIMS(width), HR_ZEROS) : HR_NO_VALUE;
	return leave(hr__layer_norm_to(dtype, x, gain, bias, 1e-5));
}

hr_value hr_layer_norm_layer(const char *name, hr_value x)
{
	return hr_layer_norm_layer_to(name, x, (hr_dtype)0);
}

/* Moves a running statistic towards [to], a temporary value, by a fraction. */
static bool move_towards(hr_variable statistic, hr_value to, double fraction)
{
	hr_value by = hr_scale(hr_sub(to, hr_variable_read(statistic)), fraction, 0);
	return by.id && hr_assign_add(statistic, by).id;
}

/* The variance of a sample of [count] numbers is that of the numbers times count / (count - 1). */
static hr_value batch_norm_training(hr_value x, hr_value gain, hr_value bias, hr_variable mean, hr_variable variance, double momentum, double count)
{
	hr_value of_batch[2];
	hr_value y = hr_batch_norm(x, gain, bias, 1e-5, &of_batch[0], &of_batch[1]);
	if (!y.id) return y;
	bool moved = move_towards(mean, of_batch[0], momentum);
	if (!moved) hr_value_release(of_batch[1]);
	else moved = move_towards(variance, hr_scale(of_batch[1], count > 1 ? count / (count - 1) : 1, 0), momentum);
	if (moved) return y;
	hr__value_consume(y);
	return HR_NO_VALUE;
}

static hr_value batch_norm(hr_value x, const hr__type *type, double momentum, bool training)
{
	int64_t channels = type->dims.d[1];
	hr__type like = { type->dtype, { 1, { channels } } };
	hr_variable mean = hr__variable_statistic("mean", &like, HR_ZEROS);
	hr_variable variance = mean.id ? hr__variable_statistic("variance", &like, HR_FULL(1)) : mean;
	hr_value gain = variance.id ? parameter("gain", type, HR_DIMS(channels), HR_FULL(1)) : HR_NO_VALUE;
	hr_value bias = gain.id ? parameter("bias", type, HR_DIMS(channels), HR_ZEROS) : HR_NO_VALUE;
	if (training)
		return batch_norm_training(x, gain, bias, mean, variance, momentum, channels ? (double)hr__dims_count(&type->dims) / (double)channels : 0);
	hr_value of_mean = bias.id ? hr_variable_read(mean) : HR_NO_VALUE, of_variance = of_mean.id ? hr_variable_read(variance) : HR_NO_VALUE;
	return hr_batch_norm_inference(x, of_mean, of_variance, gain, bias, 1e-5);
}

hr_value hr_batch_norm_layer(const char *name, hr_value x, double momentum, bool training)
{
	hr__type type;
	if (!enter(name, "batch norm", x, 2, HR_SHAPE_MAX_RANK, &type)) return HR_NO_VALUE;
	if (momentum >= 0 && momentum <= 1) return leave(batch_norm(x, &type, momentum, training));
	hr__fail(HR_INVALID_ARGUMENT, "layer \"%.100s\" (batch norm): the momentum is %g; it is from 0 to 1", name, momentum);
	hr__value_consume(x);
	return leave(HR_NO_VALUE);
}

/* Draws other numbers in each call: the number of the call is the offset. In a graph the new count is the offset, so that each run which
 * needs the result counts. */
static hr_value drop(hr_value x, double rate, uint64_t seed)
{
	hr_variable calls = hr__variable_statistic("calls", &(hr__type){ .dtype = HR_DTYPE_INT64 }, HR_ZEROS);
	hr_value one = calls.id ? hr_full(HR_DTYPE_INT64, HR_SCALAR, 1) : HR_NO_VALUE;
	hr_value added = one.id ? hr_assign_add(calls, one) : HR_NO_VALUE;
	hr_value offset = added.id && !hr__graph_current() ? hr_variable_read(calls) : added;
	return hr_dropout(x, rate, seed, offset, true);
}

hr_value hr_dropout_layer(const char *name, hr_value x, double rate, uint64_t seed, bool training)
{
	hr__type type;
	if (!training) return hr_dropout(x, rate, seed, HR_NO_VALUE, false);
	if (!enter(name, "dropout", x, 0, HR_SHAPE_MAX_RANK, &type)) return HR_NO_VALUE;
	return leave(drop(x, rate, seed));
}

/* Of bfloat16, q, k and v, scores and results are products in bfloat16 too. */
static hr_value attend(hr_value x, const hr__dims *dims, int64_t heads, bool causal, uint64_t seed)
{
	int64_t width = dims->d[2];
	hr_value q = hr_dense("q", x, width, HR_LINEAR, seed);
	hr_value k = hr_dense("k", x, width, HR_LINEAR, seed + 1);
	hr_value v = hr_dense("v", x, width, HR_LINEAR, seed + 2);
	return hr_dense("out", hr_attend(q, k, v, heads, 1 / sqrt((double)width / (double)heads), causal), width, HR_LINEAR, seed + 3);
}

hr_value hr_attention(const char *name, hr_value x, int64_t heads, bool causal, uint64_t seed)
{
	hr__type type;
	if (!enter(name, "attention", x, 3, 3, &type)) return HR_NO_VALUE;
	if (heads < 1 || type.dims.d[2] % heads) {
		hr__fail(HR_INVALID_ARGUMENT, "layer \"%.100s\" (attention): a width of %lld cannot be split into %lld heads", name, (long long)type.dims.d[2],
		         (long long)heads);
		hr__value_consume(x);
		return leave(HR_NO_VALUE);
	}
	hr_value kept = hr__value_alias(x); /* used three times; [x] may be temporary */
	hr_value y = attend(hr_value_keep(kept), &type.dims, heads, causal, seed);
	hr_value_release(kept);
	hr__value_consume(x);
	return leave(y);
}
