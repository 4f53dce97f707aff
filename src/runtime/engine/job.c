/* job.c - see job.h. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/base/status.h"
#include "core/os/os.h"
#include "runtime/card/card.h"
#include "runtime/engine/job.h"

/* ---- running ---- */

/* "an index is out of range: 7 is not from 0 to 4; shapes [5,4] and [6]" */
void hr__job_describe_error(const hr__work *work, char *out, size_t capacity)
{
	char shapes[2][HR__DIMS_TEXT], number[96] = "";
	for (int i = 0; i < 2; i++) hr__dims_text(&work->in_types[i].dims, shapes[i], sizeof shapes[i]);
	if (work->choices > 0) snprintf(number, sizeof number, ": %" PRId64 " is not from 0 to %" PRId64, work->wrong, work->choices - 1);
	if (work->in_count < 2) snprintf(out, capacity, "%s%s; shape %s", work->error, number, shapes[0]);
	else snprintf(out, capacity, "%s%s; shapes %s and %s", work->error, number, shapes[0], shapes[1]);
}

static void note_error(const hr__job *job)
{
	hr__session *session = job->session;
	char text[HR__ERROR_TEXT];
	hr__job_describe_error(&job->work, text, sizeof text);
	hr__lock_take(&hr__runtime_lock);
	if (!session->error[0]) {
		memcpy(session->error, text, sizeof text);
		session->error_op = job->op;
		session->error_scope = job->scope;
	}
	hr__lock_release(&hr__runtime_lock);
}

static bool has_failed(const hr__session *session)
{
	hr__lock_take(&hr__runtime_lock);
	bool failed = session->error[0] != 0;
	hr__lock_release(&hr__runtime_lock);
	return failed;
}

/* Used instead of the kernel while the session has an unreported error: variables keep their contents. */
static void leave_alone(const hr__work *work)
{
	for (uint32_t i = 0; i < work->out_count; i++)
		if (work->out[i] != work->in[i]) memcpy(work->out[i], work->in[i], hr__type_bytes(&work->out_types[i]));
}

/* Runs on a thread of the device. */
static void run_job(void *argument)
{
	hr__job *job = argument;
	bool timed = job->note || job->took_ns;
	uint64_t begin = timed ? hr__os()->clock_ns() : 0;
	if (job->updates && has_failed(job->session)) leave_alone(&job->work);
	else job->run(&job->work);
	uint64_t took = timed ? hr__os()->clock_ns() - begin : 0;
	if (job->took_ns) *job->took_ns = took;
	if (job->note) {
		job->note->begin_ns = begin - job->begin_ns;
		job->note->ns = took;
	}
	if (job->work.error && job->session) note_error(job);
	hr__job_free(job);
}

/* ---- making ---- */

hr_status hr__job_new(enum hr__op_kind kind, const hr__attrs *attrs, uint64_t data, hr__team *team, hr__job **out)
{
	void *block;
	if (hr__os()->alloc(sizeof(hr__job) + data, &block))
		return hr__fail(HR_NO_HOST_MEMORY, "cannot get host memory for an op that waits in a stream");
	hr__job *job = block;
	job->bytes = sizeof(hr__job) + data;
	if (attrs) job->attrs = *attrs;
	if (data) job->attrs.data = memcpy(job + 1, attrs->data, data);
	job->run = hr__ops[kind].run;
	job->op = hr_name_intern(hr__ops[kind].name);
	job->work.attrs = &job->attrs;
	job->work.team = team;
	*out = job;
	return HR_OK;
}

void hr__job_free(hr__job *job)
{
	if (job) hr__os()->free(job, job->bytes);
}

hr_status hr__job_queue(hr__job *job, hr__device *device, hr_stream stream)
{
	return hr__device_host_call(device, stream, run_job, job);
}

bool hr__is_on_card(const hr__session *session, enum hr__op_kind kind)
{
	return session->card && hr__card_serves(session->card, kind);
}

uint64_t hr__scratch_bytes(const hr__session *session, enum hr__op_kind kind, const hr__attrs *attrs, const hr__type *in, const hr__type *out)
{
	const hr__op *op = &hr__ops[kind];
	if (hr__is_on_card(session, kind)) return op->workspace ? op->workspace(in, out, attrs) : 0;
	return op->scratch ? op->scratch(in, out, attrs) : 0;
}

void *hr__job_nothing(void)
{
	static _Alignas(64) char nothing[64];
	return nothing;
}
