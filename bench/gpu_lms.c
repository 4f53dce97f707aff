/* gpu_lms.c - Large Model Support on a real GPU: a recorded training step replayed with less memory than it needs.
 *
 *     gpu_lms [--trace FILE] [--limits GB,GB...] [--policies P,P...] [--steps N] [--page MiB] [--rounds [LARGE,SMALL]]
 *
 * Tensors have the recorded sizes, kernels the recorded durations, and every use of a tensor checks and changes its contents on the
 * device (gpu_kernel.h). For each limit it prints the duration of a step, the bound, and the prediction of `headroom plan`, which
 * needs no GPU.
 *
 * --rounds: 8 GiB in eight tensors are evicted and restored LARGE times (100) with verify, then one tensor of 64 MiB SMALL times
 * (10,000); see gpu_rounds.h. Without a GPU it uses the emulated device and small sizes. */
#include "core/device/internal.h"
#include "plan/drive.h"
#include "plan/forecast.h"
#include "gpu_device.h"
#include "gpu_kernel.h"
#include "gpu_rounds.h"

#define STEPS_MAX 64u

static struct {
	hr_stream stream;
	cu_stream native;
	hr_allocator allocator;
	uint64_t *versions; /* stamp of each tensor, indexed by its birth; grows */
	size_t version_capacity;
	kernel_arguments arguments;
	cu_address errors;
	double begin_ms[STEPS_MAX + 1];
	hr_lms_stats before[STEPS_MAX + 1];
	uint64_t stamp;
} run;

static void launch(uint64_t ns)
{
	run.arguments.ns = ns;
	kernel_launch(&run.arguments, run.native);
	run.arguments.count = 0;
}

static hr_status touch(void *context, const hr__drive_touch *touch)
{
	void *address;
	(void)context;
	hr_tensor_info info = { .struct_size = sizeof info };
	hr_status status = hr_tensor_get_address(touch->handle, &address);
	if (!status) status = hr_tensor_get_info(touch->handle, &info);
	if (status || info.bytes < 8 * SAMPLES) return status;
	if (touch->birth >= run.version_capacity) {
		size_t capacity = touch->birth * 2 + 1024;
		run.versions = realloc(run.versions, capacity * sizeof *run.versions);
		if (!run.versions) abort();
		memset(run.versions + run.version_capacity, 0, (capacity - run.version_capacity) * sizeof *run.versions);
		run.version_capacity = capacity;
	}
	uint64_t *version = &run.versions[touch->birth], stride = (info.bytes - 8) / (SAMPLES - 1) & ~UINT64_C(7);
	kernel_tensor tensor = { (uintptr_t)address, stride, touch->access == HR_OVERWRITE ? 0 : *version, 0 };
	if (touch->access != HR_READ) tensor.next = *version = run.stamp += 1000;
	run.arguments.tensors[run.arguments.count++] = tensor;
	if (run.arguments.count == KERNEL_TENSORS) launch(0);
	return HR_OK;
}

static hr_status busy(void *context, hr_stream stream, uint64_t ns)
{
	(void)context;
	(void)stream;
	launch(ns);
	return HR_OK;
}

static hr_status step(void *context, size_t play)
{
	(void)context;
	hr_status status = hr_stream_synchronize(gpu.handle, run.stream);
	if (status) return status;
	run.begin_ms[play] = bench_now_ns() / 1e6;
	run.before[play] = (hr_lms_stats){ .struct_size = sizeof run.before[play] };
	status = hr_lms_get_stats(run.allocator, &run.before[play]);
	return status == HR_NOT_READY ? HR_OK : status;
}

static uint32_t read_errors(void)
{
	uint32_t count = 0;
	bench_must(hr_stream_copy(gpu.handle, &count, (void *)run.errors, sizeof count, HR_COPY_TO_HOST, run.stream));
	bench_must(hr_stream_synchronize(gpu.handle, run.stream));
	return count;
}

struct outcome {
	bool fits;
	double step_ms; /* median of the last three steps */
	double out_gb, in_gb;
	uint32_t errors;
	hr_stats stats;
	map_cost map;
	int64_t stitches;
};

/* Replays the steps of the trace in order up to [part], then [part] repeatedly. The times are of the last three steps, the bytes of
 * the last one. */
