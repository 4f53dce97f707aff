/* manage.c - see manage.h.
 *
 * cuMemAlloc gives memory that any stream may use at once, so it is a request for the host (HR_STREAM_HOST): the allocator waits for the streams that used
 * the memory before. cuMemFree does not say which streams used the block, and the driver waits for all of them, so the context is synchronised before the
 * block is freed. Stream-ordered calls have a stream, which is imported: the allocator then orders the device's work, and the host never waits. */
#define _GNU_SOURCE
#include "manage.h"

#include <pthread.h>
#include <stdio.h>

#include "captures.h"
#include "cards.h"
#include "driver.h"
#include "launches.h"
#include "pools.h"
#include "settings.h"

enum { NOT_OPENED, OPENED, LEFT_ALONE };

typedef struct imported_stream {
	CUstream native;
	hr_stream number;
} imported_stream;

typedef struct managed_card {
	int state; /* stored with release */
	hr_device device;
	hr_allocator allocator;
	CUcontext primary;
	imported_stream streams[HR_STREAM_MAX]; /* guarded by the lock */
	unsigned stream_count;
} managed_card;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static managed_card cards[HR__CARDS_MAX];

bool hr__manage_is_on(void)
{
	return hr__settings_now.manage && hr__ledger_is_on();
}

/* ---- cards ---- */

/* A function that frees need and the driver does not have; NULL if it has all. */
static const char *missing_function(void)
{
	return !hr__driver.cuCtxSynchronize ? "cuCtxSynchronize" : !hr__driver.cuCtxPushCurrent_v2 ? "cuCtxPushCurrent" : !hr__driver.cuCtxPopCurrent_v2 ? "cuCtxPopCurrent" : NULL;
}

/* The allocator takes at least a page. */
static bool limit_has_page(hr_device device)
{
	hr_device_info info;
	uint64_t limit = hr__settings_get()->limit;
	hr_device_info_init(&info);
	return !limit || (hr_device_get_info(device, &info) == HR_OK && limit >= info.page_bytes);
}

static bool open_card(managed_card *card, int index, CUdevice device)
{
	char name[40];
	hr_allocator_options options;
	if (missing_function()) {
		hr__settings_say("the memory of CUDA device %d is not managed: the CUDA driver has no %s; it comes from the driver", index, missing_function());
		return false;
	}
	snprintf(name, sizeof name, "GPU:%d", index);
	bool found = hr_device_find(name, &card->device) == HR_OK && !hr_device_is_emulated(card->device);
	if (found && !limit_has_page(card->device)) {
		hr__settings_say("the memory of CUDA device %d is not managed: the limit is below one page of Headroom's; it comes from the driver", index);
		return false;
	}
	hr__ledger_set_report(&options, HR__LEDGER_DEVICE);
	snprintf(name, sizeof name, "GPU:%d_managed", index);
	options.name = name;
	bool created = found && hr_allocator_create(card->device, &options, &card->allocator) == HR_OK;
	if (created) card->primary = hr__cards_primary(device);
	if (card->primary) return true;
	if (!found) (void)!hr_cuda_check(); /* for its message */
	hr__settings_say("the memory of CUDA device %d is not managed: %s; it comes from the driver", index,
	                 created ? "the driver does not say which context is its primary one" : hr_last_message());
	return false;
}

/* NULL: the memory of this context is the driver's. */
static managed_card *card_of(const hr__ledger_request *request)
{
	int index = hr__settings_now.manage ? hr__cards_index(request->device) : -1;
	managed_card *card = index >= 0 ? &cards[index] : NULL;
	if (!card) return NULL;
	int state = __atomic_load_n(&card->state, __ATOMIC_ACQUIRE);
	if (state == NOT_OPENED) {
		/* Only a program that uses the primary context has one: opening the card would make it. */
		if (request->context != hr__cards_primary(request->device)) return NULL;
		pthread_mutex_lock(&lock);
		if (card->state == NOT_OPENED) __atomic_store_n(&card->state, open_card(card, index, request->device) ? OPENED : LEFT_ALONE, __ATOMIC_RELEASE);
		state = card->state;
		pthread_mutex_unlock(&lock);
	}
	return state == OPENED && request->context == card->primary ? card : NULL;
}

