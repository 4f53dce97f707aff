/* test_state.c - the state machine of a tensor (core/lms/tensor/state.h): from every place exactly the changes of its table are possible, and a
 * stale word changes nothing. Records are driven without a context, so no device is involved. */
#include "core/lms/recipe/recipe.h"
#include "test.h"

#define PLACES 10
#define GENERATION 7u

static hr__lms lms;
static hr__tensor tensor;

static uint64_t word(void)
{
	return hr__load_relaxed(&tensor.word);
}

static void set_copy(uint64_t bytes)
{
	hr__lock_take(&lms.lock);
	hr__state_set_copy(&tensor, (hr__host_copy){ .address = bytes, .bytes = bytes });
	hr__lock_release(&lms.lock);
}

static void start(void)
{
	hr__lock_init(&lms.lock, HR__RANK_LMS);
	memset(&tensor, 0, sizeof tensor);
	for (int i = 0; i < HR__EVICT_QUEUES; i++) tensor.queued[i] = HR__EVICT_UNQUEUED;
	tensor.lms = &lms;
	tensor.bytes = tensor.device_bytes = 256;
	hr__state_reserve(&tensor, GENERATION);
}

/* Brings the record to a place by the changes that lead there. */
static void bring_to(enum hr__place place)
{
	start();
	if (place == HR__PLACE_UNUSED) return;
	hr__state_create(&tensor);
	if (place == HR__PLACE_NEW) return;
	CHECK(hr__state_begin_restore(&tensor, word(), HR__PLACE_NEW));
	if (place == HR__PLACE_RESTORING) return;
	tensor.address = 4096;
	hr__state_end_restore(&tensor, HR__PLACE_RESIDENT, false);
	if (place == HR__PLACE_RESIDENT) return;
	if (place == HR__PLACE_MOVING) CHECK(hr__state_begin_move(&tensor, word()));
	if (place == HR__PLACE_DESTROYING) CHECK(hr__state_begin_destruction(&tensor, word(), HR__PLACE_RESIDENT));
	if (place == HR__PLACE_MOVING || place == HR__PLACE_DESTROYING) return;
	CHECK(hr__state_begin_eviction(&tensor, word()));
	if (place == HR__PLACE_EVICTING) return;
	tensor.dropped = place != HR__PLACE_EVICTED;
	if (!tensor.dropped) set_copy(tensor.bytes);
	tensor.address = 0;
	hr__state_end_eviction(&tensor, tensor.dropped ? HR__PLACE_DROPPED : HR__PLACE_EVICTED);
	if (place == HR__PLACE_RECOMPUTING) CHECK(hr__state_begin_recompute(&tensor, word()));
}

static void test_a_tensor_is_claimed_only_from_the_places_of_the_table(void)
{
	for (int place = HR__PLACE_UNUSED; place < PLACES; place++) {
		for (int stale = 0; stale < 2; stale++) {
			bring_to((enum hr__place)place);
			uint64_t before = word(), seen = stale ? before + (UINT64_C(1) << 32) : before;
			CHECK_EQ((int)hr__word_place(before), place);
			CHECK_EQ(before >> 32, GENERATION);
			CHECK_EQ(hr__state_begin_eviction(&tensor, seen), !stale && place == HR__PLACE_RESIDENT);
			bring_to((enum hr__place)place);
			CHECK_EQ(hr__state_begin_move(&tensor, seen), !stale && place == HR__PLACE_RESIDENT);
			bring_to((enum hr__place)place);
			CHECK_EQ(hr__state_begin_restore(&tensor, seen, HR__PLACE_NEW), !stale && place == HR__PLACE_NEW);
			bring_to((enum hr__place)place);
			CHECK_EQ(hr__state_begin_restore(&tensor, seen, HR__PLACE_EVICTED), !stale && place == HR__PLACE_EVICTED);
			bring_to((enum hr__place)place);
			CHECK_EQ(hr__state_begin_restore(&tensor, seen, HR__PLACE_DROPPED), !stale && place == HR__PLACE_DROPPED);
			bring_to((enum hr__place)place);
			CHECK_EQ(hr__state_begin_recompute(&tensor, seen), !stale && place == HR__PLACE_DROPPED);
			const enum hr__place from[] = { HR__PLACE_NEW, HR__PLACE_RESIDENT, HR__PLACE_EVICTED, HR__PLACE_DROPPED };
			for (size_t i = 0; i < 4; i++) {
				bring_to((enum hr__place)place);
				CHECK_EQ(hr__state_begin_destruction(&tensor, seen, from[i]), !stale && place == (int)from[i]);
				if (stale || place != (int)from[i]) CHECK_EQ(word(), before);
			}
		}
	}
}

