/* rank.c - see rank.h. */
#include "core/os/rank.h"

#include <stdio.h>
#include <string.h>

#include "core/base/status.h"
#include "core/base/text/settings.h"
#include "core/base/text/text.h"
#include "core/os/os.h"
#include "core/os/process.h"

static const char *setting(const char *value)
{
	return value ? value : "";
}

/* A decimal number below [limit], up to the character [end], after which *text points. */
static bool read_number(const char **text, char end, uint32_t limit, uint32_t *out)
{
	uint32_t value = 0;
	const char *at = *text;
	for (; *at >= '0' && *at <= '9' && value < limit; at++) value = 10 * value + (uint32_t)(*at - '0');
	if (at == *text || *at != end || value >= limit) return false;
	*text = at + (end != 0);
	*out = value;
	return true;
}

static bool read_rank(const char *number, const char *count, const char *local, hr__rank *out)
{
	number = setting(number);
	count = setting(count);
	local = setting(local);
	if (!read_number(&count, 0, HR__RANKS_MAX + 1, &out->count) || !out->count || !read_number(&number, 0, out->count, &out->number)) {
		*out = (hr__rank){ 0 };
		return false;
	}
	if (!read_number(&local, 0, HR__RANKS_MAX, &out->local)) out->local = HR__RANK_LOCAL_UNKNOWN;
	return true;
}

static void name_job(hr__rank *out, const char *launcher, const char *first, const char *second, const char *third)
{
	snprintf(out->job, sizeof out->job, "%s:%.40s:%.40s:%.40s", launcher, setting(first), setting(second), setting(third));
}

/* The processes of a job that has no name in the environment have one parent on each host: the launcher's agent. */
static void name_job_by_parent(hr__rank *out, const char *launcher)
{
	snprintf(out->job, sizeof out->job, "%s:parent-%u", launcher, hr__os_process_parent());
}

/* HEADROOM_RANK=NUMBER/COUNT */
static bool read_own(hr__rank *out)
{
	static const char variable[] = "HEADROOM_RANK";
	const char *text = hr__os()->environment(variable), *at = text;
	hr__last before = hr__last_get();
	if (!text || !text[0]) return false;
	if (read_number(&at, '/', HR__RANKS_MAX, &out->number) && read_number(&at, 0, HR__RANKS_MAX + 1, &out->count) && out->number < out->count) {
		out->local = HR__RANK_LOCAL_UNKNOWN;
		name_job_by_parent(out, "headroom");
		return true;
	}
	hr__fail(HR_INVALID_ARGUMENT, "\"%.40s\" is not a rank and a number of ranks such as 3/8; the first rank is 0", text);
	hr__setting_ignored(variable, &before);
	*out = (hr__rank){ 0 };
	return false;
}

static bool read_torchrun(hr__rank *out)
{
	const hr__os_table *os = hr__os();
	if (!read_rank(os->environment("RANK"), os->environment("WORLD_SIZE"), os->environment("LOCAL_RANK"), out)) return false;
	name_job(out, "torchrun", os->environment("MASTER_PORT"), os->environment("TORCHELASTIC_RUN_ID"), os->environment("MASTER_ADDR"));
	return true;
}

static bool read_openmpi(hr__rank *out)
{
	const hr__os_table *os = hr__os();
	const char *local = os->environment("OMPI_COMM_WORLD_LOCAL_RANK");
	if (!read_rank(os->environment("OMPI_COMM_WORLD_RANK"), os->environment("OMPI_COMM_WORLD_SIZE"), local, out)) return false;
	if (os->environment("PMIX_NAMESPACE")) name_job(out, "mpi", os->environment("PMIX_NAMESPACE"), NULL, NULL);
	else name_job_by_parent(out, "mpi");
	return true;
}

static bool read_pmi(hr__rank *out)
{
	const hr__os_table *os = hr__os();
	if (!read_rank(os->environment("PMI_RANK"), os->environment("PMI_SIZE"), os->environment("MPI_LOCALRANKID"), out)) return false;
	name_job_by_parent(out, "pmi");
	return true;
}

static bool read_slurm(hr__rank *out)
{
	const hr__os_table *os = hr__os();
	if (!read_rank(os->environment("SLURM_PROCID"), os->environment("SLURM_NTASKS"), os->environment("SLURM_LOCALID"), out)) return false;
	name_job(out, "slurm", os->environment("SLURM_JOB_ID"), os->environment("SLURM_STEP_ID"), NULL);
	return true;
}

static void read_host(hr__rank *out)
{
	int fd;
	uint64_t size;
	size_t length = 0;
	if (hr__os()->file_open("/proc/sys/kernel/hostname", &fd, &size)) return;
	if (hr__os()->file_read(fd, out->host, sizeof out->host - 1, 0, &length)) length = 0;
	hr__os()->file_close(fd);
	out->host[length] = 0;
	out->host[strcspn(out->host, "\n")] = 0;
}

void hr__rank_read(hr__rank *out)
{
	*out = (hr__rank){ 0 };
	if (!read_own(out) && !read_torchrun(out) && !read_openmpi(out) && !read_pmi(out) && !read_slurm(out)) return;
	read_host(out);
	hr__rank_check(out);
}

bool hr__rank_check(hr__rank *rank)
{
	hr__text_plain(rank->job, sizeof rank->job);
	hr__text_plain(rank->host, sizeof rank->host);
	if (!rank->count) return true;
	return rank->count <= HR__RANKS_MAX && rank->number < rank->count;
}

void hr__rank_text(const hr__rank *rank, char *out, size_t capacity)
{
	if (rank->count) snprintf(out, capacity, "%u", rank->number);
	else snprintf(out, capacity, "none");
}

void hr__rank_json(hr__json *json, const hr__rank *rank)
{
	if (!rank->count) return;
	hr__json_key(json, "rank");
	hr__json_object(json);
	hr__json_field_uint(json, "number", rank->number);
	hr__json_field_uint(json, "count", rank->count);
	if (rank->local != HR__RANK_LOCAL_UNKNOWN) hr__json_field_uint(json, "local", rank->local);
	hr__json_field_string(json, "host", rank->host);
	hr__json_field_string(json, "job", rank->job);
	hr__json_end_object(json);
}
