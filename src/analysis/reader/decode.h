/* decode.h - decodes the records of one block. Accesses only the bytes it is given; safe on any input.
 *
 * Events are returned as in the file: time in units, names and shapes as numbers of the file. The reader translates them. */
#ifndef HR_TRACE_DECODE_H
#define HR_TRACE_DECODE_H

#include "core/trace/format.h"

/* State between records: the position, and the values that the fields of the next record are relative to.
 *
 * A block can be decoded in pieces, by callers that need only events. [beyond] is the number of bytes of the block after [end]; the
 * part of a record in them is skipped unread: definitions, records of unknown kinds and extensions of events. */
typedef struct hr__decoder {
	const uint8_t *at, *end;
	uint64_t beyond;
	uint64_t skip;    /* bytes of beyond that belong to records already read */
	bool events_only; /* skip definitions */
	uint64_t time;   /* of the last event, in units since the start of the recording */
	uint32_t thread; /* thread of the next event */
	uint64_t address;
	uint32_t allocator, stream, op, scope, tag, shape, dtype;
} hr__decoder;

/* A definition record. Texts point into the block and are not terminated by 0. */
typedef struct hr__definition {
	unsigned kind; /* HR__RECORD_NAME, _SHAPE, _DEVICE, _ALLOCATOR, _LIMIT, _FRAME or _STACK */
	uint32_t number;
	const char *text; /* the name; unused for shapes */
	size_t text_length;
	const char *text2; /* allocator: its kind */
	size_t text2_length;
	uint32_t device;      /* allocator: number of its device */
	uint64_t limit, page; /* of a device; limit also of an allocator */
	int rank;             /* shape */
	int64_t dims[HR_SHAPE_MAX_RANK];
	hr_frame frame;       /* names are numbers of the file */
	size_t frame_count;   /* stack */
	uint16_t frames[HR_STACK_DEPTH_MAX]; /* numbers of the file, innermost first */
} hr__definition;

typedef enum hr__decoded {
	HR__DECODED_EVENT,
	HR__DECODED_DEFINITION,
	HR__DECODED_END, /* no more records: in this piece when beyond > skip, otherwise in the block */
	HR__DECODED_CUT, /* the bytes end inside the record that begins at decoder->at */
	HR__DECODED_BAD, /* the record at decoder->at is invalid; *why gives the reason */
} hr__decoded;

/* A piece is finished when fewer bytes are left than decoding any record may read. */
#define HR__DECODE_AHEAD 128u
_Static_assert(HR__DECODE_AHEAD >= HR__EVENT_RECORD_MAX + 2 * 4 + 9, "an event, with longer varints than Headroom writes, and its extension up to the stack");

/* Starts at the first of [length] bytes of records. [thread] and [first_time] are from the header of the block. */
void hr__decoder_start(hr__decoder *decoder, const void *records, size_t length, uint32_t thread, uint64_t first_time);

/* After HR__DECODED_END with beyond > skip: continues in [piece], [length] bytes that begin decoder->skip bytes after decoder->at
 * and are followed by [beyond] more. At least HR__DECODE_AHEAD bytes, unless they are the last of the block. */
void hr__decoder_go_on(hr__decoder *decoder, const void *piece, size_t length, uint64_t beyond);

/* Decodes up to the next event or definition. Sets [event] (time_ns is in units), [definition] or [why], according to the result;
 * the others are undefined. After CUT and BAD the decoder must not be used again. */
hr__decoded hr__decode(hr__decoder *decoder, hr__event *event, hr__definition *definition, const char **why);

#endif
