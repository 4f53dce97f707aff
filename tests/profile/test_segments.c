/* test_segments.c - the file that a program publishes for `headroom top`: it is correct, it is removed when the program ends, and a
 * reader trusts nothing in it. */
#include <sys/stat.h>

#include "fault_os.h"
#include "fixture.h"
#include "core/memory/allocator.h"
#include "core/os/os.h"
#include "core/record/publish.h"
#include "headroom_lms.h"
#include "live/segments.h"
#include "test.h"

static char folder[128];
static int folder_fd = -1;

static void remove_folder(void)
{
	char command[256];
	snprintf(command, sizeof command, "rm -rf %s", folder);
	if (system(command) != 0) puts("# the test's folder was not removed");
}

/* A folder of the test's own, which the library uses for its file too. */
static void use_folder(void)
{
	const char *temporary = getenv("TMPDIR");
	snprintf(folder, sizeof folder, "%s/hr_test_segments_XXXXXX", temporary ? temporary : "/tmp");
	CHECK(mkdtemp(folder) != NULL);
	atexit(remove_folder);
	CHECK_EQ(setenv("XDG_RUNTIME_DIR", folder, 1), 0);
	folder_fd = open(folder, O_RDONLY | O_DIRECTORY);
	CHECK_GE(folder_fd, 0);
}

static const char *name_of(pid_t process)
{
	static char name[64];
	snprintf(name, sizeof name, HR__SEGMENT_PREFIX "%d", (int)process);
	return name;
}

static const char *own_path(void)
{
	static char path[256];
	snprintf(path, sizeof path, "%s/%s", folder, name_of(getpid()));
	return path;
}

static hr_allocator open_allocator(void)
{
	hr_device device;
	hr_allocator allocator;
	CHECK_STATUS(HR_OK, hr_device_find("SIM:0", &device));
	CHECK_STATUS(HR_OK, hr_allocator_create(device, NULL, &allocator));
	return allocator;
}

static const hr__segment_device *device_of(const hr__segment *s, const char *name)
{
	for (uint32_t i = 0; i < s->device_count; i++)
		if (!strcmp(s->devices[i].name, name)) return &s->devices[i];
	return NULL;
}

static void wait_a_while(void)
{
	nanosleep(&(struct timespec){ .tv_nsec = 20000000 }, NULL);
}

/* Reads this process's segment until SIM:0 has [bytes] in use there. */
static hr__segment read_until(int64_t bytes)
{
	hr__segment s;
	for (int i = 0; i < 1000; i++) {
		if (hr__segment_read(folder_fd, name_of(getpid()), (uint32_t)getpid(), &s)) {
			const hr__segment_device *device = device_of(&s, "SIM:0");
			if (device && device->bytes_in_use == bytes) return s;
		}
		wait_a_while();
	}
	CHECK(!"the segment never showed it");
	return s;
}

/* ---- the writer ---- */

static void test_a_program_shows_what_it_uses_and_takes_it_away(void)
{
	struct stat facts;
	hr_request request = HR_REQUEST(1 << 20);
	void *block;
	use_folder();
	CHECK_EQ(setenv("HEADROOM_TOP", "1", 1), 0);
	hr_allocator allocator = open_allocator();
	CHECK_EQ(stat(own_path(), &facts), 0);
	CHECK_EQ(facts.st_mode & 0777, 0600);
	CHECK_STATUS(HR_OK, hr_alloc(allocator, &request, &block));
	hr__segment s = read_until(1 << 20);
	CHECK_EQ(s.process, getpid());
	CHECK_EQ(s.recording, 0);
	CHECK(!strncmp(s.program, "test_segments", 13));
	CHECK_EQ(device_of(&s, "SIM:0")->num_live, 1);
	CHECK_EQ(device_of(&s, "SIM:0")->samples[(s.samples - 1) % HR__SEGMENT_SAMPLES], 1 << 20);
	CHECK_EQ(s.rank.count, 0);
	CHECK_EQ(s.allocator_count, 1);
	CHECK_STR(s.allocators[0].device, "SIM:0");
	CHECK_EQ(s.allocators[0].bytes_in_use, 1 << 20);
	CHECK_EQ(s.allocators[0].num_allocs, 1);
	CHECK_EQ(s.allocators[0].num_steps, 0);
	CHECK_STATUS(HR_OK, hr_free(allocator, block, HR_STREAM_DEFAULT));
	s = read_until(0);
	CHECK_EQ(device_of(&s, "SIM:0")->peak_bytes_in_use, 1 << 20);
	CHECK_STATUS(HR_OK, hr_shutdown());
	CHECK(stat(own_path(), &facts) != 0);
	open_allocator(); /* and again */
	CHECK_EQ(stat(own_path(), &facts), 0);
	CHECK_STATUS(HR_OK, hr_shutdown());
	CHECK(stat(own_path(), &facts) != 0);
}

