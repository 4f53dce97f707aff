/* protobuf.c - see protobuf.h. */
#include "analysis/export/protobuf.h"

#include <string.h>

#include "core/base/assert.h"

enum { VARINT = 0, FIXED64 = 1, LENGTH = 2 };

static size_t put_varint(uint64_t value, uint8_t *out)
{
	size_t used = 0;
	for (; value >= 0x80; value >>= 7) out[used++] = (uint8_t)(value | 0x80);
	out[used++] = (uint8_t)value;
	return used;
}

static void append(hr__protobuf *message, const void *bytes, size_t length)
{
	HR_ASSERT(length <= HR__PROTOBUF_BYTES - message->used);
	if (length) memcpy(message->bytes + message->used, bytes, length);
	message->used += length;
}

size_t hr__protobuf_header(unsigned field, uint64_t length, uint8_t out[HR__PROTOBUF_HEADER_BYTES])
{
	size_t used = put_varint((uint64_t)field << 3 | LENGTH, out);
	return used + put_varint(length, out + used);
}

void hr__protobuf_number(hr__protobuf *message, unsigned field, uint64_t value)
{
	uint8_t bytes[HR__PROTOBUF_HEADER_BYTES];
	size_t used = put_varint((uint64_t)field << 3 | VARINT, bytes);
	append(message, bytes, used + put_varint(value, bytes + used));
}

void hr__protobuf_double(hr__protobuf *message, unsigned field, double value)
{
	uint8_t bytes[HR__PROTOBUF_HEADER_BYTES];
	size_t used = put_varint((uint64_t)field << 3 | FIXED64, bytes);
	uint64_t bits;
	memcpy(&bits, &value, sizeof bits);
	for (int i = 0; i < 8; i++) bytes[used++] = (uint8_t)(bits >> 8 * i);
	append(message, bytes, used);
}

static void put_bytes(hr__protobuf *message, unsigned field, const void *bytes, size_t length)
{
	uint8_t header[HR__PROTOBUF_HEADER_BYTES];
	append(message, header, hr__protobuf_header(field, length, header));
	append(message, bytes, length);
}

void hr__protobuf_text(hr__protobuf *message, unsigned field, const char *text)
{
	put_bytes(message, field, text, strlen(text));
}

void hr__protobuf_packed(hr__protobuf *message, unsigned field, const uint64_t *values, size_t count)
{
	uint8_t number[HR__PROTOBUF_HEADER_BYTES];
	size_t length = 0;
	for (size_t i = 0; i < count; i++) length += put_varint(values[i], number);
	append(message, number, hr__protobuf_header(field, length, number));
	for (size_t i = 0; i < count; i++) append(message, number, put_varint(values[i], number));
}

void hr__protobuf_message(hr__protobuf *message, unsigned field, const hr__protobuf *part)
{
	put_bytes(message, field, part->bytes, part->used);
}
