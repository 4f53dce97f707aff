/* emulated.c - an accelerator emulated in host memory, strict enough to expose real bugs.
 *
 * Memory is an anonymous file; a page is an offset in it. Mapping a page maps that part of the file, so a page keeps its contents
 * when it is mapped elsewhere, and an access to unmapped memory faults, as on a GPU. The file is created with the first page: an
 * unused device costs a few kilobytes.
 *
 * Streams are worker threads (queue.h), including the default stream. A copy that would touch unmapped memory does not crash the
 * process: it is skipped, and the next hr_stream_synchronize of that stream returns the error, as CUDA reports errors of
 * asynchronous work.
 *
 * Pages of host memory are in a file of their own; copies from and to them use the link like all others.
 *
 * The link is emulated by time: a copy occupies the engine of its direction for bytes / link, and its stream for the latency in
 * addition. The worker copies and then waits until that time is over.
 *
 * Event times. An event is a ticket of its stream's queue. Events whose ticket has not been reached are in the stream's list, in
 * order. A worker that has run a command sets the time of all events that were waiting for it, before the command counts as
 * completed. An event whose ticket was reached before it was recorded happens when it is recorded. The stream's list, not the
 * queue, decides whether a ticket was reached, so each event gets its time exactly once, and times increase along a stream: the
 * clock is read under the lock.
 *
 * Locks: lock (HR__RANK_DEVICE) guards the fields below it. It is not held while calling a queue, copying or mapping. It is held
 * while a range is released to the system: otherwise another thread could be given the same addresses while they are still recorded
 * here. */
#include <stdio.h>
#include <string.h>

#include "core/base/checked.h"
#include "core/base/status.h"
#include "core/base/text/text.h"
#include "core/device/device.h"
#include "core/device/backends/handles.h"
#include "core/device/backends/mappings.h"
#include "core/device/backends/queue.h"
#include "core/os/os.h"

#define MAX_STREAMS 128u
#define NO_FILE (-1)
#define HOST_SPAN (UINT64_C(1) << 40) /* size of the file for pages of host memory; it uses memory only where it is written */
#define SLEEP_SLACK_NS 80000u         /* a sleep can end this much late; the remaining time is spent spinning */

typedef struct emu_event {
	hr__event_head head;
	bool recorded;
	hr__queue *queue; /* the queue of the stream it was recorded on; NULL = not recorded, or the stream had no work: done */
	uint64_t ticket;
	uint64_t time;           /* when it happened; valid once it is recorded and in no list */
	uint32_t next, previous; /* in a stream's list: event numbers, 0 = none */
	uint32_t list;           /* 1 + the stream whose list it is in; 0 = none */
} emu_event;

/* The events of a stream that have not happened, ordered by ticket. */
typedef struct emu_list {
	uint32_t first, last; /* numbers of events */
	uint64_t reached;     /* tickets up to this one were reached */
} emu_list;

typedef struct emulated {
	hr_emulated_options options; /* immutable */
	hr__lock lock;
	hr__mappings mappings;
	int file, host_file;
	uint64_t plain_bytes;
	uint64_t to_device_free, to_host_free; /* when each direction of the link becomes free; host clock */
	hr__queue *queues[MAX_STREAMS];        /* created when first needed, kept until close because events and waits refer to them */
	emu_list lists[MAX_STREAMS];
	hr__handles handles;
} emulated;

static void *pointer(uint64_t address)
{
	return (void *)(uintptr_t)address;
}

/* ---- opening ---- */

static hr_status emu_count(void *config, uint32_t *out)
{
	*out = ((const hr_emulated_options *)config)->devices;
	return HR_OK;
}

