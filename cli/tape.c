/* tape.c - see tape.h.
 *
 * Invariants while reading:
 *   1  blocks_by_id has exactly the live blocks: live_blocks of them, with live_bytes in total
 *   2  sizes[b] is the size of block b, for b < allocs
 *   3  allocs + frees = count */
#include "tape.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/assert.h"
#include "core/base/checked.h"
#include "core/base/status.h"
#include "core/base/text.h"

#define BLOCK_BYTES_MAX (UINT64_C(1) << 48) /* the maximum that hr_alloc accepts */

/* ---- streams and threads ---- */

/* The number of a stream or thread; a new one if it was not seen before. */
static hr_status number_of(hr__id_map *map, uint64_t name, const char *what, uint16_t *out)
{
	hr_status status = hr__id_map_ensure(map);
	if (status) return status;
	hr__id_entry *entry = hr__id_map_find(map, (hr__tape_id){ name, 0 });
	if (!entry->value) {
		if (map->count == HR__TAPE_NUMBERS_MAX)
			return hr__fail(HR_TOO_MANY, "more than %u different %s", HR__TAPE_NUMBERS_MAX, what);
		*entry = (hr__id_entry){ name, 0, (uint32_t)++map->count };
	}
	*out = (uint16_t)(entry->value - 1);
	return HR_OK;
}

/* ---- init and free ---- */

void hr__tape_init(hr__tape *tape, hr__tape_format format)
{
	*tape = (hr__tape){ .format = format, .partial = format != HR__TAPE_CSV, .stream_zero = UINT32_MAX, .device_index = -1 };
	hr__id_map_init(&tape->blocks_by_id);
	hr__id_map_init(&tape->streams_by_id);
	hr__id_map_init(&tape->threads_by_id);
}

static void drop_reading_state(hr__tape *tape)
{
	hr__id_map_free(&tape->blocks_by_id);
	hr__id_map_free(&tape->streams_by_id);
	hr__id_map_free(&tape->threads_by_id);
	free(tape->sizes);
	tape->sizes = NULL;
}

void hr__tape_free(hr__tape *tape)
{
	drop_reading_state(tape);
	free(tape->events);
	tape->events = NULL;
	tape->count = 0;
}

hr_status hr__tape_finish(hr__tape *tape)
{
	drop_reading_state(tape);
	if (tape->allocs > 0) return HR_OK;
	return hr__fail(HR_BAD_FORMAT, "no allocation in it");
}

/* ---- events ---- */

static bool grow(void **array, size_t *capacity, size_t item)
{
	size_t bigger = *capacity ? *capacity + *capacity / 2 : 1024;
	void *grown = realloc(*array, bigger * item);
	if (!grown) return false;
	*array = grown;
	*capacity = bigger;
	return true;
}

static hr_status append(hr__tape *tape, uint64_t bytes, uint32_t block, uint64_t stream, uint64_t thread)
{
	hr__tape_event event = { .bytes = bytes, .block = block };
	hr_status status = number_of(&tape->streams_by_id, stream, "streams", &event.stream);
	if (!status) status = number_of(&tape->threads_by_id, thread, "threads", &event.thread);
	if (status) return status;
	if (tape->count >= HR__TAPE_EVENTS_MAX)
		return hr__fail(HR_TOO_MANY, "more than %u events; cut the trace into parts", HR__TAPE_EVENTS_MAX);
	/* A tape with a use tape is not replayed. */
	if (!tape->use_tape) {
		if (tape->count == tape->capacity && !grow((void **)&tape->events, &tape->capacity, sizeof *tape->events))
			return hr__fail(HR_NO_HOST_MEMORY, "no memory for more than %zu events", tape->count);
		tape->events[tape->count] = event;
	}
	tape->count++;
	tape->streams = (uint32_t)tape->streams_by_id.count;
	tape->threads = (uint32_t)tape->threads_by_id.count;
	if (stream == 0) tape->stream_zero = event.stream;
	return HR_OK;
}

static hr_status check_size(const hr__tape *tape, uint64_t bytes)
{
	uint64_t live;
	if (bytes == 0) return hr__fail(HR_BAD_FORMAT, "an allocation of 0 bytes; expected at least 1");
	if (bytes > BLOCK_BYTES_MAX)
		return hr__fail(HR_BAD_FORMAT, "an allocation of %llu bytes; at most 2^48 can be", (unsigned long long)bytes);
	if (!hr__add(tape->live_bytes, bytes, &live) || live > HR__TAPE_LIVE_MAX)
		return hr__fail(HR_BAD_FORMAT, "more than 64 TiB live at once (an allocation of %llu bytes on top of %llu)",
		                (unsigned long long)bytes, (unsigned long long)tape->live_bytes);
	return HR_OK;
}

