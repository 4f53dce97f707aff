/* open_any.c - opens packed trace files (reader.h). */
#include <stdio.h>

#include "analysis/reader/reader.h"
#include "core/base/atomic.h"
#include "core/base/status.h"
#include "core/os/os.h"
#include "core/record/compress.h"

/* Limits on the contents of a packed trace: without them, 54 KB could hold 64 million events, which take gigabytes. A packed event takes
 * 4 bytes, or 1/4 byte where timestamps hardly differ. */
#define RECORDS_FREE ((uint64_t)1 << 24)
#define EVENTS_MAX 16u /* per packed byte */
#define EVENTS_FREE ((uint64_t)1 << 18)

static bool new_name(char *out, size_t capacity)
{
	static hr__atomic_u32 count;
	const char *folder = hr__os()->environment("TMPDIR");
	int used = snprintf(out, capacity, "%s/headroom-%d-%u-%llu.hrt", folder && folder[0] ? folder : "/tmp", hr__os()->process_id(),
	                    hr__fetch_add_relaxed(&count, 1), (unsigned long long)hr__os()->wall_clock_ns());
	return used > 0 && (size_t)used < capacity;
}

/* Creates a file and unlinks it. [path] receives its former name, for messages. */
static hr_status create_nameless(char *path, size_t capacity, int *out)
{
	hr_status status = new_name(path, capacity) ? hr__packed_create(path, out) : hr__fail(HR_IO, "TMPDIR is too long");
	if (status) return status;
	int error = hr__os()->file_remove(path);
	if (!error) return HR_OK;
	hr__os()->file_close(*out);
	return hr__os_fail(error, "cannot remove %.300s", path);
}

/* Memory use depends on events and records, so their number must be proportional to the file. */
static hr_status check_growth(const hr__trace_reader *reader, uint64_t packed)
{
	const hr__trace_summary *summary = hr__trace_reader_summary(reader);
	if (packed > UINT64_MAX / HR__PACKED_GROWTH_MAX) return HR_OK;
	if (summary->events <= EVENTS_FREE + packed * EVENTS_MAX && summary->record_bytes <= RECORDS_FREE + packed * HR__PACKED_GROWTH_MAX) return HR_OK;
	return hr__fail(HR_BAD_FORMAT, "%llu bytes unpack to %llu events, %llu bytes of records, which no recording does; if it is one, unpack it with zstd -d first",
	                (unsigned long long)packed, (unsigned long long)summary->events, (unsigned long long)summary->record_bytes);
}

/* Owns [fd] from here on. */
static hr_status open_unpacked(int fd, uint64_t size, uint64_t packed, hr__trace_reader **out)
{
	hr__trace_reader *reader;
	hr_status status = hr__trace_reader_open_fd(fd, size, &reader);
	if (status) return status;
	status = check_growth(reader, packed);
	if (status) hr__trace_reader_close(reader);
	else *out = reader;
	return status;
}

hr_status hr__trace_reader_open_any(const char *path, hr__trace_reader **out)
{
	char plain[4096];
	int fd;
	uint64_t size, packed;
	if (!path || !hr__is_packed(path)) return hr__trace_reader_open(path, out);
	hr_status status = hr__pack_available();
	if (!status) status = create_nameless(plain, sizeof plain, &fd);
	if (status) return status;
	status = hr__unpack_to(path, plain, fd, &size, &packed);
	if (status && status != HR_TRUNCATED) {
		hr__os()->file_close(fd);
		return status;
	}
	status = open_unpacked(fd, size, packed, out);
	return status ? hr__fail_in(status, "%.200s, unpacked", path) : HR_OK;
}
