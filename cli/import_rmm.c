/* import_rmm.c - logs of RMM's logging adaptor: Thread,Time,Action,Pointer,Size,Stream.
 *
 *     140202,10:57:36.150211,allocate,0x7f1a40000000,1048576,0x2
 *
 * Time is the time of day with a fraction of a second; pointers and streams are hexadecimal, or "(nil)". A log may start in the
 * middle of a run, and several memory resources may write to it, so frees of unknown blocks are skipped and counted. */
#include <string.h>

#include "core/base/checked.h"
#include "core/base/status.h"
#include "import.h"
#include "terminal/quote.h"

#define COLUMNS 6

enum { THREAD, TIME, ACTION, POINTER, SIZE, STREAM };

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

static hr_status add_line(hr__source_line *line, hr__tape *tape)
{
	hr__field fields[COLUMNS + 1];
	char quoted[HR__QUOTE_BYTES];
	uint64_t thread = 0, time = 0, pointer = 0, size = 0, stream = 0;
	size_t count = hr__fields_split(line, fields, COLUMNS + 1);
	if (count != COLUMNS)
		return hr__fail(HR_BAD_FORMAT, "%zu fields; expected %d (Thread,Time,Action,Pointer,Size,Stream)", count, COLUMNS);
	hr_status status = hr__field_number(&fields[THREAD], "Thread", 10, &thread);
	if (!status) status = read_time(&fields[TIME], &time);
	if (!status) status = read_pointer(&fields[POINTER], "Pointer", &pointer);
	if (!status) status = hr__field_number(&fields[SIZE], "Size", 10, &size);
	if (!status) status = read_pointer(&fields[STREAM], "Stream", &stream);
	if (status) return status;

	hr__tape_id id = { pointer, 0 };
	const hr__field *action = &fields[ACTION];
	if (strcmp(action->text, "allocate") == 0) return hr__tape_alloc(tape, id, size, stream, thread);
	/* Frees of NULL or of 0 bytes are allowed and ignored. */
	if (strcmp(action->text, "free") == 0) return pointer && size ? hr__tape_release(tape, id, size, stream, thread) : HR_OK;
	if (strcmp(action->text, "allocate failure") == 0) {
		tape->failed_allocs++;
		return HR_OK;
	}
	return hr__fail(HR_BAD_FORMAT, "Action is %s; expected allocate, allocate failure or free",
	                hr__quote(action->text, action->length, quoted));
}

hr_status hr__import_rmm(hr__source *source, hr__tape *tape)
{
	hr__source_line line;
	hr_status status = hr__source_next_line(source, &line);
	if (!status && strcmp(line.text, "Thread,Time,Action,Pointer,Size,Stream") != 0) {
		hr__fail(HR_BAD_FORMAT, "expected the header Thread,Time,Action,Pointer,Size,Stream and nothing behind it");
		return hr__source_fail_line(source, HR_BAD_FORMAT, line.number);
	}
	while (!status && (status = hr__source_next_line(source, &line)) == HR_OK) {
		if (line.length == 0) continue;
		status = add_line(&line, tape);
		if (status) return hr__source_fail_line(source, status, line.number);
	}
	return status == HR_NOT_READY ? HR_OK : status;
}
