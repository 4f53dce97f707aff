/* test_threads_model.c - several threads on one allocator: blocks pass between threads, threads end, and other threads observe.
 *
 * Each block carries its expected address, size and contents. No thread may find a contradiction to that, every snapshot adds up,
 * every check passes, and at the end nothing is left. */
#include "fixture.h"
#include "fault_os.h"
#include "support_stats.h"
#include "test.h"

#define KIB UINT64_C(1024)
#define MIB (KIB * KIB)
#define THREADS_MAX 8u
#define QUEUE 512u
#define OWN 64u

typedef struct parcel {
	unsigned char *address;
	uint64_t bytes, pattern;
} parcel;

/* A bag into which all threads put blocks and from which they take blocks. */
typedef struct bag {
	pthread_mutex_t mutex;
	parcel blocks[QUEUE];
	uint32_t count;
} bag;

typedef struct crew {
	hr_allocator allocators[2];
	uint32_t allocator_count;
	hr_device device;
	bool real; /* blocks have contents */
	uint64_t largest;
	uint64_t steps;
	uint64_t round;
	unsigned workers;             /* threads from this number on only observe */
	bag bags[2];                  /* of each allocator */
	_Atomic(int64_t) least, most; /* bytes in use are always between these two */
	_Atomic(int64_t) least_peak, most_peak;
	_Atomic(uint64_t) met, refused, handed, looked;
	_Atomic(unsigned) working;
} crew;

static void raise_to(_Atomic(int64_t) *mark, int64_t value)
{
	int64_t seen = atomic_load(mark);
	while (value > seen && !atomic_compare_exchange_weak(mark, &seen, value)) continue;
}

static void count(_Atomic(int64_t) *what, _Atomic(int64_t) *peak, int64_t bytes)
{
	raise_to(peak, atomic_fetch_add(what, bytes) + bytes);
}

/* ---- blocks ---- */

static void paint(const parcel *b)
{
	memcpy(b->address, &b->pattern, b->bytes < 8 ? b->bytes : 8);
	b->address[b->bytes - 1] = (unsigned char)b->pattern;
}

static void verify(const parcel *b)
{
	if (b->bytes > 8) CHECK(memcmp(b->address, &b->pattern, 8) == 0);
	CHECK_EQ(b->address[b->bytes - 1], (unsigned char)b->pattern);
}

static bool put(bag *to, const parcel *b)
{
	pthread_mutex_lock(&to->mutex);
	bool room = to->count < QUEUE;
	if (room) to->blocks[to->count++] = *b;
	pthread_mutex_unlock(&to->mutex);
	return room;
}

/* Takes a random block, so that blocks stay for a short or a long time. */
static bool get(bag *from, uint64_t *seed, parcel *b)
{
	pthread_mutex_lock(&from->mutex);
	bool any = from->count > 0;
	if (any) {
		uint32_t i = (uint32_t)hr_rand_below(seed, from->count);
		*b = from->blocks[i];
		from->blocks[i] = from->blocks[--from->count];
	}
	pthread_mutex_unlock(&from->mutex);
	return any;
}

static bool allocate(crew *c, uint32_t which, uint64_t *seed, parcel *b)
{
	uint64_t bits = 64 - (uint64_t)__builtin_clzll(c->largest);
	hr_request request = HR_REQUEST(hr_rand_below(seed, UINT64_C(1) << (4 + hr_rand_below(seed, bits - 4))) + 1);
	void *address;
	if (hr_rand_below(seed, 16) == 0) request.alignment = (size_t)1 << hr_rand_below(seed, 14);
	int64_t size = (int64_t)((request.bytes + 255) & ~(size_t)255);
	count(&c->most, &c->most_peak, size);
	hr_status status = hr_alloc(c->allocators[which], &request, &address);
	if (status != HR_OK) {
		CHECK_STATUS(HR_OUT_OF_MEMORY, status);
		atomic_fetch_sub(&c->most, size);
		atomic_fetch_add(&c->refused, 1);
		return false;
	}
	count(&c->least, &c->least_peak, size);
	atomic_fetch_add(&c->met, 1);
	if (request.alignment) CHECK_EQ((uintptr_t)address % request.alignment, 0);
	*b = (parcel){ address, request.bytes, hr_rand(seed) };
	if (c->real) paint(b);
	return true;
}

