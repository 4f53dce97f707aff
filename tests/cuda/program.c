/* program.c - a CUDA program that knows nothing of Headroom, for test_run_cuda.py.
 *
 *     program WAY COMMAND...
 *
 * WAY is how it obtains the driver's calls (program.h), "link" for a program that is linked to the driver, or "module:WAY" and "deepbind:WAY" for a
 * module that obtains them, loaded by dlopen. Commands are words with numbers, such as alloc:0:1048576 for a block of 1 MiB in slot 0. A call that
 * fails is printed with its result; so are "info", "total" and "stats", which compares Headroom's statistics with what the driver has.
 *
 *     PROGRAM_WALK=KIND program WAY COMMAND...
 *
 * runs the commands once for each call that can be made to fail, in a child process each, and prints a line for each child: what it printed, with the name of
 * the call and what it said on the standard error. The last line is that of the first child in which no call failed. KIND is "driver" for calls of the
 * driver, "system" for those of the system by libheadroom, "memory" for malloc and calloc by libheadroom_cuda; followed by "-on", the later calls fail too. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cuda/program.h"
#include "headroom.h"

#define SLOTS 64
#define UNTOUCHED 0x5a5a5a5a5a5a5a5aull

static program_calls cu;
static CUcontext primary, own_context;
static CUstream stream;
static CUmemoryPool own_pool;
static struct {
	CUdeviceptr address;
	void *host;
	CUmemGenericAllocationHandle handle;
	size_t bytes;
} slots[SLOTS];

#ifdef LINKED
#define PROTOTYPE(symbol, name, since, parameters) extern CUresult symbol parameters;
#define OTHER_PROTOTYPE(symbol, parameters) extern CUresult symbol parameters;
HR__ANSWERED_PLAIN(PROTOTYPE)
HR__ANSWERED_STREAM(PROTOTYPE)
PROGRAM_CALLS(OTHER_PROTOTYPE)

static bool obtain_linked(program_calls *out)
{
#define TAKE(symbol, name, since, parameters) out->symbol = symbol;
#define TAKE_OTHER(symbol, parameters) out->other_##symbol = symbol;
	HR__ANSWERED_PLAIN(TAKE)
	HR__ANSWERED_STREAM(TAKE)
	PROGRAM_CALLS(TAKE_OTHER)
	out->get_live = fake_cuda_get_live;
	out->fail_nth = fake_cuda_fail_nth;
	out->count_calls = fake_cuda_calls;
	out->failed = fake_cuda_failed;
	out->make_kernel = fake_cuda_make_kernel;
	return true;
}
#else
static bool obtain_linked(program_calls *out)
{
	(void)out;
	return false;
}
#endif

/* The module is beside the program. */
static bool obtain_in_module(const char *way, int flags)
{
	char path[4096];
	bool (*obtain)(const char *, program_calls *);
	ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
	if (length <= 0) return false;
	path[length] = 0;
	strcpy(strrchr(path, '/') + 1, "cuda_program_module.so");
	void *module = dlopen(path, RTLD_NOW | flags);
	void *found = module ? dlsym(module, "program_obtain") : NULL;
	if (!found) fprintf(stderr, "program: %s\n", dlerror());
	memcpy(&obtain, &found, sizeof found);
	return found && obtain(way, &cu);
}

static bool obtain(const char *way)
{
	if (strcmp(way, "link") == 0) return obtain_linked(&cu);
	if (strncmp(way, "module:", 7) == 0) return obtain_in_module(way + 7, 0);
	if (strncmp(way, "deepbind:", 9) == 0) return obtain_in_module(way + 9, RTLD_DEEPBIND);
	return program_obtain(way, &cu);
}

/* ---- statistics ---- */

#define LOAD(name) __typeof__(name) *name##_ = (__typeof__(name) *)(uintptr_t)dlsym(RTLD_DEFAULT, #name)

/* Bytes that Headroom says are in use on [name]; -1 if Headroom is not in the process, or has no such device. */
static long long in_use(const char *name)
{
	LOAD(hr_device_find);
	LOAD(hr_device_get_stats);
	LOAD(hr_stats_init_sized);
	hr_device device;
	hr_stats stats;
	if (!hr_device_find_ || !hr_device_get_stats_ || !hr_stats_init_sized_) return -1;
	hr_stats_init_sized_(&stats, sizeof stats);
	if (hr_device_find_(name, &device) != HR_OK || hr_device_get_stats_(device, &stats) != HR_OK) return -1;
	return stats.bytes_in_use;
}

