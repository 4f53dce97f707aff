/* reader.c - opens a trace file, checks all of it, and returns its events in order of time.
 *
 * Opening reads the file once, block by block. It checks every record, counts events, interns names and shapes, and builds two
 * lists: the blocks, and the lanes that they belong to.
 *
 *   lanes    [0] -> block 0 -> block 2 -> block 5        each lane is in order of time
 *            [1] -> block 1 -> block 4
 *   heap     the lanes by the time of their next event, earliest first
 *
 * hr__trace_reader_next returns the earliest event and advances its lane. A lane allocates memory for a block, or for a piece of a
 * larger one, when its turn comes, and frees it at its end. So memory is proportional to the threads that ran at the same time, not
 * to the size of blocks or to the lengths that records claim.
 *
 * The file can come from an untrusted source and can still be growing. Nothing is trusted twice: next uses the positions and fill
 * levels of blocks that opening found, and checks the records again. The file is read, never mapped, because truncating a mapped
 * file raises SIGBUS. If the file is truncated while it is opened, the trace ends there; later, everything that opening has seen
 * must still be there. */
#include <string.h>

#include "analysis/reader/reader.h"
#include "core/base/assert.h"
#include "core/base/status.h"
#include "core/base/text/text.h"
#include "core/os/os.h"
#include "analysis/reader/catalog.h"
#include "analysis/reader/decode.h"
#include "analysis/reader/list.h"

#define NONE UINT32_MAX
#define BLOCK_HEADER sizeof(hr__trace_block)
#define PIECE_BYTES HR__TRACE_BLOCK_BYTES /* part of a block that a lane holds in memory: all of a block that Headroom wrote */

typedef struct file_block {
	uint64_t offset; /* of the block in the file */
	uint64_t first_time;
	uint32_t used; /* bytes of records, as found when opening */
	uint32_t thread;
	uint32_t next; /* in the lane; NONE: last */
	bool cut;      /* the file ends before the block's committed length */
} file_block;

typedef struct lane {
	uint32_t first, last; /* blocks */
	uint32_t count;
	uint64_t end_time; /* time of its last event */

	/* Used while the lane is read. */
	uint32_t current; /* block; NONE: not started */
	uint8_t *buffer;  /* for a piece of the block's records when they come from a file */
	size_t buffer_bytes;
	const uint8_t *records; /* the current piece */
	uint32_t records_at;    /* offset of the piece within the block's records */
	hr__decoder decoder;
	hr__event event; /* the next event */
} lane;

typedef struct heap_entry {
	uint64_t time;
	uint32_t lane;
} heap_entry;

struct hr__trace_reader {
	const uint8_t *bytes; /* NULL: the file at fd */
	int fd;
	uint64_t size; /* of the file, without bytes after the end of a complete one */
	uint64_t header_size, block_size;
	uint64_t units_per_second;
	bool cut;         /* part of the last block is missing */
	hr_status failed; /* the error that next returned; permanent */

	hr__list blocks, lanes, heap;
	hr__catalog catalog;
	uint8_t *scratch; /* one block, while opening a file */
	size_t scratch_bytes;
	hr__trace_summary summary;
};

/* ---- bytes ---- */

static hr_status bad(uint64_t offset, const char *why)
{
	return hr__fail(HR_BAD_FORMAT, "not a valid trace: byte %llu: %s", (unsigned long long)offset, why);
}

/* Returns [length] bytes at [offset], which are within the file as it was when opened: in place, or copied to [room]. */
static hr_status get_bytes(const hr__trace_reader *r, uint64_t offset, size_t length, void *room, const uint8_t **out)
{
	size_t done = 0;
	HR_ASSERT(offset <= r->size && length <= r->size - offset);
	*out = room;
	if (r->bytes != NULL) {
		*out = r->bytes + offset;
		return HR_OK;
	}
	int error = hr__os()->file_read(r->fd, room, length, offset, &done);
	if (error != 0) return hr__os_fail(error, "reading a trace at byte %llu", (unsigned long long)offset);
	if (done < length) {
		return hr__fail(HR_IO, "the trace became shorter while it was read: it ends at byte %llu",
		                (unsigned long long)(offset + done));
	}
	return HR_OK;
}

/* The same while opening. If the file was truncated, *length becomes the number of bytes left, and the trace ends there. A writer
 * that stops truncates the blocks that it never used, possibly after the reader has seen that they exist. */
