/* lives.c - see lives.h.
 *
 * Invariants:
 *   1  by_place finds exactly the copies whose birth has state.copy set
 *   2  births come before what continues them: life.birth <= its own index
 *   3  state.copy and state.away are meaningful for births alone */
#include "analysis/capture/builder/lives.h"

#define NO_COPY 0u

typedef struct life_state {
	uint64_t copy; /* address of the host copy; NO_COPY: none */
	bool away;     /* not on the device now */
} life_state;

typedef struct life_copy {
	uint64_t address;
	uint32_t device;
	uint32_t birth; /* HR__NONE: the copy is gone, and the entry unused */
} life_copy;

/* The last events of a thread: allocations + 1, latest first; 0: none. */
struct hr__life_past {
	uint32_t allocs[2];
	uint32_t frees[2];
	uint64_t freed_at[2]; /* addresses */
};

hr_status hr__lives_init(hr__lives *lives, hr__array *items, hr__array *ends, uint64_t most, size_t threads, uint64_t salt)
{
	void *memory = NULL;
	*lives = (hr__lives){ .lives = items, .ends = ends, .by_place = { .salt = salt }, .threads = threads };
	hr_status status = hr__array_init(&lives->states, sizeof(life_state), most);
	if (!status) status = hr__array_init(&lives->copies, sizeof(life_copy), most);
	int error = status ? 0 : hr__os()->alloc((threads + 1) * sizeof *lives->pasts, &memory);
	lives->pasts = memory;
	return error ? hr__os_fail(error, "reading a trace") : status;
}

void hr__lives_free(hr__lives *lives)
{
	hr__array_free(&lives->states);
	hr__array_free(&lives->copies);
	hr__slots_free(&lives->by_place);
	if (lives->pasts) hr__os()->free(lives->pasts, (lives->threads + 1) * sizeof *lives->pasts);
	lives->pasts = NULL;
}

/* ---- entries ---- */

/* Entries are created only up to the last allocation that needs one; most recordings need none. */
static hr_status ensure(hr__lives *lives, uint32_t allocation)
{
	hr_status status = HR_OK;
	while (lives->lives->count <= allocation) {
		uint32_t index = (uint32_t)lives->lives->count;
		hr__life *life = hr__array_push(lives->lives, &status);
		hr__array_push(&lives->states, &status);
		if (status) return status;
		*life = (hr__life){ .birth = index };
	}
	return HR_OK;
}

static hr__life *life_at(const hr__lives *lives, uint32_t allocation)
{
	HR_ASSERT(allocation < lives->lives->count);
	return (hr__life *)(void *)lives->lives->base + allocation;
}

static uint32_t birth_of(const hr__lives *lives, uint32_t allocation)
{
	return allocation < lives->lives->count ? life_at(lives, allocation)->birth : allocation;
}

/* The state of the tensor that [allocation] belongs to; it has an entry. */
static life_state *state_of(const hr__lives *lives, uint32_t allocation)
{
	return (life_state *)(void *)lives->states.base + life_at(lives, allocation)->birth;
}

static bool goes_on(const hr__lives *lives, uint32_t allocation)
{
	return allocation < lives->lives->count && life_at(lives, allocation)->goes_on;
}

static bool has_copy(const hr__lives *lives, uint32_t allocation)
{
	return allocation < lives->lives->count && state_of(lives, allocation)->copy != NO_COPY;
}

/* Marks the tensor of a freed allocation as evicted. */
static hr_status leave(hr__lives *lives, uint32_t allocation)
{
	hr_status status = ensure(lives, allocation);
	if (status) return status;
	life_at(lives, allocation)->goes_on = true;
	state_of(lives, allocation)->away = true;
	return HR_OK;
}

/* ---- host copies ---- */

static life_copy *copy_at(const hr__lives *lives, uint32_t index)
{
	return (life_copy *)(void *)lives->copies.base + index;
}

