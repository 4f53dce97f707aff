/* contexts.c - the end of a context, which frees its memory, and what the driver says about the memory of a card. */
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
	return HR__REAL(cuStreamDestroy_v2, stream);
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
	size_t free_bytes = 0, total = 0;
	uint64_t limit, used;
	hr__ledger_request here = { .kind = HR__LEDGER_DEVICE };
	CUresult result = HR__REAL(cuMemGetInfo_v2, &free_bytes, &total);
	if (result != HR__CUDA_SUCCESS) return result;
	bool on = hr__ledger_is_on() && hr__ledger_locate(&here);
	if (on) free_bytes += hr__manage_idle_bytes(here.device);
	if (on && hr__ledger_get_limit(here.device, &limit, &used)) {
		uint64_t left = used < limit ? limit - used : 0;
		if (total > limit) total = limit;
		if (free_bytes > left) free_bytes = left;
	}
	if (out_free) *out_free = free_bytes;
	if (out_total) *out_total = total;
	return result;
}

CUresult cuDeviceTotalMem_v2(size_t *out, CUdevice device)
{
	size_t total = 0;
	uint64_t limit, used;
	CUresult result = out ? HR__REAL(cuDeviceTotalMem_v2, &total, device) : HR__REAL(cuDeviceTotalMem_v2, out, device);
	if (result != HR__CUDA_SUCCESS) return result;
	if (hr__ledger_is_on() && hr__ledger_get_limit(device, &limit, &used) && total > limit) total = limit;
	*out = total;
	return result;
}
