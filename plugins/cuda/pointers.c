/* pointers.c - what the driver says about an address: for a managed block its own range, not that of the pages that it lies in. */
#include "manage.h"
#include "record.h"

HR__ANSWERED_PLAIN(HR__PROTOTYPE)
HR__ANSWERED_STREAM(HR__PROTOTYPES)

CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr address)
{
	hr__block block;
	CUresult result = HR__REAL(cuMemGetAddressRange_v2, base, bytes, address);
	if (result != HR__CUDA_SUCCESS || !hr__ledger_is_on() || !hr__manage_find(address, &block)) return result;
	if (base) *base = block.address;
	if (bytes) *bytes = block.bytes;
	return result;
}

static void replace(void *out, CUpointer_attribute which, const hr__block *block)
{
	if (which == HR__CU_POINTER_ATTRIBUTE_RANGE_START_ADDR) *(CUdeviceptr *)out = block->address;
	if (which == HR__CU_POINTER_ATTRIBUTE_RANGE_SIZE) *(size_t *)out = block->bytes;
}

static bool is_range(CUpointer_attribute which)
{
	return which == HR__CU_POINTER_ATTRIBUTE_RANGE_START_ADDR || which == HR__CU_POINTER_ATTRIBUTE_RANGE_SIZE;
}

CUresult cuPointerGetAttribute(void *out, CUpointer_attribute which, CUdeviceptr address)
{
	hr__block block;
	CUresult result = HR__REAL(cuPointerGetAttribute, out, which, address);
	if (result == HR__CUDA_SUCCESS && is_range(which) && hr__ledger_is_on() && hr__manage_find(address, &block)) replace(out, which, &block);
	return result;
}

CUresult cuPointerGetAttributes(unsigned int count, CUpointer_attribute *which, void **out, CUdeviceptr address)
{
	hr__block block;
	bool ranges = false;
	CUresult result = HR__REAL(cuPointerGetAttributes, count, which, out, address);
	if (result != HR__CUDA_SUCCESS || !hr__ledger_is_on()) return result;
	for (unsigned int i = 0; i < count; i++) ranges = ranges || is_range(which[i]);
	if (!ranges || !hr__manage_find(address, &block)) return result;
	for (unsigned int i = 0; i < count; i++) replace(out[i], which[i], &block);
	return result;
}