static hr_status emu_open(void *config, uint32_t index, void **device, hr_backend_caps *caps)
{
	(void)index;
	void *memory;
	char total[24], page[24];
	int error = hr__os()->alloc(sizeof(emulated), &memory);
	if (error) return hr__os_fail(error, "an emulated device");
	emulated *emu = memory;
	emu->options = *(const hr_emulated_options *)config;
	emu->file = emu->host_file = NO_FILE;
	hr__lock_init(&emu->lock, HR__RANK_DEVICE);
	hr__handles_init(&emu->handles, "emulated", MAX_STREAMS, sizeof(emu_event));
	hr__mappings_init(&emu->mappings, emu->options.page_bytes);
	*caps = (hr_backend_caps){ .total_bytes = emu->options.memory_bytes,
		                       .page_bytes = emu->options.page_bytes,
		                       .map_alignment = emu->options.page_bytes,
		                       .host_accessible = true,
		                       .closed_streams = true };
	snprintf(caps->description, sizeof caps->description, "emulated accelerator, %s, %s pages",
	         hr__format_size(caps->total_bytes, total, sizeof total), hr__format_size(caps->page_bytes, page, sizeof page));
	*device = emu;
	return HR_OK;
}

static void emu_close(void *device)
{
	emulated *emu = device;
	for (uint32_t i = 0; i < MAX_STREAMS; i++) {
		if (emu->queues[i]) hr__queue_stop(emu->queues[i]);
	}
	/* Close queues only after all have stopped, because they refer to each other. */
	for (uint32_t i = 0; i < MAX_STREAMS; i++) {
		if (emu->queues[i]) hr__queue_close(emu->queues[i]);
	}
	for (uint32_t i = 0; i < emu->mappings.range_count; i++) {
		hr__os()->release(pointer(emu->mappings.ranges[i]->base), emu->mappings.ranges[i]->bytes);
	}
	hr__mappings_destroy(&emu->mappings);
	if (emu->file != NO_FILE) hr__os()->file_close(emu->file);
	if (emu->host_file != NO_FILE) hr__os()->file_close(emu->host_file);
	hr__handles_destroy(&emu->handles);
	hr__os()->free(emu, sizeof *emu);
}

static uint64_t free_bytes_of(const emulated *emu)
{
	return emu->options.memory_bytes - emu->plain_bytes - emu->mappings.page_live * emu->options.page_bytes;
}

static hr_status emu_memory_info(void *device, uint64_t *free_bytes, uint64_t *total_bytes)
{
	emulated *emu = device;
	hr__lock_take(&emu->lock);
	*free_bytes = free_bytes_of(emu);
	*total_bytes = emu->options.memory_bytes;
	hr__lock_release(&emu->lock);
	return HR_OK;
}

static hr_status need_room(const emulated *emu, uint64_t bytes)
{
	char total[24];
	if (bytes <= free_bytes_of(emu)) return HR_OK;
	return hr__fail(HR_OUT_OF_MEMORY, "the emulated device has no %llu bytes of its %s left", (unsigned long long)bytes,
	                hr__format_size(emu->options.memory_bytes, total, sizeof total));
}

/* ---- address ranges ---- */

/* Records [block], or releases it to the system on failure. */
static hr_status enter_range(emulated *emu, void *block, uint64_t bytes, hr__range_kind kind, hr__range **out)
{
	hr__lock_take(&emu->lock);
	hr_status status = hr__mappings_add(&emu->mappings, (uint64_t)(uintptr_t)block, bytes, kind, out);
	if (status != HR_OK) hr__os()->release(block, bytes);
	hr__lock_release(&emu->lock);
	return status;
}

/* Removes the record of a whole range and releases its addresses. */
static hr_status give_range(emulated *emu, uint64_t address, uint64_t bytes, hr__range_kind kind)
{
	HR_ASSERT(hr__lock_is_mine(&emu->lock));
	hr__range *range = NULL;
	hr_status status = hr__mappings_whole(&emu->mappings, address, bytes, kind, &range);
	if (status != HR_OK) return status;
	if (range->locked) hr__os()->unlock_memory(pointer(address), bytes);
	int error = hr__os()->release(pointer(address), bytes);
	if (error) return hr__os_fail(error, "giving %llu bytes of addresses back", (unsigned long long)bytes);
	hr__mappings_remove(&emu->mappings, range);
	hr__mappings_range_free(range);
	return HR_OK;
}

