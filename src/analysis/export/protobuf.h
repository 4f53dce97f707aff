/* protobuf.h - writes protocol buffers: fields are appended to a message, and complete messages to their parent.
 *
 * Profiles need few kinds of fields, which are simple enough to write without a library:
 *
 *     varint          field << 3 | 0, then the number, 7 bits per byte
 *     double          field << 3 | 1, then 8 bytes
 *     text, message   field << 3 | 2, then the length as a varint, then the bytes */
#ifndef HR_PROFILE_PROTOBUF_H
#define HR_PROFILE_PROTOBUF_H

#include <stddef.h>
#include <stdint.h>

#define HR__PROTOBUF_BYTES 32768        /* of a message; larger messages are written field by field */
#define HR__PROTOBUF_HEADER_BYTES 20    /* of a field, maximum */

typedef struct hr__protobuf {
	size_t used;
	uint8_t bytes[HR__PROTOBUF_BYTES];
} hr__protobuf; /* empty when used is 0 */

void hr__protobuf_number(hr__protobuf *message, unsigned field, uint64_t value); /* a negative int64 is passed as its two's
                                                                                  * complement */
void hr__protobuf_double(hr__protobuf *message, unsigned field, double value);
void hr__protobuf_text(hr__protobuf *message, unsigned field, const char *text);
void hr__protobuf_packed(hr__protobuf *message, unsigned field, const uint64_t *values, size_t count); /* a list of numbers */
void hr__protobuf_message(hr__protobuf *message, unsigned field, const hr__protobuf *part);

/* Writes the header that precedes the [length] bytes of a text or message; returns the header's size. */
size_t hr__protobuf_header(unsigned field, uint64_t length, uint8_t out[HR__PROTOBUF_HEADER_BYTES]);

#endif
