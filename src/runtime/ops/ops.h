/* ops.h - shared by the op files: the functions that the table's rows name, and helpers for kernels, checks and gradients.
 *
 * KERNELS divide their work into parts by shape alone, never by the number of threads, and each output element is computed by one
 * part in one order. So the same inputs give the same bits with any number of threads. The memory of an output may be that of an
 * input if the row allows forwarding; such a kernel reads an element before it writes the element in its place, and does not read
 * it again. */
#ifndef HR_RUNTIME_OPS_H
#define HR_RUNTIME_OPS_H

#include "headroom_runtime.h"
#include "runtime/engine/op.h"

/* ---- functions of the rows ---- */

#define HR__INFER(name) hr_status hr__infer_##name(const hr__type *in, uint32_t count, const hr__attrs *attrs, hr__type *out)
#define HR__RUN(name) void hr__run_##name(hr__work *work)
#define HR__GRADIENT(name) hr_status hr__gradient_##name(hr__backward *backward)
#define HR__SCRATCH(name) uint64_t hr__scratch_##name(const hr__type *in, const hr__type *out, const hr__attrs *attrs)

#define HR__LAUNCH(name) hr_status hr__launch_##name(struct hr__launch *launch)
#define HR__WORKSPACE(name) uint64_t hr__workspace_##name(const hr__type *in, const hr__type *out, const hr__attrs *attrs)

/* Several rows may name one function, and some name "none": no such function exists, the table then has NULL (ops.c). */
#define HR__OP_DECLARE(kind, text, outputs, least, most, memory, again, takes, reads_in, reads_out, infer, run, scratch, gradient, by, launch, workspace) \
	HR__INFER(infer);                                                                                                       \
	HR__RUN(run);                                                                                                           \
	HR__SCRATCH(scratch);                                                                                                   \
	HR__GRADIENT(gradient);                                                                                                 \
	HR__LAUNCH(launch);                                                                                                     \
	HR__WORKSPACE(workspace);
HR__OP_TABLE(HR__OP_DECLARE)
#undef HR__OP_DECLARE

/* ---- kernels ---- */

/* Asserts that loop iterations are independent, also if an output has the memory of an input. Without it, compiled loops check for
 * overlap and process one element at a time in just that case. */
#if defined(__clang__)
/* clang warns about loops that it does not vectorize, such as those that call libm. */
#pragma clang diagnostic ignored "-Wpass-failed"
#define HR__INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define HR__INDEPENDENT _Pragma("GCC ivdep")
#endif

/* Calls [range] for pieces of 0 ... count - 1, several at the same time. Pieces begin at multiples of [grain], which should be
 * about ten microseconds of work. */
typedef void (*hr__range_function)(void *context, int64_t begin, int64_t end);
void hr__each_range(hr__work *work, int64_t count, int64_t grain, hr__range_function range, void *context);
#define HR__GRAIN 16384 /* for a few operations on each element */
/* The number of items of [wide] elements that make up a grain; at least 1. */
int64_t hr__grain_of(int64_t grain, int64_t wide);

/* Replaces a bfloat16 input by a float32 copy in scratch, and takes the copy's part of scratch away; does nothing to other inputs. */
void hr__widen(hr__work *work, uint32_t i);
/* Scratch for that: 0 if it is not bfloat16. */
uint64_t hr__wide_bytes(const hr__type *type);
/* Rounds float32 numbers to bfloat16. */
void hr__narrow(hr__work *work, const float *from, int64_t count, void *to);

/* Sets the error of a run, from any thread. All errors of one run must have the same text. */
void hr__run_error(hr__work *work, const char *text);
/* The same for an index outside 0 ... choices - 1. */
void hr__range_error(hr__work *work, const char *text, int64_t index, int64_t choices);

/* Iteration over the elements of an output in order, and over one or two inputs that are broadcast to it. Dimensions that are
 * contiguous in memory are merged; a step of 0 repeats an element. */
typedef struct hr__broadcast {
	int rank; /* at least 1 */
	int64_t d[HR_SHAPE_MAX_RANK], a[HR_SHAPE_MAX_RANK], b[HR_SHAPE_MAX_RANK];
} hr__broadcast;

