/* tape.h - a recorded program in memory: every allocation and free in order, independent of the file format.
 *
 * Ids, pointers, streams and threads of the file are mapped to small dense numbers while it is read, so that replaying a tape needs
 * only arrays. An importer (import.h) adds events in the order of the file. Inconsistent events are an error or, in formats whose
 * recordings may start in the middle of a run, skipped and counted; hr__tape_notes describes them in words.
 *
 * A tape may have a use tape (uses.h) instead of events. Figures such as the peak are the same, and each event is passed on to it.
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
#define HR__TAPE_LIVE_MAX (UINT64_C(1) << 46) /* 64 TiB: maximum memory of a simulated device */
#define HR__TAPE_NUMBERS_MAX 65535u           /* of different streams, and of different threads */

typedef struct hr__tape_event {
	uint64_t bytes;  /* requested; 0: a free */
	uint32_t block;   /* blocks are numbered from 0 in order of allocation */
	uint16_t stream;  /* streams are numbered from 0 in order of their first event */
	uint16_t thread;
} hr__tape_event;

typedef enum hr__tape_format { HR__TAPE_CSV = 1, HR__TAPE_RMM, HR__TAPE_TORCH, HR__TAPE_HEADROOM } hr__tape_format;

typedef struct hr__tape {
	hr__tape_format format;
	bool partial; /* the recording may have started in the middle of a run: inconsistent events are skipped, not errors */
	bool gzip;

	hr__tape_event *events; /* NULL if there is a use tape */
	size_t count, capacity;
	uint64_t allocs, frees;
	uint32_t streams, threads; /* number of different ones */
	uint32_t stream_zero;      /* number of the stream that the file calls 0; UINT32_MAX if there is none */
	uint64_t live_bytes, live_blocks;
	uint64_t peak_bytes;
	size_t peak_event; /* index of the first event after which peak_bytes are live */

	/* events that were skipped or changed */
	uint64_t uses;          /* use events and the like, which replaying does not need */
	uint64_t unknown_frees; /* skipped: of blocks allocated before the recording began */
	uint64_t implied_frees; /* added: the address was allocated again while it was live */
	uint64_t empty_allocs;  /* skipped: of 0 bytes */
	uint64_t failed_allocs; /* skipped: refused when recorded */
	uint64_t moves;         /* recorded evictions, restores and moves of tensors */
	uint64_t joined;        /* restores and moves that were joined to the life of their tensor: not allocations here */
	uint64_t lost;          /* events that the recorder could not write */
	bool unfinished;        /* the recorder was killed */
	uint32_t devices;       /* number of devices with events in the file */
	int64_t device_index;   /* the selected one; -1 if the file does not distinguish devices */
	uint64_t page_bytes;    /* of that device, from the file; 0: unknown */

	/* while reading */
	hr__uses *use_tape; /* NULL: use events are only counted */
	hr__id_map blocks_by_id, streams_by_id, threads_by_id;
	uint64_t *sizes; /* of each block */
	size_t sizes_capacity;
} hr__tape;

void hr__tape_init(hr__tape *tape, hr__tape_format format);
/* Frees the events; figures such as allocs and peak_bytes stay valid. */
void hr__tape_free(hr__tape *tape);

/* Adds an allocation. [bytes] 0 is an error, or skipped if partial. HR_BAD_FORMAT with a message that does not name the file. */
hr_status hr__tape_alloc(hr__tape *tape, hr__tape_id id, uint64_t bytes, uint64_t stream, uint64_t thread);

/* Adds a free. [bytes] is checked against the allocation unless it is 0 or the tape is partial. */
hr_status hr__tape_release(hr__tape *tape, hr__tape_id id, uint64_t bytes, uint64_t stream, uint64_t thread);

/* Use events, defined in uses.h. Without a use tape they are only counted. */
hr_status hr__tape_step(hr__tape *tape, uint64_t number);
hr_status hr__tape_op_begin(hr__tape *tape, uint64_t id, hr_name name, uint64_t thread);
hr_status hr__tape_op_end(hr__tape *tape, uint64_t id, uint64_t ns, uint64_t thread);
/* [bytes] is checked against the allocation unless it is 0, or the tape is partial. */
hr_status hr__tape_access(hr__tape *tape, hr__tape_id id, uint64_t bytes, bool write, uint64_t thread);

/* Marks the current step: tensors moved or requests were refused, so it does not show the program with enough memory. */
void hr__tape_hindered(hr__tape *tape);

/* Ends reading and frees what only reading needs. HR_BAD_FORMAT if the tape has no allocation. */
hr_status hr__tape_finish(hr__tape *tape);

/* Writes one line of text for each kind of event that was skipped or changed to [out], with a final 0. Returns the length. */
size_t hr__tape_notes(const hr__tape *tape, char *out, size_t capacity);

/* "CSV", "RMM log", ... */
const char *hr__tape_format_name(hr__tape_format format);

/* hr_shutdown after a replay: blocks that the trace did not free are not an error, and an earlier message is kept. */
hr_status hr__shut_down(void);

#endif
