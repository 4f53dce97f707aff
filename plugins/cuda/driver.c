/* driver.c - finds the driver, and says which function answers for which of its.
 *
 * A table has a row for each answered symbol. cuGetProcAddress gives a name, a version and flags: the row is the one of that name with the greatest
 * [since] that is not above the version, in its per-thread variant if the flags ask for that and the call has a stream. What the driver found decides
 * whether there is an answer at all: a name, version or flag that it refuses stays refused. A version above NEWEST may mean a signature that is not
 * known here, so the driver's function must then be the very one that the row's symbol names. So must it for a name that has no row, such as a symbol. */
#define _GNU_SOURCE
#include "driver.h"

#include <pthread.h>
#include <stddef.h>
#include <string.h>

#include "core/base/atomic.h"
#include "launches.h"
#include "loader.h"
#include "settings.h"

#define LIBRARY "libcuda.so.1"
#define NEWEST 13999 /* the last CUDA version whose signatures are known: 13.x */

HR__ANSWERED_PLAIN(HR__PROTOTYPE)
HR__ANSWERED_STREAM(HR__PROTOTYPES)

HR__HOT_DATA hr__driver_table hr__driver;

typedef struct answered_call {
	const char *symbol, *name;
	int since;
	bool per_thread; /* the variant for per-thread default streams */
	bool has_variant;
	void *own;
	size_t real; /* offset in hr__driver_table */
} answered_call;

/* A function's address as a pointer: both have one representation on Linux. */
#define POINTER(function) (void *)(uintptr_t)(function)
#define ROW(symbol, name, since, parameters) { #symbol, #name, since, false, false, POINTER(symbol), offsetof(hr__driver_table, symbol) },
#define ROWS(symbol, name, since, parameters)                                                          \
	{ #symbol, #name, since, false, true, POINTER(symbol), offsetof(hr__driver_table, symbol) },       \
	{ #symbol "_ptsz", #name, since, true, true, POINTER(symbol##_ptsz), offsetof(hr__driver_table, symbol##_ptsz) },

static const answered_call *rows(size_t *count)
{
	static const answered_call table[] = { HR__ANSWERED_PLAIN(ROW) HR__ANSWERED_STREAM(ROWS) };
	*count = sizeof table / sizeof *table;
	return table;
}

static void *real_of(const answered_call *row)
{
	void *real;
	memcpy(&real, (const char *)&hr__driver + row->real, sizeof real);
	return real;
}

static const answered_call *row_of(const char *symbol)
{
	size_t count;
	const answered_call *table = rows(&count);
	for (size_t i = 0; i < count; i++)
		if (strcmp(table[i].symbol, symbol) == 0) return &table[i];
	return NULL;
}

bool hr__driver_is_answered(const char *symbol)
{
	return row_of(symbol) != NULL;
}

void *hr__driver_answer(const char *symbol, void **real)
{
	const answered_call *row = row_of(symbol);
	if (!row || !real_of(row)) return NULL;
	*real = real_of(row);
	return row->own;
}

/* The row whose function of the driver is [found]. */
static const answered_call *row_with(const void *found)
{
	size_t count;
	const answered_call *table = rows(&count);
	for (size_t i = 0; i < count; i++)
		if (real_of(&table[i]) == found) return &table[i];
	return NULL;
}

void *hr__driver_answer_for(const char *name, int version, unsigned long long flags, void *found)
{
	size_t count;
	const answered_call *table = rows(&count), *best = NULL;
	bool per_thread = (flags & HR__CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
	for (size_t i = 0; i < count; i++) {
		const answered_call *row = &table[i];
		if (strcmp(row->name, name) != 0 || row->since > version || (row->has_variant && row->per_thread != per_thread)) continue;
		if (!best || row->since > best->since) best = row;
	}
	if (!best || !real_of(best) || version > NEWEST) best = row_with(found);
	return best ? best->own : NULL;
}

/* ---- finding the driver ---- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const char *missing;    /* a function that is needed, and that the driver does not have; written before hr__driver.found */

static void look_up(void *library, const char *symbol, void *member)
{
	void *address = hr__loader_symbol(library, symbol);
	memcpy(member, &address, sizeof address);
}

static void look_up_all(void *library)
{
#define LOOK_UP(symbol, name, since, parameters) look_up(library, #symbol, &hr__driver.symbol);
#define LOOK_UP_BOTH(symbol, name, since, parameters) \
	look_up(library, #symbol, &hr__driver.symbol);    \
	look_up(library, #symbol "_ptsz", &hr__driver.symbol##_ptsz);
#define LOOK_UP_MADE(symbol, parameters) look_up(library, #symbol, &hr__driver.symbol);
	HR__ANSWERED_PLAIN(LOOK_UP)
	HR__ANSWERED_STREAM(LOOK_UP_BOTH)
	HR__MADE_CALLS(LOOK_UP_MADE)
}

/* Called once, with the lock held. */
static void check(void)
{
#define NEED(symbol) \
	if (!hr__driver.symbol) missing = #symbol;
	NEED(cuDeviceGetCount) NEED(cuDeviceGet) NEED(cuDeviceTotalMem_v2) NEED(cuCtxGetCurrent) NEED(cuCtxGetDevice)
#undef NEED
	if (missing && hr__settings_get()->on) hr__settings_say("the program runs without Headroom: the CUDA driver has no %s", missing);
}

bool hr__driver_suffices(void)
{
	return !missing;
}

void hr__driver_forget_lock(void)
{
	pthread_mutex_init(&lock, NULL);
}

bool hr__driver_look(void)
{
	void *library = hr__loader_loaded(LIBRARY);
	if (!library) return false;
	pthread_mutex_lock(&lock);
	if (!hr__driver.found) {
		look_up_all(library);
		check();
		hr__launches_begin();
	}
	__atomic_store_n(&hr__driver.found, true, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&lock);
	return true;
}
