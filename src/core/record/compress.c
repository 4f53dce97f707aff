/* compress.c - see compress.h. Uses only zstd's streaming calls, which have been stable since zstd 1.4 (2019). */
#include "core/record/compress.h"

#include <stdio.h>
#include <string.h>

#include "core/base/atomic.h"
#include "core/base/lock.h"
#include "core/base/status.h"
#include "core/os/library.h"
#include "core/os/os.h"

#define PIECE ((size_t)1 << 17) /* recommended by zstd: one of its blocks */
#define LEVEL 3
/* Unpacked bytes that are always allowed, whatever HR__PACKED_GROWTH_MAX says. Unused parts of a recording's blocks are zeros, which pack to
 * almost nothing. */
#define GROWTH_FREE ((uint64_t)1 << 28)

/* ---- the library ---- */

typedef struct buffer_in {
	const void *at;
	size_t size, done;
} buffer_in;

typedef struct buffer_out {
	void *at;
	size_t size, done;
} buffer_out;

enum { CONTINUE = 0, END = 2 };      /* ZSTD_EndDirective */
enum { LEVEL_PARAMETER = 100, CHECKSUM_PARAMETER = 201, WINDOW_PARAMETER = 100 }; /* ZSTD_cParameter, ZSTD_dParameter */

/* Logarithm of the history window that zstd may allocate for unpacking. The minimum, for small files, is enough for all but zstd's
 * highest levels; the maximum, for large files, is what the command line tool accepts. */
#define WINDOW_LOG_LEAST 23
#define WINDOW_LOG_MOST 27

static struct zstd {
	void *(*new_packer)(void);
	size_t (*free_packer)(void *packer);
	size_t (*set)(void *packer, int parameter, int value);
	size_t (*pack)(void *packer, buffer_out *out, buffer_in *in, int directive);
	void *(*new_unpacker)(void);
	size_t (*free_unpacker)(void *unpacker);
	size_t (*set_unpacker)(void *unpacker, int parameter, int value);
	size_t (*unpack)(void *unpacker, buffer_out *out, buffer_in *in);
	unsigned (*is_error)(size_t result);
	const char *(*error_name)(size_t result);
} zstd;

static hr__atomic_u32 loaded; /* 1: zstd is filled in and does not change any more */
static hr__lock load_lock = HR__LOCK_INIT(HR__RANK_SETTINGS);

/* Copies a data pointer into a function pointer, which C does not allow by assignment. */
static bool find(hr__library *library, const char *name, void *function)
{
	void *symbol = hr__library_symbol(library, name);
	memcpy(function, &symbol, sizeof symbol);
	return symbol != NULL;
}

static bool find_all(hr__library *library, struct zstd *calls)
{
	return find(library, "ZSTD_createCCtx", &calls->new_packer) && find(library, "ZSTD_freeCCtx", &calls->free_packer)
	       && find(library, "ZSTD_CCtx_setParameter", &calls->set) && find(library, "ZSTD_compressStream2", &calls->pack)
	       && find(library, "ZSTD_createDCtx", &calls->new_unpacker) && find(library, "ZSTD_freeDCtx", &calls->free_unpacker)
	       && find(library, "ZSTD_DCtx_setParameter", &calls->set_unpacker) && find(library, "ZSTD_decompressStream", &calls->unpack)
	       && find(library, "ZSTD_isError", &calls->is_error) && find(library, "ZSTD_getErrorName", &calls->error_name);
}

hr_status hr__pack_available(void)
{
	char why[256];
	struct zstd calls;
	if (hr__load_acquire(&loaded)) return HR_OK;
	hr__library *library = hr__library_open("libzstd.so.1", why, sizeof why);
	if (!library) return hr__fail(HR_UNSUPPORTED, "packing traces needs libzstd (Debian: libzstd1): %s", why);
	if (!find_all(library, &calls)) return hr__fail(HR_UNSUPPORTED, "packing traces needs libzstd 1.4 or newer");
	hr__lock_take(&load_lock);
	if (!hr__load_relaxed(&loaded)) {
		zstd = calls;
		hr__store_release(&loaded, 1);
	}
	hr__lock_release(&load_lock);
	return HR_OK;
}

/* ---- files ---- */

/* Copies from one file to another, a piece at a time. */
typedef struct flow {
	int from, to;
	uint64_t read_at, written, size, limit; /* limit: maximum of written */
	buffer_in in;
	buffer_out out;
	bool ended; /* end of input */
	const char *from_path, *to_path;
	char *pieces;
} flow;

/* [to] is the name of the new file open as [to_fd], which the caller still owns. */
static hr_status open_flow(flow *f, const char *from, const char *to, int to_fd)
{
	uint64_t size;
	void *pieces;
	*f = (flow){ .from_path = from, .to_path = to, .to = to_fd, .limit = UINT64_MAX };
	int error = hr__os()->file_open(from, &f->from, &size);
	if (error) return hr__os_fail(error, "cannot open %.300s", from);
	error = hr__os()->alloc(2 * PIECE, &pieces);
	if (error) {
		hr__os()->file_close(f->from);
		return hr__os_fail(error, "cannot get host memory to pack or unpack %.300s", from);
	}
	f->pieces = pieces;
	f->in = (buffer_in){ f->pieces, 0, 0 };
	f->out = (buffer_out){ f->pieces + PIECE, PIECE, 0 };
	f->size = size;
	if (size < UINT64_MAX / HR__PACKED_GROWTH_MAX) f->limit = size * HR__PACKED_GROWTH_MAX > GROWTH_FREE ? size * HR__PACKED_GROWTH_MAX : GROWTH_FREE;
	return HR_OK;
}

