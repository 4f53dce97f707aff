/* struct.c - reading and writing structs of programs that were compiled against another version of the headers. */
#include "core/base/struct.h"

#include <string.h>

#include "core/base/status.h"

HR__STRUCTS(HR__STRUCT_DEFINE)
HR__FIXED_STRUCTS(HR__STRUCT_FIXED)

static size_t smaller(size_t a, size_t b)
{
	return a < b ? a : b;
}

/* Whether some version could have a struct of that size. */
static bool is_possible(const hr__struct *type, size_t size)
{
	return size >= type->least && size <= HR__STRUCT_MAX && size % sizeof(size_t) == 0;
}

static hr_status fail_null(const hr__struct *type, const char *call)
{
	return hr__fail(HR_INVALID_ARGUMENT, "%s: %s is NULL", call, type->name);
}

static hr_status fail_size(const hr__struct *type, const char *call, size_t size)
{
	return hr__fail(HR_INVALID_ARGUMENT, "%s: %s.struct_size is %zu; %s", call, type->name, size, type->remedy);
}

static bool is_zero(const unsigned char *bytes, size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (bytes[i]) return false;
	return true;
}

hr_status hr__struct_in_sized(const hr__struct *type, const char *call, void *to, const void *from, size_t struct_size, size_t room)
{
	if (!is_possible(type, struct_size) || struct_size > room) return fail_size(type, call, struct_size);
	if (struct_size > type->size && !is_zero((const unsigned char *)from + type->size, struct_size - type->size))
		return hr__fail(HR_INVALID_ARGUMENT,
		                "%s: %s has %zu bytes; version %s of the library knows %zu, and the others are not 0: upgrade the library, or "
		                "leave the newer fields 0",
		                call, type->name, struct_size, hr_version(), type->size);
	memcpy(to, from, smaller(struct_size, type->size));
	return HR_OK;
}

hr_status hr__struct_in(const hr__struct *type, const char *call, void *to, const void *from)
{
	size_t struct_size;
	if (!from) return fail_null(type, call);
	memcpy(&struct_size, from, sizeof struct_size);
	hr_status status = hr__struct_in_sized(type, call, to, from, struct_size, HR__STRUCT_MAX);
	if (!status) memcpy(to, &type->size, sizeof type->size); /* its size from here on */
	return status;
}

hr_status hr__struct_check(const hr__struct *type, const char *call, const void *to)
{
	size_t struct_size;
	if (!to) return fail_null(type, call);
	memcpy(&struct_size, to, sizeof struct_size);
	return is_possible(type, struct_size) ? HR_OK : fail_size(type, call, struct_size);
}

void hr__struct_out(const hr__struct *type, void *to, const void *from)
{
	size_t struct_size, after = sizeof struct_size;
	memcpy(&struct_size, to, sizeof struct_size);
	memcpy((char *)to + after, (const char *)from + after, smaller(struct_size, type->size) - after);
}

void hr__struct_init(const hr__struct *type, void *to, size_t struct_size, const void *defaults)
{
	if (!to || !is_possible(type, struct_size)) return;
	memset(to, 0, struct_size);
	memcpy(to, defaults, smaller(struct_size, type->size));
	memcpy(to, &struct_size, sizeof struct_size);
}
