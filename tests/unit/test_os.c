/* test_os.c - the promises of src/core/os: each function of the Linux table, the code around it, and the faulty system of the tests. */
#define _GNU_SOURCE
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "core/base/lock.h"
#include "core/base/names.h"
#include "core/base/status.h"
#include "fault_os.h"
#include "core/os/os.h"
#include "support_files.h"
#include "test.h"

#define MIB ((size_t)1 << 20)

static const hr__os_table *os(void)
{
	return hr__os();
}

static int create(const char *name)
{
	int fd = -1;
	CHECK_EQ(os()->file_create(in_folder(name), &fd), 0);
	CHECK_GE(fd, 0);
	return fd;
}

static uint64_t size_of(int fd)
{
	struct stat facts;
	CHECK_EQ(fstat(fd, &facts), 0);
	return (uint64_t)facts.st_size;
}

/* ---- limits and forbidden calls, for the rest of the test ---- */

static void limit_files(rlim_t bytes)
{
	struct rlimit limit;
	CHECK_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
	limit.rlim_cur = bytes;
	CHECK_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

/* Makes a system call fail with [error]; false if the system has no seccomp. */
static bool forbid(long call, int error)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)call, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (uint32_t)error),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { sizeof filter / sizeof filter[0], filter };
	return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

/* ---- access to memory that may be unmapped ---- */

static void touch(void *address)
{
	*(volatile char *)address = 1;
}

static bool is_accessible(void *address)
{
	return !hr_test_crashes(touch, address);
}

/* ---- memory ---- */

static void test_alloc_is_zeroed(void)
{
	for (size_t bytes = 1; bytes < MIB; bytes = bytes * 3 + 1) {
		unsigned char *block;
		CHECK_EQ(os()->alloc(bytes, (void **)&block), 0);
		CHECK_EQ((uintptr_t)block % 16, 0);
		for (size_t i = 0; i < bytes; i++) {
			if (block[i] != 0) CHECK_EQ(block[i], 0);
		}
		memset(block, 0xAB, bytes);
		os()->free(block, bytes);
	}
}

static void test_alloc_of_too_much_is_enomem(void)
{
	if (HR_TEST_SANITIZED) hr_test_skip("sanitizers abort such an allocation themselves");
	void *block = &block;
	CHECK_EQ(os()->alloc((size_t)1 << 62, &block), ENOMEM);
	CHECK_EQ(block, &block);
}

static void test_reserve_is_aligned_and_untouchable(void)
{
	size_t page = hr__os_page_size();
	for (size_t alignment = page; alignment <= 64 * MIB; alignment *= 4) {
		char *base;
		size_t bytes = 3 * page;
		CHECK_EQ(os()->reserve(bytes, alignment, (void **)&base), 0);
		CHECK_EQ((uintptr_t)base % alignment, 0);
		if (alignment == page) CHECK(!is_accessible(base));
		CHECK_EQ(os()->release(base, bytes), 0);
	}
	char *base;
	CHECK_EQ(os()->reserve(MIB, 2 * MIB, (void **)&base), 0);
	CHECK(!is_accessible(base));
	CHECK(!is_accessible(base + MIB - 1));
	CHECK_EQ(os()->release(base, MIB), 0);
}

static void test_reserve_takes_only_what_was_asked(void)
{
	/* The excess cut off for the alignment must be released: leaking 1 GiB a thousand times would be noticed. */
	size_t page = hr__os_page_size();
	void *bases[64];
	struct rlimit limit = { 0 };
	if (HR_TEST_SANITIZED) hr_test_skip("sanitizers take terabytes of addresses");
	limit.rlim_cur = limit.rlim_max = (rlim_t)4 << 30;
	CHECK_EQ(setrlimit(RLIMIT_AS, &limit), 0);
	for (int i = 0; i < 64; i++) {
		CHECK_EQ(os()->reserve(page, (size_t)1 << 30, &bases[i]), 0);
		CHECK_EQ((uintptr_t)bases[i] % ((size_t)1 << 30), 0);
	}
	for (int i = 0; i < 64; i++) CHECK_EQ(os()->release(bases[i], page), 0);
	void *base = NULL;
	CHECK_EQ(os()->reserve((size_t)8 << 30, page, &base), ENOMEM);
	CHECK_EQ(base, NULL);
}

static void test_reserve_of_a_terabyte_costs_nothing(void)
{
	char *base;
	size_t bytes = (size_t)1 << (HR_TEST_SANITIZED ? 34 : 40); /* sanitizers leave less address space */
	CHECK_EQ(os()->reserve(bytes, 2 * MIB, (void **)&base), 0);
	CHECK_EQ(os()->commit(base + bytes - 2 * MIB, 2 * MIB), 0);
	base[bytes - 1] = 7;
	CHECK_EQ(base[bytes - 1], 7);
	CHECK_EQ(os()->release(base, bytes), 0);
}

static void test_bad_ranges_are_einval(void)
{
	size_t page = hr__os_page_size();
	char *base = NULL;
	CHECK_EQ(os()->reserve(0, page, (void **)&base), EINVAL);
	CHECK_EQ(os()->reserve(page + 1, page, (void **)&base), EINVAL);
	CHECK_EQ(os()->reserve(page, page / 2, (void **)&base), EINVAL);
	CHECK_EQ(os()->reserve(page, 3 * page, (void **)&base), EINVAL);
	CHECK_EQ(os()->reserve(page, 0, (void **)&base), EINVAL);
	CHECK_EQ(os()->reserve(SIZE_MAX - page + 1, (size_t)1 << 40, (void **)&base), ENOMEM);
	CHECK_EQ(os()->reserve((size_t)1 << 60, page, (void **)&base), ENOMEM);
	CHECK_EQ(base, NULL);
	CHECK_EQ(os()->reserve(4 * page, page, (void **)&base), 0);
	CHECK_EQ(os()->commit(base + 1, page), EINVAL);
	CHECK_EQ(os()->commit(base, page + 1), EINVAL);
	CHECK_EQ(os()->commit(base, 0), EINVAL);
	CHECK_EQ(os()->decommit(base + 1, page), EINVAL);
	CHECK_EQ(os()->map_fd(base + 1, page, 0, 0), EINVAL);
	CHECK_EQ(os()->map_fd(base, page, 0, UINT64_MAX), EINVAL);
	CHECK_EQ(os()->map_fd(base, page, -1, 0), EBADF);
	CHECK_EQ(os()->unmap_fd(base + 1, page), EINVAL);
	CHECK(!is_accessible(base));
	CHECK_EQ(os()->release(base, 4 * page), 0);
}

static void test_commit_and_decommit(void)
{
	size_t page = hr__os_page_size();
	char *base;
	CHECK_EQ(os()->reserve(8 * page, page, (void **)&base), 0);
	CHECK_EQ(os()->commit(base + page, 2 * page), 0);
	CHECK(!is_accessible(base));
	CHECK(!is_accessible(base + 3 * page));
	for (size_t i = page; i < 3 * page; i++) {
		if (base[i] != 0) CHECK_EQ(base[i], 0);
		base[i] = 1;
	}
	CHECK_EQ(os()->commit(base, 4 * page), 0); /* already committed pages keep their contents */
	CHECK_EQ(base[page], 1);
	CHECK_EQ(base[3 * page], 0);
	CHECK_EQ(os()->decommit(base + page, page), 0);
	CHECK(!is_accessible(base + page));
	CHECK_EQ(base[2 * page], 1);
	CHECK_EQ(os()->commit(base + page, page), 0);
	CHECK_EQ(base[page], 0); /* zeroed again */
	CHECK_EQ(os()->release(base, 8 * page), 0);
}

