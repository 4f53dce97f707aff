/* test_drive.c - schedules, and driving them through the tensor API: the schedule agrees with the trace; on the emulated device every
 * op finds the contents written for it, with half the memory, whatever steps are played in whatever order. */
#include "fixture.h"
#include "plan/forecast.h"
#include "test.h"

#define KIB 1024u
#define MIB (KIB * KIB)
#define HEADER "time_us,action,id,bytes,stream,name\n"

/* ---- traces ---- */

static char text[1 << 20];
static size_t length;
static unsigned blocks, ops;
static uint64_t sizes[4096];

static void begin_trace(void)
{
	length = (size_t)snprintf(text, sizeof text, HEADER);
	blocks = ops = 0;
}

static void line(char action, unsigned id, uint64_t bytes, const char *name)
{
	CHECK(length + 100 < sizeof text);
	length += (size_t)snprintf(text + length, sizeof text - length, "0,%c,%u,%llu,0,%s\n", action, id, (unsigned long long)bytes,
	                           name);
}

static unsigned take(uint64_t bytes)
{
	CHECK(blocks < 4096);
	sizes[blocks] = bytes;
	line('a', blocks, bytes, "");
	return blocks++;
}

static void give(unsigned block)
{
	line('f', block, sizes[block], "");
}

static void use(char action, unsigned block)
{
	line(action, block, sizes[block], "");
}

static void begin(const char *name)
{
	line('b', ops, 0, name);
}

static void end(uint64_t ns)
{
	line('e', ops++, ns, "");
}

static const char *forward = "forward"; /* name of the forward ops */

/* A training loop: [layers] forward and backward, a weight for each, and a block that each step leaves to the next. */
static void write_training(unsigned layers, unsigned steps, uint64_t bytes)
{
	unsigned weights[64], made[64], left = 0;
	begin_trace();
	for (unsigned i = 0; i < layers; i++) weights[i] = take(bytes / 4 + i * 1000);
	for (unsigned step = 0; step < steps; step++) {
		line('s', step, 0, "");
		for (unsigned i = 0; i < layers; i++) {
			begin(forward);
			use('r', weights[i]);
			if (i > 0) use('r', made[i - 1]);
			unsigned scratch = take(bytes / 3);
			made[i] = take(bytes + i * 5000);
			give(scratch);
			end(1000);
		}
		for (unsigned i = layers; i-- > 0;) {
			begin("backward");
			use('r', made[i]);
			use('r', weights[i]);
			use('w', weights[i]);
			end(1000);
			give(made[i]);
		}
		begin("pass on");
		if (step > 0) use('r', left);
		unsigned next = take(bytes);
		use('w', next);
		end(1000);
		if (step > 0) give(left);
		left = next;
	}
}

static void read_trace(hr__schedule *schedule)
{
	CHECK_STATUS(HR_OK, hr__schedule_read_memory(text, length, schedule));
}

/* ---- the schedule ---- */

