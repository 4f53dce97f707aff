/* import_headroom.c - Headroom's own traces (docs/trace-format.md), through the library's reader, packed with zstd or not.
 *
 * The events of all threads, and of all allocators of one device, become one sequence, in order of time. Other devices are left out: their memory is not
 * that of the first, above all the host memory that Large Model Support moves tensors to. A trace holds what was allocated when the recording began, but a
 * full disk can have lost events, so odd ones are skipped and counted. */
#include <stdlib.h>

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

/* ---- devices ---- */

/* Which device events belong to. Most are of the same allocator as the one before. */
struct places {
	const hr__trace_summary *summary;
	uint32_t allocator;
	size_t device; /* number in the file's list; the count of them: not defined there */
};

static size_t device_of(struct places *places, uint32_t allocator)
{
	const hr__trace_summary *summary = places->summary;
	if (allocator == places->allocator) return places->device;
	places->allocator = allocator;
	places->device = summary->device_count;
	for (size_t i = 0; i < summary->allocator_count; i++) {
		if (summary->allocators[i].id != allocator) continue;
		for (size_t k = 0; k < summary->device_count; k++)
			if (summary->devices[k].id == summary->allocators[i].device) places->device = k;
	}
	return places->device;
}

static struct places places_of(hr__trace_reader *reader)
{
	const hr__trace_summary *summary = hr__trace_reader_summary(reader);
	return (struct places){ .summary = summary, .device = summary->device_count };
}

static bool is_of_a_device(const hr__event *event)
{
	switch (event->kind) {
	case HR__EVENT_ALLOC:
	case HR__EVENT_FREE:
	case HR__EVENT_ALLOC_FAILED:
	case HR__EVENT_READ:
	case HR__EVENT_WRITE: return true;
	default: return false;
	}
}

/* Allocations of each device; the last is of none that is defined. To be freed. NULL when there is no memory. */
static hr_status count_allocations(hr__source *source, uint64_t **out, size_t *count)
{
	hr__trace_reader *reader;
	hr__event event;
	hr_status status = open_reader(source, &reader);
	if (status) return status;
	struct places places = places_of(reader);
	*count = places.summary->device_count;
	*out = calloc(*count + 1, sizeof **out);
	if (!*out) status = hr__source_fail(source, hr__fail(HR_NO_HOST_MEMORY, "no memory"));
	while (!status && (status = hr__trace_reader_next(reader, &event)) == HR_OK)
		if (event.kind == HR__EVENT_ALLOC) (*out)[device_of(&places, event.allocator)]++;
	hr__trace_reader_close(reader);
	if (status == HR_NOT_READY) return HR_OK;
	free(*out);
	*out = NULL;
	return status;
}

/* The one with most allocations, unless one is asked for. */
static hr_status choose_device(hr__source *source, int64_t wanted, hr__tape *tape, size_t *out)
{
	uint64_t *counts;
	size_t count;
	hr_status status = count_allocations(source, &counts, &count);
	if (status) return status;
	*out = 0;
	for (size_t i = 0; i <= count; i++) {
		if (counts[i] > counts[*out]) *out = i;
		tape->devices += counts[i] > 0;
	}
	free(counts);
	if (wanted >= (int64_t)count) {
		hr__fail(HR_INVALID_ARGUMENT, "there is no device %lld: it has %zu, counted from 0", (long long)wanted, count);
		return hr__source_fail(source, HR_INVALID_ARGUMENT);
	}
	if (wanted >= 0) *out = (size_t)wanted;
	tape->device_index = (int64_t)*out;
	return HR_OK;
}

hr_status hr__import_headroom(hr__source *source, const hr__import_options *options, hr__tape *tape)
{
	hr__trace_reader *reader;
	hr__event event;
	size_t device;
	hr_status status = choose_device(source, options->device_index, tape, &device);
	if (!status) status = open_reader(source, &reader);
	if (status) return status;
	struct places places = places_of(reader);
	tape->lost = places.summary->lost;
	tape->unfinished = !places.summary->complete;
	if (device < places.summary->device_count) tape->page_bytes = places.summary->devices[device].page_bytes;
	while ((status = hr__trace_reader_next(reader, &event)) == HR_OK) {
		if (is_of_a_device(&event) && device_of(&places, event.allocator) != device) continue;
		status = add_event(tape, &event);
		if (status) break;
	}
	hr__trace_reader_close(reader);
	return status == HR_NOT_READY ? HR_OK : hr__source_fail(source, status);
}
