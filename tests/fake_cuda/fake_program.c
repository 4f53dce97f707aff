/* fake_program.c - what programs call in the stand-in driver and Headroom does not: cuGetProcAddress, contexts, and memory in stream order. */
#include "fake_cuda/driver_state.h"

#define PITCH 512u
#define VERSION_NOT_SUFFICIENT 2 /* as CUdriverProcAddressQueryResult */
#define NOT_FOUND 1

HR__ANSWERED_PLAIN(HR__PROTOTYPE)
HR__ANSWERED_STREAM(HR__PROTOTYPES)
#define PROTOTYPE(name, parameters) EXPORT CUresult name parameters;
HR__MADE_CALLS(PROTOTYPE)
HR__CUDA_CALLS(PROTOTYPE)
FAKE_CUDA_CALLS(PROTOTYPE)
#undef PROTOTYPE
#ifdef FAKE_CUDA_OLD
#pragma weak cuMemAddressReserve
#pragma weak cuFuncGetParamInfo
#pragma weak cuKernelGetParamInfo
#endif

/* ---- devices and contexts ---- */

CUresult cuDriverGetVersion(int *out)
{
	*out = (int)setting("FAKE_CUDA_VERSION", 13000);
	return HR__CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem_v2(size_t *out, CUdevice device)
{
	BEGIN(cuDeviceTotalMem_v2);
	VALID(out);
	REQUIRE(device >= 0 && device < card_count(), HR__CUDA_ERROR_INVALID_DEVICE);
	*out = card_bytes();
	return end(result);
}

CUresult cuCtxGetDevice(CUdevice *out)
{
	BEGIN_IN_CONTEXT(cuCtxGetDevice);
	*out = context->card;
	return end(result);
}

CUresult cuCtxSetCurrent(CUcontext context)
{
	BEGIN(cuCtxSetCurrent);
	REQUIRE(!context || (context->retained && !context->destroyed), HR__CUDA_ERROR_INVALID_CONTEXT);
	set_current(context);
	return end(result);
}

CUresult cuCtxSynchronize(void)
{
	BEGIN_IN_CONTEXT(cuCtxSynchronize);
	bool recording = false;
	for (CUstream at = streams; at; at = at->next) {
		if (at->context != context || !at->recording) continue;
		at->capture_failed = true;
		recording = true;
	}
	REQUIRE(!recording, HR__CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	for (CUstream at = streams; at; at = at->next)
		if (at->context == context) wait_until(at, at->submitted);
	return end(context->broken);
}

/* Needs the primary context, for the card's memory. */
CUresult cuCtxCreate_v2(CUcontext *out, unsigned int flags, CUdevice device)
{
	BEGIN(cuCtxCreate_v2);
	VALID(flags == 0);
	REQUIRE(device >= 0 && device < card_count() && cards[device].memory, HR__CUDA_ERROR_INVALID_DEVICE);
	CUcontext made = zeroed(sizeof *made);
	made->card = device;
	made->retained = 1;
	set_current(made);
	*out = made;
	return end(result);
}

CUresult cuCtxDestroy_v2(CUcontext context)
{
	BEGIN(cuCtxDestroy_v2);
	REQUIRE(context && context->retained && !context->destroyed && context != &cards[context->card].primary, HR__CUDA_ERROR_INVALID_CONTEXT);
	end_context_memory(context);
	context->destroyed = true; /* the record stays, so that later uses are detected */
	context->retained = 0;
	if (current() == context) set_current(NULL);
	return end(result);
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int *flags, int *active)
{
	BEGIN(cuDevicePrimaryCtxGetState);
	REQUIRE(device >= 0 && device < card_count(), HR__CUDA_ERROR_INVALID_DEVICE);
	*flags = 0;
	*active = cards[device].primary.retained > 0;
	return end(result);
}

/* The context stays retained and can be used again, as in CUDA 11 and later. */
CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
	BEGIN(cuDevicePrimaryCtxReset_v2);
	REQUIRE(device >= 0 && device < card_count(), HR__CUDA_ERROR_INVALID_DEVICE);
	end_context_memory(&cards[device].primary);
	return end(result);
}

/* ---- memory ---- */

CUresult cuMemAllocPitch_v2(CUdeviceptr *out, size_t *pitch, size_t width, size_t height, unsigned int element)
{
	BEGIN_IN_CONTEXT(cuMemAllocPitch_v2);
	size_t row = (width + PITCH - 1) / PITCH * PITCH;
	VALID(width && height && (element == 4 || element == 8 || element == 16));
	result = map_plain(context, out, row * height);
	if (result == HR__CUDA_SUCCESS) *pitch = row;
	return end(result);
}

CUresult cuMemAllocManaged(CUdeviceptr *out, size_t size, unsigned int flags)
{
	BEGIN_IN_CONTEXT(cuMemAllocManaged);
	VALID(flags == 1 || flags == 2);
	return end(map_plain(context, out, size));
}

typedef struct host_block {
	void *address;
	struct host_block *next;
} host_block;

static host_block *host_blocks;

static CUresult host_alloc(void **out, size_t size)
{
	if (!out || !size) return HR__CUDA_ERROR_INVALID_VALUE;
	host_block *made = zeroed(sizeof *made);
	*made = (host_block){ zeroed(size), host_blocks };
	host_blocks = made;
	*out = made->address;
	return HR__CUDA_SUCCESS;
}

CUresult cuMemAllocHost_v2(void **out, size_t size)
{
	BEGIN_IN_CONTEXT(cuMemAllocHost_v2);
	return end(host_alloc(out, size));
}

CUresult cuMemHostAlloc(void **out, size_t size, unsigned int flags)
{
	BEGIN_IN_CONTEXT(cuMemHostAlloc);
	VALID(flags < 8);
	return end(host_alloc(out, size));
}

CUresult cuMemFreeHost(void *address)
{
	BEGIN_IN_CONTEXT(cuMemFreeHost);
	host_block **link = &host_blocks, *freed;
	while (*link && (*link)->address != address) link = &(*link)->next;
	VALID(*link);
	freed = *link;
	*link = freed->next;
	free(freed->address);
	free(freed);
	return end(result);
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *out, void *address)
{
	BEGIN_IN_CONTEXT(cuMemRetainAllocationHandle);
	const mapping *at = mapping_at((uintptr_t)address);
	VALID(at && !at->plain);
	/* A handle that was released exists again. */
	if (at->memory->released) at->memory->released = false;
	else at->memory->retained++;
	at->memory->references++;
	*out = (uintptr_t)at->memory;
	return end(result);
}

/* ---- what an address is ---- */

CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr address)
{
	BEGIN_IN_CONTEXT(cuMemGetAddressRange_v2);
	const mapping *at = mapping_at(address);
	VALID(at);
	if (base) *base = at->base;
	if (size) *size = at->size;
	return end(result);
}

