/* test_rank.c - the rank of a process, as each launcher says it; names of recorded files in a job; the rank in a trace. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "analysis/reader/reader.h"
#include "core/os/rank.h"
#include "core/record/profiler.h"
#include "fixture.h"
#include "support_files.h"
#include "test.h"

static const char *const variables[] = { "HEADROOM_RANK", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID",
	                                     "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "PMIX_NAMESPACE", "PMI_RANK", "PMI_SIZE",
	                                     "MPI_LOCALRANKID", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_JOB_ID", "SLURM_STEP_ID" };

static void clear(void)
{
	for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) unsetenv(variables[i]);
}

/* Sets variables from "A=1 B=2", and returns the rank. */
static hr__rank rank_with(const char *settings)
{
	char text[256];
	hr__rank rank;
	clear();
	snprintf(text, sizeof text, "%s", settings);
	for (char *rest = text, *word; (word = strtok_r(rest, " ", &rest)) != NULL;) {
		char *value = strchr(word, '=');
		CHECK(value != NULL);
		*value = 0;
		CHECK_EQ(setenv(word, value + 1, 1), 0);
	}
	memset(&rank, 0xFF, sizeof rank);
	hr__rank_read(&rank);
	return rank;
}

static void test_every_launcher_says_the_rank(void)
{
	char parent[64], host[64] = "";
	static const struct {
		const char *settings;
		uint32_t number, count, local;
		const char *job;
	} cases[] = {
		{ "RANK=3 WORLD_SIZE=8 LOCAL_RANK=1 MASTER_ADDR=a MASTER_PORT=29500 TORCHELASTIC_RUN_ID=x", 3, 8, 1, "torchrun:29500:x:a" },
		{ "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1 PMIX_NAMESPACE=ns@1", 1, 2, 1, "mpi:ns@1::" },
		{ "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2", 1, 2, HR__RANK_LOCAL_UNKNOWN, "mpi:parent" },
		{ "PMI_RANK=0 PMI_SIZE=4 MPI_LOCALRANKID=0", 0, 4, 0, "pmi:parent" },
		{ "SLURM_PROCID=5 SLURM_NTASKS=6 SLURM_LOCALID=2 SLURM_JOB_ID=77 SLURM_STEP_ID=0", 5, 6, 2, "slurm:77:0:" },
		{ "HEADROOM_RANK=1048575/1048576", 1048575, 1048576, HR__RANK_LOCAL_UNKNOWN, "headroom:parent" },
		/* the innermost launcher decides */
		{ "SLURM_PROCID=0 SLURM_NTASKS=2 RANK=7 WORLD_SIZE=8 LOCAL_RANK=7", 7, 8, 7, "torchrun:::" },
		{ "SLURM_PROCID=0 SLURM_NTASKS=2 PMI_RANK=1 PMI_SIZE=2", 1, 2, HR__RANK_LOCAL_UNKNOWN, "pmi:parent" },
		{ "RANK=7 WORLD_SIZE=8 HEADROOM_RANK=0/1", 0, 1, HR__RANK_LOCAL_UNKNOWN, "headroom:parent" },
	};
	gethostname(host, sizeof host - 1);
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		printf("# %s\n", cases[i].settings);
		hr__rank rank = rank_with(cases[i].settings);
		CHECK_EQ(rank.count, cases[i].count);
		CHECK_EQ(rank.number, cases[i].number);
		CHECK_EQ(rank.local, cases[i].local);
		snprintf(parent, sizeof parent, "%s-%d", cases[i].job, (int)getppid());
		CHECK_STR(rank.job, strstr(cases[i].job, "parent") ? parent : cases[i].job);
		CHECK(strncmp(rank.host, host, sizeof rank.host - 1) == 0);
	}
	clear();
}

static void test_other_variables_are_no_rank(void)
{
	static const char *const settings[] = { "X=1",
		                                    "RANK=3",
		                                    "WORLD_SIZE=8",
		                                    "RANK=8 WORLD_SIZE=8",
		                                    "RANK=-1 WORLD_SIZE=8",
		                                    "RANK=1x WORLD_SIZE=8",
		                                    "RANK=x WORLD_SIZE=8",
		                                    "RANK=0 WORLD_SIZE=0",
		                                    "RANK=4294967296 WORLD_SIZE=4294967297",
		                                    "RANK=0 WORLD_SIZE=1048577",
		                                    "HEADROOM_RANK=8/8",
		                                    "HEADROOM_RANK=1",
		                                    "HEADROOM_RANK=1/2/3",
		                                    "HEADROOM_RANK=/" };
	for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
		printf("# %s\n", settings[i]);
		hr__rank rank = rank_with(settings[i]), none = { 0 };
		CHECK(memcmp(&rank, &none, sizeof rank) == 0);
	}
	clear();
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_environment_check());
	CHECK_CONTAINS(hr_last_message(), "HEADROOM_RANK is ignored: \"8/8\" is not a rank and a number of ranks such as 3/8");
}

