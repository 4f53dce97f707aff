/* publish.h - a background thread that keeps this process's segment (segment.h) up to date. */
#ifndef HR_PROFILE_PUBLISH_H
#define HR_PROFILE_PUBLISH_H

#include "headroom.h"

/* Creates the segment and starts the thread. HR_IO, HR_NO_HOST_MEMORY: nothing is left behind. HR_IN_USE: already running. */
hr_status hr__publish_start(void);

/* Stops the thread and removes the file. Does nothing if the thread is not running. Must not be called by two threads at once. */
void hr__publish_stop(void);

/* Called in the child after fork: the thread and the file belong to the parent. */
void hr__publish_forget(void);

#endif
