/* allocate.c - the shortest useful program: allocate memory on the default device, describe what it is for, read the statistics.
 *
 *     cc allocate.c $(pkg-config --cflags --libs headroom) && ./a.out */
#include <headroom.h>
#include <stdio.h>

static int fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, hr_last_message());
	return 1;
}

int main(void)
{
	hr_allocator allocator;
	if (hr_allocator_get_default("GPU:0", &allocator) != HR_OK) return fail("GPU:0");

	/* A block without a description. */
	void *plain;
	if (hr_alloc_bytes(allocator, 1 << 20, &plain) != HR_OK) return fail("1 MiB");

	/* A block for a tensor. Its op, scope, tag and shape appear in reports when memory runs out. */
	const int64_t dims[] = { 64, 1024 };
	hr_request request = HR_REQUEST(64 * 1024 * sizeof(float));
	request.op = hr_name_intern("MatMul");
	request.scope = hr_name_intern("encoder/layer_3");
	request.tag = hr_name_intern("activations");
	request.shape = hr_shape_intern(dims, 2);
	request.dtype = HR_DTYPE_FLOAT32;
	void *tensor;
	if (hr_alloc(allocator, &request, &tensor) != HR_OK) return fail("a tensor");

	hr_allocation_info info = { .struct_size = sizeof info };
	if (hr_allocation_get_info(allocator, tensor, &info) != HR_OK) return fail("the tensor");
	char shape[32];
	hr_shape_format(info.shape, shape, sizeof shape);
	printf("%s %s of %s, for %s: %zu bytes asked for, %zu taken\n", hr_dtype_text(info.dtype), shape, hr_name_text(info.op),
	       hr_name_text(info.tag), info.requested, info.bytes);
	printf("in use: %lld bytes in %lld blocks\n", (long long)hr_get_bytes_in_use(0), (long long)hr_get_num_allocs(0));

	hr_free(allocator, tensor, HR_STREAM_DEFAULT);
	hr_free(allocator, plain, HR_STREAM_DEFAULT);

	/* Misuse is an error, never a crash. */
	if (hr_free(allocator, plain, HR_STREAM_DEFAULT) == HR_NOT_ALLOCATED) printf("freed twice: %s\n", hr_last_message());
	printf("in use: %lld bytes, at most %lld\n", (long long)hr_get_bytes_in_use(0), (long long)hr_get_peak_bytes_in_use(0));
	return hr_shutdown() == HR_OK ? 0 : fail("the end");
}
