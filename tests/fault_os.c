/* fault_os.c - see fault_os.h.
 *
 * Every call locks one mutex for its bookkeeping, but never during the call to Linux itself, so that a thread that waits inside a
 * monitor or sleeps blocks no other thread. Address ranges are kept as lists of intervals: reserved ones as they were reserved;
 * committed, mapped and locked ones are split and joined, so that releasing a range removes whatever was inside. */
#define _GNU_SOURCE
#include "fault_os.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/os/os.h"

#define BLOCK_MAGIC 0x4845414452303031u
#define BLOCK_FREED 0xDEADDEADDEADDEADu
#define FD_MAX 65536

struct interval {
	uintptr_t start, end;
	struct interval *next;
};

struct block_header {
	_Alignas(16) uint64_t magic; /* BLOCK_MAGIC xor the size */
	uint64_t bytes;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

/* All guarded by mutex. */
static struct hr_fault_os_live live;
static struct interval *reserved, *committed, *mapped, *locked, *file_maps;
static bool fd_is_open[FD_MAX];
static uint64_t calls, failures, fail_at;
static bool fail_forever, fail_gives_back;
static int fail_error;

static const hr__os_table *linux_os(void)
{
	return hr__os_linux();
}

__attribute__((noreturn, format(printf, 1, 2))) static void misuse(const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	fprintf(stderr, "fault_os: ");
	vfprintf(stderr, format, arguments);
	fprintf(stderr, "\n");
	va_end(arguments);
	abort();
}

/* ---- failing ---- */

static int should_fail(void)
{
	pthread_mutex_lock(&mutex);
	calls++;
	bool fails = fail_at != 0 && (calls == fail_at || (fail_forever && calls > fail_at));
	int error = fails ? fail_error : 0;
	failures += fails;
	pthread_mutex_unlock(&mutex);
	return error;
}

static int should_fail_giving_back(void)
{
	pthread_mutex_lock(&mutex);
	bool failable = fail_gives_back;
	pthread_mutex_unlock(&mutex);
	return failable ? should_fail() : 0;
}

#define FAIL_IF_TOLD()                \
	do {                              \
		int told_ = should_fail();    \
		if (told_ != 0) return told_; \
	} while (0)

#define FAIL_GIVING_BACK_IF_TOLD()             \
	do {                                       \
		int told_ = should_fail_giving_back(); \
		if (told_ != 0) return told_;          \
	} while (0)

static void count(uint64_t *what, int64_t change)
{
	pthread_mutex_lock(&mutex);
	*what += (uint64_t)change;
	pthread_mutex_unlock(&mutex);
}

/* ---- intervals; under the mutex ---- */

static void interval_add(struct interval **list, uintptr_t start, uintptr_t end)
{
	struct interval *added = malloc(sizeof *added);
	if (added == NULL) misuse("no memory for the bookkeeping");
	*added = (struct interval){ start, end, *list };
	*list = added;
}

/* Removes [start, end) from the list and splits intervals that overlap it; returns the bytes removed. */
static uint64_t interval_remove(struct interval **list, uintptr_t start, uintptr_t end)
{
	uint64_t removed = 0;
	struct interval **link = list;
	while (*link != NULL) {
		struct interval *at = *link;
		uintptr_t from = at->start > start ? at->start : start, to = at->end < end ? at->end : end;
		if (from >= to) {
			link = &at->next;
			continue;
		}
		removed += to - from;
		if (to < at->end) interval_add(&at->next, to, at->end);
		if (at->start < from) {
			at->end = from;
			link = &at->next;
		} else {
			*link = at->next;
			free(at);
		}
	}
	return removed;
}

/* Adds [start, end), parts of which may be in the list; returns the bytes that are new. */
static uint64_t interval_put(struct interval **list, uintptr_t start, uintptr_t end)
{
	uint64_t there = interval_remove(list, start, end);
	interval_add(list, start, end);
	return end - start - there;
}

static bool interval_is_inside(const struct interval *list, uintptr_t start, uintptr_t end)
{
	while (list != NULL && !(list->start <= start && end <= list->end)) list = list->next;
	return list != NULL;
}

static bool interval_is_exactly(const struct interval *list, uintptr_t start, uintptr_t end)
{
	while (list != NULL && !(list->start == start && list->end == end)) list = list->next;
	return list != NULL;
}

static void interval_clear(struct interval **list)
{
	interval_remove(list, 0, UINTPTR_MAX);
}

/* ---- memory ---- */

static int fault_alloc(size_t bytes, void **out)
{
	void *memory;
	FAIL_IF_TOLD();
	if (bytes == 0) misuse("alloc of 0 bytes");
	if (bytes > SIZE_MAX - sizeof(struct block_header)) return ENOMEM;
	int error = linux_os()->alloc(bytes + sizeof(struct block_header), &memory);
	if (error != 0) return error;
	struct block_header *header = memory;
	*header = (struct block_header){ BLOCK_MAGIC ^ bytes, bytes };
	pthread_mutex_lock(&mutex);
	live.alloc_blocks++;
	live.alloc_bytes += bytes;
	pthread_mutex_unlock(&mutex);
	*out = header + 1;
	return 0;
}

static void fault_free(void *block, size_t bytes)
{
	if (block == NULL) misuse("free of NULL (%zu bytes)", bytes);
	struct block_header *header = (struct block_header *)block - 1;
	if (header->magic == BLOCK_FREED) misuse("block %p (%zu bytes) freed twice", block, bytes);
	if (header->magic != (BLOCK_MAGIC ^ header->bytes)) misuse("free of %p (%zu bytes), which alloc did not give", block, bytes);
	if (header->bytes != bytes) misuse("block %p of %zu bytes freed as %zu", block, (size_t)header->bytes, bytes);
	header->magic = BLOCK_FREED;
	pthread_mutex_lock(&mutex);
	live.alloc_blocks--;
	live.alloc_bytes -= bytes;
	pthread_mutex_unlock(&mutex);
	linux_os()->free(header, bytes + sizeof *header);
}

static int fault_reserve(size_t bytes, size_t alignment, void **out)
{
	void *base;
	FAIL_IF_TOLD();
	int error = linux_os()->reserve(bytes, alignment, &base);
	if (error != 0) return error;
	pthread_mutex_lock(&mutex);
	interval_add(&reserved, (uintptr_t)base, (uintptr_t)base + bytes);
	live.reserved_ranges++;
	live.reserved_bytes += bytes;
	pthread_mutex_unlock(&mutex);
	*out = base;
	return 0;
}

static int fault_release(void *base, size_t bytes)
{
	uintptr_t start = (uintptr_t)base, end = start + bytes;
	FAIL_GIVING_BACK_IF_TOLD();
	/* The record is removed before unmapping: afterwards another thread may get the same addresses. */
	pthread_mutex_lock(&mutex);
	if (!interval_is_exactly(reserved, start, end)) misuse("release of %p, %zu bytes, which is not a reserved range", base, bytes);
	interval_remove(&reserved, start, end);
	live.reserved_ranges--;
	live.reserved_bytes -= bytes;
	live.committed_bytes -= interval_remove(&committed, start, end);
	live.mapped_bytes -= interval_remove(&mapped, start, end);
	live.locked_bytes -= interval_remove(&locked, start, end);
	pthread_mutex_unlock(&mutex);
	return linux_os()->release(base, bytes);
}

static void require_reserved(const char *call, void *base, size_t bytes)
{
	pthread_mutex_lock(&mutex);
	bool inside = interval_is_inside(reserved, (uintptr_t)base, (uintptr_t)base + bytes);
	pthread_mutex_unlock(&mutex);
	if (!inside) misuse("%s of %p, %zu bytes, which is not inside a reserved range", call, base, bytes);
}

static int fault_commit(void *base, size_t bytes)
{
	FAIL_IF_TOLD();
	require_reserved("commit", base, bytes);
	int error = linux_os()->commit(base, bytes);
	if (error != 0) return error;
	pthread_mutex_lock(&mutex);
	live.committed_bytes += interval_put(&committed, (uintptr_t)base, (uintptr_t)base + bytes);
	pthread_mutex_unlock(&mutex);
	return 0;
}

static int fault_decommit(void *base, size_t bytes)
{
	FAIL_GIVING_BACK_IF_TOLD();
	require_reserved("decommit", base, bytes);
	int error = linux_os()->decommit(base, bytes);
	if (error != 0) return error;
	pthread_mutex_lock(&mutex);
	live.committed_bytes -= interval_remove(&committed, (uintptr_t)base, (uintptr_t)base + bytes);
	pthread_mutex_unlock(&mutex);
	return 0;
}

static void fd_opened(int fd)
{
	pthread_mutex_lock(&mutex);
	live.fds++;
	if (fd < FD_MAX) fd_is_open[fd] = true;
	pthread_mutex_unlock(&mutex);
}

static int fault_memfd(const char *name, uint64_t bytes, int *out_fd)
{
	FAIL_IF_TOLD();
	int error = linux_os()->memfd(name, bytes, out_fd);
	if (error == 0) fd_opened(*out_fd);
	return error;
}

static int fault_map_fd(void *base, size_t bytes, int fd, uint64_t offset)
{
	FAIL_IF_TOLD();
	require_reserved("map_fd", base, bytes);
	int error = linux_os()->map_fd(base, bytes, fd, offset);
	if (error != 0) return error;
	pthread_mutex_lock(&mutex);
	live.mapped_bytes += interval_put(&mapped, (uintptr_t)base, (uintptr_t)base + bytes);
	pthread_mutex_unlock(&mutex);
	return 0;
}

static int fault_unmap_fd(void *base, size_t bytes)
{
	FAIL_GIVING_BACK_IF_TOLD();
	require_reserved("unmap_fd", base, bytes);
	int error = linux_os()->unmap_fd(base, bytes);
	if (error != 0) return error;
	pthread_mutex_lock(&mutex);
	live.mapped_bytes -= interval_remove(&mapped, (uintptr_t)base, (uintptr_t)base + bytes);
	pthread_mutex_unlock(&mutex);
	return 0;
}

static int fault_punch(int fd, uint64_t offset, uint64_t bytes)
{
	FAIL_IF_TOLD();
	return linux_os()->punch(fd, offset, bytes);
}

static int fault_lock_memory(void *base, size_t bytes)
{
	FAIL_IF_TOLD();
	int error = linux_os()->lock_memory(base, bytes);
	if (error != 0) return error;
	pthread_mutex_lock(&mutex);
	live.locked_bytes += interval_put(&locked, (uintptr_t)base, (uintptr_t)base + bytes);
	pthread_mutex_unlock(&mutex);
	return 0;
}

static int fault_unlock_memory(void *base, size_t bytes)
{
	FAIL_GIVING_BACK_IF_TOLD();
	int error = linux_os()->unlock_memory(base, bytes);
	if (error != 0) return error;
	pthread_mutex_lock(&mutex);
	live.locked_bytes -= interval_remove(&locked, (uintptr_t)base, (uintptr_t)base + bytes);
	pthread_mutex_unlock(&mutex);
	return 0;
}

/* ---- threads ---- */

static int fault_thread_start(void (*run)(void *), void *argument, const char *name, hr__thread **out)
{
	FAIL_IF_TOLD();
	int error = linux_os()->thread_start(run, argument, name, out);
	if (error == 0) count(&live.threads, 1);
	return error;
}

static void fault_thread_join(hr__thread *thread)
{
	linux_os()->thread_join(thread);
	count(&live.threads, -1);
}

static int fault_monitor_create(hr__monitor **out)
{
	FAIL_IF_TOLD();
	int error = linux_os()->monitor_create(out);
	if (error == 0) count(&live.monitors, 1);
	return error;
}

static void fault_monitor_destroy(hr__monitor *monitor)
{
	linux_os()->monitor_destroy(monitor);
	count(&live.monitors, -1);
}

/* ---- files ---- */

static int fault_file_create(const char *path, int *out_fd)
{
	FAIL_IF_TOLD();
	int error = linux_os()->file_create(path, out_fd);
	if (error == 0) fd_opened(*out_fd);
	return error;
}

static int fault_file_open(const char *path, int *out_fd, uint64_t *out_size)
{
	FAIL_IF_TOLD();
	int error = linux_os()->file_open(path, out_fd, out_size);
	if (error == 0) fd_opened(*out_fd);
	return error;
}

static int fault_file_read(int fd, void *to, size_t bytes, uint64_t offset, size_t *out_read)
{
	FAIL_IF_TOLD();
	return linux_os()->file_read(fd, to, bytes, offset, out_read);
}

static int fault_input_open(const char *path, int *out_fd, uint64_t *out_size)
{
	FAIL_IF_TOLD();
	int error = linux_os()->input_open(path, out_fd, out_size);
	if (error == 0) fd_opened(*out_fd);
	return error;
}

static int fault_input_read(int fd, void *to, size_t bytes, size_t *out_read)
{
	FAIL_IF_TOLD();
	return linux_os()->input_read(fd, to, bytes, out_read);
}

static int fault_file_write(int fd, const void *from, size_t bytes, uint64_t offset)
{
	FAIL_IF_TOLD();
	return linux_os()->file_write(fd, from, bytes, offset);
}

static int fault_file_extend(int fd, uint64_t bytes)
{
	FAIL_IF_TOLD();
	return linux_os()->file_extend(fd, bytes);
}

static int fault_file_size(int fd, uint64_t *out)
{
	FAIL_IF_TOLD();
	return linux_os()->file_size(fd, out);
}

static int fault_file_truncate(int fd, uint64_t bytes)
{
	FAIL_IF_TOLD();
	return linux_os()->file_truncate(fd, bytes);
}

static int fault_file_map(int fd, uint64_t offset, size_t bytes, void **out)
{
	void *base;
	FAIL_IF_TOLD();
	int error = linux_os()->file_map(fd, offset, bytes, &base);
	if (error != 0) return error;
	pthread_mutex_lock(&mutex);
	interval_add(&file_maps, (uintptr_t)base, (uintptr_t)base + bytes);
	live.file_maps++;
	live.file_map_bytes += bytes;
	pthread_mutex_unlock(&mutex);
	*out = base;
	return 0;
}

static int fault_file_unmap(void *base, size_t bytes)
{
	uintptr_t start = (uintptr_t)base, end = start + bytes;
	FAIL_GIVING_BACK_IF_TOLD();
	pthread_mutex_lock(&mutex);
	if (!interval_is_exactly(file_maps, start, end)) misuse("file_unmap of %p, %zu bytes, which is not a mapping", base, bytes);
	interval_remove(&file_maps, start, end);
	live.file_maps--;
	live.file_map_bytes -= bytes;
	pthread_mutex_unlock(&mutex);
	return linux_os()->file_unmap(base, bytes);
}

static int fault_file_remove(const char *path)
{
	FAIL_IF_TOLD();
	return linux_os()->file_remove(path);
}

static int fault_file_rename(const char *from, const char *to)
{
	FAIL_IF_TOLD();
	return linux_os()->file_rename(from, to);
}

static int fault_sink_open(const char *path, int *out_fd)
{
	FAIL_IF_TOLD();
	int error = linux_os()->sink_open(path, out_fd);
	if (error == 0) fd_opened(*out_fd);
	return error;
}

static int fault_sink_write(int fd, const void *from, size_t bytes)
{
	FAIL_IF_TOLD();
	return linux_os()->sink_write(fd, from, bytes);
}

static int fault_folder_create(const char *path)
{
	FAIL_IF_TOLD();
	return linux_os()->folder_create(path);
}

static void fault_file_close(int fd)
{
	pthread_mutex_lock(&mutex);
	if (fd < 0 || (fd < FD_MAX && !fd_is_open[fd])) misuse("close of descriptor %d, which is not open", fd);
	if (fd < FD_MAX) fd_is_open[fd] = false;
	live.fds--;
	pthread_mutex_unlock(&mutex);
	linux_os()->file_close(fd);
}

/* ---- the rest ---- */

static int fault_stderr_write(const void *from, size_t bytes)
{
	FAIL_IF_TOLD();
	return linux_os()->stderr_write(from, bytes);
}

static int fault_host_memory(uint64_t *out_total, uint64_t *out_available)
{
	FAIL_IF_TOLD();
	return linux_os()->host_memory(out_total, out_available);
}

static int fault_stack_capture(void **addresses, size_t capacity, size_t *out_count)
{
	FAIL_IF_TOLD();
	return linux_os()->stack_capture(addresses, capacity, out_count);
}

static int fault_symbol_find(const void *address, hr__os_symbol *out)
{
	FAIL_IF_TOLD();
	return linux_os()->symbol_find(address, out);
}

static int fault_heavy_barrier(void)
{
	FAIL_IF_TOLD();
	return linux_os()->heavy_barrier();
}

static hr__os_table fault_table;

static void fill_table(void)
{
	fault_table = *linux_os(); /* calls that cannot fail and hold nothing stay those of Linux */
	fault_table.alloc = fault_alloc;
	fault_table.free = fault_free;
	fault_table.reserve = fault_reserve;
	fault_table.release = fault_release;
	fault_table.commit = fault_commit;
	fault_table.decommit = fault_decommit;
	fault_table.memfd = fault_memfd;
	fault_table.map_fd = fault_map_fd;
	fault_table.unmap_fd = fault_unmap_fd;
	fault_table.punch = fault_punch;
	fault_table.lock_memory = fault_lock_memory;
	fault_table.unlock_memory = fault_unlock_memory;
	fault_table.thread_start = fault_thread_start;
	fault_table.thread_join = fault_thread_join;
	fault_table.monitor_create = fault_monitor_create;
	fault_table.monitor_destroy = fault_monitor_destroy;
	fault_table.file_create = fault_file_create;
	fault_table.file_open = fault_file_open;
	fault_table.file_read = fault_file_read;
	fault_table.input_open = fault_input_open;
	fault_table.input_read = fault_input_read;
	fault_table.file_write = fault_file_write;
	fault_table.file_extend = fault_file_extend;
	fault_table.file_size = fault_file_size;
	fault_table.file_truncate = fault_file_truncate;
	fault_table.file_map = fault_file_map;
	fault_table.file_unmap = fault_file_unmap;
	fault_table.file_remove = fault_file_remove;
	fault_table.file_rename = fault_file_rename;
	fault_table.sink_open = fault_sink_open;
	fault_table.sink_write = fault_sink_write;
	fault_table.folder_create = fault_folder_create;
	fault_table.file_close = fault_file_close;
	fault_table.stderr_write = fault_stderr_write;
	fault_table.host_memory = fault_host_memory;
	fault_table.stack_capture = fault_stack_capture;
	fault_table.symbol_find = fault_symbol_find;
	fault_table.heavy_barrier = fault_heavy_barrier;
}

/* ---- control ---- */

void hr_fault_os_install(void)
{
	pthread_mutex_lock(&mutex);
	interval_clear(&reserved);
	interval_clear(&committed);
	interval_clear(&mapped);
	interval_clear(&locked);
	interval_clear(&file_maps);
	memset(&live, 0, sizeof live);
	memset(fd_is_open, 0, sizeof fd_is_open);
	calls = failures = fail_at = 0;
	fail_forever = fail_gives_back = false;
	fail_error = 0;
	fill_table();
	pthread_mutex_unlock(&mutex);
	hr__os_replace(&fault_table);
}

void hr_fault_os_uninstall(void)
{
	hr__os_replace(NULL);
}

void hr_fault_os_fail_nth(uint64_t n, bool forever, int error)
{
	pthread_mutex_lock(&mutex);
	calls = 0;
	fail_at = n;
	fail_forever = forever;
	fail_error = error;
	pthread_mutex_unlock(&mutex);
}

void hr_fault_os_fail_gives_back(bool yes)
{
	pthread_mutex_lock(&mutex);
	fail_gives_back = yes;
	pthread_mutex_unlock(&mutex);
}

static uint64_t read_count(const uint64_t *what)
{
	pthread_mutex_lock(&mutex);
	uint64_t value = *what;
	pthread_mutex_unlock(&mutex);
	return value;
}

uint64_t hr_fault_os_calls(void)
{
	return read_count(&calls);
}

uint64_t hr_fault_os_failures(void)
{
	return read_count(&failures);
}

void hr_fault_os_live(struct hr_fault_os_live *out)
{
	pthread_mutex_lock(&mutex);
	*out = live;
	pthread_mutex_unlock(&mutex);
}

bool hr_fault_os_is_clean(void)
{
	static const struct hr_fault_os_live nothing;
	struct hr_fault_os_live now;
	hr_fault_os_live(&now);
	if (memcmp(&now, &nothing, sizeof now) == 0) return true;
	printf("# still held: %llu blocks (%llu bytes), %llu reserved ranges (%llu bytes, %llu committed, %llu mapped), %llu bytes "
	       "locked, "
	       "%llu file maps (%llu bytes), %llu descriptors, %llu threads, %llu monitors\n",
	       (unsigned long long)now.alloc_blocks, (unsigned long long)now.alloc_bytes, (unsigned long long)now.reserved_ranges,
	       (unsigned long long)now.reserved_bytes, (unsigned long long)now.committed_bytes, (unsigned long long)now.mapped_bytes,
	       (unsigned long long)now.locked_bytes, (unsigned long long)now.file_maps, (unsigned long long)now.file_map_bytes,
	       (unsigned long long)now.fds, (unsigned long long)now.threads, (unsigned long long)now.monitors);
	return false;
}
