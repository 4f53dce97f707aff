/* test_recipe_sources.c - sources of recipes: before what a recipe read and is not a tensor changes, what depends on it is computed. */
#include "core/lms/lms.h"
#include "recipe_kit.h"

#define KIB UINT64_C(1024)
#define MIB (KIB * KIB)
#define BYTES ((size_t)(100 * KIB))
#define OPS 600u

static hr_device device;
static hr_allocator allocator;
static kit_op ops[OPS];
static hr_tensor tensors[OPS];

static void set_up(void)
{
	device = fixture_emulated(256 * MIB, 64 * KIB, 0);
	hr_allocator_options options = fixture_allocator_options(128 * MIB);
	CHECK_STATUS(HR_OK, hr_allocator_create(device, &options, &allocator));
	hr_lms_options lms = fixture_lms_options("lru", 32 * MIB);
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
	CHECK_EQ(fixture_lms_stats(allocator).num_ghosts, 0);
	CHECK_STATUS(HR_OK, hr_allocator_destroy(allocator));
	CHECK_STATUS(HR_OK, hr_shutdown());
}

/* Tensor [at] is computed from tensor [from] (none if it is [at] itself), and from [sources]. */
static hr_status apply(unsigned at, unsigned from, const uint64_t *sources, size_t count)
{
	size_t ins = from != at;
	ops[at] = (kit_op){ .device = device, .allocator = allocator, .bytes = BYTES, .value = (unsigned char)(at + 1) };
	if (!tensors[at].id) tensors[at] = fixture_tensor(allocator, BYTES);
	CHECK_STATUS(HR_OK, kit_run(&ops[at], &tensors[from], ins, &tensors[at], 1, HR_STREAM_DEFAULT));
	hr_recipe recipe = kit_recipe(&ops[at], &tensors[from], ins, &tensors[at], 1);
	recipe.sources = sources;
	recipe.source_count = count;
	return hr_tensor_set_recipe(&recipe);
}

static bool is_dropped(unsigned at)
{
	return fixture_tensor_info(tensors[at]).state == HR_TENSOR_DROPPED;
}

static void test_what_depends_on_a_source_is_computed_before_it_changes(void)
{
	set_up();
	const uint64_t weights = 1, bias = 2;
	CHECK_STATUS(HR_OK, apply(0, 0, &weights, 1));
	CHECK_STATUS(HR_OK, apply(1, 1, &bias, 1));
	CHECK_STATUS(HR_OK, hr_tensor_drop(tensors[0]));
	CHECK_STATUS(HR_OK, hr_tensor_drop(tensors[1]));
	CHECK_STATUS(HR_OK, hr_lms_end_recipes(allocator, weights, HR_STREAM_DEFAULT));
	CHECK_EQ(ops[0].calls, 1u);
	CHECK_EQ(ops[0].released, 1u);
	CHECK(!is_dropped(0) && is_dropped(1));
	CHECK_STATUS(HR_NOT_READY, hr_tensor_drop(tensors[0]));
	CHECK_STATUS(HR_OK, hr_lms_end_recipes(allocator, weights, HR_STREAM_DEFAULT)); /* no recipe names it any more */
	CHECK_EQ(ops[0].calls, 1u);
	CHECK_EQ(ops[1].calls, 0u);
	tear_down();
}

static void test_a_source_of_a_ghost_counts(void)
{
	set_up();
	const uint64_t weights = 7;
	CHECK_STATUS(HR_OK, apply(0, 0, &weights, 1));
	CHECK_STATUS(HR_OK, apply(1, 0, NULL, 0));
	CHECK_STATUS(HR_OK, hr_tensor_destroy(tensors[0]));
	tensors[0].id = 0;
	CHECK_EQ(fixture_lms_stats(allocator).num_ghosts, 1);
	CHECK_STATUS(HR_OK, hr_tensor_drop(tensors[1]));
	CHECK_STATUS(HR_OK, hr_lms_end_recipes(allocator, weights, HR_STREAM_DEFAULT));
	CHECK_EQ(ops[0].calls, 1u);
	CHECK_EQ(ops[1].calls, 1u);
	CHECK(!is_dropped(1));
	CHECK_EQ(fixture_lms_stats(allocator).num_ghosts, 0);
	CHECK_EQ(fixture_lms_stats(allocator).num_recipes, 0);
	tear_down();
}

