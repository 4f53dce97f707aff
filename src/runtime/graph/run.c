/* run.c - running a graph. A run marks the nodes that its fetches need, counts uses of each result, and executes nodes in order. At
 * the last use of a result its memory is freed or reused by the output (execute.c). */
#include "core/base/status.h"
#include "core/base/text/text.h"
#include "core/lms/lms.h"
#include "core/memory/allocator.h"
#include "core/os/os.h"
#include "runtime/graph/captured.h"
#include "runtime/graph/run.h"

/* ---- preparation ---- */

/* "feed 0, for placeholder "tower/x"", or "feed 0, for the placeholder in scope "tower"" */
static hr_status wrong_feed(const struct graph_run *run, const hr__value *place, size_t number)
{
	const struct graph_node *node = &run->graph->nodes[place->node];
	const char *text = hr_name_text(node->attrs.name ? node->attrs.name : node->scope);
	const char *before = node->attrs.name ? ", for placeholder \"" : ", for the placeholder in scope \"";
	return hr__fail_in(HR_INVALID_ARGUMENT, "feed %zu%s%.200s%s", number, *text ? before : "", text, *text ? "\"" : "");
}

static hr_status check_feed(const struct graph_run *run, const hr__value *place, const hr__value *value, size_t number)
{
	char want[HR__DIMS_TEXT], got[HR__DIMS_TEXT];
	if (place->graph != run->graph || run->graph->nodes[place->node].kind != HR__OP_PLACEHOLDER)
		return hr__fail(HR_INVALID_ARGUMENT, "feed %zu is not for a placeholder of the graph", number);
	if (value->session != run->session) hr__fail(HR_INVALID_ARGUMENT, "the value belongs to no session, or to another one");
	else if (run->fed[place->node].type.dtype) hr__fail(HR_INVALID_ARGUMENT, "its placeholder is fed already");
	else if (value->type.dtype != place->type.dtype || !hr__dims_equal(&value->type.dims, &place->type.dims))
		hr__fail(HR_INVALID_ARGUMENT, "the placeholder is %s %s, and the value %s %s", hr_dtype_text(place->type.dtype),
		         hr__dims_text(&place->type.dims, want, sizeof want), hr_dtype_text(value->type.dtype), hr__dims_text(&value->type.dims, got, sizeof got));
	else return HR_OK;
	return wrong_feed(run, place, number);
}

static hr_status take_feed(struct graph_run *run, const hr_feed *feed, size_t number)
{
	hr__value place, value;
	hr_status status = hr__value_get(feed->placeholder, &place);
	if (!status) status = hr__value_hold(feed->value, &value);
	if (status) return hr__fail_in(status, "feed %zu", number);
	status = check_feed(run, &place, &value, number);
	if (status) hr__buffer_release(value.buffer);
	else run->fed[place.node] = (hr__slot){ .type = value.type, .buffer = value.buffer, .offset = value.offset };
	return status;
}

/* Marks the nodes that the fetches need, and counts the uses of their results. */
static hr_status mark(struct graph_run *run, const hr_value *fetches, size_t count, bool effects)
{
	for (size_t i = 0; i < count; i++) {
		hr__value value;
		hr_status status = hr__value_get(fetches[i], &value);
		if (status) return hr__fail_in(status, "fetch %zu", i);
		if (value.graph != run->graph) return hr__fail(HR_INVALID_ARGUMENT, "fetch %zu does not belong to a graph, or belongs to another one than the first", i);
		run->needed[value.node] = true;
		run->results[value.node][value.output].uses++;
	}
	for (uint32_t n = run->graph->count; n-- > 0;) {
		const struct graph_node *node = &run->graph->nodes[n];
		run->needed[n] |= effects && hr__writes_variables(node->kind, &node->attrs);
		for (uint32_t i = 0; i < node->in_count && run->needed[n]; i++) {
			run->needed[node->ins[i].node] = true;
			run->results[node->ins[i].node][node->ins[i].output].uses += !hr__ops[node->kind].order_only;
		}
	}
	hr__chains_find(run);
	return HR_OK;
}