static CUresult get_attribute(void *out, CUpointer_attribute which, const mapping *at)
{
	switch (which) {
	case HR__CU_POINTER_ATTRIBUTE_CONTEXT: *(CUcontext *)out = at->context; return at->plain ? HR__CUDA_SUCCESS : HR__CUDA_ERROR_INVALID_VALUE;
	case HR__CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: *(CUdeviceptr *)out = at->base; return HR__CUDA_SUCCESS;
	case HR__CU_POINTER_ATTRIBUTE_RANGE_SIZE: *(size_t *)out = at->size; return HR__CUDA_SUCCESS;
	default: return HR__CUDA_ERROR_INVALID_VALUE;
	}
}

CUresult cuPointerGetAttribute(void *out, CUpointer_attribute which, CUdeviceptr address)
{
	BEGIN_IN_CONTEXT(cuPointerGetAttribute);
	const mapping *at = mapping_at(address);
	VALID(at && out);
	return end(get_attribute(out, which, at));
}

/* An address that is not the driver's is no error here: the attributes are 0. */
CUresult cuPointerGetAttributes(unsigned int count, CUpointer_attribute *which, void **out, CUdeviceptr address)
{
	BEGIN_IN_CONTEXT(cuPointerGetAttributes);
	const mapping none = { 0 }, *at = mapping_at(address);
	for (unsigned i = 0; i < count && result == HR__CUDA_SUCCESS; i++) result = get_attribute(out[i], which[i], at ? at : &none);
	return end(result);
}

