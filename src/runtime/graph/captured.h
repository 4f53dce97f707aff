/* captured.h - the run of a function as a CUDA graph: captured once, then launched with one call of the driver.
 *
 *     1st call    runs op by op, which compiles kernels and makes variables
 *     2nd call    plans the memory of the run, gets it as one block, captures the kernels in it, and launches them
 *     later ones  copy the inputs in, launch, copy the outputs out
 *
 * A function is captured only where nothing moves: its session is on a card whose allocator does not evict, and the card computes all of its ops.
 * Constants are made once. A launch needs each variable at the address that it was captured with, and no other reference to those that it updates: else
 * the function runs op by op, and is captured again by the next call. What fails while it is captured has changed nothing, and the function runs op by op.
 *
 * The memory stays allocated between launches. It is given back when a request of the session would fail. */
#ifndef HR_RUNTIME_CAPTURED_H
#define HR_RUNTIME_CAPTURED_H

#include "runtime/engine/engine.h"
#include "runtime/graph/graph.h"

typedef struct hr__captured hr__captured;

#define HR__CAPTURED_VALUES 16u /* inputs, and outputs */

/* Runs a graph of a function by its CUDA graph. *ran is false if it has none, or it cannot be used now: the caller runs the graph. Call between
 * hr__graph_begin_run and hr__graph_end_run. */
hr_status hr__captured_run(hr__session *session, hr__graph *graph, const hr_feed *feeds, size_t feed_count, const hr_value *fetches, size_t fetch_count,
                           hr_value *outs, bool *ran);

/* Destroys a graph's CUDA graph, if it has one. No thread may be running the graph. */
void hr__captured_forget(hr__graph *graph);
/* Destroys those of a session that no thread is launching. */
void hr__captured_release(hr__session *session);

/* Around a request of memory. hr__captured_begin_attempt: whether CUDA graphs of the session keep memory; then a refusal is not reported yet.
 * hr__captured_end_attempt: whether the request must be made again, because it failed with [status] while they did; they have given their
 * memory back. */
bool hr__captured_begin_attempt(hr__session *session);
bool hr__captured_end_attempt(hr__session *session, bool keeps, hr_status status);

/* ---- for captured.c (run.c) ---- */

/* Runs the nodes that the fetches and effects need, with inputs of the caller. [outs] gets a reference to each result. Nodes without inputs
 * whose contents come from the host run first, between prepare(true) and prepare(false), and the caller gets a reference to each result: keep. */
typedef struct hr__graph_walker {
	const hr_feed *feeds; /* placeholders; values are not used */
	const hr__slot *inputs;
	size_t feed_count;
	const hr_value *fetches;
	size_t fetch_count;
	hr__slot *outs;
	void (*prepare)(void *context, bool begins);
	hr_status (*keep)(void *context, hr__buffer *buffer);
	void *context;
} hr__graph_walker;

hr_status hr__graph_walk(hr__session *session, hr__graph *graph, const hr__graph_walker *walk);

#endif
