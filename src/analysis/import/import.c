/* import.c - recognises the format of a trace. See import.h. */
#include "analysis/import/import.h"

#include <string.h>

#include "analysis/import/pickle/pickle.h"
#include "analysis/import/quote.h"
#include "core/base/status.h"
#include "core/record/compress.h"
#include "core/trace/format.h"

#define CSV_HEADER "time_us,action,id,bytes,stream"
#define RMM_HEADER "Thread,Time,Action,Pointer,Size,Stream"
#define LINE_LEAST 8u /* bytes of the shortest line of any format that is an event */

/* ---- shared by the formats ---- */

hr_status hr__import_stream_make(hr__source *source, size_t bytes, hr__trace_format format, const char *name, void *out)
{
	void *memory;
	int error = hr__os()->alloc(bytes, &memory);
	if (error) {
		hr__source_close(source);
		return hr__os_fail(error, "no memory for reading a trace");
	}
	hr__import_stream *s = memory;
	uint64_t events = hr__source_bytes_max(source) / LINE_LEAST + 1;
	s->source = source;
	hr__numbering_init(&s->streams);
	s->device = (hr__trace_device){ .name = "GPU:0" };
	s->allocator = (hr__trace_allocator){ .name = name, .kind = "imported" };
	s->stream = (hr__event_stream){ .format = format, .gzip = hr__source_is_gzip(source) };
	s->stream.summary = (hr__trace_summary){ .events = events < HR__IMPORT_EVENTS_MAX ? events : HR__IMPORT_EVENTS_MAX, .threads = 1,
		                                     .complete = true, .devices = &s->device, .device_count = 1, .allocators = &s->allocator,
		                                     .allocator_count = 1 };
	*(void **)out = memory;
	return HR_OK;
}

void hr__import_stream_close(hr__import_stream *stream, size_t bytes)
{
	hr__numbering_free(&stream->streams);
	hr__source_close(stream->source);
	hr__os()->free(stream, bytes);
}

hr_status hr__import_time(hr__import_stream *stream, uint64_t file_ns, hr__event *event)
{
	if (++stream->count > HR__IMPORT_EVENTS_MAX)
		return hr__fail(HR_TOO_MANY, "more than %u events; cut the trace into parts", HR__IMPORT_EVENTS_MAX);
	if (!stream->begun) stream->first_ns = file_ns;
	stream->begun = true;
	uint64_t now = file_ns > stream->first_ns ? file_ns - stream->first_ns : 0;
	stream->stream.late += file_ns < stream->first_ns || now < stream->last_ns;
	if (now > stream->last_ns) stream->last_ns = now;
	event->time_ns = stream->last_ns;
	return HR_OK;
}

hr_status hr__import_next_line(hr__import_stream *stream, hr__source_line *line)
{
	hr_status status;
	do {
		status = hr__source_next_line(stream->source, line);
	} while (!status && line->length == 0);
	if (!status) stream->line = line->number;
	return status;
}

hr_status hr__import_fail_line(const hr__event_stream *stream, hr_status status)
{
	const hr__import_stream *s = (const hr__import_stream *)stream;
	return hr__source_fail_line(s->source, status, s->line);
}

hr_status hr__import_check_bytes(uint64_t bytes)
{
	if (bytes <= HR__IMPORT_BLOCK_MAX) return HR_OK;
	return hr__fail(HR_BAD_FORMAT, "an allocation of %llu bytes; at most 2^48 can be", (unsigned long long)bytes);
}

/* ---- formats ---- */

static bool begins_with(const char *bytes, size_t count, const char *prefix)
{
	size_t length = strlen(prefix);
	return count >= length && memcmp(bytes, prefix, length) == 0;
}

/* Whether the source is a Headroom trace, or the beginning of one that was cut. */
static bool is_trace(const char *bytes, size_t count, const char *path)
{
	size_t length = sizeof HR__TRACE_MAGIC - 1;
	if (count >= 4 && memcmp(bytes, HR__TRACE_MAGIC, count < length ? count : length) == 0) return true;
	return path && begins_with(bytes, count, HR__PACKED_MAGIC);
}

/* Fails with the last message, and closes the source. */
static hr_status refuse(hr__source *source, hr_status status)
{
	hr__source_fail(source, status);
	hr__source_close(source);
	return status;
}

static hr_status unknown_format(hr__source *source)
{
	char quoted[HR__QUOTE_BYTES];
	hr__source_line line;
	hr_status status = hr__source_next_line(source, &line);
	if (!status || status == HR_NOT_READY) {
		hr__fail(HR_BAD_FORMAT,
		         "expected the header " CSV_HEADER ", or that of an RMM log, a PyTorch snapshot, or a Headroom trace; found %s",
		         hr__quote(status ? "" : line.text, status ? 0 : line.length, quoted));
		status = hr__source_fail_line(source, HR_BAD_FORMAT, 1);
	}
	hr__source_close(source);
	return status;
}

/* Opens a Headroom trace by the path or memory of [source], which is closed. */
static hr_status open_trace(hr__source *source, const char *path, hr__event_stream **out)
{
	size_t size;
	hr__trace_reader *reader;
	const void *memory = hr__source_memory(source, &size);
	if (hr__source_is_gzip(source)) return refuse(source, hr__fail(HR_UNSUPPORTED, "it is a Headroom trace packed with gzip; run gunzip first"));
	if (path && strcmp(path, "-") == 0)
		return refuse(source, hr__fail(HR_UNSUPPORTED, "it is a Headroom trace, which cannot be read from a pipe; name the file"));
	hr_status status = memory ? hr__trace_reader_open_memory(memory, size, &reader) : hr__trace_reader_open_any(path, &reader);
	/* The reader's messages about a file already name it. */
	if (status && memory) hr__source_fail(source, status);
	hr__source_close(source);
	return status ? status : hr__event_stream_of_reader(reader, path, out);
}

/* The first bytes, after a byte order mark. */
static hr_status first_bytes(hr__source *source, const char **bytes, size_t *count)
{
	hr_status status = hr__source_peek(source, bytes, count);
	if (status || !begins_with(*bytes, *count, "\xEF\xBB\xBF")) return status;
	hr__source_skip(source, 3);
	return hr__source_peek(source, bytes, count);
}

/* Owns [source]. */
static hr_status open_format(hr__source *source, const char *path, hr__event_stream **out)
{
	const char *bytes;
	size_t count, blank = 0;
	hr_status status = first_bytes(source, &bytes, &count);
	if (status) {
		hr__source_close(source);
		return status;
	}
	while (blank < count && strchr(" \t\r\n", bytes[blank]) && bytes[blank]) blank++;
	if (begins_with(bytes, count, CSV_HEADER)) return hr__import_csv(source, out);
	if (begins_with(bytes, count, RMM_HEADER)) return hr__import_rmm(source, out);
	if (blank < count && (bytes[blank] == '{' || (unsigned char)bytes[0] == HR__PICKLE_FIRST_BYTE)) return hr__import_torch(source, out);
	if (is_trace(bytes, count, path)) return open_trace(source, path, out);
	return unknown_format(source);
}

hr_status hr__import_open(const char *path, hr__event_stream **out)
{
	hr__source *source;
	hr_status status = path ? hr__source_open(path, &source) : hr__fail(HR_INVALID_ARGUMENT, "no path of a trace");
	return status ? status : open_format(source, path, out);
}

hr_status hr__import_open_memory(const void *bytes, size_t size, hr__event_stream **out)
{
	hr__source *source;
	hr_status status = hr__source_open_memory(bytes, size, &source);
	return status ? status : open_format(source, NULL, out);
}
