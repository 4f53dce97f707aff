/* definitions.h - defines names, shapes, frames and stacks in the trace file when they first occur.
 *
 * A name has an id in the process and a number in the file. Numbers are dense, in the order of their definitions; each table maps ids to
 * numbers plus 1, 0 while the file has no definition.
 *
 * INVARIANT
 *
 * A number is stored in its table only when its definition is committed. So no committed event uses an undefined number, nor does the
 * definition of a frame or stack. */
#ifndef HR_TRACE_DEFINITIONS_H
#define HR_TRACE_DEFINITIONS_H

#include "core/trace/writer.h"

/* Number in the file, plus 1, of each name, shape and stack of the process; 0 when not defined there yet. Written under the trace
 * lock. */
extern hr__atomic_u32 hr__name_numbers[HR__NAMES_MAX], hr__shape_numbers[HR__SHAPES_MAX], hr__stack_numbers[HR__STACKS_MAX];

/* Define a name, shape, or stack with its frames and their names, unless it is defined already or its id is not valid. The writer must be
 * inside an event. False as in hr__writer_next_block. */
bool hr__definitions_add_name(hr__writer *w, hr_name name);
bool hr__definitions_add_shape(hr__writer *w, hr_shape shape);
bool hr__definitions_add_stack(hr__writer *w, hr_stack stack);

/* Clears all numbers for a new file. No thread may be inside an event. */
void hr__definitions_reset(void);

#endif
