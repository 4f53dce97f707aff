/* captured.c - see captured.h. */
#include "runtime/graph/captured.h"

#include <string.h>

#include "core/base/assert.h"
#include "core/base/status.h"
#include "core/device/kernels.h"
#include "core/lms/lms.h"
#include "core/memory/allocator.h"
#include "core/os/os.h"
#include "core/trace/trace.h"
#include "runtime/engine/capturing.h"

#define CALLS_BEFORE 1u /* calls of a function that run op by op first */
#define REFUSALS_MAX 4u /* after which a function is not captured again */

/* A variable that the run reads or updates. */
struct captured_variable {
	uint64_t id;
	const hr__buffer *buffer; /* identifies the contents; without a reference */
	void *address;
	bool written;
};

struct hr__captured {
	hr__session *session;
	hr__graph *graph;     /* guarded by hr__runtime_lock, like next and busy */
	hr__captured *next;   /* list of the session */
	bool busy;            /* a thread captures or launches it */
	hr__planned memory;
	void *block;
	uint64_t block_bytes;
	hr__native_graph *native;
	hr__slot inputs[HR__CAPTURED_VALUES], outs[HR__CAPTURED_VALUES]; /* hold a reference each, as kept does */
	size_t input_count, out_count;
	hr__buffer **kept; /* constants */
	uint32_t kept_count, kept_capacity;
	struct captured_variable *variables;
	uint32_t variable_count, variable_capacity;
};

/* ---- tables ---- */

/* Room for one more element of [size]. */
static hr_status grow(void **table, uint32_t count, uint32_t *capacity, size_t size)
{
	void *block;
	if (count < *capacity) return HR_OK;
	uint32_t more = *capacity ? 2 * *capacity : 64;
	int error = hr__os()->alloc(more * size, &block);
	if (error) return hr__os_fail(error, "cannot get host memory for a CUDA graph");
	if (count) memcpy(block, *table, count * size);
	if (*table) hr__os()->free(*table, *capacity * size);
	*table = block;
	*capacity = more;
	return HR_OK;
}

static hr_status add_variable(hr__captured *captured, uint64_t id, bool written)
{
	for (uint32_t i = 0; i < captured->variable_count; i++) {
		if (captured->variables[i].id != id) continue;
		captured->variables[i].written |= written;
		return HR_OK;
	}
	void *table = captured->variables;
	hr_status status = grow(&table, captured->variable_count, &captured->variable_capacity, sizeof *captured->variables);
	captured->variables = table;
	if (!status) captured->variables[captured->variable_count++] = (struct captured_variable){ .id = id, .written = written };
	return status;
}

static hr_status find_variables(hr__captured *captured, const hr__graph *graph)
{
	hr_status status = HR_OK;
	for (uint32_t n = 0; n < graph->count; n++) {
		const struct graph_node *node = &graph->nodes[n];
		for (uint32_t i = 0; i < hr__variables_of(&node->attrs) && !status; i++)
			status = add_variable(captured, node->attrs.variables[i], hr__writes_variables(node->kind, &node->attrs));
	}
	return status;
}

/* ---- pins ---- */

/* What a launch needs in place. The buffers have a reference each. */
struct needed {
	hr_pin *pins;
	hr__buffer **buffers;
	size_t pin_count, count, capacity;
	bool is_pinned;
};

static hr_status make_needed(size_t capacity, struct needed *out)
{
	void *block;
	*out = (struct needed){ .capacity = capacity };
	int error = hr__os()->alloc(capacity * (sizeof *out->pins + sizeof *out->buffers) + 1, &block);
	if (error) return hr__os_fail(error, "cannot get host memory for a CUDA graph");
	out->pins = block;
	out->buffers = (hr__buffer **)(out->pins + capacity);
	return HR_OK;
}

/* Consumes a reference. The same buffer may be needed twice; it is written if any of both writes it. */
static void need(struct needed *needed, hr__buffer *buffer, hr_access access)
{
	HR_ASSERT(needed->count < needed->capacity);
	needed->buffers[needed->count++] = buffer;
	if (!buffer || !buffer->tensor.id) return;
	needed->pins[needed->pin_count++] = (hr_pin){ buffer->tensor, access };
}

