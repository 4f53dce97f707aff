/* status.h - how functions report errors.
 *
 * Functions return hr_status (the table is in headroom.h). The details, a sentence that names the object and the remedy, are the
 * thread's last message. hr__fail() and hr__fail_in() set both, so every error has a message. */
#ifndef HR_BASE_STATUS_H
#define HR_BASE_STATUS_H

#include <stdarg.h>

#include "headroom.h"
#include "core/base/shared.h"

/* Sets the calling thread's last message (truncated to 511 bytes, never allocates) and returns [status], which must not be
 * HR_OK. */
HR__SHARED hr_status hr__fail(hr_status status, const char *format, ...) __attribute__((format(printf, 2, 3), cold));

/* As hr__fail, but puts the new text before the existing message: "text: old message". */
HR__SHARED hr_status hr__fail_in(hr_status status, const char *format, ...) __attribute__((format(printf, 2, 3), cold));

/* Clears the calling thread's last message and status. */
HR__SHARED void hr__last_clear(void);

/* The calling thread's last status and message, to save and restore around an internal failure in a call that succeeds. */
typedef struct hr__last {
	hr_status status;
	char message[512];
} hr__last;

HR__SHARED hr__last hr__last_get(void);
HR__SHARED void hr__last_set(const hr__last *last);

#endif
