/* session.c - sessions: creating, destroying, entering, and reporting errors of ops. */
#include <stdio.h>
#include <string.h>

#include "core/base/status.h"
#include "core/base/text/text.h"
#include "core/lms/lms.h"
#include "core/memory/allocator.h"
#include "core/os/os.h"
#include "runtime/card/card.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/structs.h"
#include "runtime/graph/captured.h"

#define DEPTH 4u

static hr__session *sessions[HR__SESSIONS_MAX]; /* guarded by hr__runtime_lock, like the three below */
static uint64_t last_id;
static hr__session *unasked; /* the default session, opened by the first op call outside any session */
static hr__session *lost;    /* list of sessions that were closed but could not be freed */

static _Thread_local struct {
	uint64_t ids[DEPTH];
	uint32_t count;
} entered;

void hr_session_options_init_sized(hr_session_options *options, size_t struct_size)
{
	hr__struct_init(&hr__struct_session_options, options, struct_size, &(const hr_session_options){ .struct_size = 0 });
}

static hr_status not_open(void)
{
	return hr__fail(HR_INVALID_HANDLE, "the session was destroyed, or never created");
}

static hr__session *find(uint64_t id)
{
	hr__session *found = NULL;
	hr__lock_take(&hr__runtime_lock);
	for (uint32_t i = 0; i < HR__SESSIONS_MAX && id && !found; i++)
		if (sessions[i] && sessions[i]->id == id) found = sessions[i];
	hr__lock_release(&hr__runtime_lock);
	return found;
}

hr__session *hr__session_at(uint32_t slot)
{
	return slot < HR__SESSIONS_MAX ? sessions[slot] : NULL;
}

hr__session *hr__session_of(hr_session session, hr_status *why)
{
	hr__session *found = find(session.id);
	*why = found ? HR_OK : not_open();
	return found;
}

/* ---- creating ---- */

static hr_status choose_allocator(hr__session *session, const hr_session_options *options)
{
	hr_device_info info = { .struct_size = sizeof info };
	hr_status status = hr_device_get_info(session->handle, &info);
	if (status) return status;
	session->allocator = options->allocator;
	if (!session->allocator.id) status = hr_allocator_get_default(info.name, &session->allocator);
	if (status) return status;
	/* Use tensors if the allocator supports them: they can be evicted. */
	hr_tensor_options shape;
	hr_tensor probe;
	hr_tensor_options_init(&shape);
	shape.bytes = 1;
	status = hr_tensor_create(session->allocator, &shape, &probe);
	session->has_tensors = status == HR_OK;
	if (session->has_tensors) hr_tensor_destroy(probe);
	return status == HR_UNSUPPORTED ? HR_OK : status;
}

/* Stream order protects memory on the stream's own device only. */
static hr_status check_allocator(const hr__session *session)
{
	hr_status status = HR_OK;
	const hr__allocator *allocator = hr__allocator_of(session->allocator, &status);
	if (!allocator || allocator->device == session->device) return status;
	return hr__fail(HR_INVALID_ARGUMENT, "the session is on %s, and its allocator on %s", hr__device_name(session->device),
	                hr__device_name(allocator->device));
}

/* After fork: no thread of the child holds the lock. */
static void free_lock(void)
{
	hr__lock_init(&hr__runtime_lock, HR__RANK_RUNTIME);
}

static hr_status watch_forks(void)
{
	static hr__atomic_u8 watching;
	if (hr__load_acquire(&watching)) return HR_OK;
	int error = hr__os_at_fork(free_lock); /* registering twice is harmless */
	if (error) return hr__os_fail(error, "cannot register a fork handler");
	hr__store_release(&watching, 1);
	return HR_OK;
}

static void end_runtime(bool forgets, hr__leaks *leaks);

hr_status hr__runtime_begin(void)
{
	hr_status status = watch_forks();
	if (!status) hr__store_release(&hr__hooks_table.runtime_end, end_runtime);
	return status;
}

