/* consumer_all.c - a program that uses all three libraries. Also valid C++.
 *
 *     consumer_all DIRECTORY    records two ops to DIRECTORY, also for TensorBoard, and prints a view of the recording */
#include <headroom.h>
#include <headroom_analysis.h>
#include <headroom_record.h>
#include <headroom_runtime.h>
#include <stdio.h>

static bool print(void *context, const char *bytes, size_t length)
{
	return fwrite(bytes, 1, length, (FILE *)context) == length;
}

int main(int argc, char **argv)
{
	char path[4096];
	float sum = 0;
	hr_profiler_options options;
	if (argc != 2 || hr_analysis_register() != HR_OK || hr_profiler_options_init(&options) != HR_OK) return 2;
	options.tensorboard = true;
	int64_t dims[1] = { 3 };
	hr_status status = hr_profiler_start(argv[1], &options);
	if (!status) status = hr_value_fetch(hr_reduce_sum(hr_full(HR_DTYPE_FLOAT32, dims, 1, 2), HR_ALL_AXES, false), &sum, sizeof sum);
	if (!status) status = hr_profiler_stop();
	hr_profiler_get_last_file(path, sizeof path);
	if (!status) status = hr_profile_report(path, NULL, HR_PROFILE_TEXT, print, stdout);
	if (!status) status = hr_shutdown();
	if (status) fprintf(stderr, "%s\n", hr_last_message());
	return status == HR_OK && sum == 6 ? 0 : 1;
}
