/* transfer.c - copying contents of values to the host and to other sessions. */
#include "core/base/status.h"
#include "core/base/text/text.h"
#include "runtime/engine/engine.h"

/* Pins a buffer for work on the session's stream, and returns its address. Blocks are not pinned. */
static hr_status pin_buffer(const hr__buffer *buffer, hr_access access, uint64_t offset, void **out)
{
	hr_pin pin = { buffer->tensor, access };
	hr_status status = pin.tensor.id ? hr_tensor_pin_all(&pin, 1, buffer->session->stream) : HR_OK;
	if (status) return status;
	status = hr__buffer_address(buffer, offset, out);
	if (status && pin.tensor.id) hr_tensor_unpin_all(&pin, 1, buffer->session->stream);
	return status;
}

/* [stream] is the last stream that uses the buffer. */
static hr_status unpin_buffer(const hr__buffer *buffer, hr_access access, hr_stream stream)
{
	hr_pin pin = { buffer->tensor, access };
	if (pin.tensor.id) return hr_tensor_unpin_all(&pin, 1, stream);
	return stream == buffer->session->stream ? HR_OK : hr_allocation_record_stream(buffer->session->allocator, buffer->block, stream);
}

/* ---- to the host ---- */

/* Queues the copy. *staged gets the pinned memory to which little is copied instead; NULL = it is copied to [to]. */
static hr_status queue_copy(const hr__session *session, void *to, const void *from, size_t bytes, void **staged)
{
	hr__last before = hr__last_get();
	bool stages = session->card && bytes <= HR__READ_BY_KERNEL && !hr__stage_take(session, bytes, staged);
	if (stages) return hr__stage_read(session, *staged, from, bytes);
	hr__last_set(&before);
	return hr_stream_copy(session->handle, to, from, bytes, HR_COPY_TO_HOST, session->stream);
}

static hr_status fetch(const hr__value *value, void *to, size_t bytes, void **staged)
{
	const hr__session *session = value->session;
	char shape[HR__DIMS_TEXT];
	uint64_t there = hr__type_bytes(&value->type);
	void *from;
	if (!to && bytes) return hr__fail(HR_INVALID_ARGUMENT, "hr_value_fetch: to is NULL");
	if (there != bytes)
		return hr__fail(HR_INVALID_ARGUMENT, "hr_value_fetch: %zu byte%s given for %s %s, which has %llu", bytes, hr__plural(bytes), hr_dtype_text(value->type.dtype),
		                hr__dims_text(&value->type.dims, shape, sizeof shape), (unsigned long long)there);
	if (!value->buffer || !bytes) return HR_OK;
	hr_status status = pin_buffer(value->buffer, HR_READ, value->offset, &from);
	if (status) return status;
	status = queue_copy(session, to, from, bytes, staged);
	hr_status left = unpin_buffer(value->buffer, HR_READ, session->stream);
	if (!status && left) (void)!hr_stream_synchronize(session->handle, session->stream); /* the copy must not outlast the call */
	return status ? status : left;
}

hr_status hr_value_fetch(hr_value handle, void *to, size_t bytes)
{
	hr__value value;
	if (!handle.id) return hr_last_status() ? hr_last_status() : hr__fail(HR_INVALID_ARGUMENT, "hr_value_fetch: there is not a value");
	hr_status status = hr__value_hold(handle, &value);
	if (status) return status;
	if (value.graph) return hr__fail(HR_INVALID_ARGUMENT, "hr_value_fetch: the value belongs to a graph; fetch it with hr_session_run");
	void *staged = NULL;
	status = fetch(&value, to, bytes, &staged);
	if (!status) status = hr__session_wait(value.session);
	if (!status && staged) memcpy(to, staged, bytes);
	if (staged) hr_free(value.session->staging, staged, value.session->stream);
	hr__buffer_release(value.buffer);
	hr__value_consume(handle);
	return status;
}

/* ---- to another session ---- */

