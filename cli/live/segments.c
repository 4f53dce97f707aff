/* segments.c - see segments.h.
 *
 * All users can write to /dev/shm, so a file may be anything: a link, a pipe, too short, too long, forged, changing. Files are
 * opened without following links or blocking, read and never mapped, and every number is checked before use. To prevent forged
 * statistics of another user's process, a file counts only if it is owned by the user of the process. */
#define _GNU_SOURCE
#include "live/segments.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "core/base/text/text.h"

#define ATTEMPTS 20
#define PAUSE_NS 500000 /* between attempts; a program writes for less than a microsecond */
#define PAUSES_MAX 400  /* for all files together: 0.2 s, however many files never stop changing */
/* A process that is not visible here may run in a container: it counts as dead if its file was not written for this long. */
#define QUIET_NS 2000000000ull

static uint64_t wall_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* ---- one file ---- */

static bool read_all(int fd, hr__segment *out)
{
	ssize_t count = pread(fd, out, sizeof *out, 0);
	return count == (ssize_t)sizeof *out;
}

static bool read_sequence(int fd, uint64_t *out)
{
	return pread(fd, out, sizeof *out, offsetof(hr__segment, sequence)) == (ssize_t)sizeof *out;
}

/* Reads a consistent copy: the sequence number is even and the same before and after. */
static bool read_quiet(int fd, hr__segment *out, uint32_t *pauses)
{
	for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
		uint64_t before, after;
		if (attempt) {
			if (*pauses == PAUSES_MAX) return false;
			++*pauses;
			nanosleep(&(struct timespec){ .tv_nsec = PAUSE_NS }, NULL);
		}
		if (!read_sequence(fd, &before) || !read_all(fd, out) || !read_sequence(fd, &after)) return false;
		if (before == after && (before & 1) == 0) return true;
	}
	return false;
}

static bool read_file(int folder, const char *name, uint32_t process, hr__segment *out, uid_t *owner, uint32_t *pauses)
{
	struct stat facts;
	int fd = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
	if (fd < 0) return false;
	bool good = fstat(fd, &facts) == 0 && S_ISREG(facts.st_mode) && read_quiet(fd, out, pauses) && hr__segment_check(out, process);
	close(fd);
	if (good) *owner = facts.st_uid;
	return good;
}

bool hr__segment_read(int folder, const char *name, uint32_t process, hr__segment *out)
{
	uint32_t pauses = 0;
	uid_t owner;
	return read_file(folder, name, process, out, &owner, &pauses);
}

/* ---- liveness ---- */

/* Start time of [process]; 0 if it does not exist. */
static uint64_t birth_of(uint32_t process)
{
	char path[64], text[1024];
	snprintf(path, sizeof path, "/proc/%u/stat", process);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0) return 0;
	ssize_t length = read(fd, text, sizeof text - 1);
	close(fd);
	text[length > 0 ? length : 0] = 0;
	const char *at = strrchr(text, ')');
	if (at && at[1] && (at[2] == 'Z' || at[2] == 'X')) return 0; /* a zombie, or dead */
	for (int field = 2; at && field < 22; field++) at = strchr(at + 1, ' ');
	return at ? strtoull(at + 1, NULL, 10) : 0;
}

/* Whether [process] creates files as [user]. The owner of /proc/PID is not used, because it is root for processes that may not be
 * inspected. */
static bool is_owner(uint32_t process, uid_t user)
{
	char path[64], line[256];
	unsigned long long id = UINT64_MAX;
	snprintf(path, sizeof path, "/proc/%u/status", process);
	FILE *file = fopen(path, "re");
	if (!file) return false;
	while (fgets(line, sizeof line, file))
		if (sscanf(line, "Uid: %*u %*u %*u %llu", &id) == 1) break;
	fclose(file);
	return id == user;
}

/* Removes a file of this user whose process is dead. */
static bool remove_dead(int folder, const char *name, const hr__segment *s)
{
	struct stat facts;
	uint64_t now = wall_ns();
	if (s && s->now_wall_ns <= now && now - s->now_wall_ns < QUIET_NS) return false;
	if (fstatat(folder, name, &facts, AT_SYMLINK_NOFOLLOW) || !S_ISREG(facts.st_mode) || facts.st_uid != geteuid()) return false;
	return unlinkat(folder, name, 0) == 0;
}

/* ---- all files ---- */

static void add_file(int folder, const char *name, hr__segments *out)
{
	uint32_t process = hr__segment_process(name);
	struct stat facts;
	if (!process || out->count == HR__SEGMENTS_MAX || fstatat(folder, name, &facts, AT_SYMLINK_NOFOLLOW)) return;
	uint64_t birth = birth_of(process);
	/* Check the owner before reading: files of other users are ignored, and there may be many. */
	if (birth ? !is_owner(process, facts.st_uid) : facts.st_uid != geteuid()) {
		out->odd += birth != 0;
		return;
	}
	hr__segment *s = &out->list[out->count];
	uid_t owner = 0;
	bool good = read_file(folder, name, process, s, &owner, &out->pauses) && owner == facts.st_uid;
	bool alive = birth && (!good || s->birth == birth);
	if (alive && good) out->count++;
	else if (!alive && remove_dead(folder, name, good ? s : NULL)) out->removed++;
	else out->odd += alive || !good;
}

static void add_folder(const char *path, hr__segments *out)
{
	DIR *folder = opendir(path);
	if (!folder) return;
	for (struct dirent *entry = readdir(folder); entry; entry = readdir(folder)) add_file(dirfd(folder), entry->d_name, out);
	closedir(folder);
}

static int by_process(const void *a, const void *b)
{
	uint32_t one = ((const hr__segment *)a)->process, other = ((const hr__segment *)b)->process;
	return (one > other) - (one < other);
}

void hr__segments_read(hr__segments *out)
{
	const char *folder = getenv("XDG_RUNTIME_DIR");
	out->pauses = 0;
	out->count = out->removed = out->odd = 0;
	if (folder && folder[0] && strcmp(folder, "/dev/shm") != 0) add_folder(folder, out);
	add_folder("/dev/shm", out);
	qsort(out->list, out->count, sizeof *out->list, by_process);
}
