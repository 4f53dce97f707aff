/* arguments.c - parses the arguments of a command by its table, prints its help, and finds suggestions for misspelt words. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "core/base/text/text.h"
#include "command.h"
#include "analysis/import/quote.h"
#include "terminal/term.h"

#define WORD_MAX 32 /* longer words get no suggestion */

/* ---- messages ---- */

int hr__complain(const char *format, ...)
{
	char text[4096];
	va_list arguments;
	va_start(arguments, format);
	vsnprintf(text, sizeof text, format, arguments);
	va_end(arguments);
	fprintf(stderr, "%sheadroom:%s ", hr__style(stderr, HR__STYLE_ERROR), hr__style(stderr, HR__STYLE_PLAIN));
	hr__print_quoted(stderr, text); /* the message may contain names from a file */
	fputc('\n', stderr);
	return HR__EXIT_BAD;
}

int hr__complain_last(void)
{
	return hr__complain("%s", hr_last_message());
}

/* Reports wrong usage of [command] and points to its help. */
static int wrong_use(const hr__command *command, const char *problem)
{
	hr__complain("%s: %s", command->name, problem);
	fprintf(stderr, "Try 'headroom help %s'.\n", command->name);
	return HR__EXIT_BAD;
}

/* ---- suggestions ---- */

static size_t least(size_t a, size_t b)
{
	return a < b ? a : b;
}

/* Edit distance: letters to insert, delete, replace or swap with their neighbour to get from [a] to [b]. */
static size_t distance(const char *a, const char *b)
{
	size_t rows[3][WORD_MAX + 1], a_length = strlen(a), b_length = strlen(b);
	if (a_length > WORD_MAX || b_length > WORD_MAX) return WORD_MAX;
	for (size_t j = 0; j <= b_length; j++) rows[0][j] = j;
	for (size_t i = 1; i <= a_length; i++) {
		size_t *row = rows[i % 3], *above = rows[(i + 2) % 3], *above2 = rows[(i + 1) % 3];
		row[0] = i;
		for (size_t j = 1; j <= b_length; j++) {
			row[j] = least(least(row[j - 1], above[j]) + 1, above[j - 1] + (a[i - 1] != b[j - 1]));
			if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) row[j] = least(row[j], above2[j - 2] + 1);
		}
	}
	return rows[a_length % 3][b_length];
}

const char *hr__nearest(const char *text, const char *const *names)
{
	const char *best = NULL;
	size_t best_distance = 0;
	for (; *names; names++) {
		size_t length = strlen(*names), here = distance(text, *names);
		/* A prefix of two letters or more counts as close, however long the rest of the name is. */
		if (strlen(text) >= 2 && strncmp(text, *names, strlen(text)) == 0 && text[strspn(text, "-")]) here = 1;
		if (here > length / 3 + 1 || here >= length - strspn(*names, "-")) continue;
		if (best && here >= best_distance) continue;
		best = *names;
		best_distance = here;
	}
	return best;
}

/* ---- reading ---- */

static int option_count(const hr__command *command)
{
	int count = 0;
	while (command->options[count].name) count++;
	return count;
}

/* The number of the option whose name is the first [length] bytes of [text]; -1 when there is none. */
static int find_option(const hr__command *command, const char *text, size_t length)
{
	for (int i = 0; command->options[i].name; i++)
		if (strlen(command->options[i].name) == length && memcmp(command->options[i].name, text, length) == 0) return i;
	return -1;
}

