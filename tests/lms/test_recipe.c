/* test_recipe.c - recipes: dropped tensors are computed again, to the byte, whatever happens to their inputs. */
#include "core/device/device.h"
#include "core/lms/lms.h"
#include "recipe_kit.h"

#define KIB UINT64_C(1024)
#define MIB (KIB * KIB)
#define BYTES ((size_t)(100 * KIB))
#define OPS 48u

static hr_device device;
static hr_allocator allocator;
static kit_op ops[OPS];
static unsigned char contents[OPS][BYTES];
static hr_tensor tensors[OPS];

static void set_up_with(const char *policy, uint64_t limit, uint32_t depth, bool verify)
{
	device = fixture_emulated(64 * MIB, 64 * KIB, 0);
	hr_allocator_options options = fixture_allocator_options(limit);
	options.oom.report_allocations_on_oom = false;
	CHECK_STATUS(HR_OK, hr_allocator_create(device, &options, &allocator));
	hr_lms_options lms = fixture_lms_options(policy, 32 * MIB);
	lms.recipe_depth = depth;
	lms.verify = verify;
	lms.wait_ns = 0;
	CHECK_STATUS(HR_OK, hr_lms_configure(allocator, &lms));
	memset(ops, 0, sizeof ops);
	memset(tensors, 0, sizeof tensors);
}

static void set_up(void)
{
	set_up_with("lru", 32 * MIB, 0, false);
}

static hr_lms_stats lms_stats(void)
{
	return fixture_lms_stats(allocator);
}

static void tear_down(void)
{
	CHECK_STATUS(HR_OK, hr_lms_check(allocator));
	for (unsigned i = 0; i < OPS; i++)
		if (tensors[i].id) CHECK_STATUS(HR_OK, hr_tensor_destroy(tensors[i]));
	hr_lms_stats stats = lms_stats();
	CHECK_EQ(stats.num_tensors, 0);
	CHECK_EQ(stats.num_ghosts, 0);
	CHECK_EQ(stats.num_recipes, 0);
	CHECK_EQ(stats.bytes_dropped_now, 0);
	CHECK_EQ(fixture_stats(allocator).bytes_in_use, 0);
	CHECK_EQ(fixture_stats(allocator).num_live, 0);
	CHECK_STATUS(HR_OK, hr_allocator_check(allocator));
	CHECK_STATUS(HR_OK, hr_allocator_destroy(allocator));
	CHECK_STATUS(HR_OK, hr_shutdown());
}

static hr_tensor_state state_of(hr_tensor tensor)
{
	return fixture_tensor_info(tensor).state;
}

/* Op [at] computes outputs at, at + 1, ... of [outs] from the tensors with the numbers in [ins], and sets a recipe if [recipe]. */
static void run(unsigned at, const unsigned *ins, size_t in_count, size_t outs, bool recipe)
{
	hr_tensor inputs[KIT_MOST];
	const unsigned char *from[KIT_MOST];
	kit_op *op = &ops[at];
	char name[16];
	*op = (kit_op){ .device = device, .allocator = allocator, .bytes = BYTES, .value = (unsigned char)(at + 1) };
	for (size_t i = 0; i < in_count; i++) {
		inputs[i] = tensors[ins[i]];
		from[i] = contents[ins[i]];
	}
	for (unsigned k = 0; k < outs; k++) {
		if (!tensors[at + k].id) tensors[at + k] = fixture_tensor(allocator, BYTES);
		kit_expect(op, from, in_count, contents[at + k], k);
	}
	CHECK_STATUS(HR_OK, kit_run(op, inputs, in_count, &tensors[at], outs, HR_STREAM_DEFAULT));
	if (!recipe) return;
	hr_recipe made = kit_recipe(op, inputs, in_count, &tensors[at], outs);
	snprintf(name, sizeof name, "op_%u", at);
	made.op = hr_name_intern(name);
	CHECK_STATUS(HR_OK, hr_tensor_set_recipe(&made));
}

static void source(unsigned at)
{
	run(at, NULL, 0, 1, false);
}

static void apply(unsigned at, unsigned from)
{
	run(at, &from, 1, 1, true);
}

static void drop(unsigned at)
{
	CHECK_STATUS(HR_OK, hr_tensor_drop(tensors[at]));
	CHECK_EQ(state_of(tensors[at]), HR_TENSOR_DROPPED);
}

