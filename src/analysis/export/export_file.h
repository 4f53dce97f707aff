/* export_file.h - an output file that appears complete or not at all.
 *
 * Output goes to a new file in the same directory, "PATH.<process>-0.part", which is renamed to PATH at the end. So PATH is the old
 * file or the new one at any moment, even if the process is killed. The file has mode 0600, like traces, because it holds the same
 * names and addresses. It is not synced: after a power failure either of the two may be there.
 *
 * Only a regular file is replaced. A symbolic link, a pipe or a directory at PATH is refused. A character device, and the names of
 * this process's own descriptors (/dev/stdout, /dev/stderr, /dev/fd/N, /proc/self/fd/N), are written to directly. */
#ifndef HR_PROFILE_EXPORT_FILE_H
#define HR_PROFILE_EXPORT_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "headroom.h"

typedef struct hr__export_file hr__export_file;

/* HR_IO, HR_NO_HOST_MEMORY, HR_INVALID_ARGUMENT for a missing path. [path] is copied. */
hr_status hr__export_file_open(const char *path, hr__export_file **out);

/* Returns false after a write failed; hr__export_file_close reports the error. hr__export_file_write is a hr__json_sink. */
bool hr__export_file_write(void *file, const char *bytes, size_t length);
bool hr__export_file_print(hr__export_file *file, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Finishes the file. [status] is the result of producing the contents: if it is not HR_OK, the output is discarded and [status] is
 * returned with its message. HR_IO when a write failed. */
hr_status hr__export_file_close(hr__export_file *file, hr_status status);

/* Makes a directory and its missing parents. HR_IO, HR_NO_HOST_MEMORY. */
hr_status hr__export_make_folder(const char *path);

#endif
