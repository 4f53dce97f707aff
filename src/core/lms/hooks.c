/* hooks.c - what the memory layer calls of Large Model Support (core/base/hooks.h). */
#include "core/base/hooks.h"
#include "core/base/status.h"
#include "core/base/text/text.h"
#include "core/lms/context.h"
#include "core/lms/recipe/recipe.h"

static hr_status in_use(hr__allocator *allocator)
{
	hr__lms *lms = hr__load_acquire(&allocator->lms);
	int64_t count = hr__load_relaxed(&lms->stats.num_tensors);
	if (!count) return HR_OK;
	return hr__fail(HR_IN_USE, "%s still has %lld tensor%s; destroy them, or use hr_allocator_destroy_all", allocator->name,
	                (long long)count, hr__plural((uint64_t)count));
}

static void closing(hr__allocator *allocator)
{
	hr__lms_close(hr__load_acquire(&allocator->lms));
}

static bool get_evictable(hr__allocator *allocator, uint64_t *room, uint64_t *apart)
{
	hr__lms *lms = hr__load_acquire(&allocator->lms);
	*room = lms && lms->host ? hr__host_room(lms->host) : UINT64_MAX;
	*apart = 0;
	if (!lms) return false;
	hr__lock_take(&lms->lock);
	for (uint32_t i = 0; i < lms->member_count; i++) {
		const hr__tensor *tensor = lms->members[i];
		if (hr__tensor_owns_pages(tensor) && hr__tensor_is_evictable(tensor->index + 1)) *apart += tensor->device_bytes;
	}
	hr__lock_release(&lms->lock);
	return lms->enabled;
}

static hr__droppable get_droppable(hr__allocator *allocator)
{
	hr__lms *lms = hr__load_acquire(&allocator->lms);
	return lms ? hr__drop_survey(lms) : (hr__droppable){ 0 };
}

static uint64_t bytes_to_move(const hr__pressure *pressure, hr__moving *how)
{
	hr__lms *lms = hr__load_acquire(&pressure->allocator->lms);
	if (!lms) return UINT64_MAX;
	*how = (hr__moving){ .on = lms->defrag, .budget = lms->defrag_budget };
	return hr__defrag_cost(lms, pressure);
}

static void shut_down(void)
{
	hr__lms_close_all();
	hr__tensor_shutdown();
	hr__lms_options_reset();
	hr__lms_policy_reset();
}

static void forget(void)
{
	hr__lms_forget_all();
	hr__tensor_forget_all();
	hr__lms_options_forget();
	hr__lms_policy_forget();
}

static const hr__lms_hooks hooks = { .reclaim = hr__reclaim,
	                                 .stats = hr__lms_stats_add,
	                                 .reset = hr__lms_stats_reset,
	                                 .in_use = in_use,
	                                 .closing = closing,
	                                 .is_evictable = hr__tensor_is_evictable,
	                                 .get_evictable = get_evictable,
	                                 .get_droppable = get_droppable,
	                                 .bytes_to_move = bytes_to_move,
	                                 .leaks = hr__lms_leaks,
	                                 .shutdown = shut_down,
	                                 .forget = forget };

void hr__lms_register_hooks(void)
{
	hr__store_release(&hr__hooks_table.lms, &hooks);
}
