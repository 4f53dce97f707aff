/* assert.h - assertions.
 *
 * HR_ASSERT is on in debug and sanitizer builds (HR_DEBUG) and costs nothing in release builds. It checks what the code itself
 * guarantees, never the input from a caller, a file or a device: bad input gets a status. The expression must have no side effect.
 * HR_ASSERT_SLOW traverses whole structures and is on only with HR_DEBUG_SLOW. */
#ifndef HR_BASE_ASSERT_H
#define HR_BASE_ASSERT_H

#include "core/base/shared.h"

#ifdef HR_DEBUG
HR__SHARED
#endif
void hr__assert_failed(const char *expression, const char *file, int line) __attribute__((noreturn, cold));

#ifdef HR_DEBUG
#define HR_ASSERT(expression) ((expression) ? (void)0 : hr__assert_failed(#expression, __FILE__, __LINE__))
#else
#define HR_ASSERT(expression) ((void)sizeof(expression))
#endif

#ifdef HR_DEBUG_SLOW
#define HR_ASSERT_SLOW(expression) HR_ASSERT(expression)
#else
#define HR_ASSERT_SLOW(expression) ((void)sizeof(expression))
#endif

#define HR_LIKELY(x) __builtin_expect(!!(x), 1)
#define HR_UNLIKELY(x) __builtin_expect(!!(x), 0)

#endif
