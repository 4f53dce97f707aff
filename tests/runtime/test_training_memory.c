/* test_training_memory.c - the memory of training: no more in a graph than op by op, nothing left when a session is closed, nothing
 * lost if an allocation fails, and the same bits whatever is trained concurrently.
 *
 * Every call that a step of a tiny network makes fails once; at scale 3 and above those of a small transformer too. Under
 * sanitizers every fourth call below scale 1. */
#include <errno.h>
#include <math.h>

#include "fixture.h"
#include "headroom_runtime.h"
#include "core/device/device.h"
#include "fault_os.h"
#include "headroom_backend.h"
#include "support_far.h"
#include "support_session.h"
#include "support_training.h"

#define WEIGHTS_MAX 40000u

static const struct model small[] = {
	{ "mlp", model_mlp_inputs, model_row_labels, model_mlp_logits, .batch = 64, .width = 96, .classes = 10 },
	{ "conv", model_conv_inputs, model_row_labels, model_conv_logits, .batch = 4, .width = 4, .classes = 10, .image = 16 },
	{ "gpt", model_gpt_inputs, model_gpt_labels, model_gpt_logits, .batch = 2, .width = 32, .classes = 64, .time = 16, .heads = 4, .blocks = 2 },
};
static const struct model tiny_mlp = { "mlp", model_mlp_inputs, model_row_labels, model_mlp_logits, .batch = 4, .width = 8, .classes = 3 };
static const struct model tiny_gpt = { "gpt", model_gpt_inputs, model_gpt_labels, model_gpt_logits, .batch = 1, .width = 8, .classes = 5, .time = 4,
	                                   .heads = 2, .blocks = 1 };

static void begin(struct training *training, const struct model *model, enum how how, bool checkpointed, hr_session in)
{
	*training = (struct training){ .model = model, .how = how, .checkpointed = checkpointed, .session = in };
	hr_optimizer_init(&training->optimizer, HR_ADAM);
	training_begin(training);
}

/* ---- amount ---- */

/* Peak of the steps after the first, which creates variables. */
static int64_t peak_of(const struct model *model, enum how how, bool checkpointed)
{
	float loss;
	open_session(0);
	struct training training;
	begin(&training, model, how, checkpointed, session);
	for (uint64_t i = 0; i < 3; i++) {
		CHECK_STATUS(HR_OK, training_step(&training, i, &loss));
		if (!i) CHECK_STATUS(HR_OK, hr_reset_memory_stats("GPU:0"));
	}
	int64_t peak = stats_of().peak_bytes_in_use;
	training_end(&training);
	close_session();
	return peak;
}

static void test_graphs_and_functions_take_no_more_than_op_by_op(void)
{
	for (int m = 0; m < 3; m++) {
		for (int again = 0; again < 2; again++) {
			int64_t peaks[HOW_COUNT];
			for (int how = 0; how < HOW_COUNT; how++) peaks[how] = peak_of(&small[m], (enum how)how, again);
			printf("# %s%s: op by op %lld, in a function %lld, in a graph %lld\n", small[m].name, again ? ", blocks computed again" : "",
			       (long long)peaks[BY_OP], (long long)peaks[BY_FUNCTION], (long long)peaks[BY_GRAPH]);
			CHECK_LE(peaks[BY_FUNCTION], peaks[BY_OP]);
			CHECK_LE(peaks[BY_GRAPH], peaks[BY_OP]);
		}
	}
}

/* ---- nothing is left ---- */

static void train_once(enum how how)
{
	hr_session_options options;
	hr_session mine;
	float loss;
	hr_session_options_init(&options);
	options.device = "GPU:0";
	CHECK_STATUS(HR_OK, hr_session_create(&options, &mine));
	CHECK_STATUS(HR_OK, hr_session_enter(mine));
	struct training training;
	begin(&training, &tiny_mlp, how, false, mine);
	CHECK_STATUS(HR_OK, training_step(&training, 0, &loss));
	training_end(&training);
	CHECK_STATUS(HR_OK, hr_session_leave());
	CHECK_STATUS(HR_OK, hr_session_destroy(mine));
}

