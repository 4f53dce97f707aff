/* memory.c - blocks at an address: plain, in stream order, managed, and pinned host memory.
 *
 * The out-parameters of the program are written only by a call that succeeds. */
#include "captures.h"
#include "manage.h"
#include "pools.h"
#include "record.h"

HR__ANSWERED_PLAIN(HR__PROTOTYPE)
HR__ANSWERED_STREAM(HR__PROTOTYPES)

/* ---- plain ---- */

static const hr__manage_order by_all = { .by_stream = false };

__attribute__((hot)) CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t bytes)
{
	CUdeviceptr address = 0;
	hr__ledger_request request = { .kind = HR__LEDGER_DEVICE, .bytes = bytes, .call = HR__CALL_cuMemAlloc };
	CUresult result;
	if (!hr__ledger_is_on() || !out || !hr__ledger_locate(&request)) return HR__REAL(cuMemAlloc_v2, out, bytes);
	if (hr__now.manage && hr__manage_take(&request, &by_all, out, &result)) return result;
	result = HR__RECORD_TAKE(&request, address, HR__REAL(cuMemAlloc_v2, &address, bytes), HR__REAL(cuMemFree_v2, address));
	if (result == HR__CUDA_SUCCESS) *out = address;
	return result;
}

/* The driver decides how long a row is, so [request] gets its size from what the call returns. */
static CUresult alloc_pitch(hr__ledger_request *request, CUdeviceptr *address, size_t *pitch, size_t width, size_t height, unsigned int element)
{
	CUresult result = HR__REAL(cuMemAllocPitch_v2, address, pitch, width, height, element);
	if (result == HR__CUDA_SUCCESS) request->bytes = *pitch * height; /* it fits: the driver has given it */
	return result;
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *out, size_t *out_pitch, size_t width, size_t height, unsigned int element)
{
	CUdeviceptr address = 0;
	size_t pitch = 0, least = 0;
	hr__ledger_request request = { .kind = HR__LEDGER_DEVICE, .call = HR__CALL_cuMemAllocPitch };
	bool sized = !__builtin_mul_overflow(width, height, &least);
	request.bytes = least;
	if (!hr__ledger_is_on() || !out || !out_pitch || !sized || !hr__ledger_locate(&request))
		return HR__REAL(cuMemAllocPitch_v2, out, out_pitch, width, height, element);
	CUresult result = HR__RECORD_TAKE(&request, address, alloc_pitch(&request, &address, &pitch, width, height, element), HR__REAL(cuMemFree_v2, address));
	if (result != HR__CUDA_SUCCESS) return result;
	*out = address;
	*out_pitch = pitch;
	return result;
}

CUresult cuMemAllocManaged(CUdeviceptr *out, size_t bytes, unsigned int flags)
{
	CUdeviceptr address = 0;
	hr__ledger_request request = { .kind = HR__LEDGER_MANAGED, .bytes = bytes, .call = HR__CALL_cuMemAllocManaged };
	if (!hr__ledger_is_on() || !out || !hr__ledger_locate(&request)) return HR__REAL(cuMemAllocManaged, out, bytes, flags);
	CUresult result = HR__RECORD_TAKE(&request, address, HR__REAL(cuMemAllocManaged, &address, bytes, flags), HR__REAL(cuMemFree_v2, address));
	if (result == HR__CUDA_SUCCESS) *out = address;
	return result;
}

__attribute__((hot)) CUresult cuMemFree_v2(CUdeviceptr address)
{
	CUresult result;
	if (!hr__ledger_is_on()) return HR__REAL(cuMemFree_v2, address);
	if (hr__now.manage && hr__manage_free(address, &by_all, &result)) return result;
	return HR__LEDGER_FREE(HR__LEDGER_DEVICE, address, HR__REAL(cuMemFree_v2, address));
}

/* ---- in stream order ---- */

/* Memory that a graph allocates when it runs is the graph's. */
static bool is_recorded(const CUdeviceptr *out, CUstream stream, bool per_thread)
{
	return out && hr__ledger_is_on() && !hr__captures_has(stream, per_thread);
}

