/* fuzz_trace_reader.c - the trace reader on any bytes: it answers or says where the file is wrong, and the events it gives are in
 * order.
 *
 * The first byte of an input chooses how the rest is taken:
 *
 *   even  as it is
 *   odd   as a file whose header and block headers are first made valid, so that mutations reach the records behind them: magic
 *         numbers, versions and sizes are set, lanes and sequences numbered, times put in order. A real damaged file would be
 *         refused at its first wrong number, and the rest never be looked at.
 *
 * tests/unit/test_trace.c writes the seeds (HR_TRACE_SEEDS=fuzz/corpus/trace_reader). */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/names.h"
#include "trace/format.h"
#include "trace/trace.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define LANES 64u

static void must(int holds)
{
	if (!holds) abort();
}

static uint32_t load32(const uint8_t *at)
{
	uint32_t value;
	memcpy(&value, at, sizeof(value));
	return value;
}

static void store32(uint8_t *at, uint32_t value)
{
	memcpy(at, &value, sizeof(value));
}

static void store64(uint8_t *at, uint64_t value)
{
	memcpy(at, &value, sizeof(value));
}

/* Returns the size of a block. */
static uint32_t repair_header(uint8_t *file, size_t size)
{
	uint32_t block_size = load32(file + 32);
	if (block_size < HR__TRACE_BLOCK_MIN || block_size > 8192) block_size = HR__TRACE_BLOCK_MIN + block_size % 4096;
	memcpy(file, HR__TRACE_MAGIC, 8);
	store32(file + 8, HR__TRACE_MAJOR);
	store32(file + 12, 128);
	store64(file + 16, 0);
	store32(file + 32, block_size);
	store32(file + 36, HR__TRACE_BYTE_ORDER);
	file[56] |= 1;
	store64(file + 80, size);
	return block_size;
}

static void repair_blocks(uint8_t *file, size_t size, uint32_t block_size)
{
	uint32_t lanes = 0, sequences[LANES] = { 0 };
	for (size_t at = 128, number = 1; at + 64 <= size; at += block_size, number++) {
		uint8_t *block = file + at;
		size_t available = size - at < block_size ? size - at : block_size;
		uint32_t lane = load32(block + 8) % (lanes < LANES ? lanes + 1 : LANES);
		if (lane == lanes) lanes++;
		store32(block, HR__TRACE_BLOCK_MAGIC);
		block[4] = HR__BLOCK_RECORDS;
		store32(block + 8, lane);
		store32(block + 12, load32(block + 12) % HR__TRACE_THREADS_MAX);
		store64(block + 16, sequences[lane]++);
		store64(block + 24, number << 44); /* later than what the block before can get to with small differences */
		store32(block + 32, load32(block + 32) % (uint32_t)(available - 64 + 1));
	}
}

static void read_all(const uint8_t *file, size_t size)
{
	hr__trace_reader *reader = NULL;
	hr__event event;
	uint64_t events = 0, time = 0;
	hr_status status = hr__trace_reader_open_memory(file, size, &reader);
	if (status != HR_OK) {
		must(reader == NULL && *hr_last_message() != 0);
		must(status == HR_BAD_FORMAT || status == HR_TRUNCATED || status == HR_TOO_NEW);
		return;
	}
	const hr__trace_summary *summary = hr__trace_reader_summary(reader);
	for (size_t i = 0; i < summary->device_count; i++) must(strlen(summary->devices[i].name) <= HR__NAME_LENGTH_MAX);
	for (size_t i = 0; i < summary->allocator_count; i++) must(strlen(summary->allocators[i].kind) <= HR__NAME_LENGTH_MAX);
	while ((status = hr__trace_reader_next(reader, &event)) == HR_OK) {
		events++;
		must(event.time_ns >= time && event.thread < summary->threads);
		must(event.kind >= HR__EVENT_ALLOC && event.kind <= HR__EVENT_MARK);
		must(event.op < hr__names_count() && event.scope < hr__names_count() && event.tag < hr__names_count());
		must(event.shape < hr__shapes_count() && hr_dtype_text(event.dtype) != NULL);
		time = event.time_ns;
	}
	must(status == HR_NOT_READY && events == summary->events);
	hr__trace_reader_close(reader);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static unsigned runs;
	if (size == 0) return 0;
	/* The names of all inputs together would fill the table, and then every name would be "(other)". */
	if (++runs % 1024 == 0) hr__names_reset_for_test();
	if (data[0] % 2 == 0) {
		read_all(data + 1, size - 1);
		return 0;
	}
	/* Exactly as long as the file, so that a sanitizer sees reads past its end. */
	uint8_t *file = malloc(size > 1 ? size - 1 : 1);
	must(file != NULL);
	memcpy(file, data + 1, size - 1);
	if (size - 1 >= 128) repair_blocks(file, size - 1, repair_header(file, size - 1));
	read_all(file, size - 1);
	free(file);
	return 0;
}
