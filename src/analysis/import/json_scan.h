/* json_scan.h - goes through JSON text piece by piece, so that a file of gigabytes is never in memory as a whole: finds lists and keys,
 * skips values, and copies single ones for a parser. */
#ifndef HR_IMPORT_JSON_SCAN_H
#define HR_IMPORT_JSON_SCAN_H

#include "analysis/import/source.h"
#include "analysis/reader/list.h"

#define HR__JSON_END (-1) /* instead of a byte: the end of the text */
#define HR__JSON_KEY_BYTES 64u
#define HR__JSON_VALUE_BYTES_MAX (16u << 20) /* of a value that is copied */

typedef struct hr__json_scan {
	hr__source *source;
	const char *at, *end; /* buffered bytes; those before [at] are not skipped in the source yet */
	const char *begin;
	hr_status status;     /* of the first failure, whose message names the file and the byte; nothing is read after it */
	hr__list text;        /* char: the last value that was copied */
} hr__json_scan;

/* Gets the next bytes of the source; false at its end, or when it failed. */
bool hr__json_scan_refill(hr__json_scan *scan);

/* The next byte, without consuming it, and with consuming it. */
static inline int hr__json_scan_look(hr__json_scan *scan)
{
	if (scan->at == scan->end && !hr__json_scan_refill(scan)) return HR__JSON_END;
	return (unsigned char)*scan->at;
}

static inline int hr__json_scan_take(hr__json_scan *scan)
{
	int byte = hr__json_scan_look(scan);
	if (byte != HR__JSON_END) scan->at++;
	return byte;
}

int hr__json_scan_look_past_space(hr__json_scan *scan);
/* Offset of the next byte. */
uint64_t hr__json_scan_offset(const hr__json_scan *scan);

/* Fails at the next byte, unless reading failed already. Always returns false, as the functions below do when they fail. */
bool hr__json_scan_expected(hr__json_scan *scan, const char *what);
/* Consumes one byte, after space. */
bool hr__json_scan_take_this(hr__json_scan *scan, char wanted, const char *what);
/* Consumes one value of any type, and appends it to the text if [cut]. */
bool hr__json_scan_value(hr__json_scan *scan, bool cut);
/* Consumes a key and the colon behind it. A longer key is truncated. */
bool hr__json_scan_key(hr__json_scan *scan, char key[HR__JSON_KEY_BYTES]);

#endif
