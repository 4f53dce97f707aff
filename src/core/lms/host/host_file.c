/* host_file.c - the file tier: copies that do not fit into pinned memory.
 *
 *      device memory          ring of pinned buffers            file
 *      [  tensor  ]  --copy-->  [ piece ][     ][     ][     ]  --write-->  |....| room |......|
 *                    <--copy--                                  <--read---
 *
 * The file is unlinked as soon as it is created, so that the disk gets its bytes back with the last descriptor, however the process
 * ends. It grows if no free room is large enough, with disk space allocated for every byte, and never shrinks. So a full disk is
 * noticed before anything is copied, and steps that spill the same amount each time ask nothing of the file system.
 *
 * Room in the file is managed by an arena over offsets, in blocks of 4 KiB. The mapped part of the arena is the length of the file.
 *
 * A call takes two buffers of the ring if two are free, else one. It never waits for a second while it has one, so calls cannot
 * deadlock. With two, one is written or read while the other is copied to or from the device:
 *
 *      store   copy 0 | wait 0 | copy 1 starts, write 0 | wait 1 | copy 2 starts, write 1 | ...
 *      load    read 0 | copy 0 starts, read 1 | wait 0 | copy 1 starts, read 2 | wait 1 | ...
 *
 * At most one copy of a call is under way, so that waiting for it waits for no later one.
 *
 * A buffer may return to the ring while a copy still uses it: after a load, and after a failure. It records stream and epoch, as a
 * freed block does (device.h). The next call that takes it makes its stream wait for that, or waits itself if the host writes to
 * the buffer.
 *
 * The monitor guards the room and the list of idle buffers. Nothing is copied, read, written or extended inside it.
 *
 * Invariants, by the number that hr__host_file_check returns, when no thread is inside a call:
 *   1  those of the arena
 *   2  the arena has [end] bytes mapped, from 0 on, and end <= length of the file <= most
 *   3  room in use is what the copies need, each rounded up by less than a block
 *   4  every buffer is idle */
#include "core/lms/host/host_file.h"
#include "core/base/assert.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "core/arena/arena.h"
#include "core/base/checked.h"
#include "core/base/status.h"
#include "core/base/text/text.h"
#include "core/os/os.h"

#define RING 4u
#define PIECE_MAX (UINT64_C(16) << 20)
#define RING_SHARE 16u /* a buffer is at most 1/16 of the pool, and the ring a quarter; but a buffer has at least a page */
#define BLOCK UINT64_C(4096)
#define FILE_MAX (UINT64_C(1) << 50) /* if no limit is set; the arena has bins for more */
#define PATH_BYTES 4096u
#define NAME_ATTEMPTS 16u
#define RECORDS 4u /* needed by one attempt to take room: two for mapping, two for taking */

typedef struct buffer {
	void *at;
	uint64_t streams, epoch; /* that may still be copying: see the top. 0 = none */
} buffer;

struct hr__host_file {
	hr__device *device;
	int descriptor;
	char directory[201]; /* for messages; truncated */
	uint64_t limit;      /* as configured, 0 = none */
	uint64_t most;       /* maximum length of the file */
	uint64_t piece;      /* bytes of a buffer */
	uint32_t ring_count; /* 1 to RING; all fields up to here are immutable */

	buffer ring[RING]; /* each belongs to the call that took it */

	hr__monitor *monitor; /* guards the rest */
	bool entered;         /* a thread is inside the monitor; for assertions */
	uint32_t idle;        /* bit b = buffer b is idle */
	uint32_t next;        /* next buffer to take, so that the one idle longest is used */
	bool growing;         /* a thread is extending the file */
	uint64_t end;         /* the arena has room up to here */
	uint64_t length;      /* length of the file: more than [end] only if there was no memory for its chunk record */
	uint64_t in_use;      /* bytes of room in use */
	hr__chunk_id edge;
	hr__chunk_table table;
	hr__arena arena;
};

static void enter(hr__host_file *file)
{
	hr__os()->monitor_enter(file->monitor);
	HR_ASSERT(!file->entered);
	file->entered = true;
}

static void leave(hr__host_file *file)
{
	HR_ASSERT(file->entered);
	file->entered = false;
	hr__os()->monitor_leave(file->monitor);
}

static void wait_inside(hr__host_file *file)
{
	HR_ASSERT(file->entered);
	file->entered = false;
	hr__os()->monitor_wait(file->monitor, UINT64_MAX);
	file->entered = true;
}

/* ---- messages ---- */

