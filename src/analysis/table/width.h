/* width.h - terminal columns of a character: 2 for wide and fullwidth East Asian characters and emoji, 0 for combining characters,
 * 1 for all others. */
#ifndef HR_PROFILE_WIDTH_H
#define HR_PROFILE_WIDTH_H

#include <stddef.h>
#include <stdint.h>

/* Width of the character at [text], which is not empty; *bytes receives its length. A byte that is not valid UTF-8 is one
 * column. */
uint32_t hr__width_of_character(const char *text, size_t *bytes);
/* Width of the whole string. */
uint32_t hr__width_of(const char *text);

#endif