static int unknown_option(const hr__command *command, const char *text)
{
	char problem[256], quoted[HR__QUOTE_BYTES], word[WORD_MAX + 1];
	const char *names[HR__OPTIONS_MAX + 2];
	int count = option_count(command);
	for (int i = 0; i < count; i++) names[i] = command->options[i].name;
	names[count] = "--help";
	names[count + 1] = NULL;
	snprintf(word, sizeof word, "%.*s", (int)strcspn(text, "="), text);
	const char *near = hr__nearest(word, names);
	snprintf(problem, sizeof problem, "unknown option %s%s%s%s", hr__quote(text, strlen(text), quoted),
	         near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
	return wrong_use(command, problem);
}

static bool is_optional(const hr__option *option)
{
	return option->value && option->value[0] == '[';
}

/* Parses the option texts[*at], and the next text if it is the option's value. */
static bool read_option(const hr__command *command, int count, char **texts, int *at, hr__arguments *out, int *exit_status)
{
	const char *text = texts[*at];
	size_t length = strcspn(text, "=");
	char problem[256];
	int option = find_option(command, text, length);
	if (option < 0) {
		*exit_status = unknown_option(command, text);
		return false;
	}
	const hr__option *found = &command->options[option];
	if (out->values[option]) {
		snprintf(problem, sizeof problem, "%s is given twice", found->name);
	} else if (!found->value && text[length]) {
		snprintf(problem, sizeof problem, "%s takes no value", found->name);
	} else if (found->value && !is_optional(found) && !text[length] && *at + 1 >= count) {
		snprintf(problem, sizeof problem, "%s needs a value: %s %s", found->name, found->name, found->value);
	} else {
		if (text[length]) out->values[option] = text + length + 1;
		else out->values[option] = found->value && !is_optional(found) ? texts[++*at] : "";
		return true;
	}
	*exit_status = wrong_use(command, problem);
	return false;
}

static bool check_operands(const hr__command *command, int operands, const char *extra, int *exit_status)
{
	char problem[256], quoted[HR__QUOTE_BYTES];
	if (operands > command->most_operands) {
		snprintf(problem, sizeof problem, "unexpected argument %s; it takes %s", hr__quote(extra, strlen(extra), quoted),
		         command->most_operands == 0 ? "options only" : command->operands);
	} else if (operands < command->least_operands) {
		const char *missing = command->operands; /* without the operands that were given */
		for (int i = 0; i < operands && strchr(missing, ' '); i++) missing = strchr(missing, ' ') + 1;
		size_t length = strlen(missing), dots = !strchr(missing, ' ') && length > 3 && strcmp(missing + length - 3, "...") == 0 ? 3 : 0;
		snprintf(problem, sizeof problem, "%.*s is missing", (int)(length - dots), missing);
	} else {
		return true;
	}
	*exit_status = wrong_use(command, problem);
	return false;
}

bool hr__arguments_read(const hr__command *command, int count, char **texts, hr__arguments *out, int *exit_status)
{
	bool options_ended = false;
	const char *extra = "";
	*out = (hr__arguments){ .command = command };
	for (int i = 0; i < count; i++) {
		const char *text = texts[i];
		bool is_option = !options_ended && text[0] == '-' && text[1];
		if (is_option && (strcmp(text, "--help") == 0 || strcmp(text, "-h") == 0)) {
			hr__command_help(command);
			*exit_status = HR__EXIT_DONE;
			return false;
		}
		if (is_option && strcmp(text, "--") == 0) {
			options_ended = true;
		} else if (!is_option && command->takes_program) {
			out->rest = texts + i;
			out->operand_count = 1;
			break;
		} else if (is_option) {
			if (!read_option(command, count, texts, &i, out, exit_status)) return false;
		} else {
			if (out->operand_count < command->most_operands) out->operands[out->operand_count] = text;
			else extra = text;
			out->operand_count++;
		}
	}
	return check_operands(command, out->operand_count, extra, exit_status);
}

bool hr__arguments_has(const hr__arguments *arguments, int option)
{
	return arguments->values[option] != NULL;
}

bool hr__arguments_count(const hr__arguments *arguments, int option, uint64_t least_value, uint64_t most, uint64_t *out)
{
	const char *text = arguments->values[option];
	char problem[256], quoted[HR__QUOTE_BYTES];
	if (!text) return true;
	uint64_t value = 0;
	bool good = *text != 0 && strlen(text) <= 19;
	for (const char *at = text; good && *at; at++) {
		good = *at >= '0' && *at <= '9';
		value = value * 10 + (uint64_t)(*at - '0');
	}
	if (good && value >= least_value && value <= most) {
		*out = value;
		return true;
	}
	snprintf(problem, sizeof problem, "%s takes a number from %llu to %llu, not %s", arguments->command->options[option].name,
	         (unsigned long long)least_value, (unsigned long long)most, hr__quote(text, strlen(text), quoted));
	wrong_use(arguments->command, problem);
	return false;
}

bool hr__arguments_device_index(const hr__arguments *arguments, int option, int64_t *out)
{
	uint64_t index = 0;
	if (!hr__arguments_has(arguments, option)) return true;
	if (!hr__arguments_count(arguments, option, 0, 1000000, &index)) return false;
	*out = (int64_t)index;
	return true;
}

bool hr__arguments_size(const hr__arguments *arguments, int option, uint64_t *out)
{
	const char *text = arguments->values[option];
	char problem[600];
	if (!text) return true;
	if (hr__parse_size(text, out) == HR_OK) return true;
	snprintf(problem, sizeof problem, "%s: %s", arguments->command->options[option].name, hr_last_message());
	wrong_use(arguments->command, problem);
	return false;
}

/* Parses digits with an optional decimal point. Returns the end, or NULL when there is no digit. strtod is not used because it
 * accepts "inf", "0x1p3" and the locale's comma. */
static const char *read_decimal(const char *text, double *out)
{
	double value = 0, unit = 1;
	bool any = false, point = false;
	for (; (*text >= '0' && *text <= '9') || (*text == '.' && !point); text++) {
		if (*text == '.') {
			point = true;
			continue;
		}
		any = true;
		value = value * 10 + (*text - '0');
		if (point) unit *= 10;
	}
	*out = value / unit;
	return any ? text : NULL;
}

bool hr__arguments_decimal(const hr__arguments *arguments, int option, const char *unit, double least_value, double most,
                           double *out)
{
	const char *text = arguments->values[option];
	char problem[256], quoted[HR__QUOTE_BYTES];
	double value;
	if (!text) return true;
	const char *end = strlen(text) < 64 ? read_decimal(text, &value) : NULL;
	if (end && *end == ' ') end++;
	if (end && (!*end || strcasecmp(end, unit) == 0) && value >= least_value && value <= most) {
		*out = value;
		return true;
	}
	snprintf(problem, sizeof problem, "%s takes a number from %g to %g %s, not %s", arguments->command->options[option].name,
	         least_value, most, unit, hr__quote(text, strlen(text), quoted));
	wrong_use(arguments->command, problem);
	return false;
}

/* ---- help ---- */

static void print_option(const hr__option *option)
{
	char head[64];
	snprintf(head, sizeof head, "%s%s%s", option->name, option->value && !is_optional(option) ? " " : "", option->value ? option->value : "");
	int length = (int)strlen(head);
	printf("  %s%s%s", hr__style(stdout, HR__STYLE_STRONG), head, hr__style(stdout, HR__STYLE_PLAIN));
	printf("%s%*s", length > 21 ? "\n" : "", length > 21 ? 24 : 22 - length, "");
	hr__term_wrap(option->help, 24, 24, hr__term_text_width());
}

static void print_heading(const char *text)
{
	printf("\n%s%s%s\n", hr__style(stdout, HR__STYLE_HEADING), text, hr__style(stdout, HR__STYLE_PLAIN));
}

void hr__command_help(const hr__command *command)
{
	if (command->takes_program) printf("usage: headroom %s [OPTION]... [--] %s\n\n", command->name, command->operands);
	else printf("usage: headroom %s%s%s [OPTION]...\n\n", command->name, *command->operands ? " " : "", command->operands);
	hr__term_wrap(command->about, 0, 0, hr__term_text_width());
	print_heading("Options");
	for (const hr__option *option = command->options; option->name; option++) print_option(option);
	print_option(&(hr__option){ "--help", NULL, "this text" });
	print_heading("Examples");
	for (const char *line = command->examples; *line;) {
		int length = (int)strcspn(line, "\n");
		printf("  %.*s\n", length, line);
		line += length + (line[length] == '\n');
	}
	print_heading("Exit status");
	printf("  %s\n", command->exits ? command->exits : HR__EXIT_HELP);
}
