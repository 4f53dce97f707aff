/* decode.c - see decode.h, and docs/trace-format.md for the meaning of the bytes.
 *
 * A cursor reads fields and records the first error. After an error it returns zeros, and the record is judged once, at its end. So
 * callers need not check each field, and no check can be forgotten. */
#include "analysis/reader/decode.h"

#include <string.h>

typedef struct cursor {
	const uint8_t *at, *end;
	uint64_t beyond; /* bytes after end, which can only be skipped */
	uint64_t skip;   /* bytes of beyond that this record skips */
	bool cut;        /* a field did not end before end */
	const char *why; /* the first invalid value; NULL: none */
} cursor;

static void complain(cursor *c, const char *why)
{
	if (!c->cut && c->why == NULL) c->why = why;
}

/* [length] bytes, at most 8, as a number. */
static uint64_t get_fixed(cursor *c, size_t length)
{
	uint64_t value = 0;
	if ((size_t)(c->end - c->at) < length) {
		c->cut = true;
		c->at = c->end;
		return 0;
	}
	memcpy(&value, c->at, length);
	c->at += length;
	return value;
}

static uint64_t get_varint(cursor *c)
{
	uint64_t value;
	if (hr__varint_get(&c->at, c->end, &value)) return value;
	c->cut = true;
	c->at = c->end;
	return 0;
}

static uint32_t get_u32(cursor *c, const char *why)
{
	uint64_t value = get_varint(c);
	if (value > UINT32_MAX) complain(c, why);
	return (uint32_t)value;
}

static uint64_t get_scaled(cursor *c, uint64_t unit, const char *why)
{
	uint64_t value = get_varint(c);
	if (value > UINT64_MAX / unit) complain(c, why);
	return value * unit;
}

/* Reads a varint length and skips that many bytes; *part is set to those of them that are in memory. */
static void get_part(cursor *c, cursor *part)
{
	uint64_t length = get_varint(c), here = (uint64_t)(c->end - c->at);
	*part = (cursor){ .at = c->at, .end = c->at };
	if (length > here && length - here > c->beyond) {
		c->cut = true;
		return;
	}
	if (length > here) c->skip = length - here;
	part->end = c->at += length - c->skip;
}

static const char *take_rest(cursor *c, size_t *length)
{
	const char *text = (const char *)c->at;
	*length = (size_t)(c->end - c->at);
	c->at = c->end;
	return text;
}

/* ---- events ---- */

/* The tag bits allowed for a kind with these fields. */
static uint32_t allowed_bits(uint32_t fields)
{
	uint32_t bits = HR__TAG_KIND | HR__TAG_LATE | HR__TAG_EXTENSION;
	if (fields & HR__CONTEXT_ALL) bits |= HR__TAG_CONTEXT;
	if (fields & HR__HAS_OP) bits |= HR__TAG_OP;
	if (fields & HR__HAS_SCOPE) bits |= HR__TAG_SCOPE;
	if (fields & HR__HAS_SHAPE) bits |= HR__TAG_SHAPE;
	if (fields & HR__HAS_ADDRESS) bits |= HR__TAG_FAR;
	if (fields & HR__HAS_BYTES) bits |= 3u << HR__TAG_SIZE_SHIFT;
	if (fields & HR__HAS_REQUESTED) bits |= HR__TAG_SLACK;
	return bits;
}

static void get_context(hr__decoder *d, cursor *c, uint32_t fields)
{
	uint32_t changed = (uint32_t)get_fixed(c, 1);
	if (changed & ~(fields & HR__CONTEXT_ALL)) complain(c, "the context has a field that the event's kind does not have");
	if (changed & HR__CONTEXT_ALLOCATOR) d->allocator = get_u32(c, "the number of an allocator exceeds 32 bits");
	if (changed & HR__CONTEXT_STREAM) d->stream = get_u32(c, "the number of a stream exceeds 32 bits");
	if (changed & HR__CONTEXT_TAG) d->tag = (uint32_t)get_fixed(c, 2);
	if (changed & HR__CONTEXT_DTYPE) d->dtype = (uint32_t)get_fixed(c, 1);
}

static void get_address(hr__decoder *d, cursor *c, uint32_t tag)
{
	if (tag & HR__TAG_FAR) d->address += hr__unzigzag(get_varint(c));
	else d->address += (uint64_t)(int64_t)(int32_t)(uint32_t)get_fixed(c, 4) * 256;
}

