/* test_lms_threads.c - eight threads use, create, destroy, evict and prefetch tensors, with memory for a third of them, and check
 * every byte.
 *
 * Contents identify the tensor and its version: they are written by hr_stream_fill or hr_stream_copy on the thread's own stream and checked by
 * the next reader. A lock for each tensor, in the test, keeps writers apart; eviction, prefetch and queries need none, and happen
 * to tensors that are being destroyed at that moment. Another thread checks snapshots all the time; between rounds all threads are
 * idle, and everything must be consistent.
 *
 * At scale 1 the tests do 100,000 operations in all, at scale 10 ten million (see count_of). */
#include "fixture.h"
#include "fault_os.h"
#include "core/lms/lms.h"
#include "support_stats.h"
#include "test.h"

#define KIB UINT64_C(1024)
#define MIB (KIB * KIB)
#define THREADS 8u
#define SLOTS 48u
#define PLAIN 4u
#define PINS 5u
#define LARGEST (384 * KIB)

/* ---- expected state of a tensor ---- */

enum contents { NONE, UNKNOWN, FILLED, COPIED };

typedef struct slot {
	pthread_rwlock_t lock; /* guards all fields but handle, which is written while it is held */
	_Atomic(uint64_t) handle;
	size_t bytes;
	enum contents contents;
	uint64_t version;
	hr_stream writer; /* the stream that wrote it last */
} slot;

static struct {
	hr_device device;
	hr_allocator allocator;
	hr_stream streams[THREADS];
	uint64_t limit;
	uint64_t steps, round;
	slot slots[SLOTS];
	_Atomic(uint64_t) done, refused, reads, looks;
	_Atomic(unsigned) working;
	bool limits;       /* hr_lms_set_limit is called sometimes */
	bool defrag;       /* tensors are moved on the device */
	int64_t lms_limit; /* a limit that must hold, or 0 */
} here;

typedef struct worker {
	uint64_t seed;
	hr_stream stream;
	unsigned char *buffer; /* of LARGEST bytes */
	struct {
		void *at;
		size_t bytes;
		unsigned char value;
	} plain[PLAIN];
	uint32_t plain_count;
} worker;

static uint64_t word_of(const slot *s, uint64_t at)
{
	return ((uint64_t)(s - here.slots) << 56 | s->version << 24) ^ at * UINT64_C(0x9E3779B97F4A7C15);
}

static unsigned char byte_of(const slot *s)
{
	return (unsigned char)((uint64_t)(s - here.slots) * 37 + s->version * 101 + 1);
}

/* ---- contents ---- */

static void synchronize(const worker *w)
{
	CHECK_STATUS(HR_OK, hr_stream_synchronize(here.device, w->stream));
}

static void expect(const worker *w, const slot *s, void *at)
{
	if (s->contents != FILLED && s->contents != COPIED) return;
	if (s->writer != w->stream) CHECK_STATUS(HR_OK, hr_stream_wait_stream(here.device, w->stream, s->writer));
	CHECK_STATUS(HR_OK, hr_stream_copy(here.device, w->buffer, at, s->bytes, HR_COPY_TO_HOST, w->stream));
	synchronize(w);
	bool right = true;
	for (size_t i = 0; i < s->bytes && right; i += 8) {
		uint64_t found = 0, word = word_of(s, i), expected = 0;
		size_t n = s->bytes - i < 8 ? s->bytes - i : 8;
		if (s->contents == FILLED) word = byte_of(s) * UINT64_C(0x0101010101010101);
		memcpy(&found, w->buffer + i, n);
		memcpy(&expected, &word, n);
		right = found == expected;
		if (right) continue;
		hr_tensor_info info = { .struct_size = sizeof info };
		(void)!hr_tensor_get_info((hr_tensor){ atomic_load(&s->handle) }, &info);
		printf("# slot %d, version %llu, %s, %zu bytes, byte %zu: %llx instead of %llx; %llu evictions, %llu restores, %s\n",
		       (int)(s - here.slots), (unsigned long long)s->version, s->contents == FILLED ? "filled" : "copied", s->bytes, i,
		       (unsigned long long)found, (unsigned long long)expected, (unsigned long long)info.evictions,
		       (unsigned long long)info.restores, info.spilled ? "spilled" : "not spilled");
	}
	CHECK(right);
	atomic_fetch_add_explicit(&here.reads, 1, memory_order_relaxed);
}

