/* gpu.c - the library on a GPU, compared with direct calls of the CUDA driver, in one run.
 *
 *     gpu [--traces FOLDER] [--figures FILE]
 *
 * Without a GPU the device is the emulated one, sizes are smaller and the driver's columns are dashes: that only shows that the
 * program works. FOLDER contains the uncompressed traces, for builds without zlib. FILE gets every figure as "name value";
 * bench/gpu_torch.py compares PyTorch's allocator with them. */
#include "gpu_device.h"
#include "gpu_driver.h"
#include "gpu_traces.h"

#define ROUNDS 9

static const uint64_t pair_sizes[] = { 512, MIB, 64 * MIB };
#define PAIR_SIZES (sizeof pair_sizes / sizeof *pair_sizes)

/* For the summary at the end. */
static struct {
	double ours[PAIR_SIZES], pool[PAIR_SIZES], plain[PAIR_SIZES];
	double threads8[2];
	double link_ours[3], link_driver[3]; /* to host, to device, both; for the largest blocks */
	bool joined, refused;
	hr_device_info info; /* of the device with its default settings */
} summary;

/* ---- pairs ---- */

static hr_allocator shared;

static double our_pairs(uint64_t bytes, int count)
{
	void *block;
	double start = bench_now_ns();
	for (int i = 0; i < count; i++) {
		if (hr_alloc_bytes(shared, bytes, &block)) abort();
		hr_free(shared, block, HR_STREAM_DEFAULT);
	}
	return (bench_now_ns() - start) / count;
}

static double pool_pairs(uint64_t bytes, int count, cu_stream stream)
{
	cu_address address;
	double start = bench_now_ns();
	for (int i = 0; i < count; i++) {
		DRIVER(alloc_async(&address, bytes, stream));
		DRIVER(free_async(address, stream));
	}
	return (bench_now_ns() - start) / count;
}

static double plain_pairs(uint64_t bytes, int count)
{
	cu_address address;
	double start = bench_now_ns();
	for (int i = 0; i < count; i++) {
		DRIVER(alloc(&address, bytes));
		DRIVER(free(address));
	}
	return (bench_now_ns() - start) / count;
}

/* The pool keeps its memory: otherwise it releases memory at every synchronization, and a pair costs a cuMemAlloc. */
static cu_pool driver_pool(void)
{
	cu_pool pool;
	uint64_t keep = UINT64_MAX;
	DRIVER(default_pool(&pool, driver.device));
	DRIVER(pool_set(pool, CU_POOL_RELEASE_THRESHOLD, &keep));
	return pool;
}

static void print_pairs(void)
{
	cu_pool pool = NULL;
	cu_stream stream = NULL;
	if (driver.here) pool = driver_pool();
	if (driver.here) DRIVER(stream_create(&stream, CU_STREAM_NON_BLOCKING));
	printf("\nalloc+free pair, warm, one thread: the median of %d rounds, ns\n", ROUNDS);
	printf("%-10s %12s %24s %18s %16s\n", "bytes", "headroom", "cuMemAllocAsync+Free", "cuMemAlloc+Free", "pool/headroom");
	for (size_t i = 0; i < PAIR_SIZES; i++) {
		double ours[ROUNDS], warm[ROUNDS], plain[ROUNDS];
		our_pairs(pair_sizes[i], 100);
		if (driver.here) pool_pairs(pair_sizes[i], 100, stream);
		for (int round = 0; round < ROUNDS; round++) {
			ours[round] = our_pairs(pair_sizes[i], 200000);
			if (!driver.here) continue;
			warm[round] = pool_pairs(pair_sizes[i], 5000, stream);
			DRIVER(stream_wait(stream));
			plain[round] = plain_pairs(pair_sizes[i], 40);
		}
		summary.ours[i] = figure(median(ours, ROUNDS), "pairs.%llu", (unsigned long long)pair_sizes[i]);
		if (driver.here) summary.pool[i] = median(warm, ROUNDS);
		if (driver.here) summary.plain[i] = median(plain, ROUNDS);
		printf("%-10s %12.1f %24s %18s %16s\n", size_text(pair_sizes[i]), summary.ours[i],
		       driver_text(driver.here, summary.pool[i], "%.0f"), driver_text(driver.here, summary.plain[i], "%.0f"),
		       driver_text(driver.here, summary.pool[i] / summary.ours[i], "%.1fx"));
	}
	if (driver.here) DRIVER(stream_destroy(stream));
	if (driver.here) DRIVER(pool_trim(pool, 0));
}

