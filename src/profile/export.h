/* export.h - a capture written in the formats of other tools.
 *
 *     xplane       a log directory for TensorBoard and XProf: LOGDIR/plugins/profile/RUN/HOST.xplane.pb
 *     chrome       Chrome's trace JSON, for Perfetto: counters of memory in use, slices of ops and steps
 *     memory_viz   a memory snapshot as JSON, for PyTorch's viewer
 *     rmm          the log of RMM's logging adaptor, for its replay and ours
 *     pprof        a profile.proto, for pprof: bytes at the peak and at the end by scope, op and tag
 *
 * A file appears under its name when it is whole, in the place of one that had the name before; a failing export leaves what was there. Names with
 * bytes that are no UTF-8 are exported with U+FFFD in their place. */
#ifndef HR_PROFILE_EXPORT_H
#define HR_PROFILE_EXPORT_H

#include "profile/capture.h"

#define HR__EXPORT_TABLE(X)                                             \
	X(XPLANE, "xplane", "a log directory for TensorBoard and XProf")    \
	X(CHROME, "chrome", "trace JSON for Perfetto and chrome://tracing") \
	X(MEMORY_VIZ, "memory_viz", "a snapshot for PyTorch's memory_viz")  \
	X(RMM_CSV, "rmm", "a log as RMM writes it, for `headroom replay`")  \
	X(PPROF, "pprof", "a profile for pprof")

enum hr__export_format {
#define HR__EXPORT_ENUM(name, text, what) HR__EXPORT_##name,
	HR__EXPORT_TABLE(HR__EXPORT_ENUM)
#undef HR__EXPORT_ENUM
	HR__EXPORT_FORMATS
};

const char *hr__export_name(enum hr__export_format format);        /* "chrome" */
const char *hr__export_description(enum hr__export_format format); /* one line, for a list of them */

/* The format of that name. HR_INVALID_ARGUMENT: the message lists those there are. */
hr_status hr__export_find(const char *name, enum hr__export_format *out);

/* Writes it to [path]: a file, or a pipe or device that is there. For XPLANE [path] is the log directory, which is made when it is not there.
 * HR_IO when that cannot be written or the disk is full, HR_TOO_MANY for an XPlane beyond the 2 GiB of a protobuf, HR_NO_HOST_MEMORY. */
hr_status hr__export_write(const hr__capture *capture, enum hr__export_format format, const char *path);

#endif
