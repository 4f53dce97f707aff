/* test_lms_rounds.c - thousands of steps of a small training loop in which not everything fits: no memory use grows.
 *
 * A step makes activations forward, uses them backward and destroys them; weights persist, and some plain blocks are allocated and
 * freed. Once learned, the step repeats: evictions, restores, bytes copied and virtual time equal those of the steps before, and
 * host memory, descriptors and the allocator's own tables do not change. The addresses of tensors may differ from step to step and
 * repeat after a few steps, so that twelve steps are compared with the twelve before; but each learned step takes the same time.
 *
 * 24,000 steps on the simulated device at scale 1 and above; about a hundred on the emulated one, whose times always differ, so
 * that only counts that must repeat are compared there. */
#include "fixture.h"
#include "core/device/device.h"
#include "fault_os.h"
#include "core/lms/lms.h"
#include "support_stats.h"
#include "test.h"

#define KIB UINT64_C(1024)
#define MIB (KIB * KIB)
#define LAYERS 12u
#define WARM 700u /* steps until plans are stable, and the last 4,096 marks of each stream are kept */
#define DOZEN 12u /* a multiple of every short period */

static struct {
	hr_device device;
	hr_allocator allocator;
	hr_stream stream;
	hr__lms *lms;
	uint64_t unit; /* unit of all sizes */
	bool real;     /* memory can be filled */
	hr_tensor weights[LAYERS], acts[LAYERS];
} here;

static void set_up(bool sim, const char *policy)
{
	memset(&here, 0, sizeof here);
	setenv("HEADROOM_CUDA", "0", 1);
	hr_fault_os_install();
	here.real = !sim;
	here.unit = sim ? 8 * MIB : 64 * KIB;
	fixture_configure_simulated(FIXTURE_DEFAULT, FIXTURE_DEFAULT);
	fixture_configure_emulated(64 * MIB, 64 * KIB, 0);
	CHECK_STATUS(HR_OK, hr_device_find(sim ? "SIM:0" : "GPU:0", &here.device));
	CHECK_STATUS(HR_OK, hr_stream_create(here.device, &here.stream));
	here.allocator = fixture_allocator(here.device, 20 * here.unit);
	fixture_lms(here.allocator, policy, 1024 * here.unit);
	hr__reclaim_compares = true;
	CHECK_STATUS(HR_OK, hr__lms_of(here.allocator, &here.lms));
}

static hr_tensor create(uint64_t bytes)
{
	return fixture_tensor(here.allocator, bytes);
}

static void put(hr_tensor tensor, uint64_t bytes, unsigned value)
{
	void *at;
	CHECK_STATUS(HR_OK, hr_tensor_get_address(tensor, &at));
	if (here.real) CHECK_STATUS(HR_OK, hr_stream_fill(here.device, at, (unsigned char)value, bytes, here.stream));
}

static void get(hr_tensor tensor, uint64_t bytes, unsigned value)
{
	void *at;
	unsigned char found[2] = { 0 };
	CHECK_STATUS(HR_OK, hr_tensor_get_address(tensor, &at));
	if (!here.real) return;
	CHECK_STATUS(HR_OK, hr_stream_copy(here.device, &found[0], at, 1, HR_COPY_TO_HOST, here.stream));
	CHECK_STATUS(HR_OK, hr_stream_copy(here.device, &found[1], (char *)at + bytes - 1, 1, HR_COPY_TO_HOST, here.stream));
	CHECK_STATUS(HR_OK, hr_stream_synchronize(here.device, here.stream));
	CHECK_EQ(found[0], (unsigned char)value);
	CHECK_EQ(found[1], (unsigned char)value);
}

static uint64_t act_bytes(uint32_t layer)
{
	return here.unit + (layer % 3) * here.unit / 2;
}

static void compute(uint64_t ns)
{
	CHECK_STATUS(HR_OK, hr__device_compute(here.lms->device, here.stream, ns));
}

