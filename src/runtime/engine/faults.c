/* faults.c - errors that kernels of a card find while they run.
 *
 * A session has one record in the card's memory (hr__k_fault), which the first kernel that finds an error fills in. Kernels that update variables leave
 * them alone while it is filled in. When the host waits for the session, it copies the record, and empties it if there is an error. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/base/status.h"
#include "runtime/card/card.h"
#include "runtime/engine/engine.h"

hr_status hr__faults_open(hr__session *session)
{
	hr_request request = HR_REQUEST(sizeof(hr__k_fault));
	if (!session->card) return HR_OK;
	request.stream = session->stream;
	request.tag = hr_name_intern("scratch");
	hr_status status = hr_alloc(session->allocator, &request, &session->faults);
	return status ? status : hr_stream_fill(session->handle, session->faults, 0, sizeof(hr__k_fault), session->stream);
}

void hr__faults_close(hr__session *session)
{
	if (session->faults) hr_free(session->allocator, session->faults, session->stream);
	session->faults = NULL;
}

hr__k_faults hr__faults_for(hr__session *session, enum hr__op_kind kind, hr_name scope, const hr__work *work)
{
	hr__k_faults faults = { .to = session->faults };
	faults.with.op = hr_name_intern(hr__ops[kind].name);
	faults.with.scope = scope;
	faults.with.in_count = (int32_t)work->in_count;
	for (uint32_t i = 0; i < 2 && i < work->in_count; i++) {
		faults.with.rank[i] = work->in_types[i].dims.rank;
		memcpy(faults.with.d[i], work->in_types[i].dims.d, sizeof faults.with.d[i]);
	}
	return faults;
}

static const char *text_of(int32_t code)
{
	switch (code) {
	case HR__K_DIVISION: return "integer division by zero";
	case HR__K_INDEX: return "an index is out of range";
	case HR__K_LABEL: return "a label is out of range";
	default: return "the number of a step is below 1";
	}
}

static void note(hr__session *session, const hr__k_fault *fault)
{
	hr__work work = { .in_count = (uint32_t)fault->in_count, .error = text_of(fault->code), .wrong = fault->wrong, .choices = fault->choices };
	char text[HR__ERROR_TEXT];
	for (int i = 0; i < 2; i++) {
		work.in_types[i].dims.rank = fault->rank[i];
		memcpy(work.in_types[i].dims.d, fault->d[i], sizeof fault->d[i]);
	}
	hr__job_describe_error(&work, text, sizeof text);
	hr__lock_take(&hr__runtime_lock);
	if (!session->error[0]) {
		memcpy(session->error, text, sizeof text);
		session->error_op = fault->op;
		session->error_scope = fault->scope;
	}
	hr__lock_release(&hr__runtime_lock);
}

/* Through pinned memory, so that the copy runs in stream order. */
static hr_status read_fault(hr__session *session, hr__k_fault *fault)
{
	void *block;
	hr_status status = hr__stage_take(session, sizeof *fault, &block);
	if (status) return status;
	status = hr__stage_read(session, block, session->faults, sizeof *fault);
	if (!status) status = hr_stream_synchronize(session->handle, session->stream);
	if (!status) memcpy(fault, block, sizeof *fault);
	hr_free(session->staging, block, session->stream);
	return status;
}

hr_status hr__faults_wait(hr__session *session)
{
	hr__k_fault fault;
	bool look = session->faults && __atomic_exchange_n(&session->may_have_faults, false, __ATOMIC_ACQUIRE);
	if (!look) return hr_stream_synchronize(session->handle, session->stream);
	hr_status status = read_fault(session, &fault);
	if (status) __atomic_store_n(&session->may_have_faults, true, __ATOMIC_RELAXED);
	if (status || !fault.found) return status;
	note(session, &fault);
	return hr_stream_fill(session->handle, session->faults, 0, sizeof fault, session->stream);
}
