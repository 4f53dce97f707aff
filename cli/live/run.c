/* run.c - `headroom run`: executes a program with environment variables that make Headroom in it record, be visible to `headroom top`,
 * keep a limit and evict tensors. In Python programs a start-up hook makes Headroom the allocator of PyTorch (python_hook.c).
 *
 * The program replaces this process (exec), so signals, the terminal and the exit status need no forwarding. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "command.h"
#include "core/base/text/text.h"
#include "core/os/os.h"
#include "core/record/compress.h"
#include "core/record/profiler.h"
#include "analysis/import/quote.h"
#include "live/cuda_library.h"
#include "live/framework.h"
#include "live/lms_notice.h"
#include "live/python_hook.h"

#define EXIT_NOT_RUN 126 /* as in shells: found, but cannot be executed */
#define EXIT_NOT_FOUND 127

enum { LIMIT, LMS, DEVICE, OBSERVE, MANAGE, FRAMEWORK, USES, CALLERS, NO_CHILDREN, TRACE, STEPS, COMPRESS, MAX_BYTES, STACKS, TENSORBOARD };

static const hr__option options[] = {
	[LIMIT] = { "--limit", "SIZE", "the most memory that Headroom, and any program that uses CUDA, takes from each device, such as 26GB" },
	[LMS] = { "--lms", NULL,
	          "Large Model Support: evict tensors to the host when the limit is reached. Settings in HEADROOM_LMS, such as spill_dir, are kept" },
	[DEVICE] = { "--device", "KIND",
	             "whose tensors of PyTorch Headroom allocates: cuda; cpu, on an emulated device; none, to leave PyTorch alone. Default: cuda, if "
	             "PyTorch finds a CUDA device" },
	[OBSERVE] = { "--observe", NULL, "leave all memory where it comes from, also that of PyTorch, and record what the program has from the CUDA driver" },
	[MANAGE] = { "--manage", NULL, "give programs that use CUDA without Headroom their memory from Headroom's allocator instead of the CUDA driver's" },
	[FRAMEWORK] = { "--framework", "NAME",
	                "set the variables with which torch, jax, tensorflow or cupy requests each array from CUDA instead of large blocks, and print them; auto "
	                "chooses by the program's name and arguments" },
	[USES] = { "--uses", NULL, "record each launch of a kernel with its time and the blocks that its arguments point to, for 'headroom plan'; needs --trace" },
	[CALLERS] = { "--callers", NULL, "record the function that called CUDA as the scope of a block, where no other name is known" },
	[NO_CHILDREN] = { "--no-children", NULL, "leave programs that PROGRAM starts alone" },
	[TRACE] = { "--trace", "FILE",
	            "record every event of Headroom in the program to FILE, which must not exist. %p in it is the number of the process, %r its rank in a job of "
	            "torchrun, mpirun or srun, %n the first number for which there is no file, %% a percent sign. Without %p and %r, each rank has the file FILE-rankN" },
	[STEPS] = { "--steps", "LIST", "record only these steps, such as 1,10,100-103: each step, or range of steps, in a file of its own, FILE-stepN" },
	[COMPRESS] = { "--compress", NULL, "pack the file with zstd when the recording ends, to FILE.zst" },
	[MAX_BYTES] = { "--max-bytes", "SIZE", "end the recording when the file has that size, such as 512MiB; the program continues" },
	[STACKS] = { "--stacks", "DEPTH", "record the call stack of each allocation, with up to DEPTH frames, 1 to 128" },
	[TENSORBOARD] = { "--tensorboard", "DIR", "when the recording ends, write it for TensorBoard and XProf too, into the log directory DIR" },
	{ NULL, NULL, NULL },
};

static bool set(const char *name, const char *value)
{
	if (setenv(name, value, 1) == 0) return true;
	hr__complain("run: cannot set %s: %s", name, hr__os_error(errno));
	return false;
}

/* Makes [path] absolute, because the program may change its directory before it starts recording. In a pattern, percent signs of
 * the current directory's name are doubled; those of [path] keep their meaning. */