static hr_status emu_reserve(void *device, uint64_t bytes, uint64_t *address)
{
	emulated *emu = device;
	hr__range *range;
	void *block;
	int error = hr__os()->reserve(bytes, emu->options.page_bytes, &block);
	if (error) return hr__os_fail(error, "reserving %llu bytes of addresses", (unsigned long long)bytes);
	hr_status status = enter_range(emu, block, bytes, HR__RANGE_PAGES, &range);
	if (status == HR_OK) *address = (uint64_t)(uintptr_t)block;
	return status;
}

static hr_status emu_release(void *device, uint64_t address, uint64_t bytes)
{
	emulated *emu = device;
	hr__lock_take(&emu->lock);
	hr_status status = give_range(emu, address, bytes, HR__RANGE_PAGES);
	hr__lock_release(&emu->lock);
	return status;
}

/* ---- pages ---- */

/* One file for all of the device's memory; it uses host memory only where it is written. */
static hr_status need_file(emulated *emu)
{
	HR_ASSERT(hr__lock_is_mine(&emu->lock));
	if (emu->file != NO_FILE) return HR_OK;
	int error = hr__os()->memfd("headroom-device", emu->options.memory_bytes, &emu->file);
	return error ? hr__os_fail(error, "the memory of an emulated device") : HR_OK;
}

static hr_status emu_page_create(void *device, hr_page *page)
{
	emulated *emu = device;
	hr__lock_take(&emu->lock);
	hr_status status = need_room(emu, emu->options.page_bytes);
	if (status == HR_OK) status = need_file(emu);
	if (status == HR_OK) status = hr__mappings_page_create(&emu->mappings, page);
	hr__lock_release(&emu->lock);
	return status;
}

static hr_status emu_host_page_create(void *device, hr_page *page)
{
	emulated *emu = device;
	int error = 0;
	hr_status status = HR_OK;
	hr__lock_take(&emu->lock);
	if (emu->host_file == NO_FILE) error = hr__os()->memfd("headroom-host", HOST_SPAN, &emu->host_file);
	if (error) status = hr__os_fail(error, "pages of the host's memory for an emulated device");
	else status = hr__mappings_host_page_create(&emu->mappings, page);
	hr__lock_release(&emu->lock);
	return status;
}

/* Of either kind of memory. */
static hr_status emu_page_destroy(void *device, hr_page page)
{
	emulated *emu = device;
	hr__lock_take(&emu->lock);
	hr_status status = hr__mappings_page_check(&emu->mappings, page);
	int file = hr__mappings_is_host_page(&emu->mappings, page) ? emu->host_file : emu->file;
	hr__lock_release(&emu->lock);
	if (status != HR_OK) return status;
	int error = hr__os()->punch(file, page, emu->options.page_bytes);
	if (error) return hr__os_fail(error, "giving the memory of a page back");
	hr__lock_take(&emu->lock);
	status = hr__mappings_page_destroy(&emu->mappings, page);
	hr__lock_release(&emu->lock);
	return status;
}

/* Number of pages from [pages] on, at most [count], that are contiguous in one file: one system call maps them. */
static uint32_t run_length(emulated *emu, const hr_page *pages, uint32_t count, int *file)
{
	uint32_t length = 1;
	hr__lock_take(&emu->lock);
	bool host = hr__mappings_is_host_page(&emu->mappings, pages[0]);
	while (length < count && pages[length] == pages[length - 1] + emu->options.page_bytes &&
	       hr__mappings_is_host_page(&emu->mappings, pages[length]) == host)
		length++;
	*file = host ? emu->host_file : emu->file;
	hr__lock_release(&emu->lock);
	return length;
}

