/* format.h - the trace file format in C: docs/trace-format.md as constants, two structs and two functions. Shared by writer and
 * reader.
 *
 * The writer fills the structs in place, in the mapped file. The reader copies bytes out by offset instead, because a foreign file
 * can be unaligned, short or change while it is read. */
#ifndef HR_TRACE_FORMAT_H
#define HR_TRACE_FORMAT_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "core/base/assert.h"
#include "core/base/atomic.h"
#include "core/os/rank.h"
#include "core/trace/trace.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the writer stores numbers as they are in memory");

#define HR__TRACE_MAGIC "\x89HRT\r\n\x1a\n" /* 8 bytes, without the final 0 */
#define HR__TRACE_MAJOR 1
/* 1: frames, stacks, and the stack of an event in its extension; 2: tensors that are dropped and recomputed; 3: the rank */
#define HR__TRACE_MINOR 3
#define HR__TRACE_MINOR_RANK 3
#define HR__TRACE_BYTE_ORDER 0x01020304u
#define HR__TRACE_REQUIRED_KNOWN 0ull /* bit 0, compressed blocks, is reserved and not supported yet */
#define HR__TRACE_HEADER_MAX (16u << 20)
#define HR__TRACE_BLOCK_MIN 256u
#define HR__TRACE_BLOCK_MAX (16u << 20)
#define HR__TRACE_BLOCK_MAGIC 0x4B425248u
#define HR__TRACE_THREADS_MAX (1u << 20)
#define HR__TRACE_IDS_MAX 65536u /* limit for names, shapes, frames, stacks, devices and allocators each */

typedef struct hr__trace_header {
	char magic[8];
	uint16_t major, minor;
	uint32_t header_size;
	uint64_t required, optional;
	uint32_t block_size;
	uint32_t byte_order;
	uint64_t start_wall_ns;
	uint64_t start_ticks;
	uint64_t units_per_second;
	uint32_t ticks_shift;
	uint32_t process;
	hr__atomic_u64 lost;
	uint64_t file_bytes;
	uint32_t complete;
	uint32_t zero;
	char writer[32];
} hr__trace_header;

_Static_assert(sizeof(hr__trace_header) == 128 && offsetof(hr__trace_header, lost) == 72, "as in docs/trace-format.md");

/* Follows the header directly, from HR__TRACE_MINOR_RANK on. */
typedef hr__rank hr__trace_rank;
_Static_assert(sizeof(hr__trace_rank) == 128 && offsetof(hr__trace_rank, job) == 16 && offsetof(hr__trace_rank, host) == 80, "as in docs/trace-format.md");

/* Bits of optional. */
#define HR__OPTIONAL_LIMITED 1u /* the recording ended before its program, because the file reached its size limit */

enum { HR__BLOCK_RECORDS = 1, HR__BLOCK_COMPRESSED = 2, HR__BLOCK_SKIPPABLE = 128 };

typedef struct hr__trace_block {
	hr__atomic_u32 magic;
	uint8_t type;
	uint8_t zero[3];
	uint32_t lane;
	uint32_t thread;
	uint64_t sequence;
	uint64_t first_time;
	hr__atomic_u32 committed;
	uint32_t checksum;
	uint8_t zero2[24];
} hr__trace_block;

_Static_assert(sizeof(hr__trace_block) == 64 && offsetof(hr__trace_block, committed) == 32, "as in docs/trace-format.md");

/* ---- tags ---- */

#define HR__TAG_KIND 0x3Fu
#define HR__TAG_CONTEXT (1u << 6)
#define HR__TAG_OP (1u << 7)
#define HR__TAG_SCOPE (1u << 8)
#define HR__TAG_SHAPE (1u << 9)
#define HR__TAG_FAR (1u << 10)  /* address difference: zigzag varint in bytes; clear: 32 bits in units of 256 bytes */
#define HR__TAG_SIZE_SHIFT 11   /* 2 bits: one of HR__SIZE_... */
#define HR__TAG_SLACK (1u << 13)
#define HR__TAG_LATE (1u << 14) /* time difference: varint; clear: 16 bits */
#define HR__TAG_EXTENSION (1u << 15)

