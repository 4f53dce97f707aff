/* arguments.h - arguments of the kernels: structs that the host (C) fills in and that kernels (CUDA C++) read. NVRTC gets this file before
 * each program, and has no headers of its own. */
#ifndef HR_CARD_ARGUMENTS_H
#define HR_CARD_ARGUMENTS_H

#ifndef __CUDACC_RTC__
#include <stdint.h>
#endif

#define HR__K_RANK 8 /* HR_SHAPE_MAX_RANK */

/* The first error that a kernel of a session finds, until the host has read it. In the card's memory. */
typedef struct hr__k_fault {
	int32_t found, code; /* enum hr__k_error */
	uint32_t op, scope;  /* names */
	int64_t wrong, choices;
	int32_t in_count, rank[2];
	int64_t d[2][HR__K_RANK]; /* shapes of the first inputs */
} hr__k_fault;

enum hr__k_error { HR__K_DIVISION = 1, HR__K_INDEX, HR__K_LABEL, HR__K_STEP };

/* What a kernel copies to *to when it finds an error. */
typedef struct hr__k_faults {
	hr__k_fault *to;
	hr__k_fault with;
} hr__k_faults;

/* Elementwise ops: hr__broadcast, and the numbers of hr_scale. */
typedef struct hr__k_elements {
	const void *a, *b;
	void *out;
	int64_t count;
	int32_t rank;
	int64_t d[HR__K_RANK], a_step[HR__K_RANK], b_step[HR__K_RANK];
	double factor, plus;
	hr__k_faults faults;
} hr__k_elements;

#endif
