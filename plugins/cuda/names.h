/* names.h - the scope of an allocation: the code that makes it.
 *
 * The first that is known: the NVTX range that the thread is in, or a name scope of Headroom; the line of Python that is running, if the thread holds
 * the interpreter's lock; with HEADROOM_RUN_CALLERS=1 the function that called CUDA; the name of the thread, if it is not the first one. */
#ifndef HR_PLUGIN_CUDA_NAMES_H
#define HR_PLUGIN_CUDA_NAMES_H

#include "headroom.h"

/* HR_NAME_NONE: not known, or the thread's current scope, which hr_alloc adds itself. */
hr_name hr__names_scope(void);

#endif
