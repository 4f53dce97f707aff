/* trace.h - the write side of observation: what happened, as events in a file that survives the process.
 *
 * The format is docs/trace-format.md; read that first. Each thread appends to a block of its own in a shared mapping of the file,
 * so writing an event takes no lock and no system call, and what is written is in the file even after kill -9.
 *
 * Events are emitted by `memory` and `lms`, and op, use and step events by a runtime or a plug-in; each thing once. */
#ifndef HR_TRACE_TRACE_H
#define HR_TRACE_TRACE_H

#include <stddef.h>

#include "base/assert.h"
#include "base/atomic.h"
#include "headroom.h"

/* What an event is. Numbers are part of the file format. */
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

/* The text of a MARK that the library makes: the program waited until now for a plan of Large Model Support, for as many ns as its value says. */
#define HR__MARK_PLAN "headroom.lms.plan"

/* One event, with every field that any kind has; docs/trace-format.md says which kind has which. Unused ones are 0. */
typedef struct hr__event {
	hr__event_kind kind;
	uint32_t thread;     /* number of the writing thread within the file; set by the writer */
	uint64_t time_ns;    /* since the recording began; set by the writer */
	uint32_t allocator;  /* number of an allocator definition */
	hr_stream stream;
	uint64_t address;
	uint64_t address2;   /* MOVE: where to */
	uint64_t bytes;      /* occupied; OP_END: device time in ns; STEP: number of the step */
	uint64_t requested;  /* asked for */
	hr_name op, scope, tag;
	hr_shape shape;
	hr_dtype dtype;
} hr__event;

/* ---- writing ---- */

/* 0 while nothing is recorded; the hot path's only question. */
extern hr__atomic_u32 hr__trace_on;
static inline bool hr__trace_is_on(void)
{
	return HR_UNLIKELY(hr__load_relaxed(&hr__trace_on) != 0);
}

/* Creates the file and starts. HR_IN_USE, HR_IO, HR_NO_HOST_MEMORY, HR_INVALID_ARGUMENT for no path. */
hr_status hr__trace_open(const char *path);
/* The same with blocks of another size than HR__TRACE_BLOCK_BYTES: a power of two from 4 KiB to 1 MiB. For tests. */
#define HR__TRACE_BLOCK_BYTES 65536u
hr_status hr__trace_open_blocks(const char *path, uint32_t block_bytes);
/* The same with a limit on the size of the file; 0: none, otherwise at least HR__TRACE_LIMIT_MIN. At the limit, hr__trace_is_on becomes false, and the
 * file stays open. */
#define HR__TRACE_LIMIT_MIN (1u << 20)
hr_status hr__trace_open_limited(const char *path, uint64_t max_bytes);
/* Whether there is something to close. */
bool hr__trace_is_open(void);
/* Ends: flushes, cuts the file to what was written. HR_IO when events were lost since the disk was full.
 * HR_TRUNCATED when the file reached its limit. HR_INVALID_ARGUMENT when
 * nothing is recorded. No other thread may be writing events that matter; ones that do race are dropped whole. */
hr_status hr__trace_close(void);
/* After fork, in the child: stop writing, leave the parent's file alone. Runs by itself once a trace was opened. */
void hr__trace_forget(void);
/* The calling thread ends: another one may go on in its block. To be called by whoever learns of the end of threads; without it
 * each thread that ever wrote an event costs a block of the file, and after 16,384 of them events of new threads are lost. The
 * thread may still write events afterwards. */
void hr__trace_thread_exit(void);
/* Events that could not be written since hr__trace_open. */
uint64_t hr__trace_lost(void);

/* Defines a device and an allocator, before events name them. [id]s are the caller's. */
void hr__trace_define_device(uint32_t id, const char *name, uint64_t limit_bytes, uint64_t page_bytes);
void hr__trace_define_allocator(uint32_t id, const char *name, const char *kind, uint32_t device);
void hr__trace_define_limit(uint32_t allocator, uint64_t bytes); /* by the thread that defined it, afterwards */

/* Appends an event, with thread and time filled in. Names and shapes that it uses are defined in the file when they first occur. */
void hr__trace_event(const hr__event *event);

/* The two frequent ones, without building a struct. About 11 ns, of which the clock takes 9.7, and 2 ns for the pages of the file. */
void hr__trace_alloc(uint32_t allocator, const hr_request *request, uint64_t address, uint64_t bytes);
void hr__trace_free(uint32_t allocator, uint64_t address, hr_stream stream);

/* ---- reading: safe on any bytes ---- */

typedef struct hr__trace_reader hr__trace_reader;

typedef struct hr__trace_device {
	uint32_t id;
	const char *name;
	uint64_t limit_bytes, page_bytes;
} hr__trace_device;

typedef struct hr__trace_allocator {
	uint32_t id, device;
	const char *name, *kind;
	uint64_t limit_bytes; /* 0 = not told */
} hr__trace_allocator;

typedef struct hr__trace_summary {
	uint64_t start_wall_ns;
	uint64_t events, threads, blocks; /* thread numbers are below threads */
	uint64_t record_bytes;            /* that blocks hold, without what is not used of them */
	bool complete;           /* false: the writer was killed; everything before that is here */
	uint64_t lost;           /* events the writer could not write */
	bool limited;            /* the recording ended when the file had reached its limit of size */
	const hr__trace_device *devices;
	size_t device_count;
	const hr__trace_allocator *allocators;
	size_t allocator_count;
} hr__trace_summary;

/* Opens a trace; reads and checks all of it once. HR_IO, HR_BAD_FORMAT (the message says at which byte), HR_TRUNCATED (it ends
 * inside its header; a file that ends later is read as far as it goes, with complete = false), HR_TOO_NEW, HR_NO_HOST_MEMORY.
 * One that becomes shorter meanwhile, as when its writer stops, ends where it ends then. Memory used is in proportion to names, threads
 * and blocks, never to what a length field claims: one block while it is opened, then at most 64 KiB for each lane that is being read. */
hr_status hr__trace_reader_open(const char *path, hr__trace_reader **out);
/* The same of a file of [size] bytes that is open already; takes [fd] over, also when it fails. */
hr_status hr__trace_reader_open_fd(int fd, uint64_t size, hr__trace_reader **out);
/* The same over bytes in memory, which must outlive the reader. */
hr_status hr__trace_reader_open_memory(const void *bytes, size_t size, hr__trace_reader **out);
const hr__trace_summary *hr__trace_reader_summary(const hr__trace_reader *reader);
/* The next event of all threads in order of time. HR_NOT_READY at the end. Names and shapes are this process's. HR_IO,
 * HR_BAD_FORMAT (somebody changed the file since it was opened) and HR_NO_HOST_MEMORY end the reading too. */
hr_status hr__trace_reader_next(hr__trace_reader *reader, hr__event *out);
void hr__trace_reader_close(hr__trace_reader *reader);

#endif
