/* test_op_memory.c - the memory use of each op matches its row in the table of ops: counts allocations, with temporary and kept
 * inputs.
 *
 * With --table it prints docs/runtime.md's table, made from the same rows; a test compares the two. `make op-table` regenerates it.
 * */
#include "headroom_runtime.h"
#include "runtime/engine/engine.h"
#include "support_session.h"

#define SIDE 8 /* side of most inputs, which are [8,8] */
#define BEGIN "<!-- ops: made by `make op-table` -->\n"
#define END "<!-- end of ops -->\n"

struct input {
	hr_dtype dtype; /* none: no such input */
	int rank;
	int64_t dims[4];
};

#define F32(...) { HR_DTYPE_FLOAT32, sizeof((int[]){ __VA_ARGS__ }) / sizeof(int), { __VA_ARGS__ } }
#define I32(...) { HR_DTYPE_INT32, sizeof((int[]){ __VA_ARGS__ }) / sizeof(int), { __VA_ARGS__ } }
#define SQUARE F32(SIDE, SIDE)

struct sample {
	const char *call; /* hr_<call> */
	enum hr__op_kind kind;
	hr_value (*run)(const hr_value *in); /* NULL: an op on variables, with a test of its own */
	struct input in[3];
	const char *memory; /* text in the table; NULL: derived from the row */
};

/* ---- one call of each op ---- */

#define OF_TWO(name)                                   \
	static hr_value run_##name(const hr_value *in)     \
	{                                                  \
		return hr_##name(in[0], in[1]);                \
	}
#define OF_ONE(name)                                   \
	static hr_value run_##name(const hr_value *in)     \
	{                                                  \
		return hr_##name(in[0]);                       \
	}
#define OF_ONE_AND(name, ...)                          \
	static hr_value run_##name(const hr_value *in)     \
	{                                                  \
		return hr_##name(in[0], __VA_ARGS__);          \
	}
#define OF_NONE(name, ...)                             \
	static hr_value run_##name(const hr_value *in)     \
	{                                                  \
		(void)in;                                      \
		return hr_##name(HR_DTYPE_FLOAT32, HR_DIMS(SIDE, SIDE), __VA_ARGS__); \
	}

static const float data[SIDE * SIDE];
OF_NONE(constant, data)
OF_NONE(full, 1)
OF_NONE(random_normal, 1)
OF_NONE(random_uniform, 0, 1, 1)
OF_TWO(add)
OF_TWO(sub)
OF_TWO(mul)
OF_TWO(div)
OF_TWO(maximum)
OF_ONE(neg)
OF_ONE(exp)
OF_ONE(log)
OF_ONE(sqrt)
OF_ONE(tanh)
OF_ONE(relu)
OF_ONE(gelu)
OF_ONE_AND(scale, 2, 1)
OF_ONE_AND(cast, HR_DTYPE_INT32)
OF_ONE_AND(reshape, HR_DIMS(SIDE * SIDE))
OF_ONE_AND(transpose, (const int[]){ 1, 0 }, 2)
OF_ONE_AND(slice, 1, 2, 3)
OF_ONE_AND(broadcast_to, HR_DIMS(2, SIDE, SIDE))
OF_TWO(gather)
OF_ONE_AND(one_hot, SIDE, HR_DTYPE_FLOAT32)
OF_ONE_AND(reduce_sum, HR_ALL_AXES, false)
OF_ONE_AND(reduce_mean, HR_ALL_AXES, false)
OF_ONE_AND(reduce_max, HR_ALL_AXES, false)
OF_TWO(matmul)
OF_ONE(softmax)
OF_ONE(causal_softmax)
OF_TWO(cross_entropy)
OF_ONE_AND(max_pool, 2, 2)
OF_ONE_AND(avg_pool, 2, 2)

static hr_value run_concat(const hr_value *in)
{
	return hr_concat(in, 2, 0);
}

static hr_value run_matmul_transposed(const hr_value *in)
{
	return hr_matmul_transposed(in[0], true, in[1], false);
}

static hr_value run_layer_norm(const hr_value *in)
{
	return hr_layer_norm(in[0], in[1], in[2], 1e-5);
}

