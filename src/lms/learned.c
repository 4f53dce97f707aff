/* learned.c - the policy that learns from one step what the next will do.
 *
 * A step is RECORDED as pin calls: which tensors each names, and how long the device worked between it and its unpin (marks, device.h).
 * When it is over and tensors had to leave in it, a PLAN is made of the record (plan.h). In the next step
 *
 *   a tensor is told by the number of tensors that were created in the step before it, if it has the size of the one in the record; one
 *   that was there before the step is itself. A use is told by how many uses of that tensor the step has had
 *
 *   after a use behind which the plan sends the tensor away, its copy to the host is begun, and it is free to be dropped: the next request
 *   that has no room takes the oldest such tensor (reclaim.c), by when its copy is likely to be done
 *
 *   returns are asked for when the call is reached that the plan says, in its order; one that finds no room waits for the next call
 *
 *   a tensor that had to leave though it should have stayed, a STRAY, is asked back before all that are needed later
 *
 * Plans count bytes. Pages that are partly in use have bytes which no large tensor can have, so plans leave some alone; and where steps that
 * go as planned have strays, free memory is put together before each step if that costs little, and what was found scattered is left alone.
 *
 * Tensors that are used in another way than the record says have no plan: they stay, or leave, as lru would have it. The record of a step
 * that differs is not made a plan of, as long as the plan in force has proved right before; a second one like it is.
 *
 * Everything here is under the context's lock, but for the moving itself. */
#include <string.h>

#include "base/checked.h"
#include "base/status.h"
#include "lms/lms.h"
#include "lms/layout.h"
#include "lms/plan.h"
#include "lms/repeats.h"
#include "memory/blocks.h"

#define NONE UINT32_MAX
#define LINK_GUESS UINT64_C(50000000000) /* bytes per second, until copies were timed */
#define COPY_NS 20000u
#define TIMED_MIN (UINT64_C(4) << 20) /* smaller copies tell little about the link */
#define COPIES 64u
#define UNTIMED_NS 1000u /* an op takes, as long as nothing is known */
#define RETURNS_AT_ONCE 64u
#define CORRECTIONS 8u
#define STRAY_LEAD 8u  /* calls before it is needed, a stray is asked back at the latest */
#define FAR_OFF 8u     /* this part of a step away, a next use is so late that it makes no difference how late it is */
#define OFF_PART 16u    /* a use that comes this part of a step too early or too late is another one than the plan's */
#define OFF_MIN 8u      /* so many of them, and a quarter of all: the step is another one */
#define SPARE_PAGES 24u /* are lost to blocks that end within a page, where memory is large enough for as many */
#define GATHERED 4u
#define MAPPING_SHARE 50u /* mapping may take this part of a step before memory is put together for a layout */
#define MEASURED 3u /* steps that went as planned, in which ops are timed all the same */

/* ---- growing arrays ---- */

struct array {
	void *items;
	uint32_t count, capacity;
};

static bool array_grow(struct array *array, size_t item)
{
	uint32_t capacity = array->capacity ? array->capacity * 2 : 256;
	void *items;
	if (array->capacity > (1u << 28) || hr__os()->alloc(capacity * item, &items)) return false;
	if (array->count) memcpy(items, array->items, array->count * item);
	if (array->items) hr__os()->free(array->items, array->capacity * item);
	array->items = items;
	array->capacity = capacity;
	return true;
}

static void array_free(struct array *array, size_t item)
{
	if (array->items) hr__os()->free(array->items, array->capacity * item);
	*array = (struct array){ 0 };
}

#define AT(type, array, index) (((type *)(array).items)[index])

/* ---- what was seen of a step ---- */

struct seen_tensor {
	hr_tensor handle; /* of one that lived before the step, or lives on */
	uint64_t bytes;
	uint32_t died;    /* op, or HR__PLAN_NEVER */
	uint32_t created; /* its number among those created in the step; NONE = it lived before */
	bool stays, apart; /* apart: it has pages of its own, which are in nobody's way */
};

struct seen_op {
	uint32_t first_use;
	uint32_t stream;
	uint64_t begin, end; /* marks; 0 = none */
	uint64_t ns;
};

struct record {
	struct array tensors, ops, uses; /* seen_tensor, seen_op, hr__plan_use */
	uint32_t created;                /* tensors created in the step */
	uint32_t timed;                  /* ops whose time is known, or will never be */
	bool measured, broken;           /* ops have marks; memory for it ran out */
	uint64_t signature;
};

static void record_clear(struct record *record)
{
	record->tensors.count = record->ops.count = record->uses.count = record->created = record->timed = 0;
	record->measured = record->broken = false;
	record->signature = UINT64_C(0xcbf29ce484222325);
}

static void record_free(struct record *record)
{
	array_free(&record->tensors, sizeof(struct seen_tensor));
	array_free(&record->ops, sizeof(struct seen_op));
	array_free(&record->uses, sizeof(hr__plan_use));
}

static void record_sign(struct record *record, uint64_t value)
{
	record->signature = (record->signature ^ value) * UINT64_C(0x100000001b3);
}

/* ---- the plan in force ---- */

struct leave {
	uint32_t op;  /* of the use */
	bool copied;  /* after it: its copy to the host is begun, because this was the last write before it leaves */
	bool leaves;  /* after it */
};

struct comeback {
	uint32_t before, tensor;
	uint32_t need; /* op that uses it; number of ops and more = in the next step */
};

struct stray {
	hr_tensor handle;
	uint32_t need; /* as above */
};

struct force {
	hr__plan plan;
	bool is_set;
	uint32_t tensor_count, op_count, created_count;
	uint32_t *first;        /* of each tensor, into uses; one more at the end */
	struct leave *uses;     /* of all tensors, in order of ops */
	uint32_t use_count;
	uint32_t *created;      /* tensor that was created as number i; NONE = it was never used */
	uint64_t *bytes;
	bool *lives_on;         /* and lived before: used again in the next step */
	hr_tensor *present;     /* who is that tensor in the step that runs; id 0 = nobody yet */
	struct comeback *returns; /* by before, then by need */
	hr__stay *stays;        /* of all tensors on the device, and where they lie */
	uint32_t *first_stay;   /* of each tensor, one more at the end */
	uint32_t stay_capacity;
	bool placing;           /* places were looked for, */
	bool laid_out;          /* and found; */
	uint32_t late;          /* for that, they were given this much less time than they should have */
	uint64_t signature, compute_ns;
	uint32_t matches;       /* steps that went as it says */
};