static hr_status io_failed(const hr__host_file *file, const char *what, int error)
{
	return hr__fail(HR_IO, "the spill file in %s could not be %s: %s", file->directory, what, hr__os_error(error));
}

static hr_status limit_reached(const hr__host_file *file, uint64_t bytes)
{
	HR_ASSERT(file->entered);
	hr__sizes size = HR__SIZES(bytes, file->in_use, file->limit ? file->limit : file->most);
	return hr__fail(
		HR_OUT_OF_MEMORY,
		"the spill file in %s is full: %s requested, but %s of its spill_limit of %s are in use, and no free part is that "
		"large; raise spill_limit or host_limit",
		file->directory, size.text[0], size.text[1], size.text[2]);
}

static bool means_full(int error)
{
	return error == ENOSPC || error == EDQUOT || error == EFBIG;
}

/* The file could not be extended, or allocated room could not be written after all. */
static hr_status disk_refused(const hr__host_file *file, const char *what, uint64_t bytes, int error)
{
	hr__sizes size = HR__SIZES(bytes, file->limit);
	if (!means_full(error)) return io_failed(file, what, error);
	return hr__fail(HR_OUT_OF_MEMORY,
	                "the disk of spill_dir %s is full: %s requested, spill_limit is %s: %s; make room there, or raise host_limit",
	                file->directory, size.text[0], file->limit ? size.text[1] : "not set", hr__os_error(error));
}

/* ---- room in the file ---- */

/* Leaves the monitor meanwhile: on some file systems this takes as long as writing. */
static int extend(hr__host_file *file, uint64_t length)
{
	HR_ASSERT(!file->growing);
	file->growing = true;
	leave(file);
	int error = hr__os()->file_extend(file->descriptor, length);
	enter(file);
	file->growing = false;
	if (!error) file->length = length;
	hr__os()->monitor_wake_all(file->monitor);
	return error;
}

/* Makes the file long enough for [size] more bytes at its end, counting free room there. Leaves the monitor
 * meanwhile, so other threads may take that room: the caller tries again. */
static hr_status grow(hr__host_file *file, uint64_t size)
{
	HR_ASSERT(file->entered);
	hr__arena *arena = &file->arena;
	uint64_t tail = arena->tail ? hr__chunk_at(&file->table, arena->tail)->size : 0, before = file->end, more = size - tail;
	HR_ASSERT(tail < size);
	if (more > file->most - before) return limit_reached(file, size);
	int error = before + more > file->length ? extend(file, before + more) : 0;
	if (error) return disk_refused(file, "extended", size, error);
	hr_status status = hr__chunk_table_ensure(&file->table, RECORDS);
	if (status != HR_OK) return status;
	hr__arena_map(arena, arena->holes, before, more);
	file->end = before + more;
	return HR_OK;
}

/* [as_is]: takes room in the file as it is. Otherwise only where the end of the file, once extended, would not be a better
 * place. */
static hr__chunk_id try_to_take(hr__host_file *file, uint64_t size, bool as_is)
{
	HR_ASSERT(file->entered && file->end <= file->most);
	file->arena.tail_growth = as_is ? 0 : file->most - file->end;
	return hr__arena_take(&file->arena, size, 0);
}

static hr_status find_room(hr__host_file *file, uint64_t size, hr__chunk_id *out)
{
	HR_ASSERT(file->entered && size % BLOCK == 0);
	hr__chunk_id id = 0;
	hr_status status = HR_OK;
	while (status == HR_OK) {
		status = hr__chunk_table_ensure(&file->table, RECORDS);
		if (status != HR_OK) break;
		id = try_to_take(file, size, false);
		if (id) break;
		if (file->growing) wait_inside(file);
		else status = grow(file, size);
	}
	/* Room that was passed over for the end of the file is better than none. */
	if (!id && hr__chunk_table_has(&file->table, RECORDS)) id = try_to_take(file, size, true);
	if (!id) return status;
	*out = id;
	return HR_OK;
}

static hr_status take_room(hr__host_file *file, uint64_t bytes, hr__host_copy *room)
{
	uint64_t size = 0;
	hr__chunk_id id = 0;
	enter(file);
	hr_status status = hr__align_up(bytes, BLOCK, &size) && size <= file->most ? find_room(file, size, &id)
	                                                                           : limit_reached(file, bytes);
	if (status == HR_OK) {
		file->in_use += size;
		*room = (hr__host_copy){ .offset = hr__chunk_address(hr__chunk_at(&file->table, id)), .bytes = bytes, .room = id };
	}
	leave(file);
	return status;
}

