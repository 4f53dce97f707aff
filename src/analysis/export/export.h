/* export.h - writes a capture in the formats of other tools.
 *
 *     xplane       a log directory for TensorBoard and XProf: LOGDIR/plugins/profile/RUN/HOST.xplane.pb
 *     chrome       Chrome's trace JSON, for Perfetto: counters of memory in use, slices of ops and steps
 *     memory_viz   a memory snapshot as JSON, for PyTorch's viewer
 *     rmm          the log of RMM's logging adaptor, for RMM's replay and `headroom replay`
 *     pprof        a profile.proto, for pprof: bytes at the peak and at the end by scope, op and tag
 *
 * A file appears under its name only when it is complete, and replaces an older file atomically; a failed export leaves the older
 * file. Bytes of names that are not UTF-8 are exported as U+FFFD. */
#ifndef HR_PROFILE_EXPORT_H
#define HR_PROFILE_EXPORT_H

#include "analysis/capture/capture.h"

#define HR__EXPORT_TABLE(X) X(XPLANE, "xplane") X(CHROME, "chrome") X(MEMORY_VIZ, "memory_viz") X(RMM_CSV, "rmm") X(PPROF, "pprof")

enum hr__export_format {
#define HR__EXPORT_ENUM(id, name) HR__EXPORT_##id,
	HR__EXPORT_TABLE(HR__EXPORT_ENUM)
#undef HR__EXPORT_ENUM
	HR__EXPORT_FORMATS
};

const char *hr__export_name(enum hr__export_format format); /* "chrome" */

/* The format with that name. HR_INVALID_ARGUMENT: the message lists the valid names. */
hr_status hr__export_find(const char *name, enum hr__export_format *out);

/* Writes the capture to [path]: a file, a character device or a descriptor of this process (export_file.h). For XPLANE [path] is
 * the log directory, which is created if it does not exist. HR_IO when [path] cannot be written or the disk is full, HR_TOO_MANY
 * for an XPlane beyond protobuf's limit of 2 GiB, HR_NO_HOST_MEMORY. */
hr_status hr__export_write(const hr__capture *capture, enum hr__export_format format, const char *path);

#endif
