/* allocator_subjects.h - an allocator on the device that is being tested, and blocks with known contents.
 *
 * Works on any device: contents of blocks are written and read by the device alone (fills and copies through its streams), never by
 * host code. Every size is derived from the device's memory and page size.
 *
 *     subject (device_subjects.h)  ->  open_with(options)  ->  take, verify, drop  ->  look  ->  close
 *
 * Marks: the first half of a block is filled with one byte, the second with another. The pair distinguishes 62,500 blocks, so that
 * bytes of a neighbour, or of the previous user of the memory, are not mistaken for its own. */
#ifndef HR_TESTS_ALLOCATOR_SUBJECTS_H
#define HR_TESTS_ALLOCATOR_SUBJECTS_H

#include "conformance/device_subjects.h"
#include "support_stats.h"

#define KIB UINT64_C(1024)
#define MIB (KIB * KIB)

#define BLOCKS 256u         /* most blocks of a test at a time */
#define STREAMS 4u          /* the default one included */
#define STAGING (256 * KIB) /* host memory for checking contents */
#define EDGE (4 * KIB)      /* larger blocks are checked on this many bytes at both ends and on both sides of the middle */

typedef struct block {
	unsigned char *address; /* NULL: none */
	uint64_t bytes;
	hr_stream stream;
	unsigned char first, second; /* marks of its halves */
	bool marked;                 /* false: contents are unknown, because a fill was refused */
} block;

/* What the test has open. Threads of a test have their own blocks and host memory, and share the allocator. */
static struct {
	hr_allocator allocator;
	bool open, bfc;
	uint64_t limit;
	hr_stream streams[STREAMS];
	uint32_t stream_count;
	unsigned char *staging; /* STAGING bytes of pinned memory */
	block blocks[BLOCKS];
	uint32_t count;
	uint64_t serial; /* of the next block */
	bool sparse;     /* large blocks are filled only where they are checked, for tests that fill very many */
} here;

/* ---- opening and closing ---- */

/* Bytes that a test may use: a share of a large device; all of a small one, in whole pages. */
static uint64_t budget(void)
{
	uint64_t most = hr__device_reservable(device);
	if (!page()) return most < 8 * MIB ? most : 8 * MIB;
	uint64_t pages = most / page(), wanted = page() >= MIB ? 32 : 256;
	return (pages < wanted ? pages : wanted) * page();
}

static void streams_open(void)
{
	here.stream_count = 1;
	here.streams[0] = HR_STREAM_DEFAULT;
	if (!has_streams()) return;
	for (; here.stream_count < STREAMS; here.stream_count++)
		CHECK_STATUS(HR_OK, hr_stream_create(handle, &here.streams[here.stream_count]));
}

static void streams_close(void)
{
	for (uint32_t i = 1; i < here.stream_count; i++) CHECK_STATUS(HR_OK, hr_stream_destroy(handle, here.streams[i]));
	here.stream_count = 1;
}

HR_TEST_UNUSED static hr_allocator_options options_of(const char *kind)
{
	hr_allocator_options options;
	hr_allocator_options_init(&options);
	options.kind = kind;
	options.name = "subject";
	options.limit_bytes = budget();
	return options;
}

/* Opens an allocator with [options], streams, and host memory for checks. */
HR_TEST_UNUSED static void open_with(const hr_allocator_options *options)
{
	void *staging;
	memset(&here, 0, sizeof here);
	CHECK_STATUS(HR_OK, hr__call_host_alloc(device->physical, STAGING, &staging));
	here.staging = staging;
	streams_open();
	CHECK_STATUS(HR_OK, hr_allocator_create(handle, options, &here.allocator));
	here.open = true;
	here.bfc = strcmp(options->kind, "bfc") == 0;
	here.limit = options->limit_bytes;
}

/* Closes the allocator, which must be empty; the device has all its memory back. */
HR_TEST_UNUSED static void close_all(void)
{
	CHECK_EQ(here.count, 0);
	CHECK_STATUS(HR_OK, hr_allocator_destroy(here.allocator));
	here.open = false;
	streams_close();
	CHECK_STATUS(HR_OK, hr__call_host_free(device->physical, here.staging, STAGING));
	CHECK_EQ(hr__page_pool_reserved(device), 0);
}

/* ---- blocks ---- */

HR_TEST_UNUSED static void mark_as(block *b, uint64_t serial)
{
	b->first = (unsigned char)(1 + serial % 250);
	b->second = (unsigned char)(1 + serial / 250 % 250);
}

/* The parts of a block that are checked: all of it, or both ends and the middle of a large one. */
static unsigned parts_of(const block *b, uint64_t offsets[3], uint64_t sizes[3])
{
	offsets[0] = 0;
	sizes[0] = b->bytes <= STAGING ? b->bytes : EDGE;
	if (b->bytes <= STAGING) return 1;
	offsets[1] = b->bytes / 2 - EDGE;
	sizes[1] = 2 * EDGE;
	offsets[2] = b->bytes - EDGE;
	sizes[2] = EDGE;
	return 3;
}

/* Fills the bytes between the offsets [from] and [to]. */
static hr_status paint_part(const block *b, uint64_t from, uint64_t to)
{
	uint64_t half = b->bytes / 2, middle = from > half ? from : to < half ? to : half;
	hr_status status = hr_stream_fill(handle, b->address + from, b->first, middle - from, b->stream);
	return status != HR_OK ? status : hr_stream_fill(handle, b->address + middle, b->second, to - middle, b->stream);
}

