/* control.c - switches, options, statistics and checks of Large Model Support. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "core/base/checked.h"
#include "core/base/settings.h"
#include "core/base/status.h"
#include "core/base/struct.h"
#include "core/base/text.h"
#include "core/lms/lms.h"
#include "core/memory/bfc/tensor_block.h"
#include "core/trace/trace.h"

#define VARIABLE "HEADROOM_LMS"
#define POLICIES_MAX 8u
#define CSV_FILES_MAX 9999u
#define ENVIRONMENT_MAX 1024u
#define CONTEXT_BYTES (sizeof(hr__lms) + _Alignof(hr__lms)) /* small blocks are not aligned to cache lines */
#define DEFAULT_WAIT_NS UINT64_C(1000000000)

static struct {
	hr__lock lock;
	hr__lms *contexts;
	struct {
		char name[32];
		hr_lms_policy table;
		void *user;
	} policies[POLICIES_MAX];
	uint32_t policy_count;
	char source[ENVIRONMENT_MAX];      /* HEADROOM_LMS when it was last read */
	char environment[ENVIRONMENT_MAX]; /* [source], split into keys and values */
} all = { .lock = HR__LOCK_INIT(HR__RANK_LMS) };

/* Handles of allocators that have a context, by slot; written under the lock, read without. */
static hr__atomic_u64 open_contexts[HR__ALLOCATORS_MAX];

/* What hr_set_lms_enabled and hr_set_lms_defrag_enabled were given; -1 = not called. */
static hr__atomic_i64 wanted = -1, wanted_defrag = -1;

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

/* ---- environment ---- */

static hr_status read_flag(const char *key, const char *text, bool *out)
{
	if ((text[0] == '0' || text[0] == '1') && !text[1]) {
		*out = text[0] == '1';
		return HR_OK;
	}
	return hr__fail(HR_INVALID_ARGUMENT, "%s: %s must be 0 or 1", VARIABLE, key);
}

static hr_status read_size(const char *key, const char *text, uint64_t *out)
{
	if (!hr__parse_size(text, out)) return HR_OK;
	return hr__fail(HR_INVALID_ARGUMENT, "%s: %s is no size; one looks like 1073741824, 1GiB, 1.5G or 512MB", VARIABLE, key);
}

static hr_status read_setting(const char *key, const char *value, hr_lms_options *options)
{
	if (!strcmp(key, "enabled")) return read_flag(key, value, &options->enabled);
	if (!strcmp(key, "defrag")) return read_flag(key, value, &options->defrag);
	if (!strcmp(key, "verify")) return read_flag(key, value, &options->verify);
	if (!strcmp(key, "limit")) return read_size(key, value, &options->limit);
	if (!strcmp(key, "host_limit")) return read_size(key, value, &options->host_limit);
	if (!strcmp(key, "spill_limit")) return read_size(key, value, &options->spill_limit);
	if (!strcmp(key, "defrag_budget")) return read_size(key, value, &options->defrag_budget);
	if (!strcmp(key, "spill_dir")) options->spill_dir = value;
	else if (!strcmp(key, "policy")) options->policy = value;
	else if (!strcmp(key, "step_csv")) options->step_csv = value;
	else
		return hr__fail(HR_INVALID_ARGUMENT,
		                "%s: no such setting; there are enabled, policy, limit, host_limit, spill_dir, spill_limit, defrag, defrag_budget, "
		                "verify, step_csv",
		                VARIABLE);
	return HR_OK;
}