static void test_a_rank_shows_its_job_and_each_allocator_what_it_evicts(void)
{
	hr_allocator allocators[HR__SEGMENT_ALLOCATORS + 2];
	hr_device device;
	use_folder();
	CHECK_EQ(setenv("HEADROOM_TOP", "1", 1), 0);
	CHECK_EQ(setenv("HEADROOM_RANK", "1/4", 1), 0);
	CHECK_STATUS(HR_OK, hr_device_find("SIM:0", &device));
	for (size_t i = 0; i < HR__SEGMENT_ALLOCATORS + 2; i++) allocators[i] = fixture_allocator(device, 4 << 20);
	fixture_lms(allocators[0], "lru", 0);
	/* The last one evicts another. Only then are 3 MiB in use. */
	for (int i = 0; i < 3; i++) {
		hr_tensor tensor = fixture_tensor(allocators[0], i < 2 ? 2 << 20 : 1 << 20);
		CHECK_STATUS(HR_OK, hr_tensor_pin(tensor, HR_OVERWRITE, HR_STREAM_DEFAULT));
		CHECK_STATUS(HR_OK, hr_tensor_unpin(tensor, HR_STREAM_DEFAULT));
	}
	hr__segment s = read_until(3 << 20);
	CHECK_EQ(s.rank.number, 1);
	CHECK_EQ(s.rank.count, 4);
	CHECK_EQ(s.allocator_count, HR__SEGMENT_ALLOCATORS);
	CHECK_EQ(s.allocators_left_out, 2);
	int64_t evicted = 0, limits = 0;
	for (uint32_t i = 0; i < s.allocator_count; i++) evicted += s.allocators[i].num_evictions, limits += s.allocators[i].bytes_limit;
	CHECK_EQ(evicted, 1);
	CHECK_EQ(limits, HR__SEGMENT_ALLOCATORS * (4 << 20));
	unsetenv("HEADROOM_RANK");
	CHECK_STATUS(HR_OK, hr_shutdown());
}

static hr__atomic_u32 allocating;

static void *allocate_meanwhile(void *argument)
{
	const hr_allocator *allocators = argument;
	void *blocks[2];
	while (hr__load_relaxed(&allocating)) {
		for (int i = 0; i < 2; i++) CHECK_STATUS(HR_OK, hr_alloc_bytes(allocators[i], 1000, &blocks[i]));
		for (int i = 0; i < 2; i++) CHECK_STATUS(HR_OK, hr_free(allocators[i], blocks[i], HR_STREAM_DEFAULT));
	}
	return NULL;
}

static void test_a_device_shows_the_sum_of_its_allocators_while_a_thread_allocates(void)
{
	hr_device device;
	pthread_t thread;
	use_folder();
	CHECK_EQ(setenv("HEADROOM_TOP", "1", 1), 0);
	CHECK_STATUS(HR_OK, hr_device_find("SIM:0", &device));
	hr_allocator allocators[2] = { fixture_allocator(device, 4 << 20), fixture_allocator(device, 4 << 20) };
	hr__store_relaxed(&allocating, 1);
	CHECK_EQ(pthread_create(&thread, NULL, allocate_meanwhile, allocators), 0);
	uint64_t last = 0;
	for (int looks = 0, attempt = 0; looks < 4; attempt++) {
		hr__segment s;
		CHECK_LT(attempt, 1000);
		wait_a_while();
		if (!hr__segment_read(folder_fd, name_of(getpid()), (uint32_t)getpid(), &s) || s.samples == last) continue;
		last = s.samples;
		const hr__segment_device *shown = device_of(&s, "SIM:0");
		if (!shown || shown->num_allocs == 0) continue;
		CHECK_EQ(s.allocator_count, 2);
		CHECK_EQ(shown->num_allocs, s.allocators[0].num_allocs + s.allocators[1].num_allocs);
		CHECK_EQ(shown->num_frees, s.allocators[0].num_frees + s.allocators[1].num_frees);
		CHECK_EQ(shown->bytes_in_use, s.allocators[0].bytes_in_use + s.allocators[1].bytes_in_use);
		looks++;
	}
	hr__store_relaxed(&allocating, 0);
	pthread_join(thread, NULL);
	CHECK_STATUS(HR_OK, hr_shutdown());
}

