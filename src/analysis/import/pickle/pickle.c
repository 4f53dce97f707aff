/* pickle.c - see pickle.h.
 *
 * The stack machine of the pickle format, restricted to plain data. Stack and memo refer to objects by number (pickle_objects.h).
 *
 * Linear memory: an opcode of n bytes adds at most one object, one cell for each object on the stack, one stack entry, one memo
 * entry, and 2n bytes of text. Memo numbers that leave a gap are refused. */
#include "analysis/import/pickle/pickle.h"

#include <string.h>

#include "analysis/import/pickle/pickle_objects.h"
#include "analysis/import/pickle/pickle_opcodes.h"
#include "analysis/reader/list.h"
#include "core/base/assert.h"
#include "core/base/status.h"
#include "core/base/text/text.h"

#define TEXT_BYTES_MAX (16u << 20)

/* Opcodes that Python writes for plain data with protocols 2 to 5. */
enum pickle_opcode {
	OP_PROTO = 0x80,
	OP_FRAME = 0x95,
	OP_STOP = '.',
	OP_MARK = '(',
	OP_NONE = 'N',
	OP_NEWTRUE = 0x88,
	OP_NEWFALSE = 0x89,
	OP_BININT = 'J',
	OP_BININT1 = 'K',
	OP_BININT2 = 'M',
	OP_LONG1 = 0x8A,
	OP_LONG4 = 0x8B,
	OP_BINFLOAT = 'G',
	OP_SHORT_BINUNICODE = 0x8C,
	OP_BINUNICODE = 'X',
	OP_BINUNICODE8 = 0x8D,
	OP_SHORT_BINBYTES = 'C',
	OP_BINBYTES = 'B',
	OP_BINBYTES8 = 0x8E,
	OP_SHORT_BINSTRING = 'U', /* str of Python 2 */
	OP_BINSTRING = 'T',
	OP_EMPTY_LIST = ']',
	OP_APPEND = 'a',
	OP_APPENDS = 'e',
	OP_EMPTY_DICT = '}',
	OP_SETITEM = 's',
	OP_SETITEMS = 'u',
	OP_EMPTY_TUPLE = ')',
	OP_TUPLE1 = 0x85,
	OP_TUPLE2 = 0x86,
	OP_TUPLE3 = 0x87,
	OP_TUPLE = 't',
	OP_BINPUT = 'q',
	OP_LONG_BINPUT = 'r',
	OP_MEMOIZE = 0x94,
	OP_BINGET = 'h',
	OP_LONG_BINGET = 'j'
};

struct pickle_machine {
	const hr__pickle_input *input;
	const char *begin, *at, *end; /* bytes that [input] provided */
	uint64_t begin_offset;
	uint64_t opcode_offset; /* of the current opcode */
	hr_status status;
	hr__pickle *pickle;
	hr__list stack, memo; /* of uint32_t: objects; 0 in the memo: none */
	hr__list marks;       /* of uint32_t: heights of the stack */
};

/* ---- failures; all return false ---- */

#define REFUSE(machine, reason, ...) ((machine)->status = hr__fail(reason, __VA_ARGS__), false)

static bool truncated(struct pickle_machine *machine)
{
	if (machine->status) return false;
	machine->opcode_offset = machine->begin_offset + (uint64_t)(machine->at - machine->begin);
	return REFUSE(machine, HR_TRUNCATED, "the pickle ends in the middle: the file was cut; get it again");
}

static bool empty_stack(struct pickle_machine *machine)
{
	return REFUSE(machine, HR_BAD_FORMAT, "the pickle is damaged: an opcode finds too few objects on the stack");
}

/* ---- bytes ---- */

static bool refill(struct pickle_machine *machine)
{
	size_t count = 0;
	const char *bytes = machine->end;
	machine->begin_offset += (uint64_t)(machine->end - machine->begin);
	machine->status = machine->input->more(machine->input->context, &bytes, &count);
	if (machine->status) count = 0;
	machine->begin = machine->at = bytes;
	machine->end = count ? bytes + count : bytes;
	return count > 0;
}

static inline bool take_byte(struct pickle_machine *machine, unsigned char *out)
{
	if (machine->at == machine->end && !refill(machine)) return truncated(machine);
	*out = (unsigned char)*machine->at++;
	return true;
}

