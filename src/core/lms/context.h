/* context.h - shared by the files that make, set up and report on contexts. */
#ifndef HR_LMS_CONTEXT_H
#define HR_LMS_CONTEXT_H

#include "core/lms/lms.h"
#include "core/memory/leaks.h"

#define HR__LMS_VARIABLE "HEADROOM_LMS"
#define HR__LMS_VARIABLE_MAX 1024u /* bytes of its value, with the end */
#define HR__LMS_POLICY_NAME 32u

/* The existing context of an allocator; HR_NOT_READY if there is none. hr__lms_of makes one. */
hr_status hr__lms_find(hr_allocator allocator, hr__lms **out);
/* Destroys all tensors of a context, pinned or not, and the context. */
void hr__lms_close(hr__lms *lms);
void hr__lms_close_all(void);
/* After fork, in the child: forgets all contexts without touching what the parent shares. */
void hr__lms_forget_all(void);
/* Adds the tensors of all contexts. */
void hr__lms_leaks(hr__leaks *found);

/* ---- options (options.c) ---- */

/* Options of the environment, or plain defaults if it is invalid. */
void hr__lms_options_first_use(hr_lms_options *options);
/* Options of any version of the headers; NULL: those of the environment. */
hr_status hr__lms_options_read(const hr_lms_options *given, hr_lms_options *out);
/* Whether the text of an option comes from the environment; options filled in by hr_lms_options_init point there. */
bool hr__lms_options_from_environment(const char *text);
void hr__lms_options_reset(void);  /* at hr_shutdown */
void hr__lms_options_forget(void); /* after fork: a thread of the parent may hold the lock */

/* ---- registered policies (policies.c) ---- */

bool hr__lms_policy_find(const char *name, hr_lms_policy *table, void **user);
void hr__lms_policy_reset(void);  /* at hr_shutdown */
void hr__lms_policy_forget(void); /* after fork */

/* ---- statistics (stats.c) ---- */

void hr__lms_stats_add(hr__allocator *allocator, hr_stats *stats);
void hr__lms_stats_reset(hr__allocator *allocator);

/* ---- step_csv.c ---- */

hr_status hr__step_csv_open(hr__lms *lms, const char *path);
void hr__step_csv_write(hr__lms *lms, int64_t step);

/* Lets the memory layer call Large Model Support (hooks.c). */
void hr__lms_register_hooks(void);

#endif
