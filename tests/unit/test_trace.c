/* test_trace.c - the promises of src/core/trace: written events can be read, whatever happens to the writer, the disk or the file. */
#include <sys/mman.h>
#include <sys/stat.h>

#include "core/base/names.h"
#include "fault_os.h"
#include "core/os/os.h"
#include "support_files.h"
#include "test.h"
#include "core/trace/format.h"
#include "analysis/reader/reader.h"
#include "core/trace/trace.h"

#define SMALL_BLOCK 4096u

/* ---- files ---- */

static uint64_t size_of(const char *path)
{
	struct stat facts;
	CHECK_EQ(stat(path, &facts), 0);
	return (uint64_t)facts.st_size;
}

typedef struct bytes {
	uint8_t *data;
	size_t size;
} bytes;

static bytes bytes_of(const char *path)
{
	bytes out;
	out.data = load(path, &out.size);
	return out;
}

/* ---- reading ---- */

static hr__trace_reader *open_file(const char *path)
{
	hr__trace_reader *reader = NULL;
	CHECK_STATUS(HR_OK, hr__trace_reader_open(path, &reader));
	return reader;
}

static void expect_end(hr__trace_reader *reader)
{
	hr__event event;
	CHECK_STATUS(HR_NOT_READY, hr__trace_reader_next(reader, &event));
	CHECK_STATUS(HR_NOT_READY, hr__trace_reader_next(reader, &event));
	hr__trace_reader_close(reader);
}

/* Reads bytes to the end. The returned status must be one that a reader may return, and an error must name a position. *events gets
 * the number of events. */
static hr_status read_all(const uint8_t *data, size_t size, uint64_t *events, bool *complete)
{
	hr__trace_reader *reader = NULL;
	hr__event event;
	uint64_t count = 0, time = 0;
	hr_status status = hr__trace_reader_open_memory(data, size, &reader);
	*events = 0;
	if (status != HR_OK) {
		CHECK(status == HR_BAD_FORMAT || status == HR_TRUNCATED || status == HR_TOO_NEW);
		CHECK(status == HR_TOO_NEW || strstr(hr_last_message(), "byte") != NULL);
		return status;
	}
	while ((status = hr__trace_reader_next(reader, &event)) == HR_OK) {
		count++;
		CHECK_GE(event.time_ns, time);
		time = event.time_ns;
	}
	CHECK_STATUS(HR_NOT_READY, status);
	CHECK_EQ(hr__trace_reader_summary(reader)->events, count);
	*complete = hr__trace_reader_summary(reader)->complete;
	*events = count;
	hr__trace_reader_close(reader);
	return HR_OK;
}

/* ---- events ---- */

/* Which fields each kind has, as in docs/trace-format.md: a allocator, s stream, A address, B address2, b bytes, r requested, o op,
 * c scope, t tag, h shape and dtype, k stack. */
static const char *const fields_of[] = {
	"", "asAbrocthk", "asA", "asbrocthk", "aAb", "aAb", "aAb", "soct", "sboct", "asAbo", "asAbo", "bct", "bct", "c", "c",
	"asABbrocth", "asABbrocth", "asABb", "boct",
};

static bool has(hr__event_kind kind, char field)
{
	return strchr(fields_of[kind], field) != NULL;
}

/* The event with all fields that its kind does not have set to 0. */
static hr__event as_written(const hr__event *event)
{
	hr__event_kind kind = event->kind;
	hr__event out = { .kind = kind };
	if (has(kind, 'a')) out.allocator = event->allocator;
	if (has(kind, 's')) out.stream = event->stream;
	if (has(kind, 'A')) out.address = event->address;
	if (has(kind, 'B')) out.address2 = event->address2;
	if (has(kind, 'b')) out.bytes = event->bytes;
	if (has(kind, 'r')) out.requested = event->requested;
	if (has(kind, 'o')) out.op = event->op;
	if (has(kind, 'c')) out.scope = event->scope;
	if (has(kind, 't')) out.tag = event->tag;
	if (has(kind, 'h')) {
		out.shape = event->shape;
		out.dtype = event->dtype;
	}
	if (has(kind, 'k')) out.stack = event->stack;
	return out;
}

static void check_same(const hr__event *read, const hr__event *wanted)
{
	CHECK_EQ(read->kind, wanted->kind);
	CHECK_EQ(read->allocator, wanted->allocator);
	CHECK_EQ(read->stream, wanted->stream);
	CHECK_EQ(read->address, wanted->address);
	CHECK_EQ(read->address2, wanted->address2);
	CHECK_EQ(read->bytes, wanted->bytes);
	CHECK_EQ(read->requested, wanted->requested);
	CHECK_EQ(read->op, wanted->op);
	CHECK_EQ(read->scope, wanted->scope);
	CHECK_EQ(read->tag, wanted->tag);
	CHECK_EQ(read->shape, wanted->shape);
	CHECK_EQ(read->dtype, wanted->dtype);
	CHECK_EQ(read->stack, wanted->stack);
}

static hr_name name_number(unsigned i)
{
	char text[32];
	snprintf(text, sizeof text, "name_%u", i);
	return hr_name_intern(text);
}

static hr_shape shape_number(unsigned i)
{
	int64_t dims[2] = { i, 64 };
	return hr_shape_intern(dims, 2);
}

/* Two frames: a function with its line, and an address of a module. */
static hr_stack stack_number(unsigned i)
{
	hr_frame frames[2] = { { .function = name_number(i % 50), .file = name_number(1000 + i % 7), .line = i },
		                   { .module = name_number(2000), .offset = (uint64_t)i << 32 } };
	return hr_stack_intern(frames, 2);
}

/* Level 0: all fields 0. Level 1: all fields 1. Level 2: the largest values. */
static hr__event event_at_level(hr__event_kind kind, int level)
{
	hr__event event = { .kind = kind };
	if (level == 0) return event;
	uint64_t large = level == 1 ? 1 : UINT64_MAX;
	event.allocator = event.stream = level == 1 ? 1 : UINT32_MAX;
	event.address = event.address2 = event.bytes = event.requested = large;
	event.op = event.scope = event.tag = level == 1 ? 1 : name_number(99);
	event.shape = level == 1 ? 1 : shape_number(99);
	event.dtype = level == 1 ? HR_DTYPE_FLOAT32 : HR_DTYPE_INT16;
	event.stack = level == 1 ? 1 : stack_number(99);
	return event;
}

static uint64_t interesting(uint64_t *seed)
{
	static const uint64_t values[] = {
		0, 1, 127, 128, 255, 256, 257, 65535, 65536, 1u << 21, (1ull << 28) - 1, 1ull << 28, (1ull << 39) - 256, 1ull << 39,
		(1ull << 56) - 1, 1ull << 56, (1ull << 63) - 1, 1ull << 63, UINT64_MAX - 255, UINT64_MAX,
	};
	uint64_t pick = hr_rand_below(seed, 32);
	return pick < sizeof values / sizeof values[0] ? values[pick] : hr_rand(seed) >> hr_rand_below(seed, 64);
}

static hr__event random_event(uint64_t *seed)
{
	return (hr__event){
		.kind = (hr__event_kind)(1 + hr_rand_below(seed, 18)),
		.allocator = (uint32_t)(hr_rand_below(seed, 2) ? 1 : interesting(seed)),
		.stream = (uint32_t)(hr_rand_below(seed, 2) ? 0 : interesting(seed)),
		.address = interesting(seed),
		.address2 = interesting(seed),
		.bytes = interesting(seed),
		.requested = interesting(seed),
		.op = hr_rand_below(seed, 8) ? name_number((unsigned)hr_rand_below(seed, 300)) : HR_NAME_NONE,
		.scope = hr_rand_below(seed, 8) ? name_number((unsigned)hr_rand_below(seed, 10)) : HR_NAME_OTHER,
		.tag = hr_rand_below(seed, 8) ? HR_NAME_NONE : name_number((unsigned)hr_rand_below(seed, 300)),
		.shape = shape_number((unsigned)hr_rand_below(seed, 200)),
		.dtype = (hr_dtype)hr_rand_below(seed, 11),
		.stack = hr_rand_below(seed, 2) ? HR_STACK_NONE : stack_number((unsigned)hr_rand_below(seed, 400)),
	};
}

/* Writes the events of a training loop: a few layers, forward and backward, each with a handful of blocks that live for a while. */
static uint64_t write_training(unsigned steps)
{
	enum { LAYERS = 12, OPS = 8 };
	static uint64_t live[LAYERS][OPS];
	uint64_t events = 0, seed = 5, base = 0x7f2a00000000;
	for (unsigned step = 0; step < steps; step++) {
		hr__trace_event(&(hr__event){ .kind = HR__EVENT_STEP, .bytes = step });
		for (int layer = 0; layer < LAYERS; layer++) {
			for (int op = 0; op < OPS; op++) {
				hr_request request = HR_REQUEST(((uint64_t)op + 1) * 786432 + (op % 3 ? 0 : 40));
				request.op = name_number(200u + (unsigned)op);
				request.scope = name_number(300u + (unsigned)layer);
				request.shape = shape_number((unsigned)op);
				request.dtype = HR_DTYPE_FLOAT32;
				live[layer][op] = base + hr_rand_below(&seed, 1 << 24) * 256;
				hr__trace_alloc(1, &request, live[layer][op], (request.bytes + 255) / 256 * 256);
			}
		}
		for (int layer = LAYERS; layer-- > 0;) {
			for (int op = OPS; op-- > 0;) hr__trace_free(1, live[layer][op], 0);
		}
		hr__trace_event(&(hr__event){ .kind = HR__EVENT_STEP_END, .bytes = step });
		events += 2 + 2 * LAYERS * OPS;
	}
	return events;
}

/* Writes a small file with events and definitions of many kinds; returns its bytes. */
static bytes small_file(const char *name, uint64_t *events)
{
	const char *path = in_folder(name);
	uint64_t seed = 9;
	CHECK_STATUS(HR_OK, hr__trace_open_blocks(path, SMALL_BLOCK));
	hr__trace_define_device(3, "GPU:0", 1u << 30, 2u << 20);
	hr__trace_define_allocator(1, "GPU:0_bfc", "bfc", 3);
	for (int kind = 1; kind <= 18; kind++) {
		for (int level = 0; level < 3; level++) {
			hr__event event = event_at_level((hr__event_kind)kind, level);
			hr__trace_event(&event);
		}
	}
	for (int i = 0; i < 100; i++) {
		hr__event event = random_event(&seed);
		hr__trace_event(&event);
	}
	*events = 18 * 3 + 100;
	CHECK_STATUS(HR_OK, hr__trace_close());
	return bytes_of(path);
}

