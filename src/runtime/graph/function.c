/* function.c - functions: bodies written as ordinary op calls that run as graphs.
 *
 * The body is called once for each signature (dtypes and shapes of its inputs) while a graph is entered; later calls run that
 * graph. Variables created by the body belong to the session, so a signature is valid for one session.
 *
 * A function has one owner thread at a time. The owner looks up a graph or calls the body; graphs run afterwards, in parallel. A
 * thread that would deadlock is refused: it is the owner already, or the owner waits, directly or through others, for a function
 * that this thread owns. Only a thread that starts to wait can close such a cycle, so the check is made there. */
#include "core/base/atomic.h"
#include "core/base/status.h"
#include "core/os/os.h"
#include "runtime/graph/captured.h"
#include "runtime/graph/graph.h"

#define VALUES_MAX 16u

struct built {
	uint64_t session; /* 0: unused */
	uint64_t used;    /* time of last use, in ticks of the function's clock */
	size_t in_count, out_count;
	hr__type types[VALUES_MAX];
	hr_value places[VALUES_MAX], outs[VALUES_MAX];
	hr_graph graph;
};

struct function {
	uint64_t id;
	char name[64];
	hr_function_body body;
	void *context;
	uint32_t calls;             /* in progress; guarded by hr__runtime_lock */
	const struct caller *owner; /* NULL = none; guarded by hr__runtime_lock */
	uint64_t clock;             /* accessed by the owner, like built; without an owner, under the lock */
	struct built built[HR__SIGNATURES_MAX];
};

/* A thread's state that other threads read. */
static _Thread_local struct caller {
	const struct function *waits_for; /* NULL = none; guarded by hr__runtime_lock */
} me;

static struct function *functions[HR__FUNCTIONS_MAX]; /* guarded by hr__runtime_lock, like last_id */
static uint64_t last_id;
static hr__atomic_u32 eagerly_;

void hr_run_functions_eagerly(bool eagerly)
{
	hr__store_relaxed(&eagerly_, eagerly);
}

hr_status hr_function_create(const char *name, hr_function_body body, void *context, hr_function *out)
{
	void *block;
	if (!body || !out || !name || !*name) return hr__fail(HR_INVALID_ARGUMENT, "hr_function_create: the name, the body or out is NULL");
	hr_status status = hr__runtime_begin();
	if (status) return status;
	int error = hr__os()->alloc(sizeof(struct function), &block);
	if (error) return hr__os_fail(error, "cannot get host memory for a function");
	struct function *function = block;
	status = HR_TOO_MANY;
	function->body = body;
	function->context = context;
	for (size_t i = 0; name[i] && i < sizeof function->name - 1; i++) function->name[i] = name[i];
	hr__lock_take(&hr__runtime_lock);
	function->id = ++last_id;
	for (uint32_t i = 0; i < HR__FUNCTIONS_MAX && status; i++) {
		if (functions[i]) continue;
		functions[i] = function;
		status = HR_OK;
	}
	hr__lock_release(&hr__runtime_lock);
	if (status) {
		hr__os()->free(function, sizeof *function);
		return hr__fail(status, "there are %u functions; destroy one", HR__FUNCTIONS_MAX);
	}
	out->id = function->id;
	return HR_OK;
}

static void forget(struct built *built)
{
	if (built->session) hr__graph_drop(built->graph);
	*built = (struct built){ 0 };
}

static void free_function(struct function *function)
{
	for (uint32_t i = 0; i < HR__SIGNATURES_MAX; i++) forget(&function->built[i]);
	hr__os()->free(function, sizeof *function);
}

/* Call with the lock. */
static struct function **find(hr_function handle)
{
	for (uint32_t i = 0; i < HR__FUNCTIONS_MAX && handle.id; i++)
		if (functions[i] && functions[i]->id == handle.id) return &functions[i];
	return NULL;
}

static hr_status is_gone(void)
{
	return hr__fail(HR_INVALID_HANDLE, "the function was destroyed, or never created");
}

hr_status hr_function_destroy(hr_function handle)
{
	hr__lock_take(&hr__runtime_lock);
	struct function **place = find(handle), *function = place ? *place : NULL;
	bool in_use = function && function->calls;
	if (function && !in_use) *place = NULL;
	hr__lock_release(&hr__runtime_lock);
	if (!function) return is_gone();
	if (in_use) return hr__fail(HR_IN_USE, "a thread is calling the function; destroy it when that has returned");
	free_function(function);
	return HR_OK;
}

/* ---- ownership ---- */