static void *make_and_destroy_tensors(void *unused)
{
	hr_device device = fixture_device("SIM:0");
	(void)unused;
	for (int i = 0; (uint64_t)i < hr_test_scaled(2000); i++) {
		hr_allocator allocator = fixture_allocator(device, 4 << 20);
		fixture_lms(allocator, "lru", 0);
		hr_tensor tensor = fixture_tensor(allocator, 4096);
		CHECK_STATUS(HR_OK, hr_tensor_pin(tensor, HR_OVERWRITE, HR_STREAM_DEFAULT));
		CHECK_STATUS(HR_OK, hr_tensor_unpin(tensor, HR_STREAM_DEFAULT));
		CHECK_STATUS(HR_OK, hr_tensor_destroy(tensor));
		CHECK_STATUS(HR_OK, hr_allocator_destroy(allocator));
	}
	hr__store_relaxed(&allocating, 0);
	return NULL;
}

static void read_lms(hr__allocator *each, const hr_stats *stats, void *context)
{
	hr_lms_stats lms = { .struct_size = sizeof lms };
	if (hr_lms_get_stats((hr_allocator){ each->id }, &lms)) return; /* it is being destroyed */
	*(int64_t *)context += lms.num_tensors + stats->num_live;
}

/* As the publishing thread does, all the time. */
static void test_statistics_can_be_read_while_contexts_of_tensors_end(void)
{
	pthread_t thread;
	hr_device device = fixture_device("SIM:0");
	int64_t seen = 0;
	hr__store_relaxed(&allocating, 1);
	CHECK_EQ(pthread_create(&thread, NULL, make_and_destroy_tensors, NULL), 0);
	while (hr__load_relaxed(&allocating)) {
		hr_stats stats;
		CHECK_STATUS(HR_OK, hr__stats_visit_device(device, &stats, read_lms, &seen));
	}
	pthread_join(thread, NULL);
	printf("# saw %lld tensors and blocks\n", (long long)seen);
	CHECK_STATUS(HR_OK, hr_shutdown());
}

static hr__atomic_u32 stopping_threads;

static void *stop_publishing(void *unused)
{
	(void)unused;
	hr__fetch_add_relaxed(&stopping_threads, 1);
	while (hr__load_acquire(&stopping_threads) % 2) {}
	hr__publish_stop();
	return NULL;
}

/* The end of the process may stop it while another thread is in hr_shutdown. */
static void test_two_threads_may_stop_publishing_at_once(void)
{
	use_folder();
	open_allocator();
	for (int i = 0; (uint64_t)i < hr_test_scaled(200); i++) {
		pthread_t threads[2];
		struct stat facts;
		CHECK_STATUS(HR_OK, hr__publish_start());
		for (int k = 0; k < 2; k++) CHECK_EQ(pthread_create(&threads[k], NULL, stop_publishing, NULL), 0);
		for (int k = 0; k < 2; k++) pthread_join(threads[k], NULL);
		CHECK(stat(own_path(), &facts) != 0);
	}
	CHECK_STATUS(HR_OK, hr_shutdown());
}

static void test_without_the_variable_nothing_is_shown(void)
{
	use_folder();
	unsetenv("HEADROOM_TOP");
	open_allocator();
	CHECK(access(own_path(), F_OK) != 0);
	setenv("HEADROOM_TOP", "0", 1);
	CHECK_STATUS(HR_OK, hr_shutdown());
	open_allocator();
	CHECK(access(own_path(), F_OK) != 0);
}

