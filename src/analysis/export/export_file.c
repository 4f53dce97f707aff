/* export_file.c - see export_file.h. */
#include "analysis/export/export_file.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/base/assert.h"
#include "core/base/status.h"
#include "core/os/os.h"

#define TRIES 100 /* part file names to try, in case another process left some behind */

struct hr__export_file {
	size_t bytes; /* of this block, including the two paths after it */
	int fd;
	bool is_sink;
	int error; /* the first error */
	uint64_t offset;
	size_t used;
	char *path, *part;
	char buffer[1 << 16];
};

static bool flush(hr__export_file *file)
{
	if (file->error || file->used == 0) return file->error == 0;
	file->error = file->is_sink ? hr__os()->sink_write(file->fd, file->buffer, file->used)
	                            : hr__os()->file_write(file->fd, file->buffer, file->used, file->offset);
	file->offset += file->used;
	file->used = 0;
	return file->error == 0;
}

bool hr__export_file_write(void *context, const char *bytes, size_t length)
{
	hr__export_file *file = context;
	while (length > 0) {
		if (file->used == sizeof file->buffer && !flush(file)) return false;
		size_t room = sizeof file->buffer - file->used, now = length < room ? length : room;
		memcpy(file->buffer + file->used, bytes, now);
		file->used += now;
		bytes += now;
		length -= now;
	}
	return file->error == 0;
}

bool hr__export_file_print(hr__export_file *file, const char *format, ...)
{
	char text[256];
	va_list arguments;
	va_start(arguments, format);
	int length = vsnprintf(text, sizeof text, format, arguments);
	va_end(arguments);
	HR_ASSERT(length >= 0 && (size_t)length < sizeof text);
	return hr__export_file_write(file, text, (size_t)length);
}

/* 0 or an errno value. */
static int open_part(hr__export_file *file, size_t room)
{
	int error = EEXIST;
	for (int i = 0; i < TRIES && error == EEXIST; i++) {
		snprintf(file->part, room, "%s.%d-%d.part", file->path, hr__os()->process_id(), i);
		error = hr__os()->file_create(file->part, &file->fd);
	}
	return error;
}

static hr_status refuse(const char *path, int error)
{
	if (error == ELOOP) return hr__fail(HR_IO, "%s cannot be written: it is a symbolic link; name the file itself, or remove the link", path);
	return hr__fail(HR_IO, "%s cannot be written: it is not a regular file; name another one, or /dev/stdout to write to a pipe", path);
}

hr_status hr__export_file_open(const char *path, hr__export_file **out)
{
	void *block;
	if (!path || !path[0]) return hr__fail(HR_INVALID_ARGUMENT, "no path to write to");
	size_t length = strlen(path), room = length + 48, bytes = sizeof(hr__export_file) + length + 1 + room;
	int error = hr__os()->alloc(bytes, &block);
	if (error) return hr__os_fail(error, "writing %s", path);
	hr__export_file *file = block;
	file->bytes = bytes;
	file->path = (char *)(file + 1);
	file->part = file->path + length + 1;
	memcpy(file->path, path, length + 1);
	error = hr__os()->sink_open(path, &file->fd);
	file->is_sink = error == 0;
	if (error == ELOOP || error == EINVAL) {
		hr__os()->free(file, bytes);
		return refuse(path, error);
	}
	if (error == ENOENT || error == EEXIST) error = open_part(file, room);
	if (error) {
		hr__os()->free(file, bytes);
		return hr__os_fail(error, "%s cannot be written", path);
	}
	*out = file;
	return HR_OK;
}

hr_status hr__export_file_close(hr__export_file *file, hr_status status)
{
	if (!status && !flush(file)) status = HR_IO;
	hr__os()->file_close(file->fd);
	int error = file->error;
	if (!status && !file->is_sink) {
		error = hr__os()->file_rename(file->part, file->path);
		if (error) status = HR_IO;
	}
	if (status && !file->is_sink) hr__os()->file_remove(file->part);
	if (error) status = hr__os_fail(error, "%s cannot be written", file->path);
	hr__os()->free(file, file->bytes);
	return status;
}

hr_status hr__export_make_folder(const char *path)
{
	void *block;
	size_t length = strlen(path);
	int error = hr__os()->alloc(length + 1, &block);
	if (error) return hr__os_fail(error, "making %s", path);
	char *part = block;
	int denied = 0;
	memcpy(part, path, length + 1);
	for (size_t i = 1; i <= length && (error == 0 || error == EEXIST); i++) {
		if (path[i] != '/' && path[i] != 0) continue;
		part[i] = 0;
		error = hr__os()->folder_create(part);
		/* A parent directory may exist in a place where this process cannot create it. */
		if ((error == EACCES || error == EROFS || error == EPERM) && path[i] != 0) {
			denied = error;
			error = EEXIST;
		}
		part[i] = path[i];
	}
	hr__os()->free(block, length + 1);
	if (error == ENOENT && denied) error = denied; /* the parent was missing and could not be created */
	return error && error != EEXIST ? hr__os_fail(error, "the directory %s cannot be made", path) : HR_OK;
}
