/* test_page.c - the HTML page is written for any capture, and contains what a browser needs.
 *
 *     test_page                       the tests that need no browser
 *     test_page --trace KIND FILE     records a trace for test_page_browser.py: train, hostile, million or crowded
 *     test_page --html TRACE FILE     makes the HTML page; a third argument limits the allocations shown one by one */
#include <sys/stat.h>

#include "fixture.h"
#include "../examples/models.h"
#include "fault_os.h"
#include "headroom_runtime.h"
#include "headroom_record.h"
#include "analysis/page/page.h"
#include "support_files.h"
#include "test.h"
#include "core/trace/trace.h"

#define MIB (UINT64_C(1) << 20)

/* ---- traces ---- */

struct training {
	const struct model *model;
	hr_optimizer optimizer;
};

static hr_status train_step(void *context, const hr_value *ins, size_t in_count, hr_value *outs, size_t out_count)
{
	const struct training *training = context;
	(void)in_count;
	(void)out_count;
	outs[0] = model_train(training->model, ins[0], ins[1], &training->optimizer, false);
	return outs[0].id ? HR_OK : hr_last_status();
}

static void train(uint64_t limit, int steps, bool lms_enabled)
{
	static const struct model model = MODEL_GPT;
	struct training training = { .model = &model };
	hr_session_options session_options;
	hr_lms_options lms;
	hr_device device;
	hr_session session;
	hr_function function;
	CHECK_STATUS(HR_OK, hr_device_find("GPU:0", &device));
	hr_allocator allocator = fixture_allocator(device, limit);
	CHECK_STATUS(HR_OK, hr_lms_options_init(&lms));
	lms.enabled = lms_enabled;
	CHECK_STATUS(HR_OK, hr_lms_configure(allocator, &lms));
	hr_session_options_init(&session_options);
	session_options.device = "GPU:0";
	session_options.allocator = allocator;
	CHECK_STATUS(HR_OK, hr_session_create(&session_options, &session));
	CHECK_STATUS(HR_OK, hr_session_enter(session));
	hr_optimizer_init(&training.optimizer, HR_ADAM);
	CHECK_STATUS(HR_OK, hr_function_create("step", train_step, &training, &function));
	hr_value data[] = { hr_value_keep(model.inputs(&model, 0)), hr_value_keep(model.labels(&model, 0)) };
	for (int i = 0; i < steps; i++) {
		hr_value out;
		float loss;
		CHECK_STATUS(HR_OK, hr_step_begin(allocator));
		CHECK_STATUS(HR_OK, hr_function_call(function, data, 2, &out, 1));
		CHECK_STATUS(HR_OK, hr_value_fetch(out, &loss, sizeof loss));
		CHECK_STATUS(HR_OK, hr_step_end(allocator));
	}
	hr_value_release(data[0]);
	hr_value_release(data[1]);
	CHECK_STATUS(HR_OK, hr_function_destroy(function));
	CHECK_STATUS(HR_OK, hr_session_leave());
	CHECK_STATUS(HR_OK, hr_session_destroy(session));
	CHECK_STATUS(HR_OK, hr_allocator_destroy(allocator));
}

/* A small GPT: two steps with enough memory, then with Large Model Support and less; and a little on the host. */
static void record_train(void)
{
	hr_allocator host;
	void *blocks[16];
	fixture_configure_emulated(160 * MIB, 256 << 10, 0);
	train(0, 2, false);
	train(64 * MIB, 4, true);
	CHECK_STATUS(HR_OK, hr_allocator_get_default("CPU:0", &host));
	for (size_t i = 0; i < 16; i++) CHECK_STATUS(HR_OK, hr_alloc_bytes(host, (i + 1) << 18, &blocks[i]));
	for (size_t i = 0; i < 16; i += 2) CHECK_STATUS(HR_OK, hr_free(host, blocks[i], HR_STREAM_DEFAULT));
	for (size_t i = 1; i < 14; i += 2) CHECK_STATUS(HR_OK, hr_free(host, blocks[i], HR_STREAM_DEFAULT));
}

static void define_devices(void)
{
	hr__trace_define_device(1, "GPU:0", 2048 * MIB, 4096);
	hr__trace_define_allocator(1, "gpu", "bfc", 1);
	hr__trace_define_device(2, "CPU:0", 0, 0);
	hr__trace_define_allocator(2, "cpu", "bfc", 2);
}

