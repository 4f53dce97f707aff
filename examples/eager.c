/* eager.c - ops that run when they are called: each constant and each result is allocated at once, and freed after its last use. */
#include <headroom.h>
#include <headroom_runtime.h>
#include <stdio.h>

static int fail(void)
{
	fprintf(stderr, "%s\n", hr_last_message());
	return 1;
}

static void print_memory(const char *when)
{
	hr_memory_info info = { .struct_size = sizeof info };
	if (hr_get_memory_info("GPU:0", &info) == HR_OK)
		printf("%-34s current %4lld bytes, peak %4lld\n", when, (long long)info.current, (long long)info.peak);
}

int main(void)
{
	int64_t sum[3];
	hr_session session;
	hr_session_options options;
	hr_session_options_init(&options);
	options.device = "GPU:0";
	if (hr_session_create(&options, &session) != HR_OK || hr_session_enter(session) != HR_OK) return fail();

	hr_value a = hr_value_keep(hr_constant(HR_DTYPE_INT64, HR_DIMS(3), (int64_t[]){ 1, 2, 3 }));
	hr_value b = hr_value_keep(hr_constant(HR_DTYPE_INT64, HR_DIMS(3), (int64_t[]){ 4, 5, 6 }));
	print_memory("two constants:");
	hr_value c = hr_value_keep(hr_add(a, b));
	print_memory("and their sum:");
	hr_value_release(a);
	hr_value_release(b);
	print_memory("when the constants are released:");

	/* c is kept, so its negative needs memory. The values after it are temporary and pass their memory on. */
	hr_value d = hr_neg(hr_mul(hr_neg(c), hr_full(HR_DTYPE_INT64, HR_SCALAR, 10)));
	if (hr_value_fetch(d, sum, sizeof sum) != HR_OK) return fail();
	printf("ten times the sum: %lld %lld %lld\n", (long long)sum[0], (long long)sum[1], (long long)sum[2]);
	hr_value_release(c);
	print_memory("at the end:");

	hr_session_leave();
	if (hr_session_destroy(session) != HR_OK) return fail(); /* would report values that were not released */
	return hr_shutdown() == HR_OK ? 0 : fail();
}
