/* facts.h - the selection of one device of a capture, and what a user must know about its figures: what the trace is, and what was
 * left out of it or changed. */
#ifndef HR_PROFILE_FACTS_H
#define HR_PROFILE_FACTS_H

#include "analysis/capture/capture.h"

#define HR__FACTS_DEVICE_MOST (-1) /* selects the device with most allocations */

typedef struct hr__trace_facts {
	hr__trace_format format;
	bool gzip;
	uint32_t device;        /* index in the capture */
	uint32_t devices;       /* number of devices with allocations */
	bool names_devices;     /* the format distinguishes devices */
	uint64_t page_bytes;    /* of the device, from the file; 0: unknown */
	uint64_t use_events;    /* begins and ends of ops and steps, reads and writes */
	uint64_t unknown_uses;  /* of those, left out: of an op or block that is not known */
	uint64_t unknown_frees; /* left out: of blocks allocated before the recording began */
	uint64_t implied_frees; /* added: the address was allocated again while it was live */
	uint64_t empty_allocs;  /* left out: of 0 bytes */
	uint64_t refusals;      /* left out: requests that failed when recorded */
	uint64_t moves;         /* evictions, restores and moves of tensors */
	uint64_t joined;        /* of those, restores and moves that were joined to the life of their tensor */
	uint64_t late;          /* events whose time went back, and was corrected */
	uint64_t lost;          /* events that the recorder could not write */
	bool unfinished;        /* the recorder was killed */
} hr__trace_facts;

/* Selects device number [wanted] of the file, or HR__FACTS_DEVICE_MOST. A format without devices has one, whatever is wanted.
 * HR_INVALID_ARGUMENT: there is no such device. HR_BAD_FORMAT: it has no allocation. The messages do not name the file. */
hr_status hr__trace_facts_find(const hr__capture *capture, int64_t wanted, hr__trace_facts *out);

/* What the figures are for: a replay of allocations and frees as recorded, or a plan of the program and its uses. */
typedef enum hr__facts_purpose { HR__FACTS_REPLAY, HR__FACTS_PLAN } hr__facts_purpose;

/* Writes one line of text for each thing that was left out or changed to [out], with a final 0. Returns the length. */
size_t hr__trace_facts_notes(const hr__trace_facts *facts, hr__facts_purpose purpose, char *out, size_t capacity);

#endif
