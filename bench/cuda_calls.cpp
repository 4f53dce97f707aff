/* cuda_calls.cpp - the driver's memory calls in a loop, for bench/cuda_programs.py, which compiles it: a CUDA program that knows nothing of Headroom.
 *
 *     cuda_calls plain|ordered
 *
 * plain: cuMemAlloc and cuMemFree of 1 MiB; ordered: cuMemAllocAsync and cuMemFreeAsync of 1 MiB on a stream, which is waited for after every 100. Prints
 * "ready", then answers each line "N" on its standard input with the seconds that N pairs took, and "end" with what it has found out: nothing. */
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>

typedef int (*init)(unsigned);
typedef int (*retain)(void **, int);
typedef int (*set_current)(void *);
typedef int (*make_stream)(void **, unsigned);
typedef int (*wait_for)(void *);
typedef int (*take)(unsigned long long *, size_t);
typedef int (*give)(unsigned long long);
typedef int (*take_ordered)(unsigned long long *, size_t, void *);
typedef int (*give_ordered)(unsigned long long, void *);

static void *driver;

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

int main(int count, char **arguments)
{
	const size_t bytes = 1 << 20;
	bool ordered = count > 1 && strcmp(arguments[1], "ordered") == 0;
	void *context, *stream;
	unsigned long long address;
	char line[64];
	driver = dlopen("libcuda.so.1", RTLD_NOW);
	if (!driver) return fprintf(stderr, "cuda_calls: %s\n", dlerror()), 2;
	must(find<init>("cuInit")(0));
	must(find<retain>("cuDevicePrimaryCtxRetain")(&context, 0));
	must(find<set_current>("cuCtxSetCurrent")(context));
	must(find<make_stream>("cuStreamCreate")(&stream, 1));
	take alloc = find<take>("cuMemAlloc_v2");
	give release = find<give>("cuMemFree_v2");
	take_ordered alloc_ordered = find<take_ordered>("cuMemAllocAsync");
	give_ordered release_ordered = find<give_ordered>("cuMemFreeAsync");
	wait_for wait = find<wait_for>("cuStreamSynchronize");
	puts("ready");
	fflush(stdout);
	while (fgets(line, sizeof line, stdin) && strncmp(line, "end", 3) != 0) {
		auto begin = std::chrono::steady_clock::now();
		for (long i = 0, pairs = atol(line); i < pairs; i++) {
			must(ordered ? alloc_ordered(&address, bytes, stream) : alloc(&address, bytes));
			must(ordered ? release_ordered(address, stream) : release(address));
			if (ordered && i % 100 == 99) must(wait(stream));
		}
		must(wait(stream));
		printf("%.9f\n", std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
		fflush(stdout);
	}
	puts("same");
	return 0;
}
