/* support_drop.h - drops all values of an allocator that can be dropped. */
#ifndef HR_TESTS_SUPPORT_DROP_H
#define HR_TESTS_SUPPORT_DROP_H

#include "core/lms/context.h"
#include "core/lms/recipe/recipe.h"
#include "headroom_lms.h"
#include "test.h"

#define DROP_MAX 1024u

/* Returns how many were dropped. Those without recipe, pinned, or already dropped stay as they are. Other threads may use the allocator. */
static uint32_t drop_all(hr_allocator from)
{
	hr_tensor found[DROP_MAX];
	hr__lms *lms;
	uint32_t count = 0, dropped = 0;
	CHECK_STATUS(HR_OK, hr__lms_find(from, &lms));
	hr__lock_take(&lms->lock);
	for (uint32_t i = 0; i < lms->member_count; i++) {
		const hr__tensor *tensor = lms->members[i];
		if (hr__load_relaxed(&tensor->recipe) && !hr__load_relaxed(&tensor->ghost) && count < DROP_MAX)
			found[count++] = hr__tensor_handle(tensor, hr__load_relaxed(&tensor->word));
	}
	hr__lock_release(&lms->lock);
	for (uint32_t i = 0; i < count; i++) {
		hr_tensor_info info;
		hr_tensor_info_init(&info);
		if (hr_tensor_get_info(found[i], &info)) continue; /* another thread has destroyed it */
		if (info.state != HR_TENSOR_INACTIVE && info.state != HR_TENSOR_SYNCED) continue;
		hr_status status = hr_tensor_drop(found[i]);
		bool raced = status == HR_IN_USE || status == HR_NOT_READY || status == HR_INVALID_HANDLE;
		if (!raced && status != HR_UNSUPPORTED) CHECK_STATUS(HR_OK, status); /* unsupported: its chain would be too deep */
		dropped += status == HR_OK;
	}
	return dropped;
}

#endif
