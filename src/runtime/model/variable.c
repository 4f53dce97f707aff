/* variable.c - variables: names in scopes, and contents in sessions.
 *
 * A variable is a name, a type and an initializer; it belongs to a graph or to a session. Its contents belong to a session: a
 * buffer with a reference, indexed by the variable's number. A read adds a reference. An update is done in place if the session has
 * the only reference (execute.c), so a value that was read before keeps the old contents. */
#include <stdio.h>
#include <string.h>

#include "core/base/assert.h"
#include "core/base/status.h"
#include "core/base/text/text.h"
#include "core/os/os.h"
#include "runtime/engine/engine.h"
#include "runtime/ops/ops.h"

#define BLOCK 256u
#define BLOCKS_MAX 256u
#define DEPTH 16u
#define PATH_MAX_BYTES 512u

static struct {
	hr__variable *blocks[BLOCKS_MAX];
	uint32_t count;      /* capacity */
	uint64_t generation; /* of the last variable made */
} table; /* guarded by hr__runtime_lock */

static _Thread_local struct {
	hr_name paths[DEPTH];
	uint8_t reuses[DEPTH];
	uint32_t count;
} scopes;

static hr__variable *at(uint32_t number)
{
	return &table.blocks[number / BLOCK][number % BLOCK];
}

/* Call with the lock. */
static hr__variable *find(uint64_t id)
{
	uint32_t number = (uint32_t)id;
	return id && number < table.count && at(number)->id == id ? at(number) : NULL;
}

hr_status hr__variable_get(uint64_t id, hr__variable *out)
{
	hr__lock_take(&hr__runtime_lock);
	const hr__variable *variable = find(id);
	if (variable) *out = *variable;
	hr__lock_release(&hr__runtime_lock);
	return variable ? HR_OK : hr__fail(HR_INVALID_HANDLE, "the variable handle is invalid, or its session or graph was destroyed");
}

/* ---- scopes ---- */

/* Variables are identified by interned names. If the table of names is full, all new names get the same number, and different
 * variables would become one. */
static hr_status intern(const char *path, hr_name *out)
{
	*out = hr_name_intern(path);
	if (strcmp(hr_name_text(*out), path) == 0) return HR_OK;
	return hr__fail(HR_TOO_MANY, "there is no room for the name \"%.200s\"", path);
}

hr_status hr__name_join(hr_name around, const char *name, const char *what, hr_name *out)
{
	char path[PATH_MAX_BYTES];
	const char *before = hr_name_text(around);
	if (!name || !*name) return hr__fail(HR_INVALID_ARGUMENT, "%s needs a name", what);
	int length = snprintf(path, sizeof path, "%s%s%s", before, *before ? "/" : "", name);
	if (length < 0 || (size_t)length >= sizeof path)
		return hr__fail(HR_INVALID_ARGUMENT, "the name \"%.60s\" with its scopes is longer than %u bytes", name, PATH_MAX_BYTES - 1);
	return intern(path, out);
}

static hr_name scope_path(void)
{
	return scopes.count ? scopes.paths[scopes.count - 1] : HR_NAME_NONE;
}

hr_status hr_variable_scope_push(const char *name, hr_reuse reuse)
{
	hr_name path;
	if (scopes.count == DEPTH) return hr__fail(HR_TOO_MANY, "this thread is inside %u variable scopes already; pop one first (hr_variable_scope_pop)", DEPTH);
	if ((unsigned)reuse > HR_REUSE_OR_MAKE) return hr__fail(HR_INVALID_ARGUMENT, "%d is not a way to reuse variables (hr_reuse)", (int)reuse);
	hr_status status = hr__name_join(scope_path(), name, "a variable or variable scope", &path);
	if (!status) status = hr_name_scope_push(name);
	if (status) return status;
	if (reuse == HR_REUSE_AS_AROUND && scopes.count) reuse = scopes.reuses[scopes.count - 1];
	scopes.paths[scopes.count] = path;
	scopes.reuses[scopes.count++] = (uint8_t)reuse;
	return HR_OK;
}

