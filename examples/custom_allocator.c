/* custom_allocator.c - a custom allocator, registered by name, and a session that computes in its memory.
 *
 * The allocator only has to provide memory, here with aligned_alloc on the host. Headroom keeps the statistics, the ledger and
 * traces. The allocator can report its own counts through get_stats. */
#include <headroom.h>
#include <headroom_runtime.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct counting_allocator {
	const char *name;
	long long memory_limit;
	atomic_llong current_usage, max_usage, alloc_count;
} counting_allocator;

static hr_status counting_open(void *user, hr_device device, uint64_t limit_bytes, void **state)
{
	(void)device, (void)limit_bytes;
	*state = user;
	return HR_OK;
}

/* Called from any thread, concurrently: hence the atomics. */
static hr_status counting_alloc(void *state, size_t bytes, size_t alignment, hr_stream stream, void **out)
{
	counting_allocator *self = state;
	(void)stream;
	if (alignment < sizeof(void *)) alignment = sizeof(void *);
	size_t whole = (bytes + alignment - 1) / alignment * alignment;
	long long now = atomic_fetch_add(&self->current_usage, (long long)bytes) + (long long)bytes;
	void *block = now <= self->memory_limit ? aligned_alloc(alignment, whole) : NULL;
	if (!block) {
		atomic_fetch_sub(&self->current_usage, (long long)bytes);
		return HR_OUT_OF_MEMORY;
	}
	long long most = atomic_load(&self->max_usage);
	while (now > most && !atomic_compare_exchange_weak(&self->max_usage, &most, now)) continue;
	atomic_fetch_add(&self->alloc_count, 1);
	*out = block;
	return HR_OK;
}

static hr_status counting_free(void *state, void *address, size_t bytes, hr_stream stream)
{
	counting_allocator *self = state;
	(void)stream;
	atomic_fetch_sub(&self->current_usage, (long long)bytes);
	free(address);
	return HR_OK;
}

static hr_status counting_get_stats(void *state, hr_custom_stats *stats)
{
	counting_allocator *self = state;
	stats->bytes_reserved = (uint64_t)atomic_load(&self->current_usage);
	stats->bytes_limit = (uint64_t)self->memory_limit;
	return HR_OK;
}

static int fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, hr_last_message());
	return 1;
}

static int print_stats(const counting_allocator *self, hr_allocator allocator)
{
	hr_stats stats;
	printf("%s: current_usage %lld, max_usage %lld, alloc_count %lld\n", self->name, atomic_load(&self->current_usage),
	       atomic_load(&self->max_usage), atomic_load(&self->alloc_count));
	hr_stats_init(&stats);
	if (hr_allocator_get_stats(allocator, &stats) != HR_OK) return fail("statistics");
	printf("Headroom: %lld allocations, %lld bytes in use, at most %lld, %lld reserved of %lld\n", (long long)stats.num_allocs,
	       (long long)stats.bytes_in_use, (long long)stats.peak_bytes_in_use, (long long)stats.bytes_reserved,
	       (long long)stats.bytes_limit);
	return 0;
}

/* c = a + b in a graph. The sum takes the memory of one of them, because it is their last use. */
static int add(hr_session session, const counting_allocator *counting, hr_allocator allocator)
{
	hr_graph graph;
	hr_value out;
	float sum[3];
	if (hr_graph_create(&graph) != HR_OK || hr_graph_enter(graph) != HR_OK) return fail("a graph");
	hr_value a = hr_constant(HR_DTYPE_FLOAT32, HR_DIMS(3), (float[]){ 1, 2, 3 });
	hr_value b = hr_constant(HR_DTYPE_FLOAT32, HR_DIMS(3), (float[]){ 4, 5, 6 });
	hr_value c = hr_add(a, b);
	hr_graph_leave();
	if (hr_session_run(session, NULL, 0, &c, 1, &out, NULL, NULL) != HR_OK) return fail("running");
	printf("c has been computed\n");
	if (print_stats(counting, allocator)) return 1;
	if (hr_value_fetch(out, sum, sizeof sum) != HR_OK) return fail("fetching");
	printf("and fetched: %g %g %g\n", (double)sum[0], (double)sum[1], (double)sum[2]);
	return hr_graph_destroy(graph) == HR_OK ? print_stats(counting, allocator) : fail("the graph");
}

int main(void)
{
	static counting_allocator counting = { .name = "Custom", .memory_limit = 100 << 20 };
	const hr_custom_allocator table = { .struct_size = sizeof table,
		                                .open = counting_open,
		                                .alloc = counting_alloc,
		                                .free = counting_free,
		                                .get_stats = counting_get_stats };
	hr_allocator_options options;
	hr_session_options session_options;
	hr_allocator allocator;
	hr_session session;
	hr_device device;

	hr_allocator_options_init(&options);
	options.kind = "counting";
	if (hr_allocator_register("counting", &table, &counting) != HR_OK) return fail("registering");
	if (hr_device_find("CPU:0", &device) != HR_OK) return fail("CPU:0");
	if (hr_allocator_create(device, &options, &allocator) != HR_OK) return fail("creating");
	hr_session_options_init(&session_options);
	session_options.device = "CPU:0";
	session_options.allocator = allocator;
	if (hr_session_create(&session_options, &session) != HR_OK) return fail("a session");
	if (add(session, &counting, allocator)) return 1;

	void *block;
	if (hr_alloc_bytes(allocator, 200 << 20, &block) != HR_OUT_OF_MEMORY) return fail("its limit was not kept");
	printf("200 MiB of it: %s\n", hr_last_message());
	if (hr_session_destroy(session) != HR_OK || hr_allocator_destroy(allocator) != HR_OK) return fail("closing");
	return hr_shutdown() == HR_OK ? 0 : fail("the end");
}
