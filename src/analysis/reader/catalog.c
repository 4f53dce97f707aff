/* catalog.c - see catalog.h. */
#include "analysis/reader/catalog.h"

#include "core/base/names.h"
#include "core/base/status.h"

/* Meaning of a number of a name, shape, frame or stack. */
typedef struct meaning {
	uint32_t id;        /* id in this process, plus 1; 0: not defined */
	uint64_t first_use; /* offset in the file of the first event or definition that uses it; 0: unused */
} meaning;

typedef struct frame_definition {
	uint32_t number;
	hr_frame frame; /* names are numbers of the file */
} frame_definition;

typedef struct stack_definition {
	uint32_t number;
	uint32_t frame_count;
	size_t first_frame; /* in stack_frames */
} stack_definition;

/* ---- names and shapes ---- */

static hr_status meaning_of(hr__list *table, uint32_t number, meaning **out)
{
	hr_status status = HR_OK;
	HR_ASSERT(number < HR__TRACE_IDS_MAX);
	if (number >= table->count) {
		status = hr__list_reserve(table, (size_t)number + 1);
		if (status != HR_OK) return status;
		table->count = (size_t)number + 1;
	}
	*out = hr__list_at(table, number);
	return HR_OK;
}

static hr_status define(hr__list *table, uint32_t number, uint32_t id)
{
	meaning *m;
	hr_status status = meaning_of(table, number, &m);
	if (status == HR_OK) m->id = id + 1;
	return status;
}

static hr_status note_use(hr__list *table, uint32_t number, uint64_t offset)
{
	meaning *m;
	if (number <= HR_NAME_OTHER) return HR_OK;
	hr_status status = meaning_of(table, number, &m);
	if (status == HR_OK && m->first_use == 0) m->first_use = offset;
	return status;
}

static uint32_t translate(const hr__list *table, uint32_t number)
{
	if (number <= HR_NAME_OTHER) return number;
	const meaning *m = number < table->count ? hr__list_at(table, number) : NULL;
	return m == NULL || m->id == 0 ? HR_NAME_OTHER : m->id - 1;
}

/* In a complete file every number that is used must be defined. */
static hr_status check_defined(const hr__list *table, const char *what)
{
	for (size_t i = 0; i < table->count; i++) {
		const meaning *m = hr__list_at(table, i);
		if (m->first_use == 0 || m->id != 0) continue;
		return hr__fail(HR_BAD_FORMAT, "not a valid trace: byte %llu: a record names %s %zu, which is not defined",
		                (unsigned long long)m->first_use, what, i);
	}
	return HR_OK;
}

/* ---- devices and allocators ---- */

static const char *text_of(const char *text, size_t length)
{
	return hr_name_text(hr__name_of_bytes(text, length));
}

static uint32_t *find_slot(const hr__finder *f, const hr__list *items, uint32_t number)
{
	size_t mask = f->slots.count - 1;
	uint32_t hash = number * 2654435769u;
	for (size_t i = (hash ^ hash >> 16) & mask;; i = (i + 1) & mask) {
		uint32_t *slot = hr__list_at(&f->slots, i);
		if (*slot == 0) return slot;
		/* The number is the first field of both structs. */
		uint32_t found;
		memcpy(&found, hr__list_at(items, *slot - 1), sizeof(found));
		if (found == number) return slot;
	}
}

_Static_assert(offsetof(hr__trace_device, id) == 0 && offsetof(hr__trace_allocator, id) == 0, "find_slot reads it");

static hr_status grow_finder(hr__finder *f, const hr__list *items)
{
	hr__finder larger = { { NULL, 0, 0, sizeof(uint32_t) } };
	size_t count = f->slots.count > 0 ? f->slots.count * 2 : 16;
	hr_status status = hr__list_reserve(&larger.slots, count);
	if (status != HR_OK) return status;
	larger.slots.count = count;
	for (size_t i = 0; i < items->count; i++) {
		uint32_t number;
		memcpy(&number, hr__list_at(items, i), sizeof(number));
		*find_slot(&larger, items, number) = (uint32_t)i + 1;
	}
	hr__list_free(&f->slots);
	*f = larger;
	return HR_OK;
}