static hr_status pin(struct needed *needed, const hr__session *session)
{
	hr_status status = needed->pin_count ? hr_tensor_pin_all(needed->pins, needed->pin_count, session->stream) : HR_OK;
	needed->is_pinned = !status;
	return status;
}

static void release_buffers(struct needed *needed)
{
	while (needed->count) hr__buffer_release(needed->buffers[--needed->count]);
}

static void end_needed(struct needed *needed, const hr__session *session)
{
	if (needed->is_pinned && needed->pin_count) (void)!hr_tensor_unpin_all(needed->pins, needed->pin_count, session->stream);
	release_buffers(needed);
	if (needed->pins) hr__os()->free(needed->pins, needed->capacity * (sizeof *needed->pins + sizeof *needed->buffers) + 1);
}

/* The contents of all variables. *usable is false if another reference to an updated one exists. */
static hr_status need_variables(hr__captured *captured, struct needed *needed, bool *usable)
{
	*usable = true;
	for (uint32_t i = 0; i < captured->variable_count; i++) {
		const struct captured_variable *variable = &captured->variables[i];
		hr__content content;
		hr_status status = hr__variable_read(captured->session, variable->id, &content);
		if (status) return status;
		need(needed, content.buffer, variable->written ? HR_WRITE : HR_READ);
		/* The session's reference, and this one. */
		if (variable->written && content.buffer && hr__buffer_refs(content.buffer) != 2) *usable = false;
	}
	return HR_OK;
}

/* Call with everything pinned. */
static hr_status note_addresses(hr__captured *captured, const struct needed *needed)
{
	hr_status status = HR_OK;
	for (uint32_t i = 0; i < captured->variable_count && !status; i++) {
		captured->variables[i].buffer = needed->buffers[i];
		status = hr__buffer_address(needed->buffers[i], 0, &captured->variables[i].address);
	}
	return status;
}

static bool are_in_place(const hr__captured *captured, const struct needed *needed)
{
	void *at;
	for (uint32_t i = 0; i < captured->variable_count; i++) {
		const struct captured_variable *variable = &captured->variables[i];
		if (variable->buffer != needed->buffers[i] || hr__buffer_address(needed->buffers[i], 0, &at) || at != variable->address) return false;
	}
	return true;
}

/* ---- ending ---- */

static void release_slots(hr__slot *slots, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		hr__buffer_release(slots[i].buffer);
		slots[i].buffer = NULL;
	}
}

static void release_all(hr__captured *captured)
{
	release_slots(captured->inputs, captured->input_count);
	release_slots(captured->outs, captured->out_count);
	while (captured->kept_count) hr__buffer_release(captured->kept[--captured->kept_count]);
}

static void free_tables(hr__captured *captured)
{
	hr__planned_end(&captured->memory);
	if (captured->kept) hr__os()->free(captured->kept, captured->kept_capacity * sizeof *captured->kept);
	if (captured->variables) hr__os()->free(captured->variables, captured->variable_capacity * sizeof *captured->variables);
	hr__os()->free(captured, sizeof *captured);
}

/* It is in no list. The driver may still run its last launch. */
static void destroy(hr__captured *captured)
{
	hr__session *session = captured->session;
	hr__last before = hr__last_get();
	if (captured->native) {
		(void)!hr_stream_synchronize(session->handle, session->stream);
		hr__native_graph_destroy(session->device, captured->native);
	}
	release_all(captured);
	if (captured->block) hr_free(session->allocator, captured->block, session->stream);
	free_tables(captured);
	hr__last_set(&before);
}

/* Call with the lock. */
static void unlink_captured(hr__captured *captured)
{
	hr__captured **link = &captured->session->captured;
	while (*link && *link != captured) link = &(*link)->next;
	if (*link) *link = captured->next;
	captured->graph->captured = NULL;
}

static void take_out(hr__captured *captured)
{
	hr__lock_take(&hr__runtime_lock);
	unlink_captured(captured);
	hr__lock_release(&hr__runtime_lock);
	destroy(captured);
}

