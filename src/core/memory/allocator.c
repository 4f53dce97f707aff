/* allocator.c - the registry of allocators: creating, finding and closing them, and hr_shutdown.
 *
 * A handle is a slot number (1 to 255) with a generation in the higher bits, so the handle of a closed allocator is never valid
 * again. A slot's pointer is read without a lock and written with the registry's lock held. */
#include "core/memory/allocator.h"
#include "core/memory/oom/oom.h"

#include <stdio.h>
#include <string.h>

#include "core/base/checked.h"
#include "core/base/names.h"
#include "core/base/text/settings.h"
#include "core/base/status.h"
#include "core/base/struct.h"
#include "core/base/text/text.h"
#include "core/memory/oom/report.h"
#include "core/trace/trace.h"

#define CUSTOM_MAX 32u
#define ALIGNMENT_MAX (UINT64_C(1) << 40)
#define ALLOCATOR_LINE 128u
#define ALLOCATOR_BYTES (sizeof(hr__allocator) + ALLOCATOR_LINE)

static struct {
	hr__lock lock;
	uint64_t generation;            /* guarded by lock; never reset */
	hr__custom customs[CUSTOM_MAX]; /* guarded by lock */
	uint32_t custom_count;
	bool fork_hooked;
} registry = { .lock = HR__LOCK_INIT(HR__RANK_REGISTRY) };

HR__HOT_DATA struct hr__allocator_slot hr__allocator_slots[HR__ALLOCATORS_MAX] __attribute__((aligned(64))); /* written under the registry's lock */

/* ---- handles ---- */

hr__allocator *hr__allocator_of(hr_allocator handle, hr_status *why)
{
	hr__allocator *allocator = hr__allocator_peek(handle);
	if (HR_LIKELY(allocator != NULL)) return allocator;
	if (hr__forked) *why = hr__fail(HR_FORKED, "this process is a fork of the one that made the allocator; call hr_shutdown() first");
	else if (!handle.id) *why = hr__fail(HR_INVALID_HANDLE, "the allocator handle is zero: it was never set");
	else *why = hr__fail(HR_INVALID_HANDLE, "no allocator has the handle %#llx: it was destroyed, or never created", (unsigned long long)handle.id);
	return NULL;
}

void hr__allocators_visit_locked(hr__device *device, void (*visit)(hr__allocator *, void *), void *context)
{
	HR_ASSERT(hr__lock_is_mine(&registry.lock));
	for (uint32_t slot = 1; slot < HR__ALLOCATORS_MAX; slot++) {
		hr__allocator *allocator = hr__load_relaxed(&hr__allocator_slots[slot].allocator);
		if (allocator && (!device || allocator->device == device)) visit(allocator, context);
	}
}

void hr__allocators_lock(void)
{
	hr__lock_take(&registry.lock);
}

void hr__allocators_unlock(void)
{
	hr__lock_release(&registry.lock);
}

#ifdef HR_DEBUG
bool hr__allocators_are_locked(void)
{
	return hr__lock_is_mine(&registry.lock);
}
#endif

void hr__allocators_visit(hr__device *device, void (*visit)(hr__allocator *, void *), void *context)
{
	hr__lock_take(&registry.lock);
	hr__allocators_visit_locked(device, visit, context);
	hr__lock_release(&registry.lock);
}

/* In the child after fork: nothing of the parent's may be touched, so nothing is released. */
static void forget_in_child(void)
{
	hr__threads_forget();
	for (uint32_t slot = 0; slot < HR__ALLOCATORS_MAX; slot++) {
		hr__store_relaxed(&hr__allocator_slots[slot].id, 0);
		hr__store_relaxed(&hr__allocator_slots[slot].allocator, NULL);
	}
	hr__lock_init(&registry.lock, HR__RANK_REGISTRY);
	const hr__lms_hooks *lms_hooks = hr__load_relaxed(&hr__hooks_table.lms);
	if (lms_hooks) lms_hooks->forget();
	hr__reports_forget();
	hr__log_slots_forget();
	hr__hooks_table.record_forget();
	hr__trace_forget();
}

/* ---- requests ---- */

