/* compress.h - packs trace files with zstd, and unpacks them. Both work in pieces, so memory use does not grow with the file.
 *
 * A packed trace (FILE.hrt.zst) is an ordinary zstd file of a finished trace; `zstd -d` unpacks it too. libzstd.so.1, which every
 * Debian system has, is loaded at run time. Without it only packing and unpacking are unavailable. */
#ifndef HR_PROFILE_COMPRESS_H
#define HR_PROFILE_COMPRESS_H

#include <stdbool.h>

#include "headroom.h"
#include "trace/trace.h"

#define HR__PACKED_SUFFIX ".zst"
#define HR__PACKED_MAGIC "\x28\xB5\x2F\xFD" /* 4 bytes, without the terminating 0 */

/* HR_UNSUPPORTED when there is no libzstd.so.1. */
hr_status hr__pack_available(void);

/* Packs the file at [path] to [path].zst, which must not exist, then removes the file at [path]. On failure the original file is
 * unchanged and the packed file is removed. HR_IO, HR_UNSUPPORTED, HR_NO_HOST_MEMORY. */
hr_status hr__pack(const char *path);

/* Unpacks to a new file. HR_BAD_FORMAT: the packed data is damaged, or unpacks to more than both 256 times its size and 256 MiB,
 * which no trace does. HR_TRUNCATED: the packed data is incomplete; the new file holds what could be unpacked, because a truncated
 * trace can be read. */
hr_status hr__unpack(const char *from, const char *to);

/* Whether the file begins with the magic of a packed file. False also when the file cannot be read. */
bool hr__is_packed(const char *path);

/* hr__trace_reader_open for plain and packed files. A packed file is first unpacked to a file in $TMPDIR or /tmp, which is unlinked
 * before anything is written to it, so that it disappears when the process ends in any way. A packed file that is incomplete reads
 * as a truncated trace, with `complete` false. To keep memory proportional to the file, HR_BAD_FORMAT is returned for a packed file
 * with more than 16 events per byte plus 262,144, or more than 256 bytes of records per byte plus 16 MiB. */
hr_status hr__trace_reader_open_any(const char *path, hr__trace_reader **out);

#endif