static void write_new(worker *w, slot *s, void *at)
{
	if (s->writer != w->stream) CHECK_STATUS(HR_OK, hr_stream_wait_stream(here.device, w->stream, s->writer));
	s->version++;
	s->writer = w->stream;
	if (hr_rand_below(&w->seed, 2)) {
		s->contents = FILLED;
		CHECK_STATUS(HR_OK, hr_stream_fill(here.device, at, byte_of(s), s->bytes, w->stream));
		return;
	}
	s->contents = COPIED;
	synchronize(w); /* the buffer may be in use */
	for (size_t i = 0; i < s->bytes; i += 8) {
		uint64_t word = word_of(s, i);
		memcpy(w->buffer + i, &word, s->bytes - i < 8 ? s->bytes - i : 8);
	}
	CHECK_STATUS(HR_OK, hr_stream_copy(here.device, at, w->buffer, s->bytes, HR_COPY_TO_DEVICE, w->stream));
	if (hr_rand_below(&w->seed, 2)) synchronize(w);
}

/* ---- actions of threads ---- */

static size_t some_bytes(uint64_t *seed)
{
	if (hr_rand_below(seed, 4) == 0) return (size_t)hr_rand_below(seed, 2000) + 1;
	return (size_t)hr_rand_below(seed, hr_rand_below(seed, 6) ? LARGEST / 4 : LARGEST) + 1;
}

static void create(worker *w, slot *s)
{
	hr_tensor tensor;
	hr_tensor_options options;
	hr_tensor_options_init(&options);
	options.bytes = some_bytes(&w->seed);
	options.priority = (int32_t)hr_rand_below(&w->seed, 3) - 1;
	options.alignment = hr_rand_below(&w->seed, 8) ? 0 : (size_t)1 << hr_rand_below(&w->seed, 14);
	CHECK_STATUS(HR_OK, hr_tensor_create(here.allocator, &options, &tensor));
	s->bytes = options.bytes;
	s->contents = NONE;
	s->writer = HR_STREAM_DEFAULT;
	atomic_store(&s->handle, tensor.id);
}

/* Other threads may be reading or evicting it at this moment. */
static void destroy(slot *s)
{
	hr_tensor tensor = { atomic_exchange(&s->handle, 0) };
	CHECK_STATUS(HR_OK, hr_tensor_destroy(tensor));
	CHECK_STATUS(HR_INVALID_HANDLE, hr_tensor_destroy(tensor));
	s->contents = NONE;
}

static void make_or_end(worker *w)
{
	slot *s = &here.slots[hr_rand_below(&w->seed, SLOTS)];
	if (pthread_rwlock_trywrlock(&s->lock)) return;
	if (!atomic_load(&s->handle)) create(w, s);
	else if (hr_rand_below(&w->seed, 3) == 0) destroy(s);
	pthread_rwlock_unlock(&s->lock);
}

/* Locks a few tensors and chooses an action for each. */
static uint32_t choose(worker *w, slot **slots, hr_pin *pins, uint32_t most)
{
	uint32_t count = 0, wanted = 1 + (uint32_t)hr_rand_below(&w->seed, most);
	for (uint32_t attempt = 0; attempt < 12 && count < wanted; attempt++) {
		slot *s = &here.slots[hr_rand_below(&w->seed, SLOTS)];
		hr_access access = (hr_access)(1 + hr_rand_below(&w->seed, 3));
		bool mine = false;
		for (uint32_t i = 0; i < count; i++) mine |= slots[i] == s;
		if (mine || (access == HR_READ ? pthread_rwlock_tryrdlock(&s->lock) : pthread_rwlock_trywrlock(&s->lock))) continue;
		uint64_t handle = atomic_load(&s->handle);
		if (!handle || (s->contents < FILLED && access == HR_READ)) {
			pthread_rwlock_unlock(&s->lock);
			continue;
		}
		slots[count] = s;
		pins[count++] = (hr_pin){ { handle }, access };
	}
	return count;
}