/* ---- nodes ---- */

/* Counts one use; the last one releases the reference. */
static void use(struct result *result)
{
	if (--result->uses) return;
	hr__buffer_release(result->buffer);
	result->buffer = NULL;
}

/* Consumes the reference of the output. */
static void take_result(struct result *result, const hr__slot *out)
{
	*result = (struct result){ .buffer = out->buffer, .offset = out->offset, .uses = result->uses };
	if (result->uses) return;
	hr__buffer_release(result->buffer);
	result->buffer = NULL;
}

static hr_status give_feed(struct graph_run *run, uint32_t n, hr__slot *out)
{
	const struct graph_node *node = &run->graph->nodes[n];
	char shape[HR__DIMS_TEXT];
	const char *name = hr_name_text(node->attrs.name);
	if (!run->fed[n].type.dtype)
		return hr__fail(HR_INVALID_ARGUMENT, "the placeholder%s%.200s%s of %s %s is needed, but not fed", *name ? " \"" : "", name, *name ? "\"" : "",
		                hr_dtype_text(node->types[0].dtype), hr__dims_text(&node->types[0].dims, shape, sizeof shape));
	*out = run->fed[n];
	run->fed[n].buffer = NULL; /* the reference moves to the result */
	return HR_OK;
}

/* The next entry of the run's metadata; NULL = not requested. */
static hr_op_metadata *next_note(const struct graph_run *run, enum hr__op_kind kind, hr_name scope)
{
	if (!run->traced || kind == HR__OP_PLACEHOLDER) return NULL;
	hr_op_metadata *note = &run->metadata->ops[run->metadata->op_count++];
	*note = (hr_op_metadata){ .op = hr_name_intern(hr__ops[kind].name), .scope = scope };
	return note;
}

static hr_status execute(struct graph_run *run, const struct graph_node *node, hr__slot *outs)
{
	const hr__op *op = &hr__ops[node->kind];
	hr__slot ins[HR__OP_INPUTS];
	hr__task task = { .session = run->session, .kind = node->kind, .attrs = &node->attrs, .scope = node->scope, .role = node->role,
		              .note = next_note(run, node->kind, node->scope), .begin_ns = run->begin_ns };
	for (uint32_t i = 0; i < node->in_count; i++) {
		const struct result *in = &run->results[node->ins[i].node][node->ins[i].output];
		ins[i] = (hr__slot){ run->graph->nodes[node->ins[i].node].types[node->ins[i].output], in->buffer, in->offset, in->uses == 1, 1 };
	}
	for (uint32_t i = 0; i < op->out_count; i++) outs[i] = (hr__slot){ .type = node->types[i] };
	return hr__execute(&task, ins, node->in_count, outs);
}

/* The chain whose last node is n, as one op. Its inputs are not consumed. */
static hr_status execute_chain(struct graph_run *run, uint32_t n, const struct graph_chain *chain, hr__slot *out)
{
	const struct graph_node *node = &run->graph->nodes[n];
	hr__slot ins[HR__OP_INPUTS];
	hr__attrs attrs = { .data = &chain->chain };
	hr__task task = { .session = run->session, .kind = HR__OP_CHAIN, .attrs = &attrs, .scope = node->scope, .role = node->role,
		              .note = next_note(run, HR__OP_CHAIN, node->scope), .begin_ns = run->begin_ns };
	for (uint32_t i = 0; i < chain->chain.inputs; i++) {
		struct input from = chain->ins[i].from;
		const struct result *in = &run->results[from.node][from.output];
		const hr__type *type = &run->graph->nodes[from.node].types[from.output];
		/* What is repeated is read after its first element is overwritten. */
		bool may_take = in->uses == chain->ins[i].uses && hr__dims_equal(&type->dims, &node->types[0].dims);
		ins[i] = (hr__slot){ *type, in->buffer, in->offset, may_take, 1 };
	}
	*out = (hr__slot){ .type = node->types[0] };
	hr__request_retry(true); /* nothing is refused: without memory the ops run one by one */
	hr_status status = hr__execute(&task, ins, chain->chain.inputs, out);
	hr__request_retry(false);
	if (status && task.note) run->metadata->op_count--;
	return status;
}

