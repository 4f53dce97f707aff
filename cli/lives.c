/* lives.c - see lives.h.
 *
 * Invariants:
 *   1  live maps allocator and address to the pieces that are on the device now
 *   2  copies maps the address of a host copy to its life, exactly for lives whose copy is not 0
 *   3  lives are numbered by their first pieces: piece p is the first of a life if pieces[p].life == p */
#include "lives.h"

#include <stdlib.h>

#include "core/base/status.h"
#include "tape.h"

#define NONE UINT32_MAX

struct piece {
	uint32_t life;
	bool goes_on; /* its FREE does not end the life */
	bool ignored; /* scratch memory of defragmentation: not a tensor */
	bool early;   /* of a life: began before the recording */
	bool away;    /* of a life: not on the device now */
	uint64_t copy; /* of a life: address of the host copy; 0: none */
	uint64_t bytes;
};

/* The last events of a thread on the device. */
struct past {
	uint32_t allocs[2]; /* pieces, latest first */
	uint32_t frees[2];
	uint64_t freed_at[2]; /* their addresses */
};

/* A tensor that was destroyed while it was evicted. */
struct end {
	uint64_t event; /* number of the event that implies the destruction */
	uint32_t life;
};

struct hr__lives {
	struct piece *pieces;
	size_t count, capacity;
	struct end *ends;
	size_t end_count, end_capacity;
	uint64_t event;                    /* number of the current event */
	size_t next, next_early, next_end; /* second pass: the next piece, the next piece to check for early lives, the next end */
	hr__id_map live, copies;
	struct past *pasts; /* by thread */
	uint64_t joined;
};

hr_status hr__lives_open(uint64_t threads, hr__lives **out)
{
	hr__lives *lives = calloc(1, sizeof *lives);
	struct past *pasts = calloc(threads + 1, sizeof *pasts);
	if (!lives || !pasts) {
		free(lives);
		free(pasts);
		return hr__fail(HR_NO_HOST_MEMORY, "no memory for the lives of tensors");
	}
	lives->pasts = pasts;
	for (uint64_t i = 0; i <= threads; i++) pasts[i] = (struct past){ .allocs = { NONE, NONE }, .frees = { NONE, NONE } };
	hr__id_map_init(&lives->live);
	hr__id_map_init(&lives->copies);
	*out = lives;
	return HR_OK;
}

void hr__lives_close(hr__lives *lives)
{
	if (!lives) return;
	hr__id_map_free(&lives->live);
	hr__id_map_free(&lives->copies);
	free(lives->pieces);
	free(lives->ends);
	free(lives->pasts);
	free(lives);
}

uint64_t hr__lives_joined(const hr__lives *lives)
{
	return lives->joined;
}

static hr__tape_id id_of(const hr__event *event, uint64_t address)
{
	return (hr__tape_id){ address, event->allocator };
}

static struct piece *life_of(hr__lives *lives, uint32_t piece)
{
	return &lives->pieces[lives->pieces[piece].life];
}

/* ---- first pass ---- */

static hr_status grow(void **array, size_t *capacity, size_t count, size_t item)
{
	if (count < *capacity) return HR_OK;
	if (count >= HR__TAPE_EVENTS_MAX) return hr__fail(HR_TOO_MANY, "more than %u events; cut the trace into parts", HR__TAPE_EVENTS_MAX);
	size_t bigger = *capacity ? *capacity + *capacity / 2 : 1024;
	void *grown = realloc(*array, bigger * item);
	if (!grown) return hr__fail(HR_NO_HOST_MEMORY, "no memory for the lives of more than %zu blocks", count);
	*array = grown;
	*capacity = bigger;
	return HR_OK;
}

static hr_status append_piece(hr__lives *lives, const hr__event *event)
{
	hr_status status = grow((void **)&lives->pieces, &lives->capacity, lives->count, sizeof *lives->pieces);
	if (status) return status;
	lives->pieces[lives->count] = (struct piece){ .life = (uint32_t)lives->count, .bytes = event->requested };
	lives->count++;
	return HR_OK;
}

