/* writer.c - appends events to the trace file that is being recorded.
 *
 * Each thread has a writer: a record in static storage with the block that the thread appends to and the values that the next
 * record is encoded relative to. An event is plain stores into the block and one release store of the block's committed length; no
 * lock, no system call. About once per 64 KiB a thread takes the next block under the trace lock.
 *
 * INVARIANTS
 *
 *  1. Only its owner touches a writer, except for `busy`. Ownership passes through the free list, under the trace lock.
 *  2. A writer's block may be touched only while its owner is inside an event (busy = 1) and, after setting busy, has seen
 *     hr__trace_on equal to the writer's generation.
 *  3. The bytes below a block's committed length never change and are whole records.
 *  4. numbers[id] != 0 only when the definition of that number is committed. So no committed event uses an undefined number, nor does
 *     the definition of a frame or stack.
 *  5. Within a lane, time never goes back.
 *
 * CLOSING WHILE OTHER THREADS WRITE
 *
 * hr__trace_close sets hr__trace_on to 0, passes hr__heavy_barrier and waits until no writer is busy. A thread that set busy before
 * that is waited for: its event is complete and in the file. A thread that sets busy later sees hr__trace_on = 0, which the pair of
 * barriers guarantees, and touches nothing. Then no thread can be accessing the mapping, and it is unmapped. The cost on the hot
 * path is two stores to a cache line that the thread owns anyway. Keeping the mapping until the next recording would save them, but
 * a thread that was preempted for long enough would then write into memory that is in use for something else.
 *
 * A thread that last wrote to an earlier recording detects this by the generation number, which is the value of hr__trace_on. */
#include <stdio.h>
#include <string.h>

#include "core/base/assert.h"
#include "core/base/checked.h"
#include "core/base/lock.h"
#include "core/base/names.h"
#include "core/base/status.h"
#include "core/os/guard.h"
#include "core/os/os.h"
#include "core/trace/blockfile.h"
#include "core/trace/format.h"
#include "core/trace/stacks.h"
#include "core/trace/warmer.h"

#define BLOCK_BYTES_MIN 4096u /* ample room for the longest definition */
#define BLOCK_BYTES_MAX (1u << 20)
#define TEXT_MAX 255u /* bytes of the names of devices, allocators and kinds; longer ones are cut */
#define PAYLOAD_MAX (9u * 3 + HR__NAME_LENGTH_MAX)
#define UNITS_PER_SECOND_MIN 125e6 /* a unit of the file's clock is 2^n ticks, the most that fit in 8 ns: saves bytes, keeps the order of events */

/* A generation that no recording has. Not 0, which is the value of hr__trace_on while nothing is recorded. */
#define UNATTACHED UINT32_MAX

_Static_assert(PAYLOAD_MAX >= 9 * 3 + 2 * TEXT_MAX && BLOCK_BYTES_MIN > 2 * PAYLOAD_MAX, "definitions fit");

typedef struct writer {
	/* Accessed by every event. */
	hr__atomic_u32 busy;    /* 1 while the owner is inside an event; see above */
	uint32_t generation;    /* the recording that it writes to; if it is an old one or UNATTACHED, the writer must attach first */
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
	bool stacks;    /* events may have stacks: kinds that can have one take the slow path (append_slowly) */

	/* Used when a block is taken. */
	uint32_t extent; /* the extent of the block, for hr__blockfile_give */
	uint32_t lane, thread;
	uint32_t block_generation; /* the recording that block, lane and sequence belong to */
	uint64_t sequence;         /* of the next block */
	struct writer *next_free;
} __attribute__((aligned(128))) writer;

enum { IDLE, OPENING, OPEN, CLOSING };

hr__atomic_u32 hr__trace_on; /* the generation of the recording; 0: none */

static hr__atomic_u32 state;      /* IDLE to CLOSING; makes open and close mutually exclusive */
static uint32_t last_generation;  /* accessed only while state is OPENING */

/* Written while OPENING, then constant, unless atomic. */
static uint64_t units_per_second;
static uint64_t start_ticks;
static uint32_t ticks_shift;
static hr__trace_header *header;
static hr__atomic_u64 lost;
static hr__atomic_u32 reached_limit; /* 1: the file reached its limit and recording has stopped; written under lock */
static char recorded_path[256]; /* for messages; truncated if necessary */

static hr__lock lock = HR__LOCK_INIT(HR__RANK_TRACE);

/* Guarded by lock. */
static hr__blockfile file;
static uint64_t last_block_offset;
static hr__trace_block *last_block; /* NULL when no longer mapped */
static uint32_t lane_count, thread_count;
static writer *free_writers;

/* Number in the file, plus 1, of each name, shape, frame and stack of the process; 0 when not defined there yet. Written under
 * lock. */
static hr__atomic_u32 name_numbers[HR__NAMES_MAX], shape_numbers[HR__SHAPES_MAX], frame_numbers[HR__FRAMES_MAX], stack_numbers[HR__STACKS_MAX];

static writer writers[HR__BLOCKFILE_HOLDERS]; /* untouched entries use no memory */
static hr__atomic_u32 writer_count;           /* written under lock */
static __thread writer *mine __attribute__((tls_model("initial-exec")));
static __thread bool expects_stacks __attribute__((tls_model("initial-exec"))); /* this thread called hr__trace_expect_stacks */

/* ---- blocks ---- */

