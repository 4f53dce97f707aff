/* backend_check.c - checks that a backend's table is complete. */
#include <stddef.h>
#include <string.h>

#include "core/base/status.h"
#include "core/base/struct.h"
#include "core/device/internal.h"

typedef struct table_entry {
	const char *name;
	bool there;
} table_entry;

#define ENTRY(table, name)           \
	{                                \
#name, (table)->name != NULL \
	}
#define COUNT(array) (sizeof(array) / sizeof *(array))

/* The first missing entry; NULL when all are present. */
static const char *first_missing(const table_entry *entries, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		if (!entries[i].there) return entries[i].name;
	}
	return NULL;
}

/* The first missing entry of a group of which others are present; NULL when all or none are present. */
static const char *first_gap(const table_entry *entries, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		if (entries[i].there) return first_missing(entries, count);
	}
	return NULL;
}

static const char *missing_entry(const hr_backend *t)
{
	const table_entry needed[] = { ENTRY(t, count),       ENTRY(t, open), ENTRY(t, close),
		                           ENTRY(t, memory_info), ENTRY(t, copy), ENTRY(t, fill) };
	const table_entry pages[] = { ENTRY(t, reserve),      ENTRY(t, release), ENTRY(t, page_create),
		                          ENTRY(t, page_destroy), ENTRY(t, map),     ENTRY(t, unmap) };
	const table_entry plain[] = { ENTRY(t, plain_alloc), ENTRY(t, plain_free) };
	const table_entry streams[] = { ENTRY(t, stream_create), ENTRY(t, stream_destroy),    ENTRY(t, stream_synchronize),
		                            ENTRY(t, event_create),  ENTRY(t, event_destroy),     ENTRY(t, event_record),
		                            ENTRY(t, event_query),   ENTRY(t, event_synchronize), ENTRY(t, stream_wait_event) };
	const table_entry host[] = { ENTRY(t, host_alloc), ENTRY(t, host_free) };
	const table_entry host_pages[] = { ENTRY(t, host_page_create), ENTRY(t, host_page_destroy) };

	const char *missing = first_missing(needed, COUNT(needed));
	if (!missing) missing = first_gap(pages, COUNT(pages));
	if (!missing) missing = first_gap(plain, COUNT(plain));
	if (!missing) missing = first_gap(streams, COUNT(streams));
	if (!missing) missing = first_gap(host, COUNT(host));
	if (!missing) missing = first_gap(host_pages, COUNT(host_pages));
	if (!missing && t->host_page_create && !t->map) missing = "map";
	if (!missing && !t->map && !t->plain_alloc) missing = "plain_alloc";
	return missing;
}

static bool is_word(const char *text, size_t capacity)
{
	if (!text) return false;
	size_t length = strnlen(text, capacity);
	if (length == 0 || length == capacity) return false;
	for (size_t i = 0; i < length; i++) {
		char c = text[i];
		bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
		if (!letter && (i == 0 || !((c >= '0' && c <= '9') || c == '_'))) return false;
	}
	return true;
}

hr_status hr__backend_check(const hr_backend *backend, hr_backend *complete)
{
	if (!backend) return hr__fail(HR_INVALID_ARGUMENT, "hr_backend_register: backend is NULL");
	if (backend->version > HR_BACKEND_VERSION) {
		return hr__fail(HR_TOO_NEW, "the backend has version %u; this library supports version %u", backend->version, HR_BACKEND_VERSION);
	}
	if (backend->version == 0) {
		return hr__fail(HR_INVALID_ARGUMENT, "hr_backend_register: hr_backend.version is 0; set it to HR_BACKEND_VERSION");
	}
	memset(complete, 0, sizeof *complete);
	hr_status status =
		hr__struct_in_sized(&hr__struct_backend, "hr_backend_register", complete, backend, backend->struct_size, HR__STRUCT_MAX);
	if (status != HR_OK) return status;
	if (!is_word(complete->name, sizeof((hr_device_info *)0)->backend)) {
		return hr__fail(HR_INVALID_ARGUMENT, "a backend's name is a word of 1 to 15 letters, digits and \"_\"");
	}
	if (!is_word(complete->type, sizeof((hr__device_spec *)0)->type)) {
		return hr__fail(HR_INVALID_ARGUMENT, "backend %s: type is a word of 1 to 15 letters, digits and \"_\"", complete->name);
	}
	const char *missing = missing_entry(complete);
	if (missing) return hr__fail(HR_INVALID_ARGUMENT, "backend %s: the entry %s is missing", complete->name, missing);
	return HR_OK;
}