static void close_flow(flow *f)
{
	hr__os()->file_close(f->from);
	hr__os()->free(f->pieces, 2 * PIECE);
}

static hr_status read_piece(flow *f)
{
	size_t count;
	if (f->ended || f->in.done < f->in.size) return HR_OK;
	int error = hr__os()->file_read(f->from, f->pieces, PIECE, f->read_at, &count);
	if (error) return hr__os_fail(error, "cannot read %.300s", f->from_path);
	f->in = (buffer_in){ f->pieces, count, 0 };
	f->read_at += count;
	f->ended = count < PIECE;
	return HR_OK;
}

static hr_status write_piece(flow *f)
{
	if (!f->out.done) return HR_OK;
	int error = hr__os()->file_write(f->to, f->out.at, f->out.done, f->written);
	if (error) return hr__os_fail(error, "cannot write %.300s", f->to_path);
	f->written += f->out.done;
	f->out.done = 0;
	return HR_OK;
}

static hr_status pack_all(flow *f, void *packer)
{
	zstd.set(packer, LEVEL_PARAMETER, LEVEL);
	zstd.set(packer, CHECKSUM_PARAMETER, 1);
	for (;;) {
		hr_status status = read_piece(f);
		if (status) return status;
		size_t left = zstd.pack(packer, &f->out, &f->in, f->ended ? END : CONTINUE);
		if (zstd.is_error(left)) return hr__fail(HR_IO, "packing %.300s: %s", f->from_path, zstd.error_name(left));
		status = write_piece(f);
		if (status) return status;
		if (f->ended && !left) return HR_OK;
	}
}

static int window_log(uint64_t size)
{
	int log = WINDOW_LOG_LEAST;
	while (log < WINDOW_LOG_MOST && ((uint64_t)1 << log) / HR__PACKED_GROWTH_MAX < size) log++;
	return log;
}

/* A file may hold several frames, for example after files were concatenated. [left] is 0 at the end of each frame. */
static hr_status unpack_all(flow *f, void *unpacker)
{
	size_t left = 0;
	bool full = false; /* the output buffer is full: zstd may hold more output */
	zstd.set_unpacker(unpacker, WINDOW_PARAMETER, window_log(f->size));
	for (;;) {
		hr_status status = read_piece(f);
		if (status) return status;
		if (f->ended && f->in.done == f->in.size && !full) break;
		uint64_t before = f->read_at - f->in.size + f->in.done;
		left = zstd.unpack(unpacker, &f->out, &f->in);
		if (zstd.is_error(left))
			return hr__fail(HR_BAD_FORMAT, "%.300s: not a valid packed trace: byte %llu: %s", f->from_path, (unsigned long long)before,
			                zstd.error_name(left));
		full = f->out.done == f->out.size;
		if (f->written + f->out.done > f->limit)
			return hr__fail(HR_BAD_FORMAT, "%.300s: unpacks to more than %llu bytes, which no trace does", f->from_path,
			                (unsigned long long)f->limit);
		status = write_piece(f);
		if (status) return status;
	}
	if (left) return hr__fail(HR_TRUNCATED, "%.300s: the packed trace ends in the middle, at byte %llu", f->from_path, (unsigned long long)f->read_at);
	return HR_OK;
}

hr_status hr__packed_create(const char *path, int *out)
{
	int error = hr__os()->file_create(path, out);
	return error ? hr__os_fail(error, "cannot create %.300s (it must not exist yet)", path) : HR_OK;
}

static hr_status pack_to(const char *from, const char *to, int to_fd)
{
	flow f;
	hr_status status = open_flow(&f, from, to, to_fd);
	if (status) return status;
	void *packer = zstd.new_packer();
	status = packer ? pack_all(&f, packer) : hr__fail(HR_NO_HOST_MEMORY, "cannot get host memory to pack %.300s", from);
	if (packer) zstd.free_packer(packer);
	close_flow(&f);
	return status;
}

hr_status hr__pack(const char *path)
{
	char packed[4096 + sizeof HR__PACKED_SUFFIX];
	int fd;
	hr_status status = hr__pack_available();
	if (status) return status;
	int used = snprintf(packed, sizeof packed, "%s" HR__PACKED_SUFFIX, path);
	if (used < 0 || (size_t)used >= sizeof packed) return hr__fail(HR_IO, "the path is too long");
	status = hr__packed_create(packed, &fd);
	if (status) return status;
	status = pack_to(path, packed, fd);
	hr__os()->file_close(fd);
	int error = hr__os()->file_remove(status ? packed : path);
	if (!status && error) return hr__os_fail(error, "cannot remove %.300s, which is packed now", path);
	return status;
}

hr_status hr__unpack_to(const char *from, const char *to, int to_fd, uint64_t *size, uint64_t *packed)
{
	flow f;
	hr_status status = open_flow(&f, from, to, to_fd);
	if (status) return status;
	void *unpacker = zstd.new_unpacker();
	status = unpacker ? unpack_all(&f, unpacker) : hr__fail(HR_NO_HOST_MEMORY, "cannot get host memory to unpack %.300s", from);
	if (unpacker) zstd.free_unpacker(unpacker);
	*size = f.written;
	*packed = f.size;
	close_flow(&f);
	return status;
}

/* ---- reading ---- */

bool hr__is_packed(const char *path)
{
	char bytes[sizeof HR__PACKED_MAGIC - 1];
	int fd;
	uint64_t size;
	size_t count = 0;
	if (hr__os()->file_open(path, &fd, &size)) return false;
	int error = hr__os()->file_read(fd, bytes, sizeof bytes, 0, &count);
	hr__os()->file_close(fd);
	return !error && count == sizeof bytes && memcmp(bytes, HR__PACKED_MAGIC, sizeof bytes) == 0;
}
