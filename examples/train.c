/* train.c - ten training steps on a GPU with a memory limit of 1024 MiB: three dense layers, Adam, and the step as a function.
 *
 * The body train_step is called once and builds a graph; later calls run that graph. The body creates the variables. The graph
 * knows the last use of each intermediate value. The GPU is emulated, so the program runs anywhere. */
#include <headroom.h>
#include <headroom_runtime.h>
#include <stdio.h>

#define MIB ((uint64_t)1 << 20)
#define STEPS 10

static int fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, hr_last_message());
	return 1;
}

/* From a batch and its labels to the loss. The cross entropy includes the softmax of the last layer. */
static hr_status train_step(void *context, const hr_value *ins, size_t in_count, hr_value *outs, size_t out_count)
{
	const hr_optimizer *adam = context;
	hr_variable variables[6];
	(void)in_count, (void)out_count;
	hr_value hidden = hr_dense("dense_1", ins[0], 1024, HR_RELU, 1);
	hidden = hr_dense("dense_2", hidden, 1024, HR_RELU, 2);
	hr_value logits = hr_dense("dense_3", hidden, 10, HR_LINEAR, 3);
	hr_value loss = hr_reduce_mean(hr_cross_entropy(logits, ins[1]), HR_ALL_AXES, false);
	size_t count = hr_trainable_variables(variables, 6); /* a weight and a bias per layer */
	hr_value updated = hr_minimize(adam, loss, variables, count);
	outs[0] = loss;
	return updated.id ? HR_OK : hr_last_status();
}

/* Emulated even if there is a real GPU: the host computes, and can access the memory without copies. */
static hr_status limit_gpu(uint64_t bytes)
{
	hr_cuda_options cuda;
	hr_emulated_options emulated;
	hr_status status = hr_cuda_options_init(&cuda);
	if (!status) status = hr_emulated_options_init(&emulated);
	if (status) return status;
	cuda.enabled = false;
	emulated.memory_bytes = 2 * bytes;
	status = hr_cuda_configure(&cuda);
	if (!status) status = hr_emulated_configure(&emulated);
	if (!status) status = hr_device_set_logical("GPU:0", &bytes, 1);
	return status;
}

int main(void)
{
	hr_optimizer adam;
	hr_function function;
	hr_memory_info memory = { .struct_size = sizeof memory };
	if (limit_gpu(1024 * MIB) != HR_OK) return fail("limiting GPU:0");
	hr_optimizer_init(&adam, HR_ADAM);
	if (hr_function_create("train_step", train_step, &adam, &function) != HR_OK) return fail("train_step");

	hr_value x = hr_value_keep(hr_random_normal(HR_DTYPE_FLOAT32, HR_DIMS(128, 1024), 10));
	hr_value y = hr_value_keep(hr_random_uniform(HR_DTYPE_INT32, HR_DIMS(128), 0, 10, 11));
	for (int step = 1; step <= STEPS; step++) {
		float loss;
		hr_value out;
		if (hr_function_call(function, (hr_value[]){ x, y }, 2, &out, 1) != HR_OK) return fail("a step");
		if (hr_value_fetch(out, &loss, sizeof loss) != HR_OK) return fail("the loss");
		printf("step %2d: loss %.4f\n", step, (double)loss);
	}
	hr_value_release(x);
	hr_value_release(y);

	if (hr_get_memory_info("GPU:0", &memory) != HR_OK) return fail("GPU:0");
	printf("GPU:0: %.1f MiB in use (the weights, and two numbers of Adam's for each), at most %.1f MiB, of %lld MiB\n",
	       (double)memory.current / (double)MIB, (double)memory.peak / (double)MIB, (long long)(hr_get_bytes_limit(0) >> 20));
	return hr_shutdown() == HR_OK ? 0 : fail("the end");
}
