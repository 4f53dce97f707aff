/* value.c - handles of values.
 *
 * Records are in blocks that never move, with a free list. A handle is a record's number and its generation. The generation is
 * incremented when the record is freed, so a stale handle is detected. */
#include "core/base/status.h"
#include "core/os/os.h"
#include "runtime/engine/engine.h"

#include <string.h>

#define BLOCK 256u
#define BLOCKS_MAX 65536u

static struct {
	hr__value *blocks[BLOCKS_MAX];
	uint32_t *free_list; /* record numbers */
	uint32_t count, free_count;
	uint32_t generation; /* of new records: above all generations used before, also before a shutdown */
} table; /* guarded by hr__runtime_lock */

static uint64_t last_serial; /* guarded by hr__runtime_lock */

static hr__value *at(uint32_t number)
{
	return &table.blocks[number / BLOCK][number % BLOCK];
}

/* The record of a handle; NULL = none. Call with the lock. */
static hr__value *find(hr_value handle)
{
	uint32_t number = (uint32_t)handle.id - 1;
	if (!handle.id || number >= table.count) return NULL;
	hr__value *value = at(number);
	return value->used && value->generation == handle.id >> 32 ? value : NULL;
}

static hr_status is_gone(hr_value handle)
{
	if (!handle.id && hr_last_status()) return hr_last_status(); /* the call that returned HR_NO_VALUE has set the message */
	if (handle.id == HR_DONE.id) return hr__fail(HR_INVALID_ARGUMENT, "HR_DONE has no contents; hr_variable_read gives those of a variable");
	return hr__fail(HR_INVALID_HANDLE, "the value was consumed or released; keep it (hr_value_keep) to use it more than once");
}

hr_status hr__value_get(hr_value handle, hr__value *out)
{
	hr__lock_take(&hr__runtime_lock);
	const hr__value *value = find(handle);
	if (value) *out = *value;
	hr__lock_release(&hr__runtime_lock);
	return value ? HR_OK : is_gone(handle);
}

hr_status hr__value_hold(hr_value handle, hr__value *out)
{
	hr__lock_take(&hr__runtime_lock);
	const hr__value *value = find(handle);
	if (value) *out = *value;
	if (value && value->buffer) value->buffer->refs++;
	hr__lock_release(&hr__runtime_lock);
	return value ? HR_OK : is_gone(handle);
}

/* Adds BLOCK records. Called without the lock, because it allocates; another thread may grow the table at the same time. */
static bool grow(void)
{
	void *block = NULL, *list = NULL;
	hr__lock_take(&hr__runtime_lock);
	uint32_t count = table.count;
	hr__lock_release(&hr__runtime_lock);
	if (count / BLOCK >= BLOCKS_MAX || hr__os()->alloc(BLOCK * sizeof(hr__value), &block)) return false;
	if (hr__os()->alloc((count + BLOCK) * sizeof(uint32_t), &list)) {
		hr__os()->free(block, BLOCK * sizeof(hr__value));
		return false;
	}
	hr__lock_take(&hr__runtime_lock);
	bool mine = table.count == count;
	uint32_t *old = table.free_list;
	if (mine) {
		table.blocks[count / BLOCK] = block;
		for (uint32_t i = 0; i < BLOCK; i++) table.blocks[count / BLOCK][i].generation = table.generation;
		if (table.free_count) memcpy(list, old, table.free_count * sizeof(uint32_t));
		table.free_list = list;
		for (uint32_t i = BLOCK; i-- > 0;) table.free_list[table.free_count++] = count + i;
		table.count += BLOCK;
	}
	hr__lock_release(&hr__runtime_lock);
	if (mine && old) hr__os()->free(old, count * sizeof(uint32_t));
	if (!mine) {
		hr__os()->free(block, BLOCK * sizeof(hr__value));
		hr__os()->free(list, (count + BLOCK) * sizeof(uint32_t));
	}
	return true;
}

hr_value hr__value_new(const hr__value *wanted)
{
	hr_value handle = HR_NO_VALUE;
	for (;;) {
		hr__lock_take(&hr__runtime_lock);
		if (table.free_count) {
			uint32_t number = table.free_list[--table.free_count];
			hr__value *value = at(number);
			uint32_t generation = value->generation;
			*value = *wanted;
			value->generation = generation;
			value->used = value->temporary = true;
			value->keeps = 0;
			if (value->session) value->session->values++;
			handle.id = (uint64_t)generation << 32 | (number + 1);
		}
		hr__lock_release(&hr__runtime_lock);
		if (handle.id || !grow()) break;
	}
	if (!handle.id) {
		hr__buffer_release(wanted->buffer);
		hr__fail(HR_NO_HOST_MEMORY, "cannot get host memory for a value");
	}
	return handle;
}