/* A little-endian number of [bytes] bytes. */
static bool take_number(struct pickle_machine *machine, unsigned bytes, uint64_t *out)
{
	unsigned char byte;
	HR_ASSERT(bytes <= 8);
	*out = 0;
	for (unsigned i = 0; i < bytes; i++) {
		if (!take_byte(machine, &byte)) return false;
		*out |= (uint64_t)byte << (8 * i);
	}
	return true;
}

/* ---- objects and the stack ---- */

static bool add_to(struct pickle_machine *machine, hr__list *list, const void *item)
{
	machine->status = hr__pickle_list_add(list, item);
	return machine->status == HR_OK;
}

static bool push(struct pickle_machine *machine, uint32_t object)
{
	return add_to(machine, &machine->stack, &object);
}

static bool push_new(struct pickle_machine *machine, const hr__pickle_object *object)
{
	return add_to(machine, &machine->pickle->objects, object) && push(machine, (uint32_t)machine->pickle->objects.count - 1);
}

static bool push_kind(struct pickle_machine *machine, hr__pickle_kind kind)
{
	return push_new(machine, &(hr__pickle_object){ .kind = (uint8_t)kind });
}

static bool push_integer(struct pickle_machine *machine, int64_t value)
{
	return push_new(machine, &(hr__pickle_object){ .kind = HR__PICKLE_INTEGER, .integer = value });
}

static uint32_t stack_at(const struct pickle_machine *machine, size_t position)
{
	return *(uint32_t *)hr__list_at(&machine->stack, position);
}

/* Stack entries at and above this height belong to the innermost mark. */
static size_t floor_of(const struct pickle_machine *machine)
{
	size_t count = machine->marks.count;
	return count ? *(uint32_t *)hr__list_at(&machine->marks, count - 1) : 0;
}

/* Removes the innermost mark; *from is its height. The object under it must exist if [needs_one_below]. */
static bool pop_mark(struct pickle_machine *machine, bool needs_one_below, size_t *from)
{
	if (!machine->marks.count)
		return REFUSE(machine, HR_BAD_FORMAT, "the pickle is damaged: an opcode needs a mark, and there is none");
	*from = floor_of(machine);
	machine->marks.count--;
	return !needs_one_below || *from > floor_of(machine) ? true : empty_stack(machine);
}

/* ---- scalars ---- */

static bool push_fixed_integer(struct pickle_machine *machine, unsigned bytes)
{
	uint64_t value;
	if (!take_number(machine, bytes, &value)) return false;
	return push_integer(machine, bytes == 4 ? (int32_t)(uint32_t)value : (int64_t)value);
}

/* LONG1 and LONG4: two's complement of any length. Python needs 9 bytes for what is above INT64_MAX. */
static bool push_long(struct pickle_machine *machine, unsigned length_bytes)
{
	uint64_t length, value;
	unsigned char top = 0;
	if (!take_number(machine, length_bytes, &length)) return false;
	if (length > 9)
		return REFUSE(machine, HR_TOO_MANY, "an integer of %llu bytes; at most 64 bits are supported", (unsigned long long)length);
	unsigned low = length < 8 ? (unsigned)length : 8;
	if (!take_number(machine, low, &value) || (length == 9 && !take_byte(machine, &top))) return false;
	if (top) return REFUSE(machine, HR_TOO_MANY, "an integer of more than 64 bits");
	if (length == 9 && value > INT64_MAX)
		return push_new(machine, &(hr__pickle_object){ .kind = HR__PICKLE_UNSIGNED, .magnitude = value });
	if (low > 0 && low < 8 && value >> (8 * low - 1)) value |= UINT64_MAX << (8 * low);
	return push_integer(machine, (int64_t)value);
}

static bool push_float(struct pickle_machine *machine)
{
	uint64_t bits;
	double value;
	if (!take_number(machine, 8, &bits)) return false;
	bits = __builtin_bswap64(bits); /* the only big-endian number of the format */
	memcpy(&value, &bits, sizeof value);
	return push_new(machine, &(hr__pickle_object){ .kind = HR__PICKLE_REAL, .real = value });
}

/* ---- text ---- */

/* True for half of a surrogate pair, encoded in 3 bytes as if it were a character. */
static bool is_surrogate(const char *text, size_t length)
{
	const unsigned char *at = (const unsigned char *)text;
	return length >= 3 && at[0] == 0xED && at[1] >= 0xA0 && at[1] <= 0xBF && (at[2] & 0xC0) == 0x80;
}

