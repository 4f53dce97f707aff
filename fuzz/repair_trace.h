/* repair_trace.h - makes arbitrary bytes look like a trace file, so that mutations reach the records: header and block headers
 * become valid, magic numbers, versions and sizes are set, lanes and sequences numbered, times put in order. Without it, a mutated
 * file would be refused at its first invalid number, and the rest would not be read. */
#ifndef HR_FUZZ_REPAIR_TRACE_H
#define HR_FUZZ_REPAIR_TRACE_H

#include <stdint.h>
#include <string.h>

#include "core/trace/format.h"

#define LANES 64u

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

/* Returns the block size. */
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
		store64(block + 24, number << 44); /* later than the previous block can reach with small differences */
		store32(block + 32, load32(block + 32) % (uint32_t)(available - 64 + 1));
	}
}

/* [file] has at least 128 bytes. */
static void repair_trace(uint8_t *file, size_t size)
{
	repair_blocks(file, size, repair_header(file, size));
}

#endif