/* ---- writing and reading back ---- */

static void test_trace_brings_back_every_kind_with_every_field(void)
{
	const char *path = in_folder("kinds");
	CHECK_STATUS(HR_OK, hr__trace_open(path));
	CHECK(hr__trace_is_on());
	/* Every ordered pair of levels, so that fields change and stay. */
	for (int kind = 1; kind <= 18; kind++) {
		for (int level = 0; level < 9; level++) {
			hr__event event = event_at_level((hr__event_kind)kind, level < 3 ? level : (level * 2) % 3);
			hr__trace_event(&event);
		}
	}
	CHECK_STATUS(HR_OK, hr__trace_close());
	CHECK(!hr__trace_is_on());
	hr__trace_reader *reader = open_file(path);
	CHECK(hr__trace_reader_summary(reader)->complete);
	CHECK_EQ(hr__trace_reader_summary(reader)->events, 18 * 9);
	for (int kind = 1; kind <= 18; kind++) {
		for (int level = 0; level < 9; level++) {
			hr__event event, wanted = event_at_level((hr__event_kind)kind, level < 3 ? level : (level * 2) % 3);
			CHECK_STATUS(HR_OK, hr__trace_reader_next(reader, &event));
			wanted = as_written(&wanted);
			check_same(&event, &wanted);
			CHECK_EQ(event.thread, 0);
		}
	}
	expect_end(reader);
}

static void test_trace_brings_back_random_events(void)
{
	const char *path = in_folder("random");
	uint64_t count = hr_test_scaled(100000), write_seed = hr_test_seed(), read_seed = write_seed;
	CHECK_STATUS(HR_OK, hr__trace_open_blocks(path, SMALL_BLOCK));
	for (uint64_t i = 0; i < count; i++) {
		hr__event event = random_event(&write_seed);
		hr__trace_event(&event);
	}
	CHECK_EQ(hr__trace_lost(), 0);
	CHECK_STATUS(HR_OK, hr__trace_close());
	hr__trace_reader *reader = open_file(path);
	for (uint64_t i = 0; i < count; i++) {
		hr__event event, wanted = random_event(&read_seed);
		CHECK_STATUS(HR_OK, hr__trace_reader_next(reader, &event));
		wanted = as_written(&wanted);
		check_same(&event, &wanted);
	}
	expect_end(reader);
}

static void test_trace_alloc_and_free_say_what_the_event_says(void)
{
	const char *path = in_folder("frequent");
	uint64_t seed = hr_test_seed();
	CHECK_STATUS(HR_OK, hr__trace_open(path));
	for (int i = 0; i < 20000; i++) {
		hr__event e = random_event(&seed);
		hr_request request = HR_REQUEST(e.requested);
		request.stream = e.stream;
		request.op = e.op;
		request.scope = e.scope;
		request.tag = e.tag;
		request.shape = e.shape;
		request.dtype = e.dtype;
		hr_stack_set(e.stack);
		if (i % 2) hr__trace_alloc(e.allocator, &request, e.address, e.bytes);
		else hr__trace_free(e.allocator, e.address, e.stream);
	}
	hr_stack_set(HR_STACK_NONE);
	CHECK_STATUS(HR_OK, hr__trace_close());
	seed = hr_test_seed();
	hr__trace_reader *reader = open_file(path);
	for (int i = 0; i < 20000; i++) {
		hr__event event, wanted = random_event(&seed);
		wanted.kind = i % 2 ? HR__EVENT_ALLOC : HR__EVENT_FREE;
		wanted = as_written(&wanted);
		CHECK_STATUS(HR_OK, hr__trace_reader_next(reader, &event));
		check_same(&event, &wanted);
	}
	expect_end(reader);
}

static void test_trace_names_are_translated_to_the_reader(void)
{
	const char *path = in_folder("names");
	char long_name[1025];
	memset(long_name, 'n', 1024);
	long_name[1024] = 0;
	int64_t dims[8] = { 1, 0, INT64_MAX, 4, 5, 6, 7, 8 };
	CHECK_STATUS(HR_OK, hr__trace_open(path));
	hr__trace_define_device(7, "GPU:1", 123, 456);
	hr__trace_define_allocator(9, "mine", "custom", 7);
	hr__trace_define_allocator(9, "mine too", "direct", 7);
	hr__trace_event(&(hr__event){ .kind = HR__EVENT_ALLOC, .op = hr_name_intern("conv"), .scope = hr_name_intern(long_name),
	                              .tag = HR_NAME_OTHER, .shape = hr_shape_intern(dims, 8) });
	hr__trace_event(&(hr__event){ .kind = HR__EVENT_ALLOC, .op = 60000, .scope = UINT32_MAX, .shape = hr_shape_intern(NULL, 0), .stack = UINT32_MAX });
	hr_frame frames[3] = { { .function = hr_name_intern("inner"), .file = hr_name_intern("model.py"), .line = 12 },
		                   { .module = hr_name_intern("libmodel.so"), .offset = 0x1234 },
		                   { .function = UINT32_MAX, .line = 7 } };
	hr__trace_event(&(hr__event){ .kind = HR__EVENT_ALLOC_FAILED, .stack = hr_stack_intern(frames, 3) });
	CHECK_STATUS(HR_OK, hr__trace_close());

	hr__names_reset_for_test();
	hr_name_intern("something else");
	hr_name_intern("so that numbers differ");
	hr__trace_reader *reader = open_file(path);
	const hr__trace_summary *summary = hr__trace_reader_summary(reader);
	CHECK_EQ(summary->device_count, 1);
	CHECK_EQ(summary->devices[0].id, 7);
	CHECK_STR(summary->devices[0].name, "GPU:1");
	CHECK_EQ(summary->devices[0].limit_bytes, 123);
	CHECK_EQ(summary->devices[0].page_bytes, 456);
	CHECK_EQ(summary->allocator_count, 1);
	CHECK_EQ(summary->allocators[0].id, 9);
	CHECK_EQ(summary->allocators[0].device, 7);
	CHECK_STR(summary->allocators[0].name, "mine too");
	CHECK_STR(summary->allocators[0].kind, "direct");
	hr__event event;
	int64_t read_dims[8];
	CHECK_STATUS(HR_OK, hr__trace_reader_next(reader, &event));
	CHECK_STR(hr_name_text(event.op), "conv");
	CHECK_STR(hr_name_text(event.scope), long_name);
	CHECK_EQ(event.tag, HR_NAME_OTHER);
	CHECK_EQ(hr_shape_dims(event.shape, read_dims), 8);
	CHECK_BYTES(read_dims, dims, sizeof dims);
	CHECK_STATUS(HR_OK, hr__trace_reader_next(reader, &event));
	CHECK_EQ(event.op, HR_NAME_OTHER);
	CHECK_EQ(event.scope, HR_NAME_OTHER);
	CHECK_EQ(hr_shape_dims(event.shape, read_dims), 0);
	CHECK_EQ(event.stack, HR_STACK_OTHER);
	CHECK_STATUS(HR_OK, hr__trace_reader_next(reader, &event));
	hr_frame read_frames[3];
	CHECK_EQ(hr_stack_get_frames(event.stack, read_frames, 3), 3);
	CHECK_STR(hr_name_text(read_frames[0].function), "inner");
	CHECK_STR(hr_name_text(read_frames[0].file), "model.py");
	CHECK_EQ(read_frames[0].line, 12);
	CHECK_EQ(read_frames[0].module, HR_NAME_NONE);
	CHECK_EQ(read_frames[1].function, HR_NAME_NONE);
	CHECK_STR(hr_name_text(read_frames[1].module), "libmodel.so");
	CHECK_EQ(read_frames[1].offset, 0x1234);
	CHECK_EQ(read_frames[2].function, HR_NAME_OTHER);
	CHECK_EQ(read_frames[2].line, 7);
	expect_end(reader);
}

static void test_trace_holds_every_name_there_can_be(void)
{
	const char *path = in_folder("many_names");
	CHECK_STATUS(HR_OK, hr__trace_open(path));
	for (unsigned i = 0; i < 65600; i++) {
		hr__event event = { .kind = HR__EVENT_ALLOC, .op = name_number(i), .shape = shape_number(i), .bytes = i };
		hr__trace_event(&event);
	}
	CHECK_STATUS(HR_OK, hr__trace_close());
	hr__trace_reader *reader = open_file(path);
	for (unsigned i = 0; i < 65600; i++) {
		hr__event event;
		CHECK_STATUS(HR_OK, hr__trace_reader_next(reader, &event));
		CHECK_EQ(event.bytes, i);
		CHECK_EQ(event.op, name_number(i));
		CHECK_EQ(event.shape, shape_number(i));
	}
	expect_end(reader);
}

static void test_trace_holds_every_stack_there_can_be(void)
{
	const char *path = in_folder("many_stacks");
	CHECK_STATUS(HR_OK, hr__trace_open(path));
	for (unsigned i = 0; i < 65600; i++) {
		hr_frame frame = { .function = name_number(i % 100), .line = i };
		hr_stack_set(hr_stack_intern(&frame, 1));
		hr__trace_alloc(1, &HR_REQUEST(1), i, 1);
	}
	CHECK_EQ(hr_stack_set(HR_STACK_NONE), HR_STACK_OTHER);
	CHECK_STATUS(HR_OK, hr__trace_close());
	CHECK_EQ(hr__stacks_count(), HR__STACKS_MAX);
	hr__trace_reader *reader = open_file(path);
	unsigned others = 0;
	for (unsigned i = 0; i < 65600; i++) {
		hr__event event;
		hr_frame frame;
		CHECK_STATUS(HR_OK, hr__trace_reader_next(reader, &event));
		CHECK_EQ(event.address, i);
		CHECK_EQ(hr_stack_get_frames(event.stack, &frame, 1), 1);
		if (event.stack == HR_STACK_OTHER) CHECK_STR(hr_name_text(frame.function), "(other)");
		else CHECK_EQ(frame.line, i);
		others += event.stack == HR_STACK_OTHER;
	}
	CHECK_GE(others, 66); /* 65,534 of 65,600 can be told apart */
	CHECK_LT(others, 10000);
	expect_end(reader);
	hr__names_reset_for_test();
}

