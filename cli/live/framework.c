/* framework.c - see framework.h.
 *
 * Frameworks have allocators of their own, which request large blocks from CUDA and keep them. Such a block says nothing about the arrays in it. Each has a
 * documented setting with which every array is requested from CUDA. It costs time; --manage makes up for it. */
#include "live/framework.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "analysis/import/quote.h"
#include "command.h"
#include "core/os/os.h"

#define SETTINGS_MAX 2
#define SCRIPT_BYTES 65536u

typedef struct framework_preset {
	const char *name;
	struct {
		const char *variable, *value;
	} settings[SETTINGS_MAX];
} framework_preset;

static const framework_preset presets[] = {
	{ "torch", { { "PYTORCH_NO_CUDA_MEMORY_CACHING", "1" } } },
	{ "jax", { { "XLA_PYTHON_CLIENT_ALLOCATOR", "platform" }, { "XLA_PYTHON_CLIENT_PREALLOCATE", "false" } } },
	{ "tensorflow", { { "TF_GPU_ALLOCATOR", "cuda_malloc_async" }, { "TF_FORCE_GPU_ALLOW_GROWTH", "true" } } },
	{ "cupy", { { NULL, NULL } } }, /* it has no variable for that; see no_variable */
};
#define PRESETS (sizeof presets / sizeof *presets)

/* JAX's "platform" maps physical memory itself, which --manage cannot serve; what it requests in stream order, --manage can. */
static const framework_preset jax_managed = { "jax", { { "XLA_PYTHON_CLIENT_ALLOCATOR", "cuda_async" }, { "XLA_PYTHON_CLIENT_PREALLOCATE", "false" } } };

static const char no_variable[] = "headroom: run: --framework cupy: CuPy has no variable for it; its pool's blocks are recorded. A program turns the pool off with "
								  "cupy.cuda.set_allocator(None)\n";

static const framework_preset *named(const char *name)
{
	for (size_t i = 0; i < PRESETS; i++)
		if (strcmp(presets[i].name, name) == 0) return &presets[i];
	return NULL;
}

static bool is_letter(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (c >= '0' && c <= '9');
}

/* Whether a line of [text] imports [module]. */
static bool imports(const char *text, const char *module)
{
	size_t length = strlen(module);
	for (const char *line = text; line; line = strchr(line, '\n'), line = line ? line + 1 : NULL) {
		line += strspn(line, " \t");
		size_t skip = strncmp(line, "import ", 7) == 0 ? 7 : strncmp(line, "from ", 5) == 0 ? 5 : 0;
		if (skip && strncmp(line + skip, module, length) == 0 && !is_letter(line[skip + length])) return true;
	}
	return false;
}

static const framework_preset *imported_by(const char *path)
{
	static char text[SCRIPT_BYTES];
	FILE *file = fopen(path, "re");
	size_t length = file ? fread(text, 1, sizeof text - 1, file) : 0;
	if (file) fclose(file);
	text[length] = 0;
	for (size_t i = 0; i < PRESETS; i++)
		if (imports(text, presets[i].name)) return &presets[i];
	return NULL;
}

/* The first of the frameworks that a script among the arguments imports. */
static const framework_preset *guess(char **program)
{
	for (char **at = program; *at; at++) {
		size_t length = strlen(*at);
		const framework_preset *found = length > 3 && strcmp(*at + length - 3, ".py") == 0 ? imported_by(*at) : NULL;
		if (found) return found;
	}
	return NULL;
}

static bool apply(const framework_preset *preset)
{
	char line[256];
	int used = snprintf(line, sizeof line, "headroom: run: --framework %s:", preset->name);
	if (!preset->settings[0].variable) {
		fputs(no_variable, stderr);
		return true;
	}
	for (size_t i = 0; i < SETTINGS_MAX && preset->settings[i].variable; i++) {
		const char *variable = preset->settings[i].variable;
		if (setenv(variable, preset->settings[i].value, 0) != 0) {
			hr__complain("run: cannot set %s: %s", variable, hr__os_error(errno));
			return false;
		}
		used += snprintf(line + used, sizeof line - (size_t)used, " %s=%.40s", variable, getenv(variable));
	}
	fprintf(stderr, "%s\n", line);
	return true;
}

bool hr__framework_set(const char *name, char **program, bool manage)
{
	char quoted[HR__QUOTE_BYTES];
	bool is_auto = strcmp(name, "auto") == 0;
	const framework_preset *preset = is_auto ? guess(program) : named(name);
	if (preset && manage && strcmp(preset->name, jax_managed.name) == 0) preset = &jax_managed;
	if (preset) return apply(preset);
	if (is_auto) fputs("headroom: run: --framework auto: no script among the arguments imports torch, jax, tensorflow or cupy; nothing is set\n", stderr);
	else hr__complain("run: --framework is auto, torch, jax, tensorflow or cupy, not %s", hr__quote(name, strlen(name), quoted));
	return is_auto;
}
