/* handles.h - the numbers of a software device's streams and events.
 *
 * The simulated and the emulated device use it. Streams have numbers from 0, the default stream, which always exists; events have
 * numbers from 1. Numbers of destroyed ones are reused. What a device stores for an event begins with an hr__event_head.
 *
 * Every function here is called under the device's own lock. */
#ifndef HR_DEVICE_HANDLES_H
#define HR_DEVICE_HANDLES_H

#include "core/base/assert.h"
#include "core/base/status.h"
#include "headroom_backend.h"

#define HR__HANDLES_STREAMS_MAX 256u

typedef struct hr__event_head {
	uint32_t next_free; /* number of the next event that can be reused; 0 = none */
	bool live;
} hr__event_head;

typedef struct hr__handles {
	const char *device; /* "simulated": for messages */
	uint32_t stream_max;
	bool streams[HR__HANDLES_STREAMS_MAX]; /* by number: whether it exists */
	char *events;                          /* event number e is item e - 1 */
	size_t event_bytes, event_capacity;
	uint32_t event_made, event_free;
} hr__handles;

/* Up to [stream_max] streams, and any number of events of [event_bytes] each. */
void hr__handles_init(hr__handles *handles, const char *device, uint32_t stream_max, size_t event_bytes);
void hr__handles_destroy(hr__handles *handles);

/* HR_TOO_MANY. */
hr_status hr__handles_stream_create(hr__handles *handles, hr_native_stream *stream);
/* HR_INVALID_ARGUMENT when there is no such stream. */
hr_status hr__handles_stream_check(const hr__handles *handles, hr_native_stream stream);
/* The same for a stream that is to be destroyed, which the default stream cannot be. */
hr_status hr__handles_stream_check_destroy(const hr__handles *handles, hr_native_stream stream);
void hr__handles_stream_destroy(hr__handles *handles, hr_native_stream stream);

/* Creates an event; what the device stores for it is zeroed after the head. HR_NO_HOST_MEMORY. Moves the events that exist. */
hr_status hr__handles_event_create(hr__handles *handles, hr_native_event *event);
void hr__handles_event_destroy(hr__handles *handles, hr_native_event event);

/* What the device stores for an event that exists. */
static inline void *hr__handles_event_at(const hr__handles *handles, hr_native_event event)
{
	HR_ASSERT(event >= 1 && event <= handles->event_made);
	return handles->events + (event - 1) * handles->event_bytes;
}

/* The same for any number. NULL when there is no such event; *status is then HR_INVALID_ARGUMENT, else HR_OK. */
static inline void *hr__handles_event_find(const hr__handles *handles, hr_native_event event, hr_status *status)
{
	hr__event_head *found = event >= 1 && event <= handles->event_made ? hr__handles_event_at(handles, event) : NULL;
	if (HR_LIKELY(found && found->live)) {
		*status = HR_OK;
		return found;
	}
	*status = hr__fail(HR_INVALID_ARGUMENT, "the %s device has no event %llu", handles->device, (unsigned long long)event);
	return NULL;
}

/* The error of reading the time of an event that has none. */
hr_status hr__handles_event_unrecorded(const hr__handles *handles, hr_native_event event);

#endif
