/* lines.c - see lines.h. */
#include "terminal/lines.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/base/text/text.h"
#include "terminal/term.h"

#define LABEL_WIDTH 14
#define LINE_BYTES 8192u

static char line[LINE_BYTES]; /* text added since hr__line_begin */
static size_t length;

void hr__line_begin(const char *label)
{
	length = 0;
	printf("%s%-*s%s", hr__style(stdout, HR__STYLE_STRONG), LABEL_WIDTH, label, hr__style(stdout, HR__STYLE_PLAIN));
}

void hr__line_add(const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	int added = vsnprintf(line + length, LINE_BYTES - length, format, arguments);
	va_end(arguments);
	if (added < 0) return;
	length += (size_t)added < LINE_BYTES - length ? (size_t)added : LINE_BYTES - length - 1;
	if (!length || (line[length - 1] != '\n' && length + 1 < LINE_BYTES)) return;
	if (line[length - 1] == '\n') length--;
	line[length] = 0;
	hr__term_wrap(line, LABEL_WIDTH, LABEL_WIDTH, hr__term_table_width());
	length = 0;
}

void hr__line_add_quoted(const char *text)
{
	char quoted[2048];
	hr__text_escape(text, strlen(text), quoted, sizeof quoted);
	hr__line_add("%s", quoted);
}
