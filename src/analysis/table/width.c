/* width.c - see width.h. The tables omit scripts whose combining marks are rare in names: one column too many is harmless, one too
 * few breaks a table. */
#include "analysis/table/width.h"

#include <stdbool.h>
#include <string.h>

#include "core/base/text/text.h"

typedef struct range {
	uint32_t first, last;
} range;

static const range none[] = {
	{ 0x0300, 0x036F }, { 0x0483, 0x0489 }, { 0x0591, 0x05BD }, { 0x0610, 0x061A }, { 0x064B, 0x065F }, { 0x0E34, 0x0E3A }, { 0x0E47, 0x0E4E },
	{ 0x1AB0, 0x1ACE }, { 0x1DC0, 0x1DFF }, { 0x200B, 0x200F }, { 0x202A, 0x202E }, { 0x2060, 0x2064 }, { 0x2066, 0x206F }, { 0x20D0, 0x20F0 },
	{ 0x302A, 0x302D }, { 0x3099, 0x309A }, { 0xFE00, 0xFE0F }, { 0xFE20, 0xFE2F }, { 0xFEFF, 0xFEFF }, { 0xE0100, 0xE01EF },
};

static const range two[] = {
	{ 0x1100, 0x115F }, { 0x231A, 0x231B }, { 0x2329, 0x232A }, { 0x23E9, 0x23EC }, { 0x23F0, 0x23F3 }, { 0x25FD, 0x25FE }, { 0x2614, 0x2615 },
	{ 0x2648, 0x2653 }, { 0x267F, 0x27BF }, { 0x2B1B, 0x2B1C }, { 0x2B50, 0x2B55 }, { 0x2E80, 0x303E }, { 0x3041, 0xA4CF }, { 0xA960, 0xA97C },
	{ 0xAC00, 0xD7A3 }, { 0xF900, 0xFAFF }, { 0xFE10, 0xFE19 }, { 0xFE30, 0xFE6B }, { 0xFF01, 0xFF60 }, { 0xFFE0, 0xFFE6 }, { 0x16FE0, 0x18D08 },
	{ 0x1AFF0, 0x1B2FB }, { 0x1F004, 0x1F004 }, { 0x1F0CF, 0x1F0CF }, { 0x1F18E, 0x1F19A }, { 0x1F200, 0x1F64F }, { 0x1F680, 0x1F6FF },
	{ 0x1F7E0, 0x1F7F0 }, { 0x1F90C, 0x1F9FF }, { 0x1FA70, 0x1FAFF }, { 0x20000, 0x3FFFD },
};

static bool is_in(const range *ranges, size_t count, uint32_t character)
{
	size_t low = 0;
	while (count) {
		size_t half = count / 2;
		if (ranges[low + half].last < character) {
			low += half + 1;
			count -= half + 1;
		} else if (ranges[low + half].first > character) {
			count = half;
		} else {
			return true;
		}
	}
	return false;
}

uint32_t hr__width_of_character(const char *text, size_t *bytes)
{
	size_t length = hr__utf8_character(text, strnlen(text, 4));
	uint32_t character = (unsigned char)*text;
	*bytes = length ? length : 1;
	if (length < 2) return 1;
	character &= 0xFFu >> (length + 1);
	for (size_t i = 1; i < length; i++) character = character << 6 | ((unsigned char)text[i] & 0x3F);
	if (is_in(none, sizeof none / sizeof *none, character)) return 0;
	return is_in(two, sizeof two / sizeof *two, character) ? 2 : 1;
}

uint32_t hr__width_of(const char *text)
{
	uint32_t width = 0;
	for (size_t bytes; *text; text += bytes) width += hr__width_of_character(text, &bytes);
	return width;
}
