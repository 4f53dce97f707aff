/* test_recipe_oom.c - verdicts and reports say what could be dropped; and what has a recipe is dropped when the host is full. */
#include "headroom_oom.h"
#include "recipe_kit.h"

#define KIB UINT64_C(1024)
#define MIB (KIB * KIB)
#define BYTES ((size_t)MIB)
#define TENSORS 4u

static hr_device device;
static hr_allocator allocator;
static hr_tensor tensors[TENSORS];
static kit_op ops[TENSORS];

/* Fills an allocator with room for four tensors; the last [recipes] of them have recipes, of 3 ms each. */
static void fill(unsigned recipes, uint64_t host_limit, uint64_t cost_ns)
{
	device = fixture_emulated(64 * MIB, 64 * KIB, 0);
	hr_allocator_options options = fixture_allocator_options(TENSORS * BYTES);
	options.oom.report_allocations_on_oom = true;
	CHECK_STATUS(HR_OK, hr_allocator_create(device, &options, &allocator));
	hr_lms_options lms = fixture_lms_options("lru", host_limit);
	lms.wait_ns = 0;
	CHECK_STATUS(HR_OK, hr_lms_configure(allocator, &lms));
	for (unsigned i = 0; i < TENSORS; i++) {
		ops[i] = (kit_op){ .device = device, .allocator = allocator, .bytes = BYTES, .value = (unsigned char)i };
		tensors[i] = fixture_tensor(allocator, BYTES);
		CHECK_STATUS(HR_OK, kit_run(&ops[i], NULL, 0, &tensors[i], 1, HR_STREAM_DEFAULT));
		hr_recipe recipe = kit_recipe(&ops[i], NULL, 0, &tensors[i], 1);
		recipe.cost_ns = cost_ns;
		if (i >= TENSORS - recipes) CHECK_STATUS(HR_OK, hr_tensor_set_recipe(&recipe));
	}
}

static void tear_down(void)
{
	CHECK_STATUS(HR_OK, hr_lms_check(allocator));
	CHECK_STATUS(HR_OK, hr_allocator_destroy_all(allocator));
	CHECK_STATUS(HR_OK, hr_shutdown());
}

static hr_verdict verdict_on(uint64_t bytes)
{
	hr_verdict verdict;
	hr_verdict_init(&verdict);
	CHECK_STATUS(HR_OK, hr_allocator_would_fit(allocator, &HR_REQUEST(bytes), &verdict));
	CHECK_EQ(verdict.kind, HR_FITS_WITH_LMS);
	CHECK_EQ(verdict.bytes, bytes);
	return verdict;
}

static void test_the_verdict_says_what_recipes_compute_again(void)
{
	fill(3, 32 * MIB, 3000000);
	hr_verdict verdict = verdict_on(3 * MIB);
	CHECK_EQ(verdict.recompute_bytes, 3 * MIB);
	CHECK_EQ(verdict.recompute_ns, 9000000u);
	CHECK_CONTAINS(verdict.text, "It fits with LMS, if 3.0 MiB of idle tensors are recomputed (about 9.0 ms) or move to the host");
	verdict = verdict_on(2 * MIB); /* two of the three */
	CHECK_EQ(verdict.recompute_bytes, 2 * MIB);
	CHECK_EQ(verdict.recompute_ns, 6000000u);
	verdict = verdict_on(4 * MIB);
	CHECK_EQ(verdict.recompute_bytes, 3 * MIB);
	CHECK_CONTAINS(verdict.text, "if 4.0 MiB of idle tensors move to the host, or 3.0 MiB of them are recomputed (about 9.0 ms)");
	tear_down();
}

static void test_without_recipes_the_verdict_is_as_before(void)
{
	fill(0, 32 * MIB, 0);
	hr_verdict verdict = verdict_on(2 * MIB);
	CHECK_EQ(verdict.recompute_bytes, 0u);
	CHECK_EQ(verdict.recompute_ns, 0u);
	CHECK_STR(verdict.text, "It fits with LMS, if 2.0 MiB of idle tensors move to the host, which hr_alloc does automatically.");
	tear_down();
}

/* Half of 1 MiB of host memory is too little for a copy. */
static void test_a_tensor_with_a_recipe_is_dropped_when_the_host_is_full(void)
{
	void *block;
	fill(2, 512 * KIB, 3000000000u);
	CHECK_STATUS(HR_OK, hr_alloc_bytes(allocator, MIB, &block));
	CHECK_STATUS(HR_OK, hr_free(allocator, block, HR_STREAM_DEFAULT));
	hr_lms_stats stats = fixture_lms_stats(allocator);
	CHECK_EQ(stats.num_drops, 1); /* not of the least recently used tensor, which has no recipe */
	CHECK_EQ(stats.num_evictions, 0);
	tear_down();
}

static void test_the_report_names_the_switch_when_recomputing_is_off(void)
{
	void *block;
	static char json[65536];
	hr_oom_report report;
	hr_verdict verdict;
	fill(TENSORS, 512 * KIB, 3000000);
	CHECK_STATUS(HR_OK, hr_lms_set_recompute(allocator, false));
	CHECK_STATUS(HR_OUT_OF_MEMORY, hr_alloc_bytes(allocator, 2 * MIB, &block));
	hr_verdict_init(&verdict);
	CHECK_STATUS(HR_OK, hr_oom_get_last(&report));
	CHECK_STATUS(HR_OK, hr_oom_get_verdict(report, &verdict));
	CHECK_EQ(verdict.recompute_bytes, 2 * MIB);
	CHECK_CONTAINS(verdict.advice, "Raise host_limit");
	CHECK_CONTAINS(verdict.advice, "Or call hr_lms_set_recompute(allocator, true)");
	CHECK_LE(hr_oom_format_json(report, json, sizeof json), sizeof json - 1);
	CHECK_CONTAINS(json, "\"recompute_bytes\":2097152,\"recompute_ns\":6000000");
	CHECK_STATUS(HR_OK, hr_lms_set_recompute(allocator, true));
	CHECK_STATUS(HR_OK, hr_alloc_bytes(allocator, 2 * MIB, &block));
	tear_down();
}

TEST_MAIN(T(test_the_verdict_says_what_recipes_compute_again), T(test_without_recipes_the_verdict_is_as_before),
          T(test_a_tensor_with_a_recipe_is_dropped_when_the_host_is_full),
          T(test_the_report_names_the_switch_when_recomputing_is_off))
