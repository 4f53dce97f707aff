/* profile_training.c - trains a small network and reports on three of its steps during the training: where time and memory went,
 * and whether memory grows.
 *
 *     profile_training [LOGDIR] [--profile_options=profile_steps=10,100,1000]
 *
 * Each selected step is recorded in its own file in LOGDIR, or, without LOGDIR, in a folder that is removed at the end. `headroom
 * report` reads the files too: it shows more, draws them, and exports them for TensorBoard. */
#include "models.h"
#include <headroom_runtime.h>
#include <headroom_analysis.h>
#include <headroom_record.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STEPS 100

static int fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, hr_last_message());
	return 1;
}

static bool print(void *file, const char *bytes, size_t length)
{
	return fwrite(bytes, 1, length, file) == length;
}

/* The newest file, and whether to remove it when there is a newer one. */
struct files {
	char last[4096];
	bool temporary;
};

/* Reports on the step, if it was selected and so left a new file. */
static hr_status look_at_step(struct files *files, int step)
{
	hr_profile_options options;
	char path[4096];
	hr_profiler_get_last_file(path, sizeof path);
	if (!strcmp(path, files->last)) return HR_OK;
	if (files->temporary && files->last[0]) unlink(files->last);
	strcpy(files->last, path);
	printf("step %d\n", step);
	hr_status status = hr_profile_options_init_preset(&options, "time_and_memory");
	options.device = "GPU:0";
	options.step = step;
	options.max_depth = 2;
	return status ? status : hr_profile_report(path, &options, HR_PROFILE_TEXT, print, stdout);
}

static hr_status train(hr_allocator allocator, struct files *files, float *loss)
{
	struct model model = MODEL_MLP;
	hr_optimizer adam;
	hr_status status = HR_OK;
	model.width = 256;
	hr_optimizer_init(&adam, HR_ADAM);
	for (int step = 1; step <= STEPS && !status; step++) {
		status = hr_step_begin(allocator);
		if (status) break;
		uint64_t batch = (uint64_t)step % 4;
		status = hr_value_fetch(model_train(&model, model.inputs(&model, batch), model.labels(&model, batch), &adam, false), loss, sizeof *loss);
		hr_step_end(allocator);
		if (!status) status = look_at_step(files, step);
	}
	return status;
}

static hr_status open_session(hr_allocator *allocator, hr_session *session)
{
	hr_session_options options;
	hr_session_options_init(&options);
	options.device = "GPU:0";
	hr_status status = hr_allocator_get_default("GPU:0", allocator);
	if (!status) status = hr_session_create(&options, session);
	return status ? status : hr_session_enter(*session);
}

/* Saves the last recording as JSON and prints how to continue. */
static int save(const struct files *files)
{
	char saved[4200];
	hr_profile_options options;
	hr_profile_options_init_preset(&options, "time_and_memory");
	snprintf(saved, sizeof saved, "%s.json", files->last);
	if (hr_profile_save(files->last, &options, HR_PROFILE_JSON, saved) != HR_OK) return fail("saving");
	if (files->temporary) return unlink(saved) || unlink(files->last);
	printf("saved: %s\n", saved);
	printf("For TensorBoard: headroom report %s --export xplane --out profile; tensorboard --logdir profile --port 6006\n", files->last);
	return 0;
}

int main(int argc, char **argv)
{
	char folder[] = "/tmp/headroom_profile_XXXXXX";
	hr_allocator allocator;
	hr_session session;
	float loss = 0;
	hr_profiler_options options;
	hr_profiler_options_init(&options);
	options.step_count = 3;
	options.steps[0] = (hr_profiler_steps){ 1, 1 };
	options.steps[1] = (hr_profiler_steps){ 10, 10 };
	options.steps[2] = (hr_profiler_steps){ 100, 100 };
	if (hr_profiler_parse_arguments(&argc, argv, &options) != HR_OK) return fail("arguments");
	struct files files = { .temporary = argc < 2 };
	const char *logdir = files.temporary ? mkdtemp(folder) : argv[1];
	if (!logdir) return fail("a folder");

	if (open_session(&allocator, &session) != HR_OK) return fail("GPU:0");
	if (hr_profiler_start(logdir, &options) != HR_OK) return fail("the profiler");
	if (train(allocator, &files, &loss) != HR_OK) return fail("training");
	if (hr_profiler_stop() != HR_OK) fprintf(stderr, "the recording: %s\n", hr_last_message()); /* not a reason to fail */
	printf("%d steps, loss %.4f\n", STEPS, (double)loss);
	if (files.last[0] && save(&files)) return 1;
	if (files.temporary) rmdir(folder);
	if (hr_session_leave() != HR_OK || hr_session_destroy(session) != HR_OK) return fail("the end");
	return hr_shutdown() == HR_OK ? 0 : fail("the end");
}
