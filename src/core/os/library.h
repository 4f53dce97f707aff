/* library.h - shared libraries loaded at run time.
 *
 * Not part of the table in os.h: the loader resolves names to files, and a test selects another file by LD_LIBRARY_PATH. */
#ifndef HR_OS_LIBRARY_H
#define HR_OS_LIBRARY_H

#include <stddef.h>

#include "core/base/shared.h"

typedef struct hr__library hr__library;

/* Loads the library [name] for the rest of the process; it cannot be closed. NULL when it cannot be loaded; then [why] holds the
 * loader's message, cut to [capacity]. */
HR__SHARED hr__library *hr__library_open(const char *name, char *why, size_t capacity);

/* The address of the symbol [name]; NULL when the library has none. */
HR__SHARED void *hr__library_symbol(hr__library *library, const char *name);

#endif