static size_t resident(void *base, size_t bytes)
{
	size_t page = hr__os_page_size(), count = 0;
	unsigned char pages[1024];
	CHECK_LE(bytes / page, sizeof pages);
	CHECK_EQ(mincore(base, bytes, pages), 0);
	for (size_t i = 0; i < bytes / page; i++) count += pages[i] & 1;
	return count;
}

static void test_decommit_gives_memory_back(void)
{
	char *base;
	size_t bytes = 64 * hr__os_page_size();
	CHECK_EQ(os()->reserve(bytes, hr__os_page_size(), (void **)&base), 0);
	CHECK_EQ(os()->commit(base, bytes), 0);
	memset(base, 1, bytes);
	CHECK_EQ(resident(base, bytes), 64);
	CHECK_EQ(os()->decommit(base, bytes), 0);
	CHECK_EQ(resident(base, bytes), 0);
	CHECK_EQ(os()->release(base, bytes), 0);
}

static void test_failing_decommit_leaves_memory(void)
{
	char *base;
	size_t page = hr__os_page_size();
	if (HR_TEST_SANITIZED) hr_test_skip("sanitizers make locking memory do nothing");
	CHECK_EQ(os()->reserve(2 * page, page, (void **)&base), 0);
	CHECK_EQ(os()->commit(base, 2 * page), 0);
	base[0] = 5;
	if (os()->lock_memory(base, page) != 0) hr_test_skip("memory cannot be locked here");
	CHECK_EQ(os()->decommit(base, 2 * page), EINVAL); /* locked memory cannot be dropped */
	CHECK_EQ(base[0], 5);
	base[0] = 6;
	CHECK_EQ(os()->unlock_memory(base, page), 0);
	CHECK_EQ(os()->decommit(base, 2 * page), 0);
	CHECK_EQ(os()->release(base, 2 * page), 0);
}

static void test_memfd_pages_can_be_seen_twice(void)
{
	size_t page = hr__os_page_size();
	char *base;
	int fd;
	CHECK_EQ(os()->memfd("test", 4 * page, &fd), 0);
	CHECK_EQ(size_of(fd), 4 * page);
	CHECK(fcntl(fd, F_GETFD) & FD_CLOEXEC);
	CHECK_EQ(os()->reserve(8 * page, page, (void **)&base), 0);
	CHECK_EQ(os()->map_fd(base, 2 * page, fd, page), 0);
	CHECK_EQ(os()->map_fd(base + 4 * page, page, fd, 2 * page), 0);
	base[page] = 42;
	CHECK_EQ(base[4 * page], 42);
	CHECK(!is_accessible(base + 2 * page));
	CHECK_EQ(os()->unmap_fd(base, 2 * page), 0);
	CHECK(!is_accessible(base + page));
	CHECK_EQ(base[4 * page], 42);
	CHECK_EQ(os()->map_fd(base + 7 * page, page, fd, 2 * page), 0);
	CHECK_EQ(base[7 * page], 42); /* the file keeps contents that are not mapped */
	CHECK_EQ(os()->release(base, 8 * page), 0);
	os()->file_close(fd);
}

static void test_punch_gives_memory_back(void)
{
	size_t page = hr__os_page_size();
	char *base;
	int fd;
	struct stat before, after;
	CHECK_EQ(os()->memfd("test", 16 * page, &fd), 0);
	CHECK_EQ(os()->reserve(16 * page, page, (void **)&base), 0);
	CHECK_EQ(os()->map_fd(base, 16 * page, fd, 0), 0);
	memset(base, 9, 16 * page);
	CHECK_EQ(fstat(fd, &before), 0);
	CHECK_EQ(os()->punch(fd, 4 * page, 8 * page), 0);
	CHECK_EQ(fstat(fd, &after), 0);
	CHECK_EQ(before.st_blocks - after.st_blocks, 8 * page / 512);
	CHECK_EQ(after.st_size, 16 * page);
	CHECK_EQ(base[4 * page - 1], 9);
	CHECK_EQ(base[4 * page], 0);
	CHECK_EQ(base[12 * page - 1], 0);
	CHECK_EQ(base[12 * page], 9);
	CHECK_EQ(os()->punch(fd, UINT64_MAX, page), EINVAL);
	CHECK_EQ(os()->punch(fd, 0, UINT64_MAX), EINVAL);
	CHECK_EQ(os()->punch(-1, 0, page), EBADF);
	CHECK_EQ(os()->release(base, 16 * page), 0);
	os()->file_close(fd);
}

static void test_memfd_of_impossible_size_fails(void)
{
	int fd = -7;
	CHECK_EQ(os()->memfd("test", UINT64_MAX, &fd), EFBIG);
	CHECK_EQ(fd, -7);
	struct rlimit before, none;
	CHECK_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
	none = before;
	none.rlim_cur = 0;
	CHECK_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
	int error = os()->memfd("test", 4096, &fd);
	CHECK_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
	CHECK_EQ(error, EMFILE);
	CHECK_EQ(fd, -7);
}

static void test_locking_memory(void)
{
	size_t page = hr__os_page_size();
	char *base;
	if (HR_TEST_SANITIZED) hr_test_skip("sanitizers make locking memory do nothing");
	CHECK_EQ(os()->reserve(4 * page, page, (void **)&base), 0);
	CHECK_EQ(os()->commit(base, 4 * page), 0);
	int error = os()->lock_memory(base, 4 * page);
	CHECK(error == 0 || error == EPERM || error == ENOMEM || error == EAGAIN);
	if (error == 0) {
		CHECK_EQ(resident(base, 4 * page), 4);
		CHECK_EQ(os()->unlock_memory(base, 4 * page), 0);
	}
	CHECK_EQ(os()->release(base, 4 * page), 0);
	CHECK_EQ(os()->lock_memory(base, 4 * page), ENOMEM); /* nothing is mapped */
}

static void test_host_memory_is_plausible(void)
{
	uint64_t total = 0, available = 0;
	CHECK_EQ(os()->host_memory(&total, &available), 0);
	CHECK_GT(total, 16 * MIB);
	CHECK_EQ(total % 1024, 0);
	CHECK_LE(available, total);
	CHECK_GT(available, 0);
}

static void read_host_memory(void *argument)
{
	uint64_t total, available;
	(void)argument;
	CHECK_EQ(os()->host_memory(&total, &available), 0);
	CHECK_GT(total, 16 * MIB);
	CHECK_LE(available, total);
}

static void hide_proc(void *argument)
{
	if (!forbid(SYS_openat, ENOENT)) return;
	read_host_memory(argument);
}

static void test_host_memory_is_known_without_proc(void)
{
	CHECK_EQ(hr_test_in_child(hide_proc, NULL), 0); /* in a child, because sanitizers open files at exit */
}

/* ---- threads and monitors ---- */

