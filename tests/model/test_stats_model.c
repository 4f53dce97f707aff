/* test_stats_model.c - every statistic of allocators and their device, compared with a naive reference after each operation.
 *
 * Random operations on blocks and tensors of several allocators of all kinds on one logical device; allocators are opened and
 * closed, and statistics are reset in between. With one thread every number is exact. With several threads, which take turns under
 * a lock so that the reference knows the true peaks, peaks may be too high by peak_error_bytes; all other numbers are exact. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "fixture.h"
#include "support_stats.h"
#include "test.h"

#define KIB UINT64_C(1024)
#define MIB (KIB * KIB)
#define ALLOCATORS 4
#define ITEMS 48

enum kind { BFC, TENSORS, DIRECT, CUSTOM, KINDS };

/* What the reference knows about an allocator, or the device. */
struct books {
	int64_t in_use, inactive, peak, peak_active;
	int64_t allocs, frees, failed, live, live_at_reset, total, largest, reclaimed;
};

struct item {
	bool used, is_tensor, has_memory, counted;
	int pins;
	void *address;
	hr_tensor tensor;
	int64_t bytes; /* bytes in use, if it has memory */
};

struct slot {
	hr_allocator handle; /* 0 = none */
	enum kind kind;
	struct books books;
	struct item items[ITEMS];
};

static struct {
	hr_device device;
	struct slot slots[ALLOCATORS];
	struct books device_books;
	uint64_t state;
	pthread_mutex_t turn;
	uint64_t left; /* operations */
	bool exact;
	int64_t error;
} m;

static uint64_t draw(uint64_t below)
{
	m.state ^= m.state << 13;
	m.state ^= m.state >> 7;
	m.state ^= m.state << 17;
	return m.state % below;
}

/* ---- the reference ---- */

static void see_peaks(struct books *books)
{
	int64_t active = books->in_use - books->inactive;
	if (books->in_use > books->peak) books->peak = books->in_use;
	if (active > books->peak_active) books->peak_active = active;
}

/* Bytes in use and inactive bytes change together. */
static void change(struct slot *slot, int64_t in_use, int64_t inactive)
{
	slot->books.in_use += in_use;
	slot->books.inactive += inactive;
	see_peaks(&slot->books);
	m.device_books.in_use += in_use;
	m.device_books.inactive += inactive;
	see_peaks(&m.device_books);
}

static void count_alloc(struct books *books, int64_t bytes)
{
	books->allocs++;
	books->live++;
	books->total += bytes;
	if (bytes > books->largest) books->largest = bytes;
}

static void count_free(struct books *books)
{
	books->frees++;
	books->live--;
}

static void count_reset(struct books *books)
{
	books->peak = books->in_use;
	books->peak_active = books->in_use - books->inactive;
	books->live_at_reset = books->live;
	books->allocs = books->frees = books->failed = books->total = books->largest = books->reclaimed = 0;
}

static void compare_peak(int64_t peak, int64_t expected, int64_t error)
{
	CHECK_LE(expected, peak);
	CHECK_LE(peak, expected + error);
}

static void compare(const hr_stats *stats, const struct books *books)
{
	int64_t error = stats->peak_error_bytes;
	check_identities(stats);
	if (m.exact) CHECK_EQ(error, 0);
	if (error > m.error) m.error = error;
	CHECK_EQ(stats->bytes_in_use, books->in_use);
	CHECK_EQ(stats->bytes_inactive, books->inactive);
	CHECK_EQ(stats->bytes_active, books->in_use - books->inactive);
	compare_peak(stats->peak_bytes_in_use, books->peak, error);
	compare_peak(stats->peak_bytes_active, books->peak_active, error);
	CHECK_EQ(stats->num_allocs, books->allocs);
	CHECK_EQ(stats->num_frees, books->frees);
	CHECK_EQ(stats->num_failed_allocs, books->failed);
	CHECK_EQ(stats->num_live, books->live);
	CHECK_EQ(stats->num_live_at_reset, books->live_at_reset);
	CHECK_EQ(stats->total_bytes_allocated, books->total);
	CHECK_EQ(stats->largest_alloc_size, books->largest);
	CHECK_EQ(stats->bytes_reclaimed, books->reclaimed);
}

static void compare_all(void)
{
	hr_stats stats;
	for (int i = 0; i < ALLOCATORS; i++) {
		if (!m.slots[i].handle.id) continue;
		hr_stats_init(&stats);
		CHECK_STATUS(HR_OK, hr_allocator_get_stats(m.slots[i].handle, &stats));
		compare(&stats, &m.slots[i].books);
	}
	hr_stats_init(&stats);
	CHECK_STATUS(HR_OK, hr_device_get_stats(m.device, &stats));
	compare(&stats, &m.device_books);
}

/* ---- allocators ---- */

