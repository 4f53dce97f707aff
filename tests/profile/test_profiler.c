/* test_profiler.c - the promises of recording: chosen steps, unique file names, packed files, and a program that continues whatever
 * error its profiler hits. */
#include <dirent.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "fixture.h"
#include "fault_os.h"
#include "headroom_lms.h"
#include "headroom_oom.h"
#include "headroom_analysis.h"
#include "headroom_record.h"
#include "core/base/hooks.h"
#include "core/os/os.h"
#include "analysis/capture/capture.h"
#include "core/record/compress.h"
#include "core/record/profiler.h"
#include "support_files.h"
#include "test.h"
#include "core/trace/format.h"
#include "analysis/reader/reader.h"
#include "core/trace/trace.h"

/* ---- files ---- */

/* Counts the files in [path] whose names contain [part]. */
static int count_files(const char *path, const char *part)
{
	int count = 0;
	DIR *dir = opendir(path);
	CHECK(dir != NULL);
	for (struct dirent *entry = readdir(dir); entry; entry = readdir(dir)) count += entry->d_name[0] != '.' && strstr(entry->d_name, part) != NULL;
	closedir(dir);
	return count;
}

static void save(const char *path, const void *bytes, size_t size)
{
	FILE *file = fopen(path, "wb");
	CHECK(file && fwrite(bytes, 1, size, file) == size);
	CHECK_EQ(fclose(file), 0);
}

/* ---- programs to record ---- */

static hr_device device;
static hr_allocator allocator;

static void open_allocator(void)
{
	device = fixture_simulated(64 << 20, 65536);
	hr_allocator_options options = fixture_allocator_options(8 * 65536);
	options.thread_cache = false;
	options.stitch = true;
	CHECK_STATUS(HR_OK, hr_allocator_create(device, &options, &allocator));
}

static void *take(uint64_t bytes)
{
	hr_request request = HR_REQUEST(bytes);
	void *block = NULL;
	CHECK_STATUS(HR_OK, hr_alloc(allocator, &request, &block));
	return block;
}

static void give(void *block)
{
	CHECK_STATUS(HR_OK, hr_free(allocator, block, HR_STREAM_DEFAULT));
}

static void make_events(unsigned pairs)
{
	for (unsigned i = 0; i < pairs; i++) give(take(4096));
}

/* Number of events of each kind in a file. */
typedef struct counts {
	uint64_t of[32], lost;
	uint64_t first_step, last_step;
	bool complete;
} counts;

static hr_status count_events(const char *path, counts *out)
{
	hr__trace_reader *reader;
	hr__event event;
	*out = (counts){ 0 };
	hr_status status = hr__trace_reader_open_any(path, &reader);
	if (status) return status;
	out->complete = hr__trace_reader_summary(reader)->complete;
	out->lost = hr__trace_reader_summary(reader)->lost;
	while (!(status = hr__trace_reader_next(reader, &event))) {
		out->of[event.kind]++;
		if (event.kind != HR__EVENT_STEP) continue;
		if (!out->first_step) out->first_step = event.bytes;
		out->last_step = event.bytes;
	}
	hr__trace_reader_close(reader);
	return status == HR_NOT_READY ? HR_OK : status;
}

static counts counts_of(const char *path)
{
	counts result;
	CHECK_STATUS(HR_OK, count_events(path, &result));
	return result;
}

static const char *last_file(void)
{
	static char path[4096];
	CHECK_LT(hr_profiler_get_last_file(path, sizeof path), sizeof path);
	return path;
}

/* ---- arguments ---- */

static hr_profiler_options fresh(void)
{
	hr_profiler_options options;
	CHECK_STATUS(HR_OK, hr_profiler_options_init(&options));
	return options;
}

static void test_the_argument_is_found_and_taken_out(void)
{
	hr_profiler_options options = fresh();
	char *argv[] = { "train", "--batch", "64", "--profile_options=profile_steps=1,10,100-103;compress=1;tensorboard=1;max_bytes=512MiB", "data", NULL };
	int argc = 5;
	CHECK_STATUS(HR_OK, hr_profiler_parse_arguments(&argc, argv, &options));
	CHECK_EQ(argc, 4);
	CHECK(!strcmp(argv[2], "64") && !strcmp(argv[3], "data") && argv[4] == NULL);
	CHECK_EQ(options.step_count, 3);
	CHECK_EQ(options.steps[1].first, 10);
	CHECK_EQ(options.steps[1].last, 10);
	CHECK_EQ(options.steps[2].first, 100);
	CHECK_EQ(options.steps[2].last, 103);
	CHECK(options.compress);
	CHECK(options.tensorboard);
	CHECK_EQ(options.max_bytes, 512 << 20);

	char *apart[] = { "train", "--profile_options", "profile_steps=7", "--", "--profile_options=nonsense", NULL };
	argc = 5;
	options = fresh();
	CHECK_STATUS(HR_OK, hr_profiler_parse_arguments(&argc, apart, &options));
	CHECK_EQ(argc, 3);
	CHECK(!strcmp(apart[1], "--") && !strcmp(apart[2], "--profile_options=nonsense"));
	CHECK_EQ(options.steps[0].first, 7);

	char *none[] = { "train", "--profile_optionsx=1", NULL };
	argc = 2;
	options = fresh();
	CHECK_STATUS(HR_OK, hr_profiler_parse_arguments(&argc, none, &options));
	CHECK_EQ(argc, 2);
	CHECK_EQ(options.step_count, 0);
}

