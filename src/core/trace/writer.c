/* writer.c - see writer.h. */
#include "core/trace/writer.h"

#include <string.h>

#include "core/os/guard.h"
#include "core/trace/stacks.h"
#include "core/trace/trace_file.h"
#include "core/trace/warmer.h"

/* A generation that no recording has. Not 0, which is the value of hr__trace_on while nothing is recorded. */
#define UNATTACHED UINT32_MAX

HR__HOT_DATA hr__atomic_u32 hr__trace_on; /* the generation of the recording; 0: none */
__thread hr__writer *hr__writer_mine __attribute__((tls_model("initial-exec")));

static __thread bool expects_stacks __attribute__((tls_model("initial-exec"))); /* this thread called hr__trace_expect_stacks */
static hr__writer writers[HR__BLOCKFILE_HOLDERS]; /* untouched entries use no memory */
static hr__atomic_u32 writer_count;               /* written under the trace lock */
static uint32_t last_generation;                  /* accessed only by hr__writers_start */

/* Guarded by the trace lock. */
static uint32_t lane_count, thread_count;
static hr__writer *free_writers;

/* ---- blocks ---- */

static void begin_block(hr__writer *w, const hr__blockfile_block *taken)
{
	hr__trace_block *block = taken->memory;
	if (w->sequence == 0) w->lane = lane_count++;
	block->type = HR__BLOCK_RECORDS;
	block->lane = w->lane;
	block->thread = w->thread;
	block->sequence = w->sequence++;
	block->first_time = w->time;
	/* Last: if the process is killed before this, the block reads as unused. */
	hr__store_release(&block->magic, HR__TRACE_BLOCK_MAGIC);
	w->block = block;
	w->extent = taken->extent;
	w->at = (uint8_t *)(block + 1);
	w->limit = (uint8_t *)block + taken->bytes - HR__EVENT_RECORD_MAX - HR__VARINT_SCRIBBLE;
	w->address = 0;
	w->allocator = w->stream = 0;
	w->dtype = HR_DTYPE_NONE;
	w->op = w->scope = w->tag = w->shape = 0;
}

static void end_block(hr__writer *w, hr__blockfile_extent *idle)
{
	idle->base = NULL;
	if (w->block != NULL) hr__trace_file_give(w->extent, idle);
	w->block = NULL;
}

/* Leaves the writer without room, so that its next event takes a new block. */
static void force_next_block(hr__writer *w)
{
	w->limit = NULL;
	w->at = (uint8_t *)1;
}

/* Where the file has reached its limit, all threads stop recording, and events cost no more than without a recording. The file stays open
 * until hr__trace_close. */
__attribute__((cold, noinline)) bool hr__writer_next_block(hr__writer *w)
{
	hr__blockfile_block taken;
	hr__blockfile_extent idle;
	HR_ASSERT(hr__load_relaxed(&w->busy));
	hr__lock_take(&hr__trace_lock);
	end_block(w, &idle);
	bool ok = hr__trace_file_take(&taken);
	if (ok) begin_block(w, &taken);
	else force_next_block(w);
	if (hr__trace_file_reached_limit()) hr__store_relaxed(&hr__trace_on, 0);
	hr__lock_release(&hr__trace_lock);
	hr__blockfile_unmap(&idle);
	if (!ok) return false;
	hr__guard_refresh();
	hr__warmer_wake();
	return true;
}

bool hr__writer_ensure_room(hr__writer *w, size_t length)
{
	size_t bytes = 2 + 9 + length; /* head, length, payload */
	size_t left = w->block == NULL ? 0 : (size_t)(w->limit + HR__EVENT_RECORD_MAX - w->at);
	return bytes <= left || hr__writer_next_block(w);
}

bool hr__writer_put_record(hr__writer *w, unsigned kind, const uint8_t *payload, size_t length)
{
	HR_ASSERT(length <= HR__RECORD_PAYLOAD_MAX);
	if (!hr__writer_ensure_room(w, length)) return false;
	uint8_t *at = w->at;
	*at++ = (uint8_t)kind;
	*at++ = 0;
	at = hr__varint_put(at, length);
	memcpy(at, payload, length);
	hr__writer_commit(w, at + length);
	return true;
}

/* ---- attaching threads ---- */

