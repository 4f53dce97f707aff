/* lines.h - output as a label and what it is about, in lines that fit the terminal:
 *
 *     peak          28.2 GiB live (30,247,192,064 bytes), at event 1,234
 *     step          number 3, 2,692 ops that take 268.00 ms; in the middle of 3
 *                   that take 260.37 to 283.59 ms
 */
#ifndef HR_CLI_LINES_H
#define HR_CLI_LINES_H

/* A new line with [label]; "" goes on under the one before. */
void hr__line_begin(const char *label);
/* Adds to the line. One that ends with a newline is printed, broken where the terminal ends. Styles (term.h) take no columns. */
void hr__line_add(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Adds text of others, without anything that a terminal would obey. */
void hr__line_add_quoted(const char *text);

#endif