hr_status hr__request_read(const char *call, const hr_request *request, hr_request *out)
{
	*out = (hr_request){ .struct_size = sizeof *out };
	return hr__struct_in(&hr__struct_request, call, out, request);
}

hr_status hr__request_check(const hr__allocator *allocator, const hr_request *request)
{
	if (!request) return hr__fail(HR_INVALID_ARGUMENT, "hr_alloc: the request is NULL");
	HR_ASSERT(request->struct_size == sizeof *request); /* hr__request_read */
	if (!request->bytes) return hr__fail(HR_INVALID_ARGUMENT, "%s: the request is for 0 bytes; request at least 1", allocator->name);
	if (request->bytes > HR__REQUEST_BYTES_MAX)
		return hr__fail(HR_INVALID_ARGUMENT, "%s: %zu bytes were requested; the maximum is 2^48",
		                allocator->name, request->bytes);
	if (request->alignment && !hr__is_power_of_two(request->alignment))
		return hr__fail(HR_INVALID_ARGUMENT, "%s: alignment %zu is not a power of two", allocator->name, request->alignment);
	if (request->alignment > ALIGNMENT_MAX)
		return hr__fail(HR_INVALID_ARGUMENT, "%s: alignment %zu is above 2^40", allocator->name, request->alignment);
	if (request->stream && !hr__device_has_stream(allocator->device, request->stream))
		return hr__fail(HR_INVALID_ARGUMENT, "%s: %s has no stream %u; create it with hr_stream_create", allocator->name,
		                hr__device_name(allocator->device), request->stream);
	return HR_OK;
}

hr_status hr__request_count_refusal(hr__allocator *allocator, hr_status status)
{
	HR_ASSERT(status != HR_OK);
	hr__shard *shard = &allocator->shards[0];
	hr__lock_take(&shard->lock);
	hr__owner_add(&shard->stats.allocs, 1);
	hr__owner_add(&shard->stats.failed, 1);
	hr__lock_release(&shard->lock);
	return status;
}

void hr__request_refuse(hr__allocator *allocator, const hr_request *request, const hr_request *judged, hr_status status)
{
	HR_ASSERT(status != HR_OK && hr__lock_none_from(HR__RANK_REPORT));
	if (hr__thread_self && hr__thread_self->retries) return;
	hr__recording_note_failed(allocator, request);
	hr__request_count_refusal(allocator, status);
	if (status == HR_OUT_OF_MEMORY && hr__load_relaxed(&allocator->reports)) hr__report_make(allocator, judged);
}

void hr__request_retry(bool on)
{
	hr__thread_state *thread = hr__thread_get();
	HR_ASSERT(!thread || on || thread->retries > 0);
	if (thread) thread->retries += on ? 1 : -1u;
}

/* ---- shards ---- */

hr_status hr__shard_ensure_records(hr__shard *shard, uint32_t records)
{
	HR_ASSERT(hr__lock_is_mine(&shard->lock));
	hr_status status = hr__chunk_table_ensure(&shard->table, records);
	if (status || HR_LIKELY(hr__lookup_has_room(&shard->lookup))) return status;
	hr__lookup_table *retired = NULL;
	status = hr__lookup_grow(&shard->lookup, &retired);
	if (retired) {
		hr__caches_quiesce(shard->allocator); /* no thread reads the old table after this */
		hr__lookup_free(retired);
	}
	return status;
}

hr_status hr__shard_open(hr__shard *shard)
{
	hr__allocator *allocator = shard->allocator;
	HR_ASSERT(!hr__load_relaxed(&shard->open) && shard->index < allocator->shard_max);
	HR_ASSERT(hr__lock_is_mine(&allocator->caches_lock) || !allocator->slot);
	hr_status status = hr__chunk_table_init(&shard->table);
	if (status) return status;
	status = hr__lookup_init(&shard->lookup, shard->table.chunks);
	if (status) {
		hr__chunk_table_destroy(&shard->table);
		return status;
	}
	hr__arena_init(&shard->large.arena, &shard->table, allocator->granularity);
	hr__arena_init(&shard->small.arena, &shard->table, allocator->granularity);
	shard->small.small = true;
	if (allocator->page && allocator->stitch) shard->large.arena.page = allocator->page;
	if (!allocator->page || allocator->kind != HR__KIND_BFC) hr__store_relaxed(&shard->span, UINT64_MAX); /* accepts any address */
	hr__store_relaxed(&shard->large_from, UINT64_MAX);
	hr__store_relaxed(&shard->meter.level, hr__meters_are_on(allocator) ? 0 : HR__NO_LEVEL);
	hr__store_relaxed(&allocator->open_shards, hr__load_relaxed(&allocator->open_shards) + 1);
	hr__store_release(&shard->open, 1);
	return HR_OK;
}

