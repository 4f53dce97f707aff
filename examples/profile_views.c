/* profile_views.c - where did the memory go? Records a few training steps, then shows the recording in three views: the tree of
 * name scopes with time and memory, the allocations of one scope, and the peak, saved as JSON for another program. */
#include <headroom.h>
#include <headroom_analysis.h>
#include <headroom_record.h>
#include <headroom_runtime.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, hr_last_message());
	return 1;
}

/* Two layers and their gradients. Allocations are attributed to the name scope. */
static hr_status train_step(hr_value x, hr_value one, hr_value two)
{
	hr_value by[] = { one, two }, gradients[2];
	hr_tape_begin();
	hr_name_scope_push("model/hidden");
	hr_value h = hr_gelu(hr_matmul(x, one));
	hr_name_scope_pop();
	hr_name_scope_push("model/output");
	hr_value loss = hr_value_keep(hr_reduce_mean(hr_matmul(h, two), HR_ALL_AXES, false));
	hr_name_scope_pop();
	hr_name_scope_push("gradients");
	hr_status status = hr_gradients(loss, by, 2, gradients);
	hr_name_scope_pop();
	hr_tape_end();
	hr_value_release(loss);
	for (int i = 0; i < 2 && status == HR_OK; i++) hr_value_release(gradients[i]); /* a real step would subtract them from the weights */
	return status;
}

static bool print(void *file, const char *bytes, size_t length)
{
	return fwrite(bytes, 1, length, file) == length;
}

static int look(const char *trace, const char *saved)
{
	hr_profile_options options;
	if (hr_profile_options_init_preset(&options, "time_and_memory") != HR_OK) return fail("the preset");
	options.max_depth = 2;
	puts("-- the whole model, by time --\n");
	if (hr_profile_report(trace, &options, HR_PROFILE_TEXT, print, stdout) != HR_OK) return fail("the tree of scopes");

	hr_profile_options_init(&options);
	options.view = "op";
	options.name_scope = "model";
	options.min_bytes = 1 << 20;
	options.show_input_output = true;
	puts("-- one name scope: ops that allocated a MiB or more --\n");
	if (hr_profile_report(trace, &options, HR_PROFILE_TEXT, print, stdout) != HR_OK) return fail("one scope");

	options.view = "peak";
	if (hr_profile_save(trace, &options, HR_PROFILE_JSON, saved) != HR_OK) return fail("saving");
	puts("and what was alive at the peak is saved as JSON");
	return 0;
}

int main(void)
{
	char folder[] = "/tmp/headroom_profile_XXXXXX", trace[64], saved[64];
	hr_session session;
	hr_session_options options;
	hr_session_options_init(&options);
	options.device = "GPU:0";
	if (!mkdtemp(folder)) return 1;
	snprintf(trace, sizeof trace, "%s/train.hrt", folder);
	snprintf(saved, sizeof saved, "%s/peak.json", folder);
	if (hr_session_create(&options, &session) != HR_OK || hr_session_enter(session) != HR_OK) return fail("GPU:0");
	hr_value x = hr_value_keep(hr_random_normal(HR_DTYPE_FLOAT32, HR_DIMS(256, 512), 1));
	hr_value one = hr_value_keep(hr_random_normal(HR_DTYPE_FLOAT32, HR_DIMS(512, 1024), 2));
	hr_value two = hr_value_keep(hr_random_normal(HR_DTYPE_FLOAT32, HR_DIMS(1024, 256), 3));

	if (hr_trace_start(trace) != HR_OK) return fail("the recording");
	for (int step = 0; step < 3; step++)
		if (train_step(x, one, two) != HR_OK) return fail("a step");
	if (hr_trace_stop() != HR_OK) return fail("the recording");

	hr_value_release(x);
	hr_value_release(one);
	hr_value_release(two);
	int exit_status = look(trace, saved);
	unlink(trace);
	unlink(saved);
	rmdir(folder);
	if (hr_session_leave() != HR_OK || hr_session_destroy(session) != HR_OK || hr_shutdown() != HR_OK) return fail("the end");
	return exit_status;
}
