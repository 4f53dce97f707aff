/* test_lms_is_invisible.c - training with less memory than it needs gives the same losses and weights, to the bit, as with enough
 * memory.
 *
 * Three models, at 75, 50, 33 and 25% of the memory that they need; under both policies, with and without defragmentation, with and
 * without verification of every byte, with and without checkpointed blocks, op by op in steps that the program marks and in
 * functions, which mark steps by themselves. The memory that a combination needs is the peak of the same training without a limit;
 * if the given part of it is too small for the largest op, the op fails, and the combination does not count.
 *
 * By default 12 of the 384 combinations are run, chosen so that each setting meets each setting of any other option. From scale 10
 * on, all. */
#include "fixture.h"
#include "headroom_runtime.h"
#include "support_training.h"

#define MIB (UINT64_C(1) << 20)
#define WEIGHTS_MAX 300000u
#define STEPS_MAX 50u
#define COMBINATIONS 384u

static const struct model models[] = {
	{ "mlp", model_mlp_inputs, model_row_labels, model_mlp_logits, .batch = 512, .width = 192, .classes = 10 },
	{ "conv", model_conv_inputs, model_row_labels, model_conv_logits, .batch = 16, .width = 8, .classes = 10, .image = 16 },
	{ "gpt", model_gpt_inputs, model_gpt_labels, model_gpt_logits, .batch = 2, .width = 64, .classes = 128, .time = 64, .heads = 4, .blocks = 3 },
};
static const uint32_t percents[] = { 75, 50, 33, 25 };

struct setting {
	const struct model *model;
	uint32_t percent; /* 100 = no limit */
	bool learned, defrag, verify, checkpointed, function;
};

struct outcome {
	float losses[STEPS_MAX];
	float weights[WEIGHTS_MAX];
	size_t weight_count;
	uint64_t peak;
	int64_t evictions;
	uint32_t steps; /* completed steps; fewer than requested if an op did not fit */
};

static hr_allocator make_allocator(const struct setting *setting, uint64_t limit)
{
	hr_lms_options lms;
	hr_allocator allocator;
	hr_device device = fixture_emulated(64 * MIB, 64 << 10, 0);
	hr_allocator_options options = fixture_allocator_options(limit);
	options.oom.report_allocations_on_oom = false;
	CHECK_STATUS(HR_OK, hr_allocator_create(device, &options, &allocator));
	CHECK_STATUS(HR_OK, hr_lms_options_init(&lms));
	lms.enabled = setting->percent < 100;
	lms.policy = setting->learned ? "learned" : "lru";
	lms.defrag = setting->defrag;
	lms.verify = setting->verify;
	lms.host_limit = 128 * MIB;
	CHECK_STATUS(HR_OK, hr_lms_configure(allocator, &lms));
	return allocator;
}

static void take_steps(struct training *training, hr_allocator allocator, uint32_t steps, struct outcome *out)
{
	hr_status status = HR_OK;
	for (out->steps = 0; out->steps < steps; out->steps++) {
		if (training->how == BY_OP) CHECK_STATUS(HR_OK, hr_step_begin(allocator));
		status = training_step(training, out->steps, &out->losses[out->steps]);
		if (training->how == BY_OP) CHECK_STATUS(HR_OK, hr_step_end(allocator));
		if (status) break;
	}
	if (status) CHECK_STATUS(HR_OUT_OF_MEMORY, status);
	else out->weight_count = training_weights(training, out->weights, WEIGHTS_MAX);
}

static void train(const struct setting *setting, uint64_t limit, uint32_t steps, struct outcome *out)
{
	struct training training = { .model = setting->model, .how = setting->function ? BY_FUNCTION : BY_OP, .checkpointed = setting->checkpointed };
	hr_session_options options;
	hr_stats stats;
	hr_lms_stats lms = { .struct_size = sizeof lms };
	memset(out, 0, sizeof *out);
	hr_allocator allocator = make_allocator(setting, limit);
	hr_session_options_init(&options);
	options.device = "GPU:0";
	options.allocator = allocator;
	CHECK_STATUS(HR_OK, hr_session_create(&options, &training.session));
	CHECK_STATUS(HR_OK, hr_session_enter(training.session));
	hr_optimizer_init(&training.optimizer, HR_ADAM);
	training_begin(&training);
	take_steps(&training, allocator, steps, out);
	CHECK_STATUS(HR_OK, hr_lms_check(allocator));
	CHECK_STATUS(HR_OK, hr_lms_get_stats(allocator, &lms));
	out->evictions = lms.num_evictions;
	training_end(&training);
	CHECK_STATUS(HR_OK, hr_session_leave());
	CHECK_STATUS(HR_OK, hr_session_destroy(training.session));
	hr_stats_init(&stats);
	CHECK_STATUS(HR_OK, hr_allocator_get_stats(allocator, &stats));
	CHECK_EQ(stats.bytes_in_use, 0);
	CHECK_STATUS(HR_OK, hr_lms_check(allocator));
	out->peak = (uint64_t)stats.peak_bytes_in_use;
	CHECK_STATUS(HR_OK, hr_shutdown());
}

