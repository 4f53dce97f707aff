/* name.h - what the system calls this program. */
#ifndef HR_PROFILE_NAME_H
#define HR_PROFILE_NAME_H

#include <stddef.h>

/* The name, at most 15 bytes, with '-' for all that is neither a letter, a digit, '_' nor '.', so that it can be part of a file name and be
 * shown on a terminal; "program" when the system does not say. */
void hr__program_name(char *out, size_t capacity);

#endif
