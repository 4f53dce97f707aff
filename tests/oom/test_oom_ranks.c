/* test_oom_ranks.c - an out-of-memory report has what the other ranks of the job published, and nothing else; files that anybody may write change nothing. */
#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <sys/wait.h>

#include "core/memory/oom/oom.h"
#include "core/os/os.h"
#include "core/os/process.h"
#include "core/record/publish.h"
#include "core/record/segment.h"
#include "fault_os.h"
#include "fixture.h"
#include "support_files.h"
#include "test.h"

#define MIB (UINT64_C(1) << 20)
#define SECOND UINT64_C(1000000000)

/* The clock stands still, so that files stay as old as the test says, also on a busy machine. */
static uint64_t frozen_ns;

static uint64_t frozen_clock(void)
{
	return frozen_ns;
}

static void freeze_clock(void)
{
	static hr__os_table table;
	if (frozen_ns) return;
	table = *hr__os_linux();
	frozen_ns = table.wall_clock_ns();
	table.wall_clock_ns = frozen_clock;
	(void)!hr__os_replace(&table);
}

static uint64_t birth_of(pid_t process)
{
	char path[64], line[1024];
	snprintf(path, sizeof path, "/proc/%d/stat", (int)process);
	FILE *file = fopen(path, "r");
	CHECK(file && fgets(line, sizeof line, file));
	fclose(file);
	char *at = strrchr(line, ')');
	for (int field = 2; field < 22; field++) at = strchr(at + 1, ' ');
	return strtoull(at, NULL, 10);
}

/* This process is rank 1 of a job of its own. */
static void be_a_rank(uint32_t count)
{
	char text[32];
	freeze_clock();
	snprintf(text, sizeof text, "1/%u", count);
	setenv("HEADROOM_RANK", text, 1);
	setenv("XDG_RUNTIME_DIR", folder_of_test(), 1);
}

/* What [process] would publish as [rank]: 3 MiB in use of 8 on GPU:0. */
static hr__segment segment_of(uint32_t process, uint32_t rank)
{
	hr__segment s = { .magic = HR__SEGMENT_MAGIC, .version = HR__SEGMENT_VERSION, .bytes = sizeof s, .process = process, .birth = 1, .device_count = 1 };
	hr__rank_read(&s.rank);
	s.rank.number = rank;
	s.now_wall_ns = hr__os()->wall_clock_ns();
	snprintf(s.devices[0].name, sizeof s.devices[0].name, "GPU:0");
	s.devices[0].bytes_in_use = 3 * MIB;
	s.devices[0].peak_bytes_in_use = 5 * MIB;
	s.devices[0].bytes_limit = 8 * MIB;
	return s;
}

static const char *path_of(uint32_t process)
{
	char name[64];
	snprintf(name, sizeof name, HR__SEGMENT_PREFIX "%u", process);
	return in_folder(name);
}

static void publish(uint32_t process, const hr__segment *s)
{
	FILE *file = fopen(path_of(process), "wb");
	CHECK(file && fwrite(s, 1, sizeof *s, file) == sizeof *s && fclose(file) == 0);
}

static hr_oom_report fail(void)
{
	hr_allocator_options options;
	hr_allocator allocator;
	hr_oom_report report = { 0 };
	void *block;
	hr_allocator_options_init(&options);
	options.oom.report_allocations_on_oom = true;
	CHECK_STATUS(HR_OK, hr_allocator_create(fixture_simulated(64 * MIB, 64 << 10), &options, &allocator));
	CHECK_STATUS(HR_OUT_OF_MEMORY, hr_alloc_bytes(allocator, 65 * MIB, &block));
	CHECK_CONTAINS(hr_last_message(), "cannot allocate 65.0 MiB");
	CHECK_STATUS(HR_OK, hr_oom_get_last(&report));
	return report;
}

/* The ranks in the report on a request that fails now. */
static hr__report_ranks ranks_now(void)
{
	const hr__report *report = hr__report_open(fail().id);
	CHECK(report != NULL);
	hr__report_ranks ranks = report->ranks;
	hr__report_close(report);
	CHECK_STATUS(HR_OK, hr_shutdown());
	return ranks;
}