/* *mapped is the number of pages mapped, also on failure. */
static int map_runs(emulated *emu, uint64_t address, const hr_page *pages, uint32_t count, uint32_t *mapped)
{
	int error = 0, file;
	uint64_t page_bytes = emu->options.page_bytes;
	for (*mapped = 0; *mapped < count && !error;) {
		uint32_t run = run_length(emu, pages + *mapped, count - *mapped, &file);
		error = hr__os()->map_fd(pointer(address + *mapped * page_bytes), run * page_bytes, file, pages[*mapped]);
		if (!error) *mapped += run;
	}
	return error;
}

static hr_status emu_map(void *device, uint64_t address, const hr_page *pages, uint32_t count)
{
	emulated *emu = device;
	uint32_t mapped;
	hr__lock_take(&emu->lock);
	hr_status status = hr__mappings_map(&emu->mappings, address, pages, count);
	hr__lock_release(&emu->lock);
	if (status != HR_OK) return status;
	int error = map_runs(emu, address, pages, count, &mapped);
	if (!error) return HR_OK;
	/* If this fails too, the pages stay mapped although they are recorded as unmapped; the next mapping there replaces them. */
	if (mapped > 0) hr__os()->unmap_fd(pointer(address), mapped * emu->options.page_bytes);
	hr__lock_take(&emu->lock);
	hr__mappings_unmap(&emu->mappings, address, count);
	hr__lock_release(&emu->lock);
	return hr__os_fail(error, "mapping %u page%s", count, hr__plural(count));
}

static hr_status emu_unmap(void *device, uint64_t address, uint32_t count)
{
	emulated *emu = device;
	hr__lock_take(&emu->lock);
	hr_status status = hr__mappings_unmap_check(&emu->mappings, address, count);
	hr__lock_release(&emu->lock);
	if (status != HR_OK) return status;
	int error = hr__os()->unmap_fd(pointer(address), count * emu->options.page_bytes);
	if (error) return hr__os_fail(error, "unmapping %u page%s", count, hr__plural(count));
	hr__lock_take(&emu->lock);
	hr__mappings_unmap(&emu->mappings, address, count);
	hr__lock_release(&emu->lock);
	return HR_OK;
}

/* ---- plain memory, and pinned host memory ---- */

static hr_status whole_pages(uint64_t bytes, uint64_t *out)
{
	if (bytes > 0 && hr__align_up(bytes, hr__os_page_size(), out)) return HR_OK;
	return hr__fail(HR_INVALID_ARGUMENT, "%llu bytes cannot be allocated", (unsigned long long)bytes);
}

/* Allocates [bytes] of host memory, in whole pages, as a range of [kind]. */
static hr_status make_block(emulated *emu, uint64_t bytes, hr__range_kind kind, hr__range **out)
{
	void *block;
	int error = hr__os()->reserve(bytes, hr__os_page_size(), &block);
	if (error) return hr__os_fail(error, "%llu bytes for an emulated device", (unsigned long long)bytes);
	error = hr__os()->commit(block, bytes);
	if (error) {
		hr__os()->release(block, bytes);
		return hr__os_fail(error, "%llu bytes for an emulated device", (unsigned long long)bytes);
	}
	return enter_range(emu, block, bytes, kind, out);
}

static void add_plain(emulated *emu, uint64_t bytes)
{
	hr__lock_take(&emu->lock);
	emu->plain_bytes += bytes;
	hr__lock_release(&emu->lock);
}

static hr_status emu_plain_alloc(void *device, uint64_t bytes, uint64_t *address)
{
	emulated *emu = device;
	uint64_t rounded = 0;
	hr__range *range = NULL;
	hr_status status = whole_pages(bytes, &rounded);
	if (status != HR_OK) return status;
	hr__lock_take(&emu->lock);
	status = need_room(emu, bytes);
	if (status == HR_OK) emu->plain_bytes += bytes; /* counted first: two threads must not both get the last byte */
	hr__lock_release(&emu->lock);
	if (status != HR_OK) return status;
	status = make_block(emu, rounded, HR__RANGE_PLAIN, &range);
	if (status == HR_OK) *address = range->base;
	else add_plain(emu, -bytes);
	return status;
}