void hr__captured_forget(hr__graph *graph)
{
	hr__lock_take(&hr__runtime_lock);
	hr__captured *captured = graph->captured;
	if (captured) unlink_captured(captured);
	hr__lock_release(&hr__runtime_lock);
	if (captured) destroy(captured);
}

/* One that no thread is launching. Call with the runtime's lock. */
static hr__captured *idle_one(const hr__session *session)
{
	hr__captured *captured = session->captured;
	while (captured && captured->busy) captured = captured->next;
	return captured;
}

void hr__captured_release(hr__session *session)
{
	for (;;) {
		hr__lock_take(&hr__runtime_lock);
		hr__captured *captured = idle_one(session);
		if (captured) unlink_captured(captured);
		hr__lock_release(&hr__runtime_lock);
		if (!captured) return;
		destroy(captured);
	}
}

bool hr__captured_begin_attempt(hr__session *session)
{
	if (!session->card) return false;
	hr__lock_take(&hr__runtime_lock);
	bool keeps = idle_one(session) != NULL;
	hr__lock_release(&hr__runtime_lock);
	if (keeps) hr__request_retry(true);
	return keeps;
}

bool hr__captured_end_attempt(hr__session *session, bool keeps, hr_status status)
{
	if (!keeps) return false;
	hr__request_retry(false);
	if (status == HR_OUT_OF_MEMORY) hr__captured_release(session);
	return status != HR_OK;
}

/* ---- capturing ---- */

/* Of one walk. */
struct capture_attempt {
	hr__captured *captured;
	hr__capturing capturing;
	bool began;
	hr_status status; /* of the beginning */
};

static hr_status keep(void *context, hr__buffer *buffer)
{
	struct capture_attempt *attempt = context;
	hr__captured *captured = attempt->captured;
	void *table = captured->kept;
	hr_status status = grow(&table, captured->kept_count, &captured->kept_capacity, sizeof *captured->kept);
	captured->kept = table;
	if (status) return status;
	hr__buffer_keep(buffer);
	captured->kept[captured->kept_count++] = buffer;
	return HR_OK;
}

/* The recording begins when the constants are made. If it does not begin, nothing may be queued. */
static void prepare(void *context, bool begins)
{
	struct capture_attempt *attempt = context;
	attempt->capturing.prepares = begins;
	if (begins || !attempt->capturing.records) return;
	attempt->status = hr__capture_begin(attempt->captured->session->device, attempt->capturing.stream);
	attempt->began = !attempt->status;
	attempt->capturing.records = attempt->began;
}

static hr_status make_inputs(hr__captured *captured, const hr_feed *feeds, size_t count)
{
	hr_status status = HR_OK;
	for (size_t i = 0; i < count && !status; i++) {
		hr__value place;
		status = hr__value_get(feeds[i].placeholder, &place);
		if (status) break;
		captured->inputs[i] = (hr__slot){ .type = place.type };
		status = hr__buffer_new(captured->session, &place.type, hr__type_bytes(&place.type), place.scope, HR__ACTIVATIONS, &captured->inputs[i].buffer);
	}
	return status;
}

static hr_status walk_once(struct capture_attempt *attempt, const hr_feed *feeds, const hr_value *fetches)
{
	hr__captured *captured = attempt->captured;
	hr__graph_walker walk = { .feeds = feeds, .inputs = captured->inputs, .feed_count = captured->input_count, .fetches = fetches,
		              .fetch_count = captured->out_count, .outs = captured->outs, .prepare = prepare, .keep = keep, .context = attempt };
	hr__capturing_set(&attempt->capturing);
	hr_status status = make_inputs(captured, feeds, captured->input_count);
	if (!status) status = hr__graph_walk(captured->session, captured->graph, &walk);
	hr__capturing_set(NULL);
	return status ? status : attempt->status;
}

