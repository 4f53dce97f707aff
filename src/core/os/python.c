/* python.c - see python.h. */
#include "core/os/python.h"

#include <dlfcn.h>
#include <string.h>

#include "core/base/atomic.h"
#include "core/os/library.h"

#define ATTEMPTS_SKIPPED 256u /* a search that finds nothing looks at every library */

typedef struct python_calls {
	int (*PyGILState_Check)(void);
	int (*Py_IsInitialized)(void);
	void *(*PyGILState_GetThisThreadState)(void);
	int (*PyGILState_Ensure)(void);
	void (*PyGILState_Release)(int);
	void *(*PyEval_GetFrame)(void); /* borrowed */
	void *(*PyFrame_GetBack)(void *frame); /* new; NULL: none */
	int (*PyFrame_GetLineNumber)(void *frame);
	void *(*PyFrame_GetCode)(void *frame); /* new */
	void *(*PyObject_GetAttrString)(void *object, const char *name); /* new */
	const char *(*PyUnicode_AsUTF8)(void *text);
	void *(*PyErr_Occurred)(void); /* borrowed */
	void (*PyErr_Clear)(void);
	void (*Py_IncRef)(void *object);
	void (*Py_DecRef)(void *object);
	int (*is_finalizing)(void); /* NULL: not known */
} python_calls;

static HR__HOT_DATA python_calls python;
static HR__HOT_DATA int has_python; /* stored with release when [python] is complete */
static HR__HOT_DATA uint32_t attempts;

static bool find(const char *name, void *member)
{
	void *found = hr__library_symbol(RTLD_DEFAULT, name);
	memcpy(member, &found, sizeof found);
	return found != NULL;
}

/* Threads that arrive together store the same values. */
static __attribute__((cold, noinline)) bool search_python(void)
{
	python_calls found = { 0 };
#define FIND(name) find(#name, &found.name)
	bool complete = FIND(Py_IsInitialized) && FIND(PyGILState_Check) && FIND(PyGILState_GetThisThreadState) && FIND(PyGILState_Ensure) &&
	                FIND(PyGILState_Release) && FIND(PyEval_GetFrame) && FIND(PyFrame_GetBack) && FIND(PyFrame_GetLineNumber) &&
	                FIND(PyFrame_GetCode) && FIND(PyObject_GetAttrString) && FIND(PyUnicode_AsUTF8) && FIND(PyErr_Occurred) &&
	                FIND(PyErr_Clear) && FIND(Py_IncRef) && FIND(Py_DecRef);
#undef FIND
	if (complete && !find("Py_IsFinalizing", &found.is_finalizing)) find("_Py_IsFinalizing", &found.is_finalizing); /* before 3.13 */
	if (!complete || !found.is_finalizing) dlerror(); /* the program's next dlerror() is about its own calls */
	if (!complete) return false;
	python = found;
	__atomic_store_n(&has_python, 1, __ATOMIC_RELEASE);
	return true;
}

static inline bool find_python(void)
{
	if (__atomic_load_n(&has_python, __ATOMIC_ACQUIRE)) return true;
	return __atomic_fetch_add(&attempts, 1, __ATOMIC_RELAXED) % ATTEMPTS_SKIPPED == 0 && search_python();
}

/* A text attribute, valid while *object, a new reference, is held. No error is pending before, so one that the calls set is theirs. */
static const char *text_of(void *code, const char *name, void **object)
{
	*object = python.PyObject_GetAttrString(code, name);
	const char *text = *object ? python.PyUnicode_AsUTF8(*object) : NULL;
	if (!text) python.PyErr_Clear();
	return text;
}

static bool visit_frame(void *frame, bool (*visit)(void *, const hr__python_frame *), void *context)
{
	static int is_qualified = 1; /* whether code has co_qualname, which is newer than co_name */
	void *code = python.PyFrame_GetCode(frame), *function = NULL, *file = NULL;
	hr__python_frame found = { 0 };
	int line = python.PyFrame_GetLineNumber(frame);
	found.line = line > 0 ? (uint32_t)line : 0;
	if (__atomic_load_n(&is_qualified, __ATOMIC_RELAXED) && !(found.function = text_of(code, "co_qualname", &function)))
		__atomic_store_n(&is_qualified, 0, __ATOMIC_RELAXED);
	if (!found.function && !function) found.function = text_of(code, "co_name", &function);
	found.file = text_of(code, "co_filename", &file);
	bool more = !found.function || !found.file || visit(context, &found);
	if (file) python.Py_DecRef(file);
	if (function) python.Py_DecRef(function);
	python.Py_DecRef(code);
	return more;
}

static void visit_frames(bool (*visit)(void *, const hr__python_frame *), void *context)
{
	if (python.PyErr_Occurred()) return;
	void *frame = python.PyEval_GetFrame();
	if (frame) python.Py_IncRef(frame);
	while (frame) {
		bool more = visit_frame(frame, visit, context);
		void *back = more ? python.PyFrame_GetBack(frame) : NULL;
		python.Py_DecRef(frame);
		frame = back;
	}
	if (python.PyErr_Occurred()) python.PyErr_Clear(); /* there was no memory for a frame */
}

/* PyGILState_Check alone says yes before the interpreter has started and after it has ended. A thread that takes the lock while the
 * interpreter ends is ended with it. */
void hr__python_walk(bool take_lock, bool (*visit)(void *context, const hr__python_frame *frame), void *context)
{
	if (!find_python() || !python.Py_IsInitialized() || !python.PyGILState_GetThisThreadState()) return;
	if (python.PyGILState_Check()) {
		visit_frames(visit, context);
	} else if (take_lock && python.is_finalizing && !python.is_finalizing()) {
		int before = python.PyGILState_Ensure();
		visit_frames(visit, context);
		python.PyGILState_Release(before);
	}
}

__attribute__((hot)) bool hr__python_has_lock(void)
{
	return find_python() && python.PyGILState_Check();
}

const void *hr__python_code(void)
{
	const void *code;
	if (!find_python()) return NULL;
	memcpy(&code, &python.PyEval_GetFrame, sizeof code);
	return code;
}