static void test_bad_arguments_are_errors_and_change_nothing(void)
{
	static const char *const bad[] = { "profile_steps=",    "profile_steps=0",     "profile_steps=1,,2",  "profile_steps=1,",   "profile_steps=3-2",
		                               "profile_steps=-1",  "profile_steps=x",     "profile_steps=1;",    "profile_step=1",     "steps",
		                               "compress=yes",      "tensorboard=2",       "",                  "profile_steps=1 2",   "profile_steps=1-",
		                               "profile_steps=99999999999999999999999999", "profile_steps=1;speed=3" };
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		char text[128];
		snprintf(text, sizeof text, "--profile_options=%s", bad[i]);
		char *argv[] = { "train", "--profile_options=profile_steps=5", text, NULL };
		int argc = 3;
		hr_profiler_options options = fresh();
		CHECK_STATUS(HR_INVALID_ARGUMENT, hr_profiler_parse_arguments(&argc, argv, &options));
		CHECK(hr_last_message()[0]);
		CHECK_EQ(argc, 3);
		CHECK_EQ(options.step_count, 0);
		CHECK(argv[2] == text);
	}
	char many[1024] = "--profile_options=profile_steps=1";
	for (int i = 0; i < HR_PROFILER_STEPS_MAX; i++) strcat(many, ",2");
	char *argv[] = { "train", many, NULL };
	int argc = 2;
	hr_profiler_options options = fresh();
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_profiler_parse_arguments(&argc, argv, &options));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_profiler_parse_arguments(NULL, argv, &options));
}

/* ---- start and stop ---- */

static void test_a_run_leaves_one_file_with_everything(void)
{
	const char *logs = in_folder("a/b/logs");
	open_allocator();
	void *before = take(1000);
	CHECK_STATUS(HR_OK, hr_profiler_start(logs, NULL));
	make_events(100);
	CHECK_STATUS(HR_OK, hr_profiler_stop());
	give(before);
	CHECK_EQ(count_files(logs, ".hrt"), 1);
	counts c = counts_of(last_file());
	CHECK(c.complete);
	CHECK_EQ(c.of[HR__EVENT_ALLOC], 101);
	CHECK_EQ(c.of[HR__EVENT_FREE], 100);
}

static void test_no_file_is_ever_written_over(void)
{
	const char *logs = in_folder("logs");
	hr_profiler_options options = fresh();
	open_allocator();
	for (int i = 0; i < 12; i++) { /* within the same second, or nearly */
		options.compress = i % 3 == 1;
		CHECK_STATUS(HR_OK, hr_profiler_start(logs, &options));
		make_events((unsigned)i);
		CHECK_STATUS(HR_OK, hr_profiler_stop());
		CHECK_EQ(count_files(logs, ".hrt"), i + 1);
		CHECK_EQ(counts_of(last_file()).of[HR__EVENT_FREE], i);
	}
}

static void test_start_twice_and_stop_without_start_are_refused(void)
{
	hr_profiler_options options = fresh();
	open_allocator();
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_profiler_stop());
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_profiler_start(NULL, NULL));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_profiler_start("", NULL));
	CHECK_STATUS(HR_OK, hr_profiler_start(in_folder("logs"), NULL));
	CHECK_STATUS(HR_IN_USE, hr_profiler_start(in_folder("logs"), NULL));
	CHECK_STATUS(HR_IN_USE, hr_trace_start(in_folder("x.hrt")));
	make_events(3);
	CHECK_STATUS(HR_OK, hr_profiler_stop());
	CHECK_EQ(counts_of(last_file()).of[HR__EVENT_FREE], 3);
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_profiler_stop());
	CHECK_STATUS(HR_OK, hr_trace_start(in_folder("x.hrt")));
	options.step_count = 1;
	options.steps[0] = (hr_profiler_steps){ 1, 1 };
	CHECK_STATUS(HR_IN_USE, hr_profiler_start(in_folder("logs"), &options));
	CHECK_STATUS(HR_OK, hr_trace_stop());
	options.steps[0] = (hr_profiler_steps){ 0, 1 };
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_profiler_start(in_folder("logs"), &options));
	options.steps[0] = (hr_profiler_steps){ 2, 1 };
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_profiler_start(in_folder("logs"), &options));
	options.struct_size = 3;
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_profiler_start(in_folder("logs"), &options));
}

static void test_each_recording_is_stopped_by_its_own_stop(void)
{
	const char *own = in_folder("own.hrt");
	open_allocator();
	CHECK_STATUS(HR_OK, hr_profiler_start(in_folder("logs"), NULL));
	make_events(3);
	CHECK_STATUS(HR_IN_USE, hr_trace_stop());
	CHECK(strstr(hr_last_message(), "hr_profiler_stop") != NULL);
	make_events(4);
	CHECK_STATUS(HR_OK, hr_profiler_stop());
	CHECK_EQ(counts_of(last_file()).of[HR__EVENT_FREE], 7);

	CHECK_STATUS(HR_OK, hr_trace_start(own));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_profiler_stop());
	make_events(5);
	CHECK_STATUS(HR_OK, hr_trace_stop());
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_trace_stop());
	CHECK_EQ(counts_of(own).of[HR__EVENT_FREE], 5);
	CHECK_STATUS(HR_OK, hr_profiler_start(in_folder("logs"), NULL));
	CHECK_STATUS(HR_OK, hr_profiler_stop());
}

/* No call of the program fails because the environment starts a recording. */
static void test_the_environments_recording_gives_way_and_is_not_stopped(void)
{
	for (int profiler = 0; profiler < 2; profiler++) {
		char environments[256], own[256];
		int status;
		snprintf(environments, sizeof environments, "%s", in_folder(profiler ? "e1.hrt" : "e0.hrt"));
		snprintf(own, sizeof own, "%s", in_folder(profiler ? "logs" : "own.hrt"));
		pid_t child = fork();
		if (child == 0) {
			CHECK_EQ(setenv("HEADROOM_TRACE", environments, 1), 0);
			open_allocator();
			make_events(3);
			CHECK_STATUS(HR_INVALID_ARGUMENT, hr_trace_stop());
			CHECK_STATUS(HR_INVALID_ARGUMENT, hr_profiler_stop());
			CHECK_STATUS(HR_INVALID_ARGUMENT, hr_trace_start(""));
			make_events(4);
			CHECK_STATUS(HR_OK, profiler ? hr_profiler_start(own, NULL) : hr_trace_start(own));
			make_events(5);
			CHECK_STATUS(HR_OK, profiler ? hr_profiler_stop() : hr_trace_stop());
			counts c = counts_of(profiler ? last_file() : own);
			CHECK(c.complete);
			CHECK_EQ(c.of[HR__EVENT_FREE], 5);
			CHECK_STATUS(HR_OK, hr_shutdown());
			_exit(0);
		}
		CHECK_EQ(waitpid(child, &status, 0), child);
		CHECK_EQ(status, 0);
		counts c = counts_of(environments);
		CHECK(c.complete);
		CHECK_EQ(c.of[HR__EVENT_FREE], 7);
	}
}

