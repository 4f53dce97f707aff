/* repeats.h - detects that a sequence repeats, and where: for programs that mark no steps. Pure, apart from its memory. */
#ifndef HR_LMS_REPEATS_H
#define HR_LMS_REPEATS_H

#include <stdbool.h>
#include <stdint.h>

#include "headroom.h"

#define HR__REPEATS_HISTORY 65536u /* items remembered; periods longer than half of it are not found */
#define HR__REPEATS_WINDOW 16u     /* shorter periods are not found */

typedef struct hr__repeats hr__repeats;

hr_status hr__repeats_open(hr__repeats **out);
void hr__repeats_close(hr__repeats *repeats);

/* Adds the next item, with the bytes of tensors at that time as [weight]. True if a period begins with it: one whole period was
 * equal to the one before, and periods begin at their lowest weight. If more than a quarter of a period's items differ, the search
 * starts again. */
bool hr__repeats_note(hr__repeats *repeats, uint64_t item, uint64_t weight);

#endif
