/* import_csv.c - the CSV of traces/README.md: time_us,action,id,bytes,stream and, in use traces, name.
 *
 *     a f          allocate, free
 *     s b r w e    step, op begin, read, write, op end: for the use tape, if there is one
 *
 * The format is Headroom's own and a trace starts with the program, so inconsistencies are errors. */
#include <string.h>

#include "core/base/checked.h"
#include "core/base/status.h"
#include "import.h"
#include "terminal/quote.h"

#define COLUMNS 5 /* without the optional name, which may contain commas */

enum { TIME, ACTION, ID, BYTES, STREAM, NAME };

struct event {
	char action;
	uint64_t id, bytes, stream;
	const char *name; /* "" if there is none; valid as long as the line */
};

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

static hr_status read_event(hr__source_line *line, size_t columns, struct event *event)
{
	hr__field fields[COLUMNS + 1];
	uint64_t time_us;
	size_t count = hr__fields_split(line, fields, columns);
	if (count != columns)
		return hr__fail(HR_BAD_FORMAT, "%zu fields; expected %zu (time_us,action,id,bytes,stream%s)", count, columns,
		                columns > COLUMNS ? ",name" : "");
	hr_status status = hr__field_number(&fields[TIME], "time_us", 10, &time_us);
	if (!status) status = read_action(&fields[ACTION], &event->action);
	if (!status) status = hr__field_number(&fields[ID], "id", 10, &event->id);
	if (!status && event->action == 'a') status = hr__field_number(&fields[BYTES], "bytes", 10, &event->bytes);
	else if (!status) status = read_optional(&fields[BYTES], "bytes", &event->bytes);
	if (!status) status = read_optional(&fields[STREAM], "stream", &event->stream);
	event->name = count > COLUMNS ? fields[NAME].text : "";
	if (!status && !hr__multiply(time_us, 1000, &time_us)) status = hr__fail(HR_BAD_FORMAT, "time_us is too large");
	return status;
}

static hr_status add_event(hr__tape *tape, const struct event *event)
{
	hr__tape_id id = { event->id, 0 };
	switch (event->action) {
	case 'a': return hr__tape_alloc(tape, id, event->bytes, event->stream, 0);
	case 'f': return hr__tape_release(tape, id, event->bytes, event->stream, 0);
	case 's': return hr__tape_step(tape, event->id);
	case 'b': return hr__tape_op_begin(tape, event->id, tape->use_tape ? hr_name_intern(event->name) : HR_NAME_NONE, 0);
	case 'e': return hr__tape_op_end(tape, event->id, event->bytes, 0);
	default: return hr__tape_access(tape, id, event->bytes, event->action == 'w', 0);
	}
}

/* Number of columns according to the header; 0 when the header is unknown. */
static size_t columns_of(const hr__source_line *header)
{
	if (strcmp(header->text, "time_us,action,id,bytes,stream") == 0) return COLUMNS;
	if (strcmp(header->text, "time_us,action,id,bytes,stream,name") == 0) return COLUMNS + 1;
	return 0;
}

hr_status hr__import_csv(hr__source *source, hr__tape *tape)
{
	char quoted[HR__QUOTE_BYTES];
	hr__source_line line;
	struct event event;
	hr_status status = hr__source_next_line(source, &line);
	if (status) return status;
	size_t columns = columns_of(&line);
	if (!columns) {
		hr__fail(HR_BAD_FORMAT, "the header is %s; expected time_us,action,id,bytes,stream and perhaps ,name",
		         hr__quote(line.text, line.length, quoted));
		return hr__source_fail_line(source, HR_BAD_FORMAT, line.number);
	}
	while ((status = hr__source_next_line(source, &line)) == HR_OK) {
		if (line.length == 0) continue;
		status = read_event(&line, columns, &event);
		if (!status) status = add_event(tape, &event);
		if (status) return hr__source_fail_line(source, status, line.number);
	}
	return status == HR_NOT_READY ? HR_OK : status;
}
