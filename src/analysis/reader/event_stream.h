/* event_stream.h - the events of a trace in order of time, whatever the format of its file. The one input of a capture.
 *
 * A reader or importer fills in the struct and embeds it as the first member of its own state. */
#ifndef HR_READER_EVENT_STREAM_H
#define HR_READER_EVENT_STREAM_H

#include "analysis/reader/reader.h"

typedef enum hr__trace_format { HR__FORMAT_HEADROOM = 1, HR__FORMAT_CSV, HR__FORMAT_RMM, HR__FORMAT_TORCH } hr__trace_format;

typedef struct hr__event_stream hr__event_stream;

struct hr__event_stream {
	/* Devices and allocators are known before the first event; events and threads are upper bounds; all else is known after the last
	 * event. */
	hr__trace_summary summary;
	hr__trace_format format;
	bool strict; /* an inconsistent event is an error, because such a file starts with its program and loses nothing. address2 of an
	              * event is the id of its block in the file, for messages */
	bool gzip;
	uint64_t late; /* events whose time was before that of the event before them: they got that time */
	uint64_t empty; /* allocations of 0 bytes, left out */

	/* The next event; HR_NOT_READY at the end. The messages of errors name the file and the position. */
	hr_status (*next)(hr__event_stream *stream, hr__event *out);
	/* Puts the file and the position of the last event before the last message. */
	hr_status (*fail)(const hr__event_stream *stream, hr_status status);
	void (*close)(hr__event_stream *stream);
};

/* The stream of a trace file of Headroom; owns [reader], also on failure. [path] may be NULL, and must outlive the stream.
 * HR_NO_HOST_MEMORY. */
hr_status hr__event_stream_of_reader(hr__trace_reader *reader, const char *path, hr__event_stream **out);

/* "CSV", "RMM log", ... */
const char *hr__trace_format_name(hr__trace_format format);

#endif
