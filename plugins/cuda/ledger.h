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

#include "cards.h"
#include "core/memory/adopt.h"
#include "driver.h"
#include "headroom.h"
#include "state.h"
#include "thread.h"

/* A request of the program. */
typedef struct hr__ledger_request {
	hr__ledger_kind kind;
	uint64_t bytes;
	hr__ledger_call call;
	CUcontext context; /* its end frees the block; NULL = none */
	CUdevice device;
	hr_name scope; /* hr__names_scope, if [has_scope]; otherwise it is found when it is needed, for which code of Python may run: with no lock held */
	bool has_scope;
} hr__ledger_request;

/* Whether calls of this thread are recorded now: Headroom is on, the driver is known, and the thread is not inside a recorded call. */
__attribute__((cold)) bool hr__ledger_start(void);
static inline bool hr__ledger_is_on(void)
{
	bool ready = __builtin_expect(__atomic_load_n(&hr__now.ready, __ATOMIC_ACQUIRE), true) || hr__ledger_start();
	return ready && !hr__this_thread.inside;
}

/* Sets [device] and [context] of a request to the current ones of the thread. False: there is no context; the driver will say so. */
static inline bool hr__ledger_locate(hr__ledger_request *request)
{
	return hr__cards_current(&request->device, &request->context);
}

/* The same for a request in stream order: the device and context are those of the stream. */
bool hr__ledger_locate_by(hr__ledger_request *request, CUstream stream);

/* Whether the request keeps within the limit, for which --manage may have to give memory that it keeps for later back to the driver. If not, it is counted
 * and reported as refused. */
__attribute__((cold)) bool hr__ledger_fits(const hr__ledger_request *request);
static inline bool hr__ledger_admits(const hr__ledger_request *request)
{
	return __builtin_expect(!hr__now.limited, true) || hr__ledger_fits(request);
}

/* Gives memory that --manage keeps for later back to the driver, for a request that the driver has refused. False: there was none. */
__attribute__((cold)) bool hr__ledger_make_room(const hr__ledger_request *request);

/* Records a block that the driver has given. False: it exceeds the limit, because other threads were faster; it is counted and reported as refused,
 * and the caller gives it back to the driver. */
bool hr__ledger_add(const hr__ledger_request *request, uint64_t address);

/* Says that a block is not recorded, if nothing of that kind was said before. */
__attribute__((cold)) void hr__ledger_say_unrecorded(const char *why);

/* Records a request that the driver has refused for lack of memory. */
__attribute__((cold)) void hr__ledger_refuse(const hr__ledger_request *request);

/* Takes the block at [address] out of the ledger; [kind] is what it probably is. *block is for hr__ledger_end or hr__ledger_restore. An allocator of 0: there
 * is none, and the driver is called all the same. */
hr_allocator hr__ledger_take(hr__ledger_kind kind, uint64_t address, hr__adopted *block);

/* The driver refused to free the block: it continues. */
__attribute__((cold)) void hr__ledger_restore(hr_allocator allocator, const hr__adopted *block);

/* Ends the block of [kind] at [address], before [give], the driver's call, to whose result it evaluates. If that fails, the block continues. */
#define HR__LEDGER_FREE(kind, address, give)                                                          \
	({                                                                                                \
		hr__adopted block_;                                                                           \
		hr_allocator allocator_ = hr__ledger_take(kind, (uint64_t)(uintptr_t)(address), &block_);     \
		CUresult given_ = (give);                                                                     \
		if (allocator_.id) {                                                                          \
			if (__builtin_expect(given_ == HR__CUDA_SUCCESS, true)) hr__adopted_end(allocator_, &block_); \
			else hr__ledger_restore(allocator_, &block_);                                             \
		}                                                                                             \
		given_;                                                                                       \
	})

/* The allocator of the block at [address]; 0: there is none. */
hr_allocator hr__ledger_find(uint64_t address);

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
