/* writer.h - the writers of a recording's threads: each appends records to a block of its own.
 *
 * A writer is a record in static storage with the block that its thread appends to and the values that the next record is encoded
 * relative to. A record is plain stores into the block and one release store of the block's committed length; no lock, no system call.
 * About once per 64 KiB a thread takes the next block under the trace lock.
 *
 * INVARIANTS
 *
 *  1. Only its owner touches a writer, except for `busy`. Ownership passes through the free list, under the trace lock.
 *  2. A writer's block may be touched only while its owner is inside an event (busy = 1) and, after setting busy, has seen
 *     hr__trace_on equal to the writer's generation.
 *  3. The bytes below a block's committed length never change and are whole records.
 *  4. Within a lane, time never goes back.
 *
 * CLOSING WHILE OTHER THREADS WRITE
 *
 * hr__writers_stop sets hr__trace_on to 0, passes hr__heavy_barrier and waits until no writer is busy. A thread that set busy before
 * that is waited for: its event is complete and in the file. A thread that sets busy later sees hr__trace_on = 0, which the pair of
 * barriers guarantees, and touches nothing. Then no thread can be accessing the mapping, and it is unmapped. The cost on the hot
 * path is two stores to a cache line that the thread owns anyway. Keeping the mapping until the next recording would save them, but
 * a thread that was preempted for long enough would then write into memory that is in use for something else.
 *
 * A thread that last wrote to an earlier recording detects this by the generation number, which is the value of hr__trace_on. */
#ifndef HR_TRACE_WRITER_H
#define HR_TRACE_WRITER_H

#include "core/base/assert.h"
#include "core/base/atomic.h"
#include "core/base/names.h"
#include "core/os/os.h"
#include "core/trace/format.h"
#include "core/trace/trace.h"

/* The longest payload of a record that is not an event: a name, or a frame, device or allocator with its numbers. */
#define HR__RECORD_PAYLOAD_MAX (9u * 3 + HR__NAME_LENGTH_MAX)

typedef struct hr__writer {
	/* Accessed by every event. */
	hr__atomic_u32 busy;    /* 1 while the owner is inside an event; see above */
	uint32_t generation;    /* the recording that it writes to; another one than hr__trace_on: the writer must attach first */
	uint8_t *at;            /* position of the next record */
	uint8_t *limit;         /* an event fits when at <= limit */
	hr__trace_block *block; /* NULL: none */
	uint64_t start_ticks;   /* of the recording */
	uint64_t time;          /* of the last event, in units since the start */
	uint64_t address;       /* address to dtype: values that the next record is encoded relative to */
	uint32_t allocator, stream;
	uint32_t op, scope, tag, shape; /* numbers of the file */
	hr_dtype dtype;
	uint32_t shift; /* ticks to units */
	bool stacks;    /* events may have stacks: kinds that can have one take the slow path of events.c */

	/* Used when a block is taken. */
	uint32_t extent; /* the extent of the block, for hr__trace_file_give */
	uint32_t lane, thread;
	uint32_t block_generation; /* the recording that block, lane and sequence belong to */
	uint64_t sequence;         /* of the next block */
	struct hr__writer *next_free;
} __attribute__((aligned(128))) hr__writer;

/* The calling thread's writer. NULL: it has none yet. */
extern __thread hr__writer *hr__writer_mine __attribute__((tls_model("initial-exec")));

/* ---- inside an event ---- */

/* Marks the writer busy. Returns whether it is attached to the current recording and may touch its block. It stays busy in either
 * case. */
static inline bool hr__writer_mark_busy(hr__writer *w)
{
	hr__store_relaxed(&w->busy, 1);
	hr__light_barrier();
	return HR_LIKELY(hr__load_acquire(&hr__trace_on) == w->generation);
}

/* The calling thread's writer, busy and attached, for an event that happened at [ticks]; NULL when nothing is recorded. */
hr__writer *hr__writer_enter(uint64_t ticks);

static inline void hr__writer_leave(hr__writer *w)
{
	hr__store_release(&w->busy, 0);
}

/* Units of the file's clock since the start; negative when this processor's counter is slightly behind that of the processor that
 * started the recording. */
static inline int64_t hr__writer_units(const hr__writer *w, uint64_t ticks)
{
	return (int64_t)(ticks - w->start_ticks) >> w->shift;
}

/* Continues in a new block. Returns false if the file cannot grow: the writer then has no block and retries at its next event, at the
 * cost of a lock but no system call. */
bool hr__writer_next_block(hr__writer *w);

/* Adds the bytes up to [end] to the block: whole records. */
static inline void hr__writer_commit(hr__writer *w, uint8_t *end)
{
	w->at = end;
	hr__store_release(&w->block->committed, (uint32_t)(end - (uint8_t *)(w->block + 1)));
}

/* Ensures that a record that is not an event, with a payload of [length] bytes, fits into the writer's block. False as in
 * hr__writer_next_block. */
bool hr__writer_ensure_room(hr__writer *w, size_t length);

/* Appends a record that is not an event. Takes a new block if it does not fit; false as in hr__writer_next_block. */
bool hr__writer_put_record(hr__writer *w, unsigned kind, const uint8_t *payload, size_t length);

/* ---- starting and stopping ---- */

/* Starts a recording in the trace file: from now on events are written. */
void hr__writers_start(void);

/* Returns when no thread is inside an event and none can enter one. */
void hr__writers_stop(void);

/* In the child of a fork, in which the owners of the other writers do not exist. */
void hr__writers_forget(void);

#endif