/* Counts a lost event. [w] is NULL or busy; a busy writer ensures that the header is mapped. */
static __attribute__((cold)) void count_lost(const writer *w)
{
	if (hr__load_relaxed(&reached_limit)) return; /* the recording has ended, so the event is not missing from it */
	hr__fetch_add_relaxed(&lost, 1);
	if (w != NULL) hr__fetch_add_relaxed(&header->lost, 1);
}

static void begin_block(writer *w, const hr__blockfile_block *taken)
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
	w->limit = (uint8_t *)block + file.block_bytes - HR__EVENT_RECORD_MAX - HR__VARINT_SCRIBBLE;
	w->address = 0;
	w->allocator = w->stream = 0;
	w->dtype = HR_DTYPE_NONE;
	w->op = w->scope = w->tag = w->shape = 0;
	last_block = block;
	last_block_offset = taken->offset;
}

/* Gives back a block of [extent], under lock. hr__trace_close finds the end of the file by last_block, so last_block must not point
 * into memory that is about to be unmapped. */
static void give_block(uint32_t extent, hr__blockfile_extent *idle)
{
	HR_ASSERT(hr__lock_is_mine(&lock));
	hr__blockfile_give(&file, extent, idle);
	uint8_t *base = idle->base;
	if (base != NULL && (uint8_t *)last_block >= base && (uint8_t *)last_block < base + idle->bytes) last_block = NULL;
}

static void end_block(writer *w, hr__blockfile_extent *idle)
{
	idle->base = NULL;
	if (w->block != NULL) give_block(w->extent, idle);
	w->block = NULL;
}

/* Leaves the writer without room, so that its next event takes a new block. */
static void force_next_block(writer *w)
{
	w->limit = NULL;
	w->at = (uint8_t *)1;
}

/* Called when the file has reached its limit: all threads stop recording, and events cost no more than without a recording. The
 * file stays open until hr__trace_close. The flag is stored in the header now, because the process may be killed. Called under lock
 * by a busy writer, so the header is mapped. */
static void stop_at_limit(void)
{
	HR_ASSERT(hr__lock_is_mine(&lock) && header);
	header->optional |= HR__OPTIONAL_LIMITED;
	hr__store_relaxed(&reached_limit, 1);
	hr__store_relaxed(&hr__trace_on, 0);
}

/* Continues in a new block. Returns false if the file cannot grow: the writer then has no block and retries at its next event, at the
 * cost of a lock but no system call. */
static __attribute__((cold, noinline)) bool next_block(writer *w)
{
	hr__blockfile_block taken;
	hr__blockfile_extent idle;
	hr__lock_take(&lock);
	end_block(w, &idle);
	bool ok = hr__blockfile_take(&file, &taken);
	if (ok) begin_block(w, &taken);
	else force_next_block(w);
	if (file.full) stop_at_limit();
	hr__lock_release(&lock);
	hr__blockfile_unmap(&idle);
	if (!ok) return false;
	hr__guard_refresh();
	hr__warmer_wake();
	return true;
}

/* One step of the warmer: prefaults the next block that no thread has taken yet. Returns false when enough blocks are prefaulted. */
static bool warm_block(void)
{
	hr__blockfile_block cold;
	hr__blockfile_extent idle;
	hr__lock_take(&lock);
	bool found = hr__blockfile_next_cold(&file, &cold);
	uint32_t bytes = file.block_bytes;
	hr__lock_release(&lock);
	if (!found) return false;
	hr__os()->file_touch(cold.memory, bytes);
	hr__lock_take(&lock);
	give_block(cold.extent, &idle);
	hr__lock_release(&lock);
	hr__blockfile_unmap(&idle);
	return true;
}

static inline void commit(writer *w, uint8_t *end)
{
	w->at = end;
	hr__store_release(&w->block->committed, (uint32_t)(end - (uint8_t *)(w->block + 1)));
}

/* ---- attaching threads ---- */

static inline void leave(writer *w)
{
	hr__store_release(&w->busy, 0);
}

/* Gives the calling thread a writer: that of an ended thread, or a new one. NULL when all are in use. */
static __attribute__((cold, noinline)) writer *acquire_writer(void)
{
	hr__lock_take(&lock);
	uint32_t count = hr__load_relaxed(&writer_count);
	writer *w = free_writers;
	if (w != NULL) {
		free_writers = w->next_free;
	} else if (count < HR__BLOCKFILE_HOLDERS) {
		w = &writers[count];
		hr__store_seq_cst(&writer_count, count + 1);
	}
	hr__lock_release(&lock);
	if (w != NULL) w->generation = UNATTACHED;
	mine = w;
	return w;
}

static bool put_record(writer *w, unsigned kind, const uint8_t *payload, size_t length);

/* Units of the file's clock since the start; negative when this processor's counter is slightly behind that of the processor that
 * started the recording. */
static inline int64_t units_of(const writer *w, uint64_t ticks)
{
	return (int64_t)(ticks - w->start_ticks) >> w->shift;
}

/* Attaches a busy writer to recording [generation], for an event that happened at [ticks]. If the previous owner of the writer ended
 * during the same recording, the writer continues in the same block under a new thread number. Otherwise the event takes a block. */
static void attach(writer *w, uint32_t generation, uint64_t ticks)
{
	uint8_t payload[9 + HR__VARINT_SCRIBBLE];
	hr__guard_refresh();
	hr__lock_take(&lock);
	w->thread = thread_count;
	if (thread_count < HR__TRACE_THREADS_MAX - 1) thread_count++;
	hr__lock_release(&lock);
	w->generation = generation;
	w->stacks = expects_stacks || hr__stacks_depth() != 0;
	if (w->block_generation == generation) {
		if (w->block != NULL) put_record(w, HR__RECORD_THREAD, payload, (size_t)(hr__varint_put(payload, w->thread) - payload));
		return;
	}
	w->block_generation = generation;
	w->block = NULL;
	force_next_block(w);
	w->sequence = 0;
	w->start_ticks = start_ticks;
	w->shift = ticks_shift;
	w->time = units_of(w, ticks) > 0 ? (uint64_t)units_of(w, ticks) : 0;
}

