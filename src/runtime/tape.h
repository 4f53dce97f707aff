/* tape.h - what tape.c takes down and gradient.c goes back over. */
#ifndef HR_RUNTIME_TAPE_H
#define HR_RUNTIME_TAPE_H

#include "runtime/engine.h"

struct hr__op_tape {
	hr__step *steps;
	uint32_t count, capacity;
	bool on;     /* calls are taken down */
	bool broken; /* there was no host memory for one */
	bool served; /* gone back over */
};

/* The calling thread's; NULL = none. */
struct hr__op_tape *hr__tape_current(void);
/* Releases what is kept for it. */
void hr__step_release(hr__step *step);
/* Makes [block] the one that calls are in. Returns the one before. */
uint32_t hr__block_set(uint32_t block);
/* The same for what calls are for. */
hr__role hr__role_set(hr__role role);

#endif