static void test_a_report_has_what_the_other_ranks_published(void)
{
	static char text[1 << 16];
	be_a_rank(4);
	hr__segment s = segment_of(900003, 3);
	s.now_wall_ns -= SECOND / 4;
	publish(900003, &s);
	s = segment_of(900000, 0);
	s.device_count = 2;
	s.devices[1] = s.devices[0];
	snprintf(s.devices[1].name, sizeof s.devices[1].name, "GPU:1");
	s.devices[1].bytes_in_use = 4 * MIB;
	s.devices[1].bytes_limit = 0;
	publish(900000, &s);
	s = segment_of(900002, 2);
	s.device_count = 0;
	publish(900002, &s);

	hr_oom_report handle = fail();
	const hr__report *report = hr__report_open(handle.id);
	const hr__report_ranks *ranks = &report->ranks;
	CHECK_EQ(ranks->self.number, 1);
	CHECK_EQ(ranks->self.count, 4);
	CHECK_EQ(ranks->ranks, 3);
	CHECK_EQ(ranks->count, 4);
	CHECK_EQ(ranks->left_out, 0);
	CHECK_EQ(ranks->peers[0].rank, 0);
	CHECK_STR(ranks->peers[0].device, "GPU:1");
	CHECK_EQ(ranks->peers[0].in_use, 4 * MIB);
	CHECK_EQ(ranks->peers[0].limit, 0);
	CHECK_STR(ranks->peers[1].device, "GPU:0");
	CHECK_EQ(ranks->peers[2].rank, 2);
	CHECK_STR(ranks->peers[2].device, "");
	CHECK_EQ(ranks->peers[3].rank, 3);
	CHECK_EQ(ranks->peers[3].process, 900003);
	CHECK_EQ(ranks->peers[3].in_use, 3 * MIB);
	CHECK_EQ(ranks->peers[3].peak, 5 * MIB);
	CHECK_EQ(ranks->peers[3].limit, 8 * MIB);
	CHECK_EQ(ranks->peers[3].age_ns, SECOND / 4);
	hr__report_close(report);

	CHECK_LT(hr_oom_format_text(handle, text, sizeof text), sizeof text);
	CHECK_CONTAINS(text, "Other ranks of the job on this host; this is rank 1 of 4\n  rank 0: 4.0 MiB in use on GPU:1, 5.0 MiB at its peak; process 900000, ");
	CHECK_CONTAINS(text, "\n  rank 2: nothing yet; process 900002, ");
	CHECK_CONTAINS(text, "\n  rank 3: 3.0 MiB in use of 8.0 MiB on GPU:0, 5.0 MiB at its peak; process 900003, ");
	size_t length = hr_oom_format_ranks(handle, text, sizeof text);
	CHECK_LT(length, sizeof text);
	CHECK_EQ(strlen(text), length);
	CHECK_EQ(strncmp(text, "rank 0: 4.0 MiB in use on GPU:1, ", 33), 0);
	CHECK_CONTAINS(text, "\nrank 3: 3.0 MiB in use of 8.0 MiB on GPU:0, 5.0 MiB at its peak; process 900003, ");
	CHECK_LT(hr_oom_format_json(handle, text, sizeof text), sizeof text);
	CHECK_CONTAINS(text, "\"other_ranks\":[{\"rank\":0,\"process\":900000,\"device\":\"GPU:1\",\"in_use_bytes\":4194304,");
	CHECK_CONTAINS(text, "\"other_ranks_left_out\":0,");
	CHECK_STATUS(HR_OK, hr_shutdown());
}

static void test_a_process_that_is_alone_has_no_ranks(void)
{
	static char text[1 << 16];
	be_a_rank(2);
	hr__segment s = segment_of(900000, 0);
	publish(900000, &s);
	unsetenv("HEADROOM_RANK");
	hr_oom_report handle = fail();
	CHECK_LT(hr_oom_format_json(handle, text, sizeof text), sizeof text);
	CHECK(strstr(text, "ranks") == NULL);
	CHECK_EQ(hr_oom_format_ranks(handle, text, sizeof text), 0);
	CHECK_STR(text, "");
	CHECK_STATUS(HR_OK, hr_shutdown());

	be_a_rank(2);
	remove(path_of(900000));
	handle = fail();
	CHECK_LT(hr_oom_format_text(handle, text, sizeof text), sizeof text);
	CHECK_CONTAINS(text, "this is rank 1 of 2\n  none publishes statistics, as with headroom run or HEADROOM_TOP=1\n");
	CHECK_STATUS(HR_OK, hr_shutdown());
}

