/* rounds_conformance.c - many equal rounds, on every device that has memory: contents stay correct and no memory use grows.
 *
 * A round: allocate, write a pattern, copy it to host memory, wipe the block, copy it back, copy it to the host once more, compare,
 * free. A round is queued on a stream at once; the comparison is done when the round's slot is needed again. So several rounds are
 * under way on each of four streams, and blocks of mixed sizes are live at the same time. Sometimes an additional allocator, stream
 * and host memory are created and closed.
 *
 * Between the first tenth of the rounds and the last, free memory of the device, resident memory of the process, and its locked or
 * pinned memory must not change.
 *
 * HR_TEST_ROUNDS         number of rounds on a GPU; by default as everywhere (300 times HR_TEST_SCALE)
 * HR_TEST_CONTENTS_ONLY  set: growth is not checked, because others use the GPU meanwhile, or a tool instruments the process */
#include "conformance/allocator_subjects.h"

#define ROUNDS 300u
#define PLACES 8u /* rounds under way */
#define LARGEST (64 * MIB)
#define SMALLEST 256u
#define SHIFT 4096u /* patterns start anywhere in this many bytes of the source, so that no two rounds are equal */
#define COME_AND_GO 64u
#define HOST_SLACK (8 * MIB)    /* allowed growth of the process, for its libraries */
#define DRIVER_SLACK (64 * MIB) /* additional growth for a GPU's driver, in the process and on the card */

struct place {
	block block;
	uint64_t begin;            /* offset of its pattern in the source */
	unsigned char *out, *back; /* host memory */
};

static struct {
	struct place places[PLACES];
	unsigned char *source;
	uint64_t largest;
} rounds;

static bool is_gpu(void)
{
	return strcmp(now->backend, "cuda") == 0;
}

static uint64_t round_count(void)
{
	const char *text = getenv("HR_TEST_ROUNDS");
	uint64_t count = text && is_gpu() ? strtoull(text, NULL, 0) : 0;
	return count ? count : hr_test_scaled(ROUNDS);
}

/* ---- memory that must not grow ---- */

typedef struct usage {
	uint64_t device_free, resident, locked;
} usage;

static usage usage_now(void)
{
	usage found = { .device_free = free_bytes() };
	char line[256];
	FILE *file = fopen("/proc/self/status", "r");
	CHECK(file != NULL);
	while (fgets(line, sizeof line, file)) {
		unsigned long long kib;
		if (sscanf(line, "VmRSS: %llu", &kib) == 1) found.resident = kib * KIB;
		if (sscanf(line, "VmLck: %llu", &kib) == 1 || sscanf(line, "VmPin: %llu", &kib) == 1) found.locked += kib * KIB;
	}
	fclose(file);
	return found;
}

static void check_flat(uint64_t early, uint64_t late, uint64_t slack, const char *what)
{
	uint64_t difference = early > late ? early - late : late - early;
	printf("#   %s: %.1f MiB, then %.1f MiB\n", what, (double)early / (double)MIB, (double)late / (double)MIB);
	CHECK_LE(difference, slack);
}

/* ---- rounds ---- */

static void host_memory(uint64_t bytes, unsigned char **out)
{
	void *host;
	CHECK_STATUS(HR_OK, hr__call_host_alloc(device->physical, bytes, &host));
	*out = host;
}

static void host_memory_back(unsigned char *host, uint64_t bytes)
{
	CHECK_STATUS(HR_OK, hr__call_host_free(device->physical, host, bytes));
}

static void begin_round(struct place *place, uint64_t bytes, hr_stream stream, uint64_t begin)
{
	CHECK_STATUS(HR_OK, take_bare(bytes, stream, &place->block));
	unsigned char *at_device = place->block.address;
	place->begin = begin;
	CHECK_STATUS(HR_OK, hr_stream_copy(handle, at_device, rounds.source + begin, bytes, HR_COPY_TO_DEVICE, stream));
	CHECK_STATUS(HR_OK, hr_stream_copy(handle, place->out, at_device, bytes, HR_COPY_TO_HOST, stream));
	CHECK_STATUS(HR_OK, hr_stream_fill(handle, at_device, 0, bytes, stream));
	CHECK_STATUS(HR_OK, hr_stream_copy(handle, at_device, place->out, bytes, HR_COPY_TO_DEVICE, stream));
	CHECK_STATUS(HR_OK, hr_stream_copy(handle, place->back, at_device, bytes, HR_COPY_TO_HOST, stream));
}

static void end_round(struct place *place)
{
	if (!place->block.address) return;
	CHECK_STATUS(HR_OK, hr_stream_synchronize(handle, place->block.stream));
	CHECK(memcmp(place->back, rounds.source + place->begin, place->block.bytes) == 0);
	CHECK_STATUS(HR_OK, hr_free(here.allocator, place->block.address, place->block.stream));
	place->block.address = NULL;
}

