/* pickle_objects.c - see pickle_objects.h. */
#include "analysis/import/pickle/pickle_objects.h"

#include <string.h>

#include "core/base/status.h"
#include "core/os/os.h"

struct pickle_cell {
	uint32_t object;
	uint32_t next;
};

static struct pickle_cell *cell_at(const hr__pickle *pickle, uint32_t cell)
{
	HR_ASSERT(cell > 0);
	return hr__list_at(&pickle->cells, cell);
}

/* ---- building ---- */

hr_status hr__pickle_list_add(hr__list *list, const void *item)
{
	if (list->count >= HR__PICKLE_OBJECTS_MAX)
		return hr__fail(HR_TOO_MANY, "the pickle has more than %u objects", HR__PICKLE_OBJECTS_MAX);
	return hr__list_add(list, item);
}

static hr_status add_constants(hr__pickle *pickle)
{
	static const struct pickle_cell unused = { 0 };
	static const hr__pickle_object constants[] = {
		[HR__PICKLE_NONE_OBJECT] = { .kind = HR__PICKLE_NONE },
		[HR__PICKLE_FALSE_OBJECT] = { .kind = HR__PICKLE_FALSE },
		[HR__PICKLE_TRUE_OBJECT] = { .kind = HR__PICKLE_TRUE },
	};
	hr_status status = hr__list_add(&pickle->cells, &unused);
	for (size_t i = 0; !status && i < sizeof constants / sizeof *constants; i++)
		status = hr__list_add(&pickle->objects, &constants[i]);
	return status;
}

hr_status hr__pickle_create(hr__pickle **out)
{
	void *block;
	int error = hr__os()->alloc(sizeof(hr__pickle), &block);
	if (error) return hr__os_fail(error, "reading a pickle");
	hr__pickle *pickle = block;
	pickle->objects.item_bytes = sizeof(hr__pickle_object);
	pickle->cells.item_bytes = sizeof(struct pickle_cell);
	pickle->text.item_bytes = 1;
	hr_status status = add_constants(pickle);
	if (status) hr__pickle_free(pickle);
	else *out = pickle;
	return status;
}

void hr__pickle_free(hr__pickle *pickle)
{
	if (!pickle) return;
	hr__list_free(&pickle->objects);
	hr__list_free(&pickle->cells);
	hr__list_free(&pickle->text);
	hr__os()->free(pickle, sizeof *pickle);
}

static void link_cell(hr__pickle *pickle, hr__pickle_object *container, uint32_t cell)
{
	HR_ASSERT(!container->first == !container->last);
	if (container->last) cell_at(pickle, container->last)->next = cell;
	else container->first = cell;
	container->last = cell;
}

hr_status hr__pickle_add_part(hr__pickle *pickle, uint32_t container, uint32_t part)
{
	hr__pickle_object *whole = hr__pickle_object_at(pickle, container), *object = hr__pickle_object_at(pickle, part);
	HR_ASSERT(whole->kind == HR__PICKLE_LIST || whole->kind == HR__PICKLE_DICT);
	object->sealed = true; /* first, because the part may be the container itself */
	if (whole->sealed)
		return hr__fail(HR_UNSUPPORTED,
		                "a list or dict contains itself, or is modified after it was used; snapshots have none such");
	if (object->height >= HR__PICKLE_DEPTH_MAX)
		return hr__fail(HR_TOO_MANY, "lists and dicts are nested more than %u deep", HR__PICKLE_DEPTH_MAX);
	hr_status status = hr__pickle_list_add(&pickle->cells, &(struct pickle_cell){ .object = part });
	if (status) return status;
	link_cell(pickle, whole, (uint32_t)pickle->cells.count - 1);
	if (whole->height <= object->height) whole->height = (uint16_t)(object->height + 1);
	return HR_OK;
}

/* ---- reading ---- */

uint32_t hr__pickle_root(const hr__pickle *pickle)
{
	return pickle->root;
}

hr__pickle_kind hr__pickle_kind_of(const hr__pickle *pickle, uint32_t object)
{
	return (hr__pickle_kind)hr__pickle_object_at(pickle, object)->kind;
}

int64_t hr__pickle_integer(const hr__pickle *pickle, uint32_t object)
{
	HR_ASSERT(hr__pickle_kind_of(pickle, object) == HR__PICKLE_INTEGER);
	return hr__pickle_object_at(pickle, object)->integer;
}

uint64_t hr__pickle_unsigned(const hr__pickle *pickle, uint32_t object)
{
	HR_ASSERT(hr__pickle_kind_of(pickle, object) == HR__PICKLE_UNSIGNED);
	return hr__pickle_object_at(pickle, object)->magnitude;
}

double hr__pickle_real(const hr__pickle *pickle, uint32_t object)
{
	HR_ASSERT(hr__pickle_kind_of(pickle, object) == HR__PICKLE_REAL);
	return hr__pickle_object_at(pickle, object)->real;
}

const char *hr__pickle_text(const hr__pickle *pickle, uint32_t object, size_t *length)
{
	uint32_t stored;
	HR_ASSERT(hr__pickle_kind_of(pickle, object) == HR__PICKLE_TEXT);
	const char *text = (const char *)pickle->text.items + hr__pickle_object_at(pickle, object)->text;
	memcpy(&stored, text, sizeof stored);
	*length = stored;
	return text + sizeof stored;
}

uint32_t hr__pickle_first(const hr__pickle *pickle, uint32_t container)
{
	HR_ASSERT(hr__pickle_kind_of(pickle, container) >= HR__PICKLE_LIST);
	return hr__pickle_object_at(pickle, container)->first;
}

uint32_t hr__pickle_next(const hr__pickle *pickle, uint32_t item)
{
	return cell_at(pickle, item)->next;
}

uint32_t hr__pickle_at(const hr__pickle *pickle, uint32_t item)
{
	return cell_at(pickle, item)->object;
}

static bool is_text(const hr__pickle *pickle, uint32_t object, const char *wanted)
{
	size_t length;
	if (hr__pickle_kind_of(pickle, object) != HR__PICKLE_TEXT) return false;
	const char *text = hr__pickle_text(pickle, object, &length);
	return length == strlen(wanted) && memcmp(text, wanted, length) == 0;
}

uint32_t hr__pickle_find(const hr__pickle *pickle, uint32_t dict, const char *key)
{
	uint32_t found = 0;
	if (hr__pickle_kind_of(pickle, dict) != HR__PICKLE_DICT) return 0;
	for (uint32_t item = hr__pickle_first(pickle, dict); item; item = hr__pickle_next(pickle, item)) {
		bool is_key = is_text(pickle, hr__pickle_at(pickle, item), key);
		item = hr__pickle_next(pickle, item);
		if (is_key) found = hr__pickle_at(pickle, item);
	}
	return found;
}

uint32_t hr__pickle_shared(const hr__pickle *pickle, uint32_t object)
{
	return hr__pickle_object_at(pickle, object)->shared;
}

uint32_t hr__pickle_shared_count(const hr__pickle *pickle)
{
	return pickle->shared_count;
}
