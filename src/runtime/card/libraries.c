/* libraries.c - see libraries.h. */
#include "runtime/card/libraries.h"

#include <stdio.h>
#include <string.h>

#include "core/os/library.h"
#include "core/os/os.h"

#define PATH_CAPACITY 1024

/* Names of a library, the newest version first. */
#define NAMES 3
struct wanted {
	const char *names[NAMES];
	const char *text;
};

/* In a folder: itself, and where pip's packages have the libraries if the folder is "nvidia". */
static const char *const inside[] = { "", "cu13/lib/", "cuda_nvrtc/lib/", "cublas/lib/", "cudnn/lib/" };
static const char *const usual[] = { "/usr/local/cuda/lib64", "/usr/local/cuda/targets/x86_64-linux/lib", "/usr/local/cuda/targets/sbsa-linux/lib",
	                                 "/opt/cuda/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu" };

static hr__library *open_in(const char *folder, size_t length, const struct wanted *wanted)
{
	char path[PATH_CAPACITY], why[200];
	for (size_t i = 0; i < sizeof inside / sizeof *inside; i++) {
		for (size_t k = 0; k < NAMES && wanted->names[k]; k++) {
			int file, written = snprintf(path, sizeof path, "%.*s/%s%s", (int)length, folder, inside[i], wanted->names[k]);
			uint64_t size;
			if (written < 0 || (size_t)written >= sizeof path || hr__os()->file_open(path, &file, &size)) continue;
			hr__os()->file_close(file);
			hr__library *library = hr__library_open(path, why, sizeof why);
			if (library) return library;
		}
	}
	return NULL;
}

static hr__library *open_named(const struct wanted *wanted)
{
	const char *at = hr__os()->environment("HEADROOM_CUDA_LIBRARIES");
	while (at && *at) {
		size_t length = strcspn(at, ":");
		hr__library *library = length ? open_in(at, length, wanted) : NULL;
		if (library) return library;
		at += length + (at[length] == ':');
	}
	return NULL;
}

/* By name alone the loader finds a library that is loaded, or is in its path. */
static hr__library *open_any(const struct wanted *wanted, char *why, size_t capacity)
{
	const char *named = hr__os()->environment("HEADROOM_CUDA_LIBRARIES");
	if (named && !strcmp(named, "0")) {
		snprintf(why, capacity, "%s is not used, because HEADROOM_CUDA_LIBRARIES is 0", wanted->text);
		return NULL;
	}
	hr__library *library = open_named(wanted);
	for (size_t k = 0; k < NAMES && wanted->names[k] && !library; k++) library = hr__library_open(wanted->names[k], why, capacity);
	for (size_t i = 0; i < sizeof usual / sizeof *usual && !library; i++) library = open_in(usual[i], strlen(usual[i]), wanted);
	if (!library) snprintf(why, capacity, "%s (%s) was not found; name its folder in HEADROOM_CUDA_LIBRARIES", wanted->text, wanted->names[0]);
	return library;
}

/* Looks up one function; false if it is missing. */
static bool resolve(hr__library *library, const char *name, void *to, const struct wanted *wanted, char *why, size_t capacity)
{
	void *symbol = hr__library_symbol(library, name);
	if (!symbol) snprintf(why, capacity, "%s is too old: it has no %s", wanted->text, name);
	memcpy(to, &symbol, sizeof symbol);
	return symbol != NULL;
}

#define RESOLVE(name, result, parameters) \
	if (!resolve(library, #name, &calls.name, &wanted, why, capacity)) return NULL;

const hr__nvrtc_calls *hr__nvrtc_find(char *why, size_t capacity)
{
	static const struct wanted wanted = { { "libnvrtc.so.13", "libnvrtc.so.12" }, "NVRTC" };
	static hr__nvrtc_calls calls;
	hr__library *library = open_any(&wanted, why, capacity);
	if (!library) return NULL;
	HR__NVRTC_CALLS(RESOLVE)
	return &calls;
}

const hr__cublaslt_calls *hr__cublaslt_find(char *why, size_t capacity)
{
	static const struct wanted wanted = { { "libcublasLt.so.13", "libcublasLt.so.12" }, "cuBLASLt" };
	static hr__cublaslt_calls calls;
	hr__library *library = open_any(&wanted, why, capacity);
	if (!library) return NULL;
	HR__CUBLASLT_CALLS(RESOLVE)
	return &calls;
}