struct worker {
	hr__monitor *monitor;
	unsigned ready, released, finished; /* guarded by monitor */
	char name[16];
	sigset_t mask;
};

static void work(void *argument)
{
	struct worker *worker = argument;
	os()->monitor_enter(worker->monitor);
	pthread_getname_np(pthread_self(), worker->name, sizeof worker->name);
	pthread_sigmask(SIG_SETMASK, NULL, &worker->mask);
	worker->ready++;
	os()->monitor_wake_all(worker->monitor);
	while (worker->released == 0) os()->monitor_wait(worker->monitor, UINT64_MAX);
	worker->finished++;
	os()->monitor_leave(worker->monitor);
}

static void test_threads_meet_in_a_monitor(void)
{
	struct worker worker = { 0 };
	hr__thread *threads[4];
	CHECK_EQ(os()->monitor_create(&worker.monitor), 0);
	for (int i = 0; i < 4; i++) CHECK_EQ(os()->thread_start(work, &worker, "a name longer than fifteen", &threads[i]), 0);
	os()->monitor_enter(worker.monitor);
	while (worker.ready < 4) os()->monitor_wait(worker.monitor, UINT64_MAX);
	CHECK_EQ(worker.finished, 0);
	worker.released = 1;
	os()->monitor_wake_all(worker.monitor);
	os()->monitor_leave(worker.monitor);
	for (int i = 0; i < 4; i++) os()->thread_join(threads[i]);
	CHECK_EQ(worker.finished, 4);
	CHECK_STR(worker.name, "a name longer t");
	/* The program's signals are blocked on the library's threads; the program's own mask is unchanged. */
	CHECK_EQ(sigismember(&worker.mask, SIGINT), 1);
	CHECK_EQ(sigismember(&worker.mask, SIGPROF), 1);
	CHECK_EQ(sigismember(&worker.mask, SIGSEGV), 0);
	pthread_sigmask(SIG_SETMASK, NULL, &worker.mask);
	CHECK_EQ(sigismember(&worker.mask, SIGINT), 0);
	os()->monitor_destroy(worker.monitor);
}

static void test_monitor_wait_ends_in_time(void)
{
	hr__monitor *monitor;
	CHECK_EQ(os()->monitor_create(&monitor), 0);
	os()->monitor_enter(monitor);
	uint64_t start = os()->clock_ns();
	/* A wait may end early without a reason, but not every time. */
	for (int i = 0; i < 100 && os()->clock_ns() - start < 20000000; i++) os()->monitor_wait(monitor, 20000000);
	CHECK_GE(os()->clock_ns() - start, 20000000);
	os()->monitor_wait(monitor, 0);
	os()->monitor_leave(monitor);
	os()->monitor_destroy(monitor);
}

static void work_nothing(void *argument)
{
	(void)argument;
}

static void test_thread_that_cannot_start_is_an_error(void)
{
	if (geteuid() == 0) {
		/* Limits on processes do not apply to root; a limit on addresses does. */
		if (HR_TEST_SANITIZED) hr_test_skip("sanitizers take terabytes of addresses");
		struct rlimit limit = { 1, 1 };
		CHECK_EQ(setrlimit(RLIMIT_AS, &limit), 0);
	} else {
		struct rlimit limit = { 1, 1 };
		CHECK_EQ(setrlimit(RLIMIT_NPROC, &limit), 0);
	}
	hr__thread *thread = NULL;
	int error = os()->thread_start(work_nothing, NULL, NULL, &thread);
	CHECK(error == EAGAIN || error == ENOMEM);
	CHECK_EQ(thread, NULL);
}

/* ---- clocks ---- */

static void test_clocks_advance(void)
{
	uint64_t start = os()->clock_ns(), wall = os()->wall_clock_ns();
	os()->sleep_ns(5000000);
	CHECK_GE(os()->clock_ns() - start, 5000000);
	CHECK_GT(os()->wall_clock_ns(), wall);
	CHECK_GT(wall, 1600000000ull * 1000000000); /* 2020 */
	os()->sleep_ns(0);
}

static void interrupt(int signal_number)
{
	(void)signal_number;
}

static void *pester(void *argument)
{
	pthread_t target = *(pthread_t *)argument;
	for (int i = 0; i < 20; i++) {
		os()->sleep_ns(1000000);
		pthread_kill(target, SIGUSR1);
	}
	return NULL;
}

static void test_sleep_is_not_cut_short_by_signals(void)
{
	struct sigaction action = { .sa_handler = interrupt }; /* without SA_RESTART */
	pthread_t self = pthread_self(), thread;
	CHECK_EQ(sigaction(SIGUSR1, &action, NULL), 0);
	CHECK_EQ(pthread_create(&thread, NULL, pester, &self), 0);
	uint64_t start = os()->clock_ns();
	os()->sleep_ns(40000000);
	CHECK_GE(os()->clock_ns() - start, 40000000);
	pthread_join(thread, NULL);
}

static void test_ticks_keep_the_pace_of_the_clock(void)
{
	double rate = hr__ticks_rate();
	CHECK_EQ(hr__ticks_rate(), rate);
	uint64_t best_error = UINT64_MAX;
	for (int i = 0; i < 5; i++) {
		uint64_t ns = os()->clock_ns(), ticks = hr__ticks();
		os()->sleep_ns(20000000);
		double clock = (double)(os()->clock_ns() - ns);
		double ticked = (double)(hr__ticks() - ticks) * 1e9 / rate;
		double error = clock > ticked ? clock - ticked : ticked - clock;
		if (error < (double)best_error) best_error = (uint64_t)error;
	}
	CHECK_LT(best_error, 20000); /* a thousandth of 20 ms */
}

/* ---- files ---- */

static void test_file_is_created_once_and_private(void)
{
	struct stat facts;
	int fd = create("new"), again = -7;
	CHECK_EQ(fstat(fd, &facts), 0);
	CHECK_EQ(facts.st_mode & 07777, 0600);
	CHECK(fcntl(fd, F_GETFD) & FD_CLOEXEC);
	CHECK_EQ(os()->file_create(in_folder("new"), &again), EEXIST);
	os()->file_close(fd);
	CHECK_EQ(symlink(in_folder("nowhere"), in_folder("link")), 0);
	CHECK_EQ(os()->file_create(in_folder("link"), &again), EEXIST);
	CHECK_EQ(access(in_folder("nowhere"), F_OK), -1);
	CHECK_EQ(os()->file_create(in_folder("no/such/folder"), &again), ENOENT);
	CHECK_EQ(os()->file_create(in_folder("new/below"), &again), ENOTDIR);
	CHECK_EQ(again, -7);
	CHECK_EQ(os()->file_remove(in_folder("new")), 0);
	CHECK_EQ(os()->file_remove(in_folder("new")), ENOENT);
}

static void test_a_renamed_file_takes_the_place_of_another(void)
{
	int fd = create("old");
	os()->file_close(fd);
	fd = create("new");
	CHECK_EQ(os()->file_write(fd, "new", 3, 0), 0);
	os()->file_close(fd);
	CHECK_EQ(os()->file_rename(in_folder("new"), in_folder("old")), 0);
	CHECK_EQ(access(in_folder("new"), F_OK), -1);
	uint64_t size = 0;
	CHECK_EQ(os()->file_open(in_folder("old"), &fd, &size), 0);
	CHECK_EQ(size, 3);
	os()->file_close(fd);
	CHECK_EQ(os()->file_rename(in_folder("new"), in_folder("old")), ENOENT);
}

