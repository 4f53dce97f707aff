/* support_drop.h - drops all values of an allocator that can be dropped: now, or by a policy whenever they are not pinned. */
#ifndef HR_TESTS_SUPPORT_DROP_H
#define HR_TESTS_SUPPORT_DROP_H

#include "core/base/status.h"
#include "core/lms/context.h"
#include "core/lms/recipe/recipe.h"
#include "headroom_lms.h"
#include "test.h"

#define DROP_MAX 1024u

/* Returns how many were dropped. Those without recipe, pinned, or already dropped stay as they are. Other threads may use the allocator. */
HR_TEST_UNUSED static uint32_t drop_all(hr_allocator from)
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

HR_TEST_UNUSED static double drop_score(void *user, const hr_lms_candidate *candidate)
{
	(void)user;
	return (double)(candidate->now - candidate->last_use);
}

HR_TEST_UNUSED static void drop_unused(void *user, hr_tensor tensor, uint64_t now)
{
	(void)user;
	(void)now;
	hr__last before = hr__last_get();
	if (hr_tensor_drop(tensor)) hr__last_set(&before); /* many have no recipe */
}

/* "drops": drops whatever it can as soon as it is not pinned. */
HR_TEST_UNUSED static void register_drop_policy(void)
{
	hr_lms_policy policy;
	hr_lms_policy_init(&policy);
	policy.score = drop_score;
	policy.unused = drop_unused;
	CHECK_STATUS(HR_OK, hr_lms_policy_register("drops", &policy, NULL));
}

#endif