/* Each of these is left out, alone and beside a good one. */
static void test_only_living_ranks_of_this_job_count(void)
{
	be_a_rank(4);
	uint32_t self = (uint32_t)getpid();
	hr__segment good = segment_of(900000, 0), s = good;
	publish(900000, &good);
#define LEFT_OUT(change)           \
	do {                                     \
		s = segment_of(900002, 2);           \
		change;                              \
		publish(900002, &s);                 \
		CHECK_EQ(ranks_now().ranks, 1);      \
	} while (0)
	LEFT_OUT(snprintf(s.rank.job, sizeof s.rank.job, "another"));
	LEFT_OUT(snprintf(s.rank.host, sizeof s.rank.host, "another"));
	LEFT_OUT(s.rank.count = 5);
	LEFT_OUT(s.rank.count = 0);
	LEFT_OUT(s.rank.number = 1);
	LEFT_OUT(s.rank.number = 4);
	LEFT_OUT(s.now_wall_ns -= 3 * SECOND); /* and there is no such process */
	LEFT_OUT(s.now_wall_ns += 3600 * SECOND);
	LEFT_OUT(hr__store_relaxed(&s.sequence, 1)); /* its writer was killed in the middle */
	LEFT_OUT(s.process = 900000);
	LEFT_OUT(s.version++);
	LEFT_OUT(s.bytes--);
	LEFT_OUT(s.magic++);
	LEFT_OUT(s.device_count = HR__SEGMENT_DEVICES + 1);
	LEFT_OUT(s.allocator_count = UINT32_MAX);
#undef LEFT_OUT

	/* A process that is stopped is alive, however old its statistics are. */
	pid_t child = fork();
	if (child == 0) {
		for (;;) pause();
	}
	remove(path_of(900002));
	s = segment_of((uint32_t)child, 2);
	s.now_wall_ns -= 60 * SECOND;
	s.birth = 1;
	publish((uint32_t)child, &s);
	CHECK_EQ(ranks_now().ranks, 1); /* a later process of the same id */
	s.birth = birth_of(child);
	CHECK(hr__os_process_lives((uint32_t)child, s.birth));
	publish((uint32_t)child, &s);
	publish(self, &s); /* this process's own file is not read */
	hr__report_ranks ranks = ranks_now();
	CHECK_EQ(ranks.ranks, 2);
	CHECK_EQ(ranks.peers[1].process, (uint32_t)child);
	CHECK_EQ(ranks.peers[1].age_ns, 60 * SECOND);
	kill(child, SIGKILL);
	siginfo_t info;
	CHECK_EQ(waitid(P_PID, (id_t)child, &info, WEXITED | WNOWAIT), 0);
	CHECK(!hr__os_process_lives((uint32_t)child, s.birth)); /* a zombie */
	CHECK_EQ(waitpid(child, NULL, 0), child);
	CHECK_EQ(ranks_now().ranks, 1);
}

static void test_files_that_are_not_segments_are_passed_over(void)
{
	be_a_rank(4);
	hr__segment s = segment_of(900000, 0);
	/* Fifos and folders are not opened for reading, short files not read, links to nothing not followed. */
	CHECK_EQ(mkfifo(path_of(900010), 0600), 0);
	CHECK_EQ(mkdir(path_of(900011), 0700), 0);
	CHECK_EQ(symlink("/nowhere", path_of(900012)), 0);
	CHECK_EQ(symlink("/dev/zero", path_of(900013)), 0);
	fclose(fopen(path_of(900014), "w"));
	FILE *file = fopen(path_of(900015), "w");
	CHECK_EQ(fwrite(&s, 1, sizeof s - 1, file), sizeof s - 1);
	fclose(file);
	fclose(fopen(in_folder(HR__SEGMENT_PREFIX "12x"), "w"));
	fclose(fopen(in_folder(HR__SEGMENT_PREFIX "0"), "w"));
	/* Names and numbers are made harmless. */
	memset(s.devices[0].name, 0x1b, sizeof s.devices[0].name);
	s.devices[0].bytes_in_use = -1;
	publish(900000, &s);
	if (geteuid() == 0) { /* a file of another user */
		hr__segment other = segment_of(900002, 2);
		publish(900002, &other);
		CHECK_EQ(chown(path_of(900002), 1, 1), 0);
	}
	hr__report_ranks ranks = ranks_now();
	CHECK_EQ(ranks.ranks, 1);
	CHECK_EQ(ranks.peers[0].in_use, 0);
	CHECK_STR(ranks.peers[0].device, "???????????????????????????????");

	setenv("XDG_RUNTIME_DIR", in_folder("no such folder"), 1);
	CHECK_EQ(ranks_now().count, 0);
	setenv("XDG_RUNTIME_DIR", path_of(900014), 1);
	CHECK_EQ(ranks_now().count, 0);
}