static void test_folders_are_made_one_at_a_time(void)
{
	struct stat facts;
	CHECK_EQ(os()->folder_create(in_folder("a")), 0);
	CHECK_EQ(os()->folder_create(in_folder("a")), EEXIST);
	CHECK_EQ(os()->folder_create(in_folder("b/c")), ENOENT);
	CHECK_EQ(stat(in_folder("a"), &facts), 0);
	CHECK(S_ISDIR(facts.st_mode));
}

static void test_a_sink_is_not_a_file(void)
{
	int fd = create("file");
	os()->file_close(fd);
	fd = -7;
	CHECK_EQ(os()->sink_open(in_folder("file"), &fd), EEXIST);
	CHECK_EQ(os()->sink_open(folder_of_test(), &fd), EISDIR);
	CHECK_EQ(os()->sink_open(in_folder("missing"), &fd), ENOENT);
	CHECK_EQ(symlink("/dev/null", in_folder("link")), 0);
	CHECK_EQ(os()->sink_open(in_folder("link"), &fd), ELOOP);
	CHECK_EQ(mkfifo(in_folder("pipe"), 0600), 0);
	CHECK_EQ(os()->sink_open(in_folder("pipe"), &fd), EINVAL); /* does not wait for a reader */
	CHECK_EQ(os()->sink_open("/dev/fd/123456789", &fd), ENOENT);
	CHECK_EQ(os()->sink_open("/dev/fd/99999", &fd), EBADF);
	CHECK_EQ(fd, -7);
	unlink(in_folder("link"));
	unlink(in_folder("pipe"));
	CHECK_EQ(os()->sink_open("/dev/full", &fd), 0);
	CHECK_EQ(os()->sink_write(fd, "x", 1), ENOSPC);
	os()->file_close(fd);
	int ends[2];
	CHECK_EQ(pipe(ends), 0);
	close(ends[0]);
	CHECK_EQ(os()->sink_write(ends[1], "x", 1), EPIPE); /* and raises no signal */
	close(ends[1]);
	/* A descriptor of this process, by name: the same open file, after what was written to it. */
	char name[32], text[4] = "";
	fd = create("redirected");
	CHECK_EQ(write(fd, "1", 1), 1);
	snprintf(name, sizeof name, "/dev/fd/%d", fd);
	int other = -1;
	CHECK_EQ(os()->sink_open(name, &other), 0);
	CHECK_EQ(os()->sink_write(other, "2", 1), 0);
	CHECK_EQ(pread(fd, text, 3, 0), 2);
	CHECK_STR(text, "12");
	os()->file_close(other);
	os()->file_close(fd);
}

static void test_only_regular_files_are_opened(void)
{
	int fd = create("file");
	uint64_t size = 77;
	CHECK_EQ(os()->file_write(fd, "hello", 5, 0), 0);
	os()->file_close(fd);
	CHECK_EQ(os()->file_open(in_folder("file"), &fd, &size), 0);
	CHECK_EQ(size, 5);
	CHECK_EQ(os()->file_write(fd, "x", 1, 0), EBADF); /* for reading only */
	os()->file_close(fd);
	CHECK_EQ(symlink(in_folder("file"), in_folder("link")), 0);
	CHECK_EQ(os()->file_open(in_folder("link"), &fd, &size), 0);
	os()->file_close(fd);

	fd = -7;
	size = 77;
	CHECK_EQ(mkfifo(in_folder("pipe"), 0600), 0);
	CHECK_EQ(os()->file_open(in_folder("pipe"), &fd, &size), EINVAL); /* does not hang */
	CHECK_EQ(os()->file_open(folder_of_test(), &fd, &size), EISDIR);
	CHECK_EQ(os()->file_open("/dev/null", &fd, &size), EINVAL);
	CHECK_EQ(os()->file_open(in_folder("missing"), &fd, &size), ENOENT);
	CHECK_EQ(symlink(in_folder("loop"), in_folder("loop")), 0);
	CHECK_EQ(os()->file_open(in_folder("loop"), &fd, &size), ELOOP);
	CHECK_EQ(fd, -7);
	CHECK_EQ(size, 77);
}

static void test_file_reads_what_was_written(void)
{
	int fd = create("data");
	char data[10000], back[10000];
	size_t count = 77;
	uint64_t random = hr_test_seed();
	for (size_t i = 0; i < sizeof data; i++) data[i] = (char)hr_rand(&random);
	CHECK_EQ(os()->file_write(fd, data, sizeof data, 0), 0);
	CHECK_EQ(os()->file_write(fd, data, 100, 20000), 0); /* with a hole before it */
	CHECK_EQ(os()->file_write(fd, data, 0, 0), 0);
	CHECK_EQ(os()->file_read(fd, back, sizeof back, 0, &count), 0);
	CHECK_EQ(count, sizeof back);
	CHECK_BYTES(back, data, sizeof data);
	CHECK_EQ(os()->file_read(fd, back, sizeof back, 19990, &count), 0);
	CHECK_EQ(count, 110);
	CHECK_EQ(back[9], 0);
	CHECK_BYTES(back + 10, data, 100);
	CHECK_EQ(os()->file_read(fd, back, sizeof back, 20100, &count), 0);
	CHECK_EQ(count, 0);
	CHECK_EQ(os()->file_read(fd, back, sizeof back, 1 << 30, &count), 0);
	CHECK_EQ(count, 0);
	count = 77;
	CHECK_EQ(os()->file_read(fd, back, 1, UINT64_MAX, &count), EINVAL);
	CHECK_EQ(os()->file_read(fd, back, 1, INT64_MAX, &count), EINVAL);
	CHECK_EQ(os()->file_read(-1, back, 1, 0, &count), EBADF);
	CHECK_EQ(count, 77);
	CHECK_EQ(os()->file_write(fd, data, 1, INT64_MAX), EFBIG);
	CHECK_EQ(os()->file_write(-1, data, 1, 0), EBADF);
	os()->file_close(fd);
}

static void test_inputs_are_read_from_begin_to_end(void)
{
	int fd = create("input"), ends[2];
	uint64_t size = 77;
	size_t count = 77;
	char back[16], path[64];
	CHECK_EQ(os()->file_write(fd, "0123456789", 10, 0), 0);
	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	int input = -1;
	CHECK_EQ(os()->input_open(path, &input, &size), 0);
	CHECK_EQ(size, 10u);
	CHECK_EQ(os()->input_read(input, back, 7, &count), 0);
	CHECK_EQ(count, 7u);
	CHECK_EQ(os()->input_read(input, back, 7, &count), 0);
	CHECK_EQ(count, 3u);
	CHECK_BYTES(back, "789", 3);
	CHECK_EQ(os()->input_read(input, back, 7, &count), 0);
	CHECK_EQ(count, 0u);
	os()->file_close(input);
	os()->file_close(fd);
	/* A pipe has no size, and gives what there is. */
	CHECK_EQ(pipe(ends), 0);
	CHECK_EQ(write(ends[1], "abc", 3), 3);
	snprintf(path, sizeof path, "/proc/self/fd/%d", ends[0]);
	CHECK_EQ(os()->input_open(path, &input, &size), 0);
	CHECK_EQ(size, 0u);
	CHECK_EQ(os()->input_read(input, back, sizeof back, &count), 0);
	CHECK_EQ(count, 3u);
	os()->file_close(input);
	close(ends[0]);
	close(ends[1]);
	CHECK_EQ(os()->input_open("/nowhere/at/all", &input, &size), ENOENT);
	CHECK_EQ(os()->input_open("/tmp", &input, &size), EISDIR);
	CHECK_EQ(os()->input_read(-1, back, 1, &count), EBADF);
	CHECK_EQ(count, 3u);
}

