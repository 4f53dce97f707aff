/* names.c - interned names, shapes, frames and stacks, and the table of dtypes.
 *
 * All of them are byte strings here (a shape is the bytes of its dimensions, a frame those of its struct, a stack those of the numbers of
 * its frames), stored in the same kind of table:
 *
 *   slots    a hash table with linear probing, at most half full; a slot is 0 (empty) or hash << 16 | number
 *   entries  number -> offset and length of its bytes in the pool
 *   pool     the bytes, each string followed by a 0
 *
 * The tables are zero-initialised static storage, so untouched parts cost no memory, and interning cannot fail.
 *
 * A known string is found without a lock: its number is stored in a slot (release) after its entry and bytes are complete, entries
 * never change or move, and nothing is removed. Insertion acquires the lock and searches again. The order of insertion (bytes,
 * entry, count, slot) also makes an insertion safe to abandon halfway: a fork during an insertion by another thread leaves the
 * child such a copy.
 *
 * The hash is seeded with the table's address, which the system randomises, so a hostile trace file cannot contain prepared
 * collisions. */
#include "core/base/names.h"

#include <stdio.h>
#include <string.h>

#include "core/base/assert.h"
#include "core/base/atomic.h"
#include "core/base/lock.h"
#include "core/base/text/text.h"

#define FIRST_NUMBER 2u  /* 0 and 1 are NONE and OTHER in every table */
#define SLOTS (1u << 17) /* a power of two, twice the maximum number of entries */
#define NUMBER_MASK 0xFFFFu
#define SHAPE_BYTES_MAX (HR_SHAPE_MAX_RANK * sizeof(int64_t))
#define OTHER_TEXT "(other)"

_Static_assert(HR__NAMES_MAX - 1 <= NUMBER_MASK && HR__SHAPES_MAX - 1 <= NUMBER_MASK, "a number must fit in its part of a slot");
_Static_assert(SLOTS >= 2 * HR__NAMES_MAX && SLOTS >= 2 * HR__SHAPES_MAX, "probing is short and ends because slots stay empty");
_Static_assert(HR__FRAMES_MAX <= HR__NAMES_MAX && HR__STACKS_MAX <= HR__NAMES_MAX, "the same holds for frames and stacks");
_Static_assert(sizeof(hr_frame) == 3 * sizeof(hr_name) + sizeof(uint32_t) + sizeof(uint64_t), "frames are compared as bytes: no padding");

struct name_entry {
	uint32_t offset;
	uint32_t length;
};

struct table {
	hr__atomic_u32 *slots;
	struct name_entry *entries;
	char *pool;
	uint32_t entries_max;
	uint32_t pool_max;
	hr__atomic_u32 pool_used; /* written under the lock */
	hr__atomic_u32 count;     /* numbers below it are valid; written under the lock */
};

static hr__atomic_u32 name_slots[SLOTS], shape_slots[SLOTS], frame_slots[SLOTS], stack_slots[SLOTS];
static struct name_entry name_entries[HR__NAMES_MAX], shape_entries[HR__SHAPES_MAX];
static struct name_entry frame_entries[HR__FRAMES_MAX], stack_entries[HR__STACKS_MAX];
static char name_pool[HR__NAMES_TEXT_MAX], shape_pool[HR__SHAPES_MAX * (SHAPE_BYTES_MAX + 1)];
static char frame_pool[HR__FRAMES_MAX * (sizeof(hr_frame) + 1)], stack_pool[HR__STACKS_BYTES_MAX];

static struct table names = { name_slots, name_entries, name_pool, HR__NAMES_MAX, sizeof name_pool, 0, FIRST_NUMBER };
static struct table shapes = { shape_slots, shape_entries, shape_pool, HR__SHAPES_MAX, sizeof shape_pool, 0, FIRST_NUMBER };
static struct table frames = { frame_slots, frame_entries, frame_pool, HR__FRAMES_MAX, sizeof frame_pool, 0, FIRST_NUMBER };
static struct table stacks = { stack_slots, stack_entries, stack_pool, HR__STACKS_MAX, sizeof stack_pool, 0, FIRST_NUMBER };

static hr__lock insertion = HR__LOCK_INIT(HR__RANK_NAMES);

/* ---- the table ---- */

