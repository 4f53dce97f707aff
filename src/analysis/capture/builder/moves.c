/* moves.c - moves of tensors, refusals and regions of a capture that is being built. */
#include "analysis/capture/builder/builder.h"

/* ---- identity of tensors ---- */

hr_status hr__builder_end_tensors(hr__builder *b, hr_status status)
{
	for (; !status && b->tensor_ends < b->arrays->tensor_ends.count; b->tensor_ends++) status = hr__builder_add_item(b, HR__ITEM_TENSOR_END);
	return status;
}

/* Passes a move to lives.c, which joins the allocations of an evicted or moved tensor. */
static hr_status update_lives(hr__builder *b, const hr__event *e, hr__move_kind kind)
{
	uint32_t allocator = hr__builder_find_allocator(b, e->allocator);
	bool joined = false, nameless = false;
	hr_status status = HR_OK;
	hr__life_event life = { e, hr__builder_device_index(b, allocator), hr__builder_find_live(b, allocator, e->address) };
	switch (kind) {
	case HR__MOVE_OUT: status = hr__lives_evict(&b->lives, &life); break;
	case HR__MOVE_IN: status = hr__lives_restore(&b->lives, &life, &joined, &nameless); break;
	case HR__MOVE_ON_DEVICE: status = hr__lives_move(&b->lives, &life, hr__builder_find_live(b, allocator, e->address2), &joined); break;
	case HR__MOVE_STITCH: break;
	}
	hr__builder_device_of(b, allocator)->joined += joined;
	hr__builder_device_of(b, allocator)->nameless_restores += nameless;
	return hr__builder_end_tensors(b, status);
}

/* ---- moves, refusals, regions ---- */

/* The live allocation that an event moved on the device: at its new address, or still at the old one. */
static uint32_t find_moved(hr__builder *b, const hr__event *e)
{
	uint32_t allocator = hr__builder_find_allocator(b, e->allocator);
	uint32_t moved = hr__builder_find_live(b, allocator, e->address2);
	return moved != HR__NONE ? moved : hr__builder_find_live(b, allocator, e->address);
}

hr_status hr__builder_add_move(hr__builder *b, const hr__event *e, hr__move_kind kind)
{
	uint32_t site = 0, moved = kind == HR__MOVE_ON_DEVICE ? find_moved(b, e) : HR__NONE;
	if (e->bytes > HR__TOTAL_BYTES_MAX - b->bytes_moved) {
		b->capture->skipped++;
		return HR_OK;
	}
	hr_status status = HR_OK;
	if (moved != HR__NONE) site = hr__builder_allocations(b)[moved].site;
	else status = hr__builder_find_site(b, e, &site);
	if (!status) status = update_lives(b, e, kind);
	hr__move *move = hr__array_push(&b->arrays->moves, &status);
	if (status) return status;
	bool by_recipe = (kind == HR__MOVE_OUT || kind == HR__MOVE_IN) && hr__trace_is_dropped(e->address2);
	*move = (hr__move){ e->time_ns, e->bytes, kind, by_recipe, site };
	b->bytes_moved += e->bytes;
	return hr__builder_add_item(b, HR__ITEM_MOVE);
}

hr_status hr__builder_add_refusal(hr__builder *b, const hr__event *e)
{
	uint32_t site;
	hr_status status = hr__builder_find_site(b, e, &site);
	hr__refusal *refusal = hr__array_push(&b->arrays->refusals, &status);
	if (status) return status;
	*refusal = (hr__refusal){ e->time_ns, e->bytes ? e->bytes : e->requested, site };
	return hr__builder_add_item(b, HR__ITEM_REFUSAL);
}

hr_status hr__builder_add_region(hr__builder *b, const hr__event *e)
{
	bool taken = false;
	uint32_t allocator = hr__builder_find_allocator(b, e->allocator);
	hr_status status = e->kind == HR__EVENT_MAP ? hr__region_map(&b->regions, allocator, e->address, e->bytes, e->time_ns, &taken)
	                                            : hr__region_unmap(&b->regions, allocator, e->address, e->bytes, e->time_ns, &taken);
	if (!taken) b->capture->skipped++;
	return status;
}