static bool make_absolute(const char *path, bool is_pattern, char out[PATH_MAX])
{
	char here[PATH_MAX] = "";
	if (path[0] != '/' && !getcwd(here, sizeof here)) {
		hr__complain("run: the current directory: %s", hr__os_error(errno));
		return false;
	}
	size_t used = 0;
	for (const char *at = here; *at && used + 3 < PATH_MAX; at++) {
		out[used++] = *at;
		if (*at == '%' && is_pattern) out[used++] = '%';
	}
	int length = snprintf(out + used, PATH_MAX - used, "%s%s", path[0] == '/' ? "" : "/", path);
	if (length >= 0 && used + (size_t)length < PATH_MAX) return true;
	hr__complain("run: the path %.100s... is too long", path);
	return false;
}

/* Checks that the trace file can be created. Without this check, the only sign of a wrong path is a message on the program's
 * standard error, perhaps hours before the program ends. */
static bool check_place(const char *pattern)
{
	char path[PATH_MAX + 2], quoted[HR__QUOTE_BYTES];
	if (hr__profiler_file_name(pattern, path, PATH_MAX)) {
		hr__complain("run: --trace: %s", hr_last_message());
		return false;
	}
	char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
	if (!name[0]) {
		hr__complain("run: --trace needs the name of a file; %s is that of a directory", hr__quote(path, strlen(path), quoted));
		return false;
	}
	strcpy(name, "."); /* fails with ENOTDIR if the rest is not a directory */
	if (access(path, W_OK | X_OK) == 0) return true;
	int error = errno;
	if (slash > path) *slash = 0;
	hr__complain("run: --trace: cannot make a file in %s: %s", hr__quote(path, strlen(path), quoted), hr__os_error(error));
	return false;
}

/* Whether the file of [pattern] exists, unless %n selects another name; a message was printed. */
static bool is_taken(const char *pattern)
{
	char path[PATH_MAX], quoted[HR__QUOTE_BYTES];
	if (strstr(pattern, "%n") || hr__profiler_file_name(pattern, path, sizeof path) || access(path, F_OK)) return false;
	hr__complain("run: %s exists already; recordings do not overwrite files", hr__quote(path, strlen(path), quoted));
	return true;
}

static bool check_trace(const hr__arguments *arguments)
{
	const char *path = arguments->values[TRACE], *steps = arguments->values[STEPS];
	hr_profiler_options parsed;
	hr_profiler_options_init(&parsed);
	static const int needs_trace[] = { USES, STEPS, COMPRESS, MAX_BYTES, STACKS, TENSORBOARD };
	for (size_t i = 0; i < sizeof needs_trace / sizeof *needs_trace && !path; i++) {
		if (!hr__arguments_has(arguments, needs_trace[i])) continue;
		hr__complain("run: %s is for a recording; name its file with --trace FILE", options[needs_trace[i]].name);
		return false;
	}
	if (hr__arguments_has(arguments, TENSORBOARD) && !arguments->values[TENSORBOARD][0]) {
		hr__complain("run: --tensorboard needs the name of a directory");
	} else if (path && !path[0]) {
		hr__complain("run: --trace needs the name of a file");
	} else if (path && !steps && is_taken(path)) {
		return false;
	} else if (steps && hr__profiler_parse_steps(steps, &parsed)) {
		hr__complain("run: --steps: %s", hr_last_message());
	} else if (hr__arguments_has(arguments, MAX_BYTES) && hr__profiler_parse_max_bytes(arguments->values[MAX_BYTES], &parsed)) {
		hr__complain("run: --max-bytes: %s", hr_last_message());
	} else if (hr__arguments_has(arguments, STACKS) && hr__profiler_parse_stack_depth(arguments->values[STACKS], &parsed)) {
		hr__complain("run: --stacks: %s", hr_last_message());
	} else if (hr__arguments_has(arguments, COMPRESS) && hr__pack_available()) {
		hr__complain("run: --compress: %s", hr_last_message());
	} else {
		return !path || check_place(path);
	}
	return false;
}

static bool check_settings(const hr__arguments *arguments)
{
	static const char *const kinds[] = { "cuda", "cpu", "none", NULL };
	const char *device = arguments->values[DEVICE];
	char quoted[HR__QUOTE_BYTES];
	uint64_t limit = 1;
	if (!hr__arguments_size(arguments, LIMIT, &limit)) return false;
	if (limit == 0) {
		hr__complain("run: --limit is 0; leave it out for no limit");
		return false;
	}
	if (hr__arguments_has(arguments, OBSERVE) && (hr__arguments_has(arguments, MANAGE) || device)) {
		hr__complain("run: --observe leaves all memory where it comes from, and cannot be combined with --manage or --device");
		return false;
	}
	for (size_t i = 0; device && kinds[i]; i++)
		if (strcmp(device, kinds[i]) == 0) return true;
	if (device) hr__complain("run: --device is cuda, cpu or none, not %s", hr__quote(device, strlen(device), quoted));
	return !device;
}