/* Finds the function. It cannot be destroyed until end_call. */
static hr_status begin_call(hr_function handle, struct function **out)
{
	if (hr__forked) return hr__fail(HR_FORKED, "this process is a fork; call hr_shutdown() first"); /* the owner may be gone */
	hr__lock_take(&hr__runtime_lock);
	struct function **place = find(handle);
	if (place) *out = *place;
	if (place) (*out)->calls++;
	hr__lock_release(&hr__runtime_lock);
	return place ? HR_OK : is_gone();
}

static void end_call(struct function *function)
{
	hr__lock_take(&hr__runtime_lock);
	function->calls--;
	hr__lock_release(&hr__runtime_lock);
}

/* Whether this thread owns the function, or its owner waits for this thread. Call with the lock. */
static bool waits_for_me(const struct function *function)
{
	const struct caller *owner = function->owner;
	while (owner && owner != &me) owner = owner->waits_for ? owner->waits_for->owner : NULL;
	return owner != NULL;
}

/* Call with the lock. True: this thread is the owner now, or waiting would deadlock (*status). */
static bool try_turn(struct function *function, hr_status *status)
{
	*status = waits_for_me(function) ? HR_IN_USE : HR_OK;
	bool settled = *status || !function->owner;
	if (!function->owner) function->owner = &me;
	me.waits_for = settled ? NULL : function;
	return settled;
}

/* Waits only while another thread calls the body. Polls, because a monitor could not be destroyed in the child of a fork. */
static hr_status take_turn(struct function *function)
{
	hr_status status;
	hr__lock_take(&hr__runtime_lock);
	for (unsigned attempt = 0; !try_turn(function, &status); attempt++) {
		hr__lock_release(&hr__runtime_lock);
		hr__lock_wait(attempt);
		hr__lock_take(&hr__runtime_lock);
	}
	hr__lock_release(&hr__runtime_lock);
	return status ? hr__fail(status, "function \"%s\" calls itself, or waits for a thread that waits for this one", function->name) : HR_OK;
}

static void leave_turn(struct function *function)
{
	hr__lock_take(&hr__runtime_lock);
	function->owner = NULL;
	hr__lock_release(&hr__runtime_lock);
}

/* ---- dropping graphs ---- */

/* Removes the graphs built for [session]. Call with the lock, while the function has no owner. Returns their number. */
static uint32_t take_out(struct function *function, uint64_t session, hr_graph *out)
{
	uint32_t count = 0;
	for (uint32_t k = 0; k < HR__SIGNATURES_MAX; k++) {
		if (function->built[k].session != session) continue;
		out[count++] = function->built[k].graph;
		function->built[k] = (struct built){ 0 };
	}
	return count;
}

/* Does not take ownership, because the owner's body may be closing the session. Graphs of an owned function stay until their slot
 * is reused; they are never used, because session ids are not reused. */
void hr__functions_forget(const hr__session *session)
{
	for (uint32_t i = 0; i < HR__FUNCTIONS_MAX; i++) {
		hr_graph graphs[HR__SIGNATURES_MAX];
		hr__lock_take(&hr__runtime_lock);
		uint32_t count = functions[i] && !functions[i]->owner ? take_out(functions[i], session->id, graphs) : 0;
		hr__lock_release(&hr__runtime_lock);
		while (count) hr__graph_drop(graphs[--count]);
	}
}

void hr__functions_free(void)
{
	for (uint32_t i = 0; i < HR__FUNCTIONS_MAX; i++) {
		if (functions[i]) free_function(functions[i]);
		functions[i] = NULL;
	}
}

/* ---- building ---- */

/* Call as the owner. */
static hr_status call_body(const struct function *function, const hr_value *ins, size_t in_count, hr_value *outs, size_t out_count)
{
	hr_status status = hr_name_scope_push(function->name);
	if (status) return status;
	for (size_t i = 0; i < out_count; i++) outs[i] = HR_NO_VALUE;
	hr__last_clear();
	status = function->body(function->context, ins, in_count, outs, out_count);
	for (size_t i = 0; i < out_count && !status; i++) {
		if (outs[i].id) continue;
		status = *hr_last_message() ? hr_last_status() : hr__fail(HR_INVALID_ARGUMENT, "output %zu was not set", i);
	}
	hr_name_scope_pop();
	return status ? hr__fail_in(status, "function \"%s\"", function->name) : HR_OK;
}