static void test_of_many_ranks_those_with_most_are_kept(void)
{
	be_a_rank(100);
	for (uint32_t rank = 0; rank < 100; rank++) {
		if (rank == 1) continue;
		hr__segment s = segment_of(900000 + rank, rank);
		s.devices[0].bytes_in_use = (int64_t)((rank * 37 % 100) * MIB);
		publish(900000 + rank, &s);
	}
	hr__report_ranks ranks = ranks_now();
	CHECK_EQ(ranks.ranks, 99);
	CHECK_EQ(ranks.count, HR__REPORT_PEERS);
	CHECK_EQ(ranks.left_out, 99 - HR__REPORT_PEERS);
	for (uint32_t i = 0; i < ranks.count; i++) {
		CHECK_GE(ranks.peers[i].in_use, (100 - HR__REPORT_PEERS) * MIB); /* 37 * 1, of this rank, is not among the most */
		if (i) CHECK_GT(ranks.peers[i].rank, ranks.peers[i - 1].rank);
	}
	/* More files than are read: the rest is left out. */
	be_a_rank(3000);
	for (uint32_t rank = 2; rank < 1300; rank++) {
		hr__segment s = segment_of(900000 + rank, rank);
		publish(900000 + rank, &s);
	}
	ranks = ranks_now();
	CHECK_LE(ranks.ranks, 1024);
	CHECK_GE(ranks.ranks, 1000); /* /dev/shm may have files of other programs */
}

/* The process's own file is there too, and it is not a peer; nothing is allocated, whatever fails. */
static void test_a_report_needs_no_memory_for_the_ranks_and_no_call_to_succeed(void)
{
	be_a_rank(4);
	for (uint64_t nth = 0; nth <= 40; nth++) {
		hr__segment s = segment_of((uint32_t)getppid(), 0);
		s.birth = birth_of(getppid());
		publish((uint32_t)getppid(), &s);
		hr_fault_os_install();
		struct hr_fault_os_live before, after;
		hr_allocator_options options;
		hr_allocator allocator;
		hr_oom_report handle;
		void *block;
		hr_allocator_options_init(&options);
		options.oom.report_allocations_on_oom = true;
		CHECK_STATUS(HR_OK, hr_allocator_create(fixture_simulated(64 * MIB, 64 << 10), &options, &allocator));
		CHECK_STATUS(HR_OUT_OF_MEMORY, hr_alloc_bytes(allocator, 65 * MIB, &block)); /* the log's clock is calibrated once */
		CHECK_STATUS(HR_OK, hr__publish_start()); /* not earlier: it looks at devices, which are then configured */
		hr_fault_os_live(&before);
		hr_fault_os_fail_nth(nth, nth % 2, EIO);
		CHECK_STATUS(HR_OUT_OF_MEMORY, hr_alloc_bytes(allocator, 65 * MIB, &block));
		hr_fault_os_fail_nth(0, false, 0);
		hr_fault_os_live(&after);
		CHECK_CONTAINS(hr_last_message(), "cannot allocate 65.0 MiB");
		CHECK_EQ(after.alloc_bytes, before.alloc_bytes);
		CHECK_EQ(after.fds, before.fds);
		CHECK_STATUS(HR_OK, hr_oom_get_last(&handle));
		const hr__report *report = hr__report_open(handle.id);
		CHECK_LE(report->ranks.ranks, 1);
		if (!nth) CHECK_EQ(report->ranks.ranks, 1);
		hr__report_close(report);
		hr__publish_stop();
		CHECK_STATUS(HR_OK, hr_shutdown());
		CHECK(hr_fault_os_is_clean());
		hr_fault_os_uninstall();
	}
}

TEST_MAIN(T(test_a_report_has_what_the_other_ranks_published), T(test_a_process_that_is_alone_has_no_ranks), T(test_only_living_ranks_of_this_job_count),
          T(test_files_that_are_not_segments_are_passed_over), T(test_of_many_ranks_those_with_most_are_kept),
          T(test_a_report_needs_no_memory_for_the_ranks_and_no_call_to_succeed))