/* Splits the text in a static buffer, so that options can point into it. Under the lock. */
static hr_status read_environment(hr_lms_options *options)
{
	const char *text = hr__os()->environment(VARIABLE);
	if (!text || !text[0]) return HR_OK;
	if (!text[1]) return read_flag("the value", text, &options->enabled);
	if (strlen(text) >= sizeof all.environment) return hr__fail(HR_INVALID_ARGUMENT, "%s is longer than %u bytes", VARIABLE, ENVIRONMENT_MAX - 1);
	options->enabled = true;
	/* Options read earlier point into the buffer, so it is written only if the text has changed. */
	size_t length = strlen(text);
	if (strcmp(all.source, text) != 0) {
		memcpy(all.source, text, length + 1);
		memcpy(all.environment, text, length + 1);
		for (size_t i = 0; i < length; i++)
			if (text[i] == ',' || text[i] == '=') all.environment[i] = 0;
	}
	for (size_t at = 0; at < length;) {
		const char *key = all.environment + at;
		at += strlen(key) + 1;
		if (at > length || text[at - 1] != '=') return hr__fail(HR_INVALID_ARGUMENT, "%s: a setting looks like limit=8GiB", VARIABLE);
		const char *value = all.environment + at;
		at += strlen(value) + 1;
		hr_status status = read_setting(key, value, options);
		if (status) return status;
	}
	return HR_OK;
}

static void plain_defaults(hr_lms_options *options)
{
	*options = (hr_lms_options){ .struct_size = sizeof *options,
		                         .enabled = hr__load_relaxed(&wanted) == 1,
		                         .defrag = hr__load_relaxed(&wanted_defrag) == 1,
		                         .policy = "learned",
		                         .wait_ns = DEFAULT_WAIT_NS };
}

static hr_status initial_options(hr_lms_options *options)
{
	plain_defaults(options);
	hr__lock_take(&all.lock);
	hr_status status = read_environment(options);
	hr__lock_release(&all.lock);
	if (status) plain_defaults(options);
	/* The program's settings override the environment. */
	if (hr__load_relaxed(&wanted) >= 0) options->enabled = hr__load_relaxed(&wanted) == 1;
	if (hr__load_relaxed(&wanted_defrag) >= 0) options->defrag = hr__load_relaxed(&wanted_defrag) == 1;
	return status;
}

hr_status hr_lms_options_init_sized(hr_lms_options *options, size_t struct_size)
{
	hr_lms_options initial;
	if (!options) return hr__fail(HR_INVALID_ARGUMENT, "hr_lms_options_init: options is NULL");
	hr_status status = initial_options(&initial);
	hr__struct_init(&hr__struct_lms_options, options, struct_size, &initial);
	return status;
}

/* Whether the text of an option comes from the environment; options filled in by hr_lms_options_init point there. */
static bool is_from_environment(const char *text)
{
	return text >= all.environment && text < all.environment + sizeof all.environment;
}

/* The [status] of a setting with that text. A setting of the environment that fails is ignored, and the program continues without
 * it. */
static hr_status settle(hr_status status, const char *text, const hr__last *before)
{
	if (status == HR_OK || !is_from_environment(text)) return status;
	hr__setting_ignored(VARIABLE, before);
	return HR_OK;
}

/* Once registered, the memory layer calls these. */
static const hr__upper hooks;

hr_status hr_set_lms_enabled(bool enabled)
{
	hr__store_release(&hr__hooks_table.lms, &hooks);
	hr__store_relaxed(&wanted, enabled);
	return HR_OK;
}

hr_status hr_set_lms_defrag_enabled(bool enabled)
{
	hr__store_release(&hr__hooks_table.lms, &hooks);
	hr__store_relaxed(&wanted_defrag, enabled);
	return HR_OK;
}

/* Options from the environment, or plain defaults if it is invalid. */
static void defaults_for_first_use(hr_lms_options *options)
{
	hr__last before = hr__last_get();
	if (initial_options(options)) hr__setting_ignored(VARIABLE, &before);
}

bool hr_get_lms_enabled(void)
{
	hr_lms_options options;
	defaults_for_first_use(&options);
	return options.enabled;
}

bool hr_get_lms_defrag_enabled(void)
{
	hr_lms_options options;
	defaults_for_first_use(&options);
	return options.defrag;
}

