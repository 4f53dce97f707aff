/* run_options.c - options and metadata of a run: times, allocations, and the allocation log when memory runs out. */
#include <string.h>

#include "core/base/status.h"
#include "core/base/text/text.h"
#include "core/memory/allocator.h"
#include "core/memory/log.h"
#include "core/os/os.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/structs.h"

void hr_run_options_init_sized(hr_run_options *options, size_t struct_size)
{
	hr_oom_options oom;
	hr_oom_options_init(&oom);
	const hr_run_options initial = { .struct_size = sizeof initial, .is_step = true, .allocation_log_buffer_size = oom.allocation_log_buffer_size,
		                             .allocation_log_sampling_rate = oom.allocation_log_sampling_rate };
	hr__struct_init(&hr__struct_run_options, options, struct_size, &initial);
}

void hr_run_metadata_init_sized(hr_run_metadata *metadata, size_t struct_size)
{
	hr__struct_init(&hr__struct_run_metadata, metadata, struct_size, &(const hr_run_metadata){ .struct_size = 0 });
}

void hr_run_metadata_free(hr_run_metadata *metadata)
{
	if (metadata->ops) hr__os()->free(metadata->ops, metadata->op_capacity * sizeof *metadata->ops);
	if (metadata->allocation_log) hr__os()->free(metadata->allocation_log, strlen(metadata->allocation_log) + 1);
	hr_run_metadata_init_sized(metadata, metadata->struct_size);
}

/* Allocates the entries for all ops before anything runs. */
static hr_status prepare_metadata(uint32_t ops, hr_run_metadata *metadata)
{
	void *block;
	hr_run_metadata_free(metadata);
	if (!ops) return HR_OK;
	int error = hr__os()->alloc(ops * sizeof *metadata->ops, &block);
	if (error) return hr__os_fail(error, "cannot get host memory for the metadata of %u op%s", ops, hr__plural(ops));
	metadata->ops = block;
	metadata->op_capacity = ops;
	return HR_OK;
}

static void finish_metadata(uint64_t begin_ns, hr_run_metadata *metadata)
{
	metadata->ns = hr__os()->clock_ns() - begin_ns;
	for (size_t i = 0; i < metadata->op_count; i++)
		if (metadata->ops[i].peak_bytes > metadata->peak_bytes) metadata->peak_bytes = metadata->ops[i].peak_bytes;
}

/* ---- allocation log of an allocator during runs ---- */

/* The first run that requests the log enables it, concurrent runs share its settings, and the last one restores the previous
 * settings. Indexed by the allocator's slot. */
static struct logged {
	uint64_t allocator; /* another id: the record of a closed allocator. Guarded by hr__runtime_lock, like switching */
	bool switching;     /* a thread is changing the settings; other threads do not access the rest of the record */
	uint32_t runs;
	hr_oom_options before;
} logged[HR__ALLOCATORS_MAX];

/* Makes the calling thread the only user of the record. A flag, because the runtime's lock cannot be held while an allocator is
 * called. */
static struct logged *take_log_switch(hr_allocator allocator)
{
	struct logged *log = &logged[allocator.id % HR__ALLOCATORS_MAX];
	hr__lock_take(&hr__runtime_lock);
	for (unsigned attempt = 0; log->allocator == allocator.id && log->switching; attempt++) {
		hr__lock_release(&hr__runtime_lock);
		hr__lock_wait(attempt);
		hr__lock_take(&hr__runtime_lock);
	}
	if (log->allocator != allocator.id) *log = (struct logged){ .allocator = allocator.id };
	log->switching = true;
	hr__lock_release(&hr__runtime_lock);
	return log;
}

static void leave_log_switch(struct logged *log)
{
	hr__lock_take(&hr__runtime_lock);
	log->switching = false;
	hr__lock_release(&hr__runtime_lock);
}

static hr_status begin_log(hr_allocator allocator, const hr_run_options *options)
{
	hr_oom_options wanted = { .struct_size = sizeof wanted };
	hr_status status = hr_allocator_get_oom_options(allocator, &wanted); /* fails in a forked child, where waiting would not end */
	if (status) return status;
	wanted.report_allocations_on_oom = true;
	wanted.allocation_log_buffer_size = options->allocation_log_buffer_size;
	wanted.allocation_log_sampling_rate = options->allocation_log_sampling_rate;
	wanted.allocation_log_allocations_only = options->allocation_log_allocations_only;
	status = hr__oom_options_check(&wanted); /* also if another run's settings stay in effect */
	if (status) return status;
	struct logged *log = take_log_switch(allocator);
	log->before.struct_size = sizeof log->before;
	if (!log->runs) status = hr_allocator_get_oom_options(allocator, &log->before);
	if (!log->runs && !status) status = hr_allocator_set_oom_options(allocator, &wanted);
	log->runs += !status;
	leave_log_switch(log);
	return status;
}

static void end_log(hr_allocator allocator)
{
	struct logged *log = take_log_switch(allocator);
	if (!--log->runs) (void)!hr_allocator_set_oom_options(allocator, &log->before);
	leave_log_switch(log);
}

/* Copies the log of the last out-of-memory report. */
static void take_log(hr_run_metadata *metadata)
{
	hr_oom_report report;
	void *text;
	if (hr_oom_get_last(&report)) return;
	size_t bytes = hr_oom_format_log(report, NULL, 0) + 1;
	if (bytes == 1 || hr__os()->alloc(bytes, &text)) return;
	hr_oom_format_log(report, text, bytes);
	metadata->allocation_log = text;
}

/* ---- begin and end of a run ---- */

hr_status hr__run_check(const char *call, const hr_run_options *given, const hr_run_metadata *metadata, hr_run_options *options)
{
	hr_status status = metadata ? hr__struct_check(&hr__struct_run_metadata, call, metadata) : HR_OK;
	if (status) return status;
	hr_run_options_init(options);
	status = given ? hr__struct_in(&hr__struct_run_options, call, options, given) : HR_OK;
	if (status) return status;
	if ((unsigned)options->trace > HR_RUN_TRACE_OPS)
		return hr__fail(HR_INVALID_ARGUMENT, "%s: %d is not a way to trace a run (hr_run_trace)", call, (int)options->trace);
	if (options->trace == HR_RUN_TRACE_OPS && !metadata)
		return hr__fail(HR_INVALID_ARGUMENT, "%s: a traced run needs metadata", call);
	return HR_OK;
}

hr_status hr__run_begin(hr__session *session, const hr_run_options *options, hr_run_metadata *metadata, uint32_t ops, uint64_t *begin_ns)
{
	hr_status status = metadata ? prepare_metadata(ops, metadata) : HR_OK;
	if (!status && options->report_allocations_on_oom) status = begin_log(session->allocator, options);
	*begin_ns = hr__os()->clock_ns();
	return status;
}

void hr__run_end(hr__session *session, const hr_run_options *options, hr_run_metadata *metadata, uint64_t begin_ns, hr_status status)
{
	if (metadata) finish_metadata(begin_ns, metadata);
	if (!options->report_allocations_on_oom) return;
	if (metadata && status == HR_OUT_OF_MEMORY) take_log(metadata);
	end_log(session->allocator);
}