static void test_a_directory_that_cannot_be_written_is_an_error_and_no_more(void)
{
	static const char *const impossible[] = { "/proc/headroom", "/dev/null/logs", "/dev/full" };
	open_allocator();
	for (size_t i = 0; i < sizeof impossible / sizeof *impossible; i++) {
		CHECK_STATUS(HR_IO, hr_profiler_start(impossible[i], NULL));
		CHECK(strstr(hr_last_message(), impossible[i]) != NULL);
		make_events(3);
	}
	char *long_path = malloc(5001);
	memset(long_path, 'x', 5000);
	long_path[5000] = 0;
	CHECK_STATUS(HR_IO, hr_profiler_start(long_path, NULL));
	free(long_path);
	CHECK_STATUS(HR_OK, hr_profiler_start(in_folder("logs"), NULL));
	CHECK_STATUS(HR_OK, hr_profiler_stop());
}

/* ---- steps ---- */

static void run_step(unsigned pairs)
{
	CHECK_STATUS(HR_OK, hr_step_begin(allocator));
	make_events(pairs);
	CHECK_STATUS(HR_OK, hr_step_end(allocator));
}

static void test_chosen_steps_are_recorded_and_no_others(void)
{
	const char *logs = in_folder("logs");
	hr_profiler_options options = fresh();
	open_allocator();
	void *held = take(65536);
	options.steps[0] = (hr_profiler_steps){ 2, 2 };
	options.steps[1] = (hr_profiler_steps){ 5, 7 };
	options.step_count = 2;
	CHECK_STATUS(HR_OK, hr_profiler_start(logs, &options));
	for (unsigned step = 1; step <= 9; step++) {
		run_step(step);
		make_events(1000); /* between steps, so outside of every file except the one from step 5 to 7 */
	}
	CHECK_STATUS(HR_OK, hr_profiler_stop());
	give(held);
	CHECK_EQ(count_files(logs, ".hrt"), 2);
	CHECK_EQ(count_files(logs, "-step2.hrt"), 1);
	CHECK_EQ(count_files(logs, "-step5.hrt"), 1);
	CHECK(strstr(last_file(), "-step5.hrt") != NULL);
	counts c = counts_of(last_file());
	CHECK_EQ(c.of[HR__EVENT_STEP], 3);
	CHECK_EQ(c.of[HR__EVENT_STEP_END], 3);
	CHECK_EQ(c.first_step, 5);
	CHECK_EQ(c.last_step, 7);
	CHECK_EQ(c.of[HR__EVENT_FREE], 5 + 6 + 7 + 2000);
	CHECK_EQ(c.of[HR__EVENT_ALLOC], 1 + 5 + 6 + 7 + 2000); /* and blocks that existed before */
}

/* Three allocators in step 1: the first began the step before the profiler started, and its end does not end the file of the
 * others. */
static void test_a_step_that_began_before_does_not_end_the_file_of_others(void)
{
	hr_profiler_options options = fresh();
	hr_allocator all[3];
	open_allocator();
	all[0] = allocator;
	hr_allocator_options small = fixture_allocator_options(8 * 65536);
	for (int i = 1; i < 3; i++) CHECK_STATUS(HR_OK, hr_allocator_create(device, &small, &all[i]));
	options.steps[0] = (hr_profiler_steps){ 1, 1 };
	options.step_count = 1;
	CHECK_STATUS(HR_OK, hr_step_begin(all[0]));
	CHECK_STATUS(HR_OK, hr_profiler_start(in_folder("logs"), &options));
	CHECK_STATUS(HR_OK, hr_step_begin(all[1]));
	make_events(1);
	CHECK_STATUS(HR_OK, hr_step_end(all[0]));
	make_events(1);
	CHECK_STATUS(HR_OK, hr_step_begin(all[2]));
	CHECK_STATUS(HR_OK, hr_step_end(all[1]));
	make_events(1);
	CHECK_STATUS(HR_OK, hr_step_end(all[2]));
	make_events(1000);
	CHECK_STATUS(HR_OK, hr_profiler_stop());
	CHECK_EQ(count_files(in_folder("logs"), ".hrt"), 1);
	CHECK_EQ(counts_of(last_file()).of[HR__EVENT_FREE], 3);
}

static void test_steps_that_do_not_occur_are_reported(void)
{
	char missed[64];
	hr_profiler_options options = fresh();
	open_allocator();
	options.steps[0] = (hr_profiler_steps){ 2, 99 };
	options.steps[1] = (hr_profiler_steps){ 100, 103 };
	options.steps[2] = (hr_profiler_steps){ 7, 7 };
	options.step_count = 3;
	CHECK_EQ(hr_profiler_get_missed_steps(NULL, 0), 0);
	CHECK_STATUS(HR_OK, hr_profiler_start(in_folder("logs"), &options));
	for (int i = 0; i < 3; i++) run_step(2);
	CHECK_STATUS(HR_OK, hr_profiler_stop()); /* some were reached */
	CHECK_EQ(hr_profiler_get_missed_steps(missed, sizeof missed), 9);
	CHECK(!strcmp(missed, "100-103,7"));
	CHECK_EQ(count_files(in_folder("logs"), ".hrt"), 1);

	options.steps[0] = (hr_profiler_steps){ 1, 1 }; /* has passed */
	CHECK_STATUS(HR_OK, hr_profiler_start(in_folder("none"), &options));
	run_step(2);
	CHECK_STATUS(HR_NOT_READY, hr_profiler_stop());
	CHECK(strstr(hr_last_message(), "1,100-103,7 did not occur; the program had 4") != NULL);
	CHECK_EQ(count_files(in_folder("none"), ".hrt"), 0);

	CHECK_STATUS(HR_OK, hr_profiler_start(in_folder("none"), NULL)); /* no steps were chosen */
	CHECK_STATUS(HR_OK, hr_profiler_stop());
	CHECK_EQ(hr_profiler_get_missed_steps(missed, sizeof missed), 0);

	options.step_count = HR_PROFILER_STEPS_MAX;
	for (int i = 0; i < HR_PROFILER_STEPS_MAX; i++) options.steps[i] = (hr_profiler_steps){ UINT64_MAX - 1, UINT64_MAX };
	CHECK_STATUS(HR_OK, hr_profiler_start(in_folder("none"), &options));
	CHECK_STATUS(HR_NOT_READY, hr_profiler_stop());
	CHECK_EQ(hr_profiler_get_missed_steps(missed, sizeof missed), HR_PROFILER_STEPS_MAX * 42 - 1);
}

