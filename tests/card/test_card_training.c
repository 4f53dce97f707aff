/* test_card_training.c - models train on a card that computes: to the bit the same op by op and in a function, and with less memory than they
 * need, with what does not fit evicted, dropped and recomputed; and with losses close to those of the host. */
#include <math.h>

#include "card/support_card.h"
#include "runtime/support_training.h"

#define WEIGHTS_MAX 400000u
#define STEPS 2u
#define MODELS 3
#define PERCENT 80

static const struct model models[MODELS] = {
	{ "mlp", model_mlp_inputs, model_row_labels, model_mlp_logits, .batch = 256, .width = 128, .classes = 10 },
	{ "conv", model_conv_inputs, model_row_labels, model_conv_logits, .batch = 8, .width = 8, .classes = 10, .image = 16 },
	{ "gpt", model_gpt_inputs, model_gpt_labels, model_gpt_logits, .batch = 2, .width = 32, .classes = 64, .time = 32, .heads = 4, .blocks = 3 },
};

struct outcome {
	float losses[STEPS], weights[WEIGHTS_MAX];
	size_t count;
	uint64_t peak;
	hr_lms_stats lms;
};
static struct outcome first, here;

/* [limit] 0: enough memory, and no Large Model Support. */
static void train(const struct model *model, const char *device, uint64_t limit, enum how how, struct outcome *out)
{
	struct training training = { .model = model, .how = how };
	hr_stats stats;
	hr_device on;
	memset(out, 0, sizeof *out);
	out->lms.struct_size = sizeof out->lms;
	CHECK_STATUS(HR_OK, hr_device_find(device, &on));
	hr_allocator allocator = fixture_allocator(on, limit);
	if (limit) {
		hr_lms_options lms = fixture_lms_options(NULL, 0);
		lms.verify = true;
		lms.defrag = true;
		CHECK_STATUS(HR_OK, hr_lms_configure(allocator, &lms));
	}
	training.session = card_session(device, allocator);
	CHECK_STATUS(HR_OK, hr_session_enter(training.session));
	hr_optimizer_init(&training.optimizer, HR_ADAM);
	training_begin(&training);
	for (uint32_t i = 0; i < STEPS; i++) CHECK_STATUS(HR_OK, training_step(&training, i, &out->losses[i]));
	out->count = training_weights(&training, out->weights, WEIGHTS_MAX);
	CHECK_GT(out->count, 1000);
	training_end(&training);
	CHECK_STATUS(HR_OK, hr_session_leave());
	CHECK_STATUS(HR_OK, hr_session_destroy(training.session));
	hr_stats_init(&stats);
	CHECK_STATUS(HR_OK, hr_allocator_get_stats(allocator, &stats));
	CHECK_EQ(stats.bytes_in_use, 0);
	out->peak = (uint64_t)stats.peak_bytes_in_use;
	if (limit) CHECK_STATUS(HR_OK, hr_lms_get_stats(allocator, &out->lms));
	CHECK_STATUS(HR_OK, hr_allocator_destroy(allocator));
}

static void check_same(void)
{
	CHECK_EQ(here.count, first.count);
	CHECK_BYTES(here.losses, first.losses, sizeof here.losses);
	CHECK_BYTES(here.weights, first.weights, here.count * sizeof *here.weights);
}

static void train_all(const struct model *model)
{
	train(model, "GPU:0", 0, BY_OP, &first);
	train(model, "GPU:0", 0, BY_FUNCTION, &here);
	check_same();
	train(model, "GPU:0", here.peak / 100 * PERCENT, BY_FUNCTION, &here);
	check_same();
	CHECK_GT(here.lms.num_evictions + here.lms.num_drops, 0);
	train(model, "CPU:0", 0, BY_OP, &here);
	for (uint32_t i = 0; i < STEPS; i++) {
		printf("# %s: loss %.6f, on the host %.6f\n", model->name, (double)first.losses[i], (double)here.losses[i]);
		CHECK(fabs((double)first.losses[i] - (double)here.losses[i]) < 1e-3 * (1 + fabs((double)here.losses[i])));
	}
}

static void test_models_train_on_the_card(void)
{
	card_begin();
	if (card_is_real()) hr_test_skip("these models are too small for the pages of a card");
	for (int i = 0; i < MODELS; i++) train_all(&models[i]);
	CHECK_STATUS(HR_OK, hr_shutdown());
}

TEST_MAIN(T_WITHIN(test_models_train_on_the_card, 300))
