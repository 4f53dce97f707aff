/* context.c - the calling thread's name scopes and current op. hr_alloc uses them for requests without an op or a scope. */
#include <string.h>

#include "core/base/names.h"
#include "core/base/status.h"
#include "core/memory/allocator.h"
#include "core/trace/stacks.h"
#include "core/trace/trace.h"

static void record_event(hr__event_kind kind, hr_name scope)
{
	if (hr__trace_is_on()) hr__trace_event(&(hr__event){ .kind = kind, .scope = scope });
}

static void update_context(hr__thread_state *thread)
{
	hr__store_relaxed(&thread->context, thread->op | thread->scope | (hr__stacks_depth() ? HR__CONTEXT_STACKS : 0));
}

hr_status hr_name_scope_push(const char *name)
{
	char path[2 * HR__NAME_LENGTH_MAX + 2];
	if (!name || !*name) return hr__fail(HR_INVALID_ARGUMENT, "hr_name_scope_push: a scope needs a name");
	hr__thread_state *thread = hr__thread_get();
	if (!thread) return hr__fail(HR_NO_HOST_MEMORY, "cannot get host memory for the thread's name scopes");
	if (thread->name_depth == HR__NAME_SCOPES_MAX)
		return hr__fail(HR_TOO_MANY, "this thread is inside %u name scopes already; pop one first", HR__NAME_SCOPES_MAX);
	const char *outer = hr_name_text(thread->scope);
	size_t before = strnlen(outer, HR__NAME_LENGTH_MAX), length = strnlen(name, HR__NAME_LENGTH_MAX);
	memcpy(path, outer, before);
	if (before) path[before++] = '/';
	memcpy(path + before, name, length);
	thread->names[thread->name_depth++] = thread->scope;
	thread->scope = hr__name_of_bytes(path, before + length);
	update_context(thread);
	record_event(HR__EVENT_SCOPE_PUSH, thread->scope);
	return HR_OK;
}

hr_status hr_name_scope_pop(void)
{
	hr__thread_state *thread = hr__thread_self;
	if (!thread || !thread->name_depth)
		return hr__fail(HR_INVALID_ARGUMENT, "hr_name_scope_pop: no name scope is open on this thread; call hr_name_scope_push first");
	record_event(HR__EVENT_SCOPE_POP, thread->scope);
	thread->scope = thread->names[--thread->name_depth];
	update_context(thread);
	return HR_OK;
}

hr_name hr_name_scope_current(void)
{
	return hr__thread_self ? hr__thread_self->scope : HR_NAME_NONE;
}

hr_name hr_op_set(hr_name op)
{
	hr__thread_state *thread = op ? hr__thread_get() : hr__thread_self;
	if (!thread) return HR_NAME_NONE; /* no thread state: requests of this thread have no op */
	hr_name before = thread->op;
	thread->op = op;
	update_context(thread);
	return before;
}
