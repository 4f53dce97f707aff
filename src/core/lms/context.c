/* context.c - the context that all tensors of an allocator share: made when the allocator is configured or first used, closed with
 * it. */
#include <stdio.h>
#include <string.h>

#include "core/base/text/settings.h"
#include "core/base/status.h"
#include "core/lms/context.h"
#include "core/lms/recipe/recipe.h"

#define VARIABLE HR__LMS_VARIABLE
#define CONTEXT_BYTES (sizeof(hr__lms) + _Alignof(hr__lms)) /* small blocks are not aligned to cache lines */

static struct {
	hr__lock lock;
	hr__lms *contexts;
} all = { .lock = HR__LOCK_INIT(HR__RANK_LMS) };

/* Handles of allocators that have a context, by slot; written under the lock, read without. */
static hr__atomic_u64 open_contexts[HR__ALLOCATORS_MAX];

/* ---- counters that threads watch ---- */

void hr__lms_raise(hr__atomic_i64 *to, int64_t value)
{
	int64_t seen = hr__load_relaxed(to);
	while (seen < value && !hr__cas_acq_rel(to, &seen, value)) {}
}

void hr__lms_raise_u64(hr__atomic_u64 *to, uint64_t value)
{
	uint64_t seen = hr__load_relaxed(to);
	while (seen < value && !hr__cas_acq_rel(to, &seen, value)) {}
}

bool hr__lms_is_open(uint64_t allocator)
{
	return allocator && hr__load_acquire(&open_contexts[allocator % HR__ALLOCATORS_MAX]) == allocator;
}

static _Thread_local uint64_t changes_made;

void hr__lms_note_change(hr__lms *lms)
{
	hr__fetch_add_acq_rel(&lms->changes, 1);
	changes_made++;
}

uint64_t hr__lms_changes_of_thread(void)
{
	return changes_made;
}

void hr__lms_begin_move(hr__lms *lms)
{
	hr__fetch_add_acq_rel(&lms->movers, 1);
}

void hr__lms_end_move(hr__lms *lms)
{
	hr__lms_note_change(lms); /* first: a thread that sees no movers must see their changes */
	hr__fetch_sub_acq_rel(&lms->movers, 1);
}

/* ---- making a context ---- */

/* Frees everything but the tensors, which are already destroyed. */
static void tear_down(hr__lms *lms)
{
	hr__learned_close(lms);
	if (lms->host) hr__host_close(lms->host);
	if (lms->csv >= 0) hr__os()->file_close(lms->csv);
	if (lms->out_stream != HR_STREAM_DEFAULT) hr_stream_destroy(lms->device_handle, lms->out_stream);
	if (lms->in_stream != HR_STREAM_DEFAULT) hr_stream_destroy(lms->device_handle, lms->in_stream);
	hr__lms_free_members(lms);
	hr__os()->free(lms->block, CONTEXT_BYTES);
}

static hr_status open_stream(hr__lms *lms, hr_stream *out)
{
	hr_status status = hr__device_copy_stream(lms->device, out);
	if (status != HR_UNSUPPORTED) return status;
	*out = HR_STREAM_DEFAULT;
	return HR_OK;
}

static hr_status open_host(hr__lms *lms, const hr_lms_options *options)
{
	hr__last before = hr__last_get();
	hr__host_options host = { options->host_limit, options->spill_dir, options->spill_limit, lms->verify };
	hr_status status = open_stream(lms, &lms->out_stream);
	if (!status) status = hr__host_open(lms->device, &host, &lms->host);
	if (!status || !hr__lms_options_from_environment(host.spill_dir)) return status;
	host.spill_dir = NULL;
	hr__last why = hr__last_get();
	status = hr__host_open(lms->device, &host, &lms->host);
	if (status) return status; /* spill_dir was not the reason */
	hr__last_set(&why);
	hr__setting_ignored(VARIABLE, &before);
	return HR_OK;
}

static hr_status set_policy(hr__lms *lms, const char *name)
{
	if (!name) name = "learned";
	snprintf(lms->policy_name, sizeof lms->policy_name, "%s", name);
	if (!strcmp(name, "learned")) return lms->enabled ? hr__learned_open(lms) : HR_OK;
	if (!strcmp(name, "lru")) return HR_OK;
	if (hr__lms_policy_find(name, &lms->policy, &lms->policy_user)) return HR_OK;
	return hr__fail(HR_INVALID_ARGUMENT,
	                "no policy is named \"%.40s\"; use learned, lru, or a name registered with hr_lms_policy_register", name);
}

