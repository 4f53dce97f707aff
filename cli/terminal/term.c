/* term.c - see term.h. */
#include "terminal/term.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "core/os/os.h"
#include "analysis/table/width.h"

#define WIDTH_LEAST 40
#define WIDTH_MOST 200
#define WIDTH_UNKNOWN 100
#define TABLE_WIDTH_UNKNOWN 80
#define TEXT_WIDTH_MOST 100
#define SHOW_AFTER_NS 500000000u
#define REDRAW_NS 50000000u
#define BAR_CELLS 40

bool hr__term_can(FILE *file)
{
	const char *term = getenv("TERM");
	return term && strcmp(term, "dumb") != 0 && isatty(fileno(file)) != 0;
}

static bool wants_colour(FILE *file)
{
	const char *no_colour = getenv("NO_COLOR");
	return !(no_colour && *no_colour) && hr__term_can(file);
}

const char *hr__style(FILE *file, hr__style_name style)
{
	static const char *const sequences[] = {
#define STYLE_SEQUENCE(name, sequence) sequence,
		HR__STYLE_TABLE(STYLE_SEQUENCE)
#undef STYLE_SEQUENCE
	};
	static int known[2] = { -1, -1 };
	if (file != stdout && file != stderr) return "";
	int *wanted = &known[file == stderr];
	if (*wanted < 0) *wanted = wants_colour(file);
	return *wanted ? sequences[style] : "";
}

static int clamp_width(long columns)
{
	return columns < WIDTH_LEAST ? WIDTH_LEAST : columns > WIDTH_MOST ? WIDTH_MOST : (int)columns;
}

/* 0 when the width is not known. */
static int known_width(void)
{
	const char *columns = getenv("COLUMNS");
	struct winsize size;
	if (columns && *columns) {
		char *end;
		long value = strtol(columns, &end, 10);
		if (*end == 0 && value > 0) return clamp_width(value);
	}
	if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return clamp_width(size.ws_col);
	return 0;
}

int hr__term_width(void)
{
	int width = known_width();
	return width ? width : WIDTH_UNKNOWN;
}

int hr__term_table_width(void)
{
	int width = known_width();
	return width ? width : TABLE_WIDTH_UNKNOWN;
}

int hr__term_text_width(void)
{
	int width = hr__term_width();
	return width < TEXT_WIDTH_MOST ? width : TEXT_WIDTH_MOST;
}

bool hr__term_utf8(void)
{
	static const char *const variables[] = { "LC_ALL", "LC_CTYPE", "LANG" };
	for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) {
		const char *value = getenv(variables[i]);
		if (!value || !*value) continue;
		/* Only a locale with another charset disables UTF-8: containers often have none, "C" or "POSIX" on terminals that support
		 * UTF-8. */
		const char *charset = strchr(value, '.');
		return !charset || strncasecmp(charset + 1, "utf", 3) == 0;
	}
	return true;
}

/* Prints the beginning of a list item: leading spaces, a word and the spaces after it. Returns its length; 0: not a list item. */
static size_t print_item(const char *line)
{
	size_t length = strspn(line, " ");
	if (length < 2) return 0;
	length += strcspn(line + length, " \n");
	length += strspn(line + length, " ");
	fwrite(line, 1, length, stdout);
	return length;
}

/* Columns of the first [length] bytes of [text]; escape sequences of styles count as none. */
static int columns_of(const char *text, size_t length)
{
	int columns = 0;
	for (size_t at = 0, bytes; at < length; at += bytes) {
		if (text[at] == '\033' && text[at + 1] == '[') {
			bytes = strcspn(text + at, "m") + 1;
			continue;
		}
		columns += (int)hr__width_of_character(text + at, &bytes);
	}
	return columns;
}

void hr__term_wrap(const char *text, int indent, int column, int width)
{
	int left = indent; /* indentation of further lines; in a list item, the column after its name */
	bool begins = true;
	while (*text) {
		size_t item = begins ? print_item(text) : 0, word = strcspn(text += item, " \n");
		int columns = columns_of(text, word);
		begins = false;
		if (item) left = column += (int)item;
		if (column > left && column + 1 + columns > width) {
			printf("\n%*s", left, "");
			column = left;
		} else if (column > left) {
			putchar(' ');
			column++;
		}
		fwrite(text, 1, word, stdout);
		column += columns;
		text += word;
		while (*text == ' ') text++;
		if (*text != '\n') continue;
		printf("\n%*s", indent, "");
		column = left = indent;
		begins = true;
		text++;
	}
	putchar('\n');
}

/* ---- progress ---- */

void hr__progress_begin(hr__progress *progress)
{
	*progress = (hr__progress){ .label = "", .started_ns = hr__os()->clock_ns(), .enabled = hr__term_can(stderr) };
}

void hr__progress_phase(hr__progress *progress, const char *label, double to)
{
	progress->label = label;
	progress->from = progress->to;
	progress->to = to;
}

static void draw(const hr__progress *progress, double done)
{
	bool utf8 = hr__term_utf8();
	int full = (int)(done * BAR_CELLS);
	fprintf(stderr, "\r%s%-18s%s ", hr__style(stderr, HR__STYLE_STRONG), progress->label, hr__style(stderr, HR__STYLE_PLAIN));
	fputs(hr__style(stderr, HR__STYLE_IN_USE), stderr);
	for (int i = 0; i < full; i++) fputs(utf8 ? "\u2588" : "#", stderr);
	fputs(hr__style(stderr, HR__STYLE_FREE), stderr);
	for (int i = full; i < BAR_CELLS; i++) fputs(utf8 ? "\u2591" : "-", stderr);
	fprintf(stderr, "%s %3d%% ", hr__style(stderr, HR__STYLE_PLAIN), (int)(done * 100));
	fflush(stderr);
}

void hr__progress_show(hr__progress *progress, double done)
{
	if (!progress || !progress->enabled) return;
	uint64_t now = hr__os()->clock_ns();
	if (now - progress->started_ns < SHOW_AFTER_NS || now - progress->drawn_ns < REDRAW_NS) return;
	done = done < 0 ? 0 : done > 1 ? 1 : done;
	draw(progress, progress->from + done * (progress->to - progress->from));
	progress->drawn_ns = now;
	progress->visible = true;
}

void hr__progress_hide(hr__progress *progress)
{
	if (progress->visible) fputs("\r\033[K", stderr);
	progress->visible = false;
}

void hr__progress_end(hr__progress *progress)
{
	hr__progress_hide(progress);
	progress->enabled = false;
}