static void test_extend_finds_disk_space(void)
{
	int fd = create("extended");
	struct stat facts;
	CHECK_EQ(os()->file_extend(fd, 0), 0);
	CHECK_EQ(os()->file_extend(fd, MIB), 0);
	CHECK_EQ(fstat(fd, &facts), 0);
	CHECK_EQ(facts.st_size, MIB);
	CHECK_GE((uint64_t)facts.st_blocks * 512, MIB);
	CHECK_EQ(os()->file_write(fd, "kept", 4, 1000), 0);
	CHECK_EQ(os()->file_extend(fd, MIB), 0);
	CHECK_EQ(os()->file_extend(fd, MIB + 1), 0);
	CHECK_EQ(size_of(fd), MIB + 1);
	char back[4];
	size_t count;
	CHECK_EQ(os()->file_read(fd, back, 4, 1000, &count), 0);
	CHECK_BYTES(back, "kept", 4);
	CHECK_EQ(os()->file_extend(fd, 5), EINVAL);
	CHECK_EQ(size_of(fd), MIB + 1);
	CHECK_EQ(os()->file_extend(fd, UINT64_MAX), EFBIG);
	CHECK_EQ(os()->file_extend(-1, MIB), EBADF);
	CHECK_EQ(os()->file_truncate(fd, 10), 0);
	CHECK_EQ(size_of(fd), 10);
	CHECK_EQ(os()->file_truncate(fd, UINT64_MAX), EFBIG);
	CHECK_EQ(os()->file_truncate(-1, 0), EBADF);
	os()->file_close(fd);
}

static void extend_in(int fd)
{
	CHECK_EQ(os()->file_extend(fd, 8192), 0);
	CHECK_EQ(os()->file_write(fd, "kept", 4, 0), 0);
	CHECK_EQ(os()->file_extend(fd, MIB), ENOSPC);
	CHECK_EQ(size_of(fd), 8192);
	CHECK_EQ(os()->file_extend(fd, 16384), 0); /* space of the failed attempt is free again */
	char back[4];
	size_t count;
	CHECK_EQ(os()->file_read(fd, back, 4, 0, &count), 0);
	CHECK_BYTES(back, "kept", 4);
}

static bool say(const char *path, const char *format, unsigned id)
{
	FILE *file = fopen(path, "w");
	bool good = file && fprintf(file, format, id, id) > 0;
	return file && fclose(file) == 0 && good;
}

/* Private mounts for this test. Without root they need a user namespace, which cannot create files without uid and gid maps. */
static bool unshare_mounts(void)
{
	unsigned user = geteuid(), group = getegid();
	if (unshare(CLONE_NEWNS) == 0) return true;
	return unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0 && say("/proc/self/setgroups", "deny", 0) && say("/proc/self/uid_map", "%u %u 1", user) &&
	       say("/proc/self/gid_map", "%u %u 1", group);
}

static void test_full_disk_is_enospc_and_leaves_the_file(void)
{
	const char *path = in_folder("disk");
	if (!unshare_mounts()) hr_test_skip("no right to mount a small disk");
	CHECK_EQ(mkdir(path, 0700), 0);
	if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 || mount("none", path, "tmpfs", 0, "size=65536") != 0) {
		hr_test_skip("no right to mount a small disk");
	}
	int fd = create("disk/file");
	extend_in(fd);
	/* The same if space can only be allocated by writing. */
	CHECK_EQ(os()->file_truncate(fd, 0), 0);
	if (forbid(SYS_fallocate, EOPNOTSUPP)) extend_in(fd);
	os()->file_close(fd);
	CHECK_EQ(umount2(path, MNT_DETACH), 0);
}

static void extend_by_writing(void)
{
	int fd = create("written");
	struct stat facts;
	char back[4];
	size_t count;
	CHECK_EQ(os()->file_extend(fd, 1000), 0);
	CHECK_EQ(os()->file_write(fd, "kept", 4, 996), 0);
	CHECK_EQ(os()->file_extend(fd, 200000), 0);
	CHECK_EQ(fstat(fd, &facts), 0);
	CHECK_EQ(facts.st_size, 200000);
	CHECK_EQ(os()->file_read(fd, back, 4, 996, &count), 0);
	CHECK_BYTES(back, "kept", 4);
	CHECK_EQ(os()->file_read(fd, back, 4, 199996, &count), 0);
	CHECK_BYTES(back, "\0\0\0\0", 4);
	limit_files(200000);
	CHECK_EQ(os()->file_extend(fd, 300000), EFBIG);
	CHECK_EQ(size_of(fd), 200000);
	os()->file_close(fd);
}

static void test_extend_writes_where_space_cannot_be_asked_for(void)
{
	if (!forbid(SYS_fallocate, EOPNOTSUPP)) hr_test_skip("no seccomp");
	extend_by_writing();
}

static void note_signal(int signal_number)
{
	(void)signal_number;
	_exit(99);
}

static void grow_beyond_the_limit(void)
{
	int fd = create("limited");
	static char data[8192];
	limit_files(4096);
	CHECK_EQ(os()->file_extend(fd, 4096), 0);
	CHECK_EQ(os()->file_extend(fd, 8192), EFBIG);
	CHECK_EQ(size_of(fd), 4096);
	CHECK_EQ(os()->file_truncate(fd, 8192), EFBIG);
	CHECK_EQ(os()->file_write(fd, data, 1, 4096), EFBIG);
	CHECK_EQ(os()->file_write(fd, data, sizeof data, 0), EFBIG);
	CHECK_EQ(size_of(fd), 4096);
	os()->file_close(fd);
	sigset_t pending;
	CHECK_EQ(sigpending(&pending), 0);
	CHECK_EQ(sigismember(&pending, SIGXFSZ), 0);
}

static void test_file_size_limit_is_an_error_not_a_death(void)
{
	grow_beyond_the_limit();
	sigset_t mask;
	CHECK_EQ(pthread_sigmask(SIG_SETMASK, NULL, &mask), 0);
	CHECK_EQ(sigismember(&mask, SIGXFSZ), 0);
}

static void test_file_size_limit_calls_no_handler_of_the_program(void)
{
	signal(SIGXFSZ, note_signal);
	grow_beyond_the_limit();
}