struct copy_seen {
	bool out;
	uint64_t mark, before; /* numbers of the marks after and before it */
	uint64_t bytes;
};

struct hr__learned {
	struct record now, last;
	struct force force;
	bool recording, has_last;
	uint64_t before_last; /* signature of the step before the last */
	uint32_t step;       /* number, to tell whether a tensor's slot is of this step */
	uint32_t position;   /* pin calls in this step */
	uint32_t created;    /* tensors created in it */
	uint32_t mismatches; /* in it */
	uint32_t on, off;    /* uses in it, as planned and not */
	uint32_t next_return;
	struct array waiting; /* hr_tensor: returns that were asked for and are not done */
	struct array strays;  /* struct stray: not asked back yet */
	uint64_t link_out, link_in; /* fastest seen; 0 = none yet */
	struct copy_seen copies[COPIES];
	uint32_t copy_count;
	uint64_t slack;      /* of memory that plans leave alone, because it was found scattered */
	uint64_t memory;     /* that the last plan was made for */
	uint64_t unplanned;  /* bytes that had to leave in this step against the plan, */
	uint64_t scattered;  /* and most bytes that were free then, but of no use */
	uint32_t corrections;
	bool tidies;         /* free memory is put together before each step, */
	uint64_t tidy_ns;    /* which took so long the last time; 0 = it was not done yet */
	uint64_t area, area_bytes; /* where the plan's layout is; 0 = nowhere yet */
	uint64_t mapping;    /* time that mapping pages took until this step */
	bool costly;         /* it takes so much that places are worth finding */
	bool planning;       /* somebody is making a plan of [last] */
	uint32_t gathered;   /* times memory was put together for a layout */
	hr__repeats *repeats; /* watched as long as nobody says when steps begin; NULL until there is need */
	bool watching;       /* steps begin where a repeat does */
	bool wants_plan;     /* the last record should become one, once its times are known */
	hr__atomic_u8 settled; /* the plan in force has proved right often enough: nothing needs timing. For those without the lock */
};

/* ---- opening and closing ---- */

hr_status hr__learned_open(hr__lms *lms)
{
	void *block;
	int error = hr__os()->alloc(sizeof(struct hr__learned), &block);
	if (error) return hr__os_fail(error, "cannot get host memory for the learned policy");
	lms->learned = block;
	record_clear(&lms->learned->now);
	record_clear(&lms->learned->last);
	return HR_OK;
}

static void force_free(struct force *force)
{
	if (force->first) hr__os()->free(force->first, (force->tensor_count + 1) * sizeof *force->first);
	if (force->uses) hr__os()->free(force->uses, (force->use_count + 1) * sizeof *force->uses);
	if (force->created) hr__os()->free(force->created, (force->created_count + 1) * sizeof *force->created);
	if (force->bytes) hr__os()->free(force->bytes, (force->tensor_count + 1) * sizeof *force->bytes);
	if (force->lives_on) hr__os()->free(force->lives_on, (force->tensor_count + 1) * sizeof *force->lives_on);
	if (force->present) hr__os()->free(force->present, (force->tensor_count + 1) * sizeof *force->present);
	if (force->returns) hr__os()->free(force->returns, (force->plan.move_count + 1) * sizeof *force->returns);
	if (force->stays) hr__os()->free(force->stays, (force->stay_capacity + 1) * sizeof *force->stays);
	if (force->first_stay) hr__os()->free(force->first_stay, (force->tensor_count + 1) * sizeof *force->first_stay);
	hr__plan_free(&force->plan);
	*force = (struct force){ 0 };
}

void hr__learned_close(hr__lms *lms)
{
	struct hr__learned *learned = lms->learned;
	if (!learned) return;
	record_free(&learned->now);
	record_free(&learned->last);
	force_free(&learned->force);
	array_free(&learned->waiting, sizeof(hr_tensor));
	array_free(&learned->strays, sizeof(struct stray));
	hr__repeats_close(learned->repeats);
	hr__os()->free(learned, sizeof *learned);
	lms->learned = NULL;
}

/* ---- recording, under the lock ---- */

/* The tensor's number in the record of this step. */
static uint32_t slot_of(struct hr__learned *learned, hr__tensor *tensor, uint32_t created)
{
	struct record *record = &learned->now;
	if (tensor->learned.step == learned->step && tensor->learned.slot != NONE) return tensor->learned.slot;
	tensor->learned.step = learned->step;
	tensor->learned.uses = 0;
	tensor->learned.slot = NONE;
	if (!learned->recording || record->broken) return NONE;
	if (record->tensors.count == record->tensors.capacity && !array_grow(&record->tensors, sizeof(struct seen_tensor))) {
		record->broken = true;
		return NONE;
	}
	tensor->learned.slot = record->tensors.count++;
	uint64_t bytes = hr__tensor_device_bytes(tensor);
	AT(struct seen_tensor, record->tensors, tensor->learned.slot) = (struct seen_tensor){
		.handle = hr__tensor_handle(tensor, hr__load_relaxed(&tensor->word)), .bytes = bytes, .died = HR__PLAN_NEVER, .created = created,
		.stays = hr__load_relaxed(&tensor->never_evict), .apart = hr__owns_pages(tensor)
	};
	return tensor->learned.slot;
}

void hr__learned_created(hr__lms *lms, hr__tensor *tensor)
{
	struct hr__learned *learned = lms->learned;
	if (!learned) return;
	hr__lock_take(&lms->lock);
	struct force *force = &learned->force;
	uint32_t number = learned->created++;
	slot_of(learned, tensor, number);
	record_sign(&learned->now, tensor->bytes);
	if (force->is_set && number < force->created_count && force->created[number] != NONE) {
		uint32_t planned = force->created[number];
		if (hr__tensor_device_bytes(tensor) == force->bytes[planned]) {
			tensor->learned.planned = planned;
			force->present[planned] = hr__tensor_handle(tensor, hr__load_relaxed(&tensor->word));
		} else {
			learned->mismatches++;
			hr__lms_count(&lms->stats.num_mismatches, 1);
		}
	}
	hr__lock_release(&lms->lock);
}

void hr__learned_destroyed(hr__lms *lms, hr__tensor *tensor)
{
	struct hr__learned *learned = lms->learned;
	if (!learned) return;
	hr__lock_take(&lms->lock);
	struct record *record = &learned->now;
	if (learned->recording && tensor->learned.step == learned->step && tensor->learned.slot != NONE && record->ops.count)
		AT(struct seen_tensor, record->tensors, tensor->learned.slot).died = record->ops.count - 1;
	/* One of the next step may have taken its place already. */
	hr_tensor *present = learned->force.is_set && tensor->learned.planned != NONE ? &learned->force.present[tensor->learned.planned] : NULL;
	if (present && present->id == hr__tensor_handle(tensor, hr__load_relaxed(&tensor->word)).id) present->id = 0;
	hr__lock_release(&lms->lock);
}

