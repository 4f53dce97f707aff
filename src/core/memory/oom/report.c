/* report.c - OOM reports: making, keeping, reading and writing them.
 *
 * A report is made in the thread whose request failed, with no locks held but those acquired here:
 *
 *     hr__report_lock      one report is made at a time (or one walk for holders or a verdict)
 *     the slot's lock      the report does not change while it is made, read or written
 *
 * Report number n is in slot n % 16, so the 16th report after it overwrites it. Its id is its number. A reader acquires the slot's
 * lock and checks the id to see whether the report still exists. A thread that makes a report waits for a reader of the report 16
 * numbers earlier, and for no other reader.
 *
 *     hr_alloc fails  ->  hr__report_make:  fill a slot  ->  HEADROOM_OOM_REPORT: write it  ->  the callback
 *
 * While a report is written, only its slot is locked. The callback is called without a lock. Requests that fail inside the
 * callback, or inside functions called to make the report, make no report. A report that cannot be written affects only the message
 * of the error that it is about. */
#include "core/memory/oom/report.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "core/base/hooks.h"
#include "core/base/text/settings.h"
#include "core/base/status.h"
#include "core/base/struct.h"
#include "core/base/text/text.h"
#include "core/memory/oom/oom.h"

#define SLOTS 16u
#define MESSAGE_BYTES 512u
#define PATH_BYTES (HR__REPORT_PATH_BYTES - 8u) /* without a suffix */
#define MOST_SUFFIXES 9999u
#define FILES_DEFAULT 16u
#define FILES_MOST 9999u
#define FILES_VARIABLE "HEADROOM_OOM_REPORT_FILES"

/* Slot i is guarded by lock i. An id of 0 = empty. */
static hr__report slots[SLOTS];
static hr__lock slot_locks[SLOTS] = { [0 ... SLOTS - 1] = HR__LOCK_INIT(HR__RANK_REPORT_SLOT) };

static hr__atomic_u64 sequence; /* number of reports made; written under hr__report_lock */

/* One report at a time is written, so that lines on the standard error do not mix. Acquired with the slot's lock held. */
static hr__lock output_lock = HR__LOCK_INIT(HR__RANK_REPORT_OUTPUT);

/* Files written for HEADROOM_OOM_REPORT. Guarded by output_lock. */
static struct {
	uint32_t written;
	uint32_t suffix; /* first one to try: lower ones are taken, so the search does not get longer with each file; 0 = none */
} files;

/* HEADROOM_OOM_REPORT and HEADROOM_OOM_REPORT_FILES at their first use. */
static struct {
	hr__lock lock;
	hr__atomic_u8 read; /* 1 = the other fields no longer change */
	uint32_t files_max;
	char value[PATH_BYTES + 2]; /* a truncated value is still too long for a path, and is reported as such */
} environment = { .lock = HR__LOCK_INIT(HR__RANK_NAMES) };

static _Thread_local struct {
	uint64_t last; /* id of the thread's latest report; 0 = none */
	bool busy;     /* the thread is making a report */
} self __attribute__((tls_model("initial-exec")));

/* ---- slots ---- */

const hr__report *hr__report_open(uint64_t id)
{
	uint32_t slot = (uint32_t)(id % SLOTS);
	if (id && id <= hr__load_acquire(&sequence)) {
		hr__lock_take(&slot_locks[slot]);
		if (slots[slot].id == id) return &slots[slot];
		hr__lock_release(&slot_locks[slot]);
	}
	if (!id) hr__fail(HR_INVALID_HANDLE, "the report handle is zero: it was never set");
	else
		hr__fail(HR_INVALID_HANDLE, "report %llu no longer exists: the last %u are kept, until hr_shutdown", (unsigned long long)id,
		         SLOTS);
	return NULL;
}

void hr__report_close(const hr__report *report)
{
	HR_ASSERT(report >= slots && report < slots + SLOTS);
	hr__lock_release(&slot_locks[report - slots]);
}

void hr__reports_drop(void)
{
	for (uint32_t i = 0; i < SLOTS; i++) {
		hr__lock_take(&slot_locks[i]);
		slots[i].id = 0;
		hr__lock_release(&slot_locks[i]);
	}
}

