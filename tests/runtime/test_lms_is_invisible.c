/* test_lms_is_invisible.c - training with less memory than it needs gives the same losses and weights, to the bit, as with enough of it:
 * under both policies, with defragmentation and without, with every byte verified. */
#include "headroom.h"
#include "test.h"

#define BATCH 64
#define WIDTH 384
#define CLASSES 10
#define LAYERS 5

struct setting {
	uint32_t percent; /* of the peak; 100 = no limit */
	const char *policy;
	bool defrag, verify;
};

struct outcome {
	float losses[64];
	float weights[WIDTH * WIDTH];
	uint64_t peak;
	int64_t evictions;
	bool ran;
};

static hr_value forward(hr_value x, const hr_value *w, hr_value labels)
{
	hr_value h = x;
	for (int i = 0; i < LAYERS; i++) h = hr_matmul(h, w[i]), h = i + 1 < LAYERS ? hr_gelu(h) : h;
	return hr_reduce_mean(hr_cross_entropy(h, labels), HR_ALL_AXES, false);
}

/* False when there was no room for some op. */
static bool step(hr_value x, hr_value *w, hr_value labels, float *loss)
{
	hr_value gradients[LAYERS];
	bool ok = hr_tape_begin() == HR_OK;
	hr_value l = hr_keep(forward(x, w, labels));
	ok = ok && l.id && hr_gradients(l, w, LAYERS, gradients) == HR_OK;
	hr_tape_end();
	for (int i = 0; i < LAYERS && ok; i++) {
		hr_value next = hr_keep(hr_sub(w[i], hr_scale(gradients[i], 0.05, 0)));
		ok = next.id != 0;
		if (!ok) break;
		hr_release(w[i]);
		w[i] = next;
	}
	ok = ok && hr_fetch(l, loss, sizeof *loss) == HR_OK;
	hr_release(l);
	if (!ok) CHECK_EQ((int)hr_last_status(), (int)HR_OUT_OF_MEMORY);
	return ok;
}

static void train(const struct setting *setting, uint64_t limit, uint32_t steps, struct outcome *out)
{
	hr_emulated_options emulated;
	hr_allocator_options options;
	hr_lms_options lms;
	hr_session_options session_options;
	hr_device device;
	hr_allocator allocator;
	hr_session session;
	hr_stats stats;
	hr_lms_stats lms_stats = { .struct_size = sizeof lms_stats };
	memset(out, 0, sizeof *out);
	setenv("HEADROOM_CUDA", "0", 1);
	CHECK_STATUS(HR_OK, hr_emulated_options_init(&emulated));
	emulated.memory_bytes = UINT64_C(64) << 20;
	emulated.page_bytes = 64 << 10;
	CHECK_STATUS(HR_OK, hr_configure_emulated(&emulated));
	CHECK_STATUS(HR_OK, hr_device_find("GPU:0", &device));
	hr_allocator_options_init(&options);
	options.limit_bytes = limit;
	options.oom.report_allocations_on_oom = false;
	CHECK_STATUS(HR_OK, hr_allocator_create(device, &options, &allocator));
	CHECK_STATUS(HR_OK, hr_lms_options_init(&lms));
	lms.enabled = setting->percent < 100;
	lms.policy = setting->policy;
	lms.defrag = setting->defrag;
	lms.verify = setting->verify;
	lms.host_limit = UINT64_C(128) << 20;
	CHECK_STATUS(HR_OK, hr_lms_configure(allocator, &lms));
	hr_session_options_init(&session_options);
	session_options.device = "GPU:0";
	session_options.allocator = allocator;
	CHECK_STATUS(HR_OK, hr_session_open(&session_options, &session));
	CHECK_STATUS(HR_OK, hr_session_enter(session));

	hr_value x = hr_keep(hr_random_normal(HR_DTYPE_FLOAT32, HR_DIMS(BATCH, WIDTH), 1)), w[LAYERS];
	hr_value labels = hr_keep(hr_random_uniform(HR_DTYPE_INT32, HR_DIMS(BATCH), 0, CLASSES, 2));
	for (int i = 0; i < LAYERS; i++)
		w[i] = hr_keep(hr_scale(hr_random_normal(HR_DTYPE_FLOAT32, HR_DIMS(WIDTH, i + 1 < LAYERS ? WIDTH : CLASSES), (uint64_t)(10 + i)), 0.07, 0));
	out->ran = true;
	for (uint32_t i = 0; i < steps && out->ran; i++) {
		CHECK_STATUS(HR_OK, hr_step_begin(allocator));
		out->ran = step(x, w, labels, &out->losses[i]);
		CHECK_STATUS(HR_OK, hr_step_end(allocator));
	}
	if (out->ran) CHECK_STATUS(HR_OK, hr_fetch(w[0], out->weights, sizeof out->weights));
	hr_release(x);
	hr_release(labels);
	for (int i = 0; i < LAYERS; i++) hr_release(w[i]);
	hr_stats_init(&stats);
	CHECK_STATUS(HR_OK, hr_allocator_get_stats(allocator, &stats));
	CHECK_EQ(stats.bytes_in_use, 0);
	out->peak = (uint64_t)stats.peak_bytes_in_use;
	CHECK_STATUS(HR_OK, hr_lms_get_stats(allocator, &lms_stats));
	out->evictions = lms_stats.num_evictions;
	CHECK_STATUS(HR_OK, hr_lms_check(allocator));
	CHECK_STATUS(HR_OK, hr_session_leave());
	CHECK_STATUS(HR_OK, hr_session_close(session));
	CHECK_STATUS(HR_OK, hr_shutdown());
}

static void test_losses_and_weights_are_the_same_to_the_bit(void)
{
	static struct outcome whole, less;
	uint64_t wanted = hr_test_scaled(8);
	uint32_t steps = HR_TEST_SANITIZED || wanted < 3 ? 3 : wanted > 50 ? 50 : (uint32_t)wanted, ran = 0;
	train(&(struct setting){ 100, "lru", false, false }, UINT64_C(64) << 20, steps, &whole);
	CHECK(whole.ran && whole.losses[steps - 1] < whole.losses[0]);
	static const uint32_t percents[] = { 75, 50, 33 };
	for (int i = 0; i < 3; i++) {
		for (int k = 0; k < 8; k++) {
			struct setting setting = { percents[i], k & 1 ? "lru" : "learned", k & 2, k & 4 };
			train(&setting, whole.peak / 100 * percents[i], steps, &less);
			printf("# %u%%, %s%s%s: %s, %lld evictions\n", setting.percent, setting.policy, setting.defrag ? ", defrag" : "",
			       setting.verify ? ", verify" : "", less.ran ? "ran" : "no room for an op", (long long)less.evictions);
			if (!less.ran) continue;
			ran++;
			CHECK_GT(less.evictions, 0);
			CHECK_EQ(memcmp(less.losses, whole.losses, sizeof less.losses), 0);
			CHECK_EQ(memcmp(less.weights, whole.weights, sizeof less.weights), 0);
		}
	}
	CHECK_GE(ran, 16);
}

TEST_MAIN(T(test_losses_and_weights_are_the_same_to_the_bit))