static void shard_close(hr__shard *shard)
{
	hr__lock_take(&shard->lock);
	if (shard->allocator->kind == HR__KIND_BFC) hr__shard_close_regions(shard);
	hr__lock_release(&shard->lock);
	hr__lookup_destroy(&shard->lookup);
	hr__chunk_table_destroy(&shard->table);
}

/* ---- creating ---- */

void hr_allocator_options_init_sized(hr_allocator_options *options, size_t struct_size)
{
	if (!options) return;
	hr_allocator_options initial = { .struct_size = sizeof initial, .granularity = 256, .allow_growth = true, .thread_cache = true,
		                             .stitch = true };
	hr_oom_options_init(&initial.oom);
	hr__struct_init(&hr__struct_allocator_options, options, struct_size, &initial);
}

/* Options as the program gave them, of this library's size. */
static hr_status read_options(const hr_allocator_options *given, hr_allocator_options *out)
{
	const char *call = "hr_allocator_create";
	hr_allocator_options_init(out);
	if (!given) return HR_OK;
	hr_oom_options oom = out->oom;
	hr_status status = hr__struct_in(&hr__struct_allocator_options, call, out, given);
	const unsigned char *embedded = (const unsigned char *)out + offsetof(hr_allocator_options, oom);
	if (!status) status = hr__oom_options_read(call, embedded, sizeof out->oom + sizeof out->oom_reserved, &oom);
	if (!status) out->oom = oom;
	return status;
}

/* Finds the custom kind of that name. */
static hr_status custom_of(hr__allocator *allocator, const char *name)
{
	HR_ASSERT(!allocator->kind);
	char known[256];
	size_t used = (size_t)snprintf(known, sizeof known, "bfc, direct");
	hr__lock_take(&registry.lock);
	for (uint32_t i = 0; i < registry.custom_count && !allocator->kind; i++) {
		if (!strcmp(name, registry.customs[i].name)) {
			allocator->kind = HR__KIND_CUSTOM;
			allocator->custom = registry.customs[i];
		}
		if (used < sizeof known - 40) used += (size_t)snprintf(known + used, sizeof known - used, ", %s", registry.customs[i].name);
	}
	hr__lock_release(&registry.lock);
	if (allocator->kind) return HR_OK;
	return hr__fail(HR_UNKNOWN_ALLOCATOR, "unknown allocator kind \"%.40s\"; there are: %s", name, known);
}

static hr_status kind_of(hr__allocator *allocator, const char *name)
{
	snprintf(allocator->kind_name, sizeof allocator->kind_name, "%s", name);
	if (!strcmp(name, "bfc")) allocator->kind = HR__KIND_BFC;
	if (!strcmp(name, "direct")) allocator->kind = HR__KIND_DIRECT;
	return allocator->kind ? HR_OK : custom_of(allocator, name);
}

static hr_status set_limit(hr__allocator *allocator, uint64_t asked)
{
	uint64_t most = hr__device_reservable(allocator->device), unit = allocator->page ? allocator->page : allocator->granularity;
	uint64_t own = hr__align_down(hr__device_uncapped(allocator->device), unit); /* HEADROOM_LIMIT lowers limits, refuses none */
	hr__sizes size = HR__SIZES(asked, most);
	char unit_text[16];
	if (asked > own && asked > most)
		return hr__fail(HR_BAD_LIMIT, "limit_bytes %s is above what %s may use, %s", size.text[0], hr__device_name(allocator->device),
		                size.text[1]);
	allocator->limit = hr__align_down(asked && asked < most ? asked : most, unit);
	if (!allocator->limit)
		return hr__fail(HR_BAD_LIMIT, "limit_bytes %llu is below one page of %s, %s", (unsigned long long)asked,
		                hr__device_name(allocator->device), hr__format_size(unit, unit_text, sizeof unit_text));
	return HR_OK;
}