/* Marks the writer busy. Returns whether it is attached to the current recording and may touch its block. It stays busy in either
 * case. */
static inline bool mark_busy(writer *w)
{
	hr__store_relaxed(&w->busy, 1);
	hr__light_barrier();
	return HR_LIKELY(hr__load_acquire(&hr__trace_on) == w->generation);
}

/* The calling thread's writer, busy and attached, for an event that happened at [ticks]; NULL when nothing is recorded. */
static writer *enter(uint64_t ticks)
{
	writer *w = mine != NULL ? mine : acquire_writer();
	if (w == NULL) {
		count_lost(NULL);
		return NULL;
	}
	if (mark_busy(w)) return w;
	uint32_t generation = hr__load_acquire(&hr__trace_on);
	if (generation == 0) {
		leave(w);
		return NULL;
	}
	attach(w, generation, ticks);
	return w;
}

void hr__trace_thread_exit(void)
{
	writer *w = mine;
	if (w == NULL) return;
	mine = NULL;
	hr__lock_take(&lock);
	w->next_free = free_writers;
	free_writers = w;
	hr__lock_release(&lock);
}

/* ---- definitions ---- */

/* Ensures that [bytes] fit into the writer's block. */
static bool ensure_room(writer *w, size_t bytes)
{
	size_t left = w->block == NULL ? 0 : (size_t)(w->limit + HR__EVENT_RECORD_MAX - w->at);
	return bytes <= left || next_block(w);
}

/* Bytes that put_record needs for a payload of [length] bytes: head, length, payload. */
static size_t record_bytes(size_t length)
{
	return 2 + 9 + length;
}

static bool put_record(writer *w, unsigned kind, const uint8_t *payload, size_t length)
{
	HR_ASSERT(length <= PAYLOAD_MAX);
	if (!ensure_room(w, record_bytes(length))) return false;
	uint8_t *at = w->at;
	*at++ = (uint8_t)kind;
	*at++ = 0;
	at = hr__varint_put(at, length);
	memcpy(at, payload, length);
	commit(w, at + length);
	return true;
}

static uint8_t *put_text(uint8_t *at, const char *text, size_t length)
{
	memcpy(at, text, length);
	return at + length;
}

static size_t name_payload(uint8_t *payload, uint32_t number, hr_name name)
{
	const char *text = hr_name_text(name);
	size_t length = strnlen(text, HR__NAME_LENGTH_MAX);
	return (size_t)(put_text(hr__varint_put(payload, number), text, length) - payload);
}

static size_t shape_payload(uint8_t *payload, uint32_t number, hr_shape shape)
{
	int64_t dims[HR_SHAPE_MAX_RANK];
	int rank = hr_shape_dims(shape, dims);
	uint8_t *at = hr__varint_put(hr__varint_put(payload, number), (uint64_t)rank);
	for (int i = 0; i < rank; i++) at = hr__varint_put(at, (uint64_t)dims[i]);
	return (size_t)(at - payload);
}

static uint64_t number_of(const hr__atomic_u32 *numbers, uint32_t id)
{
	uint32_t known = hr__load_relaxed(&numbers[id]);
	HR_ASSERT(known != 0);
	return known - 1;
}

static size_t frame_payload(uint8_t *payload, uint32_t number, uint32_t id)
{
	hr_frame frame = hr__frame_get(id);
	uint8_t *at = hr__varint_put(payload, number);
	at = hr__varint_put(at, number_of(name_numbers, frame.function));
	at = hr__varint_put(at, number_of(name_numbers, frame.file));
	at = hr__varint_put(at, frame.line);
	at = hr__varint_put(at, number_of(name_numbers, frame.module));
	at = hr__varint_put(at, frame.offset);
	return (size_t)(at - payload);
}

static size_t stack_payload(uint8_t *payload, uint32_t number, hr_stack stack)
{
	uint16_t frames[HR_STACK_DEPTH_MAX];
	size_t count = hr__stack_frames(stack, frames);
	uint8_t *at = hr__varint_put(hr__varint_put(payload, number), count);
	for (size_t i = 0; i < count; i++) at = hr__varint_put(at, number_of(frame_numbers, frames[i]));
	return (size_t)(at - payload);
}

_Static_assert(PAYLOAD_MAX >= 9 + 9 + 3 * HR_STACK_DEPTH_MAX, "stacks fit");

/* Ids of the process are mapped to numbers of the file; names, shapes, frames and stacks have a table each. */
typedef struct number_table {
	hr__atomic_u32 *numbers;
	uint32_t ids_max;
	uint32_t (*ids_known)(void);
	unsigned kind;
	size_t (*write)(uint8_t *payload, uint32_t number, uint32_t id);
	uint32_t count;   /* numbers assigned in this file; guarded by lock */
	uint32_t ids_end; /* numbers[] is 0 from this index on; guarded by lock */
} number_table;

