/* driver.h - the real driver: which library it is, and its functions.
 *
 * The driver is the libcuda.so.1 that the program loads. It is never loaded here. Its functions are looked up when the program first looks up one of
 * those that this library answers, and kept for the rest of the process. */
#ifndef HR_PLUGIN_CUDA_DRIVER_H
#define HR_PLUGIN_CUDA_DRIVER_H

#include <stdbool.h>

#include "driver_calls.h"

typedef struct hr__driver_table {
	bool found; /* stored with release when the rest is complete */
#define HR__MEMBER(symbol, name, since, parameters) CUresult(*symbol) parameters;
#define HR__MEMBERS(symbol, name, since, parameters) CUresult(*symbol) parameters; CUresult(*symbol##_ptsz) parameters;
#define HR__MADE_MEMBER(symbol, parameters) CUresult(*symbol) parameters;
	HR__ANSWERED_PLAIN(HR__MEMBER)
	HR__ANSWERED_STREAM(HR__MEMBERS)
	HR__MADE_CALLS(HR__MADE_MEMBER)
#undef HR__MEMBER
#undef HR__MEMBERS
#undef HR__MADE_MEMBER
} hr__driver_table;

/* NULL: the driver has no such function. Written before hr__driver_find returns true. The functions of most requests are in its first cache line. */
extern hr__driver_table hr__driver __attribute__((aligned(64)));

/* Whether the program has loaded the driver. The first call that finds it looks its functions up. Any thread. */
bool hr__driver_look(void);
static inline bool hr__driver_find(void)
{
	return __builtin_expect(__atomic_load_n(&hr__driver.found, __ATOMIC_ACQUIRE), true) || hr__driver_look();
}

/* Whether the driver that was found has the functions without which nothing can be recorded. If not, a line has said so. */
bool hr__driver_suffices(void);

/* In the child of a fork: the lock of the search is not held. */
void hr__driver_forget_lock(void);

/* Whether [symbol] is one of the answered calls (driver_calls.h). */
bool hr__driver_is_answered(const char *symbol);

/* The library's own function that answers for [symbol], and in *real the driver's; NULL if it is not one of the answered calls, or the driver does
 * not have it. The driver must have been found. */
void *hr__driver_answer(const char *symbol, void **real);

/* The same for what the driver's cuGetProcAddress found: [found] for [name], [version] and [flags]. NULL: leave it as it is. */
void *hr__driver_answer_for(const char *name, int version, unsigned long long flags, void *found);

#endif