hr_status hr_variable_scope_pop(void)
{
	if (!scopes.count) return hr__fail(HR_INVALID_ARGUMENT, "hr_variable_scope_pop without hr_variable_scope_push");
	scopes.count--;
	return hr_name_scope_pop();
}

/* ---- contents ---- */

hr_status hr__variable_prepare(hr__session *session, uint64_t id)
{
	void *block;
	uint32_t number = (uint32_t)id;
	hr__lock_take(&hr__runtime_lock);
	uint32_t before = session->content_count;
	hr__lock_release(&hr__runtime_lock);
	if (number < before) return HR_OK;
	uint32_t count = number / BLOCK * BLOCK + BLOCK;
	int error = hr__os()->alloc(count * sizeof(hr__content), &block);
	if (error) return hr__os_fail(error, "cannot get host memory for %u variable%s", count, hr__plural(count));
	hr__content *old = block;
	hr__lock_take(&hr__runtime_lock);
	before = session->content_count;
	if (number >= before) {
		old = session->contents;
		if (before) memcpy(block, old, before * sizeof *old);
		session->contents = block;
		session->content_count = count;
	}
	hr__lock_release(&hr__runtime_lock);
	if (old) hr__os()->free(old, (old == block ? count : before) * sizeof *old);
	return HR_OK;
}

/* Call with the lock. */
static hr__content *content_of(hr__session *session, uint64_t id)
{
	return (uint32_t)id < session->content_count ? &session->contents[(uint32_t)id] : NULL;
}

hr_status hr__variable_read(hr__session *session, uint64_t id, hr__content *out)
{
	hr__variable variable;
	hr__lock_take(&hr__runtime_lock);
	const hr__content *content = content_of(session, id);
	bool there = content && content->variable == id;
	if (there) {
		*out = *content;
		if (out->buffer) out->buffer->refs++;
	}
	hr__lock_release(&hr__runtime_lock);
	if (there) return HR_OK;
	hr_status status = hr__variable_get(id, &variable);
	return status ? status : hr__fail(HR_INVALID_ARGUMENT, "variable \"%s\" has no contents in this session yet; run "
	                                  "hr_global_variables_initializer, or assign to it", hr_name_text(variable.name));
}

hr_status hr__variable_write(hr__session *session, uint64_t id, hr__buffer *buffer)
{
	hr_status status = hr__variable_prepare(session, id);
	if (status) return status;
	hr__lock_take(&hr__runtime_lock);
	hr__content *content = content_of(session, id);
	hr__buffer *old = content->buffer;
	if (buffer) buffer->refs++;
	*content = (hr__content){ id, buffer, hr__serial_next() };
	hr__lock_release(&hr__runtime_lock);
	hr__buffer_release(old);
	return HR_OK;
}

static bool has_contents(hr__session *session, uint64_t id)
{
	hr__lock_take(&hr__runtime_lock);
	const hr__content *content = content_of(session, id);
	bool there = content && content->variable == id;
	hr__lock_release(&hr__runtime_lock);
	return there;
}

/* ---- initialization ---- */

static hr_status run(hr__session *session, enum hr__op_kind kind, const hr__attrs *attrs, const hr__variable *variable, hr__slot *in, hr__slot *out)
{
	hr__task task = { .session = session, .kind = kind, .attrs = attrs, .scope = variable->scope, .role = hr__variable_role(variable) };
	return hr__execute_plain(&task, in, in != NULL, out);
}

/* The op that computes the initial contents. */
static enum hr__op_kind op_of(const hr__variable *variable, hr__attrs *attrs)
{
	static const enum hr__op_kind kinds[] = { [HR_INIT_FULL] = HR__OP_FULL, [HR_INIT_NORMAL] = HR__OP_RANDOM_NORMAL,
		                                      [HR_INIT_UNIFORM] = HR__OP_RANDOM_UNIFORM };
	const hr_initializer *how = &variable->initializer;
	HR_ASSERT(how->kind != HR_INIT_NONE);
	*attrs = (hr__attrs){ .dtype = variable->type.dtype, .dims = variable->type.dims, .a = how->a, .b = how->b, .seed = how->seed };
	return kinds[how->kind];
}

