/* models.c - training steps of the models of examples/models.h: time, peak memory, losses.
 *
 *     models [--model NAME] [--steps N] [--eager] [--checkpointed] [--device NAME] [--limit BYTES] [--small]
 *
 * Prints one line of JSON per model for bench/models.py and bench/card_models.py, which compare it with PyTorch. Every step does the same in both:
 * forward, backward, Adam; the data are made once, before. The peak includes everything: variables, gradients, optimizer state, scratch.
 * A limit is that of an allocator with Large Model Support, whose learned policy needs some steps to learn. --small makes gpt2 small, for
 * machines without a card; without --model it is left out. "losses" are the bits of those of all steps, also of those that warm up. */
#include "headroom_runtime.h"
#include <stdlib.h>
#include <string.h>

#include "../examples/models.h"
#include "bench.h"

#define STEPS_MAX 1000
#define WARM_UP 2        /* steps */
#define WARM_UP_LIMITED 6 /* with Large Model Support: the learned policy plans */

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

struct options {
	const char *device;
	uint64_t limit; /* 0: none */
	int steps;
	bool eager, checkpointed;
};

/* *allocator gets id 0 if the device's own is used. */
static hr_session open_session(const struct options *options, hr_allocator *allocator)
{
	hr_session_options session_options;
	hr_allocator_options allocator_options;
	hr_lms_options lms;
	hr_session session;
	hr_device device;
	hr_session_options_init(&session_options);
	session_options.device = options->device;
	bench_must(hr_device_find(options->device, &device));
	*allocator = (hr_allocator){ 0 };
	if (options->limit) {
		hr_allocator_options_init(&allocator_options);
		allocator_options.limit_bytes = options->limit;
		bench_must(hr_allocator_create(device, &allocator_options, allocator));
		bench_must(hr_lms_options_init(&lms));
		lms.enabled = true;
		lms.policy = "learned";
		bench_must(hr_lms_configure(*allocator, &lms));
		session_options.allocator = *allocator;
	}
	bench_must(hr_session_create(&session_options, &session));
	bench_must(hr_session_enter(session));
	return session;
}

static hr_allocator allocator_of(hr_allocator own, const char *name)
{
	if (own.id) return own;
	bench_must(hr_allocator_get_default(name, &own));
	return own;
}

static void print_losses(const float *losses, int count)
{
	printf("\"losses\":\"");
	for (int i = 0; i < count; i++) {
		uint32_t bits;
		memcpy(&bits, &losses[i], sizeof bits);
		printf("%08x", bits);
	}
	printf("\"}\n");
}

struct counters {
	hr_lms_stats lms;
	hr_stats stats;
};

static struct counters count(hr_allocator allocator)
{
	struct counters now;
	hr_lms_stats_init(&now.lms);
	hr_stats_init(&now.stats);
	bench_must(hr_lms_get_stats(allocator, &now.lms));
	bench_must(hr_allocator_get_stats(allocator, &now.stats));
	return now;
}

/* A line on stderr for each step with a limit: what Large Model Support did, and what its plan says. */
static void print_step(int number, double ns, const struct counters *before, const struct counters *now)
{
#define ADDED(of, name) ((long long)(now->of.name - before->of.name))
#define GB(bytes) ((double)(bytes) / 1e9)
	fprintf(stderr, "step %3d %8.1f ms  out %.3f in %.3f GB  evictions %lld restores %lld prefetched %lld misses %lld refused %lld  mismatches %lld  "
	                "drops %lld of %.3f GB, recomputed %lld, planned %lld, failed %lld, again %.1f ms  plan %.1f ms, again %.1f ms, out %.3f in %.3f GB  "
	                "stall %.1f ms  stitches %lld of %.3f GB\n",
	        number, ns / 1e6, GB(ADDED(lms, bytes_copied_out)), GB(ADDED(lms, bytes_copied_in)), ADDED(lms, num_evictions), ADDED(lms, num_restores),
	        ADDED(lms, num_prefetch_hits), ADDED(lms, num_prefetch_misses), ADDED(lms, num_prefetches_refused), ADDED(lms, num_mismatches),
	        ADDED(lms, num_drops), GB(ADDED(lms, bytes_dropped)), ADDED(lms, num_recomputes), ADDED(lms, num_planned_recomputes),
	        ADDED(lms, num_failed_recomputes), (double)ADDED(lms, recompute_ns) / 1e6, (double)now->lms.plan_step_ns / 1e6,
	        (double)now->lms.plan_again_ns / 1e6, GB(now->lms.plan_bytes_out), GB(now->lms.plan_bytes_in), (double)ADDED(lms, stall_ns) / 1e6,
	        ADDED(stats, num_stitches), GB(ADDED(stats, bytes_stitched)));
}

