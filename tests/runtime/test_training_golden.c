/* test_training_golden.c - the losses of a network of three layers over 100 steps agree with PyTorch, with the same initial weights
 * and data: outside of graphs, and as a function.
 *
 * Expected values are in golden/training.txt, computed in float64 by tools/golden.py. Weights and data are hashes of their indices,
 * which Python computes to the same bits; so nothing large needs to be stored.
 *
 * Tolerance: sums of 1024 products have relative errors of about 1e-7, which accumulate from step to step, and Adam divides
 * gradients by their own magnitude, so that even the sign of one close to 0 is uncertain. PyTorch's own losses in float32 differ
 * from those in float64 by up to 2e-5, relative, here, where the loss falls by a factor of 3000. Five times that is allowed.
 *
 *   HR_TEST_CARD   1: on the machine's card */
#include "card/support_card.h"
#include "headroom_runtime.h"
#include "runtime/support_golden.h"

#define ALLOWED 1e-4
#define STEPS 100
#define TESTED (HR_TEST_SANITIZED ? 10 : STEPS) /* later steps run the same code again */
#define BATCHES 4
#define ROWS 128
#define WIDTH 1024
#define CLASSES 10
#define LAYERS 3
#define VARIABLES (2 * LAYERS)

/* ---- numbers that both sides compute ---- */

/* -bound ... bound, exact in float32 if that is a power of two. */
static float hashed(uint32_t tensor, uint32_t index, float bound)
{
	uint32_t h = index * 0x9E3779B1u + tensor * 0x85EBCA6Bu;
	h = (h ^ h >> 16) * 0x7FEB352Du;
	h = (h ^ h >> 15) * 0x846CA68Bu;
	h ^= h >> 16;
	return ((float)(h >> 8) / (1 << 23) - 1) * bound;
}

static hr_value hashed_value(uint32_t tensor, int64_t rows, int64_t columns, float bound)
{
	float *data = malloc((size_t)(rows * columns) * sizeof *data);
	CHECK(data != NULL);
	for (int64_t i = 0; i < rows * columns; i++) data[i] = hashed(tensor, (uint32_t)i, bound);
	hr_value value = hr_constant(HR_DTYPE_FLOAT32, HR_DIMS(rows, columns), data);
	free(data);
	return value;
}

/* The label of a row: the index of the largest of its first numbers. */
static hr_value labels_of(uint32_t tensor)
{
	int32_t labels[ROWS];
	for (uint32_t row = 0; row < ROWS; row++) {
		labels[row] = 0;
		for (int32_t i = 1; i < CLASSES; i++)
			if (hashed(tensor, row * WIDTH + (uint32_t)i, 1) > hashed(tensor, row * WIDTH + (uint32_t)labels[row], 1)) labels[row] = i;
	}
	return hr_constant(HR_DTYPE_INT32, HR_DIMS(ROWS), labels);
}

/* ---- the model ---- */

static hr_session session;
static hr_variable variables[VARIABLES];
static hr_value data[BATCHES], labels[BATCHES];

static int64_t units(int layer)
{
	return layer + 1 < LAYERS ? WIDTH : CLASSES;
}

static void make_variables(void)
{
	static const char *const names[] = { "w0", "b0", "w1", "b1", "w2", "b2" };
	for (int i = 0; i < LAYERS; i++) {
		variables[2 * i] = hr_get_variable(names[2 * i], HR_DTYPE_FLOAT32, HR_DIMS(WIDTH, units(i)), HR_UNINITIALIZED);
		variables[2 * i + 1] = hr_get_variable(names[2 * i + 1], HR_DTYPE_FLOAT32, HR_DIMS(units(i)), HR_ZEROS);
		CHECK(variables[2 * i].id && variables[2 * i + 1].id);
		CHECK(hr_assign(variables[2 * i], hashed_value((uint32_t)i, WIDTH, units(i), 0.0625f)).id != 0);
	}
}

static hr_value loss_of(hr_value x, hr_value classes)
{
	for (int i = 0; i < LAYERS; i++) {
		x = hr_add(hr_matmul(x, hr_variable_read(variables[2 * i])), hr_variable_read(variables[2 * i + 1]));
		if (i + 1 < LAYERS) x = hr_relu(x);
	}
	return hr_reduce_mean(hr_cross_entropy(x, classes), HR_ALL_AXES, false);
}

