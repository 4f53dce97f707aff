/* bench.h - shared by the benchmarks: a clock, threads, and the best of several rounds.
 *
 * A figure is the best of several rounds that alternate between the things compared, so that disturbances affect both. No benchmark
 * asserts anything about time. */
#ifndef HR_BENCH_H
#define HR_BENCH_H

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "headroom.h"

static inline double bench_now_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

/* Exits with the library's message if a call failed. */
static inline void bench_must(hr_status status)
{
	if (status == HR_OK) return;
	fprintf(stderr, "%s: %s\n", hr_status_name(status), hr_last_message());
	exit(1);
}

/* hr_shutdown frees what the benchmark left allocated. */
static inline hr_status bench_shutdown(void)
{
	hr_status status = hr_shutdown();
	return status == HR_LEAKED ? HR_OK : status;
}
#define hr_shutdown() bench_shutdown()

/* Wall time of [count] threads that all call run(argument). */
static inline double bench_threads_ns(unsigned count, void *(*run)(void *), void *argument)
{
	pthread_t threads[16];
	double start = bench_now_ns();
	for (unsigned i = 1; i < count; i++)
		if (pthread_create(&threads[i], NULL, run, argument)) abort();
	run(argument);
	for (unsigned i = 1; i < count; i++) pthread_join(threads[i], NULL);
	return bench_now_ns() - start;
}

static inline double bench_least(double a, double b)
{
	return a < b ? a : b;
}

/* A new simulated device, and an allocator on it with default options except [limit] and [stitch]. */
static inline hr_allocator bench_allocator(uint64_t page, uint64_t limit, bool stitch)
{
	hr_simulated_options simulated;
	hr_allocator_options options;
	hr_device device;
	hr_allocator allocator;
	hr_simulated_options_init(&simulated);
	simulated.page_bytes = page;
	bench_must(hr_simulated_configure(&simulated));
	bench_must(hr_device_find("SIM:0", &device));
	hr_allocator_options_init(&options);
	options.limit_bytes = limit;
	options.stitch = stitch;
	bench_must(hr_allocator_create(device, &options, &allocator));
	return allocator;
}

#endif