static bool record_op(struct hr__learned *learned, hr_stream stream)
{
	struct record *record = &learned->now;
	if (!learned->recording || record->broken) return false;
	if (record->ops.count == record->ops.capacity && !array_grow(&record->ops, sizeof(struct seen_op))) record->broken = true;
	if (record->broken) return false;
	AT(struct seen_op, record->ops, record->ops.count++) = (struct seen_op){ .first_use = record->uses.count, .stream = stream };
	return true;
}

/* A tensor that is named twice in a call is used once. */
static void record_use(struct hr__learned *learned, hr__tensor *tensor, uint32_t slot, bool write)
{
	struct record *record = &learned->now;
	uint32_t first = AT(struct seen_op, record->ops, record->ops.count - 1).first_use;
	if (slot == NONE || record->broken) return;
	if (tensor->learned.uses && tensor->learned.use >= first && tensor->learned.use < record->uses.count &&
	    AT(hr__plan_use, record->uses, tensor->learned.use).tensor == slot) {
		AT(hr__plan_use, record->uses, tensor->learned.use).write |= write;
		return;
	}
	tensor->learned.uses++;
	if (record->uses.count == record->uses.capacity && !array_grow(&record->uses, sizeof(hr__plan_use))) {
		record->broken = true;
		return;
	}
	tensor->learned.use = record->uses.count;
	AT(hr__plan_use, record->uses, record->uses.count++) = (hr__plan_use){ slot, write };
}

/* Compares the use that a tensor is having with the plan's. */
static void compare_use(struct hr__learned *learned, const hr__tensor *tensor)
{
	const struct force *force = &learned->force;
	uint32_t planned = tensor->learned.planned, position = learned->position - 1;
	if (!force->is_set || planned == NONE || !learned->position) return;
	uint32_t uses = tensor->learned.step == learned->step ? tensor->learned.uses : 0, use = force->first[planned] + uses;
	uint32_t op = use < force->first[planned + 1] ? force->uses[use].op : NONE, apart = op > position ? op - position : position - op;
	if (apart > force->op_count / OFF_PART + 1) learned->off++;
	else learned->on++;
}

/* This is another step than the plan's, and what the plan says of tensors that it takes for its own is wrong. */
static bool is_lost(const struct hr__learned *learned)
{
	return learned->off >= OFF_MIN && learned->off > learned->on / 3;
}

void hr__learned_pinned(hr__lms *lms, const hr_pin *pins, size_t count, hr_stream stream)
{
	struct hr__learned *learned = lms->learned;
	uint64_t mark = 0;
	bool measure = hr__load_relaxed(&lms->stats.num_evictions) > 0 && !hr__load_relaxed(&learned->settled);
	if (measure && hr__device_mark(lms->device, stream, &mark)) mark = 0;
	hr__lock_take(&lms->lock);
	if (record_op(learned, stream)) {
		record_sign(&learned->now, count);
		AT(struct seen_op, learned->now.ops, learned->now.ops.count - 1).begin = mark;
		for (size_t i = 0; i < count; i++) {
			hr_status ignored;
			hr__tensor *tensor = hr__tensor_of(pins[i].tensor, &ignored);
			compare_use(learned, tensor);
			record_use(learned, tensor, slot_of(learned, tensor, NONE), pins[i].access != HR_READ);
		}
	}
	hr__lock_release(&lms->lock);
}

/* ---- times ---- */

/* Finds out how long ops took whose marks are done, a few at a time. */
static void time_ops(hr__lms *lms, struct record *record, uint32_t most)
{
	for (; record->timed < record->ops.count && most; record->timed++, most--) {
		struct seen_op *op = &AT(struct seen_op, record->ops, record->timed);
		uint64_t begin = 0, end = 0;
		if (!op->begin || !op->end) continue;
		hr_status status = hr__device_mark_time(lms->device, op->stream, op->begin, &begin);
		if (!status) status = hr__device_mark_time(lms->device, op->stream, op->end, &end);
		if (status == HR_NOT_READY) return;
		if (status) continue;
		op->ns = end > begin ? end - begin : 0;
		record->measured = true;
	}
}

/* The fastest copy seen is what the link can do. */
static void time_copies(hr__lms *lms)
{
	struct hr__learned *learned = lms->learned;
	for (uint32_t i = 0; i < learned->copy_count && i < COPIES; i++) {
		const struct copy_seen *copy = &learned->copies[i];
		uint64_t begin = 0, end = 0;
		hr_stream stream = copy->out ? lms->out : lms->in;
		if (hr__device_mark_time(lms->device, stream, copy->before, &begin) || hr__device_mark_time(lms->device, stream, copy->mark, &end))
			continue;
		if (end <= begin + COPY_NS) continue;
		double rate = (double)copy->bytes * 1e9 / (double)(end - begin - COPY_NS);
		uint64_t *fastest = copy->out ? &learned->link_out : &learned->link_in;
		if (rate < 1e13 && (uint64_t)rate > *fastest) *fastest = (uint64_t)rate;
	}
	learned->copy_count = 0;
}

bool hr__learned_times_copy(const hr__lms *lms, uint64_t bytes)
{
	return lms->learned && bytes >= TIMED_MIN && !hr__load_relaxed(&lms->learned->settled);
}

void hr__learned_copied(hr__lms *lms, bool out, uint64_t bytes, uint64_t before, uint64_t after)
{
	struct hr__learned *learned = lms->learned;
	hr__lock_take(&lms->lock);
	learned->copies[learned->copy_count++ % COPIES] = (struct copy_seen){ out, after, before, bytes };
	hr__lock_release(&lms->lock);
}

/* ---- making a plan, under the lock ---- */

static void *zeroed(size_t count, size_t item)
{
	void *block;
	return hr__os()->alloc((count + 1) * item, &block) ? NULL : block;
}