static number_table names = { name_numbers, HR__NAMES_MAX, hr__names_count, HR__RECORD_NAME, name_payload, 0, 0 };
static number_table shapes = { shape_numbers, HR__SHAPES_MAX, hr__shapes_count, HR__RECORD_SHAPE, shape_payload, 0, 0 };
static number_table frames = { frame_numbers, HR__FRAMES_MAX, hr__frames_count, HR__RECORD_FRAME, frame_payload, 0, 0 };
static number_table stacks = { stack_numbers, HR__STACKS_MAX, hr__stacks_count, HR__RECORD_STACK, stack_payload, 0, 0 };

/* Gives [id] a number in the file. The lock is held from choosing the number to publishing it, so that numbers are dense and
 * defined before they are used. Room is made first, because taking a block acquires the lock. */
static bool define(writer *w, number_table *table, uint32_t id)
{
	uint8_t payload[PAYLOAD_MAX + HR__VARINT_SCRIBBLE];
	if (id >= table->ids_max || hr__load_acquire(&table->numbers[id]) != 0) return true;
	if (!ensure_room(w, record_bytes(PAYLOAD_MAX))) return false;
	hr__lock_take(&lock);
	if (hr__load_relaxed(&table->numbers[id]) == 0) {
		uint32_t number = HR_NAME_OTHER;
		if (id < table->ids_known() && table->count < HR__TRACE_IDS_MAX) {
			number = table->count++;
			put_record(w, table->kind, payload, table->write(payload, number, id));
		}
		if (table->ids_end <= id) table->ids_end = id + 1;
		hr__store_release(&table->numbers[id], number + 1);
	}
	hr__lock_release(&lock);
	return true;
}

static bool define_frame(writer *w, uint32_t id)
{
	hr_frame frame = hr__frame_get(id);
	return define(w, &names, frame.function) && define(w, &names, frame.file) && define(w, &names, frame.module) && define(w, &frames, id);
}

/* A stack is defined after its frames, and a frame after its names. */
static bool define_stack(writer *w, hr_stack stack)
{
	uint16_t ids[HR_STACK_DEPTH_MAX];
	if (stack >= HR__STACKS_MAX || hr__load_acquire(&stack_numbers[stack]) != 0) return true;
	size_t count = hr__stack_frames(stack, ids);
	for (size_t i = 0; i < count; i++) {
		if (hr__load_acquire(&frame_numbers[ids[i]]) == 0 && !define_frame(w, ids[i])) return false;
	}
	return define(w, &stacks, stack);
}

void hr__trace_define_device(uint32_t id, const char *name, uint64_t limit_bytes, uint64_t page_bytes)
{
	uint8_t payload[PAYLOAD_MAX + HR__VARINT_SCRIBBLE];
	writer *w = enter(hr__ticks());
	if (w == NULL) return;
	uint8_t *at = hr__varint_put(payload, id);
	at = hr__varint_put(at, limit_bytes);
	at = hr__varint_put(at, page_bytes);
	at = put_text(at, name, strnlen(name, TEXT_MAX));
	if (!put_record(w, HR__RECORD_DEVICE, payload, (size_t)(at - payload))) count_lost(w);
	leave(w);
}

void hr__trace_define_allocator(uint32_t id, const char *name, const char *kind, uint32_t device)
{
	uint8_t payload[PAYLOAD_MAX + HR__VARINT_SCRIBBLE];
	writer *w = enter(hr__ticks());
	if (w == NULL) return;
	size_t length = strnlen(name, TEXT_MAX);
	uint8_t *at = hr__varint_put(payload, id);
	at = hr__varint_put(at, device);
	at = hr__varint_put(at, length);
	at = put_text(at, name, length);
	at = put_text(at, kind, strnlen(kind, TEXT_MAX));
	if (!put_record(w, HR__RECORD_ALLOCATOR, payload, (size_t)(at - payload))) count_lost(w);
	leave(w);
}

void hr__trace_define_limit(uint32_t allocator, uint64_t bytes)
{
	uint8_t payload[PAYLOAD_MAX + HR__VARINT_SCRIBBLE];
	writer *w = enter(hr__ticks());
	if (w == NULL) return;
	uint8_t *at = hr__varint_put(hr__varint_put(payload, allocator), bytes);
	if (!put_record(w, HR__RECORD_LIMIT, payload, (size_t)(at - payload))) count_lost(w);
	leave(w);
}

/* ---- events ----
 *
 * Reading the processor's counter takes 25 cycles, more than everything else. It is started first, and only the last two bytes of
 * the record depend on it, so that the rest is done in the meantime. That is why the time is the last field, and why the time, the
 * address and the ids have fixed sizes in the common case: an unknown length delays everything after it. Whether a field is present
 * is added to the position instead of branched on, because changes of op and shape are unpredictable. */

/* Numbers in the file of an event's names, shape and stack. */
typedef struct numbers {
	uint32_t op, scope, tag, shape, stack;
} numbers;

/* An id that is out of range counts as "other". */
static inline uint32_t safe_id(uint32_t id)
{
	return id < HR__TRACE_IDS_MAX ? id : HR_NAME_OTHER;
}

_Static_assert(HR__NAMES_MAX == HR__TRACE_IDS_MAX && HR__SHAPES_MAX == HR__TRACE_IDS_MAX, "one check serves names and shapes");
_Static_assert(HR__FRAMES_MAX == HR__TRACE_IDS_MAX && HR__STACKS_MAX == HR__TRACE_IDS_MAX, "and frames and stacks");

