/* quote.h - text from outside (a file, an argument) made fit for a message: short, printable, in quotes. */
#ifndef HR_CLI_QUOTE_H
#define HR_CLI_QUOTE_H

#include <stddef.h>
#include <stdio.h>

#define HR__QUOTE_BYTES 96

/* Writes [length] bytes of [text] in double quotes; what is neither printable ASCII nor UTF-8 as \xNN, a long text cut with "...".
 * Returns [out]. */
const char *hr__quote(const char *text, size_t length, char out[HR__QUOTE_BYTES]);

/* Prints a whole text in the same way, without the quotes: a message of the library that may have names from a file in it. */
void hr__print_quoted(FILE *file, const char *text);

/* The same to [out], with a final 0; cut where it is full. */
void hr__quote_text(const char *text, char *out, size_t capacity);

#endif
