/* names.h - interned names and shapes: strings become 32-bit numbers once, so that the hot path handles no strings.
 *
 * Storage is static and is backed by memory only where touched, so interning never allocates and cannot fail. When a table is full,
 * the result is HR_NAME_OTHER, whose text is "(other)". Nothing is ever removed; numbers stay valid for the life of the process.
 * Thread-safe: looking up a known name acquires no lock. The public functions (hr_name_intern, hr_name_text, hr_shape_intern...)
 * are declared in headroom.h and defined in names.c. */
#ifndef HR_BASE_NAMES_H
#define HR_BASE_NAMES_H

#include <stddef.h>
#include <stdint.h>

#include "headroom.h"
#include "core/base/shared.h"

#define HR__NAMES_MAX 65536u          /* including HR_NAME_NONE and HR_NAME_OTHER */
#define HR__NAMES_TEXT_MAX (4u << 20) /* bytes of all names together, including terminators */
#define HR__NAME_LENGTH_MAX 1024u     /* longer names are cut at a UTF-8 character boundary before they are interned */
#define HR__SHAPES_MAX 65536u         /* including HR_SHAPE_NONE and HR_SHAPE_OTHER */

/* As hr_name_intern, for [length] bytes without a terminator; they may contain any byte. */
HR__SHARED hr_name hr__name_of_bytes(const char *text, size_t length);

/* One more than the highest valid number of a name and of a shape. */
HR__SHARED uint32_t hr__names_count(void);
HR__SHARED uint32_t hr__shapes_count(void);

/* In the child of a fork: reinitialises the lock, which a thread of the parent may have held. */
void hr__names_after_fork(void);

/* Removes everything. For tests only: numbers issued before become invalid. */
void hr__names_reset_for_test(void);

#endif
