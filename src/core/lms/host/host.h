/* host.h - host copies of tensors: in pinned host memory first, and in a file when that is full.
 *
 *   pinned   a bfc allocator on the pinned host memory of the device (core/device/pinned.c): slabs, a limit, blocks reused in
 *            stream order. Copies in both directions are asynchronous
 *   file     in spill_dir, unlinked as soon as it is created, so that nothing is left however the process ends. Bytes go through a
 *            ring of pinned buffers: while one is written, the next is filled. A store returns when the file has all bytes; a load
 *            returns when the last buffer is on its way to the device (host_file.c)
 *
 * The ring is allocated from pinned memory at open, because none is left when it is first needed: 4 buffers of 16 MiB, or of 1/16
 * of the limit if that is less. A copy that is larger than all pinned memory goes to the file, too.
 *
 * All functions may be called from any thread. None acquires a lock that an allocation on the device waits for. */
#ifndef HR_LMS_HOST_H
#define HR_LMS_HOST_H

#include "core/device/device.h"

typedef struct hr__host hr__host;

/* A tensor's contents on the host. All zero = none. */
typedef struct hr__host_copy {
	uint64_t address; /* in pinned memory; 0 = in the file */
	uint64_t offset;  /* in the file */
	uint64_t bytes;   /* 0 = no copy */
	uint32_t room;    /* in the file: the chunk record of its range */
} hr__host_copy;

typedef struct hr__host_options {
	uint64_t limit;        /* of pinned memory; 0 = half of the host's memory */
	const char *spill_dir; /* NULL = no file */
	uint64_t spill_limit;  /* of the file's length, in whole blocks of 4 KiB; 0 = as much as the disk takes */
	bool scratch;          /* allocate scratch memory: see below */
} hr__host_options;

/* Pinned memory for reading device memory, without lasting contents: 32 MiB, or 1/8 of the limit if that is less. */
typedef struct hr__host_scratch {
	uint8_t *at;
	uint64_t bytes;
	bool readable; /* backed by real memory: not on the simulated device */
} hr__host_scratch;

typedef struct hr__host_usage {
	int64_t pinned_bytes, peak_pinned_bytes;   /* of copies, without rounding and the ring */
	int64_t reserved_bytes;                    /* allocated from the host in slabs, including ring and scratch */
	int64_t spilled_bytes, peak_spilled_bytes; /* of copies in the file, which never shrinks */
} hr__host_usage;

/* HR_IO with the directory's name if spill_dir cannot be written, HR_UNSUPPORTED for a spill_dir on a device without real memory
 * (simulated), HR_BAD_LIMIT, HR_NO_HOST_MEMORY; HR_OUT_OF_MEMORY if the host has none for ring or scratch; HR_IN_USE if another
 * host tier of the same card is in use with another limit (hr__device_pinned). The strings of [options] are not needed
 * afterwards. */
hr_status hr__host_open(hr__device *device, const hr__host_options *options, hr__host **out);
/* Waits for copies that are under way, and frees everything. HR_IN_USE, and nothing happens, while copies are left. NULL is
 * HR_OK. */
hr_status hr__host_close(hr__host *host);
/* After fork, in the child: forgets the host tier and its copies without touching what the parent shares. */
void hr__host_forget(hr__host *host);

/* Copies request->bytes of device memory at [address] to the host, in the order of request->stream. Later work on that stream may
 * reuse the device memory. The ledger gets the names of [request], which are those of the data's owner, not of the request that
 * evicted it. *copy must be zero before. On failure *copy is unchanged and no room is kept.
 *
 * HR_OUT_OF_MEMORY  names the tier that is full and the setting that changes it (host_limit, spill_limit, the disk)
 * HR_IO             the file could not be written
 * HR_DEVICE_ERROR, HR_NO_HOST_MEMORY, HR_INVALID_ARGUMENT (bytes 0, or no such stream) */
hr_status hr__host_store(hr__host *host, uint64_t address, const hr_request *request, hr__host_copy *copy);

/* Copies it back, in the order of [stream]. The caller makes sure that the copy was stored on that stream or before. The copy stays
 * valid, even on failure: then part of the device memory may be overwritten. HR_IO if the file does not return all of it. */
hr_status hr__host_load(hr__host *host, const hr__host_copy *copy, uint64_t address, hr_stream stream);

/* Frees the room; [stream] is the last one with work queued on it. *copy becomes zero; if it was zero, nothing happens. Cannot
 * fail. */
void hr__host_drop(hr__host *host, hr__host_copy *copy, hr_stream stream);

/* Returns empty slabs of pinned memory to the host. */
void hr__host_trim(hr__host *host);

/* Counts [bytes] of contents (negative: no longer) in pinned memory that is not from this pool, so that the usage includes them. */
void hr__host_count(hr__host *host, int64_t bytes);

/* The scratch memory, for one user at a time; all zero if it was not requested. */
const hr__host_scratch *hr__host_get_scratch(const hr__host *host);

hr__host_usage hr__host_get_usage(const hr__host *host);
void hr__host_reset_peaks(hr__host *host); /* to the current values; under any lock */
/* Bytes of copies that still fit, approximately: UINT64_MAX if there is a file. */
uint64_t hr__host_room(const hr__host *host);

/* Verifies every structure: HR_OK, or HR_CORRUPT with what is violated in the message. No other thread may be inside a call. */
hr_status hr__host_check(hr__host *host);

#endif
