/* ledger.c - see ledger.h.
 *
 * A block is recorded in two steps. The driver's call comes first, so that its result and its out-parameters are the program's; then hr_alloc on an
 * allocator of the kind "driver", whose alloc function returns the address that the driver gave. A free is the other way round: hr_free takes the
 * block out of the ledger and then calls the allocator's free function, which makes the driver's call. So no other thread can be given the address
 * while the ledger still has it, and a free that the driver refuses is undone by hr_free.
 *
 * What the two functions need to know is in a thread-local variable. Without it they are called by hr_shutdown, which ends the ledger and must leave
 * the program's memory alone. */
#define _GNU_SOURCE
#include "ledger.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "blocks.h"
#include "cards.h"
#include "core/device/device.h"
#include "driver.h"
#include "headroom_backend.h"
#include "headroom_oom.h"
#include "launches.h"
#include "manage.h"
#include "names.h"
#include "pools.h"
#include "settings.h"

#define KIND "driver"
#define REPORTS_MAX 16 /* as many as libheadroom writes to files */

enum { NOT_STARTED, STARTED, FAILED };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int state;              /* stored with release; the allocators below are created under the lock */
static bool on_gpu;            /* blocks are on GPU:n, because libheadroom's devices were in use before */
static bool is_on_gpu[HR__CARDS_MAX][HR__LEDGER_KINDS]; /* written before the allocator's id */
static bool begun;             /* libheadroom has been called, and may have state */
static bool forked;            /* libheadroom's state is the parent's */
static int fork_error;         /* of pthread_atfork */
static uint64_t allocators[HR__CARDS_MAX][HR__LEDGER_KINDS]; /* ids, stored with release; 0 = not created yet */
static uint32_t failures;      /* blocks that could not be recorded */
static uint32_t reports;

/* What the calling thread is doing. */
static __thread struct ledger_action {
	bool inside;
	uint64_t adopt;        /* alloc: the address to return; 0 = refuse */
	CUresult (*give_back)(void *context); /* free: the driver's call; NULL = leave the memory alone */
	void *context;
	CUresult result;
	bool called;
} action;

/* ---- the allocator's functions ---- */

static hr_status adopt(void *unused, size_t bytes, size_t alignment, hr_stream stream, void **out)
{
	(void)unused;
	(void)bytes;
	(void)alignment;
	(void)stream;
	if (!action.adopt) return hr_backend_set_error(HR_OUT_OF_MEMORY, "the CUDA driver has no memory for the request");
	*out = (void *)(uintptr_t)action.adopt;
	return HR_OK;
}

static hr_status give_back(void *unused, void *address, size_t bytes, hr_stream stream)
{
	(void)unused;
	(void)address;
	(void)bytes;
	(void)stream;
	if (!action.give_back) return HR_OK;
	action.called = true;
	action.result = action.give_back(action.context);
	return action.result == HR__CUDA_SUCCESS ? HR_OK : hr_backend_set_error(HR_DEVICE_ERROR, "the CUDA driver refused to free the block");
}

/* ---- reports ---- */

/* With a limit, and without HEADROOM_OOM_REPORT: the report as text. */
static void write_report(void *unused, hr_oom_report report)
{
	static char text[1 << 16];
	static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER;
	(void)unused;
	if (__atomic_fetch_add(&reports, 1, __ATOMIC_RELAXED) >= REPORTS_MAX) return;
	pthread_mutex_lock(&one);
	size_t length = hr_oom_format_text(report, text, sizeof text - 1);
	if (length > sizeof text - 2) length = sizeof text - 2;
	if (length > 0 && text[length - 1] != '\n') text[length++] = '\n';
	if (write(STDERR_FILENO, text, length) < 0) length = 0; /* there is no other place to write it */
	pthread_mutex_unlock(&one);
}

/* ---- starting ---- */

/* Another thread of the parent may have held any lock. A child of a parent that has not used CUDA is a program of its own. */
static void after_fork(void)
{
	pthread_mutex_init(&lock, NULL);
	hr__driver_forget_lock();
	if (!__atomic_load_n(&begun, __ATOMIC_RELAXED)) return;
	forked = true; /* the driver refuses to work here too, because the parent has used it */
	hr__blocks_forget();
}

