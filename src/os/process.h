/* process.h - what only the profiler asks of the system: directories, and the end of the process.
 *
 * Not in the table of os.h: a directory that cannot be made is easy to have, and the end of a process cannot be replayed. */
#ifndef HR_OS_PROCESS_H
#define HR_OS_PROCESS_H

#include <stdbool.h>
#include <stdint.h>

/* Makes the directory [path] and those above it that are missing, mode 0700. 0 when it is there already; otherwise an errno value:
 * ENOTDIR when a part of the path is something else, ENAMETOOLONG. */
int hr__os_make_directories(const char *path);

/* Calls [look] with the name of each entry of the directory [path], until it returns true. Whether it did. */
bool hr__os_folder_any(const char *path, bool (*look)(void *context, const char *name), void *context);

/* Registers [run] to be called when the process ends by exit or by a return from main. 0 or an errno value. */
int hr__os_at_exit(void (*run)(void));

/* When the process began, in the units of the system since it started: together with its number it tells one process from another
 * that had the same number. 0 when the system does not say. */
uint64_t hr__os_process_birth(void);

#endif
