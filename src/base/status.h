/* status.h - how a function of Headroom says that it failed.
 *
 * Functions return hr_status (the table is in headroom.h). The detail, a sentence that names the thing and the remedy, is the
 * thread's last message. hr__fail() is the only way to set it, so that no error leaves without one. */
#ifndef HR_BASE_STATUS_H
#define HR_BASE_STATUS_H

#include <stdarg.h>

#include "headroom.h"

/* Sets the calling thread's last message (truncated at 511 bytes, never allocates) and returns [status], which must not be
 * HR_OK. */
hr_status hr__fail(hr_status status, const char *format, ...) __attribute__((format(printf, 2, 3), cold));

/* As hr__fail, but puts the new text in front of the message that is there: "text: old message". */
hr_status hr__fail_in(hr_status status, const char *format, ...) __attribute__((format(printf, 2, 3), cold));

/* Makes the last message of the calling thread empty. */
void hr__clear_message(void);

/* The calling thread's last status and message, for a call that fails on the way and succeeds. */
typedef struct hr__last {
	hr_status status;
	char message[512];
} hr__last;

hr__last hr__last_get(void);
void hr__last_set(const hr__last *last);

#endif
