/* json_scan.c - see json_scan.h. */
#include "analysis/import/json_scan.h"

#include <string.h>

#include "analysis/import/quote.h"
#include "core/base/status.h"

/* ---- bytes ---- */

bool hr__json_scan_refill(hr__json_scan *scan)
{
	size_t count = 0;
	if (scan->status) return false;
	hr__source_skip(scan->source, (size_t)(scan->at - scan->begin));
	scan->status = hr__source_peek(scan->source, &scan->begin, &count);
	if (scan->status) count = 0;
	scan->at = scan->begin;
	scan->end = scan->begin + count;
	return count > 0;
}

uint64_t hr__json_scan_offset(const hr__json_scan *scan)
{
	return hr__source_offset(scan->source) + (uint64_t)(scan->at - scan->begin);
}

bool hr__json_scan_expected(hr__json_scan *scan, const char *what)
{
	char found[HR__QUOTE_BYTES] = "the end of the file";
	int byte = hr__json_scan_look(scan);
	if (scan->status) return false;
	if (byte != HR__JSON_END) hr__quote(scan->at, 1, found);
	hr_status status = byte == HR__JSON_END ? HR_TRUNCATED : HR_BAD_FORMAT;
	hr__fail(status, "expected %s, found %s", what, found);
	scan->status = hr__source_fail_byte(scan->source, status, hr__json_scan_offset(scan));
	return false;
}

int hr__json_scan_look_past_space(hr__json_scan *scan)
{
	int byte;
	while ((byte = hr__json_scan_look(scan)) == ' ' || byte == '\n' || byte == '\t' || byte == '\r') scan->at++;
	return byte;
}

bool hr__json_scan_take_this(hr__json_scan *scan, char wanted, const char *what)
{
	if (hr__json_scan_look_past_space(scan) != wanted) return hr__json_scan_expected(scan, what);
	scan->at++;
	return true;
}

/* ---- skipping and copying values ---- */

static bool keep(hr__json_scan *scan, int byte)
{
	hr_status status = HR_OK;
	if (scan->text.count == HR__JSON_VALUE_BYTES_MAX) return hr__json_scan_expected(scan, "an entry of at most 16 MiB");
	if (scan->text.count == scan->text.capacity) status = hr__list_reserve(&scan->text, scan->text.count + 1);
	if (status) return scan->status = status, false;
	((char *)scan->text.items)[scan->text.count++] = (char)byte;
	return true;
}

/* Brackets are counted without checking their type: jansson checks copied text, and skipped text does not matter. */
bool hr__json_scan_value(hr__json_scan *scan, bool cut)
{
	uint64_t depth = 0;
	bool in_string = false, escaped = false;
	int first = hr__json_scan_look_past_space(scan);
	if (first == HR__JSON_END || first == ',' || first == ']' || first == '}' || first == ':') return hr__json_scan_expected(scan, "a value");
	for (;;) {
		int byte = hr__json_scan_look(scan);
		bool ends_bare = !in_string && depth == 0 && (byte == HR__JSON_END || strchr(",]} \n\t\r", byte));
		if (ends_bare && byte != 0) return scan->status == HR_OK;
		if (byte == HR__JSON_END) return hr__json_scan_expected(scan, in_string ? "the end of a string" : "a closing bracket");
		scan->at++;
		if (cut && !keep(scan, byte)) return false;
		if (in_string) {
			in_string = escaped || byte != '"';
			escaped = !escaped && byte == '\\';
			if (!in_string && depth == 0) return true;
		} else if (byte == '"') {
			in_string = true;
		} else if (byte == '{' || byte == '[') {
			depth++;
		} else if (byte == '}' || byte == ']') {
			if (--depth == 0) return true;
		}
	}
}

bool hr__json_scan_key(hr__json_scan *scan, char key[HR__JSON_KEY_BYTES])
{
	size_t length = 0;
	bool escaped = false;
	if (!hr__json_scan_take_this(scan, '"', "a key in double quotes")) return false;
	for (;;) {
		int byte = hr__json_scan_take(scan);
		if (byte == HR__JSON_END) return hr__json_scan_expected(scan, "the end of a key");
		if (byte == '"' && !escaped) break;
		escaped = !escaped && byte == '\\';
		if (length + 1 < HR__JSON_KEY_BYTES) key[length++] = (char)byte;
	}
	key[length] = 0;
	return hr__json_scan_take_this(scan, ':', "':' behind a key");
}
