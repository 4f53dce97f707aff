/* names.c - see names.h.
 *
 * The line of Python comes from functions that the interpreter exports, found at an allocation after it was loaded. They are called only by a thread that
 * holds its lock. */
#define _GNU_SOURCE
#include "names.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "headroom_oom.h"
#include "loader.h"
#include "settings.h"

#define NAME_BYTES 512
#define FRAMES_MAX 32

static const char *file_of(const char *path)
{
	const char *slash = strrchr(path, '/');
	return slash ? slash + 1 : path;
}

/* ---- Python ---- */

typedef struct python_calls {
	int (*Py_IsInitialized)(void);
	int (*PyGILState_Check)(void);
	void *(*PyGILState_GetThisThreadState)(void);
	void *(*PyEval_GetFrame)(void); /* borrowed */
	int (*PyFrame_GetLineNumber)(void *frame);
	void *(*PyFrame_GetCode)(void *frame); /* new */
	void *(*PyObject_GetAttrString)(void *object, const char *name); /* new */
	const char *(*PyUnicode_AsUTF8)(void *text);
	void *(*PyErr_Occurred)(void); /* borrowed */
	void (*PyErr_Clear)(void);
	void (*Py_DecRef)(void *object);
} python_calls;

static python_calls python;
static int has_python; /* stored with release when [python] is complete */
static uint32_t attempts;
#define ATTEMPTS_SKIPPED 256u /* a search that finds nothing looks at every library */

static bool find(const char *name, void *member)
{
	void *found = hr__loader_symbol(RTLD_DEFAULT, name);
	memcpy(member, &found, sizeof found);
	return found != NULL;
}

/* Threads that arrive together store the same values. */
static bool find_python(void)
{
	python_calls found;
	if (__atomic_load_n(&has_python, __ATOMIC_ACQUIRE)) return true;
	if (__atomic_fetch_add(&attempts, 1, __ATOMIC_RELAXED) % ATTEMPTS_SKIPPED) return false;
#define FIND(name) find(#name, &found.name)
	if (!FIND(Py_IsInitialized) || !FIND(PyGILState_Check) || !FIND(PyGILState_GetThisThreadState) || !FIND(PyEval_GetFrame) || !FIND(PyFrame_GetLineNumber) || !FIND(PyFrame_GetCode) || !FIND(PyObject_GetAttrString) ||
	    !FIND(PyUnicode_AsUTF8) || !FIND(PyErr_Occurred) || !FIND(PyErr_Clear) || !FIND(Py_DecRef)) {
		dlerror(); /* the program's next dlerror() is about its own calls */
		return false;
	}
	python = found;
	__atomic_store_n(&has_python, 1, __ATOMIC_RELEASE);
	return true;
}

/* "train.py:12" in [out]; false if it is not known. No error is pending before, so one that the calls set is theirs. */
static bool describe_frame(void *frame, char out[NAME_BYTES])
{
	void *code = python.PyFrame_GetCode(frame), *path = code ? python.PyObject_GetAttrString(code, "co_filename") : NULL;
	const char *text = path ? python.PyUnicode_AsUTF8(path) : NULL;
	if (text) snprintf(out, NAME_BYTES, "%s:%d", file_of(text), python.PyFrame_GetLineNumber(frame));
	else python.PyErr_Clear();
	if (path) python.Py_DecRef(path);
	if (code) python.Py_DecRef(code);
	return text != NULL;
}

/* PyGILState_Check alone says yes before the interpreter has started and after it has ended. */
static bool holds_lock(void)
{
	return python.Py_IsInitialized() && python.PyGILState_GetThisThreadState() && python.PyGILState_Check();
}

static bool python_line(char out[NAME_BYTES])
{
	if (!find_python() || !holds_lock() || python.PyErr_Occurred()) return false;
	void *frame = python.PyEval_GetFrame();
	return frame && describe_frame(frame, out);
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

/* Reading its name is a system call, which takes four times as long as the rest of a request. Programs name a thread when they start it, so the name is read
 * at its first requests, and at every few later ones. */
#define READS_FIRST 16u
#define READS_LATER 64u

static hr_name read_thread_name(void)
{
	char name[16 + 1] = "", scope[NAME_BYTES];
	if (getpid() == (pid_t)syscall(SYS_gettid)) return HR_NAME_NONE; /* the first thread is named after the program */
	if (prctl(PR_GET_NAME, name) != 0 || !name[0]) return HR_NAME_NONE;
	snprintf(scope, sizeof scope, "thread %s", name);
	return hr_name_intern(scope);
}

static hr_name thread_name(void)
{
	static __thread struct {
		uint32_t requests;
		hr_name name;
	} known;
	if (known.requests < READS_FIRST || known.requests % READS_LATER == 0) known.name = read_thread_name();
	known.requests++;
	return known.name;
}

hr_name hr__names_scope(void)
{
	char name[NAME_BYTES];
	if (hr_name_scope_current() != HR_NAME_NONE) return HR_NAME_NONE;
	if (python_line(name) || (hr__settings_get()->callers && caller(name))) return hr_name_intern(name);
	return thread_name();
}
