#include "core/arena/chunk.h"

#include "core/base/status.h"
#include "core/os/os.h"

/* Committing is a system call. Growing by an eighth, at least by one host page, keeps it rare and wastes little. */
static uint32_t records_to_commit(const hr__chunk_table *table)
{
	uint32_t per_page = (uint32_t)(hr__os_page_size() / sizeof(hr__chunk)), more = table->committed / 8;
	return more < per_page ? per_page : more / per_page * per_page;
}

hr_status hr__chunk_table_init(hr__chunk_table *table)
{
	void *base;
	int error = hr__os()->reserve(HR__CHUNKS_MAX * sizeof(hr__chunk), hr__os_page_size(), &base);
	if (error) return hr__os_fail(error, "cannot reserve addresses for chunk records");
	*table = (hr__chunk_table){ .chunks = base, .touched = 1 };
	return HR_OK;
}

void hr__chunk_table_destroy(hr__chunk_table *table)
{
	if (table->chunks) hr__os()->release(table->chunks, HR__CHUNKS_MAX * sizeof(hr__chunk));
	*table = (hr__chunk_table){ 0 };
}

hr_status hr__chunk_table_ensure_slow(hr__chunk_table *table, uint32_t count)
{
	HR_ASSERT(table->touched <= table->committed + 1 && table->spare_count < table->touched);
	while (!hr__chunk_table_has(table, count)) {
		uint32_t more = records_to_commit(table);
		if (table->committed + more > HR__CHUNKS_MAX)
			return hr__fail(HR_TOO_MANY, "a shard of the allocator has %u chunks, the maximum; free blocks, allocate fewer and larger ones, or create another allocator",
			                table->committed);
		int error = hr__os()->commit(&table->chunks[table->committed], more * sizeof(hr__chunk));
		if (error) return hr__os_fail(error, "cannot get host memory for %u more chunk records", more);
		table->committed += more;
	}
	return HR_OK;
}
