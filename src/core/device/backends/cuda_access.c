/* cuda_access.c - which cards may access the pages of a card.
 *
 * CUDA keeps access for each mapping. A new mapping gets the access of all cards in the list; when a card is added to the list, the
 * mappings that exist get its access too. A bit for each page of a range says whether the page is mapped.
 *
 *     map    sets access for the cards of the list, then sets the bits; repeats if the list has grown meanwhile
 *     allow  adds a card to the list, and sets access for pages whose bits are set, with the lock held
 *     unmap  clears the bits, then unmaps
 *
 * So each mapping is either seen by allow, or its map sees the longer list, and allow never meets a page that is not mapped. The
 * lock is not held during other calls of the driver. */
#include <string.h>

#include "core/base/status.h"
#include "core/device/backends/cuda_card.h"
#include "core/os/os.h"

struct hr__cuda_range {
	uint64_t base, bytes;
	size_t size; /* of this record */
	uint64_t mapped[]; /* a bit for each page */
};

/* Number of ranges that begin at or below [address]. */
static size_t rank_of(const hr__cuda_card *card, uint64_t address)
{
	size_t low = 0, high = card->range_count;
	while (low < high) {
		size_t middle = low + (high - low) / 2;
		if (card->ranges[middle]->base <= address) low = middle + 1;
		else high = middle;
	}
	return low;
}

