/* linux_file.c - files: created safely, read and written completely, extended with allocated disk space.
 *
 * Growing a file beyond the process's limit (ulimit -f) raises SIGXFSZ, which kills by default. A memory profiler must not kill the
 * program that it profiles. So SIGXFSZ is blocked around every call that can grow a file and discarded if the call raised it; the
 * caller gets EFBIG. SIGPIPE (EPIPE) is handled the same way in writes to the standard error and to sinks. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "core/base/assert.h"
#include "core/base/checked.h"
#include "core/os/guard.h"
#include "core/os/linux.h"

#define IO_MAX ((size_t)1 << 30) /* one system call transfers at most 2 GiB less a page */

/* ---- signals that a call may raise ---- */

struct blocked_signal {
	int signal_number, error; /* the signal that the call can raise, and the error that the call then returns */
	sigset_t mask_before;
	bool pending_before; /* a signal that the program itself had blocked and pending must stay pending */
};

static bool is_pending(int signal_number)
{
	sigset_t pending;
	return sigpending(&pending) == 0 && sigismember(&pending, signal_number) == 1;
}

static void block_signal(struct blocked_signal *held, int signal_number, int error)
{
	sigset_t one;
	held->signal_number = signal_number;
	held->error = error;
	sigemptyset(&one);
	sigaddset(&one, signal_number);
	held->pending_before = is_pending(signal_number);
	pthread_sigmask(SIG_BLOCK, &one, &held->mask_before);
}

static void restore_signal(const struct blocked_signal *held, int error)
{
	if (error == held->error && !held->pending_before && is_pending(held->signal_number)) {
		sigset_t one;
		struct timespec at_once = { 0 };
		sigemptyset(&one);
		sigaddset(&one, held->signal_number);
		while (sigtimedwait(&one, NULL, &at_once) < 0 && errno == EINTR) continue;
	}
	pthread_sigmask(SIG_SETMASK, &held->mask_before, NULL);
}

/* ---- opening ---- */

static int open_file(const char *path, int flags, int *out_fd)
{
	int fd;
	do {
		fd = open(path, flags | O_CLOEXEC | O_NOCTTY, 0600);
	} while (fd < 0 && errno == EINTR);
	if (fd < 0) return errno;
	*out_fd = fd;
	return 0;
}

int hr__linux_file_create(const char *path, int *out_fd)
{
	return open_file(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, out_fd);
}

static int kind_error(mode_t mode)
{
	if (S_ISREG(mode)) return 0;
	return S_ISDIR(mode) ? EISDIR : EINVAL;
}

int hr__linux_file_open(const char *path, int *out_fd, uint64_t *out_size)
{
	int fd = -1;
	struct stat facts;
	/* Without O_NONBLOCK, opening a FIFO would wait for its other end. */
	int error = open_file(path, O_RDONLY | O_NONBLOCK, &fd);
	if (error != 0) return error;
	error = fstat(fd, &facts) != 0 ? errno : kind_error(facts.st_mode);
	if (error != 0) {
		hr__linux_file_close(fd);
		return error;
	}
	*out_fd = fd;
	*out_size = (uint64_t)facts.st_size;
	return 0;
}

int hr__linux_input_open(const char *path, int *out_fd, uint64_t *out_size)
{
	int fd = -1;
	struct stat facts;
	int error = open_file(path, O_RDONLY, &fd);
	if (error != 0) return error;
	error = fstat(fd, &facts) != 0 ? errno : S_ISDIR(facts.st_mode) ? EISDIR : 0;
	if (error != 0) {
		hr__linux_file_close(fd);
		return error;
	}
	*out_fd = fd;
	*out_size = S_ISREG(facts.st_mode) ? (uint64_t)facts.st_size : 0;
	return 0;
}

int hr__linux_input_read(int fd, void *to, size_t bytes, size_t *out_read)
{
	ssize_t count;
	do {
		count = read(fd, to, bytes < IO_MAX ? bytes : IO_MAX);
	} while (count < 0 && errno == EINTR);
	if (count < 0) return errno;
	*out_read = (size_t)count;
	return 0;
}

