/* hostile.c - programs that are hard to stand in front of, for test_hostile.py: each does the same, and prints the same, with and without
 * `headroom run`.
 *
 *     hostile SCENARIO
 *
 * A line "live 0" at the end says that the driver has no memory of the program left, and "stats 0" that Headroom, if it is in the process, agrees. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fake_cuda/fake_cuda.h"
#include "headroom.h"

#define CALLS(X)                                                                       \
	X(cuInit, (unsigned int))                                                          \
	X(cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice))                               \
	X(cuDevicePrimaryCtxReset_v2, (CUdevice))                                          \
	X(cuCtxSetCurrent, (CUcontext))                                                    \
	X(cuCtxCreate_v2, (CUcontext *, unsigned int, CUdevice))                           \
	X(cuCtxDestroy_v2, (CUcontext))                                                    \
	X(cuStreamCreate, (CUstream *, unsigned int))                                      \
	X(cuMemAlloc_v2, (CUdeviceptr *, size_t))                                          \
	X(cuMemFree_v2, (CUdeviceptr))                                                     \
	X(cuMemAllocAsync, (CUdeviceptr *, size_t, CUstream))                              \
	X(cuMemFreeAsync, (CUdeviceptr, CUstream))                                         \
	X(cuMemGetInfo_v2, (size_t *, size_t *))                                           \
	X(cuStreamSynchronize, (CUstream))                                                 \
	X(cuMemCreate, (CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long)) \
	X(cuMemAddressReserve, (CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long)) \
	X(cuMemAddressFree, (CUdeviceptr, size_t))                                         \
	X(cuMemMap, (CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long)) \
	X(cuMemUnmap, (CUdeviceptr, size_t))                                               \
	X(cuMemRelease, (CUmemGenericAllocationHandle))                                    \
	X(cuGetProcAddress_v2, (const char *, void **, int, unsigned long long, int *))

static struct {
#define MEMBER(symbol, parameters) CUresult(*symbol) parameters;
	CALLS(MEMBER)
	void (*get_live)(fake_cuda_live *out);
} cu;

static void *driver;
static CUcontext primary;

static void take(const char *symbol, void *member)
{
	void *found = dlsym(driver, symbol);
	if (!found) fprintf(stderr, "hostile: no %s\n", symbol), exit(2);
	memcpy(member, &found, sizeof found);
}

static void load(void)
{
	driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	if (!driver) fprintf(stderr, "hostile: %s\n", dlerror()), exit(2);
#define TAKE(symbol, parameters) take(#symbol, &cu.symbol);
	CALLS(TAKE)
	take("fake_cuda_get_live", &cu.get_live);
}

static void must(CUresult result, const char *call)
{
	if (result != HR__CUDA_SUCCESS) fprintf(stderr, "hostile: %s -> %d\n", call, result), exit(3);
}
#define MUST(call) must(call, #call)

static void start(void)
{
	load();
	MUST(cu.cuInit(0));
	MUST(cu.cuDevicePrimaryCtxRetain(&primary, 0));
	MUST(cu.cuCtxSetCurrent(primary));
}

/* ---- what is left ---- */

#define LOAD(name) __typeof__(name) *name##_ = (__typeof__(name) *)(uintptr_t)dlsym(RTLD_DEFAULT, #name)

static long long in_use(const char *name)
{
	LOAD(hr_device_find);
	LOAD(hr_device_get_stats);
	LOAD(hr_stats_init_sized);
	hr_device device;
	hr_stats stats;
	if (!hr_device_find_ || !hr_device_get_stats_ || !hr_stats_init_sized_) return 0;
	hr_stats_init_sized_(&stats, sizeof stats);
	return hr_device_find_(name, &device) == HR_OK && hr_device_get_stats_(device, &stats) == HR_OK ? stats.bytes_in_use : 0;
}

/* Headroom's own pages are in the driver too; what the program has from it is plain memory, or recorded. */
static void print_left(void)
{
	fake_cuda_live live;
	cu.get_live(&live);
	printf("live %llu\nstats %lld\n", live.plain_bytes, in_use("CUDA:0") + (getenv("HOSTILE_MANAGED") ? in_use("GPU:0") : 0));
}

/* ---- threads that end while others allocate ---- */

#define MAILBOXES 64
static CUdeviceptr mailboxes[MAILBOXES]; /* each thread puts a block in and frees what was there */
static pthread_key_t at_thread_end;
static CUstream shared_stream;

