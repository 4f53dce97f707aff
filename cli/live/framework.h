/* framework.h - `headroom run --framework`: settings with which frameworks request each array from CUDA. */
#ifndef HR_CLI_FRAMEWORK_H
#define HR_CLI_FRAMEWORK_H

#include <stdbool.h>

/* Sets the documented variables of [name], torch, jax, tensorflow, cupy or auto, and says in one line which. A variable that is set already keeps its
 * value. [program]: the program and its arguments, from which auto guesses; it says so if it cannot. [manage]: --manage is to serve what is requested. False,
 * with a message, for another name. */
bool hr__framework_set(const char *name, char **program, bool manage);

#endif
