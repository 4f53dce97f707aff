/* publish.c - see publish.h.
 *
 * A separate thread publishes, instead of the allocation path, so that the hot path has no extra check and a program that does not
 * allocate for a while is still visible. Reading the statistics takes no lock that a thread cache allocation takes. */
#include "core/record/publish.h"

#include <stdio.h>
#include <string.h>

#include "core/base/assert.h"
#include "core/base/atomic.h"
#include "core/base/status.h"
#include "core/device/device.h"
#include "core/memory/allocator.h"
#include "core/os/guard.h"
#include "core/os/os.h"
#include "core/os/process.h"
#include "core/record/program_name.h"
#include "core/record/segment.h"
#include "core/trace/trace.h"
#include "headroom_lms.h"

#define MAPPED 16384u
_Static_assert(sizeof(hr__segment) <= MAPPED, "it fits");

/* Written by start, stop and forget; stopping is guarded by the monitor. */
static hr__segment *segment; /* NULL: not running */
static hr__atomic_u32 started; /* 1: all of this is set. A process can end, and stop this, while another thread of it is starting it */
static hr__monitor *monitor;
static hr__thread *thread;
static bool stopping;
static char path[512];

/* The next contents of the segment, used only by the thread. Reading statistics may wait for locks, and a reader waits only a
 * limited time for a segment that is being written. So the contents are assembled here, and the segment is inconsistent only during
 * a copy. */
static hr__segment_device seen[HR__SEGMENT_DEVICES];
static hr__segment_allocator seen_allocators[HR__SEGMENT_ALLOCATORS];

/* ---- publishing ---- */

static void fill_device(hr__segment_device *out, const char *name, const hr_stats *stats, uint64_t sample)
{
	/* A device keeps its position as long as the process has it. A new device begins without samples. */
	if (strncmp(out->name, name, sizeof out->name) != 0) {
		*out = (hr__segment_device){ 0 };
		snprintf(out->name, sizeof out->name, "%s", name);
	}
#define COPY(name) out->name = stats->name;
	HR__SEGMENT_STATS_TABLE(COPY)
#undef COPY
	out->samples[sample % HR__SEGMENT_SAMPLES] = stats->bytes_in_use;
}

static bool is_used(const hr_stats *stats)
{
	return stats->num_allocs || stats->bytes_reserved || stats->bytes_in_use;
}

struct allocator_list {
	uint32_t count, left_out;
};

/* Called with the registry's lock held, so that the allocator and its tensors' context stay. Not called for host pools, which are no devices
 * of hr_device_at: their figures are in those of tensors. */
static void see_allocator(hr__allocator *allocator, const hr_stats *stats, void *context)
{
	struct allocator_list *list = context;
	hr_lms_stats lms;
	if (list->count == HR__SEGMENT_ALLOCATORS) {
		list->left_out++;
		return;
	}
	hr_lms_stats_init(&lms);
	(void)!hr_lms_get_stats((hr_allocator){ allocator->id }, &lms); /* zeros without tensors */
	hr__segment_allocator *out = &seen_allocators[list->count++];
	snprintf(out->name, sizeof out->name, "%s", allocator->name);
	snprintf(out->device, sizeof out->device, "%s", hr__device_name(allocator->device));
#define COPY(name) out->name = stats->name;
	HR__SEGMENT_ALLOCATOR_TABLE(COPY)
#undef COPY
#define COPY(name) out->name = lms.name;
	HR__SEGMENT_LMS_TABLE(COPY)
#undef COPY
}

/* Leaves out devices that the program has not opened: opening a card here would cost it a context of hundreds of megabytes. A device and
 * its allocators are read together, so that their figures add up. Makes no call of a device's driver, which may take a millisecond and hold
 * up the program's calls meanwhile. */
static uint32_t see_devices(uint64_t sample, struct allocator_list *list)
{
	uint32_t used = 0, count = hr_device_count();
	for (uint32_t i = 0; i < count; i++) {
		hr_device handle;
		hr_stats stats;
		hr_status status;
		if (hr_device_at(i, &handle) || !hr__device_is_open(handle)) continue;
		const hr__device *device = hr__device_of(handle, &status);
		if (!device || hr__stats_visit_device(handle, &stats, see_allocator, list)) continue;
		if (is_used(&stats) && used < HR__SEGMENT_DEVICES) fill_device(&seen[used++], hr__device_name(device), &stats, sample);
	}
	return used;
}