/* ---- policies ---- */

hr_status hr_lms_policy_register(const char *name, const hr_lms_policy *policy, void *user)
{
	if (!name || !name[0] || strlen(name) >= sizeof all.policies[0].name)
		return hr__fail(HR_INVALID_ARGUMENT, "the name of a policy must have 1 to 31 bytes");
	hr_lms_policy whole = { .struct_size = sizeof whole };
	hr_status status = hr__struct_in(&hr__struct_lms_policy, "hr_lms_policy_register", &whole, policy);
	if (status) return status;
	if (!whole.score) return hr__fail(HR_INVALID_ARGUMENT, "policy \"%s\": score is missing", name);
	hr__lock_take(&all.lock);
	bool taken = !strcmp(name, "lru") || !strcmp(name, "learned");
	for (uint32_t i = 0; i < all.policy_count; i++) taken |= !strcmp(name, all.policies[i].name);
	if (taken) {
		status = hr__fail(HR_ALREADY_EXISTS, "there is a policy \"%s\" already", name);
	} else if (all.policy_count == POLICIES_MAX) {
		status = hr__fail(HR_TOO_MANY, "%u policies are registered already", POLICIES_MAX);
	} else {
		snprintf(all.policies[all.policy_count].name, sizeof all.policies[0].name, "%s", name);
		all.policies[all.policy_count].table = whole;
		all.policies[all.policy_count++].user = user;
	}
	hr__lock_release(&all.lock);
	return status;
}

static hr_status set_policy(hr__lms *lms, const char *name)
{
	if (!name) name = "learned";
	snprintf(lms->policy_name, sizeof lms->policy_name, "%s", name);
	if (!strcmp(name, "learned")) return lms->enabled ? hr__learned_open(lms) : HR_OK;
	if (!strcmp(name, "lru")) return HR_OK;
	hr__lock_take(&all.lock);
	for (uint32_t i = 0; i < all.policy_count; i++) {
		if (strcmp(name, all.policies[i].name)) continue;
		lms->policy = all.policies[i].table;
		lms->policy_user = all.policies[i].user;
	}
	hr__lock_release(&all.lock);
	if (lms->policy.score) return HR_OK;
	return hr__fail(HR_INVALID_ARGUMENT, "there is no policy \"%.40s\"; there are learned, lru, and what hr_lms_policy_register was given", name);
}

/* ---- contexts ---- */

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
	hr_status status = hr_stream_create(lms->device_handle, out);
	if (status != HR_UNSUPPORTED) return status;
	*out = HR_STREAM_DEFAULT;
	return HR_OK;
}

static const char csv_header[] = "step,clock_ns"
#define COLUMN(name, text) "," #name
	HR_LMS_STATS_TABLE(COLUMN)
#undef COLUMN
	"\n";

/* A file name in the environment is for all allocators and all runs, and no file is overwritten: further files are named FILE-2,
 * FILE-3. */
static int create_csv(const char *path, int *fd)
{
	char other[ENVIRONMENT_MAX + 16];
	int error = hr__os()->file_create(path, fd);
	for (unsigned i = 2; error == EEXIST && is_from_environment(path) && i <= CSV_FILES_MAX; i++) {
		snprintf(other, sizeof other, "%s-%u", path, i);
		error = hr__os()->file_create(other, fd);
	}
	return error;
}

static hr_status open_csv(hr__lms *lms, const char *path)
{
	int error = create_csv(path, &lms->csv);
	if (error) {
		lms->csv = -1;
		return hr__os_fail(error, "cannot make step_csv \"%.200s\"", path);
	}
	error = hr__os()->file_write(lms->csv, csv_header, sizeof csv_header - 1, 0);
	lms->csv_offset = sizeof csv_header - 1;
	if (!error) return HR_OK;
	hr__os()->file_close(lms->csv);
	lms->csv = -1;
	return hr__os_fail(error, "cannot write step_csv \"%.200s\"", path);
}

