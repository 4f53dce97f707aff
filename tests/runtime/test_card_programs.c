/* test_card_programs.c - the programs for cards compile with NVRTC, which needs no card, for float32, and with HR_TEST_SCALE above 1 for every dtype. Skipped where no NVRTC is found: in HEADROOM_CUDA_LIBRARIES, where the loader looks, or in the environments that tools/torch.sh made. */
#include <glob.h>
#include <stdio.h>

#include "core/os/os.h"
#include "runtime/card/card.h"
#include "test.h"

static void name_libraries(void)
{
	char pattern[512];
	glob_t found;
	const char *named = getenv("HEADROOM_CUDA_LIBRARIES");
	if (named && strcmp(named, "0")) return;
	unsetenv("HEADROOM_CUDA_LIBRARIES");
	snprintf(pattern, sizeof pattern, "%s/.cache/headroom/torch-*/lib/python3*/site-packages/nvidia", getenv("HOME") ? getenv("HOME") : "");
	if (glob(pattern, 0, NULL, &found) == 0) setenv("HEADROOM_CUDA_LIBRARIES", found.gl_pathv[0], 1);
	globfree(&found);
}

static hr__card_facts facts_for(int arch)
{
	char why[300];
	hr__card_facts facts = { .arch = arch, .is_exact = true };
	name_libraries();
	setenv("HEADROOM_KERNEL_CACHE", "0", 1);
	facts.nvrtc = hr__nvrtc_find(why, sizeof why);
	if (!facts.nvrtc) hr_test_skip(why);
	CHECK_EQ(facts.nvrtc->nvrtcVersion(&facts.nvrtc_major, &facts.nvrtc_minor), 0);
	return facts;
}

static void check_program(const hr__card_facts *facts, enum hr__card_program program)
{
	static const hr_dtype dtypes[] = { HR_DTYPE_FLOAT32, HR_DTYPE_FLOAT64, HR_DTYPE_INT32, HR_DTYPE_INT64, HR_DTYPE_UINT8, HR_DTYPE_BFLOAT16 };
	for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
		if (i > 0 && hr_test_scale() <= 1) break; /* a second each */
		void *image;
		size_t bytes;
		hr_status status = hr__program_build(facts, program, dtypes[i], &image, &bytes);
		if (status) printf("# %s\n", hr_last_message());
		CHECK_STATUS(HR_OK, status);
		CHECK(bytes > 0);
		hr__os()->free(image, bytes);
	}
}

static void test_programs_compile_for_the_newest_card(void)
{
	hr__card_facts facts = facts_for(90);
	for (int i = 0; i < HR__PROGRAM_COUNT; i++) check_program(&facts, (enum hr__card_program)i);
}

static void test_an_error_of_the_compiler_is_in_the_message(void)
{
	hr__card_facts facts = facts_for(1); /* no such architecture */
	void *image;
	size_t bytes;
	CHECK_STATUS(HR_DEVICE_ERROR, hr__program_build(&facts, HR__PROGRAM_ELEMENTS, HR_DTYPE_FLOAT32, &image, &bytes));
	CHECK(strstr(hr_last_message(), "elements.cuh (--gpu-architecture=sm_1)") != NULL);
}

TEST_MAIN(T(test_programs_compile_for_the_newest_card), T(test_an_error_of_the_compiler_is_in_the_message))