static hr_status emu_plain_free(void *device, uint64_t address, uint64_t bytes)
{
	emulated *emu = device;
	uint64_t rounded = 0;
	hr_status status = whole_pages(bytes, &rounded);
	if (status != HR_OK) return status;
	hr__lock_take(&emu->lock);
	status = give_range(emu, address, rounded, HR__RANGE_PLAIN);
	if (status == HR_OK) emu->plain_bytes -= bytes;
	hr__lock_release(&emu->lock);
	return status;
}

static hr_status emu_host_alloc(void *device, uint64_t bytes, void **out)
{
	emulated *emu = device;
	uint64_t rounded = 0;
	hr__range *range = NULL;
	hr_status status = whole_pages(bytes, &rounded);
	if (status == HR_OK) status = make_block(emu, rounded, HR__RANGE_HOST, &range);
	if (status != HR_OK) return status;
	/* If the memory cannot be locked, use it anyway: locking affects only speed here. */
	range->locked = hr__os()->lock_memory(pointer(range->base), rounded) == 0;
	*out = pointer(range->base);
	return HR_OK;
}

static hr_status emu_host_free(void *device, void *block, uint64_t bytes)
{
	emulated *emu = device;
	uint64_t rounded = 0;
	hr_status status = whole_pages(bytes, &rounded);
	if (status != HR_OK) return status;
	hr__lock_take(&emu->lock);
	status = give_range(emu, (uint64_t)(uintptr_t)block, rounded, HR__RANGE_HOST);
	hr__lock_release(&emu->lock);
	return status;
}

/* ---- commands run by workers ---- */

static void wait_until(uint64_t deadline)
{
	for (uint64_t now; (now = hr__os()->clock_ns()) < deadline;) {
		if (deadline - now > SLEEP_SLACK_NS) hr__os()->sleep_ns(deadline - now - SLEEP_SLACK_NS);
		else hr__cpu_pause();
	}
}

/* The end time of a transfer that begins now. [engine] is NULL for work that stays on the device. */
static uint64_t transfer_end(emulated *emu, uint64_t bytes, uint64_t *engine)
{
	uint64_t start = hr__os()->clock_ns(), link = emu->options.link_bytes_per_s;
	if (!engine || link == 0) return start + emu->options.kernel_latency_ns;
	hr__lock_take(&emu->lock);
	if (start < *engine) start = *engine;
	*engine = start + (uint64_t)((unsigned __int128)bytes * 1000000000u / link);
	uint64_t end = *engine;
	hr__lock_release(&emu->lock);
	return end + emu->options.kernel_latency_ns;
}

/* *way is set to the direction in which the bytes really move: device addresses can be backed by host pages. */
static hr_status check_copy(emulated *emu, const hr__queue_command *command, hr_copy_kind *way)
{
	hr_status status = HR_OK;
	hr_copy_kind kind = command->as.copy.kind;
	uint64_t bytes = command->as.copy.bytes;
	hr__lock_take(&emu->lock);
	if (kind != HR_COPY_TO_DEVICE) status = hr__mappings_access(&emu->mappings, command->as.copy.from, bytes, "copy from");
	if (kind != HR_COPY_TO_HOST && status == HR_OK)
		status = hr__mappings_access(&emu->mappings, command->as.copy.to, bytes, "copy to");
	*way = kind;
	if (kind == HR_COPY_ON_DEVICE && hr__mappings_host_page_at(&emu->mappings, command->as.copy.to)) *way = HR_COPY_TO_HOST;
	else if (kind == HR_COPY_ON_DEVICE && hr__mappings_host_page_at(&emu->mappings, command->as.copy.from)) *way = HR_COPY_TO_DEVICE;
	hr__lock_release(&emu->lock);
	return status;
}

