/* origin.h - how the contents of a buffer were computed, and the recipe that computes them again.
 *
 * On an allocator with Large Model Support every op that can run again (hr__op_again) gives its outputs a recipe (headroom_lms.h), so
 * that they can be dropped. The recipe's function queues the kernel again. An ORIGIN has what that takes: the op, its attributes, types,
 * and the handles of its input tensors. It holds no reference to a buffer, so it keeps no device memory.
 *
 * IN PLACE. An output may take the memory of an input at its last use. The write ends the input's recipe, and a recipe cannot name
 * a tensor both as an input and as an output. So the origin of such an output continues that of the contents that were in its memory:
 *
 *     h = relu(add(matmul(x, w), b))        all three results are in one tensor T
 *
 *     origin of T:  relu(T)  ->  add(T, b)  ->  matmul(x, w)        [before] points to the right
 *     recipe of T:  inputs x, w, b; computes matmul, add and relu in the memory of T, in that order
 *
 * That is possible while the recipe of the earlier contents is valid, which [ended] says, and its inputs still have handles: not if
 * the program has freed one. At most ORIGIN_OPS ops are continued. An output without recipe is moved, as without recipes.
 *
 * VALIDITY. A recipe is valid if its inputs still hold what the op read when the recipe is set. The inputs of the op itself do: the
 * call has references to them, so no other op takes their memory. Those of earlier ops need not have references. So on a session with
 * recipes the whole of each op that may write to an input runs in the session's turn, from the check of [ended] to the recipe.
 *
 * LIFETIME. An origin is reference-counted: the recipe has a reference (its user pointer), the buffer whose contents may be continued,
 * and each origin that continues it. Recipes end in any thread, so the count is atomic. All recipes of a session have ended when its
 * values and variables are gone, so they may use the session. */
#ifndef HR_RUNTIME_ORIGIN_H
#define HR_RUNTIME_ORIGIN_H

#include "runtime/engine/engine.h"

typedef struct hr__origin hr__origin;

/* The origin of the outputs of an op that is about to run, in a session with recipes; call it when they have buffers. [in_place]: the first output is in the memory
 * of an input. NULL: they cannot have a recipe, or there is no host memory for it, which is no error. */
hr__origin *hr__origin_new(const hr__task *task, const hr__slot *ins, uint32_t in_count, const hr__slot *outs, bool in_place);
/* The op is about to be pinned: if its origin continues that of what the first output holds, keeps that recipe until
 * hr_tensor_unhold_recipe. Returns the tensor; id 0 = there is nothing to keep. [origin] may be NULL. */
hr_tensor hr__origin_hold(const hr__origin *origin, const hr__slot *outs);
/* The op was queued: sets the recipe of the outputs. Consumes the origin; NULL is allowed. A recipe that cannot be set is no error. */
void hr__origin_attach(hr__origin *origin, const hr__slot *outs);
/* Consumes a reference; NULL is allowed. */
void hr__origin_release(hr__origin *origin);
/* The contents of the buffer are about to change, or it is freed. */
void hr__origin_forget(hr__buffer *buffer);

/* ---- cost.c ---- */

/* Estimated time of a run, for an op that can run again; at least 1. */
uint64_t hr__op_cost_ns(enum hr__op_kind kind, const hr__attrs *attrs, const hr__type *ins, uint32_t in_count, const hr__type *outs, bool on_card);

#endif