static hr_status open_host(hr__lms *lms, const hr_lms_options *options)
{
	hr__last before = hr__last_get();
	hr__host_options host = { options->host_limit, options->spill_dir, options->spill_limit, lms->verify };
	hr_status status = open_stream(lms, &lms->out_stream);
	if (!status) status = hr__host_open(lms->device, &host, &lms->host);
	if (!status || !is_from_environment(host.spill_dir)) return status;
	host.spill_dir = NULL;
	hr__last why = hr__last_get();
	status = hr__host_open(lms->device, &host, &lms->host);
	if (status) return status; /* spill_dir was not the reason */
	hr__last_set(&why);
	hr__setting_ignored(VARIABLE, &before);
	return HR_OK;
}

/* A policy in the environment that does not exist, because the program does not register it, is ignored. */
static hr_status open_policy(hr__lms *lms, const char *name)
{
	hr__last before = hr__last_get();
	hr_status status = set_policy(lms, name);
	if (!status || !is_from_environment(name) || status != HR_INVALID_ARGUMENT) return status;
	hr__setting_ignored(VARIABLE, &before);
	return set_policy(lms, NULL);
}

static hr_status check_options(const hr__allocator *allocator, const hr_lms_options *options)
{
	if (allocator->kind != HR__KIND_BFC)
		return hr__fail(HR_UNSUPPORTED, "%s is of kind \"%s\"; tensors need one of kind \"bfc\"", allocator->name, allocator->kind_name);
	if (options->safety != HR_SAFETY_NONE && options->safety != HR_SAFETY_HOST_MAPPED)
		return hr__fail(HR_INVALID_ARGUMENT, "safety %d is none of HR_SAFETY_NONE, HR_SAFETY_HOST_MAPPED", (int)options->safety);
	if (options->safety == HR_SAFETY_NONE) return HR_OK;
	hr_status status = hr__host_pages_check(allocator->device);
	return status ? hr__fail_in(status, "%s has no HR_SAFETY_HOST_MAPPED", hr__device_name(allocator->device)) : HR_OK;
}

static hr_status build(hr__allocator *allocator, const hr_lms_options *options, hr__lms **out)
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
	lms->csv = -1;
	hr__store_relaxed(&lms->limit, options->limit ? options->limit : UINT64_MAX);
	hr__lock_init(&lms->lock, HR__RANK_LMS);
	hr__lock_init(&lms->scratch_lock, HR__RANK_LMS);
	if (lms->enabled || lms->defrag) status = open_stream(lms, &lms->in_stream);
	if (!status && lms->enabled) status = open_host(lms, options);
	if (!status) status = open_policy(lms, options->policy);
	if (!status && options->step_csv) status = settle(open_csv(lms, options->step_csv), options->step_csv, &before);
	if (status) tear_down(lms);
	else *out = lms;
	return status;
}

