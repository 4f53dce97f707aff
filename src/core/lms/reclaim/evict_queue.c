/* evict_queue.c - see evict_queue.h. */
#include "core/lms/reclaim/evict_queue.h"

#include "core/lms/lms.h"

static bool is_before(hr__evict_key a, hr__evict_key b)
{
	return a.priority != b.priority ? a.priority < b.priority : a.number < b.number;
}

static bool is_equal(hr__evict_key a, hr__evict_key b)
{
	return a.priority == b.priority && a.number == b.number;
}

static hr__evict_key key_of(enum hr__evict_queue_id id, const hr__tensor *tensor)
{
	HR_ASSERT(hr__lock_is_mine(&tensor->lms->lock));
	switch (id) {
	case HR__EVICT_BY_USE:
		if (hr__load_relaxed(&tensor->never_evict)) return (hr__evict_key){ HR__EVICT_LAST, 0 };
		return (hr__evict_key){ hr__load_relaxed(&tensor->priority), hr__load_relaxed(&tensor->last_use) };
	case HR__EVICT_PLANNED:
		if (!hr__load_relaxed(&tensor->evict_first)) return (hr__evict_key){ HR__EVICT_LAST, 0 };
		return (hr__evict_key){ 0, hr__evict_planned_number(tensor) };
	default: return (hr__evict_key){ 0, 0 };
	}
}

/* ---- a heap ---- */

static void set(hr__evict_queue *queue, enum hr__evict_queue_id id, uint32_t at, hr__evict_item item)
{
	queue->items[at] = item;
	item.tensor->queued[id] = at;
}

static void exchange(hr__evict_queue *queue, enum hr__evict_queue_id id, uint32_t a, uint32_t b)
{
	hr__evict_item item = queue->items[a];
	set(queue, id, a, queue->items[b]);
	set(queue, id, b, item);
}

static void sift_up(hr__evict_queue *queue, enum hr__evict_queue_id id, uint32_t at)
{
	HR_ASSERT(at < queue->count);
	hr__evict_item item = queue->items[at];
	for (; at > 0 && is_before(item.key, queue->items[(at - 1) / 2].key); at = (at - 1) / 2)
		set(queue, id, at, queue->items[(at - 1) / 2]);
	set(queue, id, at, item);
}

static void sift_down(hr__evict_queue *queue, enum hr__evict_queue_id id, uint32_t at, uint32_t count)
{
	HR_ASSERT(count <= queue->count);
	hr__evict_item item = queue->items[at];
	for (uint32_t child; (child = 2 * at + 1) < count; at = child) {
		if (child + 1 < count && is_before(queue->items[child + 1].key, queue->items[child].key)) child++;
		if (!is_before(queue->items[child].key, item.key)) break;
		set(queue, id, at, queue->items[child]);
	}
	set(queue, id, at, item);
}

/* Restores the heap after the key of item [at] changed. */
static void settle(hr__evict_queue *queue, enum hr__evict_queue_id id, uint32_t at)
{
	const hr__tensor *tensor = queue->items[at].tensor;
	sift_up(queue, id, at);
	if (tensor->queued[id] == at) sift_down(queue, id, at, queue->count);
}

void hr__evict_queue_put(hr__lms *lms, enum hr__evict_queue_id id, hr__tensor *tensor)
{
	HR_ASSERT(hr__lock_is_mine(&lms->lock));
	HR_ASSERT(tensor->lms == lms && lms->enabled);
	HR_ASSERT(tensor->queued[id] == HR__EVICT_UNQUEUED || lms->queues[id].items[tensor->queued[id]].tensor == tensor);
	hr__evict_queue *queue = &lms->queues[id];
	uint32_t at = tensor->queued[id] != HR__EVICT_UNQUEUED ? tensor->queued[id] : queue->count++;
	HR_ASSERT(queue->count <= lms->member_count);
	set(queue, id, at, (hr__evict_item){ key_of(id, tensor), tensor });
	settle(queue, id, at);
}

void hr__evict_queue_remove(hr__lms *lms, enum hr__evict_queue_id id, hr__tensor *tensor)
{
	HR_ASSERT(hr__lock_is_mine(&lms->lock));
	hr__evict_queue *queue = &lms->queues[id];
	uint32_t at = tensor->queued[id];
	if (at == HR__EVICT_UNQUEUED) return;
	tensor->queued[id] = HR__EVICT_UNQUEUED;
	if (at == --queue->count) return;
	set(queue, id, at, queue->items[queue->count]);
	settle(queue, id, at);
}