/* ---- threads ---- */

struct thread_job {
	uint64_t bytes;
	int count;
};

static void *thread_pairs(void *argument)
{
	const struct thread_job *job = argument;
	our_pairs(job->bytes, job->count);
	return NULL;
}

static void print_threads(void)
{
	static const unsigned counts[] = { 1, 2, 4, 8 };
	printf("\nthreads on one allocator, each with pairs of its own: millions of pairs per second in all, and over one thread\n");
	printf("%-10s", "bytes");
	for (size_t i = 0; i < 4; i++) printf("  %10u thread%s", counts[i], counts[i] > 1 ? "s" : " ");
	printf("\n");
	for (size_t size = 0; size < 2; size++) {
		struct thread_job job = { pair_sizes[size], size ? 1000000 : 2000000 }; /* tens of ms: thread start is negligible */
		double one = 0;
		printf("%-10s", size_text(job.bytes));
		for (size_t i = 0; i < 4; i++) {
			double best = 1e18;
			for (int round = 0; round < 3; round++) best = bench_least(best, bench_threads_ns(counts[i], thread_pairs, &job));
			double rate = counts[i] * (double)job.count / best * 1e3;
			if (i == 0) one = rate;
			summary.threads8[size] = figure(rate / one, "threads.%llu.%u", (unsigned long long)job.bytes, counts[i]);
			printf("  %8.1f (%5.2fx)", rate, rate / one);
		}
		printf("\n");
	}
}

/* ---- the link ---- */

/* One side: two blocks each on the device and on the host, so that both directions can run at the same time. */
struct link_ends {
	bool ours;
	void *device[2], *host[2];
	hr_stream streams[2];
	cu_address cu_device[2];
	cu_stream cu_streams[2];
};

static void link_open(struct link_ends *ends, bool ours, uint64_t bytes)
{
	ends->ours = ours;
	for (int i = 0; i < 2; i++) {
		if (ours) {
			bench_must(hr_stream_create(gpu.handle, &ends->streams[i]));
			bench_must(hr_alloc_bytes(shared, bytes, &ends->device[i]));
			bench_must(hr__call_host_alloc(gpu.device->physical, bytes, &ends->host[i]));
		} else {
			DRIVER(stream_create(&ends->cu_streams[i], CU_STREAM_NON_BLOCKING));
			DRIVER(alloc(&ends->cu_device[i], bytes));
			DRIVER(host_alloc(&ends->host[i], bytes, 0));
		}
		memset(ends->host[i], i + 1, bytes);
	}
}

static void link_close(struct link_ends *ends, uint64_t bytes)
{
	for (int i = 0; i < 2; i++) {
		if (ends->ours) {
			bench_must(hr_free(shared, ends->device[i], HR_STREAM_DEFAULT));
			bench_must(hr__call_host_free(gpu.device->physical, ends->host[i], bytes));
			bench_must(hr_stream_destroy(gpu.handle, ends->streams[i]));
		} else {
			DRIVER(free(ends->cu_device[i]));
			DRIVER(host_free(ends->host[i]));
			DRIVER(stream_destroy(ends->cu_streams[i]));
		}
	}
}

