/* blockfile.h - a new file that grows and is handed out in blocks of mapped memory.
 *
 *   file    | front | block | block | ... |     |     |        |
 *   extents |<------- extent 0 ---------->|<-- extent 1 ... -->|      each extended with allocated disk space, then mapped
 *
 * The file grows in extents: the first has HR__EXTENT_FIRST bytes, each further one is twice as large, up to HR__EXTENT_LAST. Disk
 * space is allocated before an extent is mapped (os.h, file_extend), because a write through a mapping on a full disk raises SIGBUS
 * instead of returning an error. (A file that another process truncates raises SIGBUS too: core/os/guard.h.) When the disk has no
 * space for a whole extent, smaller ones are tried, down to a single block.
 *
 * An extent is unmapped as soon as all of its blocks were handed out and given back, so that a recording of many gigabytes does not
 * stay in the process's address space. The front (the header of the file) stays mapped until the end, and so does extent 0.
 *
 * Not thread-safe: the trace lock guards all of it. Only the memory that hr__blockfile_give detaches is unmapped by the caller
 * after the lock is released. */
#ifndef HR_TRACE_BLOCKFILE_H
#define HR_TRACE_BLOCKFILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "headroom.h"

#define HR__EXTENT_FIRST (4u << 20)
#define HR__EXTENT_LAST (64u << 20)
#define HR__BLOCKFILE_AHEAD 8u /* blocks prefaulted ahead of use */

/* Maximum number of blocks handed out at a time. At most three more extents than this are mapped: every extent contains a block
 * that is handed out, except for the newest one, the first one (which has the front) and the one that is being prefaulted. */
#define HR__BLOCKFILE_HOLDERS 16384u

typedef struct hr__blockfile_extent {
	void *base; /* NULL: the entry is free */
	size_t bytes;
	uint32_t unfinished; /* blocks not given back yet, or not handed out yet; extent 0 counts one more, for the front */
} hr__blockfile_extent;

/* Must be zero-initialised. */
typedef struct hr__blockfile {
	bool is_open;
	int fd;    /* valid while is_open */
	int error; /* the errno that stopped the growth; 0 while the file can grow */
	bool full; /* the limit was reached; the file grows no more */
	bool cut;  /* another process truncated the file; it grows no more */
	uint32_t block_bytes;
	uint64_t limit; /* maximum size of the file in bytes */
	size_t front_bytes;
	size_t step;      /* bytes of blocks in the next extent */
	uint64_t end;     /* bytes of all extents so far; offset of the next extent */
	uint64_t next;    /* offset of the next block; == end when a new extent is needed first */
	uint64_t warm;    /* blocks before this offset were chosen for prefaulting, or handed out without it */
	uint32_t newest;  /* the extent from which blocks are handed out */
	uint32_t entries; /* entries of extents[] from this index on were never used */
	hr__blockfile_extent extents[HR__BLOCKFILE_HOLDERS + 3];
} hr__blockfile;

typedef struct hr__blockfile_block {
	void *memory;
	uint32_t bytes;
	uint32_t extent; /* for hr__blockfile_give */
	uint64_t offset; /* in the file */
} hr__blockfile_block;

/* Creates the file at [path], which must not exist, with [front_bytes] of zeros before the blocks and room for at least one block.
 * The file never exceeds [limit] bytes, which must leave room for one block. *front is the address of the mapped front. front_bytes
 * is a multiple of the page size, block_bytes a power of two. HR_IO, HR_NO_HOST_MEMORY; on failure no file is left behind. */
hr_status hr__blockfile_create(hr__blockfile *file, const char *path, size_t front_bytes, uint32_t block_bytes, uint64_t limit, void **front);

/* Hands out the next block, zeroed. False when the file cannot grow; file->error, file->full or file->cut gives the reason, which
 * is permanent. */
bool hr__blockfile_take(hr__blockfile *file, hr__blockfile_block *out);

/* Gives back a block of [extent], which must not be touched again. *idle is set to memory that must be passed to
 * hr__blockfile_unmap after the lock is released; its base is NULL when there is none. */
void hr__blockfile_give(hr__blockfile *file, uint32_t extent, hr__blockfile_extent *idle);
void hr__blockfile_unmap(const hr__blockfile_extent *idle);

/* Chooses the next block to prefault (hr__os()->file_touch, with the lock released), unless enough are prefaulted. The block's
 * memory stays mapped until the extent is passed to hr__blockfile_give. */
bool hr__blockfile_next_cold(hr__blockfile *file, hr__blockfile_block *out);

/* Whether another process has truncated the file; sets file->cut. The contents of the lost part are gone; writing to it is
 * harmless. */
bool hr__blockfile_is_cut(hr__blockfile *file);

/* Unmaps everything, truncates the file to [bytes] and closes it. A file that was truncated by another process keeps its length.
 * Returns 0 or an errno value. */
int hr__blockfile_finish(hr__blockfile *file, uint64_t bytes);

/* Unmaps everything and closes the file without changing it: for the child of a fork. Also safe when the fork happened during
 * another thread's call, because every function removes a mapping from the list before it unmaps it. */
void hr__blockfile_abandon(hr__blockfile *file);

#endif
