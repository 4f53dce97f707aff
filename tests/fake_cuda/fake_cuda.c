/* fake_cuda.c - a stand-in for the CUDA driver; fake_cuda.h states its purpose.
 *
 * Memory of a card is one anonymous file, mapped as a whole at an address that only this file knows. A physical handle is an extent
 * of the file. A device address is an inaccessible address of the process; copies look up the extent that is mapped there.
 *
 * Streams are threads with a queue. One lock guards everything; work itself runs outside it. Records of destroyed objects are kept,
 * so that later uses are detected. */
#define _GNU_SOURCE
#include "fake_cuda/driver_state.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* Prototypes from the table, so that a definition that differs from it does not compile. */
#define PROTOTYPE(name, parameters) EXPORT CUresult name parameters;
HR__CUDA_CALLS(PROTOTYPE)
#undef PROTOTYPE

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool initialised;
card_state cards[MAX_CARDS];
static struct CUctx_st foreign = { .card = 0, .retained = 1 };
static extent *extents; /* of handles */
static extent *spare[SPARE_BUCKETS]; /* of plain memory that was freed, by size: made into memory of that size again */
static reservation *reservations;
mapping *mappings;
static registered *pinned;
CUstream streams;
static CUevent events[EVENT_BUCKETS];
static uint64_t clock_ahead; /* ns */
static struct {
	unsigned long long calls, nth;
	CUresult result;
	char name[48];
} faults;
static __thread CUcontext stack[MAX_DEPTH];
static __thread unsigned depth;

uint64_t setting(const char *name, uint64_t otherwise)
{
	const char *text = getenv(name);
	return text ? strtoull(text, NULL, 10) : otherwise;
}

uint64_t card_bytes(void)
{
	return setting("FAKE_CUDA_MEMORY", UINT64_C(256) << 20);
}

static uint64_t granularity(void)
{
	return setting("FAKE_CUDA_GRANULARITY", UINT64_C(2) << 20);
}

void *zeroed(size_t bytes)
{
	void *block = calloc(1, bytes);
	if (!block) abort();
	return block;
}

__attribute__((noreturn)) static void die(const char *why, uint64_t address)
{
	fprintf(stderr, "fake CUDA: %s (0x%llx)\n", why, (unsigned long long)address);
	_exit(END_STATUS);
}

/* ---- begin and end of every call ---- */

/* In the child of a fork: another thread of the parent may have held the lock. */
static void unlock_after_fork(void)
{
	pthread_mutex_init(&lock, NULL);
	pthread_cond_init(&changed, NULL);
}

__attribute__((constructor)) static void at_load(void)
{
	pthread_atfork(NULL, NULL, unlock_after_fork);
}

/* Acquires the lock; false if the call must fail. */
bool begin(const char *name, CUresult *result)
{
	pthread_mutex_lock(&lock);
	faults.calls++;
	*result = HR__CUDA_SUCCESS;
	if (faults.nth && faults.calls == faults.nth) {
		*result = faults.result;
		snprintf(faults.name, sizeof faults.name, "%s", name);
	} else if (!initialised && strcmp(name, "cuInit") != 0) {
		*result = HR__CUDA_ERROR_NOT_INITIALIZED;
	}
	return *result == HR__CUDA_SUCCESS;
}

CUresult end(CUresult result)
{
	pthread_mutex_unlock(&lock);
	return result;
}

CUcontext current(void)
{
	return depth ? stack[depth - 1] : NULL;
}

EXPORT int fake_cuda_count(const char *name, CUresult *result)
{
	pthread_mutex_lock(&lock);
	faults.calls++;
	*result = HR__CUDA_SUCCESS;
	if (faults.nth && faults.calls == faults.nth) {
		*result = faults.result;
		snprintf(faults.name, sizeof faults.name, "%s", name);
	}
	pthread_mutex_unlock(&lock);
	return *result == HR__CUDA_SUCCESS;
}

EXPORT CUresult fake_cuda_compute(CUstream stream, void (*run)(const void *argument, const unsigned *grid, unsigned threads), const void *argument, size_t bytes,
                                  const uint64_t *addresses, size_t count)
{
	const unsigned grid[3] = { 1, 1, 1 };
	pthread_mutex_lock(&lock);
	CUcontext context = current();
	CUresult result = HR__CUDA_ERROR_INVALID_CONTEXT;
	if (context && context->retained) result = submit_computation(context, stream, run, argument, bytes, grid, 1, addresses, count);
	pthread_mutex_unlock(&lock);
	return result;
}

/* ---- the driver and its cards ---- */