static void link_copy(const struct link_ends *ends, int way, uint64_t bytes)
{
	if (ends->ours && way == 0)
		bench_must(hr_stream_copy(gpu.handle, ends->host[0], ends->device[0], bytes, HR_COPY_TO_HOST, ends->streams[0]));
	else if (ends->ours)
		bench_must(hr_stream_copy(gpu.handle, ends->device[1], ends->host[1], bytes, HR_COPY_TO_DEVICE, ends->streams[1]));
	else if (way == 0) DRIVER(copy_to_host(ends->host[0], ends->cu_device[0], bytes, ends->cu_streams[0]));
	else DRIVER(copy_to_device(ends->cu_device[1], ends->host[1], bytes, ends->cu_streams[1]));
}

static void link_wait(const struct link_ends *ends)
{
	for (int i = 0; i < 2; i++) {
		if (ends->ours) bench_must(hr_stream_synchronize(gpu.handle, ends->streams[i]));
		else DRIVER(stream_wait(ends->cu_streams[i]));
	}
}

enum { TO_HOST, TO_DEVICE, BOTH };

/* GB/s in total. */
static double link_speed(const struct link_ends *ends, int ways, uint64_t bytes, int count)
{
	link_wait(ends);
	double start = bench_now_ns();
	for (int i = 0; i < count; i++) {
		if (ways != TO_DEVICE) link_copy(ends, 0, bytes);
		if (ways != TO_HOST) link_copy(ends, 1, bytes);
	}
	link_wait(ends);
	return (double)bytes * count * (ways == BOTH ? 2 : 1) / (bench_now_ns() - start);
}

static void print_link_of(uint64_t bytes)
{
	static const char *const names[] = { "to_host", "to_device", "both" };
	struct link_ends ours, theirs;
	double rates[2][3] = { { 0 } };
	uint64_t amount = gpu.card ? GIB : 32 * MIB;
	int count = bytes < amount / 4 ? (int)(amount / bytes) : 4;
	link_open(&ours, true, bytes);
	if (driver.here) link_open(&theirs, false, bytes);
	for (int round = 0; round < 4; round++) /* the first warms up */
		for (int ways = TO_HOST; ways <= BOTH; ways++) {
			double one = link_speed(&ours, ways, bytes, count), other = driver.here ? link_speed(&theirs, ways, bytes, count) : 0;
			if (round && one > rates[0][ways]) rates[0][ways] = one;
			if (round && other > rates[1][ways]) rates[1][ways] = other;
		}
	printf("%-10s", size_text(bytes));
	for (int ways = TO_HOST; ways <= BOTH; ways++) {
		summary.link_ours[ways] = figure(rates[0][ways], "link.%s.%llu", names[ways], (unsigned long long)bytes);
		summary.link_driver[ways] = rates[1][ways];
		printf(" | %9.1f %9s %7s", rates[0][ways], driver_text(driver.here, rates[1][ways], "%.1f"),
		       driver_text(driver.here, rates[0][ways] / rates[1][ways], "%.3f"));
	}
	printf("\n");
	fflush(stdout);
	link_close(&ours, bytes);
	if (driver.here) link_close(&theirs, bytes);
}

static void print_link(void)
{
	printf("\nthe link, pinned host memory, copies queued one behind another: GB/s, the best of 3 rounds\n");
	printf("%-10s | %-27s | %-27s | %-27s\n", "", "device to host", "host to device", "both at once, in all");
	printf("%-10s", "block");
	for (int i = 0; i < 3; i++) printf(" | %9s %9s %7s", "headroom", "driver", "ratio");
	printf("\n");
	print_link_of(2 * MIB);
	print_link_of(16 * MIB);
	if (gpu.card) print_link_of(64 * MIB);
	if (gpu.card) print_link_of(256 * MIB);
}

/* ---- fragmentation ---- */

#define PIECES 64

struct fragments {
	hr_allocator allocator;
	uint64_t piece;
	void *blocks[PIECES];
};