static hr_value run_batch_norm(const hr_value *in)
{
	return hr_batch_norm(in[0], in[1], in[2], 1e-5, NULL, NULL);
}

static hr_value run_dropout(const hr_value *in)
{
	return hr_dropout(in[0], 0.5, 1, in[1], true);
}

static hr_value run_attend(const hr_value *in)
{
	return hr_attend(in[0], in[1], in[2], 2, 0.5, true);
}

static hr_value run_conv2d(const hr_value *in)
{
	return hr_conv2d(in[0], in[1], 1, 1);
}

/* In the order of the table of ops. Reductions are so large that they use partial sums. */
#define BINARY(name, kind) { #name, HR__OP_##kind, run_##name, .in = { SQUARE, SQUARE } }
#define UNARY(name, kind) { #name, HR__OP_##kind, run_##name, .in = { SQUARE } }
#define SOURCE(name, kind) { #name, HR__OP_##kind, .run = run_##name }
#define REDUCTION(name, kind) { #name, HR__OP_##kind, run_##name, .in = { F32(512, 512) } }

static const struct sample samples[] = {
	{ "placeholder", HR__OP_PLACEHOLDER, .memory = "that of what is fed" },
	{ "read", HR__OP_READ, .memory = "the variable's" },
	{ "assign", HR__OP_ASSIGN, .memory = "that of its input becomes the variable's; part of a larger one is copied" },
	{ "global_variables_initializer", HR__OP_INITIALIZE, .memory = "the variables get theirs; in a graph, a number" },
	{ "group", HR__OP_GROUP, .memory = "none; in a graph, a number" },
	SOURCE(constant, CONSTANT),
	SOURCE(full, FULL),
	SOURCE(random_normal, RANDOM_NORMAL),
	SOURCE(random_uniform, RANDOM_UNIFORM),
	BINARY(add, ADD),
	BINARY(sub, SUB),
	{ "assign_add", HR__OP_ASSIGN_ADD, .memory = "the variable's, or as `add` while a kept value has its contents" },
	{ "assign_sub", HR__OP_ASSIGN_SUB, .memory = "the variable's, or as `sub` while a kept value has its contents" },
	BINARY(mul, MUL),
	BINARY(div, DIV),
	BINARY(maximum, MAXIMUM),
	UNARY(neg, NEG),
	UNARY(exp, EXP),
	UNARY(log, LOG),
	UNARY(sqrt, SQRT),
	UNARY(tanh, TANH),
	UNARY(relu, RELU),
	UNARY(gelu, GELU),
	UNARY(scale, SCALE),
	UNARY(cast, CAST),
	UNARY(reshape, RESHAPE),
	UNARY(transpose, TRANSPOSE),
	BINARY(concat, CONCAT),
	{ "slice", HR__OP_SLICE, run_slice, .in = { SQUARE }, .memory = "shared with its input where all dimensions before the axis are 1; else its own" },
	UNARY(broadcast_to, BROADCAST_TO),
	{ "gather", HR__OP_GATHER, run_gather, .in = { SQUARE, I32(SIDE) } },
	{ "one_hot", HR__OP_ONE_HOT, run_one_hot, .in = { I32(SIDE) } },
	REDUCTION(reduce_sum, REDUCE_SUM),
	REDUCTION(reduce_mean, REDUCE_MEAN),
	REDUCTION(reduce_max, REDUCE_MAX),
	BINARY(matmul, MATMUL),
	BINARY(matmul_transposed, MATMUL),
	UNARY(softmax, SOFTMAX),
	UNARY(causal_softmax, SOFTMAX),
	{ "cross_entropy", HR__OP_CROSS_ENTROPY, run_cross_entropy, .in = { SQUARE, I32(SIDE) } },
	{ "layer_norm", HR__OP_LAYER_NORM, run_layer_norm, .in = { SQUARE, F32(SIDE), F32(SIDE) },
	  .memory = "input 1's, else its own; mean and deviation of each row have theirs, for gradients" },
	{ "batch_norm", HR__OP_BATCH_NORM, run_batch_norm, .in = { SQUARE, F32(SIDE), F32(SIDE) },
	  .memory = "input 1's, else its own; mean and variance of each channel have theirs" },
	{ "dropout", HR__OP_DROPOUT, run_dropout, .in = { SQUARE, { HR_DTYPE_INT64, 0, { 0 } } } },
	{ "attend", HR__OP_ATTEND, run_attend, .in = { SQUARE, SQUARE, SQUARE },
	  .memory = "its own; the logarithm of each row's sum has its own, for gradients" },
	{ "conv2d", HR__OP_CONV2D, run_conv2d, .in = { F32(1, 2, SIDE, SIDE), F32(2, 2, 3, 3) } },
	{ "max_pool", HR__OP_MAX_POOL, run_max_pool, .in = { F32(1, 2, SIDE, SIDE) } },
	{ "avg_pool", HR__OP_AVG_POOL, run_avg_pool, .in = { F32(1, 2, SIDE, SIDE) } },
	{ "copy_to_session", HR__OP_COPY, .memory = "its own, of the other session" },
	{ "minimize` by `HR_SGD", HR__OP_SGD, .run = NULL },
	{ "minimize` by `HR_MOMENTUM", HR__OP_MOMENTUM, .run = NULL },
	{ "minimize` by `HR_ADAM", HR__OP_ADAM, .run = NULL },
};
#define SAMPLES (sizeof samples / sizeof samples[0])

