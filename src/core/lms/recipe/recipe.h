/* recipe.h - recipes: what a dropped tensor is computed from, and by what.
 *
 *     recipe.c      makes and ends recipes; follows them from input to output and back
 *     extend.c      extends a recipe by an op that ran in place
 *     drop.c        drops tensors: which may be dropped, and which are cheaper to drop than to copy
 *     recompute.c   runs recipes; memory.c: the memory of what they compute
 *     source.c      inputs of recipes that are not tensors
 *     ghost.c       what the program destroyed and recipes still need
 *
 *            inputs            recipe            outputs
 *         tensor A --------> +--------+ --------> tensor B    B->recipe, and B is one of recipe->outputs
 *         tensor C --------> | op, fn | --------> tensor D
 *                            +--------+
 *            A->dependents lists the recipes that A is an input of
 *
 * STREAMS. A run reads the inputs on the stream of the pin that needs an output. The program orders its own work on the inputs, but
 * does not know of this work. So the run waits for the streams that used the inputs, and a later write pin of an input waits for the
 * streams that recipes read it on (HR__RECIPE_READ). The outputs' memory counts as allocated by the stream of the run, so that pins
 * for other streams wait for the work that computes them.
 *
 * WORDS. A tensor is DROPPED (tensor->dropped) from the moment, under the lock, in which its recipe becomes the only source of its
 * contents until the work that computes it again is queued. A GHOST is a tensor that the program has destroyed and that is still an
 * input of a recipe: its record has a new generation, so no handle of the program finds it.
 *
 * INVARIANTS, for hr_lms_check (number 10 of state.h):
 *   a  a dropped tensor has a recipe, and so has a ghost
 *   b  a tensor is among the outputs of its recipe, and in no other; an input's list of dependents has exactly the recipes that
 *      name it
 *   c  a recipe has at least one output, unless it is running or held
 *   d  an input of a recipe is not NEW: it is resident, evicted, dropped or a ghost
 *   e  a ghost has at least one dependent; a thread that takes the last one destroys it at once
 *   f  recipe_use agrees with [recipe] and [dependents]
 *   g  a tensor that holds a recipe is its holder, and is or was one of its outputs
 *
 * VALID. An input's contents cannot change while a recipe depends on it: a write pin first ends those recipes
 * (hr__recipe_end_dependents). So a recipe that exists is valid. A dropped tensor among its outputs, or among those of a recipe that
 * depends on it through ghosts, is recomputed before the recipe is ended. A write pin of an output takes the output from its recipe.
 *
 * IN PLACE. An op in place changes what its recipe computes, so the write takes the tensor from its recipe. If the program has the tensor
 * HOLD the recipe before, the recipe and its inputs stay, ghosts included, until the op is queued. Then an EXTENDED recipe takes their
 * place: it has the inputs of the old recipe and those of the op, and runs the ops of the old one first, in the memory of the tensor. The
 * old recipe has ended, but is kept for its function (recipe->before). A held recipe ends as any other if one of its inputs is written.
 *
 * ACYCLIC. A recipe may be set only for tensors that no recipe depends on yet. So its inputs' recipes are all older than it, and
 * following recipes from outputs to inputs always leads to older ones.
 *
 * LOCKS. The context's lock guards all of this. No function of a recipe is called with it.
 *
 * A thread RUNS a recipe from recipe->running = true to false, both under the lock. Meanwhile
 *   - the recipe's dropped outputs that it computes are RECOMPUTING, which is exclusive access
 *   - its inputs stay its inputs: a thread that ends the recipe, or makes a ghost of an input, waits
 *   - then it pins the inputs, which may run their recipes first, and calls the program's function
 *
 * NO DEADLOCK. A thread that runs a recipe waits for these only:
 *   1  another thread that runs a recipe that is older, because it pins an input that is dropped. The chain of such waits ends at a
 *      thread that waits for none
 *   2  threads with exclusive access to a tensor for another reason (EVICTING, RESTORING, MOVING, DESTROYING). They wait for no
 *      recipe: moving a tensor never recomputes one, and a thread that destroys a tensor ends the recipes before it claims the tensor
 * It does not wait for memory that other threads have pinned (hr__pin_wait_for_room), because other threads may wait for it; its pins
 * fail instead, all of it is undone, and the outermost pin, which then runs nothing, may wait. It does not wait for a recipe to end
 * or to stop running because it wants to write or destroy an input: that is refused (hr__recompute_is_running). A thread that does
 * wait for that runs no recipe; it may hold pins, for which nobody waits but other threads without memory.
 *
 * MEMORY. While a recipe inside others runs, its inputs and outputs have memory, and the inputs of the others that it does not compute.
 * Nothing is dropped that would need more than the limits allow for that, or more than recipe_depth recipes; whether that memory is free
 * then is another question. Under pressure what it has computed already may be dropped again, so MAX_RUNS limits the runs of a chain. */