void hr__host_file_drop(hr__host_file *file, const hr__host_copy *copy)
{
	enter(file);
	hr__chunk *chunk = hr__chunk_at(&file->table, copy->room);
	HR_ASSERT(hr__chunk_address(chunk) == copy->offset && chunk->size >= copy->bytes && chunk->size - copy->bytes < BLOCK);
	file->in_use -= chunk->size;
	chunk->streams = chunk->epochs = 0;
	hr__arena_give(&file->arena, copy->room);
	leave(file);
}

/* ---- the ring ---- */

/* Buffers of one call, one or two: the one in use now and the other. */
typedef struct lanes {
	hr__host_file *file;
	hr_stream stream;
	buffer *now, *other; /* equal if there is only one */
} lanes;

static buffer *pop_idle(hr__host_file *file)
{
	HR_ASSERT(file->entered && file->idle);
	while (!(file->idle >> file->next & 1)) file->next = (file->next + 1) % file->ring_count;
	buffer *taken = &file->ring[file->next];
	file->idle &= ~(1u << file->next);
	return taken;
}

static lanes take_lanes(hr__host_file *file, uint64_t bytes, hr_stream stream)
{
	lanes taken = { .file = file, .stream = stream };
	enter(file);
	while (!file->idle) wait_inside(file);
	taken.now = taken.other = pop_idle(file);
	if (file->idle && bytes > file->piece) taken.other = pop_idle(file);
	leave(file);
	return taken;
}

static void give_lanes(const lanes *taken)
{
	hr__host_file *file = taken->file;
	enter(file);
	file->idle |= 1u << (taken->now - file->ring) | 1u << (taken->other - file->ring);
	hr__os()->monitor_wake_all(file->monitor);
	leave(file);
}

static void swap_lanes(lanes *of)
{
	buffer *other = of->other;
	of->other = of->now;
	of->now = other;
}

/* Copies between a buffer and the device. The buffer counts as used by the stream even if the device refused the copy: that is
 * stricter than needed, and only after an error. */
static hr_status start_copy(const lanes *with, buffer *through, uint64_t address, uint64_t bytes, hr_copy_kind kind)
{
	hr__device *device = with->file->device;
	void *there = (void *)(uintptr_t)address, *to = kind == HR_COPY_TO_HOST ? through->at : there;
	const void *from = kind == HR_COPY_TO_HOST ? there : through->at;
	hr_status status = hr_stream_copy(hr__device_handle(device), to, from, bytes, kind, with->stream);
	through->streams |= UINT64_C(1) << with->stream;
	through->epoch = hr__device_epoch(device); /* after the copy was queued: see device.h */
	return status;
}

/* Waits until no copy uses the buffer. */
static hr_status wait_for(const hr__host_file *file, buffer *through)
{
	if (!through->streams) return HR_OK;
	hr_status status = hr__device_wait_idle(file->device, through->streams, through->epoch);
	if (status == HR_OK) through->streams = 0;
	return status;
}

static uint64_t piece_at(const hr__host_file *file, uint64_t bytes, uint64_t at)
{
	HR_ASSERT(at < bytes);
	return bytes - at < file->piece ? bytes - at : file->piece;
}

/* ---- store ---- */

/* Starts copying a piece from the device; the stream first waits for earlier users of the buffer. */
static hr_status start_store(const lanes *with, buffer *through, uint64_t address, uint64_t bytes)
{
	int64_t waits = 0;
	hr_status status = hr__device_order(with->file->device, with->stream, through->streams, through->epoch, &waits);
	return status == HR_OK ? start_copy(with, through, address, bytes, HR_COPY_TO_HOST) : status;
}

/* Waits until the piece in the buffer is complete. Not with hr__device_wait_idle, because the result of a failed copy must not be
 * taken for contents. */
static hr_status finish_store(const lanes *with, buffer *through)
{
	HR_ASSERT(through->streams);
	hr_status status = hr_stream_synchronize(hr__device_handle(with->file->device), with->stream);
	if (status == HR_OK) through->streams = 0;
	return status;
}

static hr_status write_piece(const hr__host_file *file, const buffer *from, uint64_t bytes, uint64_t offset)
{
	int error = hr__os()->file_write(file->descriptor, from->at, bytes, offset);
	return error ? disk_refused(file, "written", bytes, error) : HR_OK;
}

