/* import_csv.c - the CSV of traces/README.md: time_us,action,id,bytes,stream and, in use traces, name.
 *
 *     a f          allocate, free
 *     s b r w e    step, op begin, read, write, op end
 *
 * The format is Headroom's own and a trace starts with the program, so inconsistencies are errors. A CSV has ids instead of
 * addresses; each id gets an address of its own. A step ends where the next one begins. */
#include <string.h>

#include "analysis/import/fields.h"
#include "analysis/import/import.h"
#include "analysis/import/quote.h"
#include "core/base/checked.h"
#include "core/base/status.h"

#define COLUMNS 5 /* without the optional name, which may contain commas */
#define OPS_NS_MAX (UINT64_C(1) << 60) /* of all ops together: 36 years */

enum { TIME, ACTION, ID, BYTES, STREAM, NAME };

typedef struct csv_line {
	char action;
	uint64_t time_ns, id, bytes, stream;
	const char *name; /* "" if there is none; valid as long as the line */
} csv_line;

typedef struct csv_stream {
	hr__import_stream import;
	size_t columns;
	bool running;  /* inside of an op */
	uint64_t op;   /* its id */
	hr_name op_name;
	uint64_t ops_ns;
	bool stepped;
	uint64_t step; /* number of the last step */
} csv_stream;

/* ---- lines ---- */

static hr_status read_action(const hr__field *field, char *out)
{
	char quoted[HR__QUOTE_BYTES];
	if (field->length == 1 && strchr("afsbrwe", field->text[0])) {
		*out = field->text[0];
		return HR_OK;
	}
	return hr__fail(HR_BAD_FORMAT, "action is %s; expected a (allocate), f (free), or one of s b r w e in use traces",
	                hr__quote(field->text, field->length, quoted));
}

/* A field that may be empty, such as bytes of a free. */
static hr_status read_optional(const hr__field *field, const char *name, uint64_t *out)
{
	*out = 0;
	return field->length ? hr__field_number(field, name, 10, out) : HR_OK;
}

static hr_status read_line(hr__source_line *line, size_t columns, csv_line *out)
{
	hr__field fields[COLUMNS + 1];
	size_t count = hr__fields_split(line, fields, columns);
	if (count != columns)
		return hr__fail(HR_BAD_FORMAT, "%zu fields; expected %zu (time_us,action,id,bytes,stream%s)", count, columns,
		                columns > COLUMNS ? ",name" : "");
	hr_status status = hr__field_number(&fields[TIME], "time_us", 10, &out->time_ns);
	if (!status) status = read_action(&fields[ACTION], &out->action);
	if (!status) status = hr__field_number(&fields[ID], "id", 10, &out->id);
	if (!status && out->action == 'a') status = hr__field_number(&fields[BYTES], "bytes", 10, &out->bytes);
	else if (!status) status = read_optional(&fields[BYTES], "bytes", &out->bytes);
	if (!status) status = read_optional(&fields[STREAM], "stream", &out->stream);
	out->name = count > COLUMNS ? fields[NAME].text : "";
	if (!status && !hr__multiply(out->time_ns, 1000, &out->time_ns)) status = hr__fail(HR_BAD_FORMAT, "time_us is too large");
	return status;
}

/* ---- events ---- */

/* A different address for each id, 64 GiB apart for small ids, so that blocks do not overlap where they are drawn. The id is kept for
 * messages. */
static void set_block(hr__event *event, uint64_t id)
{
	uint64_t moved = id + 1;
	event->address = moved << 36 | moved >> 28;
	event->address2 = id;
}

static const char *quoted_op(const csv_stream *s, char quoted[HR__QUOTE_BYTES])
{
	const char *name = hr_name_text(s->op_name);
	return hr__quote(name, strlen(name), quoted);
}

static hr_status take_step(csv_stream *s, const csv_line *line, hr__event *out)
{
	char quoted[HR__QUOTE_BYTES];
	if (s->running)
		return hr__fail(HR_BAD_FORMAT, "step %llu begins inside op %llu (%s); expected the end of the op first", (unsigned long long)line->id,
		                (unsigned long long)s->op, quoted_op(s, quoted));
	if (s->stepped && line->id <= s->step)
		return hr__fail(HR_BAD_FORMAT, "step %llu begins after step %llu; expected a larger number", (unsigned long long)line->id,
		                (unsigned long long)s->step);
	s->stepped = true;
	s->step = line->id;
	out->kind = HR__EVENT_STEP;
	out->bytes = line->id;
	return HR_OK;
}

static hr_status take_op_begin(csv_stream *s, const csv_line *line, hr__event *out)
{
	char outer[HR__QUOTE_BYTES], inner[HR__QUOTE_BYTES];
	if (s->running)
		return hr__fail(HR_BAD_FORMAT, "op %llu (%s) begins inside op %llu (%s); expected the end of that first", (unsigned long long)line->id,
		                hr__quote(line->name, strlen(line->name), inner), (unsigned long long)s->op, quoted_op(s, outer));
	s->running = true;
	s->op = line->id;
	s->op_name = hr_name_intern(line->name);
	out->kind = HR__EVENT_OP_BEGIN;
	out->op = s->op_name;
	return HR_OK;
}