static void free_at_thread_end(void *address)
{
	MUST(cu.cuMemFree_v2((CUdeviceptr)(uintptr_t)address));
}

static void *live_shortly(void *argument)
{
	CUdeviceptr kept;
	unsigned seed = (unsigned)(uintptr_t)argument;
	MUST(cu.cuCtxSetCurrent(primary));
	MUST(cu.cuMemAlloc_v2(&kept, 4096));
	pthread_setspecific(at_thread_end, (void *)(uintptr_t)kept);
	for (int i = 0; i < 20; i++) {
		CUdeviceptr made, before;
		seed = seed * 1103515245u + 12345u;
		size_t bytes = 512 + seed % 100000;
		if (seed & 0x10000) MUST(cu.cuMemAlloc_v2(&made, bytes));
		else MUST(cu.cuMemAllocAsync(&made, bytes, shared_stream));
		MUST(cu.cuStreamSynchronize(shared_stream));
		before = __atomic_exchange_n(&mailboxes[seed >> 8 & (MAILBOXES - 1)], made, __ATOMIC_ACQ_REL);
		if (before) MUST(seed & 0x20000 ? cu.cuMemFree_v2(before) : cu.cuMemFreeAsync(before, shared_stream));
	}
	return NULL;
}

static void run_short_threads(void)
{
	pthread_t threads[8] = { 0 };
	start();
	MUST(cu.cuStreamCreate(&shared_stream, HR__CU_STREAM_NON_BLOCKING));
	pthread_key_create(&at_thread_end, free_at_thread_end);
	for (unsigned i = 0; i < 160; i++) {
		if (threads[i % 8]) pthread_join(threads[i % 8], NULL);
		if (pthread_create(&threads[i % 8], NULL, live_shortly, (void *)(uintptr_t)(i + 1)) != 0) abort();
	}
	for (unsigned i = 0; i < 8; i++) pthread_join(threads[i], NULL);
	for (unsigned i = 0; i < MAILBOXES; i++)
		if (mailboxes[i]) MUST(cu.cuMemFree_v2(mailboxes[i]));
	MUST(cu.cuStreamSynchronize(shared_stream));
	print_left();
}

/* ---- a thread with little stack ---- */

#define LITTLE_STACK 32768 /* twice the least that a thread can have; starting a recording takes 20 KiB */

static void *use_little_stack(void *unused)
{
	CUdeviceptr plain, ordered, refused = 7;
	(void)unused;
	MUST(cu.cuCtxSetCurrent(primary));
	for (int i = 0; i < 20; i++) {
		MUST(cu.cuMemAlloc_v2(&plain, 5000));
		MUST(cu.cuMemAllocAsync(&ordered, 70000, NULL));
		if (cu.cuMemAlloc_v2(&refused, (size_t)1 << 40) != HR__CUDA_ERROR_OUT_OF_MEMORY || refused != 7) abort();
		MUST(cu.cuMemFreeAsync(ordered, NULL));
		MUST(cu.cuMemFree_v2(plain));
	}
	MUST(cu.cuStreamSynchronize(NULL));
	return NULL;
}

static void run_little_stack(void)
{
	pthread_attr_t attributes;
	pthread_t thread;
	start();
	pthread_attr_init(&attributes);
	pthread_attr_setstacksize(&attributes, LITTLE_STACK);
	for (int i = 0; i < 4; i++) {
		if (pthread_create(&thread, &attributes, use_little_stack, NULL) != 0) abort();
		pthread_join(thread, NULL);
	}
	print_left();
}

/* ---- a driver that is loaded and closed again ---- */

static void run_close(void)
{
	CUdeviceptr address;
	for (int i = 0; i < 20; i++) {
		load();
		cu.cuMemAlloc_v2(&address, 4096); /* not initialised */
		dlclose(driver);
	}
	start();
	MUST(cu.cuMemAlloc_v2(&address, 4096));
	for (int i = 0; i < 20; i++) dlclose(dlopen("libcuda.so.1", RTLD_NOW));
	MUST(cu.cuMemFree_v2(address));
	print_left();
}

/* ---- fork ---- */

static void wait_for(pid_t child)
{
	int status;
	if (waitpid(child, &status, 0) != child) abort();
	if (status) printf("a child ended with 0x%x\n", status);
}