/* Initialization does not go through an op call, so the checks of the op call, which the kernel relies on, are done here. */
static hr_status check_initializer(const hr__variable *variable)
{
	hr__attrs attrs;
	hr__type type;
	int kind = (int)variable->initializer.kind;
	if (kind == HR_INIT_NONE) return HR_OK;
	if ((unsigned)kind > HR_INIT_UNIFORM) return hr__fail(HR_INVALID_ARGUMENT, "%d is not an initializer", kind);
	return hr__ops[op_of(variable, &attrs)].infer(NULL, 0, &attrs, &type);
}

static hr_status initialize(hr__session *session, const hr__variable *variable)
{
	const hr_initializer *how = &variable->initializer;
	hr__attrs attrs;
	hr__slot out = { .type = variable->type };
	enum hr__op_kind kind = op_of(variable, &attrs);
	hr_status status = hr__variable_prepare(session, variable->id);
	if (!status) status = run(session, kind, &attrs, variable, NULL, &out);
	if (!status && how->kind == HR_INIT_NORMAL) {
		hr__slot in = out;
		hr__attrs scale = { .a = how->b, .b = how->a };
		in.may_take = true;
		in.refs = 1;
		status = run(session, HR__OP_SCALE, &scale, variable, &in, &out);
		hr__buffer_release(in.buffer);
	}
	if (status) return hr__fail_in(status, "variable \"%s\"", hr_name_text(variable->name));
	status = hr__variable_write(session, variable->id, out.buffer);
	hr__buffer_release(out.buffer);
	return status;
}

hr_status hr__variables_initialize(hr__session *session, uint64_t graph, uint32_t *count)
{
	hr_status status = HR_OK;
	*count = 0;
	for (uint32_t number = 0; !status; number++) {
		hr__variable variable = { .id = 0 };
		hr__lock_take(&hr__runtime_lock);
		bool more = number < table.count;
		if (more) variable = *at(number);
		hr__lock_release(&hr__runtime_lock);
		if (!more) break;
		if (!variable.id || variable.graph != graph || (!graph && variable.session != session->id)) continue;
		if (variable.initializer.kind == HR_INIT_NONE || (!graph && has_contents(session, variable.id))) continue;
		status = initialize(session, &variable);
		*count += !status;
	}
	return status;
}

/* ---- creation ---- */

/* Adds BLOCK records. Called without the lock; another thread may grow the table at the same time. */
static hr_status grow(void)
{
	void *block;
	int error = hr__os()->alloc(BLOCK * sizeof(hr__variable), &block);
	if (error) return hr__os_fail(error, "cannot get host memory for variables");
	hr__lock_take(&hr__runtime_lock);
	bool room = table.count < BLOCK * BLOCKS_MAX;
	if (room) {
		table.blocks[table.count / BLOCK] = block;
		table.count += BLOCK;
	}
	hr__lock_release(&hr__runtime_lock);
	if (room) return HR_OK;
	hr__os()->free(block, BLOCK * sizeof(hr__variable));
	return hr__fail(HR_TOO_MANY, "there is no room for more than %u variables", BLOCK * BLOCKS_MAX);
}

/* Finds the variable of the same name and owner and copies it to *found. If there is none and [may_add], adds [wanted] and sets its
 * id. False: the table is full. One critical section, so two threads cannot create the same variable. */
