/* test_oom_environment.c - HEADROOM_OOM_REPORT: an unchanged program writes its reports, and never anything else. */
#include <errno.h>
#include <sys/stat.h>

#include "fault_os.h"
#include "test.h"

#define GIB (UINT64_C(1) << 30)

static char folder[64];

static void make_folder(void)
{
	snprintf(folder, sizeof folder, "/tmp/headroom-oom-XXXXXX");
	CHECK(mkdtemp(folder) != NULL);
}

static void remove_folder(void)
{
	char command[128];
	snprintf(command, sizeof command, "rm -rf '%s'", folder);
	CHECK_EQ(system(command), 0);
}

static void set_variable(const char *format)
{
	char value[256];
	snprintf(value, sizeof value, format, folder);
	setenv("HEADROOM_OOM_REPORT", value, 1);
}

/* An unchanged program: default options. */
static void fail(unsigned times)
{
	hr_allocator allocator;
	void *block;
	CHECK_STATUS(HR_OK, hr_allocator_get_default("SIM:0", &allocator));
	for (unsigned i = 0; i < times; i++) CHECK_STATUS(HR_OUT_OF_MEMORY, hr_alloc_bytes(allocator, GIB << 14, &block));
	CHECK_CONTAINS(hr_last_message(), "cannot allocate 16.0 TiB");
}

static char *read_file(const char *name)
{
	static char text[1 << 20];
	char path[256];
	snprintf(path, sizeof path, "%s/%s", folder, name);
	FILE *file = fopen(path, "r");
	if (!file) return NULL;
	size_t length = fread(text, 1, sizeof text - 1, file);
	text[length] = 0;
	fclose(file);
	return text;
}

static unsigned count_files(void)
{
	char command[128];
	unsigned count = 0;
	snprintf(command, sizeof command, "ls '%s' | wc -l", folder);
	FILE *lines = popen(command, "r");
	CHECK(lines && fscanf(lines, "%u", &count) == 1);
	pclose(lines);
	return count;
}

static void test_a_file_is_written_for_each_event(void)
{
	char path[128];
	struct stat facts;
	make_folder();
	set_variable("%s/oom.json");
	umask(0);
	fail(3);
	CHECK_EQ(count_files(), 3);
	for (int i = 0; i < 3; i++) {
		char name[32];
		snprintf(name, sizeof name, i ? "oom.json.%d" : "oom.json", i);
		CHECK(read_file(name) != NULL);
		CHECK_EQ(read_file(name)[0], '{');
		CHECK_CONTAINS(read_file(name), "17592186044416");
	}
	snprintf(path, sizeof path, "%s/oom.json", folder);
	CHECK_EQ(stat(path, &facts), 0);
	CHECK_EQ(facts.st_mode & 07777, 0600);
	CHECK_STATUS(HR_OK, hr_shutdown());
	remove_folder();
}

static void test_a_percent_p_is_the_number_of_the_process(void)
{
	char name[64];
	make_folder();
	set_variable("%s/oom-%%p-100%%%%-%%x.json");
	fail(1);
	snprintf(name, sizeof name, "oom-%d-100%%-%%x.json", (int)getpid());
	CHECK(read_file(name) != NULL);
	CHECK_STATUS(HR_OK, hr_shutdown());
	remove_folder();
}

static void test_what_is_there_is_never_written_over(void)
{
	char path[128], elsewhere[128];
	make_folder();
	set_variable("%s/oom.json");
	snprintf(path, sizeof path, "%s/oom.json", folder);
	FILE *file = fopen(path, "w");
	fputs("mine", file);
	fclose(file);
	/* A symbolic link is not followed either. */
	snprintf(path, sizeof path, "%s/oom.json.1", folder);
	snprintf(elsewhere, sizeof elsewhere, "%s/elsewhere", folder);
	CHECK_EQ(symlink(elsewhere, path), 0);
	fail(1);
	CHECK_STR(read_file("oom.json"), "mine");
	CHECK(read_file("elsewhere") == NULL);
	CHECK(read_file("oom.json.2") != NULL);
	CHECK_STATUS(HR_OK, hr_shutdown());
	remove_folder();
}