static void test_file_size_signal_of_the_program_is_kept(void)
{
	sigset_t limit, pending;
	sigemptyset(&limit);
	sigaddset(&limit, SIGXFSZ);
	CHECK_EQ(pthread_sigmask(SIG_BLOCK, &limit, NULL), 0);
	raise(SIGXFSZ);
	int fd = create("limited");
	limit_files(4096);
	CHECK_EQ(os()->file_extend(fd, 8192), EFBIG);
	os()->file_close(fd);
	CHECK_EQ(sigpending(&pending), 0);
	CHECK_EQ(sigismember(&pending, SIGXFSZ), 1);
}

static void test_file_map_shows_the_file(void)
{
	size_t page = hr__os_page_size();
	int fd = create("mapped");
	char *base, back[5];
	size_t count;
	CHECK_EQ(os()->file_extend(fd, 3 * page), 0);
	CHECK_EQ(os()->file_map(fd, page, 2 * page, (void **)&base), 0);
	memcpy(base + 10, "there", 5);
	CHECK_EQ(os()->file_read(fd, back, 5, page + 10, &count), 0);
	CHECK_BYTES(back, "there", 5);
	CHECK_EQ(os()->file_unmap(base, 2 * page), 0);
	CHECK(!is_accessible(base));

	base = NULL;
	CHECK_EQ(os()->file_map(fd, 1, page, (void **)&base), EINVAL);
	CHECK_EQ(os()->file_map(fd, 0, 0, (void **)&base), EINVAL);
	CHECK_EQ(os()->file_map(fd, UINT64_MAX - page + 1, page, (void **)&base), EINVAL);
	CHECK_EQ(os()->file_map(-1, 0, page, (void **)&base), EBADF);
	os()->file_close(fd);
	uint64_t size;
	CHECK_EQ(os()->file_open(in_folder("mapped"), &fd, &size), 0);
	CHECK_EQ(os()->file_map(fd, 0, page, (void **)&base), EACCES); /* opened for reading */
	CHECK_EQ(base, NULL);
	os()->file_close(fd);
}

/* ---- the rest of the table ---- */

static void test_environment_and_process(void)
{
	setenv("HEADROOM_TEST_VARIABLE", "value", 1);
	CHECK_STR(os()->environment("HEADROOM_TEST_VARIABLE"), "value");
	CHECK_EQ(os()->environment("HEADROOM_TEST_NO_SUCH_VARIABLE"), NULL);
	CHECK_EQ(os()->process_id(), getpid());
	CHECK_EQ(hr__os_page_size(), sysconf(_SC_PAGESIZE));
}

static void test_table_can_be_replaced(void)
{
	hr__os_table other = *hr__os_linux();
	CHECK_EQ(hr__os(), hr__os_linux());
	CHECK_EQ(hr__os_replace(&other), hr__os_linux());
	CHECK_EQ(hr__os(), &other);
	CHECK_EQ(hr__os_replace(NULL), &other);
	CHECK_EQ(hr__os(), hr__os_linux());
}

static void test_no_entry_of_the_table_is_missing(void)
{
	const void *const *entries = (const void *const *)(const void *)hr__os_linux();
	for (size_t i = 0; i < sizeof(hr__os_table) / sizeof(void *); i++) CHECK_NE(entries[i], NULL);
}

static void test_errors_have_names(void)
{
	CHECK_STR(hr__os_error(ENOSPC), "ENOSPC: no space left on device");
	CHECK_STR(hr__os_error(99999), "unknown error of the system");
	CHECK_STATUS(HR_IO, hr__os_fail(ENOSPC, "trace file %s", "x.trace"));
	CHECK_STR(hr_last_message(), "trace file x.trace: ENOSPC: no space left on device");
	CHECK_STATUS(HR_NO_HOST_MEMORY, hr__os_fail(ENOMEM, "records"));
	CHECK_STATUS(HR_NO_HOST_MEMORY, hr__os_fail(EAGAIN, "thread"));
	CHECK_STATUS(HR_IO, hr__os_fail(99999, "odd"));
	CHECK_STR(hr_last_message(), "odd: unknown error of the system (errno 99999)");
	char name[1000];
	memset(name, 'x', sizeof name);
	name[sizeof name - 1] = 0;
	CHECK_STATUS(HR_IO, hr__os_fail(EIO, "%s", name));
	CHECK_STATUS(HR_IO, hr__os_fail(EIO, "%s: %s", "outer", "inner"));
	CHECK_STR(hr_last_message(), "outer: inner: EIO: input or output error");
}

/* ---- barriers ---- */

struct dekker {
	hr__atomic_u64 light, heavy; /* the flags */
	uint64_t saw_heavy, saw_light;
	hr__atomic_u32 turn[2];
	uint64_t rounds;
	double end; /* time limit of all rounds: on one processor shared with other processes, a round takes many time slices */
};

/* Both threads begin each round together; at least one of them must see the other's flag. */
static void meet(struct dekker *dekker, unsigned index, uint32_t round)
{
	hr__store_release(&dekker->turn[index], round);
	for (unsigned spins = 0; hr__load_acquire(&dekker->turn[!index]) < round; spins++) {
		if (spins > 1000) sched_yield();
	}
}

static void shake_hands(void *argument, unsigned index)
{
	struct dekker *dekker = argument;
	for (uint32_t round = 1; round <= dekker->rounds; round++) {
		meet(dekker, index, 3 * round - 2);
		if (index == 0) {
			hr__store_relaxed(&dekker->light, round);
			hr__light_barrier();
			dekker->saw_heavy = hr__load_relaxed(&dekker->heavy);
		} else {
			hr__store_relaxed(&dekker->heavy, round);
			hr__heavy_barrier();
			dekker->saw_light = hr__load_relaxed(&dekker->light);
		}
		meet(dekker, index, 3 * round - 1);
		if (index == 0 && dekker->saw_heavy != round && dekker->saw_light != round) CHECK_EQ(round, 0);
		if (index == 0 && hr_test_now() > dekker->end) dekker->rounds = round;
		meet(dekker, index, 3 * round);
	}
}

static void shake_hands_often(void)
{
	static struct dekker dekker;
	dekker = (struct dekker){ .rounds = hr_test_scaled(HR_TEST_SANITIZED ? 2000 : 30000), .end = hr_test_now() + 10 };
	hr_test_threads(2, shake_hands, &dekker);
	CHECK_EQ(dekker.light, dekker.rounds);
}

static void test_light_and_heavy_barrier_see_each_other(void)
{
	shake_hands_often();
}

static void test_full_fences_see_each_other(void)
{
	hr__light_is_full = true;
	shake_hands_often();
}

static int no_barrier(void)
{
	return ENOSYS;
}

static void test_barrier_that_fails_later_is_replaced_by_fences(void)
{
	hr__os_table broken = *hr__os_linux();
	broken.heavy_barrier = no_barrier;
	hr__os_replace(&broken);
	hr__heavy_barrier();
	CHECK(hr__light_is_full);
	shake_hands_often();
}

static void test_sandbox_without_membarrier_gets_fences(void)
{
	if (!forbid(SYS_membarrier, EPERM)) hr_test_skip("no seccomp");
	hr__heavy_barrier();
	CHECK(hr__light_is_full);
	shake_hands_often();
}

static void test_barrier_is_light_where_the_system_can(void)
{
#if !defined(__SANITIZE_THREAD__)
	bool can = os()->heavy_barrier() == 0;
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
	can = false;
#endif
#endif
	CHECK_EQ(hr__light_is_full, !can);
#else
	CHECK(hr__light_is_full);
#endif
}

