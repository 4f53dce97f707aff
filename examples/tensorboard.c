/* tensorboard.c - a training loop that records a profile for TensorBoard.
 *
 *     tensorboard LOGDIR
 *     tensorboard --logdir LOGDIR      (TensorBoard itself: pip install tensorboard xprof)
 *
 * Without LOGDIR it trains and records nothing. */
#include <headroom.h>
#include <headroom_analysis.h>
#include <headroom_record.h>
#include <headroom_runtime.h>
#include <stdio.h>
#include <stdlib.h>

static void check(hr_status status)
{
	if (!status) return;
	fprintf(stderr, "%s: %s\n", hr_status_name(status), hr_last_message());
	exit(1);
}

/* One training step of a layer. A step for the profiler is a run of a session, or what is between hr_step_begin and hr_step_end. */
static float train_step(hr_allocator allocator, hr_value x, hr_value *weights)
{
	float loss;
	hr_value gradient;
	check(hr_step_begin(allocator));
	check(hr_tape_begin());
	hr_value mean = hr_value_keep(hr_reduce_mean(hr_gelu(hr_matmul(x, *weights)), HR_ALL_AXES, false));
	check(hr_gradients(mean, weights, 1, &gradient));
	check(hr_tape_end());
	hr_value next = hr_value_keep(hr_sub(*weights, hr_scale(gradient, 0.1, 0)));
	check(hr_value_fetch(mean, &loss, sizeof loss));
	hr_value_release(mean);
	hr_value_release(*weights);
	*weights = next;
	check(hr_step_end(allocator));
	return loss;
}

int main(int argc, char **argv)
{
	hr_profiler_options options;
	hr_session_options on_gpu;
	hr_session session;
	float loss = 0;
	check(hr_analysis_register()); /* it writes the log; only a statically linked program has to say so */
	check(hr_profiler_options_init(&options));
	options.tensorboard = true;
	if (argc > 1) check(hr_profiler_start(argv[1], &options));

	hr_session_options_init(&on_gpu);
	on_gpu.device = "GPU:0";
	check(hr_allocator_get_default("GPU:0", &on_gpu.allocator));
	check(hr_session_create(&on_gpu, &session));
	check(hr_session_enter(session));
	hr_value x = hr_value_keep(hr_random_normal(HR_DTYPE_FLOAT32, HR_DIMS(64, 256), 1));
	hr_value weights = hr_value_keep(hr_random_normal(HR_DTYPE_FLOAT32, HR_DIMS(256, 256), 2));
	for (int i = 0; i < 10; i++) loss = train_step(on_gpu.allocator, x, &weights);
	printf("loss %.3f\n", (double)loss);

	if (argc > 1) check(hr_profiler_stop());
	if (argc > 1) printf("tensorboard --logdir %s\n", argv[1]);
	hr_value_release(x);
	hr_value_release(weights);
	hr_session_leave();
	check(hr_session_destroy(session));
	check(hr_shutdown());
	return 0;
}
