/* fake_sharing.c - pools of the stand-in driver, graphs' recordings for programs, and what other cards and processes may access. */
#include "fake_cuda/driver_state.h"

HR__ANSWERED_PLAIN(HR__PROTOTYPE)
HR__ANSWERED_STREAM(HR__PROTOTYPES)
#define PROTOTYPE(name, parameters) EXPORT CUresult name parameters;
HR__MADE_CALLS(PROTOTYPE)
FAKE_CUDA_CALLS(PROTOTYPE)
#undef PROTOTYPE

/* ---- pools ---- */

struct CUmemPoolHandle_st {
	CUmemPoolProps of;
	bool destroyed;
	uint64_t used, highest;
	struct CUmemPoolHandle_st *next;
};

static CUmemoryPool pools; /* records of destroyed ones are kept, so that later uses are detected */
static CUmemoryPool standard[MAX_CARDS], chosen[MAX_CARDS];

static CUmemoryPool make_pool(const CUmemPoolProps *of)
{
	CUmemoryPool made = zeroed(sizeof *made);
	*made = (struct CUmemPoolHandle_st){ .of = *of, .next = pools };
	pools = made;
	return made;
}

static CUmemoryPool standard_of(CUdevice device)
{
	const CUmemPoolProps of = { .allocType = HR__CU_MEM_ALLOCATION_TYPE_PINNED, .location = { HR__CU_MEM_LOCATION_TYPE_DEVICE, device } };
	if (!standard[device]) standard[device] = make_pool(&of);
	return standard[device];
}

/* The card of a pool, -1 if it is none. FAKE_FOREIGN_POOL is one that another process made. */
int fake_pool_card(CUmemoryPool handle)
{
	if (handle == FAKE_FOREIGN_POOL) return 0;
	for (CUmemoryPool at = pools; at; at = at->next)
		if (at == handle) return at->destroyed ? -1 : at->of.location.id;
	return -1;
}

CUmemoryPool fake_pool_of_card(int card)
{
	return chosen[card] ? chosen[card] : standard_of(card);
}

bool fake_pool_take(CUmemoryPool pool, uint64_t bytes)
{
	if (pool == FAKE_FOREIGN_POOL) return true;
	if (pool->of.maxSize && bytes > pool->of.maxSize - pool->used) return false;
	pool->used += bytes;
	if (pool->used > pool->highest) pool->highest = pool->used;
	return true;
}

void fake_pool_give(CUmemoryPool pool, uint64_t bytes)
{
	if (pool && pool != FAKE_FOREIGN_POOL) pool->used -= bytes;
}

static bool is_card(CUdevice device)
{
	return device >= 0 && device < card_count() && device < MAX_CARDS;
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *out, CUdevice device)
{
	BEGIN(cuDeviceGetDefaultMemPool);
	REQUIRE(is_card(device), HR__CUDA_ERROR_INVALID_DEVICE);
	*out = standard_of(device);
	return end(result);
}

CUresult cuDeviceGetMemPool(CUmemoryPool *out, CUdevice device)
{
	BEGIN(cuDeviceGetMemPool);
	REQUIRE(is_card(device), HR__CUDA_ERROR_INVALID_DEVICE);
	*out = fake_pool_of_card(device);
	return end(result);
}

CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool)
{
	BEGIN(cuDeviceSetMemPool);
	REQUIRE(is_card(device), HR__CUDA_ERROR_INVALID_DEVICE);
	VALID(fake_pool_card(pool) == device);
	chosen[device] = pool;
	return end(result);
}

CUresult cuMemPoolCreate(CUmemoryPool *out, const CUmemPoolProps *of)
{
	BEGIN(cuMemPoolCreate);
	bool on_card = of && of->location.type == HR__CU_MEM_LOCATION_TYPE_DEVICE, of_host = of && of->location.type == HR__CU_MEM_LOCATION_TYPE_HOST_NUMA;
	VALID(out && of && of->handleTypes >= 0 && of->handleTypes < 16 && ((on_card && is_card(of->location.id)) || (of_host && of->location.id == 0)));
	VALID(of->allocType == HR__CU_MEM_ALLOCATION_TYPE_PINNED || of->allocType == HR__CU_MEM_ALLOCATION_TYPE_MANAGED);
	*out = make_pool(of);
	return end(result);
}

CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
	BEGIN(cuMemPoolDestroy);
	VALID(pool != FAKE_FOREIGN_POOL && fake_pool_card(pool) >= 0 && pool != standard_of(pool->of.location.id));
	if (chosen[pool->of.location.id] == pool) chosen[pool->of.location.id] = NULL;
	pool->destroyed = true;
	return end(result);
}

CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *access, size_t count)
{
	BEGIN(cuMemPoolSetAccess);
	VALID(fake_pool_card(pool) >= 0);
	for (size_t i = 0; i < count; i++) VALID(access[i].location.type == HR__CU_MEM_LOCATION_TYPE_DEVICE && is_card(access[i].location.id));
	return end(result);
}

/* What is reserved is what is used: nothing is kept. */
CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute which, void *out)
{
	BEGIN(cuMemPoolGetAttribute);
	VALID(pool != FAKE_FOREIGN_POOL && fake_pool_card(pool) >= 0 && out);
	switch (which) {
	case HR__CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
	case HR__CU_MEMPOOL_ATTR_USED_MEM_CURRENT: *(uint64_t *)out = pool->used; break;
	case HR__CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
	case HR__CU_MEMPOOL_ATTR_USED_MEM_HIGH: *(uint64_t *)out = pool->highest; break;
	default: return end(HR__CUDA_ERROR_INVALID_VALUE);
	}
	return end(result);
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute which, void *value)
{
	BEGIN(cuMemPoolSetAttribute);
	VALID(pool != FAKE_FOREIGN_POOL && fake_pool_card(pool) >= 0 && which == HR__CU_MEMPOOL_ATTR_USED_MEM_HIGH && *(uint64_t *)value == 0);
	pool->highest = pool->used;
	return end(result);
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
	(void)keep;
	BEGIN(cuMemPoolTrimTo);
	VALID(fake_pool_card(pool) >= 0);
	return end(result);
}

/* ---- recordings of graphs: those with the other default stream, and into a graph ---- */

#define VARIANT(stream) ((stream) ? (stream) : PER_THREAD_STREAM)

CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode)
{
	return cuStreamBeginCapture_v2(VARIANT(stream), mode);
}

CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *after, const CUgraphEdgeData *edges, size_t count, CUstreamCaptureMode mode)
{
	if (graph || after || edges || count) return HR__CUDA_ERROR_NOT_SUPPORTED;
	return cuStreamBeginCapture_v2(stream, mode);
}

CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph, const CUgraphNode *after, const CUgraphEdgeData *edges, size_t count,
                                          CUstreamCaptureMode mode)
{
	return cuStreamBeginCaptureToGraph(VARIANT(stream), graph, after, edges, count, mode);
}

CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *out)
{
	return cuStreamEndCapture(VARIANT(stream), out);
}

/* ---- other cards and processes ---- */

CUresult cuStreamGetCtx(CUstream handle, CUcontext *out)
{
	BEGIN_IN_CONTEXT(cuStreamGetCtx);
	const CUstream stream = stream_of(context, handle);
	REQUIRE(stream, HR__CUDA_ERROR_INVALID_HANDLE);
	*out = stream->context;
	return end(result);
}

CUresult cuDeviceCanAccessPeer(int *out, CUdevice device, CUdevice peer)
{
	BEGIN(cuDeviceCanAccessPeer);
	REQUIRE(is_card(device) && is_card(peer), HR__CUDA_ERROR_INVALID_DEVICE);
	*out = device != peer;
	return end(result);
}

CUresult cuDeviceGetP2PAttribute(int *out, CUdevice_P2PAttribute which, CUdevice device, CUdevice peer)
{
	BEGIN(cuDeviceGetP2PAttribute);
	REQUIRE(is_card(device) && is_card(peer) && device != peer, HR__CUDA_ERROR_INVALID_DEVICE);
	VALID(which >= 1 && which <= 5);
	*out = 1;
	return end(result);
}

CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags)
{
	BEGIN_IN_CONTEXT(cuCtxEnablePeerAccess);
	VALID(flags == 0);
	REQUIRE(peer && peer->retained && peer != context, HR__CUDA_ERROR_INVALID_CONTEXT);
	return end(result);
}

/* Of plain memory alone. */
CUresult cuIpcGetMemHandle(CUipcMemHandle *out, CUdeviceptr address)
{
	BEGIN_IN_CONTEXT(cuIpcGetMemHandle);
	const mapping *at = mapping_at(address);
	VALID(out && at && at->plain);
	memset((void *)out, 1, 64);
	return end(result);
}
