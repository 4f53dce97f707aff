/* test_card_fetch.c - fetching values of a card: a kernel copies little, because the card's copy engine would first finish all evictions that are
 * queued on other streams. */
#include <string.h>

#include "card/support_card.h"
#include "core/device/backends/cuda_driver.h"
#include "runtime/engine/engine.h"

#define BYTES_MAX (HR__READ_BY_KERNEL + 64)

static uint8_t contents[BYTES_MAX], fetched[BYTES_MAX];

/* A value of [count] bytes, the first of which is the [from]th of [contents]. */
static hr_value value_of(int64_t count, int64_t from)
{
	return hr_value_keep(hr_constant(HR_DTYPE_UINT8, HR_DIMS(count), contents + from));
}

static void test_fetched_bytes_are_those_of_the_value(void)
{
	static const int64_t counts[] = { 1, 2, 3, 4, 8, 12, 16, 31, 255, 4096, 4097, HR__READ_BY_KERNEL - 1, HR__READ_BY_KERNEL, HR__READ_BY_KERNEL + 1 };
	hr_session session = card_open();
	CHECK_STATUS(HR_OK, hr_session_enter(session));
	for (size_t i = 0; i < sizeof contents; i++) contents[i] = (uint8_t)(i * 7 + i / 256);
	for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
		hr_value value = value_of(counts[i], (int64_t)i);
		memset(fetched, 0xee, sizeof fetched);
		CHECK_STATUS(HR_OK, hr_value_fetch(value, fetched, (size_t)counts[i]));
		CHECK(!memcmp(fetched, contents + i, (size_t)counts[i]));
		CHECK_EQ(fetched[counts[i]], 0xee);
		hr_value_release(value);
	}
	hr_session_leave();
	CHECK_STATUS(HR_OK, hr_session_destroy(session));
}

/* Makes each call of the driver fail once, while [count] bytes are fetched. Returns whether one of them was a copy to the host. */
static bool copies_to_the_host(int64_t count)
{
	bool copies = false, failed = true;
	hr_value value = value_of(count, 0);
	CHECK_STATUS(HR_OK, hr_value_fetch(value, fetched, (size_t)count)); /* compiles the kernel */
	for (unsigned long long nth = 1; failed; nth++) {
		memset(fetched, 0xee, sizeof fetched);
		fake.fail_nth(nth, HR__CUDA_ERROR_NOT_SUPPORTED);
		hr_status status = hr_value_fetch(value, fetched, (size_t)count);
		failed = fake.failed()[0] != 0;
		copies |= strstr(fake.failed(), "DtoH") != NULL;
		fake.fail_nth(0, 0);
		CHECK(failed || !status);
		if (!status) CHECK(!memcmp(fetched, contents, (size_t)count));
	}
	hr_value_release(value);
	return copies;
}

static void test_little_is_copied_by_a_kernel(void)
{
	hr_session session = card_open();
	if (card_is_real()) hr_test_skip("calls fail on the stand-in alone");
	CHECK_STATUS(HR_OK, hr_session_enter(session));
	CHECK(!copies_to_the_host(4));
	CHECK(!copies_to_the_host(HR__READ_BY_KERNEL));
	CHECK(copies_to_the_host(HR__READ_BY_KERNEL + 1));
	hr_session_leave();
	CHECK_STATUS(HR_OK, hr_session_destroy(session));
}

TEST_MAIN(T(test_fetched_bytes_are_those_of_the_value), T(test_little_is_copied_by_a_kernel))
