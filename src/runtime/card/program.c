/* program.c - compiles programs with NVRTC. */
#include <stdio.h>
#include <string.h>

#include "core/base/status.h"
#include "core/os/os.h"
#include "runtime/card/card.h"

#define OPTIONS 4
#define LOG_SHOWN 1000

struct build {
	const hr__card_facts *facts;
	const char *name;
	char *text;
	size_t bytes;
	char arch[48], dtype[32];
	const char *options[OPTIONS];
};

static hr_status failed(const struct build *build, int result, const char *call)
{
	return hr__fail(HR_DEVICE_ERROR, "%s of %s (%s): %s", call, build->name, build->arch, build->facts->nvrtc->nvrtcGetErrorString(result));
}

/* The compiler's messages, as far as they fit. */
static hr_status refused(const struct build *build, nvrtcProgram program)
{
	size_t bytes = 0;
	void *log;
	const hr__nvrtc_calls *nvrtc = build->facts->nvrtc;
	if (nvrtc->nvrtcGetProgramLogSize(program, &bytes) || !bytes || hr__os()->alloc(bytes + 1, &log))
		return failed(build, HR__NVRTC_ERROR_COMPILATION, "nvrtcCompileProgram");
	if (nvrtc->nvrtcGetProgramLog(program, log)) *(char *)log = 0;
	hr_status status = hr__fail(HR_DEVICE_ERROR, "NVRTC %d.%d cannot compile %s (%s, %s): %.*s", build->facts->nvrtc_major, build->facts->nvrtc_minor,
	                            build->name, build->arch, build->dtype, LOG_SHOWN, (const char *)log);
	hr__os()->free(log, bytes + 1);
	return status;
}

static hr_status take_image(const struct build *build, nvrtcProgram program, void **image, size_t *bytes)
{
	const hr__nvrtc_calls *nvrtc = build->facts->nvrtc;
	bool exact = build->facts->is_exact;
	int result = exact ? nvrtc->nvrtcGetCUBINSize(program, bytes) : nvrtc->nvrtcGetPTXSize(program, bytes);
	if (result || !*bytes) return failed(build, result, exact ? "nvrtcGetCUBINSize" : "nvrtcGetPTXSize");
	int error = hr__os()->alloc(*bytes, image);
	if (error) return hr__os_fail(error, "cannot get host memory for kernels");
	result = exact ? nvrtc->nvrtcGetCUBIN(program, *image) : nvrtc->nvrtcGetPTX(program, *image);
	if (!result) return HR_OK;
	hr__os()->free(*image, *bytes);
	return failed(build, result, exact ? "nvrtcGetCUBIN" : "nvrtcGetPTX");
}

static hr_status compile(const struct build *build, void **image, size_t *bytes)
{
	const hr__nvrtc_calls *nvrtc = build->facts->nvrtc;
	nvrtcProgram program = NULL;
	int result = nvrtc->nvrtcCreateProgram(&program, build->text, build->name, 0, NULL, NULL);
	if (result) return failed(build, result, "nvrtcCreateProgram");
	result = nvrtc->nvrtcCompileProgram(program, OPTIONS, build->options);
	hr_status status = result == HR__NVRTC_ERROR_COMPILATION ? refused(build, program) : result ? failed(build, result, "nvrtcCompileProgram") : HR_OK;
	if (!status) status = take_image(build, program, image, bytes);
	nvrtc->nvrtcDestroyProgram(&program);
	return status;
}

static hr__cache_key key_of(const struct build *build)
{
	hr__cache_key key = { 0 };
	int numbers[] = { build->facts->nvrtc_major, build->facts->nvrtc_minor, build->facts->processors.major, build->facts->processors.minor };
	hr__cache_key_add(&key, numbers, sizeof numbers);
	for (int i = 0; i < OPTIONS; i++) hr__cache_key_add(&key, build->options[i], strlen(build->options[i]) + 1);
	hr__cache_key_add(&key, build->text, build->bytes);
	return key;
}

static hr_status find_or_compile(const struct build *build, void **image, size_t *bytes)
{
	hr__cache_key key = key_of(build);
	if (hr__cache_read(&key, image, bytes)) return HR_OK;
	hr_status status = compile(build, image, bytes);
	if (!status) hr__cache_write(&key, *image, *bytes);
	return status;
}

static void join(const hr__card_source *parts, int count, char *to)
{
	for (int i = 0; i < count; to += parts[i++].bytes) memcpy(to, parts[i].text, parts[i].bytes);
}

hr_status hr__parts_build(const hr__card_facts *facts, const char *name, const hr__card_source *parts, int count, hr_dtype dtype, void **image, size_t *bytes)
{
	struct build build = { .facts = facts, .name = name, .options = { build.arch, build.dtype, "--std=c++17", "--fmad=false" } };
	void *text;
	for (int i = 0; i < count; i++) build.bytes += parts[i].bytes;
	snprintf(build.arch, sizeof build.arch, "--gpu-architecture=%s_%d", facts->is_exact ? "sm" : "compute", facts->arch);
	snprintf(build.dtype, sizeof build.dtype, "-DHR_DTYPE=%d", (int)dtype);
	int error = hr__os()->alloc(build.bytes + 1, &text);
	if (error) return hr__os_fail(error, "cannot get host memory for kernels");
	build.text = text;
	join(parts, count, build.text);
	hr_status status = find_or_compile(&build, image, bytes);
	hr__os()->free(text, build.bytes + 1);
	return status;
}

hr_status hr__program_build(const hr__card_facts *facts, enum hr__card_program program, hr_dtype dtype, void **image, size_t *bytes)
{
	hr__card_source parts[HR__PROGRAM_PARTS] = { hr__source_of(HR__PROGRAM_COUNT) };
	int count = 1;
	if (program == HR__PROGRAM_ELEMENTS || program == HR__PROGRAM_CHAIN) parts[count++] = hr__source_of(HR__PROGRAM_FORMULAS);
	parts[count++] = hr__source_of(program);
	return hr__parts_build(facts, parts[count - 1].name, parts, count, dtype, image, bytes);
}