static hr_status set_options(hr__allocator *allocator, const hr_allocator_options *options)
{
	if (!hr__is_power_of_two(options->granularity) || options->granularity < 16 || options->granularity > 65536)
		return hr__fail(HR_INVALID_ARGUMENT, "options.granularity is %u; it must be a power of two from 16 to 65536",
		                options->granularity);
	allocator->granularity = options->granularity;
	allocator->shift = hr__log2(options->granularity);
	allocator->allow_growth = options->allow_growth;
	allocator->thread_cache = options->thread_cache;
	allocator->bytes_stream = hr__device_host_accessible(allocator->device) ? HR_STREAM_HOST : HR_STREAM_DEFAULT;
	allocator->stitch = options->stitch;
	allocator->page = hr__device_page_bytes(allocator->device);
	if (allocator->page && allocator->page < allocator->granularity)
		return hr__fail(HR_INVALID_ARGUMENT, "options.granularity %u is above the page size of %s, %llu", options->granularity,
		                hr__device_name(allocator->device), (unsigned long long)allocator->page);
	hr_status status = hr__oom_options_check(&options->oom);
	if (!status) status = kind_of(allocator, options->kind ? options->kind : "bfc");
	if (status) return status;
	allocator->oom = options->oom;
	if (options->name) snprintf(allocator->name, sizeof allocator->name, "%s", options->name);
	else snprintf(allocator->name, sizeof allocator->name, "%.15s_%.15s", hr__device_name(allocator->device), allocator->kind_name);
	status = set_limit(allocator, options->limit_bytes);
	if (status) return status;
	uint64_t worth = allocator->page ? allocator->limit / allocator->page / HR__PAGES_PER_SHARD : 1;
	allocator->shard_max = worth < 1 ? 1 : worth > HR__SHARDS_MAX ? HR__SHARDS_MAX : (uint32_t)worth;
	HR_ASSERT(allocator->limit <= hr__device_reservable(allocator->device));
	return HR_OK;
}

static hr_status open_kind(hr__allocator *allocator)
{
	HR_ASSERT(allocator->kind && allocator->limit);
	if (allocator->kind == HR__KIND_BFC) return hr__bfc_open(allocator);
	allocator->shard_max = 1;
	hr_status status = hr__shard_open(&allocator->shards[0]);
	if (status || allocator->kind == HR__KIND_DIRECT) return status;
	allocator->custom_state = allocator->custom.user;
	if (!allocator->custom.table.open) return HR_OK;
	status = allocator->custom.table.open(allocator->custom.user, hr__device_handle(allocator->device), allocator->limit,
	                                      &allocator->custom_state);
	return status ? hr__fail(status, "the custom allocator \"%s\" could not be opened", allocator->kind_name) : HR_OK;
}

/* Frees [block], which contains the allocator, aligned to a pair of cache lines. */
static void destroy(hr__allocator *allocator)
{
	HR_ASSERT(!allocator->caches && !hr__load_relaxed(&allocator->cache_count));
	HR__EACH_SHARD(allocator, shard) shard_close(shard);
	hr__log_close(allocator);
	hr__os()->free(allocator->block, ALLOCATOR_BYTES);
}