/* Outputs are copied from the graph's own memory. */
static hr_status check_outs(const hr__captured *captured)
{
	for (size_t i = 0; i < captured->out_count; i++) {
		const hr__buffer *buffer = captured->outs[i].buffer;
		if (buffer && buffer->planned != &captured->memory) return hr__capturing_refuses("an output is the contents of a variable");
	}
	return HR_OK;
}

/* Finds how much memory the run needs. */
static hr_status plan(hr__captured *captured, const hr_feed *feeds, const hr_value *fetches)
{
	struct capture_attempt attempt = { .captured = captured, .capturing = { .session = captured->session, .memory = &captured->memory } };
	captured->memory = (hr__planned){ .base = (char *)(uintptr_t)4096, .limit = UINT64_MAX / 2 }; /* an address that is not used */
	hr_status status = walk_once(&attempt, feeds, fetches);
	if (!status) status = check_outs(captured);
	release_all(captured);
	captured->block_bytes = captured->memory.end + 256;
	hr__planned_end(&captured->memory);
	return status;
}

static hr_status record(hr__captured *captured, const hr_feed *feeds, const hr_value *fetches)
{
	hr__session *session = captured->session;
	struct capture_attempt attempt = { .captured = captured, .capturing = { .session = session, .memory = &captured->memory, .records = true } };
	captured->memory = (hr__planned){ .base = captured->block, .limit = captured->block_bytes };
	hr_status status = hr_stream_create(session->handle, &attempt.capturing.stream);
	if (status) return status;
	status = walk_once(&attempt, feeds, fetches);
	hr_status ended = attempt.began ? hr__capture_end(session->device, attempt.capturing.stream, &captured->native) : HR_OK;
	if (!status) status = ended;
	if (!status) status = check_outs(captured);
	hr_status left = hr_stream_destroy(session->handle, attempt.capturing.stream);
	return status ? status : left;
}

static hr_status take_block(hr__captured *captured)
{
	hr_request request = HR_REQUEST(captured->block_bytes);
	request.stream = captured->session->stream;
	request.tag = hr_name_intern("activations");
	hr__request_retry(true); /* nothing is refused: without the block the function runs op by op */
	hr_status status = hr_alloc(captured->session->allocator, &request, &captured->block);
	hr__request_retry(false);
	return status;
}

/* Variables stay pinned. Their references are released: an update is in place only if there is no other. */
static hr_status capture_pinned(hr__captured *captured, const hr_feed *feeds, const hr_value *fetches)
{
	hr_status status = plan(captured, feeds, fetches);
	if (!status) status = take_block(captured);
	return status ? status : record(captured, feeds, fetches);
}

static hr_status capture_into(hr__captured *captured, const hr_feed *feeds, const hr_value *fetches)
{
	struct needed needed;
	bool usable = false;
	hr_status status = find_variables(captured, captured->graph);
	if (!status) status = make_needed(captured->variable_count, &needed);
	if (status) return status;
	status = need_variables(captured, &needed, &usable);
	if (!status && !usable) status = hr__capturing_refuses("there is another reference to the contents of a variable");
	if (!status) status = pin(&needed, captured->session);
	if (!status) status = note_addresses(captured, &needed);
	release_buffers(&needed);
	if (!status) status = capture_pinned(captured, feeds, fetches);
	end_needed(&needed, captured->session);
	return status;
}

/* Call in the session's turn. NULL: it cannot be captured. */
static hr__captured *capture(hr__session *session, hr__graph *graph, const hr_feed *feeds, size_t feed_count, const hr_value *fetches, size_t fetch_count)
{
	void *block;
	if (hr__os()->alloc(sizeof(hr__captured), &block)) return NULL;
	hr__captured *captured = block;
	*captured = (hr__captured){ .session = session, .graph = graph, .busy = true, .input_count = feed_count, .out_count = fetch_count };
	if (capture_into(captured, feeds, fetches)) {
		destroy(captured);
		return NULL;
	}
	hr__lock_take(&hr__runtime_lock);
	captured->next = session->captured;
	session->captured = captured;
	graph->captured = captured;
	hr__lock_release(&hr__runtime_lock);
	return captured;
}

/* ---- launching ---- */

struct graph_copy {
	void *to;
	const void *from;
	uint64_t bytes;
};

