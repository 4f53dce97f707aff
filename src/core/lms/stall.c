/* stall.c - how long streams wait for restores.
 *
 * The host does not wait, so it cannot see a stall when it happens. But the device knows when marks were reached (device.h): one
 * that the pin's stream gets before its wait, and the one after the copy that it waits for. If the latter is later, the stream
 * stalled in between. Both are evaluated once they were reached. */
#include "core/lms/lms.h"

/* Evaluates and removes the stalls whose marks were reached. */
static void settle(hr__lms *lms)
{
	HR_ASSERT(hr__lock_is_mine(&lms->lock));
	while (lms->stall_count) {
		const hr__stall *stall = &lms->stalls[lms->stall_first % HR__STALLS_MAX];
		uint64_t waited = 0, restored = 0;
		hr_status status = hr__device_mark_time(lms->device, stall->stream, stall->waited, &waited);
		if (!status) status = hr__device_mark_time(lms->device, lms->in_stream, stall->restored, &restored);
		if (status == HR_NOT_READY) return;
		if (!status && restored > waited) hr__lms_count(&lms->stats.stall_ns, (int64_t)(restored - waited));
		lms->stall_first++;
		lms->stall_count--;
	}
}

void hr__stall_evaluate(hr__lms *lms)
{
	hr__lock_take(&lms->lock);
	settle(lms);
	hr__lock_release(&lms->lock);
}

void hr__stall_note(hr__lms *lms, hr_stream stream, uint64_t restored)
{
	HR_ASSERT(lms->enabled);
	uint64_t waited;
	if (hr__device_mark_timed(lms->device, stream, &waited) != HR_OK) return;
	hr__lock_take(&lms->lock);
	if (lms->stall_count == HR__STALLS_MAX) settle(lms);
	if (lms->stall_count < HR__STALLS_MAX)
		lms->stalls[(lms->stall_first + lms->stall_count++) % HR__STALLS_MAX] = (hr__stall){ waited, restored, stream };
	hr__lock_release(&lms->lock);
}
