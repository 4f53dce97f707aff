/* captures.h - whether streams of the program record graphs.
 *
 * While one does, libheadroom's allocator must not touch the streams: an event that it records in a stream would become part of the graph, and waiting
 * for one may end the recording. So memory that is requested meanwhile comes from the driver. Memory that the graph itself allocates exists only
 * while the graph runs, and is not recorded. */
#ifndef HR_PLUGIN_CUDA_CAPTURES_H
#define HR_PLUGIN_CUDA_CAPTURES_H

#include <stdbool.h>

#include "driver_calls.h"

/* Whether any stream of the process records a graph. One load. */
bool hr__captures_active(void);

/* Whether [stream] does, or the driver does not say. [per_thread]: stream 0 is the thread's own default stream. */
bool hr__captures_has(CUstream stream, bool per_thread);

/* A stream was destroyed: what it recorded is gone. */
void hr__captures_end_stream(CUstream stream);

#endif