/* Replaces surrogates by U+FFFD, which has 3 bytes too. False if the text is not UTF-8. */
static bool make_valid(char *text, size_t length)
{
	for (size_t at = 0, step; at < length; at += step) {
		if (is_surrogate(text + at, length - at)) memcpy(text + at, "\xEF\xBF\xBD", 3);
		step = hr__utf8_character(text + at, length - at);
		if (!step) return false;
	}
	return true;
}

static bool append_text(struct pickle_machine *machine, const char *bytes, size_t count)
{
	hr__list *text = &machine->pickle->text;
	machine->status = hr__list_reserve(text, text->count + count);
	if (machine->status) return false;
	memcpy((char *)text->items + text->count, bytes, count);
	text->count += count;
	return true;
}

/* Appends one character for each byte. */
static bool append_bytes(struct pickle_machine *machine, const char *bytes, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		unsigned char byte = (unsigned char)bytes[i];
		char pair[2] = { (char)(0xC0 | byte >> 6), (char)(0x80 | (byte & 0x3F)) };
		if (!append_text(machine, byte < 0x80 ? &bytes[i] : pair, byte < 0x80 ? 1 : 2)) return false;
	}
	return true;
}

/* Copies as many bytes as the input has ready, until [count] are copied: a length that is a lie allocates nothing. */
static bool take_text(struct pickle_machine *machine, uint64_t count, bool is_unicode)
{
	while (count > 0) {
		if (machine->at == machine->end && !refill(machine)) return truncated(machine);
		size_t ready = (size_t)(machine->end - machine->at);
		if (ready > count) ready = (size_t)count;
		if (!(is_unicode ? append_text : append_bytes)(machine, machine->at, ready)) return false;
		machine->at += ready;
		count -= ready;
	}
	return true;
}

static bool push_text(struct pickle_machine *machine, unsigned length_bytes, bool is_unicode)
{
	hr__list *text = &machine->pickle->text;
	uint64_t bytes;
	uint32_t length = 0;
	size_t start = text->count, body = start + sizeof length;
	if (!take_number(machine, length_bytes, &bytes)) return false;
	if (bytes > TEXT_BYTES_MAX)
		return REFUSE(machine, HR_TOO_MANY, "a text of %llu bytes; at most 16 MiB are supported", (unsigned long long)bytes);
	if (!append_text(machine, (const char *)&length, sizeof length) || !take_text(machine, bytes, is_unicode) ||
	    !append_text(machine, "", 1))
		return false;
	length = (uint32_t)(text->count - body - 1);
	memcpy((char *)text->items + start, &length, sizeof length);
	if (!make_valid((char *)text->items + body, length))
		return REFUSE(machine, HR_BAD_FORMAT, "the pickle is damaged: a text is not UTF-8");
	return push_new(machine, &(hr__pickle_object){ .kind = HR__PICKLE_TEXT, .text = start });
}

/* ---- containers ---- */

static bool check_key(struct pickle_machine *machine, uint32_t key)
{
	size_t length;
	switch (hr__pickle_kind_of(machine->pickle, key)) {
	case HR__PICKLE_TEXT: break;
	case HR__PICKLE_REAL:
	case HR__PICKLE_LIST:
	case HR__PICKLE_DICT: return REFUSE(machine, HR_UNSUPPORTED, "the key of a dict is neither a text nor a whole number");
	default: return true;
	}
	const char *text = hr__pickle_text(machine->pickle, key, &length);
	if (length <= HR__PICKLE_KEY_BYTES_MAX && !memchr(text, 0, length)) return true;
	return REFUSE(machine, HR_TOO_MANY, "the key of a dict has a NUL byte or more than %u bytes", HR__PICKLE_KEY_BYTES_MAX);
}

/* Moves the stack entries from [from] on into the container. */
static bool move_parts(struct pickle_machine *machine, uint32_t container, hr__pickle_kind kind, size_t from)
{
	size_t count = machine->stack.count - from;
	if (hr__pickle_kind_of(machine->pickle, container) != kind)
		return REFUSE(machine, HR_BAD_FORMAT, "the pickle is damaged: an opcode adds to something other than a %s",
		              kind == HR__PICKLE_LIST ? "list" : "dict");
	if (kind == HR__PICKLE_DICT && count % 2) return REFUSE(machine, HR_BAD_FORMAT, "the pickle is damaged: a key without a value");
	for (size_t i = 0; i < count; i++) {
		uint32_t part = stack_at(machine, from + i);
		if (kind == HR__PICKLE_DICT && i % 2 == 0 && !check_key(machine, part)) return false;
		machine->status = hr__pickle_add_part(machine->pickle, container, part);
		if (machine->status) return false;
	}
	machine->stack.count = from;
	return true;
}