static void test_a_failed_write_is_in_the_message_of_the_error(void)
{
	hr_oom_report report;
	make_folder();
	set_variable("%s/no/such/folder/oom.json");
	fail(2);
	CHECK_CONTAINS(hr_last_message(), "(the report could not be written to /tmp/headroom-oom-");
	CHECK_CONTAINS(hr_last_message(), "/no/such/folder/oom.json: ENOENT");
	CHECK_STATUS(HR_OK, hr_oom_get_last(&report)); /* the report exists anyway */
	CHECK_GT(hr_oom_format_text(report, NULL, 0), 0);
	CHECK_STATUS(HR_OK, hr_shutdown());
	remove_folder();
}

static void test_a_path_that_is_too_long_is_reported_with_the_error(void)
{
	static char path[10000];
	memset(path, 'x', sizeof path - 1);
	CHECK_EQ(setenv("HEADROOM_OOM_REPORT", path, 1), 0);
	fail(1);
	CHECK_CONTAINS(hr_last_message(), "(the report could not be written to xxx");
	CHECK_CONTAINS(hr_last_message(), "ENAMETOOLONG");
	CHECK_STATUS(HR_OK, hr_shutdown());
}

/* Every call of the system fails from some point on: the program gets the same error, and no incomplete file is left. */
static void test_a_failing_disk_leaves_no_half_report(void)
{
	hr_allocator allocator;
	void *block;
	make_folder();
	set_variable("%s/oom.json");
	setenv("HEADROOM_OOM_REPORT_FILES", "100", 1);
	hr_fault_os_install();
	fail(1);
	CHECK_STATUS(HR_OK, hr_allocator_get_default("SIM:0", &allocator));
	for (uint64_t nth = 1; nth < 40; nth++) {
		unsigned before = count_files();
		hr_fault_os_fail_nth(nth, false, ENOSPC);
		CHECK_STATUS(HR_OUT_OF_MEMORY, hr_alloc_bytes(allocator, GIB << 14, &block));
		CHECK_CONTAINS(hr_last_message(), "cannot allocate 16.0 TiB");
		bool told = strstr(hr_last_message(), "could not be written") != NULL;
		hr_fault_os_fail_nth(0, false, 0);
		CHECK_EQ(count_files(), before + !told);
	}
	CHECK_STATUS(HR_OK, hr_shutdown());
	CHECK(hr_fault_os_is_clean());
	remove_folder();
}

/* ---- number of files ---- */

static void test_a_process_writes_16_report_files_and_explains_the_limit(void)
{
	hr_oom_report report;
	char path[256], expected[256];
	make_folder();
	set_variable("%s/oom.json");
	fail(16);
	CHECK_EQ(count_files(), 16);
	CHECK_STATUS(HR_OK, hr_oom_get_last(&report));
	CHECK_STATUS(HR_OK, hr_oom_get_file(report, path, sizeof path));
	snprintf(expected, sizeof expected, "%s/oom.json.15", folder);
	CHECK_STR(path, expected);
	CHECK(strstr(hr_last_message(), "the report") == NULL);
	CHECK_STATUS(HR_TOO_SMALL, hr_oom_get_file(report, path, strlen(expected)));
	CHECK_STATUS(HR_TOO_SMALL, hr_oom_get_file(report, NULL, 0));
	CHECK_STATUS(HR_OK, hr_oom_get_file(report, path, strlen(expected) + 1));
	fail(5000);
	CHECK_EQ(count_files(), 16);
	CHECK_CONTAINS(hr_last_message(), "(the report was not written to a file: this process has written 16; HEADROOM_OOM_REPORT_FILES allows more)");
	CHECK_STATUS(HR_OK, hr_oom_get_last(&report));
	CHECK_GT(hr_oom_format_text(report, NULL, 0), 0);
	CHECK_STATUS(HR_TOO_MANY, hr_oom_get_file(report, path, sizeof path));
	CHECK_CONTAINS(hr_last_message(), "HEADROOM_OOM_REPORT_FILES allows more");
	CHECK_STATUS(HR_OK, hr_shutdown());
	remove_folder();
}