/* HEADROOM_LIMIT in bytes, for libheadroom_cuda.so, which knows no units. A value that is not a size stays: the library reports it. */
static bool set_limit(uint64_t limit)
{
	const char *before = getenv("HEADROOM_LIMIT");
	char text[32];
	if (!limit && (!before || hr__parse_size(before, &limit) != HR_OK || !limit)) return true;
	snprintf(text, sizeof text, "%llu", (unsigned long long)limit);
	return set("HEADROOM_LIMIT", text);
}

/* What the library and the start-up hook of Python read. A program that is not Python's needs no Python package. */
static bool set_settings(const hr__arguments *arguments, bool *python)
{
	const char *lms = getenv("HEADROOM_LMS"), *device = arguments->values[DEVICE];
	uint64_t limit = 0;
	if (!hr__arguments_size(arguments, LIMIT, &limit) || !set_limit(limit)) return false;
	if (hr__arguments_has(arguments, LMS) && (!lms || !lms[0] || strcmp(lms, "0") == 0) && !set("HEADROOM_LMS", "1")) return false;
	if (device && !set("HEADROOM_TORCH_DEVICE", device)) return false;
	if (hr__arguments_has(arguments, NO_CHILDREN) && !set("HEADROOM_RUN_CHILDREN", "0")) return false;
	const char *run = getenv("HEADROOM_RUN");
	if (hr__arguments_has(arguments, MANAGE) && !(run && strcmp(run, "0") == 0) && !set("HEADROOM_RUN", "manage")) return false;
	if (hr__arguments_has(arguments, USES) && !set("HEADROOM_RUN_USES", "1")) return false;
	if (hr__arguments_has(arguments, CALLERS) && !set("HEADROOM_RUN_CALLERS", "1")) return false;
	if (arguments->values[FRAMEWORK] && !hr__framework_set(arguments->values[FRAMEWORK], arguments->rest, hr__arguments_has(arguments, MANAGE))) return false;
	if (hr__arguments_has(arguments, OBSERVE) || (device && strcmp(device, "none") == 0)) return true;
	*python = hr__python_hook_set(device != NULL);
	return *python || !device;
}

static bool set_environment(const hr__arguments *arguments)
{
	char path[PATH_MAX];
	if (arguments->values[TRACE]) {
		if (!make_absolute(arguments->values[TRACE], true, path) || !set("HEADROOM_TRACE", path)) return false;
		if (arguments->values[STEPS] && !set("HEADROOM_TRACE_STEPS", arguments->values[STEPS])) return false;
		if (hr__arguments_has(arguments, COMPRESS) && !set("HEADROOM_TRACE_COMPRESS", "1")) return false;
		if (hr__arguments_has(arguments, MAX_BYTES) && !set("HEADROOM_TRACE_MAX_BYTES", arguments->values[MAX_BYTES])) return false;
		if (hr__arguments_has(arguments, STACKS) && !set("HEADROOM_STACKS", arguments->values[STACKS])) return false;
		if (hr__arguments_has(arguments, TENSORBOARD) &&
		    (!make_absolute(arguments->values[TENSORBOARD], false, path) || !set("HEADROOM_TENSORBOARD", path)))
			return false;
	}
	return getenv("HEADROOM_TOP") || set("HEADROOM_TOP", "1");
}

static int run(const hr__arguments *arguments)
{
	char quoted[HR__QUOTE_BYTES];
	const char *name = arguments->rest[0];
	bool python = false;
	if (!check_trace(arguments) || !check_settings(arguments) || !set_environment(arguments) || !set_settings(arguments, &python)) return HR__EXIT_BAD;
	static const int for_cuda[] = { OBSERVE, MANAGE, USES, CALLERS };
	bool required = false;
	for (size_t i = 0; i < sizeof for_cuda / sizeof *for_cuda; i++) required = required || hr__arguments_has(arguments, for_cuda[i]);
	if (!hr__cuda_library_preload(name, required)) return HR__EXIT_BAD;
	fflush(NULL);
	bool watched = hr__arguments_has(arguments, LMS) && hr__lms_notice_start(python);
	execvp(name, arguments->rest);
	int error = errno;
	if (watched) hr__lms_notice_cancel();
	hr__complain("run: cannot run %s: %s", hr__quote(name, strlen(name), quoted), hr__os_error(error));
	return error == ENOENT || error == ENOTDIR ? EXIT_NOT_FOUND : EXIT_NOT_RUN;
}