/* Children that use CUDA first, as worker processes do, and then the parent. */
static void run_fork_first(void)
{
	CUdeviceptr address;
	for (int i = 0; i < 3; i++) {
		fflush(stdout);
		pid_t child = fork();
		if (child == 0) {
			start();
			MUST(cu.cuMemAlloc_v2(&address, 4096));
			MUST(cu.cuMemFree_v2(address));
			print_left();
			exit(0);
		}
		wait_for(child);
	}
	start();
	MUST(cu.cuMemAlloc_v2(&address, 4096));
	MUST(cu.cuMemFree_v2(address));
	print_left();
}

static volatile bool stopping;

static void *allocate_until_stopped(void *unused)
{
	CUdeviceptr address;
	CUmemGenericAllocationHandle handle;
	CUmemAllocationProp on = { .type = HR__CU_MEM_ALLOCATION_TYPE_PINNED, .location = { HR__CU_MEM_LOCATION_TYPE_DEVICE, 0 } };
	(void)unused;
	MUST(cu.cuCtxSetCurrent(primary));
	while (!stopping) {
		MUST(cu.cuMemAlloc_v2(&address, 4096));
		MUST(cu.cuMemCreate(&handle, 2 << 20, &on, 0));
		MUST(cu.cuMemRelease(handle));
		MUST(cu.cuMemFree_v2(address));
	}
	return NULL;
}

/* Any lock may be held by another thread of the parent. The calls of a child need not succeed, but they return. */
static void run_fork_among_threads(void)
{
	pthread_t threads[3];
	start();
	for (int i = 0; i < 3; i++)
		if (pthread_create(&threads[i], NULL, allocate_until_stopped, NULL) != 0) abort();
	for (int i = 0; i < 60; i++) {
		pid_t child = fork();
		if (child == 0) {
			CUdeviceptr address = 0;
			size_t free_bytes, total;
			alarm(20);
			if (cu.cuMemAlloc_v2(&address, 4096) == HR__CUDA_SUCCESS) cu.cuMemFree_v2(address);
			if (cu.cuMemAllocAsync(&address, 4096, NULL) == HR__CUDA_SUCCESS) cu.cuMemFree_v2(address);
			cu.cuMemGetInfo_v2(&free_bytes, &total);
			dlsym(driver, "cuMemAlloc_v2");
			_exit(0);
		}
		wait_for(child);
	}
	stopping = true;
	for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
	print_left();
}

/* The process ends while its threads are inside of calls. What they return at the end does not matter, but nothing crashes or hangs. */
static void *allocate_for_ever(void *unused)
{
	CUdeviceptr address;
	(void)unused;
	cu.cuCtxSetCurrent(primary);
	for (unsigned i = 0;; i++) {
		CUresult result = i & 1 ? cu.cuMemAlloc_v2(&address, 4096) : cu.cuMemAllocAsync(&address, 70000, NULL);
		if (result == HR__CUDA_SUCCESS) i & 2 ? cu.cuMemFree_v2(address) : cu.cuMemFreeAsync(address, NULL);
	}
	return NULL;
}

static void run_exit_among_threads(void)
{
	CUdeviceptr address;
	for (unsigned i = 0; i < 12; i++) {
		fflush(stdout);
		pid_t child = fork();
		if (child == 0) {
			pthread_t thread;
			start();
			for (int t = 0; t < 3; t++)
				if (pthread_create(&thread, NULL, allocate_for_ever, NULL) != 0) abort();
			alarm(20);
			usleep(3000 * (i % 4 + 1));
			exit(0);
		}
		wait_for(child);
	}
	start();
	MUST(cu.cuMemAlloc_v2(&address, 4096));
	MUST(cu.cuMemFree_v2(address));
	print_left();
}

/* A child that is another program, by the three calls that make one. */
static void run_exec(void)
{
	extern char **environ;
	char *arguments[] = { "hostile", "fork_first", NULL };
	pid_t child;
	start();
	fflush(stdout);
	if ((child = fork()) == 0) execv("/proc/self/exe", arguments), _exit(9);
	wait_for(child);
	if ((child = vfork()) == 0) execv("/proc/self/exe", arguments), _exit(9);
	wait_for(child);
	if (posix_spawn(&child, "/proc/self/exe", NULL, NULL, arguments, environ) != 0) abort();
	wait_for(child);
	print_left();
}

/* ---- signals ---- */

static volatile sig_atomic_t ticks;