static void test_the_number_of_files_can_be_set(void)
{
	make_folder();
	set_variable("%s/oom.json");
	setenv("HEADROOM_OOM_REPORT_FILES", "3", 1);
	fail(10);
	CHECK_EQ(count_files(), 3);
	CHECK_STATUS(HR_OK, hr_shutdown());
	remove_folder();
}

static void test_a_number_of_files_that_is_none_is_the_default(void)
{
	make_folder();
	set_variable("%s/oom.json");
	setenv("HEADROOM_OOM_REPORT_FILES", "many", 1);
	fail(20);
	CHECK_EQ(count_files(), 16);
	CHECK_STATUS(HR_OK, hr_shutdown());
	remove_folder();
}

/* Counts attempts to create a file by the calls of the system: each report needs one, however many files exist. */
static void test_a_file_costs_no_more_for_those_that_are_there(void)
{
	make_folder();
	set_variable("%s/oom.json");
	setenv("HEADROOM_OOM_REPORT_FILES", "200", 1);
	hr_fault_os_install();
	fail(1);
	uint64_t before = hr_fault_os_calls();
	fail(1);
	uint64_t second = hr_fault_os_calls() - before;
	fail(150);
	before = hr_fault_os_calls();
	fail(1);
	CHECK_LE(hr_fault_os_calls() - before, second + 2); /* the log in the report is longer */
	CHECK_EQ(count_files(), 153);
	CHECK_STATUS(HR_OK, hr_shutdown());
	hr_fault_os_uninstall();
	remove_folder();
}

static void test_the_report_has_the_reason_why_it_is_in_no_file(void)
{
	hr_oom_report report;
	char path[256];
	make_folder();
	set_variable("%s/no/such/folder/oom.json");
	fail(1);
	CHECK_STATUS(HR_OK, hr_oom_get_last(&report));
	CHECK_STATUS(HR_IO, hr_oom_get_file(report, path, sizeof path));
	CHECK_CONTAINS(hr_last_message(), "/no/such/folder/oom.json: ENOENT");
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_oom_get_file(report, NULL, 1));
	CHECK_STATUS(HR_INVALID_HANDLE, hr_oom_get_file((hr_oom_report){ 0 }, path, sizeof path));
	CHECK_STATUS(HR_OK, hr_shutdown());
	remove_folder();
}

/* ---- standard error ---- */

static int with_stderr_to(const char *path)
{
	int kept = dup(STDERR_FILENO), fd = open(path, O_CREAT | O_WRONLY | O_TRUNC, 0600);
	CHECK(fd >= 0);
	dup2(fd, STDERR_FILENO);
	close(fd);
	return kept;
}

static void fail_on_its_thread(void *argument, unsigned index)
{
	(void)argument;
	(void)index;
	fail(3);
}

static void test_reports_on_the_standard_error_are_whole(void)
{
	char path[128];
	make_folder();
	setenv("HEADROOM_OOM_REPORT", "stderr", 1);
	snprintf(path, sizeof path, "%s/stderr", folder);
	int kept = with_stderr_to(path);
	hr_test_threads(4, fail_on_its_thread, NULL);
	dup2(kept, STDERR_FILENO);
	/* Twelve reports, one after the other: each is complete before the next begins. */
	char *text = read_file("stderr");
	CHECK(text != NULL);
	hr_oom_report report;
	fail(1);
	CHECK_STATUS(HR_OK, hr_oom_get_last(&report));
	char *one = malloc(1 << 20), *line_end;
	hr_oom_format_text(report, one, 1 << 20);
	line_end = strchr(one, '\n');
	CHECK(line_end != NULL);
	*line_end = 0;
	one[12] = 0; /* the same in every report */
	unsigned found = 0;
	for (char *at = text; (at = strstr(at, one)) != NULL; at++) found += at == text || at[-1] == '\n';
	CHECK_GE(found, 12);
	free(one);
	CHECK_STATUS(HR_OK, hr_shutdown());
	remove_folder();
}