void hr__cuda_access_open(hr__cuda_card *card)
{
	CUmemLocation here = { HR__CU_MEM_LOCATION_TYPE_DEVICE, card->device };
	hr__lock_init(&card->access_lock, HR__RANK_DEVICE);
	card->access[0] = (CUmemAccessDesc){ .location = here, .flags = HR__CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	hr__store_relaxed(&card->access_count, 1);
}

void hr__cuda_access_close(hr__cuda_card *card)
{
	for (size_t i = 0; i < card->range_count; i++) hr__os()->free(card->ranges[i], card->ranges[i]->size);
	if (card->ranges) hr__os()->free(card->ranges, card->range_capacity * sizeof *card->ranges);
}

hr_status hr__cuda_range_make(const hr__cuda_card *card, uint64_t bytes, hr__cuda_range **out)
{
	size_t size = sizeof **out + (bytes / card->page_bytes + 63) / 64 * sizeof(uint64_t);
	void *memory;
	int error = hr__os()->alloc(size, &memory);
	if (error) return hr__os_fail(error, "the tables of a device");
	*out = memory;
	**out = (hr__cuda_range){ .bytes = bytes, .size = size };
	return HR_OK;
}

void hr__cuda_range_free(hr__cuda_range *range)
{
	hr__os()->free(range, range->size);
}

hr_status hr__cuda_range_add(hr__cuda_card *card, hr__cuda_range *range, uint64_t base)
{
	range->base = base;
	hr__lock_take(&card->access_lock);
	int error = card->range_count < card->range_capacity ? 0 : hr__os_grow(&card->ranges, &card->range_capacity, sizeof *card->ranges, 16);
	if (!error) {
		size_t rank = rank_of(card, base);
		memmove(card->ranges + rank + 1, card->ranges + rank, (card->range_count - rank) * sizeof *card->ranges);
		card->ranges[rank] = range;
		card->range_count++;
	}
	hr__lock_release(&card->access_lock);
	return error ? hr__os_fail(error, "the tables of a device") : HR_OK;
}

hr__cuda_range *hr__cuda_range_remove(hr__cuda_card *card, uint64_t base)
{
	hr__lock_take(&card->access_lock);
	size_t rank = rank_of(card, base);
	hr__cuda_range *range = rank > 0 && card->ranges[rank - 1]->base == base ? card->ranges[rank - 1] : NULL;
	if (range) {
		card->range_count--;
		memmove(card->ranges + rank - 1, card->ranges + rank, (card->range_count - rank + 1) * sizeof *card->ranges);
	}
	hr__lock_release(&card->access_lock);
	return range;
}

/* With the lock held. */
static void set_bits(const hr__cuda_card *card, uint64_t address, uint64_t count, bool mapped)
{
	HR_ASSERT(hr__lock_is_mine(&card->access_lock));
	size_t rank = rank_of(card, address);
	if (rank == 0) return;
	hr__cuda_range *range = card->ranges[rank - 1];
	uint64_t first = (address - range->base) / card->page_bytes;
	HR_ASSERT(address - range->base < range->bytes && first + count <= range->bytes / card->page_bytes);
	for (uint64_t page = first; page < first + count; page++) {
		uint64_t bit = UINT64_C(1) << (page % 64);
		if (mapped) range->mapped[page / 64] |= bit;
		else range->mapped[page / 64] &= ~bit;
	}
}

void hr__cuda_access_note(hr__cuda_card *card, uint64_t address, uint32_t count, bool mapped)
{
	hr__lock_take(&card->access_lock);
	set_bits(card, address, count, mapped);
	hr__lock_release(&card->access_lock);
}

CUresult hr__cuda_access_set(hr__cuda_card *card, uint64_t address, uint32_t count)
{
	uint32_t cards;
	bool complete;
	do {
		cards = hr__load_acquire(&card->access_count);
		CUresult result = hr__cuda.cuMemSetAccess(address, count * card->page_bytes, card->access, cards);
		if (result != HR__CUDA_SUCCESS) {
			hr__cuda_access_note(card, address, count, false);
			return result;
		}
		hr__lock_take(&card->access_lock);
		set_bits(card, address, count, true);
		complete = cards == hr__load_relaxed(&card->access_count);
		hr__lock_release(&card->access_lock);
	} while (!complete);
	return HR__CUDA_SUCCESS;
}

static bool is_mapped(const hr__cuda_range *range, uint64_t page)
{
	return range->mapped[page / 64] >> (page % 64) & 1;
}

/* Each run of mapped pages in one call. Called in the context, with the lock held. */
static CUresult set_access_of(const hr__cuda_card *card, const hr__cuda_range *range, const CUmemAccessDesc *access)
{
	CUresult result = HR__CUDA_SUCCESS;
	uint64_t pages = range->bytes / card->page_bytes;
	for (uint64_t page = 0, end; page < pages && result == HR__CUDA_SUCCESS; page = end) {
		end = page + 1;
		if (!is_mapped(range, page)) continue;
		while (end < pages && is_mapped(range, end)) end++;
		result = hr__cuda.cuMemSetAccess(range->base + page * card->page_bytes, (end - page) * card->page_bytes, access, 1);
	}
	return result;
}

static bool is_listed(const hr__cuda_card *card, CUdevice device)
{
	for (uint32_t i = 0; i < hr__load_relaxed(&card->access_count); i++) {
		if (card->access[i].location.id == device) return true;
	}
	return false;
}

/* With the lock held, in the context. */
static CUresult add_card(hr__cuda_card *card, CUdevice device)
{
	uint32_t count = hr__load_relaxed(&card->access_count);
	CUresult result = HR__CUDA_SUCCESS;
	card->access[count] = card->access[0];
	card->access[count].location.id = device;
	hr__store_release(&card->access_count, count + 1);
	for (size_t i = 0; i < card->range_count && result == HR__CUDA_SUCCESS; i++)
		result = set_access_of(card, card->ranges[i], &card->access[count]);
	if (result != HR__CUDA_SUCCESS) hr__store_release(&card->access_count, count); /* what has its access keeps it */
	return result;
}

hr_status hr__cuda_allow_access(void *device, void *peer)
{
	hr__cuda_card *card = device;
	const hr__cuda_card *other = peer;
	bool pushed;
	CUresult result = hr__cuda_enter(card, &pushed);
	if (result != HR__CUDA_SUCCESS) return hr__cuda_failed(card, result, "cuCtxPushCurrent");
	hr__lock_take(&card->access_lock);
	bool listed = is_listed(card, other->device), full = !listed && hr__load_relaxed(&card->access_count) == HR__CUDA_MAX_CARDS;
	if (!listed && !full) result = add_card(card, other->device);
	hr__lock_release(&card->access_lock);
	hr__cuda_leave(pushed);
	if (full) return hr__fail(HR_TOO_MANY, "%u cards can access the memory of %s already", HR__CUDA_MAX_CARDS, card->name);
	return result == HR__CUDA_SUCCESS ? HR_OK : hr__cuda_failed_of(card, result, "cuMemSetAccess", " for another card");
}