static struct outcome play(const hr__schedule *schedule, uint32_t part, uint64_t limit, const char *policy, uint64_t page, uint32_t repeats)
{
	struct outcome outcome = { 0 };
	uint32_t plays[STEPS_MAX], count = 0;
	hr_lms_options lms;
	for (uint32_t i = 1; i < part; i++) plays[count++] = i;
	for (uint32_t i = 0; i < repeats; i++) plays[count++] = part;
	gpu_open(page);
	driver.context_set(driver.context);
	bench_must(hr_stream_create(gpu.handle, &run.stream));
	hr_native_stream native;
	bench_must(hr__stream_native(gpu.device, run.stream, &native));
	run.native = (cu_stream)(uintptr_t)native;
	run.allocator = gpu_allocator(limit, true);
	bench_must(hr_lms_options_init(&lms));
	lms.enabled = true;
	lms.policy = policy;
	bench_must(hr_lms_configure(run.allocator, &lms));
	hr_allocator own = gpu_allocator(16 * MIB, true);
	void *errors;
	bench_must(hr_alloc_bytes(own, 256, &errors));
	run.errors = (uintptr_t)errors;
	run.arguments = (kernel_arguments){ .errors = run.errors };
	bench_must(hr_stream_fill(gpu.handle, errors, 0, 256, run.stream));
	gpu_time_mapping();

	hr__drive_options options = { .allocator = run.allocator, .stream = run.stream, .plays = plays, .play_count = count, .busy = busy,
		                          .touch = touch, .step = step };
	hr__drive_result result;
	memset(run.versions, 0, run.version_capacity * sizeof *run.versions);
	hr_status status = hr__drive(schedule, &options, &result);
	outcome.fits = status == HR_OK;
	if (status) {
		printf("  %s\n", hr_last_message());
	} else {
		double last[3];
		for (int i = 0; i < 3; i++) last[i] = run.begin_ms[count - (uint32_t)i] - run.begin_ms[count - 1 - (uint32_t)i];
		qsort(last, 3, sizeof *last, compare_doubles);
		outcome.step_ms = last[1];
		outcome.out_gb = (double)(run.before[count].bytes_copied_out - run.before[count - 1].bytes_copied_out) / 1e9;
		outcome.in_gb = (double)(run.before[count].bytes_copied_in - run.before[count - 1].bytes_copied_in) / 1e9;
		for (uint32_t i = 0; i < count; i++)
			printf("    step %2u: %8.1f ms, out %6.2f GB, in %6.2f GB, misses %4lld, reclaims %4lld %3lld %3lld, planned %lld\n", i,
			       run.begin_ms[i + 1] - run.begin_ms[i], (double)(run.before[i + 1].bytes_copied_out - run.before[i].bytes_copied_out) / 1e9,
			       (double)(run.before[i + 1].bytes_copied_in - run.before[i].bytes_copied_in) / 1e9,
			       (long long)(run.before[i + 1].num_prefetch_misses - run.before[i].num_prefetch_misses),
			       (long long)(run.before[i + 1].num_single_reclaims - run.before[i].num_single_reclaims),
			       (long long)(run.before[i + 1].num_multi_reclaims - run.before[i].num_multi_reclaims),
			       (long long)(run.before[i + 1].num_full_reclaims - run.before[i].num_full_reclaims),
			       (long long)(run.before[i + 1].num_planned_evictions - run.before[i].num_planned_evictions));
	}
	outcome.errors = read_errors();
	outcome.stats = gpu_stats(run.allocator);
	outcome.map = gpu_mapping();
	outcome.stitches = outcome.stats.num_stitches;
	bench_must(hr_free(own, errors, run.stream));
	gpu_close();
	return outcome;
}

/* The bound, and the prediction of the simulated device. */
static void predict(const hr__schedule *schedule, uint32_t part, uint64_t limit, const char *policy, uint64_t page, double *bound_ms, double *predicted_ms)
{
	hr__forecast_setup setup = { .schedule = schedule, .part = part, .repeats = 6, .limit = limit, .link = UINT64_C(55000000000), .page = page,
		                         .policy = policy };
	hr__forecast forecast;
	*bound_ms = *predicted_ms = 0;
	if (hr__forecast_make(&setup, &forecast) == HR_OK) {
		*bound_ms = (double)forecast.bound_ns / 1e6;
		*predicted_ms = (double)forecast.step_ns / 1e6;
	}
	hr__forecast_free(&forecast);
}

