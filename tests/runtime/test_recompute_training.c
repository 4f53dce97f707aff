/* test_recompute_training.c - training with values that are dropped and recomputed: losses and all weights are the same to the bit as
 * with enough memory.
 *
 * Each of the three models of examples/models.h is trained op by op, in a function and in a graph, with both policies of the library and
 * with one that drops whatever it can as soon as it is not pinned, with and without recomputing, with a host that has room and with one
 * that has next to none, at limits from 100% to 30% of the peak. In every run of the tests it is a part of the combinations, in which
 * each pair of settings occurs; in `make soak` all.
 *
 * Where a limit is less than an op needs, a step fails with HR_OUT_OF_MEMORY. It must not fail because of recomputing: what runs
 * without recipes must run with them. */
#include "fixture.h"
#include "headroom_runtime.h"
#include "support_drop.h"
#include "support_training.h"

#define MIB (UINT64_C(1) << 20)
#define WEIGHTS_MAX 200000u
#define STEPS 4u
#define SMALL_HOST MIB

static const struct model models[] = {
	{ "mlp", model_mlp_inputs, model_row_labels, model_mlp_logits, .batch = 256, .width = 96, .classes = 10 },
	{ "conv", model_conv_inputs, model_row_labels, model_conv_logits, .batch = 16, .width = 8, .classes = 10, .image = 16 },
	{ "gpt", model_gpt_inputs, model_gpt_labels, model_gpt_logits, .batch = 2, .width = 64, .classes = 128, .time = 64, .heads = 4, .blocks = 3 },
};
static const uint32_t percents[] = { 100, 75, 60, 50, 40, 30 };
static const char *const policies[] = { "lru", "learned", "drops" };

#define MODELS 3u
#define PERCENTS 6u
#define POLICIES 3u

struct setting {
	uint32_t model, percent, policy;
	enum how how;
	bool enabled, recompute, verify, small_host;
};

struct outcome {
	float losses[STEPS], weights[WEIGHTS_MAX];
	size_t weight_count;
	uint64_t peak;
	hr_lms_stats lms;
	bool ran;
};

/* ---- training ---- */

static hr_allocator make_allocator(const struct setting *setting, uint64_t limit)
{
	hr_allocator allocator;
	hr_device device = fixture_emulated(64 * MIB, 64 << 10, 0);
	hr_allocator_options options = fixture_allocator_options(limit);
	hr_lms_options lms = fixture_lms_options(policies[setting->policy], setting->small_host ? SMALL_HOST : 128 * MIB);
	options.oom.report_allocations_on_oom = false;
	lms.enabled = setting->enabled;
	lms.recompute = setting->recompute;
	lms.verify = setting->verify;
	if (setting->policy == 2) register_drop_policy();
	CHECK_STATUS(HR_OK, hr_allocator_create(device, &options, &allocator));
	CHECK_STATUS(HR_OK, hr_lms_configure(allocator, &lms));
	return allocator;
}

static void take_steps(struct training *training, hr_allocator allocator, struct outcome *out)
{
	hr_status status = HR_OK;
	for (uint32_t i = 0; i < STEPS && !status; i++) {
		if (training->how == BY_OP) CHECK_STATUS(HR_OK, hr_step_begin(allocator));
		status = training_step(training, i, &out->losses[i]);
		if (training->how == BY_OP) CHECK_STATUS(HR_OK, hr_step_end(allocator));
		CHECK_STATUS(HR_OK, hr_lms_check(allocator));
	}
	if (status) CHECK_STATUS(HR_OUT_OF_MEMORY, status);
	out->ran = !status;
	if (out->ran) out->weight_count = training_weights(training, out->weights, WEIGHTS_MAX);
}

static void train(const struct setting *setting, uint64_t limit, struct outcome *out)
{
	struct training training = { .model = &models[setting->model], .how = setting->how };
	hr_session_options options;
	memset(out, 0, sizeof *out);
	hr_allocator allocator = make_allocator(setting, limit);
	hr_session_options_init(&options);
	options.device = "GPU:0";
	options.allocator = allocator;
	CHECK_STATUS(HR_OK, hr_session_create(&options, &training.session));
	CHECK_STATUS(HR_OK, hr_session_enter(training.session));
	hr_optimizer_init(&training.optimizer, HR_ADAM);
	training_begin(&training);
	take_steps(&training, allocator, out);
	out->lms = fixture_lms_stats(allocator);
	out->peak = (uint64_t)fixture_stats(allocator).peak_bytes_in_use;
	training_end(&training);
	CHECK_STATUS(HR_OK, hr_session_leave());
	CHECK_STATUS(HR_OK, hr_session_destroy(training.session));
	CHECK_EQ(fixture_stats(allocator).bytes_in_use, 0);
	CHECK_EQ(fixture_lms_stats(allocator).num_recipes, 0);
	CHECK_EQ(fixture_lms_stats(allocator).num_ghosts, 0);
	CHECK_STATUS(HR_OK, hr_lms_check(allocator));
	CHECK_STATUS(HR_OK, hr_shutdown());
}

