/* cuda_card.h - a card, the driver's functions, and calls of them in the card's context. */
#ifndef HR_DEVICE_CUDA_CARD_H
#define HR_DEVICE_CUDA_CARD_H

#include "core/base/assert.h"
#include "core/base/lock.h"
#include "core/device/backends/cuda_driver.h"
#include "headroom.h"

/* The driver's functions, under their own names; set by hr__cuda_count_devices. */
typedef struct hr__cuda_calls {
#define HR__CUDA_MEMBER(name, parameters) CUresult(*name) parameters;
	HR__CUDA_CALLS(HR__CUDA_MEMBER)
	HR__CUDA_KERNEL_CALLS(HR__CUDA_MEMBER)
#undef HR__CUDA_MEMBER
} hr__cuda_calls;

extern hr__cuda_calls hr__cuda;

#define HR__CUDA_MAX_CARDS 64u

typedef struct hr__cuda_range hr__cuda_range; /* reserved addresses (cuda_access.c) */

typedef struct hr__cuda_card {
	CUdevice device;
	CUcontext context;
	uint64_t page_bytes, total_bytes;
	CUmemAllocationProp memory; /* properties of a page */
	char name[64];

	/* cuda_access.c */
	hr__lock access_lock; /* HR__RANK_DEVICE; guards the fields below */
	CUmemAccessDesc access[HR__CUDA_MAX_CARDS]; /* of this card and others; entries below access_count never change */
	hr__atomic_u32 access_count;                /* written with the lock held */
	hr__cuda_range **ranges;                    /* in the order of their addresses */
	size_t range_count, range_capacity;

	/* cuda_clock.c */
	CUstream clock;      /* the stream on which bases are recorded */
	hr__lock clock_lock; /* HR__RANK_DEVICE; guards the fields below */
	CUevent base, next;  /* next: becomes the base once it has happened */
	uint64_t base_ns;    /* time of base on our clock */
	bool next_is_recorded;
} hr__cuda_card;

/* ---- errors ---- */

/* "CUDA_ERROR_OUT_OF_MEMORY (out of memory)". Returns [out]. */
const char *hr__cuda_describe(CUresult result, char *out, size_t capacity);

/* Length of a symbol's name without its version suffix, as users know it (cuMemAlloc). */
int hr__cuda_plain_length(const char *symbol);

/* The status and message of a failed call. [of] is the object of the call, such as " of 2.0 MiB". */
hr_status hr__cuda_failed_of(const hr__cuda_card *on, CUresult result, const char *symbol, const char *of);
hr_status hr__cuda_failed(const hr__cuda_card *on, CUresult result, const char *symbol);

/* ---- the context ---- */

/* Makes the card's context current; *pushed is whether hr__cuda_leave must pop it. */
static inline CUresult hr__cuda_enter(const hr__cuda_card *on, bool *pushed)
{
	CUcontext current = NULL;
	CUresult result = hr__cuda.cuCtxGetCurrent(&current);
	*pushed = false;
	if (result != HR__CUDA_SUCCESS || current == on->context) return result;
	result = hr__cuda.cuCtxPushCurrent_v2(on->context);
	*pushed = result == HR__CUDA_SUCCESS;
	return result;
}

static inline void hr__cuda_leave(bool pushed)
{
	CUcontext ours;
	if (pushed) hr__cuda.cuCtxPopCurrent_v2(&ours);
}

/* Makes one call in the card's context; evaluates to its CUresult. */
#define HR__CUDA_IN_CONTEXT(on, name, ...)               \
	({                                                   \
		bool pushed_;                                    \
		CUresult result_ = hr__cuda_enter(on, &pushed_); \
		if (HR_LIKELY(result_ == HR__CUDA_SUCCESS)) {    \
			result_ = hr__cuda.name(__VA_ARGS__);        \
			hr__cuda_leave(pushed_);                     \
		}                                                \
		result_;                                         \
	})

/* ---- the driver (cuda_load.c) ---- */

/* Loads the driver on the first call, and counts its devices. Returns 0 where there is no driver, or it does not work, or it is not
 * [enabled]; hr__cuda_why then says why. Under the registry's lock. */
uint32_t hr__cuda_count_devices(bool enabled);

/* The first of HR__CUDA_KERNEL_CALLS that the driver lacks; NULL = it has all. */
const char *hr__cuda_lacks(void);

/* ---- access to the card's pages (cuda_access.c) ---- */

void hr__cuda_access_open(hr__cuda_card *card);
void hr__cuda_access_close(hr__cuda_card *card);

/* A record of [bytes] of addresses that are about to be reserved. */
hr_status hr__cuda_range_make(const hr__cuda_card *card, uint64_t bytes, hr__cuda_range **out);
void hr__cuda_range_free(hr__cuda_range *range);
hr_status hr__cuda_range_add(hr__cuda_card *card, hr__cuda_range *range, uint64_t base);
hr__cuda_range *hr__cuda_range_remove(hr__cuda_card *card, uint64_t base); /* NULL = not known */

/* Makes pages that were just mapped accessible. Called in the card's context. */
CUresult hr__cuda_access_set(hr__cuda_card *card, uint64_t address, uint32_t count);
/* Notes whether the pages are mapped: false before they are unmapped, true again if that fails. */
void hr__cuda_access_note(hr__cuda_card *card, uint64_t address, uint32_t count, bool mapped);

/* hr_backend.allow_access */
hr_status hr__cuda_allow_access(void *device, void *peer);

/* ---- the clock (cuda_clock.c) ---- */

/* Of a card that is being opened. Fails with the status of the call that failed; then there is nothing to stop. */
hr_status hr__cuda_clock_start(hr__cuda_card *opened);
void hr__cuda_clock_stop(const hr__cuda_card *closed);

/* The time at which an event that has happened did so, on the card's clock. */
hr_status hr__cuda_clock_read(hr__cuda_card *on, CUevent event, uint64_t *ns);

#endif