void hr__reports_forget(void)
{
	if (hr__lock_is_held(&hr__report_lock)) hr__holders_forget(); /* held by a thread that the child does not have */
	hr__lock_init(&hr__report_lock, HR__RANK_REPORT);
	hr__lock_init(&output_lock, HR__RANK_REPORT_OUTPUT);
	hr__lock_init(&environment.lock, HR__RANK_NAMES);
	for (uint32_t i = 0; i < SLOTS; i++) {
		hr__lock_init(&slot_locks[i], HR__RANK_REPORT_SLOT);
		slots[i].id = 0;
	}
	files.written = files.suffix = 0; /* those of the parent: with %p, the child's have other names */
	self.last = 0;
	self.busy = false;
}

/* ---- filling a slot ---- */

static void fill_request(const hr__allocator *allocator, const hr_request *request, hr__report *report)
{
	report->bytes = request->bytes;
	report->size = hr__verdict_size(allocator, request);
	report->alignment = request->alignment;
	report->stream = request->stream & ~HR_STREAM_HOST; /* the host is reported as the default stream, as in a trace */
	report->op = request->op;
	report->scope = request->scope;
	report->tag = request->tag;
	report->shape = request->shape;
	report->dtype = request->dtype;
}

static void fill_allocator(const hr__allocator *allocator, hr__report *report)
{
	hr_device_info info = { .struct_size = sizeof info };
	snprintf(report->allocator, sizeof report->allocator, "%s", allocator->name);
	snprintf(report->kind, sizeof report->kind, "%s", allocator->kind_name);
	snprintf(report->device, sizeof report->device, "%s", hr__device_name(allocator->device));
	report->stitch = allocator->stitch;
	report->thread_cache = allocator->thread_cache;
	report->allow_growth = allocator->allow_growth;
	report->limit = allocator->limit;
	report->device_limit = hr__device_limit(allocator->device);
	report->device_reserved = hr__page_pool_reserved(allocator->device);
	report->page_bytes = allocator->page;
	if (hr_device_get_info(hr__device_handle(allocator->device), &info) != HR_OK) return; /* the other fields stay 0: unknown */
	snprintf(report->backend, sizeof report->backend, "%s", info.backend);
	snprintf(report->card, sizeof report->card, "%s", info.description);
	report->total_bytes = info.total_bytes;
	report->free_bytes = info.free_bytes;
	report->other_bytes = info.other_bytes;
}

static void fill_log(hr__allocator *allocator, uint32_t slot, hr__report *report)
{
	uint32_t capacity = 0;
	hr__log_entry *entries = hr__log_slot(slot, &capacity);
	report->log = entries;
	report->log_count = entries ? hr__log_collect(allocator, entries, capacity, &report->log_total) : 0;
}

/* With hr__report_lock and the slot's lock held. */
static void fill(hr__allocator *allocator, const hr_request *request, const hr_custom_stats *custom, const hr_oom_options *options,
                 hr__report *report)
{
	hr__walk walk;
	HR_ASSERT(hr__lock_is_mine(&hr__report_lock) && hr__lock_is_mine(&slot_locks[report - slots]));
	report->sequence = hr__load_relaxed(&sequence) + 1;
	report->time_ns = hr__os()->wall_clock_ns();
	report->process = (uint32_t)hr__os()->process_id();
	report->thread = hr__log_thread(allocator);
	report->options = *options;
	fill_request(allocator, request, report);
	fill_allocator(allocator, report);
	fill_log(allocator, (uint32_t)(report->sequence % SLOTS), report); /* first: it changes fastest */
	hr__hooks_table.record_ranks(&report->ranks);
	hr__walk_begin(&walk, allocator, false);
	hr__verdict_make(&walk, request, custom, &report->verdict);
	hr__holders_report(&walk, report);
	hr__map_report(&walk, options->allocation_log_address == HR_LOG_REAL_ADDRESS, report);
	report->longest_hold = walk.longest;
	report->chunks_visited = walk.visited;
}

/* ---- to memory ---- */

struct memory_sink {
	char *out;
	size_t capacity, length;
};

static bool to_memory(void *context, const char *bytes, size_t length)
{
	struct memory_sink *memory = context;
	if (memory->length + 1 < memory->capacity) {
		size_t room = memory->capacity - 1 - memory->length;
		memcpy(memory->out + memory->length, bytes, length < room ? length : room);
	}
	memory->length += length;
	return true;
}