/* Adds [item], or replaces the item with the same number. */
static hr_status put_item(hr__finder *f, hr__list *items, uint32_t number, const void *item)
{
	hr_status status = HR_OK;
	if (f->slots.count < 2 * (items->count + 1)) status = grow_finder(f, items);
	if (status != HR_OK) return status;
	uint32_t *slot = find_slot(f, items, number);
	if (*slot != 0) {
		memcpy(hr__list_at(items, *slot - 1), item, items->item_bytes);
		return HR_OK;
	}
	/* The limit also bounds the time that deliberately colliding numbers can cost. */
	if (items->count >= HR__TRACE_IDS_MAX) {
		return hr__fail(HR_BAD_FORMAT, "not a valid trace: it defines more than 65536 devices or allocators");
	}
	status = hr__list_add(items, item);
	if (status == HR_OK) *slot = (uint32_t)items->count;
	return status;
}

/* ---- frames and stacks ---- */

static hr_status keep_frame(hr__catalog *catalog, const hr__definition *d, uint64_t offset)
{
	frame_definition definition = { d->number, d->frame };
	hr_status status = note_use(&catalog->names, d->frame.function, offset);
	if (status == HR_OK) status = note_use(&catalog->names, d->frame.file, offset);
	if (status == HR_OK) status = note_use(&catalog->names, d->frame.module, offset);
	return status == HR_OK ? hr__list_add(&catalog->frame_definitions, &definition) : status;
}

static hr_status keep_stack(hr__catalog *catalog, const hr__definition *d, uint64_t offset)
{
	stack_definition definition = { d->number, (uint32_t)d->frame_count, catalog->stack_frames.count };
	hr_status status = HR_OK;
	for (size_t i = 0; i < d->frame_count && status == HR_OK; i++) {
		status = note_use(&catalog->frames, d->frames[i], offset);
		if (status == HR_OK) status = hr__list_add(&catalog->stack_frames, &d->frames[i]);
	}
	return status == HR_OK ? hr__list_add(&catalog->stack_definitions, &definition) : status;
}

static hr_status finish_frames(hr__catalog *catalog)
{
	hr_status status = HR_OK;
	for (size_t i = 0; i < catalog->frame_definitions.count && status == HR_OK; i++) {
		const frame_definition *d = hr__list_at(&catalog->frame_definitions, i);
		hr_frame frame = d->frame;
		frame.function = translate(&catalog->names, frame.function);
		frame.file = translate(&catalog->names, frame.file);
		frame.module = translate(&catalog->names, frame.module);
		status = define(&catalog->frames, d->number, hr__frame_intern(&frame));
	}
	return status;
}

static hr_status finish_stacks(hr__catalog *catalog)
{
	uint16_t frames[HR_STACK_DEPTH_MAX];
	hr_status status = HR_OK;
	for (size_t i = 0; i < catalog->stack_definitions.count && status == HR_OK; i++) {
		const stack_definition *d = hr__list_at(&catalog->stack_definitions, i);
		for (uint32_t f = 0; f < d->frame_count; f++) {
			const uint16_t *number = hr__list_at(&catalog->stack_frames, d->first_frame + f);
			frames[f] = (uint16_t)translate(&catalog->frames, *number);
			if (frames[f] == 0) frames[f] = HR__FRAME_OTHER; /* there is no frame 0 */
		}
		status = define(&catalog->stacks, d->number, hr__stack_of_frames(frames, d->frame_count));
	}
	return status;
}

hr_status hr__catalog_finish(hr__catalog *catalog)
{
	hr_status status = finish_frames(catalog);
	if (status == HR_OK) status = finish_stacks(catalog);
	hr__list_free(&catalog->frame_definitions);
	hr__list_free(&catalog->stack_definitions);
	hr__list_free(&catalog->stack_frames);
	return status;
}

