/* execute.c - an op runs: memory for its outputs, pins, and a call on the session's stream.
 *
 * The host goes on as soon as the call is queued. What the op works on is pinned until then, and what is queued keeps memory from being given
 * to others before the stream is done with it (hr_unpin_all, hr_free). */
#include <string.h>

#include "base/status.h"
#include "device/device.h"
#include "os/os.h"
#include "runtime/engine.h"

#define SLOTS (HR__OP_INPUTS + HR__OP_OUTPUTS + 1)

/* What waits in the stream. */
struct job {
	hr__work work;
	hr__attrs attrs;
	void (*run)(hr__work *work);
	hr__session *session;
	hr_name op, scope;
	uint64_t bytes; /* of this block, with the data of a constant behind it */
};

static void note_error(const struct job *job)
{
	hr__session *session = job->session;
	hr__lock_take(&hr__runtime_lock);
	if (!session->error) {
		session->error = job->work.error;
		session->error_op = job->op;
		session->error_scope = job->scope;
	}
	hr__lock_release(&hr__runtime_lock);
}

/* On a thread of the device. */
static void run_job(void *argument)
{
	struct job *job = argument;
	job->run(&job->work);
	if (job->work.error) note_error(job);
	hr__os()->free(job, job->bytes);
}

/* ---- memory ---- */

static bool can_take(const hr__slot *in, uint64_t bytes)
{
	return in->may_take && in->buffer && !in->offset && in->buffer->bytes == bytes && hr__buffer_is_sole(in->buffer);
}

/* The input whose memory the first output takes; -1 = none. */
static int find_memory(const hr__op *op, const hr__slot *ins, uint32_t in_count, const hr__slot *out)
{
	for (uint32_t i = 0; i < in_count && op->memory == HR__FORWARDS; i++)
		if (op->forwards >> i & 1 && can_take(&ins[i], hr__type_bytes(&out->type))) return (int)i;
	return -1;
}

static void release_outs(hr__slot *outs, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		hr__buffer_release(outs[i].buffer);
		outs[i].buffer = NULL;
	}
}

static hr_status get_outs(hr__session *session, const hr__op *op, const hr__slot *ins, uint32_t in_count, hr__slot *outs)
{
	int taken = find_memory(op, ins, in_count, &outs[0]);
	hr_status status = HR_OK;
	for (uint32_t i = 0; i < op->out_count; i++) outs[i].buffer = NULL, outs[i].offset = 0;
	for (uint32_t i = 0; i < op->out_count && !status; i++) {
		if (i == 0 && taken >= 0) {
			outs[0].buffer = ins[taken].buffer;
			hr__buffer_keep(outs[0].buffer);
		} else {
			status = hr__buffer_new(session, &outs[i].type, hr__type_bytes(&outs[i].type), &outs[i].buffer);
		}
	}
	if (status) release_outs(outs, op->out_count);
	return status;
}

/* ---- pins ---- */

struct pins {
	hr_pin list[SLOTS];
	size_t count;
};

static void add_pin(struct pins *pins, const hr__buffer *buffer, hr_access access)
{
	if (!buffer || !buffer->tensor.id) return;
	for (size_t i = 0; i < pins->count; i++) {
		if (pins->list[i].tensor.id != buffer->tensor.id) continue;
		pins->list[i].access = HR_WRITE; /* it is read, and written to */
		return;
	}
	pins->list[pins->count++] = (hr_pin){ buffer->tensor, access };
}

static hr_status address_of(const hr__buffer *buffer, uint64_t offset, void **out)
{
	hr_status status = HR_OK;
	*out = NULL;
	if (!buffer) return HR_OK;
	if (buffer->tensor.id) status = hr_tensor_address(buffer->tensor, out);
	else *out = buffer->block;
	if (!status) *out = (char *)*out + offset;
	return status;
}

/* ---- the job ---- */

