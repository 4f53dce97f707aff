/* ledger.c - see ledger.h.
 *
 * A block is recorded in two steps. The driver's call comes first, so that its result and its out-parameters are the program's; then the block is
 * adopted by an allocator of the kind "driver" (core/memory/adopt.h). A free is the other way round: the block is taken out of the ledger before the driver's
 * call. So no other thread can be given the address while the ledger still has it. A free that the driver refuses is undone.
 *
 * The allocators' ledgers are the only tables of blocks: which allocator has an address is found out by looking it up in them, first in that of the card
 * that the thread used last. */
#define _GNU_SOURCE
#include "ledger.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "blocks.h"
#include "core/device/device.h"
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
static uint32_t failures;      /* blocks that could not be recorded */
static uint32_t reports;

HR__HOT_DATA hr__state hr__now;
__thread hr__thread hr__this_thread;

/* ---- the allocator's functions ---- */

/* For a request that the driver has refused, which is reported as any other: all others are adopted. */
static hr_status refuse(void *unused, size_t bytes, size_t alignment, hr_stream stream, void **out)
{
	(void)unused;
	(void)bytes;
	(void)alignment;
	(void)stream;
	(void)out;
	return hr_backend_set_error(HR_OUT_OF_MEMORY, "the CUDA driver has no memory for the request");
}

