/* profile.h - shared by `headroom report` and `headroom diff`: opening a trace with a progress bar, options of views, output. */
#ifndef HR_CLI_PROFILE_H
#define HR_CLI_PROFILE_H

#include <stdio.h>

#include "command.h"
#include "headroom_analysis.h"
#include "analysis/capture/capture.h"
#include "terminal/term.h"

#define HR__PROFILE_PATTERNS_MAX 64

/* Regular expressions from one argument, separated by commas outside of (), [] and {}. */
typedef struct hr__patterns {
	char *text; /* a copy of the argument, with commas replaced by 0 */
	const char *list[HR__PROFILE_PATTERNS_MAX + 1];
} hr__patterns;

/* False: too many expressions or no memory; a message was printed. */
bool hr__patterns_split(const char *argument, hr__patterns *out);
void hr__patterns_free(hr__patterns *patterns);

/* Opens [path] and fills the progress bar up to [to]. False: it failed, and a message was printed. */
bool hr__profile_open(const char *path, hr__progress *progress, double to, hr__capture **out);

/* Sets the character set of the terminal, and its width and colours for [file]: stdout, or NULL for a file, which has the default width. */
void hr__profile_look(hr_profile_options *options, FILE *file);

/* An hr_profile_writer that writes to a FILE. */
bool hr__profile_to_file(void *file, const char *bytes, size_t length);

#endif