/* The slot of the copy at [address] of a tensor of [device]. */
static bool find_copy(const hr__lives *lives, uint32_t device, uint64_t address, uint32_t *slot)
{
	const hr__slots *slots = &lives->by_place;
	uint32_t hash = hr__finder_hash(slots, address, device);
	for (*slot = hr__slots_first(slots, hash); hr__slots_holds(slots, hash, slot); ++*slot) {
		const life_copy *copy = copy_at(lives, slots->slots[*slot].item - 1);
		if (copy->address == address && copy->device == device) return true;
	}
	return false;
}

static uint32_t copy_birth(const hr__lives *lives, uint32_t device, uint64_t address)
{
	uint32_t slot;
	return find_copy(lives, device, address, &slot) ? copy_at(lives, lives->by_place.slots[slot].item - 1)->birth : HR__NONE;
}

static void note_device(hr__lives *lives, uint32_t device)
{
	for (uint32_t i = 0; i < lives->device_count; i++)
		if (lives->devices[i] == device) return;
	if (lives->device_count < HR__LIVES_DEVICES_MAX) lives->devices[lives->device_count++] = device;
}

static hr_status add_copy(hr__lives *lives, uint32_t device, uint64_t address, uint32_t birth)
{
	hr_status status = hr__slots_reserve(&lives->by_place);
	life_copy *copy = hr__array_push(&lives->copies, &status);
	if (status) return status;
	*copy = (life_copy){ address, device, birth };
	hr__slots_add(&lives->by_place, hr__finder_hash(&lives->by_place, address, device), (uint32_t)lives->copies.count - 1);
	note_device(lives, device);
	return HR_OK;
}

/* The copy of the tensor [birth] is gone. If the tensor is evicted, it ends. */
static hr_status lose_copy(hr__lives *lives, uint32_t birth)
{
	life_state *state = state_of(lives, birth);
	hr_status status = HR_OK;
	state->copy = NO_COPY;
	if (!state->away) return HR_OK;
	uint32_t *end = hr__array_push(lives->ends, &status);
	if (status) return status;
	*end = birth;
	state->away = false;
	return HR_OK;
}

static hr_status drop_copy(hr__lives *lives, uint32_t device, uint64_t address)
{
	uint32_t slot;
	if (!find_copy(lives, device, address, &slot)) return HR_OK;
	uint32_t birth = copy_at(lives, lives->by_place.slots[slot].item - 1)->birth;
	hr__slots_remove(&lives->by_place, slot);
	return lose_copy(lives, birth);
}

static hr_status set_copy(hr__lives *lives, uint32_t device, uint32_t allocation, uint64_t address)
{
	uint32_t slot;
	hr_status status = ensure(lives, allocation);
	if (status) return status;
	uint32_t birth = birth_of(lives, allocation), other = copy_birth(lives, device, address);
	life_state *state = state_of(lives, allocation);
	/* The address belonged to another copy, whose FREE is not in the file. */
	if (other != HR__NONE && other != birth) status = lose_copy(lives, other);
	if (status) return status;
	if (state->copy != NO_COPY && state->copy != address && find_copy(lives, device, state->copy, &slot)) hr__slots_remove(&lives->by_place, slot);
	state->copy = address;
	if (!find_copy(lives, device, address, &slot)) return add_copy(lives, device, address, birth);
	copy_at(lives, lives->by_place.slots[slot].item - 1)->birth = birth;
	return HR_OK;
}

/* ---- events ---- */

/* Where the contents of an evicted tensor are. For a tensor with a stable address this may be that address alone. */
static uint64_t place_of(const hr__event *event)
{
	return event->address2 ? event->address2 : event->address;
}

void hr__lives_alloc(hr__lives *lives, const hr__life_event *e)
{
	hr__life_past *past = &lives->pasts[e->event->thread];
	past->allocs[1] = past->allocs[0];
	past->allocs[0] = e->allocation + 1;
}

