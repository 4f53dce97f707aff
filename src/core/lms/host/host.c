/* host.c - the two tiers of host.h as one: pinned memory while it lasts, then the file.
 *
 * The pinned tier is just an allocator: hr_alloc with the stream of the copy returns a block that the stream may write to, after
 * waiting on the device for its previous users; hr_free records which stream still uses it. So copies in both directions are queued
 * and not waited for.
 *
 * Copies are counted when they are complete or under way, never for a failed attempt. */
#include "core/lms/host/host.h"
#include "core/base/assert.h"

#include <stdio.h>

#include "core/base/status.h"
#include "core/base/text/text.h"
#include "core/lms/host/host_file.h"
#include "core/os/os.h"

#define SCRATCH (UINT64_C(32) << 20)
#define SCRATCH_SHARE 8u             /* at most 1/8 of the limit */
#define SCRATCH_LEAST UINT64_C(4096) /* lower bound */

/* Bytes of copies in a tier. */
typedef struct tier_bytes {
	hr__atomic_i64 now, peak;
} tier_bytes;

struct hr__host {
	hr__device *device;
	hr_allocator pool;
	hr__host_file *file;      /* NULL = none */
	hr__host_scratch scratch; /* all fields up to here are immutable */
	uint64_t limit;           /* of pinned memory */
	tier_bytes pinned, spilled;
	hr__atomic_i64 elsewhere; /* bytes in [pinned] that are not from the pool */
	hr__host *forgotten;      /* see hr__host_forget */
};

static void raise_tier(tier_bytes *of, uint64_t bytes)
{
	int64_t now = hr__fetch_add_relaxed(&of->now, (int64_t)bytes) + (int64_t)bytes, peak = hr__load_relaxed(&of->peak);
	while (now > peak && !hr__cas_acq_rel(&of->peak, &peak, now)) continue;
}

static void lower_tier(tier_bytes *of, uint64_t bytes)
{
	HR_ASSERT(hr__load_relaxed(&of->now) >= (int64_t)bytes);
	hr__fetch_add_relaxed(&of->now, -(int64_t)bytes);
}

static void *pointer(uint64_t address)
{
	return (void *)(uintptr_t)address;
}

/* ---- opening and closing ---- */

static hr_status open_pool(hr__host *host, const hr__device *pinned)
{
	char name[32];
	hr_allocator_options options;
	hr_allocator_options_init(&options);
	snprintf(name, sizeof name, "%.21s host pool", hr__device_name(host->device));
	options.name = name;
	options.thread_cache = false;                  /* small blocks would get slabs of their own */
	options.oom.report_allocations_on_oom = false; /* a full pool is no event if there is a file; otherwise LMS reports it */
	return hr_allocator_create(hr__device_handle(pinned), &options, &host->pool);
}

static hr_status open_scratch(hr__host *host, const hr__device *pinned)
{
	void *block;
	uint64_t bytes = host->limit / SCRATCH_SHARE;
	if (bytes < SCRATCH_LEAST) bytes = SCRATCH_LEAST;
	if (bytes > SCRATCH) bytes = SCRATCH;
	hr_status status = hr_alloc_bytes(host->pool, bytes, &block);
	if (status == HR_OK) host->scratch = (hr__host_scratch){ block, bytes, hr__device_host_accessible(pinned) };
	return status;
}

static hr_status open_tiers(hr__host *host, const hr__device *pinned, const hr__host_options *options)
{
	hr_status status = open_pool(host, pinned);
	host->limit = hr__device_reservable(pinned);
	if (status != HR_OK) return status;
	if (options->scratch) status = open_scratch(host, pinned);
	if (status == HR_OK && options->spill_dir)
		status = hr__host_file_open(host->device, host->pool, host->limit, options->spill_dir, options->spill_limit, &host->file);
	if (status == HR_OK) return HR_OK;
	char why[512]; /* closing may fail too, and must not replace the message */
	snprintf(why, sizeof why, "%s", hr_last_message());
	hr_allocator_destroy_all(host->pool);
	return hr__fail(status, "%s", why);
}

