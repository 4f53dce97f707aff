/* runtime_conformance.c - the runtime on every device that has memory, including cards: results equal those on the host, to the
 * bit, also if the models do not fit.
 *
 * The host cannot access the memory of a card: there each op works on copies, and the tensors that are evicted and restored are
 * those of the card. */
#include "fixture.h"
#include "conformance/device_subjects.h"
#include "headroom.h"
#include "headroom_runtime.h"
#include "runtime/support_training.h"

#define WEIGHTS_MAX 400000u
#define STEPS 3u
#define MODELS 3
#define PERCENT 75

/* If pages are large, models must be large too, so that a fraction of their memory is several pages. */
static const struct model small[MODELS] = {
	{ "mlp", model_mlp_inputs, model_row_labels, model_mlp_logits, .batch = 256, .width = 128, .classes = 10 },
	{ "conv", model_conv_inputs, model_row_labels, model_conv_logits, .batch = 4, .width = 8, .classes = 10, .image = 16 },
	{ "gpt", model_gpt_inputs, model_gpt_labels, model_gpt_logits, .batch = 2, .width = 32, .classes = 64, .time = 32, .heads = 4, .blocks = 3 },
};
static const struct model large[MODELS] = {
	{ "mlp", model_mlp_inputs, model_row_labels, model_mlp_logits, .batch = 4096, .width = 256, .classes = 10 },
	{ "conv", model_conv_inputs, model_row_labels, model_conv_logits, .batch = 32, .width = 16, .classes = 10, .image = 32 },
	{ "gpt", model_gpt_inputs, model_gpt_labels, model_gpt_logits, .batch = 16, .width = 64, .classes = 128, .time = 64, .heads = 4, .blocks = 4 },
};

struct outcome {
	float losses[STEPS], weights[WEIGHTS_MAX];
	size_t count;
	uint64_t peak;
	int64_t evictions;
};
static struct outcome on_host, here;

static hr_session open_on(const char *name, hr_allocator allocator)
{
	hr_session_options options;
	hr_session session;
	hr_session_options_init(&options);
	options.device = name;
	options.allocator = allocator;
	CHECK_STATUS(HR_OK, hr_session_create(&options, &session));
	return session;
}

/* [limit] 0: all memory of the device. */
static hr_allocator make_allocator(const char *name, uint64_t limit)
{
	hr_device on;
	CHECK_STATUS(HR_OK, hr_device_find(name, &on));
	hr_allocator allocator = fixture_allocator(on, limit);
	if (!limit) return allocator;
	hr_lms_options lms = fixture_lms_options(NULL, 0);
	lms.verify = true;
	CHECK_STATUS(HR_OK, hr_lms_configure(allocator, &lms));
	return allocator;
}

static void train(const struct model *model, const char *name, uint64_t limit, enum how how, struct outcome *out)
{
	struct training training = { .model = model, .how = how };
	hr_lms_stats lms = { .struct_size = sizeof lms };
	hr_stats stats;
	memset(out, 0, sizeof *out);
	hr_allocator allocator = make_allocator(name, limit);
	training.session = open_on(name, allocator);
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
	if (limit) {
		CHECK_STATUS(HR_OK, hr_lms_check(allocator));
		CHECK_STATUS(HR_OK, hr_lms_get_stats(allocator, &lms));
		CHECK_LE(out->peak, limit);
	}
	out->evictions = lms.num_evictions;
	CHECK_STATUS(HR_OK, hr_allocator_destroy(allocator));
}

static void check_same(void)
{
	CHECK_EQ(here.count, on_host.count);
	CHECK_BYTES(here.losses, on_host.losses, sizeof here.losses);
	CHECK_BYTES(here.weights, on_host.weights, here.count * sizeof *here.weights);
}

/* ---- on each device that has memory ---- */

static void on_each_session(void (*test)(void))
{
	for (size_t i = 0; i < SUBJECTS; i++) {
		if (!subjects[i].real || !is_here(&subjects[i])) continue;
		on_device(&subjects[i], test);
		CHECK_STATUS(HR_OK, hr_shutdown());
	}
}

static void train_all(void)
{
	const struct model *models = page() > UINT64_C(1) << 20 ? large : small;
	for (int m = 0; m < MODELS; m++) {
		train(&models[m], "CPU:0", 0, BY_OP, &on_host);
		for (int how = 0; how < HOW_COUNT; how++) {
			train(&models[m], now->name, 0, (enum how)how, &here);
			check_same();
		}
		if (!page()) continue; /* nothing can be evicted */
		uint64_t peak = here.peak;
		train(&models[m], now->name, peak / 100 * PERCENT, BY_FUNCTION, &here);
		check_same();
		CHECK_GT(here.evictions, 0);
		printf("# %s: %llu bytes at most, and %llu where there are %llu: %lld tensors left\n", models[m].name, (unsigned long long)peak,
		       (unsigned long long)here.peak, (unsigned long long)(peak / 100 * PERCENT), (long long)here.evictions);
	}
}

