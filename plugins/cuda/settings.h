/* settings.h - settings of `headroom run`, from the environment. */
#ifndef HR_PLUGIN_CUDA_SETTINGS_H
#define HR_PLUGIN_CUDA_SETTINGS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct hr__settings {
	bool on;        /* false: HEADROOM_RUN=0; every call goes to the driver */
	bool manage;    /* HEADROOM_RUN=manage: memory comes from libheadroom's allocator */
	bool callers;   /* HEADROOM_RUN_CALLERS=1: the caller's symbol is the scope */
	bool uses;      /* HEADROOM_RUN_USES=1: recordings have the launches */
	uint64_t limit; /* bytes of each card, from HEADROOM_LIMIT, at least 256; 0 = none */
	bool reports;   /* HEADROOM_OOM_REPORT is set: libheadroom writes the reports */
} hr__settings;

/* Read once, when the library is loaded or at the first call before that. */
const hr__settings *hr__settings_get(void);

/* The same, for code that runs only after the driver was found, for which they were read. */
extern hr__settings hr__settings_now;

/* Writes "headroom: ..." to the standard error, in one line. */
__attribute__((format(printf, 1, 2))) void hr__settings_say(const char *format, ...);

/* The same, and ends the process: for what makes the program unable to run at all. */
_Noreturn void hr__settings_die(const char *why);

#endif
