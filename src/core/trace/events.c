/* events.c - appends events to the trace file that is being recorded.
 *
 * Reading the processor's counter takes 25 cycles, more than everything else. It is started first, and only the last two bytes of
 * the record depend on it, so that the rest is done in the meantime. That is why the time is the last field, and why the time, the
 * address and the ids have fixed sizes in the common case: an unknown length delays everything after it. Whether a field is present
 * is added to the position instead of branched on, because changes of op and shape are unpredictable. */
#include <string.h>

#include "core/base/names.h"
#include "core/os/os.h"
#include "core/trace/definitions.h"
#include "core/trace/stacks.h"
#include "core/trace/trace_file.h"
#include "core/trace/writer.h"

/* Numbers in the file of an event's names, shape and stack. */
typedef struct numbers {
	uint32_t op, scope, tag, shape, stack;
} numbers;

/* An id that is out of range counts as "other". */
static inline uint32_t safe_id(uint32_t id)
{
	return id < HR__TRACE_IDS_MAX ? id : HR_NAME_OTHER;
}

_Static_assert(HR__NAMES_MAX == HR__TRACE_IDS_MAX && HR__SHAPES_MAX == HR__TRACE_IDS_MAX, "one check serves names and shapes");
_Static_assert(HR__FRAMES_MAX == HR__TRACE_IDS_MAX && HR__STACKS_MAX == HR__TRACE_IDS_MAX, "and frames and stacks");

/* Finds the numbers of the event's names and shape. Returns false when one of them has no number yet. */
static inline bool look_up(const hr__event *event, uint32_t fields, numbers *out)
{
	uint32_t op = 0, scope = 0, tag = 0, shape = 0;
	*out = (numbers){ 0 };
	if (!(fields & (HR__HAS_OP | HR__HAS_SCOPE | HR__HAS_TAG | HR__HAS_SHAPE))) return true;
	if (fields & HR__HAS_OP) op = event->op;
	if (fields & HR__HAS_SCOPE) scope = event->scope;
	if (fields & HR__HAS_TAG) tag = event->tag;
	if (fields & HR__HAS_SHAPE) shape = event->shape;
	if (HR_UNLIKELY((op | scope | tag | shape) >= HR__TRACE_IDS_MAX)) {
		op = safe_id(op);
		scope = safe_id(scope);
		tag = safe_id(tag);
		shape = safe_id(shape);
	}
	out->op = hr__load_acquire(&hr__name_numbers[op]) - 1;
	out->scope = hr__load_acquire(&hr__name_numbers[scope]) - 1;
	out->tag = hr__load_acquire(&hr__name_numbers[tag]) - 1;
	out->shape = hr__load_acquire(&hr__shape_numbers[shape]) - 1;
	return HR_LIKELY((int32_t)(out->op | out->scope | out->tag | out->shape) >= 0);
}

/* look_up for the stack, which only append_slowly writes. */
static inline bool look_up_stack(const hr__event *event, numbers *out)
{
	out->stack = hr__load_acquire(&hr__stack_numbers[safe_id(event->stack)]) - 1;
	return (int32_t)out->stack >= 0;
}

static inline uint8_t *put_changed_context(hr__writer *w, uint8_t *at, uint32_t allocator, uint32_t stream, uint32_t tag,
                                           hr_dtype dtype)
{
	uint8_t *changed = at++;
	*changed = 0;
	if (allocator != w->allocator) {
		*changed |= HR__CONTEXT_ALLOCATOR;
		at = hr__varint_put(at, w->allocator = allocator);
	}
	if (stream != w->stream) {
		*changed |= HR__CONTEXT_STREAM;
		at = hr__varint_put(at, w->stream = stream);
	}
	if (tag != w->tag) {
		*changed |= HR__CONTEXT_TAG;
		w->tag = tag;
		*at++ = (uint8_t)tag;
		*at++ = (uint8_t)(tag >> 8);
	}
	if (dtype != w->dtype) {
		*changed |= HR__CONTEXT_DTYPE;
		w->dtype = dtype;
		*at++ = (uint8_t)dtype;
	}
	return at;
}