typedef bool (*report_writer)(const hr__report *report, hr__report_sink sink, void *context);

static size_t write_to_memory(hr_oom_report handle, report_writer write, char *out, size_t capacity)
{
	struct memory_sink memory = { out, out ? capacity : 0, 0 };
	const hr__report *report = hr__report_open(handle.id);
	if (report) {
		write(report, to_memory, &memory);
		hr__report_close(report);
	}
	if (memory.capacity) out[memory.length < memory.capacity ? memory.length : memory.capacity - 1] = 0;
	return memory.length;
}

size_t hr_oom_format_text(hr_oom_report report, char *out, size_t capacity)
{
	return write_to_memory(report, hr__report_text, out, capacity);
}

size_t hr_oom_format_json(hr_oom_report report, char *out, size_t capacity)
{
	return write_to_memory(report, hr__report_json, out, capacity);
}

size_t hr_oom_format_log(hr_oom_report report, char *out, size_t capacity)
{
	return write_to_memory(report, hr__report_log_json, out, capacity);
}

size_t hr_oom_format_ranks(hr_oom_report report, char *out, size_t capacity)
{
	return write_to_memory(report, hr__report_ranks_text, out, capacity);
}

/* ---- to files ---- */

/* Buffers small writes. */
struct file_sink {
	int fd;          /* -1 = the standard error */
	uint64_t offset; /* bytes written so far */
	int error;       /* first error */
	size_t used;
	char buffer[4096];
};

static bool flush(struct file_sink *stream)
{
	if (stream->error || !stream->used) return !stream->error;
	stream->error = stream->fd < 0 ? hr__os()->stderr_write(stream->buffer, stream->used)
	                               : hr__os()->file_write(stream->fd, stream->buffer, stream->used, stream->offset);
	stream->offset += stream->used;
	stream->used = 0;
	return !stream->error;
}

static bool to_stream(void *context, const char *bytes, size_t length)
{
	struct file_sink *stream = context;
	HR_ASSERT(stream->used <= sizeof stream->buffer);
	while (length > 0) {
		if (stream->used == sizeof stream->buffer && !flush(stream)) return false;
		size_t room = sizeof stream->buffer - stream->used, now = length < room ? length : room;
		memcpy(stream->buffer + stream->used, bytes, now);
		stream->used += now;
		bytes += now;
		length -= now;
	}
	return true;
}

/* 0 or an errno value. */
static int write_stream(const hr__report *report, report_writer write, int fd)
{
	struct file_sink stream = { .fd = fd };
	if (write(report, to_stream, &stream)) flush(&stream);
	return stream.error;
}

/* Removes the file on failure. */
static int write_file(const hr__report *report, const char *path, int fd)
{
	int error = write_stream(report, hr__report_json, fd);
	hr__os()->file_close(fd);
	if (error) hr__os()->file_remove(path);
	return error;
}

hr_status hr_oom_save(hr_oom_report handle, const char *path)
{
	int fd;
	if (!path || !path[0]) return hr__fail(HR_INVALID_ARGUMENT, "hr_oom_save: the path is empty");
	const hr__report *report = hr__report_open(handle.id);
	if (!report) return HR_INVALID_HANDLE;
	int error = hr__os()->file_create(path, &fd);
	if (!error) error = write_file(report, path, fd);
	hr__report_close(report);
	if (!error) return HR_OK;
	return hr__fail(HR_IO, "the report could not be written to %.300s: %s", path, hr__os_error(error));
}

/* ---- HEADROOM_OOM_REPORT ---- */

uint32_t hr__report_files_max(void)
{
	const char *text = hr__os()->environment(FILES_VARIABLE);
	uint64_t number = 0;
	if (!text || !*text) return FILES_DEFAULT;
	for (; *text >= '0' && *text <= '9' && number <= FILES_MOST; text++) number = 10 * number + (uint64_t)(*text - '0');
	if (!*text && number >= 1 && number <= FILES_MOST) return (uint32_t)number;
	hr__last before = hr__last_get();
	hr__fail(HR_INVALID_ARGUMENT, "it is not a number of files from 1 to %u", FILES_MOST);
	hr__setting_ignored(FILES_VARIABLE, &before);
	return FILES_DEFAULT;
}

