/* import_headroom.c - Headroom's own traces (docs/trace-format.md), through the library's reader, packed with zstd or not.
 *
 * The events of all threads and of all allocators of one device become one sequence, ordered by time. Other devices are left out,
 * because they have separate memory (for example, the host memory that Large Model Support moves tensors to). A trace includes the
 * blocks that were live when the recording began. A full disk can have lost events, so inconsistent ones are skipped and counted.
 *
 * A use tape describes the program, not the memory manager: in it, the pieces of a tensor's life on the device are joined
 * (lives.h). */
#include <stdlib.h>

#include "core/base/status.h"
#include "core/base/text.h"
#include "import.h"
#include "lives.h"
#include "analysis/reader/reader.h"
#include "core/trace/trace.h"

/* State of one pass over the file. */
struct import_pass {
	hr__trace_reader *reader;
	const hr__trace_summary *summary;
	hr__id_map devices; /* allocator -> index in the file's list of devices */
	hr__lives *lives;   /* NULL: blocks are identified by address */
};

/* Result of the first pass. */
struct survey {
	size_t device_count;
	uint64_t *allocations; /* by device; the last entry counts allocators without a defined device */
	bool *moved;           /* by device: tensors were evicted or moved */
};

/* ---- devices ---- */

static size_t device_of(const struct import_pass *reading, uint32_t allocator)
{
	uint32_t device = hr__id_map_get(&reading->devices, (hr__tape_id){ allocator, 0 });
	return device == UINT32_MAX ? reading->summary->device_count : device;
}

/* If a number is defined twice, the last definition counts. */
static hr_status map_devices(struct import_pass *reading)
{
	const hr__trace_summary *summary = reading->summary;
	hr__id_map by_id;
	hr_status status = HR_OK;
	hr__id_map_init(&by_id);
	for (size_t i = 0; !status && i < summary->device_count; i++)
		status = hr__id_map_put(&by_id, (hr__tape_id){ summary->devices[i].id, 0 }, (uint32_t)i);
	for (size_t i = 0; !status && i < summary->allocator_count; i++) {
		uint32_t device = hr__id_map_get(&by_id, (hr__tape_id){ summary->allocators[i].device, 0 });
		if (device != UINT32_MAX) status = hr__id_map_put(&reading->devices, (hr__tape_id){ summary->allocators[i].id, 0 }, device);
	}
	hr__id_map_free(&by_id);
	return status;
}

static bool is_of_a_device(const hr__event *event)
{
	switch (event->kind) {
	case HR__EVENT_ALLOC:
	case HR__EVENT_FREE:
	case HR__EVENT_ALLOC_FAILED:
	case HR__EVENT_READ:
	case HR__EVENT_WRITE:
	case HR__EVENT_EVICT:
	case HR__EVENT_RESTORE:
	case HR__EVENT_MOVE: return true;
	default: return false;
	}
}

static bool is_a_move(const hr__event *event)
{
	return event->kind == HR__EVENT_EVICT || event->kind == HR__EVENT_RESTORE || event->kind == HR__EVENT_MOVE;
}

/* ---- reading ---- */

static hr_status open_trace(hr__source *source, hr__trace_reader **reader)
{
	size_t size;
	const void *memory = hr__source_memory(source, &size);
	const char *path = hr__source_path(source);
	if (hr__source_is_gzip(source)) {
		hr__fail(HR_UNSUPPORTED, "it is a Headroom trace packed with gzip; run gunzip first");
		return hr__source_fail(source, HR_UNSUPPORTED);
	}
	hr_status status = memory ? hr__trace_reader_open_memory(memory, size, reader) : hr__trace_reader_open_any(path, reader);
	/* The reader's messages about a file already name it. */
	return status && memory ? hr__source_fail(source, status) : status;
}

static void close_reading(struct import_pass *reading)
{
	hr__trace_reader_close(reading->reader);
	hr__id_map_free(&reading->devices);
}

static hr_status open_reading(hr__source *source, struct import_pass *reading)
{
	hr_status status = open_trace(source, &reading->reader);
	if (status) return status;
	reading->summary = hr__trace_reader_summary(reading->reader);
	hr__id_map_init(&reading->devices);
	status = map_devices(reading);
	if (status) close_reading(reading);
	return status ? hr__source_fail(source, status) : HR_OK;
}

typedef hr_status event_taker(struct import_pass *reading, void *context, const hr__event *event);

/* Passes every event to [take], then closes the reading. */
static hr_status read_events(hr__source *source, struct import_pass *reading, event_taker *take, void *context)
{
	hr__event event;
	hr_status status = HR_OK;
	while (!status && (status = hr__trace_reader_next(reading->reader, &event)) == HR_OK) status = take(reading, context, &event);
	close_reading(reading);
	return status == HR_NOT_READY ? HR_OK : hr__source_fail(source, status);
}

/* ---- first pass: survey ---- */

static hr_status survey_event(struct import_pass *reading, void *context, const hr__event *event)
{
	struct survey *survey = context;
	if (event->kind == HR__EVENT_ALLOC) survey->allocations[device_of(reading, event->allocator)]++;
	else if (is_a_move(event)) survey->moved[device_of(reading, event->allocator)] = true;
	return HR_OK;
}

static hr_status survey_file(hr__source *source, struct survey *out)
{
	struct import_pass reading = { 0 };
	hr_status status = open_reading(source, &reading);
	if (status) return status;
	out->device_count = reading.summary->device_count;
	out->allocations = calloc(out->device_count + 1, sizeof *out->allocations);
	out->moved = calloc(out->device_count + 1, sizeof *out->moved);
	if (out->allocations && out->moved) return read_events(source, &reading, survey_event, out);
	close_reading(&reading);
	return hr__source_fail(source, hr__fail(HR_NO_HOST_MEMORY, "no memory for a list of %zu device%s", out->device_count,
	                                        hr__plural(out->device_count)));
}

