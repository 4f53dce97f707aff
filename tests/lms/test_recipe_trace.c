/* test_recipe_trace.c - recordings of tensors that are dropped and recomputed: readers see one tensor, and when it was away. */
#include <unistd.h>

#include "core/trace/trace.h"
#include "headroom_analysis.h"
#include "headroom_record.h"
#include "recipe_kit.h"
#include "support_capture.h"

#define KIB UINT64_C(1024)
#define MIB (KIB * KIB)
#define BYTES ((size_t)(100 * KIB))
#define TENSORS 3u

static hr_device device;
static hr_allocator allocator;
static kit_op ops[TENSORS];
static hr_tensor tensors[TENSORS];
static char path[64];

/* A source, and two ops that follow it. */
static void begin(bool takes)
{
	device = fixture_emulated(64 * MIB, 64 * KIB, 0);
	allocator = fixture_allocator(device, 32 * MIB);
	fixture_lms(allocator, "lru", 32 * MIB);
	snprintf(path, sizeof path, "/tmp/hr_test_recipe_trace_%d.hrt", (int)getpid());
	unlink(path);
	CHECK_STATUS(HR_OK, hr_trace_start(path));
	for (unsigned i = 0; i < TENSORS; i++) {
		ops[i] = (kit_op){ .device = device, .allocator = allocator, .bytes = BYTES, .value = (unsigned char)i, .takes = takes };
		tensors[i] = fixture_tensor(allocator, BYTES);
		const hr_tensor *before = i ? &tensors[i - 1] : NULL;
		CHECK_STATUS(HR_OK, kit_run(&ops[i], before, i > 0, &tensors[i], 1, HR_STREAM_DEFAULT));
		hr_recipe recipe = kit_recipe(&ops[i], before, i > 0, &tensors[i], 1);
		if (i) CHECK_STATUS(HR_OK, hr_tensor_set_recipe(&recipe));
	}
}

static hr_status pin_and_unpin(hr_tensor tensor)
{
	hr_status status = hr_tensor_pin(tensor, HR_READ, HR_STREAM_DEFAULT);
	return status ? status : hr_tensor_unpin(tensor, HR_STREAM_DEFAULT);
}

static hr__capture *end(void)
{
	hr__capture *capture = NULL;
	CHECK_STATUS(HR_OK, hr_trace_stop());
	CHECK_STATUS(HR_OK, hr_allocator_destroy_all(allocator));
	CHECK_STATUS(HR_OK, hr__capture_open(path, NULL, NULL, &capture));
	CHECK_STR(capture_wrong(capture), NULL);
	unlink(path);
	return capture;
}

static unsigned moves_by_recipe(const hr__capture *capture, unsigned kind)
{
	unsigned count = 0;
	for (uint32_t i = 0; i < capture->move_count; i++) count += capture->moves[i].kind == kind && capture->moves[i].by_recipe;
	return count;
}

/* Number of different tensors on the device, without host copies. */
static unsigned tensors_in(const hr__capture *capture)
{
	unsigned count = 0;
	for (uint32_t i = 0; i < capture->allocation_count; i++)
		count += hr__allocation_device(capture, i) == 0 && (i >= capture->life_count || capture->lives[i].birth == i);
	return count;
}

static void test_a_recomputed_tensor_is_the_same_tensor_to_readers(void)
{
	begin(false);
	for (unsigned i = 0; i < 3; i++) {
		CHECK_STATUS(HR_OK, hr_tensor_drop(tensors[1]));
		CHECK_STATUS(HR_OK, hr_tensor_drop(tensors[2]));
		CHECK_STATUS(HR_OK, pin_and_unpin(tensors[2]));
	}
	CHECK_STATUS(HR_OK, hr_tensor_evict(tensors[0]));
	hr__capture *capture = end();
	CHECK_EQ(moves_by_recipe(capture, HR__MOVE_OUT), 6u);
	CHECK_EQ(moves_by_recipe(capture, HR__MOVE_IN), 6u);
	CHECK_EQ(capture->move_count, 13u);
	CHECK_EQ(tensors_in(capture), TENSORS);
	hr__capture_close(capture);
}

typedef struct written {
	char text[65536];
	size_t length;
} written;

static bool keep_text(void *user, const char *data, size_t bytes)
{
	written *out = user;
	CHECK_LE(out->length + bytes + 1, sizeof out->text);
	memcpy(out->text + out->length, data, bytes);
	out->length += bytes;
	out->text[out->length] = 0;
	return true;
}

