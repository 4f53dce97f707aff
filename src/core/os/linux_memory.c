/* linux_memory.c - address space, memory and anonymous files, by mmap and related calls.
 *
 * A reserved range is always mapped, with PROT_NONE where it has no memory. An unmapped gap could be taken by any other mmap of the
 * process. So freeing memory replaces or protects a mapping and never unmaps it; only release unmaps. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include "core/base/assert.h"
#include "core/base/checked.h"
#include "core/os/linux.h"

#define RESERVED_FLAGS (MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE)

static bool is_whole_pages(const void *base, uint64_t bytes)
{
	uint64_t below_page = hr__os_page_size() - 1;
	return bytes != 0 && (bytes & below_page) == 0 && ((uintptr_t)base & below_page) == 0;
}

/* ---- small blocks ---- */

int hr__linux_alloc(size_t bytes, void **out)
{
	HR_ASSERT(bytes > 0);
	void *block = calloc(1, bytes);
	if (block == NULL) return ENOMEM;
	*out = block;
	return 0;
}

void hr__linux_free(void *block, size_t bytes)
{
	(void)bytes;
	free(block);
}

/* ---- address space ---- */

/* Cuts [bytes] at an aligned address out of a larger mapping and unmaps the rest on both sides. */
static void *trim_to_alignment(char *mapping, size_t mapped, size_t bytes, size_t alignment)
{
	size_t before = (size_t)(-(uintptr_t)mapping & (alignment - 1));
	size_t after = mapped - before - bytes;
	/* Unmapping an end of a mapping splits nothing, so it needs no memory and cannot fail. If it did fail, the only effect would be
	 * wasted address space. */
	if (before > 0) munmap(mapping, before);
	if (after > 0) munmap(mapping + before + bytes, after);
	return mapping + before;
}

int hr__linux_reserve(size_t bytes, size_t alignment, void **out)
{
	size_t page = hr__os_page_size();
	uint64_t mapped;
	if (!is_whole_pages(NULL, bytes) || !hr__is_power_of_two(alignment) || alignment < page) return EINVAL;
	if (!hr__add(bytes, alignment - page, &mapped)) return ENOMEM;
	void *mapping = mmap(NULL, mapped, PROT_NONE, RESERVED_FLAGS, -1, 0);
	if (mapping == MAP_FAILED) return errno;
	*out = trim_to_alignment(mapping, mapped, bytes, alignment);
	HR_ASSERT(((uintptr_t)*out & (alignment - 1)) == 0);
	return 0;
}

int hr__linux_release(void *base, size_t bytes)
{
	return munmap(base, bytes) == 0 ? 0 : errno;
}

int hr__linux_commit(void *base, size_t bytes)
{
	if (!is_whole_pages(base, bytes)) return EINVAL;
	return mprotect(base, bytes, PROT_READ | PROT_WRITE) == 0 ? 0 : errno;
}

void hr__linux_prefer_huge_pages(void *base, size_t bytes)
{
	madvise(base, bytes, MADV_HUGEPAGE);
}

int hr__linux_decommit(void *base, size_t bytes)
{
	if (!is_whole_pages(base, bytes)) return EINVAL;
	/* Protect first: mprotect can fail (it may split a mapping), and at this point nothing is lost yet. */
	if (mprotect(base, bytes, PROT_NONE) != 0) return errno;
	if (madvise(base, bytes, MADV_DONTNEED) == 0) return 0;
	int error = errno;
	mprotect(base, bytes, PROT_READ | PROT_WRITE);
	return error;
}

/* ---- anonymous files ---- */

int hr__linux_memfd(const char *name, uint64_t bytes, int *out_fd)
{
	if (bytes > INT64_MAX) return EFBIG;
	int fd = memfd_create(name, MFD_CLOEXEC);
	if (fd < 0) return errno;
	int error = hr__linux_file_truncate(fd, bytes);
	if (error != 0) {
		hr__linux_file_close(fd);
		return error;
	}
	*out_fd = fd;
	return 0;
}

int hr__linux_map_fd(void *base, size_t bytes, int fd, uint64_t offset)
{
	if (!is_whole_pages(base, bytes) || offset > INT64_MAX) return EINVAL;
	void *mapping = mmap(base, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, (off_t)offset);
	return mapping == MAP_FAILED ? errno : 0;
}

int hr__linux_unmap_fd(void *base, size_t bytes)
{
	if (!is_whole_pages(base, bytes)) return EINVAL;
	return mmap(base, bytes, PROT_NONE, RESERVED_FLAGS | MAP_FIXED, -1, 0) == MAP_FAILED ? errno : 0;
}

int hr__linux_punch(int fd, uint64_t offset, uint64_t bytes)
{
	if (offset > INT64_MAX || bytes > INT64_MAX) return EINVAL;
	int result;
	do {
		result = fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset, (off_t)bytes);
	} while (result != 0 && errno == EINTR);
	return result == 0 ? 0 : errno;
}

/* ---- host memory ---- */

int hr__linux_lock_memory(void *base, size_t bytes)
{
	return mlock(base, bytes) == 0 ? 0 : errno;
}

int hr__linux_unlock_memory(void *base, size_t bytes)
{
	return munlock(base, bytes) == 0 ? 0 : errno;
}

/* The number after [key] in the text of /proc/meminfo, in bytes; false when it is missing. */
static bool meminfo_field(const char *text, const char *key, uint64_t *out)
{
	const char *at = strstr(text, key);
	unsigned long long kib;
	return at != NULL && sscanf(at + strlen(key), "%llu", &kib) == 1 && hr__multiply(kib, 1024, out);
}

int hr__linux_host_memory(uint64_t *out_total, uint64_t *out_available)
{
	char text[2048]; /* both lines are among the first */
	size_t length = 0;
	uint64_t total, available;
	int fd = open("/proc/meminfo", O_RDONLY | O_CLOEXEC);
	if (fd >= 0) {
		if (hr__linux_file_read(fd, text, sizeof text - 1, 0, &length) != 0) length = 0;
		hr__linux_file_close(fd);
	}
	text[length] = 0;
	if (!meminfo_field(text, "MemTotal:", &total) || !meminfo_field(text, "MemAvailable:", &available)) {
		/* No /proc, as in some sandboxes. Free memory is less than available memory, because caches could be dropped too. */
		struct sysinfo info;
		if (sysinfo(&info) != 0) return errno;
		total = (uint64_t)info.totalram * info.mem_unit;
		available = ((uint64_t)info.freeram + info.bufferram) * info.mem_unit;
	}
	*out_total = total;
	*out_available = available;
	return 0;
}