static void destroy(unsigned at)
{
	CHECK_STATUS(HR_OK, hr_tensor_destroy(tensors[at]));
	CHECK_STATUS(HR_INVALID_HANDLE, hr_tensor_pin(tensors[at], HR_READ, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_INVALID_HANDLE, hr_tensor_destroy(tensors[at]));
	tensors[at].id = 0;
}

static void expect(unsigned at)
{
	static unsigned char found[BYTES];
	CHECK_STATUS(HR_OK, kit_read(device, tensors[at], found, BYTES, HR_STREAM_DEFAULT));
	CHECK_EQ(memcmp(found, contents[at], BYTES), 0);
	CHECK_STATUS(HR_OK, hr_lms_check(allocator));
}

/* Fills a tensor with other contents, under a pin of [access]. */
static void overwrite(unsigned at, hr_access access, unsigned char value)
{
	void *address;
	CHECK_STATUS(HR_OK, hr_tensor_pin(tensors[at], access, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_tensor_get_address(tensors[at], &address));
	CHECK_STATUS(HR_OK, hr_stream_fill(device, address, value, BYTES, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_tensor_unpin(tensors[at], HR_STREAM_DEFAULT));
	memset(contents[at], value, BYTES);
}

/* ---- one recipe ---- */

static void test_a_dropped_tensor_is_computed_again_by_its_next_pin(void)
{
	set_up();
	source(0);
	apply(1, 0);
	int64_t before = fixture_stats(allocator).bytes_in_use;
	drop(1);
	hr_tensor_info info = fixture_tensor_info(tensors[1]);
	CHECK_EQ(info.device_bytes, 0u);
	CHECK_EQ(info.host_bytes, 0u);
	CHECK_EQ(fixture_stats(allocator).bytes_in_use, before / 2);
	CHECK_EQ(lms_stats().bytes_dropped_now, before / 2);
	CHECK_EQ(ops[1].calls, 0u);
	expect(1);
	CHECK_EQ(ops[1].calls, 1u);
	CHECK_EQ(state_of(tensors[1]), HR_TENSOR_INACTIVE);
	expect(1);
	CHECK_EQ(ops[1].calls, 1u); /* it is resident */
	hr_lms_stats stats = lms_stats();
	CHECK_EQ(stats.num_drops, 1);
	CHECK_EQ(stats.num_recomputes, 1);
	CHECK_EQ(stats.bytes_dropped, before / 2);
	CHECK_EQ(stats.bytes_dropped_now, 0);
	CHECK_EQ(stats.peak_bytes_dropped, before / 2);
	CHECK_EQ(stats.bytes_copied_out, 0);
	CHECK_EQ(stats.bytes_copied_in, 0);
	CHECK_EQ(stats.num_evictions, 0);
	CHECK_EQ(fixture_stats(allocator).num_allocs, 2); /* a recomputation is no request */
	tear_down();
}

static void test_a_recipe_without_inputs_runs(void)
{
	set_up();
	run(0, NULL, 0, 1, true);
	for (unsigned i = 0; i < 3; i++) {
		drop(0);
		expect(0);
	}
	CHECK_EQ(ops[0].calls, 3u);
	tear_down();
}

static void test_memory_that_a_recipe_hands_over_becomes_that_of_the_tensor(void)
{
	set_up();
	source(0);
	apply(1, 0);
	ops[1].takes = true;
	for (unsigned i = 0; i < 3; i++) {
		drop(1);
		expect(1);
		CHECK_EQ(lms_stats().num_tensors, 2);
		CHECK_EQ(fixture_stats(allocator).num_live, 2);
		CHECK_EQ(fixture_stats(allocator).num_allocs, 3 + i); /* the scratch tensors of the recipe */
	}
	CHECK_STATUS(HR_OK, hr_tensor_evict(tensors[1])); /* with the memory that it took */
	expect(1);
	tear_down();
}

static void test_a_drop_frees_a_host_copy_too(void)
{
	set_up();
	source(0);
	apply(1, 0);
	CHECK_STATUS(HR_OK, hr_tensor_evict(tensors[1]));
	CHECK_STATUS(HR_OK, hr_tensor_drop(tensors[1]));
	CHECK_EQ(state_of(tensors[1]), HR_TENSOR_EVICTED);
	expect(1); /* restored; the copy stays valid */
	CHECK_EQ(state_of(tensors[1]), HR_TENSOR_SYNCED);
	drop(1);
	CHECK_EQ(lms_stats().host_bytes, 0);
	expect(1);
	CHECK_EQ(ops[1].calls, 1u);
	tear_down();
}

static void test_evicted_inputs_are_restored_for_a_recipe(void)
{
	set_up();
	source(0);
	apply(1, 0);
	drop(1);
	CHECK_STATUS(HR_OK, hr_tensor_evict(tensors[0]));
	expect(1);
	CHECK_EQ(lms_stats().num_restores, 1);
	tear_down();
}

static void test_a_recomputed_tensor_can_be_read_on_another_stream(void)
{
	set_up();
	static unsigned char found[BYTES];
	hr_stream other = fixture_stream(device);
	source(0);
	apply(1, 0);
	for (unsigned i = 0; i < 20; i++) {
		drop(1);
		CHECK_STATUS(HR_OK, hr_tensor_pin(tensors[1], HR_READ, HR_STREAM_DEFAULT)); /* computes it on the default stream */
		CHECK_STATUS(HR_OK, kit_read(device, tensors[1], found, BYTES, other));
		CHECK_EQ(memcmp(found, contents[1], BYTES), 0);
		CHECK_STATUS(HR_OK, hr_tensor_unpin(tensors[1], HR_STREAM_DEFAULT));
	}
	tear_down();
}

static void test_the_host_can_read_what_its_pin_recomputes(void)
{
	set_up();
	void *at;
	source(0);
	apply(1, 0);
	drop(1);
	CHECK_STATUS(HR_OK, hr_tensor_pin(tensors[1], HR_READ, HR_STREAM_HOST));
	CHECK_STATUS(HR_OK, hr_tensor_get_address(tensors[1], &at));
	CHECK_EQ(memcmp(at, contents[1], BYTES), 0); /* the emulated device is in the host's memory */
	CHECK_STATUS(HR_OK, hr_tensor_unpin(tensors[1], HR_STREAM_HOST));
	tear_down();
}

static void test_a_pin_that_overwrites_a_dropped_tensor_computes_nothing(void)
{
	set_up();
	source(0);
	apply(1, 0);
	drop(1);
	overwrite(1, HR_OVERWRITE, 77);
	CHECK_EQ(ops[1].calls, 0u);
	CHECK_EQ(ops[1].released, 1u); /* its contents are no longer those of the recipe */
	expect(1);
	CHECK_STATUS(HR_NOT_READY, hr_tensor_drop(tensors[1]));
	tear_down();
}

static void test_a_pin_that_writes_a_dropped_tensor_reads_it_first(void)
{
	set_up();
	source(0);
	apply(1, 0);
	drop(1);
	CHECK_STATUS(HR_OK, hr_tensor_pin(tensors[1], HR_WRITE, HR_STREAM_DEFAULT));
	CHECK_EQ(ops[1].calls, 1u);
	CHECK_EQ(ops[1].released, 1u);
	CHECK_STATUS(HR_OK, hr_tensor_unpin(tensors[1], HR_STREAM_DEFAULT));
	expect(1);
	tear_down();
}

static void test_outputs_that_are_resident_are_not_written_again(void)
{
	set_up();
	source(0);
	run(1, (unsigned[]){ 0 }, 1, 3, true); /* outputs 1, 2 and 3 */
	drop(2);
	void *at;
	CHECK_STATUS(HR_OK, hr_tensor_pin(tensors[1], HR_READ, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_tensor_get_address(tensors[1], &at));
	expect(2);
	CHECK_EQ(ops[1].written, 1u);
	CHECK_STATUS(HR_OK, hr_tensor_unpin(tensors[1], HR_STREAM_DEFAULT));
	for (unsigned i = 1; i <= 3; i++) drop(i);
	expect(3);
	CHECK_EQ(ops[1].calls, 2u);
	CHECK_EQ(ops[1].written, 4u); /* one run computes all that were dropped */
	expect(1);
	expect(2);
	CHECK_EQ(ops[1].calls, 2u);
	tear_down();
}

static void test_an_output_that_is_destroyed_is_not_asked_for(void)
{
	set_up();
	source(0);
	run(1, (unsigned[]){ 0 }, 1, 2, true);
	drop(1);
	drop(2);
	destroy(1);
	CHECK_EQ(ops[1].released, 0u);
	expect(2);
	CHECK_EQ(ops[1].written, 1u);
	destroy(2);
	CHECK_EQ(ops[1].released, 1u);
	tear_down();
}

static void test_a_new_recipe_replaces_an_old_one(void)
{
	set_up();
	source(0);
	source(1);
	apply(2, 0);
	kit_op old = ops[2];
	run(2, (unsigned[]){ 1 }, 1, 1, true); /* the write ends the old one */
	drop(2);
	expect(2);
	CHECK_EQ(old.released, 0u);
	hr_recipe again = kit_recipe(&ops[2], &tensors[1], 1, &tensors[2], 1);
	CHECK_STATUS(HR_OK, hr_tensor_set_recipe(&again));
	CHECK_EQ(lms_stats().num_recipes, 1);
	tear_down();
}

/* ---- chains ---- */

static void test_a_chain_of_dropped_tensors_is_computed_from_its_beginning(void)
{
	set_up();
	source(0);
	for (unsigned i = 1; i < 10; i++) apply(i, i - 1);
	for (unsigned i = 1; i < 10; i++) drop(i);
	expect(9);
	for (unsigned i = 1; i < 10; i++) CHECK_EQ(ops[i].calls, 1u);
	for (unsigned i = 1; i < 10; i++) expect(i); /* what was computed on the way is resident */
	for (unsigned i = 1; i < 10; i++) CHECK_EQ(ops[i].calls, 1u);
	tear_down();
}

static void test_all_pins_of_a_call_are_recomputed_together(void)
{
	set_up();
	source(0);
	apply(1, 0);
	apply(2, 1);
	run(3, (unsigned[]){ 1, 2, 0 }, 3, 1, true);
	for (unsigned i = 1; i < 4; i++) drop(i);
	hr_pin pins[] = { { tensors[3], HR_READ }, { tensors[1], HR_READ }, { tensors[3], HR_READ } };
	CHECK_STATUS(HR_OK, hr_tensor_pin_all(pins, 3, HR_STREAM_DEFAULT));
	CHECK_EQ(fixture_tensor_info(tensors[3]).pins, 2u);
	CHECK_EQ(fixture_tensor_info(tensors[1]).pins, 1u);
	CHECK_EQ(fixture_tensor_info(tensors[2]).pins, 0u);
	CHECK_EQ(ops[1].calls + ops[2].calls + ops[3].calls, 3u);
	CHECK_STATUS(HR_OK, hr_tensor_unpin_all(pins, 3, HR_STREAM_DEFAULT));
	for (unsigned i = 1; i < 4; i++) expect(i);
	tear_down();
}

static void test_no_chain_is_deeper_than_the_option(void)
{
	set_up_with("lru", 32 * MIB, 3, false);
	source(0);
	for (unsigned i = 1; i < 8; i++) apply(i, i - 1);
	drop(5);
	drop(3);
	drop(4); /* 3, 4 and 5 */
	CHECK_STATUS(HR_UNSUPPORTED, hr_tensor_drop(tensors[6]));
	CHECK_CONTAINS(hr_last_message(), "more than 3 recipes");
	CHECK_STATUS(HR_UNSUPPORTED, hr_tensor_drop(tensors[2]));
	drop(1);
	drop(7);
	for (unsigned i = 1; i < 8; i++) expect(i);
	tear_down();
}

/* While an input is computed, the other inputs of the recipes around it are pinned. */
static void test_no_chain_needs_more_memory_than_there_is(void)
{
	set_up_with("lru", 448 * KIB, 0, false); /* room for four tensors */
	for (unsigned i = 0; i < 4; i++) source(i);
	for (unsigned i = 4; i < 7; i++) run(i, (unsigned[]){ i == 4 ? 0 : i - 1, i - 3 }, 2, 1, true);
	for (unsigned i = 4; i < 6; i++) { /* 2 is pinned while 4 is computed from 0 and 1: four */
		expect(i);
		drop(i);
	}
	expect(6);
	CHECK_STATUS(HR_UNSUPPORTED, hr_tensor_drop(tensors[6])); /* 3 is pinned, too */
	CHECK_CONTAINS(hr_last_message(), "may need 500.0 KiB at once");
	for (unsigned i = 0; i < 7; i++) expect(i);
	tear_down();
}

static void test_a_tensor_is_not_dropped_that_longer_chains_need(void)
{
	set_up_with("lru", 448 * KIB, 0, false);
	for (unsigned i = 0; i < 4; i++) source(i);
	for (unsigned i = 4; i < 7; i++) run(i, (unsigned[]){ i == 4 ? 0 : i - 1, i - 3 }, 2, 1, true);
	for (unsigned i = 6; i > 4; i--) {
		expect(i);
		drop(i);
	}
	expect(4);
	CHECK_STATUS(HR_UNSUPPORTED, hr_tensor_drop(tensors[4]));
	CHECK_CONTAINS(hr_last_message(), "may need 500.0 KiB at once");
	for (unsigned i = 0; i < 7; i++) expect(i);
	tear_down();
}

/* The recipe of one tensor at a time has memory: its input and its output. */
static void test_a_chain_without_other_inputs_may_have_any_length(void)
{
	set_up_with("lru", 448 * KIB, 0, false);
	source(0);
	for (unsigned i = 1; i < 12; i++) {
		apply(i, i - 1);
		if (i > 1 && state_of(tensors[i - 1]) != HR_TENSOR_DROPPED) drop(i - 1);
	}
	drop(11);
	CHECK_EQ(fixture_lms_stats(allocator).bytes_dropped_now, 11 * 100 * KIB);
	for (unsigned i = 11; i > 0; i--) expect(i);
	tear_down();
}

/* ---- inputs that are written ---- */

static void test_a_write_to_an_input_ends_the_recipe_of_a_resident_tensor(void)
{
	set_up();
	source(0);
	apply(1, 0);
	overwrite(0, HR_WRITE, 9);
	CHECK_EQ(ops[1].released, 1u);
	CHECK_EQ(ops[1].calls, 0u);
	CHECK_STATUS(HR_NOT_READY, hr_tensor_drop(tensors[1]));
	CHECK_CONTAINS(hr_last_message(), "has no recipe");
	expect(1);
	tear_down();
}

static void test_a_dropped_tensor_is_computed_before_its_input_is_written(void)
{
	const hr_access accesses[] = { HR_WRITE, HR_OVERWRITE };
	for (unsigned i = 0; i < 2; i++) {
		for (unsigned evicted = 0; evicted < 2; evicted++) {
			set_up();
			source(0);
			apply(1, 0);
			drop(1);
			if (evicted) CHECK_STATUS(HR_OK, hr_tensor_evict(tensors[0]));
			overwrite(0, accesses[i], 9);
			CHECK_EQ(ops[1].calls, 1u);
			CHECK_EQ(ops[1].released, 1u);
			expect(1);
			expect(0);
			tear_down();
		}
	}
}

static void test_only_what_depends_on_the_written_tensor_is_computed(void)
{
	set_up();
	source(0);
	apply(1, 0);
	apply(2, 1); /* depends on 0 through 1 */
	drop(2);
	overwrite(0, HR_OVERWRITE, 9); /* 1 is resident, and still right */
	CHECK_EQ(ops[2].calls, 0u);
	expect(2);
	CHECK_EQ(ops[2].calls, 1u);
	expect(1);
	tear_down();
}

static void test_one_call_may_read_a_dropped_tensor_and_write_its_input(void)
{
	set_up();
	source(0);
	apply(1, 0);
	for (unsigned first = 0; first < 2; first++) {
		if (first) {
			source(0);
			apply(1, 0);
		}
		drop(1);
		hr_pin pins[] = { { tensors[first], HR_READ }, { tensors[!first], HR_READ } };
		pins[first ? 1 : 0].access = HR_WRITE; /* tensor 0 */
		CHECK_STATUS(HR_OK, hr_tensor_pin_all(pins, 2, HR_STREAM_DEFAULT));
		CHECK_STATUS(HR_OK, hr_tensor_unpin_all(pins, 2, HR_STREAM_DEFAULT));
		CHECK_EQ(ops[1].calls, 1u);
		CHECK_EQ(ops[1].released, 1u);
		expect(1);
	}
	tear_down();
}

static hr_status be_slow(kit_op *op, const hr_recompute *call)
{
	hr_status status;
	hr__device *under = hr__tensor_of(call->inputs[0], &status)->lms->device;
	(void)op;
	return hr__device_compute(under, call->stream, 20000000);
}

/* The program orders its own work, and knows nothing of the recipe that reads tensor 0 on the other stream. */
static void test_a_write_waits_on_the_device_for_recipes_that_read_the_tensor(void)
{
	for (unsigned detached = 0; detached < 2; detached++) {
		set_up();
		void *at;
		hr_stream other = fixture_stream(device), third = fixture_stream(device);
		source(0);
		apply(1, 0);
		CHECK_STATUS(HR_OK, hr_stream_synchronize(device, HR_STREAM_DEFAULT));
		drop(1);
		ops[1].first = be_slow;
		CHECK_STATUS(HR_OK, hr_tensor_pin(tensors[1], detached ? HR_WRITE : HR_READ, other));
		CHECK_STATUS(HR_OK, hr_tensor_pin(tensors[0], HR_OVERWRITE, third));
		CHECK_STATUS(HR_OK, hr_tensor_get_address(tensors[0], &at));
		CHECK_STATUS(HR_OK, hr_stream_fill(device, at, 255, BYTES, third));
		memset(contents[0], 255, BYTES);
		CHECK_STATUS(HR_OK, hr_tensor_unpin(tensors[0], third));
		CHECK_STATUS(HR_OK, hr_tensor_unpin(tensors[1], other));
		CHECK_STATUS(HR_OK, hr_stream_synchronize(device, other));
		CHECK_STATUS(HR_OK, hr_stream_synchronize(device, third));
		expect(1);
		expect(0);
		tear_down();
	}
}

/* ---- inputs that are destroyed ---- */

static void test_a_destroyed_input_with_a_recipe_lives_on_as_a_ghost(void)
{
	set_up();
	source(0);
	apply(1, 0);
	apply(2, 1);
	apply(3, 2);
	drop(3);
	int64_t before = fixture_stats(allocator).bytes_in_use;
	destroy(1);
	destroy(2);
	CHECK_EQ(lms_stats().num_ghosts, 2);
	CHECK_EQ(lms_stats().num_tensors, 2);
	CHECK_EQ(fixture_stats(allocator).num_live, 2);
	CHECK_EQ(fixture_stats(allocator).bytes_in_use, before / 3);
	CHECK_EQ(lms_stats().bytes_dropped_now, before / 3);
	CHECK_EQ(ops[1].calls + ops[2].calls + ops[3].calls, 0u);
	for (unsigned i = 1; i <= 3; i++) {
		expect(3);
		CHECK_EQ(ops[1].calls, i);
		CHECK_EQ(ops[2].calls, i);
		CHECK_EQ(ops[3].calls, i);
		CHECK_EQ(fixture_stats(allocator).bytes_in_use, before / 3 * 2); /* the ghosts' memory is freed again */
		CHECK_EQ(fixture_stats(allocator).num_live, 2);
		drop(3);
	}
	expect(3);
	destroy(3);
	CHECK_EQ(lms_stats().num_ghosts, 0);
	for (unsigned i = 1; i <= 3; i++) CHECK_EQ(ops[i].released, 1u);
	tear_down();
}

static void test_ghosts_are_computed_once_for_a_chain(void)
{
	set_up();
	source(0);
	apply(1, 0);
	run(2, (unsigned[]){ 1, 1 }, 2, 1, true);
	run(3, (unsigned[]){ 1, 2 }, 2, 1, true);
	run(4, (unsigned[]){ 2, 1, 3 }, 3, 1, true);
	drop(4);
	for (unsigned i = 1; i < 4; i++) destroy(i);
	CHECK_EQ(lms_stats().num_ghosts, 3);
	expect(4);
	for (unsigned i = 1; i <= 4; i++) CHECK_EQ(ops[i].calls, 1u);
	tear_down();
}

static void test_evicted_and_dropped_inputs_become_ghosts_too(void)
{
	set_up();
	source(0);
	apply(1, 0);
	apply(2, 1);
	apply(3, 2);
	CHECK_STATUS(HR_OK, hr_tensor_evict(tensors[1]));
	drop(2);
	destroy(1);
	CHECK_EQ(lms_stats().host_bytes, 0);
	destroy(2);
	CHECK_EQ(lms_stats().num_ghosts, 2);
	CHECK_EQ(lms_stats().bytes_dropped_now, 0);
	expect(3);
	CHECK_EQ(ops[3].calls, 0u); /* it is resident */
	drop(3);
	expect(3);
	tear_down();
}

static void test_a_dropped_tensor_is_computed_before_an_input_without_a_recipe_is_destroyed(void)
{
	set_up();
	source(0);
	apply(1, 0);
	apply(2, 0);
	drop(1);
	destroy(0);
	CHECK_EQ(ops[1].calls, 1u);
	CHECK_EQ(ops[2].calls, 0u);
	CHECK_EQ(ops[1].released + ops[2].released, 2u);
	CHECK_EQ(lms_stats().num_recipes, 0);
	expect(1);
	expect(2);
	tear_down();
}

static void test_what_depends_on_ghosts_is_computed_before_their_input_is_lost(void)
{
	for (unsigned writes = 0; writes < 2; writes++) {
		set_up();
		source(0);
		apply(1, 0);
		apply(2, 1);
		run(3, (unsigned[]){ 2, 1 }, 2, 2, true); /* 3 and 4 */
		apply(5, 2);
		destroy(1);
		destroy(2);
		drop(3);
		drop(4);
		drop(5);
		if (writes) overwrite(0, HR_OVERWRITE, 200);
		else destroy(0);
		CHECK_EQ(lms_stats().num_ghosts, 0);
		CHECK_EQ(lms_stats().num_recipes, 0);
		for (unsigned i = 1; i < 6; i++) CHECK_EQ(ops[i].released, i == 4 ? 0u : 1u);
		for (unsigned i = 3; i < 6; i++) expect(i);
		tear_down();
	}
}

static void test_ghosts_are_no_deeper_than_the_option(void)
{
	set_up_with("lru", 32 * MIB, 4, false);
	source(0);
	for (unsigned i = 1; i < 12; i++) { /* each destroyed as soon as the next is computed */
		apply(i, i - 1);
		if (i > 1) destroy(i - 1);
		CHECK_LE(lms_stats().num_ghosts, 4);
		CHECK_STATUS(HR_OK, hr_lms_check(allocator));
	}
	expect(11);
	tear_down();
}

static void test_tensors_with_recipes_are_destroyed_with_their_allocator(void)
{
	set_up();
	source(0);
	for (unsigned i = 1; i < 6; i++) apply(i, i - 1);
	drop(3);
	drop(5);
	destroy(2);
	destroy(4);
	CHECK_STATUS(HR_OK, hr_allocator_destroy_all(allocator));
	for (unsigned i = 1; i < 6; i++) CHECK_EQ(ops[i].released, 1u);
	CHECK_STATUS(HR_OK, hr_shutdown());
}

static void destroy_the_tensor_of_the_recipe(void *user)
{
	kit_op *op = user;
	op->released++;
	CHECK_STATUS(HR_OK, hr_tensor_destroy(*(hr_tensor *)op->extra));
}

/* A runtime keeps the arguments of an op for its recipe, and gives them back at its end. */
static void test_the_end_of_a_recipe_may_destroy_tensors(void)
{
	set_up_with("lru", 512 * KIB, 0, false);
	source(0);
	source(1);
	apply(2, 1);
	drop(2);
	run(3, (unsigned[]){ 0 }, 1, 1, false);
	hr_recipe recipe = kit_recipe(&ops[3], &tensors[0], 1, &tensors[3], 1);
	recipe.release = destroy_the_tensor_of_the_recipe;
	ops[3].extra = &tensors[1];
	CHECK_STATUS(HR_OK, hr_tensor_set_recipe(&recipe));
	source(4);
	destroy(3); /* ends its recipe, which destroys 1, for which 2 is recomputed */
	CHECK_EQ(ops[3].released, 1u);
	CHECK_STATUS(HR_INVALID_HANDLE, hr_tensor_destroy(tensors[1]));
	tensors[1].id = 0;
	CHECK_EQ(ops[2].calls, 1u);
	expect(2);
	tear_down();
}

static void test_an_eviction_on_request_keeps_a_copy(void)
{
	set_up();
	source(0);
	run(1, (unsigned[]){ 0 }, 1, 1, false);
	hr_recipe recipe = kit_recipe(&ops[1], tensors, 1, &tensors[1], 1);
	recipe.cost_ns = 1; /* cheap, but the program decides */
	CHECK_STATUS(HR_OK, hr_tensor_set_recipe(&recipe));
	CHECK_STATUS(HR_OK, hr_tensor_evict(tensors[1]));
	CHECK_EQ(state_of(tensors[1]), HR_TENSOR_EVICTED);
	expect(1);
	CHECK_EQ(ops[1].calls, 0u);
	tear_down();
}

/* ---- failures ---- */

static void test_a_recipe_that_fails_leaves_the_tensor_dropped(void)
{
	set_up();
	source(0);
	apply(1, 0);
	apply(2, 1);
	drop(1);
	drop(2);
	ops[1].fails = HR_IO;
	int64_t before = fixture_stats(allocator).bytes_in_use;
	hr_pin pins[] = { { tensors[0], HR_READ }, { tensors[2], HR_READ } };
	CHECK_STATUS(HR_IO, hr_tensor_pin_all(pins, 2, HR_STREAM_DEFAULT));
	CHECK_CONTAINS(hr_last_message(), "tensor");
	CHECK_CONTAINS(hr_last_message(), "op op_1");
	CHECK_CONTAINS(hr_last_message(), "op op_2");
	CHECK_EQ(fixture_tensor_info(tensors[0]).pins, 0u);
	CHECK_EQ(state_of(tensors[1]), HR_TENSOR_DROPPED);
	CHECK_EQ(state_of(tensors[2]), HR_TENSOR_DROPPED);
	CHECK_EQ(fixture_stats(allocator).bytes_in_use, before);
	CHECK_EQ(lms_stats().num_failed_recomputes, 2);
	CHECK_STATUS(HR_OK, hr_lms_check(allocator));
	/* What would lose the input fails too, and loses nothing. */
	CHECK_STATUS(HR_IO, hr_tensor_pin(tensors[0], HR_OVERWRITE, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_IO, hr_tensor_destroy(tensors[0]));
	ops[1].fails = HR_OK;
	expect(2);
	expect(1);
	tear_down();
}

static hr_status return_without_computing(void *user, const hr_recompute *call)
{
	(void)user;
	(void)call;
	return HR_OK;
}

static void test_a_recipe_that_computes_nothing_is_an_error(void)
{
	set_up();
	source(0);
	run(1, (unsigned[]){ 0 }, 1, 1, false);
	hr_recipe recipe = kit_recipe(&ops[1], tensors, 1, &tensors[1], 1);
	recipe.recompute = return_without_computing;
	recipe.op = hr_name_intern("lazy");
	CHECK_STATUS(HR_OK, hr_tensor_set_recipe(&recipe));
	drop(1);
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_tensor_pin(tensors[1], HR_READ, HR_STREAM_DEFAULT));
	CHECK_CONTAINS(hr_last_message(), "op lazy");
	CHECK_CONTAINS(hr_last_message(), "without computing tensor");
	CHECK_EQ(state_of(tensors[1]), HR_TENSOR_DROPPED);
	destroy(1); /* before its input, whose destruction would have to compute it */
	tear_down();
}

static void test_a_chain_without_memory_changes_nothing(void)
{
	set_up_with("lru", 512 * KIB, 0, false); /* room for four tensors */
	source(0);
	apply(1, 0);
	apply(2, 1);
	drop(1);
	drop(2);
	void *block;
	CHECK_STATUS(HR_OK, hr_alloc_bytes(allocator, 256 * KIB, &block)); /* room for two */
	CHECK_STATUS(HR_OK, hr_tensor_pin(tensors[0], HR_READ, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OUT_OF_MEMORY, hr_tensor_pin(tensors[2], HR_READ, HR_STREAM_DEFAULT)); /* needs 1 and 2 beside it */
	CHECK_CONTAINS(hr_last_message(), "op op_2");
	CHECK_EQ(state_of(tensors[2]), HR_TENSOR_DROPPED);
	CHECK_STATUS(HR_OK, hr_lms_check(allocator));
	CHECK_STATUS(HR_OK, hr_tensor_unpin(tensors[0], HR_STREAM_DEFAULT));
	expect(2); /* 0 is evicted once 1 is computed */
	CHECK_STATUS(HR_OK, hr_free(allocator, block, HR_STREAM_DEFAULT));
	for (unsigned i = 0; i < 3; i++) expect(i);
	tear_down();
}

/* ---- verify ---- */

static void test_verify_accepts_what_is_computed_again_to_the_byte(void)
{
	set_up_with("lru", 32 * MIB, 0, true);
	source(0);
	apply(1, 0);
	run(2, (unsigned[]){ 1, 0 }, 2, 2, true);
	drop(1);
	drop(2);
	destroy(1);
	expect(2);
	expect(3);
	tear_down();
}

static void test_verify_names_the_op_that_is_not_deterministic(void)
{
	set_up_with("lru", 32 * MIB, 0, true);
	source(0);
	apply(1, 0);
	apply(2, 1);
	drop(1);
	drop(2);
	ops[1].drifts = true;
	CHECK_STATUS(HR_CORRUPT, hr_tensor_pin(tensors[2], HR_READ, HR_STREAM_DEFAULT));
	CHECK_CONTAINS(hr_last_message(), "could not be recomputed by op op_1");
	CHECK_CONTAINS(hr_last_message(), "the op is not deterministic");
	CHECK_EQ(state_of(tensors[1]), HR_TENSOR_DROPPED);
	CHECK_EQ(state_of(tensors[2]), HR_TENSOR_DROPPED);
	CHECK_STATUS(HR_OK, hr_lms_check(allocator));
	ops[1].drifts = false; /* the next pin tries again */
	expect(2);
	tear_down();
}

static hr_status spoil_the_input(kit_op *op, const hr_recompute *call)
{
	void *at;
	hr_status status = hr_tensor_get_address(call->inputs[0], &at);
	(void)op;
	return status ? status : hr_stream_fill(device, at, 123, BYTES, call->stream);
}

static void test_verify_finds_a_recipe_that_writes_its_input(void)
{
	set_up_with("lru", 32 * MIB, 0, true);
	source(0);
	apply(1, 0);
	drop(1);
	ops[1].first = spoil_the_input;
	CHECK_STATUS(HR_CORRUPT, hr_tensor_pin(tensors[1], HR_READ, HR_STREAM_DEFAULT));
	CHECK_EQ(state_of(tensors[1]), HR_TENSOR_DROPPED);
	destroy(1);
	tear_down();
}

/* ---- when memory is needed ---- */

/* Room for four tensors; op 1 takes [cost_ns]. A copy of 100 KiB takes 24 us each way over the link that is assumed. */
static void fill_memory(uint64_t cost_ns, const char *policy)
{
	set_up_with(policy, 448 * KIB, 0, false);
	source(0);
	run(1, (unsigned[]){ 0 }, 1, 1, false);
	hr_recipe recipe = kit_recipe(&ops[1], tensors, 1, &tensors[1], 1);
	recipe.cost_ns = cost_ns;
	CHECK_STATUS(HR_OK, hr_tensor_set_recipe(&recipe));
	hr_pin first = { tensors[0], HR_READ };
	for (unsigned i = 2; i < 5; i++) { /* tensor 0 is used again and again, so tensor 1 is the first to go */
		CHECK_STATUS(HR_OK, hr_tensor_pin_all(&first, 1, HR_STREAM_DEFAULT));
		CHECK_STATUS(HR_OK, hr_tensor_unpin_all(&first, 1, HR_STREAM_DEFAULT));
		source(i);
	}
}

static void test_a_tensor_that_is_computed_faster_than_copied_is_dropped_for_room(void)
{
	const char *const policies[] = { "lru", "learned" };
	for (unsigned i = 0; i < 2; i++) {
		fill_memory(1000, policies[i]);
		CHECK_EQ(state_of(tensors[1]), HR_TENSOR_DROPPED);
		CHECK_EQ(lms_stats().bytes_copied_out, 0);
		CHECK_EQ(lms_stats().num_drops, 1);
		CHECK_EQ(lms_stats().num_single_reclaims, 1);
		expect(1);
		CHECK_EQ(lms_stats().recompute_ns, 1000);
		for (unsigned k = 0; k < 5; k++) expect(k);
		tear_down();
	}
}

static void test_a_tensor_that_is_copied_faster_than_computed_is_evicted_for_room(void)
{
	fill_memory(1000000, "lru");
	CHECK_EQ(state_of(tensors[1]), HR_TENSOR_EVICTED);
	CHECK_EQ(lms_stats().num_drops, 0);
	for (unsigned k = 0; k < 5; k++) expect(k);
	CHECK_EQ(ops[1].calls, 0u);
	tear_down();
}

static void test_a_tensor_whose_cost_is_not_known_is_evicted_for_room(void)
{
	fill_memory(0, "lru");
	CHECK_EQ(state_of(tensors[1]), HR_TENSOR_EVICTED);
	tear_down();
}

static void test_the_cost_of_a_chain_decides_whether_a_tensor_is_dropped(void)
{
	set_up_with("lru", 640 * KIB, 0, false); /* room for six */
	source(0);
	for (unsigned i = 1; i < 5; i++) {
		run(i, (unsigned[]){ i - 1 }, 1, 1, false);
		hr_recipe recipe = kit_recipe(&ops[i], &tensors[i - 1], 1, &tensors[i], 1);
		recipe.cost_ns = 20000; /* a copy out and back takes 48 us: two recipes are cheaper, three are not */
		CHECK_STATUS(HR_OK, hr_tensor_set_recipe(&recipe));
	}
	CHECK_STATUS(HR_OK, hr_tensor_set_never_evict(tensors[0], true));
	for (unsigned i = 5; i < 9; i++) source(i); /* tensors 1, 2 and 3 make room, in this order */
	CHECK_EQ(state_of(tensors[1]), HR_TENSOR_DROPPED);
	CHECK_EQ(state_of(tensors[2]), HR_TENSOR_DROPPED);
	CHECK_EQ(state_of(tensors[3]), HR_TENSOR_EVICTED);
	CHECK_STATUS(HR_OK, hr_tensor_set_never_evict(tensors[0], false));
	for (unsigned i = 0; i < 9; i++) expect(i);
	tear_down();
}

static void test_a_lower_limit_drops_what_has_recipes(void)
{
	set_up();
	source(0);
	for (unsigned i = 1; i < 5; i++) {
		run(i, (unsigned[]){ 0 }, 1, 1, false);
		hr_recipe recipe = kit_recipe(&ops[i], tensors, 1, &tensors[i], 1);
		recipe.cost_ns = 1;
		CHECK_STATUS(HR_OK, hr_tensor_set_recipe(&recipe));
	}
	CHECK_STATUS(HR_OK, hr_lms_set_limit(allocator, 200 * KIB));
	CHECK_EQ(lms_stats().num_drops, 3); /* two remain: the input and output of the last op */
	CHECK_EQ(lms_stats().num_evictions, 0);
	for (unsigned i = 0; i < 5; i++) expect(i);
	CHECK_STATUS(HR_OK, hr_lms_set_limit(allocator, 0));
	tear_down();
}

/* ---- the switch ---- */

static void test_nothing_is_dropped_while_recomputing_is_off(void)
{
	set_up();
	source(0);
	apply(1, 0);
	apply(2, 1);
	drop(1);
	CHECK_STATUS(HR_OK, hr_lms_set_recompute(allocator, false));
	CHECK_STATUS(HR_UNSUPPORTED, hr_tensor_drop(tensors[2]));
	CHECK_CONTAINS(hr_last_message(), "options.recompute is off");
	hr_recipe recipe = kit_recipe(&ops[2], &tensors[1], 1, &tensors[2], 1);
	CHECK_STATUS(HR_UNSUPPORTED, hr_tensor_set_recipe(&recipe));
	expect(1); /* what is dropped already is computed again */
	destroy(1);
	CHECK_EQ(lms_stats().num_ghosts, 0);
	CHECK_STATUS(HR_OK, hr_lms_set_recompute(allocator, true));
	expect(2);
	tear_down();
}

TEST_MAIN(T(test_a_dropped_tensor_is_computed_again_by_its_next_pin), T(test_a_recipe_without_inputs_runs),
          T(test_memory_that_a_recipe_hands_over_becomes_that_of_the_tensor), T(test_a_drop_frees_a_host_copy_too),
          T(test_evicted_inputs_are_restored_for_a_recipe), T(test_a_recomputed_tensor_can_be_read_on_another_stream),
          T(test_the_host_can_read_what_its_pin_recomputes), T(test_a_pin_that_overwrites_a_dropped_tensor_computes_nothing),
          T(test_a_pin_that_writes_a_dropped_tensor_reads_it_first), T(test_outputs_that_are_resident_are_not_written_again),
          T(test_an_output_that_is_destroyed_is_not_asked_for), T(test_a_new_recipe_replaces_an_old_one),
          T(test_a_chain_of_dropped_tensors_is_computed_from_its_beginning), T(test_all_pins_of_a_call_are_recomputed_together),
          T(test_no_chain_is_deeper_than_the_option), T(test_no_chain_needs_more_memory_than_there_is),
          T(test_a_tensor_is_not_dropped_that_longer_chains_need), T(test_a_chain_without_other_inputs_may_have_any_length),
          T(test_a_write_to_an_input_ends_the_recipe_of_a_resident_tensor),
          T(test_a_dropped_tensor_is_computed_before_its_input_is_written),
          T(test_only_what_depends_on_the_written_tensor_is_computed), T(test_one_call_may_read_a_dropped_tensor_and_write_its_input),
          T(test_a_write_waits_on_the_device_for_recipes_that_read_the_tensor),
          T(test_a_destroyed_input_with_a_recipe_lives_on_as_a_ghost), T(test_ghosts_are_computed_once_for_a_chain),
          T(test_evicted_and_dropped_inputs_become_ghosts_too),
          T(test_a_dropped_tensor_is_computed_before_an_input_without_a_recipe_is_destroyed),
          T(test_what_depends_on_ghosts_is_computed_before_their_input_is_lost), T(test_ghosts_are_no_deeper_than_the_option),
          T(test_tensors_with_recipes_are_destroyed_with_their_allocator), T(test_the_end_of_a_recipe_may_destroy_tensors),
          T(test_an_eviction_on_request_keeps_a_copy), T(test_a_recipe_that_fails_leaves_the_tensor_dropped),
          T(test_a_recipe_that_computes_nothing_is_an_error), T(test_a_chain_without_memory_changes_nothing),
          T(test_verify_accepts_what_is_computed_again_to_the_byte), T(test_verify_names_the_op_that_is_not_deterministic),
          T(test_verify_finds_a_recipe_that_writes_its_input),
          T(test_a_tensor_that_is_computed_faster_than_copied_is_dropped_for_room),
          T(test_a_tensor_that_is_copied_faster_than_computed_is_evicted_for_room),
          T(test_a_tensor_whose_cost_is_not_known_is_evicted_for_room),
          T(test_the_cost_of_a_chain_decides_whether_a_tensor_is_dropped), T(test_a_lower_limit_drops_what_has_recipes),
          T(test_nothing_is_dropped_while_recomputing_is_off))