/* Finds the numbers of the event's names and shape. Returns false when one of them has no number yet. */
static inline bool look_up(const hr__event *event, uint32_t fields, numbers *out)
{
	uint32_t op = 0, scope = 0, tag = 0, shape = 0;
	*out = (numbers){ 0 };
	if (!(fields & (HR__HAS_OP | HR__HAS_SCOPE | HR__HAS_TAG | HR__HAS_SHAPE))) return true;
	if (fields & HR__HAS_OP) op = event->op;
	if (fields & HR__HAS_SCOPE) scope = event->scope;
	if (fields & HR__HAS_TAG) tag = event->tag;
	if (fields & HR__HAS_SHAPE) shape = event->shape;
	if (HR_UNLIKELY((op | scope | tag | shape) >= HR__TRACE_IDS_MAX)) {
		op = safe_id(op);
		scope = safe_id(scope);
		tag = safe_id(tag);
		shape = safe_id(shape);
	}
	out->op = hr__load_acquire(&name_numbers[op]) - 1;
	out->scope = hr__load_acquire(&name_numbers[scope]) - 1;
	out->tag = hr__load_acquire(&name_numbers[tag]) - 1;
	out->shape = hr__load_acquire(&shape_numbers[shape]) - 1;
	return HR_LIKELY((int32_t)(out->op | out->scope | out->tag | out->shape) >= 0);
}

/* look_up for the stack, which only append_slowly writes. */
static inline bool look_up_stack(const hr__event *event, numbers *out)
{
	out->stack = hr__load_acquire(&stack_numbers[safe_id(event->stack)]) - 1;
	return (int32_t)out->stack >= 0;
}

static inline uint8_t *put_changed_context(writer *w, uint8_t *at, uint32_t allocator, uint32_t stream, uint32_t tag,
                                           hr_dtype dtype)
{
	uint8_t *changed = at++;
	*changed = 0;
	if (allocator != w->allocator) {
		*changed |= HR__CONTEXT_ALLOCATOR;
		at = hr__varint_put(at, w->allocator = allocator);
	}
	if (stream != w->stream) {
		*changed |= HR__CONTEXT_STREAM;
		at = hr__varint_put(at, w->stream = stream);
	}
	if (tag != w->tag) {
		*changed |= HR__CONTEXT_TAG;
		w->tag = tag;
		*at++ = (uint8_t)tag;
		*at++ = (uint8_t)(tag >> 8);
	}
	if (dtype != w->dtype) {
		*changed |= HR__CONTEXT_DTYPE;
		w->dtype = dtype;
		*at++ = (uint8_t)dtype;
	}
	return at;
}

static inline uint8_t *put_context(writer *w, uint8_t *at, const hr__event *event, uint32_t tag, uint32_t fields, uint32_t *head)
{
	uint32_t allocator = fields & HR__HAS_ALLOCATOR ? event->allocator : w->allocator;
	uint32_t stream = fields & HR__HAS_STREAM ? event->stream : w->stream;
	hr_dtype dtype = fields & HR__HAS_DTYPE ? event->dtype : w->dtype;
	if (!(fields & HR__HAS_TAG)) tag = w->tag;
	uint32_t changed = (allocator ^ w->allocator) | (stream ^ w->stream) | (tag ^ w->tag) | ((uint32_t)dtype ^ (uint32_t)w->dtype);
	if (HR_LIKELY(changed == 0)) return at;
	*head |= HR__TAG_CONTEXT;
	return put_changed_context(w, at, allocator, stream, tag, dtype);
}

static inline uint8_t *put_address(writer *w, uint8_t *at, const hr__event *event, uint32_t fields, uint32_t *head)
{
	int64_t difference = (int64_t)(event->address - w->address);
	int32_t near = (int32_t)(difference >> 8);
	w->address = event->address;
	if (HR_LIKELY((int64_t)near * 256 == difference)) {
		memcpy(at, &near, 4);
		at += 4;
	} else {
		*head |= HR__TAG_FAR;
		at = hr__varint_put(at, hr__zigzag((uint64_t)difference));
	}
	if (fields & HR__HAS_ADDRESS2) at = hr__varint_put(at, hr__zigzag(event->address2 - event->address));
	return at;
}

static inline uint8_t *put_size(uint8_t *at, const hr__event *event, uint32_t fields, uint32_t *head)
{
	uint64_t bytes = event->bytes, slack = fields & HR__HAS_REQUESTED ? bytes - event->requested : 0;
	if (HR_UNLIKELY(slack > 255)) {
		*head |= HR__SIZE_BOTH << HR__TAG_SIZE_SHIFT;
		return hr__varint_put(hr__varint_put(at, bytes), event->requested);
	}
	if (HR_LIKELY(bytes != 0)) {
		bool whole = (bytes & 255) == 0;
		*head |= (whole ? HR__SIZE_256 : HR__SIZE_BYTES) << HR__TAG_SIZE_SHIFT;
		at = hr__varint_put(at, whole ? bytes >> 8 : bytes);
	}
	if (fields & HR__HAS_REQUESTED) {
		*at = (uint8_t)slack;
		at += slack != 0;
		*head |= slack != 0 ? HR__TAG_SLACK : 0;
	}
	return at;
}

/* Writes op, scope or shape if it has changed. */
static inline uint8_t *put_number(uint8_t *at, uint32_t number, uint32_t *before, uint32_t flag, uint32_t *head)
{
	uint16_t low = (uint16_t)number;
	uint32_t changed = number != *before;
	memcpy(at, &low, 2);
	*before = number;
	*head |= changed ? flag : 0;
	return at + 2 * changed;
}