static hr_status release_entry(hr__tape *tape, hr__id_entry *entry, uint64_t stream, uint64_t thread)
{
	uint32_t block = entry->value - 1;
	hr_status status = append(tape, 0, block, stream, thread);
	if (!status && tape->use_tape) status = hr__uses_release(tape->use_tape, block);
	if (status) return status;
	hr__id_map_remove(&tape->blocks_by_id, entry);
	tape->frees++;
	tape->live_blocks--;
	tape->live_bytes -= tape->sizes[block];
	return HR_OK;
}

/* The entry for a new block with that id. If the id is live already, that is an error, or the old block is freed first. */
static hr_status claim(hr__tape *tape, hr__tape_id id, uint64_t stream, uint64_t thread,
                       hr__id_entry **out)
{
	hr_status status = hr__id_map_ensure(&tape->blocks_by_id);
	if (status) return status;
	*out = hr__id_map_find(&tape->blocks_by_id, id);
	if (!(*out)->value) return HR_OK;
	if (!tape->partial)
		return hr__fail(HR_BAD_FORMAT, "block %llu is allocated while it is live; free it first or give the new one another id",
		                (unsigned long long)id.id);
	tape->implied_frees++;
	status = release_entry(tape, *out, stream, thread);
	*out = hr__id_map_find(&tape->blocks_by_id, id);
	return status;
}

hr_status hr__tape_alloc(hr__tape *tape, hr__tape_id id, uint64_t bytes, uint64_t stream, uint64_t thread)
{
	hr__id_entry *entry;
	if (bytes == 0 && tape->partial) {
		tape->empty_allocs++;
		return HR_OK;
	}
	hr_status status = check_size(tape, bytes);
	if (!status) status = claim(tape, id, stream, thread, &entry);
	if (status) return status;
	uint32_t block = (uint32_t)tape->allocs;
	if (block == tape->sizes_capacity && !grow((void **)&tape->sizes, &tape->sizes_capacity, sizeof *tape->sizes))
		return hr__fail(HR_NO_HOST_MEMORY, "no memory for more than %u blocks", block);
	status = append(tape, bytes, block, stream, thread);
	if (!status && tape->use_tape) status = hr__uses_alloc(tape->use_tape, bytes, thread);
	if (status) return status;
	tape->sizes[block] = bytes;
	*entry = (hr__id_entry){ id.id, id.space, block + 1 };
	tape->blocks_by_id.count++;
	tape->allocs++;
	tape->live_blocks++;
	tape->live_bytes += bytes;
	HR_ASSERT(tape->blocks_by_id.count == tape->live_blocks && tape->allocs + tape->frees == tape->count);
	if (tape->live_bytes > tape->peak_bytes) {
		tape->peak_bytes = tape->live_bytes;
		tape->peak_event = tape->count - 1;
	}
	return HR_OK;
}

hr_status hr__tape_release(hr__tape *tape, hr__tape_id id, uint64_t bytes, uint64_t stream, uint64_t thread)
{
	hr_status status = hr__id_map_ensure(&tape->blocks_by_id);
	if (status) return status;
	hr__id_entry *entry = hr__id_map_find(&tape->blocks_by_id, id);
	if (!entry->value && tape->partial) {
		tape->unknown_frees++;
		return HR_OK;
	}
	if (!entry->value)
		return hr__fail(HR_BAD_FORMAT, "block %llu is freed but not live: freed already, or never allocated",
		                (unsigned long long)id.id);
	uint64_t allocated = tape->sizes[entry->value - 1];
	if (bytes != 0 && bytes != allocated && !tape->partial)
		return hr__fail(HR_BAD_FORMAT, "block %llu is freed with %llu bytes, but was allocated with %llu",
		                (unsigned long long)id.id, (unsigned long long)bytes, (unsigned long long)allocated);
	return release_entry(tape, entry, stream, thread);
}

/* ---- use events ---- */

hr_status hr__tape_step(hr__tape *tape, uint64_t number)
{
	tape->uses++;
	return tape->use_tape ? hr__uses_step(tape->use_tape, number) : HR_OK;
}

