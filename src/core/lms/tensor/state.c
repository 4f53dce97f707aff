/* state.c - see state.h. */
#include "core/lms/tensor/state.h"

#include "core/lms/lms.h"

#define BIT(place) (1u << HR__PLACE_##place)

/* Whether state.h allows a change from one place to the other: in its table, or by hr__state_freeze. */
static __attribute__((unused)) bool is_transition(enum hr__place from, enum hr__place to)
{
	static const unsigned table[] = { [HR__PLACE_UNUSED] = BIT(NEW),
		                              [HR__PLACE_NEW] = BIT(RESTORING) | BIT(DESTROYING) | BIT(UNUSED) | BIT(EVICTING),
		                              [HR__PLACE_RESIDENT] = BIT(EVICTING) | BIT(MOVING) | BIT(DESTROYING),
		                              [HR__PLACE_EVICTING] = BIT(EVICTED) | BIT(RESIDENT) | BIT(NEW) | BIT(DROPPED),
		                              [HR__PLACE_EVICTED] = BIT(RESTORING) | BIT(DESTROYING),
		                              [HR__PLACE_RESTORING] = BIT(RESIDENT) | BIT(NEW) | BIT(EVICTED) | BIT(DROPPED),
		                              [HR__PLACE_DESTROYING] = BIT(UNUSED) | BIT(NEW) | BIT(RESIDENT) | BIT(EVICTED) | BIT(DROPPED),
		                              [HR__PLACE_MOVING] = BIT(RESIDENT),
		                              [HR__PLACE_DROPPED] = BIT(RESTORING) | BIT(RECOMPUTING) | BIT(DESTROYING),
		                              [HR__PLACE_RECOMPUTING] = BIT(RESIDENT) | BIT(DROPPED) };
	return from < sizeof table / sizeof *table && table[from] >> to & 1;
}

/* Invariants 2 and 3, for a tensor whose exclusive access ends at [place]. */
static __attribute__((unused)) bool belongs_at(const hr__tensor *tensor, enum hr__place place)
{
	bool has_memory = hr__load_relaxed(&tensor->address) != 0, has_copy = tensor->copy.bytes != 0;
	switch (place) {
	case HR__PLACE_NEW: return !has_memory && !has_copy;
	case HR__PLACE_EVICTED: return !has_memory && has_copy && !hr__load_relaxed(&tensor->unwritten);
	case HR__PLACE_RESIDENT: return has_memory && !tensor->dropped;
	case HR__PLACE_DROPPED: return !has_memory && !has_copy && tensor->dropped;
	default: return true;
	}
}

static uint64_t with_place(uint64_t word, enum hr__place place)
{
	HR_ASSERT(is_transition(hr__word_place(word), place));
	return (word & ~HR__WORD_PLACE) | (uint64_t)place;
}

/* Sets EVICTING, RESTORING or DESTROYING, if the tensor has the generation of [word], is at [from] and is not pinned. */
static bool claim(hr__tensor *tensor, uint64_t word, enum hr__place from, enum hr__place to)
{
	uint64_t now = hr__load_relaxed(&tensor->word);
	while (now >> 32 == word >> 32 && hr__word_place(now) == from && !(now & HR__WORD_PINS))
		if (hr__cas_acq_rel(&tensor->word, &now, with_place(now, to))) return true;
	return false;
}

/* Ends exclusive access: everything written to the tensor is visible to the thread that sees the new place. */
static void settle(hr__tensor *tensor, enum hr__place to, bool pinned)
{
	uint64_t word = hr__load_relaxed(&tensor->word);
	HR_ASSERT(!(word & (HR__WORD_PINS | HR__WORD_ADDRESSED)));
	HR_ASSERT(belongs_at(tensor, to));
	if (to != HR__PLACE_RESIDENT) word &= ~HR__WORD_DISPLACED; /* without memory, nothing is displaced */
	hr__store_release(&tensor->word, with_place(word, to) + (pinned ? HR__WORD_PIN : 0));
}

/* ---- creating and destroying ---- */