#ifndef HR_LMS_RECIPE_H
#define HR_LMS_RECIPE_H

#include "core/base/text/text.h"
#include "core/lms/lms.h"

#define HR__RECIPE_DEPTH_DEFAULT 32u
#define HR__RECIPE_DEPTH_MAX 256u
#define HR__RECIPE_TENSORS_MAX 65536u

/* Bits of hr__tensor.recipe_use. */
#define HR__RECIPE_HAS 1u   /* it has a recipe */
#define HR__RECIPE_FEEDS 2u /* recipes depend on it */
#define HR__RECIPE_READ 4u  /* recipes may be reading it on the device, on streams that the program does not know of */

/* Values of hr__tensor.ghost other than 0. */
#define HR__GHOST_BECOMING 1u /* DESTROYING: its memory and host copy are being released */
#define HR__GHOST_YES 2u

/* An input of a recipe, as an item of the input's list of dependents; for a source, of the list of its bucket. */
typedef struct hr__recipe_input {
	hr__tensor *tensor; /* NULL for a source */
	uint64_t source;
	struct hr__recipe *recipe;
	struct hr__recipe_input *next, **link; /* *link points here */
} hr__recipe_input;

/* Immutable except where it says otherwise; the rest under the context's lock. The input, source and output counts of an extended recipe are
 * those of all its ops; the inputs of the earlier ops come first. */
typedef struct hr__recipe {
	hr__lms *lms;
	struct hr__recipe *before; /* extended: the recipe whose ops run first; it has ended. NULL = not extended */
	hr__atomic_u32 refs;       /* 1 until it has ended, and 1 from each recipe that has it as [before] */
	uint32_t ops;              /* that a run calls: this one and those before */
	uint32_t first_input;      /* of this op */
	uint32_t target;           /* extended: the output that the ops change, of those of the first op */
	size_t bytes; /* of this allocation */
	hr_status (*recompute)(void *user, const hr_recompute *call);
	void (*release)(void *user);
	void *user;
	uint64_t cost_ns;
	hr_name op;
	uint32_t input_count, source_count, output_count;
	uint32_t outputs_left;           /* that are not NULL */
	bool running;
	hr__tensor *holder;              /* NULL = it is not held */
	uint64_t visit;                  /* number of the last walk that came here */
	uint32_t depth;                  /* found by that walk, like need */
	uint64_t need;
	struct hr__recipe *next_ended;   /* in a list of recipes to release */
	hr__recipe_input *inputs;        /* and, after those, the sources */
	hr__tensor **outputs;            /* NULL = destroyed, overwritten, or given another recipe */
	/* Used by the thread that runs it: */
	hr_pin *pins;                    /* of the inputs */
	hr_tensor *input_handles, *output_handles;
} hr__recipe;

/* ---- ending recipes (recipe.c) ---- */

/* What has ended under the lock, to be released without it. Zero-initialized = nothing. */
typedef struct hr__recipe_ended {
	hr__recipe *recipes;
	hr__tensor *ghosts;
} hr__recipe_ended;

/* Takes a tensor from its recipe; without outputs, that ends, at once or when it stops running. Does nothing if the tensor has none.
 * With the lock. */
void hr__recipe_detach(hr__tensor *tensor, hr__recipe_ended *ended);
/* Ends a recipe that has no outputs any more, unless it is running or held. With the lock. */
void hr__recipe_end_unused(hr__recipe *recipe, hr__recipe_ended *ended);
/* Releases what has ended, and what ends with it. Without locks. */
void hr__recipe_release(hr__recipe_ended *ended);
/* What keeps the recipes that depend on a tensor from being ended. */
typedef struct hr__recipe_obstacle {
	bool running;        /* one of them is running */
	hr__tensor *dropped; /* a dropped tensor needs one; not a ghost */
} hr__recipe_obstacle;
hr__recipe_obstacle hr__recipe_find_obstacle(const hr__tensor *tensor); /* with the lock */
void hr__recipe_end_all(hr__tensor *tensor, hr__recipe_ended *ended);   /* if there is no obstacle; with the lock */
/* The same for one recipe, and the recipes that depend on it through ghosts. */
hr__recipe_obstacle hr__recipe_find_obstacle_of(hr__recipe *recipe);
void hr__recipe_end_one(hr__recipe *recipe, hr__recipe_ended *ended);
/* HR_INVALID_ARGUMENT, with the message for a thread that runs a recipe and writes or destroys an input. */
hr_status hr__recipe_fail_running(const hr__tensor *tensor);