/* Makes [lms] the allocator's context, unless another thread was faster. */
static hr_status publish(hr__allocator *allocator, hr__lms *lms, bool *published)
{
	hr__lms *none = NULL;
	hr__store_release(&hr__hooks_table.lms, &hooks);
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

static hr_status make(hr_allocator handle, const hr_lms_options *options, bool *made)
{
	hr_status status;
	hr__lms *lms = NULL;
	hr__allocator *allocator = hr__allocator_of(handle, &status);
	if (!allocator) return status;
	*made = false;
	if (hr__load_acquire(&allocator->lms)) return HR_OK;
	status = build(allocator, options, &lms);
	if (!status) hr__meters_begin_active(allocator);
	if (status) return hr__load_acquire(&allocator->lms) ? HR_OK : status; /* another thread may have been faster */
	publish(allocator, lms, made);
	if (!*made) tear_down(lms);
	return HR_OK;
}

/* Options of any version of the headers; NULL: those of the environment. */
static hr_status read_options(const hr_lms_options *given, hr_lms_options *out)
{
	hr__last before = hr__last_get();
	if (!given) {
		defaults_for_first_use(out);
		return HR_OK;
	}
	if (given->struct_size >= sizeof *given) plain_defaults(out);
	else if (initial_options(out)) hr__last_set(&before);
	return hr__struct_in(&hr__struct_lms_options, "hr_lms_configure", out, given);
}

hr_status hr_lms_configure(hr_allocator handle, const hr_lms_options *options)
{
	hr_lms_options whole;
	bool made;
	hr_status status = read_options(options, &whole);
	if (status) return status;
	status = make(handle, &whole, &made);
	if (!status && !made)
		return hr__fail(HR_IN_USE, "tensors were created on this allocator already, or it was configured before; configure it first");
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
	defaults_for_first_use(&defaults);
	status = make(handle, &defaults, &made);
	if (!status) *out = hr__load_acquire(&allocator->lms);
	return status;
}

/* The existing context; HR_NOT_READY if there is none. */
static hr_status existing(hr_allocator handle, hr__lms **out)
{
	hr_status status;
	hr__allocator *allocator = hr__allocator_of(handle, &status);
	if (!allocator) return status;
	*out = hr__load_acquire(&allocator->lms);
	return *out ? HR_OK : hr__fail(HR_NOT_READY, "no tensor was created on %s yet", allocator->name);
}

/* ---- control ---- */

/* Bytes of resident tensors that may not be evicted now. */
static uint64_t staying(hr__lms *lms)
{
	uint64_t bytes = 0;
	hr__lock_take(&lms->lock);
	for (uint32_t i = 0; i < lms->member_count; i++) {
		const hr__tensor *tensor = lms->members[i];
		uint64_t word = hr__load_acquire(&tensor->word);
		bool home = hr__word_place(word) == HR__PLACE_RESIDENT || hr__word_place(word) == HR__PLACE_MOVING;
		if (home && (word & HR__WORD_PINS || hr__load_relaxed(&tensor->never_evict) || !lms->enabled))
			bytes += tensor->device_bytes;
	}
	hr__lock_release(&lms->lock);
	return bytes;
}

hr_status hr_lms_set_limit(hr_allocator handle, uint64_t bytes)
{
	hr__lms *lms;
	hr_status status = hr__lms_of(handle, &lms);
	if (status) return status;
	uint64_t least = staying(lms), before = hr__load_relaxed(&lms->limit);
	if (bytes && bytes < least) {
		hr__sizes size = HR__SIZES(bytes, least);
		return hr__fail(HR_BAD_LIMIT, "a limit of %s is below what is pinned or may not leave, %s; unpin first, or set a higher one",
		                size.text[0], size.text[1]);
	}
	hr__store_release(&lms->limit, bytes ? bytes : UINT64_MAX);
	hr__fence_seq_cst();
	status = bytes ? hr__reclaim_to_limit(lms, 0, lms->out_stream) : HR_OK;
	if (status) hr__store_release(&lms->limit, before);
	hr__lms_note_change(lms); /* last: a thread that found no room looks again */
	if (!status) return HR_OK;
	return status == HR_OUT_OF_MEMORY ? hr__fail_in(HR_BAD_LIMIT, "the limit stays what it was") : status;
}

hr_status hr_lms_reclaim_inactive(hr_allocator handle, hr_name tag, uint64_t *bytes)
{
	hr__lms *lms;
	uint64_t freed = 0;
	hr_status status = existing(handle, &lms);
	if (status) return status;
	if (!lms->enabled) return hr__fail(HR_UNSUPPORTED, "Large Model Support is off on %s", lms->allocator->name);
	status = hr__reclaim_inactive(lms, tag, &freed);
	if (bytes) *bytes = freed;
	return status;
}

/* ---- steps ---- */

static void write_csv(hr__lms *lms, int64_t step)
{
	char line[1024];
	hr_lms_stats stats = { .struct_size = sizeof stats };
	if (lms->csv < 0 || hr_lms_get_stats(lms->handle, &stats)) return;
	size_t used = (size_t)snprintf(line, sizeof line, "%lld,%llu", (long long)step, (unsigned long long)hr__device_clock_ns(lms->device));
#define VALUE(name, text) \
	if (used < sizeof line - 24) used += (size_t)snprintf(line + used, sizeof line - used, ",%lld", (long long)stats.name);
	HR_LMS_STATS_TABLE(VALUE)
#undef VALUE
	line[used++] = '\n';
	hr__lock_take(&lms->lock);
	uint64_t offset = lms->csv_offset;
	lms->csv_offset += used;
	hr__lock_release(&lms->lock);
	hr__os()->file_write(lms->csv, line, used, offset); /* a full disk does not stop the program */
}

/* Names the allocator of a step, since steps of several allocators may overlap. Includes the slot, because names need not
 * differ. */
static hr_name owner_of_steps(const hr__lms *lms)
{
	char name[64];
	snprintf(name, sizeof name, "%s:%u", lms->allocator->name, (unsigned)(lms->allocator->id % HR__ALLOCATORS_MAX));
	return hr_name_intern(name);
}

static void tell_step(const hr__lms *lms, uint64_t number, bool begins)
{
	void (*watcher)(uint64_t allocator, uint64_t number, bool begins) = hr__load_acquire(&hr__hooks_table.step);
	if (begins && watcher) watcher(lms->handle.id, number, true);
	if (hr__trace_is_on())
		hr__trace_event(&(hr__event){ .kind = begins ? HR__EVENT_STEP : HR__EVENT_STEP_END, .bytes = number, .tag = owner_of_steps(lms) });
	if (!begins && watcher) watcher(lms->handle.id, number, false);
}

static hr_status step(hr_allocator handle, bool begins)
{
	hr__lms *lms;
	hr_status status = hr__lms_of(handle, &lms);
	if (status) return status;
	hr__lock_take(&lms->lock);
	bool inside = lms->in_step;
	lms->in_step = begins;
	hr__lock_release(&lms->lock);
	if (!begins && !inside) return hr__fail(HR_INVALID_ARGUMENT, "hr_step_end without hr_step_begin");
	int64_t number = hr__load_relaxed(&lms->stats.num_steps);
	if (inside) {
		tell_step(lms, (uint64_t)number, false);
		write_csv(lms, number);
		hr__step_peak_end(lms);
		hr__learned_step(lms, false);
	}
	if (!begins) return HR_OK;
	hr__lms_count(&lms->stats.num_steps, 1);
	tell_step(lms, (uint64_t)number + 1, true);
	hr__learned_step(lms, true);
	hr__step_peak_begin(lms);
	if (lms->policy.step) lms->policy.step(lms->policy_user, (uint64_t)number + 1);
	return HR_OK;
}

bool hr__lms_in_step(hr_allocator handle)
{
	hr__lms *lms;
	if (existing(handle, &lms)) return false;
	hr__lock_take(&lms->lock);
	bool inside = lms->in_step;
	hr__lock_release(&lms->lock);
	return inside;
}

hr_status hr_step_begin(hr_allocator handle)
{
	return step(handle, true);
}

hr_status hr_step_end(hr_allocator handle)
{
	return step(handle, false);
}

/* ---- statistics ---- */

static int64_t count_pins(hr__lms *lms)
{
	int64_t pins = 0;
	hr__lock_take(&lms->lock);
	for (uint32_t i = 0; i < lms->member_count; i++) pins += hr__word_pins(hr__load_relaxed(&lms->members[i]->word));
	hr__lock_release(&lms->lock);
	return pins;
}

/* Fields that count from the first tensor or the last reset on. The others are current values, peaks, or properties of the active
 * plan. */
#define COUNTED(X)                                                                                                                          \
	X(bytes_reclaimed) X(bytes_copied_out) X(bytes_copied_in) X(num_evictions) X(num_clean_evictions) X(num_restores) X(num_single_reclaims) \
	X(num_multi_reclaims) X(num_full_reclaims) X(num_planned_evictions) X(num_prefetches) X(num_prefetch_hits) X(num_prefetch_misses)        \
	X(num_prefetches_refused) X(stall_ns) X(num_steps) X(num_steps_planned) X(num_mismatches) X(num_defragmentations) X(bytes_defragged)     \
	X(num_pin_waits) X(num_repeats)

#define SINCE(lms, name) (hr__load_relaxed(&(lms)->stats.name) - hr__load_relaxed(&(lms)->base.name))

hr_status hr_lms_get_stats(hr_allocator handle, hr_lms_stats *stats)
{
	hr__lms *lms;
	hr_status status = hr__struct_check(&hr__struct_lms_stats, "hr_lms_get_stats", stats);
	if (!status) status = existing(handle, &lms);
	if (status) return status;
	hr_lms_stats found = { .struct_size = sizeof found };
	hr__stall_evaluate(lms);
#define READ(name, text) found.name = hr__load_relaxed(&lms->stats.name);
	HR_LMS_STATS_TABLE(READ)
#undef READ
#define READ(name) found.name = SINCE(lms, name);
	COUNTED(READ)
#undef READ
	found.num_pins = count_pins(lms);
	found.bytes_pinned = hr__lms_pinned(lms);
	found.bytes_inactive = hr__lms_inactive(lms);
	if (lms->host) {
		hr__host_usage usage = hr__host_get_usage(lms->host);
		found.host_bytes = usage.pinned_bytes;
		found.peak_host_bytes = usage.peak_pinned_bytes;
		found.spilled_bytes = usage.spilled_bytes;
	}
	hr__struct_out(&hr__struct_lms_stats, stats, &found);
	return HR_OK;
}

static void add_stats(hr__allocator *allocator, hr_stats *stats)
{
	hr__lms *lms = hr__load_acquire(&allocator->lms);
	stats->bytes_inactive = hr__lms_inactive(lms);
	stats->bytes_reclaimed += SINCE(lms, bytes_reclaimed);
	stats->num_single_reclaims += SINCE(lms, num_single_reclaims);
	stats->num_multi_reclaims += SINCE(lms, num_multi_reclaims);
	stats->num_full_reclaims += SINCE(lms, num_full_reclaims);
	stats->num_defragmentations += SINCE(lms, num_defragmentations);
	stats->bytes_defragged += SINCE(lms, bytes_defragged);
}

static void reset_stats(hr__allocator *allocator)
{
	hr__lms *lms = hr__load_acquire(&allocator->lms);
#define REBASE(name) hr__store_relaxed(&lms->base.name, hr__load_relaxed(&lms->stats.name));
	COUNTED(REBASE)
#undef REBASE
	hr__store_relaxed(&lms->stats.peak_bytes_out, hr__load_relaxed(&lms->stats.bytes_out_now));
	if (lms->host) hr__host_reset_peaks(lms->host);
}

/* ---- checking ---- */

hr_status hr_lms_check(hr_allocator handle)
{
	hr__lms *lms;
	hr_status status = existing(handle, &lms);
	if (status) return status;
	int broken = hr__lms_check(lms);
	if (broken == HR__LMS_CHECK_BUSY)
		return hr__fail(HR_NOT_READY, "tensors of %s were pinned or moved all the time, so that there was no moment to check them; try again",
		                lms->allocator->name);
	return broken ? hr__fail(HR_CORRUPT, "invariant %d of tensors does not hold on %s; please report it", broken, lms->allocator->name) : HR_OK;
}

/* ---- hooks for the memory layer ---- */

static void close_context(hr__lms *lms)
{
	hr__lock_take(&all.lock);
	hr__lms **link = &all.contexts;
	while (*link && *link != lms) link = &(*link)->next;
	if (*link) *link = lms->next;
	hr__store_release(&open_contexts[lms->allocator->slot], 0); /* threads that held pins in it no longer do */
	hr__lock_release(&all.lock);
	hr__lms_destroy_tensors(lms);
	hr__store_release(&lms->allocator->lms, NULL);
	tear_down(lms);
}

static hr_status in_use(hr__allocator *allocator)
{
	hr__lms *lms = hr__load_acquire(&allocator->lms);
	int64_t count = hr__load_relaxed(&lms->stats.num_tensors);
	if (!count) return HR_OK;
	return hr__fail(HR_IN_USE, "%s still has %lld tensor%s; destroy them, or use hr_allocator_destroy_all", allocator->name, (long long)count,
	                hr__plural((uint64_t)count));
}

static void closing(hr__allocator *allocator)
{
	close_context(hr__load_acquire(&allocator->lms));
}

static bool leaves(hr__allocator *allocator, uint64_t *room, uint64_t *apart)
{
	hr__lms *lms = hr__load_acquire(&allocator->lms);
	*room = lms && lms->host ? hr__host_room(lms->host) : UINT64_MAX;
	*apart = 0;
	if (!lms) return false;
	hr__lock_take(&lms->lock);
	for (uint32_t i = 0; i < lms->member_count; i++) {
		const hr__tensor *tensor = lms->members[i];
		if (hr__tensor_owns_pages(tensor) && hr__tensor_is_evictable(tensor->index + 1)) *apart += tensor->device_bytes;
	}
	hr__lock_release(&lms->lock);
	return lms->enabled;
}

static uint64_t moves(const hr__pressure *pressure, hr__moving *how)
{
	hr__lms *lms = hr__load_acquire(&pressure->allocator->lms);
	if (!lms) return UINT64_MAX;
	*how = (hr__moving){ .on = lms->defrag, .budget = lms->defrag_budget };
	return hr__defrag_cost(lms, pressure);
}

static void leaks(hr__leaks *found)
{
	hr__lock_take(&all.lock);
	for (hr__lms *lms = all.contexts; lms; lms = lms->next)
		for (uint32_t i = 0; i < lms->member_count; i++) {
			const hr__tensor *tensor = lms->members[i];
			hr__leaks_add_tensor(found, tensor->op, tensor->scope, tensor->tag, tensor->device_bytes);
		}
	hr__lock_release(&all.lock);
}

static void shut_down(void)
{
	for (;;) {
		hr__lock_take(&all.lock);
		hr__lms *lms = all.contexts;
		hr__lock_release(&all.lock);
		if (!lms) break;
		close_context(lms);
	}
	hr__tensor_shutdown();
	hr__store_relaxed(&wanted, -1);
	hr__store_relaxed(&wanted_defrag, -1);
	all.policy_count = 0;
}

static void forget(void)
{
	hr__lock_init(&all.lock, HR__RANK_LMS);
	for (hr__lms *lms = all.contexts; lms; lms = lms->next) {
		if (lms->host) hr__host_forget(lms->host);
		if (lms->csv >= 0) hr__os()->file_close(lms->csv);
		hr__store_release(&open_contexts[lms->allocator->slot], 0);
	}
	all.contexts = NULL;
	all.policy_count = 0;
	hr__tensor_forget_all();
	hr__store_relaxed(&wanted, -1);
	hr__store_relaxed(&wanted_defrag, -1);
}

static const hr__upper hooks = { .reclaim = hr__reclaim,
	                              .stats = add_stats,
	                              .reset = reset_stats,
	                              .in_use = in_use,
	                              .closing = closing,
	                              .may_leave = hr__tensor_is_evictable,
	                              .leaves = leaves,
	                              .moves = moves,
	                              .leaks = leaks,
	                              .shutdown = shut_down,
	                              .forget = forget };