/* For each dimension of [out], how far the element of [in] moves; 0 where it is repeated. */
void hr__broadcast_steps(const hr__dims *out, const hr__dims *in, int64_t *steps);
void hr__broadcast_make(const hr__dims *out, const hr__dims *a, const hr__dims *b, hr__broadcast *walk);
/* Calls [row] for pieces of the last dimension, in order, from element [begin] to [end] of the output, with their offsets in the
 * output and in both inputs. Steps within a row are those of the walk's last dimension. */
typedef void (*hr__broadcast_row)(void *context, int64_t out, int64_t a, int64_t b, int64_t count);
void hr__broadcast_range(const hr__broadcast *walk, int64_t begin, int64_t end, hr__broadcast_row row, void *context);

/* Elements of bfloat16 are computed in float32, at most HR__PIECE of them at a time. */
#define HR__PIECE 512
void hr__widen_piece(const void *bfloat16, float *to, int64_t count);
void hr__round_piece(const float *from, void *bfloat16, int64_t count);
/* The dtype that elements of [type] are computed in: float32 for bfloat16. */
hr_dtype hr__computed_in(const hr__type *type);

/* ---- checks ---- */

hr_status hr__need_float(const hr__type *type);
hr_status hr__need_real(const hr__type *type);    /* floats, and bfloat16 */
hr_status hr__need_element(const hr__type *type); /* numbers, and bfloat16 */
/* The dtype of elements computed from both: one dtype, or float32 for float32 and bfloat16. */
hr_status hr__need_elements(const hr__type *a, const hr__type *b, hr_dtype *out);
hr_status hr__need_rows(const hr__type *type); /* floats with at least one dimension */
hr_status hr__need_number(const hr__type *type);
hr_status hr__need_index(const hr__type *type);
hr_status hr__need_any(hr_dtype dtype); /* any dtype of a value: numbers, bool and bfloat16 */
hr_status hr__need_same_dtype(const hr__type *a, const hr__type *b);
hr_status hr__need_same_dims(const hr__type *a, const hr__type *b);
/* The error for two shapes that do not broadcast; names the dimension. */
hr_status hr__misfit(const hr__dims *a, const hr__dims *b);
/* Resolves [axis], negative from the end; -1 if out of range. */
int hr__axis(int axis, int rank);
hr_status hr__need_axis(int axis, const hr__dims *dims, int *out);
/* Products of the dimensions before and behind [axis]. */
void hr__around(const hr__dims *dims, int axis, int64_t *before, int64_t *behind);

/* Refuses an op call before its types are known: consumes [inputs] and sets the message. If an input is HR_NO_VALUE, the earlier
 * message stays. Returns HR_NO_VALUE. */
hr_value hr__op_refuse(const hr_value *inputs, uint32_t count, const char *name, const char *format, ...)
        __attribute__((format(printf, 4, 5), cold));
/* The same, but prefixes the current message with [name]. */
hr_value hr__op_refuse_in(const hr_value *inputs, uint32_t count, const char *name);

/* hr_matmul of a layer, plus a bias: a row of the result's dtype. Of bfloat16 the result is bfloat16 if the bias is. */
hr_value hr__matmul_layer(hr_value x, hr_value w, hr_value b);
/* hr_layer_norm, rounded to [dtype]; 0 = the dtype of x. */
hr_value hr__layer_norm_to(hr_dtype dtype, hr_value x, hr_value gain, hr_value bias, double epsilon);

/* ---- gradients ---- */

/* Sets the gradient of input [i], which has the input's dtype, or is float32 for bfloat16. HR_NO_VALUE is an error: releases the gradients set before, and returns the status of the failed
 * call. */
hr_status hr__give(hr__backward *backward, uint32_t i, hr_value value);
/* Whether the gradient of input [i] is needed and exists. */
bool hr__wanted(const hr__backward *backward, uint32_t i);
/* Reduces [value], of shape [of], to shape [to] by summing over the dimensions that were broadcast. Returns a temporary value.
 * Consumes a temporary [value]; shares the memory of a kept one if there is nothing to reduce. */
hr_value hr__sum_to(hr_value value, const hr__dims *of, const hr__dims *to);
/* The value in float32, if it is bfloat16. */
hr_value hr__wide_value(hr_value value);
hr_value hr__reshape_to(hr_value value, const hr__dims *dims);
hr_value hr__broadcast_value(hr_value value, const hr__dims *dims);

#endif
