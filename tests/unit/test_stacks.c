/* test_stacks.c - the promises of call stacks in recordings: the exact calls of a C program, of each thread, of tensors, in forks, and
 * when the system fails. */
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fixture.h"
#include "analysis/reader/reader.h"
#include "core/base/names.h"
#include "core/os/os.h"
#include "core/memory/allocator.h"
#include "core/trace/stacks.h"
#include "fault_os.h"
#include "headroom_lms.h"
#include "headroom_record.h"
#include "support_files.h"
#include "test.h"

/* ---- the program ---- */

static hr_allocator allocator;

static void open_allocator(bool lms)
{
	hr_device device = fixture_simulated(FIXTURE_DEFAULT, FIXTURE_DEFAULT);
	allocator = fixture_allocator(device, 0);
	if (!lms) return;
	fixture_lms(allocator, NULL, 0);
}

/* Starts a recording with stacks of up to [depth] frames; stopped by hr_trace_stop. */
static void start(const char *path, const char *depth)
{
	setenv("HEADROOM_STACKS", depth, 1);
	CHECK_STATUS(HR_OK, hr_trace_start(path));
	unsetenv("HEADROOM_STACKS");
}

/* Functions of the program, which the dynamic loader knows. The call is not the last thing that they do, so it is on the stack. */
#ifdef __clang__
#define PROGRAM __attribute__((noinline, visibility("default")))
#else
#define PROGRAM __attribute__((noinline, noclone, visibility("default"))) /* a clone has another name */
#endif
static _Atomic(int) calls;

PROGRAM void *stacks_inner(size_t bytes);
PROGRAM void *stacks_middle(size_t bytes);
PROGRAM void *stacks_outer(size_t bytes);
PROGRAM void *stacks_elsewhere(size_t bytes);
PROGRAM hr_tensor stacks_make_tensor(size_t bytes);
PROGRAM void stacks_pin(hr_tensor tensor);

PROGRAM void *stacks_inner(size_t bytes)
{
	void *block = NULL;
	hr_status status = hr_alloc(allocator, &HR_REQUEST(bytes), &block);
	atomic_fetch_add(&calls, status == HR_OK);
	return block;
}

PROGRAM void *stacks_middle(size_t bytes)
{
	void *block = stacks_inner(bytes);
	atomic_fetch_add(&calls, 1);
	return block;
}

PROGRAM void *stacks_outer(size_t bytes)
{
	void *block = stacks_middle(bytes);
	atomic_fetch_add(&calls, 1);
	return block;
}

PROGRAM void *stacks_elsewhere(size_t bytes)
{
	void *block = NULL;
	hr_status status = hr_alloc_bytes(allocator, bytes, &block);
	atomic_fetch_add(&calls, status == HR_OK);
	return block;
}

PROGRAM hr_tensor stacks_make_tensor(size_t bytes)
{
	hr_tensor tensor = { 0 };
	tensor = fixture_tensor(allocator, bytes);
	atomic_fetch_add(&calls, 1);
	return tensor;
}

