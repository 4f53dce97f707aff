/* test.h - the test harness: one header, used by every test program.
 *
 *     #include "test.h"
 *
 *     static void test_sum_is_exact(void)
 *     {
 *         CHECK_EQ(2 + 2, 4);
 *     }
 *
 *     TEST_MAIN(T(test_sum_is_exact))
 *
 * Tests are named after the promise they check. Each test runs in a process of its own with a time limit, so that a crash, a hang
 * or a leaked setting does not affect other tests. Output is TAP. The first failing check prints both operands and the command line
 * that reproduces it, and ends the test. A test in which no check ran fails.
 *
 * Options      --list           print the names
 *              --only NAME      run only that test
 *              --seed N         the value of hr_test_seed(); default 1
 *              --no-fork        run in this process, without time limits, for debuggers
 * Environment  HR_TEST_SCALE    multiplies the length of tests (hr_test_scale()); default 1
 *              HR_TEST_SEED     the seed, if --seed is not given
 *              HR_TEST_TIMEOUT  multiplies every time limit; default 1, times 4 under a sanitizer
 *
 * Checks may be made on any thread of the test's process. In a process that a test forks itself, a failing check ends that process
 * with status 1; the test must check that status. */
#ifndef HR_TESTS_TEST_H
#define HR_TESTS_TEST_H

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "headroom.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define HR_TEST_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
#define HR_TEST_SANITIZED 1
#endif
#endif
#ifndef HR_TEST_SANITIZED
#define HR_TEST_SANITIZED 0
#endif

/* Most tests leave it to hr_shutdown to free their allocations, which then returns HR_LEAKED: for them HR_LEAKED counts as HR_OK. A
 * test of leaks calls (hr_shutdown)(). */
static inline hr_status hr_test_shutdown(void)
{
	hr_status status = hr_shutdown();
	return status == HR_LEAKED ? HR_OK : status;
}
#define hr_shutdown() hr_test_shutdown()

#define HR_TEST_SECONDS 60
#define HR_TEST_EXIT_SKIPPED 77
#define HR_TEST_UNUSED __attribute__((unused))

/* Of a function that writes memory of the test which no other thread has yet, byte by byte: ThreadSanitizer leaves it alone, and takes a tenth of the time. */
#if defined(__clang__)
#define HR_TEST_PRIVATE __attribute__((no_sanitize("thread")))
#else
#define HR_TEST_PRIVATE
#endif

typedef struct hr_test {
	const char *name;
	void (*run)(void);
	double seconds;
} hr_test;

/* T(name) has the default time limit; T_WITHIN(name, seconds) sets its own. */
#define T(function) { #function, function, HR_TEST_SECONDS }
#define T_WITHIN(function, limit_seconds) { #function, function, limit_seconds }

#define TEST_MAIN(...)                                                                    \
	int main(int argc, char **argv)                                                       \
	{                                                                                     \
		static const hr_test tests[] = { __VA_ARGS__ };                                   \
		return hr_test_main(tests, sizeof tests / sizeof tests[0], argc, argv);           \
	}

/* ---- the test that is running ---- */

static struct {
	const char *program;
	const char *name;
	uint64_t seed;
	bool no_fork;
	_Atomic(uint64_t) checks;
} hr_test_state = { .seed = 1 };

HR_TEST_UNUSED static uint64_t hr_test_seed(void)
{
	return hr_test_state.seed;
}

static double hr_test_environment(const char *name, double otherwise)
{
	const char *text = getenv(name);
	double value = text != NULL ? strtod(text, NULL) : 0;
	return value > 0 ? value : otherwise;
}

HR_TEST_UNUSED static double hr_test_scale(void)
{
	return hr_test_environment("HR_TEST_SCALE", 1);
}

/* [usual] times the scale, at least 1. */
HR_TEST_UNUSED static uint64_t hr_test_scaled(uint64_t usual)
{
	double count = (double)usual * hr_test_scale();
	return count < 1 ? 1 : (uint64_t)count;
}

static void hr_test_print_reproduction(const char *name)
{
	printf("# to reproduce: %s --only %s --seed %llu\n", hr_test_state.program, name, (unsigned long long)hr_test_state.seed);
}

__attribute__((noreturn)) static void hr_test_fail(const char *file, int line, const char *text)
{
	fflush(stdout);
	printf("# FAILED %s:%d: %s\n", file, line, text);
	if (hr_test_state.no_fork) hr_test_print_reproduction(hr_test_state.name);
	fflush(stdout);
	/* _exit skips the atexit handlers of the program under test: its state is unknown, and other threads are running. */
	_exit(1);
}