/* What a plan is made from: the record in the planner's words. The caller frees the two arrays. */
static hr_status describe(const struct record *record, hr__plan_step *step)
{
	hr__plan_op *ops = zeroed(record->ops.count, sizeof *ops);
	hr__plan_tensor *tensors = zeroed(record->tensors.count, sizeof *tensors);
	bool *used = zeroed(record->tensors.count, sizeof *used);
	*step = (hr__plan_step){ .ops = ops, .uses = record->uses.items, .tensors = tensors, .op_count = record->ops.count,
		                     .use_count = record->uses.count, .tensor_count = record->tensors.count };
	if (!ops || !tensors || !used) {
		if (used) hr__os()->free(used, (record->tensors.count + 1) * sizeof *used);
		return HR_NO_HOST_MEMORY;
	}
	for (uint32_t i = 0; i < record->ops.count; i++) {
		const struct seen_op *op = &AT(struct seen_op, record->ops, i);
		ops[i] = (hr__plan_op){ record->measured ? op->ns : UNTIMED_NS, op->first_use };
	}
	for (uint32_t i = 0; i < record->uses.count; i++) used[AT(hr__plan_use, record->uses, i).tensor] = true;
	for (uint32_t i = 0; i < record->tensors.count; i++) {
		const struct seen_tensor *seen = &AT(struct seen_tensor, record->tensors, i);
		tensors[i] = (hr__plan_tensor){ used[i] ? seen->bytes : 0, used[i] ? seen->died : HR__PLAN_NEVER, seen->created == NONE, seen->stays };
	}
	hr__os()->free(used, (record->tensors.count + 1) * sizeof *used);
	return HR_OK;
}

/* Which tensors the plan is about, and their uses. */
static hr_status index_uses(const struct record *record, struct force *force)
{
	uint32_t tensors = record->tensors.count;
	force->tensor_count = tensors;
	force->op_count = record->ops.count;
	force->use_count = record->uses.count;
	force->created_count = 0;
	for (uint32_t i = 0; i < tensors; i++) {
		uint32_t created = AT(struct seen_tensor, record->tensors, i).created;
		if (created != NONE && created >= force->created_count) force->created_count = created + 1;
	}
	force->first = zeroed(tensors, sizeof *force->first);
	force->uses = zeroed(force->use_count, sizeof *force->uses);
	force->created = zeroed(force->created_count, sizeof *force->created);
	force->bytes = zeroed(tensors, sizeof *force->bytes);
	force->lives_on = zeroed(tensors, sizeof *force->lives_on);
	force->present = zeroed(tensors, sizeof *force->present);
	force->returns = zeroed(force->plan.move_count, sizeof *force->returns);
	if (!force->first || !force->uses || !force->created || !force->bytes || !force->lives_on || !force->present || !force->returns)
		return HR_NO_HOST_MEMORY;
	memset(force->created, 0xff, (force->created_count + 1) * sizeof *force->created);
	for (uint32_t i = 0; i < tensors; i++) {
		const struct seen_tensor *seen = &AT(struct seen_tensor, record->tensors, i);
		force->bytes[i] = seen->bytes;
		force->lives_on[i] = seen->created == NONE && seen->died == HR__PLAN_NEVER;
		if (seen->created != NONE) force->created[seen->created] = i;
		if (force->lives_on[i]) force->present[i] = seen->handle;
	}
	/* Counting sort of uses by tensor; ops stay in order. */
	for (uint32_t i = 0; i < force->use_count; i++) force->first[AT(hr__plan_use, record->uses, i).tensor + 1]++;
	for (uint32_t i = 0; i < tensors; i++) force->first[i + 1] += force->first[i];
	uint32_t *next = zeroed(tensors, sizeof *next);
	if (!next) return HR_NO_HOST_MEMORY;
	memcpy(next, force->first, tensors * sizeof *next);
	for (uint32_t op = 0; op < force->op_count; op++) {
		uint32_t from = AT(struct seen_op, record->ops, op).first_use;
		uint32_t to = op + 1 < force->op_count ? AT(struct seen_op, record->ops, op + 1).first_use : force->use_count;
		for (uint32_t i = from; i < to; i++) force->uses[next[AT(hr__plan_use, record->uses, i).tensor]++].op = op;
	}
	hr__os()->free(next, (tensors + 1) * sizeof *next);
	force->signature = record->signature;
	return HR_OK;
}

/* What is done at which use, and returns in order. */
static void arrange(struct force *force)
{
	for (uint32_t i = 0; i < force->plan.move_count; i++) {
		const hr__plan_move *move = &force->plan.moves[i];
		for (uint32_t k = force->first[move->tensor]; k < force->first[move->tensor + 1]; k++)
		{
			if (force->uses[k].op == move->out_after) force->uses[k].leaves = true;
			if (force->uses[k].op == move->copy_after && !move->clean) force->uses[k].copied = true;
		}
	}
	/* Returns by the call before which they are asked for, and among those by the call that needs them: an insertion sort by buckets
	 * would do, but moves are few. */
	uint32_t count = 0;
	for (uint32_t i = 0; i < force->plan.move_count; i++) force->returns[count++] = (struct comeback){ force->plan.moves[i].in_before, i, 0 };
	for (uint32_t i = 1; i < count; i++) {
		struct comeback item = force->returns[i];
		const hr__plan_move *move = &force->plan.moves[item.tensor];
		uint32_t distance = (move->needed_by + force->op_count - item.before) % force->op_count, k = i;
		for (; k > 0; k--) {
			const struct comeback *other = &force->returns[k - 1];
			const hr__plan_move *other_move = &force->plan.moves[other->tensor];
			uint32_t other_distance = (other_move->needed_by + force->op_count - other->before) % force->op_count;
			if (other->before < item.before || (other->before == item.before && other_distance <= distance)) break;
			force->returns[k] = *other;
		}
		force->returns[k] = item;
	}
	for (uint32_t i = 0; i < count; i++) {
		struct comeback *item = &force->returns[i];
		const hr__plan_move *move = &force->plan.moves[item->tensor];
		item->tensor = move->tensor;
		item->need = move->needed_by + (move->needed_by < item->before ? force->op_count : 0);
	}
}

/* Moves from [from] towards [to], a part [late] of LATE of the way round the ring. */
#define LATE 4u
static uint32_t between(uint32_t from, uint32_t to, uint32_t n, uint32_t late)
{
	uint64_t way = (to + n - from) % n;
	return (from + (uint32_t)(way * (late < LATE ? late : LATE) / LATE)) % n;
}

/* When memory is taken for a return: when its way back begins, or later. */
static uint32_t return_op(const hr__plan_move *move, uint32_t n, uint32_t late)
{
	return late <= LATE ? move->starts_by : between(move->starts_by, move->needed_by, n, late - LATE);
}

/* Until when memory counts as taken: until the copy is done, or less. */
static uint32_t gone_op(const hr__plan_move *move, uint32_t n, uint32_t late)
{
	return between(move->out_after, move->gone_by, n, late < LATE ? LATE - late : 0);
}

