/* tape.h - a recorded program in memory: every allocation and free in order, whatever file it came from.
 *
 * Ids, pointers, streams and threads of the file become small dense numbers while it is read, so that what runs a tape needs arrays
 * only. An importer (import.h) feeds events in the order of the file. What is wrong with them is either an error or, in files that
 * may begin in the middle of a run, counted and skipped; hr__tape_notes says it in words.
 *
 * A tape may have a use tape (uses.h) instead of events: figures such as the peak are the same, and each event goes there.
 *
 * Memory: 16 bytes per event, 8 per allocation and at most 64 per live block, for at most HR__TAPE_EVENTS_MAX events. */
#ifndef HR_CLI_TAPE_H
#define HR_CLI_TAPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "headroom.h"
#include "id_map.h"
#include "uses.h"

#define HR__TAPE_EVENTS_MAX 100000000u
#define HR__TAPE_LIVE_MAX (UINT64_C(1) << 46) /* 64 TiB: the most memory that a simulated device has */
#define HR__TAPE_NUMBERS_MAX 65535u           /* different streams, and different threads */

typedef struct hr__tape_event {
	uint64_t bytes;  /* asked for; 0: a free */
	uint32_t block;   /* number of the block: blocks are numbered from 0 as they are allocated */
	uint16_t stream;  /* numbered from 0 as they first occur */
	uint16_t thread;
} hr__tape_event;

typedef enum hr__tape_format { HR__TAPE_CSV = 1, HR__TAPE_RMM, HR__TAPE_TORCH, HR__TAPE_HEADROOM } hr__tape_format;

typedef struct hr__tape {
	hr__tape_format format;
	bool partial; /* the recording may have begun in the middle of a run: odd events are skipped, not errors */
	bool gzip;

	hr__tape_event *events; /* NULL with a use tape */
	size_t count, capacity;
	uint64_t allocs, frees;
	uint32_t streams, threads; /* how many different ones */
	uint32_t stream_zero;      /* number of the stream that the file calls 0; UINT32_MAX when there is none */
	uint64_t live_bytes, live_blocks;
	uint64_t peak_bytes;
	size_t peak_event; /* index of the first event after which peak_bytes are live */

	/* what was not taken as it came */
	uint64_t uses;          /* use events and the like, which replaying does not need */
	uint64_t unknown_frees; /* skipped: of blocks from before the recording began */
	uint64_t implied_frees; /* added: the address was allocated again while it was live */
	uint64_t empty_allocs;  /* skipped: of 0 bytes */
	uint64_t failed_allocs; /* skipped: requests that were refused when it was recorded */
	uint64_t moves;         /* evictions, returns and moves of tensors when it was recorded */
	uint64_t joined;        /* returns and moves that were joined to the life of their tensor: they are no allocations here */
	uint64_t lost;          /* events that the recorder could not write */
	bool unfinished;        /* the recorder was killed */
	uint32_t devices;       /* that the file has events of */
	int64_t device_index;   /* the one that was taken; -1 when the file does not tell them apart */
	uint64_t page_bytes;    /* of that device, as the file has it; 0: not known */

	/* while reading */
	hr__uses *use_tape; /* NULL: use events are counted only */
	hr__id_map blocks_by_id, streams_by_id, threads_by_id;
	uint64_t *sizes; /* of each block */
	size_t sizes_capacity;
} hr__tape;

void hr__tape_init(hr__tape *tape, hr__tape_format format);
/* Gives the events back; figures such as allocs and peak_bytes stay readable. */
void hr__tape_free(hr__tape *tape);

/* Appends an allocation. [bytes] 0 is an error, or skipped when partial. HR_BAD_FORMAT with a message that does not name the
 * file. */
hr_status hr__tape_alloc(hr__tape *tape, hr__tape_id id, uint64_t bytes, uint64_t stream, uint64_t thread);

/* Appends a free. [bytes] is checked against the allocation unless it is 0. */
hr_status hr__tape_release(hr__tape *tape, hr__tape_id id, uint64_t bytes, uint64_t stream, uint64_t thread);

/* Use events: uses.h says what they mean. Without a use tape they are counted and otherwise left alone. */
hr_status hr__tape_step(hr__tape *tape, uint64_t number);
hr_status hr__tape_op_begin(hr__tape *tape, uint64_t id, hr_name name, uint64_t thread);
hr_status hr__tape_op_end(hr__tape *tape, uint64_t id, uint64_t ns, uint64_t thread);
/* [bytes] is checked against the allocation unless it is 0, or the tape is partial. */
hr_status hr__tape_access(hr__tape *tape, hr__tape_id id, uint64_t bytes, bool write, uint64_t thread);

/* In this step tensors moved, or requests were refused: it does not show the program as it runs with enough memory. */
void hr__tape_hindered(hr__tape *tape);

/* The file ended: drops what was needed for reading only. A tape without a single allocation is HR_BAD_FORMAT. */
hr_status hr__tape_finish(hr__tape *tape);

/* One line of text for each thing that was skipped or odd, written to [out] with a final 0; returns the length. */
size_t hr__tape_notes(const hr__tape *tape, char *out, size_t capacity);

/* "CSV", "RMM log", ... */
const char *hr__tape_format_name(hr__tape_format format);

/* hr_shutdown after playing a trace: what the trace had not freed at its end is no mistake, and a message that was there before stays. */
hr_status hr__shut_down(void);

#endif
