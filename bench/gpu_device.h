/* gpu_device.h - the device of bench/gpu.c: GPU:0, real or emulated, with pages of any size.
 *
 * Mapping is timed in the backend: the device's table is replaced by a copy whose map, unmap and page_create measure the time of
 * the original functions. Not thread-safe. */
#ifndef HR_BENCH_GPU_DEVICE_H
#define HR_BENCH_GPU_DEVICE_H

#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench.h"
#include "core/device/internal.h"

#define KIB UINT64_C(1024)
#define MIB (KIB * KIB)
#define GIB (KIB * MIB)

#define EMULATED_MEMORY (40 * GIB) /* address space: untouched pages take no memory */

static struct {
	bool card; /* a real GPU, not emulated */
	hr_device_info info;
	hr_device handle;
	hr__device *device;
} gpu;

/* ---- opening ---- */

/* Opens GPU:0 with pages of [page] bytes (0 = default). False: the device has another page size. */
static bool gpu_open(uint64_t page)
{
	hr_emulated_options emulated;
	char text[32];
	snprintf(text, sizeof text, "%llu", (unsigned long long)page);
	if (page) setenv("HEADROOM_CUDA_PAGE", text, 1);
	else unsetenv("HEADROOM_CUDA_PAGE");
	bench_must(hr_emulated_options_init(&emulated));
	if (emulated.memory_bytes < EMULATED_MEMORY) emulated.memory_bytes = EMULATED_MEMORY;
	if (page) emulated.page_bytes = page;
	bench_must(hr_emulated_configure(&emulated));
	bench_must(hr_device_find("GPU:0", &gpu.handle));
	bench_must(hr__device_named("GPU:0", &gpu.device));
	gpu.info = (hr_device_info){ .struct_size = sizeof gpu.info };
	bench_must(hr_device_get_info(gpu.handle, &gpu.info));
	gpu.card = strcmp(gpu.info.backend, "emulated") != 0;
	return !page || gpu.info.page_bytes == page;
}

static void gpu_close(void)
{
	bench_must(hr_shutdown());
}

static hr_allocator gpu_allocator(uint64_t limit, bool stitch)
{
	hr_allocator_options options;
	hr_allocator allocator;
	hr_allocator_options_init(&options);
	options.limit_bytes = limit;
	options.stitch = stitch;
	bench_must(hr_allocator_create(gpu.handle, &options, &allocator));
	return allocator;
}

static hr_stats gpu_stats(hr_allocator allocator)
{
	hr_stats stats;
	hr_stats_init(&stats);
	bench_must(hr_allocator_get_stats(allocator, &stats));
	return stats;
}

/* ---- cost of mapping ---- */

typedef struct map_cost {
	double map_ns, unmap_ns, create_ns; /* map includes set access */
	uint64_t mapped, unmapped, created; /* pages */
} map_cost;

static map_cost mapping;
static hr_backend timed_table;
static const hr_backend *real_table;

static hr_status timed_map(void *device, uint64_t address, const hr_page *pages, uint32_t count)
{
	double start = bench_now_ns();
	hr_status status = real_table->map(device, address, pages, count);
	mapping.map_ns += bench_now_ns() - start;
	mapping.mapped += count;
	return status;
}

static hr_status timed_unmap(void *device, uint64_t address, uint32_t count)
{
	double start = bench_now_ns();
	hr_status status = real_table->unmap(device, address, count);
	mapping.unmap_ns += bench_now_ns() - start;
	mapping.unmapped += count;
	return status;
}

static hr_status timed_create(void *device, hr_page *page)
{
	double start = bench_now_ns();
	hr_status status = real_table->page_create(device, page);
	mapping.create_ns += bench_now_ns() - start;
	mapping.created++;
	return status;
}

/* Starts timing, until the device is closed. */
static void gpu_time_mapping(void)
{
	real_table = gpu.device->physical->table;
	timed_table = *real_table;
	timed_table.map = timed_map;
	timed_table.unmap = timed_unmap;
	timed_table.page_create = timed_create;
	gpu.device->physical->table = &timed_table;
	mapping = (map_cost){ 0 };
}

/* The cost since the last call. */
static map_cost gpu_mapping(void)
{
	map_cost spent = mapping;
	mapping = (map_cost){ 0 };
	return spent;
}

/* ---- figures ---- */

static int compare_doubles(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return x < y ? -1 : x > y;
}

static inline double median(double *values, size_t count)
{
	qsort(values, count, sizeof *values, compare_doubles);
	return values[count / 2];
}

/* Every figure is also written to a file, one "name value" per line, for comparison with other programs on the same machine. */
static FILE *figures;

static inline double figure(double value, const char *name, ...) __attribute__((format(printf, 2, 3)));
static inline double figure(double value, const char *name, ...)
{
	va_list arguments;
	if (!figures) return value;
	va_start(arguments, name);
	vfprintf(figures, name, arguments);
	va_end(arguments);
	fprintf(figures, " %.6g\n", value);
	return value;
}

static inline const char *size_text(uint64_t bytes)
{
	static char texts[4][16];
	static unsigned next;
	char *text = texts[next++ % 4];
	if (bytes >= GIB) snprintf(text, sizeof texts[0], "%llu GiB", (unsigned long long)(bytes / GIB));
	else if (bytes >= MIB) snprintf(text, sizeof texts[0], "%llu MiB", (unsigned long long)(bytes / MIB));
	else snprintf(text, sizeof texts[0], "%llu B", (unsigned long long)bytes);
	return text;
}

/* A figure of the driver, or a dash without a driver. */
static inline const char *driver_text(bool here, double value, const char *format)
{
	static char texts[8][24];
	static unsigned next;
	char *text = texts[next++ % 8];
	if (!here) return "-";
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
	snprintf(text, sizeof texts[0], format, value);
#pragma GCC diagnostic pop
	return text;
}

#endif
