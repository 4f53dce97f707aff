/* evict.c - eviction and prefetch of one tensor, on request of the program or the policy. */
#include "core/base/status.h"
#include "core/lms/recipe/recipe.h"

static hr_status fail_not_evictable(const hr__tensor *tensor)
{
	char name[HR__TENSOR_NAME];
	return hr__fail(HR_UNSUPPORTED, "%s cannot be evicted: %s", hr__tensor_name(tensor, name, sizeof name),
	                tensor->lms->enabled ? "never_evict is set, or it is fixed and smaller than a page"
	                                     : "Large Model Support is off; call hr_set_lms_enabled(true) before the first tensor");
}

hr_status hr_tensor_evict(hr_tensor handle)
{
	hr_status status;
	char name[HR__TENSOR_NAME];
	hr__tensor *tensor = hr__tensor_of(handle, &status);
	if (!tensor) return status;
	if (!tensor->lms->enabled || hr__load_relaxed(&tensor->never_evict)) return fail_not_evictable(tensor);
	for (unsigned attempt = 0;; attempt++) {
		uint64_t word = hr__load_acquire(&tensor->word);
		if (word >> 32 != handle.id >> 32) return hr__tensor_fail_closed(handle);
		switch (hr__word_place(word)) {
		case HR__PLACE_NEW:
		case HR__PLACE_DROPPED:
		case HR__PLACE_EVICTED: return HR_OK;
		case HR__PLACE_UNUSED:
		case HR__PLACE_DESTROYING: return hr__tensor_fail_closed(handle);
		case HR__PLACE_RESIDENT:
			if (word & HR__WORD_PINS)
				return hr__fail(HR_IN_USE, "%s is pinned; unpin it first", hr__tensor_name(tensor, name, sizeof name));
			if (!hr__state_begin_eviction(tensor, word)) break;
			return hr__move_evict(tensor, tensor->lms->out_stream);
		default:
			status = hr__recompute_check_own(tensor);
			if (status) return status;
			hr__state_wait(attempt);
		}
	}
}

hr_status hr__lms_prefetch(hr__tensor *tensor, uint64_t word)
{
	HR_ASSERT(hr__lock_none_from(HR__RANK_LMS));
	HR_ASSERT(tensor->lms->enabled);
	hr__lms *lms = tensor->lms;
	if (!hr__state_begin_restore(tensor, word, HR__PLACE_EVICTED)) return HR_OK;
	hr__lms_begin_move(lms);
	enum hr__reclaim_mode before = hr__reclaim_set_mode(HR__RECLAIM_PLANNED);
	hr_status status = hr__move_restore(tensor, lms->in_stream, true, true);
	hr__reclaim_set_mode(before);
	if (!status) {
		hr__store_relaxed(&tensor->prefetched, 1);
		hr__lms_count(&lms->stats.num_prefetches, 1);
	} else if (status == HR_OUT_OF_MEMORY) {
		hr__lms_count(&lms->stats.num_prefetches_refused, 1);
	}
	hr__state_end_restore(tensor, status ? HR__PLACE_EVICTED : HR__PLACE_RESIDENT, false);
	hr__lms_end_move(lms);
	return status;
}

static hr_status fail_dropped(const hr__tensor *tensor)
{
	char name[HR__TENSOR_NAME];
	return hr__fail(HR_UNSUPPORTED, "%s is dropped: there is nothing to restore, and a pin recomputes it",
	                hr__tensor_name(tensor, name, sizeof name));
}

hr_status hr_tensor_prefetch(hr_tensor handle)
{
	hr_status status;
	hr__tensor *tensor = hr__tensor_of(handle, &status);
	if (!tensor) return status;
	for (unsigned attempt = 0;; attempt++) {
		uint64_t word = hr__load_acquire(&tensor->word);
		if (word >> 32 != handle.id >> 32) return hr__tensor_fail_closed(handle);
		switch (hr__word_place(word)) {
		case HR__PLACE_UNUSED:
		case HR__PLACE_DESTROYING: return hr__tensor_fail_closed(handle);
		case HR__PLACE_RECOMPUTING:
			status = hr__recompute_check_own(tensor);
			if (status) return status;
			hr__state_wait(attempt);
			break;
		case HR__PLACE_EVICTING:
		case HR__PLACE_RESTORING: hr__state_wait(attempt); break;
		case HR__PLACE_EVICTED: return hr__lms_prefetch(tensor, word);
		case HR__PLACE_DROPPED: return fail_dropped(tensor);
		default: return HR_OK;
		}
	}
}
