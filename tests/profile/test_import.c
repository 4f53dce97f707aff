/* test_import.c - files of other programs as streams of events: the events are exactly those of the file, in order of time; a call to
 * the system that fails leaves nothing behind. The command's tests (tests/cli/test_import.py, test_imported.py) cover messages and
 * figures; fuzz/fuzz_import.c covers arbitrary bytes. */
#include "analysis/import/import.h"
#include "analysis/schedule/schedule.h"
#include "fault_os.h"
#include "support_capture.h"
#include "test.h"

#define CSV_TEXT                                                                                                              \
	"time_us,action,id,bytes,stream,name\n5,a,0,100,0,\n6,s,3,,,\n7,b,9,,,matmul, the op\n8,a,1,64,5000000000,\n9,r,0,100,,\n" \
	"9,w,1,,,\n8,e,9,700,,\n20,f,0,100,0,\n"
#define RMM_TEXT                                                                                                             \
	"Thread,Time,Action,Pointer,Size,Stream\n140,23:59:59.999998,allocate,0x7f00,1000,0x2\n"                                   \
	"141,23:59:59.999999,allocate,0x7f10,0,0x2\n141,00:00:00.000001,allocate failure,(nil),99,(nil)\n141,00:00:01,free,0x7f00,1000,0x2\n"
#define TORCH_TEXT                                                                                                                       \
	"{\"segments\": [{\"a\": \"]}\"}], \"device_traces\": [[{\"action\": \"segment_alloc\", \"addr\": 4096, \"size\": 8192, \"time_us\": 1000},"  \
	"{\"action\": \"alloc\", \"addr\": 4096, \"size\": 512, \"stream\": 0, \"time_us\": 1002, \"frames\": [{\"name\": \"gather\", \"filename\": "  \
	"\"??\", \"line\": 0}, {\"name\": \"linear\", \"filename\": \"nn.py\", \"line\": 7}, 3]},"                                                    \
	"{\"action\": \"free_requested\", \"addr\": 4096, \"size\": 512, \"stream\": 1, \"time_us\": 1005}, {\"action\": \"snapshot\"},"              \
	"{\"action\": \"segment_free\", \"addr\": 4096, \"size\": 8192, \"time_us\": 1004}],"                                                        \
	"[{\"action\": \"alloc\", \"addr\": 4096, \"size\": 64, \"time_us\": 1001}, {\"action\": \"free_requested\", \"addr\": 4096, \"size\": 64, "   \
	"\"time_us\": 1003}, {\"action\": \"free_completed\", \"addr\": 4096, \"size\": 64, \"time_us\": 1006}]]}"

/* ---- events ---- */

static hr__event_stream *open_text(const char *text)
{
	hr__event_stream *stream = NULL;
	hr_status status = hr__import_open_memory(text, strlen(text), &stream);
	if (status == HR_UNSUPPORTED) hr_test_skip("built without a library that this needs");
	CHECK_STATUS(HR_OK, status);
	return stream;
}

static hr__event next(hr__event_stream *stream)
{
	hr__event event;
	CHECK_STATUS(HR_OK, stream->next(stream, &event));
	return event;
}

static void check_event(const hr__event *e, hr__event_kind kind, uint64_t time_ns, uint64_t bytes)
{
	CHECK_EQ((int)e->kind, (int)kind);
	CHECK_EQ(e->time_ns, time_ns);
	CHECK_EQ(e->bytes, bytes);
}

static void end_stream(hr__event_stream *stream)
{
	hr__event event;
	CHECK_EQ(stream->next(stream, &event), HR_NOT_READY);
	stream->close(stream);
}

