/* stacks.h - the call stacks of events: which stack an event of the calling thread has, and capturing it.
 *
 * In order of precedence:
 *     the stack of hr__stacks_replace    of the tensor whose memory is being allocated
 *     the stack of hr_stack_set          set by a plug-in
 *     a captured stack                   if the recording was started with a depth */
#ifndef HR_TRACE_STACKS_H
#define HR_TRACE_STACKS_H

#include <stdbool.h>
#include <stdint.h>

#include "core/base/shared.h"
#include "headroom.h"
#include "headroom_record.h"

/* Prepares captures: the first one of a process loads a library and allocates. Before a recording with a depth, without locks.
 * HR_UNSUPPORTED where the system cannot capture stacks; statuses of hr__os_fail. */
hr_status hr__stacks_prepare(void);

/* Captures stacks of up to [depth] frames from now on, at most HR_STACK_DEPTH_MAX; 0: none. After hr__stacks_prepare. */
void hr__stacks_start(uint32_t depth);
uint32_t hr__stacks_depth(void);

/* Headroom's Python package is in [folder]: its frames are left out of stacks, and threads that have released the interpreter's
 * lock, as ctypes does for each call, take it for a capture. Called by the package, before others use it. */
HR__SHARED void hr__stacks_set_package(const char *folder);

/* The stack of an event that happens now. May capture it, so no lock may be held and no writer busy. Never fails: a stack that cannot
 * be captured is HR_STACK_NONE. */
hr_stack hr__stacks_now(void);

/* Called by public functions with their return address: captures begin there. The outermost one counts, so that public functions can
 * call each other. Returns what hr__stacks_leave needs. */
const void *hr__stacks_enter(const void *caller);
void hr__stacks_leave(const void *before);

/* Until hr__stacks_restore, events of this thread have [stack], also if that is HR_STACK_NONE. Calls nest. */
typedef struct hr__stacks_before {
	hr_stack stack;
	bool is_replaced;
} hr__stacks_before;
hr__stacks_before hr__stacks_replace(hr_stack stack);
void hr__stacks_restore(hr__stacks_before before);

#endif
