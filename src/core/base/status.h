/* status.h - how functions report errors.
 *
 * Functions return hr_status (the table is in headroom.h). The details, a sentence that names the object and the remedy, are the
 * thread's last message. hr__fail() and hr__fail_in() set both, so every error has a message. */
#ifndef HR_BASE_STATUS_H
#define HR_BASE_STATUS_H

#include <stdarg.h>

#include "headroom.h"
#include "core/base/shared.h"

/* Sets the calling thread's last message (truncated to 511 bytes) and returns [status], which must not be HR_OK. The first failure of a
 * thread allocates host memory for its messages; without it the message is the text of the status. */
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

/* Memory for the calling thread's messages, until the thread ends or the library is unloaded; NULL if there is none. Set by core/os, which calls hr__message_forget
 * before the memory is freed; until then one thread has memory. */
extern void *(*hr__message_memory)(size_t bytes);
void hr__message_forget(void);

HR__SHARED hr__last hr__last_get(void);
HR__SHARED void hr__last_set(const hr__last *last);

#endif
