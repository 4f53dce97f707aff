/* test_allocator_metadata.c - host memory per live chunk: at most 128 bytes from a thousand chunks on, whatever the size of the
 * region.
 *
 * Free and cached blocks have records too, so that after a while of allocating and freeing there are more records than live chunks.
 * The promise is then 128 bytes for each chunk of any kind; the resulting number of bytes for each live chunk is printed. */
#include <stdlib.h>

#include "fixture.h"
#include "test.h"

#define GIB (UINT64_C(1) << 30)

typedef struct crowd {
	hr_allocator allocator;
	void **blocks;
	uint32_t count;
	uint64_t largest;
	uint64_t seed;
} crowd;

/* Allocates a block of random size; every order of magnitude is equally likely. */
static void *allocate(crowd *c)
{
	uint64_t bits = 63 - (uint64_t)__builtin_clzll(c->largest);
	size_t bytes = hr_rand_below(&c->seed, UINT64_C(1) << (8 + hr_rand_below(&c->seed, bits - 7))) + 1;
	void *block;
	CHECK_STATUS(HR_OK, hr_alloc_bytes(c->allocator, bytes, &block));
	return block;
}

static bool count_chunk(void *context, const hr_chunk_view *chunk)
{
	if (chunk->kind != HR_CHUNK_UNMAPPED) ++*(uint64_t *)context;
	return true;
}

/* Bytes for each live chunk, or for each chunk of any kind. */
static double bytes_per_chunk(const crowd *c, const char *when, uint64_t limit, bool any_kind)
{
	hr_stats stats;
	uint64_t chunks = 0;
	hr_stats_init(&stats);
	CHECK_STATUS(HR_OK, hr_allocator_get_stats(c->allocator, &stats));
	CHECK_EQ(stats.num_live, c->count);
	for (uint32_t i = 0; i < (uint32_t)stats.num_regions; i++)
		CHECK_STATUS(HR_OK, hr_allocator_visit(c->allocator, i, count_chunk, &chunks));
	double live = (double)stats.metadata_bytes / (double)stats.num_live, any = (double)stats.metadata_bytes / (double)chunks;
	printf("# %6lld live chunks in %4llu GiB, %-10s %8lld bytes of metadata: %5.1f for each live one, %5.1f for each of all %llu\n",
	       (long long)stats.num_live, (unsigned long long)(limit / GIB), when, (long long)stats.metadata_bytes, live, any,
	       (unsigned long long)chunks);
	return any_kind ? any : live;
}

static void measure(uint64_t limit, uint32_t count)
{
	crowd c = { .count = count, .largest = limit / count / 2, .seed = hr_test_seed() };
	if (c.largest > 64 << 20) c.largest = 64 << 20;
	hr_device device = fixture_simulated(limit, FIXTURE_DEFAULT);
	c.allocator = fixture_allocator(device, 0);
	c.blocks = malloc(count * sizeof *c.blocks);
	CHECK(c.blocks != NULL);

	for (uint32_t i = 0; i < count; i++) c.blocks[i] = allocate(&c);
	double filled = bytes_per_chunk(&c, "filled:", limit, false);
	for (uint32_t i = 0; i < count * 8; i++) {
		uint32_t which = (uint32_t)hr_rand_below(&c.seed, count);
		CHECK_STATUS(HR_OK, hr_free(c.allocator, c.blocks[which], HR_STREAM_DEFAULT));
		c.blocks[which] = allocate(&c);
	}
	double used = bytes_per_chunk(&c, "after use:", limit, true);
	if (count >= 1000) {
		CHECK_LE(filled, 128.0);
		CHECK_LE(used, 128.0);
	}
	CHECK_STATUS(HR_OK, hr_shutdown());
	free(c.blocks);
}

static void test_metadata_is_in_proportion_to_chunks(void)
{
	static const uint32_t counts[] = { 10, 1000, 1500, 2100, 10000, 100000, 140000 };
	for (uint64_t limit = GIB; limit <= 1024 * GIB; limit *= 1024)
		for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) measure(limit, counts[i]);
}

TEST_MAIN(T(test_metadata_is_in_proportion_to_chunks))