static hr_status get_bytes_left(hr__trace_reader *r, uint64_t offset, size_t *length, void *room, const uint8_t **out)
{
	if (r->bytes != NULL) return get_bytes(r, offset, *length, room, out);
	size_t done = 0;
	*out = room;
	int error = hr__os()->file_read(r->fd, room, *length, offset, &done);
	if (error != 0) return hr__os_fail(error, "reading a trace at byte %llu", (unsigned long long)offset);
	if (done == *length) return HR_OK;
	*length = done;
	r->size = offset + done;
	r->cut = true;
	return HR_OK;
}

/* ---- opening: the header ---- */

static hr_status check_header(const hr__trace_reader *r, const hr__trace_header *h)
{
	if (memcmp(h->magic, HR__TRACE_MAGIC, sizeof(h->magic)) != 0) return bad(0, "it does not begin with the signature of a trace");
	if (h->major == 0) return bad(8, "there is no version 0");
	if (h->major > HR__TRACE_MAJOR) {
		return hr__fail(HR_TOO_NEW, "the trace has version %u.%u; this program reads up to %d; use a newer headroom", h->major, h->minor,
		                HR__TRACE_MAJOR);
	}
	if (h->byte_order != HR__TRACE_BYTE_ORDER) return bad(36, "the byte order is not little-endian");
	if (h->required & ~HR__TRACE_REQUIRED_KNOWN) {
		return hr__fail(HR_TOO_NEW, "the trace needs features that this program does not have (byte 16: %llx)",
		                (unsigned long long)h->required);
	}
	if (h->header_size < sizeof(*h) || h->header_size > HR__TRACE_HEADER_MAX) return bad(12, "the header's size is out of range");
	if (h->block_size < HR__TRACE_BLOCK_MIN || h->block_size > HR__TRACE_BLOCK_MAX)
		return bad(32, "the blocks' size is out of range");
	if (h->units_per_second == 0) return bad(56, "the clock's frequency is 0");
	if (h->complete != 0 && h->file_bytes < h->header_size) return bad(80, "the file is smaller than its header");
	if (r->size < h->header_size) {
		return hr__fail(HR_TRUNCATED, "the trace ends inside its header, at byte %llu", (unsigned long long)r->size);
	}
	return HR_OK;
}

static hr_status read_rank(hr__trace_reader *r)
{
	hr__trace_rank rank;
	const uint8_t *bytes;
	if (r->header_size < sizeof(hr__trace_header) + sizeof rank) return HR_OK;
	hr_status status = get_bytes(r, sizeof(hr__trace_header), sizeof rank, &rank, &bytes);
	if (status != HR_OK) return status;
	memmove(&rank, bytes, sizeof rank);
	if (!hr__rank_check(&rank)) return bad(sizeof(hr__trace_header), "the rank is not one of the job's ranks");
	r->summary.knows_rank = true;
	if (rank.count) r->summary.rank = rank;
	return HR_OK;
}

static hr_status read_header(hr__trace_reader *r)
{
	hr__trace_header h;
	const uint8_t *bytes;
	if (r->size < sizeof(h)) {
		return hr__fail(HR_TRUNCATED, "a trace begins with a header of %zu bytes; this file ends at byte %llu", sizeof(h),
		                (unsigned long long)r->size);
	}
	hr_status status = get_bytes(r, 0, sizeof(h), &h, &bytes);
	if (status != HR_OK) return status;
	memmove(&h, bytes, sizeof(h));
	status = check_header(r, &h);
	if (status != HR_OK) return status;
	r->header_size = h.header_size;
	r->block_size = h.block_size;
	r->units_per_second = h.units_per_second;
	r->summary.start_wall_ns = h.start_wall_ns;
	r->summary.lost = hr__load_relaxed(&h.lost);
	r->summary.limited = (h.optional & HR__OPTIONAL_LIMITED) != 0;
	r->summary.process = h.process;
	memcpy(r->summary.writer, h.writer, sizeof h.writer);
	hr__text_plain(r->summary.writer, sizeof r->summary.writer);
	r->summary.complete = h.complete == 1 && r->size >= h.file_bytes;
	if (r->summary.complete) r->size = h.file_bytes;
	return h.minor < HR__TRACE_MINOR_RANK ? HR_OK : read_rank(r);
}

/* ---- opening: the blocks ---- */