hr_status hr__host_open(hr__device *device, const hr__host_options *options, hr__host **out)
{
	hr__device *pinned;
	void *memory;
	hr_status status = hr__device_pinned(device, options->limit, &pinned);
	if (status != HR_OK) return status;
	if (options->spill_dir && !hr__device_host_accessible(pinned)) {
		return hr__fail(HR_UNSUPPORTED,
		                "%s is not backed by memory, so its tensors cannot be spilled to a file; do not set spill_dir",
		                hr__device_name(device));
	}
	int error = hr__os()->alloc(sizeof(hr__host), &memory);
	if (error) return hr__os_fail(error, "the host tier of %s", hr__device_name(device));
	hr__host *host = memory;
	host->device = device;
	status = open_tiers(host, pinned, options);
	if (status == HR_OK) *out = host;
	else hr__os()->free(host, sizeof *host);
	return status;
}

hr_status hr__host_close(hr__host *host)
{
	char pinned[16], spilled[16];
	if (!host) return HR_OK;
	hr__host_usage usage = hr__host_get_usage(host);
	if (usage.pinned_bytes || usage.spilled_bytes) {
		return hr__fail(HR_IN_USE, "the host tier of %s still has copies: %s in pinned memory, %s in the file",
		                hr__device_name(host->device), hr__format_size((uint64_t)usage.pinned_bytes, pinned, sizeof pinned),
		                hr__format_size((uint64_t)usage.spilled_bytes, spilled, sizeof spilled));
	}
	hr_allocator_destroy_all(host->pool); /* with ring and scratch; fails only if hr_shutdown has closed it already */
	if (host->file) hr__host_file_close(host->file);
	hr__os()->free(host, sizeof *host);
	return HR_OK;
}

void hr__host_forget(hr__host *host)
{
	/* A thread of the parent may be inside the monitor. So the host tier is neither used nor freed. It stays reachable, so that a
	 * leak checker in the child does not report it. */
	static hr__host *all;
	if (!host) return;
	host->forgotten = all;
	all = host;
	if (host->file) hr__host_file_forget(host->file);
}

/* ---- copies ---- */

static hr_status store_pinned(hr__host *host, uint64_t address, const hr_request *request, hr__host_copy *copy)
{
	void *block;
	hr_status status = hr_alloc(host->pool, request, &block);
	if (status != HR_OK) return status;
	status = hr_stream_copy(hr__device_handle(host->device), block, pointer(address), request->bytes, HR_COPY_TO_HOST,
	                        request->stream);
	if (status == HR_OK) *copy = (hr__host_copy){ .address = (uintptr_t)block, .bytes = request->bytes };
	else hr_free(host->pool, block, request->stream);
	return status;
}

hr_status hr__host_store(hr__host *host, uint64_t address, const hr_request *request, hr__host_copy *copy)
{
	tier_bytes *tier = &host->pinned;
	HR_ASSERT(copy->bytes == 0);
	hr_status status = store_pinned(host, address, request, copy);
	if (status == HR_OUT_OF_MEMORY && host->file) {
		tier = &host->spilled;
		status = hr__host_file_store(host->file, address, request->bytes, request->stream, copy);
	}
	if (status == HR_OK) raise_tier(tier, request->bytes);
	return status;
}

hr_status hr__host_load(hr__host *host, const hr__host_copy *copy, uint64_t address, hr_stream stream)
{
	HR_ASSERT(copy->bytes > 0);
	if (!hr__device_has_stream(host->device, stream))
		return hr__fail(HR_INVALID_ARGUMENT, "%s has no stream %u", hr__device_name(host->device), stream);
	if (!copy->address) return hr__host_file_load(host->file, copy, address, stream);
	/* Several streams may load the same copy, and only one of them drops it. */
	hr_status status = hr_allocation_record_stream(host->pool, pointer(copy->address), stream);
	if (status != HR_OK) return status;
	return hr_stream_copy(hr__device_handle(host->device), pointer(address), pointer(copy->address), copy->bytes, HR_COPY_TO_DEVICE,
	                      stream);
}

