/* fuzz_trace_reader.c - the trace reader on arbitrary bytes: it reads the file or reports where it is invalid, and events are in
 * order.
 *
 * The first byte of an input selects how the rest is used:
 *
 *   even  as it is
 *   odd   as a file whose header and block headers are first made valid (repair_trace.h)
 *
 * tests/unit/test_trace.c writes the seeds (HR_TRACE_SEEDS=fuzz/corpus/trace_reader). */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/names.h"
#include "repair_trace.h"
#include "analysis/reader/reader.h"
#include "core/trace/trace.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(int holds)
{
	if (!holds) abort();
}

static void read_all(const uint8_t *file, size_t size)
{
	hr__trace_reader *reader = NULL;
	hr__event event;
	uint64_t events = 0, time = 0;
	hr_status status = hr__trace_reader_open_memory(file, size, &reader);
	if (status != HR_OK) {
		must(reader == NULL && *hr_last_message() != 0);
		must(status == HR_BAD_FORMAT || status == HR_TRUNCATED || status == HR_TOO_NEW);
		return;
	}
	const hr__trace_summary *summary = hr__trace_reader_summary(reader);
	for (size_t i = 0; i < summary->device_count; i++) must(strlen(summary->devices[i].name) <= HR__NAME_LENGTH_MAX);
	for (size_t i = 0; i < summary->allocator_count; i++) must(strlen(summary->allocators[i].kind) <= HR__NAME_LENGTH_MAX);
	while ((status = hr__trace_reader_next(reader, &event)) == HR_OK) {
		events++;
		must(event.time_ns >= time && event.thread < summary->threads);
		must(event.kind >= HR__EVENT_ALLOC && event.kind <= HR__EVENT_MARK);
		must(event.op < hr__names_count() && event.scope < hr__names_count() && event.tag < hr__names_count());
		must(event.shape < hr__shapes_count() && hr_dtype_text(event.dtype) != NULL);
		must(event.stack < hr__stacks_count() && hr_stack_get_frames(event.stack, NULL, 0) <= HR_STACK_DEPTH_MAX);
		time = event.time_ns;
	}
	must(status == HR_NOT_READY && events == summary->events);
	hr__trace_reader_close(reader);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static unsigned runs;
	if (size == 0) return 0;
	/* The names of all inputs together would fill the table, and then every name would be "(other)". */
	if (++runs % 1024 == 0) hr__names_reset_for_test();
	if (data[0] % 2 == 0) {
		read_all(data + 1, size - 1);
		return 0;
	}
	/* Exactly the file's size, so that a sanitizer detects reads past its end. */
	uint8_t *file = malloc(size > 1 ? size - 1 : 1);
	must(file != NULL);
	memcpy(file, data + 1, size - 1);
	if (size - 1 >= 128) repair_trace(file, size - 1);
	read_all(file, size - 1);
	free(file);
	return 0;
}