static void release(crew *c, uint32_t which, const parcel *b)
{
	int64_t size = (int64_t)((b->bytes + 255) & ~(uint64_t)255);
	if (c->real) verify(b);
	atomic_fetch_sub(&c->least, size);
	CHECK_STATUS(HR_OK, hr_free(c->allocators[which], b->address, HR_STREAM_DEFAULT));
	atomic_fetch_sub(&c->most, size);
}

/* ---- threads ---- */

static void work(crew *c, unsigned index)
{
	uint64_t seed = (hr_test_seed() * 64 + c->round) * 64 + index;
	parcel own[OWN], b;
	uint32_t owned = 0;
	uint32_t which = c->allocator_count > 1 ? index % 2 : 0;
	for (uint64_t i = 0; i < c->steps; i++) {
		switch (hr_rand_below(&seed, 8)) {
		case 0:
		case 1:
		case 2:
			if (owned < OWN && allocate(c, which, &seed, &b)) own[owned++] = b;
			break;
		case 3:
		case 4:
			if (owned > 0) release(c, which, &own[--owned]);
			break;
		case 5:
			if (owned > 0 && put(&c->bags[which], &own[owned - 1])) {
				owned--;
				atomic_fetch_add(&c->handed, 1);
			}
			break;
		default:
			if (get(&c->bags[which], &seed, &b)) release(c, which, &b);
			break;
		}
	}
	while (owned > 0) release(c, which, &own[--owned]); /* into the cache of a thread that ends now */
}

/* Trims, reads statistics and checks while the others work. */
static void look_on(crew *c, unsigned index)
{
	uint64_t seed = (hr_test_seed() * 64 + c->round) * 64 + index;
	while (atomic_load(&c->working) > 0) {
		hr_allocator allocator = c->allocators[hr_rand_below(&seed, c->allocator_count)];
		hr_stats stats;
		hr_stats_init(&stats);
		switch (hr_rand_below(&seed, 16)) {
		case 0: CHECK_STATUS(HR_OK, hr_allocator_trim(allocator, NULL)); break;
		case 1:
		case 2: CHECK_STATUS(HR_OK, hr_allocator_check(allocator)); break;
		case 3: {
			hr_region_info region = { .struct_size = sizeof region };
			hr_status status = hr_allocator_get_region(allocator, 0, &region);
			CHECK(status == HR_OK || status == HR_INVALID_ARGUMENT);
			if (status == HR_OK) CHECK_EQ(region.bytes_in_use + region.bytes_cached + region.bytes_free, region.bytes_reserved);
			break;
		}
		case 4:
			CHECK_STATUS(HR_OK, hr_device_get_stats(c->device, &stats));
			check_identities(&stats);
			break;
		default:
			CHECK_STATUS(HR_OK, hr_allocator_get_stats(allocator, &stats));
			check_identities(&stats);
			break;
		}
		atomic_fetch_add(&c->looked, 1);
	}
}

static void join_in(void *argument, unsigned index)
{
	crew *c = argument;
	if (index >= c->workers) {
		look_on(c, index);
		return;
	}
	work(c, index);
	atomic_fetch_sub(&c->working, 1);
}