/* When each tensor is on the device, and where it should lie then. */
static hr_status lay_out(const struct record *record, struct force *force, uint32_t late, uint64_t most, bool *fits)
{
	uint32_t n = force->op_count, count = 0;
	force->stay_capacity = force->tensor_count + force->plan.move_count;
	if (!force->stays) force->stays = zeroed(force->stay_capacity, sizeof *force->stays);
	if (!force->first_stay) force->first_stay = zeroed(force->tensor_count, sizeof *force->first_stay);
	uint32_t *next = zeroed(force->tensor_count, sizeof *next);
	if (!force->stays || !force->first_stay || !next) {
		if (next) hr__os()->free(next, (force->tensor_count + 1) * sizeof *next);
		return HR_NO_HOST_MEMORY;
	}
	/* One stay, and one more for each move; cut by moves in order of their op. */
	for (uint32_t i = 0; i < force->plan.move_count; i++) next[force->plan.moves[i].tensor]++;
	for (uint32_t t = 0; t < force->tensor_count; t++) {
		const struct seen_tensor *seen = &AT(struct seen_tensor, record->tensors, t);
		uint32_t moves = next[t], used = force->first[t + 1] - force->first[t];
		force->first_stay[t] = count;
		next[t] = count;
		if (!used || seen->bytes <= HR__SMALL_MAX || seen->apart) continue;
		uint32_t first = force->uses[force->first[t]].op, last = seen->died != HR__PLAN_NEVER ? seen->died : n - 1;
		bool ring = force->lives_on[t];
		if (!ring && seen->created == NONE) first = 0;
		if (ring && !moves) first = 0;
		count += ring && moves ? moves : moves + 1;
		force->stays[next[t]] = (hr__stay){ seen->bytes, first, last, 0 };
	}
	force->first_stay[force->tensor_count] = count;
	for (uint32_t i = 0; i < force->plan.move_count; i++) {
		const hr__plan_move *move = &force->plan.moves[i];
		uint32_t t = move->tensor, begin = force->first_stay[t], end = force->first_stay[t + 1], at = next[t];
		if (begin == end) continue;
		if (!force->lives_on[t]) { /* a piece ends here, and the rest begins where it returns */
			hr__stay rest = force->stays[at];
			force->stays[at].to = gone_op(move, n, late);
			rest.from = return_op(move, n, late);
			force->stays[at + 1] = rest;
		} else { /* pieces between moves, the last of which goes over the end of the step */
			uint32_t following = at + 1 < end ? at + 1 : begin;
			force->stays[at].bytes = AT(struct seen_tensor, record->tensors, t).bytes;
			force->stays[at].to = gone_op(move, n, late);
			force->stays[following].bytes = force->stays[at].bytes;
			force->stays[following].from = return_op(move, n, late);
		}
		next[t]++;
	}
	hr__os()->free(next, (force->tensor_count + 1) * sizeof *next);
	return hr__layout_make(force->stays, count, n, most, fits);
}

/* Tensors of the last plan are strangers to the new one, but for those that it names. */
static void assign(hr__lms *lms, struct force *force)
{
	for (uint32_t i = 0; i < lms->member_count; i++) lms->members[i]->learned.planned = NONE;
	for (uint32_t i = 0; i < force->tensor_count; i++) {
		hr_status ignored;
		hr__tensor *tensor = force->present[i].id ? hr__tensor_of(force->present[i], &ignored) : NULL;
		if (tensor) tensor->learned.planned = i;
		else force->present[i].id = 0;
	}
}

static uint64_t bytes_of_others(hr__lms *lms, int64_t in_use)
{
	int64_t other = in_use - hr__load_relaxed(&lms->resident);
	return other > 0 ? (uint64_t)other : 0;
}

/* A plan; [places]: with places for everybody, if they can be found: the less time copies and returns are given, the better it packs. */
static hr_status draw_up(const struct record *record, const hr__plan_step *step, const hr__plan_machine *machine, bool places,
                         struct force *force)
{
	hr_status status = hr__plan_make(step, machine, &force->plan);
	if (!status) status = index_uses(record, force);
	for (force->late = 0; force->late <= 2 * LATE && !status && places; force->late++) {
		status = lay_out(record, force, force->late, machine->memory, &force->laid_out);
		if (!status && force->laid_out) break;
	}
	if (status) return status;
	/* A return that is asked for before the link has time for it only holds memory. */
	for (uint32_t i = 0; i < force->plan.move_count; i++)
		force->plan.moves[i].in_before = return_op(&force->plan.moves[i], step->op_count, force->laid_out ? force->late : 0);
	arrange(force);
	force->compute_ns = hr__plan_compute_ns(step);
	force->is_set = true;
	return HR_OK;
}

/* A little less memory may pack much better. Without the lock: nobody else looks at the record. */
static hr_status draw_best(const struct record *record, const hr__plan_step *step, const hr__plan_machine *machine, bool places,
                           struct force *best)
{
	hr_status status = draw_up(record, step, machine, places, best);
	best->placing = places;
	for (uint32_t less = 1; less <= 2 && !status && best->late > LATE / 2; less++) {
		struct force other = { 0 };
		hr__plan_machine smaller = *machine;
		smaller.memory -= machine->memory / 100 * less;
		if (draw_up(record, step, &smaller, places, &other) || other.late >= best->late) {
			force_free(&other);
		} else {
			force_free(best);
			*best = other;
			best->placing = true;
		}
	}
	return status;
}

/* What the planner may count on. Under the lock. */
static hr__plan_machine machine_of(hr__lms *lms, uint64_t other_bytes)
{
	struct hr__learned *learned = lms->learned;
	uint64_t limit = hr__load_relaxed(&lms->limit), memory = lms->allocator->limit;
	if (limit != UINT64_MAX && limit + other_bytes < memory) memory = limit + other_bytes;
	learned->memory = memory;
	uint64_t slack = SPARE_PAGES * lms->allocator->page;
	if (slack > memory / 96) slack = memory / 96;
	if (slack < memory / 256) slack = memory / 256;
	if (slack < learned->slack) slack = learned->slack;
	time_copies(lms);
	return (hr__plan_machine){ .memory = slack < memory ? memory - slack : memory,
		                       .out_bytes_per_s = learned->link_out ? learned->link_out : LINK_GUESS,
		                       .in_bytes_per_s = learned->link_in ? learned->link_in : learned->link_out ? learned->link_out : LINK_GUESS,
		                       .copy_ns = COPY_NS };
}