/* Fills [limit] with blocks and frees every second one. */
static void fragment(struct fragments *fragments, uint64_t limit, bool stitch)
{
	fragments->allocator = gpu_allocator(limit, stitch);
	fragments->piece = limit / PIECES;
	for (int i = 0; i < PIECES; i++) {
		bench_must(hr_alloc_bytes(fragments->allocator, fragments->piece, &fragments->blocks[i]));
		bench_must(hr_stream_fill(gpu.handle, fragments->blocks[i], (unsigned char)(i + 1), fragments->piece, HR_STREAM_DEFAULT));
	}
	bench_must(hr_stream_synchronize(gpu.handle, HR_STREAM_DEFAULT));
	for (int i = 1; i < PIECES; i += 2) {
		bench_must(hr_free(fragments->allocator, fragments->blocks[i], HR_STREAM_DEFAULT));
		fragments->blocks[i] = NULL;
	}
}

/* The number of remaining blocks whose contents are unchanged. */
static int intact(const struct fragments *fragments, unsigned char *host)
{
	int good = 0;
	for (int i = 0; i < PIECES; i += 2) {
		bench_must(hr_stream_copy(gpu.handle, host, fragments->blocks[i], fragments->piece, HR_COPY_TO_HOST, HR_STREAM_DEFAULT));
		bench_must(hr_stream_synchronize(gpu.handle, HR_STREAM_DEFAULT));
		good += host[0] == i + 1 && memcmp(host, host + 1, fragments->piece - 1) == 0;
	}
	return good;
}

static void print_fragmentation(void)
{
	uint64_t limit = gpu.card ? 4 * GIB : 256 * MIB, asked = limit / 4;
	struct fragments fragments;
	void *block, *host;
	printf("\na limit of %s filled with %d blocks, every second one freed; then one of %s is asked for\n", size_text(limit), PIECES,
	       size_text(asked));
	fragment(&fragments, limit, false);
	hr_status status = hr_alloc_bytes(fragments.allocator, asked, &block);
	hr_stats stats = gpu_stats(fragments.allocator);
	summary.refused = status == HR_OUT_OF_MEMORY;
	printf("  best fit alone: %s, with %s free, the largest piece %s\n", status ? "refused" : "met",
	       size_text((uint64_t)stats.bytes_free), size_text((uint64_t)stats.largest_free_block));
	bench_must(hr_allocator_destroy_all(fragments.allocator));

	gpu_time_mapping();
	bench_must(hr__call_host_alloc(gpu.device->physical, limit / PIECES, &host));
	fragment(&fragments, limit, true);
	gpu_mapping();
	double start = bench_now_ns();
	status = hr_alloc_bytes(fragments.allocator, asked, &block);
	double ms = (bench_now_ns() - start) / 1e6;
	map_cost cost = gpu_mapping();
	stats = gpu_stats(fragments.allocator);
	if (!status) bench_must(hr_stream_fill(gpu.handle, block, 0xFF, asked, HR_STREAM_DEFAULT));
	int good = intact(&fragments, host);
	summary.joined = status == HR_OK && good == PIECES / 2;
	printf("  with stitching: %s; %lld stitch of %llu pages of %s in %.2f ms (map and set access %.2f, unmap %.2f);\n"
	       "  %d of %d live blocks intact\n",
	       status ? hr_last_message() : "met", (long long)stats.num_stitches,
	       (unsigned long long)stats.bytes_stitched / gpu.info.page_bytes, size_text(gpu.info.page_bytes), ms, cost.map_ns / 1e6,
	       cost.unmap_ns / 1e6, good, PIECES / 2);
	figure(ms, "stitch.%llu.ms", (unsigned long long)asked);
	bench_must(hr__call_host_free(gpu.device->physical, host, limit / PIECES));
	bench_must(hr_allocator_destroy_all(fragments.allocator));
}

/* ---- cost of mapping ---- */

#define MAP_ROUNDS 5