static hr_status run_node(struct graph_run *run, uint32_t n);

/* The chain whose last node is n, op by op. Nodes between its own have run. */
static hr_status run_steps(struct graph_run *run, uint32_t n)
{
	hr_status status = HR_OK;
	for (uint32_t i = run->chains[n] - 1; i <= n && !status; i++) {
		if (!run->chains[i]) continue;
		run->chains[i] = 0;
		status = run_node(run, i);
	}
	return status;
}

/* Runs the chain whose last node is n. All its inputs are in memory together with its result, so it may need more than its ops. */
static hr_status run_chain(struct graph_run *run, uint32_t n)
{
	struct graph_chain chain;
	hr__slot out;
	hr__last before = hr__last_get();
	hr__chain_of(run, n, &chain);
	hr_status status = execute_chain(run, n, &chain, &out);
	if (status == HR_OUT_OF_MEMORY) {
		hr__last_set(&before);
		return run_steps(run, n);
	}
	for (uint32_t i = 0; i < chain.chain.inputs; i++)
		for (uint32_t k = 0; k < chain.ins[i].uses; k++) use(&run->results[chain.ins[i].from.node][chain.ins[i].from.output]);
	if (status) return hr__name_op(status, hr__ops[HR__OP_CHAIN].name, run->graph->nodes[n].scope);
	take_result(&run->results[n][0], &out);
	return HR_OK;
}

static hr_status run_node(struct graph_run *run, uint32_t n)
{
	if (run->chains[n]) return run->chains[n] == HR__IN_CHAIN ? HR_OK : run_chain(run, n);
	const struct graph_node *node = &run->graph->nodes[n];
	const hr__op *op = &hr__ops[node->kind];
	hr__slot outs[HR__OP_OUTPUTS];
	hr_status status = node->kind == HR__OP_PLACEHOLDER ? give_feed(run, n, outs) : execute(run, node, outs);
	for (uint32_t i = 0; i < node->in_count && !op->order_only; i++) use(&run->results[node->ins[i].node][node->ins[i].output]);
	for (uint32_t i = 0; i < op->out_count && !status; i++) take_result(&run->results[n][i], &outs[i]);
	return status ? hr__name_op(status, op->name, node->scope) : HR_OK;
}

/* ---- results ---- */

static hr_status hand_out(struct graph_run *run, const hr_value *fetches, size_t count, hr_value *outs)
{
	for (size_t i = 0; i < count; i++) {
		hr__value value;
		hr_status status = hr__value_get(fetches[i], &value);
		struct result *result = status ? NULL : &run->results[value.node][value.output];
		if (result) {
			hr__buffer_keep(result->buffer);
			outs[i] = hr__value_new(&(hr__value){ .type = value.type, .session = run->session, .buffer = result->buffer,
			                                      .offset = result->offset, .op = value.op, .scope = value.scope });
		}
		if (!outs[i].id) {
			while (i-- > 0) hr__value_consume(outs[i]), outs[i] = HR_NO_VALUE;
			return status ? status : HR_NO_HOST_MEMORY;
		}
	}
	return HR_OK;
}

static hr_status run_all(struct graph_run *run, const hr_feed *feeds, size_t feed_count, const hr_value *fetches,
                         size_t fetch_count, hr_value *outs, bool effects)
{
	hr_status status = HR_OK;
	for (size_t i = 0; i < feed_count && !status; i++) status = take_feed(run, &feeds[i], i);
	if (!status) status = mark(run, fetches, fetch_count, effects);
	/* Temporary feeds are consumed here, so that the run has their only reference and their memory is freed or reused at the last
	 * use. */
	for (size_t i = 0; i < feed_count; i++) hr__value_consume(feeds[i].value);
	for (uint32_t n = 0; n < run->graph->count && !status; n++)
		if (run->needed[n]) status = run_node(run, n);
	return status ? status : hand_out(run, fetches, fetch_count, outs);
}

