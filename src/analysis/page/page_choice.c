/* page_choice.c - see page_choice.h. */
#include "analysis/page/page_choice.h"

#include <string.h>

/* From the exponent and the first bits of a double. */
uint32_t hr__page_area_grade(uint64_t bytes, uint64_t ns)
{
	double area = (double)bytes * (double)(ns + 1) + 1;
	uint64_t bits;
	memcpy(&bits, &area, sizeof bits);
	uint32_t grade = (uint32_t)(bits >> 49) - (1023u << 3);
	return grade < HR__PAGE_GRADES * 2 ? grade / 2 : HR__PAGE_GRADES - 1;
}

uint64_t hr__page_choice_settle(hr__page_choice *choice, uint64_t most)
{
	uint64_t sum = 0;
	choice->grades = HR__PAGE_GRADES;
	while (choice->grades > 0 && sum + choice->counts[choice->grades - 1] <= most) sum += choice->counts[--choice->grades];
	choice->room = choice->grades ? most - sum : 0;
	return sum + choice->room;
}

bool hr__page_choice_keeps(hr__page_choice *choice, uint32_t grade)
{
	if (grade + 1 != choice->grades) return grade >= choice->grades;
	uint64_t before = choice->asked++ * choice->room / choice->counts[grade];
	return choice->asked * choice->room / choice->counts[grade] > before;
}
