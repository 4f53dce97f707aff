/* host.h - where the contents of tensors are while they are away: pinned host memory first, and a file when that is full.
 *
 *   pinned   a bfc allocator on the pinned host memory of the device (core/device/pinned.c): slabs, a limit, blocks recycled in stream order.
 *            A copy there and back is asynchronous
 *   file     in spill_dir, unlinked as soon as it is made, so that nothing is left whatever happens. Bytes go through a ring of pinned
 *            buffers: while one is being written, the next is being filled. The call returns when the file has them; on the way back
 *            it returns when the last buffer is on its way to the device (host_file.c)
 *
 * The ring is taken from pinned memory at open, because none is left when it is first needed: 4 buffers of 16 MiB, or of a sixteenth of
 * the limit where that is less. A copy that is larger than all pinned memory goes to the file as well.
 *
 * Every function may be called from any thread; nothing here takes a lock that an allocation on the device waits for. */
#ifndef HR_LMS_HOST_H
#define HR_LMS_HOST_H

#include "core/device/device.h"

typedef struct hr__host hr__host;

/* A tensor's contents on the host. All zero = there are none. */
typedef struct hr__host_copy {
	uint64_t address; /* in pinned memory; 0 = in the file */
	uint64_t offset;  /* in the file */
	uint64_t bytes;   /* 0 = no copy */
	uint32_t room;    /* in the file: the number of the record of its room */
} hr__host_copy;

typedef struct hr__host_options {
	uint64_t limit;        /* of pinned memory; 0 = half of the host's memory */
	const char *spill_dir; /* NULL = no file */
	uint64_t spill_limit;  /* of the file's length, in whole blocks of 4 KiB; 0 = as much as the disk takes */
	bool scratch;          /* pinned memory to look at device memory with is wanted: below */
} hr__host_options;

/* Pinned memory that nothing is kept in: 32 MiB, or an eighth of the limit where that is less. */
typedef struct hr__host_scratch {
	uint8_t *at;
	uint64_t bytes;
	bool readable; /* there is memory behind it: not on the simulated device */
} hr__host_scratch;

typedef struct hr__host_usage {
	int64_t pinned_bytes, peak_pinned_bytes;   /* of copies, rounding and the ring not counted */
	int64_t reserved_bytes;                    /* taken from the host in slabs, ring and scratch included */
	int64_t spilled_bytes, peak_spilled_bytes; /* of copies in the file, which is as long as it ever had to be */
} hr__host_usage;

/* HR_IO with the directory's name when spill_dir cannot be written, HR_UNSUPPORTED for a spill_dir on a device without memory behind it
 * (simulated), HR_BAD_LIMIT, HR_NO_HOST_MEMORY; HR_OUT_OF_MEMORY when the host has none for ring or scratch; HR_IN_USE when another host
 * tier of the same card is in use with another limit (hr__device_pinned). The strings of [options] are not needed afterwards. */
hr_status hr__host_open(hr__device *device, const hr__host_options *options, hr__host **out);
/* Waits for the copies that are on their way, and gives everything back. HR_IN_USE, and nothing happens, while copies are left. NULL is
 * HR_OK. */
hr_status hr__host_close(hr__host *host);
/* After fork, in the child: forgets it without touching what the parent shares. Copies are forgotten with it. */
void hr__host_forget(hr__host *host);

/* Copies request->bytes of device memory at [address] to the host, in the order of request->stream. The device memory may be handed on to work that
 * comes after on that stream. The ledger has the names of [request]: whose data it is, not who made it leave. *copy must be zero before. When it fails, *copy is as it was and no room is kept.
 *
 * HR_OUT_OF_MEMORY  names the tier that is full and the setting that changes it (host_limit, spill_limit, the disk)
 * HR_IO             the file could not be written
 * HR_DEVICE_ERROR, HR_NO_HOST_MEMORY, HR_INVALID_ARGUMENT (bytes 0, or no such stream) */
hr_status hr__host_store(hr__host *host, uint64_t address, const hr_request *request, hr__host_copy *copy);

/* Copies it back, in the order of [stream], on which or before which the copy was stored; the caller sees to that order. The copy stays
 * good, also when it fails: then part of the device memory may be overwritten. HR_IO when the file does not give all of it back. */
hr_status hr__host_load(hr__host *host, const hr__host_copy *copy, uint64_t address, hr_stream stream);

/* Gives the room back; [stream] is the last one that was given work on it. *copy becomes zero; where it was, nothing happens. Cannot
 * fail. */
void hr__host_drop(hr__host *host, hr__host_copy *copy, hr_stream stream);

/* Gives slabs of pinned memory back that hold nothing, for those who need it otherwise. */
void hr__host_trim(hr__host *host);

/* Counts [bytes] of contents (negative: no longer) in pinned memory that is not from the pool here: they are in the usage too. */
void hr__host_count(hr__host *host, int64_t bytes);

/* The scratch memory, for one at a time; where it was not asked for, all zero. */
const hr__host_scratch *hr__host_get_scratch(const hr__host *host);

hr__host_usage hr__host_get_usage(const hr__host *host);
void hr__host_reset_peaks(hr__host *host); /* to what is held now; under any lock */
/* Bytes of copies that it could still take, about: UINT64_MAX where there is a file. */
uint64_t hr__host_room(const hr__host *host);

/* Verifies every structure: HR_OK, or HR_CORRUPT with what does not hold in the message. Nobody may be inside a call on it. */
hr_status hr__host_check(hr__host *host);

#endif
