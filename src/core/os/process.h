/* process.h - system calls that only the profiler uses: directories, process exit, process start time.
 *
 * Not part of the table in os.h: a test can easily arrange for a directory that cannot be created, and process exit cannot be
 * simulated. */
#ifndef HR_OS_PROCESS_H
#define HR_OS_PROCESS_H

#include <stdbool.h>
#include <stdint.h>

/* Creates the directory [path] and its missing parents, mode 0700. 0 also when it exists; otherwise an errno value: ENOTDIR when a
 * part of the path is not a directory, ENAMETOOLONG. */
int hr__os_make_directories(const char *path);

/* Calls [look] with the name of each entry of the directory [path] until [look] returns true. Returns whether it did. Allocates nothing. */
bool hr__os_folder_any(const char *path, bool (*look)(void *context, const char *name), void *context);

/* Registers [run] to be called at exit() or a return from main. 0 or an errno value. */
int hr__os_at_exit(void (*run)(void));

/* Process id of the parent; 0 when unknown. */
uint32_t hr__os_process_parent(void);

/* Start time of the process, in the system's units since boot. Together with the process id it distinguishes processes that reuse
 * an id. 0 when unknown. */
uint64_t hr__os_process_birth(void);

/* Whether [process], which began at [birth], is still running: not dead, no zombie, and no later process of that id. */
bool hr__os_process_lives(uint32_t process, uint64_t birth);

/* Whether the open file belongs to the user of this process. */
bool hr__os_file_is_own(int fd);

#endif
