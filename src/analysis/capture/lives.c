/* lives.c - see lives.h. */
#include "analysis/capture/lives.h"

typedef struct host_place {
	uint64_t address;
	uint32_t allocator;
	uint32_t birth; /* of the tensor last copied to this place */
} host_place;

hr_status hr__capture_lives_init(hr__capture_lives *lives, hr__array *births, uint64_t most, uint64_t salt)
{
	*lives = (hr__capture_lives){ .births = births, .by_place = { .salt = salt } };
	return hr__array_init(&lives->places, sizeof(host_place), most);
}

void hr__capture_lives_free(hr__capture_lives *lives)
{
	hr__array_free(&lives->places);
	hr__slots_free(&lives->by_place);
}

static uint32_t birth_of(const hr__capture_lives *lives, uint32_t allocation)
{
	return allocation < lives->births->count ? ((const uint32_t *)(const void *)lives->births->base)[allocation] : allocation;
}

/* Entries are created only up to the last allocation that needs one; most recordings need none. */
static hr_status set_birth(hr__capture_lives *lives, uint32_t allocation, uint32_t birth)
{
	hr_status status = HR_OK;
	while (lives->births->count <= allocation) {
		uint32_t *next = hr__array_push(lives->births, &status);
		if (status) return status;
		*next = (uint32_t)lives->births->count - 1;
	}
	((uint32_t *)(void *)lives->births->base)[allocation] = birth;
	return HR_OK;
}

static host_place *find_place(const hr__capture_lives *lives, uint32_t allocator, uint64_t address)
{
	const hr__slots *slots = &lives->by_place;
	uint32_t hash = hr__finder_hash(slots, address, allocator);
	for (uint32_t at = hr__slots_first(slots, hash); hr__slots_holds(slots, hash, &at); at++) {
		host_place *found = (host_place *)(void *)lives->places.base + (slots->slots[at].item - 1);
		if (found->address == address && found->allocator == allocator) return found;
	}
	return NULL;
}

static hr_status add_place(hr__capture_lives *lives, uint32_t allocator, uint64_t address, host_place **out)
{
	hr_status status = hr__slots_reserve(&lives->by_place);
	*out = hr__array_push(&lives->places, &status);
	if (status) return status;
	**out = (host_place){ .address = address, .allocator = allocator };
	hr__slots_add(&lives->by_place, hr__finder_hash(&lives->by_place, address, allocator), (uint32_t)lives->places.count - 1);
	return HR_OK;
}

hr_status hr__capture_lives_leave(hr__capture_lives *lives, uint32_t allocator, uint64_t address, uint32_t allocation)
{
	hr_status status = HR_OK;
	host_place *at = find_place(lives, allocator, address);
	if (!at) status = add_place(lives, allocator, address, &at);
	if (!status) at->birth = birth_of(lives, allocation);
	return status;
}

hr_status hr__capture_lives_return(hr__capture_lives *lives, uint32_t allocator, uint64_t address, uint32_t allocation)
{
	const host_place *at = find_place(lives, allocator, address);
	return set_birth(lives, allocation, at ? at->birth : 0);
}

hr_status hr__capture_lives_move(hr__capture_lives *lives, uint32_t from, uint32_t to)
{
	return set_birth(lives, to, birth_of(lives, from));
}