__attribute__((constructor)) static void at_load(void)
{
	fork_error = pthread_atfork(NULL, NULL, after_fork);
}

static bool start_session(void)
{
	hr_custom_allocator table;
	__atomic_store_n(&begun, true, __ATOMIC_RELAXED);
	hr_custom_allocator_init(&table);
	table.alloc = adopt;
	table.free = give_back;
	hr_status status = hr__cards_register(&on_gpu);
	if (status == HR_OK) status = hr_allocator_register(KIND, &table, NULL);
	bool done = !fork_error && (status == HR_OK || status == HR_ALREADY_EXISTS);
	if (!done) hr__settings_say("the program runs without Headroom: %s", fork_error ? strerror(fork_error) : hr_last_message());
	return done;
}

static bool is_started(void)
{
	int now = __atomic_load_n(&state, __ATOMIC_ACQUIRE);
	if (now != NOT_STARTED) return now == STARTED;
	if (!hr__cards_exist()) return false; /* the program has not called cuInit yet */
	pthread_mutex_lock(&lock);
	if (state == NOT_STARTED) __atomic_store_n(&state, start_session() ? STARTED : FAILED, __ATOMIC_RELEASE);
	now = state;
	pthread_mutex_unlock(&lock);
	return now == STARTED;
}

bool hr__ledger_is_on(void)
{
	return hr__driver_find() && hr__settings_now.on && !forked && !action.inside && hr__driver_suffices() && is_started();
}

/* ---- allocators ---- */

void hr__ledger_set_report(hr_allocator_options *options, hr__ledger_kind kind)
{
	const hr__settings *settings = hr__settings_get();
	hr_allocator_options_init(options);
	if (kind != HR__LEDGER_DEVICE || !settings->limit || settings->reports) return;
	options->oom.report_allocations_on_oom = true;
	options->oom.callback = write_report;
}

static void set_options(hr_allocator_options *options, hr_device device, hr__ledger_kind kind)
{
	uint64_t limit = hr__settings_get()->limit;
	hr_device_info info;
	hr_device_info_init(&info);
	hr__ledger_set_report(options, kind);
	options->kind = KIND;
	/* A limit above the card's memory limits nothing. */
	if (kind == HR__LEDGER_DEVICE && limit && hr_device_get_info(device, &info) == HR_OK && limit < info.total_bytes) options->limit_bytes = limit;
}

/* 0 if it cannot be created. */
static uint64_t create_on(const char *device_name, hr__ledger_kind kind)
{
	static const char *const suffixes[HR__LEDGER_KINDS] = { "driver", "unified", "pinned" };
	char name[40];
	hr_allocator_options options;
	hr_allocator made;
	hr_device device;
	snprintf(name, sizeof name, "%s_%s", device_name, suffixes[kind]);
	if (hr_device_find(device_name, &device) != HR_OK) return 0;
	set_options(&options, device, kind);
	options.name = name;
	return hr_allocator_create(device, &options, &made) == HR_OK ? made.id : 0;
}

/* Blocks that are passed on are on the same device as managed ones, unless Headroom cannot open it. */
static uint64_t create(int card, hr__ledger_kind kind)
{
	char device_name[24];
	if (kind == HR__LEDGER_HOST) return create_on("CPU:0", kind);
	snprintf(device_name, sizeof device_name, "GPU:%d", card);
	uint64_t id = on_gpu || hr__settings_get()->manage ? create_on(device_name, kind) : 0;
	if (id) is_on_gpu[card][kind] = true;
	if (id || on_gpu) return id;
	snprintf(device_name, sizeof device_name, HR__CARDS_TYPE ":%d", card);
	return create_on(device_name, kind);
}

/* The first failure is said; the others are only counted. */
static void say_failure(const char *what, const char *why)
{
	if (__atomic_fetch_add(&failures, 1, __ATOMIC_RELAXED) == 0) hr__settings_say("%s: %s; the program continues", what, why);
}

