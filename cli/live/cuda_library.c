/* cuda_library.c - finds libheadroom_cuda.so, which belongs to this command, and preloads it.
 *
 *     DIR                    the build folder
 *     DIR/../LIBDIR/headroom installed; LIBDIR as configured, lib or lib64
 *     PACKAGE/lib            installed with pip */
#include "live/cuda_library.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "analysis/import/quote.h"
#include "command.h"
#include "core/os/os.h"
#include "live/executable.h"
#include "live/own_folder.h"
#include "live/python_hook.h"

#ifndef HR__LIBRARY_FOLDER
#define HR__LIBRARY_FOLDER "lib"
#endif
#define FILE_NAME "libheadroom_cuda.so"

static bool is_in(const char *folder, const char *inside, char out[PATH_MAX])
{
	char path[PATH_MAX + 64];
	int length = snprintf(path, sizeof path, "%s/%s" FILE_NAME, folder, inside);
	return length > 0 && length < (int)sizeof path && access(path, R_OK) == 0 && realpath(path, out);
}

static bool find(char out[PATH_MAX])
{
	static const char *const places[] = { "", "../" HR__LIBRARY_FOLDER "/headroom/", "../lib/headroom/", "../lib64/headroom/" };
	char own[PATH_MAX], hook[PATH_MAX];
	bool known = hr__own_folder(own);
	for (size_t i = 0; known && i < sizeof places / sizeof *places; i++)
		if (is_in(own, places[i], out)) return true;
	return hr__python_hook_find(hook) && is_in(hook, "../lib/", out);
}

/* Whether [list], LD_PRELOAD, has [path]: one run in another. */
static bool has(const char *list, const char *path)
{
	size_t length = strlen(path);
	for (const char *at = list; (at = strstr(at, path)) != NULL; at += length) {
		bool begins = at == list || strchr(" :", at[-1]), ends = strchr(" :", at[length]) != NULL; /* the terminating 0 is found too */
		if (begins && ends) return true;
	}
	return false;
}

/* After the libraries that are preloaded already. */
static bool append(const char *path)
{
	const char *before = getenv("LD_PRELOAD");
	if (!before || !before[0]) return setenv("LD_PRELOAD", path, 1) == 0;
	if (has(before, path)) return true;
	size_t bytes = strlen(before) + strlen(path) + 2;
	char *list = malloc(bytes);
	if (!list) return false;
	snprintf(list, bytes, "%s:%s", before, path);
	bool done = setenv("LD_PRELOAD", list, 1) == 0;
	free(list);
	return done;
}

bool hr__cuda_library_preload(const char *program, bool required)
{
	char path[PATH_MAX], quoted[HR__QUOTE_BYTES];
	const char *run = getenv("HEADROOM_RUN");
	if (run && strcmp(run, "0") == 0) return true;
	if (!find(path) || strpbrk(path, " :")) {
		if (!required) return true;
		hr__complain("run: " FILE_NAME ", which sees the CUDA calls of a program, was not found beside this command (in a path without spaces and colons)");
		return false;
	}
	const char *obstacle = hr__executable_obstacle(program);
	if (obstacle) {
		hr__complain("run: %s %s, so its CUDA calls are not seen; it runs without that", hr__quote(program, strlen(program), quoted), obstacle);
		return true;
	}
	/* A tool that has itself injected into NVTX keeps its place. */
	if (append(path) && setenv("NVTX_INJECTION64_PATH", path, 0) == 0) return true;
	hr__complain("run: cannot set the environment: %s", hr__os_error(errno));
	return false;
}