void hr__linux_file_close(int fd)
{
	/* Linux closes the file even if close returns EINTR; a retry could close a file that another thread has opened. */
	close(fd);
}

int hr__linux_file_remove(const char *path)
{
	return unlink(path) == 0 ? 0 : errno;
}

int hr__linux_file_rename(const char *from, const char *to)
{
	return rename(from, to) == 0 ? 0 : errno;
}

int hr__linux_folder_create(const char *path)
{
	return mkdir(path, 0777) == 0 ? 0 : errno;
}

/* The descriptor that a path such as /dev/stdout or /dev/fd/3 names, or -1. These paths are symbolic links, but to files that this
 * process has open, and no other process can redirect them. */
static int descriptor_of(const char *path)
{
	static const char *const folders[] = { "/dev/fd/", "/proc/self/fd/" };
	if (strcmp(path, "/dev/stdout") == 0) return STDOUT_FILENO;
	if (strcmp(path, "/dev/stderr") == 0) return STDERR_FILENO;
	for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
		size_t length = strlen(folders[i]), digits;
		if (strncmp(path, folders[i], length) != 0) continue;
		digits = strspn(path + length, "0123456789");
		if (digits > 0 && digits < 9 && path[length + digits] == 0) return atoi(path + length);
	}
	return -1;
}

static int sink_error(mode_t mode)
{
	if (S_ISCHR(mode)) return 0;
	if (S_ISLNK(mode)) return ELOOP;
	if (S_ISDIR(mode)) return EISDIR;
	return S_ISREG(mode) ? EEXIST : EINVAL;
}

/* Opens the character device [path]. The path may have changed since lstat, so this follows no link, truncates nothing, does not
 * wait for a FIFO, and checks the type of what it opened. */
static int open_device(const char *path, int *out_fd)
{
	int fd = -1;
	struct stat facts;
	int error = open_file(path, O_WRONLY | O_NOFOLLOW | O_NONBLOCK, &fd);
	if (error != 0) return error;
	error = fstat(fd, &facts) != 0 ? errno : sink_error(facts.st_mode);
	if (error == 0 && fcntl(fd, F_SETFL, 0) != 0) error = errno;
	if (error != 0) {
		hr__linux_file_close(fd);
		return error;
	}
	*out_fd = fd;
	return 0;
}

int hr__linux_sink_open(const char *path, int *out_fd)
{
	struct stat facts;
	int own = descriptor_of(path);
	if (own >= 0) {
		int fd = fcntl(own, F_DUPFD_CLOEXEC, 0);
		if (fd < 0) return errno;
		*out_fd = fd;
		return 0;
	}
	if (lstat(path, &facts) != 0) return errno;
	int error = sink_error(facts.st_mode);
	return error != 0 ? error : open_device(path, out_fd);
}

/* ---- reading and writing ---- */

static bool is_file_range(uint64_t offset, uint64_t bytes)
{
	uint64_t end;
	return hr__add(offset, bytes, &end) && end <= INT64_MAX;
}

int hr__linux_file_read(int fd, void *to, size_t bytes, uint64_t offset, size_t *out_read)
{
	if (!is_file_range(offset, bytes)) return EINVAL;
	size_t done = 0;
	while (done < bytes) {
		size_t wanted = bytes - done < IO_MAX ? bytes - done : IO_MAX;
		ssize_t count = pread(fd, (char *)to + done, wanted, (off_t)(offset + done));
		if (count < 0 && errno == EINTR) continue;
		if (count < 0) return errno;
		if (count == 0) break;
		done += (size_t)count;
	}
	*out_read = done;
	return 0;
}

static int write_all(int fd, const char *from, size_t bytes, uint64_t offset)
{
	size_t done = 0;
	while (done < bytes) {
		size_t wanted = bytes - done < IO_MAX ? bytes - done : IO_MAX;
		ssize_t count = pwrite(fd, from + done, wanted, (off_t)(offset + done));
		if (count < 0 && errno == EINTR) continue;
		if (count < 0) return errno;
		if (count == 0) return EIO;
		done += (size_t)count;
	}
	return 0;
}