static void work_on(worker *w, slot *s, const hr_pin *pin)
{
	void *at = NULL;
	CHECK_STATUS(HR_OK, hr_tensor_get_address(pin->tensor, &at));
	CHECK(at != NULL);
	if (pin->access != HR_OVERWRITE) expect(w, s, at);
	if (pin->access != HR_READ) write_new(w, s, at);
}

/* A thread that holds pins must not wait for others, and may be refused because of its own pins. */
static bool pin(const worker *w, slot *const *slots, const hr_pin *pins, uint32_t count)
{
	hr_status status = hr_tensor_pin_all(pins, count, w->stream);
	if (status == HR_OK) return true;
	CHECK_STATUS(HR_OUT_OF_MEMORY, status);
	atomic_fetch_add_explicit(&here.refused, 1, memory_order_relaxed);
	for (uint32_t i = 0; i < count; i++)
		if (pins[i].access == HR_OVERWRITE) slots[i]->contents = UNKNOWN;
	return false;
}

static void use(worker *w)
{
	slot *slots[2 * PINS];
	hr_pin pins[2 * PINS];
	uint32_t count = choose(w, slots, pins, PINS), more = 0;
	bool held = count && pin(w, slots, pins, count);
	if (held) {
		for (uint32_t i = 0; i < count; i++) work_on(w, slots[i], &pins[i]);
		if (hr_rand_below(&w->seed, 8) == 0) { /* the same again */
			CHECK_STATUS(HR_OK, hr_tensor_pin(pins[0].tensor, HR_READ, w->stream));
			CHECK_STATUS(HR_IN_USE, hr_tensor_evict(pins[0].tensor));
			CHECK_STATUS(HR_OK, hr_tensor_unpin(pins[0].tensor, w->stream));
		}
		if (hr_rand_below(&w->seed, 8) == 0) more = choose(w, slots + count, pins + count, 2);
		/* The tensors of the first half are locked, so the second half has others. */
		if (more && pin(w, slots + count, pins + count, more)) {
			for (uint32_t i = 0; i < more; i++) work_on(w, slots[count + i], &pins[count + i]);
			CHECK_STATUS(HR_OK, hr_tensor_unpin_all(pins + count, more, w->stream));
		}
		CHECK_STATUS(HR_OK, hr_tensor_unpin_all(pins, count, w->stream));
	}
	for (uint32_t i = 0; i < count + more; i++) pthread_rwlock_unlock(&slots[i]->lock);
}

static void use_plain(worker *w)
{
	if (w->plain_count < PLAIN && hr_rand_below(&w->seed, 2)) {
		hr_request request = HR_REQUEST(some_bytes(&w->seed) / 2 + 1);
		request.stream = w->stream;
		void *at;
		hr_status status = hr_alloc(here.allocator, &request, &at);
		if (status != HR_OK) {
			CHECK_STATUS(HR_OUT_OF_MEMORY, status);
			atomic_fetch_add_explicit(&here.refused, 1, memory_order_relaxed);
			return;
		}
		unsigned char value = (unsigned char)hr_rand(&w->seed);
		CHECK_STATUS(HR_OK, hr_stream_fill(here.device, at, value, request.bytes, w->stream));
		w->plain[w->plain_count].at = at;
		w->plain[w->plain_count].bytes = request.bytes;
		w->plain[w->plain_count++].value = value;
	} else if (w->plain_count) {
		uint32_t i = (uint32_t)hr_rand_below(&w->seed, w->plain_count);
		CHECK_STATUS(HR_OK, hr_stream_copy(here.device, w->buffer, w->plain[i].at, w->plain[i].bytes, HR_COPY_TO_HOST, w->stream));
		synchronize(w);
		for (size_t k = 0; k < w->plain[i].bytes; k++)
			if (w->buffer[k] != w->plain[i].value) CHECK_EQ(w->buffer[k], w->plain[i].value);
		CHECK_STATUS(HR_OK, hr_free(here.allocator, w->plain[i].at, w->stream));
		w->plain[i] = w->plain[--w->plain_count];
	}
}

