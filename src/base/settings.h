/* settings.h - settings in the environment that could not be followed.
 *
 * No call fails because of a setting in the environment: the setting is ignored, and the reason is kept here for hr_environment_check. */
#ifndef HR_BASE_SETTINGS_H
#define HR_BASE_SETTINGS_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

/* [variable] (static text) was not followed, or not in all: the thread's last message says why. Keeps the first reason for each variable, and gives
 * the thread the message [before] back. */
void hr__setting_ignored(const char *variable, const hr__last *before);

/* "HEADROOM_LMS is ignored: ... . HEADROOM_THREADS is ignored: ...", cut to [capacity]. false: all were followed. */
bool hr__settings_ignored(char *out, size_t capacity);

/* The environment is read anew from here on. */
void hr__settings_forget(void);

#endif