struct captured_launch {
	hr__native_graph *graph;
	struct graph_copy in[HR__CAPTURED_VALUES], out[HR__CAPTURED_VALUES];
	size_t in_count, out_count;
	bool launched; /* variables are updated */
};

static hr_status queue_launch(const hr__native *native, void *argument)
{
	struct captured_launch *launch = argument;
	hr_status status = HR_OK;
	for (size_t i = 0; i < launch->in_count && !status; i++) status = hr__native_copy(native, launch->in[i].to, launch->in[i].from, launch->in[i].bytes);
	if (!status) status = hr__native_graph_launch(native, launch->graph);
	launch->launched = !status;
	for (size_t i = 0; i < launch->out_count && !status; i++) status = hr__native_copy(native, launch->out[i].to, launch->out[i].from, launch->out[i].bytes);
	return status;
}

static hr_status copy_between(struct graph_copy *copy, const hr__slot *to, const hr__slot *from)
{
	void *source = NULL;
	copy->bytes = hr__type_bytes(&to->type);
	hr_status status = hr__buffer_address(to->buffer, to->offset, &copy->to);
	if (!status) status = hr__buffer_address(from->buffer, from->offset, &source);
	copy->from = source;
	return status;
}

/* Values of the call, after the variables in [needed]. */
static hr_status need_values(const hr__captured *captured, const hr_feed *feeds, struct needed *needed, hr__slot *ins, hr__slot *outs)
{
	hr_status status = HR_OK;
	for (size_t i = 0; i < captured->input_count && !status; i++) {
		hr__value value;
		status = hr__value_hold(feeds[i].value, &value);
		if (status) break;
		ins[i] = (hr__slot){ .type = value.type, .buffer = value.buffer, .offset = value.offset };
		need(needed, value.buffer, HR_READ);
		if (value.session != captured->session) status = hr__capturing_refuses("an input belongs to another session");
	}
	for (size_t i = 0; i < captured->out_count && !status; i++) {
		outs[i] = (hr__slot){ .type = captured->outs[i].type };
		status = hr__buffer_new(captured->session, &outs[i].type, hr__type_bytes(&outs[i].type), HR_NAME_NONE, HR__ACTIVATIONS, &outs[i].buffer);
		if (!status) need(needed, outs[i].buffer, HR_OVERWRITE);
	}
	return status;
}

static hr_status hand_out(hr__session *session, const hr_value *fetches, const hr__slot *slots, size_t count, hr_value *outs)
{
	for (size_t i = 0; i < count; i++) {
		hr__value value;
		hr_status status = hr__value_get(fetches[i], &value);
		if (!status) hr__buffer_keep(slots[i].buffer);
		if (!status)
			outs[i] = hr__value_new(&(hr__value){ .type = slots[i].type, .session = session, .buffer = slots[i].buffer, .op = value.op, .scope = value.scope });
		if (outs[i].id) continue;
		while (i-- > 0) hr__value_consume(outs[i]), outs[i] = HR_NO_VALUE;
		return status ? status : HR_NO_HOST_MEMORY;
	}
	return HR_OK;
}

/* Updated contents have new serials. */
static hr_status number_updates(hr__captured *captured, const struct needed *needed)
{
	hr_status status = HR_OK;
	for (uint32_t i = 0; i < captured->variable_count && !status; i++)
		if (captured->variables[i].written) status = hr__variable_write(captured->session, captured->variables[i].id, needed->buffers[i]);
	return status;
}

/* With everything pinned. *launched: the run has taken place, also if the call fails. */
static hr_status launch_pinned(hr__captured *captured, const struct needed *needed, const hr__slot *ins, const hr__slot *outs, bool *launched)
{
	struct captured_launch launch = { .graph = captured->native, .in_count = captured->input_count, .out_count = captured->out_count };
	hr_status status = HR_OK;
	for (size_t i = 0; i < launch.in_count && !status; i++) status = copy_between(&launch.in[i], &captured->inputs[i], &ins[i]);
	for (size_t i = 0; i < launch.out_count && !status; i++) status = copy_between(&launch.out[i], &outs[i], &captured->outs[i]);
	if (!status) status = hr__device_native(captured->session->device, captured->session->stream, queue_launch, &launch);
	*launched = launch.launched;
	__atomic_store_n(&captured->session->may_have_faults, true, __ATOMIC_RELAXED);
	hr_status numbered = launch.launched ? number_updates(captured, needed) : HR_OK;
	return status ? status : numbered;
}