static void test_the_events_of_a_csv(void)
{
	hr__event_stream *stream = open_text(CSV_TEXT);
	CHECK(stream->strict && stream->format == HR__FORMAT_CSV && !stream->gzip);
	hr__event first = next(stream), e;
	check_event(&first, HR__EVENT_ALLOC, 0, 100);
	CHECK_EQ(first.address, UINT64_C(1) << 36);
	e = next(stream), check_event(&e, HR__EVENT_STEP, 1000, 3);
	e = next(stream), check_event(&e, HR__EVENT_OP_BEGIN, 2000, 0);
	CHECK_STR(hr_name_text(e.op), "matmul, the op");
	e = next(stream), check_event(&e, HR__EVENT_ALLOC, 3000, 64);
	CHECK_EQ(e.stream, (1u << 24) + 1);
	CHECK_EQ(e.address, UINT64_C(2) << 36);
	CHECK_STR(hr_name_text(e.op), "matmul, the op");
	e = next(stream), check_event(&e, HR__EVENT_READ, 4000, 100);
	CHECK_EQ(e.address, first.address);
	e = next(stream), check_event(&e, HR__EVENT_WRITE, 4000, 0);
	e = next(stream), check_event(&e, HR__EVENT_OP_END, 4000, 700); /* its time goes back */
	CHECK_EQ(stream->late, 1u);
	e = next(stream), check_event(&e, HR__EVENT_FREE, 15000, 100);
	CHECK_EQ(e.stream, 0u);
	end_stream(stream);
}

static void test_the_events_of_an_rmm_log(void)
{
	hr__event_stream *stream = open_text(RMM_TEXT);
	CHECK(!stream->strict && stream->format == HR__FORMAT_RMM);
	hr__event e = next(stream);
	check_event(&e, HR__EVENT_ALLOC, 0, 1000);
	CHECK(e.thread == 0 && e.stream == 2 && e.address == 0x7f00);
	e = next(stream), check_event(&e, HR__EVENT_ALLOC_FAILED, 3000, 99); /* midnight has passed */
	CHECK(e.thread == 1 && e.stream == 0);
	CHECK_EQ(stream->empty, 1u);
	e = next(stream), check_event(&e, HR__EVENT_FREE, 1000002000, 1000);
	CHECK(e.thread == 1 && e.stream == 2 && e.address == 0x7f00);
	CHECK_EQ(stream->late, 0u);
	end_stream(stream);
}

static void test_the_events_of_a_snapshot_are_merged_by_time(void)
{
	hr__event_stream *stream = open_text(TORCH_TEXT);
	CHECK(!stream->strict && stream->format == HR__FORMAT_TORCH);
	CHECK_EQ(stream->summary.device_count, 2u);
	CHECK_STR(stream->summary.devices[1].name, "GPU:1");
	CHECK_EQ(stream->summary.start_wall_ns, 1000000u);
	hr__event e = next(stream);
	check_event(&e, HR__EVENT_MAP, 0, 8192);
	e = next(stream), check_event(&e, HR__EVENT_ALLOC, 1000, 64);
	CHECK_EQ(e.allocator, 1u);
	e = next(stream), check_event(&e, HR__EVENT_ALLOC, 2000, 512);
	hr_frame frames[4];
	CHECK_EQ(hr_stack_get_frames(e.stack, frames, 4), 2u); /* what is not an object is left out */
	CHECK_STR(hr_name_text(frames[0].function), "gather");
	CHECK_STR(hr_name_text(frames[1].file), "nn.py");
	CHECK_EQ(frames[1].line, 7u);
	CHECK_STR(hr_name_text(e.op), "linear"); /* the innermost frame that has a line */
	/* The first device has no free_completed, so that free_requested counts; its UNMAP has an earlier time, and keeps its place. */
	e = next(stream), check_event(&e, HR__EVENT_FREE, 5000, 512);
	CHECK(e.allocator == 0 && e.stream == 1);
	e = next(stream), check_event(&e, HR__EVENT_UNMAP, 5000, 8192);
	e = next(stream), check_event(&e, HR__EVENT_FREE, 6000, 64);
	CHECK_EQ(e.allocator, 1u);
	CHECK_EQ(stream->late, 1u);
	end_stream(stream);
}

