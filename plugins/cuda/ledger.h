/* ledger.h - what the program takes from the driver, in Headroom's ledger: statistics, holders, traces and reports come from there.
 *
 * Each card has two allocators of the kind "driver": one for device memory, which has the limit, and one for managed memory. Pinned host memory has
 * one on CPU:0. An allocator of this kind only records: its blocks come from the driver's calls that the
 * program makes, and go back by them.
 *
 * Cards are devices of the type "CUDA": CUDA:0 is the driver's device 0. They have no pages and no streams, and use no context, unlike GPU:0 of
 * libheadroom. If the program has used devices of libheadroom itself before its first call here, blocks are on its GPU:0 instead. With HEADROOM_RUN=manage they are on GPU:0 too, beside
 * the memory that comes from there.
 *
 * No function here changes what the program gets, except where a limit is set. Recording that fails is counted, and the program continues. */
#ifndef HR_PLUGIN_CUDA_LEDGER_H
#define HR_PLUGIN_CUDA_LEDGER_H

#include <stdbool.h>
#include <stdint.h>

#include "driver_calls.h"
#include "headroom.h"

typedef enum hr__ledger_kind { HR__LEDGER_DEVICE, HR__LEDGER_MANAGED, HR__LEDGER_HOST, HR__LEDGER_KINDS } hr__ledger_kind;

/* A call that requests memory: op and tag of its blocks. HR__LEDGER_CALL("cuMemAlloc") is one, whose name is interned once. */
typedef struct hr__ledger_call {
	const char *text;
	hr_name name; /* relaxed atomic; HR_NAME_NONE = not interned yet */
} hr__ledger_call;

#define HR__LEDGER_CALL(text) ({ static hr__ledger_call call_ = { text, HR_NAME_NONE }; &call_; })

/* A request of the program. */
typedef struct hr__ledger_request {
	hr__ledger_kind kind;
	uint64_t bytes;
	hr__ledger_call *call;
	CUcontext context; /* its end frees the block; NULL = none */
	CUdevice device;
	hr_name scope; /* hr__names_scope */
} hr__ledger_request;

/* Whether calls of this thread are recorded now: Headroom is on, the driver is known, and the thread is not inside a recorded call. */
bool hr__ledger_is_on(void);

/* Sets [device] and [context] of a request to the current ones of the thread, and its scope, for which code of Python may run: with no lock held. False:
 * there is no context; the driver will say so. */
bool hr__ledger_locate(hr__ledger_request *request);

/* The same for a request in stream order: the device and context are those of the stream. */
bool hr__ledger_locate_by(hr__ledger_request *request, CUstream stream);

/* Whether the request keeps within the limit, for which --manage may have to give memory that it keeps for later back to the driver. If not, it is counted
 * and reported as refused. */
bool hr__ledger_admits(const hr__ledger_request *request);

/* Gives memory that --manage keeps for later back to the driver, for a request that the driver has refused. False: there was none. */
bool hr__ledger_make_room(const hr__ledger_request *request);

/* Records a block that the driver has given. False: it exceeds the limit, because other threads were faster; it is counted and reported as refused,
 * and the caller gives it back to the driver. */
bool hr__ledger_add(const hr__ledger_request *request, uint64_t address);

/* Records a request that the driver has refused for lack of memory. */
void hr__ledger_refuse(const hr__ledger_request *request);

/* Ends the block at [address] and calls give_back(context), which calls the driver. If that fails, the block continues. Blocks that are not in the
 * ledger are given back all the same. Returns the driver's result. */
CUresult hr__ledger_free(uint64_t address, CUresult (*give_back)(void *context), void *context);

/* Ends all blocks of a context that the driver has destroyed. */
void hr__ledger_end_context(CUcontext context);

/* The limit of [device] and the bytes that count against it; false: no limit. */
bool hr__ledger_get_limit(CUdevice device, uint64_t *limit, uint64_t *used);

/* Whether what --manage has from the driver and what it passed on exceed the limit together. */
bool hr__ledger_is_above_limit(CUdevice device);

/* For an allocator that gives memory itself: its options, with the reports that a limit has. */
void hr__ledger_set_report(hr_allocator_options *options, hr__ledger_kind kind);

/* The names of a request: its op and tag. */
void hr__ledger_name(const hr__ledger_request *request, hr_request *named);

#endif
