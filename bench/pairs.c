/* pairs.c - allocation and free in a loop, compared with mimalloc's malloc and free of the same sizes in the same run.
 *
 * mimalloc is a reference, not a competitor: it keeps its headers in the memory it returns, and has no statistics or ledger. */
#include "bench.h"

#ifdef HR_HAVE_MIMALLOC
#include <mimalloc.h>
#endif

#define ROUNDS 15
#define PAIRS 200000

static hr_allocator allocator;

static double ours(size_t bytes)
{
	void *block;
	double start = bench_now_ns();
	for (int i = 0; i < PAIRS; i++) {
		if (hr_alloc_bytes(allocator, bytes, &block)) abort();
		hr_free(allocator, block, HR_STREAM_DEFAULT);
	}
	return (bench_now_ns() - start) / PAIRS;
}

#ifdef HR_HAVE_MIMALLOC
static double theirs(size_t bytes)
{
	double start = bench_now_ns();
	for (int i = 0; i < PAIRS; i++) {
		void *block = mi_malloc(bytes);
		*(volatile char *)block = 1;
		mi_free(block);
	}
	return (bench_now_ns() - start) / PAIRS;
}
#endif

/* Blocks of 256 B to 64 KiB, 64 of them live, in an order that repeats every 4,096 steps. */
#define MIXED_STEPS 4096
static uint32_t mixed_sizes[MIXED_STEPS];

static void *mixed(void *argument)
{
	void *live[64] = { 0 };
	(void)argument;
	for (int pass = 0; pass < 400; pass++) {
		for (int i = 0; i < MIXED_STEPS; i++) {
			void **slot = &live[(i * 37) % 64];
			if (*slot) hr_free(allocator, *slot, HR_STREAM_DEFAULT);
			if (hr_alloc_bytes(allocator, mixed_sizes[i], slot)) abort();
		}
	}
	for (int i = 0; i < 64; i++) hr_free(allocator, live[i], HR_STREAM_DEFAULT);
	return NULL;
}

int main(void)
{
	static const size_t sizes[] = { 256, 512, 4096, 65536, 65792, 1 << 20, 64 << 20 };
	allocator = bench_allocator(2 << 20, 0, true);
#ifdef HR_HAVE_MIMALLOC
	double yardstick = 1e9;
	for (int round = 0; round < ROUNDS; round++) yardstick = bench_least(yardstick, theirs(512));
	printf("mimalloc malloc+free of 512 B: %.1f ns\n", yardstick);
#endif
	printf("%-28s %12s", "alloc+free pair", "headroom");
#ifdef HR_HAVE_MIMALLOC
	printf(" %12s %18s", "mimalloc", "over its 512 B");
#endif
	printf("\n");
	for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
		double us = 1e9;
		for (int round = 0; round < ROUNDS; round++) us = bench_least(us, ours(sizes[i]));
		printf("%-28zu %9.1f ns", sizes[i], us);
#ifdef HR_HAVE_MIMALLOC
		double them = 1e9;
		for (int round = 0; round < ROUNDS; round++) them = bench_least(them, theirs(sizes[i]));
		printf(" %9.1f ns %17.2fx", them, us / yardstick);
#endif
		printf("\n");
	}

	uint64_t state = 88172645463325252u;
	for (int i = 0; i < MIXED_STEPS; i++) {
		state ^= state << 13;
		state ^= state >> 7;
		state ^= state << 17;
		mixed_sizes[i] = 1 + (uint32_t)(state % 65536);
	}
	double one = 1e18, two = 1e18;
	for (int round = 0; round < 5; round++) {
		one = bench_least(one, bench_threads_ns(1, mixed, NULL));
		two = bench_least(two, bench_threads_ns(2, mixed, NULL));
	}
	printf("\nmixed blocks up to 64 KiB: one thread %.1f ns per operation; two threads %.2f times its throughput\n",
	       one / (400.0 * MIXED_STEPS * 2), 2 * one / two);
	bench_must(hr_shutdown());
	return 0;
}