PROGRAM void stacks_pin(hr_tensor tensor)
{
	hr_pin pin = { tensor, HR_WRITE };
	CHECK_STATUS(HR_OK, hr_tensor_pin_all(&pin, 1, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_tensor_unpin_all(&pin, 1, HR_STREAM_DEFAULT));
	atomic_fetch_add(&calls, 1);
}

static void give(void *block)
{
	CHECK_STATUS(HR_OK, hr_free(allocator, block, HR_STREAM_DEFAULT));
}

/* ---- reading ---- */

/* The events of [kind] in a file, at most [most]. */
static size_t read_events(const char *path, hr__event_kind kind, hr__event *out, size_t most)
{
	hr__trace_reader *reader;
	hr__event event;
	size_t count = 0;
	CHECK_STATUS(HR_OK, hr__trace_reader_open(path, &reader));
	while (hr__trace_reader_next(reader, &event) == HR_OK)
		if (event.kind == kind && count < most) out[count++] = event;
	hr__trace_reader_close(reader);
	return count;
}

/* Checks that the innermost functions of a stack are [names], which end with NULL. Returns the number of frames. */
static size_t check_functions(hr_stack stack, const char *const *names)
{
	hr_frame frames[HR_STACK_DEPTH_MAX];
	size_t count = hr_stack_get_frames(stack, frames, HR_STACK_DEPTH_MAX);
	for (size_t i = 0; names[i]; i++) {
		CHECK_LT(i, count);
		CHECK_STR(hr_name_text(frames[i].function), names[i]);
		CHECK(frames[i].module != HR_NAME_NONE);
		CHECK(frames[i].offset != 0);
	}
	return count;
}

#define CHECK_STACK(stack, ...) check_functions(stack, (const char *const[]){ __VA_ARGS__, NULL })

/* ---- captures ---- */

static void test_stack_of_a_c_program_has_its_calls_innermost_first(void)
{
	const char *path = in_folder("calls.hrt");
	hr__event events[4];
	open_allocator(false);
	start(path, "16");
	give(stacks_outer(1000));     /* a slow path: the thread has no cache yet */
	give(stacks_outer(1000));     /* the thread's cache */
	give(stacks_outer(1 << 20));
	give(stacks_elsewhere(1000));
	CHECK_STATUS(HR_OK, hr_trace_stop());
	CHECK_EQ(read_events(path, HR__EVENT_ALLOC, events, 4), 4);
	for (int i = 0; i < 3; i++) CHECK_GE(CHECK_STACK(events[i].stack, "stacks_inner", "stacks_middle", "stacks_outer"), 5);
	CHECK_STACK(events[3].stack, "stacks_elsewhere");
	CHECK_EQ(events[0].bytes, events[1].bytes);
	hr_frame frames[4];
	hr_stack_get_frames(events[0].stack, frames, 4);
	CHECK_CONTAINS(hr_name_text(frames[0].module), "test_stacks");
	hr_shutdown();
}

/* tests/python/test_stacks.py has programs with an interpreter. */
static void test_without_an_interpreter_stacks_are_as_if_there_were_no_package(void)
{
	char long_name[1000];
	memset(long_name, 'x', sizeof long_name - 1);
	long_name[sizeof long_name - 1] = '\0';
	hr__stacks_set_package(long_name); /* too long: ignored */
	hr__stacks_set_package("/site-packages/headroom/");
	hr__stacks_set_package("/another/");
	test_stack_of_a_c_program_has_its_calls_innermost_first();
}

static void test_stack_has_no_more_frames_than_asked_for(void)
{
	const char *path = in_folder("depth.hrt");
	hr__event event;
	open_allocator(false);
	CHECK_EQ(hr_trace_get_stack_depth(), 0);
	start(path, "2");
	CHECK_EQ(hr_trace_get_stack_depth(), 2);
	give(stacks_outer(1000));
	CHECK_STATUS(HR_OK, hr_trace_stop());
	CHECK_EQ(hr_trace_get_stack_depth(), 0);
	CHECK_EQ(read_events(path, HR__EVENT_ALLOC, &event, 1), 1);
	CHECK_EQ(CHECK_STACK(event.stack, "stacks_inner", "stacks_middle"), 2);
	hr_shutdown();
}

static void test_recording_without_a_depth_has_no_stacks(void)
{
	const char *path = in_folder("none.hrt");
	hr__event event;
	hr_profiler_options options;
	open_allocator(false);
	CHECK_STATUS(HR_OK, hr_trace_start(path));
	CHECK_EQ(hr__stacks_depth(), 0);
	give(stacks_outer(1000));
	CHECK_STATUS(HR_OK, hr_trace_stop());
	CHECK_EQ(read_events(path, HR__EVENT_ALLOC, &event, 1), 1);
	CHECK_EQ(event.stack, HR_STACK_NONE);

	/* The environment's wrong value is ignored; a program's is an error. */
	start(in_folder("wrong.hrt"), "many");
	CHECK_EQ(hr__stacks_depth(), 0);
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_environment_check());
	CHECK_CONTAINS(hr_last_message(), "HEADROOM_STACKS");
	CHECK_STATUS(HR_OK, hr_trace_stop());
	hr_profiler_options_init(&options);
	options.stack_depth = HR_STACK_DEPTH_MAX + 1;
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_profiler_start(in_folder("logs"), &options));
	CHECK_CONTAINS(hr_last_message(), "stack_depth of 129");
	hr_shutdown();
}

