/* test_cuda_access.c - cards that access each other's memory (hr_device_allow_access), on the stand-in driver of tests/fake_cuda. */
#include <pthread.h>

#include "fake_cuda/load.h"
#include "fixture.h"

#define MIB ((size_t)1 << 20)
#define CARDS 4

static void load_cards(void)
{
	fake_cuda_load("whole");
	setenv("FAKE_CUDA_DEVICES", "4", 1);
	setenv("FAKE_CUDA_MEMORY", "268435456", 1);
}

static void *block_of(hr_allocator allocator, size_t bytes)
{
	hr_request request = HR_REQUEST(bytes);
	void *address = NULL;
	CHECK_STATUS(HR_OK, hr_alloc(allocator, &request, &address));
	return address;
}

/* Whether all of a block, or none of it, is accessible to a card. */
static bool accessible(const void *block, size_t bytes, int card)
{
	uint64_t base = (uint64_t)(uintptr_t)block;
	bool first = fake.accessible(base, card);
	for (size_t at = 0; at < bytes; at += 64 << 10) CHECK_EQ((bool)fake.accessible(base + at, card), first);
	return first;
}

static void test_memory_of_before_and_after_is_accessible(void)
{
	load_cards();
	hr_device device = fixture_device("GPU:0"), peer = fixture_device("GPU:2");
	hr_allocator allocator = fixture_allocator(device, 0), of_peer = fixture_allocator(peer, 0);
	void *before = block_of(allocator, 10 * MIB), *theirs = block_of(of_peer, 4 * MIB);
	CHECK(accessible(before, 10 * MIB, 0) && !accessible(before, 10 * MIB, 2));
	CHECK_STATUS(HR_OK, hr_device_allow_access(device, peer));
	CHECK_STATUS(HR_OK, hr_device_allow_access(device, peer));
	CHECK(accessible(before, 10 * MIB, 0) && accessible(before, 10 * MIB, 2) && !accessible(before, 10 * MIB, 1));
	CHECK(accessible(theirs, 4 * MIB, 2) && !accessible(theirs, 4 * MIB, 0)); /* one direction */
	void *after = block_of(allocator, 60 * MIB);
	CHECK(accessible(after, 60 * MIB, 0) && accessible(after, 60 * MIB, 2) && !accessible(after, 60 * MIB, 1));

	/* Pages that were unmapped, and mapped again elsewhere. */
	CHECK_STATUS(HR_OK, hr_free(allocator, before, HR_STREAM_HOST));
	CHECK_STATUS(HR_OK, hr_allocator_trim(allocator, NULL));
	CHECK_STATUS(HR_OK, hr_device_allow_access(device, fixture_device("GPU:3")));
	before = block_of(allocator, 12 * MIB);
	for (int card = 0; card < CARDS; card++) CHECK_EQ(accessible(before, 12 * MIB, card) && accessible(after, 60 * MIB, card), card != 1);

	CHECK_STATUS(HR_OK, hr_shutdown());
	allocator = fixture_allocator(fixture_device("GPU:0"), 0);
	CHECK(!accessible(block_of(allocator, 4 * MIB), 4 * MIB, 2));
	CHECK_STATUS(HR_OK, hr_shutdown());
}

static void test_a_card_in_a_full_list_is_still_known(void)
{
	fake_cuda_load("whole");
	setenv("FAKE_CUDA_DEVICES", "64", 1);
	setenv("FAKE_CUDA_MEMORY", "268435456", 1);
	hr_device device = fixture_device("GPU:0");
	for (int i = 1; i < 64; i++) {
		char name[16];
		snprintf(name, sizeof name, "GPU:%d", i);
		CHECK_STATUS(HR_OK, hr_device_allow_access(device, fixture_device(name)));
	}
	CHECK_STATUS(HR_OK, hr_device_allow_access(device, fixture_device("GPU:63")));
	CHECK_STATUS(HR_OK, hr_device_allow_access(device, fixture_device("GPU:1")));
	CHECK_STATUS(HR_OK, hr_shutdown());
}

static void test_devices_of_different_kinds_are_refused(void)
{
	load_cards();
	hr_device card = fixture_device("GPU:0"), cpu = fixture_device("CPU:0");
	CHECK_STATUS(HR_UNSUPPORTED, hr_device_allow_access(card, cpu));
	CHECK_STR(hr_last_message(), "CPU:0 cannot access memory of GPU:0: they are not devices of one kind");
	CHECK_STATUS(HR_UNSUPPORTED, hr_device_allow_access(cpu, card));
	CHECK_STATUS(HR_OK, hr_device_allow_access(card, card));
	CHECK_STATUS(HR_INVALID_HANDLE, hr_device_allow_access(card, (hr_device){ 0 }));
	CHECK_STATUS(HR_INVALID_HANDLE, hr_device_allow_access((hr_device){ 0 }, card));
	CHECK_STATUS(HR_OK, hr_shutdown());
	fixture_configure_emulated(64 * MIB, FIXTURE_DEFAULT, 0);
	hr_device emulated = fixture_device("GPU:0");
	CHECK_STATUS(HR_OK, hr_device_allow_access(emulated, emulated));
}

