/* definitions.c - see definitions.h. Also the definitions of devices and allocators, whose numbers the caller chooses. */
#include "core/trace/definitions.h"

#include <string.h>

#include "core/os/os.h"
#include "core/trace/trace_file.h"

#define TEXT_MAX 255u /* bytes of the names of devices, allocators and kinds; longer ones are cut */

_Static_assert(HR__RECORD_PAYLOAD_MAX >= 9 * 3 + 2 * TEXT_MAX, "devices and allocators fit");
_Static_assert(HR__RECORD_PAYLOAD_MAX >= 9 + 9 + 3 * HR_STACK_DEPTH_MAX, "stacks fit");

hr__atomic_u32 hr__name_numbers[HR__NAMES_MAX], hr__shape_numbers[HR__SHAPES_MAX], hr__stack_numbers[HR__STACKS_MAX];
static hr__atomic_u32 frame_numbers[HR__FRAMES_MAX];

/* ---- payloads ---- */

static uint8_t *put_text(uint8_t *at, const char *text, size_t length)
{
	memcpy(at, text, length);
	return at + length;
}

static size_t name_payload(uint8_t *payload, uint32_t number, hr_name name)
{
	const char *text = hr_name_text(name);
	size_t length = strnlen(text, HR__NAME_LENGTH_MAX);
	return (size_t)(put_text(hr__varint_put(payload, number), text, length) - payload);
}

static size_t shape_payload(uint8_t *payload, uint32_t number, hr_shape shape)
{
	int64_t dims[HR_SHAPE_MAX_RANK];
	int rank = hr_shape_dims(shape, dims);
	uint8_t *at = hr__varint_put(hr__varint_put(payload, number), (uint64_t)rank);
	for (int i = 0; i < rank; i++) at = hr__varint_put(at, (uint64_t)dims[i]);
	return (size_t)(at - payload);
}

static uint64_t number_of(const hr__atomic_u32 *numbers, uint32_t id)
{
	uint32_t known = hr__load_relaxed(&numbers[id]);
	HR_ASSERT(known != 0);
	return known - 1;
}

static size_t frame_payload(uint8_t *payload, uint32_t number, uint32_t id)
{
	hr_frame frame = hr__frame_get(id);
	uint8_t *at = hr__varint_put(payload, number);
	at = hr__varint_put(at, number_of(hr__name_numbers, frame.function));
	at = hr__varint_put(at, number_of(hr__name_numbers, frame.file));
	at = hr__varint_put(at, frame.line);
	at = hr__varint_put(at, number_of(hr__name_numbers, frame.module));
	at = hr__varint_put(at, frame.offset);
	return (size_t)(at - payload);
}

static size_t stack_payload(uint8_t *payload, uint32_t number, hr_stack stack)
{
	uint16_t frames[HR_STACK_DEPTH_MAX];
	size_t count = hr__stack_frames(stack, frames);
	uint8_t *at = hr__varint_put(hr__varint_put(payload, number), count);
	for (size_t i = 0; i < count; i++) at = hr__varint_put(at, number_of(frame_numbers, frames[i]));
	return (size_t)(at - payload);
}

/* ---- names, shapes, frames and stacks ---- */

/* Ids of the process are mapped to numbers of the file; names, shapes, frames and stacks have a table each. */
typedef struct number_table {
	hr__atomic_u32 *numbers;
	uint32_t ids_max;
	uint32_t (*ids_known)(void);
	unsigned kind;
	size_t (*write)(uint8_t *payload, uint32_t number, uint32_t id);
	uint32_t count;   /* numbers assigned in this file; guarded by the trace lock */
	uint32_t ids_end; /* numbers[] is 0 from this index on; guarded by the trace lock */
} number_table;

static number_table names = { hr__name_numbers, HR__NAMES_MAX, hr__names_count, HR__RECORD_NAME, name_payload, 0, 0 };
static number_table shapes = { hr__shape_numbers, HR__SHAPES_MAX, hr__shapes_count, HR__RECORD_SHAPE, shape_payload, 0, 0 };
static number_table frames = { frame_numbers, HR__FRAMES_MAX, hr__frames_count, HR__RECORD_FRAME, frame_payload, 0, 0 };
static number_table stacks = { hr__stack_numbers, HR__STACKS_MAX, hr__stacks_count, HR__RECORD_STACK, stack_payload, 0, 0 };

/* Numbers 0 and 1 ("none" and "other") are the same in every file. */
static void reset(number_table *table)
{
	memset(table->numbers, 0, table->ids_end * sizeof(table->numbers[0]));
	for (uint32_t i = 0; i < 2; i++) hr__store_relaxed(&table->numbers[i], i + 1);
	table->count = table->ids_end = 2;
}