/* ---- the table ---- */

static void print_memory(FILE *to, const struct sample *sample)
{
	const hr__op *op = &hr__ops[sample->kind];
	const char *between = "input ";
	if (sample->memory) {
		fputs(sample->memory, to);
		return;
	}
	switch (op->memory) {
	case HR__ALLOCATES: fputs("its own", to); return;
	case HR__ALIASES: fputs("shared with its input", to); return;
	case HR__UPDATES: fputs("that of the variables; for contents that a kept value has, its own", to); return;
	case HR__FORWARDS: break;
	}
	for (int i = 0; i < HR__OP_INPUTS; i++) {
		if (!(op->forwards >> i & 1)) continue;
		fprintf(to, "%s%d's", between, i + 1);
		between = " or ";
	}
	fputs(", else its own", to);
}

static void print_table(FILE *to)
{
	fputs("| op | memory of its output | scratch | gradient | recipe |\n|---|---|---|---|---|\n", to);
	for (size_t i = 0; i < SAMPLES; i++) {
		const hr__op *op = &hr__ops[samples[i].kind];
		fprintf(to, "| `%s` | ", samples[i].call);
		print_memory(to, &samples[i]);
		/* Gradients of ops that change or read variables are with respect to the variable. */
		bool differentiable = op->gradient && (samples[i].run || samples[i].kind == HR__OP_READ);
		fprintf(to, " | %s | %s | %s |\n", op->scratch ? "yes" : "", differentiable ? "yes" : "", op->again ? "yes" : "");
	}
}

static void test_every_public_op_is_in_the_table(void)
{
	bool seen[HR__OP_COUNT] = { false };
	for (size_t i = 0; i < SAMPLES; i++) {
		seen[samples[i].kind] = true;
		/* In the order of the rows; some have two calls. */
		if (i && samples[i].run && samples[i - 1].run) CHECK_LE((int)samples[i - 1].kind, (int)samples[i].kind);
	}
	for (int kind = 0; kind < HR__OP_COUNT; kind++) {
		bool internal = (kind >= HR__OP_RELU_GRAD && kind < HR__OP_COPY) || kind == HR__OP_CHAIN;
		if (seen[kind] == internal) printf("# %s\n", hr__ops[kind].name);
		CHECK(seen[kind] != internal);
	}
}

static void test_the_manual_has_this_table(void)
{
	static char manual[1 << 16], table[1 << 14];
	FILE *file = fopen("docs/runtime.md", "r"), *made = fmemopen(table, sizeof table, "w");
	CHECK(file && made);
	manual[fread(manual, 1, sizeof manual - 1, file)] = 0;
	fclose(file);
	print_table(made);
	fclose(made);
	char *begin = strstr(manual, BEGIN), *end = begin ? strstr(begin, END) : NULL;
	CHECK(begin && end);
	*end = 0;
	bool same = strcmp(begin + strlen(BEGIN), table) == 0;
	if (!same) puts("# docs/runtime.md has another table of ops than the library; write it anew: make op-table");
	CHECK(same);
}

