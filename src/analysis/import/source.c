/* source.c - see source.h.
 *
 *     file or memory --> raw (only for gzip: packed bytes) --> text: [ read | at ... end | room ]
 *
 * The window (text) is twice as large as the longest line. So any allowed line fits into it after moving the unread bytes to the
 * front once. */
#include "analysis/import/source.h"

#include <string.h>
#ifdef HR_HAVE_ZLIB
#include <zlib.h>
#endif

#include "analysis/import/quote.h"
#include "core/base/checked.h"
#include "core/base/status.h"
#include "core/os/os.h"

#define WINDOW_BYTES (2 * HR__SOURCE_LINE_MAX)
#define RAW_BYTES 65536u
/* Limits on unpacked bytes: traces expand 3 to 6 times, gzip files made to exhaust memory 1,000 times. */
#define UNPACKED_TIMES 32u
#define UNPACKED_ALWAYS (UINT64_C(16) << 20)
#define ZIP_HEADER 16u

struct hr__source {
	char *path; /* NULL: memory */
	size_t path_bytes;
	int fd;        /* -1: memory */
	uint64_t size; /* of the file or memory; 0: unknown */
	uint64_t file_read;
	const unsigned char *memory;
	size_t memory_size, memory_at;

	bool gzip;
	bool ended;             /* no more bytes will be added to the window */
	uint64_t line;          /* lines read */
	uint64_t window_offset; /* offset of text[0] */
	size_t at, end;
	char *text; /* WINDOW_BYTES, and one for a final 0 */

	unsigned char *raw;
	size_t raw_at, raw_end;
	uint64_t raw_offset; /* packed bytes read */
	uint64_t unpacked;   /* bytes unpacked from them */
	bool raw_ended;
#ifdef HR_HAVE_ZLIB
	z_stream zip;
	bool zip_open, in_member;
#endif
};

/* ---- messages ---- */

static const char *name_of(const hr__source *source, char quoted[HR__QUOTE_BYTES])
{
	if (!source->path) return "the trace";
	if (strcmp(source->path, "-") == 0) return "standard input";
	/* Quote the path only if it is ambiguous otherwise. */
	size_t length = strlen(source->path);
	hr__quote(source->path, length, quoted);
	return length + 2 == strlen(quoted) && !strpbrk(source->path, " :\"'") ? source->path : quoted;
}

hr_status hr__source_fail(const hr__source *source, hr_status status)
{
	char quoted[HR__QUOTE_BYTES];
	return hr__fail_in(status, "%s", name_of(source, quoted));
}

hr_status hr__source_fail_line(const hr__source *source, hr_status status, uint64_t line)
{
	char quoted[HR__QUOTE_BYTES];
	return hr__fail_in(status, "%s: line %llu", name_of(source, quoted), (unsigned long long)line);
}

hr_status hr__source_fail_byte(const hr__source *source, hr_status status, uint64_t offset)
{
	char quoted[HR__QUOTE_BYTES];
	return hr__fail_in(status, "%s: byte %llu", name_of(source, quoted), (unsigned long long)offset);
}

/* ---- memory ---- */

static hr_status get_memory(size_t bytes, void **out)
{
	int error = hr__os()->alloc(bytes, out);
	return error ? hr__os_fail(error, "no memory for reading a trace") : HR_OK;
}

static void give_back(void *memory, size_t bytes)
{
	if (memory) hr__os()->free(memory, bytes);
}

/* ---- raw bytes ---- */

/* Reads up to [capacity] bytes as they are in the file; *got is 0 at the end. */
static hr_status read_raw(hr__source *source, void *to, size_t capacity, size_t *got)
{
	if (source->fd < 0) {
		*got = source->memory_size - source->memory_at;
		if (*got > capacity) *got = capacity;
		if (*got) memcpy(to, source->memory + source->memory_at, *got);
		source->memory_at += *got;
		return HR_OK;
	}
	/* A file that grows while it is read ends where it ended when it was opened, so that hr__source_bytes_max holds. */
	uint64_t left = source->size ? source->size - source->file_read : capacity;
	int error = hr__os()->input_read(source->fd, to, left < capacity ? (size_t)left : capacity, got);
	if (!error) source->file_read += *got;
	return error ? hr__source_fail(source, hr__os_fail(error, "cannot be read")) : HR_OK;
}

#ifdef HR_HAVE_ZLIB

static hr_status bad_gzip(const hr__source *source, hr_status status, const char *what)
{
	hr__fail(status, "%s", what);
	return hr__source_fail_byte(source, status, source->raw_offset - (source->raw_end - source->raw_at));
}

static hr_status refill_raw(hr__source *source)
{
	if (source->raw_at < source->raw_end || source->raw_ended) return HR_OK;
	source->raw_at = source->raw_end = 0;
	hr_status status = read_raw(source, source->raw, RAW_BYTES, &source->raw_end);
	source->raw_offset += source->raw_end;
	source->raw_ended = !status && source->raw_end == 0;
	return status;
}

