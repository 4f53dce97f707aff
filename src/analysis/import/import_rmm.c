/* import_rmm.c - logs of RMM's logging adaptor: Thread,Time,Action,Pointer,Size,Stream.
 *
 *     140202,10:57:36.150211,allocate,0x7f1a40000000,1048576,0x2
 *
 * Time is the time of day with a fraction of a second; pointers and streams are hexadecimal, or "(nil)". A log may start in the
 * middle of a run, and several memory resources may write to it, so inconsistent events are no errors. */
#include <string.h>

#include "analysis/import/fields.h"
#include "analysis/import/import.h"
#include "analysis/import/quote.h"
#include "core/base/status.h"

#define COLUMNS 6
#define DAY_NS (UINT64_C(24) * 3600 * 1000000000)

enum { THREAD, TIME, ACTION, POINTER, SIZE, STREAM };

typedef struct rmm_stream {
	hr__import_stream import;
	hr__numbering threads;
	uint64_t days; /* midnights that have passed */
	uint64_t last; /* time of day of the last line */
} rmm_stream;

/* Parses "HH:MM:SS" with an optional fraction after a point or colon, to ns since midnight. */
static hr_status read_time(const hr__field *field, uint64_t *out)
{
	uint64_t parts[3] = { 0 }, fraction = 0, unit = 1000000000;
	char quoted[HR__QUOTE_BYTES];
	const char *at = field->text;
	for (int i = 0; i < 3; i++) {
		if (i > 0 && *at++ != ':') goto bad;
		if (*at < '0' || *at > '9') goto bad;
		for (int digits = 0; *at >= '0' && *at <= '9' && digits < 2; digits++) parts[i] = parts[i] * 10 + (uint64_t)(*at++ - '0');
	}
	if (*at == '.' || *at == ':') at++;
	for (; *at >= '0' && *at <= '9'; at++) {
		unit /= 10;
		fraction += (uint64_t)(*at - '0') * unit;
	}
	if (at != field->text + field->length || parts[0] > 24 || parts[1] > 59 || parts[2] > 60) goto bad;
	*out = ((parts[0] * 60 + parts[1]) * 60 + parts[2]) * 1000000000u + fraction;
	return HR_OK;
bad:
	return hr__fail(HR_BAD_FORMAT, "Time is %s; expected HH:MM:SS.microseconds", hr__quote(field->text, field->length, quoted));
}

static hr_status read_pointer(const hr__field *field, const char *name, uint64_t *out)
{
	*out = 0;
	if (strcmp(field->text, "(nil)") == 0 || strcmp(field->text, "nullptr") == 0) return HR_OK;
	return hr__field_number(field, name, 16, out);
}

/* Sets the kind of [out]; 0: the line is no event. */
static hr_status take_action(rmm_stream *s, const hr__field *action, uint64_t pointer, uint64_t size, hr__event *out)
{
	char quoted[HR__QUOTE_BYTES];
	out->address = pointer;
	out->bytes = out->requested = size;
	if (strcmp(action->text, "allocate") == 0) {
		out->kind = size ? HR__EVENT_ALLOC : 0;
		s->import.stream.empty += size == 0;
		return hr__import_check_bytes(size);
	}
	/* Frees of NULL or of 0 bytes are allowed and ignored. */
	if (strcmp(action->text, "free") == 0) out->kind = pointer && size ? HR__EVENT_FREE : 0;
	else if (strcmp(action->text, "allocate failure") == 0) out->kind = HR__EVENT_ALLOC_FAILED;
	else
		return hr__fail(HR_BAD_FORMAT, "Action is %s; expected allocate, allocate failure or free", hr__quote(action->text, action->length, quoted));
	return HR_OK;
}

/* A log does not have dates: a time that is half a day earlier than the one before is of the next day. */
static uint64_t time_with_days(rmm_stream *s, uint64_t time)
{
	if (time < s->last && s->last - time > DAY_NS / 2) s->days++;
	s->last = time;
	return s->days * DAY_NS + time;
}

static hr_status take_line(rmm_stream *s, hr__source_line *line, hr__event *out)
{
	hr__field fields[COLUMNS + 1];
	uint64_t thread = 0, time = 0, pointer = 0, size = 0, stream = 0;
	size_t count = hr__fields_split(line, fields, COLUMNS + 1);
	if (count != COLUMNS)
		return hr__fail(HR_BAD_FORMAT, "%zu fields; expected %d (Thread,Time,Action,Pointer,Size,Stream)", count, COLUMNS);
	hr_status status = hr__field_number(&fields[THREAD], "Thread", 10, &thread);
	if (!status) status = read_time(&fields[TIME], &time);
	if (!status) status = read_pointer(&fields[POINTER], "Pointer", &pointer);
	if (!status) status = hr__field_number(&fields[SIZE], "Size", 10, &size);
	if (!status) status = read_pointer(&fields[STREAM], "Stream", &stream);
	if (!status) status = take_action(s, &fields[ACTION], pointer, size, out);
	if (status || !out->kind) return status;
	status = hr__import_time(&s->import, time_with_days(s, time), out);
	if (!status) status = hr__numbering_find(&s->threads, thread, "threads", &out->thread);
	return status ? status : hr__numbering_stream(&s->import.streams, stream, &out->stream);
}

/* ---- the stream ---- */

static hr_status next_event(hr__event_stream *stream, hr__event *out)
{
	rmm_stream *s = (rmm_stream *)stream;
	hr__source_line line;
	hr_status status;
	do {
		status = hr__import_next_line(&s->import, &line);
		if (status) return status;
		*out = (hr__event){ 0 };
		status = take_line(s, &line, out);
	} while (!status && !out->kind);
	return status ? hr__import_fail_line(stream, status) : HR_OK;
}

static void close_stream(hr__event_stream *stream)
{
	hr__numbering_free(&((rmm_stream *)stream)->threads);
	hr__import_stream_close((hr__import_stream *)stream, sizeof(rmm_stream));
}

static hr_status read_header(rmm_stream *s)
{
	hr__source_line line;
	hr_status status = hr__source_next_line(s->import.source, &line);
	if (status || strcmp(line.text, "Thread,Time,Action,Pointer,Size,Stream") == 0) return status;
	hr__fail(HR_BAD_FORMAT, "expected the header Thread,Time,Action,Pointer,Size,Stream and nothing behind it");
	return hr__source_fail_line(s->import.source, HR_BAD_FORMAT, line.number);
}

hr_status hr__import_rmm(hr__source *source, hr__event_stream **out)
{
	rmm_stream *s;
	hr_status status = hr__import_stream_make(source, sizeof *s, HR__FORMAT_RMM, "rmm", &s);
	if (status) return status;
	hr__event_stream *stream = &s->import.stream;
	hr__numbering_init(&s->threads);
	stream->summary.threads = HR__NUMBERING_MAX + 1;
	stream->next = next_event;
	stream->fail = hr__import_fail_line;
	stream->close = close_stream;
	status = read_header(s);
	if (status) close_stream(stream);
	else *out = stream;
	return status;
}