/* ---- counting ---- */

static uint64_t bytes_of(const struct input *input)
{
	uint64_t bytes = hr_dtype_size(input->dtype);
	for (int i = 0; i < input->rank; i++) bytes *= (uint64_t)input->dims[i];
	return bytes;
}

/* Input [loose] is temporary, the others are kept; -1 = all kept. Returns the number of allocations, and in *stayed how many of
 * those are left with the output. */
static int64_t count(const struct sample *sample, int loose, int64_t *stayed)
{
	hr_value in[3] = { HR_NO_VALUE, HR_NO_VALUE, HR_NO_VALUE };
	for (int i = 0; i < 3 && sample->in[i].dtype; i++) {
		in[i] = hr_full(sample->in[i].dtype, sample->in[i].dims, sample->in[i].rank, 1);
		if (i != loose) hr_value_keep(in[i]);
		CHECK(in[i].id);
	}
	hr_stats before = stats_of();
	hr_value out = hr_value_keep(sample->run(in));
	CHECK(out.id);
	hr_stats after = stats_of();
	for (int i = 0; i < 3; i++)
		if (i != loose) hr_value_release(in[i]);
	*stayed = after.num_live - before.num_live;
	hr_value_release(out);
	CHECK_EQ(stats_of().bytes_in_use, 0);
	return after.num_allocs - before.num_allocs;
}

static void check_sample(const struct sample *sample)
{
	const hr__op *op = &hr__ops[sample->kind];
	bool has_scratch = op->scratch && sample->kind != HR__OP_CROSS_ENTROPY; /* that only of bfloat16 */
	int64_t stayed, scratch = has_scratch, own = op->memory == HR__ALIASES ? 0 : op->out_count;
	int64_t made = count(sample, -1, &stayed);
	if (made != own + scratch) printf("# %s\n", sample->call);
	CHECK_EQ(made, own + scratch);
	CHECK_EQ(stayed, own ? 1 : 0); /* scratch is freed, and so are outputs that only gradients read */
	uint64_t bytes = bytes_of(&sample->in[0]);
	for (int i = 0; i < 3 && sample->in[i].dtype; i++) {
		bool takes = op->memory == HR__FORWARDS && op->forwards >> i & 1 && bytes_of(&sample->in[i]) == bytes;
		made = count(sample, i, &stayed);
		if (made != own + scratch - takes) printf("# %s, input %d is loose\n", sample->call, i);
		CHECK_EQ(made, own + scratch - takes);
	}
}

static void test_ops_allocate_what_their_rows_say(void)
{
	int checked = 0;
	open_session(0);
	for (size_t i = 0; i < SAMPLES; i++) {
		if (!samples[i].run) continue;
		check_sample(&samples[i]);
		checked++;
	}
	CHECK_GE(checked, 40);
	close_session();
}

/* ---- memory that is not reused ---- */

static int64_t requests(void)
{
	return stats_of().num_allocs;
}

