/* import_headroom.c - Headroom's own traces (docs/trace-format.md), through the library's reader, packed with zstd or not.
 *
 * The events of all threads and allocators become one sequence, in order of time. A trace holds what was allocated when the
 * recording began, but a full disk can have lost events, so odd ones are skipped and counted. */
#include "base/status.h"
#include "import.h"
#include "profile/compress.h"
#include "trace/trace.h"

static hr_status open_reader(hr__source *source, hr__trace_reader **reader)
{
	size_t size;
	const void *memory = hr__source_memory(source, &size);
	const char *path = hr__source_path(source);
	if (hr__source_is_gzip(source)) {
		hr__fail(HR_UNSUPPORTED, "it is a Headroom trace packed with gzip; run gunzip first");
		return hr__source_fail(source, HR_UNSUPPORTED);
	}
	hr_status status = memory ? hr__trace_reader_open_memory(memory, size, reader) : hr__trace_reader_open_any(path, reader);
	/* The reader's messages about a file name it already. */
	return status && memory ? hr__source_fail(source, status) : status;
}

static hr_status add_event(hr__tape *tape, const hr__event *event)
{
	hr__tape_id id = { event->address, event->allocator };
	switch (event->kind) {
	case HR__EVENT_ALLOC: return hr__tape_alloc(tape, id, event->requested, event->stream, event->thread, event->time_ns);
	case HR__EVENT_FREE: return hr__tape_release(tape, id, 0, event->stream, event->thread, event->time_ns);
	case HR__EVENT_ALLOC_FAILED: tape->failed_allocs++; return HR_OK;
	case HR__EVENT_OP_BEGIN: return hr__tape_op_begin(tape, 0, event->op, event->thread);
	case HR__EVENT_OP_END: return hr__tape_op_end(tape, 0, event->bytes, event->thread);
	case HR__EVENT_READ:
	case HR__EVENT_WRITE: return hr__tape_access(tape, id, 0, event->kind == HR__EVENT_WRITE, event->thread);
	case HR__EVENT_STEP: return hr__tape_step(tape, event->bytes);
	case HR__EVENT_STEP_END: tape->uses++; return HR_OK;
	default: return HR_OK;
	}
}

hr_status hr__import_headroom(hr__source *source, hr__tape *tape)
{
	hr__trace_reader *reader;
	hr__event event;
	hr_status status = open_reader(source, &reader);
	if (status) return status;
	const hr__trace_summary *summary = hr__trace_reader_summary(reader);
	tape->lost = summary->lost;
	tape->unfinished = !summary->complete;
	while ((status = hr__trace_reader_next(reader, &event)) == HR_OK) {
		status = add_event(tape, &event);
		if (status) break;
	}
	hr__trace_reader_close(reader);
	return status == HR_NOT_READY ? HR_OK : hr__source_fail(source, status);
}