const hr__command hr__command_run = {
	.name = "run",
	.operands = "PROGRAM [ARGUMENT]...",
	.summary = "runs an unmodified program that uses Headroom, PyTorch or CUDA: recorded, with a limit, or watched by 'headroom top'",
	.about =
		"Starts PROGRAM with its arguments. With --trace, everything that Headroom does in it is recorded, from its first "
		"allocator to the end of the process or its hr_shutdown. After a crash or kill -9 the file holds everything recorded "
		"until then. A program that makes no allocator leaves no file. 'headroom top' shows the program, recorded or not.\n\n"
		"In a Python program, Headroom becomes the allocator of PyTorch when 'torch' is imported, as by headroom.torch.install() "
		"with these settings. The program does not change. The tensors are those of CUDA if PyTorch finds a CUDA device; those "
		"of the CPU only with --device cpu. If the plug-in cannot be installed, one line on standard error says why, and the "
		"program runs with PyTorch's own allocator. Python programs that PROGRAM starts are treated in the same way, unless "
		"--no-children is given. The start-up hook is a folder in front of PYTHONPATH; it does nothing before torch is imported. The "
		"Python package of Headroom is that of the Python that runs the program, or the one that was installed with this command.\n\n"
		"A program that uses CUDA without Headroom, in any language, is recorded too: libheadroom_cuda.so is preloaded into it and sees what it has from the "
		"CUDA driver, which gives the same memory as before. With --limit the program sees a card of that size, and a request past it gets CUDA's "
		"out-of-memory error; a report on standard error, or where HEADROOM_OOM_REPORT says, names the holders. HEADROOM_RUN=0 switches this off. A program that "
		"cannot have a library preloaded, such as one that is statically linked, runs without it, and a line says so.\n\n"
		"If a program with --lms neither imports PyTorch nor makes tensors of Headroom, a line on standard error says so at the "
		"end.\n\n"
		"The exit status is that of the program, or 126 or 127 when it cannot be started. A trace file that cannot be created "
		"is an error with status 2, before the program starts. A recording that fails later does not stop the program: a "
		"message on standard error says so. The same works without this command: HEADROOM_LIMIT=SIZE, HEADROOM_LMS=1, "
		"HEADROOM_TORCH_DEVICE=KIND with the package's folder headroom/_start in front of PYTHONPATH, HEADROOM_TRACE=FILE, "
		"HEADROOM_TRACE_STEPS=LIST, HEADROOM_TRACE_COMPRESS=1, HEADROOM_TRACE_MAX_BYTES=SIZE, HEADROOM_STACKS=DEPTH, "
		"HEADROOM_TENSORBOARD=DIR, HEADROOM_TOP=1; for programs that use CUDA, LD_PRELOAD=.../libheadroom_cuda.so with HEADROOM_LIMIT in bytes, "
		"HEADROOM_RUN=manage, HEADROOM_RUN_CALLERS=1, HEADROOM_RUN_USES=1.",
	.examples = "headroom run --limit 26GB --lms -- python train.py\n"
				"headroom run --limit 8GB --lms --device cpu --trace out.hrt -- python train.py\n"
				"headroom run --trace out.hrt -- ./train --batch 64\n"
				"headroom run --trace out.hrt --steps 1,10,100 --compress -- ./train\n"
				"headroom run --trace out.hrt --max-bytes 2GiB -- ./serve\n"
				"headroom run --trace out.hrt --stacks 16 -- ./train\n"
				"headroom run --trace out.hrt --tensorboard logs -- ./train\n"
				"headroom run --observe --limit 8GiB --framework jax -- python train.py\n"
				"headroom run --manage -- ./train\n"
				"headroom run --uses --trace out.hrt -- ./train\n"
				"headroom run -- ./train",
	.exits = "that of the program; 126 or 127 when it cannot be started, 2 wrong usage",
	.least_operands = 1,
	.most_operands = 1,
	.takes_program = true,
	.options = options,
	.run = run,
};