static void test_a_file_that_cannot_be_made_in_a_step_is_reported_at_the_end(void)
{
	char logs[256];
	hr_profiler_options options = fresh();
	snprintf(logs, sizeof logs, "%s", in_folder("logs"));
	open_allocator();
	options.steps[0] = (hr_profiler_steps){ 1, UINT64_MAX };
	options.step_count = 1;
	CHECK_STATUS(HR_OK, hr_profiler_start(logs, &options));
	CHECK_EQ(rmdir(logs), 0);
	for (int i = 0; i < 3; i++) run_step(2);
	CHECK_STATUS(HR_IO, hr_profiler_stop());
	CHECK(strstr(hr_last_message(), "step1") != NULL);
	run_step(2);
}

/* ---- every kind of event ---- */

static void test_scopes_refusals_stitches_and_marks_are_recorded(void)
{
	hr_request huge = HR_REQUEST(1 << 20);
	void *blocks[8], *block;
	open_allocator();
	CHECK_STATUS(HR_OK, hr_trace_mark("unheard", 1));
	CHECK_STATUS(HR_OK, hr_trace_start(in_folder("kinds.hrt")));
	CHECK_STATUS(HR_OK, hr_name_scope_push("outer"));
	CHECK_STATUS(HR_OK, hr_name_scope_push("inner"));
	for (int i = 0; i < 8; i++) blocks[i] = take(65536);
	for (int i = 0; i < 8; i += 2) give(blocks[i]);
	CHECK_STATUS(HR_OUT_OF_MEMORY, hr_alloc(allocator, &huge, &block));
	block = take(3 * 65536);
	CHECK_STATUS(HR_OK, hr_name_scope_pop());
	CHECK_STATUS(HR_OK, hr_name_scope_pop());
	CHECK_STATUS(HR_OK, hr_trace_mark("epoch", 3));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_trace_mark("", 3));
	CHECK_STATUS(HR_OK, hr_trace_stop());

	hr__trace_reader *reader;
	hr__event event;
	counts c = counts_of(in_folder("kinds.hrt"));
	CHECK_EQ(c.of[HR__EVENT_SCOPE_PUSH], 2);
	CHECK_EQ(c.of[HR__EVENT_SCOPE_POP], 2);
	CHECK_EQ(c.of[HR__EVENT_ALLOC_FAILED], 1);
	CHECK_EQ(c.of[HR__EVENT_STITCH], 1);
	CHECK_EQ(c.of[HR__EVENT_MARK], 2); /* one is made by the recorder */
	CHECK_STATUS(HR_OK, hr__trace_reader_open(in_folder("kinds.hrt"), &reader));
	while (hr__trace_reader_next(reader, &event) == HR_OK) {
		if (event.kind == HR__EVENT_STITCH) CHECK_EQ(event.address, (uintptr_t)block);
		if (event.kind == HR__EVENT_MARK && event.tag) CHECK(!strcmp(hr_name_text(event.tag), "epoch") && event.bytes == 3);
		if (event.kind == HR__EVENT_SCOPE_PUSH) CHECK(!strncmp(hr_name_text(event.scope), "outer", 5));
		if (event.kind == HR__EVENT_ALLOC) CHECK(!strcmp(hr_name_text(event.scope), "outer/inner"));
	}
	hr__trace_reader_close(reader);
}

/* ---- kill -9, and full disks ---- */

static void test_a_killed_program_leaves_all_that_it_had_recorded(void)
{
	int pipes[2], status;
	uint64_t done = 0, told;
	CHECK_EQ(pipe(pipes), 0);
	in_folder("");
	pid_t child = fork();
	if (child == 0) {
		close(pipes[0]);
		open_allocator();
		CHECK_STATUS(HR_OK, hr_profiler_start(folder_of_test(), NULL));
		for (uint64_t count = 1000;; count += 1000) {
			make_events(1000);
			if (write(pipes[1], &count, sizeof count) != sizeof count) _exit(1);
		}
	}
	close(pipes[1]);
	while (done < 100000 && read(pipes[0], &told, sizeof told) == sizeof told) done = told;
	CHECK_EQ(kill(child, SIGKILL), 0);
	while (read(pipes[0], &told, sizeof told) == sizeof told) done = told;
	CHECK_EQ(waitpid(child, &status, 0), child);
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	DIR *dir = opendir(folder_of_test());
	const char *name = NULL;
	for (struct dirent *entry = readdir(dir); entry; entry = readdir(dir))
		if (strstr(entry->d_name, ".hrt")) name = in_folder(entry->d_name);
	closedir(dir);
	CHECK(name != NULL);
	counts c = counts_of(name);
	CHECK(!c.complete);
	CHECK_EQ(c.lost, 0);
	CHECK_GE(c.of[HR__EVENT_FREE], done);
	CHECK_LE(c.of[HR__EVENT_ALLOC] - c.of[HR__EVENT_FREE], 1);
}