static const struct {
	CUresult result;
	const char *name, *text;
} errors[] = {
	{ HR__CUDA_SUCCESS, "CUDA_SUCCESS", "no error" },
	{ HR__CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument" },
	{ HR__CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory" },
	{ HR__CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error" },
	{ HR__CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected" },
	{ HR__CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal" },
	{ HR__CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context" },
	{ HR__CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle" },
	{ HR__CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready" },
	{ HR__CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered" },
	{ HR__CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "already registered" },
	{ HR__CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "not registered" },
	{ HR__CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported" },
	{ HR__CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
	  "system has unsupported display driver / cuda driver combination" },
	{ HR__CUDA_ERROR_UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error" },
};

static CUresult error_words(CUresult result, const char **name, const char **text)
{
	for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
		if (errors[i].result != result) continue;
		if (name) *name = errors[i].name;
		if (text) *text = errors[i].text;
		return HR__CUDA_SUCCESS;
	}
	return HR__CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorName(CUresult result, const char **out)
{
	return error_words(result, out, NULL);
}

CUresult cuGetErrorString(CUresult result, const char **out)
{
	return error_words(result, NULL, out);
}

CUresult cuInit(unsigned int flags)
{
	BEGIN(cuInit);
	VALID(flags == 0);
	result = (CUresult)setting("FAKE_CUDA_INIT", 0);
	if (result == HR__CUDA_SUCCESS) initialised = true;
	return end(result);
}

int card_count(void)
{
	return (int)setting("FAKE_CUDA_DEVICES", 1);
}

CUresult cuDeviceGetCount(int *out)
{
	BEGIN(cuDeviceGetCount);
	*out = card_count();
	return end(result);
}

CUresult cuDeviceGet(CUdevice *out, int index)
{
	BEGIN(cuDeviceGet);
	REQUIRE(index >= 0 && index < card_count(), HR__CUDA_ERROR_INVALID_DEVICE);
	*out = index;
	return end(result);
}

CUresult cuDeviceGetName(char *out, int capacity, CUdevice device)
{
	BEGIN(cuDeviceGetName);
	REQUIRE(device >= 0 && device < card_count(), HR__CUDA_ERROR_INVALID_DEVICE);
	snprintf(out, (size_t)capacity, "NVIDIA Fake");
	return end(result);
}

CUresult cuDeviceGetAttribute(int *out, CUdevice_attribute which, CUdevice device)
{
	BEGIN(cuDeviceGetAttribute);
	REQUIRE(device >= 0 && device < card_count(), HR__CUDA_ERROR_INVALID_DEVICE);
	switch (which) {
	case HR__CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *out = 9; break;
	case HR__CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *out = 0; break;
	case HR__CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *out = 2; break;
	case HR__CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED: *out = getenv("FAKE_CUDA_NO_VMM") == NULL; break;
	case HR__CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID: *out = 0; break;
	case HR__CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
		*out = getenv("FAKE_CUDA_NO_HOST_NUMA") == NULL;
		break;
	default: return end(HR__CUDA_ERROR_INVALID_VALUE);
	}
	return end(result);
}

/* ---- contexts ---- */

CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice device)
{
	BEGIN(cuDevicePrimaryCtxRetain);
	REQUIRE(device >= 0 && device < card_count() && device < MAX_CARDS, HR__CUDA_ERROR_INVALID_DEVICE);
	CUcontext primary = &cards[device].primary;
	primary->card = device;
	if (primary->retained++ == 0) cards[device].used += CONTEXT_BYTES;
	if (!cards[device].memory) {
		cards[device].file = memfd_create("fake-cuda", MFD_CLOEXEC);
		if (cards[device].file < 0 || ftruncate(cards[device].file, (off_t)SPAN) != 0) abort();
		cards[device].memory = mmap(NULL, SPAN, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, cards[device].file, 0);
		if (cards[device].memory == MAP_FAILED) abort();
	}
	*out = primary;
	return end(result);
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
	BEGIN(cuDevicePrimaryCtxRelease_v2);
	REQUIRE(device >= 0 && device < card_count(), HR__CUDA_ERROR_INVALID_DEVICE);
	REQUIRE(cards[device].primary.retained > 0, HR__CUDA_ERROR_INVALID_CONTEXT);
	if (--cards[device].primary.retained == 0) {
		cards[device].used -= CONTEXT_BYTES;
		cards[device].primary.broken = HR__CUDA_SUCCESS;
	}
	return end(result);
}

CUresult cuCtxGetCurrent(CUcontext *out)
{
	BEGIN(cuCtxGetCurrent);
	*out = current();
	return end(result);
}

void set_current(CUcontext context)
{
	if (depth) depth--;
	if (context) stack[depth++] = context;
}

CUresult cuCtxPushCurrent_v2(CUcontext context)
{
	BEGIN(cuCtxPushCurrent_v2);
	REQUIRE(context && context->retained && depth < MAX_DEPTH, HR__CUDA_ERROR_INVALID_CONTEXT);
	stack[depth++] = context;
	return end(result);
}

/* Not counted: a caller could not handle a context that cannot be popped. */
CUresult cuCtxPopCurrent_v2(CUcontext *out)
{
	if (!depth) return HR__CUDA_ERROR_INVALID_CONTEXT;
	*out = stack[--depth];
	return HR__CUDA_SUCCESS;
}

/* ---- physical memory ---- */

uint64_t free_of(int card)
{
	uint64_t taken = cards[card].used + setting("FAKE_CUDA_USED", 0), total = card_bytes();
	return taken < total ? total - taken : 0;
}

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
	BEGIN_IN_CONTEXT(cuMemGetInfo_v2);
	*free_bytes = free_of(context->card);
	*total = card_bytes();
	return end(result);
}

CUresult cuMemGetAllocationGranularity(size_t *out, const CUmemAllocationProp *of, CUmemAllocationGranularity_flags flags)
{
	BEGIN(cuMemGetAllocationGranularity);
	VALID(flags == HR__CU_MEM_ALLOC_GRANULARITY_MINIMUM && of->type == HR__CU_MEM_ALLOCATION_TYPE_PINNED);
	VALID(of->location.type == HR__CU_MEM_LOCATION_TYPE_DEVICE && of->location.id < card_count());
	*out = granularity();
	return end(result);
}

/* Part of the card's file that is not used yet. */
static uint64_t extend_file(int card, uint64_t size)
{
	uint64_t offset = cards[card].made;
	cards[card].made += (size + PAGE - 1) / PAGE * PAGE;
	if (cards[card].made > SPAN) abort();
	return offset;
}

/* In the place of a released handle of the same size if there is one, whose record stays, so that it is known to be invalid. */
static extent *make_handle(int card, uint64_t size, bool of_host)
{
	extent *before = extents, *made = zeroed(sizeof *made);
	while (before && !(before->gone && before->released && before->size == size && before->card == card)) before = before->next;
	*made = (extent){ .size = size, .references = 1, .card = card, .is_handle = true, .of_host = of_host, .next = extents };
	made->offset = before ? before->offset : extend_file(card, size);
	if (before) before->size = 0;
	if (!of_host) cards[card].used += size;
	extents = made;
	return made;
}

static extent **spare_of(uint64_t size)
{
	return &spare[size * UINT64_C(0x9E3779B97F4A7C15) >> 32 & (SPARE_BUCKETS - 1)];
}

static extent *make_plain(int card, uint64_t size)
{
	extent **link = spare_of(size), *made;
	while (*link && !((*link)->size == size && (*link)->card == card)) link = &(*link)->next;
	made = *link;
	uint64_t offset = made ? made->offset : extend_file(card, size);
	if (made) *link = made->next;
	else made = zeroed(sizeof *made);
	*made = (extent){ .offset = offset, .size = size, .references = 1, .card = card, .released = true };
	cards[card].used += size;
	return made;
}

static void drop_extent(extent *of)
{
	if (--of->references > 0) return;
	of->gone = true;
	if (!of->of_host) cards[of->card].used -= of->size;
	fallocate(cards[of->card].file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)of->offset,
	          (off_t)((of->size + PAGE - 1) / PAGE * PAGE));
	if (of->is_handle) return;
	of->next = *spare_of(of->size);
	*spare_of(of->size) = of;
}

static extent *extent_of(CUmemGenericAllocationHandle handle)
{
	for (extent *at = extents; at; at = at->next) {
		if ((uintptr_t)at == handle) return at->released ? NULL : at;
	}
	return NULL;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *out, size_t size, const CUmemAllocationProp *of, unsigned long long flags)
{
	BEGIN_IN_CONTEXT(cuMemCreate);
	VALID(flags == 0 && size > 0 && size % granularity() == 0);
	VALID(of->type == HR__CU_MEM_ALLOCATION_TYPE_PINNED && of->requestedHandleTypes == HR__CU_MEM_HANDLE_TYPE_NONE);
	bool of_host = of->location.type == HR__CU_MEM_LOCATION_TYPE_HOST_NUMA && getenv("FAKE_CUDA_NO_HOST_NUMA") == NULL;
	VALID((of_host || of->location.type == HR__CU_MEM_LOCATION_TYPE_DEVICE) && !of->win32HandleMetaData);
	REQUIRE(of->location.id == (of_host ? 0 : context->card), HR__CUDA_ERROR_INVALID_DEVICE);
	REQUIRE(of_host || size <= free_of(context->card), HR__CUDA_ERROR_OUT_OF_MEMORY);
	*out = (uintptr_t)make_handle(context->card, size, of_host);
	return end(result);
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
	BEGIN_IN_CONTEXT(cuMemRelease);
	extent *released = extent_of(handle);
	VALID(released);
	if (released->retained) released->retained--;
	else released->released = true;
	drop_extent(released);
	return end(result);
}

/* ---- addresses ---- */

static uint64_t map_nothing(uint64_t size, uint64_t alignment)
{
	if (alignment <= PAGE) alignment = 0; /* so that ranges lie side by side: a process can have 65,530 apart */
	char *block = mmap(NULL, size + alignment, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (block == MAP_FAILED) return 0;
	if (!alignment) return (uintptr_t)block;
	char *aligned = (char *)(((uintptr_t)block + alignment - 1) / alignment * alignment);
	if (aligned > block) munmap(block, (size_t)(aligned - block));
	munmap(aligned + size, alignment - (size_t)(aligned - block));
	return (uintptr_t)aligned;
}

#ifndef FAKE_CUDA_OLD
CUresult cuMemAddressReserve(CUdeviceptr *out, size_t size, size_t alignment, CUdeviceptr hint, unsigned long long flags)
{
	BEGIN_IN_CONTEXT(cuMemAddressReserve);
	VALID(flags == 0 && hint == 0 && size > 0 && size % PAGE == 0 && (alignment & (alignment - 1)) == 0);
	uint64_t base = map_nothing(size, alignment > granularity() ? alignment : granularity());
	REQUIRE(base, HR__CUDA_ERROR_OUT_OF_MEMORY);
	reservation *made = zeroed(sizeof *made);
	*made = (reservation){ base, size, reservations };
	reservations = made;
	*out = base;
	return end(result);
}
#endif

/* With FAKE_CUDA_KERNELS, kernels run in this process: what they may access, the process can. */
static void show(const mapping *at)
{
	if (!getenv("FAKE_CUDA_KERNELS")) return;
	void *to = (void *)(uintptr_t)at->base;
	size_t bytes = (at->size + PAGE - 1) / PAGE * PAGE;
	if (mmap(to, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, cards[at->memory->card].file, (off_t)at->memory->offset) == MAP_FAILED) abort();
}

static void hide(const mapping *at)
{
	if (!getenv("FAKE_CUDA_KERNELS")) return;
	void *to = (void *)(uintptr_t)at->base;
	size_t bytes = (at->size + PAGE - 1) / PAGE * PAGE;
	if (mmap(to, bytes, PROT_NONE, MAP_PRIVATE | MAP_FIXED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0) == MAP_FAILED) abort();
}

static bool overlap(uint64_t a, uint64_t a_size, uint64_t b, uint64_t b_size)
{
	return a < b + b_size && b < a + a_size;
}

CUresult cuMemAddressFree(CUdeviceptr base, size_t size)
{
	BEGIN_IN_CONTEXT(cuMemAddressFree);
	reservation **link = &reservations, *freed;
	while (*link && !((*link)->base == base && (*link)->size == size)) link = &(*link)->next;
	VALID(*link);
	for (mapping *at = mappings; at; at = at->next) VALID(!overlap(at->base, at->size, base, size));
	freed = *link;
	*link = freed->next;
	munmap((void *)(uintptr_t)base, size);
	free(freed);
	return end(result);
}

CUresult cuMemMap(CUdeviceptr base, size_t size, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	BEGIN_IN_CONTEXT(cuMemMap);
	extent *memory = extent_of(handle);
	reservation *in = reservations;
	VALID(memory && flags == 0 && offset == 0 && size == memory->size && base % granularity() == 0);
	while (in && !(base >= in->base && base + size <= in->base + in->size)) in = in->next;
	VALID(in);
	for (mapping *at = mappings; at; at = at->next) VALID(!overlap(at->base, at->size, base, size));
	mapping *made = zeroed(sizeof *made);
	*made = (mapping){ .base = base, .size = size, .memory = memory, .next = mappings };
	memory->references++;
	mappings = made;
	return end(result);
}

mapping *mapping_at(uint64_t address)
{
	mapping *at = mappings;
	while (at && !(address >= at->base && address - at->base < at->size)) at = at->next;
	return at;
}

/* Whether [base, base + size) consists entirely of whole mappings, none of them plain memory. */
static bool whole_mappings(uint64_t base, uint64_t size)
{
	uint64_t at = base;
	while (at < base + size) {
		const mapping *found = mapping_at(at);
		if (!found || found->plain || found->base != at || found->size > base + size - at) return false;
		at += found->size;
	}
	return size > 0;
}

/* Ends the process if unfinished work uses the range; [except] is the free itself. */
void need_idle(uint64_t base, uint64_t size, const command *except)
{
	for (CUstream stream = streams; stream; stream = stream->next) {
		for (const command *at = stream->first; at; at = at->next) {
			if (at == except) continue;
			if (at->to_device && overlap(at->to, at->bytes, base, size)) die("unmapped while work writes to it", base);
			if (at->from_device && overlap(at->from, at->bytes, base, size)) die("unmapped while work reads it", base);
		}
	}
}

static void remove_mappings(uint64_t base, uint64_t size)
{
	for (mapping **link = &mappings; *link;) {
		mapping *at = *link;
		if (!overlap(at->base, at->size, base, size)) {
			link = &at->next;
			continue;
		}
		*link = at->next;
		hide(at);
		drop_extent(at->memory);
		free(at);
	}
}

CUresult cuMemUnmap(CUdeviceptr base, size_t size)
{
	BEGIN_IN_CONTEXT(cuMemUnmap);
	VALID(whole_mappings(base, size));
	need_idle(base, size, NULL);
	remove_mappings(base, size);
	return end(result);
}

CUresult cuMemSetAccess(CUdeviceptr base, size_t size, const CUmemAccessDesc *access, size_t count)
{
	BEGIN_IN_CONTEXT(cuMemSetAccess);
	uint64_t cards_of_call = 0;
	VALID(count > 0 && whole_mappings(base, size));
	for (size_t i = 0; i < count; i++) {
		VALID(access[i].location.type == HR__CU_MEM_LOCATION_TYPE_DEVICE && access[i].flags == HR__CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
		VALID(access[i].location.id >= 0 && access[i].location.id < card_count());
		cards_of_call |= UINT64_C(1) << access[i].location.id;
	}
	for (uint64_t at = base; at < base + size;) {
		mapping *found = mapping_at(at);
		found->peers |= cards_of_call;
		found->accessible = found->accessible || (cards_of_call >> context->card & 1);
		if (found->accessible) show(found);
		at += found->size;
	}
	return end(result);
}

EXPORT int fake_cuda_accessible(uint64_t address, int card)
{
	pthread_mutex_lock(&lock);
	mapping *found = mapping_at(address);
	int accessible = found && (found->peers >> card & 1);
	pthread_mutex_unlock(&lock);
	return accessible;
}

CUresult map_plain(CUcontext context, CUdeviceptr *out, size_t size)
{
	if (!size) return HR__CUDA_ERROR_INVALID_VALUE;
	if (size > free_of(context->card)) return HR__CUDA_ERROR_OUT_OF_MEMORY;
	uint64_t base = map_nothing((size + PAGE - 1) / PAGE * PAGE, PAGE);
	if (!base) return HR__CUDA_ERROR_OUT_OF_MEMORY;
	mapping *made = zeroed(sizeof *made);
	*made = (mapping){ .base = base, .size = size, .accessible = true, .plain = true, .context = context, .next = mappings };
	made->memory = make_plain(context->card, size);
	mappings = made;
	show(made);
	*out = base;
	return HR__CUDA_SUCCESS;
}

void unmap_plain(mapping *freed)
{
	mapping **link = &mappings;
	while (*link != freed) link = &(*link)->next;
	*link = freed->next;
	munmap((void *)(uintptr_t)freed->base, (freed->size + PAGE - 1) / PAGE * PAGE);
	fake_pool_give(freed->pool, freed->size);
	drop_extent(freed->memory);
	free(freed);
}

CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t size)
{
	BEGIN_IN_CONTEXT(cuMemAlloc_v2);
	return end(map_plain(context, out, size));
}

CUresult cuMemFree_v2(CUdeviceptr base)
{
	BEGIN_IN_CONTEXT(cuMemFree_v2);
	mapping *freed = mapping_at(base);
	VALID(freed && freed->plain && !freed->freeing && freed->base == base);
	need_idle(base, freed->size, NULL);
	unmap_plain(freed);
	return end(result);
}

void end_context_memory(CUcontext context)
{
	for (mapping *at = mappings, *next; at; at = next) {
		next = at->next;
		if (at->plain && at->context == context) unmap_plain(at);
	}
}

/* ---- pinned memory ---- */

CUresult cuMemHostRegister_v2(void *block, size_t size, unsigned int flags)
{
	BEGIN_IN_CONTEXT(cuMemHostRegister_v2);
	VALID(block && size > 0 && flags == HR__CU_MEMHOSTREGISTER_PORTABLE);
	result = (CUresult)setting("FAKE_CUDA_HOST_REGISTER", 0);
	REQUIRE(result == HR__CUDA_SUCCESS, result);
	for (registered *at = pinned; at; at = at->next) {
		REQUIRE(!overlap(at->base, at->size, (uintptr_t)block, size), HR__CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
	}
	registered *made = zeroed(sizeof *made);
	*made = (registered){ (uintptr_t)block, size, pinned };
	pinned = made;
	return end(result);
}

CUresult cuMemHostUnregister(void *block)
{
	BEGIN_IN_CONTEXT(cuMemHostUnregister);
	registered **link = &pinned, *freed;
	while (*link && (*link)->base != (uintptr_t)block) link = &(*link)->next;
	REQUIRE(*link, HR__CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
	freed = *link;
	*link = freed->next;
	free(freed);
	return end(result);
}

/* ---- work ---- */

/* One side of a copy or fill: the memory at [address], and in *bytes the length of its contiguous part. NULL if nothing is mapped.
 * */
static unsigned char *look_up(uint64_t address, bool on_device, uint64_t *bytes)
{
	if (!on_device) return (unsigned char *)(uintptr_t)address;
	const mapping *at = mapping_at(address);
	if (!at || !at->accessible) return NULL;
	uint64_t into = address - at->base, left = at->size - into;
	if (left < *bytes) *bytes = left;
	return cards[at->memory->card].memory + at->memory->offset + into;
}

/* Moves bytes piece by piece, one mapping at a time. */
static CUresult move(const command *work)
{
	for (uint64_t done = 0; done < work->bytes;) {
		uint64_t bytes = work->bytes - done;
		pthread_mutex_lock(&lock);
		unsigned char *to = look_up(work->to + done, work->to_device, &bytes);
		unsigned char *from = work->kind == COPY ? look_up(work->from + done, work->from_device, &bytes) : to;
		pthread_mutex_unlock(&lock);
		if (!to || !from) return HR__CUDA_ERROR_ILLEGAL_ADDRESS;
		if (work->kind == COPY) memcpy(to, from, bytes);
		else memset(to, work->value, bytes);
		done += bytes;
	}
	return HR__CUDA_SUCCESS;
}

/* ---- events and their times ---- */

static uint64_t now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec + clock_ahead;
}

/* Sets the time of events that have happened. */
static void tell_events(CUstream stream)
{
	uint64_t time = stream->pending ? now() : 0;
	for (CUevent *link = &stream->pending; *link;) {
		CUevent event = *link;
		if (event->ticket > stream->completed) {
			link = &event->next_pending;
			continue;
		}
		event->time = time;
		event->is_pending = false;
		*link = event->next_pending;
	}
}

static void forget_pending(CUevent event)
{
	if (!event->is_pending) return;
	CUevent *link = &event->stream->pending;
	while (*link != event) link = &(*link)->next_pending;
	*link = event->next_pending;
	event->is_pending = false;
}

static void *run_stream(void *argument)
{
	CUstream stream = argument;
	pthread_mutex_lock(&lock);
	while (stream->first || !stream->destroyed) {
		command *work = stream->first;
		if (!work || (work->kind == WAIT && work->other->completed < work->ticket)) {
			pthread_cond_wait(&changed, &lock);
			continue;
		}
		pthread_mutex_unlock(&lock);
		CUresult result = HR__CUDA_SUCCESS;
		if (work->kind == HOST) work->run(work->argument);
		else if (work->kind == COMPUTE) run_computation(work->computation);
		else if (work->kind == COPY || work->kind == FILL) result = move(work);
		pthread_mutex_lock(&lock);
		if (work->kind == FREE) {
			need_idle(work->to, work->bytes, work);
			unmap_plain(mapping_at(work->to));
		}
		if (result != HR__CUDA_SUCCESS) stream->context->broken = result;
		stream->first = work->next;
		if (!stream->first) stream->last = NULL;
		stream->completed++;
		tell_events(stream);
		free(work);
		pthread_cond_broadcast(&changed);
	}
	stream->ended = true;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
	return NULL;
}

CUstream start_stream(CUcontext context)
{
	pthread_t thread;
	CUstream made = zeroed(sizeof *made);
	made->context = context;
	made->next = streams;
	streams = made;
	if (pthread_create(&thread, NULL, run_stream, made) != 0) abort();
	pthread_detach(thread);
	return made;
}

/* The stream of a handle in the current context; NULL if invalid. */
static CUstream default_stream(CUstream *kept, CUcontext context)
{
	if (*kept) return *kept;
	*kept = start_stream(context);
	(*kept)->built_in = true;
	return *kept;
}

CUstream stream_of(CUcontext context, CUstream handle)
{
	static __thread CUstream own[MAX_CARDS]; /* per-thread default streams */
	CUcontext primary = &cards[context->card].primary;
	if (!handle || handle == LEGACY_STREAM) return default_stream(&cards[context->card].legacy, primary);
	if (handle == PER_THREAD_STREAM) return default_stream(&own[context->card], primary);
	for (CUstream at = streams; at; at = at->next) {
		if (at == handle) return at->destroyed || at->built_in ? NULL : at;
	}
	return NULL;
}

static CUevent *event_bucket(CUevent handle)
{
	return &events[((uintptr_t)handle >> 4) % EVENT_BUCKETS];
}

static CUevent event_of(CUevent handle)
{
	for (CUevent at = *event_bucket(handle); at; at = at->next) {
		if (at == handle) return at->destroyed ? NULL : at;
	}
	return NULL;
}

void wait_until(CUstream stream, uint64_t ticket)
{
	while (stream->completed < ticket) pthread_cond_wait(&changed, &lock);
}

CUresult submit(CUcontext context, CUstream handle, const command *work)
{
	CUstream stream = stream_of(context, handle);
	if (!stream || stream->context != context) return HR__CUDA_ERROR_INVALID_HANDLE;
	if (stream->recording) {
		CUresult added = fake_graph_add(stream->recording, work);
		stream->capture_failed |= added != HR__CUDA_SUCCESS;
		return added;
	}
	command *queued = zeroed(sizeof *queued);
	*queued = *work;
	if (stream->last) stream->last->next = queued;
	else stream->first = queued;
	stream->last = queued;
	stream->submitted++;
	pthread_cond_broadcast(&changed);
	return HR__CUDA_SUCCESS;
}

CUresult cuStreamCreate(CUstream *out, unsigned int flags)
{
	BEGIN_IN_CONTEXT(cuStreamCreate);
	VALID(flags == HR__CU_STREAM_NON_BLOCKING);
	*out = start_stream(context);
	return end(result);
}

CUresult cuStreamDestroy_v2(CUstream handle)
{
	BEGIN_IN_CONTEXT(cuStreamDestroy_v2);
	CUstream stream = handle ? stream_of(context, handle) : NULL;
	REQUIRE(stream, HR__CUDA_ERROR_INVALID_HANDLE);
	stream->destroyed = true;
	stream->recording = NULL; /* what it recorded is gone */
	pthread_cond_broadcast(&changed);
	while (!stream->ended) pthread_cond_wait(&changed, &lock);
	return end(result);
}

CUresult cuStreamSynchronize(CUstream handle)
{
	BEGIN_IN_CONTEXT(cuStreamSynchronize);
	CUstream stream = stream_of(context, handle);
	REQUIRE(stream, HR__CUDA_ERROR_INVALID_HANDLE);
	if (stream->recording) stream->capture_failed = true;
	REQUIRE(!stream->recording, HR__CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	wait_until(stream, stream->submitted);
	return end(stream->context->broken);
}

CUresult cuStreamWaitEvent(CUstream handle, CUevent handle_of_event, unsigned int flags)
{
	BEGIN_IN_CONTEXT(cuStreamWaitEvent);
	VALID(flags == 0);
	CUevent event = event_of(handle_of_event);
	REQUIRE(event && stream_of(context, handle), HR__CUDA_ERROR_INVALID_HANDLE);
	if (!event->stream) return end(result);
	return end(submit(context, handle, &(command){ .kind = WAIT, .other = event->stream, .ticket = event->ticket }));
}

CUresult cuEventCreate(CUevent *out, unsigned int flags)
{
	BEGIN_IN_CONTEXT(cuEventCreate);
	VALID(flags == HR__CU_EVENT_DISABLE_TIMING || flags == HR__CU_EVENT_DEFAULT);
	CUevent made = zeroed(sizeof *made);
	made->context = context;
	made->timed = flags == HR__CU_EVENT_DEFAULT;
	made->next = *event_bucket(made);
	*event_bucket(made) = made;
	*out = made;
	return end(result);
}

CUresult cuEventDestroy_v2(CUevent handle)
{
	BEGIN_IN_CONTEXT(cuEventDestroy_v2);
	CUevent event = event_of(handle);
	REQUIRE(event, HR__CUDA_ERROR_INVALID_HANDLE);
	forget_pending(event);
	event->destroyed = true;
	return end(result);
}

CUresult cuEventRecord(CUevent handle, CUstream handle_of_stream)
{
	BEGIN_IN_CONTEXT(cuEventRecord);
	CUevent event = event_of(handle);
	CUstream stream = stream_of(context, handle_of_stream);
	REQUIRE(event && stream && event->context == stream->context, HR__CUDA_ERROR_INVALID_HANDLE);
	if (stream->recording) stream->capture_failed = true;
	REQUIRE(!stream->recording, HR__CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	forget_pending(event);
	event->stream = stream;
	event->ticket = stream->submitted;
	if (event->timed) {
		event->is_pending = true;
		event->next_pending = stream->pending;
		stream->pending = event;
		tell_events(stream);
	}
	return end(result);
}

CUresult cuEventQuery(CUevent handle)
{
	BEGIN_IN_CONTEXT(cuEventQuery);
	CUevent event = event_of(handle);
	REQUIRE(event, HR__CUDA_ERROR_INVALID_HANDLE);
	REQUIRE(!event->stream || event->stream->completed >= event->ticket, HR__CUDA_ERROR_NOT_READY);
	return end(result);
}

CUresult cuEventSynchronize(CUevent handle)
{
	BEGIN_IN_CONTEXT(cuEventSynchronize);
	CUevent event = event_of(handle);
	REQUIRE(event, HR__CUDA_ERROR_INVALID_HANDLE);
	if (event->stream) wait_until(event->stream, event->ticket);
	return end(event->context->broken);
}

CUresult cuEventElapsedTime(float *out, CUevent handle_of_start, CUevent handle_of_end)
{
	BEGIN_IN_CONTEXT(cuEventElapsedTime);
	CUevent from = event_of(handle_of_start), to = event_of(handle_of_end);
	REQUIRE(from && to && from->context == context && to->context == context, HR__CUDA_ERROR_INVALID_HANDLE);
	REQUIRE(from->timed && to->timed && from->stream && to->stream, HR__CUDA_ERROR_INVALID_HANDLE);
	REQUIRE(!from->is_pending && !to->is_pending, HR__CUDA_ERROR_NOT_READY);
	*out = (float)((double)(int64_t)(to->time - from->time) / 1e6);
	return end(result);
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream stream)
{
	BEGIN_IN_CONTEXT(cuMemcpyHtoDAsync_v2);
	return end(
		submit(context, stream, &(command){ .kind = COPY, .to_device = true, .to = to, .from = (uintptr_t)from, .bytes = bytes }));
}

CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream)
{
	BEGIN_IN_CONTEXT(cuMemcpyDtoHAsync_v2);
	return end(submit(context, stream,
	                  &(command){ .kind = COPY, .from_device = true, .to = (uintptr_t)to, .from = from, .bytes = bytes }));
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
	BEGIN_IN_CONTEXT(cuMemcpyDtoDAsync_v2);
	return end(submit(context, stream,
	                  &(command){ .kind = COPY, .to_device = true, .from_device = true, .to = to, .from = from, .bytes = bytes }));
}

CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream)
{
	BEGIN_IN_CONTEXT(cuMemsetD8Async);
	return end(submit(context, stream, &(command){ .kind = FILL, .to_device = true, .to = to, .bytes = bytes, .value = value }));
}

CUresult cuLaunchHostFunc(CUstream stream, CUhostFn run, void *argument)
{
	BEGIN_IN_CONTEXT(cuLaunchHostFunc);
	VALID(run);
	return end(submit(context, stream, &(command){ .kind = HOST, .run = run, .argument = argument }));
}

/* ---- for tests ---- */

EXPORT void fake_cuda_get_live(fake_cuda_live *out)
{
	fake_cuda_live live = { 0 };
	pthread_mutex_lock(&lock);
	for (int i = 0; i < MAX_CARDS; i++) live.retained += cards[i].primary.retained;
	for (const reservation *at = reservations; at; at = at->next) live.reservations++;
	for (const extent *at = extents; at; at = at->next) live.handles += !at->released;
	for (const mapping *at = mappings; at; at = at->next) *(at->plain ? &live.plain : &live.mappings) += 1;
	for (const mapping *at = mappings; at; at = at->next) live.plain_bytes += at->plain && !at->freeing ? at->size : 0;
	for (const extent *at = extents; at; at = at->next) live.handle_bytes += at->is_handle && !at->gone && !at->of_host ? at->size : 0;
	for (const registered *at = pinned; at; at = at->next) live.registered++;
	for (CUstream at = streams; at; at = at->next) live.streams += !at->destroyed && !at->built_in;
	for (int i = 0; i < EVENT_BUCKETS; i++) {
		for (CUevent at = events[i]; at; at = at->next) live.events += !at->destroyed;
	}
	pthread_mutex_unlock(&lock);
	*out = live;
}

EXPORT void fake_cuda_fail_nth(unsigned long long nth, CUresult result)
{
	pthread_mutex_lock(&lock);
	faults.calls = 0;
	faults.nth = nth;
	faults.result = result;
	faults.name[0] = 0;
	pthread_mutex_unlock(&lock);
}

EXPORT unsigned long long fake_cuda_calls(void)
{
	pthread_mutex_lock(&lock);
	unsigned long long calls = faults.calls;
	pthread_mutex_unlock(&lock);
	return calls;
}

EXPORT const char *fake_cuda_failed(void)
{
	return faults.name;
}

EXPORT void fake_cuda_advance_clock(uint64_t ns)
{
	pthread_mutex_lock(&lock);
	clock_ahead += ns;
	pthread_mutex_unlock(&lock);
}

EXPORT CUcontext fake_cuda_foreign_context(void)
{
	return &foreign;
}

EXPORT unsigned fake_cuda_depth(void)
{
	return depth;
}

__attribute__((destructor)) static void check_at_the_end(void)
{
	fake_cuda_live live;
	if (!getenv("FAKE_CUDA_CHECK")) return;
	fake_cuda_get_live(&live);
	live.retained = 0; /* a program may keep a primary context retained */
	if (memcmp(&live, &(fake_cuda_live){ 0 }, sizeof live) == 0) return;
	fprintf(
		stderr,
		"fake CUDA: left at the end: %u reservations, %u handles, %u mappings, %u plain, %u registered, %u streams, %u events\n",
		live.reservations, live.handles, live.mappings, live.plain, live.registered, live.streams, live.events);
	_exit(END_STATUS);
}
