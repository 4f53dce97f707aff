/* evict_queue.h - tensors of a context in the order of eviction, so that an eviction examines few of them.
 *
 *     HR__EVICT_BY_USE    all resident tensors: by priority, then by last use. Those that may not be evicted are last
 *     HR__EVICT_PLANNED   tensors that the plan evicts or drops: by when their copy was made or, if the plan drops any, by when their
 *                         memory is free (hr__tensor.evict_number). Those that were pinned since are last
 *     HR__EVICT_RECENT    tensors evicted since the last request that did not fit, in no order
 *
 * Each queue is a binary heap. An item has the key that its tensor had when it was put there. Pins change the last use and clear
 * [evict_first] without the lock, so a stored key may be out of date. It is never greater than the real key, because these changes
 * only raise a key. A WALK looks at the least item; if its real key is greater, the item is put back with that key. So the item
 * that a walk returns has the least key of all that are left. Code that lowers a key does so under the lock, and calls
 * hr__evict_queue_put.
 *
 * There is one exception: a pin that waited for memory stores the number that it got before the wait over the later number of
 * another thread, without the lock. The tensor may then count as used at that later time, which it was.
 *
 * Everything here is under the context's lock. Nothing allocates: the arrays grow with the list of members (members.c). */
#ifndef HR_LMS_EVICT_QUEUE_H
#define HR_LMS_EVICT_QUEUE_H

#include <stdbool.h>
#include <stdint.h>

struct hr__lms;
struct hr__tensor;

enum hr__evict_queue_id { HR__EVICT_BY_USE, HR__EVICT_PLANNED, HR__EVICT_RECENT, HR__EVICT_QUEUES };

#define HR__EVICT_UNQUEUED UINT32_MAX
#define HR__EVICT_LAST INT64_MAX /* priority of tensors that no walk returns */

/* The smaller key is evicted first. */
typedef struct hr__evict_key {
	int64_t priority;
	uint64_t number;
} hr__evict_key;

typedef struct hr__evict_item {
	hr__evict_key key;
	struct hr__tensor *tensor;
} hr__evict_item;

typedef struct hr__evict_queue {
	hr__evict_item *items;
	uint32_t count;
} hr__evict_queue;

/* Puts a tensor into a queue, or updates its position if it is there. */
void hr__evict_queue_put(struct hr__lms *lms, enum hr__evict_queue_id id, struct hr__tensor *tensor);
/* Removes a tensor from a queue. Does nothing if it is not there. */
void hr__evict_queue_remove(struct hr__lms *lms, enum hr__evict_queue_id id, struct hr__tensor *tensor);
void hr__evict_queue_remove_all(struct hr__lms *lms, struct hr__tensor *tensor); /* from all queues */
/* The tensor's priority changed, or whether it may be evicted. */
void hr__evict_queue_update(struct hr__lms *lms, struct hr__tensor *tensor);
/* Whether there is a tensor that the plan evicts; pinned or not. */
bool hr__evict_queue_any_planned(struct hr__lms *lms);
/* Whether items are in order, and tensors have the right indices. */
bool hr__evict_queue_is_sound(const struct hr__lms *lms, enum hr__evict_queue_id id);

/* Tensors of a queue in order; equal ones in the order of the list of members. Nothing may be put or removed between begin and
 * end. */
typedef struct hr__evict_walk {
	struct hr__lms *lms;
	enum hr__evict_queue_id id;
	uint32_t left;  /* items that are still a heap; those behind it were removed */
	uint32_t group; /* items from [left] on that are not returned yet: equal ones, the next one last */
	uint32_t most;  /* items that may still be removed, each at the cost of a logarithm of the count */
	bool gave_up;   /* [most] was reached before the end */
} hr__evict_walk;

hr__evict_walk hr__evict_walk_begin(struct hr__lms *lms, enum hr__evict_queue_id id, uint32_t most);
/* NULL = none is left, or [gave_up]. */
struct hr__tensor *hr__evict_walk_next(hr__evict_walk *walk);
void hr__evict_walk_end(hr__evict_walk *walk);

#endif