static hr_allocator allocator_of(CUdevice device, hr__ledger_kind kind)
{
	int card = kind == HR__LEDGER_HOST ? 0 : hr__cards_index(device);
	if (card < 0) return (hr_allocator){ 0 };
	uint64_t id = __atomic_load_n(&allocators[card][kind], __ATOMIC_ACQUIRE);
	if (id) return (hr_allocator){ id };
	pthread_mutex_lock(&lock);
	id = allocators[card][kind];
	if (!id) id = create(card, kind);
	__atomic_store_n(&allocators[card][kind], id, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&lock);
	if (!id) say_failure("CUDA memory cannot be recorded", hr_last_message());
	return (hr_allocator){ id };
}

/* ---- requests ---- */

bool hr__ledger_locate(hr__ledger_request *request)
{
	if (!hr__cards_current(&request->device, &request->context)) return false;
	request->scope = hr__names_scope();
	return true;
}

bool hr__ledger_locate_by(hr__ledger_request *request, CUstream stream)
{
	return hr__ledger_locate(request) && hr__cards_of_stream(stream, &request->device, &request->context);
}

void hr__ledger_name(const hr__ledger_request *request, hr_request *named)
{
	hr_name name = __atomic_load_n(&request->call->name, __ATOMIC_RELAXED);
	if (name == HR_NAME_NONE) {
		name = hr_name_intern(request->call->text);
		__atomic_store_n(&request->call->name, name, __ATOMIC_RELAXED);
	}
	named->op = named->tag = name;
	named->scope = request->scope;
}

/* hr_alloc of [request], with [address] as its outcome; 0 = the driver has refused. */
static hr_status record(hr_allocator allocator, const hr__ledger_request *request, uint64_t address)
{
	void *out;
	hr_request recorded = HR_REQUEST(request->bytes);
	recorded.alignment = 1; /* the driver decides it */
	recorded.stream = HR_STREAM_HOST;
	hr__ledger_name(request, &recorded);
	action = (struct ledger_action){ .inside = true, .adopt = address };
	hr_status status = hr_alloc(allocator, &recorded, &out);
	action = (struct ledger_action){ .inside = false };
	return status;
}