/* Actions that need no lock of the test: the tensor may be in use, or destroyed. */
static void disturb(worker *w)
{
	hr_tensor tensor = { atomic_load(&here.slots[hr_rand_below(&w->seed, SLOTS)].handle) };
	hr_tensor_info info = { .struct_size = sizeof info };
	if (!tensor.id) return;
	hr_status status;
	switch (hr_rand_below(&w->seed, 5)) {
	case 0:
	case 1:
		status = hr_tensor_evict(tensor);
		if (status != HR_OK && status != HR_INVALID_HANDLE) CHECK_STATUS(HR_IN_USE, status);
		break;
	case 2:
		status = hr_tensor_prefetch(tensor);
		if (status != HR_OK && status != HR_INVALID_HANDLE) CHECK_STATUS(HR_OUT_OF_MEMORY, status);
		break;
	case 3:
		status = hr_tensor_get_info(tensor, &info);
		if (status != HR_OK) CHECK_STATUS(HR_INVALID_HANDLE, status);
		else CHECK(info.bytes > 0 && info.bytes <= LARGEST && info.state >= HR_TENSOR_NEW && info.state <= HR_TENSOR_RESTORING);
		break;
	default:
		status = hr_tensor_set_priority(tensor, (int32_t)hr_rand_below(&w->seed, 3) - 1);
		if (status != HR_OK) CHECK_STATUS(HR_INVALID_HANDLE, status);
	}
}

static void command(worker *w)
{
	uint64_t freed;
	hr_status status;
	switch (hr_rand_below(&w->seed, 4)) {
	case 0: CHECK_STATUS(HR_OK, hr_lms_reclaim_inactive(here.allocator, HR_NAME_NONE, &freed)); break;
	case 1: CHECK_STATUS(HR_OK, hr_step_begin(here.allocator)); break;
	case 2:
		status = hr_step_end(here.allocator);
		if (status != HR_OK) CHECK_STATUS(HR_INVALID_ARGUMENT, status);
		break;
	default:
		if (!here.limits) break;
		status = hr_lms_set_limit(here.allocator, hr_rand_below(&w->seed, 3) ? MIB + hr_rand_below(&w->seed, 4 * MIB) : 0);
		if (status != HR_OK) CHECK_STATUS(HR_BAD_LIMIT, status);
	}
}

static void work(unsigned index)
{
	worker w = { .seed = (hr_test_seed() * 64 + here.round) * 64 + index,
		         .stream = here.streams[index],
		         .buffer = malloc(LARGEST) };
	for (uint64_t i = 0; i < here.steps; i++) {
		uint64_t what = hr_rand_below(&w.seed, 64);
		if (what < 28) use(&w);
		else if (what < 38) make_or_end(&w);
		else if (what < 46) use_plain(&w);
		else if (what < 63) disturb(&w);
		else command(&w);
	}
	atomic_fetch_add(&here.done, here.steps);
	while (w.plain_count) CHECK_STATUS(HR_OK, hr_free(here.allocator, w.plain[--w.plain_count].at, w.stream));
	synchronize(&w); /* the buffer may be in use */
	free(w.buffer);
}

/* Every snapshot adds up, whatever other threads do. */
static void look(void)
{
	hr_stats stats;
	hr_lms_stats lms = { .struct_size = sizeof lms };
	hr__lms *context;
	hr_stats_init(&stats);
	CHECK_STATUS(HR_OK, hr_allocator_get_stats(here.allocator, &stats));
	check_identities(&stats);
	CHECK_LE(stats.bytes_reserved, here.limit);
	CHECK_STATUS(HR_OK, hr_lms_get_stats(here.allocator, &lms));
#define NOT_NEGATIVE(name, text) CHECK_LE(0, lms.name);
	HR_LMS_STATS_TABLE(NOT_NEGATIVE)
#undef NOT_NEGATIVE
	CHECK_LE(lms.num_tensors, SLOTS + THREADS);
	CHECK_STATUS(HR_OK, hr__lms_of(here.allocator, &context));
	if (here.lms_limit) CHECK_LE(hr__load_relaxed(&context->resident), here.lms_limit);
	atomic_fetch_add_explicit(&here.looks, 1, memory_order_relaxed);
}

