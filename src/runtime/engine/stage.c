/* stage.c - ops on devices whose memory the host cannot access, such as GPUs.
 *
 * Ops are computed by the host. On such a device an op is three operations in stream order: copies of its inputs to pinned memory,
 * the op on the copies, and copies of its outputs to the device. The host does not wait for them. The pinned memory is freed in
 * stream order too, so the next op of the stream can use it at once. Scratch memory is allocated on the device as well, although it
 * is not accessed there, so that an op allocates the same on every device.
 *
 *     device    in 1   in 2   out            (out may be in 1)
 *                 |      |      ^
 *     pinned    in 1   in 2   out   scratch  (an output is never an input here)
 *
 * The contents of the inputs are therefore preserved until the op has succeeded. If an output cannot be copied, earlier outputs
 * that took the memory of an input are restored from the input's copy, so no variable is left partly updated. */
#include <stdio.h>
#include <string.h>

#include "core/base/status.h"
#include "runtime/card/card.h"
#include "runtime/engine/engine.h"

#define ALIGNMENT 256u /* kernels require this alignment of buffers */

/* One allocator for all sessions of a device: each allocator takes pinned memory in large pieces, which sessions can share. */
static struct {
	hr_allocator allocator;
	uint32_t sessions;
} shared[HR__MAX_DEVICES]; /* guarded by hr__runtime_lock */

static hr_status make_allocator(const hr__session *session, hr_allocator *out)
{
	hr__device *pinned;
	hr_allocator_options options;
	char name[64];
	hr_status status = hr__device_pinned(session->device, 0, &pinned);
	if (status) return status;
	if (!hr__device_host_accessible(pinned))
		return hr__fail(HR_UNSUPPORTED, "%s has no memory that ops can use; open the session on another device",
		                hr__device_name(session->device));
	hr_allocator_options_init(&options);
	snprintf(name, sizeof name, "%.21s ops", hr__device_name(session->device));
	options.name = name;
	options.thread_cache = false;
	options.oom.report_allocations_on_oom = false; /* the op reports it */
	return hr_allocator_create(hr__device_handle(pinned), &options, out);
}

/* Uses the device's existing allocator; false: there is none. */
static bool share(hr__session *session)
{
	uint32_t i = hr__device_index(session->device);
	hr__lock_take(&hr__runtime_lock);
	bool is_there = shared[i].sessions > 0;
	if (is_there) {
		shared[i].sessions++;
		session->staging = shared[i].allocator;
	}
	hr__lock_release(&hr__runtime_lock);
	return is_there;
}

hr_status hr__stage_open(hr__session *session)
{
	uint32_t i = hr__device_index(session->device);
	hr_allocator made;
	if (hr__device_host_accessible(session->device) || share(session)) return HR_OK;
	hr_status status = make_allocator(session, &made);
	if (status) return status;
	hr__lock_take(&hr__runtime_lock);
	bool mine = shared[i].sessions++ == 0;
	if (mine) shared[i].allocator = made;
	session->staging = shared[i].allocator;
	hr__lock_release(&hr__runtime_lock);
	if (!mine) hr_allocator_destroy_all(made); /* another thread created one first */
	return HR_OK;
}

void hr__stage_close(hr__session *session)
{
	if (!session->staging.id) return;
	uint32_t i = hr__device_index(session->device);
	hr__lock_take(&hr__runtime_lock);
	bool last = --shared[i].sessions == 0;
	hr__lock_release(&hr__runtime_lock);
	if (last) hr_allocator_destroy_all(session->staging);
	session->staging.id = 0;
}

void hr__stages_forget(void)
{
	memset(shared, 0, sizeof shared);
}