/* An operating system whose clock reads the segment like a reader: the publisher calls it in the middle of an update. */
static hr__os_table reading_os;
static pthread_t reading_not; /* the test's own thread */
static _Atomic(int) looked, shown;

static uint64_t read_and_tell_the_time(void)
{
	hr__segment s;
	char name[64];
	snprintf(name, sizeof name, HR__SEGMENT_PREFIX "%d", (int)getpid());
	if (!pthread_equal(pthread_self(), reading_not)) {
		atomic_fetch_add(&shown, hr__segment_read(folder_fd, name, (uint32_t)getpid(), &s));
		atomic_fetch_add(&looked, 1);
	}
	return hr__os_linux()->wall_clock_ns();
}

static void test_a_program_is_seen_however_long_its_looks_take(void)
{
	use_folder();
	reading_os = *hr__os_linux();
	reading_os.wall_clock_ns = read_and_tell_the_time;
	reading_not = pthread_self();
	hr__os_replace(&reading_os);
	CHECK_STATUS(HR_OK, hr__publish_start());
	for (int i = 0; i < 1000 && !atomic_load(&looked); i++) wait_a_while();
	hr__publish_stop();
	hr__os_replace(NULL);
	CHECK_GT(atomic_load(&looked), 0);
	CHECK_EQ(atomic_load(&shown), atomic_load(&looked));
}

static void test_a_file_of_an_earlier_process_is_replaced(void)
{
	use_folder();
	FILE *file = fopen(own_path(), "w");
	CHECK(file && fputs("old", file) >= 0 && fclose(file) == 0);
	CHECK_STATUS(HR_OK, hr__publish_start());
	CHECK_STATUS(HR_IN_USE, hr__publish_start());
	hr__segment s;
	CHECK(hr__segment_read(folder_fd, name_of(getpid()), (uint32_t)getpid(), &s));
	hr__publish_stop();
	hr__publish_stop();
	CHECK(access(own_path(), F_OK) != 0);
}

static void test_a_child_does_not_change_its_parents_file(void)
{
	int status;
	use_folder();
	CHECK_EQ(setenv("HEADROOM_TOP", "1", 1), 0);
	open_allocator();
	pid_t child = fork();
	if (child == 0) _exit(hr_shutdown() == HR_OK ? 0 : 1);
	CHECK_EQ(waitpid(child, &status, 0), child);
	CHECK_EQ(status, 0);
	CHECK(access(own_path(), F_OK) == 0);
	CHECK_STATUS(HR_OK, hr_shutdown());
	CHECK(access(own_path(), F_OK) != 0);
}

static void test_whatever_call_fails_nothing_is_left_behind(void)
{
	use_folder();
	hr_fault_os_install();
	for (uint64_t n = 1;; n++) {
		CHECK_LT(n, 100);
		hr_fault_os_fail_nth(n, false, ENOMEM);
		hr_status status = hr__publish_start();
		bool failed = hr_fault_os_calls() >= n;
		hr_fault_os_fail_nth(0, false, 0);
		hr__publish_stop();
		CHECK(access(own_path(), F_OK) != 0);
		CHECK_STATUS(HR_OK, hr_shutdown()); /* reading the statistics opened the devices */
		CHECK(hr_fault_os_is_clean());
		if (!failed) {
			CHECK_STATUS(HR_OK, status);
			break;
		}
	}
	hr_fault_os_uninstall();
	CHECK_EQ(setenv("XDG_RUNTIME_DIR", "/proc/nothing", 1), 0);
	CHECK_STATUS(HR_IO, hr__publish_start());
}

/* ---- the reader ---- */

static hr__segment good_segment(void)
{
	hr__segment s;
	CHECK_STATUS(HR_OK, hr__publish_start());
	CHECK(hr__segment_read(folder_fd, name_of(getpid()), (uint32_t)getpid(), &s));
	hr__publish_stop();
	return s;
}

static void put(const void *bytes, size_t size)
{
	FILE *file = fopen(own_path(), "wb");
	CHECK(file && fwrite(bytes, 1, size, file) == size && fclose(file) == 0);
}

static bool reads(hr__segment *out)
{
	return hr__segment_read(folder_fd, name_of(getpid()), (uint32_t)getpid(), out);
}