static void test_memory_that_is_not_taken(void)
{
	open_session(0);
	int64_t at = requests();
	hr_value_release(hr_cast(hr_full(HR_DTYPE_FLOAT32, HR_DIMS(64), 1), HR_DTYPE_FLOAT64)); /* of another size */
	CHECK_EQ(requests(), at + 2);
	hr_value_release(hr_add(hr_full(HR_DTYPE_FLOAT32, HR_DIMS(1, 64), 1), hr_full(HR_DTYPE_FLOAT32, HR_DIMS(64, 1), 1))); /* both are broadcast */
	CHECK_EQ(requests(), at + 5);
	/* One is broadcast: the other's memory is reused. */
	hr_value_release(hr_add(hr_full(HR_DTYPE_FLOAT32, HR_DIMS(1), 1), hr_full(HR_DTYPE_FLOAT32, HR_DIMS(64), 1)));
	CHECK_EQ(requests(), at + 7);

	/* Part of a larger block, and a block that another value shares. */
	hr_value_release(hr_exp(hr_slice(hr_full(HR_DTYPE_FLOAT32, HR_DIMS(64, 64), 1), 0, 2, 3)));
	CHECK_EQ(requests(), at + 9);
	hr_value x = hr_value_keep(hr_full(HR_DTYPE_FLOAT32, HR_DIMS(64), 1));
	hr_value_release(hr_exp(hr_reshape(x, HR_DIMS(8, 8))));
	CHECK_EQ(requests(), at + 11);
	hr_value_release(x);
	hr_value_release(hr_exp(hr_reshape(hr_full(HR_DTYPE_FLOAT32, HR_DIMS(64), 1), HR_DIMS(8, 8)))); /* the only reference */
	CHECK_EQ(requests(), at + 12);

	/* A tape keeps the input of log and the output of exp for their gradients. */
	CHECK_STATUS(HR_OK, hr_tape_begin());
	hr_value_release(hr_log(hr_full(HR_DTYPE_FLOAT32, HR_DIMS(64), 1)));
	CHECK_EQ(requests(), at + 14);
	hr_value_release(hr_exp(hr_full(HR_DTYPE_FLOAT32, HR_DIMS(64), 1)));
	CHECK_EQ(requests(), at + 15);
	hr_value_release(hr_neg(hr_exp(hr_full(HR_DTYPE_FLOAT32, HR_DIMS(64), 1))));
	CHECK_EQ(requests(), at + 17);
	CHECK_STATUS(HR_OK, hr_tape_end());
	close_session();
}

static void test_a_slice_of_what_lies_side_by_side_is_a_view(void)
{
	open_session(0);
	hr_value x = hr_value_keep(hr_full(HR_DTYPE_FLOAT32, HR_DIMS(1, 1, 8, 8), 1));
	int64_t at = requests();
	hr_value_release(hr_slice(x, 2, 3, 4));
	hr_value_release(hr_slice(x, -2, 0, 1));
	hr_value_release(hr_slice(x, 0, 0, 1));
	CHECK_EQ(requests(), at);
	hr_value_release(hr_slice(x, 3, 3, 4));
	CHECK_EQ(requests(), at + 1);
	hr_value_release(x);
	close_session();
}

/* ---- on variables ---- */

static hr_variable variable(const char *name)
{
	return hr_get_variable(name, HR_DTYPE_FLOAT32, HR_DIMS(SIDE, SIDE), HR_FULL(1));
}

static void test_reading_and_assigning_allocates_nothing(void)
{
	open_session(0);
	hr_variable w = variable("w");
	hr_value x = hr_value_keep(hr_full(HR_DTYPE_FLOAT32, HR_DIMS(SIDE, SIDE), 1)), wide = hr_value_keep(hr_full(HR_DTYPE_FLOAT32, HR_DIMS(2 * SIDE, SIDE), 1));
	int64_t at = requests();
	hr_value_release(hr_variable_read(w));
	CHECK_EQ(hr_assign(w, x).id, HR_DONE.id);
	CHECK_EQ(hr_group((hr_value[]){ HR_DONE, HR_DONE }, 2).id, HR_DONE.id);
	CHECK_EQ(requests(), at);
	CHECK_EQ(hr_assign(w, hr_slice(wide, 0, SIDE, SIDE)).id, HR_DONE.id);
	CHECK_EQ(requests(), at + 1);
	CHECK_EQ(hr_global_variables_initializer().id, HR_DONE.id); /* all have contents */
	CHECK_LE(requests(), at + 2);
	hr_value_release(x);
	hr_value_release(wide);
	close_session();
}

