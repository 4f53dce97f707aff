/* fields.c - see fields.h. */
#include "analysis/import/fields.h"

#include <string.h>

#include "analysis/import/quote.h"
#include "core/base/status.h"

size_t hr__fields_split(hr__source_line *line, hr__field *fields, size_t most)
{
	char *at = line->text, *end = line->text + line->length;
	size_t count = 0;
	for (;;) {
		char *comma = count + 1 < most ? memchr(at, ',', (size_t)(end - at)) : NULL;
		fields[count++] = (hr__field){ at, (size_t)((comma ? comma : end) - at) };
		if (!comma) return count;
		*comma = 0;
		at = comma + 1;
	}
}

static int digit_of(char c)
{
	if (c >= '0' && c <= '9') return c - '0';
	if (c >= 'a' && c <= 'f') return c - 'a' + 10;
	if (c >= 'A' && c <= 'F') return c - 'A' + 10;
	return 16;
}

hr_status hr__field_number(const hr__field *field, const char *name, int base, uint64_t *out)
{
	const char *at = field->text, *end = field->text + field->length;
	char quoted[HR__QUOTE_BYTES];
	uint64_t value = 0;
	if (base == 16 && end - at > 2 && at[0] == '0' && (at[1] == 'x' || at[1] == 'X')) at += 2;
	bool good = at < end, fits = true;
	for (; good && at < end; at++) {
		int digit = digit_of(*at);
		good = digit < base;
		fits = fits && !__builtin_mul_overflow(value, (uint64_t)base, &value) &&
		       !__builtin_add_overflow(value, (uint64_t)digit, &value);
	}
	if (good && fits) {
		*out = value;
		return HR_OK;
	}
	hr__quote(field->text, field->length, quoted);
	if (good) return hr__fail(HR_BAD_FORMAT, "%s is %s, which does not fit in 64 bits", name, quoted);
	return hr__fail(HR_BAD_FORMAT, "%s is %s; expected a %snumber", name, quoted, base == 16 ? "hexadecimal " : "whole ");
}