static void look(void)
{
	struct allocator_list list = { 0 };
	hr__guard_refresh();
	hr__segment *s = segment;
	uint64_t sequence = hr__load_relaxed(&s->sequence);
	HR_ASSERT((sequence & 1) == 0);
	uint32_t count = see_devices(s->samples, &list);
	uint64_t now = hr__os()->wall_clock_ns();
	hr__store_relaxed(&s->sequence, sequence + 1);
	hr__fence_release();
	memcpy(s->devices, seen, sizeof seen);
	memcpy(s->allocators, seen_allocators, sizeof seen_allocators);
	s->device_count = count;
	s->allocator_count = list.count;
	s->allocators_left_out = list.left_out;
	s->recording = hr__trace_is_on();
	s->now_wall_ns = now;
	s->samples++;
	hr__store_release(&s->sequence, sequence + 2);
}

static void run(void *unused)
{
	(void)unused;
	hr__os()->monitor_enter(monitor);
	while (!stopping) {
		hr__os()->monitor_leave(monitor);
		look();
		hr__os()->monitor_enter(monitor);
		if (!stopping) hr__os()->monitor_wait(monitor, HR__SEGMENT_PERIOD_NS);
	}
	hr__os()->monitor_leave(monitor);
}

/* ---- start and stop ---- */

static hr_status make_path(void)
{
	const char *folder = hr__os()->environment("XDG_RUNTIME_DIR");
	int used = snprintf(path, sizeof path, "%s/" HR__SEGMENT_PREFIX "%d", folder && folder[0] ? folder : "/dev/shm", hr__os()->process_id());
	return used > 0 && (size_t)used < sizeof path ? HR_OK : hr__fail(HR_IO, "XDG_RUNTIME_DIR is too long");
}

static int map_file(void **out)
{
	int fd;
	/* An existing file with this process id was left by an earlier process with the same id. */
	int error = hr__os()->file_create(path, &fd);
	if (error && !hr__os()->file_remove(path)) error = hr__os()->file_create(path, &fd);
	if (error) return error;
	error = hr__os()->file_extend(fd, MAPPED);
	if (!error) error = hr__os()->file_map(fd, 0, MAPPED, out);
	hr__os()->file_close(fd);
	if (error) hr__os()->file_remove(path);
	return error;
}

static void fill_header(hr__segment *s)
{
	s->version = HR__SEGMENT_VERSION;
	s->bytes = sizeof *s;
	s->process = (uint32_t)hr__os()->process_id();
	s->birth = hr__os_process_birth();
	s->begin_wall_ns = hr__os()->wall_clock_ns();
	hr__program_name(s->program, sizeof s->program);
	hr__rank_read(&s->rank);
	hr__fence_release();
	s->magic = HR__SEGMENT_MAGIC;
}

static void give_up(void)
{
	if (monitor) hr__os()->monitor_destroy(monitor);
	monitor = NULL;
	thread = NULL;
	hr__os()->file_remove(path);
	hr__os()->file_unmap(segment, MAPPED);
	segment = NULL;
}

hr_status hr__publish_start(void)
{
	void *base;
	if (segment) return hr__fail(HR_IN_USE, "the statistics are shown already");
	hr_status status = make_path();
	if (status) return status;
	int error = map_file(&base);
	if (error) return hr__os_fail(error, "cannot make %.300s for headroom top", path);
	segment = base;
	memset(seen, 0, sizeof seen);
	memset(seen_allocators, 0, sizeof seen_allocators);
	stopping = false;
	fill_header(segment);
	error = hr__os()->monitor_create(&monitor);
	if (error) monitor = NULL;
	else error = hr__os()->thread_start(run, NULL, "headroom top", &thread);
	hr__store_release(&started, !error);
	if (!error) return HR_OK;
	give_up();
	return hr__os_fail(error, "cannot start the thread for headroom top");
}

void hr__publish_stop(void)
{
	if (!hr__exchange_acq_rel(&started, 0)) return; /* exit and hr_shutdown may stop it at once */
	hr__os()->monitor_enter(monitor);
	stopping = true;
	hr__os()->monitor_wake_all(monitor);
	hr__os()->monitor_leave(monitor);
	hr__os()->thread_join(thread);
	give_up();
}

void hr__publish_forget(void)
{
	/* The file is unmapped but not removed. The monitor and the thread's record are leaked: their state is the parent's. */
	if (segment) hr__os()->file_unmap(segment, MAPPED);
	hr__store_release(&started, 0);
	segment = NULL;
	monitor = NULL;
	thread = NULL;
}