/* Call with the graph entered. */
static hr_status build_inside(const struct function *function, struct built *built)
{
	for (size_t i = 0; i < built->in_count; i++) {
		const hr__type *type = &built->types[i];
		built->places[i] = hr_placeholder(type->dtype, type->dims.d, type->dims.rank);
		if (!built->places[i].id) return hr_last_status();
	}
	return call_body(function, built->places, built->in_count, built->outs, built->out_count);
}

static hr_status build(struct function *function, const hr__session *session, struct built *built)
{
	hr_status status = hr__graph_create(session, &built->graph);
	if (status) return status;
	built->session = session->id;
	status = hr_graph_enter(built->graph);
	if (!status) {
		status = build_inside(function, built);
		hr_graph_leave();
	}
	if (status) forget(built);
	return status;
}

static bool is_for(const struct built *built, const hr__session *session, const hr__value *ins, size_t in_count, size_t out_count)
{
	bool same = built->session == session->id && built->in_count == in_count && built->out_count == out_count;
	for (size_t i = 0; i < in_count && same; i++)
		same = built->types[i].dtype == ins[i].type.dtype && hr__dims_equal(&built->types[i].dims, &ins[i].type.dims);
	return same;
}

/* The graph for this signature: an existing one, or a new one in the slot that was used longest ago. */
static hr_status find_built(struct function *function, const hr__session *session, const hr__value *ins, size_t in_count, size_t out_count,
                            struct built **out)
{
	struct built *oldest = &function->built[0];
	for (uint32_t i = 0; i < HR__SIGNATURES_MAX; i++) {
		struct built *each = &function->built[i];
		if (is_for(each, session, ins, in_count, out_count)) {
			*out = each;
			return HR_OK;
		}
		if (each->used < oldest->used) oldest = each;
	}
	forget(oldest);
	oldest->in_count = in_count;
	oldest->out_count = out_count;
	for (size_t i = 0; i < in_count; i++) oldest->types[i] = ins[i].type;
	*out = oldest;
	return build(function, session, oldest);
}

/* ---- calls ---- */

/* Copied from struct built, which another thread may replace once this thread is no longer the owner. */
struct function_job {
	hr__graph *graph; /* after hr__graph_begin_run */
	hr_feed feeds[VALUES_MAX];
	hr_value fetches[VALUES_MAX];
};

static hr_status prepare(struct function *function, const hr__session *session, const hr_value *ins, size_t in_count,
                         size_t out_count, struct function_job *job)
{
	hr__value values[VALUES_MAX];
	struct built *built;
	hr_status status = HR_OK;
	for (size_t i = 0; i < in_count && !status; i++) status = hr__value_get(ins[i], &values[i]);
	if (!status) status = find_built(function, session, values, in_count, out_count, &built);
	if (status) return status;
	built->used = ++function->clock;
	for (size_t i = 0; i < in_count; i++) job->feeds[i] = (hr_feed){ built->places[i], ins[i] };
	for (size_t i = 0; i < out_count; i++) job->fetches[i] = built->outs[i];
	return hr__graph_begin_run(NULL, built->graph, &job->graph);
}

/* Arguments of hr_function_call_with_options. */
struct arguments {
	const hr_value *ins;
	size_t in_count;
	hr_value *outs;
	size_t out_count;
	const hr_run_options *options;
	hr_run_metadata *metadata; /* NULL = none */
	bool observed;             /* the caller gave options or metadata */
};

static hr_status run_built(struct function *function, hr__session *session, const struct arguments *with)
{
	struct function_job job;
	hr_status status = take_turn(function);
	if (status) return status;
	status = prepare(function, session, with->ins, with->in_count, with->out_count, &job);
	leave_turn(function);
	if (status) return status;
	bool ran = false;
	if (!with->observed) status = hr__captured_run(session, job.graph, job.feeds, with->in_count, job.fetches, with->out_count, with->outs, &ran);
	if (ran || status) {
		hr__graph_end_run(job.graph);
		return status;
	}
	return hr__graph_run(session, job.graph, job.feeds, with->in_count, job.fetches, with->out_count, with->outs, with->options, with->metadata);
}

/* Makes each output a temporary value of its own. A kept value, such as an input, and a value that is returned twice are replaced
 * by aliases. */
static hr_status own_outs(hr_value *outs, size_t count)
{
	hr_status status = HR_OK;
	for (size_t i = 0; i < count; i++) {
		hr__value value;
		bool again = false;
		if (outs[i].id == HR_DONE.id || !outs[i].id || hr__value_get(outs[i], &value) || value.graph) continue;
		for (size_t k = 0; k < i; k++) again |= outs[k].id == outs[i].id;
		if (value.temporary && !again) continue;
		outs[i] = hr__value_alias(outs[i]);
		if (!outs[i].id && !status) status = hr_last_status();
	}
	return status;
}