static void test_trace_tells_the_time(void)
{
	const char *path = in_folder("time");
	struct timespec pause = { 0, 30000000 };
	uint64_t wall = hr__os()->wall_clock_ns();
	CHECK_STATUS(HR_OK, hr__trace_open(path));
	uint64_t start = hr__os()->clock_ns();
	hr__trace_free(0, 1, 0);
	uint64_t before = hr__os()->clock_ns();
	nanosleep(&pause, NULL);
	hr__trace_free(0, 2, 0);
	uint64_t after = hr__os()->clock_ns();
	CHECK_STATUS(HR_OK, hr__trace_close());
	hr__trace_reader *reader = open_file(path);
	uint64_t start_wall = hr__trace_reader_summary(reader)->start_wall_ns;
	CHECK_GE(start_wall, wall);
	CHECK_LT(start_wall - wall, 10000000000);
	hr__event first, second;
	CHECK_STATUS(HR_OK, hr__trace_reader_next(reader, &first));
	CHECK_STATUS(HR_OK, hr__trace_reader_next(reader, &second));
	uint64_t apart = second.time_ns - first.time_ns;
	CHECK_GE(apart, 30000000 * 0.999);
	CHECK_LE(apart, (after - start) * 1.001);
	CHECK_LE(before - start, after - start);
	expect_end(reader);
}

static void test_trace_without_events_is_a_trace(void)
{
	const char *path = in_folder("empty");
	CHECK_STATUS(HR_OK, hr__trace_open(path));
	CHECK_STATUS(HR_OK, hr__trace_close());
	hr__trace_reader *reader = open_file(path);
	CHECK(hr__trace_reader_summary(reader)->complete);
	CHECK_EQ(hr__trace_reader_summary(reader)->events, 0);
	CHECK_EQ(hr__trace_reader_summary(reader)->blocks, 0);
	expect_end(reader);
}

static void test_trace_takes_at_most_16_bytes_per_event(void)
{
	const char *path = in_folder("training");
	CHECK_STATUS(HR_OK, hr__trace_open(path));
	uint64_t events = write_training(500);
	CHECK_STATUS(HR_OK, hr__trace_close());
	double each = (double)size_of(path) / (double)events;
	printf("# %.2f bytes per event\n", each);
	CHECK_LE(each, 16);
	hr__trace_reader *reader = open_file(path);
	CHECK_EQ(hr__trace_reader_summary(reader)->events, events);
	hr__trace_reader_close(reader);
}

static void test_trace_can_be_read_while_it_is_written(void)
{
	const char *path = in_folder("live");
	hr__event event;
	CHECK_STATUS(HR_OK, hr__trace_open_blocks(path, SMALL_BLOCK));
	for (uint64_t i = 0; i < 2000; i++) {
		hr__trace_event(&(hr__event){ .kind = HR__EVENT_MARK, .bytes = i, .tag = name_number((unsigned)i) });
		if (i % 100 != 0) continue;
		hr__trace_reader *reader = open_file(path);
		CHECK(!hr__trace_reader_summary(reader)->complete);
		CHECK_EQ(hr__trace_reader_summary(reader)->events, i + 1);
		for (uint64_t k = 0; k <= i; k++) {
			CHECK_STATUS(HR_OK, hr__trace_reader_next(reader, &event));
			CHECK_EQ(event.bytes, k);
			CHECK_EQ(event.tag, name_number((unsigned)k));
		}
		expect_end(reader);
	}
	CHECK_STATUS(HR_OK, hr__trace_close());
}

/* ---- threads ---- */

#define THREADS 8u

static void write_numbered(void *argument, unsigned index)
{
	uint64_t count = *(uint64_t *)argument;
	for (uint64_t i = 0; i < count; i++) {
		hr_request request = HR_REQUEST(i + 1);
		request.op = name_number((unsigned)(i % 50 + index));
		request.tag = name_number(1000 + index);
		hr__trace_alloc(index, &request, i * 256, i + 1);
	}
}

static void test_trace_keeps_every_event_of_every_thread(void)
{
	const char *path = in_folder("threads");
	uint64_t count = hr_test_scaled(100000), next[THREADS] = { 0 }, time = 0;
	CHECK_STATUS(HR_OK, hr__trace_open(path));
	hr_test_threads(THREADS, write_numbered, &count);
	CHECK_EQ(hr__trace_lost(), 0);
	CHECK_STATUS(HR_OK, hr__trace_close());
	hr__trace_reader *reader = open_file(path);
	const hr__trace_summary *summary = hr__trace_reader_summary(reader);
	CHECK(summary->complete);
	CHECK_EQ(summary->events, count * THREADS);
	CHECK_EQ(summary->threads, THREADS);
	CHECK_EQ(summary->lost, 0);
	for (uint64_t i = 0; i < count * THREADS; i++) {
		hr__event event;
		CHECK_STATUS(HR_OK, hr__trace_reader_next(reader, &event));
		CHECK_GE(event.time_ns, time);
		time = event.time_ns;
		CHECK_LT(event.allocator, THREADS);
		uint64_t number = next[event.allocator]++;
		CHECK_EQ(event.bytes, number + 1);
		CHECK_EQ(event.address, number * 256);
		CHECK_EQ(event.op, name_number((unsigned)(number % 50 + event.allocator)));
		CHECK_EQ(event.tag, name_number(1000 + event.allocator));
	}
	expect_end(reader);
}

static void *write_one_and_leave(void *argument)
{
	hr__trace_free((uint32_t)(uintptr_t)argument, 1, 0);
	hr__trace_free((uint32_t)(uintptr_t)argument, 2, 0);
	hr__trace_thread_exit();
	return NULL;
}

static void test_trace_threads_that_end_leave_their_block_to_others(void)
{
	enum { COUNT = 1000 };
	const char *path = in_folder("churn");
	CHECK_STATUS(HR_OK, hr__trace_open(path));
	for (uintptr_t i = 0; i < COUNT; i++) {
		pthread_t thread;
		CHECK_EQ(pthread_create(&thread, NULL, write_one_and_leave, (void *)i), 0);
		pthread_join(thread, NULL);
	}
	CHECK_STATUS(HR_OK, hr__trace_close());
	hr__trace_reader *reader = open_file(path);
	CHECK_EQ(hr__trace_reader_summary(reader)->blocks, 1);
	CHECK_EQ(hr__trace_reader_summary(reader)->threads, COUNT);
	for (unsigned i = 0; i < 2 * COUNT; i++) {
		hr__event event;
		CHECK_STATUS(HR_OK, hr__trace_reader_next(reader, &event));
		CHECK_EQ(event.thread, i / 2);
		CHECK_EQ(event.allocator, i / 2);
		CHECK_EQ(event.address, 1 + i % 2);
	}
	expect_end(reader);
}

static _Atomic(bool) stop_writing;

static void write_until_stopped(void *argument, unsigned index)
{
	(void)argument;
	for (unsigned i = 0; !atomic_load(&stop_writing); i++) {
		hr_request request = HR_REQUEST(64);
		request.op = name_number(i % 100);
		if (hr__trace_is_on()) hr__trace_alloc(index, &request, i, 64);
		if (i % 1000 == 0) hr__trace_thread_exit();
	}
}

static void *open_and_close(void *argument)
{
	uint64_t rounds = hr_test_scaled(60);
	(void)argument;
	for (uint64_t i = 0; i < rounds; i++) {
		char name[32];
		uint64_t events;
		bool complete = false;
		snprintf(name, sizeof name, "race_%llu", (unsigned long long)i);
		const char *path = in_folder(name);
		CHECK_STATUS(HR_OK, hr__trace_open_blocks(path, i % 2 ? SMALL_BLOCK : HR__TRACE_BLOCK_BYTES));
		nanosleep(&(struct timespec){ 0, 1000000 }, NULL);
		CHECK_STATUS(HR_OK, hr__trace_close());
		bytes file = bytes_of(path);
		CHECK_STATUS(HR_OK, read_all(file.data, file.size, &events, &complete));
		CHECK(complete);
		free(file.data);
		unlink(path);
	}
	atomic_store(&stop_writing, true);
	return NULL;
}

static void test_trace_closes_under_writing_threads(void)
{
	pthread_t thread;
	CHECK_EQ(pthread_create(&thread, NULL, open_and_close, NULL), 0);
	hr_test_threads(4, write_until_stopped, NULL);
	pthread_join(thread, NULL);
}

/* Pauses between bursts, so that the reader can keep up. */
static void write_in_bursts(void *argument, unsigned index)
{
	(void)argument;
	for (unsigned i = 0; i < 200; i++) {
		for (unsigned k = 0; k < 500; k++) {
			hr_request request = HR_REQUEST(64);
			request.op = name_number((i * 37 + k) % 5000);
			hr__trace_alloc(index, &request, k, 64);
		}
		nanosleep(&(struct timespec){ 0, 1000000 }, NULL);
	}
	atomic_store(&stop_writing, true);
}

static void *read_live(void *argument)
{
	while (!atomic_load(&stop_writing)) {
		hr__event event;
		uint64_t events = 0;
		hr__trace_reader *reader = open_file(argument);
		CHECK(!hr__trace_reader_summary(reader)->complete);
		while (hr__trace_reader_next(reader, &event) == HR_OK) events++;
		CHECK_EQ(events, hr__trace_reader_summary(reader)->events);
		hr__trace_reader_close(reader);
	}
	return NULL;
}

static void test_trace_can_be_read_while_threads_write_it(void)
{
	char path[256];
	pthread_t thread;
	snprintf(path, sizeof path, "%s", in_folder("live_threads"));
	CHECK_STATUS(HR_OK, hr__trace_open_blocks(path, SMALL_BLOCK));
	CHECK_EQ(pthread_create(&thread, NULL, read_live, path), 0);
	hr_test_threads(2, write_in_bursts, NULL);
	pthread_join(thread, NULL);
	CHECK_STATUS(HR_OK, hr__trace_close());
}

static void *write_one_and_vanish(void *argument)
{
	hr__trace_free((uint32_t)(uintptr_t)argument, 1, 0);
	return NULL;
}