static void test_the_schedule_is_what_the_trace_says(void)
{
	hr__schedule schedule;
	begin_trace();
	unsigned weight = take(100), unused = take(7);
	line('s', 10, 0, "");
	unsigned outside = take(50), read_first = take(60);
	begin("first, with a comma");
	unsigned scratch = take(30), made = take(40);
	use('r', weight);
	use('w', outside);
	use('w', made);
	use('r', made);
	use('r', read_first);
	give(scratch);
	give(weight);
	end(5);
	line('s', 11, 0, "");
	begin("second");
	use('w', made);
	end(6);
	give(made);
	read_trace(&schedule);

	CHECK_EQ(schedule.op_count, 2);
	CHECK_EQ(schedule.part_count, 3);
	CHECK_EQ(schedule.tensor_count, 6);
	CHECK_EQ(schedule.accesses, 6);
	CHECK(strcmp(hr_name_text(schedule.ops[0].name), "first, with a comma") == 0);
	CHECK_EQ(schedule.ops[0].use_count, 5);
	CHECK_EQ(schedule.ops[1].use_count, 1);
	CHECK_EQ(schedule.parts[1].ns, 5);
	CHECK_EQ(schedule.parts[2].number, 11);
	/* Tensors made by the op, and those that something else must have written. */
	CHECK_EQ(schedule.tensors[made].maker, 0);
	CHECK_EQ(schedule.tensors[scratch].maker, 0);
	CHECK_EQ(schedule.tensors[outside].maker, 0);
	CHECK_EQ(schedule.tensors[read_first].maker, HR__SCHEDULE_NONE);
	CHECK_EQ(schedule.tensors[weight].maker, HR__SCHEDULE_NONE);
	CHECK(schedule.tensors[scratch].workspace && !schedule.tensors[made].workspace && !schedule.tensors[weight].workspace);
	/* A tensor freed during an op is destroyed after it. */
	const hr__schedule_part *step = &schedule.parts[1];
	static const uint32_t kinds[] = { HR__ACT_CREATE, HR__ACT_CREATE,  HR__ACT_CREATE, HR__ACT_CREATE,
		                              HR__ACT_OP,     HR__ACT_DESTROY, HR__ACT_DESTROY };
	CHECK_EQ(step->act_count, 7);
	for (uint32_t i = 0; i < 7; i++) CHECK_EQ(schedule.acts[step->first_act + i].kind, kinds[i]);
	CHECK_EQ(schedule.tensors[made].died, 2);
	CHECK_EQ(schedule.tensors[unused].died, HR__SCHEDULE_NONE);
	CHECK(hr__schedule_lives_at(&schedule.tensors[made], 2) && !hr__schedule_lives_at(&schedule.tensors[made], 1));
	CHECK(hr__schedule_lives_at(&schedule.tensors[weight], 1) && !hr__schedule_lives_at(&schedule.tensors[weight], 2));
	for (uint32_t i = 0; i < 5; i++) {
		const hr__tensor_use *each = &schedule.uses[i];
		hr_access expected = each->tensor == weight || each->tensor == read_first ? HR_READ : HR_OVERWRITE;
		CHECK_EQ(hr__tensor_use_access(each), expected);
	}
	CHECK_EQ(hr__tensor_use_access(&schedule.uses[5]), HR_WRITE);
	hr__schedule_free(&schedule);
}

/* ---- driving ---- */

#define BIRTHS 65536u

static struct {
	hr_device device;
	hr_allocator allocator;
	unsigned char contents[BIRTHS]; /* of each tensor, by birth */
	unsigned char *bytes;           /* buffer for the largest */
	uint64_t touches, busy_ns;
	uint64_t again; /* touches by recipes */
	size_t plays;
	uint64_t persistent; /* birth of tensor 0, the first weight */
	uint64_t alive;      /* tensors alive when the last play ended */
} stage;

static void set_stage_of_pages(const char *policy, uint64_t limit, uint64_t page)
{
	stage.device = fixture_emulated(64 * MIB, page, 0);
	stage.allocator = fixture_allocator(stage.device, limit);
	fixture_lms(stage.allocator, policy, 0);
	stage.bytes = malloc(4 * MIB);
}

static void set_stage(const char *policy, uint64_t limit)
{
	set_stage_of_pages(policy, limit, 64 * KIB);
}

static void strike_stage(void)
{
	hr_lms_stats stats = fixture_lms_stats(stage.allocator);
	CHECK_EQ(stats.num_tensors, 0);
	CHECK_EQ(stats.num_pins, 0);
	CHECK_STATUS(HR_OK, hr_allocator_destroy(stage.allocator));
	CHECK_STATUS(HR_OK, hr_shutdown());
	free(stage.bytes);
}

static hr_status on_busy(void *context, hr_stream stream, uint64_t ns)
{
	CHECK(context == &stage);
	CHECK_EQ(stream, HR_STREAM_DEFAULT);
	stage.busy_ns += ns;
	return HR_OK;
}

/* Checks the current contents, and writes new ones if the access allows it. */
static hr_status on_touch(void *context, const hr__drive_touch *touch)
{
	hr_tensor_info info = { .struct_size = sizeof info };
	void *address;
	CHECK(context == &stage && touch->birth > 0 && touch->birth < BIRTHS);
	CHECK_STATUS(HR_OK, hr_tensor_get_info(touch->handle, &info));
	CHECK_EQ(info.pins, !touch->again);
	CHECK_STATUS(HR_OK, hr_tensor_get_address(touch->handle, &address));
	unsigned char *contents = &stage.contents[touch->birth];
	if (touch->again) {
		stage.again++;
		CHECK_EQ(touch->access, HR_OVERWRITE);
		CHECK_STATUS(HR_OK, hr_stream_fill(stage.device, address, *contents, info.bytes, touch->stream));
		return HR_OK;
	}
	if (touch->access != HR_OVERWRITE) {
		CHECK_STATUS(HR_OK, hr_stream_copy(stage.device, stage.bytes, address, info.bytes, HR_COPY_TO_HOST, touch->stream));
		CHECK_STATUS(HR_OK, hr_stream_synchronize(stage.device, touch->stream));
		for (size_t i = 0; i < info.bytes; i += 97) CHECK_EQ(stage.bytes[i], *contents);
	}
	if (touch->access != HR_READ) {
		*contents = (unsigned char)(*contents * 5 + touch->birth + 1);
		CHECK_STATUS(HR_OK, hr_stream_fill(stage.device, address, *contents, info.bytes, touch->stream));
	}
	if (touch->tensor == 0) {
		CHECK(stage.persistent == 0 || stage.persistent == touch->birth);
		stage.persistent = touch->birth;
	}
	stage.touches++;
	return HR_OK;
}