static hr_status set_up(hr__session *session, const hr_session_options *options)
{
	char why[256];
	/* If a CUDA device is required, the first device is a CUDA device, and the host is no substitute. */
	bool named = options->device || hr__cuda_is_required();
	hr_status status = named ? hr_device_find(options->device, &session->handle) : hr_device_at(0, &session->handle);
	if (status) return status;
	session->device = hr__device_of(session->handle, &status);
	if (!session->device) return status;
	status = choose_allocator(session, options);
	if (!status) status = check_allocator(session);
	if (!status) status = hr__stage_open(session); /* after the device's allocator, which comes first in recordings */
	if (!status && session->staging.id) session->card = hr__card_of(session->device, why, sizeof why);
	/* Ops on staged memory copy their inputs and outputs over the link: recomputing never takes less than moving. */
	session->has_recipes = !status && session->has_tensors && (!session->staging.id || session->card) && hr__lms_evicts(session->allocator);
	if (!status) status = hr__runtime_begin();
	if (status) return status;
	int error = hr__os()->monitor_create(&session->turn);
	if (error) return hr__os_fail(error, "cannot make a session");
	/* A device without streams runs everything synchronously. If no stream is left, sessions share the default one. */
	status = hr_stream_create(session->handle, &session->stream);
	session->own_stream = status == HR_OK;
	if (status == HR_UNSUPPORTED || status == HR_TOO_MANY) session->stream = HR_STREAM_DEFAULT;
	else if (status) return status;
	session->team = hr__team_get();
	return hr__faults_open(session);
}

/* Queued jobs access the session. If the device is broken and cannot be synchronized, the session is not freed. */
static void free_session(hr__session *session)
{
	hr__faults_close(session);
	hr_status status = session->own_stream ? hr_stream_destroy(session->handle, session->stream) : HR_OK;
	/* Recipes run on the default stream if an input was freed. */
	bool on_default = !session->own_stream || session->has_recipes;
	if (!status && on_default && session->id) status = hr_stream_synchronize(session->handle, HR_STREAM_DEFAULT);
	if (status) {
		hr__lock_take(&hr__runtime_lock);
		session->lost = lost;
		lost = session;
		hr__lock_release(&hr__runtime_lock);
		return;
	}
	hr__stage_close(session);
	if (session->turn) hr__os()->monitor_destroy(session->turn);
	hr__os()->free(session, sizeof *session);
}

hr_status hr_session_create(const hr_session_options *options, hr_session *out)
{
	void *block;
	hr_session_options whole;
	if (!out) return hr__fail(HR_INVALID_ARGUMENT, "hr_session_create: out is NULL");
	hr_session_options_init(&whole);
	hr_status status = hr__struct_in(&hr__struct_session_options, "hr_session_create", &whole, options);
	if (status) return status;
	int error = hr__os()->alloc(sizeof(hr__session), &block);
	if (error) return hr__os_fail(error, "cannot get host memory for a session");
	hr__session *session = block;
	status = set_up(session, &whole);
	if (!status) {
		status = HR_TOO_MANY;
		hr__lock_take(&hr__runtime_lock);
		session->id = ++last_id;
		for (uint32_t i = 0; i < HR__SESSIONS_MAX && status; i++) {
			if (sessions[i]) continue;
			sessions[i] = session;
			status = HR_OK;
		}
		hr__lock_release(&hr__runtime_lock);
		if (status) hr__fail(status, "%u sessions exist already; destroy one first", HR__SESSIONS_MAX);
	}
	if (status) {
		free_session(session);
		return status;
	}
	out->id = session->id;
	return HR_OK;
}

/* ---- destroying ---- */

hr_status hr__session_wait(hr__session *session)
{
	hr_status status = hr__faults_wait(session);
	hr__lock_take(&hr__runtime_lock);
	char error[HR__ERROR_TEXT];
	memcpy(error, session->error, sizeof error);
	hr_name op = session->error_op, scope = session->error_scope;
	session->error[0] = 0;
	hr__lock_release(&hr__runtime_lock);
	if (status || !error[0]) return status;
	hr__fail(HR_INVALID_ARGUMENT, "%s", error);
	return hr__name_op(HR_INVALID_ARGUMENT, hr_name_text(op), scope);
}

/* Adds the remaining values to [leaks], unless it is NULL. */
static hr_status close_session(hr__session *session, hr__leaks *leaks)
{
	hr_name op;
	uint64_t bytes, largest, left;
	hr_status status = hr__session_wait(session);
	hr__functions_forget(session);
	hr__captured_release(session);
	left = hr__values_drop(session, NULL, &bytes, &largest, &op); /* before what dropped values are computed from */
	hr__variables_drop(session, 0);
	hr__buffers_free_unused(session);
	if (leaks) hr__leaks_add_values(leaks, left, bytes, largest, op);
	if (left) {
		char failed[HR__ERROR_TEXT + 200] = "";
		if (status) snprintf(failed, sizeof failed, "%s; and ", hr_last_message());
		status = hr__fail(HR_IN_USE, "%sdestroying the session freed %llu value%s (%llu bytes) that had not been released, the largest made by op \"%s\"",
		                  failed, (unsigned long long)left, hr__plural(left), (unsigned long long)bytes, hr_name_text(op));
	}
	free_session(session);
	return status;
}