static void test_a_source_named_twice_ends_a_recipe_once(void)
{
	set_up();
	const uint64_t twice[] = { 5, 5 };
	CHECK_STATUS(HR_OK, apply(0, 0, twice, 2));
	CHECK_STATUS(HR_OK, hr_lms_end_recipes(allocator, 5, HR_STREAM_DEFAULT));
	CHECK_EQ(ops[0].released, 1u);
	tear_down();
}

/* More than the first table has buckets. */
static void test_many_recipes_have_sources_of_their_own_and_a_common_one(void)
{
	set_up();
	for (unsigned i = 0; i < OPS; i++) {
		const uint64_t sources[] = { 1000 + i, 1 };
		CHECK_STATUS(HR_OK, apply(i, i, sources, 2));
	}
	CHECK_STATUS(HR_OK, hr_lms_end_recipes(allocator, 1000 + 17, HR_STREAM_DEFAULT));
	CHECK_EQ(fixture_lms_stats(allocator).num_recipes, OPS - 1);
	CHECK_EQ(ops[17].released, 1u);
	CHECK_STATUS(HR_OK, hr_lms_end_recipes(allocator, 1, HR_STREAM_DEFAULT));
	CHECK_EQ(fixture_lms_stats(allocator).num_recipes, 0);
	for (unsigned i = 0; i < OPS; i++) CHECK_EQ(ops[i].released, 1u);
	tear_down();
}

static void test_a_failed_recomputation_keeps_the_recipe(void)
{
	set_up();
	const uint64_t weights = 3;
	CHECK_STATUS(HR_OK, apply(0, 0, &weights, 1));
	CHECK_STATUS(HR_OK, hr_tensor_drop(tensors[0]));
	ops[0].fails = HR_IO;
	CHECK_STATUS(HR_IO, hr_lms_end_recipes(allocator, weights, HR_STREAM_DEFAULT));
	CHECK(is_dropped(0));
	CHECK_EQ(ops[0].released, 0u);
	ops[0].fails = HR_OK;
	CHECK_STATUS(HR_OK, hr_lms_end_recipes(allocator, weights, HR_STREAM_DEFAULT));
	CHECK(!is_dropped(0));
	tear_down();
}

static hr_status end_own_source(kit_op *op, const hr_recompute *call)
{
	(void)op;
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_lms_end_recipes(allocator, 3, call->stream));
	return HR_OK;
}

static void test_a_recompute_function_must_not_change_a_source(void)
{
	set_up();
	const uint64_t weights = 3;
	CHECK_STATUS(HR_OK, apply(0, 0, &weights, 1));
	CHECK_STATUS(HR_OK, hr_tensor_drop(tensors[0]));
	ops[0].first = end_own_source;
	CHECK_STATUS(HR_OK, hr_tensor_pin(tensors[0], HR_READ, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_tensor_unpin(tensors[0], HR_STREAM_DEFAULT));
	CHECK_EQ(ops[0].calls, 1u);
	tear_down();
}

static void test_sources_without_an_array_are_refused(void)
{
	set_up();
	CHECK_STATUS(HR_INVALID_ARGUMENT, apply(0, 0, NULL, 1));
	CHECK_STATUS(HR_OK, hr_lms_end_recipes(allocator, 1, HR_STREAM_DEFAULT));
	tear_down();
}

static void test_an_allocator_without_tensors_has_no_sources(void)
{
	device = fixture_emulated(64 * MIB, 64 * KIB, 0);
	hr_allocator_options options = fixture_allocator_options(32 * MIB);
	CHECK_STATUS(HR_OK, hr_allocator_create(device, &options, &allocator));
	CHECK_STATUS(HR_NOT_READY, hr_lms_end_recipes(allocator, 1, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_allocator_destroy(allocator));
	CHECK_STATUS(HR_OK, hr_shutdown());
}

TEST_MAIN(T(test_what_depends_on_a_source_is_computed_before_it_changes), T(test_a_source_of_a_ghost_counts),
          T(test_a_source_named_twice_ends_a_recipe_once), T(test_many_recipes_have_sources_of_their_own_and_a_common_one),
          T(test_a_failed_recomputation_keeps_the_recipe), T(test_a_recompute_function_must_not_change_a_source),
          T(test_sources_without_an_array_are_refused), T(test_an_allocator_without_tensors_has_no_sources))
