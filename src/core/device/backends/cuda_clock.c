/* cuda_clock.c - the time of events on a card.
 *
 * CUDA reports the time between two events, in milliseconds as a float: exact to 0.25 us over 4 s, to 0.25 ms over an hour. So
 * times are measured from a base, an event on a stream that has no other work. When the base is older than REBASE_MS, a new base
 * event is recorded; it is used once it has happened. Callers that query at least every few seconds get CUDA's full resolution (0.5
 * us); the first answer after a long pause has the resolution of that pause. Each change of base adds at most one rounding error.
 *
 * Timed events cost five times as much to record as untimed ones (1.24 us and 0.23 us on an H200), and 3 us to query. */
#include "core/device/backends/cuda_card.h"

#define REBASE_MS 2000.0f
#define FIRST_BASE_NS UINT64_C(1000000000) /* so that rounding never yields a negative time */

void hr__cuda_clock_stop(const hr__cuda_card *closed)
{
	if (closed->next) HR__CUDA_IN_CONTEXT(closed, cuEventDestroy_v2, closed->next);
	if (closed->base) HR__CUDA_IN_CONTEXT(closed, cuEventDestroy_v2, closed->base);
	if (closed->clock) HR__CUDA_IN_CONTEXT(closed, cuStreamDestroy_v2, closed->clock);
}

/* Called in the context. *symbol is set to the call that failed. */
static CUresult set_clock(hr__cuda_card *opened, const char **symbol)
{
	*symbol = "cuStreamCreate";
	CUresult result = hr__cuda.cuStreamCreate(&opened->clock, HR__CU_STREAM_NON_BLOCKING);
	if (result != HR__CUDA_SUCCESS) return result;
	*symbol = "cuEventCreate";
	result = hr__cuda.cuEventCreate(&opened->base, HR__CU_EVENT_DEFAULT);
	if (result == HR__CUDA_SUCCESS) result = hr__cuda.cuEventCreate(&opened->next, HR__CU_EVENT_DEFAULT);
	if (result != HR__CUDA_SUCCESS) return result;
	*symbol = "cuEventRecord";
	result = hr__cuda.cuEventRecord(opened->base, opened->clock);
	if (result != HR__CUDA_SUCCESS) return result;
	*symbol = "cuEventSynchronize"; /* wait now, so that later events never find the base unfinished */
	return hr__cuda.cuEventSynchronize(opened->base);
}

hr_status hr__cuda_clock_start(hr__cuda_card *opened)
{
	bool pushed;
	const char *symbol = "cuCtxPushCurrent";
	hr__lock_init(&opened->clock_lock, HR__RANK_DEVICE);
	opened->base_ns = FIRST_BASE_NS;
	CUresult result = hr__cuda_enter(opened, &pushed);
	if (result == HR__CUDA_SUCCESS) {
		result = set_clock(opened, &symbol);
		hr__cuda_leave(pushed);
	}
	if (result == HR__CUDA_SUCCESS) return HR_OK;
	hr__cuda_clock_stop(opened);
	return hr__cuda_failed(opened, result, symbol);
}

static int64_t ns_of(float ms)
{
	return (int64_t)((double)ms * 1e6);
}

/* Tries to move to a new base and returns whether it did. In the context and under the clock's lock, as is event_time_ns. */
static bool move_base(hr__cuda_card *on)
{
	float step = 0;
	HR_ASSERT(hr__lock_is_mine(&on->clock_lock));
	if (!on->next_is_recorded) on->next_is_recorded = hr__cuda.cuEventRecord(on->next, on->clock) == HR__CUDA_SUCCESS;
	if (!on->next_is_recorded || hr__cuda.cuEventElapsedTime(&step, on->base, on->next) != HR__CUDA_SUCCESS) return false;
	CUevent old = on->base;
	on->base = on->next;
	on->base_ns += (uint64_t)ns_of(step);
	on->next = old;
	on->next_is_recorded = false;
	return true;
}

static CUresult event_time_ns(hr__cuda_card *on, CUevent event, uint64_t *ns)
{
	float since = 0; /* negative for events before the base */
	CUresult result = hr__cuda.cuEventElapsedTime(&since, on->base, event);
	while (result == HR__CUDA_SUCCESS && since > REBASE_MS && move_base(on)) { /* repeats when the next base is old too */
		result = hr__cuda.cuEventElapsedTime(&since, on->base, event);
	}
	if (result == HR__CUDA_SUCCESS) *ns = on->base_ns + (uint64_t)ns_of(since);
	return result;
}

hr_status hr__cuda_clock_read(hr__cuda_card *on, CUevent event, uint64_t *ns)
{
	bool pushed;
	CUresult result = hr__cuda_enter(on, &pushed);
	if (result == HR__CUDA_SUCCESS) {
		hr__lock_take(&on->clock_lock);
		result = event_time_ns(on, event, ns);
		hr__lock_release(&on->clock_lock);
		hr__cuda_leave(pushed);
	}
	return HR_LIKELY(result == HR__CUDA_SUCCESS) ? HR_OK : hr__cuda_failed(on, result, "cuEventElapsedTime");
}