static void test_trace_counts_the_events_of_too_many_threads(void)
{
	enum { COUNT = 16384 + 10 };
	if (HR_TEST_SANITIZED) hr_test_skip("16,394 threads take minutes under a sanitizer");
	const char *path = in_folder("vanishing");
	CHECK_STATUS(HR_OK, hr__trace_open_blocks(path, SMALL_BLOCK));
	for (uintptr_t i = 0; i < COUNT; i++) {
		pthread_t thread;
		CHECK_EQ(pthread_create(&thread, NULL, write_one_and_vanish, (void *)i), 0);
		pthread_join(thread, NULL);
	}
	CHECK_EQ(hr__trace_lost(), 10);
	CHECK_STATUS(HR_IO, hr__trace_close());
	CHECK_CONTAINS(hr_last_message(), "too many threads");
	hr__trace_reader *reader = open_file(path);
	CHECK_EQ(hr__trace_reader_summary(reader)->events, COUNT - 10);
	CHECK_EQ(hr__trace_reader_summary(reader)->lost, 10);
	for (unsigned i = 0; i < COUNT - 10; i++) {
		hr__event event;
		CHECK_STATUS(HR_OK, hr__trace_reader_next(reader, &event));
		CHECK_EQ(event.allocator, i);
		CHECK_EQ(event.thread, i);
	}
	expect_end(reader);
}

/* ---- the writer dies ---- */

typedef struct progress {
	_Atomic(uint64_t) written[2];
	char path[256];
} progress;

static void write_and_report(void *argument, unsigned index)
{
	progress *p = argument;
	for (uint64_t i = 0;; i++) {
		hr_request request = HR_REQUEST(i + 1);
		request.op = name_number((unsigned)(i / 7 % 5000));
		hr_stack_set(stack_number((unsigned)(i / 5 % 3000)));
		hr__trace_alloc(index, &request, i * 4096, i + 1);
		atomic_store_explicit(&p->written[index], i + 1, memory_order_release);
	}
}

static void record_for_ever(void *argument)
{
	progress *p = argument;
	CHECK_STATUS(HR_OK, hr__trace_open_blocks(p->path, SMALL_BLOCK));
	hr_test_threads(2, write_and_report, p);
}

static void check_survivors(const char *path, const uint64_t reported[2])
{
	hr__event event;
	uint64_t found[2] = { 0, 0 };
	hr__trace_reader *reader = open_file(path);
	CHECK(!hr__trace_reader_summary(reader)->complete);
	while (hr__trace_reader_next(reader, &event) == HR_OK) {
		CHECK_LT(event.allocator, 2);
		uint64_t number = found[event.allocator]++;
		CHECK_EQ(event.bytes, number + 1);
		CHECK_EQ(event.address, number * 4096);
		CHECK_EQ(event.op, name_number((unsigned)(number / 7 % 5000)));
		CHECK_EQ(event.stack, stack_number((unsigned)(number / 5 % 3000)));
	}
	hr__trace_reader_close(reader);
	for (int i = 0; i < 2; i++) CHECK_GE(found[i], reported[i]);
}

static void test_trace_survives_kill_9(void)
{
	progress *p = mmap(NULL, sizeof *p, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	uint64_t seed = hr_test_seed(), rounds = hr_test_scaled(10);
	CHECK(p != MAP_FAILED);
	for (uint64_t round = 0; round < rounds; round++) {
		snprintf(p->path, sizeof p->path, "%s", in_folder("killed"));
		atomic_store(&p->written[0], 0);
		atomic_store(&p->written[1], 0);
		fflush(stdout);
		pid_t child = fork();
		CHECK(child >= 0);
		if (child == 0) {
			record_for_ever(p);
			_exit(0);
		}
		while (atomic_load(&p->written[0]) < 100 || atomic_load(&p->written[1]) < 100) usleep(100);
		usleep((useconds_t)hr_rand_below(&seed, 20000));
		kill(child, SIGKILL);
		waitpid(child, NULL, 0);
		uint64_t reported[2] = { atomic_load(&p->written[0]), atomic_load(&p->written[1]) };
		check_survivors(p->path, reported);
		unlink(p->path);
	}
	munmap(p, sizeof *p);
}

static void write_in_child(void *argument)
{
	const char *own_path = argument;
	CHECK(!hr__trace_is_on());
	hr__trace_free(99, 99, 0);
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr__trace_close());
	CHECK_STATUS(HR_OK, hr__trace_open(own_path));
	hr__trace_free(1, 1, 0);
	CHECK_STATUS(HR_OK, hr__trace_close());
	hr__trace_reader *reader = open_file(own_path);
	CHECK_EQ(hr__trace_reader_summary(reader)->events, 1);
	hr__trace_reader_close(reader);
	unlink(own_path);
}

static void *write_beside_forks(void *argument)
{
	write_until_stopped(argument, 5);
	return NULL;
}

static void test_a_fork_does_not_change_the_trace_of_the_parent(void)
{
	const char *path = in_folder("parent"), *child_path = in_folder("child");
	char own_path[256];
	pthread_t thread;
	hr__event event;
	uint64_t rounds = hr_test_scaled(20), mine = 0;
	snprintf(own_path, sizeof own_path, "%s", child_path);
	CHECK_STATUS(HR_OK, hr__trace_open_blocks(path, SMALL_BLOCK));
	/* ThreadSanitizer does not support fork in a program with threads. */
	if (!HR_TEST_SANITIZED) CHECK_EQ(pthread_create(&thread, NULL, write_beside_forks, NULL), 0);
	for (uint64_t i = 0; i < rounds; i++) {
		hr__trace_free(7, i, 0);
		CHECK_EQ(hr_test_in_child(write_in_child, own_path), 0);
	}
	atomic_store(&stop_writing, true);
	if (!HR_TEST_SANITIZED) pthread_join(thread, NULL);
	CHECK_STATUS(HR_OK, hr__trace_close());
	hr__trace_reader *reader = open_file(path);
	CHECK(hr__trace_reader_summary(reader)->complete);
	while (hr__trace_reader_next(reader, &event) == HR_OK) {
		CHECK_NE(event.allocator, 99);
		if (event.allocator != 7) continue;
		CHECK_EQ(event.address, mine);
		mine++;
	}
	CHECK_EQ(mine, rounds);
	hr__trace_reader_close(reader);
}

/* ---- errors ---- */

static void test_a_trace_that_cannot_start_or_stop_has_a_reason(void)
{
	const char *path = in_folder("taken");
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr__trace_close());
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr__trace_open(NULL));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr__trace_open(""));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr__trace_open_blocks(path, 5000));
	fclose(fopen(path, "w"));
	CHECK_STATUS(HR_IO, hr__trace_open(path));
	CHECK_CONTAINS(hr_last_message(), path);
	CHECK_EQ(size_of(path), 0);
	CHECK_STATUS(HR_IO, hr__trace_open("/nonexistent/directory/trace"));
	CHECK_CONTAINS(hr_last_message(), "/nonexistent/directory/trace");
	CHECK_STATUS(HR_IO, hr__trace_open("/proc/trace"));
	unlink(path);
	CHECK_STATUS(HR_OK, hr__trace_open(path));
	CHECK_STATUS(HR_IN_USE, hr__trace_open(in_folder("second")));
	CHECK(!exists(in_folder("second")));
	CHECK_STATUS(HR_OK, hr__trace_close());
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr__trace_close());
	struct stat facts;
	CHECK_EQ(stat(path, &facts), 0);
	CHECK_EQ(facts.st_mode & 0777, 0600);
}

static void test_the_trace_reader_explains_why_it_cannot_open(void)
{
	hr__trace_reader *reader = NULL;
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr__trace_reader_open(NULL, &reader));
	CHECK_STATUS(HR_IO, hr__trace_reader_open(in_folder("missing"), &reader));
	CHECK_CONTAINS(hr_last_message(), "missing");
	CHECK_STATUS(HR_IO, hr__trace_reader_open("/tmp", &reader));
	const char *path = in_folder("text");
	FILE *file = fopen(path, "w");
	for (int i = 0; i < 100; i++) fputs("this is not a trace\n", file);
	fclose(file);
	CHECK_STATUS(HR_BAD_FORMAT, hr__trace_reader_open(path, &reader));
	CHECK_CONTAINS(hr_last_message(), path);
	CHECK_CONTAINS(hr_last_message(), "byte 0");
	CHECK(reader == NULL);
}

/* Writes [count] events, of which the disk has room for some. Those can be read, and the program is not affected otherwise. */
static void write_to_full_disk(const char *path, uint64_t count, hr__event_kind kind)
{
	for (uint64_t i = 0; i < count; i++) {
		hr__event event = { .kind = kind, .bytes = i + 1, .tag = name_number((unsigned)(i % 1000)) };
		hr__trace_event(&event);
	}
	uint64_t lost = hr__trace_lost();
	CHECK_GT(lost, 0);
	CHECK_LT(lost, count);
	CHECK_STATUS(HR_IO, hr__trace_close());
	CHECK_CONTAINS(hr_last_message(), "missing");
	CHECK(!hr__trace_is_on());
	CHECK_EQ(hr__trace_lost(), lost);
	hr__trace_reader *reader = open_file(path);
	CHECK_EQ(hr__trace_reader_summary(reader)->lost, lost);
	CHECK_EQ(hr__trace_reader_summary(reader)->events, count - lost);
	for (uint64_t i = 0; i < count - lost; i++) {
		hr__event event;
		CHECK_STATUS(HR_OK, hr__trace_reader_next(reader, &event));
		CHECK_EQ(event.bytes, i + 1);
	}
	expect_end(reader);
}

static void test_a_trace_stays_readable_on_a_full_disk(void)
{
	const char *path = in_folder("full");
	struct rlimit limit = { 2u << 20, 2u << 20 };
	CHECK_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
	CHECK_STATUS(HR_OK, hr__trace_open(path));
	write_to_full_disk(path, 1000000, HR__EVENT_MARK);
	CHECK_LE(size_of(path), 2u << 20);
	CHECK_GT(size_of(path), 1900u << 10);
}