static void join_in(void *unused, unsigned index)
{
	(void)unused;
	if (index < THREADS) {
		work(index);
		atomic_fetch_sub(&here.working, 1);
		return;
	}
	struct timespec pause = { .tv_nsec = 20000 };
	while (atomic_load(&here.working)) {
		look();
		nanosleep(&pause, NULL); /* there are more threads than processors */
	}
}

/* ---- rounds ---- */

static void check_quiet(void)
{
	hr_lms_stats lms = { .struct_size = sizeof lms };
	CHECK_STATUS(HR_OK, hr_lms_check(here.allocator));
	CHECK_STATUS(HR_OK, hr_allocator_check(here.allocator));
	CHECK_STATUS(HR_OK, hr_lms_get_stats(here.allocator, &lms));
	CHECK_EQ(lms.num_pins, 0);
	CHECK_EQ(lms.bytes_pinned, 0);
	hr_stats stats = fixture_stats(here.allocator);
	check_identities(&stats);
	CHECK_EQ(stats.bytes_inactive, stats.bytes_in_use); /* plain blocks are freed */
	int64_t out = 0, tensors = 0;
	for (uint32_t i = 0; i < SLOTS; i++) {
		hr_tensor tensor = { atomic_load(&here.slots[i].handle) };
		hr_tensor_info info = { .struct_size = sizeof info };
		if (!tensor.id) continue;
		tensors++;
		CHECK_STATUS(HR_OK, hr_tensor_get_info(tensor, &info));
		CHECK_EQ(info.bytes, here.slots[i].bytes);
		CHECK_EQ(info.pins, 0u);
		if (info.state == HR_TENSOR_EVICTED) out += (int64_t)((info.bytes + 255) & ~(size_t)255);
	}
	CHECK_EQ(lms.num_tensors, tensors);
	CHECK_EQ(lms.bytes_out_now, out);
}

static void check_contents(void)
{
	worker w = { .buffer = malloc(LARGEST), .stream = HR_STREAM_DEFAULT };
	for (uint32_t i = 0; i < SLOTS; i++) {
		slot *s = &here.slots[i];
		s->writer = HR_STREAM_DEFAULT; /* the streams are destroyed, their work is done */
		hr_pin pin = { { atomic_load(&s->handle) }, HR_READ };
		if (!pin.tensor.id || s->contents < FILLED) continue;
		CHECK_STATUS(HR_OK, hr_tensor_pin_all(&pin, 1, w.stream));
		work_on(&w, s, &pin);
		CHECK_STATUS(HR_OK, hr_tensor_unpin_all(&pin, 1, w.stream));
	}
	free(w.buffer);
}

static void check_nothing_is_left(void)
{
	hr_stats stats;
	hr_lms_stats lms = { .struct_size = sizeof lms };
	for (uint32_t i = 0; i < SLOTS; i++)
		if (atomic_load(&here.slots[i].handle)) destroy(&here.slots[i]);
	CHECK_STATUS(HR_OK, hr_lms_check(here.allocator));
	CHECK_STATUS(HR_OK, hr_lms_get_stats(here.allocator, &lms));
	CHECK_EQ(lms.num_tensors, 0);
	CHECK_EQ(lms.bytes_pinned, 0);
	CHECK_EQ(lms.bytes_inactive, 0);
	CHECK_EQ(lms.bytes_out_now, 0);
	CHECK_EQ(lms.host_bytes, 0);
	CHECK_EQ(lms.spilled_bytes, 0);
	hr_stats_init(&stats);
	CHECK_STATUS(HR_OK, hr_allocator_get_stats(here.allocator, &stats));
	check_identities(&stats);
	CHECK_EQ(stats.bytes_in_use, 0);
	CHECK_EQ(stats.bytes_requested, 0);
	CHECK_EQ(stats.bytes_active, 0);
	CHECK_EQ(stats.num_live, 0);
	CHECK_STATUS(HR_OK, hr_allocator_check(here.allocator));
}

