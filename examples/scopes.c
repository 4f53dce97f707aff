/* scopes.c - how much memory does a part of the program need? Scopes nest, and belong to the thread that begins them. */
#include <headroom.h>
#include <stdio.h>

#define MIB ((size_t)1 << 20)

static int fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, hr_last_message());
	return 1;
}

/* A layer: 8 MiB of working memory, freed before it returns, and a result of 2 MiB that stays. */
static hr_status run_layer(hr_allocator allocator, void **result)
{
	void *work;
	hr_status status = hr_alloc_bytes(allocator, 8 * MIB, &work);
	if (status != HR_OK) return status;
	status = hr_alloc_bytes(allocator, 2 * MIB, result);
	hr_status freed = hr_free(allocator, work, HR_STREAM_DEFAULT);
	return status != HR_OK ? status : freed;
}

static void print_scope(const char *name, const hr_stats_scope *scope)
{
	printf("%-8s needed %4.1f MiB at most, left %4.1f MiB behind (%lld allocations, %lld frees)\n", name,
	       (double)scope->peak_bytes / MIB, (double)scope->net_bytes / MIB, (long long)scope->num_allocs,
	       (long long)scope->num_frees);
}

int main(void)
{
	hr_device device;
	hr_allocator allocator;
	hr_stats_scope step = { .struct_size = sizeof step }, layer = { .struct_size = sizeof layer };
	void *results[3];
	if (hr_device_find("GPU:0", &device) != HR_OK || hr_allocator_get_default("GPU:0", &allocator) != HR_OK) return fail("GPU:0");

	if (hr_stats_scope_begin(device) != HR_OK) return fail("the step's scope");
	for (int i = 0; i < 3; i++) {
		char name[16];
		if (hr_stats_scope_begin(device) != HR_OK) return fail("a layer's scope");
		if (run_layer(allocator, &results[i]) != HR_OK) return fail("a layer");
		if (hr_stats_scope_end(device, &layer) != HR_OK) return fail("a layer's scope");
		snprintf(name, sizeof name, "layer %d", i);
		print_scope(name, &layer);
	}
	if (hr_stats_scope_end(device, &step) != HR_OK) return fail("the step's scope");
	print_scope("step", &step);

	for (int i = 0; i < 3; i++)
		if (hr_free(allocator, results[i], HR_STREAM_DEFAULT) != HR_OK) return fail("freeing");
	return hr_shutdown() == HR_OK ? 0 : fail("the end");
}