/* Unpacks some bytes to [to]; *got is 0 at the end. A file may consist of several gzip members. */
static hr_status read_gzip(hr__source *source, void *to, size_t capacity, size_t *got)
{
	*got = 0;
	while (*got == 0) {
		hr_status status = refill_raw(source);
		if (status) return status;
		if (source->raw_ended) {
			if (!source->in_member) return HR_OK;
			return bad_gzip(source, HR_TRUNCATED, "the gzip data ends in the middle: the file was cut; get it again");
		}
		if (!source->in_member) {
			if (inflateReset(&source->zip) != Z_OK) return bad_gzip(source, HR_BAD_FORMAT, "zlib cannot go on");
			source->in_member = true;
		}
		source->zip.next_in = source->raw + source->raw_at;
		source->zip.avail_in = (uInt)(source->raw_end - source->raw_at);
		source->zip.next_out = to;
		source->zip.avail_out = (uInt)capacity;
		int result = inflate(&source->zip, Z_NO_FLUSH);
		source->raw_at = source->raw_end - source->zip.avail_in;
		*got = capacity - source->zip.avail_out;
		source->unpacked += *got;
		if (source->unpacked > UNPACKED_ALWAYS && (source->unpacked - UNPACKED_ALWAYS) / UNPACKED_TIMES > source->raw_offset)
			return bad_gzip(source, HR_TOO_MANY, "the gzip data is more than 32 times as long when it is unpacked, which traces are not; if "
			                                     "this is one, run gunzip first");
		if (result == Z_STREAM_END) source->in_member = false;
		else if (result != Z_OK && result != Z_BUF_ERROR)
			return bad_gzip(source, HR_BAD_FORMAT, "the gzip data is damaged; get the file again");
	}
	return HR_OK;
}

/* zlib frees memory without saying how much it was, so the size is stored in front of it. */
static void *zip_alloc(void *unused, unsigned count, unsigned size)
{
	uint64_t bytes;
	void *memory;
	(void)unused;
	if (!hr__multiply(count, size, &bytes) || !hr__add(bytes, ZIP_HEADER, &bytes) || hr__os()->alloc((size_t)bytes, &memory)) return NULL;
	memcpy(memory, &bytes, sizeof bytes);
	return (char *)memory + ZIP_HEADER;
}

static void zip_free(void *unused, void *block)
{
	uint64_t bytes;
	(void)unused;
	memcpy(&bytes, (char *)block - ZIP_HEADER, sizeof bytes);
	hr__os()->free((char *)block - ZIP_HEADER, (size_t)bytes);
}

static hr_status open_gzip(hr__source *source)
{
	hr_status status = get_memory(RAW_BYTES, (void **)&source->raw);
	if (status) return status;
	source->zip.zalloc = zip_alloc;
	source->zip.zfree = zip_free;
	if (inflateInit2(&source->zip, 15 + 16) != Z_OK) return hr__fail(HR_NO_HOST_MEMORY, "no memory for unpacking gzip");
	source->zip_open = source->in_member = true;
	/* The bytes in the window were read as plain text to detect gzip. */
	memcpy(source->raw, source->text, source->end);
	source->raw_end = source->end;
	source->raw_offset = source->end;
	source->end = 0;
	source->ended = false;
	return HR_OK;
}

#else

static hr_status read_gzip(hr__source *source, void *to, size_t capacity, size_t *got)
{
	(void)source, (void)to, (void)capacity;
	*got = 0;
	return HR_OK;
}

static hr_status open_gzip(hr__source *source)
{
	hr__fail(HR_UNSUPPORTED, "it is packed with gzip, and this program was built without zlib; run gunzip first");
	return hr__source_fail(source, HR_UNSUPPORTED);
}

#endif

/* ---- the window ---- */

/* Moves the unread bytes to the front and reads at most [most] more. */
static hr_status fill(hr__source *source, size_t most)
{
	size_t left = source->end - source->at, got = 0;
	if (source->ended) return HR_OK;
	if (source->at > 0) memmove(source->text, source->text + source->at, left);
	source->window_offset += source->at;
	source->at = 0;
	source->end = left;
	size_t room = WINDOW_BYTES - left;
	if (room > most) room = most;
	hr_status status = source->gzip ? read_gzip(source, source->text + left, room, &got)
	                                : read_raw(source, source->text + left, room, &got);
	if (status) return status;
	source->end += got;
	source->ended = got == 0;
	return HR_OK;
}

static hr_status look_at_first_bytes(hr__source *source)
{
	/* A pipe may return one byte at a time: read until there are two. */
	while (source->end < 2 && !source->ended) {
		hr_status status = fill(source, RAW_BYTES - source->end);
		if (status) return status;
	}
	if (source->end == 0) {
		hr__fail(HR_BAD_FORMAT, "it is empty; expected a trace (CSV, RMM log, PyTorch snapshot or Headroom trace)");
		return hr__source_fail(source, HR_BAD_FORMAT);
	}
	if (source->end < 2 || (unsigned char)source->text[0] != 0x1F || (unsigned char)source->text[1] != 0x8B) return HR_OK;
	source->gzip = true;
	return open_gzip(source);
}