/* ---- combinations ---- */

static struct outcome whole[MODELS], less;
static uint64_t peaks[MODELS][HOW_COUNT];

static void train_with_enough(void)
{
	for (uint32_t m = 0; m < MODELS; m++) {
		for (int how = 0; how < HOW_COUNT; how++) {
			train(&(struct setting){ .model = m, .how = (enum how)how }, 64 * MIB, how ? &less : &whole[m]);
			if (how) CHECK_BYTES(less.losses, whole[m].losses, sizeof less.losses);
			CHECK_EQ((how ? &less : &whole[m])->ran, true);
			peaks[m][how] = (how ? &less : &whole[m])->peak;
		}
		CHECK_GT(whole[m].weight_count, 1000);
	}
}

static struct setting setting_of(uint32_t number)
{
	struct setting setting = { .enabled = true };
	setting.model = number % MODELS;
	setting.percent = percents[(number /= MODELS) % PERCENTS];
	setting.policy = (number /= PERCENTS) % POLICIES;
	setting.how = (enum how)((number /= POLICIES) % HOW_COUNT);
	setting.verify = (number /= HOW_COUNT) % 2;
	setting.small_host = number / 2 % 2;
	return setting;
}
#define COMBINATIONS (MODELS * PERCENTS * POLICIES * HOW_COUNT * 2 * 2)

static struct {
	uint32_t runs, ran, ran_without, lost;
	int64_t drops, drops_of_library, recomputes;
} totals;

static bool train_with_less(const struct setting *setting)
{
	uint32_t m = setting->model;
	train(setting, peaks[m][setting->how] / 100 * setting->percent, &less);
	printf("# %-4s %3u%% %-7s %-13s %-9s %-6s %-10s: %s, %lld evictions, %lld drops, %lld recomputed\n", models[m].name, setting->percent,
	       policies[setting->policy], how_names[setting->how], setting->recompute ? "recompute" : "", setting->verify ? "verify" : "",
	       setting->small_host ? "small host" : "", less.ran ? "ran" : "no room", (long long)less.lms.num_evictions,
	       (long long)less.lms.num_drops, (long long)less.lms.num_recomputes);
	if (!setting->recompute) {
		CHECK_EQ(less.lms.num_recipes, 0);
		CHECK_EQ(less.lms.num_drops, 0);
	}
	if (!less.ran) return false;
	CHECK_EQ(less.weight_count, whole[m].weight_count);
	CHECK_BYTES(less.losses, whole[m].losses, sizeof less.losses);
	CHECK_BYTES(less.weights, whole[m].weights, less.weight_count * sizeof *less.weights);
	return true;
}

/* Once without recomputing and once with it. */
static void compare(struct setting setting)
{
	bool without = train_with_less(&setting);
	setting.recompute = true;
	bool with = train_with_less(&setting);
	totals.runs++;
	totals.ran += with;
	totals.ran_without += without;
	totals.lost += without && !with;
	totals.drops += less.lms.num_drops;
	if (setting.policy < 2) totals.drops_of_library += less.lms.num_drops;
	totals.recomputes += less.lms.num_recomputes;
}

static void test_training_is_the_same_to_the_bit(void)
{
	bool all = hr_test_scale() >= 10;
	uint32_t step = all ? 1 : HR_TEST_SANITIZED ? 67 : 23; /* prime to the number of values of each setting */
	train_with_enough();
	for (uint32_t i = 0; i < COMBINATIONS; i += step) compare(setting_of(i));
	printf("# of %u combinations %u ran, %u without recomputing; %lld drops, %lld of them by the library's policies, %lld recomputed\n",
	       totals.runs, totals.ran, totals.ran_without, (long long)totals.drops, (long long)totals.drops_of_library,
	       (long long)totals.recomputes);
	CHECK_EQ(totals.lost, 0);
	CHECK_GT(totals.drops_of_library, 0);
	CHECK_GT(totals.recomputes, 0);
}

TEST_MAIN(T_WITHIN(test_training_is_the_same_to_the_bit, 1800))
