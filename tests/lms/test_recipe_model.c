/* test_recipe_model.c - random programs with recipes against a model in arrays: ops, ops in place, drops, evictions, writes to inputs, tensors that are
 * destroyed and live on as ghosts, recipes that fail, several threads, two allocators with too little memory. Every read is compared.
 *
 * A lock for each tensor, in the test, keeps writers and readers of the program apart, as a program must. Recipes run in between, on
 * whichever thread pins, and read their inputs without these locks: that is the library's business.
 *
 * A million actions at scale 1. */
#include <pthread.h>

#include "core/lms/lms.h"
#include "recipe_kit.h"
#include "support_stats.h"

#define KIB UINT64_C(1024)
#define MIB (KIB * KIB)
#define SLOTS 24u /* tensors of each allocator */
#define ALLOCATORS 2u
#define THREADS 4u
#define HELD 2u /* pins that a thread keeps for a while */
#define LARGEST ((size_t)(96 * KIB))

enum contents { NONE, UNKNOWN, KNOWN };

typedef struct slot {
	pthread_rwlock_t lock;
	hr_tensor tensor;
	enum contents contents;
	unsigned char expected[LARGEST];
	hr_stream writer;
} slot;

static struct {
	hr_device device;
	hr_allocator allocators[ALLOCATORS];
	slot slots[ALLOCATORS][SLOTS];
	size_t bytes; /* of each tensor */
	bool one_thread;
	_Atomic(uint64_t) made, extended, released, failures, refused, compared, fails_wanted;
} here;

typedef struct worker {
	uint64_t seed, actions;
	hr_stream stream;
	struct held {
		slot *of;
		unsigned allocator;
	} held[HELD];
	unsigned char buffer[LARGEST];
	void *block;
	unsigned block_of;
} worker;

/* ---- recipes ---- */

static _Thread_local uint64_t recipe_seed = 1;

static void release_op(void *user)
{
	atomic_fetch_add(&here.released, 1);
	free(user);
}

/* Some recipes fail; some pin a tensor of the other allocator, which may run recipes there. */
static hr_status before_recompute(kit_op *op, const hr_recompute *call)
{
	op->fails = hr_rand_below(&recipe_seed, 200) < atomic_load(&here.fails_wanted) ? HR_IO : HR_OK;
	if (op->fails) atomic_fetch_add(&here.failures, 1);
	if (op->allocator.id != here.allocators[0].id || hr_rand_below(&recipe_seed, 8)) return HR_OK;
	slot *s = &here.slots[1][hr_rand_below(&recipe_seed, SLOTS)];
	if (pthread_rwlock_tryrdlock(&s->lock)) return HR_OK;
	if (s->contents == KNOWN && hr_tensor_pin(s->tensor, HR_READ, call->stream) == HR_OK)
		CHECK_STATUS(HR_OK, hr_tensor_unpin(s->tensor, call->stream));
	pthread_rwlock_unlock(&s->lock);
	return HR_OK;
}

static kit_op *new_op(worker *w, unsigned allocator)
{
	kit_op *op = malloc(sizeof *op);
	*op = (kit_op){ .device = here.device,
		            .allocator = here.allocators[allocator],
		            .bytes = here.bytes,
		            .value = (unsigned char)hr_rand(&w->seed),
		            .takes = hr_rand_below(&w->seed, 3) == 0,
		            .first = before_recompute };
	return op;
}

/* A refusal for lack of memory, or by a recipe that failed. Anything else is an error. */
static bool ok(hr_status status)
{
	if (status != HR_OUT_OF_MEMORY && status != HR_IO) CHECK_STATUS(HR_OK, status);
	if (status) atomic_fetch_add(&here.refused, 1);
	return status == HR_OK;
}

/* ---- slots ---- */

static bool try_lock(worker *w, slot *s, bool writes)
{
	bool held = false;
	for (unsigned i = 0; i < HELD; i++) held |= w->held[i].of == s;
	return !held && !(writes ? pthread_rwlock_trywrlock(&s->lock) : pthread_rwlock_tryrdlock(&s->lock));
}

static slot *pick(worker *w, unsigned allocator, bool writes)
{
	slot *s = &here.slots[allocator][hr_rand_below(&w->seed, SLOTS)];
	return try_lock(w, s, writes) ? s : NULL;
}

static void follow(const worker *w, const slot *s)
{
	if (s->writer != w->stream) CHECK_STATUS(HR_OK, hr_stream_wait_stream(here.device, w->stream, s->writer));
}