static void test_profiler_records_stacks_of_the_depth_in_its_options(void)
{
	hr__event event;
	hr_profiler_options options;
	char path[512];
	open_allocator(false);
	hr_profiler_options_init(&options);
	options.stack_depth = 3;
	CHECK_STATUS(HR_OK, hr_profiler_start(in_folder("logs"), &options));
	give(stacks_outer(1000));
	CHECK_STATUS(HR_OK, hr_profiler_stop());
	hr_profiler_get_last_file(path, sizeof path);
	CHECK_EQ(read_events(path, HR__EVENT_ALLOC, &event, 1), 1);
	CHECK_EQ(CHECK_STACK(event.stack, "stacks_inner", "stacks_middle", "stacks_outer"), 3);
	hr_shutdown();
}

static void test_stack_of_a_refused_request_is_recorded(void)
{
	const char *path = in_folder("refused.hrt");
	hr__event event;
	open_allocator(false);
	start(path, "16");
	CHECK(stacks_outer((size_t)1 << 46) == NULL);
	CHECK_STATUS(HR_OK, hr_trace_stop());
	CHECK_EQ(read_events(path, HR__EVENT_ALLOC_FAILED, &event, 1), 1);
	CHECK_STACK(event.stack, "stacks_inner", "stacks_middle", "stacks_outer");
	hr_shutdown();
}

static void test_blocks_from_before_the_recording_have_no_stack(void)
{
	const char *path = in_folder("before.hrt");
	hr__event events[2];
	open_allocator(false);
	void *before = stacks_outer(1000);
	start(path, "16");
	give(stacks_outer(2000));
	CHECK_STATUS(HR_OK, hr_trace_stop());
	CHECK_EQ(read_events(path, HR__EVENT_ALLOC, events, 2), 2);
	CHECK_EQ(events[0].stack, HR_STACK_NONE);
	CHECK_STACK(events[1].stack, "stacks_inner");
	give(before);
	hr_shutdown();
}

enum { ROUNDS = 2000 };

static void allocate_in_turn(void *argument, unsigned index)
{
	(void)argument;
	for (int i = 0; i < ROUNDS; i++) give(index ? stacks_elsewhere(4096 + 4096 * (size_t)index) : stacks_outer(4096));
}

static void test_each_thread_has_its_own_stacks(void)
{
	const char *path = in_folder("threads.hrt");
	static hr__event events[2 * ROUNDS];
	open_allocator(false);
	start(path, "16");
	hr_test_threads(2, allocate_in_turn, NULL);
	CHECK_STATUS(HR_OK, hr_trace_stop());
	CHECK_EQ(read_events(path, HR__EVENT_ALLOC, events, 2 * ROUNDS), 2 * ROUNDS);
	for (int i = 0; i < 2 * ROUNDS; i++) {
		if (events[i].bytes == 4096) CHECK_STACK(events[i].stack, "stacks_inner", "stacks_middle", "stacks_outer");
		else CHECK_STACK(events[i].stack, "stacks_elsewhere");
	}
	CHECK_LT(hr__stacks_count(), 100);
	hr_shutdown();
}

/* ---- stacks of plug-ins ---- */

static hr_stack python_stack(uint32_t line)
{
	hr_frame frames[2] = { { .function = hr_name_intern("forward"), .file = hr_name_intern("model.py"), .line = line },
		                   { .function = hr_name_intern("<module>"), .file = hr_name_intern("train.py"), .line = 3 } };
	return hr_stack_intern(frames, 2);
}

static void allocate_without(void *argument, unsigned index)
{
	(void)argument;
	(void)index;
	give(stacks_inner(3000));
}

static void test_stack_that_is_set_takes_precedence_and_needs_no_depth(void)
{
	for (int captures = 0; captures < 2; captures++) {
		const char *path = in_folder(captures ? "set_captures.hrt" : "set.hrt");
		hr__event events[4];
		open_allocator(false);
		start(path, captures ? "16" : "0");
		CHECK_EQ(hr_stack_set(python_stack(7)), HR_STACK_NONE);
		give(stacks_inner(1000));
		CHECK_EQ(hr_stack_set(python_stack(9)), python_stack(7));
		give(stacks_inner(1000));
		hr_test_threads(1, allocate_without, NULL);
		CHECK_EQ(hr_stack_set(HR_STACK_NONE), python_stack(9));
		give(stacks_inner(1000));
		CHECK_STATUS(HR_OK, hr_trace_stop());
		CHECK_EQ(read_events(path, HR__EVENT_ALLOC, events, 4), 4);
		CHECK_EQ(events[0].stack, python_stack(7));
		CHECK_EQ(events[1].stack, python_stack(9));
		for (int i = 2; i < 4; i++) {
			if (captures) CHECK_STACK(events[i].stack, "stacks_inner");
			else CHECK_EQ(events[i].stack, HR_STACK_NONE);
		}
		hr_shutdown();
	}
}

