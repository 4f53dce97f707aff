/* record.c - see record.h. */
#include <string.h>

#include "core/lms/policy/record.h"

/* ---- growing arrays ---- */

bool hr__record_array_grow(hr__record_array *array, size_t item)
{
	HR_ASSERT(array->count <= array->capacity);
	return array->capacity <= (1u << 28) && !hr__os_grow(&array->items, &array->capacity, item, 256);
}

bool hr__record_array_has_room(hr__record_array *array, size_t item)
{
	return array->count < array->capacity || hr__record_array_grow(array, item);
}

void hr__record_array_free(hr__record_array *array, size_t item)
{
	if (array->items) hr__os()->free(array->items, array->capacity * item);
	*array = (hr__record_array){ 0 };
}

/* ---- the record ---- */

void hr__record_clear(hr__record *record)
{
	record->tensors.count = record->ops.count = record->uses.count = record->timed = 0;
	record->measured = record->broken = false;
	record->signature = UINT64_C(0xcbf29ce484222325);
}

void hr__record_free(hr__record *record)
{
	hr__record_array_free(&record->tensors, sizeof(hr__recorded_tensor));
	hr__record_array_free(&record->ops, sizeof(hr__recorded_op));
	hr__record_array_free(&record->uses, sizeof(hr__plan_use));
}

void hr__record_sign(hr__record *record, uint64_t value)
{
	record->signature = (record->signature ^ value) * UINT64_C(0x100000001b3);
}

uint32_t hr__record_tensor(hr__record *record, const hr__tensor *tensor, uint32_t created)
{
	HR_ASSERT(hr__lock_is_mine(&tensor->lms->lock));
	if (record->broken) return HR__RECORD_NONE;
	if (!hr__record_array_has_room(&record->tensors, sizeof(hr__recorded_tensor))) {
		record->broken = true;
		return HR__RECORD_NONE;
	}
	HR__RECORD_AT(hr__recorded_tensor, record->tensors, record->tensors.count) = (hr__recorded_tensor){
		.handle = hr__tensor_handle(tensor, hr__load_relaxed(&tensor->word)),
		.bytes = tensor->device_bytes,
		.died = HR__PLAN_NEVER,
		.created = created,
		.never_evict = hr__load_relaxed(&tensor->never_evict),
		.owns_pages = hr__tensor_owns_pages(tensor)
	};
	return record->tensors.count++;
}

bool hr__record_op(hr__record *record, hr_stream stream)
{
	if (record->broken) return false;
	if (!hr__record_array_has_room(&record->ops, sizeof(hr__recorded_op))) {
		record->broken = true;
		return false;
	}
	HR__RECORD_AT(hr__recorded_op, record->ops, record->ops.count++) = (hr__recorded_op){ .first_use = record->uses.count,
		                                                                                  .stream = stream };
	return true;
}

bool hr__record_use(hr__record *record, hr__tensor *tensor, uint32_t slot, bool write)
{
	HR_ASSERT(hr__lock_is_mine(&tensor->lms->lock));
	HR_ASSERT(record->ops.count > 0 || record->broken);
	uint32_t first = HR__RECORD_AT(hr__recorded_op, record->ops, record->ops.count - 1).first_use;
	if (slot == HR__RECORD_NONE || record->broken) return false;
	if (tensor->learned.uses && tensor->learned.use >= first && tensor->learned.use < record->uses.count &&
	    HR__RECORD_AT(hr__plan_use, record->uses, tensor->learned.use).tensor == slot) {
		HR__RECORD_AT(hr__plan_use, record->uses, tensor->learned.use).write |= write;
		return false;
	}
	tensor->learned.uses++;
	if (!hr__record_array_has_room(&record->uses, sizeof(hr__plan_use))) {
		record->broken = true;
		return false;
	}
	tensor->learned.use = record->uses.count;
	HR__RECORD_AT(hr__plan_use, record->uses, record->uses.count++) = (hr__plan_use){ slot, write };
	return true;
}

/* ---- times ---- */

void hr__record_time(hr__device *device, hr__record *record, uint32_t most)
{
	HR_ASSERT(record->timed <= record->ops.count);
	for (; record->timed < record->ops.count && most; record->timed++, most--) {
		hr__recorded_op *op = &HR__RECORD_AT(hr__recorded_op, record->ops, record->timed);
		uint64_t begin = 0, end = 0;
		if (!op->begin || !op->end) continue;
		hr_status status = hr__device_mark_time(device, op->stream, op->begin, &begin);
		if (!status) status = hr__device_mark_time(device, op->stream, op->end, &end);
		if (status == HR_NOT_READY) return;
		if (status) continue;
		op->ns = end > begin ? end - begin : 0;
		record->measured = true;
	}
}

bool hr__record_is_timed(const hr__record *record)
{
	return record->measured && record->timed == record->ops.count;
}

void hr__record_keep_times(hr__record *record, const hr__record *before)
{
	HR_ASSERT(record != before);
	if (!hr__record_is_timed(before) || before->ops.count != record->ops.count) return;
	for (uint32_t i = 0; i < record->ops.count; i++)
		HR__RECORD_AT(hr__recorded_op, record->ops, i).ns = HR__RECORD_AT(hr__recorded_op, before->ops, i).ns;
	record->measured = true;
	record->timed = record->ops.count;
}

uint64_t hr__record_compute_ns(const hr__record *record)
{
	uint64_t sum = 0;
	for (uint32_t i = 0; i < record->ops.count; i++) sum += HR__RECORD_AT(hr__recorded_op, record->ops, i).ns;
	return sum;
}
