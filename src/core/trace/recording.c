/* recording.c - opens and closes a recording: the trace file, the definitions in it, the writers of the threads and the warmer. */
#include <stdio.h>

#include "core/base/checked.h"
#include "core/base/status.h"
#include "core/os/os.h"
#include "core/trace/definitions.h"
#include "core/trace/stacks.h"
#include "core/trace/trace_file.h"
#include "core/trace/warmer.h"
#include "core/trace/writer.h"

#define BLOCK_BYTES_MIN 4096u /* ample room for the longest definition */
#define BLOCK_BYTES_MAX (1u << 20)

_Static_assert(BLOCK_BYTES_MIN > 2 * HR__RECORD_PAYLOAD_MAX, "definitions fit");

enum { IDLE, OPENING, OPEN, CLOSING };

static hr__atomic_u32 state;    /* IDLE to CLOSING; makes open and close mutually exclusive */
static char recorded_path[256]; /* for messages; truncated if necessary. Accessed only while OPENING or CLOSING */

static bool change_state(uint32_t from, uint32_t to)
{
	return hr__cas_acq_rel(&state, &from, to);
}

static int watch_forks(void)
{
	static hr__atomic_u32 watching;
	uint32_t no = 0;
	if (!hr__cas_acq_rel(&watching, &no, 1)) return 0;
	int error = hr__os_at_fork(hr__trace_forget);
	if (error != 0) hr__store_release(&watching, 0);
	return error;
}

static hr_status start(const char *path, uint32_t block_bytes, uint64_t limit, uint32_t stack_depth)
{
	int error = watch_forks();
	if (error != 0) return hr__os_fail(error, "cannot register a fork handler for the recording");
	hr_status status = hr__trace_file_create(path, block_bytes, limit);
	if (status != HR_OK) return status;
	snprintf(recorded_path, sizeof(recorded_path), "%s", path);
	hr__definitions_reset();
	hr__stacks_start(stack_depth);
	hr__warmer_start(hr__trace_file_warm);
	hr__writers_start();
	return HR_OK;
}

static hr_status open_trace(const char *path, uint32_t block_bytes, uint64_t limit, uint32_t stack_depth)
{
	if (path == NULL || *path == 0) return hr__fail(HR_INVALID_ARGUMENT, "a trace needs the path of a new file");
	if (block_bytes < BLOCK_BYTES_MIN || block_bytes > BLOCK_BYTES_MAX || !hr__is_power_of_two(block_bytes)) {
		return hr__fail(HR_INVALID_ARGUMENT, "trace blocks of %u bytes: must be a power of two from %u to %u", block_bytes,
		                BLOCK_BYTES_MIN, BLOCK_BYTES_MAX);
	}
	if (!change_state(IDLE, OPENING)) {
		return hr__fail(HR_IN_USE, "a trace is being recorded already; stop it before starting %s", path);
	}
	hr_status status = start(path, block_bytes, limit, stack_depth);
	hr__store_release(&state, status == HR_OK ? OPEN : IDLE);
	return status;
}

hr_status hr__trace_open_blocks(const char *path, uint32_t block_bytes)
{
	return open_trace(path, block_bytes, UINT64_MAX, 0);
}

hr_status hr__trace_open(const char *path)
{
	return hr__trace_open_blocks(path, HR__TRACE_BLOCK_BYTES);
}

hr_status hr__trace_open_limited(const char *path, uint64_t max_bytes, uint32_t stack_depth)
{
	HR_ASSERT(max_bytes == 0 || max_bytes >= HR__TRACE_LIMIT_MIN);
	return open_trace(path, HR__TRACE_BLOCK_BYTES, max_bytes ? max_bytes : UINT64_MAX, stack_depth);
}

bool hr__trace_is_open(void)
{
	return hr__load_acquire(&state) == OPEN;
}

/* What the caller of hr__trace_close must know about the file. */
static hr_status report_end(const hr__trace_file_end *end)
{
	if (end->is_cut) {
		return hr__fail(HR_IO,
		                "the trace %s was shortened by another program while it was recorded; events in the part that was cut off, and all "
		                "later ones, are missing",
		                recorded_path);
	}
	if (end->lost != 0) {
		return hr__fail(HR_IO, "%llu event%s missing from the trace %s: %s", (unsigned long long)end->lost, end->lost == 1 ? " is" : "s are", recorded_path,
		                end->growth_error != 0 ? hr__os_error(end->growth_error) : "too many threads");
	}
	if (end->is_full) {
		return hr__fail(HR_TRUNCATED, "the trace %s reached its limit of %llu bytes; later events are missing", recorded_path,
		                (unsigned long long)end->limit);
	}
	if (end->truncate_error != 0) return hr__os_fail(end->truncate_error, "cannot truncate the trace %s to its final size", recorded_path);
	return HR_OK;
}

hr_status hr__trace_close(void)
{
	if (!change_state(OPEN, CLOSING)) return hr__fail(HR_INVALID_ARGUMENT, "no trace is being recorded");
	hr__writers_stop();
	hr__stacks_start(0);
	hr__warmer_stop();
	hr__trace_file_end end = hr__trace_file_finish();
	hr_status status = report_end(&end);
	hr__store_release(&state, IDLE);
	return status;
}

/* In the child after fork. The parent's other threads do not exist here, and may have been in the middle of any operation. */
void hr__trace_forget(void)
{
	hr__writers_forget();
	hr__warmer_forget();
	hr__trace_file_abandon();
	hr__stacks_start(0);
	hr__store_release(&state, IDLE);
}