enum usability { USABLE, NOT_NOW, NEVER_AGAIN };

/* NOT_NOW and NEVER_AGAIN: nothing was launched. */
static enum usability launch(hr__captured *captured, const hr_feed *feeds, const hr_value *fetches, hr_value *results, hr_status *status)
{
	struct needed needed;
	hr__slot ins[HR__CAPTURED_VALUES], outs[HR__CAPTURED_VALUES];
	bool usable, launched = false;
	*status = make_needed(captured->variable_count + 2 * HR__CAPTURED_VALUES, &needed);
	if (*status) return NOT_NOW;
	*status = need_variables(captured, &needed, &usable);
	if (!*status && usable) *status = need_values(captured, feeds, &needed, ins, outs);
	if (!*status && usable) *status = pin(&needed, captured->session);
	bool in_place = !*status && usable && are_in_place(captured, &needed);
	if (in_place) *status = launch_pinned(captured, &needed, ins, outs, &launched);
	if (launched && !*status) *status = hand_out(captured->session, fetches, outs, captured->out_count, results);
	end_needed(&needed, captured->session);
	if (launched) return USABLE;
	return usable && !in_place ? NEVER_AGAIN : *status ? NEVER_AGAIN : NOT_NOW;
}

/* ---- runs ---- */

static bool may_capture(const hr__session *session, size_t feed_count, size_t fetch_count)
{
	return session->card && !session->has_recipes && !hr__lms_evicts(session->allocator) && !hr__trace_is_on() && feed_count <= HR__CAPTURED_VALUES &&
	       fetch_count <= HR__CAPTURED_VALUES;
}

/* While it is busy, hr__captured_release leaves it alone. */
static hr__captured *take_busy(hr__graph *graph)
{
	hr__lock_take(&hr__runtime_lock);
	hr__captured *captured = graph->captured;
	if (captured) captured->busy = true;
	hr__lock_release(&hr__runtime_lock);
	return captured;
}

static void end_busy(hr__captured *captured)
{
	hr__lock_take(&hr__runtime_lock);
	captured->busy = false;
	hr__lock_release(&hr__runtime_lock);
}

static hr_status run_in_turn(hr__session *session, hr__graph *graph, const hr_feed *feeds, size_t feed_count, const hr_value *fetches, size_t fetch_count,
                             hr_value *outs, bool *ran)
{
	hr_status status = HR_OK;
	hr__captured *captured = take_busy(graph);
	if (!captured && graph->calls++ >= CALLS_BEFORE && graph->refusals < REFUSALS_MAX) {
		captured = capture(session, graph, feeds, feed_count, fetches, fetch_count);
		graph->refusals += !captured;
	}
	if (!captured) return HR_OK;
	enum usability usability = launch(captured, feeds, fetches, outs, &status);
	*ran = usability == USABLE;
	if (usability == NEVER_AGAIN) {
		graph->refusals++;
		take_out(captured);
	} else {
		end_busy(captured);
	}
	return *ran ? status : HR_OK;
}

hr_status hr__captured_run(hr__session *session, hr__graph *graph, const hr_feed *feeds, size_t feed_count, const hr_value *fetches, size_t fetch_count,
                           hr_value *outs, bool *ran)
{
	*ran = false;
	if (!may_capture(session, feed_count, fetch_count)) return HR_OK;
	hr__last before = hr__last_get();
	hr__os()->monitor_enter(session->turn);
	hr_status status = run_in_turn(session, graph, feeds, feed_count, fetches, fetch_count, outs, ran);
	hr__os()->monitor_leave(session->turn);
	if (!status) hr__last_set(&before); /* of what could not be captured */
	return status;
}