static void emit(hr__event_kind kind, uint32_t allocator, uint64_t address, uint64_t bytes, hr_name op, hr_name scope)
{
	hr__event event = {
		.kind = kind, .allocator = allocator, .address = address, .bytes = bytes, .requested = bytes, .op = op, .scope = scope
	};
	hr__trace_event(&event);
}

/* Names that look like markup, script or format strings, or are empty; and extreme sizes. */
static void record_hostile(void)
{
	static const char *const names[] = { "</script><script>document.title='owned'</script>",
		                                 "\"><img src=x onerror=document.title='owned'>",
		                                 "'; document.title='owned'; '",
		                                 "<!--",
		                                 "]]>",
		                                 "\\u003c/script\\u003e",
		                                 "line\nbreak\ttab\rreturn",
		                                 "\001\002\033[31mred\177",
		                                 "bad \xff\xfe\xc0\x80 utf-8 \xed\xa0\x80",
		                                 "\xe2\x80\xaereversed",
		                                 "__proto__",
		                                 "constructor",
		                                 "%s%n%p",
		                                 "@data@ @css@",
		                                 "a name with spaces and \xc3\xbcml\xc3\xa4uts \xf0\x9f\x90\x8b",
		                                 "" };
	define_devices();
	emit(HR__EVENT_MAP, 1, 16 * MIB, 16 * MIB, 0, 0);
	emit(HR__EVENT_STEP, 0, 0, 7, 0, 0);
	for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
		hr_name name = hr_name_intern(names[i]);
		emit(HR__EVENT_OP_BEGIN, 0, 0, 0, name, name);
		emit(HR__EVENT_ALLOC, 1, 16 * MIB + i * 65536, 4096 * (i + 1), name, name);
		emit(HR__EVENT_OP_END, 0, 0, 5, name, name);
	}
	emit(HR__EVENT_ALLOC_FAILED, 1, 0, UINT64_C(1) << 40, hr_name_intern(names[0]), 0);
	emit(HR__EVENT_EVICT, 1, 16 * MIB, 4096, hr_name_intern(names[0]), 0);
	emit(HR__EVENT_RESTORE, 1, 16 * MIB, 4096, hr_name_intern(names[0]), 0);
	for (size_t i = 0; i < sizeof names / sizeof names[0]; i += 3) emit(HR__EVENT_FREE, 1, 16 * MIB + i * 65536, 0, 0, 0);
	emit(HR__EVENT_STEP_END, 0, 0, 7, 0, 0);
	emit(HR__EVENT_ALLOC, 2, UINT64_MAX - 4095, 4096, 0, 0);
}

/* A million events: 60 ops with blocks of their own, short and long lifetimes. */
static void record_million(void)
{
	enum { SLOTS = 3000 };
	static bool live[SLOTS];
	hr_name ops[60], scopes[12];
	char text[32];
	uint32_t random = 1;
	define_devices();
	for (int i = 0; i < 60; i++) snprintf(text, sizeof text, "op_%d", i), ops[i] = hr_name_intern(text);
	for (int i = 0; i < 12; i++) snprintf(text, sizeof text, "model/layer_%d", i), scopes[i] = hr_name_intern(text);
	emit(HR__EVENT_MAP, 1, UINT64_C(1) << 32, 2048 * MIB, 0, 0);
	for (uint32_t i = 0; i < 1000000; i++) {
		if (i % 10000 == 0) emit(HR__EVENT_STEP, 0, 0, i / 10000, 0, 0);
		random = random * 1664525 + 1013904223;
		/* Half of the slots are reused slowly, so that some lifetimes are long. */
		uint32_t slot = (random >> 8) % ((random >> 4) % 16 ? 300 : SLOTS);
		uint64_t address = (UINT64_C(1) << 32) + slot * MIB / 2 + slot / 97 * 16 * MIB;
		if (live[slot]) emit(HR__EVENT_FREE, 1, address, 0, 0, 0);
		else
			emit(HR__EVENT_ALLOC, 1, address, slot % 97 ? 512 * (1 + (random >> 12) % 400) : MIB * (1 + slot % 12), ops[slot % 60],
			     scopes[slot % 12]);
		live[slot] = !live[slot];
	}
}

/* More of everything than an HTML page holds, and the important parts are last: the peak is in the memory of the 210,001st region,
 * and refusals follow it. */