static bool find_or_add(hr__variable *wanted, bool may_add, hr__variable *found)
{
	hr__variable *empty = NULL;
	found->id = 0;
	hr__lock_take(&hr__runtime_lock);
	for (uint32_t number = 0; number < table.count && !found->id; number++) {
		hr__variable *each = at(number);
		if (!each->id && !empty) {
			empty = each;
			wanted->id = ++table.generation << 32 | number;
		}
		if (each->id && each->name == wanted->name && each->graph == wanted->graph && each->session == wanted->session) *found = *each;
	}
	if (!found->id && may_add && empty) *empty = *wanted;
	hr__lock_release(&hr__runtime_lock);
	return found->id || !may_add || empty;
}

static void forget(uint64_t id)
{
	hr__lock_take(&hr__runtime_lock);
	hr__variable *variable = find(id);
	if (variable) *variable = (hr__variable){ .id = 0 };
	hr__lock_release(&hr__runtime_lock);
}

/* Whether [there] may be used as [wanted]. */
static hr_status reuse(const hr__variable *there, const hr__variable *wanted, hr_reuse how)
{
	char want[HR__DIMS_TEXT], got[HR__DIMS_TEXT];
	const char *name = hr_name_text(there->name);
	hr__dims_text(&there->type.dims, got, sizeof got);
	if (how == HR_REUSE_AS_AROUND)
		return hr__fail(HR_ALREADY_EXISTS, "variable \"%s\" exists already, as %s %s; reuse it from a scope with HR_REUSE_ONLY or "
		                "HR_REUSE_OR_MAKE, or choose another name or scope", name, hr_dtype_text(there->type.dtype), got);
	if (there->type.dtype == wanted->type.dtype && hr__dims_equal(&there->type.dims, &wanted->type.dims)) return HR_OK;
	return hr__fail(HR_INVALID_ARGUMENT, "variable \"%s\" is %s %s, not %s %s as requested", name, hr_dtype_text(there->type.dtype), got,
	                hr_dtype_text(wanted->type.dtype), hr__dims_text(&wanted->type.dims, want, sizeof want));
}

static hr_status find_or_make(hr__variable *wanted, hr_reuse how, hr__session *session)
{
	hr__variable found;
	while (!find_or_add(wanted, how != HR_REUSE_ONLY, &found)) {
		hr_status status = grow();
		if (status) return status;
	}
	if (found.id) {
		hr_status status = reuse(&found, wanted, how);
		wanted->id = found.id;
		return status;
	}
	if (how == HR_REUSE_ONLY)
		return hr__fail(HR_INVALID_ARGUMENT, "variable \"%s\" does not exist, and its scope only reuses (HR_REUSE_ONLY); create it first, or use "
		                "HR_REUSE_OR_MAKE", hr_name_text(wanted->name));
	if (wanted->graph || wanted->initializer.kind == HR_INIT_NONE) return HR_OK;
	hr_status status = initialize(session, wanted);
	if (status) forget(wanted->id);
	return status;
}

/* Serialized with ops on the session's variables, so that a variable that is found has its contents. */
static hr_status get(hr__variable *wanted, hr_reuse how, hr__session *session)
{
	if (session) hr__os()->monitor_enter(session->turn);
	hr_status status = find_or_make(wanted, how, session);
	if (session) hr__os()->monitor_leave(session->turn);
	return status;
}

/* Sets the owner. */
static hr_status place(hr__variable *variable, hr__session **session)
{
	const hr__graph *graph = hr__graph_current();
	*session = NULL;
	variable->graph = graph ? hr__graph_owner(graph) : 0;
	if (variable->graph) return HR_OK;
	*session = hr__session_current();
	if (!*session) return hr_last_status();
	variable->session = (*session)->id;
	return HR_OK;
}

static hr_variable get_variable(const char *name, hr_dtype dtype, const int64_t *dims, int rank, hr_initializer initializer, bool trainable)
{
	hr__session *session;
	hr__variable variable = { .scope = hr_name_scope_current(), .type.dtype = dtype, .initializer = initializer, .trainable = trainable };
	hr_status status = hr__name_join(scope_path(), name, "a variable or variable scope", &variable.name);
	if (!status) status = hr__dims_make(dims, rank, &variable.type.dims);
	if (!status) status = hr__need_any(dtype);
	if (!status) status = check_initializer(&variable);
	if (status) {
		hr__fail_in(status, "variable \"%.200s\"", name ? name : "");
		return (hr_variable){ 0 };
	}
	if (!status) status = place(&variable, &session);
	if (!status) status = get(&variable, scopes.count ? scopes.reuses[scopes.count - 1] : HR_REUSE_AS_AROUND, session);
	return (hr_variable){ status ? 0 : variable.id };
}