/* The host copy of [life] is gone. If the tensor is evicted, the life ends. */
static hr_status lose_copy(hr__lives *lives, uint32_t life)
{
	lives->pieces[life].copy = 0;
	if (!lives->pieces[life].away) return HR_OK;
	hr_status status = grow((void **)&lives->ends, &lives->end_capacity, lives->end_count, sizeof *lives->ends);
	if (status) return status;
	lives->ends[lives->end_count++] = (struct end){ lives->event, life };
	lives->pieces[life].away = false;
	return HR_OK;
}

static hr_status read_alloc(hr__lives *lives, const hr__event *event)
{
	struct past *past = &lives->pasts[event->thread];
	uint32_t piece = (uint32_t)lives->count;
	hr_status status = append_piece(lives, event);
	if (!status) status = hr__id_map_put(&lives->live, id_of(event, event->address), piece);
	past->allocs[1] = past->allocs[0];
	past->allocs[0] = piece;
	return status;
}

/* Marks the tensor of a freed piece as evicted. */
static void go_away(hr__lives *lives, uint32_t piece)
{
	lives->pieces[piece].goes_on = true;
	life_of(lives, piece)->away = true;
}

static void read_free(hr__lives *lives, const hr__event *event)
{
	struct past *past = &lives->pasts[event->thread];
	uint32_t piece = hr__id_map_take(&lives->live, id_of(event, event->address));
	past->frees[1] = past->frees[0];
	past->freed_at[1] = past->freed_at[0];
	past->frees[0] = piece;
	past->freed_at[0] = event->address;
	if (piece != NONE && !lives->pieces[piece].goes_on && life_of(lives, piece)->copy) go_away(lives, piece);
}

static hr_status set_copy(hr__lives *lives, uint32_t piece, uint64_t host)
{
	struct piece *life = life_of(lives, piece);
	hr__tape_id id = { host, 0 };
	uint32_t other = hr__id_map_get(&lives->copies, id);
	/* The address belonged to another copy, whose FREE is not in the file. */
	hr_status status = other != NONE && other != lives->pieces[piece].life ? lose_copy(lives, other) : HR_OK;
	if (status) return status;
	if (life->copy && life->copy != host) hr__id_map_take(&lives->copies, (hr__tape_id){ life->copy, 0 });
	life->copy = host;
	return hr__id_map_put(&lives->copies, id, lives->pieces[piece].life);
}

static hr_status read_evict(hr__lives *lives, const hr__event *event)
{
	const struct past *past = &lives->pasts[event->thread];
	uint32_t piece = hr__id_map_get(&lives->live, id_of(event, event->address));
	if (!event->address2) return HR_OK;
	/* A second copy is a temporary one made by defragmentation, and is ignored. */
	if (event->bytes) return piece == NONE || life_of(lives, piece)->copy ? HR_OK : set_copy(lives, piece, event->address2);
	/* Evicted without a copy: the FREE came just before. The host copy may be older than the recording. */
	piece = past->freed_at[0] == event->address ? past->frees[0] : NONE;
	if (piece == NONE || lives->pieces[piece].goes_on) return HR_OK;
	go_away(lives, piece);
	return set_copy(lives, piece, event->address2);
}

static hr_status drop_copy(hr__lives *lives, uint64_t host)
{
	uint32_t life = hr__id_map_take(&lives->copies, (hr__tape_id){ host, 0 });
	return life == NONE ? HR_OK : lose_copy(lives, life);
}

static hr_status read_restore(hr__lives *lives, const hr__event *event)
{
	uint32_t piece = hr__id_map_get(&lives->live, id_of(event, event->address));
	/* Otherwise defragmentation copied the tensor back to the same address. */
	if (piece == NONE || piece != lives->pasts[event->thread].allocs[0]) return HR_OK;
	if (!event->address2)
		return hr__fail(HR_UNSUPPORTED, "a tensor came back from the host, and the trace does not say which: it was recorded by an older "
		                                "version of Headroom; record it again, or with enough memory that nothing moves");
	uint32_t life = hr__id_map_get(&lives->copies, (hr__tape_id){ event->address2, 0 });
	if (life != NONE && lives->pieces[life].away) {
		lives->pieces[piece].life = life;
		lives->pieces[life].away = false;
		lives->joined++;
	} else if (life == NONE) {
		lives->pieces[piece].early = true;
	}
	/* A restore of 0 bytes precedes an overwrite, which makes the host copy invalid. */
	return event->bytes ? set_copy(lives, piece, event->address2) : drop_copy(lives, event->address2);
}

