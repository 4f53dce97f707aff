/* watch.h - steps, for who wants to know when they begin and end. */
#ifndef HR_LMS_WATCH_H
#define HR_LMS_WATCH_H

#include <stdbool.h>
#include <stdint.h>

/* Called before the event that tells of a step's beginning, and after that of its end, with the step's number and no lock held. Steps of
 * several allocators may overlap. NULL: nobody. */
extern _Atomic(void (*)(uint64_t number, bool begins)) hr__step_watcher;

#endif