static hr_status take_op_end(csv_stream *s, const csv_line *line, hr__event *out)
{
	if (!s->running)
		return hr__fail(HR_BAD_FORMAT, "op %llu ends, but none is running; expected b (it begins) first", (unsigned long long)line->id);
	if (s->op != line->id)
		return hr__fail(HR_BAD_FORMAT, "op %llu ends while op %llu is running; expected the end of that", (unsigned long long)line->id,
		                (unsigned long long)s->op);
	if (!hr__add(s->ops_ns, line->bytes, &s->ops_ns) || s->ops_ns > OPS_NS_MAX)
		return hr__fail(HR_BAD_FORMAT, "op %llu takes %llu ns; all ops together can take 2^60", (unsigned long long)line->id,
		                (unsigned long long)line->bytes);
	s->running = false;
	out->kind = HR__EVENT_OP_END;
	out->op = s->op_name;
	out->bytes = line->bytes;
	return HR_OK;
}

static hr_status take_access(const csv_stream *s, const csv_line *line, hr__event *out)
{
	bool writes = line->action == 'w';
	if (!s->running)
		return hr__fail(HR_BAD_FORMAT, "block %llu is %s outside of an op; expected b (an op begins) first", (unsigned long long)line->id,
		                writes ? "written" : "read");
	out->kind = writes ? HR__EVENT_WRITE : HR__EVENT_READ;
	set_block(out, line->id);
	out->bytes = line->bytes;
	out->op = s->op_name;
	return HR_OK;
}

/* An allocation inside of an op belongs to that op. */
static hr_status take_block(csv_stream *s, const csv_line *line, hr__event *out)
{
	bool allocates = line->action == 'a';
	out->kind = allocates ? HR__EVENT_ALLOC : HR__EVENT_FREE;
	set_block(out, line->id);
	out->bytes = out->requested = line->bytes;
	if (allocates && s->running) out->op = s->op_name;
	if (allocates && line->bytes == 0) return hr__fail(HR_BAD_FORMAT, "an allocation of 0 bytes; expected at least 1");
	hr_status status = allocates ? hr__import_check_bytes(line->bytes) : HR_OK;
	return status ? status : hr__numbering_stream(&s->import.streams, line->stream, &out->stream);
}

static hr_status take_line(csv_stream *s, const csv_line *line, hr__event *out)
{
	hr_status status = hr__import_time(&s->import, line->time_ns, out);
	if (status) return status;
	switch (line->action) {
	case 's': return take_step(s, line, out);
	case 'b': return take_op_begin(s, line, out);
	case 'e': return take_op_end(s, line, out);
	case 'r':
	case 'w': return take_access(s, line, out);
	default: return take_block(s, line, out);
	}
}

/* ---- the stream ---- */

static hr_status end(const csv_stream *s)
{
	char quoted[HR__QUOTE_BYTES];
	if (!s->running) return HR_NOT_READY;
	hr__fail(HR_TRUNCATED, "the trace ends inside op %llu (%s); expected e (the op ends)", (unsigned long long)s->op, quoted_op(s, quoted));
	return hr__source_fail(s->import.source, HR_TRUNCATED);
}

static hr_status next_event(hr__event_stream *stream, hr__event *out)
{
	csv_stream *s = (csv_stream *)stream;
	hr__source_line line;
	csv_line read;
	hr_status status = hr__import_next_line(&s->import, &line);
	if (status) return status == HR_NOT_READY ? end(s) : status;
	*out = (hr__event){ 0 };
	status = read_line(&line, s->columns, &read);
	if (!status) status = take_line(s, &read, out);
	return status ? hr__import_fail_line(stream, status) : HR_OK;
}

static void close_stream(hr__event_stream *stream)
{
	hr__import_stream_close((hr__import_stream *)stream, sizeof(csv_stream));
}

/* Number of columns according to the header; 0 when the header is unknown. */
static size_t columns_of(const hr__source_line *header)
{
	if (strcmp(header->text, "time_us,action,id,bytes,stream") == 0) return COLUMNS;
	if (strcmp(header->text, "time_us,action,id,bytes,stream,name") == 0) return COLUMNS + 1;
	return 0;
}

static hr_status read_header(csv_stream *s)
{
	char quoted[HR__QUOTE_BYTES];
	hr__source_line line;
	hr_status status = hr__source_next_line(s->import.source, &line);
	if (status) return status;
	s->columns = columns_of(&line);
	if (s->columns) return HR_OK;
	hr__fail(HR_BAD_FORMAT, "the header is %s; expected time_us,action,id,bytes,stream and perhaps ,name", hr__quote(line.text, line.length, quoted));
	return hr__source_fail_line(s->import.source, HR_BAD_FORMAT, line.number);
}

hr_status hr__import_csv(hr__source *source, hr__event_stream **out)
{
	csv_stream *s;
	hr_status status = hr__import_stream_make(source, sizeof *s, HR__FORMAT_CSV, "csv", &s);
	if (status) return status;
	hr__event_stream *stream = &s->import.stream;
	stream->strict = true;
	stream->next = next_event;
	stream->fail = hr__import_fail_line;
	stream->close = close_stream;
	status = read_header(s);
	if (status) close_stream(stream);
	else *out = stream;
	return status;
}
