/* buffer.c - memory for the contents of values. */
#include "core/base/status.h"
#include "core/lms/lms.h"
#include "core/os/os.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/capturing.h"
#include "runtime/graph/captured.h"
#include "runtime/recipe/origin.h"

hr__lock hr__runtime_lock = HR__LOCK_INIT(HR__RANK_RUNTIME);

static hr_name tag_of(hr__role role)
{
	static const char *const texts[] = {
#define ROLE_TEXT(name, text) text,
		HR__ROLE_TABLE(ROLE_TEXT)
#undef ROLE_TEXT
	};
	return hr_name_intern(texts[role]);
}

static hr_status try_memory(hr__session *session, const hr__type *type, hr_name scope, hr__role role, hr__buffer *buffer)
{
	hr_shape shape = hr_shape_intern(type->dims.d, type->dims.rank);
	if (session->has_tensors) {
		hr_tensor_options options;
		hr_tensor_options_init(&options);
		options.bytes = buffer->bytes;
		options.scope = scope;
		options.tag = tag_of(role);
		options.shape = shape;
		options.dtype = type->dtype;
		return hr_tensor_create(session->allocator, &options, &buffer->tensor);
	}
	hr_request request = HR_REQUEST(buffer->bytes);
	request.stream = session->stream;
	request.scope = scope;
	request.tag = tag_of(role);
	request.shape = shape;
	request.dtype = type->dtype;
	return hr_alloc(session->allocator, &request, &buffer->block);
}

/* CUDA graphs keep memory between their launches: it is given back before a request fails. */
static hr_status get_memory(hr__session *session, const hr__type *type, hr_name scope, hr__role role, hr__buffer *buffer)
{
	const hr__capturing *capturing = hr__capturing_in(session);
	if (capturing) {
		buffer->planned = capturing->memory;
		return hr__planned_take(capturing->memory, buffer->bytes, &buffer->block);
	}
	bool graphs = hr__captured_begin_attempt(session);
	hr_status status = try_memory(session, type, scope, role, buffer);
	return hr__captured_end_attempt(session, graphs, status) ? try_memory(session, type, scope, role, buffer) : status;
}

hr_status hr__buffer_new(hr__session *session, const hr__type *type, uint64_t bytes, hr_name scope, hr__role role, hr__buffer **out)
{
	void *block;
	*out = NULL;
	if (!bytes) return HR_OK;
	int error = hr__os()->alloc(sizeof(hr__buffer), &block);
	if (error) return hr__os_fail(error, "cannot get host memory for a value");
	hr__buffer *buffer = block;
	*buffer = (hr__buffer){ .session = session, .bytes = bytes, .refs = 1 };
	hr_status status = get_memory(session, type, scope, role, buffer);
	if (status) {
		hr__os()->free(buffer, sizeof *buffer);
		return status;
	}
	hr__lock_take(&hr__runtime_lock);
	session->buffers++;
	session->bytes += bytes;
	hr__lock_release(&hr__runtime_lock);
	*out = buffer;
	return HR_OK;
}

void hr__buffer_keep(hr__buffer *buffer)
{
	if (!buffer) return;
	hr__lock_take(&hr__runtime_lock);
	buffer->refs++;
	hr__lock_release(&hr__runtime_lock);
}

int64_t hr__buffer_refs(const hr__buffer *buffer)
{
	hr__lock_take(&hr__runtime_lock);
	int64_t refs = buffer->refs;
	hr__lock_release(&hr__runtime_lock);
	return refs;
}

hr_status hr__buffer_address(const hr__buffer *buffer, uint64_t offset, void **out)
{
	hr_status status = HR_OK;
	*out = NULL;
	if (!buffer) return HR_OK;
	if (buffer->tensor.id) status = hr_tensor_get_address(buffer->tensor, out);
	else *out = buffer->block;
	if (!status) *out = (char *)*out + offset;
	return status;
}

/* Destroys a tensor from which dropped values may be computed, which can fail. The thread's message stays. */
static __attribute__((noinline)) hr_status destroy_input(hr_tensor tensor)
{
	hr__last before = hr__last_get();
	hr_status status = hr_tensor_destroy(tensor);
	if (status) hr__last_set(&before);
	return status;
}

static __attribute__((noinline)) void free_later(hr__buffer *buffer)
{
	hr__session *session = buffer->session;
	hr__lock_take(&hr__runtime_lock);
	buffer->next_unused = session->unused;
	session->unused = buffer;
	hr__lock_release(&hr__runtime_lock);
}

/* Both ways to free are safe while queued work still uses the memory. */
static void free_buffer(hr__buffer *buffer)
{
	const hr__session *session = buffer->session;
	hr_status status = HR_OK;
	if (buffer->planned) hr__planned_give(buffer->planned, buffer->block, buffer->bytes);
	else if (!buffer->tensor.id) hr_free(session->allocator, buffer->block, session->stream);
	else if (session->has_recipes && hr__lms_feeds_recipes(buffer->tensor)) status = destroy_input(buffer->tensor);
	else hr_tensor_destroy(buffer->tensor);
	if (status) free_later(buffer);
	else hr__os()->free(buffer, sizeof *buffer);
}

void hr__buffers_free_unused(hr__session *session)
{
	hr__lock_take(&hr__runtime_lock);
	hr__buffer *unused = session->unused;
	session->unused = NULL;
	hr__lock_release(&hr__runtime_lock);
	while (unused) {
		hr__buffer *buffer = unused;
		unused = buffer->next_unused;
		free_buffer(buffer);
	}
}

void hr__buffer_release(hr__buffer *buffer)
{
	if (!buffer) return;
	hr__session *session = buffer->session;
	hr__lock_take(&hr__runtime_lock);
	bool last = --buffer->refs == 0, more = last && session->unused;
	if (last) {
		session->buffers--;
		session->bytes -= buffer->bytes;
	}
	hr__lock_release(&hr__runtime_lock);
	if (!last) return;
	if (buffer->origin) hr__origin_forget(buffer);
	free_buffer(buffer);
	if (more) hr__buffers_free_unused(session);
}