/* The next writer may be another thread's stream, which must not overtake this one's reads. */
static void finish(const worker *w)
{
	if (!here.one_thread) CHECK_STATUS(HR_OK, hr_stream_synchronize(here.device, w->stream));
}

static void unlock_all(slot *const *slots, unsigned count)
{
	for (unsigned i = 0; i < count; i++) pthread_rwlock_unlock(&slots[i]->lock);
}

/* ---- actions ---- */

/* After a pin that overwrites failed, contents may be lost; a tensor without contents still has none. */
static void lose(slot *const *outs, unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		if (outs[i]->contents == KNOWN) outs[i]->contents = UNKNOWN;
}

static void run_op(worker *w, unsigned allocator)
{
	slot *outs[2], *ins[3], *s;
	hr_tensor in[3], out[2];
	const unsigned char *from[3];
	unsigned out_count = 0, in_count = 0, outs_wanted = 1 + (unsigned)(hr_rand_below(&w->seed, 5) == 0),
			 ins_wanted = (unsigned)hr_rand_below(&w->seed, 4);
	for (unsigned i = 0; i < outs_wanted; i++)
		if ((s = pick(w, allocator, true))) outs[out_count++] = s;
	for (unsigned i = 0; i < ins_wanted; i++)
		if ((s = pick(w, allocator, false))) {
			if (s->contents == KNOWN) ins[in_count++] = s;
			else pthread_rwlock_unlock(&s->lock);
		}
	kit_op *op = new_op(w, allocator);
	for (unsigned i = 0; i < out_count; i++) {
		if (!outs[i]->tensor.id) outs[i]->tensor = fixture_tensor(here.allocators[allocator], here.bytes);
		out[i] = outs[i]->tensor;
		if (outs[i]->contents != NONE) follow(w, outs[i]);
	}
	for (unsigned i = 0; i < in_count; i++) {
		in[i] = ins[i]->tensor;
		from[i] = ins[i]->expected;
		follow(w, ins[i]);
	}
	bool ran = out_count && ok(kit_run(op, in, in_count, out, out_count, w->stream)), keeps = false;
	if (!ran) lose(outs, out_count);
	for (unsigned i = 0; ran && i < out_count; i++) {
		kit_expect(op, from, in_count, outs[i]->expected, i);
		outs[i]->contents = KNOWN;
		outs[i]->writer = w->stream;
	}
	if (ran && hr_rand_below(&w->seed, 8)) {
		hr_recipe recipe = kit_recipe(op, in, in_count, out, out_count);
		recipe.release = release_op;
		recipe.op = hr_name_intern("model");
		recipe.cost_ns = hr_rand_below(&w->seed, 3) * 20000;
		hr_status status = hr_tensor_set_recipe(&recipe);
		if (status == HR_UNSUPPORTED) CHECK_CONTAINS(hr_last_message(), "options.recompute is off");
		else CHECK_STATUS(HR_OK, status);
		keeps = status == HR_OK;
	}
	if (keeps) atomic_fetch_add(&here.made, 1);
	else free(op);
	finish(w);
	unlock_all(outs, out_count);
	unlock_all(ins, in_count);
}

static void compare(worker *w, const slot *s)
{
	CHECK_STATUS(HR_OK, hr_stream_synchronize(here.device, w->stream));
	CHECK_EQ(memcmp(w->buffer, s->expected, here.bytes), 0);
	atomic_fetch_add_explicit(&here.compared, 1, memory_order_relaxed);
}

static void read_one(worker *w, slot *s)
{
	void *at;
	if (s->contents == NONE) return;
	follow(w, s);
	if (!ok(hr_tensor_pin(s->tensor, HR_READ, w->stream))) return;
	CHECK_STATUS(HR_OK, hr_tensor_get_address(s->tensor, &at));
	CHECK_STATUS(HR_OK, hr_stream_copy(here.device, w->buffer, at, here.bytes, HR_COPY_TO_HOST, w->stream));
	CHECK_STATUS(HR_OK, hr_tensor_unpin(s->tensor, w->stream));
	if (s->contents == KNOWN) compare(w, s);
	else finish(w);
}

/* Changes a part of it in place. */
static void write_one(worker *w, slot *s)
{
	void *at;
	if (s->contents == NONE) return;
	follow(w, s);
	if (!ok(hr_tensor_pin(s->tensor, HR_WRITE, w->stream))) return;
	size_t half = here.bytes / 2;
	unsigned char value = (unsigned char)hr_rand(&w->seed);
	CHECK_STATUS(HR_OK, hr_tensor_get_address(s->tensor, &at));
	CHECK_STATUS(HR_OK, hr_stream_fill(here.device, (char *)at + half, value, here.bytes - half, w->stream));
	CHECK_STATUS(HR_OK, hr_tensor_unpin(s->tensor, w->stream));
	memset(s->expected + half, value, here.bytes - half);
	s->writer = w->stream;
	finish(w);
}

