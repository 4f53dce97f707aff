/* names.h - interned names and shapes: strings become 32-bit numbers once, so that the hot path handles none.
 *
 * Storage is static and grows only by being touched, so interning never allocates and cannot fail: when a table is full, or a name
 * is not worth a place, the answer is HR_NAME_OTHER, which reads "(other)". Nothing is ever removed; numbers stay valid for the
 * life of the process. Thread-safe: looking up a known name takes no lock. The public calls (hr_name, hr_name_text, hr_shape...)
 * are declared in headroom.h and defined in names.c. */
#ifndef HR_BASE_NAMES_H
#define HR_BASE_NAMES_H

#include <stddef.h>
#include <stdint.h>

#include "headroom.h"

#define HR__NAMES_MAX 65536u          /* names, HR_NAME_NONE and HR_NAME_OTHER included */
#define HR__NAMES_TEXT_MAX (4u << 20) /* bytes of all names together, terminators included */
#define HR__NAME_LENGTH_MAX 1024u     /* a longer name is cut at a UTF-8 character boundary before it is interned */
#define HR__SHAPES_MAX 65536u         /* shapes, HR_SHAPE_NONE and HR_SHAPE_OTHER included */

/* As hr_name_intern, for [length] bytes that need not end in 0 and may contain any byte. */
hr_name hr__name_of_bytes(const char *text, size_t length);

/* Number of names and shapes interned so far: valid numbers are below it. */
uint32_t hr__names_count(void);
uint32_t hr__shapes_count(void);

/* In the child of a fork: makes the tables usable although the parent may have been inside them. */
void hr__names_after_fork(void);

/* Forgets everything. For tests alone: numbers given out before become wrong. */
void hr__names_reset_for_test(void);

#endif