/* Gives the calling thread a writer: that of an ended thread, or a new one. NULL when all are in use. */
static __attribute__((cold, noinline)) hr__writer *acquire_writer(void)
{
	hr__lock_take(&hr__trace_lock);
	uint32_t count = hr__load_relaxed(&writer_count);
	hr__writer *w = free_writers;
	if (w != NULL) {
		free_writers = w->next_free;
	} else if (count < HR__BLOCKFILE_HOLDERS) {
		w = &writers[count];
		hr__store_seq_cst(&writer_count, count + 1);
	}
	hr__lock_release(&hr__trace_lock);
	if (w != NULL) w->generation = UNATTACHED;
	hr__writer_mine = w;
	return w;
}

/* Attaches a busy writer to recording [generation], for an event that happened at [ticks]. If the previous owner of the writer ended
 * during the same recording, the writer continues in the same block under a new thread number. Otherwise the event takes a block. */
static void attach(hr__writer *w, uint32_t generation, uint64_t ticks)
{
	uint8_t payload[9 + HR__VARINT_SCRIBBLE];
	HR_ASSERT(hr__load_relaxed(&w->busy));
	hr__guard_refresh();
	hr__lock_take(&hr__trace_lock);
	w->thread = thread_count;
	if (thread_count < HR__TRACE_THREADS_MAX - 1) thread_count++;
	hr__lock_release(&hr__trace_lock);
	w->generation = generation;
	w->stacks = expects_stacks || hr__stacks_depth() != 0;
	if (w->block_generation == generation) {
		if (w->block != NULL) hr__writer_put_record(w, HR__RECORD_THREAD, payload, (size_t)(hr__varint_put(payload, w->thread) - payload));
		return;
	}
	const hr__trace_clock *clock = hr__trace_file_clock();
	w->block_generation = generation;
	w->block = NULL;
	force_next_block(w);
	w->sequence = 0;
	w->start_ticks = clock->start_ticks;
	w->shift = clock->shift;
	w->time = hr__writer_units(w, ticks) > 0 ? (uint64_t)hr__writer_units(w, ticks) : 0;
}

hr__writer *hr__writer_enter(uint64_t ticks)
{
	hr__writer *w = hr__writer_mine != NULL ? hr__writer_mine : acquire_writer();
	if (w == NULL) {
		hr__trace_file_count_lost(false);
		return NULL;
	}
	if (hr__writer_mark_busy(w)) return w;
	uint32_t generation = hr__load_acquire(&hr__trace_on);
	if (generation == 0) {
		hr__writer_leave(w);
		return NULL;
	}
	attach(w, generation, ticks);
	return w;
}

void hr__trace_thread_exit(void)
{
	hr__writer *w = hr__writer_mine;
	if (w == NULL) return;
	hr__writer_mine = NULL;
	hr__lock_take(&hr__trace_lock);
	w->next_free = free_writers;
	free_writers = w;
	hr__lock_release(&hr__trace_lock);
}

void hr__trace_expect_stacks(void)
{
	expects_stacks = true;
	if (hr__writer_mine != NULL) hr__writer_mine->stacks = true;
}

/* ---- starting and stopping ---- */

void hr__writers_start(void)
{
	HR_ASSERT(hr__load_relaxed(&hr__trace_on) == 0);
	lane_count = thread_count = 0;
	last_generation = last_generation + 1 < UNATTACHED ? last_generation + 1 : 1;
	hr__store_release(&hr__trace_on, last_generation);
}

void hr__writers_stop(void)
{
	hr__store_relaxed(&hr__trace_on, 0);
	hr__heavy_barrier();
	uint32_t count = hr__load_seq_cst(&writer_count);
	for (uint32_t i = 0; i < count; i++) {
		for (unsigned attempt = 0; hr__load_acquire(&writers[i].busy) != 0; attempt++) hr__lock_wait(attempt);
	}
}

void hr__writers_forget(void)
{
	uint32_t count = hr__load_relaxed(&writer_count);
	hr__store_relaxed(&hr__trace_on, 0);
	for (uint32_t i = 0; i < count; i++) {
		hr__store_relaxed(&writers[i].busy, 0);
		writers[i].block_generation = 0;
	}
	hr__store_relaxed(&writer_count, 0);
	free_writers = NULL;
	hr__writer_mine = NULL;
}
