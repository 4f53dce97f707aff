/* decode.h - one block's records, one after the other. Touches nothing but the bytes it is given; safe on any.
 *
 * Events come out as they are in the file: time in units, names and shapes as numbers of the file. The reader translates. */
#ifndef HR_TRACE_DECODE_H
#define HR_TRACE_DECODE_H

#include "trace/format.h"

/* State between records: where it is, and what the next record's fields are differences to.
 *
 * A block may be given in pieces, to one who wants events only. [beyond] is how many bytes of it come after [end]; those that a record has there
 * are skipped, not looked at: definitions, records of unknown kinds and extensions of events. */
typedef struct hr__decoder {
	const uint8_t *at, *end;
	uint64_t beyond;
	uint64_t skip;    /* of beyond: belong to records that were read already */
	bool events_only; /* definitions are skipped */
	uint64_t time;   /* of the last event, in units since the start of the recording */
	uint32_t thread; /* that the next event belongs to */
	uint64_t address;
	uint32_t allocator, stream, op, scope, tag, shape, dtype;
} hr__decoder;

/* A definition record. Texts point into the block and do not end in 0. */
typedef struct hr__definition {
	unsigned kind; /* HR__RECORD_NAME, _SHAPE, _DEVICE, _ALLOCATOR or _LIMIT */
	uint32_t number;
	const char *text; /* the name; not of shapes */
	size_t text_length;
	const char *text2; /* allocator: its kind */
	size_t text2_length;
	uint32_t device;      /* allocator: number of its device */
	uint64_t limit, page; /* device; limit: of an allocator too */
	int rank;             /* shape */
	int64_t dims[HR_SHAPE_MAX_RANK];
} hr__definition;

typedef enum hr__decoded {
	HR__DECODED_EVENT,
	HR__DECODED_DEFINITION,
	HR__DECODED_END, /* no more records: of this piece when beyond > skip, otherwise of the block */
	HR__DECODED_CUT, /* the bytes end inside a record, which begins at decoder->at */
	HR__DECODED_BAD, /* the record at decoder->at is impossible; *why says how */
} hr__decoded;

/* A piece is left when fewer bytes of it are there than are looked at of any record. */
#define HR__DECODE_AHEAD 128u
_Static_assert(HR__DECODE_AHEAD >= HR__EVENT_RECORD_MAX + 2 * 4 + 9, "an event, with longer varints than Headroom writes, and the length of its extension");

/* Starts at the first of [length] bytes of records, of a block with these values in its header. */
void hr__decoder_start(hr__decoder *decoder, const void *records, size_t length, uint32_t thread, uint64_t first_time);

/* After HR__DECODED_END with beyond > skip: goes on in [piece], [length] bytes that begin decoder->skip bytes behind decoder->at, and that [beyond]
 * bytes follow. At least HR__DECODE_AHEAD bytes, unless they are the block's last. */
void hr__decoder_go_on(hr__decoder *decoder, const void *piece, size_t length, uint64_t beyond);

/* Reads on to the next event or definition. [event] gets its fields (time_ns is in units), [definition] or [why] theirs; the other
 * out-parameters are left in any state. After CUT and BAD the decoder must not be used further. */
hr__decoded hr__decode(hr__decoder *decoder, hr__event *event, hr__definition *definition, const char **why);

#endif
