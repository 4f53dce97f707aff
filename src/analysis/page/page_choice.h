/* page_choice.h - selects which of many items a page keeps: those of the highest grades, and an even sample of the grade that fits only
 * partly.
 *
 * First counts[grade] is increased for every item, then hr__page_choice_settle is called, then hr__page_choice_keeps for every item in
 * the same order. */
#ifndef HR_PAGE_PAGE_CHOICE_H
#define HR_PAGE_PAGE_CHOICE_H

#include <stdbool.h>
#include <stdint.h>

#define HR__PAGE_GRADES 512u /* of areas: four per power of two */

/* Initially all zeros. */
typedef struct hr__page_choice {
	uint64_t counts[HR__PAGE_GRADES];
	uint32_t grades;      /* this grade and all above are kept */
	uint64_t room, asked; /* in the grade below: number of items to keep, and number of calls so far */
} hr__page_choice;

/* The grade of an area: approximately its logarithm. */
uint32_t hr__page_area_grade(uint64_t bytes, uint64_t ns);

/* Returns the number of items that are kept: [most], or all. */
uint64_t hr__page_choice_settle(hr__page_choice *choice, uint64_t most);
bool hr__page_choice_keeps(hr__page_choice *choice, uint32_t grade);

#endif
