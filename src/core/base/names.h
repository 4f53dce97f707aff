/* names.h - interned names, shapes, frames and stacks: they become 32-bit numbers once, so that the hot path handles no strings.
 *
 * Storage is static and is backed by memory only where touched, so interning never allocates and cannot fail. When a table is full,
 * the result is HR_NAME_OTHER, whose text is "(other)". Nothing is ever removed; numbers stay valid for the life of the process.
 * Thread-safe: looking up a known name acquires no lock. The public functions (hr_name_intern, hr_name_text, hr_shape_intern...)
 * are declared in headroom.h and headroom_record.h, and defined in names.c. */
#ifndef HR_BASE_NAMES_H
#define HR_BASE_NAMES_H

#include <stddef.h>
#include <stdint.h>

#include "headroom.h"
#include "headroom_record.h"
#include "core/base/shared.h"

#define HR__NAMES_MAX 65536u          /* including HR_NAME_NONE and HR_NAME_OTHER */
#define HR__NAMES_TEXT_MAX (4u << 20) /* bytes of all names together, including terminators */
#define HR__NAME_LENGTH_MAX 1024u     /* longer names are cut at a UTF-8 character boundary before they are interned */
#define HR__SHAPES_MAX 65536u         /* including HR_SHAPE_NONE and HR_SHAPE_OTHER */
#define HR__FRAMES_MAX 65536u         /* including 0 and HR__FRAME_OTHER */
#define HR__STACKS_MAX 65536u         /* including HR_STACK_NONE and HR_STACK_OTHER */
#define HR__STACKS_BYTES_MAX (8u << 20) /* two bytes for each frame of each stack, and a terminator for each stack */
#define HR__FRAME_OTHER 1u            /* stands for all new frames once the table is full */

/* As hr_name_intern, for [length] bytes without a terminator; they may contain any byte. */
HR__SHARED hr_name hr__name_of_bytes(const char *text, size_t length);

/* One more than the highest valid number of a name and of a shape. */
HR__SHARED uint32_t hr__names_count(void);
HR__SHARED uint32_t hr__shapes_count(void);
HR__SHARED uint32_t hr__frames_count(void);
uint32_t hr__stacks_count(void);

/* The number of a frame, and the frame of a number: its function is "(other)" if there is no such frame, and if all its names are
 * HR_NAME_NONE. */
HR__SHARED uint32_t hr__frame_intern(const hr_frame *frame);
HR__SHARED hr_frame hr__frame_get(uint32_t frame);

/* The stack with these frames, innermost first, and the frames of a stack. HR_STACK_OTHER, and a number that is not valid, have the one
 * frame HR__FRAME_OTHER. */
HR__SHARED hr_stack hr__stack_of_frames(const uint16_t *frames, size_t count);
HR__SHARED size_t hr__stack_frames(hr_stack stack, uint16_t frames[HR_STACK_DEPTH_MAX]);

/* In the child of a fork: reinitialises the lock, which a thread of the parent may have held. */
void hr__names_after_fork(void);

/* Removes everything. For tests only: numbers issued before become invalid. */
void hr__names_reset_for_test(void);

#endif
