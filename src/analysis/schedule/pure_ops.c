/* pure_ops.c - see pure_ops.h. */
#include "analysis/schedule/pure_ops.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

/* Base names, without "aten::" and overload. */
#define PURE_OPS(X) \
	/* matrix products and convolutions */ \
	X("addbmm", PURE) X("addmm", PURE) X("addmv", PURE) X("addr", PURE) X("baddbmm", PURE) X("bmm", PURE) X("dot", PURE) X("linear", PURE) \
	X("matmul", PURE) X("mm", PURE) X("mv", PURE) X("outer", PURE) X("_addmm_activation", PURE) X("_scaled_mm", PURE) X("_int_mm", PURE) \
	X("_convolution", PURE) X("_slow_conv2d_forward", PURE) X("conv2d", PURE) X("conv_depthwise3d", PURE) X("convolution", PURE) \
	X("_conv_depthwise2d", PURE) X("cudnn_convolution", PURE) X("cudnn_convolution_transpose", PURE) X("cudnn_convolution_relu", PURE) \
	X("miopen_convolution", PURE) X("slow_conv3d_forward", PURE) X("slow_conv_transpose2d", PURE) \
	/* element by element */ \
	X("abs", PURE) X("acos", PURE) X("add", PURE) X("addcdiv", PURE) X("addcmul", PURE) X("asin", PURE) X("atan", PURE) X("atan2", PURE) \
	X("bitwise_and", PURE) X("bitwise_not", PURE) X("bitwise_or", PURE) X("bitwise_xor", PURE) X("ceil", PURE) X("clamp", PURE) \
	X("clamp_max", PURE) X("clamp_min", PURE) X("cos", PURE) X("cosh", PURE) X("div", PURE) X("eq", PURE) X("erf", PURE) X("erfc", PURE) \
	X("exp", PURE) X("exp2", PURE) X("expm1", PURE) X("floor", PURE) X("floor_divide", PURE) X("fmod", PURE) X("frac", PURE) X("ge", PURE) \
	X("gt", PURE) X("isfinite", PURE) X("isinf", PURE) X("isnan", PURE) X("le", PURE) X("lerp", PURE) X("log", PURE) X("log10", PURE) \
	X("log1p", PURE) X("log2", PURE) X("logical_and", PURE) X("logical_not", PURE) X("logical_or", PURE) X("logical_xor", PURE) X("lt", PURE) \
	X("masked_fill", PURE) X("maximum", PURE) X("minimum", PURE) X("mul", PURE) X("nan_to_num", PURE) X("ne", PURE) X("neg", PURE) \
	X("pow", PURE) X("reciprocal", PURE) X("remainder", PURE) X("round", PURE) X("rsqrt", PURE) X("rsub", PURE) X("sgn", PURE) X("sign", PURE) \
	X("sin", PURE) X("sinh", PURE) X("sqrt", PURE) X("square", PURE) X("sub", PURE) X("tan", PURE) X("tanh", PURE) X("true_divide", PURE) \
	X("trunc", PURE) X("where", PURE) X("xlogy", PURE) \
	/* activations */ \
	X("celu", PURE) X("elu", PURE) X("gelu", PURE) X("glu", PURE) X("hardshrink", PURE) X("hardsigmoid", PURE) X("hardswish", PURE) \
	X("hardtanh", PURE) X("leaky_relu", PURE) X("log_sigmoid_forward", PURE) X("mish", PURE) X("_prelu_kernel", PURE) X("prelu", PURE) \
	X("relu", PURE) X("relu6", PURE) X("selu", PURE) X("sigmoid", PURE) X("silu", PURE) X("softplus", PURE) X("softshrink", PURE) \
	X("threshold", PURE) X("_log_softmax", PURE) X("_safe_softmax", PURE) X("_softmax", PURE) X("log_softmax", PURE) X("softmax", PURE) \
	/* normalization */ \
	X("_fused_rms_norm", PURE) X("group_norm", PURE) X("layer_norm", PURE) X("native_group_norm", PURE) X("native_layer_norm", PURE) \
	X("rms_norm", PURE) X("_batch_norm_with_update", STATISTICS) X("_native_batch_norm_legit", STATISTICS) X("batch_norm", STATISTICS) \
	X("cudnn_batch_norm", STATISTICS) X("miopen_batch_norm", STATISTICS) X("native_batch_norm", STATISTICS) \
	/* dropout, attention, recurrent layers */ \
	X("_fused_dropout", SEEDED) X("native_dropout", SEEDED) X("_scaled_dot_product_attention_math", SEEDED) \
	X("_scaled_dot_product_cudnn_attention", SEEDED) X("_scaled_dot_product_efficient_attention", SEEDED) \
	X("_scaled_dot_product_flash_attention", SEEDED) X("_efficient_attention_forward", SEEDED) X("_flash_attention_forward", SEEDED) \
	X("attend", PURE) X("attend_grad", PURE) X("_cudnn_rnn", SEEDED) X("_thnn_fused_gru_cell", PURE) X("_thnn_fused_lstm_cell", PURE) X("gru_cell", PURE) X("lstm_cell", PURE) \
	/* reductions */ \
	X("all", PURE) X("amax", PURE) X("amin", PURE) X("any", PURE) X("argmax", PURE) X("argmin", PURE) X("linalg_vector_norm", PURE) \
	X("logsumexp", PURE) X("max", PURE) X("mean", PURE) X("min", PURE) X("norm", PURE) X("prod", PURE) X("std", PURE) X("sum", PURE) \
	X("var", PURE) X("var_mean", PURE) X("reduce_max", PURE) X("reduce_mean", PURE) X("reduce_sum", PURE) X("sum_to", PURE) \
	/* pooling and interpolation */ \
	X("_adaptive_avg_pool2d", PURE) X("_adaptive_avg_pool3d", PURE) X("adaptive_max_pool2d", PURE) X("avg_pool", PURE) X("avg_pool2d", PURE) \
	X("avg_pool3d", PURE) X("max_pool", PURE) X("max_pool2d_with_indices", PURE) X("max_pool3d_with_indices", PURE) \
	X("pixel_shuffle", PURE) X("pixel_unshuffle", PURE) X("upsample_bicubic2d", PURE) X("upsample_bilinear2d", PURE) \
	X("upsample_linear1d", PURE) X("upsample_nearest1d", PURE) X("upsample_nearest2d", PURE) X("upsample_nearest3d", PURE) \
	X("upsample_trilinear3d", PURE) X("_upsample_bilinear2d_aa", PURE) X("_upsample_nearest_exact2d", PURE) \
	/* copies, and tensors made of others */ \
	X("_to_copy", PURE) X("broadcast_to", PURE) X("cast", PURE) X("cat", PURE) X("clone", PURE) X("concat", PURE) X("constant_pad_nd", PURE) \
	X("contiguous", PURE) X("copy", PURE) X("embedding", PURE) X("flip", PURE) X("gather", PURE) X("im2col", PURE) X("index", PURE) \
	X("index_select", PURE) X("narrow_copy", PURE) X("one_hot", PURE) X("pad", PURE) X("reflection_pad1d", PURE) X("reflection_pad2d", PURE) \
	X("repeat", PURE) X("replication_pad2d", PURE) X("roll", PURE) X("scale", PURE) X("select_scatter", PURE) X("slice_scatter", PURE) \
	X("stack", PURE) X("take_along_dim", PURE) X("to_copy", PURE) X("tril", PURE) X("triu", PURE) \
	X("arange", PURE) X("eye", PURE) X("full", PURE) X("full_like", PURE) X("linspace", PURE) X("ones", PURE) X("ones_like", PURE) \
	X("scalar_tensor", PURE) X("zeros", PURE) X("zeros_like", PURE) \
	/* losses */ \
	X("binary_cross_entropy", PURE) X("binary_cross_entropy_with_logits", PURE) X("cross_entropy", PURE) X("huber_loss", PURE) \
	X("l1_loss", PURE) X("mse_loss", PURE) X("nll_loss_forward", PURE) X("smooth_l1_loss", PURE) \
	/* gradients, element by element or row by row */ \
	X("_log_softmax_backward_data", PURE) X("_softmax_backward_data", PURE) X("cross_entropy_grad", PURE) X("elu_backward", PURE) \
	X("gelu_backward", PURE) X("gelu_grad", PURE) X("glu_backward", PURE) X("hardsigmoid_backward", PURE) X("hardswish_backward", PURE) \
	X("hardtanh_backward", PURE) X("leaky_relu_backward", PURE) X("log_sigmoid_backward", PURE) X("mish_backward", PURE) \
	X("mse_loss_backward", PURE) X("native_dropout_backward", PURE) X("nll_loss_backward", PURE) X("relu_grad", PURE) \
	X("sigmoid_backward", PURE) X("silu_backward", PURE) X("smooth_l1_loss_backward", PURE) X("softmax_grad", PURE) \
	X("softplus_backward", PURE) X("tanh_backward", PURE) X("tanh_grad", PURE) X("threshold_backward", PURE) \
	/* many tensors at once */ \
	X("_foreach_abs", PURE) X("_foreach_add", PURE) X("_foreach_addcdiv", PURE) X("_foreach_addcmul", PURE) X("_foreach_div", PURE) \
	X("_foreach_lerp", PURE) X("_foreach_maximum", PURE) X("_foreach_mul", PURE) X("_foreach_neg", PURE) X("_foreach_norm", PURE) \
	X("_foreach_pow", PURE) X("_foreach_sqrt", PURE) X("_foreach_sub", PURE) \
	/* views; those of the runtime copy */ \
	X("_reshape_alias", VIEW) X("_unsafe_view", VIEW) X("alias", VIEW) X("as_strided", VIEW) X("chunk", VIEW) X("detach", VIEW) \
	X("expand", VIEW) X("lift_fresh", VIEW) X("permute", VIEW) X("reshape", VIEW) X("select", VIEW) X("slice", VIEW) X("split", VIEW) \
	X("split_with_sizes", VIEW) X("squeeze", VIEW) X("t", VIEW) X("transpose", VIEW) X("unbind", VIEW) X("unsqueeze", VIEW) X("view", VIEW)

