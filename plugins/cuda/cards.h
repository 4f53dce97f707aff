/* cards.h - the driver's devices, as devices of libheadroom that use no context. */
#ifndef HR_PLUGIN_CUDA_CARDS_H
#define HR_PLUGIN_CUDA_CARDS_H

#include <stdbool.h>

#include "driver_calls.h"
#include "headroom.h"

#define HR__CARDS_MAX 64
#define HR__CARDS_TYPE "CUDA"

/* Whether the driver has been initialised, and has devices. */
bool hr__cards_exist(void);

/* Registers them as CUDA:0 and up. *on_gpu: not possible, because the program uses libheadroom's devices already; its GPU:0 and up are the same
 * cards. */
hr_status hr__cards_register(bool *on_gpu);

/* The number of the driver's device; -1 if it is above HR__CARDS_MAX or unknown. */
int hr__cards_index(CUdevice device);

/* The calling thread's device and context; false if it has none. */
bool hr__cards_current(CUdevice *device, CUcontext *context);

/* The primary context of a device, if it is active; otherwise NULL. Changes nothing. */
CUcontext hr__cards_primary(CUdevice device);

#endif