/* The calls for one of the two default streams; [variant] is the end of the symbol. */
#define STREAM_CALLS(variant, is_per_thread)                                                                                            \
	__attribute__((hot)) CUresult cuMemAllocAsync##variant(CUdeviceptr *out, size_t bytes, CUstream stream)                                                  \
	{                                                                                                                                   \
		CUdeviceptr address = 0;                                                                                                        \
		CUresult result;                                                                                                                \
		hr__manage_order order = { .by_stream = true, .stream = stream, .per_thread = is_per_thread };                                  \
		hr__ledger_request request = { .kind = HR__LEDGER_DEVICE, .bytes = bytes, .call = HR__CALL_cuMemAllocAsync };                          \
		if (!is_recorded(out, stream, is_per_thread) || !hr__ledger_locate_by(&request, stream))                                        \
			return HR__REAL(cuMemAllocAsync##variant, out, bytes, stream);                                                              \
		if (hr__now.manage && hr__manage_take(&request, &order, out, &result)) return result;                                  \
		result = HR__RECORD_TAKE(&request, address, HR__REAL(cuMemAllocAsync##variant, &address, bytes, stream),                        \
		                         HR__REAL(cuMemFreeAsync##variant, address, stream));                                                   \
		if (result == HR__CUDA_SUCCESS) *out = address;                                                                                 \
		return result;                                                                                                                  \
	}                                                                                                                                   \
                                                                                                                                        \
	CUresult cuMemAllocFromPoolAsync##variant(CUdeviceptr *out, size_t bytes, CUmemoryPool pool, CUstream stream)                       \
	{                                                                                                                                   \
		CUdeviceptr address = 0;                                                                                                        \
		CUresult result;                                                                                                                \
		hr__manage_order order = { .by_stream = true, .stream = stream, .per_thread = is_per_thread, .pool = pool };                    \
		hr__ledger_request request = { .kind = HR__LEDGER_DEVICE, .bytes = bytes, .call = HR__CALL_cuMemAllocFromPoolAsync };                  \
		if (!pool || !is_recorded(out, stream, is_per_thread) || !hr__ledger_locate_by(&request, stream))                               \
			return HR__REAL(cuMemAllocFromPoolAsync##variant, out, bytes, pool, stream);                                                \
		if (!hr__pools_locate(pool, &request) && hr__manage_take(&request, &order, out, &result)) return result;                                                             \
		result = HR__RECORD_TAKE(&request, address, HR__REAL(cuMemAllocFromPoolAsync##variant, &address, bytes, pool, stream),          \
		                         HR__REAL(cuMemFreeAsync##variant, address, stream));                                                   \
		if (result == HR__CUDA_SUCCESS) *out = address;                                                                                 \
		return result;                                                                                                                  \
	}                                                                                                                                   \
                                                                                                                                        \
	__attribute__((hot)) CUresult cuMemFreeAsync##variant(CUdeviceptr address, CUstream stream)                                                              \
	{                                                                                                                                   \
		CUresult result;                                                                                                                \
		hr__manage_order order = { .by_stream = true, .stream = stream, .per_thread = is_per_thread };                                  \
		if (!hr__ledger_is_on()) return HR__REAL(cuMemFreeAsync##variant, address, stream);                                             \
		if (hr__now.manage && hr__manage_free(address, &order, &result)) return result;                                        \
		return HR__LEDGER_FREE(HR__LEDGER_DEVICE, address, HR__REAL(cuMemFreeAsync##variant, address, stream));                         \
	}

STREAM_CALLS(, false)
STREAM_CALLS(_ptsz, true)

/* ---- pinned host memory ---- */

CUresult cuMemAllocHost_v2(void **out, size_t bytes)
{
	void *address = NULL;
	hr__ledger_request request = { .kind = HR__LEDGER_HOST, .bytes = bytes, .call = HR__CALL_cuMemAllocHost };
	if (!hr__ledger_is_on() || !out || !hr__ledger_locate(&request)) return HR__REAL(cuMemAllocHost_v2, out, bytes);
	CUresult result = HR__RECORD_TAKE(&request, address, HR__REAL(cuMemAllocHost_v2, &address, bytes), HR__REAL(cuMemFreeHost, address));
	if (result == HR__CUDA_SUCCESS) *out = address;
	return result;
}

CUresult cuMemHostAlloc(void **out, size_t bytes, unsigned int flags)
{
	void *address = NULL;
	hr__ledger_request request = { .kind = HR__LEDGER_HOST, .bytes = bytes, .call = HR__CALL_cuMemHostAlloc };
	if (!hr__ledger_is_on() || !out || !hr__ledger_locate(&request)) return HR__REAL(cuMemHostAlloc, out, bytes, flags);
	CUresult result = HR__RECORD_TAKE(&request, address, HR__REAL(cuMemHostAlloc, &address, bytes, flags), HR__REAL(cuMemFreeHost, address));
	if (result == HR__CUDA_SUCCESS) *out = address;
	return result;
}

CUresult cuMemFreeHost(void *address)
{
	if (!hr__ledger_is_on()) return HR__REAL(cuMemFreeHost, address);
	return HR__LEDGER_FREE(HR__LEDGER_HOST, address, HR__REAL(cuMemFreeHost, address));
}
