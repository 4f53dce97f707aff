/* tape.h - the tape: recorded by tape.c, differentiated by gradient.c. */
#ifndef HR_RUNTIME_TAPE_H
#define HR_RUNTIME_TAPE_H

#include "runtime/engine/engine.h"

struct hr__op_tape {
	hr__op_call *calls;
	uint32_t count;
	size_t capacity;
	bool on;     /* recording */
	bool broken; /* a call could not be recorded: no host memory */
	bool served; /* hr_gradients has used it */
};

/* The calling thread's tape; NULL = none. */
struct hr__op_tape *hr__tape_current(void);
/* Releases the values that the call keeps. */
void hr__op_call_release(hr__op_call *call);
/* Sets the thread's checkpoint block. Returns the previous one. */
uint32_t hr__block_set(uint32_t block);
/* Sets the thread's role. Returns the previous one. */
hr__role hr__role_set(hr__role role);

#endif