/* Ends the test because something that it needs is missing; [why] says what. */
__attribute__((noreturn)) HR_TEST_UNUSED static void hr_test_skip(const char *why)
{
	printf("# skipped: %s\n", why);
	fflush(stdout);
	_exit(HR_TEST_EXIT_SKIPPED);
}

/* ---- values of any type, compared and printed ---- */

typedef struct hr_test_value {
	enum { HR_TEST_INT, HR_TEST_UINT, HR_TEST_DOUBLE, HR_TEST_POINTER } kind;
	union {
		int64_t i;
		uint64_t u;
		double d;
		const void *p;
	} as;
} hr_test_value;

HR_TEST_UNUSED static hr_test_value hr_test_of_int(int64_t i)
{
	return (hr_test_value){ HR_TEST_INT, { .i = i } };
}

HR_TEST_UNUSED static hr_test_value hr_test_of_uint(uint64_t u)
{
	return (hr_test_value){ HR_TEST_UINT, { .u = u } };
}

HR_TEST_UNUSED static hr_test_value hr_test_of_double(double d)
{
	return (hr_test_value){ HR_TEST_DOUBLE, { .d = d } };
}

HR_TEST_UNUSED static hr_test_value hr_test_of_pointer(const volatile void *p)
{
	return (hr_test_value){ HR_TEST_POINTER, { .p = (const void *)p } };
}

/* Bit fields need a cast: _Generic has no case for their types. */
#define HR_TEST_VALUE(x)                           \
	_Generic((x),                                  \
	         bool: hr_test_of_uint,                \
	         char: hr_test_of_int,                 \
	         signed char: hr_test_of_int,          \
	         short: hr_test_of_int,                \
	         int: hr_test_of_int,                  \
	         long: hr_test_of_int,                 \
	         long long: hr_test_of_int,            \
	         unsigned char: hr_test_of_uint,       \
	         unsigned short: hr_test_of_uint,      \
	         unsigned: hr_test_of_uint,            \
	         unsigned long: hr_test_of_uint,       \
	         unsigned long long: hr_test_of_uint,  \
	         float: hr_test_of_double,             \
	         double: hr_test_of_double,            \
	         default: hr_test_of_pointer)(x)

static double hr_test_as_double(hr_test_value v)
{
	switch (v.kind) {
	case HR_TEST_INT: return (double)v.as.i;
	case HR_TEST_UINT: return (double)v.as.u;
	case HR_TEST_POINTER: return (double)(uintptr_t)v.as.p;
	default: return v.as.d;
	}
}

/* Returns -1, 0 or 1 by value, independent of the types: -1 is less than 1u. Returns 2 if an operand is NaN. */
HR_TEST_UNUSED static int hr_test_compare(hr_test_value a, hr_test_value b)
{
	if (a.kind == HR_TEST_DOUBLE || b.kind == HR_TEST_DOUBLE) {
		double x = hr_test_as_double(a), y = hr_test_as_double(b);
		if (x != x || y != y) return 2;
		return x < y ? -1 : x > y;
	}
	bool a_negative = a.kind == HR_TEST_INT && a.as.i < 0, b_negative = b.kind == HR_TEST_INT && b.as.i < 0;
	if (a_negative != b_negative) return a_negative ? -1 : 1;
	uint64_t x = a.kind == HR_TEST_POINTER ? (uintptr_t)a.as.p : a.as.u;
	uint64_t y = b.kind == HR_TEST_POINTER ? (uintptr_t)b.as.p : b.as.u;
	return x < y ? -1 : x > y;
}

HR_TEST_UNUSED static const char *hr_test_show(hr_test_value v, char *out, size_t capacity)
{
	switch (v.kind) {
	case HR_TEST_INT: snprintf(out, capacity, "%lld", (long long)v.as.i); break;
	case HR_TEST_UINT: snprintf(out, capacity, "%llu (0x%llx)", (unsigned long long)v.as.u, (unsigned long long)v.as.u); break;
	case HR_TEST_DOUBLE: snprintf(out, capacity, "%.17g", v.as.d); break;
	case HR_TEST_POINTER: snprintf(out, capacity, "%p", v.as.p); break;
	}
	return out;
}

/* ---- checks ---- */

HR_TEST_UNUSED static void hr_test_check(const char *file, int line, bool holds, const char *text)
{
	atomic_fetch_add_explicit(&hr_test_state.checks, 1, memory_order_relaxed);
	if (!holds) hr_test_fail(file, line, text);
}

