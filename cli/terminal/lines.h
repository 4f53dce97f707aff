/* lines.h - output as labelled lines that fit the terminal:
 *
 *     peak          28.2 GiB live (30,247,192,064 bytes), at event 1,234
 *     step          number 3, 2,692 ops that take 268.00 ms; in the middle of 3
 *                   that take 260.37 to 283.59 ms
 */
#ifndef HR_CLI_LINES_H
#define HR_CLI_LINES_H

/* Begins a line with [label]; "" indents it under the previous one. */
void hr__line_begin(const char *label);
/* Appends to the line. Text that ends with a newline prints the line, wrapped to the terminal's width. Escape sequences of styles
 * (term.h) count as no columns. */
void hr__line_add(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Appends untrusted text, with control characters escaped. */
void hr__line_add_quoted(const char *text);

#endif