/* Frees a record. Returns its buffer, whose reference passes to the caller. Call with the lock. */
static hr__buffer *free_record(hr__value *value, uint32_t number)
{
	hr__buffer *buffer = value->buffer;
	if (value->session) value->session->values--;
	*value = (hr__value){ .generation = value->generation + 1 };
	table.free_list[table.free_count++] = number;
	return buffer;
}

void hr__value_consume(hr_value handle)
{
	hr__buffer *buffer = NULL;
	hr__lock_take(&hr__runtime_lock);
	hr__value *value = find(handle);
	if (value && value->temporary && !value->graph) buffer = free_record(value, (uint32_t)handle.id - 1);
	hr__lock_release(&hr__runtime_lock);
	hr__buffer_release(buffer);
}

hr_value hr_value_keep(hr_value handle)
{
	hr__lock_take(&hr__runtime_lock);
	hr__value *value = find(handle);
	if (value && !value->graph) {
		value->keeps++;
		value->temporary = false;
	}
	hr__lock_release(&hr__runtime_lock);
	if (handle.id == HR_DONE.id) return handle;
	if (!value && handle.id) is_gone(handle);
	return value ? handle : HR_NO_VALUE;
}

hr_value hr__value_make_temporary(hr_value handle)
{
	hr__lock_take(&hr__runtime_lock);
	hr__value *value = find(handle);
	if (value && !value->graph && value->keeps == 1) {
		value->keeps = 0;
		value->temporary = true;
	}
	hr__lock_release(&hr__runtime_lock);
	return handle;
}

void hr_value_release(hr_value handle)
{
	hr__buffer *buffer = NULL;
	hr__lock_take(&hr__runtime_lock);
	hr__value *value = find(handle);
	if (value && !value->graph) {
		if (!value->temporary) value->keeps--;
		if (value->temporary || !value->keeps) buffer = free_record(value, (uint32_t)handle.id - 1);
	}
	hr__lock_release(&hr__runtime_lock);
	hr__buffer_release(buffer);
}

uint64_t hr__values_drop(const hr__session *session, const hr__graph *graph, uint64_t *bytes, uint64_t *largest, hr_name *op)
{
	uint64_t dropped = 0;
	*bytes = *largest = 0;
	*op = HR_NAME_NONE;
	for (uint32_t number = 0;; number++) {
		hr__buffer *buffer = NULL;
		hr__lock_take(&hr__runtime_lock);
		bool more = number < table.count;
		hr__value *value = more ? at(number) : NULL;
		if (value && value->used && (session ? value->session == session : value->graph == graph)) {
			uint64_t size = hr__type_bytes(&value->type);
			dropped++;
			*bytes += size;
			if (size >= *largest) {
				*largest = size;
				*op = value->op;
			}
			buffer = free_record(value, number);
		}
		hr__lock_release(&hr__runtime_lock);
		hr__buffer_release(buffer);
		if (!more) return dropped;
	}
}

void hr__values_free(void)
{
	uint32_t most = table.generation;
	for (uint32_t i = 0; i < table.count; i++)
		if (at(i)->generation >= most) most = at(i)->generation + 1;
	table.generation = most;
	for (uint32_t i = 0; i < table.count / BLOCK; i++) hr__os()->free(table.blocks[i], BLOCK * sizeof(hr__value));
	if (table.free_list) hr__os()->free(table.free_list, table.count * sizeof(uint32_t));
	table.free_list = NULL;
	table.count = table.free_count = 0;
}

uint64_t hr__serial_next(void)
{
	return ++last_serial;
}

uint64_t hr__value_serial(hr_value handle)
{
	hr__lock_take(&hr__runtime_lock);
	hr__value *value = find(handle);
	if (value && !value->serial) value->serial = hr__serial_next();
	uint64_t serial = value ? value->serial : 0;
	hr__lock_release(&hr__runtime_lock);
	return serial;
}

void hr__value_set_serial(hr_value handle, uint64_t serial)
{
	hr__lock_take(&hr__runtime_lock);
	hr__value *value = find(handle);
	if (value) value->serial = serial;
	hr__lock_release(&hr__runtime_lock);
}

hr_value hr__value_alias(hr_value handle)
{
	hr__value value;
	hr__value_serial(handle);
	if (hr__value_hold(handle, &value)) return HR_NO_VALUE;
	return hr__value_new(&value);
}

/* ---- properties ---- */

int hr_value_rank(hr_value handle)
{
	hr__value value;
	return hr__value_get(handle, &value) ? -1 : value.type.dims.rank;
}

int64_t hr_value_dim(hr_value handle, int dim)
{
	hr__value value;
	if (hr__value_get(handle, &value) || dim < 0 || dim >= value.type.dims.rank) return -1;
	return value.type.dims.d[dim];
}

int64_t hr_value_count(hr_value handle)
{
	hr__value value;
	return hr__value_get(handle, &value) ? -1 : hr__dims_count(&value.type.dims);
}

hr_dtype hr_value_dtype(hr_value handle)
{
	hr__value value;
	return hr__value_get(handle, &value) ? HR_DTYPE_NONE : value.type.dtype;
}
