/* models.h - three models: a dense network, a convolutional one and a small GPT; and an emulated GPU to train them on. Shared by
 * examples, tests and benchmarks.
 *
 * Each model creates its variables on the first call, in the current variable scope; call it in a scope with HR_REUSE_OR_MAKE. With
 * [checkpointed], values inside its blocks are not kept for gradients but recomputed. */
#ifndef HEADROOM_EXAMPLES_MODELS_H
#define HEADROOM_EXAMPLES_MODELS_H

#include <headroom.h>
#include <headroom_runtime.h>
#include <stdio.h>

struct model {
	const char *name;
	/* One batch. The same step gives the same batch. */
	hr_value (*inputs)(const struct model *model, uint64_t step);
	hr_value (*labels)(const struct model *model, uint64_t step);
	/* The logits: [rows, classes]. Consumes [x], if temporary. */
	hr_value (*logits)(const struct model *model, hr_value x, bool checkpointed);
	int64_t batch, width, classes;
	int64_t time, heads, blocks; /* of a GPT */
	int64_t image;               /* of a convolutional network: width and height in pixels; three channels */
	bool bfloat16;               /* a GPT multiplies matrices in bfloat16 */
	double dropout;              /* of a GPT: the rate; 0 = none */
};

/* ---- a dense network ---- */

static inline hr_value model_mlp_inputs(const struct model *model, uint64_t step)
{
	return hr_random_normal(HR_DTYPE_FLOAT32, HR_DIMS(model->batch, model->width), 1000 + step);
}

static inline hr_value model_row_labels(const struct model *model, uint64_t step)
{
	return hr_random_uniform(HR_DTYPE_INT32, HR_DIMS(model->batch), 0, (double)model->classes, 2000 + step);
}

static inline hr_value model_mlp_logits(const struct model *model, hr_value x, bool checkpointed)
{
	if (checkpointed) hr_checkpoint_begin();
	hr_value h = hr_dense("one", x, model->width, HR_RELU, 1);
	h = hr_dense("two", h, model->width, HR_RELU, 2);
	if (checkpointed) hr_checkpoint_end();
	return hr_dense("out", h, model->classes, HR_LINEAR, 3);
}

/* ---- a convolutional network ---- */

static inline hr_value model_conv_inputs(const struct model *model, uint64_t step)
{
	return hr_random_normal(HR_DTYPE_FLOAT32, HR_DIMS(model->batch, 3, model->image, model->image), 3000 + step);
}

/* Two convolutions of 3 by 3, then pooling to half the size. */
static inline hr_value model_conv_block(const char *name, hr_value x, int64_t channels, bool checkpointed, uint64_t seed)
{
	hr_variable_scope_push(name, HR_REUSE_AS_AROUND);
	if (checkpointed) hr_checkpoint_begin();
	x = hr_conv_layer("a", x, channels, 3, 1, 1, HR_RELU, seed);
	x = hr_conv_layer("b", x, channels, 3, 1, 1, HR_RELU, seed + 1);
	x = hr_max_pool(x, 2, 2);
	if (checkpointed) hr_checkpoint_end();
	hr_variable_scope_pop();
	return x;
}

static inline hr_value model_conv_logits(const struct model *model, hr_value x, bool checkpointed)
{
	x = model_conv_block("block1", x, model->width, checkpointed, 10);
	x = model_conv_block("block2", x, 2 * model->width, checkpointed, 20);
	int64_t side = model->image / 4;
	x = hr_reshape(x, HR_DIMS(model->batch, 2 * model->width * side * side));
	return hr_dense("out", hr_dense("dense", x, 128, HR_RELU, 30), model->classes, HR_LINEAR, 31);
}

/* ---- a small GPT ---- */

static inline hr_value model_gpt_inputs(const struct model *model, uint64_t step)
{
	return hr_random_uniform(HR_DTYPE_INT32, HR_DIMS(model->batch, model->time), 0, (double)model->classes, 4000 + step);
}

static inline hr_value model_gpt_labels(const struct model *model, uint64_t step)
{
	return hr_random_uniform(HR_DTYPE_INT32, HR_DIMS(model->batch * model->time), 0, (double)model->classes, 5000 + step);
}

/* The input of products. */
static inline hr_value model_gpt_norm(const struct model *model, const char *name, hr_value x)
{
	return hr_layer_norm_layer_to(name, x, model->bfloat16 ? HR_DTYPE_BFLOAT16 : HR_DTYPE_FLOAT32);
}

static inline hr_value model_gpt_drop(const struct model *model, const char *name, hr_value x, uint64_t seed)
{
	return model->dropout > 0 ? hr_dropout_layer(name, x, model->dropout, seed, true) : x;
}

