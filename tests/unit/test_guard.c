/* test_guard.c - a recorded program survives truncation of its trace file, or of the file for `headroom top`; SIGBUS of other
 * causes reaches the program's own handler. */
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "headroom.h"
#include "headroom_record.h"
#include "core/os/os.h"
#include "core/record/publish.h"
#include "core/record/segment.h"
#include "test.h"
#include "analysis/reader/reader.h"
#include "core/trace/trace.h"

#define THREADS 4
#define SMALL_BLOCK 4096u

static char folder[64];

static const char *in_folder(const char *name)
{
	static char path[128];
	if (!folder[0]) {
		snprintf(folder, sizeof folder, "/tmp/hr_test_guard_XXXXXX");
		CHECK(mkdtemp(folder) != NULL);
	}
	snprintf(path, sizeof path, "%s/%s", folder, name);
	return path;
}

static void remove_all(const char *path)
{
	unlink(path);
	CHECK_EQ(rmdir(folder), 0);
	folder[0] = 0;
}

/* ---- a fault of the program's own ---- */

static char *own_page; /* mapped, but beyond the end of its file */
static sigjmp_buf back;
static volatile sig_atomic_t caught;
static void *volatile caught_address;
static struct sigaction below; /* what the program's handler found installed */

static void make_own_page(void)
{
	int fd = -1;
	CHECK_EQ(hr__os_linux()->memfd("test", hr__os_page_size(), &fd), 0);
	own_page = mmap(NULL, hr__os_page_size(), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(own_page != MAP_FAILED);
	CHECK_EQ(ftruncate(fd, 0), 0);
	close(fd);
}

static void drop_own_page(void)
{
	CHECK_EQ(munmap(own_page, hr__os_page_size()), 0);
}

static void jump_back(int number, siginfo_t *info, void *context)
{
	(void)number;
	(void)context;
	caught++;
	caught_address = info->si_addr;
	siglongjmp(back, 1);
}

/* Calls the previous handler, as programs do for faults that they do not know; at most ten times. */
static void pass_down(int number, siginfo_t *info, void *context)
{
	if (++caught > 10) _exit(99);
	if (below.sa_flags & SA_SIGINFO) below.sa_sigaction(number, info, context);
}

static void handle_with(void (*handler)(int, siginfo_t *, void *), struct sigaction *before)
{
	struct sigaction action = { .sa_sigaction = handler, .sa_flags = SA_SIGINFO };
	CHECK_EQ(sigaction(SIGBUS, &action, before), 0);
}

static bool is_default(void)
{
	struct sigaction now;
	CHECK_EQ(sigaction(SIGBUS, NULL, &now), 0);
	return !(now.sa_flags & SA_SIGINFO) && now.sa_handler == SIG_DFL;
}

/* ---- recordings ---- */

/* ThreadSanitizer holds an internal lock during an atomic store. A store that faults leaves the lock held, and the handler
 * deadlocks. */
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define UNDER_TSAN 1
#endif
#endif
#ifndef UNDER_TSAN
#define UNDER_TSAN 0
#endif

static void need_faults(void)
{
	if (UNDER_TSAN) hr_test_skip("ThreadSanitizer");
}

static void write_events(unsigned count)
{
	for (unsigned i = 0; i < count; i++) hr__trace_free(1, i * 256, 0);
}

static hr__atomic_u32 go_on, written;

static void *write_until_told(void *blocks_signals)
{
	sigset_t all;
	sigfillset(&all);
	if (blocks_signals) pthread_sigmask(SIG_BLOCK, &all, NULL);
	while (hr__load_acquire(&go_on)) {
		write_events(100);
		hr__fetch_add_relaxed(&written, 1);
	}
	return NULL;
}

static void wait_for_writes(void)
{
	uint32_t before = hr__load_relaxed(&written);
	while (hr__load_relaxed(&written) - before < 200) usleep(100);
}

static void test_a_trace_that_is_truncated_does_not_kill(void)
{
	need_faults();
	static const off_t sizes[] = { 0, 1, 5000, 100000, 1 << 20, (4 << 20) + 4096 };
	bool was_default = is_default();
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		for (int blocked = 0; blocked < 2; blocked++) {
			const char *path = in_folder("cut.hrt");
			pthread_t threads[THREADS];
			hr__store_release(&go_on, 1);
			CHECK_STATUS(HR_OK, hr__trace_open(path));
			for (int t = 0; t < THREADS; t++) CHECK_EQ(pthread_create(&threads[t], NULL, write_until_told, blocked ? &go_on : NULL), 0);
			wait_for_writes();
			while (sizes[i] > 1 << 20 && hr__load_relaxed(&written) < 8000) usleep(1000); /* until the file has grown */
			CHECK_EQ(truncate(path, sizes[i]), 0);
			wait_for_writes();
			CHECK_EQ(truncate(path, 0), 0);
			wait_for_writes();
			hr__store_release(&go_on, 0);
			for (int t = 0; t < THREADS; t++) CHECK_EQ(pthread_join(threads[t], NULL), 0);
			CHECK_STATUS(HR_IO, hr__trace_close());
			CHECK_CONTAINS(hr_last_message(), "cut.hrt was shortened by another program");
			CHECK(is_default() == was_default);
			hr__store_relaxed(&written, 0);
			/* The next recording is not affected. */
			CHECK_EQ(unlink(path), 0);
			CHECK_STATUS(HR_OK, hr__trace_open(path));
			write_events(1000);
			CHECK_STATUS(HR_OK, hr__trace_close());
			remove_all(path);
		}
	}
}

