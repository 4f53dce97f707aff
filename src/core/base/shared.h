/* shared.h - marks internal functions and variables of libheadroom that libheadroom_runtime, libheadroom_analysis or a test beside them use.
 *
 * They are exported under the version HEADROOM_PRIVATE (cmake/symbols.map), which only libraries of the same version may use. Inside libheadroom
 * they are protected, so that calls to them do not go through the PLT. */
#ifndef HR_BASE_SHARED_H
#define HR_BASE_SHARED_H

#ifdef HR__IN_CORE
#define HR__SHARED __attribute__((visibility("protected")))
#else
#define HR__SHARED __attribute__((visibility("default")))
#endif

#endif
