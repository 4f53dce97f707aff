/* test_epochs.c - epochs of ordinary streams and of copy streams (core/device/epochs.h), and what they are for: memory that a copy stream
 * used long ago does not wait for later copies, also after it was joined with memory that was freed just now. */
#include "core/lms/lms.h"
#include "core/memory/bfc/tensor_block.h"
#include "fixture.h"
#include "support_streams.h"
#include "test.h"

#define MIB (UINT64_C(1) << 20)
#define COPY (UINT64_C(1) << 63)
#define OTHER_COPY (UINT64_C(1) << 60)
#define PLAIN UINT64_C(1)
#define OTHER_PLAIN (UINT64_C(1) << 59)

static void test_both_epochs_are_kept(void)
{
	CHECK_EQ(hr__epochs_ordinary(hr__epochs_of(1000, 7)), 1000);
	CHECK_EQ(hr__epochs_copies(hr__epochs_of(1000, 7)), 7);
	CHECK_EQ(hr__epochs_ordinary(hr__epochs_of(7, 1000)), 7);
	CHECK_EQ(hr__epochs_copies(hr__epochs_of(7, 1000)), 1000);
	uint64_t late = (UINT64_C(1) << 48) - 1;
	CHECK_EQ(hr__epochs_ordinary(hr__epochs_of(late, late - 32767)), late);
	CHECK_EQ(hr__epochs_copies(hr__epochs_of(late, late - 32767)), late - 32767);
	CHECK_EQ(hr__epochs_ordinary(hr__epochs_of(late - 32767, late)), late - 32767);
	CHECK_EQ(hr__epochs_copies(hr__epochs_of(late - 32767, late)), late);
	CHECK_EQ(hr__epochs_of(4711, 4711), 4711);
}

static void test_an_epoch_too_old_to_keep_becomes_newer(void)
{
	CHECK_EQ(hr__epochs_copies(hr__epochs_of(100000, 7)), 100000 - 32767);
	CHECK_EQ(hr__epochs_ordinary(hr__epochs_of(100000, 7)), 100000);
	CHECK_EQ(hr__epochs_ordinary(hr__epochs_of(7, 100000)), 100000 - 32767);
	CHECK_EQ(hr__epochs_copies(hr__epochs_of(7, 100000)), 100000);
}

static void test_joined_memory_keeps_the_later_epoch_of_each_kind(void)
{
	hr__epochs joined = hr__epochs_join(PLAIN, 50, COPY, 20);
	CHECK_EQ(hr__epochs_ordinary(joined), 50);
	CHECK_EQ(hr__epochs_copies(joined), 20);
	joined = hr__epochs_join(PLAIN | COPY, joined, OTHER_PLAIN | OTHER_COPY, hr__epochs_of(40, 30));
	CHECK_EQ(hr__epochs_ordinary(joined), 50);
	CHECK_EQ(hr__epochs_copies(joined), 30);
	CHECK_EQ(hr__epochs_join(PLAIN, 50, OTHER_PLAIN, 60), 60);
	CHECK_EQ(hr__epochs_join(0, 70, OTHER_PLAIN, 60), 60); /* an epoch of no stream means nothing */
	CHECK_EQ(hr__epochs_join(PLAIN, 50, 0, 60), 50);
	CHECK_EQ(hr__epochs_join(0, 70, 0, 60), 0);
	CHECK_EQ(hr__epochs_copies(hr__epochs_join(0, 70, COPY, 60)), 60);
	CHECK_EQ(hr__epochs_copies(hr__epochs_join(COPY, 50, OTHER_COPY, 60)), 60);
}

/* What each of 64 streams may still be doing, beside the epochs. */
struct uses {
	uint64_t streams, latest[64];
	hr__epochs epochs;
};

static struct uses use_of(uint64_t stream, uint64_t epoch)
{
	struct uses uses = { .streams = UINT64_C(1) << stream, .epochs = epoch };
	uses.latest[stream] = epoch;
	return uses;
}

