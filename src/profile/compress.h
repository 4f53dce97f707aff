/* compress.h - trace files packed with zstd, and unpacked again. In pieces: memory does not grow with the file.
 *
 * A packed trace is an ordinary zstd file (FILE.hrt.zst) of a finished trace, so that `zstd -d` unpacks it too. The library is looked for
 * while the program runs (libzstd.so.1, which every Debian has): Headroom itself needs none, and a program without it can do everything else. */
#ifndef HR_PROFILE_COMPRESS_H
#define HR_PROFILE_COMPRESS_H

#include <stdbool.h>

#include "headroom.h"
#include "trace/trace.h"

#define HR__PACKED_SUFFIX ".zst"
#define HR__PACKED_MAGIC "\x28\xB5\x2F\xFD" /* 4 bytes without the final 0 */

/* HR_UNSUPPORTED when there is no libzstd.so.1. */
hr_status hr__pack_available(void);

/* Packs the file at [path] to [path].zst, which must not exist, and removes it when that is done. When it fails, the file is as it was and
 * the packed one is gone. HR_IO, HR_UNSUPPORTED, HR_NO_HOST_MEMORY. */
hr_status hr__pack(const char *path);

/* Unpacks to a new file. HR_BAD_FORMAT: the packed data is damaged, or grows beyond 256 times its size and 256 MiB, which no trace does.
 * HR_TRUNCATED: it ends in the middle; what came before is in the new file all the same, since a trace that is cut can be read. */
hr_status hr__unpack(const char *from, const char *to);

/* Whether the file begins as one that is packed. False also when it cannot be read. */
bool hr__is_packed(const char *path);

/* hr__trace_reader_open for both kinds of files: a packed one is unpacked first, to a file in $TMPDIR or /tmp whose name is removed before anything
 * is written to it, so that it goes with the process however that ends. What a packed file has too little of counts as cut: complete is false then. HR_BAD_FORMAT
 * when it holds more than 16 events for each byte and 262,144 more, or 256 bytes of records and 16 MiB more: memory stays in proportion to the file. */
hr_status hr__trace_reader_open_any(const char *path, hr__trace_reader **out);

#endif