/* APPEND and SETITEM: the container is under [parts] parts. */
static bool add_last(struct pickle_machine *machine, hr__pickle_kind kind, size_t parts)
{
	if (machine->stack.count - floor_of(machine) < parts + 1) return empty_stack(machine);
	size_t from = machine->stack.count - parts;
	return move_parts(machine, stack_at(machine, from - 1), kind, from);
}

/* APPENDS and SETITEMS: the parts are above the mark, and the container is under it. */
static bool add_marked(struct pickle_machine *machine, hr__pickle_kind kind)
{
	size_t from;
	return pop_mark(machine, true, &from) && move_parts(machine, stack_at(machine, from - 1), kind, from);
}

/* Replaces the stack entries from [from] on by a tuple of them. */
static bool make_tuple(struct pickle_machine *machine, size_t from)
{
	hr__pickle_object tuple = { .kind = HR__PICKLE_LIST };
	uint32_t number = (uint32_t)machine->pickle->objects.count;
	return add_to(machine, &machine->pickle->objects, &tuple) && move_parts(machine, number, HR__PICKLE_LIST, from) &&
	       push(machine, number);
}

static bool make_short_tuple(struct pickle_machine *machine, size_t parts)
{
	if (machine->stack.count - floor_of(machine) < parts) return empty_stack(machine);
	return make_tuple(machine, machine->stack.count - parts);
}

static bool make_marked_tuple(struct pickle_machine *machine)
{
	size_t from;
	return pop_mark(machine, false, &from) && make_tuple(machine, from);
}

static bool set_mark(struct pickle_machine *machine)
{
	uint32_t height = (uint32_t)machine->stack.count;
	return add_to(machine, &machine->marks, &height);
}

/* ---- memo ---- */

/* Python numbers the entries 0, 1, 2, ...; Python 2 begins with 1. */
static bool put(struct pickle_machine *machine, uint64_t number)
{
	static const uint32_t none = 0;
	hr__list *memo = &machine->memo;
	if (machine->stack.count == floor_of(machine)) return empty_stack(machine);
	uint32_t object = stack_at(machine, machine->stack.count - 1);
	if (number > memo->count + 1)
		return REFUSE(machine, HR_BAD_FORMAT, "the pickle is damaged: entry %llu of the memo follows entry %zu",
		              (unsigned long long)number, memo->count);
	if (number == memo->count + 1 && !add_to(machine, memo, &none)) return false;
	if (number == memo->count) return add_to(machine, memo, &object);
	*(uint32_t *)hr__list_at(memo, (size_t)number) = object;
	return true;
}

static bool get(struct pickle_machine *machine, uint64_t number)
{
	uint32_t found = number < machine->memo.count ? *(uint32_t *)hr__list_at(&machine->memo, (size_t)number) : 0;
	if (!found)
		return REFUSE(machine, HR_BAD_FORMAT, "the pickle is damaged: entry %llu of the memo is used before it is set",
		              (unsigned long long)number);
	hr__pickle_object *object = hr__pickle_object_at(machine->pickle, found);
	if (object->kind >= HR__PICKLE_TEXT && !object->shared) object->shared = ++machine->pickle->shared_count;
	return push(machine, found);
}

static bool put_numbered(struct pickle_machine *machine, unsigned bytes)
{
	uint64_t number;
	return take_number(machine, bytes, &number) && put(machine, number);
}

static bool get_numbered(struct pickle_machine *machine, unsigned bytes)
{
	uint64_t number;
	return take_number(machine, bytes, &number) && get(machine, number);
}

/* ---- the machine ---- */

/* Frames tell Python how much to read at once. */
static bool skip_frame(struct pickle_machine *machine)
{
	uint64_t length;
	return take_number(machine, 8, &length);
}

