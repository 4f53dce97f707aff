/* test_tags.c - memory has a tag that names its purpose: the same in every mode. */
#include <unistd.h>

#include "headroom_runtime.h"
#include "headroom_lms.h"
#include "headroom_oom.h"
#include "headroom_analysis.h"
#include "headroom_record.h"
#include "support_session.h"
#include "support_training.h"

static int64_t held(const char *tag)
{
	hr_holder holders[16];
	size_t count = 0;
	int64_t bytes = 0;
	CHECK_STATUS(HR_OK, hr_allocator_get_holders(allocator, HR_BY_TAG, holders, 16, &count));
	for (size_t i = 0; i < count && i < 16; i++)
		if (!strcmp(hr_name_text(holders[i].name), tag)) bytes += (int64_t)holders[i].bytes;
	return bytes;
}

/* After a step there are weights and the optimizer's state: two numbers for each weight, and one counter. */
static void check_after_a_step(enum how how)
{
	struct model model = MODEL_MLP;
	float loss;
	model.batch = 4, model.width = 64, model.classes = 64;
	struct training training = { .model = &model, .how = how };
	hr_optimizer_init(&training.optimizer, HR_ADAM);
	open_session(0);
	training.session = session;
	training_begin(&training);
	for (uint64_t step = 0; step < 2; step++) CHECK_STATUS(HR_OK, training_step(&training, step, &loss));
	int64_t weights = 3 * (64 * 64 + 64) * (int64_t)sizeof(float);
	CHECK_EQ(held("weights"), weights);
	CHECK_EQ(held("optimizer"), 2 * weights + 256);
	CHECK_EQ(held("activations"), 0);
	CHECK_EQ(held("gradients"), 0);
	CHECK_EQ(held("scratch"), 0);
	training_end(&training);
	close_session();
}

static void test_training(void)
{
	for (int how = 0; how < HOW_COUNT; how++) check_after_a_step((enum how)how);
}

/* [checkpointed]: recomputed values are not tagged as gradients. */
static void check_gradients(bool checkpointed)
{
	hr_value gradient;
	open_session(0);
	hr_value x = hr_value_keep(hr_random_normal(HR_DTYPE_FLOAT32, HR_DIMS(64), 1)); /* 256 bytes, like all the following values */
	CHECK_STATUS(HR_OK, hr_tape_begin());
	if (checkpointed) CHECK_STATUS(HR_OK, hr_checkpoint_begin());
	hr_value y = hr_value_keep(hr_tanh(hr_exp(x)));
	if (checkpointed) CHECK_STATUS(HR_OK, hr_checkpoint_end());
	hr_value z = hr_value_keep(hr_reduce_sum(y, HR_ALL_AXES, false));
	CHECK_STATUS(HR_OK, hr_gradients(z, &x, 1, &gradient));
	CHECK_EQ(held("gradients"), 256);
	CHECK_STATUS(HR_OK, hr_tape_end());
	CHECK_EQ(held("activations"), 3 * 256);
	hr_value later = hr_value_keep(hr_exp(x));
	CHECK_EQ(held("activations"), 4 * 256);
	hr_value_release(later);
	hr_value_release(gradient);
	CHECK_EQ(held("gradients"), 0);
	hr_value_release(x);
	hr_value_release(y);
	hr_value_release(z);
	close_session();
}

static void test_gradients(void)
{
	check_gradients(false);
	check_gradients(true);
}

/* New contents of a variable whose old contents have another reference. */
static void test_copy_on_write(void)
{
	open_session(0);
	hr_variable variable = hr_get_variable("w", HR_DTYPE_FLOAT32, HR_DIMS(64), HR_ZEROS);
	hr_value old = hr_value_keep(hr_variable_read(variable)), one = hr_value_keep(hr_full(HR_DTYPE_FLOAT32, HR_DIMS(64), 1));
	CHECK(hr_assign_add(variable, one).id);
	CHECK_EQ(held("weights"), 2 * 256);
	hr_value_release(old);
	hr_value_release(one);
	CHECK_EQ(held("weights"), 256);
	close_session();
}

static bool append(void *text, const char *bytes, size_t length)
{
	strncat(text, bytes, length);
	return true;
}

/* Data on the host has the tag of its tensor, not that of the op that caused the eviction. */
static void test_host_memory(void)
{
	static char text[1 << 16];
	char path[] = "/tmp/hr_test_tags_XXXXXX";
	hr_tensor tensor;
	hr_tensor_options tensor_options;
	hr_profile_options options;
	CHECK_STATUS(HR_OK, hr_set_lms_enabled(true));
	open_session(0);
	hr_tensor_options_init(&tensor_options);
	tensor_options.bytes = 1 << 20;
	tensor_options.op = hr_name_intern("owner");
	tensor_options.tag = hr_name_intern("weights");
	close(mkstemp(path));
	unlink(path);
	CHECK_STATUS(HR_OK, hr_trace_start(path));
	CHECK_STATUS(HR_OK, hr_tensor_create(allocator, &tensor_options, &tensor));
	CHECK_STATUS(HR_OK, hr_tensor_pin(tensor, HR_OVERWRITE, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_tensor_unpin(tensor, HR_STREAM_DEFAULT));
	hr_op_set(hr_name_intern("somebody"));
	CHECK_STATUS(HR_OK, hr_tensor_evict(tensor));
	hr_op_set(HR_NAME_NONE);
	CHECK_STATUS(HR_OK, hr_tensor_destroy(tensor));
	CHECK_STATUS(HR_OK, hr_trace_stop());
	hr_profile_options_init(&options);
	options.view = "peak";
	options.device = "GPU:0 host memory";
	CHECK_STATUS(HR_OK, hr_profile_report(path, &options, HR_PROFILE_JSON, append, text));
	CHECK(strstr(text, "\"owner\"") && strstr(text, "\"weights\""));
	CHECK(!strstr(text, "somebody"));
	unlink(path);
	close_session();
	CHECK_STATUS(HR_OK, hr_set_lms_enabled(false));
}

TEST_MAIN(T(test_training), T(test_gradients), T(test_copy_on_write), T(test_host_memory))
