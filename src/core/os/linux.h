/* linux.h - the Linux table and the functions in it, grouped by file. Only for src/core/os; the contracts are in os.h. */
#ifndef HR_OS_LINUX_H
#define HR_OS_LINUX_H

#include "core/os/os.h"

/* linux.c */
extern const hr__os_table hr__linux_table;

/* linux_memory.c */
int hr__linux_alloc(size_t bytes, void **out);
void hr__linux_free(void *block, size_t bytes);
int hr__linux_reserve(size_t bytes, size_t alignment, void **out);
int hr__linux_release(void *base, size_t bytes);
int hr__linux_commit(void *base, size_t bytes);
void hr__linux_prefer_huge_pages(void *base, size_t bytes);
int hr__linux_decommit(void *base, size_t bytes);
int hr__linux_memfd(const char *name, uint64_t bytes, int *out_fd);
int hr__linux_map_fd(void *base, size_t bytes, int fd, uint64_t offset);
int hr__linux_unmap_fd(void *base, size_t bytes);
int hr__linux_punch(int fd, uint64_t offset, uint64_t bytes);
int hr__linux_lock_memory(void *base, size_t bytes);
int hr__linux_unlock_memory(void *base, size_t bytes);
int hr__linux_host_memory(uint64_t *out_total, uint64_t *out_available);

/* linux_thread.c */
int hr__linux_thread_start(void (*run)(void *), void *argument, const char *name, hr__thread **out);
void hr__linux_thread_join(hr__thread *thread);
int hr__linux_monitor_create(hr__monitor **out);
void hr__linux_monitor_destroy(hr__monitor *monitor);
void hr__linux_monitor_enter(hr__monitor *monitor);
void hr__linux_monitor_leave(hr__monitor *monitor);
void hr__linux_monitor_wait(hr__monitor *monitor, uint64_t timeout_ns);
void hr__linux_monitor_wake_all(hr__monitor *monitor);
uint64_t hr__linux_clock_ns(void);
uint64_t hr__linux_wall_clock_ns(void);
void hr__linux_sleep_ns(uint64_t ns);
int hr__linux_heavy_barrier(void);

/* linux_file.c */
int hr__linux_file_create(const char *path, int *out_fd);
int hr__linux_file_open(const char *path, int *out_fd, uint64_t *out_size);
int hr__linux_input_open(const char *path, int *out_fd, uint64_t *out_size);
int hr__linux_input_read(int fd, void *to, size_t bytes, size_t *out_read);
int hr__linux_file_read(int fd, void *to, size_t bytes, uint64_t offset, size_t *out_read);
int hr__linux_file_write(int fd, const void *from, size_t bytes, uint64_t offset);
int hr__linux_file_extend(int fd, uint64_t bytes);
int hr__linux_file_size(int fd, uint64_t *out);
int hr__linux_file_truncate(int fd, uint64_t bytes);
int hr__linux_file_map(int fd, uint64_t offset, size_t bytes, void **out);
int hr__linux_file_unmap(void *base, size_t bytes);
void hr__linux_file_touch(void *base, size_t bytes);
int hr__linux_file_remove(const char *path);
int hr__linux_file_rename(const char *from, const char *to);
int hr__linux_sink_open(const char *path, int *out_fd);
int hr__linux_sink_write(int fd, const void *from, size_t bytes);
int hr__linux_folder_create(const char *path);
void hr__linux_file_close(int fd);
int hr__linux_stderr_write(const void *from, size_t bytes);

/* linux_stack.c */
int hr__linux_stack_capture(void **addresses, size_t capacity, size_t *out_count);
int hr__linux_symbol_find(const void *address, hr__os_symbol *out);

#endif
