/* stacks.c - see stacks.h.
 *
 * A capture is a list of return addresses. Each address becomes a frame once: the cache maps it to the number of its frame, without a
 * lock. An address that is not in the cache is looked up among the symbols of its module (microseconds, with the dynamic loader's lock).
 *
 *   cache   | address << 16 | frame | 0 | ...    open addressing; 0 is empty; at most half full. Frame 0: code of Headroom itself
 *
 * In a process with a Python interpreter the calls of Python take the place of the interpreter's own frames and of all outside of them:
 *
 *   aten::empty (libtorch_cpu.so)     functions of libraries, up to the first of the interpreter
 *   Net.forward (model.py:12)         calls of Python
 *   main (model.py:40)
 *
 * If there are more than [depth], each kind keeps its innermost ones, and neither has less than half of them.
 *
 * The cache is emptied when a recording starts, because a module may have been unloaded since and another one loaded at its address.
 * Address and frame are one atomic word, so a thread that is still capturing then reads a right pair or none. */
#include "core/trace/stacks.h"

#include <errno.h>
#include <string.h>

#include "core/base/assert.h"
#include "core/base/atomic.h"
#include "core/base/names.h"
#include "core/base/status.h"
#include "core/os/os.h"
#include "core/os/python.h"
#include "core/trace/trace.h"

#define OWN_FRAMES_MAX 24u /* frames of Headroom itself that a capture has room for */
#define CACHE_SLOTS (1u << 16)
#define CACHE_ENTRIES_MAX (CACHE_SLOTS / 2)
#define OWN_FRAME 0u
#define FRAME_BITS 16
#define LIBRARY_PREFIX "libheadroom"

_Static_assert(HR__FRAMES_MAX <= 1u << FRAME_BITS, "a frame's number fits in a slot");

static hr__atomic_u64 cache[CACHE_SLOTS];
static hr__atomic_u32 cached;   /* entries; may briefly be less than the number of used slots */
static hr__atomic_u32 depth;    /* 0: no captures */
static hr__atomic_u32 python_module;   /* hr_name of the module with the interpreter; HR_NAME_NONE: not known */
static char python_folder[256];        /* of Headroom's Python package, whose frames are left out; "": it was not loaded */
static hr__atomic_u32 has_python_folder; /* stored with release when python_folder is set */
static hr__atomic_u64 own_base; /* where the module with this code is loaded; 0: it is the program, or not known */

static __thread struct {
	hr_stack set;      /* by hr_stack_set */
	hr_stack replaced; /* valid while is_replaced */
	const void *caller; /* where the program called the library; NULL: not known */
	bool is_replaced;
	bool is_capturing; /* the system's functions may allocate through this library */
} self __attribute__((tls_model("initial-exec")));

/* ---- frames ---- */

static const char *base_name(const char *path)
{
	const char *slash = strrchr(path, '/');
	return slash != NULL ? slash + 1 : path;
}

static bool starts_with(const char *text, const char *prefix)
{
	return strncmp(text, prefix, strlen(prefix)) == 0;
}

/* In a program that is linked statically, Headroom's functions are those of the program, and only their names tell them apart. */
static bool is_own(const hr__os_symbol *symbol)
{
	if (symbol->is_program) return starts_with(symbol->function, "hr_");
	return symbol->base == hr__load_relaxed(&own_base) || starts_with(base_name(symbol->module), LIBRARY_PREFIX);
}

/* Return addresses are those after the call. The call itself may be the last instruction of its function. *lasts: the result is the same
 * the next time. */
static uint32_t resolve(uintptr_t address, bool *lasts)
{
	hr__os_symbol symbol;
	hr_frame frame = { .offset = address - 1 };
	int error = hr__os()->symbol_find((const void *)(address - 1), &symbol);
	*lasts = error == 0 || error == ENOENT;
	if (error) return hr__frame_intern(&frame);
	if (is_own(&symbol)) return OWN_FRAME;
	frame = (hr_frame){ .function = hr_name_intern(symbol.function), .module = hr_name_intern(symbol.module), .offset = symbol.offset };
	return hr__frame_intern(&frame);
}

