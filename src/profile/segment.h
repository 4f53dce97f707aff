/* segment.h - what a running program shows to `headroom top`: a small file in memory that it writes and others read.
 *
 *     $XDG_RUNTIME_DIR/headroom-top-PID, or /dev/shm/headroom-top-PID; mode 0600
 *
 *     | magic, version, size, process | sequence | program, devices... |
 *
 * One thread writes, a few times a second. There is no lock: `sequence` is odd while it writes, and a reader that found the same even number
 * before and after has a whole picture. A reader never writes, never maps the file (somebody might cut it) and trusts nothing in it;
 * a file of another user than the process has is none. The file goes when the program ends; after kill -9 it stays until the next `headroom top` of
 * that user, who finds no such process. */
#ifndef HR_PROFILE_SEGMENT_H
#define HR_PROFILE_SEGMENT_H

#include <stdint.h>

#include "base/atomic.h"
#include "headroom.h"

#define HR__SEGMENT_PREFIX "headroom-top-"
#define HR__SEGMENT_MAGIC 0x31504F545F4D5248ull /* "HRM_TOP1" */
#define HR__SEGMENT_VERSION 1u
#define HR__SEGMENT_DEVICES 8u
#define HR__SEGMENT_SAMPLES 64u
#define HR__SEGMENT_PERIOD_NS 250000000ull

/* name: of hr_stats. A reader of another version would not know the order, so the version changes with it. */
#define HR__SEGMENT_STATS_TABLE(X)                                                                                         \
	X(bytes_in_use) X(peak_bytes_in_use) X(bytes_limit) X(bytes_reserved) X(bytes_cached) X(bytes_free) X(bytes_inactive)  \
	X(bytes_reclaimed) X(num_allocs) X(num_frees) X(num_failed_allocs) X(num_live) X(num_stitches) X(num_defragmentations)

typedef struct hr__segment_device {
	char name[32];
#define HR__SEGMENT_FIELD(name) int64_t name;
	HR__SEGMENT_STATS_TABLE(HR__SEGMENT_FIELD)
#undef HR__SEGMENT_FIELD
	int64_t samples[HR__SEGMENT_SAMPLES]; /* bytes in use, one each period; a ring, as many as `samples` of the segment says */
} hr__segment_device;

typedef struct hr__segment {
	uint64_t magic;   /* written last */
	uint32_t version;
	uint32_t bytes;   /* of this struct */
	uint32_t process;
	uint32_t zero;
	uint64_t birth;   /* of the process; see os/process.h */
	hr__atomic_u64 sequence;
	uint64_t begin_wall_ns, now_wall_ns;
	uint64_t samples; /* taken in all: the next one goes to samples % HR__SEGMENT_SAMPLES */
	char program[32];
	uint32_t device_count;
	uint32_t recording; /* 1 while a trace is recorded */
	hr__segment_device devices[HR__SEGMENT_DEVICES];
} hr__segment;

#endif