/* Makes a plan of the last record, and puts it in force. [in_use] of the allocator. Without the lock, which is let go for as long as it
 * takes; learned->planning keeps others away from the record. */
static void make_plan(hr__lms *lms, int64_t in_use)
{
	struct hr__learned *learned = lms->learned;
	struct force force = { 0 };
	hr__plan_step step;
	uint64_t bound = 0;
	hr_status status = describe(&learned->last, &step);
	step.other_bytes = bytes_of_others(lms, in_use);
	hr__lock_take(&lms->lock);
	hr__plan_machine machine = machine_of(lms, step.other_bytes);
	hr__lock_release(&lms->lock);
	if (!status) status = draw_best(&learned->last, &step, &machine, learned->costly, &force);
	if (!status) status = hr__plan_bound(&step, &machine, &bound);
	if (step.ops) hr__os()->free((void *)(uintptr_t)step.ops, (step.op_count + 1) * sizeof *step.ops);
	if (step.tensors) hr__os()->free((void *)(uintptr_t)step.tensors, (step.tensor_count + 1) * sizeof *step.tensors);
	if (status) { /* the step goes on as it is; the plan in force may still be right */
		force_free(&force);
		return;
	}
	hr__lock_take(&lms->lock);
	if (learned->force.is_set && learned->force.signature == force.signature) force.matches = learned->force.matches;
	force_free(&learned->force);
	learned->force = force;
	assign(lms, &learned->force);
	hr__lock_release(&lms->lock);
	hr__store_relaxed(&lms->stats.plan_bound_ns, (int64_t)bound);
	hr__store_relaxed(&lms->stats.plan_step_ns, (int64_t)force.plan.step_ns);
	hr__store_relaxed(&lms->stats.plan_bytes_out, (int64_t)force.plan.bytes_out);
	hr__store_relaxed(&lms->stats.plan_bytes_in, (int64_t)force.plan.bytes_in);
}

/* ---- steps ---- */

static uint64_t compute_ns(const struct record *record)
{
	uint64_t sum = 0;
	for (uint32_t i = 0; i < record->ops.count; i++) sum += AT(struct seen_op, record->ops, i).ns;
	return sum;
}

/* Ops are not timed in every step. What they took in another one like it is as good. */
static void keep_times(struct record *record, const struct record *before)
{
	if (!before->measured || before->ops.count != record->ops.count) return;
	for (uint32_t i = 0; i < record->ops.count; i++) AT(struct seen_op, record->ops, i).ns = AT(struct seen_op, before->ops, i).ns;
	record->measured = true;
}

/* It went as planned, and yet somebody had to go who should have stayed: there is less room than there are bytes. True when there should be
 * another plan. */
static bool correct(struct hr__learned *learned)
{
	if (learned->costly || learned->corrections >= CORRECTIONS) return false;
	learned->corrections++;
	if (!learned->tidies) {
		learned->tidies = true;
		return false;
	}
	uint64_t slack = learned->scattered < learned->memory / 16 ? learned->scattered : learned->memory / 16;
	if (slack <= learned->slack) return false;
	learned->slack = slack;
	return true;
}

/* A step is over: is its record worth a plan? */
static void judge(struct hr__learned *learned, bool pressed)
{
	struct force *force = &learned->force;
	struct record *done = &learned->now;
	if (!learned->recording || done->broken || !done->ops.count) return;
	bool same = force->is_set && done->signature == force->signature && !learned->mismatches;
	bool twice = learned->has_last && done->signature == learned->last.signature;
	if (same) force->matches++;
	if (twice && !done->measured) keep_times(done, &learned->last);
	/* Of two kinds in turn, the longer one has a plan. */
	bool in_turn = learned->has_last && done->signature == learned->before_last && done->ops.count <= force->op_count;
	bool better = !force->is_set || (!same && (twice || (!force->matches && !in_turn)));
	/* Ops take another time than they did: the first steps of a program are not typical. */
	uint64_t ns = compute_ns(done);
	if (same && done->measured && ns + ns / 20 < force->compute_ns) better = true;
	if (same && done->measured && force->compute_ns + force->compute_ns / 20 < ns) better = true;
	if (same && learned->unplanned && correct(learned)) better = true;
	if (learned->has_last) learned->before_last = learned->last.signature;
	struct record swap = learned->last;
	learned->last = learned->now;
	learned->now = swap;
	learned->has_last = true;
	learned->wants_plan = pressed && better;
}

/* Pages were put side by side all through the last step, which takes the host's time and makes it wait. So everything goes out once, memory is
 * put together, and from now on each tensor has its place in it. */
static void gather_memory(hr__lms *lms)
{
	struct hr__learned *learned = lms->learned;
	uint64_t bytes = 0, area = 0, area_bytes = 0;
	if (hr__reclaim_all(lms, HR_NAME_NONE, &bytes) || hr__blocks_gather(lms->allocator, &area, &area_bytes)) return;
	hr__lock_take(&lms->lock);
	learned->area = area;
	learned->area_bytes = area_bytes;
	learned->gathered++;
	learned->mapping = hr__blocks_map_ns(lms->allocator);
	hr__lock_release(&lms->lock);
}

/* The same without sending anybody away: what is free in many places is free in one. Not where it takes long. */
static void tidy(hr__lms *lms)
{
	struct hr__learned *learned = lms->learned;
	uint64_t begin = hr__blocks_map_ns(lms->allocator), address, bytes;
	/* As long as it was not done, mapping all memory once is what is known. */
	uint64_t takes = learned->tidy_ns ? learned->tidy_ns : begin;
	if (takes > learned->force.plan.step_ns / MAPPING_SHARE || hr__blocks_gather(lms->allocator, &address, &bytes)) return;
	learned->tidy_ns = hr__blocks_map_ns(lms->allocator) - begin;
}

static void end_step(hr__lms *lms)
{
	struct hr__learned *learned = lms->learned;
	hr__lock_take(&lms->lock);
	time_ops(lms, &learned->now, UINT32_MAX);
	if (!learned->planning) judge(learned, hr__load_relaxed(&lms->stats.num_evictions) > 0);
	learned->recording = false;
	hr__lock_release(&lms->lock);
}