int hr__linux_file_write(int fd, const void *from, size_t bytes, uint64_t offset)
{
	if (!is_file_range(offset, bytes)) return EFBIG;
	struct blocked_signal growth;
	block_signal(&growth, SIGXFSZ, EFBIG);
	int error = write_all(fd, from, bytes, offset);
	restore_signal(&growth, error);
	return error;
}

int hr__linux_stderr_write(const void *from, size_t bytes)
{
	return hr__linux_sink_write(STDERR_FILENO, from, bytes);
}

int hr__linux_sink_write(int fd, const void *from, size_t bytes)
{
	struct blocked_signal growth, pipe_end;
	const char *next = from;
	int error = 0;
	block_signal(&growth, SIGXFSZ, EFBIG);
	block_signal(&pipe_end, SIGPIPE, EPIPE);
	while (bytes > 0 && error == 0) {
		ssize_t count = write(fd, next, bytes < IO_MAX ? bytes : IO_MAX);
		if (count < 0 && errno == EINTR) continue;
		if (count <= 0) {
			error = count < 0 ? errno : EIO;
		} else {
			next += count;
			bytes -= (size_t)count;
		}
	}
	restore_signal(&pipe_end, error);
	restore_signal(&growth, error);
	return error;
}

/* ---- size ---- */

static int set_size(int fd, uint64_t bytes)
{
	int result;
	do {
		result = ftruncate(fd, (off_t)bytes);
	} while (result != 0 && errno == EINTR);
	return result == 0 ? 0 : errno;
}

int hr__linux_file_size(int fd, uint64_t *out)
{
	struct stat facts;
	if (fstat(fd, &facts) != 0) return errno;
	*out = (uint64_t)facts.st_size;
	return 0;
}

int hr__linux_file_truncate(int fd, uint64_t bytes)
{
	if (bytes > INT64_MAX) return EFBIG;
	struct blocked_signal growth;
	block_signal(&growth, SIGXFSZ, EFBIG);
	int error = set_size(fd, bytes);
	restore_signal(&growth, error);
	return error;
}

static int write_zeros(int fd, uint64_t from, uint64_t to)
{
	static const char zeros[64 * 1024];
	int error = 0;
	while (from < to && error == 0) {
		size_t step = to - from < sizeof zeros ? (size_t)(to - from) : sizeof zeros;
		error = write_all(fd, zeros, step, from);
		from += step;
	}
	return error;
}

/* Allocates disk space for the file up to [bytes]. Some file systems (FAT, older NFS) allocate only when data is written. */
static int find_space(int fd, uint64_t size, uint64_t bytes)
{
	int result;
	do {
		result = fallocate(fd, 0, 0, (off_t)bytes);
	} while (result != 0 && errno == EINTR);
	if (result == 0) return 0;
	return errno == EOPNOTSUPP || errno == ENOSYS ? write_zeros(fd, size, bytes) : errno;
}

int hr__linux_file_extend(int fd, uint64_t bytes)
{
	struct stat facts;
	if (bytes > INT64_MAX) return EFBIG;
	if (fstat(fd, &facts) != 0) return errno;
	uint64_t size = (uint64_t)facts.st_size;
	if (bytes < size) return EINVAL;
	if (bytes == 0) return 0;

	struct blocked_signal growth;
	block_signal(&growth, SIGXFSZ, EFBIG);
	int error = find_space(fd, size, bytes);
	/* A disk that fills up halfway leaves the file longer than before. */
	if (error != 0) set_size(fd, size);
	restore_signal(&growth, error);
	return error;
}

/* ---- mapping ---- */

int hr__linux_file_map(int fd, uint64_t offset, size_t bytes, void **out)
{
	if (!is_file_range(offset, bytes)) return EINVAL;
	void *mapping = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)offset);
	if (mapping == MAP_FAILED) return errno;
	hr__guard_add(mapping, bytes);
	*out = mapping;
	return 0;
}

int hr__linux_file_unmap(void *base, size_t bytes)
{
	hr__guard_remove(base);
	return munmap(base, bytes) == 0 ? 0 : errno;
}

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14; older C library headers lack the name */
#endif

void hr__linux_file_touch(void *base, size_t bytes)
{
	madvise(base, bytes, MADV_POPULATE_WRITE);
}
