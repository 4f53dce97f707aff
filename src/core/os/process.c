/* process.c - see process.h. */
#define _GNU_SOURCE
#include "core/os/process.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdalign.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/os/os.h"

#define PATH_BYTES 4096

static int make_one(const char *path)
{
	struct stat facts;
	if (mkdir(path, 0700) == 0) return 0;
	int error = errno;
	/* It exists already, or mkdir gives another error first, as on a read-only file system. */
	if (stat(path, &facts) != 0) return error;
	return S_ISDIR(facts.st_mode) ? 0 : ENOTDIR;
}

int hr__os_make_directories(const char *path)
{
	char part[PATH_BYTES];
	size_t length = strlen(path);
	if (length >= sizeof part) return ENAMETOOLONG;
	memcpy(part, path, length + 1);
	for (size_t i = 1; i < length; i++) {
		if (part[i] != '/') continue;
		part[i] = 0;
		int error = make_one(part);
		if (error) return error;
		part[i] = '/';
	}
	return make_one(part);
}

bool hr__os_folder_any(const char *path, bool (*look)(void *context, const char *name), void *context)
{
	/* Not opendir, which allocates: an out-of-memory report looks for other processes. */
	alignas(struct dirent64) char entries[4096];
	bool found = false;
	int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (folder < 0) return false;
	for (ssize_t length = 1; length > 0 && !found;) {
		length = getdents64(folder, entries, sizeof entries);
		for (ssize_t at = 0; at < length && !found;) {
			const struct dirent64 *entry = (const struct dirent64 *)(entries + at);
			found = look(context, entry->d_name);
			at += entry->d_reclen;
		}
	}
	close(folder);
	return found;
}

int hr__os_at_exit(void (*run)(void))
{
	return atexit(run) == 0 ? 0 : ENOMEM;
}

/* A numeric field of a process's file "stat", counted from 1; 0 when unknown, and for a process that has ended. The second field, the
 * name of the program, can contain any character, but ends at the last ')'. */
static uint64_t read_stat(const char *path, int number)
{
	char text[1024];
	int fd;
	uint64_t size;
	size_t length = 0;
	if (hr__os()->file_open(path, &fd, &size)) return 0;
	int error = hr__os()->file_read(fd, text, sizeof text - 1, 0, &length);
	hr__os()->file_close(fd);
	text[error ? 0 : length] = 0;
	const char *at = strrchr(text, ')');
	if (at && at[1] && (at[2] == 'Z' || at[2] == 'X')) return 0; /* a zombie, or dead */
	for (int field = 2; at && field < number; field++) at = strchr(at + 1, ' ');
	return at ? strtoull(at + 1, NULL, 10) : 0;
}

uint64_t hr__os_process_birth(void)
{
	return read_stat("/proc/self/stat", 22);
}

uint32_t hr__os_process_parent(void)
{
	return (uint32_t)read_stat("/proc/self/stat", 4);
}

bool hr__os_process_lives(uint32_t process, uint64_t birth)
{
	char path[32];
	snprintf(path, sizeof path, "/proc/%u/stat", process);
	return birth && read_stat(path, 22) == birth;
}

bool hr__os_file_is_own(int fd)
{
	struct stat facts;
	return fstat(fd, &facts) == 0 && facts.st_uid == geteuid();
}