/* A tensor is about to lose its contents: recomputes the dropped tensors that depend on it, on [stream], and ends the recipes that
 * depend on it. HR_INVALID_ARGUMENT: the calling thread runs a recipe. Otherwise the status of a recomputation; some recipes may have
 * ended then. Without locks. [tensor] must be one that [handle] names; if it is another by now, nothing is done. */
hr_status hr__recipe_end_dependents(hr__tensor *tensor, hr_tensor handle, hr_stream stream);
/* A tensor was pinned for writing on [stream]: takes it from its recipe, and makes the stream wait for recipes that read it. Without
 * locks. */
hr_status hr__recipe_written(hr__tensor *tensor, hr_stream stream);
/* A tensor does not hold its recipe any more; nothing if it does not hold one. With the lock. */
void hr__recipe_unhold(hr__tensor *tensor, hr__recipe_ended *ended);
/* Ends all recipes of a context that is closing. */
void hr__recipe_close(hr__lms *lms);

/* ---- making (recipe.c) ---- */

/* A recipe with room for what [given] names, behind [before]'s; NULL = none. Not linked. */
hr_status hr__recipe_allocate(const hr_recipe *given, hr__recipe *before, hr__recipe **out);
/* Checks the arguments that no lock is needed for. [call] is the function's name. */
hr_status hr__recipe_check_call(const hr_recipe *given, const char *call);
/* Finds the records of the inputs, and lists the sources. */
hr_status hr__recipe_find_inputs(const hr_recipe *given, hr__recipe *recipe);
hr_status hr__recipe_check_off(const hr__recipe *recipe);
/* The checks that need the lock: of output [at], whose mark becomes [walk], and of the inputs of the recipe's own op. */
hr_status hr__recipe_check_output(hr__recipe *recipe, uint32_t at, hr_tensor handle, uint64_t walk);
hr_status hr__recipe_check_inputs(const hr__recipe *recipe, const hr_tensor *handles, uint64_t walk);
/* Makes the recipe that of its outputs. With the lock. */
void hr__recipe_link(hr__recipe *recipe, hr__recipe_ended *ended);

/* ---- sources (source.c); with the lock ---- */

/* Makes room for [count] more; false without host memory. */
bool hr__recipe_source_reserve(hr__lms *lms, uint32_t count);
void hr__recipe_source_link(hr__lms *lms, hr__recipe_input *input);
void hr__recipe_source_unlink(hr__lms *lms, hr__recipe_input *input);
void hr__recipe_source_close(hr__lms *lms);

/* Sets the bits of recipe_use. With the lock. */
void hr__recipe_note_use(hr__tensor *tensor);

/* A walk over recipes: hr__recipe_visit is true the first time that the walk comes to a recipe. With the lock. */
uint64_t hr__recipe_begin_walk(hr__lms *lms);
static inline bool hr__recipe_visit(hr__recipe *recipe, uint64_t walk)
{
	bool first = recipe->visit != walk;
	recipe->visit = walk;
	return first;
}

/* The name of its op in messages: "softmax". */
static inline hr__brief_text hr__recipe_op(const hr__recipe *recipe)
{
	return hr__brief(recipe->op ? hr_name_text(recipe->op) : "?", 60);
}

/* 0, or 10 if an invariant is violated for the tensor. All tensors are frozen. */
int hr__recipe_check(const hr__tensor *tensor);

/* ---- dropping (drop.c) ---- */

/* What it would take to compute a tensor again, if it were dropped. */
typedef struct hr__recipe_chain {
	uint32_t depth;   /* recipes one inside another, with those of dropped tensors that depend on it */
	uint64_t need;    /* most device bytes that these recipes have pinned at once */
	uint64_t cost_ns; /* of all recipes that would run for it, each once; UINT64_MAX = not known */
} hr__recipe_chain;

/* Measures the chain of a tensor with a recipe. False if it is deeper than allowed, needs more memory than there is, or is too wide to
 * measure. With the lock. */