static hr_status on_step(void *context, size_t play)
{
	hr_lms_stats stats = { .struct_size = sizeof stats };
	CHECK(context == &stage);
	CHECK_EQ(play, stage.plays);
	stage.plays++;
	CHECK_STATUS(HR_OK, hr_lms_get_stats(stage.allocator, &stats));
	CHECK_EQ(stats.num_pins, 0);
	stage.alive = (uint64_t)stats.num_tensors;
	return HR_OK;
}

static hr__drive_options options_for(const uint32_t *plays, size_t count)
{
	return (hr__drive_options){ .allocator = stage.allocator,
		                        .plays = plays,
		                        .play_count = count,
		                        .context = &stage,
		                        .busy = on_busy,
		                        .touch = on_touch,
		                        .step = on_step };
}

static void play(const char *policy, uint64_t limit, const uint32_t *plays, size_t count, bool must_move)
{
	hr__schedule schedule;
	hr__drive_result result;
	hr_lms_stats stats = { .struct_size = sizeof stats };
	memset(&stage, 0, sizeof stage);
	write_training(10, 4, 1 * MIB);
	read_trace(&schedule);
	set_stage(policy, limit);
	hr__drive_options options = options_for(plays, count);
	CHECK_STATUS(HR_OK, hr__drive(&schedule, &options, &result));
	CHECK_EQ(result.ops, 21 * count);
	CHECK_EQ(stage.busy_ns, 21000 * count);
	CHECK_EQ(stage.plays, count + 1);
	CHECK_EQ(stage.alive, 11); /* weights, and the block that was passed on */
	CHECK_STATUS(HR_OK, hr_lms_get_stats(stage.allocator, &stats));
	if (must_move) CHECK(stats.num_evictions > 0 && stats.num_restores > 0);
	strike_stage();
	hr__schedule_free(&schedule);
}

static void test_contents_survive_with_half_the_memory(void)
{
	static const uint32_t plays[] = { 1, 2, 3, 4 };
	play("learned", 32 * MIB, plays, 4, false);
	play("learned", 7 * MIB, plays, 4, true);
	play("lru", 7 * MIB, plays, 4, true);
}

static void test_contents_survive_when_ops_run_again(void)
{
	static const uint32_t plays[] = { 1, 2, 3, 4, 4, 4, 4 };
	static const char *const policies[] = { "learned", "lru" };
	hr__schedule schedule;
	hr__drive_result result;
	forward = "aten::gelu";
	for (size_t i = 0; i < 2; i++) {
		memset(&stage, 0, sizeof stage);
		write_training(10, 4, 1 * MIB);
		read_trace(&schedule);
		set_stage(policies[i], 7 * MIB);
		hr__drive_options options = options_for(plays, 7);
		options.recompute = true;
		CHECK_STATUS(HR_OK, hr__drive(&schedule, &options, &result));
		hr_lms_stats stats = fixture_lms_stats(stage.allocator);
		CHECK_EQ(result.ops, 21 * 7);
		CHECK_GT(stats.num_drops, 0);
		CHECK_GE(stage.again, (uint64_t)stats.num_recomputes); /* one touch for each tensor that is made again */
		CHECK_EQ(stats.num_recipes + stats.num_ghosts, 0);
		strike_stage();
		hr__schedule_free(&schedule);
	}
}

static void test_steps_are_played_in_any_order(void)
{
	static const uint32_t orders[][6] = {
		{ 1, 2, 2, 2, 3, 2 }, { 2, 2, 2, 2, 2, 2 }, { 4, 3, 2, 1, 1, 4 }, { 4, 4, 4, 1, 4, 4 }, { 1, 1, 1, 1, 1, 1 }
	};
	for (size_t i = 0; i < sizeof orders / sizeof *orders; i++) {
		play("learned", 7 * MIB, orders[i], 6, true);
		play("lru", 6 * MIB, orders[i], 6, true);
	}
}