static const char *destination(void)
{
	if (!hr__load_acquire(&environment.read)) {
		hr__lock_take(&environment.lock);
		if (!hr__load_relaxed(&environment.read)) {
			const char *value = hr__os()->environment("HEADROOM_OOM_REPORT");
			if (value) snprintf(environment.value, sizeof environment.value, "%s", value);
			environment.files_max = hr__report_files_max();
			hr__store_release(&environment.read, 1);
		}
		hr__lock_release(&environment.lock);
	}
	return environment.value;
}

bool hr__reports_are_on(void)
{
	return destination()[0] != 0;
}

/* Replaces "%p" by the process id and "%%" by a percent sign. False if the result is too long. */
static bool expand(const char *pattern, char *out, size_t capacity)
{
	size_t used = 0;
	for (; *pattern; pattern++) {
		char number[16] = { *pattern };
		if (pattern[0] == '%' && pattern[1] == 'p') snprintf(number, sizeof number, "%d", hr__os()->process_id());
		if (pattern[0] == '%' && (pattern[1] == 'p' || pattern[1] == '%')) pattern++;
		size_t length = strlen(number);
		if (used + length >= capacity) return false;
		memcpy(out + used, number, length);
		used += length;
	}
	out[used] = 0;
	return true;
}

/* Creates the file, or the first of FILE.1, FILE.2, ... that does not exist. [path] has room for the suffix and gets the name. */
static int create_new(char *path, int *fd)
{
	size_t length = strlen(path);
	HR_ASSERT(hr__lock_is_mine(&output_lock) && length < PATH_BYTES);
	int error = EEXIST;
	for (; error == EEXIST && files.suffix <= MOST_SUFFIXES; files.suffix++) {
		if (files.suffix) snprintf(path + length, 8, ".%u", files.suffix);
		error = hr__os()->file_create(path, fd);
		if (error && error != EEXIST) return error;
	}
	if (error == EEXIST) path[length] = 0;
	return error;
}

/* Returns 0 or an errno value; sets report->file to the destination. */
static int write_to_destination(hr__report *report)
{
	int fd;
	HR_ASSERT(hr__lock_is_mine(&output_lock));
	if (!strcmp(destination(), "stderr")) {
		snprintf(report->file, sizeof report->file, "the standard error");
		return write_stream(report, hr__report_text, -1);
	}
	if (!expand(destination(), report->file, PATH_BYTES)) {
		snprintf(report->file, sizeof report->file, "%.60s...", destination());
		return ENAMETOOLONG;
	}
	if (files.written == environment.files_max) {
		report->file_status = HR_TOO_MANY;
		return 0;
	}
	int error = create_new(report->file, &fd);
	if (!error) error = write_file(report, report->file, fd);
	files.written += !error;
	return error;
}

/* Writes the reason why a report is in no file; false if it is in one. */
static bool describe_file_error(const hr__report *report, char *note, size_t capacity)
{
	if (report->file_status == HR_IO)
		snprintf(note, capacity, "the report could not be written to %s: %s", hr__brief(report->file, 90).text, hr__os_error(report->file_error));
	if (report->file_status == HR_TOO_MANY)
		snprintf(note, capacity, "the report was not written to a file: this process has written %u; HEADROOM_OOM_REPORT_FILES allows more",
		         environment.files_max);
	return report->file_status == HR_IO || report->file_status == HR_TOO_MANY;
}

/* Writes the report if HEADROOM_OOM_REPORT is set. Appends a failure to [message], of MESSAGE_BYTES. */
static void write_out(hr__report *report, char *message)
{
	char why[MESSAGE_BYTES / 2], note[MESSAGE_BYTES / 2 + 4];
	report->file_status = HR_NOT_READY;
	if (!hr__reports_are_on()) return;
	report->file_status = HR_OK;
	hr__lock_take(&output_lock);
	report->file_error = write_to_destination(report);
	hr__lock_release(&output_lock);
	if (report->file_error) report->file_status = HR_IO;
	if (!describe_file_error(report, why, sizeof why)) return;
	snprintf(note, sizeof note, " (%s)", why);
	size_t used = strlen(message), most = MESSAGE_BYTES - 1 - strlen(note); /* a long message is cut to make room */
	memcpy(message + (used < most ? used : hr__utf8_trim(message, most)), note, strlen(note) + 1);
}

