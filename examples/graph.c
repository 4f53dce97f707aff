/* graph.c - the same ops in a graph: nothing is allocated until it runs, and then only what the fetches need, for as long as they
 * need it. */
#include <headroom.h>
#include <headroom_runtime.h>
#include <stdio.h>

static int fail(void)
{
	fprintf(stderr, "%s\n", hr_last_message());
	return 1;
}

int main(void)
{
	int64_t sum[3];
	hr_graph graph;
	hr_session session;
	hr_session_options options;
	hr_session_options_init(&options);
	options.device = "GPU:0";
	if (hr_session_create(&options, &session) != HR_OK || hr_graph_create(&graph) != HR_OK || hr_graph_enter(graph) != HR_OK) return fail();

	hr_value a = hr_named_placeholder("a", HR_DTYPE_INT64, HR_DIMS(3));
	hr_value b = hr_named_placeholder("b", HR_DTYPE_INT64, HR_DIMS(3));
	hr_value c = hr_add(a, b);
	hr_graph_leave();
	if (!c.id) return fail();
	printf("the graph is built, and %lld bytes are in use\n", (long long)hr_get_bytes_in_use(0));

	int64_t first[] = { 1, 2, 3 }, second[] = { 4, 5, 6 };
	hr_feed feeds[] = { hr_feed_from_array(session, a, first, sizeof first), hr_feed_from_array(session, b, second, sizeof second) };
	hr_value result;
	if (hr_session_run(session, feeds, 2, &c, 1, &result, NULL, NULL) != HR_OK) return fail();
	printf("it has run, and %lld bytes are in use: the result\n", (long long)hr_get_bytes_in_use(0));
	if (hr_value_fetch(result, sum, sizeof sum) != HR_OK) return fail();
	printf("%lld %lld %lld\n", (long long)sum[0], (long long)sum[1], (long long)sum[2]);

	if (hr_session_destroy(session) != HR_OK || hr_graph_destroy(graph) != HR_OK) return fail();
	return hr_shutdown() == HR_OK ? 0 : fail();
}