/* Rounds of threads that start, work and end. */
static void run_crew(crew *c, unsigned workers, unsigned lookers, uint64_t rounds, uint64_t steps)
{
	hr_stats stats;
	parcel b;
	uint64_t seed = 1;
	for (uint32_t i = 0; i < 2; i++) pthread_mutex_init(&c->bags[i].mutex, NULL);
	c->workers = workers;
	c->steps = steps;
	for (c->round = 0; c->round < rounds; c->round++) {
		atomic_store(&c->working, workers);
		hr_test_threads(workers + lookers, join_in, c);
		for (uint32_t i = 0; i < c->allocator_count; i++) CHECK_STATUS(HR_OK, hr_allocator_check(c->allocators[i]));
	}
	int64_t least = 0, most = 0, reported = 0, error = 0;
	for (uint32_t i = 0; i < c->allocator_count; i++) {
		while (get(&c->bags[i], &seed, &b)) release(c, i, &b);
		hr_stats_init(&stats);
		CHECK_STATUS(HR_OK, hr_allocator_get_stats(c->allocators[i], &stats));
		check_identities(&stats);
		CHECK_EQ(stats.bytes_in_use, 0);
		CHECK_EQ(stats.bytes_requested, 0);
		CHECK_EQ(stats.num_live, 0);
		CHECK_LE(stats.peak_error_bytes, (int64_t)(workers + 1) * 65536); /* 64 KiB for each thread that allocates */
		reported += stats.peak_bytes_in_use;
		error += stats.peak_error_bytes;
		CHECK_STATUS(HR_OK, hr_allocator_trim(c->allocators[i], NULL));
		hr_stats_init(&stats);
		CHECK_STATUS(HR_OK, hr_allocator_get_stats(c->allocators[i], &stats));
		CHECK_EQ(stats.bytes_reserved, 0);
		CHECK_STATUS(HR_OK, hr_allocator_check(c->allocators[i]));
	}
	least = atomic_load(&c->least_peak);
	most = atomic_load(&c->most_peak);
	printf("# %u workers: %llu met, %llu refused, %llu handed over, %llu looks; peak %lld to %lld, told %lld (error %lld)\n",
	       workers, (unsigned long long)c->met, (unsigned long long)c->refused, (unsigned long long)c->handed,
	       (unsigned long long)c->looked, (long long)least, (long long)most, (long long)reported, (long long)error);
	CHECK_EQ(atomic_load(&c->least), 0);
	CHECK_GT(c->met, 0);
	CHECK_GT(c->handed, 0);
	/* The reported peak is between the bytes certainly in use at once and the bytes possibly in use at once plus the reported
	 * error. */
	if (c->allocator_count == 1) {
		CHECK_LE(least, reported);
		CHECK_LE(reported, most + error);
	} else {
		hr_stats_init(&stats);
		CHECK_STATUS(HR_OK, hr_device_get_stats(c->device, &stats));
		CHECK_LE(least, stats.peak_bytes_in_use);
		CHECK_LE(stats.peak_bytes_in_use, most + stats.peak_error_bytes);
	}
	for (uint32_t i = 0; i < c->allocator_count; i++) CHECK_STATUS(HR_OK, hr_allocator_destroy(c->allocators[i]));
	CHECK_STATUS(HR_OK, hr_shutdown());
	CHECK(hr_fault_os_is_clean());
	hr_fault_os_uninstall();
}

static void simulate(crew *c, uint64_t memory, uint64_t page, uint64_t limit, uint32_t allocators)
{
	memset(c, 0, sizeof *c);
	hr_fault_os_install();
	c->device = fixture_simulated(memory, page);
	hr_allocator_options how = fixture_allocator_options(limit);
	c->allocator_count = allocators;
	for (uint32_t i = 0; i < allocators; i++) CHECK_STATUS(HR_OK, hr_allocator_create(c->device, &how, &c->allocators[i]));
}

static void test_threads_that_hand_blocks_over_leave_nothing_behind(void)
{
	static crew c;
	for (unsigned workers = 2; workers <= THREADS_MAX; workers *= 2) {
		simulate(&c, UINT64_C(1) << 34, 2 * MIB, 0, 1);
		c.largest = 1 * MIB;
		run_crew(&c, workers, 1, 8, hr_test_scaled(400000) / workers);
	}
}

static void test_threads_that_run_out_of_memory_leak_nothing(void)
{
	static crew c;
	for (unsigned workers = 2; workers <= THREADS_MAX; workers *= 2) {
		simulate(&c, 64 * MIB, 64 * KIB, 2 * MIB, 1);
		c.largest = 512 * KIB;
		run_crew(&c, workers, 1, 8, hr_test_scaled(100000) / workers);
		CHECK_GT(c.refused, 0);
	}
}

