/* numbering.c - see numbering.h. */
#include "analysis/import/numbering.h"

#include "core/base/status.h"

#define STREAMS_KEPT (UINT64_C(1) << 24)

void hr__numbering_init(hr__numbering *numbering)
{
	*numbering = (hr__numbering){ .ids.item_bytes = sizeof(uint64_t), .slots.salt = hr__os()->clock_ns() ^ (uintptr_t)numbering };
}

void hr__numbering_free(hr__numbering *numbering)
{
	hr__list_free(&numbering->ids);
	hr__slots_free(&numbering->slots);
}

static uint64_t id_at(const hr__numbering *numbering, uint32_t number)
{
	return *(const uint64_t *)hr__list_at(&numbering->ids, number);
}

hr_status hr__numbering_find(hr__numbering *numbering, uint64_t id, const char *what, uint32_t *out)
{
	*out = numbering->last;
	if (*out < numbering->ids.count && id_at(numbering, *out) == id) return HR_OK;
	hr__slots *slots = &numbering->slots;
	uint32_t hash = hr__finder_hash(slots, id, 0);
	for (uint32_t at = hr__slots_first(slots, hash); hr__slots_holds(slots, hash, &at); at++) {
		if (id_at(numbering, slots->slots[at].item - 1) != id) continue;
		*out = numbering->last = slots->slots[at].item - 1;
		return HR_OK;
	}
	if (numbering->ids.count == HR__NUMBERING_MAX) return hr__fail(HR_TOO_MANY, "more than %u different %s", HR__NUMBERING_MAX, what);
	hr_status status = hr__slots_reserve(slots);
	if (!status) status = hr__list_add(&numbering->ids, &id);
	if (status) return status;
	*out = numbering->last = (uint32_t)numbering->ids.count - 1;
	hr__slots_add(slots, hash, *out);
	return HR_OK;
}

hr_status hr__numbering_stream(hr__numbering *numbering, uint64_t id, hr_stream *out)
{
	uint32_t number;
	hr_status status = hr__numbering_find(numbering, id, "streams", &number);
	if (!status) *out = (hr_stream)(id < STREAMS_KEPT ? id : STREAMS_KEPT + number);
	return status;
}
