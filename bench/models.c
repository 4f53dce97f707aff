/* models.c - training steps of the three models of examples/models.h: time and peak memory.
 *
 *     models [--model NAME] [--steps N] [--eager] [--checkpointed]
 *
 * Prints one line of JSON per model for bench/models.py, which compares it with PyTorch. Every step does the same in both: forward,
 * backward, Adam; the data are made once, before. The peak includes everything: variables, gradients, optimizer state, scratch. */
#include "headroom_runtime.h"
#include <string.h>

#include "../examples/models.h"
#include "bench.h"

#define STEPS_MAX 1000

struct training {
	const struct model *model;
	hr_optimizer optimizer;
	bool checkpointed;
};

static hr_status step(void *context, const hr_value *ins, size_t in_count, hr_value *outs, size_t out_count)
{
	const struct training *training = context;
	(void)in_count;
	(void)out_count;
	outs[0] = model_train(training->model, ins[0], ins[1], &training->optimizer, training->checkpointed);
	return outs[0].id ? HR_OK : hr_last_status();
}

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static void measure(const struct model *model, int steps, bool eager, bool checkpointed)
{
	static double times[STEPS_MAX];
	struct training training = { .model = model, .checkpointed = checkpointed };
	hr_session_options options;
	hr_session session;
	hr_function function;
	hr_memory_info info = { .struct_size = sizeof info };
	float loss = 0;
	hr_session_options_init(&options);
	options.device = "CPU:0";
	bench_must(hr_session_create(&options, &session));
	bench_must(hr_session_enter(session));
	hr_optimizer_init(&training.optimizer, HR_ADAM);
	hr_run_functions_eagerly(eager);
	bench_must(hr_function_create("step", step, &training, &function));
	hr_value data[] = { hr_value_keep(model->inputs(model, 0)), hr_value_keep(model->labels(model, 0)) };
	for (int i = -2; i < steps; i++) { /* two warm-up steps */
		hr_value out;
		if (i == 0) bench_must(hr_reset_memory_stats("CPU:0"));
		double begin = bench_now_ns();
		bench_must(hr_function_call(function, data, 2, &out, 1));
		bench_must(hr_value_fetch(out, &loss, sizeof loss));
		if (i >= 0) times[i] = bench_now_ns() - begin;
	}
	bench_must(hr_get_memory_info("CPU:0", &info));
	qsort(times, (size_t)steps, sizeof *times, by_size);
	printf("{\"model\":\"%s\",\"steps\":%d,\"median_s\":%.6f,\"least_s\":%.6f,\"peak_bytes\":%lld,\"loss\":%.6f}\n", model->name, steps,
	       times[steps / 2] / 1e9, times[0] / 1e9, (long long)info.peak, (double)loss);
	hr_value_release(data[0]);
	hr_value_release(data[1]);
	bench_must(hr_function_destroy(function));
	bench_must(hr_session_leave());
	bench_must(hr_session_destroy(session));
}

int main(int argc, char **argv)
{
	static const struct model models[] = { MODEL_MLP, MODEL_CONV, MODEL_GPT };
	const char *only = NULL;
	int steps = 20;
	bool eager = false, checkpointed = false;
	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--eager")) eager = true;
		else if (!strcmp(argv[i], "--checkpointed")) checkpointed = true;
		else if (!strcmp(argv[i], "--model") && i + 1 < argc) only = argv[++i];
		else if (!strcmp(argv[i], "--steps") && i + 1 < argc) steps = atoi(argv[++i]);
		else {
			fprintf(stderr, "usage: models [--model mlp|conv|gpt] [--steps N] [--eager] [--checkpointed]\n");
			return 2;
		}
	}
	if (steps < 1 || steps > STEPS_MAX) {
		fprintf(stderr, "models: --steps takes 1 to %d\n", STEPS_MAX);
		return 2;
	}
	for (size_t i = 0; i < sizeof models / sizeof *models; i++)
		if (!only || !strcmp(only, models[i].name)) measure(&models[i], steps, eager, checkpointed);
	return hr_shutdown() == HR_OK ? 0 : 1;
}