static void test_threads_without_pages_leave_nothing_behind(void)
{
	static crew c;
	simulate(&c, 64 * MIB, 0, 24 * MIB, 1);
	c.largest = 256 * KIB;
	run_crew(&c, 4, 1, 8, hr_test_scaled(40000));
}

static void test_threads_on_two_allocators_of_a_device_leave_nothing_behind(void)
{
	static crew c;
	simulate(&c, 64 * MIB, 64 * KIB, 0, 2);
	c.largest = 512 * KIB;
	run_crew(&c, 4, 2, 8, hr_test_scaled(40000));
}

static void test_threads_never_share_a_byte(void)
{
	static crew c;
	for (unsigned workers = 2; workers <= THREADS_MAX; workers *= 4) {
		memset(&c, 0, sizeof c);
		hr_fault_os_install();
		c.device = fixture_emulated(64 * MIB, 64 * KIB, 0);
		CHECK_STATUS(HR_OK, hr_allocator_create(c.device, NULL, &c.allocators[0]));
		c.allocator_count = 1;
		c.real = true;
		c.largest = 256 * KIB;
		run_crew(&c, workers, 1, 4, hr_test_scaled(100000) / workers);
	}
}

/* ---- peaks of threads at different times ---- */

#define SEESAW_BLOCKS 1024u

/* All threads together use at most the budget: one thread allocates what another has freed. */
typedef struct seesaw {
	hr_allocator allocator;
	uint64_t block, climbs, round;
	_Atomic(int64_t) budget;            /* the rest of it */
	_Atomic(int64_t) least, least_peak; /* certainly in use */
} seesaw;

static bool spend(seesaw *s)
{
	int64_t left = atomic_load(&s->budget);
	while (left >= (int64_t)s->block)
		if (atomic_compare_exchange_weak(&s->budget, &left, left - (int64_t)s->block)) return true;
	return false;
}

static void climb_and_fall(void *argument, unsigned index)
{
	seesaw *s = argument;
	uint64_t seed = (hr_test_seed() * 64 + s->round) * 64 + index;
	void *blocks[SEESAW_BLOCKS];
	uint32_t height = 0;
	for (uint64_t i = 0; i < s->climbs; i++) {
		uint32_t high = hr_rand_below(&seed, SEESAW_BLOCKS), low = hr_rand_below(&seed, high + 1);
		for (; height < high && spend(s); height++) {
			CHECK_STATUS(HR_OK, hr_alloc_bytes(s->allocator, s->block, &blocks[height]));
			count(&s->least, &s->least_peak, (int64_t)s->block);
		}
		if (i + 1 == s->climbs) low = 0;
		while (height > low) {
			atomic_fetch_sub(&s->least, (int64_t)s->block);
			CHECK_STATUS(HR_OK, hr_free(s->allocator, blocks[--height], HR_STREAM_DEFAULT));
			atomic_fetch_add(&s->budget, (int64_t)s->block);
		}
	}
}

static void seesaw_with(unsigned threads, uint64_t block, uint64_t climbs)
{
	static seesaw s;
	hr_device device;
	hr_stats stats;
	CHECK_STATUS(HR_OK, hr_device_find("SIM:0", &device));
	CHECK_STATUS(HR_OK, hr_allocator_create(device, NULL, &s.allocator));
	s.block = block;
	s.climbs = climbs / threads;
	int64_t budget = (int64_t)(SEESAW_BLOCKS * block);
	atomic_store(&s.budget, budget);
	atomic_store(&s.least_peak, 0);
	for (s.round = 0; s.round < 4; s.round++) {
		hr_test_threads(threads, climb_and_fall, &s);
		hr_stats_init(&stats);
		CHECK_STATUS(HR_OK, hr_allocator_get_stats(s.allocator, &stats));
		CHECK_EQ(stats.bytes_in_use, 0);
		CHECK_LE(atomic_load(&s.least_peak), stats.peak_bytes_in_use);
		CHECK_LE(stats.peak_bytes_in_use, budget + stats.peak_error_bytes);
		CHECK_LE(stats.peak_error_bytes, (int64_t)threads * 65536);
		CHECK_STATUS(HR_OK, hr_allocator_check(s.allocator));
	}
	CHECK_STATUS(HR_OK, hr_shutdown());
}

