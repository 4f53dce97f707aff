/* limit.c - the limit for tensors, and eviction of everything inactive on request. */
#include "core/base/status.h"
#include "core/base/text/text.h"
#include "core/lms/context.h"

/* Bytes of resident tensors that may not be evicted now. */
static uint64_t unevictable_bytes(hr__lms *lms)
{
	uint64_t bytes = 0;
	hr__lock_take(&lms->lock);
	for (uint32_t i = 0; i < lms->member_count; i++) {
		const hr__tensor *tensor = lms->members[i];
		uint64_t word = hr__load_acquire(&tensor->word);
		bool resident = hr__word_place(word) == HR__PLACE_RESIDENT || hr__word_place(word) == HR__PLACE_MOVING;
		if (resident && (word & HR__WORD_PINS || hr__load_relaxed(&tensor->never_evict) || !lms->enabled))
			bytes += tensor->device_bytes;
	}
	hr__lock_release(&lms->lock);
	return bytes;
}

hr_status hr_lms_set_limit(hr_allocator handle, uint64_t bytes)
{
	hr__lms *lms;
	hr_status status = hr__lms_of(handle, &lms);
	if (status) return status;
	uint64_t least = unevictable_bytes(lms), before = hr__load_relaxed(&lms->limit);
	if (bytes && bytes < least) {
		hr__sizes size = HR__SIZES(bytes, least);
		return hr__fail(HR_BAD_LIMIT,
		                "a limit of %s is below the %s of tensors that are pinned or cannot be evicted; unpin them first, or set a "
		                "higher limit",
		                size.text[0], size.text[1]);
	}
	hr__store_release(&lms->limit, bytes ? bytes : UINT64_MAX);
	hr__fence_seq_cst();
	status = bytes ? hr__reclaim_to_limit(lms, 0, lms->out_stream) : HR_OK;
	if (status) hr__store_release(&lms->limit, before);
	hr__lms_note_change(lms); /* last: a thread that found no room looks again */
	if (!status) return HR_OK;
	return status == HR_OUT_OF_MEMORY ? hr__fail_in(HR_BAD_LIMIT, "the limit is unchanged") : status;
}

hr_status hr_lms_reclaim_inactive(hr_allocator handle, hr_name tag, uint64_t *bytes)
{
	hr__lms *lms;
	uint64_t freed = 0;
	hr_status status = hr__lms_find(handle, &lms);
	if (status) return status;
	if (!lms->enabled)
		return hr__fail(HR_UNSUPPORTED, "Large Model Support is off on %s; call hr_set_lms_enabled(true) before its first tensor",
		                lms->allocator->name);
	status = hr__reclaim_inactive(lms, tag, &freed);
	if (bytes) *bytes = freed;
	return status;
}