static void test_a_block_that_is_passed_on_changes_hands(void)
{
	hr__schedule schedule;
	hr__drive_result result;
	static const uint32_t plays[] = { 2, 2, 2 };
	memset(&stage, 0, sizeof stage);
	write_training(2, 3, 64 * KIB);
	read_trace(&schedule);
	set_stage("lru", 8 * MIB);
	hr__drive_options options = options_for(plays, 3);
	CHECK_STATUS(HR_OK, hr__drive(&schedule, &options, &result));
	/* Created: 2 weights; before the first play the block that step 0 would have left; in each play 2 layers with scratch, and a
	 * block. No other tensor is created between the plays. */
	uint64_t births = 0;
	for (uint64_t i = 1; i < BIRTHS; i++) births += stage.contents[i] != 0;
	CHECK_EQ(births, 2 + 1 + 3 * (2 + 1));
	strike_stage();
	hr__schedule_free(&schedule);
}

static void test_what_does_not_fit_is_named_and_nothing_is_left(void)
{
	hr__schedule schedule;
	hr__drive_result result;
	static const uint32_t plays[] = { 1, 9 };
	memset(&stage, 0, sizeof stage);
	write_training(6, 2, 1 * MIB);
	read_trace(&schedule);
	set_stage("learned", 2 * MIB);
	hr__drive_options options = options_for(plays, 1);
	CHECK_STATUS(HR_OUT_OF_MEMORY, hr__drive(&schedule, &options, &result));
	CHECK(strstr(hr_last_message(), "forward") != NULL);
	CHECK_EQ(result.part, 1);
	CHECK_EQ(result.op, 1);
	options.play_count = 2;
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr__drive(&schedule, &options, &result));
	strike_stage();
	hr__schedule_free(&schedule);
}

/* The least limit found by playing on the simulated device holds on a device with real memory. */
static void check_least_limit(const char *policy, uint64_t page)
{
	static const uint32_t plays[] = { 1, 2, 3, 3, 3 };
	hr__schedule schedule;
	hr__forecast_facts facts;
	hr__drive_result result;
	uint64_t least, again;
	memset(&stage, 0, sizeof stage);
	write_training(10, 4, 1 * MIB);
	read_trace(&schedule);
	CHECK_STATUS(HR_OK, hr__forecast_facts_find(&schedule, 3, &facts));
	hr__forecast_setup setup = { .schedule = &schedule, .part = 3, .repeats = 3, .link = 10000000000u, .page = page, .policy = policy };
	CHECK_STATUS(HR_OK, hr__forecast_least(&setup, &facts, 64 * MIB, &least));
	CHECK(least >= facts.working_set_bytes && least % page == 0 && least < 12 * MIB);
	CHECK_STATUS(HR_OK, hr__forecast_least(&setup, &facts, least - page, &again));
	CHECK_EQ(again, 0);
	set_stage_of_pages(policy, least, page);
	hr__drive_options options = options_for(plays, 5);
	CHECK_STATUS(HR_OK, hr__drive(&schedule, &options, &result));
	strike_stage();
	hr__schedule_free(&schedule);
}

static void test_the_least_limit_runs_in_real_memory(void)
{
	check_least_limit("learned", 64 * KIB);
	check_least_limit("lru", 64 * KIB);
	check_least_limit("learned", 2 * MIB);
	check_least_limit("lru", 2 * MIB);
}

static hr_status refuse(void *context, hr_stream stream, uint64_t ns)
{
	(void)context, (void)stream, (void)ns;
	return stage.touches > 20 ? HR_DEVICE_ERROR : HR_OK;
}

static void test_a_callback_can_end_it(void)
{
	hr__schedule schedule;
	hr__drive_result result;
	static const uint32_t plays[] = { 1, 2 };
	memset(&stage, 0, sizeof stage);
	write_training(6, 2, 64 * KIB);
	read_trace(&schedule);
	set_stage("learned", 8 * MIB);
	hr__drive_options options = options_for(plays, 2);
	options.busy = refuse;
	CHECK_STATUS(HR_DEVICE_ERROR, hr__drive(&schedule, &options, &result));
	CHECK_EQ(result.op, HR__SCHEDULE_NONE);
	strike_stage();
	hr__schedule_free(&schedule);
}

TEST_MAIN(T(test_the_schedule_is_what_the_trace_says), T(test_contents_survive_with_half_the_memory), T(test_contents_survive_when_ops_run_again),
          T(test_steps_are_played_in_any_order), T(test_a_block_that_is_passed_on_changes_hands),
          T(test_what_does_not_fit_is_named_and_nothing_is_left), T(test_the_least_limit_runs_in_real_memory), T(test_a_callback_can_end_it))
