/* pools.h - the driver's pools that the program takes stream-ordered memory from (cuMemPoolCreate, and the default one of each card): what memory they have, and
 * whether --manage can give it itself.
 *
 * That is so for pools of a card's memory that no other process can import and no other card has been given access to. What the driver says about
 * the use of such a pool includes the managed blocks: those that are used, and an estimate of what is reserved for them, in chunks of 32 MiB as the
 * driver reserves it. */
#ifndef HR_PLUGIN_CUDA_POOLS_H
#define HR_PLUGIN_CUDA_POOLS_H

#include <stdbool.h>
#include <stdint.h>

#include "driver_calls.h"
#include "ledger.h"

/* Memory of [pool] need not be on the card of the stream: sets kind, device and context of a request to those of the pool, if it is known. True: they
 * have changed. */
bool hr__pools_locate(CUmemoryPool pool, hr__ledger_request *request);

/* The number of [pool], whose memory is on [device]; 0: its memory must come from the driver. */
uint32_t hr__pools_find(CUmemoryPool pool, CUdevice device);

/* The number of the pool that cuMemAllocAsync takes from on [device]; 0: its memory must come from the driver. */
uint32_t hr__pools_current(CUdevice device);

/* Counts a managed block of the pool [number]; 0 = it is of none. False: the pool has a size, and no room for it. */
bool hr__pools_take(uint32_t number, uint64_t bytes);

/* The end of such a block. [number] may be 0, or that of a pool that was destroyed. */
void hr__pools_give(uint32_t number, uint64_t bytes);

#endif
