/* cards.h - the driver's devices, as devices of libheadroom that use no context. */
#ifndef HR_PLUGIN_CUDA_CARDS_H
#define HR_PLUGIN_CUDA_CARDS_H

#include <stdbool.h>
#include <stdint.h>

#include "driver_calls.h"
#include "headroom.h"
#include "state.h"

#define HR__CARDS_TYPE "CUDA"

/* Whether the driver has been initialised, and has devices. */
bool hr__cards_exist(void);

/* Registers them as CUDA:0 and up. *on_gpu: not possible, because the program uses libheadroom's devices already; its GPU:0 and up are the same
 * cards. */
hr_status hr__cards_register(bool *on_gpu);

/* The number of the driver's device; -1 if it is above HR__CARDS_MAX or unknown. */
int hr__cards_search(CUdevice device);
static inline int hr__cards_index(CUdevice device)
{
	return __builtin_expect(hr__now.get_context && device == hr__now.only, true) ? 0 : hr__cards_search(device);
}

/* How many the driver has; at most HR__CARDS_MAX. */
uint32_t hr__cards_count(void);

/* The driver's device with the number [index]; false if there is none. */
bool hr__cards_get(int index, CUdevice *out);

/* The calling thread's device and context; false if it has none. */
bool hr__cards_ask(CUdevice *device, CUcontext *context);
static inline bool hr__cards_current(CUdevice *device, CUcontext *context)
{
	if (__builtin_expect(!hr__now.get_context, false)) return hr__cards_ask(device, context);
	*device = hr__now.only; /* every context is on it */
	return hr__now.get_context(context) == HR__CUDA_SUCCESS && *context;
}

/* Replaces these by those of a stream that belongs to another context; nothing is done where there is one card. False: the driver does not say. */
bool hr__cards_of_stream(CUstream stream, CUdevice *device, CUcontext *context);

/* The primary context of a device, if it is active; otherwise NULL. Changes nothing. */
CUcontext hr__cards_primary(CUdevice device);

#endif