static void begin_step(hr__lms *lms)
{
	struct hr__learned *learned = lms->learned;
	hr_stats stats;
	hr_stats_init(&stats);
	hr_allocator_get_stats(lms->handle, &stats);
	hr__lock_take(&lms->lock);
	uint64_t mapping = hr__blocks_map_ns(lms->allocator), spent = mapping - learned->mapping;
	learned->mapping = mapping;
	const struct force *force = &learned->force;
	bool slow = force->matches > 0 && spent > force->plan.step_ns / MAPPING_SHARE;
	learned->costly |= slow;
	if (learned->costly && force->is_set && !force->placing && learned->has_last && learned->last.signature == force->signature)
		learned->wants_plan = true;
	bool plans = learned->wants_plan && !learned->planning;
	if (plans) {
		time_ops(lms, &learned->last, UINT32_MAX);
		learned->planning = true;
		learned->wants_plan = false;
	}
	hr__lock_release(&lms->lock);
	if (plans) make_plan(lms, stats.bytes_in_use);

	hr__lock_take(&lms->lock);
	if (plans) learned->planning = false;
	hr__store_relaxed(&learned->settled, force->matches >= MEASURED);
	record_clear(&learned->now);
	learned->recording = true;
	learned->step++;
	learned->position = learned->created = learned->mismatches = learned->next_return = 0;
	learned->on = learned->off = 0;
	learned->unplanned = learned->scattered = 0;
	for (uint32_t i = 0; i < learned->strays.count; i++) {
		struct stray *stray = &AT(struct stray, learned->strays, i);
		stray->need -= stray->need < force->op_count ? stray->need : force->op_count;
	}
	if (learned->force.is_set) hr__lms_count(&lms->stats.num_steps_planned, 1);
	hr__store_relaxed(&learned->settled, force->matches >= MEASURED);
	bool gathers = slow && force->laid_out && force->matches >= MEASURED && learned->gathered < GATHERED;
	bool tidies = learned->tidies && !learned->costly && force->is_set;
	hr__lock_release(&lms->lock);
	if (gathers) gather_memory(lms);
	else if (tidies) tidy(lms);
}

void hr__learned_step(hr__lms *lms, bool begins)
{
	if (lms->learned && begins) begin_step(lms);
	else if (lms->learned) end_step(lms);
}

/* ---- following it ---- */

/* What a pin call looks like from outside. */
static uint64_t look_of(const hr_pin *pins, size_t count)
{
	uint64_t look = count;
	for (size_t i = 0; i < count; i++) {
		hr_status ignored;
		const hr__tensor *tensor = hr__tensor_of(pins[i].tensor, &ignored);
		look = (look ^ (tensor ? tensor->bytes : 0) ^ (uint64_t)pins[i].access << 56) * UINT64_C(0x100000001b3);
	}
	return look;
}

/* Programs that mark no steps: one begins wherever their calls begin to repeat. */
static void watch(hr__lms *lms, const hr_pin *pins, size_t count)
{
	struct hr__learned *learned = lms->learned;
	uint64_t look = look_of(pins, count);
	hr__lock_take(&lms->lock);
	if (!learned->repeats && hr__repeats_open(&learned->repeats)) learned->repeats = NULL;
	int64_t there = hr__load_relaxed(&lms->resident) + hr__load_relaxed(&lms->stats.bytes_out_now);
	bool begins = learned->repeats && hr__repeats_note(learned->repeats, look, (uint64_t)there), ends = begins && learned->watching;
	learned->watching |= begins;
	hr__lock_release(&lms->lock);
	if (ends) end_step(lms);
	if (begins) begin_step(lms);
	if (begins) hr__lms_count(&lms->stats.num_repeats, 1);
}

static void want_back(struct hr__learned *learned, hr_tensor handle)
{
	/* Without host memory its pin brings it back. */
	if (handle.id && (learned->waiting.count < learned->waiting.capacity || array_grow(&learned->waiting, sizeof(hr_tensor))))
		AT(hr_tensor, learned->waiting, learned->waiting.count++) = handle;
}

/* Asks for the strays that are needed by [need] or before. */
static void want_strays_back(struct hr__learned *learned, uint32_t need)
{
	for (uint32_t i = 0; i < learned->strays.count;) {
		struct stray *stray = &AT(struct stray, learned->strays, i);
		if (stray->need > need) {
			i++;
			continue;
		}
		want_back(learned, stray->handle);
		*stray = AT(struct stray, learned->strays, --learned->strays.count);
	}
}

/* Asks for what the plan wants back before this call, and for what found no room before. */
void hr__learned_before(hr__lms *lms, const hr_pin *pins, size_t count)
{
	struct hr__learned *learned = lms->learned;
	if (!hr__load_relaxed(&lms->stats.num_steps) && hr__load_relaxed(&lms->stats.num_evictions)) watch(lms, pins, count);
	struct force *force = &learned->force;
	hr_tensor wanted[RETURNS_AT_ONCE];
	uint32_t found = 0;
	hr__lock_take(&lms->lock);
	uint32_t position = learned->position++;
	if (force->is_set && !is_lost(learned)) {
		for (; learned->next_return < force->plan.move_count && force->returns[learned->next_return].before <= position; learned->next_return++) {
			const struct comeback *comeback = &force->returns[learned->next_return];
			want_strays_back(learned, comeback->need);
			want_back(learned, force->present[comeback->tensor]);
		}
		want_strays_back(learned, position + STRAY_LEAD);
	}
	/* Taken out of the list, so that no other thread asks for the same. */
	for (; found < learned->waiting.count && found < RETURNS_AT_ONCE; found++) wanted[found] = AT(hr_tensor, learned->waiting, found);
	learned->waiting.count -= found;
	if (found) memmove(learned->waiting.items, (hr_tensor *)learned->waiting.items + found, learned->waiting.count * sizeof(hr_tensor));
	hr__lock_release(&lms->lock);

	uint32_t left = 0;
	for (uint32_t i = 0; i < found; i++) {
		hr_status status;
		hr__tensor *tensor = hr__tensor_of(wanted[i], &status);
		if (!tensor) continue;
		uint64_t word = hr__load_acquire(&tensor->word);
		hr__store_relaxed(&tensor->leaves, 0);
		if (hr__place_of(word) == HR__OUT && hr__prefetch(tensor, word) == HR_OUT_OF_MEMORY) wanted[left++] = wanted[i];
	}
	if (!left) return;
	hr__lock_take(&lms->lock);
	while (learned->waiting.capacity - learned->waiting.count < left && array_grow(&learned->waiting, sizeof(hr_tensor))) {}
	if (learned->waiting.capacity - learned->waiting.count >= left) { /* else their pins bring them back */
		memmove((hr_tensor *)learned->waiting.items + left, learned->waiting.items, learned->waiting.count * sizeof(hr_tensor));
		memcpy(learned->waiting.items, wanted, left * sizeof(hr_tensor));
		learned->waiting.count += left;
	}
	hr__lock_release(&lms->lock);
}

