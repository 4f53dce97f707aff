/* allocator_fault_conformance.c - requirements on allocators on every device when several threads use them, and when its calls
 * fail. One suite, run on each device; tests with one thread and without faults are in allocator_conformance.c. */
#include "conformance/allocator_subjects.h"
#include "headroom_backend.h"

/* ---- threads ---- */

#define THREADS 4u
#define THREAD_STEPS 150u
#define THREAD_LIVE 8u
#define EXCHANGE 4u /* slots through which threads exchange blocks */

static struct {
	pthread_mutex_t mutex;
	block left[EXCHANGE];
	unsigned char *staging; /* STAGING bytes for each thread */
	uint64_t refused;
} shared = { .mutex = PTHREAD_MUTEX_INITIALIZER };

/* Stores [mine], which may be none, in a slot and returns what was there. Work on a block is done before the exchange: the stream
 * tests cover stream order across threads. */
static block exchange(uint64_t place, block mine)
{
	pthread_mutex_lock(&shared.mutex);
	block other = shared.left[place];
	shared.left[place] = mine;
	pthread_mutex_unlock(&shared.mutex);
	return other;
}

static void let_block_go(block *b, unsigned char *staging)
{
	if (!b->address) return;
	verify_with(b, staging);
	CHECK_STATUS(HR_OK, hr_free(here.allocator, b->address, b->stream));
	b->address = NULL;
}

static void thread_work(void *argument, unsigned index)
{
	uint64_t seed = hr_test_seed() * 1000 + index, serial = index, most = here.limit / (2 * THREADS * THREAD_LIVE);
	unsigned char *staging = shared.staging + index * STAGING;
	hr_stream stream = here.streams[index % here.stream_count];
	block mine[THREAD_LIVE] = { 0 };
	(void)argument;
	for (uint64_t step = 0; step < hr_test_scaled(THREAD_STEPS); step++, serial += THREADS) {
		block *b = &mine[hr_rand_below(&seed, THREAD_LIVE)];
		uint64_t choice = hr_rand_below(&seed, 100);
		if (choice < 2) CHECK_STATUS(HR_OK, hr_allocator_trim(here.allocator, NULL));
		if (choice < 10 && b->address) {
			verify_with(b, staging);
			*b = exchange(hr_rand_below(&seed, EXCHANGE), *b);
		}
		let_block_go(b, staging);
		if (take_bare(any_size(&seed, most), stream, b) != HR_OK) {
			pthread_mutex_lock(&shared.mutex);
			shared.refused++;
			pthread_mutex_unlock(&shared.mutex);
			continue;
		}
		mark_as(b, serial);
		CHECK_STATUS(HR_OK, paint_block(b));
	}
	for (uint32_t i = 0; i < THREAD_LIVE; i++) let_block_go(&mine[i], staging);
}

static void threads_with(const char *kind, bool cache)
{
	hr_allocator_options options = options_of(kind);
	void *staging;
	options.thread_cache = cache;
	CHECK_STATUS(HR_OK, hr__call_host_alloc(device->physical, THREADS * STAGING, &staging));
	shared.staging = staging;
	shared.refused = 0;
	memset(shared.left, 0, sizeof shared.left);
	open_with(&options);
	hr_test_threads(THREADS, thread_work, NULL);
	for (uint32_t i = 0; i < EXCHANGE; i++) let_block_go(&shared.left[i], shared.staging);
	hr_stats stats = look();
	CHECK_EQ(stats.num_allocs, THREADS * hr_test_scaled(THREAD_STEPS));
	CHECK_EQ((uint64_t)stats.num_failed_allocs, shared.refused);
	/* The threads use at most half of the limit at a time. A direct allocator may use a whole page for each block and so be
	 * refused. */
	if (here.bfc) CHECK_EQ(shared.refused, 0);
	close_all();
	CHECK_STATUS(HR_OK, hr__call_host_free(device->physical, staging, THREADS * STAGING));
}

static void threads_do_not_mix(void)
{
	threads_with("bfc", true);
	threads_with("bfc", false);
	threads_with("direct", true);
}

static void test_threads_find_in_their_blocks_what_they_put_there(void)
{
	on_each_device(threads_do_not_mix);
}

/* ---- faults ---- */

/* Checks make calls too. Those are neither counted nor made to fail: faults are suspended meanwhile. */
static struct {
	uint64_t nth, before; /* which call of the run fails; how many there were before the last suspension */
	bool forever, met;
	hr_status status;
} fault;

static void suspend(void)
{
	fault.before += hr_backend_calls();
	if (fault.before >= fault.nth) fault.met = true;
	hr_backend_fail_nth(0, false, HR_OK);
}

static void resume(void)
{
	if (!fault.met) hr_backend_fail_nth(fault.nth - fault.before, fault.forever, fault.status);
	else if (fault.forever) hr_backend_fail_nth(1, true, fault.status);
	else hr_backend_fail_nth(0, false, HR_OK);
}

/* A call that hit the fault may return any status except those that blame the caller; one that did not must return HR_OK. In both
 * cases the allocator is consistent, and after the fault live blocks have their contents. */
