/* simulated.c - a device without memory, with virtual time.
 *
 * The allocators and Large Model Support run on it unmodified, at any size, deterministically: `replay` and `plan` are based on it.
 * It does all of a device's bookkeeping and none of its work, so it is also the strictest device (mappings.h).
 *
 * Addresses are numbers from FIRST_ADDRESS up, where no program has memory, so that a mistaken access faults. A range that was
 * released is reused for a request of the same kind and size, most recent first; ranges are never split or merged. Host memory of
 * this device is not backed by memory either.
 *
 * Time. Every stream has a time: when the work given to it so far will be done. The host has a time too: the latest time that it
 * has observed by waiting for a stream or an event. The host's time is the device's clock.
 *
 *     work on a stream    begins at the stream's time, or at the host's if that is later (no work starts before it was submitted)
 *     a copy              also waits for its copy engine, one for each direction, and takes COPY_LATENCY_NS + bytes / link
 *     on the device       copies and fills take KERNEL_LATENCY_NS + bytes / DEVICE_BYTES_PER_S
 *     compute             takes the given time
 *     an event            is the stream's time when it was recorded, or the end of the last mapping if that is later, and its time can
 *                         be read at once; waiting for it advances the waiting stream's time to it
 *     mapping             takes host time, if the options say so: map_ns for each page
 *     querying an event   takes QUERY_NS of host time, so that a polling loop ends
 *
 * The figures are those of an H200: 55.5 GB/s at 16 MiB and more, 36 GB/s at 2 MiB, hence 20 us per copy; 4.3 TB/s counting reads
 * and writes. */
#include <stdio.h>
#include <string.h>

#include "core/base/checked.h"
#include "core/base/status.h"
#include "core/base/text/text.h"
#include "core/device/device.h"
#include "core/device/backends/handles.h"
#include "core/device/backends/mappings.h"
#include "core/os/os.h"

#define FIRST_ADDRESS UINT64_C(0x100000000000)
#define LAST_ADDRESS UINT64_C(0x500000000000) /* 64 TiB of them */
#define PLAIN_UNIT 512u
#define MAX_STREAMS 256u
#define COPY_LATENCY_NS 20000u
#define KERNEL_LATENCY_NS 2000u
#define DEVICE_BYTES_PER_S UINT64_C(4300000000000)
#define QUERY_NS 180u
#define SIZE_BUCKETS 256u

typedef struct sim_event {
	hr__event_head head;
	bool recorded;
	uint64_t time;
} sim_event;

typedef struct simulated {
	hr__lock lock; /* HR__RANK_DEVICE; guards everything below */
	hr_simulated_options options;
	hr__mappings mappings;
	uint64_t plain_bytes;
	uint64_t next_address;
	hr__range *released[SIZE_BUCKETS]; /* ranges to reuse, by a hash of their size */
	uint64_t host_time;
	uint64_t mapped_time; /* when the host was last done with mapping that takes time */
	uint64_t to_device_free, to_host_free; /* when each copy engine becomes free */
	uint64_t stream_time[MAX_STREAMS];
	hr__handles handles;
} simulated;

