/* source.h - the bytes of a file, plain or gzip, or of memory, read as lines or as pieces.
 *
 * Files are not trusted: memory use is bounded for every input, lines have at most HR__SOURCE_LINE_MAX bytes, and every error
 * message names the file and the position in it. gzip is recognised by content. */
#ifndef HR_IMPORT_SOURCE_H
#define HR_IMPORT_SOURCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "headroom.h"

#define HR__SOURCE_LINE_MAX 65536u

typedef struct hr__source hr__source;

/* Opens a file; "-" is standard input. HR_IO when it is missing, unreadable or a directory, HR_BAD_FORMAT when it is empty,
 * HR_UNSUPPORTED for gzip in a program built without zlib. */
hr_status hr__source_open(const char *path, hr__source **out);
/* Opens bytes in memory, which must outlive the source. */
hr_status hr__source_open_memory(const void *bytes, size_t size, hr__source **out);
void hr__source_close(hr__source *source);

bool hr__source_is_gzip(const hr__source *source);
/* An upper bound of the unpacked bytes; UINT64_MAX where the size is unknown, as of a pipe. */
uint64_t hr__source_bytes_max(const hr__source *source);
/* The memory that was opened; NULL for a file or gzip data. */
const void *hr__source_memory(const hr__source *source, size_t *size);

/* Returns the buffered bytes that were not read yet: at least 1, usually thousands; *count is 0 at the end. They are valid until
 * the next call. hr__source_skip consumes up to that many. */
hr_status hr__source_peek(hr__source *source, const char **bytes, size_t *count);
void hr__source_skip(hr__source *source, size_t count);
/* Offset of the next byte, from 0, in the unpacked data. */
uint64_t hr__source_offset(const hr__source *source);

/* The next line, without its terminator (LF or CR LF), followed by a 0 that is not counted. HR_NOT_READY at the end of the file.
 * HR_BAD_FORMAT when the line is too long or has a NUL byte. */
typedef struct hr__source_line {
	char *text; /* may be modified by the caller; valid until the next call */
	size_t length;
	uint64_t number; /* from 1 */
} hr__source_line;
hr_status hr__source_next_line(hr__source *source, hr__source_line *line);

/* Prefix the last message with the position: "traces/x.csv: line 12: ". */
hr_status hr__source_fail_line(const hr__source *source, hr_status status, uint64_t line);
hr_status hr__source_fail_byte(const hr__source *source, hr_status status, uint64_t offset);
hr_status hr__source_fail(const hr__source *source, hr_status status);

#endif
