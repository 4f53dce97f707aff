/* test_card_compile.c - every program for cards compiles with the real NVRTC, where that is installed; no card is needed. Otherwise skipped.
 *
 *   HR_TEST_NVRTC    folders to search for it, as in HEADROOM_CUDA_LIBRARIES; otherwise it is searched for where the loader looks, and in the environments
 *                    that tools/torch.sh made
 *   HR_TEST_PROGRAM  the only program that is compiled, such as "conv.cuh"
 *   HR_TEST_CARD=1   what is compiled goes to the cache of kernels, so that the tests on the card find it there; all dtypes are compiled
 *   HR_TEST_SCALE    above 1: all dtypes, not only one of each kind; below 1 in a sanitized build, two programs: NVRTC is not sanitized, and what calls it
 *                    does the same for each program */
#include <glob.h>

#include "fixture.h"
#include "core/os/os.h"
#include "runtime/card/chains.h"

#define ARCH 90

#define NONE (1u << 0)
#define FLOATS (1u << HR_DTYPE_FLOAT32 | 1u << HR_DTYPE_FLOAT64)
#define NUMBERS (FLOATS | 1u << HR_DTYPE_INT32 | 1u << HR_DTYPE_INT64 | 1u << HR_DTYPE_UINT8)
#define ALL (NUMBERS | 1u << HR_DTYPE_BOOL | 1u << HR_DTYPE_BFLOAT16)

/* One of each kind: others differ in the type T alone. */
#define FEW (NONE | 1u << HR_DTYPE_FLOAT32 | 1u << HR_DTYPE_INT32 | 1u << HR_DTYPE_BFLOAT16)

/* The dtypes that a program is compiled for. */
static const unsigned dtypes[] = {
	[HR__PROGRAM_FORMULAS] = FLOATS,
	[HR__PROGRAM_ELEMENTS] = NUMBERS,
	[HR__PROGRAM_CHAIN] = FLOATS,
	[HR__PROGRAM_REDUCE] = NUMBERS,
	[HR__PROGRAM_ROWS] = FLOATS,
	[HR__PROGRAM_NORM] = FLOATS,
	[HR__PROGRAM_MOVE] = NONE,
	[HR__PROGRAM_STRIPS] = FLOATS | 1u << HR_DTYPE_BFLOAT16,
	[HR__PROGRAM_SCATTER] = FLOATS,
	[HR__PROGRAM_CAST] = ALL,
	[HR__PROGRAM_UPDATE] = NUMBERS,
	[HR__PROGRAM_RANDOM] = NUMBERS,
	[HR__PROGRAM_POOL] = FLOATS,
	[HR__PROGRAM_CONV] = FLOATS,
	[HR__PROGRAM_ATTEND] = FLOATS | 1u << HR_DTYPE_BFLOAT16,
	[HR__PROGRAM_ATTEND_TENSOR] = 1u << HR_DTYPE_FLOAT32,
	[HR__PROGRAM_ATTEND_BFLOAT16] = 1u << HR_DTYPE_BFLOAT16,
};
_Static_assert(sizeof dtypes / sizeof *dtypes == HR__PROGRAM_COUNT, "a program without dtypes");

/* Of the environments that tools/torch.sh made. */
static const hr__nvrtc_calls *nvrtc_of_pytorch(char *why, size_t capacity)
{
	char pattern[512];
	glob_t found;
	const hr__nvrtc_calls *nvrtc = NULL;
	snprintf(pattern, sizeof pattern, "%s/.cache/headroom/torch-*/lib/python3*/site-packages/nvidia", getenv("HOME") ? getenv("HOME") : "");
	if (glob(pattern, 0, NULL, &found) == 0) {
		setenv("HEADROOM_CUDA_LIBRARIES", found.gl_pathv[0], 1);
		nvrtc = hr__nvrtc_find(why, capacity);
	}
	globfree(&found);
	return nvrtc;
}

static hr__card_facts card_facts(int arch)
{
	char why[256];
	hr__card_facts facts = { .processors = { arch / 10, arch % 10, 132 }, .arch = arch, .is_exact = true };
	if (!getenv("HR_TEST_CARD")) setenv("HEADROOM_KERNEL_CACHE", "/dev/null/none", 1);
	if (!getenv("HR_TEST_NVRTC")) unsetenv("HEADROOM_CUDA_LIBRARIES");
	else setenv("HEADROOM_CUDA_LIBRARIES", getenv("HR_TEST_NVRTC"), 1);
	facts.nvrtc = hr__nvrtc_find(why, sizeof why);
	if (!facts.nvrtc && !getenv("HR_TEST_NVRTC")) facts.nvrtc = nvrtc_of_pytorch(why, sizeof why);
	if (!facts.nvrtc) hr_test_skip(why);
	CHECK_EQ(0, facts.nvrtc->nvrtcVersion(&facts.nvrtc_major, &facts.nvrtc_minor));
	return facts;
}