static struct job *new_job(hr__session *session, enum hr__op_kind kind, const hr__attrs *attrs, uint64_t data)
{
	void *block;
	if (hr__os()->alloc(sizeof(struct job) + data, &block)) return NULL;
	struct job *job = block;
	job->bytes = sizeof(struct job) + data;
	if (attrs) job->attrs = *attrs;
	if (data) job->attrs.data = memcpy(job + 1, attrs->data, data);
	job->run = hr__ops[kind].run;
	job->session = session;
	job->op = hr_name_intern(hr__ops[kind].name);
	job->scope = hr_name_scope_current();
	job->work.attrs = &job->attrs;
	job->work.team = session->team;
	return job;
}

static hr_status fill_in(struct job *job, const hr__slot *ins, uint32_t in_count, const hr__slot *outs, uint32_t out_count,
                         const hr__buffer *scratch)
{
	hr__work *work = &job->work;
	hr_status status = HR_OK;
	void *at;
	work->in_count = in_count;
	work->out_count = out_count;
	for (uint32_t i = 0; i < in_count && !status; i++) {
		work->in_types[i] = ins[i].type;
		status = address_of(ins[i].buffer, ins[i].offset, &at);
		work->in[i] = at;
	}
	for (uint32_t i = 0; i < out_count && !status; i++) {
		work->out_types[i] = outs[i].type;
		status = address_of(outs[i].buffer, outs[i].offset, &work->out[i]);
	}
	return status ? status : address_of(scratch, 0, &work->scratch);
}

static hr_status queue(hr__session *session, enum hr__op_kind kind, const hr__attrs *attrs, const hr__slot *ins, uint32_t in_count,
                       hr__slot *outs, hr__buffer *scratch)
{
	const hr__op *op = &hr__ops[kind];
	struct pins pins = { .count = 0 };
	uint64_t data = kind == HR__OP_CONSTANT ? hr__type_bytes(&outs[0].type) : 0;
	for (uint32_t i = 0; i < in_count; i++) add_pin(&pins, ins[i].buffer, HR_READ);
	for (uint32_t i = 0; i < op->out_count; i++) add_pin(&pins, outs[i].buffer, HR_OVERWRITE);
	add_pin(&pins, scratch, HR_OVERWRITE);
	struct job *job = new_job(session, kind, attrs, data);
	if (!job) return hr__fail(HR_NO_HOST_MEMORY, "cannot get host memory for an op that waits in a stream");
	hr_status status = pins.count ? hr_pin_all(pins.list, pins.count, session->stream) : HR_OK;
	if (!status) {
		status = fill_in(job, ins, in_count, outs, op->out_count, scratch);
		if (!status) status = hr__device_host_call(session->device, session->stream, run_job, job);
		hr_status unpinned = pins.count ? hr_unpin_all(pins.list, pins.count, session->stream) : HR_OK;
		if (!status) return unpinned; /* the job is the stream's */
	}
	hr__os()->free(job, job->bytes);
	return status;
}

hr_status hr__execute(hr__session *session, enum hr__op_kind kind, const hr__attrs *attrs, const hr__slot *ins, uint32_t in_count,
                      hr__slot *outs)
{
	const hr__op *op = &hr__ops[kind];
	if (op->memory == HR__ALIASES) {
		outs[0].buffer = ins[0].buffer;
		outs[0].offset = ins[0].offset;
		hr__buffer_keep(outs[0].buffer);
		return HR_OK;
	}
	hr_name before = hr_op_set(hr_name_intern(op->name)); /* for the ledger, and for messages */
	hr_status status = get_outs(session, op, ins, in_count, outs);
	if (!status) {
		hr__type in_types[HR__OP_INPUTS], out_types[HR__OP_OUTPUTS];
		hr__buffer *scratch = NULL;
		for (uint32_t i = 0; i < in_count; i++) in_types[i] = ins[i].type;
		for (uint32_t i = 0; i < op->out_count; i++) out_types[i] = outs[i].type;
		uint64_t bytes = op->scratch ? op->scratch(in_types, out_types, attrs) : 0;
		if (bytes) status = hr__buffer_new(session, &(hr__type){ HR_DTYPE_UINT8, { 1, { (int64_t)bytes } } }, bytes, &scratch);
		if (!status) status = queue(session, kind, attrs, ins, in_count, outs, scratch);
		hr__buffer_release(scratch);
		if (status) release_outs(outs, op->out_count);
	}
	hr_op_set(before);
	return status;
}