/* No stream's epoch may be forgotten or become older, whatever is joined in whatever order. */
static void test_no_join_loses_a_use(void)
{
	uint64_t random = hr_test_seed(), rounds = hr_test_scaled(2000);
	for (uint64_t round = 0; round < rounds; round++) {
		struct uses uses[8];
		uint64_t epoch = 1;
		for (uint32_t i = 0; i < 8; i++) {
			epoch += hr_rand_below(&random, 4) ? hr_rand_below(&random, 50) : hr_rand_below(&random, 60000);
			uses[i] = use_of(hr_rand_below(&random, 2) ? 60 + hr_rand_below(&random, 4) : hr_rand_below(&random, 60), epoch);
		}
		for (uint32_t count = 8; count > 1; count--) {
			uint32_t a = (uint32_t)hr_rand_below(&random, count), b = (a + 1 + (uint32_t)hr_rand_below(&random, count - 1)) % count;
			uses[a].epochs = hr__epochs_join(uses[a].streams, uses[a].epochs, uses[b].streams, uses[b].epochs);
			uses[a].streams |= uses[b].streams;
			for (uint32_t s = 0; s < 64; s++)
				if (uses[b].latest[s] > uses[a].latest[s]) uses[a].latest[s] = uses[b].latest[s];
			for (uint32_t s = 0; s < 64; s++)
				if (uses[a].latest[s]) CHECK_GE(s < 60 ? hr__epochs_ordinary(uses[a].epochs) : hr__epochs_copies(uses[a].epochs), uses[a].latest[s]);
			CHECK(hr__epochs_ordinary(uses[a].epochs) <= epoch);
			CHECK(hr__epochs_copies(uses[a].epochs) <= epoch);
			uses[b] = uses[count - 1];
		}
	}
}

/* ---- in virtual time ---- */

static void test_copy_streams_have_the_last_slots(void)
{
	use("SIM:0");
	hr_stream first, second, other = new_stream();
	CHECK_STATUS(HR_OK, hr__device_copy_stream(device, &first));
	CHECK_STATUS(HR_OK, hr__device_copy_stream(device, &second));
	CHECK_EQ(other, 1);
	CHECK_EQ(first, 63);
	CHECK_EQ(second, 62);
	/* A program can still have all streams, and copies then get any slot. */
	for (uint32_t i = 2; i < 62; i++) CHECK_EQ(new_stream(), i);
	CHECK_STATUS(HR_TOO_MANY, hr_stream_create(hr__device_handle(device), &other));
	CHECK_STATUS(HR_OK, hr_stream_destroy(hr__device_handle(device), 5));
	CHECK_STATUS(HR_OK, hr__device_copy_stream(device, &other));
	CHECK_EQ(other, 5);
}

static uint64_t time_now(hr_stream stream)
{
	uint64_t epoch, ns;
	CHECK_STATUS(HR_OK, hr__device_mark_timed(device, stream, &epoch));
	CHECK_STATUS(HR_OK, hr__device_mark_time(device, stream, epoch, &ns));
	return ns;
}

static uint64_t mark(hr_stream stream)
{
	uint64_t epoch;
	CHECK_STATUS(HR_OK, hr__device_mark(device, stream, &epoch));
	CHECK_EQ(waits_for(stream, BIT(stream), epoch), 0); /* a stream never waits for itself */
	return epoch;
}