static hr_status build(hr__device *device, const hr_allocator_options *options, hr__allocator **out)
{
	void *block;
	int error = hr__os()->alloc(ALLOCATOR_BYTES, &block);
	if (error) return hr__os_fail(error, "cannot get host memory for an allocator");
	hr__allocator *allocator = (hr__allocator *)(((uintptr_t)block + ALLOCATOR_LINE - 1) & ~(uintptr_t)(ALLOCATOR_LINE - 1));
	allocator->block = block;
	allocator->device = device;
	allocator->usage = &hr__usages[hr__device_index(device)];
	hr__lock_init(&allocator->caches_lock, HR__RANK_CACHES);
	allocator->meter_lock = &allocator->usage->lock;
	for (uint32_t i = 0; i < HR__SHARDS_MAX; i++) {
		allocator->shards[i].allocator = allocator;
		allocator->shards[i].index = i;
		hr__lock_init(&allocator->shards[i].lock, (enum hr__lock_rank)(HR__RANK_SHARD + i));
	}
	hr_status status = set_options(allocator, options);
	if (!status) status = hr__log_open(allocator);
	if (!status) status = open_kind(allocator);
	if (status) {
		destroy(allocator);
		return status;
	}
	*out = allocator;
	return HR_OK;
}

/* Gives a complete allocator a slot and a handle. */
static hr_status enlist(hr__allocator *allocator, hr_allocator *out)
{
	HR_ASSERT(hr__allocators_are_locked() && !allocator->slot);
	uint32_t slot = 1;
	while (slot < HR__ALLOCATORS_MAX && hr__load_relaxed(&hr__allocator_slots[slot].allocator)) slot++;
	if (slot == HR__ALLOCATORS_MAX) return hr__fail(HR_TOO_MANY, "255 allocators exist already; destroy one first");
	if (!registry.fork_hooked) {
		int error = hr__os_at_fork(forget_in_child);
		if (error) return hr__os_fail(error, "cannot register a fork handler");
		registry.fork_hooked = true;
	}
	allocator->slot = slot;
	allocator->id = ++registry.generation * HR__ALLOCATORS_MAX + slot;
	hr__usage_join(allocator);
	hr__store_relaxed(&hr__allocator_slots[slot].allocator, allocator);
	hr__store_release(&hr__allocator_slots[slot].id, allocator->id);
	if (hr__trace_is_on()) hr__recording_note_allocator(allocator);
	out->id = allocator->id;
	return HR_OK;
}

/* Undoes build. Without locks, because the user's functions may use other allocators. */
static void tear_down(hr__allocator *allocator)
{
	HR_ASSERT(hr__lock_none_from(HR__RANK_REGISTRY));
	/* Work queued on this memory must finish before the memory is released. An error is not returned: it stays with the device. */
	hr__device_wait_idle(allocator->device, UINT64_MAX, hr__device_epoch(allocator->device));
	if (allocator->kind != HR__KIND_BFC) hr__direct_close(allocator);
	if (allocator->kind == HR__KIND_CUSTOM && allocator->custom.table.close) allocator->custom.table.close(allocator->custom_state);
	destroy(allocator);
}

hr_status hr_allocator_create(hr_device handle, const hr_allocator_options *options, hr_allocator *out)
{
	hr_status status;
	hr_allocator_options whole;
	hr__allocator *allocator = NULL;
	if (!out) return hr__fail(HR_INVALID_ARGUMENT, "hr_allocator_create: out is NULL");
	hr__device *device = hr__device_of(handle, &status);
	if (!device) return status;
	hr__hooks_table.record_begin();
	status = read_options(options, &whole);
	if (status) return status;
	hr__lock_take(&registry.lock);
	hr__usage_prepare(&hr__usages[hr__device_index(device)]);
	hr__lock_release(&registry.lock);
	status = build(device, &whole, &allocator);
	if (status) return status;
	hr__lock_take(&registry.lock);
	status = enlist(allocator, out);
	hr__lock_release(&registry.lock);
	if (status) tear_down(allocator);
	return status;
}

/* The default allocator of a device; NULL if it does not exist yet. */
static hr__allocator *default_of(const hr__device *device)
{
	HR_ASSERT(hr__allocators_are_locked());
	for (uint32_t slot = 1; slot < HR__ALLOCATORS_MAX; slot++) {
		hr__allocator *allocator = hr__load_relaxed(&hr__allocator_slots[slot].allocator);
		if (allocator && allocator->device == device && allocator->is_default) return allocator;
	}
	return NULL;
}