static void set_up(uint64_t limit, const hr_lms_options *lms)
{
	memset(&here, 0, sizeof here);
	for (uint32_t i = 0; i < SLOTS; i++) pthread_rwlock_init(&here.slots[i].lock, NULL);
	hr_fault_os_install();
	here.device = fixture_emulated(64 * MIB, 64 * KIB, 0);
	hr_allocator_options options = fixture_allocator_options(here.limit = limit);
	options.oom.report_allocations_on_oom = false;
	options.stitch = !lms->defrag; /* else nothing would have to be moved */
	CHECK_STATUS(HR_OK, hr_allocator_create(here.device, &options, &here.allocator));
	here.defrag = lms->defrag;
	CHECK_STATUS(HR_OK, hr_lms_configure(here.allocator, lms));
}

static hr_lms_options lms_options(const char *policy)
{
	hr_lms_options options = fixture_lms_options(policy, 128 * MIB);
	options.wait_ns = 20000000;
	return options;
}

/* Above scale 1 the count grows with the square of the scale: all tests together do 100,000 operations at 1, ten million at 10. */
static uint64_t count_of(uint64_t usual)
{
	double scale = hr_test_scale();
	return hr_test_scaled(scale > 1 ? (uint64_t)((double)usual * scale) : usual);
}

static void run(uint64_t operations, unsigned rounds)
{
	for (here.round = 0; here.round < rounds; here.round++) {
		here.steps = operations / rounds / THREADS + 1;
		atomic_store(&here.working, THREADS);
		for (uint32_t i = 0; i < THREADS; i++) CHECK_STATUS(HR_OK, hr_stream_create(here.device, &here.streams[i]));
		hr_test_threads(THREADS + 1, join_in, NULL);
		check_quiet();
		/* The next round has new streams: tensors have a record of destroyed ones. */
		for (uint32_t i = 0; i < THREADS; i++) CHECK_STATUS(HR_OK, hr_stream_destroy(here.device, here.streams[i]));
		check_contents();
		check_quiet();
	}
	hr_lms_stats lms = fixture_lms_stats(here.allocator);
	printf("# %llu operations, %llu reads checked, %llu refused, %llu looks; %lld evictions, %lld restores, %lld planned, %lld "
	       "steps, %lld waits, %lld times moved\n",
	       (unsigned long long)here.done, (unsigned long long)here.reads, (unsigned long long)here.refused,
	       (unsigned long long)here.looks, (long long)lms.num_evictions, (long long)lms.num_restores,
	       (long long)lms.num_planned_evictions, (long long)lms.num_steps, (long long)lms.num_pin_waits,
	       (long long)lms.num_defragmentations);
	CHECK_GT(here.reads, 0);
	if (here.defrag && operations >= 5000) CHECK_GT(lms.num_defragmentations, 0);
	if (operations > 1000) CHECK_GT(lms.num_evictions, 0);
	check_nothing_is_left();
	CHECK_STATUS(HR_OK, hr_allocator_destroy(here.allocator));
	CHECK_STATUS(HR_OK, hr_shutdown());
	CHECK(hr_fault_os_is_clean());
	hr_fault_os_uninstall();
	for (uint32_t i = 0; i < SLOTS; i++) pthread_rwlock_destroy(&here.slots[i].lock);
}

/* With pinned memory for a few tensors, and a file for the rest. */
static void run_spilling(hr_lms_options *options, uint64_t operations)
{
	char folder[] = "/tmp/headroom-spill-XXXXXX";
	CHECK(mkdtemp(folder) != NULL);
	options->host_limit = MIB;
	options->spill_dir = folder;
	set_up(2 * MIB, options);
	here.limits = true;
	run(operations, 4);
	CHECK_EQ(rmdir(folder), 0);
}

static void test_contents_survive_under_lru(void)
{
	hr_lms_options options = lms_options("lru");
	set_up(2 * MIB, &options);
	here.limits = true;
	run(count_of(15000), 4);
}

static void test_contents_survive_under_learned(void)
{
	hr_lms_options options = lms_options("learned");
	set_up(2 * MIB, &options);
	here.limits = true;
	run(count_of(20000), 4);
}

