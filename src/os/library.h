/* library.h - shared libraries that are found while the program runs.
 *
 * Not in the table of os.h: which file a name means is the loader's business, and a test that wants another one says so in
 * LD_LIBRARY_PATH. */
#ifndef HR_OS_LIBRARY_H
#define HR_OS_LIBRARY_H

#include <stddef.h>

typedef struct hr__library hr__library;

/* Loads the library called [name], for the rest of the process: there is no closing it. NULL when it cannot be loaded; then [why] has
 * the loader's words, cut to [capacity]. */
hr__library *hr__library_open(const char *name, char *why, size_t capacity);

/* The address of what the library calls [name]; NULL when it has no such thing. */
void *hr__library_symbol(hr__library *library, const char *name);

#endif