static void test_hostile_files_are_refused_or_sanitized(void)
{
	hr__segment out, s;
	use_folder();
	hr__segment good = good_segment();
	put(&good, sizeof good);
	CHECK(reads(&out));
	for (size_t size = 0; size < sizeof good; size += 37) {
		put(&good, size);
		CHECK(!reads(&out));
	}
	s = good;
	s.magic ^= 1;
	put(&s, sizeof s);
	CHECK(!reads(&out));
	s = good;
	s.version++;
	put(&s, sizeof s);
	CHECK(!reads(&out));
	s = good;
	s.bytes = UINT32_MAX;
	put(&s, sizeof s);
	CHECK(!reads(&out));
	s = good;
	s.process++;
	put(&s, sizeof s);
	CHECK(!reads(&out));
	s = good;
	s.device_count = HR__SEGMENT_DEVICES + 1;
	put(&s, sizeof s);
	CHECK(!reads(&out));
	s = good;
	s.device_count = UINT32_MAX;
	put(&s, sizeof s);
	CHECK(!reads(&out));
	s = good;
	s.allocator_count = HR__SEGMENT_ALLOCATORS + 1;
	put(&s, sizeof s);
	CHECK(!reads(&out));
	s = good;
	s.rank.number = s.rank.count = 3;
	put(&s, sizeof s);
	CHECK(!reads(&out));
	s = good;
	hr__store_relaxed(&s.sequence, 7); /* permanently in the middle of a write */
	put(&s, sizeof s);
	CHECK(!reads(&out));

	s = good;
	s.device_count = HR__SEGMENT_DEVICES;
	s.samples = UINT64_MAX;
	memset(s.program, 0x1B, sizeof s.program);
	memset(s.devices, 0xFF, sizeof s.devices);
	s.allocator_count = HR__SEGMENT_ALLOCATORS;
	memset(s.allocators, 0xFF, sizeof s.allocators);
	put(&s, sizeof s);
	CHECK(reads(&out));
	CHECK_EQ(strlen(out.program), sizeof out.program - 1);
	CHECK(!strchr(out.program, 0x1B));
	for (uint32_t i = 0; i < out.device_count; i++) {
		CHECK_LT(strlen(out.devices[i].name), sizeof out.devices[i].name);
		CHECK_GE(out.devices[i].bytes_in_use, 0);
		CHECK_GE(out.devices[i].samples[5], 0);
	}
	for (uint32_t i = 0; i < out.allocator_count; i++) {
		CHECK_LT(strlen(out.allocators[i].device), sizeof out.allocators[i].device);
		CHECK_GE(out.allocators[i].stall_ns, 0);
	}
	unlink(own_path());
	CHECK_EQ(symlink("/dev/zero", own_path()), 0);
	CHECK(!reads(&out));
	unlink(own_path());
	CHECK_EQ(mkfifo(own_path(), 0600), 0);
	CHECK(!reads(&out));
	unlink(own_path());
	CHECK_EQ(mkdir(own_path(), 0700), 0);
	CHECK(!reads(&out));
}

/* A process id that is not in use: that of a child that has ended and was waited for. */
static pid_t dead_process(void)
{
	pid_t child = fork();
	if (child == 0) _exit(0);
	CHECK_EQ(waitpid(child, NULL, 0), child);
	return child;
}

/* Files that are permanently being written, named after processes that do not exist or belong to other users. */
static void put_odd_files(unsigned count, uid_t owner)
{
	hr__segment s = good_segment();
	hr__store_relaxed(&s.sequence, 7);
	for (unsigned i = 0; i < count; i++) {
		char path[256];
		snprintf(path, sizeof path, "%s/%s", folder, name_of(i == 0 ? getpid() : (pid_t)(1000000000 + i)));
		FILE *file = fopen(path, "wb");
		CHECK(file && fwrite(&s, sizeof s, 1, file) == 1 && fclose(file) == 0);
		CHECK_EQ(chown(path, owner, (gid_t)-1), 0);
	}
}

static void test_odd_files_are_not_waited_for(void)
{
	static hr__segments all;
	use_folder();
	put_odd_files(300, geteuid());
	hr__segments_read(&all);
	CHECK_LE(all.pauses, 400);
	CHECK_EQ(all.count, 0);
	if (geteuid() != 0) return; /* files of other users need root */
	put_odd_files(2000, 65534);
	hr__segments_read(&all);
	CHECK_EQ(all.pauses, 0); /* none of them was read */
	CHECK_GE(all.odd, 1); /* the one that claims to be of this process */
}

