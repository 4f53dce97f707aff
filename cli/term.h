/* term.h - the terminal: colours where they are wanted, its width, a progress bar. */
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

/* Columns of the terminal of standard output: what COLUMNS or the terminal says, from 40 to 200; 100 when neither does. */
int hr__term_width(void);

/* The same for tables and lines with a label; 80 when neither does. */
int hr__term_table_width(void);

/* Columns for running text: those of the terminal, at most 100, since longer lines are hard to read. */
int hr__term_text_width(void);

/* Whether the locale can show block characters; without it pictures are drawn in ASCII. */
bool hr__term_utf8(void);

/* Whether [file] is a terminal that obeys escape sequences. */
bool hr__term_can(FILE *file);

/* Prints [text] to standard output in lines of at most [width] columns, those after the first indented; the first begins at column [column]. A line that
 * begins with two spaces is an item of a list: a word, and what is said of it in a column of its own. */
void hr__term_wrap(const char *text, int indent, int column, int width);

/* ---- progress ---- */

/* A bar on standard error. It appears only on a terminal, and only when the work has taken more than half a second. Work has
 * phases, each with a share of the bar. */
typedef struct hr__progress {
	const char *label; /* of the phase */
	double from, to;   /* the phase's part of the bar */
	uint64_t started_ns, drawn_ns;
	bool enabled, visible;
} hr__progress;

void hr__progress_begin(hr__progress *progress);
/* What follows fills the bar from where the phase before ended up to [to], 0 to 1. */
void hr__progress_phase(hr__progress *progress, const char *label, double to);
/* [done] is the share of the phase that is done, 0 to 1. Cheap to call often; NULL is allowed. */
void hr__progress_show(hr__progress *progress, double done);
/* Wipes the bar, so that something can be printed; it comes back. */
void hr__progress_hide(hr__progress *progress);
/* Wipes it for good. */
void hr__progress_end(hr__progress *progress);

#endif
