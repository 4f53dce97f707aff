/* event_stream.c - the events of Headroom's own trace files as a stream. See event_stream.h. */
#include "analysis/reader/event_stream.h"

#include "core/base/status.h"
#include "core/os/os.h"

typedef struct reader_stream {
	hr__event_stream stream;
	hr__trace_reader *reader;
	const char *path;
} reader_stream;

static hr_status next_event(hr__event_stream *stream, hr__event *out)
{
	reader_stream *s = (reader_stream *)stream;
	hr_status status = hr__trace_reader_next(s->reader, out);
	return status && status != HR_NOT_READY ? stream->fail(stream, status) : status;
}

static hr_status fail_stream(const hr__event_stream *stream, hr_status status)
{
	const reader_stream *s = (const reader_stream *)stream;
	return s->path ? hr__fail_in(status, "%s", s->path) : status;
}

static void close_stream(hr__event_stream *stream)
{
	reader_stream *s = (reader_stream *)stream;
	hr__trace_reader_close(s->reader);
	hr__os()->free(s, sizeof *s);
}

hr_status hr__event_stream_of_reader(hr__trace_reader *reader, const char *path, hr__event_stream **out)
{
	void *memory;
	int error = hr__os()->alloc(sizeof(reader_stream), &memory);
	if (error) {
		hr__trace_reader_close(reader);
		return hr__os_fail(error, "reading a trace");
	}
	reader_stream *s = memory;
	*s = (reader_stream){ .stream = { .summary = *hr__trace_reader_summary(reader), .format = HR__FORMAT_HEADROOM, .next = next_event,
		                              .fail = fail_stream, .close = close_stream },
		                  .reader = reader,
		                  .path = path };
	*out = &s->stream;
	return HR_OK;
}

const char *hr__trace_format_name(hr__trace_format format)
{
	switch (format) {
	case HR__FORMAT_HEADROOM: return "Headroom trace";
	case HR__FORMAT_CSV: return "CSV";
	case HR__FORMAT_RMM: return "RMM log";
	case HR__FORMAT_TORCH: return "PyTorch snapshot";
	}
	return "?";
}
