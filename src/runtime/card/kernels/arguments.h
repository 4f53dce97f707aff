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
	int32_t rank, a_narrow, b_narrow, out_narrow; /* narrow: bfloat16, computed in float32 */
	int64_t d[HR__K_RANK], a_step[HR__K_RANK], b_step[HR__K_RANK];
	double factor, plus;
	hr__k_faults faults;
} hr__k_elements;

/* Chains of elementwise ops: inputs, and numbers of its steps. */
#define HR__K_INPUTS 8 /* HR__OP_INPUTS */
#define HR__K_STEPS 8
typedef struct hr__k_chain {
	const void *in[HR__K_INPUTS];
	void *out;
	int64_t count;
	int32_t rank;
	int64_t d[HR__K_RANK], step[HR__K_INPUTS][HR__K_RANK];
	double factor[HR__K_STEPS], plus[HR__K_STEPS]; /* of hr_scale; what dropout multiplies by */
	uint64_t seed[HR__K_STEPS], below[HR__K_STEPS]; /* of dropout */
} hr__k_chain;

/* Offsets of items: rank dimensions of d items, [step] elements apart. */
typedef struct hr__k_walk {
	int32_t rank;
	int64_t d[HR__K_RANK], step[HR__K_RANK];
} hr__k_walk;

/* Reductions of [many] elements to each of outer x inner results. Elements are at kept(outer) + gone(many) + inner. If there are several blocks, each
 * reduces [each] elements, and [partials] has outer x blocks x inner results of 8 bytes. */
typedef struct hr__k_reduce {
	const void *in;
	void *out, *partials;
	int64_t outer, many, inner, blocks, each;
	hr__k_walk kept, gone;
	double divisor; /* of a mean */
	int32_t narrow; /* the input is bfloat16 */
} hr__k_reduce;

/* The gradient of a maximum, along one dimension: [outer, many, inner]. */
typedef struct hr__k_share {
	const void *in, *most, *grad;
	void *out;
	int64_t outer, many, inner;
} hr__k_share;

/* Rows of [length]: softmax and cross entropy. A row of causal softmax uses the columns up to its own; there are [period] rows in a matrix. */
typedef struct hr__k_rows {
	const void *in, *labels, *grad;
	void *out;
	int64_t rows, length, period;
	int32_t causal, wide_labels, narrow; /* narrow: bfloat16 logits, and gradients of them */
	hr__k_faults faults;
} hr__k_rows;

/* Layer norm. [partials]: sums of blocks of [each] rows, for the gradients of gain and bias. */
typedef struct hr__k_norm {
	const void *in, *gain, *bias, *grad, *mean, *scale, *plus; /* plus: is added to the gradient of x; NULL = nothing */
	void *out, *out_mean, *out_scale, *of_gain, *of_bias, *partials;
	int64_t rows, length, blocks, each;
	double epsilon;
	int32_t out_narrow, grad_narrow; /* bfloat16 */
} hr__k_norm;

/* Batch norm of [images, channels, inner]. [partials]: of blocks of [each] elements of a channel; [stats]: what is computed from them, for each channel. */
typedef struct hr__k_batch {
	const void *in, *gain, *bias, *grad, *mean, *variance;
	void *out, *first, *second; /* the outputs of each channel */
	double *partials, *stats;
	int64_t images, channels, inner, blocks, each;
	double epsilon;
} hr__k_batch;

/* Units of 1, 2, 4, 8 or 16 bytes are moved: [rows] of [length], [from_step] and [to_step] units apart; or [rows] items of a walk over the input. */
typedef struct hr__k_move {
	const void *from;
	void *to;
	int64_t rows, length, from_step, to_step;
	hr__k_walk walk;
} hr__k_move;

/* Transposed tiles: of planes of [high] by [wide] elements, [down] apart in the output, [across] in the input. */
typedef struct hr__k_turn {
	const void *from;
	void *to;
	int64_t planes, high, wide, down, across;
	hr__k_walk from_walk, to_walk; /* planes */
} hr__k_turn;

/* [value]: what is repeated, as often as it fits into 8 bytes. */
typedef struct hr__k_fill {
	void *to;
	uint64_t bytes, value;
} hr__k_fill;

/* Rows by index: [count] indices, rows of [length] of a table of [rows]. */
typedef struct hr__k_index {
	const void *from, *indices;
	void *to;
	int64_t count, rows, length;
	int32_t wide_indices;
	uint64_t one; /* the bits of 1 */
	hr__k_faults faults;
} hr__k_index;

typedef struct hr__k_cast {
	const void *from;
	void *to;
	int64_t count;
} hr__k_cast;

/* [rows] of [columns], plus a bias (NULL: none); columns from there to [to_columns] become 0. */
typedef struct hr__k_strip {
	const void *from, *bias;
	void *to;
	int64_t rows, columns, to_columns, from_row, to_row;
} hr__k_strip;

/* Optimizers: the variable, its state, the gradient; the new contents. */
typedef struct hr__k_update {
	const void *in[4], *step;
	void *out[3];
	int64_t count;
	double a, b, c, d; /* as in hr__attrs */
	hr__k_faults faults;
} hr__k_update;

/* Random numbers from [low] to [high], of [choices] integers from [first] on (0: 2^64); dropout. */
typedef struct hr__k_random {
	const void *in;
	const uint64_t *offset;
	void *out;
	int64_t count, first;
	uint64_t seed, choices, below; /* words below it are dropped */
	double low, high, before_high, scale;
	int32_t even; /* elements can be read in packs of 4 */
	int32_t in_narrow, out_narrow;
} hr__k_random;

/* Windows of size x size pixels, [stride] apart, of planes of height x width pixels; rows x columns of windows. */
typedef struct hr__k_pool {
	const void *in, *grad, *most;
	void *out;
	int64_t planes, height, width, rows, columns, size, stride;
} hr__k_pool;

/* A convolution, or a gradient of one, as a product: out[m, n] = sum over k of a[m, k] b[k, n] (conv.cuh). A place is (image, row, column), a tap is
 * (channel, row, column in the window). */
typedef struct hr__k_conv {
	const void *a, *b;
	void *out;
	int64_t m, n, k;
	int64_t a_row, out_row;                 /* from one row of a, of the output, to the next */
	int64_t window_high, window_wide;       /* of taps */
	int64_t rows, columns;                  /* of places in an image */
	int64_t height, width;                  /* of an image of b */
	int64_t a_image, a_channel, b_image, b_channel, out_image; /* from one to the next */
	int64_t step, shift, sign, divide;      /* a tap of a place is the pixel ((place * step + sign * tap + shift) / divide) */
	int64_t each;                           /* of k, that a segment adds; segments write to outputs of m x n, one behind the other */
	int32_t by_place;                       /* k counts places and n taps; else n counts places and k taps */
	int64_t segments, count;                /* for joining: elements of the output */
} hr__k_conv;

/* Fused attention: see ops_attend.c. Rows of q, k, v and y are [row] numbers apart; a head has [width] of them. */
typedef struct hr__k_attend {
	const void *q, *k, *v, *y, *dy, *logs;
	void *out, *out_logs, *sums, *dq, *dk, *dv;
	int64_t heads, rows, columns, width, value_width, q_row, k_row, v_row, y_row, jobs;
	int32_t causal;
	int32_t even; /* rows can be read in packs of 16 bytes */
	double scale;
} hr__k_attend;

#endif
