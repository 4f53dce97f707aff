/* import.h - opens a trace of any format as a stream of events.
 *
 *     CSV of traces/      time_us,action,id,bytes,stream[,name]                          import_csv.c
 *     RMM log             Thread,Time,Action,Pointer,Size,Stream                         import_rmm.c
 *     PyTorch snapshot    {"device_traces": [[{"action": "alloc", ...}]]}, or a pickle   import_torch.c
 *     Headroom trace      docs/trace-format.md                                           analysis/reader
 *
 * The format is recognised by content, never by file name; all but the last may be packed with gzip. Any bytes are safe to read.
 * Every error message names the file, the position in it, and what was expected there.
 *
 * Times are made relative to the first event, and never decrease. A file that does not name its device has the device "GPU:0", and
 * an allocator named after the format. */
#ifndef HR_IMPORT_IMPORT_H
#define HR_IMPORT_IMPORT_H

#include "analysis/import/numbering.h"
#include "analysis/import/source.h"
#include "analysis/reader/event_stream.h"

#define HR__IMPORT_EVENTS_MAX 100000000u
#define HR__IMPORT_BLOCK_MAX (UINT64_C(1) << 48) /* bytes of a block: the maximum that hr_alloc accepts */

/* HR_IO, HR_BAD_FORMAT, HR_TRUNCATED, HR_TOO_NEW, HR_TOO_MANY, HR_UNSUPPORTED, HR_NO_HOST_MEMORY. [path] "-" is the standard input;
 * [path] and [bytes] must outlive the stream. */
hr_status hr__import_open(const char *path, hr__event_stream **out);
hr_status hr__import_open_memory(const void *bytes, size_t size, hr__event_stream **out);

/* ---- the formats: each function makes a stream of a source at its first line or byte. It owns the source, also on failure ---- */

hr_status hr__import_csv(hr__source *source, hr__event_stream **out);
hr_status hr__import_rmm(hr__source *source, hr__event_stream **out);
hr_status hr__import_torch(hr__source *source, hr__event_stream **out);

/* ---- shared by the formats ---- */

/* State of a stream of events that come from a source; first member of what a format adds to it. */
typedef struct hr__import_stream {
	hr__event_stream stream;
	hr__source *source;
	hr__numbering streams;
	bool begun;        /* an event was given a time */
	uint64_t first_ns; /* time of the first event, in the file's own time */
	uint64_t last_ns;  /* of the last one, relative to the first */
	uint64_t count;    /* events */
	uint64_t line;     /* formats with lines: number of the last line */
	hr__trace_device device;       /* for formats with one device */
	hr__trace_allocator allocator;
} hr__import_stream;

/* Allocates [bytes] of zeroed state that begin with an hr__import_stream, and fills that in for one device and one thread. Owns
 * [source], also on failure. HR_NO_HOST_MEMORY. */
hr_status hr__import_stream_make(hr__source *source, size_t bytes, hr__trace_format format, const char *name, void *out);
/* Frees what hr__import_stream_make made. */
void hr__import_stream_close(hr__import_stream *stream, size_t bytes);

/* Gives the event its time, from the time in the file, and counts it. HR_TOO_MANY. */
hr_status hr__import_time(hr__import_stream *stream, uint64_t file_ns, hr__event *event);

/* Formats with lines: the next line that is not empty. HR_NOT_READY at the end. */
hr_status hr__import_next_line(hr__import_stream *stream, hr__source_line *line);
/* Their hr__event_stream.fail: names the file and the last line. */
hr_status hr__import_fail_line(const hr__event_stream *stream, hr_status status);

/* HR_BAD_FORMAT for an allocation that is too large for any allocator. */
hr_status hr__import_check_bytes(uint64_t bytes);

#endif