/* Defragmentation allocates the new place, moves the tensor, and frees the old place. If the two overlap, it allocates the gap
 * below, frees both, and allocates both again in the other order. */
static void read_move(hr__lives *lives, const hr__event *event)
{
	const struct past *past = &lives->pasts[event->thread];
	uint32_t to = hr__id_map_get(&lives->live, id_of(event, event->address2));
	uint32_t from = hr__id_map_get(&lives->live, id_of(event, event->address));
	if (to == NONE || to != past->allocs[0]) return;
	if (past->freed_at[0] == event->address && past->frees[0] != NONE && past->freed_at[1] == event->address2) {
		from = past->frees[0];
		if (past->frees[1] != NONE) lives->pieces[past->frees[1]].ignored = true;
		if (past->allocs[1] != NONE) lives->pieces[past->allocs[1]].ignored = true;
	}
	if (from == NONE) return;
	lives->pieces[from].goes_on = true;
	lives->pieces[to].life = lives->pieces[from].life;
	life_of(lives, to)->away = false;
	lives->joined++;
}

hr_status hr__lives_read(hr__lives *lives, const hr__event *event, bool on_device)
{
	lives->event++;
	if (!on_device) return event->kind == HR__EVENT_FREE ? drop_copy(lives, event->address) : HR_OK;
	switch (event->kind) {
	case HR__EVENT_ALLOC: return read_alloc(lives, event);
	case HR__EVENT_FREE: read_free(lives, event); return HR_OK;
	case HR__EVENT_EVICT: return read_evict(lives, event);
	case HR__EVENT_RESTORE: return read_restore(lives, event);
	case HR__EVENT_MOVE: read_move(lives, event); return HR_OK;
	default: return HR_OK;
	}
}

/* ---- second pass ---- */

void hr__lives_rewind(hr__lives *lives)
{
	hr__id_map_free(&lives->live);
	hr__id_map_free(&lives->copies);
	lives->event = 0;
}

bool hr__lives_early(hr__lives *lives, uint32_t *life, uint64_t *bytes)
{
	for (; lives->next_early < lives->count; lives->next_early++) {
		const struct piece *piece = &lives->pieces[lives->next_early];
		if (!piece->early) continue;
		*life = (uint32_t)lives->next_early++;
		*bytes = piece->bytes;
		return true;
	}
	return false;
}

static hr_status next_alloc(hr__lives *lives, const hr__event *event, hr__life_event *what, uint32_t *life)
{
	uint32_t number = (uint32_t)lives->next;
	if (lives->next == lives->count) return HR_OK; /* the file has grown since the first pass */
	lives->next++;
	const struct piece *piece = &lives->pieces[number];
	*life = piece->life;
	if (piece->life == number && !piece->early && !piece->ignored) *what = HR__LIFE_BEGINS;
	return hr__id_map_put(&lives->live, id_of(event, event->address), number);
}

static void next_free(hr__lives *lives, const hr__event *event, hr__life_event *what, uint32_t *life)
{
	uint32_t number = hr__id_map_take(&lives->live, id_of(event, event->address));
	*life = number == NONE ? NONE : lives->pieces[number].life;
	if (number == NONE || !(lives->pieces[number].goes_on || lives->pieces[number].ignored)) *what = HR__LIFE_ENDS;
}

hr_status hr__lives_next(hr__lives *lives, const hr__event *event, bool on_device, hr__life_event *what, uint32_t *life)
{
	*what = HR__LIFE_NOTHING;
	lives->event++;
	if (lives->next_end < lives->end_count && lives->ends[lives->next_end].event == lives->event) {
		*what = HR__LIFE_ENDS;
		*life = lives->ends[lives->next_end++].life;
		return HR_OK;
	}
	if (!on_device) return HR_OK;
	switch (event->kind) {
	case HR__EVENT_ALLOC: return next_alloc(lives, event, what, life);
	case HR__EVENT_FREE: next_free(lives, event, what, life); return HR_OK;
	case HR__EVENT_READ:
	case HR__EVENT_WRITE:
		*what = HR__LIFE_USED;
		uint32_t number = hr__id_map_get(&lives->live, id_of(event, event->address));
		*life = number == NONE ? NONE : lives->pieces[number].life;
		return HR_OK;
	default: return HR_OK;
	}
}
