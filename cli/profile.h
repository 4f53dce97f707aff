/* profile.h - what `headroom report` and `headroom diff` share: opening a trace with a bar on the terminal, options of views, where the result goes. */
#ifndef HR_CLI_PROFILE_H
#define HR_CLI_PROFILE_H

#include <stdio.h>

#include "command.h"
#include "headroom_profile.h"
#include "profile/capture.h"
#include "term.h"

#define HR__PROFILE_PATTERNS_MAX 64

/* Regular expressions from one argument, separated by commas that are not inside of (), [] or {}. */
typedef struct hr__patterns {
	char *text; /* a copy, cut up */
	const char *list[HR__PROFILE_PATTERNS_MAX + 1];
} hr__patterns;

/* False when there are too many, or no memory, which was said. */
bool hr__patterns_split(const char *argument, hr__patterns *out);
void hr__patterns_free(hr__patterns *patterns);

/* Opens [path]; the bar fills up to [to]. False when it cannot, which was said. */
bool hr__profile_open(const char *path, hr__progress *progress, double to, hr__capture **out);

/* Columns and colours of the terminal, or none of them where [file] is not standard output. */
void hr__profile_look(hr_profile_options *options, FILE *file);

/* A writer (hr_profile_writer) to a FILE. */
bool hr__profile_to_file(void *file, const char *bytes, size_t length);

#endif