/* At the end there are A, with 4 pages, and C. B was added and removed, C added, and a page of A removed and added again. */
static void test_the_first_segments_of_a_snapshot_are_found_backwards(void)
{
	static const char text[] =
		"{\"device_traces\": [[{\"action\": \"alloc\", \"addr\": 1, \"size\": 1, \"time_us\": 5},"
		"{\"action\": \"segment_alloc\", \"addr\": 65536, \"size\": 4096, \"time_us\": 6}, {\"action\": \"segment_unmap\", \"addr\": 12288, \"size\": 4096},"
		"{\"action\": \"segment_free\", \"addr\": 65536, \"size\": 4096}, {\"action\": \"segment_alloc\", \"addr\": 1048576, \"size\": 4096},"
		"{\"action\": \"segment_map\", \"addr\": 12288, \"size\": 4096}, {\"action\": \"segment_free\", \"addr\": 524288, \"size\": 8192}]],"
		"\"segments\": [{\"device\": 0, \"address\": 4096, \"blocks\": [{\"address\": 4096}], \"total_size\": 16384}, {\"address\": 1048576, \"total_size\": 4096},"
		"{\"device\": 7, \"address\": 4096, \"total_size\": 4096}, {\"address\": \"x\", \"total_size\": 4.5}, 3, {}]}";
	hr__event_stream *stream = open_text(text);
	hr__event e = next(stream);
	check_event(&e, HR__EVENT_MAP, 0, 8192); /* the two pages of A before the one that is removed and added again */
	uint64_t bytes = e.bytes;
	for (e = next(stream); e.kind == HR__EVENT_MAP; e = next(stream)) bytes += e.bytes;
	CHECK_EQ(bytes, 16384u + 8192u); /* all of A, and what is removed in the end without having been added */
	check_event(&e, HR__EVENT_ALLOC, 0, 1);
	stream->close(stream);
	hr__capture *capture;
	CHECK_STATUS(HR_OK, hr__capture_open_memory(text, strlen(text), &capture));
	uint64_t mapped = 0;
	for (uint32_t i = 0; i < capture->region_count; i++)
		if (capture->regions[i].end_ns == HR__NEVER) mapped += capture->regions[i].bytes;
	CHECK_EQ(mapped, 16384u + 4096u);
	hr__capture_close(capture);
}

static void test_there_are_at_most_65535_streams(void)
{
	size_t capacity = 65537 * 32, length = 0;
	char *text = malloc(capacity);
	CHECK(text != NULL);
	length += (size_t)sprintf(text, "time_us,action,id,bytes,stream\n");
	for (unsigned i = 0; i < 65536; i++) length += (size_t)snprintf(text + length, capacity - length, "0,a,%u,1,%u\n", i, i);
	hr__capture *capture = NULL;
	CHECK_STATUS(HR_TOO_MANY, hr__capture_open_memory(text, length, &capture));
	CHECK_CONTAINS(hr_last_message(), "line 65537: more than 65535 different streams");
	CHECK_STATUS(HR_OK, hr__capture_open_memory(text, length - strlen("0,a,65535,1,65535\n"), &capture));
	CHECK_EQ(capture->stream_count, 65535u);
	hr__capture_close(capture);
	free(text);
}

/* ---- captures ---- */

static void test_a_capture_has_everything(void)
{
	static const char *const texts[] = { CSV_TEXT, RMM_TEXT, TORCH_TEXT };
	for (int i = 0; i < 3; i++) {
		hr__capture *capture;
		hr_status status = hr__capture_open_memory(texts[i], strlen(texts[i]), &capture);
		if (status == HR_UNSUPPORTED) continue;
		CHECK_STATUS(HR_OK, status);
		CHECK(capture_wrong(capture) == NULL);
		CHECK_EQ(capture->skipped, 0u);
		hr__capture_close(capture);
	}
}