static void print_stats(const char *name)
{
	fake_cuda_live live;
	cu.get_live(&live);
	printf("stats %lld of %llu\n", in_use(name ? name : "CUDA:0"), live.plain_bytes + live.handle_bytes);
}

/* All that the driver has given, to Headroom or the program. */
static void print_live(void)
{
	fake_cuda_live live;
	cu.get_live(&live);
	printf("live %llu\n", live.plain_bytes + live.handle_bytes);
}

/* Calls of the driver since this was last printed. */
static void print_calls(void)
{
	printf("calls %llu\n", cu.count_calls());
	cu.fail_nth(0, HR__CUDA_SUCCESS);
}

/* A block of libheadroom's own default allocator, in a program that uses both. */
static CUresult use_headroom(size_t bytes)
{
	LOAD(hr_allocator_get_default);
	LOAD(hr_alloc_bytes);
	hr_allocator allocator;
	void *block;
	bool done = hr_allocator_get_default_ && hr_allocator_get_default_("GPU:0", &allocator) == HR_OK && hr_alloc_bytes_(allocator, bytes, &block) == HR_OK;
	return done ? HR__CUDA_SUCCESS : HR__CUDA_ERROR_UNKNOWN;
}

/* ---- kernels and ranges ---- */

/* A kernel (float *, { int, pad, float * }, int), launched by one of the calls with the blocks of [slot] and the next one, [way]: 0 cuLaunchKernel,
 * 1 with a CUkernel, 2 cuLaunchKernelEx, 3 cuLaunchCooperativeKernel, 4 with the arguments in a buffer, 5 with an address inside the first block. */
static CUresult launch(int slot, size_t way)
{
	static CUfunction function, kernel;
	static const size_t sizes[] = { 8, 16, 4 };
	if (!function) function = cu.make_kernel("_Z5scalePf6vectori", 0, 3, sizes);
	if (!kernel) kernel = cu.make_kernel("add_kernel", 1, 3, sizes);
	struct { CUdeviceptr first; uint64_t second[2]; uint64_t third; } buffer = { slots[slot].address + (way == 5 ? 16 : 0), { 4, slots[slot + 1].address }, 7 };
	void *arguments[] = { &buffer.first, buffer.second, &buffer.third };
	size_t size = sizeof buffer;
	void *extra[] = { (void *)1, &buffer, (void *)2, &size, NULL };
	CUlaunchConfig config = { 1, 1, 1, 1, 1, 1, 0, stream, NULL, 0 };
	switch (way) {
	case 2: return cu.cuLaunchKernelEx(&config, function, arguments, NULL);
	case 3: return cu.cuLaunchCooperativeKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, arguments);
	case 4: return cu.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, NULL, extra);
	default: return cu.cuLaunchKernel(way == 1 ? kernel : function, 1, 1, 1, 1, 1, 1, 0, stream, arguments, NULL);
	}
}