/* ---- for CUDA graphs ---- */

/* Contents come from the host. */
static bool is_source(const struct graph_node *node)
{
	return node->kind == HR__OP_CONSTANT;
}

static hr_status walk_node(struct graph_run *run, uint32_t n, const hr__graph_walker *walk)
{
	hr_status status = run_node(run, n);
	hr__buffer *made = run->results[n][0].buffer;
	return !status && is_source(&run->graph->nodes[n]) ? walk->keep(walk->context, made) : status;
}

static hr_status walk_nodes(struct graph_run *run, const hr__graph_walker *walk, bool sources)
{
	hr_status status = HR_OK;
	for (uint32_t n = 0; n < run->graph->count && !status; n++)
		if (run->needed[n] && is_source(&run->graph->nodes[n]) == sources) status = walk_node(run, n, walk);
	return status;
}

static hr_status take_results(struct graph_run *run, const hr__graph_walker *walk)
{
	for (size_t i = 0; i < walk->fetch_count; i++) {
		hr__value value;
		hr_status status = hr__value_get(walk->fetches[i], &value);
		if (status) return status;
		const struct result *result = &run->results[value.node][value.output];
		hr__buffer_keep(result->buffer);
		walk->outs[i] = (hr__slot){ .type = value.type, .buffer = result->buffer, .offset = result->offset };
	}
	return HR_OK;
}

static hr_status walk_all(struct graph_run *run, const hr__graph_walker *walk)
{
	hr_status status = HR_OK;
	for (size_t i = 0; i < walk->feed_count && !status; i++) {
		hr__value place;
		status = hr__value_get(walk->feeds[i].placeholder, &place);
		if (status) break;
		hr__buffer_keep(walk->inputs[i].buffer);
		run->fed[place.node] = walk->inputs[i];
	}
	if (!status) status = mark(run, walk->fetches, walk->fetch_count, true);
	walk->prepare(walk->context, true);
	if (!status) status = walk_nodes(run, walk, true);
	walk->prepare(walk->context, false);
	if (!status) status = walk_nodes(run, walk, false);
	return status ? status : take_results(run, walk);
}

/* ---- tables of a run ---- */

static void release_results(struct graph_run *run)
{
	for (uint32_t n = 0; n < run->graph->count; n++) {
		hr__buffer_release(run->fed[n].buffer);
		for (uint32_t i = 0; i < HR__OP_OUTPUTS; i++) hr__buffer_release(run->results[n][i].buffer);
	}
}

/* *bytes gets the size of the tables at run->results. */
static hr_status make_tables(struct graph_run *run, uint64_t *bytes)
{
	void *block;
	uint32_t count = run->graph->count;
	*bytes = count * (sizeof *run->results + sizeof *run->fed + sizeof *run->chains + sizeof *run->needed) + 1;
	int error = hr__os()->alloc(*bytes, &block);
	if (error) return hr__os_fail(error, "cannot get host memory to run a graph of %u node%s", count, hr__plural(count));
	run->results = block;
	run->fed = (hr__slot *)(run->results + count);
	run->chains = (uint32_t *)(run->fed + count);
	run->needed = (bool *)(run->chains + count);
	return HR_OK;
}

static hr_status run_graph(struct graph_run *run, const hr_feed *feeds, size_t feed_count, const hr_value *fetches,
                           size_t fetch_count, hr_value *outs, bool effects)
{
	uint64_t bytes;
	hr_status status = make_tables(run, &bytes);
	if (status) return status;
	status = run_all(run, feeds, feed_count, fetches, fetch_count, outs, effects);
	release_results(run);
	hr__os()->free(run->results, bytes);
	return status;
}