static const struct pure_op {
	const char *name;
	hr__purity purity;
} pure_ops[] = {
#define PURE_OP_ROW(name, purity) { name, HR__OP_##purity },
	PURE_OPS(PURE_OP_ROW)
#undef PURE_OP_ROW
};

static hr__purity purity_of(const char *name, size_t length)
{
	for (size_t i = 0; i < sizeof pure_ops / sizeof pure_ops[0]; i++)
		if (strncmp(pure_ops[i].name, name, length) == 0 && pure_ops[i].name[length] == 0) return pure_ops[i].purity;
	return HR__OP_NOT_PURE;
}

hr__purity hr__op_purity(const char *name)
{
	static const char space[] = "aten::";
	if (strncmp(name, space, sizeof space - 1) == 0) name += sizeof space - 1;
	size_t length = strcspn(name, ".");
	if (strstr(name + length, "out")) return HR__OP_NOT_PURE; /* writes into given outputs */
	hr__purity found = purity_of(name, length);
	if (found != HR__OP_NOT_PURE || length < 2 || name[length - 1] != '_' || name[length - 2] == '_') return found;
	bool many = strncmp(name, "_foreach_", 9) == 0;
	return !many && purity_of(name, length - 1) == HR__OP_PURE ? HR__OP_IN_PLACE : HR__OP_NOT_PURE;
}
