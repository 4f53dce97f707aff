/* linux.c - the Linux table. */
#define _GNU_SOURCE
#include "core/os/linux.h"

#include <stdlib.h>
#include <unistd.h>

static int process_id(void)
{
	return (int)getpid();
}

static const char *environment(const char *name)
{
	return secure_getenv(name);
}

const hr__os_table hr__linux_table = {
	.alloc = hr__linux_alloc,
	.free = hr__linux_free,
	.reserve = hr__linux_reserve,
	.release = hr__linux_release,
	.commit = hr__linux_commit,
	.prefer_huge_pages = hr__linux_prefer_huge_pages,
	.decommit = hr__linux_decommit,
	.memfd = hr__linux_memfd,
	.map_fd = hr__linux_map_fd,
	.unmap_fd = hr__linux_unmap_fd,
	.punch = hr__linux_punch,
	.lock_memory = hr__linux_lock_memory,
	.unlock_memory = hr__linux_unlock_memory,
	.thread_start = hr__linux_thread_start,
	.thread_join = hr__linux_thread_join,
	.monitor_create = hr__linux_monitor_create,
	.monitor_destroy = hr__linux_monitor_destroy,
	.monitor_enter = hr__linux_monitor_enter,
	.monitor_leave = hr__linux_monitor_leave,
	.monitor_wait = hr__linux_monitor_wait,
	.monitor_wake_all = hr__linux_monitor_wake_all,
	.clock_ns = hr__linux_clock_ns,
	.wall_clock_ns = hr__linux_wall_clock_ns,
	.sleep_ns = hr__linux_sleep_ns,
	.file_create = hr__linux_file_create,
	.file_open = hr__linux_file_open,
	.file_read = hr__linux_file_read,
	.input_open = hr__linux_input_open,
	.input_read = hr__linux_input_read,
	.file_write = hr__linux_file_write,
	.file_extend = hr__linux_file_extend,
	.file_size = hr__linux_file_size,
	.file_truncate = hr__linux_file_truncate,
	.file_map = hr__linux_file_map,
	.file_unmap = hr__linux_file_unmap,
	.file_touch = hr__linux_file_touch,
	.file_remove = hr__linux_file_remove,
	.file_rename = hr__linux_file_rename,
	.sink_open = hr__linux_sink_open,
	.sink_write = hr__linux_sink_write,
	.folder_create = hr__linux_folder_create,
	.file_close = hr__linux_file_close,
	.stack_capture = hr__linux_stack_capture,
	.symbol_find = hr__linux_symbol_find,
	.stderr_write = hr__linux_stderr_write,
	.host_memory = hr__linux_host_memory,
	.heavy_barrier = hr__linux_heavy_barrier,
	.process_id = process_id,
	.environment = environment,
};