static void test_the_last_step_of_a_csv_ends_with_the_file(void)
{
	hr__capture *capture;
	CHECK_STATUS(HR_OK, hr__capture_open_memory(CSV_TEXT, strlen(CSV_TEXT), &capture));
	CHECK_EQ(capture->step_count, 1u);
	CHECK_EQ(capture->steps[0].number, 3u);
	CHECK_EQ(capture->steps[0].begin_ns, 1000u);
	CHECK_EQ(capture->steps[0].end_ns, 15000u);
	CHECK_EQ(capture->ops[0].device_ns, 700u);
	CHECK_EQ(capture->use_count, 2u);
	CHECK_EQ(capture->devices[0].peak_bytes, 164u);
	hr__capture_close(capture);
}

/* ---- failing calls ---- */

static const char *write_file(const char *text, size_t length)
{
	static char path[64];
	snprintf(path, sizeof path, "/tmp/headroom-test-import-%d", getpid());
	FILE *file = fopen(path, "wb");
	CHECK(file != NULL);
	CHECK_EQ(fwrite(text, 1, length, file), length);
	CHECK_EQ(fclose(file), 0);
	return path;
}

/* Fails every call of reading a file and making a schedule of it, one after the other. */
static void fail_each(const char *text, size_t length, bool forever)
{
	const char *path = write_file(text, length);
	uint64_t nth = 1;
	hr_fault_os_install();
	for (;; nth++) {
		hr__schedule schedule;
		hr_fault_os_fail_nth(nth, forever, ENOMEM);
		hr_status status = hr__schedule_read(path, HR__FACTS_DEVICE_MOST, NULL, &schedule);
		bool failed = hr_fault_os_calls() >= nth;
		hr_fault_os_fail_nth(0, false, 0);
		if (status == HR_UNSUPPORTED) break;
		if (!failed) CHECK_STATUS(HR_OK, status);
		if (!status) hr__schedule_free(&schedule);
		else CHECK_STATUS(HR_NO_HOST_MEMORY, status);
		CHECK(hr_fault_os_is_clean());
		if (!failed) break;
	}
	hr_fault_os_uninstall();
	unlink(path);
	printf("# %llu calls were made to fail\n", (unsigned long long)(nth - 1));
}

static void test_calls_that_fail_leave_nothing_behind(void)
{
	/* A CSV with one allocation of 1 byte. */
	static const unsigned char packed[] = {
		0x1f, 0x8b, 0x08, 0x00, 0x00, 0x00, 0x00, 0x00, 0x02, 0x03, 0x2b, 0xc9, 0xcc, 0x4d, 0x8d, 0x2f, 0x2d, 0xd6, 0x49, 0x4c, 0x2e, 0xc9, 0xcc, 0xcf,
		0xd3, 0xc9, 0x4c, 0xd1, 0x49, 0xaa, 0x2c, 0x49, 0x2d, 0xd6, 0x29, 0x2e, 0x29, 0x4a, 0x4d, 0xcc, 0xe5, 0x32, 0xd4, 0x49, 0xd4, 0x31, 0xd0, 0x31,
		0xd4, 0x31, 0xe0, 0x02, 0x00, 0x61, 0xc4, 0xab, 0x33, 0x29, 0x00, 0x00, 0x00
	};
	for (int forever = 0; forever < 2; forever++) {
		fail_each(CSV_TEXT, strlen(CSV_TEXT), forever);
		fail_each(RMM_TEXT, strlen(RMM_TEXT), forever);
		fail_each(TORCH_TEXT, strlen(TORCH_TEXT), forever);
		fail_each((const char *)packed, sizeof packed, forever);
	}
}

TEST_MAIN(T(test_the_events_of_a_csv), T(test_the_events_of_an_rmm_log), T(test_the_events_of_a_snapshot_are_merged_by_time),
          T(test_the_first_segments_of_a_snapshot_are_found_backwards), T(test_there_are_at_most_65535_streams), T(test_a_capture_has_everything), T(test_the_last_step_of_a_csv_ends_with_the_file),
          T(test_calls_that_fail_leave_nothing_behind))
