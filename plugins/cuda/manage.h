/* manage.h - memory from libheadroom's allocator in place of the driver's (HEADROOM_RUN=manage).
 *
 * Each card has a bfc allocator on GPU:n. What it cannot give is passed on to the driver, and recorded as in the other mode: managed memory, pitched
 * memory, memory of pools that others can use too (pools.h), physical memory, memory for the per-thread default stream, memory that is requested while a
 * stream records a graph, and all memory of contexts that are not the primary one. */
#ifndef HR_PLUGIN_CUDA_MANAGE_H
#define HR_PLUGIN_CUDA_MANAGE_H

#include "blocks.h"
#include "ledger.h"

/* When the memory may be used, or was last used. */
typedef struct hr__manage_order {
	bool by_stream;  /* false: by all streams, at once */
	CUstream stream;
	bool per_thread; /* stream 0 is the thread's own default stream */
	CUmemoryPool pool; /* that the program chose; NULL = that of the card */
} hr__manage_order;

/* Whether calls of this thread may be answered by memory of libheadroom. */
bool hr__manage_is_on(void);

/* Takes a block; true: *result is the program's. False: the driver has to give it. */
bool hr__manage_take(const hr__ledger_request *request, const hr__manage_order *order, CUdeviceptr *out, CUresult *result);

/* Frees the block at [address]. True: it was one of these, and *result is the program's. */
bool hr__manage_free(CUdeviceptr address, const hr__manage_order *order, CUresult *result);

/* The managed block that contains [address]. */
bool hr__manage_find(CUdeviceptr address, hr__block *out);

/* Bytes that the allocator of a card has from the driver and the program does not use. */
uint64_t hr__manage_idle_bytes(CUdevice device);

/* Before a stream is destroyed. */
void hr__manage_end_stream(CUstream stream);

/* Before the primary context of a card is reset: its blocks end, their memory is the driver's again, and nothing more is managed on the card. */
void hr__manage_end_card(CUdevice device);

/* Gives memory that the allocator of a card keeps for later back to the driver. False: there was none, or a graph is being recorded. */
bool hr__manage_trim(CUdevice device);

/* Frees what was freed by the program while a graph was recorded, once none is. */
void hr__manage_settle(void);

#endif