/* A destroyed stream was waited for when it was destroyed. */
static void free_block(hr__host *host, uint64_t address, hr_stream stream)
{
	hr_status status = hr_free(host->pool, pointer(address),
	                           hr__device_has_stream(host->device, stream) ? stream : HR_STREAM_DEFAULT);
	HR_ASSERT(status == HR_OK);
	(void)status;
}

void hr__host_drop(hr__host *host, hr__host_copy *copy, hr_stream stream)
{
	HR_ASSERT(!copy->bytes || copy->address || host->file);
	if (!copy->bytes) return;
	if (copy->address) free_block(host, copy->address, stream);
	else hr__host_file_drop(host->file, copy);
	lower_tier(copy->address ? &host->pinned : &host->spilled, copy->bytes);
	*copy = (hr__host_copy){ 0 };
}

void hr__host_count(hr__host *host, int64_t bytes)
{
	hr__fetch_add_relaxed(&host->elsewhere, bytes);
	if (bytes > 0) raise_tier(&host->pinned, (uint64_t)bytes);
	else lower_tier(&host->pinned, (uint64_t)-bytes);
}

const hr__host_scratch *hr__host_get_scratch(const hr__host *host)
{
	return &host->scratch;
}

void hr__host_trim(hr__host *host)
{
	hr_allocator_trim(host->pool, NULL);
}

/* ---- statistics and checks ---- */

/* A copy that is being counted may be in [now] and not yet in the peak. */
static void read_tier(const tier_bytes *of, int64_t *now, int64_t *peak)
{
	*now = hr__load_relaxed(&of->now);
	*peak = hr__load_relaxed(&of->peak);
	if (*peak < *now) *peak = *now;
}

uint64_t hr__host_room(const hr__host *host)
{
	int64_t used = hr__load_relaxed(&host->pinned.now) + (int64_t)host->scratch.bytes;
	if (host->file) return UINT64_MAX;
	return used > 0 && (uint64_t)used >= host->limit ? 0 : host->limit - (uint64_t)(used > 0 ? used : 0);
}

hr__host_usage hr__host_get_usage(const hr__host *host)
{
	hr__host_usage usage;
	hr_stats stats;
	hr_stats_init(&stats);
	usage.reserved_bytes = hr_allocator_get_stats(host->pool, &stats) == HR_OK ? stats.bytes_reserved : 0;
	read_tier(&host->pinned, &usage.pinned_bytes, &usage.peak_pinned_bytes);
	read_tier(&host->spilled, &usage.spilled_bytes, &usage.peak_spilled_bytes);
	return usage;
}

void hr__host_reset_peaks(hr__host *host)
{
	hr__store_relaxed(&host->pinned.peak, hr__load_relaxed(&host->pinned.now));
	hr__store_relaxed(&host->spilled.peak, hr__load_relaxed(&host->spilled.now));
}

/* The pool's requested bytes are those of the ring, the scratch memory and the copies. */
static bool pool_agrees(const hr__host *host)
{
	hr_stats stats;
	uint64_t ring = host->file ? hr__host_file_ring_bytes(host->file) : 0;
	hr_stats_init(&stats);
	if (hr_allocator_get_stats(host->pool, &stats) != HR_OK) return false;
	int64_t copies = hr__load_relaxed(&host->pinned.now) - hr__load_relaxed(&host->elsewhere);
	return stats.bytes_requested == (int64_t)(ring + host->scratch.bytes) + copies;
}

hr_status hr__host_check(hr__host *host)
{
	hr_status status = hr_allocator_check(host->pool);
	if (status != HR_OK) return status;
	if (!pool_agrees(host)) return hr__fail(HR_CORRUPT, "the bytes of the host pool do not match its copies");
	int violated = host->file ? hr__host_file_check(host->file, (uint64_t)hr__load_relaxed(&host->spilled.now)) : 0;
	return violated ? hr__fail(HR_CORRUPT, "the spill file: invariant %d does not hold", violated) : HR_OK;
}