static uint64_t least_of(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

bool hr__ledger_admits(const hr__ledger_request *request)
{
	uint64_t limit, used;
	if (request->kind != HR__LEDGER_DEVICE || !hr__ledger_get_limit(request->device, &limit, &used)) return true;
	if (used > limit || request->bytes > limit - used) {
		hr__ledger_refuse(request);
		return false;
	}
	/* What --manage keeps for later is not used, and on the card. */
	if (request->bytes > limit - used - least_of(hr__manage_idle_bytes(request->device), limit - used)) (void)!hr__manage_trim(request->device);
	return true;
}

bool hr__ledger_make_room(const hr__ledger_request *request)
{
	return request->kind != HR__LEDGER_HOST && hr__manage_trim(request->device);
}

/* Ends a block in the ledger; the driver is not called. */
static void forget(hr_allocator allocator, uint64_t address)
{
	action = (struct ledger_action){ .inside = true };
	hr_free(allocator, (void *)(uintptr_t)address, HR_STREAM_HOST);
	action = (struct ledger_action){ .inside = false };
}

bool hr__ledger_add(const hr__ledger_request *request, uint64_t address)
{
	hr_allocator allocator = allocator_of(request->device, request->kind);
	if (!allocator.id) return true;
	hr_status status = record(allocator, request, address);
	hr__block block = { .address = address, .bytes = request->bytes, .allocator = allocator, .context = request->context };
	if (status == HR_OK && hr__blocks_add(&block)) {
		if (request->kind != HR__LEDGER_HOST) hr__launches_expect(allocator, address);
		return true;
	}
	uint64_t limit, used;
	bool limited = request->kind == HR__LEDGER_DEVICE && hr__ledger_get_limit(request->device, &limit, &used);
	if (status == HR_OUT_OF_MEMORY && limited) return false;
	if (status == HR_OK) forget(allocator, address); /* its end would not be seen */
	say_failure("a block of CUDA memory is not recorded", status == HR_OK ? "out of memory" : hr_last_message());
	return true;
}

void hr__ledger_refuse(const hr__ledger_request *request)
{
	hr_allocator allocator = allocator_of(request->device, request->kind);
	if (allocator.id && request->bytes && record(allocator, request, 0) != HR_OUT_OF_MEMORY)
		say_failure("a refused request is not recorded", hr_last_message());
}

/* ---- ends ---- */

CUresult hr__ledger_free(uint64_t address, CUresult (*call)(void *context), void *context)
{
	hr__block block;
	if (!hr__blocks_take(address, &block)) return call(context);
	hr__launches_forget(address);
	action = (struct ledger_action){ .inside = true, .give_back = call, .context = context };
	hr_free(block.allocator, (void *)(uintptr_t)address, HR_STREAM_HOST);
	struct ledger_action done = action;
	action = (struct ledger_action){ .inside = false };
	if (!done.called) return call(context); /* hr_shutdown has ended the ledger */
	if (done.result != HR__CUDA_SUCCESS) hr__blocks_add(&block);
	return done.result;
}

void hr__ledger_end_context(CUcontext context)
{
	hr__block block;
	size_t cursor = 0;
	while (context && hr__blocks_take_of(context, &cursor, &block)) {
		hr__launches_forget(block.address);
		hr__pools_give(block.pool, block.bytes);
		forget(block.allocator, block.address);
	}
}

/* Bytes of the blocks of a kind on GPU:n; 0 where they are not there. */
static uint64_t blocks_on_gpu(int card, hr__ledger_kind kind)
{
	hr_stats stats;
	uint64_t id = __atomic_load_n(&allocators[card][kind], __ATOMIC_ACQUIRE);
	hr_stats_init(&stats);
	return id && is_on_gpu[card][kind] && hr_allocator_get_stats((hr_allocator){ id }, &stats) == HR_OK ? (uint64_t)stats.bytes_in_use : 0;
}

/* What libheadroom has reserved on GPU:n, for the program itself and with --manage, and the blocks of ours that are there, except managed memory, which need
 * not be on the card. The device is not opened for that. */
static uint64_t reserved_on_gpu(int card)
{
	char name[24];
	hr_device device;
	hr_stats stats;
	hr_stats_init(&stats);
	snprintf(name, sizeof name, "GPU:%d", card);
	bool known = hr_device_find(name, &device) == HR_OK && !hr_device_is_emulated(device) && hr__device_is_open(device);
	uint64_t unified = blocks_on_gpu(card, HR__LEDGER_MANAGED), all = known && hr_device_get_stats(device, &stats) == HR_OK ? (uint64_t)stats.bytes_reserved : 0;
	return all - least_of(unified, all);
}

bool hr__ledger_get_limit(CUdevice device, uint64_t *limit, uint64_t *used)
{
	hr_stats stats;
	if (!hr__settings_now.limit) return false;
	hr_allocator allocator = allocator_of(device, HR__LEDGER_DEVICE);
	hr_stats_init(&stats);
	if (!allocator.id || hr_allocator_get_stats(allocator, &stats) != HR_OK) return false;
	int card = hr__cards_index(device);
	uint64_t on_card = reserved_on_gpu(card);
	*limit = (uint64_t)stats.bytes_limit;
	*used = is_on_gpu[card][HR__LEDGER_DEVICE] ? on_card : (uint64_t)stats.bytes_in_use + on_card; /* the blocks of this allocator are in it */
	/* The program can have what is idle, which other threads may have changed since. */
	uint64_t idle = hr__manage_idle_bytes(device);
	*used -= least_of(idle, *used);
	return true;
}

bool hr__ledger_is_above_limit(CUdevice device)
{
	hr_stats stats;
	int card = hr__cards_index(device);
	if (!hr__settings_now.limit || card < 0 || !blocks_on_gpu(card, HR__LEDGER_DEVICE)) return false;
	hr_stats_init(&stats);
	hr_allocator allocator = { __atomic_load_n(&allocators[card][HR__LEDGER_DEVICE], __ATOMIC_ACQUIRE) };
	return hr_allocator_get_stats(allocator, &stats) == HR_OK && reserved_on_gpu(card) > (uint64_t)stats.bytes_limit;
}