static void tick(int number)
{
	(void)number;
	ticks++;
}

/* System calls are interrupted, without SA_RESTART. */
static void run_signals(void)
{
	struct sigaction action = { .sa_handler = tick };
	struct itimerval often = { { 0, 200 }, { 0, 200 } }, never = { { 0, 0 }, { 0, 0 } };
	CUdeviceptr kept[64] = { 0 }, refused;
	sigaction(SIGALRM, &action, NULL);
	setitimer(ITIMER_REAL, &often, NULL);
	start();
	for (int i = 0; i < 3000 || ticks < 20; i++) {
		CUdeviceptr *slot = &kept[i % 64];
		if (*slot) MUST(cu.cuMemFree_v2(*slot));
		MUST(cu.cuMemAlloc_v2(slot, 4096 + (size_t)i % 100000));
		if (i % 100 == 0 && cu.cuMemAlloc_v2(&refused, (size_t)1 << 40) != HR__CUDA_ERROR_OUT_OF_MEMORY) abort();
	}
	for (int i = 0; i < 64; i++) MUST(cu.cuMemFree_v2(kept[i]));
	setitimer(ITIMER_REAL, &never, NULL);
	print_left();
}

/* ---- cuGetProcAddress ---- */

static void run_odd_searches(void)
{
	static char longest[5000];
	const char *names[] = { "cuMemAlloc", "cuMemAlloc_v2", "cumemalloc", "cuMemAllocAsync", "cuGetProcAddress", "cuMemFree_v2_ptsz", "", longest, "cu", "cuInit" };
	const int versions[] = { INT_MIN, -1, 0, 1, 2000, 3010, 3020, 11000, 11020, 13000, 13990, 14000, INT_MAX };
	const unsigned long long flags[] = { 0, 1, 2, 3, 4, ~0ull };
	memset(longest, 'c', sizeof longest - 1);
	start();
	for (size_t n = 0; n < sizeof names / sizeof *names; n++)
		for (size_t v = 0; v < sizeof versions / sizeof *versions; v++)
			for (size_t f = 0; f < sizeof flags / sizeof *flags; f++) {
				void *found = &found;
				int why = 77;
				CUresult result = cu.cuGetProcAddress_v2(names[n], &found, versions[v], flags[f], f & 1 ? &why : NULL);
				printf("%zu %d %zu: %d %s %d\n", n, versions[v], f, result, found == &found ? "untouched" : found ? "found" : "null", why);
			}
	printf("%d\n", cu.cuGetProcAddress_v2(NULL, NULL, 13000, 0, NULL));
	print_left();
}

static void *search(const char *name, int version)
{
	void *found = NULL;
	int why;
	MUST(cu.cuGetProcAddress_v2(name, &found, version, 0, &why));
	return found;
}

/* A name may mean another signature in a version that did not exist when Headroom was compiled. */
static void run_later_signature(void)
{
	CUdeviceptr address = 0;
	CUresult (*with_flags)(CUdeviceptr *, size_t, int), (*without)(CUdeviceptr *, size_t);
	start();
	void *later = search("cuMemAlloc", 14000), *now = search("cuMemAlloc", 13000);
	memcpy(&with_flags, &later, sizeof later);
	memcpy(&without, &now, sizeof now);
	printf("%d %d\n", later != now, with_flags(&address, 1000, 8));
	MUST(with_flags(&address, 1000, 7));
	MUST(cu.cuMemFree_v2(address));
	MUST(without(&address, 1000));
	if (getenv("HOSTILE_MANAGED") && in_use("CUDA:0") + in_use("GPU:0") < 1000) puts("not recorded");
	MUST(cu.cuMemFree_v2(address));
	print_left();
}

/* Names that are symbols, if the driver knows them. */
static void run_symbol_names(void)
{
	CUdeviceptr address = 0;
	CUresult (*alloc)(CUdeviceptr *, size_t);
	start();
	void *found = search("cuMemAlloc_v2", 13000);
	memcpy(&alloc, &found, sizeof found);
	MUST(alloc(&address, 1000));
	if (getenv("HOSTILE_MANAGED") && in_use("CUDA:0") + in_use("GPU:0") < 1000) puts("not recorded");
	MUST(cu.cuMemFree_v2(address));
	print_left();
}

/* ---- RTLD_DEEPBIND ---- */

__attribute__((visibility("default"))) int program_which(void);
__attribute__((visibility("default"))) int program_which(void)
{
	return 1;
}

