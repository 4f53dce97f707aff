/* fake_nvrtc.c - a stand-in for NVRTC: compiles programs for the host with its C++ compiler ($CXX, or c++). The image is a shared library, with a header
 * by which the stand-in driver knows it.
 *
 *   FAKE_NVRTC_ARCHS  the architectures that it compiles for, such as "75,90"; default "75,90"
 *   FAKE_NVRTC_BREAK  text that is added to each program, such as #error */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fake_cuda/fake_cuda.h"
#include "fake_cuda/image.h"
#include "runtime/card/libraries.h"

#define EXPORT __attribute__((visibility("default")))
#define OUT_OF_MEMORY 1
#define INVALID_INPUT 3
#define INVALID_PROGRAM 4
#define INVALID_OPTION 5

#define PROTOTYPE(name, result, parameters) EXPORT result name parameters;
HR__NVRTC_CALLS(PROTOTYPE)

struct _nvrtcProgram {
	char *text, name[64], *log;
	bool ptx;
	fake_image *image;
	size_t bytes;
};

static int counted(const char *name)
{
	CUresult result;
	return fake_cuda_count(name, &result) ? 0 : result == HR__CUDA_ERROR_OUT_OF_MEMORY ? OUT_OF_MEMORY : 11;
}

#define COUNT(name)                   \
	do {                              \
		int result_ = counted(#name); \
		if (result_) return result_;  \
	} while (0)

static int archs(int *out)
{
	const char *at = getenv("FAKE_NVRTC_ARCHS");
	int count = 0;
	for (at = at ? at : "75,90"; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
		if (out) out[count] = atoi(at);
		count++;
	}
	return count;
}

/* What is compiled depends on the shim too: its contents are a part of the version, which is part of the key of Headroom's cache. */
int nvrtcVersion(int *major, int *minor)
{
	COUNT(nvrtcVersion);
	FILE *file = fopen(FAKE_NVRTC_SHIM, "r");
	unsigned hash = 1;
	for (int c; file && (c = fgetc(file)) != EOF;) hash = hash * 31 + (unsigned)c;
	if (file) fclose(file);
	*major = 13;
	*minor = (int)(hash % 1000000);
	return 0;
}

const char *nvrtcGetErrorString(int result)
{
	switch (result) {
	case 0: return "NVRTC_SUCCESS";
	case OUT_OF_MEMORY: return "NVRTC_ERROR_OUT_OF_MEMORY";
	case INVALID_OPTION: return "NVRTC_ERROR_INVALID_OPTION";
	case 6: return "NVRTC_ERROR_COMPILATION";
	default: return "NVRTC_ERROR_INTERNAL_ERROR";
	}
}

int nvrtcGetNumSupportedArchs(int *out)
{
	COUNT(nvrtcGetNumSupportedArchs);
	*out = archs(NULL);
	return 0;
}

int nvrtcGetSupportedArchs(int *out)
{
	COUNT(nvrtcGetSupportedArchs);
	archs(out);
	return 0;
}

int nvrtcCreateProgram(nvrtcProgram *out, const char *text, const char *name, int headers, const char *const *header_texts, const char *const *header_names)
{
	COUNT(nvrtcCreateProgram);
	if (!out || !text || headers || header_texts || header_names) return INVALID_INPUT;
	nvrtcProgram made = calloc(1, sizeof *made);
	if (!made) return OUT_OF_MEMORY;
	made->text = strdup(text);
	snprintf(made->name, sizeof made->name, "%s", name ? name : "default_program");
	*out = made;
	return 0;
}

int nvrtcDestroyProgram(nvrtcProgram *program)
{
	if (!program || !*program) return INVALID_PROGRAM;
	free((*program)->text);
	free((*program)->log);
	free((*program)->image);
	free(*program);
	*program = NULL;
	return 0;
}

static char *contents(const char *path, size_t *bytes)
{
	FILE *file = fopen(path, "rb");
	if (!file) return NULL;
	fseek(file, 0, SEEK_END);
	*bytes = (size_t)ftell(file);
	rewind(file);
	char *block = malloc(*bytes + 1);
	if (block) block[fread(block, 1, *bytes, file)] = 0;
	fclose(file);
	return block;
}

/* Architecture and macro are the options that are understood. */
static bool read_options(nvrtcProgram program, int count, const char *const *options, char *macro, size_t capacity)
{
	*macro = 0;
	for (int i = 0; i < count; i++) {
		int arch = 0, list[64] = { 0 }, known = 0;
		if (!strncmp(options[i], "-D", 2)) {
			snprintf(macro, capacity, "%s", options[i]);
		} else if (sscanf(options[i], "--gpu-architecture=sm_%d", &arch) == 1 || sscanf(options[i], "--gpu-architecture=compute_%d", &arch) == 1) {
			program->ptx = strstr(options[i], "compute_") != NULL;
			for (int k = 0, all = archs(list); k < all; k++) known |= list[k] == arch;
			if (!known) return false;
		} else if (strcmp(options[i], "--std=c++17") && strcmp(options[i], "--fmad=false")) {
			return false;
		}
	}
	return true;
}

static int run_compiler(nvrtcProgram program, const char *folder, const char *macro)
{
	char source[300], object[300], log[300], command[2000];
	size_t bytes;
	const char *compiler = getenv("CXX"), *extra = getenv("FAKE_NVRTC_BREAK");
	snprintf(source, sizeof source, "%s/program.cpp", folder);
	snprintf(object, sizeof object, "%s/program.so", folder);
	snprintf(log, sizeof log, "%s/log", folder);
	FILE *file = fopen(source, "w");
	if (!file) return INVALID_INPUT;
	fprintf(file, "#include \"%s\"\n#define __CUDACC_RTC__ 1\n#line 1 \"%s\"\n%s\n%s\n", FAKE_NVRTC_SHIM, program->name, program->text, extra ? extra : "");
	fclose(file);
	snprintf(command, sizeof command, "%s -std=c++17 -O1 -ffp-contract=off -fPIC -fvisibility=hidden -shared -w %s -o %s %s >%s 2>&1 </dev/null", compiler ? compiler : "c++", macro,
	         object, source, log);
	int status = system(command);
	program->log = contents(log, &bytes);
	if (status != 0) return HR__NVRTC_ERROR_COMPILATION;
	char *library = contents(object, &bytes);
	if (!library) return 11;
	program->bytes = sizeof(fake_image) + bytes;
	program->image = malloc(program->bytes);
	*program->image = (fake_image){ FAKE_IMAGE_MAGIC, bytes };
	memcpy(program->image + 1, library, bytes);
	free(library);
	return 0;
}

int nvrtcCompileProgram(nvrtcProgram program, int count, const char *const *options)
{
	COUNT(nvrtcCompileProgram);
	char folder[] = "/tmp/fake-nvrtc-XXXXXX", macro[100], command[100];
	if (!read_options(program, count, options, macro, sizeof macro)) return INVALID_OPTION;
	if (!mkdtemp(folder)) return INVALID_INPUT;
	int result = run_compiler(program, folder, macro);
	snprintf(command, sizeof command, "rm -rf %s", folder);
	if (system(command) != 0) return INVALID_INPUT;
	return result;
}

static int get_size(nvrtcProgram program, bool ptx, size_t *out)
{
	*out = program->image && program->ptx == ptx ? program->bytes : 0;
	return 0;
}

static int get_image(nvrtcProgram program, bool ptx, char *out)
{
	if (!program->image || program->ptx != ptx) return INVALID_PROGRAM;
	memcpy(out, program->image, program->bytes);
	return 0;
}

int nvrtcGetCUBINSize(nvrtcProgram program, size_t *out)
{
	COUNT(nvrtcGetCUBINSize);
	return get_size(program, false, out);
}

int nvrtcGetCUBIN(nvrtcProgram program, char *out)
{
	COUNT(nvrtcGetCUBIN);
	return get_image(program, false, out);
}

int nvrtcGetPTXSize(nvrtcProgram program, size_t *out)
{
	COUNT(nvrtcGetPTXSize);
	return get_size(program, true, out);
}

int nvrtcGetPTX(nvrtcProgram program, char *out)
{
	COUNT(nvrtcGetPTX);
	return get_image(program, true, out);
}

int nvrtcGetProgramLogSize(nvrtcProgram program, size_t *out)
{
	COUNT(nvrtcGetProgramLogSize);
	*out = program->log ? strlen(program->log) + 1 : 1;
	return 0;
}

int nvrtcGetProgramLog(nvrtcProgram program, char *out)
{
	COUNT(nvrtcGetProgramLog);
	strcpy(out, program->log ? program->log : "");
	return 0;
}
