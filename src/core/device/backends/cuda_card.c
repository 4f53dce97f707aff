/* cuda_card.c - see cuda_card.h: errors of the driver. */
#include "core/device/backends/cuda_card.h"

#include <stdio.h>
#include <string.h>

#include "core/base/status.h"

static hr_status status_of(CUresult result)
{
	switch (result) {
	case HR__CUDA_SUCCESS: return HR_OK;
	case HR__CUDA_ERROR_OUT_OF_MEMORY: return HR_OUT_OF_MEMORY;
	case HR__CUDA_ERROR_NOT_READY: return HR_NOT_READY;
	case HR__CUDA_ERROR_INVALID_HANDLE: return HR_INVALID_ARGUMENT;
	case HR__CUDA_ERROR_NOT_SUPPORTED: return HR_UNSUPPORTED;
	default: return HR_DEVICE_ERROR;
	}
}

const char *hr__cuda_describe(CUresult result, char *out, size_t capacity)
{
	const char *name = NULL, *text = NULL;
	if (hr__cuda.cuGetErrorName(result, &name) != HR__CUDA_SUCCESS || !name) {
		snprintf(out, capacity, "CUDA error %d", result);
	} else if (hr__cuda.cuGetErrorString(result, &text) != HR__CUDA_SUCCESS || !text) {
		snprintf(out, capacity, "%s", name);
	} else {
		snprintf(out, capacity, "%s (%s)", name, text);
	}
	return out;
}

int hr__cuda_plain_length(const char *symbol)
{
	const char *version = strstr(symbol, "_v2");
	return (int)(version ? (size_t)(version - symbol) : strlen(symbol));
}

hr_status hr__cuda_failed_of(const hr__cuda_card *on, CUresult result, const char *symbol, const char *of)
{
	char text[160];
	if (result == HR__CUDA_ERROR_NOT_READY) return HR_NOT_READY; /* expected, not an error: skip the message */
	return hr__fail(status_of(result), "%.*s%s on %s: %s", hr__cuda_plain_length(symbol), symbol, of, on->name,
	                hr__cuda_describe(result, text, sizeof text));
}

hr_status hr__cuda_failed(const hr__cuda_card *on, CUresult result, const char *symbol)
{
	return hr__cuda_failed_of(on, result, symbol, "");
}