void hr__evict_queue_remove_all(hr__lms *lms, hr__tensor *tensor)
{
	for (int id = 0; id < HR__EVICT_QUEUES; id++) hr__evict_queue_remove(lms, (enum hr__evict_queue_id)id, tensor);
}

void hr__evict_queue_update(hr__lms *lms, hr__tensor *tensor)
{
	HR_ASSERT(hr__lock_is_mine(&lms->lock));
	if (tensor->queued[HR__EVICT_BY_USE] != HR__EVICT_UNQUEUED) hr__evict_queue_put(lms, HR__EVICT_BY_USE, tensor);
}

bool hr__evict_queue_is_sound(const hr__lms *lms, enum hr__evict_queue_id id)
{
	const hr__evict_queue *queue = &lms->queues[id];
	for (uint32_t i = 0; i < queue->count; i++) {
		const hr__evict_item *item = &queue->items[i];
		if (item->tensor->lms != lms || item->tensor->queued[id] != i) return false;
		if (i && is_before(item->key, queue->items[(i - 1) / 2].key)) return false;
	}
	return true;
}

/* ---- walking ---- */

hr__evict_walk hr__evict_walk_begin(hr__lms *lms, enum hr__evict_queue_id id, uint32_t most)
{
	HR_ASSERT(hr__lock_is_mine(&lms->lock));
	return (hr__evict_walk){ .lms = lms, .id = id, .left = lms->queues[id].count, .most = most };
}

void hr__evict_walk_end(hr__evict_walk *walk)
{
	HR_ASSERT(hr__lock_is_mine(&walk->lms->lock));
	HR_ASSERT(walk->left <= walk->lms->queues[walk->id].count);
	hr__evict_queue *queue = &walk->lms->queues[walk->id];
	for (uint32_t i = walk->left; i < queue->count; i++) sift_up(queue, walk->id, i);
	walk->left = queue->count;
}

/* Gives the least item its real key. False if no item can be returned. */
static bool correct_least(hr__evict_walk *walk)
{
	hr__evict_queue *queue = &walk->lms->queues[walk->id];
	while (walk->left) {
		hr__evict_item *least = &queue->items[0];
		hr__evict_key key = key_of(walk->id, least->tensor);
		if (!is_before(least->key, key)) return least->key.priority != HR__EVICT_LAST;
		walk->lms->tensors_examined++;
		least->key = key;
		sift_down(queue, walk->id, 0, walk->left);
	}
	return false;
}

/* Sorts items [from, to), which have equal keys, by index in the list of members: the first one last. */
static void sort_group(hr__evict_queue *queue, enum hr__evict_queue_id id, uint32_t from, uint32_t to)
{
	HR_ASSERT(from <= to && to <= queue->count);
	for (uint32_t i = from + 1; i < to; i++)
		for (uint32_t k = i; k > from && queue->items[k - 1].tensor->member < queue->items[k].tensor->member; k--)
			exchange(queue, id, k - 1, k);
}

/* Removes all items equal to the least one from the heap. */
static void take_group(hr__evict_walk *walk)
{
	hr__evict_queue *queue = &walk->lms->queues[walk->id];
	uint32_t to = walk->left;
	hr__evict_key key = { 0 };
	while (correct_least(walk) && (walk->left == to || is_equal(queue->items[0].key, key))) {
		if (!walk->most) {
			walk->gave_up = true;
			return;
		}
		walk->most--;
		walk->lms->tensors_examined++;
		key = queue->items[0].key;
		exchange(queue, walk->id, 0, --walk->left);
		sift_down(queue, walk->id, 0, walk->left);
	}
	walk->group = to - walk->left;
	sort_group(queue, walk->id, walk->left, to);
}

bool hr__evict_queue_any_planned(hr__lms *lms)
{
	HR_ASSERT(hr__lock_is_mine(&lms->lock));
	hr__evict_queue *queue = &lms->queues[HR__EVICT_PLANNED];
	hr__evict_walk walk = hr__evict_walk_begin(lms, HR__EVICT_PLANNED, 0);
	if (correct_least(&walk)) return true;
	/* All were pinned since. A tensor that is planned for eviction again is put here again. */
	while (queue->count) queue->items[--queue->count].tensor->queued[HR__EVICT_PLANNED] = HR__EVICT_UNQUEUED;
	return false;
}

hr__tensor *hr__evict_walk_next(hr__evict_walk *walk)
{
	HR_ASSERT(hr__lock_is_mine(&walk->lms->lock));
	HR_ASSERT(walk->left + walk->group <= walk->lms->queues[walk->id].count);
	if (!walk->group) take_group(walk);
	if (walk->gave_up || !walk->group) return NULL;
	return walk->lms->queues[walk->id].items[walk->left + --walk->group].tensor;
}
