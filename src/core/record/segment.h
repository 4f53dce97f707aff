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
 * when the program ends. After kill -9 it remains until the same user's next `headroom top` finds no such process.
 *
 * Out-of-memory reports of a job's ranks read the files of the other ranks (peers.c). */
#ifndef HR_PROFILE_SEGMENT_H
#define HR_PROFILE_SEGMENT_H

#include <stdint.h>

#include "core/base/atomic.h"
#include "core/os/rank.h"
#include "headroom.h"

#define HR__SEGMENT_PREFIX "headroom-top-"
#define HR__SEGMENT_MAGIC 0x31504F545F4D5248ull /* "HRM_TOP1" */
#define HR__SEGMENT_VERSION 2u
#define HR__SEGMENT_DEVICES 8u
#define HR__SEGMENT_ALLOCATORS 16u
#define HR__SEGMENT_SAMPLES 64u
#define HR__SEGMENT_PERIOD_NS 250000000ull

/* A reader depends on the order of these lists, so changing them changes the version. */

/* name: field of hr_stats, of a device. */
#define HR__SEGMENT_STATS_TABLE(X)                                                                                         \
	X(bytes_in_use) X(peak_bytes_in_use) X(bytes_limit) X(bytes_reserved) X(bytes_cached) X(bytes_free) X(bytes_inactive)  \
	X(bytes_reclaimed) X(num_allocs) X(num_frees) X(num_failed_allocs) X(num_live) X(num_stitches) X(num_defragmentations)

/* name: field of hr_stats, of an allocator. */
#define HR__SEGMENT_ALLOCATOR_TABLE(X) \
	X(bytes_in_use) X(peak_bytes_in_use) X(bytes_limit) X(bytes_reserved) X(num_allocs) X(num_frees) X(num_failed_allocs) X(num_live)

/* name: field of hr_lms_stats. All are 0 in an allocator without tensors. */
#define HR__SEGMENT_LMS_TABLE(X) \
	X(bytes_copied_out) X(bytes_copied_in) X(bytes_dropped) X(num_evictions) X(num_restores) X(num_recomputes) X(stall_ns) X(num_steps) X(host_bytes)

typedef struct hr__segment_device {
	char name[32];
#define HR__SEGMENT_FIELD(name) int64_t name;
	HR__SEGMENT_STATS_TABLE(HR__SEGMENT_FIELD)
	int64_t samples[HR__SEGMENT_SAMPLES]; /* ring of bytes in use, one sample per period; hr__segment.samples counts them */
} hr__segment_device;

typedef struct hr__segment_allocator {
	char name[32], device[32];
	HR__SEGMENT_ALLOCATOR_TABLE(HR__SEGMENT_FIELD)
	HR__SEGMENT_LMS_TABLE(HR__SEGMENT_FIELD)
#undef HR__SEGMENT_FIELD
} hr__segment_allocator;

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
	hr__rank rank;
	uint32_t device_count;
	uint32_t allocator_count;
	uint32_t allocators_left_out; /* allocators for which there is no room */
	uint32_t recording; /* 1 while a trace is being recorded */
	hr__segment_device devices[HR__SEGMENT_DEVICES];
	hr__segment_allocator allocators[HR__SEGMENT_ALLOCATORS];
} hr__segment;

/* The process id in a file's name; 0 if it is another kind of file. */
uint32_t hr__segment_process(const char *name);

/* Whether [s], read from the file of [process], is valid. Terminates the texts, replaces what is not printable, and sets negative numbers to 0. */
bool hr__segment_check(hr__segment *s, uint32_t process);

#endif