/* ---- hooks ---- */

static unsigned hooks_ran;

static void count_hook(void)
{
	hooks_ran++;
}

static void count_ten(void)
{
	hooks_ran += 10;
}

static void hook_three(void)
{
}

static void hook_four(void)
{
}

static void hook_five(void)
{
}

static void expect_hooks(void *argument)
{
	unsigned expected = *(unsigned *)argument;
	if (hooks_ran != expected) _exit(3);
}

static void test_fork_hooks_run_only_in_the_child(void)
{
	unsigned expected = 11;
	CHECK_EQ(hr__os_at_fork(count_hook), 0);
	CHECK_EQ(hr__os_at_fork(count_hook), 0); /* a hook runs once, even if registered twice */
	CHECK_EQ(hr__os_at_fork(count_ten), 0);
	CHECK_EQ(hr_test_in_child(expect_hooks, &expected), 0);
	CHECK_EQ(hooks_ran, 0);
	CHECK_EQ(hr__os_at_fork(hook_three), 0);
	CHECK_EQ(hr__os_at_fork(hook_four), 0);
	CHECK_EQ(hr__os_at_fork(hook_five), ENOSPC);
	CHECK_EQ(hr__os_at_fork(count_hook), 0);
}

static void intern_in_child(void *argument)
{
	char text[32];
	(void)argument;
	for (unsigned i = 0; i < 10; i++) {
		snprintf(text, sizeof text, "child %u", i);
		hr_name name = hr_name_intern(text);
		if (name <= HR_NAME_OTHER || strcmp(hr_name_text(name), text) != 0) _exit(3);
	}
	/* Bypasses ThreadSanitizer's exit code, which reports the parent's thread as not joined. */
	syscall(SYS_exit_group, 0);
}

static _Atomic(bool) forking;

static void *intern_without_end(void *argument)
{
	char text[32];
	for (unsigned i = 0; forking; i++) {
		snprintf(text, sizeof text, "parent %u", i);
		hr_name_intern(text);
		if (i % 20000 == 0) hr__os()->sleep_ns(1000);
		if (hr__names_count() > 60000) break;
	}
	return argument;
}

static void test_names_work_after_a_fork_in_mid_insertion(void)
{
	pthread_t thread;
	forking = true;
	CHECK_EQ(pthread_create(&thread, NULL, intern_without_end, NULL), 0);
	for (int i = 0; i < 100; i++) CHECK_EQ(hr_test_in_child(intern_in_child, NULL), 0);
	forking = false;
	pthread_join(thread, NULL);
}

static hr__atomic_u64 ended_sum;

static void add_ended(void *value)
{
	hr__fetch_add_acq_rel(&ended_sum, (uint64_t)(uintptr_t)value);
}

static void *set_and_end(void *argument)
{
	CHECK_EQ(hr__os_at_thread_exit_set(argument), 0);
	return NULL;
}

static void *set_and_take_back(void *argument)
{
	CHECK_EQ(hr__os_at_thread_exit_set(argument), 0);
	CHECK_EQ(hr__os_at_thread_exit_set(NULL), 0);
	return NULL;
}

static void test_thread_exit_hook_gets_the_threads_value(void)
{
	pthread_t threads[4];
	CHECK_EQ(hr__os_at_thread_exit(add_ended), 0);
	CHECK_EQ(hr__os_at_thread_exit(add_ended), 0);
	CHECK_EQ(hr__os_at_thread_exit(work_nothing), EEXIST);
	for (uintptr_t i = 0; i < 4; i++) CHECK_EQ(pthread_create(&threads[i], NULL, set_and_end, (void *)(1 + i * 16)), 0);
	for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
	CHECK_EQ(ended_sum, 4 + (0 + 1 + 2 + 3) * 16);
	CHECK_EQ(pthread_create(&threads[0], NULL, set_and_take_back, (void *)1000), 0);
	pthread_join(threads[0], NULL);
	CHECK_EQ(ended_sum, 100);
}

/* ---- waiting for locks ---- */

static hr__lock waited_for = HR__LOCK_INIT(HR__RANK_REGISTRY);

static void *hold_for_a_while(void *argument)
{
	hr__lock_take(&waited_for);
	hr__store_release((hr__atomic_u32 *)argument, 1);
	os()->sleep_ns(30000000);
	hr__lock_release(&waited_for);
	return NULL;
}

