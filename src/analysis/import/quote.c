/* quote.c - see quote.h. */
#include "analysis/import/quote.h"

#include <stdio.h>
#include <string.h>

#include "core/base/text.h"

#define ROOM (HR__QUOTE_BYTES - 6) /* space for text, without the dots, the closing quote and the final 0 */

/* Writes the printable form of the character at [text] to [out], which has room for 5 bytes, with a final 0. Returns the bytes of
 * [text] consumed. */
static size_t quote_character(const char *text, size_t length, char *out)
{
	unsigned char first = (unsigned char)text[0];
	size_t bytes = hr__utf8_character(text, length);
	/* U+0080 to U+009F are control characters of terminals, as the ASCII ones are. */
	bool plain = bytes > 0 && first >= 0x20 && first != 0x7F && !(first == 0xC2 && (unsigned char)text[1] < 0xA0);
	if (plain) memcpy(out, text, bytes);
	else snprintf(out, 5, "\\x%02X", first);
	if (plain) out[bytes] = 0;
	return plain ? bytes : 1;
}

const char *hr__quote(const char *text, size_t length, char out[HR__QUOTE_BYTES])
{
	size_t used = 0, at = 0;
	out[used++] = '"';
	while (at < length) {
		char character[5];
		size_t taken = quote_character(text + at, length - at, character), written = strlen(character);
		if (used + written > ROOM) break;
		memcpy(out + used, character, written);
		used += written;
		at += taken;
	}
	snprintf(out + used, HR__QUOTE_BYTES - used, "%s\"", at < length ? "..." : "");
	return out;
}

void hr__print_quoted(FILE *file, const char *text)
{
	for (size_t left = strlen(text); left > 0;) {
		char character[5];
		size_t taken = quote_character(text, left, character);
		fputs(character, file);
		text += taken;
		left -= taken;
	}
}

void hr__quote_text(const char *text, char *out, size_t capacity)
{
	size_t used = 0;
	for (size_t left = strlen(text); left > 0;) {
		char character[5];
		size_t taken = quote_character(text, left, character), written = strlen(character);
		if (used + written >= capacity) break;
		memcpy(out + used, character, written);
		used += written;
		text += taken;
		left -= taken;
	}
	out[used] = 0;
}
