/* train.c - data-parallel training with MPI: each rank computes the gradients of its part of the batch, the ranks add them up, and each updates its copy of the
 * model, so that all copies stay equal.
 *
 *     mpicc train.c $(pkg-config --cflags --libs headroom_runtime) -o train
 *     mpirun -n 4 headroom run --trace run-%r.hrt -- ./train
 *     headroom report run-*.hrt
 *
 *     train [STEPS] [EXTRA]    STEPS: 20. EXTRA: the last rank needs that many MiB more in the last step, as a long sequence would
 *
 * With HEADROOM_OOM_REPORT=stderr in the environment, a rank that runs out of memory prints what it holds and what the other ranks on its host hold. */
#include <headroom.h>
#include <headroom_runtime.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#define BATCH 64 /* rows of all ranks together */
#define WIDTH 256
#define PARAMETERS 4 /* a weight and a bias of two layers */

/* MPI needs the data in host memory: one variable at a time. */
static float host[WIDTH * WIDTH];

static int rank, ranks;

static int fail(const char *what)
{
	fprintf(stderr, "rank %d: %s: %s\n", rank, what, hr_last_message());
	MPI_Abort(MPI_COMM_WORLD, 1);
	return 1;
}

/* From a batch to the loss and the gradients. The labels are the sums of the rows, so there is something to learn. */
static hr_status compute_gradients(void *context, const hr_value *ins, size_t in_count, hr_value *outs, size_t out_count)
{
	hr_variable variables[PARAMETERS];
	(void)context, (void)in_count, (void)out_count;
	hr_value labels = hr_reduce_sum(ins[0], 1, true);
	hr_value hidden = hr_dense("hidden", ins[0], WIDTH, HR_TANH, 1); /* the same seed, so the same weights on all ranks */
	hr_value error = hr_value_keep(hr_sub(hr_dense("out", hidden, 1, HR_LINEAR, 2), labels));
	outs[0] = hr_value_keep(hr_reduce_mean(hr_mul(error, error), HR_ALL_AXES, false));
	size_t count = hr_trainable_variables(variables, PARAMETERS);
	hr_status status = hr_variable_gradients(outs[0], variables, count, outs + 1);
	hr_value_release(error);
	return status;
}

/* The mean of a value over all ranks. */
static hr_value mean_over_ranks(hr_value value)
{
	int64_t dims[2] = { 1, 1 };
	int rank_of_value = hr_value_rank(value);
	for (int i = 0; i < rank_of_value; i++) dims[i] = hr_value_dim(value, i);
	int count = (int)hr_value_count(value);
	if (hr_value_fetch(value, host, (size_t)count * sizeof *host) != HR_OK) return HR_NO_VALUE;
	MPI_Allreduce(MPI_IN_PLACE, host, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
	for (int i = 0; i < count; i++) host[i] /= (float)ranks;
	return hr_constant(HR_DTYPE_FLOAT32, dims, rank_of_value, host);
}

/* Returns the loss of the whole batch. */
static hr_status train_step(hr_function gradients, const hr_optimizer *adam, hr_value part, int64_t extra_mib, float *loss)
{
	hr_variable variables[PARAMETERS];
	hr_value outs[1 + PARAMETERS];
	hr_value extra = extra_mib ? hr_value_keep(hr_full(HR_DTYPE_FLOAT32, HR_DIMS(extra_mib, 1 << 18), 0)) : HR_NO_VALUE;
	if (extra_mib && !extra.id) return hr_last_status();
	hr_status status = hr_function_call(gradients, &part, 1, outs, 1 + PARAMETERS);
	if (status) return status;
	for (int i = 0; i < 1 + PARAMETERS; i++) {
		outs[i] = mean_over_ranks(outs[i]);
		if (!outs[i].id) return hr_last_status();
	}
	size_t count = hr_trainable_variables(variables, PARAMETERS);
	status = hr_value_fetch(outs[0], loss, sizeof *loss);
	if (!status && !hr_apply_gradients(adam, variables, outs + 1, count).id) status = hr_last_status();
	if (extra.id) hr_value_release(extra);
	return status;
}

/* Whether all ranks have the same number. */
static int is_same(float number)
{
	float least, most;
	MPI_Allreduce(&number, &least, 1, MPI_FLOAT, MPI_MIN, MPI_COMM_WORLD);
	MPI_Allreduce(&number, &most, 1, MPI_FLOAT, MPI_MAX, MPI_COMM_WORLD);
	return least == most;
}

/* The first weight of the output layer, as an example of all of them. */
static hr_status read_weight(float *out)
{
	hr_variable variables[PARAMETERS];
	hr_trainable_variables(variables, PARAMETERS);
	return hr_value_fetch(hr_slice(hr_variable_read(variables[2]), 0, 0, 1), out, sizeof *out);
}

int main(int count, char **arguments)
{
	hr_allocator allocator;
	hr_optimizer adam;
	hr_function gradients;
	hr_memory_info memory = { .struct_size = sizeof memory };
	float loss = 0, weight;
	MPI_Init(&count, &arguments);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	long steps = count > 1 ? strtol(arguments[1], NULL, 10) : 20, extra = count > 2 ? strtol(arguments[2], NULL, 10) : 0;

	hr_optimizer_init(&adam, HR_ADAM);
	adam.learning_rate = 0.01;
	if (hr_allocator_get_default("GPU:0", &allocator) != HR_OK) return fail("GPU:0");
	if (hr_function_create("gradients", compute_gradients, NULL, &gradients) != HR_OK) return fail("the function");

	/* Every rank makes the whole batch and keeps its part, as if it had read it from a file. */
	int64_t rows = BATCH / ranks;
	hr_value batch = hr_random_normal(HR_DTYPE_FLOAT32, HR_DIMS(BATCH, WIDTH), 7);
	hr_value part = hr_value_keep(hr_slice(batch, 0, rank * rows, rows));
	for (long step = 1; step <= steps; step++) {
		bool is_long = step == steps && rank == ranks - 1;
		if (hr_step_begin(allocator) != HR_OK) return fail("a step");
		if (train_step(gradients, &adam, part, is_long ? extra : 0, &loss) != HR_OK) return fail("a step");
		if (hr_step_end(allocator) != HR_OK) return fail("a step");
		if (rank == 0 && (step == 1 || step == steps)) printf("step %ld: loss %.4f\n", step, (double)loss);
	}
	hr_value_release(part);
	if (read_weight(&weight) != HR_OK) return fail("a weight");
	if (!is_same(weight)) return fprintf(stderr, "rank %d: the ranks have different weights\n", rank), 1;
	if (hr_get_memory_info("GPU:0", &memory) != HR_OK) return fail("GPU:0");
	printf("rank %d of %d: at most %.1f MiB in use\n", rank, ranks, (double)memory.peak / (1 << 20));
	MPI_Finalize();
	return hr_shutdown() == HR_OK ? 0 : fail("the end");
}