hr_variable hr_get_variable(const char *name, hr_dtype dtype, const int64_t *dims, int rank, hr_initializer initializer)
{
	return get_variable(name, dtype, dims, rank, initializer, true);
}

hr_variable hr__variable_statistic(const char *name, const hr__type *type, hr_initializer initializer)
{
	return get_variable(name, type->dtype, type->dims.d, type->dims.rank, initializer, false);
}

hr_variable hr__variable_hidden(const char *name, const hr__type *type)
{
	hr__session *session;
	hr__variable variable = { .scope = hr_name_scope_current(), .type = *type, .initializer = HR_ZEROS, .of_optimizer = true };
	hr_status status = intern(name, &variable.name);
	if (!status) status = place(&variable, &session);
	if (!status) status = get(&variable, HR_REUSE_OR_MAKE, session);
	return (hr_variable){ status ? 0 : variable.id };
}

/* Call with the lock. The buffer's reference passes to the caller. */
static hr__buffer *take_content(hr__session *session, uint32_t number)
{
	if (!session || number >= session->content_count) return NULL;
	hr__buffer *buffer = session->contents[number].buffer;
	session->contents[number] = (hr__content){ 0 };
	return buffer;
}

/* Drops the contents that all sessions have for a variable of a graph. */
static void drop_contents(uint32_t number, uint64_t id)
{
	for (uint32_t slot = 0; slot < HR__SESSIONS_MAX; slot++) {
		hr__lock_take(&hr__runtime_lock);
		hr__session *session = hr__session_at(slot);
		bool has = session && number < session->content_count && session->contents[number].variable == id;
		hr__buffer *buffer = has ? take_content(session, number) : NULL;
		hr__lock_release(&hr__runtime_lock);
		hr__buffer_release(buffer);
	}
}

void hr__variables_drop(hr__session *session, uint64_t graph)
{
	for (uint32_t number = 0;; number++) {
		hr__lock_take(&hr__runtime_lock);
		bool more = number < table.count;
		hr__variable *variable = more ? at(number) : NULL;
		hr__buffer *buffer = take_content(session, number);
		bool ends = variable && variable->id && (session ? variable->session == session->id : variable->graph == graph);
		uint64_t id = ends ? variable->id : 0;
		if (ends) *variable = (hr__variable){ 0 };
		hr__lock_release(&hr__runtime_lock);
		hr__buffer_release(buffer);
		if (ends && !session) drop_contents(number, id);
		if (!more) break;
	}
	if (!session || !session->contents) return;
	hr__os()->free(session->contents, session->content_count * sizeof *session->contents);
	session->contents = NULL;
	session->content_count = 0;
}

/* Ends a variable of a session, if it is still the one with that id. */
static void end(hr__session *session, uint32_t number, uint64_t id)
{
	hr__lock_take(&hr__runtime_lock);
	bool there = at(number)->id == id;
	hr__buffer *buffer = there ? take_content(session, number) : NULL;
	if (there) *at(number) = (hr__variable){ .id = 0 };
	hr__lock_release(&hr__runtime_lock);
	hr__buffer_release(buffer);
}

/* Whether [each] is the variable, or optimizer state of it: "<variable>/<optimizer>/m". */
static bool is_or_belongs_to(const hr__variable *each, const void *context)
{
	const hr__variable *variable = context;
	const char *name = hr_name_text(variable->name), *longer = hr_name_text(each->name);
	size_t length = strlen(name);
	return each->id == variable->id || (!each->trainable && !strncmp(longer, name, length) && longer[length] == '/');
}