static void test_files_of_the_dead_are_removed_and_those_of_the_living_kept(void)
{
	static hr__segments all;
	char path[256];
	use_folder();
	hr__segment s = good_segment();
	put(&s, sizeof s);
	hr__segment old = s;
	old.process = (uint32_t)dead_process();
	snprintf(path, sizeof path, "%s/%s", folder, name_of((pid_t)old.process));
	old.now_wall_ns = 1;
	FILE *file = fopen(path, "wb");
	CHECK(file && fwrite(&old, sizeof old, 1, file) == 1 && fclose(file) == 0);
	hr__segments_read(&all);
	CHECK_GE(all.removed, 1);
	CHECK(access(path, F_OK) != 0);
	CHECK(access(own_path(), F_OK) == 0);
	bool found = false;
	for (size_t i = 0; i < all.count; i++) found = found || all.list[i].process == (uint32_t)getpid();
	CHECK(found);

	/* A file whose process id is now another process's, and one written by an unknown process. */
	s.birth++;
	s.now_wall_ns = 1;
	put(&s, sizeof s);
	hr__segments_read(&all);
	CHECK(access(own_path(), F_OK) != 0);
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	old.now_wall_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
	file = fopen(path, "wb");
	CHECK(file && fwrite(&old, sizeof old, 1, file) == 1 && fclose(file) == 0);
	hr__segments_read(&all);
	CHECK(access(path, F_OK) == 0);
	for (size_t i = 0; i < all.count; i++) CHECK_NE(all.list[i].process, old.process);
}

static bool is_shown(uint32_t process)
{
	static hr__segments all;
	hr__segments_read(&all);
	for (size_t i = 0; i < all.count; i++)
		if (all.list[i].process == process) return true;
	return false;
}

/* Start time of process 1, which belongs to root. */
static uint64_t birth_of_first(void)
{
	char text[1024] = "";
	FILE *file = fopen("/proc/1/stat", "r");
	CHECK(file && fgets(text, sizeof text, file));
	fclose(file);
	const char *at = strrchr(text, ')');
	for (int field = 2; at && field < 22; field++) at = strchr(at + 1, ' ');
	CHECK(at != NULL);
	return strtoull(at + 1, NULL, 10);
}

static void test_a_process_publishes_only_its_own_statistics(void)
{
	use_folder();
	hr__segment s = good_segment();
	put(&s, sizeof s);
	CHECK(is_shown((uint32_t)getpid()));
	if (geteuid() == 0) {
		CHECK_EQ(chown(own_path(), 65534, 65534), 0);
		CHECK_EQ(chmod(own_path(), 0644), 0);
		CHECK(!is_shown((uint32_t)getpid()));
		CHECK(access(own_path(), F_OK) == 0); /* belongs to another user */
	} else {
		char path[256];
		s.process = 1;
		s.birth = birth_of_first();
		snprintf(path, sizeof path, "%s/%s", folder, name_of(1));
		FILE *file = fopen(path, "wb");
		CHECK(file && fwrite(&s, sizeof s, 1, file) == 1 && fclose(file) == 0);
		CHECK(!is_shown(1));
	}
}

TEST_MAIN(T(test_a_program_shows_what_it_uses_and_takes_it_away), T(test_a_rank_shows_its_job_and_each_allocator_what_it_evicts), T(test_a_device_shows_the_sum_of_its_allocators_while_a_thread_allocates),
          T(test_statistics_can_be_read_while_contexts_of_tensors_end), T(test_two_threads_may_stop_publishing_at_once), T(test_without_the_variable_nothing_is_shown),
          T(test_a_program_is_seen_however_long_its_looks_take), T(test_a_file_of_an_earlier_process_is_replaced), T(test_a_child_does_not_change_its_parents_file),
          T(test_whatever_call_fails_nothing_is_left_behind), T(test_hostile_files_are_refused_or_sanitized),
          T(test_odd_files_are_not_waited_for), T(test_files_of_the_dead_are_removed_and_those_of_the_living_kept), T(test_a_process_publishes_only_its_own_statistics))