hr_status hr__tape_op_begin(hr__tape *tape, uint64_t id, hr_name name, uint64_t thread)
{
	tape->uses++;
	return tape->use_tape ? hr__uses_op_begin(tape->use_tape, id, name, thread) : HR_OK;
}

hr_status hr__tape_op_end(hr__tape *tape, uint64_t id, uint64_t ns, uint64_t thread)
{
	tape->uses++;
	return tape->use_tape ? hr__uses_op_end(tape->use_tape, id, ns, thread) : HR_OK;
}

hr_status hr__tape_access(hr__tape *tape, hr__tape_id id, uint64_t bytes, bool write, uint64_t thread)
{
	const char *verb = write ? "written" : "read";
	tape->uses++;
	if (!tape->use_tape) return HR_OK;
	hr_status status = hr__id_map_ensure(&tape->blocks_by_id);
	if (status) return status;
	const hr__id_entry *entry = hr__id_map_find(&tape->blocks_by_id, id);
	if (!entry->value && tape->partial) {
		tape->use_tape->odd++;
		return HR_OK;
	}
	if (!entry->value)
		return hr__fail(HR_BAD_FORMAT, "block %llu is %s but not live: freed already, or never allocated",
		                (unsigned long long)id.id, verb);
	uint64_t allocated = tape->sizes[entry->value - 1];
	if (bytes != 0 && bytes != allocated && !tape->partial)
		return hr__fail(HR_BAD_FORMAT, "block %llu is %s with %llu bytes, but was allocated with %llu", (unsigned long long)id.id,
		                verb, (unsigned long long)bytes, (unsigned long long)allocated);
	return hr__uses_access(tape->use_tape, entry->value - 1, id.id, write, thread);
}

void hr__tape_hindered(hr__tape *tape)
{
	if (tape->use_tape) hr__uses_hindered(tape->use_tape);
}

/* ---- text ---- */

const char *hr__tape_format_name(hr__tape_format format)
{
	switch (format) {
	case HR__TAPE_CSV: return "CSV";
	case HR__TAPE_RMM: return "RMM log";
	case HR__TAPE_TORCH: return "PyTorch snapshot";
	case HR__TAPE_HEADROOM: return "Headroom trace";
	}
	return "?";
}

static void add_note(char *out, size_t capacity, size_t *length, const char *format, ...) __attribute__((format(printf, 4, 5)));
static void add_note(char *out, size_t capacity, size_t *length, const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	size_t room = *length < capacity ? capacity - *length : 0;
	int written = vsnprintf(room ? out + *length : NULL, room, format, arguments);
	va_end(arguments);
	if (written > 0) *length += (size_t)written;
}

size_t hr__tape_notes(const hr__tape *tape, char *out, size_t capacity)
{
	size_t length = 0;
	char count[32];
	if (capacity) *out = 0;
#define NOTE(number, thing, text) \
	if (number) add_note(out, capacity, &length, "%s " thing "%s " text "\n", hr__format_count(number, count, sizeof count), hr__plural(number))
	NOTE(tape->use_tape ? 0 : tape->uses, "use event", "left out, as not needed for this");
	NOTE(tape->use_tape ? tape->use_tape->odd : 0, "use event", "of no known op or block left out");
	NOTE(tape->unknown_frees, "free", "of blocks from before the recording began left out");
	NOTE(tape->implied_frees, "block", "allocated again while live, and freed first");
	NOTE(tape->empty_allocs, "allocation", "of 0 bytes left out");
	NOTE(tape->failed_allocs, "request", "that failed when recorded left out");
	NOTE(tape->joined, "return", "of tensors from the host joined to their lives: peaks are those without moving");
	NOTE(tape->use_tape ? 0 : tape->moves, "move", "of tensors to the host and back replayed as the frees and allocations they were");
	NOTE(tape->lost, "event", "could not be written by the recorder");
#undef NOTE
	if (tape->unfinished) add_note(out, capacity, &length, "the recording was not ended: it holds what was written until then\n");
	if (tape->devices > 1)
		add_note(out, capacity, &length,
		         "the file has events of %u devices, of which this is number %lld; --device-index takes another\n", tape->devices,
		         (long long)tape->device_index);
	return length;
}

hr_status hr__shut_down(void)
{
	char message[512];
	hr_status before = hr_last_status();
	snprintf(message, sizeof message, "%s", hr_last_message());
	hr_status status = hr_shutdown();
	if (status != HR_LEAKED) return status;
	if (before) hr__fail(before, "%s", message);
	return HR_OK;
}