/* A policy in the environment that does not exist, because the program does not register it, is ignored. */
static hr_status open_policy(hr__lms *lms, const char *name)
{
	hr__last before = hr__last_get();
	hr_status status = set_policy(lms, name);
	if (!status || !hr__lms_options_from_environment(name) || status != HR_INVALID_ARGUMENT) return status;
	hr__setting_ignored(VARIABLE, &before);
	return set_policy(lms, NULL);
}

static hr_status check_options(const hr__allocator *allocator, const hr_lms_options *options)
{
	if (allocator->kind != HR__KIND_BFC)
		return hr__fail(HR_UNSUPPORTED, "%s is of kind \"%s\"; tensors need one of kind \"bfc\"", allocator->name,
		                allocator->kind_name);
	if (options->safety != HR_SAFETY_NONE && options->safety != HR_SAFETY_HOST_MAPPED)
		return hr__fail(HR_INVALID_ARGUMENT, "safety is %d, which is neither HR_SAFETY_NONE nor HR_SAFETY_HOST_MAPPED",
		                (int)options->safety);
	if (options->recipe_depth > HR__RECIPE_DEPTH_MAX)
		return hr__fail(HR_INVALID_ARGUMENT, "recipe_depth is %u, which is above %u", options->recipe_depth, HR__RECIPE_DEPTH_MAX);
	if (options->safety == HR_SAFETY_NONE) return HR_OK;
	hr_status status = hr__host_pages_check(allocator->device);
	return status ? hr__fail_in(status, "%s does not support HR_SAFETY_HOST_MAPPED", hr__device_name(allocator->device)) : HR_OK;
}

/* The [status] of a setting with that text. A setting of the environment that fails is ignored, and the program continues without
 * it. */
static hr_status ignore_environment_error(hr_status status, const char *text, const hr__last *before)
{
	if (status == HR_OK || !hr__lms_options_from_environment(text)) return status;
	hr__setting_ignored(VARIABLE, before);
	return HR_OK;
}

static hr_status build_context(hr__allocator *allocator, const hr_lms_options *options, hr__lms **out)
{
	void *block;
	hr__last before = hr__last_get();
	hr_status status = check_options(allocator, options);
	if (status) return status;
	int error = hr__os()->alloc(CONTEXT_BYTES, &block);
	if (error) return hr__os_fail(error, "cannot get host memory for Large Model Support");
	hr__lms *lms = (hr__lms *)(((uintptr_t)block + _Alignof(hr__lms) - 1) & ~(uintptr_t)(_Alignof(hr__lms) - 1));
	lms->block = block;
	lms->allocator = allocator;
	lms->handle = (hr_allocator){ allocator->id };
	lms->device = allocator->device;
	lms->device_handle = hr__device_handle(allocator->device);
	lms->enabled = options->enabled;
	lms->defrag = options->defrag;
	lms->verify = options->verify && options->enabled;
	lms->safety = options->safety;
	lms->wait_ns = options->wait_ns;
	lms->defrag_budget = options->defrag_budget;
	lms->recipe_depth = options->recipe_depth ? options->recipe_depth : HR__RECIPE_DEPTH_DEFAULT;
	hr__store_relaxed(&lms->recompute, options->recompute);
	lms->csv = -1;
	hr__store_relaxed(&lms->limit, options->limit ? options->limit : UINT64_MAX);
	hr__lock_init(&lms->lock, HR__RANK_LMS);
	hr__lock_init(&lms->scratch_lock, HR__RANK_LMS);
	if (lms->enabled || lms->defrag) status = open_stream(lms, &lms->in_stream);
	if (!status && lms->enabled) status = open_host(lms, options);
	if (!status) status = open_policy(lms, options->policy);
	if (!status && options->step_csv)
		status = ignore_environment_error(hr__step_csv_open(lms, options->step_csv), options->step_csv, &before);
	if (status) tear_down(lms);
	else *out = lms;
	return status;
}

/* Makes [lms] the allocator's context, unless another thread was faster. */
static hr_status publish(hr__allocator *allocator, hr__lms *lms, bool *published)
{
	hr__lms *none = NULL;
	hr__lms_register_hooks();
	hr__lock_take(&all.lock);
	*published = atomic_compare_exchange_strong(&allocator->lms, &none, lms);
	if (*published) {
		hr__store_release(&open_contexts[allocator->slot], allocator->id);
		lms->next = all.contexts;
		all.contexts = lms;
	}
	hr__lock_release(&all.lock);
	return HR_OK;
}

/* For `headroom run --lms`, which looks for this file when the program has ended. */
static void mark_use(void)
{
	int fd;
	const char *path = hr__os()->environment("HEADROOM_RUN_MARK");
	if (path && path[0] && hr__os()->file_create(path, &fd) == 0) hr__os()->file_close(fd);
}