/* The card of an allocator; NULL if it is none of these. */
static managed_card *card_with(hr_allocator allocator)
{
	for (int i = 0; i < HR__CARDS_MAX; i++)
		if (__atomic_load_n(&cards[i].state, __ATOMIC_ACQUIRE) == OPENED && cards[i].allocator.id == allocator.id) return &cards[i];
	return NULL;
}

/* ---- streams ---- */

/* Streams of other contexts cannot be imported: their work is not ordered with that of the card's. */
static bool is_of_card(const managed_card *card, CUstream stream)
{
	CUcontext of;
	return !hr__driver.cuStreamGetCtx || (hr__driver.cuStreamGetCtx(stream, &of) == HR__CUDA_SUCCESS && of == card->primary);
}

static bool import(managed_card *card, CUstream stream, hr_stream *out)
{
	unsigned at = 0;
	bool done = true;
	pthread_mutex_lock(&lock);
	while (at < card->stream_count && card->streams[at].native != stream) at++;
	if (at == card->stream_count) {
		done = at < HR_STREAM_MAX && is_of_card(card, stream) && hr_stream_import(card->device, (uint64_t)(uintptr_t)stream, &card->streams[at].number) == HR_OK;
		if (done) card->streams[card->stream_count++].native = stream;
	}
	if (done) *out = card->streams[at].number;
	pthread_mutex_unlock(&lock);
	return done;
}

static bool is_per_thread(const hr__manage_order *order)
{
	return order->stream == HR__PER_THREAD_STREAM || (!order->stream && order->per_thread);
}

/* The allocator's stream for [order]; false if it has none. */
static bool stream_for(managed_card *card, const hr__manage_order *order, hr_stream *out)
{
	*out = HR_STREAM_HOST;
	if (!order->by_stream) return true;
	if (is_per_thread(order)) return false;
	*out = HR_STREAM_DEFAULT;
	return !order->stream || order->stream == HR__LEGACY_STREAM || import(card, order->stream, out);
}

/* Takes the stream out of the list; false: it is not there. */
static bool take_out(managed_card *card, CUstream stream, hr_stream *out)
{
	unsigned at = 0;
	pthread_mutex_lock(&lock);
	while (at < card->stream_count && card->streams[at].native != stream) at++;
	bool found = at < card->stream_count;
	if (found) {
		*out = card->streams[at].number;
		card->streams[at] = card->streams[--card->stream_count];
	}
	pthread_mutex_unlock(&lock);
	return found;
}

/* Waits for the stream, without the lock: its work may wait for what other threads do after a request. */
void hr__manage_end_stream(CUstream stream)
{
	hr_stream number;
	for (int i = 0; i < HR__CARDS_MAX; i++)
		if (__atomic_load_n(&cards[i].state, __ATOMIC_ACQUIRE) == OPENED && take_out(&cards[i], stream, &number)) hr_stream_destroy(cards[i].device, number);
}

/* ---- blocks ---- */

/* The allocator keeps within the limit by itself, but does not know of memory that was passed on. What it keeps for later may have to go. */
static bool keeps_limit(CUdevice device)
{
	if (!hr__ledger_is_above_limit(device)) return true;
	(void)!hr__manage_trim(device);
	return !hr__ledger_is_above_limit(device);
}

static bool take(managed_card *card, const hr__ledger_request *request, hr_stream stream, uint32_t pool, void **out, hr_status *status)
{
	hr_request wanted = HR_REQUEST(request->bytes);
	wanted.stream = stream;
	hr__ledger_name(request, &wanted);
	*status = hr_alloc(card->allocator, &wanted, out);
	if (*status != HR_OK) return false;
	if (!keeps_limit(request->device)) {
		hr_free(card->allocator, *out, stream);
		(void)!hr__manage_trim(request->device);
		hr__ledger_refuse(request);
		*status = HR_OUT_OF_MEMORY;
		return false;
	}
	hr__block block = { .address = (uintptr_t)*out, .bytes = request->bytes, .allocator = card->allocator, .context = request->context, .pool = pool };
	if (hr__blocks_add(&block)) {
		hr__launches_expect(card->allocator, 0, block.address);
		return true;
	}
	hr_free(card->allocator, *out, stream);
	return false;
}