hr_status hr__catalog_define(hr__catalog *catalog, const hr__definition *d, uint64_t offset)
{
	switch (d->kind) {
	case HR__RECORD_FRAME: return keep_frame(catalog, d, offset);
	case HR__RECORD_STACK: return keep_stack(catalog, d, offset);
	case HR__RECORD_NAME: return define(&catalog->names, d->number, hr__name_of_bytes(d->text, d->text_length));
	case HR__RECORD_SHAPE: return define(&catalog->shapes, d->number, hr_shape_intern(d->dims, d->rank));
	case HR__RECORD_DEVICE: {
		hr__trace_device device = { d->number, text_of(d->text, d->text_length), d->limit, d->page };
		return put_item(&catalog->device_finder, &catalog->devices, d->number, &device);
	}
	case HR__RECORD_LIMIT: {
		const uint32_t *slot = catalog->allocators.count ? find_slot(&catalog->allocator_finder, &catalog->allocators, d->number) : NULL;
		if (slot && *slot) ((hr__trace_allocator *)hr__list_at(&catalog->allocators, *slot - 1))->limit_bytes = d->limit;
		return HR_OK;
	}
	default: {
		const char *name = text_of(d->text, d->text_length), *kind = text_of(d->text2, d->text2_length);
		hr__trace_allocator allocator = { d->number, d->device, name, kind, 0 };
		return put_item(&catalog->allocator_finder, &catalog->allocators, d->number, &allocator);
	}
	}
}

/* ---- the catalog ---- */

hr_status hr__catalog_note(hr__catalog *catalog, const hr__event *event, uint64_t offset)
{
	hr_status status = note_use(&catalog->names, event->op, offset);
	if (status == HR_OK) status = note_use(&catalog->names, event->scope, offset);
	if (status == HR_OK) status = note_use(&catalog->names, event->tag, offset);
	if (status == HR_OK) status = note_use(&catalog->shapes, event->shape, offset);
	if (status == HR_OK) status = note_use(&catalog->stacks, event->stack, offset);
	return status;
}

hr_status hr__catalog_check(const hr__catalog *catalog)
{
	hr_status status = check_defined(&catalog->names, "name");
	if (status == HR_OK) status = check_defined(&catalog->shapes, "shape");
	if (status == HR_OK) status = check_defined(&catalog->frames, "frame");
	return status == HR_OK ? check_defined(&catalog->stacks, "stack") : status;
}

void hr__catalog_translate(const hr__catalog *catalog, hr__event *event)
{
	event->op = translate(&catalog->names, event->op);
	event->scope = translate(&catalog->names, event->scope);
	event->tag = translate(&catalog->names, event->tag);
	event->shape = translate(&catalog->shapes, event->shape);
	event->stack = translate(&catalog->stacks, event->stack);
}

void hr__catalog_init(hr__catalog *catalog)
{
	memset(catalog, 0, sizeof(*catalog));
	catalog->names.item_bytes = catalog->shapes.item_bytes = catalog->frames.item_bytes = catalog->stacks.item_bytes = sizeof(meaning);
	catalog->frame_definitions.item_bytes = sizeof(frame_definition);
	catalog->stack_definitions.item_bytes = sizeof(stack_definition);
	catalog->stack_frames.item_bytes = sizeof(uint16_t);
	catalog->devices.item_bytes = sizeof(hr__trace_device);
	catalog->allocators.item_bytes = sizeof(hr__trace_allocator);
	catalog->device_finder.slots.item_bytes = catalog->allocator_finder.slots.item_bytes = sizeof(uint32_t);
}

void hr__catalog_free(hr__catalog *catalog)
{
	hr__list_free(&catalog->names);
	hr__list_free(&catalog->shapes);
	hr__list_free(&catalog->frames);
	hr__list_free(&catalog->stacks);
	hr__list_free(&catalog->frame_definitions);
	hr__list_free(&catalog->stack_definitions);
	hr__list_free(&catalog->stack_frames);
	hr__list_free(&catalog->devices);
	hr__list_free(&catalog->allocators);
	hr__list_free(&catalog->device_finder.slots);
	hr__list_free(&catalog->allocator_finder.slots);
}