/* The rest of the file can be read like that of a killed program. */
static void test_the_rest_of_a_truncated_trace_can_be_read(void)
{
	need_faults();
	const char *path = in_folder("cut.hrt");
	hr__trace_reader *reader;
	hr__event event;
	uint64_t count = 0;
	CHECK_STATUS(HR_OK, hr__trace_open_blocks(path, SMALL_BLOCK));
	write_events(5000);
	CHECK_EQ(truncate(path, 3 * SMALL_BLOCK), 0); /* the header and two blocks */
	write_events(5000);
	CHECK_STATUS(HR_IO, hr__trace_close());
	CHECK_STATUS(HR_OK, hr__trace_reader_open(path, &reader));
	CHECK(!hr__trace_reader_summary(reader)->complete);
	while (hr__trace_reader_next(reader, &event) == HR_OK) count++;
	CHECK(count > 500 && count < 5000);
	hr__trace_reader_close(reader);
	remove_all(path);
}

static void test_the_profiler_reports_that_its_file_was_truncated(void)
{
	need_faults();
	char file[512];
	in_folder("");
	CHECK_STATUS(HR_OK, hr_profiler_start(folder, NULL));
	CHECK_GT(hr_profiler_get_last_file(file, sizeof file), 0);
	write_events(1000);
	CHECK_EQ(truncate(file, 0), 0);
	write_events(100000);
	CHECK_STATUS(HR_IO, hr_profiler_stop());
	CHECK_CONTAINS(hr_last_message(), "shortened by another program");
	remove_all(file);
}

static void test_the_file_for_top_may_be_truncated(void)
{
	need_faults();
	char file[128];
	in_folder("");
	CHECK_EQ(setenv("XDG_RUNTIME_DIR", folder, 1), 0);
	CHECK_STATUS(HR_OK, hr__publish_start());
	snprintf(file, sizeof file, "%s/" HR__SEGMENT_PREFIX "%d", folder, (int)getpid());
	CHECK_EQ(truncate(file, 0), 0);
	hr__os()->sleep_ns(3 * HR__SEGMENT_PERIOD_NS);
	hr__publish_stop();
	CHECK_EQ(unsetenv("XDG_RUNTIME_DIR"), 0);
	remove_all(file);
}

/* ---- handlers ---- */