static void test_a_long_job_is_cut_and_stays_text(void)
{
	setenv("MASTER_ADDR", "\033[31mred", 1);
	hr__rank rank;
	rank = rank_with("RANK=0 WORLD_SIZE=1 TORCHELASTIC_RUN_ID=aaaaaaaaaabbbbbbbbbbccccccccccddddddddddeeeeeeeeeeffffffffffgggggggggg MASTER_PORT=1");
	CHECK_LT(strlen(rank.job), sizeof rank.job);
	setenv("MASTER_ADDR", "\033[31mred", 1);
	hr__rank_read(&rank);
	CHECK(!strchr(rank.job, '\033'));
	clear();
}

/* ---- names of files ---- */

static const char *name_with(const char *settings, const char *pattern)
{
	static char path[4096];
	rank_with(settings);
	CHECK_STATUS(HR_OK, hr__profiler_file_name(pattern, path, sizeof path));
	return path;
}

static void test_ranks_have_files_of_their_own(void)
{
	char process[64];
	snprintf(process, sizeof process, "t%d.hrt", (int)getpid());
	CHECK_STR(name_with("RANK=3 WORLD_SIZE=8", "t.hrt"), "t-rank3.hrt");
	CHECK_STR(name_with("RANK=3 WORLD_SIZE=8", "a.b/t"), "a.b/t-rank3");
	CHECK_STR(name_with("RANK=3 WORLD_SIZE=8", "a/.t"), "a/.t-rank3");
	CHECK_STR(name_with("RANK=3 WORLD_SIZE=8", "t%%-%n.hrt"), "t%-1-rank3.hrt");
	CHECK_STR(name_with("RANK=3 WORLD_SIZE=8", "%r/t%r.hrt"), "3/t3.hrt");
	CHECK_STR(name_with("RANK=3 WORLD_SIZE=8", "t%p.hrt"), process);
	CHECK_STR(name_with("RANK=0 WORLD_SIZE=1", "t.hrt"), "t.hrt"); /* a job of one process */
	CHECK_STR(name_with("X=0", "t.hrt"), "t.hrt");
	CHECK_STR(name_with("X=0", "t-%r.hrt"), "t-none.hrt");
	char path[256];
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr__profiler_file_name("t%q", path, sizeof path));
	CHECK_CONTAINS(hr_last_message(), "after % there is p, r, n or %");
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr__profiler_file_name("t%", path, sizeof path));
	CHECK_STATUS(HR_IO, hr__profiler_file_name("t", path, 64)); /* no room for what follows */
	clear();
}

/* ---- traces ---- */

static void test_a_trace_has_the_rank_of_its_process(void)
{
	hr__trace_reader *reader;
	const char *path = in_folder("t.hrt");
	rank_with("RANK=3 WORLD_SIZE=8 LOCAL_RANK=1 MASTER_PORT=29500");
	CHECK_STATUS(HR_OK, hr__trace_open(path));
	CHECK_STATUS(HR_OK, hr__trace_close());
	CHECK_STATUS(HR_OK, hr__trace_reader_open(path, &reader));
	const hr__trace_summary *summary = hr__trace_reader_summary(reader);
	CHECK_EQ(summary->rank.number, 3);
	CHECK_EQ(summary->rank.count, 8);
	CHECK_EQ(summary->rank.local, 1);
	CHECK_STR(summary->rank.job, "torchrun:29500::");
	CHECK_EQ(summary->process, getpid());
	hr__trace_reader_close(reader);
	clear();
}

static void put_u32(const char *path, long at, uint32_t value)
{
	FILE *file = fopen(path, "r+b");
	CHECK(file && fseek(file, at, SEEK_SET) == 0 && fwrite(&value, sizeof value, 1, file) == 1 && fclose(file) == 0);
}

static void test_a_damaged_rank_is_refused_and_an_older_file_has_none(void)
{
	hr__trace_reader *reader;
	const char *path = in_folder("t.hrt");
	rank_with("RANK=3 WORLD_SIZE=8");
	CHECK_STATUS(HR_OK, hr__trace_open(path));
	CHECK_STATUS(HR_OK, hr__trace_close());
	put_u32(path, 132, 8); /* rank 8 of 8 */
	CHECK_STATUS(HR_BAD_FORMAT, hr__trace_reader_open(path, &reader));
	CHECK_CONTAINS(hr_last_message(), "byte 128: the rank is not one of the job's ranks");
	put_u32(path, 8, 1 | 2 << 16); /* version 1.2: these bytes have no meaning */
	CHECK_STATUS(HR_OK, hr__trace_reader_open(path, &reader));
	CHECK_EQ(hr__trace_reader_summary(reader)->rank.count, 0);
	hr__trace_reader_close(reader);
	clear();
}

TEST_MAIN(T(test_every_launcher_says_the_rank), T(test_other_variables_are_no_rank), T(test_a_long_job_is_cut_and_stays_text), T(test_ranks_have_files_of_their_own),
          T(test_a_trace_has_the_rank_of_its_process), T(test_a_damaged_rank_is_refused_and_an_older_file_has_none))