/* A limit on the size of files simulates a full disk: the system refuses in the same way. */
static void test_a_full_disk_loses_and_counts_events_and_the_program_continues(void)
{
	struct rlimit limit = { .rlim_cur = 6 << 20, .rlim_max = RLIM_INFINITY };
	hr_profiler_options options = fresh();
	open_allocator();
	CHECK_STATUS(HR_OK, hr_profiler_start(in_folder("logs"), NULL));
	CHECK_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
	make_events(600000);
	CHECK_STATUS(HR_IO, hr_profiler_stop());
	CHECK(strstr(hr_last_message(), "events are missing") != NULL);
	counts c = counts_of(last_file());
	CHECK_GT(c.lost, 0);
	CHECK_EQ(c.of[HR__EVENT_ALLOC] + c.of[HR__EVENT_FREE] + c.of[HR__EVENT_MAP] + c.lost, 1200000 + c.of[HR__EVENT_MAP]);

	/* Packing on a full disk leaves the file unchanged. */
	limit.rlim_cur = RLIM_INFINITY;
	CHECK_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
	options.compress = true;
	CHECK_STATUS(HR_OK, hr_profiler_start(in_folder("packed"), &options));
	make_events(100000);
	limit.rlim_cur = 1000;
	CHECK_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
	CHECK_STATUS(HR_IO, hr_profiler_stop());
	limit.rlim_cur = RLIM_INFINITY;
	CHECK_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
	CHECK_EQ(count_files(in_folder("packed"), ".zst"), 0);
	CHECK_EQ(counts_of(last_file()).of[HR__EVENT_FREE], 100000);
}

static void test_the_program_continues_whichever_call_fails(void)
{
	hr_profiler_options options = fresh();
	options.compress = true;
	options.tensorboard = true;
	CHECK_STATUS(HR_OK, hr_analysis_register());
	CHECK_STATUS(HR_OK, hr__pack_available());
	hr_fault_os_install();
	open_allocator();
	for (uint64_t n = 1; n < 1000; n++) {
		char name[32]; /* one directory for each n: the number of calls depends on the files of the same second */
		snprintf(name, sizeof name, "fails-%llu", (unsigned long long)n);
		const char *logdir = in_folder(name);
		hr_fault_os_fail_nth(n, false, ENOSPC);
		hr_status started = hr_profiler_start(logdir, &options);
		make_events(10);
		hr_status stopped = started ? HR_OK : hr_profiler_stop();
		bool failed = hr_fault_os_calls() >= n;
		hr_fault_os_fail_nth(0, false, 0);
		make_events(10);
		if (!failed) {
			CHECK_STATUS(HR_OK, started);
			CHECK_STATUS(HR_OK, stopped);
			break;
		}
		CHECK_LT(n, 999);
	}
	CHECK_STATUS(HR_OK, hr_shutdown());
	CHECK(hr_fault_os_is_clean());
	hr_fault_os_uninstall();
}

/* The XPlane of the session [session], which must be its only file; the caller frees the bytes. */
static char *plane_of(const char *logdir, const char *session, size_t *size)
{
	char at[512], file[1024] = "";
	snprintf(at, sizeof at, "%s/plugins/profile/%s", logdir, session);
	DIR *dir = opendir(at);
	CHECK(dir != NULL);
	for (struct dirent *entry = readdir(dir); entry; entry = readdir(dir)) {
		if (entry->d_name[0] == '.') continue;
		CHECK_STR(file, "");
		CHECK(strstr(entry->d_name, ".xplane.pb") != NULL);
		snprintf(file, sizeof file, "%s/%s", at, entry->d_name);
	}
	closedir(dir);
	return load(file, size);
}

static bool has_text(const char *bytes, size_t size, const char *text)
{
	for (size_t i = 0, length = strlen(text); i + length <= size; i++)
		if (memcmp(bytes + i, text, length) == 0) return true;
	return false;
}

/* The name of the newest file, without directory and extension. */
static const char *last_session(void)
{
	static char name[256];
	const char *slash = strrchr(last_file(), '/');
	snprintf(name, sizeof name, "%s", slash + 1);
	*strstr(name, ".hrt") = 0;
	return name;
}

static void test_a_recording_is_exported_for_tensorboard_on_request(void)
{
	hr_profiler_options options = fresh();
	size_t size;
	open_allocator();
	CHECK_STATUS(HR_OK, hr_profiler_start(in_folder("plain"), &options));
	make_events(10);
	CHECK_STATUS(HR_OK, hr_profiler_stop());
	CHECK_EQ(count_files(in_folder("plain"), "plugins"), 0);

	/* Without the library that writes it, it is refused at once. */
	options.tensorboard = true;
	hr__store_release(&hr__hooks_table.export_tensorboard, NULL);
	CHECK_STATUS(HR_UNSUPPORTED, hr_profiler_start(in_folder("board"), &options));
	CHECK_CONTAINS(hr_last_message(), "hr_analysis_register");

	CHECK_STATUS(HR_OK, hr_analysis_register());
	options.compress = true; /* it is exported before it is packed */
	CHECK_STATUS(HR_OK, hr_profiler_start(in_folder("board"), &options));
	make_events(10);
	CHECK_STATUS(HR_OK, hr_profiler_stop());
	char *bytes = plane_of(in_folder("board"), last_session(), &size);
	CHECK(has_text(bytes, size, "/host:CPU") && has_text(bytes, size, "MemoryAllocation") && has_text(bytes, size, "fragmentation"));
	free(bytes);
	CHECK(exists(last_file()));

	/* One session for each file of chosen steps. */
	options.step_count = 2;
	options.steps[0] = (hr_profiler_steps){ 1, 1 };
	options.steps[1] = (hr_profiler_steps){ 3, 3 };
	CHECK_STATUS(HR_OK, hr_profiler_start(in_folder("steps"), &options));
	for (int step = 1; step <= 4; step++) {
		CHECK_STATUS(HR_OK, hr_step_begin(allocator));
		make_events(5);
		CHECK_STATUS(HR_OK, hr_step_end(allocator));
		CHECK_EQ(count_files(in_folder("steps"), "plugins"), 1);
		CHECK_EQ(count_files(in_folder("steps/plugins/profile"), "-step"), step < 3 ? 1 : 2);
	}
	CHECK_STATUS(HR_OK, hr_profiler_stop());
	bytes = plane_of(in_folder("steps"), last_session(), &size);
	CHECK(strstr(last_session(), "-step3") != NULL && has_text(bytes, size, "step 3"));
	free(bytes);

	/* An obstacle is reported, and the recording is complete. */
	options = fresh();
	options.tensorboard = true;
	CHECK_EQ(mkdir(in_folder("way"), 0700), 0);
	save(in_folder("way/plugins"), "mine", 4);
	CHECK_STATUS(HR_OK, hr_profiler_start(in_folder("way"), &options));
	make_events(10);
	CHECK_STATUS(HR_IO, hr_profiler_stop());
	CHECK_CONTAINS(hr_last_message(), "way/plugins");
	CHECK_EQ(counts_of(last_file()).of[HR__EVENT_FREE], 10);
	CHECK_STATUS(HR_OK, hr_shutdown());
}

