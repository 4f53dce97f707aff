/* import.c - recognises the format of a trace. See import.h. */
#include "import.h"

#include <string.h>

#include "analysis/import/pickle.h"
#include "core/base/status.h"
#include "core/record/compress.h"
#include "terminal/quote.h"
#include "core/trace/format.h"

#define CSV_HEADER "time_us,action,id,bytes,stream"
#define RMM_HEADER "Thread,Time,Action,Pointer,Size,Stream"

/* ---- fields ---- */

size_t hr__fields_split(hr__source_line *line, hr__field *fields, size_t most)
{
	char *at = line->text, *end = line->text + line->length;
	size_t count = 0;
	for (;;) {
		char *comma = count + 1 < most ? memchr(at, ',', (size_t)(end - at)) : NULL;
		fields[count++] = (hr__field){ at, (size_t)((comma ? comma : end) - at) };
		if (!comma) return count;
		*comma = 0;
		at = comma + 1;
	}
}

static int digit_of(char c)
{
	if (c >= '0' && c <= '9') return c - '0';
	if (c >= 'a' && c <= 'f') return c - 'a' + 10;
	if (c >= 'A' && c <= 'F') return c - 'A' + 10;
	return 16;
}

hr_status hr__field_number(const hr__field *field, const char *name, int base, uint64_t *out)
{
	const char *at = field->text, *end = field->text + field->length;
	char quoted[HR__QUOTE_BYTES];
	uint64_t value = 0;
	if (base == 16 && end - at > 2 && at[0] == '0' && (at[1] == 'x' || at[1] == 'X')) at += 2;
	bool good = at < end, fits = true;
	for (; good && at < end; at++) {
		int digit = digit_of(*at);
		good = digit < base;
		fits = fits && !__builtin_mul_overflow(value, (uint64_t)base, &value) &&
		       !__builtin_add_overflow(value, (uint64_t)digit, &value);
	}
	if (good && fits) {
		*out = value;
		return HR_OK;
	}
	hr__quote(field->text, field->length, quoted);
	if (good) return hr__fail(HR_BAD_FORMAT, "%s is %s, which does not fit in 64 bits", name, quoted);
	return hr__fail(HR_BAD_FORMAT, "%s is %s; expected a %snumber", name, quoted, base == 16 ? "hexadecimal " : "whole ");
}

/* ---- formats ---- */

static bool begins_with(const char *bytes, size_t count, const char *prefix)
{
	size_t length = strlen(prefix);
	return count >= length && memcmp(bytes, prefix, length) == 0;
}

static hr_status unknown_kind(hr__source *source)
{
	char quoted[HR__QUOTE_BYTES];
	hr__source_line line;
	hr_status status = hr__source_next_line(source, &line);
	if (status && status != HR_NOT_READY) return status;
	hr__fail(HR_BAD_FORMAT,
	         "expected the header " CSV_HEADER ", or that of an RMM log, a PyTorch snapshot, or a Headroom trace; found %s",
	         hr__quote(status ? "" : line.text, status ? 0 : line.length, quoted));
	return hr__source_fail_line(source, HR_BAD_FORMAT, 1);
}

static hr_status begin_uses(const hr__import_options *options, hr__tape *tape)
{
	tape->use_tape = options->uses;
	return options->uses ? hr__uses_init(options->uses, !tape->partial) : HR_OK;
}

/* Reads a source of any format. [tape] is always initialised, also on failure. */
static hr_status import(hr__source *source, const hr__import_options *options, hr__tape *tape)
{
	static const hr__import_options defaults = { .device_index = -1 };
	const char *bytes;
	size_t count, blank = 0;
	hr__tape_init(tape, HR__TAPE_CSV);
	hr_status status = hr__source_peek(source, &bytes, &count);
	if (status) return status;
	if (begins_with(bytes, count, "\xEF\xBB\xBF")) {
		hr__source_skip(source, 3);
		if ((status = hr__source_peek(source, &bytes, &count)) != HR_OK) return status;
	}
	while (blank < count && strchr(" \t\r\n", bytes[blank]) && bytes[blank]) blank++;
	if (!options) options = &defaults;

	if (begins_with(bytes, count, CSV_HEADER)) {
		status = begin_uses(options, tape);
		if (!status) status = hr__import_csv(source, tape);
	} else if (begins_with(bytes, count, RMM_HEADER)) {
		hr__tape_init(tape, HR__TAPE_RMM);
		status = hr__import_rmm(source, tape);
	} else if (blank < count && (bytes[blank] == '{' || (unsigned char)bytes[0] == HR__PICKLE_FIRST_BYTE)) {
		hr__tape_init(tape, HR__TAPE_TORCH);
		status = hr__import_torch(source, options, tape);
	} else if (begins_with(bytes, count, HR__TRACE_MAGIC) || (hr__source_path(source) && begins_with(bytes, count, HR__PACKED_MAGIC))) {
		hr__tape_init(tape, HR__TAPE_HEADROOM);
		status = begin_uses(options, tape);
		if (!status) status = hr__import_headroom(source, options, tape);
	} else {
		status = unknown_kind(source);
	}
	if (status) return status;
	tape->gzip = hr__source_is_gzip(source);
	status = hr__tape_finish(tape);
	if (!status && tape->use_tape) status = hr__uses_finish(tape->use_tape);
	return status ? hr__source_fail(source, status) : HR_OK;
}

static hr_status import_and_close(hr__source *source, const hr__import_options *options, hr__tape *tape)
{
	hr_status status = import(source, options, tape);
	if (status) {
		hr__tape_free(tape);
		if (options && options->uses) hr__uses_free(options->uses);
	}
	hr__source_close(source);
	return status;
}

/* Leaves nothing to free if the file cannot be opened. */
static void clear_uses(const hr__import_options *options)
{
	if (options && options->uses) *options->uses = (hr__uses){ 0 };
}

hr_status hr__import_file(const char *path, const hr__import_options *options, hr__tape *tape)
{
	hr__source *source;
	clear_uses(options);
	hr_status status = hr__source_open(path, &source);
	return status ? status : import_and_close(source, options, tape);
}

hr_status hr__import_memory(const void *bytes, size_t size, const hr__import_options *options, hr__tape *tape)
{
	hr__source *source;
	clear_uses(options);
	hr_status status = hr__source_open_memory(bytes, size, &source);
	return status ? status : import_and_close(source, options, tape);
}
