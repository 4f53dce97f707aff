/* cuda_calls.cpp - the driver's memory calls in a loop, for bench/cuda_programs.py, which compiles it: a CUDA program that knows nothing of Headroom.
 *
 *     cuda_calls plain|ordered|launches|cold
 *
 * plain: cuMemAlloc and cuMemFree of 1 MiB; ordered: cuMemAllocAsync and cuMemFreeAsync of 1 MiB on a stream; launches: cuLaunchKernel of a kernel that does
 * nothing, on a stream. The stream is waited for after every 100. cold: a launch after cuMemAlloc, and cuMemFree, each after 4 MiB of other memory were written,
 * which does not count among the calls: in a program the processor's caches have forgotten a call by the time of the next. Prints "ready" when it is warm, then answers each line "M N" on its standard input, after M of
 * them, with the seconds that one of N took: all of it, the calls without the waiting, each the median of ten parts, and those of the processor, for all threads;
 * and "end" with what it has found out: nothing. */
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <dlfcn.h>
#include <vector>

typedef int (*init)(unsigned);
typedef int (*retain)(void **, int);
typedef int (*set_current)(void *);
typedef int (*make_stream)(void **, unsigned);
typedef int (*wait_for)(void *);
typedef int (*take)(unsigned long long *, size_t);
typedef int (*give)(unsigned long long);
typedef int (*take_ordered)(unsigned long long *, size_t, void *);
typedef int (*give_ordered)(unsigned long long, void *);
typedef int (*load_module)(void **, const void *);
typedef int (*get_function)(void **, void *, const char *);
typedef void *(*make_kernel)(const char *, int, size_t, const size_t *);
typedef int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);

static const size_t bytes = 1 << 20;
static const char nothing[] = ".version 6.3\n.target sm_75\n.address_size 64\n.visible .entry nothing()\n{\n\tret;\n}\n";
static void *driver, *stream, *kernel;
static take alloc;
static give release;
static take_ordered alloc_ordered;
static give_ordered release_ordered;
static wait_for wait;
static launch start;

template <typename call> static call find(const char *name)
{
	void *found = dlsym(driver, name);
	if (!found) fprintf(stderr, "cuda_calls: no %s\n", name), exit(2);
	return reinterpret_cast<call>(found);
}

static void must(int result)
{
	if (result) fprintf(stderr, "cuda_calls: error %d of CUDA\n", result), exit(3);
}

static void plain()
{
	unsigned long long address;
	must(alloc(&address, bytes));
	must(release(address));
}

static void ordered()
{
	unsigned long long address;
	must(alloc_ordered(&address, bytes, stream));
	must(release_ordered(address, stream));
}

static void launches()
{
	must(start(kernel, 1, 1, 1, 1, 1, 1, 0, stream, nullptr, nullptr));
}

/* The stand-in driver of the tests has kernels of its own. */
static void make()
{
	void *module;
	if (dlsym(driver, "fake_cuda_make_kernel")) {
		kernel = find<make_kernel>("fake_cuda_make_kernel")("nothing", 0, 0, &bytes);
		return;
	}
	must(find<load_module>("cuModuleLoadData")(&module, nothing));
	must(find<get_function>("cuModuleGetFunction")(&kernel, module, "nothing"));
}

static unsigned char others[4 << 20];

static void use_other_memory()
{
	for (size_t at = 0; at < sizeof others; at += 64) others[at]++;
	asm volatile("" ::: "memory");
}

static double now()
{
	return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

static double processor_time()
{
	timespec used;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
	return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) * 1e-9;
}

/* The seconds of one call. */
template <typename call> static double cold_call(call made)
{
	use_other_memory();
	double begin = now();
	must(made());
	return now() - begin;
}

static double cold()
{
	unsigned long long address = 0;
	double calls = cold_call([&] { return alloc(&address, bytes); });
	calls += cold_call([] { return start(kernel, 1, 1, 1, 1, 1, 1, 0, stream, nullptr, nullptr); });
	return calls + cold_call([&] { return release(address); });
}

static double repeat_cold(long count)
{
	double calls = 0;
	for (long done = 0; done < count; done++) calls += cold();
	return calls;
}

/* The seconds of the calls alone. */
static double repeat(void (*step)(), long count)
{
	double calls = 0;
	if (!step) return repeat_cold(count);
	for (long done = 0; done < count;) {
		double begin = now();
		for (long end = std::min(count, done + 100); done < end; done++) step();
		calls += now() - begin;
		if (step != plain) must(wait(stream));
	}
	return calls;
}

static double median(std::vector<double> &values)
{
	std::sort(values.begin(), values.end());
	return values[values.size() / 2];
}

static void measure(void (*step)(), const char *line)
{
	char *rest;
	long before = strtol(line, &rest, 10), steps = strtol(rest, nullptr, 10), part = std::max(1L, steps / 10);
	std::vector<double> all, calls;
	repeat(step, before);
	double used = processor_time();
	for (long done = 0; done < steps; done += part) {
		long some = std::min(part, steps - done);
		double begin = now(), of_calls = repeat(step, some);
		all.push_back((now() - begin) / static_cast<double>(some));
		calls.push_back(of_calls / static_cast<double>(some));
	}
	used = (processor_time() - used) / static_cast<double>(steps);
	printf("%.12f %.12f %.12f\n", median(all), median(calls), used);
	fflush(stdout);
}

int main(int count, char **arguments)
{
	void *context;
	char line[64];
	const char *name = count > 1 ? arguments[1] : "plain";
	driver = dlopen("libcuda.so.1", RTLD_NOW);
	if (!driver) return fprintf(stderr, "cuda_calls: %s\n", dlerror()), 2;
	must(find<init>("cuInit")(0));
	must(find<retain>("cuDevicePrimaryCtxRetain")(&context, 0));
	must(find<set_current>("cuCtxSetCurrent")(context));
	must(find<make_stream>("cuStreamCreate")(&stream, 1));
	alloc = find<take>("cuMemAlloc_v2");
	release = find<give>("cuMemFree_v2");
	alloc_ordered = find<take_ordered>("cuMemAllocAsync");
	release_ordered = find<give_ordered>("cuMemFreeAsync");
	wait = find<wait_for>("cuStreamSynchronize");
	start = find<launch>("cuLaunchKernel");
	void (*step)() = strcmp(name, "ordered") == 0 ? ordered : strcmp(name, "launches") == 0 ? launches : plain;
	if (strcmp(name, "cold") == 0) step = nullptr;
	if (!step || step == launches) make();
	repeat(step, 200);
	puts("ready");
	fflush(stdout);
	while (fgets(line, sizeof line, stdin) && strncmp(line, "end", 3) != 0) measure(step, line);
	puts("same");
	return 0;
}