static void test_memory_joined_with_memory_of_an_old_copy_waits_for_no_later_copy(void)
{
	use("SIM:0");
	hr_stream copies;
	CHECK_STATUS(HR_OK, hr__device_copy_stream(device, &copies));
	hr_allocator allocator = fixture_allocator(hr__device_handle(device), 64 * MIB);
	hr_status status = HR_OK;
	hr__allocator *inside = hr__allocator_of(allocator, &status);
	hr_request request = { .struct_size = sizeof request, .bytes = 16 * MIB };
	void *left, *right, *both;
	CHECK_STATUS(HR_OK, hr_alloc(allocator, &request, &left));
	CHECK_STATUS(HR_OK, hr_alloc(allocator, &request, &right));
	CHECK_EQ((uintptr_t)right, (uintptr_t)left + 16 * MIB);
	/* The left block was copied, which takes 3 ms. Then a copy of something else begins, which takes 100 ms. */
	compute(copies, 3 * MS);
	CHECK_STATUS(HR_OK, hr__block_give(inside, (uintptr_t)left, UINT64_C(1) << copies, mark(copies) - 1, true));
	compute(copies, 100 * MS);
	mark(copies);
	/* The right block was computed with in the meantime. */
	compute(HR_STREAM_DEFAULT, MS);
	mark(HR_STREAM_DEFAULT);
	CHECK_STATUS(HR_OK, hr_free(allocator, right, HR_STREAM_DEFAULT));
	request.bytes = 32 * MIB;
	CHECK_STATUS(HR_OK, hr_alloc(allocator, &request, &both));
	CHECK(both == left);
	CHECK_EQ(time_now(HR_STREAM_DEFAULT), 3 * MS);
	CHECK_STATUS(HR_OK, hr_free(allocator, both, HR_STREAM_DEFAULT));
	hr__block_forget(inside);
	CHECK_STATUS(HR_OK, hr_allocator_destroy(allocator));
}

/* ---- tensors in virtual time ---- */

#define LARGE (512 * MIB) /* takes about 10 ms to copy */

static hr__lms *use_tensors(const char *policy, hr_allocator *allocator)
{
	hr__lms *lms;
	use("SIM:0");
	*allocator = fixture_allocator(hr__device_handle(device), 4 * LARGE);
	fixture_lms(*allocator, policy, 64 * LARGE);
	CHECK_STATUS(HR_OK, hr__lms_of(*allocator, &lms));
	return lms;
}

static void use_tensor(hr_tensor tensor, hr_access access, uint64_t ns)
{
	CHECK_STATUS(HR_OK, hr_tensor_pin(tensor, access, HR_STREAM_DEFAULT));
	compute(HR_STREAM_DEFAULT, ns);
	CHECK_STATUS(HR_OK, hr_tensor_unpin(tensor, HR_STREAM_DEFAULT));
}

static void copy_to_host(hr_tensor named)
{
	hr_status status = HR_OK;
	hr__tensor *tensor = hr__tensor_of(named, &status);
	CHECK(hr__state_begin_eviction(tensor, hr__load_acquire(&tensor->word)));
	CHECK_STATUS(HR_OK, hr__move_copy_to_host(tensor));
	hr__state_end_eviction(tensor, HR__PLACE_RESIDENT);
}

static void test_destroying_a_tensor_makes_no_stream_wait_for_its_copy(void)
{
	hr_allocator allocator;
	const hr__lms *lms = use_tensors("lru", &allocator);
	hr_tensor tensor = fixture_tensor(allocator, LARGE);
	use_tensor(tensor, HR_OVERWRITE, MS);
	copy_to_host(tensor);
	uint64_t copied = time_now(lms->out_stream);
	CHECK_GT(copied, 5 * MS);
	CHECK_STATUS(HR_OK, hr_tensor_destroy(tensor));
	CHECK_EQ(time_now(HR_STREAM_DEFAULT), MS);
	/* The next user of the memory waits for the copy. */
	hr_request request = { .struct_size = sizeof request, .bytes = 3 * LARGE };
	void *block;
	CHECK_STATUS(HR_OK, hr_alloc(allocator, &request, &block));
	CHECK_GE(time_now(HR_STREAM_DEFAULT), copied);
	CHECK_STATUS(HR_OK, hr_free(allocator, block, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_allocator_destroy(allocator));
}

TEST_MAIN(T(test_both_epochs_are_kept), T(test_an_epoch_too_old_to_keep_becomes_newer), T(test_joined_memory_keeps_the_later_epoch_of_each_kind),
          T(test_no_join_loses_a_use), T(test_copy_streams_have_the_last_slots),
          T(test_memory_joined_with_memory_of_an_old_copy_waits_for_no_later_copy),
          T(test_destroying_a_tensor_makes_no_stream_wait_for_its_copy))