static void check_same(const struct outcome *a, const struct outcome *b)
{
	CHECK_EQ(a->steps, b->steps);
	CHECK_EQ(a->weight_count, b->weight_count);
	CHECK_BYTES(a->losses, b->losses, sizeof a->losses);
	CHECK_BYTES(a->weights, b->weights, a->weight_count * sizeof a->weights[0]);
}

/* ---- the combinations ---- */

static struct setting setting_of(uint32_t number)
{
	uint32_t bits = number / 12;
	return (struct setting){ &models[number % 3], percents[number / 3 % 4], bits & 1, bits & 2, bits & 4, bits & 8, bits & 16 };
}

/* The two-valued settings of combination [row] of 12: a Plackett-Burman design, in which any two settings have all four pairs of
 * values three times each. */
static uint32_t few(uint32_t row)
{
	static const uint8_t cycle[11] = { 1, 1, 0, 1, 1, 1, 0, 0, 0, 1, 0 };
	uint32_t bits = 0;
	for (uint32_t i = 0; i < 5 && row < 11; i++) bits |= (uint32_t)cycle[(row + i) % 11] << i;
	return bits * 12 + row;
}

/* Results of each model without a limit, op by op and in a function, with and without checkpointed blocks: all equal. */
static struct outcome whole[3], less;
static uint64_t peaks[3][2][2];

static void train_with_enough(uint32_t steps)
{
	for (int m = 0; m < 3; m++) {
		for (int i = 0; i < 4; i++) {
			struct setting setting = { &models[m], 100, .checkpointed = i & 1, .function = i & 2 };
			train(&setting, 64 * MIB, steps, &less);
			if (!i) whole[m] = less;
			check_same(&less, &whole[m]);
			CHECK_EQ(less.evictions, 0);
			peaks[m][i & 1][i >> 1] = less.peak;
		}
		CHECK_EQ(whole[m].steps, steps);
		CHECK_GT(whole[m].weight_count, 1000);
		printf("# %s: %zu weights; peak %llu, computed again %llu; in a function %llu, %llu\n", models[m].name, whole[m].weight_count,
		       (unsigned long long)peaks[m][0][0], (unsigned long long)peaks[m][1][0], (unsigned long long)peaks[m][0][1],
		       (unsigned long long)peaks[m][1][1]);
	}
}

/* False if an op did not fit. */
static bool train_with_less(const struct setting *setting, uint32_t steps)
{
	uint32_t m = (uint32_t)(setting->model - models);
	uint64_t limit = peaks[m][setting->checkpointed][setting->function] / 100 * setting->percent;
	train(setting, limit, steps, &less);
	printf("# %-4s %u%% %-7s %-6s %-6s %-8s %-8s: %s, %lld evictions\n", setting->model->name, setting->percent, setting->learned ? "learned" : "lru",
	       setting->defrag ? "defrag" : "", setting->verify ? "verify" : "", setting->checkpointed ? "again" : "", setting->function ? "function" : "",
	       less.steps == steps ? "ran" : "no room for an op", (long long)less.evictions);
	if (less.steps < steps) return false;
	CHECK_GT(less.evictions, 0);
	check_same(&less, &whole[m]);
	return true;
}

static void test_losses_and_weights_are_the_same_to_the_bit(void)
{
	bool all = hr_test_scale() >= 10;
	uint32_t steps = HR_TEST_SANITIZED ? 3 : all ? STEPS_MAX : 8, count = all ? COMBINATIONS : 12, ran = 0;
	train_with_enough(steps);
	for (uint32_t i = 0; i < count; i++) {
		struct setting setting = setting_of(all ? i : few(i));
		ran += train_with_less(&setting, steps);
	}
	printf("# %u of %u ran\n", ran, count);
	CHECK_GE(ran * 2, count);
}

TEST_MAIN(T_WITHIN(test_losses_and_weights_are_the_same_to_the_bit, 1800))
