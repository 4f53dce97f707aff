/* reader.h - reads trace files. Safe on any input. */
#ifndef HR_READER_READER_H
#define HR_READER_READER_H

#include "core/os/rank.h"
#include "core/trace/trace.h"

typedef struct hr__trace_reader hr__trace_reader;

typedef struct hr__trace_device {
	uint32_t id;
	const char *name;
	uint64_t limit_bytes, page_bytes;
} hr__trace_device;

typedef struct hr__trace_allocator {
	uint32_t id, device;
	const char *name, *kind;
	uint64_t limit_bytes; /* 0 = unknown */
} hr__trace_allocator;

typedef struct hr__trace_summary {
	uint64_t start_wall_ns;
	uint64_t events, threads, blocks; /* thread numbers are below threads */
	uint64_t record_bytes;            /* bytes of records in all blocks, without unused space */
	bool complete;           /* false: the writer was killed or is still writing; everything up to that point can be read */
	uint64_t lost;           /* events that the writer lost */
	bool limited;            /* the recording ended because the file reached its size limit */
	hr__rank rank;           /* of the process; count 0: it was not a rank, or the file does not say */
	bool knows_rank;         /* the file says whether the process was a rank */
	uint32_t process;        /* its id; 0: the file does not say */
	char writer[32];         /* the program that wrote the file, "headroom 0.2.0"; "": unknown. Printable, terminated */
	const hr__trace_device *devices;
	size_t device_count;
	const hr__trace_allocator *allocators;
	size_t allocator_count;
} hr__trace_summary;

/* Opens a trace file; reads and checks all of it once. HR_IO, HR_BAD_FORMAT (the message gives the byte), HR_TRUNCATED (the file
 * ends inside its header; a file that ends later is read up to its end, with complete = false), HR_TOO_NEW, HR_NO_HOST_MEMORY. If
 * the file is truncated meanwhile, as when its writer stops, the trace ends there. Memory use is proportional to names, threads and
 * blocks, never to the value of a length field: one block while opening, then at most 64 KiB for each lane that is being read. */
hr_status hr__trace_reader_open(const char *path, hr__trace_reader **out);
/* The same for an open file of [size] bytes; takes ownership of [fd], even on failure. */
hr_status hr__trace_reader_open_fd(int fd, uint64_t size, hr__trace_reader **out);
/* The same for bytes in memory, which must outlive the reader. */
hr_status hr__trace_reader_open_memory(const void *bytes, size_t size, hr__trace_reader **out);
const hr__trace_summary *hr__trace_reader_summary(const hr__trace_reader *reader);
/* Returns the next event of all threads in order of time. HR_NOT_READY at the end. Names, shapes and stacks are ids of this process. HR_IO,
 * HR_BAD_FORMAT (the file was changed since it was opened) and HR_NO_HOST_MEMORY end the reading too. */
hr_status hr__trace_reader_next(hr__trace_reader *reader, hr__event *out);
void hr__trace_reader_close(hr__trace_reader *reader);

/* hr__trace_reader_open for plain and packed files. A packed file is first unpacked to a file in $TMPDIR or /tmp, which is unlinked
 * before anything is written to it, so that it disappears when the process ends in any way. A packed file that is incomplete reads
 * as a truncated trace, with `complete` false. To keep memory proportional to the file, HR_BAD_FORMAT is returned for a packed file
 * with more than 16 events per byte plus 262,144, or more than 256 bytes of records per byte plus 16 MiB. */
hr_status hr__trace_reader_open_any(const char *path, hr__trace_reader **out);

#endif