/* Selects the device with most allocations, unless [wanted] names one. */
static hr_status choose_device(hr__source *source, int64_t wanted, const struct survey *survey, hr__tape *tape)
{
	size_t chosen = 0;
	for (size_t i = 0; i <= survey->device_count; i++) {
		if (survey->allocations[i] > survey->allocations[chosen]) chosen = i;
		tape->devices += survey->allocations[i] > 0;
	}
	if (wanted >= (int64_t)survey->device_count) {
		hr__fail(HR_INVALID_ARGUMENT, "there is no device %lld: it has %zu, counted from 0", (long long)wanted, survey->device_count);
		return hr__source_fail(source, HR_INVALID_ARGUMENT);
	}
	tape->device_index = wanted >= 0 ? wanted : (int64_t)chosen;
	return HR_OK;
}

/* ---- second pass, if tensors moved: join their lives ---- */

static hr_status read_life(struct import_pass *reading, void *context, const hr__event *event)
{
	const hr__tape *tape = context;
	if (!is_of_a_device(event)) return HR_OK;
	return hr__lives_read(reading->lives, event, device_of(reading, event->allocator) == (size_t)tape->device_index);
}

/* Adds the tensors that were evicted when the recording began. */
static hr_status add_early_lives(hr__lives *lives, hr__tape *tape)
{
	uint32_t life;
	uint64_t bytes;
	hr_status status = HR_OK;
	while (!status && hr__lives_early(lives, &life, &bytes)) status = hr__tape_alloc(tape, (hr__tape_id){ life, 0 }, bytes, 0, 0);
	return status;
}

static hr_status join_lives(hr__source *source, struct import_pass *reading, hr__tape *tape)
{
	hr_status status = open_reading(source, reading);
	if (status) return status;
	status = hr__lives_open(reading->summary->threads, &reading->lives);
	if (status) {
		close_reading(reading);
		return hr__source_fail(source, status);
	}
	status = read_events(source, reading, read_life, tape);
	if (status) return status;
	hr__lives_rewind(reading->lives);
	tape->joined = hr__lives_joined(reading->lives);
	status = add_early_lives(reading->lives, tape);
	return status ? hr__source_fail(source, status) : HR_OK;
}

/* ---- last pass: fill the tape ---- */

/* Adds an event that belongs to no device. */
static hr_status add_other(hr__tape *tape, const hr__event *event)
{
	switch (event->kind) {
	case HR__EVENT_OP_BEGIN: return hr__tape_op_begin(tape, 0, event->op, event->thread);
	case HR__EVENT_OP_END: return hr__tape_op_end(tape, 0, event->bytes, event->thread);
	case HR__EVENT_STEP: return hr__tape_step(tape, event->bytes);
	case HR__EVENT_STEP_END: tape->uses++; return HR_OK;
	default: return HR_OK;
	}
}

static hr_status add_block(hr__tape *tape, hr__tape_id id, const hr__event *event)
{
	switch (event->kind) {
	case HR__EVENT_ALLOC: return hr__tape_alloc(tape, id, event->requested, event->stream, event->thread);
	case HR__EVENT_FREE: return hr__tape_release(tape, id, 0, event->stream, event->thread);
	case HR__EVENT_READ:
	case HR__EVENT_WRITE: return hr__tape_access(tape, id, 0, event->kind == HR__EVENT_WRITE, event->thread);
	case HR__EVENT_ALLOC_FAILED: tape->failed_allocs++; break;
	default: tape->moves += is_a_move(event); break;
	}
	hr__tape_hindered(tape);
	return HR_OK;
}

static hr_status add_event(struct import_pass *reading, void *context, const hr__event *event)
{
	hr__tape *tape = context;
	if (!is_of_a_device(event)) return add_other(tape, event);
	bool on_device = device_of(reading, event->allocator) == (size_t)tape->device_index;
	if (!reading->lives) return on_device ? add_block(tape, (hr__tape_id){ event->address, event->allocator }, event) : HR_OK;

	uint32_t life = UINT32_MAX;
	hr__life_event what;
	hr_status status = hr__lives_next(reading->lives, event, on_device, &what, &life);
	hr__tape_id id = { life, 0 };
	if (status) return status;
	if (what == HR__LIFE_ENDS) return hr__tape_release(tape, id, 0, event->stream, event->thread);
	if (what != HR__LIFE_NOTHING) return add_block(tape, id, event);
	return on_device && event->kind != HR__EVENT_ALLOC && event->kind != HR__EVENT_FREE ? add_block(tape, id, event) : HR_OK;
}

static hr_status fill_tape(hr__source *source, struct import_pass *reading, hr__tape *tape)
{
	hr_status status = open_reading(source, reading);
	if (status) return status;
	const hr__trace_summary *summary = reading->summary;
	if ((size_t)tape->device_index < summary->device_count) tape->page_bytes = summary->devices[tape->device_index].page_bytes;
	tape->lost = summary->lost;
	tape->unfinished = !summary->complete;
	return read_events(source, reading, add_event, tape);
}

hr_status hr__import_headroom(hr__source *source, const hr__import_options *options, hr__tape *tape)
{
	struct survey survey = { 0 };
	struct import_pass reading = { 0 };
	hr_status status = survey_file(source, &survey);
	if (!status) status = choose_device(source, options->device_index, &survey, tape);
	if (!status && tape->use_tape && survey.moved[tape->device_index]) status = join_lives(source, &reading, tape);
	if (!status) status = fill_tape(source, &reading, tape);
	hr__lives_close(reading.lives);
	free(survey.allocations);
	free(survey.moved);
	return status;
}