static inline uint8_t *put_context(hr__writer *w, uint8_t *at, const hr__event *event, uint32_t tag, uint32_t fields, uint32_t *head)
{
	uint32_t allocator = fields & HR__HAS_ALLOCATOR ? event->allocator : w->allocator;
	uint32_t stream = fields & HR__HAS_STREAM ? event->stream : w->stream;
	hr_dtype dtype = fields & HR__HAS_DTYPE ? event->dtype : w->dtype;
	if (!(fields & HR__HAS_TAG)) tag = w->tag;
	uint32_t changed = (allocator ^ w->allocator) | (stream ^ w->stream) | (tag ^ w->tag) | ((uint32_t)dtype ^ (uint32_t)w->dtype);
	if (HR_LIKELY(changed == 0)) return at;
	*head |= HR__TAG_CONTEXT;
	return put_changed_context(w, at, allocator, stream, tag, dtype);
}

static inline uint8_t *put_address(hr__writer *w, uint8_t *at, const hr__event *event, uint32_t fields, uint32_t *head)
{
	int64_t difference = (int64_t)(event->address - w->address);
	int32_t near = (int32_t)(difference >> 8);
	w->address = event->address;
	if (HR_LIKELY((int64_t)near * 256 == difference)) {
		memcpy(at, &near, 4);
		at += 4;
	} else {
		*head |= HR__TAG_FAR;
		at = hr__varint_put(at, hr__zigzag((uint64_t)difference));
	}
	if (fields & HR__HAS_ADDRESS2) at = hr__varint_put(at, hr__zigzag(event->address2 - event->address));
	return at;
}

static inline uint8_t *put_size(uint8_t *at, const hr__event *event, uint32_t fields, uint32_t *head)
{
	uint64_t bytes = event->bytes, slack = fields & HR__HAS_REQUESTED ? bytes - event->requested : 0;
	if (HR_UNLIKELY(slack > 255)) {
		*head |= HR__SIZE_BOTH << HR__TAG_SIZE_SHIFT;
		return hr__varint_put(hr__varint_put(at, bytes), event->requested);
	}
	if (HR_LIKELY(bytes != 0)) {
		bool whole = (bytes & 255) == 0;
		*head |= (whole ? HR__SIZE_256 : HR__SIZE_BYTES) << HR__TAG_SIZE_SHIFT;
		at = hr__varint_put(at, whole ? bytes >> 8 : bytes);
	}
	if (fields & HR__HAS_REQUESTED) {
		*at = (uint8_t)slack;
		at += slack != 0;
		*head |= slack != 0 ? HR__TAG_SLACK : 0;
	}
	return at;
}

/* Writes op, scope or shape if it has changed. */
static inline uint8_t *put_number(uint8_t *at, uint32_t number, uint32_t *before, uint32_t flag, uint32_t *head)
{
	uint16_t low = (uint16_t)number;
	uint32_t changed = number != *before;
	memcpy(at, &low, 2);
	*before = number;
	*head |= changed ? flag : 0;
	return at + 2 * changed;
}

/* The counters of processors differ slightly; an event that would be earlier than the last one gets its time. */
static inline uint8_t *put_time(hr__writer *w, uint8_t *at, uint64_t ticks, uint32_t *head)
{
	int64_t now = hr__writer_units(w, ticks);
	if (HR_UNLIKELY(now < (int64_t)w->time)) now = (int64_t)w->time;
	uint64_t difference = (uint64_t)now - w->time;
	uint16_t low = (uint16_t)difference;
	w->time = (uint64_t)now;
	memcpy(at, &low, 2);
	if (HR_LIKELY(difference == low)) return at + 2;
	*head |= HR__TAG_LATE;
	return hr__varint_put(at, difference);
}

