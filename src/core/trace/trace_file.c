/* trace_file.c - see trace_file.h. */
#include "core/trace/trace_file.h"

#include <stdio.h>
#include <string.h>

#include "core/base/assert.h"
#include "core/os/os.h"
#include "core/trace/format.h"

#define UNITS_PER_SECOND_MIN 125e6 /* a unit of the file's clock is 2^n ticks, the most that fit in 8 ns: saves bytes, keeps the order of events */

hr__lock hr__trace_lock = HR__LOCK_INIT(HR__RANK_TRACE);

/* Written by hr__trace_file_create and hr__trace_file_finish, while no thread is inside an event. */
static hr__trace_clock file_clock;
static hr__trace_header *header; /* NULL: there is no file */

static hr__atomic_u64 lost;
static hr__atomic_u32 reached_limit; /* written under the lock */

/* Guarded by the lock. */
static hr__blockfile file;
static uint64_t last_block_offset;  /* 0: no block was taken yet */
static hr__trace_block *last_block; /* NULL when no longer mapped */

/* ---- creating ---- */

static void start_clock(void)
{
	double rate = hr__ticks_rate();
	file_clock.shift = 0;
	while (rate / 2 >= UNITS_PER_SECOND_MIN) {
		rate /= 2;
		file_clock.shift++;
	}
	file_clock.units_per_second = rate < 1 ? 1 : (uint64_t)(rate + 0.5);
	file_clock.start_ticks = hr__ticks();
}

const hr__trace_clock *hr__trace_file_clock(void)
{
	return &file_clock;
}

static void fill_header(size_t header_size)
{
	header->major = HR__TRACE_MAJOR;
	header->minor = HR__TRACE_MINOR;
	header->header_size = (uint32_t)header_size;
	header->block_size = file.block_bytes;
	header->byte_order = HR__TRACE_BYTE_ORDER;
	header->start_wall_ns = hr__os()->wall_clock_ns();
	header->start_ticks = file_clock.start_ticks;
	header->units_per_second = file_clock.units_per_second;
	header->ticks_shift = file_clock.shift;
	header->process = (uint32_t)hr__os()->process_id();
	snprintf(header->writer, sizeof(header->writer), "headroom %s", hr_version());
	hr__rank_read((hr__trace_rank *)(header + 1));
	hr__compiler_barrier();
	memcpy(header->magic, HR__TRACE_MAGIC, 8);
}

hr_status hr__trace_file_create(const char *path, uint32_t block_bytes, uint64_t limit)
{
	/* With this header size, blocks begin at multiples of their size and of a page. The warmer needs whole pages. */
	size_t header_size = block_bytes > hr__os_page_size() ? block_bytes : hr__os_page_size();
	void *front;
	/* Measuring the clock takes milliseconds. It is done before the file exists, so that a reader never finds a file without a header. */
	start_clock();
	hr_status status = hr__blockfile_create(&file, path, header_size, block_bytes, limit, &front);
	if (status != HR_OK) return status;
	header = front;
	hr__store_relaxed(&lost, 0);
	hr__store_relaxed(&reached_limit, 0);
	last_block = NULL;
	last_block_offset = 0;
	fill_header(header_size);
	return HR_OK;
}

/* ---- blocks ---- */

/* The flag is stored in the header now, because the process may be killed. */
static void note_limit(void)
{
	header->optional |= HR__OPTIONAL_LIMITED;
	hr__store_relaxed(&reached_limit, 1);
}

bool hr__trace_file_take(hr__blockfile_block *out)
{
	HR_ASSERT(hr__lock_is_mine(&hr__trace_lock) && header);
	bool ok = hr__blockfile_take(&file, out);
	if (ok) {
		last_block = out->memory;
		last_block_offset = out->offset;
	}
	if (file.full) note_limit();
	return ok;
}

bool hr__trace_file_reached_limit(void)
{
	return hr__load_relaxed(&reached_limit) != 0;
}

/* The end of the file is found by last_block, so last_block must not point into memory that is about to be unmapped. */
void hr__trace_file_give(uint32_t extent, hr__blockfile_extent *idle)
{
	HR_ASSERT(hr__lock_is_mine(&hr__trace_lock));
	hr__blockfile_give(&file, extent, idle);
	uint8_t *base = idle->base;
	if (base != NULL && (uint8_t *)last_block >= base && (uint8_t *)last_block < base + idle->bytes) last_block = NULL;
}

bool hr__trace_file_warm(void)
{
	hr__blockfile_block cold;
	hr__blockfile_extent idle;
	hr__lock_take(&hr__trace_lock);
	bool found = hr__blockfile_next_cold(&file, &cold);
	hr__lock_release(&hr__trace_lock);
	if (!found) return false;
	hr__os()->file_touch(cold.memory, cold.bytes);
	hr__lock_take(&hr__trace_lock);
	hr__trace_file_give(cold.extent, &idle);
	hr__lock_release(&hr__trace_lock);
	hr__blockfile_unmap(&idle);
	return true;
}

/* ---- lost events ---- */

void hr__trace_file_count_lost(bool inside_event)
{
	if (hr__trace_file_reached_limit()) return; /* the recording has ended, so the event is not missing from it */
	hr__fetch_add_relaxed(&lost, 1);
	if (inside_event) hr__fetch_add_relaxed(&header->lost, 1);
}

uint64_t hr__trace_lost(void)
{
	return hr__load_relaxed(&lost);
}

/* ---- finishing ---- */

/* The end of the file: after the last record of the last block. */
static uint64_t used_bytes(void)
{
	if (last_block_offset == 0) return header->header_size;
	if (last_block == NULL) return last_block_offset + file.block_bytes;
	return last_block_offset + sizeof(hr__trace_block) + hr__load_relaxed(&last_block->committed);
}

hr__trace_file_end hr__trace_file_finish(void)
{
	hr__lock_take(&hr__trace_lock);
	HR_ASSERT(header);
	uint64_t bytes = used_bytes();
	hr__trace_file_end end = { .lost = hr__trace_lost(), .limit = file.limit, .growth_error = file.error,
		                       .is_cut = hr__blockfile_is_cut(&file), .is_full = file.full };
	hr__store_relaxed(&header->lost, end.lost);
	if (!end.is_cut) {
		header->file_bytes = bytes;
		hr__compiler_barrier();
		header->complete = 1;
	}
	end.truncate_error = hr__blockfile_finish(&file, bytes);
	header = NULL;
	last_block = NULL;
	hr__lock_release(&hr__trace_lock);
	return end;
}

void hr__trace_file_abandon(void)
{
	hr__lock_init(&hr__trace_lock, HR__RANK_TRACE);
	hr__blockfile_abandon(&file);
	header = NULL;
	last_block = NULL;
}
