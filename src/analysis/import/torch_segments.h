/* torch_segments.h - the segments that a PyTorch snapshot had when its history begins.
 *
 * A snapshot lists the segments at its end, and its history the segments that were added and removed meanwhile; older parts of the
 * history may be lost. So the first segments are found backwards: from the last ones, each that was added is removed, and each that
 * was removed is added. */
#ifndef HR_IMPORT_TORCH_SEGMENTS_H
#define HR_IMPORT_TORCH_SEGMENTS_H

#include "analysis/capture/regions.h"

typedef struct hr__torch_segments {
	hr__array runs;
	hr__region_list list;
} hr__torch_segments;

/* Room for [most] calls of hr__torch_segments_put. HR_NO_HOST_MEMORY, also below. */
hr_status hr__torch_segments_init(hr__torch_segments *segments, uint64_t most);
void hr__torch_segments_free(hr__torch_segments *segments);

/* Adds or removes a range of a device. A range that is empty or impossible is left out. */
hr_status hr__torch_segments_put(hr__torch_segments *segments, uint32_t device, uint64_t address, uint64_t bytes, bool add);

/* The ranges that there are now, in order of device and address; [index] is below the number of them. The device is run->allocator. */
uint32_t hr__torch_segments_count(const hr__torch_segments *segments);
const hr__region_run *hr__torch_segments_at(const hr__torch_segments *segments, uint32_t index);

#endif