HR_TEST_UNUSED static void hr_test_check_order(const char *file, int line, const char *text, hr_test_value a, hr_test_value b,
                                               bool holds)
{
	atomic_fetch_add_explicit(&hr_test_state.checks, 1, memory_order_relaxed);
	if (holds) return;
	char left[64], right[64], message[768];
	snprintf(message, sizeof message, "%s\n#   left:  %s\n#   right: %s", text, hr_test_show(a, left, sizeof left),
	         hr_test_show(b, right, sizeof right));
	hr_test_fail(file, line, message);
}

HR_TEST_UNUSED static void hr_test_check_string(const char *file, int line, const char *text, const char *a, const char *b)
{
	atomic_fetch_add_explicit(&hr_test_state.checks, 1, memory_order_relaxed);
	if (a == b || (a != NULL && b != NULL && strcmp(a, b) == 0)) return;
	char message[4096];
	snprintf(message, sizeof message, "%s\n#   left:  \"%s\"\n#   right: \"%s\"", text, a != NULL ? a : "(NULL)",
	         b != NULL ? b : "(NULL)");
	hr_test_fail(file, line, message);
}

HR_TEST_UNUSED static void hr_test_check_bytes(const char *file, int line, const char *text, const void *a, const void *b, size_t n)
{
	atomic_fetch_add_explicit(&hr_test_state.checks, 1, memory_order_relaxed);
	const unsigned char *x = a, *y = b;
	size_t i = 0;
	if (n == 0 || memcmp(a, b, n) == 0) return; /* a sanitizer looks at the whole range at once, at each read of a loop by itself */
	while (x[i] == y[i]) i++;
	char message[768];
	snprintf(message, sizeof message, "%s\n#   byte %zu of %zu: 0x%02x, 0x%02x", text, i, n, x[i], y[i]);
	hr_test_fail(file, line, message);
}

HR_TEST_UNUSED static void hr_test_check_status(const char *file, int line, const char *text, hr_status expected, hr_status got)
{
	atomic_fetch_add_explicit(&hr_test_state.checks, 1, memory_order_relaxed);
	if (expected == got) return;
	char message[1536];
	snprintf(message, sizeof message, "%s\n#   expected: %s\n#   got:      %s (%d)\n#   last message: \"%s\"", text,
	         hr_status_name(expected), hr_status_name(got), (int)got, hr_last_message());
	hr_test_fail(file, line, message);
}

#define CHECK(expression) hr_test_check(__FILE__, __LINE__, (expression), #expression)

#define HR_TEST_ORDER(a, b, text, condition)                                                   \
	do {                                                                                       \
		hr_test_value hr_left_ = HR_TEST_VALUE(a), hr_right_ = HR_TEST_VALUE(b);               \
		int hr_order_ = hr_test_compare(hr_left_, hr_right_);                                  \
		hr_test_check_order(__FILE__, __LINE__, text, hr_left_, hr_right_, condition);         \
	} while (0)

/* Compares numbers of any types by value, or pointers. */
#define CHECK_EQ(a, b) HR_TEST_ORDER(a, b, #a " == " #b, hr_order_ == 0)
#define CHECK_NE(a, b) HR_TEST_ORDER(a, b, #a " != " #b, hr_order_ != 0)
#define CHECK_LT(a, b) HR_TEST_ORDER(a, b, #a " < " #b, hr_order_ == -1)
#define CHECK_LE(a, b) HR_TEST_ORDER(a, b, #a " <= " #b, hr_order_ == -1 || hr_order_ == 0)
#define CHECK_GT(a, b) CHECK_LT(b, a)
#define CHECK_GE(a, b) CHECK_LE(b, a)

#define CHECK_STR(a, b) hr_test_check_string(__FILE__, __LINE__, #a " == " #b, (a), (b))
#define CHECK_BYTES(a, b, count) hr_test_check_bytes(__FILE__, __LINE__, #a " == " #b, (a), (b), (count))

/* Evaluates the call once; on failure also prints the last message. */
#define CHECK_STATUS(expected, call) hr_test_check_status(__FILE__, __LINE__, #call, (expected), (call))