/* Appends the block to its lane. */
static hr_status add_block(hr__trace_reader *r, const hr__trace_block *h, const file_block *b)
{
	uint32_t index = (uint32_t)r->blocks.count;
	hr_status status = HR_OK;
	const lane *known = h->lane < r->lanes.count ? hr__list_at(&r->lanes, h->lane) : NULL;
	if (h->lane > r->lanes.count) return bad(b->offset + 8, "the lane comes before the one with the number below it");
	if (h->thread >= HR__TRACE_THREADS_MAX) return bad(b->offset + 12, "the number of a thread is not below 2^20");
	if (h->sequence != (known ? known->count : 0)) return bad(b->offset + 16, "a block of the lane is missing or comes twice");
	if (known && b->first_time < known->end_time) return bad(b->offset + 24, "the times are not in order");
	if (r->blocks.count >= NONE) return hr__fail(HR_TOO_MANY, "the trace has more than 2^32 blocks");
	if (!known) {
		lane fresh = { .first = index, .last = index, .current = NONE };
		status = hr__list_add(&r->lanes, &fresh);
	}
	if (status == HR_OK) status = hr__list_add(&r->blocks, b);
	if (status != HR_OK) return status;
	lane *l = hr__list_at(&r->lanes, h->lane);
	if (l->count++ > 0) ((file_block *)hr__list_at(&r->blocks, l->last))->next = index;
	l->last = index;
	return HR_OK;
}

static void note_thread(hr__trace_reader *r, uint32_t thread)
{
	if (thread >= r->summary.threads) r->summary.threads = (uint64_t)thread + 1;
}

/* The decoder's position in the file. */
static uint64_t place_of(const file_block *b, const hr__decoder *decoder, const uint8_t *records)
{
	return b->offset + BLOCK_HEADER + (uint64_t)(decoder->at - records);
}

/* The status of a block whose records end with [decoded]. */
static hr_status judge_end(const file_block *b, hr__decoded decoded, uint64_t place, const char *why)
{
	if (decoded == HR__DECODED_BAD) return bad(place, why);
	if (decoded == HR__DECODED_CUT && !b->cut) return bad(place, "a record reaches over the end of its block");
	return HR_OK;
}

/* Checks every record of a block, counts the events and adds the definitions. */
static hr_status check_records(hr__trace_reader *r, const file_block *b, const uint8_t *records, uint64_t *end_time)
{
	hr__decoder decoder;
	hr__event event;
	hr__definition definition;
	const char *why = NULL;
	hr_status status = HR_OK;
	hr__decoder_start(&decoder, records, b->used, b->thread, b->first_time);
	while (status == HR_OK) {
		uint64_t place = place_of(b, &decoder, records);
		hr__decoded decoded = hr__decode(&decoder, &event, &definition, &why);
		if (decoded == HR__DECODED_EVENT) {
			r->summary.events++;
			note_thread(r, event.thread);
			*end_time = event.time_ns;
			status = hr__catalog_note(&r->catalog, &event, place);
		} else if (decoded == HR__DECODED_DEFINITION) {
			status = hr__catalog_define(&r->catalog, &definition, place);
		} else {
			return judge_end(b, decoded, place_of(b, &decoder, records), why);
		}
	}
	return status;
}

/* Checks that the block's header is that of a block of records that this program can read. *is_used is false for a block to be
 * skipped. */
static hr_status check_block(const hr__trace_reader *r, const hr__trace_block *h, uint64_t offset, bool *is_used)
{
	uint32_t magic = hr__load_relaxed(&h->magic);
	*is_used = magic == HR__TRACE_BLOCK_MAGIC && h->type < HR__BLOCK_SKIPPABLE;
	if (magic != 0 && magic != HR__TRACE_BLOCK_MAGIC) return bad(offset, "expected a block");
	if (!*is_used) return HR_OK;
	if (h->type != HR__BLOCK_RECORDS) {
		return hr__fail(HR_TOO_NEW, "the trace has a block of type %u at byte %llu, which this program does not know", h->type,
		                (unsigned long long)offset);
	}
	if (hr__load_relaxed(&h->committed) > r->block_size - BLOCK_HEADER)
		return bad(offset + 32, "the block uses more bytes than it has");
	return HR_OK;
}

/* Checks the block at [offset], of which [available] bytes exist, and adds it to the index. The header is read in one call before
 * the records: in a file that is being written, everything below a committed length exists once the length does. */