static void record_crowded(void)
{
	define_devices();
	emit(HR__EVENT_ALLOC, 1, MIB, 4096, 0, 0);
	for (uint32_t i = 0; i < 11990; i++) emit(HR__EVENT_ALLOC_FAILED, 1, 0, UINT64_C(1) << 40, 0, 0);
	for (uint32_t i = 0; i < 210000; i++) {
		emit(HR__EVENT_MAP, 1, 64 * MIB, MIB, 0, 0);
		emit(HR__EVENT_UNMAP, 1, 64 * MIB, MIB, 0, 0);
	}
	for (uint32_t i = 0; i < 500000; i++) emit(i % 2 ? HR__EVENT_RESTORE : HR__EVENT_EVICT, 1, MIB, 4096, 0, 0);
	for (uint32_t i = 1; i <= 60000; i++) {
		emit(HR__EVENT_STEP, 0, 0, i, 0, 0);
		if (i == 59999) {
			emit(HR__EVENT_MAP, 1, 64 * MIB, 4 * MIB, 0, 0);
			emit(HR__EVENT_ALLOC, 1, 65 * MIB, MIB, 0, 0);
			emit(HR__EVENT_FREE, 1, 65 * MIB, 0, 0, 0);
		}
		emit(HR__EVENT_STEP_END, 0, 0, i, 0, 0);
	}
	for (uint32_t i = 0; i < 10; i++) emit(HR__EVENT_ALLOC_FAILED, 1, 0, UINT64_C(1) << 40, 0, 0);
}

static void record(const char *kind, const char *path)
{
	remove(path);
	CHECK_STATUS(HR_OK, hr_trace_start(path));
	if (!strcmp(kind, "train")) record_train();
	else if (!strcmp(kind, "million")) record_million();
	else if (!strcmp(kind, "crowded")) record_crowded();
	else record_hostile();
	CHECK_STATUS(HR_OK, hr_trace_stop());
}

static int write_page(const char *trace, const char *path, uint32_t most)
{
	hr__capture *capture;
	hr_status status = hr__capture_open(trace, NULL, NULL, &capture);
	if (!status) status = hr__page_write_most(capture, path, most);
	if (status) fprintf(stderr, "%s\n", hr_last_message());
	else hr__capture_close(capture);
	return status != HR_OK;
}

/* ---- tests ---- */

struct place {
	char dir[64], trace[96], page[96];
};

