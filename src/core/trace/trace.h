/* trace.h - writing and reading trace files: events in a file that survives the process.
 *
 * The format is docs/trace-format.md; read that first. Each thread appends to a block of its own in a shared mapping of the file,
 * so writing an event needs no lock and no system call, and events that were written are in the file even after kill -9.
 *
 * Allocation and tensor events are emitted by `memory` and `lms`; op, use and step events by a runtime or a plug-in. Each event is
 * emitted once. */
#ifndef HR_TRACE_TRACE_H
#define HR_TRACE_TRACE_H

#include <stddef.h>

#include "core/base/assert.h"
#include "core/base/atomic.h"
#include "core/base/shared.h"
#include "headroom.h"
#include "headroom_record.h"

/* Kinds of events. The numbers are part of the file format. */
#define HR__EVENT_TABLE(X)                                                          \
	X(ALLOC, 1, "a block was allocated")                                            \
	X(FREE, 2, "a block was freed")                                                 \
	X(ALLOC_FAILED, 3, "a request was refused")                                     \
	X(MAP, 4, "memory was taken from the device")                                   \
	X(UNMAP, 5, "memory was given back to the device")                              \
	X(STITCH, 6, "free pages were mapped side by side")                             \
	X(OP_BEGIN, 7, "an op begins on this thread")                                   \
	X(OP_END, 8, "the op ends; carries its device time")                            \
	X(READ, 9, "the running op reads a block")                                      \
	X(WRITE, 10, "the running op writes a block")                                   \
	X(STEP, 11, "a step of the program begins")                                     \
	X(STEP_END, 12, "the step ends")                                                \
	X(SCOPE_PUSH, 13, "a name scope is entered")                                    \
	X(SCOPE_POP, 14, "a name scope is left")                                        \
	X(EVICT, 15, "a tensor leaves the device")                                      \
	X(RESTORE, 16, "a tensor returns to the device")                                \
	X(MOVE, 17, "defragmentation moved a block")                                    \
	X(MARK, 18, "a mark that the program made")

typedef enum hr__event_kind {
#define HR__EVENT_ENUM(name, number, text) HR__EVENT_##name = number,
	HR__EVENT_TABLE(HR__EVENT_ENUM)
#undef HR__EVENT_ENUM
} hr__event_kind;

/* The text of a MARK that the library emits when the program has waited for a plan of Large Model Support; its value is the wait in
 * ns. */
#define HR__MARK_PLAN "headroom.lms.plan"
/* The text of a MARK before the end of a step in which streams waited for restores; its value is their wait in ns. */
#define HR__MARK_STALL "headroom.lms.stall"

/* An event, with the fields of all kinds; docs/trace-format.md lists the fields of each kind. Unused fields are 0. */
typedef struct hr__event {
	hr__event_kind kind;
	uint32_t thread;     /* number of the writing thread within the file; set by the writer */
	uint64_t time_ns;    /* since the recording began; set by the writer */
	uint32_t allocator;  /* number of an allocator definition */
	hr_stream stream;
	uint64_t address;
	uint64_t address2;   /* MOVE: the destination; EVICT, RESTORE: place of the host copy, or hr__trace_dropped */
	uint64_t bytes;      /* size of the block; OP_END: device time in ns; STEP: number of the step */
	uint64_t requested;  /* bytes requested */
	hr_name op, scope, tag;
	hr_shape shape;
	hr_dtype dtype;
	hr_stack stack;      /* hr__trace_event fills it in if it is HR_STACK_NONE; see stacks.h */
} hr__event;

/* The place in EVICT and RESTORE of a tensor that is dropped or recomputed instead, and has no host copy. [number] tells it from other
 * tensors. */
static inline uint64_t hr__trace_dropped(uint32_t number)
{
	return UINT64_C(3) << 62 | number;
}
static inline bool hr__trace_is_dropped(uint64_t place)
{
	return place >> 62 == 3;
}

/* ---- writing ---- */

/* 0 while nothing is recorded; all that the hot path checks. */
HR__SHARED extern hr__atomic_u32 hr__trace_on;
static inline bool hr__trace_is_on(void)
{
	return HR_UNLIKELY(hr__load_relaxed(&hr__trace_on) != 0);
}

/* Creates the file and starts recording. HR_IN_USE, HR_IO, HR_NO_HOST_MEMORY, HR_INVALID_ARGUMENT if there is no path. */
hr_status hr__trace_open(const char *path);
/* As hr__trace_open, with another block size than HR__TRACE_BLOCK_BYTES: a power of two from 4 KiB to 1 MiB. For tests. */
#define HR__TRACE_BLOCK_BYTES 65536u
hr_status hr__trace_open_blocks(const char *path, uint32_t block_bytes);
/* As hr__trace_open, with a limit on the size of the file: 0 = none, otherwise at least HR__TRACE_LIMIT_MIN. At the limit,
 * hr__trace_is_on becomes false, and the file stays open. Call stacks of up to [stack_depth] frames are captured; 0 = none.
 * hr__stacks_prepare must have succeeded before. */
#define HR__TRACE_LIMIT_MIN (1u << 20)
hr_status hr__trace_open_limited(const char *path, uint64_t max_bytes, uint32_t stack_depth);
/* Whether a file is open and must be closed. */
bool hr__trace_is_open(void);
/* Ends the recording: flushes, and truncates the file to the bytes written. HR_IO when events were lost, for example because the
 * disk was full, or another process truncated the file. HR_TRUNCATED when the file reached its limit. HR_INVALID_ARGUMENT when
 * nothing is recorded. An event that another thread writes at the same time is either complete or dropped. */
hr_status hr__trace_close(void);
/* In the child after a fork: stops writing and leaves the parent's file unchanged. Called automatically once a trace was opened. */
void hr__trace_forget(void);
/* Called when the calling thread ends, so that another thread can continue in its block. Without this call each thread that ever
 * wrote an event costs a block of the file, and after 16,384 threads the events of new threads are lost. The thread may still write
 * events afterwards. */
void hr__trace_thread_exit(void);
/* Events lost since hr__trace_open. */
uint64_t hr__trace_lost(void);

/* The calling thread's events may have stacks from now on, also in recordings that capture none. */
void hr__trace_expect_stacks(void);

/* Define a device and an allocator, before events refer to them. The caller chooses the [id]s. */
void hr__trace_define_device(uint32_t id, const char *name, uint64_t limit_bytes, uint64_t page_bytes);
void hr__trace_define_allocator(uint32_t id, const char *name, const char *kind, uint32_t device);
void hr__trace_define_limit(uint32_t allocator, uint64_t bytes); /* by the thread that defined the allocator, after that */

/* Appends an event and fills in thread and time. Names, shapes and stacks are defined in the file when they first occur. */
HR__SHARED void hr__trace_event(const hr__event *event);

/* The two most frequent events, without building a struct. hr__trace_alloc may capture the stack of the calling thread (stacks.h), so
 * no lock may be held. About 11 ns, of which the clock takes 9.7; another 2 ns for the pages of the file. */
void hr__trace_alloc(uint32_t allocator, const hr_request *request, uint64_t address, uint64_t bytes);
/* hr__trace_alloc without a stack, for a block that the program does not allocate at this moment: one that existed before the recording,
 * or that the library moved. May be called with locks held. */
void hr__trace_alloc_existing(uint32_t allocator, const hr_request *request, uint64_t address, uint64_t bytes);
void hr__trace_free(uint32_t allocator, uint64_t address, hr_stream stream);

#endif