static uint64_t cpu_ns(void)
{
	struct timespec time;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
	return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static void test_long_wait_for_a_lock_sleeps(void)
{
	pthread_t thread;
	hr__atomic_u32 held = 0;
	CHECK_EQ(pthread_create(&thread, NULL, hold_for_a_while, &held), 0);
	while (hr__load_acquire(&held) == 0) sched_yield();
	uint64_t cpu = cpu_ns();
	hr__lock_take(&waited_for);
	cpu = cpu_ns() - cpu;
	hr__lock_release(&waited_for);
	pthread_join(thread, NULL);
	CHECK_LT(cpu, 20000000);
}

/* ---- the faulty system ---- */

static void acquire_everything(struct hr_fault_os_live *live)
{
	size_t page = hr__os_page_size();
	void *block, *range, *map;
	int fd, file;
	hr__monitor *monitor;
	hr__thread *thread;
	CHECK_EQ(os()->alloc(100, &block), 0);
	CHECK_EQ(os()->reserve(8 * page, page, &range), 0);
	CHECK_EQ(os()->commit(range, 4 * page), 0);
	CHECK_EQ(os()->decommit((char *)range + page, page), 0);
	CHECK_EQ(os()->memfd("x", page, &fd), 0);
	CHECK_EQ(os()->map_fd((char *)range + 4 * page, page, fd, 0), 0);
	CHECK_EQ(os()->file_create(in_folder("fault"), &file), 0);
	CHECK_EQ(os()->file_extend(file, page), 0);
	CHECK_EQ(os()->file_map(file, 0, page, &map), 0);
	CHECK_EQ(os()->monitor_create(&monitor), 0);
	CHECK_EQ(os()->thread_start(work_nothing, NULL, "x", &thread), 0);
	hr_fault_os_live(live);
	os()->thread_join(thread);
	os()->monitor_destroy(monitor);
	CHECK_EQ(os()->file_unmap(map, page), 0);
	os()->file_close(file);
	os()->file_close(fd);
	CHECK_EQ(os()->release(range, 8 * page), 0);
	os()->free(block, 100);
}

static void test_faulty_system_counts_what_is_held(void)
{
	struct hr_fault_os_live live;
	size_t page = hr__os_page_size();
	hr_fault_os_install();
	CHECK(hr_fault_os_is_clean());
	acquire_everything(&live);
	CHECK_EQ(live.alloc_blocks, 1);
	CHECK_EQ(live.alloc_bytes, 100);
	CHECK_EQ(live.reserved_ranges, 1);
	CHECK_EQ(live.reserved_bytes, 8 * page);
	CHECK_EQ(live.committed_bytes, 3 * page);
	CHECK_EQ(live.mapped_bytes, page);
	CHECK_EQ(live.fds, 2);
	CHECK_EQ(live.file_maps, 1);
	CHECK_EQ(live.file_map_bytes, page);
	CHECK_EQ(live.monitors, 1);
	CHECK_EQ(live.threads, 1);
	CHECK(hr_fault_os_is_clean());
	hr_fault_os_uninstall();
	CHECK_EQ(hr__os(), hr__os_linux());
}

static int call_three_times(void)
{
	int failed = 0;
	uint64_t total, available;
	for (int i = 0; i < 3; i++) {
		int error = os()->host_memory(&total, &available);
		if (error != 0) failed |= 1 << i;
		CHECK(error == 0 || error == EIO);
	}
	return failed;
}

static void test_fault_injection_fails_the_chosen_call(void)
{
	hr_fault_os_install();
	CHECK_EQ(call_three_times(), 0);
	CHECK_EQ(hr_fault_os_calls(), 3);
	hr_fault_os_fail_nth(2, false, EIO);
	CHECK_EQ(call_three_times(), 2);
	CHECK_EQ(call_three_times(), 0);
	CHECK_EQ(hr_fault_os_calls(), 6);
	hr_fault_os_fail_nth(2, true, EIO);
	CHECK_EQ(call_three_times(), 6);
	CHECK_EQ(call_three_times(), 7);
	CHECK_EQ(hr_fault_os_failures(), 1 + 5);
	hr_fault_os_fail_nth(0, false, 0);
	CHECK_EQ(call_three_times(), 0);

	/* Releasing is not failable by default. */
	size_t page = hr__os_page_size();
	void *range;
	CHECK_EQ(os()->reserve(page, page, &range), 0);
	hr_fault_os_fail_nth(1, true, EIO);
	CHECK_EQ(os()->commit(range, page), EIO);
	hr_fault_os_fail_gives_back(true);
	CHECK_EQ(os()->release(range, page), EIO);
	hr_fault_os_fail_gives_back(false);
	CHECK_EQ(os()->release(range, page), 0);
	CHECK(hr_fault_os_is_clean());
}

static void free_with_wrong_size(void *argument)
{
	void *block;
	(void)argument;
	if (os()->alloc(100, &block) == 0) os()->free(block, 99);
}

static void release_part(void *argument)
{
	size_t page = hr__os_page_size();
	void *range;
	(void)argument;
	if (os()->reserve(2 * page, page, &range) == 0) os()->release(range, page);
}

static void commit_outside(void *argument)
{
	size_t page = hr__os_page_size();
	char *range;
	(void)argument;
	if (os()->reserve(2 * page, page, (void **)&range) == 0) os()->commit(range + page, 2 * page);
}

static void close_twice(void *argument)
{
	int fd;
	(void)argument;
	if (os()->memfd("x", 1, &fd) != 0) return;
	os()->file_close(fd);
	os()->file_close(fd);
}

static void test_faulty_system_notices_misuse(void)
{
	hr_fault_os_install();
	CHECK(hr_test_crashes(free_with_wrong_size, NULL));
	CHECK(hr_test_crashes(release_part, NULL));
	CHECK(hr_test_crashes(commit_outside, NULL));
	CHECK(hr_test_crashes(close_twice, NULL));
}

static void allocate_and_free(void *argument, unsigned index)
{
	(void)argument;
	(void)index;
	for (int i = 0; i < 2000; i++) {
		void *block;
		if (os()->alloc(64, &block) == 0) os()->free(block, 64);
	}
}

static void test_faulty_system_is_thread_safe(void)
{
	hr_fault_os_install();
	hr_fault_os_fail_nth(1000, false, ENOMEM);
	hr_test_threads(4, allocate_and_free, NULL);
	CHECK_EQ(hr_fault_os_calls(), 8000);
	CHECK_EQ(hr_fault_os_failures(), 1);
	CHECK(hr_fault_os_is_clean());
}

static void test_grown_arrays_keep_their_items_and_add_zeros(void)
{
	uint32_t *items = NULL;
	size_t capacity = 0, expected = 3;
	for (uint32_t count = 0; count < 100; count++) {
		if (count == capacity) {
			CHECK_EQ(hr__os_grow(&items, &capacity, sizeof *items, 3), 0);
			CHECK_EQ(capacity, expected);
			expected *= 2;
			for (size_t i = 0; i < capacity; i++) CHECK_EQ(items[i], i < count ? i + 1 : 0);
		}
		items[count] = count + 1;
	}
	uint32_t *before = items;
	CHECK_EQ(hr__os_grow(&items, &capacity, sizeof *items, SIZE_MAX / 2), ENOMEM);
	CHECK(items == before && capacity == expected / 2);
	hr__os()->free(items, capacity * sizeof *items);
}

TEST_MAIN(T(test_grown_arrays_keep_their_items_and_add_zeros), T(test_alloc_is_zeroed), T(test_alloc_of_too_much_is_enomem), T(test_reserve_is_aligned_and_untouchable),
          T(test_reserve_takes_only_what_was_asked), T(test_reserve_of_a_terabyte_costs_nothing), T(test_bad_ranges_are_einval),
          T(test_commit_and_decommit), T(test_decommit_gives_memory_back), T(test_failing_decommit_leaves_memory),
          T(test_memfd_pages_can_be_seen_twice), T(test_punch_gives_memory_back), T(test_memfd_of_impossible_size_fails),
          T(test_locking_memory), T(test_host_memory_is_plausible), T(test_host_memory_is_known_without_proc),
          T(test_threads_meet_in_a_monitor), T(test_monitor_wait_ends_in_time), T(test_thread_that_cannot_start_is_an_error),
          T(test_clocks_advance), T(test_sleep_is_not_cut_short_by_signals), T(test_ticks_keep_the_pace_of_the_clock),
          T(test_file_is_created_once_and_private), T(test_a_renamed_file_takes_the_place_of_another), T(test_folders_are_made_one_at_a_time),
          T(test_a_sink_is_not_a_file), T(test_only_regular_files_are_opened), T(test_inputs_are_read_from_begin_to_end), T(test_file_reads_what_was_written),
          T(test_extend_finds_disk_space), T(test_full_disk_is_enospc_and_leaves_the_file),
          T(test_extend_writes_where_space_cannot_be_asked_for), T(test_file_size_limit_is_an_error_not_a_death),
          T(test_file_size_limit_calls_no_handler_of_the_program), T(test_file_size_signal_of_the_program_is_kept),
          T(test_file_map_shows_the_file), T(test_environment_and_process), T(test_table_can_be_replaced),
          T(test_no_entry_of_the_table_is_missing), T(test_errors_have_names), T(test_light_and_heavy_barrier_see_each_other),
          T(test_full_fences_see_each_other), T(test_barrier_that_fails_later_is_replaced_by_fences),
          T(test_sandbox_without_membarrier_gets_fences), T(test_barrier_is_light_where_the_system_can),
          T(test_fork_hooks_run_only_in_the_child), T(test_names_work_after_a_fork_in_mid_insertion),
          T(test_thread_exit_hook_gets_the_threads_value), T(test_long_wait_for_a_lock_sleeps),
          T(test_faulty_system_counts_what_is_held), T(test_fault_injection_fails_the_chosen_call), T(test_faulty_system_notices_misuse),
          T(test_faulty_system_is_thread_safe))
