/* memory_info.c - current and peak memory of a program on a device: two random matrices and their product. */
#include <headroom.h>
#include <headroom_runtime.h>
#include <stdio.h>

static int fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, hr_last_message());
	return 1;
}

static int print_memory(const char *when)
{
	hr_memory_info info = { .struct_size = sizeof info };
	if (hr_get_memory_info("GPU:0", &info) != HR_OK) return fail("GPU:0");
	printf("%-26s current %5.1f MiB, peak %5.1f MiB\n", when, (double)info.current / (1 << 20), (double)info.peak / (1 << 20));
	return 0;
}

int main(void)
{
	const uint64_t limit = (uint64_t)1024 << 20;
	if (hr_device_set_logical("GPU:0", &limit, 1) != HR_OK) return fail("limiting GPU:0");

	/* Without a session, ops run in a default session on the first device. */
	hr_value a = hr_value_keep(hr_random_normal(HR_DTYPE_FLOAT32, HR_DIMS(1024, 1024), 1));
	hr_value b = hr_value_keep(hr_random_normal(HR_DTYPE_FLOAT32, HR_DIMS(1024, 1024), 2));
	if (print_memory("a and b:")) return 1;
	hr_value c = hr_value_keep(hr_matmul(a, b));
	if (!c.id) return fail("c");
	if (print_memory("a, b and c = matmul(a, b):")) return 1; /* the peak includes the scratch memory of the product */

	hr_value_release(a);
	hr_value_release(b);
	hr_value_release(c);
	if (print_memory("released:")) return 1;
	if (hr_reset_memory_stats("GPU:0") != HR_OK) return fail("resetting");
	if (print_memory("peak reset:")) return 1;
	return hr_shutdown() == HR_OK ? 0 : fail("the end");
}
