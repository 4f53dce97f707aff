/* record.h - recording as the environment asks for it (environment.c). Called through hr__hooks_table. */
#ifndef HR_RECORD_RECORD_H
#define HR_RECORD_RECORD_H

#include <stdint.h>

#include "headroom.h"
#include "core/base/shared.h"

#define HR__THREADS_MAX 64u

void hr__record_begin(void);
hr_status hr__record_end(void);
void hr__record_forget(void);

/* Threads that compute ops: HEADROOM_THREADS, or the number of processors; at most HR__THREADS_MAX. */
HR__SHARED uint32_t hr__threads_wanted(void);

#endif