/* Fills a block with its marks, on its stream. */
HR_TEST_UNUSED static hr_status paint_block(block *b)
{
	uint64_t offsets[3] = { 0 }, sizes[3] = { b->bytes };
	unsigned count = here.sparse ? parts_of(b, offsets, sizes) : 1;
	hr_status status = HR_OK;
	for (unsigned i = 0; i < count && status == HR_OK; i++) status = paint_part(b, offsets[i], offsets[i] + sizes[i]);
	b->marked = status == HR_OK;
	return status;
}

/* Host memory of a simulated device has no bytes either. */
static void wipe(void *host, uint64_t bytes)
{
	if (now->real) memset(host, 0, bytes);
}

static void verify_range(const block *b, uint64_t offset, uint64_t bytes, unsigned char *staging)
{
	wipe(staging, bytes);
	CHECK_STATUS(HR_OK, hr_stream_copy(handle, staging, b->address + offset, bytes, HR_COPY_TO_HOST, b->stream));
	CHECK_STATUS(HR_OK, hr_stream_synchronize(handle, b->stream));
	if (!now->real) return;
	uint64_t half = b->bytes / 2, wrong = 0;
	for (uint64_t i = 0; i < bytes; i++) wrong += staging[i] != (offset + i < half ? b->first : b->second);
	CHECK_EQ(wrong, 0);
}

/* Checks that a block has its contents. */
HR_TEST_UNUSED static void verify_with(const block *b, unsigned char *staging)
{
	uint64_t offsets[3], sizes[3];
	if (!b->marked) return;
	unsigned count = parts_of(b, offsets, sizes);
	for (unsigned i = 0; i < count; i++) verify_range(b, offsets[i], sizes[i], staging);
}

HR_TEST_UNUSED static void verify(const block *b)
{
	verify_with(b, here.staging);
}

HR_TEST_UNUSED static void verify_all(void)
{
	for (uint32_t i = 0; i < here.count; i++) verify(&here.blocks[i]);
}

/* Allocates on [stream]; the block is not filled. */
HR_TEST_UNUSED static hr_status take_bare(uint64_t bytes, hr_stream stream, block *out)
{
	hr_request request = HR_REQUEST(bytes);
	void *untouched = &request, *address = untouched;
	request.stream = stream;
	hr_status status = hr_alloc(here.allocator, &request, &address);
	if (status != HR_OK) CHECK_EQ(address, untouched);
	else *out = (block){ .address = address, .bytes = bytes, .stream = stream };
	return status;
}

/* Allocates and fills a block, which becomes the last of here.blocks. */
HR_TEST_UNUSED static hr_status take(uint64_t bytes, hr_stream stream)
{
	block b;
	CHECK_LT(here.count, BLOCKS);
	hr_status status = take_bare(bytes, stream, &b);
	if (status != HR_OK) return status;
	mark_as(&b, here.serial++);
	CHECK_STATUS(HR_OK, paint_block(&b));
	here.blocks[here.count++] = b;
	return HR_OK;
}

/* Frees block [index] on [stream]; the last block moves to its index. */
HR_TEST_UNUSED static hr_status drop(uint32_t index, hr_stream stream)
{
	hr_status status = hr_free(here.allocator, here.blocks[index].address, stream);
	if (status == HR_OK) here.blocks[index] = here.blocks[--here.count];
	return status;
}

/* Checks the contents of all blocks and frees them. */
HR_TEST_UNUSED static void drop_all(void)
{
	verify_all();
	while (here.count) CHECK_STATUS(HR_OK, drop(here.count - 1, here.blocks[here.count - 1].stream));
}

/* ---- statistics ---- */

HR_TEST_UNUSED static hr_stats stats_now(void)
{
	hr_stats stats;
	hr_stats_init(&stats);
	CHECK_STATUS(HR_OK, hr_allocator_get_stats(here.allocator, &stats));
	return stats;
}

/* Called after every step: checks all structures, and that the statistics match the blocks of the test. */
HR_TEST_UNUSED static hr_stats look(void)
{
	hr_stats all, stats = stats_now();
	int64_t in_use = 0, requested = 0;
	CHECK_STATUS(HR_OK, hr_allocator_check(here.allocator));
	check_identities(&stats);
	for (uint32_t i = 0; i < here.count; i++) {
		hr_allocation_info info = { .struct_size = sizeof info };
		CHECK_STATUS(HR_OK, hr_allocation_get_info(here.allocator, here.blocks[i].address, &info));
		CHECK_EQ(info.requested, here.blocks[i].bytes);
		CHECK_LE(info.requested, info.bytes);
		in_use += (int64_t)info.bytes;
		requested += (int64_t)info.requested;
	}
	CHECK_EQ(stats.num_live, here.count);
	CHECK_EQ(stats.bytes_in_use, in_use);
	CHECK_EQ(stats.bytes_requested, requested);
	CHECK_LE(stats.bytes_reserved, here.limit);
	CHECK_EQ((uint64_t)stats.bytes_reserved, hr__page_pool_reserved(device));
	if (here.bfc) {
		chunk_census census = { 0 };
		census_take(here.allocator, &stats, &census);
	}
	hr_stats_init(&all);
	CHECK_STATUS(HR_OK, hr_device_get_stats(handle, &all));
	check_identities(&all);
	CHECK_EQ(all.bytes_in_use, in_use);
	return stats;
}

/* A size from 1 byte to [most], with small sizes as likely as large ones. */
HR_TEST_UNUSED static uint64_t any_size(uint64_t *seed, uint64_t most)
{
	uint64_t bound = 1;
	while (bound < most && hr_rand_below(seed, 24)) bound *= 2;
	return 1 + hr_rand_below(seed, bound < most ? bound : most);
}

#endif