static hr_status run_copy(emulated *emu, const hr__queue_command *command)
{
	hr_copy_kind way = command->as.copy.kind;
	hr_status status = check_copy(emu, command, &way);
	if (status != HR_OK) return status;
	uint64_t *engine = way == HR_COPY_TO_DEVICE ? &emu->to_device_free : way == HR_COPY_TO_HOST ? &emu->to_host_free : NULL;
	uint64_t end = transfer_end(emu, command->as.copy.bytes, engine);
	memcpy(pointer(command->as.copy.to), pointer(command->as.copy.from), command->as.copy.bytes);
	wait_until(end);
	return HR_OK;
}

static hr_status run_fill(emulated *emu, const hr__queue_command *command)
{
	hr__lock_take(&emu->lock);
	hr_status status = hr__mappings_access(&emu->mappings, command->as.fill.address, command->as.fill.bytes, "fill of");
	hr__lock_release(&emu->lock);
	if (status != HR_OK) return status;
	uint64_t end = transfer_end(emu, command->as.fill.bytes, NULL);
	memset(pointer(command->as.fill.address), command->as.fill.value, command->as.fill.bytes);
	wait_until(end);
	return HR_OK;
}

static hr_status run_command(void *device, const hr__queue_command *command)
{
	switch (command->kind) {
	case HR__QUEUE_COPY: return run_copy(device, command);
	case HR__QUEUE_FILL: return run_fill(device, command);
	case HR__QUEUE_CALL: command->as.call.run(command->as.call.argument); return HR_OK;
	case HR__QUEUE_COMPUTE: wait_until(hr__os()->clock_ns() + command->as.compute.ns); return HR_OK;
	case HR__QUEUE_WAIT: break; /* handled by the queue */
	}
	HR_ASSERT(false);
	return HR_OK;
}

/* ---- event times; all under the lock ---- */

static emu_event *event_at(const emulated *emu, uint32_t number)
{
	return number ? hr__handles_event_at(&emu->handles, number) : NULL;
}

static void unlink_event(emulated *emu, emu_event *event)
{
	if (!event->list) return;
	emu_list *list = &emu->lists[event->list - 1];
	*(event->previous ? &event_at(emu, event->previous)->next : &list->first) = event->next;
	*(event->next ? &event_at(emu, event->next)->previous : &list->last) = event->previous;
	event->next = event->previous = event->list = 0;
}

/* Inserts by ticket: two threads may have read their tickets in one order and arrive here in the other. */
static void link_event(emulated *emu, uint32_t number, uint32_t stream)
{
	emu_list *list = &emu->lists[stream];
	emu_event *event = event_at(emu, number);
	uint32_t before = list->last;
	while (before && event_at(emu, before)->ticket > event->ticket) before = event_at(emu, before)->previous;
	event->previous = before;
	event->next = before ? event_at(emu, before)->next : list->first;
	event->list = stream + 1;
	*(before ? &event_at(emu, before)->next : &list->first) = number;
	*(event->next ? &event_at(emu, event->next)->previous : &list->last) = number;
}

/* Called by the worker after it has run a command. */
static void note_ran(void *device, uint32_t stream, uint64_t ticket)
{
	emulated *emu = device;
	hr__lock_take(&emu->lock);
	emu_list *list = &emu->lists[stream];
	list->reached = ticket;
	uint64_t now = list->first ? hr__os()->clock_ns() : 0;
	for (emu_event *event; (event = event_at(emu, list->first)) && event->ticket <= ticket;) {
		event->time = now;
		unlink_event(emu, event);
	}
	hr__lock_release(&emu->lock);
}

/* ---- streams ---- */