static void remember(uint32_t slot, uint64_t entry)
{
	uint64_t empty = 0;
	if (hr__load_relaxed(&cached) >= CACHE_ENTRIES_MAX) return;
	if (hr__cas_acq_rel(&cache[slot], &empty, entry)) hr__fetch_add_relaxed(&cached, 1);
}

static uint32_t frame_at(uintptr_t address)
{
	uint32_t slot = (uint32_t)((address * UINT64_C(0x9E3779B97F4A7C15)) >> 48);
	bool lasts;
	if (address >> (64 - FRAME_BITS)) return resolve(address, &lasts);
	for (uint32_t tried = 0; tried < CACHE_SLOTS; tried++, slot = (slot + 1) % CACHE_SLOTS) {
		uint64_t entry = hr__load_acquire(&cache[slot]);
		if (entry >> FRAME_BITS == address) return (uint32_t)(entry & (HR__FRAMES_MAX - 1));
		if (entry == 0) break;
	}
	uint32_t frame = resolve(address, &lasts);
	if (lasts) remember(slot, (uint64_t)address << FRAME_BITS | frame);
	return frame;
}

_Static_assert(CACHE_SLOTS == 1u << 16, "the hash is 16 bits");

/* ---- captures ---- */

/* The index of the program's innermost frame. The address that hr__stacks_enter was given is exact. The fallback is less so in a program
 * that is linked statically: Headroom's functions without a name come before one with a name, or between two. */
static size_t count_own(void *const *addresses, const uint16_t *frames, size_t count)
{
	bool is_static = hr__load_relaxed(&own_base) == 0;
	size_t own = 0;
	for (size_t i = 0; i < count && self.caller != NULL; i++) {
		if (addresses[i] != self.caller) continue;
		for (own = i; own < count && frames[own] == OWN_FRAME; own++) {} /* another library of Headroom made the call */
		return own;
	}
	for (size_t i = 0; i < count && i < OWN_FRAMES_MAX; i++) {
		if (frames[i] == OWN_FRAME) own = i + 1;
		else if (own > 0 && (!is_static || hr__frame_get(frames[i]).function != HR_NAME_NONE)) break;
	}
	return own;
}

/* ---- Python ---- */

struct python_frames {
	uint16_t *frames;
	size_t count, most;
	bool has_package; /* python_folder can be read */
};

static bool add_python_frame(void *context, const hr__python_frame *found)
{
	struct python_frames *python = context;
	if (python->has_package && starts_with(found->file, python_folder)) return true;
	if (python->count == python->most) return false;
	hr_frame frame = { .function = hr_name_intern(found->function), .file = hr_name_intern(found->file), .line = found->line };
	python->frames[python->count++] = (uint16_t)hr__frame_intern(&frame);
	return true;
}

/* Without Headroom's package only a thread that holds the interpreter's lock has Python frames: the program may hold locks of its own,
 * which threads of Python wait for. */
static size_t capture_python(uint16_t *frames, size_t most)
{
	struct python_frames python = { .frames = frames, .most = most, .has_package = hr__load_acquire(&has_python_folder) != 0 };
	hr__python_walk(python.has_package, add_python_frame, &python);
	return python.count;
}

static hr_name module_of_python(void)
{
	hr_name module = hr__load_relaxed(&python_module);
	hr__os_symbol symbol;
	if (module != HR_NAME_NONE) return module;
	const void *code = hr__python_code();
	if (code == NULL || hr__os()->symbol_find(code, &symbol)) return HR_NAME_NONE;
	module = hr_name_intern(symbol.module);
	hr__store_relaxed(&python_module, module);
	return module;
}

/* Of [count] frames, those inside the interpreter's first one. */
static size_t count_inside(const uint16_t *frames, size_t count)
{
	hr_name module = module_of_python();
	for (size_t i = 0; i < count && module != HR_NAME_NONE; i++)
		if (frames[i] != OWN_FRAME && hr__frame_get(frames[i]).module == module) return i;
	return count;
}

void hr__stacks_set_package(const char *folder)
{
	if (hr__load_acquire(&has_python_folder) || strlen(folder) >= sizeof python_folder) return;
	strcpy(python_folder, folder);
	hr__store_release(&has_python_folder, 1);
}

/* ---- captures of both ---- */

