/* captures.c - see captures.h. A recording begins and ends by calls for one stream, which count the recordings. It also ends with that stream, so the streams are
 * known; those for which the list has no room end their recordings by the call alone. */
#include "captures.h"

#include <pthread.h>

#include "record.h"

HR__ANSWERED_PLAIN(HR__PROTOTYPE)
HR__ANSWERED_STREAM(HR__PROTOTYPES)

#define ORIGINS_MAX 64u

static uint32_t active;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static CUstream origins[ORIGINS_MAX]; /* NULL = an empty place */

/* Puts [now] in the place of [before]. */
static bool replace_origin(CUstream before, CUstream now)
{
	unsigned at = 0;
	pthread_mutex_lock(&lock);
	while (at < ORIGINS_MAX && origins[at] != before) at++;
	if (at < ORIGINS_MAX) origins[at] = now;
	pthread_mutex_unlock(&lock);
	return at < ORIGINS_MAX;
}

bool hr__captures_active(void)
{
	return __atomic_load_n(&active, __ATOMIC_ACQUIRE) > 0;
}

static bool has(CUstream stream, bool per_thread)
{
	CUstreamCaptureStatus status;
	CUstream native = stream || !per_thread ? stream : HR__PER_THREAD_STREAM;
	if (!hr__driver.cuStreamIsCapturing || hr__driver.cuStreamIsCapturing(native, &status) != HR__CUDA_SUCCESS) return true;
	return status != HR__CU_STREAM_CAPTURE_STATUS_NONE;
}

bool hr__captures_has(CUstream stream, bool per_thread)
{
	return hr__captures_active() && has(stream, per_thread);
}

/* Counted before the call, so that no other thread's request comes between. */
static void begin(void)
{
	__atomic_fetch_add(&active, 1, __ATOMIC_ACQ_REL);
}

static CUresult begun(CUresult result, CUstream stream)
{
	if (result != HR__CUDA_SUCCESS) __atomic_fetch_sub(&active, 1, __ATOMIC_ACQ_REL);
	else if (stream) (void)!replace_origin(NULL, stream);
	return result;
}

/* A recording that was spoiled ends with an error. One that the call could not end goes on. */
static CUresult ended(CUresult result, bool was_recording, CUstream stream, bool per_thread)
{
	if (!was_recording || (result != HR__CUDA_SUCCESS && has(stream, per_thread))) return result;
	if (stream) (void)!replace_origin(stream, NULL);
	__atomic_fetch_sub(&active, 1, __ATOMIC_ACQ_REL);
	return result;
}

void hr__captures_end_stream(CUstream stream)
{
	if (stream && hr__captures_active() && replace_origin(stream, NULL)) __atomic_fetch_sub(&active, 1, __ATOMIC_ACQ_REL);
}

#define CAPTURE_CALLS(variant, per_thread)                                                                                                           \
	CUresult cuStreamBeginCapture_v2##variant(CUstream stream, CUstreamCaptureMode mode)                                                             \
	{                                                                                                                                                \
		begin();                                                                                                                                     \
		return begun(HR__REAL(cuStreamBeginCapture_v2##variant, stream, mode), stream);                                                              \
	}                                                                                                                                                \
	CUresult cuStreamBeginCaptureToGraph##variant(CUstream stream, CUgraph graph, const CUgraphNode *after, const CUgraphEdgeData *edges,            \
	                                              size_t count, CUstreamCaptureMode mode)                                                            \
	{                                                                                                                                                \
		begin();                                                                                                                                     \
		return begun(HR__REAL(cuStreamBeginCaptureToGraph##variant, stream, graph, after, edges, count, mode), stream);                              \
	}                                                                                                                                                \
	CUresult cuStreamEndCapture##variant(CUstream stream, CUgraph *out)                                                                              \
	{                                                                                                                                                \
		bool was_recording = hr__driver_find() && hr__captures_has(stream, per_thread);                                                              \
		return ended(HR__REAL(cuStreamEndCapture##variant, stream, out), was_recording, stream, per_thread);                                         \
	}

CAPTURE_CALLS(, false)
CAPTURE_CALLS(_ptsz, true)