static hr_status take_block(hr__trace_reader *r, uint64_t offset, size_t available)
{
	hr__trace_block h;
	const uint8_t *bytes;
	bool is_used;
	size_t length = sizeof(h);
	hr_status status = get_bytes_left(r, offset, &length, &h, &bytes);
	if (status != HR_OK || length < sizeof(h)) return status;
	memmove(&h, bytes, sizeof(h));
	status = check_block(r, &h, offset, &is_used);
	if (status != HR_OK || !is_used) return status;
	file_block b = { .offset = offset, .first_time = h.first_time, .thread = h.thread, .next = NONE };
	b.used = hr__load_relaxed(&h.committed);
	if (b.used > available - BLOCK_HEADER) {
		b.used = (uint32_t)(available - BLOCK_HEADER);
		b.cut = r->cut = true;
	}
	length = b.used;
	status = get_bytes_left(r, offset + BLOCK_HEADER, &length, r->scratch, &bytes);
	b.cut = b.cut || length < b.used;
	b.used = (uint32_t)length;
	r->summary.record_bytes += length;
	if (status == HR_OK) status = add_block(r, &h, &b);
	if (status != HR_OK) return status;
	lane *l = hr__list_at(&r->lanes, h.lane);
	l->end_time = h.first_time;
	note_thread(r, h.thread);
	return check_records(r, &b, bytes, &l->end_time);
}

/* Number of blocks with records from [offset] to [end], as the file is now. */
static uint64_t count_used(const hr__trace_reader *r, uint64_t offset, uint64_t end)
{
	uint64_t used = 0;
	for (; offset < end; offset += r->block_size) {
		hr__trace_block h;
		const uint8_t *bytes;
		bool is_used = false;
		if (get_bytes(r, offset, sizeof(h), &h, &bytes) != HR_OK) break;
		memmove(&h, bytes, sizeof(h));
		if (check_block(r, &h, offset, &is_used) == HR_OK && is_used) used++;
	}
	return used;
}

/* In a file that is being written, a block that was unused when it was passed may be in use when the next one is read, which then
 * does not match the blocks known so far. So when a block is rejected, the blocks that were passed are checked again: if more of
 * them are used now, the trace ends with the blocks taken so far. */
static hr_status take_blocks(hr__trace_reader *r)
{
	uint64_t offset = r->header_size, passed = 0, before = 0; /* the first unused block, and the number of blocks taken before it */
	hr_status status = HR_OK;
	while (status == HR_OK && r->size >= offset + BLOCK_HEADER) {
		uint64_t left = r->size - offset, taken = r->blocks.count;
		size_t available = (size_t)(left < r->block_size ? left : r->block_size);
		status = take_block(r, offset, available);
		if (status == HR_BAD_FORMAT && passed && !r->summary.complete && r->blocks.count == taken &&
		    count_used(r, passed, offset) > taken - before) {
			r->cut = true;
			return HR_OK;
		}
		if (status == HR_OK && r->blocks.count == taken && !passed) {
			passed = offset;
			before = taken;
		}
		offset += available;
	}
	if (r->size != offset) r->cut = true;
	return status;
}

static hr_status make_scratch(hr__trace_reader *r)
{
	void *memory;
	uint64_t rest = r->size - r->header_size;
	size_t bytes = (size_t)(rest < r->block_size ? rest : r->block_size);
	if (r->bytes != NULL || bytes == 0) return HR_OK;
	int error = hr__os()->alloc(bytes, &memory);
	if (error != 0) return hr__os_fail(error, "reading a trace");
	r->scratch = memory;
	r->scratch_bytes = bytes;
	return HR_OK;
}

static void free_scratch(hr__trace_reader *r)
{
	if (r->scratch != NULL) hr__os()->free(r->scratch, r->scratch_bytes);
	r->scratch = NULL;
}

/* ---- the heap: the lane with the earliest event on top ---- */

static bool is_before(const heap_entry *a, const heap_entry *b)
{
	return a->time < b->time || (a->time == b->time && a->lane < b->lane);
}

static void sift_down(hr__list *heap, size_t at)
{
	heap_entry *entries = heap->items;
	heap_entry moving = entries[at];
	for (;;) {
		size_t child = 2 * at + 1;
		if (child >= heap->count) break;
		if (child + 1 < heap->count && is_before(&entries[child + 1], &entries[child])) child++;
		if (!is_before(&entries[child], &moving)) break;
		entries[at] = entries[child];
		at = child;
	}
	entries[at] = moving;
}

static hr_status make_heap(hr__trace_reader *r)
{
	hr_status status = hr__list_reserve(&r->heap, r->lanes.count);
	for (size_t i = 0; i < r->lanes.count && status == HR_OK; i++) {
		const lane *l = hr__list_at(&r->lanes, i);
		heap_entry entry = { ((file_block *)hr__list_at(&r->blocks, l->first))->first_time, (uint32_t)i };
		status = hr__list_add(&r->heap, &entry);
	}
	for (size_t i = r->heap.count / 2; i-- > 0;) sift_down(&r->heap, i);
	return status;
}