static void get_size(cursor *c, uint32_t tag, uint32_t fields, hr__event *event)
{
	unsigned form = tag >> HR__TAG_SIZE_SHIFT & 3;
	bool has_requested = (fields & HR__HAS_REQUESTED) != 0;
	if (form == HR__SIZE_BOTH) {
		if (!has_requested || (tag & HR__TAG_SLACK)) complain(c, "the event's size has a form that its kind does not have");
		event->bytes = get_varint(c);
		event->requested = get_varint(c);
		return;
	}
	if (form == HR__SIZE_BYTES) event->bytes = get_varint(c);
	if (form == HR__SIZE_256) event->bytes = get_scaled(c, 256, "the event's size exceeds 64 bits");
	uint64_t slack = tag & HR__TAG_SLACK ? get_fixed(c, 1) : 0;
	event->requested = has_requested ? event->bytes - slack : 0;
}

static void get_time(hr__decoder *d, cursor *c, uint32_t tag)
{
	uint64_t difference = tag & HR__TAG_LATE ? get_varint(c) : get_fixed(c, 2);
	if (difference > UINT64_MAX - d->time) complain(c, "the event's time exceeds 64 bits");
	d->time += difference;
}

/* Fields of later versions follow those that are known here, and are skipped. */
static void get_extension(cursor *c, uint32_t fields, hr__event *event)
{
	cursor extension;
	get_part(c, &extension);
	if (!(fields & HR__HAS_STACK) || extension.at == extension.end) return;
	if (get_fixed(&extension, 1) & HR__EXTENSION_STACK) event->stack = (hr_stack)get_fixed(&extension, 2);
	if (extension.cut) complain(c, "the event's extension is shorter than its fields");
}

static void get_event(hr__decoder *d, cursor *c, uint32_t tag, hr__event *event)
{
	unsigned kind = tag & HR__TAG_KIND;
	uint32_t fields = hr__event_fields[kind];
	memset(event, 0, sizeof(*event));
	if (tag & ~allowed_bits(fields)) complain(c, "the event's tag has a bit that its kind does not have");
	if (tag & HR__TAG_CONTEXT) get_context(d, c, fields);
	if (fields & HR__HAS_ADDRESS) {
		get_address(d, c, tag);
		event->address = d->address;
	}
	if (fields & HR__HAS_ADDRESS2) event->address2 = event->address + hr__unzigzag(get_varint(c));
	if (fields & HR__HAS_BYTES) get_size(c, tag, fields, event);
	if (tag & HR__TAG_OP) d->op = (uint32_t)get_fixed(c, 2);
	if (tag & HR__TAG_SCOPE) d->scope = (uint32_t)get_fixed(c, 2);
	if (tag & HR__TAG_SHAPE) d->shape = (uint32_t)get_fixed(c, 2);
	get_time(d, c, tag);
	if (tag & HR__TAG_EXTENSION) get_extension(c, fields, event);
	event->kind = (hr__event_kind)kind;
	event->thread = d->thread;
	event->time_ns = d->time;
	if (fields & HR__HAS_ALLOCATOR) event->allocator = d->allocator;
	if (fields & HR__HAS_STREAM) event->stream = d->stream;
	if (fields & HR__HAS_OP) event->op = d->op;
	if (fields & HR__HAS_SCOPE) event->scope = d->scope;
	if (fields & HR__HAS_TAG) event->tag = d->tag;
	if (fields & HR__HAS_SHAPE) event->shape = d->shape;
	if (fields & HR__HAS_DTYPE) event->dtype = (hr_dtype)d->dtype;
}

/* ---- definitions ---- */

static void check_number(cursor *part, uint32_t number)
{
	bool is_right = number > HR_NAME_OTHER && number < HR__TRACE_IDS_MAX;
	if (!is_right) complain(part, "the number of a name, shape, frame or stack is not from 2 to 65535");
}

/* The number of a name or frame that a definition refers to. */
static uint16_t get_reference(cursor *part)
{
	uint64_t number = get_varint(part);
	if (number >= HR__TRACE_IDS_MAX) complain(part, "a definition refers to a number above 65535");
	return (uint16_t)number;
}

static void get_frame(cursor *part, hr__definition *out)
{
	out->frame.function = get_reference(part);
	out->frame.file = get_reference(part);
	out->frame.line = get_u32(part, "a line exceeds 32 bits");
	out->frame.module = get_reference(part);
	out->frame.offset = get_varint(part);
}

static void get_stack(cursor *part, hr__definition *out)
{
	uint64_t count = get_varint(part);
	if (count == 0 || count > HR_STACK_DEPTH_MAX) {
		complain(part, "a stack does not have from 1 to 128 frames");
		return;
	}
	out->frame_count = (size_t)count;
	for (size_t i = 0; i < out->frame_count; i++) out->frames[i] = get_reference(part);
}