/* The pool of a request in stream order, 0 of others; false: its memory must come from the driver. */
static bool pool_for(const hr__ledger_request *request, const hr__manage_order *order, uint32_t *out)
{
	*out = 0;
	if (order->by_stream) *out = order->pool ? hr__pools_find(order->pool, request->device) : hr__pools_current(request->device);
	return !order->by_stream || *out;
}

bool hr__manage_take(const hr__ledger_request *request, const hr__manage_order *order, CUdeviceptr *out, CUresult *result)
{
	void *block = NULL;
	uint32_t pool;
	hr_stream stream;
	hr_status status = HR_OUT_OF_MEMORY;
	managed_card *card = request->bytes && !hr__captures_active() ? card_of(request) : NULL;
	if (!card || !stream_for(card, order, &stream) || !pool_for(request, order, &pool)) return false;
	hr__manage_settle();
	bool in_pool = hr__pools_take(pool, request->bytes), taken = in_pool && take(card, request, stream, pool, &block, &status);
	if (in_pool && !taken) hr__pools_give(pool, request->bytes);
	if (!taken && status != HR_OUT_OF_MEMORY) return false;
	if (taken) *out = (uintptr_t)block;
	*result = taken ? HR__CUDA_SUCCESS : HR__CUDA_ERROR_OUT_OF_MEMORY;
	return true;
}

/* Waits for all work in the context of a block. */
static CUresult synchronise(CUcontext context)
{
	CUcontext popped;
	CUresult result = hr__driver.cuCtxPushCurrent_v2(context);
	if (result != HR__CUDA_SUCCESS) return result;
	result = hr__driver.cuCtxSynchronize();
	hr__driver.cuCtxPopCurrent_v2(&popped);
	return result;
}

/* Waits for all work that may use a block of the program's: that of its context, and of a stream of another one. */
static CUresult wait_for_users(const hr__block *block, const hr__manage_order *order)
{
	CUresult result = synchronise(block->context);
	bool other = order->by_stream && !is_per_thread(order) && hr__driver.cuStreamSynchronize;
	return result == HR__CUDA_SUCCESS && other ? hr__driver.cuStreamSynchronize(order->stream) : result;
}

/* ---- frees while a graph is recorded ---- */

/* The context cannot be waited for then: that would end the recording. The blocks are the program's no longer, but stay allocated until the end of the
 * recording. A program that records for long, and frees much meanwhile, would need more places: then the free waits after all. */
#define DEFERRED_MAX 4096u
static hr__block deferred[DEFERRED_MAX]; /* guarded by the lock */
static unsigned deferred_count;          /* stored with release, with the lock */

static bool defer(const hr__block *block)
{
	hr__block taken;
	pthread_mutex_lock(&lock);
	bool room = deferred_count < DEFERRED_MAX && hr__blocks_take(block->address, &taken);
	if (room) {
		deferred[deferred_count] = taken;
		__atomic_store_n(&deferred_count, deferred_count + 1, __ATOMIC_RELEASE);
	}
	pthread_mutex_unlock(&lock);
	if (!room) return false;
	hr__launches_forget(block->address);
	hr__pools_give(taken.pool, taken.bytes);
	return true;
}

/* One of the deferred blocks; false: there is none. */
static bool take_deferred(hr__block *out)
{
	pthread_mutex_lock(&lock);
	bool found = deferred_count > 0;
	if (found) {
		*out = deferred[deferred_count - 1];
		__atomic_store_n(&deferred_count, deferred_count - 1, __ATOMIC_RELEASE);
	}
	pthread_mutex_unlock(&lock);
	return found;
}

