/* support_card.h - a session on a CUDA card that computes: the stand-in of tests/fake_cuda, or with HR_TEST_CARD=1 the card of the machine. */
#ifndef HR_TESTS_SUPPORT_CARD_H
#define HR_TESTS_SUPPORT_CARD_H

#include "fake_cuda/load.h"
#include "fixture.h"
#include "headroom_runtime.h"

static bool card_is_real(void)
{
	const char *text = getenv("HR_TEST_CARD");
	return text && *text == '1';
}

/* Makes GPU:0 a card that computes. Call it before a device is first used. */
HR_TEST_UNUSED static void card_begin(void)
{
	char path[4096];
	const char *folder = getenv("HEADROOM_FAKE_CUDA");
	unsetenv("HEADROOM_CUDA");
	if (card_is_real()) return;
	fake_cuda_load("whole");
	setenv("FAKE_CUDA_KERNELS", "1", 1);
	setenv("HEADROOM_CUDA_PAGE", "64KiB", 0);
	setenv("FAKE_CUDA_GRANULARITY", "65536", 0);
	snprintf(path, sizeof path, "%s/libraries", folder);
	setenv("HEADROOM_CUDA_LIBRARIES", path, 1);
	const char *kernels = getenv("HR_TEST_KERNELS"); /* tools/test.sh: what one build has compiled is the same for the others */
	if (kernels) snprintf(path, sizeof path, "%s", kernels);
	else snprintf(path, sizeof path, "%s/kernels", folder);
	setenv("HEADROOM_KERNEL_CACHE", path, 1);
}

HR_TEST_UNUSED static hr_session card_session(const char *device, hr_allocator allocator)
{
	hr_session_options options;
	hr_session session;
	hr_session_options_init(&options);
	options.device = device;
	options.allocator = allocator;
	CHECK_STATUS(HR_OK, hr_session_create(&options, &session));
	return session;
}

/* A session on the card in whose kernels the test is interested. */
HR_TEST_UNUSED static hr_session card_open(void)
{
	card_begin();
	hr_session session = card_session("GPU:0", (hr_allocator){ 0 });
	CHECK_STATUS(HR_OK, hr_session_compute_check(session));
	return session;
}

#endif
