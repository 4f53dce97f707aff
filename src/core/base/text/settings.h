/* settings.h - environment settings that were ignored.
 *
 * No call fails because of an environment setting: the setting is ignored, and the reason is kept here for hr_environment_check. */
#ifndef HR_BASE_SETTINGS_H
#define HR_BASE_SETTINGS_H

#include <stdbool.h>
#include <stddef.h>

#include "core/base/status.h"

/* Records that [variable] (static text) was ignored, fully or in part; the reason is the thread's last message. Keeps the first
 * reason for each variable. Then restores the thread's last message from [before]. */
void hr__setting_ignored(const char *variable, const hr__last *before);

/* "HEADROOM_LMS is ignored: ... . HEADROOM_THREADS is ignored: ...", cut to [capacity]. Returns false when no setting was
 * ignored. */
bool hr__settings_ignored(char *out, size_t capacity);

/* Forgets all reasons, because the environment is read again. */
void hr__settings_forget(void);

#endif