static void test_threads_with_peaks_at_different_times_have_one_peak(void)
{
	for (unsigned threads = 2; threads <= THREADS_MAX; threads *= 2) {
		seesaw_with(threads, 4 * KIB, hr_test_scaled(2000));
		seesaw_with(threads, 64 * KIB, hr_test_scaled(2000));
		seesaw_with(threads, 128 * KIB, hr_test_scaled(500));
	}
}

/* ---- the same block, freed twice at once ---- */

#define CONTESTED 2048u

typedef struct contest {
	hr_allocator allocator;
	void *blocks[CONTESTED];
	_Atomic(uint32_t) ready[CONTESTED];
	_Atomic(uint64_t) won, lost;
	double end; /* time limit of the rounds: on one processor shared with other processes, each takes many time slices */
} contest;

/* Both threads synchronize before every block, so that they free it within a few nanoseconds. */
static void free_all(void *argument, unsigned index)
{
	contest *c = argument;
	(void)index;
	for (uint32_t i = 0; i < CONTESTED; i++) {
		atomic_fetch_add(&c->ready[i], 1);
		for (unsigned spins = 0; atomic_load(&c->ready[i]) < 2; spins++) {
			if (spins <= 2000) continue;
			if (hr_test_now() > c->end) break;
			sched_yield();
		}
		hr_status status = hr_free(c->allocator, c->blocks[i], HR_STREAM_DEFAULT);
		if (status == HR_OK) atomic_fetch_add(&c->won, 1);
		else {
			CHECK_STATUS(HR_NOT_ALLOCATED, status);
			atomic_fetch_add(&c->lost, 1);
		}
	}
}

static void contend(uint64_t limit, uint64_t rounds)
{
	static contest c;
	hr_device device;
	hr_stats stats;
	hr_allocator_options options = fixture_allocator_options(limit);
	CHECK_STATUS(HR_OK, hr_device_find("SIM:0", &device));
	CHECK_STATUS(HR_OK, hr_allocator_create(device, &options, &c.allocator));
	c.end = hr_test_now() + 20;
	for (uint64_t round = 0; round < rounds; round++) {
		for (uint32_t i = 0; i < CONTESTED; i++) {
			CHECK_STATUS(HR_OK, hr_alloc_bytes(c.allocator, i % 3 ? 256 : 100000, &c.blocks[i]));
			atomic_store(&c.ready[i], 0);
		}
		atomic_store(&c.won, 0);
		atomic_store(&c.lost, 0);
		hr_test_threads(2, free_all, &c);
		CHECK_EQ(c.won, CONTESTED);
		CHECK_EQ(c.lost, CONTESTED);
		hr_stats_init(&stats);
		CHECK_STATUS(HR_OK, hr_allocator_get_stats(c.allocator, &stats));
		CHECK_EQ(stats.num_live, 0);
		CHECK_EQ(stats.bytes_in_use, 0);
		CHECK_STATUS(HR_OK, hr_allocator_check(c.allocator));
	}
	CHECK_STATUS(HR_OK, hr_shutdown());
}

static void test_of_two_threads_that_free_a_block_one_loses(void)
{
	contend(100 * 2 * MIB, hr_test_scaled(40)); /* so small that all threads share a shard: both free a block of their own */
	contend(0, hr_test_scaled(10));             /* each thread has a shard of its own: both free another thread's block */
}

/* ---- the end of threads, allocators and everything ---- */

typedef struct ending {
	_Atomic(uint64_t) allocator;
	_Atomic(unsigned) done;
} ending;

