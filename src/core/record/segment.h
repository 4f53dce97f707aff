/* segment.h - the statistics that a running program publishes for `headroom top`: a small file in memory with one writer and any
 * readers.
 *
 *     $XDG_RUNTIME_DIR/headroom-top-PID, or /dev/shm/headroom-top-PID; mode 0600
 *
 *     | magic, version, size, process | sequence | program, devices... |
 *
 * One thread writes, a few times a second. There is no lock: `sequence` is odd during a write, and a reader that found the same
 * even number before and after its read has a consistent copy. A reader never writes, never maps the file (another process might
 * truncate it) and validates everything in it; a file whose owner is not the user of the process is ignored. The file is removed
 * when the program ends. After kill -9 it remains until the same user's next `headroom top` finds no such process. */
#ifndef HR_PROFILE_SEGMENT_H
#define HR_PROFILE_SEGMENT_H

#include <stdint.h>

#include "core/base/atomic.h"
#include "headroom.h"

#define HR__SEGMENT_PREFIX "headroom-top-"
#define HR__SEGMENT_MAGIC 0x31504F545F4D5248ull /* "HRM_TOP1" */
#define HR__SEGMENT_VERSION 1u
#define HR__SEGMENT_DEVICES 8u
#define HR__SEGMENT_SAMPLES 64u
#define HR__SEGMENT_PERIOD_NS 250000000ull

/* name: field of hr_stats. A reader depends on the order, so changing the list changes the version. */
#define HR__SEGMENT_STATS_TABLE(X)                                                                                         \
	X(bytes_in_use) X(peak_bytes_in_use) X(bytes_limit) X(bytes_reserved) X(bytes_cached) X(bytes_free) X(bytes_inactive)  \
	X(bytes_reclaimed) X(num_allocs) X(num_frees) X(num_failed_allocs) X(num_live) X(num_stitches) X(num_defragmentations)

typedef struct hr__segment_device {
	char name[32];
#define HR__SEGMENT_FIELD(name) int64_t name;
	HR__SEGMENT_STATS_TABLE(HR__SEGMENT_FIELD)
#undef HR__SEGMENT_FIELD
	int64_t samples[HR__SEGMENT_SAMPLES]; /* ring of bytes in use, one sample per period; hr__segment.samples counts them */
} hr__segment_device;

typedef struct hr__segment {
	uint64_t magic;   /* written last */
	uint32_t version;
	uint32_t bytes;   /* size of this struct */
	uint32_t process;
	uint32_t zero;
	uint64_t birth;   /* start time of the process; see core/os/process.h */
	hr__atomic_u64 sequence;
	uint64_t begin_wall_ns, now_wall_ns;
	uint64_t samples; /* total number of samples; the next one goes to samples % HR__SEGMENT_SAMPLES */
	char program[32];
	uint32_t device_count;
	uint32_t recording; /* 1 while a trace is being recorded */
	hr__segment_device devices[HR__SEGMENT_DEVICES];
} hr__segment;

#endif
