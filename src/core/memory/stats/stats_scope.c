/* stats_scope.c - statistics scopes: what a thread allocates and frees between hr_stats_scope_begin and hr_stats_scope_end. */
#include "core/base/status.h"
#include "core/base/struct.h"
#include "core/memory/allocator.h"

void hr__stats_scope_count(const hr__allocator *allocator, hr__thread_state *thread, int64_t bytes)
{
	HR_ASSERT(!thread || (thread == hr__thread_self && thread->scope_depth <= HR__SCOPES_MAX));
	uint32_t device = hr__device_index(allocator->device);
	for (uint32_t i = 0; thread && i < thread->scope_depth; i++) {
		hr__scope_frame *frame = &thread->scopes[i];
		if (frame->device != device) continue;
		frame->totals.net_bytes += bytes;
		if (frame->totals.net_bytes > frame->totals.peak_bytes) frame->totals.peak_bytes = frame->totals.net_bytes;
		if (bytes > 0) frame->totals.num_allocs++;
		else frame->totals.num_frees++;
	}
}

/* Updates [watch] in the caches that the thread has; later caches set it when they join. */
static void watch_changed(hr__thread_state *thread)
{
	HR_ASSERT(thread == hr__thread_self);
	for (uint32_t slot = 0; slot < HR__ALLOCATORS_MAX; slot++)
		if (thread->caches[slot]) hr__store_relaxed(&thread->caches[slot]->watch, thread->scope_depth != 0);
}

hr_status hr_stats_scope_begin(hr_device handle)
{
	hr_status status;
	hr__device *device = hr__device_of(handle, &status);
	if (!device) return status;
	hr__thread_state *thread = hr__thread_get();
	if (!thread) return hr__fail(HR_NO_HOST_MEMORY, "cannot get host memory for the thread's scopes");
	if (thread->scope_depth == HR__SCOPES_MAX)
		return hr__fail(HR_TOO_MANY, "this thread is inside %u statistics scopes already; end one first", HR__SCOPES_MAX);
	thread->scopes[thread->scope_depth++] = (hr__scope_frame){ .device = hr__device_index(device) };
	if (thread->scope_depth == 1) watch_changed(thread);
	return HR_OK;
}

hr_status hr_stats_scope_end(hr_device handle, hr_stats_scope *scope)
{
	hr_status status;
	hr__device *device = hr__device_of(handle, &status);
	if (!device) return status;
	status = scope ? hr__struct_check(&hr__struct_stats_scope, "hr_stats_scope_end", scope) : HR_OK;
	if (status) return status;
	hr__thread_state *thread = hr__thread_self;
	if (!thread || !thread->scope_depth)
		return hr__fail(HR_INVALID_ARGUMENT, "hr_stats_scope_end: no scope is open on this thread; call hr_stats_scope_begin first");
	hr__scope_frame *frame = &thread->scopes[thread->scope_depth - 1];
	if (frame->device != hr__device_index(device))
		return hr__fail(HR_INVALID_ARGUMENT, "hr_stats_scope_end: the innermost scope is not on %s; scopes end in reverse order",
		                hr__device_name(device));
	if (scope) hr__struct_out(&hr__struct_stats_scope, scope, &frame->totals);
	if (--thread->scope_depth == 0) watch_changed(thread);
	return HR_OK;
}
