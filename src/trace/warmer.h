/* warmer.h - a thread that gets memory ready before it is needed.
 *
 * The first touch of each page of a file mapping costs about a microsecond in the kernel, and clears the processor's caches of what
 * the program had there: 3 to 7 ns for each event of a trace. So while a recording lasts, a thread touches blocks ahead of those
 * who write. It is a help and no more: where it cannot be started, or is late, memory comes at first touch as it always does. */
#ifndef HR_TRACE_WARMER_H
#define HR_TRACE_WARMER_H

#include <stdbool.h>

/* Starts the thread. Whenever woken, and once at the start, it calls [step] until that returns false. */
void hr__warmer_start(bool (*step)(void));

/* There may be something to do. Needs no lock. */
void hr__warmer_wake(void);

/* Returns when the thread has ended; with no lock held that [step] takes. */
void hr__warmer_stop(void);

/* In the child of a fork, which has no such thread. */
void hr__warmer_forget(void);

#endif
