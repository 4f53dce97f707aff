/* export_common.c - see export_formats.h. */
#include <stdio.h>
#include <string.h>

#include "core/base/text/text.h"
#include "core/os/os.h"
#include "analysis/export/export_formats.h"

void *hr__export_take(hr_status *status, size_t bytes)
{
	void *block;
	if (*status) return NULL;
	int error = hr__os()->alloc(bytes, &block);
	if (!error) return block;
	*status = hr__os_fail(error, "exporting a trace");
	return NULL;
}

void hr__export_give(void *block, size_t bytes)
{
	if (block) hr__os()->free(block, bytes);
}

const char *hr__export_op_name(hr_name scope, hr_name op, char out[HR__EXPORT_NAME_BYTES])
{
	const char *outer = hr_name_text(scope), *inner = hr_name_text(op);
	if (!outer[0] && !inner[0]) inner = "(none)";
	snprintf(out, HR__EXPORT_NAME_BYTES, "%s%s%s", outer, outer[0] && inner[0] ? "/" : "", inner);
	return out;
}

const char *hr__export_type(const hr__site *site, char out[HR__EXPORT_TYPE_BYTES])
{
	char shape[HR__EXPORT_TYPE_BYTES - 32] = "";
	int64_t dims[HR_SHAPE_MAX_RANK];
	const char *dtype = site->dtype != HR_DTYPE_NONE ? hr_dtype_text(site->dtype) : "";
	if (hr_shape_dims(site->shape, dims) >= 0) hr_shape_format(site->shape, shape, sizeof shape);
	snprintf(out, HR__EXPORT_TYPE_BYTES, "%s%s", dtype, shape);
	return out;
}

#define COMPARE_MAX 1000 /* number of allocators that are compared with each other; a file may define any number */

static void make_label(const hr__capture *capture, uint32_t index, char out[HR__EXPORT_LABEL_BYTES])
{
	const hr__capture_allocator *allocator = &capture->allocators[index];
	const char *device = capture->devices[allocator->device].name;
	bool same_name = false, same_device = capture->allocator_count > COMPARE_MAX;
	for (uint32_t i = 0; i < capture->allocator_count && i < COMPARE_MAX; i++) {
		if (i == index || strcmp(capture->allocators[i].name, allocator->name) != 0) continue;
		same_name = true;
		same_device = same_device || capture->allocators[i].device == allocator->device;
	}
	if (same_device) snprintf(out, HR__EXPORT_LABEL_BYTES, "%s (%s, %u)", allocator->name, device, allocator->id);
	else if (same_name) snprintf(out, HR__EXPORT_LABEL_BYTES, "%s (%s)", allocator->name, device);
	else snprintf(out, HR__EXPORT_LABEL_BYTES, "%s", allocator->name);
}

hr_status hr__export_labels_init(const hr__capture *capture, hr__export_labels *out)
{
	hr_status status = HR_OK;
	size_t bytes = ((size_t)capture->allocator_count + 1) * sizeof *out->of;
	*out = (hr__export_labels){ .of = hr__export_take(&status, bytes), .block_bytes = bytes };
	if (status) return status;
	for (uint32_t i = 0; i < capture->allocator_count; i++) make_label(capture, i, out->of[i]);
	return HR_OK;
}

void hr__export_labels_free(hr__export_labels *labels)
{
	hr__export_give(labels->of, labels->block_bytes);
}

const char *hr__export_move_text(const hr__move *move)
{
	switch (move->kind) {
	case HR__MOVE_OUT: return move->by_recipe ? "dropped" : "to host";
	case HR__MOVE_IN: return move->by_recipe ? "recomputed" : "to device";
	case HR__MOVE_ON_DEVICE: return "moved on device";
	case HR__MOVE_STITCH: return "pages stitched";
	}
	return "moved";
}

hr_status hr__export_sums_init(const hr__capture *capture, hr__export_sums *out)
{
	hr_status status = HR_OK;
	size_t count = (size_t)capture->allocator_count + 2 * (size_t)capture->device_count + 1, bytes = count * sizeof(uint64_t);
	*out = (hr__export_sums){ .allocators = hr__export_take(&status, bytes), .block_bytes = bytes };
	if (status) return status;
	out->devices = out->allocators + capture->allocator_count;
	out->allocators_on = out->devices + capture->device_count;
	for (uint32_t i = 0; i < capture->allocator_count; i++) out->allocators_on[capture->allocators[i].device]++;
	return HR_OK;
}

void hr__export_sums_take(const hr__capture *capture, hr__export_sums *sums, const hr__change *change)
{
	uint32_t allocator = hr__allocation_allocator(capture, change->allocation), device = capture->allocators[allocator].device;
	uint64_t bytes = capture->allocations[change->allocation].bytes;
	sums->allocators[allocator] += change->frees ? -bytes : bytes;
	sums->devices[device] += change->frees ? -bytes : bytes;
}

void hr__export_sums_free(hr__export_sums *sums)
{
	hr__export_give(sums->allocators, sums->block_bytes);
}

hr_status hr__export_threads_init(const hr__capture *capture, hr__export_threads *out)
{
	hr_status status = HR_OK;
	uint32_t count = 0;
	for (uint32_t i = 0; i < capture->op_count; i++)
		if (capture->ops[i].thread >= count) count = capture->ops[i].thread + 1;
	*out = (hr__export_threads){ 0 };
	if (count == 0) return HR_OK;
	*out = (hr__export_threads){ .ops = hr__export_take(&status, count * sizeof *out->ops), .count = count };
	if (status) return status;
	for (uint32_t i = 0; i < capture->op_count; i++) out->ops[capture->ops[i].thread]++;
	return HR_OK;
}

void hr__export_threads_free(hr__export_threads *threads)
{
	hr__export_give(threads->ops, threads->count * sizeof *threads->ops);
}