static hr_status custom_alloc(void *state, size_t bytes, size_t alignment, hr_stream stream, void **out)
{
	(void)state;
	(void)stream;
	return posix_memalign(out, alignment < sizeof(void *) ? sizeof(void *) : alignment, bytes) ? HR_OUT_OF_MEMORY : HR_OK;
}

static hr_status custom_free(void *state, void *address, size_t bytes, hr_stream stream)
{
	(void)state;
	(void)bytes;
	(void)stream;
	free(address);
	return HR_OK;
}

static void open_slot(struct slot *slot)
{
	static const char *const kinds[] = { "bfc", "bfc", "direct", "mine" };
	hr_allocator_options options;
	hr_allocator_options_init(&options);
	memset(slot, 0, sizeof *slot);
	slot->kind = draw(2) ? TENSORS : (enum kind)draw(KINDS);
	options.kind = kinds[slot->kind];
	options.limit_bytes = 64 * MIB;
	options.thread_cache = draw(4) != 0;
	CHECK_STATUS(HR_OK, hr_allocator_create(m.device, &options, &slot->handle));
	if (slot->kind != TENSORS || draw(2)) return; /* LMS then starts with the first tensor */
	fixture_lms(slot->handle, NULL, 0);
}

static void close_slot(struct slot *slot)
{
	change(slot, -slot->books.in_use, -slot->books.inactive);
	m.device_books.frees += slot->books.live;
	m.device_books.live -= slot->books.live;
	CHECK_STATUS(HR_OK, hr_allocator_destroy_all(slot->handle));
	memset(slot, 0, sizeof *slot);
}

/* ---- operations ---- */

static int64_t any_size(void)
{
	return 1 + (int64_t)(draw(3) ? draw(4 * KIB) : draw(3) ? draw(200 * KIB) : draw(2 * MIB));
}

static void new_block(struct slot *slot, struct item *item)
{
	int64_t asked = any_size();
	hr_allocation_info info = { .struct_size = sizeof info };
	if (slot->books.in_use > (int64_t)(32 * MIB)) return;
	CHECK_STATUS(HR_OK, hr_alloc_bytes(slot->handle, (size_t)asked, &item->address));
	CHECK_STATUS(HR_OK, hr_allocation_get_info(slot->handle, item->address, &info));
	item->used = item->has_memory = true;
	item->bytes = (int64_t)info.bytes;
	count_alloc(&slot->books, item->bytes);
	count_alloc(&m.device_books, item->bytes);
	change(slot, item->bytes, 0);
}

static void new_tensor(struct slot *slot, struct item *item)
{
	hr_tensor_options options;
	hr_tensor_options_init(&options);
	options.bytes = (size_t)any_size();
	options.fixed = draw(4) == 0;
	CHECK_STATUS(HR_OK, hr_tensor_create(slot->handle, &options, &item->tensor));
	item->used = item->is_tensor = true;
}

static void refused(struct slot *slot)
{
	void *address;
	CHECK(hr_alloc_bytes(slot->handle, draw(2) ? 0 : 65 * (size_t)MIB, &address) != HR_OK);
	slot->books.allocs++;
	slot->books.failed++;
	m.device_books.allocs++;
	m.device_books.failed++;
}

static void pin(struct slot *slot, struct item *item)
{
	if (!item->has_memory && slot->books.in_use > (int64_t)(32 * MIB)) return;
	CHECK_STATUS(HR_OK, hr_tensor_pin(item->tensor, HR_WRITE, HR_STREAM_DEFAULT));
	item->pins++;
	if (item->has_memory) {
		if (item->pins == 1) change(slot, 0, -item->bytes);
		return;
	}
	hr_tensor_info info = fixture_tensor_info(item->tensor);
	item->has_memory = true;
	item->bytes = (int64_t)info.device_bytes;
	if (!item->counted) {
		count_alloc(&slot->books, item->bytes);
		count_alloc(&m.device_books, item->bytes);
	}
	item->counted = true;
	change(slot, item->bytes, 0);
}

static void unpin(struct slot *slot, struct item *item)
{
	CHECK_STATUS(HR_OK, hr_tensor_unpin(item->tensor, HR_STREAM_DEFAULT));
	if (--item->pins == 0) change(slot, 0, item->bytes);
}

static void evict_or_return(struct slot *slot, struct item *item)
{
	if (item->has_memory) {
		hr_status status = hr_tensor_evict(item->tensor);
		if (status == HR_UNSUPPORTED) return; /* a small fixed tensor, or this allocator does not evict */
		CHECK_STATUS(HR_OK, status);
		item->has_memory = false;
		slot->books.reclaimed += item->bytes;
		m.device_books.reclaimed += item->bytes;
		change(slot, -item->bytes, -item->bytes);
	} else if (item->counted && slot->books.in_use < (int64_t)(32 * MIB)) {
		CHECK_STATUS(HR_OK, hr_tensor_prefetch(item->tensor));
		item->has_memory = true;
		change(slot, item->bytes, item->bytes);
	}
}