static void test_sessions_leave_nothing_behind(void)
{
	struct hr_fault_os_live start, end;
	uint64_t sessions = hr_test_scaled(1000);
	hr_fault_os_install();
	open_session(0);
	int64_t in_use = stats_of().bytes_in_use, live = stats_of().num_live;
	for (uint64_t i = 0; i < sessions; i++) {
		train_once(i % 16 == 1 ? BY_OP : i % 16 == 2 ? BY_GRAPH : BY_FUNCTION);
		CHECK_EQ(stats_of().bytes_in_use, in_use);
		CHECK_EQ(stats_of().num_live, live);
		if (i == 31) hr_fault_os_live(&start); /* tables have their final size */
	}
	hr_fault_os_live(&end);
	if (sessions > 32) {
		CHECK_EQ(end.alloc_blocks, start.alloc_blocks);
		CHECK_EQ(end.alloc_bytes, start.alloc_bytes);
		CHECK_EQ(end.committed_bytes, start.committed_bytes);
		CHECK_EQ(end.mapped_bytes, start.mapped_bytes);
		CHECK_EQ(end.reserved_ranges, start.reserved_ranges);
		CHECK_EQ(end.threads, start.threads);
		CHECK_EQ(end.monitors, start.monitors);
		CHECK_EQ(end.fds, start.fds);
	}
	close_session();
	CHECK(hr_fault_os_is_clean());
	hr_fault_os_uninstall();
}

/* ---- faults ---- */

enum fails { SYSTEM_CALLS, DEVICE_CALLS, DEVICE_ALLOCATIONS, FAR_SYSTEM_CALLS, FAR_DEVICE_CALLS };
static const char *const fails_names[] = { "the system", "the device", "an allocation", "the system, far from the device", "a device far from the host" };

/* The emulated device under another name, which counts allocations. Frees are not counted, because memory that a device does not
 * release is lost. */
static struct {
	uint64_t calls, nth;
} requests;

static hr_status counted_alloc(void *device, uint64_t bytes, uint64_t *address)
{
	if (++requests.calls == requests.nth) return hr_backend_set_error(HR_OUT_OF_MEMORY, "this one was to fail");
	return hr__backend_emulated.plain_alloc(device, bytes, address);
}

static void add_counted_device(void)
{
	static hr_emulated_options config;
	static hr_backend counted;
	CHECK_STATUS(HR_OK, hr_emulated_options_init(&config));
	counted = hr__backend_emulated;
	counted.name = "counted";
	counted.type = "COUNTED";
	counted.plain_alloc = counted_alloc;
	CHECK_STATUS(HR_OK, hr_backend_register(&counted, &config));
}

static bool is_of_system(enum fails fails)
{
	return fails == SYSTEM_CALLS || fails == FAR_SYSTEM_CALLS;
}

static bool is_of_device(enum fails fails)
{
	return fails == DEVICE_CALLS || fails == FAR_DEVICE_CALLS;
}

static void arm(enum fails fails, uint64_t nth)
{
	requests.calls = 0;
	requests.nth = fails == DEVICE_ALLOCATIONS ? nth : 0;
	hr_backend_fail_nth(is_of_device(fails) ? nth : 0, false, HR_OUT_OF_MEMORY);
	hr_fault_os_fail_nth(is_of_system(fails) ? nth : 0, false, ENOMEM);
}

static uint64_t calls_made(enum fails fails)
{
	return is_of_system(fails) ? hr_fault_os_calls() : is_of_device(fails) ? hr_backend_calls() : requests.calls;
}

/* If calls of the device must fail, each request is a call of the device. */
static void open_for(enum fails fails)
{
	hr_session_options options;
	hr_allocator_options allocator_options;
	hr_device device;
	setenv("HEADROOM_CUDA", "0", 1);
	hr_session_options_init(&options);
	hr_allocator_options_init(&allocator_options);
	options.device = "GPU:0";
	if (fails == DEVICE_ALLOCATIONS) {
		add_counted_device();
		options.device = "COUNTED:0";
		allocator_options.kind = "direct";
	} else if (fails >= FAR_SYSTEM_CALLS) {
		far_add();
		options.device = "FAR:0";
	}
	allocator_options.oom.report_allocations_on_oom = false;
	CHECK_STATUS(HR_OK, hr_device_find(options.device, &device));
	CHECK_STATUS(HR_OK, hr_allocator_create(device, &allocator_options, &allocator));
	options.allocator = allocator;
	CHECK_STATUS(HR_OK, hr_session_create(&options, &session));
	CHECK_STATUS(HR_OK, hr_session_enter(session));
}

