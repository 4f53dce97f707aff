/* test_recipe_room.c - a pin call that recomputes several tensors needs no more memory than its tensors, and each recipe alone. */
#include "core/lms/lms.h"
#include "recipe_kit.h"

#define KIB UINT64_C(1024)
#define MIB (KIB * KIB)
#define BYTES ((size_t)(128 * KIB)) /* two pages */
#define OPS 10u

static hr_device device;
static hr_allocator allocator;
static kit_op ops[OPS];
static unsigned char contents[OPS][BYTES];
static hr_tensor tensors[OPS];

/* Memory for [room] tensors. */
static void set_up(unsigned room)
{
	device = fixture_emulated(64 * MIB, 64 * KIB, 0);
	hr_allocator_options options = fixture_allocator_options(room * BYTES);
	options.oom.report_allocations_on_oom = false;
	CHECK_STATUS(HR_OK, hr_allocator_create(device, &options, &allocator));
	hr_lms_options lms = fixture_lms_options("lru", 32 * MIB);
	lms.wait_ns = 0;
	CHECK_STATUS(HR_OK, hr_lms_configure(allocator, &lms));
	memset(ops, 0, sizeof ops);
	memset(tensors, 0, sizeof tensors);
}

static void tear_down(void)
{
	CHECK_STATUS(HR_OK, hr_lms_check(allocator));
	for (unsigned i = 0; i < OPS; i++)
		if (tensors[i].id) CHECK_STATUS(HR_OK, hr_tensor_destroy(tensors[i]));
	CHECK_EQ(fixture_lms_stats(allocator).num_recipes, 0);
	CHECK_EQ(fixture_stats(allocator).bytes_in_use, 0);
	CHECK_STATUS(HR_OK, hr_allocator_destroy(allocator));
	CHECK_STATUS(HR_OK, hr_shutdown());
}

/* Op [at] computes tensor [at] from [ins]; without inputs it has no recipe. */
static void run(unsigned at, const unsigned *ins, size_t count)
{
	hr_tensor inputs[KIT_MOST];
	const unsigned char *from[KIT_MOST];
	ops[at] = (kit_op){ .device = device, .allocator = allocator, .bytes = BYTES, .value = (unsigned char)(at + 1) };
	for (size_t i = 0; i < count; i++) {
		inputs[i] = tensors[ins[i]];
		from[i] = contents[ins[i]];
	}
	tensors[at] = fixture_tensor(allocator, BYTES);
	kit_expect(&ops[at], from, count, contents[at], 0);
	CHECK_STATUS(HR_OK, kit_run(&ops[at], inputs, count, &tensors[at], 1, HR_STREAM_DEFAULT));
	if (!count) return;
	hr_recipe recipe = kit_recipe(&ops[at], inputs, count, &tensors[at], 1);
	recipe.cost_ns = 1; /* dropped whenever its memory is needed */
	CHECK_STATUS(HR_OK, hr_tensor_set_recipe(&recipe));
}

static void drop(unsigned at)
{
	CHECK_STATUS(HR_OK, hr_tensor_drop(tensors[at]));
	CHECK_EQ(fixture_tensor_info(tensors[at]).state, HR_TENSOR_DROPPED);
}

/* Contents of tensors that are pinned. */
static void expect_pinned(unsigned at)
{
	static unsigned char seen[BYTES];
	void *address;
	CHECK_STATUS(HR_OK, hr_tensor_get_address(tensors[at], &address));
	CHECK_STATUS(HR_OK, hr_stream_copy(device, seen, address, BYTES, HR_COPY_TO_HOST, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_stream_synchronize(device, HR_STREAM_DEFAULT));
	CHECK(!memcmp(seen, contents[at], BYTES));
}

static void test_a_call_recomputes_its_tensors_before_it_pins_any(void)
{
	set_up(2);
	run(0, NULL, 0);
	run(1, (unsigned[]){ 0 }, 1);
	run(2, NULL, 0);
	run(3, (unsigned[]){ 2 }, 1);
	drop(3);
	if (fixture_tensor_info(tensors[1]).state != HR_TENSOR_DROPPED) drop(1);
	/* With tensor 1 pinned there is no room for tensors 2 and 3. */
	hr_pin pins[] = { { tensors[1], HR_READ }, { tensors[3], HR_READ } };
	CHECK_STATUS(HR_OK, hr_tensor_pin_all(pins, 2, HR_STREAM_DEFAULT));
	expect_pinned(1);
	expect_pinned(3);
	CHECK_STATUS(HR_OK, hr_tensor_unpin_all(pins, 2, HR_STREAM_DEFAULT));
	tear_down();
}

static void test_a_recipe_recomputes_its_inputs_before_it_pins_any(void)
{
	hr_pin others[3];
	set_up(6);
	for (unsigned i = 0; i < 4; i++) run(i, NULL, 0);
	run(4, (unsigned[]){ 0, 1 }, 2);
	run(5, (unsigned[]){ 2, 3 }, 2);
	run(6, (unsigned[]){ 4, 5 }, 2);
	for (unsigned i = 4; i < 7; i++)
		if (fixture_tensor_info(tensors[i]).state != HR_TENSOR_DROPPED) drop(i);
	for (unsigned i = 0; i < 3; i++) {
		tensors[7 + i] = fixture_tensor(allocator, BYTES);
		others[i] = (hr_pin){ tensors[7 + i], HR_OVERWRITE };
	}
	CHECK_STATUS(HR_OK, hr_tensor_pin_all(others, 3, HR_STREAM_DEFAULT));
	/* There is room for three. With tensor 4 pinned there is none for tensors 2, 3 and 5. */
	CHECK_STATUS(HR_OK, hr_tensor_pin(tensors[6], HR_READ, HR_STREAM_DEFAULT));
	expect_pinned(6);
	CHECK_STATUS(HR_OK, hr_tensor_unpin(tensors[6], HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_tensor_unpin_all(others, 3, HR_STREAM_DEFAULT));
	tear_down();
}

static void test_a_call_that_can_never_fit_leaves_everything_as_it_was(void)
{
	set_up(3);
	for (unsigned i = 0; i < 2; i++) run(i, NULL, 0);
	run(2, (unsigned[]){ 0, 1 }, 2);
	drop(2);
	CHECK_STATUS(HR_OK, hr_tensor_pin(tensors[0], HR_READ, HR_STREAM_DEFAULT));
	tensors[3] = fixture_tensor(allocator, BYTES);
	CHECK_STATUS(HR_OK, hr_tensor_pin(tensors[3], HR_OVERWRITE, HR_STREAM_DEFAULT));
	/* One tensor fits beside those two, but its recipe needs another one. */
	CHECK_STATUS(HR_OUT_OF_MEMORY, hr_tensor_pin(tensors[2], HR_READ, HR_STREAM_DEFAULT));
	CHECK_EQ(fixture_tensor_info(tensors[2]).state, HR_TENSOR_DROPPED);
	CHECK_STATUS(HR_OK, hr_tensor_unpin(tensors[3], HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_tensor_pin(tensors[2], HR_READ, HR_STREAM_DEFAULT));
	expect_pinned(2);
	CHECK_STATUS(HR_OK, hr_tensor_unpin(tensors[2], HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_tensor_unpin(tensors[0], HR_STREAM_DEFAULT));
	tear_down();
}

TEST_MAIN(T(test_a_call_recomputes_its_tensors_before_it_pins_any), T(test_a_recipe_recomputes_its_inputs_before_it_pins_any),
          T(test_a_call_that_can_never_fit_leaves_everything_as_it_was))
