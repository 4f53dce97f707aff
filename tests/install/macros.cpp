// macros.cpp - a C++ program that uses every macro of the public headers. run.sh checks that none is missing here.
#include <headroom.h>
#include <headroom_analysis.h>
#include <headroom_backend.h>
#include <headroom_lms.h>
#include <headroom_oom.h>
#include <headroom_record.h>
#include <headroom_runtime.h>
#include <cstdio>
#include <cstring>

static int failures;

static void check(bool good, const char *what)
{
	if (good) return;
	std::fprintf(stderr, "%s: %s\n", what, hr_last_message());
	failures++;
}
#define CHECK(condition) check(condition, #condition)

static bool is_first(hr_value value, float expected)
{
	float first[6] = {};
	return hr_value_fetch(value, first, sizeof first) == HR_OK && first[0] == expected && first[5] == expected;
}

static void use_tables()
{
	int statuses = 0, dtypes = 0, stats = 0, lms_stats = 0;
#define COUNT_STATUS(name, number, text) statuses += hr_status_name(HR_##name) != nullptr && std::strcmp(hr_status_text(HR_##name), text) == 0;
	HR_STATUS_TABLE(COUNT_STATUS)
#define COUNT_DTYPE(name, number, size, text) dtypes += hr_dtype_size(HR_DTYPE_##name) == (size);
	HR_DTYPE_TABLE(COUNT_DTYPE)
#define COUNT_STAT(name, text) stats++;
	HR_STATS_TABLE(COUNT_STAT)
#define COUNT_LMS_STAT(name, text) lms_stats++;
	HR_LMS_STATS_TABLE(COUNT_LMS_STAT)
	CHECK(statuses > 20 && dtypes > 10 && stats > 40 && lms_stats > 30);
}

static void use_numbers()
{
	int64_t dims[HR_SHAPE_MAX_RANK];
	hr_profiler_steps steps[HR_PROFILER_STEPS_MAX] = {};
	CHECK(HR_KIB(1) == 1024 && HR_MIB(1) == 1024 * HR_KIB(1) && HR_GIB(3) == 3072 * HR_MIB(1));
	CHECK(hr_name_text(HR_NAME_NONE)[0] == 0 && std::strcmp(hr_name_text(HR_NAME_OTHER), "(other)") == 0);
	CHECK(HR_STACK_NONE == 0 && HR_STACK_OTHER == 1 && HR_STACK_DEPTH_MAX >= 128);
	CHECK(hr_shape_dims(HR_SHAPE_NONE, dims) == -1 && hr_shape_dims(HR_SHAPE_OTHER, dims) == -1);
	CHECK(HR_STREAM_DEFAULT < HR_STREAM_MAX && HR_STREAM_MAX < HR_STREAM_HOST && HR_VERDICT_KINDS == HR_FITS_WITH_LMS + 1);
	CHECK(steps[0].first == 0 && HR_BACKEND_VERSION >= 1 && HR_VERSION_MAJOR + HR_VERSION_MINOR + HR_VERSION_PATCH >= 0);
}

static void use_request()
{
	hr_allocator allocator;
	void *block;
	hr_request request = HR_REQUEST(1000);
	CHECK(request.struct_size == sizeof request && request.bytes == 1000 && request.alignment == 0 && request.dtype == HR_DTYPE_NONE);
	CHECK(hr_allocator_get_default("GPU:0", &allocator) == HR_OK);
	CHECK(hr_alloc(allocator, &request, &block) == HR_OK && hr_free(allocator, block, HR_STREAM_DEFAULT) == HR_OK);
}

static void use_values()
{
	size_t rows = 2; // a dimension need not be an int64_t
	CHECK(HR_NO_VALUE.id == 0 && HR_DONE.id == UINT64_MAX);
	CHECK(is_first(hr_full(HR_DTYPE_FLOAT32, HR_DIMS(rows, 3), 4), 4));
	CHECK(is_first(hr_reshape(hr_full(HR_DTYPE_FLOAT32, HR_DIMS(6), 5), HR_DIMS(1, 2, 3)), 5));
	float sum = 0;
	hr_value ones = hr_full(HR_DTYPE_FLOAT32, HR_DIMS(10), 1);
	CHECK(hr_value_fetch(hr_add(hr_reduce_sum(ones, HR_ALL_AXES, false), hr_full(HR_DTYPE_FLOAT32, HR_SCALAR, 7)), &sum, sizeof sum) == HR_OK && sum == 17);
}

