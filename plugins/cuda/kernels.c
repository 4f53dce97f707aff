/* kernels.c - see kernels.h. Records are never freed, because other threads may be using them; there is one for each kernel of the program. After code
 * was unloaded, the driver is asked again about a kernel when it is next launched: usually it is the same one, and its record stays. */
#define _GNU_SOURCE
#include "kernels.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"
#include "loader.h"

#define SLOTS 16384u /* a power of two */
#define FULL (SLOTS / 4 * 3) /* more kernels have no record, until code is unloaded */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static hr__kernel *slots[SLOTS]; /* stored with release */
static uint32_t count;
static uint32_t unloads_before; /* when the table was last emptied */
static uint32_t replaced; /* names of kernels that gave their places to others */

/* The demangled name, if the C++ library is in the process. */
static hr_name intern_demangled(const char *text)
{
	char *(*demangle)(const char *, char *, size_t *, int *);
	void *found = hr__loader_symbol(RTLD_DEFAULT, "__cxa_demangle");
	int status = -1;
	memcpy(&demangle, &found, sizeof found);
	char *plain = found ? demangle(text, NULL, NULL, &status) : NULL;
	hr_name name = hr_name_intern(plain && status == 0 ? plain : text);
	free(plain);
	return name;
}

/* What a launch passes may be a function of a module or a kernel of a library; each call refuses the other kind. */
static hr_name name_of(CUfunction function)
{
	const char *text = NULL;
	CUresult result = hr__driver.cuFuncGetName ? hr__driver.cuFuncGetName(&text, function) : HR__CUDA_ERROR_NOT_FOUND;
	if (result != HR__CUDA_SUCCESS && hr__driver.cuKernelGetName) result = hr__driver.cuKernelGetName(&text, (CUkernel)(void *)function);
	return result == HR__CUDA_SUCCESS && text ? intern_demangled(text) : hr_name_intern("kernel");
}

static bool get_parameter(CUfunction function, size_t index, size_t *offset, size_t *size)
{
	if (hr__driver.cuFuncGetParamInfo && hr__driver.cuFuncGetParamInfo(function, index, offset, size) == HR__CUDA_SUCCESS) return true;
	return hr__driver.cuKernelGetParamInfo && hr__driver.cuKernelGetParamInfo((CUkernel)(void *)function, index, offset, size) == HR__CUDA_SUCCESS;
}

static hr__kernel *make(CUfunction function)
{
	size_t offset, size;
	hr__kernel *made = calloc(1, sizeof *made);
	if (!made) return NULL;
	made->function = function;
	made->asked = __atomic_load_n(&hr__now.unloads, __ATOMIC_ACQUIRE);
	made->name = name_of(function);
	while (made->parameter_count < HR__KERNEL_PARAMETERS_MAX && get_parameter(function, made->parameter_count, &offset, &size)) {
		made->offsets[made->parameter_count] = (uint32_t)offset;
		made->sizes[made->parameter_count++] = (uint32_t)size;
	}
	return made;
}

static uint32_t home_of(CUfunction function)
{
	return hr__kernels_hash(function) & (SLOTS - 1);
}

/* The slot of [function], or the empty one where it would be. */
static uint32_t slot_of(CUfunction function)
{
	uint32_t at = home_of(function);
	const hr__kernel *found;
	while ((found = __atomic_load_n(&slots[at], __ATOMIC_ACQUIRE)) != NULL && found->function != function) at = (at + 1) & (SLOTS - 1);
	return at;
}

static bool is_current(const hr__kernel *kernel)
{
	return kernel && __atomic_load_n(&kernel->asked, __ATOMIC_ACQUIRE) == __atomic_load_n(&hr__now.unloads, __ATOMIC_ACQUIRE);
}

static bool is_same(const hr__kernel *a, const hr__kernel *b)
{
	size_t bytes = a->parameter_count * sizeof *a->sizes;
	return a->name == b->name && a->parameter_count == b->parameter_count && memcmp(a->sizes, b->sizes, bytes) == 0 && memcmp(a->offsets, b->offsets, bytes) == 0;
}

/* What the driver says now about the kernel of a slot; [known] is the record there, or NULL. With the lock held. */
static hr__kernel *ask(uint32_t at, hr__kernel *known, CUfunction function)
{
	hr__kernel *made = make(function);
	if (made && known && is_same(made, known)) {
		__atomic_store_n(&known->asked, made->asked, __ATOMIC_RELEASE);
		free(made);
		return known;
	}
	if (!made) return NULL;
	if (!known) count++;
	__atomic_store_n(&slots[at], made, __ATOMIC_RELEASE);
	return made;
}

/* Some of the kernels are gone if code was unloaded; which ones is not known. With the lock held. */
static void make_room(void)
{
	uint32_t now = __atomic_load_n(&hr__now.unloads, __ATOMIC_ACQUIRE);
	if (now == unloads_before) return;
	for (uint32_t i = 0; i < SLOTS; i++) __atomic_store_n(&slots[i], NULL, __ATOMIC_RELEASE);
	count = 0;
	unloads_before = now;
}

hr__kernel *hr__kernels_get(CUfunction function)
{
	hr__kernel *found = __atomic_load_n(&slots[slot_of(function)], __ATOMIC_ACQUIRE);
	if (is_current(found)) return found;
	pthread_mutex_lock(&lock);
	uint32_t at = slot_of(function);
	found = slots[at];
	if (!found && count == FULL) {
		make_room();
		at = slot_of(function);
	}
	if (!is_current(found)) found = found || count < FULL ? ask(at, found, function) : NULL;
	pthread_mutex_unlock(&lock);
	return found;
}

/* Stores the name where the next launch of the kernel finds it: in a place that is empty or out of date, or in place of another. With the lock held. */
static void keep_name(const hr__kernel *kernel)
{
	uint32_t now = __atomic_load_n(&kernel->asked, __ATOMIC_ACQUIRE);
	hr__named_kernel *set = hr__now.kernels[hr__kernels_set(kernel->function)], *place = NULL;
	for (unsigned i = 0; i < HR__NAMED_WAYS && !place; i++)
		if (!set[i].function || set[i].function == kernel->function || set[i].name >> 32 != now) place = &set[i];
	if (!place) place = &set[replaced++ % HR__NAMED_WAYS];
	__atomic_store_n(&place->function, NULL, __ATOMIC_RELEASE);
	__atomic_store_n(&place->name, (uint64_t)now << 32 | kernel->name, __ATOMIC_RELEASE);
	__atomic_store_n(&place->function, kernel->function, __ATOMIC_RELEASE);
}

__attribute__((cold)) hr_name hr__kernels_name_slowly(CUfunction function)
{
	const hr__kernel *kernel = hr__kernels_get(function);
	if (!kernel) return HR_NAME_NONE;
	/* A thread that would have to wait does without. */
	if (pthread_mutex_trylock(&lock) == 0) {
		keep_name(kernel);
		pthread_mutex_unlock(&lock);
	}
	return kernel->name;
}

void hr__kernels_forget(void)
{
	__atomic_fetch_add(&hr__now.unloads, 1, __ATOMIC_ACQ_REL);
}