static void *use_and_end(void *argument)
{
	ending *e = argument;
	hr_allocator allocator = { atomic_load(&e->allocator) };
	void *block;
	for (int i = 0; i < 20; i++) {
		CHECK_STATUS(HR_OK, hr_alloc_bytes(allocator, 300, &block));
		CHECK_STATUS(HR_OK, hr_free(allocator, block, HR_STREAM_DEFAULT));
	}
	atomic_fetch_add(&e->done, 1); /* the last call has returned; the thread may end at any time */
	return NULL;
}

static void test_a_thread_may_end_while_its_allocator_closes(void)
{
	ending e = { 0 };
	hr_device device;
	hr_fault_os_install();
	CHECK_STATUS(HR_OK, hr_device_find("SIM:0", &device));
	for (uint64_t round = 0; round < hr_test_scaled(500); round++) {
		pthread_t threads[3];
		hr_allocator allocator;
		CHECK_STATUS(HR_OK, hr_allocator_create(device, NULL, &allocator));
		atomic_store(&e.allocator, allocator.id);
		atomic_store(&e.done, 0);
		for (int i = 0; i < 3; i++) CHECK_EQ(pthread_create(&threads[i], NULL, use_and_end, &e), 0);
		while (atomic_load(&e.done) < 3) sched_yield();
		CHECK_STATUS(HR_OK, hr_allocator_destroy(allocator));
		for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
	}
	CHECK_STATUS(HR_OK, hr_shutdown());
	CHECK(hr_fault_os_is_clean());
	hr_fault_os_uninstall();
}

typedef struct epoch {
	pthread_barrier_t barrier;
	hr_allocator before, after;
} epoch;