static void test_each_call_may_fail(void)
{
	load_cards();
	hr_device device = fixture_device("GPU:0"), peer = fixture_device("GPU:1");
	hr_allocator allocator = fixture_allocator(device, 0);
	void *blocks[3];
	for (size_t i = 0; i < 3; i++) blocks[i] = block_of(allocator, (8 + i) * MIB);
	CHECK_STATUS(HR_OK, hr_free(allocator, blocks[1], HR_STREAM_HOST));
	CHECK_STATUS(HR_OK, hr_allocator_trim(allocator, NULL)); /* two runs of pages */
	(void)fixture_allocator(peer, 0);
	unsigned long long failures = 0, nth = 1;
	for (;; nth++) {
		fake.fail_nth(nth, HR__CUDA_ERROR_UNKNOWN);
		hr_status status = hr_device_allow_access(device, peer);
		bool reached = fake.calls() >= nth;
		fake.fail_nth(0, 0);
		if (!reached) {
			CHECK_STATUS(HR_OK, status);
			break;
		}
		if (status == HR_OK) break; /* the pop of a context, or after a call that had set all access */
		CHECK_STATUS(HR_DEVICE_ERROR, status);
		failures++;
		CHECK_STATUS(HR_OK, hr_allocator_check(allocator));
	}
	CHECK_GE(failures, 3);
	CHECK(accessible(blocks[0], 8 * MIB, 1) && accessible(blocks[2], 10 * MIB, 1));

	/* A map whose access cannot be set is undone, and its pages are not visited later. */
	fake.fail_nth(0, 0);
	for (unsigned long long call = 1;; call++) {
		hr_request request = HR_REQUEST(40 * MIB);
		void *address = NULL;
		fake.fail_nth(call, HR__CUDA_ERROR_UNKNOWN);
		hr_status status = hr_alloc(allocator, &request, &address);
		bool reached = fake.calls() >= call;
		fake.fail_nth(0, 0);
		CHECK_STATUS(HR_OK, hr_allocator_check(allocator));
		if (status == HR_OK) {
			CHECK(accessible(address, 40 * MIB, 1));
			CHECK_STATUS(HR_OK, hr_free(allocator, address, HR_STREAM_HOST));
			CHECK_STATUS(HR_OK, hr_allocator_trim(allocator, NULL));
		}
		if (!reached) break;
	}
	CHECK_STATUS(HR_OK, hr_device_allow_access(device, fixture_device("GPU:2")));
	CHECK(accessible(blocks[2], 10 * MIB, 2));
	CHECK_STATUS(HR_OK, hr_shutdown());
}

/* ---- threads ---- */

static _Atomic(bool) allowed; /* all cards are in the list */
static hr_allocator shared;

/* Maps and unmaps, and keeps what it has when the last card was added. */
static void *map_and_unmap(void *argument)
{
	size_t bytes = (size_t)(uintptr_t)argument * MIB;
	for (int turn = 0;; turn++) {
		bool last = allowed;
		void *block = block_of(shared, bytes);
		if (last && turn > 20) return block;
		if (turn % 3 == 2 && allowed) return block; /* mapped while cards were added */
		CHECK_STATUS(HR_OK, hr_free(shared, block, HR_STREAM_HOST));
		CHECK_STATUS(HR_OK, hr_allocator_trim(shared, NULL));
	}
}

static void test_threads_map_while_cards_are_added(void)
{
	load_cards();
	for (int round = 0; round < 20; round++) {
		hr_device device = fixture_device("GPU:0");
		pthread_t threads[3];
		shared = fixture_allocator(device, 0);
		allowed = false;
		for (size_t i = 0; i < 3; i++) CHECK_EQ(pthread_create(&threads[i], NULL, map_and_unmap, (void *)(uintptr_t)(9 + 4 * i)), 0);
		for (int card = 1; card < CARDS; card++) {
			char name[8];
			snprintf(name, sizeof name, "GPU:%d", card);
			CHECK_STATUS(HR_OK, hr_device_allow_access(device, fixture_device(name)));
		}
		allowed = true;
		for (size_t i = 0; i < 3; i++) {
			void *block;
			CHECK_EQ(pthread_join(threads[i], &block), 0);
			for (int card = 0; card < CARDS; card++) CHECK(accessible(block, (9 + 4 * i) * MIB, card));
		}
		CHECK_STATUS(HR_OK, hr_shutdown());
	}
}

TEST_MAIN(T(test_memory_of_before_and_after_is_accessible), T(test_a_card_in_a_full_list_is_still_known), T(test_devices_of_different_kinds_are_refused), T(test_each_call_may_fail),
          T(test_threads_map_while_cards_are_added))
