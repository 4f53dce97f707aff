/* handles.c - see handles.h. */
#include "core/device/backends/handles.h"

#include <string.h>

#include "core/os/os.h"

#define EVENTS_AT_FIRST 64u

void hr__handles_init(hr__handles *handles, const char *device, uint32_t stream_max, size_t event_bytes)
{
	HR_ASSERT(stream_max >= 1 && stream_max <= HR__HANDLES_STREAMS_MAX && event_bytes >= sizeof(hr__event_head));
	*handles = (hr__handles){ .device = device, .stream_max = stream_max, .streams = { true }, .event_bytes = event_bytes };
}

void hr__handles_destroy(hr__handles *handles)
{
	if (handles->events) hr__os()->free(handles->events, handles->event_capacity * handles->event_bytes);
	handles->events = NULL;
}

/* ---- streams ---- */

hr_status hr__handles_stream_create(hr__handles *handles, hr_native_stream *stream)
{
	uint32_t slot = 1;
	while (slot < handles->stream_max && handles->streams[slot]) slot++;
	if (slot == handles->stream_max) return hr__fail(HR_TOO_MANY, "the %s device has %u streams already", handles->device, handles->stream_max);
	handles->streams[slot] = true;
	*stream = slot;
	return HR_OK;
}

hr_status hr__handles_stream_check(const hr__handles *handles, hr_native_stream stream)
{
	if (stream < handles->stream_max && handles->streams[stream]) return HR_OK;
	return hr__fail(HR_INVALID_ARGUMENT, "the %s device has no stream %llu", handles->device, (unsigned long long)stream);
}

hr_status hr__handles_stream_check_destroy(const hr__handles *handles, hr_native_stream stream)
{
	if (stream == 0) return hr__fail(HR_INVALID_ARGUMENT, "the default stream cannot be destroyed");
	return hr__handles_stream_check(handles, stream);
}

void hr__handles_stream_destroy(hr__handles *handles, hr_native_stream stream)
{
	HR_ASSERT(stream > 0 && stream < handles->stream_max);
	handles->streams[stream] = false;
}

/* ---- events ---- */

static hr_status grow_events(hr__handles *handles)
{
	int error = hr__os_grow(&handles->events, &handles->event_capacity, handles->event_bytes, EVENTS_AT_FIRST);
	return error ? hr__os_fail(error, "events of the %s device", handles->device) : HR_OK;
}

hr_status hr__handles_event_create(hr__handles *handles, hr_native_event *event)
{
	bool reuses = handles->event_free != 0;
	hr_status status = !reuses && handles->event_made == handles->event_capacity ? grow_events(handles) : HR_OK;
	if (status != HR_OK) return status;
	uint32_t number = reuses ? handles->event_free : ++handles->event_made;
	hr__event_head *made = hr__handles_event_at(handles, number);
	if (reuses) handles->event_free = made->next_free;
	memset(made, 0, handles->event_bytes);
	made->live = true;
	*event = number;
	return HR_OK;
}

void hr__handles_event_destroy(hr__handles *handles, hr_native_event event)
{
	hr__event_head *gone = hr__handles_event_at(handles, event);
	HR_ASSERT(gone->live);
	*gone = (hr__event_head){ .next_free = handles->event_free };
	handles->event_free = (uint32_t)event;
}

hr_status hr__handles_event_unrecorded(const hr__handles *handles, hr_native_event event)
{
	return hr__fail(HR_INVALID_ARGUMENT, "event %llu of the %s device was never recorded", (unsigned long long)event, handles->device);
}
