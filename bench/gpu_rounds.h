/* gpu_rounds.h - tensors that are evicted and restored many times: contents stay correct, and nothing grows.
 *
 * Tensors hold a pattern that differs everywhere. In each round all of them are evicted and restored, and the host checks a part of
 * each. In every second round a part of each is overwritten, so that it must be copied again. After the last round every byte is
 * compared with its expected value. This is independent of verify, which checks every byte in every round with checksums. */
#ifndef HR_BENCH_GPU_ROUNDS_H
#define HR_BENCH_GPU_ROUNDS_H

#include "gpu_device.h"
#include "headroom_lms.h"

#define WINDOWS 64u      /* per tensor: each window holds its part of the pattern, or was filled with one byte */
#define PROBE (64 * KIB) /* bytes of a tensor that the host checks in each round */
#define METADATA_SLACK (64 * KIB)
#define DRIVER_SLACK (64 * MIB) /* on the GPU and in the process: memory that the driver may allocate at will */

/* Values that must be the same after the last round as after the warm-up. */
struct level {
	uint64_t device_free, reserved, pinned, resident, metadata;
};

static struct {
	uint32_t count;
	size_t bytes, window;
	hr_allocator allocator;
	hr_tensor tensors[8];
	unsigned char filled[8][WINDOWS]; /* 0 = the pattern */
	unsigned char *pattern, *staging; /* pinned host memory, for full copy speed */
} series;

static struct {
	char lines[4][256];
	uint32_t count;
	bool failed;
} table;