/* Through the library's backend: microseconds per page. */
static void map_costs_of_backend(uint64_t page, double *map, double *unmap, double *create)
{
	uint32_t count = (uint32_t)((gpu.card ? GIB : 64 * MIB) / page);
	hr_page *pages = calloc(count, sizeof *pages);
	double map_us[MAP_ROUNDS], unmap_us[MAP_ROUNDS];
	uint64_t address;
	if (!pages) abort();
	double start = bench_now_ns();
	for (uint32_t i = 0; i < count; i++) bench_must(hr__call_page_create(gpu.device->physical, &pages[i]));
	*create = (bench_now_ns() - start) / 1e3 / count;
	bench_must(hr__call_reserve(gpu.device->physical, count * page, &address));
	for (int round = 0; round < MAP_ROUNDS; round++) {
		start = bench_now_ns();
		bench_must(hr__call_map(gpu.device->physical, address, pages, count));
		map_us[round] = (bench_now_ns() - start) / 1e3 / count;
		start = bench_now_ns();
		bench_must(hr__call_unmap(gpu.device->physical, address, count));
		unmap_us[round] = (bench_now_ns() - start) / 1e3 / count;
	}
	*map = median(map_us, MAP_ROUNDS);
	*unmap = median(unmap_us, MAP_ROUNDS);
	bench_must(hr__call_release(gpu.device->physical, address, count * page));
	for (uint32_t i = 0; i < count; i++) bench_must(hr__call_page_destroy(gpu.device->physical, pages[i]));
	free(pages);
}

/* With the driver: map, set access and unmap, microseconds per handle. */
static void map_costs_of_driver(uint64_t page, double us[3])
{
	uint32_t count = (uint32_t)(GIB / page);
	cu_properties properties = { .type = CU_PINNED, .location = { CU_ON_DEVICE, driver.device } };
	cu_access access = { { CU_ON_DEVICE, driver.device }, CU_READ_WRITE };
	cu_handle *pages = calloc(count, sizeof *pages);
	double rounds[3][MAP_ROUNDS];
	cu_address address;
	if (!pages) abort();
	for (uint32_t i = 0; i < count; i++) DRIVER(page_create(&pages[i], page, &properties, 0));
	DRIVER(reserve(&address, GIB, page, 0, 0));
	for (int round = 0; round < MAP_ROUNDS; round++) {
		double start = bench_now_ns();
		for (uint32_t i = 0; i < count; i++) DRIVER(map(address + i * page, page, 0, pages[i], 0));
		double mapped = bench_now_ns();
		DRIVER(set_access(address, GIB, &access, 1));
		double set = bench_now_ns();
		DRIVER(unmap(address, GIB));
		double end = bench_now_ns();
		rounds[0][round] = (mapped - start) / 1e3 / count;
		rounds[1][round] = (set - mapped) / 1e3 / count;
		rounds[2][round] = (end - set) / 1e3 / count;
	}
	for (int i = 0; i < 3; i++) us[i] = median(rounds[i], MAP_ROUNDS);
	DRIVER(unreserve(address, GIB));
	for (uint32_t i = 0; i < count; i++) DRIVER(page_release(pages[i]));
	free(pages);
}

static void print_map_costs(void)
{
	printf("\nmapping %s page by page: microseconds per page, the median of %d rounds; and for 1 GiB in all\n",
	       size_text(gpu.card ? GIB : 64 * MIB), MAP_ROUNDS);
	printf("%-8s | %9s %16s %9s %14s | %9s %12s %9s\n", "page", "create", "map+set access", "unmap", "ms per GiB", "driver: map",
	       "set access", "unmap");
	for (uint64_t page = 2 * MIB; page <= 64 * MIB; page *= 2) {
		double map = 0, unmap = 0, create = 0, us[3] = { 0 };
		bool chosen = gpu_open(page);
		if (chosen) map_costs_of_backend(page, &map, &unmap, &create);
		gpu_close();
		if (driver.here) map_costs_of_driver(page, us);
		printf("%-8s | %9s %16s %9s %14s | %11s %12s %9s\n", size_text(page), driver_text(chosen, create, "%.1f"),
		       driver_text(chosen, map, "%.1f"), driver_text(chosen, unmap, "%.1f"),
		       driver_text(chosen, (map + unmap) * (double)(GIB / page) / 1e3, "%.2f"), driver_text(driver.here, us[0], "%.1f"),
		       driver_text(driver.here, us[1], "%.1f"), driver_text(driver.here, us[2], "%.1f"));
		fflush(stdout);
	}
}