/* False: there is no room. */
static bool put_back(const hr__block *block)
{
	pthread_mutex_lock(&lock);
	bool room = deferred_count < DEFERRED_MAX;
	if (room) {
		deferred[deferred_count] = *block;
		__atomic_store_n(&deferred_count, deferred_count + 1, __ATOMIC_RELEASE);
	}
	pthread_mutex_unlock(&lock);
	return room;
}

void hr__manage_settle(void)
{
	hr__block block;
	if (!__atomic_load_n(&deferred_count, __ATOMIC_ACQUIRE)) return;
	while (!hr__captures_active() && take_deferred(&block)) {
		if (!card_with(block.allocator)) continue; /* its card was reset */
		/* For each block, because another thread may have deferred it after the last wait. */
		CUresult result = synchronise(block.context);
		if (result == HR__CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED && put_back(&block)) return; /* a capture has begun */
		if (result != HR__CUDA_SUCCESS) continue; /* it stays allocated */
		hr_free(block.allocator, (void *)(uintptr_t)block.address, HR_STREAM_HOST);
	}
}

bool hr__manage_free(CUdeviceptr address, const hr__manage_order *order, CUresult *result)
{
	hr__block block;
	hr_stream stream;
	if (!hr__settings_now.manage || !hr__blocks_find(address, false, &block)) return false;
	managed_card *card = card_with(block.allocator);
	if (!card) return false; /* its card was reset */
	/* A graph can free its own memory alone. */
	*result = order->by_stream && hr__captures_has(order->stream, order->per_thread) ? HR__CUDA_ERROR_INVALID_VALUE : HR__CUDA_SUCCESS;
	if (*result != HR__CUDA_SUCCESS) return true;
	bool by_stream = order->by_stream && stream_for(card, order, &stream);
	if (!by_stream && hr__captures_active() && defer(&block)) return true;
	hr__manage_settle();
	if (!by_stream) stream = HR_STREAM_HOST, *result = wait_for_users(&block, order);
	/* Another thread may free the same block meanwhile: one of them takes it. */
	if (*result == HR__CUDA_SUCCESS && !hr__blocks_take(address, &block)) *result = HR__CUDA_ERROR_INVALID_VALUE;
	if (*result != HR__CUDA_SUCCESS) return true;
	hr__launches_forget(address);
	hr__pools_give(block.pool, block.bytes);
	if (hr_free(block.allocator, (void *)(uintptr_t)address, stream) != HR_OK) *result = HR__CUDA_ERROR_UNKNOWN;
	return true;
}

bool hr__manage_find(CUdeviceptr address, hr__block *out)
{
	return hr__settings_now.manage && hr__blocks_find(address, true, out);
}

uint64_t hr__manage_idle_bytes(CUdevice device)
{
	hr_stats stats;
	int index = hr__settings_now.manage ? hr__cards_index(device) : -1;
	hr_stats_init(&stats);
	if (index < 0 || __atomic_load_n(&cards[index].state, __ATOMIC_ACQUIRE) != OPENED) return 0;
	return hr_allocator_get_stats(cards[index].allocator, &stats) == HR_OK ? (uint64_t)(stats.bytes_reserved - stats.bytes_in_use) : 0;
}

bool hr__manage_trim(CUdevice device)
{
	uint64_t released = 0;
	int index = hr__settings_now.manage ? hr__cards_index(device) : -1;
	if (index < 0 || hr__captures_active() || __atomic_load_n(&cards[index].state, __ATOMIC_ACQUIRE) != OPENED) return false;
	return hr_allocator_trim(cards[index].allocator, &released) == HR_OK && released > 0;
}

/* Where the context cannot be waited for, as after an illegal access, the blocks end with it, and their pages are lost to the process. */
void hr__manage_end_card(CUdevice device)
{
	int index = hr__cards_index(device);
	if (index < 0) return;
	managed_card *card = &cards[index];
	hr__manage_settle();
	if (__atomic_load_n(&card->state, __ATOMIC_ACQUIRE) == OPENED && synchronise(card->primary) == HR__CUDA_SUCCESS) {
		hr__ledger_end_context(card->primary);
		(void)!hr__manage_trim(device);
	}
	__atomic_store_n(&card->state, LEFT_ALONE, __ATOMIC_RELEASE);
}