static void test_stack_keeps_its_innermost_frames(void)
{
	hr_frame frames[HR_STACK_DEPTH_MAX + 1], found[HR_STACK_DEPTH_MAX + 1];
	for (uint32_t i = 0; i <= HR_STACK_DEPTH_MAX; i++) frames[i] = (hr_frame){ .function = hr_name_intern("f"), .line = i + 1 };
	hr_stack stack = hr_stack_intern(frames, HR_STACK_DEPTH_MAX + 1);
	CHECK_EQ(hr_stack_get_frames(stack, found, HR_STACK_DEPTH_MAX + 1), HR_STACK_DEPTH_MAX);
	CHECK_BYTES(found, frames, HR_STACK_DEPTH_MAX * sizeof frames[0]);
	CHECK_EQ(hr_stack_intern(frames, HR_STACK_DEPTH_MAX), stack);
	CHECK_EQ(hr_stack_get_frames(stack, found, 1), HR_STACK_DEPTH_MAX);
	CHECK_EQ(hr_stack_intern(frames, 0), HR_STACK_NONE);
	CHECK_EQ(hr_stack_intern(NULL, 5), HR_STACK_NONE);
	CHECK_EQ(hr_stack_get_frames(HR_STACK_NONE, found, 1), 0);
	CHECK_EQ(hr_stack_get_frames(60000, found, 1), 1);
	CHECK_EQ(found[0].function, HR_NAME_OTHER);
}

/* ---- tensors ---- */

static void test_memory_of_a_tensor_has_the_stack_of_its_creation(void)
{
	const char *path = in_folder("tensors.hrt");
	hr__event events[8];
	open_allocator(true);
	start(path, "16");
	hr_tensor tensor = stacks_make_tensor(1 << 20);
	stacks_pin(tensor);
	CHECK_STATUS(HR_OK, hr_tensor_evict(tensor));
	stacks_pin(tensor);
	CHECK_STATUS(HR_OK, hr_tensor_destroy(tensor));
	CHECK_STATUS(HR_OK, hr_trace_stop());
	size_t count = read_events(path, HR__EVENT_ALLOC, events, 8);
	CHECK_GE(count, 2); /* on the device, perhaps on the host, and on the device again */
	for (size_t i = 0; i < count; i++) CHECK_STACK(events[i].stack, "stacks_make_tensor");
	hr_shutdown();
}

/* ---- forks, kills and failures ---- */

static void test_child_of_a_fork_captures_nothing_until_it_records(void)
{
	const char *path = in_folder("parent.hrt"), *own = in_folder("child.hrt");
	hr__event events[2];
	open_allocator(false);
	start(path, "16");
	give(stacks_outer(1000));
	fflush(stdout);
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		if (hr__stacks_depth() != 0) _exit(1);
		hr_shutdown();
		open_allocator(false);
		start(own, "16");
		give(stacks_outer(1000));
		if (hr_trace_stop() != HR_OK) _exit(2);
		if (read_events(own, HR__EVENT_ALLOC, events, 2) != 1) _exit(3);
		CHECK_STACK(events[0].stack, "stacks_inner", "stacks_middle", "stacks_outer");
		_exit(0);
	}
	int result = -1;
	CHECK_EQ(waitpid(child, &result, 0), child);
	CHECK_EQ(result, 0);
	give(stacks_elsewhere(1000));
	CHECK_STATUS(HR_OK, hr_trace_stop());
	CHECK_EQ(read_events(path, HR__EVENT_ALLOC, events, 2), 2);
	CHECK_STACK(events[0].stack, "stacks_inner", "stacks_middle", "stacks_outer");
	CHECK_STACK(events[1].stack, "stacks_elsewhere");
	hr_shutdown();
}