void hr__state_reserve(hr__tensor *tensor, uint32_t generation)
{
	HR_ASSERT(generation && hr__state_place(tensor) == HR__PLACE_UNUSED);
	hr__store_relaxed(&tensor->word, (uint64_t)generation << 32);
}

void hr__state_create(hr__tensor *tensor)
{
	HR_ASSERT(hr__state_place(tensor) == HR__PLACE_UNUSED && tensor->lms && tensor->device_bytes >= tensor->bytes);
	settle(tensor, HR__PLACE_NEW, false);
}

bool hr__state_begin_destruction(hr__tensor *tensor, uint64_t word, enum hr__place from)
{
	HR_ASSERT(from == HR__PLACE_NEW || from == HR__PLACE_RESIDENT || from == HR__PLACE_EVICTED || from == HR__PLACE_DROPPED);
	return claim(tensor, word, from, HR__PLACE_DESTROYING);
}

void hr__state_cancel_destruction(hr__tensor *tensor, enum hr__place to)
{
	HR_ASSERT(hr__state_place(tensor) == HR__PLACE_DESTROYING && to != HR__PLACE_UNUSED);
	settle(tensor, to, false);
}

void hr__state_become_ghost(hr__tensor *tensor, uint32_t generation)
{
	HR_ASSERT(hr__state_place(tensor) == HR__PLACE_DESTROYING && hr__load_relaxed(&tensor->ghost) && generation);
	HR_ASSERT(belongs_at(tensor, HR__PLACE_DROPPED));
	hr__store_release(&tensor->word, (uint64_t)generation << 32 | HR__PLACE_DROPPED);
}

void hr__state_force_destruction(hr__tensor *tensor)
{
	uint64_t word = hr__load_relaxed(&tensor->word);
	hr__store_relaxed(&tensor->word, with_place(word & ~(HR__WORD_PINS | HR__WORD_ADDRESSED), HR__PLACE_DESTROYING));
}

void hr__state_free(hr__tensor *tensor)
{
	HR_ASSERT(hr__state_place(tensor) == HR__PLACE_DESTROYING || hr__state_place(tensor) == HR__PLACE_NEW);
	HR_ASSERT(!tensor->address && !tensor->copy.bytes && !tensor->span && !tensor->shadow);
	HR_ASSERT(!hr__load_relaxed(&tensor->recipe) && !tensor->dependents && !tensor->ghost_listed);
	for (unsigned i = 0; i < HR__EVICT_QUEUES; i++) HR_ASSERT(tensor->queued[i] == HR__EVICT_UNQUEUED);
	settle(tensor, HR__PLACE_UNUSED, false);
}

/* ---- evicting, restoring, moving ---- */

bool hr__state_begin_eviction(hr__tensor *tensor, uint64_t word)
{
	return claim(tensor, word, HR__PLACE_RESIDENT, HR__PLACE_EVICTING);
}

void hr__state_end_eviction(hr__tensor *tensor, enum hr__place to)
{
	HR_ASSERT(hr__state_place(tensor) == HR__PLACE_EVICTING);
	settle(tensor, to, false);
}

bool hr__state_begin_restore(hr__tensor *tensor, uint64_t word, enum hr__place from)
{
	HR_ASSERT(from == HR__PLACE_NEW || from == HR__PLACE_EVICTED || from == HR__PLACE_DROPPED);
	return claim(tensor, word, from, HR__PLACE_RESTORING);
}

void hr__state_end_restore(hr__tensor *tensor, enum hr__place to, bool pinned)
{
	HR_ASSERT(hr__state_place(tensor) == HR__PLACE_RESTORING && (!pinned || to == HR__PLACE_RESIDENT));
	settle(tensor, to, pinned);
}

bool hr__state_begin_recompute(hr__tensor *tensor, uint64_t word)
{
	return claim(tensor, word, HR__PLACE_DROPPED, HR__PLACE_RECOMPUTING);
}