struct scenario {
	const struct model *model;
	enum how how;
	bool checkpointed;
	bool first; /* the failing step is the first, which creates variables and builds functions; else the second */
	enum fails fails;
};

static float before[WEIGHTS_MAX], after[WEIGHTS_MAX], now[WEIGHTS_MAX];

/* Weights before and after the step, without faults. */
static void look_first(const struct scenario *scenario)
{
	float loss;
	open_for(scenario->fails);
	struct training training;
	begin(&training, scenario->model, scenario->how, scenario->checkpointed, session);
	CHECK_STATUS(HR_OK, training_step(&training, 0, &loss));
	size_t count = training_weights(&training, before, WEIGHTS_MAX);
	CHECK_STATUS(HR_OK, training_step(&training, 1, &loss));
	CHECK_EQ(training_weights(&training, after, WEIGHTS_MAX), count);
	training_end(&training);
	close_session();
}

/* A weight has its old value, or that of a step without faults. */
static void check_weights(const struct training *training)
{
	size_t count = training_weights(training, now, WEIGHTS_MAX);
	CHECK_GT(count, 0);
	for (size_t i = 0; i < count; i++) CHECK(now[i] == before[i] || now[i] == after[i]);
}

static void check_error(const struct scenario *scenario, hr_status status)
{
	CHECK(hr_last_message()[0]);
	CHECK_EQ((int)hr_last_status(), (int)status);
	if (scenario->fails != DEVICE_CALLS && scenario->fails != DEVICE_ALLOCATIONS) CHECK(status == HR_NO_HOST_MEMORY || status == HR_OUT_OF_MEMORY);
	else CHECK_STATUS(HR_OUT_OF_MEMORY, status);
}

/* False if the step makes fewer than [nth] calls. */
static bool fail_nth(const struct scenario *scenario, uint64_t nth)
{
	float loss = NAN;
	open_for(scenario->fails);
	struct training training;
	begin(&training, scenario->model, scenario->how, scenario->checkpointed, session);
	if (!scenario->first) CHECK_STATUS(HR_OK, training_step(&training, 0, &loss));
	arm(scenario->fails, nth);
	hr_status status = training_step(&training, !scenario->first, &loss);
	bool met = calls_made(scenario->fails) >= nth;
	arm(scenario->fails, 0);
	if (!met) CHECK_STATUS(HR_OK, status);
	if (status) check_error(scenario, status);
	if (!scenario->first) check_weights(&training);
	CHECK_STATUS(HR_OK, training_step(&training, 1, &loss));
	CHECK(isfinite(loss));
	training_end(&training);
	close_session(); /* HR_OK: no value and no byte is left */
	CHECK(hr_fault_os_is_clean());
	return met;
}

static void fail_all(const struct scenario *scenario)
{
	uint64_t nth = 1, each = HR_TEST_SANITIZED && hr_test_scale() < 1 ? 4 : 1;
	hr_fault_os_install();
	look_first(scenario);
	while (fail_nth(scenario, nth)) nth += each;
	hr_fault_os_uninstall();
	printf("# %s, %s%s, %s step, %s: %llu calls\n", scenario->model->name, how_names[scenario->how], scenario->checkpointed ? ", computed again" : "",
	       scenario->first ? "first" : "second", fails_names[scenario->fails], (unsigned long long)nth - 1);
	CHECK_GT(nth, 4);
}

static void fail_everywhere(enum fails fails)
{
	for (int how = 0; how < HOW_COUNT; how++) {
		for (int first = 0; first < 2; first++) {
			fail_all(&(struct scenario){ &tiny_mlp, (enum how)how, first, first, fails });
			if (!HR_TEST_SANITIZED && hr_test_scale() >= 3) fail_all(&(struct scenario){ &tiny_gpt, (enum how)how, !first, first, fails });
		}
	}
}

static void test_any_call_of_the_system_may_fail(void)
{
	fail_everywhere(SYSTEM_CALLS);
}

static void test_any_call_of_the_device_may_fail(void)
{
	fail_everywhere(DEVICE_CALLS);
}