static hr_status store_pieces(lanes *with, uint64_t address, const hr__host_copy *room)
{
	const hr__host_file *file = with->file;
	uint64_t bytes = room->bytes;
	bool two = with->now != with->other;
	hr_status status = start_store(with, with->now, address, piece_at(file, bytes, 0));
	for (uint64_t at = 0, next; at < bytes && status == HR_OK; at = next) {
		uint64_t here = piece_at(file, bytes, at);
		next = at + here;
		status = finish_store(with, with->now);
		if (status == HR_OK && two && next < bytes)
			status = start_store(with, with->other, address + next, piece_at(file, bytes, next));
		if (status == HR_OK) status = write_piece(file, with->now, here, room->offset + at);
		if (status == HR_OK && !two && next < bytes)
			status = start_store(with, with->now, address + next, piece_at(file, bytes, next));
		swap_lanes(with);
	}
	return status;
}

hr_status hr__host_file_store(hr__host_file *file, uint64_t address, uint64_t bytes, hr_stream stream, hr__host_copy *copy)
{
	hr__host_copy room;
	hr_status status = take_room(file, bytes, &room);
	if (status != HR_OK) return status;
	lanes with = take_lanes(file, bytes, stream);
	status = store_pieces(&with, address, &room);
	give_lanes(&with);
	if (status == HR_OK) *copy = room;
	else hr__host_file_drop(file, &room);
	return status;
}

/* ---- load ---- */

static hr_status read_piece(const hr__host_file *file, const buffer *to, uint64_t bytes, uint64_t offset)
{
	size_t got = 0;
	int error = hr__os()->file_read(file->descriptor, to->at, bytes, offset, &got);
	if (error) return io_failed(file, "read", error);
	if (got == bytes) return HR_OK;
	return hr__fail(HR_IO, "the spill file in %s is too short: %llu byte%s missing at offset %llu; another program truncated it",
	                file->directory, (unsigned long long)(bytes - got), hr__plural(bytes - got),
	                (unsigned long long)(offset + got));
}

hr_status hr__host_file_load(hr__host_file *file, const hr__host_copy *copy, uint64_t address, hr_stream stream)
{
	HR_ASSERT(copy->bytes && !copy->address);
	hr_status status = HR_OK;
	lanes with = take_lanes(file, copy->bytes, stream);
	for (uint64_t at = 0, here; at < copy->bytes && status == HR_OK; at += here) {
		here = piece_at(file, copy->bytes, at);
		status = wait_for(file, with.now);
		if (status == HR_OK) status = read_piece(file, with.now, here, copy->offset + at);
		if (status == HR_OK && with.other != with.now) status = wait_for(file, with.other); /* the next piece is read into it */
		if (status == HR_OK) status = start_copy(&with, with.now, address + at, here, HR_COPY_TO_DEVICE);
		swap_lanes(&with);
	}
	give_lanes(&with);
	return status;
}

/* ---- opening ---- */

/* Creates a file with an unused name. [path] has PATH_BYTES. */
static int create_file(const char *directory, char *path, int *descriptor)
{
	static hr__atomic_u64 made;
	int error = EEXIST;
	if (!directory[0]) return ENOENT;
	for (unsigned i = 0; error == EEXIST && i < NAME_ATTEMPTS; i++) {
		int length = snprintf(path, PATH_BYTES, "%s/headroom-%d-%llu-%llx.spill", directory, hr__os()->process_id(),
		                      (unsigned long long)hr__fetch_add_relaxed(&made, 1), (unsigned long long)hr__os()->wall_clock_ns());
		if (length < 0 || (unsigned)length >= PATH_BYTES) return ENAMETOOLONG;
		error = hr__os()->file_create(path, descriptor);
	}
	return error;
}

static hr_status open_unlinked(hr__host_file *file, const char *directory)
{
	char path[PATH_BYTES];
	int descriptor, error = create_file(directory, path, &descriptor);
	if (error) return hr__fail(HR_IO, "cannot create a spill file in spill_dir \"%s\": %s", file->directory, hr__os_error(error));
	error = hr__os()->file_remove(path);
	if (error) { /* it would remain after the process ends */
		hr__os()->file_close(descriptor);
		return hr__fail(HR_IO, "the spill file %.300s cannot be removed: %s", path, hr__os_error(error));
	}
	file->descriptor = descriptor;
	return HR_OK;
}

static hr_status open_room(hr__host_file *file)
{
	hr_status status = hr__chunk_table_init(&file->table);
	if (status == HR_OK) status = hr__chunk_table_ensure(&file->table, RECORDS);
	if (status != HR_OK) return status;
	hr__arena_init(&file->arena, &file->table, BLOCK);
	file->edge = hr__arena_add_region(&file->arena, 0, file->most, 0);
	return HR_OK;
}

