/* program_name.h - the system's name for this program. */
#ifndef HR_RECORD_PROGRAM_NAME_H
#define HR_RECORD_PROGRAM_NAME_H

#include <stddef.h>

/* The name, at most 15 bytes. Any character but letters, digits, '_' and '.' becomes '-', so that the name is safe in file names
 * and on a terminal. "program" when the system does not provide a name. */
void hr__program_name(char *out, size_t capacity);

#endif
