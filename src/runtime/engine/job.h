/* job.h - an op that waits in a stream: a kernel with its arguments, which a thread of the device runs. */
#ifndef HR_RUNTIME_JOB_H
#define HR_RUNTIME_JOB_H

#include "runtime/engine/engine.h"

typedef struct hr__job {
	hr__work work;
	hr__attrs attrs;
	void (*run)(hr__work *work);
	bool updates;         /* the first inputs are contents of variables, which it updates */
	hr__session *session; /* gets the error of the kernel; NULL = it was reported when the op ran first */
	hr_name op, scope;
	hr_op_metadata *note; /* NULL = not requested */
	uint64_t begin_ns;
	uint64_t *took_ns;    /* NULL = not requested */
	uint64_t bytes;       /* of this block, with the data of a constant behind the struct */
} hr__job;

/* A job without types and addresses. [data]: bytes that attrs->data points to, which are copied; otherwise 0. Frees with hr__job_free,
 * unless it was queued. HR_NO_HOST_MEMORY. */
hr_status hr__job_new(enum hr__op_kind kind, const hr__attrs *attrs, uint64_t data, hr__team *team, hr__job **out);
void hr__job_free(hr__job *job); /* NULL is allowed */
/* Whether a card computes the op. */
bool hr__is_on_card(const hr__session *session, enum hr__op_kind kind);
/* Bytes of scratch memory that the op needs in the session. */
uint64_t hr__scratch_bytes(const hr__session *session, enum hr__op_kind kind, const hr__attrs *attrs, const hr__type *in, const hr__type *out);
/* On success the stream owns the job. */
hr_status hr__job_queue(hr__job *job, hr__device *device, hr_stream stream);
/* The address of tensors without elements: kernels add 0 to it, which is undefined for NULL in C. */
void *hr__job_nothing(void);

#endif
