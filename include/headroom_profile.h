/* headroom_profile.h - recording what happens to memory in a file.
 *
 * One recording at a time covers every allocator of the process. `headroom replay FILE` runs it again. The rules of headroom.h hold
 * here too. */
#ifndef HEADROOM_PROFILE_H
#define HEADROOM_PROFILE_H

#include "headroom.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Starts recording every event of every allocator to a new file at [path] (docs/trace-format.md). What is allocated already is
 * written first. The file is readable at any moment, also after the process is killed. HR_IN_USE while one is being recorded,
 * HR_IO when the file exists, cannot be made or the disk is full. */
HR_API hr_status hr_trace_start(const char *path);

/* Ends the recording. HR_IO when something could not be written meanwhile (the disk filled up): the file holds what came before. */
HR_API hr_status hr_trace_stop(void);

#ifdef __cplusplus
}
#endif

#endif