static void drop_top(hr__list *heap)
{
	heap_entry *entries = heap->items;
	entries[0] = entries[--heap->count];
	if (heap->count > 0) sift_down(heap, 0);
}

/* ---- opening ---- */

static void init_lists(hr__trace_reader *r)
{
	r->blocks.item_bytes = sizeof(file_block);
	r->lanes.item_bytes = sizeof(lane);
	r->heap.item_bytes = sizeof(heap_entry);
	hr__catalog_init(&r->catalog);
}

static void fill_summary(hr__trace_reader *r)
{
	hr__trace_summary *s = &r->summary;
	s->blocks = r->blocks.count;
	s->complete = s->complete && !r->cut;
	s->devices = r->catalog.devices.items;
	s->device_count = r->catalog.devices.count;
	s->allocators = r->catalog.allocators.items;
	s->allocator_count = r->catalog.allocators.count;
}

static hr_status index_file(hr__trace_reader *r)
{
	hr_status status = read_header(r);
	if (status == HR_OK) status = make_scratch(r);
	if (status == HR_OK) status = take_blocks(r);
	if (status != HR_OK) return status;
	free_scratch(r);
	fill_summary(r);
	status = hr__catalog_finish(&r->catalog);
	if (status == HR_OK && r->summary.complete) status = hr__catalog_check(&r->catalog);
	return status == HR_OK ? make_heap(r) : status;
}

/* Takes ownership of [fd], even on failure. */
static hr_status open_reader(const void *bytes, int fd, uint64_t size, hr__trace_reader **out)
{
	void *memory;
	int error = hr__os()->alloc(sizeof(hr__trace_reader), &memory);
	if (error != 0) {
		if (bytes == NULL) hr__os()->file_close(fd);
		return hr__os_fail(error, "reading a trace");
	}
	hr__trace_reader *r = memory;
	r->bytes = bytes;
	r->fd = fd;
	r->size = size;
	init_lists(r);
	hr_status status = index_file(r);
	if (status == HR_OK) *out = r;
	else hr__trace_reader_close(r);
	return status;
}

hr_status hr__trace_reader_open(const char *path, hr__trace_reader **out)
{
	int fd;
	uint64_t size;
	if (path == NULL) return hr__fail(HR_INVALID_ARGUMENT, "a trace needs a path");
	int error = hr__os()->file_open(path, &fd, &size);
	if (error != 0) return hr__os_fail(error, "cannot open the trace %s", path);
	hr_status status = open_reader(NULL, fd, size, out);
	return status == HR_OK ? HR_OK : hr__fail_in(status, "%s", path);
}

hr_status hr__trace_reader_open_fd(int fd, uint64_t size, hr__trace_reader **out)
{
	return open_reader(NULL, fd, size, out);
}

hr_status hr__trace_reader_open_memory(const void *bytes, size_t size, hr__trace_reader **out)
{
	static const uint8_t nothing;
	return open_reader(size > 0 ? bytes : &nothing, -1, size, out);
}

const hr__trace_summary *hr__trace_reader_summary(const hr__trace_reader *reader)
{
	return &reader->summary;
}

/* ---- reading ---- */

static void free_buffer(lane *l)
{
	if (l->buffer != NULL) hr__os()->free(l->buffer, l->buffer_bytes);
	l->buffer = NULL;
	l->buffer_bytes = 0;
}

static hr_status make_buffer(const hr__trace_reader *r, lane *l, size_t bytes)
{
	void *memory;
	if (r->bytes != NULL || bytes <= l->buffer_bytes) return HR_OK;
	free_buffer(l);
	int error = hr__os()->alloc(bytes, &memory);
	if (error != 0) return hr__os_fail(error, "reading a trace");
	l->buffer = memory;
	l->buffer_bytes = bytes;
	return HR_OK;
}

/* Continues decoding with the piece of the current block that begins at [at] within its records. */
static hr_status take_piece(const hr__trace_reader *r, lane *l, uint32_t at)
{
	const file_block *b = hr__list_at(&r->blocks, l->current);
	size_t left = b->used - at, length = r->bytes == NULL && left > PIECE_BYTES ? PIECE_BYTES : left;
	hr_status status = make_buffer(r, l, length);
	if (status == HR_OK) status = get_bytes(r, b->offset + BLOCK_HEADER + at, length, l->buffer, &l->records);
	if (status != HR_OK) return status;
	l->records_at = at;
	hr__decoder_go_on(&l->decoder, l->records, length, left - length);
	return HR_OK;
}

