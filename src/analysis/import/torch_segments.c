/* torch_segments.c - see torch_segments.h. */
#include "analysis/import/torch_segments.h"

hr_status hr__torch_segments_init(hr__torch_segments *segments, uint64_t most)
{
	*segments = (hr__torch_segments){ 0 };
	/* A range that is put splits at most one other in two. */
	hr_status status = hr__array_init(&segments->runs, sizeof(hr__region_run), most * 3);
	if (!status) status = hr__region_list_init(&segments->list, &segments->runs);
	if (status) hr__torch_segments_free(segments);
	return status;
}

void hr__torch_segments_free(hr__torch_segments *segments)
{
	hr__region_list_free(&segments->list);
	hr__array_free(&segments->runs);
}

hr_status hr__torch_segments_put(hr__torch_segments *segments, uint32_t device, uint64_t address, uint64_t bytes, bool add)
{
	bool taken;
	return add ? hr__region_map(&segments->list, device, address, bytes, 0, &taken)
	           : hr__region_unmap(&segments->list, device, address, bytes, 0, &taken);
}

uint32_t hr__torch_segments_count(const hr__torch_segments *segments)
{
	return segments->list.count;
}

const hr__region_run *hr__torch_segments_at(const hr__torch_segments *segments, uint32_t index)
{
	HR_ASSERT(index < segments->list.count);
	return (const hr__region_run *)(const void *)segments->runs.base + segments->list.live[index];
}