/* Whether [each] is state of the optimizer of that name: "<optimizer>/step", "<variable>/<optimizer>/m" or "v". */
static bool is_state_of(const hr__variable *each, const void *context)
{
	static const char *const ends[] = { "/step", "/m", "/v" };
	const char *optimizer = context, *name = hr_name_text(each->name);
	size_t length = strlen(name), own = strlen(optimizer);
	for (uint32_t i = 0; i < 3 && !each->trainable; i++) {
		size_t end = strlen(ends[i]);
		if (length < own + end || strcmp(name + length - end, ends[i]) != 0) continue;
		const char *from = name + length - end - own;
		if (!strncmp(from, optimizer, own) && (i ? from > name && from[-1] == '/' : from == name)) return true;
	}
	return false;
}

/* Ends the variables of the session for which [ends] holds. */
static void end_where(hr__session *session, bool (*ends)(const hr__variable *each, const void *context), const void *context)
{
	for (uint32_t number = 0;; number++) {
		hr__lock_take(&hr__runtime_lock);
		bool more = number < table.count;
		hr__variable each = more ? *at(number) : (hr__variable){ .id = 0 };
		hr__lock_release(&hr__runtime_lock);
		if (!more) break;
		if (each.id && !each.graph && each.session == session->id && ends(&each, context)) end(session, number, each.id);
	}
}

hr_status hr_variable_destroy(hr_variable handle)
{
	hr__variable variable;
	hr_status status = hr__variable_get(handle.id, &variable);
	if (status) return status;
	if (variable.graph)
		return hr__fail(HR_UNSUPPORTED, "variable \"%s\" belongs to a graph, and is destroyed with it (hr_graph_destroy)", hr_name_text(variable.name));
	hr__session *session = hr__session_of((hr_session){ variable.session }, &status);
	if (!session) return status;
	hr__os()->monitor_enter(session->turn);
	end_where(session, is_or_belongs_to, &variable);
	hr__os()->monitor_leave(session->turn);
	return HR_OK;
}

hr_status hr_optimizer_free_state(hr_session handle, const char *name)
{
	hr_status status;
	if (!name || !*name) return hr__fail(HR_INVALID_ARGUMENT, "hr_optimizer_free_state: no name is given, such as \"adam\"");
	hr__session *session = hr__session_of(handle, &status);
	if (!session) return status;
	hr__os()->monitor_enter(session->turn);
	end_where(session, is_state_of, name);
	hr__os()->monitor_leave(session->turn);
	return HR_OK;
}

void hr__variables_free(void)
{
	for (uint32_t i = 0; i < table.count / BLOCK; i++) hr__os()->free(table.blocks[i], BLOCK * sizeof(hr__variable));
	table.count = 0;
	scopes.count = 0;
}

/* ---- ops on variables ---- */

uint32_t hr__variables_of(const hr__attrs *attrs)
{
	uint32_t count = 0;
	while (attrs && count < HR__OP_OUTPUTS && attrs->variables[count]) count++;
	return count;
}

bool hr__writes_variables(enum hr__op_kind kind, const hr__attrs *attrs)
{
	return (hr__variables_of(attrs) && kind != HR__OP_READ) || kind == HR__OP_INITIALIZE;
}

HR__INFER(read)
{
	(void)count;
	(void)attrs;
	out[0] = in[0];
	return HR_OK;
}

/* Adds the variable's name to the message. */
static hr_status name_variable(hr_status status, const hr__attrs *attrs)
{
	hr__variable variable;
	if (!status || !hr__variables_of(attrs) || hr__variable_get(attrs->variables[0], &variable)) return status;
	return hr__fail_in(status, "variable \"%s\"", hr_name_text(variable.name));
}

HR__INFER(assign)
{
	(void)count;
	hr_status status = hr__need_same_dtype(&in[0], &in[1]);
	if (!status) status = hr__need_same_dims(&in[0], &in[1]);
	out[0] = in[0];
	return name_variable(status, attrs);
}