/* The queue of a stream; NULL for a stream that was never given work, unless [needed]. */
static hr_status find_queue(emulated *emu, hr_native_stream stream, bool needed, hr__queue **out)
{
	hr__lock_take(&emu->lock);
	hr_status status = hr__handles_stream_check(&emu->handles, stream);
	if (status == HR_OK) {
		if (needed && !emu->queues[stream]) {
			status = hr__queue_open(run_command, note_ran, emu, (uint32_t)stream, &emu->queues[stream]);
		}
		*out = emu->queues[stream];
	}
	hr__lock_release(&emu->lock);
	return status;
}

static hr_status push(emulated *emu, hr_native_stream stream, const hr__queue_command *command)
{
	hr__queue *queue = NULL;
	hr_status status = find_queue(emu, stream, true, &queue);
	return status == HR_OK ? hr__queue_push(queue, command) : status;
}

static hr_status emu_stream_create(void *device, hr_native_stream *stream)
{
	emulated *emu = device;
	hr__lock_take(&emu->lock);
	hr_status status = hr__handles_stream_create(&emu->handles, stream);
	hr__lock_release(&emu->lock);
	return status;
}

static hr_status emu_stream_destroy(void *device, hr_native_stream stream)
{
	emulated *emu = device;
	hr__lock_take(&emu->lock);
	hr_status status = hr__handles_stream_check_destroy(&emu->handles, stream);
	hr__queue *queue = status == HR_OK ? emu->queues[stream] : NULL;
	hr__lock_release(&emu->lock);
	if (status != HR_OK) return status;
	if (queue) hr__queue_stop(queue);
	hr__lock_take(&emu->lock);
	hr__handles_stream_destroy(&emu->handles, stream);
	hr__lock_release(&emu->lock);
	return HR_OK;
}

static hr_status emu_stream_synchronize(void *device, hr_native_stream stream)
{
	hr__queue *queue = NULL;
	hr_status status = find_queue(device, stream, false, &queue);
	if (status != HR_OK || !queue) return status;
	hr__queue_wait(queue, hr__queue_ticket(queue));
	return hr__queue_error(queue);
}

/* ---- events ---- */

/* NULL when there is no such event, with its status. */
static emu_event *find_event(const emulated *emu, hr_native_event event, hr_status *status)
{
	HR_ASSERT(hr__lock_is_mine(&emu->lock));
	return hr__handles_event_find(&emu->handles, event, status);
}

/* Copies the current state of the event. */
static hr_status read_event(emulated *emu, hr_native_event event, emu_event *out)
{
	hr_status status;
	hr__lock_take(&emu->lock);
	const emu_event *found = find_event(emu, event, &status);
	if (found) *out = *found;
	hr__lock_release(&emu->lock);
	return status;
}

static hr_status emu_event_create(void *device, hr_native_event *event)
{
	emulated *emu = device;
	hr__lock_take(&emu->lock);
	hr_status status = hr__handles_event_create(&emu->handles, event);
	hr__lock_release(&emu->lock);
	return status;
}

static hr_status emu_event_destroy(void *device, hr_native_event event)
{
	emulated *emu = device;
	hr_status status;
	hr__lock_take(&emu->lock);
	emu_event *found = find_event(emu, event, &status);
	if (found) {
		unlink_event(emu, found);
		hr__handles_event_destroy(&emu->handles, event);
	}
	hr__lock_release(&emu->lock);
	return status;
}

static hr_status emu_event_record(void *device, hr_native_event event, hr_native_stream stream)
{
	emulated *emu = device;
	hr__queue *queue = NULL;
	hr_status status = find_queue(emu, stream, false, &queue);
	if (status != HR_OK) return status;
	uint64_t ticket = queue ? hr__queue_ticket(queue) : 0;
	hr__lock_take(&emu->lock);
	emu_event *found = find_event(emu, event, &status);
	if (found) {
		unlink_event(emu, found);
		found->queue = queue;
		found->ticket = ticket;
		found->recorded = true;
		if (ticket <= emu->lists[stream].reached) found->time = hr__os()->clock_ns();
		else link_event(emu, (uint32_t)event, (uint32_t)stream);
	}
	hr__lock_release(&emu->lock);
	return status;
}