/* ---- an adversarial policy ---- */

static _Atomic(uint64_t) asked, told, begun;

static double by_whim(void *user, const hr_lms_candidate *candidate)
{
	(void)user;
	atomic_fetch_add(&asked, 1);
	CHECK(candidate->tensor.id != 0 && candidate->bytes > 0 && candidate->last_use <= candidate->now);
	return (double)(candidate->tensor.id * UINT64_C(0x9E3779B97F4A7C15) % 1000);
}

static void meddle(void *user, hr_tensor tensor, uint64_t now)
{
	(void)user;
	uint64_t number = atomic_fetch_add(&told, 1);
	CHECK_GT(now, 0);
	hr_status status = HR_OK;
	if (number % 7 == 0) status = hr_tensor_evict(tensor);
	if (number % 11 == 0) status = hr_tensor_prefetch(tensor);
	CHECK(status == HR_OK || status == HR_IN_USE || status == HR_OUT_OF_MEMORY || status == HR_INVALID_HANDLE);
}

static void begin(void *user, uint64_t number)
{
	(void)user;
	CHECK_GT(number, 0);
	atomic_fetch_add(&begun, 1);
}

static void register_whim(void)
{
	hr_lms_policy policy = { .struct_size = sizeof policy, .score = by_whim, .unused = meddle, .step = begin };
	CHECK_STATUS(HR_OK, hr_lms_policy_register("whim", &policy, NULL));
}

static void test_contents_survive_under_a_registered_policy(void)
{
	register_whim();
	hr_lms_options options = lms_options("whim");
	set_up(2 * MIB, &options);
	here.limits = true;
	run(count_of(15000), 4);
	CHECK_GT(asked, 0);
	CHECK_GT(told, 0);
	if (hr_test_scale() >= 1) CHECK_GT(begun, 0);
}

static void test_verify_finds_nothing_wrong(void)
{
	hr_lms_options options = lms_options("lru");
	options.verify = true;
	set_up(2 * MIB, &options);
	here.limits = true;
	run(count_of(7500), 4);
}

static void test_verify_finds_nothing_wrong_with_what_is_planned(void)
{
	hr_lms_options options = lms_options("learned");
	options.verify = true;
	set_up(2 * MIB, &options);
	here.limits = true;
	run(count_of(7500), 4);
}

static void test_contents_survive_with_a_file(void)
{
	hr_lms_options options = lms_options("learned");
	run_spilling(&options, count_of(7500));
}

static void test_contents_survive_with_a_file_verified(void)
{
	register_whim();
	hr_lms_options options = lms_options("whim");
	options.verify = true;
	run_spilling(&options, count_of(7500));
}

static void test_contents_survive_while_tensors_are_moved_together(void)
{
	hr_lms_options options = lms_options("lru");
	options.defrag = true;
	set_up(2 * MIB, &options);
	here.limits = true;
	run(count_of(10000), 4);
}

static void test_verify_finds_nothing_wrong_with_what_was_moved(void)
{
	hr_lms_options options = lms_options("learned");
	options.defrag = options.verify = true;
	set_up(2 * MIB, &options);
	run(count_of(5000), 4);
}

/* ---- the limit for tensors ---- */

static void test_the_limit_for_tensors_holds_at_any_moment(void)
{
	hr_lms_options options = lms_options("lru");
	options.limit = 3 * MIB / 2;
	set_up(8 * MIB, &options);
	here.lms_limit = (int64_t)options.limit;
	run(count_of(5000), 4);
}

TEST_MAIN(T(test_contents_survive_under_lru), T(test_contents_survive_under_learned), T(test_contents_survive_under_a_registered_policy),
          T(test_verify_finds_nothing_wrong), T(test_verify_finds_nothing_wrong_with_what_is_planned),
          T(test_contents_survive_with_a_file), T(test_contents_survive_with_a_file_verified),
          T(test_contents_survive_while_tensors_are_moved_together), T(test_verify_finds_nothing_wrong_with_what_was_moved),
          T(test_the_limit_for_tensors_holds_at_any_moment))