static hr_status make_context(hr_allocator handle, const hr_lms_options *options, bool *made)
{
	hr_status status;
	hr__lms *lms = NULL;
	hr__allocator *allocator = hr__allocator_of(handle, &status);
	if (!allocator) return status;
	*made = false;
	if (hr__load_acquire(&allocator->lms)) return HR_OK;
	status = build_context(allocator, options, &lms);
	if (!status) hr__meters_begin_active(allocator);
	if (status) return hr__load_acquire(&allocator->lms) ? HR_OK : status; /* another thread may have been faster */
	publish(allocator, lms, made);
	if (!*made) tear_down(lms);
	else if (lms->enabled) mark_use();
	return HR_OK;
}

hr_status hr_lms_configure(hr_allocator handle, const hr_lms_options *options)
{
	hr_lms_options whole;
	bool made;
	hr_status status = hr__lms_options_read(options, &whole);
	if (status) return status;
	status = make_context(handle, &whole, &made);
	if (!status && !made)
		return hr__fail(HR_IN_USE,
		                "this allocator already has tensors or was configured before; configure it before its first tensor");
	return status;
}

hr_status hr__lms_of(hr_allocator handle, hr__lms **out)
{
	hr_status status;
	bool made;
	hr__allocator *allocator = hr__allocator_of(handle, &status);
	if (!allocator) return status;
	*out = hr__load_acquire(&allocator->lms);
	if (HR_LIKELY(*out)) return HR_OK;
	hr_lms_options defaults;
	hr__lms_options_first_use(&defaults);
	status = make_context(handle, &defaults, &made);
	if (!status) *out = hr__load_acquire(&allocator->lms);
	return status;
}

hr_status hr__lms_find(hr_allocator handle, hr__lms **out)
{
	hr_status status;
	hr__allocator *allocator = hr__allocator_of(handle, &status);
	if (!allocator) return status;
	*out = hr__load_acquire(&allocator->lms);
	return *out ? HR_OK : hr__fail(HR_NOT_READY, "no tensor was created on %s yet", allocator->name);
}

bool hr__lms_evicts(hr_allocator handle)
{
	hr__lms *lms;
	return !hr__lms_find(handle, &lms) && lms->enabled;
}

bool hr__lms_takes_recipes(hr_tensor handle)
{
	hr_status ignored;
	const hr__tensor *tensor = hr__tensor_of(handle, &ignored);
	return tensor && tensor->lms->enabled && hr__load_relaxed(&tensor->lms->recompute);
}

bool hr__lms_feeds_recipes(hr_tensor handle)
{
	hr_status ignored;
	const hr__tensor *tensor = hr__tensor_of(handle, &ignored);
	return tensor && hr__load_relaxed(&tensor->recipe_use) & HR__RECIPE_FEEDS;
}

/* ---- closing ---- */

void hr__lms_close(hr__lms *lms)
{
	hr__lock_take(&all.lock);
	hr__lms **link = &all.contexts;
	while (*link && *link != lms) link = &(*link)->next;
	if (*link) *link = lms->next;
	hr__store_release(&open_contexts[lms->allocator->slot], 0); /* threads that held pins in it no longer do */
	hr__lock_release(&all.lock);
	hr__lms_destroy_tensors(lms);
	hr__store_release(&lms->allocator->lms, NULL);
	hr__allocators_lock(); /* readers of statistics, which hold this lock while they use the context, have left it */
	hr__allocators_unlock();
	tear_down(lms);
}

void hr__lms_close_all(void)
{
	for (;;) {
		hr__lock_take(&all.lock);
		hr__lms *lms = all.contexts;
		hr__lock_release(&all.lock);
		if (!lms) break;
		hr__lms_close(lms);
	}
}

void hr__lms_forget_all(void)
{
	hr__lock_init(&all.lock, HR__RANK_LMS);
	for (hr__lms *lms = all.contexts; lms; lms = lms->next) {
		if (lms->host) hr__host_forget(lms->host);
		if (lms->csv >= 0) hr__os()->file_close(lms->csv);
		hr__store_release(&open_contexts[lms->allocator->slot], 0);
	}
	all.contexts = NULL;
}

void hr__lms_leaks(hr__leaks *found)
{
	hr__lock_take(&all.lock);
	for (hr__lms *lms = all.contexts; lms; lms = lms->next)
		for (uint32_t i = 0; i < lms->member_count; i++) {
			const hr__tensor *tensor = lms->members[i];
			if (!hr__load_relaxed(&tensor->ghost)) hr__leaks_add_tensor(found, tensor->op, tensor->scope, tensor->tag, tensor->device_bytes);
		}
	hr__lock_release(&all.lock);
}