static uint64_t room_for(uint64_t bytes)
{
	return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static uint64_t room_for_all(const hr__work *work, uint64_t scratch)
{
	uint64_t bytes = room_for(scratch);
	for (uint32_t i = 0; i < work->in_count; i++) bytes += room_for(hr__type_bytes(&work->in_types[i]));
	for (uint32_t i = 0; i < work->out_count; i++) bytes += room_for(hr__type_bytes(&work->out_types[i]));
	return bytes;
}

static void place(hr__stage *stage, hr__work *work, uint64_t scratch)
{
	char *at = stage->block;
	for (uint32_t i = 0; i < work->in_count; i++) {
		stage->ins[i] = (hr__staged){ (void *)work->in[i], at, hr__type_bytes(&work->in_types[i]) };
		work->in[i] = at;
		at += room_for(stage->ins[i].bytes);
	}
	for (uint32_t i = 0; i < work->out_count; i++) {
		stage->outs[i] = (hr__staged){ work->out[i], at, hr__type_bytes(&work->out_types[i]) };
		work->out[i] = at;
		at += room_for(stage->outs[i].bytes);
	}
	if (scratch) work->scratch = at;
	stage->in_count = work->in_count;
	stage->out_count = work->out_count;
}

static hr_status copy(const hr__session *session, const hr__staged *what, bool to_device)
{
	if (!what->bytes) return HR_OK;
	if (to_device) return hr_stream_copy(session->handle, what->there, what->here, what->bytes, HR_COPY_TO_DEVICE, session->stream);
	return hr_stream_copy(session->handle, what->here, what->there, what->bytes, HR_COPY_TO_HOST, session->stream);
}

hr_status hr__stage_take(const hr__session *session, uint64_t bytes, void **out)
{
	hr_request request = HR_REQUEST(bytes);
	char why[512];
	request.stream = session->stream;
	request.tag = hr_name_intern("staging");
	hr_status status = hr_alloc(session->staging, &request, out);
	if (status != HR_OUT_OF_MEMORY) return status;
	snprintf(why, sizeof why, "%s", hr_last_message());
	return hr__fail(HR_NO_HOST_MEMORY, "the host has no pinned memory for a copy of %llu bytes; hr_lms_options.host_limit limits it: %s",
	                (unsigned long long)bytes, why);
}

hr_status hr__stage_read(const hr__session *session, void *to, const void *from, uint64_t bytes)
{
	hr__last before = hr__last_get();
	bool by_kernel = session->card && bytes <= HR__READ_BY_KERNEL;
	if (by_kernel && !hr__card_read(session->card, to, from, bytes, session->stream)) return HR_OK;
	if (by_kernel) hr__last_set(&before); /* the kernel could not be made */
	return hr_stream_copy(session->handle, to, from, bytes, HR_COPY_TO_HOST, session->stream);
}

hr_status hr__stage_in(const hr__session *session, hr__work *work, uint64_t scratch, hr__stage *out)
{
	uint64_t bytes = room_for_all(work, scratch);
	*out = (hr__stage){ .block = NULL };
	if (!session->staging.id || !bytes) return HR_OK;
	hr_status status = hr__stage_take(session, bytes, &out->block);
	if (status) return status;
	place(out, work, scratch);
	for (uint32_t i = 0; i < out->in_count && !status; i++) status = copy(session, &out->ins[i], false);
	if (status) hr__stage_end(session, out);
	return status;
}

/* Restores output [i], if it has the memory of an input. */
static void put_back(const hr__session *session, const hr__stage *stage, uint32_t i)
{
	for (uint32_t k = 0; k < stage->in_count; k++) {
		if (stage->ins[k].there != stage->outs[i].there || !stage->ins[k].bytes) continue;
		copy(session, &stage->ins[k], true); /* if this copy fails too, the device is lost */
		return;
	}
}

hr_status hr__stage_out(const hr__session *session, const hr__stage *stage)
{
	hr_status status = HR_OK;
	uint32_t done = 0;
	while (done < stage->out_count && !(status = copy(session, &stage->outs[done], true))) done++;
	if (!status) return HR_OK;
	char why[512];
	snprintf(why, sizeof why, "%s", hr_last_message());
	for (uint32_t i = 0; i < done; i++) put_back(session, stage, i);
	return hr__fail(status, "%s", why);
}

void hr__stage_end(const hr__session *session, hr__stage *stage)
{
	if (stage->block) hr_free(session->staging, stage->block, session->stream);
	stage->block = NULL;
}