static void use_initializers()
{
	float normal[6], uniform[6];
	int two = 2; // an argument need not be a double
	CHECK(HR_INITIALIZER(HR_INIT_NORMAL, 1, two, 3).b == 2 && HR_FULL(two).a == 2);
	CHECK(is_first(hr_variable_read(hr_get_variable("zeros", HR_DTYPE_FLOAT32, HR_DIMS(2, 3), HR_ZEROS)), 0));
	CHECK(is_first(hr_variable_read(hr_get_variable("full", HR_DTYPE_FLOAT32, HR_DIMS(2, 3), HR_FULL(2.5))), 2.5f));
	CHECK(hr_value_fetch(hr_variable_read(hr_get_variable("normal", HR_DTYPE_FLOAT32, HR_DIMS(6), HR_NORMAL(0.5, 1))), normal, sizeof normal) == HR_OK && normal[0] != normal[1]);
	CHECK(hr_value_fetch(hr_variable_read(hr_get_variable("uniform", HR_DTYPE_FLOAT32, HR_DIMS(6), HR_UNIFORM(3, 4, 1))), uniform, sizeof uniform) == HR_OK);
	CHECK(uniform[0] >= 3 && uniform[0] < 4);
	CHECK(hr_get_variable("none", HR_DTYPE_FLOAT32, HR_SCALAR, HR_UNINITIALIZED).id != 0);
}

// The _init functions are inline, so each is compiled here.
static void use_init_functions()
{
	hr_cuda_options cuda;
	hr_emulated_options emulated;
	hr_simulated_options simulated;
	hr_oom_options oom;
	hr_allocator_options allocator;
	hr_stats stats;
	hr_lms_options lms;
	hr_tensor_options tensor;
	hr_profiler_options profiler;
	hr_profile_options profile;
	hr_session_options session;
	hr_run_options run;
	hr_run_metadata metadata;
	hr_optimizer optimizer;
	CHECK(hr_cuda_options_init(&cuda) == HR_OK && cuda.struct_size == sizeof cuda);
	CHECK(hr_emulated_options_init(&emulated) == HR_OK && emulated.struct_size == sizeof emulated);
	hr_simulated_options_init(&simulated);
	hr_oom_options_init(&oom);
	hr_allocator_options_init(&allocator);
	hr_stats_init(&stats);
	CHECK(simulated.struct_size == sizeof simulated && oom.struct_size == sizeof oom && stats.struct_size == sizeof stats);
	CHECK(allocator.struct_size == sizeof allocator && allocator.oom.struct_size == sizeof allocator.oom);
	CHECK(hr_lms_options_init(&lms) == HR_OK && lms.struct_size == sizeof lms);
	hr_tensor_options_init(&tensor);
	CHECK(tensor.struct_size == sizeof tensor);
	CHECK(hr_profiler_options_init(&profiler) == HR_OK && profiler.struct_size == sizeof profiler);
	hr_profile_options_init(&profile);
	CHECK(profile.struct_size == sizeof profile && hr_profile_options_init_preset(&profile, "leaks") == HR_OK);
	hr_session_options_init(&session);
	hr_run_options_init(&run);
	hr_run_metadata_init(&metadata);
	hr_optimizer_init(&optimizer, HR_ADAM);
	CHECK(session.struct_size == sizeof session && run.struct_size == sizeof run && metadata.struct_size == sizeof metadata);
	CHECK(optimizer.struct_size == sizeof optimizer && optimizer.kind == HR_ADAM);
}

int main()
{
	use_tables();
	use_numbers();
	use_request();
	use_values();
	use_initializers();
	use_init_functions();
	CHECK(hr_shutdown() == HR_OK);
	return failures != 0;
}
