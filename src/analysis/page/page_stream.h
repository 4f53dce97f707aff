/* page_stream.h - encodes the data of a page: numbers as varints, and everything as base64.
 *
 * A varint has 7 bits per byte, lowest first; the high bit says that more bytes follow. Base64 cannot end the HTML element that
 * contains the data, whatever names the program gave to its ops. The file remembers write failures and reports them when it is
 * closed. */
#ifndef HR_PROFILE_PAGE_STREAM_H
#define HR_PROFILE_PAGE_STREAM_H

#include <stdint.h>
#include <string.h>

#include "analysis/export/export_file.h"

typedef struct hr__page_stream {
	hr__export_file *file;
	uint8_t bytes[3 * 4096];
	size_t used;
} hr__page_stream;

static inline void hr__page_text_out(hr__page_stream *stream, const char *text, size_t length)
{
	hr__export_file_write(stream->file, text, length);
}

/* Writes the buffered bytes. At the end of the data, also encodes the last one or two bytes. */
static inline void hr__page_flush(hr__page_stream *stream)
{
	static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
	char out[4 * 4096];
	size_t length = 0;
	memset(stream->bytes + stream->used, 0, stream->used % 3 ? 3 - stream->used % 3 : 0);
	for (size_t i = 0; i < stream->used; i += 3) {
		uint32_t bits = (uint32_t)stream->bytes[i] << 16 | (uint32_t)stream->bytes[i + 1] << 8 | stream->bytes[i + 2];
		size_t left = stream->used - i;
		out[length++] = digits[bits >> 18];
		out[length++] = digits[bits >> 12 & 63];
		out[length++] = left > 1 ? digits[bits >> 6 & 63] : '=';
		out[length++] = left > 2 ? digits[bits & 63] : '=';
	}
	hr__page_text_out(stream, out, length);
	stream->used = 0;
}

static inline void hr__page_byte(hr__page_stream *stream, uint8_t byte)
{
	stream->bytes[stream->used++] = byte;
	if (stream->used == sizeof stream->bytes) hr__page_flush(stream);
}

static inline void hr__page_number(hr__page_stream *stream, uint64_t value)
{
	for (; value > 127; value >>= 7) hr__page_byte(stream, (uint8_t)(value | 128));
	hr__page_byte(stream, (uint8_t)value);
}

static inline void hr__page_signed(hr__page_stream *stream, int64_t value)
{
	hr__page_number(stream, (uint64_t)value << 1 ^ (value < 0 ? UINT64_MAX : 0));
}

static inline void hr__page_string(hr__page_stream *stream, const char *text, size_t length)
{
	hr__page_number(stream, length);
	for (size_t i = 0; i < length; i++) hr__page_byte(stream, (uint8_t)text[i]);
}

#endif
