/* variables.c - variables of a graph, their scopes, and when they have memory.
 *
 * Declaring a variable allocates nothing. Its contents belong to a session: they are allocated when the initializer runs and freed
 * when the session is closed. */
#include <headroom.h>
#include <headroom_runtime.h>
#include <stdio.h>

static int fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, hr_last_message());
	return 1;
}

static void print_memory(const char *when)
{
	printf("%-34s %6lld bytes in use\n", when, (long long)hr_get_bytes_in_use(0));
}

/* "<scope>/var1", 100 by 100. */
static hr_variable get_var1(const char *scope, hr_reuse reuse)
{
	hr_variable variable = { 0 };
	if (hr_variable_scope_push(scope, reuse) != HR_OK) return variable;
	variable = hr_get_variable("var1", HR_DTYPE_FLOAT32, HR_DIMS(100, 100), HR_UNIFORM(-0.1, 0.1, 1));
	hr_variable_scope_pop();
	return variable;
}

int main(void)
{
	hr_graph graph;
	hr_session session;
	hr_session_options options;
	float sum;
	hr_session_options_init(&options);
	options.device = "GPU:0";
	if (hr_graph_create(&graph) != HR_OK || hr_session_create(&options, &session) != HR_OK) return fail("a session");

	if (hr_graph_enter(graph) != HR_OK) return fail("the graph");
	hr_variable var1 = get_var1("scope1", HR_REUSE_AS_AROUND);
	hr_variable var2 = get_var1("scope2", HR_REUSE_AS_AROUND);
	if (!var1.id || !var2.id) return fail("variables");
	printf("declared \"%s\" and \"%s\"\n", hr_variable_name(var1), hr_variable_name(var2));

	/* The same name again is an error, unless the scope allows reuse. */
	if (get_var1("scope1", HR_REUSE_AS_AROUND).id || hr_last_status() != HR_ALREADY_EXISTS)
		return fail("a collision was not found");
	printf("a collision: %s\n", hr_last_message());
	if (get_var1("scope1", HR_REUSE_ONLY).id != var1.id) return fail("reuse");
	printf("reused: \"%s\" is the same variable\n", hr_variable_name(var1));

	hr_value initializer = hr_global_variables_initializer();
	hr_value total = hr_reduce_sum(hr_add(hr_variable_read(var1), hr_variable_read(var2)), HR_ALL_AXES, false);
	hr_graph_leave();
	if (!initializer.id || !total.id) return fail("the graph");

	hr_value out;
	print_memory("before the initializer has run:");
	if (hr_session_run(session, NULL, 0, &initializer, 1, &out, NULL, NULL) != HR_OK) return fail("the initializer");
	hr_value_release(out);
	print_memory("after it:");
	if (hr_session_run(session, NULL, 0, &total, 1, &out, NULL, NULL) != HR_OK) return fail("the sum");
	if (hr_value_fetch(out, &sum, sizeof sum) != HR_OK) return fail("the sum");
	printf("sum of both: %.4f\n", (double)sum);

	/* Closing frees the variables. Values that were kept and not released are freed too, but reported as a leak. */
	if (hr_session_run(session, NULL, 0, &total, 1, &out, NULL, NULL) != HR_OK) return fail("the sum");
	hr_value_keep(out);
	if (hr_session_destroy(session) != HR_IN_USE) return fail("a leak was not found");
	printf("a leak: %s\n", hr_last_message());
	print_memory("when the session is closed:");
	if (hr_get_bytes_in_use(0) != 0) return fail("memory was left");
	if (hr_graph_destroy(graph) != HR_OK) return fail("the graph");
	return hr_shutdown() == HR_OK ? 0 : fail("the end");
}