hr_status hr_oom_get_file(hr_oom_report handle, char *path, size_t capacity)
{
	char why[MESSAGE_BYTES / 2];
	if (!path && capacity) return hr__fail(HR_INVALID_ARGUMENT, "hr_oom_get_file: path is NULL");
	const hr__report *report = hr__report_open(handle.id);
	if (!report) return HR_INVALID_HANDLE;
	hr_status status = report->file_status;
	size_t length = strlen(report->file);
	if (!status && length >= capacity)
		status = hr__fail(HR_TOO_SMALL, "the name of the report's file takes %zu bytes; the buffer has %zu", length + 1, capacity);
	else if (!status) memcpy(path, report->file, length + 1);
	else if (status == HR_NOT_READY) hr__fail(status, "HEADROOM_OOM_REPORT is not set, so reports are not written to files; use hr_oom_save");
	else if (describe_file_error(report, why, sizeof why)) hr__fail(status, "%s", why);
	hr__report_close(report);
	return status;
}

/* ---- making a report ---- */

/* Makes the report and returns its id. Appends a failure to write it to [message], of MESSAGE_BYTES. */
static uint64_t make(hr__allocator *allocator, const hr_request *request, const hr_oom_options *options, char *message)
{
	hr_custom_stats custom;
	hr_stats stats;
	HR_ASSERT(hr__lock_none_from(HR__RANK_REPORT));
	hr_stats_init(&stats);
	/* The functions of a custom allocator are the user's, so they are called before any lock is acquired. */
	bool asked = hr__verdict_ask_custom(allocator, &custom);
	(void)!hr_allocator_get_stats((hr_allocator){ allocator->id }, &stats); /* zeros if it fails */

	hr__lock_take(&hr__report_lock);
	uint64_t id = hr__load_relaxed(&sequence) + 1;
	uint32_t slot = (uint32_t)(id % SLOTS);
	hr__report *report = &slots[slot];
	hr__lock_take(&slot_locks[slot]);
	memset(report, 0, sizeof *report);
	report->stats = stats;
	fill(allocator, request, asked ? &custom : NULL, options, report);
	report->id = id;
	hr__store_release(&sequence, id);
	hr__lock_release(&hr__report_lock);
	write_out(report, message); /* before it can be overwritten */
	hr__lock_release(&slot_locks[slot]);
	return id;
}

void hr__report_make(hr__allocator *allocator, const hr_request *request)
{
	char message[MESSAGE_BYTES];
	hr_oom_options options = { .struct_size = sizeof options };
	if (self.busy) return;
	self.busy = true;
	snprintf(message, sizeof message, "%s", hr_last_message());
	if (hr_allocator_get_oom_options((hr_allocator){ allocator->id }, &options) == HR_OK) {
		uint64_t id = self.last = make(allocator, request, &options, message);
		if (options.callback) options.callback(options.user, (hr_oom_report){ id });
	}
	hr__fail(HR_OUT_OF_MEMORY, "%s", message);
	self.busy = false;
}

hr_status hr_oom_get_last(hr_oom_report *out)
{
	if (!out) return hr__fail(HR_INVALID_ARGUMENT, "hr_oom_get_last: out is NULL");
	uint32_t slot = (uint32_t)(self.last % SLOTS);
	hr__lock_take(&slot_locks[slot]);
	bool there = self.last && slots[slot].id == self.last;
	hr__lock_release(&slot_locks[slot]);
	if (!there)
		return hr__fail(HR_NOT_READY,
		                "there is no report on a request of this thread: none failed for lack of memory where "
		                "options.oom.report_allocations_on_oom was set, or %u later ones were made",
		                SLOTS);
	out->id = self.last;
	return HR_OK;
}

hr_status hr_oom_get_verdict(hr_oom_report handle, hr_verdict *verdict)
{
	hr_status status = hr__struct_check(&hr__struct_verdict, "hr_oom_get_verdict", verdict);
	if (status) return status;
	const hr__report *report = hr__report_open(handle.id);
	if (!report) return HR_INVALID_HANDLE;
	hr__struct_out(&hr__struct_verdict, verdict, &report->verdict);
	hr__report_close(report);
	return HR_OK;
}