static void test_captured_stacks_survive_kill_9(void)
{
	_Atomic(int) *done = mmap(NULL, sizeof *done, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	static hr__event events[1000];
	CHECK(done != MAP_FAILED);
	for (uint64_t round = 0; round < hr_test_scaled(5); round++) {
		const char *path = in_folder("killed.hrt");
		atomic_store(done, 0);
		fflush(stdout);
		pid_t child = fork();
		CHECK(child >= 0);
		if (child == 0) {
			open_allocator(false);
			start(path, "16");
			for (;;) {
				give(atomic_load(done) % 2 ? stacks_elsewhere(1000) : stacks_outer(1000));
				atomic_fetch_add(done, 1);
			}
		}
		while (atomic_load(done) < 10 * (int)(round + 1)) usleep(100);
		kill(child, SIGKILL);
		waitpid(child, NULL, 0);
		size_t count = read_events(path, HR__EVENT_ALLOC, events, 1000);
		CHECK_GE(count, 10);
		for (size_t i = 0; i < count; i++) {
			if (i % 2) CHECK_STACK(events[i].stack, "stacks_elsewhere");
			else CHECK_STACK(events[i].stack, "stacks_inner", "stacks_middle", "stacks_outer");
		}
		unlink(path);
	}
	munmap(done, sizeof *done);
}

/* With faults, a recording starts or not; once started, allocations succeed, and the file can be read. */
static void record_with_faults(uint64_t n, bool forever)
{
	const char *path = in_folder("faults.hrt");
	hr__event events[8];
	unlink(path);
	hr_fault_os_install();
	open_allocator(false);
	void *blocks[4];
	CHECK_STATUS(HR_OK, hr__stacks_prepare());
	CHECK_STATUS(HR_OK, hr__recording_start(path, 0, 16));
	give(stacks_inner(500)); /* the thread's cache and block of the file exist now */
	hr_fault_os_fail_nth(n, forever, EIO);
	for (int i = 0; i < 4; i++) blocks[i] = stacks_outer(500);
	hr_fault_os_fail_nth(0, false, 0);
	for (int i = 0; i < 4; i++) {
		CHECK(blocks[i] != NULL);
		give(blocks[i]);
	}
	give(stacks_outer(500));
	CHECK_STATUS(HR_OK, hr_trace_stop());
	CHECK_EQ(read_events(path, HR__EVENT_ALLOC, events, 8), 6);
	CHECK_STACK(events[5].stack, "stacks_inner", "stacks_middle", "stacks_outer"); /* a failure is not remembered */
	hr_shutdown();
	hr_fault_os_uninstall();
}

static void test_capture_that_fails_leaves_the_allocation_alone(void)
{
	for (uint64_t n = 1; n < 12; n++) {
		record_with_faults(n, false);
		record_with_faults(n, true);
	}
}

static int no_capture(void **addresses, size_t capacity, size_t *count)
{
	(void)addresses, (void)capacity, (void)count;
	return ENOSYS;
}

static void test_system_without_captures_is_reported(void)
{
	hr__os_table without = *hr__os();
	hr_profiler_options options;
	without.stack_capture = no_capture;
	hr__os_replace(&without);
	open_allocator(false);
	hr_profiler_options_init(&options);
	options.stack_depth = 16;
	CHECK_STATUS(HR_UNSUPPORTED, hr_profiler_start(in_folder("logs"), &options));
	CHECK_CONTAINS(hr_last_message(), "call stacks cannot be captured");
	/* A setting in the environment never stops a program. */
	start(in_folder("unsupported.hrt"), "16");
	give(stacks_outer(1000));
	CHECK_STATUS(HR_OK, hr_trace_stop());
	hr_shutdown();
	hr__os_replace(NULL);
}

TEST_MAIN(T(test_stack_of_a_c_program_has_its_calls_innermost_first), T(test_without_an_interpreter_stacks_are_as_if_there_were_no_package),
          T(test_stack_has_no_more_frames_than_asked_for),
          T(test_recording_without_a_depth_has_no_stacks), T(test_profiler_records_stacks_of_the_depth_in_its_options),
          T(test_stack_of_a_refused_request_is_recorded), T(test_blocks_from_before_the_recording_have_no_stack),
          T(test_each_thread_has_its_own_stacks), T(test_stack_that_is_set_takes_precedence_and_needs_no_depth),
          T(test_stack_keeps_its_innermost_frames), T(test_memory_of_a_tensor_has_the_stack_of_its_creation),
          T(test_child_of_a_fork_captures_nothing_until_it_records), T(test_captured_stacks_survive_kill_9),
          T(test_capture_that_fails_leaves_the_allocation_alone), T(test_system_without_captures_is_reported))
