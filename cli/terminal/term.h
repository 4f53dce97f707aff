/* term.h - the terminal: colours, width, wrapped text, a progress bar. */
#ifndef HR_CLI_TERM_H
#define HR_CLI_TERM_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* name, escape sequence */
#define HR__STYLE_TABLE(X)      \
	X(PLAIN, "\033[0m")         \
	X(STRONG, "\033[1m")        \
	X(DIM, "\033[2m")           \
	X(HEADING, "\033[1;36m")    \
	X(ERROR, "\033[1;31m")      \
	X(GOOD, "\033[1;32m")       \
	X(IN_USE, "\033[38;5;39m")  \
	X(SMALL, "\033[38;5;141m")  \
	X(CACHED, "\033[38;5;179m") \
	X(FREE, "\033[38;5;240m")

typedef enum hr__style_name {
#define HR__STYLE_ENUM(name, sequence) HR__STYLE_##name,
	HR__STYLE_TABLE(HR__STYLE_ENUM)
#undef HR__STYLE_ENUM
} hr__style_name;

/* The escape sequence of a style; "" unless [file] is standard output or error on a terminal and NO_COLOR is not set. */
const char *hr__style(FILE *file, hr__style_name style);

/* Columns of standard output's terminal, from 40 to 200: COLUMNS if set, else the terminal's width, else 100. */
int hr__term_width(void);

/* The same for tables and labelled lines, but 80 when unknown. */
int hr__term_table_width(void);

/* Columns for prose: those of the terminal, at most 100, because longer lines are hard to read. */
int hr__term_text_width(void);

/* Whether block characters can be printed; otherwise charts are drawn in ASCII. */
bool hr__term_utf8(void);

/* Whether [file] is a terminal that supports escape sequences. */
bool hr__term_can(FILE *file);

/* Prints [text] to standard output in lines of at most [width] columns. The first line begins at column [column], the others are
 * indented by [indent]. A line that begins with two spaces is a list item: a word, then its description in a column of its own. */
void hr__term_wrap(const char *text, int indent, int column, int width);

/* ---- progress ---- */

/* A progress bar on standard error. It appears only on a terminal, and only after half a second of work. Work has phases, each with
 * a share of the bar. */
typedef struct hr__progress {
	const char *label; /* of the current phase */
	double from, to;   /* share of the bar of the current phase */
	uint64_t started_ns, drawn_ns;
	bool enabled, visible;
} hr__progress;

void hr__progress_begin(hr__progress *progress);
/* Begins a phase, whose share of the bar ends at [to], 0 to 1. */
void hr__progress_phase(hr__progress *progress, const char *label, double to);
/* [done] is the finished share of the phase, 0 to 1. Cheap to call often; NULL is allowed. */
void hr__progress_show(hr__progress *progress, double done);
/* Erases the bar before other output; the next hr__progress_show draws it again. */
void hr__progress_hide(hr__progress *progress);
/* Erases the bar permanently. */
void hr__progress_end(hr__progress *progress);

#endif
