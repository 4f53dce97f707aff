/* width.h - how many columns of a terminal characters take: 2 for wide and fullwidth ones of East Asia and emoji, 0 for those that go on top of the one
 * before, 1 for any other. */
#ifndef HR_PROFILE_WIDTH_H
#define HR_PROFILE_WIDTH_H

#include <stddef.h>
#include <stdint.h>

/* Of the character at [text], whose bytes are *bytes, at least 1. [text] does not end there; what is not UTF-8 takes a column for each byte. */
uint32_t hr__width_of_character(const char *text, size_t *bytes);
/* Of all of it. */
uint32_t hr__width_of(const char *text);

#endif