void hr__definitions_reset(void)
{
	reset(&names);
	reset(&shapes);
	reset(&frames);
	reset(&stacks);
}

/* Gives [id] a number in the file. The lock is held from choosing the number to publishing it, so that numbers are dense and
 * defined before they are used. Room is made first, because taking a block acquires the lock. */
static bool define(hr__writer *w, number_table *table, uint32_t id)
{
	uint8_t payload[HR__RECORD_PAYLOAD_MAX + HR__VARINT_SCRIBBLE];
	HR_ASSERT(hr__load_relaxed(&w->busy));
	if (id >= table->ids_max || hr__load_acquire(&table->numbers[id]) != 0) return true;
	if (!hr__writer_ensure_room(w, HR__RECORD_PAYLOAD_MAX)) return false;
	hr__lock_take(&hr__trace_lock);
	if (hr__load_relaxed(&table->numbers[id]) == 0) {
		uint32_t number = HR_NAME_OTHER;
		if (id < table->ids_known() && table->count < HR__TRACE_IDS_MAX) {
			number = table->count++;
			hr__writer_put_record(w, table->kind, payload, table->write(payload, number, id));
		}
		if (table->ids_end <= id) table->ids_end = id + 1;
		hr__store_release(&table->numbers[id], number + 1);
	}
	hr__lock_release(&hr__trace_lock);
	return true;
}

static bool define_frame(hr__writer *w, uint32_t id)
{
	hr_frame frame = hr__frame_get(id);
	return define(w, &names, frame.function) && define(w, &names, frame.file) && define(w, &names, frame.module) && define(w, &frames, id);
}

bool hr__definitions_add_name(hr__writer *w, hr_name name)
{
	return define(w, &names, name);
}

bool hr__definitions_add_shape(hr__writer *w, hr_shape shape)
{
	return define(w, &shapes, shape);
}

/* A stack is defined after its frames, and a frame after its names. */
bool hr__definitions_add_stack(hr__writer *w, hr_stack stack)
{
	uint16_t ids[HR_STACK_DEPTH_MAX];
	if (stack >= HR__STACKS_MAX || hr__load_acquire(&hr__stack_numbers[stack]) != 0) return true;
	size_t count = hr__stack_frames(stack, ids);
	for (size_t i = 0; i < count; i++) {
		if (hr__load_acquire(&frame_numbers[ids[i]]) == 0 && !define_frame(w, ids[i])) return false;
	}
	return define(w, &stacks, stack);
}

/* ---- devices and allocators ---- */

void hr__trace_define_device(uint32_t id, const char *name, uint64_t limit_bytes, uint64_t page_bytes)
{
	uint8_t payload[HR__RECORD_PAYLOAD_MAX + HR__VARINT_SCRIBBLE];
	hr__writer *w = hr__writer_enter(hr__ticks());
	if (w == NULL) return;
	uint8_t *at = hr__varint_put(payload, id);
	at = hr__varint_put(at, limit_bytes);
	at = hr__varint_put(at, page_bytes);
	at = put_text(at, name, strnlen(name, TEXT_MAX));
	if (!hr__writer_put_record(w, HR__RECORD_DEVICE, payload, (size_t)(at - payload))) hr__trace_file_count_lost(true);
	hr__writer_leave(w);
}

void hr__trace_define_allocator(uint32_t id, const char *name, const char *kind, uint32_t device)
{
	uint8_t payload[HR__RECORD_PAYLOAD_MAX + HR__VARINT_SCRIBBLE];
	hr__writer *w = hr__writer_enter(hr__ticks());
	if (w == NULL) return;
	size_t length = strnlen(name, TEXT_MAX);
	uint8_t *at = hr__varint_put(payload, id);
	at = hr__varint_put(at, device);
	at = hr__varint_put(at, length);
	at = put_text(at, name, length);
	at = put_text(at, kind, strnlen(kind, TEXT_MAX));
	if (!hr__writer_put_record(w, HR__RECORD_ALLOCATOR, payload, (size_t)(at - payload))) hr__trace_file_count_lost(true);
	hr__writer_leave(w);
}

void hr__trace_define_limit(uint32_t allocator, uint64_t bytes)
{
	uint8_t payload[HR__RECORD_PAYLOAD_MAX + HR__VARINT_SCRIBBLE];
	hr__writer *w = hr__writer_enter(hr__ticks());
	if (w == NULL) return;
	uint8_t *at = hr__varint_put(hr__varint_put(payload, allocator), bytes);
	if (!hr__writer_put_record(w, HR__RECORD_LIMIT, payload, (size_t)(at - payload))) hr__trace_file_count_lost(true);
	hr__writer_leave(w);
}
