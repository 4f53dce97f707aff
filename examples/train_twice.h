/* train_twice.h - trains a model with all the memory that it needs, and then with less; Large Model Support then evicts tensors
 * that no op is using to the host. Used by gpt.c and convnet.c.
 *
 * Both trainings start with the same weights and see the same batches, so all losses must be equal, to the bit. */
#ifndef HEADROOM_EXAMPLES_TRAIN_TWICE_H
#define HEADROOM_EXAMPLES_TRAIN_TWICE_H

#include <headroom_runtime.h>
#include "models.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MIB (1024.0 * 1024.0)
#define STEPS_MAX 1000

/* A setting that can be given on the command line as name=value. */
struct setting {
	const char *name;
	int64_t *value;
};

struct training {
	float losses[STEPS_MAX];
	int64_t peak;       /* peak bytes on the device */
	hr_lms_stats moved; /* between device and host */
};

static int fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, hr_last_message());
	return 1;
}

static int read_settings(int argc, char **argv, const struct setting *settings, size_t count)
{
	for (int i = 1; i < argc; i++) {
		size_t length = strcspn(argv[i], "="), k = 0;
		char *end = argv[i];
		while (k < count && (strlen(settings[k].name) != length || memcmp(settings[k].name, argv[i], length) != 0)) k++;
		if (k < count && argv[i][length] == '=') *settings[k].value = strtoll(argv[i] + length + 1, &end, 10);
		if (end > argv[i] && !*end && *settings[k].value > 0) continue;
		fprintf(stderr, "%s: expected name=number, with a name of:", argv[i]);
		for (k = 0; k < count; k++) fprintf(stderr, " %s", settings[k].name);
		fprintf(stderr, "\n");
		return 1;
	}
	return 0;
}

/* ---- training once ---- */

/* A session with its own allocator. A limit of 0 means the whole device, without eviction. */
static hr_status open_session(uint64_t limit, hr_allocator *allocator, hr_session *session)
{
	hr_device device;
	hr_allocator_options options;
	hr_lms_options lms;
	hr_session_options session_options;
	hr_status status = hr_lms_options_init(&lms);
	lms.enabled = limit > 0;
	lms.policy = "learned";
	hr_allocator_options_init(&options);
	options.limit_bytes = limit;
	if (!status) status = hr_device_find("GPU:0", &device);
	if (!status) status = hr_allocator_create(device, &options, allocator);
	if (!status) status = hr_lms_configure(*allocator, &lms);
	hr_session_options_init(&session_options);
	session_options.device = "GPU:0";
	session_options.allocator = *allocator;
	return status ? status : hr_session_create(&session_options, session);
}

static hr_status train_steps(const struct model *model, int64_t steps, hr_allocator allocator, float *losses)
{
	hr_optimizer adam;
	hr_status status = HR_OK;
	bool watched = isatty(STDERR_FILENO);
	hr_optimizer_init(&adam, HR_ADAM);
	for (int64_t i = 0; i < steps && !status; i++) {
		if (watched) fprintf(stderr, "\rstep %lld of %lld ", (long long)i + 1, (long long)steps);
		/* The learned policy needs marked steps. */
		status = hr_step_begin(allocator);
		if (status) break;
		uint64_t batch = (uint64_t)i % 2; /* two alternating batches, so that there is something to learn */
		hr_value x = model->inputs(model, batch), labels = model->labels(model, batch);
		status = hr_value_fetch(model_train(model, x, labels, &adam, false), &losses[i], sizeof losses[i]);
		hr_step_end(allocator);
	}
	if (watched) fprintf(stderr, "\r\033[K");
	return status;
}

static int train_once(const struct model *model, int64_t steps, uint64_t limit, struct training *out)
{
	hr_allocator allocator;
	hr_session session;
	hr_stats stats;
	hr_stats_init(&stats);
	out->moved.struct_size = sizeof out->moved;
	if (open_session(limit, &allocator, &session) != HR_OK || hr_session_enter(session) != HR_OK) return fail("a session");
	if (train_steps(model, steps, allocator, out->losses) != HR_OK) return fail(model->name);
	if (hr_allocator_get_stats(allocator, &stats) != HR_OK || hr_lms_get_stats(allocator, &out->moved) != HR_OK)
		return fail("statistics");
	out->peak = stats.peak_bytes_in_use;
	hr_session_leave();
	if (hr_session_destroy(session) != HR_OK || hr_allocator_destroy(allocator) != HR_OK) return fail("closing");
	return 0;
}

/* ---- training twice ---- */

static void print_training(const char *name, const struct training *training)
{
	printf("%-10s  peak %6.1f MiB, %7.1f MiB moved to the host, %7.1f MiB back\n", name, (double)training->peak / MIB,
	       (double)training->moved.bytes_copied_out / MIB, (double)training->moved.bytes_copied_in / MIB);
}

/* Trains with all memory, then with [percent] of the first training's peak. */
static int train_twice(const struct model *model, int64_t steps, int64_t percent)
{
	static struct training whole, less;
	char name[32];
	if (steps > STEPS_MAX) {
		fprintf(stderr, "at most %d steps\n", STEPS_MAX);
		return 1;
	}
	if (emulate_gpu() != HR_OK) return fail("an emulated GPU");
	if (train_once(model, steps, 0, &whole)) return 1;
	if (train_once(model, steps, (uint64_t)(whole.peak / 100 * percent), &less)) return 1;

	snprintf(name, sizeof name, "%lld%% of it", (long long)percent);
	printf("loss      all memory  %10s\n", name);
	for (int64_t i = 0; i < steps; i++)
		printf("step %3lld  %9.6f   %9.6f\n", (long long)i + 1, (double)whole.losses[i], (double)less.losses[i]);
	print_training("all memory", &whole);
	print_training(name, &less);
	if (memcmp(whole.losses, less.losses, (size_t)steps * sizeof whole.losses[0]) != 0) {
		fprintf(stderr, "the losses differ\n");
		return 1;
	}
	printf("the losses are the same, to the bit\n");
	return hr_shutdown() == HR_OK ? 0 : fail("the end");
}

#endif
