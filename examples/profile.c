/* profile.c - records selected steps of a training loop.
 *
 *     profile LOGDIR [STEPS] [--profile_options=profile_steps=1,10,100]
 *
 * It writes files to LOGDIR for `headroom report`. Without LOGDIR it trains and records nothing. */
#include <headroom.h>
#include <headroom_lms.h>
#include <headroom_oom.h>
#include <headroom_record.h>
#include <stdio.h>
#include <stdlib.h>

#define LAYERS 8

static void check(hr_status status)
{
	if (!status) return;
	fprintf(stderr, "%s: %s\n", hr_status_name(status), hr_last_message());
	exit(1);
}

/* Forward allocates activations, backward frees them: a training step as a framework's allocator sees it. */
static void train_step(hr_allocator allocator)
{
	void *activations[LAYERS], *gradient;
	check(hr_step_begin(allocator));
	check(hr_name_scope_push("forward"));
	for (int i = 0; i < LAYERS; i++) {
		hr_request request = HR_REQUEST((size_t)(i + 1) << 16);
		request.op = hr_name_intern("matmul");
		check(hr_alloc(allocator, &request, &activations[i]));
	}
	check(hr_name_scope_pop());
	check(hr_name_scope_push("backward"));
	for (int i = LAYERS - 1; i >= 0; i--) {
		hr_request request = HR_REQUEST((size_t)(i + 1) << 16);
		request.op = hr_name_intern("matmul_gradient");
		check(hr_alloc(allocator, &request, &gradient));
		check(hr_free(allocator, activations[i], HR_STREAM_DEFAULT));
		check(hr_free(allocator, gradient, HR_STREAM_DEFAULT));
	}
	check(hr_name_scope_pop());
	check(hr_step_end(allocator));
}

int main(int argc, char **argv)
{
	hr_profiler_options options;
	hr_allocator allocator;
	char path[4096], missed[256];
	check(hr_profiler_options_init(&options));
	check(hr_profiler_parse_arguments(&argc, argv, &options));
	const char *logdir = argc > 1 && argv[1][0] ? argv[1] : NULL;
	long steps = argc > 2 ? strtol(argv[2], NULL, 10) : 10;

	/* Train even if the profiler cannot start. */
	bool profiled = logdir && hr_profiler_start(logdir, &options) == HR_OK;
	if (logdir && !profiled) fprintf(stderr, "not recorded: %s\n", hr_last_message());

	check(hr_allocator_get_default("CPU:0", &allocator));
	for (long i = 0; i < steps; i++) train_step(allocator);

	if (profiled && hr_profiler_stop()) fprintf(stderr, "the recording is not whole: %s\n", hr_last_message());
	else if (profiled && hr_profiler_get_missed_steps(missed, sizeof missed)) fprintf(stderr, "steps %s did not occur\n", missed);
	if (profiled && hr_profiler_get_last_file(path, sizeof path)) printf("recorded, the last of it in %s\n", path);
	printf("%ld steps\n", steps);
	check(hr_shutdown());
	return 0;
}