/* The value is broadcast to the shape of the variable. */
HR__INFER(assign_onto)
{
	hr_status status = hr__need_number(&in[0]);
	if (!status) status = hr__need_same_dtype(&in[0], &in[1]);
	if (!status) status = hr__infer_binary(in, count, attrs, out);
	if (!status) status = hr__need_same_dims(&in[0], &out[0]); /* the variable is not broadcast */
	return name_variable(status, attrs);
}

/* The number of actions done: a scalar, int32. */
HR__INFER(done)
{
	(void)in;
	(void)count;
	(void)attrs;
	out[0] = (hr__type){ .dtype = HR_DTYPE_INT32 };
	return HR_OK;
}

hr_status hr__variable_check(const hr__variable *variable, const hr__graph *graph, const hr__session *session)
{
	const char *name = hr_name_text(variable->name);
	if (!graph && variable->graph) return hr__fail(HR_INVALID_ARGUMENT, "variable \"%s\" belongs to a graph; it has contents only in runs of that", name);
	if (!graph && variable->session != session->id) return hr__fail(HR_INVALID_ARGUMENT, "variable \"%s\" belongs to another session", name);
	if (graph && variable->graph && variable->graph != hr__graph_owner(graph))
		return hr__fail(HR_INVALID_ARGUMENT, "variable \"%s\" belongs to another graph", name);
	return HR_OK;
}

hr_value hr_variable_read(hr_variable variable)
{
	if (!variable.id) return HR_NO_VALUE; /* the call that failed to get the variable has set the message */
	hr__graph *graph = hr__graph_current();
	hr_value known = graph ? hr__graph_reads(graph, variable.id, false) : HR_NO_VALUE;
	hr__attrs attrs = { .variables = { variable.id } };
	return known.id ? known : hr__call_one(HR__OP_READ, NULL, 0, &attrs);
}

static hr_value write(enum hr__op_kind kind, hr_variable variable, hr_value value)
{
	hr__attrs attrs = { .variables = { variable.id } };
	if (variable.id) return hr__call_one(kind, &value, 1, &attrs);
	if (value.id) hr__value_consume(value);
	return HR_NO_VALUE;
}

hr_value hr_assign(hr_variable variable, hr_value value)
{
	return write(HR__OP_ASSIGN, variable, value);
}

hr_value hr_assign_add(hr_variable variable, hr_value value)
{
	return write(HR__OP_ASSIGN_ADD, variable, value);
}

hr_value hr_assign_sub(hr_variable variable, hr_value value)
{
	return write(HR__OP_ASSIGN_SUB, variable, value);
}

hr_value hr_global_variables_initializer(void)
{
	const hr__graph *graph = hr__graph_current();
	return hr__call_one(HR__OP_INITIALIZE, NULL, 0, &(hr__attrs){ .graph = graph ? hr__graph_owner(graph) : 0 });
}

/* ---- properties ---- */

const char *hr_variable_name(hr_variable handle)
{
	hr__variable variable;
	return hr__variable_get(handle.id, &variable) ? "" : hr_name_text(variable.name);
}

size_t hr_trainable_variables(hr_variable *out, size_t capacity)
{
	hr__session *session;
	hr__variable here = { .id = 0 };
	size_t count = 0;
	uint64_t before = 0, next; /* ids ascend in creation order */
	if (place(&here, &session)) return 0;
	do {
		next = UINT64_MAX;
		hr__lock_take(&hr__runtime_lock);
		for (uint32_t number = 0; number < table.count; number++) {
			const hr__variable *each = at(number);
			if (each->trainable && each->graph == here.graph && each->session == here.session && each->id > before && each->id < next) next = each->id;
		}
		hr__lock_release(&hr__runtime_lock);
		before = next;
		if (next == UINT64_MAX) break;
		if (out && count < capacity) out[count].id = next;
		count++;
	} while (true);
	return count;
}
