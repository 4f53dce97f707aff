/* python.h - the frames of CPython that the calling thread runs, in a process that has an interpreter.
 *
 * The interpreter's functions are found by name when they are needed: CPython 3.9 and newer. Not part of the table in os.h: tests run a
 * real interpreter. */
#ifndef HR_OS_PYTHON_H
#define HR_OS_PYTHON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/shared.h"

typedef struct hr__python_frame {
	const char *function; /* "Net.forward"; before 3.11 "forward". Valid during the visit */
	const char *file;     /* as the interpreter knows it */
	uint32_t line;        /* 0: not known */
} hr__python_frame;

/* Calls [visit] for each frame, innermost first, until it returns false. No frames: there is no interpreter, the thread runs no Python, an
 * exception is pending, or the thread does not hold the interpreter's lock.
 *
 * [take_lock]: a thread that runs Python and has released the lock for a call takes it meanwhile. That waits for the thread that has it, so
 * the caller may hold no lock that a thread of Python waits for. */
HR__SHARED void hr__python_walk(bool take_lock, bool (*visit)(void *context, const hr__python_frame *frame), void *context);

/* Whether the calling thread may hold the interpreter's lock: false says that hr__python_walk has no frames for it, unless it takes the lock. One call of the
 * interpreter's. */
bool hr__python_has_lock(void);

/* An address in the interpreter's code; NULL: there is none. */
const void *hr__python_code(void);

#endif
