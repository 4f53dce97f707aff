/* quote.c - see quote.h. */
#include "quote.h"

#include <stdio.h>
#include <string.h>

#include "base/text.h"

#define ROOM (HR__QUOTE_BYTES - 6) /* without the dots, the closing quote and the final 0 */

const char *hr__quote(const char *text, size_t length, char out[HR__QUOTE_BYTES])
{
	size_t used = 0, at = 0;
	out[used++] = '"';
	while (at < length) {
		unsigned char first = (unsigned char)text[at];
		size_t bytes = hr__utf8_character(text + at, length - at);
		/* U+0080 to U+009F move a terminal's cursor as well as the ASCII ones do. */
		bool plain = bytes > 0 && first >= 0x20 && first != 0x7F && !(first == 0xC2 && (unsigned char)text[at + 1] < 0xA0);
		size_t written = plain ? bytes : 4;
		if (used + written > ROOM) break;
		if (plain) memcpy(out + used, text + at, bytes);
		else snprintf(out + used, 5, "\\x%02X", first);
		used += written;
		at += plain ? bytes : 1;
	}
	snprintf(out + used, HR__QUOTE_BYTES - used, "%s\"", at < length ? "..." : "");
	return out;
}