static bool few_programs(void)
{
	return HR_TEST_SANITIZED && hr_test_scale() < 1 && !getenv("HR_TEST_CARD");
}

static void test_programs_compile(void)
{
	hr__card_facts facts = card_facts(ARCH);
	const char *on_card = getenv("HR_TEST_CARD"), *only = getenv("HR_TEST_PROGRAM");
	unsigned wanted = on_card || hr_test_scale() > 1 ? ~0u : FEW;
	for (int i = 0; i < HR__PROGRAM_COUNT; i++) {
		if (few_programs() && i != HR__PROGRAM_SCATTER && i != HR__PROGRAM_STRIPS) continue;
		for (int dtype = 0; dtype <= HR_DTYPE_BFLOAT16; dtype++) {
			void *image;
			size_t bytes;
			if (!((dtypes[i] & wanted) >> dtype & 1) || (only && strcmp(only, hr__source_of((enum hr__card_program)i).name) != 0)) continue;
			uint64_t begin = hr__os()->clock_ns();
			hr_status status = hr__program_build(&facts, (enum hr__card_program)i, (hr_dtype)dtype, &image, &bytes);
			printf("# %s for %s: %.1f s, %zu bytes\n", hr__source_of((enum hr__card_program)i).name, hr_dtype_text((hr_dtype)dtype),
			       (double)(hr__os()->clock_ns() - begin) / 1e9, status ? 0 : bytes);
			fflush(stdout);
			if (status) printf("# %s\n", hr_last_message());
			CHECK_STATUS(HR_OK, status);
			CHECK(bytes > 0);
			hr__os()->free(image, bytes);
		}
	}
}

/* Every op that a chain may have, in as many chains as they need; all but the first result are bfloat16. */
static void test_chains_compile(void)
{
	static const uint8_t kinds[] = { HR__OP_ADD, HR__OP_SUB, HR__OP_MUL, HR__OP_DIV, HR__OP_MAXIMUM, HR__OP_NEG, HR__OP_EXP, HR__OP_LOG, HR__OP_SQRT, HR__OP_TANH, HR__OP_RELU,
		                             HR__OP_GELU, HR__OP_SCALE, HR__OP_CAST, HR__OP_DROPOUT, HR__OP_RELU_GRAD, HR__OP_TANH_GRAD, HR__OP_GELU_GRAD };
	hr__card_facts facts = card_facts(ARCH);
	for (size_t first = 0; first < sizeof kinds; first += HR__CHAIN_STEPS) {
		for (int wide = 0; wide < 2; wide++) {
			hr__chain chain = { .dtype = wide ? HR_DTYPE_FLOAT64 : HR_DTYPE_FLOAT32, .inputs = 3, .in_narrow = { [1] = !wide }, .is_offset = { [2] = true } };
			void *image;
			size_t bytes;
			for (size_t i = first; i < sizeof kinds && chain.steps < HR__CHAIN_STEPS; i++)
				chain.step[chain.steps++] = (hr__chain_step){ kinds[i], i == first ? 0 : HR__OP_INPUTS, kinds[i] == HR__OP_DROPOUT ? 2 : 1, !wide && i > first };
			hr_status status = hr__chain_build(&facts, &chain, &image, &bytes);
			if (status) printf("# %s\n", hr_last_message());
			CHECK_STATUS(HR_OK, status);
			hr__os()->free(image, bytes);
		}
	}
}

static void test_an_error_of_the_compiler_is_in_the_message(void)
{
	hr__card_facts facts = card_facts(1); /* no such architecture */
	void *image;
	size_t bytes;
	CHECK_STATUS(HR_DEVICE_ERROR, hr__program_build(&facts, HR__PROGRAM_ELEMENTS, HR_DTYPE_FLOAT32, &image, &bytes));
	CHECK(strstr(hr_last_message(), "elements.cuh (--gpu-architecture=sm_1)") != NULL);
}

TEST_MAIN(T_WITHIN(test_programs_compile, 600), T_WITHIN(test_chains_compile, 600), T(test_an_error_of_the_compiler_is_in_the_message))
