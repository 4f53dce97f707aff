/* contexts.c - the end of a context, which frees its memory, and what the driver says about the memory of a card. */
#include "captures.h"
#include "cards.h"
#include "manage.h"
#include "record.h"

HR__ANSWERED_PLAIN(HR__PROTOTYPE)
HR__ANSWERED_STREAM(HR__PROTOTYPES)

CUresult cuCtxDestroy_v2(CUcontext context)
{
	bool on = hr__ledger_is_on();
	CUresult result = HR__REAL(cuCtxDestroy_v2, context);
	if (on && result == HR__CUDA_SUCCESS) hr__ledger_end_context(context);
	return result;
}

CUresult cuStreamDestroy_v2(CUstream stream)
{
	if (stream && hr__ledger_is_on()) hr__manage_end_stream(stream);
	CUresult result = HR__REAL(cuStreamDestroy_v2, stream);
	if (result == HR__CUDA_SUCCESS) hr__captures_end_stream(stream);
	return result;
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
	CUcontext primary = hr__ledger_is_on() ? hr__cards_primary(device) : NULL;
	if (primary) hr__manage_end_card(device);
	CUresult result = HR__REAL(cuDevicePrimaryCtxReset_v2, device);
	if (result == HR__CUDA_SUCCESS) hr__ledger_end_context(primary);
	return result;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
	CUcontext primary = hr__ledger_is_on() ? hr__cards_primary(device) : NULL;
	CUresult result = HR__REAL(cuDevicePrimaryCtxRelease_v2, device);
	if (result == HR__CUDA_SUCCESS && primary && !hr__cards_primary(device)) hr__ledger_end_context(primary);
	return result;
}

/* ---- the size of a card ---- */

CUresult cuMemGetInfo_v2(size_t *out_free, size_t *out_total)
{
	uint64_t limit, used;
	CUdevice device;
	CUcontext context;
	CUresult result = HR__REAL(cuMemGetInfo_v2, out_free, out_total);
	if (result != HR__CUDA_SUCCESS || !hr__ledger_is_on() || !hr__cards_current(&device, &context)) return result;
	if (out_free) *out_free += hr__manage_idle_bytes(device);
	if (!hr__ledger_get_limit(device, &limit, &used)) return result;
	uint64_t left = used < limit ? limit - used : 0;
	if (out_total && *out_total > limit) *out_total = limit;
	if (out_free && *out_free > left) *out_free = left;
	return result;
}

CUresult cuDeviceTotalMem_v2(size_t *out, CUdevice device)
{
	uint64_t limit, used;
	CUresult result = HR__REAL(cuDeviceTotalMem_v2, out, device);
	if (result == HR__CUDA_SUCCESS && out && hr__ledger_is_on() && hr__ledger_get_limit(device, &limit, &used) && *out > limit) *out = limit;
	return result;
}
