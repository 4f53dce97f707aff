/* blockfile.h - a new file that grows, handed out in blocks of mapped memory.
 *
 *   file   | front | block | block | ... |     |     |        |
 *   chunks |<------- chunk 0 ----------->|<-- chunk 1 ... -->|      each extended with disk space behind it, then mapped
 *
 * The file grows by chunks: the first of HR__CHUNK_FIRST bytes, each twice the one before, up to HR__CHUNK_LAST. Disk space is
 * guaranteed before a chunk is mapped (os.h, file_extend), because a write through a mapping that runs out of disk is a SIGBUS and
 * not an error. (A file that another process truncates raises one all the same: os/guard.h.) When the disk has no room for a whole chunk, smaller ones are tried, down to a single block.
 *
 * A chunk is unmapped as soon as all of its blocks were handed out and given back, so that a recording of many gigabytes does not
 * stay in the process's address space. The front (the header of the file) stays mapped to the end, and chunk 0 with it.
 *
 * Not thread-safe: the trace lock guards all of it, except that what hr__blockfile_give detaches is unmapped by the caller after
 * releasing the lock. */
#ifndef HR_TRACE_BLOCKFILE_H
#define HR_TRACE_BLOCKFILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "headroom.h"

#define HR__CHUNK_FIRST (4u << 20)
#define HR__CHUNK_LAST (64u << 20)
#define HR__BLOCKFILE_AHEAD 8u /* blocks that are kept warm before anybody asks for them */

/* Blocks handed out at once. The number of chunks that are mapped cannot exceed it by more than three: each but the newest, the first,
 * which has the front, and the one that is being warmed is kept by a block that somebody holds. */
#define HR__BLOCKFILE_HOLDERS 16384u

typedef struct hr__chunk {
	void *base; /* NULL: this entry is free */
	size_t bytes;
	uint32_t unfinished; /* blocks not yet given back, those not yet handed out included; chunk 0 has one more, for the front */
} hr__chunk;

/* Starts as zeros. */
typedef struct hr__blockfile {
	bool is_open;
	int fd;    /* meaningful while is_open */
	int error; /* the errno that stopped the growth; 0 while it can grow */
	bool full; /* it has reached its limit; it grows no more */
	bool cut;  /* the file was shortened from outside; it grows no more */
	uint32_t block_bytes;
	uint64_t limit; /* bytes that the file never exceeds */
	size_t front_bytes;
	size_t step;      /* bytes of the next chunk */
	uint64_t end;     /* bytes of the file that are mapped or were: where the next chunk begins */
	uint64_t next;    /* where the next block begins; == end when a chunk is needed first */
	uint64_t warm;    /* blocks before this were chosen for warming, or handed out without */
	uint32_t newest;  /* the chunk that blocks are handed out from */
	uint32_t entries; /* chunks[] from here on were never used */
	hr__chunk chunks[HR__BLOCKFILE_HOLDERS + 3];
} hr__blockfile;

typedef struct hr__blockfile_block {
	void *memory;
	uint32_t chunk;  /* for hr__blockfile_give */
	uint64_t offset; /* in the file */
} hr__blockfile_block;

/* Creates the file at [path], which must not exist, with [front_bytes] of zeros in front of the blocks, and room for at least one.
 * It never has more than [limit] bytes, which leaves room for one block.
 * *front is where the front is mapped. front_bytes is a multiple of the page size, block_bytes a power of two. HR_IO,
 * HR_NO_HOST_MEMORY; nothing is left behind then. */
hr_status hr__blockfile_create(hr__blockfile *file, const char *path, size_t front_bytes, uint32_t block_bytes, uint64_t limit, void **front);

/* Hands out the next block, zeroed. False when the file cannot grow; file->error, file->full or file->cut says why, and stays. */
bool hr__blockfile_take(hr__blockfile *file, hr__blockfile_block *out);

/* The block of [chunk] will not be touched again. *idle gets memory to be passed to hr__blockfile_unmap once the lock is released;
 * its base is NULL when there is none. */
void hr__blockfile_give(hr__blockfile *file, uint32_t chunk, hr__chunk *idle);
void hr__blockfile_unmap(const hr__chunk *idle);

/* Chooses the next block to be warmed (hr__os()->file_touch, with the lock released), unless enough are. Its memory stays until the
 * chunk is passed to hr__blockfile_give. */
bool hr__blockfile_next_cold(hr__blockfile *file, hr__blockfile_block *out);

/* Whether another process has shortened the file; file->cut then stays. What was in the lost part is gone; writing to it does no harm. */
bool hr__blockfile_is_cut(hr__blockfile *file);

/* Unmaps everything, makes the file [bytes] long and closes it. A file that was cut is left as long as it is. Returns 0 or an errno. */
int hr__blockfile_finish(hr__blockfile *file, uint64_t bytes);

/* Unmaps and closes, and leaves the file as it is: for a forked child. Also safe when fork came in the middle of another thread's
 * call: every function takes a mapping off the list before it unmaps it. */
void hr__blockfile_abandon(hr__blockfile *file);

#endif