/* Changes it by an op that its recipe is extended with; some of these ops fail, and some programs forget the extension. */
static void change_one(worker *w, slot *s, unsigned allocator)
{
	slot *in = hr_rand_below(&w->seed, 2) ? pick(w, allocator, false) : NULL;
	if (in && (in == s || in->contents != KNOWN)) {
		pthread_rwlock_unlock(&in->lock);
		in = NULL;
	}
	const unsigned char *from = in ? in->expected : NULL;
	kit_op *op = s->contents == KNOWN ? new_op(w, allocator) : NULL;
	hr_status held = op ? hr_tensor_hold_recipe(s->tensor) : HR_OK;
	if (op && held != HR_NOT_READY && held != HR_IN_USE && held != HR_UNSUPPORTED) CHECK_STATUS(HR_OK, held);
	bool ran = false, keeps = false;
	if (op) {
		follow(w, s);
		if (in) follow(w, in);
		ran = ok(kit_run_in_place(op, &(hr_tensor){ in ? in->tensor.id : 0 }, in != NULL, s->tensor, w->stream));
	}
	if (ran) {
		kit_expect_change(op, &from, in != NULL, s->expected);
		s->writer = w->stream;
	}
	if (ran && held == HR_OK && hr_rand_below(&w->seed, 8)) {
		hr_recipe recipe = kit_recipe(op, &(hr_tensor){ in ? in->tensor.id : 0 }, in != NULL, &s->tensor, 1);
		recipe.recompute = kit_change_again;
		recipe.release = release_op;
		recipe.op = hr_name_intern("change");
		recipe.cost_ns = hr_rand_below(&w->seed, 3) * 20000;
		hr_status status = hr_tensor_extend_recipe(&recipe); /* another thread may have written an input of the first op */
		if (status != HR_NOT_READY && status != HR_UNSUPPORTED) CHECK_STATUS(HR_OK, status);
		keeps = status == HR_OK;
	} else if (held == HR_OK && op && hr_rand_below(&w->seed, 4)) {
		CHECK_STATUS(HR_OK, hr_tensor_unhold_recipe(s->tensor));
	}
	if (keeps) atomic_fetch_add(&here.extended, 1);
	if (keeps) atomic_fetch_add(&here.made, 1);
	else free(op);
	finish(w);
	if (in) pthread_rwlock_unlock(&in->lock);
}

static void destroy_one(slot *s)
{
	if (!s->tensor.id || !ok(hr_tensor_destroy(s->tensor))) return;
	s->tensor.id = 0;
	s->contents = NONE;
}

/* Threads that read it, for a recipe of another tensor, may have it pinned. */
static bool ok_if_free(hr_status status)
{
	return status == HR_IN_USE || ok(status);
}

static void move_one(worker *w, const slot *s)
{
	hr_status status;
	if (s->contents == NONE) return;
	switch (hr_rand_below(&w->seed, 8)) {
	case 0: ok_if_free(hr_tensor_evict(s->tensor)); break;
	case 1:
		status = hr_tensor_prefetch(s->tensor);
		if (status != HR_UNSUPPORTED) ok(status);
		break;
	default:
		status = hr_tensor_drop(s->tensor);
		if (status != HR_NOT_READY && status != HR_UNSUPPORTED) ok_if_free(status);
	}
}

/* Pins a tensor for a while, or ends that. The test's lock is held as long. */
static void hold_or_let_go(worker *w, unsigned allocator)
{
	struct held *held = &w->held[hr_rand_below(&w->seed, HELD)];
	if (held->of) {
		CHECK_STATUS(HR_OK, hr_tensor_unpin(held->of->tensor, w->stream));
		finish(w);
		pthread_rwlock_unlock(&held->of->lock);
		held->of = NULL;
		return;
	}
	slot *s = pick(w, allocator, false);
	if (!s) return;
	if (s->contents == KNOWN) follow(w, s);
	if (s->contents == KNOWN && ok(hr_tensor_pin(s->tensor, HR_READ, w->stream))) *held = (struct held){ s, allocator };
	else pthread_rwlock_unlock(&s->lock);
}