static void step(uint64_t number)
{
	void *block;
	CHECK_STATUS(HR_OK, hr_step_begin(here.allocator));
	CHECK_STATUS(HR_OK, hr_alloc_bytes(here.allocator, here.unit / 2, &block));
	for (uint32_t i = 0; i < LAYERS; i++) {
		here.acts[i] = create(act_bytes(i));
		hr_pin pins[] = { { here.acts[i], HR_OVERWRITE },
			              { here.weights[i], HR_READ },
			              { i ? here.acts[i - 1] : here.weights[i], HR_READ } };
		CHECK_STATUS(HR_OK, hr_tensor_pin_all(pins, 3, here.stream));
		if (i) get(here.acts[i - 1], act_bytes(i - 1), (unsigned)(number + i - 1));
		put(here.acts[i], act_bytes(i), (unsigned)(number + i));
		compute(500000);
		CHECK_STATUS(HR_OK, hr_tensor_unpin_all(pins, 3, here.stream));
	}
	for (uint32_t i = LAYERS; i-- > 0;) {
		hr_pin pins[] = { { here.acts[i], HR_READ }, { here.weights[i], HR_WRITE } };
		CHECK_STATUS(HR_OK, hr_tensor_pin_all(pins, 2, here.stream));
		get(here.acts[i], act_bytes(i), (unsigned)(number + i));
		if (number) get(here.weights[i], here.unit, (unsigned)(number + 100 + i - 1));
		put(here.weights[i], here.unit, (unsigned)(number + 100 + i));
		compute(1000000);
		CHECK_STATUS(HR_OK, hr_tensor_unpin_all(pins, 2, here.stream));
		CHECK_STATUS(HR_OK, hr_tensor_destroy(here.acts[i]));
	}
	CHECK_STATUS(HR_OK, hr_free(here.allocator, block, here.stream));
	CHECK_STATUS(HR_OK, hr_step_end(here.allocator));
}

/* Values that must be the same after every step. */
struct level {
	hr_lms_stats lms;
	hr_stats stats;
	struct hr_fault_os_live live;
	uint64_t time;
};

static struct level level_now(void)
{
	struct level level = { .lms = { .struct_size = sizeof level.lms } };
	CHECK_STATUS(HR_OK, hr_lms_get_stats(here.allocator, &level.lms));
	hr_stats_init(&level.stats);
	CHECK_STATUS(HR_OK, hr_allocator_get_stats(here.allocator, &level.stats));
	check_identities(&level.stats);
	hr_fault_os_live(&level.live);
	if (!here.real) { /* the stream's own time */
		uint64_t mark;
		CHECK_STATUS(HR_OK, hr__device_mark_timed(here.lms->device, here.stream, &mark));
		CHECK_STATUS(HR_OK, hr__device_mark_time(here.lms->device, here.stream, mark, &level.time));
	}
	return level;
}

static void check_returns(const struct level *now, const struct level *first)
{
	CHECK_EQ(now->lms.num_tensors, LAYERS);
	CHECK_EQ(now->lms.num_pins, 0);
	CHECK_EQ(now->lms.bytes_pinned, 0);
	CHECK_EQ(now->stats.num_live, LAYERS);
	CHECK_LE(now->stats.metadata_bytes, first->stats.metadata_bytes);
	CHECK_LE(now->live.alloc_blocks, first->live.alloc_blocks + (here.real ? 16 : 0)); /* marks: see WARM */
	CHECK_LE(now->live.alloc_bytes, first->live.alloc_bytes + (here.real ? 2 * MIB : 0));
	CHECK_LE(now->live.committed_bytes, first->live.committed_bytes);
	CHECK_LE(now->live.locked_bytes, first->live.locked_bytes);
	CHECK_EQ(now->live.reserved_ranges, first->live.reserved_ranges);
	CHECK_EQ(now->live.fds, first->live.fds);
	CHECK_EQ(now->live.threads, first->live.threads);
	CHECK_EQ(now->live.monitors, first->live.monitors);
	CHECK_LE(now->lms.host_bytes, (int64_t)(4 * LAYERS * here.unit));
}

/* Values that are counted per step. */
#define COUNTED(X)                                                                                                          \
	X(bytes_reclaimed)                                                                                                      \
	X(bytes_copied_out)                                                                                                     \
	X(bytes_copied_in) X(num_evictions) X(num_clean_evictions) X(num_restores) X(num_single_reclaims) X(num_multi_reclaims) \
		X(num_full_reclaims) X(num_planned_evictions) X(num_prefetches) X(num_prefetch_hits) X(num_prefetch_misses)         \
			X(num_mismatches) X(num_pin_waits)

