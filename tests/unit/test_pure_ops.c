/* test_pure_ops.c - which ops can run again, by name, and by what they write. */
#include "analysis/schedule/pure_ops.h"
#include "test.h"

static void check_names(hr__purity purity, const char *const *names)
{
	for (; *names; names++) {
		if (hr__op_purity(*names) != purity) printf("# %s\n", *names);
		CHECK_EQ(hr__op_purity(*names), purity);
	}
}

static void test_names_of_pytorch_are_known_in_every_form(void)
{
	static const char *const pure[] = { "mm", "aten::mm", "mm.default", "aten::mm.default", "add.Tensor", "_to_copy", "native_layer_norm.default", NULL };
	static const char *const seeded[] = { "native_dropout.default", "aten::_scaled_dot_product_flash_attention", NULL };
	static const char *const views[] = { "_unsafe_view.default", "aten::view", "t", NULL };
	check_names(HR__OP_PURE, pure);
	check_names(HR__OP_SEEDED, seeded);
	check_names(HR__OP_VIEW, views);
	CHECK_EQ(hr__op_purity("cudnn_batch_norm.default"), HR__OP_STATISTICS);
}

static void test_ops_of_the_runtime_are_known(void)
{
	static const char *const pure[] = { "matmul", "conv2d", "layer_norm", "reduce_sum", "cast", "concat", "relu_grad", "broadcast_to", NULL };
	static const char *const others[] = { "adam", "sgd", "momentum", "assign", "random_normal", "scatter_rows", NULL };
	check_names(HR__OP_PURE, pure);
	check_names(HR__OP_NOT_PURE, others);
}

static void test_ops_in_place_have_the_name_of_a_pure_op(void)
{
	static const char *const names[] = { "relu_", "aten::relu_", "add_.Tensor", "aten::mul_.Scalar", "clamp_min_", NULL };
	check_names(HR__OP_IN_PLACE, names);
}

static void test_what_is_random_atomic_or_unknown_is_not_pure(void)
{
	static const char *const names[] = { "relu__", "_", "view_", "dropout_", "native_batch_norm_", "mm.out",   "aten::add.out", "bernoulli_.float", "rand.default",
		                                 "index_add",    "scatter_add.default",  "index_put", "embedding_dense_backward.default",
		                                 "convolution_backward.default", "native_layer_norm_backward", "_foreach_add_.Scalar",
		                                 "c10d::allreduce_", "all_reduce", "_local_scalar_dense.default", "empty.memory_format", "m", "mmm", "", ".", "aten::",
		                                 "Mm", NULL };
	check_names(HR__OP_NOT_PURE, names);
}

TEST_MAIN(T(test_names_of_pytorch_are_known_in_every_form), T(test_ops_of_the_runtime_are_known),
          T(test_ops_in_place_have_the_name_of_a_pure_op), T(test_what_is_random_atomic_or_unknown_is_not_pure))