enum { HR__SIZE_ZERO = 0, HR__SIZE_BYTES = 1, HR__SIZE_256 = 2, HR__SIZE_BOTH = 3 };

enum { HR__CONTEXT_ALLOCATOR = 1, HR__CONTEXT_STREAM = 2, HR__CONTEXT_TAG = 4, HR__CONTEXT_DTYPE = 8, HR__CONTEXT_ALL = 15 };

/* The first byte of an event's extension: which fields follow. Bits of later versions come after these, and so do their fields. */
enum { HR__EXTENSION_STACK = 1 };

/* Records that are not events. */
enum {
	HR__RECORD_NAME = 32,
	HR__RECORD_SHAPE = 33,
	HR__RECORD_DEVICE = 34,
	HR__RECORD_ALLOCATOR = 35,
	HR__RECORD_THREAD = 36,
	HR__RECORD_LIMIT = 37,
	HR__RECORD_FRAME = 38,
	HR__RECORD_STACK = 39,
	HR__RECORD_LAST = HR__RECORD_STACK, /* of this version */
};

/* ---- which fields an event kind has ---- */

enum {
	HR__HAS_ALLOCATOR = 1,
	HR__HAS_STREAM = 2,
	HR__HAS_TAG = 4,
	HR__HAS_DTYPE = 8,
	HR__HAS_ADDRESS = 16,
	HR__HAS_ADDRESS2 = 32,
	HR__HAS_BYTES = 64,
	HR__HAS_REQUESTED = 128,
	HR__HAS_OP = 256,
	HR__HAS_SCOPE = 512,
	HR__HAS_SHAPE = 1024,
	HR__HAS_STACK = 2048,

	HR__HAS_RANGE = HR__HAS_ALLOCATOR | HR__HAS_ADDRESS | HR__HAS_BYTES,
	HR__HAS_NAMES = HR__HAS_OP | HR__HAS_SCOPE | HR__HAS_TAG,
	HR__HAS_REQUEST = HR__HAS_ALLOCATOR | HR__HAS_STREAM | HR__HAS_BYTES | HR__HAS_REQUESTED | HR__HAS_NAMES | HR__HAS_SHAPE
	                  | HR__HAS_DTYPE,
};

_Static_assert((int)HR__HAS_ALLOCATOR == (int)HR__CONTEXT_ALLOCATOR && (int)HR__HAS_STREAM == (int)HR__CONTEXT_STREAM
                   && (int)HR__HAS_TAG == (int)HR__CONTEXT_TAG && (int)HR__HAS_DTYPE == (int)HR__CONTEXT_DTYPE,
               "the context byte of a record is checked against the fields of its kind by one mask");

#define HR__EVENT_FIELDS_TABLE(X)                                               \
	X(ALLOC, HR__HAS_REQUEST | HR__HAS_ADDRESS | HR__HAS_STACK)                 \
	X(FREE, HR__HAS_ALLOCATOR | HR__HAS_STREAM | HR__HAS_ADDRESS)               \
	X(ALLOC_FAILED, HR__HAS_REQUEST | HR__HAS_STACK)                            \
	X(MAP, HR__HAS_RANGE)                                                       \
	X(UNMAP, HR__HAS_RANGE)                                                     \
	X(STITCH, HR__HAS_RANGE)                                                    \
	X(OP_BEGIN, HR__HAS_STREAM | HR__HAS_NAMES)                                 \
	X(OP_END, HR__HAS_STREAM | HR__HAS_NAMES | HR__HAS_BYTES)                   \
	X(READ, HR__HAS_RANGE | HR__HAS_STREAM | HR__HAS_OP)                        \
	X(WRITE, HR__HAS_RANGE | HR__HAS_STREAM | HR__HAS_OP)                       \
	X(STEP, HR__HAS_BYTES | HR__HAS_SCOPE | HR__HAS_TAG)                        \
	X(STEP_END, HR__HAS_BYTES | HR__HAS_SCOPE | HR__HAS_TAG)                    \
	X(SCOPE_PUSH, HR__HAS_SCOPE)                                                \
	X(SCOPE_POP, HR__HAS_SCOPE)                                                 \
	X(EVICT, HR__HAS_REQUEST | HR__HAS_ADDRESS | HR__HAS_ADDRESS2)              \
	X(RESTORE, HR__HAS_REQUEST | HR__HAS_ADDRESS | HR__HAS_ADDRESS2)            \
	X(MOVE, HR__HAS_RANGE | HR__HAS_STREAM | HR__HAS_ADDRESS2)                  \
	X(MARK, HR__HAS_BYTES | HR__HAS_NAMES)

