/* fuzz_capture.c - captures, views and HTML pages from arbitrary bytes: either the file is refused with a message, or what
 * capture.h promises holds and everything can be written.
 *
 * The first byte of an input selects how the rest is used: even as it is, odd as a file that is first made to look like a trace
 * (repair_trace.h). The second byte selects the view and its options. The seeds are those of fuzz_trace_reader, and those written
 * by tests/profile/test_capture.c (HR_CAPTURE_SEEDS=fuzz/corpus/capture), and small files of other formats. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "analysis/page/page.h"
#include "repair_trace.h"
#include "support_capture.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(int holds)
{
	if (!holds) abort();
}

static void look(const uint8_t *file, size_t size, uint32_t which)
{
	hr__capture *capture = NULL;
	hr_status status = hr__capture_open_memory(file, size, &capture);
	if (status != HR_OK) {
		must(capture == NULL && *hr_last_message() != 0);
		must(status == HR_BAD_FORMAT || status == HR_TRUNCATED || status == HR_TOO_NEW || status == HR_UNSUPPORTED || status == HR_TOO_MANY);
		return;
	}
	must(capture_wrong(capture) == NULL);
	must(writes_view(capture, which, which & 128 ? HR_PROFILE_JSON : HR_PROFILE_TEXT));
	if (which % 8 == 0) must(hr__page_write_most(capture, "/dev/null", which) == HR_OK);
	hr__capture_close(capture);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static unsigned runs;
	if (size < 2) return 0;
	/* The names of all inputs together would fill the table, and then every name would be "(other)". */
	if (++runs % 1024 == 0) hr__names_reset_for_test();
	/* Exactly the file's size, so that a sanitizer detects reads past its end. */
	uint8_t *file = malloc(size > 2 ? size - 2 : 1);
	must(file != NULL);
	memcpy(file, data + 2, size - 2);
	if (data[0] % 2 && size - 2 >= 128) repair_trace(file, size - 2);
	look(file, size - 2, data[1]);
	free(file);
	return 0;
}