static uint64_t resident_bytes(void)
{
	unsigned long long pages = 0;
	FILE *file = fopen("/proc/self/statm", "r");
	if (!file || fscanf(file, "%*u %llu", &pages) != 1) pages = 0;
	if (file) fclose(file);
	return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

static struct level level_now(void)
{
	hr_device_info info = { .struct_size = sizeof info };
	hr_stats stats = gpu_stats(series.allocator);
	hr__device *pinned;
	bench_must(hr_device_get_info(gpu.handle, &info));
	bench_must(hr__device_pinned(gpu.device, 0, &pinned));
	return (struct level){ info.free_bytes, (uint64_t)stats.bytes_reserved, hr__page_pool_reserved(pinned), resident_bytes(),
		                   (uint64_t)stats.metadata_bytes };
}

static bool differ(uint64_t a, uint64_t b, uint64_t slack)
{
	return (a > b ? a - b : b - a) > slack;
}

static bool is_flat(const struct level *a, const struct level *b)
{
	return !differ(a->device_free, b->device_free, gpu.card ? DRIVER_SLACK : 0) && a->reserved == b->reserved &&
	       a->pinned == b->pinned && !differ(a->resident, b->resident, DRIVER_SLACK) &&
	       !differ(a->metadata, b->metadata, METADATA_SLACK);
}

static const unsigned char *pattern_of(uint32_t tensor, uint32_t window)
{
	return series.pattern + (tensor * WINDOWS + window) * 8;
}

/* The number of bytes of [count] at [at], in host memory, that differ from the expected contents of window [window] from [offset]
 * on. */
static uint64_t wrong_in(uint32_t tensor, uint32_t window, uint64_t offset, const unsigned char *at, uint64_t count)
{
	unsigned char filled = series.filled[tensor][window];
	const unsigned char *pattern = pattern_of(tensor, window) + offset;
	uint64_t wrong = 0;
	if (!filled && memcmp(at, pattern, count) == 0) return 0;
	for (uint64_t i = 0; i < count; i++) wrong += at[i] != (filled ? filled : pattern[i]);
	return wrong;
}

/* Checks a part of a pinned tensor. Returns the number of wrong bytes. */
static uint64_t probe(uint32_t tensor, char *at, uint32_t window, uint64_t offset, uint64_t count)
{
	bench_must(
		hr_stream_copy(gpu.handle, series.staging, at + window * series.window + offset, count, HR_COPY_TO_HOST, HR_STREAM_DEFAULT));
	bench_must(hr_stream_synchronize(gpu.handle, HR_STREAM_DEFAULT));
	return wrong_in(tensor, window, offset, series.staging, count);
}

static hr_tensor tensor_of(hr_allocator allocator, size_t bytes)
{
	hr_tensor tensor;
	hr_tensor_options options;
	hr_tensor_options_init(&options);
	options.bytes = bytes;
	bench_must(hr_tensor_create(allocator, &options, &tensor));
	return tensor;
}

static void *host_memory(uint64_t bytes)
{
	void *block;
	bench_must(hr__call_host_alloc(gpu.device->physical, bytes, &block));
	return block;
}

static uint64_t pattern_bytes(void)
{
	return series.window + sizeof series.filled * 8;
}

static void open_series(bool verify)
{
	hr_lms_options lms;
	uint64_t seed = 1;
	gpu_open(0);
	series.window = series.bytes / WINDOWS;
	series.allocator = gpu_allocator(0, true);
	series.pattern = host_memory(pattern_bytes());
	series.staging = host_memory(series.window);
	memset(series.filled, 0, sizeof series.filled);
	for (uint64_t i = 0; i < pattern_bytes(); i++)
		series.pattern[i] = (unsigned char)((seed = seed * 6364136223846793005u + 1442695040888963407u) >> 56);
	bench_must(hr_lms_options_init(&lms));
	lms.enabled = true;
	lms.verify = verify;
	lms.policy = "lru";
	bench_must(hr_lms_configure(series.allocator, &lms));
	for (uint32_t i = 0; i < series.count; i++) {
		void *at;
		series.tensors[i] = tensor_of(series.allocator, series.bytes);
		bench_must(hr_tensor_pin(series.tensors[i], HR_OVERWRITE, HR_STREAM_DEFAULT));
		bench_must(hr_tensor_get_address(series.tensors[i], &at));
		for (uint32_t w = 0; w < WINDOWS; w++)
			bench_must(hr_stream_copy(gpu.handle, (char *)at + w * series.window, pattern_of(i, w), series.window, HR_COPY_TO_DEVICE,
			                   HR_STREAM_DEFAULT));
		bench_must(hr_tensor_unpin(series.tensors[i], HR_STREAM_DEFAULT));
	}
}

static void close_series(void)
{
	for (uint32_t i = 0; i < series.count; i++) bench_must(hr_tensor_destroy(series.tensors[i]));
	bench_must(hr_stream_synchronize(gpu.handle, HR_STREAM_DEFAULT));
	bench_must(hr__call_host_free(gpu.device->physical, series.staging, series.window));
	bench_must(hr__call_host_free(gpu.device->physical, series.pattern, pattern_bytes()));
	gpu_close();
}

/* HR_CORRUPT, reported by verify, is counted; any other error ends the program. */
static bool is_corrupt(hr_status status)
{
	if (status != HR_CORRUPT) bench_must(status);
	if (status == HR_CORRUPT) printf("  %s\n", hr_last_message());
	return status == HR_CORRUPT;
}

/* Restores a tensor and checks a part of it; in every second round overwrites another part. */
static uint64_t use(uint32_t tensor, uint32_t round)
{
	void *at;
	bool write = round % 2;
	uint32_t window = round / 2 % WINDOWS, seen = (round * 7 + tensor) % WINDOWS;
	uint64_t piece = series.window < PROBE ? series.window : PROBE, places = series.window / piece;
	if (is_corrupt(hr_tensor_pin(series.tensors[tensor], write ? HR_WRITE : HR_READ, HR_STREAM_DEFAULT))) return 1;
	bench_must(hr_tensor_get_address(series.tensors[tensor], &at));
	uint64_t wrong = probe(tensor, at, seen, round % places * piece, piece);
	if (write) {
		series.filled[tensor][window] = (unsigned char)(1 + (round + tensor) % 255);
		bench_must(hr_stream_fill(gpu.handle, (char *)at + window * series.window, series.filled[tensor][window], series.window,
		                   HR_STREAM_DEFAULT));
	}
	return wrong + is_corrupt(hr_tensor_unpin(series.tensors[tensor], HR_STREAM_DEFAULT));
}

/* Checks every byte, after the last round. */
static uint64_t look_at_all(void)
{
	uint64_t wrong = 0;
	for (uint32_t i = 0; i < series.count; i++) {
		void *at;
		if (is_corrupt(hr_tensor_pin(series.tensors[i], HR_READ, HR_STREAM_DEFAULT))) return wrong + 1;
		bench_must(hr_tensor_get_address(series.tensors[i], &at));
		for (uint32_t w = 0; w < WINDOWS; w++) wrong += probe(i, at, w, 0, series.window);
		wrong += is_corrupt(hr_tensor_unpin(series.tensors[i], HR_STREAM_DEFAULT));
	}
	return wrong;
}

/* Evicts and restores [count] tensors of [bytes] each, [times] times. */
static void rounds(uint32_t count, size_t bytes, uint32_t times, bool verify)
{
	struct level first = { 0 }, last;
	uint64_t wrong = 0;
	uint32_t done = 0, warm = times < 20 ? times / 2 : times / 10;
	double start, warm_start;
	if (!times) return;
	series.count = count;
	series.bytes = bytes;
	open_series(verify);
	hr_lms_stats stats = { .struct_size = sizeof stats }, before = stats;
	start = warm_start = bench_now_ns();
	bench_must(hr_lms_get_stats(series.allocator, &before));
	for (; done < times && !wrong; done++) {
		if (done == warm) { /* warm: slabs are pinned and pages exist */
			bench_must(hr_lms_get_stats(series.allocator, &before));
			first = level_now();
			warm_start = bench_now_ns();
		}
		for (uint32_t i = 0; i < count; i++) bench_must(hr_tensor_evict(series.tensors[i]));
		for (uint32_t i = 0; i < count; i++) wrong += use(i, done);
	}
	bench_must(hr_stream_synchronize(gpu.handle, HR_STREAM_DEFAULT));
	double end = bench_now_ns(), warm_ns = end - warm_start;
	last = level_now();
	bench_must(hr_lms_get_stats(series.allocator, &stats));
	wrong += look_at_all();
	bool flat = is_flat(&first, &last);
	double moved = (double)(stats.bytes_copied_out + stats.bytes_copied_in - before.bytes_copied_out - before.bytes_copied_in);
	char name[64];
	snprintf(name, sizeof name, "%u x %s%s", count, size_text(bytes), verify ? ", verify" : "");
	snprintf(table.lines[table.count++], sizeof *table.lines,
	         "%-18s %6u %8.1f %10.2f %10.1f %7llu %9.0f %6.0f %9.0f %6.0f %9.0f %6.0f   %s", name, done, (end - start) / 1e9,
	         warm_ns / 1e6 / (done > warm ? done - warm : 1), moved / warm_ns, (unsigned long long)wrong,
	         (double)first.reserved / (double)MIB, (double)last.reserved / (double)MIB, (double)first.pinned / (double)MIB,
	         (double)last.pinned / (double)MIB, (double)first.resident / (double)MIB, (double)last.resident / (double)MIB,
	         flat ? "flat" : "GREW");
	printf(
		"rounds of %s: done; free on the device %.0f MiB then %.0f, metadata %llu bytes then %llu, host copies at most %.2f GB\n",
		name, (double)first.device_free / (double)MIB, (double)last.device_free / (double)MIB, (unsigned long long)first.metadata,
		(unsigned long long)last.metadata, (double)stats.peak_host_bytes / 1e9);
	fflush(stdout);
	table.failed |= wrong || !flat;
	close_series();
}

static void print_table(void)
{
	if (!table.count) return;
	puts("\nevicted and restored: rounds, a round's time when warm, bytes moved both ways, bytes that were wrong; MiB when warm "
	     "and at the end");
	puts("each round of        done  seconds ms a round moved GB/s  errors  reserved   then host pool   then  resident   then");
	for (uint32_t i = 0; i < table.count; i++) puts(table.lines[i]);
}

#endif