static void test_shutdown_ends_the_recording(void)
{
	hr_profiler_options options = fresh();
	options.compress = true;
	open_allocator();
	CHECK_STATUS(HR_OK, hr_profiler_start(in_folder("logs"), &options));
	make_events(10);
	CHECK_STATUS(HR_OK, hr_shutdown());
	CHECK(strstr(last_file(), ".hrt.zst") != NULL);
	counts c = counts_of(last_file());
	CHECK(c.complete);
	CHECK_EQ(c.of[HR__EVENT_FREE], 10);
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_profiler_stop());
}

static void test_a_forked_child_does_not_change_the_recording(void)
{
	int status;
	open_allocator();
	CHECK_STATUS(HR_OK, hr_profiler_start(in_folder("logs"), NULL));
	make_events(10);
	pid_t child = fork();
	if (child == 0) {
		if (hr_profiler_stop() == HR_OK || hr_shutdown() != HR_OK) _exit(1);
		_exit(0);
	}
	CHECK_EQ(waitpid(child, &status, 0), child);
	CHECK_EQ(status, 0);
	make_events(10);
	CHECK_STATUS(HR_OK, hr_profiler_stop());
	CHECK_EQ(counts_of(last_file()).of[HR__EVENT_FREE], 20);
}

/* ---- packed files ---- */

static void record_to(const char *path, unsigned pairs)
{
	open_allocator();
	CHECK_STATUS(HR_OK, hr_trace_start(path));
	make_events(pairs);
	CHECK_STATUS(HR_OK, hr_trace_stop());
}

static hr_status unpack(const char *from, const char *to)
{
	int fd;
	uint64_t size, packed;
	hr_status status = hr__packed_create(to, &fd);
	if (status) return status;
	status = hr__unpack_to(from, to, fd, &size, &packed);
	close(fd);
	return status;
}

static void test_packing_gives_back_every_byte(void)
{
	size_t size, size2;
	const char *path = in_folder("t.hrt"), *packed = in_folder("t.hrt.zst"), *again = in_folder("again.hrt");
	record_to(path, 100000);
	char *before = load(path, &size);
	CHECK_STATUS(HR_OK, hr__pack(path));
	CHECK(!exists(path) && exists(packed) && hr__is_packed(packed));
	CHECK_STATUS(HR_OK, unpack(packed, again));
	char *after = load(again, &size2);
	CHECK_EQ(size, size2);
	CHECK(memcmp(before, after, size) == 0);
	CHECK(!hr__is_packed(again) && !hr__is_packed(in_folder("nothing")));
	CHECK_EQ(counts_of(packed).of[HR__EVENT_FREE], 100000);
	CHECK_STATUS(HR_IO, hr__pack(path));              /* does not exist any more */
	CHECK_STATUS(HR_IO, unpack(packed, again));   /* exists */
	CHECK_EQ(rename(again, path), 0);
	CHECK_STATUS(HR_IO, hr__pack(path));              /* would overwrite */
	CHECK(exists(path));
	free(before);
	free(after);
}

/* While a file is written, the folder has no name for it: a signal at that moment would leave nothing behind. */
static hr__os_table watching_os;
static unsigned writes_seen;

static int write_and_look(int fd, const void *from, size_t bytes, uint64_t offset)
{
	writes_seen++;
	CHECK_EQ(count_files(folder_of_test(), "headroom-"), 0);
	return hr__os_linux()->file_write(fd, from, bytes, offset);
}

static void test_what_is_unpacked_has_no_name_at_any_moment(void)
{
	record_to(in_folder("t.hrt"), 100000);
	CHECK_STATUS(HR_OK, hr_shutdown());
	CHECK_STATUS(HR_OK, hr__pack(in_folder("t.hrt")));
	watching_os = *hr__os_linux();
	watching_os.file_write = write_and_look;
	CHECK_EQ(setenv("TMPDIR", folder_of_test(), 1), 0);
	hr__os_replace(&watching_os);
	CHECK_EQ(counts_of(in_folder("t.hrt.zst")).of[HR__EVENT_FREE], 100000);
	hr__os_replace(NULL);
	CHECK_GT(writes_seen, 1);
	CHECK_EQ(count_files(folder_of_test(), ""), 1);
}

/* Cut anywhere, a packed file is read up to there, or refused. */
static void test_a_packed_file_that_is_cut_or_damaged_is_read_or_refused(void)
{
	size_t size;
	counts c;
	unsigned opened = 0;
	const char *path = in_folder("t.hrt"), *damaged = in_folder("damaged.zst");
	record_to(path, 12000); /* several of its blocks */
	CHECK_STATUS(HR_OK, hr__pack(path));
	char *bytes = load(in_folder("t.hrt.zst"), &size);
	for (size_t cut = 0; cut < size; cut += 1 + size / 200) {
		save(damaged, bytes, cut);
		opened += count_events(damaged, &c) == HR_OK && !c.complete;
	}
	uint64_t seed = hr_test_seed() * 0x9E3779B97F4A7C15ull;
	for (uint64_t i = 0; i < hr_test_scaled(400); i++) {
		seed = seed * 6364136223846793005ull + 1442695040888963407ull;
		size_t at = (size_t)(seed >> 33) % size;
		char kept = bytes[at];
		bytes[at] = (char)(bytes[at] ^ (char)(1u << (seed >> 29 & 7)));
		save(damaged, bytes, size);
		bytes[at] = kept;
		hr_status status = count_events(damaged, &c);
		if (status) CHECK(hr_last_message()[0]);
	}
	CHECK_GT(opened, 0);
	free(bytes);
}