/* The counters of processors differ slightly; an event that would be earlier than the last one gets its time. */
static inline uint8_t *put_time(writer *w, uint8_t *at, uint64_t ticks, uint32_t *head)
{
	int64_t now = units_of(w, ticks);
	if (HR_UNLIKELY(now < (int64_t)w->time)) now = (int64_t)w->time;
	uint64_t difference = (uint64_t)now - w->time;
	uint16_t low = (uint16_t)difference;
	w->time = (uint64_t)now;
	memcpy(at, &low, 2);
	if (HR_LIKELY(difference == low)) return at + 2;
	*head |= HR__TAG_LATE;
	return hr__varint_put(at, difference);
}

/* Writes the stack as an extension; an event without a stack has none. */
static inline uint8_t *put_stack(uint8_t *at, uint32_t number, uint32_t *head)
{
	if (number == HR_STACK_NONE) return at;
	*head |= HR__TAG_EXTENSION;
	at = hr__varint_put(at, 3);
	*at++ = HR__EXTENSION_STACK;
	*at++ = (uint8_t)number;
	*at++ = (uint8_t)(number >> 8);
	return at;
}

/* Appends an event with the fields in [fields]. Needs a thread that is attached to the recording, names and a shape that are defined,
 * and a block with room; unless [slowly] is true, also an event without a stack. Otherwise writes nothing and returns false; the
 * caller must then call append_slowly, because the writer may be left busy. Inlined with constant kind and fields for the frequent
 * events. Calls nothing, so that everything stays in registers. */
__attribute__((always_inline)) static inline bool append(const hr__event *event, uint32_t kind, uint32_t fields, uint64_t ticks, bool slowly)
{
	numbers number;
	uint32_t head = kind;
	writer *w = mine;
	if (HR_UNLIKELY(w == NULL || !mark_busy(w))) return false;
	if (HR_UNLIKELY(!look_up(event, fields, &number) || w->at > w->limit)) return false;
	if (!slowly && (fields & HR__HAS_STACK) && HR_UNLIKELY(w->stacks || event->stack != HR_STACK_NONE)) return false;
	if (slowly && (fields & HR__HAS_STACK) && !look_up_stack(event, &number)) return false;
	uint8_t *at = w->at + 2;
	at = put_context(w, at, event, number.tag, fields, &head);
	if (fields & HR__HAS_ADDRESS) at = put_address(w, at, event, fields, &head);
	if (fields & HR__HAS_BYTES) at = put_size(at, event, fields, &head);
	if (fields & HR__HAS_OP) at = put_number(at, number.op, &w->op, HR__TAG_OP, &head);
	if (fields & HR__HAS_SCOPE) at = put_number(at, number.scope, &w->scope, HR__TAG_SCOPE, &head);
	if (fields & HR__HAS_SHAPE) at = put_number(at, number.shape, &w->shape, HR__TAG_SHAPE, &head);
	at = put_time(w, at, ticks, &head);
	if (slowly && (fields & HR__HAS_STACK)) at = put_stack(at, number.stack, &head);
	uint16_t head16 = (uint16_t)head;
	memcpy(w->at, &head16, 2);
	HR_ASSERT(at - w->at <= HR__EVENT_RECORD_MAX);
	commit(w, at);
	leave(w);
	return true;
}

/* Provides what the event needs: definitions, and a block with room for it. */
static bool prepare(writer *w, const hr__event *event, uint32_t fields)
{
	numbers number;
	bool ok = true;
	if (!look_up(event, fields, &number)) {
		if (fields & HR__HAS_OP) ok = ok && define(w, &names, event->op);
		if (fields & HR__HAS_SCOPE) ok = ok && define(w, &names, event->scope);
		if (fields & HR__HAS_TAG) ok = ok && define(w, &names, event->tag);
		if (fields & HR__HAS_SHAPE) ok = ok && define(w, &shapes, event->shape);
	}
	if (fields & HR__HAS_STACK) ok = ok && define_stack(w, event->stack);
	return ok && (w->at <= w->limit || next_block(w));
}

/* Prepares everything that append needs and tries again. append then fails only if the recording was closed meanwhile; such an
 * event is dropped. */
static __attribute__((cold, noinline)) void append_slowly(const hr__event *event, uint64_t ticks)
{
	uint32_t fields = hr__event_fields[event->kind];
	writer *w = enter(ticks);
	if (w == NULL) return;
	if (!prepare(w, event, fields)) count_lost(w);
	else if (append(event, event->kind, fields, ticks, true)) return;
	leave(w);
}

/* Captures the calling thread's stack. That can wait for the lock of the dynamic loader, and the thread that holds the lock may be
 * closing the recording and waiting for busy writers. So the calling thread's writer must not be busy meanwhile. */
static hr_stack stack_now(void)
{
	if (mine != NULL) leave(mine);
	return hr__trace_is_on() ? hr__stacks_now() : HR_STACK_NONE;
}

void hr__trace_event(const hr__event *event)
{
	uint64_t ticks = hr__ticks();
	HR_ASSERT(event->kind >= 1 && (unsigned)event->kind <= HR__EVENT_KINDS);
	if (HR_LIKELY(append(event, event->kind, hr__event_fields[event->kind], ticks, false))) return;
	hr__event whole = *event;
	if ((hr__event_fields[event->kind] & HR__HAS_STACK) && whole.stack == HR_STACK_NONE) whole.stack = stack_now();
	append_slowly(&whole, ticks);
}

/* The host is recorded as the default stream: tools that read a trace know only the device's streams, and a program that allocates
 * for the host and frees on the default stream would change the stream with every event. */