/* Creates and closes objects, so that a leak in them would be detected. */
static void come_and_go(uint64_t *seed)
{
	hr_allocator_options options = options_of(hr_rand_below(seed, 2) ? "bfc" : "direct");
	hr_allocator allocator;
	hr_stream stream = HR_STREAM_DEFAULT;
	hr_request request = HR_REQUEST(any_size(seed, rounds.largest / 16));
	unsigned char *host;
	void *address;
	options.limit_bytes = page() ? page() * (1 + rounds.largest / page()) : rounds.largest;
	if (options.limit_bytes > hr__page_pool_available(device)) return;
	host_memory(request.bytes, &host);
	if (has_streams()) CHECK_STATUS(HR_OK, hr_stream_create(handle, &stream));
	CHECK_STATUS(HR_OK, hr_allocator_create(handle, &options, &allocator));
	request.stream = stream;
	CHECK_STATUS(HR_OK, hr_alloc(allocator, &request, &address));
	CHECK_STATUS(HR_OK, hr_stream_copy(handle, host, address, request.bytes, HR_COPY_TO_HOST, stream));
	CHECK_STATUS(HR_OK, hr_free(allocator, address, stream));
	CHECK_STATUS(HR_OK, hr_stream_synchronize(handle, stream));
	CHECK_STATUS(HR_OK, hr_allocator_destroy(allocator));
	if (stream) CHECK_STATUS(HR_OK, hr_stream_destroy(handle, stream));
	host_memory_back(host, request.bytes);
}

/* The largest size that leaves room for all slots, a copy of each, and additional allocators. */
static uint64_t largest_size(void)
{
	uint64_t most = hr__device_reservable(device) / (3 * PLACES), wanted = is_gpu() ? LARGEST : MIB;
	if (!page()) most = MIB;
	return most < wanted ? most : wanted;
}

static void open_rounds(void)
{
	hr_allocator_options options = options_of("bfc");
	uint64_t limit = 2 * PLACES * (rounds.largest = largest_size());
	options.limit_bytes = page() ? (limit + page() - 1) / page() * page() : limit;
	open_with(&options);
	host_memory(rounds.largest + SHIFT, &rounds.source);
	paint(rounds.source, rounds.largest + SHIFT, hr_test_seed());
	for (unsigned i = 0; i < PLACES; i++) {
		rounds.places[i].block.address = NULL;
		host_memory(rounds.largest, &rounds.places[i].out);
		host_memory(rounds.largest, &rounds.places[i].back);
	}
	/* Everything at its largest once, so that later rounds reuse that memory. */
	for (unsigned i = 0; i < PLACES; i++) begin_round(&rounds.places[i], rounds.largest, here.streams[i % here.stream_count], i);
	for (unsigned i = 0; i < PLACES; i++) end_round(&rounds.places[i]);
}

static void close_rounds(void)
{
	for (unsigned i = 0; i < PLACES; i++) {
		host_memory_back(rounds.places[i].out, rounds.largest);
		host_memory_back(rounds.places[i].back, rounds.largest);
	}
	host_memory_back(rounds.source, rounds.largest + SHIFT);
	close_all();
}

static uint64_t round_size(uint64_t *seed)
{
	uint64_t size = SMALLEST;
	while (size < rounds.largest && hr_rand_below(seed, 8)) size *= 2;
	if (size > rounds.largest) size = rounds.largest;
	return size - hr_rand_below(seed, size / 2);
}

static void rounds_are_flat(void)
{
	if (!now->real) return;
	uint64_t seed = hr_test_seed(), count = round_count(), bytes = 0, free_before = free_bytes();
	usage early = { 0 }, late;
	open_rounds();
	for (uint64_t i = 0; i < count; i++) {
		struct place *place = &rounds.places[i % PLACES];
		uint64_t size = round_size(&seed);
		end_round(place);
		begin_round(place, size, here.streams[i % here.stream_count], hr_rand_below(&seed, SHIFT));
		bytes += size;
		if (i % COME_AND_GO == 0) come_and_go(&seed);
		if (i == count / 10) early = usage_now();
	}
	late = usage_now();
	printf("#   %llu rounds, %.1f MiB each way twice\n", (unsigned long long)count, (double)bytes / (double)MIB);
	for (unsigned i = 0; i < PLACES; i++) end_round(&rounds.places[i]);
	CHECK_STATUS(HR_OK, hr_allocator_check(here.allocator));
	close_rounds();
	hr__page_pool_shrink(device);
	usage after = usage_now();
	uint64_t others = is_gpu() ? DRIVER_SLACK : 0;
	if (getenv("HR_TEST_CONTENTS_ONLY")) return;
	/* Best fit may need one more block sometimes; a leak would need one each time. Without pages, free memory is that of the
	 * machine. */
	if (page()) check_flat(early.device_free, late.device_free, rounds.largest + 2 * page() + others, "free on the device");
	if (page()) check_flat(free_before, after.device_free, others, "free on the device, before and after all");
	/* A sanitizer keeps freed memory on purpose. */
	if (!HR_TEST_SANITIZED) check_flat(early.resident, late.resident, HOST_SLACK + others, "resident");
	check_flat(early.locked, late.locked, HOST_SLACK + others, "locked and pinned");
}

static void test_rounds_keep_contents_and_memory_flat(void)
{
	on_each_device(rounds_are_flat);
}

TEST_MAIN(T_WITHIN(test_rounds_keep_contents_and_memory_flat, 180))