static void test_a_closed_standard_error_does_not_kill_the_process(void)
{
	int ends[2];
	CHECK_EQ(pipe(ends), 0);
	setenv("HEADROOM_OOM_REPORT", "stderr", 1);
	signal(SIGPIPE, SIG_DFL);
	int kept = dup(STDERR_FILENO);
	dup2(ends[1], STDERR_FILENO);
	close(ends[0]);
	close(ends[1]);
	fail(2);
	CHECK_CONTAINS(hr_last_message(), "(the report could not be written to the standard error: EPIPE");
	close(STDERR_FILENO);
	fail(1);
	dup2(kept, STDERR_FILENO);
	CHECK_CONTAINS(hr_last_message(), "EBADF");
	CHECK_STATUS(HR_OK, hr_shutdown());
}

/* ---- saving explicitly ---- */

static void test_a_report_can_be_saved_to_a_new_file(void)
{
	hr_allocator_options options;
	hr_allocator allocator;
	hr_device device;
	hr_oom_report report;
	void *block;
	char path[128];
	make_folder();
	unsetenv("HEADROOM_OOM_REPORT");
	hr_allocator_options_init(&options);
	CHECK(!options.oom.report_allocations_on_oom);
	options.oom.report_allocations_on_oom = true;
	CHECK_STATUS(HR_OK, hr_device_find("SIM:0", &device));
	CHECK_STATUS(HR_OK, hr_allocator_create(device, &options, &allocator));
	CHECK_STATUS(HR_OUT_OF_MEMORY, hr_alloc_bytes(allocator, GIB << 14, &block));
	CHECK_EQ(count_files(), 0);
	CHECK_STATUS(HR_OK, hr_oom_get_last(&report));
	CHECK_STATUS(HR_NOT_READY, hr_oom_get_file(report, path, sizeof path));
	snprintf(path, sizeof path, "%s/saved.json", folder);
	CHECK_STATUS(HR_OK, hr_oom_save(report, path));
	char *json = malloc(1 << 20);
	hr_oom_format_json(report, json, 1 << 20);
	CHECK_STR(read_file("saved.json"), json);
	free(json);
	CHECK_STATUS(HR_IO, hr_oom_save(report, path));
	CHECK_CONTAINS(hr_last_message(), "EEXIST");
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_oom_save(report, ""));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_oom_save(report, NULL));
	CHECK_STATUS(HR_OK, hr_shutdown());
	remove_folder();
}

TEST_MAIN(T(test_a_file_is_written_for_each_event), T(test_a_percent_p_is_the_number_of_the_process),
          T(test_what_is_there_is_never_written_over), T(test_a_failed_write_is_in_the_message_of_the_error),
          T(test_a_path_that_is_too_long_is_reported_with_the_error),
          T(test_a_failing_disk_leaves_no_half_report), T(test_a_process_writes_16_report_files_and_explains_the_limit),
          T(test_the_number_of_files_can_be_set), T(test_a_number_of_files_that_is_none_is_the_default),
          T(test_a_file_costs_no_more_for_those_that_are_there), T(test_the_report_has_the_reason_why_it_is_in_no_file), T(test_reports_on_the_standard_error_are_whole),
          T(test_a_closed_standard_error_does_not_kill_the_process), T(test_a_report_can_be_saved_to_a_new_file))