/* Checks that a text contains another. */
#define CHECK_CONTAINS(text, part)                                                                                       \
	do {                                                                                                                 \
		const char *hr_text_ = (text), *hr_part_ = (part);                                                               \
		if (hr_text_ != NULL && strstr(hr_text_, hr_part_) != NULL) hr_test_check(__FILE__, __LINE__, true, "");         \
		else hr_test_check_string(__FILE__, __LINE__, #text " contains " #part, hr_text_ != NULL ? hr_text_ : "(NULL)", hr_part_); \
	} while (0)

/* ---- random numbers: splitmix64; any state is valid ---- */

HR_TEST_UNUSED static uint64_t hr_rand(uint64_t *state)
{
	uint64_t z = (*state += 0x9E3779B97F4A7C15u);
	z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
	z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
	return z ^ (z >> 31);
}

/* 0 <= result < bound; bound > 0. */
HR_TEST_UNUSED static uint64_t hr_rand_below(uint64_t *state, uint64_t bound)
{
	return (uint64_t)(((unsigned __int128)hr_rand(state) * bound) >> 64);
}

/* ---- threads ---- */

typedef struct hr_test_thread {
	void (*run)(void *argument, unsigned index);
	void *argument;
	unsigned index;
	pthread_t id;
	pthread_barrier_t *start;
} hr_test_thread;

static void *hr_test_thread_main(void *argument)
{
	hr_test_thread *thread = argument;
	pthread_barrier_wait(thread->start);
	thread->run(thread->argument, thread->index);
	return NULL;
}

/* Calls run(argument, 0 ... count - 1) on [count] threads, which start together; returns when all are done. */
HR_TEST_UNUSED static void hr_test_threads(unsigned count, void (*run)(void *argument, unsigned index), void *argument)
{
	hr_test_thread threads[64];
	pthread_barrier_t start;
	if (count == 0 || count > 64) hr_test_fail(__FILE__, __LINE__, "hr_test_threads takes 1 to 64");
	pthread_barrier_init(&start, NULL, count);
	for (unsigned i = 0; i < count; i++) {
		threads[i] = (hr_test_thread){ run, argument, i, 0, &start };
		if (pthread_create(&threads[i].id, NULL, hr_test_thread_main, &threads[i]) != 0) {
			hr_test_fail(__FILE__, __LINE__, "no thread could be started");
		}
	}
	for (unsigned i = 0; i < count; i++) pthread_join(threads[i].id, NULL);
	pthread_barrier_destroy(&start);
}

/* ---- processes ---- */

/* Runs run(argument) in a child process and returns its wait status. The child's exit status is 0 if run returns. */
HR_TEST_UNUSED static int hr_test_in_child(void (*run)(void *), void *argument)
{
	fflush(stdout);
	fflush(stderr);
	/* A sanitizer's allocator does not handle fork: a lock held by another thread at that moment stays locked in the child. */
	if (HR_TEST_SANITIZED) nanosleep(&(struct timespec){ .tv_nsec = 30000000 }, NULL);
	pid_t child = fork();
	if (child < 0) hr_test_fail(__FILE__, __LINE__, "fork failed");
	if (child == 0) {
		run(argument);
		fflush(stdout);
		_exit(0);
	}
	int status = 0;
	while (waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
	return status;
}

typedef struct hr_test_crash {
	void (*run)(void *);
	void *argument;
} hr_test_crash;

static void hr_test_crash_quietly(void *argument)
{
	hr_test_crash *crash = argument;
	setrlimit(RLIMIT_CORE, &(struct rlimit){ 0, 0 });
	int nowhere = open("/dev/null", O_WRONLY);
	if (nowhere >= 0) {
		dup2(nowhere, STDERR_FILENO);
		close(nowhere);
	}
	crash->run(crash->argument);
}

/* Whether run(argument) crashes (an assertion, a fault). Runs it in a child process and discards its stderr. */
HR_TEST_UNUSED static bool hr_test_crashes(void (*run)(void *), void *argument)
{
	hr_test_crash crash = { run, argument };
	int status = hr_test_in_child(hr_test_crash_quietly, &crash);
	/* A sanitizer turns the signal into a failing exit. */
	return WIFSIGNALED(status) || (HR_TEST_SANITIZED && WEXITSTATUS(status) != 0);
}

/* ---- running ---- */

static double hr_test_now(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* Runs a test in this process. */
static void hr_test_run_here(const hr_test *test)
{
	hr_test_state.name = test->name;
	atomic_store(&hr_test_state.checks, 0);
	test->run();
	if (atomic_load(&hr_test_state.checks) == 0) hr_test_fail(__FILE__, __LINE__, "no check ran");
	fflush(stdout);
}

/* Waits for the child, at most [seconds]; false if time ran out. In both cases the child and every process that it started are dead
 * afterwards: the group is killed while the dead child still reserves its number, so the number cannot belong to another group. */
static bool hr_test_wait(pid_t child, double seconds, int *out_status)
{
	double deadline = hr_test_now() + seconds;
	struct timespec pause = { .tv_nsec = 200000 };
	bool ended = false;
	while (!ended && hr_test_now() <= deadline) {
		siginfo_t info = { 0 };
		ended = waitid(P_PID, (id_t)child, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == child;
		if (!ended) nanosleep(&pause, NULL);
		if (pause.tv_nsec < 10000000) pause.tv_nsec *= 2;
	}
	kill(-child, SIGKILL);
	while (waitpid(child, out_status, 0) < 0 && errno == EINTR) continue;
	return ended;
}

/* Runs a test in a process of its own. Returns 0 if it passed, HR_TEST_EXIT_SKIPPED, or 1. */
static int hr_test_run_apart(const hr_test *test)
{
	double seconds = test->seconds * hr_test_environment("HR_TEST_TIMEOUT", 1) * (HR_TEST_SANITIZED ? 4 : 1);
	int status = 0;
	fflush(stdout);
	pid_t child = fork();
	if (child < 0) {
		printf("# fork failed: %s\n", strerror(errno));
		return 1;
	}
	if (child == 0) {
		setpgid(0, 0);
		prctl(PR_SET_PDEATHSIG, SIGKILL); /* a process in its own group gets no Ctrl-C */
		hr_test_run_here(test);
		exit(0);
	}
	setpgid(child, child);
	if (!hr_test_wait(child, seconds, &status)) {
		printf("# FAILED %s: still running after %.0f s\n", test->name, seconds);
	} else if (WIFSIGNALED(status)) {
		printf("# FAILED %s: killed by signal %d (%s)\n", test->name, WTERMSIG(status), strsignal(WTERMSIG(status)));
	} else if (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == HR_TEST_EXIT_SKIPPED) {
		return WEXITSTATUS(status);
	} else if (WEXITSTATUS(status) != 1) {
		printf("# FAILED %s: exit status %d\n", test->name, WEXITSTATUS(status));
	}
	hr_test_print_reproduction(test->name);
	return 1;
}

static int hr_test_usage(void)
{
	fprintf(stderr, "usage: %s [--list] [--only NAME] [--seed N] [--no-fork]\n", hr_test_state.program);
	return 2;
}

static int hr_test_run_all(const hr_test *tests, size_t count, const char *only)
{
	size_t failed = 0, number = 0;
	printf("1..%zu\n", only != NULL ? (size_t)1 : count);
	for (size_t i = 0; i < count; i++) {
		if (only != NULL && strcmp(tests[i].name, only) != 0) continue;
		double start = hr_test_now();
		int result = 0;
		if (hr_test_state.no_fork) hr_test_run_here(&tests[i]);
		else result = hr_test_run_apart(&tests[i]);
		bool skipped = result == HR_TEST_EXIT_SKIPPED;
		if (result != 0 && !skipped) failed++;
		printf("%s %zu - %s", result == 0 || skipped ? "ok" : "not ok", ++number, tests[i].name);
		if (skipped) puts(" # SKIP");
		else printf(" (%.2f s)\n", hr_test_now() - start);
		fflush(stdout);
	}
	if (number == 0) {
		fprintf(stderr, "%s: no test is called %s\n", hr_test_state.program, only != NULL ? only : "anything");
		return 2;
	}
	return failed == 0 ? 0 : 1;
}

static int hr_test_main(const hr_test *tests, size_t count, int argc, char **argv)
{
	const char *only = NULL;
	bool list = false;
	hr_test_state.program = argv[0];
	hr_test_state.seed = getenv("HR_TEST_SEED") != NULL ? strtoull(getenv("HR_TEST_SEED"), NULL, 0) : 1;
	for (int i = 1; i < argc; i++) {
		bool has_next = i + 1 < argc;
		if (strcmp(argv[i], "--list") == 0) list = true;
		else if (strcmp(argv[i], "--no-fork") == 0) hr_test_state.no_fork = true;
		else if (strcmp(argv[i], "--only") == 0 && has_next) only = argv[++i];
		else if (strcmp(argv[i], "--seed") == 0 && has_next) hr_test_state.seed = strtoull(argv[++i], NULL, 0);
		else return hr_test_usage();
	}
	if (list) {
		for (size_t i = 0; i < count; i++) puts(tests[i].name);
		return 0;
	}
	return hr_test_run_all(tests, count, only);
}

#endif