static void open_place(struct place *place)
{
	snprintf(place->dir, sizeof place->dir, "%s/hr-page-XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
	CHECK(mkdtemp(place->dir) != NULL);
	snprintf(place->trace, sizeof place->trace, "%s/trace.hrt", place->dir);
	snprintf(place->page, sizeof place->page, "%s/page.html", place->dir);
}

static void close_place(const struct place *place)
{
	remove(place->trace);
	remove(place->page);
	CHECK_EQ(rmdir(place->dir), 0);
}

static size_t occurrences(const char *text, const char *what)
{
	size_t count = 0;
	for (; (text = strstr(text, what)); text++) count++;
	return count;
}

static void test_names_cannot_leave_the_data(void)
{
	struct place place;
	open_place(&place);
	record("hostile", place.trace);
	CHECK_EQ(write_page(place.trace, place.page, HR__PAGE_ALLOCATIONS), 0);
	char *text = load(place.page, NULL);
	CHECK_EQ(occurrences(text, "</script>"), 2);
	CHECK_EQ(occurrences(text, "owned"), 0);
	CHECK_EQ(occurrences(text, "http://") + occurrences(text, "https://"), 0);
	const char *data = strstr(text, "id=\"data\">");
	CHECK(data != NULL);
	data += strlen("id=\"data\">");
	CHECK(strspn(data, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=") == (size_t)(strchr(data, '<') - data));
	free(text);
	close_place(&place);
}

static void test_an_empty_trace_has_a_page(void)
{
	struct place place;
	open_place(&place);
	CHECK_STATUS(HR_OK, hr_trace_start(place.trace));
	CHECK_STATUS(HR_OK, hr_trace_stop());
	CHECK_EQ(write_page(place.trace, place.page, HR__PAGE_ALLOCATIONS), 0);
	close_place(&place);
}

static void test_any_limit_gives_a_page(void)
{
	struct place place;
	open_place(&place);
	record("hostile", place.trace);
	for (uint32_t most = 0; most < 20; most++) CHECK_EQ(write_page(place.trace, place.page, most), 0);
	close_place(&place);
}

static void test_a_page_that_cannot_be_written_is_an_error(void)
{
	struct place place;
	hr__capture *capture;
	open_place(&place);
	record("hostile", place.trace);
	CHECK_STATUS(HR_OK, hr__capture_open(place.trace, NULL, NULL, &capture));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr__page_write(capture, NULL));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr__page_write(capture, ""));
	CHECK_STATUS(HR_IO, hr__page_write(capture, place.dir));
	CHECK_STATUS(HR_IO, hr__page_write(capture, "/nowhere/at/all.html"));
	CHECK_STATUS(HR_OK, hr__page_write(capture, place.page));
	CHECK_STATUS(HR_OK, hr__page_write(capture, place.page)); /* again, over the first */
	if (access("/dev/full", W_OK) == 0) {
		/* Like a full disk. A path that is not a regular file must survive it. */
		char link[128];
		snprintf(link, sizeof link, "%s/full", place.dir);
		CHECK_EQ(symlink("/dev/full", link), 0);
		CHECK_STATUS(HR_IO, hr__page_write(capture, link));
		CHECK(access("/dev/full", F_OK) == 0);
		CHECK_EQ(remove(link), 0);
	}
	hr__capture_close(capture);
	close_place(&place);
}

static void test_only_its_user_can_read_a_page(void)
{
	struct place place;
	struct stat facts;
	open_place(&place);
	record("hostile", place.trace);
	umask(0);
	CHECK_EQ(write_page(place.trace, place.page, HR__PAGE_ALLOCATIONS), 0);
	CHECK_EQ(stat(place.page, &facts), 0);
	CHECK_EQ(facts.st_mode & 0777, 0600);
	close_place(&place);
}

/* SIGXFSZ has its default action here, which kills the process. */
static void test_a_page_that_fails_leaves_what_was_there(void)
{
	struct place place;
	hr__capture *capture;
	struct rlimit little = { 30000, 30000 };
	open_place(&place);
	record("hostile", place.trace);
	CHECK_STATUS(HR_OK, hr__capture_open(place.trace, NULL, NULL, &capture));
	CHECK_EQ(setrlimit(RLIMIT_FSIZE, &little), 0);
	CHECK_STATUS(HR_IO, hr__page_write(capture, place.page));
	CHECK(access(place.page, F_OK) != 0);
	FILE *old = fopen(place.page, "w");
	CHECK(old && fputs("the page before", old) >= 0 && fclose(old) == 0);
	CHECK_STATUS(HR_IO, hr__page_write(capture, place.page));
	char *text = load(place.page, NULL);
	CHECK(!strcmp(text, "the page before"));
	free(text);
	hr__capture_close(capture);
	close_place(&place); /* no incomplete HTML page is left in it */
}

static void test_whatever_call_fails_a_page_is_whole_or_not_there(void)
{
	struct place place;
	hr__capture *capture;
	open_place(&place);
	record("hostile", place.trace);
	CHECK_STATUS(HR_OK, hr__capture_open(place.trace, NULL, NULL, &capture));
	for (uint64_t n = 1;; n++) {
		struct hr_fault_os_live live;
		hr_fault_os_install();
		hr_fault_os_fail_nth(n, false, ENOSPC);
		hr_status status = hr__page_write(capture, place.page);
		bool done = hr_fault_os_calls() < n;
		hr_fault_os_live(&live);
		hr_fault_os_uninstall();
		CHECK_EQ(live.alloc_bytes, 0);
		CHECK_EQ(live.fds, 0);
		CHECK_EQ(access(place.page, F_OK) == 0, status == HR_OK);
		if (done) break;
		CHECK_LT(n, 1000);
	}
	hr__capture_close(capture);
	close_place(&place);
}

int main(int argc, char **argv)
{
	static const hr_test tests[] = { T(test_names_cannot_leave_the_data), T(test_an_empty_trace_has_a_page),
		                             T(test_any_limit_gives_a_page), T(test_a_page_that_cannot_be_written_is_an_error),
		                             T(test_only_its_user_can_read_a_page), T(test_a_page_that_fails_leaves_what_was_there),
		                             T(test_whatever_call_fails_a_page_is_whole_or_not_there) };
	if (argc == 4 && !strcmp(argv[1], "--trace")) return record(argv[2], argv[3]), 0;
	if (argc >= 4 && !strcmp(argv[1], "--html"))
		return write_page(argv[2], argv[3], argc > 4 ? (uint32_t)atoi(argv[4]) : HR__PAGE_ALLOCATIONS);
	return hr_test_main(tests, sizeof tests / sizeof tests[0], argc, argv);
}