static void test_a_trace_stays_readable_when_the_disk_fills_up(void)
{
	const char *path = in_folder("filling");
	hr_fault_os_install();
	CHECK_STATUS(HR_OK, hr__trace_open(path));
	hr_fault_os_fail_nth(1, true, ENOSPC);
	for (uint64_t i = 0; i < 1000000; i++) hr__trace_event(&(hr__event){ .kind = HR__EVENT_MARK, .bytes = i + 1 });
	uint64_t lost = hr__trace_lost();
	CHECK_GT(lost, 0);
	/* Truncating the file fails too: it ends with empty blocks. */
	CHECK_STATUS(HR_IO, hr__trace_close());
	CHECK_CONTAINS(hr_last_message(), "ENOSPC");
	hr_fault_os_fail_nth(0, false, 0);
	hr__trace_reader *reader = open_file(path);
	CHECK(hr__trace_reader_summary(reader)->complete);
	CHECK_EQ(hr__trace_reader_summary(reader)->events, 1000000 - lost);
	CHECK_EQ(hr__trace_reader_summary(reader)->lost, lost);
	hr__trace_reader_close(reader);
	CHECK(hr_fault_os_is_clean());
	hr_fault_os_uninstall();
}

/* Records and reads with the [n]th call of the operating system failing. Whatever the outcome, nothing leaks. */
static void record_and_read(const char *path, unsigned events)
{
	hr__trace_reader *reader = NULL;
	hr__event event;
	hr_status status = hr__trace_open_blocks(path, SMALL_BLOCK);
	if (status != HR_OK) {
		CHECK(status == HR_IO || status == HR_NO_HOST_MEMORY);
		CHECK(!hr__trace_is_on());
		return;
	}
	hr__trace_define_device(1, "GPU:0", 1, 1);
	hr__trace_define_allocator(1, "a", "bfc", 1);
	for (unsigned i = 0; i < events; i++) {
		hr__trace_event(&(hr__event){ .kind = HR__EVENT_MARK, .bytes = i, .tag = name_number(i % 300) });
	}
	status = hr__trace_close();
	CHECK(status == HR_OK || status == HR_IO || status == HR_NO_HOST_MEMORY);
	CHECK(!hr__trace_is_on());
	status = hr__trace_reader_open(path, &reader);
	if (status != HR_OK) {
		CHECK(status == HR_IO || status == HR_NO_HOST_MEMORY);
		CHECK(reader == NULL);
		return;
	}
	while ((status = hr__trace_reader_next(reader, &event)) == HR_OK) continue;
	CHECK(status == HR_NOT_READY || status == HR_IO || status == HR_NO_HOST_MEMORY);
	hr__trace_reader_close(reader);
}

static void test_trace_leaves_nothing_behind_when_any_call_fails(void)
{
	const char *path = in_folder("nth");
	for (int forever = 0; forever < 2; forever++) {
		for (uint64_t n = 1;; n++) {
			hr_fault_os_install();
			hr_fault_os_fail_nth(n, forever, n % 2 ? ENOMEM : ENOSPC);
			record_and_read(path, 2000);
			bool reached = hr_fault_os_calls() >= n;
			CHECK(hr_fault_os_is_clean());
			hr_fault_os_uninstall();
			if (!reached) break;
			unlink(path);
			CHECK_LT(n, 10000);
		}
		uint64_t events;
		bool complete = false;
		bytes file = bytes_of(path);
		CHECK_STATUS(HR_OK, read_all(file.data, file.size, &events, &complete));
		CHECK_EQ(events, 2000);
		free(file.data);
		unlink(path);
	}
}

/* ---- damaged files ---- */

static void test_trace_cut_anywhere_is_read_or_refused(void)
{
	uint64_t total, events, most = 0;
	bool complete = true;
	bytes file = small_file("cut", &total);
	CHECK_STATUS(HR_OK, read_all(file.data, file.size, &events, &complete));
	CHECK_EQ(events, total);
	CHECK(complete);
	for (size_t size = 0; size < file.size; size++) {
		/* An exact copy, so that a sanitizer detects an access one byte past the end. */
		uint8_t *part = malloc(size + 1);
		memcpy(part, file.data, size);
		hr_status status = read_all(part, size, &events, &complete);
		if (size < 4096) CHECK_STATUS(HR_TRUNCATED, status);
		else CHECK_STATUS(HR_OK, status);
		if (status == HR_OK) {
			CHECK(!complete);
			CHECK_GE(events, most);
			CHECK_LE(events, total);
			most = events;
		}
		free(part);
	}
	CHECK_GE(most + 1, total);
	free(file.data);
}

static void test_trace_with_any_bytes_changed_is_read_or_refused(void)
{
	uint64_t total, events, seed = hr_test_seed(), rounds = hr_test_scaled(10000), refused = 0;
	bool complete;
	bytes file = small_file("flipped", &total);
	uint8_t *copy = malloc(file.size);
	for (uint64_t i = 0; i < rounds; i++) {
		memcpy(copy, file.data, file.size);
		uint64_t changes = 1 + hr_rand_below(&seed, 3);
		for (uint64_t k = 0; k < changes; k++) {
			/* The header's padding is 4,000 bytes without meaning. */
			uint64_t at = hr_rand_below(&seed, 128 + file.size - 4096);
			copy[at < 128 ? at : at - 128 + 4096] ^= (uint8_t)(1u << hr_rand_below(&seed, 8));
		}
		if (read_all(copy, file.size, &events, &complete) != HR_OK) refused++;
	}
	printf("# %llu of %llu refused\n", (unsigned long long)refused, (unsigned long long)rounds);
	CHECK_GT(refused, 0);
	free(copy);
	free(file.data);
}

/* ---- files made by hand, from docs/trace-format.md alone ---- */

static uint8_t made[4096];
static size_t made_size;

static void put_le(size_t at, uint64_t value, unsigned count)
{
	for (unsigned i = 0; i < count; i++) made[at + i] = (uint8_t)(value >> 8 * i);
}

/* A header of 128 bytes, and one block of 512 bytes at 128 whose records are [records]. */
static void make(const uint8_t *records, size_t length)
{
	memset(made, 0, sizeof made);
	memcpy(made, "\x89\x48\x52\x54\x0D\x0A\x1A\x0A", 8);
	put_le(8, 1, 2);
	put_le(12, 128, 4);
	put_le(32, 512, 4);
	put_le(36, 0x01020304, 4);
	put_le(40, 1700000000000000000, 8);
	put_le(56, 500000000, 8);
	put_le(80, 128 + 64 + length, 8);
	put_le(88, 1, 4);
	put_le(128, 0x4B425248, 4);
	put_le(132, 1, 1);
	put_le(128 + 12, 7, 4);
	put_le(128 + 24, 1000, 8);
	put_le(128 + 32, length, 4);
	if (length > 0) memcpy(made + 192, records, length);
	made_size = 192 + length;
}

/* Opens the made file; if it must not open, checks the message. */
static hr_status open_made(hr__trace_reader **reader, const char *message)
{
	*reader = NULL;
	hr_status status = hr__trace_reader_open_memory(made, made_size, reader);
	if (message != NULL) CHECK_CONTAINS(hr_last_message(), message);
	return status;
}

static void test_trace_example_of_the_documentation_reads_as_it_says(void)
{
	static const uint8_t records[] = {
		0x20, 0x00, 0x0B, 0x05, 0x72, 0x65, 0x6C, 0x75,                                     /* NAME 2 "relu" */
		0x21, 0x00, 0x09, 0x05, 0x05, 0x15, 0x33,                                           /* SHAPE 2 [10,25] */
		0xC1, 0x32, 0x09, 0x0F, 0x01, 0x00, 0x10, 0x00, 0x00, 0x09, 0x18, 0x02, 0x00, 0x02, 0x00, 0x6C, 0x00, /* ALLOC */
		0x02, 0x00, 0x00, 0x00, 0x00, 0x00, 0x4B, 0x00,                                     /* FREE */
	};
	hr__trace_reader *reader;
	hr__event event;
	make(records, sizeof records);
	CHECK_STATUS(HR_OK, open_made(&reader, NULL));
	CHECK(hr__trace_reader_summary(reader)->complete);
	CHECK_EQ(hr__trace_reader_summary(reader)->start_wall_ns, 1700000000000000000);
	CHECK_STATUS(HR_OK, hr__trace_reader_next(reader, &event));
	check_same(&event, &(hr__event){ .kind = HR__EVENT_ALLOC, .allocator = 7, .address = 0x100000, .bytes = 1024, .requested = 1000,
	                                 .op = hr_name_intern("relu"), .shape = hr_shape_intern((int64_t[]){ 10, 25 }, 2),
	                                 .dtype = HR_DTYPE_FLOAT32 });
	CHECK_EQ(event.thread, 7);
	CHECK_EQ(event.time_ns, 2 * (1000 + 0x6C));
	CHECK_STATUS(HR_OK, hr__trace_reader_next(reader, &event));
	check_same(&event, &(hr__event){ .kind = HR__EVENT_FREE, .allocator = 7, .address = 0x100000 });
	CHECK_EQ(event.time_ns, 2 * (1000 + 0x6C + 0x4B));
	expect_end(reader);
}