/* Writes the stack as an extension; an event without a stack has none. */
static inline uint8_t *put_stack(uint8_t *at, uint32_t number, uint32_t *head)
{
	if (number == HR_STACK_NONE) return at;
	*head |= HR__TAG_EXTENSION;
	at = hr__varint_put(at, 3);
	*at++ = HR__EXTENSION_STACK;
	*at++ = (uint8_t)number;
	*at++ = (uint8_t)(number >> 8);
	return at;
}

/* Appends an event with the fields in [fields]. Needs a thread that is attached to the recording, names and a shape that are defined,
 * and a block with room; unless [slowly] is true, also an event without a stack. Otherwise writes nothing and returns false; the
 * caller must then call append_slowly, because the writer may be left busy. Inlined with constant kind and fields for the frequent
 * events. Calls nothing, so that everything stays in registers. */
__attribute__((always_inline)) static inline bool append(const hr__event *event, uint32_t kind, uint32_t fields, uint64_t ticks, bool slowly)
{
	numbers number;
	uint32_t head = kind;
	hr__writer *w = hr__writer_mine;
	if (HR_UNLIKELY(w == NULL || !hr__writer_mark_busy(w))) return false;
	if (HR_UNLIKELY(!look_up(event, fields, &number) || w->at > w->limit)) return false;
	if (!slowly && (fields & HR__HAS_STACK) && HR_UNLIKELY(w->stacks || event->stack != HR_STACK_NONE)) return false;
	if (slowly && (fields & HR__HAS_STACK) && !look_up_stack(event, &number)) return false;
	uint8_t *at = w->at + 2;
	at = put_context(w, at, event, number.tag, fields, &head);
	if (fields & HR__HAS_ADDRESS) at = put_address(w, at, event, fields, &head);
	if (fields & HR__HAS_BYTES) at = put_size(at, event, fields, &head);
	if (fields & HR__HAS_OP) at = put_number(at, number.op, &w->op, HR__TAG_OP, &head);
	if (fields & HR__HAS_SCOPE) at = put_number(at, number.scope, &w->scope, HR__TAG_SCOPE, &head);
	if (fields & HR__HAS_SHAPE) at = put_number(at, number.shape, &w->shape, HR__TAG_SHAPE, &head);
	at = put_time(w, at, ticks, &head);
	if (slowly && (fields & HR__HAS_STACK)) at = put_stack(at, number.stack, &head);
	uint16_t head16 = (uint16_t)head;
	memcpy(w->at, &head16, 2);
	HR_ASSERT(at - w->at <= HR__EVENT_RECORD_MAX);
	hr__writer_commit(w, at);
	hr__writer_leave(w);
	return true;
}

/* Provides what the event needs: definitions, and a block with room for it. */
static bool prepare(hr__writer *w, const hr__event *event, uint32_t fields)
{
	numbers number;
	bool ok = true;
	if (!look_up(event, fields, &number)) {
		if (fields & HR__HAS_OP) ok = ok && hr__definitions_add_name(w, event->op);
		if (fields & HR__HAS_SCOPE) ok = ok && hr__definitions_add_name(w, event->scope);
		if (fields & HR__HAS_TAG) ok = ok && hr__definitions_add_name(w, event->tag);
		if (fields & HR__HAS_SHAPE) ok = ok && hr__definitions_add_shape(w, event->shape);
	}
	if (fields & HR__HAS_STACK) ok = ok && hr__definitions_add_stack(w, event->stack);
	return ok && (w->at <= w->limit || hr__writer_next_block(w));
}

/* Prepares everything that append needs and tries again. append then fails only if the recording was closed meanwhile; such an
 * event is dropped. */