/* What the plan does with it after the use that it has just had. NULL when there is no plan for it. */
static const struct leave *planned_use(const struct hr__learned *learned, const hr__tensor *tensor)
{
	const struct force *force = &learned->force;
	uint32_t planned = tensor->learned.planned;
	if (!force->is_set || planned == NONE || tensor->learned.step != learned->step || !tensor->learned.uses || is_lost(learned)) return NULL;
	uint32_t use = force->first[planned] + tensor->learned.uses - 1;
	return use < force->first[planned + 1] ? &force->uses[use] : NULL;
}

/* Begins its copy to the host; the memory stays until somebody needs it. */
static void send(hr__tensor *tensor, uint64_t word, bool leaves)
{
	hr__lms *lms = tensor->lms;
	if (hr__load_relaxed(&tensor->never_evict) || !hr__tensor_claim(tensor, word, HR__HOME, HR__LEAVING)) return;
	hr__lms_enter(lms);
	if (!hr__move_sync(tensor) && leaves) {
		hr__store_relaxed(&tensor->leaves, 1);
		hr__lms_count(&lms->stats.num_planned_evictions, 1);
	}
	hr__tensor_settle(tensor, HR__HOME, 0);
	hr__lms_leave(lms);
}

void hr__learned_unpinned(hr__lms *lms, const hr_pin *pins, size_t count, hr_stream stream)
{
	struct hr__learned *learned = lms->learned;
	uint64_t mark = 0;
	/* With a mark after each op, who waits for memory of one does not wait for the next. */
	if (hr__load_relaxed(&lms->stats.num_evictions) > 0 && hr__device_mark(lms->device, stream, &mark)) mark = 0;
	hr__lock_take(&lms->lock);
	if (learned->recording && learned->now.ops.count) AT(struct seen_op, learned->now.ops, learned->now.ops.count - 1).end = mark;
	time_ops(lms, &learned->now, 4);
	bool planned = learned->force.is_set;
	hr__lock_release(&lms->lock);
	for (size_t i = 0; i < count && planned; i++) {
		hr_status ignored;
		hr__tensor *tensor = hr__tensor_of(pins[i].tensor, &ignored);
		if (!tensor) continue; /* destroyed meanwhile */
		hr__lock_take(&lms->lock);
		const struct leave *use = planned_use(learned, tensor);
		bool copied = use && use->copied, leaves = use && use->leaves;
		hr__lock_release(&lms->lock);
		if (copied || leaves) send(tensor, pins[i].tensor.id, leaves);
	}
}

uint64_t hr__learned_place(const hr__tensor *tensor)
{
	hr__lms *lms = tensor->lms;
	const struct hr__learned *learned = lms->learned;
	if (!learned || tensor->bytes <= HR__SMALL_MAX) return 0;
	uint64_t place = 0;
	hr__lock_take(&lms->lock);
	const struct force *force = &learned->force;
	uint32_t planned = tensor->learned.planned;
	if (learned->area && force->laid_out && planned != NONE) {
		uint32_t uses = tensor->learned.step == learned->step ? tensor->learned.uses : 0, use = force->first[planned] + uses;
		if (use >= force->first[planned + 1]) use = force->first[planned]; /* of the next step */
		for (uint32_t i = force->first_stay[planned]; use < force->first[planned + 1] && i < force->first_stay[planned + 1] && !place; i++) {
			const hr__stay *stay = &force->stays[i];
			uint32_t op = force->uses[use].op;
			bool here = stay->from <= stay->to ? op >= stay->from && op <= stay->to : op >= stay->from || op <= stay->to;
			if (here && stay->offset + stay->bytes <= learned->area_bytes) place = learned->area + stay->offset;
		}
	}
	hr__lock_release(&lms->lock);
	return place;
}

/* Calls until its next use, as far as is known; UINT64_MAX = it is not known to be used again. */
static uint64_t distance_to(const hr__lms *lms, const hr__tensor *tensor)
{
	const struct hr__learned *learned = lms->learned;
	const struct force *force = &learned->force;
	uint32_t planned = tensor->learned.planned;
	uint64_t idle = hr__load_relaxed(&lms->clock) - hr__load_relaxed(&tensor->last_use);
	if (!force->is_set || planned == NONE || is_lost(learned)) return idle + 1; /* what was idle for long is likely to stay so */
	uint32_t uses = tensor->learned.step == learned->step ? tensor->learned.uses : 0, next = force->first[planned] + uses;
	if (next < force->first[planned + 1]) {
		uint32_t op = force->uses[next].op;
		return op >= learned->position ? op - learned->position + 1 : 1;
	}
	if (!force->lives_on[planned] || force->first[planned] == force->first[planned + 1]) return UINT64_MAX;
	uint32_t left = learned->position < force->op_count ? force->op_count - learned->position : 0;
	return (uint64_t)left + force->uses[force->first[planned]].op + 1;
}

double hr__learned_worth(hr__lms *lms, const hr__tensor *tensor, bool alone)
{
	const struct force *force = &lms->learned->force;
	uint64_t distance = distance_to(lms, tensor);
	if (!alone || !force->is_set || distance == UINT64_MAX || is_lost(lms->learned)) return (double)distance;
	uint64_t far_off = force->op_count / FAR_OFF + 1;
	return (double)(distance < far_off ? distance : far_off) / (double)tensor->device_bytes;
}

void hr__learned_pressed(hr__lms *lms)
{
	struct hr__learned *learned = lms->learned;
	uint64_t scattered = hr__blocks_scattered(lms->allocator);
	if (scattered > learned->scattered) learned->scattered = scattered;
}

void hr__learned_evicted(hr__lms *lms, const hr__tensor *tensor)
{
	struct hr__learned *learned = lms->learned;
	if (!learned || hr__load_relaxed(&tensor->leaves)) return;
	hr__lock_take(&lms->lock);
	const struct force *force = &learned->force;
	learned->unplanned += tensor->device_bytes;
	uint64_t distance = force->is_set && tensor->learned.planned != NONE ? distance_to(lms, tensor) : UINT64_MAX;
	if (distance < UINT32_MAX / 2 && (learned->strays.count < learned->strays.capacity || array_grow(&learned->strays, sizeof(struct stray))))
		AT(struct stray, learned->strays, learned->strays.count++) =
			(struct stray){ force->present[tensor->learned.planned], learned->position + (uint32_t)distance - 1 };
	hr__lock_release(&lms->lock);
}