/* The module beside the program has a function of this name too, and calls it. */
static void run_deepbind(void)
{
	char path[4096];
	int (*ask)(void);
	ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
	path[length > 0 ? length : 0] = 0;
	strcpy(strrchr(path, '/') + 1, "cuda_program_module.so");
	void *module = dlopen(path, RTLD_NOW | RTLD_DEEPBIND), *found = module ? dlsym(module, "program_ask_which") : NULL;
	if (!found) fprintf(stderr, "hostile: %s\n", dlerror()), exit(2);
	memcpy(&ask, &found, sizeof found);
	puts(ask() == 1 ? "bound to the program's" : "bound to its own");
	start();
	print_left();
}

/* ---- before main and after it ---- */

static CUdeviceptr early, late;
static bool is_early;

static void after_main(void)
{
	MUST(cu.cuMemFree_v2(early));
	MUST(cu.cuMemAlloc_v2(&late, 3000));
	puts("after main");
	fflush(stdout);
}

__attribute__((constructor)) static void before_main(int count, char **arguments)
{
	if (count < 2 || strcmp(arguments[1], "early") != 0) return;
	start();
	MUST(cu.cuMemAlloc_v2(&early, 1000));
	atexit(after_main);
	is_early = true;
}

__attribute__((destructor)) static void at_the_very_end(void)
{
	if (!is_early) return;
	MUST(cu.cuMemFree_v2(late));
	print_left();
	fflush(stdout);
}

/* ---- very many blocks ---- */

#define MANY 30000
static CUdeviceptr many[MANY];

static void run_many(void)
{
	CUcontext own;
	start();
	for (int round = 0; round < 2; round++) {
		for (int i = 0; i < MANY; i++) MUST(cu.cuMemAlloc_v2(&many[i], 256));
		for (int i = MANY; i-- > 0;) MUST(cu.cuMemFree_v2(many[i]));
	}
	print_left();
	MUST(cu.cuCtxCreate_v2(&own, 0, 0));
	for (int i = 0; i < MANY; i++) MUST(cu.cuMemAlloc_v2(&many[i], 256));
	MUST(cu.cuCtxDestroy_v2(own)); /* ends them all */
	MUST(cu.cuCtxSetCurrent(primary));
	print_left();
}

/* ---- physical memory ---- */

/* One call unmaps what several mapped. */
static void run_mappings(void)
{
	const size_t size = 2 << 20;
	CUdeviceptr base;
	CUmemGenericAllocationHandle handles[4];
	CUmemAllocationProp on = { .type = HR__CU_MEM_ALLOCATION_TYPE_PINNED, .location = { HR__CU_MEM_LOCATION_TYPE_DEVICE, 0 } };
	start();
	for (int round = 0; round < 3; round++) {
		MUST(cu.cuMemAddressReserve(&base, 4 * size, 0, 0, 0));
		for (unsigned i = 0; i < 4; i++) {
			MUST(cu.cuMemCreate(&handles[i], size, &on, 0));
			MUST(cu.cuMemMap(base + i * size, size, 0, handles[i], 0));
			if (i % 2) MUST(cu.cuMemRelease(handles[i]));
		}
		MUST(cu.cuMemUnmap(base + size, 2 * size));
		MUST(cu.cuMemUnmap(base, size));
		MUST(cu.cuMemUnmap(base + 3 * size, size));
		MUST(cu.cuMemAddressFree(base, 4 * size));
		MUST(cu.cuMemRelease(handles[0]));
		MUST(cu.cuMemRelease(handles[2]));
	}
	print_left();
}

int main(int count, char **arguments)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} scenarios[] = {
		{ "short_threads", run_short_threads }, { "little_stack", run_little_stack }, { "close", run_close }, { "fork_first", run_fork_first },
		{ "fork_among_threads", run_fork_among_threads }, { "exec", run_exec }, { "exit_among_threads", run_exit_among_threads }, { "signals", run_signals }, { "odd_searches", run_odd_searches },
		{ "later_signature", run_later_signature }, { "symbol_names", run_symbol_names }, { "deepbind", run_deepbind }, { "many", run_many },
		{ "mappings", run_mappings },
	};
	for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios && count > 1; i++)
		if (strcmp(scenarios[i].name, arguments[1]) == 0) scenarios[i].run();
	puts("end");
	return 0;
}
