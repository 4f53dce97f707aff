#include "core/memory/bfc/lookup.h"

#include "core/base/status.h"
#include "core/os/os.h"

#define FIRST_SLOTS 64u
#define LINE 64u

/* An empty table. NULL: *status says why. */
static hr__lookup_table *table_new(uint32_t slots, hr_status *status)
{
	HR_ASSERT(slots >= 2 && (slots & (slots - 1)) == 0);
	void *block;
	size_t bytes = sizeof(hr__lookup_table) + (size_t)slots * sizeof(hr__atomic_u32) + LINE;
	int error = hr__os()->alloc(bytes, &block);
	if (error) {
		*status = hr__os_fail(error, "cannot get %zu bytes of host memory for the table of addresses", bytes);
		return NULL;
	}
	uintptr_t first = ((uintptr_t)block + sizeof(hr__lookup_table) + LINE - 1) & ~(uintptr_t)(LINE - 1);
	hr__lookup_table *table = (hr__lookup_table *)(first - sizeof *table);
	table->block = block;
	table->shift = (uint32_t)__builtin_clz(slots) + 1;
	table->mask = slots - 1;
	table->bytes = bytes;
	return table;
}

hr_status hr__lookup_init(hr__lookup *lookup, const hr__chunk *chunks)
{
	hr_status status;
	hr__lookup_table *table = table_new(FIRST_SLOTS, &status);
	if (!table) return status;
	lookup->chunks = chunks;
	hr__store_relaxed(&lookup->table, table);
	hr__store_relaxed(&lookup->bytes, table->bytes);
	hr__store_relaxed(&lookup->shift, table->shift);
	lookup->count = 0;
	return HR_OK;
}

void hr__lookup_free(hr__lookup_table *table)
{
	if (table) hr__os()->free(table->block, table->bytes);
}

void hr__lookup_destroy(hr__lookup *lookup)
{
	hr__lookup_free(hr__load_relaxed(&lookup->table));
	hr__store_relaxed(&lookup->table, NULL);
}

hr_status hr__lookup_grow(hr__lookup *lookup, hr__lookup_table **retired)
{
	hr_status status;
	hr__lookup_table *old = hr__load_relaxed(&lookup->table), *table = table_new((old->mask + 1) * 2, &status);
	if (!table) return status;
	for (uint32_t i = 0; i <= old->mask; i++) {
		uint32_t slot = hr__load_relaxed(&old->slots[i]);
		if (!slot) continue;
		uint32_t hash = hr__lookup_hash(hr__chunk_address(&lookup->chunks[hr__lookup_id(slot)]));
		hr__lookup_place(table, hash >> table->shift, slot);
	}
	hr__store_release(&lookup->table, table);
	hr__store_relaxed(&lookup->bytes, table->bytes);
	hr__store_relaxed(&lookup->shift, table->shift);
	*retired = old;
	return HR_OK;
}

uint64_t hr__lookup_bytes(const hr__lookup *lookup)
{
	return hr__load_relaxed(&lookup->bytes);
}