static void live_through_shutdown(void *argument, unsigned index)
{
	epoch *e = argument;
	void *block, *kept;
	if (index == 0) {
		CHECK_STATUS(HR_OK, hr_allocator_get_default("SIM:0", &e->before));
	}
	pthread_barrier_wait(&e->barrier);
	CHECK_STATUS(HR_OK, hr_alloc_bytes(e->before, 1000, &block));
	CHECK_STATUS(HR_OK, hr_alloc_bytes(e->before, 1000, &kept));
	CHECK_STATUS(HR_OK, hr_free(e->before, block, HR_STREAM_DEFAULT));
	pthread_barrier_wait(&e->barrier);
	if (index == 0) {
		CHECK_STATUS(HR_OK, hr_shutdown());
		CHECK_STATUS(HR_OK, hr_allocator_get_default("SIM:0", &e->after));
		CHECK_NE(e->after.id, e->before.id);
	}
	pthread_barrier_wait(&e->barrier);
	CHECK_STATUS(HR_INVALID_HANDLE, hr_free(e->before, kept, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_INVALID_HANDLE, hr_alloc_bytes(e->before, 1000, &block));
	CHECK_STATUS(HR_NOT_ALLOCATED, hr_free(e->after, (char *)kept + 1, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_alloc_bytes(e->after, 1000, &block));
	CHECK_STATUS(HR_OK, hr_free(e->after, block, HR_STREAM_DEFAULT));
}

static void test_threads_live_through_a_shutdown(void)
{
	epoch e;
	hr_fault_os_install();
	for (int round = 0; round < 20; round++) {
		pthread_barrier_init(&e.barrier, NULL, 4);
		hr_test_threads(4, live_through_shutdown, &e);
		pthread_barrier_destroy(&e.barrier);
		CHECK_STATUS(HR_OK, hr_allocator_check(e.after));
		CHECK_STATUS(HR_OK, hr_shutdown());
	}
	CHECK(hr_fault_os_is_clean());
	hr_fault_os_uninstall();
}

/* ---- a second allocator on the device ---- */

typedef struct sharing {
	hr_allocator first, second;
	hr_device device;
	_Atomic(bool) over;
	_Atomic(uint64_t) kept;
	uint64_t round;
} sharing;

static void use_first(void *argument, unsigned index)
{
	sharing *s = argument;
	uint64_t seed = (hr_test_seed() * 1000 + s->round) * 4 + index;
	void *own[OWN];
	uint32_t owned = 0;
	if (index == 0) { /* another allocator is created meanwhile: from then on both are counted together */
		for (uint64_t i = hr_rand_below(&seed, 20); i > 0; i--) sched_yield();
		CHECK_STATUS(HR_OK, hr_allocator_create(s->device, NULL, &s->second));
		atomic_store(&s->over, true);
		return;
	}
	while (!atomic_load(&s->over)) {
		if (owned < OWN && hr_rand_below(&seed, 2))
			CHECK_STATUS(HR_OK, hr_alloc_bytes(s->first, hr_rand_below(&seed, 2) ? 300 : 100000, &own[owned++]));
		else if (owned > 0) CHECK_STATUS(HR_OK, hr_free(s->first, own[--owned], HR_STREAM_DEFAULT));
	}
	while (owned > 1) CHECK_STATUS(HR_OK, hr_free(s->first, own[--owned], HR_STREAM_DEFAULT));
	atomic_fetch_add(&s->kept, owned);
}

static void test_a_second_allocator_may_come_while_the_first_is_used(void)
{
	hr_stats stats;
	void *block;
	for (uint64_t round = 0; round < hr_test_scaled(80); round++) {
		sharing s = { .round = round };
		CHECK_STATUS(HR_OK, hr_device_find("SIM:0", &s.device));
		CHECK_STATUS(HR_OK, hr_allocator_create(s.device, NULL, &s.first));
		hr_test_threads(3, use_first, &s);
		CHECK_STATUS(HR_OK, hr_reset_memory_stats("SIM:0"));
		hr_stats_init(&stats);
		CHECK_STATUS(HR_OK, hr_device_get_stats(s.device, &stats));
		CHECK_EQ(stats.num_live, s.kept);
		CHECK_EQ(stats.peak_bytes_in_use, stats.bytes_in_use); /* the peak of both is the sum of the two */
		int64_t before = stats.bytes_in_use;
		CHECK_STATUS(HR_OK, hr_alloc_bytes(s.second, 4096, &block));
		CHECK_STATUS(HR_OK, hr_free(s.second, block, HR_STREAM_DEFAULT));
		CHECK_STATUS(HR_OK, hr_device_get_stats(s.device, &stats));
		CHECK_EQ(stats.peak_bytes_in_use, before + 4096);
		CHECK_STATUS(HR_OK, hr_shutdown());
	}
}

/* ---- streams ---- */

#define STREAM_BLOCK (32 * KIB)

#define RESULTS 24u

/* A thread with a stream of its own. The host does not wait for its work: memory is freed while the device still uses it, and is
 * reused by the next request on any stream. That stream must neither see nor overwrite the old contents too early. */
static void stream_work(void *argument, unsigned index)
{
	crew *c = argument;
	uint64_t seed = hr_test_seed() * 100 + index;
	unsigned char values[RESULTS], *results = malloc(RESULTS * STREAM_BLOCK);
	hr_stream stream;
	CHECK(results != NULL);
	CHECK_STATUS(HR_OK, hr_stream_create(c->device, &stream));
	for (uint64_t round = 0; round < c->steps; round++) {
		for (uint32_t i = 0; i < RESULTS; i++) {
			hr_request request = HR_REQUEST(hr_rand_below(&seed, 2) ? STREAM_BLOCK : STREAM_BLOCK * 3);
			void *block;
			request.stream = stream;
			values[i] = (unsigned char)hr_rand(&seed);
			hr_status status = hr_alloc(c->allocators[0], &request, &block);
			while (status == HR_OUT_OF_MEMORY) { /* other threads hold it for a moment */
				sched_yield();
				status = hr_alloc(c->allocators[0], &request, &block);
			}
			CHECK_STATUS(HR_OK, status);
			CHECK_STATUS(HR_OK, hr_stream_fill(c->device, block, values[i], STREAM_BLOCK, stream));
			CHECK_STATUS(HR_OK, hr_stream_copy(c->device, results + i * STREAM_BLOCK, block, STREAM_BLOCK, HR_COPY_TO_HOST, stream));
			hr_stream last = stream;
			if (hr_rand_below(&seed, 3) == 0) {
				/* Another stream reads the block too: only hr_allocation_record_stream announces that, or hr_free if that stream is the last.
				 * */
				CHECK_STATUS(HR_OK, hr_stream_wait_stream(c->device, HR_STREAM_DEFAULT, stream));
				if (hr_rand_below(&seed, 2)) CHECK_STATUS(HR_OK, hr_allocation_record_stream(c->allocators[0], block, HR_STREAM_DEFAULT));
				else last = HR_STREAM_DEFAULT;
				CHECK_STATUS(
					HR_OK, hr_stream_copy(c->device, results + i * STREAM_BLOCK, block, STREAM_BLOCK, HR_COPY_TO_HOST, HR_STREAM_DEFAULT));
			}
			CHECK_STATUS(HR_OK, hr_free(c->allocators[0], block, last));
			atomic_fetch_add(&c->met, 1);
		}
		CHECK_STATUS(HR_OK, hr_stream_synchronize(c->device, stream));
		CHECK_STATUS(HR_OK, hr_stream_synchronize(c->device, HR_STREAM_DEFAULT));
		uint64_t wrong = 0;
		for (uint32_t i = 0; i < RESULTS; i++)
			for (uint32_t at = 0; at < STREAM_BLOCK; at++) wrong += results[i * STREAM_BLOCK + at] != values[i];
		CHECK_EQ(wrong, 0);
	}
	CHECK_STATUS(HR_OK, hr_stream_destroy(c->device, stream));
	free(results);
}

static void test_memory_freed_on_one_stream_is_safe_on_another(void)
{
	static crew c;
	hr_emulated_options options;
	hr_stats stats;
	memset(&c, 0, sizeof c);
	hr_fault_os_install();
	CHECK_STATUS(HR_OK, hr_emulated_options_init(&options));
	options.memory_bytes = 1 * MIB; /* small, so that memory is always reused at once */
	options.page_bytes = 64 * KIB;
	options.kernel_latency_ns = 20000;
	CHECK_STATUS(HR_OK, hr_emulated_configure(&options));
	CHECK_STATUS(HR_OK, hr_device_find("GPU:0", &c.device));
	CHECK_STATUS(HR_OK, hr_allocator_create(c.device, NULL, &c.allocators[0]));
	c.steps = hr_test_scaled(60);
	hr_test_threads(4, stream_work, &c);
	hr_stats_init(&stats);
	CHECK_STATUS(HR_OK, hr_allocator_get_stats(c.allocators[0], &stats));
	printf("# %llu blocks, %lld waits between streams\n", (unsigned long long)c.met, (long long)stats.num_stream_waits);
	CHECK_GT(stats.num_stream_waits, 0);
	CHECK_STATUS(HR_OK, hr_allocator_check(c.allocators[0]));
	CHECK_STATUS(HR_OK, hr_allocator_destroy(c.allocators[0]));
	CHECK_STATUS(HR_OK, hr_shutdown());
	CHECK(hr_fault_os_is_clean());
	hr_fault_os_uninstall();
}

TEST_MAIN(T_WITHIN(test_threads_that_hand_blocks_over_leave_nothing_behind, 120),
          T_WITHIN(test_threads_that_run_out_of_memory_leak_nothing, 120),
          T_WITHIN(test_threads_without_pages_leave_nothing_behind, 120),
          T_WITHIN(test_threads_on_two_allocators_of_a_device_leave_nothing_behind, 120),
          T_WITHIN(test_threads_never_share_a_byte, 120),
          T_WITHIN(test_threads_with_peaks_at_different_times_have_one_peak, 120),
          T_WITHIN(test_of_two_threads_that_free_a_block_one_loses, 120),
          T_WITHIN(test_a_thread_may_end_while_its_allocator_closes, 120), T_WITHIN(test_threads_live_through_a_shutdown, 120),
          T_WITHIN(test_a_second_allocator_may_come_while_the_first_is_used, 120),
          T_WITHIN(test_memory_freed_on_one_stream_is_safe_on_another, 120))