hr_status hr_allocator_get_default(const char *device_name, hr_allocator *out)
{
	hr__device *device;
	hr_allocator_options defaults;
	if (!out) return hr__fail(HR_INVALID_ARGUMENT, "hr_allocator_get_default: out is NULL");
	hr_status status = hr__device_named(device_name, &device);
	if (status) return status;
	hr__hooks_table.record_begin();
	hr_allocator_options_init(&defaults);
	hr__lock_take(&registry.lock); /* held throughout, so that two threads do not create two default allocators */
	hr__usage_prepare(&hr__usages[hr__device_index(device)]);
	hr__allocator *allocator = default_of(device);
	if (allocator) {
		out->id = allocator->id;
	} else if ((status = build(device, &defaults, &allocator)) == HR_OK) {
		allocator->is_default = true;
		status = enlist(allocator, out);
		if (status) destroy(allocator);
	}
	hr__lock_release(&registry.lock);
	return status;
}

hr_status hr_allocator_register(const char *name, const hr_custom_allocator *table, void *user)
{
	if (hr__forked) return hr__fail(HR_FORKED, "this process is a fork; call hr_shutdown() first");
	if (!name || !name[0] || strlen(name) >= sizeof registry.customs[0].name)
		return hr__fail(HR_INVALID_ARGUMENT, "the name of a custom allocator must have 1 to 31 bytes");
	hr_custom_allocator whole = { .struct_size = sizeof whole };
	hr_status status = hr__struct_in(&hr__struct_custom_allocator, "hr_allocator_register", &whole, table);
	if (status) return status;
	if (!whole.alloc || !whole.free)
		return hr__fail(HR_INVALID_ARGUMENT, "custom allocator \"%s\": %s is missing", name, whole.alloc ? "free" : "alloc");
	hr__lock_take(&registry.lock);
	bool taken = !strcmp(name, "bfc") || !strcmp(name, "direct");
	for (uint32_t i = 0; i < registry.custom_count; i++) taken = taken || !strcmp(name, registry.customs[i].name);
	if (taken) {
		status = hr__fail(HR_ALREADY_EXISTS, "allocator kind \"%s\" exists already", name);
	} else if (registry.custom_count == CUSTOM_MAX) {
		status = hr__fail(HR_TOO_MANY, "%u custom allocators are registered already", CUSTOM_MAX);
	} else {
		hr__custom *custom = &registry.customs[registry.custom_count++];
		*custom = (hr__custom){ .table = whole, .user = user };
		snprintf(custom->name, sizeof custom->name, "%s", name);
	}
	hr__lock_release(&registry.lock);
	return status;
}

/* ---- closing ---- */

/* HR_IN_USE with the op of the largest allocated block, or HR_OK if there are no blocks. */
static hr_status still_in_use(hr__allocator *allocator)
{
	uint64_t count = 0, bytes = 0, largest = 0;
	hr_name op = HR_NAME_NONE;
	HR_ASSERT(hr__allocators_are_locked());
	hr__caches_stop(allocator);
	hr__shards_lock(allocator);
	HR__EACH_SHARD(allocator, shard)
	{
		for (hr__chunk_id id = 1; id < shard->table.touched; id++) {
			const hr__chunk *chunk = hr__chunk_at(&shard->table, id);
			if (hr__chunk_state_of(chunk) != HR__CHUNK_IN_USE) continue;
			count++;
			bytes += chunk->size;
			if (chunk->size <= largest) continue;
			largest = chunk->size;
			op = chunk->op;
		}
	}
	hr__shards_unlock(allocator);
	hr__caches_start(allocator);
	if (!count) return HR_OK;
	hr__sizes size = HR__SIZES(bytes, largest);
	return hr__fail(HR_IN_USE, "%s still has %llu block%s of %s allocated, the largest %s%s%s; free them, or use hr_allocator_destroy_all",
	                allocator->name, (unsigned long long)count, hr__plural(count), size.text[0], size.text[1], op ? " by op " : "",
	                hr__brief(hr_name_text(op), 60).text);
}