static hr_status begin_block(const hr__trace_reader *r, lane *l, uint32_t index)
{
	const file_block *b = hr__list_at(&r->blocks, index);
	l->current = index;
	hr__decoder_start(&l->decoder, NULL, 0, b->thread, b->first_time);
	l->decoder.events_only = true;
	return take_piece(r, l, 0);
}

/* The decoder's position within the block's records. */
static uint32_t position_of(const lane *l)
{
	return l->records_at + (uint32_t)(l->decoder.at - l->records) + (uint32_t)l->decoder.skip;
}

/* Sets l->event to the lane's next event. HR_NOT_READY when there is none. */
static hr_status advance(const hr__trace_reader *r, lane *l)
{
	hr__definition definition;
	const char *why = NULL;
	hr_status status = HR_OK;
	if (l->current == NONE) status = begin_block(r, l, l->first);
	while (status == HR_OK) {
		const file_block *b = hr__list_at(&r->blocks, l->current);
		hr__decoded decoded = hr__decode(&l->decoder, &l->event, &definition, &why);
		if (decoded == HR__DECODED_EVENT) return HR_OK;
		if (decoded == HR__DECODED_END && l->decoder.beyond > l->decoder.skip) {
			status = take_piece(r, l, position_of(l));
			continue;
		}
		/* Opening found no error here, so an error means that the file has changed since. */
		status = judge_end(b, decoded, b->offset + BLOCK_HEADER + position_of(l), why);
		if (status == HR_OK) status = b->next == NONE ? HR_NOT_READY : begin_block(r, l, b->next);
	}
	return status;
}

static uint64_t units_to_ns(const hr__trace_reader *r, uint64_t units)
{
	unsigned __int128 ns = (unsigned __int128)units * 1000000000u / r->units_per_second;
	return ns > UINT64_MAX ? UINT64_MAX : (uint64_t)ns;
}

static hr_dtype known_dtype(uint32_t dtype)
{
	switch (dtype) {
#define DTYPE_CASE(name, number, size, text) \
	case number: return HR_DTYPE_##name;
		HR_DTYPE_TABLE(DTYPE_CASE)
#undef DTYPE_CASE
	default: return HR_DTYPE_NONE;
	}
}

static void give_event(const hr__trace_reader *r, const hr__event *found, hr__event *out)
{
	*out = *found;
	out->time_ns = units_to_ns(r, found->time_ns);
	hr__catalog_translate(&r->catalog, out);
	out->dtype = known_dtype((uint32_t)found->dtype);
}

/* Advances the top lane and moves it to its new place in the heap. */
static hr_status advance_top(hr__trace_reader *r)
{
	heap_entry *top = r->heap.items;
	lane *l = hr__list_at(&r->lanes, top->lane);
	hr_status status = advance(r, l);
	if (status == HR_OK) {
		top->time = l->event.time_ns;
		sift_down(&r->heap, 0);
	} else {
		free_buffer(l);
		if (status == HR_NOT_READY) drop_top(&r->heap);
	}
	return status;
}

hr_status hr__trace_reader_next(hr__trace_reader *reader, hr__event *out)
{
	while (reader->failed == HR_OK && reader->heap.count > 0) {
		const heap_entry *top = reader->heap.items;
		lane *l = hr__list_at(&reader->lanes, top->lane);
		bool begun = l->current != NONE;
		if (begun) give_event(reader, &l->event, out);
		hr_status status = advance_top(reader);
		if (status != HR_OK && status != HR_NOT_READY) reader->failed = status;
		if (begun) return HR_OK;
	}
	return reader->failed != HR_OK ? reader->failed : HR_NOT_READY;
}

void hr__trace_reader_close(hr__trace_reader *reader)
{
	free_scratch(reader);
	for (size_t i = 0; i < reader->lanes.count; i++) free_buffer(hr__list_at(&reader->lanes, i));
	hr__list_free(&reader->lanes);
	hr__list_free(&reader->blocks);
	hr__list_free(&reader->heap);
	hr__catalog_free(&reader->catalog);
	if (reader->bytes == NULL) hr__os()->file_close(reader->fd);
	hr__os()->free(reader, sizeof(*reader));
}