/* Buffers are whole pages of the pool, so that the smallest possible pool has one buffer. */
static hr_status open_ring(hr__host_file *file, hr_allocator pool, uint64_t pool_limit)
{
	uint64_t page = hr__os_page_size();
	void *block;
	file->piece = hr__align_down(pool_limit / RING_SHARE, page);
	if (file->piece > PIECE_MAX) file->piece = PIECE_MAX;
	if (file->piece < page) file->piece = page;
	file->ring_count = pool_limit / file->piece < RING ? (uint32_t)(pool_limit / file->piece) : RING;
	HR_ASSERT(file->ring_count > 0);
	hr_status status = hr_alloc_bytes(pool, file->ring_count * file->piece, &block);
	if (status != HR_OK) return status;
	for (uint32_t i = 0; i < file->ring_count; i++) file->ring[i].at = (char *)block + i * file->piece;
	file->idle = (1u << file->ring_count) - 1;
	return HR_OK;
}

uint64_t hr__host_file_ring_bytes(const hr__host_file *file)
{
	return file->ring_count * file->piece;
}

static hr_status set_limit(hr__host_file *file, uint64_t limit)
{
	file->limit = limit;
	file->most = hr__align_down(limit && limit < FILE_MAX ? limit : FILE_MAX, BLOCK);
	if (file->most) return HR_OK;
	return hr__fail(HR_BAD_LIMIT, "spill_limit is %llu bytes, below one block of %llu", (unsigned long long)limit,
	                (unsigned long long)BLOCK);
}

hr_status hr__host_file_open(hr__device *device, hr_allocator pool, uint64_t pool_limit, const char *directory, uint64_t limit,
                             hr__host_file **out)
{
	void *memory;
	int error = hr__os()->alloc(sizeof(hr__host_file), &memory);
	if (error) return hr__os_fail(error, "the spill file");
	hr__host_file *file = memory;
	file->device = device;
	file->descriptor = -1;
	snprintf(file->directory, sizeof file->directory, "%s", directory);
	file->directory[hr__utf8_trim(file->directory, strlen(file->directory))] = 0;
	hr_status status = set_limit(file, limit);
	if (status == HR_OK) status = open_unlinked(file, directory);
	if (status == HR_OK) status = open_room(file);
	error = status == HR_OK ? hr__os()->monitor_create(&file->monitor) : 0;
	if (error) status = hr__os_fail(error, "the monitor of the spill file");
	if (status == HR_OK) status = open_ring(file, pool, pool_limit); /* last: this function does not free the ring on failure */
	if (status == HR_OK) *out = file;
	else hr__host_file_close(file);
	return status;
}

void hr__host_file_close(hr__host_file *file)
{
	if (file->monitor) hr__os()->monitor_destroy(file->monitor);
	hr__chunk_table_destroy(&file->table);
	if (file->descriptor >= 0) hr__os()->file_close(file->descriptor);
	hr__os()->free(file, sizeof *file);
}

void hr__host_file_forget(hr__host_file *file)
{
	/* Otherwise the disk would get its bytes back only when the child ends, too. */
	hr__os()->file_close(file->descriptor);
	file->descriptor = -1;
}

/* ---- checking ---- */

/* Bytes of chunks in [state] in the whole file. */
static uint64_t count_bytes(const hr__host_file *file, enum hr__chunk_state state, uint64_t *chunks)
{
	uint64_t bytes = 0;
	for (hr__chunk_id id = file->edge; id; id = hr__chunk_at(&file->table, id)->next) {
		const hr__chunk *chunk = hr__chunk_at(&file->table, id);
		if (hr__chunk_state_of(chunk) != state) continue;
		bytes += chunk->size;
		++*chunks;
	}
	return bytes;
}

int hr__host_file_check(hr__host_file *file, uint64_t bytes)
{
	uint64_t copies = 0, others = 0;
	enter(file);
	bool arena_holds = hr__arena_check(&file->arena, &file->edge, 1) == 0;
	uint64_t in_use = count_bytes(file, HR__CHUNK_IN_USE, &copies), unused = count_bytes(file, HR__CHUNK_FREE, &others);
	bool mapped = in_use + unused == file->end && file->end <= file->length && file->length <= file->most;
	bool used = in_use == file->in_use && in_use >= bytes && in_use - bytes <= copies * (BLOCK - 1);
	bool idle = file->idle == (1u << file->ring_count) - 1 && !file->growing;
	leave(file);
	return !arena_holds ? 1 : !mapped ? 2 : !used ? 3 : !idle ? 4 : 0;
}
