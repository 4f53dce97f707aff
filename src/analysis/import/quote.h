/* quote.h - untrusted text (from a file or an argument) made safe for messages: short, printable, in quotes. */
#ifndef HR_IMPORT_QUOTE_H
#define HR_IMPORT_QUOTE_H

#include <stddef.h>
#include <stdio.h>

#define HR__QUOTE_BYTES 96

/* Writes [length] bytes of [text] in double quotes. Control characters and invalid UTF-8 are written as \xNN; long text is cut and
 * ends in "...". Returns [out]. */
const char *hr__quote(const char *text, size_t length, char out[HR__QUOTE_BYTES]);

/* Prints all of [text] in the same way, without quotes: for messages that may contain names from a file. */
void hr__print_quoted(FILE *file, const char *text);

#endif
