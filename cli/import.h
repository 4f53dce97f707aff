/* import.h - reads a recorded trace of any supported format into a tape.
 *
 *     CSV of traces/      time_us,action,id,bytes,stream[,name]                          import_csv.c
 *     RMM log             Thread,Time,Action,Pointer,Size,Stream                         import_rmm.c
 *     PyTorch snapshot    {"device_traces": [[{"action": "alloc", ...}]]}, or a pickle   import_torch.c
 *     Headroom trace      docs/trace-format.md                                           import_headroom.c
 *
 * The format is recognised by content, never by file name; all but the last may be packed with gzip. Any bytes are safe to read.
 * Every error message names the file, the position in it, and what was expected there. */
#ifndef HR_CLI_IMPORT_H
#define HR_CLI_IMPORT_H

#include "source.h"
#include "tape.h"

typedef struct hr__import_options {
	int64_t device_index; /* index of the device in a file that has several; -1: the one with most events */
	hr__uses *uses;       /* filled with the file's use events; NULL: not needed */
} hr__import_options;

/* Fills [tape], to be freed with hr__tape_free, and options->uses, to be freed with hr__uses_free. [options] may be NULL. On
 * failure there is nothing to free. */
hr_status hr__import_file(const char *path, const hr__import_options *options, hr__tape *tape);
hr_status hr__import_memory(const void *bytes, size_t size, const hr__import_options *options, hr__tape *tape);

/* ---- the formats: each function reads a whole source, including its header, into an initialised tape ---- */

hr_status hr__import_csv(hr__source *source, hr__tape *tape);
hr_status hr__import_rmm(hr__source *source, hr__tape *tape);
hr_status hr__import_torch(hr__source *source, const hr__import_options *options, hr__tape *tape);
hr_status hr__import_headroom(hr__source *source, const hr__import_options *options, hr__tape *tape);

/* ---- shared by the text formats ---- */

typedef struct hr__field {
	char *text; /* followed by a 0 */
	size_t length;
} hr__field;

/* Splits [line] at its first [most] - 1 commas, which are overwritten. Returns the number of fields. */
size_t hr__fields_split(hr__source_line *line, hr__field *fields, size_t most);

/* Parses a whole field as an unsigned number, decimal or (with [base] 16, with or without 0x) hexadecimal. HR_BAD_FORMAT with a
 * message that calls the field [name]. */
hr_status hr__field_number(const hr__field *field, const char *name, int base, uint64_t *out);

#endif