static hr_status call_body_in_turn(struct function *function, const hr_value *ins, size_t in_count, hr_value *outs, size_t out_count)
{
	hr_status status = take_turn(function);
	if (status) return status;
	status = call_body(function, ins, in_count, outs, out_count);
	leave_turn(function);
	return status;
}

/* Runs the body eagerly. Inputs are kept during the call, so that they can be used more than once, as in a graph. */
static hr_status run_body(struct function *function, const hr_value *ins, size_t in_count, hr_value *outs, size_t out_count)
{
	for (size_t i = 0; i < in_count; i++) hr_value_keep(ins[i]);
	hr_status status = call_body_in_turn(function, ins, in_count, outs, out_count);
	hr_status owned = own_outs(outs, out_count);
	if (!status) status = owned;
	for (size_t i = 0; i < in_count; i++) hr_value_release(ins[i]);
	for (size_t i = 0; i < out_count && status; i++) {
		hr__value_consume(outs[i]);
		outs[i] = HR_NO_VALUE;
	}
	return status;
}

/* run_body with the options and metadata of a run. */
static hr_status watch_body(struct function *function, hr__session *session, const struct arguments *with)
{
	uint64_t begin_ns;
	const hr_run_options *options = with->options;
	if (options->trace == HR_RUN_TRACE_OPS)
		return hr__fail(HR_UNSUPPORTED, "function \"%s\" runs op by op (hr_run_functions_eagerly, or a tape is on); only a graph can be traced", function->name);
	hr_status status = hr__run_begin(session, options, with->metadata, 0, &begin_ns);
	if (status) return status;
	status = run_body(function, with->ins, with->in_count, with->outs, with->out_count);
	hr__run_end(session, options, with->metadata, begin_ns, status);
	return status;
}

/* Inside a graph or another function, the body's ops become part of that graph. With a tape the body runs eagerly, because the tape
 * must record its ops. */
static hr_status call(struct function *function, const struct arguments *with)
{
	if (hr__graph_current()) {
		if (with->observed)
			return hr__fail(HR_INVALID_ARGUMENT, "function \"%s\" is called in a graph or another function, where it does not run; give options and "
			                                     "metadata to the run of that", function->name);
		return call_body_in_turn(function, with->ins, with->in_count, with->outs, with->out_count);
	}
	hr__session *session = hr__session_current();
	if (!session) return hr_last_status();
	return hr__load_relaxed(&eagerly_) || hr__tape_is_on() ? watch_body(function, session, with) : run_built(function, session, with);
}

static hr_status check_call(const hr_value *ins, size_t in_count, const hr_value *outs, size_t out_count)
{
	if (in_count > VALUES_MAX || out_count > VALUES_MAX || (in_count && !ins) || (out_count && !outs))
		return hr__fail(HR_INVALID_ARGUMENT, "hr_function_call: more than %u inputs or outputs, or a pointer is NULL", VALUES_MAX);
	for (size_t i = 0; i < in_count; i++)
		if (!ins[i].id) return hr_last_status() ? hr_last_status() : hr__fail(HR_INVALID_ARGUMENT, "hr_function_call: input %zu is not a value", i);
	return HR_OK;
}

hr_status hr_function_call_with_options(hr_function handle, const hr_value *ins, size_t in_count, hr_value *outs, size_t out_count,
                                        const hr_run_options *options, hr_run_metadata *metadata)
{
	struct function *function = NULL;
	hr_run_options whole;
	struct arguments with = { ins, in_count, outs, out_count, &whole, metadata, options || metadata };
	for (size_t i = 0; i < out_count && outs; i++) outs[i] = HR_NO_VALUE;
	hr_status status = check_call(ins, in_count, outs, out_count);
	if (!status) status = hr__run_check("hr_function_call_with_options", options, metadata, &whole);
	if (!status) status = begin_call(handle, &function);
	if (!status) {
		status = call(function, &with);
		end_call(function);
	}
	for (size_t i = 0; i < in_count && ins; i++) hr__value_consume(ins[i]);
	return status;
}

hr_status hr_function_call(hr_function handle, const hr_value *ins, size_t in_count, hr_value *outs, size_t out_count)
{
	return hr_function_call_with_options(handle, ins, in_count, outs, out_count, NULL, NULL);
}