/* A frame of blocks that repeat one byte 128 KiB times: 4 bytes in the file for each. */
static void test_a_file_that_unpacks_to_far_too_much_is_refused(void)
{
	static const unsigned char head[] = { 0x28, 0xB5, 0x2F, 0xFD, 0x00, 0x58 }; /* size not given, window of 2 MiB */
	enum { BLOCKS = 20000 };
	static unsigned char bomb[sizeof head + 4 * BLOCKS];
	memcpy(bomb, head, sizeof head);
	for (size_t i = 0; i < BLOCKS; i++) {
		uint32_t block = (i == BLOCKS - 1) | 1u << 1 | (128u << 10) << 3;
		memcpy(bomb + sizeof head + 4 * i, &block, 3);
	}
	save(in_folder("bomb.zst"), bomb, sizeof bomb);
	hr__trace_reader *reader;
	CHECK_STATUS(HR_BAD_FORMAT, hr__trace_reader_open_any(in_folder("bomb.zst"), &reader));
	CHECK(strstr(hr_last_message(), "unpacks to more") != NULL);
	CHECK_EQ(count_files(folder_of_test(), ".hrt"), 0);
}

/* ---- limits ---- */

static hr__trace_summary summary_of(const char *path)
{
	hr__trace_reader *reader;
	CHECK_STATUS(HR_OK, hr__trace_reader_open(path, &reader));
	hr__trace_summary summary = *hr__trace_reader_summary(reader);
	hr__trace_reader_close(reader);
	return summary;
}

static off_t size_of(const char *path)
{
	struct stat facts;
	CHECK_EQ(stat(path, &facts), 0);
	return facts.st_size;
}

static void check_limited(const char *path, off_t limit)
{
	hr__trace_summary summary = summary_of(path);
	CHECK(summary.complete && summary.limited);
	CHECK_EQ(summary.lost, 0);
	CHECK_LE(size_of(path), limit);
	CHECK_GT(size_of(path), limit - 3 * 65536);
	CHECK_GT(summary.events, 50000); /* about 10 bytes each */
}

static void test_a_file_ends_at_its_limit(void)
{
	hr_profiler_options options = fresh();
	open_allocator();
	options.max_bytes = 1000;
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_profiler_start(in_folder("logs"), &options));
	CHECK_CONTAINS(hr_last_message(), "max_bytes of 1000 is too small");
	for (uint64_t limit = 1 << 20; limit <= 6 << 20; limit += 5 << 20) {
		options.max_bytes = limit + 7; /* not a whole number of blocks */
		void *kept = take(8192);
		CHECK_STATUS(HR_OK, hr_profiler_start(in_folder("logs"), &options));
		make_events(400000);
		CHECK(!hr__trace_is_on()); /* events cost nothing any more */
		give(kept);
		CHECK_STATUS(HR_IN_USE, hr_trace_start(in_folder("another.hrt"))); /* it is not stopped yet */
		CHECK_STATUS(HR_TRUNCATED, hr_profiler_stop());
		CHECK_CONTAINS(hr_last_message(), "reached its limit of");
		check_limited(last_file(), (off_t)options.max_bytes);
	}
	/* The next recording starts from zero. */
	options.max_bytes = 1 << 20;
	CHECK_STATUS(HR_OK, hr_profiler_start(in_folder("logs"), &options));
	make_events(100);
	CHECK_STATUS(HR_OK, hr_profiler_stop());
	CHECK(!summary_of(last_file()).limited);
	CHECK_EQ(counts_of(last_file()).of[HR__EVENT_FREE], 100);
}

static void *make_many_events(void *unused)
{
	for (unsigned i = 0; i < 200000; i++) hr__trace_free(1, i * 256, 0);
	return unused;
}

static void test_all_threads_end_at_the_limit(void)
{
	pthread_t threads[4];
	const char *path = in_folder("limited.hrt");
	CHECK_STATUS(HR_OK, hr__trace_open_limited(path, 2 << 20, 0));
	for (int i = 0; i < 4; i++) CHECK_EQ(pthread_create(&threads[i], NULL, make_many_events, NULL), 0);
	for (int i = 0; i < 4; i++) CHECK_EQ(pthread_join(threads[i], NULL), 0);
	CHECK(hr__trace_is_open() && !hr__trace_is_on());
	CHECK_STATUS(HR_TRUNCATED, hr__trace_close());
	CHECK_LE(size_of(path), 2 << 20);
	CHECK(summary_of(path).limited && summary_of(path).lost == 0);
}

static void test_a_killed_program_leaves_the_note_of_its_limit(void)
{
	const char *path = in_folder("killed.hrt");
	pid_t child = fork();
	if (child == 0) {
		if (hr__trace_open_limited(path, 1 << 20, 0)) _exit(1);
		make_many_events(NULL);
		kill(getpid(), SIGKILL);
	}
	int status;
	CHECK_EQ(waitpid(child, &status, 0), child);
	CHECK(WIFSIGNALED(status));
	CHECK_LE(size_of(path), 1 << 20); /* not even blocks prepared in advance exceed it */
	hr__trace_summary summary = summary_of(path);
	CHECK(summary.limited && !summary.complete);
	CHECK_GT(summary.events, 50000);
}

static void test_shutdown_closes_a_file_that_reached_its_limit(void)
{
	hr_profiler_options options = fresh();
	options.max_bytes = 1 << 20;
	open_allocator();
	CHECK_STATUS(HR_OK, hr_profiler_start(in_folder("logs"), &options));
	make_events(200000);
	CHECK_STATUS(HR_TRUNCATED, hr_shutdown());
	check_limited(last_file(), 1 << 20);
	CHECK(!hr__trace_is_open());
}

/* A packed trace of [blocks] blocks with [bytes] of records in each, all the same [record] of [length] bytes. With [lanes], every
 * block is a lane of its own. Returns the packed size. */