/* Kernels of as many names, each launched after a request of 10,000 bytes and its number, and all of them again after code was unloaded. */
static CUresult launch_many(size_t count)
{
	CUresult result = HR__CUDA_SUCCESS;
	CUfunction *made = malloc(count * sizeof *made);
	char name[32];
	for (size_t i = 0; made && i < count; i++) {
		snprintf(name, sizeof name, "kernel_%zu", i);
		made[i] = cu.make_kernel(name, 0, 0, NULL);
	}
	for (size_t i = 0; made && i < 2 * count && result == HR__CUDA_SUCCESS; i++) {
		CUdeviceptr address;
		if (i == count) result = cu.cuModuleUnload((CUmodule)2);
		if (result == HR__CUDA_SUCCESS) result = cu.cuMemAlloc_v2(&address, 10000 + i % count);
		if (result == HR__CUDA_SUCCESS) result = cu.cuLaunchKernel(made[i % count], 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
		if (result == HR__CUDA_SUCCESS) result = cu.other_cuCtxSynchronize();
		if (result == HR__CUDA_SUCCESS) result = cu.cuMemFree_v2(address);
	}
	free(made);
	return result;
}

/* Work of the stream that waits until the program opens a gate, as a kernel may wait for a flag of the host. */
static bool gate_is_open;

static void wait_at_gate(void *unused)
{
	(void)unused;
	while (!__atomic_load_n(&gate_is_open, __ATOMIC_ACQUIRE)) usleep(1000);
}

static CUresult gate(bool open)
{
	__atomic_store_n(&gate_is_open, open, __ATOMIC_RELEASE);
	return open ? HR__CUDA_SUCCESS : cu.other_cuLaunchHostFunc(stream, wait_at_gate, NULL);
}

/* A thread that opens the gate later, after a request on a stream of its own. */
static void *open_later(void *unused)
{
	CUstream own;
	CUdeviceptr address;
	(void)unused;
	usleep(200000);
	bool done = cu.other_cuCtxSetCurrent(primary) == HR__CUDA_SUCCESS && cu.other_cuStreamCreate(&own, HR__CU_STREAM_NON_BLOCKING) == HR__CUDA_SUCCESS &&
	            cu.cuMemAllocAsync(&address, 1000, own) == HR__CUDA_SUCCESS && cu.cuMemFreeAsync(address, own) == HR__CUDA_SUCCESS;
	if (!done) puts("a request failed");
	gate(true);
	return NULL;
}

static CUresult open_gate_later(void)
{
	pthread_t thread;
	if (pthread_create(&thread, NULL, open_later, NULL) != 0) abort();
	pthread_detach(thread);
	return HR__CUDA_SUCCESS;
}

static long resident_mib(void)
{
	long pages = 0;
	FILE *file = fopen("/proc/self/statm", "re");
	if (file && fscanf(file, "%*d %ld", &pages) != 1) pages = 0;
	if (file) fclose(file);
	return pages * sysconf(_SC_PAGESIZE) >> 20;
}

/* A program that loads and unloads code all the time, and launches kernels of other modules meanwhile. */
static CUresult churn(size_t rounds)
{
	long before = 0;
	for (size_t i = 0; i < rounds; i++) {
		CUresult result = cu.cuMemAlloc_v2(&slots[0].address, 1000);
		if (result == HR__CUDA_SUCCESS) result = launch(0, 0);
		if (result == HR__CUDA_SUCCESS) result = launch(0, 1);
		if (result == HR__CUDA_SUCCESS) result = cu.other_cuCtxSynchronize();
		if (result == HR__CUDA_SUCCESS) result = cu.cuModuleUnload((CUmodule)2);
		if (result == HR__CUDA_SUCCESS) result = cu.cuMemFree_v2(slots[0].address);
		if (result != HR__CUDA_SUCCESS) return result;
		if (i == rounds / 4) before = resident_mib();
	}
	if (resident_mib() - before > 4) printf("grown by %ld MiB\n", resident_mib() - before);
	return HR__CUDA_SUCCESS;
}

/* The functions of NVTX, as its header keeps them: NULL until an injected library has filled them in. */
static int (*nvtx_push)(const char *);
static int (*nvtx_pop)(void);

static int get_nvtx_table(int module, void (***table)(void), unsigned int *size)
{
	static void (**slots_of_core[16])(void);
	slots_of_core[9] = (void (**)(void))&nvtx_push;
	slots_of_core[11] = (void (**)(void))&nvtx_pop;
	*table = (void (**)(void))slots_of_core;
	*size = module == 1 ? 16 : 0;
	return module == 1;
}

static const void *get_nvtx_export(uint32_t id)
{
	static const struct { size_t size; int (*get)(int, void (***)(void), unsigned int *); } callbacks = { sizeof callbacks, get_nvtx_table };
	return id == 1 ? &callbacks : NULL;
}

static CUresult start_nvtx(void)
{
	const char *path = getenv("NVTX_INJECTION64_PATH");
	void *library = path ? dlopen(path, RTLD_LAZY) : NULL;
	int (*initialise)(const void *(*)(uint32_t));
	void *found = library ? dlsym(library, "InitializeInjectionNvtx2") : NULL;
	memcpy(&initialise, &found, sizeof found);
	return found && initialise(get_nvtx_export) ? HR__CUDA_SUCCESS : HR__CUDA_ERROR_UNKNOWN;
}

/* A second block, after many requests, with another name of the thread, is in the next slot. */
static void *allocate_in_thread(void *slot)
{
	CUdeviceptr *address = &slots[(uintptr_t)slot].address, other;
	pthread_setname_np(pthread_self(), "loader");
	bool failed = cu.other_cuCtxSetCurrent(primary) != HR__CUDA_SUCCESS || cu.cuMemAlloc_v2(address, 4096) != HR__CUDA_SUCCESS;
	for (int i = 0; i < 300; i++) {
		if (i == 200) pthread_setname_np(pthread_self(), "writer");
		failed |= cu.cuMemAlloc_v2(&other, 512) != HR__CUDA_SUCCESS || cu.cuMemFree_v2(other) != HR__CUDA_SUCCESS;
	}
	failed |= cu.cuMemAlloc_v2(&slots[(uintptr_t)slot + 1].address, 8192) != HR__CUDA_SUCCESS;
	return (void *)(uintptr_t)failed;
}

static CUresult allocate_in_named_thread(int slot)
{
	pthread_t thread;
	void *failed;
	if (pthread_create(&thread, NULL, allocate_in_thread, (void *)(uintptr_t)slot) != 0) abort();
	pthread_join(thread, &failed);
	return failed ? HR__CUDA_ERROR_UNKNOWN : HR__CUDA_SUCCESS;
}

/* ---- commands ---- */

static CUresult start(CUdevice device)
{
	CUresult result = cu.other_cuInit(0);
	if (result == HR__CUDA_SUCCESS) result = cu.other_cuDevicePrimaryCtxRetain(&primary, device);
	return result == HR__CUDA_SUCCESS ? cu.other_cuCtxSetCurrent(primary) : result;
}

static CUresult create(int slot, size_t bytes)
{
	CUmemAllocationProp on = { .type = HR__CU_MEM_ALLOCATION_TYPE_PINNED, .location = { HR__CU_MEM_LOCATION_TYPE_DEVICE, 0 } };
	return cu.cuMemCreate(&slots[slot].handle, bytes, &on, 0);
}

static CUresult map(int slot)
{
	CUresult result = cu.other_cuMemAddressReserve(&slots[slot].address, slots[slot].bytes, 0, 0, 0);
	return result == HR__CUDA_SUCCESS ? cu.cuMemMap(slots[slot].address, slots[slot].bytes, 0, slots[slot].handle, 0) : result;
}

static CUresult print_info(void)
{
	size_t free_bytes = 0, total = 0;
	CUresult result = cu.cuMemGetInfo_v2(&free_bytes, &total);
	if (result == HR__CUDA_SUCCESS) printf("info %zu of %zu\n", free_bytes, total);
	return result;
}

static CUresult print_total(void)
{
	size_t total = 0;
	CUresult result = cu.cuDeviceTotalMem_v2(&total, 0);
	if (result == HR__CUDA_SUCCESS) printf("total %zu\n", total);
	return result;
}

/* A failed call leaves its out-parameters as they were. */
static CUresult check_untouched(size_t bytes)
{
	CUdeviceptr plain = UNTOUCHED, async = UNTOUCHED, pitched = UNTOUCHED;
	CUmemGenericAllocationHandle handle = UNTOUCHED;
	size_t pitch = UNTOUCHED;
	void *host = (void *)UNTOUCHED;
	CUmemAllocationProp on = { .type = HR__CU_MEM_ALLOCATION_TYPE_PINNED, .location = { HR__CU_MEM_LOCATION_TYPE_DEVICE, 0 } };
	CUresult results[] = { cu.cuMemAlloc_v2(&plain, bytes), cu.cuMemAllocAsync(&async, bytes, NULL), cu.cuMemAllocPitch_v2(&pitched, &pitch, bytes, 1, 4),
		                   cu.cuMemCreate(&handle, bytes, &on, 0), cu.cuMemHostAlloc(&host, 1, 255) };
	for (size_t i = 0; i < sizeof results / sizeof *results; i++) printf("%d ", results[i]);
	bool untouched = plain == UNTOUCHED && async == UNTOUCHED && pitched == UNTOUCHED && pitch == UNTOUCHED && handle == UNTOUCHED && host == (void *)UNTOUCHED;
	printf("%s\n", untouched ? "untouched" : "touched");
	return HR__CUDA_SUCCESS;
}

static void *allocate_and_free(void *argument)
{
	CUdeviceptr kept[8] = { 0 };
	size_t rounds = (size_t)(uintptr_t)argument;
	bool failed = cu.other_cuCtxSetCurrent(primary) != HR__CUDA_SUCCESS;
	for (size_t i = 0; i < rounds; i++) {
		CUdeviceptr *slot = &kept[i % 8];
		if (*slot) failed |= (i & 8 ? cu.cuMemFree_v2(*slot) : cu.cuMemFreeAsync(*slot, stream)) != HR__CUDA_SUCCESS;
		*slot = 0; /* a request that is refused leaves it, and another thread may have the address by now */
		failed |= (i & 1 ? cu.cuMemAlloc_v2(slot, 4096 + i) : cu.cuMemAllocAsync(slot, 4096 + i, stream)) != HR__CUDA_SUCCESS;
	}
	/* Half of what is left stays allocated. */
	for (size_t i = 0; i < 4; i++)
		if (kept[i]) failed |= cu.cuMemFree_v2(kept[i]) != HR__CUDA_SUCCESS;
	return (void *)(uintptr_t)failed;
}

static CUresult run_threads(int count, size_t rounds)
{
	pthread_t threads[SLOTS];
	void *failed = NULL;
	for (int i = 0; i < count; i++)
		if (pthread_create(&threads[i], NULL, allocate_and_free, (void *)(uintptr_t)rounds) != 0) abort();
	for (int i = 0; i < count; i++) {
		void *one;
		pthread_join(threads[i], &one);
		if (one) failed = one;
	}
	return failed ? HR__CUDA_ERROR_UNKNOWN : HR__CUDA_SUCCESS;
}

/* In the child nothing but the status is seen; its memory calls do what the driver says. */
static CUresult run_fork(void)
{
	CUdeviceptr address;
	fflush(stdout);
	pid_t child = fork();
	if (child == 0) {
		CUresult result = cu.cuMemAlloc_v2(&address, 4096);
		_exit(result == HR__CUDA_SUCCESS && cu.cuMemFree_v2(address) == HR__CUDA_SUCCESS ? 0 : 1);
	}
	int status = 1;
	waitpid(child, &status, 0);
	return status == 0 ? HR__CUDA_SUCCESS : HR__CUDA_ERROR_UNKNOWN;
}

/* Writes a pattern into a block and reads it back, on the stream. */
static CUresult check_contents(CUdeviceptr address, size_t bytes, int value)
{
	unsigned char *read = malloc(bytes);
	CUresult result = cu.other_cuMemsetD8Async(address, (unsigned char)value, bytes, stream);
	if (result == HR__CUDA_SUCCESS) result = cu.other_cuMemcpyDtoHAsync_v2(read, address, bytes, stream);
	if (result == HR__CUDA_SUCCESS) result = cu.other_cuStreamSynchronize(stream);
	for (size_t i = 0; i < bytes && result == HR__CUDA_SUCCESS; i++)
		if (read[i] != value) result = HR__CUDA_ERROR_UNKNOWN;
	free(read);
	return result;
}

/* What the driver says about an address inside the block of a slot, from the three calls that say it, and its context. */
static CUresult print_range(CUdeviceptr address, size_t into)
{
	CUdeviceptr base = 0, start = 0, first = 0;
	size_t size = 0, range = 0, second = 0;
	CUcontext context = NULL;
	CUpointer_attribute which[] = { HR__CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, HR__CU_POINTER_ATTRIBUTE_RANGE_SIZE };
	void *both[] = { &first, &second };
	CUresult result = cu.cuMemGetAddressRange_v2(&base, &size, address + into);
	if (result == HR__CUDA_SUCCESS) result = cu.cuPointerGetAttribute(&start, which[0], address + into);
	if (result == HR__CUDA_SUCCESS) result = cu.cuPointerGetAttribute(&range, which[1], address + into);
	if (result == HR__CUDA_SUCCESS) result = cu.cuPointerGetAttributes(2, which, both, address + into);
	if (result == HR__CUDA_SUCCESS) result = cu.cuPointerGetAttribute(&context, HR__CU_POINTER_ATTRIBUTE_CONTEXT, address + into);
	bool agree = base == start && base == first && size == range && size == second && context == primary;
	if (result == HR__CUDA_SUCCESS) printf("range %lld %zu%s\n", (long long)(base - address), size, agree ? "" : " and others");
	return result;
}

/* ---- pools, graphs, other cards ---- */

#define FOREIGN_POOL ((CUmemoryPool)1)

/* [kind]: 0 of the card alone, 1 for other processes too, 2 of managed memory, 3 of host memory. */
static CUresult make_pool(int kind, size_t most)
{
	CUmemPoolProps of = { .allocType = HR__CU_MEM_ALLOCATION_TYPE_PINNED, .handleTypes = kind == 1, .location = { HR__CU_MEM_LOCATION_TYPE_DEVICE, 0 }, .maxSize = most };
	if (kind == 2) of.allocType = HR__CU_MEM_ALLOCATION_TYPE_MANAGED;
	if (kind == 3) of.location.type = HR__CU_MEM_LOCATION_TYPE_HOST_NUMA;
	return cu.cuMemPoolCreate(&own_pool, &of);
}

static CUresult share_pool(int card)
{
	const CUmemAccessDesc access = { { HR__CU_MEM_LOCATION_TYPE_DEVICE, card }, HR__CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	return cu.cuMemPoolSetAccess(own_pool, &access, 1);
}

static CUresult end_pool(void)
{
	CUmemoryPool ended = own_pool;
	own_pool = NULL;
	return cu.cuMemPoolDestroy(ended);
}

static CUresult print_pool(void)
{
	uint64_t figures[4];
	CUmemoryPool pool = own_pool;
	CUresult result = pool ? HR__CUDA_SUCCESS : cu.other_cuDeviceGetDefaultMemPool(&pool, 0);
	for (int i = 0; i < 4 && result == HR__CUDA_SUCCESS; i++) result = cu.cuMemPoolGetAttribute(pool, HR__CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT + i, &figures[i]);
	if (result == HR__CUDA_SUCCESS) printf("pool %llu %llu reserved %llu %llu\n", (unsigned long long)figures[2], (unsigned long long)figures[3],
	                                          (unsigned long long)figures[0] >> 20, (unsigned long long)figures[1] >> 20);
	return result;
}

static CUresult capture(bool on)
{
	CUgraph graph;
	return on ? cu.cuStreamBeginCapture_v2(stream, HR__CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) : cu.cuStreamEndCapture(stream, &graph);
}

static CUresult print_peers(void)
{
	int can, attribute;
	CUcontext peer;
	CUresult result = cu.cuDeviceCanAccessPeer(&can, 0, 1);
	if (result == HR__CUDA_SUCCESS) result = cu.cuDeviceGetP2PAttribute(&attribute, 2, 0, 1);
	if (result == HR__CUDA_SUCCESS) result = cu.other_cuDevicePrimaryCtxRetain(&peer, 1);
	if (result == HR__CUDA_SUCCESS) printf("peers %d %d %d\n", can, attribute, cu.cuCtxEnablePeerAccess(peer, 0));
	return result;
}

static CUresult share(CUdeviceptr address)
{
	char handle[64];
	return cu.cuIpcGetMemHandle((CUipcMemHandle *)(void *)handle, address);
}

#define IS(name) (strcmp(word, name) == 0)

static CUresult run(const char *word, int slot, size_t bytes)
{
	CUdeviceptr *address = &slots[slot].address;
	size_t pitch;
	if (bytes && !IS("range") && !IS("same") && !IS("launch") && !IS("newpool")) slots[slot].bytes = bytes;
	if (IS("start")) return start(slot);
	if (IS("alloc")) return cu.cuMemAlloc_v2(address, bytes);
	if (IS("free")) return cu.cuMemFree_v2(*address);
	if (IS("pitch")) return cu.cuMemAllocPitch_v2(address, &pitch, bytes, 10, 4);
	if (IS("managed")) return cu.cuMemAllocManaged(address, bytes, 1);
	if (IS("async")) return cu.cuMemAllocAsync(address, bytes, stream);
	if (IS("pool")) return cu.cuMemAllocFromPoolAsync(address, bytes, own_pool ? own_pool : FOREIGN_POOL, stream);
	if (IS("freeasync")) return cu.cuMemFreeAsync(*address, stream);
	if (IS("host")) return cu.cuMemHostAlloc(&slots[slot].host, bytes, 0);
	if (IS("allochost")) return cu.cuMemAllocHost_v2(&slots[slot].host, bytes);
	if (IS("freehost")) return cu.cuMemFreeHost(slots[slot].host);
	if (IS("create")) return create(slot, bytes);
	if (IS("release")) return cu.cuMemRelease(slots[slot].handle);
	if (IS("map")) return map(slot);
	if (IS("unmap")) return cu.cuMemUnmap(*address, slots[slot].bytes);
	if (IS("unreserve")) return cu.other_cuMemAddressFree(*address, slots[slot].bytes);
	if (IS("retain")) return cu.cuMemRetainAllocationHandle(&slots[slot].handle, (void *)(uintptr_t)*address);
	if (IS("fill")) return cu.other_cuMemsetD8Async(*address, 1, slots[slot].bytes, stream);
	if (IS("sync")) return cu.other_cuCtxSynchronize();
	if (IS("stream")) return cu.other_cuStreamCreate(&stream, HR__CU_STREAM_NON_BLOCKING);
	if (IS("streamend")) return cu.other_cuStreamDestroy_v2(stream);
	if (IS("context")) return cu.other_cuCtxCreate_v2(&own_context, 0, 0);
	if (IS("destroy")) return cu.cuCtxDestroy_v2(own_context);
	if (IS("reset")) return cu.cuDevicePrimaryCtxReset_v2(0);
	if (IS("releasecontext")) return cu.cuDevicePrimaryCtxRelease_v2(0);
	if (IS("info")) return print_info();
	if (IS("total")) return print_total();
	if (IS("untouched")) return check_untouched(bytes);
	if (IS("threads")) return run_threads(slot, bytes);
	if (IS("fork")) return run_fork();
	if (IS("headroom")) return use_headroom(bytes);
	if (IS("sleep")) return usleep(1000u * (unsigned)bytes), HR__CUDA_SUCCESS;
	if (IS("fail")) return cu.fail_nth((unsigned long long)slot, (CUresult)bytes), HR__CUDA_SUCCESS;
	if (IS("contents")) return check_contents(*address, slots[slot].bytes, slot + 1);
	if (IS("range")) return print_range(*address, bytes);
	if (IS("launch")) return launch(slot, bytes);
	if (IS("kernels")) return launch_many(bytes);
	if (IS("gate")) return gate(slot);
	if (IS("openlater")) return open_gate_later();
	if (IS("unload")) return cu.cuModuleUnload((CUmodule)1);
	if (IS("churn")) return churn(bytes);
	if (IS("nvtx")) return start_nvtx();
	if (IS("push")) return nvtx_push(slot ? "backward" : "step"), HR__CUDA_SUCCESS;
	if (IS("pop")) return nvtx_pop(), HR__CUDA_SUCCESS;
	if (IS("thread")) return allocate_in_named_thread(slot);
	if (IS("same")) return printf("same %d\n", slots[slot].address == slots[bytes].address), HR__CUDA_SUCCESS;
	if (IS("current")) return cu.other_cuCtxSetCurrent(primary);
	if (IS("capture")) return capture(slot);
	if (IS("newpool")) return make_pool(slot, bytes);
	if (IS("setpool")) return cu.other_cuDeviceSetMemPool(0, own_pool);
	if (IS("sharepool")) return share_pool(slot);
	if (IS("endpool")) return end_pool();
	if (IS("poolinfo")) return print_pool();
	if (IS("lowpool")) return cu.cuMemPoolSetAttribute(own_pool, HR__CU_MEMPOOL_ATTR_USED_MEM_HIGH, &(uint64_t){ 0 });
	if (IS("trimpool")) return cu.cuMemPoolTrimTo(own_pool, 0);
	if (IS("peers")) return print_peers();
	if (IS("share")) return share(*address);
	if (IS("stats")) return print_stats(NULL), HR__CUDA_SUCCESS;
	if (IS("calls")) return print_calls(), HR__CUDA_SUCCESS;
	if (IS("live")) return print_live(), HR__CUDA_SUCCESS;
	if (IS("gpustats")) return printf("gpu %lld\n", in_use("GPU:0")), HR__CUDA_SUCCESS;
	if (IS("cards")) return printf("cards %lld %lld\n", in_use("CUDA:0"), in_use("CUDA:1")), HR__CUDA_SUCCESS;
	if (IS("gpus")) return printf("gpus %lld %lld\n", in_use("GPU:0"), in_use("GPU:1")), HR__CUDA_SUCCESS;
	if (IS("hoststats")) return printf("host %lld\n", in_use("CPU:0")), HR__CUDA_SUCCESS;
	fprintf(stderr, "program: no command %s\n", word);
	exit(2);
}

static int run_all(int count, char **arguments)
{
	for (int i = 0; i < count; i++) {
		char word[32] = "";
		int slot = 0;
		size_t bytes = 0;
		sscanf(arguments[i], "%31[a-z]:%d:%zu", word, &slot, &bytes);
		CUresult result = run(word, slot % SLOTS, bytes);
		if (result != HR__CUDA_SUCCESS) printf("%s -> %d\n", arguments[i], result);
	}
	puts("end");
	return 0;
}

/* ---- every call failing ---- */

#define WALK_MAX 2000
#define OUTPUT_BYTES 65536

typedef struct fault_kind {
	bool of_driver, forever;
	void (*install)(void);
	void (*fail_nth)(uint64_t nth, bool forever);
	uint64_t (*failures)(void);
} fault_kind;

/* The module of tests/cuda/faults.c is beside the program. */
static bool load_faults(const char *kind, fault_kind *out)
{
	char path[4096], name[64];
	const char *parts[] = { "install", "fail_nth", "failures" };
	void *members[] = { &out->install, &out->fail_nth, &out->failures };
	ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
	if (length <= 0) return false;
	path[length] = 0;
	strcpy(strrchr(path, '/') + 1, "cuda_faults.so");
	void *module = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
	for (size_t i = 0; module && i < 3; i++) {
		snprintf(name, sizeof name, "%.6s_%s", kind, parts[i]);
		void *found = dlsym(module, name);
		memcpy(members[i], &found, sizeof found);
		if (!found) return false;
	}
	return module != NULL;
}

static bool choose_faults(const char *kind, fault_kind *out)
{
	*out = (fault_kind){ .of_driver = strncmp(kind, "driver", 6) == 0, .forever = strstr(kind, "-on") != NULL };
	return out->of_driver || load_faults(kind, out);
}

/* In the child. Whether a call failed is on the last line. */
static void run_with_fault(const fault_kind *kind, uint64_t nth, int count, char **arguments)
{
	if (kind->of_driver) {
		cu.fail_nth(nth, (CUresult)999);
	} else {
		kind->install();
		kind->fail_nth(nth, kind->forever);
	}
	run_all(count, arguments);
	uint64_t failed = kind->of_driver ? cu.failed()[0] != 0 : kind->failures();
	printf("failed %s\n", !failed ? "none" : kind->of_driver ? cu.failed() : "a call");
	fflush(stdout);
	if (kind->of_driver) cu.fail_nth(0, HR__CUDA_SUCCESS);
	else kind->fail_nth(0, false);
}

/* Runs the child; its output in one line. */
static void run_child(const fault_kind *kind, uint64_t nth, int count, char **arguments, char output[OUTPUT_BYTES])
{
	int ends[2], status;
	size_t used = 0;
	if (pipe(ends) != 0) abort();
	fflush(NULL);
	pid_t child = fork();
	if (child == 0) {
		dup2(ends[1], STDOUT_FILENO);
		dup2(ends[1], STDERR_FILENO);
		close(ends[0]);
		close(ends[1]);
		alarm(60);
		run_with_fault(kind, nth, count, arguments);
		exit(0);
	}
	close(ends[1]);
	for (ssize_t got; (got = read(ends[0], output + used, OUTPUT_BYTES - 64 - used)) > 0;) used += (size_t)got;
	close(ends[0]);
	waitpid(child, &status, 0);
	for (size_t i = 0; i < used; i++)
		if (output[i] == '\n') output[i] = '|';
	snprintf(output + used, 64, "status %d", status);
}

static int walk(const char *name, int count, char **arguments)
{
	static char output[OUTPUT_BYTES];
	fault_kind kind;
	if (!choose_faults(name, &kind)) return 2;
	for (uint64_t nth = 1; nth < WALK_MAX; nth++) {
		run_child(&kind, nth, count, arguments, output);
		puts(output);
		if (strstr(output, "failed none")) return 0;
	}
	return 3;
}

int main(int count, char **arguments)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (count < 2 || !obtain(arguments[1])) return 1;
	const char *kind = getenv("PROGRAM_WALK");
	return kind ? walk(kind, count - 2, arguments + 2) : run_all(count - 2, arguments + 2);
}
