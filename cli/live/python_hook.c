/* python_hook.c - finds the Python package that belongs to this command, and puts its start-up hook in front of PYTHONPATH.
 *
 * The hook is headroom/_start/sitecustomize.py, which Python imports when it starts. It needs no settings but the environment. The
 * package is looked for from the command's own file:
 *
 *     HEADROOM_PYTHON_DIR              the folder that contains the package, if set
 *     DIR/../python                    the source tree, if the build folder is in it
 *     DIR/../lib/python3.x/site-packages, dist-packages      installed with pip */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "command.h"
#include "core/os/os.h"
#include "live/own_folder.h"
#include "live/python_hook.h"

#define HOOK "headroom/_start"
#define SCRIPT "sitecustomize.py"

static bool has_hook(const char *folder, char out[PATH_MAX])
{
	char script[PATH_MAX + sizeof SCRIPT + 1], found[PATH_MAX];
	int length = snprintf(found, sizeof found, "%s/" HOOK, folder);
	if (length < 0 || length >= (int)sizeof found) return false;
	snprintf(script, sizeof script, "%s/" SCRIPT, found);
	return access(script, R_OK) == 0 && realpath(found, out);
}

/* In [libraries]/python3.x/site-packages, for any x: the hook does not depend on it. */
static bool search_installed(const char *libraries, char out[PATH_MAX])
{
	static const char *const packages[] = { "site-packages", "dist-packages" };
	bool found = false;
	DIR *folder = opendir(libraries);
	for (struct dirent *entry; folder && !found && (entry = readdir(folder));) {
		if (strncmp(entry->d_name, "python3", 7) != 0) continue;
		for (size_t i = 0; i < sizeof packages / sizeof *packages && !found; i++) {
			char path[PATH_MAX];
			int length = snprintf(path, sizeof path, "%s/%s/%s", libraries, entry->d_name, packages[i]);
			found = length > 0 && length < (int)sizeof path && has_hook(path, out);
		}
	}
	if (folder) closedir(folder);
	return found;
}

static bool find_hook(const char *own, char out[PATH_MAX])
{
	char path[PATH_MAX + 32];
	const char *chosen = getenv("HEADROOM_PYTHON_DIR");
	if (chosen && chosen[0]) return has_hook(chosen, out);
	if (!own[0]) return false;
	snprintf(path, sizeof path, "%s/../python", own);
	if (has_hook(path, out)) return true;
	snprintf(path, sizeof path, "%s/../lib", own);
	return search_installed(path, out);
}

/* The package of a source tree has no library of its own: the hook uses the one beside this command. */
static bool set_library(const char *own)
{
	char path[PATH_MAX + 32];
	snprintf(path, sizeof path, "%s/libheadroom.so.0", own);
	return access(path, R_OK) != 0 || setenv("HEADROOM_RUN_LIBRARY_DIR", own, 1) == 0;
}

static bool set_path(const char *hook)
{
	const char *before = getenv("PYTHONPATH");
	size_t length = strlen(hook);
	if (!before || !before[0]) return setenv("PYTHONPATH", hook, 1) == 0;
	if (strncmp(before, hook, length) == 0 && (before[length] == 0 || before[length] == ':')) return true; /* one run in another */
	size_t bytes = length + strlen(before) + 2;
	char *path = malloc(bytes);
	if (!path) return false;
	snprintf(path, bytes, "%s:%s", hook, before);
	bool done = setenv("PYTHONPATH", path, 1) == 0;
	free(path);
	return done;
}

bool hr__python_hook_find(char out[PATH_MAX])
{
	char own[PATH_MAX];
	hr__own_folder(own);
	return find_hook(own, out);
}

bool hr__python_hook_set(bool required)
{
	char own[PATH_MAX] = "", hook[PATH_MAX];
	hr__own_folder(own);
	if (!find_hook(own, hook) || strchr(hook, ':')) {
		if (required)
			hr__complain("run: the Python package of Headroom was not found beside this command, so PyTorch cannot be given to Headroom. Install it "
			             "with 'pip install .' in the source tree of Headroom, or set HEADROOM_PYTHON_DIR to the folder that contains the package "
			             "'headroom' (a path without a colon)");
		return false;
	}
	if (set_library(own) && set_path(hook)) return true;
	if (required) hr__complain("run: cannot set the environment: %s", hr__os_error(errno));
	return false;
}
