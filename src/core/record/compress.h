/* compress.h - packs trace files with zstd, and unpacks them. Both work in pieces, so memory use does not grow with the file.
 *
 * A packed trace (FILE.hrt.zst) is an ordinary zstd file of a finished trace; `zstd -d` unpacks it too. libzstd.so.1, which every
 * Debian system has, is loaded at run time. Without it only packing and unpacking are unavailable. */
#ifndef HR_PROFILE_COMPRESS_H
#define HR_PROFILE_COMPRESS_H

#include <stdbool.h>
#include <stdint.h>

#include "headroom.h"
#include "core/base/shared.h"

#define HR__PACKED_SUFFIX ".zst"
#define HR__PACKED_GROWTH_MAX 256u          /* unpacked bytes per packed byte */
#define HR__PACKED_MAGIC "\x28\xB5\x2F\xFD" /* 4 bytes, without the terminating 0 */

/* HR_UNSUPPORTED when there is no libzstd.so.1. */
HR__SHARED hr_status hr__pack_available(void);

/* Packs the file at [path] to [path].zst, which must not exist, then removes the file at [path]. On failure the original file is
 * unchanged and the packed file is removed. HR_IO, HR_UNSUPPORTED, HR_NO_HOST_MEMORY. */
hr_status hr__pack(const char *path);

/* Whether the file begins with the magic of a packed file. False also when the file cannot be read. */
HR__SHARED bool hr__is_packed(const char *path);

/* Creates a new file for hr__unpack_to. HR_IO when it exists or cannot be created. */
HR__SHARED hr_status hr__packed_create(const char *path, int *out);

/* Unpacks to the new file [to], which is open at [to_fd] and remains the caller's. *size receives the size of the new file, also when the packed
 * file is incomplete; *packed, the size of the packed file. HR_BAD_FORMAT: the packed data is damaged, or unpacks to more than both 256
 * times its size and 256 MiB, which no trace does. HR_TRUNCATED: the packed data is incomplete; the new file holds what could be
 * unpacked, because a truncated trace can be read. */
HR__SHARED hr_status hr__unpack_to(const char *from, const char *to, int to_fd, uint64_t *size, uint64_t *packed);

#endif