enum {
#define HR__FIELDS_ENUM(name, fields) HR__FIELDS_##name = (fields),
	HR__EVENT_FIELDS_TABLE(HR__FIELDS_ENUM)
#undef HR__FIELDS_ENUM
	HR__EVENT_KINDS = 18, /* kinds 1 to this are the events of the table above; their records have no length field */
};

/* The fields of each kind; 0 for a number that is not an event of this version. */
static const uint16_t hr__event_fields[HR__EVENT_KINDS + 1] = {
#define HR__FIELDS_ENTRY(name, fields) [HR__EVENT_##name] = (fields),
	HR__EVENT_FIELDS_TABLE(HR__FIELDS_ENTRY)
#undef HR__FIELDS_ENTRY
};

/* The longest event: tag, context (allocator, stream, tag, dtype), 2 addresses, bytes and requested, 3 ids, time, extension (length,
 * fields, stack).
 * HR__VARINT_SCRIBBLE is the number of bytes that the varint writer may overwrite after its end. */
#define HR__EVENT_RECORD_MAX (2 + 1 + 5 + 5 + 2 + 1 + 2 * 9 + 2 * 9 + 3 * 2 + 9 + 4)
#define HR__VARINT_SCRIBBLE 8

/* ---- varints ---- */

static inline uint64_t hr__zigzag(uint64_t difference)
{
	return (difference << 1) ^ (uint64_t)((int64_t)difference >> 63);
}

static inline uint64_t hr__unzigzag(uint64_t coded)
{
	return (coded >> 1) ^ (0 - (coded & 1));
}

static inline unsigned hr__varint_length(uint64_t value)
{
	unsigned top = 63u - (unsigned)__builtin_clzll(value | 1);
	return (top * 9 + 73) / 64; /* 1 + top / 7 without a division; exact up to 63 */
}

/* Writes a varint and returns its end. May overwrite the HR__VARINT_SCRIBBLE bytes after it: one store of 8 bytes replaces a loop
 * whose length no branch predictor could predict. */
static inline uint8_t *hr__varint_put(uint8_t *to, uint64_t value)
{
	unsigned length = hr__varint_length(value);
	uint64_t word = (value << length) | (1ull << (length - 1));
	if (HR_UNLIKELY(length > 8)) {
		*to = 0;
		memcpy(to + 1, &value, 8);
		return to + 9;
	}
	memcpy(to, &word, 8);
	return to + length;
}

/* Reads a varint at *at and advances *at past it. False when it does not end before [end]. */
static inline bool hr__varint_get(const uint8_t **at, const uint8_t *end, uint64_t *out)
{
	size_t left = (size_t)(end - *at);
	uint64_t word = 0;
	if (left == 0) return false;
	unsigned length = **at == 0 ? 9 : (unsigned)__builtin_ctz(**at) + 1;
	if (length > left) return false;
	if (HR_UNLIKELY(length == 9)) {
		memcpy(out, *at + 1, 8);
	} else {
		if (HR_LIKELY(left >= 8)) memcpy(&word, *at, 8);
		else memcpy(&word, *at, length);
		*out = (word << (64 - 8 * length)) >> (64 - 7 * length);
	}
	*at += length;
	return true;
}

#endif