static uint64_t later(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

/* ---- opening ---- */

static hr_status sim_count(void *config, uint32_t *out)
{
	(void)config;
	*out = 1;
	return HR_OK;
}

static hr_status sim_open(void *config, uint32_t index, void **device, hr_backend_caps *caps)
{
	(void)index;
	void *memory;
	char total[24], page[24];
	int error = hr__os()->alloc(sizeof(simulated), &memory);
	if (error) return hr__os_fail(error, "the simulated device");
	simulated *sim = memory;
	sim->options = *(const hr_simulated_options *)config;
	sim->next_address = FIRST_ADDRESS;
	hr__lock_init(&sim->lock, HR__RANK_DEVICE);
	hr__handles_init(&sim->handles, "simulated", MAX_STREAMS, sizeof(sim_event));
	hr__mappings_init(&sim->mappings, sim->options.page_bytes);
	*caps = (hr_backend_caps){ .total_bytes = sim->options.memory_bytes,
		                       .page_bytes = sim->options.page_bytes,
		                       .map_alignment = sim->options.page_bytes ? sim->options.page_bytes : PLAIN_UNIT,
		                       .closed_streams = true };
	hr__format_size(caps->total_bytes, total, sizeof total);
	if (caps->page_bytes) {
		snprintf(caps->description, sizeof caps->description, "simulated device, %s, %s pages, virtual time", total,
		         hr__format_size(caps->page_bytes, page, sizeof page));
	} else {
		snprintf(caps->description, sizeof caps->description, "simulated device, %s, no pages, virtual time", total);
	}
	*device = sim;
	return HR_OK;
}

static void sim_close(void *device)
{
	simulated *sim = device;
	for (uint32_t i = 0; i < SIZE_BUCKETS; i++) {
		while (sim->released[i]) {
			hr__range *range = sim->released[i];
			sim->released[i] = range->next;
			hr__mappings_range_free(range);
		}
	}
	hr__mappings_destroy(&sim->mappings);
	hr__handles_destroy(&sim->handles);
	hr__os()->free(sim, sizeof *sim);
}

static uint64_t used_bytes(const simulated *sim)
{
	return sim->plain_bytes + sim->mappings.page_live * sim->options.page_bytes;
}

static hr_status sim_memory_info(void *device, uint64_t *free_bytes, uint64_t *total_bytes)
{
	simulated *sim = device;
	hr__lock_take(&sim->lock);
	*total_bytes = sim->options.memory_bytes;
	*free_bytes = sim->options.memory_bytes - used_bytes(sim);
	hr__lock_release(&sim->lock);
	return HR_OK;
}

/* ---- addresses ---- */

static uint32_t bucket_of(uint64_t bytes, hr__range_kind kind)
{
	return (uint32_t)(((bytes + kind) * UINT64_C(0x9E3779B97F4A7C15)) >> 56) % SIZE_BUCKETS;
}

/* A released range of the same kind and size, or new addresses. */
static hr_status find_addresses(simulated *sim, uint64_t bytes, uint64_t alignment, hr__range_kind kind, uint64_t *base,
                                hr__range **again)
{
	hr__range **link = &sim->released[bucket_of(bytes, kind)];
	while (*link && ((*link)->bytes != bytes || (*link)->kind != kind)) link = &(*link)->next;
	*again = *link;
	if (*again) {
		*base = (*again)->base;
		*link = (*again)->next;
		return HR_OK;
	}
	uint64_t start, end;
	if (!hr__align_up(sim->next_address, alignment, &start) || !hr__add(start, bytes, &end) || end > LAST_ADDRESS) {
		return hr__fail(HR_OUT_OF_MEMORY, "the simulated device has no %llu addresses left", (unsigned long long)bytes);
	}
	*base = start;
	return HR_OK;
}

static void remember(simulated *sim, hr__range *range)
{
	hr__range **head = &sim->released[bucket_of(range->bytes, range->kind)];
	range->next = *head;
	*head = range;
}

static hr_status take_range(simulated *sim, uint64_t bytes, uint64_t alignment, hr__range_kind kind, uint64_t *address)
{
	HR_ASSERT(hr__lock_is_mine(&sim->lock));
	hr__range *again, *range;
	uint64_t base = 0;
	hr_status status = find_addresses(sim, bytes, alignment, kind, &base, &again);
	if (status != HR_OK) return status;
	status = hr__mappings_add(&sim->mappings, base, bytes, kind, &range);
	if (status != HR_OK) {
		if (again) remember(sim, again);
		return status;
	}
	if (again) hr__mappings_range_free(again);
	else sim->next_address = base + bytes;
	*address = base;
	return HR_OK;
}

static hr_status give_range(simulated *sim, uint64_t address, uint64_t bytes, hr__range_kind kind)
{
	hr__range *range;
	hr_status status = hr__mappings_whole(&sim->mappings, address, bytes, kind, &range);
	if (status != HR_OK) return status;
	hr__mappings_remove(&sim->mappings, range);
	remember(sim, range);
	return HR_OK;
}

static hr_status sim_reserve(void *device, uint64_t bytes, uint64_t *address)
{
	simulated *sim = device;
	hr__lock_take(&sim->lock);
	hr_status status = take_range(sim, bytes, sim->options.page_bytes, HR__RANGE_PAGES, address);
	hr__lock_release(&sim->lock);
	return status;
}

static hr_status sim_release(void *device, uint64_t address, uint64_t bytes)
{
	simulated *sim = device;
	hr__lock_take(&sim->lock);
	hr_status status = give_range(sim, address, bytes, HR__RANGE_PAGES);
	hr__lock_release(&sim->lock);
	return status;
}

/* ---- memory ---- */

static hr_status need_room(const simulated *sim, uint64_t bytes)
{
	char total[24];
	if (bytes <= sim->options.memory_bytes - used_bytes(sim)) return HR_OK;
	return hr__fail(HR_OUT_OF_MEMORY, "the simulated device has no %llu bytes of its %s left", (unsigned long long)bytes,
	                hr__format_size(sim->options.memory_bytes, total, sizeof total));
}

static hr_status sim_page_create(void *device, hr_page *page)
{
	simulated *sim = device;
	hr__lock_take(&sim->lock);
	hr_status status = need_room(sim, sim->options.page_bytes);
	if (status == HR_OK) status = hr__mappings_page_create(&sim->mappings, page);
	hr__lock_release(&sim->lock);
	return status;
}

static hr_status sim_page_destroy(void *device, hr_page page)
{
	simulated *sim = device;
	hr__lock_take(&sim->lock);
	hr_status status = hr__mappings_page_destroy(&sim->mappings, page);
	hr__lock_release(&sim->lock);
	return status;
}

static hr_status sim_map(void *device, uint64_t address, const hr_page *pages, uint32_t count)
{
	simulated *sim = device;
	hr__lock_take(&sim->lock);
	hr_status status = hr__mappings_map(&sim->mappings, address, pages, count);
	if (!status && sim->options.map_ns) sim->mapped_time = sim->host_time += count * sim->options.map_ns;
	hr__lock_release(&sim->lock);
	return status;
}

static hr_status sim_unmap(void *device, uint64_t address, uint32_t count)
{
	simulated *sim = device;
	hr__lock_take(&sim->lock);
	hr_status status = hr__mappings_unmap_check(&sim->mappings, address, count);
	if (status == HR_OK) hr__mappings_unmap(&sim->mappings, address, count);
	hr__lock_release(&sim->lock);
	return status;
}

/* Sizes are recorded in whole units, so that a released block can be reused for all sizes that round to the same. */
static hr_status plain_units(uint64_t bytes, uint64_t *out)
{
	if (bytes > 0 && hr__align_up(bytes, PLAIN_UNIT, out)) return HR_OK;
	return hr__fail(HR_INVALID_ARGUMENT, "%llu bytes cannot be allocated", (unsigned long long)bytes);
}

static hr_status sim_plain_alloc(void *device, uint64_t bytes, uint64_t *address)
{
	simulated *sim = device;
	uint64_t rounded = 0;
	hr_status status = plain_units(bytes, &rounded);
	if (status != HR_OK) return status;
	hr__lock_take(&sim->lock);
	status = need_room(sim, bytes);
	if (status == HR_OK) status = take_range(sim, rounded, PLAIN_UNIT, HR__RANGE_PLAIN, address);
	if (status == HR_OK) sim->plain_bytes += bytes;
	hr__lock_release(&sim->lock);
	return status;
}

static hr_status sim_plain_free(void *device, uint64_t address, uint64_t bytes)
{
	simulated *sim = device;
	uint64_t rounded = 0;
	hr_status status = plain_units(bytes, &rounded);
	if (status != HR_OK) return status;
	hr__lock_take(&sim->lock);
	status = give_range(sim, address, rounded, HR__RANGE_PLAIN);
	if (status == HR_OK) sim->plain_bytes -= bytes;
	hr__lock_release(&sim->lock);
	return status;
}

static hr_status sim_host_alloc(void *device, uint64_t bytes, void **out)
{
	simulated *sim = device;
	uint64_t rounded = 0, address = 0;
	hr_status status = plain_units(bytes, &rounded);
	if (status != HR_OK) return status;
	hr__lock_take(&sim->lock);
	status = take_range(sim, rounded, PLAIN_UNIT, HR__RANGE_HOST, &address);
	hr__lock_release(&sim->lock);
	if (status == HR_OK) *out = (void *)(uintptr_t)address;
	return status;
}

static hr_status sim_host_free(void *device, void *block, uint64_t bytes)
{
	simulated *sim = device;
	uint64_t rounded = 0;
	hr_status status = plain_units(bytes, &rounded);
	if (status != HR_OK) return status;
	hr__lock_take(&sim->lock);
	status = give_range(sim, (uint64_t)(uintptr_t)block, rounded, HR__RANGE_HOST);
	hr__lock_release(&sim->lock);
	return status;
}

/* ---- streams and events ---- */

static hr_status check_stream(const simulated *sim, hr_native_stream stream)
{
	HR_ASSERT(hr__lock_is_mine(&sim->lock));
	return hr__handles_stream_check(&sim->handles, stream);
}

/* NULL when there is no such event, with its status. */
static sim_event *find_event(const simulated *sim, hr_native_event event, hr_status *status)
{
	HR_ASSERT(hr__lock_is_mine(&sim->lock));
	return hr__handles_event_find(&sim->handles, event, status);
}

static hr_status sim_stream_create(void *device, hr_native_stream *stream)
{
	simulated *sim = device;
	hr__lock_take(&sim->lock);
	hr_status status = hr__handles_stream_create(&sim->handles, stream);
	if (status == HR_OK) sim->stream_time[*stream] = sim->host_time;
	hr__lock_release(&sim->lock);
	return status;
}

static hr_status sim_stream_destroy(void *device, hr_native_stream stream)
{
	simulated *sim = device;
	hr__lock_take(&sim->lock);
	hr_status status = hr__handles_stream_check_destroy(&sim->handles, stream);
	if (status == HR_OK) hr__handles_stream_destroy(&sim->handles, stream);
	hr__lock_release(&sim->lock);
	return status;
}

static hr_status sim_stream_synchronize(void *device, hr_native_stream stream)
{
	simulated *sim = device;
	hr__lock_take(&sim->lock);
	hr_status status = check_stream(sim, stream);
	if (status == HR_OK) sim->host_time = later(sim->host_time, sim->stream_time[stream]);
	hr__lock_release(&sim->lock);
	return status;
}

static hr_status sim_event_create(void *device, hr_native_event *event)
{
	simulated *sim = device;
	hr__lock_take(&sim->lock);
	hr_status status = hr__handles_event_create(&sim->handles, event);
	hr__lock_release(&sim->lock);
	return status;
}

static hr_status sim_event_destroy(void *device, hr_native_event event)
{
	simulated *sim = device;
	hr_status status;
	hr__lock_take(&sim->lock);
	if (find_event(sim, event, &status)) hr__handles_event_destroy(&sim->handles, event);
	hr__lock_release(&sim->lock);
	return status;
}

static hr_status sim_event_record(void *device, hr_native_event event, hr_native_stream stream)
{
	simulated *sim = device;
	hr_status status;
	hr__lock_take(&sim->lock);
	sim_event *found = find_event(sim, event, &status);
	if (status == HR_OK) status = check_stream(sim, stream);
	if (status == HR_OK) {
		found->time = later(sim->stream_time[stream], sim->mapped_time);
		found->recorded = true;
	}
	hr__lock_release(&sim->lock);
	return status;
}

static hr_status sim_event_query(void *device, hr_native_event event)
{
	simulated *sim = device;
	hr_status status;
	hr__lock_take(&sim->lock);
	sim_event *found = find_event(sim, event, &status);
	if (status == HR_OK) {
		sim->host_time += QUERY_NS;
		if (found->time > sim->host_time) status = HR_NOT_READY;
	}
	hr__lock_release(&sim->lock);
	return status;
}

static hr_status sim_event_synchronize(void *device, hr_native_event event)
{
	simulated *sim = device;
	hr_status status;
	hr__lock_take(&sim->lock);
	sim_event *found = find_event(sim, event, &status);
	if (status == HR_OK) sim->host_time = later(sim->host_time, found->time);
	hr__lock_release(&sim->lock);
	return status;
}

static hr_status sim_stream_wait_event(void *device, hr_native_stream stream, hr_native_event event)
{
	simulated *sim = device;
	hr_status status;
	hr__lock_take(&sim->lock);
	sim_event *found = find_event(sim, event, &status);
	if (status == HR_OK) status = check_stream(sim, stream);
	if (status == HR_OK) sim->stream_time[stream] = later(sim->stream_time[stream], found->time);
	hr__lock_release(&sim->lock);
	return status;
}

/* Also works for an event in the future: the duration of work is known when it is submitted. */
static hr_status sim_event_time(void *device, hr_native_event event, uint64_t *ns)
{
	simulated *sim = device;
	hr_status status;
	hr__lock_take(&sim->lock);
	sim_event *found = find_event(sim, event, &status);
	if (status == HR_OK && !found->recorded) status = hr__handles_event_unrecorded(&sim->handles, event);
	if (status == HR_OK) *ns = found->time;
	hr__lock_release(&sim->lock);
	return status;
}

/* ---- work ---- */

static uint64_t duration(uint64_t bytes, uint64_t bytes_per_s)
{
	if (bytes_per_s == 0) return 0;
	return (uint64_t)((unsigned __int128)bytes * 1000000000u / bytes_per_s);
}

/* Gives the stream [ns] of work that starts no earlier than *engine (may be NULL) and occupies the engine until it ends. */
static void spend(simulated *sim, hr_native_stream stream, uint64_t *engine, uint64_t ns)
{
	uint64_t start = later(sim->stream_time[stream], sim->host_time);
	if (engine) start = later(start, *engine);
	sim->stream_time[stream] = start + ns;
	if (engine) *engine = start + ns;
}

static hr_status check_copy(const simulated *sim, uint64_t to, uint64_t from, uint64_t bytes, hr_copy_kind kind)
{
	hr_status status = kind == HR_COPY_TO_DEVICE ? hr__mappings_host_access(&sim->mappings, from, bytes, "copy from")
	                                             : hr__mappings_access(&sim->mappings, from, bytes, "copy from");
	if (status != HR_OK) return status;
	return kind == HR_COPY_TO_HOST ? hr__mappings_host_access(&sim->mappings, to, bytes, "copy to")
	                               : hr__mappings_access(&sim->mappings, to, bytes, "copy to");
}

static hr_status sim_copy(void *device, uint64_t to, uint64_t from, uint64_t bytes, hr_copy_kind kind, hr_native_stream stream)
{
	simulated *sim = device;
	hr__lock_take(&sim->lock);
	hr_status status = check_stream(sim, stream);
	if (status == HR_OK) status = check_copy(sim, to, from, bytes, kind);
	if (status == HR_OK && kind == HR_COPY_ON_DEVICE) {
		spend(sim, stream, NULL, KERNEL_LATENCY_NS + 2 * duration(bytes, DEVICE_BYTES_PER_S));
	} else if (status == HR_OK) {
		uint64_t *engine = kind == HR_COPY_TO_DEVICE ? &sim->to_device_free : &sim->to_host_free;
		spend(sim, stream, engine, COPY_LATENCY_NS + duration(bytes, sim->options.link_bytes_per_s));
	}
	hr__lock_release(&sim->lock);
	return status;
}

static hr_status sim_fill(void *device, uint64_t address, uint8_t value, uint64_t bytes, hr_native_stream stream)
{
	simulated *sim = device;
	(void)value;
	hr__lock_take(&sim->lock);
	hr_status status = check_stream(sim, stream);
	if (status == HR_OK) status = hr__mappings_access(&sim->mappings, address, bytes, "fill of");
	if (status == HR_OK) spend(sim, stream, NULL, KERNEL_LATENCY_NS + duration(bytes, DEVICE_BYTES_PER_S));
	hr__lock_release(&sim->lock);
	return status;
}

/* All work given to a stream has happened already, as far as it can on this device, so the function runs immediately. */
static hr_status sim_host_call(void *device, void (*run)(void *), void *argument, hr_native_stream stream)
{
	simulated *sim = device;
	hr__lock_take(&sim->lock);
	hr_status status = check_stream(sim, stream);
	hr__lock_release(&sim->lock);
	if (status == HR_OK) run(argument);
	return status;
}

static hr_status sim_compute(void *device, uint64_t ns, hr_native_stream stream)
{
	simulated *sim = device;
	hr__lock_take(&sim->lock);
	hr_status status = check_stream(sim, stream);
	if (status == HR_OK) spend(sim, stream, NULL, ns);
	hr__lock_release(&sim->lock);
	return status;
}

static hr_status sim_clock_ns(void *device, uint64_t *ns)
{
	simulated *sim = device;
	hr__lock_take(&sim->lock);
	*ns = sim->host_time;
	hr__lock_release(&sim->lock);
	return HR_OK;
}

const hr_backend hr__backend_simulated = {
	.version = HR_BACKEND_VERSION,
	.struct_size = sizeof(hr_backend),
	.name = "simulated",
	.type = "SIM",
	.count = sim_count,
	.open = sim_open,
	.close = sim_close,
	.memory_info = sim_memory_info,
	.reserve = sim_reserve,
	.release = sim_release,
	.page_create = sim_page_create,
	.page_destroy = sim_page_destroy,
	.map = sim_map,
	.unmap = sim_unmap,
	.plain_alloc = sim_plain_alloc,
	.plain_free = sim_plain_free,
	.stream_create = sim_stream_create,
	.stream_destroy = sim_stream_destroy,
	.stream_synchronize = sim_stream_synchronize,
	.event_create = sim_event_create,
	.event_destroy = sim_event_destroy,
	.event_record = sim_event_record,
	.event_query = sim_event_query,
	.event_synchronize = sim_event_synchronize,
	.stream_wait_event = sim_stream_wait_event,
	.copy = sim_copy,
	.fill = sim_fill,
	.host_call = sim_host_call,
	.compute = sim_compute,
	.host_alloc = sim_host_alloc,
	.host_free = sim_host_free,
	.clock_ns = sim_clock_ns,
	.event_time = sim_event_time,
};