static void get_shape(cursor *part, hr__definition *out)
{
	uint64_t rank = get_varint(part);
	if (rank > HR_SHAPE_MAX_RANK) {
		complain(part, "a shape has more than 8 dimensions");
		return;
	}
	out->rank = (int)rank;
	for (int i = 0; i < out->rank; i++) {
		uint64_t dim = get_varint(part);
		if (dim > INT64_MAX) complain(part, "a dimension exceeds 63 bits");
		out->dims[i] = (int64_t)dim;
	}
}

static void get_allocator(cursor *part, hr__definition *out)
{
	cursor name;
	out->device = get_u32(part, "the number of a device exceeds 32 bits");
	get_part(part, &name);
	out->text = take_rest(&name, &out->text_length);
	out->text2 = take_rest(part, &out->text2_length);
}

/* Reads the payload of a record that is not an event. Returns whether it is a definition. */
static bool get_definition(hr__decoder *d, cursor *part, unsigned kind, hr__definition *out)
{
	if (kind < HR__RECORD_NAME || kind > HR__RECORD_LAST) return false; /* a kind of a later version: skipped */
	if (d->events_only && kind != HR__RECORD_THREAD) return false;
	memset(out, 0, offsetof(hr__definition, frames));
	out->kind = kind;
	out->number = get_u32(part, "a number exceeds 32 bits");
	if (kind == HR__RECORD_NAME || kind == HR__RECORD_SHAPE || kind == HR__RECORD_FRAME || kind == HR__RECORD_STACK) check_number(part, out->number);
	if (kind == HR__RECORD_FRAME) get_frame(part, out);
	if (kind == HR__RECORD_STACK) get_stack(part, out);
	if (kind == HR__RECORD_SHAPE) get_shape(part, out);
	if (kind == HR__RECORD_ALLOCATOR) get_allocator(part, out);
	if (kind == HR__RECORD_DEVICE) {
		out->limit = get_varint(part);
		out->page = get_varint(part);
	}
	if (kind == HR__RECORD_LIMIT) out->limit = get_varint(part);
	if (kind == HR__RECORD_NAME || kind == HR__RECORD_DEVICE) out->text = take_rest(part, &out->text_length);
	if (kind != HR__RECORD_THREAD) return true;
	if (out->number >= HR__TRACE_THREADS_MAX) complain(part, "the number of a thread is not below 2^20");
	d->thread = out->number;
	return false;
}

/* ---- records ---- */

void hr__decoder_go_on(hr__decoder *decoder, const void *piece, size_t length, uint64_t beyond)
{
	decoder->at = piece;
	decoder->end = length > 0 ? decoder->at + length : decoder->at; /* an empty piece may be NULL */
	decoder->beyond = beyond;
	decoder->skip = 0;
}

void hr__decoder_start(hr__decoder *decoder, const void *records, size_t length, uint32_t thread, uint64_t first_time)
{
	memset(decoder, 0, sizeof(*decoder));
	hr__decoder_go_on(decoder, records, length, 0);
	decoder->thread = thread;
	decoder->time = first_time;
}

static hr__decoded judge(const cursor *c, hr__decoded good, const char **why)
{
	*why = c->why;
	if (c->why != NULL) return HR__DECODED_BAD;
	return c->cut ? HR__DECODED_CUT : good;
}

hr__decoded hr__decode(hr__decoder *decoder, hr__event *event, hr__definition *definition, const char **why)
{
	for (;;) {
		size_t left = (size_t)(decoder->end - decoder->at);
		if (left < HR__DECODE_AHEAD && (left == 0 || decoder->beyond > decoder->skip)) return HR__DECODED_END;
		cursor c = { .at = decoder->at, .end = decoder->end, .beyond = decoder->beyond };
		uint32_t tag = (uint32_t)get_fixed(&c, 2);
		unsigned kind = tag & HR__TAG_KIND;
		hr__decoded good = HR__DECODED_END;
		if (c.cut) return HR__DECODED_CUT;
		if (kind == 0) complain(&c, "a record of kind 0");
		if (kind >= 1 && kind <= HR__EVENT_KINDS) {
			good = HR__DECODED_EVENT;
			get_event(decoder, &c, tag, event);
		} else {
			cursor part;
			get_part(&c, &part);
			if (!c.cut && get_definition(decoder, &part, kind, definition)) good = HR__DECODED_DEFINITION;
			if (part.why != NULL) complain(&c, part.why);
			if (part.cut) complain(&c, "a definition is longer than its record");
		}
		hr__decoded result = judge(&c, good, why);
		if (result == HR__DECODED_BAD || result == HR__DECODED_CUT) return result;
		decoder->at = c.at;
		decoder->skip = c.skip;
		if (result != HR__DECODED_END) return result;
	}
}