static void test_any_allocation_may_fail(void)
{
	fail_everywhere(DEVICE_ALLOCATIONS);
}

/* Each op is copies and a host call there; a half-copied update is undone. */
static void test_any_call_far_from_the_host_may_fail(void)
{
	fail_everywhere(FAR_SYSTEM_CALLS);
	fail_everywhere(FAR_DEVICE_CALLS);
}

/* ---- concurrency ---- */

struct party {
	const char *device;
	const struct model *model;
	enum how how;
	float losses[8], weights[WEIGHTS_MAX];
	size_t count;
};

static const uint32_t party_steps = HR_TEST_SANITIZED ? 2 : 8;

static void train_party(struct party *party)
{
	hr_session_options options;
	hr_session mine;
	hr_session_options_init(&options);
	options.device = party->device;
	if (!strcmp(options.device, "GPU:0")) options.allocator = allocator;
	CHECK_STATUS(HR_OK, hr_session_create(&options, &mine));
	CHECK_STATUS(HR_OK, hr_session_enter(mine));
	struct training training;
	begin(&training, party->model, party->how, false, mine);
	for (uint32_t i = 0; i < party_steps; i++) CHECK_STATUS(HR_OK, training_step(&training, i, &party->losses[i]));
	party->count = training_weights(&training, party->weights, WEIGHTS_MAX);
	training_end(&training);
	CHECK_STATUS(HR_OK, hr_session_leave());
	CHECK_STATUS(HR_OK, hr_session_destroy(mine));
}

static struct party alone[3], together[2];

/* Each thread trains all models, in a different order and mode. */
static void train_all(void *argument, unsigned index)
{
	struct party *party = &together[index];
	for (int i = 0; i < 6; i++) {
		int m = (i + (int)index) % 3;
		memset(party, 0, sizeof *party);
		party->device = argument;
		party->model = &small[m];
		party->how = (enum how)((i * 2 + (int)index) % HOW_COUNT);
		train_party(party);
		CHECK_EQ(party->count, alone[m].count);
		CHECK_BYTES(party->losses, alone[m].losses, sizeof party->losses);
		CHECK_BYTES(party->weights, alone[m].weights, party->count * sizeof(float));
	}
}

static void use_small_pages(void)
{
	fixture_configure_emulated(UINT64_C(64) << 20, 64 << 10, 0);
}

static void train_two_at_once(uint64_t limit, const char *on)
{
	open_session(0);
	for (int m = 0; m < 3; m++) {
		alone[m] = (struct party){ .device = "GPU:0", .model = &small[m] };
		train_party(&alone[m]);
	}
	close_session();
	if (limit) {
		use_small_pages();
		CHECK_STATUS(HR_OK, hr_set_lms_enabled(true));
	}
	setenv("HEADROOM_CUDA", "0", 1);
	if (!strcmp(on, "FAR:0")) far_add();
	open_session(limit);
	hr_test_threads(2, train_all, (void *)on);
	if (limit) {
		hr_lms_stats lms = fixture_lms_stats(allocator);
		printf("# %lld evictions\n", (long long)lms.num_evictions);
		CHECK_GT(lms.num_evictions, 0);
		CHECK_STATUS(HR_OK, hr_lms_check(allocator));
	}
	close_session();
}

static void test_two_threads_train_as_one_does(void)
{
	train_two_at_once(0, "GPU:0");
}

static void test_two_threads_train_far_from_the_host(void)
{
	train_two_at_once(0, "FAR:0");
}

static void test_two_threads_train_with_less_memory_than_they_need(void)
{
	train_two_at_once(UINT64_C(640) << 10, "GPU:0");
}

TEST_MAIN(T(test_graphs_and_functions_take_no_more_than_op_by_op), T_WITHIN(test_sessions_leave_nothing_behind, 300),
          T_WITHIN(test_any_call_of_the_system_may_fail, 600), T_WITHIN(test_any_call_of_the_device_may_fail, 600),
          T_WITHIN(test_any_allocation_may_fail, 600), T_WITHIN(test_any_call_far_from_the_host_may_fail, 600), T(test_two_threads_train_as_one_does), T(test_two_threads_train_far_from_the_host),
          T(test_two_threads_train_with_less_memory_than_they_need))