/* Compares twelve steps with the twelve before. */
static void check_same(const struct level *now, const struct level *before, const struct level *first, const struct level *second)
{
#define SAME(name) CHECK_EQ(now->lms.name - before->lms.name, second->lms.name - first->lms.name);
	COUNTED(SAME)
#undef SAME
	CHECK_EQ(now->time - before->time, second->time - first->time);
	CHECK_EQ(now->stats.bytes_stitched - before->stats.bytes_stitched, second->stats.bytes_stitched - first->stats.bytes_stitched);
	CHECK_EQ(now->lms.bytes_out_now, before->lms.bytes_out_now);
	CHECK_EQ(now->lms.host_bytes, before->lms.host_bytes);
	CHECK_EQ(now->stats.bytes_in_use, before->stats.bytes_in_use);
	CHECK_EQ(now->stats.bytes_reserved, before->stats.bytes_reserved);
}

static void run(uint64_t steps, const char *policy, bool sim)
{
	set_up(sim, policy);
	for (uint32_t i = 0; i < LAYERS; i++) {
		here.weights[i] = create(here.unit);
		CHECK_STATUS(HR_OK, hr_tensor_pin(here.weights[i], HR_OVERWRITE, here.stream));
		CHECK_STATUS(HR_OK, hr_tensor_unpin(here.weights[i], here.stream));
	}
	static struct level levels[DOZEN];
	struct level first = { 0 }, second = { 0 }, before = { 0 }, now = { 0 };
	uint64_t warm = sim ? WARM : 20, planned = 0;
	for (uint64_t i = 0; i < warm + steps; i++) {
		step(i);
		before = now;
		now = level_now();
		if (i == warm) first = now;
		if (i == warm + DOZEN) second = now;
		if (i > warm) check_returns(&now, &first);
		if (i > warm + DOZEN && sim) check_same(&now, &levels[i % DOZEN], &first, &second);
		if (i > warm && sim && !strcmp(policy, "learned")) {
			if (!planned) planned = now.time - before.time;
			CHECK_EQ(now.time - before.time, planned);
			CHECK_EQ(now.lms.num_prefetch_misses, first.lms.num_prefetch_misses);
		}
		levels[i % DOZEN] = now;
		if (i % 1000 == 0) CHECK_STATUS(HR_OK, hr_lms_check(here.allocator));
		if (i % 1000 == 0) CHECK_STATUS(HR_OK, hr_allocator_check(here.allocator));
	}
	printf("# %s, %llu steps: %lld evictions, %lld planned, %lld hits, %lld misses; in a step %.3f ms, %lld evictions, %lld "
	       "misses, %lld bytes "
	       "each way\n",
	       policy, (unsigned long long)(warm + steps), (long long)now.lms.num_evictions, (long long)now.lms.num_planned_evictions,
	       (long long)now.lms.num_prefetch_hits, (long long)now.lms.num_prefetch_misses, (double)(now.time - before.time) / 1e6,
	       (long long)(now.lms.num_evictions - before.lms.num_evictions),
	       (long long)(now.lms.num_prefetch_misses - before.lms.num_prefetch_misses),
	       (long long)(now.lms.bytes_copied_in - before.lms.bytes_copied_in));
	CHECK_GT(now.lms.num_evictions, (int64_t)steps); /* there was pressure */
	if (!strcmp(policy, "learned")) CHECK_GT(now.lms.num_steps_planned, (int64_t)steps);
	for (uint32_t i = 0; i < LAYERS; i++) CHECK_STATUS(HR_OK, hr_tensor_destroy(here.weights[i]));
	CHECK_STATUS(HR_OK, hr_allocator_destroy(here.allocator));
	CHECK_STATUS(HR_OK, hr_shutdown());
	CHECK(hr_fault_os_is_clean());
	hr_fault_os_uninstall();
}

/* At most [usual], also above scale 1: these are the promised numbers. */
static uint64_t steps_for(uint64_t usual)
{
	uint64_t steps = hr_test_scaled(usual);
	return steps > usual ? usual : steps;
}

static void test_learned_steps_are_all_the_same(void)
{
	run(steps_for(24000), "learned", true);
}

static void test_steps_under_lru_are_all_the_same(void)
{
	run(steps_for(24000), "lru", true);
}

static void test_steps_on_a_device_leak_nothing(void)
{
	run(steps_for(80), "learned", false);
	run(steps_for(40), "lru", false);
}

TEST_MAIN(T_WITHIN(test_learned_steps_are_all_the_same, 120), T_WITHIN(test_steps_under_lru_are_all_the_same, 120),
          T_WITHIN(test_steps_on_a_device_leak_nothing, 120))