static inline hr_value model_gpt_block(const struct model *model, hr_value x, int64_t number)
{
	char name[16];
	uint64_t seed = 100 + 10 * (uint64_t)number;
	snprintf(name, sizeof name, "block%d", (int)number);
	hr_variable_scope_push(name, HR_REUSE_AS_AROUND);
	hr_value_keep(x);
	hr_value h = hr_attention("attention", model_gpt_norm(model, "norm1", x), model->heads, true, seed);
	hr_value seen = hr_value_keep(hr_add(x, model_gpt_drop(model, "drop1", h, seed + 6)));
	hr_value_release(x);
	h = model_gpt_norm(model, "norm2", seen);
	h = hr_dense("wide", h, 4 * model->width, HR_GELU, seed + 4);
	h = hr_dense("narrow", h, model->width, HR_LINEAR, seed + 5);
	hr_value y = hr_add(seen, model_gpt_drop(model, "drop2", h, seed + 7));
	hr_value_release(seen);
	hr_variable_scope_pop();
	return y;
}

static inline hr_value model_gpt_logits(const struct model *model, hr_value tokens, bool checkpointed)
{
	hr_value x = hr_embedding("tokens", tokens, model->classes, model->width, HR_DTYPE_FLOAT32, 90);
	hr_variable_scope_push("positions", HR_REUSE_AS_AROUND);
	x = hr_add(x, hr_variable_read(hr_get_variable("w", HR_DTYPE_FLOAT32, HR_DIMS(model->time, model->width), HR_NORMAL(0.02, 91))));
	hr_variable_scope_pop();
	x = model_gpt_drop(model, "drop", x, 93);
	for (int64_t i = 0; i < model->blocks; i++) {
		if (checkpointed) hr_checkpoint_begin();
		x = model_gpt_block(model, x, i);
		if (checkpointed) hr_checkpoint_end();
	}
	x = hr_reshape(model_gpt_norm(model, "norm", x), HR_DIMS(model->batch * model->time, model->width));
	return hr_dense("out", x, model->classes, HR_LINEAR, 92);
}

/* ---- an emulated GPU ---- */

#define EMULATED_PAGE_BYTES 65536 /* small pages suit small models */

/* Makes GPU:0 an emulated device, even if there is a real one: the host computes, and small pages suit small models. Call it before
 * a device is first used. */
static inline hr_status emulate_gpu(void)
{
	hr_cuda_options cuda;
	hr_emulated_options emulated;
	hr_status status = hr_cuda_options_init(&cuda);
	if (!status) status = hr_emulated_options_init(&emulated);
	if (status) return status;
	cuda.enabled = false;
	emulated.page_bytes = EMULATED_PAGE_BYTES;
	status = hr_cuda_configure(&cuda);
	return status ? status : hr_emulated_configure(&emulated);
}

/* ---- defaults and training ---- */

#define MODEL_MLP { "mlp", model_mlp_inputs, model_row_labels, model_mlp_logits, .batch = 128, .width = 1024, .classes = 10 }
#define MODEL_CONV { "conv", model_conv_inputs, model_row_labels, model_conv_logits, .batch = 32, .width = 32, .classes = 10, .image = 32 }
#define MODEL_GPT \
	{ "gpt", model_gpt_inputs, model_gpt_labels, model_gpt_logits, .batch = 4, .width = 256, .classes = 1024, .time = 128, .heads = 8, .blocks = 4 }
/* GPT-2 medium, except that the last layer has weights of its own. */
#define MODEL_GPT2                                                                                                                         \
	{ "gpt2", model_gpt_inputs, model_gpt_labels, model_gpt_logits, .batch = 8, .width = 1024, .classes = 50257, .time = 1024, .heads = 16, \
	  .blocks = 24, .bfloat16 = true, .dropout = 0.1 }

/* One training step. Returns the loss before the step, as a temporary value. HR_NO_VALUE on failure, with the reason in
 * hr_last_message. Consumes temporary inputs. */
static inline hr_value model_train(const struct model *model, hr_value x, hr_value labels, const hr_optimizer *optimizer, bool checkpointed)
{
	hr_variable variables[1024];
	hr_value done = HR_NO_VALUE;
	if (hr_variable_scope_push(model->name, HR_REUSE_OR_MAKE)) return HR_NO_VALUE;
	hr_status status = hr_tape_begin();
	hr_value loss = hr_value_keep(hr_reduce_mean(hr_cross_entropy(model->logits(model, x, checkpointed), labels), HR_ALL_AXES, false));
	size_t count = hr_trainable_variables(variables, 1024);
	if (!status && loss.id) done = hr_minimize(optimizer, loss, variables, count);
	if (!status) hr_tape_end();
	hr_variable_scope_pop();
	hr_value out = done.id ? hr_scale(loss, 1, 0) : HR_NO_VALUE;
	hr_value_release(loss);
	return out;
}

#endif