void hr__state_end_recompute(hr__tensor *tensor, enum hr__place to, bool pinned)
{
	HR_ASSERT(hr__state_place(tensor) == HR__PLACE_RECOMPUTING && (!pinned || to == HR__PLACE_RESIDENT));
	settle(tensor, to, pinned);
}

bool hr__state_begin_move(hr__tensor *tensor, uint64_t word)
{
	uint64_t now = hr__load_relaxed(&tensor->word);
	while (now >> 32 == word >> 32 && hr__word_place(now) == HR__PLACE_RESIDENT && !(now & HR__WORD_ADDRESSED))
		if (hr__cas_acq_rel(&tensor->word, &now, with_place(now, HR__PLACE_MOVING))) return true;
	return false;
}

/* The word is written by no other thread while the tensor is MOVING: pins and unpins wait. */
void hr__state_end_move(hr__tensor *tensor)
{
	uint64_t word = hr__load_relaxed(&tensor->word);
	HR_ASSERT(hr__word_place(word) == HR__PLACE_MOVING && tensor->address);
	hr__store_release(&tensor->word, with_place(word, HR__PLACE_RESIDENT));
}

void hr__state_set_displaced(hr__tensor *tensor)
{
	uint64_t word = hr__load_relaxed(&tensor->word);
	HR_ASSERT(hr__word_place(word) == HR__PLACE_MOVING && !(word & (HR__WORD_DISPLACED | HR__WORD_ADDRESSED)) &&
	          tensor->copy.bytes);
	hr__store_release(&tensor->word, word | HR__WORD_DISPLACED);
}

void hr__state_clear_displaced(hr__tensor *tensor)
{
	uint64_t word = hr__load_relaxed(&tensor->word);
	HR_ASSERT(hr__word_place(word) == HR__PLACE_MOVING && word & HR__WORD_DISPLACED);
	hr__store_release(&tensor->word, word & ~HR__WORD_DISPLACED);
}

void hr__state_set_copy(hr__tensor *tensor, hr__host_copy copy)
{
	HR_ASSERT(hr__lock_is_mine(&tensor->lms->lock));
	HR_ASSERT(hr__load_relaxed(&tensor->has_copy) == (tensor->copy.bytes != 0));
	HR_ASSERT(!copy.bytes || !tensor->copy.bytes); /* a copy that is replaced would be lost */
	HR_ASSERT(!copy.bytes || copy.bytes == tensor->bytes);
	tensor->copy = copy;
	hr__store_relaxed(&tensor->has_copy, copy.bytes != 0);
}

void hr__state_wait(unsigned attempt)
{
	hr__lock_wait(attempt);
}

/* ---- for hr_lms_check ---- */

/* The place of a frozen tensor says what it was before. */
static const struct {
	enum hr__place from, to;
} frozen[] = { { HR__PLACE_RESIDENT, HR__PLACE_MOVING },
	           { HR__PLACE_EVICTED, HR__PLACE_RESTORING },
	           { HR__PLACE_DROPPED, HR__PLACE_RECOMPUTING },
	           { HR__PLACE_NEW, HR__PLACE_EVICTING } };

#define FROZEN_COUNT (sizeof frozen / sizeof *frozen)

bool hr__state_freeze(hr__tensor *tensor)
{
	uint64_t word = hr__load_relaxed(&tensor->word);
	for (size_t i = 0; i < FROZEN_COUNT;) {
		if (hr__word_place(word) != frozen[i].from) i++;
		else if (hr__cas_acq_rel(&tensor->word, &word, with_place(word, frozen[i].to))) return true;
		else i = 0; /* the word has changed */
	}
	return false;
}

enum hr__place hr__state_frozen_place(uint64_t word)
{
	size_t i = 0;
	while (i < FROZEN_COUNT && frozen[i].to != hr__word_place(word)) i++;
	HR_ASSERT(i < FROZEN_COUNT);
	return frozen[i].from;
}

void hr__state_thaw(hr__tensor *tensor)
{
	uint64_t word = hr__load_relaxed(&tensor->word);
	hr__store_release(&tensor->word, with_place(word, hr__state_frozen_place(word)));
}