/* Between two devices. Synchronizes both streams. */
static hr_status copy_across(const hr__session *here, const void *from, const hr__session *there, void *to, uint64_t bytes)
{
	void *block = NULL;
	hr_status status = HR_OK;
	if (here->staging.id) { /* memory that the host cannot access, the other device cannot access either */
		status = hr__stage_take(here, bytes, &block);
		if (!status) status = hr_stream_copy(here->handle, block, from, bytes, HR_COPY_TO_HOST, here->stream);
	}
	if (!status) status = hr_stream_synchronize(here->handle, here->stream);
	if (!status) status = hr_stream_copy(there->handle, to, block ? block : from, bytes, HR_COPY_TO_DEVICE, there->stream);
	hr_status done = hr_stream_synchronize(there->handle, there->stream);
	if (block) hr_free(here->staging, block, here->stream);
	return status ? status : done;
}

/* Copies on the stream of [there], which waits for that of [here]. Afterwards the stream of [here] waits for the copy, because its
 * next op may write to the same memory. */
static hr_status copy_beside(const hr__session *here, const void *from, const hr__session *there, void *to, uint64_t bytes)
{
	hr_status status = hr_stream_wait_stream(there->handle, there->stream, here->stream);
	if (!status) status = hr_stream_copy(there->handle, to, from, bytes, HR_COPY_ON_DEVICE, there->stream);
	if (!status) status = hr_stream_wait_stream(here->handle, here->stream, there->stream);
	return status;
}

static hr_status copy_bytes(const hr__buffer *from, uint64_t offset, const hr__buffer *to, uint64_t bytes)
{
	const hr__session *here = from->session, *there = to->session;
	bool same = here->handle.id == there->handle.id;
	void *a, *b;
	hr_status status = pin_buffer(from, HR_READ, offset, &a);
	if (status) return status;
	status = pin_buffer(to, HR_OVERWRITE, 0, &b);
	if (!status) {
		status = same ? copy_beside(here, a, there, b, bytes) : copy_across(here, a, there, b, bytes);
		hr_status left = unpin_buffer(to, HR_OVERWRITE, there->stream);
		if (!status) status = left;
	}
	hr_status left = unpin_buffer(from, HR_READ, same ? there->stream : here->stream);
	return status ? status : left;
}

static hr_value copy_to(const hr__value *value, hr__session *to)
{
	hr__value copy = { .type = value->type, .session = to, .op = value->op, .scope = value->scope };
	uint64_t bytes = hr__type_bytes(&value->type);
	hr_name before = hr_op_set(hr_name_intern("copy"));
	hr_status status = hr__buffer_new(to, &value->type, bytes, hr_name_scope_current(), HR__ACTIVATIONS, &copy.buffer);
	if (!status && bytes) status = copy_bytes(value->buffer, value->offset, copy.buffer, bytes);
	hr_op_set(before);
	if (!status) return hr__value_new(&copy);
	hr__buffer_release(copy.buffer);
	return HR_NO_VALUE;
}

hr_value hr_value_copy_to_session(hr_value handle, hr_session session)
{
	hr_status status;
	hr__value value;
	hr_value copy = HR_NO_VALUE;
	if (!handle.id) return HR_NO_VALUE; /* keep the earlier message */
	hr__session *to = hr__session_of(session, &status);
	if (to) status = hr__value_hold(handle, &value);
	bool held = !status;
	if (!status && value.graph) status = hr__fail(HR_INVALID_ARGUMENT, "hr_value_copy_to_session: the value belongs to a graph, so it has no contents");
	if (!status) copy = copy_to(&value, to);
	/* The gradient is passed back unchanged. It works for a copy within one session; with another session, the ops that use the
	 * gradient fail because it belongs to another session. */
	if (copy.id && hr__tape_is_on()) hr__tape_note(HR__OP_COPY, &(hr__attrs){ 0 }, &handle, &value.type, 1, &copy, &value.type);
	if (held) hr__buffer_release(value.buffer);
	hr__value_consume(handle);
	return copy;
}