/* [frames] has [count] of libraries, and room for [most]. Returns how many there are with those of Python. */
static size_t join_python(uint16_t *frames, size_t count, size_t most)
{
	uint16_t python[HR_STACK_DEPTH_MAX];
	size_t added = capture_python(python, most);
	if (added == 0) return count < most ? count : most;
	count = count_inside(frames, count);
	size_t least = added < most / 2 ? added : most / 2;
	if (count > most - least) count = most - least;
	if (added > most - count) added = most - count;
	memcpy(frames + count, python, added * sizeof *python);
	return count + added;
}

static hr_stack capture(uint32_t most)
{
	void *addresses[HR_STACK_DEPTH_MAX + OWN_FRAMES_MAX];
	uint16_t frames[HR_STACK_DEPTH_MAX + OWN_FRAMES_MAX + HR_STACK_DEPTH_MAX]; /* the last are for Python, if there are no others */
	size_t count = 0;
	HR_ASSERT(most <= HR_STACK_DEPTH_MAX);
	if (hr__os()->stack_capture(addresses, most + OWN_FRAMES_MAX, &count)) return HR_STACK_NONE;
	for (size_t i = 0; i < count; i++) frames[i] = (uint16_t)frame_at((uintptr_t)addresses[i]);
	size_t own = count_own(addresses, frames, count), left = count - own;
	for (size_t i = own; i < count; i++) {
		if (frames[i] == OWN_FRAME) frames[i] = HR__FRAME_OTHER;
	}
	return hr__stack_of_frames(frames + own, join_python(frames + own, left, most));
}

hr_stack hr__stacks_now(void)
{
	if (self.is_replaced) return self.replaced;
	if (self.set != HR_STACK_NONE) return self.set;
	uint32_t most = hr__load_relaxed(&depth);
	if (most == 0 || self.is_capturing) return HR_STACK_NONE;
	self.is_capturing = true;
	hr_stack stack = capture(most);
	self.is_capturing = false;
	return stack;
}

uint32_t hr__stacks_depth(void)
{
	return hr__load_relaxed(&depth);
}

hr_status hr__stacks_prepare(void)
{
	hr__os_symbol here;
	void *address;
	size_t count;
	int error = hr__os()->stack_capture(&address, 1, &count);
	if (!error) error = hr__os()->symbol_find((const void *)(uintptr_t)hr__stacks_prepare, &here);
	if (error == ENOSYS) return hr__fail(HR_UNSUPPORTED, "call stacks cannot be captured on this system; record without a stack depth");
	if (error) return hr__os_fail(error, "cannot capture call stacks");
	hr__store_relaxed(&own_base, here.is_program ? 0 : here.base);
	return HR_OK;
}

void hr__stacks_start(uint32_t most)
{
	if (most > 0 && hr__load_relaxed(&cached) > 0) {
		for (uint32_t i = 0; i < CACHE_SLOTS; i++) hr__store_relaxed(&cache[i], 0);
		hr__store_relaxed(&cached, 0);
	}
	hr__store_relaxed(&depth, most < HR_STACK_DEPTH_MAX ? most : HR_STACK_DEPTH_MAX);
}

/* ---- stacks of a thread ---- */

const void *hr__stacks_enter(const void *caller)
{
	const void *before = self.caller;
	if (before == NULL && hr__load_relaxed(&depth) != 0) self.caller = caller;
	return before;
}

void hr__stacks_leave(const void *before)
{
	self.caller = before;
}

hr__stacks_before hr__stacks_replace(hr_stack stack)
{
	hr__stacks_before before = { self.replaced, self.is_replaced };
	self.replaced = stack;
	self.is_replaced = true;
	if (stack != HR_STACK_NONE) hr__trace_expect_stacks();
	return before;
}

void hr__stacks_restore(hr__stacks_before before)
{
	self.replaced = before.stack;
	self.is_replaced = before.is_replaced;
}

uint32_t hr_trace_get_stack_depth(void)
{
	return hr__stacks_depth();
}

hr_stack hr_stack_set(hr_stack stack)
{
	hr_stack before = self.set;
	self.set = stack;
	if (stack != HR_STACK_NONE) hr__trace_expect_stacks();
	return before;
}