static void test_models_train_as_on_the_host(void)
{
	on_each_session(train_all);
}

/* ---- values ---- */

static void values_go_around(void)
{
	int32_t bad = 7, part[4], numbers[12];
	float sum;
	hr_allocator own = make_allocator(now->name, 0), second = make_allocator(now->name, 0), hosts = make_allocator("CPU:0", 0);
	hr_session session = open_on(now->name, own), beside = open_on(now->name, second), host = open_on("CPU:0", hosts);
	for (int i = 0; i < 12; i++) numbers[i] = 100 + i;
	CHECK_STATUS(HR_OK, hr_session_enter(session));
	hr_value all = hr_value_keep(hr_constant(HR_DTYPE_INT32, HR_DIMS(3, 4), numbers));
	/* Copies part of a buffer to another session of the device, to the host, and back. */
	hr_value moved = hr_value_copy_to_session(hr_slice(all, 0, 2, 1), beside);
	moved = hr_value_copy_to_session(moved, host);
	moved = hr_value_copy_to_session(moved, session);
	CHECK_STATUS(HR_OK, hr_value_fetch(moved, part, sizeof part));
	CHECK_BYTES(part, numbers + 8, sizeof part);
	/* Both inputs are the same value; and empty values. */
	hr_value twice = hr_cast(hr_add(all, all), HR_DTYPE_FLOAT32);
	CHECK_STATUS(HR_OK, hr_value_fetch(hr_reduce_sum(twice, HR_ALL_AXES, false), &sum, sizeof sum));
	CHECK_EQ((int)sum, 2 * (12 * 100 + 66));
	hr_value empty = hr_add(hr_constant(HR_DTYPE_INT32, HR_DIMS(0, 4), numbers), hr_constant(HR_DTYPE_INT32, HR_DIMS(1), numbers));
	CHECK_STATUS(HR_OK, hr_value_fetch(empty, NULL, 0));
	/* An error in a kernel is reported. */
	hr_value gathered = hr_gather(all, hr_constant(HR_DTYPE_INT32, HR_DIMS(1), &bad));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_value_fetch(gathered, part, sizeof part));
	CHECK_CONTAINS(hr_last_message(), "gather");
	hr_value_release(all);
	CHECK_STATUS(HR_OK, hr_session_leave());
	CHECK_STATUS(HR_OK, hr_session_destroy(session));
	CHECK_STATUS(HR_OK, hr_session_destroy(beside));
	CHECK_STATUS(HR_OK, hr_session_destroy(host));
	CHECK_STATUS(HR_OK, hr_allocator_destroy(own));
	CHECK_STATUS(HR_OK, hr_allocator_destroy(second));
	CHECK_STATUS(HR_OK, hr_allocator_destroy(hosts));
}

static void test_values_go_to_other_sessions_and_back(void)
{
	on_each_session(values_go_around);
}

/* Two logical devices of one card behave like two cards. */
static void split(void)
{
	uint64_t limits[] = { 4 * page(), 4 * page() };
	hr_session sessions[2];
	float one = 1, sum;
	if (!page() || strcmp(now->name, "GPU:0") != 0) return;
	CHECK_STATUS(HR_OK, hr_shutdown());
	now->set_up();
	CHECK_STATUS(HR_OK, hr_device_set_logical("GPU:0", limits, 2));
	sessions[0] = open_on("GPU:0", (hr_allocator){ 0 });
	sessions[1] = open_on("GPU:1", (hr_allocator){ 0 });
	CHECK_STATUS(HR_OK, hr_session_enter(sessions[0]));
	hr_value ones = hr_full(HR_DTYPE_FLOAT32, HR_DIMS(1000), one);
	CHECK_STATUS(HR_OK, hr_session_enter(sessions[1]));
	hr_value there = hr_value_copy_to_session(ones, sessions[1]);
	CHECK_STATUS(HR_OK, hr_value_fetch(hr_reduce_sum(there, HR_ALL_AXES, false), &sum, sizeof sum));
	CHECK_EQ((int)sum, 1000);
	CHECK_STATUS(HR_OK, hr_session_leave());
	CHECK_STATUS(HR_OK, hr_session_leave());
	for (int i = 0; i < 2; i++) CHECK_STATUS(HR_OK, hr_session_destroy(sessions[i]));
	CHECK_STATUS(HR_OK, hr_shutdown());
	now->set_up();
	CHECK_STATUS(HR_OK, hr__device_named(now->name, &device));
}

static void test_values_go_from_one_logical_device_to_another(void)
{
	on_each_session(split);
}

TEST_MAIN(T_WITHIN(test_models_train_as_on_the_host, 600), T(test_values_go_to_other_sessions_and_back),
          T(test_values_go_from_one_logical_device_to_another))