hr_status hr_session_destroy(hr_session handle)
{
	hr__session *session = NULL;
	hr__lock_take(&hr__runtime_lock);
	for (uint32_t i = 0; i < HR__SESSIONS_MAX; i++) {
		if (!sessions[i] || sessions[i]->id != handle.id) continue;
		session = sessions[i];
		sessions[i] = NULL;
		if (unasked == session) unasked = NULL;
	}
	hr__lock_release(&hr__runtime_lock);
	return session ? close_session(session, NULL) : not_open();
}

/* ---- entering ---- */

hr_status hr_session_enter(hr_session handle)
{
	hr_status status;
	if (!hr__session_of(handle, &status)) return status;
	if (entered.count == DEPTH) return hr__fail(HR_TOO_MANY, "this thread is inside %u sessions already; leave one first (hr_session_leave)", DEPTH);
	entered.ids[entered.count++] = handle.id;
	return HR_OK;
}

hr_status hr_session_leave(void)
{
	if (!entered.count) return hr__fail(HR_INVALID_ARGUMENT, "hr_session_leave without hr_session_enter");
	entered.count--;
	return HR_OK;
}

hr__session *hr__session_current(void)
{
	hr_status status;
	if (entered.count) return hr__session_of((hr_session){ entered.ids[entered.count - 1] }, &status);
	hr__lock_take(&hr__runtime_lock);
	hr__session *session = unasked;
	hr__lock_release(&hr__runtime_lock);
	if (session) return session;
	hr_session_options options;
	hr_session opened;
	hr_session_options_init(&options);
	if (hr_session_create(&options, &opened)) return NULL;
	hr__session *mine = find(opened.id);
	hr__lock_take(&hr__runtime_lock);
	if (!unasked) unasked = mine;
	session = unasked;
	hr__lock_release(&hr__runtime_lock);
	if (session != mine) hr_session_destroy(opened); /* another thread opened one first */
	return session;
}

hr_status hr_session_compute_check(hr_session handle)
{
	hr_status status;
	char why[256];
	const hr__session *session = hr__session_of(handle, &status);
	if (!session || !session->staging.id) return status;
	const hr__card *card = hr__card_of(session->device, why, sizeof why);
	if (!card) return hr__fail(HR_UNSUPPORTED, "the host computes the ops of %s: %s", hr__device_name(session->device), why);
	const hr__card_facts *facts = hr__card_facts_of(card);
	if (facts->cublaslt) return HR_OK;
	return hr__fail(HR_UNSUPPORTED, "the host computes products of matrices of %s: %s", hr__device_name(session->device), facts->no_cublaslt);
}

hr_status hr_session_synchronize(hr_session handle)
{
	hr_status status;
	hr__session *session = hr__session_of(handle, &status);
	return session ? hr__session_wait(session) : status;
}

/* Retries. False: some could not be freed. */
static bool free_lost(void)
{
	hr__lock_take(&hr__runtime_lock);
	hr__session *all = lost;
	lost = NULL;
	hr__lock_release(&hr__runtime_lock);
	while (all) {
		hr__session *next = all->lost;
		free_session(all);
		all = next;
	}
	return !lost;
}

/* forgets: in the child of a fork. Device memory and threads belong to the parent; only host memory is freed. */
static void end_runtime(bool forgets, hr__leaks *leaks)
{
	if (hr__tape_is_there()) hr_tape_end();
	for (uint32_t i = 0; i < HR__SESSIONS_MAX; i++) {
		if (sessions[i] && !forgets) close_session(sessions[i], leaks);
		sessions[i] = NULL;
	}
	unasked = NULL;
	hr__functions_free();
	hr__graphs_free();
	hr__values_free();
	hr__variables_free();
	bool idle = forgets || free_lost();
	if (idle) hr__cards_end(forgets);
	hr__stages_forget();
	if (idle) hr__team_end(forgets);
}