static void test_a_pin_keeps_a_tensor_and_its_last_unpin_forgets_the_address(void)
{
	bring_to(HR__PLACE_RESIDENT);
	uint64_t seen = word();
	for (uint32_t pins = 1; pins <= 3; pins++) {
		CHECK(hr__state_pin(&tensor, &seen));
		seen = word();
		CHECK_EQ(hr__word_pins(seen), pins);
		CHECK(!hr__state_begin_eviction(&tensor, seen));
		CHECK(!hr__state_begin_destruction(&tensor, seen, HR__PLACE_RESIDENT));
	}
	CHECK(hr__state_begin_move(&tensor, seen)); /* its address is not taken */
	hr__state_end_move(&tensor);
	CHECK_EQ(word(), seen);
	CHECK(hr__state_take_address(&tensor, &seen));
	seen = word();
	CHECK(!hr__state_begin_move(&tensor, seen));
	for (uint32_t pins = 3; pins-- > 0;) {
		CHECK_EQ((seen & HR__WORD_ADDRESSED) != 0, true);
		CHECK(hr__state_unpin(&tensor, &seen, HR__PLACE_RESIDENT));
		seen = word();
		CHECK_EQ(hr__word_pins(seen), pins);
	}
	CHECK_EQ(seen & HR__WORD_ADDRESSED, 0u);
	CHECK(hr__state_begin_eviction(&tensor, seen));
}

static void test_the_last_unpin_of_a_failed_call_claims_the_tensor(void)
{
	bring_to(HR__PLACE_RESIDENT);
	uint64_t seen = word();
	CHECK(hr__state_pin(&tensor, &seen));
	seen = word();
	CHECK(hr__state_unpin(&tensor, &seen, HR__PLACE_EVICTING));
	CHECK_EQ((int)hr__state_place(&tensor), (int)HR__PLACE_EVICTING);
	tensor.address = 0;
	hr__state_end_eviction(&tensor, HR__PLACE_NEW);
	CHECK_EQ((int)hr__state_place(&tensor), (int)HR__PLACE_NEW);
}

static void test_a_displaced_tensor_is_no_longer_so_once_it_is_evicted(void)
{
	bring_to(HR__PLACE_MOVING);
	set_copy(tensor.bytes);
	hr__state_set_displaced(&tensor);
	hr__state_end_move(&tensor);
	CHECK(hr__state_is_displaced(&tensor));
	CHECK(hr__state_begin_eviction(&tensor, word()));
	tensor.address = 0;
	hr__state_end_eviction(&tensor, HR__PLACE_EVICTED);
	CHECK(!hr__state_is_displaced(&tensor));
}

static void test_a_recomputed_tensor_is_resident_or_dropped_again(void)
{
	bring_to(HR__PLACE_RECOMPUTING);
	hr__state_end_recompute(&tensor, HR__PLACE_DROPPED, false);
	CHECK_EQ((int)hr__state_place(&tensor), (int)HR__PLACE_DROPPED);
	CHECK(hr__state_begin_recompute(&tensor, word()));
	tensor.address = 4096;
	tensor.dropped = false;
	hr__state_end_recompute(&tensor, HR__PLACE_RESIDENT, true);
	CHECK_EQ((int)hr__state_place(&tensor), (int)HR__PLACE_RESIDENT);
	CHECK_EQ(hr__word_pins(word()), 1u);
}

static void test_a_ghost_is_dropped_and_has_another_generation(void)
{
	bring_to(HR__PLACE_DROPPED);
	uint64_t before = word();
	CHECK(hr__state_begin_destruction(&tensor, before, HR__PLACE_DROPPED));
	hr__store_relaxed(&tensor.ghost, HR__GHOST_YES);
	hr__state_become_ghost(&tensor, GENERATION + 1);
	CHECK_EQ(word() >> 32, GENERATION + 1);
	CHECK_EQ((int)hr__state_place(&tensor), (int)HR__PLACE_DROPPED);
	CHECK(!hr__state_begin_recompute(&tensor, before));
	CHECK(hr__state_begin_recompute(&tensor, word()));
}

static void test_a_frozen_tensor_is_what_it_was_when_it_thaws(void)
{
	for (int place = HR__PLACE_UNUSED; place < PLACES; place++) {
		bool settled = place == HR__PLACE_NEW || place == HR__PLACE_RESIDENT || place == HR__PLACE_EVICTED ||
		               place == HR__PLACE_DROPPED;
		bring_to((enum hr__place)place);
		uint64_t before = word();
		CHECK_EQ(hr__state_freeze(&tensor), settled);
		if (!settled) continue;
		CHECK_EQ((int)hr__state_frozen_place(word()), place);
		CHECK(!hr__state_freeze(&tensor));
		CHECK(!hr__state_begin_eviction(&tensor, before));
		hr__state_thaw(&tensor);
		CHECK_EQ(word(), before);
	}
}

static void test_a_record_is_free_only_without_memory_and_copy(void)
{
	bring_to(HR__PLACE_DESTROYING);
	tensor.address = 0;
	hr__state_free(&tensor);
	CHECK_EQ(word(), (uint64_t)GENERATION << 32);
	bring_to(HR__PLACE_DESTROYING); /* the device did not release its memory */
	hr__state_cancel_destruction(&tensor, HR__PLACE_RESIDENT);
	CHECK_EQ((int)hr__state_place(&tensor), (int)HR__PLACE_RESIDENT);
}

TEST_MAIN(T(test_a_tensor_is_claimed_only_from_the_places_of_the_table), T(test_a_pin_keeps_a_tensor_and_its_last_unpin_forgets_the_address),
          T(test_the_last_unpin_of_a_failed_call_claims_the_tensor), T(test_a_displaced_tensor_is_no_longer_so_once_it_is_evicted),
          T(test_a_recomputed_tensor_is_resident_or_dropped_again), T(test_a_ghost_is_dropped_and_has_another_generation),
          T(test_a_frozen_tensor_is_what_it_was_when_it_thaws), T(test_a_record_is_free_only_without_memory_and_copy))