/* ---- memory in stream order ---- */

CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus *out)
{
	BEGIN_IN_CONTEXT(cuStreamIsCapturing);
	const CUstream stream = stream_of(context, handle);
	REQUIRE(stream, HR__CUDA_ERROR_INVALID_HANDLE);
	*out = stream->recording ? HR__CU_STREAM_CAPTURE_STATUS_ACTIVE : HR__CU_STREAM_CAPTURE_STATUS_NONE;
	return end(result);
}

#ifndef FAKE_CUDA_OLD
static CUstream variant(CUstream stream, bool per_thread)
{
	return stream || !per_thread ? stream : PER_THREAD_STREAM;
}

/* On the card of the stream, whatever context is current; NULL = from its pool. */
static CUresult alloc_async(CUcontext current_context, CUdeviceptr *out, size_t size, CUmemoryPool pool, CUstream handle)
{
	CUstream stream = stream_of(current_context, handle);
	if (!stream) return HR__CUDA_ERROR_INVALID_HANDLE;
	if (!pool) pool = fake_pool_of_card(stream->context->card);
	int card = fake_pool_card(pool);
	if (card < 0) return HR__CUDA_ERROR_INVALID_VALUE;
	CUcontext of = card == stream->context->card ? stream->context : &cards[card].primary; /* a pool may be on another card than the stream */
	if (!of->retained) return HR__CUDA_ERROR_INVALID_VALUE;
	if (size && !fake_pool_take(pool, size)) return HR__CUDA_ERROR_OUT_OF_MEMORY;
	CUresult result = map_plain(of, out, size);
	if (result == HR__CUDA_SUCCESS) mapping_at(*out)->pool = pool;
	else if (size) fake_pool_give(pool, size);
	return result;
}

static CUresult free_async(CUcontext context, CUdeviceptr address, CUstream stream)
{
	mapping *freed = mapping_at(address);
	if (!freed || !freed->plain || freed->freeing || freed->base != address) return HR__CUDA_ERROR_INVALID_VALUE;
	if (stream_of(context, stream)) context = stream_of(context, stream)->context;
	CUresult result = submit(context, stream, &(command){ .kind = FREE, .to_device = true, .to = address, .bytes = freed->size });
	if (result == HR__CUDA_SUCCESS) freed->freeing = true;
	return result;
}