/* A plain block, or what the allocator is told to do. */
static void press(worker *w, unsigned allocator)
{
	hr_allocator a = here.allocators[allocator];
	switch (hr_rand_below(&w->seed, 8)) {
	case 0:
		CHECK_STATUS(HR_OK, hr_lms_set_recompute(a, hr_rand_below(&w->seed, 4) != 0));
		break;
	case 1:
		if (here.one_thread) ok(hr_lms_reclaim_inactive(a, HR_NAME_NONE, NULL));
		break;
	default:
		if (w->block) {
			CHECK_STATUS(HR_OK, hr_free(here.allocators[w->block_of], w->block, w->stream));
			w->block = NULL;
		} else if (ok(hr_alloc_bytes(a, here.bytes * (1 + hr_rand_below(&w->seed, 3)), &w->block))) {
			w->block_of = allocator;
		}
	}
}

static void check_all(void)
{
	for (unsigned a = 0; a < ALLOCATORS; a++) {
		hr_status status = hr_lms_check(here.allocators[a]);
		if (here.one_thread || status != HR_NOT_READY) CHECK_STATUS(HR_OK, status);
	}
}

static void act(worker *w)
{
	unsigned allocator = (unsigned)hr_rand_below(&w->seed, ALLOCATORS), action = (unsigned)hr_rand_below(&w->seed, 100);
	slot *s = NULL;
	recipe_seed = hr_rand(&w->seed) | 1;
	if (action < 35) {
		run_op(w, allocator);
		return;
	}
	if (action < 40) {
		hold_or_let_go(w, allocator);
		return;
	}
	if (action < 45) {
		press(w, allocator);
		return;
	}
	bool writes = action >= 85 || (action >= 45 && action < 65);
	s = pick(w, allocator, writes);
	if (!s) return;
	if (action < 65) move_one(w, s);
	else if (action < 85) read_one(w, s);
	else if (action < 88) write_one(w, s);
	else if (action < 95) change_one(w, s, allocator);
	else destroy_one(s);
	pthread_rwlock_unlock(&s->lock);
}

static void let_go(worker *w)
{
	for (unsigned i = 0; i < HELD; i++) {
		if (!w->held[i].of) continue;
		CHECK_STATUS(HR_OK, hr_tensor_unpin(w->held[i].of->tensor, w->stream));
		pthread_rwlock_unlock(&w->held[i].of->lock);
		w->held[i].of = NULL;
	}
	if (w->block) CHECK_STATUS(HR_OK, hr_free(here.allocators[w->block_of], w->block, w->stream));
	w->block = NULL;
	CHECK_STATUS(HR_OK, hr_stream_synchronize(here.device, w->stream));
}

static void *work(void *argument)
{
	worker *w = argument;
	for (uint64_t i = 0; i < w->actions; i++) {
		act(w);
		if (i % 256 == 0) check_all();
	}
	let_go(w);
	return NULL;
}

/* ---- rounds ---- */

static void set_up(size_t bytes, const char *policy, uint32_t depth, bool defrag)
{
	memset(&here, 0, sizeof here);
	here.bytes = bytes;
	here.device = fixture_emulated(64 * MIB, 64 * KIB, 0);
	for (unsigned a = 0; a < ALLOCATORS; a++) {
		/* Room for a third of the tensors. */
		hr_allocator_options options = fixture_allocator_options(bytes < 4 * KIB ? 0 : SLOTS / 3 * (bytes + 16 * KIB));
		options.oom.report_allocations_on_oom = false;
		CHECK_STATUS(HR_OK, hr_allocator_create(here.device, &options, &here.allocators[a]));
		/* With 32 MiB the allocator that evicts first takes all of it, and the host is full for the other. */
		hr_lms_options lms = fixture_lms_options(policy, depth % 4 ? 256 * MIB : 32 * MIB);
		if (bytes < 4 * KIB) lms.limit = SLOTS / 3 * ((bytes + 255) & ~(uint64_t)255);
		lms.recipe_depth = depth;
		lms.defrag = defrag;
		lms.wait_ns = 20000000;
		CHECK_STATUS(HR_OK, hr_lms_configure(here.allocators[a], &lms));
		for (unsigned i = 0; i < SLOTS; i++) CHECK_EQ(pthread_rwlock_init(&here.slots[a][i].lock, NULL), 0);
	}
}

