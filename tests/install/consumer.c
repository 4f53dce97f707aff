/* consumer.c - a program of a user who installed Headroom: public headers and libheadroom alone. Also valid C++.
 *
 *     consumer DIRECTORY shared|static    writes a TensorBoard log to DIRECTORY where libheadroom is shared, and is refused where it is static */
#include <headroom.h>
#include <headroom_backend.h>
#include <headroom_record.h>
#include <stdio.h>
#include <string.h>

static int fail(void)
{
	fprintf(stderr, "%s\n", hr_last_message());
	return 1;
}

int main(int argc, char **argv)
{
	char expected[32];
	snprintf(expected, sizeof expected, "%d.%d.%d", HR_VERSION_MAJOR, HR_VERSION_MINOR, HR_VERSION_PATCH);
	if (strcmp(hr_version(), expected) != 0) {
		fprintf(stderr, "the headers are of %s, the library of %s\n", expected, hr_version());
		return 1;
	}
	hr_allocator allocator;
	hr_profiler_options options;
	void *block;
	if (argc != 3 || hr_profiler_options_init(&options) != HR_OK) return 2;
	options.tensorboard = true;
	hr_status wanted = strcmp(argv[2], "shared") == 0 ? HR_OK : HR_UNSUPPORTED;
	if (hr_profiler_start(argv[1], &options) != wanted) return fail();
	if (hr_allocator_get_default("GPU:0", &allocator) != HR_OK || hr_alloc_bytes(allocator, 1 << 20, &block) != HR_OK ||
	    hr_free(allocator, block, HR_STREAM_DEFAULT) != HR_OK || (wanted == HR_OK && hr_profiler_stop() != HR_OK) || hr_shutdown() != HR_OK)
		return fail();
	return 0;
}