hr_status hr__lives_release(hr__lives *lives, const hr__life_event *e)
{
	hr__life_past *past = &lives->pasts[e->event->thread];
	hr_status status = HR_OK;
	past->frees[1] = past->frees[0];
	past->freed_at[1] = past->freed_at[0];
	past->frees[0] = e->allocation == HR__NONE ? 0 : e->allocation + 1;
	past->freed_at[0] = e->event->address;
	for (uint32_t i = 0; i < lives->device_count && !status; i++)
		if (lives->devices[i] != e->device) status = drop_copy(lives, lives->devices[i], e->event->address);
	if (status || e->allocation == HR__NONE || goes_on(lives, e->allocation) || !has_copy(lives, e->allocation)) return status;
	return leave(lives, e->allocation);
}

hr_status hr__lives_evict(hr__lives *lives, const hr__life_event *e)
{
	const hr__life_past *past = &lives->pasts[e->event->thread];
	uint64_t place = place_of(e->event);
	/* A second copy is a temporary one made by defragmentation, and is ignored. */
	if (e->event->bytes) return e->allocation == HR__NONE || has_copy(lives, e->allocation) ? HR_OK : set_copy(lives, e->device, e->allocation, place);
	/* Evicted without a copy: the FREE came just before. The host copy may be older than the recording. */
	if (!past->frees[0] || past->freed_at[0] != e->event->address || goes_on(lives, past->frees[0] - 1)) return HR_OK;
	hr_status status = leave(lives, past->frees[0] - 1);
	return status ? status : set_copy(lives, e->device, past->frees[0] - 1, place);
}

hr_status hr__lives_restore(hr__lives *lives, const hr__life_event *e, bool *joined, bool *nameless)
{
	uint64_t place = place_of(e->event);
	*joined = *nameless = false;
	/* Otherwise defragmentation copied the tensor back to the same address. */
	if (e->allocation == HR__NONE || e->allocation + 1 != lives->pasts[e->event->thread].allocs[0]) return HR_OK;
	*nameless = e->event->address2 == 0;
	hr_status status = ensure(lives, e->allocation);
	if (status) return status;
	uint32_t birth = copy_birth(lives, e->device, place);
	if (birth != HR__NONE && state_of(lives, birth)->away) {
		state_of(lives, birth)->away = false;
		life_at(lives, e->allocation)->birth = birth;
		*joined = true;
	} else if (birth == HR__NONE) {
		life_at(lives, e->allocation)->early = true;
	}
	/* A restore of 0 bytes precedes an overwrite, which makes the host copy invalid. */
	return e->event->bytes ? set_copy(lives, e->device, e->allocation, place) : drop_copy(lives, e->device, place);
}

static hr_status mark_scratch(hr__lives *lives, uint32_t allocation)
{
	hr_status status = ensure(lives, allocation);
	if (!status) life_at(lives, allocation)->scratch = true;
	return status;
}

/* Defragmentation allocates the new place, moves the tensor, and frees the old place. If the two overlap, it allocates the gap
 * below, frees both, and allocates both again in the other order. */
hr_status hr__lives_move(hr__lives *lives, const hr__life_event *e, uint32_t to, bool *joined)
{
	const hr__life_past *past = &lives->pasts[e->event->thread];
	uint32_t from = e->allocation;
	hr_status status = HR_OK;
	*joined = false;
	if (to == HR__NONE || to + 1 != past->allocs[0]) return HR_OK;
	status = ensure(lives, to);
	if (status) return status;
	if (past->freed_at[0] == e->event->address && past->frees[0] && past->freed_at[1] == e->event->address2) {
		from = past->frees[0] - 1;
		if (past->frees[1]) status = mark_scratch(lives, past->frees[1] - 1);
		if (!status && past->allocs[1]) status = mark_scratch(lives, past->allocs[1] - 1);
	}
	if (status || from == HR__NONE || from > to) return status;
	life_at(lives, from)->goes_on = true;
	life_at(lives, to)->birth = life_at(lives, from)->birth;
	state_of(lives, to)->away = false;
	*joined = true;
	return HR_OK;
}