static void measure(const struct model *model, const struct options *options)
{
	static double times[STEPS_MAX];
	static float losses[STEPS_MAX + WARM_UP_LIMITED];
	struct training training = { .model = model, .checkpointed = options->checkpointed };
	hr_allocator own;
	hr_session session = open_session(options, &own);
	hr_allocator allocator = allocator_of(own, options->device);
	hr_function function;
	hr_stats stats;
	int steps = options->steps, before = options->limit ? WARM_UP_LIMITED : WARM_UP;
	hr_optimizer_init(&training.optimizer, HR_ADAM);
	hr_run_functions_eagerly(options->eager);
	bench_must(hr_function_create("step", step, &training, &function));
	hr_value data[] = { hr_value_keep(model->inputs(model, 0)), hr_value_keep(model->labels(model, 0)) };
	for (int i = -before; i < steps; i++) {
		hr_value out;
		float *loss = &losses[i + before];
		if (i == 0) bench_must(hr_reset_memory_stats(options->device));
		struct counters counted = { 0 };
		if (options->limit && i > -before) counted = count(allocator);
		double begin = bench_now_ns();
		bench_must(hr_step_begin(allocator));
		bench_must(hr_function_call(function, data, 2, &out, 1));
		bench_must(hr_value_fetch(out, loss, sizeof *loss));
		bench_must(hr_step_end(allocator));
		double ns = bench_now_ns() - begin;
		if (i >= 0) times[i] = ns;
		if (options->limit) {
			struct counters now = count(allocator);
			print_step(i + before, ns, &counted, &now);
		}
	}
	hr_stats_init(&stats);
	bench_must(hr_allocator_get_stats(allocator, &stats));
	qsort(times, (size_t)steps, sizeof *times, by_size);
	printf("{\"model\":\"%s\",\"steps\":%d,\"median_s\":%.6f,\"least_s\":%.6f,\"peak_bytes\":%lld,\"loss\":%.6f,", model->name, steps,
	       times[steps / 2] / 1e9, times[0] / 1e9, (long long)stats.peak_bytes_in_use, (double)losses[before + steps - 1]);
	print_losses(losses, before + steps);
	fflush(stdout);
	hr_value_release(data[0]);
	hr_value_release(data[1]);
	bench_must(hr_function_destroy(function));
	bench_must(hr_session_leave());
	bench_must(hr_session_destroy(session));
	if (own.id) bench_must(hr_allocator_destroy(own));
}

static int usage(void)
{
	fprintf(stderr, "usage: models [--model mlp|conv|gpt|gpt2] [--steps N] [--eager] [--checkpointed] [--device NAME] [--limit BYTES] [--small]\n");
	return 2;
}

int main(int argc, char **argv)
{
	static struct model models[] = { MODEL_MLP, MODEL_CONV, MODEL_GPT, MODEL_GPT2 };
	const size_t gpt2 = 3;
	const char *only = NULL;
	struct options options = { .device = "CPU:0", .steps = 20 };
	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--eager")) options.eager = true;
		else if (!strcmp(argv[i], "--checkpointed")) options.checkpointed = true;
		else if (!strcmp(argv[i], "--small")) models[gpt2].width = 64, models[gpt2].time = 64, models[gpt2].heads = 2, models[gpt2].blocks = 4, models[gpt2].classes = 512;
		else if (i + 1 == argc) return usage();
		else if (!strcmp(argv[i], "--model")) only = argv[++i];
		else if (!strcmp(argv[i], "--device")) options.device = argv[++i];
		else if (!strcmp(argv[i], "--limit")) options.limit = strtoull(argv[++i], NULL, 10);
		else if (!strcmp(argv[i], "--steps")) options.steps = atoi(argv[++i]);
		else return usage();
	}
	if (options.steps < 1 || options.steps > STEPS_MAX) {
		fprintf(stderr, "models: --steps takes 1 to %d\n", STEPS_MAX);
		return 2;
	}
	for (size_t i = 0; i < sizeof models / sizeof *models; i++)
		if (only ? !strcmp(only, models[i].name) : i != gpt2) measure(&models[i], &options);
	return hr_shutdown() == HR_OK ? 0 : 1;
}