static void test_trace_reader_skips_what_a_later_version_may_add(void)
{
	static const uint8_t records[] = {
		0x0D, 0x80, 0x01, 0x00, 0x07, 0xAA, 0xBB, 0xCC,             /* SCOPE_PUSH with an extension of 3 bytes */
		0x13, 0x12, 0x05, 0x01, 0x02,                               /* kind 19, 2 bytes */
		0x3F, 0x00, 0x01,                                           /* kind 63, nothing */
		0x24, 0x00, 0x05, 0x07, 0xEE,                               /* THREAD 3 with an extra byte */
		0x0E, 0x40, 0x02, 0x00, 0x00, 0x00,                         /* cut off below */
	};
	hr__trace_reader *reader;
	hr__event event;
	uint8_t late[sizeof records];
	memcpy(late, records, sizeof records);
	/* SCOPE_POP with its time as a varint: 2 bytes, 1 + 1. */
	memcpy(late + sizeof records - 6, "\x0E\x40\x06\x00", 4);
	make(late, sizeof late - 2);
	CHECK_STATUS(HR_OK, open_made(&reader, NULL));
	CHECK_EQ(hr__trace_reader_summary(reader)->events, 2);
	CHECK_EQ(hr__trace_reader_summary(reader)->threads, 8);
	CHECK_STATUS(HR_OK, hr__trace_reader_next(reader, &event));
	CHECK_EQ(event.kind, HR__EVENT_SCOPE_PUSH);
	CHECK_EQ(event.thread, 7);
	CHECK_EQ(event.time_ns, 2002);
	CHECK_STATUS(HR_OK, hr__trace_reader_next(reader, &event));
	CHECK_EQ(event.kind, HR__EVENT_SCOPE_POP);
	CHECK_EQ(event.thread, 3);
	CHECK_EQ(event.time_ns, 2004);
	expect_end(reader);

	/* A longer header, optional features, a block of a type that may be skipped. */
	make(records, 5);
	memmove(made + 160 + 512, made + 128, 64);
	put_le(12, 160, 4);
	put_le(24, UINT64_MAX, 8);
	memset(made + 128, 0xFF, 32);
	memset(made + 160, 0, 64);
	put_le(160, 0x4B425248, 4);
	put_le(164, 200, 1);
	memcpy(made + 160 + 512 + 64, "\x0D\x00\x01\x00", 4);
	put_le(160 + 512 + 32, 4, 4);
	made_size = 160 + 512 + 64 + 4;
	put_le(80, made_size, 8);
	CHECK_STATUS(HR_OK, open_made(&reader, NULL));
	CHECK_EQ(hr__trace_reader_summary(reader)->events, 1);
	CHECK(hr__trace_reader_summary(reader)->complete);
	hr__trace_reader_close(reader);
}

/* The definition of the frame comes after that of the stack, and the extension has a field of a later version after the stack. */
static void test_trace_stack_of_the_documentation_reads_as_it_says(void)
{
	static const uint8_t records[] = {
		0x20, 0x00, 0x0B, 0x05, 0x6D, 0x61, 0x69, 0x6E,                   /* NAME 2 "main" */
		0x27, 0x00, 0x07, 0x05, 0x03, 0x05,                               /* STACK 2, 1 frame: 2 */
		0x26, 0x00, 0x0D, 0x05, 0x05, 0x01, 0x0F, 0x01, 0x01,             /* FRAME 2: function 2, line 7 */
		0x03, 0x80, 0x01, 0x00, 0x0B, 0x03, 0x02, 0x00, 0xAA, 0xBB,       /* ALLOC_FAILED with stack 2 */
		0x03, 0x00, 0x01, 0x00,                                           /* ALLOC_FAILED without */
		0x03, 0x80, 0x01, 0x00, 0x01,                                     /* with an empty extension */
		0x03, 0x80, 0x01, 0x00, 0x03, 0x02,                               /* with another field alone */
	};
	hr__trace_reader *reader;
	hr__event event;
	hr_frame frame;
	make(records, sizeof records);
	CHECK_STATUS(HR_OK, open_made(&reader, NULL));
	CHECK_STATUS(HR_OK, hr__trace_reader_next(reader, &event));
	CHECK_EQ(hr_stack_get_frames(event.stack, &frame, 1), 1);
	CHECK_STR(hr_name_text(frame.function), "main");
	CHECK_EQ(frame.line, 7);
	for (int i = 0; i < 3; i++) {
		CHECK_STATUS(HR_OK, hr__trace_reader_next(reader, &event));
		CHECK_EQ(event.stack, HR_STACK_NONE);
	}
	expect_end(reader);
	/* In a file that was cut off, a stack that is not defined is another one. */
	make(records + 23, sizeof records - 23);
	put_le(88, 0, 4);
	CHECK_STATUS(HR_OK, open_made(&reader, NULL));
	CHECK_STATUS(HR_OK, hr__trace_reader_next(reader, &event));
	CHECK_EQ(event.stack, HR_STACK_OTHER);
	hr__trace_reader_close(reader);
}

static void expect_bad(const uint8_t *records, size_t length, const char *message)
{
	hr__trace_reader *reader;
	make(records, length);
	CHECK_STATUS(HR_BAD_FORMAT, open_made(&reader, message));
}

#define EXPECT_BAD(message, ...)                                     \
	do {                                                             \
		static const uint8_t hr_records_[] = { __VA_ARGS__ };        \
		expect_bad(hr_records_, sizeof hr_records_, message);        \
	} while (0)

static void test_trace_reader_refuses_impossible_records(void)
{
	EXPECT_BAD("byte 192: a record of kind 0", 0x00, 0x00, 0x01);
	EXPECT_BAD("byte 192: a record reaches over the end", 0x02);
	EXPECT_BAD("byte 196: a record reaches over the end", 0x0D, 0x00, 0x01, 0x00, 0x0D, 0x00, 0x01);
	EXPECT_BAD("a bit that its kind does not have", 0x0D, 0x02, 0x00, 0x00, 0x01, 0x00);
	EXPECT_BAD("a bit that its kind does not have", 0x02, 0x08, 0x03, 0x00, 0x00, 0x00, 0x00, 0x01, 0x00);
	EXPECT_BAD("the context has a field", 0x42, 0x00, 0x08, 0x01, 0x00, 0x00, 0x00, 0x00, 0x01, 0x00);
	EXPECT_BAD("byte 200: the context", 0x02, 0, 0, 0, 0, 0, 0x01, 0x00, 0x42, 0x00, 0x10, 0x00, 0x00, 0x00, 0x00, 0x01, 0x00);
	EXPECT_BAD("a form that its kind does not have", 0x04, 0x18, 0x00, 0x00, 0x00, 0x00, 0x03, 0x03, 0x01, 0x00);
	EXPECT_BAD("size exceeds 64 bits", 0x04, 0x10, 0x00, 0x00, 0x00, 0x00, 0x00, 0, 0, 0, 0, 0, 0, 0, 1, 0x01, 0x00);
	EXPECT_BAD("time exceeds 64 bits", 0x0D, 0x40, 0x00, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF);
	EXPECT_BAD("allocator exceeds 32 bits", 0x42, 0x00, 0x01, 0x00, 0, 0, 0, 0, 1, 0, 0, 0, 0x00, 0x00, 0x00, 0x00, 0x01, 0x00);
	EXPECT_BAD("stream exceeds 32 bits", 0x42, 0x00, 0x02, 0x00, 0, 0, 0, 0, 1, 0, 0, 0, 0x00, 0x00, 0x00, 0x00, 0x01, 0x00);
	EXPECT_BAD("names name 5, which is not defined", 0x87, 0x00, 0x05, 0x00, 0x01, 0x00);
	EXPECT_BAD("names shape 6, which is not defined", 0x03, 0x02, 0x06, 0x00, 0x01, 0x00);
	EXPECT_BAD("longer than its record", 0x20, 0x00, 0x01);
	EXPECT_BAD("reaches over the end", 0x20, 0x00, 0x09, 0x05);
	EXPECT_BAD("not from 2 to 65535", 0x20, 0x00, 0x05, 0x03, 0x41);
	EXPECT_BAD("not from 2 to 65535", 0x21, 0x00, 0x09, 0x04, 0x00, 0x08, 0x01);
	EXPECT_BAD("more than 8 dimensions", 0x21, 0x00, 0x05, 0x05, 0x13);
	EXPECT_BAD("longer than its record", 0x21, 0x00, 0x07, 0x05, 0x05, 0x05);
	EXPECT_BAD("exceeds 63 bits", 0x21, 0x00, 0x17, 0x05, 0x03, 0x00, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF);
	EXPECT_BAD("longer than its record", 0x22, 0x00, 0x05, 0x05, 0x05);
	EXPECT_BAD("longer than its record", 0x23, 0x00, 0x09, 0x05, 0x05, 0xFF, 0x41);
	EXPECT_BAD("a number exceeds 32 bits", 0x22, 0x00, 0x13, 0x00, 0, 0, 0, 0, 1, 0, 0, 0);
	EXPECT_BAD("not from 2 to 65535", 0x26, 0x00, 0x0D, 0x03, 0x01, 0x01, 0x01, 0x01, 0x01);
	EXPECT_BAD("longer than its record", 0x26, 0x00, 0x05, 0x05, 0x01);
	EXPECT_BAD("a number above 65535", 0x26, 0x00, 0x11, 0x05, 0x04, 0x00, 0x08, 0x01, 0x01, 0x01, 0x01);
	EXPECT_BAD("a line exceeds 32 bits", 0x26, 0x00, 0x1D, 0x05, 0x01, 0x01, 0x00, 0, 0, 0, 0, 1, 0, 0, 0, 0x01, 0x01);
	EXPECT_BAD("names name 9, which is not defined", 0x26, 0x00, 0x0D, 0x05, 0x13, 0x01, 0x01, 0x01, 0x01);
	EXPECT_BAD("from 1 to 128 frames", 0x27, 0x00, 0x05, 0x05, 0x01);
	EXPECT_BAD("from 1 to 128 frames", 0x27, 0x00, 0x07, 0x05, 0x06, 0x02);
	EXPECT_BAD("longer than its record", 0x27, 0x00, 0x07, 0x05, 0x05, 0x03);
	EXPECT_BAD("names frame 7, which is not defined", 0x27, 0x00, 0x07, 0x05, 0x03, 0x0F);
	EXPECT_BAD("names stack 5, which is not defined", 0x03, 0x80, 0x01, 0x00, 0x07, 0x01, 0x05, 0x00);
	EXPECT_BAD("shorter than its fields", 0x03, 0x80, 0x01, 0x00, 0x05, 0x01, 0x05);
	EXPECT_BAD("a thread is not below", 0x24, 0x00, 0x09, 0x08, 0x00, 0x00, 0x01);
}

