/* watch.h - steps, for who wants to know when they begin and end. */
#ifndef HR_LMS_WATCH_H
#define HR_LMS_WATCH_H

#include <stdbool.h>
#include <stdint.h>

/* Called before the event that tells of a step's beginning, and after that of its end, with the id of its allocator, the step's number and
 * no lock held. Steps of several allocators may overlap; those of one do not. NULL: nobody. */
typedef void (*hr__step_watch)(uint64_t allocator, uint64_t number, bool begins);
extern _Atomic(hr__step_watch) hr__step_watcher;

#endif