static inline hr_stream recorded_stream(hr_stream stream)
{
	return stream == HR_STREAM_HOST ? HR_STREAM_DEFAULT : stream;
}

static inline hr__event event_of(uint32_t allocator, const hr_request *request, uint64_t address, uint64_t bytes)
{
	return (hr__event){
		.kind = HR__EVENT_ALLOC,
		.allocator = allocator,
		.stream = recorded_stream(request->stream),
		.address = address,
		.bytes = bytes,
		.requested = request->bytes,
		.op = request->op,
		.scope = request->scope,
		.tag = request->tag,
		.shape = request->shape,
		.dtype = request->dtype,
	};
}

/* An event whose address is taken must be in memory, and storing it there costs as much as everything else. So the struct for
 * append_slowly is built here; in the fast path the compiler keeps the event in registers. */
static __attribute__((cold, noinline)) void alloc_slowly(uint32_t allocator, const hr_request *request, uint64_t address,
                                                         uint64_t bytes, uint64_t ticks)
{
	hr__event event = event_of(allocator, request, address, bytes);
	event.stack = stack_now();
	append_slowly(&event, ticks);
}

static __attribute__((cold, noinline)) void free_slowly(uint32_t allocator, uint64_t address, hr_stream stream, uint64_t ticks)
{
	hr__event event = { .kind = HR__EVENT_FREE, .allocator = allocator, .address = address, .stream = recorded_stream(stream) };
	append_slowly(&event, ticks);
}

void hr__trace_alloc(uint32_t allocator, const hr_request *request, uint64_t address, uint64_t bytes)
{
	uint64_t ticks = hr__ticks();
	const hr__event event = event_of(allocator, request, address, bytes);
	if (!append(&event, HR__EVENT_ALLOC, HR__FIELDS_ALLOC, ticks, false)) alloc_slowly(allocator, request, address, bytes, ticks);
}

void hr__trace_alloc_existing(uint32_t allocator, const hr_request *request, uint64_t address, uint64_t bytes)
{
	hr__event event = event_of(allocator, request, address, bytes);
	append_slowly(&event, hr__ticks());
}

void hr__trace_free(uint32_t allocator, uint64_t address, hr_stream stream)
{
	uint64_t ticks = hr__ticks();
	const hr__event event = { .allocator = allocator, .address = address, .stream = recorded_stream(stream) };
	if (!append(&event, HR__EVENT_FREE, HR__FIELDS_FREE, ticks, false)) free_slowly(allocator, address, stream, ticks);
}

/* ---- opening and closing ---- */

static void start_clock(void)
{
	double rate = hr__ticks_rate();
	ticks_shift = 0;
	while (rate / 2 >= UNITS_PER_SECOND_MIN) {
		rate /= 2;
		ticks_shift++;
	}
	units_per_second = rate < 1 ? 1 : (uint64_t)(rate + 0.5);
	start_ticks = hr__ticks();
}

/* Clears all numbers for a new file. Numbers 0 and 1 ("none" and "other") are the same in every file. */
static void reset_numbers(number_table *table)
{
	memset(table->numbers, 0, table->ids_end * sizeof(table->numbers[0]));
	for (uint32_t i = 0; i < 2; i++) hr__store_relaxed(&table->numbers[i], i + 1);
	table->count = table->ids_end = 2;
}

static void fill_header(size_t header_size)
{
	header->major = HR__TRACE_MAJOR;
	header->minor = HR__TRACE_MINOR;
	header->header_size = (uint32_t)header_size;
	header->block_size = file.block_bytes;
	header->byte_order = HR__TRACE_BYTE_ORDER;
	header->start_wall_ns = hr__os()->wall_clock_ns();
	header->start_ticks = start_ticks;
	header->units_per_second = units_per_second;
	header->ticks_shift = ticks_shift;
	header->process = (uint32_t)hr__os()->process_id();
	snprintf(header->writer, sizeof(header->writer), "headroom %s", hr_version());
	hr__compiler_barrier();
	memcpy(header->magic, HR__TRACE_MAGIC, 8);
}

static bool change_state(uint32_t from, uint32_t to)
{
	return hr__cas_acq_rel(&state, &from, to);
}

static int watch_forks(void)
{
	static hr__atomic_u32 watching;
	uint32_t no = 0;
	if (!hr__cas_acq_rel(&watching, &no, 1)) return 0;
	int error = hr__os_at_fork(hr__trace_forget);
	if (error != 0) hr__store_release(&watching, 0);
	return error;
}

static hr_status start(const char *path, uint32_t block_bytes, uint64_t limit, uint32_t stack_depth)
{
	/* With this header size, blocks begin at multiples of their size and of a page. The warmer needs whole pages. */
	size_t header_size = block_bytes > hr__os_page_size() ? block_bytes : hr__os_page_size();
	void *front;
	int error = watch_forks();
	if (error != 0) return hr__os_fail(error, "cannot register a fork handler for the recording");
	/* Measuring the clock takes milliseconds. It is done before the file exists, so that a reader never finds a file without a header. */
	start_clock();
	hr_status status = hr__blockfile_create(&file, path, header_size, block_bytes, limit, &front);
	if (status != HR_OK) return status;
	header = front;
	hr__store_relaxed(&lost, 0);
	hr__store_relaxed(&reached_limit, 0);
	last_block = NULL;
	last_block_offset = header_size;
	lane_count = thread_count = 0;
	snprintf(recorded_path, sizeof(recorded_path), "%s", path);
	reset_numbers(&names);
	reset_numbers(&shapes);
	reset_numbers(&frames);
	reset_numbers(&stacks);
	hr__stacks_start(stack_depth);
	fill_header(header_size);
	last_generation = last_generation + 1 < UNATTACHED ? last_generation + 1 : 1;
	hr__warmer_start(warm_block);
	return HR_OK;
}