static void test_trace_reader_refuses_impossible_blocks_and_headers(void)
{
	static const uint8_t record[] = { 0x0D, 0x00, 0x01, 0x00 };
	static const struct {
		size_t at;
		uint64_t value;
		unsigned bytes;
		hr_status status;
		const char *message;
	} cases[] = {
		{ 0, 0, 1, HR_BAD_FORMAT, "byte 0" },
		{ 8, 0, 2, HR_BAD_FORMAT, "version 0" },
		{ 8, 2, 2, HR_TOO_NEW, "version 2.0" },
		{ 12, 127, 4, HR_BAD_FORMAT, "byte 12" },
		{ 12, UINT32_MAX, 4, HR_BAD_FORMAT, "byte 12" },
		{ 12, 4000, 4, HR_BAD_FORMAT, "byte 80" },
		{ 16, 1, 8, HR_TOO_NEW, "features" },
		{ 32, 255, 4, HR_BAD_FORMAT, "byte 32" },
		{ 32, (16u << 20) + 1, 4, HR_BAD_FORMAT, "byte 32" },
		{ 36, 0x04030201, 4, HR_BAD_FORMAT, "byte 36" },
		{ 56, 0, 8, HR_BAD_FORMAT, "byte 56" },
		{ 128, 0x4B425249, 4, HR_BAD_FORMAT, "byte 128" },
		{ 132, 2, 1, HR_TOO_NEW, "type 2 at byte 128" },
		{ 136, 1, 4, HR_BAD_FORMAT, "byte 136" },
		{ 140, 1u << 20, 4, HR_BAD_FORMAT, "byte 140" },
		{ 144, 1, 8, HR_BAD_FORMAT, "byte 144" },
		{ 160, 449, 4, HR_BAD_FORMAT, "byte 160" },
		{ 160, 3, 4, HR_BAD_FORMAT, "byte 192" },
	};
	hr__trace_reader *reader;
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		make(record, sizeof record);
		put_le(cases[i].at, cases[i].value, cases[i].bytes);
		CHECK_STATUS(cases[i].status, open_made(&reader, cases[i].message));
	}
	/* A second block of the lane: earlier than the first, or with a wrong number. */
	for (int i = 0; i < 3; i++) {
		make(record, sizeof record);
		memcpy(made + 128 + 512, made + 128, 68);
		made_size = 128 + 512 + 68;
		put_le(80, made_size, 8);
		put_le(128 + 512 + 16, 1, 8);
		put_le(128 + 512 + 24, i == 0 ? 1001 : 1000, 8);
		if (i == 2) put_le(128 + 512 + 16, 0, 8);
		hr_status status = open_made(&reader, i == 0 ? NULL : i == 1 ? "byte 664: the times are not in order" : "byte 656");
		CHECK_STATUS(i == 0 ? HR_OK : HR_BAD_FORMAT, status);
		if (i == 0) hr__trace_reader_close(reader);
	}
}

/* A trace of one block with the definitions of [count] devices, whose numbers collide in simple hash tables. */
static hr_status open_devices(unsigned count, hr__trace_reader **reader)
{
	enum { EACH = 2 + 1 + 9 + 2 };
	static uint8_t file[(1u << 20) + 4096];
	make(NULL, 0);
	memcpy(file, made, 192);
	for (unsigned i = 0; i < count; i++) {
		uint8_t *record = file + 192 + (size_t)i * EACH;
		uint64_t number = (uint64_t)i << 8;
		memcpy(record, "\x22\x00\x17\x00", 4);
		memcpy(record + 4, &number, 8);
		memcpy(record + 12, "\x03\x03", 2);
	}
	uint32_t length = count * EACH, block_size = 1u << 20;
	uint64_t size = 192 + length;
	memcpy(file + 32, &block_size, 4);
	memcpy(file + 80, &size, 8);
	memcpy(file + 160, &length, 4);
	*reader = NULL;
	return hr__trace_reader_open_memory(file, size, reader);
}

static void test_trace_reader_takes_many_devices_but_not_any_number(void)
{
	hr__trace_reader *reader;
	CHECK_STATUS(HR_OK, open_devices(65536, &reader));
	CHECK_EQ(hr__trace_reader_summary(reader)->device_count, 65536);
	for (unsigned i = 0; i < 65536; i++) CHECK_EQ(hr__trace_reader_summary(reader)->devices[i].id, i << 8);
	hr__trace_reader_close(reader);
	CHECK_STATUS(HR_BAD_FORMAT, open_devices(65537, &reader));
}

static void test_trace_reader_notices_that_the_file_changes(void)
{
	hr__event event;
	hr_status status;
	for (int damage = 0; damage < 2; damage++) {
		const char *path = in_folder(damage == 0 ? "shrinking" : "changing");
		CHECK_STATUS(HR_OK, hr__trace_open_blocks(path, SMALL_BLOCK));
		for (unsigned i = 0; i < 5000; i++) hr__trace_free(1, i * 256, 0);
		CHECK_STATUS(HR_OK, hr__trace_close());
		hr__trace_reader *reader = open_file(path);
		FILE *file = fopen(path, "r+b");
		static const char zeros[64];
		if (damage == 0) CHECK_EQ(ftruncate(fileno(file), 4096 + 2 * 4096 + 1000), 0);
		CHECK_EQ(fseek(file, 4096 + 4096 + 64, SEEK_SET), 0);
		if (damage == 1) CHECK_EQ(fwrite(zeros, 1, sizeof zeros, file), sizeof zeros);
		fclose(file);
		while ((status = hr__trace_reader_next(reader, &event)) == HR_OK) continue;
		CHECK_STATUS(damage == 0 ? HR_IO : HR_BAD_FORMAT, status);
		CHECK_CONTAINS(hr_last_message(), "byte");
		CHECK_STATUS(damage == 0 ? HR_IO : HR_BAD_FORMAT, hr__trace_reader_next(reader, &event));
		hr__trace_reader_close(reader);
	}
}

/* ---- large blocks, which are read in pieces ---- */

/* Writes the header of a block of records. */
static void put_block_header(uint8_t *to, uint32_t lane, uint32_t committed)
{
	memset(to, 0, 64);
	memcpy(to, "HRBK", 4);
	to[4] = 1;
	memcpy(to + 8, &lane, 4);
	memcpy(to + 12, &lane, 4);
	memcpy(to + 32, &committed, 4);
}

static uint8_t *put_free(uint8_t *to, uint16_t after)
{
	static const uint8_t same_address[6] = { 0x02 };
	memcpy(to, same_address, 6);
	memcpy(to + 6, &after, 2);
	return to + 8;
}

static uint8_t *put_long(uint8_t *to, uint64_t value)
{
	*to = 0;
	memcpy(to + 1, &value, 8);
	return to + 9;
}

/* Blocks of 16 MiB in a sparse file, each with an event, a record of a later version that nearly fills it, and another event. */
static void test_trace_reader_needs_no_memory_for_what_it_skips(void)
{
	enum { LANES = 40, BLOCK = 16 << 20 };
	const char *path = in_folder("sparse");
	struct hr_fault_os_live live;
	hr__event event;
	uint64_t count = 0, most = 0;
	make(NULL, 0);
	put_le(32, BLOCK, 4);
	put_le(80, 128 + (uint64_t)LANES * BLOCK, 8);
	FILE *file = fopen(path, "w+b");
	CHECK_EQ(fwrite(made, 1, 128, file), 128);
	for (uint32_t lane = 0; lane < LANES; lane++) {
		uint8_t head[64 + 8 + 2 + 9], tail[8];
		put_block_header(head, lane, BLOCK - 64);
		uint8_t *at = put_free(head + 64, (uint16_t)lane);
		*at++ = 40;
		*at++ = 0;
		CHECK(put_long(at, BLOCK - sizeof head - sizeof tail) == head + sizeof head);
		put_free(tail, 1000);
		CHECK_EQ(pwrite(fileno(file), head, sizeof head, 128 + (off_t)lane * BLOCK), sizeof head);
		CHECK_EQ(pwrite(fileno(file), tail, sizeof tail, 128 + (off_t)(lane + 1) * BLOCK - (off_t)sizeof tail), sizeof tail);
	}
	fclose(file);
	hr_fault_os_install();
	hr__trace_reader *reader = open_file(path);
	CHECK(hr__trace_reader_summary(reader)->complete);
	while (hr__trace_reader_next(reader, &event) == HR_OK) {
		CHECK_EQ(event.thread, count % LANES);
		CHECK_EQ(event.time_ns, 2 * (count % LANES + 1000 * (count / LANES)));
		count++;
		hr_fault_os_live(&live);
		if (live.alloc_bytes > most) most = live.alloc_bytes;
	}
	CHECK_EQ(count, 2 * LANES);
	CHECK_LT(most, LANES * (64u << 10) + (2u << 20));
	expect_end(reader);
	hr_fault_os_uninstall();
}

/* Random records, some of which reach over several pieces, that nearly fill a block of [size] bytes with its header. */
static uint32_t fill_block(uint8_t *block, size_t size, uint64_t *seed)
{
	static const uint64_t lengths[] = { 0, 3, 60, 200, 65400, 65536, 65700, 200000 };
	uint8_t *at = block + 64, *end = block + size;
	while (end - at > 200100) {
		uint64_t length = lengths[hr_rand_below(seed, hr_rand_below(seed, 20) ? 4 : 8)];
		switch (hr_rand_below(seed, 12)) {
		case 0: /* a record of a later version */
		case 1: /* a name: the rest of the payload is its text */
			*at++ = hr_rand_below(seed, 2) ? 45 : 32;
			*at++ = 0;
			at = put_long(at, length + 1);
			*at++ = 5;
			memset(at, 'x', length);
			at += length;
			break;
		case 2: /* a thread, with bytes that a later version adds */
			*at++ = 36;
			*at++ = 0;
			at = put_long(at, length + 9);
			at = put_long(at, hr_rand_below(seed, 1000)) + length;
			break;
		case 3: /* an extension of an event */
			at = put_free(at, 1);
			at[-7] = 0x80;
			at = put_long(at, length) + length;
			break;
		default: at = put_free(at, (uint16_t)hr_rand_below(seed, 100));
		}
	}
	return (uint32_t)(at - block - 64);
}