#define STREAM_ORDERED(end_of_symbol, per_thread)                                                                              \
	CUresult cuMemAllocAsync##end_of_symbol(CUdeviceptr *out, size_t size, CUstream stream)                                    \
	{                                                                                                                          \
		BEGIN_IN_CONTEXT(cuMemAllocAsync##end_of_symbol);                                                                      \
		return end(alloc_async(context, out, size, NULL, variant(stream, per_thread)));                                              \
	}                                                                                                                          \
	CUresult cuMemAllocFromPoolAsync##end_of_symbol(CUdeviceptr *out, size_t size, CUmemoryPool pool, CUstream stream)         \
	{                                                                                                                          \
		BEGIN_IN_CONTEXT(cuMemAllocFromPoolAsync##end_of_symbol);                                                              \
		VALID(pool);                                                                                                           \
		return end(alloc_async(context, out, size, pool, variant(stream, per_thread)));                                              \
	}                                                                                                                          \
	CUresult cuMemFreeAsync##end_of_symbol(CUdeviceptr address, CUstream stream)                                               \
	{                                                                                                                          \
		BEGIN_IN_CONTEXT(cuMemFreeAsync##end_of_symbol);                                                                       \
		return end(free_async(context, address, variant(stream, per_thread)));                                                 \
	}

STREAM_ORDERED(, false)
STREAM_ORDERED(_ptsz, true)
#endif

/* ---- cuGetProcAddress ---- */

/* A signature that a later driver might have. */
static CUresult alloc_later(CUdeviceptr *out, size_t size, int seven)
{
	return seven == 7 ? cuMemAlloc_v2(out, size) : HR__CUDA_ERROR_INVALID_VALUE;
}

typedef struct found_call {
	const char *symbol, *name;
	int since;
	void *function, *per_thread; /* per_thread NULL: the same */
} found_call;

#define POINTER(function) (void *)(uintptr_t)(function)
#define ROW(symbol, asked, first, parameters) { #symbol, #asked, first, POINTER(symbol), NULL },
#define ROWS(symbol, asked, first, parameters) { #symbol, #asked, first, POINTER(symbol), POINTER(symbol##_ptsz) },
#define ROW_SINCE_2000(symbol, parameters) { #symbol, #symbol, 2000, POINTER(symbol), NULL },

/* "cuStreamDestroy" for "cuStreamDestroy_v2". */
static bool is_named(const char *symbol, const char *name)
{
	size_t length = strlen(name);
	return strncmp(symbol, name, length) == 0 && (!symbol[length] || strcmp(symbol + length, "_v2") == 0);
}

static CUresult find(const char *name, void **out, int version, unsigned long long flags, int *why)
{
	static const found_call versioned[] = {
		HR__ANSWERED_PLAIN(ROW)
#ifdef FAKE_CUDA_OLD
		HR__ANSWERED_LAUNCHES(ROWS) HR__ANSWERED_SEARCHES(ROWS) HR__ANSWERED_CAPTURES(ROWS)
#else
		HR__ANSWERED_STREAM(ROWS)
#endif
	};
	static const found_call others[] = { HR__MADE_CALLS(ROW_SINCE_2000) FAKE_CUDA_CALLS(ROW_SINCE_2000) HR__CUDA_CALLS(ROW_SINCE_2000) };
	const char *lacks = getenv("FAKE_CUDA_LACKS");
	const found_call *best = NULL;
	bool known = false, symbols = getenv("FAKE_CUDA_SYMBOLS") != NULL;
	*why = 0;
	for (size_t i = 0; i < sizeof versioned / sizeof *versioned; i++) {
		const found_call *at = &versioned[i];
		if (strcmp(at->name, name) != 0 && !(symbols && strcmp(at->symbol, name) == 0)) continue;
		known = true;
		if (at->since <= version && (!best || at->since > best->since)) best = at;
	}
	for (size_t i = 0; i < sizeof others / sizeof *others && !known; i++)
		if (others[i].function && is_named(others[i].name, name)) best = &others[i];
	if (lacks && strcmp(lacks, name) == 0) best = NULL, known = false;
	if (!best) {
		*why = known ? VERSION_NOT_SUFFICIENT : NOT_FOUND;
		return HR__CUDA_ERROR_NOT_FOUND;
	}
	if (version >= 14000 && getenv("FAKE_CUDA_LATER") && strcmp(name, "cuMemAlloc") == 0) {
		*out = POINTER(alloc_later);
		return HR__CUDA_SUCCESS;
	}
	*out = (flags & HR__CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) && best->per_thread ? best->per_thread : best->function;
	return HR__CUDA_SUCCESS;
}

static CUresult get_proc_address(const char *name, void **out, int version, unsigned long long flags, int *why)
{
	int unused;
	if (!name || !out || flags > 2 || version < 2000) return HR__CUDA_ERROR_INVALID_VALUE;
	if (version > (int)setting("FAKE_CUDA_VERSION", 13000)) return HR__CUDA_ERROR_INVALID_VALUE;
	return find(name, out, version, flags, why ? why : &unused);
}

/* Flags of 0 mean the default streams that the caller was compiled for. They work before cuInit, as the driver's do. */
#define SEARCHES(end_of_symbol, per_thread)                                                                                            \
	CUresult cuGetProcAddress##end_of_symbol(const char *name, void **out, int version, unsigned long long flags)                     \
	{                                                                                                                                  \
		return get_proc_address(name, out, version, flags ? flags : 2 * per_thread, NULL);                                            \
	}                                                                                                                                  \
	CUresult cuGetProcAddress_v2##end_of_symbol(const char *name, void **out, int version, unsigned long long flags, int *why)        \
	{                                                                                                                                  \
		return get_proc_address(name, out, version, flags ? flags : 2 * per_thread, why);                                             \
	}

SEARCHES(, 0)
SEARCHES(_ptsz, 1)
