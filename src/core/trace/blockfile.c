/* blockfile.c - see blockfile.h for the layout. */
#include "core/trace/blockfile.h"

#include "core/base/assert.h"
#include "core/base/status.h"
#include "core/os/guard.h"
#include "core/os/os.h"

/* The smallest extent size: whole blocks and whole pages, so that the next extent can be mapped after it. */
static size_t unit_of(const hr__blockfile *file)
{
	size_t page = hr__os_page_size();
	return file->block_bytes > page ? file->block_bytes : page;
}

static uint32_t free_entry(hr__blockfile *file)
{
	for (uint32_t i = 0; i < file->entries; i++) {
		if (file->extents[i].base == NULL) return i;
	}
	HR_ASSERT(file->entries < HR__BLOCKFILE_HOLDERS + 3);
	return file->entries++;
}

/* Extends the file by an extent with file->step bytes of blocks, or fewer if the disk has less space. Returns the bytes added, or
 * 0. */
static size_t extend(hr__blockfile *file, size_t front)
{
	size_t unit = unit_of(file);
	file->full = file->end + front + unit > file->limit;
	for (size_t blocks = file->step; blocks >= unit; blocks /= 2) {
		if (file->end + front + blocks > file->limit) continue;
		file->error = hr__os()->file_extend(file->fd, file->end + front + blocks);
		if (file->error == 0) return front + blocks;
	}
	return 0;
}

static bool add_chunk(hr__blockfile *file)
{
	size_t front = file->end == 0 ? file->front_bytes : 0;
	void *base;
	if (file->error != 0) return false;
	size_t bytes = extend(file, front);
	if (bytes == 0) return false;
	file->error = hr__os()->file_map(file->fd, file->end, bytes, &base);
	if (file->error != 0) return false;
	uint32_t index = free_entry(file);
	file->extents[index] = (hr__blockfile_extent){ base, bytes, (uint32_t)((bytes - front) / file->block_bytes) + (front != 0) };
	file->newest = index;
	file->next = file->end + front;
	file->end += bytes;
	if (file->step < HR__EXTENT_LAST) file->step *= 2;
	return true;
}

hr_status hr__blockfile_create(hr__blockfile *file, const char *path, size_t front_bytes, uint32_t block_bytes, uint64_t limit, void **front)
{
	int fd;
	int error = hr__os()->file_create(path, &fd);
	if (error != 0) return hr__os_fail(error, "cannot create the trace file %s (it must not exist yet)", path);
	file->fd = fd;
	file->is_open = true;
	file->error = 0;
	file->cut = file->full = false;
	file->limit = limit;
	file->block_bytes = block_bytes;
	file->front_bytes = front_bytes;
	file->step = HR__EXTENT_FIRST;
	file->end = file->next = file->warm = 0;
	if (!add_chunk(file)) {
		error = file->error;
		file->is_open = false;
		hr__os()->file_close(fd);
		hr__os()->file_remove(path);
		return hr__os_fail(error, "cannot make room for the trace file %s", path);
	}
	*front = file->extents[file->newest].base;
	return HR_OK;
}

/* The block at [offset], which must be in the newest extent. */
static hr__blockfile_block block_at(const hr__blockfile *file, uint64_t offset)
{
	const hr__blockfile_extent *extent = &file->extents[file->newest];
	HR_ASSERT(offset + file->block_bytes <= file->end && file->end - offset <= extent->bytes);
	return (hr__blockfile_block){ (char *)extent->base + (offset - (file->end - extent->bytes)), file->block_bytes, file->newest, offset };
}

/* Checking the size is not enough: add_chunk may have extended a truncated file again. */
bool hr__blockfile_is_cut(hr__blockfile *file)
{
	uint64_t size;
	if (file->cut) return true;
	if (hr__os()->file_size(file->fd, &size) == 0 && size < file->end) file->cut = true;
	for (uint32_t i = 0; i < file->entries && !file->cut; i++)
		file->cut = file->extents[i].base != NULL && hr__guard_is_broken(file->extents[i].base);
	return file->cut;
}

bool hr__blockfile_take(hr__blockfile *file, hr__blockfile_block *out)
{
	if (file->error != 0 || hr__blockfile_is_cut(file) || (file->next == file->end && !add_chunk(file))) return false;
	*out = block_at(file, file->next);
	file->next += file->block_bytes;
	return true;
}

bool hr__blockfile_next_cold(hr__blockfile *file, hr__blockfile_block *out)
{
	uint64_t ahead = file->next + HR__BLOCKFILE_AHEAD * (uint64_t)file->block_bytes;
	if (file->warm < file->next) file->warm = file->next;
	if (!file->is_open || file->warm >= ahead || file->warm >= file->end) return false;
	*out = block_at(file, file->warm);
	file->warm += file->block_bytes;
	file->extents[out->extent].unfinished++;
	return true;
}

void hr__blockfile_give(hr__blockfile *file, uint32_t extent, hr__blockfile_extent *idle)
{
	hr__blockfile_extent *entry = &file->extents[extent];
	HR_ASSERT(entry->base != NULL && entry->unfinished > 0);
	idle->base = NULL;
	if (--entry->unfinished > 0) return;
	file->cut = file->cut || hr__guard_is_broken(entry->base);
	*idle = *entry;
	entry->base = NULL;
}

void hr__blockfile_unmap(const hr__blockfile_extent *idle)
{
	if (idle->base != NULL) hr__os()->file_unmap(idle->base, idle->bytes);
}

static void unmap_all(hr__blockfile *file)
{
	for (uint32_t i = 0; i < file->entries; i++) {
		hr__blockfile_extent idle = file->extents[i];
		if (idle.base == NULL) continue;
		file->extents[i].base = NULL;
		hr__blockfile_unmap(&idle);
	}
}

int hr__blockfile_finish(hr__blockfile *file, uint64_t bytes)
{
	int fd = file->fd;
	unmap_all(file);
	int error = file->cut ? 0 : hr__os()->file_truncate(fd, bytes);
	file->is_open = false;
	hr__os()->file_close(fd);
	return error;
}

void hr__blockfile_abandon(hr__blockfile *file)
{
	bool is_open = file->is_open;
	unmap_all(file);
	file->is_open = false;
	if (is_open) hr__os()->file_close(file->fd);
}