static hr_status emu_event_time(void *device, hr_native_event event, uint64_t *ns)
{
	emu_event now;
	hr_status status = read_event(device, event, &now);
	if (status != HR_OK) return status;
	if (!now.recorded) return hr__handles_event_unrecorded(&((emulated *)device)->handles, event);
	if (now.list) return HR_NOT_READY;
	*ns = now.time;
	return HR_OK;
}

static hr_status emu_event_query(void *device, hr_native_event event)
{
	emu_event now;
	hr_status status = read_event(device, event, &now);
	if (status != HR_OK) return status;
	return !now.queue || hr__queue_is_past(now.queue, now.ticket) ? HR_OK : HR_NOT_READY;
}

static hr_status emu_event_synchronize(void *device, hr_native_event event)
{
	emu_event now;
	hr_status status = read_event(device, event, &now);
	if (status == HR_OK && now.queue) hr__queue_wait(now.queue, now.ticket);
	return status;
}

static hr_status emu_stream_wait_event(void *device, hr_native_stream stream, hr_native_event event)
{
	emu_event now;
	hr_status status = read_event(device, event, &now);
	if (status != HR_OK || !now.queue || hr__queue_is_past(now.queue, now.ticket)) return status;
	return push(device, stream, &(hr__queue_command){ .kind = HR__QUEUE_WAIT, .as.wait = { now.queue, now.ticket } });
}

/* ---- work ---- */

static hr_status emu_copy(void *device, uint64_t to, uint64_t from, uint64_t bytes, hr_copy_kind kind, hr_native_stream stream)
{
	return push(device, stream, &(hr__queue_command){ .kind = HR__QUEUE_COPY, .as.copy = { to, from, bytes, kind } });
}

static hr_status emu_fill(void *device, uint64_t address, uint8_t value, uint64_t bytes, hr_native_stream stream)
{
	return push(device, stream, &(hr__queue_command){ .kind = HR__QUEUE_FILL, .as.fill = { address, bytes, value } });
}

static hr_status emu_host_call(void *device, void (*run)(void *), void *argument, hr_native_stream stream)
{
	return push(device, stream, &(hr__queue_command){ .kind = HR__QUEUE_CALL, .as.call = { run, argument } });
}

static hr_status emu_compute(void *device, uint64_t ns, hr_native_stream stream)
{
	return push(device, stream, &(hr__queue_command){ .kind = HR__QUEUE_COMPUTE, .as.compute = { ns } });
}

const hr_backend hr__backend_emulated = {
	.version = HR_BACKEND_VERSION,
	.struct_size = sizeof(hr_backend),
	.name = "emulated",
	.type = "GPU",
	.count = emu_count,
	.open = emu_open,
	.close = emu_close,
	.memory_info = emu_memory_info,
	.reserve = emu_reserve,
	.release = emu_release,
	.page_create = emu_page_create,
	.page_destroy = emu_page_destroy,
	.map = emu_map,
	.unmap = emu_unmap,
	.plain_alloc = emu_plain_alloc,
	.plain_free = emu_plain_free,
	.stream_create = emu_stream_create,
	.stream_destroy = emu_stream_destroy,
	.stream_synchronize = emu_stream_synchronize,
	.event_create = emu_event_create,
	.event_destroy = emu_event_destroy,
	.event_record = emu_event_record,
	.event_query = emu_event_query,
	.event_synchronize = emu_event_synchronize,
	.stream_wait_event = emu_stream_wait_event,
	.copy = emu_copy,
	.fill = emu_fill,
	.host_call = emu_host_call,
	.compute = emu_compute,
	.host_alloc = emu_host_alloc,
	.host_free = emu_host_free,
	.event_time = emu_event_time,
	.host_page_create = emu_host_page_create,
	.host_page_destroy = emu_page_destroy,
};