static const char usage[] = "usage: gpu_lms [--trace FILE] [--limits GB,GB] [--policies P,P] [--steps N] [--page MiB] [--rounds [LARGE,SMALL]]\n";

int main(int argc, char **argv)
{
	const char *trace = NULL, *limits = "40,26", *policies = "learned,lru";
	uint32_t repeats = 8;
	uint64_t page = 0;
	unsigned long large = 0, small = 0;
	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--trace") && i + 1 < argc) trace = argv[++i];
		else if (!strcmp(argv[i], "--limits") && i + 1 < argc) limits = argv[++i];
		else if (!strcmp(argv[i], "--policies") && i + 1 < argc) policies = argv[++i];
		else if (!strcmp(argv[i], "--steps") && i + 1 < argc) repeats = (uint32_t)atoi(argv[++i]);
		else if (!strcmp(argv[i], "--page") && i + 1 < argc) page = strtoull(argv[++i], NULL, 0) * MIB;
		else if (!strcmp(argv[i], "--rounds")) {
			large = 100;
			small = 10000;
			if (i + 1 < argc && sscanf(argv[i + 1], "%lu,%lu", &large, &small) == 2) i++;
		} else return fputs(usage, stderr), 2;
	}
	driver_open();
	if (driver.here) kernel_open();
	else puts("Large Model Support: there is no CUDA device. Steps are skipped, rounds are small ones on the emulated device");
	if (trace && driver.here) {
		hr__schedule schedule;
		bench_must(hr__schedule_read(trace, HR__FACTS_DEVICE_MOST, NULL, &schedule));
		uint32_t part = hr__schedule_typical_step(&schedule);
		struct outcome plain = play(&schedule, part, 0, "lru", page, 4);
		printf("plain: %.1f ms a step (the recording: %.1f), peak %.2f GB, %u errors\n", plain.step_ms, (double)schedule.parts[part].ns / 1e6,
		       (double)plain.stats.peak_bytes_in_use / 1e9, plain.errors);
		puts("policy    limit GB   step ms   extra   bound   extra/bound   planned ms   out GB   in GB   link busy out, in   map+unmap ms   errors");
		char list[256], *save;
		snprintf(list, sizeof list, "%s", limits);
		for (char *limit = strtok_r(list, ",", &save); limit; limit = strtok_r(NULL, ",", &save)) {
			char names[64], *inner;
			snprintf(names, sizeof names, "%s", policies);
			for (char *policy = strtok_r(names, ",", &inner); policy; policy = strtok_r(NULL, ",", &inner)) {
				double bound, planned;
				uint64_t bytes = (uint64_t)(strtod(limit, NULL) * 1e9);
				predict(&schedule, part, bytes, policy, page ? page : 2 * MIB, &bound, &planned);
				struct outcome outcome = play(&schedule, part, bytes, policy, page, repeats);
				double extra = outcome.step_ms - plain.step_ms;
				printf("%-9s %8s %9.1f %7.1f %7.1f %13.2f %12.1f %8.2f %7.2f %10.0f%% %5.0f%% %14.1f %8u\n", policy, limit, outcome.step_ms, extra,
				       bound, bound > 0 ? extra / bound : 0, planned, outcome.out_gb, outcome.in_gb,
				       outcome.out_gb / 55 / outcome.step_ms * 1e5, outcome.in_gb / 55 / outcome.step_ms * 1e5,
				       (outcome.map.map_ns + outcome.map.unmap_ns) / 1e6, outcome.errors);
				fflush(stdout);
			}
		}
		hr__schedule_free(&schedule);
	}
	rounds(8, driver.here ? GIB : 32 * MIB, (uint32_t)(driver.here ? large : large / 5), true);
	rounds(1, driver.here ? 64 * MIB : 4 * MIB, (uint32_t)(driver.here ? small : small / 10), false);
	print_table();
	return table.failed;
}