static uint64_t mix(uint64_t a, uint64_t b)
{
	unsigned __int128 product = (unsigned __int128)a * b;
	return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static uint64_t hash_bytes(const struct table *table, const char *bytes, size_t length)
{
	const uint64_t odd = 0x9E3779B97F4A7C15u;
	uint64_t hash = (uint64_t)(uintptr_t)table->pool + length * odd;
	uint64_t word;
	for (; length >= sizeof word; bytes += sizeof word, length -= sizeof word) {
		memcpy(&word, bytes, sizeof word);
		hash = mix(hash ^ word, odd);
	}
	word = 0;
	for (size_t i = 0; i < length; i++) word = word << 8 | (unsigned char)bytes[i];
	return mix(hash ^ word, 0xD6E8FEB86659FD93u) ^ hash;
}

/* The number of the string, or 0. *out_slot is its slot, or the slot to insert it in. */
static uint32_t find(const struct table *table, uint64_t hash, const char *bytes, size_t length, uint32_t *out_slot)
{
	uint32_t tag = (uint32_t)(hash >> 32) & ~NUMBER_MASK;
	for (uint32_t slot = (uint32_t)hash & (SLOTS - 1);; slot = (slot + 1) & (SLOTS - 1)) {
		uint32_t content = hr__load_acquire(&table->slots[slot]);
		*out_slot = slot;
		if (content == 0) return 0;
		if ((content & ~NUMBER_MASK) != tag) continue;
		const struct name_entry *entry = &table->entries[content & NUMBER_MASK];
		if (entry->length == length && memcmp(table->pool + entry->offset, bytes, length) == 0) return content & NUMBER_MASK;
	}
}

/* Needs no lock: a string that does not fit now never will, because nothing is removed. */
static bool has_room(const struct table *table, size_t length)
{
	return hr__load_acquire(&table->count) < table->entries_max && length < table->pool_max - hr__load_relaxed(&table->pool_used);
}

static uint32_t insert(struct table *table, uint64_t hash, uint32_t slot, const char *bytes, size_t length)
{
	HR_ASSERT(hr__lock_is_mine(&insertion));
	uint32_t number = hr__load_relaxed(&table->count);
	uint32_t offset = hr__load_relaxed(&table->pool_used);
	memcpy(table->pool + offset, bytes, length);
	table->pool[offset + length] = 0;
	table->entries[number] = (struct name_entry){ offset, (uint32_t)length };
	hr__store_relaxed(&table->pool_used, offset + (uint32_t)length + 1);
	hr__store_release(&table->count, number + 1);
	hr__store_release(&table->slots[slot], ((uint32_t)(hash >> 32) & ~NUMBER_MASK) | number);
	return number;
}

/* Returns the number of the string and inserts it if it is new; 0 when it is new and the table is full. */
static uint32_t intern(struct table *table, const char *bytes, size_t length)
{
	uint64_t hash = hash_bytes(table, bytes, length);
	uint32_t slot;
	uint32_t number = find(table, hash, bytes, length, &slot);
	if (HR_LIKELY(number != 0)) return number;

	/* Checked before acquiring the lock; otherwise all threads would queue for it at every name that a full table does not
	 * contain. */
	if (!has_room(table, length)) return 0;

	hr__lock_take(&insertion);
	number = find(table, hash, bytes, length, &slot);
	if (number == 0 && has_room(table, length)) number = insert(table, hash, slot, bytes, length);
	hr__lock_release(&insertion);
	return number;
}

static const struct name_entry *entry_of(const struct table *table, uint32_t number)
{
	return number >= FIRST_NUMBER && number < hr__load_acquire(&table->count) ? &table->entries[number] : NULL;
}

static void forget(struct table *table)
{
	for (uint32_t i = 0; i < SLOTS; i++) hr__store_relaxed(&table->slots[i], 0);
	hr__store_relaxed(&table->pool_used, 0);
	hr__store_release(&table->count, FIRST_NUMBER);
}

void hr__names_after_fork(void)
{
	hr__lock_init(&insertion, HR__RANK_NAMES);
}

void hr__names_reset_for_test(void)
{
	forget(&names);
	forget(&shapes);
	forget(&frames);
	forget(&stacks);
}

/* ---- names ---- */

hr_name hr__name_of_bytes(const char *text, size_t length)
{
	if (text == NULL || length == 0) return HR_NAME_NONE;
	if (length > HR__NAME_LENGTH_MAX) length = hr__utf8_trim(text, HR__NAME_LENGTH_MAX);
	/* So that "(other)" read from a trace file means the same here. */
	if (HR_UNLIKELY(text[0] == '(') && length == strlen(OTHER_TEXT) && memcmp(text, OTHER_TEXT, length) == 0) return HR_NAME_OTHER;
	uint32_t number = intern(&names, text, length);
	return number != 0 ? number : HR_NAME_OTHER;
}

hr_name hr_name_intern(const char *text)
{
	return text == NULL ? HR_NAME_NONE : hr__name_of_bytes(text, strnlen(text, HR__NAME_LENGTH_MAX + 1));
}

const char *hr_name_text(hr_name name)
{
	if (name == HR_NAME_NONE) return "";
	const struct name_entry *entry = entry_of(&names, name);
	return entry != NULL ? names.pool + entry->offset : OTHER_TEXT;
}

uint32_t hr__names_count(void)
{
	return hr__load_acquire(&names.count);
}

/* ---- shapes ---- */

hr_shape hr_shape_intern(const int64_t *dims, int rank)
{
	if (rank < 0 || rank > HR_SHAPE_MAX_RANK || (rank > 0 && dims == NULL)) return HR_SHAPE_NONE;
	for (int i = 0; i < rank; i++) {
		if (dims[i] < 0) return HR_SHAPE_NONE;
	}
	uint32_t number = intern(&shapes, rank > 0 ? (const char *)dims : "", (size_t)rank * sizeof dims[0]);
	return number != 0 ? number : HR_SHAPE_OTHER;
}

int hr_shape_dims(hr_shape shape, int64_t dims[HR_SHAPE_MAX_RANK])
{
	const struct name_entry *entry = entry_of(&shapes, shape);
	if (entry == NULL) return -1;
	HR_ASSERT(entry->length <= SHAPE_BYTES_MAX);
	memcpy(dims, shapes.pool + entry->offset, entry->length);
	return (int)(entry->length / sizeof dims[0]);
}

size_t hr_shape_format(hr_shape shape, char *out, size_t capacity)
{
	int64_t dims[HR_SHAPE_MAX_RANK];
	char text[2 + HR_SHAPE_MAX_RANK * 20 + 1]; /* brackets; 19 digits and a comma for each dimension; 0 */
	int rank = hr_shape_dims(shape, dims);
	size_t length = 0;
	if (rank < 0) {
		text[length++] = '?';
	} else {
		text[length++] = '[';
		for (int i = 0; i < rank; i++) {
			length += (size_t)snprintf(text + length, sizeof text - length, "%s%lld", i > 0 ? "," : "", (long long)dims[i]);
		}
		text[length++] = ']';
	}
	HR_ASSERT(length < sizeof text);
	if (capacity > 0) {
		size_t taken = length < capacity ? length : capacity - 1;
		memcpy(out, text, taken);
		out[taken] = 0;
	}
	return length;
}

uint32_t hr__shapes_count(void)
{
	return hr__load_acquire(&shapes.count);
}

/* ---- frames and stacks ---- */

static hr_name valid_name(hr_name name)
{
	return name < hr__names_count() ? name : HR_NAME_OTHER;
}

uint32_t hr__frame_intern(const hr_frame *frame)
{
	hr_frame known = { valid_name(frame->function), valid_name(frame->file), valid_name(frame->module), frame->line, frame->offset };
	if (known.function == HR_NAME_NONE && known.file == HR_NAME_NONE && known.module == HR_NAME_NONE) known.function = HR_NAME_OTHER;
	uint32_t number = intern(&frames, (const char *)&known, sizeof known);
	return number != 0 ? number : HR__FRAME_OTHER;
}

hr_frame hr__frame_get(uint32_t frame)
{
	hr_frame found = { .function = HR_NAME_OTHER };
	const struct name_entry *entry = entry_of(&frames, frame);
	if (entry != NULL) memcpy(&found, frames.pool + entry->offset, sizeof found);
	return found;
}

hr_stack hr__stack_of_frames(const uint16_t *numbers, size_t count)
{
	if (count == 0) return HR_STACK_NONE;
	if (count > HR_STACK_DEPTH_MAX) count = HR_STACK_DEPTH_MAX;
	uint32_t number = intern(&stacks, (const char *)numbers, count * sizeof numbers[0]);
	return number != 0 ? number : HR_STACK_OTHER;
}

size_t hr__stack_frames(hr_stack stack, uint16_t numbers[HR_STACK_DEPTH_MAX])
{
	if (stack == HR_STACK_NONE) return 0;
	const struct name_entry *entry = entry_of(&stacks, stack);
	if (entry == NULL) {
		numbers[0] = HR__FRAME_OTHER;
		return 1;
	}
	HR_ASSERT(entry->length <= HR_STACK_DEPTH_MAX * sizeof numbers[0]);
	memcpy(numbers, stacks.pool + entry->offset, entry->length);
	return entry->length / sizeof numbers[0];
}

hr_stack hr_stack_intern(const hr_frame *given, size_t count)
{
	uint16_t numbers[HR_STACK_DEPTH_MAX];
	if (given == NULL) return HR_STACK_NONE;
	if (count > HR_STACK_DEPTH_MAX) count = HR_STACK_DEPTH_MAX;
	for (size_t i = 0; i < count; i++) numbers[i] = (uint16_t)hr__frame_intern(&given[i]);
	return hr__stack_of_frames(numbers, count);
}

size_t hr_stack_get_frames(hr_stack stack, hr_frame *out, size_t capacity)
{
	uint16_t numbers[HR_STACK_DEPTH_MAX];
	size_t count = hr__stack_frames(stack, numbers);
	for (size_t i = 0; i < count && i < capacity; i++) out[i] = hr__frame_get(numbers[i]);
	return count;
}

uint32_t hr__frames_count(void)
{
	return hr__load_acquire(&frames.count);
}

uint32_t hr__stacks_count(void)
{
	return hr__load_acquire(&stacks.count);
}

/* ---- dtypes ---- */

const char *hr_dtype_text(hr_dtype dtype)
{
	switch (dtype) {
#define DTYPE_TEXT(name, number, size, text) \
	case HR_DTYPE_##name: return text;
		HR_DTYPE_TABLE(DTYPE_TEXT)
#undef DTYPE_TEXT
	}
	return "?";
}

size_t hr_dtype_size(hr_dtype dtype)
{
	switch (dtype) {
#define DTYPE_SIZE(name, number, size, text) \
	case HR_DTYPE_##name: return size;
		HR_DTYPE_TABLE(DTYPE_SIZE)
#undef DTYPE_SIZE
	}
	return 0;
}