static void tear_down(worker *w)
{
	int64_t recomputed = 0, dropped = 0;
	atomic_store(&here.fails_wanted, 0);
	check_all();
	for (unsigned a = 0; a < ALLOCATORS; a++) {
		CHECK_STATUS(HR_OK, hr_lms_set_limit(here.allocators[a], 0));
		for (unsigned i = 0; i < SLOTS; i++) read_one(w, &here.slots[a][i]);
		if (a == 0) check_all();
		/* A tensor may have to wait for those that depend on it, if there is no memory to compute them. */
		for (unsigned pass = 0; pass < 2; pass++)
			for (unsigned i = 0; i < SLOTS; i++) destroy_one(&here.slots[a][i]);
		for (unsigned i = 0; i < SLOTS; i++) CHECK_EQ(here.slots[a][i].tensor.id, 0u);
		hr_lms_stats stats = fixture_lms_stats(here.allocators[a]);
		CHECK_EQ(stats.num_tensors, 0);
		CHECK_EQ(stats.num_ghosts, 0);
		CHECK_EQ(stats.num_recipes, 0);
		CHECK_EQ(stats.bytes_dropped_now, 0);
		CHECK_EQ(stats.bytes_out_now, 0);
		CHECK_EQ(stats.host_bytes, 0);
		recomputed += stats.num_recomputes;
		dropped += stats.num_drops;
		hr_stats all = fixture_stats(here.allocators[a]);
		check_identities(&all);
		CHECK_EQ(all.num_live, 0);
		CHECK_EQ(all.bytes_in_use, 0);
		CHECK_STATUS(HR_OK, hr_allocator_check(here.allocators[a]));
		CHECK_STATUS(HR_OK, hr_allocator_destroy(here.allocators[a]));
	}
	CHECK_EQ(atomic_load(&here.made), atomic_load(&here.released));
	CHECK_STATUS(HR_OK, hr_shutdown());
	printf("# %zu bytes: %lld drops, %lld recomputations, %llu recipes, %llu of them extended, %llu refusals, %llu failures, %llu reads compared\n", here.bytes,
	       (long long)dropped, (long long)recomputed, (unsigned long long)here.made, (unsigned long long)here.extended, (unsigned long long)here.refused,
	       (unsigned long long)here.failures, (unsigned long long)here.compared);
	CHECK_GT(recomputed, 0);
}

static void run_round(size_t bytes, const char *policy, unsigned threads, uint64_t actions, uint64_t fails, uint64_t round)
{
	static worker workers[THREADS];
	pthread_t ids[THREADS];
	uint64_t seed = hr_test_seed() + bytes + threads + round * 1000003;
	set_up(bytes, policy, 1 + (uint32_t)hr_rand_below(&seed, 12), hr_rand_below(&seed, 4) == 0);
	here.one_thread = threads == 1;
	atomic_store(&here.fails_wanted, fails);
	memset(workers, 0, sizeof workers);
	for (unsigned i = 0; i < threads; i++) {
		workers[i].seed = hr_rand(&seed);
		workers[i].actions = actions / threads;
		workers[i].stream = fixture_stream(here.device);
	}
	if (threads == 1) {
		work(&workers[0]);
	} else {
		for (unsigned i = 0; i < threads; i++) CHECK_EQ(pthread_create(&ids[i], NULL, work, &workers[i]), 0);
		for (unsigned i = 0; i < threads; i++) CHECK_EQ(pthread_join(ids[i], NULL), 0);
	}
	tear_down(&workers[0]);
}

/* In rounds, each from an empty allocator with another depth. */
static void run_rounds(size_t bytes, const char *policy, unsigned threads, uint64_t actions, uint64_t fails)
{
	uint64_t all = hr_test_scaled(actions), each = 20000;
	for (uint64_t done = 0; done < all; done += each)
		run_round(bytes - (size_t)(done / each % 3), policy, threads, all - done < each ? all - done : each, fails, done / each);
}

static void test_random_programs_with_small_tensors(void)
{
	run_rounds(512, "lru", 1, 500000, 2);
}

static void test_random_programs_with_a_plan(void)
{
	run_rounds(700, "learned", 1, 200000, 0);
}

static void test_random_programs_with_large_tensors(void)
{
	run_rounds(LARGEST, "lru", 1, 100000, 2);
}

static void test_random_programs_of_several_threads(void)
{
	run_rounds(512, "lru", THREADS, 100000, 2);
}

static void test_random_programs_of_several_threads_with_large_tensors(void)
{
	run_rounds(LARGEST, "learned", THREADS, 100000, 1);
}

TEST_MAIN(T_WITHIN(test_random_programs_with_small_tensors, 240), T_WITHIN(test_random_programs_with_a_plan, 240),
          T_WITHIN(test_random_programs_with_large_tensors, 240), T_WITHIN(test_random_programs_of_several_threads, 240),
          T_WITHIN(test_random_programs_of_several_threads_with_large_tensors, 240))