static bool run_opcode(struct pickle_machine *machine, unsigned char opcode)
{
	switch (opcode) {
	case OP_FRAME: return skip_frame(machine);
	case OP_MARK: return set_mark(machine);
	case OP_NONE: return push(machine, HR__PICKLE_NONE_OBJECT);
	case OP_NEWTRUE: return push(machine, HR__PICKLE_TRUE_OBJECT);
	case OP_NEWFALSE: return push(machine, HR__PICKLE_FALSE_OBJECT);
	case OP_BININT: return push_fixed_integer(machine, 4);
	case OP_BININT1: return push_fixed_integer(machine, 1);
	case OP_BININT2: return push_fixed_integer(machine, 2);
	case OP_LONG1: return push_long(machine, 1);
	case OP_LONG4: return push_long(machine, 4);
	case OP_BINFLOAT: return push_float(machine);
	case OP_SHORT_BINUNICODE: return push_text(machine, 1, true);
	case OP_BINUNICODE: return push_text(machine, 4, true);
	case OP_BINUNICODE8: return push_text(machine, 8, true);
	case OP_SHORT_BINBYTES:
	case OP_SHORT_BINSTRING: return push_text(machine, 1, false);
	case OP_BINBYTES:
	case OP_BINSTRING: return push_text(machine, 4, false);
	case OP_BINBYTES8: return push_text(machine, 8, false);
	case OP_EMPTY_LIST: return push_kind(machine, HR__PICKLE_LIST);
	case OP_APPEND: return add_last(machine, HR__PICKLE_LIST, 1);
	case OP_APPENDS: return add_marked(machine, HR__PICKLE_LIST);
	case OP_EMPTY_DICT: return push_kind(machine, HR__PICKLE_DICT);
	case OP_SETITEM: return add_last(machine, HR__PICKLE_DICT, 2);
	case OP_SETITEMS: return add_marked(machine, HR__PICKLE_DICT);
	case OP_EMPTY_TUPLE: return make_short_tuple(machine, 0);
	case OP_TUPLE1: return make_short_tuple(machine, 1);
	case OP_TUPLE2: return make_short_tuple(machine, 2);
	case OP_TUPLE3: return make_short_tuple(machine, 3);
	case OP_TUPLE: return make_marked_tuple(machine);
	case OP_BINPUT: return put_numbered(machine, 1);
	case OP_LONG_BINPUT: return put_numbered(machine, 4);
	case OP_MEMOIZE: return put(machine, machine->memo.count);
	case OP_BINGET: return get_numbered(machine, 1);
	case OP_LONG_BINGET: return get_numbered(machine, 4);
	default: machine->status = hr__pickle_opcode_refuse(opcode); return false;
	}
}

static bool take_protocol(struct pickle_machine *machine)
{
	unsigned char opcode, version;
	if (!take_byte(machine, &opcode)) return false;
	if (opcode != OP_PROTO)
		return REFUSE(machine, HR_BAD_FORMAT, "expected a pickle of protocol 2 to 5, which begins with the byte 0x80");
	if (!take_byte(machine, &version)) return false;
	if (version < 2 || version > 5)
		return REFUSE(machine, HR_UNSUPPORTED, "a pickle of protocol %u; 2 to 5 are supported", version);
	return true;
}

static bool stop(struct pickle_machine *machine)
{
	if (machine->marks.count || machine->stack.count != 1)
		return REFUSE(machine, HR_BAD_FORMAT, "the pickle is damaged: it ends with %zu objects on the stack instead of 1",
		              machine->stack.count);
	machine->pickle->root = stack_at(machine, 0);
	machine->opcode_offset++;
	if (machine->at < machine->end || refill(machine))
		return REFUSE(machine, HR_BAD_FORMAT, "expected the end of the file behind the pickle");
	return machine->status == HR_OK;
}

static bool run(struct pickle_machine *machine)
{
	unsigned char opcode;
	if (!take_protocol(machine)) return false;
	for (;;) {
		machine->opcode_offset = machine->begin_offset + (uint64_t)(machine->at - machine->begin);
		if (!take_byte(machine, &opcode)) return false;
		if (opcode == OP_STOP) return stop(machine);
		if (!run_opcode(machine, opcode)) return false;
	}
}

hr_status hr__pickle_read(const hr__pickle_input *input, uint64_t *offset, hr__pickle **out)
{
	struct pickle_machine machine = { .input = input, .begin = "" };
	*offset = 0;
	hr_status status = hr__pickle_create(&machine.pickle);
	if (status) return status;
	machine.at = machine.end = machine.begin;
	machine.stack.item_bytes = machine.memo.item_bytes = machine.marks.item_bytes = sizeof(uint32_t);

	if (run(&machine)) *out = machine.pickle;
	else hr__pickle_free(machine.pickle);
	*offset = machine.opcode_offset;
	hr__list_free(&machine.stack);
	hr__list_free(&machine.memo);
	hr__list_free(&machine.marks);
	return machine.status;
}
