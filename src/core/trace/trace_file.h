/* trace_file.h - the trace file that is being recorded: its header, clock and blocks, and the count of lost events.
 *
 * There is at most one. recording.c creates and finishes it while no thread is inside an event, so its clock and the mapping of its
 * header do not change during an event. */
#ifndef HR_TRACE_TRACE_FILE_H
#define HR_TRACE_TRACE_FILE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/base/lock.h"
#include "core/trace/blockfile.h"
#include "headroom.h"

/* Guards the blocks of the file, the list of writers (writer.h) and the numbers of definitions (definitions.h). */
extern hr__lock hr__trace_lock;

/* A unit of the file's clock is 2^shift ticks of the processor's counter. */
typedef struct hr__trace_clock {
	uint64_t start_ticks; /* of the recording */
	uint64_t units_per_second;
	uint32_t shift;
} hr__trace_clock;

/* Starts the clock and creates the file with its header. [limit]: maximum size in bytes. HR_IO, HR_NO_HOST_MEMORY; on failure no file is
 * left behind. */
hr_status hr__trace_file_create(const char *path, uint32_t block_bytes, uint64_t limit);

/* The clock of the file. Constant until the next file is created. */
const hr__trace_clock *hr__trace_file_clock(void);

/* Takes the next block, zeroed. Called under the lock during an event. False when the file cannot grow, which is permanent. */
bool hr__trace_file_take(hr__blockfile_block *out);

/* Whether the file has reached its limit, so that the recording ends here. */
bool hr__trace_file_reached_limit(void);

/* Gives back a block of [extent], under the lock. *idle as in hr__blockfile_give. */
void hr__trace_file_give(uint32_t extent, hr__blockfile_extent *idle);

/* One step of the warmer: prefaults the next block that no thread has taken yet. Returns false when enough blocks are prefaulted. */
bool hr__trace_file_warm(void);

/* Counts a lost event. [inside_event]: the caller's writer is busy, which ensures that the header is mapped, so that the count is also
 * stored there. */
void hr__trace_file_count_lost(bool inside_event);

/* How a file ended. */
typedef struct hr__trace_file_end {
	uint64_t lost;      /* events */
	uint64_t limit;     /* bytes */
	int growth_error;   /* the errno that stopped the growth; 0: none */
	int truncate_error; /* the errno of truncating the file to its final size; 0: none */
	bool is_cut;        /* another process truncated the file */
	bool is_full;       /* the file reached its limit */
} hr__trace_file_end;

/* Completes the header, truncates the file to the bytes written and closes it. No thread may be inside an event. */
hr__trace_file_end hr__trace_file_finish(void);

/* In the child of a fork: leaves the parent's file unchanged, and reinitialises the lock, which a thread of the parent may have held. */
void hr__trace_file_abandon(void);

#endif