static void end_item(struct slot *slot, struct item *item)
{
	int64_t bytes = item->has_memory ? item->bytes : 0;
	if (item->is_tensor) CHECK_STATUS(HR_OK, hr_tensor_destroy(item->tensor));
	else CHECK_STATUS(HR_OK, hr_free(slot->handle, item->address, HR_STREAM_DEFAULT));
	if (!item->is_tensor || item->counted) {
		count_free(&slot->books);
		count_free(&m.device_books);
	}
	change(slot, -bytes, item->is_tensor ? -bytes : 0);
	memset(item, 0, sizeof *item);
}

static void use_item(struct slot *slot, struct item *item)
{
	if (!item->used) {
		if (slot->kind == TENSORS && draw(3)) new_tensor(slot, item);
		else new_block(slot, item);
		return;
	}
	switch (item->is_tensor ? draw(7) : 6) {
	case 0:
	case 1: pin(slot, item); break;
	case 2:
	case 3:
	case 4:
	case 5:
		if (item->pins) unpin(slot, item);
		else evict_or_return(slot, item);
		break;
	default:
		while (item->pins) unpin(slot, item);
		end_item(slot, item);
	}
}

static void reset_all(void)
{
	CHECK_STATUS(HR_OK, hr_reset_memory_stats("GPU:1"));
	count_reset(&m.device_books);
	for (int i = 0; i < ALLOCATORS; i++) count_reset(&m.slots[i].books);
}

static void step(void)
{
	struct slot *slot = &m.slots[draw(ALLOCATORS)];
	uint64_t what = draw(1000);
	if (!slot->handle.id) {
		if (what < 100) open_slot(slot);
		return;
	}
	if (what < 2) close_slot(slot);
	else if (what < 6) reset_all();
	else if (what < 16) refused(slot);
	else use_item(slot, &slot->items[draw(ITEMS)]);
	if (what >= 6 && draw(4) == 0) compare_all();
	if (what % 100 == 99 && slot->handle.id) CHECK_STATUS(HR_OK, hr_allocator_check(slot->handle));
}

/* ---- runs ---- */

static void *worker(void *unused)
{
	(void)unused;
	for (bool more = true; more;) {
		pthread_mutex_lock(&m.turn);
		uint64_t count = draw(8) + 1;
		while (count-- && (more = m.left > 0)) {
			m.left--;
			step();
		}
		pthread_mutex_unlock(&m.turn);
	}
	return NULL;
}

static void run(unsigned threads, uint64_t operations)
{
	pthread_t others[8];
	memset(&m, 0, sizeof m);
	m.state = hr_test_seed() * UINT64_C(0x9E3779B97F4A7C15) + threads;
	m.left = operations;
	m.exact = threads == 1;
	pthread_mutex_init(&m.turn, NULL);
	fixture_configure_emulated(1024 * MIB, 64 * KIB, 0);
	CHECK_STATUS(HR_OK, hr_device_set_logical("GPU:0", (uint64_t[]){ 256 * MIB, 512 * MIB }, 2));
	CHECK_STATUS(HR_OK, hr_device_find("GPU:1", &m.device));
	hr_custom_allocator table = { .struct_size = sizeof table, .alloc = custom_alloc, .free = custom_free };
	CHECK_STATUS(HR_OK, hr_allocator_register("mine", &table, NULL));
	for (unsigned i = 1; i < threads; i++) CHECK(!pthread_create(&others[i], NULL, worker, NULL));
	worker(NULL);
	for (unsigned i = 1; i < threads; i++) CHECK(!pthread_join(others[i], NULL));
	compare_all();
	printf("# %u threads: device peak %lld, of active bytes %lld, error up to %lld\n", threads, (long long)m.device_books.peak,
	       (long long)m.device_books.peak_active, (long long)m.error);
	CHECK_LE(m.error, (int64_t)(threads * ALLOCATORS * 64 * KIB));
	CHECK_STATUS(HR_OK, hr_shutdown());
	pthread_mutex_destroy(&m.turn);
}

static void test_one_thread_has_exact_figures(void)
{
	run(1, hr_test_scaled(60000));
}

static void test_figures_of_two_threads_are_within_the_bound(void)
{
	run(2, hr_test_scaled(30000));
}

static void test_figures_of_four_threads_are_within_the_bound(void)
{
	run(4, hr_test_scaled(30000));
}

TEST_MAIN(T(test_one_thread_has_exact_figures), T(test_figures_of_two_threads_are_within_the_bound),
          T(test_figures_of_four_threads_are_within_the_bound))