hr_status hr__graph_walk(hr__session *session, hr__graph *graph, const hr__graph_walker *walk)
{
	struct graph_run run = { .session = session, .graph = graph };
	uint64_t bytes;
	hr_status status = make_tables(&run, &bytes);
	if (status) return status;
	status = walk_all(&run, walk);
	release_results(&run);
	hr__os()->free(run.results, bytes);
	return status;
}

/* ---- public calls ---- */

/* Begins a step, unless the program has already begun one. */
static bool begin_step(const hr__session *session)
{
	return session->has_tensors && !hr__lms_in_step(session->allocator) && hr_step_begin(session->allocator) == HR_OK;
}

static hr_status run_with(struct graph_run *run, const hr_feed *feeds, size_t feed_count, const hr_value *fetches,
                          size_t fetch_count, hr_value *outs, bool effects, const hr_run_options *options)
{
	hr_run_metadata *metadata = run->metadata;
	hr_status status = hr__run_begin(run->session, options, metadata, run->traced ? run->graph->count : 0, &run->begin_ns);
	if (status) return status;
	bool step = options->is_step && begin_step(run->session);
	status = run_graph(run, feeds, feed_count, fetches, fetch_count, outs, effects);
	if (step) hr_step_end(run->session->allocator);
	hr_status waited = run->traced ? hr_stream_synchronize(run->session->handle, run->session->stream) : HR_OK;
	if (!status) status = waited;
	hr__run_end(run->session, options, metadata, run->begin_ns, status);
	return status;
}

/* Runs a graph after hr__graph_begin_run, and ends the run. */
static hr_status run_begun(hr__session *session, hr__graph *graph, const hr_feed *feeds, size_t feed_count, const hr_value *fetches,
                           size_t fetch_count, hr_value *outs, bool effects, const hr_run_options *options, hr_run_metadata *metadata)
{
	struct graph_run run = {
		.session = session, .graph = graph, .metadata = metadata, .traced = options->trace == HR_RUN_TRACE_OPS
	};
	hr_status status = run_with(&run, feeds, feed_count, fetches, fetch_count, outs, effects, options);
	hr__graph_end_run(graph);
	return status;
}

hr_status hr__graph_run(hr__session *session, hr__graph *graph, const hr_feed *feeds, size_t feed_count, const hr_value *fetches, size_t fetch_count,
                        hr_value *outs, const hr_run_options *options, hr_run_metadata *metadata)
{
	return run_begun(session, graph, feeds, feed_count, fetches, fetch_count, outs, true, options, metadata);
}

static hr_status check_call(const hr_feed *feeds, size_t feed_count, const hr_value *fetches, size_t fetch_count, const hr_value *outs)
{
	if (!fetch_count || !fetches || !outs || (feed_count && !feeds))
		return hr__fail(HR_INVALID_ARGUMENT, "hr_session_run: fetches is empty, or a pointer is NULL");
	return HR_OK;
}

hr_status hr_session_run(hr_session handle, const hr_feed *feeds, size_t feed_count, const hr_value *fetches, size_t fetch_count, hr_value *outs,
                         const hr_run_options *options, hr_run_metadata *metadata)
{
	hr_status status;
	hr__value first = { .used = false };
	hr_run_options whole;
	hr__graph *graph = NULL;
	hr__session *session = hr__session_of(handle, &status);
	for (size_t i = 0; i < fetch_count && outs; i++) outs[i] = HR_NO_VALUE;
	if (!status) status = check_call(feeds, feed_count, fetches, fetch_count, outs);
	if (!status) status = hr__run_check("hr_session_run", options, metadata, &whole);
	if (!status) status = hr__value_get(fetches[0], &first);
	if (!status && !first.graph) status = hr__fail(HR_INVALID_ARGUMENT, "fetch 0 does not belong to a graph");
	if (!status) status = hr__graph_begin_run(first.graph, (hr_graph){ 0 }, &graph);
	if (!status) status = run_begun(session, graph, feeds, feed_count, fetches, fetch_count, outs, false, &whole, metadata);
	for (size_t i = 0; i < feed_count && feeds; i++) hr__value_consume(feeds[i].value);
	return status;
}
