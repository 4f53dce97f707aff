/* tensorboard.h - recordings as TensorBoard logs, which libheadroom_analysis writes. */
#ifndef HR_RECORD_TENSORBOARD_H
#define HR_RECORD_TENSORBOARD_H

#include "headroom.h"

/* Finds the exporter: the hook that hr_analysis_register set, or libheadroom_analysis.so next to libheadroom.so. HR_UNSUPPORTED: there is none. */
hr_status hr__tensorboard_available(void);

/* Writes the trace file [path] as session [session] to the log directory [directory]. HR_IO, HR_NO_HOST_MEMORY, HR_UNSUPPORTED. */
hr_status hr__tensorboard_export(const char *path, const char *directory, const char *session);

/* Loads libheadroom_analysis.so, which sets the hook. Only the shared library has this function: a second library that a statically linked
 * program loaded would come with a second copy of libheadroom. */
hr_status hr__analysis_load(void) __attribute__((weak));

#endif
