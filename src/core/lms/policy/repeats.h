/* repeats.h - finds out that a sequence repeats, and where: for programs that do not say when a step begins. Pure but for its memory. */
#ifndef HR_LMS_REPEATS_H
#define HR_LMS_REPEATS_H

#include <stdbool.h>
#include <stdint.h>

#include "headroom.h"

#define HR__REPEATS_HISTORY 65536u /* what is remembered: no longer period is found */
#define HR__REPEATS_WINDOW 16u     /* no shorter one is */

typedef struct hr__repeats hr__repeats;

hr_status hr__repeats_open(hr__repeats **out);
void hr__repeats_close(hr__repeats *repeats);

/* Notes the next item, and how much there was when it came. True when a period begins with it: a whole one was like the one before it from
 * end to end, and periods begin where there is least. A sequence that stops repeating for a quarter of a period is watched anew. */
bool hr__repeats_note(hr__repeats *repeats, uint64_t item, uint64_t weight);

#endif
