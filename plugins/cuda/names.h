/* names.h - the scope of an allocation: the code that makes it.
 *
 * The first that is known: the NVTX range that the thread is in, or a name scope of Headroom; the line of Python that is running, if the thread holds
 * the interpreter's lock; with HEADROOM_RUN_CALLERS=1 the function that called CUDA; the name of the thread, if it is not the first one. */
#ifndef HR_PLUGIN_CUDA_NAMES_H
#define HR_PLUGIN_CUDA_NAMES_H

#include "headroom.h"
#include "thread.h"

/* Of those, the line of Python, for a thread that may hold the interpreter's lock, and the name of the thread. HR_NAME_NONE: not known. */
hr_name hr__names_line(void);
static inline hr_name hr__names_thread(void);

/* HR_NAME_NONE: not known, or the thread's current scope, which hr_alloc adds itself. */
hr_name hr__names_scope(void);

/* Reading its name is a system call, which takes four times as long as the rest of a request. Programs name a thread when they start it, so the name is read
 * at its first requests, and at every few later ones. */
#define HR__NAMES_READ_FIRST 16u
#define HR__NAMES_READ_LATER 64u

__attribute__((cold)) void hr__names_read_thread(void);
static inline hr_name hr__names_thread(void)
{
	hr__thread *self = &hr__this_thread;
	if (__builtin_expect(self->requests < HR__NAMES_READ_FIRST || self->requests % HR__NAMES_READ_LATER == 0, false)) hr__names_read_thread();
	self->requests++;
	return self->name;
}

#endif