static __attribute__((cold, noinline)) void append_slowly(const hr__event *event, uint64_t ticks)
{
	uint32_t fields = hr__event_fields[event->kind];
	hr__writer *w = hr__writer_enter(ticks);
	if (w == NULL) return;
	if (!prepare(w, event, fields)) hr__trace_file_count_lost(true);
	else if (append(event, event->kind, fields, ticks, true)) return;
	hr__writer_leave(w);
}

/* Captures the calling thread's stack. That can wait for the lock of the dynamic loader, and the thread that holds the lock may be
 * closing the recording and waiting for busy writers. So the calling thread's writer must not be busy meanwhile. */
static hr_stack stack_now(void)
{
	if (hr__writer_mine != NULL) hr__writer_leave(hr__writer_mine);
	return hr__trace_is_on() ? hr__stacks_now() : HR_STACK_NONE;
}

void hr__trace_event(const hr__event *event)
{
	uint64_t ticks = hr__ticks();
	HR_ASSERT(event->kind >= 1 && (unsigned)event->kind <= HR__EVENT_KINDS);
	if (HR_LIKELY(append(event, event->kind, hr__event_fields[event->kind], ticks, false))) return;
	hr__event whole = *event;
	if ((hr__event_fields[event->kind] & HR__HAS_STACK) && whole.stack == HR_STACK_NONE) whole.stack = stack_now();
	append_slowly(&whole, ticks);
}

/* The host is recorded as the default stream: tools that read a trace know only the device's streams, and a program that allocates
 * for the host and frees on the default stream would change the stream with every event. */
static inline hr_stream recorded_stream(hr_stream stream)
{
	return stream == HR_STREAM_HOST ? HR_STREAM_DEFAULT : stream;
}

static inline hr__event event_of(uint32_t allocator, const hr_request *request, uint64_t address, uint64_t bytes)
{
	return (hr__event){
		.kind = HR__EVENT_ALLOC,
		.allocator = allocator,
		.stream = recorded_stream(request->stream),
		.address = address,
		.bytes = bytes,
		.requested = request->bytes,
		.op = request->op,
		.scope = request->scope,
		.tag = request->tag,
		.shape = request->shape,
		.dtype = request->dtype,
	};
}

/* An event whose address is taken must be in memory, and storing it there costs as much as everything else. So the struct for
 * append_slowly is built here; in the fast path the compiler keeps the event in registers. */
static __attribute__((cold, noinline)) void alloc_slowly(uint32_t allocator, const hr_request *request, uint64_t address,
                                                         uint64_t bytes, uint64_t ticks)
{
	hr__event event = event_of(allocator, request, address, bytes);
	event.stack = stack_now();
	append_slowly(&event, ticks);
}

static __attribute__((cold, noinline)) void free_slowly(uint32_t allocator, uint64_t address, hr_stream stream, uint64_t ticks)
{
	hr__event event = { .kind = HR__EVENT_FREE, .allocator = allocator, .address = address, .stream = recorded_stream(stream) };
	append_slowly(&event, ticks);
}

void hr__trace_alloc(uint32_t allocator, const hr_request *request, uint64_t address, uint64_t bytes)
{
	uint64_t ticks = hr__ticks();
	const hr__event event = event_of(allocator, request, address, bytes);
	if (!append(&event, HR__EVENT_ALLOC, HR__FIELDS_ALLOC, ticks, false)) alloc_slowly(allocator, request, address, bytes, ticks);
}

void hr__trace_alloc_existing(uint32_t allocator, const hr_request *request, uint64_t address, uint64_t bytes)
{
	hr__event event = event_of(allocator, request, address, bytes);
	append_slowly(&event, hr__ticks());
}

void hr__trace_free(uint32_t allocator, uint64_t address, hr_stream stream)
{
	uint64_t ticks = hr__ticks();
	const hr__event event = { .allocator = allocator, .address = address, .stream = recorded_stream(stream) };
	if (!append(&event, HR__EVENT_FREE, HR__FIELDS_FREE, ticks, false)) free_slowly(allocator, address, stream, ticks);
}
