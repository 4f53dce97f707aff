/* names.c - see names.h. */
#define _GNU_SOURCE
#include "names.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/os/python.h"
#include "headroom_oom.h"
#include "settings.h"
#include "thread.h"

#define NAME_BYTES 512
#define FRAMES_MAX 32

static const char *file_of(const char *path)
{
	const char *slash = strrchr(path, '/');
	return slash ? slash + 1 : path;
}

/* ---- Python ---- */

/* "train.py:12". */
static bool describe_line(void *context, const hr__python_frame *frame)
{
	snprintf(context, NAME_BYTES, "%s:%u", file_of(frame->file), frame->line);
	return false;
}

static bool python_line(char out[NAME_BYTES])
{
	out[0] = '\0';
	hr__python_walk(false, describe_line, out);
	return out[0] != '\0';
}

/* ---- callers ---- */

/* Libraries between the program and the driver. */
static bool is_between(const char *file)
{
	static const char *const names[] = { "libheadroom", "libcudart", "libcuda.so" };
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (strncmp(file, names[i], strlen(names[i])) == 0) return true;
	return false;
}

/* "make_weights (libmodel.so)", or "libmodel.so" for a function without a public symbol. */
static bool caller(char out[NAME_BYTES])
{
	void *frames[FRAMES_MAX];
	int count = backtrace(frames, FRAMES_MAX);
	for (int i = 0; i < count; i++) {
		Dl_info info;
		if (!dladdr((char *)frames[i] - 1, &info) || !info.dli_fname || is_between(file_of(info.dli_fname))) continue;
		const char *file = file_of(info.dli_fname);
		if (info.dli_sname) snprintf(out, NAME_BYTES, "%s (%s)", info.dli_sname, file);
		else snprintf(out, NAME_BYTES, "%s", file);
		return true;
	}
	return false;
}

/* ---- threads ---- */

static hr_name read_thread_name(void)
{
	char name[16 + 1] = "", scope[NAME_BYTES];
	if (getpid() == (pid_t)syscall(SYS_gettid)) return HR_NAME_NONE; /* the first thread is named after the program */
	if (prctl(PR_GET_NAME, name) != 0 || !name[0]) return HR_NAME_NONE;
	snprintf(scope, sizeof scope, "thread %s", name);
	return hr_name_intern(scope);
}

void hr__names_read_thread(void)
{
	hr__this_thread.name = read_thread_name();
}

hr_name hr__names_line(void)
{
	char name[NAME_BYTES];
	return python_line(name) ? hr_name_intern(name) : HR_NAME_NONE;
}

hr_name hr__names_scope(void)
{
	char name[NAME_BYTES];
	if (hr_name_scope_current() != HR_NAME_NONE) return HR_NAME_NONE;
	if (python_line(name) || (hr__settings_now.callers && caller(name))) return hr_name_intern(name);
	return hr__names_thread();
}