static hr_status open_file(hr__source *source, const char *path)
{
	source->path_bytes = strlen(path) + 1;
	hr_status status = get_memory(source->path_bytes, (void **)&source->path);
	if (status) return status;
	memcpy(source->path, path, source->path_bytes);
	if (strcmp(path, "-") == 0) {
		source->fd = 0;
		return HR_OK;
	}
	int error = hr__os()->input_open(path, &source->fd, &source->size);
	return error ? hr__source_fail(source, hr__os_fail(error, "cannot be opened")) : HR_OK;
}

static hr_status open_any(const char *path, const void *bytes, size_t size, hr__source **out)
{
	hr__source *source = NULL;
	hr_status status = get_memory(sizeof *source, (void **)&source);
	if (status) return status;
	*source = (hr__source){ .fd = -1, .memory = bytes, .memory_size = size, .size = size };
	status = get_memory(WINDOW_BYTES + 1, (void **)&source->text);
	if (!status && path) status = open_file(source, path);
	if (!status) status = look_at_first_bytes(source);
	if (status) hr__source_close(source);
	else *out = source;
	return status;
}

hr_status hr__source_open(const char *path, hr__source **out)
{
	return open_any(path, NULL, 0, out);
}

hr_status hr__source_open_memory(const void *bytes, size_t size, hr__source **out)
{
	return open_any(NULL, bytes, size, out);
}

void hr__source_close(hr__source *source)
{
	if (!source) return;
#ifdef HR_HAVE_ZLIB
	if (source->zip_open) inflateEnd(&source->zip);
#endif
	if (source->fd > 0) hr__os()->file_close(source->fd);
	give_back(source->raw, RAW_BYTES);
	give_back(source->text, WINDOW_BYTES + 1);
	give_back(source->path, source->path_bytes);
	give_back(source, sizeof *source);
}

bool hr__source_is_gzip(const hr__source *source)
{
	return source->gzip;
}

uint64_t hr__source_bytes_max(const hr__source *source)
{
	uint64_t unpacked;
	if (!source->size) return UINT64_MAX;
	if (!source->gzip) return source->size;
	/* More than the limit by at most what is unpacked at once. */
	return hr__multiply(source->size + RAW_BYTES, UNPACKED_TIMES, &unpacked) && hr__add(unpacked, UNPACKED_ALWAYS + WINDOW_BYTES, &unpacked) ? unpacked : UINT64_MAX;
}

const void *hr__source_memory(const hr__source *source, size_t *size)
{
	*size = source->memory_size;
	return source->gzip ? NULL : source->memory;
}

/* ---- reading ---- */

hr_status hr__source_peek(hr__source *source, const char **bytes, size_t *count)
{
	hr_status status = source->at == source->end ? fill(source, WINDOW_BYTES) : HR_OK;
	*bytes = source->text + source->at;
	*count = source->end - source->at;
	return status;
}

void hr__source_skip(hr__source *source, size_t count)
{
	source->at += count;
}

uint64_t hr__source_offset(const hr__source *source)
{
	return source->window_offset + source->at;
}

/* Length of the next line with its terminator; 0 at the end of the file. */
static hr_status measure_line(hr__source *source, size_t *length)
{
	size_t searched = 0;
	for (;;) {
		char *begin = source->text + source->at, *newline = NULL;
		size_t have = source->end - source->at;
		if (have > searched) newline = memchr(begin + searched, '\n', have - searched);
		*length = newline ? (size_t)(newline - begin) + 1 : have;
		if (*length > HR__SOURCE_LINE_MAX) {
			hr__fail(HR_BAD_FORMAT, "longer than %u bytes; is this a trace?", HR__SOURCE_LINE_MAX);
			return hr__source_fail_line(source, HR_BAD_FORMAT, source->line + 1);
		}
		if (newline || source->ended) return HR_OK;
		searched = have;
		hr_status status = fill(source, WINDOW_BYTES);
		if (status) return status;
	}
}

hr_status hr__source_next_line(hr__source *source, hr__source_line *line)
{
	size_t length;
	hr_status status = measure_line(source, &length);
	if (status) return status;
	if (length == 0) return HR_NOT_READY;
	*line = (hr__source_line){ .text = source->text + source->at, .length = length, .number = ++source->line };
	source->at += length;
	if (line->text[line->length - 1] == '\n') line->length--;
	if (line->length > 0 && line->text[line->length - 1] == '\r') line->length--;
	line->text[line->length] = 0;
	if (!memchr(line->text, 0, line->length)) return HR_OK;
	hr__fail(HR_BAD_FORMAT, "a NUL byte; is this a trace?");
	return hr__source_fail_line(source, HR_BAD_FORMAT, line->number);
}
