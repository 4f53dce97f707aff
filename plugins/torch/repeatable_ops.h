// repeatable_ops.h - ops whose results can be computed again: they depend on the arguments alone, and the same arguments give the same bits.
//
// An op is not here if its kernels add with atomics (scatter, index_add, most backward passes), if it draws random numbers whose place in the generator's
// sequence is not known, if its result is a view, or if it costs more to compute again than any copy (factorizations).
// Names are those of PyTorch's schemas without namespace and overload; all overloads that only return new tensors count, and the op in place of the same name
// ("relu_"), which changes its first argument and nothing else.
#pragma once

#include <cstddef>

namespace headroom {

// Those whose time is that of reading their arguments and writing their results.
constexpr const char *const REPEATABLE_OPS[] = {
	// element by element
	"abs", "acos", "acosh", "add", "addcdiv", "addcmul", "angle", "asin", "asinh", "atan", "atan2", "atanh", "bitwise_and", "bitwise_not", "bitwise_or",
	"bitwise_xor", "ceil", "celu", "clamp", "clamp_max", "clamp_min", "copysign", "cos", "cosh", "deg2rad", "div", "elu", "eq", "erf", "erfc", "erfinv", "exp",
	"exp2", "expm1", "floor", "floor_divide", "fmod", "frac", "ge", "gelu", "glu", "gt", "hardshrink", "hardsigmoid", "hardswish", "hardtanh", "heaviside",
	"hypot", "isinf", "isnan", "le", "leaky_relu", "lerp", "lgamma", "log", "log10", "log1p", "log2", "log_sigmoid_forward", "logaddexp", "logical_and",
	"logical_not", "logical_or", "logical_xor", "logit", "lt", "masked_fill", "maximum", "minimum", "mish", "mul", "nan_to_num", "ne", "neg", "pow",
	"prelu", "_prelu_kernel", "reciprocal", "relu", "relu6", "remainder", "round", "rsqrt", "rsub", "selu", "sgn", "sigmoid", "sign", "silu", "sin", "sinc", "sinh",
	"softplus", "softshrink", "sqrt", "square", "sub", "tan", "tanh", "threshold", "trunc", "where", "xlogy",
	// copies and arrangements
	"_reshape_copy", "_to_copy", "cat", "channel_shuffle", "clone", "constant_pad_nd", "diag_embed", "embedding", "expand_copy", "flip", "gather", "im2col",
	"index", "index_select", "pixel_shuffle", "pixel_unshuffle", "reflection_pad1d", "reflection_pad2d", "repeat", "repeat_interleave", "replication_pad1d",
	"replication_pad2d", "roll", "rot90", "stack", "take", "tril", "triu", "unfold_copy", "upsample_bicubic2d", "upsample_bilinear2d", "upsample_linear1d",
	"upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "upsample_trilinear3d", "_upsample_nearest_exact2d",
	// without inputs
	"arange", "eye", "full", "full_like", "linspace", "ones", "ones_like", "zeros", "zeros_like",
	// norms, softmax, reductions
	"_batch_norm_impl_index", "_fused_rms_norm", "_log_softmax", "_softmax", "amax", "amin", "aminmax", "cudnn_batch_norm", "linalg_vector_norm", "logsumexp", "max", "mean",
	"min", "native_batch_norm", "native_group_norm", "native_layer_norm", "norm", "prod", "rms_norm", "std", "sum", "var", "var_mean",
	// pooling
	"_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "adaptive_max_pool2d", "avg_pool1d", "avg_pool2d", "avg_pool3d", "max_pool2d_with_indices",
	"max_pool3d_with_indices",
	// drawn from the generator
	"native_dropout",
};

// Those whose time is that of arithmetic, and does not follow from the bytes that they read and write.
constexpr const char *const REPEATABLE_PRODUCTS[] = {
	"_addmm_activation", "_convolution", "_slow_conv2d_forward", "addbmm", "addmm", "addmv", "baddbmm", "bmm", "conv_depthwise3d", "convolution",
	"convolution_overrideable", "cudnn_convolution", "cudnn_convolution_relu", "cudnn_convolution_transpose", "_conv_depthwise2d", "mkldnn_convolution", "mm", "mv", "outer",
	// attention: dropout in it is drawn from the generator
	"_efficient_attention_forward", "_flash_attention_forward", "_scaled_dot_product_cudnn_attention", "_scaled_dot_product_efficient_attention",
	"_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_attention_math",
};

// Ops in place after which the first argument holds nothing of what it held before.
constexpr const char *const FILLING_OPS[] = {"bernoulli_", "copy_", "fill_", "zero_"};

// Of the first two lists, the ones that draw random numbers, if the argument of that name is above 0.
struct RandomOp {
	const char *name, *probability;
};
constexpr RandomOp RANDOM_OPS[] = {
	{"native_dropout", "p"},
	{"_efficient_attention_forward", "dropout_p"},
	{"_flash_attention_forward", "dropout_p"},
	{"_scaled_dot_product_attention_math", "dropout_p"},
	{"_scaled_dot_product_cudnn_attention", "dropout_p"},
	{"_scaled_dot_product_efficient_attention", "dropout_p"},
	{"_scaled_dot_product_flash_attention", "dropout_p"},
	{"_scaled_dot_product_flash_attention_for_cpu", "dropout_p"},
};

} // namespace headroom
