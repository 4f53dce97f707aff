/* state.h - what almost every recorded call reads. Between two calls the driver and the program use so much other memory that each cache line is a miss, and each
 * page too, and a miss takes longer than what is done with the line. So most of it is in the first two lines, and all of it with the driver's functions in one
 * place (HR__HOT_DATA).
 *
 * Written while the first call sets everything up, before [ready], unless noted otherwise. */
#ifndef HR_PLUGIN_CUDA_STATE_H
#define HR_PLUGIN_CUDA_STATE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/memory/adopt.h"
#include "driver_calls.h"

#define HR__CARDS_MAX 64

typedef enum hr__ledger_kind { HR__LEDGER_DEVICE, HR__LEDGER_MANAGED, HR__LEDGER_HOST, HR__LEDGER_KINDS } hr__ledger_kind;

/* The calls that request memory: op and tag of their blocks. */
#define HR__LEDGER_CALLS(X)                                                                                        \
	X(cuMemAlloc) X(cuMemAllocPitch) X(cuMemAllocManaged) X(cuMemAllocAsync) X(cuMemAllocFromPoolAsync) X(cuMemAllocHost) \
	X(cuMemHostAlloc) X(cuMemCreate)
typedef enum hr__ledger_call {
#define HR__LEDGER_CALL(call) HR__CALL_##call,
	HR__LEDGER_CALLS(HR__LEDGER_CALL)
#undef HR__LEDGER_CALL
	HR__LEDGER_CALL_COUNT
} hr__ledger_call;

/* The name of a kernel (kernels.c), in one of the places of its set. */
#define HR__NAMED_SETS 32u /* a power of two */
#define HR__NAMED_WAYS 4u  /* of 16 bytes: a set is a cache line */
typedef struct hr__named_kernel {
	CUfunction function; /* stored with release, after the name; NULL = none */
	uint64_t name;       /* with the number of [unloads] above it; relaxed atomic */
} hr__named_kernel;

typedef struct hr__state {
	bool ready;   /* calls are recorded, unless the thread is inside one; stored with release, and ended by a fork */
	bool manage, limited, callers; /* settings: --manage, --limit and --callers */
	CUdevice only; /* the driver's device, where there is one */
	CUresult (*get_context)(CUcontext *); /* the driver's cuCtxGetCurrent, where there is one device; NULL = ask for the device too */
	/* Functions of libheadroom (adopt.h). The table of the dynamic linker has each in a cache line of its own. */
	hr_status (*adopt)(hr_allocator, hr_request *, uint64_t, void *, hr_name (*)(void), hr__chunk_id *);
	bool (*take)(hr_allocator, uint64_t, bool, hr__adopted *);
	hr_name calls[HR__LEDGER_CALL_COUNT]; /* relaxed atomics; HR_NAME_NONE = not interned yet (ledger.c) */

	/* Launches (launches.c): the driver's functions, where almost all launches go; relaxed atomics, which change once. */
	struct {
#define HR__LAUNCH(symbol, name, since, parameters) CUresult(*symbol) parameters; CUresult(*symbol##_ptsz) parameters;
		HR__ANSWERED_LAUNCHES(HR__LAUNCH)
#undef HR__LAUNCH
	} launch __attribute__((aligned(64)));
	void (*set_tag)(hr_allocator, hr__chunk_id, uint64_t, hr_name);
	uint32_t unloads; /* how often code was unloaded; atomic (kernels.c) */

	uint64_t allocators[HR__CARDS_MAX][HR__LEDGER_KINDS] __attribute__((aligned(64))); /* ids, stored with release; 0 = not created yet (ledger.c) */
	hr__named_kernel kernels[HR__NAMED_SETS][HR__NAMED_WAYS] __attribute__((aligned(64))); /* kernels.c */
} hr__state;

extern hr__state hr__now __attribute__((visibility("hidden"), aligned(64)));

#endif
