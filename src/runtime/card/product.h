/* product.h - products of matrices on a card, by cuBLASLt.
 *
 * Our matrices are stored by rows, cuBLASLt's by columns. A matrix by rows is its transpose by columns, and C^T = B^T A^T: the operands are exchanged,
 * and no memory order needs to be set. */
#ifndef HR_CARD_PRODUCT_H
#define HR_CARD_PRODUCT_H

#include "runtime/card/card.h"

/* A product by columns: out [m, n] = a [m, k] b [k, n], [batch] of them, [steps] elements apart. A column of a stored matrix begins [row] elements after
 * the one before: it is a row of ours. */
typedef struct hr__product {
	int64_t m, n, k, batch;
	int64_t a_step, b_step, out_step;
	int64_t a_row, b_row, out_row;
	bool a_turned, b_turned; /* stored by rows */
	const void *a, *b;
	const void *bias; /* [m], of the result's dtype, is added to each column; NULL = none */
	void *out;
	hr_dtype in, to;
} hr__product;

/* The most that the library's documentation recommends for Hopper. */
#define HR__PRODUCT_WORKSPACE_MAX (UINT64_C(32) << 20)

/* Products of matrices with odd rows that are computed on copies (launch_matrix.c). Tests make them smaller. */
typedef struct hr__padded_limits {
	double least;          /* multiplications; a smaller product is computed as it is */
	uint64_t chunk_bytes;  /* of the copies, where columns of the result can be computed in chunks */
	int64_t chunk_columns; /* a chunk has a multiple of it: a multiple of 8 */
} hr__padded_limits;
extern hr__padded_limits hr__padded_limits_now;

/* Queues it. [workspace]: for the library's kernels. */
hr_status hr__product_run(const hr__launch *launch, const hr__product *product, void *workspace, uint64_t bytes);

/* A copy of [rows] of [columns], whose beginnings are from_row and to_row elements apart, plus a bias. Columns from [columns] to [to_columns] become 0. */
typedef struct hr__strip {
	const void *from, *bias; /* no bias: NULL */
	void *to;                /* may be [from], if rows are as far apart */
	int64_t rows, columns, to_columns, from_row, to_row;
	hr_dtype dtype;
} hr__strip;

hr_status hr__strip_copy(const hr__launch *launch, const hr__strip *strip);

#endif
