/* custom_allocator.c - an allocator of one's own, plugged in by name.
 *
 * It only has to find memory, here with aligned_alloc on the host. Statistics, the ledger of who holds what and traces are kept
 * around it by Headroom; what it counts itself it can print, or report through get_stats. */
#include <headroom.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct counting_allocator {
	const char *name;
	atomic_llong current_usage, max_usage, alloc_count;
} counting_allocator;

static hr_status counting_open(void *user, hr_device device, uint64_t limit_bytes, void **state)
{
	(void)device, (void)limit_bytes;
	*state = user;
	return HR_OK;
}

/* Called from any thread, several at a time: hence the atomics. */
static hr_status counting_alloc(void *state, size_t bytes, size_t alignment, hr_stream stream, void **out)
{
	counting_allocator *self = state;
	(void)stream;
	if (alignment < sizeof(void *)) alignment = sizeof(void *);
	size_t whole = (bytes + alignment - 1) / alignment * alignment;
	void *block = whole >= bytes ? aligned_alloc(alignment, whole) : NULL;
	if (!block) return HR_OUT_OF_MEMORY;
	long long now = atomic_fetch_add(&self->current_usage, (long long)bytes) + (long long)bytes;
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
	return HR_OK;
}

static void print(const counting_allocator *self)
{
	printf("%s: current_usage %lld, max_usage %lld, alloc_count %lld\n", self->name, atomic_load(&self->current_usage),
	       atomic_load(&self->max_usage), atomic_load(&self->alloc_count));
}

static int fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, hr_last_message());
	return 1;
}

int main(void)
{
	static counting_allocator counting = { .name = "DummyAllocator" };
	const hr_custom_allocator table = { .struct_size = sizeof table,
		                                .open = counting_open,
		                                .alloc = counting_alloc,
		                                .free = counting_free,
		                                .get_stats = counting_get_stats };
	hr_allocator_options options;
	hr_allocator allocator;
	hr_device device;
	void *blocks[8];

	hr_allocator_options_init(&options);
	options.kind = "counting";
	if (hr_register_allocator("counting", &table, &counting) != HR_OK) return fail("registering");
	if (hr_device_find("CPU:0", &device) != HR_OK) return fail("CPU:0");
	if (hr_allocator_create(device, &options, &allocator) != HR_OK) return fail("creating");

	for (size_t i = 0; i < 8; i++)
		if (hr_alloc_bytes(allocator, (i + 1) * 1000, &blocks[i]) != HR_OK) return fail("allocating");
	print(&counting);
	for (size_t i = 0; i < 8; i++)
		if (hr_free(allocator, blocks[i], HR_STREAM_DEFAULT) != HR_OK) return fail("freeing");
	print(&counting);

	/* What Headroom kept about it meanwhile. */
	hr_stats stats;
	hr_stats_init(&stats);
	if (hr_allocator_get_stats(allocator, &stats) != HR_OK) return fail("statistics");
	printf("Headroom: %lld allocations, peak %lld bytes, %lld bytes in use\n", (long long)stats.num_allocs,
	       (long long)stats.peak_bytes_in_use, (long long)stats.bytes_in_use);
	if (hr_allocator_close(allocator) != HR_OK) return fail("closing");
	return hr_shutdown() == HR_OK ? 0 : fail("the end");
}
