/* warmer.h - a thread that prefaults memory before it is needed.
 *
 * The first touch of each page of a file mapping costs about a microsecond in the kernel and evicts the program's data from the
 * processor's caches: 3 to 7 ns for each event of a trace. So during a recording, a thread touches blocks ahead of the writers.
 * This is only an optimisation: if the thread cannot be started, or is late, pages are faulted in at first touch as usual. */
#ifndef HR_TRACE_WARMER_H
#define HR_TRACE_WARMER_H

#include <stdbool.h>

/* Starts the thread. At the start and after every wake it calls [step] until [step] returns false. */
void hr__warmer_start(bool (*step)(void));

/* Signals that there may be work. Needs no lock. */
void hr__warmer_wake(void);

/* Ends the thread and waits for it. The caller must not hold a lock that [step] acquires. */
void hr__warmer_stop(void);

/* In the child of a fork, in which the thread does not exist. */
void hr__warmer_forget(void);

#endif