/* ---- main ---- */

static void print_summary(void)
{
	printf("\nin short, on %s (%s):\n", summary.info.description, summary.info.backend);
	for (size_t i = 0; i < PAIR_SIZES; i++)
		printf("  pair of %-7s %8.1f ns; cuMemAllocAsync+Free %s ns; cuMemAlloc+Free %s ns\n", size_text(pair_sizes[i]),
		       summary.ours[i], driver_text(driver.here, summary.pool[i], "%.0f"),
		       driver_text(driver.here, summary.plain[i], "%.0f"));
	printf("  eight threads over one: %.2fx at 512 B, %.2fx at 1 MiB (%ld processors)\n", summary.threads8[0], summary.threads8[1],
	       sysconf(_SC_NPROCESSORS_ONLN));
	printf("  traces, ns/op warm:");
	for (int i = 0; i < TRACES; i++) printf(" %s %.1f", trace_names[i], warm_ns[i]);
	printf("\n  link over the driver's: to host %s, to device %s, both %s\n",
	       driver_text(driver.here, summary.link_ours[0] / summary.link_driver[0], "%.3f"),
	       driver_text(driver.here, summary.link_ours[1] / summary.link_driver[1], "%.3f"),
	       driver_text(driver.here, summary.link_ours[2] / summary.link_driver[2], "%.3f"));
	printf("  fragmented memory: best fit alone %s, stitching %s\n", summary.refused ? "is refused" : "is not refused (?)",
	       summary.joined ? "meets it, live blocks intact" : "FAILED");
}

/* Whether GPU:0 is a real GPU. Checked in a child process, because this process must fork before it uses a GPU. */
static bool probe(void)
{
	fflush(stdout);
	pid_t child = fork();
	int status = 0;
	if (child < 0) abort();
	if (child == 0) {
		gpu_open(0);
		_exit(gpu.card ? 7 : 0);
	}
	if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || (WEXITSTATUS(status) != 0 && WEXITSTATUS(status) != 7))
		exit(1);
	return WEXITSTATUS(status) == 7;
}

int main(int argc, char **argv)
{
	const char *folder = NULL;
	for (int i = 1; i + 1 < argc; i += 2) {
		if (strcmp(argv[i], "--traces") == 0) folder = argv[i + 1];
		if (strcmp(argv[i], "--figures") == 0) figures = fopen(argv[i + 1], "w");
	}
	double start = bench_now_ns();
	int sizes = probe() ? PAGE_SIZES : 2;
	traces_read(folder);
	limits_find(sizes);
	double limits = bench_now_ns();

	gpu_open(0);
	summary.info = gpu.info;
	if (gpu.card) driver_open(); /* a comparison with the emulated device would be meaningless */
	printf("device: %s, %s, %s, %s free\n", gpu.info.name, gpu.info.backend, gpu.info.description, size_text(gpu.info.free_bytes));
	if (driver.here)
		printf("driver: %s, CUDA %d.%d\n", driver.name, driver.version_number / 1000, driver.version_number % 1000 / 10);
	shared = gpu_allocator(gpu.card ? 8 * GIB : GIB, true);
	print_pairs();
	print_threads();
	print_link();
	bench_must(hr_allocator_destroy(shared));
	print_fragmentation();
	gpu_close();

	traces_speed();
	traces_at_limits(sizes);
	print_map_costs();
	print_summary();
	printf("  %.0f s, of which %.0f to find the limits\n", (bench_now_ns() - start) / 1e9, (limits - start) / 1e9);
	if (figures) fclose(figures);
	for (int i = 0; i < TRACES; i++) hr__program_free(&programs[i]);
	return summary.joined && summary.refused ? 0 : 1;
}