/* Written once, run in both ways. */
static hr_status train(void *context, const hr_value *ins, size_t in_count, hr_value *outs, size_t out_count)
{
	hr_optimizer adam;
	(void)context, (void)in_count, (void)out_count;
	hr_optimizer_init(&adam, HR_ADAM);
	hr_status status = hr_tape_begin();
	if (status != HR_OK) return status;
	outs[0] = hr_value_keep(loss_of(ins[0], ins[1]));
	if (!hr_minimize(&adam, outs[0], variables, VARIABLES).id) status = hr_last_status();
	hr_tape_end();
	return status;
}

/* ---- comparing ---- */

static void set_up(void)
{
	bool on_card = getenv("HR_TEST_CARD") != NULL;
	if (on_card) card_begin();
	session = card_session(on_card ? "GPU:0" : "CPU:0", (hr_allocator){ 0 });
	if (on_card) CHECK_STATUS(HR_OK, hr_session_compute_check(session));
	CHECK_STATUS(HR_OK, hr_session_enter(session));
	make_variables();
	for (uint32_t i = 0; i < BATCHES; i++) {
		data[i] = hr_value_keep(hashed_value(10 + i, ROWS, WIDTH, 0.03125f));
		labels[i] = hr_value_keep(labels_of(10 + i));
	}
}

static void tear_down(void)
{
	for (int i = 0; i < BATCHES; i++) {
		hr_value_release(data[i]);
		hr_value_release(labels[i]);
	}
	CHECK_STATUS(HR_OK, hr_session_leave());
	CHECK_STATUS(HR_OK, hr_session_destroy(session));
	CHECK_STATUS(HR_OK, hr_shutdown());
}

static void compare(const float *losses)
{
	struct golden_file file;
	struct golden_case of, none;
	double worst = 0;
	golden_open(&file, "training");
	CHECK(golden_read(&file, &of));
	CHECK(!golden_read(&file, &none));
	CHECK_STR(of.op, "mlp");
	CHECK_EQ(of.out_count, 1);
	CHECK_EQ(of.out[0].count, STEPS);
	for (int i = 0; i < TESTED; i++) {
		double expected = of.out[0].values[i], off = fabs((double)losses[i] - expected) / expected;
		if (!(off <= ALLOWED)) printf("# step %d: loss %.9g, expected %.9g\n", i, (double)losses[i], expected);
		CHECK(off <= ALLOWED);
		if (off > worst) worst = off;
	}
	printf("# loss %.6f to %.6f, at most %.2g off\n", (double)losses[0], (double)losses[TESTED - 1], worst);
	golden_free(&of);
}

static void test_losses_are_those_of_pytorch_outside_of_graphs(void)
{
	float losses[STEPS];
	set_up();
	for (int i = 0; i < TESTED; i++) {
		hr_value loss;
		CHECK_STATUS(HR_OK, train(NULL, (hr_value[]){ data[i % BATCHES], labels[i % BATCHES] }, 2, &loss, 1));
		CHECK_STATUS(HR_OK, hr_value_fetch(loss, &losses[i], sizeof losses[i]));
		hr_value_release(loss);
	}
	tear_down();
	compare(losses);
}

static void test_losses_are_those_of_pytorch_in_a_function(void)
{
	float losses[STEPS];
	hr_function function;
	set_up();
	CHECK_STATUS(HR_OK, hr_function_create("train", train, NULL, &function));
	for (int i = 0; i < TESTED; i++) {
		hr_value loss;
		CHECK_STATUS(HR_OK, hr_function_call(function, (hr_value[]){ data[i % BATCHES], labels[i % BATCHES] }, 2, &loss, 1));
		CHECK_STATUS(HR_OK, hr_value_fetch(loss, &losses[i], sizeof losses[i]));
	}
	CHECK_STATUS(HR_OK, hr_function_destroy(function));
	tear_down();
	compare(losses);
}

TEST_MAIN(T_WITHIN(test_losses_are_those_of_pytorch_outside_of_graphs, 300), T_WITHIN(test_losses_are_those_of_pytorch_in_a_function, 300))
