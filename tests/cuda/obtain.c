/* obtain.c - part of the test program, and of a module that it loads (see program.h). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/program.h"

typedef CUresult (*find_v1)(const char *, void **, int, unsigned long long);
typedef CUresult (*find_v2)(const char *, void **, int, unsigned long long, int *);

static struct {
	void *driver, *handle; /* handle: what dlsym is called with */
	bool by_symbol;
	unsigned long long flags;
	int version; /* 0 = that of the signature */
	find_v1 v1;
	find_v2 v2;
} how;

static void *by_address(const char *name, int since)
{
	void *found = NULL;
	int version = how.version > since ? how.version : since, why;
	CUresult result = how.v1 ? how.v1(name, &found, version, how.flags) : how.v2(name, &found, version, how.flags, &why);
	return result == HR__CUDA_SUCCESS ? found : NULL;
}

static bool obtain(const char *symbol, const char *name, int since, void *member)
{
	void *found = how.by_symbol ? dlsym(how.handle, symbol) : by_address(name, since);
	memcpy(member, &found, sizeof found);
	if (found) return true;
	fprintf(stderr, "program: %s not found\n", symbol);
	const char *lacks = getenv("PROGRAM_LACKS"); /* a name, or "all" */
	return lacks && (strcmp(lacks, "all") == 0 || strcmp(lacks, name) == 0);
}

/* "cuStreamDestroy" for "cuStreamDestroy_v2". */
static const char *plain_name(const char *symbol)
{
	static char name[64];
	snprintf(name, sizeof name, "%s", symbol);
	char *version = strstr(name, "_v2");
	if (version) *version = 0;
	return name;
}

static bool choose(const char *way)
{
	void *found;
	bool global = strcmp(way, "default") == 0 || strcmp(way, "next") == 0;
	how.driver = dlopen("libcuda.so.1", RTLD_NOW | (global ? RTLD_GLOBAL : RTLD_LOCAL));
	if (!how.driver) {
		fprintf(stderr, "program: %s\n", dlerror());
		return false;
	}
	how.handle = strcmp(way, "default") == 0 ? RTLD_DEFAULT : strcmp(way, "next") == 0 ? RTLD_NEXT : how.driver;
	how.by_symbol = global || strcmp(way, "dlsym") == 0;
	how.flags = strcmp(way, "ptsz") == 0 ? HR__CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM : 0;
	if (strncmp(way, "proc:", 5) == 0) how.version = atoi(way + 5);
	bool v1 = strcmp(way, "proc_v1") == 0;
	bool variant = strcmp(way, "proc_ptsz") == 0;
	found = dlsym(how.driver, v1 ? "cuGetProcAddress" : variant ? "cuGetProcAddress_v2_ptsz" : "cuGetProcAddress_v2");
	if (!found) return false;
	if (v1) memcpy(&how.v1, &found, sizeof found);
	else memcpy(&how.v2, &found, sizeof found);
	if (strcmp(way, "proc_proc") != 0) return true;
	found = by_address("cuGetProcAddress", 12000);
	if (found) memcpy(&how.v2, &found, sizeof found);
	return found != NULL;
}

bool program_obtain(const char *way, program_calls *out)
{
	bool whole = choose(way);
#define OBTAIN(symbol, name, since, parameters) whole = whole && obtain(#symbol, #name, since, &out->symbol);
#define OBTAIN_OTHER(symbol, parameters) whole = whole && obtain(#symbol, plain_name(#symbol), 11000, &out->other_##symbol);
	HR__ANSWERED_PLAIN(OBTAIN)
	HR__ANSWERED_STREAM(OBTAIN)
	PROGRAM_CALLS(OBTAIN_OTHER)
	if (!whole) return false;
	how.by_symbol = true;
	how.handle = how.driver;
	return obtain("fake_cuda_get_live", "", 0, &out->get_live) && obtain("fake_cuda_fail_nth", "", 0, &out->fail_nth) &&
	       obtain("fake_cuda_calls", "", 0, &out->count_calls) && obtain("fake_cuda_failed", "", 0, &out->failed) &&
	       obtain("fake_cuda_make_kernel", "", 0, &out->make_kernel);
}

/* For hostile.c, which has a function of the same name: which of the two a library that is opened with RTLD_DEEPBIND calls. */
int program_which(void)
{
	return 2;
}

int program_ask_which(void)
{
	return program_which();
}