static void answered(hr_status status)
{
	bool met_before = fault.met;
	suspend();
	if (status != HR_OK) {
		if (!fault.met) CHECK_STATUS(HR_OK, status);
		CHECK_NE(status, HR_CORRUPT);
		CHECK_NE(status, HR_INVALID_ARGUMENT);
		CHECK_NE(status, HR_NOT_ALLOCATED);
		CHECK(hr_last_message()[0] != 0);
	}
	look();
	if (fault.met && !met_before) verify_all();
	resume();
}

static void try_take(uint64_t bytes, hr_stream stream)
{
	block b;
	hr_status status = take_bare(bytes, stream, &b);
	if (status == HR_OK) {
		mark_as(&b, here.serial++);
		(void)paint_block(&b);
		here.blocks[here.count++] = b;
	}
	answered(status);
}

static void try_drop(uint32_t index, hr_stream stream)
{
	if (index < here.count) answered(drop(index, stream));
}

/* Makes every kind of call: growth, a cache, reuse across streams, releasing, stitching. */
static void scenario(void)
{
	uint64_t piece = here.limit / 8;
	hr_stream last = here.streams[here.stream_count - 1];
	for (uint32_t i = 0; i < 7; i++) try_take(piece, here.streams[i % here.stream_count]);
	try_take(300, HR_STREAM_DEFAULT);
	try_drop(7, HR_STREAM_DEFAULT);
	for (uint32_t i = 1; i < here.count; i++) try_drop(i, here.blocks[i].stream);
	try_take(piece / 2, last);
	try_take(2 * piece - 256, last); /* larger than any hole */
	try_drop(0, here.blocks[0].stream);
	answered(hr_allocator_trim(here.allocator, NULL));
	try_take(1000, last);
	suspend();
	verify_all();
	resume();
	for (uint32_t i = here.count; i-- > 0;) try_drop(i, here.blocks[i].stream);
}

/* Runs the scenario with call [nth] failing; false if it made fewer calls. The device works again when everything is released. */
static bool run_failing(const hr_allocator_options *options, uint64_t nth, bool forever)
{
	uint64_t free_before;
	hr__page_pool_shrink(device);
	free_before = free_bytes();
	open_with(options);
	here.sparse = true;
	fault.nth = nth;
	fault.before = 0;
	fault.met = false;
	fault.forever = forever;
	fault.status = nth % 2 ? HR_DEVICE_ERROR : HR_OUT_OF_MEMORY;
	resume();
	scenario();
	suspend();
	bool met = fault.met;
	drop_all();
	look();
	close_all();
	hr__page_pool_shrink(device);
	if (now->small) CHECK_EQ(free_bytes(), free_before);
	return met;
}

static void faults_with(const char *kind, bool growth, bool forever)
{
	hr_allocator_options options = options_of(kind);
	/* Fails every call; in short test runs every third, starting with another one for each seed. */
	uint64_t stride = hr_test_scale() < 1 ? 3 : 1, nth = 1 + hr_test_seed() % stride, most = page() ? 32 * page() : MIB;
	if (options.limit_bytes > most) options.limit_bytes = most;
	options.allow_growth = growth;
	while (run_failing(&options, nth, forever)) nth += stride;
	CHECK_GT(nth, 5);
	printf("#   %s%s: about %llu calls, failing %s\n", kind, growth ? "" : " without growth", (unsigned long long)nth - 1,
	       forever ? "with all after it" : "once");
}

static void every_call_fails_once(void)
{
	faults_with("bfc", true, false);
	faults_with("bfc", false, false);
	faults_with("direct", true, false);
}

static void test_any_call_of_the_device_may_fail_and_the_books_stay_right(void)
{
	on_each_device(every_call_fails_once);
}

static void every_call_fails_for_good(void)
{
	faults_with("bfc", true, true);
	faults_with("direct", true, true);
}

static void test_a_device_may_fail_until_it_recovers_and_nothing_is_lost(void)
{
	on_each_device(every_call_fails_for_good);
}

static void creation_fails(void)
{
	for (int growth = 0; growth < 2; growth++) {
		hr_allocator_options options = options_of("bfc");
		options.allow_growth = growth;
		for (uint64_t nth = 1;; nth++) {
			hr_allocator allocator = { 0 };
			hr_backend_fail_nth(nth, false, HR_DEVICE_ERROR);
			hr_status status = hr_allocator_create(handle, &options, &allocator);
			bool met = hr_backend_calls() >= nth;
			hr_backend_fail_nth(0, false, HR_OK);
			if (status != HR_OK) CHECK_EQ(allocator.id, 0);
			else CHECK_STATUS(HR_OK, hr_allocator_destroy(allocator));
			CHECK_EQ(hr__page_pool_reserved(device), 0);
			if (!met) CHECK_STATUS(HR_OK, status);
			if (!met) break;
		}
	}
}

static void test_an_allocator_that_cannot_be_made_leaves_nothing(void)
{
	on_each_device(creation_fails);
}

TEST_MAIN(T(test_threads_find_in_their_blocks_what_they_put_there),
          T(test_any_call_of_the_device_may_fail_and_the_books_stay_right),
          T(test_a_device_may_fail_until_it_recovers_and_nothing_is_lost), T(test_an_allocator_that_cannot_be_made_leaves_nothing))