/* hr_shutdown ends the ledger, and must leave the program's memory alone. */
static hr_status leave_alone(void *unused, void *address, size_t bytes, hr_stream stream)
{
	(void)unused;
	(void)address;
	(void)bytes;
	(void)stream;
	return HR_OK;
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
	__atomic_store_n(&hr__now.ready, false, __ATOMIC_RELAXED);
	hr__this_thread.expected_count = 0;
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
	hr__now.manage = hr__settings_now.manage;
	hr__now.limited = hr__settings_now.limit != 0;
	hr__now.callers = hr__settings_now.callers;
	hr__now.adopt = hr__adopt;
	hr__now.take = hr__adopted_take;
	hr__now.set_tag = hr__adopted_set_tag;
	hr_custom_allocator_init(&table);
	table.alloc = refuse;
	table.free = leave_alone;
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

/* All of it stays as it is once it is true, except in the child of a fork. A thread inside a recorded call must not start anything. */
bool hr__ledger_start(void)
{
	if (!hr__driver_find() || !hr__settings_now.on || forked || hr__this_thread.inside || !hr__driver_suffices() || !is_started()) return false;
	__atomic_store_n(&hr__now.ready, true, __ATOMIC_RELEASE);
	return true;
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

static __attribute__((cold, noinline)) uint64_t get_or_create(int card, hr__ledger_kind kind)
{
	pthread_mutex_lock(&lock);
	uint64_t id = hr__now.allocators[card][kind];
	if (!id) id = create(card, kind);
	__atomic_store_n(&hr__now.allocators[card][kind], id, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&lock);
	if (!id) say_failure("CUDA memory cannot be recorded", hr_last_message());
	return id;
}

static inline int card_of(CUdevice device, hr__ledger_kind kind)
{
	return kind == HR__LEDGER_HOST ? 0 : hr__cards_index(device);
}

static inline hr_allocator allocator_on(int card, hr__ledger_kind kind)
{
	if (card < 0) return (hr_allocator){ 0 };
	uint64_t id = __atomic_load_n(&hr__now.allocators[card][kind], __ATOMIC_ACQUIRE);
	return (hr_allocator){ __builtin_expect(id != 0, true) ? id : get_or_create(card, kind) };
}

static hr_allocator allocator_of(CUdevice device, hr__ledger_kind kind)
{
	return allocator_on(card_of(device, kind), kind);
}

/* ---- requests ---- */

bool hr__ledger_locate_by(hr__ledger_request *request, CUstream stream)
{
	return hr__ledger_locate(request) && hr__cards_of_stream(stream, &request->device, &request->context);
}

static __attribute__((cold, noinline)) hr_name intern(hr__ledger_call call)
{
	static const char *const texts[] = {
#define TEXT(call) #call,
		HR__LEDGER_CALLS(TEXT)
#undef TEXT
	};
	hr_name name = hr_name_intern(texts[call]);
	__atomic_store_n(&hr__now.calls[call], name, __ATOMIC_RELAXED);
	return name;
}

/* All but the scope. */
static inline void name(const hr__ledger_request *request, hr_request *named)
{
	hr_name op = __atomic_load_n(&hr__now.calls[request->call], __ATOMIC_RELAXED);
	named->op = named->tag = __builtin_expect(op != HR_NAME_NONE, true) ? op : intern(request->call);
}

void hr__ledger_name(const hr__ledger_request *request, hr_request *named)
{
	name(request, named);
	named->scope = request->has_scope ? request->scope : hr__names_scope();
}

static uint64_t least_of(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

bool hr__ledger_fits(const hr__ledger_request *request)
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

void hr__ledger_say_unrecorded(const char *why)
{
	say_failure("a block of CUDA memory is not recorded", why);
}

/* False: the block exceeds the limit. */
static __attribute__((cold, noinline)) bool not_added(const hr__ledger_request *request, hr_status status)
{
	uint64_t limit, used;
	bool limited = request->kind == HR__LEDGER_DEVICE && hr__ledger_get_limit(request->device, &limit, &used);
	if (status == HR_OUT_OF_MEMORY && limited) return false;
	hr__ledger_say_unrecorded(hr_last_message());
	return true;
}

__attribute__((hot)) bool hr__ledger_add(const hr__ledger_request *request, uint64_t address)
{
	hr__thread *self = &hr__this_thread;
	int card = card_of(request->device, request->kind);
	hr_allocator allocator = allocator_on(card, request->kind);
	hr__chunk_id id;
	if (__builtin_expect(!allocator.id, false)) return true;
	hr_request recorded = HR_REQUEST(request->bytes);
	recorded.stream = HR_STREAM_HOST;
	name(request, &recorded);
	bool known = request->has_scope || hr__now.callers;
	recorded.scope = request->has_scope ? request->scope : __builtin_expect(known, false) ? hr__names_scope() : hr__names_thread();
	/* Code of Python may run in it, and release memory. */
	hr_status status = hr__now.adopt(allocator, &recorded, address, request->context, known ? NULL : hr__names_line, &id);
	if (__builtin_expect(status != HR_OK, false)) return not_added(request, status);
	if (request->kind == HR__LEDGER_HOST) return true;
	self->card = (uint32_t)card;
	hr__launches_expect(allocator, id, address);
	return true;
}

void hr__ledger_refuse(const hr__ledger_request *request)
{
	void *out;
	hr_allocator allocator = allocator_of(request->device, request->kind);
	hr_request recorded = HR_REQUEST(request->bytes);
	if (!allocator.id || !request->bytes) return;
	recorded.alignment = 1; /* the driver decides it */
	recorded.stream = HR_STREAM_HOST;
	hr__ledger_name(request, &recorded);
	hr__this_thread.inside = true;
	hr_status status = hr_alloc(allocator, &recorded, &out);
	hr__this_thread.inside = false;
	if (status != HR_OUT_OF_MEMORY) say_failure("a refused request is not recorded", hr_last_message());
}

/* ---- ends ---- */

static inline hr_allocator existing(uint32_t card, hr__ledger_kind kind)
{
	return (hr_allocator){ __atomic_load_n(&hr__now.allocators[card][kind], __ATOMIC_ACQUIRE) };
}

__attribute__((always_inline)) static inline bool take(uint32_t card, hr__ledger_kind kind, uint64_t address, hr__adopted *block)
{
	hr_allocator allocator = existing(card, kind);
	bool keep_claim = kind == HR__LEDGER_DEVICE && hr__now.limited; /* until the card has the memory again */
	return allocator.id && hr__now.take(allocator, address, keep_claim, block);
}

static __attribute__((cold, noinline)) hr_allocator take_elsewhere(uint64_t address, hr__adopted *block)
{
	for (uint32_t card = 0; card < hr__cards_count(); card++) {
		for (hr__ledger_kind kind = 0; kind < HR__LEDGER_KINDS; kind++) {
			if (!take(card, kind, address, block)) continue;
			hr__this_thread.card = card;
			return existing(card, kind);
		}
	}
	return (hr_allocator){ 0 };
}

__attribute__((hot)) hr_allocator hr__ledger_take(hr__ledger_kind kind, uint64_t address, hr__adopted *block)
{
	hr__thread *self = &hr__this_thread;
	uint32_t card = kind == HR__LEDGER_HOST ? 0 : self->card;
	if (__builtin_expect(!address, false)) return (hr_allocator){ 0 };
	if (self->expected_count) hr__launches_forget(address);
	return __builtin_expect(take(card, kind, address, block), true) ? existing(card, kind) : take_elsewhere(address, block);
}

void hr__ledger_restore(hr_allocator allocator, const hr__adopted *block)
{
	if (hr__adopted_restore(allocator, block) != HR_OK) hr__ledger_say_unrecorded(hr_last_message());
}

hr_allocator hr__ledger_find(uint64_t address)
{
	for (uint32_t card = 0; card < hr__cards_count(); card++) {
		for (hr__ledger_kind kind = 0; kind < HR__LEDGER_KINDS; kind++) {
			hr_allocator allocator = existing(card, kind);
			if (allocator.id && hr__adopted_has(allocator, address)) return allocator;
		}
	}
	return (hr_allocator){ 0 };
}

static void end_context_in(hr_allocator allocator, CUcontext context)
{
	hr__adopted block;
	uint32_t cursor = 0;
	while (hr__adopted_take_of(allocator, context, &cursor, &block)) {
		hr__launches_forget(hr__chunk_address(&block.chunk));
		hr__adopted_end(allocator, &block);
	}
}

void hr__ledger_end_context(CUcontext context)
{
	hr__block block;
	size_t cursor = 0;
	if (!context) return;
	for (uint32_t card = 0; card < hr__cards_count(); card++)
		for (hr__ledger_kind kind = 0; kind < HR__LEDGER_KINDS; kind++)
			if (existing(card, kind).id) end_context_in(existing(card, kind), context);
	while (hr__blocks_take_of(context, &cursor, &block)) {
		hr__launches_forget(block.address);
		hr__pools_give(block.pool, block.bytes);
		hr_free(block.allocator, (void *)(uintptr_t)block.address, HR_STREAM_HOST);
	}
}

/* Bytes of the blocks of a kind on GPU:n; 0 where they are not there. */
static uint64_t blocks_on_gpu(int card, hr__ledger_kind kind)
{
	hr_stats stats;
	uint64_t id = __atomic_load_n(&hr__now.allocators[card][kind], __ATOMIC_ACQUIRE);
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
	hr_allocator allocator = { __atomic_load_n(&hr__now.allocators[card][HR__LEDGER_DEVICE], __ATOMIC_ACQUIRE) };
	return hr_allocator_get_stats(allocator, &stats) == HR_OK && reserved_on_gpu(card) > (uint64_t)stats.bytes_limit;
}