static void test_the_programs_handler_gets_its_own_faults(void)
{
	need_faults();
	const char *path = in_folder("own.hrt");
	struct sigaction before, after;
	caught = 0;
	handle_with(jump_back, &before);
	CHECK_STATUS(HR_OK, hr__trace_open(path));
	write_events(10);
	make_own_page();
	if (sigsetjmp(back, 1) == 0) own_page[7] = 1;
	CHECK_EQ(caught, 1);
	CHECK(caught_address == own_page + 7);
	CHECK_EQ(truncate(path, 0), 0);
	write_events(100000);
	CHECK_EQ(caught, 1); /* the recorder's faults do not reach it */
	CHECK_STATUS(HR_IO, hr__trace_close());
	CHECK_EQ(sigaction(SIGBUS, &before, &after), 0);
	CHECK(after.sa_sigaction == jump_back); /* the program's handler is restored */
	drop_own_page();
	remove_all(path);
}

static void test_a_handler_that_is_installed_while_recording(void)
{
	need_faults();
	const char *path = in_folder("later.hrt");
	struct sigaction before;
	caught = 0;
	CHECK_STATUS(HR_OK, hr__trace_open(path));
	write_events(10);
	handle_with(jump_back, &before); /* replaces our handler and does not call it */
	write_events(100000);            /* uses new blocks */
	CHECK_EQ(truncate(path, 0), 0);
	write_events(100000);
	CHECK_EQ(caught, 0);
	make_own_page();
	if (sigsetjmp(back, 1) == 0) own_page[0] = 1;
	CHECK_EQ(caught, 1);
	CHECK_STATUS(HR_IO, hr__trace_close());
	if (sigsetjmp(back, 1) == 0) own_page[0] = 1;
	CHECK_EQ(caught, 2); /* and after the recording */
	CHECK_EQ(sigaction(SIGBUS, &before, NULL), 0);
	/* The program has restored the library's handler after the recording; the next recording recognizes it. */
	CHECK_EQ(unlink(path), 0);
	CHECK_STATUS(HR_OK, hr__trace_open(path));
	write_events(10);
	CHECK_EQ(truncate(path, 0), 0);
	write_events(100000);
	CHECK_STATUS(HR_IO, hr__trace_close());
	CHECK(HR_TEST_SANITIZED || is_default());
	drop_own_page();
	remove_all(path);
}

/* ---- how a program ends ---- */

enum { FAULT, SENT };

/* Wait status of a child that records, sets [action] for SIGBUS, and gets one. [later]: installs a handler over ours that passes on
 * to it. */
static int status_of(void (*action)(int), bool later, int what)
{
	int status;
	const char *path = in_folder("child.hrt");
	pid_t child = fork();
	if (child == 0) {
		signal(SIGBUS, action);
		make_own_page();
		if (hr__trace_open(path)) _exit(98);
		write_events(10);
		caught = 0;
		if (later) handle_with(pass_down, &below);
		write_events(100000);
		if (what == FAULT) own_page[0] = 1;
		else raise(SIGBUS);
		_exit(hr__trace_close() ? 97 : 42);
	}
	CHECK_EQ(waitpid(child, &status, 0), child);
	remove_all(path);
	return status;
}

static void test_what_is_not_handled_ends_the_program_as_before(void)
{
	if (HR_TEST_SANITIZED) hr_test_skip("a sanitizer has a handler of its own");
	for (int later = 0; later < 2; later++) {
		int status = status_of(SIG_DFL, later, FAULT);
		CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
		status = status_of(SIG_DFL, later, SENT);
		CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
		status = status_of(SIG_IGN, later, FAULT);
		CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
		status = status_of(SIG_IGN, later, SENT);
		CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 42);
	}
}

static const hr_test tests[] = { T(test_a_trace_that_is_truncated_does_not_kill), T(test_the_rest_of_a_truncated_trace_can_be_read),
	                             T(test_the_profiler_reports_that_its_file_was_truncated), T(test_the_file_for_top_may_be_truncated),
	                             T(test_the_programs_handler_gets_its_own_faults), T(test_a_handler_that_is_installed_while_recording),
	                             T(test_what_is_not_handled_ends_the_program_as_before) };

int main(int argc, char **argv)
{
	return hr_test_main(tests, sizeof tests / sizeof tests[0], argc, argv);
}