/* An op that updates [count] variables, while other references to the contents of [held] of them exist. */
static int64_t count_update(enum hr__op_kind kind, int count, int held)
{
	static const char *const names[] = { "w", "m", "v" };
	hr_value contents[3], ins[2], outs[HR__OP_OUTPUTS];
	hr__attrs attrs = { .a = 0.1, .b = 0.9, .c = 0.99, .d = 1e-8 };
	open_session(0);
	for (int i = 0; i < count; i++) {
		hr_variable each = variable(names[i]);
		attrs.variables[i] = each.id;
		if (i < held) contents[i] = hr_value_keep(hr_variable_read(each));
	}
	ins[0] = hr_value_keep(hr_full(HR_DTYPE_FLOAT32, HR_DIMS(SIDE, SIDE), 1));
	ins[1] = hr_value_keep(hr_full(HR_DTYPE_INT64, HR_SCALAR, 1));
	int64_t at = requests();
	hr__call(kind, ins, kind == HR__OP_ADAM ? 2 : 1, &attrs, outs);
	CHECK_EQ(outs[0].id, HR_DONE.id);
	at = requests() - at;
	for (int i = 0; i < held; i++) {
		float found[SIDE * SIDE];
		CHECK_STATUS(HR_OK, hr_value_fetch(contents[i], found, sizeof found));
		CHECK_EQ(found[SIDE], 1.0f); /* other references keep the old contents */
		hr_value_release(contents[i]);
	}
	hr_value_release(ins[0]);
	hr_value_release(ins[1]);
	close_session();
	return at;
}

static void test_updates_allocate_if_another_value_shares_the_contents(void)
{
	static const struct {
		enum hr__op_kind kind;
		int count;
	} updates[] = { { HR__OP_ASSIGN_ADD, 1 }, { HR__OP_ASSIGN_SUB, 1 }, { HR__OP_SGD, 1 }, { HR__OP_MOMENTUM, 2 }, { HR__OP_ADAM, 3 } };
	for (int i = 0; i < 5; i++) {
		if (i >= 2) CHECK_EQ((int)hr__ops[updates[i].kind].memory, (int)HR__UPDATES);
		CHECK_EQ(hr__ops[updates[i].kind].out_count, updates[i].count);
		for (int held = 0; held <= updates[i].count; held++) CHECK_EQ(count_update(updates[i].kind, updates[i].count, held), held);
	}
}

/* ---- in graphs ---- */

static void test_a_graph_allocates_nothing_for_its_placeholders(void)
{
	hr_graph graph;
	hr_value out;
	open_session(0);
	CHECK_STATUS(HR_OK, hr_graph_create(&graph));
	CHECK_STATUS(HR_OK, hr_graph_enter(graph));
	hr_value place = hr_placeholder(HR_DTYPE_FLOAT32, HR_DIMS(SIDE)), group = hr_group(&place, 1);
	CHECK_STATUS(HR_OK, hr_graph_leave());
	hr_value x = hr_value_keep(hr_full(HR_DTYPE_FLOAT32, HR_DIMS(SIDE), 1));
	int64_t at = requests();
	CHECK_STATUS(HR_OK, hr_session_run(session, &(hr_feed){ place, x }, 1, &place, 1, &out, NULL, NULL));
	hr_value_release(out);
	CHECK_EQ(requests(), at);
	CHECK_STATUS(HR_OK, hr_session_run(session, &(hr_feed){ place, x }, 1, &group, 1, &out, NULL, NULL));
	hr_value_release(out);
	CHECK_EQ(requests(), at + 1);
	hr_value_release(x);
	CHECK_STATUS(HR_OK, hr_graph_destroy(graph));
	close_session();
}

static const hr_test tests[] = {
	T(test_every_public_op_is_in_the_table),
	T(test_the_manual_has_this_table),
	T(test_ops_allocate_what_their_rows_say),
	T(test_memory_that_is_not_taken),
	T(test_a_slice_of_what_lies_side_by_side_is_a_view),
	T(test_reading_and_assigning_allocates_nothing),
	T(test_updates_allocate_if_another_value_shares_the_contents),
	T(test_a_graph_allocates_nothing_for_its_placeholders),
};

int main(int argc, char **argv)
{
	if (argc != 2 || strcmp(argv[1], "--table")) return hr_test_main(tests, sizeof tests / sizeof tests[0], argc, argv);
	print_table(stdout);
	return 0;
}