static size_t pack_repeated(const char *path, unsigned blocks, const unsigned char *record, size_t length, size_t bytes, bool lanes)
{
	enum { BLOCK = 65536 };
	static unsigned char block[BLOCK];
	size_t size;
	CHECK_STATUS(HR_OK, hr__trace_open_blocks(path, BLOCK));
	hr__trace_define_device(0, "GPU:0", 1 << 30, 1 << 21);
	hr__trace_define_allocator(0, "all", "bfc", 0);
	CHECK_STATUS(HR_OK, hr__trace_close());
	CHECK_EQ(truncate(path, 2 * BLOCK), 0);
	unsigned char *bytes_of_one = (unsigned char *)load(path, &size);
	FILE *file = fopen(path, "wb");
	((hr__trace_header *)bytes_of_one)->file_bytes = ((hr__trace_header *)bytes_of_one)->complete = 0; /* as if killed */
	CHECK_EQ(fwrite(bytes_of_one, 1, size, file), size);
	for (unsigned i = 0; i < blocks; i++) {
		hr__trace_block *head = (hr__trace_block *)block;
		memset(block, 0, sizeof block);
		*head = (hr__trace_block){ .magic = HR__TRACE_BLOCK_MAGIC, .type = HR__BLOCK_RECORDS, .lane = lanes ? i + 1 : 1, .sequence = lanes ? 0 : i };
		hr__store_relaxed(&head->committed, (uint32_t)(bytes / length * length));
		for (size_t at = 0; at + length <= bytes; at += length) memcpy(block + sizeof *head + at, record, length);
		CHECK_EQ(fwrite(block, 1, BLOCK, file), BLOCK);
	}
	CHECK_EQ(fclose(file), 0);
	free(bytes_of_one);
	CHECK_STATUS(HR_OK, hr__pack(path));
	char packed[512];
	snprintf(packed, sizeof packed, "%s.zst", path);
	free(load(packed, &size));
	return size;
}

/* Peak memory in bytes of a process that opens the capture, and its exit status. */
static uint64_t peak_of_opening(const char *path, int *status)
{
	struct rusage usage;
	pid_t child = fork();
	if (child == 0) {
		hr__capture *capture;
		hr_status opened = hr__capture_open(path, NULL, NULL, &capture);
		_exit(opened && !strstr(hr_last_message(), "which no recording does") ? 99 : (int)opened);
	}
	CHECK_EQ(wait4(child, status, 0, &usage), child);
	CHECK(WIFEXITED(*status));
	*status = WEXITSTATUS(*status);
	return (uint64_t)usage.ru_maxrss * 1024;
}

/* Memory for a packed trace is bounded by its own size: events, records without events, and threads. */
static void test_a_small_packed_file_takes_little_memory(void)
{
	static const unsigned char free_event[8] = { HR__EVENT_FREE }, push[4] = { HR__EVENT_SCOPE_PUSH };
	static unsigned char thread[32] = { HR__RECORD_THREAD };
	/* 256 bytes at the address after the last one, and their free. */
	static unsigned char alloc[32] = { HR__EVENT_ALLOC, HR__SIZE_256 << HR__TAG_SIZE_SHIFT >> 8, 1 };
	CHECK_EQ(hr__varint_put(alloc + 6, 1) - alloc, 7);
	memcpy(alloc + 9, free_event, 8);
	CHECK_EQ(hr__varint_put(hr__varint_put(thread + 2, 1), 1) - thread, 4);
	const struct {
		const char *name;
		const unsigned char *record;
		size_t length, bytes;
		bool lanes;
		hr_status status;
	} cases[] = {
		{ "allocs.hrt", alloc, 17, 65000, false, HR_BAD_FORMAT },
		{ "pushes.hrt", push, 4, 65000, false, HR_BAD_FORMAT },
		{ "threads.hrt", thread, 4, 65000, true, HR_BAD_FORMAT },
		{ "lanes.hrt", free_event, 8, 80, true, HR_OK }, /* 1,200 threads with few events: a real recording may look like this */
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		int status;
		size_t packed = pack_repeated(in_folder(cases[i].name), 1200, cases[i].record, cases[i].length, cases[i].bytes, cases[i].lanes);
		char path[512];
		snprintf(path, sizeof path, "%s.zst", in_folder(cases[i].name));
		uint64_t peak = peak_of_opening(path, &status);
		printf("# %s: %zu bytes packed, %.0f MB to open\n", cases[i].name, packed, (double)peak / 1e6);
		CHECK_STATUS(cases[i].status, (hr_status)status);
		CHECK_LT(packed, 200000);
		if (!HR_TEST_SANITIZED) CHECK_LT(peak, (uint64_t)48 << 20);
		CHECK_EQ(unlink(path), 0);
	}
}

TEST_MAIN(T(test_the_argument_is_found_and_taken_out), T(test_bad_arguments_are_errors_and_change_nothing),
          T(test_a_run_leaves_one_file_with_everything), T(test_no_file_is_ever_written_over),
          T(test_start_twice_and_stop_without_start_are_refused),
          T(test_each_recording_is_stopped_by_its_own_stop), T(test_the_environments_recording_gives_way_and_is_not_stopped),
          T(test_a_directory_that_cannot_be_written_is_an_error_and_no_more),
          T(test_chosen_steps_are_recorded_and_no_others), T(test_a_step_that_began_before_does_not_end_the_file_of_others),
          T(test_steps_that_do_not_occur_are_reported),
          T(test_a_file_that_cannot_be_made_in_a_step_is_reported_at_the_end),
          T(test_scopes_refusals_stitches_and_marks_are_recorded), T(test_a_killed_program_leaves_all_that_it_had_recorded),
          T(test_a_full_disk_loses_and_counts_events_and_the_program_continues), T(test_the_program_continues_whichever_call_fails),
          T(test_a_recording_is_exported_for_tensorboard_on_request),
          T(test_shutdown_ends_the_recording), T(test_a_forked_child_does_not_change_the_recording), T(test_packing_gives_back_every_byte),
          T(test_what_is_unpacked_has_no_name_at_any_moment),
          T(test_a_packed_file_that_is_cut_or_damaged_is_read_or_refused), T(test_a_file_that_unpacks_to_far_too_much_is_refused), T(test_a_small_packed_file_takes_little_memory),
          T(test_a_file_ends_at_its_limit), T(test_all_threads_end_at_the_limit), T(test_a_killed_program_leaves_the_note_of_its_limit),
          T(test_shutdown_closes_a_file_that_reached_its_limit))