bool hr__drop_measure(hr__tensor *tensor, hr__recipe_chain *chain);
/* Whether it would be dropped rather than copied when its memory is needed. Without locks; a hint. */
bool hr__drop_is_cheaper(hr__tensor *tensor);
/* Whether it may be dropped if there is no other way, whatever that costs. Without locks; a hint. */
bool hr__drop_is_possible(const hr__tensor *tensor);
/* What could be dropped now, by the costs of the recipes alone: chains are not followed. Without locks. */
hr__droppable hr__drop_survey(hr__lms *lms);
/* Drops a tensor (EVICTING) and settles it: DROPPED, or RESIDENT on failure. HR_NOT_READY: it has no recipe. HR_UNSUPPORTED: its chain
 * is too deep. */
hr_status hr__drop(hr__tensor *tensor, hr_stream stream);
/* hr__move_evict, or hr__drop if that is cheaper, or if the host is full. */
hr_status hr__drop_or_evict(hr__tensor *tensor, hr_stream stream);
/* A dropped tensor got memory, or is destroyed: it is not dropped any more. With the lock. */
void hr__drop_end(hr__tensor *tensor);

/* ---- running (recompute.c) ---- */

enum hr__recompute_then {
	HR__THEN_KEEP = 1, /* the tensor stays resident as long as others do not need its memory */
	HR__THEN_PIN,      /* it is pinned */
	HR__THEN_DETACH    /* it is taken from its recipe, before another thread can drop it again */
};
/* Runs the recipe of a tensor that was DROPPED when [word] was read, on [stream]; HR_STREAM_HOST: on the default stream. *done: the
 * tensor is RESIDENT now, and [then] was done. HR_OK without *done: its state has changed, so look again. */
hr_status hr__recompute(hr__tensor *tensor, uint64_t word, hr_stream stream, enum hr__recompute_then then, bool *done);
/* Whether a pin would recompute its tensor, as it is now. */
bool hr__recompute_would_run(hr_pin pin);
/* Recomputes the tensors of those pins, one after the other; none is pinned meanwhile. Until hr__recompute_apart_end they are not dropped
 * again when others need their memory, but moved. Stops at the first failure. */
hr_status hr__recompute_apart(const hr_pin *pins, size_t count, hr_stream stream);
void hr__recompute_apart_end(const hr_pin *pins, size_t count);
/* Whether the calling thread runs a recipe. */
bool hr__recompute_is_running(void);
/* HR_IN_USE, with a message, if the calling thread is recomputing the tensor (RECOMPUTING); waiting for it would never end. */
hr_status hr__recompute_check_own(const hr__tensor *tensor);
/* The address of a RECOMPUTING tensor, for hr_tensor_get_address: allocates its memory. */
hr_status hr__recompute_get_address(hr__tensor *tensor, void **out);

/* ---- memory (memory.c) ---- */

/* The work that computes a RECOMPUTING tensor is queued on [stream], which [epoch] covers: settles it RESIDENT. */
void hr__move_end_recompute(hr__tensor *tensor, hr_stream stream, uint64_t epoch, bool pinned);
/* Frees its memory, if it has any, and settles it DROPPED. */
void hr__move_undo_recompute(hr__tensor *tensor, hr_stream stream);
/* Moves the memory of a tensor (EVICTING), which becomes NEW, to a RECOMPUTING one of the same size. */
void hr__move_take(hr__tensor *tensor, hr__tensor *from);

/* ---- ghosts (ghost.c) ---- */

/* What becomes of a tensor that the program destroys. */
enum hr__fate {
	HR__FATE_GONE,  /* it is DESTROYING, and its recipes have ended */
	HR__FATE_GHOST, /* it is DESTROYING, and is to be a ghost */
	HR__FATE_WAIT,  /* nothing has changed: its state has, or a recipe that it is an input of is running. Look again later */
	HR__FATE_END    /* nothing has changed: hr__recipe_end_dependents first */
};
/* Decides, and claims the tensor at [from]. Without locks. */
enum hr__fate hr__ghost_decide(hr__tensor *tensor, uint64_t word, enum hr__place from, hr__recipe_ended *ended);
/* Whether pins of a tensor may be those of a recipe that is running, or are gone already: then the program may destroy the tensor after a
 * wait. Without locks. */
bool hr__ghost_is_pinned_by_recipe(hr__tensor *tensor);
/* Makes a ghost of a tensor (DESTROYING) whose memory and host copy were released. */
void hr__ghost_settle(hr__tensor *tensor, uint32_t generation);
/* A ghost got memory. With the lock. */
void hr__ghost_list(hr__tensor *tensor);
/* A ghost has no memory any more, or is destroyed. With the lock. */
void hr__ghost_unlist(hr__tensor *tensor);
/* Drops the ghosts that have memory and that no plan needs, unless a recipe is running. Without locks. */
void hr__ghost_drop_all(hr__lms *lms);

#endif