static hr_status open_trace(const char *path, uint32_t block_bytes, uint64_t limit, uint32_t stack_depth)
{
	if (path == NULL || *path == 0) return hr__fail(HR_INVALID_ARGUMENT, "a trace needs the path of a new file");
	if (block_bytes < BLOCK_BYTES_MIN || block_bytes > BLOCK_BYTES_MAX || !hr__is_power_of_two(block_bytes)) {
		return hr__fail(HR_INVALID_ARGUMENT, "trace blocks of %u bytes: must be a power of two from %u to %u", block_bytes,
		                BLOCK_BYTES_MIN, BLOCK_BYTES_MAX);
	}
	if (!change_state(IDLE, OPENING)) {
		return hr__fail(HR_IN_USE, "a trace is being recorded already; stop it before starting %s", path);
	}
	hr_status status = start(path, block_bytes, limit, stack_depth);
	if (status == HR_OK) hr__store_release(&hr__trace_on, last_generation);
	hr__store_release(&state, status == HR_OK ? OPEN : IDLE);
	return status;
}

hr_status hr__trace_open_blocks(const char *path, uint32_t block_bytes)
{
	return open_trace(path, block_bytes, UINT64_MAX, 0);
}

hr_status hr__trace_open(const char *path)
{
	return hr__trace_open_blocks(path, HR__TRACE_BLOCK_BYTES);
}

hr_status hr__trace_open_limited(const char *path, uint64_t max_bytes, uint32_t stack_depth)
{
	HR_ASSERT(max_bytes == 0 || max_bytes >= HR__TRACE_LIMIT_MIN);
	return open_trace(path, HR__TRACE_BLOCK_BYTES, max_bytes ? max_bytes : UINT64_MAX, stack_depth);
}

bool hr__trace_is_open(void)
{
	return hr__load_acquire(&state) == OPEN;
}

/* Returns when no thread is inside an event and none can enter one. */
static void wait_for_writers(void)
{
	hr__store_relaxed(&hr__trace_on, 0);
	hr__heavy_barrier();
	uint32_t count = hr__load_seq_cst(&writer_count);
	for (uint32_t i = 0; i < count; i++) {
		for (unsigned attempt = 0; hr__load_acquire(&writers[i].busy) != 0; attempt++) hr__lock_wait(attempt);
	}
}

/* The end of the file: after the last record of the last block. */
static uint64_t used_bytes(void)
{
	if (lane_count == 0) return header->header_size;
	if (last_block == NULL) return last_block_offset + file.block_bytes;
	return last_block_offset + sizeof(hr__trace_block) + hr__load_relaxed(&last_block->committed);
}

hr_status hr__trace_close(void)
{
	if (!change_state(OPEN, CLOSING)) return hr__fail(HR_INVALID_ARGUMENT, "no trace is being recorded");
	wait_for_writers();
	hr__stacks_start(0);
	hr__warmer_stop();
	hr__lock_take(&lock);
	uint64_t missing = hr__load_relaxed(&lost), bytes = used_bytes();
	int growth_error = file.error;
	bool cut = hr__blockfile_is_cut(&file), full = file.full;
	uint64_t limit = file.limit;
	hr__store_relaxed(&header->lost, missing);
	if (!cut) {
		header->file_bytes = bytes;
		hr__compiler_barrier();
		header->complete = 1;
	}
	int error = hr__blockfile_finish(&file, bytes);
	header = NULL;
	last_block = NULL;
	hr__lock_release(&lock);
	hr__store_release(&state, IDLE);
	if (cut) return hr__fail(HR_IO, "the trace %s was shortened by another program while it was recorded; events in the part that was cut off, and all later ones, are missing", recorded_path);
	if (missing != 0) {
		return hr__fail(HR_IO, "%llu event%s missing from the trace %s: %s", (unsigned long long)missing, missing == 1 ? " is" : "s are", recorded_path,
		                growth_error != 0 ? hr__os_error(growth_error) : "too many threads");
	}
	if (full) {
		return hr__fail(HR_TRUNCATED, "the trace %s reached its limit of %llu bytes; later events are missing", recorded_path,
		                (unsigned long long)limit);
	}
	if (error != 0) return hr__os_fail(error, "cannot truncate the trace %s to its final size", recorded_path);
	return HR_OK;
}

void hr__trace_forget(void)
{
	/* In the child after fork. The parent's other threads do not exist here, and may have been in the middle of any operation. */
	uint32_t count = hr__load_relaxed(&writer_count);
	hr__store_relaxed(&hr__trace_on, 0);
	hr__lock_init(&lock, HR__RANK_TRACE);
	for (uint32_t i = 0; i < count; i++) {
		hr__store_relaxed(&writers[i].busy, 0);
		writers[i].block_generation = 0;
	}
	hr__store_relaxed(&writer_count, 0);
	free_writers = NULL;
	mine = NULL;
	hr__warmer_forget();
	hr__blockfile_abandon(&file);
	header = NULL;
	last_block = NULL;
	hr__stacks_start(0);
	hr__store_release(&state, IDLE);
}

void hr__trace_expect_stacks(void)
{
	expects_stacks = true;
	if (mine != NULL) mine->stacks = true;
}

uint64_t hr__trace_lost(void)
{
	return hr__load_relaxed(&lost);
}
