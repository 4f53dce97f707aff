/* publish.h - keeps this process's segment (segment.h) up to date, by a thread of its own. */
#ifndef HR_PROFILE_PUBLISH_H
#define HR_PROFILE_PUBLISH_H

#include "headroom.h"

/* Makes the segment and starts the thread. HR_IO, HR_NO_HOST_MEMORY; nothing is left behind then. HR_IN_USE: it runs already. */
hr_status hr__publish_start(void);

/* Ends the thread and removes the file. Nothing happens when it does not run. Not to be called by two threads at once. */
void hr__publish_stop(void);

/* In the child after fork: the thread and the file are the parent's. */
void hr__publish_forget(void);

#endif
