/* quote.c - see quote.h. */
#include "analysis/import/quote.h"

#include <stdio.h>
#include <string.h>

#include "core/base/text/text.h"

#define ROOM (HR__QUOTE_BYTES - 6) /* space for text, without the dots, the closing quote and the final 0 */

const char *hr__quote(const char *text, size_t length, char out[HR__QUOTE_BYTES])
{
	char whole[4 * HR__QUOTE_BYTES]; /* an escaped byte takes 4 */
	size_t most = length < HR__QUOTE_BYTES ? length : HR__QUOTE_BYTES;
	hr__text_escape(text, most, whole, sizeof whole);
	size_t used = 1 + hr__text_escape(text, most, out + 1, ROOM);
	out[0] = '"';
	snprintf(out + used, HR__QUOTE_BYTES - used, "%s\"", strlen(whole) > used - 1 || most < length ? "..." : "");
	return out;
}

void hr__print_quoted(FILE *file, const char *text)
{
	for (size_t left = strlen(text), bytes; left > 0; left -= bytes, text += bytes) {
		bytes = hr__utf8_printable(text, left);
		if (bytes) fwrite(text, 1, bytes, file);
		else fprintf(file, "\\x%02X", (unsigned char)*text);
		if (!bytes) bytes = 1;
	}
}
