/* profile.c - see profile.h. */
#include "report/profile.h"

#include <stdlib.h>
#include <string.h>

bool hr__patterns_split(const char *argument, hr__patterns *out)
{
	size_t count = 0;
	int depth = 0;
	const char *set = NULL; /* the [ of a bracket expression that has not ended */
	*out = (hr__patterns){ 0 };
	if (!argument) return true;
	out->text = strdup(argument);
	if (!out->text) {
		hr__complain("no memory");
		return false;
	}
	char *from = out->text;
	for (char *at = out->text;; at++) {
		bool ends = *at == 0 || (*at == ',' && depth == 0 && !set);
		if (set) {
			/* In a bracket expression only ] is special, and not if it comes first. */
			if (*at == ']' && at > set + 1 + (set[1] == '^')) set = NULL;
		} else if (*at == '\\' && at[1]) {
			at++;
		} else if (*at == '[') {
			set = at;
		} else if (*at == '(' || *at == '{') {
			depth++;
		} else if ((*at == ')' || *at == '}') && depth > 0) {
			depth--;
		}
		if (!ends) continue;
		if (count == HR__PROFILE_PATTERNS_MAX) {
			hr__complain("at most %d regular expressions", HR__PROFILE_PATTERNS_MAX);
			hr__patterns_free(out);
			return false;
		}
		bool is_last = *at == 0;
		*at = 0;
		out->list[count++] = from;
		from = at + 1;
		if (is_last) return true;
	}
}

void hr__patterns_free(hr__patterns *patterns)
{
	free(patterns->text);
	patterns->text = NULL;
}

static void show_progress(void *progress, double part)
{
	hr__progress_show(progress, part);
}

bool hr__profile_open(const char *path, hr__progress *progress, double to, hr__capture **out)
{
	hr__progress_phase(progress, "reading", to);
	hr_status status = hr__capture_open(path, show_progress, progress, out);
	if (!status) return true;
	hr__progress_end(progress);
	hr__complain_last();
	return false;
}

void hr__profile_look(hr_profile_options *options, FILE *file)
{
	if (file) options->width = (uint32_t)hr__term_width();
	options->colour = *hr__style(file, HR__STYLE_PLAIN) != 0;
	options->utf8 = hr__term_utf8();
}

bool hr__profile_to_file(void *file, const char *bytes, size_t length)
{
	return fwrite(bytes, 1, length, file) == length;
}
