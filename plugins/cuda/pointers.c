/* pointers.c - what the driver says about an address: for a managed block its own range, not that of the pages that it lies in, and its context, because mapped
 * memory has none. */
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
	if (which == HR__CU_POINTER_ATTRIBUTE_CONTEXT) *(CUcontext *)out = block->context;
	if (which == HR__CU_POINTER_ATTRIBUTE_RANGE_START_ADDR) *(CUdeviceptr *)out = block->address;
	if (which == HR__CU_POINTER_ATTRIBUTE_RANGE_SIZE) *(size_t *)out = block->bytes;
}

static bool is_replaced(CUpointer_attribute which)
{
	return which == HR__CU_POINTER_ATTRIBUTE_CONTEXT || which == HR__CU_POINTER_ATTRIBUTE_RANGE_START_ADDR || which == HR__CU_POINTER_ATTRIBUTE_RANGE_SIZE;
}

/* The driver's answer for the context of mapped memory may be an error. */
CUresult cuPointerGetAttribute(void *out, CUpointer_attribute which, CUdeviceptr address)
{
	hr__block block;
	CUresult result = HR__REAL(cuPointerGetAttribute, out, which, address);
	bool refused = result == HR__CUDA_ERROR_INVALID_VALUE && out && which == HR__CU_POINTER_ATTRIBUTE_CONTEXT;
	if ((result != HR__CUDA_SUCCESS && !refused) || !is_replaced(which) || !hr__ledger_is_on() || !hr__manage_find(address, &block)) return result;
	replace(out, which, &block);
	return HR__CUDA_SUCCESS;
}

CUresult cuPointerGetAttributes(unsigned int count, CUpointer_attribute *which, void **out, CUdeviceptr address)
{
	hr__block block;
	bool any = false;
	CUresult result = HR__REAL(cuPointerGetAttributes, count, which, out, address);
	if (result != HR__CUDA_SUCCESS || !hr__ledger_is_on()) return result;
	for (unsigned int i = 0; i < count; i++) any = any || is_replaced(which[i]);
	if (!any || !hr__manage_find(address, &block)) return result;
	for (unsigned int i = 0; i < count; i++) replace(out[i], which[i], &block);
	return result;
}
