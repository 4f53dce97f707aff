/* consumer.c - a program that uses an installed Headroom: public headers and the library, nothing else. Also valid C++. */
#include <headroom.h>
#include <headroom_backend.h>
#include <headroom_profile.h>
#include <stdio.h>
#include <string.h>

int main(void)
{
	char expected[32];
	snprintf(expected, sizeof expected, "%d.%d.%d", HR_VERSION_MAJOR, HR_VERSION_MINOR, HR_VERSION_PATCH);
	if (strcmp(hr_version(), expected) != 0) {
		fprintf(stderr, "the headers are of %s, the library of %s\n", expected, hr_version());
		return 1;
	}
	hr_allocator allocator;
	void *block;
	if (hr_allocator_default("GPU:0", &allocator) != HR_OK || hr_alloc_bytes(allocator, 1 << 20, &block) != HR_OK ||
	    hr_free(allocator, block, HR_STREAM_DEFAULT) != HR_OK || hr_shutdown() != HR_OK) {
		fprintf(stderr, "%s\n", hr_last_message());
		return 1;
	}
	return 0;
}
