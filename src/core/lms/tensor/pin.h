/* pin.h - shared by pin.c, pin_wait.c, pin_refusal.c and the files of recipe/ alone. */
#ifndef HR_LMS_PIN_H
#define HR_LMS_PIN_H

#include "core/lms/lms.h"

/* Tensors named so far in a call, by record number. May report one that was not named, so a hit is confirmed by a search. */
#define HR__PIN_NAMED_BITS 65536u
typedef struct hr__pin_names {
	uint64_t bits[HR__PIN_NAMED_BITS / 64];
} hr__pin_names;

/* Adds a tensor. True if it may have been named before. */
static inline bool hr__pin_name(hr__pin_names *named, hr_tensor tensor)
{
	uint32_t bit = (uint32_t)tensor.id % HR__PIN_NAMED_BITS;
	uint64_t *word = &named->bits[bit / 64], mask = UINT64_C(1) << bit % 64;
	bool again = *word & mask;
	*word |= mask;
	return again;
}

/* The tensor of an entry; NULL if an earlier entry names the same one. Call it for all entries in order. */
static inline const hr__tensor *hr__pin_name_first(hr__pin_names *named, const hr_pin *pins, size_t at)
{
	hr_status ignored;
	if (hr__pin_name(named, pins[at].tensor))
		for (size_t i = 0; i < at; i++)
			if (pins[i].tensor.id == pins[at].tensor.id) return NULL;
	return hr__tensor_of(pins[at].tensor, &ignored);
}

/* Pins all tensors of a call or none. */
hr_status hr__pin_all_or_none(hr__lms *lms, const hr_pin *pins, size_t count, hr_stream stream);
/* The same for the inputs of a recipe. If there is no room, those that are dropped are recomputed before any is pinned. */
hr_status hr__pin_all_for_recipe(hr__lms *lms, const hr_pin *pins, size_t count, hr_stream stream);
/* Releases pins of hr__pin_all_or_none, after work on [stream]. HR_CORRUPT as hr_tensor_unpin_all; all are released. */
hr_status hr__pin_release_all(const hr_pin *pins, size_t count, hr_stream stream);

/* Enclose code that counts pins, so that a check of the counters knows whether a thread is inside. Calls nest. */
hr__cache *hr__pin_begin_counting(hr__lms *lms);
void hr__pin_end_counting(hr__lms *lms, hr__cache *cache);

/* ---- pin_wait.c ---- */

/* Retries whenever memory may have become available, until the call succeeds, the time is up, or no other thread can have been in
 * the way. */
hr_status hr__pin_wait_for_room(hr__lms *lms, const hr_pin *pins, size_t count, hr_stream stream);
/* Gives a thread that waits for memory a chance to pin first. */
void hr__pin_yield_to_waiter(const hr__lms *lms);

/* ---- pin_refusal.c ---- */

/* Whether the call would not fit even if no other tensor were pinned. Plain blocks do not count, because they may be freed. */
bool hr__pin_can_never_fit(hr__lms *lms, const hr_pin *pins, size_t count);
/* Fails with a message that says what the op needs at once. [never]: it would not fit whatever other threads unpin. */
hr_status hr__pin_fail_no_room(hr__lms *lms, const hr_pin *pins, size_t count, bool never);

#endif