/* Reports count drops and recomputations by themselves, not as moves. */
static void test_reports_show_drops_as_drops(void)
{
	static written out;
	hr_profile_options options;
	hr_profile_options_init(&options);
	begin(false);
	CHECK_STATUS(HR_OK, hr_step_begin(allocator));
	CHECK_STATUS(HR_OK, hr_tensor_drop(tensors[1]));
	CHECK_STATUS(HR_OK, hr_tensor_drop(tensors[2]));
	CHECK_STATUS(HR_OK, pin_and_unpin(tensors[1]));
	CHECK_STATUS(HR_OK, hr_step_end(allocator));
	CHECK_STATUS(HR_OK, hr_trace_stop());
	CHECK_STATUS(HR_OK, hr_allocator_destroy_all(allocator));
	options.view = "steps";
	CHECK_STATUS(HR_OK, hr_profile_report(path, &options, HR_PROFILE_JSON, keep_text, &out));
	CHECK(strstr(out.text, "\"dropped\": 2") != NULL);
	CHECK(strstr(out.text, "\"recomputed\": 1") != NULL);
	CHECK(strstr(out.text, "\"out_bytes\": 0") != NULL);
	out.length = 0;
	CHECK_STATUS(HR_OK, hr_profile_report(path, &options, HR_PROFILE_TEXT, keep_text, &out));
	CHECK(strstr(out.text, "dropped") != NULL && strstr(out.text, "recomputed") != NULL);
	unlink(path);
}

static void test_memory_that_was_handed_over_belongs_to_the_recomputed_tensor(void)
{
	begin(true);
	CHECK_STATUS(HR_OK, hr_tensor_drop(tensors[2]));
	CHECK_STATUS(HR_OK, pin_and_unpin(tensors[2]));
	hr__capture *capture = end();
	CHECK_EQ(moves_by_recipe(capture, HR__MOVE_IN), 1u);
	CHECK_EQ(tensors_in(capture), TENSORS + 1); /* and the scratch tensor */
	CHECK_EQ(capture->devices[0].end_bytes, TENSORS * BYTES);
	hr__capture_close(capture);
}

static void test_a_recomputation_that_fails_leaves_the_tensor_dropped_to_readers(void)
{
	begin(false);
	CHECK_STATUS(HR_OK, hr_tensor_drop(tensors[1]));
	CHECK_STATUS(HR_OK, hr_tensor_drop(tensors[2]));
	ops[2].fails = HR_IO;
	CHECK_STATUS(HR_IO, pin_and_unpin(tensors[2])); /* tensor 1 was recomputed for it */
	hr__capture *capture = end();
	CHECK_EQ(moves_by_recipe(capture, HR__MOVE_OUT), 2u);
	CHECK_EQ(moves_by_recipe(capture, HR__MOVE_IN), 1u);
	CHECK_EQ(tensors_in(capture), TENSORS);
	CHECK_EQ(capture->devices[0].end_bytes, 2 * BYTES);
	hr__capture_close(capture);
}

static void test_a_tensor_that_the_program_destroyed_has_ended_to_readers(void)
{
	begin(false);
	CHECK_STATUS(HR_OK, hr_tensor_drop(tensors[2]));
	CHECK_STATUS(HR_OK, hr_tensor_destroy(tensors[1])); /* a ghost from now on */
	CHECK_STATUS(HR_OK, pin_and_unpin(tensors[2]));
	hr__capture *capture = end();
	CHECK_EQ(moves_by_recipe(capture, HR__MOVE_OUT), 1u);
	CHECK_EQ(moves_by_recipe(capture, HR__MOVE_IN), 1u);
	CHECK_EQ(tensors_in(capture), TENSORS + 1); /* the ghost's memory is one more while the recipe runs */
	CHECK_EQ(capture->devices[0].end_bytes, 2 * BYTES);
	hr__capture_close(capture);
}

TEST_MAIN(T(test_reports_show_drops_as_drops), T(test_a_recomputed_tensor_is_the_same_tensor_to_readers),
          T(test_memory_that_was_handed_over_belongs_to_the_recomputed_tensor),
          T(test_a_recomputation_that_fails_leaves_the_tensor_dropped_to_readers),
          T(test_a_tensor_that_the_program_destroyed_has_ended_to_readers))