static void test_trace_of_large_blocks_reads_from_a_file_as_from_memory(void)
{
	enum { BLOCKS = 3, BLOCK = 1 << 20 };
	uint64_t seed = hr_test_seed();
	uint8_t *all = malloc(128 + BLOCKS * BLOCK);
	for (uint64_t round = 0; round < hr_test_scaled(20); round++) {
		const char *path = in_folder("large");
		hr__trace_reader *readers[2];
		hr__event a, b;
		hr_status status;
		memset(all, 0, 128 + BLOCKS * BLOCK);
		make(NULL, 0);
		put_le(32, BLOCK, 4);
		put_le(80, 128 + BLOCKS * BLOCK, 8);
		memcpy(all, made, 128);
		for (uint32_t i = 0; i < BLOCKS; i++) put_block_header(all + 128 + i * BLOCK, i, fill_block(all + 128 + i * BLOCK, BLOCK, &seed));
		size_t size = hr_rand_below(&seed, 2) ? 128 + BLOCKS * BLOCK : 128 + BLOCKS * BLOCK - hr_rand_below(&seed, BLOCK);
		FILE *file = fopen(path, "wb");
		CHECK_EQ(fwrite(all, 1, size, file), size);
		fclose(file);
		readers[0] = open_file(path);
		CHECK_STATUS(HR_OK, hr__trace_reader_open_memory(all, size, &readers[1]));
		do {
			status = hr__trace_reader_next(readers[0], &a);
			CHECK_STATUS(status, hr__trace_reader_next(readers[1], &b));
			if (status == HR_OK) check_same(&a, &b);
			if (status == HR_OK) CHECK(a.time_ns == b.time_ns && a.thread == b.thread);
		} while (status == HR_OK);
		expect_end(readers[0]);
		expect_end(readers[1]);
	}
	free(all);
}

/* A file without its header cannot be read, so nothing slow may happen between the creation of the file and its header. */
static hr__os_table creating_os;
static uint64_t created_ticks;

static int create_and_note(const char *path, int *out_fd)
{
	created_ticks = hr__ticks();
	return hr__os_linux()->file_create(path, out_fd);
}

static void test_trace_has_measured_the_clock_before_there_is_a_file(void)
{
	const char *path = in_folder("clock");
	uint64_t start_ticks;
	creating_os = *hr__os_linux();
	creating_os.file_create = create_and_note;
	hr__os_replace(&creating_os);
	CHECK_STATUS(HR_OK, hr__trace_open(path));
	CHECK_STATUS(HR_OK, hr__trace_close());
	hr__os_replace(NULL);
	bytes file = bytes_of(path);
	memcpy(&start_ticks, file.data + 48, 8);
	CHECK_LE(start_ticks, created_ticks);
	free(file.data);
}

/* Linux, but the recording is closed, and so the file truncated to its size, right before a read of it. */
static hr__os_table closing_os;
static uint64_t reads_until_close;

static int close_and_read(int fd, void *to, size_t count, uint64_t offset, size_t *out_read)
{
	if (reads_until_close > 0 && --reads_until_close == 0) CHECK_STATUS(HR_OK, hr__trace_close());
	return hr__os_linux()->file_read(fd, to, count, offset, out_read);
}

static void test_trace_that_is_closed_while_it_is_opened_can_be_read(void)
{
	enum { EVENTS = 5000 };
	closing_os = *hr__os_linux();
	closing_os.file_read = close_and_read;
	hr__os_replace(&closing_os);
	for (uint64_t read = 1; read < 60; read++) {
		const char *path = in_folder("closing");
		hr__trace_reader *reader = NULL;
		hr__event event;
		uint64_t count = 0;
		CHECK_STATUS(HR_OK, hr__trace_open_blocks(path, SMALL_BLOCK));
		for (unsigned i = 0; i < EVENTS; i++) hr__trace_free(1, i * 256, 0);
		reads_until_close = read;
		CHECK_STATUS(HR_OK, hr__trace_reader_open(path, &reader));
		CHECK_EQ(reads_until_close, 0);
		CHECK(hr__trace_reader_summary(reader)->complete == (read == 1));
		while (hr__trace_reader_next(reader, &event) == HR_OK) count++;
		CHECK_EQ(count, EVENTS);
		expect_end(reader);
		CHECK_EQ(unlink(path), 0);
	}
	hr__os_replace(NULL);
}

static void test_trace_undefined_names_in_a_cut_file_read_as_other(void)
{
	static const uint8_t records[] = { 0x87, 0x00, 0x05, 0x00, 0x01, 0x00 };
	hr__trace_reader *reader;
	hr__event event;
	make(records, sizeof records);
	put_le(88, 0, 4);
	CHECK_STATUS(HR_OK, open_made(&reader, NULL));
	CHECK(!hr__trace_reader_summary(reader)->complete);
	CHECK_STATUS(HR_OK, hr__trace_reader_next(reader, &event));
	CHECK_EQ(event.op, HR_NAME_OTHER);
	expect_end(reader);
}

/* ---- seeds for fuzz/fuzz_trace_reader.c ---- */

/* Writes the file at [path], which has small blocks, as a seed: a byte that selects the fuzzer's mode, then the file with its
 * header cut to the meaningful part. Seeds are written to the directory $HR_TRACE_SEEDS if that is set. */
static void save_seed(const char *path, const char *name, uint8_t mode, size_t cut)
{
	const char *seeds = getenv("HR_TRACE_SEEDS");
	char target[512];
	uint64_t events;
	bool complete;
	bytes file = bytes_of(path);
	memcpy(made, file.data, 128);
	put_le(12, 128, 4);
	if (made[88] != 0) put_le(80, file.size - 4096 + 128, 8);
	size_t size = file.size - 4096 + 128 - cut;
	uint8_t *seed = malloc(size + 1);
	seed[0] = mode;
	memcpy(seed + 1, made, 128);
	memcpy(seed + 1 + 128, file.data + 4096, size - 128);
	CHECK_STATUS(HR_OK, read_all(seed + 1, size, &events, &complete));
	if (seeds != NULL) snprintf(target, sizeof target, "%s/%s", seeds, name);
	else snprintf(target, sizeof target, "%s", in_folder("seed"));
	FILE *out = fopen(target, "wb");
	CHECK(out != NULL);
	CHECK_EQ(fwrite(seed, 1, size + 1, out), size + 1);
	fclose(out);
	free(seed);
	free(file.data);
	unlink(path);
}

static void write_kinds(int level)
{
	for (int kind = 1; kind <= 18; kind++) {
		hr__event event = event_at_level((hr__event_kind)kind, level);
		hr__trace_event(&event);
	}
}

static void write_a_few(void *argument, unsigned index)
{
	for (unsigned i = 0; i < 5; i++) hr__trace_free(index, i * 256, index);
	if (argument != NULL) hr__trace_thread_exit();
}

static void test_trace_seeds_for_the_fuzzer_are_traces(void)
{
	const char *path = in_folder("seed.trace");
	CHECK_STATUS(HR_OK, hr__trace_open_blocks(path, SMALL_BLOCK));
	CHECK_STATUS(HR_OK, hr__trace_close());
	save_seed(path, "empty", 0, 0);
	for (int level = 0; level < 3; level++) {
		char name[32];
		snprintf(name, sizeof name, "kinds_%d", level);
		CHECK_STATUS(HR_OK, hr__trace_open_blocks(path, SMALL_BLOCK));
		write_kinds(level);
		CHECK_STATUS(HR_OK, hr__trace_close());
		save_seed(path, name, (uint8_t)(level % 2), 0);
	}
	CHECK_STATUS(HR_OK, hr__trace_open_blocks(path, SMALL_BLOCK));
	hr__trace_define_device(1, "GPU:0", 1u << 30, 2u << 20);
	hr__trace_define_allocator(1, "GPU:0_bfc", "bfc", 1);
	write_training(1);
	CHECK_STATUS(HR_OK, hr__trace_close());
	save_seed(path, "training", 0, 0);
	for (int mode = 0; mode < 2; mode++) {
		uint64_t seed = 3;
		CHECK_STATUS(HR_OK, hr__trace_open_blocks(path, SMALL_BLOCK));
		for (int i = 0; i < 20; i++) {
			hr__event event = random_event(&seed);
			hr__trace_event(&event);
		}
		CHECK_STATUS(HR_OK, hr__trace_close());
		save_seed(path, mode == 0 ? "random_cut" : "random", (uint8_t)mode, mode == 0 ? 7 : 0);
	}
	CHECK_STATUS(HR_OK, hr__trace_open_blocks(path, SMALL_BLOCK));
	hr_test_threads(2, write_a_few, NULL);
	for (int i = 0; i < 3; i++) hr_test_threads(1, write_a_few, made);
	CHECK_STATUS(HR_OK, hr__trace_close());
	save_seed(path, "threads", 1, 0);
}

TEST_MAIN(T(test_trace_brings_back_every_kind_with_every_field), T(test_trace_brings_back_random_events),
          T(test_trace_holds_every_stack_there_can_be), T(test_trace_stack_of_the_documentation_reads_as_it_says),
          T(test_trace_alloc_and_free_say_what_the_event_says), T(test_trace_names_are_translated_to_the_reader),
          T(test_trace_holds_every_name_there_can_be), T(test_trace_tells_the_time), T(test_trace_without_events_is_a_trace),
          T(test_trace_takes_at_most_16_bytes_per_event), T(test_trace_can_be_read_while_it_is_written),
          T(test_trace_keeps_every_event_of_every_thread), T(test_trace_threads_that_end_leave_their_block_to_others),
          T(test_trace_closes_under_writing_threads), T(test_trace_can_be_read_while_threads_write_it),
          T(test_trace_counts_the_events_of_too_many_threads), T(test_trace_survives_kill_9),
          T(test_a_fork_does_not_change_the_trace_of_the_parent), T(test_a_trace_that_cannot_start_or_stop_has_a_reason),
          T(test_the_trace_reader_explains_why_it_cannot_open), T(test_a_trace_stays_readable_on_a_full_disk),
          T(test_a_trace_stays_readable_when_the_disk_fills_up),
          T_WITHIN(test_trace_leaves_nothing_behind_when_any_call_fails, 120), T(test_trace_cut_anywhere_is_read_or_refused),
          T(test_trace_with_any_bytes_changed_is_read_or_refused), T(test_trace_example_of_the_documentation_reads_as_it_says),
          T(test_trace_reader_skips_what_a_later_version_may_add), T(test_trace_reader_refuses_impossible_records),
          T(test_trace_reader_refuses_impossible_blocks_and_headers), T(test_trace_undefined_names_in_a_cut_file_read_as_other),
          T(test_trace_reader_takes_many_devices_but_not_any_number), T(test_trace_reader_notices_that_the_file_changes),
          T(test_trace_reader_needs_no_memory_for_what_it_skips), T(test_trace_of_large_blocks_reads_from_a_file_as_from_memory),
          T(test_trace_has_measured_the_clock_before_there_is_a_file), T(test_trace_that_is_closed_while_it_is_opened_can_be_read),
          T(test_trace_seeds_for_the_fuzzer_are_traces))