/* Invalidates the handle and detaches the thread caches. */
static void delist(hr__allocator *allocator)
{
	HR_ASSERT(hr__allocators_are_locked());
	HR_ASSERT(hr__load_relaxed(&hr__allocator_slots[allocator->slot].allocator) == allocator);
	hr__store_release(&hr__allocator_slots[allocator->slot].id, 0);
	hr__store_release(&hr__allocator_slots[allocator->slot].allocator, NULL);
	hr__caches_detach(allocator);
	hr__usage_leave(allocator);
}

static hr_status close_handle(hr_allocator handle, bool even_in_use)
{
	hr_status status = HR_OK;
	const hr__lms_hooks *lms_hooks = hr__load_acquire(&hr__hooks_table.lms);
	hr__allocator *allocator = hr__allocator_of(handle, &status);
	if (!allocator) return status;
	if (lms_hooks && hr__load_acquire(&allocator->lms) && !allocator->is_default) {
		status = even_in_use ? HR_OK : lms_hooks->in_use(allocator);
		if (!status && !even_in_use) { /* a refused close must leave the tensors' context intact */
			hr__lock_take(&registry.lock);
			status = still_in_use(allocator);
			hr__lock_release(&registry.lock);
		}
		if (!status) {
			hr__stats_keep_tensors(allocator, lms_hooks);
			lms_hooks->closing(allocator);
		}
	}
	if (status) return status;
	hr__lock_take(&registry.lock);
	allocator = hr__allocator_of(handle, &status);
	if (allocator && allocator->is_default)
		status = hr__fail(HR_IN_USE, "%s is the default allocator of %s; hr_shutdown destroys it", allocator->name,
		                  hr__device_name(allocator->device));
	else if (allocator && !even_in_use) status = still_in_use(allocator);
	if (!status) delist(allocator);
	hr__lock_release(&registry.lock);
	if (!status) tear_down(allocator);
	return status;
}

hr_status hr_allocator_destroy(hr_allocator handle)
{
	return close_handle(handle, false);
}

hr_status hr_allocator_destroy_all(hr_allocator handle)
{
	return close_handle(handle, true);
}

/* The newest allocator, or NULL. */
static hr__allocator *newest(void)
{
	HR_ASSERT(hr__allocators_are_locked());
	hr__allocator *found = NULL;
	for (uint32_t slot = 1; slot < HR__ALLOCATORS_MAX; slot++) {
		hr__allocator *allocator = hr__load_relaxed(&hr__allocator_slots[slot].allocator);
		if (allocator && (!found || allocator->id / HR__ALLOCATORS_MAX > found->id / HR__ALLOCATORS_MAX)) found = allocator;
	}
	return found;
}

hr_status hr_shutdown(void)
{
	hr__leaks leaks = { 0 };
	void (*end_runtime)(bool forgets, hr__leaks *leaks) = hr__load_acquire(&hr__hooks_table.runtime_end);
	if (end_runtime) end_runtime(hr__forked, &leaks);
	hr__settings_forget();
	if (hr__forked) {
		registry.custom_count = 0;
		hr__usages_reset();
		hr__devices_forget();
		return HR_OK;
	}
	const hr__lms_hooks *lms_hooks = hr__load_acquire(&hr__hooks_table.lms);
	if (lms_hooks) lms_hooks->leaks(&leaks);
	if (lms_hooks) lms_hooks->shutdown();
	hr_status status = hr__hooks_table.record_end();
	if (hr__trace_is_open()) status = hr__trace_close();
	hr__allocator *allocator;
	do { /* newest first: a custom allocator may be built on an older allocator and use it while closing */
		hr__lock_take(&registry.lock);
		allocator = newest();
		hr__lock_release(&registry.lock);
		if (allocator) hr__leaks_add_blocks(&leaks, allocator);
		hr__lock_take(&registry.lock);
		if (allocator) delist(allocator);
		else registry.custom_count = 0;
		hr__lock_release(&registry.lock);
		if (allocator) tear_down(allocator);
	} while (allocator);
	hr__thread_drop();
	hr__reports_drop();
	hr__log_slots_free();
	hr__usages_reset();
	hr__devices_shutdown();
	return hr__leaks_end(&leaks, status);
}
